//! The sorted tables behind a log: the same answers as a plain map, through merges, power cuts,
//! full disks and damage.

use std::sync::Arc;

use countwheel_disk::simulated::{Calls, Disk, Failure, Fault, Operation};
use countwheel_disk::{
    Flushed, MemorySorted, Sorted, SystemFiles, TableOptions, TableSnapshot, TableStore,
};
use countwheel_durable::store::{
    Change, DiskError, DueEntry, DueScan, Filter, Page, Shard, StoreError,
};
use countwheel_durable::{
    AttemptEnd, AttemptRecord, AttemptResult, DeadReason, DueClock, Missed, QueueName, Record,
    RetryPolicy, Revision, State, StateKind, TimerId, TimerName, Wake,
};
use countwheel_time::Timestamp;
use std::time::Duration;

use crate::support::random::Random;

// ---- records of all forms ----

const SHARDS: [Shard; 3] = [Shard(0), Shard(1), Shard(u16::MAX)];

fn names() -> Vec<TimerName> {
    let queues = ["a", "a.", "aa", "b-c:d_e.F"].map(str::to_owned);
    let long_queue = "q".repeat(QueueName::MAX_BYTES);
    let keys = ["x", "xx", "x/", "../x", "ä", "漢字", " ", "y"].map(str::to_owned);
    let long_keys = ["k".repeat(256), "k".repeat(255), "é".repeat(128)];
    let mut names = Vec::new();
    for queue in queues.iter().chain([&long_queue]) {
        for key in keys.iter().chain(&long_keys) {
            names.push(TimerName::new(queue, key).unwrap());
        }
    }
    names
}

/// Makes records, each with a revision of its own.
struct Maker {
    random: Random,
    names: Vec<TimerName>,
    revision: u64,
    payload_max: usize,
}

impl Maker {
    fn new(seed: u64, payload_max: usize) -> Self {
        Self {
            random: Random::new(seed),
            names: names(),
            revision: 0,
            payload_max,
        }
    }

    fn time(&mut self) -> Timestamp {
        match self.random.index(20) {
            0 => Timestamp::EPOCH,
            1 => Timestamp::MAX,
            _ => Timestamp::from_micros(1_000 * self.random.index(300) as u64),
        }
    }

    fn record(&mut self, name: TimerName) -> Record {
        self.revision += 1;
        let at = self.time();
        let state = match self.random.index(8) {
            0 => State::Delivering,
            1 | 2 => State::Done {
                at,
                keep_until: self.time(),
            },
            3 => State::Dead {
                at,
                reason: DeadReason::Exhausted,
                keep_until: (self.random.index(2) == 0).then(|| self.time()),
            },
            _ => State::Pending,
        };
        let attempts = self.random.index(3);
        let payload = match self.random.index(30) {
            0 => self.random.index(self.payload_max + 1),
            1..5 => 1_900 + self.random.index(400),
            _ => self.random.index(200),
        };
        let byte = self.random.byte();
        Record {
            name,
            id: TimerId {
                store: 7,
                set: Revision(self.revision),
            },
            revision: Revision(self.revision),
            state,
            created: at,
            due: self.time(),
            clock: DueClock::ALL[self.random.index(2)],
            missed: Missed::Fire,
            recurring: None,
            first_due: at,
            policy: RetryPolicy::default(),
            failures: 0,
            interruptions: 0,
            attempt: u32::try_from(attempts).unwrap(),
            attempts: (0..attempts)
                .map(|number| AttemptRecord {
                    number: u32::try_from(number).unwrap(),
                    due: at,
                    started: at,
                    held: Duration::ZERO,
                    ended: Some(AttemptEnd {
                        at,
                        result: AttemptResult::Failed,
                        detail: "503".to_owned(),
                        answer: None,
                    }),
                })
                .collect(),
            payload: vec![byte; payload],
        }
    }

    /// Changes of at most so many names, each once for a shard.
    fn changes(&mut self, most: usize) -> Vec<(Shard, Change)> {
        let mut changes: Vec<(Shard, Change)> = Vec::new();
        let mut taken = std::collections::BTreeSet::new();
        for _ in 0..self.random.index(most + 1) {
            let shard = SHARDS[[0, 0, 0, 0, 1, 2][self.random.index(6)]];
            let index = self.random.index(self.names.len());
            if !taken.insert((shard, index)) {
                continue;
            }
            let name = self.names[index].clone();
            let change = match self.random.index(20) {
                0 => Change::Given(Revision(self.revision)),
                1..7 => Change::remove(name),
                _ => Change::put(self.record(name)),
            };
            changes.push((shard, change));
        }
        changes
    }

    fn options(&mut self) -> TableOptions {
        let mut options = TableOptions::default();
        options.table_bytes = [4 << 10, 20 << 10, 1 << 20][self.random.index(3)];
        options.block_bytes = [64, 300, 4_096][self.random.index(3)];
        options.cache_bytes = [0, 20_000, 1 << 20][self.random.index(3)];
        options.fan_in = 2 + self.random.index(3);
        options.merge_bytes = [1_000, 10_000, 1 << 20][self.random.index(3)];
        options.skip_min = options.fan_in;
        options
    }

    fn filter(&mut self) -> Filter {
        let queue = self.names[self.random.index(self.names.len())]
            .queue
            .clone();
        let mut filter = Filter::queue(queue);
        if self.random.index(2) == 0 {
            filter.state = Some(StateKind::ALL[self.random.index(4)]);
        }
        if self.random.index(3) == 0 {
            filter.prefix = Some(["x", "k", "é", "", "none"][self.random.index(5)].to_owned());
        }
        if self.random.index(3) == 0 {
            filter.due_from = Some(self.time());
        }
        if self.random.index(3) == 0 {
            filter.due_before = Some(self.time());
        }
        filter.limit = [0, 1, 2, 5, 100][self.random.index(5)];
        filter
    }
}

/// Asks both the same, and wants the same answers.
fn compare(store: &TableStore, model: &MemorySorted, maker: &mut Maker, questions: usize) {
    examine(store, model, maker, questions).unwrap();
}

