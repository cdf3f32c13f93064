//! Data directories that are damaged: what a check says of them, and what a repair saves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use countwheel_disk::unchanged::unchanged;
use countwheel_disk::{
    AtRisk, CheckReport, DiskOptions, DiskStore, FileKind, LogStore, Loss, SystemFiles, TableStore,
};
use countwheel_durable::store::{Before, Change, DiskError, Ownership, Shard, Store, StoreError};
use countwheel_durable::{QueueName, Record, Revision, StateKind, TimerName, TroubleReason};

use crate::support::content::{content, files_of};
use crate::support::random::Random;
use crate::support::sample::pending;

const STORE: u64 = 7;

/// Segments and tables that are full soon, and nothing that is flushed by itself for a while.
fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 14;
    options.log.segment_bytes_first = 1 << 12;
    options.tables.table_bytes = 1 << 14;
    options.tables.block_bytes = 256;
    options.tables.fan_in = 3;
    options
}

fn record(name: TimerName, revision: u64, payload: usize) -> Record {
    let payload = vec![u8::try_from(revision % 251).unwrap(); payload];
    pending(name, revision, payload)
}

/// A directory with a store, and everything that was ever committed to it.
struct Life {
    directory: tempfile::TempDir,
    /// What is there, by name.
    now: BTreeMap<TimerName, Record>,
    /// Every record that ever was, by name and revision.
    ever: BTreeMap<(TimerName, Revision), Record>,
    last_revision: Revision,
    ownership: Ownership,
}

impl Life {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A copy of the directory, for who wants to damage it.
    fn copy(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_all(self.path(), copy.path());
        copy
    }

    /// The files with something in them, of which nothing is spare.
    fn files(&self) -> Vec<PathBuf> {
        let all = files_of(self.path()).into_keys();
        let counts = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("segment-") || name.starts_with("table-") || name == "manifest"
        };
        all.filter(counts).collect()
    }
}

fn parts(path: &Path) -> (Arc<SystemFiles>, Arc<SystemFiles>) {
    let files = |part| Arc::new(SystemFiles::new(&path.join(part)));
    (files("log"), files("tables"))
}

/// Commits, flushes and merges, as the seed says. The last segments are not flushed.
fn live(seed: u64) -> Life {
    live_with(seed, options())
}

fn live_with(seed: u64, options: DiskOptions) -> Life {
    let directory = tempfile::tempdir().unwrap();
    drop(DiskStore::open(directory.path(), STORE, options).unwrap());
    let (log, tables) = parts(directory.path());
    let base = TableStore::open(tables, STORE, options.tables).unwrap();
    let log = LogStore::open(base, log, STORE, options.log).unwrap();
    // So that a repair that begins to count anew is found.
    for _ in 0..9 {
        log.acquire(Shard::ONLY).unwrap();
    }
    let ownership = log.acquire(Shard::ONLY).unwrap();
    let mut random = Random::new(seed);
    let mut life = Life {
        directory,
        now: BTreeMap::new(),
        ever: BTreeMap::new(),
        last_revision: Revision(0),
        ownership,
    };
    for round in 0..240 {
        let mut changes = Vec::new();
        for _ in 0..=random.index(4) {
            let queue = ["alpha", "beta"][random.index(2)];
            let name = TimerName::new(queue, format!("key-{}", random.index(120))).unwrap();
            let before = Before::of(life.now.get(&name));
            if random.index(5) == 0 {
                life.now.remove(&name);
                changes.push(Change::Remove { name, before });
                continue;
            }
            life.last_revision.0 += 1;
            let made = record(name.clone(), life.last_revision.0, random.index(300));
            life.now.insert(name.clone(), made.clone());
            life.ever.insert((name, life.last_revision), made.clone());
            let record = Box::new(made);
            changes.push(Change::Put { record, before });
        }
        log.commit(ownership.lease, &changes).unwrap();
        if round < 180 && random.index(12) == 0 {
            log.seal().unwrap();
            while log.flush_oldest().unwrap() {}
            log.compact().unwrap();
        }
    }
    log.seal().unwrap();
    log.commit(ownership.lease, &[Change::Given(life.last_revision)])
        .unwrap();
    life
}

