//! The operations of a trace, and their times by the present clock.

use std::fmt;
use std::time::Duration;

use countwheel_durable::{Due, Key, QueueName, Recurrence, Schedule};
use countwheel_time::Timestamp;
use serde::Serialize;

use crate::trace::{Entry, TracedRequest, TracedTimer};

/// How many times faster than it happened.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Speed(f64);

impl Speed {
    /// A speed from a thousandth to a thousand million.
    ///
    /// # Errors
    /// [`SpeedError`] if it is none of these.
    ///
    /// ```
    /// use countwheel_server::cli::replay::Speed;
    ///
    /// assert!(Speed::new(46_000.0).is_ok());
    /// assert!(Speed::new(0.0).is_err());
    /// assert!(Speed::new(f64::NAN).is_err());
    /// ```
    pub fn new(factor: f64) -> Result<Self, SpeedError> {
        if (0.001..=1e9).contains(&factor) {
            Ok(Self(factor))
        } else {
            Err(SpeedError)
        }
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Speed {
    type Err = SpeedError;

    fn from_str(text: &str) -> Result<Self, SpeedError> {
        Self::new(text.parse().map_err(|_| SpeedError)?)
    }
}

/// A number that is no speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a speed is a number from 0.001 to 1000000000")]
pub struct SpeedError;

/// Maps the trace's time to the wall's: `start + (t - first) / speed`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timeline {
    /// The trace's time of the first operation.
    pub first: Timestamp,
    /// The wall time at which it is carried out.
    pub start: Timestamp,
    /// How many times faster the trace's time runs.
    pub speed: Speed,
}

impl Timeline {
    /// The wall time of a time of the trace; the start, if it lies before the first.
    #[must_use]
    pub fn wall(&self, at: Timestamp) -> Timestamp {
        let since = at.saturating_since(self.first);
        // At most 584,542 years over a thousandth: far below the longest duration.
        self.start + self.span(since)
    }

    /// How long a span of the trace takes.
    #[must_use]
    pub fn span(&self, span: Duration) -> Duration {
        span.div_f64(self.speed.0)
    }

    /// An operation of the trace, with all times on the wall. Delays count from the operation, and
    /// so become times; but the first run of a timer that recurs stays a delay. The durations of a
    /// recurrence and of a retry policy stay as they are: a calendar knows no speed.
    fn operation(&self, entry: Entry) -> Operation {
        let due = |due| match due {
            Due::At(at) => self.wall(at),
            Due::In(delay) => self.wall(entry.happened + delay),
        };
        let action = match entry.request {
            TracedRequest::Set(mut timer) => {
                match &mut timer.options.recurrence {
                    None => timer.due = Due::At(due(timer.due)),
                    Some(recurrence) => {
                        timer.due = match timer.due {
                            Due::At(at) => Due::At(self.wall(at)),
                            Due::In(delay) if timer.says_when => Due::In(self.span(delay)),
                            interval @ Due::In(_) => interval,
                        };
                        self.shift(recurrence);
                    }
                }
                Action::Set { timer }
            }
            TracedRequest::Move { due: to } => Action::Move { at: due(to) },
            TracedRequest::Remove => Action::Remove,
        };
        Operation {
            line: entry.line,
            queue: entry.queue,
            key: entry.key,
            issue: self.wall(entry.happened),
            action,
        }
    }

    fn shift(&self, recurrence: &mut Recurrence) {
        recurrence.until = recurrence.until.map(|until| self.wall(until));
        if let Schedule::FixedRate { anchor, .. } = &mut recurrence.schedule {
            *anchor = anchor.map(|anchor| self.wall(anchor));
        }
    }
}

/// One thing to ask of the server.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The line of the trace.
    pub line: u64,
    /// The queue, if the line names one.
    pub queue: Option<QueueName>,
    /// The timer's key.
    pub key: Key,
    /// The wall time at which to ask.
    pub issue: Timestamp,
    /// What to ask.
    pub action: Action,
}

