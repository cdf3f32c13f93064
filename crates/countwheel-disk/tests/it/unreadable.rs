//! Bytes that turn while a store is open: one block that cannot be read takes nobody else along.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{
    LogOptions, LogStore, Loss, MemorySorted, Sorted, TableOptions, TableStore, check_files,
    repair_files,
};
use countwheel_durable::store::{
    Before, Change, DiskError, DueScan, Filter, Gaps, Lease, OnDisk, Shard, Store, StoreError,
};
use countwheel_durable::{
    Attempt, Config, Due, DueClock, Effect, Engine, Event, Outcome, Precondition, QueueName,
    Record, Request, Response, RetryPolicy, Revision, Set, SetOptions, Shift, StateKind, Stats,
    Ticket, TimerError, TimerName, Trouble, TroubleReason, Was,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::support::forward::forward;
use crate::support::sample;

const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

fn name(number: u64) -> TimerName {
    TimerName::new("queue", format!("key-{number:03}")).unwrap()
}

/// A record whose payload no packer makes shorter.
fn record(number: u64, revision: u64) -> Record {
    let due = NOON + Duration::from_secs(number);
    let mut state = revision.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let payload = (0..100).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    });
    Record {
        created: NOON,
        due,
        first_due: due,
        ..sample::pending(name(number), revision, payload.collect())
    }
}

fn put(number: u64, revision: u64) -> (Shard, Change) {
    (Shard::ONLY, Change::put(record(number, revision)))
}

fn options() -> TableOptions {
    let mut options = TableOptions::default();
    options.block_bytes = 300;
    options.cache_bytes = 0; // what is in memory is not read
    options.fan_in = 3;
    options
}

fn tables(disk: &Disk) -> TableStore {
    TableStore::open(disk.files("tables"), 7, options()).unwrap()
}

// ---- the frames of a table's file ----

const RECORDS: u8 = 1;
const DUE: u8 = 2;
const LIST: u8 = 3;
const INDEX: u8 = 4;
const FILTER: u8 = 6;

/// The frames of these kinds in a table's file: where the body of each begins.
fn frames(disk: &Disk, path: &str, kind: u8) -> Vec<usize> {
    let content = disk.content(path).unwrap();
    let (mut at, mut found) = (0, Vec::new());
    while at + 12 <= content.len() {
        let len = u32::from_le_bytes(content[at + 4..at + 8].try_into().unwrap());
        if content[at + 8] & 0x7f == kind {
            found.push(at + 12);
        }
        at = (at + 12 + usize::try_from(len).unwrap()).next_multiple_of(8);
    }
    found
}

fn flip(disk: &Disk, path: &str, at: usize) {
    let mut content = disk.content(path).unwrap();
    content[at + 2] ^= 4;
    disk.set_content(path, content);
}

fn table_files(disk: &Disk) -> Vec<String> {
    let paths = disk.paths().into_iter();
    paths
        .filter(|path| path.starts_with("tables/table-"))
        .collect()
}

/// The names among the first `all` whose records cannot be read, and the others, each of which
/// is what was written.
fn unreadable(store: &dyn Sorted, all: u64) -> BTreeSet<u64> {
    let lost = |number: &u64| match store.get(Shard::ONLY, &name(*number)) {
        Ok(found) => {
            assert_eq!(found.unwrap().name, name(*number));
            false
        }
        Err(StoreError::Disk(DiskError::Corrupt { .. }) | StoreError::Unreadable { .. }) => true,
        Err(error) => panic!("{error}"),
    };
    (0..all).filter(lost).collect()
}

fn due(store: &dyn Sorted) -> Vec<u64> {
    let entries = store
        .due(Shard::ONLY, &DueScan::all(DueClock::Wall))
        .unwrap();
    let number = |at: Timestamp| at.saturating_since(NOON).as_secs();
    let entries = entries.entries.iter();
    entries.map(|entry| number(entry.wake.at)).collect()
}

/// What is listed, page by page, and how many were left out.
fn listed(store: &dyn Sorted, limit: usize) -> (Vec<u64>, usize) {
    let mut filter = Filter {
        limit,
        ..Filter::queue(QueueName::new("queue").unwrap())
    };
    let (mut all, mut left_out) = (Vec::new(), 0);
    loop {
        let page = store.list(Shard::ONLY, &filter).unwrap();
        let numbers = page.records.iter();
        all.extend(numbers.map(|record| record.due.saturating_since(NOON).as_secs()));
        left_out += page.unreadable;
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return (all, left_out),
        }
    }
}

// ---- tables ----