/// Asks both the same, and wants the same answers as long as the store has any.
fn examine(
    store: &TableStore,
    model: &MemorySorted,
    maker: &mut Maker,
    questions: usize,
) -> Result<(), StoreError> {
    assert_eq!(store.ingested(), model.ingested());
    for shard in SHARDS {
        for name in &maker.names {
            assert_eq!(
                store.get(shard, name)?,
                model.get(shard, name).unwrap(),
                "{shard:?} {name}"
            );
        }
        for clock in DueClock::ALL {
            let scan = DueScan::all(clock);
            let expected = model.due(shard, &whole_scan(&scan)).unwrap().entries;
            assert_eq!(due(store, shard, &scan)?, expected, "{scan:?}");
        }
    }
    for _ in 0..questions {
        let shard = SHARDS[maker.random.index(3)];
        let queue = maker.names[maker.random.index(maker.names.len())]
            .queue
            .clone();
        let scan = DueScan {
            clock: DueClock::ALL[maker.random.index(2)],
            queue: (maker.random.index(2) == 0).then_some(&queue),
            after: (maker.random.index(2) == 0).then(|| Wake {
                at: maker.time(),
                revision: Revision(maker.random.index(500) as u64),
            }),
            until: maker.time(),
            limit: [0, 1, 7, usize::MAX][maker.random.index(4)],
            scan_limit: [1, 5, 40, usize::MAX][maker.random.index(4)],
        };
        let expected = model.due(shard, &whole_scan(&scan)).unwrap().entries;
        assert_eq!(due(store, shard, &scan)?, expected, "{scan:?}");
        // From an entry on.
        if let Some(middle) = expected.get(expected.len() / 2) {
            let scan = DueScan {
                after: Some(middle.wake),
                ..scan
            };
            let expected = model.due(shard, &whole_scan(&scan)).unwrap().entries;
            assert_eq!(due(store, shard, &scan)?, expected, "{scan:?}");
        }
        let mut filter = maker.filter();
        loop {
            let page = list(store, shard, &filter)?;
            assert_eq!(page, model.list(shard, &filter).unwrap(), "{filter:?}");
            if page.next.is_none() {
                break;
            }
            filter.after = page.next;
        }
    }
    Ok(())
}

/// The same, however far a page looks.
fn whole_scan<'a>(scan: &DueScan<'a>) -> DueScan<'a> {
    DueScan {
        scan_limit: usize::MAX,
        ..*scan
    }
}

/// What is due, or that not all of it can be read.
fn due(store: &TableStore, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
    let mut scan = *scan;
    let mut all = Vec::new();
    loop {
        let mut page = store.due(shard, &scan)?;
        assert!(page.scanned <= scan.scan_limit.max(1));
        all.append(&mut page.entries);
        match page.next {
            Some(next) if all.len() < scan.limit => scan.after = Some(next),
            _ => break,
        }
    }
    all.truncate(scan.limit);
    whole(store, 0).map(|()| all)
}

fn list(store: &TableStore, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
    let page = store.list(shard, filter)?;
    whole(store, page.unreadable).map(|()| page)
}

/// Whoever passes something over says so.
fn whole(store: &TableStore, left_out: usize) -> Result<(), StoreError> {
    let gaps = store.gaps();
    if left_out == 0 && !gaps.dues && !gaps.lists {
        return Ok(());
    }
    assert!(left_out > 0 || !store.troubles().is_empty());
    Err(DiskError::Corrupt {
        path: "tables".into(),
        problem: "something was passed over".to_owned(),
    }
    .into())
}

/// A check finds nothing wrong, and as much as there is.
fn check_is_clean(disk: &Disk, store: &TableStore) {
    let check = TableStore::check(disk.files("tables"), 7).unwrap();
    assert_eq!(check.problems, []);
    let stats = store.stats();
    assert_eq!(
        (check.tables, check.records, check.tombstones, check.bytes),
        (stats.tables, stats.records, stats.tombstones, stats.bytes)
    );
}

#[test]
fn random_lives_give_what_a_plain_map_gives() {
    let (mut merges, mut runs_max) = (0, 0);
    for seed in 0..40 {
        let payload_max = if seed % 20 == 0 { 2 << 20 } else { 10_000 };
        let mut maker = Maker::new(seed, payload_max);
        let model = MemorySorted::default();
        let disk = Disk::new(seed);
        let options = maker.options();
        let open = || TableStore::open(disk.files("tables"), 7, options).unwrap();
        let mut store = open();
        for segment in 1..=15 {
            let most = [3, 30, 120][maker.random.index(3)];
            let changes = maker.changes(most);
            model.ingest(segment, changes.clone().into()).unwrap();
            store.ingest(segment, changes.into()).unwrap();
            while maker.random.index(3) > 0 && store.merge_step().unwrap() {
                merges += 1;
            }
            if maker.random.index(5) == 0 {
                drop(store);
                store = open();
            }
            runs_max = runs_max.max(store.stats().runs);
            compare(&store, &model, &mut maker, 4);
            if segment % 5 == 0 {
                check_is_clean(&disk, &store);
            }
        }
        while store.merge_step().unwrap() {}
        assert!(!store.merge_wanted());
        compare(&store, &model, &mut maker, 20);
        drop(store);
        // No file is left over.
        let store = open();
        assert_eq!(disk.paths().len(), store.stats().tables + 1);
    }
    assert!(merges > 80 && runs_max > 5, "{merges} {runs_max}");
}

#[test]
fn a_real_directory_does_as_well() {
    let mut maker = Maker::new(5, 100_000);
    let model = MemorySorted::default();
    let directory = tempfile::tempdir().unwrap();
    let open = || {
        let files = Arc::new(SystemFiles::new(directory.path()));
        TableStore::open(files, 7, TableOptions::default()).unwrap()
    };
    for segment in 1..=20 {
        let store = open();
        let changes = maker.changes(100);
        model.ingest(segment, changes.clone().into()).unwrap();
        store.ingest(segment, changes.into()).unwrap();
        while store.merge_step().unwrap() {}
        compare(&store, &model, &mut maker, 2);
    }
}

// ---- power cuts and errors ----

/// What is done to a store, one after the other.
#[derive(Clone, Debug)]
enum Step {
    Ingest(Vec<(Shard, Change)>),
    Merge,
}

fn script(maker: &mut Maker, steps: usize) -> Vec<Step> {
    (0..steps)
        .map(|_| match maker.random.index(3) {
            0 => Step::Merge,
            _ => Step::Ingest(maker.changes(20)),
        })
        .collect()
}

