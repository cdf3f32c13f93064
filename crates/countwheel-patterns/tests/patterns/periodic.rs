//! Periodic tasks: 2.8 (the chain that recycles itself), DUR-13, LIF-13, defects 33 and 36.

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use countwheel::{
    Instant, ManualClock, ManualHost, MissedTicks, Overload, Stop, Timer, TimerBuilder,
};
use countwheel_patterns::{Periodic, PeriodicBuilder, PeriodicStats, RunEnd, StartError};

use crate::support::{Count, Desk, Journal, MS, Presence, Random, SECOND, block_on};

const ALL: [MissedTicks; 3] = [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip];

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + secs(seconds)
}

fn seconds(instant: Instant) -> u64 {
    instant.as_nanos() / 1_000_000_000
}

/// Starts a task whose runs write down when they begin, and take as long as they are told.
fn written(
    host: &ManualHost,
    builder: PeriodicBuilder,
    mut takes: impl FnMut(u64) -> u64 + Send + 'static,
) -> (Periodic, Journal<u64>) {
    let (journal, clock) = (Journal::new(), host.clock().clone());
    let writer = journal.clone();
    let mut runs = 0;
    let periodic = builder.start(host.timer(), move || {
        runs += 1;
        writer.write(seconds(countwheel::Clock::now(&clock)));
        clock.advance(secs(takes(runs)));
    });
    (periodic.unwrap(), journal)
}

fn desk_timer(
    room: usize,
    with: impl FnOnce(TimerBuilder) -> TimerBuilder,
) -> (ManualHost, Arc<Desk>) {
    let desk = Desk::with_room(room);
    let builder = with(Timer::builder().executor(Arc::clone(&desk)));
    (builder.manual(ManualClock::new()), desk)
}

// ---- rhythm ------------------------------------------------------------------------------

/// DUR-13: both rhythms, and each is explicit.
#[test]
fn a_fixed_rate_counts_from_deadline_to_deadline_and_a_fixed_delay_from_the_end() {
    let mut host = ManualHost::new();
    let (rate, by_rate) = written(&host, Periodic::at_fixed_rate(10 * SECOND), |_| 3);
    host.advance(45 * SECOND);
    assert_eq!(by_rate.take(), [10, 20, 30, 40]);
    rate.cancel();

    let mut host = ManualHost::new();
    let (delay, by_delay) = written(&host, Periodic::with_fixed_delay(10 * SECOND), |_| 3);
    host.advance(45 * SECOND);
    assert_eq!(by_delay.take(), [10, 23, 36]);
    assert_eq!(delay.next_run(), Some(at(49)));
    assert_eq!(delay.stats().skipped, 0);
}

#[test]
fn the_first_run_comes_after_its_own_delay() {
    for (first, times) in [(0, [0, 10, 20]), (25, [25, 35, 45])] {
        let mut host = ManualHost::new();
        let builder = Periodic::at_fixed_rate(10 * SECOND).first_delay(secs(first));
        let (_periodic, journal) = written(&host, builder, |_| 0);
        host.advance(secs(first + 20));
        assert_eq!(journal.take(), times);
    }
    // Never: nothing overflows.
    let mut host = ManualHost::new();
    let builder = Periodic::at_fixed_rate(Duration::MAX).first_delay(Duration::MAX);
    let (never, journal) = written(&host, builder, |_| 0);
    host.advance(1_000_000 * SECOND);
    assert!(journal.take().is_empty() && !never.is_over());
}

/// A run that takes longer than the period does never overlaps itself; the rest is the policy's.
#[test]
fn what_comes_due_during_a_long_run_is_dealt_with_as_told() {
    for (missed, times, skipped) in [
        (MissedTicks::Burst, [20, 45, 45, 50, 60], 0),
        (MissedTicks::Delay, [20, 45, 55, 65, 75], 1),
        (MissedTicks::Skip, [20, 50, 60, 70, 80], 2),
    ] {
        let mut host = ManualHost::new();
        let builder = Periodic::at_fixed_rate(10 * SECOND)
            .first_delay(20 * SECOND)
            .missed_ticks(missed)
            .max_runs(5);
        let (periodic, journal) = written(&host, builder, |run| if run == 1 { 25 } else { 0 });
        host.advance(100 * SECOND);
        assert_eq!(journal.take(), times, "{missed:?}");
        assert_eq!(periodic.stats().skipped, skipped, "{missed:?}");
    }
}

