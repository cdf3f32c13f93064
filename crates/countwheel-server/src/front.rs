//! The stream between a connection and the reader of HTTP. It hands over one request at a time, and
//! only in due form ([`crate::framing`]), and it notes whose turn it is.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::framing::{Fault, Framing, Step};
use crate::leftover::Lingers;
use crate::places::Place;

/// So much is read at a time that is not known to be of a body.
const PIECE: usize = 4 << 10;
/// So much room for it is kept by a connection that idles.
const KEPT: usize = 1 << 10;
/// So much of a body is read at a time: less than what has the reader of HTTP make its buffer larger,
/// which would then be as large on each connection that sends a body.
const PLAIN: usize = (8 << 10) - 1;
/// What stands for a head that is refused, so that the answer to it comes in turn.
const REFUSED: &[u8] = b"OPTIONS * HTTP/1.1\r\nhost: refused\r\n\r\n";

/// What the parts of one connection know together.
#[derive(Debug)]
pub(crate) struct Exchange {
    place: Place,
    lingers: Lingers,
    /// The answer was handed over, and may not have left yet.
    is_handed_over: AtomicBool,
    /// How many requests were begun.
    begun: AtomicU64,
    /// A request goes on as long as either side has bytes of the other.
    is_streaming: AtomicBool,
    /// The caller has read nothing for too long, and is cut off.
    is_cut_off: AtomicBool,
    /// A head that was refused: which of them stands for it, and why.
    refused: OnceLock<(u64, Fault)>,
}

impl Exchange {
    pub(crate) fn new(place: Place) -> Arc<Self> {
        Arc::new(Self {
            place,
            lingers: Lingers::default(),
            is_handed_over: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            is_streaming: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            refused: OnceLock::new(),
        })
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) const fn lingers(&self) -> &Lingers {
        &self.lingers
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.is_streaming.load(Ordering::Relaxed)
    }

    /// The caller has read nothing for too long.
    pub(crate) fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::Release);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Acquire)
    }

    /// Begins a request. What is wrong with the head that it stands for, if that was refused.
    pub(crate) fn begin(&self) -> Option<Fault> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let refused = self.refused.get();
        refused
            .filter(|(refused, _)| *refused == number)
            .map(|(_, fault)| *fault)
    }
}

/// By which a request says that it is answered while it is read.
#[derive(Clone)]
pub(crate) struct Streaming(Arc<Exchange>);

impl Streaming {
    pub(crate) const fn new(exchange: Arc<Exchange>) -> Self {
        Self(exchange)
    }

    /// There is nothing to answer just now: the connection makes room for another one if it has to.
    pub(crate) fn rests(&self) {
        self.0.place.waits();
    }

    /// There is something to answer again.
    pub(crate) fn goes_on(&self) {
        self.0.place.works();
    }

    /// Whether the caller was cut off because it read nothing for too long.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.0.is_cut_off()
    }

    /// Begins such a request. It lasts until what this returns is dropped.
    pub(crate) fn begin(&self) -> Streams {
        self.0.is_streaming.store(true, Ordering::Relaxed);
        Streams(Arc::clone(&self.0))
    }
}

/// A request that is answered while it is read: a caller that sends, and reads nothing meanwhile, is not late.
pub(crate) struct Streams(Arc<Exchange>);

impl Streams {
    /// The body of the request will not be read to its end.
    pub(crate) fn lingers(&self) {
        self.0.lingers.set();
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.0.is_streaming.store(false, Ordering::Relaxed);
    }
}

/// A stream of requests in due form, which notes when an answer is not read, and when it has left.
pub(crate) struct Front<S> {
    stream: S,
    exchange: Arc<Exchange>,
    framing: Framing,
    /// What came and was not passed on.
    held: Vec<u8>,
    /// So much of it may be.
    passable: usize,
    /// How many whole heads there were.
    heads: u64,
    is_refused: bool,
    is_unread: bool,
}

