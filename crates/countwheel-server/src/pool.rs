//! Connections to targets, each open before a request is made for it.
//!
//! A request says how late it is. The service knows the lateness only when the head is handed to an
//! open connection. A client that takes a whole request and then connects would state too little.
//! So a sender first [takes](Pool::take) a connection, and then makes the request.
//!
//! A connection of HTTP/1.1 is of one request at a time, and idles between them. One of HTTP/2 is shared by those that
//! are under way, as far as its other end takes them, and idles when there is none.

mod many;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::uri::{Authority, Scheme};
use axum::http::{Request, Response, Uri};
use countwheel_durable::Lateness;
use countwheel_time::Clock;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tower_service::Service;

use self::many::Many;
#[cfg(test)]
pub(crate) use self::many::STREAMS_MAX;
use crate::answered::Times;
use crate::egress::EgressProxy;
use crate::guard::{Targets, port_of_url};
use crate::resolver::Resolver;
use crate::resources::endpoint::{Versions, Way};

/// HTTP/2, as TLS names it.
pub(crate) const HTTP2: &[u8] = b"h2";
/// How long others wait for the first to connect to where HTTP/2 is spoken.
const TURN: Duration = Duration::from_secs(1);
/// How long an idle connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);
/// So much is read of an answer, with all that comes before it and what is not needed of its body.
pub(crate) const READ_MAX_BYTES: usize = 256 << 10;

/// A target has sent more than is read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer is too long")]
pub(crate) struct AnswerTooLong;

/// How many headers an answer may have.
pub(crate) const HEADERS_MAX: usize = 256;

/// An answer has more headers than are read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer has too many headers")]
pub(crate) struct TooManyHeaders;

/// A target has refused a request on a connection that was made for it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the request was refused")]
pub(crate) struct Refused;

/// No tunnel was made through a proxy.
#[derive(Debug, thiserror::Error)]
#[error("the proxy made no tunnel")]
pub(crate) struct ProxyFailed(#[source] pub(crate) BoxError);

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
/// A host, and the number of the way to it.
type Target = (Scheme, Authority, u64);

/// How long the phases took of connections that were made.
#[derive(Clone, Default, Debug)]
pub(crate) struct Phases {
    /// From the name to the open connection.
    pub(crate) connect: Lateness,
    /// The handshake of TLS on it.
    pub(crate) tls: Lateness,
}

/// Where a connection goes, and how.
#[derive(Debug)]
pub(crate) struct Going<'a> {
    pub(crate) url: &'a Uri,
    pub(crate) way: &'a Way,
    /// Which addresses may be connected to.
    pub(crate) targets: &'a Targets,
}

/// Makes connections, and keeps those that idle.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    resolver: Resolver,
    targets: Targets,
    tls: Arc<ClientConfig>,
    /// The same without an offer of HTTP/2.
    tls_of_one: Arc<ClientConfig>,
    /// The operator's, for all whose endpoints name none.
    proxy: Option<EgressProxy>,
    clock: Arc<dyn Clock>,
    idle: Arc<Idle>,
    phases: Arc<Mutex<Phases>>,
}

/// An open connection, or a place on one, for one request.
#[derive(Debug)]
pub(crate) struct Connection {
    sending: Sending,
    target: Target,
    /// It was made for another request, so its other end may be about to close it.
    is_reused: bool,
    /// How long it took to make it; nothing of one that is reused.
    times: Times,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    One(Incoming),
    Many(h2::RecvStream),
}

impl AnswerBody {
    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        match self {
            Self::One(body) => loop {
                match body.frame().await?.map(Frame::into_data) {
                    Ok(Ok(bytes)) => return Some(Ok(bytes)),
                    // Headers behind it.
                    Ok(Err(_)) => {}
                    Err(error) => return Some(Err(Box::new(error))),
                }
            },
            Self::Many(body) => {
                let bytes = body.data().await?;
                let bytes = bytes.and_then(|bytes| {
                    body.flow_control().release_capacity(bytes.len())?;
                    Ok(bytes)
                });
                Some(bytes.map_err(Into::into))
            }
        }
    }
}

/// What a request is sent on.
#[derive(Debug)]
enum Sending {
    One(One),
    Many(Place),
}

/// A connection of HTTP/1.1, on which nothing was sent that is not answered.
#[derive(Debug)]
struct One {
    send: SendRequest<Full<Bytes>>,
    /// How much of an answer may still be read.
    left: Arc<AtomicUsize>,
}