/// What to ask of the server. Deadlines are wall times.
#[derive(Clone, Debug)]
pub enum Action {
    /// Set the timer.
    Set {
        /// What it is.
        timer: Box<TracedTimer>,
    },
    /// Move it.
    Move {
        /// Its new deadline.
        at: Timestamp,
    },
    /// Remove it.
    Remove,
}

impl Action {
    /// The deadline asked for; none of a timer that recurs and does not begin at a time.
    #[must_use]
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Set { timer } => match timer.due {
                Due::At(at) => Some(at),
                Due::In(_) => None,
            },
            Self::Move { at } => Some(*at),
            Self::Remove => None,
        }
    }

    /// Which of the three.
    #[must_use]
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Set { .. } => OperationKind::Set,
            Self::Move { .. } => OperationKind::Move,
            Self::Remove => OperationKind::Remove,
        }
    }
}

/// Which of the three.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationKind {
    /// Set a timer.
    Set,
    /// Move it.
    Move,
    /// Remove it.
    Remove,
}

/// The operations of a trace, one by one as they are read, with times of the wall. The first one is
/// asked at the start.
///
/// ```
/// use countwheel_time::Timestamp;
/// use countwheel_server::cli::replay::{Planner, Speed};
/// use countwheel_server::trace::{TraceError, TraceReader};
/// use std::time::Duration;
///
/// let text = r#"{"t":"2013-01-01T10:00:00Z","op":"set","key":"a","at":"2013-01-01T11:00:00Z"}
/// {"t":"2013-01-01T10:30:00Z","op":"move","key":"a","in":"2h"}"#;
/// let speed = Speed::new(3_600.0).expect("it is within the bounds");
/// let start = Timestamp::from_micros(1_800_000_000_000_000);
/// let operations = Planner::new(TraceReader::new(text.as_bytes()), speed, start);
/// let operations = operations.collect::<Result<Vec<_>, _>>()?;
/// let seconds = |millis| start + Duration::from_millis(millis);
/// assert_eq!(operations[0].action.at(), Some(seconds(1_000)));
/// assert_eq!(operations[1].issue, seconds(500));
/// assert_eq!(operations[1].action.at(), Some(seconds(2_500)));
/// # Ok::<(), TraceError>(())
/// ```
#[derive(Debug)]
pub struct Planner<I> {
    entries: I,
    speed: Speed,
    start: Timestamp,
    timeline: Option<Timeline>,
}

impl<I> Planner<I> {
    /// Plans `entries`, which are in the order of their times; the first is at `start`.
    pub fn new(entries: I, speed: Speed, start: Timestamp) -> Self {
        Self {
            entries,
            speed,
            start,
            timeline: None,
        }
    }
}

