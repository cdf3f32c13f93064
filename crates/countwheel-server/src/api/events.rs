//! `GET /v1/events`: what commits did, as server-sent events.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::store::{Fence, Shard};
use countwheel_durable::{
    EventKind, EventPosition, Namespace, QueueName, ResumeError, Subject, TimerEvent, TimerName,
};
use hyper::body::Frame;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use super::access::Identity;
use super::described::operations;
use super::problem::{Code, Problem};
use super::reach::{Reach, no_such_namespace};
use super::request::{Query, only};
use super::{App, timers};
use crate::events::{Events, Listening, SIGN_OF_LIFE};
use crate::front::Streaming;
use crate::resources::changed_by;
use crate::resources::namespace::namespace_in;
use crate::time::format_time;

/// A piece of a stream that is handed to its connection has about so many bytes.
pub(crate) const PIECE_BYTES: usize = 16 << 10;
/// So many pieces are kept for other streams.
const PIECES: usize = 64;
/// How many commits a stream looks at before others have their turn.
const COMMITS: usize = 64;
/// How soon a client is to come back, in milliseconds.
const RETRY_MILLIS: u32 = 1_000;
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What a setting is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changed<'a> {
    /// A queue, or all of them.
    Queue(Option<&'a str>),
    Endpoint(&'a str),
}

/// The words of events, as callers see them.
pub(super) const KINDS: [&str; 16] = [
    "set",
    "moved",
    "fired",
    "revived",
    "removed",
    "started",
    "leased",
    "extended",
    "released",
    "attempt_ended",
    "held",
    "missed",
    "done",
    "dead",
    "queue_changed",
    "endpoint_changed",
];

/// The word of an event; `None` of a setting that callers know nothing of.
fn word_of(event: &TimerEvent) -> Option<&'static str> {
    match (&event.subject, event.kind) {
        (Subject::Setting(name, _), _) => match changed_by(name)? {
            Changed::Queue(_) => Some("queue_changed"),
            Changed::Endpoint(_) => Some("endpoint_changed"),
        },
        (Subject::Timer(_), kind) => Some(kind.as_str()),
    }
}

/// Which events a caller wants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Filter {
    namespace: Option<Namespace>,
    queue: Option<QueueName>,
    prefix: Option<String>,
    kinds: Option<Vec<&'static str>>,
}

impl Filter {
    fn wants(&self, event: &TimerEvent) -> Option<&'static str> {
        let is_wanted = match &event.subject {
            Subject::Timer(name) => self.wants_timer(name),
            Subject::Setting(name, _) => self.wants_change(&changed_by(name)?),
        };
        let word = is_wanted.then(|| word_of(event))??;
        let kinds = self.kinds.as_ref();
        kinds
            .is_none_or(|kinds| kinds.contains(&word))
            .then_some(word)
    }

    fn wants_timer(&self, name: &TimerName) -> bool {
        let of_queue = |queue: &QueueName| name.queue == *queue;
        let of_prefix = |prefix: &String| name.key.as_str().starts_with(prefix.as_str());
        self.queue.as_ref().is_none_or(of_queue)
            && self.wants_namespace(&name.queue)
            && self.prefix.as_ref().is_none_or(of_prefix)
    }

    fn has(&self, namespace: &str) -> bool {
        let own = self.namespace.as_ref();
        own.is_none_or(|own| own.as_str() == namespace)
    }

    fn wants_namespace(&self, queue: &QueueName) -> bool {
        self.has(queue.namespace())
    }

    fn wants_change(&self, changed: &Changed<'_>) -> bool {
        if self.prefix.is_some() {
            return false;
        }
        match changed {
            Changed::Endpoint(name) => self.queue.is_none() && self.has(namespace_in(name)),
            Changed::Queue(None) => true,
            Changed::Queue(Some(text)) => {
                let is_it = self
                    .queue
                    .as_ref()
                    .is_none_or(|queue| queue.as_str() == *text);
                let queue = QueueName::from_text(text);
                is_it && queue.is_ok_and(|queue| self.wants_namespace(&queue))
            }
        }
    }
}

/// Behind which event of each shard a stream is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Places {
    store: u64,
    of: BTreeMap<Shard, EventPosition>,
}

