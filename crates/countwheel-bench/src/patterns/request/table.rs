//! The hand-written peer: maps behind locks, by the id of a request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use countwheel_time::locks::lock;

use crate::random::index;

const SHARDS: usize = 16;

/// Entries by the id of their request. Ids are given in turn.
pub(super) struct Table<V> {
    shards: [Mutex<HashMap<u64, V>>; SHARDS],
    next: AtomicU64,
}

impl<V> Table<V> {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(0),
        }
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The part of the table in which an id is found.
    pub(super) fn lock(&self, id: u64) -> MutexGuard<'_, HashMap<u64, V>> {
        lock(&self.shards[index(id % SHARDS as u64)])
    }

    pub(super) fn remove(&self, id: u64) -> Option<V> {
        self.lock(id).remove(&id)
    }

    pub(super) fn len(&self) -> u64 {
        let lengths = self.shards.iter().map(|shard| lock(shard).len() as u64);
        lengths.sum()
    }
}
