//! The plainest model of durable timers: a map, and the rules as a reader of the documents
//! would write them. It predicts every answer and checks every attempt and every record.
//!
//! What it does not predict it accepts within bounds: the delay that jitter draws.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel::Timestamp;
use countwheel_durable::store::Fence;
use countwheel_durable::{
    Attempt, Due, DueClock, Jitter, Precondition, QueueName, Record, Request, Response,
    RetryPolicy, Revision, Shift, State, StateKind, TimerError, TimerId, TimerName, Verdict, Was,
};

/// A reading of both clocks: the wall clock, and the time line that began at its reading when
/// the process did and that no step of it touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The wall clock.
    pub wall: Timestamp,
    /// The other.
    pub boot: Timestamp,
}

impl Now {
    /// The reading of one of them.
    #[must_use]
    pub fn by(self, clock: DueClock) -> Timestamp {
        match clock {
            DueClock::Wall => self.wall,
            DueClock::Boot => self.boot,
        }
    }

    /// A time by one clock, as the other shows it now.
    #[must_use]
    pub fn convert(self, at: Timestamp, from: DueClock, to: DueClock) -> Timestamp {
        let micros = i128::from(at.as_micros()) - i128::from(self.by(from).as_micros())
            + i128::from(self.by(to).as_micros());
        Timestamp::from_micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
    }
}

fn resolve(due: Due, now: Now) -> Result<(Timestamp, DueClock), TimerError> {
    let clock = match due {
        Due::At(_) => DueClock::Wall,
        Due::In(_) => DueClock::Boot,
    };
    Ok((due.resolve(now.by(clock))?, clock))
}

/// What the model believes of every name.
#[derive(Clone, Debug)]
pub struct Model {
    timers: BTreeMap<TimerName, Timer>,
    last_revision: Revision,
    last_fence: Fence,
    keep_done: Duration,
    /// How many timers ended in which way, as sets of the sets that made them.
    pub done: u64,
    /// Timers that were given up.
    pub dead: u64,
    /// Timers that were removed or replaced.
    pub removed: u64,
    /// Timers that were set.
    pub accepted: u64,
}

/// What the model believes of one timer.
#[derive(Clone, Debug)]
struct Timer {
    /// Which set made it: what it carries as payload.
    tag: Vec<u8>,
    /// Its revision; `None` if the answer that told it was lost.
    revision: Option<Revision>,
    /// Its deadline, between these: jitter draws from a range.
    due: (Timestamp, Timestamp),
    first_due: (Timestamp, Timestamp),
    /// By which clock both are meant.
    clock: DueClock,
    policy: RetryPolicy,
    /// Its id, once an answer, an attempt or a record has shown it.
    id: Option<TimerId>,
    failures: u32,
    attempt: u32,
    state: Believed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Believed {
    Pending,
    /// An attempt of this process runs.
    Delivering,
    /// An attempt ran when the process ended.
    Interrupted,
    Done {
        at: Timestamp,
    },
    Dead,
}

impl Believed {
    fn kind(self) -> StateKind {
        match self {
            Self::Pending => StateKind::Pending,
            Self::Delivering | Self::Interrupted => StateKind::Delivering,
            Self::Done { .. } => StateKind::Done,
            Self::Dead => StateKind::Dead,
        }
    }
}

/// What is wrong, in a sentence.
pub type Verdicts<T = ()> = Result<T, String>;

macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}

impl Model {
    /// A model of an empty store that keeps done timers for `keep_done`.
    #[must_use]
    pub fn new(keep_done: Duration) -> Self {
        Self {
            timers: BTreeMap::new(),
            last_revision: Revision(0),
            last_fence: Fence(0),
            keep_done,
            done: 0,
            dead: 0,
            removed: 0,
            accepted: 0,
        }
    }

