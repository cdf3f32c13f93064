//! What a reader would type for timers in a process and for patterns: short lines from memory, each
//! of which compiles and runs. Those of durable timers are in `countwheel-disk`.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::time::Duration;

use countwheel::{KeyedTimer, ManualClock, ManualHost, Move, Pool, Timer};
use countwheel_patterns::broker::{LeaseConfig, Leases};
use countwheel_patterns::{
    Batcher, Deadline, DelayQueue, ExpiringMap, Failure, IdleLimits, IdleWatch, Jitter,
    KeyedDelayQueue, KeyedRetry, Periodic, Preset, Requests, Retry, RetryPolicy, RunEnd,
    Supervised, TimerExt, Ttl, Worker,
};

type Tried = Result<(), Box<dyn Error>>;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_task_is_scheduled() -> Tried {
    let mut host = ManualHost::new();
    let (timer, (send, receive)) = (host.timer().clone(), mpsc::channel());
    timer.schedule(SECOND, || println!("now"))?;
    timer.schedule(Duration::ZERO, || ())?;
    timer.schedule(Duration::from_millis(5), move || drop(receive))?;
    timer.schedule_at(timer.now() + SECOND, || println!("now"))?;
    timer.schedule_send(SECOND, "too slow", &send)?;
    assert!(timer.schedule(SECOND, || unreachable!())?.cancel());
    assert!(timer.schedule(SECOND, || ())?.reschedule(2 * SECOND));
    let timeout = timer.schedule(SECOND, || ())?;
    assert_eq!(timeout.remaining(), SECOND);
    assert_eq!(host.advance(SECOND), 6);
    assert!(timeout.is_expired() && !timeout.cancel());
    assert_eq!(timer.pending(), 1);
    assert_eq!(timer.stop().unfired.len(), 1);
    drop(Timer::new());
    drop(Timer::builder().max_pending(1_000).build());
    drop(
        Timer::builder()
            .thread_name("tea")
            .executor(Pool::new(2, 100)?)
            .build(),
    );
    drop(Timer::builder().manual(ManualClock::new()));
    assert!(
        Timer::global()
            .schedule(Duration::from_secs(3_600), || ())?
            .cancel()
    );
    Ok(())
}

#[tokio::test]
async fn async_code_waits() -> Tried {
    let (timer, soon) = (Timer::new(), Duration::from_millis(1));
    timer.sleep(soon).await?;
    timer.sleep_until(timer.now() + soon).await?;
    countwheel::sleep(soon).await;
    assert_eq!(timer.timeout(SECOND, async { 42 }).await?, 42);
    assert!(
        timer
            .timeout(soon, std::future::pending::<()>())
            .await
            .is_err()
    );
    assert!(
        countwheel::timeout(soon, std::future::pending::<()>())
            .await
            .is_err()
    );
    timer.interval(soon)?.tick().await?;
    let policy = RetryPolicy::fixed(soon).max_retries(3);
    let answer = timer.retry(policy, async |attempt| {
        if attempt < 2 {
            Err(Failure::Retryable("no"))
        } else {
            Ok(7)
        }
    });
    assert_eq!(answer.await, Ok(7));
    Ok(())
}

#[test]
fn a_keyed_timer_has_the_verbs() -> Tried {
    let mut host = ManualHost::new();
    let orders = KeyedTimer::new(host.timer().clone(), |order: &str, user: u32| {
        println!("{order} of {user}");
    });
    orders.set("o-1", 42, SECOND)?;
    orders.set_at("o-2", 42, host.timer().now() + SECOND)?;
    orders.set_if_absent("o-3", 42, SECOND)?;
    orders.set_sooner("o-3", 42, SECOND / 2)?;
    assert_eq!(orders.move_to("o-1", 2 * SECOND), Move::Moved);
    assert_eq!(orders.move_by("o-1", SECOND), Move::Moved);
    assert_eq!(orders.remove("o-1"), Some(42));
    assert!(orders.contains("o-2"));
    assert_eq!(host.advance(SECOND), 2);
    assert!(orders.is_empty());
    Ok(())
}

