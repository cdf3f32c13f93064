//! The timers of a queue: set, move, remove, get, list, fire, revive, resend.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_durable::store::{Cursor, Position, Shard};
use countwheel_durable::{
    self as durable, DeadReason, Due, Key, Precondition, QueueName, Receipt, Record, RetryPolicy,
    Revision, SetOptions, Shards, Shift, StateKind, TimerError, Was,
};
use countwheel_time::{Random, Timestamp};
use serde::Serialize;
use serde_json::Value;

use super::access::Identity;
use super::described::{operations, requests};
use super::endpoints::above_ceiling_at;
use super::idempotency::{self, REPLAYED};
use super::json::{self, Field, Kind, Object};
use super::problem::{Code, Problem};
use super::recurrence;
use super::request::{
    Condition, Held, Honoured, Known, Query, Verb, has_already, json_body, json_body_for,
    optional_json_body, precondition, queue_of, timer_and_verb_of, timer_of,
};
use super::retry::{self, NextAttempt, Standing};
use super::{App, answer, backfill, tags};
use crate::answered::{Answered, KeepAnswers, micros};
use crate::client::timer_path;
use crate::deliver::{carries_body, check_encoding, check_url};
use crate::guard::{RefusedTarget, Targets};
use crate::job::{Extras, Inherits, Job, Spread, TIMEOUT_DEFAULT, To};
use crate::quotas::weight::bytes_of;
use crate::quotas::{self, Admitted};
use crate::resources::Resources;
use crate::resources::ceilings::Ceilings;
use crate::resources::endpoint::{EndpointName, Opened};
use crate::resources::queue::{Mode, Placement, Queue};
use crate::resources::route::check_path;
use crate::resources::rules::{InForce, Origins};
use crate::resources::token::Scope;
use crate::time::{format_duration, format_time, parse_signed, read_time};
use crate::traced::TraceContext;

const URL_MAX_BYTES: usize = 2_048;
pub(crate) const HEADERS_MAX: usize = 32;
const HEADERS_MAX_BYTES: usize = 8_192;
/// The shortest.
pub(crate) const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The longest that an attempt may take.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 60);
/// The longest spread.
const SPREAD_MAX: Duration = Duration::from_secs(86_400);
/// The methods of deliveries.
const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];
/// The content type of bytes that have no other.
const OCTETS: &str = "application/octet-stream";
/// How many attempts to come a timer shows.
const NEXT_ATTEMPTS: usize = 20;
/// How often a set is tried that is for whatever timer of its name exists.
pub(super) const TRIES: usize = 16;
/// The state that is shown of a timer that a worker has.
pub(crate) use countwheel_client::words::LEASED;
/// The revision of no timer.
const NO_REVISION: Revision = Revision(0);

/// Headers that a delivery sets itself, or that are about the connection.
const RESERVED_HEADERS: [&str; 15] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub(super) async fn set(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let name = timer_of(request.uri())?;
    Query::of(request.uri(), &[])?;
    let condition = precondition(request.headers(), Honoured::Both)?;
    let trace = TraceContext::of(request.headers());
    let body = json_body_for(&app, &name.queue, request).await?;
    let object = Field::root(json::parse(&body)?).object_of(&requests::SET)?;
    let timer = read_known(&app, object, &name.queue, app.tagged(&name.key)).await?;
    // What is made of a long body takes its place.
    let _share = body.into_share();
    let request = timer.request(name.clone(), trace);
    let admitted = quotas::admit(&app, &name, request.bytes()).await?;
    let set = match condition {
        Condition::Engine(precondition) => {
            let set: Result<durable::Set, _> = app.ask(request.with(precondition)).await;
            admitted.into_iter().for_each(|it| it.end(set.as_ref()));
            set?
        }
        Condition::Exists => replace(&app, &request, admitted).await?,
    };
    Ok(was_set(&name, set))
}

/// Sets a timer under a key that the service draws.
pub(super) async fn post(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let queue = queue_of(request.uri())?;
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let asked_as = idempotency::key_of(request.headers())?;
    let trace = TraceContext::of(request.headers());
    let body = json_body_for(&app, &queue, request).await?;
    let object = Field::root(json::parse(&body)?).object_of(&requests::SET)?;
    let new = match read_known(&app, object, &queue, None).await {
        Ok(new) => new,
        // What was right once may be wrong by now, such as an endpoint that is gone.
        Err(problem) => {
            let before = match &asked_as {
                Some(key) => set_before(&app, &queue, key, &body).await?,
                None => None,
            };
            return before.ok_or(problem);
        }
    };
    let serial_key = new.job.extras.serial_key.as_deref();
    let receipt = match &asked_as {
        Some(key) => Some(idempotency::receipt(&app, &queue, serial_key, key, &body).await?),
        None => None,
    };
    let name = drawn(&app, &queue, serial_key, receipt.as_ref()).await?;
    let is_misplaced = |serial: &str| Shards::tag(&name.key) != Some(serial);
    if app.tagged(&name.key).is_some() && serial_key.is_some_and(is_misplaced) {
        let detail = "in a cluster, the key that is drawn has the serial_key as its tag: up to 227 bytes, without \
                      braces, and not in a queue that is in one shard";
        return Err(Problem::new(Code::InvalidSetting, detail).at("/serial_key"));
    }
    let mut request = new.request(name.clone(), trace);
    let admitted = match quotas::admit(&app, &name, request.bytes()).await {
        Ok(admitted) => admitted,
        // What was done once needs no room.
        Err(problem) => {
            let before = match &asked_as {
                Some(key) => set_before(&app, &queue, key, &body).await?,
                None => None,
            };
            return before.ok_or(problem);
        }
    };
    let _runs = match receipt {
        Some(receipt) => Some(app.posts().begin(receipt.key)?),
        None => None,
    };
    // What is made of a long body takes its place.
    let _share = body.into_share();
    request.options.receipt = receipt.map(Box::new);
    let set: Result<durable::Set, _> = app.ask(request.with(Precondition::Absent)).await;
    admitted.into_iter().for_each(|it| it.end(set.as_ref()));
    match set {
        Ok(set) => Ok(was_posted(&name, set)),
        // The receipt is over, and the timer is not.
        Err(TimerError::Exists { state }) => {
            let detail = format!(
                "the timer of an earlier request with this Idempotency-Key is still there, as {}: it is {state}",
                name.key.as_str()
            );
            Err(Problem::new(Code::Conflict, detail).in_state(state))
        }
        Err(error) => Err(error.into()),
    }
}

/// The answer to an earlier POST with the same key and the same body, which could not be set any more.
async fn set_before(
    app: &App,
    queue: &QueueName,
    key: &str,
    body: &[u8],
) -> Result<Option<Response>, Problem> {
    let Ok(mut object) =
        json::parse(body).and_then(|value| Field::root(value).object_of(&requests::SET))
    else {
        return Ok(None);
    };
    let serial_key = object.take("serial_key");
    let serial_key = serial_key.and_then(|field| field.text().ok().map(String::from));
    let serial_key = serial_key.as_deref();
    let receipt = idempotency::receipt(app, queue, serial_key, key, body).await?;
    let name = drawn(app, queue, serial_key, Some(&receipt)).await?;
    let read = name.clone();
    let set = app.read(move |timers| match timers.replayed(&read, &receipt) {
        Err(TimerError::ReceiptMismatch) => Ok(None),
        replayed => Ok(replayed?),
    });
    Ok(set.await?.map(|set| was_posted(&name, set)))
}

/// The name of a timer that is set by a POST.
async fn drawn(
    app: &App,
    queue: &QueueName,
    serial_key: Option<&str>,
    receipt: Option<&Receipt>,
) -> Result<durable::TimerName, Problem> {
    let known = app.resources().await?;
    let settings = known.queue(queue).and_then(|entry| entry.what.as_deref());
    let is_in_one = settings.is_some_and(|settings| settings.placement == Placement::One);
    let tag = if is_in_one {
        Some(Placement::ONE)
    } else {
        serial_key
    };
    let drawn = match receipt {
        Some(receipt) => receipt.key,
        None => idempotency::at_random()?,
    };
    Ok(durable::TimerName {
        queue: queue.clone(),
        key: idempotency::key(drawn, tag)?,
    })
}

