//! What is held in memory: never more than allowed, whatever the store holds; and no queue in
//! another's way.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use countwheel::{Clock, ManualClock, Timestamp};
use countwheel_durable::store::{Change, MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, DueClock, Effect, Engine, Event, Missed, Outcome, Record, RetryPolicy,
    Revision, State, TimerId, TimerName, Verdict,
};

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

fn record(revision: u64, queue: &str, key: &str, due: Timestamp, clock: DueClock) -> Record {
    let revision = Revision(revision);
    Record {
        name: TimerName::new(queue, key).unwrap(),
        id: TimerId {
            store: 7,
            set: revision,
        },
        revision,
        state: State::Pending,
        created: NOON,
        due,
        clock,
        missed: Missed::Fire,
        recurring: None,
        first_due: due,
        policy: RetryPolicy::default(),
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: Vec::new(),
    }
}

fn fill(store: &MemoryStore, records: impl Iterator<Item = Record>) {
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    let mut changes = Vec::new();
    for record in records {
        changes.push(Change::put(record));
        if changes.len() == 1_024 {
            store.commit(lease, &changes).unwrap();
            changes.clear();
        }
    }
    store.commit(lease, &changes).unwrap();
}

/// An engine whose attempts take as long as `service` says, and everything that it started.
struct Run {
    clock: ManualClock,
    engine: Engine,
    config: Config,
    ends: BinaryHeap<Reverse<(Timestamp, Revision)>>,
    started: BTreeMap<String, Vec<(String, Duration)>>,
    bytes_peak: usize,
}

impl Run {
    fn new(store: &MemoryStore, config: Config) -> Self {
        let clock = ManualClock::at(NOON);
        let shared = Arc::new(clock.clone());
        let engine = Engine::open(Arc::new(store.clone()), shared, config.clone()).unwrap();
        Self {
            clock,
            engine,
            config,
            ends: BinaryHeap::new(),
            started: BTreeMap::new(),
            bytes_peak: 0,
        }
    }

    /// Lets `span` pass. `service` says how long an attempt takes; `None` is for ever.
    fn run(&mut self, span: Duration, service: impl Fn(&Attempt) -> Option<Duration>) {
        let end = self.clock.timestamp() + span;
        loop {
            let now = self.clock.timestamp();
            let mut events = Vec::new();
            while let Some(Reverse((at, revision))) = self.ends.peek().copied()
                && at <= now
            {
                self.ends.pop();
                let outcome = Outcome {
                    verdict: Verdict::Done,
                    detail: String::new(),
                };
                events.push(Event::Outcome { revision, outcome });
            }
            let (ends, started) = (&mut self.ends, &mut self.started);
            let mut sink = |effect| {
                let Effect::Start(attempt) = effect else {
                    unreachable!("nobody asked");
                };
                assert!(attempt.started >= attempt.due, "early: {attempt:?}");
                if let Some(service) = service(&attempt) {
                    ends.push(Reverse((now + service, attempt.revision)));
                }
                let (queue, key) = (&attempt.name.queue, &attempt.name.key);
                let of_queue = started.entry(queue.as_str().to_owned()).or_default();
                of_queue.push((key.as_str().to_owned(), attempt.lateness()));
            };
            self.engine.turn(events, &mut sink).unwrap();
            let stats = self.engine.stats();
            self.bytes_peak = self.bytes_peak.max(stats.window_bytes);
            assert!(
                stats.window_bytes <= self.config.window_bytes,
                "{} bytes held, {} allowed",
                stats.window_bytes,
                self.config.window_bytes
            );
            let outcome = self.ends.peek().map(|Reverse((at, _))| *at);
            let next = self.engine.next_wake().into_iter().chain(outcome).min();
            match next {
                Some(at) if at <= end => {
                    let now = self.clock.timestamp();
                    self.clock.advance(at.saturating_since(now));
                }
                _ => break,
            }
        }
        let now = self.clock.timestamp();
        self.clock.advance(end.saturating_since(now));
    }

    fn started(&self, queue: &str) -> &[(String, Duration)] {
        self.started.get(queue).map_or(&[], Vec::as_slice)
    }

    fn latest(&self, queue: &str) -> Duration {
        let lateness = self.started(queue).iter().map(|(_, late)| *late);
        lateness.max().unwrap_or_default()
    }

    /// Every one of `count` was started once.
    fn assert_all_once(&self, queue: &str, count: usize) {
        let started = self.started(queue);
        let keys: BTreeSet<_> = started.iter().map(|(key, _)| key).collect();
        assert_eq!((started.len(), keys.len()), (count, count), "{queue}");
    }
}

