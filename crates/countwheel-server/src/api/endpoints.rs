//! Endpoints: where deliveries go, by name. Put, shown, listed and removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::store::Filter;
use countwheel_durable::{
    Configured, QueueName, Request as Asked, SettingName, SettingPrecondition, SettingsVersion,
    StateKind, TimerError, Timers,
};
use serde::Serialize;
use serde_json::Value;

use super::described::{operations, requests};
use super::json::{self, Field, Kind};
use super::problem::{Code, Problem};
use super::reach::{self, Reach};
use super::request::{
    Honoured, Query, endpoint_of, invalid_endpoint, json_body, optional_json_body, precondition,
    tested_endpoint_of,
};
use super::timers::{
    AttemptBody, invalid_target, read_headers, read_method, read_path, read_timeout_within,
    read_url,
};
use super::{App, TESTS_MAX, answer, retry, stored};
use crate::deliver::{carries_body, check_url};
use crate::egress::{BadProxy, EgressProxy};
use crate::guard::{AllowedTarget, BadTarget, Targets};
use crate::job::{Extras, Job, To};
use crate::quotas::{Quota, check_count, count_in};
use crate::resources::breaker::{Breaker, FAILURES_MAX, Health, HealthState, PAUSE_MAX, PAUSE_MIN};
use crate::resources::ceilings::Ceilings;
use crate::resources::endpoint::{
    self, ALLOW_MAX, BadTls, CERTIFICATES_MAX_BYTES, ClientCertificate, Endpoint, EndpointName,
    KEY_MAX_BYTES, LIMIT_MAX, Opened, Rate, SECRETS_MAX, Secret, TlsPart, Versions,
};
use crate::resources::failing::{AUTO_DISABLE_MAX, AUTO_DISABLE_MIN};
use crate::resources::queue::Queue;
use crate::resources::sealed::{Kept, NoKey};
use crate::resources::signature::SigningKey;
use crate::resources::statuses::{Meaning, Named, Statuses};
use crate::resources::{Entry, Resources, setting_of_endpoint};
use crate::time::{format_duration, format_time};

/// How long the id of a secret may be.
const ID_MAX_BYTES: usize = 64;
/// The slowest rate: one in 1,000 seconds.
const RATE_MIN: f64 = 0.001;
/// How many timers that name an endpoint are counted.
const USES_MAX: u64 = 1_000;
/// So often the endpoints are looked at that other callers change while their secrets are sealed anew.
const RESEALS_MAX: u32 = 100;
/// How many timers are read at a time while those are counted.
const PIECE: usize = 100;

/// An endpoint as it is shown: nothing that is secret.
#[derive(Serialize)]
struct EndpointBody<'a> {
    endpoint: &'a str,
    revision: u64,
    url: &'a str,
    headers: serde_json::Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    secrets: Vec<SecretBody<'a>>,
    /// Where there is something secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    sealed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    disabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto_disable: Option<String>,
    /// If the service has disabled it.
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled_at: Option<String>,
    #[serde(skip_serializing_if = "Statuses::is_empty")]
    statuses: &'a Statuses,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    egress_proxy: Option<String>,
    #[serde(skip_serializing_if = "Versions::is_auto")]
    http: Versions,
    #[serde(skip_serializing_if = "Option::is_none")]
    breaker: Option<BreakerBody>,
    health: HealthBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate: Option<CertificateBody<'a>>,
    /// Why nothing is delivered there, if a secret cannot be opened or a certificate cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

#[derive(Serialize)]
struct BreakerBody {
    failures: u32,
    pause: String,
    pause_max: String,
}

/// As this process sees it.
#[derive(Serialize)]
struct HealthBody {
    state: HealthState,
    failures: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailureBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

#[derive(Serialize)]
struct FailureBody {
    at: String,
    detail: String,
}

impl From<Health> for HealthBody {
    fn from(health: Health) -> Self {
        let last_failure = health.last.map(|(at, detail)| FailureBody {
            at: format_time(at),
            detail,
        });
        Self {
            state: health.state,
            failures: health.failures,
            last_failure,
            until: health.until.map(format_time),
        }
    }
}

#[derive(Serialize)]
struct SecretBody<'a> {
    id: &'a str,
    created: String,
}

#[derive(Serialize)]
struct CertificateBody<'a> {
    certificate: &'a str,
}

