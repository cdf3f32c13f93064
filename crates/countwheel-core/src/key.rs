//! The key of an entry, and the form of an entry that has left.

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

impl TimerKey {
    /// The key as a number, for what has to keep or to send one.
    ///
    /// The lower 32 bits say where the entry is stored: little more than the most entries that
    /// the wheel has had at a time. The upper 32 bits say how often that place was used; they
    /// are never zero.
    ///
    /// ```
    /// use countwheel_core::{HierarchicalWheel, Tick, TimerKey};
    ///
    /// let mut wheel = HierarchicalWheel::new();
    /// let key = wheel.insert(Tick::new(5), 'a');
    /// let number = key.to_bits();
    /// assert_eq!(TimerKey::from_bits(number), Some(key));
    /// assert_eq!(TimerKey::from_bits(0), None);
    /// // A number that was made up finds nothing, or what another key would find.
    /// let other = TimerKey::from_bits(number ^ 7).unwrap();
    /// assert_eq!(wheel.cancel(other), None);
    /// ```
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        // No `From` in a constant function; both widen.
        (self.generation.get() as u64) << 32 | self.index as u64
    }

    /// The key that has this number: `None` if its upper 32 bits are zero, which no key has.
    #[inline]
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two halves, one after the other"
    )]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU32::new((bits >> 32) as u32) {
            Some(generation) => Some(Self {
                index: bits as u32,
                generation,
            }),
            None => None,
        }
    }
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

    #[test]
    fn a_number_gives_back_both_halves_of_its_key() {
        for index in [0, 1, 0x8000_0001, u32::MAX] {
            for generation in [1, 2, 0x8000_0000, u32::MAX] {
                let generation = NonZeroU32::new(generation).unwrap();
                let key = TimerKey { index, generation };
                assert_eq!(TimerKey::from_bits(key.to_bits()), Some(key));
            }
        }
        assert_eq!(TimerKey::from_bits(u64::from(u32::MAX)), None);
    }
}
