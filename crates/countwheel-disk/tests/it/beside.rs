//! A check of a directory that a process has open.

use std::sync::atomic::{AtomicBool, Ordering};

use countwheel_disk::{DiskOptions, DiskStore, FileKind};
use countwheel_durable::TimerName;
use countwheel_durable::store::{Change, DiskError, Lease, Shard, Store, StoreError};

use crate::support::sample::pending;

fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 14;
    options.log.segment_bytes_first = 1 << 12;
    options.log.segments_kept = 1;
    options.log.segments_max = 3;
    options.tables.table_bytes = 1 << 14;
    options.tables.fan_in = 2;
    options
}

fn put(store: &DiskStore, lease: Lease, number: u64) {
    let name = TimerName::new("orders", (number % 5_000).to_string()).unwrap();
    let record = pending(name, number, number.to_le_bytes().repeat(12));
    store.commit(lease, &[Change::put(record)]).unwrap();
}

/// It was refused as locked: whoever wanted to know had to stop the service.
#[test]
fn a_check_beside_a_store_that_flushes_and_merges_finds_nothing_and_keeps_nobody_out() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), 7, options()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    let is_over = AtomicBool::new(false);
    let (mut checked, mut busy, mut read) = (0, 0, 0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::SeqCst) {
                number += 1;
                put(&store, lease, number);
            }
            number
        });
        while checked < 30 || read < 5 {
            match DiskStore::check(directory.path()) {
                Ok(report) => {
                    assert!(report.is_running);
                    assert_eq!(report.timers, None);
                    assert!(report.is_sound(), "{:?}", report.problems);
                    let is_read = |kind| report.files.iter().any(|file| file.kind == kind);
                    assert!(is_read(FileKind::Segment));
                    read += usize::from(is_read(FileKind::Table));
                    checked += 1;
                }
                Err(StoreError::Disk(DiskError::Busy { .. })) => busy += 1,
                Err(error) => panic!("{error}"),
            }
        }
        is_over.store(true, Ordering::SeqCst);
        let commits = writer.join().unwrap();
        println!("{checked} checks, {read} with tables, {busy} too busy, {commits} commits");
    });
    assert!(read > 0);
}

#[test]
fn a_check_beside_a_store_finds_what_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), 7, options()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    // Until a table is the store's, and nobody writes it any more.
    let table = (1..200_000).find_map(|number| {
        put(&store, lease, number);
        let report = number
            .is_multiple_of(500)
            .then(|| DiskStore::check(directory.path()).ok())??;
        let table = report
            .files
            .into_iter()
            .find(|file| file.kind == FileKind::Table)?;
        let mut bytes = std::fs::read(&table.path).ok()?;
        bytes[40] ^= 1;
        // Not made anew, if it was merged away just now.
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .open(&table.path)
            .ok()?;
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        table.path.exists().then_some(table.path)
    });
    let table = table.expect("a table");
    let report = DiskStore::check(directory.path()).unwrap();
    let is_it = report.problems.iter().all(|one| one.path == table);
    // Unless it was merged away before it was damaged.
    if table.exists() {
        assert!(is_it && !report.is_sound(), "{:?}", report.problems);
    }
}
