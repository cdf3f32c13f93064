//! The sorted store behind a log: immutable tables in files, a manifest that names them, and
//! merging. A log-structured merge tree without the log and the table in memory, which others
//! have already.
//!
//! # Files
//!
//! - `table-<number>`: what one ingest or one merge wrote, or a part of it. Never changed.
//! - `manifest`: which tables there are; see [`manifest`].
//! - `manifest-new-<number>`: one that is being written.
//! - `reached-<segment>-<commit>`: how far the log in front has reached; see [`checkpoint`].
//!
//! A number is sixteen hexadecimal digits and is given once. What the manifest does not name is
//! left over from a crash, or the manifest is older than the directory: when the store is opened,
//! it is [set aside](Files::set_aside).
//!
//! # A table
//!
//! A table is a sequence of frames, each at a multiple of eight bytes:
//!
//! ```text
//! | checksum u32 | length u32 | kind u8 | 0 0 0 | body ... | to a multiple of 8 |
//! ```
//!
//! Numbers are little endian. The checksum is the CRC-32 of the store's id, the file's number,
//! the offset and the length (eight bytes each), the kind, and the body. So a frame from another
//! place is none. If the highest bit of the kind is set, the body is packed: it is how long it was,
//! in four bytes, and a block of LZ4. In this order there are
//!
//! 1. **records** by name: blocks of entries, see [`block`]. The key is the shard, the queue, NUL
//!    and the timer's key; the value a byte 0 for a removal (a **tombstone**), 1 and the record as
//!    the codec writes it but for its name and its checksum, 2 and where this stands in a frame
//!    of its own, which it has if it is long, or 3 and what the indexes say of a record that could
//!    not be read when it was flushed here from the log: its state, its clock, whether it wakes (a byte
//!    each), its due time and revision, and the time and revision of its wake (eight bytes each).
//!    Only a store with damage has such a value; a program from before there were any takes the
//!    block for damaged;
//! 2. **due**: the key is the shard, the clock, the wake's time and revision; the value the name;
//! 3. **list**: the key is the shard, the queue, NUL, the state, due time and revision; the value
//!    the timer's key;
//! 4. a **filter** over the names, see [`filter`];
//! 5. a **footer**, see [`format::Footer`].
//!
//! After the blocks of each of the first three, or between them, stand the index blocks of a tree
//! over them: the last key of each block, and where it stands. Numbers in keys are big endian, so
//! that the order of the bytes is the order of what they stand for.
//!
//! # Which version counts
//!
//! Tables that do not overlap form a **run**; each ingest makes one, and so does each merge. Of a
//! name counts what the newest run says that has it. The indexes of a table speak of its own
//! records alone, so an entry counts only if no newer run knows the name: filters answer that
//! mostly, and the record's block otherwise. Nothing is looked up when something is written.

mod block;
mod cache;
mod check;
mod checkpoint;
mod directory;
mod fill;
mod filter;
mod flat;
mod format;
#[cfg(feature = "planted-bugs")]
pub(super) mod fuzz;
mod manifest;
mod merge;
mod reader;
mod salvage;
mod scan;
mod scrub;
mod skips;
mod snapshot;
mod version;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

pub use self::check::{TableCheck, TableProblem};
pub(super) use self::check::{has_reached, ingested};
use self::checkpoint::Checkpoints;
pub(super) use self::checkpoint::{checkpoint_of, reached};
use self::directory::{Directory, FileName, Purpose, io_error, not_a_store};
use self::format::strip;
use self::manifest::Manifest;
use self::merge::{Fault, Merge};
use self::reader::Table;
pub(super) use self::salvage::Found;
pub use self::salvage::Salvaged;
pub use self::snapshot::TableSnapshot;
use self::version::{TableRun, Version};
use self::writer::{Content, RunWriter};
use super::codec::{self, Indexed};
use super::files::{Files, StoreFile, is_full};
use super::scrub::Scrub;
use super::sorted::{FlushedContent, share};
use super::{
    DiskError, DuePage, DueScan, Filter, Flushed, Gaps, OpenFiles, Page, Reached, Scrubbed, Shard,
    Sorted, StoreError,
};
use crate::planted::planted;
use crate::{Record, StateKind, TimerName, Trouble};

