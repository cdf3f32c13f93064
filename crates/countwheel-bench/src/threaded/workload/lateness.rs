//! W5: how late timers fire that spread evenly over some seconds.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::PATIENCE;
use crate::random::{SplitMix, index};
use crate::statistics::percentile;
use crate::stopwatch::{Stopwatch, lateness};
use crate::system::processor_nanoseconds;
use crate::threaded::peer::Peer;
use crate::workload::{Figures, figures};

/// The least delay: longer than it takes to schedule all timers.
const LEAST: Duration = Duration::from_millis(500);

pub(super) fn measure<P: Peer>(
    mut peer: P,
    timers: u64,
    spread: Duration,
) -> anyhow::Result<Figures> {
    let _entered = peer.enter();
    let mut numbers = SplitMix::new(42);
    let spread_micros = u64::try_from(spread.as_micros()).unwrap_or(u64::MAX - 1);
    let delays =
        (0..timers).map(|_| LEAST + Duration::from_micros(numbers.below(spread_micros + 1)));
    let delays: Vec<Duration> = delays.collect();
    let (sender, receiver) = channel();
    let board: &'static Board = Box::leak(Box::new(Board::new(timers, sender)));

    let processor = processor_nanoseconds();
    for (timer, &delay) in board.lateness.iter().zip(&delays) {
        let due = Stopwatch::start().instant() + delay;
        peer.call(delay, move || board.fired(timer, due));
    }
    // The count below says so if it comes too late or never.
    let _ = receiver.recv_timeout(LEAST + spread + PATIENCE);
    let processor = processor_nanoseconds() - processor;

    let left = board.left.load(Ordering::Acquire);
    ensure!(left == 0, "{left} of {timers} timers have not fired");
    let mut nanoseconds: Vec<i64> = board
        .lateness
        .iter()
        .map(|l| l.load(Ordering::Relaxed))
        .collect();
    nanoseconds.sort_unstable();
    let early = nanoseconds.partition_point(|&late| late < 0);
    let part = |part| percentile(&nanoseconds, part).map_or(0.0, |late| late as f64 / 1000.0);
    Ok(figures([
        ("min", part(0.0)),
        ("p50", part(0.5)),
        ("p99", part(0.99)),
        ("p99.9", part(0.999)),
        ("max", part(1.0)),
        ("early", early as f64),
        ("cpu", processor / 1e6),
    ]))
}

/// Where timers note when they fired.
struct Board {
    lateness: Vec<AtomicI64>,
    left: AtomicU64,
    all_fired: Sender<()>,
}

impl Board {
    fn new(timers: u64, all_fired: Sender<()>) -> Self {
        Self {
            lateness: (0..index(timers)).map(|_| AtomicI64::new(0)).collect(),
            left: AtomicU64::new(timers),
            all_fired,
        }
    }

    fn fired(&self, timer: &AtomicI64, due: Instant) {
        timer.store(lateness(due), Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Nobody listens any more if patience has run out.
            self.all_fired.send(()).unwrap_or_default();
        }
    }
}
