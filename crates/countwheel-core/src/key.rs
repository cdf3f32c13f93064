//! What names an entry, and what an entry is when it has left.

use core::num::NonZeroU32;

use crate::Tick;

/// Names one entry of one wheel, from its insertion until it leaves.
///
/// Eight bytes, and so is an `Option` of it. A key is *stale* once its entry has
/// expired or was cancelled; a stale key finds nothing, even after the storage has
/// been given to another entry. (A node counts its uses in 32 bits and is retired
/// when they run out, so that even then no key can be mistaken for an older one.)
/// A reschedule leaves the key as it is.
///
/// A key means something only to the wheel it came from.
///
/// ```
/// use countwheel_core::{HierarchicalWheel, Tick};
///
/// let mut wheel = HierarchicalWheel::new();
/// let key = wheel.insert(Tick::new(5), 'a');
/// assert_eq!(wheel.cancel(key), Some('a'));
///
/// wheel.insert(Tick::new(5), 'b'); // moves into the freed node
/// assert_eq!(wheel.cancel(key), None);
/// assert_eq!(wheel.len(), 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey {
    pub(crate) index: u32,
    pub(crate) generation: NonZeroU32,
}

/// An entry that has left its wheel: what was asked for, and under which key.
///
/// ```
/// use countwheel_core::{Expired, HierarchicalWheel, Tick};
///
/// let mut wheel = HierarchicalWheel::new();
/// let key = wheel.insert(Tick::new(5), "tea");
/// let expired = wheel.expire(Tick::new(9));
/// assert_eq!(expired, Some(Expired { key, deadline: Tick::new(5), value: "tea" }));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired<T> {
    /// The key the entry had. It is stale now.
    pub key: TimerKey,
    /// The deadline as it was asked for, even if it had passed by then.
    pub deadline: Tick,
    /// The value that was inserted.
    pub value: T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_an_optional_key_take_eight_bytes() {
        assert_eq!(size_of::<TimerKey>(), 8);
        assert_eq!(size_of::<Option<TimerKey>>(), 8);
    }
}