impl<'a> EndpointBody<'a> {
    fn of(name: &'a EndpointName, opened: &'a Opened, app: &App) -> Self {
        let it = &opened.settings;
        let health = app.catalogue().health(name, it.disabled);
        let ceilings = app.catalogue().ceilings();
        let headers = it.headers.iter();
        let secrets = it.secrets.iter().map(|secret| SecretBody {
            id: &secret.id,
            created: format_time(secret.created),
        });
        let certificate = it
            .client_certificate
            .as_ref()
            .map(|client| CertificateBody {
                certificate: &client.certificate,
            });
        Self {
            endpoint: name.as_str(),
            revision: opened.revision.0,
            url: &it.url,
            headers: headers
                .map(|(name, value)| (name.clone(), Value::String(value.clone())))
                .collect(),
            timeout: ceilings.timeout_of(it.timeout).map(format_duration),
            secrets: secrets.collect(),
            sealed: it.is_sealed(),
            retry: it.retry.as_ref().map(retry::show),
            concurrency: ceilings.concurrency_of(it.concurrency),
            rate: it.rate,
            disabled: it.disabled,
            auto_disable: it.auto_disable.map(format_duration),
            disabled_reason: it.disabled_by.as_ref().map(|by| &*by.reason),
            disabled_at: it.disabled_by.as_ref().map(|by| format_time(by.at)),
            breaker: it.breaker.map(|breaker| BreakerBody {
                failures: breaker.failures,
                pause: format_duration(breaker.pause),
                pause_max: format_duration(breaker.pause_max),
            }),
            health: health.into(),
            statuses: &it.statuses,
            allow: it.allow.iter().map(ToString::to_string).collect(),
            egress_proxy: it.egress_proxy.as_ref().map(ToString::to_string),
            http: it.versions,
            ca: it.ca.as_deref(),
            client_certificate: certificate,
            fault: opened.means.as_ref().err().map(ToString::to_string),
        }
    }
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let name = endpoint_of(request.uri())?;
    let setting = setting(&name)?;
    Query::of(request.uri(), &[])?;
    let condition = precondition(request.headers(), Honoured::Both)?;
    let body = json_body(&app, request).await?;
    let make = |known: &Resources| {
        reach::demand(known, name.namespace())?;
        let entry = known.endpoint(&name);
        if entry.is_none() {
            let names = known.endpoints_after(None).map(|(name, _)| name.as_str());
            let (namespace, quotas) = (name.namespace(), known.quotas(name.namespace()));
            let count = count_in(names, namespace);
            check_count(quotas, Quota::Endpoints, namespace, count)?;
        }
        let before = entry.and_then(|entry| entry.what.as_deref());
        let read = read(&body, &app, &name, before.map(|it| &it.settings))?;
        Ok(Some(read.to_value()))
    };
    let version = |known: &Resources| known.endpoint(&name).map(|entry| entry.version);
    let changed = stored::change(&app, &setting, condition, version, "endpoint", make).await?;
    let known = app.look().await?;
    let opened = known.endpoint(&name).and_then(|entry| entry.what.as_ref());
    // Somebody may have removed it since, or put another.
    let opened = opened.filter(|opened| opened.revision == changed.version);
    let status = stored::put_status(&changed);
    match opened {
        Some(opened) => Ok(stored::shown(
            status,
            &EndpointBody::of(&name, opened, &app),
            changed.version,
        )),
        None => Ok(stored::shown(
            status,
            &Changed::of(&name, &changed),
            changed.version,
        )),
    }
}

/// What was put and changed again before it could be shown.
#[derive(Serialize)]
struct Changed<'a> {
    endpoint: &'a str,
    revision: u64,
}

