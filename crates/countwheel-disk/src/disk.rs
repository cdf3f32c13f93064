//! The store of the program: a log and sorted tables in one data directory.
//!
//! In `log/` are the segments, in `tables/` the tables, in `set-aside/` tables that the manifest
//! does not name. Beside them, `FORMAT` says what the directory is, and `LOCK` is locked: see
//! [`directory`](super::directory).

mod backup;
mod beside;
mod opened;
mod raised;
mod rescue;

use std::fs;
use std::path::{Path, PathBuf};

#[cfg(feature = "planted-bugs")]
pub(super) use self::backup::is_list;
pub(super) use self::opened::Opened;
use self::opened::{making, must_have, refuse_snapshot};
pub(super) use self::raised::RaisedFormat;
use super::directory::{Claim, FORMAT, Lock, inspect, io_error};
use super::files::cannot_open;
use super::place::{DirectoryTree as _, FileSystem};
use super::scrub::{Piece, Scrub};
use super::{
    Change, Commit, DiskError, DuePage, DueScan, Filter, FlushingLog, Gaps, Lease, LogOptions,
    LogStats, OnDisk, OnFailure, OpenFiles, Ownership, Page, QueueCounts, Recovery, Scrubbed,
    Shard, Snapshot, Store, StoreError, Summary, TableOptions, TableStats, TableStore, one_by_one,
};
use crate::{QueueName, Record, Settings, SettingsVersion, TimerName, Trouble, Troubles};

const LOG: &str = "log";
const TABLES: &str = "tables";
/// What only a snapshot has.
const SNAPSHOT: &str = "SNAPSHOT";

/// How a [`DiskStore`] is laid out.
///
/// ```
/// let options = countwheel_disk::DiskOptions::default();
/// assert_eq!(options.log.reserve_segments, 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DiskOptions {
    /// The log.
    pub log: LogOptions,
    /// The tables.
    pub tables: TableOptions,
}

/// What a [`DiskStore`] has written since it was opened, and what it holds. See
/// [`DiskStore::stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DiskStats {
    /// The log.
    pub log: LogStats,
    /// The tables.
    pub tables: TableStats,
}

/// Keeps timers in a data directory: what came last in a log, the rest in sorted tables. A commit
/// is on disk when it returns, after one write and one sync.
///
/// Only one process at a time has the directory. Two threads keep the log short and the tables
/// few; they end with the store. On the disk are at least three segments of the log. As the
/// options are, these take 4 MiB in a new directory, and 192 MiB once some 100 MiB were committed.
///
/// Whoever removes, renames or replaces the directory while the store is open ends the store: the next
/// commit is refused with [`DiskError::Removed`], since no start would find the commit. A process that
/// forks without becoming another program leaves its child a copy of the lock, and until the child ends
/// the directory is [`Locked`](DiskError::Locked), also once the process itself has ended.
///
/// ```
/// use countwheel_disk::{DiskOptions, DiskStore};
/// use countwheel_durable::store::{Shard, Store, DiskError, StoreError};
///
/// let mut options = DiskOptions::default();
/// options.log.segment_bytes = 1 << 16; // for a test
/// let directory = tempfile::tempdir()?;
/// let store = DiskStore::open(directory.path(), 0xfeed, options)?;
/// assert_eq!(store.acquire(Shard::ONLY)?.store_id, 0xfeed);
///
/// let second = DiskStore::open(directory.path(), 0xbeef, options);
/// assert!(matches!(second, Err(StoreError::Disk(DiskError::Locked { .. }))));
///
/// drop(store);
/// let again = DiskStore::open(directory.path(), 0xbeef, options)?;
/// assert_eq!(again.acquire(Shard::ONLY)?.store_id, 0xfeed);
/// assert_eq!(again.recovery().frames, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DiskStore {
    log: FlushingLog<TableStore>,
    directory: PathBuf,
    format: RaisedFormat,
    was_made: bool,
    /// The round of what is in neither the log nor the tables.
    scrub: Scrub,
    /// Held as long as the files are open: declared after them, so dropped after them.
    _lock: Lock,
}

