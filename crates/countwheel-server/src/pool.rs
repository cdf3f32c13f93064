//! Connections to targets, each open before a request is made for it.
//!
//! A request says how late it is. That is known when its head is handed to an open connection, not
//! before; a client that takes a whole request and then connects for it says too little. So whoever
//! sends first [takes](Pool::take) a connection, and then makes the request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::uri::{Authority, Scheme};
use axum::http::{Request, Response, Uri};
use countwheel::Clock;
use countwheel_durable::Lateness;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tokio::time::Instant;
use tower_service::Service;

use crate::resolver::Resolver;

/// How long an idle connection is kept for the next request.
pub(crate) const IDLE: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;
type Sending = SendRequest<Full<Bytes>>;
type Target = (Scheme, Authority);

/// How long the phases took of connections that were made.
#[derive(Clone, Default, Debug)]
pub(crate) struct Phases {
    /// From the name to the open connection.
    pub(crate) connect: Lateness,
    /// The handshake of TLS on it.
    pub(crate) tls: Lateness,
}

/// Makes connections, and keeps those that idle.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    connector: HttpConnector<Resolver>,
    tls: Arc<ClientConfig>,
    clock: Arc<dyn Clock>,
    idle: Arc<Idle>,
    phases: Arc<Mutex<Phases>>,
}

/// An open connection, on which nothing was sent that is not answered.
#[derive(Debug)]
pub(crate) struct Connection {
    sending: Sending,
    target: Target,
    /// It has carried a request before, so its other end may be about to close it.
    is_reused: bool,
}

/// What came of sending a request.
#[derive(Debug)]
pub(crate) enum Sent {
    Answered(Response<Incoming>),
    /// The other end had closed the connection: nothing was sent.
    Closed(Request<Full<Bytes>>),
}

#[derive(Debug)]
struct Idle {
    /// How many are kept for each target.
    most: usize,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    /// The one that has idled for the shortest time is the last.
    targets: HashMap<Target, Vec<(Sending, Instant)>>,
    is_swept: bool,
}

impl Pool {
    /// Keeps at most so many idle connections to each target.
    pub(crate) fn new(
        connector: HttpConnector<Resolver>,
        tls: ClientConfig,
        most: usize,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let state = Mutex::default();
        Self {
            connector,
            tls: Arc::new(tls),
            clock,
            idle: Arc::new(Idle { most, state }),
            phases: Arc::default(),
        }
    }

    pub(crate) fn phases(&self) -> Arc<Mutex<Phases>> {
        Arc::clone(&self.phases)
    }

    /// A connection to the host of `url`: one that idles, or else a new one.
    pub(crate) async fn take(&self, url: &Uri) -> Result<Connection, BoxError> {
        let scheme = url.scheme().cloned().unwrap_or(Scheme::HTTP);
        let authority = url.authority().cloned().ok_or("the URL has no host")?;
        let target = (scheme, authority);
        if let Some(sending) = self.idle.take(&target) {
            return Ok(Connection {
                sending,
                target,
                is_reused: true,
            });
        }
        let connected = Arc::new(OnceLock::new());
        let timed = Timed {
            connector: self.connector.clone(),
            clock: Arc::clone(&self.clock),
            connected: Arc::clone(&connected),
        };
        let began = self.clock.now();
        let mut connector = HttpsConnector::from((timed, Arc::clone(&self.tls)));
        let stream = connector.call(url.clone()).await?;
        let connected = connected.get().copied();
        {
            let mut phases = lock(&self.phases);
            let now = self.clock.now();
            let connected = connected.unwrap_or(now);
            phases.connect.record(connected.saturating_since(began));
            if target.0 == Scheme::HTTPS {
                phases.tls.record(now.saturating_since(connected));
            }
        }
        let (sending, connection) = http1::handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection to a target ended badly");
            }
        });
        Ok(Connection {
            sending,
            target,
            is_reused: false,
        })
    }

    /// Keeps the connection once the answer to its request was read to the end.
    pub(crate) fn keep(&self, mut connection: Connection) {
        let idle = Arc::clone(&self.idle);
        tokio::spawn(async move {
            if connection.sending.ready().await.is_ok() {
                idle.put(connection.target, connection.sending);
            }
        });
    }
}

