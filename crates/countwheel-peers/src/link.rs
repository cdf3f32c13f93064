//! The connection to one peer: called when something waits, and again when it breaks.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_time::Random;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::CloseReason;
use crate::forwarder::{Inner, Peer};
use crate::frame::{self, FRAME_MAX, Writing};
use crate::hello::{HELLO_BYTES, Hello, SPOKEN, Standing};
use crate::tls::server_name;

/// How long a connection may take to come to be.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// How often within the longest silence a frame asks whether the other side is there.
const SIGNS: u32 = 5;
/// Between two calls: grows, with a part left to chance, so that peers do not call together.
const CALL_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What frames go over.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Why there is no connection.
pub(crate) struct Refused {
    pub(crate) reason: CloseReason,
    pub(crate) what: String,
}

impl Refused {
    pub(crate) fn new(reason: CloseReason, what: impl fmt::Display) -> Self {
        let what = format!("{what}");
        Self { reason, what }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::new(reason_of(&error), error)
    }
}

impl From<frame::FrameError> for Refused {
    fn from(error: frame::FrameError) -> Self {
        match error {
            frame::FrameError::Ended(error) => error.into(),
            error => Self::new(error.reason(), error),
        }
    }
}

/// Reads the next frame, which comes within that time.
pub(crate) async fn read(
    from: &mut (impl AsyncRead + Unpin),
    within: Duration,
) -> Result<Vec<u8>, Refused> {
    let frame = tokio::time::timeout(within, frame::read(from, FRAME_MAX)).await;
    Ok(frame.map_err(|_| Refused::new(CloseReason::Silent, "no sign of life"))??)
}

/// Writes a frame, which the other side takes within that time.
pub(crate) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    frame: &[u8],
    within: Duration,
) -> Result<(), Refused> {
    let written = tokio::time::timeout(within, frame::write(to, frame)).await;
    Ok(written.map_err(|_| Refused::new(CloseReason::Silent, "it reads nothing"))??)
}

/// What TLS says against the other side comes as an error of the stream.
pub(crate) fn reason_of(error: &io::Error) -> CloseReason {
    let source = error.get_ref();
    match source.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>) {
        true => CloseReason::Certificate,
        false => CloseReason::Ended,
    }
}

/// Calls the peer whenever something waits for it, until it is forgotten.
pub(crate) async fn run(inner: Arc<Inner>, peer: Arc<Peer>) {
    let mut random = Random::unseeded();
    let mut pause = CALL_AGAIN.0;
    loop {
        while !peer.has_waiting() {
            if peer.is_forgotten.load(Ordering::Acquire) {
                return;
            }
            peer.wake.notified().await;
        }
        let called = tokio::time::timeout(CONNECT_WITHIN, connect(&inner, &peer)).await;
        let called = called.unwrap_or_else(|_| {
            let what = "no connection in time";
            Err(Refused::new(CloseReason::Silent, what))
        });
        let refused = match called {
            Ok((stream, spoken)) => {
                peer.spoken.store(spoken, Ordering::Release);
                pause = CALL_AGAIN.0;
                peer.is_connected.store(true, Ordering::Relaxed);
                *peer.failing.lock() = None;
                let refused = talk(&inner, &peer, stream).await;
                peer.is_connected.store(false, Ordering::Relaxed);
                // What was sent has no answer any more.
                peer.census.lock().broken();
                peer.words.lock().broken();
                // A silent peer may do it yet, when it goes on: that is unknown at the deadline.
                if refused.reason != CloseReason::Silent {
                    inner.broken(&peer);
                }
                refused
            }
            Err(refused) => {
                let now = inner.clock.boot();
                peer.failing.lock().get_or_insert(now);
                refused
            }
        };
        if peer.is_forgotten.load(Ordering::Acquire) {
            return;
        }
        inner.counts.close(refused.reason);
        tracing::warn!(
            peer = %peer.address,
            reason = %refused.reason,
            what = refused.what,
            "there is no connection to a node"
        );
        tokio::time::sleep(pause / 2 + random.micros_up_to(pause / 2)).await;
        pause = (pause * 2).min(CALL_AGAIN.1);
    }
}

impl Peer {
    fn has_waiting(&self) -> bool {
        self.outbox.lock().has_waiting()
            || self.census.lock().has_waiting()
            || self.words.lock().has_waiting()
    }
}

