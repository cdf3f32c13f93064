//! The store of the program: a log and sorted tables in one data directory.
//!
//! In `log/` are the segments, in `tables/` the tables. What the directory is and who has it is
//! in two files beside them: see [`directory`](super::directory).

mod backup;
mod rescue;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::backup::Snapshot;
use super::directory::{
    Format, LOG_AND_TABLES, claim, create_directory, io_error, sync_directory, write_format,
};
use super::{
    Change, DueEntry, DueScan, EmbeddedStore, Filter, Lease, LogOptions, LogStore, MovingLog,
    OnFailure, Ownership, Page, QueueCounts, Recovery, Shard, Store, StoreError, SystemFiles,
    TableOptions, TableStore,
};
use crate::{Record, TimerName};

const LOG: &str = "log";
const TABLES: &str = "tables";

/// How a [`DiskStore`] is laid out.
///
/// ```
/// let options = countwheel_durable::store::DiskOptions::default();
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

/// Keeps timers in a data directory: what is young in a log, the rest in sorted tables. A commit
/// is on disk when it returns, after one write and one sync.
///
/// Only one process at a time has the directory. Two threads keep the log short and the tables
/// few; they end with the store. On the disk are at least three segments of the log, 192 MiB as
/// the options are.
///
/// ```
/// use countwheel_durable::store::{DiskOptions, DiskStore, Shard, Store, StoreError};
///
/// let mut options = DiskOptions::default();
/// options.log.segment_bytes = 1 << 16; // for a test
/// let directory = tempfile::tempdir()?;
/// let store = DiskStore::open(directory.path(), 0xfeed, options)?;
/// assert_eq!(store.acquire(Shard::ONLY)?.store_id, 0xfeed);
///
/// let second = DiskStore::open(directory.path(), 0xbeef, options);
/// assert!(matches!(second, Err(StoreError::Locked { .. })));
///
/// drop(store);
/// let again = DiskStore::open(directory.path(), 0xbeef, options)?;
/// assert_eq!(again.acquire(Shard::ONLY)?.store_id, 0xfeed);
/// assert_eq!(again.recovery().frames, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DiskStore {
    log: MovingLog<TableStore>,
    directory: PathBuf,
    store_id: u64,
    /// Held as long as the files are open: declared after them, so dropped after them.
    _lock: File,
}

impl DiskStore {
    /// Opens the store in `directory`, and makes it if the directory is empty or not there.
    /// A store that is made gets the id `new_store_id`; one that exists keeps its own.
    ///
    /// Reads the log, which is bounded by the options, and of the tables only what says what
    /// is in them.
    ///
    /// # Errors
    /// [`StoreError`], every kind but `Fenced` and `Poisoned`. A directory is never taken for
    /// empty because part of it is missing. One with an [`EmbeddedStore`] is refused as
    /// [`StoreError::NotAStore`]: see [`convert`](Self::convert).
    pub fn open(
        directory: &Path,
        new_store_id: u64,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        let (lock, format) = claim(directory, LOG_AND_TABLES)?;
        match format {
            Some(Format {
                store_id,
                ready: true,
                ..
            }) => {
                must_have(directory)?;
                Self::open_ready(directory, store_id, options, lock)
            }
            _ => Self::create(directory, new_store_id, options, lock, |_| Ok(())),
        }
    }

