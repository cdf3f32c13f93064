//! Questions on their way out: to whom, how often, until when.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::Shard;
use countwheel_durable::{Asked, BatchError, Counted, Elsewhere, Request, Response, TimerError};
use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Notify, oneshot};

use crate::census::{self, COUNTED_WITHIN, Census};
use crate::convert::is_elsewhere;
use crate::counts::Counts;
use crate::frame::{self, Encoded, FRAME_MAX, FrameError, HEAD_MAX};
use crate::outbox::{Job, Limits, Outbox, Room, Tell, Waiter};
use crate::planted::planted;
use crate::wire::REQUESTS_MAX;
use crate::words::{Word, Words};
use crate::{Here, Owners, PeerCounts, PeersConfig, PeersError, link};

/// How often a question is sent on at the most.
pub(crate) const HOPS_MAX: u8 = 2;
/// How often deadlines are looked at while anything waits.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A peer that nothing was asked of for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

const BROKEN: &str = "the connection to the owner of the shard broke before it had answered";
const NO_ANSWER: &str = "the owner of the shard did not answer in time";
const STOPPED: &str = "this node stopped before the owner of the shard had answered";

/// Takes what is asked for about shards of other nodes to their owners.
///
/// It has a thread of its own. Dropped, it [stops](Self::stop).
pub struct Forwarder {
    pub(crate) inner: Arc<Inner>,
    pub(crate) handle: Handle,
    runtime: Option<Runtime>,
}

pub(crate) struct Inner {
    pub(crate) config: PeersConfig,
    pub(crate) owners: Arc<dyn Owners>,
    pub(crate) here: Arc<dyn Here>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Counts,
    /// What calls the peers. Without it, somebody else carries the frames.
    pub(crate) handle: Option<Handle>,
    peers: Mutex<BTreeMap<NodeId, Arc<Peer>>>,
    held: Mutex<Held>,
    /// The version of the map at the last look.
    seen: AtomicU64,
    /// The number of the next question for counts.
    next_census: AtomicU64,
    /// Something waits.
    waits: Notify,
    is_stopped: AtomicBool,
}

/// A node that questions go to.
pub(crate) struct Peer {
    pub(crate) id: NodeId,
    pub(crate) address: String,
    pub(crate) outbox: Mutex<Outbox>,
    pub(crate) census: Mutex<Census>,
    pub(crate) words: Mutex<Words>,
    /// The version of the protocol of the last connection.
    pub(crate) spoken: AtomicU16,
    /// Something waits, or it is forgotten.
    pub(crate) wake: Notify,
    pub(crate) is_connected: AtomicBool,
    /// Since when no connection to it has come to be.
    pub(crate) failing: Mutex<Option<Instant>>,
    pub(crate) is_forgotten: AtomicBool,
    used: Mutex<Instant>,
}

/// Where a question goes.
struct Way {
    owner: NodeId,
    address: String,
    /// Of the map before it was looked up.
    version: u64,
}

/// Questions that nobody takes now.
#[derive(Default)]
struct Held {
    jobs: Vec<(Instant, Job)>,
    room: Room,
}

impl Forwarder {
    /// Starts its thread. Nothing is called before it is asked for.
    ///
    /// # Errors
    /// [`PeersError::Thread`].
    pub fn start(
        config: PeersConfig,
        owners: Arc<dyn Owners>,
        here: Arc<dyn Here>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, PeersError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("countwheel-peers")
            .enable_all()
            .build()
            .map_err(|source| PeersError::Thread { source })?;
        let handle = runtime.handle().clone();
        let inner = Inner::new(config, owners, here, clock, Some(handle.clone()));
        let looking = Arc::clone(&inner);
        runtime.spawn(async move {
            loop {
                if looking.is_idle() {
                    looking.waits.notified().await;
                }
                tokio::time::sleep(LOOK_EVERY).await;
                looking.look();
            }
        });
        Ok(Arc::new(Self {
            inner,
            handle,
            runtime: Some(runtime),
        }))
    }

