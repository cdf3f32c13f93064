//! Segments that grow with use: what a directory costs, how long its files are, and that all of it is
//! there whatever their lengths.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use countwheel_disk::simulated::Disk;
use countwheel_disk::{
    DiskOptions, DiskStore, FlushingLog, LogOptions, LogStore, MemorySorted, Sorted as _,
};
use countwheel_durable::store::{Change, DiskError, Lease, OnDisk, Shard, Store, StoreError};
use countwheel_durable::{Record, Revision, TimerName};
use countwheel_time::{Clock, SystemClock};

use crate::support::sample::pending;

const FIRST: u64 = 1 << 12;
const LAST: u64 = 1 << 16;

fn options() -> LogOptions {
    let mut options = LogOptions::default();
    (options.segment_bytes_first, options.segment_bytes) = (FIRST, LAST);
    options.segments_max = 64;
    options
}

fn open(base: &MemorySorted, disk: &Disk, options: LogOptions) -> LogStore<MemorySorted> {
    disk.restart();
    LogStore::open(base.clone(), disk.files("log"), 7, options).unwrap()
}

fn lease(log: &dyn Store) -> Lease {
    log.acquire(Shard::ONLY).unwrap().lease
}

fn record(number: u64, revision: u64, payload: usize) -> Record {
    let name = TimerName::new("queue", format!("key-{number}")).unwrap();
    pending(name, revision, vec![7; payload])
}

/// How long the files are whose names begin so, in the order of their names.
fn lengths(disk: &Disk, begins: &str) -> Vec<u64> {
    let paths = disk.paths().into_iter();
    let paths = paths.filter(|path| path.starts_with(&format!("log/{begins}")));
    let contents = paths.map(|path| disk.content(&path).unwrap().len() as u64);
    contents.collect()
}

fn spares(disk: &Disk) -> Vec<u64> {
    let mut spares = lengths(disk, "spare-");
    spares.sort_unstable();
    spares
}

/// Commits until the log has so many segments, and says how many bytes of payload that were.
fn fill(log: &LogStore<MemorySorted>, lease: Lease, segments: usize, revision: &mut u64) {
    while log.names_and_segments().1 < segments {
        *revision += 1;
        let changes = [Change::put(record(*revision, *revision, 300))];
        log.commit(lease, &changes).unwrap();
    }
}

/// Every record that was put is there.
fn assert_whole(store: &dyn Store, revisions: u64, case: &str) {
    for revision in 1..=revisions {
        let expected = record(revision, revision, 300);
        let found = store.get(Shard::ONLY, &expected.name).unwrap();
        assert_eq!(found, Some(expected), "{case}");
    }
}

/// The blocks of all that is in a directory, in bytes.
fn on_disk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(directory).unwrap();
    let sizes = entries.map(|entry| {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        let within = if metadata.is_dir() {
            on_disk(&entry.path())
        } else {
            0
        };
        within + metadata.blocks() * 512
    });
    sizes.sum()
}

/// It took 192 MiB.
#[test]
fn an_empty_directory_costs_little() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let store = DiskStore::open(directory.path(), 7, DiskOptions::default()).unwrap();
        lease(&store);
        drop(store);
    }
    let bytes = on_disk(directory.path());
    assert!((3 << 20..5 << 20).contains(&bytes), "{bytes}");
}

