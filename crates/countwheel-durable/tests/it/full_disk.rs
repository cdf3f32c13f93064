//! What the scheduler does when the store has no room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_durable::store::{
    Change, DiskError, Filter, Lease, MemoryStore, OnDisk, Shard, Store, StoreError,
};
use countwheel_durable::{
    Attempt, AuditEntry, BatchError, Config, Due, Effect, Engine, Event, Note, Outcome,
    Precondition, QueueName, Request, Response, Shift, StateKind, Ticket, TimerError,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::support::ask::{name, remove, set};
use crate::support::forward::forward;

/// A store that has no room when it is told so.
struct Scarce {
    store: MemoryStore,
    /// There is room for what is urgent only.
    low: AtomicBool,
    /// There is none.
    full: AtomicBool,
}

impl Store for Scarce {
    forward!(store: acquire, settings, get, due, list, counts);

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        if self.full.load(Ordering::SeqCst) {
            let path = "scarce".into();
            return Err(DiskError::Full { path }.into());
        }
        self.store.commit(lease, changes)
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        Some(self)
    }
}

impl OnDisk for Scarce {
    fn has_room(&self) -> bool {
        !self.low.load(Ordering::SeqCst)
    }
}

struct Bench {
    clock: ManualClock,
    store: Arc<Scarce>,
    engine: Engine,
    started: Vec<Attempt>,
    batches: Vec<Result<Vec<Response>, BatchError>>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
        let store = Arc::new(Scarce {
            store: MemoryStore::new(7),
            low: AtomicBool::new(false),
            full: AtomicBool::new(false),
        });
        let shared = Arc::clone(&store);
        let engine = Engine::open(shared, Shard::ONLY, Arc::new(clock.clone()), config);
        Self {
            clock,
            store,
            engine: engine.unwrap(),
            started: Vec::new(),
            batches: Vec::new(),
        }
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let (started, batches) = (&mut self.started, &mut self.batches);
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::Start(attempt) => started.push(attempt),
            Effect::BatchAnswer(_, answer) => batches.push(answer),
        };
        self.engine.turn(events, sink).unwrap();
        answers
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        let events = vec![Event::Request(Ticket(1), request)];
        self.turn(events).pop().unwrap()
    }

    /// Lets the time come that the engine asks for, and no more turns than it asks for.
    fn wait(&mut self) -> Duration {
        let wake = self.engine.next_wake().unwrap();
        let span = wake.saturating_since(self.clock.timestamp());
        self.clock.advance(span);
        self.turn(vec![]);
        span
    }

    fn kinds(&self) -> Vec<u64> {
        let counts = self.store.counts(Shard::ONLY).unwrap();
        let of = |kind| counts.iter().map(|queue| queue.of(kind)).sum();
        StateKind::ALL.map(of).to_vec()
    }
}

fn done(attempt: &Attempt) -> Event {
    Event::Outcome {
        revision: attempt.revision,
        outcome: Outcome::done(),
    }
}

fn is_refused(answer: &Result<Response, TimerError>) -> bool {
    matches!(answer, Err(TimerError::StorageFull))
}

