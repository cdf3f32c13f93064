//! What an opening does to a data directory: nothing, unless it succeeds.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use countwheel_disk::unchanged::{Tree, unchanged};
use countwheel_disk::{DiskOptions, DiskStore, LogStore, Loss, SystemFiles, TableStore};
use countwheel_durable::store::{Change, DiskError, Filter, Lease, Shard, Store, StoreError};
use countwheel_durable::{QueueName, Record, Revision, TimerName};

use crate::support::sample::pending;

/// Segments and tables that are full soon.
fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 13;
    options.log.segments_kept = 1;
    options.tables.table_bytes = 1 << 13;
    options.tables.fan_in = 2;
    options
}

fn open(directory: &Path) -> Result<DiskStore, StoreError> {
    DiskStore::open(directory, 7, options())
}

fn record(number: u64) -> Record {
    let name = TimerName::new("queue", format!("key-{number}")).unwrap();
    pending(name, number, vec![7; 100])
}

/// A store in a directory of its own, and what is in it.
struct Made {
    parent: tempfile::TempDir,
    records: u64,
}

impl Made {
    /// With so many records: enough of them fill segments and tables.
    fn with(records: u64) -> Self {
        let made = Self {
            parent: tempfile::tempdir().unwrap(),
            records: 0,
        };
        made.more(records)
    }

    fn more(mut self, records: u64) -> Self {
        let store = open(&self.data()).unwrap();
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        self.put(&store, lease, records);
        self
    }

    fn put(&mut self, store: &DiskStore, lease: Lease, records: u64) {
        for _ in 0..records {
            self.records += 1;
            store
                .commit(lease, &[Change::put(record(self.records))])
                .unwrap();
        }
    }

    fn data(&self) -> PathBuf {
        self.at("data")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.parent.path().join(name)
    }

    fn log(&self) -> Vec<String> {
        let mut names = names(&self.data().join("log"));
        names.retain(|name| name.starts_with("segment-"));
        names
    }

    fn checkpoints(&self) -> Vec<String> {
        let mut names = names(&self.data().join("tables"));
        names.retain(|name| name.starts_with("reached-"));
        names
    }

