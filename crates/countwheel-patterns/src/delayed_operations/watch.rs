//! The watched operations under each key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use countwheel_time::locks::lock;

/// Lists by the hashes of keys, in parts with a lock each.
///
/// No key is compared, and nothing foreign dropped, under a lock: keys that share a hash share
/// a list, and whoever asks looks at the keys of the operations themselves.
pub(super) struct WatchLists<W> {
    parts: Box<[Mutex<Part<W>>]>,
}

/// By hash, and under that by number. One tree for all lists of a part, so that a list of one
/// costs no allocation of its own.
type Part<W> = BTreeMap<(u64, u64), Arc<W>>;

impl<W> WatchLists<W> {
    pub(super) fn new(parts: usize) -> Self {
        Self {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn add(&self, hash: u64, number: u64, watched: &Arc<W>) {
        let watched = Arc::clone(watched);
        let before = self.part(hash).insert((hash, number), watched);
        drop(before);
    }

    pub(super) fn remove(&self, hash: u64, number: u64) {
        let removed = self.part(hash).remove(&(hash, number));
        // It may be the last that holds the operation: dropped without the lock.
        drop(removed);
    }

    /// The number that was listed last under `hash`, of those that are there.
    pub(super) fn last(&self, hash: u64) -> Option<u64> {
        let part = self.part(hash);
        let last = part.range((hash, 0)..=(hash, u64::MAX)).next_back();
        last.map(|(&(_, number), _)| number)
    }

    /// What is listed under `hash` with a number from `first` to `last`, in order of number,
    /// `limit` at most.
    pub(super) fn slice(
        &self,
        hash: u64,
        first: u64,
        last: u64,
        limit: usize,
    ) -> Vec<(u64, Arc<W>)> {
        if first > last {
            return Vec::new();
        }
        let part = self.part(hash);
        let listed = part.range((hash, first)..=(hash, last));
        let listed = listed.map(|(&(_, number), watched)| (number, Arc::clone(watched)));
        listed.take(limit).collect()
    }

    /// Everything, in the order of numbers, once.
    pub(super) fn all(&self) -> BTreeMap<u64, Arc<W>> {
        let mut all = BTreeMap::new();
        for part in &self.parts {
            let part = lock(part);
            for (&(_, number), watched) in part.iter() {
                // Dropping a second one never drops the operation: the first is still there.
                all.entry(number).or_insert_with(|| Arc::clone(watched));
            }
        }
        all
    }

    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| lock(part).len()).sum()
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, Part<W>> {
        // The upper bits: the lower ones order the tree.
        let part = (u128::from(hash) * self.parts.len() as u128) >> 64;
        lock(&self.parts[usize::try_from(part).unwrap_or(0)])
    }
}
