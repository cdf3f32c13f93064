//! What timers take of memory is given back when they are done: to the byte.
//!
//! A program of its own, since it counts what the whole process has allocated.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::{LogOptions, LogStore, SystemFiles, TableOptions, TableStore};
use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, Effect, Engine, Event, Outcome, Precondition, Request, RetryPolicy,
    SetOptions, Ticket, TimerName, Verdict,
};
use countwheel_time::ManualClock;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TIMERS: u64 = 2_000;

fn live_bytes() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

struct Service {
    clock: ManualClock,
    store: Arc<dyn Store>,
    engine: Engine,
    /// What the store's own threads would do, to its end.
    upkeep: Box<dyn Fn()>,
}

impl Service {
    fn new(store: Arc<dyn Store>, upkeep: impl Fn() + 'static) -> Self {
        let clock = ManualClock::new();
        let config = Config {
            keep_done: Duration::from_secs(1),
            ..Config::default()
        };
        let engine = Engine::open(
            Arc::clone(&store),
            Shard::ONLY,
            Arc::new(clock.clone()),
            config,
        )
        .unwrap();
        Self {
            clock,
            store,
            engine,
            upkeep: Box::new(upkeep),
        }
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Attempt> {
        let mut started = Vec::new();
        let sink = &mut |effect| match effect {
            Effect::Start(attempt) => started.push(attempt),
            Effect::Answer(_, answer) => drop(answer.unwrap()),
            Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
        };
        self.engine.turn(events, sink).unwrap();
        started
    }

    fn ask(&mut self, requests: impl Iterator<Item = Request>) {
        let requests = requests.map(|request| Event::Request(Ticket(0), request));
        let mut requests: Vec<_> = requests.collect();
        while !requests.is_empty() {
            let rest = requests.split_off(requests.len().min(100));
            let started = self.turn(std::mem::replace(&mut requests, rest));
            assert!(started.is_empty(), "nothing is due yet");
        }
    }

    /// Sets timers, removes some, delivers the others, and waits until all are forgotten.
    fn fill_and_drain(&mut self) {
        let name = |key: u64| TimerName::new("queue", format!("key-{key}")).unwrap();
        self.ask((0..TIMERS).map(|key| Request::Set {
            name: name(key),
            due: Due::In(Duration::from_millis(1_000 + key)),
            policy: RetryPolicy::default(),
            payload: vec![7; 300],
            precondition: Precondition::None,
            options: SetOptions::default(),
        }));
        let removed = (0..TIMERS).filter(|key| key % 5 < 2);
        self.ask(removed.map(|key| Request::Remove {
            name: name(key),
            precondition: Precondition::None,
            only_pending: false,
        }));
        let mut done = Vec::new();
        let mut deliveries = 0;
        for _ in 0..500 {
            self.clock.advance(Duration::from_millis(10));
            let started = self.turn(std::mem::take(&mut done));
            deliveries += started.len() as u64;
            let verdict = Verdict::Done;
            let ended = started.into_iter().map(|attempt| Event::Outcome {
                revision: attempt.revision,
                outcome: Outcome::new(verdict, ""),
            });
            done.extend(ended);
        }
        assert_eq!(deliveries, TIMERS * 3 / 5);
        (self.upkeep)();
        assert!(self.store.counts(Shard::ONLY).unwrap().is_empty());
    }
}

/// Live bytes after each of several rounds.
fn rounds(service: &mut Service, rounds: usize) -> Vec<usize> {
    let mut after = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        service.fill_and_drain();
        after.push(live_bytes());
    }
    after
}

#[test]
fn what_timers_take_is_given_back_to_the_byte() {
    let mut service = Service::new(Arc::new(MemoryStore::new(1)), || {});
    let after = rounds(&mut service, 8);
    // The first round makes what is kept for the next.
    assert!(after.iter().all(|&bytes| bytes == after[0]), "{after:?}");
    drop(service);

    let directory = tempfile::tempdir().unwrap();
    let files = |part: &str| {
        let directory = directory.path().join(part);
        std::fs::create_dir(&directory).unwrap();
        Arc::new(SystemFiles::new(&directory))
    };
    let mut options = TableOptions::default();
    options.cache_bytes = 64 << 10;
    let tables = TableStore::open(files("tables"), 1, options).unwrap();
    let mut options = LogOptions::default();
    options.segment_bytes = 64 << 10;
    let log = Arc::new(LogStore::open(tables, files("log"), 1, options).unwrap());
    let maintained = log.clone();
    let mut service = Service::new(log, move || {
        maintained.seal().unwrap();
        while maintained.flush_oldest().unwrap() {}
        while maintained.compact().unwrap() {}
    });
    // Numbers that grow longer, of revisions and of segments, take a few bytes of buffers.
    let after = rounds(&mut service, 20);
    let last = &after[12..];
    assert!(last.iter().all(|&bytes| bytes == last[0]), "{after:?}");
}