fn copy_all(from: &Path, into: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = into.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

struct Rescue {
    losses: Vec<Loss>,
    content: BTreeMap<TimerName, Record>,
    ownership: Ownership,
}

impl Rescue {
    fn stale(&self) -> BTreeSet<&TimerName> {
        let stale = self.losses.iter().filter_map(|loss| match loss {
            Loss::Stale { name, .. } => Some(name),
            _ => None,
        });
        stale.collect()
    }

    fn damages(&self) -> usize {
        self.losses.len() - self.stale().len()
    }
}

/// Checks a directory that nobody has open. A test beside this one that starts a program has its lock for the
/// moment between the start of the process and that of the program.
fn check_alone(directory: &Path) -> CheckReport {
    const LOOKS: usize = 10_000;
    let reports = (0..LOOKS).map(|_| DiskStore::check(directory).unwrap());
    let mut alone = reports.skip_while(|report| report.is_running);
    alone.next().expect("nobody has it open")
}

/// Repairs, and opens and checks what comes of it. The damaged directory stays as it is.
fn repair(damaged: &Path) -> Rescue {
    let before = files_of(damaged);
    let into = tempfile::tempdir().unwrap();
    let mut losses = Vec::new();
    let repaired = DiskStore::repair(damaged, into.path(), options(), &mut |loss| {
        losses.push(loss);
        Ok(())
    });
    let repaired = repaired.unwrap();
    assert!(files_of(damaged) == before, "the damaged one was changed");
    let report = check_alone(into.path());
    assert!(report.is_sound(), "{:?}", report.problems);
    assert_eq!(report.timers, Some(repaired.timers));
    let store = DiskStore::open(into.path(), 0, options()).unwrap();
    let content = content(&store);
    assert_eq!(content.len() as u64, repaired.timers);
    let rescue = Rescue {
        losses,
        content,
        ownership: store.acquire(Shard::ONLY).unwrap(),
    };
    assert_eq!(rescue.stale().len() as u64, repaired.stale);
    assert_eq!(rescue.damages() as u64, repaired.problems);
    rescue
}

fn flip(path: &Path, at: usize, bit: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

/// Where the frame of each commit stands in a segment, and where it ends. The format is on the
/// page of the segments' module.
fn frames(path: &Path) -> Vec<(usize, usize)> {
    let bytes = fs::read(path).unwrap();
    let number = |at: usize, len: usize| {
        let mut number = [0; 8];
        number[..len].copy_from_slice(&bytes[at..at + len]);
        usize::try_from(u64::from_le_bytes(number)).unwrap()
    };
    let mut found = Vec::new();
    let mut at = 64;
    while at + 16 <= bytes.len() && number(at + 4, 4) > 0 {
        let end = (at + 16 + number(at + 4, 4)).next_multiple_of(8);
        found.push((at, end));
        at = end;
    }
    found.remove(0); // the snapshot
    found
}

fn segments(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(path.join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("segment-")
        })
        .collect();
    found.sort();
    found
}

#[test]
fn a_sound_directory_is_found_sound_and_is_not_touched() {
    let life = live(1);
    let before = files_of(life.path());
    let report = DiskStore::check(life.path()).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.timers, Some(life.now.len() as u64));
    for kind in [FileKind::Segment, FileKind::Table] {
        let files = report.files.iter().filter(|file| file.kind == kind);
        let entries: Vec<_> = files.map(|file| file.entries).collect();
        assert!(
            entries.len() > 1 && entries.iter().any(|&n| n > 3),
            "{kind}"
        );
    }
    assert!(files_of(life.path()) == before);

    let rescue = repair(life.path());
    assert_eq!(rescue.losses, []);
    assert_eq!(rescue.content, life.now);
    assert_eq!(rescue.ownership.store_id, STORE);
    assert_eq!(rescue.ownership.last_revision, life.last_revision);
    assert!(rescue.ownership.lease.fence > life.ownership.lease.fence);
}

#[test]
fn a_directory_in_use_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), STORE, options()).unwrap();
    let into = tempfile::tempdir().unwrap();
    let refused = DiskStore::repair(directory.path(), into.path(), options(), &mut |_| Ok(()));
    assert!(matches!(
        refused,
        Err(StoreError::Disk(DiskError::Locked { .. }))
    ));
    drop(store);
    assert!(DiskStore::check(directory.path()).unwrap().is_sound());
}

