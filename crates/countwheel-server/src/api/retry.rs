//! The retry policy as JSON, and its schedule.

use std::time::Duration;

use countwheel_durable::{Delays, Jitter, PolicyError, Preset, RetryPolicy};
use countwheel_time::Timestamp;
use serde::Serialize;
use serde_json::{Map, Number, Value, json};

use super::json::{Field, Kind};
use super::problem::{Code, Problem};
use crate::time::{format_duration, parse_duration};

/// Reads a retry policy and checks every bound.
pub(crate) fn read(field: &Field<'_>) -> Result<RetryPolicy, Problem> {
    let mut object = field.object()?;
    let (kind, delays) = object.one_of(&["schedule", "preset", "fixed", "exponential"])?;
    let at_fault = delays.pointer().to_owned();
    let delays = match kind {
        "schedule" => {
            let elements = delays.elements()?;
            Delays::List(elements.iter().map(delay).collect::<Result<_, _>>()?)
        }
        "preset" => Delays::Preset(preset(&delays)?),
        "fixed" => Delays::Fixed(delay(&delays)?),
        _ => exponential(&delays)?,
    };
    let jitter = match object.take("jitter") {
        None => Jitter::None,
        Some(field) => match &*field.text()? {
            "none" => Jitter::None,
            "full" => Jitter::Full,
            "equal" => Jitter::Equal,
            _ => return Err(invalid(&field, "the jitter is none, full or equal")),
        },
    };
    let max_attempts = object.take("max_attempts");
    let max_age = object.take("max_age");
    object.finish()?;
    let policy = RetryPolicy {
        delays,
        jitter,
        max_attempts: max_attempts.as_ref().map(count).transpose()?,
        max_age: max_age.as_ref().map(delay).transpose()?,
    };
    policy.validate().map_err(|error| {
        let at_fault = match (&error, &max_attempts, &max_age) {
            (PolicyError::Attempts { .. }, Some(field), _)
            | (PolicyError::Age { .. }, _, Some(field)) => field.pointer().to_owned(),
            _ => at_fault,
        };
        Problem::from_policy(&error).at(at_fault)
    })?;
    Ok(policy)
}

impl Problem {
    fn from_policy(error: &PolicyError) -> Self {
        Self::new(Code::InvalidRetry, error.to_string())
    }
}

fn invalid(field: &Field<'_>, detail: &str) -> Problem {
    Problem::new(Code::InvalidRetry, detail).at(field.pointer())
}

fn delay(field: &Field<'_>) -> Result<Duration, Problem> {
    match duration(field)? {
        Some(delay) => Ok(delay),
        None => Err(invalid(
            field,
            "a delay is a whole number of milliseconds, or a text such as 30s",
        )),
    }
}

fn count(field: &Field<'_>) -> Result<u32, Problem> {
    let count = field.whole()?.and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| invalid(field, "max_attempts is a whole number from 1 to 10000"))
}

fn preset(field: &Field<'_>) -> Result<Preset, Problem> {
    Preset::from_name(&field.text()?).ok_or_else(|| {
        let names = Preset::ALL.map(Preset::as_str).join(", ");
        invalid(field, &format!("the presets are: {names}"))
    })
}

fn exponential(field: &Field<'_>) -> Result<Delays, Problem> {
    let mut object = field.object()?;
    let first = delay(&object.require("first")?)?;
    let cap = delay(&object.require("cap")?)?;
    let factor = match object.take("factor") {
        None => 2.0,
        Some(field) => match field.kind() {
            // What is too large for a float is infinite, and refused as out of range.
            Kind::Number(number) => number.parse().unwrap_or(f64::INFINITY),
            _ => return Err(field.malformed("must be a number")),
        },
    };
    object.finish()?;
    Ok(Delays::Exponential { first, factor, cap })
}