impl<S> Front<S> {
    /// What came `ahead` was read before.
    pub(crate) fn new(stream: S, ahead: Vec<u8>, exchange: Arc<Exchange>) -> Self {
        Self {
            stream,
            exchange,
            framing: Framing::default(),
            held: ahead,
            passable: 0,
            heads: 0,
            is_refused: false,
            is_unread: false,
        }
    }

    /// Notes whose turn it is by how far writing came.
    fn noted<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_pending() && !self.is_unread {
            self.is_unread = true;
            self.exchange.place.waits();
        } else if polled.is_ready() && self.is_unread {
            self.is_unread = false;
            self.exchange.place.works();
        }
        polled
    }

    /// Lets nothing more in.
    fn refuse(&mut self, fault: Fault) -> io::Result<()> {
        self.is_refused = true;
        self.held = Vec::new();
        if self.framing.is_in_body() {
            // Its request is being answered, and learns it from its body.
            self.exchange.lingers.set();
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.held = REFUSED.to_vec();
        self.passable = REFUSED.len();
        // The first one stays; nothing is read after it.
        self.exchange.refused.get_or_init(|| (self.heads, fault));
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> Front<S> {
    /// Waits until something may be passed on, or nothing comes any more (`false`).
    pub(crate) fn poll_passable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.passable == 0 {
            if self.is_refused {
                // The answer says that the connection ends with it.
                return Poll::Pending;
            }
            match self.framing.step(&self.held) {
                Step::Head(length) => {
                    self.heads += 1;
                    self.passable = length;
                }
                Step::Body(length) => self.passable = length,
                Step::Refused(fault) => self.refuse(fault)?,
                Step::More => {
                    let mut piece = [const { MaybeUninit::uninit() }; PIECE];
                    let mut piece = ReadBuf::uninit(&mut piece);
                    ready!(Pin::new(&mut self.stream).poll_read(context, &mut piece))?;
                    if piece.filled().is_empty() {
                        return Poll::Ready(Ok(false));
                    }
                    self.held.extend_from_slice(piece.filled());
                }
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Reads what is known to be of a body without a look at it.
    fn poll_plain(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = usize::try_from(self.framing.plain()).unwrap_or(usize::MAX);
        let most = most.min(buffer.remaining()).min(PLAIN);
        let mut plain = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut plain))?;
        let length = plain.filled().len();
        buffer.advance(length);
        self.framing.passed(length as u64);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Front<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.held.is_empty() && !self.is_refused && self.framing.plain() > 0 {
            return self.poll_plain(context, buffer);
        }
        if ready!(self.poll_passable(context))? {
            let length = self.passable.min(buffer.remaining());
            buffer.put_slice(&self.held[..length]);
            self.passable -= length;
            self.held.drain(..length);
            if self.held.is_empty() && self.held.capacity() > KEPT {
                self.held = Vec::new();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Front<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        let polled = self.noted(polled);
        // All that was written before has left.
        if polled.is_ready() && self.exchange.is_handed_over.swap(false, Ordering::Relaxed) {
            self.exchange.place.answered();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.noted(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The body of a request, which notes when it does not go on.
pub(crate) struct Coming<B> {
    body: B,
    exchange: Arc<Exchange>,
    is_late: bool,
}

impl<B> Coming<B> {
    pub(crate) const fn new(body: B, exchange: Arc<Exchange>) -> Self {
        Self {
            body,
            exchange,
            is_late: false,
        }
    }
}

impl<B: HttpBody + Unpin> HttpBody for Coming<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() && !self.is_late {
            self.is_late = true;
            self.exchange.place.waits();
        } else if polled.is_ready() && self.is_late {
            self.is_late = false;
            self.exchange.place.works();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Coming<B> {
    fn drop(&mut self) {
        if self.is_late {
            self.exchange.place.works();
        }
    }
}

/// The body of an answer, which notes when it was handed over.
pub(crate) struct Going {
    body: Body,
    exchange: Arc<Exchange>,
}

impl Going {
    pub(crate) const fn new(body: Body, exchange: Arc<Exchange>) -> Self {
        Self { body, exchange }
    }
}

impl HttpBody for Going {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.exchange.is_handed_over.store(true, Ordering::Relaxed);
    }
}
