//! The simulated disk does what it says, and what a real one would.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use countwheel_disk::DiskOptions;
use countwheel_disk::simulated::{Calls, Damage, Disk, Failure, Fault, Operation};
use countwheel_durable::store::{Before, Change, DiskError, Shard, StoreError};
use countwheel_durable::{Revision, TimerName};

use crate::support::sample::pending;

fn only(operation: Operation, failure: Failure) -> Fault {
    Fault {
        calls: Calls::Only(operation),
        after: 0,
        lasts: false,
        failure,
    }
}

#[test]
fn what_was_synced_survives_a_cut_and_of_the_rest_any_part_does() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = Disk::default();
        let files = disk.files("log");
        let file = files.create("a", 2_048).unwrap();
        file.write_at(0, &[1; 2_048]).unwrap();
        file.sync().unwrap();
        files.sync().unwrap();
        file.write_at(512, &[2; 1_024]).unwrap();
        file.write_at(512, &[3; 512]).unwrap();
        disk.cut(seed);
        assert!(file.length().is_err(), "its process is gone");
        let after = disk.content("log/a").unwrap();
        let sectors: Vec<u8> = after.chunks(512).map(|sector| sector[0]).collect();
        assert!(
            after
                .chunks(512)
                .all(|s| s.iter().all(|byte| *byte == s[0]))
        );
        assert_eq!((sectors[0], sectors[3]), (1, 1));
        seen.insert((sectors[1], sectors[2]));
    }
    let any = [1, 2, 3].map(|first| [1, 2].map(|second| (first, second)));
    assert_eq!(seen, any.into_iter().flatten().collect());
}

#[test]
fn a_name_that_was_not_synced_may_be_lost_although_its_file_was() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = Disk::default();
        let files = disk.files("log");
        files.begin("old").unwrap();
        files.sync().unwrap();
        let file = files.begin("new").unwrap();
        file.write_at(0, b"synced").unwrap();
        file.sync().unwrap();
        files.rename("new", "newer").unwrap();
        files.remove("old").unwrap();
        assert_eq!(disk.paths(), ["log/newer"]);
        disk.cut(seed);
        let after = disk.paths();
        for path in ["log/new", "log/newer"] {
            if let Some(content) = disk.content(path) {
                assert_eq!(content, b"synced");
            }
        }
        assert!(after.iter().filter(|path| path.contains("new")).count() <= 1);
        seen.insert(after);
    }
    // In order: none, the first, the first two, all; out of order others.
    for expected in [
        vec!["log/old"],
        vec!["log/new", "log/old"],
        vec!["log/newer", "log/old"],
        vec!["log/newer"],
        vec![],
    ] {
        let expected: Vec<String> = expected.iter().map(|&path| path.to_owned()).collect();
        assert!(seen.contains(&expected), "{expected:?}");
    }
}

#[test]
fn a_file_may_have_any_of_its_lengths() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let disk = Disk::default();
        let files = disk.files("");
        let file = files.begin("a").unwrap();
        files.sync().unwrap();
        for len in [600_usize, 1_200] {
            let at = file.length().unwrap();
            let len = len - usize::try_from(at).unwrap();
            file.write_at(at, &vec![1; len]).unwrap();
        }
        assert_eq!(
            file.write_at(1_201, &[1]).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        disk.cut(seed);
        seen.insert(disk.content("a").unwrap().len());
    }
    assert_eq!(seen, [0, 600, 1_200].into());
}

#[test]
fn one_cut_hits_all_directories() {
    let disk = Disk::default();
    let (log, tables) = (disk.files("log"), disk.files("tables"));
    log.begin("a").unwrap();
    tables.begin("b").unwrap();
    log.sync().unwrap();
    assert_eq!(disk.calls(Calls::Changing), 3);
    disk.cut(1);
    assert!(log.list().is_err() && tables.list().is_err());
    assert!(disk.paths().contains(&"log/a".to_owned()));
}

#[test]
fn a_process_that_ends_loses_nothing_but_its_handles() {
    let disk = Disk::default();
    let files = disk.files("");
    let file = files.begin("a").unwrap();
    file.write_at(0, b"in memory").unwrap();
    disk.fail(Fault::power(0));
    disk.restart();
    assert!(file.sync().is_err() && files.list().is_err());
    assert_eq!(disk.content("a").unwrap(), b"in memory");
    let file = disk.files("").open("a").unwrap();
    file.sync().unwrap();
    assert_eq!(file.length().unwrap(), 9);
}

