//! What decides: requests, outcomes and the time go in; changes, answers and attempts come
//! out. No thread, no clock, no waiting; it reads through the [`Store`] seam and draws
//! from a seeded generator, so the same inputs give the same outputs.
//!
//! One step is one commit. The caller makes the changes durable before it lets any answer
//! or attempt of that step out; see [`Engine`](crate::Engine), which does.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::ahead::Ahead;
use crate::answer::keep_the_newest;
use crate::backlog::{Backlog, ByQueue};
use crate::budget::{Budget, Lacking, Lacks, May, Member};
use crate::clocks::{Now, Steps};
use crate::draft::{Corrections, Draft};
use crate::drain::Drains;
use crate::flow::Flow;
use crate::handler::Origin;
use crate::held::{Holds, Span};
use crate::in_flight::{InFlight, Running};
use crate::kept::Kept;
use crate::leases::Leases;
use crate::overdue::Overdue;
use crate::parked::Parked;
use crate::planted::planted;
use crate::recurrence::{self, Ended};
use crate::store::{self, Change, DueEntry, Found, Ownership, Store, StoreError};
use crate::suspects::Suspects;
use crate::trouble::Noticed;
use crate::window::{LOOK_MIN, Room, Window};
use crate::{
    Answer, Attempt, AttemptEnd, AttemptRecord, AttemptResult, BatchError, Config, DeadReason,
    DueClock, EventSink, JobAction, Keep, Missed, NextRun, Outcome, QueueName, Record, Recurrence,
    Request, Response, Revision, Run, Settings, State, StateKind, Stats, TimerError, TimerEvent,
    Verdict, Wake, policy,
};
use crate::{audit, receipt};
use countwheel_time::Random;
use parking_lot::Mutex;

mod answer;
mod audited;
mod batch;
mod leasing;
mod parking;
mod receipts;
mod ruling;
mod suspected;
mod unreadable;

use batch::Put;
use parking::From;
use unreadable::Aside;

/// The longest that a receiver's Retry-After is followed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// How many timers one step settles at the most without an attempt: forgets those that are done,
/// passes over or gives up those that are too late.
const SETTLED_MAX: usize = 1_024;

/// How many missed points of calendars, which are looked up one by one, one step counts for
/// requests and outcomes, and again for what comes due, but for those of the last timer.
const POINTS_MAX: u64 = 65_536;

/// What comes due is taken up until the payloads of its records are this long, in bytes, once
/// for being read and once for being written, and the last of them in full: a commit has each of
/// them again.
const STARTED_MAX_BYTES: usize = 32 << 20;

/// The payloads of what is read before a step are at most so long together, in bytes. What is not
/// read then is read when the step comes to it.
const READ_BEFORE_MAX_BYTES: usize = 8 << 20;

/// So many timers that are due are read before a step at the most.
const DUE_READ_BEFORE: usize = 1_024;

/// After so many starts of what is due now, one of what was overdue at the start goes first.
const OVERDUE_SHARE: usize = 8;

/// Names a request until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What happens to a scheduler.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks for something.
    Request(Ticket, Request),
    /// Somebody asks for several things that shall be done all together or not at all.
    Batch(Ticket, Vec<Request>),
    /// An attempt has ended.
    Outcome {
        /// The revision of the attempt's timer when it started.
        revision: Revision,
        /// How it ended.
        outcome: Outcome,
    },
}

/// With no room in the store, it is asked again after so long.
const ROOM_PAUSE: Duration = Duration::from_millis(100);

/// What one step comes to. The changes go first; the rest is void if they fail.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) changes: Vec<Change>,
    pub(crate) answers: Vec<(Ticket, Result<Response, TimerError>)>,
    pub(crate) batches: Vec<(Ticket, Result<Vec<Response>, BatchError>)>,
    /// By which clock each was due, and the attempt.
    pub(crate) starts: Vec<(DueClock, Attempt)>,
    /// What the changes did, if somebody wants to hear it.
    pub(crate) told: Vec<TimerEvent>,
    /// The outcomes it took, and whose they are.
    outcomes: Vec<(Revision, Running, Outcome)>,
    /// The leases that it ended, and the flows in which they had room.
    ended_leases: Vec<(Revision, Vec<Flow>)>,
    /// What had been counted before it.
    before: Stats,
    /// What changes of what is counted; `None` if that has to be counted anew.
    pub(crate) corrections: Option<Corrections>,
    /// The store could not be read where going on would lose a timer. What the step has is whole,
    /// and to be committed; there must be no other.
    pub(crate) failure: Option<StoreError>,
}

/// What lets attempts start.
struct Gate<'a> {
    in_flight: &'a InFlight,
    drains: &'a Drains,
    wall: Timestamp,
}

impl Gate<'_> {
    /// Whether an attempt of this queue may start now.
    fn may(&self, queue: &QueueName) -> bool {
        let is_drained = self.drains.holds(queue, self.wall) && !planted!(DrainLetsStart);
        self.in_flight.may(queue) && !is_drained
    }
}

/// The gate of a scheduler. Borrows some of its fields, and leaves the others to be changed.
macro_rules! gate {
    ($scheduler:ident) => {
        Gate {
            in_flight: &$scheduler.in_flight,
            drains: &$scheduler.drains,
            wall: $scheduler.now.wall,
        }
    };
}
use gate;

/// How much each part of a scheduler may hold, in bytes but for the windows.
struct Rooms {
    window: Room,
    overdue: Room,
    in_flight: usize,
    kept: usize,
    suspects: usize,
    parked: usize,
}

impl Rooms {
    /// Of so many schedulers that share the configured memory.
    fn new(config: &Config, among: usize) -> Self {
        // Half for the window, a quarter for attempts with their records and the suspects that wait
        // for theirs, an eighth for the overdue, a sixteenth for those that wait for flows; the last
        // sixteenth is for pages on their way from the store.
        let bytes = (config.window_bytes / among).max(128 << 10);
        Self {
            window: Room::new(bytes / 2, config.window / among),
            overdue: Room::new(bytes / 8, usize::MAX),
            in_flight: bytes / 16 * 2,
            kept: bytes / 16,
            suspects: bytes / 16,
            parked: bytes / 16,
        }
    }
}

