//! Timers that a tokio runtime hosts, by its clock: paused, advanced, and real.

#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use countwheel::{
    Clock, NoRuntime, ScheduleError, Stop, Timer, TimerBuilder, TokioClock, TokioExecutor,
};
use support::{HOUR, Journal, MS, SECOND};
use tokio::runtime::{Builder, Handle};
use tokio::time::Instant;

/// A timer whose tasks write down when they ran, by tokio's clock.
fn journal_of(start: Instant) -> (Journal<Duration>, impl Fn() -> Box<dyn FnOnce() + Send>) {
    let journal = Journal::new();
    let writer = journal.clone();
    let task = move || {
        let journal = writer.clone();
        Box::new(move || journal.write(start.elapsed())) as Box<dyn FnOnce() + Send>
    };
    (journal, task)
}

async fn until_still() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

// CLK-12
#[tokio::test(start_paused = true)]
async fn a_paused_clock_moves_its_timer_exactly_as_far_as_it_is_advanced() {
    let timer = Timer::on_tokio().unwrap();
    let (journal, task) = journal_of(Instant::now());
    timer.schedule(SECOND, task()).unwrap();
    timer.schedule(HOUR, task()).unwrap();
    until_still().await;
    assert_eq!(timer.now().as_nanos(), 0, "it stands still");

    tokio::time::advance(SECOND - Duration::from_nanos(1)).await;
    until_still().await;
    assert_eq!(timer.now().as_nanos(), 999_999_999);
    assert_eq!(journal.take(), []);
    tokio::time::advance(Duration::from_nanos(1)).await;
    until_still().await;
    assert_eq!(journal.take(), [SECOND]);
    tokio::time::advance(HOUR).await;
    until_still().await;
    assert_eq!(journal.take(), [HOUR + SECOND], "a jump is a stall");
    assert_eq!(timer.stats().lateness_max, SECOND);
}

// A host by the machine's clock that slept by tokio's moved that by 6,136 seconds.
// CLK-12
#[tokio::test(start_paused = true)]
async fn a_paused_clock_goes_exactly_to_the_next_deadline() {
    let timer = Timer::on_tokio().unwrap();
    let (journal, task) = journal_of(Instant::now());
    let delays = [1, 90, 999, 1_000, 86_400_000, 86_400_001];
    for delay in delays {
        timer.schedule(delay * MS, task()).unwrap();
    }
    timer.sleep(2 * 24 * HOUR).await.unwrap();
    assert_eq!(journal.take(), delays.map(|delay| delay * MS));
    assert_eq!(timer.now().as_nanos(), 2 * 86_400 * 1_000_000_000);
    assert_eq!(timer.stats().lateness_max, Duration::ZERO);
    let wake_ups = timer.stats().wake_ups;
    assert!(wake_ups <= 30, "{wake_ups} for seven deadlines");

    let silence = timer.timeout(HOUR, std::future::pending::<()>()).await;
    assert!(silence.is_err());
    let mut interval = timer.interval(SECOND).unwrap();
    let first = interval.tick().await.unwrap();
    for _ in 0..100 {
        interval.tick().await.unwrap();
    }
    assert_eq!(timer.now(), first + 100 * SECOND);
}

/// A paused runtime, and a receiver that hears each time it has nothing to do.
fn watched() -> (tokio::runtime::Runtime, mpsc::Receiver<()>) {
    let (parks, parked) = mpsc::channel();
    let parks = Mutex::new(parks);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || {
            let _ = parks.lock().unwrap().send(());
        })
        .build()
        .unwrap();
    (runtime, parked)
}

/// Something comes from outside once the runtime has nothing to do.
async fn outside(parked: mpsc::Receiver<()>) -> mpsc::Receiver<()> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    while parked.try_recv().is_ok() {}
    thread::spawn(move || {
        parked.recv().unwrap();
        drop(sender.send(parked));
    });
    receiver.await.unwrap()
}

// CLK-13
#[test]
fn a_timer_with_nothing_pending_moves_no_paused_clock() {
    let (runtime, parked) = watched();
    runtime.block_on(async {
        let timer = Timer::on_tokio().unwrap();
        let start = Instant::now();
        let parked = outside(parked).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "nothing was ever pending");

        // What was cancelled is nothing to go to, not even for a host that sleeps until then.
        let timeout = timer.schedule(HOUR, || ()).unwrap();
        let mut sleep = Box::pin(timer.sleep(2 * HOUR));
        assert!(is_pending(&mut sleep).await);
        until_still().await;
        assert!(timeout.cancel());
        drop(sleep);
        drop(outside(parked).await);
        assert_eq!(
            start.elapsed(),
            Duration::ZERO,
            "nothing is pending any more"
        );

        let silence = timer.timeout(HOUR, std::future::pending::<()>()).await;
        assert!(silence.is_err(), "the clock goes on to what is pending");
        assert_eq!(start.elapsed(), HOUR);
    });
}

