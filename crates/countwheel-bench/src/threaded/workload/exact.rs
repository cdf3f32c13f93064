//! The check: threads schedule short timers and cancel a random half at once. Exactly the other
//! half fires, each timer once. The check reports early timers, but does not fail for them.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::PATIENCE;
use crate::random::{SplitMix, index};
use crate::stopwatch::{Stopwatch, lateness, pause};
use crate::threaded::peer::Peer;
use crate::workload::{Figures, figures};

pub(crate) const THREADS: u64 = 4;
const TIMERS: u64 = 500;

/// In milliseconds. Those to be cancelled have time: where a cancel does not tell, it
/// must not come too late.
const LONGEST: u64 = 200;
const LEAST_CANCELLED: u64 = 100;

/// How long the cancelled ones have to fire in spite of it.
const AFTERMATH: Duration = Duration::from_millis(400);

/// What is wrong with what the check found, if anything is.
pub(crate) fn judge(figures: &Figures) -> Option<String> {
    let count = |name: &str| figures.get(name).copied().unwrap_or(f64::NAN);
    let wrong = |(name, what): &(&str, &str)| {
        let count = count(name);
        (count != 0.0).then(|| format!("{count} {what}"))
    };
    let wrongs: Vec<String> = [
        ("missing", "timers never fired"),
        ("twice", "timers fired twice"),
        ("cancelled", "timers fired after their cancel"),
    ]
    .iter()
    .filter_map(wrong)
    .collect();
    (!wrongs.is_empty()).then(|| wrongs.join(", "))
}

/// What there is to know of a timer.
#[derive(Default)]
struct Timer {
    fired: AtomicU64,
    /// Nanoseconds, against its deadline and against the beginning of the check.
    lateness: AtomicI64,
    fired_at: AtomicI64,
}

impl Timer {
    fn fire(&self, due: Instant, began: Instant) {
        self.lateness.store(lateness(due), Ordering::Relaxed);
        self.fired_at.store(lateness(began), Ordering::Relaxed);
        self.fired.fetch_add(1, Ordering::Release);
    }

    fn times(&self) -> u64 {
        self.fired.load(Ordering::Acquire)
    }
}

/// What has to become of a timer.
#[derive(Clone, Copy)]
enum Fate {
    Fires,
    /// Never fires, unless it did before this point.
    Cancelled(i64),
}

pub(super) fn check<P: Peer>(peer: &P) -> anyhow::Result<Figures> {
    let began = Stopwatch::start().instant();
    let timers: &'static [Timer] = (0..THREADS * TIMERS)
        .map(|_| Timer::default())
        .collect::<Vec<_>>()
        .leak();
    let fates: Vec<Fate> = thread::scope(|scope| {
        let thread = |(number, timers)| {
            let peer = peer.clone();
            scope.spawn(move || schedule(peer, number, timers, began))
        };
        let threads: Vec<_> = (0..)
            .zip(timers.chunks(index(TIMERS)))
            .map(thread)
            .collect();
        let fates = threads.into_iter().filter_map(|thread| thread.join().ok());
        fates.flatten().collect()
    });

    ensure!(
        fates.len() == timers.len(),
        "a thread did not come to its end"
    );
    let with_fates = || timers.iter().zip(&fates);
    let missing = || {
        let fires = with_fates().filter(|(_, fate)| matches!(fate, Fate::Fires));
        fires.filter(|(timer, _)| timer.times() == 0).count()
    };
    let watch = Stopwatch::start();
    while missing() > 0 && watch.instant().elapsed() < PATIENCE / 6 {
        pause(Duration::from_millis(10));
    }
    pause(AFTERMATH);

    let cancelled = with_fates().filter(|(timer, fate)| match fate {
        Fate::Fires => false,
        Fate::Cancelled(at) => timer.times() > 0 && timer.fired_at.load(Ordering::Relaxed) > *at,
    });
    let fired = || timers.iter().filter(|timer| timer.times() > 0);
    let lateness = || fired().map(|timer| timer.lateness.load(Ordering::Relaxed));
    Ok(figures([
        ("fired", fired().count() as f64),
        ("missing", missing() as f64),
        (
            "twice",
            timers.iter().filter(|timer| timer.times() > 1).count() as f64,
        ),
        ("cancelled", cancelled.count() as f64),
        ("early", lateness().filter(|&late| late < 0).count() as f64),
        ("min", lateness().min().unwrap_or(0) as f64 / 1000.0),
    ]))
}

fn schedule<P: Peer>(
    mut peer: P,
    thread: u64,
    timers: &'static [Timer],
    began: Instant,
) -> Vec<Fate> {
    let _entered = peer.enter();
    let mut numbers = SplitMix::new(42 + thread);
    let fate = |timer: &'static Timer| {
        let is_cancelled = numbers.below(2) == 0;
        let least = if is_cancelled { LEAST_CANCELLED } else { 1 };
        let delay = Duration::from_millis(least + numbers.below(LONGEST + 1 - least));
        let due = Stopwatch::start().instant() + delay;
        let handle = peer.schedule(delay, move || timer.fire(due, began));
        if !is_cancelled {
            return Fate::Fires;
        }
        // Where a cancel tells that it was in time, the timer may not even have fired before.
        let before = if P::CANCEL_TELLS { -1 } else { lateness(began) };
        if peer.cancel(handle) {
            Fate::Cancelled(before)
        } else {
            Fate::Fires
        }
    };
    timers.iter().map(fate).collect()
}
