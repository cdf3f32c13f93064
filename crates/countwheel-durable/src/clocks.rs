//! The two time lines of a scheduler: the wall clock, and a line that goes on by the boot clock
//! from the position in [`Notes`](crate::notes::Notes). If the two part, somebody has set the wall
//! clock.

use std::time::Duration;

use countwheel_time::{Clock, Instant, Timestamp};

use crate::{DueClock, Stats};

/// A reading of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Now {
    pub(crate) wall: Timestamp,
    pub(crate) boot: Timestamp,
}

impl Now {
    pub(crate) fn by(self, clock: DueClock) -> Timestamp {
        match clock {
            DueClock::Wall => self.wall,
            DueClock::Boot => self.boot,
        }
    }

    /// A time by one clock, as the other shows it now.
    pub(crate) fn convert(self, at: Timestamp, from: DueClock, to: DueClock) -> Timestamp {
        let (from, to) = (self.by(from), self.by(to));
        if at >= from {
            to + at.saturating_since(from)
        } else {
            to.saturating_sub(from.saturating_since(at))
        }
    }
}

/// The clocks are read again, so often at most, until it takes no longer than this.
const TRIES: usize = 32;
const AT_ONCE: Duration = Duration::from_micros(10);

/// Reads the wall clock, and then the boot clock.
///
/// Two clocks cannot be read at the same time. A line that begins at the wall time is as much behind
/// as a thread had to wait between the two, for as long as the process lives: that makes
/// nothing early, but all who asked for a delay would be told of an earlier deadline.
pub(crate) fn read(clock: &dyn Clock) -> (Timestamp, Instant) {
    let read = || {
        let before = clock.boot();
        let wall = clock.timestamp();
        let boot = clock.boot();
        (boot.saturating_since(before), (wall, boot))
    };
    let mut best = read();
    for _ in 1..TRIES {
        if best.0 <= AT_ONCE {
            break;
        }
        let next = read();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

/// Where the boot clock stood when its time line stood where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) line: Timestamp,
    pub(crate) boot: Instant,
}

impl Origin {
    /// Where the line stood when the boot clock was at zero.
    pub(crate) fn zero(&self) -> Timestamp {
        let passed = self.boot.saturating_since(Instant::ZERO);
        self.line.saturating_sub(passed)
    }

    pub(crate) fn now(&self, clock: &dyn Clock) -> Now {
        let passed = clock.boot().saturating_since(self.boot);
        // Down: nothing is due before its time.
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        Now {
            wall: clock.timestamp(),
            boot: self.line + Duration::from_micros(micros),
        }
    }
}

/// Watches for steps of the wall clock.
#[derive(Debug)]
pub(crate) struct Steps {
    last: Now,
    forward: u64,
    backward: u64,
    last_micros: i64,
}

impl Steps {
    /// A smaller difference is the drift of two clocks.
    pub(crate) const LEAST: Duration = Duration::from_millis(250);

    pub(crate) fn new(now: Now) -> Self {
        Self {
            last: now,
            forward: 0,
            backward: 0,
            last_micros: 0,
        }
    }

    /// Compares the clocks, and says by how many microseconds the wall clock was set since the
    /// last time.
    ///
    /// A clock that is being slewed differs by less than a thousandth of the time between, so
    /// that much more is no step.
    pub(crate) fn look(&mut self, now: Now) -> Option<i64> {
        let last = std::mem::replace(&mut self.last, now);
        let skew = |now: Now| i128::from(now.wall.as_micros()) - i128::from(now.boot.as_micros());
        let by = skew(now) - skew(last);
        let drift = now.boot.saturating_since(last.boot) / 1_000;
        if by.unsigned_abs() <= (Self::LEAST + drift).as_micros() {
            return None;
        }
        let by = i64::try_from(by).unwrap_or(if by > 0 { i64::MAX } else { i64::MIN });
        self.last_micros = by;
        if by > 0 {
            self.forward += 1;
        } else {
            self.backward += 1;
        }
        tracing::warn!(microseconds = by, "the wall clock was set");
        Some(by)
    }

    pub(crate) fn fill(&self, stats: &mut Stats) {
        stats.steps_forward = self.forward;
        stats.steps_backward = self.backward;
        stats.last_step_micros = self.last_micros;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A clock whose reader has to wait before every reading of the first few.
    #[derive(Debug)]
    struct Waiting {
        micros: AtomicU64,
        waits: AtomicU64,
    }

    impl Waiting {
        fn read(&self) -> u64 {
            let left = self.waits.load(Ordering::Relaxed);
            self.waits.store(left.saturating_sub(1), Ordering::Relaxed);
            let waited = if left > 0 { 80_000 } else { 1 };
            self.micros.fetch_add(waited, Ordering::Relaxed) + waited
        }
    }

    impl Clock for Waiting {
        fn now(&self) -> Instant {
            self.boot()
        }

        fn timestamp(&self) -> Timestamp {
            Timestamp::from_micros(self.read())
        }

        fn boot(&self) -> Instant {
            Instant::ZERO + Duration::from_micros(self.read())
        }
    }

    #[test]
    fn who_waits_between_two_readings_begins_both_lines_together() {
        for waits in 0..60 {
            let clock = Waiting {
                micros: AtomicU64::new(1_000_000),
                waits: AtomicU64::new(waits),
            };
            let (line, boot) = read(&clock);
            let origin = Origin { line, boot };
            let Now { wall, boot } = origin.now(&clock);
            // What is started by this line is not early by the other one.
            assert!(boot <= wall, "{waits}");
            assert!(wall.saturating_since(boot) <= AT_ONCE, "{waits}");
        }
    }
}
