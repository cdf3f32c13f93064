//! OBS: what can be seen from outside.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel::{Health, Instant, ManualClock, ManualHost, Stop, Timer};
use tracing::Level;

use super::harness::{is_alone_in_its_process, log};
use crate::support::{Desk, HOUR, Journal, MS, SECOND};

// OBS-1
#[test]
fn what_is_pending_is_counted_exactly() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let timeouts: Vec<_> = (1..=10)
        .map(|seconds| timer.schedule(Duration::from_secs(seconds), || ()).unwrap())
        .collect();
    assert_eq!(timer.pending(), 10);
    timeouts[9].cancel();
    assert_eq!(timer.pending(), 9);
    host.advance(4 * SECOND);
    assert_eq!(timer.pending(), 5);
    timer.stop();
    assert_eq!(timer.pending(), 0);
}

// OBS-2
#[test]
fn more_than_64_timers_at_a_time_are_warned_of_once_and_none_is_refused() {
    let this_test = "obs::more_than_64_timers_at_a_time_are_warned_of_once_and_none_is_refused";
    if !is_alone_in_its_process(this_test) {
        return;
    }
    let log = log();
    let many = |number| (0..number).map(|_| Timer::new()).collect::<Vec<_>>();
    let timers = many(65);
    assert_eq!(log.with(&["many timers at a time"]).len(), 1);
    for timer in &timers {
        assert!(timer.schedule(HOUR, || ()).unwrap().cancel());
    }
    drop(timers);
    let _again = many(130);
    assert_eq!(log.with(&["many timers at a time"]).len(), 1);
    assert_eq!(log.with(&["many timers at a time"])[0].level, Level::WARN);
}

// OBS-3
#[test]
fn a_timer_dropped_with_work_pending_is_warned_of_and_no_other() {
    let log = log();
    let timer = |name: &str| Timer::builder().thread_name(name).inline().build();
    let forgotten = timer("forgotten");
    forgotten.schedule(HOUR, || ()).unwrap();
    forgotten.schedule(HOUR, || ()).unwrap();
    drop(forgotten);
    let warned = log.with(&["dropped with work pending", "forgotten"]);
    assert_eq!(warned.len(), 1);
    assert!(warned[0].text.contains("pending=2"), "{}", warned[0].text);

    let stopped = timer("well stopped");
    stopped.schedule(HOUR, || ()).unwrap();
    stopped.stop();
    drop(stopped);
    drop(timer("never used"));
    let cancelled = timer("all cancelled");
    cancelled.schedule(HOUR, || ()).unwrap().cancel();
    drop(cancelled);
    for name in ["well stopped", "never used", "all cancelled"] {
        assert!(log.with(&[name]).is_empty(), "{name}");
    }
}

// OBS-3
#[test]
fn a_timer_dropped_with_expired_work_unstarted_is_warned_of() {
    let log = log();
    let mut host = Timer::builder()
        .thread_name("dropped in a jam")
        .executor(Desk::with_room(0))
        .manual(ManualClock::new());
    host.timer().schedule(MS, || ()).unwrap();
    host.advance(MS);
    assert_eq!(host.timer().stats().waiting, 1);
    drop(host);
    assert_eq!(log.with(&["dropped", "dropped in a jam"]).len(), 1);
}

// OBS-4
#[test]
fn lateness_is_measured_for_every_task() {
    let mut host = ManualHost::new();
    let (timer, clock) = (host.timer().clone(), host.clock().clone());
    for millis in 1..=100 {
        timer
            .schedule(Duration::from_millis(millis), || ())
            .unwrap();
    }
    clock.advance(50 * MS); // a stall: the first is 49 ms late, the fiftieth is not
    host.run_due();
    host.advance(50 * MS);
    let stats = timer.stats();
    assert_eq!(stats.lateness.count(), 100);
    assert_eq!(stats.lateness_max, 49 * MS);
    assert_eq!(stats.lateness.quantile(0.5), Some(Duration::ZERO));
    let p99 = stats.lateness.quantile(0.99).unwrap();
    assert!(p99 >= 48 * MS && p99 < 60 * MS, "{p99:?}");
}

// OBS-4, EXP-3
#[test]
fn waiting_for_an_executor_counts_as_lateness() {
    let desk = Desk::with_room(usize::MAX);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    let mut host = builder.manual(ManualClock::new());
    host.timer().schedule(MS, || ()).unwrap();
    host.advance(SECOND);
    desk.run_all();
    assert_eq!(host.timer().stats().lateness_max, SECOND - MS);
}

// OBS-5
#[test]
fn a_dead_host_shows() {
    let clock = ManualClock::new();
    let (timer, host) = Timer::builder()
        .clock(clock.clone())
        .build_hosted(|_| std::future::pending());
    timer.schedule(SECOND, || ()).unwrap();
    clock.advance(5 * SECOND);
    let snapshot = timer.snapshot();
    assert_eq!(snapshot.overdue, 4 * SECOND);
    assert!(!snapshot.stopped);
    drop(host);
    assert!(timer.snapshot().stopped);
    assert!(timer.schedule(SECOND, || ()).is_err());
}

