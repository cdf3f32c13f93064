//! ADD: what becomes of a delay.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel::{
    Instant, Layout, ManualClock, ManualHost, Overload, Resolution, ScheduleError, Stop, Timer,
};

use crate::support::{Desk, HOUR, Journal, MS, SECOND, YEAR, layouts, manual, ns};

// ADD-1
#[test]
fn to_schedule_gives_a_handle_or_gives_the_task_back() {
    let host = Timer::builder().max_pending(1).manual(ManualClock::new());
    let journal = Journal::new();
    let timeout = host
        .timer()
        .schedule(HOUR, journal.writes("first"))
        .unwrap();
    assert!(timeout.is_pending() && !timeout.is_expired() && !timeout.is_cancelled());

    let full = host.timer().schedule(HOUR, journal.writes("second"));
    let Err(ScheduleError::Full(task)) = full else {
        panic!("{full:?}");
    };
    assert_eq!(task.deadline(), Instant::ZERO + HOUR);
    task.run();

    drop(host.timer().stop());
    let closed = host.timer().schedule(HOUR, journal.writes("third"));
    let Err(ScheduleError::Closed(task)) = closed else {
        panic!("{closed:?}");
    };
    task.run();
    assert_eq!(journal.take(), ["second", "third"]);
}

// ADD-2, HIE-3
#[test]
fn the_longest_delays_stay_pending_and_can_be_cancelled() {
    let end = Duration::from_nanos(u64::MAX);
    let delays = [
        Duration::MAX,
        Duration::MAX - ns(1),
        Duration::MAX / 2,
        Duration::from_secs(u64::MAX),
        end + ns(1),
        end,
        end - ns(1),
        end / 2,
        Duration::from_nanos(i64::MAX.unsigned_abs()),
    ];
    for layout in layouts() {
        for tick in [ns(1), MS, SECOND] {
            for since in [Duration::ZERO, ns(1), 100 * YEAR] {
                let mut host = manual(tick, layout);
                host.advance(since);
                let timeouts = delays.map(|delay| host.timer().schedule(delay, || ()).unwrap());
                assert_eq!(host.run_due(), 0);
                assert_eq!(host.advance(100 * YEAR), 0);
                for (timeout, delay) in timeouts.iter().zip(delays) {
                    assert!(timeout.is_pending(), "{delay:?}");
                    assert!(timeout.cancel() && !timeout.is_pending());
                }
                assert_eq!(host.timer().pending(), 0);
            }
        }
    }
}

// ADD-3
#[test]
fn what_is_due_at_once_runs_at_once_in_the_order_it_was_scheduled() {
    for layout in layouts() {
        let mut host = manual(SECOND, layout);
        host.advance(Duration::from_millis(5_500));
        let journal = Journal::new();
        let timer = host.timer().clone();
        for (number, deadline) in [5_500, 0, 5_499, 1, 5_000].into_iter().enumerate() {
            let deadline = Instant::ZERO + Duration::from_millis(deadline);
            timer.schedule_at(deadline, journal.writes(number)).unwrap();
        }
        timer.schedule(Duration::ZERO, journal.writes(5)).unwrap();
        assert_eq!(host.run_due(), 6, "without waiting for the end of the tick");
        assert!(journal.take().into_iter().eq(0..6));
    }
}

// ADD-4, ADD-5
#[test]
fn a_delay_below_a_tick_waits_for_the_end_of_its_tick() {
    for layout in layouts() {
        let mut host = manual(SECOND, layout);
        host.advance(ns(500_000_000));
        let journal = Journal::new();
        for delay in [ns(499_999_999), ns(500_000_001), ns(1), ns(500_000_000)] {
            host.timer().schedule(delay, journal.writes(delay)).unwrap();
        }
        assert_eq!(host.advance(ns(499_999_999)), 0, "not before");
        assert_eq!(host.advance(ns(1)), 3, "not after");
        assert_eq!(host.advance(ns(999_999_999)), 0);
        assert_eq!(host.advance(ns(1)), 1);
        assert_eq!(journal.take().len(), 4);
    }
}

