//! The page of one queue: its counts, and its timers in order of due time.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use countwheel_durable::store::Filter;
use countwheel_durable::{QueueName, Record, StateKind};
use countwheel_time::Timestamp;

use super::text::{When, count, queue_link, size, timer_link};
use super::{Frame, answer, last_answer, needed};
use crate::api::App;
use crate::api::problem::Problem;
use crate::api::request::Query;
use crate::api::timers::{cursor, read_cursor};

/// How many timers are on a page.
const SHOWN: usize = 50;

pub(super) async fn show(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    answer(&headers, page(&app, &uri).await)
}

async fn page(app: &App, uri: &Uri) -> Result<QueuePage, Problem> {
    let query = Query::of(uri, &["name", "state", "after"])?;
    let queue = QueueName::new(needed(&query, "name")?)?;
    let state = query.read("state", "pending, delivering, done or dead", |text| {
        text.parse::<StateKind>().ok()
    })?;
    let after = query.read("after", "the cursor of the page before", read_cursor)?;
    let now = app.clock.timestamp();
    let frame = Frame::of(app, now, "", format!("Queue {queue}"));
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
            lines: Vec::new(),
            next: None,
            has_unreadable: false,
            unreadable: String::new(),
            frame,
        };
        if page.frame.needs_token {
            return Ok(page);
        }
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
    lines: Vec<Line>,
    has_unreadable: bool,
    unreadable: String,
    next: Option<String>,
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
