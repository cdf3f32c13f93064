//! A connection that many requests share at a time: HTTP/2.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderMap, Request, Response, Uri, Version, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{AnswerTooLong, BoxError, HEADERS_MAX, Metered, READ_MAX_BYTES, TooManyHeaders};

/// How many requests share a connection, if its other end takes as many.
const STREAMS_MAX: usize = 100;
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
    send: SendRequest<Full<Bytes>>,
    /// How many requests its other end takes at a time.
    takes: Box<dyn Fn() -> usize + Send + Sync>,
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
    pub(super) async fn begin<S>(stream: Metered<S>) -> Result<Self, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let left = Arc::clone(&stream.left);
        let (send, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_max_send_streams(STREAMS_MAX)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES * 100)
            .max_header_list_size(HEAD_READ_BYTES)
            .keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE)
            .handshake(TokioIo::new(stream))
            .await?;
        let connection = Arc::new(Mutex::new(Some(connection)));
        let driven = Arc::clone(&connection);
        tokio::spawn(async move {
            let ended = std::future::poll_fn(|context| {
                let mut driven = driven.lock();
                let Some(connection) = driven.as_mut() else {
                    return Poll::Ready(Ok(()));
                };
                let ended = ready!(Pin::new(connection).poll(context));
                // What waits to be sent comes back once this is gone.
                *driven = None;
                Poll::Ready(ended)
            });
            if let Err(error) = ended.await {
                tracing::trace!(%error, "a connection to a target ended badly");
            }
        });
        Ok(Self {
            send,
            takes: Box::new(move || {
                let connection = connection.lock();
                connection
                    .as_ref()
                    .map_or(0, Connection::current_max_send_streams)
            }),
            left,
            active: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
        })
    }

    /// Whether another request may be sent on it at all.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_retired.load(Ordering::Relaxed) && !self.send.is_closed()
    }

    /// Whether another request may be sent on it now.
    pub(super) fn has_room(&self) -> bool {
        let takes = (self.takes)().min(STREAMS_MAX);
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
    ) -> Result<Option<Response<Incoming>>, BoxError> {
        let request = absolute(scheme, request)?;
        let mut error = match self.send.clone().try_send_request(request).await {
            Ok(answer) if size_of(answer.headers()) > READ_MAX_BYTES => {
                return Err(Box::new(AnswerTooLong));
            }
            Ok(answer) if answer.headers().len() > HEADERS_MAX => {
                return Err(Box::new(TooManyHeaders));
            }
            Ok(answer) => return Ok(Some(answer)),
            Err(error) => error,
        };
        if error.take_message().is_some() || is_unprocessed(error.error()) {
            return Ok(None);
        }
        if self.left.load(Ordering::Relaxed) == 0 {
            return Err(Box::new(AnswerTooLong));
        }
        Err(Box::new(error.into_error()))
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
/// names an earlier stream as its last.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|it| it.downcast_ref::<h2::Error>());
    cause.is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        error.is_remote() && (is_refused || error.is_go_away())
    })
}

#[cfg(test)]
mod tests {
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
