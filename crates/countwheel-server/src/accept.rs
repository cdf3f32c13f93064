//! Accepts callers' connections, and drives each of them.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Version, header};
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use crate::api::Barred;
use crate::callers::{Caller, Preface, Proxies};
use crate::framing::{HEAD_MAX_BYTES, HEADERS_MAX};
use crate::front::{Coming, Exchange, Front, Going, Streaming};
use crate::leftover::{self, Lingering};
use crate::places::{Place, Places};
use crate::streams::{self, Answerer};

/// How long the head of a request may take, and a connection may idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long a caller may read nothing of an answer that does not fit the system's buffers.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// How long answers may take to leave when the service stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// How many connections the system may keep that were not accepted yet.
const BACKLOG: u32 = 4_096;
/// So much is read at a time before it is known who sends it.
const PREFACE_PIECE: usize = 512;

/// Listens at `address`.
pub(crate) fn listen(address: std::net::SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Answers the connections of `listener` until `stopped` says so, then lets the answers under way
/// leave. Cuts off who does not send or read for half a minute.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    places: Arc<Places>,
    proxies: Arc<Proxies>,
    mut stopped: watch::Receiver<bool>,
) {
    let for_connections = stopped.clone();
    let mut connections = JoinSet::new();
    loop {
        // Before the next one: so there is a file for it.
        let accepted = async {
            places.all_gone().await;
            listener.accept().await
        };
        tokio::pin!(accepted);
        let accepted = loop {
            tokio::select! {
                () = told(&mut stopped) => break None,
                Some(_) = connections.join_next() => {}
                accepted = accepted.as_mut() => break Some(accepted),
            }
        };
        match accepted {
            None => break,
            Some(Ok((stream, peer))) => {
                let peer = peer.ip();
                let is_proxy = proxies.trusts(peer);
                let caller = (!is_proxy).then(|| Caller::from(peer));
                let connection = Connection {
                    peer,
                    proxies: is_proxy.then(|| Arc::clone(&proxies)),
                    router: router.clone(),
                    exchange: Exchange::new(places.take(caller)),
                };
                connections.spawn(connection.run(stream, for_connections.clone()));
            }
            Some(Err(error)) => {
                // Out of descriptors, most likely: some will be free again soon.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, ended).await.is_err() {
        tracing::warn!("some connections were cut off");
    }
}

/// Waits until `stopped` says so, or can never say it again.
pub(crate) async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|&stopped| stopped).await);
}

/// A connection that came.
struct Connection {
    peer: IpAddr,
    /// Those that are trusted, if the peer is one.
    proxies: Option<Arc<Proxies>>,
    router: Router,
    exchange: Arc<Exchange>,
}

impl Connection {
    /// Answers what comes on it. Ends at once when it has to make room.
    async fn run(self, stream: TcpStream, stopped: watch::Receiver<bool>) {
        let exchange = Arc::clone(&self.exchange);
        tokio::select! {
            biased;
            () = exchange.place().told() => {}
            () = self.answer(stream, stopped) => {}
        }
    }

    async fn answer(self, mut stream: TcpStream, mut stopped: watch::Receiver<bool>) {
        // An answer is one packet or a few: send it at once. If that fails, it is only slower.
        stream.set_nodelay(true).unwrap_or_default();
        let mut ahead = Vec::new();
        let mut source = None;
        if let Some(proxies) = &self.proxies {
            let preface = tokio::select! {
                preface = tokio::time::timeout(HEAD_DEADLINE, preface(&mut stream, &mut ahead)) => preface,
                () = told(&mut stopped) => return,
            };
            source = match preface {
                Ok(Ok(source)) => source,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a connection of a proxy ended badly");
                    return;
                }
                Err(_) => return,
            };
            let caller = source.filter(|&source| !proxies.trusts(source));
            self.exchange.place().is_from(caller.map(Caller::from));
        }
        let mut stream = Box::pin(TimeoutStream::new(stream));
        stream
            .as_mut()
            .set_write_timeout_pinned(Some(ANSWER_DEADLINE));
        let stream = Timed {
            stream,
            exchange: Arc::clone(&self.exchange),
        };
        let mut stream = Lingering::new(stream, self.exchange.lingers().clone());
        let exchange = Arc::clone(&self.exchange);
        // Nothing else is made for who sends nothing: there may be thousands of them.
        let first = async move {
            if streams::speaks_http2(&mut stream, &mut ahead).await? {
                return Ok(Some(Spoken::Two(stream, ahead)));
            }
            let mut stream = Front::new(stream, ahead, exchange);
            let passable = std::future::poll_fn(|context| stream.poll_passable(context));
            let has_come = passable.await?;
            io::Result::Ok(has_come.then_some(Spoken::One(stream)))
        };
        let first = tokio::select! {
            first = tokio::time::timeout(HEAD_DEADLINE, first) => first,
            () = told(&mut stopped) => return,
        };
        let Ok(Ok(Some(spoken))) = first else {
            return;
        };
        let source = source.unwrap_or(self.peer);
        let proxies = self.proxies.filter(|proxies| proxies.trusts(source));
        let stream = match spoken {
            Spoken::One(stream) => stream,
            Spoken::Two(stream, ahead) => {
                let answerer = Answerer {
                    source,
                    proxies,
                    router: self.router,
                    exchange: self.exchange,
                };
                return streams::serve(stream, ahead, answerer, stopped).await;
            }
        };
        let service = Answering {
            source,
            proxies,
            router: TowerToHyperService::new(self.router),
            exchange: self.exchange,
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_DEADLINE)
            // Who has sent all and closes that direction still wants the answer.
            .half_close(true)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_MAX_BYTES)
            .max_buf_size(HEAD_MAX_BYTES + HEAD_MAX_BYTES / 4)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = Box::pin(connection);
        let mut stopping = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection ended badly");
                    }
                    return;
                }
                () = told(&mut stopped), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// What a caller speaks, once it has said something.
