//! The position of a recurring timer in its schedule, and the order of runs.

use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Missed, Overlap, Recurrence, RecurrenceError, Schedule};
use crate::TimerId;
use crate::planted::planted;
use countwheel_time::Random;

/// How many draws of the jitter one decision looks at.
const DRAWS_MAX: u32 = 10_000;

/// A recurring timer's schedule and where it stands in it: see [`Record::recurring`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_time::SystemClock;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{
///     Attempt, Config, Due, Outcome, Precondition, Recurrence, RecurrenceError, Recurring, Request,
///     RetryPolicy, Schedule, SetOptions, TimerError, TimerName, Timers, Verdict,
/// };
///
/// let handler = |_: &Attempt| Outcome::done();
/// let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
/// let name = TimerName::new("reports", "hourly")?;
/// let every = |every| Request::Set {
///     name: name.clone(),
///     due: Due::In(Duration::from_secs(60)),
///     policy: RetryPolicy::default(),
///     payload: vec![],
///     precondition: Precondition::None,
///     options: SetOptions {
///         recurrence: Some(Recurrence::new(Schedule::FixedDelay { every }).into()),
///         ..SetOptions::default()
///     },
/// };
/// let refused = timers.call(every(Duration::from_millis(1)));
/// let too_short = RecurrenceError::Every { found: Duration::from_millis(1) };
/// assert!(matches!(refused, Err(TimerError::Recurrence(error)) if error == too_short));
///
/// timers.call(every(Duration::from_secs(3_600)))?;
/// let record = timers.get(&name)?.expect("it is set");
/// let Recurring { run, missed, .. } = *record.recurring.expect("it comes again");
/// assert_eq!((run, missed), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Record::recurring`]: crate::Record::recurring
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recurring {
    /// The schedule.
    pub recurrence: Recurrence,
    /// The number of the run that comes next, is under way or was the last: 1 for the first. A
    /// run that is not made has no number.
    pub run: u32,
    /// Its nominal time: of one that was made by request, when that was.
    pub nominal: Timestamp,
    /// When the run is due by request, if it was moved or revived.
    pub moved: Option<Timestamp>,
    /// A point of a fixed rate's grid.
    pub origin: Timestamp,
    /// What came due until here, and was not made, was missed; what came due later, while a run
    /// was under way, overlapped with it. `None` before the first attempt of a run that is on
    /// time.
    pub busy_since: Option<Timestamp>,
    /// Runs not made because they were missed. Of those that a calendar names, at most 10,000
    /// are counted at a time; this is so for those that overlapped, too.
    pub missed: u64,
    /// Runs not made because the one before was not at its end.
    pub overlapped: u64,
    /// Runs given up.
    pub dead: u64,
}

/// What is to be done with a run whose first attempt can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overdue {
    /// Make it.
    Start,
    /// Pass to another run, due then.
    Pass(Timestamp),
    /// It is too old, and there is no other.
    Over,
}

/// What follows the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// The next one, due then.
    Next(Timestamp),
    /// None.
    Over,
}

