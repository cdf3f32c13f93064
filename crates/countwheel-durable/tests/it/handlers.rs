//! Handlers of every kind, what they return, and what they do with their own timers.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use countwheel_durable::store::{Filter, MemoryStore};
use countwheel_durable::{
    AsyncTimers, Attempt, AttemptFuture, Config, Due, Handler, Handlers, Json, NameError, Outcome,
    PayloadError, QueueName, Record, RetryPolicy, State, StateKind, SystemClock, TimerError,
    TimerName, Timers, Timestamp, Was, attempt_channel, inline, pooled, spawned,
};

const NOW: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(20);

fn open(handler: impl Handler) -> Timers {
    let clock = Arc::new(SystemClock::new());
    Timers::open(MemoryStore::new(1), handler, clock, Config::default()).unwrap()
}

/// Sets a timer that is due now and has one attempt, and waits for its end.
fn ended(timers: &Timers, name: &str, payload: &str) -> Record {
    let once = RetryPolicy::fixed(HOUR).max_retries(0);
    timers.set_with(name, NOW, once, payload).unwrap();
    loop {
        let record = timers.get(name).unwrap().unwrap();
        if matches!(record.state.kind(), StateKind::Done | StateKind::Dead) {
            return record;
        }
        std::thread::yield_now();
    }
}

/// The state it ended in, and what its one attempt left to remember.
fn end(timers: &Timers, name: &str, payload: &str) -> (StateKind, String) {
    let record = ended(timers, name, payload);
    let attempt = record.attempts.last().unwrap().ended.as_ref().unwrap();
    (record.state.kind(), attempt.detail.clone())
}

fn text(attempt: &Attempt) -> &str {
    std::str::from_utf8(&attempt.payload).unwrap()
}

#[test]
fn what_a_handler_returns_is_the_outcome() {
    let timers = open(
        Handlers::new()
            .on("nothing", |_| ())
            .unwrap()
            .on("result", |attempt| text(attempt).parse::<u8>().map(drop))
            .unwrap()
            .on("outcome", |_| Outcome::stopped())
            .unwrap()
            .on("both", |attempt| match text(attempt) {
                "stop" => Ok(Outcome::stopped()),
                other => Err(format!("no {other}")),
            })
            .unwrap()
            .on("panics", |attempt| -> () { panic!("{}", text(attempt)) })
            .unwrap(),
    );
    let (done, dead) = (StateKind::Done, StateKind::Dead);
    let none = String::new;
    assert_eq!(end(&timers, "nothing/1", ""), (done, none()));
    assert_eq!(end(&timers, "result/1", "7"), (done, none()));
    let (state, why) = end(&timers, "result/2", "seven");
    assert_eq!((state, &*why), (dead, "invalid digit found in string"));
    assert_eq!(end(&timers, "outcome/1", ""), (dead, none()));
    assert_eq!(end(&timers, "both/1", "stop"), (dead, none()));
    assert_eq!(end(&timers, "both/2", "pay"), (dead, "no pay".to_owned()));
    let (state, why) = end(&timers, "panics/1", "on purpose");
    assert_eq!((state, &*why), (dead, "the handler panicked"));
}

#[test]
fn an_attempt_of_a_queue_without_a_handler_says_so() {
    let handlers = || Handlers::new().on("mail", |_| ()).unwrap();
    let timers = open(handlers());
    let (state, why) = end(&timers, "male/1", "");
    assert_eq!(
        (state, &*why),
        (StateKind::Dead, "the queue male has no handler")
    );
    let timers =
        open(handlers().otherwise(inline(|attempt| Err::<(), _>(attempt.name.to_string()))));
    assert_eq!(end(&timers, "male/1", "").1, "male/1");
    assert_eq!(end(&timers, "mail/1", "").0, StateKind::Done);
    let refused = Handlers::new().on("two words", |_| ()).unwrap_err();
    assert_eq!(refused, NameError::QueueCharacter { found: ' ' });
}

#[test]
fn handlers_block_if_one_of_them_does() {
    let all = || Handlers::new().handle("a", inline(|_| ())).unwrap();
    assert!(!all().blocks());
    assert!(all().on("b", |_| ()).unwrap().blocks());
    assert!(all().otherwise(pooled(|_| ())).blocks());
}