/// A store, and what it may hold.
struct Life {
    disk: Disk,
    options: TableOptions,
    model: MemorySorted,
    /// An ingest that failed: it may have been taken in.
    unknown: Option<Vec<(Shard, Change)>>,
}

impl Life {
    fn new(options: TableOptions, seed: u64) -> Self {
        Self {
            disk: Disk::new(seed),
            options,
            model: MemorySorted::default(),
            unknown: None,
        }
    }

    fn open(&self) -> Result<TableStore, StoreError> {
        self.disk.restart();
        TableStore::open(self.disk.files("tables"), 7, self.options)
    }

    /// Opens while calls may fail.
    fn try_open(&self, calls: u64) -> Result<TableStore, StoreError> {
        self.disk.restart();
        self.disk.fail(Fault::power(calls));
        TableStore::open(self.disk.files("tables"), 7, self.options)
    }

    /// Whatever was unknown is known now: all of it is there, or nothing.
    fn settle(&mut self, store: &TableStore, maker: &mut Maker) {
        if let Some(changes) = self.unknown.take() {
            let next = self.model.ingested() + 1;
            if store.ingested() == next {
                self.model.ingest(next, changes.into()).unwrap();
            }
        }
        compare(store, &self.model, maker, 2);
    }

    fn apply(&mut self, store: &TableStore, step: &Step) -> Result<(), StoreError> {
        match step {
            Step::Merge => store.merge_step().map(drop),
            Step::Ingest(changes) => {
                let next = self.model.ingested() + 1;
                let result = store.ingest(next, changes.clone().into());
                match &result {
                    Ok(()) => self.model.ingest(next, changes.clone().into()).unwrap(),
                    Err(StoreError::Disk(DiskError::Full { .. })) => {}
                    Err(_) => self.unknown = Some(changes.clone()),
                }
                result
            }
        }
    }
}

/// Small tables, so that a merge writes several, in several steps.
fn small() -> TableOptions {
    let mut options = TableOptions::default();
    options.merge_bytes = 8_000;
    options.table_bytes = 4 << 10;
    options.block_bytes = 300;
    options.fan_in = 2;
    options.skip_min = 2;
    options
}

#[test]
fn the_power_may_go_at_any_call() {
    let mut maker = Maker::new(11, 20_000);
    let steps = script(&mut maker, 14);
    let mut cuts = 0;
    for calls in 0.. {
        let mut life = Life::new(small(), maker.random.draw());
        let ran = life.try_open(calls).and_then(|store| {
            for step in &steps {
                life.apply(&store, step)?;
            }
            Ok(())
        });
        life.disk.cut(maker.random.draw());
        // Nor does a cut in the opening after it matter.
        let again = maker.random.index(10) as u64;
        drop(life.try_open(again));
        if maker.random.index(2) == 0 {
            life.disk.cut(maker.random.draw());
        }
        let store = life
            .open()
            .unwrap_or_else(|error| panic!("{calls}: {error}"));
        life.settle(&store, &mut maker);
        for step in &steps[..2] {
            life.apply(&store, step).unwrap();
        }
        compare(&store, &life.model, &mut maker, 2);
        cuts += 1;
        if ran.is_ok() {
            break;
        }
    }
    assert!(cuts > 60, "{cuts}");
}

/// A sync of names fails, the process ends, and the power goes while the next opens the store.
#[test]
fn the_power_may_go_after_a_sync_of_names_that_failed() {
    let mut poisoned = 0;
    for seed in 0..400 {
        let mut random = Maker::new(seed, 0).random;
        let disk = Disk::new(random.draw());
        let open = || TableStore::open(disk.files("tables"), 7, small());
        let store = open().unwrap();
        for ingest in 1..6 {
            let puts = (0..20).map(|name| (Shard(0), Change::put(plain(name, 20 * ingest + name))));
            store.ingest(ingest, puts.collect()).unwrap();
        }
        disk.fail(Fault {
            calls: Calls::Only(Operation::SyncDirectory),
            after: random.draw() % 8,
            lasts: false,
            failure: Failure::Io,
        });
        let merged = (0..10).try_for_each(|_| store.merge_step().map(drop));
        poisoned += u32::from(merged.is_err());
        drop(store);
        disk.restart();
        disk.fail(Fault::power(random.draw() % 12));
        drop(open());
        disk.cut(random.draw());
        let store = open().unwrap_or_else(|error| panic!("{seed}: {error}"));
        for name in 0..20 {
            let found = store.get(Shard(0), &plain(name, 1).name).unwrap();
            assert_eq!(
                found.map(|found| found.revision.0),
                Some(100 + name),
                "{seed}"
            );
        }
    }
    assert!(poisoned > 100, "{poisoned}");
}

#[test]
fn random_lives_survive_power_cuts() {
    for seed in 100..180 {
        let mut maker = Maker::new(seed, 10_000);
        let mut life = Life::new(small(), maker.random.draw());
        for _ in 0..6 {
            let calls = maker.random.index(60) as u64;
            let opened = life.try_open(calls);
            if let Ok(store) = opened {
                life.settle(&store, &mut maker);
                for step in script(&mut maker, 8) {
                    if life.apply(&store, &step).is_err() {
                        assert!(matches!(
                            store.ingest(u64::MAX, Flushed::default()),
                            Err(StoreError::Poisoned)
                        ));
                        break;
                    }
                }
            }
            if maker.random.index(4) > 0 {
                life.disk.cut(maker.random.draw());
            }
        }
        let store = life
            .open()
            .unwrap_or_else(|error| panic!("{seed}: {error}"));
        life.settle(&store, &mut maker);
        while store.merge_step().unwrap() {}
        compare(&store, &life.model, &mut maker, 5);
        drop(store);
        let store = life.open().unwrap();
        let files = life.disk.paths().len();
        assert_eq!(files, store.stats().tables + 1, "nothing is left over");
    }
}