impl<'a> Changed<'a> {
    fn of(name: &'a EndpointName, changed: &stored::Changed) -> Self {
        Self {
            endpoint: name.as_str(),
            revision: changed.version.0,
        }
    }
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = endpoint_of(&uri)?;
    Query::of(&uri, &[])?;
    let known = app.look().await?;
    let entry = known.endpoint(&name).ok_or_else(no_such_endpoint)?;
    let opened = entry.what.as_ref();
    let opened = opened.ok_or_else(|| stored::unreadable("endpoint"))?;
    let body = EndpointBody::of(&name, opened, &app);
    // The health changes without the revision.
    Ok(stored::shown_unless_any(&headers, &body, entry.version))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        endpoints: Vec<EndpointBody<'a>>,
        next: Option<&'a str>,
        /// How many are left out that cannot be read.
        #[serde(skip_serializing_if = "is_none")]
        unreadable: usize,
    }
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
    fn is_none(count: &usize) -> bool {
        *count == 0
    }
    let query = Query::of(&uri, &operations::LIST_ENDPOINTS.query_names())?;
    let limit = query.read("limit", "a number from 1 to 1000", |text| {
        let limit = text.parse().ok();
        limit.filter(|limit| (1..=1_000).contains(limit))
    })?;
    let after = query.get("after").map(EndpointName::new).transpose();
    let after = after.map_err(|_| invalid_endpoint())?;
    let known = app.look().await?;
    let entries = known.endpoints_after(after.as_ref());
    let mut entries = entries.filter(|(name, _)| reach.has(name.namespace()));
    let page: Vec<_> = entries.by_ref().take(limit.unwrap_or(100)).collect();
    let next = entries.next().and(page.last());
    let unreadable = page
        .iter()
        .filter(|(_, entry)| entry.what.is_none())
        .count();
    let shown = page.iter().filter_map(|(name, entry)| {
        let opened = entry.what.as_deref()?;
        Some(EndpointBody::of(name, opened, &app))
    });
    let body = Answer {
        endpoints: shown.collect(),
        next: next.map(|(name, _)| name.as_str()),
        unreadable,
    };
    Ok(answer(StatusCode::OK, &body))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        endpoint: &'a str,
        removed: bool,
    }
    let name = endpoint_of(&uri)?;
    let setting = setting(&name)?;
    Query::of(&uri, &[])?;
    let condition = precondition(&headers, Honoured::IfMatch)?;
    let known = app.look().await?;
    if known.endpoint(&name).is_none() {
        return Err(no_such_endpoint());
    }
    let of_name = |entry: &Entry<Queue>| {
        let queue = entry.what.as_deref();
        queue.is_some_and(|queue| queue.endpoint.as_deref() == Some(name.as_str()))
    };
    let asked = name.clone();
    let timers = app.read(move |timers| uses(timers, &asked)).await?;
    let check = |known: &Resources| {
        let queues = known.queues().filter(|(_, entry)| of_name(entry)).count();
        if queues == 0 && timers == 0 {
            return Ok(());
        }
        let most = if timers < USES_MAX { "" } else { "at least " };
        let timers = counted(timers, "timer");
        let queues = counted(queues as u64, "queue");
        let detail = format!("the endpoint is named by {most}{timers} and {queues}");
        Err(Problem::new(Code::InUse, detail))
    };
    // Before a precondition is looked at.
    check(&known)?;
    let version = |known: &Resources| known.endpoint(&name).map(|entry| entry.version);
    let missing = no_such_endpoint;
    stored::remove(
        &app, &setting, condition, version, "endpoint", missing, check,
    )
    .await?;
    let body = Answer {
        endpoint: name.as_str(),
        removed: true,
    };
    Ok(answer(StatusCode::OK, &body))
}

/// Sends one request to an endpoint now, and says what came of it.
pub(super) async fn test(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        endpoint: &'a str,
        revision: u64,
        attempt: AttemptBody,
    }
    let name = tested_endpoint_of(request.uri())?;
    Query::of(request.uri(), &[])?;
    let body = optional_json_body(&app, request).await?;
    let (job, path) = read_test(body.as_deref().unwrap_or(b"{}"), &name)?;
    let tester = app.tester.as_ref().ok_or_else(|| {
        let detail = "this service makes no requests of its own";
        Problem::new(Code::NotImplemented, detail)
    })?;
    let known = app.look().await?;
    let entry = known.endpoint(&name).ok_or_else(no_such_endpoint)?;
    let route = known.route_of_test(&name, &path, &job);
    let route = route.ok_or_else(no_such_endpoint)?;
    let route = route.map_err(|held| Problem::new(Code::Conflict, held.detail))?;
    let Ok(_place) = app.tests.try_acquire() else {
        let detail = format!("{TESTS_MAX} tests of endpoints are under way: ask again");
        return Err(Problem::new(Code::Overloaded, detail));
    };
    let attempt = tester.test(job, route).await;
    let body = Answer {
        endpoint: name.as_str(),
        revision: entry.version.0,
        attempt: AttemptBody::of_test(&attempt),
    };
    Ok(answer(StatusCode::OK, &body))
}

