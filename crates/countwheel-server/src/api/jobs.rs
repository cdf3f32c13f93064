//! Jobs: `POST /v1/jobs`, `GET /v1/jobs`, `GET /v1/jobs/{id}` and `POST /v1/jobs/{id}:cancel`.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::{
    Due, Job, JobAction, JobError, JobFilter, JobOrder, SettingsVersion, Shift, StateKind,
    TimerError,
};
use countwheel_time::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::access::Identity;
use super::described::requests;
use super::json::{self, Field, Object};
use super::problem::{Code, Problem};
use super::reach::Reach;
use super::request::{Honoured, Query, json_body, optional_json_body, precondition, text_segment};
use super::timers::{due_at, due_in, shift_by, unschedulable};
use super::{App, answer, purge, queues, tags};
use crate::resources::token::Scope;
use crate::time::{format_duration, format_time};

/// The highest rate of a job, in timers each second.
pub(crate) const RATE_MAX: u32 = 100_000;

/// A job as it stands.
#[derive(Serialize)]
struct JobBody {
    id: u64,
    queue: String,
    action: &'static str,
    filter: FilterBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#move: Option<MoveBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<NonZeroU32>,
    dry_run: bool,
    since: String,
    matched: u64,
    done: u64,
    skipped: u64,
    shards_left: u16,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancelled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

#[derive(Serialize)]
struct FilterBody {
    states: Vec<StateKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_before: Option<String>,
}

/// Where a job moves timers.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum MoveBody {
    By(String),
    In(String),
    At(String),
}

impl MoveBody {
    fn of(action: JobAction) -> Option<Self> {
        let JobAction::Move(shift) = action else {
            return None;
        };
        Some(match shift {
            Shift::Later(span) => Self::By(format_duration(span)),
            Shift::Sooner(span) => Self::By(format!("-{}", format_duration(span))),
            Shift::To(Due::In(delay)) => Self::In(format_duration(delay)),
            Shift::To(Due::At(at)) => Self::At(format_time(at)),
        })
    }
}

impl FilterBody {
    fn of(filter: JobFilter) -> Self {
        Self {
            states: filter.states,
            prefix: filter.prefix,
            tags: filter.tags,
            due_after: filter.due_from.map(format_time),
            due_before: filter.due_before.map(format_time),
        }
    }
}

/// What is noted of a job in the audit log.
fn asked(order: &JobOrder) -> Value {
    json!({
        "queue": order.queue.as_str(),
        "action": name_of(order.action),
        "filter": FilterBody::of(order.filter.clone()),
        "move": MoveBody::of(order.action),
        "rate": order.rate,
        "dry_run": order.dry_run,
    })
}

fn name_of(action: JobAction) -> &'static str {
    match action {
        JobAction::Remove => "remove",
        JobAction::Move(_) => "move",
        JobAction::Fire => "fire",
        JobAction::Revive => "revive",
    }
}

impl From<Job> for JobBody {
    fn from(job: Job) -> Self {
        let JobOrder {
            queue,
            action,
            filter,
            rate,
            dry_run,
        } = job.order;
        Self {
            id: job.id.0,
            queue: queue.to_string(),
            action: name_of(action),
            filter: FilterBody::of(filter),
            r#move: MoveBody::of(action),
            rate,
            dry_run,
            since: format_time(job.since),
            matched: job.counts.matched,
            done: job.counts.done,
            skipped: job.counts.skipped,
            shards_left: job.shards_left,
            cancelled: job.cancelled,
            ended: job.ended.map(format_time),
        }
    }
}

pub(super) async fn begin(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let asks = request.extensions().get::<Identity>().cloned();
    let body = json_body(&app, request).await?;
    let reach = Reach::of_identity(asks.as_ref());
    let order = read(&body, app.clock.timestamp(), &reach)?;
    drop(body);
    if order.dry_run {
        // What is counted and not changed is read.
        asks.map_or(Ok(()), |asks| asks.needs(Scope::Read))?;
    }
    if !queues::is_there(&app, &order.queue).await? {
        return Err(queues::no_such_queue());
    }
    let note = app.note(asked(&order));
    app.read(move |timers| {
        let job = timers.noting(note).begin_job(&order).map_err(refusal)?;
        Ok(answer(StatusCode::ACCEPTED, &JobBody::from(job)))
    })
    .await
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        jobs: Vec<JobBody>,
    }
    Query::of(&uri, &[])?;
    app.read(move |timers| {
        let jobs = timers.jobs().into_iter();
        let jobs = jobs.filter(|job| reach.has(job.order.queue.namespace()));
        let jobs = jobs.map(JobBody::from).collect();
        Ok(answer(StatusCode::OK, &Answer { jobs }))
    })
    .await
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let id = text_segment(&uri, 3).and_then(|text| id_of(&text));
    let id = id.ok_or_else(no_such_job)?;
    app.read(move |timers| {
        let job = timers.job(id)?;
        let job = job.filter(|job| reach.has(job.order.queue.namespace()));
        let job = job.ok_or_else(no_such_job)?;
        Ok(answer(StatusCode::OK, &JobBody::from(job)))
    })
    .await
}

