//! How much is overdue is counted by what happens, and is what a look through the store would find.

use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Change, DuePage, DueScan, MemoryStore, Shard, Store, StoreError};
use countwheel_durable::{
    Config, Due, DueClock, Effect, Engine, Event, Outcome, OverdueCount, Precondition, Request,
    Response, RetryPolicy, Revision, SetOptions, Shift, State, Ticket, TimerName, Verdict,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::support::forward::forward;
use crate::support::sample::pending;

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const SECOND: Duration = Duration::from_secs(1);
const QUEUES: [&str; 3] = ["orders", "payments", "reports"];

/// An engine on a store, whose receivers say nothing until they are asked to.
struct Bench {
    clock: ManualClock,
    store: Arc<dyn Store>,
    engine: Engine,
    config: Config,
    running: Vec<Revision>,
    turns: usize,
}

impl Bench {
    fn new(store: Arc<dyn Store>, max_in_flight: usize) -> Self {
        let clock = ManualClock::at(NOON);
        let config = Config {
            max_in_flight,
            keep_done: 5 * SECOND,
            due_counts: true,
            ..Config::default()
        };
        let shared = Arc::new(clock.clone());
        let engine = Engine::open(Arc::clone(&store), Shard::ONLY, shared, config.clone()).unwrap();
        Self {
            clock,
            store,
            engine,
            config,
            running: Vec::new(),
            turns: 0,
        }
    }

    fn restart(&mut self) {
        self.running.clear();
        let clock = Arc::new(self.clock.clone());
        self.engine = Engine::open(
            Arc::clone(&self.store),
            Shard::ONLY,
            clock,
            self.config.clone(),
        )
        .unwrap();
    }

    fn turn(&mut self, events: Vec<Event>) {
        self.turns += 1;
        let running = &mut self.running;
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => drop::<Response>(answer.unwrap()),
            Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
            Effect::Start(attempt) => running.push(attempt.revision),
        };
        self.engine.turn(events, sink).unwrap();
    }

    fn ask(&mut self, requests: impl Iterator<Item = Request>) {
        let events = requests.map(|request| Event::Request(Ticket(0), request));
        self.turn(events.collect());
    }

    /// Lets time pass from wake-up to wake-up.
    fn wait(&mut self, span: Duration) {
        let end = self.clock.timestamp() + span;
        loop {
            let now = self.clock.timestamp();
            match self.engine.next_wake() {
                Some(wake) if wake <= now => self.turn(vec![]),
                Some(wake) if wake <= end => self.clock.set_timestamp_in_step(wake),
                _ if now < end => self.clock.set_timestamp_in_step(end),
                _ => return,
            }
        }
    }

    /// All that run come to their end.
    fn end_all(&mut self, verdict: Verdict) {
        let ended = self.running.drain(..).map(|revision| {
            let outcome = Outcome::new(verdict, "");
            Event::Outcome { revision, outcome }
        });
        let ended = ended.collect();
        self.turn(ended);
    }

    fn told(&self) -> OverdueCount {
        self.engine.stats().overdue
    }

    /// What a look through the store finds: how many pend that were due by then, and since when.
    fn found(&self) -> (u64, Option<Timestamp>) {
        let (mut count, mut oldest) = (0, None);
        for clock in DueClock::ALL {
            let scan = DueScan {
                until: self.told().as_of,
                ..DueScan::all(clock)
            };
            for entry in self.store.due(Shard::ONLY, &scan).unwrap().entries {
                let record = self.store.get(Shard::ONLY, &entry.name).unwrap().unwrap();
                if record.state == State::Pending {
                    count += 1;
                    let at = entry.wake.at;
                    oldest = Some(oldest.map_or(at, |oldest: Timestamp| oldest.min(at)));
                }
            }
        }
        (count, oldest)
    }

    #[track_caller]
    fn assert_exact(&self) -> u64 {
        let told = self.told();
        assert!(told.is_exact, "{told:?}");
        assert_eq!((told.count, told.oldest), self.found());
        told.count
    }
}

trait InStep {
    fn set_timestamp_in_step(&self, to: Timestamp);
}

