//! The store of the program: its directory, and its parts together.

use std::fs;
use std::path::{Path, PathBuf};

use countwheel_disk::unchanged::unchanged;
use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::conformance::{self, Reopen};
use countwheel_durable::store::{Change, DiskError, Filter, OnDisk, Shard, Store, StoreError};
use countwheel_durable::{QueueName, Record, TimerName, TroubleReason};

use crate::support::sample::pending;

/// Segments and tables that are full soon.
fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 14;
    options.tables.table_bytes = 1 << 14;
    options
}

fn open(directory: &Path) -> Result<DiskStore, StoreError> {
    DiskStore::open(directory, 7, options())
}

/// Why an opening is refused, which has to leave the directory as it is.
fn refusal(directory: &Path) -> StoreError {
    unchanged(directory, || open(directory))
        .unwrap()
        .unwrap_err()
}

fn record(number: u64) -> Record {
    let name = TimerName::new("queue", format!("key-{number}")).unwrap();
    pending(name, number, vec![7; 300])
}

struct Reopened {
    directory: tempfile::TempDir,
    store: Option<DiskStore>,
}

impl Reopen for Reopened {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(open(self.directory.path()).unwrap());
    }
}

#[test]
fn it_conforms() {
    conformance::check(|| {
        let mut made = Reopened {
            directory: tempfile::tempdir().unwrap(),
            store: None,
        };
        made.reopen();
        Box::new(made)
    });
}

#[test]
fn what_was_flushed_to_the_tables_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    for number in 1..500 {
        store.commit(lease, &[Change::put(record(number))]).unwrap();
    }
    for number in 1..490 {
        let name = record(number).name;
        store.commit(lease, &[Change::remove(name)]).unwrap();
    }
    drop(store);
    assert!(
        fs::read_dir(directory.path().join("tables"))
            .unwrap()
            .count()
            > 1
    );
    let store = open(directory.path()).unwrap();
    assert!(store.recovery().frames < 900, "most of it was taken in");
    let mut filter = Filter::queue(QueueName::new("queue").unwrap());
    filter.limit = 1_000;
    let listed = store.list(Shard::ONLY, &filter).unwrap().records;
    assert_eq!(listed, (490..500).map(record).collect::<Vec<_>>());
    let counts = store.counts(Shard::ONLY).unwrap();
    assert_eq!(counts[0].by_state, [10, 0, 0, 0]);
    assert_eq!(store.failure(), None);
}

#[test]
fn a_store_without_its_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    fs::remove_dir_all(directory.path().join("log")).unwrap();
    let refused = refusal(directory.path());
    assert!(
        matches!(refused, StoreError::Disk(DiskError::Corrupt { .. })),
        "{refused}"
    );
}

#[test]
fn a_store_that_lost_files_or_the_ends_of_files_does_not_begin_anew() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    store.commit(lease, &[Change::put(record(1))]).unwrap();
    drop(store);
    let segment = directory.path().join("log/segment-0000000000000001");
    for path in [segment.clone(), directory.path().join("tables/manifest")] {
        let sound = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let refused = refusal(directory.path());
        assert!(
            matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
            "{refused}"
        );
        fs::write(&path, sound).unwrap();
    }
    let sound = fs::read(&segment).unwrap();
    for len in [sound.len() - 1, sound.len() / 2, 64, 63, 0] {
        fs::write(&segment, &sound[..len]).unwrap();
        let refused = refusal(directory.path());
        assert!(
            matches!(refused, StoreError::Disk(DiskError::Corrupt { .. })),
            "{refused}"
        );
    }
    fs::write(&segment, sound).unwrap();
    let store = open(directory.path()).unwrap();
    let found = store.get(Shard::ONLY, &record(1).name).unwrap();
    assert_eq!(found, Some(record(1)));
}

/// A `FORMAT` that was damaged while the store was open was found by the next start, which then was
/// refused.
#[test]
fn a_scrub_reads_what_the_directory_says_of_itself() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    let round = || {
        while !store.scrub_step(1 << 20).ended {}
        let troubles = store.troubles().into_iter();
        let found = troubles.filter(|one| one.reason == TroubleReason::Scrub);
        found.filter_map(|one| one.path).collect::<Vec<_>>()
    };
    let at = |name: &str| directory.path().join(name);
    assert_eq!(round(), Vec::<PathBuf>::new());
    let sound = fs::read(at("FORMAT")).unwrap();
    for place in 0..sound.len() {
        let mut damaged = sound.clone();
        damaged[place] ^= 1;
        fs::write(at("FORMAT"), &damaged).unwrap();
        assert_eq!(round(), [at("FORMAT")], "{place}");
        fs::write(at("FORMAT"), &sound).unwrap();
        // What a round found is told until another round was through.
        round();
        assert_eq!(round(), Vec::<PathBuf>::new());
    }
    for damaged in [&b""[..], &sound[..20]] {
        fs::write(at("FORMAT"), damaged).unwrap();
        assert_eq!(round(), [at("FORMAT")]);
    }
    fs::remove_file(at("FORMAT")).unwrap();
    assert_eq!(round(), [at("FORMAT")]);
    fs::write(at("FORMAT"), &sound).unwrap();
    // A start takes this for a snapshot.
    fs::write(at("SNAPSHOT"), b"").unwrap();
    round();
    assert_eq!(round(), [at("SNAPSHOT")]);
    assert!(
        fs::read(at("FORMAT")).unwrap() == sound,
        "a scrub writes nothing"
    );
}

#[test]
fn two_stores_that_name_no_id_give_different_timer_ids() {
    let ids = [(); 2].map(|()| {
        let directory = tempfile::tempdir().unwrap();
        let timers = countwheel_disk::open(directory.path(), |_| ()).unwrap();
        let hour = std::time::Duration::from_secs(3_600);
        let id = timers.set("q/a", hour, "").unwrap().id;
        drop(timers);
        let again = countwheel_disk::open(directory.path(), |_| ()).unwrap();
        assert_eq!(again.get("q/a").unwrap().unwrap().id, id);
        id
    });
    assert_ne!(ids[0], ids[1]);
}
