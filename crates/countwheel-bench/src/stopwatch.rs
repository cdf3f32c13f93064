//! The only place that reads a clock.

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
