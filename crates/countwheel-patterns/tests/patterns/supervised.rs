//! Supervised tasks: 2.6 (TimedSupervisorTask), OBS-6, CAN-11, defects 33 and 36, section 5 row 11.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use countwheel::{Instant, ManualClock, ManualHost, Stop, Timer};
use countwheel_patterns::{
    AfterTrouble, RunEnd, StartError, StopSignal, Supervised, SupervisedBuilder, SupervisedOutcome,
    SupervisedStats,
};

use crate::support::{Desk, Journal, MS, Presence, SECOND};

fn desk_host(room: usize) -> (ManualHost, Arc<Desk>) {
    let desk = Desk::with_room(room);
    let host = Timer::builder()
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    (host, desk)
}

/// success, timeouts, rejected, failed
fn counts(task: &Supervised) -> (u64, u64, u64, u64) {
    let stats = task.stats();
    adds_up(stats);
    (stats.success, stats.timeouts, stats.rejected, stats.failed)
}

fn adds_up(stats: SupervisedStats) {
    let ends = stats.success + stats.timeouts + stats.rejected + stats.failed;
    assert_eq!(
        stats.due,
        ends + stats.abandoned + stats.in_flight,
        "{stats:?}"
    );
    assert!(stats.panicked <= stats.failed && stats.in_flight <= 1);
    assert!(stats.overdue + stats.late <= stats.timeouts + stats.abandoned);
}

/// What a run is to do: known before it begins.
#[derive(Clone, Copy)]
enum Does {
    Well,
    Fails,
    Panics,
    Hangs,
}

/// A task whose runs are futures that do as they are told.
fn doing(host: &ManualHost, builder: SupervisedBuilder) -> (Supervised, Arc<Mutex<Does>>) {
    let told = Arc::new(Mutex::new(Does::Well));
    let does = Arc::clone(&told);
    let task = builder.start_async(host.timer(), move || {
        let does = *does.lock().unwrap();
        async move {
            match does {
                Does::Well => Ok(()),
                Does::Fails => Err("refused"),
                Does::Panics => panic!("as told"),
                Does::Hangs => pending().await,
            }
        }
    });
    (task.unwrap(), told)
}

/// Runs what the desk has first on a thread of its own.
fn run_apart(desk: &Desk) -> JoinHandle<()> {
    let work = desk.take().unwrap();
    thread::spawn(move || work.run())
}

// ---- the table of 2.6 --------------------------------------------------------------------

/// 2.6: ends within timeout: success, delay reset. TimeoutException: min(max, 2 x current).
#[test]
fn the_delay_doubles_at_each_timeout_up_to_the_maximum_and_is_reset_by_a_success() {
    let mut host = ManualHost::new();
    let (task, does) = doing(&host, Supervised::eureka(30 * SECOND, 10));
    assert_eq!(
        task.next_run(),
        Some(Instant::ZERO + 30 * SECOND),
        "the first delay is the timeout"
    );
    host.advance(30 * SECOND);
    assert_eq!(counts(&task), (1, 0, 0, 0));

    *does.lock().unwrap() = Does::Hangs;
    for (number, delay) in (1..).zip([60, 120, 240, 300, 300]) {
        let due = task.next_run().unwrap();
        host.advance(due.saturating_since(host.timer().now()));
        assert_eq!((task.next_run(), task.stats().in_flight), (None, 1));
        host.advance(30 * SECOND - MS);
        assert_eq!(
            counts(&task),
            (1, number - 1, 0, 0),
            "not before the timeout"
        );
        host.advance(MS);
        assert_eq!(counts(&task), (1, number, 0, 0));
        assert_eq!(task.current_delay(), Duration::from_secs(delay));
        let next = host.timer().now() + Duration::from_secs(delay);
        assert_eq!(task.next_run(), Some(next), "counted from the timeout");
    }
    *does.lock().unwrap() = Does::Well;
    host.advance(300 * SECOND);
    assert_eq!(counts(&task), (2, 5, 0, 0));
    assert_eq!(task.current_delay(), 30 * SECOND);
    assert_eq!(
        (task.stats().late, task.stats().overdue),
        (5, 0),
        "futures end when dropped"
    );
}

