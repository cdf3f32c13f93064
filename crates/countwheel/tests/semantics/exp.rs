//! EXP: what happens when a deadline comes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel::{
    Clock, Driver, Executor, Instant, ManualClock, ManualHost, Overload, Resolution, Task, Timer,
    Timestamp, Work,
};

use super::harness::log;
use crate::support::{Desk, HOUR, Journal, MS, SECOND, layouts, manual};

// EXP-1
#[test]
fn a_task_that_panics_is_logged_with_its_name_and_harms_nobody() {
    let log = log();
    let desk = Desk::with_room(usize::MAX);
    for executor in [None, Some(Arc::clone(&desk))] {
        let mut builder = Timer::builder().thread_name("panics in here");
        if let Some(desk) = executor {
            builder = builder.executor(desk);
        }
        let mut host = builder.manual(ManualClock::new());
        let journal = Journal::new();
        let timer = host.timer().clone();
        let panicked = timer.schedule(MS, || panic!("on purpose")).unwrap();
        timer.schedule(MS, journal.writes("same tick")).unwrap();
        timer.schedule(2 * MS, journal.writes("next tick")).unwrap();
        host.advance(2 * MS);
        desk.run_all();
        assert_eq!(journal.take(), ["same tick", "next tick"]);
        assert!(panicked.is_expired());
        assert_eq!(timer.stats().panicked, 1);
    }
    let logged = log.with(&["task panicked", "panics in here", module_path!()]);
    assert_eq!(logged.len(), 2);
    assert!(logged.iter().all(|one| one.level == tracing::Level::ERROR));
}

