//! The plainest model of durable timers: a map, and the rules as a reader of the documents would
//! write them. It predicts every answer and checks every attempt and every record.
//!
//! The model does not predict the delay that jitter draws, and accepts any delay within its bounds.

macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}

mod series;
mod suspects;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::Fence;
use countwheel_durable::{
    Answer, Attempt, AttemptResult, BatchError, Config, DrainMode, Drains, Due, DueClock, Jitter,
    Missed, Moved, NextRun, Precondition, QueueName, Record, Request, Response, Retention,
    RetryPolicy, Revision, Rules, Set, Shift, State, StateKind, TimerError, TimerId, TimerName,
    Verdict, Was,
};
use countwheel_time::Timestamp;

use self::series::{Judged, Series, settled};
use self::suspects::{Rule, Suspects};

/// A reading of both clocks: the wall clock, and the time line that no step of it touches, which
/// goes on over restarts.
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

/// When that is, and by which clock.
fn resolve(due: Due, now: Now) -> Result<(Timestamp, DueClock), TimerError> {
    let clock = match due {
        Due::At(_) => DueClock::Wall,
        Due::In(_) => DueClock::Boot,
    };
    Ok((due.resolve(now.by(clock))?, clock))
}

/// What was asked for: that may have passed, and it is `due` now.
fn asked(asked: Due, due: (Timestamp, Timestamp)) -> (Timestamp, Timestamp) {
    match asked {
        Due::At(at) => (at, at),
        Due::In(_) => due,
    }
}

/// What the model believes of every name.
#[derive(Clone, Debug)]
pub struct Model {
    timers: BTreeMap<TimerName, Timer>,
    last_revision: Revision,
    last_fence: Fence,
    keep_done: Duration,
    retention: Option<Arc<dyn Retention>>,
    rules: Option<Arc<dyn Rules>>,
    max_batch_bytes: usize,
    /// When the process that there is began, by the wall clock.
    opened: Timestamp,
    suspects: Suspects,
    /// How queues are drained; `None` for all of them.
    drains: BTreeMap<Option<QueueName>, DrainMode>,
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
    /// The rules with which it was set.
    policy: RetryPolicy,
    /// Its id, once an answer, an attempt or a record has shown it.
    id: Option<TimerId>,
    missed: Missed,
    /// The rules that hold now.
    retry: RetryPolicy,
    skips: Missed,
    /// If it comes again.
    series: Option<Box<Series>>,
    failures: u32,
    /// Attempts in a row that the end of the process interrupted, as far as that was noticed.
    interruptions: u32,
    attempt: u32,
    /// How long its queue keeps what ends now.
    keep: Kept,
    /// When the last attempt ended.
    last_ended: Option<Timestamp>,
    /// What the last move or revival asked for, if it named a time or a delay.
    asked: Option<Due>,
    state: Believed,
}

/// How long something is kept that has ended.
#[derive(Clone, Copy, Debug)]
struct Kept {
    done: Duration,
    /// `None`: for good.
    dead: Option<Duration>,
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
        keep_until: Timestamp,
    },
    Dead {
        /// `None`: for good.
        keep_until: Option<Timestamp>,
    },
}

/// What becomes of a timer that is due, without anybody being told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attended {
    /// Nothing; its attempt can start.
    Starts,
    /// It is not due.
    Waits,
    /// It goes on with another run.
    Passed,
    /// That it was interrupted is noted, and it is a suspect.
    Held,
    /// It is given up.
    GivenUp,
}

/// So often at the most a timer goes on to another run in one turn.
const PASSES_MAX: usize = 4;

impl Believed {
    fn kind(self) -> StateKind {
        match self {
            Self::Pending => StateKind::Pending,
            Self::Delivering | Self::Interrupted => StateKind::Delivering,
            Self::Done { .. } => StateKind::Done,
            Self::Dead { .. } => StateKind::Dead,
        }
    }

    fn kept_until(self) -> Option<Timestamp> {
        match self {
            Self::Pending | Self::Delivering | Self::Interrupted => None,
            Self::Done { keep_until, .. } => Some(keep_until),
            Self::Dead { keep_until } => keep_until,
        }
    }

    fn is_dead(self) -> bool {
        matches!(self, Self::Dead { .. })
    }
}

/// What is wrong, in a sentence.
pub type Verdicts<T = ()> = Result<T, String>;

impl Model {
    /// A model of an empty store under a scheduler with these limits.
    #[must_use]
    pub fn new(config: &Config, opened: Timestamp) -> Self {
        Self {
            opened,
            suspects: Suspects::new(config, opened),
            timers: BTreeMap::new(),
            drains: BTreeMap::new(),
            last_revision: Revision(0),
            last_fence: Fence(0),
            keep_done: config.keep_done,
            retention: config.retention.clone(),
            rules: config.rules.clone(),
            max_batch_bytes: config.max_batch_bytes,
            done: 0,
            dead: 0,
            removed: 0,
            accepted: 0,
        }
    }