#[test]
fn after_a_sync_that_failed_a_later_one_says_nothing() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = Disk::new(seed);
        let files = disk.files("");
        let file = files.create("a", 512).unwrap();
        file.sync().unwrap();
        files.sync().unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        disk.fail(only(Operation::Sync, Failure::Io));
        assert!(file.sync().is_err());
        file.sync().unwrap();
        let mut read = [0; 512];
        file.read_at(0, &mut read).unwrap();
        assert_eq!(read, [1; 512], "it is still in memory");
        let forgotten = disk.copy();
        forgotten.evict();
        disk.cut(seed);
        assert_eq!(disk.content("a"), forgotten.content("a"));
        lost += u32::from(disk.content("a").unwrap() == [0; 512]);
        // What is written again is durable again.
        let file = disk.files("").open("a").unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        file.sync().unwrap();
        disk.cut(seed);
        assert_eq!(disk.content("a").unwrap(), [1; 512]);
    }
    assert!((10..40).contains(&lost), "{lost}");
}

#[test]
fn every_call_can_fail_once_or_from_then_on() {
    for operation in Operation::ALL {
        for lasts in [false, true] {
            let disk = Disk::default();
            let files = disk.files("");
            let file = files.create("a", 600).unwrap();
            let mut buffer = [0; 4];
            let mut calls = || {
                let mut names = Vec::new();
                match operation {
                    Operation::List => files.list().map(drop),
                    Operation::Create => {
                        names.extend(files.list().unwrap());
                        files.begin(&format!("b{}", names.len())).map(drop)
                    }
                    Operation::Open => files.open("a").map(drop),
                    Operation::Rename => files.rename("a", "a"),
                    Operation::Remove => {
                        if !disk.paths().contains(&"gone".to_owned()) {
                            disk.set_content("gone", vec![]);
                        }
                        files.remove("gone")
                    }
                    Operation::SyncDirectory => files.sync(),
                    Operation::Length => file.length().map(drop),
                    Operation::Read => file.read_at(0, &mut buffer),
                    Operation::Write => file.write_at(0, b"abcd"),
                    Operation::Sync => file.sync(),
                }
            };
            calls().unwrap();
            disk.fail(Fault {
                calls: Calls::Only(operation),
                after: 1,
                lasts,
                failure: Failure::Io,
            });
            calls().unwrap();
            assert_eq!(
                calls().unwrap_err().raw_os_error(),
                Some(5),
                "{operation:?}"
            );
            assert_eq!(calls().is_err(), lasts, "{operation:?}");
            disk.heal();
            calls().unwrap();
            assert_eq!(disk.struck(), if lasts { 2 } else { 1 });
        }
    }
}

#[test]
fn a_write_that_fails_may_be_there_in_part() {
    let mut torn = BTreeSet::new();
    let mut short = BTreeSet::new();
    for seed in 0..100 {
        for (failure, seen) in [(Failure::Torn, &mut torn), (Failure::Short, &mut short)] {
            let disk = Disk::new(seed);
            let files = disk.files("");
            let file = files.create("a", 1_536).unwrap();
            disk.fail(only(Operation::Write, failure));
            assert!(file.write_at(0, &[1; 1_536]).is_err());
            let content = disk.content("a").unwrap();
            let sectors: Vec<u8> = content.chunks(512).map(|s| s[511]).collect();
            seen.insert(sectors);
        }
    }
    assert_eq!(torn.len(), 8, "any of three sectors");
    assert!(!short.contains(&vec![0, 1, 0]) && short.contains(&vec![1, 0, 0]));
}

