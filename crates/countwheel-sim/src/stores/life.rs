//! One store through one list of events: commits, upkeep, faults, ends of the process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use countwheel_disk::simulated::{Calls, Failure, Fault};
use countwheel_durable::store::{
    Before, Change, DiskError, Lease, MemoryStore, Ownership, Shard, Store, StoreError,
};
use countwheel_durable::{Revision, TimerName};

use super::answers::Answers;
use crate::machine::{Kept, Machine};

/// What happens to a store.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A commit. With `hinted`, each change says what it replaces.
    Commit {
        /// What changes.
        changes: Vec<Change>,
        /// Whether it says what was there before.
        hinted: bool,
    },
    /// A piece of upkeep.
    Upkeep(u64),
    /// The shard is taken again, as by an engine that begins anew.
    Acquire,
    /// Everything is asked.
    Ask,
    /// A fault is planted.
    Fault(Fault),
    /// All faults are taken away, and there is room again.
    Heal,
    /// No more room than this many bytes beyond what is used.
    Room(u64),
    /// The process ends, the machine goes on.
    Restart,
    /// The process ends, and the machine forgets what it need not know.
    Evict,
    /// The power goes.
    Cut(u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Commit { changes, hinted } = self else {
            return write!(f, "{self:?}");
        };
        write!(f, "Commit{}", if *hinted { " hinted:" } else { ":" })?;
        for change in changes {
            match change {
                Change::Put { record, .. } => write!(
                    f,
                    " put {} r{} {} {} bytes,",
                    record.name,
                    record.revision,
                    record.state.kind(),
                    record.payload.len()
                )?,
                Change::Remove { name, .. } => write!(f, " remove {name},")?,
                Change::Given(revision) => write!(f, " given {revision},")?,
                Change::Clock(_) => write!(f, " clock,")?,
                Change::Setting(setting) => write!(f, " {setting:?},")?,
            }
        }
        Ok(())
    }
}

/// What a life came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Lives.
    pub lives: u64,
    /// Commits acknowledged.
    pub commits: u64,
    /// Commits refused for lack of room.
    pub refused: u64,
    /// Commits of which it was not known what became of them.
    pub unknown: u64,
    /// Of these, there when the store was opened again.
    pub survived: u64,
    /// Pieces of upkeep that failed.
    pub upkeep_failed: u64,
    /// Times a store was opened and audited.
    pub audits: u64,
    /// Times an opening failed.
    pub failed_openings: u64,
    /// Calls that failed by a fault.
    pub struck: u64,
    /// Calls to the disk.
    pub calls: u64,
    /// Power cuts.
    pub cuts: u64,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.commits += other.commits;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.survived += other.survived;
        self.upkeep_failed += other.upkeep_failed;
        self.audits += other.audits;
        self.failed_openings += other.failed_openings;
        self.struck += other.struck;
        self.calls += other.calls;
        self.cuts += other.cuts;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lives, {} calls to the disk, {} of them failed; {} commits acknowledged, {} refused \
             for lack of room, {} unknown ({} of them there); {} openings failed, {} power cuts, \
             {} audits",
            self.lives,
            self.calls,
            self.struck,
            self.commits,
            self.refused,
            self.unknown,
            self.survived,
            self.failed_openings,
            self.cuts,
            self.audits,
        )
    }
}

/// How a life went wrong.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What is wrong.
    pub what: String,
    /// At which event; as many as there are at the end of life.
    pub event: usize,
    /// The last calls to the disk.
    pub calls: Vec<String>,
}

/// Lives through all events, heals, and looks at what is there.
///
/// # Errors
/// The first rule broken.
pub fn live(machine: &Machine, events: &[Event]) -> Result<Tally, Broken> {
    let mut life = Life::new(machine, events);
    let mut at = 0;
    let result = life.begin().and_then(|()| {
        for event in events {
            life.happen(event)?;
            at += 1;
        }
        life.end()
    });
    life.tally.calls += machine.disk.calls(Calls::All);
    life.tally.struck += machine.disk.struck();
    life.tally.lives = 1;
    let last = machine.disk.last_calls();
    result.map(|()| life.tally).map_err(|what| Broken {
        what,
        event: at,
        calls: last.iter().map(ToString::to_string).collect(),
    })
}

