//! The stores: all of them do what the seam says, and the one on disk survives crashes,
//! refuses damage and never starts empty by mistake.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use countwheel::Timestamp;
use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_durable::store::simulated::{Disk, Failure, Fault};
use countwheel_durable::store::{
    Change, DiskError, DueEntry, DueScan, EmbeddedStore, Filter, Lease, MemoryStore, Page,
    QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{
    Delays, DueClock, Jitter, Missed, QueueName, Record, RetryPolicy, Revision, State, TimerId,
    TimerName,
};
use redb::{ReadableDatabase as _, ReadableTable};

use crate::support::disk::{FILE, Random, crash, damage, fail_after, image};

struct Memory(MemoryStore);

impl Reopen for Memory {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn reopen(&mut self) {
        self.0 = self.0.clone();
    }
}

#[test]
fn the_memory_store_conforms() {
    conformance::check(|| Box::new(Memory(MemoryStore::new(7))));
}

struct InDirectory {
    store: Option<EmbeddedStore>,
    directory: tempfile::TempDir,
}

impl InDirectory {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut made = Self {
            store: None,
            directory,
        };
        made.reopen();
        made
    }
}

impl Reopen for InDirectory {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(EmbeddedStore::open(self.directory.path(), 7).unwrap());
    }
}

#[test]
fn the_embedded_store_conforms_in_a_directory() {
    conformance::check(|| Box::new(InDirectory::new()));
}

struct OnDisk {
    store: Option<EmbeddedStore>,
    disk: Disk,
}

impl Reopen for OnDisk {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(EmbeddedStore::open_backend(self.disk.backend(FILE), 7).unwrap());
    }
}

#[test]
fn the_embedded_store_conforms_on_a_simulated_disk() {
    conformance::check(|| {
        let mut made = OnDisk {
            store: None,
            disk: Disk::default(),
        };
        made.reopen();
        Box::new(made)
    });
}

// ---- the directory ----

#[test]
fn a_new_directory_is_made_as_documented() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/b");
    let store = EmbeddedStore::open(&directory, 0xfeed).unwrap();
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["FORMAT", "LOCK", "timers.redb"]);
    assert_eq!(
        fs::read_to_string(directory.join("FORMAT")).unwrap(),
        "countwheel data directory\nformat 1\nstore 000000000000feed\nstate ready\n"
    );
    drop(store);
    let store = EmbeddedStore::open(&directory, 0xbeef).unwrap();
    assert_eq!(store.acquire(Shard::ONLY).unwrap().store_id, 0xfeed);
}

#[test]
fn a_second_opening_is_refused_while_the_first_lives() {
    let directory = tempfile::tempdir().unwrap();
    let first = EmbeddedStore::open(directory.path(), 1).unwrap();
    let second = EmbeddedStore::open(directory.path(), 2);
    assert!(
        matches!(&second, Err(StoreError::Disk(DiskError::Locked { path })) if path == directory.path()),
        "{second:?}"
    );
    first.acquire(Shard::ONLY).unwrap();
    drop(first);
    EmbeddedStore::open(directory.path(), 2).unwrap();
}

#[cfg(unix)]
#[test]
fn a_directory_whose_name_is_no_utf_8_works() {
    use std::os::unix::ffi::OsStrExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join(OsStr::from_bytes(b"d\xff\xfe"));
    let lease = own(&EmbeddedStore::open(&directory, 1).unwrap());
    let store = EmbeddedStore::open(&directory, 2).unwrap();
    store.commit(lease, &[]).unwrap();
    drop(store);
    fs::write(directory.join("FORMAT"), "x").unwrap();
    let refused = EmbeddedStore::open(&directory, 2).unwrap_err();
    assert!(refused.to_string().contains('d'), "{refused}");
}

/// A directory with a store of one record, closed.
fn directory_with_a_store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), 0xfeed).unwrap();
    let lease = own(&store);
    store
        .commit(lease, &[put(record("q", "kept", 1, 5))])
        .unwrap();
    directory
}

fn assert_kept(directory: &Path) {
    let store = EmbeddedStore::open(directory, 1).unwrap();
    assert_eq!(store.acquire(Shard::ONLY).unwrap().store_id, 0xfeed);
    let name = TimerName::new("q", "kept").unwrap();
    assert_eq!(
        store.get(Shard::ONLY, &name).unwrap(),
        Some(record("q", "kept", 1, 5))
    );
}