#[test]
fn names_are_texts_pairs_and_names() {
    let timers = open(inline(|_| ()));
    for key in ["o-1", "2026/o-1", "/"] {
        let name = TimerName::new("unpaid", key).unwrap();
        timers.set(("unpaid", key), HOUR, key).unwrap();
        for found in [
            timers.get(format!("unpaid/{key}")),
            timers.get(("unpaid".to_owned(), key)),
            timers.get(&name),
            timers.get(name.clone()),
        ] {
            let record = found.unwrap().unwrap();
            assert_eq!(
                (record.name, &*record.payload),
                (name.clone(), key.as_bytes())
            );
        }
    }
    // A pair can name a queue of another namespace; a text is of the default one.
    timers.set(("tenant-7/unpaid", "o-1"), HOUR, ()).unwrap();
    assert!(timers.get("tenant-7/unpaid/o-1").unwrap().is_none());
    let there = TimerName::from_text("tenant-7/unpaid", "o-1").unwrap();
    assert!(timers.get(&there).unwrap().is_some());

    let refusal = |name: &str| match timers.set(name, HOUR, "") {
        Err(TimerError::Name(error)) => error,
        other => panic!("{name}: {other:?}"),
    };
    let text = "unpaid".to_owned();
    assert_eq!(refusal("unpaid"), NameError::KeyMissing { text });
    assert_eq!(refusal("unpaid/"), NameError::KeyEmpty);
    assert_eq!(refusal("/o-1"), NameError::QueueEmpty);
    assert!(matches!(
        timers.remove(("un paid", "o-1")),
        Err(TimerError::Name(NameError::QueueCharacter { found: ' ' }))
    ));
}

#[test]
fn deadlines_are_spans_and_points_in_time() {
    let timers = open(inline(|_| ()));
    // The year 2096.
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    let due = timers.set("q/system", at, "").unwrap().due;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(due, Timestamp::EPOCH + since);
    assert_eq!(timers.set("q/stamp", due, "").unwrap().due, due);
    assert!(timers.set("q/span", HOUR, "").unwrap().due < due);
    let before_1970 = SystemTime::UNIX_EPOCH - HOUR;
    assert_eq!(Due::from(before_1970), Due::At(Timestamp::EPOCH));
}

#[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
struct Order {
    id: u64,
    cents: u32,
}