/// The same life with as few events as still break the same rule.
#[must_use]
pub fn shrink(
    machine: &dyn Fn() -> Machine,
    events: &[Event],
    limit: usize,
) -> (Vec<Event>, Option<Broken>) {
    let mut events = events.to_vec();
    let mut broken = None;
    let mut tries = 0;
    let mut piece = events.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < events.len() && tries < limit {
            tries += 1;
            let mut fewer = events.clone();
            fewer.drain(at..(at + piece).min(events.len()));
            match live(&machine(), &fewer) {
                Err(why) => {
                    (events, broken) = (fewer, Some(why));
                }
                Ok(_) => at += piece,
            }
        }
        piece /= 2;
    }
    (events, broken)
}

struct Life<'a> {
    machine: &'a Machine,
    names: BTreeSet<TimerName>,
    /// What was acknowledged.
    model: MemoryStore,
    model_lease: Option<Lease>,
    /// The commit of which nobody knows what became of it.
    unsure: Option<Vec<Change>>,
    store: Option<(Box<dyn Kept>, Ownership)>,
    last_fence: u64,
    /// A commit failed: no later one of this opening may succeed.
    poisoned: bool,
    /// A piece of upkeep failed, which may poison as well.
    upkeep_failed: bool,
    /// There was no room at some time since the store was opened.
    was_limited: bool,
    /// How many calls had failed when the store was last opened: none of those matters now.
    struck_before: u64,
    tally: Tally,
}

type Verdict<T = ()> = Result<T, String>;

/// Within so many pieces of upkeep an index is made anew, whatever is merged before.
const GAP_STEPS: usize = 64;

/// Errors that say that a call failed, rather than what is on the disk.
fn is_trouble(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Disk(DiskError::Io { .. } | DiskError::Full { .. }) | StoreError::Poisoned
    )
}

impl<'a> Life<'a> {
    fn new(machine: &'a Machine, events: &[Event]) -> Self {
        let mut names = BTreeSet::new();
        for event in events {
            if let Event::Commit { changes, .. } = event {
                names.extend(changes.iter().filter_map(name_of).cloned());
            }
        }
        Self {
            machine,
            names,
            model: MemoryStore::new(0),
            model_lease: None,
            unsure: None,
            store: None,
            last_fence: 0,
            poisoned: false,
            upkeep_failed: false,
            was_limited: false,
            struck_before: 0,
            tally: Tally::default(),
        }
    }

    fn begin(&mut self) -> Verdict {
        let lease = self.model.acquire(Shard::ONLY).map_err(text)?.lease;
        self.model_lease = Some(lease);
        Ok(())
    }

    fn happen(&mut self, event: &Event) -> Verdict {
        let disk = &self.machine.disk;
        match event {
            Event::Fault(fault) => disk.fail(*fault),
            Event::Heal => self.heal(),
            Event::Room(room) => {
                disk.set_capacity(Some(disk.used() + room));
                self.was_limited = true;
            }
            Event::Restart | Event::Evict | Event::Cut(_) => self.crash(event),
            Event::Commit { changes, hinted } => {
                self.open()?;
                self.commit(changes, *hinted)?;
            }
            Event::Upkeep(which) => {
                self.open()?;
                if let Some((store, _)) = &self.store
                    && let Err(error) = store.upkeep(*which)
                {
                    self.trouble("upkeep", &error)?;
                    self.tally.upkeep_failed += 1;
                    self.upkeep_failed = true;
                }
            }
            Event::Acquire => {
                self.open()?;
                self.acquire()?;
            }
            Event::Ask => {
                self.open()?;
                self.ask()?;
            }
        }
        Ok(())
    }

    /// Everything works, and everything must be there, once more and after a cut.
    fn end(&mut self) -> Verdict {
        self.ask()?;
        for event in [Event::Restart, Event::Cut(7)] {
            self.heal();
            self.crash(&event);
            self.open()?;
        }
        let known = self.model.acquire(Shard::ONLY).map_err(text)?;
        self.model_lease = Some(known.lease);
        self.commit(&[Change::Given(Revision(known.last_revision.0 + 1))], false)?;
        if self.poisoned || self.unsure.is_some() {
            return Err("a healthy store refuses a commit".to_owned());
        }
        self.crash(&Event::Cut(8));
        self.open()
    }

    fn heal(&self) {
        self.machine.disk.heal();
        self.machine.disk.set_capacity(None);
    }

    fn crash(&mut self, how: &Event) {
        let disk = &self.machine.disk;
        match how {
            Event::Cut(seed) => {
                disk.cut(*seed);
                self.tally.cuts += 1;
            }
            Event::Evict => {
                disk.restart();
                disk.evict();
            }
            _ => disk.restart(),
        }
        self.store = None;
        (self.poisoned, self.upkeep_failed) = (false, false);
        self.was_limited = disk.is_limited();
    }