/// The place of one request on a connection of HTTP/2.
#[derive(Debug)]
struct Place {
    many: Arc<Many>,
    target: Target,
    idle: Arc<Idle>,
    is_answered: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A connection on which there was no answer in time may be dead.
        if !self.is_answered {
            self.many.retire();
        }
        self.idle.leave(&self.target, &self.many);
    }
}

/// What came of sending a request.
#[derive(Debug)]
pub(crate) enum Sent {
    Answered(Response<AnswerBody>),
    /// The other end had closed the connection: nothing was sent.
    Closed(Request<Full<Bytes>>),
}

#[derive(Debug)]
struct Idle {
    /// How many are kept.
    most: usize,
    state: Mutex<State>,
}

/// A connection without a request.
#[derive(Debug)]
enum Kept {
    One(One),
    Many(Arc<Many>),
}

#[derive(Default, Debug)]
struct State {
    /// Those that idle, the one that has for longest first.
    all: BTreeMap<u64, (Target, Kept, Instant)>,
    targets: HashMap<Target, BTreeSet<u64>>,
    /// Those of HTTP/2 that have requests.
    busy: HashMap<Target, Vec<Arc<Many>>>,
    /// Where HTTP/2 was spoken of late, and whose turn it is to connect there.
    turns: HashMap<Target, Arc<tokio::sync::Mutex<()>>>,
    next: u64,
    is_swept: bool,
}

impl State {
    fn remove(&mut self, number: u64) -> Option<(Kept, Instant)> {
        let (target, kept_for, since) = self.all.remove(&number)?;
        if let Entry::Occupied(mut kept) = self.targets.entry(target) {
            kept.get_mut().remove(&number);
            if kept.get().is_empty() {
                kept.remove();
            }
        }
        Some((kept_for, since))
    }

    /// Forgets where HTTP/2 was spoken and nothing is connected any more.
    fn forget(&mut self) {
        let Self {
            targets,
            busy,
            turns,
            ..
        } = self;
        turns.retain(|target, turn| {
            let is_awaited = Arc::strong_count(turn) > 1;
            is_awaited || busy.contains_key(target) || targets.contains_key(target)
        });
    }
}

impl Pool {
    /// Keeps at most so many idle connections, those that were used last.
    pub(crate) fn new(
        targets: Targets,
        lookups: usize,
        tls: ClientConfig,
        most: usize,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let state = Mutex::default();
        Self {
            resolver: Resolver::new(lookups),
            targets,
            tls: Arc::new(Versions::Auto.offered(tls.clone())),
            tls_of_one: Arc::new(Versions::One.offered(tls)),
            proxy: None,
            clock,
            idle: Arc::new(Idle { most, state }),
            phases: Arc::default(),
        }
    }

    /// Whether no name server answered the last look-up.
    pub(crate) fn is_resolver_silent(&self) -> bool {
        self.resolver.is_silent()
    }

    /// The same through a proxy, for all whose endpoints name none.
    pub(crate) fn through(self, proxy: Option<EgressProxy>) -> Self {
        Self { proxy, ..self }
    }

    /// Whether all leave by a proxy whose endpoints name none.
    pub(crate) const fn is_proxied(&self) -> bool {
        self.proxy.is_some()
    }

    /// The proxy on this way, if there is one.
    pub(crate) fn proxy<'a>(&'a self, way: &'a Way) -> Option<&'a EgressProxy> {
        way.proxy.as_ref().or(self.proxy.as_ref())
    }

    pub(crate) fn phases(&self) -> Arc<Mutex<Phases>> {
        Arc::clone(&self.phases)
    }

    /// Makes connections whose phases are noted in `marks`. If no connection is kept, the addresses of a target are
    /// tried one after the other, so that each attempt that runs has one file open.
    fn connector(&self, resolver: Resolver, marks: &Arc<Marks>) -> HttpConnector<TimedResolver> {
        let resolver = TimedResolver {
            resolver,
            clock: Arc::clone(&self.clock),
            marks: Arc::clone(marks),
        };
        let mut connector = HttpConnector::new_with_resolver(resolver);
        connector.enforce_http(false);
        connector.set_nodelay(true);
        if self.idle.most == 0 {
            connector.set_happy_eyeballs_timeout(None);
        }
        connector
    }