/// The same arithmetic as that of an interval, so the same deadlines after a stall.
#[test]
fn after_a_stall_it_goes_on_as_an_interval_does() {
    for missed in ALL {
        for stalled in [0, 3, 9, 10, 11, 25, 30, 31] {
            let mut host = ManualHost::new();
            let builder = Periodic::at_fixed_rate(10 * SECOND).missed_ticks(missed);
            let (periodic, journal) = written(&host, builder, |_| 0);
            let timer = host.timer().clone();
            let interval = timer.interval_at(at(10), 10 * SECOND).unwrap();
            let mut interval = interval.missed_ticks(missed);
            let waker = Count::new();

            host.clock().advance(secs(10 + stalled));
            host.run_due();
            let mut ticks = vec![];
            for _ in 0..40 {
                let mut tick = Box::pin(interval.tick());
                while waker.poll(&mut tick).is_ready() {
                    ticks.push(seconds(timer.now()));
                    drop(tick);
                    tick = Box::pin(interval.tick());
                }
                drop(tick);
                host.advance(SECOND);
            }
            let mut times = journal.take();
            let count = times.len().min(ticks.len());
            times.truncate(count);
            assert!(count >= 4);
            assert_eq!(times, ticks[..count], "{missed:?} after {stalled} s");
            assert!(!periodic.is_over());
        }
    }
}

#[test]
fn jitter_makes_runs_later_and_leaves_the_rhythm_as_it_is() {
    let times = |seed, missed| {
        let mut host = ManualHost::new();
        let builder = Periodic::at_fixed_rate(100 * SECOND)
            .jitter(0.5)
            .missed_ticks(missed)
            .seed(seed);
        let (periodic, journal) = written(&host, builder, |_| 1);
        host.advance(10_060 * SECOND);
        assert_eq!(periodic.stats().skipped, 0);
        assert!(periodic.stats().lateness_max < 2 * MS, "chance is not late");
        journal.take()
    };
    for missed in ALL {
        let runs = times(1, missed);
        assert_eq!(runs, times(1, missed));
        assert_ne!(runs, times(2, missed));
        assert_eq!(runs.len(), 100);
        for (number, time) in (1..).zip(&runs) {
            assert!(
                (100 * number..=100 * number + 50).contains(time),
                "{missed:?}"
            );
        }
        assert!(runs.iter().any(|time| time % 100 < 5));
        assert!(runs.iter().any(|time| time % 100 > 45));
    }
}

#[test]
fn options_that_make_no_sense_are_refused_and_the_function_comes_back() {
    let host = ManualHost::new();
    let rate = |period| Periodic::at_fixed_rate(period);
    for (builder, text) in [
        (rate(Duration::ZERO), "the period is zero"),
        (
            Periodic::with_fixed_delay(Duration::ZERO),
            "the period is zero",
        ),
        (rate(SECOND).max_runs(0), "no run is allowed"),
        (
            rate(SECOND).jitter(f64::NAN),
            "the jitter is not between 0 and 1",
        ),
        (
            rate(SECOND).jitter(1.1),
            "the jitter is not between 0 and 1",
        ),
        (
            rate(SECOND).jitter(-0.1),
            "the jitter is not between 0 and 1",
        ),
    ] {
        let presence = Presence::default();
        let own = presence.clone();
        let refused = builder
            .clone()
            .start(host.timer(), move || drop(own.clone()))
            .unwrap_err();
        assert_eq!(refused.to_string(), text);
        assert!(!presence.is_over());
        drop(refused.into_work());
        assert!(presence.is_over());
        assert!(builder.start_async(host.timer(), || async {}).is_err());
    }
    assert_eq!(host.timer().stats().added, 0);
}

// ---- how it ends -------------------------------------------------------------------------