    /// An error has to have a cause.
    fn trouble(&self, what: &str, error: &StoreError) -> Verdict {
        let disk = &self.machine.disk;
        let is_trouble = is_trouble(error) || Answers::are_short(error);
        if is_trouble && (disk.struck() > self.struck_before || self.was_limited) {
            return Ok(());
        }
        Err(format!("{what} failed without a cause: {error}"))
    }

    /// Opens the store if it is not, as often as it takes: an opening may fail while there are
    /// faults, and not without them.
    fn open(&mut self) -> Verdict {
        if self.store.is_some() {
            return Ok(());
        }
        for attempt in 0..4 {
            if attempt == 3 {
                self.heal();
                self.machine.disk.restart();
            }
            self.struck_before = self.machine.disk.struck();
            let opened = self.machine.open().and_then(|store| {
                let ownership = store.acquire(Shard::ONLY)?;
                let struck = || self.machine.disk.struck();
                let answers = Answers::undisturbed(store.as_store(), &self.names, struck)?;
                Ok((store, ownership, answers))
            });
            match opened {
                Ok((store, ownership, answers)) => {
                    self.store = Some((store, ownership));
                    return self.audit(ownership, &answers);
                }
                Err(error) if attempt < 3 => {
                    self.trouble("an opening", &error)?;
                    self.tally.failed_openings += 1;
                    match attempt {
                        0 => {} // the program is simply started again
                        1 => self.crash(&Event::Restart),
                        _ => self.crash(&Event::Cut(self.tally.calls)),
                    }
                }
                Err(error) => return Err(format!("the store does not open: {error}")),
            }
        }
        Ok(())
    }

    /// What is there is what was acknowledged, with all or nothing of the last commit that was
    /// not.
    fn audit(&mut self, ownership: Ownership, found: &Answers) -> Verdict {
        self.tally.audits += 1;
        found.check()?;
        let known = self.model.acquire(Shard::ONLY).map_err(text)?;
        self.model_lease = Some(known.lease);
        if ownership.last_revision < known.last_revision {
            return Err(format!(
                "revision {} is known, {} was given",
                ownership.last_revision, known.last_revision
            ));
        }
        let fence = ownership.lease.fence.0;
        if fence <= self.last_fence {
            return Err(format!("fence {fence} after {}", self.last_fence));
        }
        self.last_fence = fence;
        let unsure = self.unsure.take();
        let same_clock = ownership.clock == known.clock;
        if *found == self.expected()? && same_clock {
            return Ok(());
        }
        let before = if same_clock {
            self.difference(found)?
        } else {
            format!("the clocks: {:?}, not {:?}", ownership.clock, known.clock)
        };
        let Some(changes) = unsure else {
            return Err(before);
        };
        self.model.commit(known.lease, &changes).map_err(text)?;
        let known = self.model.acquire(Shard::ONLY).map_err(text)?;
        self.model_lease = Some(known.lease);
        if *found == self.expected()? && ownership.clock == known.clock {
            self.tally.survived += 1;
            return Ok(());
        }
        let after = self.difference(found)?;
        Err(format!("{before}; with the last commit: {after}"))
    }

    fn expected(&self) -> Verdict<Answers> {
        Answers::of(&self.model, &self.names).map_err(text)
    }

    fn difference(&self, found: &Answers) -> Verdict<String> {
        let expected = self.expected()?;
        let short = |record: &Option<countwheel_durable::Record>| {
            record
                .as_ref()
                .map(|record| (record.revision, record.state.kind(), record.payload.len()))
        };
        for ((name, found), expected) in
            self.names.iter().zip(&found.records).zip(&expected.records)
        {
            if found != expected {
                let (found, expected) = (short(found), short(expected));
                return Ok(format!("{name}: {found:?}, acknowledged {expected:?}"));
            }
        }
        if found.settings != expected.settings {
            return Ok(format!(
                "{:?}, expected {:?}",
                found.settings, expected.settings
            ));
        }
        if found.counts != expected.counts {
            return Ok(format!(
                "{:?}, expected {:?}",
                found.counts, expected.counts
            ));
        }
        Ok("a scan differs".to_owned())
    }