/// One flipped bit ended lists, and with that whoever asked for one.
#[test]
fn a_record_that_cannot_be_read_is_left_out_of_a_list() {
    let disk = Disk::default();
    let store = tables(&disk);
    store
        .ingest(1, (0..40).map(|n| put(n, n + 1)).collect())
        .unwrap();
    let path = table_files(&disk).remove(0);
    for at in frames(&disk, &path, RECORDS) {
        flip(&disk, &path, at);
        let lost = unreadable(&store, 40);
        assert!((1..40).contains(&lost.len()));
        assert_eq!(
            due(&store),
            (0..40).collect::<Vec<_>>(),
            "the index is whole"
        );
        for limit in [1, 7, 100] {
            let (numbers, left_out) = listed(&store, limit);
            let expected: Vec<u64> = (0..40).filter(|number| !lost.contains(number)).collect();
            assert_eq!(numbers, expected);
            assert_eq!(left_out, lost.len(), "{limit}");
        }
        for &number in &lost {
            let kind = store.kind(Shard::ONLY, &name(number)).unwrap();
            assert_eq!(kind, Some(StateKind::Pending));
        }
        flip(&disk, &path, at);
    }
    assert_eq!(store.gaps(), Gaps::default());
}

/// One flipped bit in an index ended every read of what is due, and with that the engine.
#[test]
fn an_index_that_cannot_be_read_is_made_anew() {
    for (kind, in_dues) in [(DUE, true), (LIST, false), (FILTER, false)] {
        let disk = Disk::default();
        let mut closed = 0;
        let store = tables(&disk);
        store
            .ingest(1, (0..20).map(|n| put(n, n + 1)).collect())
            .unwrap();
        store
            .ingest(2, (20..40).map(|n| put(n, n + 1)).collect())
            .unwrap();
        let all: Vec<u64> = (0..40).collect();
        for round in 0..3 {
            let path = table_files(&disk)[round % 2].clone();
            let blocks = frames(&disk, &path, kind);
            flip(&disk, &path, blocks[round % blocks.len()]);
            if kind == FILTER {
                // Whoever wrote a table has its filter in memory.
                continue;
            }
            let (found, (numbers, _)) = (due(&store), listed(&store, 7));
            let missed = if in_dues { &found } else { &numbers };
            let whole = if in_dues { &numbers } else { &found };
            assert_eq!(*whole, all);
            assert!((20..40).contains(&missed.len()), "{missed:?}");
            let gaps = store.gaps();
            assert_eq!((gaps.dues, gaps.lists), (in_dues, !in_dues));
            assert_eq!(store.troubles()[0].reason, TroubleReason::UnreadableIndex);
            while store.merge_step().unwrap() {}
            closed += u64::from(in_dues);
            let whole = Gaps {
                closed,
                ..Gaps::default()
            };
            assert_eq!((store.gaps(), store.troubles()), (whole, vec![]));
            assert_eq!(
                (due(&store), listed(&store, 7)),
                (all.clone(), (all.clone(), 0))
            );
        }
        if kind == FILTER {
            drop(store);
            let store = tables(&disk);
            assert!(unreadable(&store, 40).is_empty());
            assert!(store.gaps().lists && !store.gaps().dues);
            // An ingest that asks it goes on as well.
            let removal = (Shard::ONLY, Change::remove(name(3)));
            store.ingest(3, vec![removal].into()).unwrap();
            assert_eq!(store.get(Shard::ONLY, &name(3)).unwrap(), None);
            while store.merge_step().unwrap() {}
            assert_eq!(store.gaps(), Gaps::default());
            assert_eq!(store.get(Shard::ONLY, &name(3)).unwrap(), None);
        }
        assert_eq!(
            TableStore::check(disk.files("tables"), 7).unwrap().problems,
            []
        );
    }
}

/// A table with a damaged index is rewritten from its records; with a damaged record as well it
/// cannot be, and hid what the index had said until the next start, and after that.
/// All timers below a block of the index over names waited for ten minutes.
#[test]
fn an_index_over_names_that_cannot_be_read_takes_nobody_along() {
    let disk = Disk::default();
    let store = tables(&disk);
    store
        .ingest(
            1,
            (0..300).map(|n| put(n, n + 1)).collect::<Vec<_>>().into(),
        )
        .unwrap();
    drop(store);
    let [path] = &table_files(&disk)[..] else {
        panic!("one table");
    };
    let indexes = frames(&disk, path, INDEX);
    assert!(indexes.len() > 8, "{indexes:?}");
    let blocks = frames(&disk, path, RECORDS);
    let sound = disk.content(path).unwrap();
    let mut noted = 0;
    for &at in &indexes {
        flip(&disk, path, at);
        disk.restart();
        let store = tables(&disk);
        assert_eq!(unreadable(&store, 300), BTreeSet::new());
        assert!(store.get(Shard::ONLY, &name(999)).unwrap().is_none());
        let is_index = |one: &Trouble| one.reason == TroubleReason::UnreadableIndex;
        noted += usize::from(store.troubles().iter().any(is_index));
        // With a block of records beside it, that block is all that is lost.
        drop(store);
        flip(&disk, path, blocks[blocks.len() / 2]);
        disk.restart();
        let store = tables(&disk);
        let lost = unreadable(&store, 300);
        assert!((1..8).contains(&lost.len()), "{lost:?}");
        let name = name(*lost.first().unwrap());
        assert!(store.get(Shard::ONLY, &name).is_err());
        drop(store);
        disk.set_content(path, sound.clone());
    }
    assert!(noted > 2, "{noted}");
}

