//! The results of calls of an expiring map.

use std::time::Duration;
use std::{fmt, io};

/// Why an entry has left an [`ExpiringMap`](super::ExpiringMap). What was drained is not among
/// them: whoever has drained it has it.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Cause, ExpiringMap, Ttl};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, left) = mpsc::channel();
/// let map = ExpiringMap::builder()
///     .ttl(Ttl::after(Duration::from_secs(9)))
///     .listener(move |_key: u32, value: &str, cause| sender.send((value, cause)).unwrap())
///     .build(host.timer().clone());
/// map.insert(1, "first").unwrap();
/// map.insert(1, "second").unwrap();
/// map.insert(2, "third").unwrap();
/// map.remove(&2);
/// host.advance(Duration::from_secs(9));
/// map.insert(3, "fourth").unwrap();
/// map.clear();
/// host.run_due();
///
/// let mut left: Vec<_> = left.iter().take(4).collect();
/// left.sort_unstable();
/// let first = ("first", Cause::Replaced);
/// let others = [("fourth", Cause::Cleared), ("second", Cause::Expired), ("third", Cause::Removed)];
/// assert_eq!((left[0], &left[1..]), (first, &others[..]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Its time had come.
    Expired,
    /// An insert put another value in its place.
    Replaced,
    /// [`remove`](super::ExpiringMap::remove) took it, or
    /// [`retain`](super::ExpiringMap::retain) did not want it.
    Removed,
    /// [`clear`](super::ExpiringMap::clear) took it, or the drop of the last handle.
    Cleared,
}

/// An entry that was drained. See [`ExpiringMap::drain`](super::ExpiringMap::drain).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpiringEntry<K, V> {
    /// Its key.
    pub key: K,
    /// Its value.
    pub value: V,
    /// How long it would have lived without being used; [`Duration::MAX`] if for ever.
    pub remaining: Duration,
}

/// Why nothing was inserted. Key and value come back unchanged, and what was under the key
/// stays as it was. See [`ExpiringMap::insert`](super::ExpiringMap::insert).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{ExpiringMap, InsertError, Ttl};
///
/// let host = ManualHost::new();
/// let map = ExpiringMap::builder().max_entries(1).build(host.timer().clone());
/// map.insert(1, "Ada")?;
/// let refused = map.insert_if_absent(1, "Bob").unwrap_err();
/// assert!(matches!(refused, InsertError::Present(1, "Bob")));
/// let refused = map.insert(2, "Eve").unwrap_err();
/// assert_eq!(refused.to_string(), "the map has as many entries as it may");
/// assert_eq!(refused.into_parts(), (2, "Eve"));
///
/// map.close();
/// assert!(matches!(map.insert(1, "Ada"), Err(InsertError::Closed(1, "Ada"))));
/// # Ok::<(), InsertError<u32, &str>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum InsertError<K, V> {
    /// The key is there. Only
    /// [`insert_if_absent`](super::ExpiringMap::insert_if_absent) minds.
    #[error("the key is there")]
    Present(K, V),
    /// There are as many entries as
    /// [`max_entries`](super::ExpiringMapBuilder::max_entries) allows. There is room as soon as
    /// one expires or is removed.
    #[error("the map has as many entries as it may")]
    Full(K, V),
    /// The map is closed, or the timer below it has stopped.
    #[error("the map is closed")]
    Closed(K, V),
    /// The timer's thread could not be started, so nothing would expire. Try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// The key.
        key: K,
        /// The value.
        value: V,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl<K, V> InsertError<K, V> {
    /// The key and the value that were not inserted.
    #[must_use]
    pub fn into_parts(self) -> (K, V) {
        match self {
            Self::Present(key, value)
            | Self::Full(key, value)
            | Self::Closed(key, value)
            | Self::NoThread { key, value, .. } => (key, value),
        }
    }
}

/// Names the reason alone, so that any key and value will do.
impl<K, V> fmt::Debug for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present(..) => f.write_str("Present(..)"),
            Self::Full(..) => f.write_str("Full(..)"),
            Self::Closed(..) => f.write_str("Closed(..)"),
            Self::NoThread { source, .. } => f
                .debug_struct("NoThread")
                .field("source", source)
                .finish_non_exhaustive(),
        }
    }
}

/// What an [`ExpiringMap`](super::ExpiringMap) has done so far.
///
/// Every value ends in one way:
/// `inserted = replaced + removed + expired + cleared + drained + len`, exactly, unless calls
/// are under way.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{ExpiringMap, Ttl};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let map = ExpiringMap::new(host.timer().clone(), Ttl::after(Duration::from_secs(1)));
/// map.insert("a", 1).unwrap();
/// assert_eq!((map.get("a"), map.get("b")), (Some(1), None));
/// host.advance(Duration::from_secs(1));
///
/// let stats = map.stats();
/// assert_eq!((stats.inserted, stats.expired, stats.len), (1, 1, 0));
/// assert_eq!((stats.hits, stats.misses), (1, 1));
/// assert_eq!(stats.hit_ratio(), Some(0.5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ExpiringStats {
    /// Values that were inserted, loaded ones among them.
    pub inserted: u64,
    /// Values that an insert replaced.
    pub replaced: u64,
    /// Values that were removed, or not retained.
    pub removed: u64,
    /// Values whose time had come.
    pub expired: u64,
    /// Values that were cleared.
    pub cleared: u64,
    /// Values that were drained, or handed back by a close.
    pub drained: u64,
    /// Values that are there, as [`ExpiringMap::len`](super::ExpiringMap::len) counts them.
    pub len: u64,
    /// Values that were not inserted, because there was no room or the map was closed.
    pub refused: u64,
    /// Reads and updates that found their key. To ask whether a key is there, for how long, or
    /// to [`touch`](super::ExpiringMap::touch) it, is not a read.
    pub hits: u64,
    /// Reads and updates that did not find their key.
    pub misses: u64,
    /// Loads that were begun.
    pub loads: u64,
    /// Loads that returned an error, panicked or were dropped.
    pub load_failures: u64,
    /// Callers who waited for the load of another.
    pub waited: u64,
    /// Entries that have left the map and that the listener has not heard of yet. It grows if
    /// the listener is slower than the traffic.
    pub unheard: u64,
    /// Panics of the listener, or of the drop of an expired value.
    pub panicked: u64,
}

impl ExpiringStats {
    /// Hits among all reads, from 0 to 1; `None` if nothing was read.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0).then(|| self.hits as f64 / reads as f64)
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self {
            inserted: self.inserted + other.inserted,
            replaced: self.replaced + other.replaced,
            removed: self.removed + other.removed,
            expired: self.expired + other.expired,
            cleared: self.cleared + other.cleared,
            drained: self.drained + other.drained,
            len: self.len + other.len,
            refused: self.refused + other.refused,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            loads: self.loads + other.loads,
            load_failures: self.load_failures + other.load_failures,
            waited: self.waited + other.waited,
            unheard: self.unheard + other.unheard,
            panicked: self.panicked + other.panicked,
        }
    }
}