impl DiskStore {
    /// Opens the store in `directory`, and makes it if the directory is empty or not there;
    /// [`was_made`](Self::was_made) says which. A store that is made gets the id `new_store_id`;
    /// one that exists keeps its own.
    ///
    /// Reads the log, which is bounded by the options, and of the tables only what says what
    /// is in them. Nothing is written before all that is read turned out to be sound.
    ///
    /// # Errors
    /// [`StoreError`], every kind but `Fenced` and `Poisoned`. After `NotAStore`, `Corrupt` and
    /// `Locked` the directory is as it was, to the byte. A directory is never taken for
    /// empty because part of it is missing. A snapshot is refused as [`DiskError::NotAStore`]: see
    /// [`restore`](Self::restore).
    pub fn open(
        directory: &Path,
        new_store_id: u64,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        let opened = Opened::at(&FileSystem, directory, new_store_id, options)?;
        Self::start(directory, opened)
    }

    /// Opens the store in `directory`, which has to be there.
    ///
    /// ```
    /// use countwheel_disk::{DiskOptions, DiskStore};
    /// use countwheel_durable::store::{DiskError, StoreError};
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let directory = tempfile::tempdir()?;
    /// let refused = DiskStore::open_existing(directory.path(), options);
    /// assert!(matches!(refused, Err(StoreError::Disk(DiskError::NotAStore { .. }))));
    ///
    /// let made = DiskStore::init(directory.path(), 7, options)?;
    /// assert!(made.was_made());
    /// drop(made);
    /// assert!(!DiskStore::open_existing(directory.path(), options)?.was_made());
    /// let again = DiskStore::init(directory.path(), 7, options);
    /// assert!(matches!(again, Err(StoreError::Disk(DiskError::NotAStore { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`DiskError::NotAStore`] if there is none.
    pub fn open_existing(directory: &Path, options: DiskOptions) -> Result<Self, StoreError> {
        refuse_snapshot(&FileSystem, directory)?;
        let (lock, format) = Claim::existing(&FileSystem, directory)?;
        must_have(&FileSystem, directory)?;
        let opened = Opened::ready(&FileSystem, directory, format, options, lock)?;
        Self::start(directory, opened)
    }

    /// Makes a store with the id `store_id` in `directory`, which is empty or not there.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`DiskError::NotAStore`] if there is a store.
    pub fn init(directory: &Path, store_id: u64, options: DiskOptions) -> Result<Self, StoreError> {
        refuse_snapshot(&FileSystem, directory)?;
        let Claim { lock, .. } = Claim::empty(&FileSystem, directory)?;
        Self::create(directory, store_id, options, lock, |_| Ok(()))
    }

