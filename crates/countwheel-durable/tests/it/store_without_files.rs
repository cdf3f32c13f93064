//! A store that has no files, as a database: it says that it is full, that it cannot read a record, or
//! that it failed, and names no path.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_durable::store::{Change, Lease, MemoryStore, Shard, Store, StoreError};
use countwheel_durable::{
    Attempt, BatchError, Config, Effect, Engine, Event, Outcome, Record, Request, Response,
    StateKind, Ticket, TimerError, TimerName, TroubleReason, Was,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::support::ask::{name, remove, set};
use crate::support::forward::forward;

/// What a commit runs into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Full,
    Failed,
}

#[derive(Default)]
struct Told {
    commits: Option<Failure>,
    /// Its record cannot be read.
    unreadable: Option<TimerName>,
    /// Its record is read when the store fails.
    failing: Option<TimerName>,
}

/// A store in memory that fails as it is told.
struct Elsewhere {
    store: MemoryStore,
    told: Mutex<Told>,
}

impl Elsewhere {
    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told.lock().unwrap());
    }
}

impl Store for Elsewhere {
    forward!(store: acquire, settings, due, list, counts);

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        match self.told.lock().unwrap().commits {
            None => self.store.commit(lease, changes),
            Some(Failure::Full) => Err(StoreError::Full {
                reason: "the quota is used up".to_owned(),
            }),
            Some(Failure::Failed) => Err(StoreError::Failed {
                reason: "a table is not there".to_owned(),
            }),
        }
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let told = self.told.lock().unwrap();
        if told.unreadable.as_ref() == Some(name) {
            return Err(StoreError::Unreadable {
                problem: "a record of a later version".to_owned(),
            });
        }
        if told.failing.as_ref() == Some(name) {
            return Err(StoreError::Failed {
                reason: "a table is not there".to_owned(),
            });
        }
        self.store.get(shard, name)
    }
}

struct Bench {
    clock: ManualClock,
    store: Arc<Elsewhere>,
    engine: Engine,
    started: Vec<Attempt>,
    batches: Vec<Result<Vec<Response>, BatchError>>,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(1_772_366_400_000_000));
        let store = Arc::new(Elsewhere {
            store: MemoryStore::new(7),
            told: Mutex::default(),
        });
        Self {
            engine: engine(&store, &clock),
            clock,
            store,
            started: Vec::new(),
            batches: Vec::new(),
        }
    }

    fn restart(&mut self) {
        self.started.clear();
        self.engine = engine(&self.store, &self.clock);
    }

    fn try_turn(
        &mut self,
        events: Vec<Event>,
    ) -> Result<Vec<Result<Response, TimerError>>, StoreError> {
        let mut answers = Vec::new();
        let (started, batches) = (&mut self.started, &mut self.batches);
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::Start(attempt) => started.push(attempt),
            Effect::BatchAnswer(_, answer) => batches.push(answer),
        };
        self.engine.turn(events, sink)?;
        Ok(answers)
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        self.try_turn(events).unwrap()
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        let events = vec![Event::Request(Ticket(1), request)];
        self.turn(events).pop().unwrap()
    }

    /// Takes the turns that the engine asks for until that time has passed; every attempt is done at
    /// once. The keys that started.
    fn wait(&mut self, seconds: u64) -> Vec<String> {
        let end = self.clock.timestamp() + Duration::from_secs(seconds);
        let mut keys = Vec::new();
        loop {
            let ended: Vec<_> = self.started.drain(..).collect();
            keys.extend(
                ended
                    .iter()
                    .map(|attempt| attempt.name.key.as_str().to_owned()),
            );
            let is_idle = ended.is_empty();
            self.turn(ended.iter().map(done).collect());
            match self.engine.next_wake() {
                _ if !self.started.is_empty() => {}
                Some(at) if at <= end => {
                    let wait = at.saturating_since(self.clock.timestamp());
                    self.clock.advance(wait);
                }
                _ if is_idle => break,
                _ => {}
            }
        }
        keys.sort();
        keys
    }

    fn kinds(&self) -> Vec<u64> {
        let counts = self.store.counts(Shard::ONLY).unwrap();
        let of = |kind| counts.iter().map(|queue| queue.of(kind)).sum();
        StateKind::ALL.map(of).to_vec()
    }
}

