//! The number of overdue timers, kept as a count without a search of the store.
//!
//! The **backlog** is the set of pending timers whose time has come. For each clock the count
//! covers everything up to a position in the order of wakes, and each commit corrects the count by
//! its changes there. When no due timer is left, the position goes to now by itself. Where due
//! timers are left, the scheduler reads the timers that came due since the last look once a second.
//! So it reads only timers that stay overdue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clocks::Now;
use crate::planted::planted;
use crate::store::{DueScan, Shard, Store, StoreError};
use crate::window::LOOK_MIN;
use crate::{DueClock, OverdueCount, QueueName, Record, State, StateKind, TimerName, Wake};

/// How long between two looks at what came due and stays.
const EVERY: Duration = Duration::from_secs(1);
/// So many entries are read at once.
const PAGE: usize = 1_024;
/// A record that has to be read counts as so many entries that were looked at.
const RECORD_COST: usize = 16;
/// So many of the earliest are known by name, for each clock.
const FIRST: usize = 1_024;

/// Where a timer pends: by which clock, and when it wakes.
pub(crate) type Pends = Option<(DueClock, Wake)>;

/// Where a record pends; `None` if it does not.
pub(crate) fn pends(record: &Record) -> Pends {
    let wake = record.wake().filter(|_| record.state == State::Pending)?;
    Some((record.wake_clock(), wake))
}

/// What a commit changes of where a timer pends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Correction {
    pub(crate) queue: QueueName,
    pub(crate) was: Pends,
    pub(crate) is: Pends,
}

/// How much is overdue, by queue. Others may look while the scheduler goes on.
#[derive(Debug, Default)]
pub(crate) struct ByQueue {
    counts: HashMap<QueueName, u64>,
    /// The same, the most first.
    ranked: BTreeSet<(Reverse<u64>, QueueName)>,
}

impl ByQueue {
    fn change(&mut self, queue: &QueueName, by: i64) {
        let before = self.counts.get(queue).copied().unwrap_or(0);
        let after = before.saturating_add_signed(by);
        if before == after {
            return;
        }
        if before > 0 {
            self.ranked.remove(&(Reverse(before), queue.clone()));
        }
        if after > 0 {
            self.ranked.insert((Reverse(after), queue.clone()));
            self.counts.insert(queue.clone(), after);
        } else {
            self.counts.remove(queue);
        }
    }

    /// How much of this queue is overdue.
    pub(crate) fn of(&self, queue: &QueueName) -> u64 {
        self.counts.get(queue).copied().unwrap_or(0)
    }

    /// The queues of which most is overdue.
    pub(crate) fn most(&self) -> impl Iterator<Item = &QueueName> {
        self.ranked.iter().map(|(_, queue)| queue)
    }
}

/// What is overdue.
#[derive(Debug)]
pub(crate) struct Backlog {
    sides: [Side; 2],
    by_queue: Arc<Mutex<ByQueue>>,
    /// When it was last asked what came due, by the boot clock; and by the wall clock.
    asked: Option<Now>,
    /// How many entries were looked at.
    pub(crate) scanned: u64,
    /// A part of the order of wakes cannot be read.
    has_gap: bool,
}

/// What is overdue by one clock.
#[derive(Debug)]
struct Side {
    clock: DueClock,
    /// Everything up to here is counted, and nothing beyond.
    reached: Wake,
    /// Up to where it is to be counted.
    target: Wake,
    count: u64,
    /// The earliest: everything up to `first_to` that is counted.
    first: BTreeMap<Wake, QueueName>,
    first_to: Wake,
}

impl Side {
    fn new(clock: DueClock) -> Self {
        Self {
            clock,
            reached: Wake::default(),
            target: Wake::default(),
            count: 0,
            first: BTreeMap::new(),
            first_to: Wake::MAX,
        }
    }

    fn add(&mut self, wake: Wake, queue: &QueueName) {
        self.count += 1;
        self.note(wake, queue);
    }

