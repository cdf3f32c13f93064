//! What decides: requests, outcomes and the time go in; changes, answers and attempts come
//! out. No thread, no clock, no waiting; it reads through the [`Store`] seam and draws
//! from a seeded generator, so the same inputs give the same outputs.
//!
//! One step is one commit. The caller makes the changes durable before it lets any answer
//! or attempt of that step out; see [`Engine`](crate::Engine), which does.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel::Timestamp;

use crate::random::Random;
use crate::store::{Before, Change, DueEntry, Ownership, Shard, Store, StoreError};
use crate::window::{Backlog, Window};
use crate::{
    Attempt, AttemptEnd, AttemptRecord, AttemptResult, Config, DeadReason, Due, DueClock, Outcome,
    Precondition, Record, Request, Response, Revision, Shift, State, Stats, TimerError, TimerId,
    TimerName, Verdict, Was, policy,
};

/// The longest that a receiver's Retry-After is followed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);

/// How many done timers one step forgets at the most.
const FORGET_MAX: usize = 1_024;

/// After so many starts of what is due now, one of what was overdue at the start goes first.
const BACKLOG_SHARE: usize = 8;

/// Whether a planted bug is on; always false without the feature.
macro_rules! planted {
    ($config:expr, $bug:ident) => {{
        #[cfg(feature = "planted-bugs")]
        let on = $config.planted_bug == Some(crate::PlantedBug::$bug);
        #[cfg(not(feature = "planted-bugs"))]
        let on = {
            let _ = &$config;
            false
        };
        on
    }};
}
pub(crate) use planted;

/// Names a request until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What happens to a scheduler.
#[derive(Debug)]
pub enum Event {
    /// Somebody asks for something.
    Request(Ticket, Request),
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
    pub(crate) starts: Vec<Attempt>,
    /// The outcomes it took, and whose they are.
    outcomes: Vec<(Revision, TimerName, Outcome)>,
    /// What had been counted before it.
    before: Stats,
}

