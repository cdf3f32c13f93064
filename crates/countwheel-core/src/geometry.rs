//! The slot of a deadline: the arithmetic of both wheels, apart from their storage.

use core::fmt;

use crate::Tick;

/// One digit of a tick, in bits: a byte.
const DIGIT_BITS: u32 = 8;

/// Slots of one level: the values of one digit.
pub(crate) const SLOTS: usize = 1 << DIGIT_BITS;

/// Levels of the hierarchy: the digits of a `u64`.
pub(crate) const LEVELS: usize = (u64::BITS / DIGIT_BITS) as usize;

/// Where an entry of the hierarchy is filed, seen from now: one slot of one level.
///
/// Slots are numbered through all levels, from the lowest slot of the lowest level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WheelPlace(usize);

impl WheelPlace {
    /// The place of `due`: its level is the highest digit in which it differs
    /// from `now`, and its slot is the value of that digit.
    ///
    /// A `due` that equals `now` is on the lowest level.
    #[inline]
    pub(crate) fn of(now: Tick, due: Tick) -> Self {
        // Setting the lowest bit changes no level, and makes equality a difference in digit 0.
        let highest_difference = ((now.get() ^ due.get()) | 1).ilog2();
        let level = (highest_difference / DIGIT_BITS) as usize;
        Self(level * SLOTS + digit(due, level))
    }

    #[inline]
    pub(crate) fn of_slot(number: usize) -> Self {
        Self(number)
    }

    /// The slot of this place's level in which the hand stands.
    pub(crate) fn entered(self, now: Tick) -> Self {
        let level = self.level();
        Self(level * SLOTS + digit(now, level))
    }

    /// The number of the slot.
    #[inline]
    pub(crate) fn slot(self) -> usize {
        self.0
    }

    #[inline]
    pub(crate) fn level(self) -> usize {
        self.0 / SLOTS
    }

    /// The first tick of this place's slot: the digits of `now` above, this
    /// place's own digit, and zeros below.
    #[inline]
    pub(crate) fn start(self, now: Tick) -> Tick {
        let shift = shift(self.level());
        // On the top level the shift pushes everything out, and the wrap makes a mask of ones.
        let this_and_below = ((SLOTS as u64) << shift).wrapping_sub(1);
        let own = ((self.0 % SLOTS) as u64) << shift;
        Tick::new((now.get() & !this_and_below) | own)
    }

    /// The first tick of this place's slot, in which `due` is. Cheaper than `start`.
    #[inline]
    pub(crate) fn start_of(self, due: Tick) -> Tick {
        let shift = shift(self.level());
        Tick::new(due.get() >> shift << shift)
    }

    /// The last tick of this place's slot.
    #[inline]
    pub(crate) fn end(self, now: Tick) -> Tick {
        Tick::new(self.start(now).get() | ((1 << shift(self.level())) - 1))
    }

    /// Whether this place's slot has not begun yet, or is the tick `now` itself.
    pub(crate) fn is_ahead_of(self, now: Tick) -> bool {
        let (level, slot) = (self.level(), self.0 % SLOTS);
        let hand = digit(now, level);
        slot > hand || (level == 0 && slot == hand)
    }
}

#[inline]
fn shift(level: usize) -> usize {
    level * DIGIT_BITS as usize
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a digit is below 256")]
fn digit(tick: Tick, level: usize) -> usize {
    (tick.get() >> shift(level)) as usize % SLOTS
}

/// How many ticks the hand of a hashed ring takes to come round: a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Revolution {
    mask: usize,
}

impl Revolution {
    const TICKS_MAX: usize = 1 << 30;

    /// As Netty has it.
    pub(crate) const USUAL: Self = Self { mask: 512 - 1 };

    /// The smallest power of two that is not below `ticks_per_wheel`.
    pub(crate) fn rounded_up(ticks_per_wheel: usize) -> Result<Self, GeometryError> {
        match ticks_per_wheel {
            0 => Err(GeometryError::NoSlots),
            1..=Self::TICKS_MAX => Ok(Self {
                mask: ticks_per_wheel.next_power_of_two() - 1,
            }),
            asked => Err(GeometryError::TooManySlots { asked }),
        }
    }