    fn must_be_complete(&self) {
        let store = open(&self.data()).unwrap();
        assert_eq!(count(&store), self.records);
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn count(store: &DiskStore) -> u64 {
    let mut filter = Filter::queue(QueueName::new("queue").unwrap());
    let mut count = 0;
    loop {
        let page = store.list(Shard::ONLY, &filter).unwrap();
        count += page.records.len() as u64;
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return count,
        }
    }
}

/// An old manifest over a newer directory was refused for a missing segment, and had by then
/// written a new manifest and removed every table that it did not name: 6,246 of 8,500 timers.
#[test]
fn a_start_with_an_old_manifest_is_refused_and_removes_no_table() {
    let made = Made::with(300);
    let manifest = made.data().join("tables/manifest");
    let old = fs::read(&manifest).unwrap();
    let made = made.more(600);
    let new = fs::read(&manifest).unwrap();
    assert_ne!(old, new);
    fs::write(&manifest, old).unwrap();
    let refused = refused_unchanged(&made.data(), || open(&made.data()));
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    // Nor is anything lost to a repair: it reads the tables that the manifest does not name.
    let into = made.at("repaired");
    let mut stale = 0;
    let mut lost = |loss| {
        stale += u64::from(matches!(loss, Loss::Stale { .. }));
        Ok(())
    };
    let repaired = DiskStore::repair(&made.data(), &into, options(), &mut lost).unwrap();
    assert_eq!(repaired.timers, made.records);
    assert!(stale > 0, "what an old manifest hides is doubtful");
    // With the right manifest everything is there.
    fs::write(&manifest, new).unwrap();
    made.must_be_complete();
}

/// An old manifest of which every table is still there, and a log that goes back as far.
#[test]
fn what_no_manifest_names_is_set_aside_until_a_later_start() {
    let made = Made::with(300);
    let tables = made.data().join("tables");
    let stray = "table-0000000000abcdef";
    let any = names(&tables).into_iter().find(|n| n.starts_with("table-"));
    let bytes = fs::read(tables.join(any.unwrap())).unwrap();
    fs::write(tables.join(stray), &bytes).unwrap();
    made.must_be_complete();
    assert!(!tables.join(stray).exists());
    let aside = made.data().join("set-aside");
    assert_eq!(names(&aside), [stray]);
    assert_eq!(fs::read(aside.join(stray)).unwrap(), bytes);
    // A start that is refused leaves it there.
    let segment = made.data().join("log").join(made.log().pop().unwrap());
    let sound = fs::read(&segment).unwrap();
    fs::remove_file(&segment).unwrap();
    refused_unchanged(&made.data(), || open(&made.data()));
    assert_eq!(names(&aside), [stray]);
    // One that is sound removes it.
    fs::write(&segment, sound).unwrap();
    made.must_be_complete();
    assert!(!aside.exists());
}

/// With the newest segment gone a store started in silence with half of its timers, and a check
/// said that it was sound.
#[test]
fn a_store_without_its_newest_segments_is_refused_by_their_name() {
    let mut made = Made::with(300);
    for gone in 1..=2 {
        let log = made.log();
        if log.len() <= gone {
            made = made.more(60);
        }
        let log = made.log();
        let segments = &log[log.len().saturating_sub(gone)..];
        let path = |name: &String| made.data().join("log").join(name);
        let sound: Vec<_> = segments
            .iter()
            .map(|name| fs::read(path(name)).unwrap())
            .collect();
        for name in segments {
            fs::remove_file(path(name)).unwrap();
        }
        let refused = refused_unchanged(&made.data(), || open(&made.data()));
        assert!(refused.to_string().contains(&segments[0]), "{refused}");
        let report = DiskStore::check(&made.data()).unwrap();
        assert!(
            report
                .problems
                .iter()
                .any(|found| found.path == path(&segments[0])),
            "{report:?}"
        );
        let into = made.at(&format!("repaired-{gone}"));
        let repaired = DiskStore::repair(&made.data(), &into, options(), &mut |_| Ok(())).unwrap();
        assert!(repaired.problems > 0);
        for (name, bytes) in segments.iter().zip(sound) {
            fs::write(path(name), bytes).unwrap();
        }
        made.must_be_complete();
    }
}

/// A stop says where the log ends.
#[test]
fn a_newest_segment_of_an_earlier_stop_is_refused() {
    let made = Made::with(5);
    let [segment] = &made.log()[..] else {
        panic!("one segment");
    };
    let path = made.data().join("log").join(segment);
    let old = fs::read(&path).unwrap();
    let made = made.more(5);
    let new = fs::read(&path).unwrap();
    fs::write(&path, old).unwrap();
    let refused = refused_unchanged(&made.data(), || open(&made.data()));
    assert!(
        matches!(refused, StoreError::Disk(DiskError::Corrupt { .. })),
        "{refused}"
    );
    assert!(!DiskStore::check(&made.data()).unwrap().is_sound());
    fs::write(&path, new).unwrap();
    made.must_be_complete();
}

/// Sealed segments 1 and 2 have been flushed, and the tables have a timer that segment 2 removed:
/// segment 3 sets it again, so the removal was not current and was not flushed. The directory is
/// copied, and the log as it was before segment 3 set the timer is laid over the copy. An opening
/// of that found a log without a gap, and served the timer that had been removed.
fn older_log_over_newer_tables() -> tempfile::TempDir {
    let parent = tempfile::tempdir().unwrap();
    let (data, mix) = (parent.path().join("data"), parent.path().join("mix"));
    drop(open(&data).unwrap());
    let files = |part| Arc::new(SystemFiles::new(&data.join(part)));
    let base = TableStore::open(files("tables"), 7, options().tables).unwrap();
    let log = LogStore::open(base, files("log"), 7, options().log).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let commit = |change| log.commit(lease, &[change]).unwrap();
    commit(Change::put(record(1)));
    commit(Change::put(record(2)));
    assert!(log.seal().unwrap() && log.flush_oldest().unwrap());
    commit(Change::remove(record(1).name));
    assert!(log.seal().unwrap());
    commit(Change::put(record(3)));
    let older = parent.path().join("older");
    copy(&data.join("log"), &older);
    let again = Record {
        name: record(1).name,
        ..record(4)
    };
    commit(Change::put(again));
    assert!(log.flush_oldest().unwrap());
    drop(log);
    copy(&data, &mix);
    copy(&older, &mix.join("log"));
    parent
}

/// The tables have a timer that segment 2 removed. In the newer copy segment 2 has been flushed, and the
/// timer is nowhere: what segment 3 sets and removes under its name says that there is nothing
/// to hide. Behind older tables there is. The opening knew, since it had read segment 2; once that
/// had been flushed, the next opening did not, and served the timer.
#[test]
fn a_newer_log_over_older_tables_hides_what_it_removed() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name| parent.path().join(name);
    let (data, mix) = (at("data"), at("mix"));
    drop(open(&data).unwrap());
    let open_parts = |path: &Path| {
        let files = |part| Arc::new(SystemFiles::new(&path.join(part)));
        let base = TableStore::open_unpersisted(files("tables"), 7, options().tables).unwrap();
        LogStore::open(base, files("log"), 7, options().log).unwrap()
    };
    let log = open_parts(&data);
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let commit = |change| log.commit(lease, &[change]).unwrap();
    commit(Change::put(record(1)));
    assert!(log.seal().unwrap() && log.flush_oldest().unwrap());
    commit(Change::remove(record(1).name));
    assert!(log.seal().unwrap());
    copy(&data, &mix);
    assert!(log.flush_oldest().unwrap());
    while log.compact().unwrap() {}
    let again = Record {
        name: record(1).name,
        ..record(2)
    };
    commit(Change::put(again));
    commit(Change::remove(record(1).name));
    commit(Change::put(record(3)));
    drop(log);
    copy(&data.join("log"), &mix.join("log"));
    for turn in 0..3 {
        let log = open_parts(&mix);
        let found = log.get(Shard::ONLY, &record(1).name).unwrap();
        assert_eq!(found, None, "turn {turn}");
        let found = log.get(Shard::ONLY, &record(3).name).unwrap();
        assert_eq!(found, Some(record(3)), "turn {turn}");
        assert_eq!(log.flush_oldest().unwrap(), turn == 0);
    }
    assert!(DiskStore::check(&mix).unwrap().is_sound());
}

