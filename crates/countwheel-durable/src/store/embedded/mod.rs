//! Timers on disk: one redb database in a data directory, one process at a time.

mod backend;
pub(in crate::store) mod codec;
mod directory;

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use redb::{
    Database, Range, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageBackend, Table, TableDefinition, WriteTransaction,
};

use self::backend::HeldBack;
use self::codec::{CodecError, Indexed};
use super::directory::{Claim, EMBEDDED, Format, Lock};
use super::page::{DueBuilder, PageBuilder, begins_with, position};
use super::place::FileSystem;
use super::{
    Change, ClockNote, DiskError, DueEntry, DuePage, DueScan, Fence, Filter, Lease, Ownership,
    Page, Position, QueueCounts, Shard, Store, StoreError,
};
use crate::{
    DueClock, Key, Record, Revision, Setting, SettingName, SettingValue, Settings, SettingsVersion,
    StateKind, TimerName, Wake,
};

type Bytes = &'static [u8];

/// By name: `format`, `store` and `settings`, which is the version of these.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// By shard: its fence and its last revision.
const SHARDS: TableDefinition<'_, u16, (u64, u64)> = TableDefinition::new("shards");
/// By shard: its [`ClockNote`]. Not there before format 1 had any.
const CLOCKS: TableDefinition<'_, u16, Bytes> = TableDefinition::new("clocks");
/// By [`codec::timer_key`]: the record.
const TIMERS: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("timers");
/// By [`codec::due_key`]: the name of the timer that wakes then.
const DUE: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("due");
/// As [`DUE`], of the timers that wake by the boot clock. Not there before format 1 had any.
const DUE_BOOT: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("due-boot");
/// By [`codec::list_key`]: the key of the timer that stands there.
const LIST: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("list");
/// By [`codec::count_key`]: how many, never zero.
const COUNTS: TableDefinition<'_, Bytes, u64> = TableDefinition::new("counts");

/// By name: a setting, behind the version of the change that made it. Not there before format 2
/// had any.
const SETTINGS: TableDefinition<'_, &str, Bytes> = TableDefinition::new("settings");

/// The version of the tables that this code writes.
const FORMAT: u64 = 2;
/// The version before: no queue has a namespace. It is read, and becomes the one above with the
/// first thing that is written.
const FORMAT_1: u64 = 1;
/// What redb may keep of the file in memory, beside what the system keeps.
const CACHE_BYTES: usize = 256 << 20;

/// Keeps timers in a data directory, in one embedded database. A commit is on disk when it
/// returns.
///
/// Only one process at a time has the directory. Opening reads the whole database once and
/// compares every checksum: what is damaged is refused, not guessed at, and left as it is.
///
/// One thing cannot be told: a commit that a crash interrupted, and one that was acknowledged
/// but whose pages were damaged before the store was ever closed, look alike. Both are taken
/// back whole. After a clean close there is no such doubt.
///
/// ```
/// use countwheel_durable::store::{EmbeddedStore, Shard, Store, DiskError, StoreError};
///
/// let directory = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(directory.path(), 0xfeed)?;
/// assert_eq!(store.acquire(Shard::ONLY)?.store_id, 0xfeed);
///
/// let second = EmbeddedStore::open(directory.path(), 0xbeef);
/// assert!(matches!(second, Err(StoreError::Disk(DiskError::Locked { .. }))));
///
/// drop(store);
/// let again = EmbeddedStore::open(directory.path(), 0xbeef)?;
/// assert_eq!(again.acquire(Shard::ONLY)?.store_id, 0xfeed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EmbeddedStore {
    /// `None` only while the store is dropped.
    database: Option<Database>,
    path: PathBuf,
    store_id: u64,
    /// Locked by the one writer. True once a commit failed: what is on disk is unknown until
    /// the store is opened again.
    failed: Mutex<bool>,
    /// Whether the tables are of the version that this code writes. Changed by the one writer.
    is_newest: AtomicBool,
    /// Held as long as the database is open: declared after it, so dropped after it.
    _lock: Option<Lock>,
}