/// How a table store is laid out. See [`TableStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TableOptions {
    /// About how long a table is at most, in bytes: from 4 KiB to 1 GiB. Writing one takes about
    /// half as much memory with records of 300 bytes.
    pub table_bytes: u64,
    /// About how long a block is, in bytes: from 64 B to 1 MiB. One has to be read for each
    /// record.
    pub block_bytes: usize,
    /// How many bytes of blocks are kept in memory.
    pub cache_bytes: usize,
    /// How many runs become one: 2 at least. More mean fewer writes, and more runs to look into.
    /// With three times as many of one tier a log flushes nothing until some were merged.
    pub fan_in: usize,
    /// About how many bytes of records one step of a merge reads. A step may also finish a table,
    /// whose indexes are about a quarter of it.
    pub merge_bytes: u64,
    /// A range of so many entries that need attention, all of them replaced or removed since, is
    /// remembered in memory once it was looked at. 1 at least.
    pub skip_min: usize,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            table_bytes: 128 << 20,
            block_bytes: 8 << 10,
            cache_bytes: 64 << 20,
            fan_in: 8,
            merge_bytes: 8 << 20,
            skip_min: 64,
        }
    }
}

/// How much a table store holds, without looking at it. See [`TableStore::stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TableStats {
    /// Runs: how many tables a read may have to look into. Many more than the fan-in for each
    /// power of the fan-in mean that compaction is behind.
    pub runs: usize,
    /// Tables, each in a file.
    pub tables: usize,
    /// Records, those that newer ones replaced included.
    pub records: u64,
    /// Removals that are remembered because of older tables.
    pub tombstones: u64,
    /// The length of all tables' files.
    pub bytes: u64,
    /// Bytes of tables written since the store was opened, by ingests and merges, those of tables
    /// that are not finished included.
    pub written: u64,
    /// Of these, those by ingests.
    pub taken_in: u64,
    /// And those by merges of everything, because too much was removed. The others are by merges of
    /// a tier.
    pub purged: u64,
    /// Blocks of these tables that are in memory, in bytes: at most
    /// [`TableOptions::cache_bytes`].
    pub cached: usize,
}

/// Keeps records in sorted tables, which are written once and merged now and then.
///
/// An [`ingest`](Sorted::ingest) writes and syncs one table and looks nothing up. A read looks
/// into few tables. In memory are a filter of ten bits a name and a cache of a fixed size,
/// whatever the store holds. [`merge_step`](Self::merge_step) is for who keeps the tables few, on
/// a thread of its own or in a simulation.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{Flushed, Sorted, SystemFiles, TableOptions, TableStore};
///
/// let directory = tempfile::tempdir()?;
/// let open = |store_id| {
///     let files = Arc::new(SystemFiles::new(directory.path()));
///     TableStore::open(files, store_id, TableOptions::default())
/// };
/// let store = open(7)?;
/// store.ingest(1, Flushed::default())?;
/// while store.merge_step()? {}
/// drop(store);
/// assert_eq!(open(7)?.ingested(), 1);
/// // Another store's tables are refused.
/// assert!(open(8).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TableStore {
    directory: Arc<Directory>,
    /// What is to be done before anything else is written.
    unpersisted: Mutex<Option<Unpersisted>>,
    /// Whether the manifest that was opened is sure to be the one that is found again.
    is_persisted: AtomicBool,
    checkpoints: Mutex<Checkpoints>,
    version: RwLock<Arc<Version>>,
    /// Held by the one ingest at a time. Taken before `editing`.
    ingesting: Mutex<()>,
    /// The merges that are under way, each of a lower tier than the one before: the last goes on.
    /// Held by one step at a time. Taken before `editing`.
    merging: Mutex<Vec<Merge>>,
    /// The last step of a merge found no room.
    starved: AtomicBool,
    scrub: Scrub,
    /// Held while the manifest is written and the version replaced.
    editing: Mutex<()>,
}

/// What an opening leaves to be done.
#[derive(Debug)]
struct Unpersisted {
    /// There was no manifest.
    is_new: bool,
    /// The files that the manifest does not name.
    unnamed: Vec<String>,
}

impl TableStore {
    /// Opens the store in `files`, or makes an empty one if there are no files at all.
    ///
    /// Reads the manifest and a footer of each table, and sets aside what a crash left behind.
    ///
    /// # Errors
    /// As [`open_unpersisted`](Self::open_unpersisted), and [`DiskError::Full`] if there is no room
    /// to begin.
    pub fn open(
        files: Arc<dyn Files>,
        store_id: u64,
        options: TableOptions,
    ) -> Result<Self, StoreError> {
        let store = Self::open_unpersisted(files, store_id, options)?;
        store.persist()?;
        Ok(store)
    }

