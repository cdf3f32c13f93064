//! Between instants and ticks: the only place in Countwheel that rounds time.

use std::time::Duration;

use countwheel_core::Tick;

use crate::Instant;

/// The length of a tick, and with it the only rounding there is: deadlines round up to
/// the next tick, now rounds down to the tick that has begun.
///
/// Together the two mean that nothing is ever early, and that the rounding alone makes
/// nothing late by a whole tick or more.
///
/// ```
/// use countwheel::{Instant, Resolution, Tick};
/// use std::time::Duration;
///
/// let resolution = Resolution::new(Duration::from_millis(1))?;
/// let almost = Instant::from_nanos(1_000_001);
/// assert_eq!(resolution.deadline(almost), Tick::new(2));
/// assert_eq!(resolution.now(almost), Tick::new(1));
///
/// let error = Resolution::new(Duration::ZERO).unwrap_err();
/// assert_eq!(error.to_string(), "a tick lasts at least 1 ns and at most 584 years, not 0ns");
/// # Ok::<(), countwheel::ResolutionError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolution {
    tick_nanos: u64,
}

/// The tick duration is zero or longer than the time line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a tick lasts at least 1 ns and at most 584 years, not {tick_duration:?}")]
pub struct ResolutionError {
    tick_duration: Duration,
}

impl Resolution {
    /// One millisecond, the default.
    pub const MILLISECOND: Self = Self {
        tick_nanos: 1_000_000,
    };

    /// Ticks of `tick_duration`.
    ///
    /// # Errors
    /// If it is zero or longer than 2^64 ns (584 years).
    pub fn new(tick_duration: Duration) -> Result<Self, ResolutionError> {
        match u64::try_from(tick_duration.as_nanos()) {
            Ok(tick_nanos) if tick_nanos > 0 => Ok(Self { tick_nanos }),
            _ => Err(ResolutionError { tick_duration }),
        }
    }

    /// How long a tick is.
    #[must_use]
    pub const fn tick_duration(self) -> Duration {
        Duration::from_nanos(self.tick_nanos)
    }

    /// The first tick that begins at or after `deadline`.
    #[must_use]
    pub const fn deadline(self, deadline: Instant) -> Tick {
        Tick::new(deadline.as_nanos().div_ceil(self.tick_nanos))
    }

    /// The tick that has begun at `now`. At [`Instant::MAX`], where time ends, that is the
    /// last tick a deadline can have, however short it was cut.
    #[must_use]
    pub const fn now(self, now: Instant) -> Tick {
        if now.as_nanos() == Instant::MAX.as_nanos() {
            return self.deadline(now);
        }
        Tick::new(now.as_nanos() / self.tick_nanos)
    }

    /// The instant at which `tick` begins.
    #[must_use]
    pub const fn instant(self, tick: Tick) -> Instant {
        Instant::from_nanos(tick.get().saturating_mul(self.tick_nanos))
    }
}

impl Default for Resolution {
    fn default() -> Self {
        Self::MILLISECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_before_what_was_asked_and_never_a_tick_after() {
        for tick_nanos in [1, 3, 1_000, 1_000_000, 999_999_999] {
            let resolution = Resolution::new(Duration::from_nanos(tick_nanos)).unwrap();
            for nanos in [
                0,
                1,
                2,
                tick_nanos - 1,
                tick_nanos,
                tick_nanos + 1,
                12_345_678_901,
            ] {
                let asked = Instant::from_nanos(nanos);
                let begins = resolution.instant(resolution.deadline(asked));
                assert!(begins >= asked);
                assert!(begins.saturating_since(asked) < Duration::from_nanos(tick_nanos));
                assert!(resolution.instant(resolution.now(asked)) <= asked);
            }
        }
    }

    #[test]
    fn the_end_of_time_does_not_wrap_and_is_reached() {
        for tick_nanos in [1, 3, 7, 1_000_000, u64::MAX] {
            let resolution = Resolution::new(Duration::from_nanos(tick_nanos)).unwrap();
            let last = resolution.deadline(Instant::MAX);
            assert_eq!(resolution.instant(last), Instant::MAX);
            assert_eq!(resolution.now(Instant::MAX), last);
        }
    }
}