    /// What was counted, of the [`PeerServer`](crate::PeerServer) that it was given to as well.
    #[must_use]
    pub fn counts(&self) -> PeerCounts {
        self.inner.counts()
    }

    /// The peers that were called for so long in vain, with their addresses.
    #[must_use]
    pub fn unreachable(&self, since: Duration) -> BTreeMap<NodeId, String> {
        let now = self.inner.clock.boot();
        let is_failing = |peer: &Arc<Peer>| {
            let failing = *peer.failing.lock();
            failing.is_some_and(|at| now.saturating_since(at) >= since)
        };
        let failing = self.inner.all().into_iter().filter(is_failing);
        failing
            .map(|peer| (peer.id, peer.address.clone()))
            .collect()
    }

    /// Says something to another node, which is at that address. The answer may never come: whoever waits says for how
    /// long. What is too long for a frame is not said.
    pub fn say(&self, to: NodeId, address: &str, word: Vec<u8>) -> oneshot::Receiver<Word> {
        let (tell, told) = oneshot::channel();
        let inner = &self.inner;
        if word.len() <= FRAME_MAX - HEAD_MAX && !inner.is_stopped.load(Ordering::Acquire) {
            let peer = inner.peer(to, address.to_owned());
            let id = inner.next_census.fetch_add(1, Ordering::Relaxed);
            peer.words.lock().say(id, word, tell);
            peer.wake.notify_one();
        }
        told
    }

    /// Takes nothing more, and ends what waits: [`ShardUnavailable`](TimerError::ShardUnavailable) if it
    /// never left, [`Unknown`](TimerError::Unknown) if it did.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

impl Elsewhere for Forwarder {
    fn ask(&self, shard: Shard, asked: Asked) {
        self.inner.ask(shard, asked);
    }

    /// Waits up to a second for the owners, which are asked at the same time; not to be called on the
    /// forwarder's own thread.
    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        self.inner.count(shards)
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("me", &self.inner.me())
            .finish_non_exhaustive()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.inner.stop();
        if let Some(runtime) = self.runtime.take() {
            // Also on a thread of its own, where waiting is not allowed.
            runtime.shutdown_background();
        }
    }
}

/// Whether a node that does not own the shard either may send on what has come over so many hops.
fn may_send_on(hops: u8) -> bool {
    hops < HOPS_MAX || planted!(PeersHopsUnlimited)
}

impl Inner {
    /// Under which id this node has joined.
    pub(crate) fn me(&self) -> NodeId {
        self.owners.me().unwrap_or(self.config.me)
    }