#[test]
fn a_gap_in_the_index_of_a_table_that_cannot_be_merged_is_filled() {
    let kinds = [(DUE, true), (LIST, false)];
    let kinds = kinds
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)]);
    for ((kind, in_dues), without_names) in kinds {
        for block in 0..5 {
            let disk = Disk::default();
            let store = tables(&disk);
            let puts = (0..40).map(|number| put(number, number + 1));
            store.ingest(1, puts.collect()).unwrap();
            let path = table_files(&disk).remove(0);
            if without_names {
                // The index over names stands before the blocks of dues.
                let dues = frames(&disk, &path, DUE)[0];
                let indexes = frames(&disk, &path, INDEX);
                let of_names: Vec<_> = indexes.into_iter().filter(|&at| at < dues).collect();
                assert!(!of_names.is_empty());
                for at in of_names {
                    flip(&disk, &path, at);
                }
            }
            let lost = {
                let records = frames(&disk, &path, RECORDS);
                flip(&disk, &path, records[2 * block]);
                unreadable(&store, 40)
            };
            let blocks = frames(&disk, &path, kind);
            let gaps = blocks.iter().enumerate();
            for (round, &at) in gaps.skip(block % 2).step_by(2) {
                // Also one more, after those before were filled.
                flip(&disk, &path, at);
                let found = if in_dues {
                    due(&store)
                } else {
                    listed(&store, 7).0
                };
                assert!(found.len() < 40);
                assert!(store.gaps().dues || store.gaps().lists, "{round}");
                while store.merge_step().unwrap() {}
                assert!(!store.gaps().dues && !store.gaps().lists);
                let found: BTreeSet<u64> = due(&store).into_iter().collect();
                let missing = (0..40).filter(|number| !found.contains(number));
                assert!(missing.clone().all(|number| lost.contains(&number)));
                for limit in [1, 7, 100] {
                    let (numbers, _) = listed(&store, limit);
                    let readable = (0..40).filter(|number| !lost.contains(number));
                    assert_eq!(numbers, readable.collect::<Vec<_>>());
                }
            }
            let troubles = store.troubles();
            let alone = TroubleReason::RunLeftAlone;
            assert!(troubles.iter().any(|trouble| trouble.reason == alone));
        }
    }
}

/// A record whose block is damaged is found in memory by its name: so it is also by its deadline.
#[test]
fn a_gap_is_filled_from_blocks_that_are_still_in_memory() {
    let disk = Disk::default();
    let mut cached = options();
    cached.cache_bytes = 1 << 20;
    let store = TableStore::open(disk.files("tables"), 7, cached).unwrap();
    let puts = (0..40).map(|number| put(number, number + 1));
    store.ingest(1, puts.collect()).unwrap();
    assert_eq!(unreadable(&store, 40), BTreeSet::new());
    let path = table_files(&disk).remove(0);
    flip(&disk, &path, frames(&disk, &path, RECORDS)[2]);
    flip(&disk, &path, frames(&disk, &path, DUE)[0]);
    assert!(due(&store).len() < 40);
    while store.merge_step().unwrap() {}
    let alone = TroubleReason::RunLeftAlone;
    assert!(
        store
            .troubles()
            .iter()
            .any(|trouble| trouble.reason == alone)
    );
    assert_eq!(unreadable(&store, 40), BTreeSet::new());
    assert_eq!(due(&store), (0..40).collect::<Vec<_>>());
}

