//! LIF: how a timer begins and how it ends.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use countwheel::{ManualClock, ManualHost, ScheduleError, Stop, Task, Timer, TimerStartError};

use super::harness::{Hosted, log};
use crate::support::{Desk, HOUR, Journal, MS, Presence, SECOND};

// LIF-1
#[test]
fn a_timer_is_new_then_runs_then_has_stopped_and_never_goes_back() {
    let timer = Timer::new();
    assert!(!timer.is_stopped());
    for _ in 0..3 {
        timer.start().unwrap();
    }
    assert!(!timer.is_stopped());
    timer.stop();
    assert!(timer.is_stopped());
    assert!(matches!(timer.start(), Err(TimerStartError::Closed)));
    assert!(timer.is_stopped());
    assert!(matches!(
        timer.schedule(MS, || ()),
        Err(ScheduleError::Closed(_))
    ));
    // Whether it was ever started makes no difference, nor does who hosts it.
    let idle = Timer::new();
    idle.stop();
    assert!(matches!(idle.start(), Err(TimerStartError::Closed)));
    let host = ManualHost::new();
    host.timer().start().unwrap();
    host.timer().stop();
    assert!(matches!(host.timer().start(), Err(TimerStartError::Closed)));
}

// LIF-3
#[test]
fn a_task_may_stop_the_thread_it_runs_on() {
    let timer = Timer::builder().inline().build();
    let (sender, stopped) = mpsc::channel();
    timer.schedule(HOUR, || ()).unwrap();
    let own = timer.clone();
    let task = move || {
        let end = own.stop();
        sender.send((end.unfired.len(), end.is_complete())).unwrap();
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    assert_eq!(stopped.recv(), Ok((1, true)));
    assert!(timer.stop().is_complete());
}

// LIF-3
#[test]
fn a_task_may_stop_a_timer_moved_by_hand() {
    let mut host = ManualHost::new();
    let (sender, stopped) = mpsc::channel();
    host.timer().schedule(HOUR, || ()).unwrap();
    let own = host.timer().clone();
    let task = move || {
        let end = own.stop();
        sender.send((end.unfired.len(), end.is_complete())).unwrap();
    };
    host.timer().schedule(MS, task).unwrap();
    assert_eq!(host.advance(MS), 1);
    assert_eq!(stopped.recv(), Ok((1, true)));
}

// LIF-3
#[test]
fn a_task_may_stop_the_host_future_it_runs_in() {
    let mut hosted = Hosted::new(Timer::builder());
    let journal = Journal::new();
    hosted.timer.schedule(HOUR, || ()).unwrap();
    let (own, answers) = (hosted.timer.clone(), journal.clone());
    let task = move || {
        // With patience for nothing: a wait would never end.
        let end = own.close(Stop::HandBack).wait_for(Duration::ZERO);
        answers.write((end.unfired.len(), end.is_complete()));
    };
    hosted.timer.schedule(MS, task).unwrap();
    hosted.advance(MS);
    assert_eq!(journal.take(), [(1, true)]);
    assert!(!hosted.settle(), "the host has ended");
}

// LIF-3, LIF-4
#[test]
fn two_tasks_may_stop_their_timer_at_the_same_time() {
    let timer = Timer::new();
    let both_run = Arc::new(Barrier::new(2));
    let (sender, ends) = mpsc::channel();
    for _ in 0..2 {
        let (own, both_run, sender) = (timer.clone(), Arc::clone(&both_run), sender.clone());
        let task = move || {
            both_run.wait();
            let stopping = own.close(Stop::HandBack);
            // Both are in the stop; if one waited for the other, both would wait for ever.
            let end = stopping.wait_for(Duration::from_secs(5));
            sender.send(end.is_complete()).unwrap();
        };
        timer.schedule(Duration::ZERO, task).unwrap();
    }
    assert_eq!([ends.recv(), ends.recv()], [Ok(true), Ok(true)]);
}

// LIF-4
#[test]
fn stopping_again_gives_nothing_back_and_sees_the_same_end() {
    let timer = Timer::new();
    timer.schedule(HOUR, || ()).unwrap();
    let first = timer.stop();
    assert_eq!(first.unfired.len(), 1);
    for stop in [
        Stop::HandBack,
        Stop::Drop,
        Stop::RunNow,
        Stop::WaitUpTo(HOUR),
    ] {
        let again = timer.close(stop).wait();
        assert!(again.unfired.is_empty());
        assert!(again.is_complete());
    }
}

// LIF-4
#[test]
fn a_stop_that_races_with_the_first_task_of_all_neither_hangs_nor_loses_it() {
    for _ in 0..300 {
        let timer = Timer::new();
        let presence = Presence::default();
        let together = Barrier::new(2);
        let (refused, unfired) = thread::scope(|scope| {
            let schedule = scope.spawn(|| {
                let held = presence.clone();
                together.wait();
                timer.schedule(HOUR, || drop(held)).is_err()
            });
            together.wait();
            let unfired = timer.stop().unfired.len();
            (schedule.join().unwrap(), unfired)
        });
        assert_eq!(unfired, usize::from(!refused));
        assert!(presence.is_over());
        let stats = timer.stats();
        assert_eq!(
            (stats.added, stats.refused),
            (u64::from(!refused), u64::from(refused))
        );
        assert_eq!((stats.returned, stats.pending), (stats.added, 0));
    }
}

// LIF-5
#[test]
fn a_stop_with_patience_says_what_still_runs() {
    let timer = Timer::new();
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let task = move || {
        start.send(()).unwrap();
        let _ = finished.recv();
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    started.recv().unwrap();
    let stopped = timer.close(Stop::HandBack).wait_for(Duration::ZERO);
    assert!(!stopped.is_complete());
    assert!(stopped.running[0].name.contains(module_path!()));
    drop(finish);
    assert!(timer.stop().is_complete());
}

// LIF-6
#[test]
fn a_stop_gives_back_what_did_not_run_and_was_not_cancelled_each_once() {
    let host = ManualHost::new();
    let timer = host.timer();
    let journal = Journal::new();
    let timeouts: Vec<_> = (0..100)
        .map(|number| timer.schedule(HOUR, journal.writes(number)).unwrap())
        .collect();
    for timeout in timeouts.iter().step_by(2) {
        assert!(timeout.cancel());
    }
    let given = thread::scope(|scope| {
        let stops: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| timer.stop().unfired))
            .collect();
        let given = stops.into_iter().map(|stop| stop.join().unwrap());
        given.flatten().collect::<Vec<Task>>()
    });
    assert_eq!(given.len(), 50);
    given.into_iter().for_each(Task::run);
    let mut ran = journal.take();
    ran.sort_unstable();
    assert!(
        ran.into_iter()
            .eq((0..100).filter(|number| number % 2 == 1))
    );
}