/// An older copy was laid over a newer directory: its manifest names fewer tables than there are, and
/// its segments say of a name what the tables know better. A repair took the log for newer
/// than any table, and gave back what was older, or nothing.
#[test]
fn a_repair_takes_what_is_newer_out_of_a_table_that_the_manifest_does_not_name() {
    // In the first segment of a store, whose beginning names nobody, and in a later one.
    [false, true]
        .into_iter()
        .for_each(newer_table_below_older_log);
}

fn newer_table_below_older_log(in_later_segment: bool) {
    let parent = tempfile::tempdir().unwrap();
    let at = |name| parent.path().join(name);
    let (data, older) = (at("data"), at("older"));
    drop(open(&data).unwrap());
    let files = |part| Arc::new(SystemFiles::new(&data.join(part)));
    let base = TableStore::open(files("tables"), 7, options().tables).unwrap();
    let log = LogStore::open(base, files("log"), 7, options().log).unwrap();
    let lease = log.acquire(Shard::ONLY).unwrap().lease;
    let commit = |change| log.commit(lease, &[change]).unwrap();
    for number in 1..=4 {
        commit(Change::put(record(number)));
    }
    if in_later_segment {
        assert!(log.seal().unwrap() && log.flush_oldest().unwrap());
    }
    // What the log of the older copy says.
    commit(Change::put(again(1, 5)));
    commit(Change::remove(record(2).name));
    commit(Change::put(again(3, 6)));
    commit(Change::remove(record(4).name));
    copy(&data, &older);
    // What the tables of the newer one have.
    commit(Change::put(again(1, 7)));
    commit(Change::put(again(2, 8)));
    assert!(log.seal().unwrap() && log.flush_oldest().unwrap());
    drop(log);
    copy(&older, &data);
    refused_unchanged(&data, || open(&data));
    let into = at("repaired");
    let mut lost = Vec::new();
    let repaired = DiskStore::repair(&data, &into, options(), &mut |loss| {
        lost.push(loss);
        Ok(())
    });
    assert_eq!(repaired.unwrap().timers, 3);
    let store = open(&into).unwrap();
    let found = (1..=4).map(|number| {
        let found = store.get(Shard::ONLY, &record(number).name).unwrap();
        found.map(|found| found.revision.0)
    });
    assert_eq!(found.collect::<Vec<_>>(), [Some(7), Some(8), Some(6), None]);
    // What stands in nothing that the store names may have been changed since.
    for number in [1, 2] {
        let name = record(number).name;
        let is_it = |loss: &Loss| matches!(loss, Loss::Stale { name: of, .. } if *of == name);
        assert!(lost.iter().any(is_it), "{lost:?}");
    }
}

