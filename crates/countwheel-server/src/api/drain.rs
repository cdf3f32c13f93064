//! Pauses and drains: `POST /v1/queues/{queue}:pause`, `:drain` and `:resume`, and the same of all queues.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_durable::{DrainMode, Drains, Due, Left, QueueName, Record};
use countwheel_time::{Clock, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::described::requests;
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::request::{Honoured, Query, QueueVerb, json_body, precondition, queue_and_verb_of};
use super::timers::{TimerBody, View, due};
use super::{App, answer, leases, purge};
use crate::job::Job;
use crate::quotas;
use crate::time::format_time;

/// Of one queue: the verb stands behind the last colon of its path.
pub(super) async fn of_queue(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (queue, verb) = queue_and_verb_of(request.uri())?;
    if matches!(verb, QueueVerb::Pause | QueueVerb::Drain) {
        // A queue that is only paused is there as well.
        quotas::admit_queue(&app, &queue).await?;
    }
    match verb {
        QueueVerb::Pause => pause(&app, Some(queue), request).await,
        QueueVerb::Drain => drain(&app, Some(queue), request).await,
        QueueVerb::Resume => resume(&app, Some(queue), request).await,
        QueueVerb::Purge => purge::purge(&app, queue, request).await,
        QueueVerb::CancelPurge => purge::cancel(&app, queue, request).await,
        QueueVerb::Lease => leases::of_queue(&app, queue, request).await,
    }
}

pub(super) async fn pause_all(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    pause(&app, None, request).await
}

pub(super) async fn drain_all(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    drain(&app, None, request).await
}

pub(super) async fn resume_all(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    resume(&app, None, request).await
}

/// Why nothing of a queue starts, if a pause or a drain lets nothing start.
pub(super) fn held_by(drains: &Drains, queue: &QueueName, clock: &dyn Clock) -> Option<String> {
    let wall = clock.timestamp();
    let of = |mode: DrainMode, is: &str| match mode {
        DrainMode::Pause { until: None } => Some(format!("{is} paused")),
        DrainMode::Pause { until: Some(until) } if wall < until => {
            Some(format!("{is} paused until {}", format_time(until)))
        }
        DrainMode::Fire { until: Some(until) } if wall >= until => Some(format!("{is} drained")),
        DrainMode::Hold | DrainMode::Remove => Some(format!("{is} drained")),
        _ => None,
    };
    let own = drains.own(queue).and_then(|mode| of(mode, "the queue is"));
    own.or_else(|| drains.all().and_then(|mode| of(mode, "all queues are")))
}

/// The content type of a body that was set as JSON.
const JSON: &str = "application/json";

/// What is left of a drained queue.
#[derive(Serialize)]
struct LeftBody {
    pending: u64,
    delivering: u64,
    dead: u64,
}

impl From<Left> for LeftBody {
    fn from(left: Left) -> Self {
        Self {
            pending: left.pending,
            delivering: left.delivering,
            dead: left.dead,
        }
    }
}

/// How a queue is drained or paused.
#[derive(Serialize)]
pub(super) struct DrainBody {
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl From<DrainMode> for DrainBody {
    fn from(mode: DrainMode) -> Self {
        let until = match mode {
            DrainMode::Fire { until } | DrainMode::Pause { until } => until.map(format_time),
            _ => None,
        };
        Self {
            mode: mode.to_string(),
            until,
        }
    }
}

/// A timer that a drain hands back: all there is of it, since nothing else has it.
#[derive(Serialize)]
struct RemovedBody {
    #[serde(flatten)]
    timer: TimerBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    /// If the body is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl RemovedBody {
    fn of(record: &Record, view: &View) -> Self {
        let job = Job::decode(&record.payload).ok();
        let is_json = |job: &Job| job.content_type.as_deref() == Some(JSON);
        let is_json = job.as_ref().is_some_and(is_json);
        let (body, body_base64) = match job.map(|job| String::from_utf8(job.body)) {
            None => (None, None),
            Some(Err(error)) => (None, Some(BASE64_STANDARD.encode(error.as_bytes()))),
            Some(Ok(text)) => {
                let json = is_json.then(|| RawValue::from_string(text.clone()).ok());
                // Another text is handed back as one.
                let json = json.flatten();
                (
                    json.or_else(|| serde_json::value::to_raw_value(&text).ok()),
                    None,
                )
            }
        };
        Self {
            timer: TimerBody::of(record, view),
            body,
            body_base64,
        }
    }
}

async fn pause(
    app: &App,
    queue: Option<QueueName>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    without_condition(request.headers())?;
    Query::of(request.uri(), &[])?;
    let mut until = None;
    if let Some(body) = super::request::optional_json_body(app, request).await? {
        let mut object = Field::root(json::parse(&body)?).object_of(&requests::PAUSE)?;
        if object.has("in") || object.has("at") {
            until = Some(end(app, due(&mut object)?)?);
        }
        object.finish()?;
    }
    put(app, queue, DrainMode::Pause { until }).await
}

async fn drain(
    app: &App,
    queue: Option<QueueName>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    without_condition(request.headers())?;
    Query::of(request.uri(), &[])?;
    let body = json_body(app, request).await?;
    let mut object = Field::root(json::parse(&body)?).object_of(&requests::DRAIN)?;
    let mode = object.require("mode")?;
    let until = object.has("in") || object.has("at");
    let mode = match (&*mode.text()?, until) {
        ("fire", false) => DrainMode::Fire { until: None },
        ("fire", true) => DrainMode::Fire {
            until: Some(end(app, due(&mut object)?)?),
        },
        ("hold", false) => DrainMode::Hold,
        ("remove", false) => DrainMode::Remove,
        ("hold" | "remove", true) => {
            let only = "only a drain of mode \"fire\" has an end";
            let end = object.take("in").or_else(|| object.take("at"));
            return Err(end.unwrap_or(mode).malformed(only));
        }
        _ => return Err(mode.malformed("a mode is \"fire\", \"hold\" or \"remove\"")),
    };
    object.finish()?;
    put(app, queue, mode).await
}

/// Puts a queue, or all of them, into this mode.
async fn put(app: &App, queue: Option<QueueName>, mode: DrainMode) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        queue: Option<String>,
        drain: DrainBody,
        #[serde(skip_serializing_if = "Option::is_none")]
        removed: Option<Vec<RemovedBody>>,
        left: LeftBody,
    }
    let view = View::of(app).await;
    let note = app.note(json!({ "drain": DrainBody::from(mode) }));
    app.read(move |timers| {
        let drained = timers.noting(note).drain(queue.as_ref(), mode)?;
        let removed = (mode == DrainMode::Remove).then(|| {
            drained
                .removed
                .iter()
                .map(|record| RemovedBody::of(record, &view))
                .collect()
        });
        let body = Answer {
            queue: queue.map(|queue| queue.to_string()),
            drain: mode.into(),
            removed,
            left: drained.left.into(),
        };
        Ok(answer(StatusCode::OK, &body))
    })
    .await
}

