//! Callers' connections of HTTP/2.
//!
//! Whoever sends its preface speaks HTTP/2; everything else is HTTP/1, whose requests pass the reader of
//! [`crate::framing`] first. In HTTP/2 the frames say where requests begin and end, and hyper reads them. A stream
//! takes a place as a connection does, so that a caller has no more requests under way by the one than by the other.

use std::collections::BTreeMap;
use std::io::{self, Cursor};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use hyper::Request;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, Chain, Join, ReadBuf, ReadHalf, WriteHalf, join, split,
};
use tokio::sync::{Notify, watch};

use crate::accept::told;
use crate::api::Barred;
use crate::callers::{Caller, Peer, Proxies};
use crate::framing::{Fault, HEAD_MAX_BYTES, HEADERS_MAX};
use crate::front::{Coming, Exchange, Streaming};
use crate::places::Place;

/// What a caller says first that speaks HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So much is read at a time before it is known what is spoken.
const PREFACE_PIECE: usize = 512;
/// How many requests a connection may have under way.
pub(crate) const STREAMS_MAX: u32 = 128;
/// How much of all bodies of a connection may have come that nobody has read, and of each of them. It is not counted
/// as memory for bodies, no more than what the system keeps of a connection.
pub(crate) const WINDOW: u32 = 65_535;
/// How much of an answer waits in front of its reader, beside what is being written.
pub(crate) const SEND_BUFFER: usize = 16 << 10;
/// How many requests may be given up before the service has looked at them.
const UNSEEN_RESETS_MAX: usize = 32;
/// How many mistakes of a caller are answered by the end of a stream rather than of the connection.
const MISTAKES_MAX: usize = 64;
/// From so many requests on that were given up before they were answered, if they are most of them, the connection is
/// cut off.
pub(crate) const GIVEN_UP_MAX: u64 = 256;
/// How often it is looked at who idles or does not read.
const LOOK: Duration = Duration::from_secs(5);
/// For how many looks a caller may have nothing under way, or read nothing of an answer.
const LOOKS_MAX: u64 = 6;

/// Whether a caller speaks HTTP/2. What it has sent is left in `ahead`, also where nothing more comes.
pub(crate) async fn speaks_http2(
    stream: &mut (impl AsyncRead + Unpin),
    ahead: &mut Vec<u8>,
) -> io::Result<bool> {
    loop {
        if ahead.starts_with(PREFACE) {
            return Ok(true);
        }
        if !PREFACE.starts_with(ahead) {
            return Ok(false);
        }
        let mut piece = [0; PREFACE_PIECE];
        let mut piece = ReadBuf::new(&mut piece);
        let read =
            |context: &mut Context<'_>| Pin::new(&mut *stream).poll_read(context, &mut piece);
        std::future::poll_fn(read).await?;
        if piece.filled().is_empty() {
            return Ok(false);
        }
        ahead.extend_from_slice(piece.filled());
    }
}

/// A stream with what came ahead of it.
pub(crate) type Behind<S> = Join<Chain<Cursor<Vec<u8>>, ReadHalf<S>>, WriteHalf<S>>;

/// The stream with what came `ahead` of it.
pub(crate) fn behind<S>(ahead: Vec<u8>, stream: S) -> Behind<S>
where
    S: AsyncRead + AsyncWrite,
{
    let (reading, writing) = split(stream);
    join(Cursor::new(ahead).chain(reading), writing)
}

/// Who calls, and what answers.
pub(crate) struct Answerer {
    pub(crate) peer: Peer,
    /// Those that are trusted, if the peer is one: so each request may be of another caller.
    pub(crate) proxies: Option<Arc<Proxies>>,
    pub(crate) router: Router,
    /// That of the connection.
    pub(crate) exchange: Arc<Exchange>,
}

/// Answers what comes on a connection of HTTP/2 until it ends, or `stopped` says so and what is under way is answered.
/// What came `ahead`, the preface included, was read before.
pub(crate) async fn serve<S>(
    stream: S,
    ahead: Vec<u8>,
    answerer: Answerer,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let streams = Streams::new(Arc::clone(&answerer.exchange));
    let service = Answering {
        peer: answerer.peer,
        proxies: answerer.proxies,
        router: TowerToHyperService::new(answerer.router),
        streams: Arc::clone(&streams),
    };
    let stream = behind(ahead, stream);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_MAX_BYTES).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(MISTAKES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = Box::pin(connection);
    let mut looks = tokio::time::interval(LOOK);
    let mut ending = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection of HTTP/2 ended badly");
                }
                return;
            }
            () = streams.cut.notified() => return,
            () = told(&mut stopped), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => match streams.look() {
                Seen::Busy => {}
                Seen::Idle if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                // It does not take part in the end either.
                Seen::Idle | Seen::Unread => return,
            }
        }
    }
}

