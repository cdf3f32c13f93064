//! Work that is fetched: `POST /v1/queues/{queue}:lease`, `/v1/leases`, and `:ack`, `:nack` and `:extend` of leases.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_durable::{
    self as durable, Due, Extended, Key, LeaseToken, Outcome, QueueName, Settled, StateKind,
    TimerError, TimerName, Verdict,
};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::access::Identity;
use super::described::{Shape, requests};
use super::endpoints::invalid;
use super::json::{self, Field, Object};
use super::problem::{Code, Problem};
use super::reach::Reach;
use super::request::{Honoured, Query, json_body, optional_json_body, precondition};
use super::timers::BackfillBody;
use super::{App, answer, retry};
use crate::bodies::Share;
use crate::callers::Caller;
use crate::gather::{Held, Lease, Ready};
use crate::job::Job;
use crate::pull::{
    LEASE_MAX, LEASE_MIN, LEASED_MAX_BYTES, LEASES_MAX, QUEUES_MAX, WAIT_MAX, Wanted,
};
use crate::resources::Resources;
use crate::time::format_time;
use crate::traced;

/// How many leases one call settles or extends at the most.
const ITEMS_MAX: usize = 1_000;
/// How much of an answer is handed over at a time, in bytes.
const PIECE: usize = 64 << 10;
/// The caller of a call that took so long may be gone.
const CAREFUL_AFTER: Duration = Duration::from_millis(200);
/// How long the name of a worker is at the most, in bytes.
const WORKER_MAX_BYTES: usize = 128;
/// How long the reason of a nack is at the most, in bytes.
const DETAIL_MAX_BYTES: usize = durable::Record::DETAIL_MAX_BYTES;
/// The longest delay of a nack.
const NACK_MAX: Duration = Duration::from_secs(365 * 86_400);

/// What a call may say beside its queues.
#[derive(Default)]
struct Asked {
    max: Option<u32>,
    lease: Option<Duration>,
    wait: Duration,
    worker: Option<Arc<str>>,
}

/// One lease.
#[derive(Serialize)]
struct LeaseBody {
    queue: String,
    key: String,
    id: String,
    token: String,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<u32>,
    /// Of a run that a backfill has made.
    #[serde(skip_serializing_if = "Option::is_none")]
    backfill: Option<BackfillBody>,
    due: String,
    leased_until: String,
    late_us: u64,
    held_us: u64,
    /// The headers that the timer was set with.
    #[serde(skip_serializing_if = "Map::is_empty")]
    headers: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// If it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl LeaseBody {
    fn of(lease: &Lease) -> Self {
        let job = Job::decode(&lease.payload).ok();
        let (mut body, mut body_base64, mut content_type) = (None, None, None);
        let (mut headers, mut traceparent, mut backfill) = (Map::new(), None, None);
        if let Some(job) = job {
            for (name, value) in job.headers {
                headers.insert(name, value.into());
            }
            let key = lease.name.key.as_str();
            backfill = job.extras.backfill.map(|at| BackfillBody::of(key, at));
            traceparent = job.extras.trace.map(|trace| trace.parent(traced::span()));
            if job.content_type.is_some() {
                match String::from_utf8(job.body) {
                    Ok(text) => body = Some(text),
                    Err(error) => body_base64 = Some(BASE64_STANDARD.encode(error.as_bytes())),
                }
            }
            content_type = job.content_type;
        }
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self {
            queue: lease.name.queue.to_string(),
            key: lease.name.key.to_string(),
            id: lease.id.clone(),
            token: lease.token.to_string(),
            attempt: lease.token.attempt,
            run: lease.run,
            backfill,
            due: format_time(lease.due),
            leased_until: format_time(lease.until),
            late_us: micros(lease.late),
            held_us: micros(lease.held),
            headers,
            traceparent,
            content_type,
            body,
            body_base64,
        }
    }
}

/// Of one queue.
pub(super) async fn of_queue(
    app: &App,
    queue: QueueName,
    request: Request<Body>,
) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let caller = request.extensions().get::<Caller>().copied();
    let asks = request.extensions().get::<Identity>().cloned();
    let mut asked = Asked::default();
    if let Some(body) = optional_json_body(app, request).await? {
        let mut object = Field::root(json::parse(&body)?).object_of(&requests::LEASE)?;
        asked = read_asked(&mut object)?;
        object.finish()?;
    }
    let known = known(app, std::slice::from_ref(&queue)).await?;
    let lease = leased_for(&known, &queue)?;
    lease_from(app, vec![(queue, lease)], asked, caller, asks).await
}

