//! The log in front of a sorted store: what it promises, through power cuts and damage.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_disk::simulated::{Calls, Disk, Failure, Fault, Operation};
use countwheel_disk::{
    Files, Flushed, FlushingLog, LogOptions, LogStore, MemorySorted, Sorted, StoreFile,
    SystemFiles, TableOptions, TableStore,
};
use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_durable::store::{
    Before, Change, Commit, DiskError, DueEntry, DuePage, DueScan, Filter, Lease, MemoryStore,
    OnDisk, Page, QueueCounts, Shard, Store, StoreError, Summary,
};
use countwheel_durable::{
    DueClock, QueueName, Record, Revision, Setting, SettingName, SettingsVersion, State, TimerName,
    TroubleReason,
};
use countwheel_time::{Clock, SystemClock, Timestamp};

use crate::support::forward::forward;
use crate::support::random::Random;
use crate::support::sample::pending;

fn open<B: Sorted>(base: B, disk: &Disk) -> Result<LogStore<B>, StoreError> {
    LogStore::open(base, files(disk), 7, options())
}

/// The log's directory, for a new process.
fn files(disk: &Disk) -> Arc<dyn Files> {
    disk.restart();
    disk.files("log")
}

// ---- conformance ----

type Deed<S> = Box<dyn Fn(&S) -> Result<(), StoreError> + Send + Sync>;

/// A store with something done before and after each commit.
struct Meddled<S> {
    store: S,
    before: Deed<S>,
    after: Deed<S>,
}

fn has_room(store: &dyn Store) -> bool {
    store.on_disk().is_none_or(OnDisk::has_room)
}

impl<S: Store> Store for Meddled<S> {
    forward!(store: acquire, settings, get, due, list, counts);

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        (self.before)(&self.store)?;
        self.store.commit(lease, changes)?;
        (self.after)(&self.store)
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        (self.before)(&self.store).expect("what comes before a commit works");
        let results = self.store.commit_all(commits);
        (self.after)(&self.store).expect("what comes after a commit works");
        results
    }

    fn counts_after(
        &self,
        shard: Shard,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        self.store.counts_after(shard, after, limit)
    }

    fn summary(
        &self,
        shard: Shard,
        first: &[QueueName],
        limit: usize,
    ) -> Result<Summary, StoreError> {
        self.store.summary(shard, first, limit)
    }
}

/// After so many commits what there is is flushed to the sorted store.
fn flushing<B: Sorted + 'static>(every: usize) -> Deed<LogStore<B>> {
    let commits = AtomicUsize::new(0);
    Box::new(move |log| {
        let commits = commits.fetch_add(1, Ordering::SeqCst);
        if commits.is_multiple_of(every) {
            log.seal()?;
        }
        if commits.is_multiple_of(2 * every) {
            while log.flush_oldest()? {}
        }
        log.compact().map(drop)
    })
}

struct Reopened {
    base: MemorySorted,
    disk: Disk,
    every: usize,
    options: LogOptions,
    store: Option<Meddled<LogStore<MemorySorted>>>,
}

impl Reopen for Reopened {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(Meddled {
            store: LogStore::open(self.base.clone(), files(&self.disk), 7, self.options).unwrap(),
            before: Box::new(|_| Ok(())),
            after: flushing(self.every),
        });
    }
}

fn reopened(every: usize) -> Box<dyn Reopen> {
    reopened_with(every, options())
}

fn reopened_with(every: usize, options: LogOptions) -> Box<dyn Reopen> {
    let mut made = Reopened {
        base: MemorySorted::default(),
        disk: Disk::default(),
        every,
        options,
        store: None,
    };
    made.reopen();
    Box::new(made)
}

#[test]
fn a_log_that_never_flushes_conforms() {
    conformance::check(|| reopened(usize::MAX / 2));
}

#[test]
fn a_log_that_flushes_everything_conforms() {
    conformance::check(|| reopened(1));
}

#[test]
fn a_log_that_flushes_now_and_then_conforms() {
    conformance::check(|| reopened(3));
}

/// From segments of 4 KiB to those of 32 KiB.
#[test]
fn a_log_whose_segments_grow_conforms() {
    for every in [3, usize::MAX / 2] {
        conformance::check(|| reopened_with(every, options_of(1)));
    }
}

/// With pieces of two queues, behind whatever is flushed.
#[test]
fn a_log_that_copies_its_counts_in_pieces_conforms() {
    conformance::check(|| {
        let mut options = options();
        (options.counts_whole, options.counts_at_once) = (0, 2);
        reopened_with(2, options)
    });
}

struct InDirectory {
    directory: tempfile::TempDir,
    base: MemorySorted,
    store: Option<FlushingLog<MemorySorted>>,
}

impl Reopen for InDirectory {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        let files = Arc::new(SystemFiles::new(self.directory.path()));
        let mut own = options();
        own.segments_kept = 1;
        let log = LogStore::open(self.base.clone(), files, 7, own).unwrap();
        self.store = Some(FlushingLog::start(log).unwrap());
    }
}

#[test]
fn a_log_with_its_thread_conforms_on_a_real_disk() {
    conformance::check(|| {
        let mut made = InDirectory {
            directory: tempfile::tempdir().unwrap(),
            base: MemorySorted::default(),
            store: None,
        };
        made.reopen();
        Box::new(made)
    });
}

// ---- power cuts ----

fn record(number: u64, revision: u64, payload: usize) -> Record {
    let name = TimerName::new("queue", format!("key-{number}")).unwrap();
    let payload = vec![u8::try_from(revision % 251).unwrap(); payload];
    let due = Timestamp::from_micros(1_000_000 + number * 1_000 + revision);
    Record {
        due,
        first_due: due,
        ..pending(name, revision, payload)
    }
}

/// What a store answers.
#[derive(PartialEq, Debug)]
struct Answers {
    records: Vec<Option<Record>>,
    due: Vec<DueEntry>,
    listed: Vec<Record>,
    counts: Vec<QueueCounts>,
}

const KEYS: u64 = 12;

