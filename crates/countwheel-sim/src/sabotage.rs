//! Mistakes at the seams of a store: a call left out, an error swallowed, an answer slightly wrong.
//! Each stands for a mistake in the store, and the proofs have to find it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use countwheel_disk::{Files, Flushed, Reached, Sorted, StoreFile};
use countwheel_durable::store::{
    Change, DiskError, DuePage, DueScan, Fence, Filter, Gaps, Lease, OnDisk, Ownership, Page,
    QueueCounts, Scrubbed, Shard, Store, StoreError,
};
use countwheel_durable::{Record, Settings, SettingsVersion, StateKind, TimerName, Trouble};
use parking_lot::Mutex;

use crate::machine::Kept;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Commits are acknowledged without a sync of their file.
    AcknowledgeBeforeSync,
    /// A directory is never synced.
    SkipDirectorySync,
    /// The first sync of a file after it was opened is left out: the one of a new segment's
    /// header.
    SkipHeaderSync,
    /// A sync that fails is made again, and believed.
    TrustSecondSync,
    /// A sync of the directory that fails is believed.
    BelieveFailedDirectorySync,
    /// A write that fails is believed.
    BelieveFailedWrite,
    /// A write is made in the wrong place, a byte further, once in a hundred times.
    MisplacedWrite,
    /// A segment is freed when the sorted store has begun to take it in, not when it has done.
    FreeBeforeIngest,
    /// The last record of a segment is not flushed.
    LoseAtFlush,
    /// What is removed is not removed from the sorted store.
    ForgetRemovalAtFlush,
    /// A page of what is due ends one early, and says that it is full.
    SkipPageBorder,
    /// A page of a list forgets its last record.
    SkipListBorder,
    /// A scan of one page leaves out what is due at its very end.
    OffByOneUntil,
    /// Removals are not counted.
    CountsDrift,
    /// A batch is written as two.
    TornBatch,
    /// Revisions that only a batch shows are not remembered.
    ForgetGiven,
    /// An owner that was replaced may go on.
    IgnoreFence,
    /// The fence begins anew with each opening.
    FenceStartsAgain,
    /// After a commit that failed others are tried.
    GoOnAfterFailure,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::AcknowledgeBeforeSync,
        Self::SkipDirectorySync,
        Self::SkipHeaderSync,
        Self::TrustSecondSync,
        Self::BelieveFailedDirectorySync,
        Self::BelieveFailedWrite,
        Self::MisplacedWrite,
        Self::FreeBeforeIngest,
        Self::LoseAtFlush,
        Self::ForgetRemovalAtFlush,
        Self::SkipPageBorder,
        Self::SkipListBorder,
        Self::OffByOneUntil,
        Self::CountsDrift,
        Self::TornBatch,
        Self::ForgetGiven,
        Self::IgnoreFence,
        Self::FenceStartsAgain,
        Self::GoOnAfterFailure,
    ];
}

/// Files with a mistake in how they are used.
#[derive(Debug)]
pub(crate) struct Misused {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) how: Option<Sabotage>,
    /// Who says what cannot be guessed, if somebody else shall.
    pub(crate) nonces_of: Option<Arc<dyn Files>>,
}

impl Misused {
    fn file(&self, file: Arc<dyn StoreFile>) -> Arc<dyn StoreFile> {
        Arc::new(MisusedFile {
            file,
            how: self.how,
            syncs: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        })
    }
}