#[test]
fn a_payload_that_is_not_the_value_fails_its_attempt_with_the_reason() {
    let timers = open(pooled(|attempt| -> Result<(), PayloadError> {
        let order: Order = attempt.json()?;
        assert_eq!(order, Order { id: 42, cents: 995 });
        Ok(())
    }));
    let order = Order { id: 42, cents: 995 };
    timers.set("orders/good", HOUR, Json(&order)).unwrap();
    let stored = timers.get("orders/good").unwrap().unwrap().payload;
    assert_eq!(&*stored, br#"{"id":42,"cents":995}"#);
    assert_eq!(
        end(&timers, "orders/good", r#"{"id":42,"cents":995}"#).0,
        StateKind::Done
    );

    let (state, why) = end(&timers, "orders/bad", r#"{"id":42}"#);
    assert_eq!(state, StateKind::Dead);
    let wanted = "the payload is not the JSON of Order: missing field `cents` at line 1 column 9";
    assert_eq!(why, wanted);

    let keyed_by_pairs = HashMap::from([((1, 2), 3)]);
    let refused = timers.set("orders/worse", HOUR, Json(keyed_by_pairs));
    assert!(
        matches!(&refused, Err(TimerError::Payload(PayloadError::Write { reason })) if reason.contains("key")),
        "{refused:?}"
    );
}

#[test]
fn a_handler_sets_moves_and_removes_timers_of_its_own_too() {
    let (seen, attempts) = mpsc::channel();
    let timers = open(pooled(move |attempt| -> Result<(), TimerError> {
        let timers = attempt.timers()?;
        match attempt.name.key.as_str() {
            "first" => {
                timers.set("q/other", HOUR, "set by first")?;
                let moved = timers.move_to("q/other", 2 * HOUR)?;
                assert!(moved.due > moved.old_due);
                assert!(matches!(timers.remove("q/gone")?, Was::Pending { .. }));
            }
            // Sets itself anew: the outcome of this attempt does not end the new timer.
            "again" if text(attempt) == "1" => {
                timers.set(&attempt.name, NOW, "2")?;
            }
            "itself" => {
                let was = timers.remove(&attempt.name)?;
                assert!(matches!(was, Was::Delivering { .. }), "{was:?}");
            }
            _ => {}
        }
        let payload = text(attempt).to_owned();
        seen.send((attempt.name.key.to_string(), payload)).unwrap();
        Ok(())
    }));
    timers.set("q/gone", HOUR, "").unwrap();
    timers.set("q/first", NOW, "").unwrap();
    let next = || attempts.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next().0, "first");
    let other = timers.get("q/other").unwrap().unwrap();
    assert_eq!(&*other.payload, b"set by first");
    assert!(timers.get("q/gone").unwrap().is_none());

    timers.set("q/again", NOW, "1").unwrap();
    let mut payloads = [next(), next()].map(|(_, payload)| payload);
    payloads.sort();
    assert_eq!(payloads, ["1", "2"]);
    while timers.get("q/again").unwrap().unwrap().state.kind() != StateKind::Done {
        std::thread::yield_now();
    }
    timers.set("q/itself", NOW, "").unwrap();
    assert_eq!(next().0, "itself");
    assert!(timers.get("q/itself").unwrap().is_none());
}

#[test]
fn an_inline_handler_submits_and_does_not_wait() {
    let (told, answers) = mpsc::channel();
    let timers = open(inline(move |attempt| -> Result<(), TimerError> {
        let timers = attempt.timers()?;
        if attempt.name.key.as_str() == "first" {
            let waits = timers.set("q/second", NOW, "");
            told.send(format!("{waits:?}")).unwrap();
            // The future of the async twin brings the answer later; its request is under way.
            drop(timers.to_async().set("q/second", NOW, ""));
        } else {
            told.send(attempt.name.to_string()).unwrap();
        }
        Ok(())
    }));
    timers.set("q/first", NOW, "").unwrap();
    let next = || answers.recv_timeout(PATIENCE).unwrap();
    assert_eq!(next(), "Err(OwnThread)");
    assert_eq!(next(), "q/second");
}

#[test]
fn the_timers_of_an_attempt_do_not_go_on_for_it() {
    let (handler, attempts) = attempt_channel();
    let timers = open(handler);
    timers.set("q/a", NOW, "").unwrap();
    let attempt = attempts.recv().unwrap();
    let own = attempt.timers().unwrap();
    own.set("q/b", HOUR, "").unwrap();
    drop(timers);
    assert!(matches!(own.set("q/c", HOUR, ""), Err(TimerError::Closed)));
    let copy = Attempt::clone(&attempt);
    attempt.complete(());
    // The handle holds the store, and the attempt gives no other one.
    assert!(matches!(copy.timers(), Err(TimerError::Closed)));
    drop(own);
    assert!(matches!(copy.timers(), Err(TimerError::Closed)));
}

#[test]
fn a_channel_hands_each_attempt_to_one_taker() {
    const TIMERS: usize = 200;
    let (handler, attempts) = attempt_channel();
    let timers = open(handler);
    let taken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let attempts = attempts.clone();
            let taken = &taken;
            scope.spawn(move || {
                for attempt in attempts {
                    taken.lock().unwrap().push(attempt.name.key.to_string());
                    attempt.complete(());
                }
            });
        }
        for key in 0..TIMERS {
            timers.set(("q", key.to_string()), NOW, "").unwrap();
        }
        while taken.lock().unwrap().len() < TIMERS {
            std::thread::yield_now();
        }
        timers.stop(PATIENCE);
        drop(timers);
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), TIMERS);
    assert!(attempts.recv().is_none());
    assert!(attempts.recv_timeout(HOUR).is_none());
}

#[test]
fn what_is_taken_and_dropped_has_failed_and_so_has_what_nobody_takes() {
    let (handler, attempts) = attempt_channel();
    let timers = open(handler);
    let reason = |key: &str| {
        let record = timers.get(("q", key)).unwrap().unwrap();
        let ended = record.attempts.first().and_then(|one| one.ended.clone());
        ended.map(|ended| ended.detail)
    };
    let wait = |key: &str| loop {
        if let Some(reason) = reason(key) {
            return reason;
        }
        std::thread::yield_now();
    };
    timers.set("q/dropped", NOW, "").unwrap();
    drop(attempts.recv().unwrap());
    assert_eq!(wait("dropped"), "the handler gave no outcome");
    timers.set("q/left", NOW, "").unwrap();
    // It is in the channel, or comes after the last taker is gone.
    drop(attempts);
    timers.set("q/late", NOW, "").unwrap();
    assert_eq!(wait("late"), "nobody takes attempts from the channel");
    let left = wait("left");
    assert!(
        left == "the handler gave no outcome" || left == wait("late"),
        "{left}"
    );
}

