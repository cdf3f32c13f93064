//! The promise of a timer, as plainly as possible: a sorted map.
//!
//! The map does its own rounding, keeps its own books, and knows nothing of wheels. Its rules are
//! exact, but where the promise leaves something open. Tasks of one tick that different threads
//! scheduled start in any order. A task that was overdue already when it was scheduled starts at
//! once, anywhere among the tasks that were overdue then.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel::{Histogram, Stop};

use super::plan::Kind;

/// Names a task within the life of one timer: they are numbered as they are offered.
pub(super) type Id = usize;

type Verdict = Result<(), String>;

/// Before all that wait: what is short, and is done by the stop itself.
const SHORT_FIRST: u64 = 0;

/// What has become of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// The timer has not said yet whether it takes it.
    Offered,
    Refused,
    Pending,
    /// Its deadline has come, and it waits for an executor.
    Waiting,
    Ran,
    Cancelled,
    /// Given back, or dropped by a stop. Whether its deadline had come, if that is known.
    Returned(Option<bool>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) fate: Fate,
    pub(super) shard: usize,
    /// What was asked for, in nanoseconds.
    pub(super) deadline: u64,
    /// The tick at which it is due, at the earliest.
    due: u64,
    /// The tick at which it is due, at the latest: another one only if it was overdue.
    due_by: u64,
    order: u64,
    filed_at: u64,
    /// Where it is in the map of those that wait.
    place: (u64, u64, u64),
    /// Whether what the timer held of it has run or has been dropped.
    pub(super) gone: bool,
}

/// The counters, as [`countwheel::Stats`] has them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) added: u64,
    pub(super) ran: u64,
    pub(super) cancelled: u64,
    pub(super) returned: u64,
    pub(super) refused: u64,
    pub(super) moved: u64,
    pub(super) panicked: u64,
    pub(super) slow: u64,
    pub(super) overloaded: u64,
    pub(super) lateness: Histogram,
    pub(super) lateness_max: Duration,
    pub(super) slowest: Option<Duration>,
}

/// The plainest timer there is.
pub(super) struct Reference {
    tick: u64,
    /// Whether the host runs tasks itself.
    inline: bool,
    max_pending: Option<u64>,
    pub(super) entries: Vec<Entry>,
    /// By the tick they are due at, then by the order of scheduling.
    pending: BTreeMap<(u64, u64), Id>,
    /// By the time they expired at, then as those that are pending.
    waiting: BTreeMap<(u64, u64, u64), Id>,
    shards: Vec<u64>,
    /// Whether anything was ever filed there.
    used: Vec<bool>,
    /// How far the hand of each shard's wheel may have gone, in ticks.
    hands: Vec<u64>,
    order: u64,
    group: u64,
    /// Those that a stop made ready.
    drained: Option<u64>,
    /// Whether the host is at work, and since when it knows the time it does.
    hosting: bool,
    base: u64,
    pub(super) fired_by_host: usize,
    pub(super) closed: bool,
    pub(super) give_up: Option<u64>,
    pub(super) retry: Option<u64>,
    pub(super) counts: Counts,
    /// Whether the moment is known at which everything ran.
    pub(super) lateness_is_known: bool,
    /// How many were given back by a stop and not seen since.
    pub(super) out: u64,
    /// The last one that a stop gave back.
    last_unfired: Option<(u8, Id)>,
    pub(super) sabotage: Option<super::Sabotage>,
}

impl Reference {
    pub(super) fn new(tick: u64, inline: bool, max_pending: Option<u64>, shards: usize) -> Self {
        Self {
            tick,
            inline,
            max_pending,
            entries: Vec::new(),
            pending: BTreeMap::new(),
            waiting: BTreeMap::new(),
            shards: vec![0; shards],
            used: vec![false; shards],
            hands: vec![0; shards],
            order: 0,
            group: SHORT_FIRST + 1,
            drained: None,
            hosting: false,
            base: 0,
            fired_by_host: 0,
            closed: false,
            give_up: None,
            retry: None,
            counts: Counts::default(),
            lateness_is_known: true,
            out: 0,
            last_unfired: None,
            sabotage: None,
        }
    }

    // -- Time ------------------------------------------------------------------------------