/// Every file of the directory with its content.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_creation_that_ended_anywhere_is_done_again() {
    let creating = "countwheel data directory\nformat 1\nstore 0000000000000009\nstate creating\n";
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("LOCK", "")],
        &[("LOCK", ""), ("FORMAT.new", "countwheel da")],
        &[("LOCK", ""), ("FORMAT", creating)],
        &[("LOCK", ""), ("FORMAT", creating), ("timers.redb", "")],
        &[
            ("LOCK", ""),
            ("FORMAT", creating),
            ("timers.redb", "redb, half made"),
            ("FORMAT.new", "countwheel da"),
        ],
    ];
    for files in cases {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let store = EmbeddedStore::open(directory.path(), 0xfeed).unwrap();
        assert_eq!(store.acquire(Shard::ONLY).unwrap().store_id, 0xfeed);
        drop(store);
        let format = fs::read_to_string(directory.path().join("FORMAT")).unwrap();
        assert!(
            format.contains("store 000000000000feed\nstate ready"),
            "{format}"
        );
    }
}

#[test]
fn a_temporary_file_left_behind_does_not_hurt() {
    let directory = directory_with_a_store();
    fs::write(directory.path().join("FORMAT.new"), "half").unwrap();
    assert_kept(directory.path());
}

#[test]
fn a_strangers_directory_is_refused_and_not_touched() {
    for name in ["notes.txt", "timers.redb", "timers.db"] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), "mine").unwrap();
        let before = contents(directory.path());
        let refused = EmbeddedStore::open(directory.path(), 1).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Disk(DiskError::NotAStore { .. })),
            "{refused}"
        );
        assert!(refused.to_string().contains(name), "{refused}");
        assert_eq!(contents(directory.path()), before);
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("FORMAT"), "of something else\n").unwrap();
    let before = contents(directory.path());
    let refused = EmbeddedStore::open(directory.path(), 1).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    assert_eq!(contents(directory.path()), before);
}

#[test]
fn a_store_that_lost_its_format_file_is_not_taken_for_empty() {
    let directory = directory_with_a_store();
    let format = fs::read(directory.path().join("FORMAT")).unwrap();
    fs::remove_file(directory.path().join("FORMAT")).unwrap();
    let refused = EmbeddedStore::open(directory.path(), 1).unwrap_err();
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    fs::write(directory.path().join("FORMAT"), format).unwrap();
    assert_kept(directory.path());
}

#[test]
fn a_store_that_lost_its_database_is_not_taken_for_empty() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil); 3] = [
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("empty", |path| fs::write(path, "").unwrap()),
        ("not a redb database", |path| {
            fs::write(path, "x".repeat(9_000)).unwrap();
        }),
    ];
    for (problem, spoil) in cases {
        let directory = directory_with_a_store();
        let path = directory.path().join("timers.redb");
        let kept = fs::read(&path).unwrap();
        spoil(&path);
        let before = contents(directory.path());
        for _ in 0..2 {
            let refused = EmbeddedStore::open(directory.path(), 1).unwrap_err();
            assert!(
                matches!(&refused, StoreError::Disk(DiskError::Corrupt { path, .. }) if path.ends_with("timers.redb")),
                "{refused}"
            );
            let text = refused.to_string().to_lowercase();
            assert!(text.contains(problem), "{text}");
        }
        assert_eq!(contents(directory.path()), before);
        fs::write(&path, kept).unwrap();
        assert_kept(directory.path());
    }
}

#[test]
fn a_database_of_another_store_is_refused() {
    let (ours, other) = (directory_with_a_store(), tempfile::tempdir().unwrap());
    drop(EmbeddedStore::open(other.path(), 0xbad).unwrap());
    fs::copy(
        other.path().join("timers.redb"),
        ours.path().join("timers.redb"),
    )
    .unwrap();
    let before = contents(ours.path());
    let refused = EmbeddedStore::open(ours.path(), 1).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Disk(DiskError::NotAStore { path, .. }) if path.ends_with("timers.redb")),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("0000000000000bad"),
        "{refused}"
    );
    assert_eq!(contents(ours.path()), before);
}