    /// The same, but writes nothing before [`persist`](Sorted::persist), which the log in front
    /// calls: if that is refused, nothing was changed.
    ///
    /// ```
    /// use countwheel_disk::simulated::Disk;
    /// use countwheel_disk::{Sorted, TableOptions, TableStore};
    ///
    /// let disk = Disk::default();
    /// let store = TableStore::open_unpersisted(disk.files("tables"), 7, TableOptions::default())?;
    /// assert_eq!(disk.paths(), Vec::<String>::new());
    /// store.persist()?;
    /// assert_eq!(disk.paths(), ["tables/manifest"]);
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// [`DiskError::NotAStore`] if a file is missing, of another store, of a later version or of
    /// something else, [`DiskError::Corrupt`] if one is damaged, [`DiskError::Io`] if the system
    /// refuses.
    pub fn open_unpersisted(
        files: Arc<dyn Files>,
        store_id: u64,
        options: TableOptions,
    ) -> Result<Self, StoreError> {
        let options = TableOptions {
            table_bytes: options.table_bytes.clamp(4 << 10, 1 << 30),
            block_bytes: options.block_bytes.clamp(64, 1 << 20),
            fan_in: options.fan_in.max(2),
            merge_bytes: options.merge_bytes.max(1),
            ..options
        };
        let found = found_files(&*files)?;
        let manifest = Manifest::read(&*files, store_id)?;
        let is_table = |(parsed, _): &(FileName, _)| matches!(parsed, FileName::Table(_));
        if manifest.is_none() && found.iter().any(is_table) {
            let problem = "is missing, and there are tables".to_owned();
            return Err(not_a_store(&*files, Directory::MANIFEST, problem));
        }
        let is_new = manifest.is_none();
        let manifest = manifest.unwrap_or_default();
        let used = found.iter().filter_map(|(parsed, _)| match parsed {
            FileName::Table(number) | FileName::NewManifest(number) => Some(*number),
            FileName::Manifest | FileName::Checkpoint(_) => None,
        });
        let next_file = used
            .map(|number| number.saturating_add(1))
            .fold(manifest.next_file, u64::max);
        let directory = Arc::new(Directory::new(files, store_id, options, next_file));
        let version = Version::open(&directory, &manifest)?;
        let checkpoints = Checkpoints::of(found.iter().map(|(parsed, name)| (parsed, name)));
        let kept: Vec<u64> = manifest.tables().map(|table| table.number).collect();
        let is_unnamed = |parsed: &FileName| match parsed {
            FileName::Manifest | FileName::Checkpoint(_) => false,
            FileName::Table(number) => !kept.contains(number),
            FileName::NewManifest(_) => true,
        };
        let unnamed = found.into_iter().filter(|(parsed, _)| is_unnamed(parsed));
        let unpersisted = Unpersisted {
            is_new,
            unnamed: unnamed.map(|(_, name)| name).collect(),
        };
        Ok(Self {
            unpersisted: Mutex::new(Some(unpersisted)),
            is_persisted: AtomicBool::new(false),
            checkpoints: Mutex::new(checkpoints),
            directory,
            version: RwLock::new(Arc::new(version)),
            ingesting: Mutex::default(),
            merging: Mutex::default(),
            starved: AtomicBool::new(false),
            scrub: Scrub::default(),
            editing: Mutex::default(),
        })
    }

    fn try_persist(&self) -> Result<(), StoreError> {
        let mut unpersisted = self.unpersisted.lock();
        let Some(Unpersisted { is_new, unnamed }) = unpersisted.as_ref() else {
            return Ok(());
        };
        // The process before may have ended before the last sync of the directory, or because it
        // failed; and after a sync that failed, another one says nothing about what was done
        // before it. So what that sync was for is done again.
        match write_manifest(&self.directory, &self.version()) {
            Ok(()) => {
                self.is_persisted.store(true, Ordering::SeqCst);
                // Only then: what the manifest before named has to be there for as long as that
                // may be the one that is found.
                if let Err(error) = self.directory.files.set_aside(unnamed) {
                    tracing::warn!(%error, "files that no manifest names stay where they are");
                }
            }
            // A full disk must not keep a store shut.
            Err(error) if error.is_full() && !is_new => {}
            Err(error) => return Err(error),
        }
        *unpersisted = None;
        Ok(())
    }