fn answers(store: &dyn Store) -> Answers {
    let records = (0..KEYS).map(|number| {
        let name = record(number, 1, 0).name;
        store.get(Shard::ONLY, &name).unwrap()
    });
    let (mut due, mut after) = (Vec::new(), None);
    loop {
        let page = store
            .due(
                Shard::ONLY,
                &DueScan {
                    after,
                    limit: 3,
                    ..DueScan::all(DueClock::Wall)
                },
            )
            .unwrap();
        due.extend(page.entries);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut filter = Filter {
        limit: 4,
        ..Filter::queue(QueueName::new("queue").unwrap())
    };
    let mut listed = Vec::new();
    loop {
        let page = store.list(Shard::ONLY, &filter).unwrap();
        listed.extend(page.records);
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    Answers {
        records: records.collect(),
        due,
        listed,
        counts: store.counts(Shard::ONLY).unwrap(),
    }
}

/// Changes of what `model` has: sometimes by somebody who has looked at it.
fn changes(random: &mut Random, revision: &mut u64, model: &MemoryStore) -> Vec<Change> {
    let count = 1 + random.index(5);
    let mut changes = Vec::new();
    let looks = random.index(2) == 0;
    let mut known = BTreeMap::new();
    for _ in 0..count {
        let number = random.index(usize::try_from(KEYS).unwrap()) as u64;
        *revision += 1;
        changes.push(match random.index(5) {
            0 => Change::remove(record(number, 1, 0).name),
            1 => Change::Given(Revision(*revision)),
            _ => {
                let payload = [0, 10, 600, 5_000, 60_000][random.index(5)];
                Change::put(record(number, *revision, payload))
            }
        });
        let (name, before, after) = match changes.last_mut().unwrap() {
            Change::Put { record, before } => {
                let kinds = [State::Pending, State::Delivering];
                record.state = kinds[random.index(2)].clone();
                (record.name.clone(), before, Before::of(Some(record)))
            }
            Change::Remove { name, before } => (name.clone(), before, Before::Absent),
            Change::Given(_) | Change::Clock(_) | Change::Setting(_) => continue,
        };
        if looks {
            let found = model.get(Shard::ONLY, &name).unwrap();
            *before = *known.get(&name).unwrap_or(&Before::of(found.as_ref()));
        }
        known.insert(name, after);
    }
    changes
}

/// One life after another, each ended by a power cut in the middle of anything. Whatever was
/// acknowledged is there; of the commit that was under way, all or nothing is.
fn survives_power_cuts(seed: u64) {
    let mut random = Random::new(seed);
    let base = MemorySorted::default();
    let disk = Disk::default();
    // What the log has to answer: with what was acknowledged, and with what may be there.
    let model = MemoryStore::new(7);
    let mut revision = 0;
    let mut unsure: Option<Vec<Change>> = None;
    for _ in 0..8 {
        let log = loop {
            // Even the opening may be cut short.
            let files = files(&disk);
            if random.index(4) == 0 {
                disk.fail(Fault::power(random.index(8) as u64));
            }
            match LogStore::open(base.clone(), files, 7, options_of(seed)) {
                Ok(log) => match log.acquire(Shard::ONLY) {
                    Ok(ownership) => break (log, ownership),
                    Err(StoreError::Disk(DiskError::Io { .. })) => disk.cut(random.draw()),
                    Err(error) => panic!("seed {seed}: {error}"),
                },
                Err(StoreError::Disk(DiskError::Io { .. })) => disk.cut(random.draw()),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        };
        let (log, ownership) = log;
        let lease = model.acquire(Shard::ONLY).unwrap().lease;
        if let Some(changes) = unsure.take()
            && answers(&log) != answers(&model)
        {
            model.commit(lease, &changes).unwrap();
        }
        assert_eq!(answers(&log), answers(&model), "seed {seed}");
        let known = model.acquire(Shard::ONLY).unwrap();
        let lease = known.lease;
        assert!(
            ownership.last_revision >= known.last_revision,
            "seed {seed}"
        );
        disk.fail(Fault::power(random.index(60) as u64));
        for _ in 0..40 {
            let changes = changes(&mut random, &mut revision, &model);
            match log.commit(ownership.lease, &changes) {
                Ok(()) => model.commit(lease, &changes).unwrap(),
                Err(StoreError::Disk(DiskError::Io { .. })) => {
                    unsure = Some(changes);
                    let again = log.commit(ownership.lease, &[]);
                    assert!(matches!(again, Err(StoreError::Poisoned)), "seed {seed}");
                    break;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            let flushed = match random.index(6) {
                0 => log.seal(),
                1 => log.flush_oldest(),
                2 | 3 => log.compact(),
                _ => Ok(true),
            };
            if flushed.is_err() {
                break;
            }
            if random.index(8) == 0 {
                assert_eq!(answers(&log), answers(&model), "seed {seed}");
            }
        }
        if random.index(3) > 0 {
            disk.cut(random.draw());
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_through_power_cuts() {
    for seed in 0..500 {
        survives_power_cuts(seed);
    }
}

// ---- damage ----

#[test]
fn damage_is_refused_or_harmless_but_for_the_last_commit() {
    let mut refused = 0;
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let disk = Disk::default();
        let base = MemorySorted::default();
        let mut revision = 0;
        let mut promised = Vec::new();
        let model = MemoryStore::new(7);
        {
            let log = open(base.clone(), &disk).unwrap();
            let lease = log.acquire(Shard::ONLY).unwrap().lease;
            let own = model.acquire(Shard::ONLY).unwrap().lease;
            for _ in 0..10 {
                let changes = changes(&mut random, &mut revision, &model);
                log.commit(lease, &changes).unwrap();
                promised.push(answers(&model));
                model.commit(own, &changes).unwrap();
                if random.index(4) == 0 {
                    log.seal().unwrap();
                }
            }
        }
        let names = disk.paths();
        let name = &names[random.index(names.len())];
        let damaged = disk.copy();
        let mut content = damaged.content(name).unwrap();
        let at = random.index(content.len().min(20_000));
        content[at] ^= 1 << random.index(8);
        damaged.set_content(name, content);
        let lost = promised.last().unwrap();
        let before = damaged.image();
        match open(base.clone(), &damaged) {
            Ok(log) => {
                log.acquire(Shard::ONLY).unwrap();
                let found = answers(&log);
                assert!(
                    found == answers(&model) || found == *lost,
                    "seed {seed}: a bit at {at} of {name}"
                );
            }
            Err(StoreError::Disk(DiskError::Corrupt { .. } | DiskError::NotAStore { .. })) => {
                assert!(
                    damaged.image() == before,
                    "seed {seed}: {at} of {name}: changed"
                );
                refused += 1;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_missing_segment_is_refused() {
    let disk = Disk::default();
    let log = open(MemorySorted::default(), &disk).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    for revision in 1..4 {
        let change = Change::put(record(1, revision, 10));
        log.commit(lease, &[change]).unwrap();
        assert!(log.seal().unwrap());
    }
    assert!(!log.seal().unwrap(), "the last is empty");
    drop(log);
    let names = disk.paths();
    assert_eq!(names.len(), 5, "four segments, and one in reserve");
    for (missing, name) in names.iter().take(4).enumerate() {
        let damaged = disk.copy();
        damaged.delete(name);
        let refused = open(MemorySorted::default(), &damaged);
        // That the last one is missing shows only if the sorted store knows more.
        assert_eq!(
            matches!(&refused, Err(StoreError::Disk(DiskError::NotAStore { path, .. })) if path.ends_with(name.trim_start_matches("log/"))),
            missing < 3,
            "{refused:?}"
        );
    }
    let stranger = LogStore::open(MemorySorted::default(), files(&disk), 8, options());
    assert!(matches!(
        stranger,
        Err(StoreError::Disk(DiskError::NotAStore { .. }))
    ));
}

#[test]
fn what_fires_before_its_segment_is_full_never_reaches_the_sorted_store() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let log = open(base.clone(), &disk).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    for revision in 1..100 {
        let record = record(revision, revision, 100);
        let name = record.name.clone();
        log.commit(lease, &[Change::put(record)]).unwrap();
        if revision != 50 {
            log.commit(lease, &[Change::remove(name)]).unwrap();
        }
    }
    log.seal().unwrap();
    assert!(log.flush_oldest().unwrap());
    assert_eq!(log.names_and_segments(), (0, 1));
    let filter = Filter::queue(QueueName::new("queue").unwrap());
    let kept = base.list(Shard::ONLY, &filter).unwrap().records;
    assert_eq!(kept, [record(50, 50, 100)]);
}

/// Segments that are full every few commits.
/// Counts the entries by wake that it gave.
#[derive(Clone, Default)]
struct Counted {
    base: MemorySorted,
    given: Arc<AtomicUsize>,
}

impl Sorted for Counted {
    fn ingested(&self) -> u64 {
        self.base.ingested()
    }

    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError> {
        self.base.ingest(segment, flushed)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.base.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        let due = self.base.due(shard, scan)?;
        self.given.fetch_add(due.scanned, Ordering::SeqCst);
        Ok(due)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.base.list(shard, filter)
    }
}

#[test]
fn the_low_water_mark_passes_what_was_delivered_once_and_not_after_each_opening() {
    let disk = Disk::default();
    let base = Counted::default();
    let mut own = options();
    own.segments_max = 64;
    let open = || {
        let log = LogStore::open(base.clone(), files(&disk), 7, own).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        (log, lease)
    };
    // The first that is due, and how many were looked at for it.
    let first = |log: &LogStore<Counted>| {
        let before = base.given.load(Ordering::SeqCst);
        let scan = DueScan {
            limit: 1,
            ..DueScan::all(DueClock::Wall)
        };
        let due = log.due(Shard::ONLY, &scan).unwrap().entries;
        let looked = base.given.load(Ordering::SeqCst) - before;
        (due[0].name.key.as_str().to_owned(), looked)
    };
    let key = |number: u64| format!("key-{number}");
    let flush_all = |log: &LogStore<Counted>| {
        log.seal().unwrap();
        while log.flush_oldest().unwrap() {}
    };
    let compact_all = |log: &LogStore<Counted>| while log.compact().unwrap() {};
    let (log, lease) = open();
    let puts: Vec<_> = (10..5_000)
        .map(|number| Change::put(record(number, 1, 9)))
        .collect();
    log.commit(lease, &puts).unwrap();
    flush_all(&log);
    let names = (10..4_900).map(|number| record(number, 1, 0).name);
    let removals: Vec<_> = names.map(Change::remove).collect();
    log.commit(lease, &removals).unwrap();
    assert_eq!(first(&log), (key(4_900), 4_891), "no mark was advanced yet");
    compact_all(&log);
    assert_eq!(first(&log), (key(4_900), 1));
    // The next commit writes it down.
    log.commit(lease, &[Change::put(record(5_000, 1, 9))])
        .unwrap();
    drop(log);
    let (log, lease) = open();
    assert_eq!(first(&log), (key(4_900), 1));

    // What is due before that is found: while it is in the memtable, also after an opening,
    log.commit(lease, &[Change::put(record(5, 2, 9))]).unwrap();
    log.seal().unwrap();
    for revision in 9..11 {
        // Written in the next segment.
        log.commit(lease, &[Change::Given(Revision(revision))])
            .unwrap();
    }
    assert_eq!(first(&log), (key(5), 1));
    drop(log);
    let (log, _) = open();
    assert_eq!(first(&log), (key(5), 1));
    // and once it has been flushed, although what was written is not read again.
    while log.flush_oldest().unwrap() {}
    assert_eq!(first(&log), (key(5), 1));
    drop(log);
    let (log, lease) = open();
    assert_eq!(first(&log), (key(5), 1));
    // And goes on when it is gone.
    log.commit(lease, &[Change::remove(record(5, 2, 0).name)])
        .unwrap();
    compact_all(&log);
    assert_eq!(first(&log), (key(4_900), 1));
}

#[test]
fn the_low_water_mark_passes_all_before_something_that_is_flushed_and_due_later() {
    let disk = Disk::default();
    let interrupted = Interrupted::default();
    let (base, before) = (interrupted.base.clone(), Arc::clone(&interrupted.before));
    let log = Arc::new(open(interrupted, &disk).unwrap());
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let puts: Vec<_> = (1..=3_000)
        .map(|number| Change::put(record(number, 1, 9)))
        .collect();
    log.commit(lease, &puts).unwrap();
    log.seal().unwrap();
    while log.flush_oldest().unwrap() {}
    let removals = (1..2_000).map(|number| Change::remove(record(number, 1, 0).name));
    log.commit(lease, &removals.collect::<Vec<_>>()).unwrap();
    log.commit(lease, &[Change::put(record(2_500, 2, 9))])
        .unwrap();
    log.seal().unwrap();
    let looking = Arc::clone(&log);
    *before.lock().unwrap() = Some(Box::new(move || while looking.compact().unwrap() {}));
    assert!(log.flush_oldest().unwrap());
    // Had the mark not gone by them then, it would now; they are nowhere any more. But behind the
    // mark nobody finds what comes back.
    base.ingest(
        base.ingested(),
        [1, 1_999, 2_000]
            .map(|number| (Shard::ONLY, Change::put(record(number, 3, 9))))
            .into_iter()
            .collect(),
    )
    .unwrap();
    let due = log.due(Shard::ONLY, &DueScan::all(DueClock::Wall)).unwrap();
    let due = due.entries;
    assert_eq!(due.first().unwrap().name, record(2_000, 3, 0).name);
}

#[test]
fn the_low_water_mark_passes_nothing_that_is_about_to_be_flushed() {
    let disk = Disk::default();
    let interrupted = Interrupted::default();
    let (base, before) = (interrupted.base.clone(), Arc::clone(&interrupted.before));
    let log = Arc::new(open(interrupted, &disk).unwrap());
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let both = [Change::put(record(1, 1, 9)), Change::put(record(3, 1, 9))];
    log.commit(lease, &both).unwrap();
    log.seal().unwrap();
    log.flush_oldest().unwrap();
    log.commit(lease, &[Change::put(record(1, 2, 9))]).unwrap();
    log.seal().unwrap();
    // The sorted store has it already, and it is in the memtable still, when somebody looks.
    let looking = Arc::clone(&log);
    *before.lock().unwrap() = Some(Box::new(move || {
        base.ingest(2, vec![(Shard::ONLY, Change::put(record(1, 2, 9)))].into())
            .unwrap();
        looking.compact().unwrap();
    }));
    assert!(log.flush_oldest().unwrap());
    let due = log.due(Shard::ONLY, &DueScan::all(DueClock::Wall)).unwrap();
    let due = due.entries;
    assert_eq!(due.len(), 2);
}

/// The compaction would look at the same again and again until the flush is over.
#[test]
fn what_stands_behind_something_that_is_flushed_is_not_looked_at_meanwhile() {
    let disk = Disk::default();
    let interrupted = Interrupted::default();
    let before = Arc::clone(&interrupted.before);
    let mut own = options();
    own.segments_max = 64;
    let log = Arc::new(LogStore::open(interrupted, files(&disk), 7, own).unwrap());
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let puts = (10..3_000).map(|number| Change::put(record(number, 1, 9)));
    log.commit(lease, &puts.collect::<Vec<_>>()).unwrap();
    log.seal().unwrap();
    while log.flush_oldest().unwrap() {}
    log.commit(lease, &[Change::put(record(5, 2, 9))]).unwrap();
    log.seal().unwrap();
    let removals = (10..2_500).map(|number| Change::remove(record(number, 1, 0).name));
    log.commit(lease, &removals.collect::<Vec<_>>()).unwrap();
    let (looking, more) = (Arc::clone(&log), Arc::new(AtomicBool::new(true)));
    let is_more = Arc::clone(&more);
    *before.lock().unwrap() = Some(Box::new(move || {
        // The sorted store has two pieces of its own to do.
        looking.compact().unwrap();
        is_more.store(looking.compact().unwrap(), Ordering::SeqCst);
    }));
    assert!(log.flush_oldest().unwrap());
    assert!(!more.load(Ordering::SeqCst), "there is no end of it");
    let due = log.due(Shard::ONLY, &DueScan::all(DueClock::Wall)).unwrap();
    let due = due.entries;
    assert_eq!(due.first().unwrap().name, record(5, 2, 0).name);
}

/// A segment is begun, the sync of its name fails, and the next opening finds no room to begin it
/// once more. What was committed then was in a file that a loss of power could take.
#[test]
fn a_segment_without_a_sure_name_takes_no_commits_on_a_full_disk() {
    let (mut unsure, mut acknowledged_then) = (0, 0);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let (base, disk) = (MemorySorted::default(), Disk::new(random.draw()));
        let mut acknowledged = 0;
        let commit_some = |log: &LogStore<MemorySorted>, acknowledged: &mut u64| {
            let Ok(ownership) = log.acquire(Shard::ONLY) else {
                return;
            };
            for _ in 0..100 {
                let put = Change::put(record(*acknowledged, *acknowledged + 1, 900));
                if log.commit(ownership.lease, &[put]).is_err() {
                    return;
                }
                *acknowledged += 1;
            }
        };
        let log = open(base.clone(), &disk).unwrap();
        disk.fail(Fault {
            calls: Calls::Only(Operation::SyncDirectory),
            after: random.draw() % 3,
            lasts: false,
            failure: Failure::Io,
        });
        commit_some(&log, &mut acknowledged);
        drop(log);
        let files = files(&disk);
        disk.fail(Fault {
            calls: Calls::Changing,
            after: random.draw() % 12,
            lasts: random.draw().is_multiple_of(2),
            failure: Failure::NoSpace,
        });
        if let Ok(log) = LogStore::open(base.clone(), files, 7, options()) {
            unsure += 1;
            let before = acknowledged;
            commit_some(&log, &mut acknowledged);
            acknowledged_then += acknowledged - before;
        }
        disk.cut(random.draw());
        let log = open(base, &disk).unwrap_or_else(|error| panic!("{seed}: {error}"));
        for number in 0..acknowledged {
            let found = log.get(Shard::ONLY, &record(number, 1, 0).name).unwrap();
            assert!(found.is_some(), "{seed}: {number} of {acknowledged}");
        }
    }
    assert!(unsure > 100, "{unsure} openings");
    assert!(acknowledged_then > 1_000, "{acknowledged_then} commits");
}

/// A sync of the tables' names fails, the disk is full at the next opening, and then the power goes:
/// whichever manifest is left, what it does not have is in the log.
#[test]
fn what_the_tables_may_lose_stays_in_the_log_on_a_full_disk() {
    let mut opened = 0;
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let disk = Disk::new(random.draw());
        let open = |disk: &Disk| {
            let tables = disk.files("tables");
            let base = TableStore::open(tables, 7, TableOptions::default())?;
            LogStore::open(base, disk.files("log"), 7, options())
        };
        let log = open(&disk).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        let mut acknowledged = 0;
        disk.fail(Fault {
            calls: Calls::Only(Operation::SyncDirectory),
            after: random.draw() % 16,
            lasts: false,
            failure: Failure::Io,
        });
        'life: for _ in 0..8 {
            for _ in 0..4 {
                let put = Change::put(record(acknowledged, acknowledged + 1, 900));
                if log.commit(lease, &[put]).is_err() {
                    break 'life;
                }
                acknowledged += 1;
            }
            if log.seal().is_err() || log.flush_oldest().is_err() {
                break;
            }
        }
        drop(log);
        disk.restart();
        disk.fail(Fault {
            calls: Calls::Changing,
            after: random.draw() % 4,
            lasts: random.draw().is_multiple_of(2),
            failure: Failure::NoSpace,
        });
        opened += u64::from(open(&disk).is_ok());
        disk.cut(random.draw());
        let log = open(&disk).unwrap_or_else(|error| panic!("{seed}: {error}"));
        for number in 0..acknowledged {
            let found = log.get(Shard::ONLY, &record(number, 1, 0).name).unwrap();
            assert!(found.is_some(), "{seed}: {number} of {acknowledged}");
        }
    }
    assert!(opened > 100, "{opened} openings");
}

fn options() -> LogOptions {
    let mut options = LogOptions::default();
    options.segment_bytes = 1 << 15;
    options
}

/// The same; every second log begins with short segments.
fn options_of(seed: u64) -> LogOptions {
    let mut own = options();
    own.segment_bytes_first = if seed.is_multiple_of(2) {
        own.segment_bytes
    } else {
        1 << 12
    };
    own
}

// ---- flushes that meet commits ----

/// What happens when the sorted store is about to take a segment in.
type Interlude = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A sorted store in which something happens before it takes a segment in.
#[derive(Clone, Default)]
struct Interrupted {
    base: MemorySorted,
    before: Interlude,
    /// Then it fails.
    fails: Arc<AtomicBool>,
    /// How often it was asked to compact.
    compacted: Arc<AtomicUsize>,
    /// It is behind, and a step takes as long.
    behind: Arc<AtomicBool>,
    /// It never finds room to catch up.
    starves: bool,
}

impl Sorted for Interrupted {
    fn ingested(&self) -> u64 {
        self.base.ingested()
    }

    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError> {
        let deed = self.before.lock().unwrap().take();
        deed.into_iter().for_each(|deed| deed());
        if self.fails.load(Ordering::SeqCst) {
            return Err(DiskError::Full {
                path: "base".into(),
            }
            .into());
        }
        self.base.ingest(segment, flushed)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.base.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.base.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.base.list(shard, filter)
    }

    fn compact(&self) -> Result<bool, StoreError> {
        if self.behind.load(Ordering::SeqCst) {
            eventually(|| (!self.behind.load(Ordering::SeqCst)).then_some(()));
        }
        if self.starves {
            return Err(DiskError::Full {
                path: "base".into(),
            }
            .into());
        }
        // There is a second piece after each first.
        Ok(self
            .compacted
            .fetch_add(1, Ordering::SeqCst)
            .is_multiple_of(2))
    }

    fn is_behind(&self) -> bool {
        self.behind.load(Ordering::SeqCst)
    }
}

#[test]
fn what_is_changed_while_it_is_flushed_stays_changed() {
    for fails in [false, true] {
        let base = MemorySorted::default();
        let before = Interlude::default();
        let disk = Disk::default();
        let open = |fails| {
            let interrupted = Interrupted {
                base: base.clone(),
                before: Arc::clone(&before),
                fails: Arc::new(AtomicBool::new(fails)),
                ..Interrupted::default()
            };
            LogStore::open(interrupted, files(&disk), 7, options()).unwrap()
        };
        let log = Arc::new(open(fails));
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        for number in 0..4 {
            let change = Change::put(record(number, number + 1, 10));
            log.commit(lease, &[change]).unwrap();
        }
        log.seal().unwrap();
        let meanwhile = Arc::clone(&log);
        *before.lock().unwrap() = Some(Box::new(move || {
            let removed = Change::remove(record(0, 1, 0).name);
            let replaced = Change::put(record(1, 9, 20));
            let put = Change::put(record(3, 10, 20));
            meanwhile.commit(lease, &[removed, replaced, put]).unwrap();
            let removed = Change::remove(record(3, 1, 0).name);
            meanwhile.commit(lease, &[removed]).unwrap();
        }));
        assert_eq!(log.flush_oldest().is_err(), fails);
        let model = MemoryStore::new(7);
        let own = model.acquire(Shard::ONLY).unwrap().lease;
        for kept in [record(1, 9, 20), record(2, 3, 10)] {
            model.commit(own, &[Change::put(kept)]).unwrap();
        }
        assert_eq!(answers(&*log), answers(&model));
        drop(log);
        let log = open(false);
        assert_eq!(answers(&log), answers(&model), "opened again");
        assert_eq!(
            log.recovery().freed,
            0,
            "it was freed when it had been flushed"
        );
        log.seal().unwrap();
        while log.flush_oldest().unwrap() {}
        assert_eq!(log.names_and_segments().0, 0);
        let mut filter = Filter::queue(QueueName::new("queue").unwrap());
        filter.limit = 10;
        let kept = base.list(Shard::ONLY, &filter).unwrap().records;
        assert_eq!(kept, answers(&model).listed, "all of it was flushed");
    }
}

// ---- calls that fail ----

/// One life in which one call fails; false if there were not as many calls.
fn survives_a_failure(after: u64, failure: Failure) -> bool {
    let mut random = Random::new(after);
    let case = format!("call {after}: {failure:?}");
    let disk = Disk::new(after);
    let base = MemorySorted::default();
    let model = MemoryStore::new(7);
    let own = model.acquire(Shard::ONLY).unwrap().lease;
    let reopened = || {
        for _ in 0..2 {
            if let Ok(log) = LogStore::open(base.clone(), disk.files("log"), 7, options_of(after))
                && let Ok(ownership) = log.acquire(Shard::ONLY)
            {
                return (log, ownership.lease);
            }
            disk.restart();
        }
        panic!("{case}: it cannot be opened");
    };
    disk.fail(Fault::once(after, failure));
    let (mut log, mut lease) = reopened();
    let mut revision = 0;
    for number in 0..24 {
        let changes = changes(&mut random, &mut revision, &model);
        match log.commit(lease, &changes) {
            Ok(()) => model.commit(own, &changes).unwrap(),
            Err(StoreError::Disk(DiskError::Full { .. })) => {
                assert_eq!(answers(&log), answers(&model), "{case}");
                log.commit(lease, &changes).unwrap();
                model.commit(own, &changes).unwrap();
            }
            Err(StoreError::Disk(DiskError::Io { .. })) => {
                disk.restart();
                disk.evict();
                (log, lease) = reopened();
                if answers(&log) != answers(&model) {
                    model.commit(own, &changes).unwrap();
                }
            }
            Err(error) => panic!("{case}: {error}"),
        }
        let kept_short = match number % 6 {
            0 => log.seal(),
            1 => log.prepare(),
            3 => log.flush_oldest(),
            _ => Ok(true),
        };
        match kept_short {
            Ok(_) | Err(StoreError::Disk(DiskError::Full { .. })) => {}
            Err(_) => {
                disk.restart();
                disk.evict();
                (log, lease) = reopened();
            }
        }
        if number % 5 == 0 {
            let read = log.get(Shard::ONLY, &record(1, 1, 0).name);
            let read = read.or_else(|_| log.get(Shard::ONLY, &record(1, 1, 0).name));
            let known = model.get(Shard::ONLY, &record(1, 1, 0).name);
            assert_eq!(read.unwrap(), known.unwrap(), "{case}");
        }
    }
    let struck = disk.struck() > 0;
    drop(log);
    disk.cut(after);
    let log = LogStore::open(base.clone(), disk.files("log"), 7, options_of(after)).unwrap();
    assert_eq!(answers(&log), answers(&model), "{case}");
    struck
}

#[test]
fn every_call_may_fail_once() {
    let failures = [
        Failure::Io,
        Failure::Short,
        Failure::Torn,
        Failure::NoSpace,
        Failure::NoSpaceShort,
    ];
    for failure in failures {
        let calls = (0..).take_while(|&after| survives_a_failure(after, failure));
        assert!(calls.count() > 80, "{failure:?}");
    }
}

// ---- a full disk ----

/// What another thread does soon.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let clock = SystemClock::new();
    let until = clock.now() + Duration::from_secs(30);
    while clock.now() < until {
        if let Some(found) = look() {
            return found;
        }
        std::thread::yield_now();
    }
    panic!("it did not happen");
}

/// Timers of so many queues, one in each.
fn one_of_each(queues: Range<u64>) -> Vec<Record> {
    let records = queues.map(|number| {
        let name = TimerName::new(format!("queue-{number:06}"), "k").unwrap();
        pending(name, number + 1, Vec::new())
    });
    records.collect()
}

/// All counts did not fit into a segment: no spare was long enough, and what was set aside for a full
/// disk could not be used.
#[test]
fn a_full_disk_takes_all_removals_however_many_queues_there_are() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let mut own = options();
    (own.segments_max, own.counts_whole) = (64, 100);
    let log = LogStore::open(base.clone(), files(&disk), 7, own).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let records = one_of_each(0..1_000);
    for some in records.chunks(100) {
        let puts: Vec<_> = some.iter().cloned().map(Change::put).collect();
        log.commit(lease, &puts).unwrap();
    }
    disk.set_capacity(Some(disk.used() + 10_000));
    let mut revision = 10_000;
    while log.has_room() {
        revision += 1;
        let filler = put(revision % KEYS, revision);
        log.commit(lease, &[filler]).unwrap();
    }
    for some in records.chunks(100) {
        let removals = some
            .iter()
            .map(|record| Change::remove(record.name.clone()));
        let removals: Vec<_> = removals.collect();
        log.commit(lease, &removals).unwrap();
    }
    assert!(!log.has_room());
    let counts = log.counts(Shard::ONLY).unwrap();
    assert!(counts.len() < 100, "{}", counts.len());
    drop(log);
    disk.set_capacity(None);
    let log = LogStore::open(base, files(&disk), 7, own).unwrap();
    assert_eq!(log.counts(Shard::ONLY).unwrap(), counts);
}

/// Before what is counted from the beginning on goes, all counts stand behind it; and where they do
/// not, an opening says so instead of counting wrong.
#[test]
fn counts_outlive_the_segments_that_they_come_from() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let mut own = options();
    (own.counts_whole, own.counts_at_once) = (5, 7);
    let open = || LogStore::open(base.clone(), files(&disk), 7, own).unwrap();
    let mut log = open();
    let model = MemoryStore::new(7);
    let known = model.acquire(Shard::ONLY).unwrap().lease;
    for round in 0..8 {
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        for record in one_of_each(round * 20..round * 20 + 40) {
            let changes = [
                Change::put(record.clone()),
                Change::remove(TimerName::new(format!("queue-{:06}", round * 9), "k").unwrap()),
            ];
            log.commit(lease, &changes).unwrap();
            model.commit(known, &changes).unwrap();
        }
        log.seal().unwrap();
        while round % 3 < 2 && log.flush_oldest().unwrap() {}
        if round % 2 == 1 {
            drop(log);
            log = open();
        }
        let counts = |store: &dyn Store| store.counts(Shard::ONLY).unwrap();
        assert_eq!(counts(&log), counts(&model), "round {round}");
    }
}

fn put(number: u64, revision: u64) -> Change {
    Change::put(record(number, revision, 2_000))
}

#[test]
fn a_full_disk_still_takes_removals_and_heals() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let mut own = options();
    own.segments_max = 64;
    let open = || LogStore::open(base.clone(), files(&disk), 7, own).unwrap();
    let mut log = open();
    let mut lease = log.acquire(Shard::ONLY).unwrap().lease;
    let model = MemoryStore::new(7);
    let known = model.acquire(Shard::ONLY).unwrap().lease;
    let mut revision = 0;
    for round in 0..3 {
        disk.set_capacity(Some(disk.used() + 10_000));
        let mut puts = 0;
        while log.has_room() {
            revision += 1;
            let change = put(revision % KEYS, revision);
            log.commit(lease, std::slice::from_ref(&change)).unwrap();
            model.commit(known, &[change]).unwrap();
            puts += 1;
        }
        assert!(puts > 0, "round {round}");
        if round == 1 {
            // It can be opened as it is, and nothing was set aside anew.
            drop(log);
            log = open();
            lease = log.acquire(Shard::ONLY).unwrap().lease;
        }
        // What is urgent has a segment more.
        let mut urgent = 0;
        let refused = loop {
            revision += 1;
            let change = put(revision % KEYS, revision);
            match log.commit(lease, std::slice::from_ref(&change)) {
                Ok(()) => model.commit(known, &[change]).unwrap(),
                Err(error) => break error,
            }
            urgent += 1;
        };
        assert!(
            matches!(refused, StoreError::Disk(DiskError::Full { .. })),
            "{refused}"
        );
        assert!(urgent >= 10, "round {round}: {urgent}");
        assert!(!log.has_room());
        assert_eq!(answers(&log), answers(&model), "nothing was changed");
        if round == 2 {
            // Flushing frees a segment.
            assert!(log.flush_oldest().unwrap());
        } else {
            disk.set_capacity(None);
            assert!(log.prepare().unwrap());
            assert!(log.has_room());
        }
        log.commit(lease, &[Change::Given(Revision(revision))])
            .unwrap();
    }
    drop(log);
    assert_eq!(answers(&open()), answers(&model));
}

#[test]
fn the_thread_finds_out_that_there_is_room_again() {
    let disk = Disk::default();
    let mut own = options();
    own.segments_max = 3;
    let interrupted = Interrupted {
        fails: Arc::new(AtomicBool::new(true)),
        ..Interrupted::default()
    };
    let (fails, compacted) = (
        Arc::clone(&interrupted.fails),
        Arc::clone(&interrupted.compacted),
    );
    let log = LogStore::open(interrupted, files(&disk), 7, own).unwrap();
    let log = FlushingLog::start(log).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    disk.set_capacity(Some(disk.used() + 70_000));
    let mut revision = 0;
    let refused = loop {
        revision += 1;
        // Nobody waits for what cannot be flushed, as long as there is room.
        if let Err(error) = log.commit(lease, &[put(1, revision)]) {
            break error;
        }
    };
    assert!(
        matches!(refused, StoreError::Disk(DiskError::Full { .. })),
        "{refused}"
    );
    assert!(!log.has_room());
    let is_full = || {
        let troubles = log.troubles();
        troubles
            .iter()
            .any(|one| one.reason == TroubleReason::DiskFull)
    };
    assert!(is_full());
    fails.store(false, Ordering::SeqCst);
    disk.set_capacity(None);
    eventually(|| log.has_room().then_some(()));
    eventually(|| (!is_full()).then_some(()));
    log.commit(lease, &[put(1, revision)]).unwrap();
    assert_eq!(log.log().failure(), None);
    // Once when it began, and again when something had been flushed; two pieces each time.
    eventually(|| (compacted.load(Ordering::SeqCst) >= 4).then_some(()));
}

#[test]
fn full_segments_stay_as_long_as_they_may() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let mut own = options();
    own.segments_kept = 3;
    let log = LogStore::open(base.clone(), files(&disk), 7, own).unwrap();
    let log = FlushingLog::start(log).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let has_spares = || {
        let spares = disk.paths();
        let spares = spares.iter().filter(|path| path.starts_with("log/spare-"));
        (spares.count() >= 2).then_some(())
    };
    let mut revision = 0;
    while log.log().names_and_segments().1 < 3 {
        revision += 1;
        log.commit(lease, &[put(revision, revision)]).unwrap();
        // The thread has looked at what there is.
        eventually(has_spares);
    }
    assert_eq!(base.ingested(), 0);
    while log.log().names_and_segments().1 < 4 && base.ingested() == 0 {
        revision += 1;
        log.commit(lease, &[put(revision, revision)]).unwrap();
    }
    eventually(|| (base.ingested() == 1).then_some(()));
    eventually(|| (log.log().names_and_segments().1 == 3).then_some(()));
}

#[test]
fn a_log_on_a_disk_of_a_few_segments_flushes_what_it_would_keep() {
    let disk = Disk::default();
    // Less than the segments that are kept, and those that are spare.
    disk.set_capacity(Some(5 << 15));
    let base = MemorySorted::default();
    let log = LogStore::open(base.clone(), files(&disk), 7, options()).unwrap();
    let log = FlushingLog::start(log).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    for revision in 1..200 {
        eventually(|| log.has_room().then_some(()));
        log.commit(lease, &[put(revision, revision)]).unwrap();
    }
    assert!(base.ingested() > 5 && log.log().failure().is_none());
}

#[test]
fn commits_wait_for_a_sorted_store_that_is_behind() {
    for starves in [false, true] {
        let disk = Disk::default();
        let mut own = options();
        (own.segments_kept, own.segments_max) = (1, 3);
        let behind = Arc::new(AtomicBool::new(true));
        let interrupted = Interrupted {
            behind: Arc::clone(&behind),
            starves,
            ..Interrupted::default()
        };
        let base = interrupted.base.clone();
        let log = LogStore::open(interrupted, files(&disk), 7, own).unwrap();
        let log = FlushingLog::start(log).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        let committed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for revision in 1..100 {
                    log.commit(lease, &[put(revision, revision)]).unwrap();
                    committed.fetch_add(1, Ordering::SeqCst);
                }
            });
            // As full as it may be while nothing is flushed: who commits next waits.
            eventually(|| (log.log().names_and_segments().1 == 3).then_some(()));
            let seen = eventually(|| {
                let seen = committed.load(Ordering::SeqCst);
                std::thread::yield_now();
                (seen > 20 && seen == committed.load(Ordering::SeqCst)).then_some(seen)
            });
            assert!(seen < 99 && base.ingested() == 0, "{seen}");
            behind.store(false, Ordering::SeqCst);
        });
        assert_eq!(committed.load(Ordering::SeqCst), 99);
        assert!(base.ingested() > 0 && log.log().failure().is_none());
    }
}