/// The scheduler of one shard.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: Config,
    ownership: Ownership,
    next_revision: Revision,
    random: Random,
    window: Window,
    overdue: Overdue,
    /// When this scheduler began, by the wall clock.
    opened: Timestamp,
    /// The time of the last step.
    now: Now,
    steps: Steps,
    /// Starts from the window since the last one of what was overdue.
    ahead_of_overdue: usize,
    /// How many missed points of calendars this step has counted.
    points: u64,
    in_flight: InFlight,
    leases: Leases,
    /// Those that this step has ended, and the flows in which they had room.
    ended_leases: Vec<(Revision, Vec<Flow>)>,
    /// The part in what all schedulers of the process share, and among how many that is divided.
    member: Member,
    among: usize,
    /// The records of those in flight.
    kept: Kept,
    holds: Holds,
    suspects: Suspects,
    parked: Parked,
    /// How often timers had been given other flows when that was looked at.
    routes: u64,
    /// How often limits or flows had changed then.
    changes: u64,
    /// It is woken for each of these changes.
    minds_changes: bool,
    /// Starts of others since the last one of a suspect.
    ahead_of_suspects: usize,
    paused: bool,
    /// The store has no room: nothing starts before this time of the boot clock.
    held_until: Option<Timestamp>,
    /// What was read before the last step: only a planted mistake believes it once more.
    read: Found,
    /// Receipts and entries of the audit log of the last step: only a planted mistake owes any.
    owed: Vec<Record>,
    /// What a batch does to the window, until it is certain that it does it.
    put_off: Option<Vec<Put>>,
    aside: Aside,
    backlog: Backlog,
    /// Others may look while the scheduler goes on.
    ahead: Arc<Mutex<Ahead>>,
    noticed: Arc<Noticed>,
    /// As they were last looked at.
    settings: Arc<Settings>,
    /// Those that the settings name, as this step has changed them.
    drains: Drains,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler that begins at `now` with what the store holds. What was due before
    /// `now` is overdue.
    pub(crate) fn new(ownership: Ownership, now: Now, config: Config, budget: &Budget) -> Self {
        let config = config.bounded();
        let member = budget.join();
        let among = member.of();
        let Rooms {
            window: room,
            overdue,
            in_flight,
            kept,
            suspects,
            parked,
        } = Rooms::new(&config, among);
        let end = Now {
            wall: Timestamp::MAX,
            boot: Timestamp::MAX,
        };
        Self {
            ownership,
            next_revision: Revision(ownership.last_revision.0 + 1),
            random: Random::new(config.seed),
            window: Window::new(now, end, room),
            opened: now.wall,
            now,
            steps: Steps::new(now),
            ahead_of_overdue: 0,
            points: 0,
            overdue: Overdue::new(now, overdue, config.catch_up_per_second),
            holds: Holds::default(),
            in_flight: InFlight::new(member.places(), in_flight),
            leases: Leases::new(member.places()),
            ended_leases: Vec::new(),
            kept: Kept::new(kept),
            member,
            among,
            suspects: Suspects::new(&config, now.boot, suspects),
            parked: Parked::new(parked),
            routes: budget.route_changes(),
            changes: budget.changes(),
            minds_changes: false,
            ahead_of_suspects: 0,
            paused: false,
            held_until: None,
            read: Found::default(),
            owed: Vec::new(),
            put_off: None,
            aside: Aside::default(),
            backlog: Backlog::new(),
            ahead: Arc::new(Mutex::new(Ahead::new(now, config.due_counts))),
            noticed: Arc::default(),
            settings: Arc::default(),
            drains: Drains::default(),
            stats: Stats::default(),
            config,
        }
    }

    /// Reads the first of what is due and of what is overdue, as a step does, so that a store of
    /// which nothing can be read shows before anything is promised.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(crate) fn read_ahead(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.refill(store)
    }

    /// Reads what comes next, as far as a turn looks.
    fn refill(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let shard = self.ownership.lease.shard;
        let (in_flight, suspects, parked) = (&self.in_flight, &self.suspects, &self.parked);
        let skip = |revision| {
            in_flight.contains(revision) || suspects.contains(revision) || parked.contains(revision)
        };
        // What is counted of the backlog takes an eighth, however much else there is to read.
        let mut left = self.config.max_scanned;
        let counted = if self.backlog.is_asked(self.now) {
            left / 8
        } else {
            0
        };
        left -= counted;
        // And as much what is counted by due time.
        let listed = if self.ahead.lock().is_behind(self.now) {
            // Less than a look would wait for ever, and the next turn comes at once.
            (left / 8).max(LOOK_MIN.min(left / 2))
        } else {
            0
        };
        left -= listed;
        // Of what is overdue, half is read, however far the window has to look.
        let kept = if self.overdue.is_done() { 0 } else { left / 2 };
        left -= kept;
        let refilled = self.window.refill(self.now, store, shard, &skip, &mut left);
        left += kept;
        let refilled = refilled.and_then(|()| {
            self.overdue
                .refill(self.now, store, shard, &skip, &mut left)
        });
        self.aside.look(store);
        let refilled = refilled.and_then(|()| self.refill_parked(store, &mut left));
        left += counted;
        refilled?;
        self.backlog.look(self.now, store, shard, &mut left)?;
        // A quarter at the most, so that no turn takes long for it.
        let mut left = (left + listed).min((self.config.max_scanned / 4).max(LOOK_MIN));
        let mut ahead = self.ahead.lock();
        ahead.advance(self.now);
        ahead.look(store, shard, &mut left)
    }

    /// These are the settings from now on.
    pub(crate) fn knows(&mut self, settings: Arc<Settings>) {
        self.settings = settings;
        self.drains = Drains::of_settings(&self.settings);
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(crate) fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// The last revision that was given.
    pub(crate) fn last_revision(&self) -> Revision {
        Revision(self.next_revision.0 - 1)
    }

    /// What it cannot read, and what its store cannot.
    pub(crate) fn noticed(&self) -> &Arc<Noticed> {
        &self.noticed
    }

    /// How many timers are overdue, by queue.
    pub(crate) fn overdue(&self) -> Arc<Mutex<ByQueue>> {
        Arc::clone(self.backlog.by_queue())
    }

    /// How many timers pend, by when they are due.
    pub(crate) fn ahead(&self) -> Arc<Mutex<Ahead>> {
        Arc::clone(&self.ahead)
    }

    pub(crate) fn stats(&self) -> Stats {
        let overdue = &self.overdue.window;
        let mut stats = Stats {
            refills: self.window.refills,
            scanned: self.window.scanned
                + overdue.scanned
                + self.backlog.scanned
                + self.ahead.lock().scanned
                + self.parked.scanned,
            rebuilds: self.window.rebuilds,
            in_window: self.window.len(),
            window_bytes: self.window.bytes()
                + overdue.bytes()
                + self.in_flight.bytes()
                + self.leases.bytes()
                + self.kept.bytes()
                + self.suspects.bytes()
                + self.parked.bytes(),
            capped_queues: self.window.capped() + overdue.capped(),
            catching_up: !self.overdue.is_done(),
            in_flight: self.in_flight.len(),
            leased: self.leases.len(),
            suspects: self.suspects.len(),
            parked: self.parked.len(),
            overdue: self.backlog.overdue(self.now),
            ..self.stats.clone()
        };
        self.steps.fill(&mut stats);
        stats
    }

    /// Starts no attempt from now on.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
        self.member.rests();
    }

    /// Who hears what commits did.
    pub(crate) fn events(&self) -> Option<&Arc<dyn EventSink>> {
        self.config.events.as_ref()
    }

    /// A request was refused that never came to a step.
    pub(crate) fn note_refused(&mut self) {
        self.stats.refused += 1;
    }

    /// Calls `wake`, from another thread, when it waits for a place that another scheduler had.
    pub(crate) fn on_room(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.member.on_room(wake);
    }

    /// Its time line stood there when the boot clock was at zero.
    pub(crate) fn count_from(&mut self, zero: Timestamp) {
        self.in_flight.count_from(zero);
    }

    /// The limits of flows are others than before.
    pub(crate) fn flows_changed(&self) {
        self.member.budget().flows_changed();
    }

    /// The attempts that run: their places stay taken until they have ended.
    pub(crate) fn leave(&mut self) -> InFlight {
        self.in_flight.leave()
    }

    pub(crate) fn note_started(&mut self, attempt: &Attempt, boot: Timestamp) {
        self.in_flight
            .handed_over(attempt.revision, attempt.started, boot);
    }

    /// How long to wait with the next step if nothing happens before: never longer than until
    /// the next deadline, but while the store has no room. `None` if only an event can bring one.
    pub(crate) fn wait(&self, now: Now) -> Option<Duration> {
        self.next_start(now).max(self.held(now))
    }

    /// How long until the store is asked again whether it has room; `None` if it had.
    pub(crate) fn held(&self, now: Now) -> Option<Duration> {
        let until = self.held_until?;
        Some(until.saturating_since(now.boot))
    }

    /// The step could not be committed, and is void: as if it had not been,
    /// but that its revisions are used up. Returns the outcomes, for a later step.
    pub(crate) fn undo(&mut self, now: Now, step: Step) -> Vec<Event> {
        let started = step.starts.iter().map(|(_, attempt)| attempt.revision);
        self.suspects.undo(started);
        for (_, attempt) in step.starts {
            self.in_flight.remove(attempt.revision);
            self.leases.remove(attempt.revision);
        }
        for (revision, flows) in step.ended_leases {
            self.leases.put_back(revision, flows);
        }
        let answers = (step.answers.len() + step.batches.len()) as u64;
        let outcomes = step.outcomes.into_iter();
        let outcomes = outcomes.map(|(revision, running, outcome)| {
            self.in_flight.put_back(revision, running);
            Event::Outcome { revision, outcome }
        });
        let outcomes = outcomes.collect();
        self.stats = step.before;
        self.stats.refused += answers;
        self.drains = Drains::of_settings(&self.settings);
        // What it took out of the window is in the store as it was.
        if !planted!(LostAfterFull) {
            self.begin_anew(now);
        }
        self.held_until = Some(now.boot + ROOM_PAUSE);
        outcomes
    }

    /// The step was committed, or had nothing to commit: what it changed counts.
    pub(crate) fn settle(&mut self, corrections: Option<&Corrections>, changes: Vec<Change>) {
        self.kept.settle(changes);
        self.member.catch_up(!self.overdue.is_done());
        self.holds.look(&self.in_flight, &self.drains, self.now);
        match corrections {
            Some(corrections) => {
                self.backlog.correct(&corrections.backlog);
                if !corrections.moved.is_empty() {
                    self.ahead.lock().correct(&corrections.moved);
                }
            }
            None => {
                self.backlog.restart();
                self.ahead.lock().restart(self.now);
            }
        }
        let minds_changes = self.parked.has_held();
        if minds_changes != self.minds_changes {
            self.member.minds_changes(minds_changes);
            self.minds_changes = minds_changes;
        }
        let is_sure = !self.paused && self.held_until.is_none() && !self.aside.has_any();
        let has_waiting = self.suspects.has_waiting() || self.parked.has_any();
        if is_sure && !self.has_due(self.now) && !has_waiting {
            self.backlog.is_worked_off(self.now);
        }
    }

    /// Whether something may wait although it is due, other than suspects and what waits for a flow.
    fn has_due(&self, now: Now) -> bool {
        self.window.has_due(now) || !self.overdue.is_done()
    }

    /// How long until something is read to be counted; `None` if nothing is.
    fn next_count(&self, now: Now) -> Option<Duration> {
        let wait = self.backlog.wait(now);
        let ahead = self.ahead.lock().wait(now);
        let backlog = if self.backlog.is_behind() || self.has_due(now) || self.parked.has_any() {
            Some(wait)
        } else {
            self.next_wake(now).map(|next| next.max(wait))
        };
        [ahead, backlog].into_iter().flatten().min()
    }

    /// How long until what comes next in the window.
    fn next_wake(&self, now: Now) -> Option<Duration> {
        let next = DueClock::ALL.into_iter().filter_map(|clock| {
            let at = self.window.next_wake(clock)?;
            Some(at.saturating_since(now.by(clock)))
        });
        next.min()
    }

    fn next_start(&self, now: Now) -> Option<Duration> {
        if self.paused {
            self.member.waits(None);
            return None;
        }
        self.member.looks();
        if self.window.wants_refill(now) || self.overdue.window.wants_refill(now) {
            return Some(Duration::ZERO);
        }
        let count = self.next_count(now);
        if !self.in_flight.has_memory() {
            self.member.waits(None);
            return count; // an outcome comes first
        }
        if self.wants_parked(now) {
            return Some(Duration::ZERO);
        }
        let is_woken = self.member.is_woken_for_flow() || self.is_behind_changes();
        if self.in_flight.is_full() {
            // What is due waits for a place, or for the share of its queue. For what is not, it is
            // looked when that is due.
            let gate = gate!(self);
            let may = |queue: &QueueName| gate.may(queue);
            let (is_awake, _) = self.parked.ready(|_| true);
            let is_due = self.has_due(now) || self.suspects.has_waiting() || is_awake || is_woken;
            let might_start = is_woken
                || self.window.might_start(now, may)
                || self.overdue.window.might_start(now, may)
                || self.suspects.next_start(now.boot, may).is_some()
                || self.parked.ready(may).0;
            let lacks = if might_start || planted!(SharePassedOn) {
                Lacks::Place
            } else {
                Lacks::Share
            };
            self.member.waits(is_due.then_some(lacks));
            let next = self.next_wake(now).filter(|_| !is_due);
            return [count, next].into_iter().flatten().min();
        }
        let gate = gate!(self);
        let may = |queue: &QueueName| gate.may(queue);
        let is_ready = self.window.is_ready(may) || is_woken;
        let ready = is_ready.then_some(Duration::ZERO);
        let next = self.next_wake(now);
        let overdue = self.overdue.wait(now, may);
        let aside = self.aside.wait(now);
        let suspect = self.suspects.next_start(now.boot, may);
        let suspect = suspect.map(|wait| wait.max(self.overdue.pause(now)));
        let parked = match self.parked.ready(may) {
            (false, _) => None,
            (true, true) => Some(self.overdue.pause(now)),
            (true, false) => Some(Duration::ZERO),
        };
        let flow = self.parked.next_at().into_iter();
        let flow = flow.chain(self.parked.next_rest_at(now.boot)).min();
        let flow = flow.map(|at| at.saturating_since(now.boot));
        let waits = |queue: &QueueName| !self.in_flight.may(queue);
        let held = self.window.is_ready(waits)
            || self.overdue.window.is_ready(waits)
            || self.parked.ready(waits).0
            || self.suspects.has_waiting();
        // One that has ended since the last step held queues in that step.
        let resumed = self.drains.next_end(self.now.wall);
        let resumed = resumed.map(|end| end.saturating_since(now.wall));
        let resumed = resumed.filter(|_| !planted!(PauseEndUnseen));
        let waits = [
            next, ready, overdue, aside, suspect, parked, flow, count, resumed,
        ];
        let wait = waits.into_iter().flatten().min();
        // It starts something now, and keeps a place that was kept for it.
        if wait != Some(Duration::ZERO) {
            self.member.waits(held.then_some(Lacks::Share));
        }
        if planted!(WakeLate) {
            return wait.map(|wait| wait + Duration::from_secs(10));
        }
        wait
    }

    /// Takes `events` in order, then starts what is due at `now`.
    ///
    /// What cannot be read is left out. If the store fails otherwise, the step ends early, with
    /// what it has and [`Step::failure`]; the scheduler is of no more use then.
    pub(crate) fn step(
        &mut self,
        now: Now,
        events: &mut VecDeque<Event>,
        store: &dyn Store,
    ) -> Step {
        let shard = self.ownership.lease.shard;
        let set_by = self.steps.look(now);
        let step_back = set_by.is_some_and(|by| by < 0);
        self.now = now;
        if set_by.is_some() && !planted!(AheadStepIgnored) {
            self.ahead.lock().restart(now);
        }
        let mut failure = None;
        // First of all, since only now does the store hold every change made so far.
        if !self.paused {
            if step_back && !planted!(StepBackIgnored) {
                // What had passed is ahead again, and no longer overdue. Begin anew by this
                // clock, as after a restart, but for what is in flight.
                self.window
                    .restart(DueClock::Wall, now.wall, Timestamp::MAX);
                self.overdue.restart(DueClock::Wall, now);
                self.backlog.restart();
            }
            self.look_aside(now, store);
            self.look_at_routes(now);
            self.look_at_changes(now);
            let refilled = self.refill(store);
            // The outcomes of this turn are committed all the same.
            failure = refilled.err();
        }
        self.keep_to_part();
        self.suspects.begin();
        let next_before = self.next_revision;
        let mut step = Step {
            before: self.stats.clone(),
            ..Step::default()
        };
        let has_room = store::has_room(store);
        let found = match failure {
            Some(_) => Found::default(),
            None => self
                .read_before(events, has_room, store)
                .unwrap_or_else(|error| {
                    failure = Some(error).filter(|error| !error.is_unreadable());
                    Found::default()
                }),
        };
        if matches!(failure, Some(StoreError::Unavailable { .. })) {
            self.member.has_started();
            step.failure = failure;
            return step;
        }
        let found = if planted!(ReadBelievedTwice) {
            mem::replace(&mut self.read, found)
        } else {
            found
        };
        let known = (mem::take(&mut self.kept), found);
        let (wall, records) = (now.wall, events.len());
        let draft = Draft::new(store, shard, wall, known, &self.settings, records);
        let mut draft = draft.tells(self.config.events.is_some());
        self.held_until = (!has_room).then(|| now.boot + ROOM_PAUSE);
        if !has_room {
            // It is the disk that it waits for, not the rate.
            self.overdue.since = now.boot;
        }
        self.points = 0;
        self.keep_owed(&mut draft);
        while draft.bytes() < self.config.max_batch_bytes
            && self.points < POINTS_MAX
            && draft.unavailable().is_none()
            && let Some(event) = events.pop_front()
        {
            match event {
                Event::Request(ticket, request) => {
                    let is_urgent = needs_no_room(&request);
                    let answer = if has_room || is_urgent {
                        self.answer(request, &mut draft)
                    } else {
                        self.answer_without_room(&request, &mut draft)
                    };
                    self.stats.refused += u64::from(answer.is_err());
                    self.note_refusal(answer.as_ref().err());
                    step.answers.push((ticket, answer));
                }
                Event::Batch(ticket, requests) => {
                    let answer = if has_room || requests.iter().all(needs_no_room) {
                        self.answer_batch(requests, &mut draft)
                    } else {
                        Err(BatchError::of_all(TimerError::StorageFull))
                    };
                    self.stats.refused += u64::from(answer.is_err());
                    self.note_refusal(answer.as_ref().err().map(|refusal| &refusal.error));
                    step.batches.push((ticket, answer));
                }
                Event::Outcome { revision, outcome } => {
                    let Some(running) = self.in_flight.remove(revision) else {
                        debug_assert!(false, "an outcome belongs to an attempt in flight");
                        continue;
                    };
                    self.parked.look_at(&running.flows);
                    let taken =
                        self.outcome(now.wall, revision, &running, outcome.clone(), &mut draft);
                    step.outcomes.push((revision, running, outcome));
                    if let Err(error) = taken {
                        failure = Some(error);
                        break;
                    }
                }
            }
        }
        // What starts has to be recorded twice: that is not for the last of the room.
        if !self.paused && has_room && failure.is_none() && draft.unavailable().is_none() {
            failure = self.start_due(&mut draft, &mut step.starts).err();
        }
        self.member.has_started();
        if let Some(reason) = draft.unavailable() {
            let reason = reason.to_owned();
            failure = Some(StoreError::Unavailable { reason });
        }
        step.failure = failure;
        step.ended_leases = mem::take(&mut self.ended_leases);
        step.corrections = draft.corrections(&self.backlog);
        step.told = draft.take_told();
        (step.changes, self.kept) = draft.into_changes();
        let given = Revision(self.next_revision.0 - 1);
        let shown = |change: &Change| matches!(change, Change::Put { record: r, .. } if r.revision == given);
        let is_shown = step.changes.iter().rev().any(shown) || planted!(ForgetGiven);
        if self.next_revision > next_before && !is_shown {
            step.changes.push(Change::Given(given));
        }
        self.stats.commits += u64::from(!step.changes.is_empty());
        self.stats.changes += step.changes.len() as u64;
        step
    }

    /// Takes as much of what is shared as it may: schedulers have come or gone.
    fn keep_to_part(&mut self) {
        let among = self.member.of();
        if among == self.among {
            return;
        }
        self.among = among;
        let rooms = Rooms::new(&self.config, among);
        self.window.resize(rooms.window);
        self.overdue.window.resize(rooms.overdue);
        self.in_flight.resize(rooms.in_flight);
        self.kept.resize(rooms.kept);
        self.suspects.resize(rooms.suspects);
        self.parked.resize(rooms.parked);
    }

    /// Reads in one piece what a step with these events is going to look at, as far as that is known.
    fn read_before(
        &self,
        events: &VecDeque<Event>,
        has_room: bool,
        store: &dyn Store,
    ) -> Result<Found, StoreError> {
        let asked = events.iter().flat_map(|event| {
            let (one, more, outcome) = match event {
                Event::Request(_, request) => (request.name(), &[][..], None),
                Event::Batch(_, requests) => (None, requests.as_slice(), None),
                Event::Outcome { revision, .. } => {
                    let name = self.in_flight.name(*revision);
                    (None, &[][..], name.filter(|name| !self.kept.has(name)))
                }
            };
            let more = more.iter().filter_map(Request::name);
            one.into_iter().chain(more).chain(outcome).cloned()
        });
        let receipts = events.iter().flat_map(|event| {
            let requests = match event {
                Event::Request(_, request) => std::slice::from_ref(request),
                Event::Batch(_, requests) => requests.as_slice(),
                Event::Outcome { .. } => &[],
            };
            requests.iter().filter_map(Request::receipt)
        });
        let most = if self.paused || !has_room {
            0
        } else {
            self.in_flight.free().min(DUE_READ_BEFORE)
        };
        // Looked for only if the store asks.
        let windows = [&self.window, &self.overdue.window].into_iter();
        let due = windows.flat_map(|window| window.due_names(self.now, most));
        let shard = self.ownership.lease.shard;
        let mut names = asked.chain(receipts).chain(due);
        store.get_many(shard, &mut names, READ_BEFORE_MAX_BYTES)
    }

    fn outcome(
        &mut self,
        now: Timestamp,
        revision: Revision,
        running: &Running,
        outcome: Outcome,
        draft: &mut Draft<'_>,
    ) -> Result<(), StoreError> {
        self.suspects.ended(revision);
        let name = &running.name;
        let started = running.started_at(outcome.started, self.now.boot);
        let look_after = match outcome.verdict {
            Verdict::Held { look_after } => Some(look_after),
            _ => None,
        };
        if look_after.is_none() {
            let late = started.saturating_since(running.late_from);
            self.stats.lateness.record(late);
        } else {
            self.stats.not_made += 1;
        }
        let current = match draft.read(name) {
            Err(error) if error.is_unreadable() && !planted!(StepEndsAtDamage) => {
                self.put_aside(name, &error);
                return Ok(());
            }
            current => current?,
        };
        let current =
            current.filter(|record| record.revision == revision || planted!(OutdatedOutcomeCounts));
        let Some(mut record) = current.cloned().map(Box::new) else {
            // Removed or replaced while it ran.
            self.stats.outdated += u64::from(look_after.is_none());
            return Ok(());
        };
        if let Some(look_after) = look_after {
            self.put_back(record, running, look_after, draft);
            return Ok(());
        }
        if let Some(attempt) = record.attempts.last_mut()
            && !planted!(HandOverForgotten)
        {
            attempt.started = started;
        }
        let is_failure = matches!(outcome.verdict, Verdict::Failed { .. });
        let record = self.conclude(record, outcome, &running.held, now);
        if is_failure && record.state == State::Pending && planted!(LoseRetry) {
            draft.write(record);
            return Ok(());
        }
        self.write(draft, record);
        Ok(())
    }

    /// What becomes of a record by the outcome of its attempt.
    fn conclude(
        &mut self,
        mut record: Box<Record>,
        outcome: Outcome,
        held: &[Span],
        now: Timestamp,
    ) -> Box<Record> {
        let result = match outcome.verdict {
            Verdict::Done => AttemptResult::Done,
            Verdict::Failed { .. } | Verdict::Held { .. } => AttemptResult::Failed,
            Verdict::Stopped => AttemptResult::Stopped,
        };
        end_attempt(&mut record, now, result, outcome.detail, outcome.answer);
        record.interruptions = 0;
        match outcome.verdict {
            Verdict::Done => {
                self.stats.done += 1;
                let is_over = outcome.next == Some(NextRun::Never);
                if is_over || !self.next_run(&mut record, outcome.next) {
                    record.state = State::Done {
                        at: now,
                        keep_until: now + self.keep_done(&record.name.queue),
                    };
                } else {
                    self.held_with(&record, held);
                }
            }
            Verdict::Stopped => {
                if !planted!(StopsUncounted) {
                    self.stats.stopped += 1;
                }
                self.bury(&mut record, now, DeadReason::Stopped);
            }
            // What was not made was put back.
            Verdict::Held { .. } => {}
            Verdict::Failed { retry_after } => {
                self.stats.failed += 1;
                record.failures = record.failures.saturating_add(1);
                // A wait is a delay.
                let boot = self.now.boot;
                let to = DueClock::Boot;
                record.first_due = self.now.convert(record.first_due, record.clock, to);
                record.clock = to;
                let not_before = retry_after.map(|wait| boot + wait.min(RETRY_AFTER_MAX));
                let retry = self.retry_after_failure(&record);
                let next = policy::next(
                    &retry,
                    record.failures,
                    record.first_due,
                    boot,
                    not_before,
                    &mut self.random,
                );
                if planted!(RulesKept) {
                    record.policy = retry.into_owned();
                }
                let asked = outcome
                    .retry_in
                    .map(|delay| boot + delay.min(policy::DELAY_MAX));
                match next {
                    policy::Next::Retry(due) => {
                        record.due = asked.unwrap_or(due);
                        record.state = State::Pending;
                        record.revision = self.next_revision();
                        if record.recurring.is_some() {
                            self.holds.note_held(record.revision, held.to_vec());
                        }
                        if planted!(NewIdForRetry) {
                            record.id.set = record.revision;
                        }
                    }
                    policy::Next::Exhausted => {
                        self.give_up(&mut record, now, DeadReason::Exhausted);
                        self.held_with(&record, held);
                    }
                    policy::Next::TooOld => {
                        self.give_up(&mut record, now, DeadReason::TooOld);
                        self.held_with(&record, held);
                    }
                }
            }
        }
        record
    }

    fn start_due(
        &mut self,
        draft: &mut Draft<'_>,
        starts: &mut Vec<(DueClock, Attempt)>,
    ) -> Result<(), StoreError> {
        let mut reach = self.now;
        if planted!(FireEarly) {
            reach.wall = reach.wall + Duration::from_micros(1);
            reach.boot = reach.boot + Duration::from_micros(1);
        }
        self.points = 0;
        let mut share = Share {
            left: SETTLED_MAX,
            bytes_end: draft.bytes() + STARTED_MAX_BYTES,
        };
        self.start_parked(&mut share, draft, starts)?;
        // What is due now comes before what was overdue at the start, so that a long absence
        // makes only itself late; but not always, so that its turn comes.
        let mut is_caught_up = false;
        while !self.in_flight.is_full() && share.has_room(draft, self.points) {
            if self.ahead_of_overdue >= OVERDUE_SHARE && !is_caught_up {
                is_caught_up = self.start_overdue(1, &mut share, draft, starts)? == 0;
                continue;
            }
            if self.ahead_of_suspects >= OVERDUE_SHARE {
                self.start_suspects(1, &mut share, draft, starts)?;
                continue;
            }
            let gate = gate!(self);
            let Some(entry) = self.window.take(reach, |queue| gate.may(queue)) else {
                break;
            };
            let since = self.holds.since(&entry.name.queue);
            match self.attend(&entry, since, From::Window, draft, starts)? {
                Attended::Started => {
                    self.ahead_of_overdue += 1;
                    self.ahead_of_suspects += 1;
                }
                Attended::Settled | Attended::Parked => share.left -= 1,
                Attended::Nothing => {}
            }
        }
        self.start_overdue(usize::MAX, &mut share, draft, starts)?;
        self.start_suspects(usize::MAX, &mut share, draft, starts)?;
        // Those for whose flow others waited before them.
        self.start_parked(&mut share, draft, starts)?;
        self.leave_flows();
        Ok(())
    }

    /// Starts or settles at most `most` of what was overdue, as the rate allows. Says how many.
    fn start_overdue(
        &mut self,
        most: usize,
        share: &mut Share,
        draft: &mut Draft<'_>,
        starts: &mut Vec<(DueClock, Attempt)>,
    ) -> Result<usize, StoreError> {
        let mut done = 0;
        while !self.in_flight.is_full() && share.has_room(draft, self.points) && done < most {
            let gate = gate!(self);
            let taken = self.overdue.take(self.now, |queue| gate.may(queue));
            let Some(entry) = taken else {
                break;
            };
            let since = self.rated_since(&entry.name.queue);
            match self.attend(&entry, since, From::Overdue, draft, starts)? {
                Attended::Started => {
                    self.ahead_of_suspects += 1;
                    let among = self.member.catch_up(true);
                    self.overdue.started(self.now, among);
                    self.stats.caught_up_to = Some(entry.wake.at);
                }
                Attended::Settled | Attended::Parked => share.left -= 1,
                Attended::Nothing => continue,
            }
            self.ahead_of_overdue = 0;
            done += 1;
        }
        Ok(done)
    }

    /// Since when nothing of this queue could start that starts at the rate of what was overdue.
    fn rated_since(&self, queue: &QueueName) -> Option<Timestamp> {
        let places = self.holds.since(queue);
        Some(places.map_or(self.overdue.since, |since| since.min(self.overdue.since)))
    }

    /// Does what the record behind `entry` needs, if it still is what the entry says. It could not
    /// start `since` that time of the boot clock.
    fn attend(
        &mut self,
        entry: &DueEntry,
        since: Option<Timestamp>,
        from: From,
        draft: &mut Draft<'_>,
        starts: &mut Vec<(DueClock, Attempt)>,
    ) -> Result<Attended, StoreError> {
        let now = self.now.wall;
        let record = match draft.read(&entry.name) {
            Err(error) if error.is_unreadable() && !planted!(StepEndsAtDamage) => {
                self.put_aside(&entry.name, &error);
                return Ok(Attended::Settled);
            }
            record => record?,
        };
        self.is_mended(&entry.name);
        // An attempt leaves the revision as it is, so the time must be the same as well.
        let current = record
            .filter(|record| record.wake() == Some(entry.wake) || planted!(MoveKeepsOldDeadline));
        let Some(mut record) = current.cloned().map(Box::new) else {
            return Ok(Attended::Nothing);
        };
        let is_asked_for = record.is_untried() && record.recurring.is_none();
        match record.state {
            State::Dead { .. } if planted!(DeadStayForGood) => return Ok(Attended::Nothing),
            State::Dead { .. } if is_kept_for_good(&record.name.queue) => {
                return Ok(Attended::Nothing);
            }
            State::Done { .. } | State::Dead { .. } => {
                draft.remove(&record.name);
                let is_counted = !record.name.queue.is_reserved() || planted!(AuditCounted);
                self.stats.forgotten += u64::from(is_counted);
                return Ok(Attended::Settled);
            }
            State::Delivering if self.in_flight.contains(record.revision) => {
                return Ok(Attended::Nothing);
            }
            State::Delivering if record.leased_until().is_some() => {
                if self.lose_lease(&mut record) {
                    self.write(draft, record);
                    return Ok(Attended::Settled);
                }
            }
            State::Delivering => {
                // Claimed by a process that ended before the outcome was recorded.
                if planted!(ForgetInterrupted) {
                    return Ok(Attended::Nothing);
                }
                self.stats.interrupted += 1;
                let detail = "the process ended during the attempt".to_owned();
                end_attempt(&mut record, now, AttemptResult::Interrupted, detail, None);
                record.interruptions += 1;
                if record.interruptions >= self.config.max_interruptions {
                    self.give_up(&mut record, now, DeadReason::Interrupted);
                    self.write(draft, record);
                    return Ok(Attended::Settled);
                }
            }
            State::Pending if record.is_untried() => {
                if self.pass_over(&mut record, now) {
                    self.write(draft, record);
                    return Ok(Attended::Settled);
                }
                let waited = record.attempts.last().and_then(|last| last.ended.as_ref());
                let waited = waited.is_some_and(|end| end.at < self.opened);
                if let Some(recurring) = &mut record.recurring {
                    let by = recurring.recurrence.clock();
                    recurring.start(self.now.by(by), waited);
                }
            }
            State::Pending => {
                if planted!(WaitingCountsAsInterrupted) && record.interruptions > 0 {
                    record.interruptions += 1;
                }
            }
        }
        let by = self.now.by(record.clock);
        // The time for which it could not start for its flow, or was held by its handler, uses up no age.
        let parked = match from {
            From::Parked { .. } => since.map(|since| self.now.boot.saturating_since(since)),
            From::Window | From::Overdue => None,
        };
        let parked = parked.map_or(Duration::ZERO, |it| it.min(by.saturating_since(record.due)));
        let counts_from = record.first_due + parked;
        let too_old = record.failures > 0 && {
            let retry = self.retry_of_due(&record);
            policy::is_too_old(&retry, record.failures, counts_from, by)
        };
        if too_old || record.attempt == u32::MAX {
            if too_old {
                self.give_up(&mut record, now, DeadReason::TooOld);
            } else {
                self.bury(&mut record, now, DeadReason::Exhausted);
            }
            self.write(draft, record);
            return Ok(Attended::Settled);
        }
        if self.has_to_wait(&record) {
            return Ok(self.hold_back(record, draft));
        }
        let route = self.route(&record);
        let (priority, is_leased) = (route.priority, route.lease.is_some());
        let flows = route.into_flows();
        let taken = self.take_room(&record.name.queue, is_leased, &flows);
        match taken {
            Ok(lease) => {
                self.parked.look_at(&flows);
                let (deadline, mut ageless) = (record.first_due, Duration::ZERO);
                if record.failures > 0 {
                    record.first_due = counts_from;
                } else if lease.is_none() {
                    (record.first_due, ageless) = (counts_from, parked);
                }
                let claim = Claim {
                    flows,
                    lease,
                    asked_for: is_asked_for.then_some(deadline),
                    since,
                    ageless,
                };
                self.claim(record, claim, draft, starts);
                Ok(Attended::Started)
            }
            Err(Lacking::Place) => {
                // Another scheduler was faster: it waits for the next place.
                if let (From::Parked { .. }, Some(since)) = (from, since) {
                    self.holds
                        .note_held(record.revision, vec![(since, self.now.boot)]);
                }
                self.admit(record.wake_clock(), entry.clone());
                Ok(Attended::Nothing)
            }
            Err(Lacking::Flow(at, may)) => {
                let flow = &flows[at];
                let parked = self.park((flow, priority), from, since, record, draft);
                let until = match may {
                    May::At(until) => Some(until),
                    May::Now | May::Later => None,
                };
                self.parked.sleep(flow, until);
                Ok(parked)
            }
        }
    }

    /// Takes a place for an attempt, or room for one that is leased, and then says for how long.
    fn take_room(
        &self,
        queue: &QueueName,
        is_leased: bool,
        flows: &[Flow],
    ) -> Result<Option<Duration>, Lacking> {
        let (rules, boot) = (self.config.flows.as_deref(), self.now.boot);
        if !is_leased {
            let taken = self.in_flight.take_place(queue, flows, rules, boot);
            return taken.map(|()| None);
        }
        // Leases leave half of the memory to attempts that have places.
        if self.leases.bytes() >= self.in_flight.most_bytes() / 2 && self.leases.len() > 0 {
            return Err(Lacking::Flow(0, May::At(boot + ROOM_PAUSE)));
        }
        let leased = self.in_flight.take_lease(flows, rules, boot);
        leased.map(Some)
    }

    /// Claims an attempt of a timer that has its place: the record says so before the attempt starts.
    fn claim(
        &mut self,
        mut record: Box<Record>,
        claim: Claim,
        draft: &mut Draft<'_>,
        starts: &mut Vec<(DueClock, Attempt)>,
    ) {
        let Claim {
            flows,
            lease,
            asked_for,
            since,
            ageless,
        } = claim;
        let clock = record.clock;
        let by = self.now.by(clock);
        let early = planted!(FireEarly);
        let moved = planted!(MoveKeepsOldDeadline);
        assert!(
            record.due <= by || early || moved,
            "nothing starts before its deadline"
        );
        let waited = by.saturating_since(record.due);
        let boot = self.now.boot;
        let queue = &record.name.queue;
        let held = self.holds.held(queue, record.revision, since, waited, boot);
        let (held, spans) = if planted!(HeldCountsAsLate) {
            (Duration::ZERO, Vec::new())
        } else {
            held
        };
        if !held.is_zero() {
            self.stats.held.record(held);
        }
        record.state = State::Delivering;
        record.attempt += 1;
        if record.attempts.len() >= Record::ATTEMPTS_KEPT {
            record.attempts.remove(0);
        }
        record.attempts.push(AttemptRecord {
            number: record.attempt,
            due: record.due,
            started: by,
            held,
            ended: None,
        });
        let due = record.due;
        if let Some(lease) = lease {
            self.lease_out(&mut record, lease);
        }
        let attempt = Attempt {
            id: record.id,
            name: record.name.clone(),
            revision: record.revision,
            number: record.attempt,
            due,
            deadline: asked_for.unwrap_or(due),
            started: by,
            held,
            lease: lease.and(record.leased_until()),
            run: record.recurring.as_ref().map(|recurring| Run {
                number: recurring.run,
                nominal: recurring.nominal,
            }),
            fence: self.ownership.lease.fence,
            payload: record.payload.clone(),
            origin: Origin::default(),
        };
        self.stats.attempts += 1;
        if lease.is_some() {
            let late = by.saturating_since(due + held);
            self.stats.lateness.record(late);
            self.stats.leases += 1;
            starts.push((clock, attempt));
            self.leases.note(record.revision, flows);
            self.admit_lease(&record);
            draft.write(record);
            return;
        }
        starts.push((clock, attempt));
        let running = Running {
            name: record.name.clone(),
            flows,
            late_from: record.due + held,
            started: by,
            boot,
            changes: self.member.budget().changes(),
            held: spans,
            ageless,
        };
        self.in_flight.note(record.revision, running);
        self.suspects.started(record.revision, record.interruptions);
        draft.write(record);
    }

    /// Passes over a timer, or a run of one, that is too late for its first attempt. Says whether
    /// the record has changed.
    fn pass_over(&mut self, record: &mut Record, now: Timestamp) -> bool {
        let missed = self.missed_now(record);
        let Some(mut recurring) = record.recurring.take() else {
            let too_old = match missed {
                Missed::SkipIfOlderThan(age) => self.now.by(record.clock) > record.first_due + age,
                Missed::Fire | Missed::Collapse => false,
            };
            if too_old {
                self.stats.missed += 1;
                self.bury(record, now, DeadReason::Missed);
            }
            return too_old;
        };
        let before = recurring.missed;
        let by = self.now.by(recurring.recurrence.clock());
        let judged = recurring.judge(record.id, by, missed);
        let passed = recurring.missed.saturating_sub(before);
        self.stats.missed += passed;
        self.counted(&recurring.recurrence, passed);
        record.recurring = Some(recurring);
        match judged {
            recurrence::Overdue::Start => return false,
            recurrence::Overdue::Pass(due) => self.await_run(record, due),
            recurrence::Overdue::Over => self.bury(record, now, DeadReason::Missed),
        }
        true
    }

    /// Notes that so many runs were counted that were not made.
    fn counted(&mut self, recurrence: &Recurrence, runs: u64) {
        if recurrence.schedule.is_counted_by_point() {
            self.points += runs;
        }
    }

    /// Ends the run of a recurring timer and lets it wait for the next, which its receiver may have
    /// asked for. Says whether there is one.
    fn next_run(&mut self, record: &mut Record, asked: Option<NextRun>) -> bool {
        let Some(mut recurring) = record.recurring.take() else {
            return false;
        };
        let rules = (self.missed_now(record), self.overlap_now(record));
        let (missed, overlapped) = (recurring.missed, recurring.overlapped);
        let by = self.now.by(recurring.recurrence.clock());
        let asked = match asked {
            Some(NextRun::In(delay)) => recurring.end_as_asked(by, delay),
            Some(NextRun::Never) | None => None,
        };
        let ended = asked.unwrap_or_else(|| recurring.end(record.id, by, rules));
        let missed = recurring.missed.saturating_sub(missed);
        let overlapped = recurring.overlapped.saturating_sub(overlapped);
        self.stats.missed += missed;
        self.stats.overlapped += overlapped;
        self.counted(&recurring.recurrence, missed.saturating_add(overlapped));
        record.recurring = Some(recurring);
        let Ended::Next(due) = ended else {
            return false;
        };
        self.await_run(record, due);
        true
    }

    fn await_run(&mut self, record: &mut Record, due: Timestamp) {
        record.state = State::Pending;
        record.revision = self.next_revision();
        // A retry of the run before went by the boot clock.
        if let Some(recurring) = &record.recurring {
            record.clock = recurring.recurrence.clock();
        }
        (record.due, record.first_due) = (due, due);
        let failures = if planted!(FailuresOutliveRun) {
            record.failures
        } else {
            0
        };
        (record.failures, record.interruptions) = (failures, 0);
    }

    /// Gives up a delivery: all there is of a timer for one time, one run of a recurring one.
    fn give_up(&mut self, record: &mut Record, now: Timestamp, reason: DeadReason) {
        if let Some(recurring) = &mut record.recurring {
            recurring.dead += 1;
            self.stats.runs_dead += 1;
        }
        if !self.next_run(record, None) {
            self.bury(record, now, reason);
        }
    }

    fn bury(&mut self, record: &mut Record, now: Timestamp, reason: DeadReason) {
        self.stats.dead += 1;
        let dead = self.keep(&record.name.queue).dead;
        let dead = dead.filter(|_| !planted!(DeadKeptForGood));
        record.state = State::Dead {
            at: now,
            reason,
            keep_until: dead.map(|dead| now + dead),
        };
    }

    /// How long a timer of the queue is kept that ends now.
    fn keep(&self, queue: &QueueName) -> Keep {
        let retention = self.config.retention.as_deref();
        retention.map_or_else(Keep::default, |retention| retention.keep(queue))
    }

    fn keep_done(&self, queue: &QueueName) -> Duration {
        let longest = self.config.keep_done;
        let done = self
            .keep(queue)
            .done
            .filter(|_| !planted!(DoneKeptAsOthers));
        // A store may have made its tables for that time.
        done.map_or(longest, |done| {
            if planted!(DoneKeptTooLong) {
                done
            } else {
                done.min(longest)
            }
        })
    }

    /// Writes a record and keeps the window in step with it.
    fn write(&mut self, draft: &mut Draft<'_>, record: Box<Record>) {
        if let Some(old) = draft.cached(&record.name)
            && old.revision != record.revision
        {
            self.forget(old);
        }
        let kind = record.state.kind();
        let is_left = kind == StateKind::Done && self.ownership.forgets_done
            || kind == StateKind::Dead && planted!(DeadWakeNobody)
            || is_kept_for_good(&record.name.queue);
        if let Some(wake) = record.wake().filter(|_| !is_left) {
            let (name, kind) = (record.name.clone(), Some(kind));
            self.admit(record.wake_clock(), DueEntry { wake, name, kind });
        }
        draft.write(record);
    }

    /// Drops what is known of a record that has changed or will.
    fn forget(&mut self, record: &Record) {
        let Some(wake) = record.wake() else {
            return;
        };
        if let Some(put_off) = &mut self.put_off {
            put_off.push(Put::Off(
                record.wake_clock(),
                wake,
                record.name.queue.clone(),
            ));
            return;
        }
        self.take_off(record.wake_clock(), wake, &record.name.queue);
    }

    fn take_off(&mut self, clock: DueClock, wake: Wake, queue: &QueueName) {
        self.end_lease(wake.revision);
        self.suspects.forget(wake.revision);
        self.parked.forget(wake.revision);
        self.window.forget(clock, wake, queue);
        self.overdue.window.forget(clock, wake, queue);
    }

    fn admit(&mut self, clock: DueClock, entry: DueEntry) {
        if let Some(put_off) = &mut self.put_off {
            put_off.push(Put::Admit(clock, entry));
            return;
        }
        // Of missed runs in a row, all but the first are written after the opening.
        if !self.overdue.admit(clock, &entry) {
            self.window.admit(clock, entry);
        }
    }

    fn next_revision(&mut self) -> Revision {
        let revision = self.next_revision;
        self.next_revision = Revision(revision.0 + 1);
        revision
    }
}