    pub(crate) fn new(
        config: PeersConfig,
        owners: Arc<dyn Owners>,
        here: Arc<dyn Here>,
        clock: Arc<dyn Clock>,
        handle: Option<Handle>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            owners,
            here,
            clock,
            counts: Counts::default(),
            handle,
            peers: Mutex::default(),
            held: Mutex::default(),
            seen: AtomicU64::new(0),
            next_census: AtomicU64::new(1),
            waits: Notify::new(),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Takes what somebody here asks.
    pub(crate) fn ask(self: &Arc<Self>, shard: Shard, asked: Asked) {
        let is_batch = asked.is_batch();
        let refuse = |asked: Asked, index: Option<usize>, error| {
            let index = index.filter(|_| is_batch);
            asked.answer(Err(BatchError { index, error }));
        };
        let requests = asked.requests().len();
        if requests > REQUESTS_MAX {
            let limit = REQUESTS_MAX;
            return refuse(asked, None, TimerError::BatchTooLarge { requests, limit });
        }
        let what = match Encoded::of(asked.requests(), is_batch) {
            Ok(what) => what,
            Err((index, error)) => return refuse(asked, Some(index), error),
        };
        let (bytes, limit) = (what.bytes().len(), FRAME_MAX - HEAD_MAX);
        if bytes > limit {
            let error = match is_batch {
                true => TimerError::BatchTooLong { limit },
                false => TimerError::PayloadTooLarge { bytes, limit },
            };
            return refuse(asked, None, error);
        }
        self.dispatch(Job {
            shard,
            what,
            deadline: self.clock.boot() + self.config.answer_within,
            hops: 0,
            waiter: Waiter::Here(Box::new(asked)),
        });
    }

    /// Sends on, once, what another node has asked and this one does not own.
    pub(crate) fn send_on(
        self: &Arc<Self>,
        shard: Shard,
        what: Encoded,
        deadline: Instant,
        hops: u8,
        from: NodeId,
        tell: Tell,
    ) {
        if !may_send_on(hops) {
            self.counts.hops_refused.add(1);
            return tell(None);
        }
        match self.way(shard) {
            Some(way) if way.owner != self.me() && way.owner != from => {
                let now = self.clock.boot();
                let job = Job {
                    shard,
                    what,
                    // That nothing was done is worth saying only while somebody can ask again.
                    deadline: now + deadline.saturating_since(now) / 2,
                    hops,
                    waiter: Waiter::Node(tell),
                };
                self.push(way, job);
            }
            _ => tell(None),
        }
    }

    /// Asks the owners of these shards how many timers there are.
    pub(crate) fn count(self: &Arc<Self>, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        if self.is_stopped.load(Ordering::Acquire) {
            return BTreeMap::new();
        }
        let mut peers: BTreeMap<NodeId, (String, Vec<Shard>)> = BTreeMap::new();
        for shard in shards {
            if let Some((owner, address)) = self.owners.owner(*shard)
                && owner != self.me()
            {
                let of_peer = peers.entry(owner).or_insert((address, Vec::new()));
                of_peer.1.push(*shard);
            }
        }
        let (tell, told) = channel();
        let mut asked = HashMap::with_capacity(peers.len());
        for (owner, (address, shards)) in peers {
            let peer = self.peer(owner, address);
            let id = self.next_census.fetch_add(1, Ordering::Relaxed);
            peer.census.lock().ask(id, shards.clone(), tell.clone());
            peer.wake.notify_one();
            asked.insert(id, (peer, shards));
        }
        // Of those whose connection breaks, and of all when this stops, nobody holds it any more.
        drop(tell);
        if self.is_stopped.load(Ordering::Acquire) {
            self.stop();
        }
        let deadline = self.clock.boot() + COUNTED_WITHIN;
        let left = || deadline.saturating_since(self.clock.boot());
        let mut counted = BTreeMap::new();
        while let Ok((id, told)) = told.recv_timeout(left()) {
            if let Some((_, shards)) = asked.get(&id) {
                census::add(&mut counted, shards, told);
            }
        }
        for (id, (peer, _)) in asked {
            peer.census.lock().forget(id);
        }
        counted
    }

    /// Hands a question to the peer that owns its shard.
    fn dispatch(self: &Arc<Self>, job: Job) {
        match self.way(job.shard) {
            Some(way) if way.owner != self.me() => self.push(way, job),
            _ => self.hold(job),
        }
    }

    /// The owner of a shard as the map has it now.
    fn way(&self, shard: Shard) -> Option<Way> {
        // First: a change after that is seen by whoever compares it.
        let version = self.owners.version();
        let (owner, address) = self.owners.owner(shard)?;
        Some(Way {
            owner,
            address,
            version,
        })
    }

    fn push(self: &Arc<Self>, way: Way, job: Job) {
        if self.is_stopped.load(Ordering::Acquire) {
            return self.not_done(job);
        }
        let peer = self.peer(way.owner, way.address);
        let refused = peer.outbox.lock().push(job).err();
        if let Some(job) = refused {
            return self.not_done(job);
        }
        if self.owners.version() != way.version && !planted!(PeersOldWay) {
            // The look at that change may have been before this: the next one looks at what waits again.
            self.seen.store(way.version, Ordering::Release);
        }
        peer.wake.notify_one();
        self.waits.notify_one();
        // It may have been stopped or forgotten meanwhile.
        if self.is_stopped.load(Ordering::Acquire) {
            self.stop();
        } else if peer.is_forgotten.load(Ordering::Acquire) {
            let jobs = peer.outbox.lock().take_back(|_| false);
            jobs.into_iter().for_each(|job| self.hold(job));
        }
    }

    /// The peer of that id, called from now on.
    fn peer(self: &Arc<Self>, id: NodeId, address: String) -> Arc<Peer> {
        let now = self.clock.boot();
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(&id) {
            *peer.used.lock() = now;
            return Arc::clone(peer);
        }
        let limits = Limits {
            requests: self.config.max_waiting,
            bytes: self.config.max_waiting_bytes,
        };
        let peer = Arc::new(Peer {
            id,
            address,
            outbox: Mutex::new(Outbox::new(limits)),
            census: Mutex::default(),
            words: Mutex::default(),
            spoken: AtomicU16::new(0),
            wake: Notify::new(),
            is_connected: AtomicBool::new(false),
            failing: Mutex::default(),
            is_forgotten: AtomicBool::new(false),
            used: Mutex::new(now),
        });
        peers.insert(id, Arc::clone(&peer));
        drop(peers);
        if let Some(handle) = &self.handle {
            handle.spawn(link::run(Arc::clone(self), Arc::clone(&peer)));
        }
        peer
    }

    /// Keeps a question of which it is certain that nothing was done, until it is tried again.
    pub(crate) fn hold(self: &Arc<Self>, job: Job) {
        let now = self.clock.boot();
        let is_over = job.deadline <= now && !planted!(PeersDeadlineIgnored);
        if !job.may_be_held() || is_over || self.is_stopped.load(Ordering::Acquire) {
            return self.not_done(job);
        }
        let limits = Limits {
            requests: self.config.max_waiting,
            bytes: self.config.max_waiting_bytes,
        };
        let mut held = self.held.lock();
        if !held.room.take(&job.what, limits) {
            drop(held);
            return self.not_done(job);
        }
        held.jobs.push((now + self.config.retry_after, job));
        drop(held);
        self.counts.held.add(1);
        self.waits.notify_one();
        if self.is_stopped.load(Ordering::Acquire) {
            self.stop();
        }
    }

    /// Looks at what waits: what is overdue ends, what was held is tried again, and what waits for a peer
    /// that is no owner any more goes to the one who is.
    pub(crate) fn look(self: &Arc<Self>) {
        let now = self.clock.boot();
        let (mut again, mut over) = (Vec::new(), Vec::new());
        {
            let mut held = self.held.lock();
            let jobs = std::mem::take(&mut held.jobs);
            for (at, job) in jobs {
                let ends = job.deadline <= now && !planted!(PeersDeadlineIgnored);
                if !ends && at > now {
                    held.jobs.push((at, job));
                    continue;
                }
                held.room.give_back(&job.what);
                match ends {
                    true => over.push(job),
                    false => again.push(job),
                }
            }
        }
        over.into_iter().for_each(|job| self.not_done(job));
        for peer in self.all() {
            let overdue = peer.outbox.lock().overdue(now);
            for job in overdue.waited {
                self.not_done(job);
            }
            for job in overdue.sent {
                self.unknown(job, NO_ANSWER);
            }
            self.forget_unused(&peer, now);
        }
        let version = self.owners.version();
        if self.seen.swap(version, Ordering::AcqRel) != version {
            for peer in self.all() {
                let is_theirs = |shard| {
                    let owner = self.owners.owner(shard);
                    owner.is_some_and(|(owner, _)| owner == peer.id)
                };
                again.extend(peer.outbox.lock().take_back(is_theirs));
            }
        }
        again.into_iter().for_each(|job| self.try_again(job));
    }

    fn try_again(self: &Arc<Self>, job: Job) {
        match self.way(job.shard) {
            Some(way) if way.owner == self.me() => self.ask_here(job),
            Some(way) => self.push(way, job),
            None => self.hold(job),
        }
    }

    /// Since it was asked this node has taken the shard, or is about to.
    fn ask_here(self: &Arc<Self>, job: Job) {
        let Waiter::Here(asked) = &job.waiter else {
            return self.not_done(job);
        };
        let (shard, requests, is_batch) = (job.shard, asked.requests().to_vec(), asked.is_batch());
        let inner = Arc::clone(self);
        let asked = to_ask(requests, is_batch, move |answer| match answer {
            Err(refused) if is_elsewhere(&refused.error) => inner.hold(job),
            answer => job.answer(answer),
        });
        self.here.ask(shard, asked);
    }

    /// Takes the answers of a frame. Says how many there are.
    pub(crate) fn take_answers(
        self: &Arc<Self>,
        peer: &Peer,
        frame: &[u8],
    ) -> Result<usize, FrameError> {
        let answers = frame::read_answers(frame)?;
        let count = answers.len();
        for answer in answers {
            let job = peer.outbox.lock().answered(answer.id);
            match (job, answer.body.answer()) {
                (Some(job), Some(answer)) => job.answer(answer),
                (Some(job), None) => self.hold(job),
                (None, _) => self.counts.late.add(1),
            }
        }
        Ok(count)
    }

    /// The connection to a peer is gone: what was sent has no answer any more.
    pub(crate) fn broken(&self, peer: &Peer) {
        let sent = peer.outbox.lock().broken();
        sent.into_iter().for_each(|job| self.unknown(job, BROKEN));
    }

    pub(crate) fn not_done(&self, job: Job) {
        if job.may_be_held() {
            self.counts.unavailable.add(1);
        }
        job.not_done();
    }

    pub(crate) fn unknown(&self, job: Job, reason: &str) {
        self.counts.unknown.add(1);
        job.unknown(reason);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().cloned().collect()
    }

    fn forget_unused(&self, peer: &Arc<Peer>, now: Instant) {
        if now.saturating_since(*peer.used.lock()) < FORGOTTEN_AFTER {
            return;
        }
        let mut peers = self.peers.lock();
        // Under its lock: what is pushed after that sees it.
        let outbox = peer.outbox.lock();
        if outbox.is_empty() && peer.census.lock().is_empty() && peer.words.lock().is_empty() {
            peer.is_forgotten.store(true, Ordering::Release);
            peers.remove(&peer.id);
            peer.wake.notify_one();
        }
    }

    fn is_idle(&self) -> bool {
        self.held.lock().jobs.is_empty()
            && self.all().iter().all(|peer| peer.outbox.lock().is_empty())
    }

    pub(crate) fn counts(&self) -> PeerCounts {
        let mut counts = self.counts.read();
        let mut rooms = vec![self.held.lock().room];
        for peer in self.all() {
            rooms.push(peer.outbox.lock().room());
            counts.connected += u64::from(peer.is_connected.load(Ordering::Relaxed));
        }
        for room in rooms {
            counts.waiting += room.requests as u64;
            counts.waiting_bytes += room.bytes as u64;
        }
        counts
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        let held = std::mem::take(&mut *self.held.lock());
        held.jobs
            .into_iter()
            .for_each(|(_, job)| self.not_done(job));
        for peer in self.all() {
            peer.census.lock().clear();
            peer.words.lock().clear();
            let (waited, sent) = {
                let mut outbox = peer.outbox.lock();
                (outbox.take_back(|_| false), outbox.broken())
            };
            waited.into_iter().for_each(|job| self.not_done(job));
            sent.into_iter().for_each(|job| self.unknown(job, STOPPED));
        }
    }
}

/// What is asked of the timers here, whether it is a batch or not.
pub(crate) fn to_ask(
    mut requests: Vec<Request>,
    is_batch: bool,
    answer: impl FnOnce(Result<Vec<Response>, BatchError>) + Send + 'static,
) -> Asked {
    match requests.pop() {
        Some(request) if !is_batch => Asked::one(request, |one| {
            let one = one.map(|response| vec![response]);
            answer(one.map_err(|error| BatchError { index: None, error }));
        }),
        last => {
            requests.extend(last);
            Asked::batch(requests, answer)
        }
    }
}