// EXP-2
#[test]
fn a_task_that_blocks_makes_nobody_late_by_default() {
    let timer = Timer::new();
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let task = move || {
        start.send(()).unwrap();
        let _ = finished.recv();
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    started.recv().unwrap();
    let (sender, ran) = mpsc::channel();
    for number in 0..100 {
        let sender = sender.clone();
        let task = move || sender.send(number).unwrap();
        timer.schedule(Duration::from_micros(number), task).unwrap();
    }
    // They come although the first has not ended.
    assert_eq!(ran.iter().take(100).count(), 100);
    let stats = timer.stats();
    assert_eq!(stats.ran, 101);
    assert!(stats.running >= 1);
    drop(finish);
}

/// Five tasks of one tick, and an executor with room for two.
fn overloaded(overload: Overload) -> (ManualHost, Arc<Desk>, Journal<u32>) {
    let desk = Desk::with_room(2);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .overload(overload)
        .manual(ManualClock::new());
    let journal = Journal::new();
    for number in 0..5 {
        let task = journal.writes(number);
        host.timer().schedule(MS, task).unwrap();
    }
    host.advance(MS);
    (host, desk, journal)
}

// EXP-3
#[test]
fn the_host_may_run_what_the_executor_has_no_room_for() {
    let (host, desk, journal) = overloaded(Overload::RunInline);
    assert_eq!(host.timer().stats().overloaded, 3);
    assert_eq!(host.timer().stats().ran, 3);
    desk.run_all();
    // The work that is taken first runs what is due first.
    assert_eq!(journal.take(), [0, 1, 2, 3, 4]);
    let stats = host.timer().stats();
    assert_eq!((stats.ran, stats.returned, stats.waiting), (5, 0, 0));
}

// EXP-3, EXP-8
#[test]
fn the_executor_may_be_asked_again_later() {
    let (mut host, desk, journal) = overloaded(Overload::RetryAfter(10 * MS));
    assert_eq!(desk.taken(), 2);
    assert_eq!(host.next_wake(), Some(Instant::ZERO + 11 * MS));
    host.timer().schedule(MS, journal.writes(5)).unwrap();
    desk.set_room(3);
    host.advance(9 * MS);
    assert_eq!(desk.taken(), 2, "not before");
    host.advance(MS);
    assert_eq!(desk.taken(), 5);
    desk.set_room(1);
    host.advance(10 * MS);
    desk.run_all();
    assert_eq!(
        journal.take(),
        [0, 1, 2, 3, 4, 5],
        "what was refused stays first"
    );
    let stats = host.timer().stats();
    assert_eq!((stats.ran, stats.returned, stats.overloaded), (6, 0, 2));
    assert_eq!(stats.lateness_max, 20 * MS, "waiting counts as late");
    assert_eq!(host.next_wake(), None);
}

// EXP-3
#[test]
fn what_the_executor_has_no_room_for_may_be_handed_back() {
    let (sender, dead_letters) = mpsc::channel();
    let overload = Overload::hand_back(move |task| sender.send(task).unwrap());
    let (host, desk, journal) = overloaded(overload);
    let refused: Vec<Task> = dead_letters.try_iter().collect();
    assert_eq!(refused.len(), 3);
    assert!(
        refused
            .iter()
            .all(|task| task.deadline() == Instant::ZERO + MS)
    );
    desk.run_all();
    refused.into_iter().for_each(Task::run);
    let mut ran = journal.take();
    ran.sort_unstable();
    assert_eq!(ran, [0, 1, 2, 3, 4], "each once");
    let stats = host.timer().stats();
    assert_eq!((stats.ran, stats.returned, stats.overloaded), (2, 3, 3));
}

// EXP-3
#[test]
fn a_receiver_of_refused_tasks_that_panics_is_logged_and_harms_nobody() {
    let log = log();
    let mut host = Timer::builder()
        .thread_name("careless receiver")
        .executor(Desk::with_room(0))
        .overload(Overload::hand_back(|_| panic!("on purpose")))
        .manual(ManualClock::new());
    for _ in 0..3 {
        host.timer().schedule(MS, || ()).unwrap();
    }
    host.advance(MS);
    assert_eq!(host.timer().stats().returned, 3);
    assert_eq!(
        log.with(&["overload handler", "careless receiver"]).len(),
        3
    );
}

// EXP-3
#[test]
fn work_that_an_executor_loses_is_counted_and_logged() {
    let log = log();
    let desk = Desk::with_room(usize::MAX);
    let mut host = Timer::builder()
        .thread_name("loser")
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    for _ in 0..3 {
        host.timer().schedule(MS, || ()).unwrap();
    }
    host.advance(MS);
    drop(desk.take());
    desk.run_all();
    let stats = host.timer().stats();
    assert_eq!((stats.ran, stats.returned, stats.waiting), (2, 1, 0));
    assert_eq!(log.with(&["dropped a task", "loser"]).len(), 1);
    assert!(host.timer().close(Default::default()).wait().is_complete());
}

// EXP-3
#[test]
fn an_executor_without_room_makes_the_host_neither_spin_nor_wait() {
    let desk = Desk::with_room(0);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .overload(Overload::RetryAfter(SECOND))
        .manual(ManualClock::new());
    for _ in 0..1_000 {
        host.timer().schedule(MS, || ()).unwrap();
    }
    host.advance(60 * SECOND);
    let stats = host.timer().stats();
    assert_eq!((stats.waiting, stats.pending), (1_000, 0));
    assert!(
        (60..=61).contains(&stats.overloaded),
        "{}",
        stats.overloaded
    );
    assert_eq!(host.timer().stop().unfired.len(), 1_000);
}

// EXP-3
#[test]
fn what_is_due_is_taken_out_in_one_turn_even_if_the_executor_takes_nothing() {
    let mut host = Timer::builder()
        .executor(Desk::with_room(0))
        .overload(Overload::RetryAfter(SECOND))
        .manual(ManualClock::new());
    for _ in 0..1_000 {
        host.timer().schedule(MS, || ()).unwrap();
    }
    host.clock().advance(MS);
    assert_eq!(host.run_due(), 0);
    let stats = host.timer().stats();
    assert_eq!((stats.waiting, stats.pending), (1_000, 0));
}

/// Takes nothing, and not politely.
#[derive(Debug)]
struct Grenade(Arc<AtomicUsize>);

impl Executor for Grenade {
    fn execute(&self, _: Work) -> Result<(), Work> {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    }
}

// EXP-4
#[test]
fn an_executor_that_panics_every_time_loses_what_it_was_given_and_ends_no_timer() {
    let log = log();
    let calls = Arc::new(AtomicUsize::new(0));
    let clock = ManualClock::new();
    let timer = Timer::builder()
        .thread_name("undaunted")
        .executor(Grenade(Arc::clone(&calls)))
        .clock(clock.clone())
        .build();
    for _ in 0..20 {
        timer.schedule(HOUR, || ()).unwrap();
    }
    let (sender, goes_on) = mpsc::channel();
    timer.schedule_send(2 * HOUR, (), &sender).unwrap();
    clock.advance(2 * HOUR);
    timer.rouse();
    goes_on.recv().unwrap();
    // The last line is logged when the task has come back.
    let logged = || log.with(&["an executor panicked", "undaunted"]).len();
    while timer.stats().returned < 20 || logged() < 20 {
        std::thread::yield_now();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 20);
    assert_eq!(timer.stats().host_failures, 20);
    assert!(!timer.is_stopped());
    assert_eq!(logged(), 20);
    assert!(timer.stop().is_complete());
}

/// Panics from some moment on.
#[derive(Debug, Clone, Default)]
struct Worn(ManualClock, Arc<AtomicBool>);

impl Clock for Worn {
    fn now(&self) -> Instant {
        assert!(!self.1.load(Ordering::SeqCst), "on purpose");
        self.0.now()
    }

    fn timestamp(&self) -> Timestamp {
        self.0.timestamp()
    }
}

// EXP-4
#[test]
fn a_host_that_fails_begins_again_and_one_that_keeps_failing_gives_up_in_public() {
    let log = log();
    let clock = Worn::default();
    let timer = Timer::builder()
        .thread_name("hopeless")
        .clock(clock.clone())
        .build();
    for _ in 0..20 {
        timer.schedule(HOUR, || ()).unwrap();
    }
    clock.1.store(true, Ordering::SeqCst);
    timer.rouse();
    while !timer.is_stopped() {
        std::thread::yield_now();
    }
    let stopped = timer.stop();
    assert!(stopped.is_complete());
    assert_eq!(stopped.unfired.len(), 20, "what was pending comes back");
    let stats = timer.stats();
    assert_eq!((stats.host_failures, stats.returned), (16, 20));
    assert_eq!(log.with(&["gives up", "hopeless"]).len(), 1);
}

// EXP-6
#[test]
fn a_task_has_given_its_room_back_when_it_runs() {
    fn again(timer: &Timer, left: u32) {
        if left > 0 {
            let next = timer.clone();
            timer.schedule(MS, move || again(&next, left - 1)).unwrap();
            assert!(timer.schedule(MS, || ()).is_err(), "there is room for one");
        }
    }
    let desk = Desk::with_room(usize::MAX);
    for executor in [None, Some(Arc::clone(&desk))] {
        let mut builder = Timer::builder().max_pending(1);
        if let Some(desk) = executor {
            builder = builder.executor(desk);
        }
        let mut host = builder.manual(ManualClock::new());
        again(host.timer(), 100);
        for _ in 0..100 {
            host.advance(MS);
            desk.run_all();
        }
        let stats = host.timer().stats();
        assert_eq!((stats.ran, stats.panicked, stats.pending), (100, 0, 0));
    }
}

// EXP-7, HIE-7
#[test]
fn a_tick_may_be_taken_out_in_parts() {
    for layout in layouts() {
        let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, layout);
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        for number in 0..10 {
            driver.schedule(at(0), at(100), number);
        }
        driver.schedule(at(0), at(200), 10);
        for number in 0..4 {
            assert_eq!(driver.expire(at(500)).unwrap().value, number);
        }
        assert_eq!(driver.len(), 7);
        assert!(driver.next_wake() <= Some(at(500)));
        // Whatever comes in between.
        driver.schedule(at(500), at(150), 11);
        driver.schedule(at(500), at(900), 12);
        let rest = std::iter::from_fn(|| driver.expire(at(500)).map(|fired| fired.value));
        let rest: Vec<_> = rest.collect();
        assert_eq!(rest, [4, 5, 6, 7, 8, 9, 11, 10]);
    }
}

