//! The pages for the operator: am I late, what is coming, what was lost. The HTML works without
//! script.
//!
//! [`figures`] has the data of the first page, [`text`] writes figures and foreign text, and each
//! other module is a page. The markup is in `templates/`.

mod cluster;
mod dead;
mod figures;
pub(crate) mod login;
mod now;
mod queue;
pub(crate) mod session;
mod sessions;
pub(crate) mod text;
mod timer;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use countwheel_durable::{Key, Namespace, QueueName, Record, TimerName};
use countwheel_time::Timestamp;

use self::login::Viewer;
use self::text::When;
use crate::VERSION;
use crate::api::problem::{Code, Problem};
use crate::api::request::Query;
use crate::api::{App, access};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("live.js");
const ICON: &str = include_str!("icon.svg");

/// Nothing is loaded, run or sent but what this service serves.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The pages, and what they load.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(now::show))
        .route("/cluster", get(cluster::show))
        .route("/dead", get(dead::show))
        .route("/queue", get(queue::show))
        .route("/timer", get(timer::show))
        .route(access::REVIVE, post(dead::revive))
        .route("/sessions", get(sessions::show))
        .route(access::END_SESSIONS, post(sessions::end))
        .route("/login", get(login::show).post(login::begin))
        .route("/logout", post(login::end))
        .route("/page/style.css", asset("text/css; charset=utf-8", STYLE))
        .route(
            "/page/live.js",
            asset("text/javascript; charset=utf-8", SCRIPT),
        )
        .route("/page/icon.svg", asset("image/svg+xml", ICON))
}

/// A file that a page loads.
fn asset(content_type: &'static str, text: &'static str) -> MethodRouter<Arc<App>> {
    get((
        [
            (header::CONTENT_TYPE, content_type),
            // Another version of the program has another one, at the same address.
            (header::CACHE_CONTROL, "no-cache"),
        ],
        text,
    ))
}

/// What is the same on all pages.
struct Frame {
    title: String,
    /// The path of the page in the navigation that is shown, if it is there.
    here: &'static str,
    version: &'static str,
    now: When,
    viewer: Viewer,
    /// Whether the figures are taken anew every few seconds.
    is_live: bool,
    /// Whether this process is a node of a cluster.
    has_cluster: bool,
}

impl Frame {
    fn of(
        app: &App,
        viewer: Viewer,
        now: Timestamp,
        here: &'static str,
        title: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            here,
            version: VERSION,
            now: When::of(now, now),
            viewer,
            is_live: false,
            has_cluster: app.cluster().is_some(),
        }
    }
}

/// A page, or why there is none.
fn answer<T: Template>(headers: &HeaderMap, page: Result<T, Problem>) -> Response {
    page.and_then(|page| html(StatusCode::OK, &page))
        .unwrap_or_else(|problem| refuse(headers, problem))
}

pub(crate) fn html(status: StatusCode, page: &impl Template) -> Result<Response, Problem> {
    let html = page.render().map_err(|error| {
        tracing::error!(%error, "a page could not be written");
        Problem::new(Code::Internal, "no page")
    })?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Not `no-referrer`: with that, a browser says of its own forms that they come from nowhere.
        (header::REFERRER_POLICY, "same-origin"),
    ]
    .map(|(name, value): (HeaderName, _)| (name, HeaderValue::from_static(value)));
    Ok((status, headers, html).into_response())
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage<'a> {
    status: u16,
    title: &'a str,
    detail: &'a str,
}

/// Whether a caller is a browser, by what it accepts.
pub(crate) fn wants_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter();
    accepted.any(|accept| {
        let accept = accept.to_str().unwrap_or_default();
        accept.contains("text/html")
    })
}

/// Says why there is no page: to people as a page, to programs as the API does.
fn refuse(headers: &HeaderMap, problem: Problem) -> Response {
    if !wants_html(headers) {
        return problem.into_response();
    }
    let (status, title, detail) = problem.parts();
    let page = ProblemPage {
        status: status.as_u16(),
        title,
        detail,
    };
    html(status, &page).unwrap_or_else(IntoResponse::into_response)
}

/// What somebody gets who may not see a page: a browser that has shown no token may show one.
pub(crate) fn turn_away(uri: &Uri, headers: &HeaderMap, problem: Problem) -> Response {
    let is_unknown = problem.parts().0 == StatusCode::UNAUTHORIZED;
    if is_unknown && wants_html(headers) {
        return login::lead_here(uri);
    }
    refuse(headers, problem)
}

/// The parameter of that name, which has to be there.
fn needed<'q>(query: &'q Query<'_>, name: &str) -> Result<&'q str, Problem> {
    query
        .get(name)
        .ok_or_else(|| Problem::malformed(format!("the query parameter {name:?} is missing")))
}

/// The queue that a parameter names. None of the service itself is shown.
fn queue_of(query: &Query<'_>, name: &str) -> Result<QueueName, Problem> {
    let queue = QueueName::from_text(needed(query, name)?)?;
    if queue.namespace() == Namespace::RESERVED {
        return Err(Problem::new(Code::NotFound, "there is no such queue"));
    }
    Ok(queue)
}

/// The timer that `queue` and `key` of a query name.
fn timer_of(query: &Query<'_>) -> Result<TimerName, Problem> {
    Ok(TimerName {
        queue: queue_of(query, "queue")?,
        key: Key::new(needed(query, "key")?)?,
    })
}

/// Whether the last attempt has ended, and what was answered.
fn last_answer(record: &Record) -> &str {
    let last = record.attempts.last();
    let end = last.and_then(|attempt| attempt.ended.as_ref());
    end.map_or("", |end| &end.detail)
}
