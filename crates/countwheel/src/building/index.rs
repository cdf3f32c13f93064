//! Entries found by the hash of their key. The caller computes the hash once and without a lock.
//!
//! A deadline finds its entry by the hash alone, without the key.

use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

/// Entries by the hash of their keys, which the caller computes once and without a lock.
///
/// Each call on one key is O(1), and those that remove give memory back after a peak.
///
/// ```
/// use countwheel::building::Index;
///
/// let mut index = Index::default();
/// index.insert(7, ("key", 1));
/// index.insert(7, ("another", 2));
/// assert_eq!(index.find(7, |entry| entry.0 == "key"), Some(&("key", 1)));
/// index.find_mut(7, |entry| entry.0 == "key").unwrap().1 = 3;
/// assert_eq!(index.remove(7, |entry| entry.0 == "key"), Some(("key", 3)));
/// let mut taken = Vec::new();
/// index.extract(|entry| entry.1 == 2, |entry| taken.push(entry.0));
/// assert_eq!((taken, index.len(), index.iter().count()), (vec!["another"], 0, 0));
/// assert!(index.is_empty() && index.into_entries().next().is_none());
/// ```
pub struct Index<E> {
    /// Whoever came first with a hash ...
    first: HashMap<u64, E, BuildHasherDefault<AsItIs>>,
    /// ... and everyone else with the same: nobody, unless keys are hashed badly.
    others: Vec<(u64, E)>,
}

impl<E> fmt::Debug for Index<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<E> Default for Index<E> {
    fn default() -> Self {
        Self {
            first: HashMap::default(),
            others: Vec::new(),
        }
    }
}

impl<E> Index<E> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.others.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry with this hash that `is` recognises.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(&E) -> bool) -> Option<&E> {
        let first = self.first.get(&hash);
        first.filter(|entry| is(entry)).or_else(|| {
            let mut others = self.others.iter();
            others
                .find(|(other, entry)| *other == hash && is(entry))
                .map(|(_, entry)| entry)
        })
    }

    /// The entry with this hash that `is` recognises.
    #[inline]
    pub fn find_mut(&mut self, hash: u64, is: impl Fn(&E) -> bool) -> Option<&mut E> {
        let first = self.first.get_mut(&hash);
        first.filter(|entry| is(entry)).or_else(|| {
            let mut others = self.others.iter_mut();
            others
                .find(|(other, entry)| *other == hash && is(entry))
                .map(|(_, entry)| entry)
        })
    }

    /// Adds an entry whose key is not there.
    pub fn insert(&mut self, hash: u64, entry: E) {
        match self.first.entry(hash) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(entry);
            }
            hash_map::Entry::Occupied(_) => self.others.push((hash, entry)),
        }
    }

    /// Takes out the entry with this hash that `is` recognises.
    pub fn remove(&mut self, hash: u64, is: impl Fn(&E) -> bool) -> Option<E> {
        if self.first.get(&hash).is_some_and(&is) {
            let removed = self.first.remove(&hash);
            give_memory_back(&mut self.first);
            return removed;
        }
        let mut others = self.others.iter();
        let found = others.position(|(other, entry)| *other == hash && is(entry))?;
        let (_, removed) = self.others.swap_remove(found);
        Some(removed)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &E> {
        let others = self.others.iter().map(|(_, entry)| entry);
        self.first.values().chain(others)
    }

    /// Takes out every entry that `is` recognises, and gives each to `taken` at once.
    pub fn extract(&mut self, mut is: impl FnMut(&E) -> bool, mut taken: impl FnMut(E)) {
        for (_, entry) in self.first.extract_if(|_, entry| is(entry)) {
            taken(entry);
        }
        for (_, entry) in self.others.extract_if(.., |(_, entry)| is(entry)) {
            taken(entry);
        }
        give_memory_back(&mut self.first);
    }

    /// All entries, in no order.
    pub fn into_entries(self) -> impl Iterator<Item = E> {
        let others = self.others.into_iter().map(|(_, entry)| entry);
        self.first.into_values().chain(others)
    }
}

/// Gives memory of a map back after a peak: when an eighth is used, all but a quarter goes. So what it costs to move the
/// rest is spread over the many removals before, and few sets later need it again.
///
/// ```
/// use countwheel::building::give_memory_back;
/// use std::collections::HashMap;
///
/// let mut map: HashMap<u32, u32> = (0..10_000).map(|key| (key, key)).collect();
/// let peak = map.capacity();
/// map.retain(|&key, _| key < 100);
/// give_memory_back(&mut map);
/// assert!(map.capacity() < peak / 8);
/// ```
pub fn give_memory_back<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    const SMALL: usize = 64;
    let (used, room) = (map.len(), map.capacity());
    if room > SMALL && used < room / 8 {
        map.shrink_to(2 * used);
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

    #[test]
    fn keys_of_one_hash_are_kept_apart() {
        let mut index = Index::default();
        for key in 0..4 {
            index.insert(7, (key, 10 * key));
        }
        index.insert(8, (4, 40));
        assert_eq!((index.len(), index.iter().count()), (5, 5));
        for key in 0..4 {
            assert_eq!(
                index.find(7, |entry| entry.0 == key),
                Some(&(key, 10 * key))
            );
            assert_eq!(
                index.find_mut(7, |entry| entry.0 == key).unwrap().1,
                10 * key
            );
            assert!(index.find(8, |entry| entry.0 == key).is_none());
        }
        // The first goes, the others stay; then one in their middle; then one comes again.
        assert_eq!(index.remove(7, |entry| entry.0 == 0), Some((0, 0)));
        assert!(index.remove(7, |entry| entry.0 == 0).is_none());
        assert_eq!(index.remove(7, |entry| entry.1 == 20), Some((2, 20)));
        index.insert(7, (0, 0));
        let mut odd = Vec::new();
        index.extract(|entry| entry.0 % 2 == 1, |entry| odd.push(entry.0));
        odd.sort_unstable();
        assert_eq!(odd, [1, 3]);
        let mut keys: Vec<_> = index.into_entries().map(|entry| entry.0).collect();
        keys.sort_unstable();
        assert_eq!(keys, [0, 4]);
    }

    /// KEY-11: go-zero needs two maps in turn, since a map of Go never shrinks.
    #[test]
    fn churn_gives_memory_back() {
        let mut index = Index::default();
        for key in 0..10_000 {
            index.insert(key, key);
        }
        let peak = index.first.capacity();
        for key in 100..10_000 {
            index.remove(key, |_| true).unwrap();
        }
        assert!(index.first.capacity() < peak / 8);
        assert!((0..100).all(|key| index.find(key, |_| true).is_some()));

        let mut index = Index::default();
        for key in 0..10_000 {
            index.insert(key, key);
        }
        index.extract(|&key| key >= 100, drop);
        assert_eq!(index.len(), 100);
        assert!(index.first.capacity() < peak / 8);
    }
}
