//! The ring of tables in which done records are kept until they are forgotten.
//!
//! Time is divided into slices, and each table of the ring has the records that are kept until one of
//! them. What is kept for as long as may be reaches seven slices ahead, and into an eighth. So of nine
//! tables one has only what is past: it is emptied whole before its next slice comes.

use std::time::Duration;

use countwheel_time::Timestamp;

/// How many tables there are.
pub(crate) const SLOTS: u16 = 9;
/// So many slices the longest keep has.
const SLICES: u64 = 7;
/// No slice is shorter, in microseconds.
const SLICE_MIN: u64 = 1_000;

/// How long each slice is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ring {
    micros: u64,
}

impl Ring {
    /// The ring in which records may be kept for so long.
    pub(crate) fn of(longest: Duration) -> Self {
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        Self::of_slices(longest.div_ceil(SLICES))
    }

    /// The ring whose slices have so many microseconds.
    pub(crate) fn of_slices(micros: u64) -> Self {
        let most = u64::MAX / u64::from(SLOTS);
        Self {
            micros: micros.clamp(SLICE_MIN, most),
        }
    }

    /// How long a slice is, in microseconds.
    pub(crate) fn micros(self) -> u64 {
        self.micros
    }

    /// For how long records may be kept in it.
    pub(crate) fn longest(self) -> Duration {
        Duration::from_micros(self.micros * SLICES)
    }

    /// In which slice a moment is.
    pub(crate) fn slice(self, at: Timestamp) -> u64 {
        at.as_micros() / self.micros
    }

    /// The table of a slice.
    pub(crate) fn slot(slice: u64) -> i16 {
        i16::try_from(slice % u64::from(SLOTS)).unwrap_or(0)
    }

    /// How far the clocks of two machines may be apart before one forgets what the other still keeps.
    pub(crate) fn guard(self) -> Duration {
        Duration::from_micros(self.micros / 2)
    }

    /// The slice whose table can be emptied: the one before this one, in the second half of this one. The
    /// table has another slice from the next one on.
    pub(crate) fn over(self, now: Timestamp) -> Option<u64> {
        let slice = self.slice(now);
        let is_late = now.as_micros() % self.micros >= self.micros / 2;
        slice.checked_sub(1).filter(|_| is_late)
    }

    /// So often something is looked for that has to be forgotten.
    pub(crate) fn pace(self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(60);
        Duration::from_micros(self.micros / 16).min(LONGEST)
    }
}

/// Some of the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slots([bool; SLOTS as usize]);

impl Slots {
    /// All of them.
    pub(crate) const ALL: Self = Self([true; SLOTS as usize]);

    /// Those of some slices.
    pub(crate) fn of(slices: impl IntoIterator<Item = u64>) -> Self {
        let mut slots = Self([false; SLOTS as usize]);
        for slice in slices {
            slots.0[usize::from(Ring::slot(slice).unsigned_abs())] = true;
        }
        slots
    }

    pub(crate) fn has(self, slot: i16) -> bool {
        self.0[usize::from(slot.unsigned_abs())]
    }

    /// Each, or in its place a number that no table has.
    pub(crate) fn numbers(self) -> [i16; SLOTS as usize] {
        let mut numbers = [0; SLOTS as usize];
        for (number, slot) in numbers.iter_mut().zip(0..) {
            *number = if self.has(slot) { slot } else { -1 };
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_free_before_its_next_slice() {
        let hour = Duration::from_secs(3_600);
        for longest in [Duration::ZERO, Duration::from_millis(7), hour, 24 * hour] {
            let ring = Ring::of(longest);
            assert!(ring.longest() >= longest);
            let steps = 4 * u64::from(SLOTS);
            for step in 0..=steps {
                let now = Timestamp::from_micros(ring.micros() * 100 + step * ring.micros() / 4);
                let Some(over) = ring.over(now) else {
                    assert!(step % 4 < 2);
                    continue;
                };
                // All that is kept by a clock that is that much behind has another table.
                let behind = now.saturating_sub(ring.guard());
                let first = ring.slice(behind);
                let last = ring.slice(now + ring.longest());
                for slice in first..=last {
                    assert_ne!(Ring::slot(over), Ring::slot(slice), "{step}");
                }
            }
        }
    }

    #[test]
    fn the_longest_times_have_a_table() {
        for ring in [Ring::of(Duration::ZERO), Ring::of(Duration::MAX)] {
            assert!(Ring::slot(ring.slice(Timestamp::MAX)) < i16::try_from(SLOTS).expect("nine"));
            assert_eq!(ring.over(Timestamp::EPOCH), None);
            assert!(Ring::of_slices(ring.micros()) == ring);
        }
    }
}