impl Recurring {
    /// The nominal times of the runs after this one, if each is made on time and takes no time.
    pub fn upcoming(&self) -> impl Iterator<Item = Timestamp> + '_ {
        let left = self
            .recurrence
            .repeats
            .map_or(u32::MAX, |repeats| repeats.get().saturating_sub(self.run));
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        std::iter::successors(self.after(self.base()), |&before| self.after(before)).take(left)
    }

    /// The same, but for those until `after`. Where their number has no end and they lie on a grid, those
    /// until `after` are passed over in one step.
    pub fn upcoming_after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let is_endless = self.recurrence.repeats.is_none() && self.has_grid();
        let leap = after.max(self.base());
        let leap =
            is_endless.then(|| std::iter::successors(self.after(leap), |&it| self.after(it)));
        let steps = (!is_endless).then(|| self.upcoming().skip_while(move |&it| it <= after));
        leap.into_iter()
            .flatten()
            .chain(steps.into_iter().flatten())
    }

    /// The nominal times that its schedule has from `from` on, that time included, whether or not runs were
    /// made at them. They end where the schedule does, and do not count its repeats. A fixed rate has none
    /// before the point where its grid begins, and a fixed delay has none at all: its next run depends on the
    /// end of the one before.
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::{Recurrence, Recurring, Schedule};
    /// use countwheel_time::Timestamp;
    ///
    /// let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
    /// let schedule = Schedule::FixedRate { every: Duration::from_secs(10), anchor: Some(at(5)) };
    /// let hourly = Recurring {
    ///     recurrence: Recurrence::new(schedule),
    ///     run: 7,
    ///     nominal: at(65),
    ///     moved: None,
    ///     origin: at(5),
    ///     busy_since: None,
    ///     missed: 0,
    ///     overlapped: 0,
    ///     dead: 0,
    /// };
    /// assert!(hourly.nominal_times(at(15)).take(3).eq([at(15), at(25), at(35)]));
    /// assert_eq!(hourly.nominal_times(at(0)).next(), Some(at(5)));
    /// assert!(hourly.upcoming_after(at(80)).take(2).eq([at(85), at(95)]));
    /// let id = countwheel_durable::TimerId { store: 7, set: countwheel_durable::Revision(1) };
    /// assert_eq!(hourly.due_of(at(65), id), at(65)); // no jitter
    /// ```
    pub fn nominal_times(&self, from: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let schedule = &self.recurrence.schedule;
        let first = (self
            .has_grid()
            .then(|| schedule.at_or_after(self.origin, from)))
        .flatten();
        let first = first.filter(|&first| !self.recurrence.is_over(first));
        std::iter::successors(first, |&before| self.after(before))
    }

    /// When a run of the timer with this id is due by the schedule, its jitter included.
    #[must_use]
    pub fn due_of(&self, nominal: Timestamp, id: TimerId) -> Timestamp {
        self.due_at(id, nominal)
    }

    /// The first run at `from` or after it.
    pub(crate) fn begin(recurrence: Recurrence, from: Timestamp) -> Result<Self, RecurrenceError> {
        let first = recurrence.schedule.first(from);
        let nominal = first.ok_or(RecurrenceError::NoRun)?;
        if recurrence.is_over(nominal) {
            return Err(RecurrenceError::NoRunInTime);
        }
        Ok(Self {
            origin: recurrence.schedule.origin(nominal),
            recurrence,
            run: 1,
            nominal,
            moved: None,
            busy_since: None,
            missed: 0,
            overlapped: 0,
            dead: 0,
        })
    }

    /// When the run is due by the schedule.
    pub(crate) fn due(&self, id: TimerId) -> Timestamp {
        self.due_at(id, self.nominal)
    }

    fn due_at(&self, id: TimerId, nominal: Timestamp) -> Timestamp {
        nominal + draw(id, nominal, self.recurrence.jitter)
    }

    /// Makes a run of it that somebody asked for, at `now`: the schedule's own remain. One that
    /// is due already is the schedule's.
    pub(crate) fn fire(&mut self, due: Timestamp, now: Timestamp) {
        if due > now {
            self.nominal = now;
            self.moved = None;
        }
    }

    /// Notes that the run is due at another time than the schedule's. It stays the run that it
    /// is, and those whose nominal times it passes are not made.
    pub(crate) fn move_to(&mut self, due: Timestamp) {
        self.moved = Some(due);
    }

    /// Notes that the first attempt of the run starts. `waited` if it waited for that through
    /// the opening of the store.
    pub(crate) fn start(&mut self, now: Timestamp, waited: bool) {
        if waited || self.busy_since.is_none() {
            self.busy_since = Some(now);
        }
    }

    /// Judges the run, whose first attempt could be made at `now`.
    pub(crate) fn judge(&mut self, id: TimerId, now: Timestamp, missed: Missed) -> Overdue {
        let jitter = self.recurrence.jitter;
        let base = self.base();
        let late_from = self.moved.unwrap_or(self.nominal + jitter);
        let next = match missed {
            Missed::SkipIfOlderThan(age) if now > late_from + age => {
                self.first_younger_than(age, base, now)
            }
            Missed::Collapse if self.has_grid() => {
                let end = now.saturating_sub(jitter);
                match self.last_by(base, end) {
                    last if last > base => Some(last),
                    _ => return Overdue::Start,
                }
            }
            _ => return Overdue::Start,
        };
        self.missed += 1 + self.count(base, next);
        self.busy_since = None;
        match next {
            Some(next) => {
                self.nominal = next;
                self.moved = None;
                Overdue::Pass(self.due(id))
            }
            None => Overdue::Over,
        }
    }

    /// Goes on after the run, which ended at `now`, with a run that its receiver has asked for. `None` if
    /// the schedule does not take such wishes.
    pub(crate) fn end_as_asked(&mut self, now: Timestamp, delay: Duration) -> Option<Ended> {
        if let Schedule::Cron { .. } = self.recurrence.schedule {
            return None;
        }
        let next = now + delay.clamp(Recurrence::EVERY_MIN, Recurrence::EVERY_MAX);
        if self.was_the_last() {
            return Some(Ended::Over);
        }
        self.busy_since = None;
        if self.recurrence.is_over(next) {
            return Some(Ended::Over);
        }
        self.run += 1;
        self.nominal = next;
        // As one that was moved there: without jitter, and the grid goes on behind it.
        self.moved = Some(next);
        Some(Ended::Next(next))
    }

    /// Whether as many runs are made as there may be.
    fn was_the_last(&self) -> bool {
        let repeats = self.recurrence.repeats;
        let made = self.run.saturating_sub(u32::from(planted!(OneRunMore)));
        repeats.is_some_and(|repeats| made >= repeats.get()) || self.run == u32::MAX
    }

    /// Goes on after the run, which ended at `now`, by these rules; `None`: runs overlap as the recurrence says.
    pub(crate) fn end(
        &mut self,
        id: TimerId,
        now: Timestamp,
        (missed, overlap): (Missed, Option<Overlap>),
    ) -> Ended {
        let overlap = overlap.unwrap_or(self.recurrence.overlap);
        if self.was_the_last() {
            return Ended::Over;
        }
        let since = self.busy_since.take().unwrap_or(now);
        let next = if self.has_grid() {
            let first = self.after(self.base());
            let first = first.and_then(|first| self.pass_missed(id, first, since, now, missed));
            match first {
                Some(first) if self.due_at(id, first) <= since => {
                    self.busy_since = Some(since);
                    Some(first)
                }
                Some(first) if self.due_at(id, first) <= now => {
                    self.overlap(id, first, now, overlap)
                }
                on_time => on_time,
            }
        } else {
            self.after(now)
        };
        match next {
            Some(next) => {
                self.run += 1;
                self.nominal = next;
                self.moved = None;
                Ended::Next(self.due(id))
            }
            None => Ended::Over,
        }
    }

    /// From `first` on, what is left of the runs that came due until `since` and were not made.
    fn pass_missed(
        &mut self,
        id: TimerId,
        first: Timestamp,
        since: Timestamp,
        now: Timestamp,
        missed: Missed,
    ) -> Option<Timestamp> {
        if self.due_at(id, first) > since {
            return Some(first);
        }
        let jitter = self.recurrence.jitter;
        let next = match missed {
            Missed::SkipIfOlderThan(age) if now > first + jitter + age => {
                self.first_younger_than(age, first, now)
            }
            Missed::Fire if planted!(LoseMissedRuns) => Some(self.last_by(first, since)),
            Missed::Fire | Missed::SkipIfOlderThan(_) => Some(first),
            Missed::Collapse => Some(self.last_by(first, since.saturating_sub(jitter))),
        };
        if next != Some(first) {
            self.missed += 1 + self.count(first, next);
        }
        next
    }

    /// What to do with `first`, which came due while a run was under way, and with those that
    /// came due after it.
    fn overlap(
        &mut self,
        id: TimerId,
        first: Timestamp,
        now: Timestamp,
        overlap: Overlap,
    ) -> Option<Timestamp> {
        let certain = now.saturating_sub(self.recurrence.jitter);
        // Before this one, everything has come due.
        let mut ahead = if first > certain {
            Some(first)
        } else {
            self.after(certain)
        };
        for _ in 0..DRAWS_MAX {
            match ahead {
                Some(point) if self.due_at(id, point) <= now => ahead = self.after(point),
                _ => break,
            }
        }
        match overlap {
            Overlap::Skip if !planted!(OverlapMade) => {
                self.overlapped += 1 + self.count(first, ahead);
                ahead
            }
            Overlap::Queue | Overlap::Skip => {
                let end = ahead.map_or(now, |ahead| ahead.saturating_sub(Duration::from_micros(1)));
                let last = self.last_by(first, end);
                if last > first {
                    self.overlapped += 1 + self.count(first, Some(last));
                }
                Some(last)
            }
        }
    }

    /// Whether the nominal times are there before the runs are made.
    fn has_grid(&self) -> bool {
        !matches!(self.recurrence.schedule, Schedule::FixedDelay { .. })
    }

    /// After which time the next nominal time is looked for: after this run's own, or after the
    /// time to which it was moved.
    fn base(&self) -> Timestamp {
        self.moved
            .map_or(self.nominal, |moved| moved.max(self.nominal))
    }

    /// The first nominal time after `after`, if a run may have it.
    fn after(&self, after: Timestamp) -> Option<Timestamp> {
        let next = self.recurrence.schedule.next(self.origin, after)?;
        (!self.recurrence.is_over(next)).then_some(next)
    }

    /// The first nominal time after `base` that is, at `now`, not more than `age` overdue.
    fn first_younger_than(
        &self,
        age: Duration,
        base: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if !self.has_grid() {
            return self.after(now);
        }
        let oldest = now
            .saturating_sub(age)
            .saturating_sub(self.recurrence.jitter);
        let before = oldest.saturating_sub(Duration::from_micros(1));
        self.after(base.max(before))
    }

    /// The last nominal time by `end` that a run may have; `from` if none comes after it.
    fn last_by(&self, from: Timestamp, end: Timestamp) -> Timestamp {
        let end = self.recurrence.until.map_or(end, |until| until.min(end));
        self.recurrence.schedule.last(self.origin, from, end)
    }

    /// How many nominal times that a run may have lie between; up to the end if `next` is not
    /// there.
    fn count(&self, after: Timestamp, next: Option<Timestamp>) -> u64 {
        let behind_end = |until: Timestamp| until + Duration::from_micros(1);
        let end = next.or(self.recurrence.until.map(behind_end));
        self.recurrence
            .schedule
            .count(self.origin, after, end.unwrap_or(after))
    }
}

/// How far into its window a run is due: uniform, and the same whenever it is asked.
fn draw(id: TimerId, nominal: Timestamp, window: Duration) -> Duration {
    if window.is_zero() {
        return Duration::ZERO;
    }
    let mixed = [id.store, id.set.0, nominal.as_micros()]
        .into_iter()
        .fold(0, |seed, part| Random::new(seed ^ part).draw());
    Random::new(mixed).micros_up_to(window)
}
