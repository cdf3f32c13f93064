//! Where a shard keeps its entries: found by the hash of the key, which is computed once.
//!
//! A timer's task knows the hash and the number of its entry, not the key: so a key is stored
//! once, need not be `Clone`, and no key is ever hashed while a lock is held.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map;
use std::hash::{BuildHasherDefault, Hasher};

use super::KeyedEntry;
use crate::{Instant, Timeout};

/// What is kept under a key.
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) timeout: Timeout,
    /// The number of the task that is to fire this; [`NO_TASK`] if that task is lost.
    pub(super) task: u64,
    /// Grows with every set and move that one thread makes: the order among equal deadlines.
    pub(super) order: u64,
}

/// No task has this number.
pub(super) const NO_TASK: u64 = 0;

impl<K, V> Entry<K, V> {
    pub(super) fn deadline(&self) -> Instant {
        self.timeout.deadline()
    }

    /// The entry is out of its index: frees its task, too.
    pub(super) fn release(self) -> KeyedEntry<K, V> {
        let deadline = self.deadline();
        super::shard::cancel(&self.timeout);
        KeyedEntry {
            key: self.key,
            value: self.value,
            deadline,
        }
    }
}

/// Entries by the hash of their keys.
pub(super) struct Index<K, V> {
    /// Whoever came first with a hash ...
    first: HashMap<u64, Entry<K, V>, BuildHasherDefault<AsItIs>>,
    /// ... and everyone else with the same: nobody, unless keys are hashed badly.
    others: Vec<(u64, Entry<K, V>)>,
}

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self {
            first: HashMap::default(),
            others: Vec::new(),
        }
    }
}

impl<K, V> Index<K, V> {
    pub(super) fn len(&self) -> usize {
        self.first.len() + self.others.len()
    }

    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let first = self.first.get(&hash);
        first.filter(|entry| entry.key.borrow() == key).or_else(|| {
            let mut others = self.others.iter();
            others
                .find(|(other, entry)| *other == hash && entry.key.borrow() == key)
                .map(|(_, entry)| entry)
        })
    }

    pub(super) fn find_mut<Q>(&mut self, hash: u64, key: &Q) -> Option<&mut Entry<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.entry_mut(hash, |entry| entry.key.borrow() == key)
    }

    /// The entry with this hash that `is` recognises.
    pub(super) fn entry_mut(
        &mut self,
        hash: u64,
        is: impl Fn(&Entry<K, V>) -> bool,
    ) -> Option<&mut Entry<K, V>> {
        let first = self.first.get_mut(&hash);
        first.filter(|entry| is(entry)).or_else(|| {
            let mut others = self.others.iter_mut();
            others
                .find(|(other, entry)| *other == hash && is(entry))
                .map(|(_, entry)| entry)
        })
    }

    /// Adds an entry whose key is not there.
    pub(super) fn insert(&mut self, hash: u64, entry: Entry<K, V>) {
        match self.first.entry(hash) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(entry);
            }
            hash_map::Entry::Occupied(_) => self.others.push((hash, entry)),
        }
    }

    /// Takes out the entry with this hash that `is` recognises.
    pub(super) fn remove(
        &mut self,
        hash: u64,
        is: impl Fn(&Entry<K, V>) -> bool,
    ) -> Option<Entry<K, V>> {
        if self.first.get(&hash).is_some_and(&is) {
            let removed = self.first.remove(&hash);
            self.give_memory_back();
            return removed;
        }
        let mut others = self.others.iter();
        let found = others.position(|(other, entry)| *other == hash && is(entry))?;
        let (_, removed) = self.others.swap_remove(found);
        Some(removed)
    }

    /// After a peak: when an eighth is used, all but a quarter goes. So what it costs to move
    /// the rest is spread over the many removals before, and few sets later need it again.
    fn give_memory_back(&mut self) {
        const SMALL: usize = 64;
        let (used, room) = (self.first.len(), self.first.capacity());
        if room > SMALL && used < room / 8 {
            self.first.shrink_to(2 * used);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<K, V>> {
        let others = self.others.iter().map(|(_, entry)| entry);
        self.first.values().chain(others)
    }

    pub(super) fn into_entries(self) -> impl Iterator<Item = Entry<K, V>> {
        let others = self.others.into_iter().map(|(_, entry)| entry);
        self.first.into_values().chain(others)
    }
}

/// What is stored by its hash need not be hashed again.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only hashes are hashed");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ManualHost;
    use std::time::Duration;

    fn entry(host: &ManualHost, key: u64) -> Entry<u64, u64> {
        let timeout = host.timer().schedule(Duration::MAX, || {}).unwrap();
        Entry {
            key,
            value: 10 * key,
            timeout,
            task: key + 1,
            order: key,
        }
    }

    #[test]
    fn keys_of_one_hash_are_kept_apart() {
        let host = ManualHost::new();
        let mut index = Index::default();
        for key in 0..4 {
            index.insert(7, entry(&host, key));
        }
        index.insert(8, entry(&host, 4));
        assert_eq!((index.len(), index.iter().count()), (5, 5));
        for key in 0..4 {
            assert_eq!(index.find(7, &key).unwrap().value, 10 * key);
            assert_eq!(index.find_mut(7, &key).unwrap().task, key + 1);
            assert!(index.find(8, &key).is_none());
        }
        // The first goes, the others stay; then one in their middle; then one comes again.
        assert_eq!(index.remove(7, |entry| entry.key == 0).unwrap().value, 0);
        assert!(index.remove(7, |entry| entry.key == 0).is_none());
        assert_eq!(index.remove(7, |entry| entry.task == 3).unwrap().key, 2);
        index.insert(7, entry(&host, 0));
        let mut keys: Vec<_> = index.into_entries().map(|entry| entry.key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 3, 4]);
    }

    /// KEY-11: go-zero needs two maps in turn, since a map of Go never shrinks.
    #[test]
    fn churn_gives_memory_back() {
        let host = ManualHost::new();
        let mut index = Index::default();
        for key in 0..10_000 {
            index.insert(key, entry(&host, key));
        }
        let peak = index.first.capacity();
        for key in 100..10_000 {
            index.remove(key, |_| true).unwrap();
        }
        assert!(index.first.capacity() < peak / 8);
        assert!((0..100).all(|key| index.find(key, &key).is_some()));
    }
}