    /// A stream to the host of a URL, with TLS where the URL says so.
    async fn connect(&self, going: &Going<'_>, marks: &Arc<Marks>) -> Result<Stream, BoxError> {
        let &Going { url, way, targets } = going;
        let of_all = match way.versions {
            Versions::Auto => &self.tls,
            Versions::One => &self.tls_of_one,
        };
        let tls = way.tls.as_ref().unwrap_or(of_all);
        let timed = Timed {
            connector: (),
            is_of_proxy: false,
            clock: Arc::clone(&self.clock),
            marks: Arc::clone(marks),
        };
        let Some(proxy) = self.proxy(way) else {
            let resolver = self.resolver.towards(port_of_url(url), targets);
            let timed = timed.around(self.connector(resolver, marks), false);
            let mut connector = HttpsConnector::from((timed, Arc::clone(tls)));
            return connector.call(url.clone()).await;
        };
        let port = port_of_url(proxy.uri());
        let resolver = match &way.proxy {
            // What a caller names is guarded as what it delivers to.
            Some(_) => {
                let refused = |refused| ProxyFailed(Box::new(refused));
                self.targets.check(proxy.uri()).map_err(refused)?;
                self.resolver.towards(port, &self.targets)
            }
            None => self.resolver.anywhere(port),
        };
        let tunnel = Tunnel::new(proxy.uri().clone(), self.connector(resolver, marks));
        let mut connector = HttpsConnector::from((timed.around(tunnel, true), Arc::clone(tls)));
        connector.call(with_port(url)?).await
    }

    /// A connection to the host of a URL: one that has a place or idles, or else a new one.
    pub(crate) async fn take(&self, going: &Going<'_>) -> Result<Connection, BoxError> {
        let Going { url, way, .. } = going;
        let scheme = url.scheme().cloned().unwrap_or(Scheme::HTTP);
        let authority = url.authority().cloned().ok_or("the URL has no host")?;
        let target = (scheme, authority, way.number);
        let reused = |sending, target| Connection {
            sending,
            target,
            is_reused: true,
            times: Times::default(),
        };
        if let Some(sending) = self.idle.take(&target) {
            return Ok(reused(sending, target));
        }
        // Where one connection is for many, the others wait for it.
        let turn = match self.idle.turn(&target) {
            Some(turn) => tokio::time::timeout(TURN, turn.lock_owned()).await.ok(),
            None => None,
        };
        if turn.is_some()
            && let Some(sending) = self.idle.take(&target)
        {
            return Ok(reused(sending, target));
        }
        let marks = Arc::<Marks>::default();
        let has_tls = target.0 == Scheme::HTTPS;
        let began = self.clock.now();
        let phases = Measured {
            phases: &self.phases,
            clock: &*self.clock,
            began,
            connected: &marks.connected,
            has_tls,
        };
        let stream = self.connect(going, &marks).await;
        drop(phases);
        let times = marks.times(began, has_tls.then(|| self.clock.now()));
        let left = Arc::new(AtomicUsize::new(READ_MAX_BYTES));
        let stream = stream?;
        let is_for_many = speaks_http2(&stream);
        let stream = Metered {
            stream: TokioIo::new(stream),
            left: Arc::clone(&left),
        };
        if is_for_many {
            let many = Many::begin(stream).await?;
            let (place, is_reused) = self.idle.share(&target, many);
            return Ok(Connection {
                sending: Sending::Many(place),
                target,
                is_reused,
                times,
            });
        }
        let (send, connection) = http1::Builder::new()
            .max_headers(HEADERS_MAX)
            // More than is ever read: a head that is too long is told from one of too many headers.
            .max_buf_size(2 * READ_MAX_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection to a target ended badly");
            }
        });
        Ok(Connection {
            sending: Sending::One(One { send, left }),
            target,
            is_reused: false,
            times,
        })
    }

    /// Keeps the connection once the answer to its request was read to the end.
    pub(crate) fn keep(&self, connection: Connection) {
        let idle = Arc::clone(&self.idle);
        // A place on one of HTTP/2 is free once it is dropped.
        let Sending::One(mut one) = connection.sending else {
            return;
        };
        tokio::spawn(async move {
            if one.send.ready().await.is_ok() {
                idle.put(connection.target, Kept::One(one));
            }
        });
    }
}

impl Connection {
    /// How long it took to make it, as far as it was made for the next request.
    pub(crate) fn times(&self) -> Times {
        self.times
    }

