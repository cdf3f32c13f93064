//! The scheduler's handling of timers whose flow has no room: it parks them, and starts them in their turn.

use super::{Attended, Gate, READ_BEFORE_MAX_BYTES, Scheduler, Share, gate};
use crate::budget::May;
use crate::clocks::Now;
use crate::draft::Draft;
use crate::flow::{Flow, Route};
use crate::held::Span;
use crate::in_flight::Running;
use crate::parked::{Order, Parked, Waiting};
use crate::planted::planted;
use crate::store::{DueEntry, DueScan, Found, Store, StoreError};
use crate::window::LOOK_MIN;
use crate::{Attempt, DueClock, QueueName, Record, State, TimerName, Verdict, Wake};
use countwheel_time::Timestamp;
use std::time::Duration;

/// How many entries one look for what was left to the store reads at the most.
const PAGE: usize = 64;

/// How often a step looks there at the most.
const PAGES: usize = 2;

/// From where the scheduler took what it attends to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    Window,
    Overdue,
    /// From those that wait for a flow, and whether it was overdue at the opening.
    Parked {
        is_overdue: bool,
    },
}

impl From {
    fn is_overdue(self) -> bool {
        matches!(self, Self::Overdue | Self::Parked { is_overdue: true })
    }
}

impl Scheduler {
    /// The flows of the next attempt of a timer.
    pub(super) fn route(&self, record: &Record) -> Route {
        let rules = self.config.flows.as_deref();
        rules.map_or_else(Route::default, |rules| {
            rules.route(&record.name, &record.payload)
        })
    }

    /// Makes a timer wait for a flow. The record of an interruption comes first, as for
    /// [suspects](Self::hold_back).
    pub(super) fn park(
        &mut self,
        (flow, priority): (&Flow, u32),
        from: From,
        since: Option<Timestamp>,
        mut record: Box<Record>,
        draft: &mut Draft<'_>,
    ) -> Attended {
        let was_delivering = record.state == State::Delivering;
        record.state = State::Pending;
        let Some(wake) = record.wake() else {
            return Attended::Nothing;
        };
        let due = self.now.convert(wake.at, record.clock, DueClock::Boot);
        let priority = if planted!(PriorityIgnored) {
            0
        } else {
            priority
        };
        let order = Order {
            is_overdue: from.is_overdue(),
            priority,
            due,
            revision: wake.revision,
        };
        let entry = DueEntry {
            wake,
            name: record.name.clone(),
            kind: Some(record.state.kind()),
        };
        let waiting = Waiting {
            order,
            clock: record.clock,
            entry,
            since: since.unwrap_or(self.now.boot),
        };
        self.parked.park(flow, waiting);
        if was_delivering {
            draft.write(record);
        }
        Attended::Parked
    }

    /// Starts those that wait for flows that have room now, in turns by flow.
    pub(super) fn start_parked(
        &mut self,
        share: &mut Share,
        draft: &mut Draft<'_>,
        starts: &mut Vec<(DueClock, Attempt)>,
    ) -> Result<(), StoreError> {
        let woken = self.in_flight.woken_for();
        if !self.parked.has_any() {
            return Ok(());
        }
        self.parked.wake(woken);
        self.parked.wake_due(self.now.boot);
        while !self.in_flight.is_full() && share.has_room(draft, self.points) {
            let may_overdue = self.overdue.pause(self.now).is_zero();
            let gate = gate!(self);
            let Some(flow) = self.parked.next(may_overdue, |queue| gate.may(queue)) else {
                break;
            };
            let flow = flow.clone();
            let rules = self.config.flows.as_deref();
            let may = if Parked::is_of_held(&flow) {
                let later = self
                    .parked
                    .held_until(&flow)
                    .filter(|at| *at > self.now.boot);
                later.map_or(May::Now, May::At)
            } else {
                self.in_flight.may_flow(&flow, rules, self.now.boot)
            };
            match may {
                May::Now => {}
                May::At(at) => {
                    self.parked.sleep(&flow, Some(at));
                    continue;
                }
                May::Later => {
                    self.parked.sleep(&flow, None);
                    continue;
                }
            }
            let Some(waiting) = self
                .parked
                .take(&flow, may_overdue, |queue| gate.may(queue))
            else {
                break;
            };
            let Waiting {
                order,
                clock,
                entry,
                since,
            } = waiting;
            let is_overdue = order.is_overdue;
            if entry.wake.at > self.now.by(clock) {
                // The wall clock was set back since.
                self.admit(clock, entry);
                continue;
            }
            let since = self
                .holds
                .since(&entry.name.queue)
                .map_or(since, |own| own.min(since));
            let from = From::Parked { is_overdue };
            match self.attend(&entry, Some(since), from, draft, starts)? {
                Attended::Started if is_overdue => {
                    let among = self.member.catch_up(true);
                    self.overdue.started(self.now, among);
                }
                Attended::Started | Attended::Nothing => {}
                Attended::Settled | Attended::Parked => share.left -= 1,
            }
        }
        Ok(())
    }

