//! What is held in memory: never more than allowed, whatever the store holds; and no queue in
//! another's way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Change, MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, DueClock, Effect, Engine, Event, Missed, Outcome, Precondition, Record,
    Request, RetryPolicy, Revision, SetOptions, State, Ticket, TimerId, TimerName,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

pub(crate) const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

pub(crate) fn record(
    revision: u64,
    queue: &str,
    key: &str,
    due: Timestamp,
    clock: DueClock,
) -> Record {
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

pub(crate) fn fill(store: &MemoryStore, records: impl Iterator<Item = Record>) {
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
pub(crate) struct Run {
    clock: ManualClock,
    pub(crate) engine: Engine,
    config: Config,
    ends: BinaryHeap<Reverse<(Timestamp, Revision)>>,
    started: BTreeMap<String, Vec<(String, Duration)>>,
    bytes_peak: usize,
    in_flight_peak: usize,
}

impl Run {
    pub(crate) fn new(store: &MemoryStore, config: Config) -> Self {
        let clock = ManualClock::at(NOON);
        let shared = Arc::new(clock.clone());
        let engine =
            Engine::open(Arc::new(store.clone()), Shard::ONLY, shared, config.clone()).unwrap();
        Self {
            clock,
            engine,
            config,
            ends: BinaryHeap::new(),
            started: BTreeMap::new(),
            bytes_peak: 0,
            in_flight_peak: 0,
        }
    }

    /// Sets a timer by request, in a turn of its own, and looks at the memory after that.
    fn set(&mut self, queue: &str, key: &str, ahead: Duration) {
        let request = Request::Set {
            name: TimerName::new(queue, key).unwrap(),
            due: Due::At(self.clock.timestamp() + ahead),
            policy: RetryPolicy::default(),
            payload: Vec::new(),
            precondition: Precondition::None,
            options: SetOptions::default(),
        };
        let mut sink = |effect| assert!(matches!(effect, Effect::Answer(_, Ok(_))), "{effect:?}");
        let event = Event::Request(Ticket(0), request);
        self.engine.turn(vec![event], &mut sink).unwrap();
        self.bytes_peak = self.bytes_peak.max(self.engine.stats().window_bytes);
    }

    /// Lets `span` pass. `service` says how long an attempt takes; `None` is for ever.
    pub(crate) fn run(&mut self, span: Duration, service: impl Fn(&Attempt) -> Option<Duration>) {
        let end = self.clock.timestamp() + span;
        loop {
            let now = self.clock.timestamp();
            let mut events = Vec::new();
            while let Some(Reverse((at, revision))) = self.ends.peek().copied()
                && at <= now
            {
                self.ends.pop();
                let outcome = Outcome::done();
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
            self.in_flight_peak = self.in_flight_peak.max(stats.in_flight);
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
    pub(crate) fn assert_all_once(&self, queue: &str, count: usize) {
        let started = self.started(queue);
        let keys: BTreeSet<_> = started.iter().map(|(key, _)| key).collect();
        assert_eq!((started.len(), keys.len()), (count, count), "{queue}");
    }
}

/// A wave of one queue on one millisecond, and timers of another over the ten seconds that
/// follow.
fn wave(count: u64, clock: DueClock, window_bytes: usize) {
    let store = MemoryStore::new(7);
    let ahead = Duration::from_secs(600);
    let at = NOON + ahead;
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
    // What comes behind the wave is read in the minute before it.
    run.run(ahead - Duration::from_secs(61), |_| None);
    let page = (window_bytes / 14_400).min(1_024);
    let pages = count / u64::try_from(page).unwrap();
    let before = run.engine.stats().refills;
    assert!((1..pages / 2).contains(&before), "{before} reads");
    run.run(Duration::from_secs(2), |_| None);
    let minute = run.engine.stats().refills - before;
    assert!(minute >= pages / 2, "{minute} reads");
    let ahead = Duration::from_secs(59);

    // A millisecond for each attempt: 192 of 256 slots serve 192,000 a second.
    let served = Duration::from_millis(count / 192);
    let span = ahead + served.max(Duration::from_secs(10)) + served / 100;
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
#[ignore = "takes two minutes at full speed, and some gigabytes"]
fn a_wave_of_two_million_makes_no_other_late() {
    wave(2_000_000, DueClock::Wall, 64 << 20);
}

/// Reading on behind a queue that has used up its share, for others, ends a minute ahead.
#[test]
fn what_a_queue_leaves_to_the_store_is_not_read_before_its_time() {
    const HOUR: u64 = 3_600;
    let store = MemoryStore::new(7);
    let seconds = |i: u64| NOON + Duration::from_secs(1 + i);
    let many = (0..4 * HOUR).map(|i| {
        let key = format!("{i}");
        record(1 + i, "many", &key, seconds(i), DueClock::Wall)
    });
    let others = (0..8).map(|i| {
        let clock = DueClock::ALL[usize::from(i % 2 == 0)];
        let due = seconds((1 + i) * HOUR / 2).saturating_sub(Duration::from_micros(1));
        record(100_000 + i, "others", &format!("{i}"), due, clock)
    });
    fill(&store, many.chain(others));
    let config = Config {
        window_bytes: 256 << 10,
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    let pages = 4 * HOUR / 18;
    run.run(Duration::from_millis(500), |_| None);
    let at_first = run.engine.stats().refills;
    assert!((1..pages / 8).contains(&at_first), "{at_first} reads");
    run.run(Duration::from_secs(4 * HOUR + 1), |_| {
        Some(Duration::from_millis(1))
    });
    run.assert_all_once("many", 4 * 3_600);
    run.assert_all_once("others", 8);
    assert_eq!(run.latest("many"), Duration::ZERO);
    assert_eq!(run.latest("others"), Duration::ZERO);
    // Nothing is read twice, but for the edges of pages.
    let all = run.engine.stats().refills;
    println!("{at_first} reads at first, {all} in all");
    assert!(all < pages * 5 / 4, "{all} reads");
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

/// What was read from the store stays below three quarters of the room by itself. What callers
/// set while everything is in memory already has nothing but the bound of the window.
#[test]
fn what_is_set_within_the_window_stays_within_its_half_of_the_ceiling() {
    // One queue each, so that no share holds them back; nearer and nearer, so that each comes in
    // front of all the others; and by turns with keys of one byte and of the longest.
    let config = Config {
        window_bytes: 128 << 10,
        ..Config::default()
    };
    for (queues, key) in [(1_000, 256), (1_000, 4), (30, 200)] {
        let mut run = Run::new(&MemoryStore::new(7), config.clone());
        run.run(Duration::ZERO, |_| None);
        for i in 0..1_000 {
            let queue = format!("{:0128}", i % queues);
            let ahead = Duration::from_secs(2_000 - i);
            run.set(&queue, &format!("{i:0key$}"), ahead);
            let peak = run.bytes_peak;
            assert!(peak <= config.window_bytes / 2, "{peak} bytes after {i}");
        }
        // It was full, or the bound was not what kept it small.
        assert!(
            run.bytes_peak > config.window_bytes / 4,
            "{}",
            run.bytes_peak
        );
        run.run(Duration::from_secs(3_000), |_| {
            Some(Duration::from_micros(1))
        });
        let all: usize = run.started.values().map(Vec::len).sum();
        assert_eq!(all, 1_000, "{queues} queues, keys of {key}");
        let late = run.started.values().flatten().map(|(_, late)| *late).max();
        assert_eq!(late, Some(Duration::ZERO), "{queues} queues, keys of {key}");
    }
}

#[test]
fn attempts_that_run_stay_within_their_quarter_of_the_ceiling() {
    let store = MemoryStore::new(7);
    let records = (0..2_000).map(|i| {
        let due = NOON + Duration::from_secs(1);
        let queue = format!("{:0128}", i % 40);
        record(1 + i, &queue, &format!("{i:0256}"), due, DueClock::Wall)
    });
    fill(&store, records);
    let config = Config {
        window_bytes: 256 << 10,
        max_in_flight: 100_000,
        ..Config::default()
    };
    let mut run = Run::new(&store, config.clone());
    // They run for a minute: as many at a time as there are bytes for, and not the 100,000.
    run.run(Duration::from_secs(10), |_| Some(Duration::from_secs(60)));
    let names = 128 + 256;
    let most = config.window_bytes / 4 / names;
    let ran = run.in_flight_peak;
    assert!((20..=most).contains(&ran), "{ran} at a time, not {most}");
    run.run(Duration::from_secs(60 * 2_000 / 20), |_| {
        Some(Duration::from_secs(60))
    });
    assert!(
        run.in_flight_peak <= most,
        "{} at a time",
        run.in_flight_peak
    );
    let all: usize = run.started.values().map(Vec::len).sum();
    assert_eq!(all, 2_000);
}

/// So many have more than their share that a page of one queue's is more than one holds.
#[test]
fn an_absence_of_many_large_queues_is_made_up_for_to_the_last() {
    let sizes: Vec<u64> = (1..=100).map(|i| (6_000 / i).max(400)).collect();
    let store = MemoryStore::new(7);
    let names = sizes.iter().enumerate();
    let names = names.flat_map(|(i, &size)| (0..size).map(move |j| (i, j)));
    let long_ago = NOON.saturating_sub(Duration::from_secs(3_600));
    let records = (1..).zip(names).map(|(revision, (i, j))| {
        let due = long_ago + Duration::from_micros(revision);
        let (queue, key) = (format!("queue-{i:02}"), format!("{j:06}"));
        record(revision, &queue, &key, due, DueClock::Wall)
    });
    fill(&store, records);
    let config = Config {
        window_bytes: 1 << 20,
        catch_up_per_second: 5_000,
        ..Config::default()
    };
    let mut run = Run::new(&store, config);
    run.run(Duration::from_secs(60), |_| Some(Duration::ZERO));
    for (i, &size) in sizes.iter().enumerate() {
        run.assert_all_once(&format!("queue-{i:02}"), usize::try_from(size).unwrap());
    }
}
