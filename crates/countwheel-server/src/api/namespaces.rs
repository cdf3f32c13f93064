//! Namespaces: made, shown with what they use, given quotas, and removed once nothing is in them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::{Namespace, SettingName};
use serde::Serialize;

use super::described::requests;
use super::endpoints::{counted, invalid, read_rate};
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::reach::{Reach, no_such_namespace};
use super::request::{Honoured, Query, json_body, precondition, text_segment};
use super::{App, answer, stored};
use crate::quotas::{InUse, count_in};
use crate::resources::namespace::{NAMESPACES_MAX, Quotas, StoredNamespace, setting_of_namespace};
use crate::resources::{Entry, Resources};

/// The largest quota that is no rate.
pub(crate) const QUOTA_MAX: u64 = 1_000_000_000_000;
/// What the names of namespaces begin with that the service keeps for itself.
const OWN: &str = "countwheel:";

/// What a namespace has of everything that has a quota, but for the rate.
#[derive(Serialize)]
struct UsageBody {
    timers: u64,
    /// `None` without a quota of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    queues: u64,
    endpoints: u64,
    /// Of callers, to this node.
    connections: u64,
}

/// A namespace as it is shown.
#[derive(Serialize)]
struct NamespaceBody<'a> {
    namespace: &'a str,
    /// `None` of `default`, if nothing was put.
    revision: Option<u64>,
    quotas: Quotas,
    audit_timers: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageBody>,
}

impl<'a> NamespaceBody<'a> {
    fn of(name: &'a str, entry: Option<&Entry<StoredNamespace>>) -> Self {
        let stored = entry.and_then(|entry| entry.what.as_deref().copied());
        let stored = stored.unwrap_or_default();
        Self {
            namespace: name,
            revision: entry.map(|entry| entry.version.0),
            quotas: stored.quotas,
            audit_timers: stored.audit_timers,
            usage: None,
        }
    }
}

/// The namespace at the end of the path.
fn name_of(uri: &Uri) -> Result<Namespace, Problem> {
    let text = text_segment(uri, 3).unwrap_or_default();
    Namespace::new(text).map_err(|error| Problem::malformed(error.to_string()))
}

fn setting(namespace: &Namespace) -> Result<SettingName, Problem> {
    setting_of_namespace(namespace).ok_or_else(no_such_namespace)
}

fn version(
    namespace: &Namespace,
) -> impl Fn(&Resources) -> Option<countwheel_durable::SettingsVersion> {
    move |known| {
        known
            .namespace(namespace.as_str())
            .map(|entry| entry.version)
    }
}

fn read(body: &[u8]) -> Result<StoredNamespace, Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::PUT_NAMESPACE)?;
    let (quotas, audit_timers) = (object.take("quotas"), object.take("audit_timers"));
    object.finish()?;
    let audit_timers = audit_timers.as_ref().map(Field::truth).transpose()?;
    let audit_timers = audit_timers.unwrap_or_default();
    let Some(quotas) = quotas else {
        return Ok(StoredNamespace {
            audit_timers,
            ..StoredNamespace::default()
        });
    };
    let mut object = quotas.object_of(&requests::QUOTAS)?;
    let rate = object.take("rate");
    let names = ["timers", "bytes", "queues", "endpoints", "connections"];
    let counts = names.map(|name| object.take(name));
    object.finish()?;
    let [timers, bytes, queues, endpoints, connections] = counts;
    let count = |field: Option<Field<'_>>| field.as_ref().map(read_count).transpose();
    Ok(StoredNamespace {
        quotas: Quotas {
            timers: count(timers)?,
            bytes: count(bytes)?,
            rate: rate.as_ref().map(read_rate).transpose()?,
            queues: count(queues)?,
            endpoints: count(endpoints)?,
            connections: count(connections)?,
        },
        audit_timers,
    })
}

fn read_count(field: &Field<'_>) -> Result<u64, Problem> {
    let count = field.whole()?.filter(|count| *count <= QUOTA_MAX);
    let detail = format!("a quota is a whole number, at most {QUOTA_MAX}");
    count.ok_or_else(|| invalid(field, detail))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        namespaces: Vec<NamespaceBody<'a>>,
    }
    Query::of(&uri, &[])?;
    let known = app.look().await?;
    let has_default = known.namespace(Namespace::DEFAULT_NAME).is_some();
    let default = (!has_default).then_some(Namespace::DEFAULT_NAME);
    let default = default.map(|name| NamespaceBody::of(name, None));
    let stored = known
        .namespaces()
        .map(|(name, entry)| NamespaceBody::of(name, Some(entry)));
    let mut namespaces: Vec<_> = default.into_iter().chain(stored).collect();
    namespaces.retain(|it| reach.has(it.namespace));
    namespaces.sort_by_key(|it| it.namespace);
    Ok(answer(StatusCode::OK, &Answer { namespaces }))
}