impl Files for Misused {
    fn list(&self) -> io::Result<Vec<String>> {
        // In an order that does not depend on the disk.
        let mut names = self.files.list()?;
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn StoreFile>> {
        self.files.create(name, len).map(|file| self.file(file))
    }

    fn begin(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        self.files.begin(name).map(|file| self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StoreFile>> {
        self.files.open(name).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn set_aside(&self, names: &[String]) -> io::Result<()> {
        self.files.set_aside(names)
    }

    fn sync(&self) -> io::Result<()> {
        match self.how {
            Some(Sabotage::SkipDirectorySync) => Ok(()),
            Some(Sabotage::BelieveFailedDirectorySync) => {
                let _error_that_nobody_looks_at = self.files.sync();
                Ok(())
            }
            _ => self.files.sync(),
        }
    }

    fn path(&self) -> PathBuf {
        self.files.path()
    }

    fn identity(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        self.files.identity(name)
    }

    fn nonce(&self) -> io::Result<u64> {
        let of = self.nonces_of.as_ref().unwrap_or(&self.files);
        of.nonce()
    }
}

#[derive(Debug)]
struct MisusedFile {
    file: Arc<dyn StoreFile>,
    how: Option<Sabotage>,
    syncs: AtomicU64,
    writes: AtomicU64,
}

impl StoreFile for MisusedFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        match self.how {
            Some(Sabotage::BelieveFailedWrite) => {
                let _error_that_nobody_looks_at = self.file.write_at(offset, data);
                Ok(())
            }
            Some(Sabotage::MisplacedWrite) if write % 100 == 4 => {
                let fits = &data[..data.len().saturating_sub(1)];
                self.file.write_at(offset + 1, fits)
            }
            _ => self.file.write_at(offset, data),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let sync = self.syncs.fetch_add(1, Ordering::Relaxed);
        match self.how {
            Some(Sabotage::AcknowledgeBeforeSync) => Ok(()),
            Some(Sabotage::SkipHeaderSync) if sync == 0 => Ok(()),
            Some(Sabotage::TrustSecondSync) => self.file.sync().or_else(|_| self.file.sync()),
            _ => self.file.sync(),
        }
    }
}

/// A segment, and what is left of it.
type Ingest = (u64, Vec<(Shard, Change)>);

/// A sorted store with a mistake in it.
pub(crate) struct MisusedSorted {
    pub(crate) sorted: Arc<dyn Sorted>,
    pub(crate) how: Option<Sabotage>,
    /// What was said to be taken in.
    pub(crate) late: Mutex<Option<Ingest>>,
}

impl Sorted for MisusedSorted {
    fn ingested(&self) -> u64 {
        let late = self.late.lock();
        let late = late.as_ref().map(|(segment, _)| *segment);
        late.unwrap_or_else(|| self.sorted.ingested())
    }

    fn is_persisted(&self) -> bool {
        self.sorted.is_persisted()
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.sorted.persist()
    }

    fn reached(&self) -> Option<Reached> {
        self.sorted.reached()
    }

    fn checkpoint(&self, reached: Reached) -> Result<(), StoreError> {
        self.sorted.checkpoint(reached)
    }

    fn ingest(&self, segment: u64, flushed: Flushed) -> Result<(), StoreError> {
        if self.how.is_none() {
            return self.sorted.ingest(segment, flushed);
        }
        let mut changes = flushed.changes()?;
        match self.how {
            Some(Sabotage::FreeBeforeIngest) => {
                let mut late = self.late.lock();
                let before = late.replace((segment, changes));
                return match before {
                    Some((segment, changes)) => self.sorted.ingest(segment, changes.into()),
                    None => Ok(()),
                };
            }
            Some(Sabotage::LoseAtFlush) if changes.len() > 1 => {
                changes.pop();
            }
            Some(Sabotage::ForgetRemovalAtFlush) => {
                changes.retain(|(_, change)| !matches!(change, Change::Remove { .. }));
            }
            _ => {}
        }
        self.sorted.ingest(segment, changes.into())
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.sorted.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.sorted.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.sorted.list(shard, filter)
    }

    fn kind(&self, shard: Shard, name: &TimerName) -> Result<Option<StateKind>, StoreError> {
        self.sorted.kind(shard, name)
    }

    fn gaps(&self) -> Gaps {
        self.sorted.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.sorted.troubles()
    }

    fn compact(&self) -> Result<bool, StoreError> {
        self.sorted.compact()
    }

    fn scrub_step(&self, budget: u64) -> Scrubbed {
        self.sorted.scrub_step(budget)
    }

    fn is_full(&self) -> bool {
        self.sorted.is_full()
    }
}

/// A store with a mistake in it.
pub(crate) struct MisusedStore {
    pub(crate) store: Box<dyn Kept>,
    pub(crate) how: Sabotage,
    pub(crate) owned: Mutex<Owned>,
}

#[derive(Default)]
pub(crate) struct Owned {
    lease: Option<Lease>,
    first: Option<u64>,
    removed: BTreeMap<TimerName, usize>,
    failed: bool,
}

impl MisusedStore {
    pub(crate) fn new(store: Box<dyn Kept>, how: Sabotage) -> Self {
        Self {
            store,
            how,
            owned: Mutex::default(),
        }
    }

    /// The lease as the store below knows it.
    fn below(&self, lease: Lease) -> Lease {
        let owned = self.owned.lock();
        match self.how {
            Sabotage::IgnoreFence => owned.lease.unwrap_or(lease),
            Sabotage::FenceStartsAgain => Lease {
                fence: Fence(lease.fence.0 + owned.first.map_or(0, |first| first - 1)),
                ..lease
            },
            _ => lease,
        }
    }
}

impl Kept for MisusedStore {
    fn upkeep(&self, which: u64) -> Result<(), StoreError> {
        self.store.upkeep(which)
    }

    fn as_store(&self) -> &dyn Store {
        self
    }
}

impl Store for MisusedStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        let mut ownership = self.store.acquire(shard)?;
        let mut owned = self.owned.lock();
        owned.lease = Some(ownership.lease);
        let first = *owned.first.get_or_insert(ownership.lease.fence.0);
        if self.how == Sabotage::FenceStartsAgain {
            ownership.lease.fence = Fence(ownership.lease.fence.0 + 1 - first);
        }
        Ok(ownership)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let lease = self.below(lease);
        match self.how {
            Sabotage::TornBatch if changes.len() > 1 => {
                let (first, second) = changes.split_at(changes.len() / 2);
                self.store.commit(lease, first)?;
                self.store.commit(lease, second)
            }
            Sabotage::ForgetGiven => {
                let kept = changes.iter().filter(|c| !matches!(c, Change::Given(_)));
                let kept: Vec<_> = kept.cloned().collect();
                self.store.commit(lease, &kept)
            }
            Sabotage::GoOnAfterFailure => {
                if self.owned.lock().failed {
                    return Ok(());
                }
                let result = self.store.commit(lease, changes);
                self.owned.lock().failed |=
                    matches!(result, Err(StoreError::Disk(DiskError::Io { .. })));
                result
            }
            Sabotage::CountsDrift => {
                self.store.commit(lease, changes)?;
                let mut owned = self.owned.lock();
                for change in changes {
                    match change {
                        Change::Remove { name, .. } => {
                            *owned.removed.entry(name.clone()).or_default() += 1;
                        }
                        Change::Put { record, .. } => {
                            owned.removed.remove(&record.name);
                        }
                        Change::Given(_) | Change::Clock(_) | Change::Setting(_) => {}
                    }
                }
                Ok(())
            }
            _ => self.store.commit(lease, changes),
        }
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.store.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.store.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        let mut page = self.store.due(shard, scan)?;
        match self.how {
            Sabotage::SkipPageBorder if page.next.is_some() => {
                page.entries.pop();
            }
            Sabotage::OffByOneUntil => {
                page.entries.retain(|entry| entry.wake.at < scan.until);
            }
            _ => {}
        }
        Ok(page)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        let mut page = self.store.list(shard, filter)?;
        if self.how == Sabotage::SkipListBorder && page.next.is_some() {
            page.records.pop();
        }
        Ok(page)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        let mut counts = self.store.counts(shard)?;
        if self.how == Sabotage::CountsDrift {
            let owned = self.owned.lock();
            for name in owned.removed.keys() {
                if let Some(counts) = counts.iter_mut().find(|c| c.queue == name.queue) {
                    counts.by_state[0] += 1;
                }
            }
        }
        Ok(counts)
    }

    fn gaps(&self) -> Gaps {
        self.store.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.store.troubles()
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        self.store.on_disk()
    }
}
