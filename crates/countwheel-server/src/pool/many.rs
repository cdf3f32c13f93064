//! A connection that many requests share at a time: HTTP/2.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, Request, Response, Uri, Version, header};
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

use super::{AnswerTooLong, BoxError, HEADERS_MAX, Metered, READ_MAX_BYTES, TooManyHeaders};

/// How many requests share a connection, if its other end takes as many.
pub(crate) const STREAMS_MAX: usize = 100;
/// So many bytes of a body may come that nobody has read. One that is read no further takes no room of the others: the
/// connection has as much for each.
const WINDOW_BYTES: u32 = 64 << 10;
/// The size of a head, as HTTP/2 counts it, beyond which the library reads no further. What is between this and
/// [`READ_MAX_BYTES`] is refused here, with its reason.
const HEAD_READ_BYTES: u32 = 512 << 10;
/// A connection on which something is awaited and nothing comes is tried so often, and has as long to answer.
const ALIVE: Duration = Duration::from_secs(10);

/// A connection with its requests.
pub(super) struct Many {
    send: SendRequest<Bytes>,
    /// What reads from the connection and writes to it.
    driver: AbortHandle,
    /// How much may still be read.
    left: Arc<AtomicUsize>,
    /// How many requests are on it. Only those who have the lock of the pool change it.
    active: AtomicUsize,
    /// Nothing more is sent on it.
    is_retired: AtomicBool,
}

impl fmt::Debug for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Many")
            .field("active", &self.active)
            .field("is_retired", &self.is_retired)
            .finish_non_exhaustive()
    }
}

impl Many {
    /// Begins HTTP/2 on a stream.
    pub(super) async fn begin<S>(stream: Metered<S>) -> Result<Arc<Self>, h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let left = Arc::clone(&stream.left);
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(STREAMS_MAX)
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES * 100)
            .max_header_list_size(HEAD_READ_BYTES)
            .handshake(stream)
            .await?;
        let pings = connection.ping_pong();
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection to a target ended badly");
            }
        });
        let many = Arc::new(Self {
            send,
            driver: driver.abort_handle(),
            left,
            active: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
        });
        if let Some(pings) = pings {
            tokio::spawn(keep_alive(Arc::downgrade(&many), pings));
        }
        Ok(many)
    }

    /// Whether another request may be sent on it at all.
    pub(super) fn is_usable(&self) -> bool {
        let is_over = self.is_retired.load(Ordering::Relaxed) || self.driver.is_finished();
        // A handle of its own never waits. It fails once the other end goes away.
        let mut send = self.send.clone();
        let ready = send.poll_ready(&mut Context::from_waker(Waker::noop()));
        !is_over && matches!(ready, Poll::Ready(Ok(())))
    }

    /// Whether its other end takes a request at all: it may allow none for now.
    pub(super) fn takes_any(&self) -> bool {
        self.is_usable() && self.send.current_max_send_streams() > 0
    }

    /// Whether another request may be sent on it now.
    pub(super) fn has_room(&self) -> bool {
        let takes = self.send.current_max_send_streams().min(STREAMS_MAX);
        self.is_usable() && self.active.load(Ordering::Relaxed) < takes
    }

    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// One request more is on it, and so much more is read. What was not read for those before is nobody's.
    pub(super) fn enter(&self) {
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        let most = READ_MAX_BYTES * (active + 1);
        let more = |left: usize| Some(left.saturating_add(READ_MAX_BYTES).min(most));
        // It always gives some, so it never fails.
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_or_else(drop, drop);
    }

    /// One request less is on it. Whether it was the last.
    pub(super) fn leave(&self) -> bool {
        self.active.fetch_sub(1, Ordering::Relaxed) <= 1
    }

    /// Sends a request, up to the head of the answer. `None` if the other end has not looked at it, and may be asked
    /// on another connection.
    pub(super) async fn send(
        &self,
        scheme: &Scheme,
        request: Request<Full<Bytes>>,
    ) -> Result<Option<Response<RecvStream>>, BoxError> {
        let (head, body) = absolute(scheme, request)?.into_parts();
        let body = body.collect().await;
        let body = body.unwrap_or_else(|never: Infallible| match never {});
        let body = body.to_bytes();
        let mut head = Request::from_parts(head, ());
        if !body.is_empty() {
            let headers = head.headers_mut();
            headers.insert(header::CONTENT_LENGTH, body.len().into());
        }
        let begun = self.send.clone().send_request(head, body.is_empty());
        let (mut answer, stream) = match begun {
            Ok(begun) => begun,
            // The connection is over, and nothing was sent on it.
            Err(error) if error.is_go_away() || error.is_io() => return Ok(None),
            Err(error) => return Err(Box::new(error)),
        };
        let answer = {
            let sending = send_body(stream, body);
            tokio::pin!(sending);
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                // Why the body was not taken, the answer says.
                _ = &mut sending => answer.await,
            }
        };
        match answer {
            Ok(answer) if size_of(answer.headers()) > READ_MAX_BYTES => {
                Err(Box::new(AnswerTooLong))
            }
            Ok(answer) if answer.headers().len() > HEADERS_MAX => Err(Box::new(TooManyHeaders)),
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_unprocessed(&error) => Ok(None),
            Err(_) if self.left.load(Ordering::Relaxed) == 0 => Err(Box::new(AnswerTooLong)),
            Err(error) => Err(Box::new(error)),
        }
    }
}