    /// The tick that has begun at `now`; at the end of time the last there is.
    fn begun(&self, now: u64) -> u64 {
        if now == u64::MAX {
            self.up(now)
        } else {
            now / self.tick
        }
    }

    /// The first tick that does not begin before `deadline`.
    fn up(&self, deadline: u64) -> u64 {
        if self.sabotage == Some(super::Sabotage::RoundsDown) {
            return deadline / self.tick;
        }
        deadline.div_ceil(self.tick)
    }

    /// The last tick whose tasks fire at `now`: a closing timer does not fire what is due
    /// later than it waits, however late it is.
    fn last_tick(&self, now: u64) -> u64 {
        self.begun(self.give_up.map_or(now, |at| at.min(now)))
    }

    fn due(&self, now: u64, deadline: u64) -> u64 {
        let tick = self.up(deadline);
        if deadline <= now {
            tick.min(self.begun(now))
        } else {
            tick
        }
    }

    fn instant(&self, tick: u64) -> u64 {
        tick.saturating_mul(self.tick)
    }

    /// When what is due by `now` is due at the latest.
    pub(super) fn overdue_since(&self, now: u64) -> Option<u64> {
        let due = self.pending.range(..=(self.begun(now), u64::MAX));
        let by = due.map(|(_, &id)| self.entries[id].due_by).min()?;
        Some(self.instant(by))
    }