    /// Ticks in one revolution, which is also the number of slots.
    pub(crate) fn ticks(self) -> usize {
        self.mask + 1
    }

    /// The slot in which the hand stands at `tick`.
    #[expect(clippy::cast_possible_truncation, reason = "the mask fits a usize")]
    pub(crate) fn slot_of(self, tick: Tick) -> usize {
        tick.get() as usize & self.mask
    }
}

/// Why a ring cannot be built with the number of slots that was asked for.
///
/// ```
/// use countwheel_core::{GeometryError, HashedWheel};
///
/// let error = HashedWheel::<()>::with_ticks_per_wheel(0).unwrap_err();
/// assert_eq!(error, GeometryError::NoSlots);
/// assert_eq!(error.to_string(), "a ring needs at least one slot");
///
/// let error = HashedWheel::<()>::with_ticks_per_wheel((1 << 30) + 1).unwrap_err();
/// assert_eq!(error, GeometryError::TooManySlots { asked: 1_073_741_825 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GeometryError {
    /// No slots were asked for. Ask for one at least; 512 is the usual number.
    NoSlots,
    /// More than 2^30 slots were asked for. Ask for fewer: delays longer than a
    /// revolution are welcome.
    TooManySlots {
        /// The number of slots asked for.
        asked: usize,
    },
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlots => write!(f, "a ring needs at least one slot"),
            Self::TooManySlots { asked } => write!(
                f,
                "a ring has at most {} slots, not {asked}",
                Revolution::TICKS_MAX
            ),
        }
    }
}

impl core::error::Error for GeometryError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(now: u64, due: u64) -> (usize, usize) {
        let place = WheelPlace::of(Tick::new(now), Tick::new(due));
        (place.level(), place.slot() % SLOTS)
    }

    #[test]
    fn the_level_is_the_highest_digit_that_differs() {
        assert_eq!(place(0, 0), (0, 0));
        assert_eq!(place(0, 255), (0, 255));
        assert_eq!(place(0, 256), (1, 1));
        assert_eq!(place(255, 256), (1, 1), "a border, not a distance, decides");
        assert_eq!(place(256, 511), (0, 255));
        assert_eq!(place(0, 256 * 256), (2, 1));
        assert_eq!(place(0, u64::MAX), (7, 255));
        assert_eq!(place(u64::MAX - 1, u64::MAX), (0, 255));
    }

    #[test]
    fn a_slot_starts_at_its_digit_followed_by_zeros() {
        for now in [0, 255, 256, 65_535, 1 << 32, 1 << 60, u64::MAX - 5_000] {
            for distance in [0, 1, 255, 256, 257, 65_535, 65_536, 1 << 33] {
                let (now, due) = (Tick::new(now), Tick::new(now.saturating_add(distance)));
                let place = WheelPlace::of(now, due);
                let (start, end) = (place.start(now), place.end(now));
                assert_eq!(place.start_of(due), start);
                assert!(place.is_ahead_of(now), "{now:?} {due:?}");
                assert!(now <= start && start <= due && due <= end);
                assert_eq!(end.get() - start.get(), (1 << shift(place.level())) - 1);
            }
        }
        let top = WheelPlace::of(Tick::ZERO, Tick::MAX);
        assert_eq!(top.start(Tick::ZERO), Tick::new(255 << 56));
        assert_eq!(top.end(Tick::ZERO), Tick::MAX);
    }

    #[test]
    fn a_revolution_is_rounded_up_to_a_power_of_two() {
        let ticks = |asked| Revolution::rounded_up(asked).map(Revolution::ticks);
        assert_eq!(ticks(1), Ok(1));
        assert_eq!(ticks(10), Ok(16));
        assert_eq!(ticks(512), Ok(512));
        assert_eq!(ticks(1 << 30), Ok(1 << 30));
        assert_eq!(ticks(0), Err(GeometryError::NoSlots));
        assert!(ticks((1 << 30) + 1).is_err());
        assert!(ticks(usize::MAX).is_err());
    }
}
