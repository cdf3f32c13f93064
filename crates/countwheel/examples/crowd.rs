//! A million timers of one tick, an hour ahead, and somebody who wants to schedule meanwhile.
//!
//! ```text
//! cargo run --release -p countwheel --example crowd -- [TIMERS]
//! ```
//!
//! One shard, so that the caller wants the lock that the host holds. It tells how long the caller
//! had to wait, at the longest, until the first fired and from then on, and how long it took until all had
//! fired; then, for a driver without anybody else, the longest call by the number of moves.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use countwheel::{Clock, Driver, Instant, Layout, ManualClock, Resolution, SystemClock, Timer};

const HOUR: Duration = Duration::from_secs(3600);

fn main() {
    let timers = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let timers: u64 = timers.unwrap_or(1_000_000);
    let clock = SystemClock::new();

    let mut host = Timer::builder()
        .shards(NonZero::<usize>::MIN)
        .inline()
        .manual(ManualClock::new());
    let timer = host.timer().clone();
    let fired = std::sync::Arc::new(AtomicU64::new(0));
    for _ in 0..timers {
        let fired = std::sync::Arc::clone(&fired);
        let task = move || {
            fired.fetch_add(1, Ordering::Relaxed);
        };
        timer
            .schedule(HOUR, task)
            .expect("the timer takes everything");
    }
    let (is_over, mut near, mut firing) = (AtomicBool::new(false), [0; 2], [0; 2]);
    let mut took = Duration::ZERO;
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let (mut near, mut firing) = ([0, 0], [0, 0]);
            while !is_over.load(Ordering::Relaxed) {
                let phase = if fired.load(Ordering::Relaxed) == 0 {
                    &mut near
                } else {
                    &mut firing
                };
                let before = clock.now();
                let timeout = timer.schedule(2 * HOUR, || ()).expect("it still does");
                let waited = clock.now().saturating_since(before);
                timeout.cancel();
                phase[0] += 1;
                phase[1] = phase[1].max(waited.as_nanos());
                while clock.now().saturating_since(before) < Duration::from_micros(20) {}
            }
            (near, firing)
        });
        let begun = clock.now();
        host.advance(HOUR);
        took = clock.now().saturating_since(begun);
        is_over.store(true, Ordering::Relaxed);
        (near, firing) = caller.join().expect("nobody panics");
    });
    assert_eq!(fired.load(Ordering::Relaxed), timers);
    println!(
        "wait: near {:.3} ms of {} calls, firing {:.3} ms of {}; all took {:.1} ms",
        millis(near[1]),
        near[0],
        millis(firing[1]),
        firing[0],
        took.as_secs_f64() * 1e3,
    );
    for moves in [512, 1_024, 4_096, 16_384, 65_536, usize::MAX] {
        alone(timers, moves, &clock);
    }
}

/// The longest call of a driver, as its owner would make them, with so many moves a call.
fn alone(timers: u64, moves: usize, clock: &SystemClock) {
    let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    let deadline = Instant::ZERO + HOUR;
    for number in 0..timers {
        driver.schedule(Instant::ZERO, deadline, number);
    }
    let (mut longest, mut calls) = (Duration::ZERO, 0);
    let begun = clock.now();
    while !driver.is_empty() {
        let mut moves = moves;
        let before = clock.now();
        let fired = driver.expire_within(deadline, deadline, &mut moves);
        longest = longest.max(clock.now().saturating_since(before));
        calls += u64::from(fired.is_none());
    }
    println!(
        "alone, {moves} moves a call: {calls} calls more, the longest {:.3} ms, all {:.1} ms",
        longest.as_secs_f64() * 1e3,
        clock.now().saturating_since(begun).as_secs_f64() * 1e3,
    );
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn millis(nanos: u128) -> f64 {
    nanos as f64 / 1e6
}
