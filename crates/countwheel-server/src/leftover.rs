//! The unread rest of a request's body on its connection.
//!
//! A refusal often needs no body. If the service dropped the rest of it, it would have to close the
//! connection, and a pooling client would lose the next request on it. So the service reads the
//! rest, up to a bound. If the rest is longer, or slow, the answer says `connection: close`, and
//! the connection **lingers** (RFC 9112, section 9.6): the service closes it for writing, and reads
//! and drops the bytes that still come for a while. Closed at once, the connection would be reset,
//! and the caller might never see the answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// So much of a body is read for the sake of the next request.
const REST_MAX_BYTES: usize = 256 << 10;
/// And for so long.
const REST_DEADLINE: Duration = Duration::from_secs(1);
/// So long a connection lingers at most.
const LINGERS: Duration = Duration::from_secs(2);
/// And for so many bytes.
const LINGERS_BYTES: usize = 16 << 20;

type Slot = Arc<Mutex<Option<Body>>>;

/// A body that comes back when it is dropped before its end.
struct Watched {
    body: Option<Body>,
    left: Slot,
}

/// What comes back of it.
pub(crate) struct Leftover(Slot);

/// A request whose body can be read to its end once it was answered.
pub(crate) fn watched(request: Request<Body>) -> (Request<Body>, Leftover) {
    let left = Slot::default();
    let leftover = Leftover(Arc::clone(&left));
    let watch = |body| {
        let body = Some(body);
        Body::new(Watched { body, left })
    };
    (request.map(watch), leftover)
}

/// Whether a connection lingers when it is closed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Lingers(Arc<AtomicBool>);

impl Lingers {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map(HttpBody::size_hint);
        hint.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        *self.left.lock() = body;
    }
}

impl Leftover {
    /// Reads the rest, or has the answer say that the connection ends with it. A caller that
    /// `waits` to be told before it sends the body has sent none.
    pub(crate) async fn read<B>(self, waits: bool, answer: &mut Response<B>, lingers: &Lingers) {
        let left = self.0.lock().take();
        let Some(body) = left else { return };
        let is_short = body.size_hint().lower() <= REST_MAX_BYTES as u64;
        let is_read = !waits && is_short && {
            let rest = Limited::new(body, REST_MAX_BYTES).collect();
            let read = tokio::time::timeout(REST_DEADLINE, rest).await;
            read.is_ok_and(|read| read.is_ok())
        };
        if !is_read {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
            lingers.set();
        }
    }
}

/// A stream that lingers when it is closed, if it is told to.
pub(crate) struct Lingering<S> {
    stream: S,
    lingers: Lingers,
    /// Since it was closed for writing.
    closed: Option<Pin<Box<Sleep>>>,
    dropped: usize,
}

impl<S> Lingering<S> {
    pub(crate) fn new(stream: S, lingers: Lingers) -> Self {
        Self {
            stream,
            lingers,
            closed: None,
            dropped: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
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
        let this = &mut *self;
        if this.closed.is_none() {
            std::task::ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        if !this.lingers.is_set() {
            return Poll::Ready(Ok(()));
        }
        let closed = &mut this.closed;
        let closed = closed.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGERS)));
        let mut buffer = [0; 8 << 10];
        while this.dropped < LINGERS_BYTES && closed.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = Pin::new(&mut this.stream).poll_read(context, &mut buffer);
            // Who resets the connection waits for nothing any more.
            if std::task::ready!(read).is_err() || buffer.filled().is_empty() {
                break;
            }
            this.dropped += buffer.filled().len();
        }
        Poll::Ready(Ok(()))
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
