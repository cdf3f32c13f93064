//! What a reader would type: short lines from memory, each of which compiles and runs. Pages and
//! messages rest on them.

use std::borrow::Cow;
use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use countwheel_disk::durable::store::{Filter, MemoryStore};
use countwheel_disk::durable::{
    Attempt, By, Clock, Config, CronExpression, DrainMode, Due, Handler, Handlers, Health, Jitter,
    Json, Key, ManualClock, Missed, Outcome, Payload, Precondition, Preset, QueueName, Record,
    Recurrence, Request, Response, RetryPolicy, Schedule, Set, SetOptions, StateKind, SystemClock,
    TimerError, TimerName, Timers, Timestamp, Verdict, Was, Zone, attempt_channel, check_policy,
    inline, on_tokio, pooled, spawned,
};
use countwheel_disk::{DiskOptions, DiskStore, Opening, open};
use tokio::runtime::Handle;

type Tried = Result<(), Box<dyn Error>>;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// Timers of which nothing is due, in memory.
fn timers() -> Timers {
    let clock = Arc::new(ManualClock::new());
    Timers::open(
        MemoryStore::new(1),
        inline(|_| ()),
        clock,
        Config::default(),
    )
    .unwrap()
}

/// A small store in a directory.
fn opening(directory: &tempfile::TempDir) -> Opening {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 16;
    Opening::new(directory).options(options)
}

#[test]
fn a_timer_is_named_in_many_ways() -> Tried {
    let (timers, id, name) = (timers(), 42, TimerName::new("unpaid", "o-1")?);
    let (queue, key) = (QueueName::new("unpaid")?, Key::new("o-1")?);
    timers.set("unpaid/o-1", Duration::from_secs(1), "x")?;
    timers.set(("unpaid", "o-1"), SECOND, "x")?;
    timers.set(("unpaid", id.to_string()), SECOND, "x")?;
    timers.set(("unpaid", &id.to_string()), SECOND, "x")?;
    timers.set(("unpaid", format!("o-{id}")), SECOND, "x")?;
    timers.set(("unpaid".to_owned(), "o-1".to_owned()), SECOND, "x")?;
    timers.set(format!("unpaid/{id}"), SECOND, "x")?;
    timers.set(&format!("unpaid/{id}"), SECOND, "x")?;
    timers.set(&name, SECOND, "x")?;
    timers.set(name.clone(), SECOND, "x")?;
    timers.set((&queue, &key), SECOND, "x")?;
    timers.set((queue, key), SECOND, "x")?;
    timers.set("unpaid/o-1".parse::<TimerName>()?, SECOND, "x")?;
    timers.set(TimerName::new("unpaid", id.to_string())?, SECOND, "x")?;
    timers.set(("tenant-7/unpaid", "o-1"), SECOND, "x")?;
    timers.set(("unpaid", Arc::<str>::from("o-1")), SECOND, "x")?;
    timers.set(("unpaid", 42), SECOND, "x")?;
    timers.set(("unpaid", id), SECOND, "x")?;
    timers.set(("unpaid", u64::MAX), SECOND, "x")?;
    timers.set(("unpaid", format_args!("o-{id}")), SECOND, "x")?;
    timers.set((&"unpaid".parse::<QueueName>()?, 42), SECOND, "x")?;
    assert!(timers.remove(("unpaid", 42)).is_ok());
    assert!(timers.get(("unpaid", "42"))?.is_none());
    Ok(())
}

#[test]
fn a_deadline_is_a_span_or_a_point_in_time() -> Tried {
    let (timers, clock) = (timers(), ManualClock::new());
    timers.set("q/1", Duration::from_mins(30), "x")?;
    timers.set("q/1", 30 * SECOND, "x")?;
    timers.set("q/1", Duration::ZERO, "x")?;
    timers.set("q/1", SystemTime::UNIX_EPOCH + HOUR, "x")?;
    timers.set("q/1", Timestamp::from_micros(1_000_000), "x")?;
    timers.set("q/1", Timestamp::EPOCH + HOUR, "x")?;
    timers.set("q/1", clock.timestamp() + HOUR, "x")?;
    timers.set("q/1", Due::In(SECOND), "x")?;
    timers.set("q/1", Due::At(Timestamp::EPOCH), "x")?;
    assert!(timers.set("q/1", Duration::MAX, "x").is_err());
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    id: u64,
}