/// Of several queues, in turns.
pub(super) async fn of_queues(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let caller = request.extensions().get::<Caller>().copied();
    let asks = request.extensions().get::<Identity>().cloned();
    let reach = Reach::of_identity(asks.as_ref());
    let body = json_body(&app, request).await?;
    let mut object = Field::root(json::parse(&body)?).object_of(&requests::LEASE_OF_QUEUES)?;
    let field = object.require("queues")?;
    let mut queues: Vec<QueueName> = Vec::new();
    for element in field.elements()? {
        let queue = reach.queue(&element)?;
        if queues.contains(&queue) {
            return Err(element.malformed("the queue is there twice"));
        }
        queues.push(queue);
    }
    if queues.is_empty() || queues.len() > QUEUES_MAX {
        return Err(invalid(
            &field,
            format!("a call is of 1 to {QUEUES_MAX} queues"),
        ));
    }
    let asked = read_asked(&mut object)?;
    object.finish()?;
    let known = known(&app, &queues).await?;
    let mut wanted = Vec::new();
    for (index, queue) in queues.into_iter().enumerate() {
        let lease = leased_for(&known, &queue);
        let lease = lease.map_err(|problem| problem.at(format!("/queues/{index}")))?;
        wanted.push((queue, lease));
    }
    lease_from(&app, wanted, asked, caller, asks).await
}

/// The settings, with what another node may have put a moment ago.
async fn known(app: &App, queues: &[QueueName]) -> Result<Arc<Resources>, Problem> {
    let known = app.resources().await?;
    if queues.iter().all(|queue| known.pulled(queue).is_some()) {
        return Ok(known);
    }
    app.look().await
}

fn leased_for(known: &Resources, queue: &QueueName) -> Result<Duration, Problem> {
    known.pulled(queue).ok_or_else(|| {
        let detail = format!("the queue {queue} is pushed: its mode is not \"pull\"");
        Problem::new(Code::PushQueue, detail)
    })
}

fn read_asked(object: &mut Object<'_>) -> Result<Asked, Problem> {
    let max = object.take("max");
    let lease = object.take("lease");
    let wait = object.take("wait");
    let worker = object.take("worker");
    Ok(Asked {
        max: max.as_ref().map(read_max).transpose()?,
        lease: lease.as_ref().map(read_lease).transpose()?,
        wait: wait.as_ref().map_or(Ok(Duration::ZERO), read_wait)?,
        worker: worker.as_ref().map(read_worker).transpose()?,
    })
}

fn read_max(field: &Field<'_>) -> Result<u32, Problem> {
    let max = field.whole()?.and_then(|max| u32::try_from(max).ok());
    let max = max.filter(|max| (1..=LEASES_MAX).contains(max));
    max.ok_or_else(|| invalid(field, format!("max is from 1 to {LEASES_MAX}")))
}

/// How long a lease is.
pub(super) fn read_lease(field: &Field<'_>) -> Result<Duration, Problem> {
    let lease = retry::duration(field)?.filter(|lease| (LEASE_MIN..=LEASE_MAX).contains(lease));
    lease.ok_or_else(|| invalid(field, "a lease is from 1s to 12h"))
}

fn read_wait(field: &Field<'_>) -> Result<Duration, Problem> {
    let wait = retry::duration(field)?.filter(|wait| *wait <= WAIT_MAX);
    wait.ok_or_else(|| invalid(field, "a wait is at most 60s"))
}

fn read_worker(field: &Field<'_>) -> Result<Arc<str>, Problem> {
    let worker = field.text()?;
    let is_name = (1..=WORKER_MAX_BYTES).contains(&worker.len());
    if !is_name || worker.chars().any(char::is_control) {
        let detail = format!("a worker's name is 1 to {WORKER_MAX_BYTES} bytes, none of control");
        return Err(invalid(field, detail));
    }
    Ok(worker.as_ref().into())
}