#[test]
fn a_sorted_store_without_room_bounds_the_log() {
    for with_thread in [false, true] {
        let disk = Disk::default();
        let mut own = options();
        own.segments_max = 3;
        let interrupted = Interrupted {
            fails: Arc::new(AtomicBool::new(true)),
            ..Interrupted::default()
        };
        let fails = Arc::clone(&interrupted.fails);
        let log = LogStore::open(interrupted, files(&disk), 7, own).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        let (plain, flushing);
        let (store, log): (&dyn Store, _) = if with_thread {
            flushing = FlushingLog::start(log).unwrap();
            (&flushing, flushing.log())
        } else {
            plain = log;
            (&plain, &plain)
        };
        // The disk has room for ever.
        let mut had_room = 0;
        let refused = (0..1_000).find_map(|_| {
            had_room += u64::from(has_room(store));
            store.commit(lease, &[put(1, 1)]).err()
        });
        assert!(
            matches!(refused, Some(StoreError::Disk(DiskError::Full { .. }))),
            "{refused:?}"
        );
        assert!(had_room > 30 && !has_room(store), "{had_room}");
        assert!(
            log.names_and_segments().1 <= 7,
            "{:?}",
            log.names_and_segments()
        );
        fails.store(false, Ordering::SeqCst);
        if with_thread {
            eventually(|| has_room(store).then_some(()));
        }
        store.commit(lease, &[put(1, 1)]).unwrap();
        assert!(has_room(store));
    }
}