#[test]
fn a_payload_is_bytes_or_a_text_or_a_value() -> Tried {
    let (timers, text) = (timers(), "x".to_owned());
    timers.set("q/1", SECOND, "x")?;
    timers.set("q/1", SECOND, &text)?;
    timers.set("q/1", SECOND, text.clone())?;
    timers.set("q/1", SECOND, format!("{}", 7))?;
    timers.set("q/1", SECOND, ())?;
    timers.set("q/1", SECOND, vec![1, 2, 3])?;
    timers.set("q/1", SECOND, [1, 2, 3])?;
    timers.set("q/1", SECOND, b"x")?;
    timers.set("q/1", SECOND, text.as_bytes())?;
    timers.set("q/1", SECOND, 7_u64.to_be_bytes())?;
    timers.set("q/1", SECOND, Json(Order { id: 7 }))?;
    timers.set("q/1", SECOND, Json(&Order { id: 7 }))?;
    timers.set("q/1", SECOND, Json((1, "two", [3])))?;
    timers.set("q/1", SECOND, Payload::from("x"))?;
    timers.set("q/1", SECOND, String::from_utf8_lossy(b"x"))?;
    timers.set("q/1", SECOND, Cow::Borrowed("x"))?;
    timers.set("q/1", SECOND, Cow::Borrowed(&b"x"[..]))?;
    Ok(())
}

#[test]
fn the_verbs_take_what_set_takes() -> Tried {
    let (timers, queue) = (timers(), QueueName::new("unpaid")?);
    let Set { due, .. } = timers.set("unpaid/o-1", HOUR, "x")?;
    timers.move_to("unpaid/o-1", 2 * HOUR)?;
    timers.move_to("unpaid/o-1", due)?;
    timers.move_to("unpaid/o-1", SystemTime::UNIX_EPOCH + HOUR)?;
    timers.move_by("unpaid/o-1", HOUR)?;
    timers.move_by("unpaid/o-1", By::Later(HOUR))?;
    timers.move_by("unpaid/o-1", By::Sooner(SECOND))?;
    assert!(timers.get("unpaid/o-1")?.is_some());
    assert!(timers.get(("unpaid", "o-2"))?.is_none());
    assert!(matches!(timers.remove("unpaid/o-1")?, Was::Pending { .. }));
    assert!(matches!(
        timers.fire("unpaid/o-1"),
        Err(TimerError::NotFound)
    ));
    assert!(matches!(
        timers.revive("unpaid/o-1", HOUR),
        Err(TimerError::NotFound)
    ));
    for record in timers.list(queue.clone()) {
        println!("{}", record?.name);
    }
    for record in timers.list(&queue) {
        println!("{}", record?.name);
    }
    for record in timers.list(Filter::queue(queue.clone())) {
        println!("{}", record?.name);
    }
    for record in timers.list("unpaid") {
        println!("{}", record?.name);
    }
    for record in timers.list(format!("tenant-{}/unpaid", 7)) {
        println!("{}", record?.name);
    }
    assert!(matches!(
        timers.list("un paid").next(),
        Some(Err(TimerError::Name(_)))
    ));
    let _keys: Vec<Record> = timers.list("unpaid").collect::<Result<_, _>>()?;
    let dead = Filter {
        state: Some(StateKind::Dead),
        ..Filter::queue(queue.clone())
    };
    assert_eq!(timers.list(&dead).count(), 0);
    assert_eq!(timers.list(dead).take(10).count(), 0);
    let _left = timers.drain(Some(&queue), DrainMode::Hold)?.left;
    timers.resume(Some(&queue))?;
    let _left = timers.drain("unpaid", DrainMode::Hold)?.left;
    assert_eq!(timers.resume("unpaid")?, Some(DrainMode::Hold));
    let _left = timers.drain(&queue, DrainMode::Fire { until: None })?.left;
    timers.resume(queue)?;
    assert!(matches!(
        timers.drain("un paid", DrainMode::Hold),
        Err(TimerError::Name(_))
    ));
    assert!(timers.drain(None, DrainMode::Remove)?.removed.is_empty());
    timers.resume(None)?;
    assert!(timers.counts()?.is_empty());
    assert_eq!(timers.overview(10)?.totals.of(StateKind::Pending), 0);
    assert_eq!(timers.health(), Health::Running);
    assert_eq!(timers.stats().in_window, 0);
    timers.stop(SECOND);
    Ok(())
}

/// A program that does something with an attempt.
fn close(attempt: &Attempt) -> Result<(), std::io::Error> {
    println!("close {}", attempt.name);
    Ok(())
}