impl Places {
    /// `store-shard.term.number_shard.term.number`.
    fn write(&self, text: &mut String) {
        // A text takes all that is written to it.
        write!(text, "{:x}-", self.store).unwrap_or_default();
        for (i, (shard, place)) in self.of.iter().enumerate() {
            let between = if i > 0 { "_" } else { "" };
            let (term, number) = (place.term.0, place.number);
            write!(text, "{between}{}.{term}.{number}", shard.0).unwrap_or_default();
        }
    }

    /// What [`write`](Self::write) wrote; `None` if it wrote no such thing.
    fn read(text: &str) -> Option<Self> {
        let (store, places) = text.split_once('-')?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if store.is_empty() || !store.bytes().all(is_hex) {
            return None;
        }
        let store = u64::from_str_radix(store, 16).ok()?;
        let mut of = BTreeMap::new();
        for place in places.split('_').filter(|_| !places.is_empty()) {
            let is_number = |part: &str| {
                let digits = part.bytes().all(|byte| byte.is_ascii_digit());
                digits && (part == "0" || !part.starts_with('0'))
            };
            if !place.split('.').all(is_number) {
                return None;
            }
            let mut parts = place.split('.');
            let shard = Shard(parts.next()?.parse().ok()?);
            let term = Fence(parts.next()?.parse().ok()?);
            let number = parts.next()?.parse().ok()?;
            let is_first = of.insert(shard, EventPosition { term, number }).is_none();
            if parts.next().is_some() || !is_first {
                return None;
            }
        }
        Some(Self { store, of })
    }
}

/// The data of an event.
#[derive(Serialize)]
struct EventBody<'a> {
    kind: &'static str,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leased_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<&'static str>,
    shard: u16,
    term: u64,
    number: u64,
}

impl<'a> EventBody<'a> {
    fn of(kind: &'static str, event: &'a TimerEvent, shard: Shard, place: EventPosition) -> Self {
        let (mut queue, mut key, mut endpoint, mut removed) = (None, None, None, None);
        match &event.subject {
            Subject::Timer(name) => {
                (queue, key) = (Some(name.queue.as_str()), Some(name.key.as_str()));
            }
            Subject::Setting(name, is_put) => {
                removed = Some(!is_put);
                match changed_by(name) {
                    Some(Changed::Queue(name)) => queue = name,
                    Some(Changed::Endpoint(name)) => endpoint = Some(name),
                    None => {}
                }
            }
        }
        let is_known = event.id.is_some();
        let is_leased = matches!(event.kind, EventKind::Leased | EventKind::Extended);
        let until = format_time(event.due);
        let (due, leased_until) = match (is_known, is_leased) {
            (false, _) => (None, None),
            (true, true) => (None, Some(until)),
            (true, false) => (Some(until), None),
        };
        let state = event.state.map(|state| match is_leased {
            true => timers::LEASED,
            false => state.as_str(),
        });
        Self {
            kind,
            at: format_time(event.at),
            queue,
            key,
            endpoint,
            removed,
            id: event.id.map(|id| id.to_string()),
            revision: is_known.then_some(event.revision.0),
            state,
            due,
            leased_until,
            attempt: is_known.then_some(event.attempt).filter(|&it| it > 0),
            result: event.result.map(countwheel_durable::AttemptResult::as_str),
            late_us: event
                .lateness
                .map(|late| u64::try_from(late.as_micros()).unwrap_or(u64::MAX)),
            detail: Some(event.detail.as_str()).filter(|detail| !detail.is_empty()),
            dead_reason: event.reason.map(countwheel_durable::DeadReason::as_str),
            shard: shard.0,
            term: place.term.0,
            number: place.number,
        }
    }
}

/// What a stream was told from one place to another.
#[derive(Debug)]
struct Piece {
    filter: Filter,
    from: Places,
    to: Places,
    text: Bytes,
    /// How many events are missing in each gap of it.
    gaps: Vec<u64>,
}

/// The last pieces that were written: streams that want the same and are at the same place are told the same.
#[derive(Debug, Default)]
pub(super) struct LastPieces(Mutex<VecDeque<Arc<Piece>>>);

impl LastPieces {
    fn find(&self, filter: &Filter, from: &Places) -> Option<Arc<Piece>> {
        let pieces = self.0.lock();
        let mut pieces = pieces.iter();
        let piece = pieces.find(|piece| piece.from == *from && piece.filter == *filter)?;
        Some(Arc::clone(piece))
    }

    fn keep(&self, piece: Piece) {
        let mut pieces = self.0.lock();
        pieces.push_front(Arc::new(piece));
        pieces.truncate(PIECES);
    }
}