#[test]
fn every_call_may_fail_once() {
    let mut maker = Maker::new(13, 20_000);
    let steps = script(&mut maker, 8);
    let mut full = 0;
    for failure in [Failure::Io, Failure::NoSpace, Failure::Short, Failure::Torn] {
        for calls in 0.. {
            let mut life = Life::new(small(), maker.random.draw());
            life.disk.fail(Fault::once(calls, failure));
            let opened = TableStore::open(life.disk.files("tables"), 7, life.options);
            if let Ok(store) = opened {
                for step in &steps {
                    let unfinished = life.disk.paths().len() - store.stats().tables;
                    match life.apply(&store, step) {
                        Ok(()) => {}
                        Err(StoreError::Disk(DiskError::Full { .. })) => {
                            let others = life.disk.paths().len() - store.stats().tables;
                            match step {
                                Step::Merge => assert_eq!(others, 1, "nothing is left over"),
                                Step::Ingest(_) => assert_eq!(others, unfinished),
                            }
                            life.apply(&store, step).unwrap();
                            full += 1;
                        }
                        Err(_) => {
                            if life.unknown.is_some() {
                                let refused = store.ingest(9_999, Flushed::default());
                                assert!(matches!(refused, Err(StoreError::Poisoned)));
                                let refused = store.merge_step();
                                assert!(matches!(refused, Err(StoreError::Poisoned)));
                            }
                            break;
                        }
                    }
                }
            }
            let struck = life.disk.struck();
            let store = life
                .open()
                .unwrap_or_else(|e| panic!("{failure:?} {calls}: {e}"));
            life.settle(&store, &mut maker);
            drop(store);
            // What an opening has answered is durable.
            life.disk.cut(maker.random.draw());
            let store = life.open().unwrap();
            compare(&store, &life.model, &mut maker, 1);
            if struck == 0 {
                break;
            }
        }
    }
    assert!(full > 20, "{full}");
}

#[test]
fn leftovers_that_cannot_be_removed_do_no_harm() {
    let (mut maker, mut life) = furnished(4);
    let number = |path: &String| u64::from_str_radix(path.rsplit_once('-')?.1, 16).ok();
    let paths = life.disk.paths();
    let next = 1 + paths.iter().filter_map(number).max().unwrap();
    for number in next..next + 12 {
        life.disk
            .set_content(&format!("tables/table-{number:016x}"), vec![1; 9]);
    }
    life.disk.restart();
    life.disk.fail(Fault {
        calls: Calls::Only(Operation::Remove),
        after: 0,
        lasts: true,
        failure: Failure::Io,
    });
    let store = TableStore::open(life.disk.files("tables"), 7, life.options).unwrap();
    let changes = maker.changes(30);
    life.apply(&store, &Step::Ingest(changes)).unwrap();
    while store.merge_step().unwrap() {}
    compare(&store, &life.model, &mut maker, 3);
    drop(store);
    let store = life.open().unwrap();
    compare(&store, &life.model, &mut maker, 3);
    let paths = life.disk.paths();
    let in_tables = paths.iter().filter(|path| path.starts_with("tables/"));
    assert_eq!(in_tables.count(), store.stats().tables + 1);
    // What nobody needs is kept until the next opening.
    drop(store);
    let store = life.open().unwrap();
    assert_eq!(life.disk.paths().len(), store.stats().tables + 1);
}

#[test]
fn a_full_disk_refuses_and_goes_on_with_room() {
    let mut maker = Maker::new(17, 5_000);
    let mut life = Life::new(small(), maker.random.draw());
    let store = life.open().unwrap();
    let mut full = 0;
    for _ in 0..120 {
        let room = maker.random.index(30_000) as u64;
        life.disk.set_capacity(Some(life.disk.used() + room));
        for step in script(&mut maker, 3) {
            let result = life.apply(&store, &step);
            if let Err(error) = result {
                assert!(
                    matches!(error, StoreError::Disk(DiskError::Full { .. })),
                    "{error}"
                );
                full += 1;
            }
        }
        compare(&store, &life.model, &mut maker, 1);
    }
    assert!(full > 20, "{full}");
    // Neither does it keep the store shut.
    drop(store);
    life.disk.set_capacity(Some(life.disk.used()));
    let store = life.open().unwrap();
    life.disk.set_capacity(Some(life.disk.used()));
    compare(&store, &life.model, &mut maker, 5);
    assert!(matches!(
        store.ingest(u64::MAX, maker.changes(9).into()),
        Err(StoreError::Disk(DiskError::Full { .. }))
    ));
    life.disk.set_capacity(None);
    while store.merge_step().unwrap() {}
    compare(&store, &life.model, &mut maker, 5);
}

// ---- damage ----

/// A store with several runs, and what is in it.
fn furnished(seed: u64) -> (Maker, Life) {
    let mut maker = Maker::new(seed, 6_000);
    let mut options = small();
    options.fan_in = 3;
    let mut life = Life::new(options, seed);
    let store = life.open().unwrap();
    for number in 0..12 {
        let changes = maker.changes(40);
        life.apply(&store, &Step::Ingest(changes)).unwrap();
        if number < 10 {
            while store.merge_step().unwrap() {}
        }
    }
    assert!(store.stats().runs > 2 && store.stats().tables > 5);
    drop(store);
    life.disk.cut(1);
    (maker, life)
}

#[test]
fn damage_is_refused_or_does_not_matter() {
    let (mut refused, mut survived) = (0, 0);
    for seed in 0..4 {
        let (mut maker, life) = furnished(seed);
        for round in 0..60 {
            let disk = life.disk.copy();
            let done = disk.damage(maker.random.draw());
            let before = disk.image();
            let open = || TableStore::open(disk.files("tables"), 7, life.options);
            let mut everything = || {
                let store = open().inspect_err(|_| {
                    assert!(disk.image() == before, "{seed} {round} {done:?}: changed");
                })?;
                examine(&store, &life.model, &mut maker, 3)?;
                while store.merge_step()? {}
                examine(&store, &life.model, &mut maker, 1)
            };
            match everything() {
                Ok(()) => survived += 1,
                Err(StoreError::Disk(DiskError::Corrupt { .. } | DiskError::NotAStore { .. })) => {
                    refused += 1;
                }
                Err(error) => panic!("{seed} {round} {done:?}: {error}"),
            }
        }
    }
    assert!(refused > 130 && survived > 3, "{refused} {survived}");
}

