//! One load for all callers that miss the same key.
//!
//! The record of a load stays in its shard, under the shard's lock, until the load ends, or until
//! the key is inserted or removed. After such a change the map does not keep the loaded value,
//! since it may be older. Callers that wait for the load get the value in any case.

use std::any::Any;
use std::collections::BTreeMap;
use std::future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};

use super::shard::MapShard;
use super::ttl::Life;
use countwheel::Instant;
use countwheel::building::{block_until, returns};
use countwheel_time::locks::lock;

/// A load that is under way, in its shard.
pub(super) struct Loading<K, V> {
    pub(super) key: K,
    pub(super) flight: Arc<Flight<V>>,
}

/// What those who load and those who wait have in common.
pub(super) struct Flight<V> {
    phase: Mutex<Phase<V>>,
    /// The last number given to one who waits.
    places: AtomicU64,
    /// The thread that blocks while it loads, if one does.
    thread: Option<ThreadId>,
}

enum Phase<V> {
    /// Who waits.
    Under(BTreeMap<u64, Waker>),
    Over(Landing<V>),
}

/// How a load has ended.
pub(super) enum Landing<V> {
    Loaded(Arc<V>),
    Failed(Arc<dyn Any + Send + Sync>),
    /// It panicked, or its future was dropped.
    Abandoned,
}

impl<V> Clone for Landing<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Loaded(value) => Self::Loaded(Arc::clone(value)),
            Self::Failed(error) => Self::Failed(Arc::clone(error)),
            Self::Abandoned => Self::Abandoned,
        }
    }
}

impl<V> Flight<V> {
    pub(super) fn new(blocks: bool) -> Arc<Self> {
        Arc::new(Self {
            phase: Mutex::new(Phase::Under(BTreeMap::new())),
            places: AtomicU64::new(0),
            thread: blocks.then(|| thread::current().id()),
        })
    }

    fn phase(&self) -> MutexGuard<'_, Phase<V>> {
        lock(&self.phase)
    }

    fn land(&self, landing: Landing<V>) {
        let before = std::mem::replace(&mut *self.phase(), Phase::Over(landing));
        if let Phase::Under(waiting) = before {
            for waker in waiting.into_values() {
                returns(|| waker.wake());
            }
        }
    }

    /// A place among those who wait, until it is dropped.
    fn place(&self) -> LoadPlace<'_, V> {
        LoadPlace {
            flight: self,
            number: self.places.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn poll(&self, number: u64, waker: &Waker) -> Poll<Landing<V>> {
        // A waker is foreign: it is neither cloned nor dropped under the lock.
        let waker = waker.clone();
        let mut phase = self.phase();
        match &mut *phase {
            Phase::Over(landing) => {
                let landing = landing.clone();
                drop(phase);
                Poll::Ready(landing)
            }
            Phase::Under(waiting) => {
                let old = waiting.insert(number, waker);
                drop(phase);
                drop(old);
                Poll::Pending
            }
        }
    }

    /// Blocks until the load is over.
    pub(super) fn wait(&self) -> Landing<V> {
        assert!(
            self.thread != Some(thread::current().id()),
            "a load waits for itself"
        );
        let place = self.place();
        block_until(|cx| self.poll(place.number, cx.waker()))
    }

    /// Waits until the load is over.
    pub(super) async fn landing(&self) -> Landing<V> {
        let place = self.place();
        future::poll_fn(|cx| self.poll(place.number, cx.waker())).await
    }
}

/// The place of one who waits.
struct LoadPlace<'a, V> {
    flight: &'a Flight<V>,
    number: u64,
}

impl<V> Drop for LoadPlace<'_, V> {
    fn drop(&mut self) {
        let old = match &mut *self.flight.phase() {
            Phase::Under(waiting) => waiting.remove(&self.number),
            Phase::Over(_) => None,
        };
        drop(old);
    }
}

/// Ends a flight when it is dropped: those who wait must not do so for ever because an `Eq`, a
/// `Clone` or a destructor panics before.
struct Lands<'a, V>(&'a Flight<V>, Option<Landing<V>>);

impl<V> Drop for Lands<'_, V> {
    fn drop(&mut self) {
        if let Some(landing) = self.1.take() {
            self.0.land(landing);
        }
    }
}

/// What somebody finds who has missed a key.
pub(super) enum LoadTurn<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    /// It has come in between.
    Found(V),
    /// Somebody loads it.
    Wait(Arc<Flight<V>>),
    Load(Load<K, V>),
}

/// The duty to load. Dropped, it lets another of those who wait have it.
pub(super) struct Load<K: Send + Sync + 'static, V: Send + Sync + 'static> {
    shard: Arc<MapShard<K, V>>,
    hash: u64,
    /// None once it is over.
    flight: Option<Arc<Flight<V>>>,
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Load<K, V> {
    pub(super) fn new(shard: &Arc<MapShard<K, V>>, hash: u64, flight: &Arc<Flight<V>>) -> Self {
        Self {
            shard: Arc::clone(shard),
            hash,
            flight: Some(Arc::clone(flight)),
        }
    }

    /// Ends it, one way or the other. What was loaded lives from `now` on.
    pub(super) fn end<E>(
        mut self,
        result: Result<V, E>,
        now: Instant,
        life: Life,
    ) -> Result<V, Arc<E>>
    where
        K: Eq,
        V: Clone,
        E: Send + Sync + 'static,
    {
        match result {
            Ok(value) => {
                let (kept, shared) = (value.clone(), Arc::new(value.clone()));
                if let Some(flight) = self.flight.take() {
                    let _lands = Lands(&flight, Some(Landing::Loaded(shared)));
                    self.shard.keep(self.hash, &flight, kept, life, now);
                }
                Ok(value)
            }
            Err(error) => {
                let error = Arc::new(error);
                if let Some(flight) = self.flight.take() {
                    let failed = Landing::Failed(Arc::clone(&error) as _);
                    let _lands = Lands(&flight, Some(failed));
                    self.shard.give_up(self.hash, &flight);
                }
                Err(error)
            }
        }
    }
}

impl<K: Send + Sync + 'static, V: Send + Sync + 'static> Drop for Load<K, V> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let _lands = Lands(&flight, Some(Landing::Abandoned));
            self.shard.give_up(self.hash, &flight);
        }
    }
}
