//! A turn in its two halves, and stores that are far away: read in one piece, not always there, and
//! lost at times.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::store::{
    Change, DuePage, DueScan, Found, Lease, MemoryStore, Shard, Store, StoreError,
};
use countwheel_durable::{
    Attempt, Config, Due, Effect, Engine, Event, Outcome, Precondition, Record, Request, Response,
    RetryPolicy, SetOptions, Settings, SettingsVersion, State, Ticket, TimerError, TimerName,
    Timers, Verdict, inline,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::support::forward::forward;

/// A store that counts how it is read, and fails as it is told to.
struct Far {
    store: MemoryStore,
    single: AtomicU64,
    many: AtomicU64,
    /// Whether a read of many names is answered.
    in_bulk: AtomicBool,
    /// The next calls that are not available, by name.
    unavailable: Mutex<VecDeque<&'static str>>,
    lease_ended: Arc<AtomicBool>,
}

impl Far {
    fn new(in_bulk: bool) -> Self {
        Self {
            store: MemoryStore::new(7),
            single: AtomicU64::new(0),
            many: AtomicU64::new(0),
            in_bulk: AtomicBool::new(in_bulk),
            unavailable: Mutex::default(),
            lease_ended: Arc::default(),
        }
    }

    fn call(&self, name: &str) -> Result<(), StoreError> {
        let mut next = self.unavailable.lock().unwrap();
        if next.front() == Some(&name) {
            next.pop_front();
            let reason = "the connection was lost".to_owned();
            return Err(StoreError::Unavailable { reason });
        }
        Ok(())
    }

    fn fail(&self, calls: &[&'static str]) {
        self.unavailable.lock().unwrap().extend(calls);
    }

    fn reads(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::SeqCst);
        (take(&self.many), take(&self.single))
    }
}

impl Store for Far {
    forward!(store: acquire, list, counts);

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.call("commit")?;
        self.store.commit(lease, changes)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.call("settings")?;
        self.store.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.call("get")?;
        self.single.fetch_add(1, Ordering::SeqCst);
        self.store.get(shard, name)
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        if !self.in_bulk.load(Ordering::SeqCst) {
            return Ok(Found::default());
        }
        let mut names = names.peekable();
        if names.peek().is_none() {
            return Ok(Found::default());
        }
        self.call("get_many")?;
        self.many.fetch_add(1, Ordering::SeqCst);
        self.store.get_many(shard, &mut names, bytes)
    }

    fn may_start(&self, _: Lease) -> bool {
        !self.lease_ended.load(Ordering::SeqCst)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.call("due")?;
        self.store.due(shard, scan)
    }
}

#[test]
fn an_attempt_knows_when_its_lease_is_over() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(
        1_772_366_400_000_000,
    )));
    let store = Far::new(false);
    let lease_ended = Arc::clone(&store.lease_ended);
    let (send, attempts) = std::sync::mpsc::channel();
    let handler = inline(move |attempt| send.send(attempt.clone()).unwrap());
    let timers = Timers::open(store, handler, clock, Config::default()).unwrap();
    timers.set("orders/a", Duration::ZERO, "").unwrap();
    let attempt = attempts.recv().unwrap();
    assert!(attempt.may_start());
    lease_ended.store(true, Ordering::SeqCst);
    assert!(!attempt.may_start());
    // Nobody took the shard.
    lease_ended.store(false, Ordering::SeqCst);
    assert!(attempt.may_start());
    drop(timers);
    assert!(!attempt.may_start());
}

struct Bench {
    clock: ManualClock,
    store: Arc<Far>,
    engine: Engine,
    started: Vec<Attempt>,
}