#[test]
fn every_flipped_bit_of_a_small_store_is_found_or_does_not_matter() {
    let mut maker = Maker::new(3, 100);
    let mut life = Life::new(TableOptions::default(), 3);
    let store = life.open().unwrap();
    let changes = [0, 1, 20].map(|index| {
        let record = maker.record(maker.names[index].clone());
        (Shard(0), Change::put(record))
    });
    life.apply(&store, &Step::Ingest(changes.into())).unwrap();
    let removal = Change::remove(maker.names[1].clone());
    life.apply(&store, &Step::Ingest(vec![(Shard(0), removal)]))
        .unwrap();
    drop(store);
    let mut harmless = 0;
    let mut bytes = 0;
    for path in life.disk.paths() {
        let content = life.disk.content(&path).unwrap();
        bytes += content.len();
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 1 << maker.random.index(8);
            life.disk.set_content(&path, damaged);
            let examined = life
                .open()
                .and_then(|store| examine(&store, &life.model, &mut maker, 0));
            harmless += usize::from(examined.is_ok());
            // What only fills up to the next frame is nobody's.
            let is_padding = path != "tables/manifest"
                && frames(&content)
                    .iter()
                    .all(|&(begin, len, _)| !(begin..begin + len).contains(&at));
            let check = TableStore::check(life.disk.files("tables"), 7);
            let is_clean = check.is_ok_and(|check| check.problems.is_empty());
            assert_eq!(is_clean, is_padding, "{path} {at}");
        }
        life.disk.set_content(&path, content);
    }
    // What fills up to the next frame, and frames that nobody had to read.
    assert!(harmless < bytes / 4, "{harmless} of {bytes}");
}

/// The frames of a table: where each stands, its length, its kind.
fn frames(content: &[u8]) -> Vec<(usize, usize, u8)> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let length = u32::from_le_bytes(*content[at + 4..].first_chunk().unwrap()) as usize;
        frames.push((at, 12 + length, content[at + 8]));
        at += (12 + length).next_multiple_of(8);
    }
    frames
}

/// A store with equal tables: records of one length, and of them only the payload differs.
fn equal_tables(store_id: u64, bytes: [u8; 2]) -> Disk {
    let disk = Disk::default();
    let mut options = small();
    options.fan_in = 9;
    let store = TableStore::open(disk.files("tables"), store_id, options).unwrap();
    let mut maker = Maker::new(1, 0);
    let records: Vec<Record> = (0..20)
        .map(|number| Record {
            payload: vec![0; 100],
            state: State::Pending,
            created: Timestamp::from_micros(1_000),
            first_due: Timestamp::from_micros(1_000),
            due: Timestamp::from_micros(1_000 + number),
            attempts: Vec::new(),
            attempt: 0,
            clock: DueClock::Wall,
            ..maker.record(TimerName::new("q", format!("key-{number:03}")).unwrap())
        })
        .collect();
    for (segment, byte) in (1..).zip(bytes) {
        let changes = records.iter().cloned().map(|mut record| {
            record.payload.fill(byte);
            (Shard(0), Change::put(record))
        });
        store.ingest(segment, changes.collect()).unwrap();
    }
    drop(store);
    disk.restart();
    disk
}

/// Opens it and reads all there is.
fn read_all(disk: &Disk) -> Result<usize, StoreError> {
    let store = TableStore::open(disk.files("tables"), 7, small())?;
    let mut count = 0;
    for number in 0..20 {
        let name = TimerName::new("q", format!("key-{number:03}")).unwrap();
        count += usize::from(store.get(Shard(0), &name)?.is_some());
    }
    store.due(Shard(0), &DueScan::all(DueClock::Wall))?;
    store.list(Shard(0), &Filter::queue(QueueName::new("q").unwrap()))?;
    Ok(count)
}

#[test]
fn bytes_from_elsewhere_are_refused() {
    let disk = equal_tables(7, [1, 2]);
    assert_eq!(read_all(&disk).unwrap(), 20);
    let paths = disk.paths();
    let [_, older, newer] = &paths[..] else {
        panic!("{paths:?}");
    };
    let content = disk.content(newer).unwrap();
    let records: Vec<_> = frames(&content)
        .into_iter()
        .filter(|&(_, _, kind)| kind & 0x7f == 1)
        .collect();
    let alike = records.windows(2).find(|pair| pair[0].1 == pair[1].1);
    let &[one, other] = alike.unwrap() else {
        unreachable!()
    };

    // A block from another place of the file.
    let mut moved = content.clone();
    moved.copy_within(one.0..one.0 + one.1, other.0);
    // A block from the same place of another file.
    let mut mixed = content.clone();
    let older = disk.content(older).unwrap();
    let range = one.0..one.0 + one.1;
    mixed[range.clone()].copy_from_slice(&older[range]);
    // The same table of another store.
    let foreign = equal_tables(8, [1, 2]).content(newer).unwrap();
    assert_eq!(foreign.len(), content.len());
    // The same store in another life: only the payloads differ.
    let other_life = equal_tables(7, [1, 3]).content(newer).unwrap();
    assert_eq!(other_life.len(), content.len());
    // Everything of another table.
    for (what, bytes) in [
        ("moved", moved),
        ("mixed", mixed),
        ("foreign", foreign),
        ("of another life", other_life),
        ("older", older),
    ] {
        disk.restart();
        disk.set_content(newer, bytes);
        let read = read_all(&disk);
        assert!(
            matches!(read, Err(StoreError::Disk(DiskError::Corrupt { .. }))),
            "{what}: {read:?}"
        );
    }
    disk.set_content(newer, content);
    disk.restart();
    assert_eq!(read_all(&disk).unwrap(), 20);
}

#[test]
fn what_is_no_store_is_left_alone() {
    let not_a_store = |disk: &Disk| {
        let before = disk.paths();
        let opened = TableStore::open(disk.files("tables"), 7, small());
        assert!(
            matches!(opened, Err(StoreError::Disk(DiskError::NotAStore { .. }))),
            "{opened:?}"
        );
        assert_eq!(disk.paths(), before);
    };
    let disk = equal_tables(8, [1, 2]);
    not_a_store(&disk); // of another store

    let disk = equal_tables(7, [1, 2]);
    disk.set_content("tables/notes.txt", vec![1]);
    not_a_store(&disk);

    for path in disk.paths() {
        let disk = equal_tables(7, [1, 2]);
        if disk.delete(&path) {
            not_a_store(&disk);
        }
    }

    // A later version: the checksum is right, only the number is another.
    let disk = equal_tables(7, [1, 2]);
    let mut manifest = disk.content("tables/manifest").unwrap();
    manifest[8] += 1;
    let covered = [&manifest[..24], &manifest[28..]].concat();
    manifest[24..28].copy_from_slice(&crc32(&covered).to_le_bytes());
    disk.set_content("tables/manifest", manifest);
    not_a_store(&disk);
}