/// The record of another number under the name of this one.
fn again(number: u64, other: u64) -> Record {
    Record {
        name: record(number).name,
        ..record(other)
    }
}

/// Copies the files below a directory over those of another.
/// Why `call` was refused. It has changed nothing in the directory.
fn refused_unchanged<T: Debug>(
    directory: &Path,
    call: impl FnOnce() -> Result<T, StoreError>,
) -> StoreError {
    unchanged(directory, call).unwrap().unwrap_err()
}

fn must_be_as(before: &Tree, directory: &Path) {
    assert_eq!(before.difference(&Tree::of(directory).unwrap()), None);
}

/// The paths of all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let below = |path: PathBuf| {
        if path.is_dir() {
            files(&path)
        } else {
            vec![path]
        }
    };
    entries
        .flat_map(|entry| below(entry.unwrap().path()))
        .collect()
}

fn copy(from: &Path, over: &Path) {
    fs::create_dir_all(over).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = over.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, to).unwrap();
        }
    }
}

#[test]
fn tables_that_have_taken_in_more_than_the_log_has_are_refused() {
    let parent = older_log_over_newer_tables();
    let mix = parent.path().join("mix");
    let refused = refused_unchanged(&mix, || open(&mix)).to_string();
    assert!(refused.contains("segment-0000000000000003"), "{refused}");
    assert!(refused.contains("the log ends here"), "{refused}");
    assert!(!DiskStore::check(&mix).unwrap().is_sound());
    // The checkpoints are files that a copy may lack, and the manifest says it as well.
    for checkpoint in names(&mix.join("tables")) {
        if checkpoint.starts_with("reached-") {
            fs::remove_file(mix.join("tables").join(checkpoint)).unwrap();
        }
    }
    refused_unchanged(&mix, || open(&mix));
    // What is whole is opened.
    let whole = open(&parent.path().join("data")).unwrap();
    let found = whole.get(Shard::ONLY, &record(1).name).unwrap();
    assert_eq!(found.map(|found| found.revision), Some(Revision(4)));
}

#[test]
fn a_directory_without_a_checkpoint_is_opened_and_gets_one() {
    let made = Made::with(300);
    let [checkpoint] = &made.checkpoints()[..] else {
        panic!("one checkpoint: {:?}", made.checkpoints());
    };
    fs::remove_file(made.data().join("tables").join(checkpoint)).unwrap();
    assert!(DiskStore::check(&made.data()).unwrap().is_sound());
    let made = made.more(1);
    assert_eq!(made.checkpoints().len(), 1);
    assert!(
        made.checkpoints()[0] > *checkpoint,
        "{:?} after {checkpoint}",
        made.checkpoints()
    );
    made.must_be_complete();
}

/// As `cp -r backup/. data/` leaves them.
#[test]
fn of_several_checkpoints_the_farthest_counts() {
    let made = Made::with(300);
    let tables = made.data().join("tables");
    fs::write(tables.join("reached-0000000000000001-0000000000000001"), "").unwrap();
    assert!(DiskStore::check(&made.data()).unwrap().is_sound());
    let made = made.more(1);
    assert_eq!(made.checkpoints().len(), 1);
    fs::write(tables.join("reached-00000000000000ff-0000000000000001"), "").unwrap();
    let refused = refused_unchanged(&made.data(), || open(&made.data()));
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
}

/// `FORMAT` of the moment at which the store was made, over what it became: the store was made
/// anew, without a word.
#[test]
fn an_old_format_over_a_store_is_refused() {
    let made = Made::with(20);
    let format = made.data().join("FORMAT");
    let ready = fs::read_to_string(&format).unwrap();
    fs::write(&format, ready.replace("ready", "creating")).unwrap();
    let refused = refused_unchanged(&made.data(), || open(&made.data()));
    assert!(refused.to_string().contains("never finished"), "{refused}");
    fs::write(&format, ready).unwrap();
    made.must_be_complete();
}

