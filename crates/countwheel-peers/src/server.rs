//! The side that is asked.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::Shard;
use countwheel_durable::{BatchError, Response};
use countwheel_time::Instant;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::convert::is_elsewhere;
use crate::forwarder::{HOPS_MAX, Inner, to_ask};
use crate::frame::{self, Ask, Encoded, FRAME_MAX, Writing};
use crate::hello::{HELLO_BYTES, Hello, SPOKEN, Standing};
use crate::link::{self, CONNECT_WITHIN, Refused, Stream};
use crate::planted::planted;
use crate::wire::{AskCounts, REQUESTS_MAX, WireAnswer, WireBody, WireError};
use crate::{CloseReason, Forwarder, PeersError};

/// How long the frames of one connection may be together whose questions are not answered yet.
const BYTES_MAX: u32 = 128 << 20;
/// A frame takes the answers that are there until it is so long, or has so many responses.
const GATHER_BYTES: usize = 1 << 20;
const GATHER_RESPONSES: usize = 4_096;
/// How much is read of who has no certificate of ours, and for how long.
const LINGER_BYTES: u64 = 64 << 10;
const LINGER: Duration = Duration::from_millis(500);
/// How long a connection that is told to give way may take to do so.
const GIVES_WAY_WITHIN: Duration = Duration::from_millis(500);
/// How long answers may take to leave when it stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Listens to other nodes, and answers what they ask about shards of this one.
///
/// Dropped, it stops without waiting for the answers under way.
pub struct PeerServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// Ends when the last connection has.
    ended: Mutex<Option<blocking::Receiver<()>>>,
}

impl PeerServer {
    /// Listens at `address`, on the thread of the forwarder, whose configuration it has as well.
    ///
    /// # Errors
    /// [`PeersError::NotLoopback`] without TLS at an address that other machines reach;
    /// [`PeersError::Listen`].
    pub fn start(address: SocketAddr, forwarder: &Forwarder) -> Result<Self, PeersError> {
        let inner = Arc::clone(&forwarder.inner);
        if inner.config.tls.is_none() && !address.ip().is_loopback() {
            return Err(PeersError::NotLoopback { address });
        }
        let refused = |source| PeersError::Listen { address, source };
        let listener = StdListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let bound = listener.local_addr().map_err(refused)?;
        let handle = forwarder.handle.clone();
        let _entered = handle.enter();
        let listener = TcpListener::from_std(listener).map_err(refused)?;
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = blocking::channel();
        let strangers = Arc::new(Strangers {
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            stay: planted!(PeersSilentStay),
        });
        handle.spawn(accept(
            inner,
            handle.clone(),
            listener,
            strangers,
            stopped,
            ending,
        ));
        Ok(Self {
            address: bound,
            stop,
            ended: Mutex::new(Some(ended)),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more questions, and waits up to a second for the answers under way to leave.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        if let Some(ended) = self.ended.lock().take() {
            // Nothing is sent: it ends with the last of the other side.
            ended
                .recv_timeout(LAST_ANSWERS + LAST_ANSWERS / 2)
                .unwrap_or_default();
        }
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl fmt::Debug for PeerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|&stopped| stopped).await);
}

async fn accept(
    inner: Arc<Inner>,
    handle: Handle,
    listener: TcpListener,
    strangers: Arc<Strangers>,
    mut stopped: watch::Receiver<bool>,
    ending: blocking::Sender<()>,
) {
    let places = Arc::new(Semaphore::new(inner.config.max_connections));
    loop {
        let accepted = tokio::select! {
            () = told(&mut stopped) => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, caller) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: some will be free again soon.
                tracing::warn!(%error, "a connection of a node could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let place = match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => Some(place),
            // Whoever has said nothing yet gives way: its place is free in a moment.
            Err(_) if strangers.give_way() => {
                let places = Arc::clone(&places).acquire_owned();
                let place = tokio::time::timeout(GIVES_WAY_WITHIN, places).await;
                place.ok().and_then(Result::ok)
            }
            Err(_) => None,
        };
        let Some(place) = place else {
            inner.counts.close(CloseReason::TooMany);
            continue;
        };
        let connection = Connection {
            inner: Arc::clone(&inner),
            stopped: stopped.clone(),
            stranger: strangers.add(),
        };
        let ending = ending.clone();
        handle.spawn(async move {
            let inner = Arc::clone(&connection.inner);
            if let Err(refused) = connection.run(stream).await {
                inner.counts.close(refused.reason);
                // Of many that call, each would be a line.
                let is_quiet = [CloseReason::Ended, CloseReason::TooMany].contains(&refused.reason);
                if !is_quiet {
                    let (reason, what) = (refused.reason, refused.what);
                    tracing::warn!(%caller, %reason, what, "a connection of a node was closed");
                }
            }
            drop((place, ending));
        });
    }
}

/// The connections that have not said yet who they are of, the oldest first.
struct Strangers {
    next: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Arc<Notify>>>,
    /// A mistake.
    stay: bool,
}

/// One of them, until it is dropped.
struct Stranger {
    all: Arc<Strangers>,
    number: u64,
    gives_way: Arc<Notify>,
}

impl Strangers {
    fn add(self: &Arc<Self>) -> Stranger {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let gives_way = Arc::new(Notify::new());
        self.waiting.lock().insert(number, Arc::clone(&gives_way));
        Stranger {
            all: Arc::clone(self),
            number,
            gives_way,
        }
    }

