//! Whole lives of timers, on 8 to 16 threads, in orders drawn by chance.

#[path = "../shared/clock.rs"]
mod clock;
mod ledger;
mod life;
#[path = "../shared/planting.rs"]
mod planting;
#[path = "../shared/stats.rs"]
mod stats;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as Stopwatch;

// The product's files, with mistakes that can be switched on: `concurrent` and `planted`.
include!(concat!(env!("OUT_DIR"), "/timer/lib.rs"));

use planted::Bug;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

// What the product's files find at its root.
use clock::Patience;
use countwheel::{Clock, Driver, Fired, Instant, Layout, Resolution, TimerKey, Unfired};
use stats::ShardLoad;

/// How many lives each way of drawing an order is given.
const LIVES: usize = 10_000;
/// How many lives a planted mistake may take to be found: so many batches, each way.
const BATCHES: u64 = 50;
const BATCH: usize = 500;
/// How often the probabilistic concurrency tester changes its mind in one life: a bug that
/// takes so many interruptions is found with a known probability.
const CHANGES: usize = 3;

/// What only loom finds.
const NOT_IN_A_LIFE: [Bug; 5] = [
    // Shuttle's atomics are sequentially consistent: no order shows that a fence is missing.
    Bug::SleepWithoutFence,
    Bug::LookWithoutFence,
    // No life lasts so long.
    Bug::EndOfTimeUnannounced,
    // No pattern takes part in one.
    Bug::AlarmPutOff,
    Bug::AlarmStaysSet,
];

fn run(scheduler: impl Scheduler + 'static, lives: &Arc<AtomicU64>) {
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.silence_warnings = true;
    config
        .ungraceful_shutdown_config
        .immediately_return_on_panic = true;
    let lives = Arc::clone(lives);
    Runner::new(scheduler, config).run(move || {
        lives.fetch_add(1, Ordering::Relaxed);
        life::live();
    });
}

fn random(seed: u64, lives: usize) -> impl Scheduler {
    RandomScheduler::new_from_seed(seed, lives)
}

fn pct(seed: u64, lives: usize) -> impl Scheduler {
    PctScheduler::new_from_seed(seed, CHANGES, lives)
}

/// A seed for each test, the same each time; others when there is time for more.
fn depth() -> (u64, usize) {
    if planting::is_deep() {
        let seed = std::process::id().into();
        println!("seed {seed}");
        (seed, 100)
    } else {
        (1, 1)
    }
}

#[test]
fn every_life_is_settled_when_threads_are_drawn_one_by_one() {
    let (seed, times) = depth();
    run(random(seed, LIVES * times), &Arc::default());
}

#[test]
fn every_life_is_settled_when_threads_have_priorities() {
    let (seed, times) = depth();
    run(pct(seed, LIVES * times), &Arc::default());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "says how long it took")]
fn planted_mistakes_are_found() {
    let mut missed = Vec::new();
    for &bug in Bug::ALL.iter().filter(|bug| !NOT_IN_A_LIFE.contains(bug)) {
        let began = Stopwatch::now();
        let lives = Arc::default();
        let found = (0..BATCHES).any(|seed| {
            planting::finds(bug, || run(random(seed, BATCH), &lives))
                || planting::finds(bug, || run(pct(seed, BATCH), &lives))
        });
        let count = lives.load(Ordering::Relaxed);
        println!("{bug:?}: {found}, life {count}, {:?}", began.elapsed());
        if !found {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
