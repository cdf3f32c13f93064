//! Pages of lists, written while they are read.
//!
//! A page can be long, and its caller may read slowly, or not at all. So the service reads and
//! writes a page in pieces, each when the piece before has left: a connection takes the memory of
//! two pieces at the most.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::Record;
use countwheel_durable::store::page::position;
use countwheel_durable::store::{Cursor, Filter, Page};
use hyper::body::{Bytes, Frame};

use super::App;
use super::problem::{Code, Problem};
use super::timers::{TimerBody, View, WholeTimer, cursor};
use crate::job::Job;

/// How many timers are read at a time.
const PIECE: usize = 32;
/// How many timers are read at a time to look for tags.
const TAGGED_PIECE: usize = 256;

/// The page that `filter` asks for, with a length if it is one piece. Once the first has left, what
/// fails can only break it off.
pub(super) async fn answer(
    app: Arc<App>,
    filter: Filter,
    tags: Vec<String>,
    after: Option<Cursor>,
    with_bodies: bool,
) -> Result<Response, Problem> {
    let rest = Rest::of(filter, tags, after, with_bodies);
    let (text, rest) = rest.piece(&app).await?;
    let body = match rest {
        None => Body::from(text),
        Some(rest) => Body::new(Pieces {
            text: Some(text),
            next: Some(Box::pin(rest.take(app))),
        }),
    };
    let json = HeaderValue::from_static("application/json");
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, json)], body).into_response())
}

/// What is still to be read of a page.
struct Rest {
    /// Asks for so many as the page still may have.
    filter: Filter,
    /// Only timers that have all of these. What tags a timer has, its payload says.
    tags: Vec<String>,
    after: Option<Cursor>,
    with_bodies: bool,
    is_begun: bool,
    has_items: bool,
    /// Of all timers that were read.
    payload_bytes: usize,
    /// How many timers were read, whether they have the tags or not.
    looked: usize,
    unreadable: usize,
}

type Piece = Result<(Vec<u8>, Option<Rest>), Problem>;
type Reading = Pin<Box<dyn Future<Output = (Piece, Arc<App>)> + Send>>;

impl Rest {
    fn of(filter: Filter, tags: Vec<String>, after: Option<Cursor>, with_bodies: bool) -> Self {
        Self {
            filter,
            tags,
            after,
            with_bodies,
            is_begun: false,
            has_items: false,
            payload_bytes: 0,
            looked: 0,
            unreadable: 0,
        }
    }

    async fn take(self, app: Arc<App>) -> (Piece, Arc<App>) {
        (self.piece(&app).await, app)
    }

    /// The next piece of the answer, and what is left behind it.
    async fn piece(mut self, app: &App) -> Piece {
        let view = View::of(app).await;
        app.read(move |timers| {
            // Each piece asks each shard.
            let shards = usize::from(timers.shards().count());
            let limit = if self.tags.is_empty() {
                self.filter.limit.min(PIECE.saturating_mul(shards))
            } else {
                TAGGED_PIECE.max(PIECE.saturating_mul(shards))
            };
            let filter = Filter {
                limit,
                ..self.filter.clone()
            };
            let page = timers.page(&filter, self.after);
            let mut page = page.map_err(|error| Problem::from(&error))?;
            let read = page.records.len();
            self.looked += read;
            let bytes = page.records.iter().map(Record::content_bytes);
            self.payload_bytes += bytes.sum::<usize>();
            self.keep_tagged(&mut page, |record| Cursor {
                position: position(record),
                shard: timers.shards().of(&record.name),
            });
            let mut text = self.write(&page, &view).map_err(|error| {
                tracing::error!(%error, "a page could not be written");
                Problem::new(Code::Internal, "the page could not be written")
            })?;
            self.filter.limit -= page.records.len();
            // A page that is short has come to its end, or looked at as much as it may.
            let goes_on = read == limit
                && self.filter.limit > 0
                && self.payload_bytes < Filter::PAGE_MAX_BYTES
                && (self.tags.is_empty() || self.looked < Filter::SCAN_LIMIT);
            let next = page.next;
            if goes_on && next.is_some() {
                self.after = next;
                return Ok((text, Some(self)));
            }
            let next = serde_json::json!(next.map(cursor));
            text.extend_from_slice(format!("],\"next\":{next}").as_bytes());
            if self.unreadable > 0 {
                text.extend_from_slice(format!(",\"unreadable\":{}", self.unreadable).as_bytes());
            }
            text.push(b'}');
            Ok((text, None))
        })
        .await
    }

    /// Leaves out what has not all of the tags. The page ends behind the last timer that the caller has asked for.
    fn keep_tagged(&self, page: &mut Page<Cursor>, cursor: impl Fn(&Record) -> Cursor) {
        if self.tags.is_empty() {
            return;
        }
        page.records
            .retain(|record| Job::has_tags(&record.payload, &self.tags));
        if page.records.len() > self.filter.limit {
            page.records.truncate(self.filter.limit);
            page.next = page.records.last().map(cursor);
        }
    }

    fn write(&mut self, page: &Page<Cursor>, view: &View) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            text.extend_from_slice(b"{\"items\":[");
        }
        for record in &page.records {
            if std::mem::replace(&mut self.has_items, true) {
                text.push(b',');
            }
            match self.with_bodies {
                true => serde_json::to_writer(&mut text, &WholeTimer::of(record, view))?,
                false => serde_json::to_writer(&mut text, &TimerBody::listed(record, view))?,
            }
        }
        self.unreadable += page.unreadable;
        Ok(text)
    }
}

/// A page that is read as it leaves.
struct Pieces {
    text: Option<Vec<u8>>,
    /// Reads the piece behind it. Nothing happens before it is asked for.
    next: Option<Reading>,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(text) = self.text.take() {
            return Poll::Ready(Some(Ok(Frame::data(text.into()))));
        }
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (piece, app) = ready!(next.as_mut().poll(context));
        self.next = None;
        Poll::Ready(Some(match piece {
            Ok((text, rest)) => {
                self.next = rest.map(|rest| Box::pin(rest.take(app)) as _);
                Ok(Frame::data(text.into()))
            }
            Err(problem) => {
                tracing::warn!(?problem, "a page was broken off");
                Err(io::Error::other("the rest of the page cannot be read"))
            }
        }))
    }
}