#[test]
fn without_room_removals_and_outcomes_are_taken_and_nothing_else() {
    let mut bench = Bench::new();
    for (key, seconds) in [("runs", 0), ("soon", 1), ("removed", 9), ("later", 60)] {
        bench.ask(set(key, seconds)).unwrap();
    }
    let running = bench.started.pop().unwrap();
    bench.store.low.store(true, Ordering::SeqCst);
    let refused = [
        set("new", 1),
        set("later", 1),
        Request::Move {
            name: name("later"),
            shift: Shift::To(Due::In(Duration::from_secs(5))),
            precondition: Precondition::None,
        },
        Request::Fire {
            name: name("later"),
        },
        Request::Revive {
            name: name("later"),
            due: Due::In(Duration::from_secs(5)),
        },
    ];
    for request in refused {
        assert!(is_refused(&bench.ask(request)));
    }
    assert_eq!(bench.engine.stats().refused, 5);
    bench.ask(remove("removed")).unwrap();
    // What came of a lease is judged by the lease.
    let token = running.lease_token();
    let (first, second) = (name("runs"), name("later"));
    let settle = Request::Settle {
        name: first,
        token,
        outcome: Outcome::done(),
    };
    let release = Request::Release {
        name: second,
        token,
    };
    for request in [settle, release] {
        let answer = bench.ask(request);
        assert!(answer.is_err() && !is_refused(&answer), "{answer:?}");
    }
    bench.clock.advance(Duration::from_secs(2));
    bench.turn(vec![done(&running)]);
    assert_eq!(bench.kinds(), [2, 0, 1, 0]);
    assert!(bench.started.is_empty());
    // Not at once, though a deadline has passed, and not never.
    assert_eq!(bench.wait(), Duration::from_millis(100));
    assert!(bench.started.is_empty());
    bench.store.low.store(false, Ordering::SeqCst);
    bench.wait();
    assert_eq!(bench.started.pop().unwrap().name, name("soon"));
    bench.ask(set("new", 1)).unwrap();
}

#[test]
fn what_cannot_be_committed_is_as_if_it_had_not_been() {
    let mut bench = Bench::new();
    for (key, seconds) in [("runs", 0), ("soon", 1), ("later", 60)] {
        bench.ask(set(key, seconds)).unwrap();
    }
    let running = bench.started.pop().unwrap();
    bench.clock.advance(Duration::from_secs(2));
    bench.store.full.store(true, Ordering::SeqCst);
    let mut before = bench.engine.stats();
    let answers = bench.turn(vec![
        Event::Request(Ticket(1), set("new", 1)),
        done(&running),
        Event::Request(Ticket(2), remove("later")),
    ]);
    assert!(answers.len() == 2 && answers.iter().all(is_refused));
    assert!(bench.started.is_empty(), "its claim is not durable");
    assert_eq!(bench.kinds(), [2, 1, 0, 0]);
    for _ in 0..3 {
        assert_eq!(bench.wait(), Duration::from_millis(100));
        assert!(bench.started.is_empty());
    }
    let mut after = bench.engine.stats();
    assert_eq!((after.refused, after.in_flight), (before.refused + 2, 1));
    assert_eq!((before.overdue.count, after.overdue.count), (0, 1));
    before.overdue = after.overdue;
    for stats in [&mut before, &mut after] {
        (stats.refused, stats.in_window) = (0, 0);
        (stats.refills, stats.scanned, stats.rebuilds) = (0, 0, 0);
        (stats.window_bytes, stats.catching_up) = (0, false);
    }
    assert_eq!(after, before, "nothing else is counted");
    bench.store.full.store(false, Ordering::SeqCst);
    bench.wait();
    assert_eq!(bench.kinds(), [1, 1, 1, 0], "the outcome was kept");
    bench.turn(vec![]);
    let started: Vec<_> = bench.started.drain(..).collect();
    assert_eq!(started.len(), 1);
    assert_eq!(
        (started[0].name.clone(), started[0].number),
        (name("soon"), 1)
    );
    bench.clock.advance(Duration::from_secs(60));
    bench.turn(vec![done(&started[0])]);
    assert_eq!(bench.started.len(), 1, "the window has the rest");
    assert_eq!(bench.kinds(), [0, 1, 2, 0]);
}

#[test]
fn an_engine_that_is_paused_still_waits_for_room_for_its_outcomes() {
    let mut bench = Bench::new();
    bench.ask(set("runs", 0)).unwrap();
    let running = bench.started.pop().unwrap();
    bench.engine.pause();
    bench.store.full.store(true, Ordering::SeqCst);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![done(&running)]);
    assert_eq!(bench.wait(), Duration::from_millis(100));
    bench.store.full.store(false, Ordering::SeqCst);
    assert_eq!(bench.wait(), Duration::from_millis(100));
    assert_eq!(bench.kinds(), [0, 0, 1, 0]);
    assert_eq!(bench.engine.stats().in_flight, 0);
    assert_eq!(bench.engine.next_wake(), None);
}

