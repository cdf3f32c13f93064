//! What a simulated PostgreSQL must never do to the owners of its shards, seen by somebody who misses
//! nothing.
//!
//! The server counts the turns that each owner has made; here is how many each owner was told of. The
//! two agree, but for the one commit of an owner that was lost in it. A failover that loses commits is
//! the exception: the owner whose commits it lost must be told so by its next commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use countwheel_durable::store::{
    Before, Change, ClockNote, DueScan, Fence, Lease, Ownership, Shard, StoreError,
};
use countwheel_durable::{DueClock, Revision, Setting, SettingName, SettingsVersion};
use countwheel_postgres::testing::SimulatedPostgres;
use countwheel_time::ManualClock;
use parking_lot::Mutex;

use crate::machine::Kept;
use crate::random::Random;

pub(super) struct Watch {
    pub(super) server: SimulatedPostgres,
    /// That of who looks: done timers count until their time by the clock of who counts them.
    pub(super) clock: ManualClock,
    /// Cleared once everything works.
    pub(super) may_fail: AtomicBool,
    additions: Mutex<Random>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    counted: BTreeMap<(Shard, Fence), Counted>,
    /// The owners that have lost commits with changes and do not know it.
    unaware: BTreeSet<(Shard, Fence)>,
    /// The last owner of each shard of which a failover has lost something. It, and those before, may say
    /// so: also an empty turn is one.
    may_say: BTreeMap<Shard, Fence>,
    /// The highest revision that each shard's owners were told of.
    revisions: BTreeMap<Shard, Revision>,
    /// What the last note of the clocks may be, and the shard's setting: one of these.
    notes: BTreeMap<Shard, Vec<Option<ClockNote>>>,
    settings: BTreeMap<Shard, Vec<Option<Vec<u8>>>>,
    next_setting: u64,
    reported: u64,
}

/// The commits of one owner.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    told: u64,
    /// It was lost in a commit that may have been made.
    is_uncertain: bool,
    /// How many it has made for good, once somebody else has taken the shard.
    settled: Option<u64>,
}

impl Counted {
    /// Whether it may have made so many.
    fn look(&self, made: u64) -> bool {
        let most = self.told + u64::from(self.is_uncertain);
        (self.told..=most).contains(&made) && self.settled.is_none_or(|settled| settled == made)
    }
}

fn setting_of(shard: Shard) -> Option<SettingName> {
    SettingName::new(format!("of-shard-{}", shard.0)).ok()
}

impl Watch {
    pub(super) fn new(server: SimulatedPostgres, seed: u64) -> Self {
        Self {
            server,
            clock: ManualClock::new(),
            may_fail: AtomicBool::new(true),
            additions: Mutex::new(Random::new(seed, "additions to commits")),
            known: Mutex::default(),
        }
    }

    /// How many owners were told of a loss.
    pub(super) fn reported(&self) -> u64 {
        self.known.lock().reported
    }

    pub(super) fn may_fail(&self) -> bool {
        self.may_fail.load(Ordering::Relaxed)
    }

    /// The changes with some that mean nothing to the engine: a setting of the shard, and a name that
    /// is changed twice.
    pub(super) fn add_to(&self, shard: Shard, changes: &[Change]) -> Vec<Change> {
        let mut random = self.additions.lock();
        let mut all = Vec::new();
        for change in changes {
            match change {
                Change::Put { record, before } if random.one_in(6) => {
                    let mut other = record.clone();
                    other.payload.push(0);
                    let before = match *before {
                        Before::SamePayload(kind) => Before::Present(kind),
                        before => before,
                    };
                    let first = Change::Put {
                        record: other,
                        before,
                    };
                    let last = Change::Put {
                        record: record.clone(),
                        before: Before::Present(record.state.kind()),
                    };
                    all.extend([first, last]);
                }
                change => all.push(change.clone()),
            }
        }
        if random.one_in(4)
            && let Some(name) = setting_of(shard)
        {
            let mut known = self.known.lock();
            known.next_setting += 1;
            let value = known.next_setting.to_string().into_bytes();
            let value = (!random.one_in(5)).then_some(value);
            all.push(Change::Setting(Setting { name, value }));
        }
        all
    }

