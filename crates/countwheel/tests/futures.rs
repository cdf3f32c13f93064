//! What the futures promise: on a clock moved by hand as far as possible, and on runtimes.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::collections::BTreeSet;
use std::future::{pending, poll_fn, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use countwheel::{
    Elapsed, Instant, Interval, ManualClock, ManualHost, MissedTicks, Sleep, SleepError, Stop,
    TimeoutError, Timer,
};

use support::{Count, HOUR, SECOND, block_on};

const MILLISECOND: Duration = Duration::from_millis(1);
fn ended<T: std::fmt::Debug, E: std::fmt::Debug>(poll: Poll<Result<T, E>>) -> T {
    match poll {
        Poll::Ready(Ok(output)) => output,
        other => panic!("{other:?}"),
    }
}

fn failed<T: std::fmt::Debug>(poll: Poll<Result<T, SleepError>>) -> SleepError {
    match poll {
        Poll::Ready(Err(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap()
}

// Sleeping.

#[test]
fn the_deadline_is_fixed_when_a_sleep_is_made_and_filed_when_it_is_polled() {
    let mut host = ManualHost::new();
    let mut sleep = host.timer().sleep(2 * SECOND);
    let deadline = host.timer().now() + 2 * SECOND;
    host.advance(SECOND);
    assert_eq!((host.timer().pending(), sleep.deadline()), (0, deadline));

    let count = Count::new();
    assert!(count.poll(&mut sleep).is_pending());
    assert_eq!(host.timer().pending(), 1);
    host.advance(SECOND);
    assert_eq!(count.woken(), 1);
    ended(count.poll(&mut sleep));
    assert_eq!(
        (host.timer().now(), host.timer().stats().added),
        (deadline, 1)
    );
}

#[test]
fn a_sleep_ends_at_its_deadline_and_not_a_nanosecond_before() {
    let mut host = ManualHost::new();
    let count = Count::new();
    let mut sleep = host.timer().sleep(5 * MILLISECOND);
    assert!(count.poll(&mut sleep).is_pending());
    host.advance(5 * MILLISECOND - Duration::from_nanos(1));
    assert_eq!(count.woken(), 0);
    assert!(count.poll(&mut sleep).is_pending() && !sleep.is_elapsed());
    host.advance(Duration::from_nanos(1));
    assert_eq!(count.woken(), 1);
    ended(count.poll(&mut sleep));
    assert!(sleep.is_elapsed());
    ended(count.poll(&mut sleep));
}

#[test]
fn a_sleep_without_a_delay_ends_at_once_and_files_nothing() {
    let host = ManualHost::new();
    let count = Count::new();
    ended(count.poll(&mut host.timer().sleep(Duration::ZERO)));
    host.clock().advance(SECOND);
    ended(count.poll(&mut host.timer().sleep_until(Instant::ZERO)));
    assert_eq!(host.timer().stats().added, 0);
}

#[test]
fn the_longest_sleep_ends_when_time_does() {
    let mut host = ManualHost::new();
    let count = Count::new();
    let mut sleep = host.timer().sleep(Duration::MAX);
    assert!(count.poll(&mut sleep).is_pending());
    host.advance(100 * 365 * 24 * HOUR);
    assert_eq!(count.woken(), 0);
    assert!(count.poll(&mut sleep).is_pending());
    host.advance(Duration::MAX);
    ended(count.poll(&mut sleep));
}

#[test]
fn the_waker_of_the_last_poll_is_the_one_that_is_woken() {
    let mut host = ManualHost::new();
    let (first, second) = (Count::new(), Count::new());
    let mut sleep = host.timer().sleep(SECOND);
    for _ in 0..3 {
        assert!(first.poll(&mut sleep).is_pending());
    }
    assert_eq!(Arc::strong_count(&first), 2, "one of its wakers is kept");
    assert!(second.poll(&mut sleep).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "and it is given up at once");
    assert_eq!(host.timer().stats().added, 1);
    host.advance(SECOND);
    assert_eq!((first.woken(), second.woken()), (0, 1));
}

#[test]
fn a_sleep_that_is_dropped_leaves_the_timer_at_once() {
    let host = ManualHost::new();
    let count = Count::new();
    let mut sleeps: Vec<_> = (0..1_000).map(|_| host.timer().sleep(HOUR)).collect();
    for sleep in &mut sleeps {
        assert!(count.poll(sleep).is_pending());
    }
    assert_eq!(host.timer().pending(), 1_000);
    drop(sleeps);
    let stats = host.timer().stats();
    assert_eq!((stats.pending, stats.cancelled), (0, 1_000));
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn a_sleep_may_be_moved_to_sooner_and_to_later() {
    for (before, polled) in [(SECOND, true), (HOUR, true), (SECOND, false), (HOUR, false)] {
        let mut host = ManualHost::new();
        let count = Count::new();
        let mut sleep = host.timer().sleep(before);
        if polled {
            assert!(count.poll(&mut sleep).is_pending());
        }
        let deadline = host.timer().now() + 60 * SECOND;
        sleep.reset(deadline);
        assert_eq!(sleep.deadline(), deadline);
        if !polled {
            assert!(count.poll(&mut sleep).is_pending());
        }
        host.advance(59 * SECOND);
        assert_eq!(count.woken(), 0);
        host.advance(SECOND);
        assert_eq!(count.woken(), 1);
        ended(count.poll(&mut sleep));
        assert_eq!(host.timer().stats().added, 1, "moved, not filed twice");
    }
}

#[test]
fn a_sleep_that_is_moved_to_the_past_ends_now() {
    let mut host = ManualHost::new();
    let count = Count::new();
    host.advance(SECOND);
    let mut sleep = host.timer().sleep(HOUR);
    assert!(count.poll(&mut sleep).is_pending());
    sleep.reset(Instant::ZERO);
    host.run_due();
    assert_eq!(count.woken(), 1);
    ended(count.poll(&mut sleep));
}

#[test]
fn a_sleep_that_has_fired_can_be_moved_before_and_after_it_is_polled() {
    let mut host = ManualHost::new();
    let count = Count::new();
    let mut sleep = host.timer().sleep(SECOND);
    for round in 1..=4 {
        assert!(count.poll(&mut sleep).is_pending());
        host.advance(SECOND);
        assert_eq!(count.woken(), round);
        if round % 2 == 0 {
            ended(count.poll(&mut sleep));
        }
        sleep.reset(host.timer().now() + SECOND);
    }
    assert!(!sleep.is_elapsed());
}

#[test]
fn a_full_timer_takes_no_sleep_until_there_is_room() {
    let mut host = Timer::builder().max_pending(1).manual(ManualClock::new());
    let count = Count::new();
    let mut first = host.timer().sleep(SECOND);
    let mut second = host.timer().sleep(SECOND);
    assert!(count.poll(&mut first).is_pending());
    assert!(matches!(failed(count.poll(&mut second)), SleepError::Full));
    assert!(count.poll(&mut first).is_pending(), "it has its place");
    drop(first);
    assert!(count.poll(&mut second).is_pending());
    host.advance(SECOND);
    ended(count.poll(&mut second));
    assert_eq!(host.timer().stats().refused, 1);
}

#[test]
fn a_stop_wakes_the_sleepers_and_they_learn_of_it() {
    for stop in [
        Stop::HandBack,
        Stop::Drop,
        Stop::RunNow,
        Stop::WaitUpTo(2 * SECOND),
    ] {
        let mut host = ManualHost::new();
        let (soon, late) = (Count::new(), Count::new());
        let mut sleeps = [host.timer().sleep(SECOND), host.timer().sleep(3 * SECOND)];
        assert!(soon.poll(&mut sleeps[0]).is_pending());
        assert!(late.poll(&mut sleeps[1]).is_pending());
        let stopping = host.timer().close(stop);
        if let Stop::WaitUpTo(span) = stop {
            host.advance(SECOND);
            ended(soon.poll(&mut sleeps[0]));
            assert!(late.poll(&mut sleeps[1]).is_pending());
            host.advance(span - SECOND);
        } else {
            host.run_due();
            assert!(matches!(
                failed(soon.poll(&mut sleeps[0])),
                SleepError::Closed
            ));
        }
        assert_eq!((soon.woken(), late.woken()), (1, 1), "{stop:?}");
        assert!(matches!(
            failed(late.poll(&mut sleeps[1])),
            SleepError::Closed
        ));
        assert!(stopping.wait().unfired.is_empty(), "wakers are no tasks");

        let stats = host.timer().stats();
        assert_eq!(stats.added, stats.ran + stats.cancelled + stats.returned);
        sleeps[1].reset(host.timer().now() + SECOND);
        assert!(matches!(
            failed(late.poll(&mut sleeps[1])),
            SleepError::Closed
        ));
    }
}

#[test]
fn on_a_stopped_timer_what_is_due_is_due_and_what_is_not_fails() {
    let host = ManualHost::new();
    let timer = host.timer().clone();
    let mut due = timer.sleep(SECOND);
    let mut overdue = timer.sleep(SECOND);
    let mut early = timer.sleep(HOUR);
    let count = Count::new();
    assert!(count.poll(&mut overdue).is_pending());
    host.clock().advance(SECOND);
    timer.stop();
    ended(count.poll(&mut due));
    ended(count.poll(&mut overdue));
    assert!(matches!(failed(count.poll(&mut early)), SleepError::Closed));
}

#[test]
fn a_timer_lives_as_long_as_its_sleeps() {
    let timer = Timer::new();
    let sleep = timer.sleep(2 * MILLISECOND);
    drop(timer);
    block_on(sleep).unwrap();
}

#[test]
fn a_real_sleep_is_never_early() {
    let timer = Timer::new();
    block_on(async {
        for micros in [0, 1, 300, 1_000, 1_001, 7_500] {
            let sleep = timer.sleep(Duration::from_micros(micros));
            let deadline = sleep.deadline();
            sleep.await.unwrap();
            assert!(timer.now() >= deadline);
        }
    });
}

#[test]
fn a_sleep_may_be_polled_here_and_there_and_dropped_elsewhere() {
    let timer = Timer::new();
    let start = timer.now();
    let mut sleeps: Vec<_> = [20, 3_600_000]
        .map(|millis| timer.sleep(millis * MILLISECOND))
        .into();
    for _ in 0..3 {
        let moved = thread::spawn(|| {
            let count = Count::new();
            for sleep in &mut sleeps {
                // On a slow machine, the first may have come already.
                let _ = count.poll(sleep);
            }
            sleeps
        });
        sleeps = moved.join().unwrap();
    }
    let late = sleeps.pop().unwrap();
    thread::spawn(|| drop(late)).join().unwrap();
    assert_eq!(timer.stats().cancelled, 1);
    block_on(sleeps.pop().unwrap()).unwrap();
    assert!(timer.now() >= start + 20 * MILLISECOND);
}

#[test]
fn futures_may_cross_threads_and_need_no_pin() {
    fn crosses<T: Send + Sync + 'static>() {}
    fn moves<T: Send + Unpin>(_: &T) {}
    crosses::<Sleep>();
    crosses::<Interval>();
    crosses::<SleepError>();
    crosses::<TimeoutError>();
    moves(&Timer::global().sleep(SECOND));
    moves(&countwheel::sleep(SECOND));
    moves(&Timer::global().timeout(SECOND, ready(())));
}

/// Waits for the first of some futures and says which it was, as a set of futures does that
/// has one waker for all.
async fn first_of(sleeps: &mut Vec<(u64, Sleep)>) -> u64 {
    poll_fn(|cx| {
        for (place, (name, sleep)) in sleeps.iter_mut().enumerate() {
            if let Poll::Ready(end) = Pin::new(sleep).poll(cx) {
                end.unwrap();
                let name = *name;
                drop(sleeps.remove(place));
                return Poll::Ready(name);
            }
        }
        Poll::Pending
    })
    .await
}

#[test]
fn many_sleeps_in_one_task_end_in_the_order_of_their_deadlines() {
    let mut host = ManualHost::new();
    let delays = (0..200).map(|number| number * 7_919 % 211 + 1);
    let mut expected: Vec<_> = delays.clone().collect();
    expected.sort_unstable();
    let timer = host.timer().clone();
    let mut all = Box::pin(async move {
        let filed = delays.map(|seconds| (seconds, timer.sleep(Duration::from_secs(seconds))));
        let (mut sleeps, mut order): (Vec<_>, _) = (filed.collect(), Vec::new());
        while !sleeps.is_empty() {
            order.push(first_of(&mut sleeps).await);
        }
        order
    });
    let count = Count::new();
    let mut woken = 0;
    loop {
        match count.poll(&mut all) {
            Poll::Ready(order) => break assert_eq!(order, expected),
            Poll::Pending => {
                while count.woken() == woken {
                    host.advance(SECOND);
                }
                woken = count.woken();
            }
        }
    }
    assert_eq!(host.timer().stats().added, 200);
}

#[test]
fn the_sleep_that_loses_a_race_is_gone() {
    let timer = Timer::new();
    current_thread().block_on(async {
        tokio::select! {
            end = timer.sleep(MILLISECOND) => end.unwrap(),
            _ = timer.sleep(HOUR) => unreachable!(),
        }
    });
    assert!(timer.stop().is_complete()); // and all is counted
    let stats = timer.stats();
    assert_eq!((stats.pending, stats.ran, stats.cancelled), (0, 1, 1));
}

#[test]
fn of_a_hundred_thousand_sleeps_on_four_threads_none_is_early() {
    const SLEEPS: u64 = 100_000;
    let timer = Timer::new();
    let ended = Arc::new(AtomicU64::new(0));
    let runtime = multi_thread();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..SLEEPS)
            .map(|number| {
                let (timer, ended) = (timer.clone(), Arc::clone(&ended));
                tokio::spawn(async move {
                    let sleep = timer.sleep(Duration::from_micros(number * 7_919 % 200_000));
                    let deadline = sleep.deadline();
                    sleep.await.unwrap();
                    assert!(timer.now() >= deadline);
                    ended.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(ended.load(Ordering::Relaxed), SLEEPS);
    assert!(timer.stop().is_complete()); // and all is counted
    let stats = timer.stats();
    assert_eq!(stats.added, stats.ran);
    assert_eq!((stats.pending, stats.cancelled), (0, 0));
}

#[test]
fn every_sleeper_learns_of_a_stop_that_comes_at_any_moment() {
    for round in 0..20 {
        let timer = Timer::new();
        let runtime = multi_thread();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..200)
                .map(|number| {
                    let timer = timer.clone();
                    tokio::spawn(async move {
                        let sleep = timer.sleep(Duration::from_micros(number * 20));
                        let deadline = sleep.deadline();
                        match sleep.await {
                            Ok(()) => assert!(timer.now() >= deadline),
                            Err(SleepError::Closed) => assert!(timer.is_stopped()),
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            timer
                .sleep(round * Duration::from_micros(300))
                .await
                .unwrap();
            let stopped = timer.close(Stop::HandBack).await;
            assert!(stopped.is_complete() && stopped.unfired.is_empty());
            for task in tasks {
                task.await.unwrap();
            }
        });
        let stats = timer.stats();
        assert_eq!(stats.added, stats.ran + stats.cancelled + stats.returned);
    }
}

#[test]
fn a_runtime_of_one_thread_sleeps_and_stops_the_timer_itself() {
    let runtime = current_thread();
    runtime.block_on(async {
        let timer = Timer::new();
        let sleeper = timer.clone();
        let task = tokio::spawn(async move { sleeper.sleep(HOUR).await });
        timer.sleep(2 * MILLISECOND).await.unwrap();
        let (started, start) = mpsc::channel();
        timer
            .schedule(Duration::ZERO, move || started.send(()).unwrap())
            .unwrap();
        timer.schedule(HOUR, || unreachable!()).unwrap();
        tokio::task::yield_now().await;
        start.recv().unwrap();

        let stopped = timer.close(Stop::HandBack).await;
        assert!(stopped.is_complete());
        assert_eq!(stopped.unfired.len(), 1);
        assert!(matches!(task.await.unwrap(), Err(SleepError::Closed)));
    });
}

// Limits.

#[test]
fn the_future_goes_first_and_one_that_is_ready_files_nothing() {
    let host = ManualHost::new();
    let count = Count::new();
    let timer = host.timer();
    for delay in [Duration::ZERO, SECOND, Duration::MAX] {
        assert_eq!(ended(count.poll(&mut timer.timeout(delay, ready(1)))), 1);
    }
    assert_eq!(timer.stats().added, 0);
    let elapsed = count.poll(&mut timer.timeout(Duration::ZERO, pending::<()>()));
    assert!(matches!(elapsed, Poll::Ready(Err(TimeoutError::Elapsed))));
}

#[test]
fn a_future_that_is_late_is_given_up_and_dropped() {
    let mut host = ManualHost::new();
    let count = Count::new();
    let (sender, receiver) = mpsc::channel::<()>();
    let mut limited = host.timer().timeout(
        SECOND,
        Box::pin(async move {
            pending::<()>().await;
            drop(sender);
        }),
    );
    assert!(count.poll(&mut limited).is_pending());
    host.advance(SECOND);
    let end = count.poll(&mut limited);
    assert!(matches!(end, Poll::Ready(Err(TimeoutError::Elapsed))));
    drop(limited);
    assert!(receiver.recv().is_err());
}

#[test]
fn a_future_that_is_in_time_ends_the_limit() {
    let mut host = ManualHost::new();
    let count = Count::new();
    let inner = host.timer().sleep(SECOND);
    let mut limited = host.timer().timeout(2 * SECOND, inner);
    assert!(count.poll(&mut limited).is_pending());
    assert_eq!(host.timer().pending(), 2);
    host.advance(SECOND);
    ended(count.poll(&mut limited)).unwrap();
    drop(limited);
    assert_eq!(host.timer().pending(), 0);
}

#[test]
fn if_both_are_due_the_future_wins() {
    let host = ManualHost::new();
    let count = Count::new();
    let inner = host.timer().sleep(SECOND);
    let mut limited = host.timer().timeout(SECOND, inner);
    host.clock().advance(HOUR);
    ended(count.poll(&mut limited)).unwrap();
}

#[test]
fn a_future_by_reference_outlives_its_limit() {
    let mut host = ManualHost::new();
    let count = Count::new();
    let mut answer = host.timer().sleep(3 * SECOND);
    for _ in 0..2 {
        let mut limited = host.timer().timeout(SECOND, &mut answer);
        assert!(count.poll(&mut limited).is_pending());
        host.advance(SECOND);
        let end = count.poll(&mut limited);
        assert!(matches!(end, Poll::Ready(Err(TimeoutError::Elapsed))));
    }
    host.advance(SECOND);
    ended(count.poll(&mut answer));
}

#[test]
fn a_limit_that_cannot_be_kept_is_an_error_but_not_for_a_future_that_is_ready() {
    let host = ManualHost::new();
    let count = Count::new();
    let mut waiting = host.timer().timeout(SECOND, pending::<()>());
    assert!(count.poll(&mut waiting).is_pending());
    host.timer().stop();
    let closed = |end| {
        matches!(
            end,
            Poll::Ready(Err(TimeoutError::Sleep(SleepError::Closed)))
        )
    };
    assert!(closed(count.poll(&mut waiting)));
    assert!(closed(
        count.poll(&mut host.timer().timeout(SECOND, pending::<()>()))
    ));
    assert_eq!(
        ended(count.poll(&mut host.timer().timeout(SECOND, ready(1)))),
        1
    );
}

// Intervals.

/// Takes as many ticks as there are at once.
fn ticks(interval: &mut Interval) -> Vec<u64> {
    let mut cx = Context::from_waker(Waker::noop());
    std::iter::from_fn(|| match interval.poll_tick(&mut cx) {
        Poll::Ready(tick) => Some(tick.unwrap().as_nanos() / 1_000_000_000),
        Poll::Pending => None,
    })
    .collect()
}

#[test]
fn an_interval_ticks_at_once_and_then_once_a_period() {
    for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
        let mut host = ManualHost::new();
        let mut interval = host.timer().interval(10 * SECOND).unwrap();
        interval = interval.missed_ticks(missed);
        assert_eq!(ticks(&mut interval), [0]);
        for round in 1..100 {
            host.advance(10 * SECOND - Duration::from_nanos(1));
            assert_eq!(ticks(&mut interval), []);
            host.advance(Duration::from_nanos(1));
            assert_eq!(ticks(&mut interval), [round * 10], "{missed:?}");
        }
    }
}

#[test]
fn a_late_interval_goes_on_as_it_was_told() {
    for (missed, at_once, later) in [
        (MissedTicks::Burst, vec![20, 30, 40], [50, 60, 70]),
        (MissedTicks::Delay, vec![20], [55, 65, 75]),
        (MissedTicks::Skip, vec![20], [50, 60, 70]),
    ] {
        let mut host = ManualHost::new();
        let start = Instant::ZERO + 20 * SECOND;
        let interval = host.timer().interval_at(start, 10 * SECOND).unwrap();
        let mut interval = interval.missed_ticks(missed);
        assert_eq!(ticks(&mut interval), []);
        host.advance(45 * SECOND);
        assert_eq!(ticks(&mut interval), at_once);
        let mut seen = Vec::new();
        for _ in 45..75 {
            host.advance(SECOND);
            let now = host.timer().now().as_nanos() / 1_000_000_000;
            for tick in ticks(&mut interval) {
                assert_eq!(tick, now, "each comes when it is due");
                seen.push(tick);
            }
        }
        assert_eq!(seen, later, "{missed:?}");
    }
}

#[test]
fn a_tick_that_nobody_waits_for_any_more_is_not_lost() {
    let mut host = ManualHost::new();
    let mut interval = host
        .timer()
        .interval_at(Instant::ZERO + SECOND, SECOND)
        .unwrap();
    let count = Count::new();
    for _ in 0..3 {
        let mut tick = Box::pin(interval.tick());
        assert!(count.poll(&mut tick).is_pending());
        drop(tick);
        assert_eq!(host.timer().pending(), 1, "it stays filed");
    }
    host.advance(SECOND);
    let due = ended(count.poll(&mut Box::pin(interval.tick())));
    assert_eq!(due, Instant::ZERO + SECOND);
}

#[test]
fn an_interval_may_start_anew() {
    let mut host = ManualHost::new();
    let mut interval = host.timer().interval(10 * SECOND).unwrap();
    assert_eq!(ticks(&mut interval), [0]);
    host.advance(7 * SECOND);
    interval.reset();
    host.advance(3 * SECOND);
    assert_eq!(ticks(&mut interval), []);
    host.advance(7 * SECOND);
    assert_eq!(ticks(&mut interval), [17]);
    interval.reset_at(Instant::ZERO + 20 * SECOND);
    host.advance(13 * SECOND);
    assert_eq!(ticks(&mut interval), [20, 30]);
}

#[test]
fn an_interval_whose_timer_stops_says_so_again_and_again() {
    let host = ManualHost::new();
    let mut interval = host.timer().interval(SECOND).unwrap();
    assert_eq!(ticks(&mut interval), [0]);
    host.timer().stop();
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let error = failed(interval.poll_tick(&mut cx));
        assert!(matches!(error, SleepError::Closed));
    }
}

#[test]
fn a_real_interval_keeps_its_rhythm() {
    let timer = Timer::new();
    block_on(async {
        let mut interval = timer.interval(2 * MILLISECOND).unwrap();
        let first = interval.tick().await.unwrap();
        for number in 1..=10 {
            let due = interval.tick().await.unwrap();
            assert_eq!(due, first + number * (2 * MILLISECOND));
            assert!(timer.now() >= due);
        }
    });
}

// The timer of the process.

#[test]
fn the_process_has_a_timer_for_those_who_need_no_other() {
    block_on(async {
        let start = Timer::global().now();
        countwheel::sleep(2 * MILLISECOND).await;
        assert!(Timer::global().now() >= start + 2 * MILLISECOND);
        assert_eq!(countwheel::timeout(HOUR, ready(1)).await, Ok(1));
        let late = countwheel::timeout(MILLISECOND, pending::<()>()).await;
        assert_eq!(late, Err(Elapsed));
        let mut interval = countwheel::interval(MILLISECOND).unwrap();
        let ticks: BTreeSet<_> = [
            interval.tick().await.unwrap(),
            interval.tick().await.unwrap(),
        ]
        .into();
        assert_eq!(ticks.len(), 2);
    });
    assert!(countwheel::interval(Duration::ZERO).is_err());
}

// Tasks on a tokio runtime.

#[cfg(feature = "tokio")]
mod tokio_executor {
    use std::num::NonZeroUsize;

    use countwheel::{Overload, TokioExecutor};
    use tokio::runtime::Handle;

    use super::*;

    fn limit(limit: usize) -> NonZeroUsize {
        NonZeroUsize::new(limit).unwrap()
    }

    /// Both kinds, on a runtime with one thread for each.
    fn both(work: impl Fn(tokio::runtime::Runtime, fn(Handle, NonZeroUsize) -> TokioExecutor)) {
        for kind in [TokioExecutor::blocking, TokioExecutor::tasks] {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .max_blocking_threads(1)
                .build()
                .unwrap();
            work(runtime, kind);
        }
    }

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        while !is_so() {
            thread::yield_now();
        }
    }

    #[test]
    fn tasks_run_on_the_runtime() {
        both(|runtime, kind| {
            let executor = kind(runtime.handle().clone(), limit(10));
            let timer = Timer::builder().executor(executor.clone()).build();
            let (sender, ran) = mpsc::channel();
            for number in 0..200 {
                let sender = sender.clone();
                let task = move || {
                    drop(Handle::current());
                    sender.send(number).unwrap();
                };
                timer.schedule(MILLISECOND, task).unwrap();
            }
            timer
                .schedule(MILLISECOND, || {
                    std::panic::resume_unwind(Box::new("on purpose"))
                })
                .unwrap();
            drop(sender);
            assert!(ran.iter().eq(0..200), "one thread runs them in order");
            wait_until(|| timer.stats().panicked == 1);
            let stopped = timer.stop();
            assert!(stopped.is_complete());
            wait_until(|| executor.outstanding() == 0);
        });
    }

    #[test]
    fn what_is_more_than_the_limit_is_given_back() {
        both(|runtime, kind| {
            let executor = kind(runtime.handle().clone(), limit(3));
            let (sender, handed_back) = mpsc::channel();
            let timer = Timer::builder()
                .executor(executor.clone())
                .overload(Overload::hand_back(move |task| sender.send(task).unwrap()))
                .build();
            let (release, wait) = mpsc::channel::<()>();
            let (started, start) = mpsc::channel();
            let blocker = move || {
                started.send(()).unwrap();
                assert!(wait.recv().is_err());
            };
            timer.schedule(Duration::ZERO, blocker).unwrap();
            start.recv().unwrap();
            for _ in 0..5 {
                timer.schedule(Duration::ZERO, || ()).unwrap();
            }
            for _ in 0..3 {
                handed_back.recv().unwrap();
            }
            assert_eq!(executor.outstanding(), 3);
            drop(release);
            wait_until(|| executor.outstanding() == 0);
            let stats = timer.stats();
            assert_eq!((stats.ran, stats.returned, stats.overloaded), (3, 3, 3));
            timer.stop();
        });
    }

    #[test]
    fn a_runtime_that_shuts_down_gives_its_places_back_and_what_it_drops_is_returned() {
        both(|runtime, kind| {
            let executor = kind(runtime.handle().clone(), limit(100));
            let timer = Timer::builder().executor(executor.clone()).build();
            let (release, wait) = mpsc::channel::<()>();
            let (started, start) = mpsc::channel();
            let blocker = move || {
                started.send(()).unwrap();
                assert!(wait.recv().is_err());
            };
            timer.schedule(Duration::ZERO, blocker).unwrap();
            start.recv().unwrap();
            for _ in 0..10 {
                timer.schedule(Duration::ZERO, || ()).unwrap();
            }
            wait_until(|| executor.outstanding() == 11);
            runtime.shutdown_background();
            drop(release);
            // It is up to the runtime which of them it still runs.
            wait_until(|| executor.outstanding() == 0);
            wait_until(|| timer.stats().ran + timer.stats().returned == 11);
            let stats = timer.stats();

            // What comes later is returned at once.
            timer.schedule(Duration::ZERO, || unreachable!()).unwrap();
            wait_until(|| timer.stats().returned == stats.returned + 1);
            wait_until(|| executor.outstanding() == 0); // its place is given back after that
            let stopped = timer.stop();
            assert!(stopped.is_complete() && stopped.unfired.is_empty());
            let stats = timer.stats();
            assert_eq!((stats.added, stats.ran + stats.returned), (12, 12));
        });
    }
}

// Taking turns.

// 500,000 missed ticks came out of one poll, and so did any number of sleeps of no length: no
// other task of the runtime ran meanwhile.
#[test]
fn who_never_has_to_wait_lets_others_have_their_turn_now_and_then() {
    let host = ManualHost::new();
    let mut interval = host.timer().interval(MILLISECOND).unwrap();
    host.clock().advance(1_000 * MILLISECOND);
    let ticks = Arc::new(AtomicU64::new(0));
    let mut missed = Box::pin(async {
        for _ in 0..1_000 {
            interval.tick().await.unwrap();
            ticks.fetch_add(1, Ordering::Relaxed);
        }
    });
    let waker = Count::new();
    let mut polls = 1;
    while waker.poll(&mut missed).is_pending() {
        assert_eq!(waker.woken(), polls, "it is polled again at once");
        polls += 1;
    }
    assert_eq!(ticks.load(Ordering::Relaxed), 1_000, "and misses nothing");
    assert!((5..50).contains(&polls), "{polls} polls");

    let mut sleeps = Box::pin(async {
        for _ in 0..1_000 {
            host.timer().sleep(Duration::ZERO).await.unwrap();
        }
    });
    let waker = Count::new();
    assert!(waker.poll(&mut sleeps).is_pending());
    assert_eq!(waker.woken(), 1);

    // On a runtime of one thread, another task runs beside it.
    current_thread().block_on(async {
        let others = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&others);
        let other = tokio::spawn(async move {
            loop {
                counts.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..10_000 {
            host.timer().sleep(Duration::ZERO).await.unwrap();
        }
        other.abort();
        assert!(others.load(Ordering::Relaxed) > 10);
    });
}