fn was_posted(name: &durable::TimerName, set: durable::Set) -> Response {
    let mut response = was_set(name, set);
    let headers = response.headers_mut();
    let path = timer_path(name.queue.as_str(), name.key.as_str(), "");
    if let Ok(path) = HeaderValue::from_str(&path) {
        headers.insert(header::LOCATION, path);
    }
    if set.replayed {
        headers.insert(&REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

fn was_set(name: &durable::TimerName, set: durable::Set) -> Response {
    #[derive(Serialize)]
    struct Answer<'a> {
        queue: &'a str,
        key: &'a str,
        id: String,
        revision: Revision,
        due: String,
        replaced: Option<StateKind>,
    }
    let status = match set.replaced {
        None => StatusCode::CREATED,
        Some(_) => StatusCode::OK,
    };
    let body = Answer {
        queue: name.queue.as_str(),
        key: name.key.as_str(),
        id: set.id.to_string(),
        revision: set.revision,
        due: format_time(set.due),
        replaced: set.replaced,
    };
    tagged(answer(status, &body), set.revision)
}

/// Sets a timer if there is one of its name. The engine compares revisions, and a refusal says which
/// one is current: with that one it is tried again.
pub(super) async fn replace(
    app: &App,
    request: &SetRequest,
    admitted: Option<Admitted>,
) -> Result<durable::Set, Problem> {
    let end = |set| admitted.into_iter().for_each(|it| it.end(set));
    let mut revision = NO_REVISION;
    for _ in 0..TRIES {
        let request = request.clone().with(Precondition::Revision(revision));
        match app.ask(request).await {
            Err(TimerError::Changed { current }) => revision = current,
            set => {
                end(set.as_ref());
                return Ok(set?);
            }
        }
    }
    end(Err(&TimerError::Changed { current: revision }));
    let detail = "the timer kept changing meanwhile: try again";
    Err(Problem::new(Code::Overloaded, detail))
}

pub(super) fn tagged(mut response: Response, revision: Revision) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Reads the fields of a set. Its place may be one that another node of the cluster has put a moment ago.
pub(super) async fn read_known(
    app: &App,
    object: Object<'_>,
    queue: &QueueName,
    key: Option<&Key>,
) -> Result<NewTimer, Problem> {
    let known = app.resources().await?;
    let of = (queue, key);
    let here = Here {
        targets: &app.targets,
        ceilings: app.catalogue().ceilings(),
        now: app.clock.timestamp(),
    };
    let again = app.cluster().is_some().then(|| object.clone());
    match (read_set(object, &here, &known, of), again) {
        (Err(problem), Some(object))
            if matches!(
                problem.pointer(),
                Some("/target" | "/target/endpoint" | "/target/url" | "/serial_key" | "/key")
            ) =>
        {
            read_set(object, &here, &*app.look().await?, of)
        }
        (read, _) => read,
    }
}

/// What the fields of a set ask for.
pub(super) struct NewTimer {
    due: Due,
    policy: RetryPolicy,
    job: Job,
    options: SetOptions,
}

impl NewTimer {
    /// What sets it.
    pub(super) fn request(
        self,
        name: durable::TimerName,
        trace: Option<TraceContext>,
    ) -> SetRequest {
        let Self {
            due,
            policy,
            mut job,
            options,
        } = self;
        job.extras.trace = trace;
        SetRequest {
            name,
            due,
            policy,
            payload: job.encode(),
            options,
        }
    }
}

/// A request that sets a timer, but for its precondition.
#[derive(Clone)]
pub(super) struct SetRequest {
    name: durable::TimerName,
    due: Due,
    policy: RetryPolicy,
    payload: Vec<u8>,
    options: SetOptions,
}

impl SetRequest {
    /// How many bytes of a quota it takes.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.name.key, &self.payload)
    }

    pub(super) fn with(self, precondition: Precondition) -> durable::Request {
        durable::Request::Set {
            name: self.name,
            due: self.due,
            policy: self.policy,
            payload: self.payload,
            precondition,
            options: self.options,
        }
    }
}

/// What a set depends on beside what is stored.
struct Here<'a> {
    targets: &'a Targets,
    ceilings: &'a Ceilings,
    now: Timestamp,
}

/// `key` is that of the timer where tags decide about shards.
fn read_set(
    mut object: Object<'_>,
    here: &Here<'_>,
    known: &Resources,
    (queue, key): (&QueueName, Option<&Key>),
) -> Result<NewTimer, Problem> {
    let name_of_queue = queue;
    let queue = known.queue(queue).and_then(|entry| entry.what.as_deref());
    let (says_missed, says_overlap) = (object.has("missed"), object.has("overlap"));
    let spread = object.take("spread");
    let (serial_key, priority) = (object.take("serial_key"), object.take("priority"));
    let adaptive = object.take("adaptive");
    let tags = object.take("tags");
    let mut fields = SetFields::take(&mut object)?;
    let of_queue = queue.and_then(|queue| queue.endpoint.as_deref());
    let is_pulled = queue.is_some_and(|queue| queue.mode == Mode::Pull);
    if !fields.has_target() && of_queue.is_none() && !is_pulled {
        return Err(object.missing("target"));
    }
    object.finish()?;
    check_placement(queue, key)?;
    let spread = spread.as_ref().map(|field| fields.spread(field, here.now));
    let spread = spread.transpose()?;
    let serial_key = serial_key.as_ref().map(|field| {
        let is_serial = queue.is_some_and(|queue| queue.serial);
        read_serial_key(field, is_serial, key)
    });
    let serial_key = serial_key.transpose()?;
    let priority = priority.as_ref().map(read_priority).transpose()?;
    let recurrence = fields.options.recurrence.as_deref();
    let adaptive = adaptive.as_ref();
    let adaptive = adaptive.map(|field| recurrence::read_adaptive(field, recurrence));
    let adaptive = adaptive.transpose()?;
    let tags = tags.as_ref().map(tags::read).transpose()?;
    let target = fields.target(here.targets, of_queue.is_some() || is_pulled)?;
    let target = target.unwrap_or_default();
    if let Some(field) = &fields.target {
        check_timeout(&target, field, here.ceilings)?;
    }
    if let Some(field) = fields.target.as_ref().filter(|_| is_pulled) {
        refuse_place(&target, field)?;
    }
    fields.check_method(&target.method)?;
    let endpoint = fields.endpoint(&target, known, (name_of_queue, of_queue))?;
    let (content_type, body) = match fields.content()? {
        Content::Nothing => (None, Vec::new()),
        Content::Json(json) => (Some("application/json".to_owned()), json.into()),
        Content::Text { content_type, text } => (Some(content_type), text.into_bytes()),
        Content::Bytes {
            content_type,
            bytes,
        } => (Some(content_type), bytes),
    };
    let most = here.ceilings.payload_of(queue);
    if most.is_some_and(|most| body.len() as u64 > most) {
        return Err(fields.too_large(most.unwrap_or_default()));
    }
    let policy = fields.policy()?;
    let inherits = Inherits {
        retry: policy.is_none(),
        missed: !says_missed,
        overlap: fields.options.recurrence.is_some() && !says_overlap,
        timeout: timeout_at_set(&target, queue.and_then(|queue| queue.timeout)),
    };
    // What holds now is kept as well: the engine goes by it as long as nothing else is known.
    let policy = policy.or_else(|| endpoint.and_then(|it| it.settings.retry.clone()));
    let policy = policy.or_else(|| queue.and_then(|queue| queue.retry.clone()));
    if let Some(missed) = queue
        .and_then(|queue| queue.missed)
        .filter(|_| !says_missed)
    {
        fields.options.missed = missed;
    }
    if let (Some(recurrence), Some(overlap)) = (
        fields.options.recurrence.as_mut(),
        queue
            .and_then(|queue| queue.overlap)
            .filter(|_| !says_overlap),
    ) {
        recurrence.overlap = overlap;
    }
    Ok(NewTimer {
        due: spread.map_or(fields.due, |spread| later(fields.due, spread.drawn)),
        policy: policy.unwrap_or_default(),
        job: Job {
            method: target.method,
            to: target.to,
            headers: target.headers,
            content_type,
            body,
            timeout: target.timeout,
            extras: Extras {
                spread,
                serial_key,
                priority,
                adaptive,
                inherits,
                tags: tags.unwrap_or_default(),
                ..Extras::default()
            },
        },
        options: fields.options,
    })
}