    /// How many timers still have to come to an end.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        let unfinished =
            |timer: &&Timer| !matches!(timer.state, Believed::Done { .. } | Believed::Dead);
        self.timers.values().filter(unfinished).count()
    }

    /// By when the last of them is certainly due, by the wall clock as it stands `now`.
    #[must_use]
    pub fn last_due(&self, now: Now) -> Option<Timestamp> {
        let unfinished =
            |timer: &&Timer| !matches!(timer.state, Believed::Done { .. } | Believed::Dead);
        let due = self.timers.values().filter(unfinished);
        due.map(|timer| now.convert(timer.due.1, timer.clock, DueClock::Wall))
            .max()
    }

    /// Applies a request whose answer is known, and checks the answer.
    ///
    /// # Errors
    /// If the answer is not what the rules say.
    pub fn answered(
        &mut self,
        now: Now,
        request: &Request,
        answer: &Result<Response, TimerError>,
    ) -> Verdicts {
        let name = request.name().clone();
        let expected = self.apply(now, request);
        match (answer, expected) {
            (Ok(response), Ok(expected)) => self.check_response(&name, response, expected),
            (Err(error), Err(expected)) => {
                let same = std::mem::discriminant(error) == std::mem::discriminant(&expected);
                ensure!(
                    same,
                    "{name}: refused with {error:?}, expected {expected:?}"
                );
                Ok(())
            }
            (answer, expected) => Err(format!(
                "{name}: answered {answer:?}, expected {expected:?}"
            )),
        }
    }

    /// Applies a request whose answer was lost with the process.
    pub fn unanswered(&mut self, now: Now, request: &Request) {
        // A refusal changes nothing, and that is all there is to know of it.
        if self.apply(now, request).is_ok()
            && let Some(timer) = self.timers.get_mut(request.name())
        {
            timer.revision = None;
        }
    }

    /// Notes what a look into the store shows before a request is made: a done timer may be
    /// forgotten once its retention is over, and need not be at once.
    pub fn seen(&mut self, name: &TimerName, latest: Timestamp, record: Option<&Record>) {
        match (self.timers.get_mut(name), record) {
            (Some(timer), Some(record)) => {
                timer.revision.get_or_insert(record.revision);
            }
            (Some(timer), None) => {
                if matches!(timer.state, Believed::Done { at } if latest >= at + self.keep_done) {
                    self.timers.remove(name);
                }
            }
            (None, _) => {}
        }
    }

    fn apply(&mut self, now: Now, request: &Request) -> Result<Expected, TimerError> {
        let name = request.name();
        let timer = self.timers.get_mut(name);
        let check = |precondition: Precondition, timer: Option<&Timer>| match (precondition, timer)
        {
            (Precondition::None, _) | (Precondition::Absent, None) => Ok(()),
            (Precondition::Absent, Some(timer)) => Err(TimerError::Exists {
                state: timer.state.kind(),
            }),
            (Precondition::Revision(_), None) => Err(TimerError::NotFound),
            // A client asks for a revision that it saw; one that is not known yet is newer.
            (Precondition::Revision(asked), Some(timer)) if timer.revision == Some(asked) => Ok(()),
            (Precondition::Revision(_), Some(timer)) => Err(TimerError::Changed {
                current: timer.revision.unwrap_or_default(),
            }),
        };
        let conflict = |timer: &Timer| match timer.state {
            Believed::Done { at } => TimerError::Gone { at },
            state => TimerError::Conflict {
                state: state.kind(),
            },
        };
        match request {
            Request::Set {
                due,
                policy,
                payload,
                precondition,
                ..
            } => {
                let (due, clock) = resolve(*due, now)?;
                check(*precondition, timer.as_deref())?;
                let replaced = timer.map(|timer| timer.state.kind());
                self.removed += u64::from(matches!(
                    replaced,
                    Some(StateKind::Pending | StateKind::Delivering)
                ));
                self.accepted += 1;
                let timer = Timer {
                    tag: payload.clone(),
                    revision: None,
                    due: (due, due),
                    first_due: (due, due),
                    clock,
                    policy: policy.clone(),
                    id: None,
                    failures: 0,
                    attempt: 0,
                    state: Believed::Pending,
                };
                self.timers.insert(name.clone(), timer);
                Ok(Expected::Set { due, replaced })
            }
            Request::Remove {
                precondition,
                only_pending,
                ..
            } => {
                let timer = timer.ok_or(TimerError::NotFound)?;
                check(*precondition, Some(timer))?;
                if *only_pending && timer.state != Believed::Pending {
                    return Err(conflict(timer));
                }
                let was = match timer.state {
                    Believed::Pending => Expected::WasPending { due: timer.due },
                    Believed::Delivering | Believed::Interrupted => {
                        Expected::Was(Was::Delivering {
                            attempt: timer.attempt,
                        })
                    }
                    Believed::Dead => Expected::Was(Was::Dead),
                    Believed::Done { at } => return Err(TimerError::Gone { at }),
                };
                self.removed += u64::from(timer.state != Believed::Dead);
                self.timers.remove(name);
                Ok(was)
            }
            Request::Move {
                shift,
                precondition,
                ..
            } => {
                let timer = timer.ok_or(TimerError::NotFound)?;
                check(*precondition, Some(timer))?;
                if timer.state != Believed::Pending {
                    return Err(conflict(timer));
                }
                let by = now.by(timer.clock);
                let shifted = |due: Timestamp| match *shift {
                    Shift::To(to) => resolve(to, now),
                    Shift::Later(span) => Ok((Due::At(due + span).resolve(by)?, timer.clock)),
                    Shift::Sooner(span) => {
                        let due = Due::At(due.saturating_sub(span)).resolve(by)?;
                        Ok((due, timer.clock))
                    }
                };
                let ((first, clock), (last, _)) = (shifted(timer.due.0)?, shifted(timer.due.1)?);
                timer.keep_age(now, clock);
                Ok(timer.rearm((first, last)))
            }
            Request::Fire { .. } => {
                let timer = timer.ok_or(TimerError::NotFound)?;
                if timer.state != Believed::Pending {
                    return Err(conflict(timer));
                }
                let now = now.by(timer.clock);
                Ok(timer.rearm((now, now)))
            }
            Request::Revive { due, .. } => {
                let timer = timer.ok_or(TimerError::NotFound)?;
                if timer.state != Believed::Dead {
                    return Err(conflict(timer));
                }
                let (due, clock) = resolve(*due, now)?;
                timer.clock = clock;
                timer.failures = 0;
                timer.state = Believed::Pending;
                self.accepted += 1;
                Ok(timer.rearm((due, due)))
            }
        }
    }

    fn check_response(
        &mut self,
        name: &TimerName,
        response: &Response,
        expected: Expected,
    ) -> Verdicts {
        let fresh = match response {
            Response::Set { revision, .. } | Response::Moved { revision, .. } => Some(*revision),
            Response::Removed(_) => None,
        };
        if let Some(revision) = fresh {
            let last = self.last_revision;
            ensure!(revision > last, "{name}: revision {revision} after {last}");
            self.last_revision = revision;
            if let Some(timer) = self.timers.get_mut(name) {
                timer.revision = Some(revision);
                if let Response::Set { id, .. } = response {
                    timer.id = Some(*id);
                }
            }
        }
        let holds = match (response, expected) {
            (
                Response::Set { due, replaced, .. },
                Expected::Set {
                    due: d,
                    replaced: r,
                },
            ) => *due == d && *replaced == r,
            (Response::Moved { old_due, due, .. }, Expected::Moved { old, new }) => {
                if let Some(timer) = self.timers.get_mut(name) {
                    timer.due = (*due, *due);
                    if timer.failures == 0 {
                        timer.first_due = (*due, *due);
                    }
                }
                within(*old_due, old) && within(*due, new)
            }
            (Response::Removed(Was::Pending { due }), Expected::WasPending { due: range }) => {
                within(*due, range)
            }
            (Response::Removed(was), Expected::Was(expected)) => *was == expected,
            _ => false,
        };
        ensure!(
            holds,
            "{name}: answered {response:?}, expected {expected:?}"
        );
        Ok(())
    }

    /// Checks an attempt against everything that is known of its timer, and notes it.
    ///
    /// # Errors
    /// If it should not have started, or not so.
    pub fn started(&mut self, claimed: Now, attempt: &Attempt) -> Verdicts {
        let name = &attempt.name;
        let clock = self.timers.get(name).map_or(DueClock::Wall, |t| t.clock);
        let claimed = claimed.by(clock);
        ensure!(
            attempt.started >= attempt.due && claimed >= attempt.due,
            "{name}: started at {claimed:?}, early for {:?}",
            attempt.due
        );
        let Some(timer) = self.timers.get_mut(name) else {
            return Err(format!("{name}: started, although it was removed"));
        };
        ensure!(
            timer.tag == attempt.payload,
            "{name}: started an old set that was replaced"
        );
        ensure!(
            within(attempt.due, timer.due),
            "{name}: started for {:?}, its deadline is {:?}",
            attempt.due,
            timer.due
        );
        ensure!(
            matches!(timer.state, Believed::Pending | Believed::Interrupted),
            "{name}: started while {:?}",
            timer.state
        );
        ensure!(
            attempt.number == timer.attempt + 1,
            "{name}: attempt {} after {}",
            attempt.number,
            timer.attempt
        );
        timer.is_known_as(attempt.id, name)?;
        ensure!(
            attempt.fence >= self.last_fence,
            "{name}: fence {:?} after {:?}",
            attempt.fence,
            self.last_fence
        );
        self.last_fence = attempt.fence;
        ensure!(
            !timer.is_too_old(claimed),
            "{name}: a retry at {claimed:?}, after its maximum age"
        );
        timer.attempt = attempt.number;
        timer.due = (attempt.due, attempt.due);
        timer.state = Believed::Delivering;
        if let Some(revision) = timer.revision {
            ensure!(
                revision == attempt.revision,
                "{name}: started as revision {}, it is {revision}",
                attempt.revision
            );
        }
        timer.revision = Some(attempt.revision);
        Ok(())
    }

    /// Notes the outcome of an attempt.
    pub fn ended(&mut self, now: Now, attempt: &Attempt, verdict: Verdict) {
        let Some(timer) = self.timers.get_mut(&attempt.name) else {
            return; // removed meanwhile
        };
        if timer.tag != attempt.payload || timer.state != Believed::Delivering {
            return; // replaced meanwhile
        }
        match verdict {
            Verdict::Done => {
                timer.state = Believed::Done { at: now.wall };
                self.done += 1;
            }
            Verdict::Stopped => {
                timer.state = Believed::Dead;
                self.dead += 1;
            }
            Verdict::Failed { retry_after } => {
                timer.failures += 1;
                timer.keep_age(now, DueClock::Boot);
                match timer.retry(now.boot, retry_after) {
                    Some(due) => {
                        timer.due = due;
                        timer.state = Believed::Pending;
                        timer.revision = None;
                    }
                    None => {
                        timer.state = Believed::Dead;
                        self.dead += 1;
                    }
                }
            }
        }
    }

    /// The process has ended: what was being delivered is now interrupted.
    pub fn crashed(&mut self) {
        for timer in self.timers.values_mut() {
            if timer.state == Believed::Delivering {
                timer.state = Believed::Interrupted;
            }
        }
    }

    /// Compares everything in the store with what is believed. `latest` is the highest time
    /// there ever was. `claims_at` is the time of a turn that may or may not have been
    /// committed: what was due then may be claimed.
    ///
    /// # Errors
    /// If the store holds what it must not, or lacks what it must hold.
    pub fn audit(
        &mut self,
        latest: Timestamp,
        claims_at: Option<Now>,
        records: &[Record],
    ) -> Verdicts {
        let mut found = BTreeMap::new();
        for record in records {
            let twice = found.insert(&record.name, record).is_some();
            ensure!(!twice, "{}: listed twice", record.name);
            ensure!(
                self.timers.contains_key(&record.name),
                "{}: kept as {:?}, although it was removed",
                record.name,
                record.state
            );
        }
        let keep_done = self.keep_done;
        let mut missing = Vec::new();
        let mut last_revision = self.last_revision;
        for (name, timer) in &mut self.timers {
            let Some(record) = found.get(name) else {
                match timer.state {
                    Believed::Done { at } if latest >= at + keep_done => missing.push(name.clone()),
                    state => return Err(format!("{name}: lost, it was {state:?}")),
                }
                continue;
            };
            ensure!(
                record.payload == timer.tag,
                "{name}: has the payload of another set"
            );
            timer.is_known_as(record.id, name)?;
            ensure!(record.policy == timer.policy, "{name}: has another policy");
            let numbers = record.attempts.iter().map(|attempt| attempt.number);
            ensure!(
                numbers
                    .rev()
                    .eq((1..=record.attempt).rev().take(record.attempts.len()))
                    && record.attempts.len() >= usize::from(record.attempt > 0),
                "{name}: lists {:?} of {} attempts",
                record.attempts,
                record.attempt
            );
            ensure!(
                record.failures == timer.failures,
                "{name}: {} failures, expected {}",
                record.failures,
                timer.failures
            );
            let claimed = claims_at.is_some_and(|at| at.by(timer.clock) >= timer.due.0)
                && matches!(timer.state, Believed::Pending | Believed::Interrupted)
                && record.state == State::Delivering
                && record.attempt == timer.attempt + 1;
            if claimed {
                timer.attempt += 1;
                timer.state = Believed::Interrupted;
            }
            ensure!(
                record.state.kind() == timer.state.kind(),
                "{name}: {}, expected {:?}",
                record.state.kind(),
                timer.state
            );
            ensure!(
                record.attempt == timer.attempt,
                "{name}: {} attempts, expected {}",
                record.attempt,
                timer.attempt
            );
            if !matches!(timer.state, Believed::Done { .. } | Believed::Dead) {
                ensure!(
                    within(record.due, timer.due),
                    "{name}: due {:?}, expected {:?}",
                    record.due,
                    timer.due
                );
                ensure!(
                    record.clock == timer.clock,
                    "{name}: due by the {:?} clock, expected {:?}",
                    record.clock,
                    timer.clock
                );
                timer.due = (record.due, record.due);
                timer.first_due = (record.first_due, record.first_due);
            }
            if let Some(revision) = timer.revision {
                ensure!(
                    record.revision == revision,
                    "{name}: revision {}, expected {revision}",
                    record.revision
                );
            }
            timer.revision = Some(record.revision);
            last_revision = last_revision.max(record.revision);
        }
        self.last_revision = last_revision;
        for name in missing {
            self.timers.remove(&name);
        }
        Ok(())
    }

    /// The timer that has waited longest, and by when it is certainly due by the wall clock as
    /// it stands `now`; those that were due before `since`, and those of the queues that
    /// `waits`, left out.
    #[must_use]
    pub fn next_due(
        &self,
        now: Now,
        since: Now,
        waits: impl Fn(&QueueName) -> bool,
    ) -> Option<(Timestamp, &TimerName)> {
        let pending =
            |timer: &Timer| matches!(timer.state, Believed::Pending | Believed::Interrupted);
        let fresh = self.timers.iter().filter(|(name, timer)| {
            pending(timer) && timer.due.0 >= since.by(timer.clock) && !waits(&name.queue)
        });
        let by_wall = |timer: &Timer| now.convert(timer.due.1, timer.clock, DueClock::Wall);
        fresh.map(|(name, timer)| (by_wall(timer), name)).min()
    }

    /// By which clock a timer is due.
    #[must_use]
    pub fn clock_of(&self, name: &TimerName) -> DueClock {
        self.timers.get(name).map_or(DueClock::Wall, |t| t.clock)
    }

    /// The timers whose retry has come too late: they may have been given up at `now`.
    #[must_use]
    pub fn too_old(&self, now: Now) -> Vec<TimerName> {
        let too_old = |timer: &Timer| {
            let now = now.by(timer.clock);
            timer.due.0 <= now && timer.is_too_old(now)
        };
        let names = self.timers.iter().filter(|(_, timer)| too_old(timer));
        names.map(|(name, _)| name.clone()).collect()
    }

    /// Notes that a timer was given up.
    pub fn gave_up(&mut self, name: &TimerName) {
        if let Some(timer) = self.timers.get_mut(name) {
            timer.state = Believed::Dead;
            self.dead += 1;
        }
    }
}