    fn keep(&self, queue: &QueueName) -> Kept {
        let keep = self.retention.as_ref().map(|it| it.keep(queue));
        let keep = keep.unwrap_or_default();
        Kept {
            done: keep.done.unwrap_or(self.keep_done).min(self.keep_done),
            dead: keep.dead,
        }
    }

    /// What ends from here on is kept for as long as its queue says now.
    pub fn retention_changed(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        for (name, timer) in &mut timers {
            timer.keep = self.keep(&name.queue);
        }
        self.timers = timers;
    }

    /// What counts from here on counts by what each queue says now.
    pub fn rules_changed(&mut self) {
        let rules = self.rules.as_deref();
        for (name, timer) in &mut self.timers {
            timer.go_by(rules, &name.queue);
        }
    }

    /// Until when something is kept that has ended, at the latest; what is kept for good left out.
    #[must_use]
    pub fn last_kept(&self) -> Option<Timestamp> {
        let timers = self.timers.values();
        timers.filter_map(|timer| timer.state.kept_until()).max()
    }

    /// How many timers still have to come to an end.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        let unfinished =
            |timer: &&Timer| !matches!(timer.state, Believed::Done { .. } | Believed::Dead { .. });
        self.timers.values().filter(unfinished).count()
    }

    /// By when the last of them is certainly due, by the wall clock as it stands `now`, and how
    /// many runs they have left.
    #[must_use]
    pub fn last_due(&self, now: Now) -> (u64, Option<Timestamp>) {
        let unfinished =
            |timer: &&Timer| !matches!(timer.state, Believed::Done { .. } | Believed::Dead { .. });
        let mut all = 0;
        let mut latest = None;
        for timer in self.timers.values().filter(unfinished) {
            let (runs, due, clock) = match &timer.series {
                None => (1, timer.due.1, timer.clock),
                Some(series) => {
                    let clock = series.clock();
                    let due = now.convert(timer.due.1, timer.clock, clock);
                    // Those that are overdue are made as well.
                    let (runs, _) = series.rest(due);
                    let (_, last) = series.rest(due.max(now.by(clock)));
                    (runs, last, clock)
                }
            };
            all += runs;
            latest = latest.max(Some(now.convert(due, clock, DueClock::Wall)));
        }
        (all, latest)
    }

    /// The timers that come again and again without an end, or with one that is too far to wait
    /// for: at one start a second, a series of a tenth of a second that was missed for an hour.
    #[must_use]
    pub fn endless(&self, now: Now) -> Vec<TimerName> {
        let endless = |timer: &Timer| {
            let is_endless = timer.series.as_ref().is_some_and(|series| {
                let clock = series.clock();
                let due = now.convert(timer.due.1, timer.clock, clock);
                series.is_endless() || series.rest(due).0 >= Series::RUNS_COUNTED
            });
            is_endless && !matches!(timer.state, Believed::Done { .. } | Believed::Dead { .. })
        };
        let names = self.timers.iter().filter(|(_, timer)| endless(timer));
        names.map(|(name, _)| name.clone()).collect()
    }

    /// A queue or all of them are drained, or not any more.
    pub fn drained(&mut self, queue: Option<QueueName>, mode: Option<DrainMode>) {
        match mode {
            Some(mode) => drop(self.drains.insert(queue, mode)),
            None => drop(self.drains.remove(&queue)),
        }
    }

    /// What is drained: a queue, or all of them.
    #[must_use]
    pub fn drains(&self) -> Vec<Option<QueueName>> {
        self.drains.keys().cloned().collect()
    }

    fn drains_of(&self, queue: &QueueName) -> impl Iterator<Item = DrainMode> {
        let own = self.drains.get(&Some(queue.clone()));
        own.into_iter().chain(self.drains.get(&None)).copied()
    }

    /// Whether nothing of this queue may start at this time of the wall clock.
    #[must_use]
    pub fn holds(&self, queue: &QueueName, wall: Timestamp) -> bool {
        self.drains_of(queue).any(|mode| match mode {
            DrainMode::Fire { until } => until.is_some_and(|until| until <= wall),
            DrainMode::Pause { until } => until.is_none_or(|until| wall < until),
            _ => true,
        })
    }

    /// When a queue that is held starts again by itself: nothing holds it but pauses that end.
    #[must_use]
    pub fn starts_again(&self, queue: &QueueName, wall: Timestamp) -> Option<Timestamp> {
        let ends = self.drains_of(queue).map(|mode| match mode {
            DrainMode::Pause { until: Some(until) } => Some(until),
            _ => None,
        });
        let ends: Option<Vec<_>> = ends.collect();
        ends?.into_iter().max().filter(|end| *end > wall)
    }

    /// Compares what the store says of drains with what is believed.
    ///
    /// # Errors
    /// If they differ.
    pub fn audit_drains(&self, found: &Drains) -> Verdicts {
        let own = found
            .iter()
            .map(|(queue, mode)| (Some(queue.clone()), mode));
        let found = found.all().map(|mode| (None, mode)).into_iter().chain(own);
        let found: BTreeMap<_, _> = found.collect();
        let believed = &self.drains;
        ensure!(
            found == *believed,
            "drains are {found:?}, expected {believed:?}"
        );
        Ok(())
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
        let name = timer_of(request).clone();
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
            && let Some(timer) = self.timers.get_mut(timer_of(request))
        {
            timer.revision = None;
        }
    }

    /// Applies a batch whose answer is known, and checks the answer: all of it is done, or
    /// nothing and the answer says because of which request.
    ///
    /// # Errors
    /// If the answer is not what the rules say.
    pub fn answered_batch(
        &mut self,
        now: Now,
        requests: &[Request],
        answer: &Result<Vec<Response>, BatchError>,
    ) -> Verdicts {
        match answer {
            Ok(responses) => {
                let (asked, done) = (requests.len(), responses.len());
                ensure!(asked == done, "a batch of {asked} has {done} responses");
                let mut bytes = 0;
                for (index, (request, response)) in requests.iter().zip(responses).enumerate() {
                    let found = self.payload_len(now, request);
                    self.answered(now, request, &Ok(response.clone()))?;
                    bytes += found.max(self.payload_len(now, request));
                    self.is_short(index, bytes).map_err(|e| e.to_string())?;
                }
                Ok(())
            }
            Err(refusal) => {
                let index = refusal.index;
                let index = index.ok_or_else(|| format!("refused as a whole: {refusal}"))?;
                let request = requests.get(index);
                let request = request.ok_or_else(|| format!("{index} is no request"))?;
                let name = timer_of(request);
                let expected = self.clone().first_refusal(now, requests);
                let same = expected.as_ref().is_some_and(|(at, expected)| {
                    let error = std::mem::discriminant(&refusal.error);
                    *at == index && error == std::mem::discriminant(expected)
                });
                ensure!(
                    same,
                    "{name}: {refusal:?} in a batch, expected {expected:?}"
                );
                Ok(())
            }
        }
    }

    /// Applies a batch whose answer was lost with the process.
    pub fn unanswered_batch(&mut self, now: Now, requests: &[Request]) {
        if self.clone().first_refusal(now, requests).is_none() {
            for request in requests {
                self.unanswered(now, request);
            }
        }
    }

    /// Applies a batch up to the request because of which it is refused, and says which that is.
    fn first_refusal(&mut self, now: Now, requests: &[Request]) -> Option<(usize, TimerError)> {
        let mut bytes = 0;
        requests.iter().enumerate().find_map(|(index, request)| {
            let found = self.payload_len(now, request);
            let applied = self.apply(now, request).map(drop);
            bytes += found.max(self.payload_len(now, request));
            let refusal = applied.and_then(|()| self.is_short(index, bytes));
            refusal.err().map(|error| (index, error))
        })
    }

    /// How long the payload is of the timer that a request is about.
    fn payload_len(&self, now: Now, request: &Request) -> usize {
        let timer = self.timers.get(timer_of(request));
        let timer = timer.filter(|timer| !timer.is_over(now));
        timer.map_or(0, |timer| timer.tag.len())
    }

    /// Whether a batch may find or write so much up to its request number `index`.
    fn is_short(&self, index: usize, bytes: usize) -> Result<(), TimerError> {
        let limit = self.max_batch_bytes;
        if index > 0 && bytes > limit {
            return Err(TimerError::BatchTooLong { limit });
        }
        Ok(())
    }

    /// Notes what a look into the store shows before a request is made: a done timer may be
    /// forgotten once its retention is over, and need not be at once.
    pub fn seen(&mut self, name: &TimerName, latest: Timestamp, record: Option<&Record>) {
        match (self.timers.get_mut(name), record) {
            (Some(timer), Some(record)) => {
                timer.revision.get_or_insert(record.revision);
            }
            (Some(timer), None) => {
                if timer
                    .state
                    .kept_until()
                    .is_some_and(|until| latest >= until)
                {
                    self.timers.remove(name);
                }
            }
            (None, _) => {}
        }
    }

    fn apply(&mut self, now: Now, request: &Request) -> Result<Expected, TimerError> {
        let name = timer_of(request);
        let (keep, rules) = (self.keep(&name.queue), self.rules.clone());
        if matches!(request, Request::Set { .. })
            && let Some(mode) = self
                .drains_of(&name.queue)
                .find(|mode| !matches!(mode, DrainMode::Pause { .. }))
        {
            let queue = name.queue.clone();
            return Err(TimerError::Draining { queue, mode });
        }
        let timer = self.timers.get_mut(name);
        let timer = timer.filter(|timer| !timer.is_over(now));
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
            Believed::Done { at, .. } => TimerError::Gone { at },
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
                options,
                ..
            } => {
                options.validate()?;
                let wanted = *due;
                let (mut due, mut clock) = resolve(wanted, now)?;
                let missed = options.missed;
                let series = match &options.recurrence {
                    Some(recurrence) => {
                        let series = Series::begin(recurrence, missed, (due, clock), now)?;
                        (due, clock) = (series.nominal, series.clock());
                        Some(Box::new(series))
                    }
                    None => None,
                };
                let due = match &series {
                    Some(series) => series.due(None),
                    None => (due, due),
                };
                check(*precondition, timer.as_deref())?;
                let replaced = timer.map(|timer| timer.state.kind());
                self.removed += u64::from(matches!(
                    replaced,
                    Some(StateKind::Pending | StateKind::Delivering)
                ));
                self.accepted += 1;
                let mut timer = Timer {
                    tag: payload.clone(),
                    revision: None,
                    due,
                    first_due: if series.is_some() {
                        due
                    } else {
                        asked(wanted, due)
                    },
                    clock,
                    policy: policy.clone(),
                    id: None,
                    missed,
                    retry: policy.clone(),
                    skips: missed,
                    series,
                    failures: 0,
                    interruptions: 0,
                    attempt: 0,
                    keep,
                    last_ended: None,
                    state: Believed::Pending,
                    asked: None,
                };
                timer.go_by(rules.as_deref(), &name.queue);
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
                    Believed::Dead { .. } => Expected::Was(Was::Dead),
                    Believed::Done { at, .. } => return Err(TimerError::Gone { at }),
                };
                self.removed += u64::from(!timer.state.is_dead());
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
                timer.asked = match *shift {
                    Shift::To(to) => Some(to),
                    Shift::Later(_) | Shift::Sooner(_) => None,
                };
                timer.keep_age(now, clock);
                if timer.is_untried()
                    && let Some(series) = &mut timer.series
                {
                    let moved = |due| now.convert(due, clock, series.clock());
                    series.move_to((moved(first), moved(last)));
                }
                Ok(timer.rearm((first, last)))
            }
            Request::Fire { .. } => {
                let timer = timer.ok_or(TimerError::NotFound)?;
                if timer.state != Believed::Pending {
                    return Err(conflict(timer));
                }
                if timer.is_untried()
                    && let Some(series) = &mut timer.series
                {
                    let due = |due| now.convert(due, timer.clock, series.clock());
                    let due = (due(timer.due.0), due(timer.due.1));
                    series.fire(due, now.by(series.clock()));
                }
                let now = now.by(timer.clock);
                timer.asked = None;
                Ok(timer.rearm((now, now)))
            }
            Request::Revive { due, .. } => {
                let timer = timer.ok_or(TimerError::NotFound)?;
                if !timer.state.is_dead() {
                    return Err(conflict(timer));
                }
                timer.asked = Some(*due);
                let (due, clock) = resolve(*due, now)?;
                if let Some(series) = &mut timer.series {
                    let moved = now.convert(due, clock, series.clock());
                    series.move_to((moved, moved));
                }
                timer.clock = clock;
                timer.failures = 0;
                timer.interruptions = 0;
                timer.state = Believed::Pending;
                self.accepted += 1;
                Ok(timer.rearm((due, due)))
            }
            Request::Configure { .. } => unreachable!("no world asks for a setting"),
            Request::AsRead { .. } => unreachable!("the worlds of jobs have a model of their own"),
            Request::Settle { .. } | Request::Extend { .. } | Request::Release { .. } => {
                unreachable!("these worlds lease nothing")
            }
            Request::Noted { .. } => {
                unreachable!("the worlds of the audit log have their own model")
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
            Response::Set(Set { revision, .. }) | Response::Moved(Moved { revision, .. }) => {
                Some(*revision)
            }
            Response::Removed(_)
            | Response::Forgotten(_)
            | Response::Configured(_)
            | Response::Settled(_)
            | Response::Extended(_) => None,
        };
        if let Some(revision) = fresh {
            let last = self.last_revision;
            ensure!(revision > last, "{name}: revision {revision} after {last}");
            self.last_revision = revision;
            if let Some(timer) = self.timers.get_mut(name) {
                timer.revision = Some(revision);
                if let Response::Set(Set { id, .. }) = response {
                    timer.id = Some(*id);
                    if let Some(series) = &timer.series {
                        timer.due = series.due(Some(*id));
                        timer.first_due = timer.due;
                    }
                }
            }
        }
        let set_for = self.timers.get(name).map(|timer| timer.due);
        let holds = match (response, expected) {
            (
                Response::Set(Set { due, replaced, .. }),
                Expected::Set {
                    due: d,
                    replaced: r,
                },
            ) => within(*due, d) && set_for == Some((*due, *due)) && *replaced == r,
            (Response::Moved(Moved { old_due, due, .. }), Expected::Moved { old, new }) => {
                if let Some(timer) = self.timers.get_mut(name) {
                    timer.due = (*due, *due);
                    if timer.is_untried() {
                        timer.first_due = timer.asked((*due, *due));
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
    pub fn started(&mut self, now: Now, attempt: &Attempt) -> Verdicts {
        let name = &attempt.name;
        ensure!(
            !self.holds(&name.queue, now.wall),
            "{name}: started, although its queue is held"
        );
        let (opened, rule) = (self.opened, self.suspects.rule);
        let Some(timer) = self.timers.get_mut(name) else {
            return Err(format!("{name}: started, although it was removed"));
        };
        timer.is_known_as(attempt.id, name)?;
        // Of runs that were passed over in this turn nobody was told.
        for _ in 0..=PASSES_MAX {
            let mut passed = timer.clone();
            match passed.attend(now, rule) {
                Attended::Passed | Attended::Held => *timer = passed,
                Attended::GivenUp => {
                    return Err(format!("{name}: started at {now:?}, too late for that"));
                }
                Attended::Starts | Attended::Waits => break,
            }
        }
        let claimed = now.by(timer.clock);
        ensure!(
            attempt.started >= attempt.due && claimed >= attempt.due,
            "{name}: started at {claimed:?}, early for {:?}",
            attempt.due
        );
        let run = timer.series.as_ref().map(|series| series.shown());
        ensure!(
            attempt.run == run,
            "{name}: started for {:?}, expected {run:?}",
            attempt.run
        );
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
        let is_asked_for =
            timer.state == Believed::Pending && timer.is_untried() && timer.series.is_none();
        let deadline = if is_asked_for {
            timer.first_due
        } else {
            timer.due
        };
        ensure!(
            within(attempt.deadline, deadline),
            "{name}: started for the deadline {:?}, {deadline:?} was asked for",
            attempt.deadline
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
        ensure!(
            attempt.fence >= self.last_fence,
            "{name}: fence {:?} after {:?}",
            attempt.fence,
            self.last_fence
        );
        self.last_fence = attempt.fence;
        timer.claim(now, opened);
        self.suspects
            .start(now.boot, attempt.revision, timer.interruptions)
            .map_err(|what| format!("{name}: {what}"))?;
        timer.due = (attempt.due, attempt.due);
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
    pub fn ended(&mut self, now: Now, attempt: &Attempt, verdict: Verdict, next: Option<NextRun>) {
        self.suspects.end(attempt.revision);
        let Some(timer) = self.timers.get_mut(&attempt.name) else {
            return; // removed meanwhile
        };
        if timer.tag != attempt.payload || timer.state != Believed::Delivering {
            return; // replaced meanwhile
        }
        timer.last_ended = Some(now.wall);
        timer.interruptions = 0;
        match verdict {
            Verdict::Done => {
                let goes_on = match next {
                    Some(NextRun::Never) => false,
                    Some(NextRun::In(delay)) => timer.next_run(now, Some(delay)),
                    None => timer.next_run(now, None),
                };
                if !goes_on {
                    timer.state = Believed::Done {
                        at: now.wall,
                        keep_until: now.wall + timer.keep.done,
                    };
                    self.done += 1;
                }
            }
            Verdict::Stopped => {
                timer.bury(now);
                self.dead += 1;
            }
            Verdict::Held { .. } => unreachable!("no receiver of this world holds an attempt"),
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
                        timer.give_up(now);
                        self.dead += u64::from(timer.state.is_dead());
                    }
                }
            }
        }
    }

    /// The process has ended: what was being delivered is now interrupted.
    pub fn crashed(&mut self) {
        self.suspects.crash();
        for timer in self.timers.values_mut() {
            if timer.state == Believed::Delivering {
                timer.state = Believed::Interrupted;
            }
        }
    }

    /// A process has begun.
    pub fn opened(&mut self, at: Now) {
        self.opened = at.wall;
        self.suspects.rule.opened = at.boot;
    }

    /// Whether the next attempt of a timer is that of a suspect.
    #[must_use]
    pub fn is_suspect(&self, name: &TimerName) -> bool {
        let timer = self.timers.get(name);
        timer.is_some_and(|timer| timer.is_suspect(self.suspects.rule))
    }

    /// The suspect that may start first, those of the queues that `waits` left out, and from when
    /// on, by the wall clock as it stands `now`; what else keeps it waiting left out.
    #[must_use]
    pub fn next_suspect(
        &self,
        now: Now,
        waits: impl Fn(&QueueName) -> bool,
    ) -> Option<(Timestamp, &TimerName)> {
        let rule = self.suspects.rule;
        let suspects = self.timers.iter().filter(|(name, timer)| {
            timer.state == Believed::Pending
                && timer.is_suspect(rule)
                && self.suspects.has_place(timer.interruptions)
                && !waits(&name.queue)
        });
        let from = |timer: &Timer| {
            let due = now.convert(timer.due.1, timer.clock, DueClock::Wall);
            let from = rule.starts_from(timer.interruptions);
            due.max(now.convert(from, DueClock::Boot, DueClock::Wall))
        };
        suspects.map(|(name, timer)| (from(timer), name)).min()
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
        let (opened, rule) = (self.opened, self.suspects.rule);
        let mut missing = Vec::new();
        let mut last_revision = self.last_revision;
        for (name, timer) in &mut self.timers {
            let Some(record) = found.get(name) else {
                if claims_at.is_some_and(|at| timer.ends_and_goes(at, rule)) {
                    self.dead += 1;
                    missing.push(name.clone());
                    continue;
                }
                match timer.state {
                    state if state.kept_until().is_some_and(|until| latest >= until) => {
                        missing.push(name.clone());
                    }
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
            ensure!(record.missed == timer.missed, "{name}: misses otherwise");
            if let Some(at) = claims_at {
                self.dead += u64::from(timer.follow(record, at, opened, rule));
            }
            match (&record.recurring, &timer.series) {
                (Some(kept), Some(series)) => series
                    .check(kept)
                    .map_err(|what| format!("{name}: {what}"))?,
                (None, None) => {}
                (kept, _) => return Err(format!("{name}: comes again as {kept:?}")),
            }
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
            let ended = record.attempts.iter().rev().filter(|it| it.ended.is_some());
            for (nth, attempt) in ended.enumerate() {
                let end = attempt.ended.as_ref();
                let answered = end.filter(|end| end.result != AttemptResult::Interrupted);
                let expected = answered.filter(|_| nth < Answer::KEPT);
                let expected =
                    expected.and_then(|_| Answer::new(answer_to(record.id, attempt.number)));
                ensure!(
                    end.is_some_and(|end| end.answer == expected),
                    "{name}: attempt {} has an answer that it did not get, or lost its own",
                    attempt.number
                );
            }
            ensure!(
                record.failures == timer.failures,
                "{name}: {} failures, expected {}",
                record.failures,
                timer.failures
            );
            ensure!(
                record.interruptions == timer.interruptions,
                "{name}: {} interruptions, expected {}",
                record.interruptions,
                timer.interruptions
            );
            ensure!(
                record.state.kind() == timer.state.kind(),
                "{name}: {}, expected {:?}",
                record.state.kind(),
                timer.state
            );
            let (kept, expected) = (record.state.kept_until(), timer.state.kept_until());
            ensure!(
                kept == expected,
                "{name}: is kept until {kept:?}, expected {expected:?}"
            );
            ensure!(
                record.attempt == timer.attempt,
                "{name}: {} attempts, expected {}",
                record.attempt,
                timer.attempt
            );
            if !matches!(timer.state, Believed::Done { .. } | Believed::Dead { .. }) {
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
            pending(timer)
                && timer.due.0 >= since.by(timer.clock)
                && !waits(&name.queue)
                && !timer.is_suspect(self.suspects.rule)
        });
        let by_wall = |timer: &Timer| now.convert(timer.due.1, timer.clock, DueClock::Wall);
        fresh.map(|(name, timer)| (by_wall(timer), name)).min()
    }

    /// By which clock a timer is due.
    #[must_use]
    pub fn clock_of(&self, name: &TimerName) -> DueClock {
        self.timers.get(name).map_or(DueClock::Wall, |t| t.clock)
    }

    /// The timers that may have been given up at `now`, gone on to another run, or been noted as
    /// interrupted, without anybody being told.
    #[must_use]
    pub fn unheard_of(&self, now: Now) -> Vec<TimerName> {
        let unheard_of = |timer: &Timer| {
            // Most are not due, and a copy costs.
            timer.is_up(now)
                && matches!(
                    timer.clone().attend(now, self.suspects.rule),
                    Attended::Passed | Attended::GivenUp | Attended::Held
                )
        };
        let names = self.timers.iter().filter(|(_, timer)| unheard_of(timer));
        names.map(|(name, _)| name.clone()).collect()
    }

    /// Follows a timer that has no record any more to its end, if the rules lead there.
    pub fn follow_to_its_end(&mut self, name: &TimerName, now: Now) {
        let rule = self.suspects.rule;
        let timer = self.timers.get(name);
        if timer.is_some_and(|timer| timer.ends_and_goes(now, rule)) {
            self.timers.remove(name);
            self.dead += 1;
        }
    }

    /// Follows such a timer to where its record shows it to be, as far as the rules lead there.
    pub fn follow(&mut self, name: &TimerName, now: Now, record: &Record) {
        let (opened, rule) = (self.opened, self.suspects.rule);
        if let Some(timer) = self.timers.get_mut(name) {
            self.dead += u64::from(timer.follow(record, now, opened, rule));
        }
    }
}

impl Timer {
    /// Goes by what its queue says now, where it has named nothing itself.
    fn go_by(&mut self, rules: Option<&dyn Rules>, queue: &QueueName) {
        let Some(rules) = rules else {
            return;
        };
        let (tag, policy) = (&*self.tag, &self.policy);
        self.retry = rules.retry(queue, tag).unwrap_or_else(|| policy.clone());
        self.skips = rules.missed(queue, tag).unwrap_or(self.missed);
        if let Some(series) = &mut self.series {
            let own = series.recurrence.overlap;
            series.missed = self.skips;
            series.overlap = rules.overlap(queue, tag).unwrap_or(own);
        }
    }

    /// Whether it is done or dead and its retention is over: it is forgotten soon, and gone for whoever asks.
    fn is_over(&self, now: Now) -> bool {
        let until = self.state.kept_until();
        until.is_some_and(|until| now.wall >= until)
    }

    /// It is given up, and kept as long as its queue keeps what is dead.
    fn bury(&mut self, now: Now) {
        let keep_until = self.keep.dead.map(|dead| now.wall + dead);
        self.state = Believed::Dead { keep_until };
    }

    fn is_known_as(&mut self, id: TimerId, name: &TimerName) -> Verdicts {
        if let Some(known) = self.id {
            ensure!(known == id, "{name}: is known as {id}, was {known}");
            return Ok(());
        }
        self.id = Some(id);
        if let Some(series) = &mut self.series {
            let far = series.far(id);
            series.settle(far);
            self.due = settled(self.due, far);
            self.first_due = settled(self.first_due, far);
        }
        Ok(())
    }

    /// Whether no attempt was made of what it waits for.
    fn is_untried(&self) -> bool {
        self.failures == 0 && self.interruptions == 0
    }

    /// Whether its next attempt is that of a suspect.
    fn is_suspect(&self, rule: Rule) -> bool {
        let unnoticed = u32::from(self.state == Believed::Interrupted);
        rule.is_suspect(self.interruptions + unnoticed)
    }

    /// Whether it waits for a turn that may take it up.
    fn is_up(&self, now: Now) -> bool {
        let waits = matches!(self.state, Believed::Pending | Believed::Interrupted);
        waits && self.due.0 <= now.by(self.clock)
    }

    /// What becomes of it if the turn at `now` takes it up, before an attempt of it starts.
    fn attend(&mut self, now: Now, rule: Rule) -> Attended {
        let by = now.by(self.clock);
        if !self.is_up(now) {
            return Attended::Waits;
        }
        if self.state == Believed::Pending && self.is_untried() {
            let (Some(series), Some(id)) = (&mut self.series, self.id) else {
                let late = by.saturating_since(self.first_due.1);
                return match self.skips {
                    Missed::SkipIfOlderThan(age) if self.series.is_none() && late > age => {
                        self.bury(now);
                        Attended::GivenUp
                    }
                    _ => Attended::Starts,
                };
            };
            return match series.judge(id, now.by(series.clock())) {
                Judged::Start => Attended::Starts,
                Judged::Pass(due) => {
                    self.await_run(due);
                    Attended::Passed
                }
                Judged::Over => {
                    self.bury(now);
                    Attended::GivenUp
                }
            };
        }
        let was_interrupted = self.state == Believed::Interrupted;
        if was_interrupted {
            self.interruptions += 1;
            self.last_ended = Some(now.wall);
        }
        let is_guilty = was_interrupted && self.interruptions >= rule.most;
        if is_guilty || self.is_too_old(by) {
            self.give_up(now);
            return match self.state {
                Believed::Dead { .. } => Attended::GivenUp,
                _ => Attended::Passed,
            };
        }
        let is_suspect = rule.is_suspect(self.interruptions);
        if is_suspect && was_interrupted {
            self.state = Believed::Pending;
            return Attended::Held;
        }
        if is_suspect && now.boot < rule.starts_from(self.interruptions) {
            return Attended::Waits;
        }
        Attended::Starts
    }

    /// Its attempt is claimed.
    fn claim(&mut self, now: Now, opened: Timestamp) {
        // Noticed only now.
        self.interruptions += u32::from(self.state == Believed::Interrupted);
        if self.state == Believed::Pending
            && self.is_untried()
            && let Some(series) = &mut self.series
        {
            let waited = self.last_ended.is_some_and(|at| at < opened);
            series.start(now.by(series.clock()), waited);
        }
        self.attempt += 1;
        self.state = Believed::Delivering;
    }

    /// Whether a turn at `now` may have given it up and forgotten it at once, since its queue keeps nothing that is
    /// dead.
    fn ends_and_goes(&self, now: Now, rule: Rule) -> bool {
        let mut next = self.clone();
        for _ in 0..=PASSES_MAX + 1 {
            match next.attend(now, rule) {
                Attended::Passed => {}
                Attended::GivenUp => return next.is_over(now),
                Attended::Starts | Attended::Waits | Attended::Held => return false,
            }
        }
        false
    }

    /// Goes where a turn at `now` may have brought it, if its record is there. Says whether that
    /// is its end.
    fn follow(&mut self, record: &Record, now: Now, opened: Timestamp, rule: Rule) -> bool {
        let mut next = self.clone();
        for _ in 0..=PASSES_MAX + 1 {
            let at = match (&record.recurring, &next.series) {
                (Some(kept), Some(series)) => series.is_at(kept),
                _ => true,
            };
            if at && record.state.kind() == next.state.kind() && record.attempt == next.attempt {
                let is_new = next.state.is_dead() && !self.state.is_dead();
                *self = next;
                return is_new;
            }
            let mut attended = next.clone();
            let becomes = attended.attend(now, rule);
            if becomes == Attended::Starts
                && at
                && record.state == State::Delivering
                && record.attempt == next.attempt + 1
            {
                next.claim(now, opened);
                next.state = Believed::Interrupted;
                *self = next;
                return false;
            }
            if matches!(becomes, Attended::Starts | Attended::Waits) {
                break;
            }
            next = attended;
        }
        false
    }

    /// Goes on after a run, if there is another one.
    fn next_run(&mut self, now: Now, asked: Option<Duration>) -> bool {
        let (Some(series), Some(id)) = (&mut self.series, self.id) else {
            return false;
        };
        let next = series.end(id, now.by(series.clock()), asked);
        if let Some(due) = next {
            self.await_run(due);
        }
        next.is_some()
    }

    fn await_run(&mut self, due: Timestamp) {
        if let Some(series) = &self.series {
            self.clock = series.clock();
        }
        (self.due, self.first_due) = ((due, due), (due, due));
        (self.failures, self.revision) = (0, None);
        self.interruptions = 0;
        self.state = Believed::Pending;
    }

    /// A delivery is given up: a run, if there is another one.
    fn give_up(&mut self, now: Now) {
        if let Some(series) = &mut self.series {
            series.give_up();
        }
        if !self.next_run(now, None) {
            self.bury(now);
        }
    }

    /// Whether a retry at `now` would come after the maximum age.
    fn is_too_old(&self, now: Timestamp) -> bool {
        let age = self.retry.settings().max_age;
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
        (self.due, self.revision) = (new, None);
        if self.is_untried() {
            self.first_due = self.asked(new);
        }
        Expected::Moved { old, new }
    }

    /// What was asked for last of a timer that is `due` then.
    fn asked(&self, due: (Timestamp, Timestamp)) -> (Timestamp, Timestamp) {
        match self.asked {
            Some(wanted) if self.series.is_none() => asked(wanted, due),
            _ => due,
        }
    }

    /// Between when the next attempt is due; `None` if there is none.
    fn retry(
        &self,
        now: Timestamp,
        retry_after: Option<Duration>,
    ) -> Option<(Timestamp, Timestamp)> {
        let delay = self.retry.delay(self.failures)?;
        let settings = self.retry.settings();
        let shortest = match settings.jitter {
            Jitter::Full => Duration::ZERO,
            Jitter::Equal => delay / 2,
            _ => delay,
        };
        let day = Duration::from_secs(86_400);
        let wished = now + retry_after.unwrap_or_default().min(day);
        let due = ((now + shortest).max(wished), (now + delay).max(wished));
        match settings.max_age {
            // The simulation draws a maximum age only where jitter leaves nothing open.
            Some(age) if due.1 > self.first_due.1 + age => None,
            _ => Some(due),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Set {
        due: (Timestamp, Timestamp),
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

/// What the receiver of an attempt answers: three in four have something to say, of up to 80 bytes.
pub(crate) fn answer_to(id: TimerId, number: u32) -> Vec<u8> {
    let draw = id
        .set
        .0
        .wrapping_mul(31)
        .wrapping_add(u64::from(number) * 7);
    let length = usize::try_from(draw % 4 * (draw % 27)).unwrap_or(0);
    vec![draw.to_le_bytes()[0]; length]
}

/// What the receiver of an attempt asks of the runs to come.
pub(crate) fn asked_of_runs(id: TimerId, number: u32) -> Option<NextRun> {
    let draw = id.set.0.wrapping_mul(17) ^ u64::from(number).wrapping_mul(7_919);
    match draw % 31 {
        0 => Some(NextRun::Never),
        1..=5 => Some(NextRun::In(Duration::from_millis(draw * 977 % 600_000))),
        _ => None,
    }
}

fn within(at: Timestamp, (low, high): (Timestamp, Timestamp)) -> bool {
    low <= at && at <= high
}

/// The timer that a request is about.
pub(crate) fn timer_of(request: &Request) -> &TimerName {
    let name = request.name();
    name.unwrap_or_else(|| unreachable!("no world asks for a setting"))
}