/// The fields of a set, taken out of whatever object has them: the body of a request, or a line of
/// a trace. When the timer is due is read; the other fields are read when they are asked for, so
/// that an unknown field is refused before a wrong value.
#[derive(Debug)]
pub(crate) struct SetFields<'a> {
    pub(crate) due: Due,
    pub(crate) options: SetOptions,
    target: Option<Field<'a>>,
    body: Option<Field<'a>>,
    body_base64: Option<Field<'a>>,
    content_type: Option<Field<'a>>,
    retry: Option<Field<'a>>,
}

/// Where a timer is delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) method: Method,
    pub(crate) to: To,
    /// In the order in which they were sent, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Option<Duration>,
}

impl Default for Target {
    /// That of a timer that leaves it to its queue.
    fn default() -> Self {
        let (name, path) = (None, String::new());
        Self {
            method: Method::POST,
            to: To::Endpoint { name, path },
            headers: Vec::new(),
            timeout: None,
        }
    }
}

/// What a timer delivers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Content<'a> {
    Nothing,
    /// A value exactly as it was sent.
    Json(&'a str),
    /// A text, delivered as it stands.
    Text {
        content_type: String,
        text: String,
    },
    /// Bytes that are no text, or are not known to be one.
    Bytes {
        content_type: String,
        bytes: Vec<u8>,
    },
}

impl<'a> SetFields<'a> {
    /// Takes them, and reads when the timer is due.
    pub(crate) fn take(object: &mut Object<'a>) -> Result<Self, Problem> {
        let (due, options) = recurrence::read(object)?
            .ok_or_else(|| object.malformed("one of in, at, every, every_after, cron is needed"))?;
        Ok(Self {
            due,
            options,
            target: object.take("target"),
            body: object.take("body"),
            body_base64: object.take("body_base64"),
            content_type: object.take("content_type"),
            retry: object.take("retry"),
        })
    }

    pub(crate) fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// Where it is delivered, if it says so. It names a URL or an endpoint, unless the queue has one.
    pub(crate) fn target(
        &self,
        targets: &Targets,
        queue_has_endpoint: bool,
    ) -> Result<Option<Target>, Problem> {
        let read = |field| read_target(field, targets, queue_has_endpoint);
        self.target.as_ref().map(read).transpose()
    }