/// A segment for the next one, and one of twice the length for a full disk, up to the longest.
#[test]
fn segments_double_as_they_fill_and_spares_with_them() {
    for is_reopened in [false, true] {
        let (base, disk) = (MemorySorted::default(), Disk::default());
        let mut log = open(&base, &disk, options());
        let mut own = lease(&log);
        log.prepare().unwrap();
        assert_eq!(spares(&disk), [FIRST, 2 * FIRST]);
        let mut revision = 0;
        let mut len = FIRST;
        for segments in 2..=13 {
            fill(&log, own, segments, &mut revision);
            log.prepare().unwrap();
            if segments % 2 == 0 {
                len = LAST.min(2 * len);
            }
            let case = format!("{segments} segments, reopened: {is_reopened}");
            assert_eq!(spares(&disk), [len, LAST.min(2 * len)], "{case}");
            let files = log.open_files();
            assert!(files.open <= 2 + segments, "{case}");
            if is_reopened {
                drop(log);
                log = open(&base, &disk, options());
                own = lease(&log);
                assert_eq!(spares(&disk), [len, LAST.min(2 * len)], "{case}");
                assert_whole(&log, revision, &case);
            }
        }
        let expected = [1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 16, 16, 16].map(|times| times * FIRST);
        assert_eq!(lengths(&disk, "segment-"), expected);
        // Nothing was flushed: short segments count as the part of a long one that they are.
        assert_eq!(base.ingested(), 0);
        while log.flush_oldest().unwrap() {}
        // The long ones are used again.
        assert_eq!(spares(&disk), [LAST; 4]);
        assert_whole(&log, revision, "flushed");
        drop(log);
        assert_whole(&open(&base, &disk, options()), revision, "opened again");
    }
}

/// Commits that no spare has room for, right after the first opening: each is in a segment that has
/// room for another one, up to the longest that segments become.
#[test]
fn a_commit_that_is_longer_than_a_segment_is_taken_at_once() {
    for (payload, expected) in [
        (100, FIRST),
        (4_000, 4 * FIRST),
        (20_000, 16 * FIRST),
        (60_000, LAST),
        (70_000, 0),
        (1_000_000, 0),
    ] {
        let (base, disk) = (MemorySorted::default(), Disk::default());
        let log = open(&base, &disk, options());
        let own = lease(&log);
        let long = record(1, 1, payload);
        log.commit(own, &[Change::put(long.clone())]).unwrap();
        let made = *lengths(&disk, "segment-").last().unwrap();
        if expected > 0 {
            assert_eq!(made, expected, "{payload}");
        } else {
            assert!(
                made > LAST && made < 70_000.max(payload as u64) + 1_000,
                "{made}"
            );
        }
        // What is made from then on has room for one of the kind, on a full disk as well.
        log.prepare().unwrap();
        if payload < 60_000 {
            disk.set_capacity(Some(disk.used()));
            let revised = record(1, 2, payload);
            log.commit(own, &[Change::put(revised.clone())]).unwrap();
            let last = record(1, 3, payload);
            log.commit(own, &[Change::put(last)]).unwrap();
            log.commit(own, &[Change::put(revised)]).unwrap();
        }
        let found = log.get(Shard::ONLY, &long.name).unwrap();
        drop(log);
        disk.set_capacity(None);
        let log = open(&base, &disk, options());
        assert_eq!(log.get(Shard::ONLY, &long.name).unwrap(), found);
        assert!(found.is_some(), "{payload}");
    }
}

/// However much was committed before the disk is full: half of the timers can have an outcome that
/// writes the record once more, and all can be removed.
#[test]
fn a_full_disk_takes_outcomes_and_all_removals_however_far_the_segments_have_grown() {
    for segments in 1..=9 {
        for together in [1, 10] {
            let (base, disk) = (MemorySorted::default(), Disk::default());
            let log = open(&base, &disk, options());
            let own = lease(&log);
            let mut revision = 0;
            fill(&log, own, segments, &mut revision);
            log.prepare().unwrap();
            disk.set_capacity(Some(disk.used()));
            // Once somebody has found out, what is not urgent uses up the rest.
            let is_full =
                |error: &StoreError| matches!(error, StoreError::Disk(DiskError::Full { .. }));
            while log.has_room() && log.names_and_segments().1 <= segments {
                revision += 1;
                let changes = [Change::put(record(revision, revision, 300))];
                log.commit(own, &changes).unwrap();
                if let Err(error) = log.prepare() {
                    assert!(is_full(&error));
                }
            }
            assert!(!log.has_room());
            let numbers: Vec<u64> = (1..=revision).collect();
            for some in numbers[numbers.len() / 2..].chunks(together) {
                let outcome = |&number| Change::put(record(number, revision + number, 300));
                let outcomes: Vec<_> = some.iter().map(outcome).collect();
                let committed = log.commit(own, &outcomes);
                committed.unwrap_or_else(|error| panic!("{segments} {together}: {error}"));
            }
            for some in numbers.chunks(together) {
                let remove = |&number| Change::remove(record(number, 1, 0).name);
                let removals: Vec<_> = some.iter().map(remove).collect();
                log.commit(own, &removals).unwrap();
            }
            assert!(!log.has_room());
            drop(log);
            disk.set_capacity(None);
            let log = open(&base, &disk, options());
            assert!(log.counts(Shard::ONLY).unwrap().is_empty());
        }
    }
}

