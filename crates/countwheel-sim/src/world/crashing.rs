//! The product's store, with a fault for the next commit.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_disk::simulated::{self, Disk};
use countwheel_durable::store::{
    Change, ClockNote, DiskError, DuePage, DueScan, Filter, Found, Gaps, Lease, OnDisk, Ownership,
    Page, QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{Record, Settings, SettingsVersion, TimerName, Trouble};
use countwheel_time::ManualClock;
use parking_lot::Mutex;

use super::boots::Noted;
use crate::machine::{Kept, Machine};

pub(super) struct CrashingStore {
    inner: Box<dyn Kept>,
    clock: ManualClock,
    disk: Disk,
    /// Whether it reads many names in one piece.
    in_bulk: bool,
    /// What becomes of the next commit.
    pub(super) next: Mutex<NextCommit>,
    /// The last commit was refused for lack of room, and a step with it.
    was_full: AtomicBool,
    /// Where the clocks stood when the shard was taken, and what was said of them since.
    acquired: Mutex<Option<ClockNote>>,
    noted: Mutex<Noted>,
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
    pub(super) fn new(
        machine: &Machine,
        clock: &ManualClock,
        in_bulk: bool,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            inner: machine.open()?,
            disk: machine.disk.clone(),
            in_bulk,
            clock: clock.clone(),
            next: Mutex::default(),
            was_full: AtomicBool::new(false),
            acquired: Mutex::default(),
            noted: Mutex::default(),
        })
    }

    /// Whether a step was void since its commit was refused for lack of room. Asked once.
    pub(super) fn was_full(&self) -> bool {
        self.was_full.swap(false, Ordering::Relaxed)
    }

    /// The note of the clocks that was there when the shard was taken.
    pub(super) fn acquired(&self) -> Option<ClockNote> {
        *self.acquired.lock()
    }

    /// What is known of the notes since.
    pub(super) fn noted(&self) -> Noted {
        *self.noted.lock()
    }

    pub(super) fn has_room(&self) -> bool {
        self.on_disk().is_none_or(OnDisk::has_room)
    }

    pub(super) fn upkeep(&self, which: u64) -> Result<(), StoreError> {
        self.inner.upkeep(which)
    }
}

impl Store for CrashingStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        let ownership = self.inner.acquire(shard)?;
        *self.acquired.lock() = ownership.clock;
        self.noted.lock().acknowledged = ownership.clock;
        Ok(ownership)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let NextCommit { fault, slow } = std::mem::take(&mut *self.next.lock());
        self.clock.advance(slow);
        let gone = || {
            DiskError::Io {
                path: "simulated".into(),
                source: io::Error::other("the simulated process ends here"),
            }
            .into()
        };
        let note = changes.iter().rev().find_map(|change| match change {
            Change::Clock(note) => Some(*note),
            _ => None,
        });
        let mut noted = self.noted.lock();
        match fault {
            Fault::Before => return Err(gone()),
            Fault::Within(fault) => self.disk.fail(fault),
            Fault::None | Fault::After => {}
        }
        let committed = self.inner.commit(lease, changes);
        let is_full = committed.as_ref().is_err_and(StoreError::is_full);
        // Nothing rests on a note of the clocks: a step with nothing else to commit is not void without it.
        let is_more = changes
            .iter()
            .any(|change| !matches!(change, Change::Clock(_)));
        self.was_full.store(is_full && is_more, Ordering::Relaxed);
        let is_acknowledged = match &committed {
            Ok(()) => Some(true),
            Err(StoreError::Fenced { .. }) => Some(false),
            Err(_) if is_full => Some(false),
            Err(_) => None,
        };
        noted.commit(note, is_acknowledged);
        committed?;
        match fault {
            Fault::After => Err(gone()),
            _ => Ok(()),
        }
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.inner.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.inner.get(shard, name)
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        let mut found = self.inner.as_store().get_many(shard, names, bytes)?;
        if self.in_bulk {
            for name in names {
                // What cannot be read is asked for again.
                if let Ok(record) = self.get(shard, &name) {
                    found.add(name, record);
                }
            }
        }
        Ok(found)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.inner.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.inner.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.inner.counts(shard)
    }

    fn gaps(&self) -> Gaps {
        self.inner.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.inner.troubles()
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        self.inner.on_disk()
    }
}