/// A sorted store that takes nothing in.
struct Failing(MemorySorted);

impl Sorted for Failing {
    fn ingested(&self) -> u64 {
        self.0.ingested()
    }

    fn ingest(&self, _: u64, _: Flushed) -> Result<(), StoreError> {
        Err(DiskError::Corrupt {
            path: "sorted".into(),
            problem: "said the test".to_owned(),
        }
        .into())
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.0.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.0.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.0.list(shard, filter)
    }
}

#[test]
fn a_thread_that_fails_poisons_the_log_and_says_why() {
    let disk = Disk::default();
    let mut own = options();
    own.segments_max = 2;
    let base = Failing(MemorySorted::default());
    let log = LogStore::open(base, files(&disk), 7, own).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    while log.names_and_segments().1 < 2 {
        log.commit(lease, &[put(1, 1)]).unwrap();
    }
    let log = FlushingLog::start(log).unwrap();
    let (send, early) = std::sync::mpsc::channel();
    log.on_failure(Box::new(move |reason| {
        send.send(reason.to_owned()).unwrap();
    }));
    // Whoever waits for it is told, and so is everybody after that.
    let refused = (0..10_000).find_map(|_| log.commit(lease, &[put(1, 1)]).err());
    assert!(matches!(refused, Some(StoreError::Poisoned)), "{refused:?}");
    let reason = eventually(|| log.log().failure());
    assert!(reason.contains("is damaged"), "{reason}");
    // Whoever wants to be told without asking is told, now or then.
    let (send, told) = std::sync::mpsc::channel();
    log.on_failure(Box::new(move |reason| {
        send.send(reason.to_owned()).unwrap();
    }));
    assert_eq!(
        [early, told].map(|told| told.recv().unwrap()),
        [reason.clone(), reason]
    );
}

