//! Sets that are repeated: one sentence each, under a clock that is moved by hand. `sim receipts` has the worlds.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::MemoryStore;
use countwheel_durable::{
    Config, Due, Namespace, Precondition, QueueName, Receipt, Request, Response, RetryPolicy, Set,
    SetOptions, Shards, StateKind, TimerError, TimerName, Timers, inline,
};
use countwheel_time::{ManualClock, Timestamp};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const DAY: Duration = Duration::from_secs(86_400);

fn receipt(key: u8, body: u8) -> Receipt {
    Receipt {
        key: [key; 16],
        fingerprint: [body; 32],
        keep: DAY,
    }
}

fn once(name: &str, receipt: Receipt, due: Duration) -> Request {
    Request::Set {
        name: TimerName::new("orders", name).unwrap(),
        due: Due::In(due),
        policy: RetryPolicy::default(),
        payload: b"body".to_vec(),
        precondition: Precondition::None,
        options: SetOptions {
            receipt: Some(Box::new(receipt)),
            ..SetOptions::default()
        },
    }
}

fn set(timers: &Timers, request: Request) -> Result<Set, TimerError> {
    match timers.call(request)? {
        Response::Set(set) => Ok(set),
        other => panic!("{other:?}"),
    }
}

fn open(store: &MemoryStore, clock: &ManualClock, shards: Shards) -> Timers {
    let clock = Arc::new(clock.clone());
    let (handler, config) = (inline(|_| ()), Config::default());
    Timers::open_divided(store.clone(), shards, shards.all(), handler, clock, config).unwrap()
}

fn remove(timers: &Timers, name: &str) {
    timers.remove(("orders", name)).unwrap();
}

#[test]
fn a_repeated_set_is_answered_like_the_first_whatever_became_of_the_timer() {
    let (store, clock) = (MemoryStore::new(7), ManualClock::at(NOON));
    let timers = open(&store, &clock, Shards::ONE);
    let ask = |timers: &Timers| set(timers, once("a", receipt(1, 1), 2 * DAY));
    let first = ask(&timers).unwrap();
    assert!(!first.replayed);
    let again = Set {
        replayed: true,
        ..first
    };
    clock.advance(Duration::from_secs(60));
    assert_eq!(ask(&timers).unwrap(), again);
    let later = Due::In(3 * DAY);
    timers
        .set_with(("orders", "a"), later, RetryPolicy::default(), "other")
        .unwrap();
    assert_eq!(ask(&timers).unwrap(), again);
    remove(&timers, "a");
    assert_eq!(ask(&timers).unwrap(), again);
    timers.stop(Duration::ZERO);
    let timers = open(&store, &clock, Shards::ONE);
    assert_eq!(ask(&timers).unwrap(), again);
    // It set nothing.
    assert!(timers.get(("orders", "a")).unwrap().is_none());
}

#[test]
fn another_set_under_the_key_is_refused() {
    let timers = open(&MemoryStore::new(7), &ManualClock::at(NOON), Shards::ONE);
    let first = set(&timers, once("a", receipt(1, 1), DAY)).unwrap();
    let other = set(&timers, once("a", receipt(1, 2), DAY));
    assert!(
        matches!(other, Err(TimerError::ReceiptMismatch)),
        "{other:?}"
    );
    let kept = timers.get(("orders", "a")).unwrap().unwrap();
    assert_eq!(kept.id, first.id);
    // Of another key, the same is another set.
    let other = set(&timers, once("b", receipt(2, 1), DAY)).unwrap();
    assert!(!other.replayed && other.id != first.id);
}

#[test]
fn a_receipt_ends_with_its_time_and_replaces_no_timer() {
    let (store, clock) = (MemoryStore::new(7), ManualClock::at(NOON));
    let timers = open(&store, &clock, Shards::ONE);
    let first = set(&timers, once("a", receipt(1, 1), 3 * DAY)).unwrap();
    clock.advance(DAY - Duration::from_micros(1));
    assert!(
        set(&timers, once("a", receipt(1, 1), 3 * DAY))
            .unwrap()
            .replayed
    );
    clock.advance(Duration::from_micros(1));
    let refused = set(&timers, once("a", receipt(1, 1), 3 * DAY));
    let state = StateKind::Pending;
    assert!(
        matches!(refused, Err(TimerError::Exists { state: found }) if found == state),
        "{refused:?}"
    );
    remove(&timers, "a");
    let anew = set(&timers, once("a", receipt(1, 2), 3 * DAY)).unwrap();
    assert!(!anew.replayed && anew.id != first.id);
}

#[test]
fn a_set_that_is_refused_leaves_no_receipt() {
    let timers = open(&MemoryStore::new(7), &ManualClock::at(NOON), Shards::ONE);
    let plain = |timers: &Timers| {
        let (due, policy) = (Due::In(DAY), RetryPolicy::default());
        timers.set_with(("orders", "a"), due, policy, "").unwrap();
    };
    plain(&timers);
    let refused = set(&timers, once("a", receipt(1, 1), DAY));
    assert!(
        matches!(refused, Err(TimerError::Exists { .. })),
        "{refused:?}"
    );
    remove(&timers, "a");
    assert!(
        !set(&timers, once("a", receipt(1, 2), DAY))
            .unwrap()
            .replayed
    );
}

#[test]
fn receipts_are_in_no_count_and_no_request_is_about_one() {
    for shards in [Shards::ONE, Shards::new(4).unwrap()] {
        let timers = open(&MemoryStore::new(7), &ManualClock::at(NOON), shards);
        for number in 1..=9 {
            let name = format!("a{number}");
            set(&timers, once(&name, receipt(number, 1), 2 * DAY)).unwrap();
        }
        let counts = timers.counts().unwrap();
        assert_eq!(counts.len(), 1, "{counts:?}");
        assert_eq!(counts[0].by_state, [9, 0, 0, 0]);
        let page = timers.counts_after(None, 10).unwrap();
        assert_eq!(page, counts);
        assert_eq!(timers.counts_after(None, 1).unwrap(), counts);
        let overview = timers.overview(1).unwrap();
        assert_eq!(
            (overview.totals.queues, overview.totals.by_state),
            (1, [9, 0, 0, 0])
        );
        assert_eq!(overview.queues.len(), 1);
        let by_shard = shards.all().map(|shard| timers.totals_of(shard).unwrap());
        let dead: u64 = by_shard.map(|totals| totals.of(StateKind::Dead)).sum();
        assert_eq!(dead, 0);
        let namespace = Namespace::new(Namespace::RESERVED).unwrap();
        let queue = QueueName::in_namespace(&namespace, "receipts").unwrap();
        let refused = timers.set((&queue, "x"), DAY, "");
        assert!(matches!(refused, Err(TimerError::Name(_))), "{refused:?}");
    }
}