impl EmbeddedStore {
    /// Opens the store in `directory`, and makes it if the directory is empty or not there.
    /// A store that is made gets the id `new_store_id`; one that exists keeps its own.
    ///
    /// O(size of the database): it is read and checked in full.
    ///
    /// # Errors
    /// [`StoreError`], every kind but `Fenced` and `Poisoned`. A directory is never taken
    /// for empty because part of it is missing.
    pub fn open(directory: &Path, new_store_id: u64) -> Result<Self, StoreError> {
        directory::open(directory, new_store_id)
    }

    /// Opens the store in `directory`, which has to be there. Makes none.
    ///
    /// ```
    /// use countwheel_durable::store::{EmbeddedStore, DiskError, StoreError};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let refused = EmbeddedStore::open_existing(directory.path());
    /// assert!(matches!(refused, Err(StoreError::Disk(DiskError::NotAStore { .. }))));
    /// drop(EmbeddedStore::open(directory.path(), 7)?);
    /// EmbeddedStore::open_existing(directory.path())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`DiskError::NotAStore`] if there is none, or one that was
    /// never finished.
    pub fn open_existing(directory: &Path) -> Result<Self, StoreError> {
        let (lock, format) = Claim::existing(&FileSystem, directory, EMBEDDED)?;
        Self::open_claimed(directory, lock, format)
    }

    /// The same, of a directory that this process has.
    pub(super) fn open_claimed(
        directory: &Path,
        lock: Lock,
        format: Format,
    ) -> Result<Self, StoreError> {
        directory::open_ready(directory, lock, format)
    }

    /// Opens or makes a store on a disk of your own, for tests that simulate one: there is
    /// no directory, no lock and no format file, and errors name the path `simulated disk`.
    ///
    /// # Errors
    /// As [`open`](Self::open). A disk that failed while the store was being made holds no
    /// store yet, and is refused as corrupt unless it is empty.
    pub fn open_backend(
        backend: impl StorageBackend,
        new_store_id: u64,
    ) -> Result<Self, StoreError> {
        let path = PathBuf::from("simulated disk");
        let length = backend.len().map_err(|source| DiskError::Io {
            path: path.clone(),
            source,
        })?;
        match length {
            0 => Self::create_on(backend, path, new_store_id, None),
            _ => Self::open_on(backend, &path, None, None),
        }
    }