#[test]
fn what_is_no_store_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = empty.path().join("nowhere");
    let strange = tempfile::tempdir().unwrap();
    fs::write(strange.path().join("notes"), "mine").unwrap();
    for path in [empty.path(), &nowhere, strange.path()] {
        let before = path.is_dir().then(|| files_of(path));
        let refused = DiskStore::check(path);
        assert!(matches!(
            refused,
            Err(StoreError::Disk(DiskError::NotAStore { .. }))
        ));
        assert_eq!(path.is_dir().then(|| files_of(path)), before);
    }
    // A repair makes no store where there is one.
    let life = live(2);
    let other = live(3);
    let repair = || DiskStore::repair(life.path(), other.path(), options(), &mut |_| Ok(()));
    let refused = unchanged(other.path(), repair).unwrap();
    assert!(matches!(
        refused,
        Err(StoreError::Disk(DiskError::NotAStore { .. }))
    ));
}

#[test]
fn a_lost_commit_costs_what_was_in_it_and_makes_what_is_older_doubtful() {
    let life = live(4);
    let copy = life.copy();
    let segments = segments(copy.path());
    let segment = &segments[segments.len() - 2];
    let all = frames(segment);
    let (at, end) = all[all.len() / 2];
    flip(segment, at + 20, 3);

    let report = DiskStore::check(copy.path()).unwrap();
    let [problem] = report.problems.as_slice() else {
        panic!("{:?}", report.problems);
    };
    assert_eq!((&problem.path, problem.offset), (segment, at as u64));
    assert_eq!(problem.at_risk, AtRisk::Commits(1));
    let open = || DiskStore::open(copy.path(), 0, options());
    let said = unchanged(copy.path(), open).unwrap().unwrap_err();
    let said = said.to_string();
    let expected = format!("at offset {at}: commit ");
    assert!(said.contains(&expected), "{said}");

    let rescue = repair(copy.path());
    assert_eq!(rescue.damages(), 1);
    assert!(rescue.ownership.last_revision.0 > life.last_revision.0 + (1 << 31));
    assert!(rescue.ownership.lease.fence > life.ownership.lease.fence);
    // Which names stand behind the damage, whole: nothing about them is in doubt.
    let bytes = fs::read(segment).unwrap();
    let last = fs::read(segments.last().unwrap()).unwrap();
    let sure = |name: &TimerName| {
        let key = name.key.as_str().as_bytes();
        let is_in = |bytes: &[u8]| bytes.windows(key.len() + 1).any(|w| &w[..key.len()] == key);
        is_in(&bytes[end..]) || is_in(&last)
    };
    let stale = rescue.stale();
    let mut differ = 0;
    for (name, kept) in &rescue.content {
        let expected = life.now.get(name) == Some(kept);
        differ += usize::from(!expected);
        assert!(expected || stale.contains(name), "{name}");
        assert_eq!(life.ever.get(&(name.clone(), kept.revision)), Some(kept));
        assert!(sure(name) || stale.contains(name), "{name}");
    }
    for name in life.now.keys() {
        differ += usize::from(!rescue.content.contains_key(name));
    }
    assert!(differ > 0 && differ <= 5, "{differ}");
    assert!(stale.len() < rescue.content.len(), "some are sure");
}

#[test]
fn whatever_is_damaged_a_check_says_so_and_a_repair_makes_a_sound_store() {
    let life = live(5);
    let files = life.files();
    let mut random = Random::new(6);
    let mut found = 0;
    for turn in 0..60 {
        let copy = life.copy();
        let path = &files[turn % files.len()];
        let path = copy.path().join(path);
        let mut bytes = fs::read(&path).unwrap();
        let at = random.index(bytes.len());
        match random.index(5) {
            0 => bytes.truncate(at),
            1 => fs::remove_file(&path).unwrap(),
            2 => {
                let end = bytes.len().min(at + 4_096);
                bytes[at..end].fill(0);
            }
            _ => bytes[at] ^= 1 << random.index(8),
        }
        if path.exists() {
            fs::write(&path, bytes).unwrap();
        }
        let is_sound = DiskStore::check(copy.path()).unwrap().is_sound();
        found += usize::from(!is_sound);
        let rescue = repair(copy.path());
        for (name, kept) in &rescue.content {
            let written = life.ever.get(&(name.clone(), kept.revision));
            assert_eq!(written, Some(kept), "{}: never written", path.display());
        }
        let stale = rescue.stale();
        for (name, kept) in &rescue.content {
            let is_last_lost = rescue.damages() == 0 && is_sound;
            let same = life.now.get(name) == Some(kept);
            assert!(
                same || stale.contains(name) || is_last_lost,
                "{}: {name} is old, and nobody says so",
                path.display()
            );
        }
        if rescue.damages() == 0 {
            let lost = life.now.keys();
            let lost = lost.filter(|name| !rescue.content.contains_key(*name));
            let lost = lost.count();
            assert!(is_sound || lost == 0, "{}: {lost} lost", path.display());
        }
        // What is sound opens, and has what a repair finds.
        if is_sound {
            let opened = DiskStore::open(copy.path(), 0, options()).unwrap();
            assert_eq!(content(&opened), rescue.content);
        }
    }
    assert!(found > 25, "{found}");
}