/// The scheduler of one shard.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: Config,
    ownership: Ownership,
    next_revision: Revision,
    random: Random,
    window: Window,
    backlog: Backlog,
    /// The time of the last step.
    last: Timestamp,
    /// Starts from the window since the last one from the backlog.
    ahead_of_backlog: usize,
    in_flight: BTreeMap<Revision, TimerName>,
    paused: bool,
    /// The store has no room: nothing starts before this time.
    held_until: Option<Timestamp>,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler that begins at `now` with what the store holds. What was due before
    /// `now` is the backlog.
    pub(crate) fn new(ownership: Ownership, now: Timestamp, mut config: Config) -> Self {
        config.max_in_flight = config.max_in_flight.max(1);
        Self {
            ownership,
            next_revision: Revision(ownership.last_revision.0 + 1),
            random: Random::new(config.seed),
            window: Window::new(now, &config),
            last: now,
            ahead_of_backlog: 0,
            backlog: Backlog::new(now, config.catch_up_per_second),
            in_flight: BTreeMap::new(),
            paused: false,
            held_until: None,
            stats: Stats::default(),
            config,
        }
    }

    pub(crate) fn ownership(&self) -> Ownership {
        self.ownership
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            refills: self.window.refills,
            rebuilds: self.window.rebuilds,
            in_window: self.window.len(),
            in_flight: self.in_flight.len(),
            ..self.stats.clone()
        }
    }

    /// Starts no attempt from now on.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    pub(crate) fn note_started(&mut self, lateness: Duration) {
        self.stats.lateness.record(lateness);
    }

    /// When to step again if nothing happens before: never later than the next deadline, but
    /// while the store has no room.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        self.next_start().max(self.held_until)
    }

    /// When the store is asked again whether it has room; `None` if it had.
    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        self.held_until
    }

    /// The step could not be committed for want of room, and is void: as if it had not been,
    /// but that its revisions are used up. Returns the outcomes, for a later step.
    pub(crate) fn undo(&mut self, now: Timestamp, step: Step) -> Vec<Event> {
        for attempt in step.starts {
            self.in_flight.remove(&attempt.revision);
        }
        let answers = step.answers.len() as u64;
        let outcomes = step.outcomes.into_iter();
        let outcomes = outcomes.map(|(revision, name, outcome)| {
            self.in_flight.insert(revision, name);
            Event::Outcome { revision, outcome }
        });
        let outcomes = outcomes.collect();
        self.stats = step.before;
        self.stats.refused += answers;
        // What it took out of the window is in the store as it was.
        self.window.restart(now);
        self.backlog = Backlog::new(now, self.config.catch_up_per_second);
        self.held_until = Some(now + ROOM_PAUSE);
        outcomes
    }

    fn next_start(&self) -> Option<Timestamp> {
        if self.paused {
            return None;
        }
        if self.window.wants_refill() {
            return Some(Timestamp::EPOCH);
        }
        if self.in_flight.len() >= self.config.max_in_flight {
            return None; // an outcome comes first
        }
        let soonest = [self.window.next_wake(), self.backlog.next_wake()];
        let wake = soonest.into_iter().flatten().min();
        if planted!(self.config, WakeLate) {
            return wake.map(|at| at + Duration::from_secs(10));
        }
        wake
    }

    /// Takes `events` in order, then starts what is due at `now`.
    ///
    /// # Errors
    /// If the store cannot be read where going on would lose a timer. Nothing of the step
    /// may then be let out, and the scheduler is of no more use.
    pub(crate) fn step(
        &mut self,
        now: Timestamp,
        events: Vec<Event>,
        store: &dyn Store,
    ) -> Result<Step, StoreError> {
        let shard = self.ownership.lease.shard;
        // First of all, since only now does the store hold every change made so far.
        if !self.paused {
            if now < self.last {
                // The wall clock was set back: what had passed is ahead again. Begin anew, as
                // after a restart, but for what is in flight.
                self.window.restart(now);
                self.backlog = Backlog::new(now, self.config.catch_up_per_second);
            }
            self.last = now;
            let in_flight = &self.in_flight;
            self.window
                .refill(store, shard, |revision| in_flight.contains_key(&revision))?;
            self.backlog.refill(store, shard)?;
        }
        let next_before = self.next_revision;
        let mut draft = Draft::new(store, shard);
        let mut step = Step {
            before: self.stats.clone(),
            ..Step::default()
        };
        let has_room = store.has_room();
        self.held_until = (!has_room).then(|| now + ROOM_PAUSE);
        for event in events {
            match event {
                Event::Request(ticket, request) => {
                    let is_urgent = matches!(request, Request::Remove { .. });
                    let answer = if has_room || is_urgent {
                        self.answer(now, request, &mut draft)
                    } else {
                        Err(TimerError::StorageFull)
                    };
                    self.stats.refused += u64::from(answer.is_err());
                    step.answers.push((ticket, answer));
                }
                Event::Outcome { revision, outcome } => {
                    if let Some(name) = self.in_flight.get(&revision) {
                        let kept = (revision, name.clone(), outcome.clone());
                        step.outcomes.push(kept);
                    }
                    self.outcome(now, revision, outcome, &mut draft)?;
                }
            }
        }
        // What starts has to be recorded twice: that is not for the last of the room.
        if !self.paused && has_room {
            self.start_due(now, &mut draft, &mut step.starts)?;
        }
        step.changes = draft.into_changes();
        let given = Revision(self.next_revision.0 - 1);
        let shown = |change: &Change| matches!(change, Change::Put { record: r, .. } if r.revision == given);
        if self.next_revision > next_before && !step.changes.iter().any(shown) {
            step.changes.push(Change::Given(given));
        }
        self.stats.commits += u64::from(!step.changes.is_empty());
        self.stats.changes += step.changes.len() as u64;
        Ok(step)
    }

    fn answer(
        &mut self,
        now: Timestamp,
        request: Request,
        draft: &mut Draft<'_>,
    ) -> Result<Response, TimerError> {
        match request {
            Request::Set {
                name,
                due,
                policy,
                payload,
                precondition,
            } => {
                policy.validate()?;
                let limit = self.config.max_payload;
                if payload.len() > limit {
                    let bytes = payload.len();
                    return Err(TimerError::PayloadTooLarge { bytes, limit });
                }
                let due = due.resolve(now)?;
                let old = draft.read(&name)?;
                check(precondition, old)?;
                let replaced = old.map(|record| record.state.kind());
                let revision = self.next_revision();
                let id = TimerId {
                    store: self.ownership.store_id,
                    set: revision,
                };
                self.write(
                    draft,
                    Record {
                        name,
                        id,
                        revision,
                        state: State::Pending,
                        created: now,
                        due,
                        clock: DueClock::Wall,
                        first_due: due,
                        policy,
                        failures: 0,
                        interruptions: 0,
                        attempt: 0,
                        attempts: Vec::new(),
                        payload,
                    },
                );
                self.stats.set += 1;
                Ok(Response::Set {
                    id,
                    revision,
                    due,
                    replaced,
                })
            }
            Request::Move {
                name,
                shift,
                precondition,
            } => {
                let mut record = draft.existing(&name)?;
                check(precondition, Some(&record))?;
                must_be_pending(&record)?;
                let due = match shift {
                    Shift::To(due) => due,
                    Shift::Later(span) => Due::At(record.due + span),
                    Shift::Sooner(span) => Due::At(record.due.saturating_sub(span)),
                };
                let due = due.resolve(now)?;
                if record.failures == 0 {
                    record.first_due = due;
                }
                self.stats.moved += 1;
                Ok(self.rearm(draft, record, due))
            }
            Request::Remove {
                name,
                precondition,
                only_pending,
            } => {
                let record = draft.existing(&name)?;
                check(precondition, Some(&record))?;
                if only_pending {
                    must_be_pending(&record)?;
                }
                let was = match record.state {
                    State::Pending => Was::Pending { due: record.due },
                    State::Delivering => Was::Delivering {
                        attempt: record.attempt,
                    },
                    State::Dead { .. } => Was::Dead,
                    State::Done { at, .. } => return Err(TimerError::Gone { at }),
                };
                self.window.forget(record.revision);
                if !planted!(self.config, KeepRemoved) {
                    draft.remove(name);
                }
                self.stats.removed += 1;
                Ok(Response::Removed(was))
            }
            Request::Fire { name } => {
                let mut record = draft.existing(&name)?;
                must_be_pending(&record)?;
                if record.failures == 0 {
                    record.first_due = now;
                }
                self.stats.fired_by_request += 1;
                Ok(self.rearm(draft, record, now))
            }
            Request::Revive { name, due } => {
                let mut record = draft.existing(&name)?;
                if !matches!(record.state, State::Dead { .. }) {
                    return Err(refusal(&record));
                }
                let due = due.resolve(now)?;
                record.state = State::Pending;
                record.first_due = due;
                record.failures = 0;
                record.interruptions = 0;
                self.stats.revived += 1;
                Ok(self.rearm(draft, record, due))
            }
        }
    }

    /// Gives a pending record another deadline, as a new insertion.
    fn rearm(&mut self, draft: &mut Draft<'_>, mut record: Record, due: Timestamp) -> Response {
        let old_due = record.due;
        if !planted!(self.config, MoveKeepsOldDeadline) {
            self.window.forget(record.revision);
            record.revision = self.next_revision();
        }
        record.due = due;
        let revision = record.revision;
        self.write(draft, record);
        Response::Moved {
            revision,
            old_due,
            due,
        }
    }

    fn outcome(
        &mut self,
        now: Timestamp,
        revision: Revision,
        outcome: Outcome,
        draft: &mut Draft<'_>,
    ) -> Result<(), StoreError> {
        let Some(name) = self.in_flight.remove(&revision) else {
            debug_assert!(false, "an outcome belongs to an attempt in flight");
            return Ok(());
        };
        let current = draft.read(&name)?.filter(|record| {
            record.revision == revision || planted!(self.config, OutdatedOutcomeCounts)
        });
        let Some(mut record) = current.cloned() else {
            self.stats.outdated += 1; // removed or replaced while it ran
            return Ok(());
        };
        let result = match outcome.verdict {
            Verdict::Done => AttemptResult::Done,
            Verdict::Failed { .. } => AttemptResult::Failed,
            Verdict::Stopped => AttemptResult::Stopped,
        };
        end_attempt(&mut record, now, result, outcome.detail);
        record.interruptions = 0;
        match outcome.verdict {
            Verdict::Done => {
                self.stats.done += 1;
                record.state = State::Done {
                    at: now,
                    keep_until: now + self.config.keep_done,
                };
            }
            Verdict::Stopped => self.bury(&mut record, now, DeadReason::Stopped),
            Verdict::Failed { retry_after } => {
                self.stats.failed += 1;
                record.failures = record.failures.saturating_add(1);
                let not_before = retry_after.map(|wait| now + wait.min(RETRY_AFTER_MAX));
                let next = record.policy.next(
                    record.failures,
                    record.first_due,
                    now,
                    not_before,
                    &mut self.random,
                );
                match next {
                    policy::Next::Retry(due) => {
                        record.due = due;
                        record.state = State::Pending;
                        record.revision = self.next_revision();
                        if planted!(self.config, NewIdForRetry) {
                            record.id.set = record.revision;
                        }
                        if planted!(self.config, LoseRetry) {
                            draft.write(record);
                            return Ok(());
                        }
                    }
                    policy::Next::Exhausted => {
                        self.bury(&mut record, now, DeadReason::Exhausted);
                    }
                    policy::Next::TooOld => self.bury(&mut record, now, DeadReason::TooOld),
                }
            }
        }
        self.write(draft, record);
        Ok(())
    }

    fn start_due(
        &mut self,
        now: Timestamp,
        draft: &mut Draft<'_>,
        starts: &mut Vec<Attempt>,
    ) -> Result<(), StoreError> {
        let reach = if planted!(self.config, FireEarly) {
            now + Duration::from_micros(1)
        } else {
            now
        };
        let mut forgotten = 0;
        // What is due now comes before what was overdue at the start, so that a long backlog
        // makes only itself late; but not always, so that its turn comes.
        if self.ahead_of_backlog >= BACKLOG_SHARE {
            self.start_backlog(now, 1, &mut forgotten, draft, starts)?;
        }
        while self.in_flight.len() < self.config.max_in_flight && forgotten < FORGET_MAX {
            let Some(entry) = self.window.expire(reach) else {
                break;
            };
            match self.attend(now, &entry, draft, starts)? {
                Attended::Started => self.ahead_of_backlog += 1,
                Attended::Forgot => forgotten += 1,
                Attended::Nothing => {}
            }
        }
        self.start_backlog(now, usize::MAX, &mut forgotten, draft, starts)
    }

    /// Starts at most `most` of what was overdue, as the rate allows.
    fn start_backlog(
        &mut self,
        now: Timestamp,
        most: usize,
        forgotten: &mut usize,
        draft: &mut Draft<'_>,
        starts: &mut Vec<Attempt>,
    ) -> Result<(), StoreError> {
        let mut started = 0;
        while self.in_flight.len() < self.config.max_in_flight
            && *forgotten < FORGET_MAX
            && started < most
        {
            let Some(entry) = self.backlog.take(now) else {
                break;
            };
            match self.attend(now, &entry, draft, starts)? {
                Attended::Started => {
                    self.backlog.started(now);
                    self.ahead_of_backlog = 0;
                    started += 1;
                }
                Attended::Forgot => *forgotten += 1,
                Attended::Nothing => {}
            }
        }
        Ok(())
    }

    /// Does what the record behind `entry` needs, if it still is what the entry says.
    fn attend(
        &mut self,
        now: Timestamp,
        entry: &DueEntry,
        draft: &mut Draft<'_>,
        starts: &mut Vec<Attempt>,
    ) -> Result<Attended, StoreError> {
        let record = draft.read(&entry.name)?;
        // An attempt leaves the revision as it is, so the time must be the same as well.
        let current = record.filter(|record| {
            record.wake() == Some(entry.wake) || planted!(self.config, MoveKeepsOldDeadline)
        });
        let Some(mut record) = current.cloned() else {
            return Ok(Attended::Nothing);
        };
        match record.state {
            State::Dead { .. } => return Ok(Attended::Nothing),
            State::Done { .. } => {
                draft.remove(record.name);
                self.stats.forgotten += 1;
                return Ok(Attended::Forgot);
            }
            State::Delivering if self.in_flight.contains_key(&record.revision) => {
                return Ok(Attended::Nothing);
            }
            State::Delivering => {
                // Claimed by a process that ended before the outcome was recorded.
                if planted!(self.config, ForgetInterrupted) {
                    return Ok(Attended::Nothing);
                }
                self.stats.interrupted += 1;
                let detail = "the process ended during the attempt".to_owned();
                end_attempt(&mut record, now, AttemptResult::Interrupted, detail);
                record.interruptions += 1;
                if record.interruptions >= self.config.max_interruptions {
                    self.bury(&mut record, now, DeadReason::Interrupted);
                    self.write(draft, record);
                    return Ok(Attended::Nothing);
                }
            }
            State::Pending => {}
        }
        let too_old = record
            .policy
            .is_too_old(record.failures, record.first_due, now);
        if too_old || record.attempt == u32::MAX {
            let reason = if too_old {
                DeadReason::TooOld
            } else {
                DeadReason::Exhausted
            };
            self.bury(&mut record, now, reason);
            self.write(draft, record);
            return Ok(Attended::Nothing);
        }
        let early = planted!(self.config, FireEarly);
        let moved = planted!(self.config, MoveKeepsOldDeadline);
        assert!(
            record.due <= now || early || moved,
            "nothing starts before its deadline"
        );
        record.state = State::Delivering;
        record.attempt += 1;
        if record.attempts.len() >= Record::ATTEMPTS_KEPT {
            record.attempts.remove(0);
        }
        record.attempts.push(AttemptRecord {
            number: record.attempt,
            due: record.due,
            started: now,
            ended: None,
        });
        starts.push(Attempt {
            id: record.id,
            name: record.name.clone(),
            revision: record.revision,
            number: record.attempt,
            due: record.due,
            started: now,
            fence: self.ownership.lease.fence,
            payload: record.payload.clone(),
        });
        self.stats.attempts += 1;
        self.in_flight.insert(record.revision, record.name.clone());
        draft.write(record);
        Ok(Attended::Started)
    }

    fn bury(&mut self, record: &mut Record, now: Timestamp, reason: DeadReason) {
        self.stats.dead += 1;
        record.state = State::Dead { at: now, reason };
    }

    /// Writes a record and keeps the window in step with it.
    fn write(&mut self, draft: &mut Draft<'_>, record: Record) {
        if let Some(old) = draft.cached(&record.name)
            && old.revision != record.revision
        {
            self.window.forget(old.revision);
        }
        if let Some(wake) = record.wake() {
            self.window.admit(DueEntry {
                wake,
                name: record.name.clone(),
            });
        }
        draft.write(record);
    }

    fn next_revision(&mut self) -> Revision {
        let revision = self.next_revision;
        self.next_revision = Revision(revision.0 + 1);
        revision
    }
}