    /// The endpoint that a target names, or that of the queue; refused if there is none of the name.
    fn endpoint<'k>(
        &self,
        target: &Target,
        known: &'k Resources,
        queue: (&QueueName, Option<&str>),
    ) -> Result<Option<&'k Opened>, Problem> {
        endpoint_of(target, self.target.as_ref(), known, queue)
    }

    /// A refusal of a body that its queue does not take.
    fn too_large(&self, most: u64) -> Problem {
        let problem = body_too_large(most);
        match self.body.as_ref().or(self.body_base64.as_ref()) {
            Some(field) => problem.at(field.pointer()),
            None => problem,
        }
    }

    /// What is delivered.
    pub(crate) fn content(&self) -> Result<Content<'a>, Problem> {
        let (body, content_type) = (self.body.as_ref(), self.content_type.as_ref());
        let Some(bytes) = &self.body_base64 else {
            return read_body(body, content_type);
        };
        if body.is_some() {
            return Err(bytes.malformed("a timer has a body or a body_base64, not both"));
        }
        let content_type = match content_type {
            Some(field) => read_content_type(field)?,
            None => OCTETS.to_owned(),
        };
        let decoded = BASE64_STANDARD.decode(bytes.text()?.as_bytes());
        let wrong = "must be base64 with padding, in the alphabet of RFC 4648, section 4";
        let bytes = decoded.map_err(|_| bytes.malformed(wrong))?;
        Ok(Content::Bytes {
            content_type,
            bytes,
        })
    }

    /// How far the due time is spread, drawn here and now: no further than a timer may be ahead.
    fn spread(&self, field: &Field<'_>, now: Timestamp) -> Result<Spread, Problem> {
        if self.options.recurrence.is_some() {
            return Err(field.malformed("a timer that recurs has a jitter and no spread"));
        }
        let within = retry::duration(field)?.filter(|within| *within <= SPREAD_MAX);
        let within = within.ok_or_else(|| {
            let detail = "a spread is a duration of at most a day, such as 10m";
            unschedulable(field, detail)
        })?;
        let seed = getrandom::u64();
        let seed = seed.map_err(|_| Problem::new(Code::Internal, "there is no randomness"))?;
        let ahead = match self.due {
            Due::In(delay) => delay,
            Due::At(at) => at.saturating_since(now),
        };
        let drawn = Random::new(seed).micros_up_to(within);
        let drawn = drawn.min(Due::MAX_AHEAD.saturating_sub(ahead));
        Ok(Spread { within, drawn })
    }

    /// Refuses a body that the method of the target does not carry.
    pub(crate) fn check_method(&self, method: &Method) -> Result<(), Problem> {
        match self.body.as_ref().or(self.body_base64.as_ref()) {
            Some(body) if !carries_body(method) => {
                Err(body.malformed(format!("a request by {method} has no body")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn policy(&self) -> Result<Option<RetryPolicy>, Problem> {
        self.retry.as_ref().map(retry::read).transpose()
    }
}

/// Refuses a key without the tag of a queue that is in one shard. `key` is there where tags decide about shards.
fn check_placement(queue: Option<&Queue>, key: Option<&Key>) -> Result<(), Problem> {
    if queue.is_some_and(|queue| queue.placement == Placement::One)
        && key.is_some_and(|key| Shards::tag(key) != Some(Placement::ONE))
    {
        let detail =
            "the queue is in one shard: its keys have the tag {one}, as {one}/order-42 has";
        return Err(Problem::new(Code::InvalidSetting, detail).at("/key"));
    }
    Ok(())
}

fn body_too_large(most: u64) -> Problem {
    let detail = format!("a timer of this queue has at most {most} bytes of body");
    Problem::new(Code::TooLarge, detail)
}

fn no_endpoint(name: &str) -> Problem {
    Problem::new(Code::InvalidTarget, format!("there is no endpoint {name}"))
}

/// The same, of the target in this field.
fn refuse_place(target: &Target, field: &Field<'_>) -> Result<(), Problem> {
    check_place(target).map_err(|problem| problem.at(field.pointer()))
}

/// Refuses a target with more than headers: workers fetch the timers of its queue.
fn check_place(target: &Target) -> Result<(), Problem> {
    let headers = target.headers.clone();
    let of_headers = Target {
        headers,
        ..Target::default()
    };
    if *target == of_headers {
        return Ok(());
    }
    let detail = "the queue is pulled: a target of its timers has headers alone";
    Err(Problem::new(Code::PullQueue, detail))
}

/// See [`SetFields::endpoint`]; `field` is what names the target.
fn endpoint_of<'k>(
    target: &Target,
    field: Option<&Field<'_>>,
    known: &'k Resources,
    (queue, of_queue): (&QueueName, Option<&str>),
) -> Result<Option<&'k Opened>, Problem> {
    let To::Endpoint { name, .. } = &target.to else {
        return Ok(None);
    };
    let named = name.as_deref().or(of_queue);
    let found = named.and_then(|name| known.endpoint_of(queue, name));
    match (found, name, field) {
        (None, Some(name), Some(field)) => {
            let at = format!("{}/endpoint", field.pointer());
            Err(no_endpoint(name).at(at))
        }
        // The endpoint of the queue may come back before the timer is due.
        (found, ..) => Ok(found.and_then(|entry| entry.what.as_deref())),
    }
}

/// The key of those of which one is delivered at a time. Where shards go by tags, it has to be the tag of the timer's
/// `key`: so all of them are in one shard.
fn read_serial_key(
    field: &Field<'_>,
    is_serial: bool,
    key: Option<&Key>,
) -> Result<String, Problem> {
    let text = field.text()?;
    let serial = Key::new(&*text).map_err(|error| field.malformed(error.to_string()))?;
    let refused = |detail| Problem::new(Code::InvalidSetting, detail).at(field.pointer());
    check_serial(serial.as_str(), is_serial, key).map_err(refused)?;
    Ok(serial.as_str().to_owned())
}

fn check_serial(serial: &str, is_serial: bool, key: Option<&Key>) -> Result<(), &'static str> {
    if !is_serial {
        return Err("the queue is not serial: put it with \"serial\": true first");
    }
    if key.is_some_and(|key| Shards::tag(key) != Some(serial)) {
        return Err(
            "in a cluster, the key of the timer has its serial_key as its tag: {customer-7}/invoice",
        );
    }
    Ok(())
}

/// How urgent a timer is: 0 is most urgent.
pub(super) fn read_priority(field: &Field<'_>) -> Result<u32, Problem> {
    let number = field.whole()?.and_then(|number| u32::try_from(number).ok());
    let detail = "a priority is a whole number from 0, the most urgent, to 4294967295";
    number.ok_or_else(|| Problem::new(Code::InvalidSetting, detail).at(field.pointer()))
}

/// The same due time so much later.
fn later(due: Due, by: Duration) -> Due {
    match due {
        Due::In(delay) => Due::In(delay + by),
        Due::At(at) => Due::At(at + by),
    }
}

/// The timeout that holds at the set for a URL that names none. An endpoint has its own.
fn timeout_at_set(target: &Target, of_queue: Option<Duration>) -> Option<Duration> {
    match (&target.to, target.timeout) {
        (To::Url(_), None) => Some(of_queue.unwrap_or(TIMEOUT_DEFAULT)),
        _ => None,
    }
}

/// Takes `in` or `at`, one of which is there.
pub(crate) fn due(object: &mut Object<'_>) -> Result<Due, Problem> {
    let (kind, field) = object.one_of(&["in", "at"])?;
    if kind == "in" {
        due_in(&field)
    } else {
        due_at(&field)
    }
}

pub(super) fn unschedulable(field: &Field<'_>, detail: &str) -> Problem {
    Problem::new(Code::Unschedulable, detail).at(field.pointer())
}

const A_DELAY: &str = "a delay is a whole number of milliseconds or a text such as 30m, \
                       never negative, at most 36525 days";

pub(super) fn due_in(field: &Field<'_>) -> Result<Due, Problem> {
    match retry::duration(field)? {
        Some(delay) if delay <= Due::MAX_AHEAD => Ok(Due::In(delay)),
        _ => Err(unschedulable(field, A_DELAY)),
    }
}

/// A time as RFC 3339 writes it.
pub(crate) fn time(field: &Field<'_>) -> Result<Timestamp, Problem> {
    read_time(&field.text()?).map_err(|error| unschedulable(field, &error.to_string()))
}

pub(super) fn due_at(field: &Field<'_>) -> Result<Due, Problem> {
    Ok(Due::At(time(field)?))
}

/// A signed span from the deadline now.
pub(super) fn shift_by(field: &Field<'_>) -> Result<Shift, Problem> {
    let span = match field.kind() {
        Kind::Number(number) => number
            .parse::<i64>()
            .ok()
            .map(|millis| (millis < 0, Duration::from_millis(millis.unsigned_abs()))),
        Kind::Text(text) => parse_signed(&text),
        _ => return Err(field.malformed("must be a number of milliseconds or a text such as -5m")),
    };
    match span {
        Some((true, span)) => Ok(Shift::Sooner(span)),
        Some((false, span)) if span <= Due::MAX_AHEAD => Ok(Shift::Later(span)),
        _ => Err(unschedulable(
            field,
            "a shift is a whole number of milliseconds or a text such as -5m, \
             at most 36525 days",
        )),
    }
}

pub(super) fn invalid_target(field: &Field<'_>, detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidTarget, detail).at(field.pointer())
}

fn read_target(
    field: &Field<'_>,
    targets: &Targets,
    queue_has_endpoint: bool,
) -> Result<Target, Problem> {
    let mut object = field.object_of(&requests::TARGET)?;
    if object.has("endpoint") && object.has("url") {
        return Err(object.malformed("exactly one of url, endpoint is needed"));
    }
    let path = object.take("path");
    let endpoint = object.take("endpoint");
    // Said to be that of the queue, whether or not the queue has one by now.
    let is_of_queue = endpoint
        .as_ref()
        .is_some_and(|field| matches!(field.kind(), Kind::Null));
    let to = match endpoint {
        Some(_) if is_of_queue => None,
        Some(endpoint) => Some(endpoint),
        None if queue_has_endpoint && !object.has("url") => None,
        None => {
            let Some(url) = object.take("url") else {
                return Err(object.malformed("one of url, endpoint is needed"));
            };
            if let Some(path) = path {
                return Err(path.malformed("a path needs an endpoint"));
            }
            return read_rest(object, |target| {
                let url = read_url(&url, targets)?;
                Ok(Target {
                    to: To::Url(url),
                    ..target
                })
            });
        }
    };
    read_rest(object, |target| {
        let name = to.as_ref().map(read_endpoint).transpose()?;
        let path = path.as_ref().map_or(Ok(String::new()), read_path)?;
        let to = To::Endpoint { name, path };
        Ok(Target { to, ..target })
    })
}

/// The rest of a target, behind where it goes, which `with_place` reads first of all values.
fn read_rest(
    mut object: Object<'_>,
    with_place: impl FnOnce(Target) -> Result<Target, Problem>,
) -> Result<Target, Problem> {
    let method = object.take("method");
    let headers = object.take("headers");
    let timeout = object.take("timeout");
    object.finish()?;
    let method = method.as_ref().map_or(Ok(Method::POST), read_method)?;
    let target = with_place(Target {
        method,
        ..Target::default()
    })?;
    Ok(Target {
        headers: headers.as_ref().map_or(Ok(Vec::new()), read_headers)?,
        timeout: timeout.as_ref().map(read_timeout).transpose()?,
        ..target
    })
}

fn read_endpoint(field: &Field<'_>) -> Result<String, Problem> {
    let name = EndpointName::new(&field.text()?);
    let name = name.map_err(|_| invalid_target(field, "this is no name of an endpoint"))?;
    Ok(name.to_string())
}

pub(super) fn read_path(field: &Field<'_>) -> Result<String, Problem> {
    let path = field.text()?;
    check_path(&path).map_err(|detail| invalid_target(field, detail))?;
    Ok(path.into_owned())
}

pub(super) fn read_url(field: &Field<'_>, targets: &Targets) -> Result<String, Problem> {
    let url = field.text()?;
    if url.len() > URL_MAX_BYTES {
        let detail = format!("a URL has at most {URL_MAX_BYTES} bytes");
        return Err(invalid_target(field, detail));
    }
    let uri = check_url(&url).map_err(|detail| invalid_target(field, detail))?;
    check_encoding(&url).map_err(|detail| invalid_target(field, detail))?;
    targets
        .check(&uri)
        .map_err(|refused| invalid_target(field, refused.to_string()))?;
    Ok(url.into_owned())
}

pub(super) fn read_method(field: &Field<'_>) -> Result<Method, Problem> {
    method_of(&field.text()?).map_err(|detail| invalid_target(field, detail))
}

/// The method that a text names, in capitals.
pub(crate) fn method_of(text: &str) -> Result<Method, String> {
    let method = METHODS.into_iter().find(|method| method.as_str() == text);
    let names = METHODS.map(|method| method.to_string()).join(", ");
    method.ok_or_else(|| format!("a method is one of {names}"))
}

pub(super) fn read_headers(field: &Field<'_>) -> Result<Vec<(String, String)>, Problem> {
    let members = field.object()?.into_members();
    if members.len() > HEADERS_MAX {
        let detail = format!("a target has at most {HEADERS_MAX} headers");
        return Err(invalid_target(field, detail));
    }
    let mut headers: Vec<(String, String)> = Vec::with_capacity(members.len());
    let mut bytes = 0;
    for (name, field) in members {
        let value = field.text()?;
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid_target(&field, "this is no header name"))?;
        let name = name.as_str();
        let reserved = RESERVED_HEADERS.contains(&name)
            || name.starts_with("timer-")
            || name.starts_with("webhook-");
        if reserved {
            let detail = format!("the header {name} is reserved: callers cannot set it");
            return Err(invalid_target(&field, detail));
        }
        if name.contains('_') {
            // To many receivers `content_length` and `timer_key` are those with a hyphen.
            let detail = "a header name has no underscore: receivers take it for a hyphen";
            return Err(invalid_target(&field, detail));
        }
        if HeaderValue::from_str(&value).is_err() {
            let detail = "a header value has no control character but tabs";
            return Err(invalid_target(&field, detail));
        }
        if headers.iter().any(|(before, _)| before == name) {
            return Err(invalid_target(
                &field,
                format!("the header {name} is given twice"),
            ));
        }
        bytes += name.len() + value.len();
        headers.push((name.to_owned(), value.into_owned()));
    }
    if bytes > HEADERS_MAX_BYTES {
        let detail = format!("the headers have at most {HEADERS_MAX_BYTES} bytes in all");
        return Err(invalid_target(field, detail));
    }
    Ok(headers)
}

