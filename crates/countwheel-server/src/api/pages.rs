//! Pages of lists, written while they are read.
//!
//! A page can be long, and its caller may read slowly, or not at all. So the service reads and
//! writes a page in pieces, each when the piece before has left: a connection takes the memory of
//! two pieces at the most, and of the pieces of a page that is short.
//!
//! The head of an answer says where the next page begins. So a page that is not short is read whole before it leaves, as long as
//! the memory that all such pages share has room for its text. Where it has none, the end of the page is looked for before the
//! first piece leaves, the pieces go on up to there, and what they have is read a second time.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use countwheel_durable::Record;
use countwheel_durable::store::page::position;
use countwheel_durable::store::{Cursor, Filter, Page};
use countwheel_durable::{Shards, Timers};
use hyper::body::{Bytes, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use super::problem::{Code, Problem};
use super::reading::{List, Scope};
use super::timers::{View, cursor};
use crate::job::Job;

/// How many timers are read at a time.
const PIECE: usize = 32;
/// How many timers are read at a time to look for tags, at first and later.
const TAGGED_PIECE: usize = 256;
const TAGGED_PIECE_MAX: usize = 512;
/// So many timers of several queues a page looks at for tags. They lie apart on the disk.
const TAGGED_ACROSS_MAX: usize = 2_048;
/// A page is short if its text is no longer than this.
const SHORT_BYTES: usize = 64 << 10;
/// The texts of all pages that are longer, and are read whole before they leave, take so many KiB at the most.
pub(super) const WHOLE_KIB: usize = 32 << 10;

/// The page behind `after`, with a length if it is short. Once the first piece has left, what
/// fails can only break it off.
pub(super) async fn answer(
    app: Arc<App>,
    list: List,
    limit: usize,
    after: Option<Cursor>,
) -> Result<Response, Problem> {
    let list = Arc::new(list);
    let mut rest = Rest::of(Arc::clone(&list), limit, after);
    let mut whole = Whole::default();
    loop {
        let (piece, left) = rest.piece(&app).await?;
        let has_room = whole.take(piece, &app.pages);
        match left {
            Left::Nothing(next) => {
                let next = next.map(|next| list.cursor(&cursor(next)));
                return Ok(list.answer(whole.body(), next.as_deref()));
            }
            Left::Rest(left) => rest = left,
        }
        if !has_room {
            break;
        }
    }
    let rest = rest.with_end(&app).await?;
    let next = rest.end.as_ref().and_then(|end| end.at);
    let next = next.map(|next| list.cursor(&cursor(next)));
    let body = Body::new(Pieces {
        whole,
        next: Some(Box::pin(rest.take(app))),
    });
    Ok(list.answer(body, next.as_deref()))
}

/// What has been read of a page, with its share of the memory for pages that are read whole.
#[derive(Default)]
struct Whole {
    texts: VecDeque<Bytes>,
    bytes: usize,
    /// For what is more than a short page, in KiB. Given back when the last text has left.
    room: Option<OwnedSemaphorePermit>,
}

impl Whole {
    /// Takes another piece. False if no more may be taken: there is no room for all of the pieces.
    fn take(&mut self, text: Vec<u8>, pages: &Arc<Semaphore>) -> bool {
        self.bytes += text.len();
        self.texts.push_back(text.into());
        let wanted = self.bytes.saturating_sub(SHORT_BYTES).div_ceil(1 << 10);
        let held = self
            .room
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(wanted.saturating_sub(held)).unwrap_or(u32::MAX);
        if more == 0 {
            return true;
        }
        let Ok(more) = Arc::clone(pages).try_acquire_many_owned(more) else {
            return false;
        };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        true
    }

    /// The body of a page that is here whole: with a length if it is short.
    fn body(self) -> Body {
        if self.room.is_some() {
            return Body::new(Pieces {
                whole: self,
                next: None,
            });
        }
        let texts: Vec<_> = self.texts.into();
        Body::from(texts.concat())
    }

    fn next(&mut self) -> Option<Bytes> {
        let text = self.texts.pop_front();
        if self.texts.is_empty() {
            self.room = None;
        }
        text
    }
}

/// Where a page ends.
#[derive(Clone, Copy, Debug)]
struct End {
    /// `None`: with the list.
    at: Option<Cursor>,
    /// Whether it ends there because it looks no further, or because something of it is gone since.
    bound: bool,
}

/// What is still to be read of a page.
#[derive(Clone)]
struct Rest {
    list: Arc<List>,
    /// So many timers the page still may have.
    limit: usize,
    after: Option<Cursor>,
    /// If it was looked for.
    end: Option<End>,
    is_begun: bool,
    has_items: bool,
    exact: bool,
    /// Of all timers that were read.
    payload_bytes: usize,
    /// How many timers were read, whether they have the tags or not.
    looked: usize,
    unreadable: usize,
}

/// What is left behind a piece.
enum Left {
    /// The page has ended, and the next begins here.
    Nothing(Option<Cursor>),
    Rest(Rest),
}

type Piece = Result<(Vec<u8>, Left), Problem>;
type Reading = Pin<Box<dyn Future<Output = (Piece, Arc<App>)> + Send>>;

impl Rest {
    fn of(list: Arc<List>, limit: usize, after: Option<Cursor>) -> Self {
        Self {
            list,
            limit,
            after,
            end: None,
            is_begun: false,
            has_items: false,
            exact: true,
            payload_bytes: 0,
            looked: 0,
            unreadable: 0,
        }
    }

    async fn take(self, app: Arc<App>) -> (Piece, Arc<App>) {
        (self.piece(&app).await, app)
    }

    /// Reads on; `None` of the end if more is to be read.
    fn step(&mut self, timers: &Timers) -> Result<(Page<Cursor>, Option<End>), Problem> {
        let tags = &self.list.tags;
        let most = match self.end {
            None => self.limit,
            Some(_) => usize::MAX,
        };
        // Each piece asks each shard.
        let piece = PIECE.saturating_mul(usize::from(timers.shards().count()));
        let asked = match (&self.list.scope, tags.is_empty()) {
            // Each piece of it asks each queue.
            (Scope::All(_), true) => most.min(Filter::SCAN_LIMIT),
            (Scope::Queue(_), true) => most.min(piece),
            (_, false) => TAGGED_PIECE
                .max(self.looked)
                .min(TAGGED_PIECE_MAX)
                .max(piece),
        };
        let (mut page, exact) = self.list.scope.page(timers, asked, self.after)?;
        self.exact &= exact;
        let read = page.records.len();
        self.looked += read;
        let bytes = page.records.iter().map(Record::content_bytes);
        self.payload_bytes += bytes.sum::<usize>();
        self.unreadable += page.unreadable;
        let shards = timers.shards();
        if !tags.is_empty() {
            page.records
                .retain(|record| Job::has_tags(&record.payload, tags));
        }
        if let Some(end) = self.end {
            let Some(at) = end.at else {
                let is_over = page.next.is_none();
                return Ok((page, is_over.then_some(end)));
            };
            let before = page.records.len();
            page.records.retain(|record| place(shards, record) <= at);
            let is_behind = page.records.len() < before;
            let is_over = is_behind || page.next.is_none_or(|next| next >= at);
            self.after = page.next;
            // What is gone since the end was looked for leaves the page short.
            self.limit = self.limit.saturating_sub(page.records.len());
            let end = End {
                bound: self.limit > 0,
                ..end
            };
            return Ok((page, is_over.then_some(end)));
        }
        // The page ends behind the last timer that the caller has asked for.
        if page.records.len() > self.limit {
            page.records.truncate(self.limit);
            page.next = page.records.last().map(|record| place(shards, record));
        }
        self.limit -= page.records.len();
        let looked_most = match self.list.scope {
            Scope::All(_) => TAGGED_ACROSS_MAX,
            Scope::Queue(_) => Filter::SCAN_LIMIT,
        };
        // A page that is short has come to its end, or looked at as much as it may.
        let goes_on = read == asked
            && self.limit > 0
            && self.payload_bytes < Filter::PAGE_MAX_BYTES
            && (tags.is_empty() || self.looked < looked_most);
        self.after = page.next;
        let end = End {
            at: page.next,
            bound: self.limit > 0 && page.next.is_some(),
        };
        Ok((page, (!goes_on || end.at.is_none()).then_some(end)))
    }

    /// The same, which knows where it ends.
    async fn with_end(mut self, app: &App) -> Result<Self, Problem> {
        app.read(move |timers| {
            let mut ahead = self.clone();
            self.end = loop {
                if let (_, Some(end)) = ahead.step(timers)? {
                    break Some(end);
                }
            };
            Ok(self)
        })
        .await
    }

    /// The next piece of the answer, and what is left behind it.
    async fn piece(mut self, app: &App) -> Piece {
        let view = View::of(app).await;
        app.read(move |timers| {
            let (page, end) = self.step(timers)?;
            let mut text = self.write(&page, &view).map_err(|error| {
                tracing::error!(%error, "a page could not be written");
                Problem::new(Code::Internal, "the page could not be written")
            })?;
            let Some(end) = end else {
                self.after = page.next;
                return Ok((text, Left::Rest(self)));
            };
            let next = end.at.map(|next| self.list.cursor(&cursor(next)));
            text.extend_from_slice(b"],");
            let tail = Tail {
                next,
                bound_reached: end.bound,
                unreadable: self.unreadable,
                exact: self.exact,
            };
            tail.write(&mut text);
            Ok((text, Left::Nothing(end.at)))
        })
        .await
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
            self.list.shown.write(&mut text, record, view)?;
        }
        Ok(text)
    }
}