/// 2.8: the first handle ends the later cycles as well.
#[test]
fn cancel_ends_the_chain_and_frees_what_the_function_owns() {
    let mut host = ManualHost::new();
    let presence = Presence::default();
    let own = presence.clone();
    let run = move || assert!(!own.is_over());
    let periodic = Periodic::at_fixed_rate(SECOND)
        .start(host.timer(), run)
        .unwrap();
    host.advance(3 * SECOND);
    assert_eq!(periodic.stats().runs, 3);
    assert!(periodic.cancel());
    assert!(presence.is_over() && periodic.is_over() && periodic.wait());
    assert!(!periodic.cancel(), "only one call cancels");
    assert_eq!(periodic.next_run(), None);
    assert_eq!(host.timer().pending(), 0, "nothing stays behind");
    host.advance(100 * SECOND);
    assert_eq!(periodic.stats().runs, 3);
}

#[test]
fn a_run_that_waits_for_the_executor_does_not_begin_after_cancel() {
    let (mut host, desk) = desk_timer(10, |builder| builder);
    let journal = Journal::new();
    let writer = journal.clone();
    let periodic = Periodic::at_fixed_rate(SECOND)
        .start(host.timer(), move || writer.write(()))
        .unwrap();
    host.advance(SECOND);
    assert_eq!((desk.taken(), periodic.next_run()), (1, None));
    assert!(periodic.cancel() && periodic.is_over());
    desk.run_all();
    assert!(journal.take().is_empty());
    assert_eq!(periodic.stats(), PeriodicStats::default());
}

#[test]
fn a_run_may_cancel_its_own_task_and_is_the_last() {
    let mut host = ManualHost::new();
    let handle = Arc::new(OnceLock::<Periodic>::new());
    let (own, presence) = (Arc::clone(&handle), Presence::default());
    let (is_there, waited) = (presence.clone(), Journal::new());
    let writer = waited.clone();
    let run = move || {
        let periodic = own.get().unwrap();
        assert!(periodic.cancel());
        writer.write((periodic.wait(), periodic.is_over(), is_there.is_over()));
    };
    let periodic = Periodic::at_fixed_rate(SECOND)
        .start(host.timer(), run)
        .unwrap();
    handle.set(periodic).unwrap();
    host.advance(10 * SECOND);
    assert_eq!(
        waited.take(),
        [(false, false, false)],
        "it does not wait for itself"
    );
    let periodic = handle.get().unwrap();
    assert!(periodic.is_over() && presence.is_over());
    assert_eq!((periodic.stats().runs, periodic.stats().panicked), (1, 0));
}