/// An operator makes room, and the log says so. What could not be committed has no entry.
#[test]
fn noted_removals_are_taken_without_room_and_each_entry_is_with_its_change() {
    let mut bench = Bench::new();
    for key in ["a", "b", "c"] {
        bench.ask(set(key, 60)).unwrap();
    }
    let noted = |request: Request, who: &str| {
        let note = Note::new(who, Duration::from_secs(3_600)).unwrap();
        request.noted(note)
    };
    let entries = |bench: &Bench| {
        let queue = QueueName::from_text("countwheel:internal/audit").unwrap();
        let page = bench
            .store
            .list(Shard::ONLY, &Filter::queue(queue))
            .unwrap();
        let entries = page.records.iter().map(|it| AuditEntry::of(it).unwrap());
        let notes = entries.map(|entry| String::from_utf8(entry.note).unwrap());
        notes.collect::<Vec<_>>()
    };
    bench.store.low.store(true, Ordering::SeqCst);
    let fire = Request::Fire { name: name("a") };
    assert!(is_refused(&bench.ask(noted(fire, "fire"))));
    bench.ask(noted(remove("a"), "first")).unwrap();
    assert_eq!(entries(&bench), ["first"]);
    bench.store.full.store(true, Ordering::SeqCst);
    assert!(is_refused(&bench.ask(noted(remove("b"), "in vain"))));
    assert_eq!(entries(&bench), ["first"]);
    bench.store.full.store(false, Ordering::SeqCst);
    bench.ask(noted(remove("b"), "second")).unwrap();
    assert_eq!(entries(&bench), ["first", "second"]);
}

#[test]
fn a_batch_needs_room_unless_it_only_removes() {
    let mut bench = Bench::new();
    bench.ask(set("kept", 60)).unwrap();
    bench.ask(set("removed", 60)).unwrap();
    bench.store.low.store(true, Ordering::SeqCst);
    let mixed = vec![remove("kept"), set("new", 60)];
    bench.turn(vec![Event::Batch(Ticket(1), mixed)]);
    let refused = bench.batches.pop().unwrap().unwrap_err();
    assert!(matches!(refused.error, TimerError::StorageFull));
    bench.turn(vec![Event::Batch(Ticket(2), vec![remove("removed")])]);
    assert!(bench.batches.pop().unwrap().is_ok());
    bench.store.low.store(false, Ordering::SeqCst);
    bench.store.full.store(true, Ordering::SeqCst);
    bench.turn(vec![Event::Batch(Ticket(3), vec![remove("kept")])]);
    let refused = bench.batches.pop().unwrap().unwrap_err();
    assert!(matches!(refused.error, TimerError::StorageFull));
    assert_eq!(bench.kinds(), [1, 0, 0, 0]);
}

#[test]
fn without_room_nobody_waits_for_what_was_deferred() {
    let mut bench = Bench::with(Config {
        max_batch_bytes: 1,
        ..Config::default()
    });
    let long = |key: &str, seconds| {
        let mut request = set(key, seconds);
        if let Request::Set { payload, .. } = &mut request {
            *payload = vec![0; 8];
        }
        request
    };
    for key in ["a", "b", "c"] {
        bench.ask(long(key, 1)).unwrap();
    }
    while bench.started.len() < 3 {
        bench.wait();
    }
    bench.store.full.store(true, Ordering::SeqCst);
    // One more of each than a commit takes.
    let mut events: Vec<_> = bench.started.iter().map(done).collect();
    events.push(Event::Request(Ticket(1), long("d", 1)));
    events.push(Event::Request(Ticket(2), remove("a")));
    events.push(Event::Batch(Ticket(3), vec![long("e", 1)]));
    let answers = bench.turn(events);
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(is_refused), "{answers:?}");
    assert!(matches!(bench.batches[..], [Err(_)]));
    assert_eq!(bench.engine.stats().refused, 3);
    assert_eq!(bench.engine.deferred(), 0);
    assert!(
        bench.wait() > Duration::ZERO,
        "it does not ask again at once"
    );

    bench.store.full.store(false, Ordering::SeqCst);
    while bench.kinds()[StateKind::Done as usize] < 3 {
        bench.wait();
    }
}
