//! The entry of a shard under a key.
//!
//! A timer's task knows the hash and the number of its entry, not the key. So a key is stored once,
//! need not be `Clone`, and is never hashed while a lock is held.

use super::KeyedEntry;
use crate::{Instant, Timeout};

/// What is kept under a key.
pub(super) struct KeyEntry<K, V> {
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

impl<K, V> KeyEntry<K, V> {
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