/// A snapshot shares ids and revisions with its store. Opened as a data directory it gave them a
/// second time, and was no snapshot any more.
#[test]
fn a_snapshot_is_no_data_directory() {
    let made = Made::with(20);
    let store = open(&made.data()).unwrap();
    let snapshot = made.at("snapshot");
    store.snapshot(&snapshot).unwrap();
    type Opening = fn(&Path) -> Result<DiskStore, StoreError>;
    let openings: [Opening; 3] = [
        open,
        |path| DiskStore::open_existing(path, options()),
        |path| DiskStore::init(path, 8, options()),
    ];
    for opening in openings {
        let refused = refused_unchanged(&snapshot, || opening(&snapshot));
        assert!(
            refused.to_string().contains("countwheel restore"),
            "{refused}"
        );
    }
    assert!(DiskStore::verify(&snapshot).unwrap().is_sound());
    let restored = DiskStore::restore(&snapshot, &made.at("restored"), options()).unwrap();
    assert_eq!(count(&restored), made.records);
}

#[test]
fn nothing_is_made_in_a_store_s_own_directory() {
    let made = Made::with(20);
    let store = open(&made.data()).unwrap();
    store.snapshot(&made.at("snapshot")).unwrap();
    let before = Tree::of(&made.data()).unwrap();
    for part in ["", "log", "tables", "snapshots/1", "tables/../log/x"] {
        let refused = store.snapshot(&made.data().join(part)).unwrap_err();
        assert!(
            matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
            "{refused}"
        );
        must_be_as(&before, &made.data());
    }
    drop(store);
    let inside = made.data().join("repaired");
    let refused = refused_unchanged(&made.data(), || {
        DiskStore::repair(&made.data(), &inside, options(), &mut |_| Ok(()))
    });
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    let snapshot = made.at("snapshot");
    let refused = refused_unchanged(&snapshot, || {
        DiskStore::restore(&snapshot, &snapshot.join("restored"), options())
    });
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
}

/// Whoever removed the file `LOCK` let a second process write to the same files.
/// Each of them finds the directory above it empty, and makes its name durable.
#[test]
fn stores_that_are_made_at_the_same_time_in_one_empty_directory_do_not_meet() {
    use std::os::unix::fs::PermissionsExt;

    const STORES: usize = 4;
    let root = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let above = root.path().join(round.to_string());
        fs::create_dir(&above).unwrap();
        if round % 2 == 0 {
            // As an earlier making leaves it.
            fs::set_permissions(&above, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let together = std::sync::Barrier::new(STORES);
        std::thread::scope(|scope| {
            for store in 0..STORES {
                let (together, directory) = (&together, above.join(store.to_string()));
                scope.spawn(move || {
                    together.wait();
                    let store = open(&directory).unwrap();
                    assert_eq!(count(&store), 0);
                });
            }
        });
        assert_eq!(names(&above), ["0", "1", "2", "3"]);
    }
    assert_eq!(names(root.path()).len(), 50);
}

#[test]
fn a_directory_stays_locked_when_the_file_is_removed() {
    let made = Made::with(20);
    let store = open(&made.data()).unwrap();
    fs::remove_file(made.data().join("LOCK")).unwrap();
    for _ in 0..2 {
        let refused = refused_unchanged(&made.data(), || open(&made.data()));
        // The file is not there: what is locked is the directory.
        assert!(
            matches!(&refused, StoreError::Disk(DiskError::Locked { path, .. }) if *path == made.data()),
            "{refused}"
        );
        // Whoever only reads is let in.
        let before = Tree::of(&made.data()).unwrap();
        assert!(DiskStore::check(&made.data()).unwrap().is_sound());
        must_be_as(&before, &made.data());
    }
    drop(store);
    made.must_be_complete();
}

#[test]
fn a_root_of_a_file_system_becomes_a_data_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    let store = open(directory.path()).unwrap();
    assert!(store.was_made());
    drop(store);
    let store = open(directory.path()).unwrap();
    assert!(!store.was_made());
    assert!(directory.path().join("lost+found").is_dir());
}