/// A duration as JSON gives it: a whole number of milliseconds, or a text. `None` for a
/// number or a text that is none.
pub(crate) fn duration(field: &Field<'_>) -> Result<Option<Duration>, Problem> {
    match field.kind() {
        Kind::Number(number) => Ok(number.parse().ok().map(Duration::from_millis)),
        Kind::Text(text) => Ok(parse_duration(&text)),
        _ => Err(field.malformed("must be a number of milliseconds or a text such as 30m")),
    }
}

/// The policy in the form in which it is set.
pub(crate) fn show(policy: &RetryPolicy) -> Value {
    let mut object = Map::new();
    let (kind, delays) = match &policy.delays {
        Delays::List(list) => {
            let list: Vec<_> = list.iter().copied().map(format_duration).collect();
            ("schedule", json!(list))
        }
        Delays::Preset(preset) => ("preset", json!(preset.as_str())),
        Delays::Fixed(delay) => ("fixed", json!(format_duration(*delay))),
        Delays::Exponential { first, factor, cap } => (
            "exponential",
            json!({
                "first": format_duration(*first),
                "factor": number(*factor),
                "cap": format_duration(*cap),
            }),
        ),
    };
    object.insert(kind.to_owned(), delays);
    object.insert("jitter".to_owned(), json!(policy.jitter));
    if let Some(attempts) = policy.max_attempts {
        object.insert("max_attempts".to_owned(), json!(attempts));
    }
    if let Some(age) = policy.max_age {
        object.insert("max_age".to_owned(), json!(format_duration(age)));
    }
    Value::Object(object)
}

/// `2` rather than `2.0`.
fn number(factor: f64) -> Option<Number> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a factor is from 1 to 1000"
    )]
    let whole = factor as u64;
    if factor.fract() == 0.0 {
        Some(whole.into())
    } else {
        Number::from_f64(factor)
    }
}

/// One attempt of a schedule in which every attempt fails at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    pub(crate) attempt: u32,
    /// With jitter taking nothing off.
    pub(crate) at: Timestamp,
    /// With jitter taking off all it can.
    pub(crate) earliest: Timestamp,
    /// After the attempt before.
    pub(crate) delay: Duration,
    /// After the first attempt of the plan.
    pub(crate) after: Duration,
}

/// Where a timer stands in its schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// When its next attempt is due.
    pub(crate) due: Timestamp,
    /// When its first one was: the maximum age counts from here.
    pub(crate) first_due: Timestamp,
    /// Attempts made so far.
    pub(crate) attempts: u32,
    /// Failures that count in the schedule.
    pub(crate) failures: u32,
}

impl Standing {
    /// Before the first attempt, due at `start`.
    pub(crate) fn fresh(start: Timestamp) -> Self {
        Self {
            due: start,
            first_due: start,
            attempts: 0,
            failures: 0,
        }
    }

    /// The attempts that follow if each fails at once.
    pub(crate) fn plan(self, policy: &RetryPolicy) -> impl Iterator<Item = Planned> + '_ {
        let age_ends = policy.max_age.map(|age| self.first_due + age);
        let first = Planned {
            attempt: self.attempts + 1,
            at: self.due,
            earliest: self.due,
            delay: Duration::ZERO,
            after: Duration::ZERO,
        };
        let next = move |(before, failures): &(Planned, u32)| {
            let failures = failures + 1;
            let delay = policy.delay_after(failures)?;
            let at = before.at + delay;
            if age_ends.is_some_and(|end| at > end) {
                return None;
            }
            let shortest = match policy.jitter {
                Jitter::None => delay,
                Jitter::Full => Duration::ZERO,
                Jitter::Equal => delay / 2,
            };
            let planned = Planned {
                attempt: before.attempt + 1,
                at,
                earliest: before.earliest + shortest,
                delay,
                after: before.after + delay,
            };
            Some((planned, failures))
        };
        std::iter::successors(Some((first, self.failures)), next).map(|(planned, _)| planned)
    }
}

/// An attempt to come, as `GET` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct NextAttempt {
    pub(crate) attempt: u32,
    pub(crate) at: String,
}