    /// Makes a store in the empty directory `into` of all that the embedded store in `from` has,
    /// with the same id, so that the ids of timers stay what they are. Takes as long as it takes
    /// to read and write them all; in memory is a page. If it ends before its time, `into` is
    /// as good as empty. `from` keeps its timers, but must not be used any more.
    ///
    /// # Errors
    /// As [`open`](Self::open), [`StoreError::NotAStore`] if `into` holds a store already, and
    /// as [`EmbeddedStore::open`] for `from`.
    ///
    /// ```
    /// use countwheel_durable::Revision;
    /// use countwheel_durable::store::{
    ///     Change, DiskOptions, DiskStore, EmbeddedStore, Shard, Store,
    /// };
    ///
    /// let (from, into) = (tempfile::tempdir()?, tempfile::tempdir()?);
    /// let old = EmbeddedStore::open(from.path(), 7)?;
    /// let lease = old.acquire(Shard::ONLY)?.lease;
    /// old.commit(lease, &[Change::Given(Revision(5))])?;
    /// drop(old);
    ///
    /// let mut options = DiskOptions::default();
    /// options.log.segment_bytes = 1 << 16; // for a test
    /// let new = DiskStore::convert(from.path(), into.path(), options)?;
    /// let ownership = new.acquire(Shard::ONLY)?;
    /// assert_eq!((ownership.store_id, ownership.last_revision), (7, Revision(5)));
    /// // Whoever knew the fence of an attempt sees a higher one.
    /// assert!(ownership.lease.fence > lease.fence);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn convert(from: &Path, into: &Path, options: DiskOptions) -> Result<Self, StoreError> {
        if !from.is_dir() {
            return Err(StoreError::NotAStore {
                path: from.to_owned(),
                problem: "is no directory".to_owned(),
            });
        }
        let old = EmbeddedStore::open(from, 0)?;
        let known = old.acquire(Shard::ONLY)?;
        let (lock, format) = claim(into, LOG_AND_TABLES)?;
        if format.is_some_and(|format| format.ready) {
            return Err(StoreError::NotAStore {
                path: into.to_owned(),
                problem: "holds a store already".to_owned(),
            });
        }
        Self::create(into, known.store_id, options, lock, |new| {
            copy(&old, known, new)
        })
    }

    /// What the opening had to do.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.log.log().recovery()
    }

    /// Why the store takes no more commits, if it was not a commit that failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.log.log().failure()
    }

    /// Makes a store in a directory that has none, or has one that was never ready. It is ready
    /// once it has what `fill` puts into it.
    fn create(
        directory: &Path,
        store_id: u64,
        options: DiskOptions,
        lock: File,
        fill: impl FnOnce(&Self) -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        let mut format = begin(directory, store_id)?;
        let store = Self::open_ready(directory, store_id, options, lock)?;
        fill(&store)?;
        // All of it is there, under its names, before anything says so.
        sync_directory(directory)?;
        format.ready = true;
        write_format(directory, format)?;
        Ok(store)
    }

    fn open_ready(
        directory: &Path,
        store_id: u64,
        options: DiskOptions,
        lock: File,
    ) -> Result<Self, StoreError> {
        let files = |part| {
            let path = directory.join(part);
            if path.is_dir() {
                return Ok(Arc::new(SystemFiles::new(&path)));
            }
            Err(missing(path))
        };
        let (log, tables) = (files(LOG)?, files(TABLES)?);
        // An opening of the tables writes already.
        super::log::refuse_others(&*log)?;
        let tables = TableStore::open(tables, store_id, options.tables)?;
        let log = LogStore::open(tables, log, store_id, options.log)?;
        let log = MovingLog::start(log).map_err(|source| io_error(directory, source))?;
        Ok(Self {
            log,
            directory: directory.to_owned(),
            store_id,
            _lock: lock,
        })
    }
}

/// A store that was ever ready has a segment of a log and a manifest of tables: without them
/// it is not new, something was taken away.
fn must_have(directory: &Path) -> Result<(), StoreError> {
    for (part, begins) in [(LOG, "segment-"), (TABLES, "manifest")] {
        let path = directory.join(part);
        let names = match fs::read_dir(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Err(missing(path)),
            names => names.map_err(|source| io_error(&path, source))?,
        };
        let is_it = |name: OsString| name.to_string_lossy().starts_with(begins);
        let mut names = names.flatten();
        if !names.any(|entry| is_it(entry.file_name())) {
            return Err(StoreError::NotAStore {
                path,
                problem: format!("it has no file {begins}..., though there was a store"),
            });
        }
    }
    Ok(())
}

fn missing(path: PathBuf) -> StoreError {
    let problem = "it is missing".to_owned();
    StoreError::Corrupt { path, problem }
}

/// Puts all that `old` has into `new`.
fn copy(old: &EmbeddedStore, known: Ownership, new: &dyn Store) -> Result<(), StoreError> {
    let mut lease = new.acquire(Shard::ONLY)?.lease;
    while lease.fence < known.lease.fence {
        lease = new.acquire(Shard::ONLY)?.lease;
    }
    let counts = old.counts(Shard::ONLY)?;
    let total: u64 = counts.iter().flat_map(|queue| queue.by_state).sum();
    let mut done = 0;
    for counts in counts {
        let mut filter = Filter {
            limit: 1_024,
            ..Filter::queue(counts.queue)
        };
        loop {
            let page = old.list(Shard::ONLY, &filter)?;
            done += page.records.len();
            let changes = page.records.into_iter().map(|record| Change::Put {
                record: Box::new(record),
                before: super::Before::Absent,
            });
            new.commit(lease, &changes.collect::<Vec<_>>())?;
            tracing::info!(done, total, "timers converted");
            match page.next {
                Some(next) => filter.after = Some(next),
                None => break,
            }
        }
    }
    new.commit(lease, &[Change::Given(known.last_revision)])
}

/// Says that a store is being made in the directory, and makes its parts, empty.
fn begin(directory: &Path, store_id: u64) -> Result<Format, StoreError> {
    let format = Format {
        version: LOG_AND_TABLES,
        store_id,
        ready: false,
    };
    write_format(directory, format)?;
    for part in [LOG, TABLES] {
        let path = directory.join(part);
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&path, source));
            }
            _ => create_directory(&path)?,
        }
    }
    Ok(format)
}

impl Store for DiskStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.log.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.log.commit(lease, changes)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.log.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        self.log.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.log.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.log.counts(shard)
    }

    fn has_room(&self) -> bool {
        self.log.has_room()
    }

    fn on_failure(&self, f: OnFailure) {
        self.log.on_failure(f);
    }

    fn snapshot(&self, into: &Path) -> Result<Snapshot, StoreError> {
        Self::snapshot(self, into)
    }
}