    /// The answers of a running store are those of what was acknowledged, or there are none.
    fn ask(&mut self) -> Verdict {
        let Some((store, _)) = &self.store else {
            return Ok(());
        };
        let struck = || self.machine.disk.struck();
        let mut answers = Answers::undisturbed(store.as_store(), &self.names, struck);
        if let Err(error) = &answers
            && Answers::are_short(error)
        {
            // A read failed before: the index is made anew.
            for _ in 0..GAP_STEPS {
                store.upkeep(4).unwrap_or_default();
            }
            answers = Answers::undisturbed(store.as_store(), &self.names, struck);
        }
        match answers {
            Ok(found) => {
                found.check()?;
                if found != self.expected()? {
                    let what = self.difference(&found)?;
                    return Err(format!("while it runs: {what}"));
                }
                Ok(())
            }
            Err(error) => self.trouble("a question", &error),
        }
    }

    fn acquire(&mut self) -> Verdict {
        let Some((store, ownership)) = &mut self.store else {
            return Ok(());
        };
        match store.acquire(Shard::ONLY) {
            Ok(next) => {
                let (old, fence) = (ownership.lease, next.lease.fence.0);
                *ownership = next;
                if fence <= self.last_fence {
                    return Err(format!("fence {fence} after {}", self.last_fence));
                }
                self.last_fence = fence;
                // The owner before changes nothing from now on.
                match store.commit(old, &[Change::Given(Revision(1))]) {
                    Err(StoreError::Fenced { .. } | StoreError::Poisoned) => Ok(()),
                    Err(error) => self.trouble("a check of the fence", &error),
                    Ok(()) => Err("an owner that was replaced commits".to_owned()),
                }
            }
            Err(error) => {
                // Whether the fence has moved on is not known.
                self.trouble("taking the shard", &error)?;
                self.crash(&Event::Restart);
                Ok(())
            }
        }
    }

    fn commit(&mut self, changes: &[Change], hinted: bool) -> Verdict {
        let changes = if hinted {
            self.hinted(changes)?
        } else {
            changes.to_vec()
        };
        let (Some((store, ownership)), Some(lease)) = (&self.store, self.model_lease) else {
            return Ok(());
        };
        match store.commit(ownership.lease, &changes) {
            Ok(()) if self.poisoned => Err("a commit succeeds after one failed".to_owned()),
            Ok(()) => {
                self.tally.commits += 1;
                self.model.commit(lease, &changes).map_err(text)
            }
            Err(error) if error.is_full() => {
                self.trouble("a commit", &error)?;
                self.tally.refused += 1;
                self.ask() // nothing was changed
            }
            Err(StoreError::Poisoned) if self.poisoned || self.upkeep_failed => Ok(()),
            Err(error) => {
                self.trouble("a commit", &error)?;
                if !self.poisoned {
                    self.tally.unknown += 1;
                    self.unsure = Some(changes);
                }
                self.poisoned = true;
                Ok(())
            }
        }
    }

    /// The same changes, each with what it replaces.
    fn hinted(&self, changes: &[Change]) -> Verdict<Vec<Change>> {
        let mut known = BTreeMap::<TimerName, Before>::new();
        let mut hinted = Vec::with_capacity(changes.len());
        for change in changes {
            let mut change = change.clone();
            let (name, after) = match &change {
                Change::Put { record, .. } => {
                    (record.name.clone(), Before::Present(record.state.kind()))
                }
                Change::Remove { name, .. } => (name.clone(), Before::Absent),
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => {
                    hinted.push(change);
                    continue;
                }
            };
            let old = match known.get(&name) {
                Some(before) => *before,
                None => Before::of(self.model.get(Shard::ONLY, &name).map_err(text)?.as_ref()),
            };
            if let Change::Put { before, .. } | Change::Remove { before, .. } = &mut change {
                *before = old;
            }
            known.insert(name, after);
            hinted.push(change);
        }
        Ok(hinted)
    }
}

/// The name that a change is about.
fn name_of(change: &Change) -> Option<&TimerName> {
    match change {
        Change::Put { record, .. } => Some(&record.name),
        Change::Remove { name, .. } => Some(name),
        Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err has it")]
fn text(error: StoreError) -> String {
    error.to_string()
}

/// The faults that a single call is tried with.
pub const FAILURES: [Failure; 5] = [
    Failure::Io,
    Failure::NoSpace,
    Failure::NoSpaceShort,
    Failure::Short,
    Failure::Torn,
];

/// For who prints the end of a long list.
#[must_use]
pub fn tail<T: fmt::Display>(lines: &[T], keep: usize) -> VecDeque<String> {
    let from = lines.len().saturating_sub(keep);
    lines[from..].iter().map(ToString::to_string).collect()
}