struct Shop;

impl Shop {
    fn close(&self, order: &str) -> bool {
        order.is_empty()
    }
}

#[test]
fn a_handler_is_a_function_that_returns_what_it_has() -> Tried {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let (send, shop) = (mpsc::channel().0, Arc::new(Shop));
    drop(open(path("a"), |_| ())?);
    drop(open(path("a").to_str().unwrap(), |_| {})?);
    drop(open(path("a"), |attempt| println!("{}", attempt.name))?);
    drop(open(path("a"), close)?);
    drop(open(path("a"), |_| Ok::<(), String>(()))?);
    drop(open(path("a"), |_| Err::<(), _>("no answer"))?);
    drop(open(path("a"), |_| Outcome::done())?);
    drop(open(path("a"), |_| Outcome::failed("503"))?);
    drop(open(path("a"), |_| {
        Outcome::failed("503").retry_after(SECOND)
    })?);
    drop(open(path("a"), |_| Ok::<_, String>(Outcome::stopped()))?);
    drop(open(path("a"), |attempt| {
        attempt
            .json::<Order>()
            .map(|order| println!("{}", order.id))
    })?);
    drop(open(path("a"), |attempt| {
        String::from_utf8(attempt.payload.clone()).map(drop)
    })?);
    drop(open(path("a"), |attempt| -> Tried { Ok(close(attempt)?) })?);
    drop(open(path("a"), move |attempt| send.send(attempt.number))?);
    drop(open(path("a"), move |attempt| {
        shop.close(attempt.name.key.as_str());
    })?);
    drop(open(path("a"), |attempt| {
        attempt.timers()?.remove("q/1").map(drop)
    })?);
    drop(open(path("a"), |attempt| match attempt.number {
        1 => Err("once more"),
        _ => Ok(()),
    })?);
    drop(open(path("a"), |attempt| {
        if attempt.name.key.as_str() == "x" {
            Outcome::stopped()
        } else {
            Outcome::done()
        }
    })?);
    Ok(())
}

async fn close_later(attempt: Attempt) -> Result<(), std::io::Error> {
    close(&attempt)
}

#[test]
fn a_handler_is_of_any_kind() -> Tried {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let handle: Handle = runtime.handle().clone();
    let new = || opening(&directory);
    drop(new().start(close)?);
    drop(new().start(|attempt: &Attempt| println!("{}", attempt.name))?);
    drop(new().start(inline(|attempt| println!("{}", attempt.name)))?);
    drop(new().start(pooled(|attempt| println!("{}", attempt.name)))?);
    drop(new().start(attempt_channel().0)?);
    drop(new().start(on_tokio(handle.clone(), close_later))?);
    drop(new().start(on_tokio(handle.clone(), |attempt| async move {
        println!("{}", attempt.name);
    }))?);
    drop(new().start(on_tokio(handle.clone(), |attempt| async move {
        close(&attempt)
    }))?);
    drop(new().start(on_tokio(handle.clone(), |_| async { Outcome::done() }))?);
    drop(new().start(on_tokio(handle.clone(), async |attempt| {
        println!("{}", attempt.name);
    }))?);
    drop(new().start(spawned(
        move |future| {
            handle.spawn(future);
        },
        close_later,
    ))?);
    drop(new().start(Handlers::new().on("unpaid", close)?.on("mail", |_| ())?)?);
    drop(
        new().start(
            Handlers::new()
                .handle("mail", inline(|_| ()))?
                .otherwise(close),
        )?,
    );
    drop(new().start(Arc::new(inline(|_| ())) as Arc<dyn Handler>)?);
    drop(
        new()
            .config(Config {
                max_in_flight: 16,
                ..Default::default()
            })
            .start(close)?,
    );
    drop(
        new()
            .config(Config {
                handler_threads: 1,
                ..Config::default()
            })
            .start(close)?,
    );
    drop(new().clock(Arc::new(ManualClock::new())).start(close)?);
    drop(Timers::open(
        MemoryStore::new(1),
        close,
        Arc::new(SystemClock::new()),
        Config::default(),
    )?);
    drop(DiskStore::open(
        directory.path(),
        7,
        DiskOptions::default(),
    )?);
    Ok(())
}