/// Sends a body as far as the other end takes it.
async fn send_body(mut stream: SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(room) = room.transpose()? else {
            break;
        };
        let piece = body.split_to(room.min(body.len()));
        stream.send_data(piece, body.is_empty())?;
    }
    Ok(())
}

/// Ends a connection that does not answer a ping while an answer is awaited.
async fn keep_alive(many: Weak<Many>, mut pings: PingPong) {
    let mut before = None;
    loop {
        tokio::time::sleep(ALIVE).await;
        let Some(many) = many.upgrade() else {
            return;
        };
        let left = many.left.load(Ordering::Relaxed);
        let is_still = before.replace(left) == Some(left);
        let is_awaited = many.active.load(Ordering::Relaxed) > 0;
        let driver = many.driver.clone();
        drop(many);
        if driver.is_finished() {
            return;
        }
        if is_still && is_awaited {
            let answered = tokio::time::timeout(ALIVE, pings.ping(Ping::opaque())).await;
            if answered.is_err() {
                driver.abort();
            }
        }
    }
}

/// The request as HTTP/2 has it: what HTTP/1.1 says in `host` is a part of its URL.
fn absolute(
    scheme: &Scheme,
    mut request: Request<Full<Bytes>>,
) -> Result<Request<Full<Bytes>>, BoxError> {
    let host = request.headers_mut().remove(header::HOST);
    let host = host.ok_or("the request has no host")?;
    let path = request.uri().path_and_query().cloned();
    let uri = Uri::builder()
        .scheme(scheme.clone())
        .authority(Authority::try_from(host.as_bytes())?)
        .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
        .build()?;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// How long headers would be in HTTP/1.1.
fn size_of(headers: &HeaderMap) -> usize {
    let sizes = headers.iter();
    let sizes = sizes.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    sizes.sum()
}

/// Whether the other end says that it has done nothing for a request: it has refused the stream, or is going away and
/// names an earlier stream as its last. Later streams alone have the second error.
fn is_unprocessed(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_is_read_is_bounded_by_the_requests_on_it() {
        let (near, _far) = tokio::io::duplex(1_024);
        let left = Arc::new(AtomicUsize::new(READ_MAX_BYTES));
        let stream = Metered {
            stream: near,
            left: Arc::clone(&left),
        };
        let many = Many::begin(stream).await.expect("it begins");
        let shares = || left.load(Ordering::Relaxed) / READ_MAX_BYTES;
        for (enters, shares_left) in [(1, 2), (2, 4)] {
            (0..enters).for_each(|_| many.enter());
            assert_eq!(shares(), shares_left);
        }
        assert!(!many.leave() && !many.leave() && many.leave());
        // However many there were before: nothing was read for them.
        many.enter();
        assert_eq!(shares(), 2);
        assert!(many.has_room() && many.is_usable());
        many.retire();
        assert!(!many.has_room() && !many.is_usable());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_given_up_that_does_not_answer_while_something_is_awaited() {
        for is_awaited in [false, true] {
            let (near, _far) = tokio::io::duplex(1_024);
            let stream = Metered {
                stream: near,
                left: Arc::new(AtomicUsize::new(READ_MAX_BYTES)),
            };
            let many = Many::begin(stream).await.expect("it begins");
            if is_awaited {
                many.enter();
            }
            tokio::time::sleep(ALIVE / 2).await;
            assert!(many.is_usable());
            tokio::time::sleep(4 * ALIVE).await;
            assert_eq!(many.is_usable(), !is_awaited);
        }
    }

    #[tokio::test]
    async fn a_connection_ends_once_nobody_has_it() {
        let (near, mut far) = tokio::io::duplex(1_024);
        let stream = Metered {
            stream: near,
            left: Arc::new(AtomicUsize::new(READ_MAX_BYTES)),
        };
        drop(Many::begin(stream).await.expect("it begins"));
        let mut read = Vec::new();
        let read = far.read_to_end(&mut read).await.expect("it ends");
        assert!(read > 0);
    }

    #[test]
    fn what_http_1_says_in_its_head_is_the_url_of_http_2() {
        let request = Request::builder()
            .uri("/hook?a=b")
            .header("host", "hooks.example:8443")
            .header("timer-key", "k")
            .body(Full::default())
            .expect("a request");
        let request = absolute(&Scheme::HTTPS, request).expect("a host");
        assert_eq!(request.uri(), "https://hooks.example:8443/hook?a=b");
        assert!(!request.headers().contains_key("host"));
        assert_eq!(size_of(request.headers()), "timer-key: k\r\n".len());
    }
}
