//! The operations of departures and their times: the lines of a trace.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::iter::Peekable;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::Serialize;

use crate::{DeparturesError, Flight};

const MINUTE: Duration = Duration::from_secs(60);
/// How long before its scheduled departure a flight is set.
const SET_AHEAD: Duration = Duration::from_secs(24 * 3600);
/// How long before it a cancelled flight is removed.
const REMOVE_AHEAD: Duration = Duration::from_secs(3600);
/// How long before it a late flight is moved.
const MOVE_AHEAD: Duration = Duration::from_secs(30 * 60);
/// The longest delay, in minutes, for which a flight is left where it is.
const TOLERATED_MINUTES: u32 = 15;

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// When it is asked for.
    pub when: Timestamp,
    /// The flight's key.
    pub key: String,
    /// What is asked.
    pub action: Action,
}

/// What is asked of a flight's timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Set it.
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

/// The operations of flights in the order of their scheduled departure, in the order of
/// their times; those of one flight in the order set, then move or remove.
///
/// Holds the flights of a day and no more, however long the file. Ends after the first error of its
/// source.
///
/// ```
/// use countwheel_time::Timestamp;
/// use countwheel_departures::{Action, Flight, Planner};
/// use std::time::Duration;
///
/// let scheduled = Timestamp::from_micros(1_357_035_300_000_000);
/// let flight = Flight { scheduled, key: "UA1545".to_owned(), delay_minutes: Some(60) };
/// let operations: Result<Vec<_>, ()> = Planner::new([Ok(flight)].into_iter()).collect();
/// let operations = operations?;
/// assert_eq!(operations[0].action, Action::Set { at: scheduled });
/// assert_eq!(operations[1].when + Duration::from_secs(1_800), scheduled);
/// let at = scheduled + Duration::from_secs(3_600);
/// assert_eq!(operations[1].action, Action::Move { at });
/// # Ok::<(), ()>(())
/// ```
#[derive(Debug)]
pub struct Planner<I, E>
where
    I: Iterator<Item = Result<Flight, E>>,
{
    flights: Peekable<I>,
    /// Operations of flights that were set, each in the order of time.
    removes: VecDeque<Operation>,
    moves: VecDeque<Operation>,
}

impl<I, E> Planner<I, E>
where
    I: Iterator<Item = Result<Flight, E>>,
{
    /// Plans `flights`.
    pub fn new(flights: I) -> Self {
        Self {
            flights: flights.peekable(),
            removes: VecDeque::new(),
            moves: VecDeque::new(),
        }
    }

    fn set(&mut self, flight: Flight) -> Operation {
        let Flight {
            scheduled,
            key,
            delay_minutes,
        } = flight;
        let later = |ahead, action| Operation {
            when: scheduled.saturating_sub(ahead),
            key: key.clone(),
            action,
        };
        match delay_minutes.map(u32::try_from) {
            None => self.removes.push_back(later(REMOVE_AHEAD, Action::Remove)),
            Some(Ok(minutes)) if minutes > TOLERATED_MINUTES => {
                let at = scheduled + MINUTE * minutes;
                self.moves.push_back(later(MOVE_AHEAD, Action::Move { at }));
            }
            // On time, or early.
            Some(_) => {}
        }
        later(SET_AHEAD, Action::Set { at: scheduled })
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
        let front = |queue: &VecDeque<Operation>| queue.front().map(|later| later.when);
        let (remove, shift) = (front(&self.removes), front(&self.moves));
        let next = [set, remove, shift].into_iter().flatten().min()?;
        // Flights that begin on the epoch's first day have sets and others at one time:
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
        queue.pop_front().map(Ok)
    }
}