#[test]
fn a_later_format_is_refused() {
    let directory = directory_with_a_store();
    let path = directory.path().join("FORMAT");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("format 1", "format 4") + "more of it\n").unwrap();
    let refused = EmbeddedStore::open(directory.path(), 1).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("later version"), "{refused}");
    fs::write(&path, text).unwrap();
    assert_kept(directory.path());
}

#[test]
fn a_database_of_a_later_version_is_refused() {
    let directory = directory_with_a_store();
    let path = directory.path().join("timers.redb");
    let kept = fs::read(&path).unwrap();
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    transaction
        .open_table(meta)
        .unwrap()
        .insert("format", 3)
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let refused = EmbeddedStore::open(directory.path(), 1).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("later version"), "{refused}");
    fs::write(&path, kept).unwrap();
    assert_kept(directory.path());
}

/// The tables of the version before become those of this one with the first thing that is written.
#[test]
fn a_database_of_the_version_before_is_raised_when_it_is_written() {
    let directory = directory_with_a_store();
    let path = directory.path().join("timers.redb");
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut table = transaction.open_table(meta).unwrap();
    assert_eq!(table.insert("format", 1).unwrap().unwrap().value(), 2);
    drop(table);
    transaction.commit().unwrap();
    drop(database);
    let format = || {
        let database = redb::Database::open(&path).unwrap();
        let table = database.begin_read().unwrap().open_table(meta).unwrap();
        table.get("format").unwrap().unwrap().value()
    };
    drop(EmbeddedStore::open(directory.path(), 1).unwrap());
    assert_eq!(format(), 1);
    assert_kept(directory.path()); // takes the shard
    assert_eq!(format(), 2);
}