/// What attending to an entry came to.
#[derive(PartialEq, Eq)]
enum Attended {
    Started,
    Forgot,
    Nothing,
}

/// The records of one step: as the store has them, then as the step changes them.
struct Draft<'a> {
    store: &'a dyn Store,
    shard: Shard,
    records: BTreeMap<TimerName, Drafted>,
}

struct Drafted {
    record: Option<Record>,
    changed: bool,
    before: Before,
}

impl<'a> Draft<'a> {
    fn new(store: &'a dyn Store, shard: Shard) -> Self {
        Self {
            store,
            shard,
            records: BTreeMap::new(),
        }
    }

    fn read(&mut self, name: &TimerName) -> Result<Option<&Record>, StoreError> {
        if !self.records.contains_key(name) {
            let record = self.store.get(self.shard, name)?;
            let drafted = Drafted {
                before: Before::of(record.as_ref()),
                record,
                changed: false,
            };
            self.records.insert(name.clone(), drafted);
        }
        Ok(self.cached(name))
    }

    fn cached(&self, name: &TimerName) -> Option<&Record> {
        self.records.get(name)?.record.as_ref()
    }

    fn existing(&mut self, name: &TimerName) -> Result<Record, TimerError> {
        self.read(name)?.cloned().ok_or(TimerError::NotFound)
    }