/// The time of the wall clock at which a drain or pause ends.
fn end(app: &App, due: Due) -> Result<Timestamp, Problem> {
    Ok(due.resolve(app.clock.timestamp())?)
}

async fn resume(
    app: &App,
    queue: Option<QueueName>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        queue: Option<String>,
        was: Option<DrainBody>,
        left: LeftBody,
    }
    without_condition(request.headers())?;
    Query::of(request.uri(), &[])?;
    if let Some(body) = super::request::optional_json_body(app, request).await? {
        Field::root(json::parse(&body)?)
            .object_of(&requests::NOTHING)?
            .finish()?;
    }
    let note = app.note(Value::Null);
    app.read(move |timers| {
        let was = timers.noting(note).resume(queue.as_ref())?;
        let left = timers.left(queue.as_ref());
        let body = Answer {
            queue: queue.map(|queue| queue.to_string()),
            was: was.map(DrainBody::from),
            left: left.map_err(|error| Problem::from(&error))?.into(),
        };
        Ok(answer(StatusCode::OK, &body))
    })
    .await
}

/// A queue has no revision to compare.
fn without_condition(headers: &HeaderMap) -> Result<(), Problem> {
    precondition(headers, Honoured::Nothing).map(drop)
}

/// What a path of a queue takes.
pub(super) fn no_such_verb() -> Problem {
    Problem::new(
        Code::NotFound,
        "a queue takes POST with :pause, :drain, :resume, :purge, :cancel-purge or :lease at the end of its \
         path",
    )
}
