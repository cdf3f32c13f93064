//! The only place that reads a clock, or sleeps.

use std::time::{Duration, Instant};

/// Measures from where it is started.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    #[inline]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(crate) fn nanoseconds(self) -> u64 {
        nanoseconds(Self::start().0 - self.0)
    }

    /// Nanoseconds for each of `operations`.
    pub(crate) fn nanoseconds_per(self, operations: u64) -> f64 {
        self.nanoseconds() as f64 / operations as f64
    }

    /// When it was started. Some competitors count from an `Instant`.
    pub(crate) fn instant(self) -> Instant {
        self.0
    }
}

/// Nanoseconds from `due` until now; negative if it is still to come.
#[inline]
pub(crate) fn lateness(due: Instant) -> i64 {
    let now = Stopwatch::start().0;
    let signed = |duration| i64::try_from(nanoseconds(duration)).unwrap_or(i64::MAX);
    if now >= due {
        signed(now - due)
    } else {
        -signed(due - now)
    }
}

/// Lets time pass.
#[expect(
    clippy::disallowed_methods,
    reason = "what others do meanwhile is measured"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What reading the clock twice costs: the median distance of neighbouring readings.
pub(crate) fn clock_cost() -> u64 {
    let mut distances: Vec<u64> = (0..10_001)
        .map(|_| Stopwatch::start().nanoseconds())
        .collect();
    distances.sort_unstable();
    distances[distances.len() / 2]
}
