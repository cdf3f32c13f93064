//! The rules for the timers of all shards, whoever owns them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use countwheel_durable::store::{Change, Fence};
use countwheel_durable::{
    Attempt, DeadReason, Due, DueClock, Moved, Record, Request, Response, Revision, Set, Shift,
    State, StateKind, TimerError, TimerId, TimerName, Verdict, Was,
};
use countwheel_time::Timestamp;

/// A clock of one node may run so much faster or slower than time, in parts of a million.
pub(super) const RATE_MAX: u64 = 100;

/// One moment, as one owner of a shard has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// The time that has really passed, in microseconds. No clock shows it.
    pub(super) time: u64,
    pub(super) wall: Timestamp,
    pub(super) line: Timestamp,
    /// How early the openings of the shard may have made timers, in microseconds, all of them together.
    pub(super) slack: u64,
}

impl Now {
    fn by(self, clock: DueClock) -> Timestamp {
        match clock {
            DueClock::Wall => self.wall,
            DueClock::Boot => self.line,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Pending,
    Running,
    /// Claimed by an owner that ended without an outcome.
    Interrupted,
    Done,
    Dead,
}

/// What is known of one timer.
#[derive(Clone, Debug)]
struct Timer {
    id: TimerId,
    revision: Revision,
    payload: Vec<u8>,
    due: Timestamp,
    clock: DueClock,
    /// When its deadline was decided.
    since: Now,
    phase: Phase,
    attempt: u32,
    /// Ends of owners in a row, other than planned ones, during attempts of it, at the most; a planned
    /// one counts if it is the only one.
    interruptions: u32,
    /// Until when it is kept once it is done.
    kept_until: Option<Timestamp>,
}

impl Timer {
    /// Whether nobody is told of it any more at that time.
    fn is_over(&self, wall: Timestamp) -> bool {
        self.phase == Phase::Done && self.kept_until.is_some_and(|until| until <= wall)
    }
}

/// What one turn was given, in order.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Request(u64, Request),
    Outcome(TimerName, Revision, Verdict),
}

/// A commit of which nobody has seen what it lets out.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    pub(super) items: Vec<Item>,
    pub(super) changes: Vec<Change>,
    pub(super) now: Now,
    /// The owner that was lost in it: then the commit may not be made.
    pub(super) lost: Option<Fence>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    timers: BTreeMap<TimerName, Timer>,
    /// Whose each id is.
    ids: BTreeMap<TimerId, TimerName>,
    /// What was handed out.
    handed: BTreeSet<(TimerId, u32)>,
    max_interruptions: u32,
    keep_done: Duration,
    pub(super) retry: Duration,
    /// How often a timer came to each end.
    pub(super) done: u64,
    pub(super) removed: u64,
    pub(super) dead: u64,
    /// How often one that was done was seen to be gone.
    pub(super) forgotten: u64,
}

impl Model {
    pub(super) fn new(max_interruptions: u32, keep_done: Duration, retry: Duration) -> Self {
        Self {
            max_interruptions,
            keep_done,
            retry,
            ..Self::default()
        }
    }

    /// The timers that have not come to their end.
    pub(super) fn unended(&self) -> impl Iterator<Item = &TimerName> {
        let timers = self.timers.iter();
        let unended = timers.filter(|(_, it)| !matches!(it.phase, Phase::Done | Phase::Dead));
        unended.map(|(name, _)| name)
    }

