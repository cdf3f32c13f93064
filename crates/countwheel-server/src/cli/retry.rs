//! Retry policies in short: `wechat`, `15s,15s,30s`, `fixed:5s`, `linear:3s+5s`, `exp:1s..1h*3`. The same
//! words as the texts of [`RetryPolicy`], with the durations of this program.

use std::time::Duration;

use countwheel_durable::{Delays, Jitter, Preset, RetryPolicy};
use serde_json::Value;

use super::arguments::duration;
use super::{Failure, text};
use crate::api::retry::{LONGEST_DELAY, Schedule};
use crate::client::ClientError;

/// Stands at each argument: the heading of a group goes on over those that follow it.
const HEADING: &str = "Retry policy";

/// When to try again after a failure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Retry {
    /// dubbo, dubbo-registry, eureka, go-zero, wechat, or 15s,15s,30s, or fixed:5s, or
    /// linear:3s+5s, or linear:3s..1h+5s, or exp:1s..1h (doubling), or exp:1s..1h*3; without a cap
    /// delays grow up to 365 days
    #[arg(long, value_name = "SCHEDULE", value_parser = schedule, help_heading = HEADING)]
    retry: Option<Schedule>,
    /// How much of each delay is left to chance: none, full, equal
    #[arg(long, value_name = "JITTER", value_parser = jitter, help_heading = HEADING)]
    jitter: Option<Jitter>,
    /// How many attempts there are in all
    #[arg(long, value_name = "N", help_heading = HEADING)]
    max_attempts: Option<u32>,
    /// No attempt later than this after the first deadline
    #[arg(long, value_name = "D", value_parser = duration, help_heading = HEADING)]
    max_age: Option<Duration>,
}

impl Retry {
    /// The policy asked for, `None` if that is left to the server.
    pub(crate) fn policy(&self) -> Result<Option<RetryPolicy>, Failure> {
        let Some(schedule) = self.retry.clone() else {
            let lonely = [
                ("--jitter", self.jitter.is_some()),
                ("--max-attempts", self.max_attempts.is_some()),
                ("--max-age", self.max_age.is_some()),
            ];
            return match lonely.into_iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(Failure::Usage(format!(
                    "{name} needs a schedule too, e.g. --retry exp:10s..6h"
                ))),
                None => Ok(None),
            };
        };
        let jitter = self.jitter.unwrap_or_default();
        match schedule.policy(jitter, self.max_attempts, self.max_age) {
            Ok(policy) => Ok(Some(policy)),
            Err(error) => Err(Failure::Client(ClientError::Policy(error))),
        }
    }
}

fn schedule(text: &str) -> Result<Schedule, String> {
    if let Some((schedule, options)) = text.trim().split_once(' ')
        && options.contains('=')
    {
        return Err(with_flags(schedule, options));
    }
    if let Some(preset) = Schedule::preset(text) {
        return Ok(preset);
    }
    if let Some(delay) = text.strip_prefix("fixed:") {
        return Ok(Schedule::Fixed(duration(delay)?));
    }
    if let Some(range) = text.strip_prefix("linear:") {
        return linear(range);
    }
    if let Some(range) = text.strip_prefix("exp:") {
        return exponential(range);
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || c == 'P') {
        let list: Result<_, _> = text.split(',').map(duration).collect();
        return Ok(Schedule::List(list?));
    }
    let presets = Schedule::preset_names();
    Err(format!(
        "{text:?} is none of {presets}, 15s,15s,30s, fixed:5s, linear:3s+5s, exp:1s..1h, exp:1s..1h*3"
    ))
}

/// What to write in place of a policy's text with options: each is an argument of its own here.
fn with_flags(schedule: &str, options: &str) -> String {
    let mut line = format!("--retry {schedule}");
    for option in options.split_ascii_whitespace() {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let flag = match name {
            "attempts" => "--max-attempts",
            "age" => "--max-age",
            "jitter" => "--jitter",
            _ => {
                return format!(
                    "{option:?} cannot be asked for here: options are --max-attempts, --max-age and --jitter"
                );
            }
        };
        line += &format!(" {flag} {value}");
    }
    format!("options are arguments of their own: {line}")
}

/// The first delay of a schedule that grows, and its cap.
fn growing(range: &str) -> Result<(Duration, Duration), String> {
    Ok(match range.split_once("..") {
        Some((first, cap)) => (duration(first)?, duration(cap)?),
        None => (duration(range)?, LONGEST_DELAY),
    })
}

