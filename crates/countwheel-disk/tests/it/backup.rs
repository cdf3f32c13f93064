//! Snapshots of a store that goes on, and stores that are made of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Change, DiskError, Shard, Snapshot, Store, StoreError};
use countwheel_durable::{Record, Setting, SettingName, Settings, SettingsVersion, TimerName};

use crate::support::content::{content, files_of};
use crate::support::sample::pending;

const STORE: u64 = 7;

fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 14;
    options.log.segment_bytes_first = 1 << 12;
    options.log.segments_kept = 2;
    options.tables.table_bytes = 1 << 14;
    options.tables.fan_in = 3;
    options
}

fn record(number: u64) -> Record {
    let name = TimerName::new("queue", format!("key-{}", number * 7 % 300)).unwrap();
    pending(name, number, vec![7; 200])
}

fn setting_name(number: u64) -> SettingName {
    SettingName::new(format!("setting-{}", number % 7)).unwrap()
}

/// The commit of this number: two records, one that goes, and a setting, which may go.
fn changes(number: u64) -> Vec<Change> {
    vec![
        Change::Setting(Setting {
            name: setting_name(number),
            value: (!number.is_multiple_of(5)).then(|| number.to_le_bytes().to_vec()),
        }),
        Change::put(record(2 * number)),
        Change::put(record(2 * number + 1)),
        Change::remove(record(number / 2 + 3).name),
    ]
}

/// What is there after so many commits.
fn after(commits: u64) -> BTreeMap<TimerName, Record> {
    let mut now = BTreeMap::new();
    for change in (1..=commits).flat_map(changes) {
        match change {
            Change::Put { record, .. } => drop(now.insert(record.name.clone(), *record)),
            Change::Remove { name, .. } => drop(now.remove(&name)),
            Change::Given(_) | Change::Clock(_) | Change::Setting(_) => {}
        }
    }
    now
}

/// Which settings are there after so many commits, each with the commit that made it so.
fn settings_after(commits: u64) -> BTreeMap<SettingName, SettingsVersion> {
    let mut now = BTreeMap::new();
    for number in 1..=commits {
        match number % 5 {
            0 => drop(now.remove(&setting_name(number))),
            _ => drop(now.insert(setting_name(number), SettingsVersion(number))),
        }
    }
    now
}

fn settings(store: &DiskStore) -> Settings {
    let settings = store.settings(SettingsVersion::default()).unwrap();
    settings.unwrap_or_default()
}

/// The same of a store, whose values say the commit as well.
fn settings_of(store: &DiskStore) -> BTreeMap<SettingName, SettingsVersion> {
    let settings = settings(store);
    let settings = settings.iter().map(|(name, value)| {
        assert_eq!(value.value, value.version.0.to_le_bytes());
        (name.clone(), value.version)
    });
    settings.collect()
}

