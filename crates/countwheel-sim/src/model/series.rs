//! Recurring timers in the plainest way: the points of the schedule one after the other, each
//! checked on its own. The model searches nothing, and computes nothing for many points at once.

use std::time::Duration;

use countwheel_durable::{
    Due, DueClock, Missed, Overlap, Recurrence, RecurrenceError, Recurring, Run, Schedule,
    TimerError, TimerId,
};
use countwheel_time::Timestamp;

use super::{Now, Verdicts};
use crate::random::Random;

/// Of runs that a calendar names, so many are counted at a time.
const COUNT_MAX: u64 = 10_000;

/// A schedule, and where a timer stands in it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Series {
    pub(super) recurrence: Recurrence,
    /// The same without a number of runs.
    unnumbered: Recurrence,
    /// The rules that hold now, of the timer or of its queue.
    pub(super) missed: Missed,
    pub(super) overlap: Overlap,
    /// A point of a fixed rate.
    origin: Timestamp,
    pub(super) run: u32,
    pub(super) nominal: Timestamp,
    /// When it is due by request, between these.
    moved: Option<(Timestamp, Timestamp)>,
    /// A run was asked for while it was not known whether one was due already.
    unsettled: Option<Asked>,
    busy_since: Option<Timestamp>,
    not_made_missed: u64,
    not_made_overlapped: u64,
    dead: u64,
}

/// Somebody asked for a run at once, and it depends on the timer's id, which is not known yet,
/// whether the one there was had come due.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Asked {
    at: Timestamp,
    /// The run was due between these.
    due: (Timestamp, Timestamp),
    /// Whether the run was moved after that.
    is_moved_since: bool,
}

/// What is to be done with a run that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judged {
    Start,
    /// Not this one, but one that is due then.
    Pass(Timestamp),
    /// Not this one, and there is no other.
    Over,
}

impl Series {
    /// The first run that is not before `due`, and its nominal time.
    pub(super) fn begin(
        recurrence: &Recurrence,
        missed: Missed,
        (due, clock): (Timestamp, DueClock),
        now: Now,
    ) -> Result<Self, TimerError> {
        let by = recurrence.clock();
        let from = now.convert(due, clock, by);
        let unnumbered = Recurrence {
            repeats: None,
            ..recurrence.clone()
        };
        let mut series = Self {
            recurrence: recurrence.clone(),
            unnumbered,
            missed,
            overlap: recurrence.overlap,
            origin: from,
            run: 1,
            nominal: from,
            moved: None,
            unsettled: None,
            busy_since: None,
            not_made_missed: 0,
            not_made_overlapped: 0,
            dead: 0,
        };
        if let Schedule::FixedRate {
            anchor: Some(anchor),
            ..
        } = recurrence.schedule
        {
            series.origin = anchor;
        }
        let just_before = from.saturating_sub(Duration::from_micros(1));
        let first = match recurrence.schedule {
            Schedule::FixedRate { anchor: None, .. } | Schedule::FixedDelay { .. } => {
                Some(from).filter(|from| recurrence.until.is_none_or(|until| *from <= until))
            }
            _ => series.points(just_before).next(),
        };
        series.nominal = first.ok_or(RecurrenceError::NoRun)?;
        if !series.is_calendar() {
            series.origin = match recurrence.schedule {
                Schedule::FixedRate { anchor, .. } => anchor.unwrap_or(series.nominal),
                _ => series.nominal,
            };
        } else {
            series.origin = series.nominal;
        }
        Due::At(series.nominal).resolve(now.by(by))?;
        Ok(series)
    }

    pub(super) fn clock(&self) -> DueClock {
        self.recurrence.clock()
    }

    fn is_calendar(&self) -> bool {
        matches!(self.recurrence.schedule, Schedule::Cron { .. })
    }

