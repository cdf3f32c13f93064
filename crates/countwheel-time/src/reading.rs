//! Both readings of a clock, and what leads from one time line to the other.

use std::time::Duration;

use crate::{Clock, Instant, Timestamp};

/// The two readings of a clock at one moment: translates points of its monotonic time line into UTC
/// and back. For what is written down in one process and taken up in another, whose monotonic clock
/// begins anew.
///
/// A span between two points keeps its length to the microsecond, rounded up: nothing becomes early.
/// The wall clock counts: if it was set in between, what was restored comes by the new time.
/// [`Instant::MAX`] and [`Timestamp::MAX`], which never come, stand for each other.
///
/// ```
/// use countwheel_time::{ClockReading, ManualClock, Timestamp};
/// use std::time::Duration;
///
/// let minute = Duration::from_secs(60);
/// let noon = Timestamp::EPOCH + 720 * minute;
/// let old = ManualClock::at(noon);
/// let deadline = ClockReading::of(&old).instant + 10 * minute;
/// let written = ClockReading::of(&old).timestamp_of(deadline);
/// assert_eq!(written, noon + 10 * minute);
///
/// // Three minutes later, in another process:
/// let new = ClockReading::of(&ManualClock::at(noon + 3 * minute));
/// assert_eq!(new.instant_of(written), new.instant + 7 * minute);
/// assert_eq!(new.age_of(noon), 3 * minute);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClockReading {
    /// What [`Clock::now`] showed.
    pub instant: Instant,
    /// What [`Clock::timestamp`] showed.
    pub timestamp: Timestamp,
}

impl ClockReading {
    /// What `clock` shows now.
    #[must_use]
    pub fn of<C: Clock + ?Sized>(clock: &C) -> Self {
        Self {
            instant: clock.now(),
            timestamp: clock.timestamp(),
        }
    }

    /// The time of `instant` in UTC; no earlier than 1970.
    #[must_use]
    pub fn timestamp_of(&self, instant: Instant) -> Timestamp {
        if instant == Instant::MAX {
            return Timestamp::MAX;
        }
        if instant >= self.instant {
            return self.timestamp + (instant - self.instant);
        }
        self.timestamp.saturating_sub(self.instant - instant)
    }

    /// When the clock's monotonic reading gets to `timestamp`. What lies before the clock was
    /// made is [`Instant::ZERO`]: [`age_of`](Self::age_of) tells how far back it is.
    #[must_use]
    pub fn instant_of(&self, timestamp: Timestamp) -> Instant {
        if timestamp == Timestamp::MAX {
            return Instant::MAX;
        }
        let ahead = timestamp.saturating_since(self.timestamp);
        let before_now = self.instant - Instant::ZERO;
        let back = self.age_of(timestamp).min(before_now);
        Instant::ZERO + (before_now - back) + ahead
    }

    /// How long ago `timestamp` was; zero if it is to come.
    #[must_use]
    pub fn age_of(&self, timestamp: Timestamp) -> Duration {
        self.timestamp.saturating_since(timestamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn reading(seconds: u32, micros: u64) -> ClockReading {
        ClockReading {
            instant: Instant::ZERO + seconds * SECOND,
            timestamp: Timestamp::from_micros(micros),
        }
    }

    #[test]
    fn a_point_goes_there_and_back() {
        let now = reading(100, 1_000_000_000);
        for seconds in [0, 1, 99, 100, 101, 1_000_000] {
            let instant = Instant::ZERO + seconds * SECOND;
            assert_eq!(now.instant_of(now.timestamp_of(instant)), instant);
        }
        assert_eq!(now.timestamp_of(Instant::MAX), Timestamp::MAX);
        assert_eq!(now.instant_of(Timestamp::MAX), Instant::MAX);
    }

    #[test]
    fn what_is_written_down_never_becomes_early() {
        let now = reading(100, 1_000_000_000);
        for nanos in [1, 999, 1_000, 1_001] {
            for deadline in [
                now.instant + Duration::from_nanos(nanos),
                Instant::from_nanos(nanos),
            ] {
                assert!(
                    now.instant_of(now.timestamp_of(deadline)) >= deadline,
                    "{nanos}"
                );
            }
        }
    }

    #[test]
    fn what_lies_before_the_clock_stops_at_its_beginning() {
        let young = reading(1, 1_000_000_000);
        let hour_ago = Timestamp::from_micros(1_000_000_000).saturating_sub(500 * SECOND);
        assert_eq!(young.instant_of(hour_ago), Instant::ZERO);
        assert_eq!(young.age_of(hour_ago), 500 * SECOND);
        assert_eq!(young.instant_of(Timestamp::EPOCH), Instant::ZERO);
        // And a machine whose clock stands at 1970 writes no time before it.
        let early = reading(100, 5);
        assert_eq!(early.timestamp_of(Instant::ZERO), Timestamp::EPOCH);
    }
}