    /// Whether [`merge_step`](Self::merge_step) would do something.
    #[must_use]
    pub fn merge_wanted(&self) -> bool {
        let merging = self.merging.lock();
        let options = &self.directory.options;
        !merging.is_empty() || merge::wanted(&self.version(), options, None).is_some()
    }

    /// Does a step of a merge, if one is worth it. False if none is. Reads and ingests go on
    /// meanwhile. What is not finished when the store is closed is begun anew some time.
    ///
    /// Takes room on the disk for what it writes until it is done, and memory for one table; for
    /// as many more as there are merges of higher tiers that wait for it.
    ///
    /// # Errors
    /// [`DiskError::Full`] if there is no room: all merges under way are given up, and nothing
    /// was changed. Any other error ends this opening of the store. A record that cannot be read is
    /// no error: its run is left alone from then on, and [`Sorted::troubles`] says so.
    pub fn merge_step(&self) -> Result<bool, StoreError> {
        let mut merging = self.merging.lock();
        let stepped = self.try_merge_step(&mut merging);
        let is_full = stepped.as_ref().is_err_and(StoreError::is_full);
        self.starved.store(is_full, Ordering::SeqCst);
        if stepped.is_err() {
            // What they wrote takes room that others need.
            merging.clear();
        }
        stepped
    }

