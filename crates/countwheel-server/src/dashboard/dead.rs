//! Dead letters, and their revival.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::store::{Cursor, Filter, Position, Shard};
use countwheel_durable::{
    self as durable, Due, QueueName, Record, Revision, State as TimerState, StateKind, TimerName,
    Timers,
};
use countwheel_time::Timestamp;

use super::login::Viewer;
use super::text::{When, count, encoded, queue_link, size, timer_link, timer_query};
use super::{Frame, answer, last_answer, timer_of, turn_away};
use crate::api::App;
use crate::api::problem::{Code, Problem};
use crate::api::request::Query;
use crate::api::timers::{cursor, read_cursor};

/// How many are on a page.
const SHOWN: usize = 50;
/// How many pages of lists are looked at for a page. Each is bounded in what it looks at itself, so that
/// no commit waits for long.
const LOOKS: usize = 64;
/// The counts of so many queues are such a page as well.
const QUEUES_AT_ONCE: usize = 1_024;

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(&headers, page(&app, viewer, &uri).await)
}

async fn page(app: &App, viewer: Viewer, uri: &Uri) -> Result<DeadPage, Problem> {
    let query = Query::of(uri, &["from", "after", "queue", "key"])?;
    let now = app.clock.timestamp();
    let frame = Frame::of(app, viewer, now, "/dead", "Dead letters");
    let revived = match (query.get("queue"), query.get("key")) {
        (None, None) => None,
        _ => Some(timer_of(&query)?),
    };
    let from = query.get("from").map(QueueName::from_text).transpose()?;
    let after = query.read("after", "the cursor of the page before", read_cursor)?;
    let place = match (from, after) {
        (None, Some(_)) => {
            let detail = "the query parameter \"after\" needs \"from\"";
            return Err(Problem::malformed(detail));
        }
        (from, after) => from.map(|queue| Place { queue, after }),
    };
    app.read(move |timers| {
        let is_first = place.is_none();
        let found = find(timers, place.as_ref(), SHOWN)?;
        let revived = revived.map(|name| Revived::of(timers, &name));
        Ok(DeadPage {
            frame,
            is_first,
            total: total(timers)?,
            next: found.next.as_ref().map(Place::link),
            unreadable: size(found.unreadable),
            has_unreadable: found.unreadable > 0,
            letters: found.letters(now),
            revived: revived.transpose()?,
        })
    })
    .await
}

fn total(timers: &Timers) -> Result<String, Problem> {
    let overview = timers.overview(0).map_err(|error| Problem::from(&error))?;
    Ok(count(overview.totals.of(StateKind::Dead)))
}

#[derive(Template)]
#[template(path = "dead.html")]
struct DeadPage {
    frame: Frame,
    is_first: bool,
    total: String,
    letters: Vec<Letter>,
    has_unreadable: bool,
    unreadable: String,
    next: Option<String>,
    revived: Option<Revived>,
}

/// What became of a timer that was revived a moment ago.
struct Revived {
    queue: String,
    key: String,
    link: String,
    /// Its state now; `None` if it is there no more.
    state: Option<&'static str>,
}

impl Revived {
    fn of(timers: &Timers, name: &TimerName) -> Result<Self, Problem> {
        let record = timers.get(name).map_err(Problem::from)?;
        Ok(Self {
            queue: name.queue.to_string(),
            key: name.key.to_string(),
            link: timer_link(name),
            state: record.map(|record| record.state.kind().as_str()),
        })
    }
}

/// One dead letter.
pub(super) struct Letter {
    pub(super) queue: String,
    pub(super) queue_link: String,
    pub(super) key: String,
    pub(super) link: String,
    pub(super) died: When,
    pub(super) reason: &'static str,
    pub(super) attempts: String,
    pub(super) answer: String,
    /// Where a POST revives it.
    pub(super) revive: String,
}

impl Letter {
    fn of(record: &Record, now: Timestamp) -> Self {
        let (died, reason) = match record.state {
            TimerState::Dead { at, reason, .. } => (at, reason.as_str()),
            _ => (record.due, ""),
        };
        Self {
            queue: record.name.queue.to_string(),
            queue_link: queue_link(&record.name.queue),
            key: record.name.key.to_string(),
            link: timer_link(&record.name),
            died: When::of(died, now),
            reason,
            attempts: count(record.attempt.into()),
            answer: last_answer(record).to_owned(),
            revive: revive_link(&record.name),
        }
    }
}