impl Bench {
    fn new(in_bulk: bool) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
        let store = Arc::new(Far::new(in_bulk));
        let engine = open(&store, &clock);
        Self {
            clock,
            store,
            engine,
            started: Vec::new(),
        }
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let started = &mut self.started;
        let result = self.engine.turn(events, &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::Start(attempt) => started.push(attempt),
            Effect::BatchAnswer(..) => unreachable!(),
        });
        result.unwrap();
        answers
    }

    fn stored(&self, key: &str) -> Record {
        self.store
            .store
            .get(Shard::ONLY, &name(key))
            .unwrap()
            .unwrap()
    }
}

fn open(store: &Arc<Far>, clock: &ManualClock) -> Engine {
    let (store, clock) = (store.clone(), Arc::new(clock.clone()));
    Engine::open(store, Shard::ONLY, clock, Config::default()).unwrap()
}

fn name(key: &str) -> TimerName {
    TimerName::new("orders", key).unwrap()
}

fn set(ticket: u64, key: &str, seconds: u64, payload: Vec<u8>) -> Event {
    let set = Request::Set {
        name: name(key),
        due: Due::In(Duration::from_secs(seconds)),
        policy: RetryPolicy::default(),
        payload,
        precondition: Precondition::None,
        options: SetOptions::default(),
    };
    Event::Request(Ticket(ticket), set)
}

fn done(attempt: &Attempt) -> Event {
    Event::Outcome {
        revision: attempt.revision,
        outcome: Outcome::new(Verdict::Done, "200"),
    }
}

#[test]
fn a_life_needs_a_read_in_one_piece_for_each_turn_and_none_for_the_outcome() {
    let mut bench = Bench::new(true);
    let sets = (0..100).map(|i| set(i, &format!("{i}"), 5, vec![7; 200]));
    bench.turn(sets.collect());
    assert_eq!(bench.store.reads(), (1, 0));

    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![]);
    assert_eq!(bench.started.len(), 100);
    assert_eq!(bench.store.reads(), (1, 0));

    let outcomes = bench.started.iter().map(done).collect();
    bench.turn(outcomes);
    assert_eq!(bench.store.reads(), (0, 0));
    assert!(matches!(bench.stored("42").state, State::Done { .. }));
    assert_eq!(bench.stored("42").payload, vec![7; 200]);
}

#[test]
fn a_store_that_reads_one_by_one_is_asked_for_each_name_once() {
    let mut bench = Bench::new(false);
    bench.turn(
        (0..10)
            .map(|i| set(i, &format!("{i}"), 5, vec![]))
            .collect(),
    );
    assert_eq!(bench.store.reads(), (0, 10));
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![]);
    assert_eq!(bench.store.reads(), (0, 10));
    let outcomes = bench.started.iter().map(done).collect();
    bench.turn(outcomes);
    assert_eq!(bench.store.reads(), (0, 0));
}

#[test]
fn a_long_payload_is_not_kept_while_its_attempt_runs() {
    let mut bench = Bench::new(false);
    bench.turn(vec![
        set(1, "short", 5, vec![1; 64 << 10]),
        set(2, "long", 5, vec![2; (64 << 10) + 1]),
    ]);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![]);
    bench.store.reads();
    let outcomes = bench.started.iter().map(done).collect();
    bench.turn(outcomes);
    assert_eq!(bench.store.reads(), (0, 1));
    assert_eq!(bench.stored("long").payload.len(), (64 << 10) + 1);
    assert_eq!(bench.stored("short").payload.len(), 64 << 10);
}

#[test]
fn what_is_kept_of_an_attempt_gives_way_to_what_changed_since() {
    let mut bench = Bench::new(false);
    bench.turn(vec![set(1, "a", 5, b"old".to_vec())]);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![]);
    // Replaced while it runs: the outcome is of the one before.
    bench.turn(vec![set(2, "a", 60, b"new".to_vec())]);
    let outcome = done(&bench.started[0]);
    bench.turn(vec![outcome]);
    let stored = bench.stored("a");
    assert_eq!(
        (stored.state, stored.payload),
        (State::Pending, b"new".to_vec())
    );
    assert_eq!(bench.engine.stats().outdated, 1);
}