#[test]
fn an_attempt_is_taken_and_completed() -> Tried {
    let clock = Arc::new(ManualClock::new());
    let (handler, mut attempts) = attempt_channel();
    let timers = Timers::open(
        MemoryStore::new(1),
        handler,
        clock.clone(),
        Config::default(),
    )?;
    // What is due at the moment of the opening counts as overdue, and follows at the rate of a catch-up.
    clock.advance(SECOND);
    let mut next = |name: &str| {
        timers.set(name, Duration::ZERO, "7").unwrap();
        attempts.next().unwrap()
    };
    next("q/1").complete(());
    next("q/2").complete(Ok::<(), String>(()));
    next("q/3").complete(Err::<(), _>("no answer"));
    next("q/4").complete(Outcome::done());
    next("q/5").complete(Outcome::new(
        Verdict::Failed {
            retry_after: Some(HOUR),
        },
        "503",
    ));
    drop(next("q/6"));
    let attempt = next("q/7");
    assert_eq!(attempt.name.queue.as_str(), "q");
    assert_eq!(attempt.name.to_string(), "q/7");
    assert_eq!(attempt.payload, b"7");
    assert_eq!(attempt.json::<u64>()?, 7);
    assert_eq!(std::str::from_utf8(&attempt.payload)?, "7");
    assert_eq!(attempt.lateness(), Duration::ZERO);
    attempt
        .timers()?
        .set(("closed", &attempt.name.key), HOUR, &attempt.payload)?;
    attempt.timers()?.set(&attempt.name, HOUR, "once more")?;
    assert!(attempt.run.is_none());
    attempt.complete(());
    timers.stop(SECOND);
    drop(timers);
    for attempt in attempts {
        attempt.complete(());
    }
    Ok(())
}

#[test]
fn a_retry_policy_is_one_line() -> Tried {
    let timers = timers();
    timers.set_with("q/1", SECOND, RetryPolicy::default(), "x")?;
    timers.set_with("q/1", SECOND, RetryPolicy::fixed(SECOND), "x")?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::fixed(SECOND).max_retries(3),
        "x",
    )?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::fixed(SECOND).max_retries(0),
        "x",
    )?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::fixed(SECOND).max_attempts(3)?,
        "x",
    )?;
    timers.set_with("q/1", SECOND, RetryPolicy::fixed(SECOND).max_age(HOUR), "x")?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::fixed(SECOND).jitter(Jitter::Full),
        "x",
    )?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::exponential(SECOND, 2.0)?.cap(HOUR),
        "x",
    )?;
    timers.set_with("q/1", SECOND, RetryPolicy::list([SECOND, HOUR])?, "x")?;
    timers.set_with("q/1", SECOND, RetryPolicy::list(vec![SECOND, HOUR])?, "x")?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::list([1, 5, 25].map(Duration::from_secs))?,
        "x",
    )?;
    timers.set_with(
        "q/1",
        SECOND,
        RetryPolicy::list([SECOND])?.repeat_last().max_retries(9),
        "x",
    )?;
    timers.set_with("q/1", SECOND, RetryPolicy::wechat(), "x")?;
    timers.set_with("q/1", SECOND, RetryPolicy::wechat().max_retries(5), "x")?;
    timers.set_with("q/1", SECOND, Preset::Wechat.policy(), "x")?;
    timers.set_with(
        "q/1",
        SECOND,
        Preset::from_name("wechat").unwrap().policy(),
        "x",
    )?;
    timers.set_with(
        ("q", "1"),
        SECOND,
        RetryPolicy::wechat().scaled(1e-3)?,
        Json([1, 2]),
    )?;
    assert_eq!(RetryPolicy::wechat().preview().count(), 15);
    for preset in Preset::ALL {
        timers.set_with("q/1", SECOND, preset.policy(), "x")?;
    }
    timers.set_with("q/1", SECOND, RetryPolicy::dubbo_failback(), "x")?;
    timers.set_with("q/1", SECOND, "15s,15s,30s,3m".parse()?, "x")?;
    timers.set_with("q/1", SECOND, "eureka attempts=6".parse()?, "x")?;
    timers.set_with("q/1", SECOND, "linear:3s..1h+5s".parse()?, "x")?;
    assert!(check_policy(&RetryPolicy::fixed(SECOND).cap(SECOND)).is_err());
    Ok(())
}

fn recurring(schedule: Schedule) -> Result<Request, TimerError> {
    Ok(Request::Set {
        name: "reports/sales".parse()?,
        due: Duration::ZERO.into(),
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        precondition: Precondition::Absent,
        options: SetOptions {
            missed: Missed::Collapse,
            recurrence: Some(Recurrence::new(schedule).into()),
            ..SetOptions::default()
        },
    })
}