/// A merge that met a damaged block ended the store, thousands of commits after the damage.
#[test]
fn a_run_that_cannot_be_read_is_left_alone_and_all_others_are_merged() {
    for damaged in 0..6 {
        let disk = Disk::default();
        let store = tables(&disk);
        let model = MemorySorted::default();
        let mut lost = BTreeSet::new();
        for segment in 1..=60 {
            let changes = |revision: u64| -> Vec<(Shard, Change)> {
                let first = segment * 5;
                let puts = (0..5).map(|n| put(first + n, revision + n));
                let removal = (Shard::ONLY, Change::remove(name(first - 4)));
                puts.chain([removal]).collect()
            };
            let changes = changes(segment * 10);
            model.ingest(segment, changes.clone().into()).unwrap();
            store.ingest(segment, changes.into()).unwrap();
            if segment == damaged + 2 {
                let path = table_files(&disk).pop().unwrap();
                flip(&disk, &path, frames(&disk, &path, RECORDS)[0]);
                let of_damaged = |n: &u64| store.get(Shard::ONLY, &name(*n)).is_err();
                lost = (0..400).filter(of_damaged).collect();
                assert!(!lost.is_empty());
            }
            while store.merge_step().unwrap() {}
            assert!(!store.is_behind());
        }
        let troubles = store.troubles();
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert_eq!(troubles[0].reason, TroubleReason::RunLeftAlone);
        assert!(store.stats().runs < 14, "{:?}", store.stats());
        for number in (0..400).filter(|number| !lost.contains(number)) {
            let found = store.get(Shard::ONLY, &name(number)).unwrap();
            assert_eq!(found, model.get(Shard::ONLY, &name(number)).unwrap());
        }
        for number in lost {
            // Once it was set anew, what cannot be read hides nothing.
            let change = put(number, 10_000 + number);
            store.ingest(100 + number, vec![change].into()).unwrap();
            let found = store.get(Shard::ONLY, &name(number)).unwrap();
            assert_eq!(found.unwrap().revision, Revision(10_000 + number));
        }
    }
}

// ---- a log in front ----

type Kept = LogStore<TableStore>;

fn log_options() -> LogOptions {
    let mut options = LogOptions::default();
    options.segment_bytes = 1 << 16;
    options.reserve_segments = 0;
    options
}

fn log(disk: &Disk) -> Kept {
    disk.restart();
    LogStore::open(tables(disk), disk.files("log"), 7, log_options()).unwrap()
}

fn flush_all(log: &Kept) {
    log.seal().unwrap();
    while log.flush_oldest().unwrap() {}
}

fn commit(log: &Kept, lease: Lease, changes: Vec<(Shard, Change)>) {
    let changes: Vec<_> = changes.into_iter().map(|(_, change)| change).collect();
    log.commit(lease, &changes).unwrap();
}

fn pending(store: &dyn Store) -> u64 {
    let counts = store.counts(Shard::ONLY).unwrap();
    counts
        .iter()
        .map(|queue| queue.of(StateKind::Pending))
        .sum()
}

/// The place of the record's payload in the log.
fn place(disk: &Disk, path: &str, record: &Record) -> usize {
    let content = disk.content(path).unwrap();
    let windows = content.windows(record.payload.len());
    windows
        .enumerate()
        .find_map(|(at, window)| (window == record.payload).then_some(at))
        .unwrap()
}

/// A record of the log that could not be read ended its flush, and with that the log: no commit
/// could be made any more, and no opening read the segment.
#[test]
fn a_segment_that_cannot_be_read_is_flushed_but_for_what_is_lost() {
    for damaged in [0, 13, 29] {
        let disk = Disk::default();
        let log = log(&disk);
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        for number in 0..30 {
            commit(&log, lease, vec![put(number, number + 1)]);
        }
        log.seal().unwrap();
        flip(
            &disk,
            "log/segment-0000000000000001",
            place(
                &disk,
                "log/segment-0000000000000001",
                &record(damaged, damaged + 1),
            ),
        );
        while log.flush_oldest().unwrap() {}
        let lost: Vec<u64> = (0..30)
            .filter(|number| log.get(Shard::ONLY, &name(*number)).is_err())
            .collect();
        assert_eq!(lost, [damaged], "and nothing else");
        assert_eq!(pending(&log), 30, "it is counted");
        assert_eq!(log.troubles()[0].reason, TroubleReason::UnreadableSegment);
        // It stays unreadable through merges and openings, and says its state.
        for segment in 0..4 {
            commit(&log, lease, vec![put(100 + segment, 100 + segment)]);
            flush_all(&log);
            while log.compact().unwrap() {}
        }
        drop(log);
        let log = self::log(&disk);
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        // Nobody has asked for it in this opening: a round through the tables tells.
        let name_of_lost = name(damaged).to_string();
        let tells = |log: &Kept| {
            while !log.scrub_step(1 << 10).ended {}
            let troubles = log.troubles().into_iter();
            let mut troubles = troubles.filter(|trouble| trouble.reason == TroubleReason::Scrub);
            troubles.any(|trouble| trouble.to_string().contains(&name_of_lost))
        };
        assert!(tells(&log));
        assert!(log.get(Shard::ONLY, &name(damaged)).is_err());
        let page = log
            .list(
                Shard::ONLY,
                &Filter::queue(QueueName::new("queue").unwrap()),
            )
            .unwrap();
        assert_eq!((page.records.len(), page.unreadable), (33, 1));
        let (files, dues) = (disk.copy(), DueScan::all(DueClock::Wall));
        assert_eq!(log.due(Shard::ONLY, &dues).unwrap().entries.len(), 34);

        // A check says it, and a repair lists it.
        let check = || check_files(&files.files("log"), &files.files("tables"), 7).unwrap();
        assert_eq!(check().problems.len(), 1, "{:?}", check().problems);
        let into = self::log(&Disk::default());
        let mut losses = Vec::new();
        repair_files(
            &files.files("log"),
            &files.files("tables"),
            7,
            &into,
            &mut |loss: Loss| {
                losses.push(loss.to_string());
                Ok(())
            },
        )
        .unwrap();
        assert!(losses.iter().any(|loss| loss.contains("key")), "{losses:?}");
        assert!(into.get(Shard::ONLY, &name(damaged)).unwrap().is_none());
        assert!(into.get(Shard::ONLY, &name(1)).unwrap().is_some());

        // Set anew, it is whole; removed, it is gone.
        let before = Before::Unreadable;
        let anew = Box::new(record(damaged, 500));
        let change = Change::Put {
            record: anew,
            before,
        };
        log.commit(lease, &[change]).unwrap();
        assert_eq!(pending(&log), 34);
        flush_all(&log);
        while log.compact().unwrap() {}
        let found = log.get(Shard::ONLY, &name(damaged)).unwrap().unwrap();
        assert_eq!(found.revision, Revision(500));
        // What a round told is told until the next one has ended.
        tells(&log);
        assert!(!tells(&log));
        // Until it was merged away, a check still finds it.
        for segment in 0..12 {
            commit(&log, lease, vec![put(100 + segment, 600 + segment)]);
            flush_all(&log);
            while log.compact().unwrap() {}
        }
        drop(log);
        assert_eq!(
            check_files(&disk.files("log"), &disk.files("tables"), 7)
                .unwrap()
                .problems,
            []
        );
    }
}