enum Spoken<S> {
    /// HTTP/1: a whole head has come.
    One(Front<S>),
    /// HTTP/2, with what has come of it.
    Two(S, Vec<u8>),
}

/// A stream on which an answer has to be read in time. While a request is answered as it is read, what the caller sends
/// gives it time as well.
struct Timed {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    exchange: Arc<Exchange>,
}

impl Timed {
    /// Notes that the caller has read nothing for too long.
    fn noted<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled
            && error.kind() == io::ErrorKind::TimedOut
        {
            self.exchange.cut_off();
        }
        polled
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = self.stream.as_mut().poll_read(context, buffer);
        if buffer.filled().len() > before && self.exchange.is_streaming() {
            let timeout = Some(ANSWER_DEADLINE);
            self.stream.as_mut().set_write_timeout_pinned(timeout);
        }
        polled
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = self.stream.as_mut().poll_write(context, bytes);
        self.noted(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream.as_mut().poll_flush(context);
        self.noted(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = self.stream.as_mut().poll_write_vectored(context, pieces);
        self.noted(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Who a proxy says that it connects for, if it says so in a header of the PROXY protocol. What it
/// sent after that is left in `ahead`.
async fn preface(stream: &mut TcpStream, ahead: &mut Vec<u8>) -> io::Result<Option<IpAddr>> {
    loop {
        match Preface::of(ahead) {
            Preface::None if !ahead.is_empty() => return Ok(None),
            Preface::Whole(length, source) => {
                ahead.drain(..length);
                return Ok(source);
            }
            Preface::Broken => return Err(io::ErrorKind::InvalidData.into()),
            Preface::None | Preface::Partial => {}
        }
        let mut piece = [0; PREFACE_PIECE];
        let mut piece = ReadBuf::new(&mut piece);
        let read =
            |context: &mut Context<'_>| Pin::new(&mut *stream).poll_read(context, &mut piece);
        std::future::poll_fn(read).await?;
        if piece.filled().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        ahead.extend_from_slice(piece.filled());
    }
}

/// The router, for one connection.
struct Answering {
    /// Who the connection comes from, as far as its own bytes say.
    source: IpAddr,
    /// Those that are trusted, if the source is one: so each request may be of another caller.
    proxies: Option<Arc<Proxies>>,
    router: TowerToHyperService<Router>,
    exchange: Arc<Exchange>,
}

impl Answering {
    fn place(&self) -> &Place {
        self.exchange.place()
    }

    /// Why the request goes no further than here.
    fn bars(&self, caller: Caller) -> Option<Barred> {
        if self.place().is_reserved() {
            return Some(Barred::NoPlace);
        }
        self.proxies.as_ref()?;
        // Of a proxy that says nothing of its callers, all have its address.
        (!self.place().is_for(caller)).then_some(Barred::NoPlace)
    }

    /// On whose behalf the request is.
    fn caller_of<B>(&self, request: &Request<B>) -> Caller {
        match &self.proxies {
            Some(proxies) => proxies.caller_of(request.headers(), self.source),
            None => self.source.into(),
        }
    }
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if !self.place().works() {
            // Its connection is about to go, and it is not begun.
            return Box::pin(std::future::poll_fn(|_| Poll::Pending));
        }
        let fault = self.exchange.begin();
        let caller = self.caller_of(&request);
        request.extensions_mut().insert(caller);
        let streaming = Streaming::new(Arc::clone(&self.exchange));
        request.extensions_mut().insert(streaming);
        if let Some(barred) = fault.map(Barred::Framing).or_else(|| self.bars(caller)) {
            request.extensions_mut().insert(barred);
        }
        // What else it may expect is refused, and sent along with the rest.
        let waits = request
            .headers()
            .get(header::EXPECT)
            .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let is_old = request.version() == Version::HTTP_10;
        let coming = |body| Body::new(Coming::new(body, Arc::clone(&self.exchange)));
        let (request, leftover) = leftover::watched(request.map(coming));
        let answer = self.router.call(request);
        let exchange = Arc::clone(&self.exchange);
        let is_last = fault.is_some() || exchange.place().is_reserved();
        Box::pin(async move {
            let mut answer = answer.await?;
            // By now its body may have turned out to be in doubt.
            if is_last || exchange.lingers().is_set() {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(header::CONNECTION, close);
                exchange.lingers().set();
            } else {
                if is_old && answer.body().size_hint().exact().is_none() {
                    // HTTP/1.0 has no chunks: only its end says where the body ends.
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(header::CONNECTION, close);
                }
                leftover.read(waits, &mut answer, exchange.lingers()).await;
            }
            Ok(answer.map(|body| Body::new(Going::new(body, exchange))))
        })
    }
}