fn read_timeout(field: &Field<'_>) -> Result<Duration, Problem> {
    match retry::duration(field)? {
        Some(timeout) if (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) => Ok(timeout),
        _ => Err(invalid_target(field, "a timeout is from 100ms to 30m")),
    }
}

/// The timeout of a queue or of an endpoint.
pub(super) fn read_timeout_within(
    field: &Field<'_>,
    ceilings: &Ceilings,
) -> Result<Duration, Problem> {
    let timeout = read_timeout(field)?;
    within_ceiling(timeout, field.pointer(), ceilings)?;
    Ok(timeout)
}

/// Refuses a target whose timeout is above the ceiling; `field` is what names the target.
fn check_timeout(target: &Target, field: &Field<'_>, ceilings: &Ceilings) -> Result<(), Problem> {
    match target.timeout {
        Some(timeout) => within_ceiling(timeout, format!("{}/timeout", field.pointer()), ceilings),
        None => Ok(()),
    }
}

fn within_ceiling(
    timeout: Duration,
    pointer: impl Into<String>,
    ceilings: &Ceilings,
) -> Result<(), Problem> {
    if timeout <= ceilings.timeout {
        return Ok(());
    }
    let ceiling = format_duration(ceilings.timeout);
    let detail = format!("a timeout is at most {ceiling} here (--timeout-ceiling)");
    Err(above_ceiling_at(pointer, ceiling, detail))
}

fn read_body<'a>(
    body: Option<&Field<'a>>,
    content_type: Option<&Field<'_>>,
) -> Result<Content<'a>, Problem> {
    match (body, content_type) {
        (None, None) => Ok(Content::Nothing),
        (None, Some(field)) => Err(field.malformed("a content_type needs a body")),
        (Some(body), None) => Ok(Content::Json(body.raw())),
        (Some(body), Some(field)) => {
            let Kind::Text(text) = body.kind() else {
                return Err(body.malformed("with a content_type, the body must be a text"));
            };
            Ok(Content::Text {
                content_type: read_content_type(field)?,
                text: text.into_owned(),
            })
        }
    }
}

fn read_content_type(field: &Field<'_>) -> Result<String, Problem> {
    let content_type = field.text()?;
    if content_type.trim().is_empty() || HeaderValue::from_str(&content_type).is_err() {
        return Err(invalid_target(field, "this is no content type"));
    }
    Ok(content_type.into_owned())
}

#[derive(Serialize)]
struct MovedBody {
    revision: Revision,
    old_due: String,
    due: String,
}

/// Asks for a change of a timer. A refusal by its state says whether a worker has it.
async fn ask_about<T: TryFrom<durable::Response>>(
    app: &App,
    request: durable::Request,
) -> Result<T, Problem> {
    let name = request.name().cloned();
    let error = match app.ask(request).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    let is_delivering = matches!(
        error,
        TimerError::Conflict {
            state: StateKind::Delivering
        }
    );
    let problem = Problem::from(error);
    let Some(name) = name.filter(|_| is_delivering) else {
        return Err(problem);
    };
    let read = app.read(move |timers| timers.get(&name).map_err(Problem::from));
    let record = read.await.ok().flatten();
    let is_leased = record.is_some_and(|record| record.leased_until().is_some());
    if is_leased {
        let detail = "the timer is leased: a worker has it";
        return Err(Problem::new(Code::Conflict, detail).of_leased());
    }
    Err(problem)
}

async fn moved(
    app: &App,
    status: StatusCode,
    request: durable::Request,
) -> Result<Response, Problem> {
    let durable::Moved {
        revision,
        old_due,
        due,
    } = ask_about(app, request).await?;
    let body = MovedBody {
        revision,
        old_due: format_time(old_due),
        due: format_time(due),
    };
    Ok(tagged(answer(status, &body), revision))
}

pub(super) async fn shift(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let name = timer_of(request.uri())?;
    Query::of(request.uri(), &[])?;
    let precondition = precondition(request.headers(), Honoured::IfMatch)?.of_existing();
    let body = json_body(&app, request).await?;
    let shift = read_shift(Field::root(json::parse(&body)?).object_of(&requests::MOVE)?)?;
    let request = durable::Request::Move {
        name,
        shift,
        precondition,
    };
    moved(&app, StatusCode::OK, request).await
}

/// How far a move takes a deadline: the only fields of `object`.
pub(super) fn read_shift(mut object: Object<'_>) -> Result<Shift, Problem> {
    let (kind, field) = object.one_of(&["in", "at", "by"])?;
    object.finish()?;
    match kind {
        "in" => Ok(Shift::To(due_in(&field)?)),
        "at" => Ok(Shift::To(due_at(&field)?)),
        _ => shift_by(&field),
    }
}

/// Fire, revive, resend or backfill.
pub(super) async fn act(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (name, verb) = timer_and_verb_of(request.uri())?;
    Query::of(request.uri(), &[])?;
    let honoured = match verb {
        Verb::Fire | Verb::Revive | Verb::Backfill => Honoured::Nothing,
        Verb::Resend => Honoured::IfMatch,
    };
    let condition = precondition(request.headers(), honoured)?;
    let trace = TraceContext::of(request.headers());
    let asks = request.extensions().get::<Identity>().cloned();
    let body = optional_json_body(&app, request).await?;
    let request = match (verb, body) {
        (Verb::Resend, body) => {
            return resend(&app, name, condition, trace, body, asks.as_ref()).await;
        }
        (Verb::Backfill, body) => return backfill::backfill(&app, name, trace, body).await,
        (Verb::Fire, None) => durable::Request::Fire { name },
        (Verb::Fire, Some(body)) => {
            // Nothing can be asked for, but an empty object asks for nothing.
            Field::root(json::parse(&body)?)
                .object_of(&requests::NOTHING)?
                .finish()?;
            durable::Request::Fire { name }
        }
        (Verb::Revive, None) => durable::Request::Revive {
            name,
            due: Due::In(Duration::ZERO),
        },
        (Verb::Revive, Some(body)) => {
            let mut object = Field::root(json::parse(&body)?).object_of(&requests::REVIVE)?;
            let due = due(&mut object)?;
            object.finish()?;
            durable::Request::Revive { name, due }
        }
    };
    moved(&app, StatusCode::ACCEPTED, request).await
}

