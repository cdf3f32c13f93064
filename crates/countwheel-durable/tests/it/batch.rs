//! A batch is done as a whole or not at all.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, BatchError, Config, Effect, Engine, Event, Outcome, Precondition, Request, Response,
    Revision, Set, Shift, Ticket, TimerError, Timers,
};
use countwheel_time::{ManualClock, SystemClock};

use crate::support::ask::{name, remove, set};

struct Bench {
    clock: ManualClock,
    store: MemoryStore,
    engine: Engine,
    started: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let (clock, store) = (ManualClock::new(), MemoryStore::new(7));
        let shared = Arc::new(clock.clone());
        let engine = Engine::open(Arc::new(store.clone()), Shard::ONLY, shared, config).unwrap();
        Self {
            clock,
            store,
            engine,
            started: Vec::new(),
        }
    }

    fn ask(&mut self, requests: Vec<Request>) -> Result<Vec<Response>, BatchError> {
        let mut answers = self.turn(vec![Event::Batch(Ticket(0), requests)]);
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Vec<Response>, BatchError>> {
        let (mut answers, started) = (Vec::new(), &mut self.started);
        let sink = &mut |effect| match effect {
            Effect::BatchAnswer(_, answer) => answers.push(answer),
            Effect::Start(attempt) => started.push(attempt.name.key.to_string()),
            Effect::Answer(..) => {}
        };
        self.engine.turn(events, sink).unwrap();
        answers
    }

    fn wait(&mut self, seconds: u64) -> Vec<String> {
        for _ in 0..seconds {
            self.clock.advance(Duration::from_secs(1));
            self.turn(vec![]);
        }
        std::mem::take(&mut self.started)
    }

    fn has(&self, key: &str) -> bool {
        self.store.get(Shard::ONLY, &name(key)).unwrap().is_some()
    }
}

fn later(key: &str, seconds: u64) -> Request {
    Request::Move {
        name: name(key),
        shift: Shift::Later(Duration::from_secs(seconds)),
        precondition: Precondition::None,
    }
}

#[test]
fn a_batch_is_done_in_order_and_in_one_commit() {
    let mut bench = Bench::new();
    let all = vec![
        set("a", 1),
        set("b", 1),
        later("a", 4),
        remove("b"),
        set("b", 3),
    ];
    assert_eq!(bench.ask(all).unwrap().len(), 5);
    let stats = bench.engine.stats();
    assert_eq!((stats.commits, stats.changes), (1, 2));
    assert_eq!(bench.wait(2), [""; 0]);
    assert_eq!(bench.wait(1), ["b"]);
    assert_eq!(bench.wait(2), ["a"]);
}

#[test]
fn a_batch_with_a_request_that_is_refused_does_nothing() {
    let mut bench = Bench::new();
    bench
        .ask(vec![set("moved", 2), set("removed", 3), set("replaced", 4)])
        .unwrap();
    let before = bench.engine.stats();
    let refused = bench
        .ask(vec![
            later("moved", 100),
            remove("removed"),
            set("replaced", 100),
            set("new", 1),
            later("new", 1),
            remove("nobody"),
            set("after", 1),
        ])
        .unwrap_err();
    assert_eq!(refused.index, Some(5));
    assert!(matches!(refused.error, TimerError::NotFound));
    let after = bench.engine.stats();
    assert_eq!((after.set, after.moved), (before.set, before.moved));
    assert_eq!((after.removed, after.refused), (0, 1));
    assert_eq!((after.commits, after.in_window), (1, 3));
    assert!(!bench.has("new") && !bench.has("after"));
    // What was there before comes at its time.
    assert_eq!(bench.wait(2), ["moved"]);
    assert_eq!(bench.wait(1), ["removed"]);
    assert_eq!(bench.wait(1), ["replaced"]);
    // No revision was used up, and none is given twice.
    let responses = bench.ask(vec![set("next", 1)]).unwrap();
    let expected = Revision(4);
    assert!(matches!(responses[0], Response::Set(Set { revision, .. }) if revision == expected));
}

#[test]
fn what_comes_before_and_after_a_refused_batch_in_the_same_turn_holds() {
    let mut bench = Bench::new();
    let answers = bench.turn(vec![
        Event::Request(Ticket(0), set("a", 2)),
        Event::Batch(Ticket(1), vec![remove("a"), set("b", 1), remove("c")]),
        Event::Request(Ticket(2), later("a", 1)),
        Event::Batch(Ticket(3), vec![set("b", 4)]),
    ]);
    assert!(answers[0].is_err() && answers[1].is_ok());
    assert_eq!(bench.wait(2), [""; 0]);
    assert_eq!(bench.wait(1), ["a"]);
    assert_eq!(bench.wait(1), ["b"]);
}

#[test]
fn a_batch_with_too_much_payload_is_refused_though_it_only_moves_or_removes() {
    let mut bench = Bench::with(Config {
        max_batch_bytes: 1_000,
        ..Config::default()
    });
    let long = |key: &str, bytes| {
        let mut request = set(key, 1);
        if let Request::Set { payload, .. } = &mut request {
            *payload = vec![0; bytes];
        }
        request
    };
    bench.ask(vec![long("a", 500), long("b", 500)]).unwrap();
    // One request may be as long as a payload may be.
    bench.ask(vec![long("c", 5_000)]).unwrap();
    bench.ask(vec![later("a", 1), later("b", 1)]).unwrap();
    let refused = bench.ask(vec![later("a", 9), later("c", 9), remove("b")]);
    let refused = refused.unwrap_err();
    assert_eq!(refused.index, Some(1));
    assert!(matches!(
        refused.error,
        TimerError::BatchTooLong { limit: 1_000 }
    ));
    // What is removed may have to be put back.
    let refused = bench.ask(vec![remove("b"), remove("c")]).unwrap_err();
    assert_eq!(refused.index, Some(1));
    bench.ask(vec![remove("c")]).unwrap();
    assert_eq!(bench.wait(2), ["a", "b"]);
}

#[test]
fn a_batch_that_is_too_large_is_refused_as_a_whole_and_an_empty_one_is_answered() {
    let handler = |_: &Attempt| Outcome::done();
    let config = Config {
        max_together: 4,
        ..Config::default()
    };
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), handler, clock, config).unwrap();
    let ask = |count: usize| {
        let (send, receive) = mpsc::channel();
        let requests = (0..count).map(|i| set(&format!("{i}"), 60)).collect();
        timers.submit_batch(requests, move |answer| send.send(answer).unwrap());
        receive.recv().unwrap()
    };
    let refused = ask(5).unwrap_err();
    assert_eq!(refused.index, None);
    let TimerError::BatchTooLarge { requests, limit } = refused.error else {
        panic!("{refused:?}");
    };
    assert_eq!((requests, limit), (5, 4));
    assert!(timers.get(name("0")).unwrap().is_none());
    assert_eq!(ask(0).unwrap(), []);
    assert_eq!(ask(4).unwrap().len(), 4);
    timers.stop(Duration::ZERO);
    assert!(matches!(ask(1).unwrap_err().error, TimerError::Closed));
}