    /// Notes one that is counted, if it is among the earliest.
    fn note(&mut self, wake: Wake, queue: &QueueName) {
        if wake > self.first_to {
            return;
        }
        self.first.insert(wake, queue.clone());
        if self.first.len() > FIRST {
            self.first.pop_last();
            self.first_to = self.first.last_key_value().map_or(wake, |(last, _)| *last);
        }
    }

    fn remove(&mut self, wake: Wake) {
        self.count = self.count.saturating_sub(1);
        self.first.remove(&wake);
    }

    /// Whether something is counted of which none is known by name.
    fn has_lost_first(&self) -> bool {
        self.first.is_empty() && self.count > 0 && self.first_to < self.reached
    }

    fn is_behind(&self) -> bool {
        self.reached < self.target || self.has_lost_first()
    }
}

impl Backlog {
    pub(crate) fn new() -> Self {
        Self {
            sides: DueClock::ALL.map(Side::new),
            by_queue: Arc::default(),
            asked: None,
            scanned: 0,
            has_gap: false,
        }
    }

    pub(crate) fn by_queue(&self) -> &Arc<Mutex<ByQueue>> {
        &self.by_queue
    }

    /// Counts anew, from the beginning.
    pub(crate) fn restart(&mut self) {
        self.sides = DueClock::ALL.map(Side::new);
        *self.by_queue.lock() = ByQueue::default();
        self.asked = None;
    }

    /// Whether what wakes then is counted.
    fn counts(&self, pends: Pends) -> bool {
        pends.is_some_and(|(clock, wake)| wake <= self.sides[clock as usize].reached)
    }

    /// Whether this changes the count.
    pub(crate) fn is_corrected(&self, was: Pends, is: Pends) -> bool {
        was != is && (self.counts(was) || self.counts(is))
    }

    /// Takes in what was committed.
    pub(crate) fn correct(&mut self, corrections: &[Correction]) {
        if corrections.is_empty() {
            return;
        }
        let mut by_queue = self.by_queue.lock();
        for Correction { queue, was, is } in corrections {
            let counted = was.filter(|_| self.counts(*was) && !planted!(BacklogMissesRemovals));
            if let Some((clock, wake)) = counted {
                self.sides[clock as usize].remove(wake);
                by_queue.change(queue, -1);
            }
            if let Some((clock, wake)) = is.filter(|_| self.counts(*is)) {
                self.sides[clock as usize].add(wake, queue);
                by_queue.change(queue, 1);
            }
        }
    }

    /// Nothing is left that was due at `now`.
    pub(crate) fn is_worked_off(&mut self, now: Now) {
        if self.sides.iter().any(|side| side.count > 0) {
            // What could not be read is not counted as it comes and goes.
            self.restart();
        }
        for side in &mut self.sides {
            let end = Wake::end_of(now.by(side.clock));
            (side.reached, side.target) = (end, end);
        }
        self.asked = Some(now);
    }

    /// Whether there is more to read of what came due.
    pub(crate) fn is_behind(&self) -> bool {
        self.sides.iter().any(Side::is_behind)
    }

    /// Whether a look is due.
    pub(crate) fn is_asked(&self, now: Now) -> bool {
        self.wait(now).is_zero()
    }

    /// How long until the next look at what came due.
    pub(crate) fn wait(&self, now: Now) -> Duration {
        if self.is_behind() {
            return Duration::ZERO;
        }
        let next = self.asked.map_or(now.boot, |asked| asked.boot + EVERY);
        next.saturating_since(now.boot)
    }