/// 2.6: task throws: throwables, delay unchanged; or what else was chosen.
#[test]
fn a_failure_leaves_the_delay_as_it_is_or_does_what_was_chosen() {
    for trouble in [AfterTrouble::Keep, AfterTrouble::Grow, AfterTrouble::Reset] {
        for bad in [Does::Fails, Does::Panics] {
            let mut host = ManualHost::new();
            let builder = Supervised::every(10 * SECOND)
                .timeout(SECOND)
                .on_failure(trouble);
            let (task, does) = doing(&host, builder);
            *does.lock().unwrap() = Does::Hangs;
            host.advance(11 * SECOND);
            assert_eq!(task.current_delay(), 20 * SECOND);
            *does.lock().unwrap() = bad;
            host.advance(20 * SECOND);
            let delay = match trouble {
                AfterTrouble::Grow => 40,
                AfterTrouble::Reset => 10,
                _ => 20,
            };
            assert_eq!(
                task.current_delay(),
                Duration::from_secs(delay),
                "{trouble:?}"
            );
            assert_eq!(counts(&task), (0, 1, 0, 1));
            assert_eq!(
                task.stats().panicked,
                u64::from(matches!(bad, Does::Panics))
            );
            *does.lock().unwrap() = Does::Well;
            host.advance(Duration::from_secs(delay));
            assert_eq!(
                (counts(&task), task.current_delay()),
                ((1, 1, 0, 1), 10 * SECOND)
            );
        }
    }
}

/// 2.6: rejected by the pool: rejectedExecutions, the backed-off delay is kept; or what was chosen.
/// Here it is rejected since the run before, which was given up, cannot be interrupted.
#[test]
fn a_run_is_rejected_while_one_that_was_given_up_goes_on() {
    for (trouble, delay) in [
        (AfterTrouble::Keep, 20),
        (AfterTrouble::Grow, 40),
        (AfterTrouble::Reset, 10),
    ] {
        let (mut host, desk) = desk_host(usize::MAX);
        let (release, wait) = mpsc::channel::<()>();
        let (started, start) = mpsc::channel();
        let wait = Mutex::new(wait);
        let going = Arc::new(AtomicU64::new(0));
        let now_going = Arc::clone(&going);
        let task = Supervised::every(10 * SECOND)
            .timeout(SECOND)
            .on_rejection(trouble)
            .start(host.timer(), move |_stop| {
                assert_eq!(now_going.fetch_add(1, Ordering::SeqCst), 0, "never two");
                started.send(()).unwrap();
                wait.lock().unwrap().recv().unwrap();
                now_going.fetch_sub(1, Ordering::SeqCst);
            })
            .unwrap();
        host.advance(10 * SECOND);
        let run = run_apart(&desk);
        start.recv().unwrap();
        host.advance(SECOND);
        assert_eq!(
            (counts(&task), task.current_delay()),
            ((0, 1, 0, 0), 20 * SECOND)
        );
        assert_eq!((task.stats().overdue, task.is_running()), (1, true));

        host.advance(20 * SECOND);
        assert_eq!(counts(&task), (0, 1, 1, 0), "{trouble:?}");
        assert_eq!(
            task.current_delay(),
            Duration::from_secs(delay),
            "{trouble:?}"
        );
        assert_eq!(desk.taken(), 0, "the executor was not even asked");

        release.send(()).unwrap();
        run.join().unwrap();
        let stats = task.stats();
        assert_eq!(
            counts(&task),
            (0, 1, 1, 0),
            "its success comes too late to count"
        );
        assert_eq!((stats.late, stats.overdue), (1, 0));
        assert_eq!(
            task.current_delay(),
            Duration::from_secs(delay),
            "or to change anything"
        );

        // And the next may begin again.
        host.advance(Duration::from_secs(delay));
        let run = run_apart(&desk);
        start.recv().unwrap();
        release.send(()).unwrap();
        run.join().unwrap();
        assert_eq!(
            (counts(&task), task.current_delay()),
            ((1, 1, 1, 0), 10 * SECOND)
        );
    }
}

