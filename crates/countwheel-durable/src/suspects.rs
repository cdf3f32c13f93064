//! Timers that may be why the process ends: which of them may start, and those that wait for it.
//!
//! A timer is a suspect while the process has ended several times in a row during attempts of
//! it. A suspect starts only after the process has lived for a while, so that an end before that
//! is no evidence against it, and fewer of them run together the more ends there were: the last
//! end before a timer is given up came while it was the only suspect that ran.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::planted::planted;
use crate::store::DueEntry;
use crate::{Config, DueClock, QueueName, Revision, TimerName, Wake};

/// What suspects run and wait.
#[derive(Debug)]
pub(crate) struct Suspects {
    rule: SuspectRule,
    /// When the process began, by the boot clock.
    opened: Timestamp,
    waiting: BTreeMap<Revision, Waiting>,
    /// The same by interruptions and queue, in each in order of deadline.
    ranks: BTreeMap<u32, Lanes>,
    /// The queue of which one was taken last.
    served: Option<QueueName>,
    bytes: usize,
    most_bytes: usize,
    /// Those that run, with their interruptions.
    running: BTreeMap<Revision, u32>,
    /// Those that ended in this step, until it is certain.
    ended: Vec<(Revision, u32)>,
}

type Lanes = BTreeMap<QueueName, BTreeSet<Wake>>;

#[derive(Debug)]
struct Waiting {
    clock: DueClock,
    at: Timestamp,
    interruptions: u32,
    name: TimerName,
}

/// Who is a suspect, how long each waits, and how many run together.
#[derive(Clone, Copy, Debug)]
struct SuspectRule {
    /// From so many interruptions on.
    first: u32,
    /// With so many, a timer is given up.
    most: u32,
    /// How long the process has to live before those of the first rank start.
    hold: Duration,
}

impl SuspectRule {
    /// An end or two in a row befall many at a time that have nothing to do with it.
    const FIRST: u32 = 2;
    /// The longest hold, in shortest ones: with ten interruptions allowed, that of the last attempt.
    const HOLD_MAX: u32 = 128;
    /// How many suspects run together at the most.
    const TOGETHER_MAX: usize = 128;

    fn new(config: &Config) -> Self {
        let most = config.max_interruptions;
        Self {
            first: Self::FIRST.min(most.saturating_sub(1)).max(1),
            most,
            hold: config.suspect_hold,
        }
    }

    fn hold(&self, interruptions: u32) -> Duration {
        if planted!(SuspectsUnheld) {
            return Duration::ZERO;
        }
        let doublings = interruptions.saturating_sub(self.first);
        let times = 1_u32.checked_shl(doublings).unwrap_or(Self::HOLD_MAX);
        self.hold.saturating_mul(times.min(Self::HOLD_MAX))
    }

    /// How many run together if the one with most interruptions has so many: one if the next end
    /// is its last, twice as many for each before.
    fn together(&self, interruptions: u32) -> usize {
        if planted!(SuspectsTogether) {
            return usize::MAX;
        }
        let left = self.most.saturating_sub(1).saturating_sub(interruptions);
        let together = 1_usize.checked_shl(left).unwrap_or(Self::TOGETHER_MAX);
        together.min(Self::TOGETHER_MAX)
    }
}

