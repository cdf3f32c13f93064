//! Health, readiness and metrics, for operators.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::store::{Durability, StoreError};
use countwheel_durable::{Health, Trouble};
use serde::Serialize;

use super::access::{self, Identity};
use super::problem::{Code, Problem};
use super::{App, answer};
use crate::metrics::{self, Form, NodeFigures};
use crate::resources::expiring;
use crate::resources::token::Scope;
use crate::time::format_time;

#[derive(Serialize)]
struct Status {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<Degraded>,
}

/// What cannot be read or done, while everything else goes on.
#[derive(Serialize)]
struct Degraded {
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

impl Degraded {
    /// Health asks for no token, so where one is needed and not shown it names no file and no
    /// timer.
    fn of(trouble: &Trouble, with_names: bool) -> Self {
        let path = trouble.path.as_ref().filter(|_| with_names);
        Self {
            reason: trouble.reason.as_str(),
            file: path.map(|path| path.display().to_string()),
            detail: with_names.then(|| trouble.detail.clone()),
            since: trouble.first_seen.map(format_time),
        }
    }
}

/// Whether whoever asks may know the names of files, timers and databases.
fn sees_names(asks: &Identity) -> bool {
    asks.has(Scope::Read) && asks.namespace().is_none()
}

/// Why something does not work: `reason`, which may have names, or what is `open` to everyone.
fn why(asks: &Identity, code: Code, reason: &str, open: &str) -> Problem {
    Problem::new(code, if sees_names(asks) { reason } else { open })
}

/// The answer of one that works: `well`, unless something is degraded.
fn works(app: &App, asks: &Identity, well: &'static str) -> Response {
    let troubles = app.troubles();
    let with_names = sees_names(asks);
    let degraded = troubles.iter();
    let mut degraded: Vec<_> = degraded.map(|one| Degraded::of(one, with_names)).collect();
    if !with_names {
        degraded.dedup_by_key(|one| one.reason);
    }
    let status = if degraded.is_empty() {
        well
    } else {
        "degraded"
    };
    let durability = app.timers.durability().map(Durability::as_str);
    let status = Status {
        status,
        durability,
        degraded,
    };
    answer(StatusCode::OK, &status)
}

/// Red only when the process should be replaced.
pub(super) async fn healthz(
    State(app): State<Arc<App>>,
    Extension(asks): Extension<Identity>,
) -> Result<Response, Problem> {
    match app.timers.health() {
        Health::Lost(reason) | Health::Failed(reason) => Err(why(
            &asks,
            Code::Unavailable,
            &reason,
            "the store has failed",
        )),
        Health::Running | Health::Stopping | Health::Stopped => Ok(works(&app, &asks, "ok")),
    }
}

/// Red until the start is over.
pub(super) async fn startz(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    if app.is_started.load(Ordering::Acquire) {
        let status = Status {
            status: "started",
            durability: None,
            degraded: Vec::new(),
        };
        return Ok(answer(StatusCode::OK, &status));
    }
    Err(Problem::new(Code::Unavailable, "the start is not over"))
}

/// Red when no traffic should come here.
pub(super) async fn readyz(
    State(app): State<Arc<App>>,
    Extension(asks): Extension<Identity>,
) -> Result<Response, Problem> {
    match app.timers.health() {
        Health::Lost(reason) | Health::Failed(reason) => Err(why(
            &asks,
            Code::Unavailable,
            &reason,
            "the store has failed",
        )),
        Health::Running => {
            if app.cluster().is_some_and(|cluster| !cluster.is_ready()) {
                let detail = "this node has yet to take its shards";
                return Err(Problem::new(Code::Unavailable, detail));
            }
            let who = asks.clone();
            let away = move |error: StoreError| {
                let open = "the store is not reached";
                why(&who, Code::StoreUnavailable, &error.to_string(), open)
            };
            app.measure(move |timers| timers.reach().map_err(away))
                .await?;
            Ok(works(&app, &asks, "ready"))
        }
        _ => Err(Problem::new(Code::Unavailable, "shutting down")),
    }
}

pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let form = Form::of(&headers);
    let http = app.requests.clone();
    let scrub = app.scrub();
    let (callers, tls) = (app.callers(), app.tls());
    let wall = app.clock.timestamp();
    let (cluster, troubles) = (app.cluster().cloned(), app.troubles());
    let expiring = expiring::soon(&access::known(&app), wall).count();
    app.measure(move |timers| {
        // Without the store there are still the numbers of the process.
        let overview = timers.overview(metrics::QUEUES_MAX).ok();
        let node = cluster.map(|cluster| NodeFigures::of(&cluster, timers));
        let seen = metrics::Seen {
            wall,
            overview,
            troubles,
            scrub,
            callers,
            tls,
            node,
            expiring,
        };
        let text = metrics::text(timers, seen, &http, form)
            .map_err(|_| Problem::new(Code::Internal, "the metrics could not be written"))?;
        let content_type = HeaderValue::from_static(form.content_type());
        Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
    })
    .await
}
