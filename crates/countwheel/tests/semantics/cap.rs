//! CAP: how much may be pending.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use countwheel::{ManualClock, ManualHost, Overload, ScheduleError, Timer};

use crate::support::{Desk, HOUR, Journal, MS, Random, SECOND, YEAR, layouts, ticks_of};

fn with_room(tasks: u64) -> ManualHost {
    let builder = Timer::builder().max_pending(tasks);
    builder.manual(ManualClock::new())
}

// CAP-1
#[test]
fn as_many_may_be_pending_as_was_said_and_not_one_more() {
    for limit in [1, 3, 1_000] {
        let host = with_room(limit);
        for _ in 0..limit {
            host.timer().schedule(HOUR, || ()).unwrap();
        }
        for _ in 0..3 {
            let journal = Journal::new();
            let full = host.timer().schedule(HOUR, journal.writes("mine again"));
            let Err(ScheduleError::Full(task)) = full else {
                panic!("{full:?}");
            };
            task.run();
            assert_eq!(journal.take(), ["mine again"]);
        }
        let stats = host.timer().stats();
        assert_eq!(
            (stats.added, stats.pending, stats.refused),
            (limit, limit, 3)
        );
    }
}

// CAP-1
#[test]
fn none_may_be_pending_if_that_was_said_and_any_number_if_nothing_was() {
    let none = with_room(0);
    for delay in [Duration::ZERO, HOUR] {
        let full = none.timer().schedule(delay, || ());
        assert!(matches!(full, Err(ScheduleError::Full(_))));
    }
    for host in [with_room(u64::MAX), ManualHost::new()] {
        for _ in 0..10_000 {
            host.timer().schedule(HOUR, || ()).unwrap().cancel();
            host.timer().schedule(HOUR, || ()).unwrap();
        }
        assert_eq!(host.timer().pending(), 10_000);
    }
}

// CAP-1
#[test]
fn threads_that_fill_a_timer_together_find_the_same_room_as_one() {
    for _ in 0..20 {
        let host = with_room(150);
        let accepted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let scheduled = host.timer().schedule(HOUR, || ());
                        accepted.fetch_add(u64::from(scheduled.is_ok()), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(accepted.into_inner(), 150);
        let stats = host.timer().stats();
        assert_eq!((stats.pending, stats.refused), (150, 250));
    }
}

// CAP-2
#[test]
fn there_is_room_as_soon_as_a_task_is_cancelled_fires_or_goes_back() {
    let mut host = with_room(2);
    let timer = host.timer().clone();
    timer.schedule(MS, || ()).unwrap();
    let unwanted = timer.schedule(HOUR, || ()).unwrap();
    assert!(timer.schedule(HOUR, || ()).is_err());
    assert!(unwanted.cancel());
    let moved = timer.schedule(HOUR, || ()).unwrap();
    assert!(moved.reschedule(2 * HOUR), "which needs no room");
    assert!(timer.schedule(HOUR, || ()).is_err());
    host.advance(MS);
    timer.schedule(HOUR, || ()).unwrap();
    assert!(timer.schedule(HOUR, || ()).is_err());
    assert_eq!(timer.pending(), 2);
}

// CAP-3
#[test]
fn the_room_is_exact_after_any_amount_of_traffic() {
    for layout in layouts() {
        for seed in 0..10 {
            let mut random = Random(seed);
            let builder = ticks_of(MS, layout).max_pending(20);
            let mut host = builder.manual(ManualClock::new());
            let timer = host.timer().clone();
            let mut timeouts = Vec::new();
            for _ in 0..5_000 {
                match random.below(4) {
                    0 => {
                        host.advance(Duration::from_micros(random.below(5_000)));
                    }
                    1 if !timeouts.is_empty() => {
                        let any = random.below(timeouts.len() as u64);
                        let any = usize::try_from(any).unwrap();
                        let timeout: countwheel::Timeout = timeouts.swap_remove(any);
                        // Pending, due in this tick, gone: all of it happens.
                        timeout.cancel();
                        assert!(!timeout.cancel());
                    }
                    _ => {
                        let pending = timer.pending();
                        let delay = Duration::from_micros(random.below(20_000));
                        let scheduled = timer.schedule(delay, || ());
                        assert_eq!(scheduled.is_ok(), pending < 20, "seed {seed}");
                        timeouts.extend(scheduled);
                    }
                }
            }
            host.advance(YEAR);
            assert_eq!(timer.pending(), 0);
            for _ in 0..20 {
                timer.schedule(HOUR, || ()).unwrap();
            }
            assert!(timer.schedule(HOUR, || ()).is_err());
        }
    }
}

// CAP-2: what waits for an executor has its place until it starts, or the queue would have no
// limit.
#[test]
fn what_waits_for_an_executor_keeps_its_place() {
    let desk = Desk::with_room(0);
    let mut host = Timer::builder()
        .max_pending(3)
        .executor(Arc::clone(&desk))
        .overload(Overload::RetryAfter(SECOND))
        .manual(ManualClock::new());
    for _ in 0..3 {
        host.timer().schedule(MS, || ()).unwrap();
        host.advance(MS);
    }
    let stats = host.timer().stats();
    assert_eq!((stats.waiting, stats.pending), (3, 0));
    let refused = host.timer().schedule(MS, || ());
    assert!(matches!(refused, Err(ScheduleError::Full(_))));
}
