//! The data directory: what a new one holds, whom it belongs to, and which directories are refused.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use countwheel_disk::unchanged::unchanged;
use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{Change, DiskError, Shard, Store, StoreError};
use countwheel_durable::{Record, TimerName};

use crate::support::content::files_of;
use crate::support::sample::pending;

fn open(directory: &Path, new_store_id: u64) -> Result<DiskStore, StoreError> {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 14;
    options.tables.table_bytes = 1 << 14;
    DiskStore::open(directory, new_store_id, options)
}

/// Why an opening is refused, which has to leave the directory as it is.
fn refusal(directory: &Path) -> StoreError {
    let opened = unchanged(directory, || open(directory, 1));
    opened.unwrap().unwrap_err()
}

fn is_no_store(refused: &StoreError) -> bool {
    matches!(refused, StoreError::Disk(DiskError::NotAStore { .. }))
}

fn kept() -> Record {
    pending(TimerName::new("q", "kept").unwrap(), 1, vec![7; 30])
}

/// A directory with a store of one record, closed.
fn directory_with_a_store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 0xfeed).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    store.commit(lease, &[Change::put(kept())]).unwrap();
    directory
}

fn assert_kept(directory: &Path) {
    let store = open(directory, 1).unwrap();
    assert_eq!(store.acquire(Shard::ONLY).unwrap().store_id, 0xfeed);
    let found = store.get(Shard::ONLY, &kept().name).unwrap();
    assert_eq!(found, Some(kept()));
}

#[test]
fn a_new_directory_is_made_as_documented() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/b");
    let store = open(&directory, 0xfeed).unwrap();
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["FORMAT", "LOCK", "log", "tables"]);
    assert_eq!(
        fs::read_to_string(directory.join("FORMAT")).unwrap(),
        "countwheel data directory\nformat 3\nstore 000000000000feed\nstate ready\n"
    );
    drop(store);
    let store = open(&directory, 0xbeef).unwrap();
    assert_eq!(store.acquire(Shard::ONLY).unwrap().store_id, 0xfeed);
}

#[test]
fn a_second_opening_is_refused_while_the_first_lives() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path(), 1).unwrap();
    let second = open(directory.path(), 2);
    assert!(
        matches!(&second, Err(StoreError::Disk(DiskError::Locked { path, here: true, by: None, .. })) if path == directory.path()),
        "{second:?}"
    );
    #[cfg(unix)]
    {
        // By another name, too.
        let other = tempfile::tempdir().unwrap();
        let link = other.path().join("link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        let third = open(&link, 2).unwrap_err().to_string();
        assert_eq!(
            third,
            format!("{} is open in this process already", link.display())
        );
    }
    first.acquire(Shard::ONLY).unwrap();
    drop(first);
    open(directory.path(), 2).unwrap();
}

#[cfg(unix)]
#[test]
fn a_directory_whose_name_is_no_utf_8_works() {
    use std::os::unix::ffi::OsStrExt;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join(OsStr::from_bytes(b"d\xff\xfe"));
    let store = open(&directory, 1).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    drop(store);
    let store = open(&directory, 2).unwrap();
    store.commit(lease, &[]).unwrap();
    drop(store);
    fs::write(directory.join("FORMAT"), "x").unwrap();
    let refused = refusal(&directory);
    assert!(refused.to_string().contains('d'), "{refused}");
}

#[test]
fn a_creation_that_ended_anywhere_is_done_again() {
    let creating = "countwheel data directory\nformat 3\nstore 0000000000000009\nstate creating\n";
    let cases: [&[(&str, &str)]; 6] = [
        &[],
        &[("LOCK", "")],
        &[("LOCK", ""), ("FORMAT.new", "countwheel da")],
        &[("LOCK", ""), ("FORMAT", creating)],
        &[("FORMAT", creating), ("log/segment-0000000000000001", "")],
        &[
            ("LOCK", ""),
            ("FORMAT", creating),
            ("log/segment-0000000000000001", "half made"),
            ("tables/manifest", "half made"),
            ("FORMAT.new", "countwheel da"),
        ],
    ];
    for files in cases {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let store = open(directory.path(), 0xfeed).unwrap();
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
    for name in ["notes.txt", "timers.db"] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), "mine").unwrap();
        let refused = refusal(directory.path());
        assert!(is_no_store(&refused), "{refused}");
        assert!(refused.to_string().contains(name), "{refused}");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("FORMAT"), "of something else\n").unwrap();
    let refused = refusal(directory.path());
    assert!(is_no_store(&refused), "{refused}");
}

#[test]
fn a_store_that_lost_its_format_file_is_not_taken_for_empty() {
    let directory = directory_with_a_store();
    let format = fs::read(directory.path().join("FORMAT")).unwrap();
    fs::remove_file(directory.path().join("FORMAT")).unwrap();
    let refused = refusal(directory.path());
    assert!(is_no_store(&refused), "{refused}");
    fs::write(directory.path().join("FORMAT"), format).unwrap();
    assert_kept(directory.path());
}

#[test]
fn a_later_format_is_refused() {
    let directory = directory_with_a_store();
    let path = directory.path().join("FORMAT");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("format 3", "format 4") + "more of it\n").unwrap();
    let refused = refusal(directory.path());
    assert!(is_no_store(&refused), "{refused}");
    assert!(refused.to_string().contains("later version"), "{refused}");
    fs::write(&path, text).unwrap();
    assert_kept(directory.path());
}

/// Format 1 was one database of another library. No version that was released wrote it.
#[test]
fn the_first_format_is_refused() {
    let directory = directory_with_a_store();
    let path = directory.path().join("FORMAT");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("format 3", "format 1")).unwrap();
    let refused = refusal(directory.path());
    assert!(is_no_store(&refused), "{refused}");
    assert!(refused.to_string().contains("no longer read"), "{refused}");
}