#[test]
fn it_ends_by_itself_when_it_says_so_or_has_run_often_enough() {
    let mut host = ManualHost::new();
    let mut left = 4;
    let counted = Periodic::at_fixed_rate(SECOND).start(host.timer(), move || {
        left -= 1;
        if left > 0 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    let counted = counted.unwrap();
    let limited = Periodic::with_fixed_delay(SECOND).max_runs(3);
    let (limited, journal) = written(&host, limited, |_| 0);
    let at_once =
        Periodic::at_fixed_rate(SECOND).start_async(host.timer(), || async { RunEnd::Break });
    let at_once = at_once.unwrap();
    host.advance(100 * SECOND);
    assert_eq!(counted.stats().runs, 4);
    assert_eq!(journal.take(), [1, 2, 3]);
    assert_eq!(at_once.stats().runs, 1);
    assert!(counted.is_over() && limited.is_over() && at_once.is_over());
    assert_eq!(host.timer().pending(), 0);
}

/// Defect 36: a chain does not die of what one run does.
#[test]
fn a_panic_is_counted_and_the_chain_goes_on_unless_told_otherwise() {
    let mut host = ManualHost::new();
    fn panics() {
        panic!("again");
    }
    let beat = || Periodic::at_fixed_rate(SECOND);
    let goes_on = beat().start(host.timer(), panics).unwrap();
    let ends = beat().end_on_panic().start(host.timer(), panics).unwrap();
    let future = beat()
        .start_async(host.timer(), || async { panics() })
        .unwrap();
    let making = || -> std::future::Ready<()> { panic!("before there is a future") };
    let made = beat().start_async(host.timer(), making).unwrap();
    let fails = beat().start(host.timer(), || Err("no")).unwrap();
    host.advance(5 * SECOND);
    for (periodic, runs) in [(&goes_on, 5), (&ends, 1), (&future, 5), (&made, 5)] {
        assert_eq!(
            (periodic.stats().runs, periodic.stats().panicked),
            (runs, runs)
        );
    }
    assert!(ends.is_over() && !goes_on.is_over() && !future.is_over());
    assert_eq!((fails.stats().failed, fails.stats().panicked), (5, 0));
}

/// Defect 36, 2.8: if the pool rejects, the cycle does not end.
#[test]
fn a_run_that_is_dropped_by_the_executor_is_counted_and_the_next_comes() {
    let (mut host, desk) = desk_timer(10, |builder| builder);
    let journal = Journal::new();
    let writer = journal.clone();
    let periodic = Periodic::at_fixed_rate(SECOND)
        .start(host.timer(), move || writer.write(()))
        .unwrap();
    host.advance(SECOND);
    drop(desk.take());
    assert_eq!((periodic.stats().lost, periodic.stats().runs), (1, 0));
    host.advance(SECOND);
    desk.run_all();
    assert_eq!(journal.take().len(), 1);
    assert_eq!((periodic.stats().lost, periodic.stats().runs), (1, 1));
}

#[test]
fn a_run_that_the_timer_hands_back_is_counted_and_the_next_comes() {
    let kept = Arc::new(Mutex::new(vec![]));
    let keeper = Arc::clone(&kept);
    let keep = Overload::hand_back(move |task| keeper.lock().unwrap().push(task));
    let (mut host, desk) = desk_timer(0, |builder| builder.overload(keep));
    let (periodic, journal) = written(&host, Periodic::at_fixed_rate(SECOND), |_| 0);
    host.advance(3 * SECOND);
    let mut tasks = std::mem::take(&mut *kept.lock().unwrap());
    assert_eq!(
        tasks.len(),
        1,
        "as long as somebody has it, it may still run"
    );
    tasks.pop().unwrap().run();
    assert_eq!(journal.take(), [3]);
    host.advance(SECOND);
    drop(std::mem::take(&mut *kept.lock().unwrap()));
    assert_eq!((periodic.stats().runs, periodic.stats().lost), (1, 1));
    desk.set_room(1);
    host.advance(SECOND);
    desk.run_all();
    assert_eq!(periodic.stats().runs, 2);
}

#[test]
fn what_has_been_started_is_never_refused_for_want_of_room() {
    let mut host = Timer::builder().max_pending(2).manual(ManualClock::new());
    let timer = host.timer().clone();
    let others = timer.downgrade();
    let periodic = Periodic::at_fixed_rate(SECOND).start(&timer, move || {
        // Somebody else takes whatever room there is.
        let timer = others.upgrade().unwrap();
        while timer.schedule(100 * SECOND, || {}).is_ok() {}
    });
    let periodic = periodic.unwrap();
    host.advance(5 * SECOND);
    let second = Periodic::at_fixed_rate(SECOND).start(&timer, || ());
    assert!(matches!(second.unwrap_err(), StartError::Full(_)));
    assert_eq!((periodic.stats().runs, periodic.is_over()), (5, false));
}

// ---- handles and timers ------------------------------------------------------------------

#[test]
fn it_goes_on_without_a_handle_and_a_guard_ends_it() {
    let mut host = ManualHost::new();
    let (detached, first) = written(&host, Periodic::at_fixed_rate(SECOND), |_| 0);
    drop(detached);
    let (guarded, second) = written(&host, Periodic::at_fixed_rate(SECOND), |_| 0);
    let guard = guarded.cancel_on_drop();
    host.advance(2 * SECOND);
    drop(guard);
    host.advance(2 * SECOND);
    assert_eq!(first.take(), [1, 2, 3, 4]);
    assert_eq!(second.take(), [1, 2]);
}

#[test]
fn it_does_not_keep_its_timer_alive() {
    let timer = Timer::new();
    let presence = Presence::default();
    let own = presence.clone();
    let hourly = Periodic::at_fixed_rate(3600 * SECOND);
    let periodic = hourly.start(&timer, move || drop(own.clone())).unwrap();
    let weak = timer.downgrade();
    assert!(!periodic.is_over());
    drop(timer);
    assert!(weak.upgrade().is_none());
    assert!(periodic.is_over() && presence.is_over());
    assert!(!periodic.cancel());
}

#[test]
fn no_run_begins_once_the_timer_has_stopped_however_it_did() {
    let stops = [
        Stop::HandBack,
        Stop::Drop,
        Stop::RunNow,
        Stop::WaitUpTo(10 * SECOND),
    ];
    for stop in stops {
        let mut host = ManualHost::new();
        let presence = Presence::default();
        let (own, journal) = (presence.clone(), Journal::new());
        let writer = journal.clone();
        let run = move || {
            assert!(!own.is_over());
            writer.write(());
        };
        let periodic = Periodic::at_fixed_rate(SECOND)
            .start(host.timer(), run)
            .unwrap();
        host.advance(2 * SECOND);
        let stopping = host.timer().close(stop);
        host.advance(20 * SECOND);
        assert!(
            stopping.wait().unfired.is_empty(),
            "{stop:?}: what comes back is no task"
        );
        assert_eq!(journal.take().len(), 2, "{stop:?}");
        assert!(periodic.is_over() && presence.is_over(), "{stop:?}");
    }
}

#[test]
fn a_run_that_a_stop_hands_back_is_the_last_if_it_is_run() {
    let (mut host, _desk) = desk_timer(0, |builder| builder);
    let (periodic, journal) = written(&host, Periodic::at_fixed_rate(SECOND), |_| 0);
    host.advance(SECOND);
    let mut unfired = host.timer().stop().unfired;
    assert_eq!(unfired.len(), 1);
    assert!(
        unfired[0].name().contains("closure"),
        "it has the name of the function"
    );
    unfired.pop().unwrap().run();
    assert!(periodic.is_over());
    assert_eq!(journal.take(), [1]);

    let (mut host, _desk) = desk_timer(0, |builder| builder);
    let (periodic, journal) = written(&host, Periodic::at_fixed_rate(SECOND), |_| 0);
    host.advance(SECOND);
    drop(host.timer().stop());
    assert!(periodic.is_over() && journal.take().is_empty());
}

#[test]
fn a_timer_that_stops_during_a_run_ends_the_task_with_that_run() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let journal = Journal::new();
    let writer = journal.clone();
    let run = move || {
        drop(timer.close(Stop::Drop));
        writer.write(());
    };
    let periodic = Periodic::at_fixed_rate(SECOND)
        .start(host.timer(), run)
        .unwrap();
    host.advance(5 * SECOND);
    assert_eq!(journal.take().len(), 1);
    assert!(periodic.is_over());
    let refused = Periodic::at_fixed_rate(SECOND)
        .start(host.timer(), || ())
        .unwrap_err();
    assert!(matches!(refused, StartError::Closed(_)));
}

// ---- futures -----------------------------------------------------------------------------

#[test]
fn a_future_is_one_run_and_the_next_waits_for_its_end() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let (journal, going) = (Journal::new(), Arc::new(AtomicBool::new(false)));
    let writer = journal.clone();
    let builder = Periodic::at_fixed_rate(10 * SECOND).first_delay(Duration::ZERO);
    let periodic = builder.start_async(host.timer(), move || {
        let (timer, writer, going) = (timer.clone(), writer.clone(), Arc::clone(&going));
        async move {
            assert!(!going.swap(true, Ordering::SeqCst), "one at a time");
            writer.write(seconds(timer.now()));
            timer.sleep(15 * SECOND).await.unwrap();
            going.store(false, Ordering::SeqCst);
        }
    });
    let periodic = periodic.unwrap();
    host.advance(5 * SECOND);
    assert!(periodic.is_running());
    host.advance(45 * SECOND);
    assert_eq!(journal.take(), [0, 20, 40], "10 and 30 are skipped");
    assert_eq!(
        (periodic.stats().skipped, periodic.stats().panicked),
        (2, 0)
    );
    assert!(periodic.cancel() && !periodic.is_over(), "the run goes on");
    let mut ended = periodic.ended();
    assert_eq!(Count::new().poll(&mut ended), Poll::Pending);
    host.advance(5 * SECOND);
    assert!(periodic.is_over());
    assert_eq!(Count::new().poll(&mut ended), Poll::Ready(()));
}

