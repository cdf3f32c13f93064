//! The hand-written peer: maps behind locks, and a thread that sweeps them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use countwheel_time::locks::lock;

use super::{Kind, Map, Value};
use crate::random::index;
use crate::stopwatch::{Stopwatch, pause};

const SHARDS: usize = 16;

/// How often the thread comes round.
const SWEEP: Duration = Duration::from_secs(1);

pub(crate) struct Swept;

impl Kind for Swept {
    type Of<V: Value> = Shards<V>;
}

pub(crate) struct Shards<V>(Arc<Shared<V>>);

struct Shared<V> {
    shards: [Mutex<HashMap<u64, (Instant, V)>>; SHARDS],
    hasher: RandomState,
    ttl: Duration,
}

impl<V> Clone for Shards<V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V> Shared<V> {
    fn lock(&self, key: u64) -> MutexGuard<'_, HashMap<u64, (Instant, V)>> {
        let shard = self.hasher.hash_one(key) % SHARDS as u64;
        lock(&self.shards[index(shard)])
    }

    fn sweep(&self) {
        for shard in &self.shards {
            let now = Stopwatch::start().instant();
            let mut shard = lock(shard);
            let expired = shard.extract_if(|_, (due, _)| *due <= now);
            let expired: Vec<_> = expired.collect();
            drop(shard);
            drop(expired);
        }
    }
}

impl<V: Value> Map<V> for Shards<V> {
    fn start(ttl: Duration) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            ttl,
        });
        let of_thread = Arc::downgrade(&shared);
        let sweep = move || {
            while let Some(shared) = of_thread.upgrade() {
                shared.sweep();
                drop(shared);
                pause(SWEEP);
            }
        };
        let thread = Builder::new().spawn(sweep);
        thread.context("its thread could not be started")?;
        Ok(Self(shared))
    }

    #[inline]
    fn insert(&self, key: u64, value: V) {
        let due = Stopwatch::start().instant() + self.0.ttl;
        let old = self.0.lock(key).insert(key, (due, value));
        drop(old);
    }

    #[inline]
    fn get(&self, key: u64) -> Option<V> {
        let shard = self.0.lock(key);
        let (due, value) = shard.get(&key)?;
        (*due > Stopwatch::start().instant()).then(|| value.clone())
    }
}