    /// Makes a store on an empty backend.
    fn create_on(
        backend: impl StorageBackend,
        path: PathBuf,
        store_id: u64,
        lock: Option<Lock>,
    ) -> Result<Self, StoreError> {
        let database = guarded(&path, || {
            let database = Database::builder()
                .set_cache_size(CACHE_BYTES)
                .create_with_backend(backend)?;
            let transaction = database.begin_write()?;
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert("format", FORMAT)?;
                meta.insert("store", store_id)?;
            }
            transaction.open_table(SHARDS)?;
            Tables::open(&transaction)?;
            transaction.commit()?;
            Ok(database)
        })?;
        Ok(Self::of(database, path, store_id, lock, true))
    }

    /// Opens the store on a backend that has one, of the id `expected` if that is known.
    ///
    /// The whole file is checked, which costs a read of all of it. It must be: redb compares
    /// a page's checksum only when it repairs after an unclean end, so that after a clean one
    /// a damaged page of an index would make timers vanish without a word. What redb changes
    /// while it opens, repairs and checks is held back until everything was found right, so
    /// that a refused file is left as it was and is refused again the next time.
    fn open_on(
        backend: impl StorageBackend,
        path: &Path,
        expected: Option<u64>,
        lock: Option<Lock>,
    ) -> Result<Self, StoreError> {
        let (backend, database, repaired) = guarded(path, || {
            let backend = HeldBack::new(backend)?;
            let (database, repaired) = open_logged(&backend, path)?;
            Ok((backend, database, repaired))
        })?;
        // Outside of what may panic: a database that is dropped by a panic may panic again,
        // which nothing could catch.
        let mut store = Self::of(database, path.to_owned(), 0, lock, false);
        let (store_id, format) = guarded(path, || {
            let database = store.database.as_mut().expect("open until dropped");
            // A repair has compared every checksum already.
            if !repaired && !database.check_integrity()? {
                return Err(Problem::Damage("its free space does not add up".to_owned()));
            }
            let meta = read_meta(database, expected)?;
            backend.release()?;
            Ok(meta)
        })?;
        store.store_id = store_id;
        store.is_newest = AtomicBool::new(format == FORMAT);
        Ok(store)
    }

    fn of(
        database: Database,
        path: PathBuf,
        store_id: u64,
        lock: Option<Lock>,
        is_newest: bool,
    ) -> Self {
        Self {
            database: Some(database),
            path,
            store_id,
            failed: Mutex::new(false),
            is_newest: AtomicBool::new(is_newest),
            _lock: lock,
        }
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("open until dropped")
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Problem>,
    ) -> Result<T, StoreError> {
        guarded(&self.path, || work(&self.database().begin_read()?))
    }

    /// Runs `work` in a write transaction and makes it durable. Whatever fails, except for
    /// being fenced out, is the last thing that this opening did.
    fn write<T>(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<T, Problem>,
    ) -> Result<T, StoreError> {
        let mut failed = self.failed();
        if *failed {
            return Err(StoreError::Poisoned);
        }
        let result = guarded(&self.path, || {
            let transaction = self.database().begin_write()?;
            let value = work(&transaction)?;
            if !self.is_newest.load(Ordering::Relaxed) {
                transaction.open_table(META)?.insert("format", FORMAT)?;
            }
            transaction.commit()?;
            self.is_newest.store(true, Ordering::Relaxed);
            Ok(value)
        });
        *failed = !matches!(result, Ok(_) | Err(StoreError::Fenced { .. }));
        result
    }

    fn failed(&self) -> MutexGuard<'_, bool> {
        self.failed.lock().expect("no panic under the lock")
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        let database = self.database.take();
        // redb writes a little when it closes. Should it fail, the next opening repairs.
        let closed = guarded(&self.path, || {
            drop(database);
            Ok(())
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "the store did not close cleanly");
        }
    }
}