    /// A commit has a result.
    pub(super) fn committed(
        &self,
        lease: Lease,
        changes: &[Change],
        result: &Result<(), StoreError>,
    ) -> Result<(), String> {
        let Lease { shard, fence } = lease;
        let mut known = self.known.lock();
        let says_loss = matches!(result, Err(StoreError::Lost { reason, .. })
            if reason.contains("lost acknowledged commits: turn "));
        if known.unaware.contains(&(shard, fence)) {
            known.reported += u64::from(says_loss);
            let is_fine = match result {
                Ok(()) => false,
                // Who owns the shard is told by the commit itself, unless that is uncertain. An owner
                // that was replaced is told that alone: on the server, where the store has the loss among
                // its troubles, or by its own process, which has heard it as a later owner.
                Err(StoreError::Lost { reason, .. }) => {
                    says_loss || self.may_fail() || reason == "this ownership has ended"
                }
                Err(StoreError::Fenced { current, .. }) => *current != fence,
                Err(_) => self.may_fail(),
            };
            if says_loss {
                known.unaware.remove(&(shard, fence));
            }
            return match is_fine {
                true => Ok(()),
                false => Err(format!("{result:?} under {lease:?} passes over a loss")),
            };
        }
        if says_loss && known.may_say.get(&shard).is_none_or(|last| *last < fence) {
            return Err(format!("nothing was lost, and {lease:?}: {result:?}"));
        }
        let made = self.server.turns(shard, fence);
        let counted = known.counted.entry((shard, fence)).or_default();
        counted.told += u64::from(result.is_ok());
        let lost = matches!(result, Err(StoreError::Lost { .. }));
        counted.is_uncertain |= lost;
        if !counted.look(made) {
            return Err(format!(
                "{result:?} under {lease:?}, {counted:?}, and {made} turns are made"
            ));
        }
        match result {
            Ok(()) | Err(StoreError::Lost { .. }) => known.may_be(shard, changes, lost),
            Err(StoreError::Fenced { .. } | StoreError::Unavailable { .. }) => {}
            Err(error) if error.is_full() => {}
            Err(error) => return Err(format!("a commit under {lease:?}: {error}")),
        }
        Ok(())
    }

    /// After commits: the setting and the counts of a shard are what they may be.
    pub(super) fn look(
        &self,
        Lease { shard, fence }: Lease,
        (store, observer): (&dyn Kept, &dyn Kept),
    ) -> Result<(), String> {
        self.known.lock().look_at_setting(shard, observer)?;
        let known = self.known.lock();
        // The counts of one who does not know of a loss have what is lost.
        let is_behind = known.may_say.get(&shard).is_some_and(|last| fence <= *last);
        drop(known);
        match self.server.owner(shard) == fence && !is_behind {
            true => {
                self.look_at_marks(shard, store, observer)?;
                same_counts(shard, store, observer)
            }
            false => Ok(()),
        }
    }