/// Where a POST revives a timer.
pub(super) fn revive_link(name: &TimerName) -> String {
    format!("/timer/revive?{}", timer_query(name))
}

/// Where a page of dead letters begins: in which queue, and after which of its timers.
pub(super) struct Place {
    queue: QueueName,
    after: Option<Cursor>,
}

impl Place {
    fn link(&self) -> String {
        let from = encoded(self.queue.as_str());
        match self.after {
            None => format!("/dead?from={from}"),
            Some(after) => format!("/dead?from={from}&after={}", cursor(after)),
        }
    }
}

/// A page of dead letters.
#[derive(Default)]
pub(super) struct Found {
    records: Vec<Record>,
    unreadable: usize,
    next: Option<Place>,
}

impl Found {
    pub(super) fn letters(&self, now: Timestamp) -> Vec<Letter> {
        let letters = self.records.iter().map(|record| Letter::of(record, now));
        letters.collect()
    }
}

/// Finds at most `limit` dead letters, queue by queue, from `place` on. Bounded in what it looks at:
/// the page may be empty and say where the next one begins. Blocks.
pub(super) fn find(timers: &Timers, place: Option<&Place>, limit: usize) -> Result<Found, Problem> {
    let mut search = Search {
        timers,
        limit,
        looks: LOOKS,
        found: Found::default(),
    };
    if let Some(Place { queue, after }) = place
        && !search.queue(queue, *after)?
    {
        return Ok(search.found);
    }
    let mut last = place.map(|place| place.queue.clone());
    loop {
        search.looks = search.looks.saturating_sub(1);
        let counts = timers.counts_after(last.as_ref(), QUEUES_AT_ONCE);
        let counts = counts.map_err(|error| Problem::from(&error))?;
        let is_last = counts.len() < QUEUES_AT_ONCE;
        for counts in counts {
            if counts.of(StateKind::Dead) > 0 && !search.queue(&counts.queue, None)? {
                return Ok(search.found);
            }
            last = Some(counts.queue);
        }
        if is_last {
            return Ok(search.found);
        }
        if search.looks == 0 {
            // Behind all that is of this queue.
            let end = Cursor {
                position: Position {
                    due: Timestamp::MAX,
                    revision: Revision(u64::MAX),
                },
                shard: Shard::ONLY,
            };
            search.found.next = last.map(|queue| Place {
                queue,
                after: Some(end),
            });
            return Ok(search.found);
        }
    }
}

/// A search for dead letters.
struct Search<'a> {
    timers: &'a Timers,
    /// How many are wanted.
    limit: usize,
    /// How many more pages of a list are looked at.
    looks: usize,
    found: Found,
}

impl Search<'_> {
    /// Takes what is dead in a queue after `after`. False if the search ends with that.
    fn queue(&mut self, queue: &QueueName, mut after: Option<Cursor>) -> Result<bool, Problem> {
        loop {
            if self.found.records.len() >= self.limit || self.looks == 0 {
                self.found.next = Some(Place {
                    queue: queue.clone(),
                    after,
                });
                return Ok(false);
            }
            self.looks -= 1;
            let filter = Filter {
                state: Some(StateKind::Dead),
                limit: self.limit - self.found.records.len(),
                ..Filter::queue(queue.clone())
            };
            let page = self.timers.page(&filter, after);
            let page = page.map_err(|error| Problem::from(&error))?;
            self.found.records.extend(page.records);
            self.found.unreadable += page.unreadable;
            match page.next {
                None => return Ok(true),
                next => after = next,
            }
        }
    }
}

/// Revives a dead timer, and leads to a page that says so.
pub(super) async fn revive(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
    request: Request<Body>,
) -> Response {
    let checked = viewer.check_form(&app, &headers, request.into_body()).await;
    let revived = match checked.and_then(|()| viewer.still(&app)) {
        Ok(()) => try_revive(&app, &uri).await,
        Err(problem) => Err(problem),
    };
    revived.unwrap_or_else(|problem| turn_away(&uri, &headers, problem))
}

async fn try_revive(app: &App, uri: &Uri) -> Result<Response, Problem> {
    let query = Query::of(uri, &["queue", "key"])?;
    let name = timer_of(&query)?;
    let back = format!("/dead?{}", timer_query(&name));
    let request = durable::Request::Revive {
        name,
        due: Due::In(Duration::ZERO),
    };
    let _moved: durable::Moved = app.ask(request).await?;
    let back = HeaderValue::from_str(&back)
        .map_err(|_| Problem::new(Code::Internal, "no page to go back to"))?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, back)]).into_response())
}