/// The verb stands behind the last colon of the path.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let id = text_segment(request.uri(), 3);
    let id = id.as_deref().and_then(|text| text.strip_suffix(":cancel"));
    let id = id.ok_or_else(|| {
        let detail = "a job takes POST with :cancel at the end of its path";
        Problem::new(Code::NotFound, detail)
    })?;
    let id = id_of(id).ok_or_else(no_such_job)?;
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let reach = Reach::of(&request);
    if let Some(body) = optional_json_body(&app, request).await? {
        Field::root(json::parse(&body)?)
            .object_of(&requests::NOTHING)?
            .finish()?;
    }
    let note = app.note(json!({ "job": id.0 }));
    app.read(move |timers| {
        let job = timers.job(id)?;
        let is_seen = |job: &Job| reach.has(job.order.queue.namespace());
        job.filter(is_seen).ok_or_else(no_such_job)?;
        let job = timers.noting(note).cancel_job(id)?;
        let job = job.ok_or_else(no_such_job)?;
        Ok(answer(StatusCode::OK, &JobBody::from(job)))
    })
    .await
}

/// Only what is shown: no sign and no zeros in front.
fn id_of(text: &str) -> Option<SettingsVersion> {
    let id: u64 = text.parse().ok()?;
    (id.to_string() == text).then_some(SettingsVersion(id))
}

fn no_such_job() -> Problem {
    Problem::new(
        Code::NotFound,
        "there is no such job, or it is not shown any more",
    )
}

fn refusal(error: JobError) -> Problem {
    match error {
        JobError::Timer(error) => error.into(),
        JobError::TooMany | JobError::TooManyOfNamespace => {
            Problem::new(Code::TooManyJobs, error.to_string())
        }
        other => TimerError::Unknown(other.to_string()).into(),
    }
}

/// What is asked of a job.
fn read(body: &[u8], now: Timestamp, reach: &Reach) -> Result<JobOrder, Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::JOB)?;
    let queue = object.require("queue")?;
    let action = object.require("action")?;
    let filter = object.require("filter")?;
    let shift = object.take("move");
    let (rate, dry_run) = (object.take("rate"), object.take("dry_run"));
    let lacks_move = object.missing("move");
    object.finish()?;
    let queue = reach.queue(&queue)?;
    let action = match (&*action.text()?, &shift) {
        ("move", Some(shift)) => JobAction::Move(read_move(shift, now)?),
        ("move", None) => return Err(lacks_move),
        (_, Some(shift)) => {
            return Err(shift.malformed("only a job with the action \"move\" has a move"));
        }
        ("remove", None) => JobAction::Remove,
        ("fire", None) => JobAction::Fire,
        ("revive", None) => JobAction::Revive,
        _ => {
            let detail = "an action is one of \"remove\", \"move\", \"fire\", \"revive\"";
            return Err(action.malformed(detail));
        }
    };
    Ok(JobOrder {
        queue,
        action,
        filter: read_filter(filter.object_of(&requests::JOB_FILTER)?, action)?,
        rate: rate.as_ref().map(read_rate).transpose()?,
        dry_run: dry_run.map_or(Ok(false), |field| field.truth())?,
    })
}

fn read_filter(mut object: Object<'_>, action: JobAction) -> Result<JobFilter, Problem> {
    let states = object.take("states");
    let (prefix, wanted) = (object.take("prefix"), object.take("tags"));
    let (due_after, due_before) = (object.take("due_after"), object.take("due_before"));
    object.finish()?;
    let states = states.map(|field| purge::read_states(&field, action.states(), name_of(action)));
    Ok(JobFilter {
        states: states
            .transpose()?
            .unwrap_or_else(|| action.states().to_vec()),
        prefix: prefix.as_ref().map(purge::read_prefix).transpose()?,
        tags: wanted
            .as_ref()
            .map(tags::read)
            .transpose()?
            .unwrap_or_default(),
        due_from: due_after.as_ref().map(purge::read_due).transpose()?,
        due_before: due_before.as_ref().map(purge::read_due).transpose()?,
    })
}

fn read_move(field: &Field<'_>, now: Timestamp) -> Result<Shift, Problem> {
    let mut object = field.object_of(&requests::MOVE)?;
    let (kind, field) = object.one_of(&["in", "at", "by"])?;
    object.finish()?;
    match kind {
        "in" => Ok(Shift::To(due_in(&field)?)),
        "by" => shift_by(&field),
        _ => match due_at(&field)? {
            Due::At(at) if at > now + Due::MAX_AHEAD => {
                let detail = "a timer is due at most 36525 days ahead";
                Err(unschedulable(&field, detail))
            }
            at => Ok(Shift::To(at)),
        },
    }
}

fn read_rate(field: &Field<'_>) -> Result<NonZeroU32, Problem> {
    let rate = field.whole()?.and_then(|rate| u32::try_from(rate).ok());
    let rate = rate
        .filter(|rate| *rate <= RATE_MAX)
        .and_then(NonZeroU32::new);
    let detail = "a rate is a whole number of timers each second, from 1 to 100000";
    rate.ok_or_else(|| field.malformed(detail))
}