/// A wheel that files a delay as so many ticks from where its hand happens to be is early or
/// late by where in a tick the caller called: so here is every place in a tick.
// ADD-5
#[test]
fn a_delay_is_kept_from_any_place_within_a_tick() {
    for layout in layouts() {
        for tick in [1, 7, 10, 48] {
            for place in 0..tick {
                for delay in 0..(3 * tick) {
                    let mut host = manual(ns(tick), layout);
                    // Something else wakes the host in every tick.
                    for other in 0..10 {
                        host.timer().schedule(ns(other * tick), || ()).unwrap();
                    }
                    host.advance(ns(100 * tick + place));
                    let (timer, journal) = (host.timer().clone(), Journal::new());
                    let deadline = timer.now() + ns(delay);
                    let (clock, late) = (timer.clone(), journal.clone());
                    let task = move || late.write(clock.now().as_nanos());
                    timer.schedule(ns(delay), task).unwrap();
                    for other in 0..10 {
                        timer.schedule(ns(other * tick / 3), || ()).unwrap();
                    }
                    host.advance(ns(10 * tick));
                    let ran = journal.take()[0];
                    assert!(ran >= deadline.as_nanos(), "{tick} {place} {delay}: early");
                    assert!(
                        ran < deadline.as_nanos() + tick,
                        "{tick} {place} {delay}: late"
                    );
                }
            }
        }
    }
}

// ADD-6
#[test]
fn a_new_task_is_on_its_wheel_at_once() {
    for layout in layouts() {
        let mut host = manual(SECOND, layout);
        assert_eq!(host.run_due(), 0);
        host.timer().schedule(Duration::ZERO, || ()).unwrap();
        assert_eq!(host.timer().pending(), 1);
        assert_eq!(host.run_due(), 1, "in the tick in which it came");
    }
}

// ADD-7
#[test]
fn a_flood_makes_neither_the_flood_late_nor_what_was_there() {
    for layout in [Layout::Hierarchical, Layout::hashed(512).unwrap()] {
        let mut host = manual(10 * SECOND, layout);
        let journal = Journal::new();
        let timer = host.timer().clone();
        timer
            .schedule(10 * SECOND, journal.writes("before the flood"))
            .unwrap();
        for _ in 0..250_000 {
            timer.schedule(SECOND, || ()).unwrap();
        }
        timer
            .schedule(SECOND, journal.writes("after the flood"))
            .unwrap();
        assert_eq!(host.advance(10 * SECOND), 250_002, "within one tick");
        assert_eq!(journal.take(), ["before the flood", "after the flood"]);
    }
}

// ADD-9
#[test]
fn what_is_due_in_a_later_round_of_a_ring_waits_for_it() {
    for slots in [1, 8] {
        let mut host = manual(MS, Layout::hashed(slots).unwrap());
        let clock = host.timer().clone();
        let journal = Journal::new();
        for millis in [1, 8, 9, 16, 17, 24, 25, 800, 801, 807, 808] {
            let (journal, clock) = (journal.clone(), clock.clone());
            let task = move || journal.write((clock.now().as_nanos(), millis * 1_000_000));
            host.timer()
                .schedule(Duration::from_millis(millis), task)
                .unwrap();
        }
        host.advance(SECOND);
        let ran = journal.take();
        assert_eq!(ran.len(), 11);
        assert!(ran.into_iter().all(|(now, deadline)| now == deadline));
    }
}

// ADD-11
#[test]
fn one_function_scheduled_twice_is_two_tasks() {
    let mut host = ManualHost::new();
    let journal = Journal::new();
    let function = {
        let journal = journal.clone();
        move || journal.write("ran")
    };
    let first = host.timer().schedule(MS, function.clone()).unwrap();
    let second = host.timer().schedule(2 * MS, function).unwrap();
    assert_eq!(host.timer().pending(), 2);
    assert!(first.cancel());
    assert!(second.is_pending());
    assert_eq!(host.advance(SECOND), 1);
    assert_eq!(journal.take(), ["ran"]);
}