/// Reads what a test sends, and what follows the URL of the endpoint.
fn read_test(body: &[u8], name: &EndpointName) -> Result<(Job, String), Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::TEST_ENDPOINT)?;
    let (method, path) = (object.take("method"), object.take("path"));
    let (body, headers) = (object.take("body"), object.take("headers"));
    object.finish()?;
    let method = method.as_ref().map_or(Ok(Method::POST), read_method)?;
    let path = path.as_ref().map_or(Ok(String::new()), read_path)?;
    let headers = headers.as_ref().map_or(Ok(Vec::new()), read_headers)?;
    if let Some(body) = &body
        && !carries_body(&method)
    {
        return Err(invalid_target(body, format!("{method} has no body")));
    }
    let to = To::Endpoint {
        name: Some(name.to_string()),
        path: path.clone(),
    };
    let content_type = body.is_some().then(|| "application/json".to_owned());
    let body = body.map(|body| body.raw().as_bytes().to_vec());
    let job = Job {
        method,
        to,
        headers,
        content_type,
        body: body.unwrap_or_default(),
        timeout: None,
        extras: Extras::default(),
    };
    Ok((job, path))
}

/// So many of a thing, in words.
pub(super) fn counted(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// How many timers name the endpoint that wait, are delivered or are dead; the count ends at [`USES_MAX`]. Reads
/// all such timers, a few at a time.
fn uses(timers: &Timers, name: &EndpointName) -> Result<u64, Problem> {
    let store = |error| Problem::from(&error);
    let queues = timers.counted().map_err(store)?.queues;
    let mut found = 0;
    for counts in queues {
        for state in [StateKind::Pending, StateKind::Delivering, StateKind::Dead] {
            if counts.of(state) > 0 {
                found += uses_in(timers, name, &counts.queue, state)?;
            }
            if found >= USES_MAX {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

fn uses_in(
    timers: &Timers,
    name: &EndpointName,
    queue: &QueueName,
    state: StateKind,
) -> Result<u64, Problem> {
    let filter = Filter {
        queue: queue.clone(),
        state: Some(state),
        prefix: None,
        due_from: None,
        due_before: None,
        after: None,
        limit: PIECE,
        scan_limit: Filter::SCAN_LIMIT,
    };
    let (mut found, mut after) = (0, None);
    loop {
        let page = timers.page(&filter, after);
        let page = page.map_err(|error| Problem::from(&error))?;
        let names = |payload: &[u8]| Job::endpoint_of(payload).as_deref() == Some(name.as_str());
        let of_page = page.records.iter().filter(|it| names(&it.payload));
        found += of_page.count() as u64;
        after = page.next;
        if after.is_none() || found >= USES_MAX {
            return Ok(found);
        }
    }
}

fn setting(name: &EndpointName) -> Result<SettingName, Problem> {
    setting_of_endpoint(name).ok_or_else(invalid_endpoint)
}

fn no_such_endpoint() -> Problem {
    Problem::new(Code::NotFound, "there is no endpoint of that name")
}

/// What a setting of a wrong value answers.
pub(super) fn invalid(field: &Field<'_>, detail: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidSetting, detail).at(field.pointer())
}

/// What a setting answers that is within its rule, and above what the flags of the service allow.
pub(super) fn above_ceiling(
    field: &Field<'_>,
    ceiling: impl Into<Value>,
    detail: impl Into<String>,
) -> Problem {
    above_ceiling_at(field.pointer(), ceiling, detail)
}

/// The same for what this pointer names.
pub(super) fn above_ceiling_at(
    pointer: impl Into<String>,
    ceiling: impl Into<Value>,
    detail: impl Into<String>,
) -> Problem {
    let problem = Problem::new(Code::AboveCeiling, detail).at(pointer);
    problem.with_ceiling(ceiling)
}

/// Reads an endpoint, checks every bound, and seals what is secret. What is secret and not said is taken from
/// `before`.
fn read(
    body: &[u8],
    app: &App,
    name: &EndpointName,
    before: Option<&Endpoint>,
) -> Result<Endpoint, Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::PUT_ENDPOINT)?;
    let url = object.require("url")?;
    let headers = object.take("headers");
    let timeout = object.take("timeout");
    let secrets = object.take("secrets");
    let policy = object.take("retry");
    let concurrency = object.take("concurrency");
    let rate = object.take("rate");
    let disabled = object.take("disabled");
    let auto_disable = object.take("auto_disable");
    let breaker = object.take("breaker");
    let ca = object.take("ca");
    let client = object.take("client_certificate");
    let statuses = object.take("statuses");
    let allow = object.take("allow");
    let proxy = object.take("egress_proxy");
    let versions = object.take("http");
    object.finish()?;
    let url = read_url(&url, &app.targets)?;
    let headers = headers.as_ref().map_or(Ok(Vec::new()), read_headers)?;
    let ceilings = app.catalogue().ceilings();
    let timeout = timeout.as_ref();
    let timeout = timeout.map(|field| read_timeout_within(field, ceilings));
    let timeout = timeout.transpose()?;
    let policy = policy.as_ref().map(retry::read).transpose()?;
    let concurrency = concurrency.as_ref();
    let concurrency = concurrency.map(|field| read_concurrency(field, ceilings));
    let concurrency = concurrency.transpose()?;
    let rate = rate.as_ref().map(read_rate).transpose()?;
    let disabled = disabled.as_ref().map_or(Ok(false), Field::truth)?;
    let auto_disable = auto_disable.as_ref().map(read_auto_disable).transpose()?;
    // Why it was disabled is known until it is enabled.
    let disabled_by = before.and_then(|before| before.disabled_by.clone());
    let breaker = breaker.as_ref().map(read_breaker).transpose()?;
    let statuses = statuses.as_ref().map(read_statuses).transpose()?;
    let versions = versions.as_ref().map(|field| {
        let versions = Versions::from_name(&field.text()?);
        versions.ok_or_else(|| invalid(field, "http is auto or 1.1"))
    });
    let versions = versions.transpose()?.unwrap_or_default();
    let proxy = proxy.as_ref();
    let proxy = proxy.map(|field| read_proxy(field, &app.targets));
    let proxy = proxy.transpose()?;
    let allow = match &allow {
        Some(field) => {
            let of_service = app.flows.as_ref();
            let is_proxied = proxy.is_some() || of_service.is_some_and(|it| it.is_proxied());
            read_allow(field, &url, &app.targets, is_proxied)?
        }
        None => Vec::new(),
    };
    let sealing = Sealing { app, name, before };
    let secrets = match &secrets {
        Some(secrets) => sealing.secrets(secrets)?,
        None => Vec::new(),
    };
    let ca_text = ca.as_ref().map(certificates).transpose()?;
    if let (Some(field), Some(text)) = (&ca, &ca_text) {
        let checked = endpoint::tls(Some(text), None, app.catalogue().roots());
        checked.map_err(|error| invalid(field, error.problem))?;
    }
    let client_certificate = client.as_ref().map(|field| sealing.client(field));
    Ok(Endpoint {
        url,
        headers,
        timeout,
        secrets,
        retry: policy,
        concurrency,
        rate,
        disabled,
        auto_disable,
        disabled_by: disabled_by.filter(|_| disabled),
        breaker,
        statuses: statuses.unwrap_or_default(),
        allow,
        egress_proxy: proxy,
        versions,
        ca: ca_text,
        client_certificate: client_certificate.transpose()?,
    })
}

/// How long every attempt has to fail until an endpoint is disabled.
fn read_auto_disable(field: &Field<'_>) -> Result<Duration, Problem> {
    let span = retry::duration(field)?;
    let span = span.filter(|span| (AUTO_DISABLE_MIN..=AUTO_DISABLE_MAX).contains(span));
    span.ok_or_else(|| invalid(field, "auto_disable is from 1m to 30d"))
}

/// The proxy of an endpoint, which is guarded as a target is.
fn read_proxy(field: &Field<'_>, targets: &Targets) -> Result<EgressProxy, Problem> {
    let proxy: Result<EgressProxy, BadProxy> = field.text()?.parse();
    let proxy = proxy.map_err(|bad| invalid(field, bad.to_string()))?;
    let checked = targets.check(proxy.uri());
    checked.map_err(|refused| invalid(field, refused.to_string()))?;
    Ok(proxy)
}

/// The only places of an endpoint. What shows by itself that its URL lies outside is refused.
fn read_allow(
    field: &Field<'_>,
    url: &str,
    targets: &Targets,
    is_proxied: bool,
) -> Result<Vec<AllowedTarget>, Problem> {
    let elements = field.elements()?;
    if !(1..=ALLOW_MAX).contains(&elements.len()) {
        let detail = format!("an endpoint allows 1 to {ALLOW_MAX} places, or says nothing of them");
        return Err(invalid(field, detail));
    }
    let place = |element: &Field<'_>| {
        let place = element.text()?.parse();
        place.map_err(|bad: BadTarget| invalid(element, bad.to_string()))
    };
    let places = elements.iter().map(place);
    let places = places.collect::<Result<Vec<AllowedTarget>, Problem>>()?;
    let uri = check_url(url).map_err(|detail| invalid(field, detail))?;
    let narrowed = targets.clone().within(places.clone());
    let checked = if is_proxied {
        narrowed.check_proxied(&uri)
    } else {
        narrowed.check(&uri)
    };
    checked.map_err(|_| invalid(field, "the endpoint's own url is at none of these places"))?;
    Ok(places)
}

/// When an endpoint is left alone, and for how long.
fn read_breaker(field: &Field<'_>) -> Result<Breaker, Problem> {
    let mut object = field.object_of(&requests::BREAKER)?;
    let (failures, pause) = (object.take("failures"), object.take("pause"));
    let pause_max = object.take("pause_max");
    object.finish()?;
    let known = Breaker::default();
    let failures = match &failures {
        None => known.failures,
        Some(field) => {
            let number = field.whole()?.and_then(|number| u32::try_from(number).ok());
            let number = number.filter(|number| (1..=FAILURES_MAX).contains(number));
            number.ok_or_else(|| invalid(field, "failures is a whole number from 1 to 10000"))?
        }
    };
    let span = |field: &Field<'_>| {
        let span = retry::duration(field)?;
        let span = span.filter(|span| (PAUSE_MIN..=PAUSE_MAX).contains(span));
        span.ok_or_else(|| invalid(field, "a pause is from 100ms to 24h"))
    };
    let pause = pause.as_ref().map_or(Ok(known.pause), span)?;
    let longest = pause_max.as_ref().map(span).transpose()?;
    if let (Some(longest), Some(field)) = (longest, &pause_max)
        && longest < pause
    {
        return Err(invalid(field, "pause_max is no shorter than pause"));
    }
    Ok(Breaker {
        failures,
        pause,
        pause_max: longest.unwrap_or(known.pause_max).max(pause),
    })
}

/// A text in PEM of bounded length.
fn pem(field: &Field<'_>, most: usize) -> Result<String, Problem> {
    let text = field.text()?;
    if text.len() > most {
        let detail = format!("a text in PEM has at most {most} bytes here");
        return Err(invalid(field, detail));
    }
    Ok(text.into_owned())
}

/// Certificates in PEM. They are shown, so a key among them is refused.
fn certificates(field: &Field<'_>) -> Result<String, Problem> {
    let text = pem(field, CERTIFICATES_MAX_BYTES)?;
    if text.contains("PRIVATE KEY-----") {
        let detail = "these are certificates, which are shown: a private key goes into client_certificate.key";
        return Err(invalid(field, detail));
    }
    Ok(text)
}

/// What statuses mean, by status or by class.
pub(super) fn read_statuses(field: &Field<'_>) -> Result<Statuses, Problem> {
    let rules = field.object()?.into_members().into_iter();
    let read = |(name, field): (String, Field<'_>)| {
        let named = Named::new(&name).ok_or_else(|| {
            invalid(
                &field,
                "a rule is for a status from 200 to 599, or for one of 2xx, 3xx, 4xx, 5xx",
            )
        })?;
        let meaning = Meaning::from_name(&field.text()?);
        let meaning = meaning.ok_or_else(|| invalid(&field, "a status is done, retry or stop"));
        Ok((named, meaning?))
    };
    rules.map(read).collect()
}

/// How many attempts may run at a time.
pub(super) fn read_concurrency(field: &Field<'_>, ceilings: &Ceilings) -> Result<u32, Problem> {
    let number = field.whole()?.and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=LIMIT_MAX).contains(number));
    let number =
        number.ok_or_else(|| invalid(field, "concurrency is a whole number from 1 to 1000000"))?;
    let ceiling = ceilings.concurrency;
    if number > ceiling {
        let detail = format!("concurrency is at most {ceiling} here (--max-in-flight)");
        return Err(above_ceiling(field, ceiling, detail));
    }
    Ok(number)
}