/// 2.6: rejected by the pool, since it has no room.
#[test]
fn a_run_is_rejected_if_the_executor_has_no_room_for_as_long_as_the_timeout() {
    let (mut host, desk) = desk_host(0);
    let journal = Journal::new();
    let writer = journal.clone();
    let task = Supervised::every(10 * SECOND)
        .timeout(3 * SECOND)
        .start(host.timer(), move |_stop| writer.write(()))
        .unwrap();
    host.advance(13 * SECOND - MS);
    assert_eq!((counts(&task), task.stats().in_flight), ((0, 0, 0, 0), 1));
    host.advance(MS);
    assert_eq!((counts(&task), task.stats().in_flight), ((0, 0, 1, 0), 0));
    assert_eq!(task.current_delay(), 10 * SECOND);

    // There is room again: what was rejected does not begin any more.
    desk.set_room(usize::MAX);
    host.advance(MS);
    desk.run_all();
    assert!(journal.take().is_empty());
    host.advance(10 * SECOND);
    desk.run_all();
    assert_eq!((journal.take().len(), counts(&task)), (1, (1, 0, 1, 0)));

    // And an executor that drops what it took.
    host.advance(10 * SECOND);
    drop(desk.take());
    assert_eq!(counts(&task), (1, 0, 2, 0));
}

#[test]
fn a_run_that_waited_for_a_thread_has_its_whole_timeout_nevertheless() {
    let (mut host, desk) = desk_host(usize::MAX);
    let builder = Supervised::every(10 * SECOND).timeout(3 * SECOND);
    let task = builder.start_async(host.timer(), pending::<()>).unwrap();
    host.advance(12 * SECOND);
    desk.run_all();
    host.advance(3 * SECOND - MS);
    assert_eq!(counts(&task), (0, 0, 0, 0));
    host.advance(MS);
    assert_eq!(counts(&task), (0, 1, 0, 0));
}