    /// A request was taken up and answered.
    pub(super) fn answer(
        &mut self,
        now: Now,
        request: &Request,
        answer: Result<Response, TimerError>,
    ) -> Result<(), String> {
        let wrong = |answer: &dyn std::fmt::Debug| Err(format!("{request:?}: {answer:?}"));
        let Some(name) = request.name().cloned() else {
            return wrong(&answer);
        };
        let known = self.timers.get_mut(&name);
        let known = known.filter(|timer| !timer.is_over(now.wall));
        let must_be_pending = |timer: &Timer| match (timer.phase, &answer) {
            (Phase::Pending, Ok(_)) => Ok(true),
            (Phase::Done, Err(TimerError::Gone { .. })) => Ok(false),
            (Phase::Pending | Phase::Done, _) | (_, Ok(_)) => Err(timer.phase),
            (phase, Err(TimerError::Conflict { state })) if *state == phase.kind() => Ok(false),
            (phase, _) => Err(phase),
        };
        match (request, known) {
            (Request::Set { due, payload, .. }, known) => {
                let (at, clock) = resolve(*due, now);
                let before = known.as_ref().map(|timer| timer.phase.kind());
                let Ok(Response::Set(Set {
                    id,
                    revision,
                    due,
                    replaced,
                    ..
                })) = answer
                else {
                    return wrong(&answer);
                };
                if (due, replaced, id.set) != (at, before, revision) {
                    return wrong(&answer);
                }
                self.removed += u64::from(known.is_some_and(|timer| !timer.phase.is_ended()));
                self.learn(id, &name)?;
                let timer = Timer {
                    id,
                    revision,
                    payload: payload.clone(),
                    due,
                    clock,
                    since: now,
                    phase: Phase::Pending,
                    attempt: 0,
                    interruptions: 0,
                    kept_until: None,
                };
                self.timers.insert(name, timer);
                Ok(())
            }
            (_, None) => match answer {
                Err(TimerError::NotFound) => Ok(()),
                answer => wrong(&answer),
            },
            (Request::Remove { .. }, Some(timer)) => {
                match (timer.phase, &answer) {
                    (Phase::Done, Err(TimerError::Gone { .. })) => return Ok(()),
                    (Phase::Pending, Ok(Response::Removed(Was::Pending { due })))
                        if *due == timer.due => {}
                    (
                        Phase::Running | Phase::Interrupted,
                        Ok(Response::Removed(Was::Delivering { attempt })),
                    ) if *attempt == timer.attempt => {}
                    (Phase::Dead, Ok(Response::Removed(Was::Dead))) => {}
                    _ => return wrong(&answer),
                }
                self.removed += 1;
                self.timers.remove(&name);
                Ok(())
            }
            (Request::Move { .. } | Request::Fire { .. }, Some(timer)) => {
                match must_be_pending(timer) {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(phase) => {
                        return Err(format!("{request:?} of one that is {phase:?}: {answer:?}"));
                    }
                }
                let by = now.by(timer.clock);
                let (at, clock) = match request {
                    Request::Move { shift, .. } => match shift {
                        Shift::To(due) => resolve(*due, now),
                        Shift::Later(span) => ((timer.due + *span).max(by), timer.clock),
                        Shift::Sooner(span) => {
                            (timer.due.saturating_sub(*span).max(by), timer.clock)
                        }
                    },
                    _ => (by, timer.clock),
                };
                match answer {
                    Ok(Response::Moved(Moved {
                        revision,
                        old_due,
                        due,
                    })) if (old_due, due) == (timer.due, at) && revision > timer.revision => {
                        (timer.due, timer.clock, timer.since) = (due, clock, now);
                        timer.revision = revision;
                        Ok(())
                    }
                    answer => wrong(&answer),
                }
            }
            (_, Some(_)) => wrong(&answer),
        }
    }

    /// An outcome was taken up.
    pub(super) fn outcome(
        &mut self,
        now: Now,
        name: &TimerName,
        revision: Revision,
        verdict: Verdict,
    ) {
        let Some(timer) = self.timers.get_mut(name) else {
            return;
        };
        if timer.revision != revision || timer.phase != Phase::Running {
            return;
        }
        timer.interruptions = 0;
        timer.kept_until = Some(now.wall + self.keep_done);
        timer.phase = match verdict {
            Verdict::Done => {
                self.done += 1;
                Phase::Done
            }
            Verdict::Stopped => {
                self.dead += 1;
                Phase::Dead
            }
            Verdict::Held { .. } => unreachable!("no receiver of this world holds an attempt"),
            Verdict::Failed { .. } => {
                (timer.due, timer.clock, timer.since) =
                    (now.line + self.retry, DueClock::Boot, now);
                Phase::Pending
            }
        };
    }

    /// An attempt left that was claimed at `now`. The wall clock may have been set back since.
    pub(super) fn start(&mut self, attempt: &Attempt, now: Now) -> Result<(), String> {
        let name = &attempt.name;
        let Some(timer) = self.timers.get_mut(name) else {
            return Err(format!("{name} starts, and there is none"));
        };
        if !matches!(timer.phase, Phase::Pending | Phase::Interrupted) {
            return Err(format!("{name} starts, and is {:?}", timer.phase));
        }
        let expected = (timer.id, timer.attempt + 1, timer.due, &timer.payload);
        let found = (attempt.id, attempt.number, attempt.due, &attempt.payload);
        if expected != found {
            return Err(format!("{name}: {expected:?} should start, not {found:?}"));
        }
        if now.by(timer.clock) < timer.due {
            let by = timer.clock;
            return Err(format!("{name} starts before its deadline by {by:?}"));
        }
        if timer.clock == DueClock::Boot {
            let asked = timer.due.saturating_since(timer.since.line);
            let asked = u64::try_from(asked.as_micros()).unwrap_or(u64::MAX);
            let passed = now.time - timer.since.time;
            let drift = (passed * 2 * RATE_MAX).div_ceil(1_000_000);
            let may_differ = now.slack - timer.since.slack + 2 + drift;
            if passed + may_differ < asked {
                return Err(format!(
                    "{name} should wait for {asked} µs and starts after {passed} µs; the clocks \
                     differ by {may_differ} µs"
                ));
            }
        }
        if !self.handed.insert((attempt.id, attempt.number)) {
            let (id, number) = (attempt.id, attempt.number);
            return Err(format!("attempt {number} of {id} is handed out twice"));
        }
        if timer.phase == Phase::Interrupted {
            timer.interruptions += 1;
        }
        timer.attempt = attempt.number;
        timer.revision = attempt.revision;
        timer.phase = Phase::Running;
        Ok(())
    }

