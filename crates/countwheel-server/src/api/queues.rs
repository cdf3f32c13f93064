//! Queues: all of them at a glance, and the settings of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use countwheel_durable::store::QueueCounts;
use countwheel_durable::{
    DrainMode, Left, Overlap, Purge, QueueName, SettingName, SettingsVersion, StateKind, Timers,
};
use countwheel_time::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::described::{operations, requests};
use super::drain::DrainBody;
use super::endpoints::{
    above_ceiling, counted, invalid, read_concurrency, read_rate, read_statuses,
};
use super::json::{self, Field, Kind};
use super::problem::{Code, Problem};
use super::purge::PurgeBody;
use super::reach::{self, Reach};
use super::reading::{self, Pages};
use super::request::{Honoured, Query, json_body, precondition, queue_of};
use super::timers::{read_priority, read_timeout_within};
use super::{App, answer, leases, recurrence, retry, stored};
use crate::quotas;
use crate::resources::ceilings::Ceilings;
use crate::resources::cloudevents::{CloudEvents, check_source, check_type};
use crate::resources::endpoint::Rate;
use crate::resources::queue::{
    KEEP_DEAD_MAX, Mode, PAYLOAD_MAX_BYTES, Placement, Queue, Retention,
};
use crate::resources::statuses::Statuses;
use crate::resources::{Resources, setting_of_queue};
use crate::time::format_duration;

/// How many timers a queue has, and whether it is drained.
#[derive(Serialize)]
struct QueueBody {
    queue: String,
    pending: u64,
    delivering: u64,
    done: u64,
    dead: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<DrainBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purge: Option<PurgeBody>,
}

impl QueueBody {
    fn of(counts: &QueueCounts, drain: Option<DrainMode>, purge: Option<Purge>) -> Self {
        Self {
            queue: counts.queue.to_string(),
            pending: counts.of(StateKind::Pending),
            delivering: counts.of(StateKind::Delivering),
            done: counts.of(StateKind::Done),
            dead: counts.of(StateKind::Dead),
            drain: drain.map(DrainBody::from),
            purge: purge.map(PurgeBody::from),
        }
    }

    /// How many timers there are in all states.
    fn timers(&self) -> u64 {
        self.pending + self.delivering + self.done + self.dead
    }

    fn empty(queue: String, drain: Option<DrainMode>, purge: Option<Purge>) -> Self {
        Self {
            queue,
            pending: 0,
            delivering: 0,
            done: 0,
            dead: 0,
            drain: drain.map(DrainBody::from),
            purge: purge.map(PurgeBody::from),
        }
    }
}

/// How many queues a page has unless fewer are asked for.
const PAGE: usize = 1_000;