    fn write(&mut self, record: Record) {
        self.draft(record.name.clone(), Some(record));
    }

    fn remove(&mut self, name: TimerName) {
        self.draft(name, None);
    }

    fn draft(&mut self, name: TimerName, record: Option<Record>) {
        let drafted = self.records.entry(name).or_insert(Drafted {
            record: None,
            changed: true,
            before: Before::Unknown,
        });
        drafted.record = record;
        drafted.changed = true;
    }

    fn into_changes(self) -> Vec<Change> {
        let changed = self.records.into_iter().filter(|(_, d)| d.changed);
        changed
            .map(
                |(name, Drafted { record, before, .. })| match record.map(Box::new) {
                    Some(record) => Change::Put { record, before },
                    None => Change::Remove { name, before },
                },
            )
            .collect()
    }
}

fn check(precondition: Precondition, record: Option<&Record>) -> Result<(), TimerError> {
    match (precondition, record) {
        (Precondition::None, _) | (Precondition::Absent, None) => Ok(()),
        (Precondition::Absent, Some(record)) => Err(TimerError::Exists {
            state: record.state.kind(),
        }),
        (Precondition::Revision(_), None) => Err(TimerError::NotFound),
        (Precondition::Revision(asked), Some(record)) if asked == record.revision => Ok(()),
        (Precondition::Revision(_), Some(record)) => Err(TimerError::Changed {
            current: record.revision,
        }),
    }
}

fn must_be_pending(record: &Record) -> Result<(), TimerError> {
    match record.state {
        State::Pending => Ok(()),
        _ => Err(refusal(record)),
    }
}

/// Why a request that needs another state is refused.
fn refusal(record: &Record) -> TimerError {
    match record.state {
        State::Done { at, .. } => TimerError::Gone { at },
        _ => TimerError::Conflict {
            state: record.state.kind(),
        },
    }
}

fn end_attempt(record: &mut Record, at: Timestamp, result: AttemptResult, mut detail: String) {
    if detail.len() > Record::DETAIL_MAX_BYTES {
        let end = detail.floor_char_boundary(Record::DETAIL_MAX_BYTES);
        detail.truncate(end);
    }
    if let Some(last) = record.attempts.last_mut() {
        last.ended = Some(AttemptEnd { at, result, detail });
    }
}