    /// Reads everything anew if timers have other flows than before.
    pub(super) fn look_at_routes(&mut self, now: Now) {
        let routes = self.member.budget().route_changes();
        let is_changed = routes != self.routes && !planted!(FlowRoutesStay);
        self.routes = routes;
        if is_changed && self.parked.has_any() {
            self.begin_anew(now);
        }
    }

    /// Whether limits of flows have changed since that was looked at, and a timer waits that its handler held.
    pub(super) fn is_behind_changes(&self) -> bool {
        self.parked.has_held()
            && self.member.budget().changes() != self.changes
            && !planted!(FlowHeldUnwoken)
    }

    /// Looks again at those that their handler held, if limits of flows have changed.
    pub(super) fn look_at_changes(&mut self, now: Now) {
        if self.is_behind_changes() {
            self.parked.release(now.boot);
        }
        self.changes = self.member.budget().changes();
    }

    /// The attempt was not made: the record is as before its claim, and waits beside the window until its handler is
    /// to be asked again.
    pub(super) fn put_back(
        &mut self,
        mut record: Box<Record>,
        running: &Running,
        look_after: Option<Duration>,
        draft: &mut Draft<'_>,
    ) {
        record.state = State::Pending;
        if !planted!(FlowHeldCounts) {
            record.attempts.pop();
            record.attempt = record.attempt.saturating_sub(1);
        }
        if planted!(FlowHeldFails) {
            record.failures += 1;
        }
        let is_outdated = self.member.budget().changes() != running.changes;
        let boot = self.now.boot;
        let due = match look_after {
            // Somebody has changed what the handler went by, perhaps after it looked.
            _ if is_outdated && !planted!(FlowHeldMissesChange) => boot,
            _ if planted!(FlowHeldRestless) => boot,
            Some(wait) if !planted!(FlowHeldForgotten) => boot + wait.max(Verdict::HELD_MIN),
            _ => Timestamp::MAX,
        };
        let Some(wake) = record.wake() else {
            return;
        };
        let since = if planted!(FlowHeldIsLate) {
            boot
        } else {
            self.holds.note_held(record.revision, running.held.clone());
            running.boot.saturating_sub(running.ageless)
        };
        // It is held on: all of that time counts when it is claimed again.
        record.first_due = record.first_due.saturating_sub(running.ageless);
        let waiting = Waiting {
            order: Order {
                is_overdue: false,
                priority: 0,
                due,
                revision: wake.revision,
            },
            clock: record.clock,
            entry: DueEntry {
                wake,
                name: record.name.clone(),
                kind: Some(record.state.kind()),
            },
            since,
        };
        let flow = Parked::held_flow(&record.name.queue);
        self.parked.park(&flow, waiting);
        self.parked.look_at(&[flow]);
        draft.write(record);
    }

    /// The run that follows has come due already: what held the one before has held it too.
    pub(super) fn held_with(&mut self, record: &Record, held: &[Span]) {
        let is_due = record.state == State::Pending && record.due <= self.now.by(record.clock);
        if is_due && !planted!(FlowRunsAreLate) {
            self.holds.note_held(record.revision, held.to_vec());
        }
    }

    /// Waits for no flow any more that nothing waits for.
    pub(super) fn leave_flows(&mut self) {
        for flow in self.parked.take_left() {
            self.in_flight.leave_flow(&flow);
        }
    }