pub(super) async fn list(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        queues: Vec<QueueBody>,
        next: Option<String>,
        /// Said only where it is not so.
        #[serde(skip_serializing_if = "Option::is_none")]
        exact: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        drain: Option<DrainBody>,
    }
    let query = Query::of(&uri, &operations::LIST_QUEUES.query_names())?;
    let limit = reading::limit(&query)?.unwrap_or(PAGE);
    let prefix = reach.narrowed(reading::queue_prefix(&query, "prefix")?);
    let state = reading::state(&query)?;
    let canonical = format!("queues {prefix:?} {:?}", state.map(StateKind::as_str));
    let pages = Pages::of(&uri, &canonical);
    let after = pages.after(&query, |text| {
        let text = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        QueueName::from_text(str::from_utf8(&text).ok()?).ok()
    })?;
    let now = app.clock.timestamp();
    let known = app.resources().await?;
    app.read(move |timers| {
        let counted = timers.counted().map_err(|error| Problem::from(&error))?;
        let drains = timers.drains();
        let goes_on = |mode: &DrainMode| !mode.is_over(now);
        let own = |queue: &QueueName| drains.own(queue).filter(goes_on);
        let prefix = prefix.as_deref().unwrap_or_default();
        let is_wanted = |queue: &&QueueName| {
            queue.as_str().starts_with(prefix) && after.as_ref().is_none_or(|after| *queue > after)
        };
        let purges = timers.purges().into_iter();
        let mut purges: BTreeMap<_, _> = purges.map(|it| (it.queue.clone(), it)).collect();
        let has_any = |counts: &&QueueCounts| state.is_none_or(|state| counts.of(state) > 0);
        let with_timers = counted.queues.iter().filter(has_any);
        let with_timers = with_timers.filter(|counts| is_wanted(&&counts.queue));
        let mut queues: Vec<(&QueueName, Option<&QueueCounts>)> = with_timers
            .map(|counts| (&counts.queue, Some(counts)))
            .collect();
        let drained: Vec<_> = drains.iter().collect();
        let purged: Vec<_> = purges.keys().cloned().collect();
        if state.is_none() {
            // A drained queue may have no timers, and refuses sets all the same; one with settings may have none
            // yet; and one that was purged may be empty.
            let drained = drained.iter().filter(|(_, mode)| goes_on(mode));
            let drained = drained.map(|(queue, _)| *queue);
            let named = drained.chain(known.queues().map(|(queue, _)| queue));
            let named = named.chain(&purged).filter(is_wanted);
            queues.extend(named.map(|queue| (queue, None)));
            // The sort leaves the one with counts in front.
            queues.sort_by_key(|(queue, _)| *queue);
            queues.dedup_by_key(|(queue, _)| *queue);
        }
        let has_more = queues.len() > limit;
        queues.truncate(limit);
        let last = queues.last().filter(|_| has_more);
        let next =
            last.map(|(queue, _)| pages.cursor(&BASE64_URL_SAFE_NO_PAD.encode(queue.as_str())));
        let queues = queues.into_iter().map(|(queue, counts)| {
            let (drain, purge) = (own(queue), purges.remove(queue));
            match counts {
                Some(counts) => QueueBody::of(counts, drain, purge),
                None => QueueBody::empty(queue.to_string(), drain, purge),
            }
        });
        let body = Answer {
            queues: queues.collect(),
            next,
            exact: (!counted.exact).then_some(false),
            drain: drains.all().filter(goes_on).map(DrainBody::from),
        };
        let response = answer(StatusCode::OK, &body);
        Ok(pages.linked(response, body.next.as_deref()))
    })
    .await
}

/// A queue with its settings.
#[derive(Serialize)]
struct WholeQueue {
    #[serde(flatten)]
    counts: QueueBody,
    /// `None` if no settings were put.
    revision: Option<u64>,
    #[serde(flatten)]
    settings: SettingsBody,
}

/// The settings of a queue, in the form in which they are put.
#[derive(Serialize)]
struct SettingsBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<Value>,
    #[serde(skip_serializing_if = "Statuses::is_empty")]
    statuses: Statuses,
    #[serde(skip_serializing_if = "Option::is_none")]
    cloudevents: Option<CloudEvents>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    serial: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<RetentionBody>,
}

/// How long timers are kept once they have ended.
#[derive(Serialize)]
struct RetentionBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<String>,
    /// `None`: for good.
    dead: Option<String>,
}

impl SettingsBody {
    /// What counts here: no more than the ceilings.
    fn of(queue: &Queue, ceilings: &Ceilings) -> Self {
        let retention = ceilings.retention_of(queue);
        Self {
            endpoint: queue.endpoint.clone(),
            retry: queue.retry.as_ref().map(retry::show),
            timeout: ceilings.timeout_of(queue.timeout).map(format_duration),
            concurrency: ceilings.concurrency_of(queue.concurrency),
            rate: queue.rate,
            payload_limit: ceilings.payload_of(Some(queue)),
            missed: queue.missed.map(recurrence::show_any_missed),
            statuses: queue.statuses.clone(),
            cloudevents: queue.cloudevents.clone(),
            serial: queue.serial,
            priority: queue.priority,
            mode: (queue.mode == Mode::Pull).then_some(queue.mode),
            placement: (queue.placement == Placement::One).then_some(queue.placement),
            lease: queue.lease.map(format_duration),
            overlap: queue.overlap.map(Overlap::as_str),
            retention: retention.map(|it| RetentionBody {
                done: it.done.map(format_duration),
                dead: it.dead.map(format_duration),
            }),
        }
    }
}