/// A store with so many commits behind that of its owner, and a snapshot of it.
fn with_snapshot(directory: &Path, commits: u64) -> (DiskStore, Snapshot) {
    let store = DiskStore::open(&directory.join("data"), STORE, options()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    for number in 1..=commits {
        store.commit(lease, &changes(number)).unwrap();
    }
    let snapshot = store.snapshot(&directory.join("snapshot")).unwrap();
    (store, snapshot)
}

#[test]
fn snapshots_of_a_store_at_work_are_each_what_it_was_after_one_commit() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: String| directory.path().join(name);
    let store = DiskStore::open(&at("data".to_owned()), STORE, options()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    for number in 1..=150 {
        store.commit(lease, &changes(number)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let (committed, seen) = mpsc::channel();
    let snapshots: Vec<Snapshot> = std::thread::scope(|scope| {
        let (stop, store) = (&stop, &store);
        scope.spawn(move || {
            let mut number = 151;
            while !stop.load(Ordering::Relaxed) {
                store.commit(lease, &changes(number)).unwrap();
                committed.send(number).unwrap_or_default();
                number += 1;
            }
        });
        let snapshots = (0..6).map(|n| {
            // Some commits were made since the one before, and more are made meanwhile.
            seen.try_iter().for_each(drop);
            seen.iter().take(2).for_each(drop);
            store.snapshot(&at(format!("snapshot-{n}"))).unwrap()
        });
        let snapshots = snapshots.collect();
        stop.store(true, Ordering::Relaxed);
        snapshots
    });
    drop(store);
    assert!(snapshots.is_sorted_by(|a, b| a.commit < b.commit));
    for (n, snapshot) in snapshots.iter().enumerate() {
        let path = at(format!("snapshot-{n}"));
        let before = files_of(&path);
        let report = DiskStore::verify(&path).unwrap();
        assert_eq!(report.problems, []);
        let restored = DiskStore::restore(&path, &at(format!("restored-{n}")), options());
        // The first commit is the owner's.
        let restored = restored.unwrap();
        assert_eq!(content(&restored), after(snapshot.commit - 1));
        assert_eq!(settings_of(&restored), settings_after(snapshot.commit - 1));
        assert!(files_of(&path) == before, "the snapshot was changed");
    }
    let last = snapshots.last().unwrap();
    assert!(last.copied < last.bytes, "no table was linked: {last:?}");
}

#[test]
fn what_is_restored_goes_on_above_everything_that_was_given_after_the_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let (store, snapshot) = with_snapshot(directory.path(), 40);
    assert_eq!(snapshot.commit, 41);
    let mut lease = store.acquire(Shard::ONLY).unwrap().lease;
    for number in 41..=60 {
        store.commit(lease, &changes(number)).unwrap();
        lease = store.acquire(Shard::ONLY).unwrap().lease;
    }
    drop(store);
    let into = directory.path().join("restored");
    let snapshot = directory.path().join("snapshot");
    // A repair of a snapshot as well: nothing is damaged, and yet its store has gone on.
    let repaired = directory.path().join("repaired");
    DiskStore::repair(&snapshot, &repaired, options(), &mut |_| Ok(())).unwrap();
    let repaired = DiskStore::open(&repaired, 0, options()).unwrap();
    let known = repaired.acquire(Shard::ONLY).unwrap();
    assert!(known.last_revision.0 > record(121).revision.0 + (1 << 39));
    assert!(known.lease.fence.0 > lease.fence.0 + (1 << 31));
    assert!(settings(&repaired).version().0 > 60 + (1 << 39));
    assert_eq!(settings_of(&repaired), settings_after(40));
    let restored = DiskStore::restore(&snapshot, &into, options()).unwrap();
    let ownership = restored.acquire(Shard::ONLY).unwrap();
    assert_eq!(ownership.store_id, STORE);
    assert!(ownership.lease.fence.0 > lease.fence.0 + (1 << 31));
    assert!(ownership.last_revision.0 > record(121).revision.0 + (1 << 39));
    assert_eq!(content(&restored), after(40));
    assert!(settings(&restored).version().0 > 60 + (1 << 39));
    assert_eq!(settings_of(&restored), settings_after(40));
    drop(restored);
    assert!(DiskStore::check(&into).unwrap().is_sound());
    let again = DiskStore::open(&into, 0, options()).unwrap();
    let later = again.acquire(Shard::ONLY).unwrap();
    assert_eq!(later.last_revision, ownership.last_revision);
}

#[test]
fn a_snapshot_that_is_not_as_it_was_made_is_not_restored() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = with_snapshot(directory.path(), 200);
    drop(store);
    let snapshot = directory.path().join("snapshot");
    let files = files_of(&snapshot);
    let mut refused = 0;
    for (path, sound) in &files {
        let path = &snapshot.join(path);
        if sound.is_empty() || path.ends_with("LOCK") {
            continue;
        }
        for at in [0, sound.len() / 3, sound.len() - 1] {
            let mut bytes = sound.clone();
            bytes[at] ^= 4;
            // A table is linked: in place, it would change the store as well.
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
            let is_padding = DiskStore::verify(&snapshot).is_ok_and(|report| report.is_sound());
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(!is_padding || name.starts_with("table-"), "{name} {at}");
            let into = directory.path().join("restored");
            let restored = DiskStore::restore(&snapshot, &into, options());
            assert_eq!(restored.is_ok(), is_padding, "{name} {at}");
            refused += usize::from(restored.is_err());
            drop(restored);
            if is_padding {
                fs::remove_dir_all(&into).unwrap();
            } else {
                assert!(
                    !into.join("FORMAT").exists(),
                    "begun, though it was damaged"
                );
            }
        }
        fs::remove_file(path).unwrap();
        assert!(DiskStore::verify(&snapshot).map_or(true, |report| !report.is_sound()));
        fs::write(path, sound).unwrap();
    }
    assert!(refused > 12, "{refused}");
    assert!(DiskStore::verify(&snapshot).unwrap().is_sound());
}

#[test]
fn only_snapshots_are_restored_and_only_into_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = with_snapshot(directory.path(), 10);
    let at = |name| directory.path().join(name);
    let (data, snapshot, into) = (at("data"), at("snapshot"), at("into"));
    assert!(matches!(
        store.snapshot(&snapshot),
        Err(StoreError::Disk(DiskError::NotAStore { .. }))
    ));
    assert!(matches!(
        store.snapshot(&data),
        Err(StoreError::Disk(DiskError::NotAStore { .. }))
    ));
    drop(store);
    for no_snapshot in [&data, &at("nowhere")] {
        let refused = DiskStore::restore(no_snapshot, &into, options());
        assert!(matches!(
            refused,
            Err(StoreError::Disk(DiskError::NotAStore { .. }))
        ));
    }
    fs::create_dir(&into).unwrap();
    fs::write(into.join("notes"), "mine").unwrap();
    for taken in [&into, &data] {
        let refused = DiskStore::restore(&snapshot, taken, options());
        assert!(matches!(
            refused,
            Err(StoreError::Disk(DiskError::NotAStore { .. }))
        ));
    }
    // One that was not finished is none, and can be made anew in its place.
    let format = fs::read_to_string(snapshot.join("FORMAT")).unwrap();
    let unfinished = format.replace("state ready", "state creating");
    assert_ne!(unfinished, format);
    fs::write(snapshot.join("FORMAT"), unfinished).unwrap();
    let refused = DiskStore::restore(&snapshot, &at("other"), options());
    assert!(matches!(
        refused,
        Err(StoreError::Disk(DiskError::NotAStore { .. }))
    ));
    let store = DiskStore::open(&data, 0, options()).unwrap();
    store.snapshot(&snapshot).unwrap();
    assert!(DiskStore::verify(&snapshot).unwrap().is_sound());
}
