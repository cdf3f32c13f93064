//! The only place that reads a clock, or sleeps.

use std::time::{Duration, Instant};

/// Measures from where it is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) fn nanoseconds(self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn milliseconds(self) -> f64 {
        self.elapsed().as_secs_f64() * 1e3
    }

    pub(crate) fn seconds(self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Lets time pass.
#[expect(clippy::disallowed_methods, reason = "others work meanwhile")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