/// A commit read what it replaces, failed, and was the last: whoever set the name anew or removed
/// it ended the store.
#[test]
fn a_change_of_something_unreadable_does_not_read_it() {
    for before in [Before::Unreadable, Before::Unknown] {
        let disk = Disk::default();
        let log = log(&disk);
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        commit(&log, lease, (0..30).map(|n| put(n, n + 1)).collect());
        flush_all(&log);
        let path = table_files(&disk).remove(0);
        flip(&disk, &path, frames(&disk, &path, RECORDS)[2]);
        let lost: Vec<u64> = (0..30)
            .filter(|number| log.get(Shard::ONLY, &name(*number)).is_err())
            .collect();
        assert!(lost.len() >= 2, "{lost:?}");
        let removal = Change::Remove {
            name: name(lost[0]),
            before,
        };
        let anew = Box::new(record(lost[1], 50));
        log.commit(
            lease,
            &[
                removal,
                Change::Put {
                    record: anew,
                    before,
                },
            ],
        )
        .unwrap();
        // The list index says what there was.
        assert_eq!(pending(&log), 29);
        for _ in 0..2 {
            assert_eq!(log.get(Shard::ONLY, &name(lost[0])).unwrap(), None);
            let found = log.get(Shard::ONLY, &name(lost[1])).unwrap().unwrap();
            assert_eq!(found.revision, Revision(50));
            flush_all(&log);
            while log.compact().unwrap() {}
        }
    }
}

// ---- the engine ----

/// An engine on a disk, with what it let out.
struct Bench {
    clock: ManualClock,
    disk: Disk,
    store: Arc<Kept>,
    engine: Engine,
    started: Vec<Attempt>,
}

fn config() -> Config {
    Config {
        max_interruptions: 3,
        ..Config::default()
    }
}

impl Bench {
    fn new() -> Self {
        let (clock, disk) = (ManualClock::at(NOON), Disk::default());
        let store = Arc::new(log(&disk));
        let engine = Engine::open(
            store.clone(),
            Shard::ONLY,
            Arc::new(clock.clone()),
            config(),
        )
        .unwrap();
        Self {
            clock,
            disk,
            store,
            engine,
            started: Vec::new(),
        }
    }

    fn restart(&mut self) {
        self.started.clear();
        self.store = Arc::new(log(&self.disk));
        let clock = Arc::new(self.clock.clone());
        self.engine = Engine::open(self.store.clone(), Shard::ONLY, clock, config()).unwrap();
    }

    fn turn(&mut self, events: Vec<Event>) -> Vec<Result<Response, TimerError>> {
        let mut answers = Vec::new();
        let started = &mut self.started;
        let sink = &mut |effect| match effect {
            Effect::Answer(_, answer) => answers.push(answer),
            Effect::BatchAnswer(..) => unreachable!("nobody asks for a batch"),
            Effect::Start(attempt) => started.push(attempt),
        };
        self.engine.turn(events, sink).unwrap();
        answers
    }

    fn ask(&mut self, request: Request) -> Result<Response, TimerError> {
        let event = Event::Request(Ticket(0), request);
        self.turn(vec![event]).pop().unwrap()
    }