#[test]
fn a_future_without_hope_is_dropped_when_the_timer_stops() {
    let mut host = ManualHost::new();
    let presence = Presence::default();
    let own = presence.clone();
    let periodic = Periodic::at_fixed_rate(SECOND).start_async(host.timer(), move || {
        let own = own.clone();
        async move {
            pending::<()>().await;
            drop(own);
        }
    });
    let periodic = periodic.unwrap();
    host.advance(10 * SECOND);
    assert_eq!(periodic.stats().runs, 1);
    host.timer().stop();
    assert!(periodic.is_over() && presence.is_over());
    assert_eq!(periodic.stats().dropped, 1);
}

// ---- against a model ---------------------------------------------------------------------

/// The plainest fixed rate there is, in whole seconds: when each run begins, and when it was due.
fn modelled(
    period: u64,
    first: u64,
    missed: MissedTicks,
    takes: impl Fn(u64) -> u64,
) -> Vec<(u64, u64)> {
    let (mut due, mut free) = (first, 0);
    let mut runs = vec![];
    for number in 1..=30 {
        let begin = due.max(free);
        runs.push((begin, due));
        free = begin + takes(number);
        due = match missed {
            MissedTicks::Burst => due + period,
            MissedTicks::Delay => begin + period,
            _ => (1..)
                .map(|n| due + n * period)
                .find(|&next| next > free || next >= due + period && free < due + period)
                .unwrap(),
        };
    }
    runs
}

