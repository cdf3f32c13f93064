//! What was pending under a key, in the time of the wall clock.

use super::KeyedEntry;
use crate::{ClockReading, Timestamp};

/// What a [`KeyedTimer`](crate::KeyedTimer) gave back, in a form that can be written down and taken
/// up in another process: its deadline is in UTC. With the feature `serde` it is data.
///
/// ```
/// use countwheel::{ClockReading, KeyedTimer, ManualHost, SavedEntry};
/// use std::time::Duration;
///
/// let minute = Duration::from_secs(60);
/// let host = ManualHost::new();
/// let keyed = KeyedTimer::new(host.timer().clone(), |_key: String, _value: u32| {});
/// keyed.set("session".to_owned(), 1, 10 * minute).unwrap();
/// let now = ClockReading::of(host.timer().clock());
/// let saved: Vec<SavedEntry<String, u32>> =
///     keyed.stop().into_iter().map(|entry| entry.saved(now)).collect();
///
/// // In another process, which begins when one minute has passed:
/// let host = ManualHost::new();
/// host.clock().set_timestamp(now.timestamp + minute);
/// let keyed = KeyedTimer::new(host.timer().clone(), |_key: String, _value: u32| {});
/// let now = ClockReading::of(host.timer().clock());
/// for entry in saved {
///     let entry = entry.restored(now);
///     keyed.set_at(entry.key, entry.value, entry.deadline).unwrap();
/// }
/// assert_eq!(keyed.deadline("session"), Some(host.timer().now() + 9 * minute));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use = "it is what is left of the entry"]
pub struct SavedEntry<K, V> {
    /// The key.
    pub key: K,
    /// The value it was set to last.
    pub value: V,
    /// The deadline that was asked for last; [`Timestamp::MAX`] if it never comes.
    pub deadline: Timestamp,
}

impl<K, V> KeyedEntry<K, V> {
    /// The same with its deadline in UTC, as the timer's clock shows it in `reading`.
    pub fn saved(self, reading: ClockReading) -> SavedEntry<K, V> {
        SavedEntry {
            key: self.key,
            value: self.value,
            deadline: reading.timestamp_of(self.deadline),
        }
    }
}

impl<K, V> SavedEntry<K, V> {
    /// The same with its deadline on the clock of another timer. A deadline that has passed lies in
    /// the past: what is set with it fires at once.
    pub fn restored(self, reading: ClockReading) -> KeyedEntry<K, V> {
        KeyedEntry {
            key: self.key,
            value: self.value,
            deadline: reading.instant_of(self.deadline),
        }
    }
}