#[test]
fn a_full_disk_refuses_until_there_is_room() {
    let disk = Disk::default();
    disk.set_capacity(Some(1_000));
    let files = disk.files("");
    let file = files.begin("a").unwrap();
    file.write_at(0, &[1; 800]).unwrap();
    let full = file.write_at(800, &[1; 300]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert_eq!(file.length().unwrap(), 1_000, "as much as fitted");
    file.write_at(0, &[2; 1_000]).unwrap();
    let full = files.create("b", 10).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(
        disk.paths().contains(&"b".to_owned()),
        "too short, but there"
    );
    files.remove("a").unwrap();
    assert_eq!(disk.used(), 1_000, "it is open still");
    drop(file);
    files.sync().unwrap();
    assert_eq!(disk.used(), 0);
    files.create("c", 1_000).unwrap();
    disk.set_capacity(Some(2_000));
    files.create("d", 1_000).unwrap();
}

#[test]
fn a_disk_that_lies_forgets() {
    let disk = Disk::default();
    disk.ignore_syncs(true);
    let mut lost = 0;
    for seed in 0..20 {
        let copy = disk.copy();
        let files = copy.files("");
        let file = files.create("a", 512).unwrap();
        file.write_at(0, &[1; 512]).unwrap();
        file.sync().unwrap();
        files.sync().unwrap();
        copy.cut(seed);
        lost += u32::from(copy.content("a").is_none_or(|content| content != [1; 512]));
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn damage_changes_a_file_and_only_that() {
    let mut kinds = BTreeSet::new();
    for seed in 0..300 {
        let disk = Disk::default();
        for name in ["a", "b"] {
            let file = disk.files("").create(name, 4_000).unwrap();
            for version in 1..4 {
                let bytes: Vec<u8> = (0..4_000_u32)
                    .map(|at| (at / 512 * 7 + version).to_le_bytes()[0] ^ name.as_bytes()[0])
                    .collect();
                file.write_at(0, &bytes).unwrap();
                file.sync().unwrap();
            }
        }
        let before = disk.copy();
        let (path, damage) = disk.damage(seed).unwrap();
        let other = if path == "a" { "b" } else { "a" };
        let kind = format!("{damage:?}");
        kinds.insert(kind.split([' ', '{']).next().unwrap().to_owned());
        match damage {
            Damage::Misplaced { from, to } if from == to => {}
            Damage::Swapped { with } => {
                assert!(disk.content(&with) == before.content(&path));
            }
            _ => {
                assert!(
                    disk.content(&path) != before.content(&path),
                    "{path}: {kind}"
                );
                assert!(disk.content(other) == before.content(other));
            }
        }
        // It is on the medium.
        let content = disk.content(&path);
        disk.cut(seed);
        assert!(disk.content(&path) == content, "{path}: {kind}");
    }
    assert_eq!(kinds.len(), 9, "{kinds:?}");
}

#[test]
fn the_same_seeds_lead_to_the_same_bytes() {
    let run = |seed| {
        let disk = Disk::new(seed);
        let files = disk.files("");
        let file = files.create("a", 5_000).unwrap();
        files.sync().unwrap();
        disk.fail(Fault::once(2, Failure::Torn));
        for at in 0..5 {
            let _refused = file.write_at(at * 700, &[9; 1_400]);
        }
        disk.cut(seed);
        (disk.content("a"), disk.last_calls())
    };
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        assert!(run(seed) == run(seed), "{seed}");
        seen.insert(run(seed).0);
    }
    assert!(seen.len() > 5, "{}", seen.len());
}

/// Also where there is room for all of a store but the last file, which says that it is ready.
#[test]
fn a_store_that_finds_no_room_to_be_made_takes_none() {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 12;
    let mut refused = 0;
    for after in 0..100 {
        let disk = Disk::default();
        disk.fail(Fault {
            calls: Calls::Only(Operation::Create),
            after,
            lasts: true,
            failure: Failure::NoSpace,
        });
        match disk.open_store("data", 7, options) {
            Ok(_) => {
                assert!(refused > 5, "{refused}");
                return;
            }
            Err(StoreError::Disk(DiskError::Full { .. })) => refused += 1,
            Err(error) => panic!("{after}: {error}"),
        }
        let left: Vec<String> = disk.paths();
        let parts = ["data/log/", "data/tables/"];
        let is_part = |path: &String| parts.iter().any(|part| path.starts_with(part));
        assert!(!left.iter().any(is_part), "{after}: {left:?}");
    }
    panic!("no store was made");
}

#[test]
fn a_start_without_room_for_the_last_commit_is_refused_and_changes_nothing() {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 12;
    let made = Disk::default();
    let store = made.open_store("data", 7, options).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    for revision in 1..=30 {
        let name = TimerName::new("q", format!("{revision}")).unwrap();
        let record = Box::new(pending(name, revision, vec![7; 300]));
        let before = Before::Absent;
        store
            .commit(lease, &[Change::Put { record, before }])
            .unwrap();
    }
    drop(store);
    made.restart();

    let disk = made.copy();
    let is_there = disk.image();
    disk.fail(Fault {
        lasts: true,
        ..only(Operation::Write, Failure::NoSpace)
    });
    let refused = disk.open_store("data", 7, options).unwrap_err();
    let is_full = matches!(refused, StoreError::Disk(DiskError::Full { .. }));
    assert!(is_full, "{refused}");
    assert_ne!(disk.struck(), 0, "the commit was not written again");
    assert!(disk.image() == is_there, "it has changed something");

    disk.heal();
    disk.restart();
    let store = disk.open_store("data", 7, options).unwrap();
    let ownership = store.acquire(Shard::ONLY).unwrap();
    assert_eq!(ownership.last_revision, Revision(30));
    assert!(ownership.lease.fence > lease.fence);
}