/// The queue with its counts, as it is now.
async fn whole(
    app: &App,
    queue: QueueName,
    settings: Queue,
    revision: Option<SettingsVersion>,
) -> Result<WholeQueue, Problem> {
    let now = app.clock.timestamp();
    let counts = app.read(move |timers| counts(timers, &queue, now)).await?;
    Ok(WholeQueue {
        counts,
        revision: revision.map(|version| version.0),
        settings: SettingsBody::of(&settings, app.catalogue().ceilings()),
    })
}

fn counts(timers: &Timers, queue: &QueueName, now: Timestamp) -> Result<QueueBody, Problem> {
    let overview = timers.queue_overview(queue);
    let counts = overview.map_err(|error| Problem::from(&error))?.counts;
    let drain = timers.drains().own(queue);
    let drain = drain.filter(|mode| !mode.is_over(now));
    let mut purges = timers.purges().into_iter();
    let purge = purges.find(|purge| purge.queue == *queue);
    Ok(QueueBody::of(&counts, drain, purge))
}

/// Whether a queue has settings, timers or a drain of its own.
pub(super) async fn is_there(app: &App, queue: &QueueName) -> Result<bool, Problem> {
    if app.look().await?.queue(queue).is_some() {
        return Ok(true);
    }
    let (queue, now) = (queue.clone(), app.clock.timestamp());
    let counts = app.read(move |timers| counts(timers, &queue, now)).await?;
    Ok(counts.timers() > 0 || counts.drain.is_some())
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let queue = queue_of(request.uri())?;
    let setting = setting(&queue)?;
    Query::of(request.uri(), &[])?;
    let condition = precondition(request.headers(), Honoured::Both)?;
    let body = json_body(&app, request).await?;
    let ceilings = app.catalogue().ceilings();
    let asked = read(&body, &queue, &*app.resources().await?, ceilings);
    if let Ok(asked) = &asked {
        keep_placement(&app, &queue, asked.placement).await?;
    }
    quotas::admit_queue(&app, &queue).await?;
    let make = |known: &Resources| {
        reach::demand(known, queue.namespace())?;
        Ok(Some(read(&body, &queue, known, ceilings)?.to_value()))
    };
    let version = |known: &Resources| known.queue(&queue).map(|entry| entry.version);
    let changed = stored::change(&app, &setting, condition, version, "queue", make).await?;
    let known = app.look().await?;
    // If somebody has removed them since, or put others, none of them are shown.
    let entry = known.queue(&queue);
    let entry = entry.filter(|entry| entry.version == changed.version);
    let settings = entry.and_then(|entry| entry.what.as_deref().cloned());
    let settings = settings.unwrap_or_default();
    let body = whole(&app, queue, settings, Some(changed.version)).await?;
    let status = stored::put_status(&changed);
    Ok(stored::shown(status, &body, changed.version))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let queue = queue_of(&uri)?;
    Query::of(&uri, &[])?;
    let known = app.look().await?;
    let Some(entry) = known.queue(&queue) else {
        let body = whole(&app, queue, Queue::default(), None).await?;
        let counts = &body.counts;
        if counts.timers() == 0 && counts.drain.is_none() && counts.purge.is_none() {
            return Err(no_such_queue());
        }
        return Ok(answer(StatusCode::OK, &body));
    };
    let settings = entry.what.as_deref().cloned();
    let settings = settings.ok_or_else(|| stored::unreadable("queue"))?;
    let body = whole(&app, queue, settings, Some(entry.version)).await?;
    // The counts change without the revision.
    Ok(stored::shown_unless_any(&headers, &body, entry.version))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        queue: String,
        removed: bool,
    }
    let queue = queue_of(&uri)?;
    let setting = setting(&queue)?;
    Query::of(&uri, &[])?;
    let condition = precondition(&headers, Honoured::IfMatch)?;
    if app.look().await?.queue(&queue).is_none() {
        return Err(no_such_queue());
    }
    let asked = queue.clone();
    let left = app.read(move |timers| {
        let left = timers.left(Some(&asked));
        left.map_err(|error| Problem::from(&error))
    });
    let Left {
        pending,
        delivering,
        dead,
    } = left.await?;
    let timers = pending + delivering + dead;
    if timers > 0 {
        let timers = counted(timers, "timer");
        let detail = format!("the queue has {timers} that wait, are delivered or are dead");
        return Err(Problem::new(Code::NotEmpty, detail));
    }
    let version = |known: &Resources| known.queue(&queue).map(|entry| entry.version);
    let missing = no_such_queue;
    let check = |_: &Resources| Ok(());
    stored::remove(&app, &setting, condition, version, "queue", missing, check).await?;
    let body = Answer {
        queue: queue.to_string(),
        removed: true,
    };
    Ok(answer(StatusCode::OK, &body))
}

