//! The product's store, but for what happens to the next commit.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use countwheel::ManualClock;
use countwheel_durable::store::simulated::{self, Disk};
use countwheel_durable::store::{
    Change, DueEntry, DueScan, Filter, Lease, Ownership, Page, QueueCounts, Shard, Store,
    StoreError,
};
use countwheel_durable::{Record, TimerName};

use crate::machine::{Kept, Machine};

pub(super) struct CrashingStore {
    inner: Box<dyn Kept>,
    clock: ManualClock,
    disk: Disk,
    next: Mutex<NextCommit>,
    /// The last commit was refused for want of room.
    was_full: AtomicBool,
}

#[derive(Default)]
pub(super) struct NextCommit {
    pub(super) fault: Fault,
    pub(super) slow: Duration,
}

#[derive(Clone, Copy, Default, Debug)]
pub(super) enum Fault {
    #[default]
    None,
    /// The process ends before anything is written.
    Before,
    /// A call to the disk fails.
    Within(simulated::Fault),
    /// The process ends when all is durable, before anybody is told.
    After,
}

impl CrashingStore {
    pub(super) fn new(machine: &Machine, clock: &ManualClock) -> Result<Self, StoreError> {
        Ok(Self {
            inner: machine.open()?,
            disk: machine.disk.clone(),
            clock: clock.clone(),
            next: Mutex::default(),
            was_full: AtomicBool::new(false),
        })
    }

    /// What becomes of the next commit.
    pub(super) fn next(&self) -> MutexGuard<'_, NextCommit> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the last commit was refused for want of room. Asked once.
    pub(super) fn was_full(&self) -> bool {
        self.was_full.swap(false, Ordering::Relaxed)
    }

    pub(super) fn upkeep(&self, which: u64) -> Result<(), StoreError> {
        self.inner.upkeep(which)
    }
}

impl Store for CrashingStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.inner.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let NextCommit { fault, slow } = std::mem::take(&mut *self.next());
        self.clock.advance(slow);
        let gone = || StoreError::Io {
            path: "simulated".into(),
            source: io::Error::other("the simulated process ends here"),
        };
        match fault {
            Fault::Before => return Err(gone()),
            Fault::Within(fault) => self.disk.fail(fault),
            Fault::None | Fault::After => {}
        }
        let committed = self.inner.commit(lease, changes);
        let is_full = matches!(committed, Err(StoreError::Full { .. }));
        self.was_full.store(is_full, Ordering::Relaxed);
        committed?;
        match fault {
            Fault::After => Err(gone()),
            _ => Ok(()),
        }
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.inner.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        self.inner.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.inner.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.inner.counts(shard)
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }
}
