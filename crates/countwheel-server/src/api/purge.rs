//! Purges: `POST /v1/queues/{queue}:purge` and `:cancel-purge`.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use countwheel_durable::{Key, Purge, PurgeError, PurgeFilter, QueueName, StateKind, TimerError};
use countwheel_time::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::described::requests;
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::request::{Honoured, Query, optional_json_body, precondition};
use super::{App, answer, queues};
use crate::time::{format_time, read_time};

/// A purge as it stands.
#[derive(Serialize)]
pub(super) struct PurgeBody {
    id: u64,
    states: Vec<StateKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_before: Option<String>,
    since: String,
    removed: u64,
    shards_left: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

impl From<Purge> for PurgeBody {
    fn from(purge: Purge) -> Self {
        Self {
            id: purge.id.0,
            states: purge.filter.states,
            prefix: purge.filter.prefix,
            due_after: purge.filter.due_from.map(format_time),
            due_before: purge.filter.due_before.map(format_time),
            since: format_time(purge.since),
            removed: purge.removed,
            shards_left: purge.shards_left,
            ended: purge.ended.map(format_time),
        }
    }
}

/// The answer to both verbs.
#[derive(Serialize)]
struct Answer {
    queue: String,
    purge: PurgeBody,
}

/// What is noted of a purge in the audit log.
fn asked(filter: &PurgeFilter) -> Value {
    json!({
        "states": filter.states,
        "prefix": filter.prefix,
        "due_after": filter.due_from.map(format_time),
        "due_before": filter.due_before.map(format_time),
    })
}

fn said(status: StatusCode, purge: Purge) -> Response {
    let body = Answer {
        queue: purge.queue.to_string(),
        purge: purge.into(),
    };
    answer(status, &body)
}

pub(super) async fn purge(
    app: &App,
    queue: QueueName,
    request: Request<Body>,
) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let filter = match optional_json_body(app, request).await? {
        Some(body) => read(&body)?,
        None => PurgeFilter::default(),
    };
    if !queues::is_there(app, &queue).await? {
        return Err(queues::no_such_queue());
    }
    let note = app.note(asked(&filter));
    app.read(move |timers| {
        let purge = timers.noting(note).purge(&queue, filter).map_err(refusal)?;
        Ok(said(StatusCode::ACCEPTED, purge))
    })
    .await
}

pub(super) async fn cancel(
    app: &App,
    queue: QueueName,
    request: Request<Body>,
) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    if let Some(body) = optional_json_body(app, request).await? {
        Field::root(json::parse(&body)?)
            .object_of(&requests::NOTHING)?
            .finish()?;
    }
    let note = app.note(Value::Null);
    app.read(move |timers| {
        let cancelled = timers.noting(note).cancel_purge(&queue)?;
        let none = || Problem::new(Code::NotFound, "no purge of that queue runs");
        Ok(said(StatusCode::OK, cancelled.ok_or_else(none)?))
    })
    .await
}

fn refusal(error: PurgeError) -> Problem {
    match error {
        PurgeError::Timer(error) => error.into(),
        PurgeError::Running(purge) => {
            let detail = format!("the queue {} is being purged already", purge.queue);
            let problem = Problem::new(Code::Purging, detail);
            match serde_json::to_value(PurgeBody::from(*purge)) {
                Ok(purge) => problem.with_purge(purge),
                Err(_) => problem,
            }
        }
        other => TimerError::Unknown(other.to_string()).into(),
    }
}

/// What a purge is to remove.
fn read(body: &[u8]) -> Result<PurgeFilter, Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::PURGE)?;
    let states = object.take("states");
    let prefix = object.take("prefix");
    let due_after = object.take("due_after");
    let due_before = object.take("due_before");
    object.finish()?;
    let all = PurgeFilter::default().states;
    let read_states = |field| read_states(field, &all, "remove");
    let states = states.as_ref().map(read_states).transpose()?;
    let prefix = prefix.as_ref().map(read_prefix).transpose()?;
    Ok(PurgeFilter {
        states: states.unwrap_or(all),
        prefix,
        due_from: due_after.as_ref().map(read_due).transpose()?,
        due_before: due_before.as_ref().map(read_due).transpose()?,
    })
}

/// States on which an action can act.
pub(super) fn read_states(
    field: &Field<'_>,
    known: &[StateKind],
    action: &str,
) -> Result<Vec<StateKind>, Problem> {
    let refusal = || {
        let known: Vec<_> = known.iter().map(|state| format!("\"{state}\"")).collect();
        match action {
            "remove" => {
                "a state is \"pending\", \"done\" or \"dead\"; what is being delivered is not \
                         removed"
                    .to_owned()
            }
            _ => format!(
                "the action {action:?} is for timers that are {}",
                known.join(", ")
            ),
        }
    };
    let mut states = Vec::new();
    for element in field.elements()? {
        let state: Option<StateKind> = element.text()?.parse().ok();
        let state = state.filter(|state| known.contains(state));
        let state = state.ok_or_else(|| element.malformed(refusal()))?;
        if states.contains(&state) {
            return Err(element.malformed("the state is there twice"));
        }
        states.push(state);
    }
    if states.is_empty() {
        return Err(field.malformed("at least one state is needed"));
    }
    states.sort();
    Ok(states)
}

pub(super) fn read_prefix(field: &Field<'_>) -> Result<String, Problem> {
    let prefix = field.text()?.into_owned();
    if prefix.len() > Key::MAX_BYTES {
        let most = Key::MAX_BYTES;
        return Err(field.malformed(format!("a prefix has at most {most} bytes, as a key has")));
    }
    Ok(prefix)
}

pub(super) fn read_due(field: &Field<'_>) -> Result<Timestamp, Problem> {
    read_time(&field.text()?).map_err(|error| field.malformed(error.to_string()))
}
