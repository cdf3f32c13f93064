//! What runs on a timer and needs a tokio runtime: with one, and without.

use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::{ManualClock, ManualHost, NoRuntime, Pool, Timer, TokioExecutor};
use countwheel_patterns::{
    DelayQueue, Failure, GiveUp, IdleLimits, IdleWatch, NoValue, Periodic, Retry, RetryBuildError,
    RetryPolicy, TimerExt,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

use super::support::{HOUR, SECOND};

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap()
}

/// What only a runtime has.
async fn needs_a_runtime() -> Result<(), Failure<()>> {
    tokio::time::sleep(Duration::ZERO).await;
    Ok(())
}

/// A store whose attempts need a runtime, and its dead letters.
fn store(timer: &Timer, is_async: bool) -> (Retry<u32, ()>, mpsc::Receiver<(GiveUp, u32)>) {
    let (sender, dead) = mpsc::channel();
    let builder =
        Retry::builder(timer.clone(), RetryPolicy::dubbo_failback()).dead_letter(move |letter| {
            sender
                .send((letter.reason, letter.attempts.made()))
                .unwrap();
        });
    let retry = if is_async {
        builder.build_async(|_: u32, _| needs_a_runtime())
    } else {
        let spawns = |_: &u32, _: &_| {
            drop(tokio::spawn(async {}));
            Ok(())
        };
        builder.build(spawns)
    };
    (retry.unwrap(), dead)
}

// Each of four attempts panicked "there is no reactor running", and counted as a try.
#[test]
fn an_operation_that_needs_a_runtime_is_given_up_at_its_first_attempt_without_one() {
    for is_async in [false, true] {
        let mut host = ManualHost::new();
        let (retry, dead) = store(host.timer(), is_async);
        retry.submit(1).unwrap();
        host.advance(HOUR);
        assert_eq!(dead.try_recv(), Ok((GiveUp::NoRuntime, 1)));
        let stats = retry.stats();
        assert_eq!((stats.attempts, stats.panicked, stats.given_up), (1, 1, 1));
    }
    let text = GiveUp::NoRuntime.to_string();
    assert_eq!(text, "the attempt needs a runtime, and its timer has none");
}

#[test]
fn an_operation_that_needs_a_runtime_has_the_one_that_its_timer_was_told() {
    let runtime = runtime();
    for is_async in [false, true] {
        let mut host = Timer::builder()
            .runtime(runtime.handle().clone())
            .manual(ManualClock::new());
        assert!(host.timer().has_runtime());
        let (retry, _dead) = store(host.timer(), is_async);
        retry.submit(1).unwrap();
        while retry.stats().succeeded == 0 {
            host.run_due(); // tokio wakes it from a thread of its own
            std::thread::yield_now();
        }
        assert_eq!(retry.stats().attempts, 1);
    }
    for builder in [Timer::builder(), Timer::builder().inline()] {
        let timer = builder.runtime(runtime.handle().clone()).build();
        let value = timer.schedule_async(Duration::ZERO, needs_a_runtime());
        assert_eq!(value.unwrap().join(), Ok(Ok(())), "on threads of the timer");
        timer.stop();
    }
}

#[test]
fn a_store_that_needs_a_runtime_is_not_built_on_a_timer_that_has_none() {
    let build = |timer: &Timer| {
        Retry::<u32, ()>::builder(timer.clone(), RetryPolicy::eureka())
            .needs_runtime()
            .build_async(|_, _| needs_a_runtime())
    };
    let refused = build(&Timer::new()).unwrap_err();
    assert_eq!(refused, RetryBuildError::NoRuntime);
    let runtime = runtime();
    let on_tokio = runtime.block_on(async { Timer::on_tokio() }).unwrap();
    assert!(build(&on_tokio).is_ok());
}

#[test]
fn every_timer_knows_whether_its_tasks_have_a_runtime() {
    let runtime = runtime();
    let handle = || runtime.handle().clone();
    let limit = NonZeroUsize::MIN;
    let pool = Pool::in_runtime(handle(), "pool", 1, 1).unwrap();
    let with = [
        runtime.block_on(async { Timer::on_tokio() }).unwrap(),
        Timer::builder().runtime(handle()).build(),
        Timer::builder().runtime(handle()).inline().build(),
        Timer::builder()
            .executor(TokioExecutor::tasks(handle(), limit))
            .build(),
        Timer::builder().executor(pool).build(),
    ];
    for timer in with {
        assert!(timer.require_runtime().is_ok());
        let found = timer.schedule_with(Duration::ZERO, || drop(Handle::current()));
        assert_eq!(found.unwrap().join(), Ok(()));
    }
    let without = [
        Timer::new(),
        // The pool that was given is asked, not the timer's own threads.
        Timer::builder()
            .runtime(handle())
            .executor(Pool::new(1, 1).unwrap())
            .build(),
    ];
    for timer in without {
        let error = timer.require_runtime().unwrap_err();
        assert_eq!(error, NoRuntime::NoneOfTimer);
        let missed = timer.schedule_with(Duration::ZERO, || drop(Handle::current()));
        assert_eq!(missed.unwrap().join(), Err(NoValue::NoRuntime));
    }
}

#[test]
fn what_was_scheduled_says_that_it_found_no_runtime() {
    let mut host = ManualHost::new();
    let later = host.timer().schedule_async(SECOND, needs_a_runtime());
    let called = host.timer().schedule_with(SECOND, || {
        drop(Handle::current());
    });
    host.advance(SECOND);
    assert_eq!(later.unwrap().join(), Err(NoValue::NoRuntime));
    assert_eq!(called.unwrap().join(), Err(NoValue::NoRuntime));
}

#[tokio::test(start_paused = true)]
async fn patterns_on_tokio_go_by_its_paused_clock() {
    let timer = Timer::on_tokio().unwrap();
    let start = Instant::now();

    let (retry, _dead) = store(&timer, true);
    retry.submit(1).unwrap();
    let (sender, mut beats) = tokio::sync::mpsc::unbounded_channel();
    let beat = Periodic::at_fixed_rate(SECOND)
        .start(&timer, move || {
            let _ = sender.send(start.elapsed());
        })
        .unwrap();
    for seconds in 1..=3 {
        assert_eq!(beats.recv().await, Some(seconds * SECOND));
    }
    beat.cancel();
    assert_eq!(retry.stats().succeeded, 1);

    let queue = DelayQueue::new(timer.clone());
    queue.push("due", HOUR).unwrap();
    let due = queue.next().await.unwrap();
    assert_eq!((due.value, due.lateness), ("due", Duration::ZERO));

    let idle = IdleWatch::new(timer.clone(), |_: &u32, _| {});
    let connection = idle.watch(7, IdleLimits::NONE.all(HOUR)).unwrap();
    let event = connection.idle().await.unwrap();
    assert_eq!(event.idle_for, HOUR);
    assert_eq!(start.elapsed(), 2 * HOUR + 3 * SECOND);

    let value = timer.schedule_async(SECOND, async move {
        tokio::time::sleep(SECOND).await;
        start.elapsed()
    });
    assert_eq!(value.unwrap().await, Ok(2 * HOUR + 5 * SECOND));
}