impl InStep for ManualClock {
    fn set_timestamp_in_step(&self, to: Timestamp) {
        self.advance(to.saturating_since(self.timestamp()));
    }
}

fn set(number: usize, due: Due) -> Request {
    Request::Set {
        name: TimerName::new(QUEUES[number % 3], number.to_string()).unwrap(),
        due,
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn stores() -> [(Arc<dyn Store>, Option<tempfile::TempDir>); 2] {
    let directory = tempfile::tempdir().unwrap();
    let mut options = DiskOptions::default();
    (options.log.segment_bytes, options.log.memtable_names_max) = (1 << 14, 300);
    (options.tables.table_bytes, options.tables.block_bytes) = (1 << 14, 512);
    let disk = DiskStore::open(directory.path(), 7, options).unwrap();
    [
        (Arc::new(MemoryStore::new(7)), None),
        (Arc::new(disk), Some(directory)),
    ]
}

#[test]
fn what_stays_is_counted_whatever_becomes_of_it() {
    for (store, _directory) in stores() {
        let mut bench = Bench::new(store, 4);
        let due = |number: usize| SECOND + Duration::from_millis(number as u64 / 2);
        bench.ask((0..1_000).map(|number| match number % 2 {
            0 => set(number, Due::In(due(number))),
            _ => set(number, Due::At(NOON + due(number))),
        }));
        assert_eq!(bench.assert_exact(), 0);
        bench.wait(10 * SECOND);
        // Nothing has happened since, and a second is as long as it may take.
        assert_eq!(bench.assert_exact(), 996);
        assert!(bench.told().as_of + SECOND >= bench.clock.timestamp());
        assert!(bench.turns < 40, "{}", bench.turns);

        let name = |number: usize| TimerName::new(QUEUES[number % 3], number.to_string()).unwrap();
        let precondition = Precondition::None;
        bench.ask((500..700).map(|number| Request::Remove {
            name: name(number),
            precondition,
            only_pending: false,
        }));
        assert_eq!(bench.assert_exact(), 796);
        bench.ask((700..900).map(|number| Request::Move {
            name: name(number),
            shift: Shift::To(Due::In(60 * SECOND)),
            precondition,
        }));
        assert_eq!(bench.assert_exact(), 596);
        // Those that wait may be due even earlier, or be new.
        bench.ask((900..910).map(|number| set(number, Due::At(NOON))));
        bench.ask((500..510).map(|number| set(number, Due::At(NOON))));
        bench.wait(SECOND);
        assert_eq!(bench.assert_exact(), 606);
        for verdict in [
            Verdict::Done,
            Verdict::Stopped,
            Verdict::Failed { retry_after: None },
        ] {
            bench.end_all(verdict);
            bench.assert_exact();
        }

        (bench.config.max_scanned, bench.config.max_in_flight) = (256, 100);
        bench.restart();
        let mut last = bench.told();
        assert!(!last.is_exact);
        while !last.is_exact {
            bench.turn(vec![]);
            let told = bench.told();
            assert!(told.count >= last.count && told.count <= 606);
            last = told;
        }
        bench.assert_exact();
        while bench.told().count > 0 || !bench.running.is_empty() {
            bench.end_all(Verdict::Done);
            bench.wait(SECOND);
            bench.assert_exact();
        }
    }
}

#[test]
fn what_was_done_is_not_overdue_when_nobody_forgets_it() {
    let mut bench = Bench::new(Arc::new(MemoryStore::new(7)), 1);
    bench.ask((0..50).map(|number| set(number, Due::In(Duration::ZERO))));
    while !bench.running.is_empty() {
        bench.end_all(Verdict::Done);
    }
    bench.ask((50..60).map(|number| set(number, Due::In(SECOND))));
    // One runs for ever, nine wait, and fifty have been kept for long enough.
    bench.wait(60 * SECOND);
    assert_eq!(bench.assert_exact(), 9);
}

#[test]
fn nobody_wakes_up_to_count_while_nothing_is_overdue() {
    let mut bench = Bench::new(Arc::new(MemoryStore::new(7)), 4);
    bench.ask([set(1, Due::In(3_600 * SECOND))].into_iter());
    bench.wait(3_599 * SECOND);
    assert!(bench.turns <= 3, "{}", bench.turns);
    assert_eq!(bench.assert_exact(), 0);
}

/// The tables of earlier versions do not say in which state a record is.
#[test]
fn a_store_that_has_to_read_each_record_is_counted_as_well() {
    struct Silent(MemoryStore);

    impl Store for Silent {
        forward!(0: acquire, commit, settings, get, list, counts);

        fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
            let mut page = self.0.due(shard, scan)?;
            page.entries.iter_mut().for_each(|entry| entry.kind = None);
            Ok(page)
        }
    }

    let memory = MemoryStore::new(7);
    let lease = memory.acquire(Shard::ONLY).unwrap().lease;
    for number in 0..2_000 {
        let name = TimerName::new("q", number.to_string()).unwrap();
        let mut record = pending(name, number + 1, Vec::new());
        if number % 4 == 0 {
            let at = record.due;
            record.state = State::Done { at, keep_until: at };
        }
        memory.commit(lease, &[Change::put(record)]).unwrap();
    }
    let mut bench = Bench::new(Arc::new(Silent(memory)), 1);
    bench.wait(10 * SECOND);
    assert!(bench.assert_exact() >= 1_000);
}

impl Bench {
    /// The counts by due time are what a look through the store finds between their edges. Says how many timers that
    /// are.
    #[track_caller]
    fn assert_counted(&self) -> u64 {
        let told = self.engine.due_counts();
        assert!(told.exact);
        let skew = self.engine.stats().line_skew_micros - told.drift_micros.0;
        let mut found = Vec::new();
        for clock in DueClock::ALL {
            let page = self.store.due(Shard::ONLY, &DueScan::all(clock)).unwrap();
            let pending = page.entries.into_iter().filter(|entry| {
                let record = self.store.get(Shard::ONLY, &entry.name).unwrap().unwrap();
                record.state == State::Pending
            });
            let shift = match clock {
                DueClock::Wall => 0,
                DueClock::Boot => skew,
            };
            found.extend(pending.map(|entry| {
                let at = entry.wake.at.as_micros();
                Timestamp::from_micros(at.saturating_add_signed(shift))
            }));
        }
        found.sort();
        let mut rest = &found[..];
        for bucket in &told.buckets {
            let (here, later) = rest.split_at(usize::try_from(bucket.count).unwrap());
            let is_within = |at: &Timestamp| (bucket.from..bucket.until).contains(at);
            assert!(bucket.count > 0 && here.iter().all(is_within), "{bucket:?}");
            assert!(!later.first().is_some_and(is_within), "{bucket:?}");
            rest = later;
        }
        assert_eq!(rest, []);
        found.len() as u64
    }

    /// How long the buckets are, in order.
    fn lengths(&self) -> Vec<Duration> {
        let counts = self.engine.due_counts();
        let lengths = counts.buckets.iter();
        lengths
            .map(|it| it.until.saturating_since(it.from))
            .collect()
    }
}

#[test]
fn timers_are_counted_by_due_time_whatever_becomes_of_them() {
    const DAY: Duration = Duration::from_secs(86_400);
    for (store, _directory) in stores() {
        let mut bench = Bench::new(store, 4);
        // Seconds, minutes, hours and days, by both clocks.
        let after = |number: usize| match number % 5 {
            0 => Duration::from_millis(number as u64),
            1 => 7_200 * SECOND + Duration::from_millis(number as u64 * 100),
            2 => 2 * DAY + Duration::from_secs(number as u64),
            3 => 500 * DAY + Duration::from_secs(number as u64 * 60),
            _ => 36_000 * DAY,
        };
        bench.ask((0..3_000).map(|number| match (number % 2, number % 5) {
            (0, 0..4) => set(number, Due::In(after(number))),
            _ => set(number, Due::At(NOON + after(number))),
        }));
        // One was due at once, and runs.
        assert_eq!(bench.assert_counted(), 2_999);
        let lengths = bench.lengths();
        for length in [SECOND, 60 * SECOND, 3_600 * SECOND, DAY] {
            assert!(lengths.contains(&length), "{length:?}");
        }
        bench.wait(2 * SECOND);
        // Four run for good.
        assert_eq!(bench.assert_counted(), 2_996);
        let name = |number: usize| TimerName::new(QUEUES[number % 3], number.to_string()).unwrap();
        let precondition = Precondition::None;
        bench.ask((500..700).map(|number| Request::Remove {
            name: name(number),
            precondition,
            only_pending: false,
        }));
        assert_eq!(bench.assert_counted(), 2_796);
        bench.ask((700..900).map(|number| Request::Move {
            name: name(number),
            shift: Shift::To(Due::In(60 * SECOND)),
            precondition,
        }));
        assert_eq!(bench.assert_counted(), 2_796);
        for verdict in [
            Verdict::Done,
            Verdict::Stopped,
            Verdict::Failed { retry_after: None },
        ] {
            bench.end_all(verdict);
            bench.assert_counted();
        }

        // A restart counts in pieces, and says so while it does.
        bench.config.max_scanned = 256;
        bench.restart();
        let mut pieces = 0;
        while !bench.engine.due_counts().exact {
            let changed = 2_000 + pieces;
            bench.ask([set(changed, Due::At(NOON + after(changed + 1)))].into_iter());
            pieces += 1;
        }
        assert!(pieces > 10, "{pieces}");
        bench.assert_counted();

        // What comes near is split, a piece at a time, and its edges are right all the while.
        let mut was_split = 0;
        for _ in 0..20 {
            bench.clock.advance(300 * SECOND);
            for _ in 0..3 {
                bench.turn(vec![]);
                bench.assert_counted();
            }
            bench.wait(SECOND);
            let counts = bench.engine.due_counts();
            let now = bench.clock.timestamp();
            let near = counts.buckets.iter();
            let near = near.filter(|it| it.from > now && it.from < now + 3_500 * SECOND);
            was_split += near
                .inspect(|it| assert_eq!(it.until, it.from + SECOND))
                .count();
        }
        assert!(was_split > 100, "{was_split}");

        // The wall clock is set: the delays are where it shows them now.
        let wall = bench.clock.timestamp();
        bench.clock.set_timestamp(wall + 5_000 * SECOND);
        bench.turn(vec![]);
        bench.wait(10 * SECOND);
        bench.assert_counted();
        bench.clock.set_timestamp(wall);
        bench.turn(vec![]);
        bench.wait(10 * SECOND);
        bench.assert_counted();
    }
}

#[test]
fn who_has_to_split_a_bucket_wakes_up_for_it_alone() {
    let mut bench = Bench::new(Arc::new(MemoryStore::new(7)), 4);
    bench.ask([set(1, Due::In(86_400 * SECOND))].into_iter());
    bench.wait(86_300 * SECOND);
    assert_eq!(bench.lengths(), [SECOND]);
    assert!(bench.turns <= 8, "{}", bench.turns);
    bench.assert_counted();
}

/// A backlog of so many timers on a disk that flushes meanwhile, of which one in sixteen is overdue and four run: what
/// is counted is what a full list says, before and after a restart under load.
fn backlog_is_counted_through_a_restart(timers: usize) {
    const A_TURN: usize = 5_000;
    let directory = tempfile::tempdir().unwrap();
    let mut options = DiskOptions::default();
    options.log.memtable_names_max = timers / 7;
    let disk = DiskStore::open(directory.path(), 7, options).unwrap();
    let mut bench = Bench::new(Arc::new(disk), 4);
    // Over 0 s to 400 days, the near ones dense.
    let due = |number: usize| {
        let number = number as u64;
        let after = match number % 16 {
            0 => Duration::ZERO,
            1..8 => Duration::from_micros(SECOND_MICROS + number * 7_919 % HOUR_MICROS),
            8..12 => Duration::from_micros(number * 104_729 * 1_000 % (24 * HOUR_MICROS)),
            _ => Duration::from_micros(number * 15_485_863 * 1_000 % (9_600 * HOUR_MICROS)),
        };
        match number % 3 {
            0 => Due::In(after + SECOND),
            _ => Due::At(NOON + after + SECOND),
        }
    };
    let mut number = 0;
    while number < timers {
        let until = (number + A_TURN).min(timers);
        bench.ask((number..until).map(|number| set(number, due(number))));
        number = until;
    }
    bench.wait(SECOND + SECOND / 2);
    assert!(bench.told().count > timers as u64 / 20);
    // Four run for good.
    let pending = bench.assert_counted();
    assert_eq!(pending, timers as u64 - 4);

    bench.restart();
    let mut turns = 0;
    while !bench.engine.due_counts().exact {
        // Half of them are new, the other half are set anew.
        bench.ask((number..number + 50).map(|number| set(number, due(number))));
        bench.ask((number - timers..number - timers + 50).map(|at| set(at, due(number + at))));
        number += 50;
        turns += 2;
    }
    assert!(turns > timers / 4_096, "{turns}");
    bench.assert_counted();
}

const SECOND_MICROS: u64 = 1_000_000;
const HOUR_MICROS: u64 = 3_600 * SECOND_MICROS;

/// A look that pays for a page takes in all of it: with a full page of a thousand in memory, and with half a page of the log
/// and half a page of the tables.
#[test]
fn a_count_after_an_opening_takes_as_many_turns_as_it_has_pages() {
    const TIMERS: usize = 20_000;
    for (store, _directory) in stores() {
        let mut bench = Bench::new(store, 4);
        let near = |number: usize| Duration::from_secs(3_600 + number as u64 * 7_919 % 120 * 30);
        let numbers: Vec<usize> = (0..TIMERS).collect();
        for numbers in numbers.chunks(1_000) {
            bench.ask(numbers.iter().map(|&it| set(it, Due::At(NOON + near(it)))));
        }
        bench.restart();
        let before = bench.turns;
        while !bench.engine.due_counts().exact {
            bench.turn(Vec::new());
        }
        let turns = bench.turns - before;
        // A turn pays for a quarter of 4,096 entries, and of a page of two sources half may be for what comes later.
        assert!(turns <= 2 * TIMERS / 1_024 + 2, "{turns} turns");
        bench.assert_counted();
    }
}

#[test]
fn a_backlog_is_counted_through_a_restart() {
    backlog_is_counted_through_a_restart(100_000);
}

#[test]
#[ignore = "takes a minute"]
fn a_backlog_of_a_million_is_counted_through_a_restart() {
    backlog_is_counted_through_a_restart(1_000_000);
}

/// How long it takes after an opening until the counts are exact, and how much of it is the opening. Nothing is
/// asserted: what is printed is for decision 59.
#[test]
#[ignore = "measures"]
fn how_long_a_count_after_an_opening_takes() {
    let timers = std::env::var("COUNTWHEEL_COUNTED").map_or(100_000, |n| n.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let open = || DiskStore::open(directory.path(), 7, DiskOptions::default()).unwrap();
    let far = |number: usize| {
        let after = Duration::from_micros(number as u64 * 7_919_000 % (720 * HOUR_MICROS));
        Due::At(NOON + 60 * SECOND + after)
    };
    let mut bench = Bench::new(Arc::new(open()), 4);
    let numbers: Vec<usize> = (0..timers).collect();
    for numbers in numbers.chunks(5_000) {
        bench.ask(numbers.iter().map(|&number| set(number, far(number))));
    }
    drop(bench);
    for sets in [0, 100, 1_000] {
        for _ in 0..3 {
            let clock = countwheel_time::SystemClock::new();
            let start = clock.timestamp();
            let mut bench = Bench::new(Arc::new(open()), 4);
            let opened = clock.timestamp();
            let mut turns = 0;
            while !bench.engine.due_counts().exact {
                bench.ask((0..sets).map(|number| set(number, far(number + turns))));
                turns += 1;
            }
            let exact = clock.timestamp().saturating_since(opened);
            let opening = opened.saturating_since(start);
            println!(
                "{timers} timers, {sets} sets a turn: opening {opening:?}, {turns} turns, exact {exact:?} later"
            );
        }
    }
}