/// A stream, on its way.
struct Stream {
    events: Arc<Events>,
    last: Arc<LastPieces>,
    /// How many events are missing in each gap of the text.
    gaps: Vec<u64>,
    filter: Filter,
    places: Places,
    text: String,
}

impl Stream {
    /// The next piece, empty if there is none. Says whether there may be more.
    fn next(&mut self) -> (Bytes, bool) {
        let is_alike = self.text.is_empty();
        if is_alike && let Some(piece) = self.last.find(&self.filter, &self.places) {
            self.places.clone_from(&piece.to);
            for &missed in &piece.gaps {
                self.events.count_gap(missed);
            }
            return (piece.text.clone(), true);
        }
        let from = is_alike.then(|| self.places.clone());
        let is_more = self.fill();
        let text = Bytes::from(std::mem::take(&mut self.text));
        let gaps = std::mem::take(&mut self.gaps);
        if let Some(from) = from.filter(|_| !text.is_empty()) {
            self.last.keep(Piece {
                filter: self.filter.clone(),
                from,
                to: self.places.clone(),
                text: text.clone(),
                gaps,
            });
        }
        (text, is_more)
    }

    /// Writes what is new, as much as a piece has. Says whether there may be more.
    fn fill(&mut self) -> bool {
        let events = Arc::clone(&self.events);
        let mut is_more = false;
        for (&shard, &end) in &*events.told_to() {
            // Of a shard without a place, nothing is known of what was before.
            let after = self.places.of.get(&shard).copied();
            let after = after.unwrap_or_default();
            let Ok(chunks) = events.log().read_some(shard, Some(after), COMMITS) else {
                // The place is of a log that is gone: this begins anew.
                self.places.of.remove(&shard);
                self.gap(shard, 0);
                is_more = true;
                continue;
            };
            let told = chunks.partition_point(|chunk| chunk.end() <= end);
            is_more |= told == COMMITS;
            for chunk in chunks.into_iter().take(told) {
                if chunk.gap {
                    let before = EventPosition {
                        term: chunk.term,
                        number: chunk.first - 1,
                    };
                    let after = self.places.of.insert(shard, before);
                    // Of another term it is not known how many there were.
                    let after = after.filter(|after| after.term == before.term);
                    let missed =
                        after.map_or(0, |after| before.number.saturating_sub(after.number));
                    self.gap(shard, missed);
                }
                let term = chunk.term;
                for (number, event) in (chunk.first..).zip(chunk.events()) {
                    // One commit may have thousands of events.
                    if self.text.len() >= PIECE_BYTES {
                        return true;
                    }
                    let place = EventPosition { term, number };
                    if let Some(kind) = self.filter.wants(event) {
                        self.places.of.insert(shard, place);
                        let body = EventBody::of(kind, event, shard, place);
                        self.write(kind, &body);
                    }
                }
                self.places.of.insert(shard, chunk.end());
            }
        }
        is_more
    }

    fn gap(&mut self, shard: Shard, missed: u64) {
        self.events.count_gap(missed);
        self.gaps.push(missed);
        #[derive(Serialize)]
        struct Gap {
            shard: u16,
        }
        self.write("gap", &Gap { shard: shard.0 });
    }

    fn write(&mut self, kind: &str, body: &impl Serialize) {
        self.text.push_str("id: ");
        self.places.write(&mut self.text);
        let data = serde_json::to_string(body).unwrap_or_default();
        // A text takes all that is written to it.
        write!(self.text, "\nevent: {kind}\ndata: {data}\n\n").unwrap_or_default();
    }

    /// Says where the stream is, so that whoever comes back after a long time without an event misses none.
    fn sign_of_life(&mut self) {
        self.text.push_str(": \nid: ");
        self.places.write(&mut self.text);
        self.text.push_str("\n\n");
    }

    async fn run(
        mut self,
        listening: Listening,
        send: mpsc::Sender<Bytes>,
        streaming: Option<Streaming>,
        stopping: watch::Receiver<bool>,
    ) {
        let streaming = streaming.as_ref();
        self.tell(listening, send, streaming, stopping).await;
        if streaming.is_some_and(Streaming::is_cut_off) {
            self.events.count_unread();
        }
    }