    /// An owner has ended its attempts on purpose.
    pub(super) fn hand_over(&mut self, name: &TimerName) {
        if let Some(timer) = self.timers.get_mut(name)
            && timer.phase == Phase::Running
        {
            timer.phase = Phase::Pending;
            timer.interruptions = timer.interruptions.max(1);
        }
    }

    /// A new owner begins with what the store holds.
    pub(super) fn taken(&mut self, name: &TimerName) {
        if let Some(timer) = self.timers.get_mut(name)
            && timer.phase == Phase::Running
        {
            timer.phase = Phase::Interrupted;
        }
    }

    /// The store has lost what was acknowledged under a name, and holds this. What was handed out since
    /// is handed out again.
    pub(super) fn goes_back(
        &mut self,
        name: &TimerName,
        record: Option<&Record>,
    ) -> Result<(), String> {
        let before = self.timers.remove(name);
        let Some(record) = record else {
            return Ok(());
        };
        if self.ids.get(&record.id).is_none_or(|other| other != name) {
            self.learn(record.id, name)?;
        }
        self.handed
            .retain(|(id, number)| *id != record.id || *number <= record.attempt);
        let unmoved =
            before.filter(|it| (it.id, it.due, it.clock) == (record.id, record.due, record.clock));
        // Nobody knows when its deadline was decided.
        let since = unmoved.map_or(
            Now {
                time: 0,
                wall: record.due,
                line: record.due,
                slack: 0,
            },
            |timer| timer.since,
        );
        let timer = Timer {
            id: record.id,
            revision: record.revision,
            payload: record.payload.clone(),
            due: record.due,
            clock: record.clock,
            since,
            phase: match record.state.kind() {
                StateKind::Pending => Phase::Pending,
                StateKind::Delivering => Phase::Interrupted,
                StateKind::Done => Phase::Done,
                StateKind::Dead => Phase::Dead,
            },
            attempt: record.attempt,
            interruptions: record.interruptions,
            kept_until: kept_until(record),
        };
        self.timers.insert(name.clone(), timer);
        Ok(())
    }

    /// The store has this under a name at that time, and says so to whoever owns the shard.
    pub(super) fn compare(
        &mut self,
        name: &TimerName,
        record: Option<&Record>,
        time: Timestamp,
    ) -> Result<(), String> {
        let (timer, record) = match (self.timers.get_mut(name), record) {
            (None, None) => return Ok(()),
            // The store forgets what is done by itself, some time after it is over.
            (Some(timer), None) if timer.is_over(time) => {
                self.timers.remove(name);
                self.forgotten += 1;
                return Ok(());
            }
            // A failover has brought it back: nobody is told of it.
            (None, Some(record)) if kept_until(record).is_some_and(|until| until <= time) => {
                return Ok(());
            }
            (Some(timer), None) => return Err(format!("{name} is lost: {timer:?}")),
            (None, Some(record)) => return Err(format!("{name} is there: {record:?}")),
            (Some(timer), Some(record)) => (timer, record),
        };
        let expected = (
            timer.id,
            timer.due,
            timer.clock,
            timer.attempt,
            &timer.payload,
        );
        let found = (
            record.id,
            record.due,
            record.clock,
            record.attempt,
            &record.payload,
        );
        if expected != found || record.revision < timer.revision {
            return Err(format!(
                "{name} is {record:?} in the store, and should be {timer:?}"
            ));
        }
        timer.revision = record.revision;
        if record.state.kind() == StateKind::Done && timer.kept_until != kept_until(record) {
            return Err(format!("{name} is {record:?}, and should be {timer:?}"));
        }
        // An attempt that nobody ended may be counted meanwhile.
        let counted = timer.interruptions + u32::from(timer.phase == Phase::Interrupted);
        let (phase, most) = match (timer.phase, &record.state) {
            (Phase::Interrupted, State::Pending) => (Phase::Pending, counted),
            (Phase::Interrupted, State::Dead { reason, .. })
                if *reason == DeadReason::Interrupted && counted >= self.max_interruptions =>
            {
                self.dead += 1;
                (Phase::Dead, counted)
            }
            (phase, state) if state.kind() == phase.kind() => (phase, timer.interruptions),
            _ => {
                return Err(format!(
                    "{name} is {record:?} in the store, and should be {timer:?}"
                ));
            }
        };
        if record.interruptions > most {
            return Err(format!(
                "{name} counts {} interruptions, and there were {most}",
                record.interruptions
            ));
        }
        if phase != timer.phase {
            (timer.phase, timer.interruptions) = (phase, most);
        }
        Ok(())
    }

