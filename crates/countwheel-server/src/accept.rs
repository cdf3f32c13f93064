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
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::api::Barred;
use crate::callers::{Caller, Peer, Preface, Proxies, Source};
use crate::framing::{HEAD_MAX_BYTES, HEADERS_MAX};
use crate::front::{Coming, Exchange, Front, Going, Streaming};
use crate::leftover::{self, Lingering};
use crate::listen::{Listener, Stream};
use crate::places::{Place, Places};
use crate::streams::{self, Answerer};
use crate::tls::{Agreed, HANDSHAKE_DEADLINE, Handshake, ServerTls};

/// How long the head of a request may take, and a connection may idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long a caller may read nothing of an answer that does not fit the system's buffers.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// How long answers may take to leave when the service stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// So much is read at a time before it is known who sends it.
const PREFACE_PIECE: usize = 512;

/// Answers the connections of all `listeners` until `stopped` says so, then lets the answers under way
/// leave. Cuts off who does not send or read for half a minute.
pub(crate) async fn accept(
    listeners: Vec<Listener>,
    router: Router,
    places: Arc<Places>,
    proxies: Arc<Proxies>,
    mut stopped: watch::Receiver<bool>,
) {
    let for_connections = stopped.clone();
    let mut connections = JoinSet::new();
    let mut turn = 0;
    loop {
        // Before the next one: so there is a file for it.
        let accepted = async {
            places.all_gone().await;
            next(&listeners, &mut turn).await
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
            Some(Ok((stream, source, tls))) => {
                let is_proxy = proxies.trusts(source);
                let caller = (!is_proxy).then(|| Caller::from(source));
                let connection = Connection {
                    source,
                    tls,
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
    drop(listeners);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, ended).await.is_err() {
        tracing::warn!("some connections were cut off");
    }
}

/// The next connection at any of `listeners`, which have the first look in turns.
async fn next(listeners: &[Listener], turn: &mut usize) -> io::Result<Accepted> {
    std::future::poll_fn(|context| {
        for at in 0..listeners.len() {
            let listener = &listeners[(*turn + at) % listeners.len()];
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                *turn = (*turn + at + 1) % listeners.len();
                let (stream, source) = accepted?;
                return Poll::Ready(Ok((stream, source, listener.tls().cloned())));
            }
        }
        Poll::Pending
    })
    .await
}

/// A connection, who it comes from, and what its caller is shown.
type Accepted = (Stream, Source, Option<Arc<ServerTls>>);

/// Waits until `stopped` says so, or can never say it again.
pub(crate) async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|&stopped| stopped).await);
}

/// A connection that came.
struct Connection {
    source: Source,
    /// What its caller is shown, where TLS is spoken.
    tls: Option<Arc<ServerTls>>,
    /// Those that are trusted, if the source is one.
    proxies: Option<Arc<Proxies>>,
    router: Router,
    exchange: Arc<Exchange>,
}

impl Connection {
    /// Answers what comes on it. Ends at once when it has to make room.
    async fn run(self, stream: Stream, stopped: watch::Receiver<bool>) {
        let exchange = Arc::clone(&self.exchange);
        tokio::select! {
            biased;
            () = exchange.place().told() => {}
            () = self.answer(stream, stopped) => {}
        }
    }