#[test]
fn a_record_that_does_not_check_out_is_refused_by_name() {
    let directory = directory_with_a_store();
    let database = redb::Database::open(directory.path().join("timers.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let timers = redb::TableDefinition::<&[u8], &[u8]>::new("timers");
        let mut timers = transaction.open_table(timers).unwrap();
        let mut bytes = timers
            .get(&b"\0\0q\0kept"[..])
            .unwrap()
            .unwrap()
            .value()
            .to_vec();
        bytes[20] ^= 1;
        timers
            .insert(&b"\0\0q\0kept"[..], bytes.as_slice())
            .unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    let store = EmbeddedStore::open(directory.path(), 1).unwrap();
    let name = TimerName::new("q", "kept").unwrap();
    let refused = store.get(Shard::ONLY, &name).unwrap_err();
    assert!(
        matches!(&refused, StoreError::Disk(DiskError::Corrupt { .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("q/kept"), "{refused}");
    let queue = QueueName::new("q").unwrap();
    assert!(store.list(Shard::ONLY, &Filter::queue(queue)).is_err());
    // What cannot be read cannot be replaced either: its places in the indexes are unknown.
    let lease = own(&store);
    assert!(
        store
            .commit(lease, &[put(record("q", "kept", 2, 5))])
            .is_err()
    );
}

#[test]
fn what_cannot_be_opened_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let io_at = |directory: &Path, named: &Path| {
        let refused = EmbeddedStore::open(directory, 1).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Disk(DiskError::Io { path, .. }) if path == named),
            "{refused:?} does not name {}",
            named.display()
        );
    };
    io_at(&file, &file);
    io_at(&file.join("below"), &file.join("below"));
    io_at(Path::new(""), Path::new(""));
    for name in ["LOCK", "FORMAT", "timers.redb"] {
        let directory = directory_with_a_store();
        let path = directory.path().join(name);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        io_at(directory.path(), &path);
    }
}

// ---- failures while open ----

#[test]
fn after_a_failed_commit_nothing_more_is_written() {
    for panics in [false, true] {
        let disk = Disk::default();
        let store = EmbeddedStore::open_backend(disk.backend(FILE), 1).unwrap();
        let lease = own(&store);
        store
            .commit(lease, &[put(record("q", "before", 1, 1))])
            .unwrap();
        if panics {
            disk.fail(Fault {
                failure: Failure::Panic,
                ..Fault::power(0)
            });
        } else {
            fail_after(&disk, 0);
        }
        let failed = store
            .commit(lease, &[put(record("q", "during", 2, 2))])
            .unwrap_err();
        match panics {
            false => assert!(
                matches!(failed, StoreError::Disk(DiskError::Io { .. })),
                "{failed}"
            ),
            true => assert!(
                matches!(failed, StoreError::Disk(DiskError::Corrupt { .. })),
                "{failed}"
            ),
        }
        disk.heal();
        let later = [put(record("q", "after", 3, 3))];
        for changes in [&later[..], &[]] {
            let refused = store.commit(lease, changes);
            assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");
        }
        let refused = store.acquire(Shard::ONLY);
        assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");
        drop(store);
        let store = EmbeddedStore::open_backend(crash(&disk, 1).backend(FILE), 1).unwrap();
        let found = |key| {
            store
                .get(Shard::ONLY, &TimerName::new("q", key).unwrap())
                .unwrap()
        };
        assert!(found("before").is_some());
        assert_eq!(found("after"), None);
    }
}

#[test]
fn being_fenced_out_does_not_end_the_opening() {
    let store = EmbeddedStore::open_backend(Disk::default().backend(FILE), 1).unwrap();
    let old = own(&store);
    let new = own(&store);
    let changes = [put(record("q", "a", 1, 1))];
    assert!(matches!(
        store.commit(old, &changes),
        Err(StoreError::Fenced { .. })
    ));
    store.commit(new, &changes).unwrap();
}

// ---- crashes ----

/// Everything that a store answers.
#[derive(Clone, PartialEq, Debug)]
struct Answers {
    due: Vec<DueEntry>,
    pages: Vec<Page>,
    counts: Vec<QueueCounts>,
}

fn answers(store: &dyn Store) -> Result<Answers, StoreError> {
    let counts = store.counts(Shard::ONLY)?;
    let mut pages = Vec::new();
    for QueueCounts { queue, .. } in &counts {
        let mut filter = Filter::queue(queue.clone());
        filter.limit = usize::MAX;
        pages.push(store.list(Shard::ONLY, &filter)?);
    }
    for record in pages.iter().flat_map(|page| &page.records) {
        let found = store.get(Shard::ONLY, &record.name)?;
        assert_eq!(found.as_ref(), Some(record), "two answers about one timer");
    }
    Ok(Answers {
        due: store
            .due(Shard::ONLY, &DueScan::all(DueClock::Wall))?
            .entries,
        pages,
        counts,
    })
}

/// Thirty batches: small and large, with puts that move and replace, and removes.
fn workload() -> Vec<Vec<Change>> {
    let mut random = Random::new(5);
    let mut revision = 0;
    let mut change = |random: &mut Random| {
        let (queue, key) = (
            ["a", "b"][random.index(2)],
            format!("k{}", random.index(40)),
        );
        if random.index(4) == 0 {
            return Change::remove(TimerName::new(queue, key).unwrap());
        }
        revision += 1;
        let mut record = record(queue, &key, revision, random.index(100) as u64);
        record.payload = vec![random.byte(); [0, 200, 3_000, 20_000][random.index(4)]];
        if random.index(3) == 0 {
            record.state = State::Delivering;
        }
        put(record)
    };
    (0..30)
        .map(|_| {
            let size = [1, 2, 8, 30][random.index(4)];
            (0..size).map(|_| change(&mut random)).collect()
        })
        .collect()
}

/// What a run had been promised when its disk went away.
struct Promised<'a> {
    acknowledged: &'a Answers,
    /// With the commit on top that got no answer, if there was one.
    in_flight: Option<&'a Answers>,
    fence: u64,
}

impl Promised<'_> {
    fn assert_kept(&self, disk: &Disk, when: &str) {
        let store = EmbeddedStore::open_backend(disk.backend(FILE), 1)
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        let found = answers(&store).unwrap();
        assert!(
            found == *self.acknowledged || Some(&found) == self.in_flight,
            "{when}: neither what was acknowledged nor one batch more"
        );
        // And it goes on from there.
        let ownership = store.acquire(Shard::ONLY).unwrap();
        assert!(
            ownership.lease.fence.0 > self.fence,
            "{when}: the fence went back"
        );
        let more = put(record("c", "more", u64::MAX, 1));
        store.commit(ownership.lease, &[more]).unwrap();
        drop(store);
        let store = EmbeddedStore::open_backend(disk.backend(FILE), 1).unwrap();
        assert_eq!(
            store.counts(Shard::ONLY).unwrap().len(),
            found.counts.len() + 1
        );
    }
}

