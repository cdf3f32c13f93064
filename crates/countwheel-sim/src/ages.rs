//! Long times: days under full load, and a century in which hardly anything happens.
//!
//! The product's engine under a simulated clock, against the plainest model there is: a sorted set
//! of deadlines. At every moment at which the engine has something to do, or a request comes,
//! exactly the due timers must start: none earlier, none later by a microsecond, none twice, none
//! that was removed. Now and then the process ends and another begins on the same store.
//!
//! ```
//! use std::time::Duration;
//! use countwheel_sim::ages::{self, Ages};
//!
//! let minute = Duration::from_secs(60);
//! let lived = ages::run(7, &Ages { span: 10 * minute, ..Ages::dense() })?;
//! assert!(lived.started > 0);
//! # Ok::<(), String>(())
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::Shard;
use countwheel_durable::{
    Attempt, Config, CronExpression, Due, Effect, Engine, Event, Moved, Outcome, Precondition,
    Recurrence, Request, Response, RetryPolicy, Revision, Schedule, Set, SetOptions, Shift,
    StateKind, Ticket, TimerName, Verdict, Was, Zone,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::Random;
use crate::machine::{Kept, Kind, Machine};

/// 2026-03-01 12:00 UTC.
const START: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// The mean year of the calendar.
const YEAR: Duration = Duration::from_secs(31_556_952);
/// How long an attempt takes at the most.
const SERVICE: Duration = Duration::from_secs(2);
/// What follows a failure. An attempt fails at most twice.
const RETRY: Duration = SECOND;
/// By when all that the end of a process interrupted has been started again.
const CATCH_UP: Duration = SECOND;
/// A timer that comes again does so after so long at the least: longer than a run with its
/// retries and an interruption takes, so that no run is left out.
const AGAIN: Duration = Duration::from_secs(30);

/// What is to be lived through.
#[derive(Clone, Debug)]
pub struct Ages {
    /// How long requests come in. What was set is waited for after that.
    pub span: Duration,
    /// From one request to the next, in the mean.
    pub gap: Duration,
    /// The farthest deadline, from when it is asked for.
    pub reach: Duration,
    /// How many timers come again, all the time.
    pub series: u64,
    /// One in so many requests the process ends, and another begins.
    pub restart: u64,
    /// For how long a timer that is done is kept.
    pub keep_done: Duration,
    /// What the timers are kept in.
    pub kind: Kind,
}

impl Ages {
    /// A day with ten requests a second, for deadlines of up to a day.
    #[must_use]
    pub fn dense() -> Self {
        Self {
            span: DAY,
            gap: SECOND / 10,
            reach: DAY,
            series: 20,
            restart: 100_000,
            keep_done: Duration::from_secs(3_600),
            kind: Kind::Memory,
        }
    }

    /// A hundred years with a request a week, for deadlines of up to a hundred years.
    #[must_use]
    pub fn sparse() -> Self {
        Self {
            span: 100 * YEAR,
            gap: 7 * DAY,
            reach: 100 * YEAR,
            series: 20,
            restart: 20,
            keep_done: 30 * DAY,
            kind: Kind::Memory,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Lived {
    /// Timers set, and set in place of others.
    pub set: u64,
    /// Moved while they waited.
    pub moved: u64,
    /// Removed while they waited.
    pub removed: u64,
    /// Attempts started.
    pub started: u64,
    /// Of these, of timers that came again.
    pub again: u64,
    /// Of these, the first ones on a 29th of February.
    pub leap_days: u64,
    /// Of these, after a failure.
    pub retries: u64,
    /// Of these, because the process had ended during the attempt before.
    pub interrupted: u64,
    /// Ends of the process.
    pub restarts: u64,
    /// The most that waited at a time.
    pub pending_peak: usize,
    /// The most that the window held at a time.
    pub window_peak: usize,
    /// From the first request to the last timer.
    pub spanned: Duration,
}

/// A timer in the model.
struct Known {
    due: Timestamp,
    /// When its run was due at first.
    nominal: Timestamp,
    /// Attempts made.
    attempts: u32,
    /// Attempts of this run that failed.
    failures: u32,
    series: Option<Series>,
}

/// When a timer comes again.
#[derive(Clone, Copy)]
enum Series {
    Every(Duration),
    /// On each 29th of February at midnight.
    LeapDay,
}

impl Series {
    fn after(self, due: Timestamp) -> Timestamp {
        match self {
            Self::Every(every) => due + every,
            Self::LeapDay => next_leap_day(due),
        }
    }

    fn schedule(self) -> Result<Schedule, String> {
        Ok(match self {
            Self::Every(every) => Schedule::FixedRate {
                every,
                anchor: None,
            },
            Self::LeapDay => Schedule::Cron {
                expression: CronExpression::new("0 0 29 2 *").map_err(|error| error.to_string())?,
                zone: Zone::new("UTC").map_err(|error| error.to_string())?,
            },
        })
    }
}

/// The first midnight of a 29th of February after `from`, counted in days from 1970.
fn next_leap_day(from: Timestamp) -> Timestamp {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut day = 0;
    for year in 1970.. {
        if is_leap(year) {
            let at = Timestamp::EPOCH + (day + 31 + 28) * DAY;
            if at > from {
                return at;
            }
        }
        day += if is_leap(year) { 366 } else { 365 };
    }
    Timestamp::MAX
}

struct Life<'a> {
    ages: &'a Ages,
    machine: Machine,
    clock: ManualClock,
    config: Config,
    /// What there is of the process.
    process: Option<(Engine, Arc<dyn Kept>)>,
    draw: Random,
    known: BTreeMap<u64, Known>,
    /// Those that wait, in order.
    waiting: BTreeSet<(Timestamp, u64)>,
    /// Those that run: when they end, and their revisions.
    running: BinaryHeap<Reverse<(Timestamp, u64, u64)>>,
    /// Those whose attempt the end of the process interrupted.
    interrupted: BTreeSet<u64>,
    interrupted_at: Timestamp,
    next_name: u64,
    lived: Lived,
}

/// Lives through `ages`, with what `seed` draws.
///
/// # Errors
/// What was not as it must be, in a sentence.
pub fn run(seed: u64, ages: &Ages) -> Result<Lived, String> {
    let config = Config {
        keep_done: ages.keep_done,
        seed,
        ..Config::default()
    };
    let machine = Machine::new(ages.kind, seed);
    machine.disk.bound_calls(u64::MAX); // as long as it takes
    let mut life = Life {
        ages,
        machine,
        clock: ManualClock::at(START),
        config,
        process: None,
        draw: Random::new(seed, "ages"),
        known: BTreeMap::new(),
        waiting: BTreeSet::new(),
        running: BinaryHeap::new(),
        interrupted: BTreeSet::new(),
        interrupted_at: Timestamp::EPOCH,
        next_name: 0,
        lived: Lived::default(),
    };
    life.begin_process()?;
    life.live().map_err(|what| {
        let now = life.clock.timestamp();
        format!(
            "seed {seed}, {:?} after the start: {what}",
            now.saturating_since(START)
        )
    })?;
    life.lived.spanned = life.clock.timestamp().saturating_since(START);
    Ok(life.lived)
}

/// Something to ask for.
#[derive(Clone, Copy)]
enum Asked {
    Set,
    Again(Series),
    Replace(u64),
    Move(u64),
    Remove(u64),
}

impl Life<'_> {
    fn live(&mut self) -> Result<(), String> {
        for index in 0..self.ages.series {
            let every = (AGAIN + 4 * self.ages.gap + self.far()).min(self.ages.reach / 2);
            let series = match index {
                0 => Series::LeapDay,
                _ => Series::Every(every),
            };
            self.turn(Some(Asked::Again(series)))?;
        }
        let end = START + self.ages.span;
        loop {
            let gap = self.draw.below(2 * micros(self.ages.gap));
            let next_request = self.clock.timestamp() + Duration::from_micros(gap);
            if next_request >= end {
                break;
            }
            self.until(next_request)?;
            if self.draw.one_in(self.ages.restart) {
                self.turn(None)?; // what is due now is not overdue
                self.end_process();
                self.begin_process()?;
            }
            self.upkeep()?;
            let asked = self.wish();
            self.turn(Some(asked))?;
        }
        self.until(end)?;
        let again = self
            .known
            .iter()
            .filter(|(_, known)| known.series.is_some());
        let names: Vec<_> = again.map(|(name, _)| *name).collect();
        for name in names {
            self.turn(Some(Asked::Remove(name)))?;
        }
        self.until(Timestamp::MAX)?;
        let left = self.process()?.1.counts(Shard::ONLY);
        let mut left = left.map_err(|error| error.to_string())?;
        if self.ages.kind == Kind::Postgres {
            // The server forgets what is done by a clock of its own.
            left.retain(|it| it.by_state.iter().sum::<u64>() > it.of(StateKind::Done));
        }
        if !left.is_empty() || !self.known.is_empty() {
            return Err(format!("{left:?} are left, {} should be", self.known.len()));
        }
        Ok(())
    }

    /// A deadline's distance: as many of a few milliseconds as of half the reach.
    fn far(&mut self) -> Duration {
        let reach = micros(self.ages.reach);
        let scale = 1 << self.draw.between(10, u64::from(reach.ilog2()));
        Duration::from_micros((scale + self.draw.below(scale)).min(reach))
    }

    fn wish(&mut self) -> Asked {
        let wish = self.draw.below(100);
        let from = self.clock.timestamp() + self.far();
        let later = self.waiting.range((from, 0)..).take(50);
        let mut single = later.filter(|(_, name)| self.known[name].series.is_none());
        match (wish, single.next().map(|(_, name)| *name)) {
            (65..70, Some(name)) => Asked::Replace(name),
            (70..85, Some(name)) => Asked::Move(name),
            (85.., Some(name)) => Asked::Remove(name),
            _ => Asked::Set,
        }
    }

    fn process(&mut self) -> Result<&mut (Engine, Arc<dyn Kept>), String> {
        self.process.as_mut().ok_or_else(|| "no process".to_owned())
    }

    fn begin_process(&mut self) -> Result<(), String> {
        let store = self.machine.open().map_err(|error| error.to_string())?;
        let store: Arc<dyn Kept> = Arc::from(store);
        let clock = Arc::new(self.clock.clone());
        let engine = Engine::open(store.clone(), Shard::ONLY, clock, self.config.clone());
        self.process = Some((engine.map_err(|error| error.to_string())?, store));
        Ok(())
    }

    fn end_process(&mut self) {
        self.process = None;
        self.lived.restarts += 1;
        self.interrupted_at = self.clock.timestamp();
        let running = self.running.drain().map(|Reverse((_, name, _))| name);
        let known = &self.known;
        let interrupted = running.filter(|name| known.contains_key(name));
        self.interrupted.extend(interrupted);
    }

    /// Moves a segment of a log, or merges tables, now and then.
    fn upkeep(&mut self) -> Result<(), String> {
        if self.draw.one_in(50) {
            let which = self.draw.draw();
            let kept = self.process()?.1.upkeep(which);
            kept.map_err(|error| format!("upkeep: {error}"))?;
        }
        Ok(())
    }

    /// Lets time go on, from one moment to the next at which there is something to do.
    fn until(&mut self, target: Timestamp) -> Result<(), String> {
        let mut turns = 0_u32;
        loop {
            let wake = self.process()?.0.next_wake();
            if let Some((due, name)) = self.waiting.first()
                && wake.is_none_or(|wake| wake > *due)
            {
                return Err(format!("{name} is due {due:?}, it goes on {wake:?}"));
            }
            let ends = self.running.peek().map(|Reverse((at, ..))| *at);
            let now = self.clock.timestamp();
            let next = wake.into_iter().chain(ends).min();
            let Some(next) = next.filter(|next| *next < target) else {
                if target < Timestamp::MAX {
                    self.clock.advance(target.saturating_since(now));
                }
                return Ok(());
            };
            turns = if next > now { 0 } else { turns + 1 };
            if turns > 10_000 {
                return Err("it does nothing, again and again".to_owned());
            }
            self.clock.advance(next.saturating_since(now));
            self.turn(None)?;
        }
    }

    /// What is asked for, what has ended, and what starts: one turn of the engine.
    fn turn(&mut self, asked: Option<Asked>) -> Result<(), String> {
        let now = self.clock.timestamp();
        let mut events = Vec::new();
        while let Some(Reverse((at, name, revision))) = self.running.peek().copied()
            && at <= now
        {
            self.running.pop();
            events.push(self.outcome(now, name, revision));
        }
        let mut expected = None;
        if let Some(asked) = asked {
            let (request, answer) = self.request(now, asked)?;
            events.push(Event::Request(Ticket(0), request));
            expected = Some(answer);
        }
        let mut started = Vec::new();
        let mut wrong = None;
        let sink = &mut |effect| match effect {
            Effect::Start(attempt) => started.push(attempt),
            Effect::Answer(_, answer) => {
                let told = match &answer {
                    Ok(
                        Response::Set(Set { due, .. })
                        | Response::Moved(Moved { due, .. })
                        | Response::Removed(Was::Pending { due }),
                    ) => Some(*due),
                    Ok(Response::Removed(Was::Delivering { .. })) => Some(now),
                    _ => None,
                };
                if told.is_none() || told != expected.take() {
                    wrong = Some(format!("answered {answer:?}"));
                }
            }
            Effect::BatchAnswer(..) => {} // nobody asks for a batch
        };
        let turn = self.process()?.0.turn(events, sink);
        turn.map_err(|error| error.to_string())?;
        if wrong.is_some() || expected.is_some() {
            return Err(wrong.unwrap_or_else(|| "not answered".to_owned()));
        }
        for attempt in started {
            self.started(now, &attempt)?;
        }
        if let Some((due, name)) = self.waiting.first().filter(|(due, _)| *due <= now) {
            return Err(format!("{name} was due {due:?}, and did not start {now:?}"));
        }
        if now > self.interrupted_at + CATCH_UP
            && let Some(name) = self.interrupted.first()
        {
            return Err(format!("{name} was interrupted, and did not start again"));
        }
        let window = self.process()?.0.stats().in_window;
        self.lived.window_peak = self.lived.window_peak.max(window);
        self.lived.pending_peak = self.lived.pending_peak.max(self.waiting.len());
        Ok(())
    }

    fn outcome(&mut self, now: Timestamp, name: u64, revision: u64) -> Event {
        let mut verdict = Verdict::Done;
        if let Some(known) = self.known.get_mut(&name) {
            if known.failures < 2 && self.draw.one_in(10) {
                verdict = Verdict::Failed { retry_after: None };
                known.failures += 1;
                known.due = now + RETRY;
                self.waiting.insert((known.due, name));
            } else if let Some(series) = known.series {
                known.failures = 0;
                known.nominal = series.after(known.nominal);
                known.due = known.nominal;
                self.waiting.insert((known.due, name));
            } else {
                self.known.remove(&name);
            }
        }
        Event::Outcome {
            revision: Revision(revision),
            outcome: Outcome::new(verdict, ""),
        }
    }

    /// A request, carried out in the model; and the time that its answer has to name.
    fn request(&mut self, now: Timestamp, asked: Asked) -> Result<(Request, Timestamp), String> {
        let far = self.far();
        let due = now + far;
        let how = match self.draw.below(2) {
            0 => Due::At(due),
            _ => Due::In(far),
        };
        let precondition = Precondition::None;
        Ok(match asked {
            Asked::Set => {
                self.next_name += 1;
                self.set(self.next_name, how, due, None)?
            }
            Asked::Again(series) => {
                self.next_name += 1;
                let due = series.after(now);
                let how = match series {
                    Series::Every(every) => Due::In(every),
                    Series::LeapDay => Due::At(now),
                };
                self.set(self.next_name, how, due, Some(series))?
            }
            Asked::Replace(number) => {
                self.forget(number);
                self.set(number, how, due, None)?
            }
            Asked::Move(number) => {
                let known = self.known.get_mut(&number).ok_or("nothing to move")?;
                self.waiting.remove(&(known.due, number));
                known.due = due;
                self.waiting.insert((due, number));
                self.lived.moved += 1;
                let (name, shift) = (name(number)?, Shift::To(how));
                let request = Request::Move {
                    name,
                    shift,
                    precondition,
                };
                (request, due)
            }
            Asked::Remove(number) => {
                let was_waiting = self.forget(number);
                self.lived.removed += 1;
                let request = Request::Remove {
                    name: name(number)?,
                    precondition,
                    only_pending: false,
                };
                (request, was_waiting.unwrap_or(now))
            }
        })
    }

    fn set(
        &mut self,
        number: u64,
        how: Due,
        due: Timestamp,
        series: Option<Series>,
    ) -> Result<(Request, Timestamp), String> {
        let recurrence = series.map(Series::schedule).transpose()?;
        let known = Known {
            due,
            nominal: due,
            attempts: 0,
            failures: 0,
            series,
        };
        self.known.insert(number, known);
        self.waiting.insert((due, number));
        self.lived.set += 1;
        let request = Request::Set {
            name: name(number)?,
            due: how,
            policy: RetryPolicy::fixed(RETRY),
            payload: Vec::new(),
            precondition: Precondition::None,
            options: SetOptions {
                recurrence: recurrence.map(Recurrence::new).map(Box::new),
                ..SetOptions::default()
            },
        };
        Ok((request, due))
    }

    /// Removes it from the model; says when it was due if it waited.
    fn forget(&mut self, number: u64) -> Option<Timestamp> {
        self.interrupted.remove(&number);
        let due = self.known.remove(&number)?.due;
        self.waiting.remove(&(due, number)).then_some(due)
    }

    fn started(&mut self, now: Timestamp, attempt: &Attempt) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {attempt:?}"));
        let Ok(number) = attempt.name.key.as_str().parse::<u64>() else {
            return wrong("nobody set it");
        };
        let Some(known) = self.known.get_mut(&number) else {
            return wrong("it is not there any more");
        };
        let is_first = known.due == known.nominal;
        if self.interrupted.remove(&number) {
            self.lived.interrupted += 1;
        } else if !self.waiting.remove(&(known.due, number)) {
            return wrong("it runs already");
        } else if known.due > now || attempt.due != known.due || attempt.started != now {
            return wrong(&format!("due {:?}, now {now:?}", known.due));
        }
        known.attempts += 1;
        if attempt.number != known.attempts {
            return wrong(&format!("it is number {}", known.attempts));
        }
        let lived = &mut self.lived;
        lived.started += 1;
        lived.retries += u64::from(known.failures > 0);
        lived.again += u64::from(known.series.is_some());
        lived.leap_days += u64::from(is_first && matches!(known.series, Some(Series::LeapDay)));
        let ends = now + Duration::from_micros(self.draw.between(1, micros(SERVICE)));
        self.running
            .push(Reverse((ends, number, attempt.revision.0)));
        Ok(())
    }
}

fn name(number: u64) -> Result<TimerName, String> {
    let queue = format!("queue-{}", number % 8);
    TimerName::new(&queue, number.to_string()).map_err(|error| error.to_string())
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leap_days_are_those_of_the_calendar() {
        let mut at = START;
        let mut years = Vec::new();
        while at < START + 180 * YEAR {
            at = next_leap_day(at);
            years.push(at);
        }
        // 2028-02-29, 2096-02-29 and then 2104-02-29.
        assert_eq!(years[0].as_micros(), 1_835_395_200_000_000);
        assert_eq!(years[17].as_micros(), 3_981_312_000_000_000);
        assert_eq!(years[18].as_micros(), 4_233_686_400_000_000);
    }
}
