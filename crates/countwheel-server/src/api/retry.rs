//! The retry policy as JSON, and its schedule.

use std::time::Duration;

use countwheel_client::words;
use countwheel_durable::{Jitter, PolicyError, Preset, RETRY_PRESETS, RetryPolicy, check_policy};
use countwheel_time::Timestamp;
use serde::Serialize;
use serde_json::{Number, Value, json};

use super::described::requests;
use super::json::{Field, Kind};
use super::problem::{Code, Problem};
use crate::time::{format_duration, parse_duration};

/// The delays that somebody asks for: not checked, and maybe none that a policy can have.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Schedule {
    List(Vec<Duration>),
    Preset(Preset),
    Fixed(Duration),
    Linear {
        first: Duration,
        increment: Duration,
        cap: Duration,
    },
    Exponential {
        first: Duration,
        factor: f64,
        cap: Duration,
    },
}

impl Schedule {
    /// The policy with these delays. A list repeats its last delay if a number of attempts asks
    /// for it.
    ///
    /// # Errors
    /// The first bound that is broken, if no policy can break one of them.
    pub(crate) fn policy(
        self,
        jitter: Jitter,
        max_attempts: Option<u32>,
        max_age: Option<Duration>,
    ) -> Result<RetryPolicy, PolicyError> {
        let policy = match self {
            Self::List(list) => {
                RetryPolicy::list(list).map_err(|_| PolicyError::ListLength { found: 0 })?
            }
            Self::Preset(preset) => preset.policy(),
            Self::Fixed(delay) => RetryPolicy::fixed(delay),
            Self::Linear {
                first,
                increment,
                cap,
            } => {
                // Without an increment the delays are fixed, which no timer keeps with a cap.
                check_policy(&RetryPolicy::fixed(increment))?;
                RetryPolicy::linear(first, increment).cap(cap)
            }
            Self::Exponential { first, factor, cap } => {
                if let Ok(policy) = RetryPolicy::exponential(first, factor) {
                    policy.cap(cap)
                } else {
                    // What is wrong with the delays comes before what is wrong with the factor.
                    check_policy(&RetryPolicy::fixed(first))?;
                    check_policy(&RetryPolicy::fixed(cap))?;
                    return Err(if cap < first {
                        PolicyError::Cap
                    } else {
                        PolicyError::Factor
                    });
                }
            }
        };
        let mut policy = policy.jitter(jitter);
        if let Some(found) = max_attempts {
            let limited = policy.clone().repeat_last().max_attempts(found);
            policy = limited.or_else(|_| {
                check_policy(&policy)?;
                Err(PolicyError::Attempts { found })
            })?;
        }
        Ok(match max_age {
            Some(age) => policy.max_age(age),
            None => policy,
        })
    }

    /// The preset of that name, if timers keep it.
    pub(crate) fn preset(name: &str) -> Option<Self> {
        let preset = Preset::from_name(name).filter(|preset| RETRY_PRESETS.contains(preset));
        preset.map(Self::Preset)
    }

    /// The names of all presets that timers keep.
    pub(crate) fn preset_names() -> String {
        RETRY_PRESETS.map(Preset::name).join(", ")
    }
}