/// CRC-32 as everybody has it, the slow way.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}

// ---- what it costs ----

/// A record that is due after so many milliseconds.
fn plain(number: u64, revision: u64) -> Record {
    let due = Timestamp::from_micros(1_000 * number);
    Record {
        revision: Revision(revision),
        state: State::Pending,
        due,
        clock: DueClock::Wall,
        attempts: Vec::new(),
        payload: vec![u8::try_from(revision % 256).unwrap(); 50],
        ..Maker::new(number, 0).record(TimerName::new("q", format!("key-{number:06}")).unwrap())
    }
}

#[test]
fn blocks_of_tables_that_were_merged_away_are_not_kept_in_memory() {
    let store = TableStore::open(Disk::default().files("tables"), 7, TableOptions::default());
    let store = store.unwrap();
    let all = || 0..2_000;
    let cached = || store.stats().cached;
    for round in 1..20 {
        let puts =
            all().map(|number| (Shard(0), Change::put(plain(number, round * 2_000 + number))));
        store.ingest(round, puts.collect()).unwrap();
        for number in all() {
            let name = plain(number, 1).name;
            assert!(store.get(Shard(0), &name).unwrap().is_some());
        }
        assert!(cached() > 100_000, "{} bytes after reading all", cached());
        while store.merge_step().unwrap() {}
    }
    let removals = all().map(|number| (Shard(0), Change::remove(plain(number, 1).name)));
    store.ingest(20, removals.collect()).unwrap();
    while store.merge_step().unwrap() {}
    let bytes = store.stats().bytes;
    assert!(
        cached() as u64 <= 4 * bytes,
        "{} bytes of {bytes}",
        cached()
    );
}

#[test]
fn a_scan_from_a_position_reads_little_whatever_was_removed_before() {
    let disk = Disk::default();
    let mut options = TableOptions::default();
    options.cache_bytes = 0;
    options.block_bytes = 512;
    options.fan_in = 100;
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    let puts = (0..3_000).map(|number| (Shard(0), Change::put(plain(number, number + 1))));
    store.ingest(1, puts.collect()).unwrap();
    let removals = (0..2_900).map(|number| (Shard(0), Change::remove(plain(number, 1).name)));
    store.ingest(2, removals.collect()).unwrap();
    let reads = || disk.calls(Calls::Only(Operation::Read));

    let before = reads();
    let scan = DueScan {
        after: Some(plain(2_899, 2_900).wake().unwrap()),
        limit: 20,
        ..DueScan::all(DueClock::Wall)
    };
    let found = store.due(Shard(0), &scan).unwrap().entries;
    assert_eq!(found.len(), 20);
    assert_eq!(found[0].name, plain(2_900, 1).name);
    // A block of the tree for each level, and some more to the right.
    let took = reads() - before;
    assert!(took < 20, "{took}");

    // Nor does an ingest look anything up, not even after an opening, but for a filter of each
    // table.
    drop(store);
    disk.restart();
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    let before = reads();
    let puts = (0..500).map(|number| (Shard(0), Change::put(plain(number, 5_000 + number))));
    store.ingest(3, puts.collect()).unwrap();
    assert_eq!(reads(), before);
    let removals = (500..999).map(|number| (Shard(0), Change::remove(plain(number, 1).name)));
    store.ingest(4, removals.collect()).unwrap();
    let took = reads() - before;
    assert!(took <= 2, "{took}");
}

#[test]
fn runs_stay_few_and_each_record_is_written_seldom() {
    let disk = Disk::default();
    let mut options = TableOptions::default();
    options.fan_in = 4;
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    let (mut runs, mut next) = (0, 0);
    for segment in 1..=64 {
        let puts =
            (next..next + 30).map(|number| (Shard(0), Change::put(plain(number, number + 1))));
        store.ingest(segment, puts.collect()).unwrap();
        next += 30;
        while store.merge_step().unwrap() {}
        runs = runs.max(store.stats().runs);
    }
    let stats = store.stats();
    // Three tiers of three at most; 64 = 4 x 4 x 4 ingests are one run in the end.
    assert!(runs <= 9 && stats.runs == 1, "{runs} {stats:?}");
    // Once by the ingest, and once for each tier above. Small tables have more of everything.
    assert!(stats.written < 5 * stats.bytes, "{stats:?}");

    // What was removed goes, and then the removals do.
    let removals = (0..next).map(|number| (Shard(0), Change::remove(plain(number, 1).name)));
    store.ingest(65, removals.collect()).unwrap();
    assert!(store.merge_step().unwrap());
    let stats = store.stats();
    assert_eq!((stats.tables, stats.records, stats.tombstones), (0, 0, 0));
    assert_eq!(disk.paths(), ["tables/manifest"]);
    // A removal of what nobody has is not even written.
    let removal = Change::remove(plain(1, 1).name);
    store.ingest(66, vec![(Shard(0), removal)].into()).unwrap();
    assert_eq!(store.stats().tables, 0);
}

#[test]
fn what_is_written_is_counted_by_what_for() {
    let disk = Disk::default();
    let mut options = TableOptions::default();
    options.fan_in = 2;
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    store.ingest(1, some(0..300).into()).unwrap();
    store.ingest(2, some(300..400).into()).unwrap();
    let ingested = store.stats();
    assert_eq!(ingested.written, ingested.bytes);
    assert_eq!((ingested.taken_in, ingested.purged), (ingested.bytes, 0));
    while store.merge_step().unwrap() {}
    let merged = store.stats();
    assert_eq!(merged.written, ingested.bytes + merged.bytes);
    assert_eq!((merged.taken_in, merged.purged), (ingested.bytes, 0));
    let removals = (0..300).map(|number| (Shard(0), Change::remove(plain(number, 1).name)));
    store.ingest(3, removals.collect()).unwrap();
    let taken_in = store.stats().taken_in;
    assert!(taken_in > merged.taken_in);
    while store.merge_step().unwrap() {}
    let purged = store.stats();
    assert_eq!((purged.records, purged.purged), (100, purged.bytes));
    assert_eq!(purged.written, merged.bytes + taken_in + purged.bytes);
}