// ---- a disk that refuses ----

fn lasting(operation: Operation, failure: Failure) -> Fault {
    Fault {
        calls: Calls::Only(operation),
        after: 0,
        lasts: true,
        failure,
    }
}

/// On a disk that copies on writing a commit may find no room where it has its place, and nor do the
/// zeros that take it back: the log took no commit any more, and the service ended.
#[test]
fn a_commit_that_finds_no_room_in_its_own_segment_is_refused_and_made_later() {
    for times in [1, 4] {
        let (disk, base) = (Disk::default(), MemorySorted::default());
        let log = open(base.clone(), &disk).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        log.commit(lease, &[put(1, 1)]).unwrap();
        disk.fail(lasting(Operation::Write, Failure::NoSpace));
        for _ in 0..times {
            let refused = log.commit(lease, &[put(2, 2)]);
            assert!(
                matches!(refused, Err(StoreError::Disk(DiskError::Full { .. }))),
                "{refused:?}"
            );
            assert!(!log.has_room());
            let full = log.troubles();
            assert_eq!(full[0].reason, TroubleReason::DiskFull, "{full:?}");
            // Whoever looks for room finds none, and that is no failure.
            assert!(matches!(
                log.prepare(),
                Err(StoreError::Disk(DiskError::Full { .. }))
            ));
        }
        // The process may end now: of the commit nothing is there.
        let found = disk.copy();
        found.restart();
        let reopened = open(base.clone(), &found).unwrap();
        let second = record(2, 2, 0).name;
        assert_eq!(reopened.get(Shard::ONLY, &second).unwrap(), None);

        disk.heal();
        log.prepare().unwrap();
        assert!(log.has_room());
        assert_eq!(log.troubles(), []);
        log.commit(lease, &[put(3, 3)]).unwrap();
        drop(log);
        disk.cut(7);
        let log = open(base, &disk).unwrap();
        for (number, is_there) in [(1, true), (2, false), (3, true)] {
            let found = log.get(Shard::ONLY, &record(number, 1, 0).name);
            assert_eq!(found.unwrap().is_some(), is_there, "{number}");
        }
    }
}