    /// Refuses `path` if it is in the data directory `data`, where nothing else may be.
    ///
    /// ```
    /// use countwheel_disk::DiskStore;
    ///
    /// let directory = tempfile::tempdir()?;
    /// let data = directory.path().join("data");
    /// assert!(DiskStore::must_be_outside(&data.join("snapshots"), &data).is_err());
    /// assert!(DiskStore::must_be_outside(&directory.path().join("snapshots"), &data).is_ok());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DiskError::NotAStore`].
    pub fn must_be_outside(path: &Path, data: &Path) -> Result<(), StoreError> {
        // What is there of a path: the rest is going to be made.
        let real = |path: &Path| {
            let mut path = std::path::absolute(path).ok()?;
            let mut rest = Vec::new();
            loop {
                match fs::canonicalize(&path) {
                    Ok(real) => {
                        return Some(rest.into_iter().rev().fold(real, |at, name| at.join(name)));
                    }
                    Err(_) => rest.push(path.file_name()?.to_owned()),
                }
                path.pop();
            }
        };
        match (real(path), real(data)) {
            (Some(path), Some(data)) if path.starts_with(&data) => Err(DiskError::NotAStore {
                path,
                problem: format!("is in the store's own directory {}", data.display()),
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// Whether the opening made the store, since there was none.
    #[must_use]
    pub fn was_made(&self) -> bool {
        self.was_made
    }

    /// What the opening had to do.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.log.log().recovery()
    }

    /// What was written since it was opened, and what it holds. Waits for the commit that is under
    /// way.
    ///
    /// ```
    /// use countwheel_disk::{DiskOptions, DiskStore};
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let directory = tempfile::tempdir()?;
    /// let store = DiskStore::open(directory.path(), 7, options)?;
    /// let stats = store.stats();
    /// assert!(stats.log.zeros >= 2 << 16 && stats.tables.written == 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        let log = self.log.log();
        DiskStats {
            log: log.stats(),
            tables: log.base().stats(),
        }
    }

    /// Why the store takes no more commits, if it was not a commit that failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.log.log().failure()
    }

    /// Makes a store in a directory that has none, or has one that was never ready. It is ready
    /// once it has what `fill` puts into it; if that fails, the directory is as good as empty.
    fn create(
        directory: &Path,
        store_id: u64,
        options: DiskOptions,
        lock: Lock,
        fill: impl FnOnce(&Self) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        let mut store = making(&FileSystem, directory, store_id, lock, |format, lock| {
            let opened = Opened::ready(&FileSystem, directory, format, options, lock)?;
            let store = Self::start(directory, opened)?;
            fill(&store)?;
            Ok(store)
        })?;
        store.was_made = true;
        Ok(store)
    }

    fn start(directory: &Path, opened: Opened) -> Result<Self, StoreError> {
        let log = FlushingLog::start(opened.log).map_err(|source| io_error(directory, source))?;
        Ok(Self {
            log,
            directory: directory.to_owned(),
            format: RaisedFormat::new(opened.format),
            was_made: opened.was_made,
            scrub: Scrub::default(),
            _lock: opened.lock,
        })
    }
}

impl DiskStore {
    /// Reads what the directory says of itself: the next start depends on it, and nothing else reads
    /// it until then.
    fn scrub_format(&self) -> Scrubbed {
        let files = FileSystem.read_only(&self.directory);
        let list = || vec![0];
        self.scrub.step(&*files, u64::MAX, list, |_, _, found| {
            let problem = match inspect(&FileSystem, &self.directory) {
                Ok(Some(found)) if found == self.format.get() => None,
                Ok(Some(_)) => Some("it is that of another store".to_owned()),
                Ok(None) => Some("it is missing".to_owned()),
                // With too many files open it may be as sound as ever.
                Err(StoreError::Disk(DiskError::Io { source, .. })) if cannot_open(&source) => None,
                Err(StoreError::Disk(
                    DiskError::Corrupt { problem, .. } | DiskError::NotAStore { problem, .. },
                )) => Some(problem),
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                found.note(&self.directory.join(FORMAT), 0, &problem);
            }
            // Whoever finds it in a data directory refuses to start.
            let snapshot = self.directory.join(SNAPSHOT);
            if snapshot.exists() {
                found.note(
                    &snapshot,
                    0,
                    "only a snapshot has this file: a start is refused",
                );
            }
            Piece {
                bytes: 0,
                next: None,
            }
        })
    }

