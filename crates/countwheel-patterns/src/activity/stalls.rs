//! The time in which this process did not run. It counts against no connection or lease.
//!
//! Eureka compares the time between two runs of its eviction with the expected time, and adds the
//! difference to every lease of that run. Here the difference is taken out of time itself: activity
//! is written down, and judged, on a clock from which all stalls so far are subtracted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel::Instant;
use countwheel_time::locks::lock;
use countwheel_time::nanos;

/// A time from which stalls are subtracted, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Live(pub(crate) u64);

impl Live {
    pub(crate) const NEVER: Self = Self(u64::MAX);

    /// In nanoseconds; zero if `earlier` is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

pub(crate) struct Stalls {
    /// How often somebody looks, in nanoseconds; zero if stalls are of no interest.
    period: u64,
    /// The last look.
    last: AtomicU64,
    stalled: AtomicU64,
    count: AtomicU64,
    /// How many are watched: without any, nobody looks, and that is no stall.
    members: AtomicU64,
    first: Mutex<()>,
}

impl Stalls {
    pub(crate) fn new(period: Option<Duration>) -> Self {
        Self {
            period: period.map_or(0, nanos),
            last: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            count: AtomicU64::new(0),
            members: AtomicU64::new(0),
            first: Mutex::new(()),
        }
    }

    /// One more is watched. It must not be filed before this has returned.
    pub(crate) fn join(&self, now: Instant) {
        let more = |members| (members > 0).then_some(members + 1);
        let join = || {
            self.members
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
        };
        if join().is_ok() {
            return;
        }
        let _one_at_a_time = lock(&self.first);
        if join().is_err() {
            self.last.fetch_max(now.as_nanos(), Ordering::Relaxed);
            self.members.store(1, Ordering::Release);
        }
    }

    pub(crate) fn leave(&self) {
        self.members.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn members(&self) -> u64 {
        self.members.load(Ordering::Acquire)
    }

    /// Notes that this process runs at `now`. A look that comes more than a period late is
    /// the end of a stall.
    pub(crate) fn look(&self, now: Instant) {
        let now = now.as_nanos();
        let last = self.last.load(Ordering::Acquire);
        let since = now.saturating_sub(last);
        if self.period == 0 || since < self.period / 4 {
            return;
        }
        if since / 2 <= self.period {
            self.last.fetch_max(now, Ordering::Relaxed);
            return;
        }
        // Who comes meanwhile has to wait: it must not judge by a time that has the stall in it.
        let _one_at_a_time = lock(&self.first);
        let since = now.saturating_sub(self.last.load(Ordering::Relaxed));
        if since / 2 > self.period {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.stalled
                .fetch_add(since - self.period, Ordering::Relaxed);
            self.last.fetch_max(now, Ordering::Release);
        }
    }

    /// When somebody has to look next.
    pub(crate) fn next_look(&self, now: Instant) -> Instant {
        match now.as_nanos().checked_div(self.period) {
            // The same for all shards, so that they wake the host together.
            Some(periods) => {
                Instant::from_nanos(periods.saturating_add(1).saturating_mul(self.period))
            }
            None => Instant::MAX,
        }
    }

    pub(crate) fn live(&self, now: Instant) -> Live {
        let stalled = self.stalled.load(Ordering::Relaxed);
        Live(now.as_nanos().saturating_sub(stalled))
    }

    /// When that will be if there is no further stall.
    pub(crate) fn real(&self, live: Live) -> Instant {
        let stalled = self.stalled.load(Ordering::Relaxed);
        Instant::from_nanos(live.0.saturating_add(stalled))
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn stalled(&self) -> Duration {
        Duration::from_nanos(self.stalled.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_late_look_is_a_stall_and_what_was_expected_is_not() {
        let stalls = Stalls::new(Some(SECOND));
        stalls.join(at(100_000));
        stalls.look(at(101_000));
        stalls.look(at(102_900));
        assert_eq!(stalls.stalled(), Duration::ZERO);
        stalls.look(at(112_900));
        assert_eq!((stalls.stalled(), stalls.count()), (9 * SECOND, 1));
        assert_eq!(stalls.real(stalls.live(at(112_900))), at(112_900));
    }

    #[test]
    fn the_time_without_members_is_no_stall() {
        let stalls = Stalls::new(Some(SECOND));
        stalls.join(at(0));
        stalls.look(at(1_000));
        stalls.leave();
        stalls.join(at(500_000));
        stalls.look(at(501_000));
        assert_eq!(stalls.count(), 0);
        stalls.join(at(600_000));
        stalls.look(at(600_000));
        assert_eq!(stalls.stalled(), 98 * SECOND, "there was one all the time");
    }

    #[test]
    fn who_does_not_care_is_not_woken() {
        let stalls = Stalls::new(None);
        stalls.look(at(1_000_000));
        assert_eq!((stalls.count(), stalls.next_look(at(1))), (0, Instant::MAX));
        let stalls = Stalls::new(Some(SECOND));
        assert_eq!(stalls.next_look(at(1_000)), at(2_000));
        assert_eq!(stalls.real(Live::NEVER), Instant::MAX);
    }
}