    /// Sends a request whose URL is of this connection's host.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Sent, BoxError> {
        let one = match &mut self.sending {
            Sending::One(one) => one,
            Sending::Many(place) => {
                let kept = self.is_reused.then(|| request.clone());
                let answer = place.many.send(&self.target.0, request).await?;
                return match (answer, kept) {
                    (Some(answer), _) => {
                        place.is_answered = true;
                        Ok(Sent::Answered(answer.map(AnswerBody::Many)))
                    }
                    (None, Some(request)) => Ok(Sent::Closed(request)),
                    (None, None) => Err(Box::new(Refused)),
                };
            }
        };
        one.left.store(READ_MAX_BYTES, Ordering::Relaxed);
        match one.send.try_send_request(request).await {
            Ok(answer) => Ok(Sent::Answered(answer.map(AnswerBody::One))),
            Err(mut error) => match error.take_message().filter(|_| self.is_reused) {
                Some(request) => Ok(Sent::Closed(request)),
                None if error.error().is_parse_too_large() => Err(Box::new(TooManyHeaders)),
                None => Err(Box::new(error.into_error())),
            },
        }
    }
}

impl Idle {
    fn take(self: &Arc<Self>, target: &Target) -> Option<Sending> {
        let mut state = self.state.lock();
        let mut busy = state.busy.get(target).into_iter().flatten();
        if let Some(many) = busy.find(|many| many.has_room()) {
            return Some(Sending::Many(self.place(target, Arc::clone(many))));
        }
        loop {
            let newest = *state.targets.get(target)?.last()?;
            let (kept, since) = state.remove(newest)?;
            match kept {
                kept if !is_usable(&kept, since) => {}
                Kept::One(one) => return Some(Sending::One(one)),
                Kept::Many(many) => {
                    let busy = state.busy.entry(target.clone()).or_default();
                    busy.push(Arc::clone(&many));
                    return Some(Sending::Many(self.place(target, many)));
                }
            }
        }
    }

    /// A place on a connection of HTTP/2. For those who have the lock.
    fn place(self: &Arc<Self>, target: &Target, many: Arc<Many>) -> Place {
        many.enter();
        Place {
            many,
            target: target.clone(),
            idle: Arc::clone(self),
            is_answered: false,
        }
    }

    /// Who connects to the target may wait for, if one connection there is for many requests.
    fn turn(&self, target: &Target) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.state.lock().turns.get(target).cloned()
    }

    /// A place on a new connection, unless there is one on another by now. Whether it is on another.
    fn share(self: &Arc<Self>, target: &Target, new: Arc<Many>) -> (Place, bool) {
        let mut state = self.state.lock();
        state.turns.entry(target.clone()).or_default();
        self.sweep_from_now_on(&mut state);
        let busy = state.busy.entry(target.clone()).or_default();
        if let Some(other) = busy.iter().find(|other| other.has_room()) {
            return (self.place(target, Arc::clone(other)), true);
        }
        busy.push(Arc::clone(&new));
        (self.place(target, new), false)
    }

    /// A request is through. If it was the only one, the connection idles from now on.
    fn leave(self: &Arc<Self>, target: &Target, many: &Arc<Many>) {
        let mut state = self.state.lock();
        if !many.leave() {
            return;
        }
        if let Entry::Occupied(mut busy) = state.busy.entry(target.clone()) {
            busy.get_mut().retain(|other| !Arc::ptr_eq(other, many));
            if busy.get().is_empty() {
                busy.remove();
            }
        }
        drop(state);
        if many.is_usable() {
            self.put(target.clone(), Kept::Many(Arc::clone(many)));
        }
    }

    fn put(self: &Arc<Self>, target: Target, kept: Kept) {
        if self.most == 0 {
            return;
        }
        let mut state = self.state.lock();
        while state.all.len() >= self.most
            && let Some(oldest) = state.all.keys().next().copied()
        {
            state.remove(oldest);
        }
        state.next += 1;
        let number = state.next;
        state
            .targets
            .entry(target.clone())
            .or_default()
            .insert(number);
        state.all.insert(number, (target, kept, Instant::now()));
        self.sweep_from_now_on(&mut state);
    }

    fn sweep_from_now_on(self: &Arc<Self>, state: &mut State) {
        // What is dropped with the runtime is swept by nobody.
        if let Ok(runtime) = Handle::try_current()
            && !std::mem::replace(&mut state.is_swept, true)
        {
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes what has idled for too long. `false` if nothing idles any more.
    fn sweep(&self) -> bool {
        let mut state = self.state.lock();
        let idle = state.all.iter();
        let over = idle.filter(|(_, (_, kept, since))| !is_usable(kept, *since));
        let over: Vec<_> = over.map(|(number, _)| *number).collect();
        for number in over {
            state.remove(number);
        }
        state.forget();
        state.is_swept = !(state.all.is_empty() && state.turns.is_empty());
        state.is_swept
    }
}

/// Closes what idles for too long, until nothing does.
async fn sweep(idle: Weak<Idle>) {
    loop {
        tokio::time::sleep(IDLE / 6).await;
        if !idle.upgrade().is_some_and(|idle| idle.sweep()) {
            return;
        }
    }
}

fn is_usable(kept: &Kept, since: Instant) -> bool {
    let is_open = match kept {
        Kept::One(one) => !one.send.is_closed(),
        Kept::Many(many) => many.takes_any(),
    };
    is_open && since.elapsed() < IDLE
}

/// Whether both ends have agreed on HTTP/2 in TLS.
fn speaks_http2(stream: &Stream) -> bool {
    match stream {
        MaybeHttpsStream::Http(_) => false,
        MaybeHttpsStream::Https(stream) => {
            let (_, tls) = stream.inner().get_ref();
            tls.alpn_protocol() == Some(HTTP2)
        }
    }
}

/// How long the phases of a connection take, noted when it is made, or is not.
struct Measured<'a> {
    phases: &'a Mutex<Phases>,
    clock: &'a dyn Clock,
    began: countwheel_time::Instant,
    connected: &'a OnceLock<countwheel_time::Instant>,
    has_tls: bool,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        let Some(connected) = self.connected.get().copied() else {
            return;
        };
        let mut phases = self.phases.lock();
        phases
            .connect
            .record(connected.saturating_since(self.began));
        if self.has_tls {
            phases
                .tls
                .record(self.clock.now().saturating_since(connected));
        }
    }
}