/// Sets a timer again as it is stored, but for what the caller edits. The set is for the revision that was
/// read, so it takes the place of nothing that the caller does not know. An attempt leaves the revision as
/// it is: one that has started meanwhile ends without effect, as with any set.
async fn resend(
    app: &App,
    name: durable::TimerName,
    condition: Condition,
    trace: Option<TraceContext>,
    body: Option<Held>,
    asks: Option<&Identity>,
) -> Result<Response, Problem> {
    let field = match &body {
        None => None,
        Some(body) => {
            let mut object = Field::root(json::parse(body)?).object_of(&requests::RESEND)?;
            let target = object.take("target");
            object.finish()?;
            if target.is_some() {
                // What is stored goes where the caller says, who reads it there.
                asks.map_or(Ok(()), |asks| asks.needs(Scope::Read))?;
            }
            target
        }
    };
    let edited = match field {
        Some(field) => Some((edited_target(app, &field, &name.queue).await?, field)),
        None => None,
    };
    for _ in 0..TRIES {
        let read = name.clone();
        let record = app.read(move |timers| timers.get(&read).map_err(Problem::from));
        let record = record.await?;
        let record =
            record.ok_or_else(|| Problem::new(Code::NotFound, "there is no timer of that name"))?;
        let current = record.revision;
        if let Condition::Engine(Precondition::Revision(wanted)) = condition
            && wanted != current
        {
            return Err(TimerError::Changed { current }.into());
        }
        let mut job = resent(&record, edited.as_ref(), &app.targets)?;
        check_known(app, &name, &job).await?;
        if trace.is_some() {
            job.extras.trace.clone_from(&trace);
        }
        // It is due now.
        job.extras.spread = None;
        let set = durable::Request::Set {
            name: name.clone(),
            due: Due::In(Duration::ZERO),
            policy: record.policy,
            payload: job.encode(),
            precondition: Precondition::Revision(current),
            options: SetOptions {
                missed: record.missed,
                ..SetOptions::default()
            },
        };
        match app.ask(set).await {
            Err(TimerError::Changed { .. }) => {} // it is read again
            answer => return Ok(was_set(&name, answer?)),
        }
    }
    let detail = "the timer kept changing meanwhile: try again";
    Err(Problem::new(Code::Overloaded, detail))
}

/// Refuses to send again what is stored, if a set of the same would be refused.
pub(super) async fn check_sendable(
    app: &App,
    name: &durable::TimerName,
    job: &Job,
) -> Result<(), Problem> {
    // It may have been set when the service was started with other options.
    if let To::Url(url) = &job.to {
        let refused = |detail: String| Problem::new(Code::InvalidTarget, detail);
        let url = check_url(url).map_err(|detail| refused(detail.to_string()))?;
        let checked = app.targets.check(&url);
        checked.map_err(|error: RefusedTarget| refused(error.to_string()))?;
    }
    check_known(app, name, job).await
}

/// Refuses a resend that a set of the same would be refused for. Its place may be one that another node of the cluster has
/// put a moment ago.
async fn check_known(app: &App, name: &durable::TimerName, job: &Job) -> Result<(), Problem> {
    let (ceilings, key) = (app.catalogue().ceilings(), app.tagged(&name.key));
    let check = |known: &Resources| check_as_set(job, &name.queue, key, known, ceilings);
    match check(&*app.resources().await?) {
        Err(_) if app.cluster().is_some() => check(&*app.look().await?),
        checked => checked,
    }
}

/// The rules of a set, as far as they go by what is known of queues and endpoints.
fn check_as_set(
    job: &Job,
    queue: &QueueName,
    key: Option<&Key>,
    known: &Resources,
    ceilings: &Ceilings,
) -> Result<(), Problem> {
    let name_of_queue = queue;
    let queue = known.queue(queue).and_then(|entry| entry.what.as_deref());
    check_placement(queue, key)?;
    if let Some(serial) = &job.extras.serial_key {
        let is_serial = queue.is_some_and(|queue| queue.serial);
        let checked = check_serial(serial, is_serial, key);
        checked.map_err(|detail| Problem::new(Code::InvalidSetting, detail))?;
    }
    if queue.is_some_and(|queue| queue.mode == Mode::Pull) {
        let target = Target {
            method: job.method.clone(),
            to: job.to.clone(),
            headers: job.headers.clone(),
            timeout: job.timeout,
        };
        check_place(&target)?;
    } else if let To::Endpoint {
        name: Some(name), ..
    } = &job.to
        && known.endpoint_of(name_of_queue, name).is_none()
    {
        return Err(no_endpoint(name));
    }
    let most = ceilings.payload_of(queue);
    match most.filter(|most| job.body.len() as u64 > *most) {
        Some(most) => Err(body_too_large(most)),
        None => Ok(()),
    }
}

/// The target that takes the place of the stored one.
async fn edited_target(app: &App, field: &Field<'_>, queue: &QueueName) -> Result<Target, Problem> {
    let known = app.resources().await?;
    let name_of_queue = queue;
    let queue = known.queue(queue).and_then(|entry| entry.what.as_deref());
    let of_queue = queue.and_then(|queue| queue.endpoint.as_deref());
    let is_pulled = queue.is_some_and(|queue| queue.mode == Mode::Pull);
    let target = read_target(field, &app.targets, of_queue.is_some() || is_pulled)?;
    if is_pulled {
        refuse_place(&target, field)?;
    }
    endpoint_of(&target, Some(field), &known, (name_of_queue, of_queue))?;
    check_timeout(&target, field, app.catalogue().ceilings())?;
    Ok(target)
}

/// The request that a timer is sent again with, if it is one that can be.
fn resent(
    record: &Record,
    edited: Option<&(Target, Field<'_>)>,
    targets: &Targets,
) -> Result<Job, Problem> {
    let state = record.state.kind();
    let conflict = |detail: &str| Problem::new(Code::Conflict, detail).in_state(state);
    match state {
        StateKind::Delivering if record.leased_until().is_some() => {
            return Err(conflict("a worker has the timer now").of_leased());
        }
        StateKind::Delivering => return Err(conflict("the timer is delivered now")),
        StateKind::Pending if record.failures == 0 => {
            return Err(conflict("no attempt of the timer has failed: fire it"));
        }
        StateKind::Pending | StateKind::Done | StateKind::Dead => {}
    }
    if record.recurring.is_some() {
        return Err(conflict("the timer recurs: fire or revive it, or set it"));
    }
    let unreadable = "what is stored of the timer is not a request to make: set it";
    let mut job = Job::decode(&record.payload).map_err(|_| conflict(unreadable))?;
    let Some((target, field)) = edited else {
        // It may have been set when the service was started with other options.
        if let To::Url(url) = &job.to {
            let uri = check_url(url).map_err(|_| conflict(unreadable))?;
            let refused =
                |refused: RefusedTarget| Problem::new(Code::InvalidTarget, refused.to_string());
            targets.check(&uri).map_err(refused)?;
        }
        return Ok(job);
    };
    // A timer with a body has a content type, also if the body is the empty text.
    if job.content_type.is_some() && !carries_body(&target.method) {
        let method = &target.method;
        return Err(field.malformed(format!(
            "a request by {method} has no body, and the timer has one"
        )));
    }
    job.method = target.method.clone();
    job.to = target.to.clone();
    job.headers = target.headers.clone();
    job.timeout = target.timeout;
    job.extras.inherits.timeout = None;
    Ok(job)
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        was: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        due: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    }
    let name = timer_of(&uri)?;
    let query = Query::of(&uri, &operations::REMOVE.query_names())?;
    let only_pending = query.read("only", "pending", |only| (only == "pending").then_some(()))?;
    let known = app.catalogue().known();
    let is_pulled = known.pulled(&name.queue).is_some();
    let request = durable::Request::Remove {
        name,
        precondition: precondition(&headers, Honoured::IfMatch)?.of_existing(),
        only_pending: only_pending.is_some(),
    };
    let was: Was = ask_about(&app, request).await?;
    let (due, attempt) = match was {
        Was::Pending { due } => (Some(format_time(due)), None),
        Was::Delivering { attempt } => (None, Some(attempt)),
        Was::Dead | Was::Unreadable => (None, None),
    };
    let was = was_word(was, is_pulled);
    Ok(answer(StatusCode::OK, &Answer { was, due, attempt }))
}