/// How many attempts may start a second.
pub(super) fn read_rate(field: &Field<'_>) -> Result<Rate, Problem> {
    let mut object = field.object_of(&requests::RATE)?;
    let per_second = object.require("per_second")?;
    let burst = object.take("burst");
    object.finish()?;
    let Kind::Number(number) = per_second.kind() else {
        return Err(per_second.malformed("must be a number"));
    };
    let number = number.parse().ok();
    let number = number.filter(|rate| (RATE_MIN..=f64::from(LIMIT_MAX)).contains(rate));
    let number: f64 = number
        .ok_or_else(|| invalid(&per_second, "per_second is a number from 0.001 to 1000000"))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is at most a million"
    )]
    let of_a_second = number.ceil() as u32;
    let burst = match &burst {
        None => of_a_second,
        Some(field) => {
            let burst = field.whole()?.and_then(|number| u32::try_from(number).ok());
            let burst = burst.filter(|burst| (1..=LIMIT_MAX).contains(burst));
            burst.ok_or_else(|| invalid(field, "burst is a whole number from 1 to 1000000"))?
        }
    };
    Ok(Rate {
        per_second: number,
        burst,
    })
}

/// What the secrets of an endpoint are sealed with, and which there were before.
struct Sealing<'a> {
    app: &'a App,
    name: &'a EndpointName,
    before: Option<&'a Endpoint>,
}