    /// Whether something is to be read of what was left to the store.
    pub(super) fn wants_parked(&self, now: Now) -> bool {
        self.parked.next_rest(now.boot).is_some()
    }

    /// Reads on what was left to the store of flows that hold little by now.
    pub(super) fn refill_parked(
        &mut self,
        store: &dyn Store,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        for _ in 0..PAGES {
            let Some((flow, queue, rests)) = self.parked.next_rest(self.now.boot) else {
                return Ok(());
            };
            let (flow, queue) = (flow.clone(), queue.clone());
            self.parked.reads(&flow, &queue, self.now.boot);
            for (clock, rest) in DueClock::ALL.into_iter().zip(rests) {
                if let Some(rest) = rest
                    && *left >= LOOK_MIN
                {
                    self.read_rest((&flow, &queue), (clock, rest), store, left)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a page of what wakes from `rest` on, and takes what is of the queue and belongs to the flow.
    fn read_rest(
        &mut self,
        (flow, queue): (&Flow, &QueueName),
        (clock, rest): (DueClock, Wake),
        store: &dyn Store,
        left: &mut usize,
    ) -> Result<(), StoreError> {
        let shard = self.ownership.lease.shard;
        let until = self.now.by(clock);
        let scan = DueScan {
            after: Some(rest.before()),
            until,
            limit: PAGE,
            scan_limit: *left,
            ..DueScan::all(clock)
        };
        let page = store.due(shard, &scan)?;
        *left = left.saturating_sub(page.scanned.max(1));
        self.parked.scanned += page.scanned as u64;
        let is_new = |entry: &&DueEntry| {
            let revision = entry.wake.revision;
            entry.name.queue == *queue
                && !self.in_flight.contains(revision)
                && !self.suspects.contains(revision)
                && !self.parked.contains(revision)
        };
        let names: Vec<TimerName> = (page.entries.iter().filter(is_new))
            .map(|entry| entry.name.clone())
            .collect();
        let mut found = match store.get_many(shard, &mut names.into_iter(), READ_BEFORE_MAX_BYTES) {
            Err(error) if error.is_unreadable() => Found::default(),
            found => found?,
        };
        let new: Vec<DueEntry> = page.entries.iter().filter(is_new).cloned().collect();
        for entry in new {
            let record = match found.take(&entry.name) {
                Some(record) => Ok(record),
                None => store.get(shard, &entry.name),
            };
            let record = match record {
                Err(error) if error.is_unreadable() => {
                    self.put_aside(&entry.name, &error);
                    continue;
                }
                record => record?,
            };
            let is_waiting = |record: &Record| {
                let may_start = matches!(record.state, State::Pending | State::Delivering);
                may_start && record.wake() == Some(entry.wake)
            };
            let Some(record) = record.filter(is_waiting) else {
                continue;
            };
            let route = self.route(&record);
            let priority = route.priority;
            let flows = route.into_flows();
            let wake = entry.wake;
            let is_left = |other| self.parked.is_left_to(other, queue, clock, wake);
            let mut others = flows.iter().filter(|other| *other != flow);
            // Which of them their handler held, the store does not know.
            let is_of_held = Parked::is_of_held(flow);
            let is_of_flow = is_of_held || flows.contains(flow);
            if !is_of_flow || others.any(is_left) {
                continue;
            }
            let due = self.now.convert(wake.at, clock, DueClock::Boot);
            let order = if is_of_held {
                Order {
                    is_overdue: false,
                    priority: 0,
                    due: self.now.boot,
                    revision: wake.revision,
                }
            } else {
                Order {
                    is_overdue: self.overdue.window.reaches(clock, wake),
                    priority,
                    due,
                    revision: wake.revision,
                }
            };
            let waiting = Waiting {
                order,
                clock,
                entry,
                since: due,
            };
            self.parked.goes_on(flow, queue, clock, Some(wake.after()));
            self.parked.park(flow, waiting);
            let is_here = self.parked.rest(flow, queue, clock) == Some(wake.after());
            if !is_here || self.parked.has_enough(flow, queue) {
                // It had to give something up again, or has enough: there it goes on.
                return Ok(());
            }
        }
        let end = page.next.filter(|next| next.at <= until);
        self.parked
            .goes_on(flow, queue, clock, end.map(Wake::after));
        Ok(())
    }
}