/// The connection, and the latest version of the protocol that both sides speak.
async fn connect(inner: &Inner, peer: &Peer) -> Result<(Box<dyn Stream>, u16), Refused> {
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host(&peer.address).await?.collect();
    if inner.config.tls.is_none()
        && let Some(far) = addresses.iter().find(|to| !to.ip().is_loopback())
    {
        let what = format!("{far} is not on loopback, and there is no TLS");
        return Err(Refused::new(CloseReason::NotLoopback, what));
    }
    let stream = TcpStream::connect(&addresses[..]).await?;
    // A frame is complete: it leaves at once. If that fails, it is only slower.
    stream.set_nodelay(true).unwrap_or_default();
    let mut stream: Box<dyn Stream> = match &inner.config.tls {
        None => Box::new(stream),
        Some(tls) => {
            let host = peer.address.rsplit_once(':').map_or("", |(host, _)| host);
            let name =
                server_name(host).map_err(|error| Refused::new(CloseReason::Certificate, error))?;
            let connector = TlsConnector::from(tls.client());
            Box::new(connector.connect(name, stream).await?)
        }
    };
    let hello = Hello {
        standing: Standing::Welcome,
        versions: SPOKEN,
        cluster: inner.config.cluster,
        from: inner.me(),
        to: peer.id,
    };
    frame::write(&mut stream, &hello.write()).await?;
    let reply = Hello::read(&frame::read(&mut stream, HELLO_BYTES).await?)?;
    match reply.standing {
        Standing::Version => {
            let (ours, theirs) = (SPOKEN, reply.versions);
            let what = format!(
                "it speaks versions {} to {} of the protocol, this node {} to {}",
                theirs.from, theirs.to, ours.from, ours.to
            );
            Err(Refused::new(CloseReason::Version, what))
        }
        Standing::Cluster => {
            let what = "it is a node of another cluster";
            Err(Refused::new(CloseReason::Cluster, what))
        }
        Standing::Welcome if reply.cluster == hello.cluster && reply.from == peer.id => {
            let spoken = SPOKEN.common(reply.versions).unwrap_or(SPOKEN.from);
            Ok((stream, spoken))
        }
        Standing::Node | Standing::Welcome => {
            let what = "another node, or another start of it, is there";
            Err(Refused::new(CloseReason::Node, what))
        }
    }
}

/// Sends what waits and takes the answers, until either ends.
async fn talk(inner: &Arc<Inner>, peer: &Peer, stream: Box<dyn Stream>) -> Refused {
    let (reading, writing) = tokio::io::split(stream);
    let is_leaving = AtomicBool::new(false);
    let ended = tokio::select! {
        ended = take_answers(inner, peer, &is_leaving, reading) => ended,
        ended = send_asks(inner, peer, &is_leaving, writing) => ended,
    };
    ended.err().unwrap_or_else(|| {
        let what = "it stops, or nothing was asked of it for long";
        Refused::new(CloseReason::Ended, what)
    })
}

async fn send_asks(
    inner: &Inner,
    peer: &Peer,
    is_leaving: &AtomicBool,
    mut to: WriteHalf<Box<dyn Stream>>,
) -> Result<(), Refused> {
    loop {
        let is_leaving = is_leaving.load(Ordering::Acquire);
        if is_leaving && !peer.outbox.lock().has_sent() {
            return Ok(());
        }
        let counts = match is_leaving {
            true => None,
            false => {
                let counts = peer.census.lock().next();
                let spoken = peer.spoken.load(Ordering::Acquire);
                counts.or_else(|| peer.words.lock().next(spoken))
            }
        };
        if let Some(frame) = counts {
            inner.counts.frames_sent.add(1);
            write(&mut to, &frame, inner.config.silence).await?;
            continue;
        }
        let map = inner.owners.version();
        let gathered = match is_leaving {
            true => None,
            false => peer.outbox.lock().gather(inner.clock.boot(), map),
        };
        if let Some((frame, asks)) = gathered {
            inner.counts.frames_sent.add(1);
            inner.counts.asked.add(asks);
            write(&mut to, &frame, inner.config.silence).await?;
            continue;
        }
        if peer.is_forgotten.load(Ordering::Acquire) {
            return Ok(());
        }
        let sign = inner.config.silence / SIGNS;
        let woken = tokio::time::timeout(sign, peer.wake.notified()).await;
        if woken.is_err() {
            let frame = Writing::asks().finish();
            write(&mut to, &frame, inner.config.silence).await?;
        }
    }
}

async fn take_answers(
    inner: &Arc<Inner>,
    peer: &Peer,
    is_leaving: &AtomicBool,
    from: ReadHalf<Box<dyn Stream>>,
) -> Result<(), Refused> {
    let mut from = BufReader::new(from);
    loop {
        let frame = read(&mut from, inner.config.silence).await?;
        if frame == frame::GOODBYE {
            is_leaving.store(true, Ordering::Release);
            peer.wake.notify_one();
            continue;
        }
        if let Some(counts) = frame::read_counts(&frame)? {
            inner.counts.frames_received.add(1);
            if !peer.census.lock().answered(&counts) {
                inner.counts.late.add(1);
            }
            continue;
        }
        if let Some((id, answer)) = frame::read_answer_word(&frame)? {
            inner.counts.frames_received.add(1);
            if !peer.words.lock().answered(id, answer) {
                inner.counts.late.add(1);
            }
            continue;
        }
        if inner.take_answers(peer, &frame)? > 0 {
            inner.counts.frames_received.add(1);
        }
        if is_leaving.load(Ordering::Acquire) {
            // It may have been the last one.
            peer.wake.notify_one();
        }
    }
}
