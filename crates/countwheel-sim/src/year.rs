//! A year of real departures under the simulated clock: a test whose answer is known.
//!
//! Every flight is set 24 h before it is scheduled; 30 min before, it is moved to the time
//! at which it really left if that is more than 15 min later; 60 min before, it is removed
//! if it was cancelled. Every flight that was not cancelled must fire exactly once, at its
//! final time, and nothing else may fire.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_departures::Flight;
use countwheel_durable::store::{Shard, Store};
use countwheel_durable::{
    Attempt, Config, Due, Effect, Engine, Event, Outcome, Precondition, Request, Response,
    RetryPolicy, SetOptions, Shift, Stats, Ticket, TimerName, Was,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

/// What a year came to.
#[derive(Clone, Debug)]
pub struct Year {
    /// Flights in the trace.
    pub flights: usize,
    /// Of these, moved to another time.
    pub moved: usize,
    /// Of these, cancelled.
    pub cancelled: usize,
    /// Attempts started.
    pub fired: usize,
    /// What the engine counted.
    pub stats: Stats,
    /// The most timers that the window held.
    pub window_peak: usize,
}

/// One thing that a flight asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Set,
    Remove,
    Move,
}

/// Runs the flights on `store`, with a window of `window` timers.
///
/// # Errors
/// The first flight that did not fire as it must, in a sentence.
pub fn run(flights: &[Flight], store: Arc<dyn Store>, window: usize) -> Result<Year, String> {
    let mut operations = operations(flights);
    operations.sort_unstable();
    let start = operations.first().map_or(Timestamp::EPOCH, |first| first.0);
    let clock = ManualClock::at(start);
    let config = Config {
        window,
        keep_done: Duration::from_secs(3600),
        ..Config::default()
    };
    let mut engine = Engine::open(store, Shard::ONLY, Arc::new(clock.clone()), config)
        .map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    let mut window_peak = 0;
    let mut next = operations.iter().peekable();
    let mut outcomes: Vec<Attempt> = Vec::new();
    loop {
        let at = [
            next.peek().map(|operation| operation.0),
            engine.next_wake(),
            outcomes.first().map(|_| clock.timestamp()),
        ];
        let Some(at) = at.into_iter().flatten().min() else {
            break;
        };
        clock.advance(at.saturating_since(clock.timestamp()));
        let now = clock.timestamp();
        let done = |attempt: Attempt| Event::Outcome {
            revision: attempt.revision,
            outcome: Outcome::done(),
        };
        let mut events: Vec<_> = outcomes.drain(..).map(done).collect();
        while let Some((_, operation, flight)) = next.next_if(|next| next.0 <= now) {
            let request = request(*operation, &flights[*flight])?;
            events.push(Event::Request(Ticket(*flight as u64), request));
        }
        let turn = engine.turn(events, &mut |effect| match effect {
            Effect::Answer(ticket, Ok(response)) => seen.answered(ticket, &response),
            Effect::Answer(ticket, Err(error)) => {
                seen.wrong
                    .get_or_insert(format!("line {}: {error}", ticket.0 + 2));
            }
            Effect::BatchAnswer(..) => {} // nobody asks for a batch
            Effect::Start(attempt) => {
                seen.fired(&attempt, now);
                outcomes.push(attempt);
            }
        });
        turn.map_err(|error| error.to_string())?;
        if let Some(wrong) = seen.wrong.take() {
            return Err(wrong);
        }
        window_peak = window_peak.max(engine.stats().in_window);
    }
    check(flights, &seen)?;
    let moved = flights.iter().filter(|flight| moves(flight)).count();
    let cancelled = flights
        .iter()
        .filter(|flight| flight.delay_minutes.is_none());
    Ok(Year {
        flights: flights.len(),
        moved,
        cancelled: cancelled.count(),
        fired: seen.fired.len(),
        stats: engine.stats(),
        window_peak,
    })
}

#[derive(Default)]
struct Seen {
    /// When each key fired.
    fired: HashMap<String, Timestamp>,
    removed_pending: usize,
    wrong: Option<String>,
}