fn linear(range: &str) -> Result<Schedule, String> {
    let (range, increment) = range
        .split_once('+')
        .ok_or_else(|| format!("{range:?} has no increment as in 3s+5s"))?;
    let (first, cap) = growing(range)?;
    Ok(Schedule::Linear {
        first,
        increment: duration(increment)?,
        cap,
    })
}

fn exponential(range: &str) -> Result<Schedule, String> {
    let (range, factor) = match range.split_once('*') {
        Some((range, factor)) => {
            let number = factor.trim().parse::<f64>().ok().filter(|f| f.is_finite());
            let none = || format!("the factor {factor:?} is no number");
            (range, number.ok_or_else(none)?)
        }
        None => (range, 2.0),
    };
    let (first, cap) = growing(range)?;
    Ok(Schedule::Exponential { first, factor, cap })
}

fn jitter(text: &str) -> Result<Jitter, String> {
    match text {
        "none" => Ok(Jitter::None),
        "full" => Ok(Jitter::Full),
        "equal" => Ok(Jitter::Equal),
        _ => Err(format!("{text:?} is none of none, full, equal")),
    }
}

/// How far a schedule is, after `failures`: `wechat 1/15`.
pub(crate) fn progress(retry: &Value, failures: u32) -> String {
    let list = |length: usize| u64::try_from(length).ok();
    let (name, length) = if let Some(preset) = retry["preset"].as_str() {
        let length = match Preset::from_name(preset).map(Preset::policy) {
            Some(policy) => match policy.settings().delays {
                Delays::List(delays) => list(delays.len()),
                _ => None,
            },
            None => None,
        };
        (preset, length)
    } else if let Some(schedule) = retry["schedule"].as_array() {
        ("schedule", list(schedule.len()))
    } else if retry["linear"].is_object() {
        ("linear", None)
    } else if retry["exponential"].is_object() {
        ("exponential", None)
    } else if retry["fixed"].is_null() {
        ("retry", None)
    } else {
        ("fixed", None)
    };
    let retries = retry["max_attempts"].as_u64().map(|n| n.saturating_sub(1));
    match retries.or(length) {
        Some(all) => format!("{name} {failures}/{all}"),
        None => format!("{name} {failures}"),
    }
}

/// A policy as the server shows it, in one line.
pub(crate) fn describe(retry: &Value) -> String {
    let mut words = if let Some(preset) = retry["preset"].as_str() {
        preset.to_owned()
    } else if let Some(schedule) = retry["schedule"].as_array() {
        let delays: Vec<_> = schedule.iter().map(delay).collect();
        delays.join(", ")
    } else if let Some(exponential) = retry["exponential"].as_object() {
        let field = |name| exponential.get(name).unwrap_or(&Value::Null);
        let (first, cap) = (delay(field("first")), delay(field("cap")));
        format!("{first}, {} times the last, at most {cap}", field("factor"))
    } else if let Some(linear) = retry["linear"].as_object() {
        let field = |name| delay(linear.get(name).unwrap_or(&Value::Null));
        let (first, increment, cap) = (field("first"), field("increment"), field("cap"));
        format!("{first}, {increment} more each time, at most {cap}")
    } else {
        format!("every {}", delay(&retry["fixed"]))
    };
    if let Some(jitter) = retry["jitter"].as_str().filter(|&jitter| jitter != "none") {
        words.push_str(&format!("; {jitter} jitter"));
    }
    if let Some(attempts) = retry["max_attempts"].as_u64() {
        words.push_str(&format!("; at most {attempts} attempts"));
    }
    if !retry["max_age"].is_null() {
        words.push_str(&format!("; not after {}", delay(&retry["max_age"])));
    }
    words
}