/// Reads a retry policy and checks every bound.
pub(crate) fn read(field: &Field<'_>) -> Result<RetryPolicy, Problem> {
    let mut object = field.object_of(&requests::RETRY)?;
    let (kind, delays) =
        object.one_of(&["schedule", "preset", "fixed", "linear", "exponential"])?;
    let at_fault = delays.pointer().to_owned();
    let schedule = match kind {
        "schedule" => {
            let elements = delays.elements()?;
            Schedule::List(elements.iter().map(delay).collect::<Result<_, _>>()?)
        }
        "preset" => preset(&delays)?,
        "fixed" => Schedule::Fixed(delay(&delays)?),
        "linear" => linear(&delays)?,
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
    let attempts = max_attempts.as_ref().map(count).transpose()?;
    let age = max_age.as_ref().map(delay).transpose()?;
    let policy = schedule.policy(jitter, attempts, age);
    let checked = policy.and_then(|policy| check_policy(&policy).map(|()| policy));
    checked.map_err(|error| {
        let at_fault = match (&error, &max_attempts, &max_age) {
            (PolicyError::Attempts { .. }, Some(field), _)
            | (PolicyError::Age { .. }, _, Some(field)) => field.pointer().to_owned(),
            _ => at_fault,
        };
        Problem::from_policy(&error).at(at_fault)
    })
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

fn preset(field: &Field<'_>) -> Result<Schedule, Problem> {
    Schedule::preset(&field.text()?).ok_or_else(|| {
        let names = Schedule::preset_names();
        invalid(field, &format!("the presets are: {names}"))
    })
}

fn linear(field: &Field<'_>) -> Result<Schedule, Problem> {
    let mut object = field.object_of(&requests::LINEAR)?;
    let first = delay(&object.require("first")?)?;
    let increment = delay(&object.require("increment")?)?;
    let cap = object.take("cap").as_ref().map(delay).transpose()?;
    object.finish()?;
    Ok(Schedule::Linear {
        first,
        increment,
        cap: cap.unwrap_or(LONGEST_DELAY),
    })
}

/// The cap of a schedule that grows and names none: the longest delay that timers keep.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(365 * 86_400);

fn exponential(field: &Field<'_>) -> Result<Schedule, Problem> {
    let mut object = field.object_of(&requests::EXPONENTIAL)?;
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
    Ok(Schedule::Exponential { first, factor, cap })
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
    let exponential = |first, factor, cap| {
        json!({
            "first": format_duration(first),
            "factor": number(factor),
            "cap": format_duration(cap),
        })
    };
    Value::Object(words::retry(
        policy.settings(),
        format_duration,
        exponential,
    ))
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
        let settings = policy.settings();
        let age_ends = settings.max_age.map(|age| self.first_due + age);
        let first = Planned {
            attempt: self.attempts + 1,
            at: self.due,
            earliest: self.due,
            delay: Duration::ZERO,
            after: Duration::ZERO,
        };
        let next = move |(before, failures): &(Planned, u32)| {
            let failures = failures + 1;
            let delay = policy.delay(failures)?;
            let at = before.at + delay;
            if age_ends.is_some_and(|end| at > end) {
                return None;
            }
            let (shortest, _) = settings.jitter.range(delay);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_and_a_linear_schedule_come_back_as_they_were_asked_for() {
        let asked = |text: &str| {
            let value = super::super::json::parse(text.as_bytes()).unwrap();
            read(&Field::root(value)).unwrap()
        };
        for preset in Preset::ALL {
            let text = json!({ "preset": preset.name() }).to_string();
            let policy = asked(&text);
            assert_eq!(policy, preset.policy());
            let shown = show(&policy);
            assert_eq!(shown["preset"], preset.name());
            assert_eq!(asked(&shown.to_string()), policy);
        }
        let linear = asked(r#"{"linear":{"first":"3s","increment":"5s"},"max_attempts":3}"#);
        let plan = Standing::fresh(Timestamp::EPOCH);
        let after = plan.plan(&linear).map(|step| step.after.as_secs());
        assert_eq!(after.collect::<Vec<_>>(), [0, 3, 11]);
        let shown = show(&linear);
        let capped = json!({"first": "3s", "increment": "5s", "cap": "8760h"});
        assert_eq!(shown["linear"], capped);
        assert_eq!(asked(&shown.to_string()), linear);
    }

    fn refused(text: &str) -> String {
        let value = super::super::json::parse(text.as_bytes()).unwrap();
        read(&Field::root(value)).unwrap_err().parts().2.to_owned()
    }

    #[test]
    fn of_several_mistakes_the_first_one_is_named() {
        let factor = r#"{"exponential":{"first":1000,"factor":0.5,"cap":2000},"max_attempts":0}"#;
        assert_eq!(
            refused(factor),
            "an exponential factor is 1, or a number from 1.01 to 1000"
        );
        let first = factor.replace("1000", "0");
        assert_eq!(
            refused(&first),
            "a retry delay is from 1 ms to 365 days, not 0ns"
        );
        let cap = factor.replace("2000", "999");
        assert_eq!(
            refused(&cap),
            "the cap of a schedule is at least its first delay"
        );
        assert_eq!(
            refused(r#"{"schedule":[],"max_attempts":0}"#),
            "a retry schedule has 1 to 1000 delays, not 0"
        );
        assert_eq!(
            refused(r#"{"fixed":1,"max_attempts":0,"max_age":0}"#),
            "max_attempts is from 1 to 10000, not 0"
        );
        assert_eq!(
            refused(r#"{"schedule":[],"jitter":"some"}"#),
            "the jitter is none, full or equal"
        );
        assert_eq!(
            refused(r#"{"preset":"netty"}"#),
            "the presets are: dubbo, dubbo-registry, eureka, go-zero, wechat"
        );
        let linear = r#"{"linear":{"first":"3s","increment":"0s","cap":"1h"}}"#;
        assert_eq!(
            refused(linear),
            "a retry delay is from 1 ms to 365 days, not 0ns"
        );
        assert_eq!(
            refused(r#"{"linear":{"first":"3s","increment":"5s","cap":"2s"}}"#),
            "the cap of a schedule is at least its first delay"
        );
    }
}