impl Suspects {
    pub(crate) fn new(config: &Config, opened: Timestamp, most_bytes: usize) -> Self {
        Self {
            rule: SuspectRule::new(config),
            opened,
            waiting: BTreeMap::new(),
            ranks: BTreeMap::new(),
            served: None,
            bytes: 0,
            most_bytes,
            running: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// From now on those that wait may take so many bytes.
    pub(crate) fn resize(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
    }

    /// How many wait or run.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_suspect(&self, interruptions: u32) -> bool {
        interruptions >= self.rule.first
    }

    /// Whether one with so many interruptions may start now.
    pub(crate) fn may_start(&self, interruptions: u32, now: Timestamp) -> bool {
        now >= self.opened + self.rule.hold(interruptions) && self.has_place(interruptions)
    }

    fn has_place(&self, interruptions: u32) -> bool {
        let most = self.running.values().copied().max().unwrap_or(0);
        self.running.len() < self.rule.together(interruptions.max(most))
    }

    /// Whether a timer of this revision waits here.
    pub(crate) fn contains(&self, revision: Revision) -> bool {
        self.waiting.contains_key(&revision)
    }

    /// Takes in one that has to wait, unless there is no room. Says whether it is here.
    pub(crate) fn wait(&mut self, clock: DueClock, entry: DueEntry, interruptions: u32) -> bool {
        let DueEntry { wake, name, .. } = entry;
        self.forget(wake.revision);
        let bytes = Self::entry_bytes(&name);
        if self.bytes + bytes > self.most_bytes {
            return false;
        }
        self.bytes += bytes;
        let rank = self.ranks.entry(interruptions).or_default();
        rank.entry(name.queue.clone()).or_default().insert(wake);
        let waiting = Waiting {
            clock,
            at: wake.at,
            interruptions,
            name,
        };
        self.waiting.insert(wake.revision, waiting);
        true
    }

    /// Drops one whose record has changed or will.
    pub(crate) fn forget(&mut self, revision: Revision) {
        let _gone = self.remove(revision);
    }

    /// One that may start now, of those with the fewest interruptions, in turns by queue among
    /// those that `may`. By which clock it is due, and its entry.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        may: impl Fn(&QueueName) -> bool,
    ) -> Option<(DueClock, DueEntry)> {
        let (interruptions, queue, wake) = self.next(may)?;
        if !self.may_start(interruptions, now) {
            return None;
        }
        self.served = Some(queue.clone());
        let waiting = self.remove(wake.revision)?;
        let name = waiting.name;
        let entry = DueEntry {
            wake,
            name,
            kind: None,
        };
        Some((waiting.clock, entry))
    }

    /// How long until one may start, if no other event comes before; `None` if only an outcome
    /// can bring that about, or none waits.
    pub(crate) fn next_start(
        &self,
        now: Timestamp,
        may: impl Fn(&QueueName) -> bool,
    ) -> Option<Duration> {
        let (interruptions, ..) = self.next(may)?;
        let from = self.opened + self.rule.hold(interruptions);
        Some(from.saturating_since(now))
    }

    /// The one that starts next. Fewer interruptions mean a shorter hold, and more that may run
    /// together.
    fn next(&self, may: impl Fn(&QueueName) -> bool) -> Option<(u32, &QueueName, Wake)> {
        for (&interruptions, lanes) in &self.ranks {
            if !self.has_place(interruptions) {
                return None;
            }
            let later = self.served.as_ref().map(|served| {
                let later = (Bound::Excluded(served), Bound::Unbounded);
                lanes.range::<QueueName, _>(later)
            });
            let mut in_turns = later.into_iter().flatten().chain(lanes);
            if let Some((queue, wakes)) = in_turns.find(|(queue, _)| may(queue)) {
                return Some((interruptions, queue, *wakes.first()?));
            }
        }
        None
    }

    fn remove(&mut self, revision: Revision) -> Option<Waiting> {
        let waiting = self.waiting.remove(&revision)?;
        self.bytes -= Self::entry_bytes(&waiting.name);
        let (queue, at) = (&waiting.name.queue, waiting.at);
        if let Some(lanes) = self.ranks.get_mut(&waiting.interruptions)
            && let Some(wakes) = lanes.get_mut(queue)
        {
            wakes.remove(&Wake { at, revision });
            if wakes.is_empty() {
                lanes.remove(queue);
            }
            if lanes.is_empty() {
                self.ranks.remove(&waiting.interruptions);
            }
        }
        Some(waiting)
    }

    /// A step begins: what ended in the one before is certain.
    pub(crate) fn begin(&mut self) {
        self.ended.clear();
    }

    /// An attempt of one has started.
    pub(crate) fn started(&mut self, revision: Revision, interruptions: u32) {
        if self.is_suspect(interruptions) {
            self.running.insert(revision, interruptions);
        }
    }

    /// An attempt has ended, of a suspect or not.
    pub(crate) fn ended(&mut self, revision: Revision) {
        if let Some(interruptions) = self.running.remove(&revision) {
            self.ended.push((revision, interruptions));
        }
    }

    /// The step is void that started these.
    pub(crate) fn undo(&mut self, started: impl Iterator<Item = Revision>) {
        for revision in started {
            self.running.remove(&revision);
        }
        self.running.extend(self.ended.drain(..));
    }

    /// What one takes that waits: its places in three sorted maps that may be half empty, and its
    /// name.
    fn entry_bytes(name: &TimerName) -> usize {
        2 * (size_of::<Revision>() + size_of::<Waiting>() + size_of::<Wake>())
            + 2 * (size_of::<QueueName>() + size_of::<BTreeSet<Wake>>())
            + 128
            + name.queue.as_str().len()
            + name.key.as_str().len()
    }
}