/// A stream of which so much is read for an answer and no more: a target can send interim answers, or
/// headers, for as long as an attempt may take.
struct Metered<S> {
    stream: S,
    left: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Ready(Err(io::Error::other(AnswerTooLong)));
        }
        let read = if buffer.remaining() <= left {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            buffer.filled().len() - before
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
            let read = part.filled().len();
            buffer.advance(read);
            read
        };
        // More may have been added meanwhile.
        let less = |left: usize| Some(left.saturating_sub(read));
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .map_or_else(drop, drop);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// When the phases of a connection came to their ends.
#[derive(Default)]
struct Marks {
    resolved: OnceLock<countwheel_time::Instant>,
    connected: OnceLock<countwheel_time::Instant>,
}

impl Marks {
    /// How long each took of a connection that was begun at a time, and over whose handshake of TLS it was
    /// at another.
    fn times(
        &self,
        began: countwheel_time::Instant,
        secured: Option<countwheel_time::Instant>,
    ) -> Times {
        let (resolved, connected) = (self.resolved.get().copied(), self.connected.get().copied());
        let since = |from| move |to: countwheel_time::Instant| to.saturating_since(from);
        Times {
            resolve: resolved.map(since(began)),
            connect: connected.map(since(resolved.unwrap_or(began))),
            tls: connected.and_then(|connected| secured.map(since(connected))),
            first_byte: Duration::ZERO,
        }
    }
}

/// A resolver that notes when it has found the addresses of a name.
#[derive(Clone)]
struct TimedResolver {
    resolver: Resolver,
    clock: Arc<dyn Clock>,
    marks: Arc<Marks>,
}

impl Service<Name> for TimedResolver {
    type Response = <Resolver as Service<Name>>::Response;
    type Error = <Resolver as Service<Name>>::Error;
    type Future = <Resolver as Service<Name>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.resolver.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.resolver.call(name);
        let (clock, marks) = (Arc::clone(&self.clock), Arc::clone(&self.marks));
        Box::pin(async move {
            let addresses = resolving.await?;
            marks.resolved.get_or_init(|| clock.now());
            Ok(addresses)
        })
    }
}

/// The URL with its port, also if that is the usual one: a tunnel has no usual one.
fn with_port(url: &Uri) -> Result<Uri, BoxError> {
    let host = url.host().ok_or("the URL has no host")?;
    let scheme = url.scheme_str().unwrap_or("http");
    let uri = format!("{scheme}://{host}:{}/", port_of_url(url)).parse();
    Ok(uri?)
}

/// A connector that notes when it has connected, to a target or through a proxy.
#[derive(Clone)]
struct Timed<C> {
    connector: C,
    is_of_proxy: bool,
    clock: Arc<dyn Clock>,
    marks: Arc<Marks>,
}