/// Writes the operations of flights as a trace for `countwheel replay`: one JSON object a line.
///
/// ```
/// use countwheel_departures::{Departures, write_trace};
///
/// let text = "scheduled_departure,flight,delay_minutes\n2013-01-01T10:15:00Z,UA1545,\n";
/// let mut trace = Vec::new();
/// write_trace(Departures::new(text.as_bytes())?, &mut trace)?;
/// let mut lines = std::str::from_utf8(&trace)?.lines();
/// assert_eq!(lines.next(), Some(concat!(
///     r#"{"t":"2012-12-31T10:15:00Z","op":"set","key":"UA1545","#,
///     r#""at":"2013-01-01T10:15:00Z","body":{"flight":"UA1545"}}"#,
/// )));
/// assert_eq!(lines.next(), Some(r#"{"t":"2013-01-01T09:15:00Z","op":"remove","key":"UA1545"}"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`WriteError`] if a flight cannot be read or a line cannot be written. What came before is
/// written.
pub fn write_trace(
    flights: impl Iterator<Item = Result<Flight, DeparturesError>>,
    out: &mut impl Write,
) -> Result<(), WriteError> {
    for operation in Planner::new(flights) {
        let operation = operation?;
        let key = &*operation.key;
        let (op, at, body) = match operation.action {
            Action::Set { at } => ("set", Some(at), Some(Body { flight: key })),
            Action::Move { at } => ("move", Some(at), None),
            Action::Remove => ("remove", None, None),
        };
        let line = Line {
            t: format_time(operation.when),
            op,
            key,
            at: at.map(format_time),
            body,
        };
        serde_json::to_writer(&mut *out, &line).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// A line of a trace.
#[derive(Serialize)]
struct Line<'a> {
    t: String,
    op: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Body<'a>>,
}

#[derive(Serialize)]
struct Body<'a> {
    flight: &'a str,
}

/// RFC 3339 in UTC.
fn format_time(time: Timestamp) -> String {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(micros);
    time.unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// Why a trace was not written to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A flight cannot be read.
    #[error(transparent)]
    Flight(#[from] DeparturesError),
    /// A line cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A day before [`flight`] counts from.
    const START: Timestamp = Timestamp::from_micros(1_357_041_600_000_000 - 86_400_000_000);
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

    fn plan(flights: &[Flight]) -> Vec<Operation> {
        let flights = flights.iter().cloned().map(Ok::<_, Infallible>);
        let operations = Planner::new(flights);
        operations.map(|Ok(operation)| operation).collect()
    }

    /// Reads as `minute action key [to minute]`.
    fn told(flights: &[Flight]) -> Vec<String> {
        let minutes = |at: Timestamp| at.saturating_since(START).as_secs() / 60;
        let tell = |operation: Operation| {
            let (kind, at) = match operation.action {
                Action::Set { at } => ("Set", Some(at)),
                Action::Move { at } => ("Move", Some(at)),
                Action::Remove => ("Remove", None),
            };
            let at = at.map_or(String::new(), |at| format!(" to {}", minutes(at)));
            format!("{} {kind} {}{at}", minutes(operation.when), operation.key)
        };
        plan(flights).into_iter().map(tell).collect()
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
        let operations = plan(&flights);
        assert_eq!(operations.len(), 5_000 + 2_500);
        let mut set = std::collections::HashSet::new();
        let mut last = START;
        for operation in operations {
            assert!(operation.when >= last);
            last = operation.when;
            let first = set.insert(operation.key);
            assert_eq!(first, matches!(operation.action, Action::Set { .. }));
        }
    }

    #[test]
    fn a_day_is_held_and_no_more() {
        let mut read = 0;
        let flights = (0..10_000).map(|i| Ok::<_, ()>(flight(&i.to_string(), i * 10, None)));
        let flights = flights.inspect(|_| read += 1);
        let mut planner = Planner::new(flights);
        let mut held = 0;
        while planner.next().is_some() {
            held = held.max(planner.removes.len());
        }
        assert!(held <= 24 * 6, "{held}");
        assert_eq!(read, 10_000);
    }

    #[test]
    fn an_error_of_the_flights_comes_through() {
        let flights = [Ok(flight("a", 0, None)), Err("line 3")];
        let mut planner = Planner::new(flights.into_iter());
        assert!(planner.next().is_some_and(|first| first.is_ok()));
        assert_eq!(planner.next(), Some(Err("line 3")));
    }
}