    /// Sees to `FORMAT` before a commit.
    fn raise_format(&self, changes: &[Change]) -> Result<(), StoreError> {
        let raised = self.format.before(&FileSystem, &self.directory, changes);
        raised.inspect_err(|error| {
            if !error.is_full() {
                // What the directory says is not known.
                self.log.log().end(&error.to_string());
            }
        })
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.log.log().close();
    }
}

impl Store for DiskStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.log.acquire(shard)
    }

    /// Notes where the log ends. The program may end before the store is dropped.
    fn stopped(&self) {
        self.log.log().close();
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.raise_format(changes)?;
        self.log.commit(lease, changes)
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        let raised = |commit: &Commit<'_>| self.raise_format(commit.changes);
        if commits.iter().all(|commit| raised(commit).is_ok()) {
            return self.log.commit_all(commits);
        }
        one_by_one(self, commits) // each is refused by itself
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.log.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.log.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.log.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.log.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.log.counts(shard)
    }

    fn counts_after(
        &self,
        shard: Shard,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        self.log.counts_after(shard, after, limit)
    }

    fn summary(
        &self,
        shard: Shard,
        first: &[QueueName],
        limit: usize,
    ) -> Result<Summary, StoreError> {
        self.log.summary(shard, first, limit)
    }

    fn gaps(&self) -> Gaps {
        self.log.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = self.scrub.troubles(|_| true);
        troubles.extend(self.log.troubles());
        troubles.truncate(Troubles::LISTED_MAX);
        troubles
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        Some(self)
    }
}

impl OnDisk for DiskStore {
    fn has_room(&self) -> bool {
        self.log.has_room()
    }

    fn on_failure(&self, f: OnFailure) {
        self.log.on_failure(f);
    }

    fn scrub_step(&self, budget: u64) -> Scrubbed {
        let scrubbed = self.log.scrub_step(budget);
        if scrubbed.ended {
            self.scrub_format();
        }
        scrubbed
    }

    fn open_files(&self) -> OpenFiles {
        let mut files = self.log.open_files();
        files.open += 1; // the lock
        files
    }

    fn snapshot(&self, into: &Path) -> Result<Snapshot, StoreError> {
        Self::snapshot(self, into)
    }
}

#[cfg(test)]
mod tests {
    use super::super::directory::Format;
    use super::super::directory::VERSION;
    use super::*;
    use crate::Revision;
    use countwheel_durable::Namespace;
    use countwheel_durable::store::conformance::varied_records;

    fn options() -> DiskOptions {
        let mut options = DiskOptions::default();
        options.log.segment_bytes = 1 << 16;
        options
    }

    /// As if the disk had been full when it was opened.
    fn older(directory: &Path) -> DiskStore {
        drop(DiskStore::open(directory, 7, options()).unwrap());
        let mut store = DiskStore::open(directory, 7, options()).unwrap();
        let format = Format {
            version: VERSION - 1,
            ..store.format.get()
        };
        super::super::directory::write_format(&FileSystem, directory, format).unwrap();
        store.format = RaisedFormat::new(format);
        store
    }

    fn version(directory: &Path) -> u64 {
        let format = inspect(&FileSystem, directory).unwrap();
        format.unwrap().version
    }

    fn put_in(namespace: &str) -> Change {
        let mut record = varied_records().swap_remove(1);
        let namespace = Namespace::new(namespace).unwrap();
        record.name.queue = QueueName::in_namespace(&namespace, "q").unwrap();
        Change::put(record)
    }

    #[test]
    fn a_format_that_a_full_disk_kept_is_raised_with_the_next_commit() {
        let directory = tempfile::tempdir().unwrap();
        let store = older(directory.path());
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        assert_eq!(version(directory.path()), VERSION - 1);
        store.commit(lease, &[put_in("default")]).unwrap();
        assert_eq!(version(directory.path()), VERSION);
        assert!(!store.format.get().is_older());
    }

    #[test]
    fn a_format_that_cannot_be_raised_ends_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let store = older(directory.path());
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        // In the way of the new one.
        fs::create_dir_all(directory.path().join("FORMAT.new/x")).unwrap();
        let refused = store.commit(lease, &[put_in("other")]);
        assert!(
            matches!(refused, Err(StoreError::Disk(DiskError::Io { .. }))),
            "{refused:?}"
        );
        let refused = store.commit(lease, &[Change::Given(Revision(5))]);
        assert!(matches!(refused, Err(StoreError::Poisoned)), "{refused:?}");
        assert_eq!(version(directory.path()), VERSION - 1);
    }
}