/// There may be room for one of several.
#[test]
fn commits_that_find_no_room_together_are_made_one_by_one() {
    for is_lasting in [false, true] {
        let (disk, base) = (Disk::default(), MemorySorted::default());
        let log = open(base.clone(), &disk).unwrap();
        let leases = [1, 2].map(|shard| log.acquire(Shard(shard)).unwrap().lease);
        let name = SettingName::new("a").unwrap();
        let value = Some(vec![1]);
        let setting = Change::Setting(Setting { name, value });
        let changes = [vec![put(1, 1), setting], vec![put(2, 2)]];
        let before = SettingsVersion::default();
        disk.fail(Fault {
            lasts: is_lasting,
            ..lasting(Operation::Write, Failure::NoSpace)
        });
        let commits = [0, 1].map(|at| Commit {
            lease: leases[at],
            changes: &changes[at],
        });
        let results = log.commit_all(&commits);
        let made = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(made, if is_lasting { 0 } else { 2 }, "{results:?}");
        disk.heal();
        drop(log);
        let log = open(base, &disk).unwrap();
        let settings = log.settings(before).unwrap();
        let version = settings.map_or(0, |settings| settings.version().0);
        assert_eq!(version, u64::from(made > 0));
        for (shard, number) in [(1, 1), (2, 2)] {
            let found = log.get(Shard(shard), &record(number, 1, 0).name).unwrap();
            assert_eq!(found.is_some(), made > 0);
        }
    }
}

/// Of a commit that finds no room its place may have a part, and that part may be all but the padding.
/// Where the zeros that take it back find room for some of them alone, it is not read any more; but
/// what the disk had before may be there after a loss of power, and with it a commit that was refused.
#[test]
fn a_commit_that_was_refused_for_want_of_room_is_not_there_after_a_loss_of_power() {
    let (mut refused, mut ended) = (0, 0);
    for seed in 0..3_000 {
        let (disk, base) = (Disk::new(seed), MemorySorted::default());
        let log = open(base.clone(), &disk).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        log.commit(lease, &[put(1, 1)]).unwrap();
        disk.fail(Fault {
            lasts: seed % 2 == 0,
            ..lasting(Operation::Write, Failure::NoSpaceShort)
        });
        // So short that the disk writes all that is not padding now and then.
        let answer = log.commit(lease, &[Change::Given(Revision(77))]);
        let is_full = matches!(answer, Err(StoreError::Disk(DiskError::Full { .. })));
        assert!(is_full || answer.is_err(), "seed {seed}: {answer:?}");
        let later = is_full && seed % 4 == 1;
        if later {
            log.commit(lease, &[put(3, 3)]).unwrap();
        }
        drop(log);
        disk.cut(seed);
        let log = open(base, &disk).unwrap();
        let last = log.acquire(Shard::ONLY).unwrap().last_revision;
        let known = Revision(if later { 3 } else { 1 });
        assert!(!is_full || last == known, "seed {seed}: {last}");
        assert!(
            log.get(Shard::ONLY, &record(1, 1, 0).name)
                .unwrap()
                .is_some()
        );
        refused += u32::from(is_full);
        ended += u32::from(!is_full);
    }
    assert!(refused > 2_000 && ended > 0, "{refused} refused, {ended}");
}

/// A name for which a directory has no room ended the store.
#[test]
fn a_segment_without_room_for_its_name_is_begun_later() {
    let (disk, base) = (Disk::default(), MemorySorted::default());
    let log = open(base, &disk).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(1, 1)]).unwrap();
    while log.prepare().unwrap() {}
    disk.fail(lasting(Operation::Rename, Failure::NoSpace));
    let refused = (2..100).find_map(|number| log.commit(lease, &[put(number, number)]).err());
    assert!(
        matches!(refused, Some(StoreError::Disk(DiskError::Full { .. }))),
        "{refused:?}"
    );
    assert_eq!(log.troubles()[0].reason, TroubleReason::DiskFull);
    // A spare that can be opened says nothing of room for a name.
    for _ in 0..3 {
        log.prepare().map(drop).unwrap_or_default();
    }
    assert_eq!(log.troubles()[0].reason, TroubleReason::DiskFull);
    disk.heal();
    log.commit(lease, &[put(200, 200)]).unwrap();
    while log.prepare().unwrap() {}
    assert_eq!(log.troubles(), []);
    assert!(log.seal().unwrap());
    // Without room for the name of a spare, the segment that has been flushed is removed.
    disk.fail(lasting(Operation::Rename, Failure::NoSpace));
    while log.flush_oldest().unwrap() {}
    assert_eq!(log.names_and_segments().1, 1);
}

