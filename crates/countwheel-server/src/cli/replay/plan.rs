//! What a trace asks for, and when.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::iter::Peekable;
use std::time::Duration;

use countwheel::Timestamp;
use countwheel_departures::Flight;
use serde::Serialize;

const MINUTE: Duration = Duration::from_secs(60);
/// How long before its scheduled departure a flight is set.
const SET_AHEAD: Duration = Duration::from_secs(24 * 3600);
/// How long before it a cancelled flight is removed.
const REMOVE_AHEAD: Duration = Duration::from_secs(3600);
/// How long before it a late flight is moved.
const MOVE_AHEAD: Duration = Duration::from_secs(30 * 60);
/// The longest delay, in minutes, for which a flight is left where it is.
const TOLERATED_MINUTES: u32 = 15;

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
        self.start + since.div_f64(self.speed.0)
    }
}

/// One thing to ask of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The timer's key.
    pub key: String,
    /// The wall time at which to ask.
    pub issue: Timestamp,
    /// What to ask.
    pub action: Action,
}

/// What to ask of the server. Deadlines are wall times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Set the timer.
    Set {
        /// Its deadline.
        at: Timestamp,
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
    /// The deadline asked for.
    #[must_use]
    pub fn at(self) -> Option<Timestamp> {
        match self {
            Self::Set { at } | Self::Move { at } => Some(at),
            Self::Remove => None,
        }
    }

    /// Which of the three.
    #[must_use]
    pub fn kind(self) -> OperationKind {
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

/// The operations of flights in the order of their scheduled departure, in the order of
/// their times; those of one flight in the order set, then move or remove.
///
/// ```
/// use countwheel::Timestamp;
/// use countwheel_server::cli::replay::{Action, Speed, plan};
/// use countwheel_departures::Flight;
/// use std::time::Duration;
///
/// let scheduled = Timestamp::from_micros(1_357_035_300_000_000);
/// let flight = Flight { scheduled, key: "UA1545".to_owned(), delay_minutes: Some(60) };
/// let start = Timestamp::from_micros(1_800_000_000_000_000);
/// let operations = plan(&[flight], Speed::new(3_600.0)?, start);
/// let seconds = |n| start + Duration::from_millis(n);
/// assert_eq!(operations[0].action, Action::Set { at: seconds(24_000) });
/// assert_eq!(operations[1].issue, seconds(23_500));
/// assert_eq!(operations[1].action, Action::Move { at: seconds(25_000) });
/// # Ok::<(), countwheel_server::cli::replay::SpeedError>(())
/// ```
#[must_use]
pub fn plan(flights: &[Flight], speed: Speed, start: Timestamp) -> Vec<Operation> {
    let flights = flights.iter().cloned().map(Ok::<_, Infallible>);
    let operations = Planner::new(flights, speed, start);
    operations.map(|Ok(operation)| operation).collect()
}

/// [`plan`] as a stream: holds the flights of a day and no more, however long the trace.
/// Ends after the first error of its source.
#[derive(Debug)]
pub struct Planner<I, E>
where
    I: Iterator<Item = Result<Flight, E>>,
{
    flights: Peekable<I>,
    speed: Speed,
    start: Timestamp,
    timeline: Option<Timeline>,
    /// Operations of flights that were set, each in the order of the trace's time.
    removes: VecDeque<Later>,
    moves: VecDeque<Later>,
}

/// An operation that waits behind sets of later flights.
#[derive(Debug)]
struct Later {
    /// The trace's time: two of them can fall on one microsecond of the wall.
    when: Timestamp,
    operation: Operation,
}

impl<I, E> Planner<I, E>
where
    I: Iterator<Item = Result<Flight, E>>,
{
    /// Plans `flights`, whose first operation is at `start`.
    pub fn new(flights: I, speed: Speed, start: Timestamp) -> Self {
        Self {
            flights: flights.peekable(),
            speed,
            start,
            timeline: None,
            removes: VecDeque::new(),
            moves: VecDeque::new(),
        }
    }

    fn set(&mut self, flight: Flight) -> Operation {
        let timeline = *self.timeline.get_or_insert(Timeline {
            first: flight.scheduled.saturating_sub(SET_AHEAD),
            start: self.start,
            speed: self.speed,
        });
        let Flight {
            scheduled,
            key,
            delay_minutes,
        } = flight;
        let later = |ahead, action| {
            let when = scheduled.saturating_sub(ahead);
            Later {
                when,
                operation: Operation {
                    key: key.clone(),
                    issue: timeline.wall(when),
                    action,
                },
            }
        };
        match delay_minutes.map(u32::try_from) {
            None => self.removes.push_back(later(REMOVE_AHEAD, Action::Remove)),
            Some(Ok(minutes)) if minutes > TOLERATED_MINUTES => {
                let at = timeline.wall(scheduled + MINUTE * minutes);
                self.moves.push_back(later(MOVE_AHEAD, Action::Move { at }));
            }
            // On time, or early.
            Some(_) => {}
        }
        Operation {
            key,
            issue: timeline.wall(scheduled.saturating_sub(SET_AHEAD)),
            action: Action::Set {
                at: timeline.wall(scheduled),
            },
        }
    }
}

impl<I, E> Iterator for Planner<I, E>
where
    I: Iterator<Item = Result<Flight, E>>,
{
    type Item = Result<Operation, E>;

    fn next(&mut self) -> Option<Self::Item> {
        let set = match self.flights.peek() {
            Some(Ok(flight)) => Some(flight.scheduled.saturating_sub(SET_AHEAD)),
            Some(Err(_)) => Some(Timestamp::EPOCH),
            None => None,
        };
        let front = |queue: &VecDeque<Later>| queue.front().map(|later| later.when);
        let (remove, shift) = (front(&self.removes), front(&self.moves));
        let next = [set, remove, shift].into_iter().flatten().min()?;
        // A trace that begins on the epoch's first day has sets and others at one time:
        // the set comes first.
        if set == Some(next) {
            let flight = self.flights.next()?;
            return Some(flight.map(|flight| self.set(flight)));
        }
        let queue = if remove == Some(next) {
            &mut self.removes
        } else {
            &mut self.moves
        };
        queue.pop_front().map(|later| Ok(later.operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const DAY_MINUTES: u64 = 24 * 60;

    /// A flight scheduled so many minutes after noon of some day.
    fn flight(key: &str, minute: u64, delay_minutes: Option<i32>) -> Flight {
        Flight {
            scheduled: Timestamp::from_micros(1_357_041_600_000_000) + minutes(minute),
            key: key.to_owned(),
            delay_minutes,
        }
    }

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    /// At sixty times the speed a minute is a second: reads as `key action second [at]`.
    fn told(flights: &[Flight]) -> Vec<String> {
        let seconds = |at: Timestamp| at.saturating_since(START).as_secs_f64();
        let tell = |operation: Operation| {
            let kind = operation.action.kind();
            let at = operation.action.at();
            let at = at.map_or(String::new(), |at| format!(" to {}", seconds(at)));
            let issue = seconds(operation.issue);
            format!("{issue} {kind:?} {}{at}", operation.key)
        };
        let operations = plan(flights, Speed::new(60.0).unwrap(), START);
        operations.into_iter().map(tell).collect()
    }

    #[test]
    fn each_line_becomes_a_set_and_what_its_delay_asks_for() {
        let flights = [
            flight("on-time", 0, Some(0)),
            flight("early", 1, Some(-20)),
            flight("tolerated", 2, Some(15)),
            flight("late", 3, Some(16)),
            flight("cancelled", 4, None),
            flight("next-day", DAY_MINUTES - 28, Some(0)),
        ];
        assert_eq!(
            told(&flights),
            [
                "0 Set on-time to 1440",
                "1 Set early to 1441",
                "2 Set tolerated to 1442",
                "3 Set late to 1443",
                "4 Set cancelled to 1444",
                "1384 Remove cancelled",
                "1412 Set next-day to 2852",
                "1413 Move late to 1459",
            ]
        );
    }

    #[test]
    fn operations_are_in_the_order_of_time_and_of_each_flight() {
        let flights: Vec<_> = (0..5_000)
            .map(|i| {
                let delay = [Some(3), None, Some(90), Some(-4)][i % 4];
                flight(&i.to_string(), u64::try_from(i / 3).unwrap(), delay)
            })
            .collect();
        let operations = plan(&flights, Speed::new(1e9).unwrap(), START);
        assert_eq!(operations.len(), 5_000 + 2_500);
        let mut set = std::collections::HashSet::new();
        let mut last = START;
        for operation in operations {
            assert!(operation.issue >= last);
            last = operation.issue;
            let first = set.insert(operation.key);
            assert_eq!(first, operation.action.kind() == OperationKind::Set);
        }
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
    fn a_day_is_held_and_no_more() {
        let mut read = 0;
        let flights = (0..10_000).map(|i| Ok::<_, ()>(flight(&i.to_string(), i * 10, None)));
        let flights = flights.inspect(|_| read += 1);
        let mut planner = Planner::new(flights, Speed::new(60.0).unwrap(), START);
        let mut held = 0;
        while planner.next().is_some() {
            held = held.max(planner.removes.len());
        }
        assert!(held <= 24 * 6, "{held}");
        assert_eq!(read, 10_000);
    }

    #[test]
    fn an_error_of_the_trace_comes_through() {
        let flights = [Ok(flight("a", 0, None)), Err("line 3")];
        let mut planner = Planner::new(flights.into_iter(), Speed::new(1.0).unwrap(), START);
        assert!(planner.next().is_some_and(|first| first.is_ok()));
        assert_eq!(planner.next(), Some(Err("line 3")));
    }
}