#[test]
fn without_what_says_what_it_is_the_log_says_it() {
    let life = live(7);
    let copy = life.copy();
    fs::write(copy.path().join("FORMAT"), "").unwrap();
    let report = DiskStore::check(copy.path()).unwrap();
    assert!(report.problems[0].path.ends_with("FORMAT"));
    assert_eq!(report.problems.len(), 1);
    let rescue = repair(copy.path());
    assert_eq!(rescue.content, life.now);
    assert_eq!((rescue.damages(), rescue.ownership.store_id), (1, STORE));
}

#[test]
fn whole_parts_that_are_missing_are_said_to_be() {
    let life = live(8);
    for part in ["log", "tables"] {
        let copy = life.copy();
        fs::remove_dir_all(copy.path().join(part)).unwrap();
        let report = DiskStore::check(copy.path()).unwrap();
        assert!(!report.is_sound(), "{part}");
        let rescue = repair(copy.path());
        assert!(rescue.damages() > 0, "{part}");
        assert!(!rescue.content.is_empty(), "{part}");
        for (name, kept) in &rescue.content {
            assert_eq!(life.ever.get(&(name.clone(), kept.revision)), Some(kept));
        }
        // Without the log, nothing in the tables is sure; without tables, the log is.
        let stale = rescue.stale().len();
        let expected = if part == "log" {
            rescue.content.len()
        } else {
            0
        };
        assert_eq!(stale, expected, "{part}");
        // What is lost may have given more than can be seen.
        let now = rescue.ownership;
        assert!(
            now.lease.fence > life.ownership.lease.fence,
            "{part}: {now:?}"
        );
        assert!(now.last_revision >= life.last_revision, "{part}: {now:?}");
    }
}

#[test]
fn a_segment_without_its_beginning_keeps_its_commits() {
    let life = live(9);
    let copy = life.copy();
    let all = segments(copy.path());
    for segment in &all {
        let mut bytes = fs::read(segment).unwrap();
        bytes[..100].fill(0); // the header, and the beginning of the snapshot
        fs::write(segment, bytes).unwrap();
    }
    let report = DiskStore::check(copy.path()).unwrap();
    assert!(report.problems.len() >= all.len());
    let rescue = repair(copy.path());
    assert_eq!(rescue.content, life.now);
}

#[test]
fn a_damaged_second_header_is_named_and_costs_nothing() {
    let life = live(9);
    let copy = life.copy();
    let segment = segments(copy.path()).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.len() - 10;
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let report = DiskStore::check(copy.path()).unwrap();
    let [problem] = report.problems.as_slice() else {
        panic!("{:?}", report.problems);
    };
    assert_eq!(problem.at_risk, AtRisk::Commits(0));
    assert_eq!(repair(copy.path()).content, life.now);
    // A start goes on with the first one, and health says so until the segment is not needed.
    let store = DiskStore::open(copy.path(), STORE, options()).unwrap();
    let [trouble] = &store.troubles()[..] else {
        panic!("{:?}", store.troubles());
    };
    assert_eq!(trouble.reason, TroubleReason::UnreadableSegment);
    assert_eq!(trouble.path.as_ref(), Some(&segment));
    assert!(trouble.detail.contains("second header"), "{trouble}");
    assert_eq!(content(&store), life.now);
    drop(store);
    let sound = DiskStore::open(life.path(), STORE, options()).unwrap();
    assert_eq!(sound.troubles(), []);
}