/// A read failed, so that the segment was to be flushed by name; and then the system gave nothing
/// back any more. What had been read by then was taken for a proof that the rest is damaged: it was
/// flushed as unreadable, although the disk had it.
#[test]
fn a_disk_that_falls_silent_while_a_segment_is_flushed_by_name_costs_no_record() {
    let read = |after, lasts| Fault {
        calls: Calls::Only(Operation::Read),
        after,
        lasts,
        failure: Failure::Io,
    };
    let (mut kept, mut flushed) = (0, 0);
    for (first, silent) in (0..10).flat_map(|first| (0..8).map(move |then| (first, first + then))) {
        let (disk, base) = (Disk::default(), MemorySorted::default());
        let log = open(base, &disk).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        for number in 1..=3 {
            log.commit(lease, &[put(number, number)]).unwrap();
        }
        assert!(log.seal().unwrap());
        disk.fail(read(first, false));
        disk.fail(read(silent + 1, true));
        if log.flush_oldest().unwrap() {
            flushed += 1;
        } else {
            kept += 1;
        }
        disk.heal();
        while log.flush_oldest().unwrap() {}
        for number in 1..=3 {
            let found = log.get(Shard::ONLY, &record(number, number, 2_000).name);
            let found = found.unwrap_or_else(|error| panic!("{first}, {silent}: {error}"));
            assert_eq!(found, Some(record(number, number, 2_000)));
        }
    }
    assert!(kept > 20 && flushed > 20, "{kept} kept, {flushed} flushed");
}

/// A segment that gave nothing back ended the log, with everything that had nothing to do with it.
#[test]
fn a_segment_that_gives_nothing_back_is_kept_and_costs_nothing() {
    let (disk, base) = (Disk::default(), MemorySorted::default());
    let mut own = options();
    own.segments_max = 4;
    let log = LogStore::open(base.clone(), files(&disk), 7, own).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let mut number = 0;
    let mut commit = || {
        number += 1;
        log.commit(lease, &[put(number, number)]).unwrap();
        number
    };
    let is_read = |number| {
        let found = log.get(Shard::ONLY, &record(number, 1, 0).name);
        found.is_ok_and(|found| found.is_some())
    };
    let troubles = || {
        let troubles = log.troubles().into_iter();
        troubles
            .map(|one| (one.reason, one.path.unwrap()))
            .collect::<Vec<_>>()
    };
    let first = commit();
    commit();
    log.seal().unwrap();
    let unreadable = |number: u64| {
        let directory = disk.files("log").path();
        let path = directory.join(format!("segment-{number:016x}"));
        vec![(TroubleReason::UnreadableSegment, path)]
    };
    disk.fail(lasting(Operation::Read, Failure::Io));
    for _ in 0..3 {
        assert!(!log.flush_oldest().unwrap(), "it is kept");
        assert_eq!(troubles(), unreadable(1));
        commit();
    }
    // A `get` is refused. A list says how many records it leaves out. Each record is one trouble.
    let queue = QueueName::new(record(first, 1, 0).name.queue.as_str()).unwrap();
    let listed = log.list(Shard::ONLY, &Filter::queue(queue)).unwrap();
    assert_eq!((listed.records.len(), listed.unreadable), (0, 5));
    assert_eq!(troubles().len(), 6);
    assert!(!is_read(first));
    assert_eq!(troubles().len(), 6, "each once");
    disk.heal();
    assert!(is_read(first));
    assert_eq!(troubles().len(), 5, "until it is read");
    assert!(log.flush_oldest().unwrap());
    assert!(is_read(first), "nothing is lost");
    (1..=5).for_each(|number| assert!(is_read(number)));
    assert_eq!(troubles(), []);

    // For as long as there is room. Then the store ends, and has all of it when it is opened anew.
    commit();
    log.seal().unwrap();
    disk.fail(lasting(Operation::Read, Failure::Io));
    while log.names_and_segments().1 < 4 {
        assert!(!log.flush_oldest().unwrap());
        commit();
        log.seal().unwrap();
    }
    let ended = log.flush_oldest().unwrap_err();
    assert!(
        matches!(ended, StoreError::Disk(DiskError::Io { .. })),
        "{ended}"
    );
    let last = commit();
    disk.restart();
    disk.heal();
    let log = LogStore::open(base, files(&disk), 7, own).unwrap();
    while log.flush_oldest().unwrap() {}
    for number in 1..=last {
        let found = log.get(Shard::ONLY, &record(number, 1, 0).name).unwrap();
        assert!(found.is_some(), "{number}");
    }
}

// ---- bounds ----

#[test]
fn the_memtable_has_no_more_names_than_the_options_allow() {
    for with_thread in [false, true] {
        let disk = Disk::default();
        let mut own = options();
        (own.memtable_names_max, own.segments_max) = (40, 3);
        let log = LogStore::open(MemorySorted::default(), files(&disk), 7, own).unwrap();
        let lease = log.acquire(Shard::ONLY).unwrap().lease;
        let (plain, flushing);
        let (store, log): (&dyn Store, _) = if with_thread {
            flushing = FlushingLog::start(log).unwrap();
            (&flushing, flushing.log())
        } else {
            plain = log;
            (&plain, &plain)
        };
        for revision in 1..1_000 {
            let payload = if revision < 500 { 10 } else { 3_000 };
            let change = Change::put(record(revision, revision, payload));
            store.commit(lease, &[change]).unwrap();
            let (names, segments) = log.names_and_segments();
            assert!(names <= 40 && segments <= 4, "{names}, {segments}");
        }
        let counts = store.counts(Shard::ONLY).unwrap();
        assert_eq!(counts[0].by_state, [999, 0, 0, 0]);
        for revision in [1, 500, 999] {
            let found = store.get(Shard::ONLY, &record(revision, 1, 0).name);
            assert_eq!(found.unwrap().unwrap().revision, Revision(revision));
        }
    }
}

#[test]
fn an_opening_says_what_it_had_to_do() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let log = open(base.clone(), &disk).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(1, 1)]).unwrap();
    log.seal().unwrap();
    log.commit(lease, &[put(2, 2)]).unwrap();
    // The process ends when the sorted store has a segment that is not free yet.
    base.ingest(1, vec![(Shard::ONLY, put(1, 1))].into())
        .unwrap();
    disk.fail(Fault::power(0));
    assert!(log.commit(lease, &[put(3, 3)]).is_err());
    let before = disk.paths();
    disk.restart();
    let log = open(base.clone(), &disk).unwrap();
    let recovery = log.recovery();
    assert_eq!((recovery.freed, recovery.segments), (1, 1));
    assert!((1..=2).contains(&recovery.frames), "{recovery:?}");
    assert_eq!(disk.paths().len(), before.len());
    let first = "log/segment-0000000000000001".to_owned();
    assert!(before.contains(&first) && !disk.paths().contains(&first));
    let found = log.get(Shard::ONLY, &record(1, 1, 0).name).unwrap();
    assert_eq!(found, Some(record(1, 1, 2_000)));
    let counts = log.counts(Shard::ONLY).unwrap();
    assert_eq!(counts[0].by_state[0], recovery.frames + 1);
}

/// A directory in which something happens once while a file is read, or written.
#[derive(Clone, Debug)]
struct Watched {
    files: Arc<dyn Files>,
    deed: Arc<Watch>,
}

#[derive(Default)]
struct Watch {
    read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

#[derive(Debug)]
struct WatchedFile(Arc<dyn StoreFile>, Arc<Watch>);

impl Files for Watched {
    fn list(&self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>> {
        self.files.create(name, len)
    }

    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        self.files.begin(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        let file = self.files.open(name)?;
        Ok(Arc::new(WatchedFile(file, Arc::clone(&self.deed))))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn set_aside(&self, names: &[String]) -> io::Result<()> {
        self.files.set_aside(names)
    }

    fn sync(&self) -> io::Result<()> {
        self.files.sync()
    }

    fn path(&self) -> PathBuf {
        self.files.path()
    }

    fn nonce(&self) -> io::Result<u64> {
        self.files.nonce()
    }
}

impl StoreFile for WatchedFile {
    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let deed = self.1.read.lock().unwrap().take();
        deed.into_iter().for_each(|deed| deed());
        self.0.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let deed = self.1.write.lock().unwrap().take();
        deed.into_iter().for_each(|deed| deed());
        self.0.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn nothing_is_marked_while_a_commit_is_between_its_frame_and_the_table() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let watch = Arc::new(Watch::default());
    let watched = Watched {
        files: files(&disk),
        deed: Arc::clone(&watch),
    };
    let log = LogStore::open(base.clone(), Arc::new(watched), 7, options()).unwrap();
    let log = Arc::new(log);
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(1, 1)]).unwrap();
    log.seal().unwrap();
    // The flush of the record begins; then a removal of it is written, and takes its time.
    let name = record(1, 1, 0).name;
    let (writes, is_written) = std::sync::mpsc::channel();
    let flushed = base.clone();
    *watch.write.lock().unwrap() = Some(Box::new(move || {
        writes.send(()).unwrap();
        // The flush has to wait for this, so this cannot wait for the flush.
        let mut patience = 50_000;
        while flushed.ingested() == 0 && patience > 0 {
            patience -= 1;
            std::thread::yield_now();
        }
    }));
    let (remover, removed) = (Arc::clone(&log), name.clone());
    let (threads, thread) = std::sync::mpsc::channel();
    *watch.read.lock().unwrap() = Some(Box::new(move || {
        let remove = move || remover.commit(lease, &[Change::remove(removed)]).unwrap();
        threads.send(std::thread::spawn(remove)).unwrap();
        is_written.recv().unwrap();
    }));
    assert!(log.flush_oldest().unwrap());
    thread.recv().unwrap().join().unwrap();
    assert_eq!(log.get(Shard::ONLY, &name).unwrap(), None);
    drop(log);
    let log = open(base, &disk).unwrap();
    assert_eq!(log.get(Shard::ONLY, &name).unwrap(), None, "opened again");
}

#[test]
fn what_the_segments_before_said_outlives_them() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let log = open(base.clone(), &disk).unwrap();
    let first = log.acquire(Shard::ONLY).unwrap().lease;
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(1, 1), Change::Given(Revision(9))])
        .unwrap();
    log.seal().unwrap();
    assert!(log.flush_oldest().unwrap());
    drop(log);
    let log = open(base, &disk).unwrap();
    assert_eq!(log.recovery().frames, 0, "nothing was left to read");
    let fenced = log.commit(first, &[]);
    assert!(matches!(
        fenced,
        Err(StoreError::Fenced { ours, current, .. }) if (ours, current) == (first.fence, lease.fence)
    ));
    log.commit(lease, &[]).unwrap();
    assert_eq!(log.counts(Shard::ONLY).unwrap()[0].by_state, [1, 0, 0, 0]);
    let next = log.acquire(Shard::ONLY).unwrap();
    assert_eq!(next.last_revision, Revision(9));
    assert!(next.lease.fence > lease.fence);
}