#[test]
fn others_may_act_between_the_halves() {
    let mut bench = Bench::new(true);
    let turn = bench.engine.begin(vec![set(1, "a", 5, vec![])]).unwrap();
    assert_eq!(turn.lease().shard, Shard::ONLY);
    assert!(matches!(
        turn.changes(),
        [Change::Put { .. }, Change::Clock(_)]
    ));
    // Another owner takes the shard before the commit.
    let _taken = bench.store.acquire(Shard::ONLY).unwrap();
    let committed = bench.store.commit(turn.lease(), turn.changes());
    let ended = bench
        .engine
        .end(turn, committed, &mut |effect| panic!("{effect:?}"));
    assert!(matches!(ended, Err(StoreError::Fenced { .. })));
    assert!(matches!(
        bench.engine.begin(vec![]),
        Err(StoreError::Poisoned)
    ));
}

#[test]
fn an_engine_whose_turn_was_not_ended_takes_no_other() {
    let mut bench = Bench::new(true);
    drop(bench.engine.begin(vec![set(1, "a", 5, vec![])]).unwrap());
    assert!(matches!(
        bench.engine.begin(vec![]),
        Err(StoreError::Poisoned)
    ));
    let turned = bench.engine.turn(vec![], &mut |_| ());
    assert!(matches!(turned, Err(StoreError::Poisoned)));
}

/// Whichever call is not available, nothing is lost, and what was asked is answered.
#[test]
fn a_store_that_is_not_available_is_asked_again() {
    for call in ["get_many", "get", "commit", "due"] {
        let mut bench = Bench::new(call != "get");
        bench.turn(vec![set(1, "runs", 5, vec![]), set(2, "waits", 6, vec![])]);
        bench.clock.advance(Duration::from_secs(5));
        bench.turn(vec![]);
        assert_eq!(bench.started.len(), 1, "{call}");
        if call == "due" {
            // The window is read anew after a step back, and only then.
            let wall = bench.clock.timestamp();
            bench
                .clock
                .set_timestamp(wall.saturating_sub(Duration::from_secs(60)));
        }
        bench.clock.advance(Duration::from_secs(1));

        bench.store.fail(&[call]);
        let outcome = done(&bench.started[0]);
        let answers = bench.turn(vec![outcome, set(3, "new", 60, vec![])]);
        let [Err(TimerError::Unavailable { reason })] = &answers[..] else {
            panic!("{call}: {answers:?}");
        };
        assert_eq!(reason, "the connection was lost");
        assert!(bench.store.unavailable.lock().unwrap().is_empty(), "{call}");
        assert_eq!(bench.started.len(), 1, "{call}");
        let stored = bench.store.store.get(Shard::ONLY, &name("new")).unwrap();
        assert!(stored.is_none(), "{call}");

        // It asks for another turn by itself, not at once, and everything goes on.
        let wait = bench.engine.next_wake().unwrap();
        let wait = wait.saturating_since(bench.clock.timestamp());
        assert!(
            wait > Duration::ZERO && wait <= Duration::from_millis(100),
            "{call}"
        );
        bench.clock.advance(wait);
        bench.turn(vec![]);
        assert_eq!(bench.started.len(), 2, "{call}");
        assert_eq!(bench.started[1].name, name("waits"), "{call}");
        assert!(
            matches!(bench.stored("runs").state, State::Done { .. }),
            "{call}"
        );
        assert!(
            bench.turn(vec![set(4, "new", 60, vec![])])[0].is_ok(),
            "{call}"
        );
    }
}