// LIF-6
#[test]
fn what_waits_for_an_executor_comes_back_first() {
    let desk = Desk::with_room(1);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    let mut host = builder.manual(ManualClock::new());
    let journal = Journal::new();
    for millis in [1, 2, 3, 1_000] {
        let task = journal.writes(millis);
        host.timer()
            .schedule(Duration::from_millis(millis), task)
            .unwrap();
    }
    host.advance(10 * MS);
    let unfired = host.timer().stop().unfired;
    desk.run_all();
    assert_eq!(
        journal.take(),
        [],
        "what the executor holds finds nothing to run"
    );
    unfired.into_iter().for_each(Task::run);
    assert_eq!(journal.take(), [1, 2, 3, 1_000]);
    let stats = host.timer().stats();
    assert_eq!((stats.returned, stats.waiting, stats.pending), (4, 0, 0));
}

// LIF-7, LIF-11
#[test]
fn what_a_stopped_timer_refuses_is_counted_apart_and_never_kept() {
    let mut host = ManualHost::new();
    host.timer().stop();
    let presence = Presence::default();
    for delay in [Duration::ZERO, MS, HOUR, Duration::MAX] {
        let held = presence.clone();
        let refused = host.timer().schedule(delay, || drop(held));
        assert!(matches!(refused, Err(ScheduleError::Closed(_))));
    }
    assert!(presence.is_over());
    let stats = host.timer().stats();
    assert_eq!((stats.added, stats.pending, stats.refused), (0, 0, 4));
    assert_eq!(host.advance(2 * HOUR), 0);
}