    /// Sets so many, due one second after the other, flushes them to a table, and damages the
    /// record's block there. Says which cannot be read.
    fn with_damage(&mut self, timers: u64, block: usize) -> BTreeSet<u64> {
        for number in 0..timers {
            self.ask(set(number, number + 1)).unwrap();
        }
        flush_all(&self.store);
        let path = table_files(&self.disk).remove(0);
        let blocks = frames(&self.disk, &path, RECORDS);
        flip(&self.disk, &path, blocks[block % blocks.len()]);
        let lost = |number: &u64| self.store.get(Shard::ONLY, &name(*number)).is_err();
        (0..timers).filter(lost).collect()
    }

    /// Lets time pass from wake to wake; every attempt is done at once. Says how often each name
    /// started.
    fn wait(&mut self, seconds: u64) -> BTreeMap<TimerName, usize> {
        let end = self.clock.timestamp() + Duration::from_secs(seconds);
        let mut starts = BTreeMap::new();
        loop {
            let done = std::mem::take(&mut self.started);
            for attempt in &done {
                assert!(attempt.due <= self.clock.timestamp());
                *starts.entry(attempt.name.clone()).or_default() += 1;
            }
            let is_idle = done.is_empty();
            self.turn(done.iter().map(ended).collect());
            match self.engine.next_wake() {
                _ if !self.started.is_empty() => {}
                Some(at) if at <= end => {
                    let wait = at.saturating_since(self.clock.timestamp());
                    self.clock.advance(wait);
                }
                _ if is_idle => return starts,
                _ => {}
            }
        }
    }
}

fn ended(attempt: &Attempt) -> Event {
    let outcome = Outcome::done();
    Event::Outcome {
        revision: attempt.revision,
        outcome,
    }
}