impl<C> Timed<C> {
    fn around<D>(self, connector: D, is_of_proxy: bool) -> Timed<D> {
        Timed {
            connector,
            is_of_proxy,
            clock: self.clock,
            marks: self.marks,
        }
    }
}

impl<C> Service<Uri> for Timed<C>
where
    C: Service<Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connecting = self.connector.call(url);
        let (clock, marks) = (Arc::clone(&self.clock), Arc::clone(&self.marks));
        let is_of_proxy = self.is_of_proxy;
        Box::pin(async move {
            let failed = |error: C::Error| -> BoxError {
                let error = error.into();
                if is_of_proxy {
                    Box::new(ProxyFailed(error))
                } else {
                    error
                }
            };
            let stream = connecting.await.map_err(failed)?;
            marks.connected.get_or_init(|| clock.now());
            Ok(stream)
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::uri::PathAndQuery;
    use tokio::io::DuplexStream;

    use super::*;

    fn target(number: usize) -> Target {
        let authority = format!("target-{number}.example").parse();
        (Scheme::HTTP, authority.expect("a host"), 0)
    }

    fn idle(most: usize) -> Arc<Idle> {
        let state = Mutex::default();
        Arc::new(Idle { most, state })
    }

    /// A connection and its other end.
    async fn connection() -> (Kept, DuplexStream) {
        let (near, far) = tokio::io::duplex(1_024);
        let (send, connection) = http1::handshake(TokioIo::new(near)).await.expect("open");
        tokio::spawn(connection);
        let left = Arc::default();
        (Kept::One(One { send, left }), far)
    }

    /// How many idle, and to how many targets.
    fn kept(idle: &Idle) -> (usize, usize) {
        let state = idle.state.lock();
        (state.all.len(), state.targets.len())
    }

    #[tokio::test(start_paused = true)]
    async fn what_idles_for_too_long_is_closed_and_then_nothing_sweeps() {
        let idle = idle(10);
        let mut others = Vec::new();
        for number in 0..3 {
            let (sending, far) = connection().await;
            others.push(far);
            idle.put(target(number), sending);
            tokio::time::sleep(IDLE / 3).await;
        }
        assert_eq!(kept(&idle), (3, 3));
        tokio::time::sleep(IDLE / 3).await;
        assert!(kept(&idle).0 < 3);
        assert!(idle.take(&target(0)).is_none() && idle.take(&target(2)).is_some());
        tokio::time::sleep(2 * IDLE).await;
        assert_eq!(kept(&idle), (0, 0));
        assert!(!idle.state.lock().is_swept);
    }

    /// Sixteen targets had places, and the others none.
    #[tokio::test(start_paused = true)]
    async fn every_target_is_kept_connected_as_far_as_there_is_room_for_all() {
        let idle = idle(100);
        let mut others = Vec::new();
        for number in 0..150 {
            let (sending, far) = connection().await;
            others.push(far);
            idle.put(target(number), sending);
        }
        assert_eq!(kept(&idle), (100, 100));
        assert!(idle.take(&target(49)).is_none() && idle.take(&target(50)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_and_the_newest_is_taken_and_what_was_closed_is_neither() {
        let idle = idle(2);
        let mut others = Vec::new();
        for _ in 0..3 {
            let (sending, far) = connection().await;
            others.push(far);
            idle.put(target(0), sending);
        }
        assert_eq!(kept(&idle), (2, 1));
        drop(others.pop());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(idle.take(&target(1)).is_none());
        let taken = idle.take(&target(0)).expect("the second");
        assert!(matches!(taken, Sending::One(one) if !one.send.is_closed()));
        assert_eq!(kept(&idle), (0, 0), "the third was closed by its other end");
    }

    /// The request comes back, and goes to another connection.
    #[tokio::test(start_paused = true)]
    async fn what_was_not_sent_comes_back_from_a_connection_that_was_used_before() {
        for is_reused in [true, false] {
            let (Kept::One(one), far) = connection().await else {
                panic!("HTTP/1.1");
            };
            drop(far);
            let mut connection = Connection {
                sending: Sending::One(one),
                target: target(0),
                is_reused,
                times: Times::default(),
            };
            let mut request = Request::new(Full::new(Bytes::from_static(b"7")));
            *request.uri_mut() = PathAndQuery::from_static("/").into();
            match connection.send(request).await {
                Ok(Sent::Closed(_)) => assert!(is_reused),
                Err(_) => assert!(!is_reused),
                Ok(Sent::Answered(answer)) => panic!("{answer:?}"),
            }
        }
    }
}