/// What a removed timer was doing. Those of a queue that is pulled are leased and not delivered.
pub(super) const fn was_word(was: Was, is_pulled: bool) -> &'static str {
    match was {
        Was::Pending { .. } => "pending",
        Was::Delivering { .. } if is_pulled => LEASED,
        Was::Delivering { .. } => "delivering",
        Was::Dead => "dead",
        Was::Unreadable => "unreadable",
    }
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = timer_of(&uri)?;
    let query = Query::of(&uri, &operations::GET.query_names())?;
    let body = query.read("body", "text", |body| (body == "text").then_some(()))?;
    let asked = Arc::clone(&app);
    let held_by = move |record: &Record| asked.held_by(record);
    let desk = app.leaser().map(|leaser| Arc::clone(leaser.desk()));
    let worker = move |record: &Record| {
        let worker = desk.as_ref()?.worker(&record.name, record.lease_token());
        worker.filter(|_| record.leased_until().is_some())
    };
    let view = View::of(&app).await;
    app.read(move |timers| {
        let record = timers.get(&name).map_err(Problem::from)?;
        let record =
            record.ok_or_else(|| Problem::new(Code::NotFound, "there is no timer of that name"))?;
        let held_by = held_by(&record);
        let is_known = match has_already(&headers, record.revision) {
            Known::Nothing => false,
            // What is held, and why, is no part of a revision, and neither is what others say of its rules.
            Known::Revision => {
                shows_its_revision(&record) && held_by.is_none() && view.has_own_rules(&record)
            }
            Known::Anything => true,
        };
        let response = if is_known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let timer = TimerBody {
                held_by,
                worker: worker(&record).map(|worker| worker.to_string()),
                ..TimerBody::of(&record, &view)
            };
            match body {
                None => answer(StatusCode::OK, &timer),
                Some(()) => answer(StatusCode::OK, &WholeTimer::of(timer, &record)),
            }
        };
        Ok(tagged(response, record.revision))
    })
    .await
}

/// Whether whoever has seen a timer of this revision has seen all there is. An attempt leaves the
/// revision as it is: only of a timer that waits, and was not interrupted since it got its
/// revision, there is but one view.
fn shows_its_revision(record: &Record) -> bool {
    record.state == durable::State::Pending && record.interruptions == 0
}

pub(crate) fn cursor(cursor: Cursor) -> String {
    let Position { due, revision } = cursor.position;
    let position = format!("{:x}-{:x}", due.as_micros(), revision.0);
    match cursor.shard {
        Shard::ONLY => position,
        Shard(shard) => format!("{position}-{shard:x}"),
    }
}

pub(crate) fn read_cursor(text: &str) -> Option<Cursor> {
    let mut parts = text.splitn(3, '-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let position = Position {
        due: Timestamp::from_micros(number()?),
        revision: Revision(number()?),
    };
    let shard = parts
        .next()
        .map_or(Some(0), |shard| u16::from_str_radix(shard, 16).ok());
    let found = Cursor {
        position,
        shard: Shard(shard?),
    };
    // Only what we wrote: no sign, no zeros in front, no capitals.
    (cursor(found) == text).then_some(found)
}

/// What the view of a timer depends on beside its record.
#[derive(Clone, Debug)]
pub(crate) struct View {
    keep: KeepAnswers,
    known: Arc<Resources>,
    ceilings: Ceilings,
}

impl View {
    /// With the queues and endpoints as they are now, or were a moment ago.
    pub(crate) async fn of(app: &App) -> Self {
        let known = app.resources().await;
        Self {
            keep: app.keep_answers(),
            // A timer is shown with what was known last, rather than not at all.
            known: known.unwrap_or_else(|_| app.catalogue().known()),
            ceilings: *app.catalogue().ceilings(),
        }
    }

    /// What is shown of the answers of targets.
    pub(crate) fn keep_answers(&self) -> KeepAnswers {
        self.keep
    }

    /// Whether a timer has named all of its rules.
    fn has_own_rules(&self, record: &Record) -> bool {
        let job = Job::decode(&record.payload).ok();
        self.rules(record, job.as_ref()).from.is_empty()
    }

    /// The rules that hold for a timer now; `job` is what its payload is.
    pub(crate) fn rules(&self, record: &Record, job: Option<&Job>) -> InForce {
        self.known.in_force(record, job, &self.ceilings)
    }
}

/// A timer as it is shown.
#[derive(Serialize)]
pub(super) struct TimerBody {
    queue: String,
    key: String,
    id: String,
    revision: Revision,
    /// `leased` of one that is delivered under a lease.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_until: Option<String>,
    /// Who has the lease, if this process has granted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<DeadReason>,
    created: String,
    due: String,
    /// `None` if what is stored is not a request to make.
    target: Option<TargetBody>,
    content_type: Option<String>,
    body_bytes: usize,
    retry: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recurring: Option<Value>,
    /// Who says the rules that the timer has not named itself.
    #[serde(skip_serializing_if = "Origins::is_empty")]
    from: Origins,
    /// How much later than asked for the timer might be due, and how much of that was drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spread_drawn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_key: Option<String>,
    /// If the timer says it itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    /// Of a set that came with a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    /// Of a run that a backfill has made.
    #[serde(skip_serializing_if = "Option::is_none")]
    backfill: Option<BackfillBody>,
    failures: u32,
    attempt: u32,
    attempts: Vec<AttemptBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempts: Option<Vec<NextAttempt>>,
    /// Why it waits although it is due, if something else than a lack of places holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<String>,
}

/// Of which run of which timer a timer is.
#[derive(Serialize)]
pub(super) struct BackfillBody {
    of: String,
    nominal: String,
}

impl BackfillBody {
    pub(super) fn of(key: &str, nominal: Timestamp) -> Self {
        Self {
            of: backfill::timer_of_run(key, nominal).to_owned(),
            nominal: format_time(nominal),
        }
    }
}

#[derive(Serialize)]
struct TargetBody {
    /// `None` for `POST`.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// `None` for a URL, and where it is left to the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    headers: serde_json::Map<String, Value>,
    /// `None` where nothing is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
}

#[derive(Serialize)]
pub(super) struct AttemptBody {
    number: u32,
    /// Of a recurring timer, where the record tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<u32>,
    due: String,
    started: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    late_us: Option<u64>,
    held_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<durable::AttemptResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<AnswerBody>,
}

/// What a target answered.
#[derive(Serialize)]
struct AnswerBody {
    status: u16,
    /// `None` if there is none, it is no text, or is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// If it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    body_bytes: u64,
    truncated: bool,
    times_us: TimesBody,
    /// Headers of the answer that did not count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored: Vec<&'static str>,
}

#[derive(Serialize)]
struct TimesBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    resolve: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<u64>,
    first_byte: u64,
}

/// How much is shown of the answers of targets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// All that is kept.
    Whole,
    /// What is kept but for their bodies: a page of a list has many timers.
    WithoutBodies,
    /// Nothing: the operator keeps none, and what was kept before is shown no more.
    None,
}

impl Answers {
    /// No more than what the operator has kept of new ones.
    fn of(keep: KeepAnswers) -> Self {
        match keep {
            KeepAnswers::On => Self::Whole,
            KeepAnswers::Redacted => Self::WithoutBodies,
            KeepAnswers::Off => Self::None,
        }
    }

    fn without_bodies(self) -> Self {
        match self {
            Self::Whole => Self::WithoutBodies,
            other => other,
        }
    }
}

/// A timer with its body as it is delivered.
#[derive(Serialize)]
pub(super) struct WholeTimer {
    #[serde(flatten)]
    timer: TimerBody,
    /// `None` if it has none, or is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// If it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

impl WholeTimer {
    pub(super) fn of(timer: TimerBody, record: &Record) -> Self {
        let job = Job::decode(&record.payload).ok();
        let job = job.filter(|job| job.content_type.is_some());
        let (body, bytes) = match job.map(|job| String::from_utf8(job.body)) {
            None => (None, None),
            Some(Ok(text)) => (Some(text), None),
            Some(Err(error)) => (None, Some(error.into_bytes())),
        };
        Self {
            timer,
            body,
            body_base64: bytes.map(|bytes| BASE64_STANDARD.encode(bytes)),
        }
    }
}

impl TimerBody {
    pub(super) fn of(record: &Record, view: &View) -> Self {
        Self::with(record, Answers::of(view.keep), view, true)
    }

    /// The same without the bodies of answers, and without the next attempts unless they are asked for.
    pub(super) fn listed(record: &Record, view: &View, next_attempts: bool) -> Self {
        let answers = Answers::of(view.keep).without_bodies();
        Self::with(record, answers, view, next_attempts)
    }

