//! The store as one owner of a shard reaches it: away at times, lost at times, with a lease that ends.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{
    Change, ClockNote, Commit, DuePage, DueScan, Fence, Filter, Found, Gaps, Lease, OnDisk,
    Ownership, Page, QueueCounts, Shard, Store, StoreError,
};
use countwheel_durable::{Record, Settings, SettingsVersion, TimerName, Trouble};
use countwheel_time::{Clock, ManualClock};
use parking_lot::Mutex;

use super::watch::Watch;
use crate::machine::Kept;

/// What all owners share.
pub(super) struct Shared {
    /// That of all nodes, or what looks at a store of which each node has its own connections.
    pub(super) store: Arc<dyn Kept>,
    pub(super) clocks: Arc<Clocks>,
    /// There is one if each node has its own connections.
    pub(super) watch: Option<Watch>,
    pub(super) seen: Mutex<Seen>,
}

/// The time, and the clocks of all nodes.
#[derive(Default)]
pub(super) struct Clocks(Mutex<Times>);

#[derive(Default)]
struct Times {
    /// The time that has really passed, in microseconds.
    time: u64,
    /// Each with the parts in a million by which it is too fast.
    clocks: Vec<(ManualClock, i64)>,
}

impl Clocks {
    pub(super) fn add(&self, clock: ManualClock, rate: i64) {
        self.0.lock().clocks.push((clock, rate));
    }

    pub(super) fn time(&self) -> u64 {
        self.0.lock().time
    }

    /// Time passes for all, and as each node's clocks have it.
    pub(super) fn pass(&self, micros: u64) {
        self.pass_asleep(micros, None);
    }

    /// The same while the machine of a node sleeps.
    pub(super) fn sleep(&self, node: usize, micros: u64) {
        self.pass_asleep(micros, Some(node));
    }

    fn pass_asleep(&self, micros: u64, asleep: Option<usize>) {
        let mut times = self.0.lock();
        times.time += micros;
        for (node, (clock, rate)) in times.clocks.iter().enumerate() {
            let nanos = i128::from(micros) * i128::from(1_000_000 + rate) / 1_000;
            let span = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
            match asleep == Some(node) {
                true => clock.suspend(span),
                false => clock.advance(span),
            }
        }
    }
}

/// What is seen at the store by somebody who misses nothing.
#[derive(Default)]
pub(super) struct Seen {
    /// Who took each shard last.
    pub(super) fences: BTreeMap<Shard, Fence>,
    /// The notes of the clocks of each shard, and when each was read.
    notes: BTreeMap<Shard, Vec<(ClockNote, u64)>>,
    /// What a store must never do.
    pub(super) broken: Option<String>,
}

impl Shared {
    pub(super) fn new(store: Arc<dyn Kept>, clocks: Arc<Clocks>, watch: Option<Watch>) -> Self {
        Self {
            store,
            clocks,
            watch,
            seen: Mutex::default(),
        }
    }

    /// Under which number somebody owns a shard, if somebody does.
    pub(super) fn owner(&self, shard: Shard) -> Option<Fence> {
        match &self.watch {
            Some(watch) => Some(watch.server.owner(shard)).filter(|fence| *fence > Fence(0)),
            None => self.seen.lock().fences.get(&shard).copied(),
        }
    }

    fn is_current(&self, lease: Lease) -> bool {
        self.owner(lease.shard) == Some(lease.fence)
    }
}

impl Seen {
    /// When this note of the clocks was made.
    pub(super) fn noted(&self, shard: Shard, note: ClockNote) -> Option<u64> {
        let notes = self.notes.get(&shard)?;
        let noted = notes.iter().rev().find(|(other, _)| *other == note);
        noted.map(|(_, time)| *time)
    }
}

/// The store, for one opening of one shard.
pub(super) struct Seam {
    shared: Arc<Shared>,
    /// That of the node.
    store: Arc<dyn Kept>,
    clock: ManualClock,
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
    /// When the turn began whose note of the clocks the next commit has.
    pub(super) began: u64,
    /// The note of the clocks that was there when the shard was taken.
    pub(super) acquired: Option<ClockNote>,
    /// Under which number it was taken.
    pub(super) fence: Fence,
}