fn setting(queue: &QueueName) -> Result<SettingName, Problem> {
    let wrong = || Problem::new(Code::InvalidQueue, "the queue's name is too long");
    setting_of_queue(queue).ok_or_else(wrong)
}

pub(super) fn no_such_queue() -> Problem {
    Problem::new(
        Code::NotFound,
        "there is no queue of that name with settings or timers",
    )
}

/// Reads the settings of a queue and checks every bound.
fn read(
    body: &[u8],
    of: &QueueName,
    known: &Resources,
    ceilings: &Ceilings,
) -> Result<Queue, Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::PUT_QUEUE)?;
    let endpoint = object.take("endpoint");
    let policy = object.take("retry");
    let timeout = object.take("timeout");
    let concurrency = object.take("concurrency");
    let rate = object.take("rate");
    let payload_limit = object.take("payload_limit");
    let missed = object.take("missed");
    let statuses = object.take("statuses");
    let cloudevents = object.take("cloudevents");
    let (serial, priority) = (object.take("serial"), object.take("priority"));
    let (mode, lease) = (object.take("mode"), object.take("lease"));
    let placement = object.take("placement");
    let (overlap, retention) = (object.take("overlap"), object.take("retention"));
    object.finish()?;
    let is_pulled = mode.as_ref().map_or(Ok(Mode::Push), read_mode)? == Mode::Pull;
    if is_pulled && let Some(endpoint) = &endpoint {
        let detail = "a queue of mode \"pull\" has no endpoint: workers fetch its timers";
        return Err(invalid(endpoint, detail));
    }
    let of_requests = [
        ("timeout", &timeout),
        ("statuses", &statuses),
        ("cloudevents", &cloudevents),
    ];
    let of_requests = of_requests.into_iter().filter(|_| is_pulled);
    if let Some((name, Some(field))) = of_requests.into_iter().find(|(_, field)| field.is_some()) {
        let detail = format!("a queue of mode \"pull\" has no {name}: workers fetch its timers");
        return Err(invalid(field, detail));
    }
    if !is_pulled && let Some(lease) = &lease {
        let detail = "a queue has a lease where its mode is \"pull\"";
        return Err(invalid(lease, detail));
    }
    let concurrency = concurrency
        .as_ref()
        .map(|field| read_concurrency(field, ceilings));
    let timeout = timeout
        .as_ref()
        .map(|field| read_timeout_within(field, ceilings));
    let payload_limit = payload_limit
        .as_ref()
        .map(|field| read_limit(field, ceilings));
    let retention = retention
        .as_ref()
        .map(|field| read_retention(field, ceilings));
    let statuses = statuses.as_ref().map(read_statuses).transpose()?;
    let endpoint = endpoint
        .as_ref()
        .map(|field| read_endpoint(field, of, known));
    Ok(Queue {
        endpoint: endpoint.transpose()?,
        retry: policy.as_ref().map(retry::read).transpose()?,
        timeout: timeout.transpose()?,
        concurrency: concurrency.transpose()?,
        rate: rate.as_ref().map(read_rate).transpose()?,
        payload_limit: payload_limit.transpose()?,
        missed: missed.as_ref().map(recurrence::read_missed).transpose()?,
        statuses: statuses.unwrap_or_default(),
        cloudevents: cloudevents.as_ref().map(read_cloudevents).transpose()?,
        serial: serial.as_ref().map_or(Ok(false), Field::truth)?,
        priority: priority.as_ref().map(read_priority).transpose()?,
        mode: if is_pulled { Mode::Pull } else { Mode::Push },
        placement: placement
            .as_ref()
            .map_or(Ok(Placement::Spread), read_placement)?,
        lease: lease.as_ref().map(leases::read_lease).transpose()?,
        overlap: overlap.as_ref().map(recurrence::read_overlap).transpose()?,
        retention: retention.transpose()?,
    })
}