/// Polls once.
async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        let polled = std::pin::Pin::new(&mut *future).poll(cx);
        std::task::Poll::Ready(polled.is_pending())
    })
    .await
}

// CLK-12
#[tokio::test(start_paused = true)]
async fn every_thread_reads_the_clock_of_the_runtime() {
    let timer = Timer::on_tokio().unwrap();
    let wall = TokioClock::new().unwrap().timestamp();
    tokio::time::advance(HOUR).await;
    let (clock, other) = (timer.clone(), TokioClock::new().unwrap());
    let seen = thread::spawn(move || (clock.now().as_nanos(), other.now().as_nanos()));
    assert_eq!(seen.join().unwrap(), (3_600_000_000_000, 0));

    let later = TokioClock::new().unwrap();
    tokio::time::advance(24 * HOUR).await;
    let passed = later.timestamp().saturating_since(wall);
    assert!(
        passed >= 24 * HOUR - SECOND,
        "the wall clock goes along: {passed:?}"
    );
}

// LIF-16
#[tokio::test(start_paused = true)]
async fn a_timer_on_tokio_ends_as_others_do() {
    let timer = Timer::on_tokio().unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    let stopped = timer.close(Stop::HandBack).await;
    assert_eq!(stopped.unfired.len(), 1);
    assert!(stopped.is_complete());
    assert!(matches!(
        timer.schedule(HOUR, || ()),
        Err(ScheduleError::Closed(_))
    ));

    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let timer = Timer::on_tokio().unwrap();
    timer.schedule(HOUR, move || drop(held)).unwrap();
    until_still().await;
    let host = Handle::current().metrics().num_alive_tasks();
    assert_eq!(host, 1);
    drop(timer);
    until_still().await;
    assert_eq!(Arc::strong_count(&alive), 1, "dropped with its timer");
    assert_eq!(
        Handle::current().metrics().num_alive_tasks(),
        0,
        "and so was the host"
    );
}

// LIF-16
#[test]
fn a_runtime_that_ends_closes_its_timers() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let timer = runtime.block_on(async { Timer::on_tokio().unwrap() });
    let timeout = timer.schedule(HOUR, || ()).unwrap();
    drop(runtime);
    assert!(timer.is_stopped());
    assert!(timeout.is_returned());
    assert_eq!(timer.stop().unfired.len(), 1);
}

// CFG-13
#[test]
fn without_a_runtime_that_has_a_clock_there_is_no_timer_on_it() {
    assert_eq!(Timer::on_tokio().unwrap_err(), NoRuntime::Absent);
    assert_eq!(TokioClock::new().unwrap_err(), NoRuntime::Absent);
    let runtime = Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async { Timer::on_tokio() }).unwrap_err();
    assert_eq!(error, NoRuntime::WithoutTime);
}

/// By the real clock, on both kinds of runtime.
fn really(mut runtime: Builder, options: impl Fn() -> TimerBuilder) {
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(async {
        let timer = options().build_on_tokio().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        for delay in [0, 5, 1, 3, 2] {
            let (clock, sender) = (timer.clone(), sender.clone());
            let (deadline, ran) = (timer.now() + delay * MS, Arc::clone(&ran));
            let task = move || {
                ran.fetch_add(1, Ordering::SeqCst);
                let lateness = clock.now().as_nanos().checked_sub(deadline.as_nanos());
                tokio::spawn(async move { sender.send(lateness.is_some()) });
            };
            timer.schedule_at(deadline, task).unwrap();
        }
        for _ in 0..5 {
            assert_eq!(receiver.recv().await, Some(true), "it was early");
        }
        let cancelled = timer.schedule(HOUR, || ()).unwrap();
        assert!(cancelled.cancel());
        timer.sleep(MS).await.unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 5);
        assert!(timer.close(Stop::HandBack).await.is_complete());
    });
}

// CFG-13
#[test]
fn a_timer_on_tokio_is_never_early_by_the_real_clock_either() {
    let threads = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    };
    really(Builder::new_current_thread(), Timer::builder);
    really(threads(), Timer::builder);
    let spawning = || {
        let limit = 100.try_into().unwrap();
        Timer::builder().executor(TokioExecutor::tasks(Handle::current(), limit))
    };
    really(Builder::new_current_thread(), spawning);
    really(threads(), spawning);
}