impl Seam {
    pub(super) fn new(
        shared: Arc<Shared>,
        (store, clock): (Arc<dyn Kept>, ManualClock),
        in_bulk: bool,
    ) -> Self {
        Self {
            shared,
            store,
            clock,
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

    /// What the node's store says, which may fail by itself.
    fn heard<T>(&self, said: Result<T, StoreError>) -> Result<T, StoreError> {
        let may_fail = self.shared.watch.as_ref().is_some_and(Watch::may_fail);
        let is_failure =
            |error: &StoreError| matches!(error, StoreError::Unavailable { .. }) || error.is_full();
        if may_fail && said.as_ref().err().is_some_and(is_failure) {
            self.faults.lock().struck = true;
        }
        said
    }

    /// What is committed: with additions that say nothing to the engine, where somebody looks at them.
    fn with_additions<'a>(&self, shard: Shard, changes: &'a [Change]) -> Cow<'a, [Change]> {
        match &self.shared.watch {
            Some(watch) => Cow::Owned(watch.add_to(shard, changes)),
            None => Cow::Borrowed(changes),
        }
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
        let committed = self.heard(committed);
        let mut seen = self.shared.seen.lock();
        if let Some(watch) = &self.shared.watch {
            let looked = watch.committed(lease, changes, &committed);
            seen.broken = seen.broken.take().or(looked.err());
        } else if committed.is_ok() != self.is_owner(&seen, lease) {
            let owner = seen.fences.get(&lease.shard);
            seen.broken = Some(format!("{committed:?} under {lease:?}, of {owner:?}"));
        }
        let mut faults = self.faults.lock();
        let lost = faults.lost.take();
        // One that was lost may be made.
        if !matches!(committed, Ok(()) | Err(StoreError::Lost { .. })) {
            return committed;
        }
        let time = faults.began;
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
        committed
    }

    /// What the store must hold after a commit.
    fn look(&self, lease: Lease) {
        if let Some(watch) = &self.shared.watch {
            // A read that is slow takes time, and what is done may be past after it.
            let mut looked = Ok(());
            for _ in 0..3 {
                watch.clock.set_timestamp(self.clock.timestamp());
                looked = watch.look(lease, (&*self.store, &*self.shared.store));
                if looked.is_ok() {
                    break;
                }
            }
            let mut seen = self.shared.seen.lock();
            seen.broken = seen.broken.take().or(looked.err());
        }
    }

    fn is_owner(&self, seen: &Seen, lease: Lease) -> bool {
        seen.fences.get(&lease.shard) == Some(&lease.fence)
    }

    /// Makes commits of several owners together.
    pub(super) fn commit_together(commits: &[(&Self, Commit<'_>)]) -> Vec<Result<(), StoreError>> {
        let before: Vec<_> = commits
            .iter()
            .map(|(seam, commit)| seam.before_commit(commit.lease))
            .collect();
        let reach = commits.iter().zip(&before);
        let reach = reach.filter(|(_, before)| before.is_ok());
        let changes: Vec<_> = reach
            .map(|((seam, commit), _)| {
                let changes = seam.with_additions(commit.lease.shard, commit.changes);
                (commit.lease, changes)
            })
            .collect();
        let reach = changes.iter().map(|(lease, changes)| Commit {
            lease: *lease,
            changes,
        });
        let reach: Vec<_> = reach.collect();
        let Some((first, _)) = commits.first() else {
            return before;
        };
        let made = first.store.commit_all(&reach);
        let mut made = reach.into_iter().zip(made);
        let ended = commits.iter().zip(before);
        let ended = ended.map(|((seam, commit), before)| {
            before?;
            let (commit, made) = made.next().unwrap_or((*commit, Err(StoreError::Poisoned)));
            seam.after_commit(commit, made)
        });
        let ended = ended.collect();
        for (seam, commit) in commits {
            seam.look(commit.lease);
        }
        ended
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
        let ownership = self.heard(self.store.acquire(shard))?;
        let fence = ownership.lease.fence;
        let mut seen = self.shared.seen.lock();
        if let Some(watch) = &self.shared.watch {
            watch.clock.set_timestamp(self.clock.timestamp());
            let looked = watch.acquired(&ownership, &*self.shared.store);
            seen.broken = seen.broken.take().or(looked.err());
        }
        if seen
            .fences
            .insert(shard, fence)
            .is_some_and(|last| last >= fence)
        {
            seen.broken = Some(format!("{fence:?} of {shard:?} is given again"));
        }
        drop(seen);
        self.look(ownership.lease);
        let mut faults = self.faults.lock();
        (faults.acquired, faults.fence) = (ownership.clock, fence);
        Ok(ownership)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.before_commit(lease)?;
        let changes = &self.with_additions(lease.shard, changes);
        let committed = self.store.commit(lease, changes);
        let committed = self.after_commit(Commit { lease, changes }, committed);
        self.look(lease);
        committed
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.call()?;
        self.heard(self.store.get(shard, name))
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        let mut found = Found::default();
        if self.in_bulk && self.shared.watch.is_some() {
            return self.heard(self.store.get_many(shard, names, bytes));
        }
        if self.in_bulk {
            self.call()?;
            for name in names {
                let record = self.store.get(shard, &name)?;
                found.add(name, record);
            }
        }
        Ok(found)
    }

    fn may_start(&self, lease: Lease) -> bool {
        !self.faults.lock().lease_ended && self.shared.is_current(lease)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.call()?;
        self.heard(self.store.due(shard, scan))
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.call()?;
        self.heard(self.store.list(shard, filter))
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.call()?;
        self.heard(self.store.counts(shard))
    }

    fn counts_are_exact(&self, shard: Shard) -> bool {
        self.store.counts_are_exact(shard)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        // Who cannot read them goes on with those that are known.
        self.store.settings(after)
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