#[test]
fn a_start_that_needs_a_store_makes_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let missing = parent.path().join("a/b");
    let opened = || DiskStore::open_existing(&missing, options());
    let refused = refused_unchanged(parent.path(), opened);
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    fs::create_dir_all(&missing).unwrap();
    let refused = refused_unchanged(parent.path(), opened);
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
    let made = DiskStore::init(&missing, 7, options()).unwrap();
    assert!(made.was_made());
    drop(made);
    assert!(!opened().unwrap().was_made());
    let refused = refused_unchanged(parent.path(), || DiskStore::init(&missing, 8, options()));
    assert!(
        matches!(refused, StoreError::Disk(DiskError::NotAStore { .. })),
        "{refused}"
    );
}

/// What becomes of a file's bytes; `None` if it is gone.
type Damage = fn(Vec<u8>) -> Option<Vec<u8>>;

/// Each file of a store damaged, cut or gone.
#[test]
fn whatever_a_start_is_refused_for_it_changes_nothing() {
    must_change_nothing(&Made::with(300));
}

/// The same of a store of the format before, which becomes one of the newest only if it is opened.
#[test]
fn a_start_that_is_refused_raises_no_format() {
    let made = Made::with(300);
    make_older(&made.data());
    must_change_nothing(&made);
}

/// What the version before says of its directories.
fn make_older(directory: &Path) {
    let format = directory.join("FORMAT");
    let newest = fs::read_to_string(&format).unwrap();
    let older = newest.replace("\nformat 3\n", "\nformat 2\n");
    assert_ne!(newest, older);
    fs::write(format, older).unwrap();
}

fn format_of(directory: &Path) -> String {
    let text = fs::read_to_string(directory.join("FORMAT")).unwrap();
    text.lines().nth(1).unwrap().to_owned()
}

#[test]
fn a_directory_of_the_format_before_is_raised_once_it_is_open() {
    let made = Made::with(20);
    assert_eq!(format_of(&made.data()), "format 3");
    make_older(&made.data());
    assert!(DiskStore::check(&made.data()).unwrap().is_sound());
    assert_eq!(format_of(&made.data()), "format 2");
    drop(DiskStore::open_existing(&made.data(), options()).unwrap());
    assert_eq!(format_of(&made.data()), "format 3");
    made.must_be_complete();
}

#[test]
fn a_snapshot_of_the_format_before_is_restored_into_the_newest() {
    let made = Made::with(20);
    let (snapshot, restored) = (made.at("snapshot"), made.at("restored"));
    open(&made.data()).unwrap().snapshot(&snapshot).unwrap();
    make_older(&snapshot);
    assert!(DiskStore::verify(&snapshot).unwrap().is_sound());
    let store = DiskStore::restore(&snapshot, &restored, options()).unwrap();
    assert_eq!(count(&store), made.records);
    assert_eq!(format_of(&restored), "format 3");
    assert_eq!(format_of(&snapshot), "format 2");
}

fn must_change_nothing(made: &Made) {
    let whole = made.at("whole");
    copy(&made.data(), &whole);
    let (mut refused, mut opened) = (0, 0);
    let all = files(&made.data());
    for path in all {
        let sound = fs::read(&path).unwrap();
        let damages: [Damage; 5] = [
            |_| None,
            |_| Some(Vec::new()),
            |bytes| Some(bytes[..bytes.len() / 2].to_vec()),
            |mut bytes| {
                *bytes.get_mut(70)? ^= 1;
                Some(bytes)
            },
            |mut bytes| {
                *bytes.last_mut()? ^= 1;
                Some(bytes)
            },
        ];
        for damage in damages {
            match damage(sound.clone()) {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let before = Tree::of(&made.data()).unwrap();
            match open(&made.data()) {
                Ok(store) => {
                    drop(store);
                    opened += 1;
                }
                Err(_) => {
                    must_be_as(&before, &made.data());
                    refused += 1;
                }
            }
            fs::remove_dir_all(made.data()).unwrap();
            copy(&whole, &made.data());
        }
    }
    assert!(
        refused > 20 && opened > 0,
        "{refused} refused, {opened} opened"
    );
    made.must_be_complete();
}