    async fn tell(
        &mut self,
        mut listening: Listening,
        send: mpsc::Sender<Bytes>,
        streaming: Option<&Streaming>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let rests = || {
            if let Some(streaming) = streaming {
                streaming.rests();
            }
        };
        loop {
            listening.ticks.borrow_and_update();
            let (piece, is_more) = self.next();
            if !piece.is_empty() {
                let sent = if let Ok(room) = send.try_reserve() {
                    if let Some(streaming) = streaming {
                        streaming.goes_on();
                    }
                    room.send(piece);
                    true
                } else {
                    // Its caller has not read what came before, and makes room like any that does not read.
                    tokio::select! {
                        sent = send.send(piece) => sent.is_ok(),
                        _ = stopping.wait_for(|&stops| stops) => false,
                    }
                };
                if !sent {
                    return;
                }
                rests();
            }
            if is_more {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                _ = listening.ticks.changed() => {}
                () = tokio::time::sleep(SIGN_OF_LIFE) => self.sign_of_life(),
                () = send.closed() => return,
                _ = stopping.wait_for(|&stops| stops) => return,
            }
        }
    }
}

/// The pieces of a stream, as a body.
struct Pieces(mpsc::Receiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

pub(super) async fn stream(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let uri = request.uri();
    let query = Query::of(uri, &operations::EVENTS.query_names())?;
    let mut filter = Filter {
        namespace: query.read("namespace", "the name of a namespace", |text| {
            Namespace::new(text).ok()
        })?,
        queue: query.read("queue", "the name of a queue", |text| {
            QueueName::from_text(text).ok()
        })?,
        prefix: query.get("prefix").map(str::to_owned),
        kinds: query.get("kinds").map(kinds).transpose()?,
    };
    let reach = Reach::of(&request);
    let named = filter.namespace.iter().map(Namespace::as_str);
    let mut named = named.chain(filter.queue.iter().map(QueueName::namespace));
    if named.any(|namespace| !reach.has(namespace)) {
        return Err(no_such_namespace());
    }
    if let Reach::Of(own) = reach {
        filter.namespace = Some(own);
    }
    let header = only(request.headers(), &LAST_EVENT_ID)?.filter(|text| !text.is_empty());
    // A browser comes back to the same URL, with the header.
    let after = match header {
        Some(text) => {
            let wrong = "the header last-event-id must be the id of an event";
            Some(Places::read(text).ok_or_else(|| Problem::malformed(wrong))?)
        }
        None => query.read("after", "the id of an event", Places::read)?,
    };
    let Some(events) = app.events() else {
        return Err(Problem::new(Code::NotFound, "this service tells no events"));
    };
    let Some(listening) = events.listen().await else {
        let detail = "too many streams of events are open";
        return Err(Problem::new(Code::Overloaded, detail));
    };
    let mut stream = Stream {
        events: Arc::clone(events),
        last: Arc::clone(app.last_pieces()),
        gaps: Vec::new(),
        filter,
        places: begin(events, &app, after).await?,
        text: format!("retry: {RETRY_MILLIS}\n"),
    };
    stream.sign_of_life();
    let streaming = request.extensions().get::<Streaming>().cloned();
    let asks = request.extensions().get::<Identity>().cloned();
    let stopping = app.stopping();
    let ended = async move {
        match asks {
            Some(asks) => asks.ended(&app).await,
            None => std::future::pending().await,
        }
    };
    Ok(answer(stream, listening, streaming, stopping, ended))
}

/// The answer that goes on as long as its reader reads.
fn answer(
    stream: Stream,
    listening: Listening,
    streaming: Option<Streaming>,
    stopping: watch::Receiver<bool>,
    ended: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let (send, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = stream.run(listening, send, streaming, stopping) => {}
            () = ended => {}
        }
    });
    let of_type = HeaderValue::from_static("text/event-stream");
    let headers = [
        (header::CONTENT_TYPE, of_type),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (StatusCode::OK, headers, Body::new(Pieces(pieces))).into_response()
}

fn kinds(text: &str) -> Result<Vec<&'static str>, Problem> {
    let each = text.split(',');
    let each = each.map(|word| {
        let known = KINDS.iter().find(|known| **known == word);
        known.copied().ok_or_else(|| {
            Problem::malformed(format!(
                "the query parameter \"kinds\" has {word:?}, which is no kind of event"
            ))
        })
    });
    each.collect()
}