    fn try_merge_step(&self, merging: &mut Vec<Merge>) -> Result<bool, StoreError> {
        self.directory.check_usable()?;
        self.try_persist()?;
        let version = self.version();
        let wanted = merge::wanted(&version, &self.directory.options, merging.last());
        if wanted.is_none() && fill_a_gap(&version) {
            return Ok(true);
        }
        if let Some(wanted) = wanted {
            match Merge::begin(&self.directory, version, wanted) {
                Ok(merge) => merging.push(merge),
                Err(fault) => return self.leave_alone(fault),
            }
        }
        let Some(merge) = merging.last_mut() else {
            return Ok(false);
        };
        match merge.step(&self.directory) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(fault) => {
                // What it wrote is removed with it; the others go on.
                merging.pop();
                return self.leave_alone(fault);
            }
        }
        let merged = merge.finish()?.map(Arc::new);
        self.edit(merged.as_ref(), |now| {
            let place = merge.place(now);
            now.runs.splice(place, merged.clone());
        })?;
        let replaced = merge.runs().iter().flat_map(|run| &run.tables);
        replaced.for_each(|table| table.discard());
        merging.pop();
        Ok(true)
    }

    /// Merges nothing of a run any more of which a record cannot be read. True: others may be worth
    /// it.
    fn leave_alone(&self, fault: Fault) -> Result<bool, StoreError> {
        match fault {
            Fault::Read(table, error) if error.is_unreadable() && !planted!(MergeFailsStore) => {
                table.leave_alone(&error);
                Ok(true)
            }
            Fault::Read(_, error) | Fault::Write(error) => Err(error),
        }
    }

    /// How much there is.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel_disk::{SystemFiles, TableOptions, TableStats, TableStore};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let files = Arc::new(SystemFiles::new(directory.path()));
    /// let store = TableStore::open(files, 7, TableOptions::default())?;
    /// assert_eq!(store.stats(), TableStats::default()); // nothing yet
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let version = self.version();
        let sum = |of: fn(&Table) -> u64| version.runs.iter().map(|run| run.sum(of)).sum();
        TableStats {
            runs: version.runs.len(),
            tables: version.tables().count(),
            records: sum(|table| table.footer.records),
            tombstones: sum(|table| table.footer.tombstones),
            bytes: sum(|table| table.entry.length),
            written: [Purpose::TakeIn, Purpose::Merge, Purpose::Purge]
                .map(|purpose| self.directory.written(purpose))
                .iter()
                .sum(),
            taken_in: self.directory.written(Purpose::TakeIn),
            purged: self.directory.written(Purpose::Purge),
            cached: self.directory.cache.bytes(),
        }
    }

    /// The files of this moment, for a copy while the store goes on.
    #[must_use]
    pub fn snapshot(&self) -> TableSnapshot {
        TableSnapshot::new(self.version(), &self.directory)
    }

    /// Reads everything that the store in `files` has, and says what is wrong with it: checksums,
    /// order, counts, whether the indexes say what the records say. Changes nothing; the store
    /// need not be closed. Memory for a few blocks.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel_disk::{SystemFiles, TableCheck, TableOptions, TableProblem, TableStore};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let files = Arc::new(SystemFiles::new(directory.path()));
    /// TableStore::open(files.clone(), 7, TableOptions::default())?;
    /// let TableCheck { records, problems, .. } = TableStore::check(files, 7)?;
    /// assert_eq!((records, problems), (0, Vec::<TableProblem>::new()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open) if there is no store, or its manifest is damaged.
    pub fn check(files: Arc<dyn Files>, store_id: u64) -> Result<TableCheck, StoreError> {
        let Some(manifest) = Manifest::read(&*files, store_id)? else {
            let problem = "is missing".to_owned();
            return Err(not_a_store(&*files, Directory::MANIFEST, problem));
        };
        let directory = Directory::new(files, store_id, TableOptions::default(), 0);
        let directory = Arc::new(directory);
        let mut check = TableCheck::default();
        for entry in manifest.tables() {
            check.table(&directory, entry);
        }
        Ok(check)
    }

    /// Reads what can be read of a damaged store, for a repair that makes a new one: hands each
    /// record to `each`, of each name the newest that is left, in order of shard and name. Changes
    /// nothing. Gives back what could not be read.
    ///
    /// Tables that the manifest does not name are read, too, if they are newer than the manifest or
    /// if one that it names cannot be opened; without a manifest all are. Their records are doubtful:
    /// they may be of a table that was merged into another already.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel_disk::{Salvaged, SystemFiles, TableOptions, TableStore};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let files = Arc::new(SystemFiles::new(directory.path()));
    /// TableStore::open(files.clone(), 7, TableOptions::default())?;
    /// let mut salvaged = Vec::new();
    /// let lost = TableStore::salvage(files, 7, |found: Salvaged| {
    ///     salvaged.push(found.record);
    ///     Ok(())
    /// })?;
    /// assert!(lost.problems.is_empty() && salvaged.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What `each` gives, and [`DiskError::Io`] if the directory cannot be read.
    pub fn salvage(
        files: Arc<dyn Files>,
        store_id: u64,
        each: impl FnMut(Salvaged) -> Result<(), StoreError>,
    ) -> Result<TableCheck, StoreError> {
        Self::salvage_all(files, store_id, records_alone(each))
    }

    /// The same, and says which names were removed for certain.
    pub(super) fn salvage_all(
        files: Arc<dyn Files>,
        store_id: u64,
        each: impl FnMut(Found) -> Result<(), StoreError>,
    ) -> Result<TableCheck, StoreError> {
        let manifest = Manifest::read(&*files, store_id).ok().flatten();
        Self::read_all(files, store_id, manifest.as_ref(), true, each)
    }

    /// Hands over the records that count, as [`salvage`](Self::salvage) does of a sound store.
    pub(super) fn records(
        files: Arc<dyn Files>,
        store_id: u64,
        each: impl FnMut(Salvaged) -> Result<(), StoreError>,
    ) -> Result<TableCheck, StoreError> {
        let manifest = Manifest::read(&*files, store_id)?;
        Self::read_all(
            files,
            store_id,
            manifest.as_ref(),
            false,
            records_alone(each),
        )
    }

    fn read_all(
        files: Arc<dyn Files>,
        store_id: u64,
        manifest: Option<&Manifest>,
        with_unnamed: bool,
        each: impl FnMut(Found) -> Result<(), StoreError>,
    ) -> Result<TableCheck, StoreError> {
        let found = files.list().map_err(|error| io_error(&*files, error))?;
        let directory = Directory::new(files, store_id, TableOptions::default(), 0);
        let numbers = found
            .iter()
            .filter_map(|name| match Directory::parse(name) {
                Some(FileName::Table(number)) if with_unnamed => Some(number),
                _ => None,
            });
        let runs = salvage::runs(&directory, manifest, numbers);
        let mut check = TableCheck::default();
        salvage::salvage(&directory, runs, &mut check, each)?;
        Ok(check)
    }

    fn version(&self) -> Arc<Version> {
        Arc::clone(&self.version.read())
    }

    /// Makes `change` part of the store, durably. `written` is what it adds: removed again if
    /// there is no room for the manifest.
    fn edit(
        &self,
        written: Option<&Arc<TableRun>>,
        change: impl FnOnce(&mut Version),
    ) -> Result<(), StoreError> {
        let _one_at_a_time = self.editing.lock();
        self.directory.check_usable()?;
        let mut version = Version::clone(&self.version());
        change(&mut version);
        if let Err(error) = write_manifest(&self.directory, &version) {
            if error.is_full() {
                let tables = written.iter().flat_map(|run| &run.tables);
                tables.for_each(|table| table.discard());
            }
            return Err(error);
        }
        *self.version.write() = Arc::new(version);
        Ok(())
    }

    fn write_run(&self, sequence: u64, flushed: &Flushed) -> Result<TableRun, StoreError> {
        let version = self.version();
        let mut writer = RunWriter::new(&self.directory, Purpose::TakeIn, sequence);
        if let Some(listener) = flushed.listener() {
            writer.tell(listener, flushed.len());
        }
        let mut stripped = Vec::new();
        let mut sorted = flushed.sorted().into_iter().map(|at| flushed.change(at));
        let mut next = sorted.next();
        while let Some((key, content)) = next {
            next = sorted.next();
            if next.is_some_and(|(next, _)| next == key) {
                continue; // the last one counts
            }
            match content {
                FlushedContent::Record(record) => {
                    let indexed = Indexed::decode(record).map_err(|error| DiskError::Corrupt {
                        path: self.directory.files.path(),
                        problem: format!("a record that is to be taken in: {error}"),
                    })?;
                    strip(key, record, &mut stripped)
                        .expect("a record begins with its version and its name");
                    writer.add(key, Content::Record(&stripped, indexed))?;
                }
                FlushedContent::Unreadable(indexed) => {
                    writer.add(key, Content::Unreadable(indexed))?;
                }
                FlushedContent::Removed if version.may_contain(0, key) => {
                    writer.add(key, Content::Tombstone)?;
                }
                FlushedContent::Removed => {}
            }
        }
        Ok(TableRun {
            tier: 0,
            newest: sequence,
            tables: writer.finish()?,
        })
    }
}