impl Store for EmbeddedStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        if shard.is_reserved() {
            return Err(StoreError::Reserved { shard });
        }
        self.write(|transaction| {
            let mut shards = transaction.open_table(SHARDS)?;
            let (fence, last_revision) = shards.get(shard.0)?.map_or((0, 0), |row| row.value());
            let fence = fence + 1;
            shards.insert(shard.0, (fence, last_revision))?;
            let clocks = transaction.open_table(CLOCKS)?;
            let clock = match clocks.get(shard.0)? {
                Some(row) => Some(ClockNote::of_bytes(row.value().try_into().map_err(
                    |_| Problem::Damage("a note of the clocks is of another length".to_owned()),
                )?)),
                None => None,
            };
            Ok(Ownership {
                lease: Lease {
                    shard,
                    fence: Fence(fence),
                },
                store_id: shard.id(self.store_id),
                last_revision: Revision(last_revision),
                clock,
                forgets_done: false,
            })
        })
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            if *self.failed() {
                return Err(StoreError::Poisoned);
            }
            return self.read(|transaction| {
                check_lease(&transaction.open_table(SHARDS)?, lease)?;
                Ok(())
            });
        }
        self.write(|transaction| {
            let mut shards = transaction.open_table(SHARDS)?;
            let mut last_revision = check_lease(&shards, lease)?;
            let mut tables = Tables::open(transaction)?;
            for change in changes {
                match change {
                    Change::Put { record, .. } => {
                        tables.put(lease.shard, record)?;
                        last_revision = last_revision.max(record.revision);
                    }
                    Change::Remove { name, .. } => tables.remove(lease.shard, name)?,
                    Change::Given(revision) => last_revision = last_revision.max(*revision),
                    Change::Clock(note) => {
                        let mut clocks = transaction.open_table(CLOCKS)?;
                        clocks.insert(lease.shard.0, note.to_bytes().as_slice())?;
                    }
                    Change::Setting(setting) => change_setting(transaction, setting)?,
                }
            }
            tables.finish()?;
            shards.insert(lease.shard.0, (lease.fence.0, last_revision.0))?;
            Ok(())
        })
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.read(|transaction| {
            let meta = transaction.open_table(META)?;
            let version = SettingsVersion(meta.get("settings")?.map_or(0, |row| row.value()));
            if version <= after {
                return Ok(None);
            }
            let mut values = Vec::new();
            for row in transaction.open_table(SETTINGS)?.iter()? {
                let (name, value) = row?;
                values.push(setting_of(name.value(), value.value())?);
            }
            Ok(Some(Settings::new(version, values)))
        })
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.read(|transaction| read_record(&transaction.open_table(TIMERS)?, shard, name))
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        let last = Wake {
            at: scan.until,
            revision: Revision(u64::MAX),
        };
        if scan.limit == 0 || scan.after.is_some_and(|after| after >= last) {
            return Ok(DueBuilder::new(scan).finish());
        }
        let start = match scan.after {
            Some(after) => Bound::Excluded(codec::due_key(shard, after)),
            None => Bound::Included(codec::due_key(shard, Wake::default())),
        };
        let end = Bound::Included(codec::due_key(shard, last));
        self.read(|transaction| {
            let mut page = DueBuilder::new(scan);
            let timers = transaction.open_table(TIMERS)?;
            let due = match transaction.open_table(due_table(scan.clock)) {
                // The store was made before there were any.
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(page.finish()),
                due => due?,
            };
            for row in due.range::<&[u8]>(slices(&(start, end)))? {
                let (wake, name) = row?;
                let wake = codec::wake_of(wake.value())?;
                if !page.come_to(wake) {
                    break;
                }
                let name = codec::name_of(name.value())?;
                let wanted = scan.queue.is_none_or(|queue| name.queue == *queue);
                if !wanted {
                    continue;
                }
                let record = timers.get(codec::timer_key(shard, &name).as_slice())?;
                let indexed = record.map(|record| Indexed::decode(record.value()));
                let kind = indexed.transpose()?.map(|indexed| indexed.kind);
                if !page.take(DueEntry { wake, name, kind }) {
                    break;
                }
            }
            Ok(page.finish())
        })
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.read(|transaction| {
            let timers = transaction.open_table(TIMERS)?;
            let list = transaction.open_table(LIST)?;
            let mut page = PageBuilder::new(filter);
            let mut merged = Merged::new(&list, shard, filter)?;
            while let Some(listed) = merged.next()? {
                if !page.come_to(listed.position) {
                    break;
                }
                let name = TimerName {
                    queue: filter.queue.clone(),
                    key: listed.key,
                };
                if !begins_with(&name, filter.prefix.as_deref()) {
                    continue;
                }
                let read = || match read_record(&timers, shard, &name)? {
                    Some(record)
                        if record.state.kind() == listed.kind
                            && position(&record) == listed.position =>
                    {
                        Ok(record)
                    }
                    _ => Err(Problem::Damage(format!("the list misplaces timer {name}"))),
                };
                if !page.take(read)? {
                    break;
                }
            }
            Ok(page.finish())
        })
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.read(|transaction| {
            let counts = transaction.open_table(COUNTS)?;
            let mut queues: Vec<QueueCounts> = Vec::new();
            for row in counts.range::<&[u8]>(slices(&codec::shard_range(shard)))? {
                let (key, count) = row?;
                let (queue, kind) = codec::count_of(key.value())?;
                if queues.last().is_none_or(|last| last.queue != queue) {
                    queues.push(QueueCounts {
                        queue,
                        by_state: [0; 4],
                    });
                }
                if let Some(last) = queues.last_mut() {
                    last.by_state[kind as usize] = count.value();
                }
            }
            Ok(queues)
        })
    }
}

/// Makes the change, and counts it.
fn change_setting(transaction: &WriteTransaction, setting: &Setting) -> Result<(), Problem> {
    let mut meta = transaction.open_table(META)?;
    let version = meta.get("settings")?.map_or(0, |row| row.value());
    let version = version.saturating_add(1);
    meta.insert("settings", version)?;
    let mut settings = transaction.open_table(SETTINGS)?;
    let name = setting.name.as_str();
    match &setting.value {
        Some(value) => {
            let bytes = [&version.to_be_bytes()[..], value].concat();
            settings.insert(name, bytes.as_slice())?;
        }
        None => drop(settings.remove(name)?),
    }
    Ok(())
}

