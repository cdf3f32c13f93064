//! The times of the attempts of a retry policy, or of the runs of a schedule.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use countwheel_durable::{Due, Recurrence, RetryPolicy, Schedule};
use countwheel_time::Timestamp;
use serde::Serialize;

use super::described::requests;
use super::json::{self, Field};
use super::problem::Problem;
use super::recurrence;
use super::request::{Honoured, Query, json_body, precondition};
use super::retry::{self, Planned, Standing};
use super::{App, answer, timers};
use crate::time::{LAST_TIME, format_time};

#[derive(Serialize)]
struct Answer {
    attempts: Vec<AttemptBody>,
    total_ms: u64,
    truncated: bool,
    then: Option<&'static str>,
}

#[derive(Serialize)]
struct AttemptBody {
    attempt: u32,
    at: String,
    earliest: String,
    delay_ms: u64,
    after_ms: u64,
}

#[derive(Serialize)]
struct Runs {
    runs: Vec<RunBody>,
    truncated: bool,
    then: Option<&'static str>,
}

#[derive(Serialize)]
struct RunBody {
    run: usize,
    at: String,
    latest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<String>,
}

/// What is to be gone through.
enum Asked {
    Attempts(RetryPolicy),
    Runs(Due, Box<Recurrence>),
}

pub(super) async fn simulate(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let body = json_body(&app, request).await?;
    let (asked, start, limit) = read(&body)?;
    let start = start.unwrap_or_else(|| app.clock.timestamp());
    // Ten thousand exponential steps take a while, and so do ten thousand leap days.
    app.read(move |_| Ok(answer(StatusCode::OK, &asked.simulate(start, limit)?)))
        .await
}

/// The answer to the request with this `body`, if it comes `now`: what a simulation needs is in the
/// request, and nothing in a server.
pub(crate) fn answer_to(body: &[u8], now: Timestamp) -> Result<impl Serialize + use<>, Problem> {
    let (asked, start, limit) = read(body)?;
    asked.simulate(start.unwrap_or(now), limit)
}

#[derive(Serialize)]
#[serde(untagged)]
enum Simulated {
    Attempts(Answer),
    Runs(Runs),
}

impl Asked {
    fn simulate(&self, start: Timestamp, limit: usize) -> Result<Simulated, Problem> {
        Ok(match self {
            Self::Attempts(policy) => Simulated::Attempts(run(policy, start, limit)),
            Self::Runs(due, recurrence) => {
                let from = due.resolve(start)?;
                Simulated::Runs(runs(recurrence, from, limit))
            }
        })
    }
}

fn read(body: &[u8]) -> Result<(Asked, Option<Timestamp>, usize), Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::SIMULATE)?;
    let policy = object.take("retry");
    let start = object.take("start");
    let limit = object.take("limit");
    let recurrence = recurrence::read(&mut object)?;
    let one = || object.malformed("exactly one of retry, every, every_after, cron is needed");
    let asked = match (&policy, recurrence) {
        (Some(policy), None) => Asked::Attempts(retry::read(policy)?),
        (None, Some((due, options))) => Asked::Runs(due, options.recurrence.ok_or_else(one)?),
        _ => return Err(one()),
    };
    object.finish()?;
    let start = start.as_ref().map(timers::time).transpose()?;
    let limit = match &limit {
        None => 100,
        Some(field) => field
            .whole()?
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| (1..=10_000).contains(limit))
            .ok_or_else(|| field.malformed("must be a whole number from 1 to 10000"))?,
    };
    Ok((asked, start, limit))
}

/// The runs of a schedule, each on time.
fn runs(recurrence: &Recurrence, from: Timestamp, limit: usize) -> Runs {
    let zone = match &recurrence.schedule {
        Schedule::Cron { zone, .. } => Some(zone),
        _ => None,
    };
    let mut times = recurrence.nominal_times(from).peekable();
    let mut runs = Vec::new();
    while runs.len() < limit
        && let Some(at) = times.next_if(|&at| at <= LAST_TIME)
    {
        runs.push(RunBody {
            run: runs.len() + 1,
            at: format_time(at),
            latest: format_time(at + recurrence.jitter),
            local: zone.map(|zone| zone.show(at)),
        });
    }
    let truncated = times.peek().is_some();
    Runs {
        runs,
        truncated,
        then: (!truncated).then_some("done"),
    }
}

fn run(policy: &RetryPolicy, start: Timestamp, limit: usize) -> Answer {
    let mut plan = Standing::fresh(start).plan(policy).peekable();
    let mut attempts: Vec<Planned> = Vec::new();
    // Cut as well where the calendar of RFC 3339 ends.
    let fits = |planned: &Planned| planned.at <= LAST_TIME;
    while attempts.len() < limit
        && let Some(planned) = plan.next_if(fits)
    {
        attempts.push(planned);
    }
    let truncated = plan.peek().is_some();
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Answer {
        total_ms: attempts.last().map_or(0, |last| millis(last.after)),
        attempts: attempts
            .into_iter()
            .map(|planned| AttemptBody {
                attempt: planned.attempt,
                at: format_time(planned.at),
                earliest: format_time(planned.earliest),
                delay_ms: millis(planned.delay),
                after_ms: millis(planned.after),
            })
            .collect(),
        truncated,
        then: (!truncated).then_some("dead"),
    }
}
