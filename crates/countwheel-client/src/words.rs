//! The words of the contract in which a set is written: the client sends them, and the server shows what it has in the
//! same ones.

use std::time::Duration;

use countwheel_durable::{Delays, Missed, Recurrence, RetrySettings, Schedule};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::time::{format_duration, format_time};

/// The state of a timer that a worker has, in words of the API: it is delivering.
pub const LEASED: &str = "leased";

/// What needs no escape in a path or a query.
const PLAIN: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The path of a timer, or of a verb of it.
///
/// ```
/// use countwheel_client::words::timer_path;
///
/// assert_eq!(timer_path("orders", "a/b", ":fire"), "/v1/queues/orders/timers/a%2Fb:fire");
/// ```
#[must_use]
pub fn timer_path(queue: &str, key: &str, verb: &str) -> String {
    format!("/v1/queues/{}/timers/{}{verb}", escape(queue), escape(key))
}

/// A text in a path or a query.
pub(crate) fn escape(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, &PLAIN)
}

/// JSON on one line: a line break is never part of a text in it.
///
/// ```
/// use countwheel_client::words::one_line;
///
/// let json: Box<serde_json::value::RawValue> = serde_json::from_str("{\n\"a\": 1\n}")?;
/// assert_eq!(one_line(&json), "{\"a\": 1}");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn one_line(json: &RawValue) -> String {
    json.get().replace(['\n', '\r'], "")
}

/// What becomes of a missed timer, as a set says it; nothing if that is the default.
///
/// ```
/// use countwheel_client::words::missed;
/// use countwheel_durable::Missed;
///
/// assert_eq!(missed(Missed::Fire), None);
/// assert_eq!(missed(Missed::Collapse).unwrap(), "collapse");
/// ```
#[must_use]
pub fn missed(missed: Missed) -> Option<Value> {
    match missed {
        Missed::Fire => None,
        Missed::Collapse => Some(json!("collapse")),
        Missed::SkipIfOlderThan(age) => Some(json!({ "skip_if_older_than": format_duration(age) })),
    }
}

/// A recurrence in the form in which it is set.
///
/// ```
/// use std::time::Duration;
///
/// use countwheel_client::words::recurrence;
/// use countwheel_durable::{Recurrence, Schedule};
///
/// let every = Duration::from_secs(30);
/// let rate = Recurrence::new(Schedule::FixedRate { every, anchor: None });
/// assert_eq!(recurrence(&rate)["every"], "30s");
/// ```
#[must_use]
pub fn recurrence(recurrence: &Recurrence) -> Map<String, Value> {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    match &recurrence.schedule {
        Schedule::FixedRate { every, anchor } => {
            put("every", json!(format_duration(*every)));
            if let Some(anchor) = anchor {
                put("at", json!(format_time(*anchor)));
            }
        }
        Schedule::FixedDelay { every } => {
            put("every_after", json!(format_duration(*every)));
        }
        Schedule::Cron { expression, zone } => {
            put("cron", json!(expression.as_str()));
            put("zone", json!(zone.name()));
        }
    }
    if let Some(repeats) = recurrence.repeats {
        put("repeats", json!(repeats));
    }
    if let Some(until) = recurrence.until {
        put("until", json!(format_time(until)));
    }
    if !recurrence.jitter.is_zero() {
        put("jitter", json!(format_duration(recurrence.jitter)));
    }
    put("overlap", json!(recurrence.overlap.as_str()));
    object
}

/// The fields of a policy, with durations as `span` writes them.
///
/// ```
/// use countwheel_client::time::format_duration;
/// use countwheel_client::words::retry;
/// use countwheel_durable::RetryPolicy;
///
/// let policy = RetryPolicy::fixed(std::time::Duration::from_secs(5));
/// let fields = retry(policy.settings(), format_duration, |_, _, _| unreachable!("it is fixed"));
/// assert_eq!(fields["fixed"], "5s");
/// ```
pub fn retry<D: Serialize>(
    settings: RetrySettings<'_>,
    span: impl Fn(Duration) -> D,
    exponential: impl Fn(Duration, f64, Duration) -> Value,
) -> Map<String, Value> {
    let cap = settings.cap.unwrap_or(Duration::MAX);
    let (kind, delays) = match (settings.preset, settings.delays) {
        (Some(preset), _) => ("preset", json!(preset.name())),
        (None, Delays::List(list)) => {
            let list: Vec<_> = list.iter().copied().map(&span).collect();
            ("schedule", json!(list))
        }
        (None, Delays::Fixed(delay)) => ("fixed", json!(span(delay))),
        (None, Delays::Linear { first, increment }) => (
            "linear",
            json!({"first": span(first), "increment": span(increment), "cap": span(cap)}),
        ),
        (None, Delays::Exponential { first, factor }) => {
            ("exponential", exponential(first, factor, cap))
        }
    };
    let mut object = Map::new();
    object.insert(kind.to_owned(), delays);
    object.insert("jitter".to_owned(), json!(settings.jitter.name()));
    if let Some(attempts) = settings.max_attempts {
        object.insert("max_attempts".to_owned(), json!(attempts));
    }
    if let Some(age) = settings.max_age {
        object.insert("max_age".to_owned(), json!(span(age)));
    }
    object
}