// LIF-8
#[test]
fn a_task_that_repeats_itself_sees_the_stop() {
    fn again(timer: &Timer) {
        let next = timer.clone();
        match timer.schedule(Duration::ZERO, move || again(&next)) {
            Ok(_) => {}
            Err(ScheduleError::Closed(_)) => assert!(timer.is_stopped()),
            Err(error) => panic!("{error}"),
        }
    }
    let timer = Timer::new();
    again(&timer);
    while timer.stats().ran < 100 {
        thread::yield_now();
    }
    let stopped = timer.stop();
    assert!(stopped.is_complete());
    let stats = timer.stats();
    assert_eq!(stats.added, stats.ran + stats.returned);
    assert_eq!(stats.panicked, 0);
}

// LIF-10
#[test]
fn each_way_to_stop_does_with_what_is_pending_as_it_says() {
    for (stop, ran, returned) in [
        (Stop::HandBack, 0, 3),
        (Stop::Drop, 0, 3),
        (Stop::RunNow, 3, 0),
        (Stop::WaitUpTo(2 * SECOND), 2, 1),
    ] {
        let mut hosted = Hosted::new(Timer::builder());
        let presence = Presence::default();
        for seconds in 1..=3 {
            let held = presence.clone();
            let delay = Duration::from_secs(seconds);
            hosted.timer.schedule(delay, || drop(held)).unwrap();
        }
        let stopping = hosted.timer.close(stop);
        assert!(hosted.timer.schedule(MS, || ()).is_err());
        hosted.advance(2 * SECOND);
        assert!(!hosted.settle(), "{stop:?}: the host has ended");
        let stopped = stopping.wait();
        assert!(stopped.is_complete());
        let given = if stop == Stop::Drop { 0 } else { returned };
        assert_eq!(stopped.unfired.len(), given, "{stop:?}");
        drop(stopped);
        assert!(presence.is_over());
        let stats = hosted.timer.stats();
        let expected = (ran, u64::try_from(returned).unwrap());
        assert_eq!((stats.ran, stats.returned), expected, "{stop:?}");
    }
}

// LIF-10
#[test]
fn a_later_stop_may_be_harsher() {
    let mut hosted = Hosted::new(Timer::builder());
    hosted.timer.schedule(HOUR, || ()).unwrap();
    let gentle = hosted.timer.close(Stop::WaitUpTo(Duration::MAX));
    hosted.advance(SECOND);
    assert!(hosted.settle(), "it waits");
    let harsh = hosted.timer.close(Stop::HandBack);
    hosted.settle();
    assert_eq!(harsh.wait().unfired.len(), 1);
    assert!(gentle.wait().unfired.is_empty());
}

// LIF-10
#[test]
fn a_timer_without_a_host_ends_whatever_the_stop() {
    for stop in [
        Stop::HandBack,
        Stop::Drop,
        Stop::RunNow,
        Stop::WaitUpTo(HOUR),
    ] {
        let mut hosted = Hosted::new(Timer::builder());
        let journal = Journal::new();
        hosted.timer.schedule(HOUR, journal.writes("ran")).unwrap();
        hosted.settle();
        hosted.drop_host();
        assert!(hosted.timer.is_stopped());
        // With patience for nothing: a wait would never end.
        let stopped = hosted.timer.close(stop).wait_for(Duration::ZERO);
        assert!(stopped.is_complete(), "{stop:?}");
        let stats = hosted.timer.stats();
        assert_eq!(stats.pending + stats.waiting, 0, "{stop:?}");
        assert_eq!(stats.ran + stats.returned, 1, "{stop:?}");
    }
}

// LIF-10
#[test]
fn a_timer_moved_by_hand_that_is_to_run_all_now_does_not_wait_for_itself() {
    let host = ManualHost::new();
    let journal = Journal::new();
    host.timer().schedule(HOUR, journal.writes("ran")).unwrap();
    // With patience for nothing: a wait would never end.
    let stopped = host.timer().close(Stop::RunNow).wait_for(Duration::ZERO);
    assert!(stopped.is_complete());
    assert_eq!(journal.take(), ["ran"]);
}

// LIF-12
#[test]
fn a_timer_that_is_dropped_drops_what_is_pending() {
    let host = ManualHost::new();
    let presence = Presence::default();
    let held = presence.clone();
    let timeout = host.timer().schedule(HOUR, || drop(held)).unwrap();
    drop(host);
    assert!(presence.is_over());
    assert!(!timeout.is_pending() && !timeout.is_cancelled() && !timeout.is_expired());
    assert!(timeout.is_returned());
}