    /// The nominal times after `after` that a run may have, in order.
    fn points(&self, after: Timestamp) -> Box<dyn Iterator<Item = Timestamp> + '_> {
        let until = self.recurrence.until.unwrap_or(Timestamp::MAX);
        match &self.recurrence.schedule {
            Schedule::FixedRate { every, .. } => {
                let every = micros(*every);
                let origin = self.origin.as_micros();
                let passed = after.as_micros().checked_sub(origin);
                let first = passed.map_or(0, |passed| passed / every + 1);
                let points =
                    (first..).map(move |step| Timestamp::from_micros(origin + step * every));
                Box::new(points.take_while(move |&point| point <= until))
            }
            Schedule::Cron { .. } => {
                let from = after + Duration::from_micros(1);
                Box::new(self.unnumbered.nominal_times(from))
            }
            Schedule::FixedDelay { every } => {
                let next = after + *every;
                Box::new((next <= until).then_some(next).into_iter())
            }
        }
    }

    /// When a run is due, and between when it is if the timer's id is not known.
    pub(super) fn due(&self, id: Option<TimerId>) -> (Timestamp, Timestamp) {
        match id {
            Some(id) => {
                let due = self.due_of(id, self.nominal);
                (due, due)
            }
            None => (self.nominal, self.nominal + self.recurrence.jitter),
        }
    }

    /// The jitter of a run is a function of the timer's id and its nominal time, so that it is
    /// the same after a restart.
    fn due_of(&self, id: TimerId, nominal: Timestamp) -> Timestamp {
        let window = micros(self.recurrence.jitter);
        if window == 0 {
            return nominal;
        }
        let parts = [id.store, id.set.0, nominal.as_micros()];
        let seed = parts
            .into_iter()
            .fold(0, |seed, part| Random::new(seed ^ part, "").draw());
        nominal + Duration::from_micros(Random::new(seed, "").below(window + 1))
    }

    /// How much earlier the run is due than it could be with another draw.
    pub(super) fn far(&self, id: TimerId) -> Duration {
        let latest = self.nominal + self.recurrence.jitter;
        latest.saturating_since(self.due_of(id, self.nominal))
    }

    /// The run is due at another time, by request.
    pub(super) fn move_to(&mut self, due: (Timestamp, Timestamp)) {
        self.moved = Some(due);
        if let Some(asked) = &mut self.unsettled {
            asked.is_moved_since = true;
        }
    }

    /// Somebody asked for a run at once. It is due between these two.
    pub(super) fn fire(&mut self, (low, high): (Timestamp, Timestamp), now: Timestamp) {
        if low > now {
            self.unsettled = None;
            self.make_extra(now);
        } else if high > now {
            self.unsettled = Some(Asked {
                at: now,
                due: (low, high),
                is_moved_since: false,
            });
        }
    }

    /// The run is one of its own, due at once: what the schedule has comes after it.
    fn make_extra(&mut self, now: Timestamp) {
        self.nominal = now;
        self.moved = None;
    }

    /// The timer's id is known now: so is how `far` its draw is from the end of its jitter.
    pub(super) fn settle(&mut self, far: Duration) {
        if let Some(moved) = &mut self.moved {
            *moved = settled(*moved, far);
        }
        if let Some(asked) = self.unsettled.take()
            && settled(asked.due, far).0 > asked.at
        {
            let moved = self.moved.filter(|_| asked.is_moved_since);
            self.make_extra(asked.at);
            self.moved = moved;
        }
    }

    /// The first attempt of the run starts.
    pub(super) fn start(&mut self, now: Timestamp, waited: bool) {
        if waited {
            self.busy_since = None;
        }
        self.busy_since.get_or_insert(now);
    }

    /// Which run this is, as its attempts say it.
    pub(super) fn shown(&self) -> Run {
        Run {
            number: self.run,
            nominal: self.nominal,
        }
    }

    fn base(&self) -> Timestamp {
        self.moved
            .map_or(self.nominal, |(_, moved)| moved.max(self.nominal))
    }

    /// Whether a run that is due at `point`, or up to the jitter later, is too old at `now`.
    fn is_too_old(&self, point: Timestamp, age: Duration, now: Timestamp) -> bool {
        now > point + self.recurrence.jitter + age
    }

    /// The first after `after` that `wanted` takes; and how many there are before it.
    fn first(
        &self,
        after: Timestamp,
        wanted: impl Fn(Timestamp) -> bool,
    ) -> (Option<Timestamp>, u64) {
        let mut passed = 0;
        for point in self.points(after) {
            if wanted(point) {
                return (Some(point), self.counted(passed));
            }
            passed += 1;
        }
        (None, self.counted(passed))
    }

    /// The last after `after` by `end`; and how many there are before it.
    fn last(&self, after: Timestamp, end: Timestamp) -> (Option<Timestamp>, u64) {
        let mut last = None;
        let mut passed = 0;
        for point in self.points(after).take_while(|&point| point <= end) {
            passed += u64::from(last.is_some());
            last = Some(point);
        }
        (last, self.counted(passed))
    }

    fn counted(&self, count: u64) -> u64 {
        if self.is_calendar() {
            count.min(COUNT_MAX)
        } else {
            count
        }
    }

    /// What is to be done with the run, whose first attempt could be made at `now`.
    pub(super) fn judge(&mut self, id: TimerId, now: Timestamp) -> Judged {
        let has_grid = !matches!(self.recurrence.schedule, Schedule::FixedDelay { .. });
        let base = self.base();
        let late = match self.moved {
            Some((_, moved)) => now.saturating_since(moved),
            None => now.saturating_since(self.nominal + self.recurrence.jitter),
        };
        let (next, between) = match self.missed {
            Missed::SkipIfOlderThan(age) if late > age => {
                if has_grid {
                    self.first(base, |point| !self.is_too_old(point, age, now))
                } else {
                    (self.points(now).next(), 0)
                }
            }
            Missed::Collapse if has_grid => {
                let (last, between) = self.last(base, now.saturating_sub(self.recurrence.jitter));
                if last.is_none() {
                    return Judged::Start;
                }
                (last, between)
            }
            _ => return Judged::Start,
        };
        self.not_made_missed += 1 + between;
        self.busy_since = None;
        match next {
            Some(next) => {
                self.nominal = next;
                self.moved = None;
                Judged::Pass(self.due_of(id, next))
            }
            None => Judged::Over,
        }
    }

    /// The run was given up.
    pub(super) fn give_up(&mut self) {
        self.dead += 1;
    }

    /// The run has ended. When the next is due, if there is one; its receiver may have asked for one so much
    /// later.
    pub(super) fn end(
        &mut self,
        id: TimerId,
        now: Timestamp,
        asked: Option<Duration>,
    ) -> Option<Timestamp> {
        if self
            .recurrence
            .repeats
            .is_some_and(|most| self.run >= most.get())
        {
            return None;
        }
        let since = self.busy_since.take().unwrap_or(now);
        let is_calendar = matches!(self.recurrence.schedule, Schedule::Cron { .. });
        if let Some(delay) = asked.filter(|_| !is_calendar) {
            let next = now + delay.max(Recurrence::EVERY_MIN);
            if self.recurrence.until.is_some_and(|until| next > until) {
                return None;
            }
            self.run += 1;
            self.nominal = next;
            self.moved = Some((next, next));
            return Some(next);
        }
        let next = match self.recurrence.schedule {
            Schedule::FixedDelay { .. } => self.points(now).next(),
            _ => self.next_of_grid(id, since, now),
        };
        let next = next?;
        self.run += 1;
        self.nominal = next;
        self.moved = None;
        Some(self.due_of(id, next))
    }

    fn next_of_grid(&mut self, id: TimerId, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let mut next = self.points(self.base()).next()?;
        // What came due before the run under way began was missed already.
        if self.due_of(id, next) <= since {
            let first = next;
            let (chosen, between) = match self.missed {
                Missed::SkipIfOlderThan(age) if self.is_too_old(first, age, now) => {
                    self.first(first, |point| !self.is_too_old(point, age, now))
                }
                Missed::Collapse => {
                    let end = since.saturating_sub(self.recurrence.jitter);
                    let (last, between) = self.last(first, end);
                    (Some(last.unwrap_or(first)), between)
                }
                _ => (Some(first), 0),
            };
            if chosen != Some(first) {
                self.not_made_missed += 1 + between;
            }
            next = chosen?;
        }
        if self.due_of(id, next) <= since {
            self.busy_since = Some(since);
            return Some(next);
        }
        if self.due_of(id, next) > now {
            return Some(next);
        }
        // What came due after that, until now, overlapped with it.
        let mut last = next;
        let mut between = 0;
        let mut ahead = None;
        for point in self.points(next) {
            if self.due_of(id, point) > now {
                ahead = Some(point);
                break;
            }
            between += u64::from(last != next);
            last = point;
        }
        match self.overlap {
            Overlap::Skip => {
                let all = between + u64::from(last != next);
                self.not_made_overlapped += 1 + self.counted(all);
                ahead
            }
            Overlap::Queue => {
                if last != next {
                    self.not_made_overlapped += 1 + self.counted(between);
                }
                Some(last)
            }
        }
    }

    /// Whether no run of it is the last.
    pub(super) fn is_endless(&self) -> bool {
        self.recurrence.repeats.is_none() && self.recurrence.until.is_none()
    }

    /// No more runs that are left are counted than this.
    pub(super) const RUNS_COUNTED: u64 = 1_000;

    /// How many runs are left, and by when the last of them is certainly due, if one that is due
    /// then comes next and none takes long.
    pub(super) fn rest(&self, due: Timestamp) -> (u64, Timestamp) {
        // A run that is passed over has no number; while a backlog lasts, some are.
        let left = self.recurrence.repeats.map_or(u64::MAX, |most| {
            2 * u64::from(most.get().saturating_sub(self.run)) + 3
        });
        let mut last = due.max(self.base());
        let mut runs = 1;
        let slack = Duration::from_secs(1);
        let until = self.recurrence.until.unwrap_or(Timestamp::MAX);
        while runs <= left && last <= until && runs < Self::RUNS_COUNTED {
            let Some(next) = self.points(last).next() else {
                break;
            };
            last = next;
            runs += 1;
        }
        // A run that was moved to an earlier time ends earlier, and then one more may come before the end.
        if let Some(until) = self.recurrence.until {
            (last, runs) = (last.max(until), runs + 1);
        }
        // The one after a delay waits for the end of the one before, its jitter included.
        let each = slack + self.recurrence.jitter;
        (runs, last + each * u32::try_from(runs).unwrap_or(u32::MAX))
    }

    /// Whether a record stands where this does, as far as it can be told from which run comes next.
    pub(super) fn is_at(&self, kept: &Recurring) -> bool {
        self.run == kept.run && self.nominal == kept.nominal && self.dead == kept.dead
    }

    /// Compares all of it with what is stored.
    pub(super) fn check(&self, kept: &Recurring) -> Verdicts {
        let expected = Recurring {
            recurrence: self.recurrence.clone(),
            run: self.run,
            nominal: self.nominal,
            moved: self.moved.map(|(moved, _)| moved),
            origin: self.origin,
            busy_since: self.busy_since,
            missed: self.not_made_missed,
            overlapped: self.not_made_overlapped,
            dead: self.dead,
        };
        if *kept == expected {
            Ok(())
        } else {
            Err(format!("stands at {kept:?}, expected {expected:?}"))
        }
    }
}

/// The one of a range of times that it is if the draw stays so `far` from its end. What a move
/// would have put before its own time is at that time, so that the beginning of a range may be
/// later than by the jitter.
pub(super) fn settled(
    (low, high): (Timestamp, Timestamp),
    far: Duration,
) -> (Timestamp, Timestamp) {
    let due = high.saturating_sub(far).max(low);
    (due, due)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