/// Where a stream begins that is to go on behind `after`, or with what comes next.
async fn begin(events: &Events, app: &App, after: Option<Places>) -> Result<Places, Problem> {
    let log = events.log();
    let store = log.store();
    let Some(after) = after else {
        let shards = log.shards().into_iter();
        let of = shards.filter_map(|shard| Some((shard, log.end(shard)?)));
        return Ok(Places {
            store,
            of: of.collect(),
        });
    };
    if after.store != store {
        // Of another store: before everything that there is of this one.
        let none = EventPosition::default();
        let of = log.shards().into_iter().map(|shard| (shard, none));
        return Ok(Places {
            store,
            of: of.collect(),
        });
    }
    for (&shard, &place) in &after.of {
        if shard.0 >= app.timers.shards().count() {
            let detail = format!("there is no shard {} as the id of the event says", shard.0);
            return Err(Problem::malformed(detail));
        }
        match events.resume(shard, place).await {
            Ok(()) => {}
            Err(ResumeError::Future(future)) => return Err(Problem::malformed(future.to_string())),
            Err(ResumeError::Unknown(_)) if events.has_others() => {
                let detail = "the owner of a shard of the id cannot be asked just now";
                return Err(Problem::new(Code::ShardUnavailable, detail));
            }
            Err(ResumeError::Unknown(_)) => {
                let detail = format!("shard {} has no such event yet", shard.0);
                return Err(Problem::malformed(detail));
            }
        }
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::routing::get;
    use countwheel_durable::store::{Lease, Ownership};
    use countwheel_durable::{EventLog, EventSink as _, Revision, SettingName, Timestamp};
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::accept::accept;
    use crate::listen::Listener;
    use crate::places::{self, Places as Connections};

    const LEASE: Lease = Lease {
        shard: Shard::ONLY,
        fence: Fence(1),
    };
    /// More than the system keeps for somebody who does not read.
    const MANY: usize = 60_000;

    fn told(log: &EventLog, count: usize) {
        let name = SettingName::new(format!("queue/{}", "x".repeat(50))).unwrap();
        let event = TimerEvent::of_setting(name, true, Timestamp::EPOCH);
        log.committed(LEASE, vec![event; count]);
    }

    /// A log that a shard is told to, and where streams get it from.
    fn events(most: usize) -> (Arc<EventLog>, Arc<Events>) {
        let log = Arc::new(EventLog::new(most, usize::MAX));
        log.opened(&Ownership {
            lease: LEASE,
            store_id: 7,
            last_revision: Revision(0),
            clock: None,
            forgets_done: false,
        });
        let events = Events::new(Arc::clone(&log), 8);
        (log, events)
    }

    fn stream_of(events: &Arc<Events>) -> Stream {
        let first = EventPosition {
            term: LEASE.fence,
            number: 0,
        };
        Stream {
            events: Arc::clone(events),
            last: Arc::default(),
            gaps: Vec::new(),
            filter: Filter::default(),
            places: Places {
                store: 7,
                of: BTreeMap::from([(LEASE.shard, first)]),
            },
            text: String::new(),
        }
    }

    /// A commit of thousands of events was one piece, for each stream.
    #[test]
    fn a_piece_is_no_larger_for_what_a_commit_did() {
        let (log, events) = events(MANY);
        told(&log, 1_000);
        told(&log, 1);
        events.begin_round();
        let mut stream = stream_of(&events);
        let mut number = 0;
        loop {
            let is_more = stream.fill();
            let text = std::mem::take(&mut stream.text);
            assert!(text.len() < PIECE_BYTES + 1_024, "{}", text.len());
            for id in text.lines().filter_map(|line| line.strip_prefix("id: ")) {
                number += 1;
                assert_eq!(id, format!("7-0.1.{number}"));
            }
            if !is_more {
                break;
            }
        }
        assert_eq!(number, 1_001);
    }

    #[test]
    fn streams_that_want_the_same_at_the_same_place_have_one_piece() {
        let (log, events) = events(MANY);
        told(&log, 3);
        events.begin_round();
        // Who comes by now has the same piece as who came before.
        told(&log, 1);
        let mut first = stream_of(&events);
        let mut second = Stream {
            last: Arc::clone(&first.last),
            ..stream_of(&events)
        };
        let mut other = Stream {
            last: Arc::clone(&first.last),
            filter: Filter {
                kinds: Some(vec!["set"]),
                ..Filter::default()
            },
            ..stream_of(&events)
        };
        let (piece, _) = first.next();
        assert_eq!(piece.as_ptr(), second.next().0.as_ptr());
        assert_eq!(first.places, second.places);
        assert!(other.next().0.is_empty());
        assert_eq!(other.places, first.places);
        // There was more, and it is told in the next round.
        assert!(first.next().0.is_empty());
        assert_eq!(first.places.of[&LEASE.shard].number, 3);
        events.begin_round();
        for stream in [&mut first, &mut second] {
            let (piece, _) = stream.next();
            assert!(piece.starts_with(b"id: 7-0.1.4\n"), "{piece:?}");
            assert!(stream.next().0.is_empty());
        }
    }

    #[test]
    fn a_gap_says_how_many_events_of_the_term_are_missing() {
        let (log, events) = events(10);
        let mut stream = stream_of(&events);
        for _ in 0..25 {
            told(&log, 1);
        }
        events.begin_round();
        stream.fill();
        assert!(stream.text.starts_with("id: 7-0.1.15\nevent: gap\n"));
        let figures = events.figures();
        assert_eq!((figures.gaps, figures.missed), (1, 15));
    }

    /// Answers streams of these events to whoever comes.
    async fn serve(events: &Arc<Events>) -> (std::net::SocketAddr, watch::Sender<bool>) {
        let at = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&at, 0, None).unwrap();
        let address = listener.listens().unwrap().at.address().unwrap();
        let (stop, stopped) = watch::channel(false);
        let (for_streams, stopping) = (Arc::clone(events), stopped.clone());
        let route = get(move |request: Request<Body>| {
            let (events, stopping) = (Arc::clone(&for_streams), stopping.clone());
            async move {
                let listening = events.listen().await.unwrap();
                let streaming = request.extensions().get::<Streaming>().cloned();
                answer(
                    stream_of(&events),
                    listening,
                    streaming,
                    stopping,
                    std::future::pending(),
                )
            }
        });
        let router = Router::new().route("/", route);
        let connections = Connections::new(8, places::Limits::default());
        tokio::spawn(accept(
            vec![listener],
            router,
            connections,
            Arc::default(),
            stopped,
        ));
        tokio::spawn(Arc::clone(events).run());
        (address, stop)
    }

    /// Waits until the stream is cut off, which takes about half a minute.
    async fn is_cut_off(events: &Events) {
        while events.open() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let opened = tokio::time::Instant::now();
        while events.open() > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let took = opened.elapsed();
        let expected = Duration::from_secs(28)..Duration::from_secs(61);
        assert!(expected.contains(&took), "{took:?}");
        assert_eq!(events.figures().unread, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_reads_is_cut_off_after_half_a_minute() {
        let (log, events) = events(MANY);
        told(&log, MANY);
        let (address, stop) = serve(&events).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut silent = socket.connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        silent.write_all(request).await.unwrap();
        is_cut_off(&events).await;
        stop.send(true).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_over_http_2_that_nobody_reads_is_cut_off_after_half_a_minute() {
        let (log, events) = events(MANY);
        told(&log, MANY);
        let (address, stop) = serve(&events).await;
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut send = send.ready().await.unwrap();
        let request = Request::get(format!("http://{address}/")).body(()).unwrap();
        let (answer, _) = send.send_request(request, true).unwrap();
        // Its window is never opened again.
        let (_, _body) = answer.await.unwrap().into_parts();
        is_cut_off(&events).await;
        stop.send(true).unwrap();
    }

    #[test]
    fn every_kind_of_a_timer_has_its_word() {
        let of_timers = EventKind::ALL
            .iter()
            .filter(|&&it| it != EventKind::Configured);
        let mut words: Vec<_> = of_timers.map(|kind| kind.as_str()).collect();
        words.extend(["queue_changed", "endpoint_changed"]);
        assert_eq!(words, KINDS);
    }

    #[test]
    fn an_id_reads_as_it_was_written_and_nothing_else_does() {
        for text in ["a1f-0.3.12", "a1f-0.3.12_7.1.0", "0-"] {
            let mut again = String::new();
            Places::read(text).expect(text).write(&mut again);
            assert_eq!(again, text);
        }
        for text in [
            "",
            "-",
            "x-0.1.1",
            "a1f",
            "a1f-0.1",
            "a1f-0.1.2.3",
            "a1f-0.1.2_0.1.3",
            "a1f-0.1.-2",
            "a1f-0.01.2",
            "a1f-99999.1.2",
            "a1f-_",
            "A1F-0.1.2",
            "a1f-0..2",
            "a1f-0.1.+2",
        ] {
            assert_eq!(Places::read(text), None, "{text}");
        }
    }
}
