//! What commits did, as it is told and kept.

use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Fence, MemoryStore, Shard};
use countwheel_durable::{
    Config, Due, Engine, Event, EventKind, EventLog, EventPosition, FutureEvent, Precondition,
    Request, RetryPolicy, SetOptions, SettingName, Ticket, TimerEvent, TimerName,
};
use countwheel_time::{ManualClock, Timestamp};

struct Bench {
    store: MemoryStore,
    clock: ManualClock,
    log: Arc<EventLog>,
}

impl Bench {
    fn new(most: usize) -> Self {
        Self {
            store: MemoryStore::new(7),
            clock: ManualClock::new(),
            log: Arc::new(EventLog::new(most, EventLog::BYTES)),
        }
    }

    fn open(&self) -> Engine {
        let config = Config {
            events: Some(self.log.clone()),
            ..Config::default()
        };
        let clock = Arc::new(self.clock.clone());
        Engine::open(Arc::new(self.store.clone()), Shard::ONLY, clock, config).unwrap()
    }

    /// All that follows, and before which numbers there were gaps.
    fn read(&self, mut after: Option<EventPosition>) -> (Vec<EventKind>, Vec<u64>) {
        let (mut kinds, mut gaps) = (Vec::new(), Vec::new());
        while let Some(chunk) = self.log.read(Shard::ONLY, after).unwrap() {
            kinds.extend(chunk.events().iter().map(|event| event.kind));
            gaps.extend(chunk.gap.then_some(chunk.first));
            after = Some(chunk.end());
        }
        (kinds, gaps)
    }

    fn end(&self) -> EventPosition {
        self.log.end(Shard::ONLY).unwrap()
    }
}