/// Records of about 120 bytes.
fn some(numbers: std::ops::Range<u64>) -> Vec<(Shard, Change)> {
    let puts = numbers.map(|number| (Shard(0), Change::put(plain(number, number + 1))));
    puts.collect()
}

fn count(store: &TableStore) -> usize {
    let due = store.due(Shard(0), &DueScan::all(DueClock::Wall)).unwrap();
    let due = due.entries;
    due.len()
}

#[test]
fn a_merge_goes_in_steps() {
    let disk = Disk::default();
    let mut options = TableOptions::default();
    options.fan_in = 4;
    options.merge_bytes = 5_000;
    let open = || TableStore::open(disk.files("tables"), 7, options).unwrap();
    let store = open();
    for segment in 0..4 {
        store
            .ingest(segment + 1, some(300 * segment..300 * (segment + 1)).into())
            .unwrap();
    }
    let bytes = store.stats().bytes;
    for _ in 0..5 {
        assert!(store.merge_step().unwrap());
        assert_eq!((store.stats().runs, count(&store)), (4, 1_200));
    }
    // Nothing of it is left if nobody finishes it.
    drop(store);
    disk.restart();
    let store = open();
    assert_eq!(disk.paths().len(), 1 + store.stats().tables);
    let mut steps = 0;
    while store.stats().runs == 4 {
        assert!(store.merge_step().unwrap() && store.merge_wanted() == (store.stats().runs == 4));
        steps += 1;
        if steps == 3 {
            // An ingest need not wait for it.
            store.ingest(5, some(1_200..1_210).into()).unwrap();
            break;
        }
    }
    while store.merge_step().unwrap() {
        steps += 1;
    }
    assert_eq!((store.stats().runs, count(&store)), (2, 1_210));
    assert!(steps >= bytes / 2 / 5_000, "{steps}");
}

#[test]
fn a_small_merge_goes_before_a_large_one() {
    let disk = Disk::default();
    let mut options = small();
    options.fan_in = 3;
    options.merge_bytes = 2_000;
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    let mut segments = 0;
    let mut ingest = |numbers: std::ops::Range<u64>| {
        segments += 1;
        store.ingest(segments, some(numbers).into()).unwrap();
    };
    for third in 0..3 {
        for part in 3 * third..3 * third + 3 {
            ingest(100 * part..100 * part + 100);
        }
        while store.stats().runs as u64 > third + 1 {
            assert!(store.merge_step().unwrap());
        }
    }
    let (mut runs, mut next, mut steps) = (0, 900, 0);
    while store.merge_step().unwrap() {
        steps += 1;
        if steps % 4 == 0 && next < 960 {
            ingest(next..next + 5);
            next += 5;
        }
        runs = runs.max(store.stats().runs);
        assert!(!store.is_behind(), "{steps}");
    }
    assert_eq!((next, count(&store)), (960, 960));
    assert!(runs <= 10, "{runs} after {steps}");
}

#[test]
fn who_falls_behind_says_so_unless_there_is_no_room_to_catch_up() {
    let disk = Disk::default();
    let mut options = small();
    options.fan_in = 3;
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    for segment in 0..9 {
        assert!(!store.is_behind(), "{segment}");
        store
            .ingest(segment + 1, some(100 * segment..100 * segment + 100).into())
            .unwrap();
    }
    assert!(store.is_behind() && store.step_share() > 0.0);
    disk.set_capacity(Some(disk.used()));
    while store.is_behind() {
        if let Err(error) = store.merge_step() {
            assert!(matches!(error, StoreError::Disk(DiskError::Full { .. })));
            assert_eq!(disk.paths().len(), 1 + store.stats().tables);
            break;
        }
    }
    assert!(!store.is_behind());
    assert_eq!(store.stats().runs, 9);
    disk.set_capacity(None);
    assert!(store.merge_step().unwrap() && store.is_behind());
    while store.is_behind() {
        assert!(store.merge_step().unwrap());
    }
    assert_eq!(count(&store), 900);
}

#[test]
fn a_long_table_is_synced_as_it_is_written() {
    let disk = Disk::default();
    let store = TableStore::open(disk.files("tables"), 7, TableOptions::default()).unwrap();
    let syncs = || disk.calls(Calls::Only(Operation::Sync));
    let before = syncs();
    store.ingest(1, some(0..10).into()).unwrap();
    let few = syncs() - before;
    let mut records = some(0..12);
    for (_, change) in &mut records {
        if let Change::Put { record, .. } = change {
            let mut random = Random::new(record.revision.0);
            record.payload = (0..1 << 17)
                .flat_map(|_| random.draw().to_le_bytes())
                .collect();
        }
    }
    store.ingest(2, records.into()).unwrap();
    assert_eq!(syncs() - before - few, few + 3, "every 4 MiB of 12");
}

#[test]
fn a_table_takes_less_room_than_what_is_in_it() {
    let disk = Disk::default();
    let store = TableStore::open(disk.files("tables"), 7, TableOptions::default()).unwrap();
    let mut random = Random::new(5);
    let mut hexadecimal = || format!("{:016x}", random.draw());
    let mut records = some(0..20_000);
    for (_, change) in &mut records {
        if let Change::Put { record, .. } = change {
            let key = hexadecimal() + &hexadecimal();
            record.name = TimerName::new("orders", key).unwrap();
            record.due = Timestamp::from_micros(1_772_366_400_000_000 + 777 * record.revision.0);
            // Half of it does not pack, and half of it does.
            let noise: String = (0..7).map(|_| hexadecimal()).collect();
            record.payload = noise.into_bytes();
            record.payload.resize(200, b' ');
        }
    }
    let puts = records.clone();
    store.ingest(1, records.into()).unwrap();
    // Twice a key and a place in the order of deadlines, the attempts, and the payload.
    let logical = 20_000 * (2 * (32 + 18) + 4 + 200);
    let bytes = store.stats().bytes;
    assert!(bytes < logical * 9 / 10, "{bytes} of {logical}");
    for (_, change) in puts {
        if let Change::Put { record, .. } = change {
            let found = store.get(Shard(0), &record.name).unwrap();
            assert_eq!(found, Some(*record));
        }
    }
}