/// Wakes nobody: the test polls again by itself.
struct Idle;

impl Wake for Idle {
    fn wake(self: Arc<Self>) {}
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Idle));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_future_is_an_attempt_and_one_that_is_dropped_has_failed() {
    let (spawned_one, futures) = mpsc::channel::<AttemptFuture>();
    let spawn = move |future| spawned_one.send(future).unwrap();
    let timers = open(spawned(spawn, |attempt: Attempt| async move {
        let timers = attempt.timers()?.to_async();
        timers.set(("q", "from the future"), HOUR, "").await?;
        Ok::<_, TimerError>(())
    }));
    timers.set("q/runs", NOW, "").unwrap();
    block_on(futures.recv_timeout(PATIENCE).unwrap());
    assert!(timers.get("q/from the future").unwrap().is_some());
    while !matches!(
        timers.get("q/runs").unwrap().unwrap().state,
        State::Done { .. }
    ) {
        std::thread::yield_now();
    }

    timers.set("q/dropped", NOW, "").unwrap();
    drop(futures.recv_timeout(PATIENCE).unwrap());
    while timers.get("q/dropped").unwrap().unwrap().failures == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn the_async_verbs_answer_as_the_others_do() {
    let timers = open(inline(|_| ()));
    let later: AsyncTimers = timers.to_async();
    let set = block_on(later.set("q/a", HOUR, "1")).unwrap();
    let moved = block_on(later.move_to("q/a", 2 * HOUR)).unwrap();
    assert_eq!(moved.old_due, set.due);
    let back = block_on(later.move_by("q/a", Duration::from_secs(60))).unwrap();
    assert_eq!(back.due, moved.due + Duration::from_secs(60));
    let seen = block_on(later.get("q/a")).unwrap();
    assert_eq!(seen, timers.get("q/a").unwrap());
    let few = 3.try_into().unwrap();
    let listed = block_on(later.list(QueueName::new("q").unwrap(), few)).unwrap();
    assert_eq!(listed, [seen.unwrap()]);
    assert_eq!(
        block_on(later.remove("q/a")).unwrap(),
        Was::Pending { due: back.due }
    );
    assert!(matches!(
        block_on(later.fire("q/a")),
        Err(TimerError::NotFound)
    ));
    assert!(matches!(
        block_on(later.revive("q/a", NOW)),
        Err(TimerError::NotFound)
    ));
    let bad = block_on(later.set("no key", HOUR, ""));
    assert!(matches!(
        bad,
        Err(TimerError::Name(NameError::KeyMissing { .. }))
    ));

    let queue = QueueName::new("q").unwrap();
    let once = RetryPolicy::fixed(HOUR).max_retries(0);
    block_on(later.set_with("q/b", HOUR, once, "")).unwrap();
    let mode = countwheel_durable::DrainMode::Hold;
    assert_eq!(
        block_on(later.drain(Some(&queue), mode))
            .unwrap()
            .left
            .pending,
        1
    );
    assert_eq!(block_on(later.resume(Some(&queue))).unwrap(), Some(mode));

    timers.stop(NOW);
    assert!(matches!(
        block_on(later.set("q/a", HOUR, "")),
        Err(TimerError::Closed)
    ));
}

#[test]
fn a_list_goes_over_all_pages_and_ends() {
    let timers = open(inline(|_| ()));
    for key in 0..25_u64 {
        timers
            .set(("q", key.to_string()), HOUR + Duration::from_secs(key), ())
            .unwrap();
    }
    let queue = QueueName::new("q").unwrap();
    for limit in [1, 7, 25, 100] {
        let filter = Filter {
            limit,
            ..Filter::queue(queue.clone())
        };
        let mut listed = timers.list(&filter);
        let keys: Vec<u64> = listed
            .by_ref()
            .map(|it| it.unwrap().name.key.as_str().parse().unwrap())
            .collect();
        assert_eq!(keys, (0..25).collect::<Vec<_>>(), "by {limit}");
        assert!(listed.next().is_none());
    }
    assert_eq!(timers.list(QueueName::new("empty").unwrap()).count(), 0);
}