/// What a store answers after each number of batches.
fn expected_answers(batches: &[Vec<Change>]) -> Vec<Answers> {
    let memory = MemoryStore::new(1);
    let lease = own(&memory);
    let mut expected = vec![answers(&memory).unwrap()];
    for batch in batches {
        memory.commit(lease, batch).unwrap();
        expected.push(answers(&memory).unwrap());
    }
    expected
}

/// Runs the workload until the disk goes away, which it may never do.
fn run<'a>(disk: &Disk, batches: &[Vec<Change>], expected: &'a [Answers]) -> Promised<'a> {
    let mut promised = Promised {
        acknowledged: &expected[0],
        in_flight: None,
        fence: 0,
    };
    let Ok(store) = EmbeddedStore::open_backend(disk.backend(FILE), 1) else {
        return promised;
    };
    let mut lease = None;
    for (i, batch) in batches.iter().enumerate() {
        // Once at the start, and once more in between.
        if i % 15 == 0 {
            let Ok(ownership) = store.acquire(Shard::ONLY) else {
                return promised;
            };
            promised.fence = ownership.lease.fence.0;
            lease = Some(ownership.lease);
        }
        if store.commit(lease.unwrap(), batch).is_err() {
            promised.in_flight = Some(&expected[i + 1]);
            return promised;
        }
        promised.acknowledged = &expected[i + 1];
    }
    promised
}

/// Power is lost at each call to the disk in turn. Of what was not synced, some sectors are
/// there and some are not, each as any of its writes left it.
#[test]
fn every_acknowledged_commit_survives_a_crash_at_any_point() {
    let batches = workload();
    let expected = expected_answers(&batches);
    let disk = Disk::default();
    drop(EmbeddedStore::open_backend(disk.backend(FILE), 1).unwrap());
    let made = crash(&disk, 0);
    let (mut crashes, mut in_flight_found) = (0, 0);
    for cut in 0.. {
        let disk = made.copy();
        fail_after(&disk, cut);
        let promised = run(&disk, &batches, &expected);
        for seed in 0..3 {
            let when = format!("cut at call {cut}, seed {seed}");
            let after = crash(&disk, seed);
            crashes += 1;
            if let Some(in_flight) = promised.in_flight {
                let store = EmbeddedStore::open_backend(after.copy().backend(FILE), 1).unwrap();
                in_flight_found += usize::from(answers(&store).unwrap() == *in_flight);
            }
            // Once more, during the recovery.
            let again = after.copy();
            fail_after(&again, Random::new(cut * 3 + seed).index(12) as u64);
            drop(EmbeddedStore::open_backend(again.backend(FILE), 1));
            promised.assert_kept(&crash(&again, seed), &format!("{when}, twice"));
            promised.assert_kept(&after, &when);
        }
        if disk.struck() == 0 {
            assert!(cut > 100, "the disk was called only {cut} times");
            assert_eq!(promised.acknowledged.counts.len(), 2);
            println!("{crashes} crashes at {cut} calls; {in_flight_found} kept the last batch");
            return;
        }
    }
}

/// A disk that goes away while a store is made holds a store, nothing, or is refused.
#[test]
fn a_crash_while_a_store_is_made_is_no_panic() {
    for cut in 0.. {
        let disk = Disk::default();
        fail_after(&disk, cut);
        let made = EmbeddedStore::open_backend(disk.backend(FILE), 1).map(drop);
        for seed in 0..4 {
            match EmbeddedStore::open_backend(crash(&disk, seed).backend(FILE), 2) {
                Ok(store) => drop(own(&store)),
                Err(error) => {
                    assert!(made.is_err(), "a store that was made is kept: {error}");
                    assert!(
                        matches!(
                            error,
                            StoreError::Disk(
                                DiskError::Corrupt { .. } | DiskError::NotAStore { .. }
                            )
                        ),
                        "{error}"
                    );
                }
            }
        }
        if disk.struck() == 0 {
            return;
        }
    }
}

// ---- damage ----