    /// Nothing that lives is before the low marks, and the owner finds all that wakes.
    fn look_at_marks(
        &self,
        shard: Shard,
        store: &dyn Kept,
        observer: &dyn Kept,
    ) -> Result<(), String> {
        if let Some(name) = self.server.before_mark(shard) {
            return Err(format!("{name} of {shard:?} is before its low mark"));
        }
        for clock in DueClock::ALL {
            let scan = DueScan::all(clock);
            match (store.due(shard, &scan), observer.due(shard, &scan)) {
                (Ok(found), Ok(all)) if found.entries != all.entries => {
                    return Err(format!(
                        "of {shard:?} wakes {:?}, and should {:?}",
                        found.entries, all.entries
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A shard was taken.
    pub(super) fn acquired(
        &self,
        ownership: &Ownership,
        observer: &dyn Kept,
    ) -> Result<(), String> {
        let Lease { shard, fence } = ownership.lease;
        let mut known = self.known.lock();
        known.counted.insert((shard, fence), Counted::default());
        let before = known.counted.range_mut((shard, Fence(0))..(shard, fence));
        for ((_, fence), counted) in before {
            let made = self.server.turns(shard, *fence);
            if !counted.look(made) {
                return Err(format!(
                    "{counted:?} of {shard:?} under {fence:?}, and {made} turns"
                ));
            }
            counted.settled = Some(made);
        }
        let told = known.revisions.get(&shard).copied().unwrap_or_default();
        if ownership.last_revision < told {
            return Err(format!("{told:?} was given before {ownership:?}"));
        }
        if let Some(notes) = known.notes.get(&shard)
            && !notes.contains(&ownership.clock)
        {
            return Err(format!("the last note is one of {notes:?}: {ownership:?}"));
        }
        known.notes.insert(shard, vec![ownership.clock]);
        known.look_at_setting(shard, observer)?;
        let setting = current_setting(shard, observer)?;
        known.settings.insert(shard, vec![setting]);
        Ok(())
    }

    /// Whether the commit in which an owner was lost is made.
    pub(super) fn is_made(&self, shard: Shard, fence: Fence) -> bool {
        let known = self.known.lock();
        let counted = known.counted.get(&(shard, fence));
        counted.is_some_and(|counted| self.server.turns(shard, fence) > counted.told)
    }

    /// A failover lost commits of a shard, whose owner was that one.
    pub(super) fn lost(&self, shard: Shard, owner: Fence) {
        let known = &mut *self.known.lock();
        let all = (shard, Fence(0))..=(shard, Fence(u64::MAX));
        for ((_, fence), counted) in known.counted.range_mut(all) {
            // What is left is what counts, and nothing is on its way any more.
            let made = self.server.turns(shard, *fence);
            if counted.told > made {
                known.unaware.insert((shard, *fence));
            }
            *counted = Counted {
                told: made,
                is_uncertain: false,
                settled: Some(made),
            };
        }
        known.may_say.insert(shard, owner);
        known.notes.remove(&shard);
        known.settings.remove(&shard);
    }

    /// Everything has come to its end: what was told is there, and nothing else.
    pub(super) fn look_at_all(&self) -> Result<(), String> {
        for ((shard, fence), counted) in &self.known.lock().counted {
            let made = self.server.turns(*shard, *fence);
            if !counted.look(made) {
                return Err(format!(
                    "{counted:?} of {shard:?} under {fence:?}, and {made} turns"
                ));
            }
        }
        Ok(())
    }
}

impl Known {
    /// What a commit leaves, or may leave.
    fn may_be(&mut self, shard: Shard, changes: &[Change], lost: bool) {
        let mut note = None;
        let mut setting = None;
        let mut last = Revision(0);
        for change in changes {
            match change {
                Change::Put { record, .. } => last = last.max(record.revision),
                Change::Given(revision) => last = last.max(*revision),
                Change::Clock(it) => note = Some(Some(*it)),
                Change::Setting(it) => setting = Some(it.value.clone()),
                Change::Remove { .. } => {}
            }
        }
        if !lost {
            let told = self.revisions.entry(shard).or_default();
            *told = last.max(*told);
        }
        if let (Some(note), Some(notes)) = (note, self.notes.get_mut(&shard)) {
            if !lost {
                notes.clear();
            }
            notes.push(note);
        }
        if let (Some(setting), Some(settings)) = (setting, self.settings.get_mut(&shard)) {
            if !lost {
                settings.clear();
            }
            settings.push(setting);
        }
    }

    fn look_at_setting(&self, shard: Shard, observer: &dyn Kept) -> Result<(), String> {
        let Some(settings) = self.settings.get(&shard) else {
            return Ok(());
        };
        let found = current_setting(shard, observer)?;
        match settings.contains(&found) {
            true => Ok(()),
            false => Err(format!(
                "the setting of {shard:?} is {found:?}, not of {settings:?}"
            )),
        }
    }
}

fn current_setting(shard: Shard, observer: &dyn Kept) -> Result<Option<Vec<u8>>, String> {
    let settings = observer.settings(SettingsVersion(0));
    let settings = settings.map_err(|error| format!("the settings cannot be read: {error}"))?;
    let name = setting_of(shard).ok_or("no name")?;
    let found = settings.as_ref().and_then(|settings| settings.get(&name));
    Ok(found.map(|found| found.value.clone()))
}

/// The counts that an owner keeps are those of the server.
fn same_counts(shard: Shard, store: &dyn Kept, observer: &dyn Kept) -> Result<(), String> {
    if !store.counts_are_exact(shard) {
        return Ok(());
    }
    let (kept, found) = (store.counts(shard), observer.counts(shard));
    match (kept, found) {
        (Ok(kept), Ok(found)) if kept != found => Err(format!(
            "the counts of {shard:?} are {kept:?}, and should be {found:?}"
        )),
        _ => Ok(()),
    }
}