/// What stands behind the items of a page.
pub(super) struct Tail {
    pub(super) next: Option<String>,
    /// Whether the page ends because it looks no further.
    pub(super) bound_reached: bool,
    pub(super) unreadable: usize,
    pub(super) exact: bool,
}

impl Tail {
    /// Writes its members and closes the object.
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        let next = serde_json::json!(self.next);
        text.extend_from_slice(format!("\"next\":{next}").as_bytes());
        if self.bound_reached {
            text.extend_from_slice(b",\"bound_reached\":true");
        }
        if self.unreadable > 0 {
            text.extend_from_slice(format!(",\"unreadable\":{}", self.unreadable).as_bytes());
        }
        if !self.exact {
            text.extend_from_slice(b",\"exact\":false");
        }
        text.push(b'}');
    }
}

/// Where a record stands in a list.
pub(super) fn place(shards: Shards, record: &Record) -> Cursor {
    Cursor {
        position: position(record),
        shard: shards.of(&record.name),
    }
}

/// A page that is read as it leaves.
struct Pieces {
    /// What was read before the head left.
    whole: Whole,
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
        if let Some(text) = self.whole.next() {
            return Poll::Ready(Some(Ok(Frame::data(text))));
        }
        let Some(next) = &mut self.next else {
            return Poll::Ready(None);
        };
        let (piece, app) = ready!(next.as_mut().poll(context));
        self.next = None;
        Poll::Ready(Some(match piece {
            Ok((text, left)) => {
                if let Left::Rest(rest) = left {
                    self.next = Some(Box::pin(rest.take(app)));
                }
                Ok(Frame::data(text.into()))
            }
            Err(problem) => {
                tracing::warn!(?problem, "a page was broken off");
                Err(io::Error::other("the rest of the page cannot be read"))
            }
        }))
    }
}