/// The manifest of a later moment: it says that the tables have taken in a segment, and names a table
/// that is not there. The segment is, and a repair took it for one that nobody needs.
#[test]
fn a_segment_is_read_if_the_table_that_took_it_in_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    drop(DiskStore::open(directory.path(), STORE, options()).unwrap());
    let (log, tables) = parts(directory.path());
    let base = TableStore::open(tables, STORE, options().tables).unwrap();
    let log = LogStore::open(base, log, STORE, options().log).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let name = |key| TimerName::new("alpha", key).unwrap();
    let commit = |change| log.commit(lease, &[change]).unwrap();
    commit(Change::put(record(name("one"), 1, 10)));
    commit(Change::put(record(name("two"), 2, 10)));
    commit(Change::remove(name("two")));
    assert!(log.seal().unwrap());
    commit(Change::put(record(name("three"), 3, 10)));
    let older = tempfile::tempdir().unwrap();
    copy_all(directory.path(), older.path());
    assert!(log.flush_oldest().unwrap());
    drop(log);
    let manifest = "tables/manifest";
    fs::copy(directory.path().join(manifest), older.path().join(manifest)).unwrap();
    let rescue = repair(older.path());
    let found: Vec<_> = rescue.content.keys().cloned().collect();
    assert_eq!(found, [name("one"), name("three")]);
    assert_eq!(rescue.stale(), BTreeSet::from([&name("one")]));
    let risks = rescue.losses.iter().filter_map(|loss| match loss {
        Loss::Damage(problem) => Some(problem.at_risk),
        _ => None,
    });
    assert_eq!(risks.collect::<Vec<_>>(), [AtRisk::Records(1)]);
}

/// The last place up to `at` that means something: frames are filled up to multiples of eight.
fn within_a_frame(table: &[u8], at: usize) -> usize {
    let mut begin = 0;
    loop {
        let length = u32::from_le_bytes(*table[begin + 4..].first_chunk().unwrap());
        let end = begin + 12 + usize::try_from(length).unwrap();
        let next = end.next_multiple_of(8);
        if at < next {
            return at.min(end - 1);
        }
        begin = next;
    }
}

/// A bit of a record flipped: what the log counts was compared with the tables, of which a
/// part was missing, and so every timer was called stale, and the log blamed.
#[test]
fn a_flipped_bit_in_a_table_makes_stale_what_it_may_hide_and_nothing_else() {
    // Long segments, so that no block of a table has removals alone: of these none is at risk.
    let mut options = options();
    options.log.segment_bytes_first = options.log.segment_bytes;
    let life = live_with(5, options);
    let files = life.files();
    let is_table = |path: &&PathBuf| path.to_string_lossy().contains("table-");
    let mut some_stale = 0;
    let mut turns = 0;
    for path in files.iter().filter(is_table) {
        for share in 0..6 {
            let copy = life.copy();
            let path = copy.path().join(path);
            let content = fs::read(&path).unwrap();
            let at = within_a_frame(&content, content.len() * share / 12 + 20);
            flip(&path, at, 3);
            let rescue = repair(copy.path());
            let damages = rescue.losses.iter().filter_map(|loss| match loss {
                Loss::Damage(problem) => Some(problem),
                _ => None,
            });
            let damages: Vec<_> = damages.collect();
            assert!(!damages.is_empty(), "{}, {at}", path.display());
            for problem in damages {
                assert_eq!(problem.path, path, "{problem}");
                let is_known = matches!(problem.at_risk, AtRisk::Records(1..));
                assert!(is_known, "{problem}");
            }
            turns += 1;
            some_stale += rescue.stale().len();
            // A block has few of the names.
            assert!(rescue.stale().len() < 20, "{at}: {}", rescue.stale().len());
            // What is called sure is as it is.
            for (name, kept) in &rescue.content {
                let is_now = life.now.get(name) == Some(kept);
                assert!(is_now || rescue.stale().contains(name), "{name}");
            }
        }
    }
    assert!(turns > 6 && some_stale > 0, "{turns}, {some_stale}");
}

#[test]
fn counts_that_are_not_what_is_there_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), STORE, options()).unwrap();
    let lease = store.acquire(Shard::ONLY).unwrap().lease;
    let name = TimerName::new("alpha", "one").unwrap();
    for revision in 1..3 {
        // Which is a lie the second time.
        let before = Before::Absent;
        let record = Box::new(record(name.clone(), revision, 10));
        store
            .commit(lease, &[Change::Put { record, before }])
            .unwrap();
    }
    let queue = QueueName::new("alpha").unwrap();
    let counts = store.counts(Shard::ONLY).unwrap();
    assert_eq!(counts[0].of(StateKind::Pending), 2);
    drop(store);
    let report = DiskStore::check(directory.path()).unwrap();
    let [problem] = report.problems.as_slice() else {
        panic!("{:?}", report.problems);
    };
    assert_eq!(problem.at_risk, AtRisk::Records(1));
    assert!(problem.problem.contains(queue.as_str()), "{problem}");
    // A repair counts anew.
    assert_eq!(repair(directory.path()).content.len(), 1);
}