// LIF-12
#[test]
fn dropping_may_wait_for_what_runs() {
    let journal = Journal::new();
    let timer = Timer::builder().join_on_drop(true).build();
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let ends = journal.clone();
    let task = move || {
        start.send(()).unwrap();
        let _ = finished.recv();
        ends.write("task");
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    started.recv().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(timer);
            journal.write("timer");
        });
        drop(finish);
    });
    assert_eq!(journal.take(), ["task", "timer"]);
}

// LIF-13
#[test]
fn many_calls_wake_the_host_once() {
    let mut hosted = Hosted::new(Timer::builder());
    hosted.timer.schedule(HOUR, || ()).unwrap();
    hosted.settle();
    for millis in (1..=1_000).rev() {
        let delay = Duration::from_millis(millis);
        hosted.timer.schedule(delay, || ()).unwrap();
    }
    for _ in 0..1_000 {
        hosted.timer.rouse();
    }
    hosted.poll();
    assert_eq!(hosted.naps().len(), 2, "one for the hour, one for the next");
    assert_eq!(hosted.naps()[1], MS);
}

thread_local! {
    static AT_THE_END_OF_THE_THREAD: RefCell<Option<mpsc::Sender<()>>> =
        const { RefCell::new(None) };
}

// LIF-14
#[test]
fn a_timer_that_is_gone_leaves_no_thread() {
    for inline in [false, true] {
        let builder = Timer::builder();
        let timer = if inline {
            builder.inline().build()
        } else {
            builder.build()
        };
        let (sender, ended) = mpsc::channel::<()>();
        for _ in 0..10 {
            let sender = sender.clone();
            let task = move || AT_THE_END_OF_THE_THREAD.set(Some(sender));
            timer.schedule(Duration::ZERO, task).unwrap();
        }
        drop(sender);
        while timer.stats().ran < 10 {
            thread::yield_now();
        }
        timer.stop();
        drop(timer);
        assert!(ended.recv().is_err(), "each thread has dropped its sender");
    }
}

// LIF-15
#[test]
fn who_may_not_block_awaits_the_end() {
    let timer = Timer::new();
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let task = move || {
        start.send(()).unwrap();
        let _ = finished.recv();
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    started.recv().unwrap();

    let mut stopping = pin!(timer.close(Stop::HandBack));
    let mut context = Context::from_waker(Waker::noop());
    assert!(stopping.as_mut().poll(&mut context).is_pending());
    drop(finish);
    let stopped = loop {
        match stopping.as_mut().poll(&mut context) {
            Poll::Ready(stopped) => break stopped,
            Poll::Pending => thread::yield_now(),
        }
    };
    assert!(stopped.is_complete());
    assert_eq!(stopped.unfired.len(), 1);
}

// LIF-15
#[test]
fn a_runtime_with_one_thread_starts_uses_and_stops_a_timer_without_blocking() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        for hosted in [false, true] {
            let timer = if hosted {
                let (timer, host) = Timer::builder().build_hosted(tokio::time::sleep);
                tokio::spawn(host);
                timer
            } else {
                Timer::new()
            };
            let (sender, ran) = tokio::sync::oneshot::channel();
            timer.schedule(HOUR, || ()).unwrap();
            let task = move || sender.send("ran").unwrap();
            timer.schedule(MS, task).unwrap();
            assert_eq!(ran.await, Ok("ran"));
            let stopped = timer.close(Stop::HandBack).await;
            assert!(stopped.is_complete());
            assert_eq!(stopped.unfired.len(), 1);
        }
    });
}

// LIF-15
#[test]
fn a_host_that_is_dropped_closes_its_timer_and_says_so() {
    let log = log();
    let mut hosted = Hosted::new(Timer::builder().thread_name("orphan"));
    hosted.timer.schedule(HOUR, || ()).unwrap();
    hosted.settle();
    hosted.drop_host();
    assert!(hosted.timer.schedule(MS, || ()).is_err());
    assert_eq!(
        log.with(&["host of a timer was dropped", "orphan"]).len(),
        1
    );
    assert_eq!(hosted.timer.stop().unfired.len(), 1);
}
