//! The simulation of timers in a process: it repeats, it reaches what it claims to, and it
//! notices. The fixed and fresh seeds of the gate are run by the program, at full speed.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use countwheel::{Layout, ManualClock, Timer, pretend_to_be_thread};
use countwheel_sim::timers::{self, Options, Report, Sabotage};
use parking_lot::Mutex;

fn options(operations: u64) -> Options {
    Options {
        operations,
        ..Options::default()
    }
}

fn run(seed: u64, operations: u64) -> Report {
    timers::run(seed, &options(operations)).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn a_seed_repeats_to_the_last_detail() {
    for seed in 1..=20 {
        assert_eq!(run(seed, 5_000), run(seed, 5_000), "seed {seed}");
    }
}

#[test]
fn everything_happens() {
    let mut sum = Report::default();
    for seed in 100..150 {
        sum.add(&run(seed, 10_000));
    }
    // What never happens rots. Far below what is seen, far above none.
    assert!(sum.operations >= 500_000, "{sum:?}");
    assert!(sum.timers > 200, "{sum:?}");
    assert!(sum.ran > 20_000, "{sum:?}");
    assert!(sum.cancelled > 3_000, "{sum:?}");
    assert!(sum.returned > 3_000, "{sum:?}");
    assert!(sum.refused > 3_000, "{sum:?}");
    assert!(sum.moved > 3_000, "{sum:?}");
    assert!(sum.stale > 10_000, "{sum:?}");
    assert!(sum.overloaded > 1_000, "{sum:?}");
    assert!(sum.panicked > 100, "{sum:?}");
    assert!(sum.closed > 100, "{sum:?}");
    assert!(sum.dropped > 50, "{sum:?}");
}

/// A simulation that notices nothing proves nothing.
#[test]
fn every_sabotage_is_found() {
    for fault in Sabotage::ALL {
        let options = Options {
            sabotage: Some(fault),
            log: 0,
            ..options(5_000)
        };
        let found = (1..50).find_map(|seed| timers::run(seed, &options).err());
        let failure = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!("{fault:?}: seed {}: {}", failure.seed, failure.what);
    }
}

/// A ring that had been emptied kept, as a bound for the next entries, the earliest deadline
/// of those that were gone. With more tasks than are searched for the earliest, the host then
/// woke at every tick; with several rings it went from one to the other tick by tick, for
/// years of them.
#[test]
fn a_ring_that_was_empty_once_does_not_tick() {
    let layout = Layout::hashed(64).unwrap();
    let builder = Timer::builder().layout(layout);
    let mut host = builder.manual(ManualClock::new());
    let timer = host.timer().clone();
    timer.schedule(Duration::from_millis(2), || ()).unwrap();
    host.advance(Duration::from_secs(1));
    for millis in 0..2_000 {
        let delay = Duration::from_secs(3_600) + Duration::from_millis(millis);
        timer.schedule(delay, || ()).unwrap();
    }
    let mut wake_ups = 0;
    while timer.stats().ran < 2 {
        // The first answer comes from what was filed, the second from the wheel.
        let _filed = host.next_wake();
        let wake = host.next_wake().unwrap();
        host.clock().advance(wake.saturating_since(timer.now()));
        host.run_due();
        wake_ups += 1;
        assert!(wake_ups <= 100, "one revolution, then exactly there");
    }
}

/// What was scheduled without a delay while the host was behind went before what was overdue
/// on the shards of other threads, if its own shard was empty and still had the bound of a
/// cancelled task: the wheel had been wound on beyond the limit that it was asked for.
#[test]
fn a_task_without_a_delay_does_not_overtake_what_is_overdue_on_another_shard() {
    for layout in [Layout::Hierarchical, Layout::hashed(64).unwrap()] {
        let two = NonZeroUsize::new(2).unwrap();
        let builder = Timer::builder().layout(layout).shards(two);
        let mut host = builder.manual(ManualClock::new());
        let timer = host.timer().clone();
        let order = Arc::new(Mutex::new(Vec::new()));
        let schedule = |thread, millis, name| {
            pretend_to_be_thread(thread);
            let order = Arc::clone(&order);
            let delay = Duration::from_millis(millis);
            let task = move || order.lock().push(name);
            timer.schedule(delay, task).unwrap()
        };
        schedule(1, 50, "cancelled").cancel();
        schedule(0, 60, "overdue");
        host.clock().advance(Duration::from_millis(100));
        schedule(1, 0, "now");
        host.run_due();
        assert_eq!(*order.lock(), ["overdue", "now"]);
    }
}