async fn shown<'a>(
    app: &App,
    known: &'a Resources,
    namespace: &'a Namespace,
) -> Result<NamespaceBody<'a>, Problem> {
    let name = namespace.as_str();
    let InUse {
        timers,
        bytes,
        queues,
        connections,
        ..
    } = app.usage().in_use(app, name).await?;
    let endpoints = known.endpoints_after(None).map(|(name, _)| name.as_str());
    Ok(NamespaceBody {
        usage: Some(UsageBody {
            timers,
            bytes,
            queues,
            endpoints: count_in(endpoints, name),
            connections,
        }),
        ..NamespaceBody::of(name, known.namespace(name))
    })
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let namespace = name_of(&uri)?;
    Query::of(&uri, &[])?;
    reach.find(&app, namespace.as_str()).await?;
    let known = app.look().await?;
    let body = shown(&app, &known, &namespace).await?;
    match known.namespace(namespace.as_str()) {
        // What it uses changes without the revision.
        Some(entry) => Ok(stored::shown_unless_any(&headers, &body, entry.version)),
        None => Ok(answer(StatusCode::OK, &body)),
    }
}

pub(super) async fn put(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let namespace = name_of(request.uri())?;
    if namespace.as_str().starts_with(OWN) {
        let detail = format!("names that begin with {OWN} are those of the service itself");
        return Err(Problem::new(Code::InvalidSetting, detail));
    }
    let setting = setting(&namespace)?;
    Query::of(request.uri(), &[])?;
    let condition = precondition(request.headers(), Honoured::Both)?;
    let body = json_body(&app, request).await?;
    let make = |known: &Resources| {
        let is_new = known.namespace(namespace.as_str()).is_none();
        if is_new && known.namespaces().count() >= NAMESPACES_MAX {
            let detail = format!("there are {NAMESPACES_MAX} namespaces: remove some");
            return Err(Problem::new(Code::Conflict, detail));
        }
        Ok(Some(read(&body)?.to_value()))
    };
    let changed = stored::change(
        &app,
        &setting,
        condition,
        version(&namespace),
        "namespace",
        make,
    );
    let changed = changed.await?;
    let known = app.look().await?;
    let body = shown(&app, &known, &namespace).await?;
    let status = stored::put_status(&changed);
    Ok(stored::shown(status, &body, changed.version))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        namespace: &'a str,
        removed: bool,
    }
    let namespace = name_of(&uri)?;
    let setting = setting(&namespace)?;
    Query::of(&uri, &[])?;
    let condition = precondition(&headers, Honoured::IfMatch)?;
    let name = namespace.as_str();
    let known = app.look().await?;
    if known.namespace(name).is_none() {
        return Err(no_such_namespace());
    }
    let is_default = namespace.is_default();
    let used = app.usage().in_use(&app, name).await?;
    let check = |known: &Resources| {
        // What is in default stays there without quotas.
        if is_default {
            return Ok(());
        }
        let endpoints = known.endpoints_after(None).map(|(name, _)| name.as_str());
        let tokens = known.tokens().filter(|(_, entry)| {
            let token = entry.what.as_deref();
            token.is_some_and(|token| token.namespace.as_ref() == Some(&namespace))
        });
        let configured = known.queues().map(|(queue, _)| queue.as_str());
        let parts = [
            (used.timers, "timer"),
            (used.queues.max(count_in(configured, name)), "queue"),
            (count_in(endpoints, name), "endpoint"),
            (tokens.count() as u64, "token"),
            (used.jobs, "job"),
            (used.purges, "purge"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<_> = parts.map(|(count, what)| counted(count, what)).collect();
        if parts.is_empty() {
            return Ok(());
        }
        let detail = format!("the namespace has {}", parts.join(", "));
        Err(Problem::new(Code::NotEmpty, detail))
    };
    check(&known)?;
    stored::remove(
        &app,
        &setting,
        condition,
        version(&namespace),
        "namespace",
        no_such_namespace,
        check,
    )
    .await?;
    let body = Answer {
        namespace: name,
        removed: true,
    };
    Ok(answer(StatusCode::OK, &body))
}