/// A store of 2,000 records, and what it answers. Closed, or as a crash leaves it.
fn disk_to_damage(closed: bool) -> (Disk, Answers, Answers) {
    let disk = Disk::default();
    let store = EmbeddedStore::open_backend(disk.backend(FILE), 1).unwrap();
    let lease = own(&store);
    let mut random = Random::new(9);
    let changes: Vec<_> = (1..=2_000)
        .map(|revision| {
            let queue = ["a", "b", "c"][random.index(3)];
            let due = random.index(1_000) as u64;
            let mut record = record(queue, &format!("key-{revision}"), revision, due);
            record.payload = (0..random.index(400)).map(|_| random.byte()).collect();
            put(record)
        })
        .collect();
    let (last, rest) = changes.split_last().unwrap();
    for batch in rest.chunks(100) {
        store.commit(lease, batch).unwrap();
    }
    let before = answers(&store).unwrap();
    store.commit(lease, std::slice::from_ref(last)).unwrap();
    let all = answers(&store).unwrap();
    let unclean = crash(&disk, 0);
    drop(store);
    let left = if closed { disk } else { unclean };
    (left, before, all)
}

#[test]
fn damage_is_refused_or_harmless() {
    const SEEDS: u64 = 512;
    for closed in [true, false] {
        let (disk, before, all) = disk_to_damage(closed);
        let (mut harmless, mut at_open, mut later, mut rolled_back) = (0, 0, 0, 0);
        for seed in 0..SEEDS {
            let damaged = disk.copy();
            let what = damage(&damaged, &mut Random::new(seed));
            let before_opening = image(&damaged);
            match EmbeddedStore::open_backend(damaged.backend(FILE), 1) {
                Err(StoreError::Disk(DiskError::Corrupt { .. })) => {
                    at_open += 1;
                    assert!(
                        image(&damaged) == before_opening,
                        "{what} (seed {seed}): changed"
                    );
                }
                Err(error) => panic!("{what} (seed {seed}): {error}"),
                Ok(store) => match answers(&store) {
                    Ok(found) if found == all => harmless += 1,
                    // The price of a commit with one sync: see `EmbeddedStore`.
                    Ok(found) if found == before && !closed => rolled_back += 1,
                    Ok(_) => panic!("{what} (seed {seed}): a wrong answer"),
                    Err(StoreError::Disk(DiskError::Corrupt { .. })) => later += 1,
                    Err(error) => panic!("{what} (seed {seed}): {error}"),
                },
            }
        }
        println!(
            "closed {closed}: of {SEEDS}, {at_open} refused at open, {later} later, \
             {harmless} harmless, {rolled_back} without the last commit"
        );
        assert!(at_open > 0 && harmless > 0);
        assert_eq!(later, 0, "opening checks everything");
    }
}

/// The same through a file, where lengths and errors are the system's.
#[test]
fn a_damaged_file_is_refused_or_harmless() {
    let (disk, _, all) = disk_to_damage(true);
    let directory = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(directory.path(), 1).unwrap());
    let path = directory.path().join("timers.redb");
    let mut refused = 0;
    for seed in 1_000..1_064 {
        let damaged = disk.copy();
        let what = damage(&damaged, &mut Random::new(seed));
        fs::write(&path, image(&damaged)).unwrap();
        match EmbeddedStore::open(directory.path(), 1) {
            Ok(store) => assert_eq!(answers(&store).unwrap(), all, "{what} (seed {seed})"),
            Err(StoreError::Disk(DiskError::Corrupt { path: named, .. })) => {
                refused += 1;
                assert_eq!(named, path);
                assert!(
                    fs::read(&path).unwrap() == image(&damaged),
                    "{what}: changed"
                );
            }
            Err(error) => panic!("{what} (seed {seed}): {error}"),
        }
    }
    assert!(refused > 0);
}

fn own(store: &dyn Store) -> Lease {
    store.acquire(Shard::ONLY).unwrap().lease
}

fn put(record: Record) -> Change {
    Change::put(record)
}

/// A pending timer.
fn record(queue: &str, key: &str, revision: u64, due: u64) -> Record {
    Record {
        name: TimerName::new(queue, key).unwrap(),
        id: TimerId {
            store: 0xfeed,
            set: Revision(revision),
        },
        revision: Revision(revision),
        state: State::Pending,
        created: Timestamp::from_micros(due),
        due: Timestamp::from_micros(due),
        clock: DueClock::Wall,
        missed: Missed::Fire,
        recurring: None,
        first_due: Timestamp::from_micros(due),
        policy: RetryPolicy {
            delays: Delays::Fixed(Duration::from_secs(1)),
            jitter: Jitter::None,
            max_attempts: None,
            max_age: None,
        },
        failures: 0,
        interruptions: 0,
        attempt: 0,
        attempts: Vec::new(),
        payload: Vec::new(),
    }
}
