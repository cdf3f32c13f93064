//! The store as one owner of a shard reaches it: away at times, lost at times, with a lease that ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use countwheel_durable::store::{
    Change, ClockNote, Commit, DuePage, DueScan, Fence, Filter, Found, Gaps, Lease, OnDisk,
    Ownership, Page, QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{Record, Settings, SettingsVersion, TimerName, Trouble};
use parking_lot::Mutex;

use crate::machine::Kept;

/// What all owners share.
pub(super) struct Shared {
    pub(super) store: Box<dyn Kept>,
    pub(super) seen: Mutex<Seen>,
}

/// What is seen at the store by somebody who misses nothing.
#[derive(Default)]
pub(super) struct Seen {
    /// The time that has really passed, in microseconds.
    pub(super) time: u64,
    /// Who took each shard last.
    pub(super) fences: BTreeMap<Shard, Fence>,
    /// The notes of the clocks of each shard, and when each was made.
    notes: BTreeMap<Shard, Vec<(ClockNote, u64)>>,
    /// What a store must never do.
    pub(super) broken: Option<String>,
}

impl Shared {
    pub(super) fn new(store: Box<dyn Kept>) -> Self {
        Self {
            store,
            seen: Mutex::default(),
        }
    }
}

impl Seen {
    /// When this note of the clocks was made.
    pub(super) fn noted(&self, shard: Shard, note: ClockNote) -> Option<u64> {
        let notes = self.notes.get(&shard)?;
        let noted = notes.iter().rev().find(|(other, _)| *other == note);
        noted.map(|(_, time)| *time)
    }

    fn is_current(&self, lease: Lease) -> bool {
        self.fences.get(&lease.shard) == Some(&lease.fence)
    }
}

/// The store, for one opening of one shard.
pub(super) struct Seam {
    shared: Arc<Shared>,
    /// Whether it reads many names in one piece.
    in_bulk: bool,
    pub(super) faults: Mutex<Faults>,
}

/// What goes wrong next, and what went wrong.
#[derive(Default)]
pub(super) struct Faults {
    /// After so many calls, so many are not available.
    pub(super) unavailable: Option<(u64, u64)>,
    /// Nobody learns what became of the next commit. Whether it is applied.
    pub(super) lost: Option<bool>,
    pub(super) lease_ended: bool,
    /// A call was not available since that was asked last.
    pub(super) struck: bool,
    /// An answer of a commit was lost since that was asked last; whether it was applied.
    pub(super) was_lost: Option<bool>,
    /// The note of the clocks that was there when the shard was taken.
    pub(super) acquired: Option<ClockNote>,
}

impl Seam {
    pub(super) fn new(shared: Arc<Shared>, in_bulk: bool) -> Self {
        Self {
            shared,
            in_bulk,
            faults: Mutex::default(),
        }
    }

    fn call(&self) -> Result<(), StoreError> {
        let mut faults = self.faults.lock();
        match &mut faults.unavailable {
            None => return Ok(()),
            Some((ahead, _)) if *ahead > 0 => {
                *ahead -= 1;
                return Ok(());
            }
            Some((_, times)) => {
                *times -= 1;
                if *times == 0 {
                    faults.unavailable = None;
                }
            }
        }
        faults.struck = true;
        let reason = "the simulated connection broke".to_owned();
        Err(StoreError::Unavailable { reason })
    }

    /// What goes wrong with a commit before the store has it.
    fn before_commit(&self, lease: Lease) -> Result<(), StoreError> {
        self.call()?;
        let mut faults = self.faults.lock();
        if faults.lost == Some(false) {
            faults.was_lost = faults.lost.take();
            return Err(gone(lease));
        }
        Ok(())
    }

    /// What the owner learns of a commit that the store had.
    fn after_commit(
        &self,
        Commit { lease, changes }: Commit<'_>,
        committed: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut seen = self.shared.seen.lock();
        if committed.is_ok() != seen.is_current(lease) {
            let owner = seen.fences.get(&lease.shard);
            seen.broken = Some(format!("{committed:?} under {lease:?}, of {owner:?}"));
        }
        let mut faults = self.faults.lock();
        let lost = faults.lost.take();
        committed?;
        let time = seen.time;
        for change in changes {
            if let Change::Clock(note) = change {
                let notes = seen.notes.entry(lease.shard).or_default();
                notes.push((*note, time));
            }
        }
        if lost == Some(true) {
            faults.was_lost = lost;
            return Err(gone(lease));
        }
        Ok(())
    }

    /// Makes commits of several owners together.
    pub(super) fn commit_together(commits: &[(&Self, Commit<'_>)]) -> Vec<Result<(), StoreError>> {
        let before: Vec<_> = commits
            .iter()
            .map(|(seam, commit)| seam.before_commit(commit.lease))
            .collect();
        let reach = commits.iter().zip(&before);
        let reach = reach.filter(|(_, before)| before.is_ok());
        let reach: Vec<_> = reach.map(|((_, commit), _)| *commit).collect();
        let Some((first, _)) = commits.first() else {
            return before;
        };
        let mut made = first.shared.store.commit_all(&reach).into_iter();
        let ended = commits.iter().zip(before);
        ended
            .map(|((seam, commit), before)| {
                before?;
                seam.after_commit(*commit, made.next().unwrap_or(Err(StoreError::Poisoned)))
            })
            .collect()
    }
}

fn gone(lease: Lease) -> StoreError {
    StoreError::Lost {
        shard: lease.shard,
        reason: "the simulated answer was lost".to_owned(),
    }
}

impl Store for Seam {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.call()?;
        let ownership = self.shared.store.acquire(shard)?;
        let fence = ownership.lease.fence;
        let mut seen = self.shared.seen.lock();
        if seen
            .fences
            .insert(shard, fence)
            .is_some_and(|last| last >= fence)
        {
            seen.broken = Some(format!("{fence:?} of {shard:?} is given again"));
        }
        self.faults.lock().acquired = ownership.clock;
        Ok(ownership)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.before_commit(lease)?;
        let committed = self.shared.store.commit(lease, changes);
        self.after_commit(Commit { lease, changes }, committed)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.call()?;
        self.shared.store.get(shard, name)
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        _bytes: usize,
    ) -> Result<Found, StoreError> {
        let mut found = Found::default();
        if self.in_bulk {
            self.call()?;
            for name in names {
                let record = self.shared.store.get(shard, &name)?;
                found.add(name, record);
            }
        }
        Ok(found)
    }

    fn may_start(&self, lease: Lease) -> bool {
        !self.faults.lock().lease_ended && self.shared.seen.lock().is_current(lease)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.call()?;
        self.shared.store.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.call()?;
        self.shared.store.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.call()?;
        self.shared.store.counts(shard)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.shared.store.settings(after)
    }

    fn gaps(&self) -> Gaps {
        self.shared.store.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.shared.store.troubles()
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        self.shared.store.on_disk()
    }
}
