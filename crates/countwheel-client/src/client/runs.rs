//! The runs of recurring timers: those to come, those of the past, and the attempts that a run would have in a queue.

use std::collections::BTreeMap;

use countwheel_durable::{Precondition, RetryPolicy};
use countwheel_time::Timestamp;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Answer, Client, ClientError, Simulation, maybe_time, retry_json, sayable, time, timer_path,
};
use crate::time::format_time;

/// Runs to come, in order.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerRuns {
    /// The runs, if each is made on time.
    pub runs: Vec<TimerRun>,
    /// What comes after them is asked for with this; `None` if nothing does.
    #[serde(default, deserialize_with = "maybe_time")]
    pub next: Option<Timestamp>,
}

/// One run to come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerRun {
    /// Its nominal time.
    #[serde(deserialize_with = "time")]
    pub nominal: Timestamp,
    /// When it is due, its jitter included.
    #[serde(deserialize_with = "time")]
    pub due: Timestamp,
    /// What a clock in the zone of a cron expression then shows.
    #[serde(default)]
    pub local: Option<String>,
}

/// What a backfill has made.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Backfilled {
    /// Whether it was only looked for.
    pub dry_run: bool,
    /// How many runs were made.
    pub made: u64,
    /// How many were there already.
    pub existing: u64,
    /// All of them, in order.
    pub runs: Vec<BackfilledRun>,
    /// From when to go on, if the limit has cut off what follows.
    #[serde(default, deserialize_with = "maybe_time")]
    pub next: Option<Timestamp>,
}

/// One run of a backfill.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct BackfilledRun {
    /// The key of its timer.
    pub key: String,
    /// Its nominal time.
    #[serde(deserialize_with = "time")]
    pub nominal: Timestamp,
    /// `made`, `exists`, or `new` if it would be made.
    pub result: String,
}

/// The attempts of a timer under the rules that hold in a queue and for an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct SimulatedThere {
    /// The attempts.
    #[serde(flatten)]
    pub attempts: Simulation,
    /// The retry policy that holds.
    pub retry: Value,
    /// What becomes of a timer that is missed.
    pub missed: Value,
    /// How long an attempt may take; `None` where nothing is sent.
    #[serde(default)]
    pub timeout: Option<String>,
    /// Who says the rules that the timer does not: `endpoint`, `queue` or `default`.
    #[serde(default)]
    pub from: BTreeMap<String, String>,
}

impl Client {
    /// Asks for the runs of a recurring timer that come after a nominal time, or for the next ones.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn runs(
        &self,
        queue: &str,
        key: &str,
        limit: u32,
        after: Option<Timestamp>,
    ) -> Result<Answer<TimerRuns>, ClientError> {
        let mut path = timer_path(queue, key, "/runs");
        path.push_str(&format!("?limit={limit}"));
        if let Some(after) = after {
            path.push_str(&format!("&after={}", format_time(after)));
        }
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Makes runs of a recurring timer for its nominal times from one time until another, both included and both in the
    /// past. Without a limit there may be 1,000 of them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn backfill(
        &self,
        queue: &str,
        key: &str,
        (from, until): (Timestamp, Timestamp),
        limit: Option<u32>,
        dry_run: bool,
    ) -> Result<Answer<Backfilled>, ClientError> {
        let path = timer_path(queue, key, ":backfill");
        let mut body =
            json!({"from": format_time(from), "until": format_time(until), "dry_run": dry_run});
        if let Some(limit) = limit {
            body["limit"] = limit.into();
        }
        self.send(Method::POST, &path, Some(body), Precondition::None)
            .await
    }

    /// Asks when each attempt would come of a timer of this queue, or of one that goes to this endpoint, and who says
    /// the rules. Without a policy of its own the timer has that of its place.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn simulate_there(
        &self,
        (queue, endpoint): (Option<&str>, Option<&str>),
        retry: Option<&RetryPolicy>,
        start: Option<Timestamp>,
        limit: u32,
    ) -> Result<Answer<SimulatedThere>, ClientError> {
        sayable(retry)?;
        let mut body = json!({ "limit": limit });
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[name] = value;
            }
        };
        put("queue", queue.map(Value::from));
        put("endpoint", endpoint.map(Value::from));
        put("retry", retry.map(retry_json));
        put("start", start.map(|start| format_time(start).into()));
        self.send(Method::POST, "/v1/simulate", Some(body), Precondition::None)
            .await
    }
}