/// A wave of one queue on one millisecond, and timers of another over the ten seconds that
/// follow.
fn wave(count: u64, clock: DueClock, window_bytes: usize) {
    let store = MemoryStore::new(7);
    let at = NOON + Duration::from_secs(60);
    let waves = (0..count).map(|i| {
        let due = at + Duration::from_micros(i % 1_000);
        record(1 + i, "wave", &format!("wave-{i:08}"), due, DueClock::Wall)
    });
    let others = (0..1_000).map(|i| {
        let due = at + Duration::from_micros(1 + i * 10_000);
        record(
            1 + count + i,
            "others",
            &format!("other-{i:04}"),
            due,
            clock,
        )
    });
    fill(&store, waves.chain(others));
    let mut run = Run::new(
        &store,
        Config {
            window_bytes,
            ..Config::default()
        },
    );
    // A millisecond for each attempt: 192 of 256 slots serve 192,000 a second.
    let served = Duration::from_millis(count / 192);
    let span = Duration::from_secs(60) + served.max(Duration::from_secs(10)) + served / 100;
    run.run(span + Duration::from_millis(10), |_| {
        Some(Duration::from_millis(1))
    });
    run.assert_all_once("others", 1_000);
    run.assert_all_once("wave", usize::try_from(count).unwrap());
    println!(
        "others at most {:?} late, {} bytes",
        run.latest("others"),
        run.bytes_peak
    );
    assert_eq!(run.latest("others"), Duration::ZERO);
}

#[test]
fn a_wave_of_one_queue_makes_no_other_late() {
    wave(100_000, DueClock::Wall, 4 << 20);
}

#[test]
fn a_wave_by_one_clock_makes_nothing_late_by_the_other() {
    wave(50_000, DueClock::Boot, 2 << 20);
}

#[test]
#[ignore = "takes a minute and two gigabytes"]
fn a_wave_of_two_million_makes_no_other_late() {
    wave(2_000_000, DueClock::Wall, 64 << 20);
}

#[test]
fn receivers_that_hang_leave_slots_for_others() {
    let store = MemoryStore::new(7);
    let due = NOON + Duration::from_secs(1);
    let hanging = (0..3_000).map(|i| {
        let queue = format!("hanging-{}", i % 3);
        record(1 + i, &queue, &format!("{i}"), due, DueClock::Wall)
    });
    let others = (0..500).map(|i| {
        let due = due + Duration::from_millis(i * 5);
        record(10_000 + i, "others", &format!("{i}"), due, DueClock::Boot)
    });
    fill(&store, hanging.chain(others));
    let config = Config {
        max_in_flight: 64,
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    run.run(Duration::from_secs(10), |attempt| {
        let hangs = attempt.name.queue.as_str() != "others";
        (!hangs).then_some(Duration::from_millis(4))
    });
    run.assert_all_once("others", 500);
    assert_eq!(run.latest("others"), Duration::ZERO);
    let hung: Vec<_> = (0..3)
        .map(|i| run.started(&format!("hanging-{i}")).len())
        .collect();
    // Three times what is free is each one's share: 3/10 of 64.
    assert!(
        hung.iter().all(|count| (19..=20).contains(count)),
        "{hung:?}"
    );
}

#[test]
fn many_queues_that_hang_do_not_fill_the_window() {
    let store = MemoryStore::new(7);
    let due = NOON + Duration::from_secs(1);
    let hanging = (0..40_000).map(|i| {
        let queue = format!("hanging-{}", i % 8);
        record(1 + i, &queue, &format!("{i:064}"), due, DueClock::Wall)
    });
    let others = (0..500).map(|i| {
        let due = due + Duration::from_millis(1 + i * 5);
        record(50_000 + i, "others", &format!("{i}"), due, DueClock::Wall)
    });
    fill(&store, hanging.chain(others));
    let config = Config {
        max_in_flight: 64,
        window_bytes: 256 << 10,
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    run.run(Duration::from_secs(10), |attempt| {
        let hangs = attempt.name.queue.as_str() != "others";
        (!hangs).then_some(Duration::from_millis(4))
    });
    run.assert_all_once("others", 500);
    assert_eq!(run.latest("others"), Duration::ZERO);
}

#[test]
fn names_of_any_length_and_number_stay_within_the_ceiling() {
    for (queues, key) in [(1, 256), (5, 256), (2_000, 1), (2_000, 256)] {
        let store = MemoryStore::new(7);
        let records = (0..5_000_u64).map(|i| {
            let queue = format!("{:0128}", i % queues);
            let key = format!("{i:0key$}");
            let clock = DueClock::ALL[usize::from(i % 3 == 0)];
            let due = NOON + Duration::from_millis(1 + (i * 7919) % 5_000);
            record(1 + i, &queue, &key, due, clock)
        });
        fill(&store, records);
        let config = Config {
            window_bytes: 128 << 10,
            max_in_flight: 10_000,
            ..Config::default()
        };
        let mut run = Run::new(&store, config);
        run.run(Duration::from_secs(60), |_| Some(Duration::from_micros(1)));
        let all: usize = run.started.values().map(Vec::len).sum();
        assert_eq!(all, 5_000, "{queues} queues, keys of {key}");
        let late = run.started.values().flatten().map(|(_, late)| *late).max();
        assert!(late <= Some(Duration::from_millis(1)), "{late:?} late");
    }
}