async fn lease_from(
    app: &App,
    queues: Vec<(QueueName, Duration)>,
    asked: Asked,
    caller: Option<Caller>,
    asks: Option<Identity>,
) -> Result<Response, Problem> {
    let none = || Problem::new(Code::Unavailable, "this service leases nothing");
    let leaser = app.leaser().ok_or_else(none)?;
    let length = |own| asked.lease.unwrap_or(own);
    let queues = queues.into_iter();
    let wanted = Wanted {
        queues: queues.map(|(queue, own)| (queue, length(own))).collect(),
        max: asked.max.unwrap_or(1),
        bytes: LEASED_MAX_BYTES,
        wait: asked.wait,
        worker: asked.worker,
    };
    let share = app.bodies.share(caller);
    let mut text_share = share.another();
    let began = Instant::now();
    let Ready {
        leases,
        shares,
        is_refused,
    } = match &asks {
        None => leaser.lease(&wanted, share).await,
        Some(asks) => tokio::select! {
            biased;
            // What is leased by then is released.
            () = asks.ended(app) => return asks.still(app).and(Err(no_memory())),
            ready = leaser.lease(&wanted, share) => ready,
        },
    };
    if is_refused && leases.is_empty() {
        return Err(no_memory());
    }
    let mut text = br#"{"leases":["#.to_vec();
    let mut handed = Vec::with_capacity(leases.len());
    for (lease, held) in leases {
        let before = text.len();
        if !handed.is_empty() {
            text.push(b',');
        }
        serde_json::to_writer(&mut text, &LeaseBody::of(&lease)).map_err(|error| {
            tracing::error!(%error, "a lease could not be written");
            Problem::new(Code::Internal, "a lease could not be written")
        })?;
        let more = (text.len() - before).saturating_sub(lease.payload.len());
        if !text_share.take(more) {
            // What is dropped is released, and so are those that follow.
            text.truncate(before);
            if handed.is_empty() {
                return Err(no_memory());
            }
            break;
        }
        handed.push(held);
    }
    text.extend_from_slice(b"]}");
    let json = HeaderValue::from_static("application/json");
    let is_careful = began.elapsed() >= CAREFUL_AFTER;
    let body = Body::new(Counted {
        text: text.into(),
        handed,
        is_careful,
        pauses: is_careful,
        _shares: (shares, text_share),
    });
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, json)], body).into_response())
}

fn no_memory() -> Problem {
    Problem::new(
        Code::Overloaded,
        "there is no memory for more bodies just now, of this address or in all",
    )
}

/// An answer that counts as memory for bodies until its last piece leaves. One whose connection breaks before that releases
/// its leases.
struct Counted {
    text: Bytes,
    /// The leases, until the last piece is handed over.
    handed: Vec<Held>,
    /// The head is written first, then the body but for its end, and then its end: if the caller has closed its connection,
    /// its machine refuses the head, and the write of the body fails.
    is_careful: bool,
    /// What was handed over is written before anything more is.
    pauses: bool,
    _shares: (Vec<Share>, Share),
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if std::mem::take(&mut self.pauses) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.text.is_empty() {
            return Poll::Ready(None);
        }
        let mut length = self.text.len().min(PIECE);
        if self.is_careful && length == self.text.len() && length > 1 {
            length -= 1;
            self.pauses = true;
        }
        let piece = self.text.split_to(length);
        if self.text.is_empty() {
            std::mem::take(&mut self.handed)
                .into_iter()
                .for_each(Held::keep);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.len() as u64)
    }
}

/// A lease as its worker names it.
pub(super) struct Item {
    name: TimerName,
    token: LeaseToken,
}

pub(super) fn read_item(object: &mut Object<'_>, reach: &Reach) -> Result<Item, Problem> {
    let queue = object.require("queue")?;
    let key = object.require("key")?;
    let token = object.require("token")?;
    let name = read_name(&queue, &key, reach)?;
    let read: Result<LeaseToken, _> = token.text()?.parse();
    let token = read.map_err(|error| invalid(&token, error.to_string()))?;
    Ok(Item { name, token })
}

/// The timer that two fields name.
pub(super) fn read_name(
    queue: &Field<'_>,
    key: &Field<'_>,
    reach: &Reach,
) -> Result<TimerName, Problem> {
    let named = reach.queue(queue)?;
    let of_key = Key::new(key.text()?);
    let of_key = of_key.map_err(|error| Problem::from(error).at(key.pointer()))?;
    Ok(TimerName {
        queue: named,
        key: of_key,
    })
}