    async fn answer(self, mut stream: Stream, mut stopped: watch::Receiver<bool>) {
        let mut ahead = Vec::new();
        let mut source = self.source;
        if let Some(proxies) = &self.proxies {
            let preface = tokio::select! {
                preface = tokio::time::timeout(HEAD_DEADLINE, preface(&mut stream, &mut ahead)) => preface,
                () = told(&mut stopped) => return,
            };
            let said = match preface {
                Ok(Ok(said)) => said,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a connection of a proxy ended badly");
                    return;
                }
                Err(_) => return,
            };
            let caller = said.filter(|&said| !proxies.trusts(said));
            self.exchange.place().is_from(caller.map(Caller::from));
            source = said.map_or(source, Source::from);
        }
        let mut stream = Box::pin(TimeoutStream::new(stream));
        stream
            .as_mut()
            .set_write_timeout_pinned(Some(ANSWER_DEADLINE));
        let stream = Timed {
            stream,
            exchange: Arc::clone(&self.exchange),
        };
        let (stream, agreed) = match &self.tls {
            None => (Either::Left(stream), None),
            Some(tls) => {
                let stream = streams::behind(std::mem::take(&mut ahead), stream);
                // Apart, so that connections without TLS have no memory for it.
                let shaken = Box::pin(shake_hands(tls, stream, source));
                let shaken = tokio::select! {
                    shaken = shaken => shaken,
                    () = told(&mut stopped) => return,
                };
                let Some((stream, agreed)) = shaken else {
                    return;
                };
                (Either::Right(stream), Some(agreed))
            }
        };
        let is_http2 = agreed.as_ref().map(|agreed| agreed.is_http2);
        let mut stream = Lingering::new(stream, self.exchange.lingers().clone());
        let exchange = Arc::clone(&self.exchange);
        // Nothing else is made for who sends nothing: there may be thousands of them.
        let first = async move {
            // Where ALPN has chosen, nothing else is spoken.
            if is_http2 != Some(false) && streams::speaks_http2(&mut stream, &mut ahead).await? {
                return Ok(Some(Spoken::Two(stream, ahead)));
            }
            if is_http2 == Some(true) {
                return Ok(None);
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
        let proxies = self.proxies.filter(|proxies| proxies.trusts(source));
        let peer = Peer {
            source,
            is_tls: agreed.is_some(),
            counted: Arc::default(),
            certificate: agreed.and_then(|agreed| agreed.names),
        };
        let stream = match spoken {
            Spoken::One(stream) => stream,
            Spoken::Two(stream, ahead) => {
                let answerer = Answerer {
                    peer,
                    proxies,
                    router: self.router,
                    exchange: self.exchange,
                };
                return streams::serve(stream, ahead, answerer, stopped).await;
            }
        };
        let service = Answering {
            peer,
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

/// The handshake of TLS, within its time.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &ServerTls,
    stream: S,
    source: Source,
) -> Option<(Box<TlsStream<S>>, Agreed)> {
    match tokio::time::timeout(HANDSHAKE_DEADLINE, tls.accept(stream)).await {
        Ok(Ok((stream, agreed))) => {
            tls.count(Handshake::Done);
            Some((Box::new(stream), agreed))
        }
        Ok(Err(error)) => {
            tracing::debug!(%source, %error, "a handshake of TLS failed");
            tls.count(Handshake::Failed);
            None
        }
        Err(_) => {
            tracing::debug!(%source, "a handshake of TLS took too long");
            tls.count(Handshake::Late);
            None
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
    stream: Pin<Box<TimeoutStream<Stream>>>,
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
async fn preface(stream: &mut Stream, ahead: &mut Vec<u8>) -> io::Result<Option<IpAddr>> {
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
    peer: Peer,
    /// Those that are trusted, if the peer is one: so each request may be of another caller.
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
            Some(proxies) => proxies.caller_of(request.headers(), self.peer.source),
            None => self.peer.source.into(),
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
        request.extensions_mut().insert(self.peer.clone());
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use axum::Extension;
    use axum::routing::get;
    use rustls::{ClientConnection, StreamOwned};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::listen::At;
    use crate::places::Limits;
    use crate::tls::testing::{Made, trusting};

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    /// Answers with who asks.
    fn serve(listeners: Vec<Listener>, proxies: &[&str]) -> watch::Sender<bool> {
        let peer = |Extension(peer): Extension<Peer>| async move { peer.to_string() };
        let router = Router::new().route("/", get(peer));
        let proxies = proxies.iter().map(|text| text.parse().unwrap()).collect();
        let proxies = Arc::new(Proxies::new(proxies));
        let places = Places::new(64, Limits::default());
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(accept(listeners, router, places, proxies, stopped));
        stop
    }

    fn loopback(tls: Option<&Arc<ServerTls>>) -> (Listener, SocketAddr) {
        let at = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&at, 0, tls.cloned()).unwrap();
        let address = listener.listens().unwrap().at.address().unwrap();
        (listener, address)
    }

    fn body(answer: &[u8]) -> &str {
        let text = std::str::from_utf8(answer).unwrap();
        text.split_once("\r\n\r\n").unwrap().1
    }

    #[tokio::test]
    async fn each_request_has_the_peer_of_its_connection() {
        let directory = tempfile::tempdir().unwrap();
        let at = At::Unix(directory.path().join("api.sock"));
        let socket = Listener::bind(&at, 0o600, None).unwrap();
        let (listener, address) = loopback(None);
        let _stop = serve(vec![socket, listener], &[]);
        let At::Unix(path) = at else { unreachable!() };
        let mut stream = tokio::net::UnixStream::connect(path).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(body(&answer), format!("user {user}"));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(ASK).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(body(&answer), "127.0.0.1");
    }

    #[tokio::test]
    async fn what_a_proxy_says_comes_before_the_handshake() {
        let made = Made::new();
        let tls = Arc::new(made.read_now().unwrap());
        let (listener, address) = loopback(Some(&tls));
        let _stop = serve(vec![listener], &["127.0.0.1/32"]);
        let config = trusting(&made);
        let asked = tokio::task::spawn_blocking(move || {
            let host = "localhost".try_into().unwrap();
            let mut session = ClientConnection::new(config, host).unwrap();
            // In one piece with the hello.
            let mut sent = b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\n".to_vec();
            session.write_tls(&mut sent).unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&sent).unwrap();
            let mut stream = StreamOwned::new(session, stream);
            stream.write_all(ASK).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).map(|_| answer)
        });
        let answer = asked.await.unwrap().unwrap();
        assert_eq!(body(&answer), "192.0.2.1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_does_not_go_on_is_late() {
        let made = Made::new();
        let tls = Arc::new(made.read_now().unwrap());
        let (listener, address) = loopback(Some(&tls));
        let _stop = serve(vec![listener], &[]);
        let hello: &[u8] = &[0x16, 3, 1, 1, 0, 1];
        for (number, sent) in [b"", hello].into_iter().enumerate() {
            let began = tokio::time::Instant::now();
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(sent).await.unwrap();
            let mut answer = Vec::new();
            // With bytes that nobody has read, it is reset.
            let _ended = stream.read_to_end(&mut answer).await;
            let took = began.elapsed();
            assert!(
                HANDSHAKE_DEADLINE <= took && took < HEAD_DEADLINE,
                "{took:?}"
            );
            let late = u64::try_from(number + 1).unwrap();
            assert_eq!(tls.figures().handshakes[2], ("late", late));
        }
    }
}