/// Defect 33: concurrency above one is possible there after timeouts; here only if asked for.
#[test]
fn as_many_runs_go_on_as_were_asked_for() {
    let (mut host, desk) = desk_host(usize::MAX);
    let (release, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let (started, start) = mpsc::channel();
    let task = Supervised::every(10 * SECOND)
        .timeout(SECOND)
        .growth(1.0)
        .concurrency(2)
        .start(host.timer(), move |stop: StopSignal| {
            started.send(()).unwrap();
            wait.lock().unwrap().recv().unwrap();
            assert!(stop.is_stopped());
        })
        .unwrap();
    let mut runs = vec![];
    for _ in 0..2 {
        host.advance(10 * SECOND);
        runs.push(run_apart(&desk));
        start.recv().unwrap();
        host.advance(SECOND);
    }
    assert_eq!((counts(&task), task.stats().overdue), ((0, 2, 0, 0), 2));
    host.advance(10 * SECOND);
    assert_eq!(counts(&task), (0, 2, 1, 0));
    assert_eq!(task.current_delay(), 10 * SECOND, "a growth of 1 is none");
    assert!(task.cancel() && !task.is_over());
    for _ in 0..2 {
        release.send(()).unwrap();
    }
    for run in runs {
        run.join().unwrap();
    }
    assert!(task.wait());
    assert_eq!((task.stats().late, task.stats().panicked), (2, 0));
}

// ---- being told to stop ------------------------------------------------------------------

/// CAN-11: the run is told at its timeout.
#[test]
fn a_function_is_told_to_stop_at_its_timeout_and_when_the_task_ends() {
    for by_timeout in [true, false] {
        let (mut host, desk) = desk_host(usize::MAX);
        let (sender, signals) = mpsc::channel();
        let task = Supervised::every(SECOND)
            .start(host.timer(), move |stop: StopSignal| {
                sender.send(stop.clone()).unwrap();
                assert!(stop.wait_for(Duration::MAX));
                RunEnd::Done
            })
            .unwrap();
        host.advance(SECOND);
        let run = run_apart(&desk);
        let signal = signals.recv().unwrap();
        assert!(!signal.is_stopped());
        if by_timeout {
            host.advance(SECOND);
        } else {
            assert!(task.cancel());
        }
        run.join().unwrap();
        assert!(signal.is_stopped());
        let stats = task.stats();
        adds_up(stats);
        assert_eq!((stats.success, stats.late), (0, 1));
        assert_eq!(
            (stats.timeouts, stats.abandoned),
            (u64::from(by_timeout), u64::from(!by_timeout))
        );
        assert_eq!(task.is_over(), !by_timeout);
    }
}

/// What a future owns is foreign: it is not dropped on the timer's host, but where tasks run.
#[test]
fn a_future_is_dropped_at_its_timeout_on_the_executor() {
    let (mut host, desk) = desk_host(usize::MAX);
    let presence = Presence::default();
    let own = presence.clone();
    let task = Supervised::every(SECOND)
        .growth(1.0)
        .start_async(host.timer(), move || {
            let own = own.clone();
            async move {
                pending::<()>().await;
                drop(own);
            }
        })
        .unwrap();
    host.advance(SECOND);
    desk.run_all();
    host.advance(MS);
    desk.run_all();
    assert!(task.is_running());
    host.advance(SECOND);
    assert_eq!(
        (task.stats().timeouts, task.stats().overdue),
        (1, 1),
        "it still has to be dropped"
    );
    // The executor does not get to it: to start the next would be a second.
    host.advance(SECOND);
    assert_eq!(counts(&task), (0, 1, 1, 0));
    desk.run_all();
    assert_eq!((task.stats().overdue, task.stats().late), (0, 1));
    assert!(task.cancel() && task.is_over());
    assert!(presence.is_over());
}

/// Defect 33: a scheduler thread is not pinned. One thread for everything is enough.
#[test]
fn nobody_waits_for_a_timeout_on_a_thread() {
    let timer = Timer::builder().inline().build();
    let task = Supervised::every(MS).timeout(3600 * SECOND);
    let task = task.start_async(&timer, pending::<()>).unwrap();
    while !task.is_running() {
        thread::yield_now();
    }
    let (sender, receiver) = mpsc::channel();
    timer
        .schedule(MS, move || sender.send(()).unwrap())
        .unwrap();
    receiver.recv().unwrap();
    assert!(task.cancel() && task.wait());
    timer.stop();
}

// ---- how it ends -------------------------------------------------------------------------

/// 2.6, defect 33: cancel() only unregistered monitors there.
#[test]
fn cancel_ends_the_chain() {
    let mut host = ManualHost::new();
    let (task, _does) = doing(&host, Supervised::every(SECOND));
    host.advance(3 * SECOND);
    assert!(task.cancel() && !task.cancel());
    assert!(task.is_over() && task.wait());
    assert_eq!((host.timer().pending(), task.next_run()), (0, None));
    host.advance(100 * SECOND);
    assert_eq!(counts(&task), (3, 0, 0, 0));

    // While one is queued.
    let (mut host, desk) = desk_host(usize::MAX);
    let (task, _does) = doing(&host, Supervised::every(SECOND));
    host.advance(SECOND);
    assert!(task.cancel() && task.is_over());
    desk.run_all();
    assert_eq!((counts(&task), task.stats().abandoned), ((0, 0, 0, 0), 1));
}

#[test]
fn a_run_may_cancel_its_own_task_and_is_not_waited_for() {
    let mut host = ManualHost::new();
    let handle = Arc::new(Mutex::new(None::<Supervised>));
    let (own, journal) = (Arc::clone(&handle), Journal::new());
    let writer = journal.clone();
    let task = Supervised::every(SECOND).start(host.timer(), move |stop| {
        let task = own.lock().unwrap().clone().unwrap();
        writer.write((task.cancel(), task.wait(), stop.is_stopped()));
    });
    *handle.lock().unwrap() = Some(task.unwrap());
    host.advance(10 * SECOND);
    assert_eq!(journal.take(), [(true, false, true)]);
    let task = handle.lock().unwrap().take().unwrap();
    assert!(task.is_over());
    assert_eq!((task.stats().abandoned, task.stats().late), (1, 1));

    let last = Supervised::every(SECOND);
    let last = last.start(host.timer(), |_| RunEnd::Break).unwrap();
    host.advance(10 * SECOND);
    assert!(last.is_over());
    assert_eq!(counts(&last), (1, 0, 0, 0));
}

/// 2.6 and defect 36: SOFA's copy schedules after the shutdown, which throws.
#[test]
fn it_ends_with_its_timer_and_does_not_keep_it() {
    for stop in [Stop::HandBack, Stop::Drop, Stop::RunNow] {
        for hangs in [true, false] {
            let mut host = ManualHost::new();
            let (task, does) = doing(&host, Supervised::every(10 * SECOND));
            if hangs {
                *does.lock().unwrap() = Does::Hangs;
            }
            host.advance(10 * SECOND);
            assert!(host.timer().close(stop).wait().unfired.is_empty());
            assert!(task.is_over(), "{stop:?}, {hangs}");
            assert_eq!(task.stats().abandoned, u64::from(hangs));
            assert_eq!(Arc::strong_count(&does), 1, "what it owned is gone");
            adds_up(task.stats());
        }
    }
    let timer = Timer::new();
    let hour = 3600 * SECOND;
    let task = Supervised::every(hour)
        .start_async(&timer, || async {})
        .unwrap();
    drop(timer);
    assert!(task.is_over());
}

#[test]
fn a_start_that_is_refused_gives_the_function_back() {
    let host = Timer::builder().max_pending(0).manual(ManualClock::new());
    let every = || Supervised::every(SECOND);
    let full = every().start(host.timer(), |_| ()).unwrap_err();
    assert!(matches!(full, StartError::Full(_)));
    full.into_work()(StopSignal::new());
    for (builder, text) in [
        (Supervised::every(Duration::ZERO), "the period is zero"),
        (every().timeout(Duration::ZERO), "the timeout is zero"),
        (every().concurrency(0), "no run is allowed"),
        (every().growth(0.9), "the delay shrinks"),
        (every().growth(f64::NAN), "the delay shrinks"),
        (every().jitter(2.0), "the jitter is not between 0 and 1"),
    ] {
        let refused = builder.clone().start(host.timer(), |_| ()).unwrap_err();
        assert_eq!(refused.to_string(), text);
        let refused = builder.start_async(host.timer(), || async {}).unwrap_err();
        assert!(matches!(refused, StartError::Invalid { .. }));
    }
    host.timer().stop();
    let closed = every().start_async(host.timer(), || async {}).unwrap_err();
    assert!(matches!(closed, StartError::Closed(_)));
}

// ---- options -----------------------------------------------------------------------------

/// 2.6: max = timeout x bound; 0 is a loop without a pause there, 1 means no back-off.
#[test]
fn the_knobs_are_separate_and_the_bounds_hold() {
    let grown = |builder: SupervisedBuilder| {
        let mut host = ManualHost::new();
        let (task, does) = doing(&host, builder);
        *does.lock().unwrap() = Does::Hangs;
        host.advance(3600 * SECOND);
        (task.stats().timeouts, task.current_delay())
    };
    for bound in [0, 1] {
        let (timeouts, delay) = grown(Supervised::eureka(10 * SECOND, bound));
        assert_eq!((timeouts, delay), (180, 10 * SECOND));
    }
    let every = || Supervised::every(10 * SECOND).timeout(SECOND);
    assert_eq!(grown(every().max_delay(45 * SECOND)).1, 45 * SECOND);
    assert_eq!(
        grown(every().max_delay(SECOND)).1,
        10 * SECOND,
        "never below the period"
    );
    assert_eq!(
        grown(every().growth(1.5).max_delay(20 * SECOND)).1,
        20 * SECOND
    );
    assert_eq!(
        grown(every().growth(f64::INFINITY).max_delay(Duration::MAX)).1,
        Duration::MAX
    );
    assert_eq!(grown(every()).1, 100 * SECOND);
}

#[test]
fn jitter_makes_delays_longer_by_up_to_its_share() {
    let delays = |seed| {
        let mut host = ManualHost::new();
        let (journal, clock) = (Journal::new(), host.clock().clone());
        let writer = journal.clone();
        let _task = Supervised::every(10 * SECOND)
            .jitter(0.2)
            .seed(seed)
            .start(host.timer(), move |_| {
                writer.write(countwheel::Clock::now(&clock));
            })
            .unwrap();
        host.advance(1_000 * SECOND);
        let times = journal.take();
        let pairs = times.windows(2);
        pairs
            .map(|pair| pair[1].saturating_since(pair[0]))
            .collect::<Vec<_>>()
    };
    let some = delays(1);
    assert_eq!(some, delays(1));
    assert_ne!(some, delays(2));
    assert!(
        some.iter()
            .all(|delay| (10 * SECOND..=12 * SECOND + MS).contains(delay))
    );
    assert!(some.iter().any(|delay| *delay > 11 * SECOND));
}

#[test]
fn the_listener_hears_of_every_run_and_may_panic() {
    use SupervisedOutcome::{Failed, Late, Panicked, Success, TimedOut};
    let mut host = ManualHost::new();
    let journal = Journal::new();
    let writer = journal.clone();
    let builder = Supervised::every(10 * SECOND)
        .timeout(SECOND)
        .on_event(move |event| {
            writer.write((event.outcome, event.delay));
            assert_ne!(event.outcome, Failed, "the listener panics");
        });
    let (_task, does) = doing(&host, builder);
    let mut step = |does_now, span| {
        *does.lock().unwrap() = does_now;
        host.advance(span);
        journal.take()
    };
    assert_eq!(step(Does::Well, 10 * SECOND), [(Success, 10 * SECOND)]);
    assert_eq!(step(Does::Fails, 10 * SECOND), [(Failed, 10 * SECOND)]);
    assert_eq!(step(Does::Panics, 10 * SECOND), [(Panicked, 10 * SECOND)]);
    let mut timed_out = step(Does::Hangs, 11 * SECOND);
    timed_out.sort_by_key(|(outcome, _)| *outcome == Late);
    assert_eq!(timed_out, [(TimedOut, 20 * SECOND), (Late, 20 * SECOND)]);
    assert_eq!(step(Does::Well, 20 * SECOND), [(Success, 10 * SECOND)]);

    // What the listener owns is gone with the task, although its handle is not.
    let presence = Presence::default();
    let own = presence.clone();
    let builder = Supervised::every(SECOND).on_event(move |_| assert!(!own.is_over()));
    let (task, _does) = doing(&host, builder);
    host.advance(SECOND);
    assert!(task.cancel() && presence.is_over());
}

// ---- threads -----------------------------------------------------------------------------

/// A success and its timeout race: each run is counted once, and no two go on.
#[test]
fn with_real_threads_each_run_has_one_end_and_none_overlaps() {
    let resolution = countwheel::Resolution::new(Duration::from_micros(10)).unwrap();
    let timer = Timer::builder().resolution(resolution).build();
    let inside = Arc::new(AtomicBool::new(false));
    let overlaps = Arc::new(AtomicBool::new(false));
    let (is_inside, overlapped) = (Arc::clone(&inside), Arc::clone(&overlaps));
    let task = Supervised::every(Duration::from_micros(20))
        .timeout(Duration::from_micros(60))
        .growth(1.0)
        .start(&timer, move |stop: StopSignal| {
            if is_inside.swap(true, Ordering::SeqCst) {
                overlapped.store(true, Ordering::SeqCst);
            }
            let mut spins = 0;
            while !stop.is_stopped() && spins < 200 {
                thread::yield_now();
                spins += 1;
            }
            is_inside.store(false, Ordering::SeqCst);
        })
        .unwrap();
    while task.stats().due < 500 {
        adds_up(task.stats());
        thread::yield_now();
    }
    assert!(task.cancel());
    let due = task.stats().due;
    assert!(task.wait());
    let stats = task.stats();
    adds_up(stats);
    assert_eq!((stats.due, stats.overdue), (due, 0));
    assert!((stats.timeouts..=stats.timeouts + stats.abandoned).contains(&stats.late));
    assert!(!overlaps.load(Ordering::SeqCst));
    timer.stop();
}

#[test]
fn a_run_that_cancels_its_own_async_task_leaves_no_entry() {
    let mut host = ManualHost::new();
    let own = Arc::new(Mutex::new(None::<Supervised>));
    let handle = Arc::clone(&own);
    let task = Supervised::every(SECOND)
        .start_async(host.timer(), move || {
            handle.lock().unwrap().as_ref().unwrap().cancel();
            pending::<()>()
        })
        .unwrap();
    *own.lock().unwrap() = Some(task.clone());
    host.advance(2 * SECOND);
    assert!(task.is_over());
    assert_eq!(host.timer().pending(), 0);
}

#[test]
fn an_executor_without_room_gathers_no_old_runs() {
    let desk = Desk::with_room(0);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let task = Supervised::every(SECOND)
        .max_delay(SECOND)
        .start(host.timer(), |_| ())
        .unwrap();
    host.advance(1_000 * SECOND);
    let waiting = host.timer().stats().waiting;
    assert!(
        waiting < 10,
        "{waiting} runs wait, {} were rejected",
        task.stats().rejected
    );
}

/// What is logged on one thread: every field of warnings and errors.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut log = self.0.lock().unwrap();
        event.record(
            &mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                log.push_str(&format!("{}={value:?} ", field.name()));
            },
        );
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// 2.6: the name that `TimedSupervisorTask` takes first. Two closures of one function had one name.
#[test]
fn the_logs_call_it_by_its_name_or_by_its_function() {
    fn polls(_: StopSignal) {
        panic!("on purpose");
    }
    let logged = |builder: SupervisedBuilder| {
        let log = Log::default();
        let mut host = ManualHost::new();
        builder.start(host.timer(), polls).unwrap();
        tracing::subscriber::with_default(log.clone(), || host.advance(SECOND));
        log.0.lock().unwrap().clone()
    };
    let every = Supervised::every(SECOND);
    let by_function = logged(every.clone());
    assert!(by_function.contains("a run panicked"), "{by_function}");
    assert!(by_function.contains("polls"), "{by_function}");
    let by_name = logged(every.clone().name("heartbeat"));
    assert!(by_name.contains("task=\"heartbeat\""), "{by_name}");
    assert!(!by_name.contains("polls"), "{by_name}");

    let log = Log::default();
    let mut host = ManualHost::new();
    let run = || async { polls(StopSignal::new()) };
    every.name("fetch").start_async(host.timer(), run).unwrap();
    tracing::subscriber::with_default(log.clone(), || host.advance(SECOND));
    let by_name = log.0.lock().unwrap().clone();
    assert!(by_name.contains("task=\"fetch\""), "{by_name}");
}