    /// Reads what came due and pends, of `left` entries at most. The store has to hold everything
    /// that was committed so far.
    pub(crate) fn look(
        &mut self,
        now: Now,
        store: &dyn Store,
        shard: Shard,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        let has_gap = store.gaps().dues;
        if self.has_gap && !has_gap {
            self.restart();
        }
        self.has_gap = has_gap;
        if self.is_asked(now) && !self.is_behind() {
            for side in &mut self.sides {
                side.target = side.target.max(Wake::end_of(now.by(side.clock)));
            }
            self.asked = Some(now);
        }
        let before = *left;
        let mut look = Look::new(store, shard, left);
        for side in &mut self.sides {
            while side.reached < side.target && look.may_go_on() {
                let mut found = Vec::new();
                side.reached = look.read(side.clock, side.reached, side.target, &mut found)?;
                let mut by_queue = self.by_queue.lock();
                for (wake, queue) in found {
                    side.add(wake, &queue);
                    by_queue.change(&queue, 1);
                }
            }
            while side.has_lost_first() && look.may_go_on() {
                let mut found = Vec::new();
                let to = look.read(side.clock, side.first_to, side.reached, &mut found)?;
                side.first_to = if to < side.reached { to } else { Wake::MAX };
                for (wake, queue) in found {
                    side.note(wake, &queue);
                }
            }
        }
        self.scanned += (before - *look.left) as u64;
        Ok(())
    }

    /// How much is overdue, as it is known at `now`.
    pub(crate) fn overdue(&self, now: Now) -> OverdueCount {
        let oldest = |side: &Side| {
            let (first, _) = side.first.first_key_value()?;
            Some(now.convert(first.at, side.clock, DueClock::Wall))
        };
        OverdueCount {
            count: self.sides.iter().map(|side| side.count).sum(),
            as_of: self.asked.unwrap_or(now).wall,
            is_exact: self.asked.is_some() && !self.is_behind() && !self.has_gap,
            oldest: self.sides.iter().filter_map(oldest).min(),
        }
    }
}

/// A bounded look into the order of wakes.
pub(crate) struct Look<'a> {
    store: &'a dyn Store,
    shard: Shard,
    /// So many entries may be looked at.
    left: &'a mut usize,
}

impl<'a> Look<'a> {
    pub(crate) fn new(store: &'a dyn Store, shard: Shard, left: &'a mut usize) -> Self {
        Self { store, shard, left }
    }

    pub(crate) fn may_go_on(&self) -> bool {
        *self.left >= LOOK_MIN
    }

    /// Finds what pends behind `after` and up to `to`, a page of it, and says how far it came.
    pub(crate) fn read(
        &mut self,
        clock: DueClock,
        after: Wake,
        to: Wake,
        found: &mut Vec<(Wake, QueueName)>,
    ) -> Result<Wake, StoreError> {
        let scan = DueScan {
            after: Some(after),
            until: to.at,
            limit: PAGE,
            scan_limit: *self.left,
            ..DueScan::all(clock)
        };
        let page = self.store.due(self.shard, &scan)?;
        self.costs(page.scanned.max(1));
        // The page is paid for: only a record that has to be read as well may be too much.
        let mut come = None;
        for entry in page.entries {
            if entry.wake > to {
                return Ok(to);
            }
            let kind = match (entry.kind, come) {
                (Some(kind), _) => Some(kind),
                (None, Some(come)) if !self.may_go_on() => return Ok(come),
                (None, _) => self.kind(&entry.name)?,
            };
            come = Some(entry.wake);
            if kind == Some(StateKind::Pending) || planted!(BacklogCountsAll) {
                found.push((entry.wake, entry.name.queue));
            }
        }
        Ok(page.next.map_or(to, |next| next.min(to)))
    }

    /// The state of a record that has to be read for it; `None` if that cannot be read.
    fn kind(&mut self, name: &TimerName) -> Result<Option<StateKind>, StoreError> {
        self.costs(RECORD_COST);
        match self.store.get(self.shard, name) {
            Err(error) if error.is_unreadable() => Ok(None),
            found => Ok(found?.map(|record| record.state.kind())),
        }
    }

    fn costs(&mut self, entries: usize) {
        *self.left = self.left.saturating_sub(entries);
    }
}