#[test]
fn what_cannot_be_opened_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    let io_at = |directory: &Path, named: &Path| {
        let refused = open(directory, 1).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Disk(DiskError::Io { path, .. }) if path == named),
            "{refused:?} does not name {}",
            named.display()
        );
    };
    io_at(&file, &file);
    io_at(&file.join("below"), &file.join("below"));
    io_at(Path::new(""), Path::new(""));
    for name in ["LOCK", "FORMAT"] {
        let directory = directory_with_a_store();
        let path = directory.path().join(name);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        io_at(directory.path(), &path);
    }
}

/// What somebody does to the files of a store that is open, and whether the store is still somewhere.
#[cfg(unix)]
type Meddling = (&'static str, fn(&Path, &Path));

/// Commits were acknowledged until the segment was full, and no start found them.
#[cfg(unix)]
#[test]
fn no_commit_is_acknowledged_once_the_directory_is_gone() {
    let cases: [Meddling; 7] = [
        ("removed", |data, _| fs::remove_dir_all(data).unwrap()),
        ("renamed", |data, other| fs::rename(data, other).unwrap()),
        ("renamed, and an empty one made", |data, other| {
            fs::rename(data, other).unwrap();
            fs::create_dir(data).unwrap();
        }),
        ("renamed, and another store made", |data, other| {
            fs::rename(data, other).unwrap();
            drop(open(data, 0xbeef).unwrap());
        }),
        ("renamed, and a copy made", |data, other| {
            fs::rename(data, other).unwrap();
            copy_all(other, data);
        }),
        ("removed, and a file made", |data, _| {
            fs::remove_dir_all(data).unwrap();
            fs::write(data, "x").unwrap();
        }),
        ("its log removed", |data, _| {
            fs::remove_dir_all(data.join("log")).unwrap();
        }),
    ];
    for (case, meddle) in cases {
        // In one segment, and over several.
        for payload in [30, 3_000] {
            let parent = tempfile::tempdir().unwrap();
            let (data, other) = (parent.path().join("data"), parent.path().join("other"));
            let store = open(&data, 0xfeed).unwrap();
            let lease = store.acquire(Shard::ONLY).unwrap().lease;
            let commit = |key: u64, payload: usize| {
                let name = TimerName::new("q", key.to_string()).unwrap();
                let put = Change::put(pending(name, key, vec![7; payload]));
                store.commit(lease, &[put])
            };
            store.commit(lease, &[Change::put(kept())]).unwrap();
            (2..12).for_each(|key| commit(key, 30).unwrap());
            // The threads of the store have nothing left to do.
            let spares = || {
                let entries = fs::read_dir(data.join("log")).unwrap();
                let names = entries.map(|entry| entry.unwrap().file_name());
                let is_spare = |name: &OsString| name.to_string_lossy().starts_with("spare-");
                names.filter(is_spare).count()
            };
            while spares() < 2 {
                std::thread::yield_now();
            }
            meddle(&data, &other);
            let there = files_of(parent.path());
            let refused = commit(12, payload).unwrap_err();
            // A thread of the store may have found out before.
            let why = match refused {
                StoreError::Disk(error @ DiskError::Removed { .. }) => error.to_string(),
                StoreError::Poisoned => loop {
                    // It says so a moment later.
                    match store.failure() {
                        Some(why) => break why,
                        None => std::thread::yield_now(),
                    }
                },
                error => panic!("{case}: {error}"),
            };
            assert!(why.contains("was removed"), "{case}: {why}");
            for key in 13..40 {
                let refused = commit(key, payload).unwrap_err();
                assert!(matches!(refused, StoreError::Poisoned), "{case}: {refused}");
            }
            drop(store);
            // Nothing was written into what stands in its place.
            let of_data = |files: BTreeMap<PathBuf, Vec<u8>>| -> BTreeMap<_, _> {
                let within = |(path, _): &(PathBuf, Vec<u8>)| path.starts_with("data");
                files.into_iter().filter(within).collect()
            };
            let after = of_data(files_of(parent.path()));
            assert!(after == of_data(there), "{case}");
            if other.exists() {
                assert_kept(&other);
            }
        }
    }
}

#[cfg(unix)]
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A lock belongs to all that have the file from the one who took it. Whoever forks without becoming
/// another program leaves it behind, and the refusal said no more than that there is one.
#[cfg(target_os = "linux")]
#[test]
fn a_refusal_names_the_process_that_has_the_lock_or_inherited_it() {
    use std::process::{Command, Stdio};
    for locked in ["", "LOCK"] {
        let directory = directory_with_a_store();
        let path = directory.path().join(locked);
        // It takes the lock, and forks a process that has the file open as well.
        let mut taker = Command::new("flock")
            .arg(&path)
            .args(["sh", "-c", "echo $$; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let forked = {
            use std::io::{BufRead as _, BufReader};
            let mut line = String::new();
            let said = taker.stdout.as_mut().unwrap();
            BufReader::new(said).read_line(&mut line).unwrap();
            line.trim().parse::<u32>().unwrap()
        };
        let look = || match refusal(directory.path()) {
            StoreError::Disk(DiskError::Locked {
                here: false,
                by,
                inherited,
                ..
            }) => (by, inherited),
            error => panic!("{error}"),
        };
        assert_eq!(look(), (Some(taker.id()), false), "{locked}");
        let stdin = taker.stdin.take();
        taker.kill().unwrap();
        taker.wait().unwrap();
        assert_eq!(look(), (Some(forked), true), "{locked}");
        // With it goes the lock.
        drop(stdin);
        loop {
            match open(directory.path(), 1) {
                Ok(_) => break,
                Err(StoreError::Disk(DiskError::Locked { .. })) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