/// A duration of the API, a text or a number of milliseconds, in our words.
fn delay(value: &Value) -> String {
    match value {
        Value::Number(millis) => millis.as_u64().map(Duration::from_millis),
        Value::String(text) => duration(text).ok(),
        _ => None,
    }
    .map_or_else(|| value.to_string(), text::span)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_short_form_is_understood() {
        assert_eq!(schedule("wechat"), Ok(Schedule::Preset(Preset::Wechat)));
        assert_eq!(
            schedule("15s,1s"),
            Ok(Schedule::List(vec![SECOND * 15, SECOND]))
        );
        assert_eq!(
            schedule("15s, 1s"),
            Ok(Schedule::List(vec![SECOND * 15, SECOND]))
        );
        assert_eq!(schedule("PT1S"), Ok(Schedule::List(vec![SECOND])));
        assert_eq!(schedule("fixed:5s"), Ok(Schedule::Fixed(SECOND * 5)));
        let exponential = |factor| {
            Ok(Schedule::Exponential {
                first: SECOND,
                factor,
                cap: SECOND * 3600,
            })
        };
        let linear = |cap| {
            Ok(Schedule::Linear {
                first: SECOND * 3,
                increment: SECOND * 5,
                cap,
            })
        };
        assert_eq!(schedule("linear:3s+5s"), linear(LONGEST_DELAY));
        assert_eq!(schedule("linear:3s..1h+5s"), linear(SECOND * 3600));
        assert_eq!(schedule("exp:1s..1h"), exponential(2.0));
        assert_eq!(schedule("exp:1s..1h*3"), exponential(3.0));
        assert_eq!(schedule("exp:1s..1h*1.5"), exponential(1.5));
        let longest = schedule("exp:1s").unwrap();
        assert_eq!(longest, schedule("exp:1s..365d*2").unwrap());
    }

    #[test]
    fn the_texts_of_policies_are_understood_as_the_policies() {
        for text in [
            "wechat",
            "dubbo",
            "dubbo-registry",
            "eureka",
            "go-zero",
            "15s,15s,30s,3m",
            "fixed:5s",
            "linear:3s..1h+5s",
            "exp:1s..1h",
            "exp:1s..1h*3",
        ] {
            let policy: RetryPolicy = text.parse().unwrap();
            let asked = schedule(text).unwrap().policy(Jitter::None, None, None);
            assert_eq!(asked, Ok(policy), "{text}");
        }
    }

    #[test]
    fn what_is_no_short_form_is_refused_with_a_reason() {
        for bad in [
            "",
            "wechat2",
            "5",
            "5s,",
            "5s,,5s",
            "fixed:",
            "fixed:5",
            "linear:3s",
            "linear:3s+",
            "linear:..1h+5s",
            "exp:",
            "exp:1s..",
            "exp:1s..1h*",
            "exp:1s..1h*x",
            "exp:1s..1h*inf",
            "exp:1s..1h*NaN",
        ] {
            assert!(schedule(bad).is_err(), "{bad}");
        }
        let reason = schedule("weekly").unwrap_err();
        assert!(
            reason.starts_with(
                "\"weekly\" is none of dubbo, dubbo-registry, eureka, go-zero, wechat, "
            ),
            "{reason}"
        );
        assert!(jitter("some").is_err());
        assert_eq!(
            schedule("wechat attempts=3 jitter=full age=1h"),
            Err(
                "options are arguments of their own: --retry wechat --max-attempts 3 --jitter full \
                 --max-age 1h"
                    .to_owned()
            )
        );
        let cap = schedule("wechat cap=3s").unwrap_err();
        assert!(
            cap.starts_with("\"cap=3s\" cannot be asked for here"),
            "{cap}"
        );
    }

    #[test]
    fn progress_counts_against_the_whole_schedule_where_it_ends() {
        assert_eq!(progress(&json!({"preset": "wechat"}), 1), "wechat 1/15");
        assert_eq!(
            progress(&json!({"schedule": ["1s", "2s"]}), 2),
            "schedule 2/2"
        );
        let linear = json!({"linear": {"first": "3s", "increment": "5s", "cap": "1h"}});
        assert_eq!(progress(&linear, 2), "linear 2");
        assert_eq!(describe(&linear), "3 s, 5 s more each time, at most 1 h");
        assert_eq!(progress(&json!({"fixed": "1s"}), 3), "fixed 3");
        let bounded = json!({"fixed": "1s", "max_attempts": 4});
        assert_eq!(progress(&bounded, 3), "fixed 3/3");
    }

    #[test]
    fn a_policy_is_described_in_one_line() {
        let policy = json!({"exponential": {"first": "10s", "factor": 2, "cap": "6h"},
                            "jitter": "full", "max_attempts": 20});
        assert_eq!(
            describe(&policy),
            "10 s, 2 times the last, at most 6 h; full jitter; at most 20 attempts"
        );
        assert_eq!(
            describe(&json!({"schedule": [1500, "30m"]})),
            "1.5 s, 30 min"
        );
        assert_eq!(
            describe(&json!({"fixed": 5000, "max_age": "1d"})),
            "every 5 s; not after 24 h"
        );
    }
}