#[test]
fn a_recurring_timer_is_one_line() -> Tried {
    let timers = timers();
    timers.every("reports/sales", HOUR, "x")?;
    timers.every(("reports", 7), Duration::from_mins(5), Json(7))?;
    timers.every_after("reports/sales", HOUR, ())?;
    timers.cron("reports/sales", "0 9 * * MON-FRI", "x")?;
    timers.cron("reports/sales", format!("@{}", "daily"), "x")?;
    timers.cron_in("reports/sales", "0 9 * * *", "Europe/Berlin", "x")?;
    let record = timers.get("reports/sales")?.unwrap();
    assert!(matches!(
        record.recurring.unwrap().recurrence.schedule,
        Schedule::Cron { zone, .. } if zone.name() == "Europe/Berlin"
    ));
    for refused in [
        timers.every("reports/sales", Duration::ZERO, "x"),
        timers.cron("reports/sales", "9 o'clock", "x"),
        timers.cron_in("reports/sales", "0 9 * * *", "Europe/Bonn", "x"),
    ] {
        assert!(matches!(
            refused,
            Err(TimerError::Recurrence(_) | TimerError::Cron(_) | TimerError::Zone(_))
        ));
    }
    Ok(())
}

#[test]
fn a_recurring_timer_is_a_request() -> Tried {
    let (timers, cron) = (timers(), CronExpression::new("0 9 * * MON-FRI")?);
    timers.call(recurring(Schedule::FixedRate {
        every: HOUR,
        anchor: None,
    })?)?;
    timers.remove("reports/sales")?;
    timers.call(recurring(Schedule::FixedDelay { every: HOUR })?)?;
    timers.remove("reports/sales")?;
    timers.call(recurring(Schedule::Cron {
        expression: cron,
        zone: Zone::new("Europe/Berlin")?,
    })?)?;
    let Response::Removed(_) = timers.call(Request::Remove {
        name: "reports/sales".parse()?,
        precondition: Precondition::None,
        only_pending: true,
    })?
    else {
        panic!()
    };
    timers.submit(recurring(Schedule::FixedDelay { every: HOUR })?, |answer| {
        drop(answer.unwrap());
    });
    timers.submit_batch(vec![recurring(Schedule::FixedDelay { every: HOUR })?], drop);
    Ok(())
}

#[tokio::test]
async fn async_code_awaits_the_verbs() -> Tried {
    let timers = timers().to_async();
    timers.set("unpaid/o-1", HOUR, "x").await?;
    timers.set(("unpaid", 7.to_string()), HOUR, Json(7)).await?;
    timers
        .set_with("unpaid/o-1", HOUR, RetryPolicy::wechat(), "x")
        .await?;
    timers.move_to("unpaid/o-1", SECOND).await?;
    timers.move_by("unpaid/o-1", By::Later(SECOND)).await?;
    timers.fire("unpaid/7").await?;
    assert!(timers.get("unpaid/o-1").await?.is_some());
    assert!(timers.revive("unpaid/o-1", HOUR).await.is_err());
    assert_eq!(
        timers
            .list(QueueName::new("unpaid")?, NonZeroUsize::MIN)
            .await?
            .len(),
        1
    );
    assert!(
        timers
            .list(QueueName::new("unpaid")?, 10.try_into()?)
            .await?
            .len()
            <= 2
    );
    assert!(timers.list("unpaid", 10.try_into()?).await?.len() <= 2);
    timers.set(("unpaid", 42), HOUR, "x").await?;
    timers.every("reports/1", HOUR, "x").await?;
    timers.every_after("reports/2", HOUR, "x").await?;
    timers.cron("reports/3", "0 9 * * *", "x").await?;
    timers
        .cron_in("reports/4", "0 9 * * *", "Europe/Berlin", "x")
        .await?;
    assert_eq!(timers.list("reports", 10.try_into()?).await?.len(), 4);
    let _left = timers.drain("unpaid", DrainMode::Hold).await?.left;
    timers.resume("unpaid").await?;
    let _left = timers.drain(None, DrainMode::Hold).await?.left;
    timers.resume(None).await?;
    let (a, b) = (timers.remove("unpaid/o-1"), timers.remove("unpaid/o-2"));
    assert!(a.await.is_ok() && b.await.is_err());
    timers.timers().stop(SECOND);
    Ok(())
}
