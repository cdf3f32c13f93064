//! The page of one queue: its counts, its settings, and its timers in order of due time.

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use countwheel_durable::store::Filter;
use countwheel_durable::{QueueName, Record, RetryPolicy, StateKind};
use countwheel_time::Timestamp;
use serde_json::json;

use super::login::Viewer;
use super::text::{When, count, queue_link, size, timer_link, words};
use super::timer::Fact;
use super::{Frame, answer, last_answer, queue_of};
use crate::api::App;
use crate::api::problem::Problem;
use crate::api::recurrence::show_any_missed;
use crate::api::request::Query;
use crate::api::retry;
use crate::api::timers::{cursor, read_cursor};
use crate::job::TIMEOUT_DEFAULT;
use crate::resources::endpoint::EndpointName;
use crate::resources::queue::Mode;
use crate::time::format_duration;

/// How many timers are on a page.
const SHOWN: usize = 50;

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(&headers, page(&app, viewer, &uri).await)
}

async fn page(app: &App, viewer: Viewer, uri: &Uri) -> Result<QueuePage, Problem> {
    let query = Query::of(uri, &["name", "state", "after"])?;
    let queue = queue_of(&query, "name")?;
    let state = query.read("state", "pending, delivering, done or dead", |text| {
        text.parse::<StateKind>().ok()
    })?;
    let after = query.read("after", "the cursor of the page before", read_cursor)?;
    let now = app.clock.timestamp();
    let frame = Frame::of(app, viewer, now, "", format!("Queue {queue}"));
    let settings = settings(app, &queue).await?;
    app.read(move |timers| {
        let error = |error| Problem::from(&error);
        let by_state = timers
            .queue_overview(&queue)
            .map_err(error)?
            .counts
            .by_state;
        let mut page = QueuePage {
            link: queue_link(&queue),
            name: queue.to_string(),
            states: states(&queue, state, by_state),
            is_all: state.is_none(),
            is_first: after.is_none(),
            settings,
            lines: Vec::new(),
            next: None,
            has_unreadable: false,
            unreadable: String::new(),
            frame,
        };
        let filter = Filter {
            state,
            limit: SHOWN,
            ..Filter::queue(queue)
        };
        let found = timers.page(&filter, after).map_err(error)?;
        page.lines = found.records.iter().map(|one| Line::of(one, now)).collect();
        page.has_unreadable = found.unreadable > 0;
        page.unreadable = size(found.unreadable);
        page.next = found.next.map(|next| {
            let state = state.map_or(String::new(), |state| format!("&state={state}"));
            format!("{}{state}&after={}", page.link, cursor(next))
        });
        Ok(page)
    })
    .await
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    name: String,
    link: String,
    states: Vec<StateFigure>,
    /// Whether timers of all states are listed.
    is_all: bool,
    is_first: bool,
    /// What holds for timers that do not say it themselves. Empty where the token is needed.
    settings: Vec<Fact>,
    lines: Vec<Line>,
    has_unreadable: bool,
    unreadable: String,
    next: Option<String>,
}