impl Connection {
    /// Sends a request whose URL is of this connection's host.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Sent, hyper::Error> {
        match self.sending.try_send_request(request).await {
            Ok(answer) => Ok(Sent::Answered(answer)),
            Err(mut error) => match error.take_message().filter(|_| self.is_reused) {
                Some(request) => Ok(Sent::Closed(request)),
                None => Err(error.into_error()),
            },
        }
    }
}

impl Idle {
    fn take(&self, target: &Target) -> Option<Sending> {
        let mut state = lock(&self.state);
        let Entry::Occupied(mut kept) = state.targets.entry(target.clone()) else {
            return None;
        };
        let taken = loop {
            match kept.get_mut().pop() {
                Some((sending, since)) if is_usable(&sending, since) => break Some(sending),
                Some(_) => {}
                None => break None,
            }
        };
        if kept.get().is_empty() {
            kept.remove();
        }
        taken
    }

    fn put(self: &Arc<Self>, target: Target, sending: Sending) {
        if self.most == 0 {
            return;
        }
        let mut state = lock(&self.state);
        let kept = state.targets.entry(target).or_default();
        kept.push((sending, Instant::now()));
        if kept.len() > self.most {
            kept.remove(0);
        }
        if !std::mem::replace(&mut state.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes what has idled for too long. `false` if nothing idles any more.
    fn sweep(&self) -> bool {
        let mut state = lock(&self.state);
        state.targets.retain(|_, kept| {
            kept.retain(|(sending, since)| is_usable(sending, *since));
            !kept.is_empty()
        });
        state.is_swept = !state.targets.is_empty();
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

fn is_usable(sending: &Sending, since: Instant) -> bool {
    !sending.is_closed() && since.elapsed() < IDLE
}

/// A connector that notes when it has connected.
#[derive(Clone)]
struct Timed {
    connector: HttpConnector<Resolver>,
    clock: Arc<dyn Clock>,
    connected: Arc<OnceLock<countwheel::Instant>>,
}

impl Service<Uri> for Timed {
    type Response = <HttpConnector<Resolver> as Service<Uri>>::Response;
    type Error = <HttpConnector<Resolver> as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<Uri>::poll_ready(&mut self.connector, context)
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connecting = self.connector.call(url);
        let (clock, connected) = (Arc::clone(&self.clock), Arc::clone(&self.connected));
        Box::pin(async move {
            let stream = connecting.await?;
            connected.get_or_init(|| clock.now());
            Ok(stream)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use axum::http::uri::PathAndQuery;
    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;

    use super::*;

    fn target(number: usize) -> Target {
        let authority = format!("target-{number}.example").parse();
        (Scheme::HTTP, authority.expect("a host"))
    }

    fn idle(most: usize) -> Arc<Idle> {
        let state = Mutex::default();
        Arc::new(Idle { most, state })
    }

    /// A connection and its other end.
    async fn connection() -> (Sending, DuplexStream) {
        let (near, far) = tokio::io::duplex(1_024);
        let (sending, connection) = http1::handshake(TokioIo::new(near)).await.expect("open");
        tokio::spawn(connection);
        (sending, far)
    }

    /// How many idle, and to how many targets.
    fn kept(idle: &Idle) -> (usize, usize) {
        let state = lock(&idle.state);
        let all = state.targets.values().map(Vec::len);
        (all.sum(), state.targets.len())
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
        assert!(!lock(&idle.state).is_swept);
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
        assert!(!taken.is_closed());
        assert_eq!(kept(&idle), (0, 0), "the third was closed by its other end");
    }

    /// The request comes back, and goes to another connection.
    #[tokio::test(start_paused = true)]
    async fn what_was_not_sent_comes_back_from_a_connection_that_was_used_before() {
        for is_reused in [true, false] {
            let (sending, far) = connection().await;
            drop(far);
            let mut connection = Connection {
                sending,
                target: target(0),
                is_reused,
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