#[test]
fn items_and_values_have_deadlines() -> Tried {
    let mut host = ManualHost::new();
    let timer = || host.timer().clone();
    let (queue, keyed) = (DelayQueue::new(timer()), KeyedDelayQueue::new(timer()));
    let (map, idle) = (
        ExpiringMap::new(timer(), Ttl::after(SECOND)),
        ExpiringMap::new(timer(), Ttl::idle(SECOND)),
    );
    let batches = Batcher::bounded(
        timer(),
        100,
        NonZeroUsize::new(10).unwrap(),
        SECOND,
        |batch: Vec<u32>| println!("{}", batch.len()),
    );
    queue.push("order 1", SECOND)?;
    let paid = queue.push("order 2", SECOND)?;
    assert_eq!(queue.cancel(paid), Some("order 2"));
    keyed.push("o-1", 1, SECOND)?;
    keyed.push_sooner("o-1", 2, SECOND)?;
    map.insert("ada", 42)?;
    map.insert_for("bob", 42, Ttl::after(2 * SECOND))?;
    idle.insert("ada".to_owned(), 42)?;
    assert_eq!((map.get("ada"), idle.get("ada")), (Some(42), Some(42)));
    assert_eq!(map.try_get_or_load(&"eve", || Ok::<_, ()>(7)), Ok(7));
    assert_eq!(map.remove("eve"), Some(7));
    batches.push(7)?;
    host.advance(SECOND);
    assert_eq!(queue.take().map(|due| due.value), Some("order 1"));
    assert_eq!(keyed.try_take().map(|due| due.value), Some(("o-1", 2)));
    assert_eq!(queue.take_due(10).len(), 0);
    assert_eq!((map.get("ada"), map.len(), idle.len()), (None, 1, 0));
    Ok(())
}

#[test]
fn what_runs_again_and_again_is_started() -> Tried {
    let mut host = ManualHost::new();
    let (timer, policy) = (
        host.timer().clone(),
        RetryPolicy::fixed(SECOND).max_retries(3),
    );
    let beat = Periodic::at_fixed_rate(SECOND).start(&timer, || println!("still here"))?;
    let sweep = Periodic::with_fixed_delay(SECOND)
        .max_runs(3)
        .start(&timer, || Err("no route"))?;
    let until = Periodic::at_fixed_rate(SECOND).start(&timer, || RunEnd::Break)?;
    let lease = Supervised::every(SECOND)
        .timeout(SECOND)
        .start_async(&timer, || async {})?;
    let loops = Worker::every(SECOND).start(&timer, || ())?;
    let store = Retry::new(timer.clone(), policy.clone(), |url: &&str, _| {
        if url.is_empty() {
            Err(Failure::Permanent("no URL"))
        } else {
            Ok(())
        }
    });
    let keyed = KeyedRetry::new(timer.clone(), policy, |_key: &u32, _value: &&str, _| {
        Err(Failure::Retryable("no"))
    });
    store.submit("https://shop.example")?;
    keyed.submit(42, "x")?;
    host.advance(5 * SECOND);
    assert_eq!((store.stats().succeeded, keyed.len()), (1, 0));
    assert!(sweep.is_over() && until.is_over() && !beat.is_over());
    assert!(beat.cancel() && lease.cancel() && loops.close());
    let blocking = Timer::new().retry_blocking(RetryPolicy::default(), |attempt| match attempt {
        0 => Err(Failure::Retryable("no")),
        _ => Ok(7),
    });
    assert_eq!(blocking, Ok(7));
    Ok(())
}

#[test]
fn others_are_waited_for() -> Tried {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let requests = Requests::<u32>::new(timer.clone());
    let idle = IdleWatch::new(timer.clone(), |user: &&str, event| {
        println!("{user}: {:?}", event.kind);
    });
    let leases = Leases::new(
        timer.clone(),
        LeaseConfig::new(90 * SECOND),
        |instance: &&str| println!("{instance}"),
    );
    let (response, late) = (requests.register(SECOND)?, requests.register(SECOND)?);
    assert!(requests.complete(response.id(), 42).is_ok());
    assert!(requests.complete(response.id(), 43).is_err());
    assert_eq!(response.wait()?, 42);
    let _connection = idle.watch("ada", IdleLimits::NONE.reader(SECOND))?;
    let instance = leases.grant("orders")?;
    let deadline = Deadline::after(&timer, SECOND);
    assert_eq!(deadline.remaining(timer.now()), SECOND);
    host.advance(SECOND);
    assert!(late.wait().is_err() && deadline.check(timer.now()).is_err());
    drop(instance);
    Ok(())
}

#[test]
fn a_retry_policy_is_one_line() -> Tried {
    let wechat = RetryPolicy::wechat();
    let linear = RetryPolicy::linear(SECOND, SECOND).max_retries(2);
    let exponential = RetryPolicy::exponential(SECOND, 2.0)?
        .cap(60 * SECOND)
        .jitter(Jitter::Equal);
    let list = RetryPolicy::list([1, 5, 25].map(Duration::from_secs))?
        .repeat_last()
        .max_attempts(9)?;
    let preset = Preset::from_name("dubbo-failback")
        .ok_or("no such preset")?
        .policy();
    assert_eq!(
        [wechat, linear, list, preset].map(|policy| policy.preview().count()),
        [15, 2, 8, 3]
    );
    assert_eq!(exponential.delay(3), Some(4 * SECOND));
    Ok(())
}