/// What holds for the timers of the queue now, its defaults included. An endpoint is named, and its URL is not shown.
async fn settings(app: &App, queue: &QueueName) -> Result<Vec<Fact>, Problem> {
    let known = app.resources().await?;
    let entry = known.queue(queue);
    let set = entry.and_then(|entry| entry.what.as_deref());
    if entry.is_some() && set.is_none() {
        let later = "written by a later version of the program".to_owned();
        return Ok(vec![fact("settings", later)]);
    }
    let set = set.cloned().unwrap_or_default();
    let ceilings = app.catalogue().ceilings();
    let default = |value: &str| format!("{value}, by default");
    let said = |said: Option<String>, otherwise: &str| said.unwrap_or_else(|| default(otherwise));
    let mode = match set.mode {
        Mode::Push => "push",
        Mode::Pull => "pull",
    };
    let mut facts = vec![fact("mode", mode.to_owned())];
    let endpoint = set.endpoint.as_deref();
    let opened = endpoint.and_then(|name| EndpointName::new(name).ok());
    let opened = opened.and_then(|name| {
        let opened = known.endpoint(&name)?.what.as_deref()?;
        Some((name, opened))
    });
    if set.mode == Mode::Push {
        facts.push(fact("endpoint", endpoint.unwrap_or("none").to_owned()));
    }
    if let Some((name, opened)) = &opened {
        let health = app.catalogue().health(name, opened.settings.disabled);
        let failures = count(health.failures.into());
        let state = words(&json!(health.state));
        facts.push(fact(
            "health of the endpoint",
            format!("{state}, failures in a row: {failures}"),
        ));
    }
    // The endpoint goes first.
    let of_endpoint = opened.as_ref().map(|(_, opened)| &opened.settings);
    let policy = of_endpoint.and_then(|it| it.retry.as_ref());
    let policy = policy.or(set.retry.as_ref()).map(retry::show);
    let policy = policy.as_ref().map(words);
    let usual = words(&retry::show(&RetryPolicy::default()));
    facts.push(fact("retry", said(policy, &usual)));
    if set.mode == Mode::Push {
        let timeout = of_endpoint.and_then(|it| it.timeout).or(set.timeout);
        let timeout = ceilings.timeout_of(timeout).map(format_duration);
        let usual = TIMEOUT_DEFAULT.min(ceilings.timeout);
        facts.push(fact("timeout", said(timeout, &format_duration(usual))));
    }
    let missed = set.missed.map(show_any_missed);
    facts.push(fact("if missed", said(missed.as_ref().map(words), "fire")));
    let overlap = set.overlap.map(|overlap| overlap.as_str().to_owned());
    facts.push(fact("overlap", said(overlap, "skip")));
    let concurrency = ceilings.concurrency_of(set.concurrency);
    let concurrency = concurrency.map(|most| count(most.into()));
    facts.push(fact("concurrency", said(concurrency, "no limit")));
    let rate = set.rate.map(|rate| words(&json!(rate)));
    facts.push(fact("rate", said(rate, "no limit")));
    let kept = ceilings.retention_of(&set).unwrap_or_default();
    let done = kept.done.map(format_duration);
    let usual = format_duration(ceilings.keep_done);
    facts.push(fact("done timers are kept", said(done, &usual)));
    let dead = kept.dead.map(format_duration);
    facts.push(fact("dead timers are kept", said(dead, "for good")));
    Ok(facts)
}

fn fact(name: &str, value: String) -> Fact {
    let name = name.to_owned();
    Fact { name, value }
}

/// How many timers of a state there are, and where they are listed.
struct StateFigure {
    name: &'static str,
    count: String,
    link: String,
    is_shown: bool,
}

fn states(queue: &QueueName, shown: Option<StateKind>, by_state: [u64; 4]) -> Vec<StateFigure> {
    let states = StateKind::ALL.into_iter().zip(by_state);
    states
        .map(|(state, number)| StateFigure {
            name: state.as_str(),
            count: count(number),
            link: format!("{}&state={state}", queue_link(queue)),
            is_shown: shown == Some(state),
        })
        .collect()
}

struct Line {
    key: String,
    link: String,
    state: &'static str,
    class: &'static str,
    due: When,
    attempts: String,
    answer: String,
}

impl Line {
    fn of(record: &Record, now: Timestamp) -> Self {
        Self {
            key: record.name.key.to_string(),
            link: timer_link(&record.name),
            state: if is_overdue(record, now) {
                "pending, overdue"
            } else {
                record.state.kind().as_str()
            },
            class: class(record, now),
            due: When::of(record.due, now),
            attempts: count(record.attempt.into()),
            answer: last_answer(record).to_owned(),
        }
    }
}

fn is_overdue(record: &Record, now: Timestamp) -> bool {
    record.state.kind() == StateKind::Pending && record.due < now
}

/// The class that colours the state of a timer.
pub(super) fn class(record: &Record, now: Timestamp) -> &'static str {
    match record.state.kind() {
        StateKind::Pending if is_overdue(record, now) => "bad",
        StateKind::Pending => "dim",
        StateKind::Delivering => "brass",
        StateKind::Done => "ok",
        StateKind::Dead => "bad",
    }
}