impl Timer {
    fn is_known_as(&mut self, id: TimerId, name: &TimerName) -> Verdicts {
        let known = *self.id.get_or_insert(id);
        ensure!(known == id, "{name}: is known as {id}, was {known}");
        Ok(())
    }

    /// Whether a retry at `now` would come after the maximum age.
    fn is_too_old(&self, now: Timestamp) -> bool {
        let age = self.policy.max_age;
        let waits = matches!(self.state, Believed::Pending | Believed::Interrupted);
        waits && self.failures > 0 && age.is_some_and(|age| now > self.first_due.1 + age)
    }

    /// Goes over to another clock: the age by which a retry is too late goes on.
    fn keep_age(&mut self, now: Now, clock: DueClock) {
        let convert = |at| now.convert(at, self.clock, clock);
        self.first_due = (convert(self.first_due.0), convert(self.first_due.1));
        self.clock = clock;
    }

    fn rearm(&mut self, new: (Timestamp, Timestamp)) -> Expected {
        let old = self.due;
        self.due = new;
        if self.failures == 0 {
            self.first_due = new;
        }
        Expected::Moved { old, new }
    }

    /// Between when the next attempt is due; `None` if there is none.
    fn retry(
        &self,
        now: Timestamp,
        retry_after: Option<Duration>,
    ) -> Option<(Timestamp, Timestamp)> {
        let delay = self.policy.delay_after(self.failures)?;
        let shortest = match self.policy.jitter {
            Jitter::None => delay,
            Jitter::Full => Duration::ZERO,
            Jitter::Equal => delay / 2,
        };
        let day = Duration::from_secs(86_400);
        let wished = now + retry_after.unwrap_or_default().min(day);
        let due = ((now + shortest).max(wished), (now + delay).max(wished));
        match self.policy.max_age {
            // The simulation draws a maximum age only where jitter leaves nothing open.
            Some(age) if due.1 > self.first_due.1 + age => None,
            _ => Some(due),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Set {
        due: Timestamp,
        replaced: Option<StateKind>,
    },
    Moved {
        old: (Timestamp, Timestamp),
        new: (Timestamp, Timestamp),
    },
    WasPending {
        due: (Timestamp, Timestamp),
    },
    Was(Was),
}

fn within(at: Timestamp, (low, high): (Timestamp, Timestamp)) -> bool {
    low <= at && at <= high
}