fn set(number: u64, seconds: u64) -> Request {
    Request::Set {
        name: name(number),
        due: Due::In(Duration::from_secs(seconds)),
        policy: RetryPolicy::default(),
        payload: record(number, number + 1).payload,
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn remove(number: u64) -> Request {
    Request::Remove {
        name: name(number),
        precondition: Precondition::None,
        only_pending: false,
    }
}

/// The step that read a damaged record ended the engine; its healthy neighbours were delivered
/// again after each start, until they were dead.
#[test]
fn a_record_that_cannot_be_read_leaves_all_others_to_their_deadlines() {
    for block in [0, 3, 7] {
        let mut bench = Bench::new();
        let lost = bench.with_damage(40, block);
        assert!((1..20).contains(&lost.len()), "{lost:?}");
        let starts = bench.wait(60);
        for number in 0..40 {
            let expected = usize::from(!lost.contains(&number));
            assert_eq!(
                starts.get(&name(number)).copied().unwrap_or(0),
                expected,
                "{number}"
            );
        }
        let stats = bench.engine.stats();
        assert_eq!((stats.dead, stats.interrupted), (0, 0));
        assert_eq!(stats.unreadable, lost.len() as u64);
        let troubles = bench.engine.troubles();
        let names = troubles
            .iter()
            .filter(|t| t.reason == TroubleReason::UnreadableRecord);
        assert_eq!(names.count(), lost.len());
        assert!(troubles.iter().all(|trouble| trouble.first_seen.is_some()));
        // Not in a hot loop: the next look is minutes away.
        let wake = bench.engine.next_wake().unwrap();
        assert!(wake.saturating_since(bench.clock.timestamp()) > Duration::from_secs(300));

        // No restart makes it worse.
        for _ in 0..5 {
            bench.restart();
            assert!(bench.wait(10).is_empty());
        }
        assert_eq!(bench.engine.stats().dead, 0);
    }
}

#[test]
fn what_could_not_be_read_once_is_tried_again() {
    let mut bench = Bench::new();
    let lost = bench.with_damage(10, 0);
    assert_eq!(bench.wait(20).len(), 10 - lost.len());
    // What is on the disk is as it was: a cable was loose.
    let path = table_files(&bench.disk).remove(0);
    let blocks = frames(&bench.disk, &path, RECORDS);
    flip(&bench.disk, &path, blocks[0]);
    let starts = bench.wait(660);
    assert_eq!(
        starts.into_keys().collect::<BTreeSet<_>>(),
        lost.into_iter().map(name).collect()
    );
    // What was read is no trouble any more.
    let troubles = bench.engine.troubles();
    let is_record = |trouble: &Trouble| trouble.reason == TroubleReason::UnreadableRecord;
    assert!(!troubles.iter().any(is_record), "{troubles:?}");
}

#[test]
fn a_request_for_something_unreadable_is_refused_unless_it_replaces_or_removes_it() {
    let mut bench = Bench::new();
    let lost: Vec<u64> = bench.with_damage(40, 2).into_iter().collect();
    let unreadable = |answer: Result<Response, TimerError>| {
        assert!(
            matches!(answer, Err(TimerError::Unreadable { .. })),
            "{answer:?}"
        );
    };
    let first = name(lost[0]);
    unreadable(bench.ask(Request::Fire {
        name: first.clone(),
    }));
    unreadable(bench.ask(Request::Revive {
        name: first.clone(),
        due: Due::In(Duration::ZERO),
    }));
    unreadable(bench.ask(Request::Move {
        name: first.clone(),
        shift: Shift::Later(Duration::from_secs(1)),
        precondition: Precondition::None,
    }));
    for precondition in [Precondition::Absent, Precondition::Revision(Revision(1))] {
        let Request::Set {
            name,
            due,
            policy,
            payload,
            options,
            ..
        } = set(lost[0], 5)
        else {
            unreachable!("a set")
        };
        let set = Request::Set {
            name,
            due,
            policy,
            payload,
            precondition,
            options,
        };
        unreadable(bench.ask(set));
    }
    unreadable(bench.ask(Request::Remove {
        name: first.clone(),
        precondition: Precondition::None,
        only_pending: true,
    }));
    assert_eq!(bench.engine.stats().unreadable, 6);
    // Others were asked for as well, to know what is damaged.
    let of_first = |trouble: &Trouble| trouble.detail.starts_with(&format!("{first}: "));
    let troubles = bench.engine.troubles().into_iter().filter(of_first);
    assert_eq!(troubles.count(), 1, "a name is noted once");

    // In one turn: set anew, moved as what it is now; another removed, and not there any more.
    let (again, other) = (lost[0], lost[1]);
    let events = [
        set(again, 100),
        Request::Move {
            name: first.clone(),
            shift: Shift::Later(Duration::from_secs(1)),
            precondition: Precondition::None,
        },
        remove(other),
        Request::Fire { name: name(other) },
    ];
    let events = events.map(|request| Event::Request(Ticket(0), request));
    let answers = bench.turn(events.into());
    assert!(
        matches!(answers[0], Ok(Response::Set(Set { replaced: None, .. }))),
        "{answers:?}"
    );
    assert!(matches!(answers[1], Ok(Response::Moved(_))), "{answers:?}");
    assert!(
        matches!(answers[2], Ok(Response::Removed(Was::Unreadable))),
        "{answers:?}"
    );
    assert!(
        matches!(answers[3], Err(TimerError::NotFound)),
        "{answers:?}"
    );
    assert!(
        bench.engine.troubles().is_empty(),
        "it is not unreadable any more"
    );
    assert_eq!(pending(&*bench.store), 39);
    let starts = bench.wait(120);
    assert_eq!(starts.get(&first), Some(&1));
    assert_eq!(starts.get(&name(other)), None);
}

#[test]
fn a_batch_may_replace_and_remove_what_is_unreadable() {
    let mut bench = Bench::new();
    let lost: Vec<u64> = bench.with_damage(40, 2).into_iter().collect();
    let mut ask = |requests| {
        let mut answers = Vec::new();
        let sink = &mut |effect| {
            if let Effect::BatchAnswer(_, answer) = effect {
                answers.push(answer);
            }
        };
        bench
            .engine
            .turn(vec![Event::Batch(Ticket(0), requests)], sink)
            .unwrap();
        answers.pop().unwrap()
    };
    // One that is refused leaves it as it was.
    let fire = Request::Fire {
        name: name(lost[1]),
    };
    let refused = ask(vec![set(lost[0], 5), fire]).unwrap_err();
    assert_eq!(refused.index, Some(1));
    assert!(matches!(refused.error, TimerError::Unreadable { .. }));
    let refused = ask(vec![Request::Fire {
        name: name(lost[0]),
    }])
    .unwrap_err();
    assert!(matches!(refused.error, TimerError::Unreadable { .. }));
    let done = ask(vec![set(lost[0], 5), remove(lost[1])]).unwrap();
    assert!(matches!(done[1], Response::Removed(Was::Unreadable)));
    assert_eq!(pending(&*bench.store), 39);
}

/// The record of an attempt that runs is flushed to a table, and cannot be read there when the attempt
/// ends: it is in memory until then, so its outcome counts as well.
#[test]
fn an_outcome_needs_no_read_of_its_record() {
    let mut bench = Bench::new();
    let (lost, stats) = bench.outcomes_after_damage();
    assert!(!lost.is_empty());
    assert_eq!((stats.done, stats.unreadable, stats.in_flight), (40, 0, 0));
    let still = |number: &u64| bench.store.get(Shard::ONLY, &name(*number)).is_err();
    assert_eq!(lost.iter().filter(|number| still(number)).count(), 0);
    bench.restart();
    assert!(bench.wait(10).is_empty(), "nobody is delivered again");
}

/// The same with hardly any room in memory: the outcomes of all others count.
#[test]
fn an_outcome_whose_record_cannot_be_read_is_dropped_alone() {
    let mut bench = Bench::new();
    let (store, clock) = (bench.store.clone(), Arc::new(bench.clock.clone()));
    let config = Config {
        window_bytes: 1,
        ..config()
    };
    bench.engine = Engine::open(store, Shard::ONLY, clock, config).unwrap();
    let (lost, stats) = bench.outcomes_after_damage();
    assert!(stats.unreadable > 0 && stats.unreadable <= lost.len() as u64);
    assert_eq!((stats.done + stats.unreadable, stats.in_flight), (40, 0));
    bench.restart();
    assert!(bench.wait(10).is_empty(), "nobody is delivered again");
}

impl Bench {
    /// Forty attempts end whose records have been flushed to a table of which all blocks but one
    /// are damaged by then. Those that cannot be read, and what the engine says.
    fn outcomes_after_damage(&mut self) -> (BTreeSet<u64>, Stats) {
        for number in 0..40 {
            self.ask(set(number, 1)).unwrap();
        }
        self.clock.advance(Duration::from_secs(1));
        self.turn(vec![]);
        let started = std::mem::take(&mut self.started);
        assert_eq!(started.len(), 40);
        flush_all(&self.store);
        let path = table_files(&self.disk).remove(0);
        for block in frames(&self.disk, &path, RECORDS).into_iter().skip(1) {
            flip(&self.disk, &path, block);
        }
        let lost = |number: &u64| self.store.get(Shard::ONLY, &name(*number)).is_err();
        let lost = (0..40).filter(lost).collect();
        self.turn(started.iter().map(ended).collect());
        (lost, self.engine.stats())
    }
}

/// An index of what is due that was passed over hid its timers until the next start.
#[test]
fn what_an_index_hid_is_delivered_once_the_index_was_made_anew() {
    for block in 0..6 {
        let mut bench = Bench::new();
        for number in 0..40 {
            bench.ask(set(number, number + 60)).unwrap();
        }
        flush_all(&bench.store);
        let path = table_files(&bench.disk).remove(0);
        let blocks = frames(&bench.disk, &path, DUE);
        flip(&bench.disk, &path, blocks[block % blocks.len()]);
        bench.restart(); // the opening reads what is due first
        assert!(bench.store.gaps().dues);
        // However long the rest has time, a turn looks again.
        let soon = bench.clock.timestamp() + Duration::from_secs(1);
        assert!(bench.engine.next_wake().is_some_and(|wake| wake <= soon));
        while bench.store.compact().unwrap() {}
        assert!(!bench.store.gaps().dues);
        let starts = bench.wait(120);
        assert_eq!(starts.len(), 40);
        assert!(starts.values().all(|&times| times == 1));
    }
}

/// A store whose due index cannot be asked at all.
struct Mute<S> {
    store: Arc<S>,
    is_mute: std::sync::atomic::AtomicBool,
}

impl<S: Store> Store for Mute<S> {
    forward!(store: acquire, commit, settings, get, list, counts);

    fn due(
        &self,
        shard: Shard,
        scan: &DueScan<'_>,
    ) -> Result<countwheel_durable::store::DuePage, StoreError> {
        if self.is_mute.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(StoreError::Poisoned);
        }
        self.store.due(shard, scan)
    }
}

/// A read that failed for good took the outcomes of its turn along.
#[test]
fn a_read_that_ends_the_engine_leaves_the_outcomes_of_its_turn() {
    let disk = Disk::default();
    let clock = ManualClock::at(NOON);
    let store = Arc::new(Mute {
        store: Arc::new(log(&disk)),
        is_mute: false.into(),
    });
    let mut config = config();
    config.window = 2;
    let mut engine =
        Engine::open(store.clone(), Shard::ONLY, Arc::new(clock.clone()), config).unwrap();
    let mut started = Vec::new();
    let mut turn = |engine: &mut Engine, events: Vec<Event>| {
        engine.turn(events, &mut |effect| {
            if let Effect::Start(attempt) = effect {
                started.push(attempt);
            }
        })
    };
    let sets = (0..30).map(|number| Event::Request(Ticket(0), set(number, 1)));
    turn(&mut engine, sets.collect()).unwrap();
    clock.advance(Duration::from_secs(1));
    turn(&mut engine, vec![]).unwrap();
    store
        .is_mute
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let outcomes: Vec<Event> = started.iter().map(ended).collect();
    assert!(!outcomes.is_empty() && outcomes.len() < 30);
    let mut silent = |events| engine.turn(events, &mut |_| {});
    silent(outcomes).unwrap();
    assert!(silent(vec![]).is_err(), "the next turn says it");
    assert!(engine.next_wake().is_some());
    let counts = store.counts(Shard::ONLY).unwrap();
    assert_eq!(counts[0].of(StateKind::Done), started.len() as u64);
}