    fn with(record: &Record, answers: Answers, view: &View, wants_next: bool) -> Self {
        let job = Job::decode(&record.payload).ok();
        let rules = view.rules(record, job.as_ref());
        let (mut done_at, mut keep_until, mut dead_at, mut dead_reason) = (None, None, None, None);
        let mut next_attempts = None;
        match record.state {
            durable::State::Pending if wants_next => next_attempts = Some(next(record, &rules)),
            durable::State::Pending | durable::State::Delivering => {}
            durable::State::Done {
                at,
                keep_until: until,
            } => {
                done_at = Some(format_time(at));
                keep_until = Some(format_time(until));
            }
            durable::State::Dead {
                at,
                reason,
                keep_until: until,
            } => {
                keep_until = until.map(format_time);
                dead_at = Some(format_time(at));
                dead_reason = Some(reason);
            }
        }
        // While an attempt is leased, the record is due again when the lease ends.
        let leased_until = record.leased_until();
        let attempt = record.attempts.last().filter(|_| leased_until.is_some());
        let due = attempt.map_or(record.due, |attempt| attempt.due);
        let body_bytes = job.as_ref().map_or(0, |job| job.body.len());
        let content_type = job.as_ref().and_then(|job| job.content_type.clone());
        let extras = job.as_ref().map(|job| job.extras.clone());
        let extras = extras.unwrap_or_default();
        Self {
            queue: record.name.queue.to_string(),
            key: record.name.key.to_string(),
            id: record.id.to_string(),
            revision: record.revision,
            state: match leased_until {
                Some(_) => LEASED,
                None => record.state.kind().as_str(),
            },
            leased_until: leased_until.map(format_time),
            worker: None,
            done_at,
            keep_until,
            dead_at,
            dead_reason,
            created: format_time(record.created),
            due: format_time(due),
            target: job.map(|job| TargetBody::of(job, &rules)),
            content_type,
            body_bytes,
            retry: retry::show(&rules.retry),
            missed: recurrence::show_missed(rules.missed),
            recurring: record.recurring.as_deref().map(|recurring| {
                recurrence::show_position(recurring, rules.overlap, extras.adaptive)
            }),
            from: rules.from,
            spread: extras.spread.map(|it| format_duration(it.within)),
            spread_drawn: extras.spread.map(|it| format_duration(it.drawn)),
            serial_key: extras.serial_key.clone(),
            priority: extras.priority,
            tags: extras.tags.clone(),
            trace_id: extras.trace.as_ref().map(TraceContext::id),
            backfill: extras
                .backfill
                .map(|nominal| BackfillBody::of(record.name.key.as_str(), nominal)),
            failures: record.failures,
            attempt: record.attempt,
            attempts: attempts(record, answers),
            next_attempts,
            held_by: None,
        }
    }
}

impl TargetBody {
    fn of(job: Job, rules: &InForce) -> Self {
        let (url, endpoint, path) = match job.to {
            To::Url(url) => (Some(url), None, None),
            To::Endpoint { name, path } => {
                let path = Some(path).filter(|path| !path.is_empty());
                (None, name, path)
            }
        };
        Self {
            method: (job.method != Method::POST).then(|| job.method.to_string()),
            url,
            endpoint,
            path,
            headers: job
                .headers
                .into_iter()
                .map(|(name, value)| (name, Value::String(value)))
                .collect(),
            timeout: rules.timeout.map(format_duration),
        }
    }
}

/// The attempts of a record, oldest first, each with its run.
fn attempts(record: &Record, answers: Answers) -> Vec<AttemptBody> {
    let runs = recurrence::runs_of_attempts(record);
    let attempts = record.attempts.iter().zip(runs);
    attempts
        .map(|(attempt, run)| AttemptBody::of(attempt, run, answers))
        .collect()
}

impl AttemptBody {
    /// An attempt that belongs to no timer.
    pub(super) fn of_test(attempt: &durable::AttemptRecord) -> Self {
        Self::of(attempt, None, Answers::Whole)
    }

    fn of(attempt: &durable::AttemptRecord, run: Option<u32>, answers: Answers) -> Self {
        let answer = attempt.ended.as_ref().and_then(|end| end.answer.as_ref());
        let answer = answer.filter(|_| answers != Answers::None);
        let answered = answer.and_then(Answered::decode);
        Self {
            number: attempt.number,
            run,
            due: format_time(attempt.due),
            started: format_time(attempt.started),
            late_us: attempt.lateness().map(micros),
            held_us: micros(attempt.held),
            ended: attempt.ended.as_ref().map(|end| format_time(end.at)),
            result: attempt.ended.as_ref().map(|end| end.result),
            detail: attempt.ended.as_ref().map(|end| end.detail.clone()),
            answer: answered.map(|answered| AnswerBody::of(&answered, answers)),
        }
    }
}

impl AnswerBody {
    fn of(answered: &Answered, answers: Answers) -> Self {
        let (mut body, mut body_base64) = (None, None);
        if answers == Answers::Whole {
            body = answered.text().map(str::to_owned);
            let bytes = answered.body.as_ref().filter(|bytes| !bytes.is_empty());
            let bytes = bytes.filter(|_| body.is_none());
            body_base64 = bytes.map(|bytes| BASE64_STANDARD.encode(bytes));
        }
        let times = answered.times;
        Self {
            status: answered.status,
            body,
            body_base64,
            body_bytes: answered.body_bytes,
            truncated: answered.is_truncated(),
            times_us: TimesBody {
                resolve: times.resolve.map(micros),
                connect: times.connect.map(micros),
                tls: times.tls.map(micros),
                first_byte: micros(times.first_byte),
            },
            ignored: answered.ignored.names().collect(),
        }
    }
}

/// The attempts that a pending timer has before it.
fn next(record: &Record, rules: &InForce) -> Vec<NextAttempt> {
    let standing = Standing {
        due: record.due,
        first_due: record.first_due,
        attempts: record.attempt,
        failures: record.failures,
    };
    let plan = standing.plan(&rules.retry).take(NEXT_ATTEMPTS);
    plan.map(|planned| NextAttempt {
        attempt: planned.attempt,
        at: format_time(planned.at),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_over_two_shards_is_told_which_keys_are_in_them() {
        let name = |key| countwheel_durable::TimerName::new("orders", key).unwrap();
        let (first, other) = (name("{a}1"), name("{b}1"));
        let problem = Problem::from(TimerError::SeveralShards { first, other });
        let (status, _, detail) = problem.parts();
        assert_eq!(
            (status.as_u16(), problem.code()),
            (422, "batch_spans_shards")
        );
        assert!(detail.contains("orders/{a}1 and orders/{b}1"), "{detail}");
    }

    #[test]
    fn a_cursor_reads_back_and_nothing_else_does() {
        for shard in [0, 1, 63, u16::MAX].map(Shard) {
            let position = Position {
                due: Timestamp::from_micros(1_700_000_000_000_000),
                revision: Revision(42),
            };
            let at = Cursor { position, shard };
            assert_eq!(read_cursor(&cursor(at)), Some(at));
        }
        for text in [
            "",
            "-",
            "1",
            "+1-1",
            "01-1",
            "1-1-0",
            "1-1-",
            "1-1-01",
            "1-1-1-1",
            "1-1-10000",
            "g-1",
            "A-1",
            "1-10000000000000000",
        ] {
            assert_eq!(read_cursor(text), None, "{text}");
        }
    }

    #[test]
    fn a_body_is_kept_as_it_was_sent() {
        let read = |body: &[u8]| {
            let (known, queue) = (Resources::default(), QueueName::new("q").unwrap());
            let here = Here {
                targets: &Targets::any(),
                ceilings: &Ceilings::default(),
                now: Timestamp::EPOCH,
            };
            let object = Field::root(json::parse(body).unwrap())
                .object_of(&requests::SET)
                .unwrap();
            let set = read_set(object, &here, &known, (&queue, None));
            set.unwrap().job
        };
        let body = br#"{"in":0,"target":{"url":"http://x/"},"body": {"n": 1.000, "e":1e400} }"#;
        let job = read(body);
        assert_eq!(job.body, br#"{"n": 1.000, "e":1e400}"#);
        let body = br#"{"in":0,"target":{"url":"http://x/"},"body":"a\u00e9\n","content_type":"text/plain"}"#;
        let job = read(body);
        assert_eq!(job.body, "aé\n".as_bytes());
    }
}