fn read_placement(field: &Field<'_>) -> Result<Placement, Problem> {
    match &*field.text()? {
        "spread" => Ok(Placement::Spread),
        "one" => Ok(Placement::One),
        _ => Err(invalid(field, "a placement is \"one\" or \"spread\"")),
    }
}

/// Refuses another placement of a queue that has timers: they would be elsewhere.
async fn keep_placement(app: &App, queue: &QueueName, asked: Placement) -> Result<(), Problem> {
    let known = app.look().await?;
    let before = known.queue(queue).and_then(|entry| entry.what.as_deref());
    let before = before.map_or(Placement::Spread, |queue| queue.placement);
    if before == asked {
        return Ok(());
    }
    let (queue, now) = (queue.clone(), app.clock.timestamp());
    let counts = app.read(move |timers| counts(timers, &queue, now)).await?;
    if counts.timers() == 0 {
        return Ok(());
    }
    let detail = format!(
        "the queue has {}, which are placed",
        counted(counts.timers(), "timer")
    );
    Err(Problem::new(Code::PlacementFixed, detail).at("/placement"))
}

fn read_mode(field: &Field<'_>) -> Result<Mode, Problem> {
    match &*field.text()? {
        "push" => Ok(Mode::Push),
        "pull" => Ok(Mode::Pull),
        _ => Err(invalid(field, "a mode is \"push\" or \"pull\"")),
    }
}

fn read_endpoint(
    field: &Field<'_>,
    queue: &QueueName,
    known: &Resources,
) -> Result<String, Problem> {
    let text = field.text()?;
    if known.endpoint_of(queue, &text).is_none() {
        return Err(invalid(field, "there is no endpoint of that name"));
    }
    Ok(text.into_owned())
}

fn read_cloudevents(field: &Field<'_>) -> Result<CloudEvents, Problem> {
    let mut object = field.object_of(&requests::CLOUDEVENTS)?;
    let source = object.require("source")?;
    let kind = object.require("type")?;
    object.finish()?;
    let event = CloudEvents {
        source: source.text()?.into_owned(),
        kind: kind.text()?.into_owned(),
    };
    check_source(&event.source).map_err(|detail| invalid(&source, detail))?;
    check_type(&event.kind).map_err(|detail| invalid(&kind, detail))?;
    Ok(event)
}

fn read_limit(field: &Field<'_>, ceilings: &Ceilings) -> Result<u64, Problem> {
    let limit = field.whole()?.filter(|limit| *limit <= PAYLOAD_MAX_BYTES);
    let detail =
        || format!("payload_limit is a whole number of bytes, at most {PAYLOAD_MAX_BYTES}");
    let limit = limit.ok_or_else(|| invalid(field, detail()))?;
    let ceiling = ceilings.payload;
    if limit > ceiling {
        let detail = format!(
            "payload_limit is at most {ceiling} bytes here (--payload-ceiling-mib, --body-memory)"
        );
        return Err(above_ceiling(field, ceiling, detail));
    }
    Ok(limit)
}

/// How long timers are kept once they have ended.
fn read_retention(field: &Field<'_>, ceilings: &Ceilings) -> Result<Retention, Problem> {
    let mut object = field.object_of(&requests::RETENTION)?;
    let (done, dead) = (object.take("done"), object.take("dead"));
    object.finish()?;
    let span = |field: &Field<'_>| {
        let span = retry::duration(field)?;
        let span = span.filter(|span| *span <= KEEP_DEAD_MAX);
        span.ok_or_else(|| {
            invalid(
                field,
                "a retention is a duration of at most 3650 days, such as 30d",
            )
        })
    };
    let done = done.as_ref().map(|field| {
        let (done, ceiling) = (span(field)?, ceilings.keep_done);
        if done > ceiling {
            let ceiling = format_duration(ceiling);
            let detail = format!("done timers are kept for at most {ceiling} here (--keep-done)");
            return Err(above_ceiling(field, ceiling, detail));
        }
        Ok(done)
    });
    // Without it, and with null, they are kept for good.
    let dead = dead.filter(|field| !matches!(field.kind(), Kind::Null));
    Ok(Retention {
        done: done.transpose()?,
        dead: dead.as_ref().map(span).transpose()?,
    })
}