    /// A commit was applied whose turn nobody saw end: what it says is so.
    pub(super) fn adopt(&mut self, doubt: &Doubt) -> Result<(), String> {
        let asked = doubt.items.iter().filter_map(|item| match item {
            Item::Request(_, request) => request.name(),
            Item::Outcome(name, ..) => Some(name),
        });
        let asked: BTreeSet<_> = asked.collect();
        for (name, record) in last_of(&doubt.changes) {
            let before = self.timers.remove(name);
            let is_asked = asked.contains(name);
            let Some(record) = record else {
                if !is_asked {
                    return Err(format!("{name} was removed, and nobody asked for it"));
                }
                self.removed += 1;
                continue;
            };
            let same = before.as_ref().filter(|timer| timer.id == record.id);
            if let Some(timer) = same {
                let claims = record.attempt.wrapping_sub(timer.attempt);
                let counted = timer.interruptions + 1;
                let may_die = is_asked || counted >= self.max_interruptions;
                if claims > 1
                    || record.interruptions > counted
                    || record.state.kind() == StateKind::Dead && !may_die
                    || record.state.kind() == StateKind::Done && !is_asked
                {
                    return Err(format!("{record:?} cannot come of {timer:?}"));
                }
            } else if !is_asked {
                return Err(format!("{record:?} was made, and nobody asked for it"));
            } else {
                self.learn(record.id, name)?;
                let replaced = before.as_ref().is_some_and(|it| !it.phase.is_ended());
                self.removed += u64::from(replaced);
            }
            let unmoved = same.filter(|it| (it.due, it.clock) == (record.due, record.clock));
            let since = unmoved.map_or(doubt.now, |timer| timer.since);
            let ended_before = same.is_some_and(|timer| timer.phase.is_ended());
            let timer = Timer {
                id: record.id,
                revision: record.revision,
                payload: record.payload.clone(),
                due: record.due,
                clock: record.clock,
                since,
                phase: match record.state.kind() {
                    StateKind::Pending => Phase::Pending,
                    StateKind::Delivering => Phase::Running,
                    StateKind::Done => Phase::Done,
                    StateKind::Dead => Phase::Dead,
                },
                attempt: record.attempt,
                interruptions: record.interruptions,
                kept_until: kept_until(record),
            };
            if !ended_before {
                self.done += u64::from(timer.phase == Phase::Done);
                self.dead += u64::from(timer.phase == Phase::Dead);
            }
            self.timers.insert(name.clone(), timer);
        }
        Ok(())
    }

    fn learn(&mut self, id: TimerId, name: &TimerName) -> Result<(), String> {
        match self.ids.insert(id, name.clone()) {
            None => Ok(()),
            Some(other) => Err(format!("{id} is that of {other} and of {name}")),
        }
    }
}

impl Phase {
    fn kind(self) -> StateKind {
        match self {
            Self::Pending => StateKind::Pending,
            Self::Running | Self::Interrupted => StateKind::Delivering,
            Self::Done => StateKind::Done,
            Self::Dead => StateKind::Dead,
        }
    }

    fn is_ended(self) -> bool {
        matches!(self, Self::Done | Self::Dead)
    }
}

/// Until when a record is kept that is done.
fn kept_until(record: &Record) -> Option<Timestamp> {
    match record.state {
        State::Done { keep_until, .. } => Some(keep_until),
        _ => None,
    }
}

/// What a commit leaves under each name that it changes.
pub(super) fn last_of(changes: &[Change]) -> BTreeMap<&TimerName, Option<&Record>> {
    let named = changes.iter().filter_map(|change| match change {
        Change::Put { record, .. } => Some((&record.name, Some(&**record))),
        Change::Remove { name, .. } => Some((name, None)),
        Change::Given(_) | Change::Clock(_) | Change::Setting(_) => None,
    });
    named.collect()
}

fn resolve(due: Due, now: Now) -> (Timestamp, DueClock) {
    match due {
        Due::At(at) => (at.max(now.wall), DueClock::Wall),
        Due::In(delay) => (now.line + delay, DueClock::Boot),
    }
}