impl Sorted for TableStore {
    fn ingested(&self) -> u64 {
        self.version().ingested
    }

    fn is_persisted(&self) -> bool {
        self.is_persisted.load(Ordering::SeqCst)
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.try_persist()
    }

    fn reached(&self) -> Option<Reached> {
        let checkpoints = self.checkpoints.lock();
        if planted!(OpeningBelievesShortLog) {
            return checkpoints.reached();
        }
        checkpoints.reached().max(self.version().reached)
    }

    fn checkpoint(&self, reached: Reached) -> Result<(), StoreError> {
        let mut checkpoints = self.checkpoints.lock();
        checkpoints.checkpoint(&self.directory, reached)
    }

    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError> {
        let _one_at_a_time = self.ingesting.lock();
        self.directory.check_usable()?;
        self.try_persist()?;
        let sequence = self.version().sequence + 1;
        let run = self.write_run(sequence, &flushed)?;
        let run = (!run.tables.is_empty()).then(|| Arc::new(run));
        self.edit(run.as_ref(), |version| {
            version.ingested = segment;
            version.sequence = sequence;
            version.reached = flushed.reached().max(version.reached);
            version.runs.splice(0..0, run.clone());
        })
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.version().get(&codec::timer_key(shard, name))
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        scan::due(&self.version(), shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.list_behind(shard, filter, &|_| false)
    }

    fn list_behind(
        &self,
        shard: Shard,
        filter: &Filter,
        is_hidden: &dyn Fn(&TimerName) -> bool,
    ) -> Result<Page, StoreError> {
        scan::list(&self.version(), shard, filter, is_hidden)
    }

    fn kind(&self, shard: Shard, name: &TimerName) -> Result<Option<StateKind>, StoreError> {
        self.version().kind(&codec::timer_key(shard, name))
    }

    fn gaps(&self) -> Gaps {
        self.directory.gaps.get()
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = self.scrub_troubles();
        troubles.extend(self.directory.troubles.list());
        troubles
    }

    fn compact(&self) -> Result<bool, StoreError> {
        self.merge_step()
    }

    fn open_files(&self) -> OpenFiles {
        // Besides what a merge makes, those of an ingest or two, and a manifest.
        const MORE: usize = 6;

        let tables = self.version().tables().count();
        OpenFiles {
            open: tables + 1, // and the directory
            ahead: tables + MORE,
        }
    }

    fn scrub_step(&self, budget: u64) -> Scrubbed {
        self.scrub_tables(budget)
    }

    fn is_full(&self) -> bool {
        self.starved.load(Ordering::SeqCst)
    }

    fn is_behind(&self) -> bool {
        // Where a compaction finds no room, a flush may be what makes some.
        !self.starved.load(Ordering::SeqCst)
            && merge::behind(&self.version(), &self.directory.options).is_some()
    }

    fn step_share(&self) -> f64 {
        let options = &self.directory.options;
        let Some(bytes) = merge::behind(&self.version(), options) else {
            return 1.0;
        };
        share(options.merge_bytes, bytes).min(1.0)
    }
}

impl Version {
    fn open(directory: &Arc<Directory>, manifest: &Manifest) -> Result<Self, StoreError> {
        let mut runs = Vec::with_capacity(manifest.runs.len());
        for run in &manifest.runs {
            let tables = run.tables.iter().cloned();
            let tables = tables.map(|entry| Table::open(directory, entry));
            runs.push(Arc::new(TableRun {
                tier: run.tier,
                newest: run.newest,
                tables: tables.collect::<Result<_, _>>()?,
            }));
        }
        Ok(Self {
            ingested: manifest.ingested,
            sequence: manifest.sequence,
            reached: manifest.reached,
            runs,
        })
    }

