//! Reads all checksums of the store in the background, slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::Timers;
use countwheel_time::Clock;

/// So much is read at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// How often everything is read, and how fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// From the beginning of a round to that of the next.
    pub(crate) interval: Duration,
    pub(crate) bytes_per_second: u64,
}

/// How far it is. A process begins a round when it starts, at a file drawn at random.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    bytes: AtomicU64,
    rounds: AtomicU64,
    files_left: AtomicU64,
    ended_seconds: AtomicU64,
}

impl Progress {
    /// How many bytes were read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many rounds ended.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// About how many files of this round are left.
    pub(crate) fn files_left(&self) -> u64 {
        self.files_left.load(Ordering::Relaxed)
    }

    /// When the last round ended, in seconds since 1970; 0 before the first.
    pub(crate) fn ended_seconds(&self) -> u64 {
        self.ended_seconds.load(Ordering::Relaxed)
    }
}

/// Reads round after round, until the runtime ends.
pub(crate) async fn run(
    timers: Timers,
    clock: Arc<dyn Clock>,
    pace: Pace,
    progress: Arc<Progress>,
) {
    loop {
        let begun = clock.now();
        loop {
            let reader = timers.clone();
            let step = tokio::task::spawn_blocking(move || reader.scrub_step(PIECE_BYTES));
            let Ok(step) = step.await else {
                tracing::error!("the scrub has ended: a step panicked");
                return;
            };
            progress.bytes.fetch_add(step.bytes, Ordering::Relaxed);
            progress
                .files_left
                .store(step.files_left, Ordering::Relaxed);
            if step.ended {
                break;
            }
            tokio::time::sleep(pace.time_for(step.bytes)).await;
        }
        let at = clock.timestamp().as_micros() / 1_000_000;
        progress.ended_seconds.store(at, Ordering::Relaxed);
        progress.rounds.fetch_add(1, Ordering::Relaxed);
        let took = clock.now().saturating_since(begun);
        tracing::debug!(?took, "a scrub has read everything");
        // A short interval on an empty store is no reason to spin.
        let rest = pace.interval.saturating_sub(took);
        tokio::time::sleep(rest.max(Duration::from_millis(100))).await;
    }
}

impl Pace {
    fn time_for(self, bytes: u64) -> Duration {
        let micros = bytes.saturating_mul(1_000_000) / self.bytes_per_second.max(1);
        Duration::from_micros(micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_takes_as_long_as_the_rate_says() {
        let pace = Pace {
            interval: Duration::from_secs(1),
            bytes_per_second: 4 << 20,
        };
        assert_eq!(pace.time_for(1 << 20), Duration::from_millis(250));
        assert_eq!(pace.time_for(0), Duration::ZERO);
    }
}