/// How an attempt is claimed.
struct Claim {
    /// The flows in which it has room.
    flows: Vec<Flow>,
    /// For how long it is leased, if it is.
    lease: Option<Duration>,
    /// The deadline that was asked for, of a first attempt.
    asked_for: Option<Timestamp>,
    /// Since when it could not start, by the boot clock.
    since: Option<Timestamp>,
    /// For how long a first attempt could not start for its flow: that uses up no age.
    ageless: Duration,
}

/// Only a planted mistake keeps what the engine stores for itself for good.
fn is_kept_for_good(queue: &QueueName) -> bool {
    if planted!(ReceiptKeptForGood) {
        return receipt::queue() == Some(queue);
    }
    if planted!(AuditKeptForGood) {
        return audit::queue() == Some(queue);
    }
    false
}

/// Whether a request makes room, or says what came of an attempt, as the outcomes of those that run do: it is taken on
/// a full disk.
fn needs_no_room(request: &Request) -> bool {
    matches!(
        request.plain(),
        Request::Remove { .. }
            | Request::Settle { .. }
            | Request::Release { .. }
            | Request::AsRead {
                action: JobAction::Remove,
                ..
            }
    )
}

/// What attending to an entry came to.
#[derive(PartialEq, Eq)]
enum Attended {
    Started,
    /// Nothing starts, and the record has changed or is gone.
    Settled,
    /// It waits for a flow.
    Parked,
    Nothing,
}

/// What is left of a step for what comes due.
struct Share {
    /// How many may be settled.
    left: usize,
    bytes_end: usize,
}

impl Share {
    fn has_room(&self, draft: &Draft<'_>, points: u64) -> bool {
        self.left > 0 && points < POINTS_MAX && draft.bytes() < self.bytes_end
    }
}

fn end_attempt(
    record: &mut Record,
    at: Timestamp,
    result: AttemptResult,
    mut detail: String,
    answer: Option<Answer>,
) {
    if detail.len() > Record::DETAIL_MAX_BYTES {
        let end = detail.floor_char_boundary(Record::DETAIL_MAX_BYTES);
        detail.truncate(end);
    }
    if let Some(last) = record.attempts.last_mut() {
        last.ended = Some(AttemptEnd {
            at,
            result,
            detail,
            answer,
        });
    }
    keep_the_newest(&mut record.attempts);
}