/// The setting of a row.
fn setting_of(name: &str, bytes: &[u8]) -> Result<(SettingName, SettingValue), Problem> {
    let damage = || Problem::Damage("a setting cannot be read".to_owned());
    let name = SettingName::new(name).map_err(|_| damage())?;
    let (version, value) = bytes.split_first_chunk().ok_or_else(damage)?;
    let version = SettingsVersion(u64::from_be_bytes(*version));
    let value = value.to_vec();
    Ok((name, SettingValue { version, value }))
}

fn due_table(clock: DueClock) -> TableDefinition<'static, Bytes, Bytes> {
    match clock {
        DueClock::Wall => DUE,
        DueClock::Boot => DUE_BOOT,
    }
}

/// The tables that a change of a timer changes.
struct Tables<'t> {
    timers: Table<'t, Bytes, Bytes>,
    /// In the order of [`DueClock::ALL`].
    due: [Table<'t, Bytes, Bytes>; 2],
    list: Table<'t, Bytes, Bytes>,
    counts: Table<'t, Bytes, u64>,
    /// By [`codec::count_key`]: what the batch so far adds to the count.
    added: BTreeMap<Vec<u8>, i64>,
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction) -> Result<Self, Problem> {
        Ok(Self {
            timers: transaction.open_table(TIMERS)?,
            due: [
                transaction.open_table(DUE)?,
                transaction.open_table(DUE_BOOT)?,
            ],
            list: transaction.open_table(LIST)?,
            counts: transaction.open_table(COUNTS)?,
            added: BTreeMap::new(),
        })
    }

    fn put(&mut self, shard: Shard, record: &Record) -> Result<(), Problem> {
        let name = &record.name;
        let key = codec::timer_key(shard, name);
        let bytes = codec::encode(record);
        let old = match self.timers.insert(key.as_slice(), bytes.as_slice())? {
            Some(old) => Some(Indexed::decode(old.value()).map_err(|e| e.of(name))?),
            None => None,
        };
        let new = Indexed::of(record);
        if old == Some(new) {
            return Ok(());
        }
        if let Some(old) = old {
            self.remove_from_indexes(shard, name, old)?;
        }
        let list_key = codec::list_key(shard, &name.queue, new.kind, new.position);
        let listed = self
            .list
            .insert(list_key.as_slice(), name.key.as_str().as_bytes())?
            .is_some();
        let woken = match new.wake {
            Some(wake) => {
                let value = codec::name_value(name);
                let due_key = codec::due_key(shard, wake);
                self.due[new.clock as usize]
                    .insert(due_key.as_slice(), value.as_slice())?
                    .is_some()
            }
            None => false,
        };
        debug_assert!(!listed && !woken, "a revision is given to one timer");
        self.count(shard, name, new.kind, 1);
        Ok(())
    }

    fn remove(&mut self, shard: Shard, name: &TimerName) -> Result<(), Problem> {
        let key = codec::timer_key(shard, name);
        let old = match self.timers.remove(key.as_slice())? {
            Some(old) => Indexed::decode(old.value()).map_err(|e| e.of(name))?,
            None => return Ok(()),
        };
        self.remove_from_indexes(shard, name, old)
    }

    fn remove_from_indexes(
        &mut self,
        shard: Shard,
        name: &TimerName,
        old: Indexed,
    ) -> Result<(), Problem> {
        let list_key = codec::list_key(shard, &name.queue, old.kind, old.position);
        self.list.remove(list_key.as_slice())?;
        if let Some(wake) = old.wake {
            self.due[old.clock as usize].remove(codec::due_key(shard, wake).as_slice())?;
        }
        self.count(shard, name, old.kind, -1);
        Ok(())
    }

    fn count(&mut self, shard: Shard, name: &TimerName, kind: StateKind, change: i64) {
        let key = codec::count_key(shard, &name.queue, kind);
        *self.added.entry(key).or_default() += change;
    }

    /// Writes what a batch keeps for its end.
    fn finish(mut self) -> Result<(), Problem> {
        for (key, added) in self.added {
            let before = self
                .counts
                .get(key.as_slice())?
                .map_or(0, |row| row.value());
            match before.checked_add_signed(added) {
                Some(after) if after == before => {}
                Some(0) => drop(self.counts.remove(key.as_slice())?),
                Some(after) => drop(self.counts.insert(key.as_slice(), after)?),
                None => return Err(Problem::Damage("a queue counts too few timers".to_owned())),
            }
        }
        Ok(())
    }
}