#[test]
fn a_sound_record_in_the_place_of_another_is_found() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let lease = open(base.clone(), &disk).unwrap().acquire(Shard::ONLY);
    let lease = lease.unwrap().lease;
    let segment = "log/segment-0000000000000001";
    let before = disk.content(segment).unwrap();
    // Two commits of one shape: the record differs, and with it the checksum at its end.
    let with_payload = |byte| {
        let disk = disk.copy();
        let mut record = record(1, 1, 0);
        record.payload = vec![byte; 100];
        let log = open(base.clone(), &disk).unwrap();
        log.commit(lease, &[Change::put(record)]).unwrap();
        log.commit(lease, &[put(2, 2)]).unwrap();
        drop(log);
        disk
    };
    let (one, other) = (with_payload(1), with_payload(2));
    let (kept, mut content) = (
        one.content(segment).unwrap(),
        other.content(segment).unwrap(),
    );
    let differs = |(a, b): (&u8, &u8)| a != b;
    let frame = before.iter().zip(&kept).position(differs).unwrap() / 8 * 8;
    content[frame..frame + 4].copy_from_slice(&kept[frame..frame + 4]);
    other.set_content(segment, content);
    let refused = open(base, &other);
    assert!(
        matches!(refused, Err(StoreError::Disk(DiskError::Corrupt { .. }))),
        "{refused:?}"
    );
}

#[test]
fn a_payload_that_looks_like_a_commit_is_none() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let lease = open(base.clone(), &disk).unwrap().acquire(Shard::ONLY);
    let lease = lease.unwrap().lease;
    let segment = "log/segment-0000000000000001";
    // What two more commits would be, for somebody who can read the disk.
    let fake = disk.copy();
    let log = open(base.clone(), &fake).unwrap();
    log.commit(lease, &[put(1, 1)]).unwrap();
    let before = fake.content(segment).unwrap();
    log.commit(lease, &[put(2, 2)]).unwrap();
    let after = fake.content(segment).unwrap();
    drop(log);
    let differs = |(a, b): (&u8, &u8)| a != b;
    let from = before.iter().zip(&after).position(differs).unwrap() / 8 * 8;
    let frame = &after[from..from + 2_600];
    // It is set as a payload, wherever that begins, and then the end of the log is damaged.
    let mut payload = Vec::new();
    for shift in 0..8 {
        payload.resize(payload.len().next_multiple_of(8) + shift, 0);
        payload.extend_from_slice(frame);
    }
    let mut record = record(1, 1, 0);
    record.payload = payload;
    let log = open(base.clone(), &disk).unwrap();
    log.commit(lease, &[Change::put(record)]).unwrap();
    drop(log);
    let mut content = disk.content(segment).unwrap();
    content[from - 2_000] ^= 1;
    disk.set_content(segment, content);
    let log = open(base, &disk).unwrap();
    assert_eq!(log.counts(Shard::ONLY).unwrap(), []);
    assert!(log.recovery().torn_bytes > 20_000, "{:?}", log.recovery());
}

/// Puts a frame behind the last commit of a segment as whoever chooses payloads could have left it
/// there in an earlier life of the file. Only the nonce he does not know.
fn forge(disk: &Disk, number: u64) {
    let segment = format!("log/segment-{number:016x}");
    let mut content = disk.content(&segment).unwrap();
    let length = |at: usize| u32::from_le_bytes(content[at + 4..at + 8].try_into().unwrap());
    let mut end = 64;
    while length(end) > 0 {
        end = (end + 16 + length(end) as usize).next_multiple_of(8);
    }
    let mut frame = [100_u32.to_le_bytes(), [1; 4], [0; 4]].concat();
    frame.resize(12 + 100, 9);
    let place = [7, number, end as u64].map(u64::to_le_bytes).concat();
    let sum = crc32c::crc32c(&[place, frame.clone()].concat());
    content[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    content[end + 4..end + 4 + frame.len()].copy_from_slice(&frame);
    disk.set_content(&segment, content);
}

#[test]
fn a_payload_behind_the_last_commit_is_none() {
    let disk = Disk::default();
    let base = MemorySorted::default();
    let log = open(base.clone(), &disk).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(1, 1)]).unwrap();
    drop(log);
    forge(&disk, 1);
    let log = open(base.clone(), &disk).expect("it opens");
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(2, 2)]).unwrap();
    log.seal().unwrap();
    drop(log);
    // And in a full one, which is read once more when it is flushed.
    forge(&disk, 1);
    let log = open(base, &disk).expect("it opens");
    assert!(log.flush_oldest().unwrap());
    for number in 1..=2 {
        let kept = record(number, number, 2_000);
        assert_eq!(log.get(Shard::ONLY, &kept.name).unwrap(), Some(kept));
    }
}

#[test]
fn a_commit_that_a_full_segment_lost_is_missed() {
    let disk = Disk::default();
    let log = open(MemorySorted::default(), &disk).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    log.commit(lease, &[put(1, 1)]).unwrap();
    // It leaves no trace in what the next segment begins with.
    log.commit(lease, &[put(1, 1)]).unwrap();
    log.seal().unwrap();
    drop(log);
    let segment = "log/segment-0000000000000001";
    let mut content = disk.content(segment).unwrap();
    let frames = &content[..content.len() - 64]; // behind them is the second header
    let end = frames.iter().rposition(|&byte| byte != 0).unwrap();
    content[end - 100] ^= 1;
    disk.set_content(segment, content);
    let refused = open(MemorySorted::default(), &disk);
    assert!(
        matches!(&refused, Err(StoreError::Disk(DiskError::Corrupt { path, .. })) if path.ends_with("segment-0000000000000001")),
        "{refused:?}"
    );
}

/// Each segment that is flushed wants a copy of the counts behind it. A copy that was longer than all
/// segments that the log might have pushed itself out of the log, for ever.
#[test]
fn counts_that_fill_more_segments_than_the_log_may_have_are_not_flushed_for_ever() {
    let mut options = options();
    (options.segment_bytes, options.segments_max) = (4_096, 2);
    (options.counts_whole, options.counts_at_once) = (0, 1);
    let disk = Disk::default();
    let base = MemorySorted::default();
    let log = LogStore::open(base.clone(), files(&disk), 7, options).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    disk.bound_calls(100_000);
    let put = |log: &LogStore<_>, number: u64| {
        let queue = format!("{:0>100}", number % 100);
        let name = TimerName::new(queue, number.to_string()).unwrap();
        let change = Change::put(pending(name, number + 1, vec![7; 100]));
        log.commit(lease, &[change]).unwrap();
    };
    (0..200).for_each(|number| put(&log, number));
    let written = |log: &LogStore<_>| log.stats().commits;
    let before = written(&log);
    (200..1_000).for_each(|number| put(&log, number));
    // A copy of 100 counts is some 17,000 bytes, a commit some 400.
    let (bytes, segments) = (written(&log) - before, log.names_and_segments().1);
    assert!(bytes < 4 * 800 * 400, "{bytes} bytes for 800 commits");
    assert!((5..20).contains(&segments), "{segments} segments");
    while log.flush_oldest().unwrap() && log.names_and_segments().1 > segments / 2 {}
    drop(log);
    // The next process knows how long the copy is.
    let log = LogStore::open(base, files(&disk), 7, options).unwrap();
    disk.bound_calls(100_000);
    (1_000..1_010).for_each(|number| put(&log, number));
}