#[test]
fn it_runs_when_the_model_does_and_every_deadline_is_accounted_for() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let missed = ALL[usize::try_from(random.below(3)).unwrap()];
        let period = 1 + random.below(20);
        let first = random.below(30);
        let lengths: Vec<u64> = (0..=30)
            .map(|_| match random.below(3) {
                0 => random.below(3 * period + 1),
                _ => 0,
            })
            .collect();
        let takes = move |number: u64| lengths[usize::try_from(number).unwrap()];
        let model = modelled(period, first, missed, takes.clone());

        let mut host = ManualHost::new();
        let builder = Periodic::at_fixed_rate(secs(period))
            .first_delay(secs(first))
            .missed_ticks(missed)
            .max_runs(30);
        let (periodic, journal) = written(&host, builder, takes);
        while !periodic.is_over() {
            let before = periodic.next_run();
            host.advance(Duration::from_millis(random.below(5_000)));
            if let Some(next) = periodic.next_run()
                && missed != MissedTicks::Delay
            {
                assert!(before.is_none_or(|before| before <= next));
                let stats = periodic.stats();
                let gone = (seconds(next) - first) / period;
                assert_eq!(stats.runs + stats.skipped + stats.lost, gone, "seed {seed}");
            }
        }
        let begins: Vec<u64> = model.iter().map(|(begin, _)| *begin).collect();
        assert_eq!(journal.take(), begins, "seed {seed}, {missed:?}");
        let lateness = model.iter().map(|(begin, due)| begin - due);
        assert_eq!(
            periodic.stats().lateness_max,
            secs(lateness.clone().max().unwrap())
        );
        assert_eq!(periodic.stats().lateness_total, secs(lateness.sum()));
    }
}