/// One of the leases of a call, or all of them: what a verb says of each is read by `read`.
enum Items<T> {
    One(T),
    Many(Vec<T>),
}

async fn items<T>(
    app: &App,
    request: Request<Body>,
    (one, many): (&'static Shape, &'static Shape),
    read: impl Fn(&mut Object<'_>, &Reach) -> Result<T, Problem>,
) -> Result<Items<T>, Problem> {
    let reach = Reach::of(&request);
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let body = json_body(app, request).await?;
    let object = Field::root(json::parse(&body)?).object()?;
    if !object.has("items") {
        let mut object = object.shaped(one)?;
        let item = read(&mut object, &reach)?;
        object.finish()?;
        return Ok(Items::One(item));
    }
    let mut object = object.shaped(many)?;
    let field = object.require("items")?;
    object.finish()?;
    let elements = field.elements()?;
    if elements.is_empty() || elements.len() > ITEMS_MAX {
        return Err(invalid(&field, format!("items are 1 to {ITEMS_MAX}")));
    }
    let mut items = Vec::with_capacity(elements.len());
    for element in elements {
        let mut object = element.object_of(one)?;
        items.push(read(&mut object, &reach)?);
        object.finish()?;
    }
    Ok(Items::Many(items))
}

/// What became of one lease.
#[derive(Serialize, Default)]
struct ResultBody {
    queue: String,
    key: String,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_until: Option<String>,
    /// Who has it now, if that is known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Why it was refused.
    #[serde(skip)]
    problem: Option<Problem>,
}

/// What came of a request about a lease.
enum Came {
    Settled(Settled),
    Extended(Extended),
}

/// Hands a request about a lease to the scheduler. The future waits for the answer.
fn settle(app: &App, request: durable::Request) -> impl Future<Output = Result<Came, TimerError>> {
    let (settled, extended) = match &request {
        durable::Request::Extend { .. } => (None, Some(app.ask(request))),
        _ => (Some(app.ask(request)), None),
    };
    async move {
        match (settled, extended) {
            (Some(settled), _) => settled.await.map(Came::Settled),
            (None, Some(extended)) => extended.await.map(Came::Extended),
            (None, None) => Err(TimerError::Closed),
        }
    }
}

impl ResultBody {
    fn of(app: &App, name: &TimerName, came: Result<Came, TimerError>) -> Self {
        let body = Self {
            queue: name.queue.to_string(),
            key: name.key.to_string(),
            status: StatusCode::OK.as_u16(),
            ..Self::default()
        };
        match came {
            Ok(Came::Settled(settled)) => Self {
                state: Some(settled.state.as_str()),
                due: settled.due.map(format_time),
                ..body
            },
            Ok(Came::Extended(extended)) => Self {
                leased_until: Some(format_time(extended.until)),
                ..body
            },
            Err(error) => {
                let (mut worker, mut until) = (None, None);
                if let TimerError::LeaseLost { until: other, .. } = &error {
                    until = *other;
                    let leaser = app.leaser().filter(|_| until.is_some());
                    worker = leaser.and_then(|leaser| leaser.desk().last_worker(name));
                }
                let problem = lost(error);
                let (status, _, detail) = problem.parts();
                Self {
                    status: status.as_u16(),
                    code: Some(problem.code()),
                    detail: Some(detail.to_owned()),
                    worker: worker.map(|worker| worker.to_string()),
                    leased_until: until.map(format_time),
                    state: problem.state(),
                    problem: Some(problem),
                    ..body
                }
            }
        }
    }

    /// What the refusal of a single lease says beside its problem.
    fn named(&self) -> Map<String, Value> {
        let mut named = Map::new();
        named.insert("queue".to_owned(), self.queue.as_str().into());
        named.insert("key".to_owned(), self.key.as_str().into());
        let more = [
            ("leased_until", &self.leased_until),
            ("worker", &self.worker),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                named.insert(name.to_owned(), value.as_str().into());
            }
        }
        named
    }
}