// ADD-12
#[test]
fn a_task_may_do_with_its_timer_whatever_anybody_may() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let journal = Journal::new();
        let timer = host.timer().clone();
        let other = timer.schedule(HOUR, journal.writes("moved here")).unwrap();
        let unwanted = timer.schedule(HOUR, || unreachable!()).unwrap();
        let (own, answers) = (timer.clone(), journal.clone());
        let task = move || {
            assert!(
                own.schedule(Duration::ZERO, answers.writes("at once"))
                    .is_ok()
            );
            assert!(own.schedule(MS, answers.writes("next")).is_ok());
            assert!(other.reschedule(Duration::ZERO));
            assert!(unwanted.cancel());
            assert_eq!(own.pending(), 3);
            assert_eq!(own.stats().running, 1);
            assert_eq!(own.snapshot().running.len(), 1);
            own.rouse();
            answers.write("first");
        };
        timer.schedule(MS, task).unwrap();
        assert_eq!(host.advance(MS), 3);
        assert_eq!(journal.take(), ["first", "at once", "moved here"]);
        assert_eq!(host.advance(MS), 1);
        assert_eq!(timer.stats().panicked, 0);
    }
}

// ADD-12, KEY-5: what a shutdown hands back may be scheduled again at once, where the whole
// world may be used, since no lock is held.
#[test]
fn who_gets_tasks_back_may_use_the_timer() {
    let (sender, timer_to_use) = mpsc::channel::<Timer>();
    let timer_to_use = std::sync::Mutex::new(timer_to_use);
    let receiver = move |task: countwheel::Task| {
        let timer = timer_to_use.lock().unwrap().recv().unwrap();
        timer.schedule(MS, move || task.run()).unwrap();
    };
    let desk = Desk::with_room(0);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .overload(Overload::hand_back(receiver))
        .manual(ManualClock::new());
    let journal = Journal::new();
    host.timer().schedule(MS, journal.writes("later")).unwrap();
    sender.send(host.timer().clone()).unwrap();
    host.advance(MS);
    assert_eq!((desk.taken(), host.timer().pending()), (0, 1));
    desk.set_room(1);
    host.advance(MS);
    desk.run_all();
    assert_eq!(journal.take(), ["later"]);

    let next = ManualHost::new();
    host.timer()
        .schedule(HOUR, journal.writes("moved"))
        .unwrap();
    for task in host.timer().close(Stop::HandBack).wait().unfired {
        next.timer().schedule(HOUR, || task.run()).unwrap();
    }
    assert_eq!(next.timer().pending(), 1);
}

// ADD-8
#[test]
fn what_is_overdue_when_it_comes_runs_in_the_present_tick() {
    for layout in layouts() {
        let resolution = Resolution::new(SECOND).unwrap();
        let mut driver = countwheel::Driver::new(Instant::ZERO, resolution, layout);
        let now = Instant::ZERO + 1_000 * SECOND;
        driver.schedule(Instant::ZERO, now, "waits for its tick");
        driver.schedule(now, Instant::ZERO + SECOND, "overdue");
        let order = std::iter::from_fn(|| driver.expire(now).map(|fired| fired.value));
        assert_eq!(order.collect::<Vec<_>>().len(), 2);
    }
}

// ADD-4: moved to less than a tick from now, a task once ran elsewhere at once, and a second
// time where it had been before.
#[test]
fn a_task_moved_to_less_than_a_tick_runs_once_and_not_before() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let journal = Journal::new();
        let timeout = host
            .timer()
            .schedule(10 * MS, journal.writes("ran"))
            .unwrap();
        assert!(timeout.reschedule(ns(1)));
        assert_eq!(host.run_due(), 0);
        assert_eq!(host.advance(ns(999_999)), 0);
        assert_eq!(host.advance(ns(1)), 1);
        assert_eq!(host.advance(SECOND), 0);
        assert_eq!(journal.take(), ["ran"]);
        assert!(!timeout.reschedule(MS));
    }
}