// EXP-9
#[test]
fn a_hundred_thousand_of_one_tick_run_in_that_tick() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        for _ in 0..100_000 {
            host.timer().schedule(HOUR, || ()).unwrap();
        }
        assert_eq!(host.advance(HOUR), 100_000);
        assert_eq!(host.timer().stats().lateness_max, Duration::ZERO);
    }
}

// EXP-9
#[test]
fn a_hundred_thousand_of_one_tick_all_get_through_the_default_pool() {
    let timer = Timer::new();
    let (sender, ran) = mpsc::channel();
    let deadline = timer.now() + 50 * MS;
    for _ in 0..100_000 {
        let sender = sender.clone();
        let task = move || sender.send(()).unwrap();
        timer.schedule_at(deadline, task).unwrap();
    }
    assert_eq!(ran.iter().take(100_000).count(), 100_000);
    timer.stop();
    let stats = timer.stats();
    assert_eq!(
        (stats.added, stats.ran, stats.returned),
        (100_000, 100_000, 0)
    );
}

// EXP-10
#[test]
fn a_task_may_stop_its_timer_under_those_of_its_own_tick() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let journal = Journal::new();
        let timer = host.timer().clone();
        timer.schedule(MS, journal.writes(0)).unwrap();
        let (own, back) = (timer.clone(), journal.clone());
        let stopper = move || {
            for task in own.stop().unfired {
                back.write(100);
                task.run();
            }
        };
        timer.schedule(MS, stopper).unwrap();
        for number in 1..=3 {
            timer.schedule(MS, journal.writes(number)).unwrap();
        }
        assert_eq!(
            host.advance(SECOND),
            2,
            "those before, and the one that stops"
        );
        assert_eq!(journal.take(), [0, 100, 1, 100, 2, 100, 3]);
    }
}

// EXP-11
#[test]
fn a_handle_prints_what_people_want_to_know() {
    let mut host = ManualHost::new();
    let timeout = host.timer().schedule(3 * SECOND, || ()).unwrap();
    host.advance(SECOND);
    let text = format!("{timeout:?}");
    for part in ["remaining: 2s", "is_pending: true", "is_cancelled: false"] {
        assert!(text.contains(part), "{text}");
    }
    host.advance(HOUR);
    let text = format!("{timeout:?}");
    for part in ["remaining: 0ns", "is_pending: false", "is_cancelled: false"] {
        assert!(text.contains(part), "{text}");
    }
}