/// The wanted states of a queue's list, merged into one order of (due, revision).
struct Merged(Vec<InState>);

/// What is left of one state.
struct InState {
    kind: StateKind,
    first: Option<Listed>,
    rest: Range<'static, Bytes, Bytes>,
}

/// One entry of the list.
struct Listed {
    kind: StateKind,
    position: Position,
    key: Key,
}

impl Merged {
    fn new(
        list: &ReadOnlyTable<Bytes, Bytes>,
        shard: Shard,
        filter: &Filter,
    ) -> Result<Self, Problem> {
        let wanted = |kind: &StateKind| filter.state.is_none_or(|state| state == *kind);
        let mut states = Vec::new();
        for kind in StateKind::ALL.into_iter().filter(wanted) {
            let rest = list.range::<&[u8]>(slices(&codec::list_range(shard, filter, kind)))?;
            let mut state = InState {
                kind,
                first: None,
                rest,
            };
            state.advance()?;
            states.push(state);
        }
        Ok(Self(states))
    }

    fn next(&mut self) -> Result<Option<Listed>, Problem> {
        let position = |state: &InState| state.first.as_ref().map(|first| first.position);
        let states = self.0.iter_mut().filter(|state| state.first.is_some());
        match states.min_by_key(|state| position(state)) {
            Some(state) => state.advance(),
            None => Ok(None),
        }
    }
}

impl InState {
    /// Gives the first entry and reads the one behind it.
    fn advance(&mut self) -> Result<Option<Listed>, Problem> {
        let behind = match self.rest.next() {
            Some(row) => {
                let (place, key) = row?;
                Some(Listed {
                    kind: self.kind,
                    position: codec::position_of(place.value())?,
                    key: codec::key_of(key.value())?,
                })
            }
            None => None,
        };
        Ok(mem::replace(&mut self.first, behind))
    }
}

/// Fails unless `lease` is the current one. Gives the shard's last revision.
fn check_lease(
    shards: &impl ReadableTable<u16, (u64, u64)>,
    lease: Lease,
) -> Result<Revision, Problem> {
    let (current, last_revision) = shards.get(lease.shard.0)?.map_or((0, 0), |row| row.value());
    // Zero is the fence of a shard that nobody ever took.
    if current == lease.fence.0 && current != 0 {
        return Ok(Revision(last_revision));
    }
    Err(Problem::Store(StoreError::Fenced {
        shard: lease.shard,
        ours: lease.fence,
        current: Fence(current),
    }))
}

fn read_record(
    timers: &ReadOnlyTable<Bytes, Bytes>,
    shard: Shard,
    name: &TimerName,
) -> Result<Option<Record>, Problem> {
    let Some(bytes) = timers.get(codec::timer_key(shard, name).as_slice())? else {
        return Ok(None);
    };
    let record = codec::decode(bytes.value()).map_err(|error| error.of(name))?;
    if record.name != *name {
        return Err(Problem::Damage(format!(
            "timer {name} is stored as {}",
            record.name
        )));
    }
    Ok(Some(record))
}

/// Opens the database, telling of a long repair. True if there was one: every checksum was
/// compared then.
fn open_logged<B: StorageBackend>(
    backend: &HeldBack<B>,
    path: &Path,
) -> Result<(Database, bool), Problem> {
    let repaired = Rc::new(Cell::new(false));
    let (seen, path) = (Rc::clone(&repaired), path.to_owned());
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_repair_callback(move |repair| {
            seen.set(true);
            let percent = repair.progress() * 100.0;
            tracing::info!(
                path = %path.display(),
                "checking the database after an unclean end: {percent:.0} %"
            );
        })
        .create_with_backend(backend.clone())?;
    Ok((database, repaired.get()))
}