#[test]
fn a_store_may_forget_done_timers_by_itself() {
    let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
    let store = Arc::new(MemoryStore::new(7).forgetting(Arc::new(clock.clone())));
    let open = || {
        let (store, clock) = (store.clone(), Arc::new(clock.clone()));
        Engine::open(store, Shard::ONLY, clock, Config::default()).unwrap()
    };
    let mut engine = open();
    let mut started = Vec::new();
    let mut sink = |effect| {
        if let Effect::Start(attempt) = effect {
            started.push(attempt);
        }
    };
    engine
        .turn(vec![set(1, "a", 5, vec![])], &mut sink)
        .unwrap();
    clock.advance(Duration::from_secs(5));
    engine.turn(vec![], &mut sink).unwrap();
    let outcome = done(&started[0]);
    engine.turn(vec![outcome], &mut |_| ()).unwrap();
    let get = || store.get(Shard::ONLY, &name("a")).unwrap();
    assert!(matches!(get().unwrap().state, State::Done { .. }));
    // Nobody has to wake for it, now and after another opening.
    assert_eq!(engine.stats().in_window, 0);
    assert_eq!(engine.next_wake(), None);
    drop(engine);
    let mut engine = open();
    engine
        .turn(vec![], &mut |effect| panic!("{effect:?}"))
        .unwrap();
    assert_eq!((engine.stats().in_window, engine.next_wake()), (0, None));
    clock.advance(Config::default().keep_done);
    assert!(get().is_none());
    engine
        .turn(vec![], &mut |effect| panic!("{effect:?}"))
        .unwrap();
    assert_eq!(engine.stats().forgotten, 0);
}

#[test]
fn nothing_leaves_once_the_lease_has_ended() {
    let mut bench = Bench::new(true);
    bench.turn(vec![set(1, "a", 5, vec![])]);
    bench.clock.advance(Duration::from_secs(5));
    bench.store.lease_ended.store(true, Ordering::SeqCst);
    let turned = bench
        .engine
        .turn(vec![], &mut |effect| panic!("{effect:?}"));
    assert!(matches!(turned, Err(StoreError::Lost { .. })));
    // Who takes the shard goes on: that the attempt was claimed is all that happened to it.
    bench.store.lease_ended.store(false, Ordering::SeqCst);
    bench.engine = open(&bench.store, &bench.clock);
    bench.turn(vec![]);
    assert_eq!(bench.started[0].number, 2);
}

/// An owner that was replaced said that a timer was being delivered, since it kept the record of an
/// attempt in memory: the next owner had long removed it. A refusal changes nothing, so there was no
/// commit that the store could refuse.
#[test]
fn no_answer_without_a_commit_leaves_once_the_lease_has_ended() {
    let mut bench = Bench::new(true);
    bench.turn(vec![set(1, "a", 5, vec![])]);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![]);
    assert_eq!(bench.started.len(), 1);

    let fire = |ticket| Event::Request(Ticket(ticket), Request::Fire { name: name("a") });
    let answers = bench.turn(vec![fire(2)]);
    assert!(matches!(&answers[..], [Err(TimerError::Conflict { .. })]));
    bench.store.lease_ended.store(true, Ordering::SeqCst);
    let turned = bench
        .engine
        .turn(vec![fire(3)], &mut |effect| panic!("{effect:?}"));
    assert!(matches!(turned, Err(StoreError::Lost { .. })));
}

/// A note of the clocks that could not be made ended the engine, and with it the hand-over: each
/// attempt that ran counted as interrupted by a crash.
#[test]
fn a_note_that_cannot_be_made_does_not_end_a_hand_over() {
    let mut bench = Bench::new(true);
    bench.turn(vec![set(1, "a", 5, vec![])]);
    bench.clock.advance(Duration::from_secs(5));
    bench.turn(vec![]);
    bench.engine.pause();
    bench.store.fail(&["commit"]);
    let noted = bench.engine.note_clocks();
    assert!(matches!(noted, Err(StoreError::Unavailable { .. })));
    bench.engine.note_clocks().unwrap();
    bench.engine.abandon().unwrap();
    let stored = bench.stored("a");
    assert_eq!((stored.state, stored.interruptions), (State::Pending, 1));
}