    fn manifest(&self, directory: &Directory) -> Manifest {
        Manifest {
            ingested: self.ingested,
            sequence: self.sequence,
            next_file: directory.files_end(),
            reached: self.reached,
            runs: self.runs.iter().map(|run| run.entry()).collect(),
        }
    }
}

/// For who wants nothing but the records.
fn records_alone(
    mut each: impl FnMut(Salvaged) -> Result<(), StoreError>,
) -> impl FnMut(Found) -> Result<(), StoreError> {
    move |found| match found {
        Found::Record(record) => each(*record),
        Found::Removed(..) => Ok(()),
    }
}

/// Fills the gaps of a table that cannot be merged. False if there is none, or none that can be
/// filled now.
fn fill_a_gap(version: &Version) -> bool {
    let alone = version.runs.iter().filter(|run| run.is_left_alone());
    let mut tables = alone.flat_map(|run| &run.tables);
    tables.any(|table| table.has_gap() && table.fill_gaps())
}

/// The files of a directory in which there is nothing else.
fn found_files(files: &dyn Files) -> Result<Vec<(FileName, String)>, StoreError> {
    let names = files.list().map_err(|error| io_error(files, error))?;
    let parsed = names.into_iter().map(|name| match Directory::parse(&name) {
        Some(parsed) => Ok((parsed, name)),
        None => {
            let problem = "is no file of a table store".to_owned();
            Err(not_a_store(files, &name, problem))
        }
    });
    parsed.collect()
}

/// Makes `version` what is found at the next opening.
fn write_manifest(directory: &Directory, version: &Version) -> Result<(), StoreError> {
    let files = &directory.files;
    let new = Directory::new_manifest_name(directory.next_file());
    let bytes = version.manifest(directory).write(directory.store_id);
    let write = || {
        let file = files.begin(&new)?;
        file.write_at(0, &bytes)?;
        Ok(file)
    };
    let synced = |file: Arc<dyn StoreFile>| {
        if planted!(ManifestUnsynced) {
            return Ok(());
        }
        file.sync()
    };
    write().and_then(synced).map_err(|error| {
        directory.discard(&new);
        directory.write_failed(error)
    })?;
    // The tables' names before the manifest that names them.
    files.sync().map_err(|error| directory.sync_failed(error))?;
    if let Err(error) = files.rename(&new, Directory::MANIFEST) {
        if is_full(&error) {
            directory.discard(&new); // the old one counts
        }
        return Err(directory.write_failed(error));
    }
    if planted!(TablesUnsynced) {
        return Ok(());
    }
    files.sync().map_err(|error| directory.sync_failed(error))
}

impl fmt::Debug for TableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableStore")
            .field("files", &self.directory.files)
            .finish_non_exhaustive()
    }
}