    /// Tells the oldest to go. Says whether there is one.
    fn give_way(&self) -> bool {
        if self.stay {
            return false;
        }
        let oldest = self.waiting.lock().pop_first();
        let told = oldest.map(|(_, oldest)| oldest.notify_one());
        told.is_some()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.waiting.lock().remove(&self.number);
    }
}

struct Connection {
    inner: Arc<Inner>,
    stopped: watch::Receiver<bool>,
    stranger: Stranger,
}

/// An answer on its way out, with the room that its question took.
pub(crate) struct Leaving {
    bytes: Vec<u8>,
    responses: usize,
    rooms: Vec<Arc<OwnedSemaphorePermit>>,
}

#[cfg(feature = "testing")]
impl Leaving {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What goes out: also an empty frame that says that this node is here, once however often it was asked.
pub(crate) enum Going {
    Answer(Leaving),
    /// A frame of its own: counts, or what is answered to a word.
    Counts(Leaving),
    Here,
    /// No more questions, please.
    Goodbye,
}

impl Connection {
    async fn run(mut self, stream: TcpStream) -> Result<(), Refused> {
        stream.set_nodelay(true).unwrap_or_default();
        let stranger = self.stranger;
        let opened = tokio::select! {
            () = told(&mut self.stopped) => return Ok(()),
            () = stranger.gives_way.notified() => {
                let what = "it said nothing, and others call";
                return Err(Refused::new(CloseReason::TooMany, what));
            }
            opened = tokio::time::timeout(CONNECT_WITHIN, open(&self.inner, stream)) => opened,
        };
        drop(stranger);
        let opened = opened.map_err(|_| Refused::new(CloseReason::Silent, "no hello in time"))?;
        let (stream, from) = opened?;
        let (reading, writing) = tokio::io::split(stream);
        let (going, leaving) = mpsc::unbounded_channel();
        let asked = Asked::new(Arc::clone(&self.inner), from, going);
        let says_here = Arc::clone(&asked.says_here);
        let mut writing = pin!(send_answers(&self.inner, leaving, says_here, writing));
        let mut taking = pin!(asked.take_asks(reading));
        tokio::select! {
            ended = &mut taking => return ended,
            ended = &mut writing => return ended,
            () = told(&mut self.stopped) => {}
        }
        // The caller sends no more, and closes when it has its answers.
        asked.going.send(Going::Goodbye).unwrap_or_default();
        let last = async {
            tokio::select! {
                ended = &mut taking => ended,
                ended = &mut writing => ended,
            }
        };
        let ended = tokio::time::timeout(LAST_ANSWERS, last).await;
        ended.unwrap_or(Ok(()))
    }
}

/// Who calls, once it has shown that it belongs here.
async fn open(inner: &Inner, stream: TcpStream) -> Result<(Box<dyn Stream>, NodeId), Refused> {
    let mut stream: Box<dyn Stream> = match &inner.config.tls {
        None => Box::new(stream),
        Some(tls) => {
            let acceptor = TlsAcceptor::from(tls.server());
            match acceptor.accept(stream).into_fallible().await {
                Ok(stream) => Box::new(stream),
                Err((error, stream)) => {
                    linger(stream).await;
                    return Err(error.into());
                }
            }
        }
    };
    let hello = Hello::read(&frame::read(&mut stream, HELLO_BYTES).await?)?;
    let standing = hello.judged_by(inner.config.cluster, inner.me());
    let reply = Hello {
        standing,
        versions: SPOKEN,
        cluster: inner.config.cluster,
        from: inner.me(),
        to: hello.from,
    };
    frame::write(&mut stream, &reply.write()).await?;
    let refused = match standing {
        Standing::Welcome => return Ok((stream, hello.from)),
        Standing::Version => Refused::new(
            CloseReason::Version,
            format!(
                "it speaks versions {} to {} of the protocol",
                hello.versions.from, hello.versions.to
            ),
        ),
        Standing::Cluster => Refused::new(CloseReason::Cluster, "it is of another cluster"),
        Standing::Node => Refused::new(CloseReason::Node, "it calls another start of a node"),
    };
    Err(refused)
}

/// Lets the caller read why: what it has sent and nobody reads would take that away from it.
async fn linger(mut stream: TcpStream) {
    let rest = async {
        stream.shutdown().await?;
        let mut rest = stream.take(LINGER_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // If it does not come to an end, the caller knows less.
    drop(tokio::time::timeout(LINGER, rest).await);
}

/// What one other node asks.
pub(crate) struct Asked {
    inner: Arc<Inner>,
    from: NodeId,
    going: mpsc::UnboundedSender<Going>,
    /// Room for requests, and for frames, that are not answered yet: nothing is read without.
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    says_here: Arc<AtomicBool>,
}

impl Asked {
    pub(crate) fn new(
        inner: Arc<Inner>,
        from: NodeId,
        going: mpsc::UnboundedSender<Going>,
    ) -> Self {
        Self {
            inner,
            from,
            going,
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            bytes: Arc::new(Semaphore::new(BYTES_MAX as usize)),
            says_here: Arc::new(AtomicBool::new(false)),
        }
    }

    async fn take_asks(&self, from: ReadHalf<Box<dyn Stream>>) -> Result<(), Refused> {
        let mut from = BufReader::new(from);
        let mut before = self.inner.clock.boot();
        loop {
            let frame = link::read(&mut from, 2 * self.inner.config.silence).await?;
            if self.was_stopped(&mut before) {
                return Err(Refused::new(CloseReason::Silent, "this node was stopped"));
            }
            let bytes = u32::try_from(frame.len()).unwrap_or(BYTES_MAX);
            if let Some(ask) = frame::read_ask_counts(&frame)? {
                self.inner.counts.frames_received.add(1);
                let shards = u32::try_from(ask.shards.len()).unwrap_or(u32::MAX);
                let room = room(&self.requests, shards.max(1)).await?;
                self.count(ask, room);
                continue;
            }
            if let Some((id, word)) = frame::read_word(&frame)? {
                self.inner.counts.frames_received.add(1);
                let rooms = vec![
                    room(&self.bytes, bytes).await?,
                    room(&self.requests, 1).await?,
                ];
                let going = self.going.clone();
                let tell = Box::new(move |answer: Option<Vec<u8>>| {
                    let leaving = Leaving {
                        bytes: frame::answer_word(id, answer.as_deref()),
                        responses: 1,
                        rooms,
                    };
                    // Nobody takes it if the connection is gone.
                    going.send(Going::Counts(leaving)).unwrap_or_default();
                });
                self.inner.here.word_later(self.from, word, tell);
                continue;
            }
            let asks = frame::read_asks(frame)?;
            if asks.is_empty() {
                if !self.says_here.swap(true, Ordering::AcqRel) {
                    self.going.send(Going::Here).unwrap_or_default();
                }
                continue;
            }
            self.inner.counts.frames_received.add(1);
            let room = room(&self.bytes, bytes).await?;
            for ask in asks {
                let requests = u32::try_from(ask.what.count()).unwrap_or(u32::MAX);
                let rooms = vec![
                    Arc::clone(&room),
                    self::room(&self.requests, requests).await?,
                ];
                self.take(ask, rooms);
            }
        }
    }

    /// Whether this process was stopped since `before`, which becomes now. A sign of life comes each second.
    /// After a pause it is not known how old a frame is, and whether anybody waits for it still.
    pub(crate) fn was_stopped(&self, before: &mut Instant) -> bool {
        let now = self.inner.clock.boot();
        let silent = now.saturating_since(std::mem::replace(before, now));
        silent > self.inner.config.silence && !planted!(PeersOldFrames)
    }

    /// Counts on a thread that may block.
    fn count(&self, ask: AskCounts, room: Arc<OwnedSemaphorePermit>) {
        let Some(handle) = &self.inner.handle else {
            return; // nobody is asked so without one
        };
        let (here, going) = (Arc::clone(&self.inner.here), self.going.clone());
        handle.spawn_blocking(move || {
            let shards: Vec<_> = ask.shards.into_iter().map(Shard).collect();
            let leaving = Leaving {
                bytes: frame::counts(ask.id, &here.counts(&shards)),
                responses: 1,
                rooms: vec![room],
            };
            // Nobody takes it if the connection is gone.
            going.send(Going::Counts(leaving)).unwrap_or_default();
        });
    }

    pub(crate) fn take(&self, ask: Ask, room: Vec<Arc<OwnedSemaphorePermit>>) {
        let inner = &self.inner;
        inner.counts.answered.add(1);
        let (head, what) = (ask.head, ask.what);
        let reply = Reply {
            inner: Arc::clone(inner),
            id: head.id,
            going: self.going.clone(),
            room,
        };
        if head.left_ms == 0 && !planted!(PeersExpiredIsDone) {
            return reply.send(WireBody::Expired, 1);
        }
        if head.hops > HOPS_MAX {
            inner.counts.hops_refused.add(1);
            return reply.send(WireBody::NotOwner, 1);
        }
        let requests = match what.decode() {
            Ok(requests) => requests,
            Err(refused) => return reply.answer(&Err(refused)),
        };
        let left = Duration::from_millis(head.left_ms.into());
        let deadline = inner.clock.boot() + left;
        let (shard, from, hops) = (Shard(head.shard), self.from, head.hops);
        let onward = Arc::clone(inner);
        let asked = to_ask(requests, what.is_batch, move |answer| match answer {
            Err(refused) if is_elsewhere(&refused.error) => {
                let tell = Box::new(move |answer: Option<Result<_, _>>| match answer {
                    Some(answer) => reply.answer(&answer),
                    None => reply.send(WireBody::NotOwner, 1),
                });
                onward.send_on(shard, what, deadline, hops, from, tell);
            }
            answer => reply.answer(&answer),
        });
        inner.here.ask(shard, asked);
    }
}

impl Encoded {
    /// What is asked for.
    fn decode(&self) -> Result<Vec<countwheel_durable::Request>, BatchError> {
        // It was read through when it came.
        let wire = self.wire().unwrap_or_default().into_iter().enumerate();
        let requests = wire.map(|(index, request)| {
            let index = self.is_batch.then_some(index);
            request
                .request()
                .map_err(|error| BatchError { index, error })
        });
        requests.collect()
    }
}

async fn room(of: &Arc<Semaphore>, much: u32) -> Result<Arc<OwnedSemaphorePermit>, Refused> {
    let taken = Arc::clone(of).acquire_many_owned(much).await;
    // Nobody closes it.
    taken
        .map(Arc::new)
        .map_err(|error| Refused::new(CloseReason::Ended, error))
}

/// Answers one question.
struct Reply {
    inner: Arc<Inner>,
    id: u64,
    going: mpsc::UnboundedSender<Going>,
    room: Vec<Arc<OwnedSemaphorePermit>>,
}

impl Reply {
    fn answer(self, answer: &Result<Vec<Response>, BatchError>) {
        let responses = answer
            .as_ref()
            .map_or(1, |responses| responses.len().max(1));
        self.send(WireBody::of(answer), responses);
    }

    fn send(self, body: WireBody<'_>, responses: usize) {
        let (id, map) = (self.id, self.inner.owners.version());
        let mut bytes = frame::answer(&WireAnswer { id, map, body });
        if bytes.len() > FRAME_MAX - GATHER_BYTES {
            let reason = "it was done, and the answer is longer than a frame".into();
            let (index, error) = (None, WireError::Unknown { reason });
            let body = WireBody::Refused { index, error };
            bytes = frame::answer(&WireAnswer { id, map, body });
        }
        let leaving = Leaving {
            bytes,
            responses,
            rooms: self.room,
        };
        // Nobody takes it if the connection is gone.
        self.going.send(Going::Answer(leaving)).unwrap_or_default();
    }
}

/// Sends the answers that gather, until nobody can answer any more.
async fn send_answers(
    inner: &Inner,
    mut leaving: mpsc::UnboundedReceiver<Going>,
    says_here: Arc<AtomicBool>,
    mut to: WriteHalf<Box<dyn Stream>>,
) -> Result<(), Refused> {
    while let Some(first) = leaving.recv().await {
        let (mut frame, mut responses, mut rooms) = (Writing::answers(), 0, Vec::new());
        let (mut is_goodbye, mut counts) = (false, None);
        let mut next = Some(first);
        while let Some(going) = next.take() {
            match going {
                Going::Here => says_here.store(false, Ordering::Release),
                Going::Goodbye => is_goodbye = true,
                Going::Counts(leaving) => counts = Some(leaving),
                Going::Answer(leaving) => {
                    frame.answer(&leaving.bytes);
                    responses += leaving.responses;
                    rooms.push(leaving.rooms);
                }
            }
            if counts.is_none() && frame.len() < GATHER_BYTES && responses < GATHER_RESPONSES {
                next = leaving.try_recv().ok();
            }
        }
        if responses > 0 {
            inner.counts.frames_sent.add(1);
        }
        let within = 2 * inner.config.silence;
        link::write(&mut to, &frame.finish(), within).await?;
        drop(rooms);
        if let Some(counts) = counts {
            inner.counts.frames_sent.add(1);
            link::write(&mut to, &counts.bytes, within).await?;
        }
        if is_goodbye {
            link::write(&mut to, frame::GOODBYE, within).await?;
        }
    }
    Ok(())
}