/// What the streams of a connection know together.
struct Streams {
    /// That of the connection.
    exchange: Arc<Exchange>,
    /// The connection ends at once.
    cut: Notify,
    /// It ends because an answer was not read for too long.
    is_unread: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: u64,
    /// Requests without a whole answer.
    open: u64,
    /// Requests that ended before their answer was whole.
    given_up: u64,
    /// How often it was looked at them.
    looks: u64,
    /// Since which look there are none.
    idle_since: u64,
    /// Since which look each answer waits for its reader.
    unread: BTreeMap<u64, u64>,
}

/// What a look at the streams of a connection finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Busy,
    /// Nothing has been under way for long.
    Idle,
    /// An answer has not been read for long.
    Unread,
}

impl Streams {
    fn new(exchange: Arc<Exchange>) -> Arc<Self> {
        Arc::new(Self {
            exchange,
            cut: Notify::new(),
            is_unread: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// Begins a request. `None` if the connection is about to end.
    fn begin(self: &Arc<Self>) -> Option<Open> {
        let mut state = self.state.lock();
        if state.given_up >= GIVEN_UP_MAX && state.given_up * 2 > state.begun {
            self.cut.notify_one();
            return None;
        }
        if state.open == 0 && !self.exchange.place().works() {
            return None;
        }
        state.begun += 1;
        state.open += 1;
        Some(Open {
            number: state.begun,
            streams: Arc::clone(self),
            is_whole: false,
        })
    }

    fn look(&self) -> Seen {
        let mut state = self.state.lock();
        state.looks += 1;
        let is_long = |since: u64| state.looks - since > LOOKS_MAX;
        if state.unread.values().copied().any(is_long) {
            self.is_unread.store(true, Ordering::Release);
            Seen::Unread
        } else if state.open == 0 && is_long(state.idle_since) {
            Seen::Idle
        } else {
            Seen::Busy
        }
    }
}

/// A request, until its answer has been handed over or is given up.
struct Open {
    number: u64,
    streams: Arc<Streams>,
    is_whole: bool,
}

impl Open {
    /// A piece of the answer was handed over: the next one is asked for when there is room.
    fn waits(&self) {
        let mut state = self.streams.state.lock();
        let looks = state.looks;
        state.unread.insert(self.number, looks);
    }

    fn works(&self) {
        self.streams.state.lock().unread.remove(&self.number);
    }

    /// Whether the connection ends because answers were not read for too long, and this one waits for its reader.
    fn is_cut_off(&self) -> bool {
        let is_unread = self.streams.is_unread.load(Ordering::Acquire);
        let is_unread = is_unread || self.streams.exchange.is_cut_off();
        is_unread && self.streams.state.lock().unread.contains_key(&self.number)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.streams.state.lock();
        state.unread.remove(&self.number);
        state.given_up += u64::from(!self.is_whole);
        state.open -= 1;
        if state.open == 0 {
            state.idle_since = state.looks;
            self.streams.exchange.place().answered();
        }
    }
}

/// The router, for one connection.
struct Answering {
    peer: Peer,
    proxies: Option<Arc<Proxies>>,
    router: TowerToHyperService<Router>,
    streams: Arc<Streams>,
}

impl Answering {
    /// On whose behalf the request is.
    fn caller_of<B>(&self, request: &Request<B>) -> Caller {
        match &self.proxies {
            Some(proxies) => proxies.caller_of(request.headers(), self.peer.source),
            None => self.peer.source.into(),
        }
    }

    /// Why the request goes no further than here.
    fn bars<B>(&self, request: &Request<B>, place: &Place) -> Option<Barred> {
        let lengths = request.headers().get_all(header::CONTENT_LENGTH);
        if request.method() == Method::CONNECT {
            // A tunnel is nothing that anybody gets here.
            Some(Barred::Framing(Fault::Malformed(
                "what is asked for is a path",
            )))
        } else if lengths.iter().nth(1).is_some() {
            Some(Barred::Framing(Fault::Malformed(
                "content-length is one whole number",
            )))
        } else if request.headers().len() > HEADERS_MAX {
            Some(Barred::Framing(Fault::TooLarge))
        } else {
            let connection = self.streams.exchange.place();
            let has_none = connection.is_reserved() || place.is_reserved();
            has_none.then_some(Barred::NoPlace)
        }
    }
}

/// In HTTP/2 the authority is what the host header is in HTTP/1. A request with both says the same twice, which is
/// looked at where that is.
fn name_host<B>(request: &mut Request<B>) {
    if request.headers().contains_key(header::HOST) {
        return;
    }
    let authority = request.uri().authority();
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response;
    type Error = h2::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, h2::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let Some(open) = self.streams.begin() else {
            // Its connection is about to go, and it is not begun.
            return Box::pin(std::future::pending());
        };
        let caller = self.caller_of(&request);
        let place = self.streams.exchange.place().beside(caller);
        if !place.works() {
            return Box::pin(async { Err(h2::Reason::REFUSED_STREAM.into()) });
        }
        name_host(&mut request);
        if let Some(barred) = self.bars(&request, &place) {
            request.extensions_mut().insert(barred);
        }
        let exchange = Exchange::new(place);
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(self.peer.clone());
        let streaming = Streaming::new(Arc::clone(&exchange));
        request.extensions_mut().insert(streaming);
        let coming = |body| Body::new(Coming::new(body, Arc::clone(&exchange)));
        let answer = self.router.call(request.map(coming));
        Box::pin(async move {
            let answer = tokio::select! {
                biased;
                // It has to make room: its caller has sent nothing for longest.
                () = exchange.place().told() => return Err(h2::Reason::CANCEL.into()),
                answer = answer => answer,
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            Ok(answer.map(|body| {
                Body::new(Leaving {
                    body,
                    rest: Bytes::new(),
                    exchange,
                    open,
                })
            }))
        })
    }
}

/// The body of an answer, in pieces. The next piece is asked for when there is room for it.
struct Leaving {
    body: Body,
    /// What of a frame has not left.
    rest: Bytes,
    exchange: Arc<Exchange>,
    open: Open,
}

impl Leaving {
    fn piece(&mut self) -> Frame<Bytes> {
        let piece = self.rest.split_to(self.rest.len().min(SEND_BUFFER));
        self.open.waits();
        self.exchange.place().waits();
        Frame::data(piece)
    }
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.open.works();
        if !self.exchange.place().works() {
            // It had to make room while nobody read it.
            return Poll::Ready(Some(Err(axum::Error::new(io::Error::from(
                io::ErrorKind::TimedOut,
            )))));
        }
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => {
                    self.rest = data;
                    Poll::Ready(Some(Ok(self.piece())))
                }
                Err(frame) => Poll::Ready(Some(Ok(frame))),
            },
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_empty() {
            self.body.size_hint()
        } else {
            SizeHint::default()
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.open.is_whole = self.is_end_stream();
        if self.open.is_cut_off() {
            self.exchange.cut_off();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::{Limits, Places};

    #[tokio::test]
    async fn only_the_whole_preface_is_http_2() {
        for (sent, speaks) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0"[..], true),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", false),
            (b"PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n", false),
            (b"PUT / HTTP/1.1\r\n", false),
            (b"\r\n", false),
            (b"", false),
        ] {
            let mut ahead = Vec::new();
            let found = speaks_http2(&mut &*sent, &mut ahead).await.unwrap();
            assert_eq!((found, &*ahead), (speaks, sent));
        }
    }

    #[test]
    fn who_idles_or_does_not_read_is_found_after_half_a_minute() {
        let limits = Limits::default();
        let places = Places::new(16, limits);
        let streams = Streams::new(Exchange::new(places.take(None)));
        for _ in 0..LOOKS_MAX {
            assert_eq!(streams.look(), Seen::Busy);
        }
        assert_eq!(streams.look(), Seen::Idle);
        let (first, second) = (streams.begin().unwrap(), streams.begin().unwrap());
        assert_eq!(streams.look(), Seen::Busy);
        first.waits();
        for _ in 0..LOOKS_MAX {
            second.waits();
            assert_eq!(streams.look(), Seen::Busy);
        }
        assert_eq!(streams.look(), Seen::Unread);
        first.works();
        assert_eq!(streams.look(), Seen::Busy);
        drop((first, second));
        assert_eq!(streams.look(), Seen::Busy);
        assert_eq!(streams.state.lock().given_up, 2);
    }

    #[test]
    fn who_gives_up_most_requests_is_cut_off() {
        let places = Places::new(16, Limits::default());
        let streams = Streams::new(Exchange::new(places.take(None)));
        let begin = |is_whole| {
            let mut open = streams.begin()?;
            open.is_whole = is_whole;
            Some(())
        };
        for _ in 0..GIVEN_UP_MAX {
            assert!(begin(true).is_some() && begin(false).is_some());
        }
        // They are not most of them.
        assert!(begin(true).is_some());
        assert!(begin(false).is_some() && begin(false).is_some());
        assert!(begin(true).is_none());
    }
}