// ---- at the same time ----

#[test]
fn readers_see_whole_ingests_while_others_merge() {
    let disk = Disk::default();
    let mut options = small();
    options.cache_bytes = 10_000;
    let store = TableStore::open(disk.files("tables"), 7, options).unwrap();
    let ingest = |segment: u64| {
        let puts = (0..60).map(|number| (Shard(0), Change::put(plain(number, segment))));
        store.ingest(segment, puts.collect()).unwrap();
    };
    ingest(1);
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while !is_done() {
                let due = store.due(Shard(0), &DueScan::all(DueClock::Wall)).unwrap();
                let due = due.entries;
                assert_eq!(due.len(), 60);
                let revision = due[0].wake.revision.0;
                assert!(due.iter().all(|entry| entry.wake.revision.0 == revision));
                assert!(revision >= seen);
                seen = revision;
                let page = store
                    .list(Shard(0), &Filter::queue(due[0].name.queue.clone()))
                    .unwrap();
                assert_eq!(page.records.len(), 60);
                let revision = page.records[0].revision;
                assert!(
                    page.records
                        .iter()
                        .all(|record| record.revision == revision)
                );
                let record = store.get(Shard(0), &due[7].name).unwrap().unwrap();
                assert!(record.revision >= revision);
            }
        });
        scope.spawn(|| {
            while !is_done() {
                store.merge_step().unwrap();
            }
        });
        for segment in 2..80 {
            ingest(segment);
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    while store.merge_step().unwrap() {}
    assert_eq!(disk.paths().len(), store.stats().tables + 1);
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let (mut maker, mut life) = furnished(3);
    let store = life.open().unwrap();
    let snapshot = store.snapshot();
    let ingested = life.model.ingested();
    assert_eq!(snapshot.ingested(), ingested);
    let names = maker.names.clone();
    let held = |store: &TableStore| {
        let names = names.iter();
        names
            .map(|name| store.get(Shard(0), name).unwrap())
            .collect::<Vec<_>>()
    };
    let before = held(&store);
    // Everything is replaced.
    for step in script(&mut maker, 10) {
        life.apply(&store, &step).unwrap();
    }
    let removals = SHARDS.iter().flat_map(|&shard| {
        names
            .iter()
            .map(move |name| (shard, Change::remove(name.clone())))
    });
    life.apply(&store, &Step::Ingest(removals.collect()))
        .unwrap();
    while store.merge_step().unwrap() {}
    compare(&store, &life.model, &mut maker, 1);

    let copy = Disk::default();
    for file in snapshot.files() {
        let path = format!("tables/{file}");
        copy.set_content(&path, life.disk.content(&path).unwrap());
    }
    let manifest = format!("tables/{}", TableSnapshot::MANIFEST);
    copy.set_content(&manifest, snapshot.manifest().to_vec());
    let copied = TableStore::open(copy.files("tables"), 7, small()).unwrap();
    assert_eq!(copied.ingested(), ingested);
    assert_eq!(held(&copied), before);
    // With the last who wants them, the files go.
    drop(snapshot);
    assert_eq!(life.disk.paths().len(), store.stats().tables + 1);
}

// ---- repair ----

#[test]
fn what_is_salvaged_is_right_or_said_to_be_doubtful() {
    let (mut all, mut right, mut doubtful) = (0, 0, 0);
    for seed in 0..4 {
        let (mut maker, life) = furnished(seed);
        let mut current = std::collections::BTreeMap::new();
        for shard in SHARDS {
            for name in &maker.names {
                if let Some(record) = life.model.get(shard, name).unwrap() {
                    current.insert((shard, name.clone()), record);
                }
            }
        }
        for round in 0..60 {
            let disk = life.disk.copy();
            let done = (round > 0).then(|| disk.damage(maker.random.draw()));
            let mut salvaged = Vec::new();
            let lost = TableStore::salvage(disk.files("tables"), 7, |found| {
                salvaged.push(found);
                Ok(())
            });
            let lost = lost.unwrap();
            all += current.len();
            let mut missing = current.clone();
            for found in salvaged {
                let name = (found.shard, found.record.name.clone());
                let is_right = current.get(&name) == Some(&found.record);
                assert!(is_right || found.doubtful, "{done:?} {name:?}");
                assert!(missing.remove(&name).is_some() || found.doubtful);
                right += usize::from(is_right && !found.doubtful);
                doubtful += usize::from(found.doubtful);
            }
            // What is missing is spoken of; nothing is lost where nothing is damaged.
            assert!(
                missing.is_empty() || !lost.problems.is_empty(),
                "{done:?} {missing:?}"
            );
            assert!(round > 0 || (lost.problems.is_empty() && missing.is_empty()));
            // A check finds what a salvage found.
            let check = TableStore::check(disk.files("tables"), 7);
            let is_clean = check.is_ok_and(|check| check.problems.is_empty());
            assert!(!is_clean || lost.problems.is_empty(), "{done:?}");
        }
    }
    assert!(right > all / 2, "{right} of {all}, {doubtful} doubtful");
}

#[test]
fn a_check_says_where_and_how_many() {
    let disk = equal_tables(7, [1, 2]);
    let path = disk.paths()[2].clone();
    let content = disk.content(&path).unwrap();
    let (at, _, _) = frames(&content)[1];
    let mut damaged = content.clone();
    damaged[at + 20] ^= 1;
    disk.set_content(&path, damaged);
    let check = TableStore::check(disk.files("tables"), 7).unwrap();
    let first = &check.problems[0];
    assert!(first.path.ends_with(&path) && first.offset == at as u64);
    assert_eq!(check.records + first.at_risk.unwrap(), 40);
    assert!((1..5).contains(&first.at_risk.unwrap()), "{first:?}");

    // A footer is all of it.
    let mut damaged = content.clone();
    let (at, _, _) = *frames(&content).last().unwrap();
    damaged[at] ^= 1;
    disk.set_content(&path, damaged);
    let check = TableStore::check(disk.files("tables"), 7).unwrap();
    assert_eq!((check.records, check.problems[0].at_risk), (20, Some(20)));
}