fn engine(store: &Arc<Elsewhere>, clock: &ManualClock) -> Engine {
    let clock = Arc::new(clock.clone());
    // Nothing is kept in memory: every record is read when it is needed.
    let config = Config {
        window_bytes: 1,
        ..Config::default()
    };
    Engine::open(store.clone(), Shard::ONLY, clock, config).unwrap()
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
fn a_commit_without_room_refuses_the_turn_and_the_engine_goes_on() {
    let mut bench = Bench::new();
    bench.ask(set("runs", 0)).unwrap();
    bench.ask(set("later", 60)).unwrap();
    let running = bench.started.pop().unwrap();
    bench.store.tell(|told| told.commits = Some(Failure::Full));
    let answers = bench.turn(vec![
        Event::Request(Ticket(1), set("new", 1)),
        done(&running),
        Event::Request(Ticket(2), remove("later")),
        Event::Batch(Ticket(3), vec![remove("later")]),
    ]);
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(is_refused), "{answers:?}");
    let refused = bench.batches.pop().unwrap().unwrap_err();
    assert!(matches!(refused.error, TimerError::StorageFull));
    assert_eq!(bench.kinds(), [1, 1, 0, 0]);
    let noted = bench.engine.note_clocks();
    assert!(noted.as_ref().is_err_and(StoreError::is_full), "{noted:?}");
    assert!(is_refused(&bench.ask(set("new", 1))));

    bench.store.tell(|told| told.commits = None);
    bench.engine.note_clocks().unwrap();
    bench.ask(set("new", 1)).unwrap();
    assert_eq!(bench.wait(120), ["later", "new"]);
    assert_eq!(bench.kinds(), [0, 0, 3, 0], "the outcome was kept");
}

#[test]
fn a_record_that_cannot_be_read_is_left_out_and_all_others_start() {
    let mut bench = Bench::new();
    for (key, seconds) in [("a", 1), ("lost", 1), ("z", 2)] {
        bench.ask(set(key, seconds)).unwrap();
    }
    let lost = name("lost");
    bench
        .store
        .tell(|told| told.unreadable = Some(lost.clone()));
    bench.restart();
    assert_eq!(bench.wait(60), ["a", "z"]);
    let [trouble] = &bench.engine.troubles()[..] else {
        panic!("one record: {:?}", bench.engine.troubles());
    };
    assert_eq!(trouble.reason, TroubleReason::UnreadableRecord);
    assert_eq!(trouble.path, None, "there is no file");
    assert_eq!(
        trouble.detail,
        format!("{lost}: a record of a later version")
    );

    let fire = Request::Fire { name: lost.clone() };
    let refused = bench.ask(fire);
    let Err(TimerError::Unreadable { name, source }) = &refused else {
        panic!("it cannot be read: {refused:?}");
    };
    assert_eq!(*name, lost);
    assert!(source.is_unreadable());
    let what = "what the store holds cannot be read: a record of a later version";
    assert_eq!(source.to_string(), what);
    let removed = bench.ask(remove("lost"));
    assert!(
        matches!(removed, Ok(Response::Removed(Was::Unreadable))),
        "{removed:?}"
    );
    assert!(bench.engine.troubles().is_empty());
    assert_eq!(bench.kinds(), [0, 0, 2, 0]);
}

#[test]
fn what_could_not_be_read_once_starts_later() {
    let mut bench = Bench::new();
    bench.ask(set("lost", 1)).unwrap();
    bench
        .store
        .tell(|told| told.unreadable = Some(name("lost")));
    bench.restart();
    assert!(bench.wait(60).is_empty());
    bench.store.tell(|told| told.unreadable = None);
    assert_eq!(bench.wait(660), ["lost"]);
    assert!(bench.engine.troubles().is_empty());
}

#[test]
fn any_other_failure_ends_the_engine() {
    let mut bench = Bench::new();
    bench
        .store
        .tell(|told| told.commits = Some(Failure::Failed));
    let refused = bench.try_turn(vec![Event::Request(Ticket(1), set("new", 1))]);
    assert!(
        matches!(refused, Err(StoreError::Failed { .. })),
        "{refused:?}"
    );
    bench.store.tell(|told| told.commits = None);
    let refused = bench.try_turn(vec![]);
    assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");

    // Of a read as well: the record is not left out.
    bench.restart();
    bench.ask(set("new", 1)).unwrap();
    bench.store.tell(|told| told.failing = Some(name("new")));
    bench.restart();
    bench.clock.advance(Duration::from_secs(1));
    let ended = (0..3).find_map(|_| bench.try_turn(vec![]).err());
    let text = ended.expect("the store failed").to_string();
    assert_eq!(text, "the store failed: a table is not there");
    assert_eq!(bench.engine.stats().unreadable, 0);
}