impl Sealing<'_> {
    fn secrets(&self, field: &Field<'_>) -> Result<Vec<Secret>, Problem> {
        let elements = field.elements()?;
        if elements.len() > SECRETS_MAX {
            let detail = format!("an endpoint has at most {SECRETS_MAX} secrets");
            return Err(invalid(field, detail));
        }
        let mut secrets: Vec<Secret> = Vec::with_capacity(elements.len());
        for element in &elements {
            let secret = self.secret(element)?;
            if secrets.iter().any(|before| before.id == secret.id) {
                let detail = format!("the id {:?} is given twice", secret.id);
                return Err(invalid(element, detail));
            }
            secrets.push(secret);
        }
        Ok(secrets)
    }

    /// A secret with its id, the id of one that is kept, or a secret alone.
    fn secret(&self, element: &Field<'_>) -> Result<Secret, Problem> {
        let before = self.before.map_or(&[][..], |before| &before.secrets);
        let vault = self.app.catalogue().vault();
        let is_kept =
            |kept: &&Secret, secret: &str| endpoint::is_same_secret(vault, self.name, kept, secret);
        if let Kind::Text(text) = element.kind() {
            check_secret(element, &text)?;
            let kept = before.iter().find(|kept| is_kept(kept, &text));
            return match kept {
                Some(kept) => Ok(self.kept_secret(kept)),
                None => self.new_secret(element, drawn_id()?, &text),
            };
        }
        let mut object = element.object_of(&requests::SECRET)?;
        let id = object.require("id")?;
        let secret = object.take("secret");
        object.finish()?;
        let text = id.text()?;
        let is_id = (1..=ID_MAX_BYTES).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !is_id {
            let detail = "an id is 1 to 64 ASCII letters, digits and . _ -";
            return Err(invalid(&id, detail));
        }
        let kept = before.iter().find(|kept| kept.id == text);
        let Some(secret) = secret else {
            let detail = "there is no secret of that id to keep: send it";
            let kept = kept.map(|kept| self.kept_secret(kept));
            return kept.ok_or_else(|| invalid(&id, detail));
        };
        let said = secret.text()?;
        check_secret(&secret, &said)?;
        match kept.filter(|kept| is_kept(kept, &said)) {
            Some(kept) => Ok(self.kept_secret(kept)),
            None => self.new_secret(&secret, text.into_owned(), &said),
        }
    }

    fn new_secret(&self, field: &Field<'_>, id: String, secret: &str) -> Result<Secret, Problem> {
        let vault = self.app.catalogue().vault();
        let kept = endpoint::seal_secret(vault, self.name, &id, secret);
        Ok(Secret {
            kept: kept.map_err(|NoKey| key_required(field))?,
            id,
            created: self.app.clock.timestamp(),
        })
    }

    /// A secret that stays, sealed as a new one would be. One that cannot be opened stays as it is stored.
    fn kept_secret(&self, kept: &Secret) -> Secret {
        let vault = self.app.catalogue().vault();
        let sealed = endpoint::seal_again(vault, self.name, kept);
        Secret {
            kept: sealed.unwrap_or_else(|| kept.kept.clone()),
            ..kept.clone()
        }
    }

    fn client(&self, field: &Field<'_>) -> Result<ClientCertificate, Problem> {
        let mut object = field.object_of(&requests::CERTIFICATE)?;
        let certificate = object.require("certificate")?;
        let key = object.take("key");
        object.finish()?;
        let text = certificates(&certificate)?;
        let catalogue = self.app.catalogue();
        let before = self.before.and_then(|it| it.client_certificate.as_ref());
        let (secret, kept) = match &key {
            Some(key) => (pem(key, KEY_MAX_BYTES)?, None),
            None => {
                let detail = "there is no key to keep: send it";
                let before = before.ok_or_else(|| invalid(field, detail))?;
                let opened = endpoint::open_key(catalogue.vault(), self.name, &before.key);
                let detail = "the key that is kept cannot be opened: send it";
                let opened = opened.ok_or_else(|| invalid(field, detail))?;
                let is_current = catalogue.vault().is_current(&before.key);
                (opened, is_current.then(|| before.key.clone()))
            }
        };
        let checked = endpoint::tls(None, Some((&text, &secret)), catalogue.roots());
        checked.map_err(|BadTls { part, problem }| match part {
            TlsPart::Key => invalid(key.as_ref().unwrap_or(field), problem),
            TlsPart::Authorities | TlsPart::Certificate => invalid(&certificate, problem),
        })?;
        let sealed = |kept: Option<Kept>| match kept {
            Some(kept) => Ok(kept),
            None => endpoint::seal_key(catalogue.vault(), self.name, &secret),
        };
        Ok(ClientCertificate {
            certificate: text,
            key: sealed(kept).map_err(|NoKey| key_required(key.as_ref().unwrap_or(field)))?,
        })
    }
}