/// Gives the store's id, which is `expected` if that is known, and the version of its tables.
fn read_meta(database: &Database, expected: Option<u64>) -> Result<(u64, u64), Problem> {
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Err(redb::TableError::TableDoesNotExist(_)) => {
            return Err(Problem::NotAStore("a database without timers".to_owned()));
        }
        meta => meta?,
    };
    let number = |name| match meta.get(name)? {
        Some(row) => Ok(row.value()),
        None => Err(Problem::Damage(format!("its {name} is missing"))),
    };
    let format = number("format")?;
    match format {
        FORMAT | FORMAT_1 => {}
        later if later > FORMAT => return Err(Problem::later(format!("table format {later}"))),
        other => return Err(Problem::Damage(format!("there is no table format {other}"))),
    }
    let store_id = number("store")?;
    match expected {
        Some(expected) if expected != store_id => Err(Problem::NotAStore(format!(
            "of store {store_id:016x}, where the directory is of store {expected:016x}"
        ))),
        _ => Ok((store_id, format)),
    }
}

/// Both ends of a range as redb takes them.
fn slices<T: AsRef<[u8]>>((start, end): &(Bound<T>, Bound<T>)) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (start.as_ref().map(T::as_ref), end.as_ref().map(T::as_ref))
}

/// What went wrong in the database, before it is said in which file.
enum Problem {
    Redb(Box<redb::Error>),
    Damage(String),
    NotAStore(String),
    Store(StoreError),
}

impl Problem {
    fn later(what: impl std::fmt::Display) -> Self {
        Self::NotAStore(format!("written by a later version ({what})"))
    }

    fn at(self, path: &Path) -> StoreError {
        let path = path.to_owned();
        let corrupt = |problem| {
            DiskError::Corrupt {
                path: path.clone(),
                problem,
            }
            .into()
        };
        match self {
            Self::Store(error) => error,
            Self::Damage(problem) => corrupt(problem),
            Self::NotAStore(problem) => DiskError::NotAStore { path, problem }.into(),
            Self::Redb(error) => match *error {
                // What redb calls bad data, or a file that ends too soon, is damage.
                redb::Error::Io(source)
                    if matches!(
                        source.kind(),
                        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                    ) =>
                {
                    corrupt(source.to_string())
                }
                redb::Error::Io(source) => DiskError::Io { path, source }.into(),
                redb::Error::DatabaseAlreadyOpen => DiskError::Locked { path }.into(),
                redb::Error::UpgradeRequired(version) => {
                    Self::NotAStore(format!("an old redb file (format {version})")).at(&path)
                }
                redb::Error::PreviousIo | redb::Error::LockPoisoned(_) => StoreError::Poisoned,
                other => corrupt(other.to_string()),
            },
        }
    }
}

impl From<CodecError> for Problem {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::LaterVersion { version } => {
                Self::later(format_args!("record version {version}"))
            }
            error => Self::Damage(error.to_string()),
        }
    }
}

impl CodecError {
    /// Says which timer it is about.
    fn of(self, name: &TimerName) -> Problem {
        match self {
            later @ Self::LaterVersion { .. } => later.into(),
            error => Problem::Damage(format!("timer {name}: {error}")),
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Redb(Box::new(redb::Error::Io(error)))
    }
}

macro_rules! from_redb {
    ($($error:ident)*) => {
        $(impl From<redb::$error> for Problem {
            fn from(error: redb::$error) -> Self {
                Self::Redb(Box::new(error.into()))
            }
        })*
    };
}

from_redb!(DatabaseError TransactionError TableError StorageError CommitError);

/// Runs `work` on the database in the file `path`. redb takes some damage for an error in
/// its own reasoning and panics: that is damage too. The panic hook still reports it, and a
/// program that aborts on panics aborts.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, Problem>) -> Result<T, StoreError> {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic_message(panic.as_ref());
        Err(Problem::Damage(format!(
            "the database engine failed: {message}"
        )))
    });
    result.map_err(|problem| problem.at(path))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