/// Whatever happens in whatever order, a run begins only while it may, and all is accounted for.
#[test]
fn no_order_of_events_starts_a_run_too_many() {
    for seed in 0..600 {
        let mut random = Random(seed);
        let (mut host, desk) = desk_timer(usize::MAX, |builder| builder);
        let presence = Presence::default();
        let (own, began) = (presence.clone(), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&began);
        let limit = 1 + random.below(20);
        let periodic = Periodic::at_fixed_rate(SECOND)
            .max_runs(limit)
            .start(host.timer(), move || {
                assert!(!own.is_over());
                match counter.fetch_add(1, Ordering::SeqCst) % 5 {
                    3 => panic!("the fourth"),
                    4 => RunEnd::Failed,
                    _ => RunEnd::Done,
                }
            })
            .unwrap();
        let (mut is_open, mut most) = (true, u64::MAX);
        for _ in 0..40 {
            match random.below(16) {
                0..6 => drop(host.advance(Duration::from_millis(random.below(2_500)))),
                6..12 => desk.run_all(),
                12 | 13 => drop(desk.take()),
                14 if random.below(4) == 0 => {
                    let was_open = is_open && !periodic.is_over();
                    // All runs are at the desk, none goes on, but the last may be over.
                    assert_eq!(periodic.cancel(), was_open, "seed {seed}");
                    is_open = false;
                }
                15 if random.below(4) == 0 => {
                    drop(host.timer().stop());
                    is_open = false;
                }
                _ => {}
            }
            if !is_open {
                most = most.min(began.load(Ordering::SeqCst));
                assert!(periodic.is_over() && presence.is_over(), "seed {seed}");
            }
            let stats = periodic.stats();
            assert_eq!(stats.runs, began.load(Ordering::SeqCst));
            assert!(stats.runs <= limit.min(most), "seed {seed}");
            assert_eq!(stats.panicked, (stats.runs + 1) / 5);
            assert_eq!(stats.failed, stats.runs / 5);
            assert!(stats.runs < limit || periodic.is_over());
        }
    }
}

// ---- threads -----------------------------------------------------------------------------

#[test]
fn no_run_begins_after_cancel_and_none_overlaps_with_real_threads() {
    let timer = Timer::builder()
        .resolution(countwheel::Resolution::new(Duration::from_micros(10)).unwrap())
        .build();
    for round in 0..200_u32 {
        let cancelled = Arc::new(AtomicBool::new(false));
        let inside = Arc::new(AtomicBool::new(false));
        let (is_cancelled, is_inside) = (Arc::clone(&cancelled), Arc::clone(&inside));
        let began = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&began);
        let failed = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&failed);
        let periodic = Periodic::at_fixed_rate(Duration::from_micros(20))
            .missed_ticks(MissedTicks::Burst)
            .first_delay(Duration::ZERO)
            .start(&timer, move || {
                if is_cancelled.load(Ordering::SeqCst) || is_inside.swap(true, Ordering::SeqCst) {
                    fails.store(true, Ordering::SeqCst);
                }
                counter.fetch_add(1, Ordering::SeqCst);
                is_inside.store(false, Ordering::SeqCst);
            })
            .unwrap();
        while began.load(Ordering::SeqCst) < u64::from(round % 5) {
            thread::yield_now();
        }
        assert!(periodic.cancel());
        let runs = periodic.stats().runs;
        // One that had begun may be in its first line still.
        assert!(periodic.wait());
        cancelled.store(true, Ordering::SeqCst);
        thread::yield_now();
        assert!(!failed.load(Ordering::SeqCst), "round {round}");
        assert_eq!(
            (periodic.stats().runs, began.load(Ordering::SeqCst)),
            (runs, runs)
        );
    }
    timer.stop();
}

#[test]
fn wait_blocks_until_the_run_that_goes_on_has_ended() {
    let timer = Timer::new();
    let (started, start) = mpsc::channel();
    let (release, wait) = mpsc::channel::<()>();
    let presence = Presence::default();
    let own = presence.clone();
    let run = move || {
        started.send(()).unwrap();
        let _ = wait.recv();
        drop(own.clone());
    };
    let builder = Periodic::at_fixed_rate(MS).first_delay(Duration::ZERO);
    let periodic = builder.start(&timer, run).unwrap();
    start.recv().unwrap();
    assert!(periodic.is_running());
    assert!(periodic.cancel());
    assert!(
        !periodic.wait_for(MS),
        "it is neither interrupted nor forgotten"
    );
    let waiter = {
        let periodic = periodic.clone();
        thread::spawn(move || periodic.wait())
    };
    let ended = {
        let ended = periodic.ended();
        thread::spawn(move || block_on(ended))
    };
    release.send(()).unwrap();
    assert!(waiter.join().unwrap());
    ended.join().unwrap();
    assert!(
        presence.is_over(),
        "what it owned is gone before anybody learns of its end"
    );
    assert_eq!(periodic.stats().runs, 1);
}