impl Seen {
    fn answered(&mut self, ticket: Ticket, response: &Response) {
        match response {
            Response::Removed(Was::Pending { .. }) => self.removed_pending += 1,
            Response::Removed(was) => {
                let line = ticket.0 + 2;
                self.wrong
                    .get_or_insert(format!("line {line}: removed while {was:?}"));
            }
            Response::Set(_)
            | Response::Moved(_)
            | Response::Forgotten(_)
            | Response::Configured(_)
            | Response::Settled(_)
            | Response::Extended(_) => {}
        }
    }

    fn fired(&mut self, attempt: &Attempt, now: Timestamp) {
        let key = attempt.name.key.to_string();
        if attempt.number != 1 || attempt.due != now || attempt.started != now {
            let what = format!(
                "{key}: attempt {} for {:?} at {now:?}",
                attempt.number, attempt.due
            );
            self.wrong.get_or_insert(what);
        }
        if self.fired.insert(key.clone(), now).is_some() {
            self.wrong.get_or_insert(format!("{key}: fired twice"));
        }
    }
}

fn check(flights: &[Flight], seen: &Seen) -> Result<(), String> {
    let mut expected = 0;
    for flight in flights {
        let key = &flight.key;
        let fired = seen.fired.get(key.as_str());
        match (flight.delay_minutes, fired) {
            (None, None) => {}
            (None, Some(at)) => return Err(format!("{key}: cancelled, and fired at {at:?}")),
            (Some(_), None) => return Err(format!("{key}: never fired")),
            (Some(_), Some(at)) if *at != leaves(flight) => {
                return Err(format!(
                    "{key}: fired at {at:?}, left at {:?}",
                    leaves(flight)
                ));
            }
            (Some(_), Some(_)) => expected += 1,
        }
    }
    let fired = seen.fired.len();
    if fired != expected {
        return Err(format!("{fired} fired, {expected} left"));
    }
    let cancelled = flights.len() - expected;
    if seen.removed_pending != cancelled {
        return Err(format!(
            "{} removed, {cancelled} cancelled",
            seen.removed_pending
        ));
    }
    Ok(())
}

fn moves(flight: &Flight) -> bool {
    flight.delay_minutes.is_some_and(|minutes| minutes > 15)
}

/// The time at which a flight must fire.
fn leaves(flight: &Flight) -> Timestamp {
    match flight.delay_minutes {
        Some(minutes) if moves(flight) => {
            flight.scheduled + Duration::from_secs(60 * u64::from(minutes.unsigned_abs()))
        }
        _ => flight.scheduled,
    }
}

fn operations(flights: &[Flight]) -> Vec<(Timestamp, Operation, usize)> {
    let before = |at: Timestamp, minutes: u64| at.saturating_sub(Duration::from_secs(60 * minutes));
    let mut operations = Vec::with_capacity(flights.len() * 5 / 4);
    for (index, flight) in flights.iter().enumerate() {
        let scheduled = flight.scheduled;
        operations.push((before(scheduled, 24 * 60), Operation::Set, index));
        if flight.delay_minutes.is_none() {
            operations.push((before(scheduled, 60), Operation::Remove, index));
        } else if moves(flight) {
            operations.push((before(scheduled, 30), Operation::Move, index));
        }
    }
    operations
}

fn request(operation: Operation, flight: &Flight) -> Result<Request, String> {
    let name = TimerName::new("departures", &flight.key).map_err(|error| error.to_string())?;
    Ok(match operation {
        Operation::Set => Request::Set {
            name,
            due: Due::At(flight.scheduled),
            policy: RetryPolicy::default(),
            payload: Vec::new(),
            precondition: Precondition::Absent,
            options: SetOptions::default(),
        },
        Operation::Move => Request::Move {
            name,
            shift: Shift::To(Due::At(leaves(flight))),
            precondition: Precondition::None,
        },
        Operation::Remove => Request::Remove {
            name,
            precondition: Precondition::None,
            only_pending: true,
        },
    })
}