// OBS-5
#[test]
fn a_timer_whose_host_was_dropped_is_dead_until_its_tasks_are_taken_back() {
    let (timer, host) = Timer::builder().build_hosted(|_| std::future::pending());
    timer.schedule(HOUR, || ()).unwrap();
    assert_eq!(timer.health(SECOND), Health::Fine);
    drop(host);
    assert_eq!(timer.health(SECOND), Health::Dead);
    assert_eq!(timer.stop().unfired.len(), 1);
    assert_eq!(timer.health(SECOND), Health::Fine);
}

// OBS-6, D-5
#[test]
fn a_slow_task_is_counted_named_and_warned_of() {
    let log = log();
    let mut host = Timer::builder()
        .thread_name("slow lane")
        .slow_task_budget(100 * MS)
        .manual(ManualClock::new());
    let timer = host.timer().clone();
    for millis in [100, 101, 150, 120] {
        let clock = host.clock().clone();
        let task = move || clock.advance(Duration::from_millis(millis));
        timer.schedule(MS, task).unwrap();
    }
    host.advance(SECOND);
    let stats = timer.stats();
    assert_eq!(stats.slow, 3, "over the budget, not at it");
    let slowest = stats.slowest.unwrap();
    assert_eq!(slowest.took, 150 * MS);
    let this_function = concat!(
        module_path!(),
        "::a_slow_task_is_counted_named_and_warned_of"
    );
    assert!(slowest.name.contains(this_function), "{}", slowest.name);
    let warned = log.with(&["slow task", "slow lane", this_function]);
    assert_eq!(warned.len(), 3);
    assert!(warned.iter().any(|one| one.text.contains("took=150ms")));
}

// OBS-6
#[test]
fn every_way_in_which_a_task_ends_has_its_counter() {
    let desk = Desk::with_room(4);
    let mut host = Timer::builder()
        .max_pending(8)
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let timer = host.timer().clone();
    for _ in 0..4 {
        timer.schedule(MS, || ()).unwrap();
    }
    timer.schedule(MS, || panic!("on purpose")).unwrap();
    timer.schedule(HOUR, || ()).unwrap().cancel();
    timer.schedule(HOUR, || ()).unwrap().reschedule(2 * HOUR);
    timer.schedule(HOUR, || ()).unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    assert!(timer.schedule(HOUR, || ()).is_err());
    host.advance(MS);
    let stats = timer.stats();
    assert_eq!((stats.pending, stats.waiting, stats.overloaded), (3, 5, 1));
    desk.run_all();
    desk.set_room(1);
    host.advance(MS);
    desk.run_all();
    timer.stop();
    let stats = timer.stats();
    assert_eq!((stats.added, stats.refused, stats.moved), (9, 1, 1));
    assert_eq!((stats.ran, stats.panicked), (5, 1));
    assert_eq!((stats.cancelled, stats.returned), (1, 3));
    assert_eq!((stats.pending, stats.waiting, stats.running), (0, 0, 0));
}

// OBS-8
#[test]
fn a_timer_shows_what_is_pending_what_runs_and_since_when() {
    let mut host = ManualHost::new();
    let (timer, clock) = (host.timer().clone(), host.clock().clone());
    let (sender, snapshots) = mpsc::channel();
    let own = timer.clone();
    let task = move || {
        clock.advance(3 * SECOND);
        sender.send(own.snapshot()).unwrap();
    };
    timer.schedule(SECOND, task).unwrap();
    let other = timer.schedule(HOUR, || ()).unwrap();
    host.advance(SECOND);
    let snapshot = snapshots.recv().unwrap();
    let running = snapshot.running[0];
    assert!(running.name.contains(module_path!()));
    assert_eq!(running.deadline, Instant::ZERO + SECOND);
    assert_eq!(running.since, 3 * SECOND);
    assert_eq!(
        snapshot.shards.iter().map(|one| one.pending).sum::<u64>(),
        1
    );
    assert_eq!(snapshot.now, Instant::ZERO + 4 * SECOND);
    assert_eq!(other.remaining(), HOUR - 4 * SECOND);
    assert_eq!(other.deadline(), Instant::ZERO + HOUR);
}

// OBS-8
#[test]
fn what_was_pending_can_be_read_when_a_timer_stops() {
    let host = ManualHost::new();
    let journal = Journal::new();
    for seconds in [3, 1, 2] {
        let delay = Duration::from_secs(seconds);
        host.timer().schedule(delay, journal.writes(())).unwrap();
    }
    let unfired = host.timer().close(Stop::HandBack).wait().unfired;
    let deadlines = unfired.iter().map(|task| task.deadline().as_nanos());
    let expected = [1_000_000_000, 2_000_000_000, 3_000_000_000];
    assert!(deadlines.eq(expected));
}