impl<I, E> Iterator for Planner<I>
where
    I: Iterator<Item = Result<Entry, E>>,
{
    type Item = Result<Operation, E>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = match self.entries.next()? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error)),
        };
        let timeline = self.timeline.get_or_insert(Timeline {
            first: entry.happened,
            start: self.start,
            speed: self.speed,
        });
        Some(Ok(timeline.operation(entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceReader;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    /// The operations of lines, at sixty times their speed: a minute is a second.
    fn plan(lines: &[&str]) -> Vec<Operation> {
        let text = lines.join("\n");
        let speed = Speed::new(60.0).unwrap();
        let operations = Planner::new(TraceReader::new(text.as_bytes()), speed, START);
        operations.collect::<Result<_, _>>().unwrap()
    }

    /// The timer that a line sets which happens a minute, now a second, after the first.
    fn set(fields: &str) -> TracedTimer {
        let line = format!(r#"{{"t":"2026-03-01T12:01:00Z","op":"set","key":"b",{fields}}}"#);
        let first = r#"{"t":"2026-03-01T12:00:00Z","op":"remove","key":"a"}"#;
        let set = plan(&[first, &line]).remove(1);
        assert_eq!(set.issue, seconds(1));
        match set.action {
            Action::Set { timer } => *timer,
            other => panic!("{other:?}"),
        }
    }

    fn seconds(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn times_and_delays_of_a_trace_become_times_of_the_wall() {
        let to = |fields| set(fields).due;
        assert_eq!(to(r#""at":"2026-03-01T12:05:00Z""#), Due::At(seconds(5)));
        assert_eq!(to(r#""in":"10m""#), Due::At(seconds(11)));
        assert_eq!(to(r#""in":0"#), Due::At(seconds(1)));
        // Passed already; and before the trace began.
        assert_eq!(
            to(r#""at":"2026-03-01T12:00:30Z""#),
            Due::At(START + Duration::from_millis(500))
        );
        assert_eq!(to(r#""at":"1970-01-01T00:00:00Z""#), Due::At(START));
        let moved = plan(&[
            r#"{"t":"2026-03-01T12:00:00Z","op":"remove","key":"a"}"#,
            r#"{"t":"2026-03-01T12:01:00Z","op":"move","queue":"q","key":"b","in":"2m"}"#,
        ]);
        assert_eq!(moved[1].action.at(), Some(seconds(3)));
        assert_eq!((moved[1].line, moved[1].key.as_str()), (2, "b"));
        assert_eq!(moved[1].queue.as_ref().map(QueueName::as_str), Some("q"));
        assert_eq!((moved[0].issue, moved[0].action.at()), (START, None));
    }

    #[test]
    fn a_schedule_keeps_its_intervals_and_only_its_times_are_mapped() {
        let minute = Duration::from_secs(60);
        let recurrence = |timer: &TracedTimer| timer.options.recurrence.clone().unwrap();
        let rate = set(r#""every":"1m","until":"2026-03-01T12:11:00Z""#);
        assert_eq!(rate.due, Due::In(minute));
        assert_eq!(recurrence(&rate).until, Some(seconds(11)));
        let rate = set(r#""every":"1m","in":"1m""#);
        assert_eq!(rate.due, Due::In(Duration::from_secs(1)));
        let rate = set(r#""every":"1m","at":"2026-03-01T12:02:00Z""#);
        let (every, anchor) = (minute, Some(seconds(2)));
        assert_eq!(
            recurrence(&rate).schedule,
            Schedule::FixedRate { every, anchor }
        );
        let delay = set(r#""every_after":"1m","at":"2026-03-01T12:02:00Z""#);
        assert_eq!(delay.due, Due::At(seconds(2)));
        let calendar = set(r#""cron":"0 9 * * *""#);
        assert_eq!(calendar.due, Due::In(Duration::ZERO));
    }

    #[test]
    fn the_time_line_begins_at_the_start_and_runs_at_the_speed() {
        let timeline = Timeline {
            first: Timestamp::from_micros(1_000_000_000),
            start: START,
            speed: Speed::new(0.5).unwrap(),
        };
        assert_eq!(timeline.wall(timeline.first), START);
        assert_eq!(timeline.wall(Timestamp::EPOCH), START);
        let later = timeline.first + Duration::from_secs(10);
        assert_eq!(timeline.wall(later), START + Duration::from_secs(20));
        let end = Timeline {
            speed: Speed::new(0.001).unwrap(),
            ..timeline
        };
        assert_eq!(end.wall(Timestamp::MAX), Timestamp::MAX);
    }

    #[test]
    fn an_error_of_the_trace_comes_through() {
        let text = "{\"t\":\"2026-03-01T12:00:00Z\",\"op\":\"remove\",\"key\":\"a\"}\nsoon";
        let speed = Speed::new(1.0).unwrap();
        let mut planner = Planner::new(TraceReader::new(text.as_bytes()), speed, START);
        assert!(planner.next().is_some_and(|first| first.is_ok()));
        assert!(planner.next().is_some_and(|second| second.is_err()));
        assert!(planner.next().is_none());
    }
}