fn check_secret(field: &Field<'_>, text: &str) -> Result<(), Problem> {
    let detail = "a secret is whsec_ and the base64 of 24 to 64 bytes, with padding";
    match SigningKey::new(text) {
        Some(_) => Ok(()),
        None => Err(invalid(field, detail)),
    }
}

fn key_required(field: &Field<'_>) -> Problem {
    let detail = "the service can be reached from other machines and has no key to seal secrets with: \
                  start it with --secret-key-file";
    Problem::new(Code::SecretKeyRequired, detail).at(field.pointer())
}

/// The id of a secret that was given none.
fn drawn_id() -> Result<String, Problem> {
    let drawn = getrandom::u64();
    let drawn = drawn.map_err(|_| Problem::new(Code::Internal, "there is no randomness"))?;
    Ok(format!("{drawn:016x}"))
}

/// Seals anew what was sealed with another key than the first, or not at all. What changes meanwhile is looked at
/// again, until all of it is sealed with the first key or the log says why it is not.
pub(crate) async fn reseal(app: &App) {
    let mut failed = BTreeSet::new();
    for round in 0..RESEALS_MAX {
        let known = match app.look().await {
            Ok(known) => known,
            Err(problem) => {
                let detail = problem.parts().2.to_owned();
                tracing::warn!(
                    detail,
                    "secrets are not sealed anew: the settings cannot be read"
                );
                return;
            }
        };
        let vault = app.catalogue().vault();
        let mut is_changing = false;
        for (name, entry) in known.endpoints_after(None) {
            let Some(opened) = &entry.what else {
                continue;
            };
            if opened.settings.is_current(vault) || failed.contains(name) {
                continue;
            }
            let resealed = opened.settings.resealed(name, vault);
            let (Some(resealed), Some(setting)) = (resealed, setting_of_endpoint(name)) else {
                tracing::warn!(endpoint = %name, "secrets are not sealed anew: they cannot be opened");
                failed.insert(name.clone());
                continue;
            };
            match replace(app, setting, entry.version, resealed.to_value()).await {
                Ok(()) => tracing::info!(endpoint = %name, "secrets are sealed anew"),
                // Another node has done it meanwhile, or a caller has put another endpoint.
                Err(TimerError::Setting(_)) if round + 1 < RESEALS_MAX => is_changing = true,
                Err(error) => {
                    tracing::warn!(endpoint = %name, %error, "secrets are not sealed anew");
                    failed.insert(name.clone());
                }
            }
        }
        if !is_changing {
            return;
        }
    }
}

async fn replace(
    app: &App,
    name: SettingName,
    version: SettingsVersion,
    value: Vec<u8>,
) -> Result<(), TimerError> {
    let request = Asked::Configure {
        name,
        value: Some(value),
        precondition: SettingPrecondition::Version(version),
    };
    app.ask_first_shard::<Configured>(request).await.map(drop)
}