fn set(key: &str) -> Request {
    Request::Set {
        name: TimerName::new("orders", key).unwrap(),
        due: Due::In(Duration::from_secs(60)),
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn remove(key: &str) -> Request {
    Request::Remove {
        name: TimerName::new("orders", key).unwrap(),
        precondition: Precondition::None,
        only_pending: false,
    }
}

fn turn(engine: &mut Engine, requests: Vec<Request>) {
    let events = requests.into_iter().zip(1..);
    let events = events.map(|(request, ticket)| Event::Request(Ticket(ticket), request));
    engine.turn(events.collect(), &mut |_| {}).unwrap();
}

#[test]
fn two_changes_of_one_commit_are_two_events() {
    let bench = Bench::new(100);
    let mut engine = bench.open();
    let start = bench.end();
    let name = TimerName::new("orders", "k").unwrap();
    let fire = Request::Fire { name };
    turn(&mut engine, vec![set("k"), fire, remove("k"), remove("k")]);
    let told = [EventKind::Set, EventKind::Fired, EventKind::Removed];
    assert_eq!(bench.read(Some(start)), (told.to_vec(), vec![]));
}

#[test]
fn a_refused_batch_tells_nothing() {
    let bench = Bench::new(100);
    let mut engine = bench.open();
    let start = bench.end();
    let batch = Event::Batch(Ticket(1), vec![set("k"), remove("nothing")]);
    engine.turn(vec![batch], &mut |_| {}).unwrap();
    assert_eq!(bench.end(), start);
}

#[test]
fn a_reader_behind_the_oldest_event_has_a_gap() {
    let bench = Bench::new(3);
    let mut engine = bench.open();
    let start = bench.end();
    for key in ["a", "b", "c", "d", "e"] {
        turn(&mut engine, vec![set(key)]);
    }
    let at = |number| {
        Some(EventPosition {
            number,
            ..bench.end()
        })
    };
    assert_eq!(bench.read(Some(start)), (vec![EventKind::Set; 3], vec![3]));
    assert_eq!(bench.read(at(1)), (vec![EventKind::Set; 3], vec![3]));
    // The next one is the oldest.
    assert_eq!(bench.read(at(2)), (vec![EventKind::Set; 3], vec![]));
    assert_eq!(bench.read(at(5)), (vec![], vec![]));
    let position = at(6).unwrap();
    let future = FutureEvent {
        shard: Shard::ONLY,
        position,
    };
    assert_eq!(bench.log.read(Shard::ONLY, at(6)).unwrap_err(), future);
}

#[test]
fn bytes_are_bounded_as_well() {
    let bench = Bench {
        log: Arc::new(EventLog::new(EventLog::EVENTS, 2_000)),
        ..Bench::new(1)
    };
    let mut engine = bench.open();
    for number in 0..100 {
        turn(&mut engine, vec![set(&format!("k-{number}"))]);
    }
    let (events, bytes) = bench.log.held();
    assert!(bytes <= 2_000 && (1..100).contains(&events), "{bytes}");
    assert_eq!(bench.read(None).0.len(), events);
}

#[test]
fn a_term_goes_on_in_the_next_if_its_owner_ended_it() {
    let bench = Bench::new(100);
    let mut engine = bench.open();
    turn(&mut engine, vec![set("a")]);
    let place = bench.end();
    engine.abandon().unwrap();
    let mut engine = bench.open();
    turn(&mut engine, vec![set("b")]);
    assert_eq!(bench.read(Some(place)), (vec![EventKind::Set], vec![]));
    // This one ends without a word.
    let place = bench.end();
    let mut engine = bench.open();
    turn(&mut engine, vec![set("c")]);
    assert_eq!(bench.read(Some(place)), (vec![EventKind::Set], vec![1]));
}

#[test]
fn a_copy_has_what_was_told_and_no_more() {
    let bench = Bench::new(100);
    let mut engine = bench.open();
    let copy = EventLog::new(100, EventLog::BYTES);
    let copied = |most: usize| {
        let after = copy.end(Shard::ONLY);
        let told = bench.log.own(Shard::ONLY, after, most).into_iter();
        told.filter(|told| copy.copy(7, Shard::ONLY, told.clone()))
            .count()
    };
    assert_eq!(copied(10), 1);
    assert_eq!(copied(10), 0, "there is nothing new");
    for key in ["a", "b", "c"] {
        turn(&mut engine, vec![set(key)]);
    }
    // A commit at a time.
    assert_eq!((copied(1), copied(1), copied(1), copied(1)), (1, 1, 1, 0));
    assert_eq!(copy.end(Shard::ONLY), bench.log.end(Shard::ONLY));
    let place = copy.end(Shard::ONLY);
    engine.abandon().unwrap();
    let mut engine = bench.open();
    turn(&mut engine, vec![set("d")]);
    // The end of the one term, and the other.
    assert_eq!(copied(10), 2);
    let chunk = copy.read(Shard::ONLY, place).unwrap().unwrap();
    assert_eq!(
        (chunk.gap, chunk.first, chunk.events().len()),
        (false, 1, 1)
    );
    assert!(
        copy.own(Shard::ONLY, None, 10).is_empty(),
        "it owns nothing"
    );
}

#[test]
fn what_a_copy_misses_is_a_gap() {
    let copy = EventLog::new(100, EventLog::BYTES);
    let event = |number: u64| {
        let name = SettingName::new(format!("queue/{number}")).unwrap();
        TimerEvent::of_setting(name, true, Timestamp::EPOCH)
    };
    let told = |first: u64| countwheel_durable::OwnEvents {
        term: 3,
        first,
        events: vec![event(first), event(first + 1)],
        end: first + 1,
        is_closed: false,
    };
    assert!(copy.copy(7, Shard(2), told(1)));
    assert!(copy.copy(7, Shard(2), told(2)), "the second of them is new");
    assert!(copy.copy(7, Shard(2), told(10)));
    let at = |number| {
        Some(EventPosition {
            term: Fence(3),
            number,
        })
    };
    let chunk = copy.read(Shard(2), at(3)).unwrap().unwrap();
    assert_eq!((chunk.gap, chunk.first), (true, 10));
    assert_eq!(copy.end(Shard(2)), at(11));
    assert_eq!(copy.store(), 7);
}