/// What a program has left that knew one length alone stays as long as it is, and that program opens
/// what this one has left, and goes on with its own length.
#[test]
fn a_log_of_one_length_and_one_that_grows_open_each_other() {
    let mut uniform = options();
    uniform.segment_bytes_first = LAST;
    for (case, first, second) in [
        ("uniform first", uniform, options()),
        ("growing first", options(), uniform),
    ] {
        for segments in 1..=6 {
            let (base, disk) = (MemorySorted::default(), Disk::default());
            let log = open(&base, &disk, first);
            let own = lease(&log);
            let mut revision = 0;
            fill(&log, own, segments, &mut revision);
            log.prepare().unwrap();
            drop(log);
            let before = disk.image();
            let log = open(&base, &disk, second);
            assert_whole(&log, revision, case);
            for (path, content) in disk.image() {
                if path.starts_with("log/segment-") {
                    assert_eq!(content.len(), before[&path].len(), "{case} {path}");
                }
                if path.starts_with("log/spare-") && first == uniform {
                    assert_eq!(content.len() as u64, LAST, "{case} {path}");
                }
            }
            let own = lease(&log);
            fill(&log, own, segments + 2, &mut revision);
            while log.flush_oldest().unwrap() {}
            log.prepare().unwrap();
            assert!(second != uniform || spares(&disk).iter().all(|&len| len == LAST));
            drop(log);
            let log = open(&base, &disk, first);
            assert_whole(&log, revision, case);
            log.commit(lease(&log), &[Change::Given(Revision(1))])
                .unwrap();
        }
    }
}

/// Whatever length a spare has, whoever made it so: it is used with that length, or removed.
#[test]
fn a_spare_of_any_length_does_no_harm() {
    for len in [
        0,
        1,
        100,
        FIRST - 1,
        FIRST,
        FIRST + 9,
        3 * FIRST,
        LAST,
        LAST + 1,
        4 * LAST,
    ] {
        let (base, disk) = (MemorySorted::default(), Disk::default());
        drop(open(&base, &disk, options()));
        disk.restart();
        let files = disk.files("log");
        for name in ["spare-70", "spare-71", "spare-72"] {
            files.create(name, len).unwrap().sync().unwrap();
        }
        files.sync().unwrap();
        drop(Arc::clone(&files));
        let log = open(&base, &disk, options());
        let is_used = (FIRST..=LAST).contains(&len);
        assert_eq!(spares(&disk).contains(&len), is_used, "{len}");
        let own = lease(&log);
        let mut revision = 0;
        fill(&log, own, 6, &mut revision);
        drop(log);
        assert_whole(&open(&base, &disk, options()), revision, &len.to_string());
    }
}

/// The threads find out by themselves: no commit comes that would wake one.
#[test]
fn a_log_that_finds_no_room_flushes_and_goes_on_with_shorter_segments() {
    for room in [3, 5, 7, 10, 16, 33] {
        let (base, disk) = (MemorySorted::default(), Disk::default());
        let log = open(&base, &disk, options());
        let own = lease(&log);
        disk.set_capacity(Some(disk.used() + room * FIRST));
        let log = FlushingLog::start(log).unwrap();
        let mut revision = 0;
        let clock = SystemClock::new();
        // Four times what the disk has room for.
        while revision * 300 < 4 * (room + 3) * FIRST {
            let began = clock.now();
            while !log.has_room() {
                let waited = clock.now().saturating_since(began);
                assert!(waited.as_secs() < 30, "{room}: no room after {revision}");
                std::thread::yield_now();
            }
            revision += 1;
            let changes = [Change::put(record(revision, revision, 300))];
            log.commit(own, &changes).unwrap();
        }
        assert!(base.ingested() > 0);
        assert_whole(&log, revision, "full");
    }
}