/// A lease of a timer that is gone is lost as well.
pub(super) fn lost(error: TimerError) -> Problem {
    match error {
        TimerError::NotFound => Problem::new(
            Code::LeaseLost,
            "the lease is lost: there is no timer of that name any more",
        ),
        TimerError::Gone { .. } => {
            Problem::new(Code::LeaseLost, "the lease is lost: the timer is done")
                .in_state(StateKind::Done)
        }
        other => other.into(),
    }
}

async fn settle_all<T>(
    app: &App,
    items: Items<T>,
    request: impl Fn(T) -> (TimerName, durable::Request),
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        results: Vec<ResultBody>,
    }
    match items {
        Items::One(item) => {
            let (name, request) = request(item);
            let came = settle(app, request).await;
            let mut body = ResultBody::of(app, &name, came);
            match body.problem.take() {
                None => Ok(answer(StatusCode::OK, &body)),
                Some(problem) => Err(problem.with_lease(body.named())),
            }
        }
        Items::Many(items) => {
            // All are asked before one is waited for: they are one commit, or few.
            let asked = items.into_iter().map(|item| {
                let (name, request) = request(item);
                (name, settle(app, request))
            });
            let asked: Vec<_> = asked.collect();
            let mut results = Vec::with_capacity(asked.len());
            for (name, came) in asked {
                results.push(ResultBody::of(app, &name, came.await));
            }
            Ok(answer(StatusCode::OK, &Answer { results }))
        }
    }
}

pub(super) async fn ack(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let items = items(&app, request, (&requests::ACK, &requests::ACKS), read_item).await?;
    settle_all(&app, items, |item: Item| settle_request(item, acked())).await
}

/// The outcome of an ack.
pub(super) fn acked() -> Outcome {
    Outcome::new(Verdict::Done, "acked")
}

pub(super) fn settle_request(item: Item, outcome: Outcome) -> (TimerName, durable::Request) {
    let name = item.name.clone();
    let request = durable::Request::Settle {
        name: item.name,
        token: item.token,
        outcome,
    };
    (name, request)
}

pub(super) async fn nack(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let items = items(
        &app,
        request,
        (&requests::NACK, &requests::NACKS),
        read_nack,
    )
    .await?;
    settle_all(&app, items, |(item, outcome)| settle_request(item, outcome)).await
}

pub(super) fn read_nack(
    object: &mut Object<'_>,
    reach: &Reach,
) -> Result<(Item, Outcome), Problem> {
    let item = read_item(object, reach)?;
    let (delay, dead) = (object.take("in"), object.take("dead"));
    let detail = object.take("detail");
    let said = match &detail {
        None => "nacked".to_owned(),
        Some(field) => {
            let said = field.text()?.into_owned();
            if said.len() > DETAIL_MAX_BYTES {
                let most = DETAIL_MAX_BYTES;
                return Err(invalid(field, format!("a detail has at most {most} bytes")));
            }
            if said.chars().any(char::is_control) {
                return Err(invalid(field, "a detail has no control characters"));
            }
            said
        }
    };
    let is_dead = dead.as_ref().map_or(Ok(false), Field::truth)?;
    let outcome = match (&delay, is_dead) {
        (Some(field), true) => {
            return Err(invalid(field, "what is dead has no next attempt"));
        }
        (None, true) => Outcome::new(Verdict::Stopped, said),
        (None, false) => Outcome::failed(said),
        (Some(field), false) => {
            let delay = retry::duration(field)?.filter(|delay| *delay <= NACK_MAX);
            let delay = delay.ok_or_else(|| invalid(field, "a delay is at most 365d"))?;
            Outcome::failed(said).retry_in(delay)
        }
    };
    Ok((item, outcome))
}

pub(super) async fn extend(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let items = items(
        &app,
        request,
        (&requests::EXTEND, &requests::EXTENDS),
        |object, reach| {
            let item = read_item(object, reach)?;
            let lease = object.require("lease")?;
            Ok((item, read_lease(&lease)?))
        },
    );
    let items = items.await?;
    let request = |(item, lease): (Item, Duration)| {
        let name = item.name.clone();
        let request = durable::Request::Extend {
            name: item.name,
            token: item.token,
            lease: lease.min(Due::MAX_AHEAD),
        };
        (name, request)
    };
    settle_all(&app, items, request).await
}