    /// When the earliest of those that are pending is due.
    pub(super) fn earliest(&self) -> Option<u64> {
        self.pending
            .first_key_value()
            .map(|((due, _), _)| self.instant(*due))
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether something is left that a stop should have done itself.
    pub(super) fn is_short_left(&self) -> bool {
        let first = self.waiting.first_key_value();
        first.is_some_and(|(place, _)| place.0 == SHORT_FIRST)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// One of those that are pending, for instance the first of `ahead` ticks after `now`.
    pub(super) fn some_deadline(&self, now: u64, ahead: u64) -> Option<u64> {
        let from = (self.begun(now).saturating_add(ahead), 0);
        let (_, &id) = self
            .pending
            .range(from..)
            .next()
            .or_else(|| self.pending.first_key_value())?;
        Some(self.entries[id].deadline)
    }

    // -- Scheduling ------------------------------------------------------------------------

    pub(super) fn offer(&mut self, kind: Kind, shard: usize, deadline: u64) -> Id {
        let id = self.entries.len();
        self.entries.push(Entry {
            kind,
            fate: Fate::Offered,
            shard,
            deadline,
            due: 0,
            due_by: 0,
            order: 0,
            filed_at: 0,
            place: (0, 0, 0),
            gone: false,
        });
        id
    }

    pub(super) fn accepted(&mut self, id: Id, now: u64) -> Verdict {
        if self.closed {
            return Err(format!("{id} was accepted by a closed timer"));
        }
        if self.is_full() {
            return Err(format!("{id} was accepted although there is no room"));
        }
        self.counts.added += 1;
        self.entries[id].fate = Fate::Pending;
        let deadline = self.entries[id].deadline;
        self.file(id, now, deadline);
        Ok(())
    }

    pub(super) fn refused(&mut self, id: Id, for_want_of_room: bool) -> Verdict {
        self.counts.refused += 1;
        self.entries[id].fate = Fate::Refused;
        let full = self.is_full();
        match (for_want_of_room, self.closed) {
            (true, true) => Err(format!("{id} was refused as if it could be tried again")),
            (true, false) if !full => Err(format!("{id} was refused although there is room")),
            (false, false) => Err(format!("{id} was refused by a timer that is open")),
            _ => Ok(()),
        }
    }

    /// Whether as many are pending or wait for an executor as may be.
    fn is_full(&self) -> bool {
        let held = (self.pending.len() + self.waiting.len()) as u64;
        self.max_pending.is_some_and(|max| held >= max)
    }

    fn file(&mut self, id: Id, now: u64, deadline: u64) {
        let begun = self.begun(now);
        let due = self.due(now, deadline);
        let shard = self.entries[id].shard;
        if self.shards[shard] == 0 {
            self.wind(shard, begun);
        }
        self.order += 1;
        let order = self.order;
        let hand = self.hands[shard];
        let entry = &mut self.entries[id];
        entry.deadline = deadline;
        entry.due = due;
        entry.due_by = due.max(hand);
        entry.order = order;
        entry.filed_at = now;
        self.pending.insert((due, order), id);
        self.shards[shard] += 1;
        self.used[shard] = true;
    }

    /// How many are pending on each shard that has been used.
    pub(super) fn shards_used(&self) -> Vec<u64> {
        let used = self
            .shards
            .iter()
            .zip(&self.used)
            .filter(|&(_, &used)| used);
        used.map(|(&pending, _)| pending).collect()
    }

    /// The wheel of an empty shard is wound to the time at which it is used next.
    fn wind(&mut self, shard: usize, begun: u64) {
        let hand = &mut self.hands[shard];
        *hand = (*hand).max(begun);
    }

    fn unfile(&mut self, id: Id) {
        let entry = &self.entries[id];
        self.pending.remove(&(entry.due, entry.order));
        self.shards[entry.shard] -= 1;
    }

    // -- Handles ---------------------------------------------------------------------------

    pub(super) fn cancelled(&mut self, id: Id, answer: bool, now: u64) -> Verdict {
        if !answer {
            return self.says_pending(id, false, now);
        }
        self.says_pending(id, true, now)?;
        self.unfile(id);
        self.counts.cancelled += 1;
        let entry = &mut self.entries[id];
        entry.fate = Fate::Cancelled;
        if !entry.gone {
            return Err(format!("{id} was cancelled and not dropped"));
        }
        Ok(())
    }

    pub(super) fn moved(&mut self, id: Id, answer: bool, deadline: u64, now: u64) -> Verdict {
        let shard = self.entries[id].shard;
        if self.shards[shard] == 0 {
            self.wind(shard, self.begun(now));
        }
        self.says_pending(id, answer, now)?;
        if answer {
            self.counts.moved += 1;
            let order = self.entries[id].order;
            self.unfile(id);
            self.file(id, now, deadline);
            if self.sabotage == Some(super::Sabotage::KeepsOrderAfterMove) {
                let entry = &mut self.entries[id];
                self.pending.remove(&(entry.due, entry.order));
                entry.order = order;
                self.pending.insert((entry.due, order), id);
            }
        }
        Ok(())
    }

    /// What the timer says of whether a task is pending. While the host hands tasks to an
    /// executor, those that are due may be out already: then the answer tells.
    pub(super) fn says_pending(&mut self, id: Id, answer: bool, now: u64) -> Verdict {
        let is_pending = self.entries[id].fate == Fate::Pending;
        if answer == is_pending {
            return Ok(());
        }
        if is_pending && self.may_have_expired(id, now) {
            self.put_up(id);
            return Ok(());
        }
        let fate = self.entries[id].fate;
        Err(format!("pending is {answer} of {id}, which is {fate:?}"))
    }

    pub(super) fn says_expired(&self, id: Id, answer: bool, now: u64) -> Verdict {
        let fate = self.entries[id].fate;
        let expected = match fate {
            Fate::Waiting | Fate::Ran => Some(true),
            Fate::Returned(expired) => expired,
            Fate::Pending if self.may_have_expired(id, now) => None,
            _ => Some(false),
        };
        if expected.is_some_and(|expected| expected != answer) {
            return Err(format!("expired is {answer} of {id}, which is {fate:?}"));
        }
        Ok(())
    }

    pub(super) fn says_cancelled(&self, id: Id, answer: bool) -> Verdict {
        let fate = self.entries[id].fate;
        if answer != (fate == Fate::Cancelled) {
            return Err(format!("cancelled is {answer} of {id}, which is {fate:?}"));
        }
        Ok(())
    }

    fn may_have_expired(&self, id: Id, now: u64) -> bool {
        let handed_out = !self.inline && !self.entries[id].kind.is_short();
        handed_out && self.hosting && self.is_due(id, now)
    }

    // -- The host --------------------------------------------------------------------------

    pub(super) fn host_begins(&mut self, now: u64) {
        self.hosting = true;
        self.fired_by_host = 0;
        self.time_passes(now);
    }

    /// The host sees that it is `now`, or a task has moved the clock under it.
    pub(super) fn time_passes(&mut self, now: u64) {
        self.base = self.base.max(now);
        let begun = self.begun(now);
        for hand in &mut self.hands {
            *hand = (*hand).max(begun);
        }
    }

    pub(super) fn host_ends(&mut self, now: u64) -> Verdict {
        self.hosting = false;
        let begun = self.begun(now);
        let last = self.last_tick(now);
        while let Some((&(due, _), &id)) = self.pending.first_key_value()
            && due <= last
        {
            if self.inline || self.entries[id].kind.is_short() {
                return Err(format!("{id} is due and has not fired: {}", self.show(id)));
            }
            self.put_up(id);
        }
        self.group += 1;
        self.hands.fill(begun);
        if self.give_up.is_some_and(|at| at <= now) {
            self.give_up = None;
            self.return_all(Some(false), true)?;
        }
        // At the end of time no later moment is left to ask the executor again.
        let over = |at| at <= now && (at < u64::MAX || self.waiting.is_empty());
        if self.retry.is_some_and(over) {
            self.retry = None;
        }
        Ok(())
    }

    /// A task has moved the clock.
    pub(super) fn is_slowed_down(&mut self, now: u64) {
        if self.hosting {
            self.time_passes(now);
        }
    }

    pub(super) fn is_hosting(&self) -> bool {
        self.hosting
    }

    pub(super) fn is_inline(&self) -> bool {
        self.inline
    }

    pub(super) fn is_due(&self, id: Id, now: u64) -> bool {
        self.entries[id].due <= self.last_tick(now)
    }

    /// When the host is to look next: exactly then, as long as not too many are pending.
    pub(super) fn says_wake(&self, wake: Option<u64>, now: u64) -> Verdict {
        if self.hosting && !self.inline {
            return Ok(());
        }
        let planned = self.retry.into_iter().chain(self.give_up);
        let next = planned.chain(self.earliest()).min();
        let right = match (next, wake) {
            (None, None) => true,
            (Some(next), Some(wake)) if next <= now => wake <= now,
            // A slow task on the host makes it ask the executor again somewhat sooner; and the
            // earliest of many is not searched for.
            (Some(next), Some(wake)) if self.retry.is_some() || self.pending.len() > 1_024 => {
                wake <= next
            }
            (next, wake) => next == wake,
        };
        if right {
            return Ok(());
        }
        Err(format!(
            "the host is told to wake at {wake:?}, not {next:?}; it is {now}"
        ))
    }

    /// It has expired, and waits for the executor.
    fn put_up(&mut self, id: Id) {
        self.unfile(id);
        let entry = &mut self.entries[id];
        entry.fate = Fate::Waiting;
        entry.place = (self.group, entry.due, entry.order);
        self.waiting.insert(entry.place, id);
    }

    /// A task starts, a waker is woken, or a value has arrived.
    pub(super) fn started(&mut self, id: Id, now: u64) -> Verdict {
        let mut at = now;
        match self.entries[id].fate {
            Fate::Pending => {
                if !self.hosting {
                    return Err(format!("{id} fires although nobody drives the timer"));
                }
                at = self.fires(id, now)?;
                self.unfile(id);
            }
            Fate::Waiting => {
                let group = self.entries[id].place.0;
                let before_its_time = group == SHORT_FIRST || Some(group) == self.drained;
                if !before_its_time && now < self.entries[id].deadline {
                    return Err(format!("{id} is early at {now}: {}", self.show(id)));
                }
                self.leaves_queue(id)?;
            }
            fate => return Err(format!("{id} runs, which is {fate:?}")),
        }
        if self.hosting {
            self.time_passes(at);
            self.fired_by_host += 1;
        }
        self.counts.ran += 1;
        // What is short runs with the lateness that its wheel knows, which is less if the
        // timer is being closed.
        let short = self.entries[id].kind.is_short();
        let closing =
            self.closed && (!self.hosting || self.give_up.is_some_and(|until| until < at));
        if short && closing && self.entries[id].deadline < at {
            self.lateness_is_known = false;
        }
        let late = Duration::from_nanos(at.saturating_sub(self.entries[id].deadline));
        self.counts.lateness.record(late);
        self.counts.lateness_max = self.counts.lateness_max.max(late);
        self.entries[id].fate = Fate::Ran;
        Ok(())
    }

    /// A pending one fires: is it its time, and its turn? Returns when it fired.
    fn fires(&self, id: Id, now: u64) -> Result<u64, String> {
        let entry = &self.entries[id];
        if now < entry.deadline {
            return Err(format!("{id} is early at {now}: {}", self.show(id)));
        }
        let punctual = self.instant(entry.due).max(self.base).max(entry.filed_at);
        let mut at = now;
        if entry.kind == Kind::Send {
            // It was sent some time before it was found.
            at = punctual;
        }
        let direct = self.inline || entry.kind.is_short();
        if direct && (now < punctual || at > punctual) {
            return Err(format!(
                "{id} fires at {now} and not at {punctual}: {}",
                self.show(id)
            ));
        }
        if !self.is_due(id, now) {
            return Err(format!(
                "{id} fires after the timer gave up: {}",
                self.show(id)
            ));
        }
        self.is_next(id)?;
        Ok(at)
    }

    /// Whether nothing that is pending should have come before.
    fn is_next(&self, id: Id) -> Verdict {
        let entry = &self.entries[id];
        let short = entry.kind.is_short();
        if !short
            && let Some((&(group, ..), &first)) = self.waiting.first_key_value()
            && (group < self.group || self.must_precede(first, id))
        {
            return Err(format!("{id} overtakes {first}, which waits"));
        }
        for &first in self
            .pending
            .range(..(entry.due, entry.order))
            .map(|(_, id)| id)
        {
            // One that fires itself does not wait for those that go to the executor.
            if short && !self.inline && !self.entries[first].kind.is_short() {
                continue;
            }
            if self.must_precede(first, id) {
                return Err(format!(
                    "{id} overtakes {first}: {} and {}",
                    self.show(id),
                    self.show(first)
                ));
            }
        }
        Ok(())
    }

    /// Takes one out of the queue of the executor: it must be the first.
    pub(super) fn leaves_queue(&mut self, id: Id) -> Verdict {
        let entry = &self.entries[id];
        if entry.fate == Fate::Pending {
            // It has come straight through.
            self.is_next(id)?;
            self.unfile(id);
            return Ok(());
        }
        if entry.fate != Fate::Waiting {
            return Err(format!("{id} leaves the queue and is {:?}", entry.fate));
        }
        for (place, &first) in self.waiting.range(..entry.place) {
            let overtakes = if place.0 != entry.place.0 {
                true
            } else if place.0 == SHORT_FIRST || Some(place.0) == self.drained {
                self.precedes_in_drain(first, id)
            } else {
                self.must_precede(first, id)
            };
            if overtakes {
                return Err(format!(
                    "{id} overtakes {first} in the queue: {} and {}",
                    self.show(id),
                    self.show(first)
                ));
            }
        }
        self.waiting.remove(&self.entries[id].place);
        Ok(())
    }

    /// Whether `first` must start before `second` if both are due.
    fn must_precede(&self, first: Id, second: Id) -> bool {
        let (first, second) = (&self.entries[first], &self.entries[second]);
        let filed_first = first.shard == second.shard && first.order < second.order;
        filed_first && first.due <= second.due || first.due_by < second.due
    }

    /// The same for those that a stop takes out of all shards at once: it sorts by the tick
    /// of the deadline.
    fn precedes_in_drain(&self, first: Id, second: Id) -> bool {
        let (first, second) = (&self.entries[first], &self.entries[second]);
        let (tick, then) = (self.up(first.deadline), self.up(second.deadline));
        let exact = first.due == first.due_by && second.due == second.due_by;
        tick < then
            || tick == then
                && first.shard == second.shard
                && exact
                && (first.due, first.order) < (second.due, second.order)
    }

    // -- Executors -------------------------------------------------------------------------

    /// Something in the queue goes back to the caller, or is lost by the executor.
    pub(super) fn handed_back(&mut self, id: Id) -> Verdict {
        self.leaves_queue(id)?;
        self.counts.returned += 1;
        let entry = &mut self.entries[id];
        entry.fate = Fate::Returned(Some(true));
        entry.gone = true;
        Ok(())
    }

    /// A task that took `took` has ended.
    pub(super) fn ended(&mut self, took: Duration, budget: Duration, panicked: bool) {
        self.counts.panicked += u64::from(panicked);
        if took > budget {
            self.counts.slow += 1;
            self.counts.slowest = self.counts.slowest.max(Some(took));
        }
    }

    // -- The end ---------------------------------------------------------------------------

    pub(super) fn closes(&mut self, stop: Stop, now: u64) -> Verdict {
        self.closed = true;
        match stop {
            Stop::HandBack | Stop::Drop => {
                let limbo = self.hosting && !self.inline;
                self.return_all((!limbo).then_some(false), !limbo)?;
            }
            Stop::RunNow => {
                self.group += 1;
                // The first one takes everything: a timer that is closed gets nothing more.
                self.drained.get_or_insert(self.group);
                let mut all: Vec<_> = self.pending.values().copied().collect();
                all.sort_by_key(|&id| {
                    let entry = &self.entries[id];
                    (self.up(entry.deadline), entry.shard, entry.due, entry.order)
                });
                for (rank, id) in (0..).zip(all) {
                    self.unfile(id);
                    let up = self.up(self.entries[id].deadline);
                    let entry = &mut self.entries[id];
                    entry.fate = Fate::Waiting;
                    let short = entry.kind.is_short();
                    let group = if short { SHORT_FIRST } else { self.group };
                    entry.place = (group, up, rank);
                    self.waiting.insert(entry.place, id);
                }
                self.group += 1;
            }
            Stop::WaitUpTo(span) => {
                let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
                let at = now.saturating_add(span);
                self.give_up = Some(self.give_up.map_or(at, |known| known.min(at)));
            }
            _ => return Err(format!("{stop:?} is unknown here")),
        }
        Ok(())
    }

    /// Everything that has not started is given back, or dropped. Wakers are woken.
    fn return_all(&mut self, expired: Option<bool>, waiting_is_known: bool) -> Verdict {
        let pending: Vec<_> = self.pending.values().copied().collect();
        let waiting = std::mem::take(&mut self.waiting);
        let expired_of_waiting = waiting_is_known.then_some(true);
        for id in pending {
            self.unfile(id);
            self.returns(id, expired);
        }
        for id in waiting.into_values() {
            self.returns(id, expired_of_waiting);
        }
        Ok(())
    }

    fn returns(&mut self, id: Id, expired: Option<bool>) {
        self.counts.returned += 1;
        let entry = &mut self.entries[id];
        entry.fate = Fate::Returned(expired);
        if !entry.gone {
            self.out += 1;
        }
    }

    /// What a stop took out has been woken, given back or dropped.
    pub(super) fn came_out(&mut self, id: Id) -> Verdict {
        let entry = &mut self.entries[id];
        match entry.fate {
            Fate::Returned(_) if !entry.gone => {
                entry.gone = true;
                self.out -= 1;
                Ok(())
            }
            // The stop is under way; what it does is entered next.
            Fate::Pending | Fate::Waiting if !entry.gone => {
                entry.gone = true;
                Ok(())
            }
            fate => Err(format!("{id} comes back and is {fate:?}")),
        }
    }

    /// A stop hands out a list of tasks, in order.
    pub(super) fn unfired_begins(&mut self) {
        self.last_unfired = None;
    }

    /// The next one of the list.
    pub(super) fn unfired(&mut self, id: Id) -> Verdict {
        let Fate::Returned(expired) = self.entries[id].fate else {
            return Err(format!(
                "{id} is given back and is {:?}",
                self.entries[id].fate
            ));
        };
        if let Some(expired) = expired {
            let rank = u8::from(!expired);
            if let Some((last_rank, last)) = self.last_unfired
                && (last_rank > rank
                    || (last_rank, rank) == (1, 1) && self.precedes_in_drain(id, last))
            {
                return Err(format!(
                    "{id} is given back after {last}: {} and {}",
                    self.show(id),
                    self.show(last)
                ));
            }
            self.last_unfired = Some((rank, id));
        }
        self.came_out(id)
    }

    fn show(&self, id: Id) -> String {
        let entry = &self.entries[id];
        format!(
            "{id} ({:?} on shard {}, deadline {}, due {}..={} in ticks of {}, filed as {} at {})",
            entry.kind,
            entry.shard,
            entry.deadline,
            entry.due,
            entry.due_by,
            self.tick,
            entry.order,
            entry.filed_at,
        )
    }
}
