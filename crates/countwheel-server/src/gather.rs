//! Leases for a call, of this node and of all others.
//!
//! [`countwheel_cluster`] decides how many leases which node is asked for, what of an offer is taken, and what goes back.
//! This module asks the other nodes and answers them. A lease that no caller has yet is [`Held`]: dropped, it is released.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use countwheel_cluster::{Gathering, NodeId, OFFER, Offers};
use countwheel_durable::{
    Attempt, Due, Extended, Key, LeaseToken, QueueName, Request, Response, TimerError, TimerName,
    Timers,
};
use countwheel_peers::{Forwarder, TellWord, Word};
use countwheel_time::{Clock, Instant, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::bodies::{Bodies, Share};
use crate::cluster::joined::Map;
use crate::pull::{
    Desk, GLANCE, LEASE_MAX, LEASE_MIN, LEASED_MAX_BYTES, LEASES_MAX, Leased, QUEUES_MAX, Wanted,
};
use crate::word::About;

/// How long one question waits at another node for what comes due. A call that goes on asks again.
const SLICE: Duration = Duration::from_secs(5);
/// How much longer an answer may take.
const ANSWERS: Duration = Duration::from_secs(2);
/// How often a node says what it takes, and how long it waits for each answer: within the time of an offer.
const TAKES: u32 = 3;
const CONFIRMED_WITHIN: Duration = Duration::from_millis(500);
/// How long a changed end of a lease may take to be durable.
const EXTENDED_WITHIN: Duration = Duration::from_secs(10);

/// What one node says to another.
#[derive(Debug, Serialize, Deserialize)]
enum Said<'a> {
    /// It asks for leases.
    Asks {
        call: u64,
        #[serde(borrow)]
        queues: Vec<(&'a str, Duration)>,
        max: u32,
        bytes: usize,
        wait: Duration,
        #[serde(borrow)]
        worker: Option<&'a str>,
    },
    /// It takes these of an offer.
    Takes { offer: u64, which: Vec<usize> },
    /// The call is over.
    Ends { call: u64 },
}

/// What that answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answered<'a> {
    Offers {
        offer: u64,
        #[serde(borrow)]
        leases: Vec<SaidLease<'a>>,
    },
    Took(bool),
    Ended,
}

#[derive(Debug, Serialize, Deserialize)]
struct SaidLease<'a> {
    queue: &'a str,
    key: &'a str,
    id: &'a str,
    token: &'a str,
    run: Option<u32>,
    due: u64,
    until: u64,
    late: Duration,
    held: Duration,
    #[serde(with = "serde_bytes")]
    payload: &'a [u8],
}

/// A lease as its worker is told of it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) name: TimerName,
    pub(crate) id: String,
    pub(crate) token: LeaseToken,
    pub(crate) run: Option<u32>,
    pub(crate) due: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) late: Duration,
    pub(crate) held: Duration,
    pub(crate) payload: Vec<u8>,
}

impl Lease {
    fn of(attempt: Attempt, until: Timestamp) -> Self {
        Self {
            id: attempt.id.to_string(),
            token: attempt.lease_token(),
            run: attempt.run.map(|run| run.number),
            due: attempt.due,
            until,
            late: attempt.lateness(),
            held: attempt.held,
            name: attempt.name,
            payload: attempt.payload,
        }
    }

    /// `None` if another version says it in another way.
    fn of_said(said: &SaidLease<'_>) -> Option<Self> {
        Some(Self {
            name: TimerName {
                queue: QueueName::from_text(said.queue).ok()?,
                key: Key::new(said.key).ok()?,
            },
            id: said.id.to_owned(),
            token: said.token.parse().ok()?,
            run: said.run,
            due: Timestamp::from_micros(said.due),
            until: Timestamp::from_micros(said.until),
            late: said.late,
            held: said.held,
            payload: said.payload.to_vec(),
        })
    }
}

/// A lease that no caller has yet. Dropped, it is released.
#[derive(Debug)]
pub(crate) struct Held {
    timers: Timers,
    name: TimerName,
    token: LeaseToken,
    is_kept: bool,
}

impl Held {
    fn new(timers: &Timers, name: &TimerName, token: LeaseToken) -> Self {
        Self {
            timers: timers.clone(),
            name: name.clone(),
            token,
            is_kept: false,
        }
    }

    /// The caller has it, or another node.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_kept {
            let release = Request::Release {
                name: self.name.clone(),
                token: self.token,
            };
            // If that fails, the lease ends by itself.
            self.timers.submit(release, |_| ());
        }
    }
}

/// Leases for a call.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) leases: Vec<(Lease, Held)>,
    /// The memory for the bodies.
    pub(crate) shares: Vec<Share>,
    /// There was no memory for more.
    pub(crate) is_refused: bool,
}

/// The other nodes.
struct Others {
    forwarder: Weak<Forwarder>,
    map: Arc<Map>,
    /// Nodes of an earlier version, which lease for their own callers alone.
    apart: Mutex<BTreeSet<NodeId>>,
}

/// See the [module](self).
pub(crate) struct Leaser {
    desk: Arc<Desk>,
    timers: Timers,
    bodies: Arc<Bodies>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    others: OnceLock<Others>,
    next: AtomicU64,
    is_closed: AtomicBool,
    offers: Mutex<Offers<Held>>,
    /// The questions of other nodes that wait here.
    asked: Mutex<BTreeMap<(NodeId, u64), AbortHandle>>,
}

/// What comes to a call.
enum Event {
    /// Leases of this node.
    Here(Ready),
    /// Another node offers these. The answer is what is taken of it, the first so many.
    Offers(usize, Vec<Lease>, oneshot::Sender<Vec<Lease>>),
    /// It has confirmed what was taken, or has not.
    Confirmed(usize, Option<bool>, Vec<(Lease, Held)>),
    Failed(usize),
    Apart(usize),
}

impl Leaser {
    pub(crate) fn new(
        desk: Arc<Desk>,
        timers: Timers,
        bodies: Arc<Bodies>,
        clock: Arc<dyn Clock>,
        runtime: Handle,
    ) -> Self {
        Self {
            desk,
            timers,
            bodies,
            clock,
            runtime,
            others: OnceLock::new(),
            // Of another start of this node, under the same address, no number comes again.
            next: AtomicU64::new(u64::from(getrandom::u32().unwrap_or_default()) << 31),
            is_closed: AtomicBool::new(false),
            offers: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Calls lease from these nodes as well.
    pub(crate) fn among(&self, forwarder: &Arc<Forwarder>, map: Arc<Map>) {
        let others = Others {
            forwarder: Arc::downgrade(forwarder),
            map,
            apart: Mutex::default(),
        };
        // It is set once.
        let _ = self.others.set(others);
    }

    /// The service stops: the calls that wait answer with what they have, and what was offered is released.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.desk.close();
        let back = self.offers.lock().close();
        drop(back);
    }

    /// Leases timers that are due, on whatever node they are, and waits for some if none is.
    pub(crate) async fn lease(self: &Arc<Self>, wanted: &Wanted, share: Share) -> Ready {
        let others = self.reachable();
        if others.is_empty() {
            return self.here(wanted, share).await;
        }
        self.gather(wanted, share, others).await
    }

    /// The other nodes that may be asked.
    fn reachable(&self) -> Vec<(NodeId, String)> {
        let Some(others) = self.others.get() else {
            return Vec::new();
        };
        let apart = others.apart.lock();
        let nodes = others.map.others().into_iter();
        nodes.filter(|(node, _)| !apart.contains(node)).collect()
    }

    /// Leases what is due on this node.
    async fn here(&self, wanted: &Wanted, share: Share) -> Ready {
        let Leased {
            attempts,
            is_refused,
            share,
        } = self.desk.lease(&self.timers, wanted, share).await;
        let held = attempts.into_iter().map(|attempt| {
            let held = Held::new(&self.timers, &attempt.name, attempt.lease_token());
            // Those that were granted for another call, or have waited here, get the length that is asked for.
            let extended = self.extend(&attempt, wanted);
            (attempt, held, extended)
        });
        let mut ready = Ready {
            shares: share.into_iter().collect(),
            is_refused,
            ..Ready::default()
        };
        for (attempt, held, extended) in held.collect::<Vec<_>>() {
            let until = match extended {
                None => attempt.lease,
                Some(extended) => {
                    let extended = timeout(EXTENDED_WITHIN, extended).await;
                    let extended = extended.ok().and_then(Result::ok).and_then(Result::ok);
                    let extended = extended.map(Extended::try_from).and_then(Result::ok);
                    extended.map(|extended| extended.until)
                }
            };
            match until {
                Some(until) => ready.leases.push((Lease::of(attempt, until), held)),
                // A lease that is lost already is not this caller's.
                None => held.keep(),
            }
        }
        ready
    }

    fn extend(
        &self,
        attempt: &Attempt,
        wanted: &Wanted,
    ) -> Option<oneshot::Receiver<Result<Response, TimerError>>> {
        let lease = wanted.length_of(&attempt.name.queue)?;
        let has = attempt.lease?.saturating_since(attempt.started);
        if has.abs_diff(lease) <= lease / 8 {
            return None;
        }
        let request = Request::Extend {
            name: attempt.name.clone(),
            token: attempt.lease_token(),
            lease: lease.min(Due::MAX_AHEAD),
        };
        let (send, receive) = oneshot::channel();
        self.timers.submit(request, move |answer| {
            // The caller may be gone.
            send.send(answer).unwrap_or_default();
        });
        Some(receive)
    }

    /// Leases what is due on this node and on the others.
    async fn gather(
        self: &Arc<Self>,
        wanted: &Wanted,
        share: Share,
        others: Vec<(NodeId, String)>,
    ) -> Ready {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (events, mut coming) = mpsc::unbounded_channel();
        let begun = self.clock.boot();
        let ends = begun + wanted.wait.max(GLANCE);
        let count = others.len() + 1;
        let first = usize::try_from(number % count as u64).unwrap_or(0);
        let mut call = Gather {
            leaser: Arc::clone(self),
            number,
            others,
            gathering: Gathering::new(count, first, wanted.max, begun, ends),
            share,
            here: None,
            bytes: 0,
            ready: Ready::default(),
        };
        loop {
            let now = self.clock.boot();
            let is_closed = self.is_closed.load(Ordering::Acquire);
            if call.gathering.is_over(now) || is_closed {
                break;
            }
            for (place, many) in call.gathering.asks(now) {
                call.ask(place, many, wanted, ends.saturating_since(now), &events);
            }
            let wakes = call.gathering.wakes(now).saturating_since(now);
            // A clock that ticks more coarsely than the timer of the runtime must not keep a processor busy.
            let pause = wakes.max(Duration::from_millis(1));
            if let Ok(Some(event)) = timeout(pause, coming.recv()).await {
                call.came(event, self.clock.boot(), wanted.worker.as_ref());
            }
        }
        // What has come since is released as it is dropped.
        coming.close();
        let mut ready = std::mem::take(&mut call.ready);
        let rest = call.share.another();
        ready.shares.push(std::mem::replace(&mut call.share, rest));
        ready
    }

    /// Answers what another node says, if it is about leases; returns `tell` if it is about something else.
    pub(crate) fn word(
        self: &Arc<Self>,
        from: NodeId,
        word: &[u8],
        tell: TellWord,
    ) -> Option<TellWord> {
        let Some(word) = About::Leases.said(word) else {
            return Some(tell);
        };
        match postcard::from_bytes(word) {
            Ok(Said::Takes { offer, which }) => {
                let now = self.clock.boot();
                let taken = self.offers.lock().take(from, offer, &which, now);
                // It is the other node's to release from now on.
                taken.taken.into_iter().for_each(Held::keep);
                tell(said_of(&Answered::Took(taken.is_confirmed)));
                // Outside the lock: it is asked for at the engine.
                drop(taken.back);
            }
            Ok(Said::Ends { call }) => {
                if let Some(waits) = self.asked.lock().remove(&(from, call)) {
                    waits.abort();
                }
                let back = self.offers.lock().end(from, call);
                tell(said_of(&Answered::Ended));
                drop(back);
            }
            Ok(asks) => match wanted(&asks) {
                Some((call, wanted)) => self.asked_by(from, call, wanted, tell),
                None => tell(None),
            },
            Err(_) => tell(None),
        }
        None
    }

    /// Another node asks for leases.
    fn asked_by(self: &Arc<Self>, from: NodeId, call: u64, wanted: Wanted, tell: TellWord) {
        let leaser = Arc::clone(self);
        let task = self.runtime.spawn(async move {
            let share = leaser.bodies.share(None);
            let ready = leaser.here(&wanted, share).await;
            let (leases, held): (Vec<_>, Vec<_>) = ready.leases.into_iter().unzip();
            let tokens = leases.iter().map(|lease| lease.token.to_string());
            let tokens: Vec<_> = tokens.collect();
            let leases_said = leases.iter().zip(&tokens).map(|(lease, token)| SaidLease {
                queue: lease.name.queue.as_str(),
                key: lease.name.key.as_str(),
                id: &lease.id,
                token,
                run: lease.run,
                due: lease.due.as_micros(),
                until: lease.until.as_micros(),
                late: lease.late,
                held: lease.held,
                payload: &lease.payload,
            });
            let leases_said: Vec<_> = leases_said.collect();
            let offer = if held.is_empty() || leaser.is_closed.load(Ordering::Acquire) {
                0
            } else {
                let mut offers = leaser.offers.lock();
                offers.offer(from, call, held, leaser.clock.boot())
            };
            let leases = if offer == 0 { Vec::new() } else { leases_said };
            tell(said_of(&Answered::Offers { offer, leases }));
            if offer != 0 {
                leaser.sweep_later();
            }
        });
        let mut asked = self.asked.lock();
        asked.retain(|_, task| !task.is_finished());
        asked.insert((from, call), task.abort_handle());
    }

    /// What nobody takes is released.
    fn sweep_later(self: &Arc<Self>) {
        let leaser = Arc::clone(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(OFFER + Duration::from_millis(50)).await;
            let back = leaser.offers.lock().sweep(leaser.clock.boot());
            drop(back);
        });
    }

    /// Says something to another node. `None`: there is no answer in time. `Some(None)`: it does not understand.
    async fn say(
        &self,
        (node, address): &(NodeId, String),
        said: &Said<'_>,
        within: Duration,
    ) -> Option<Option<Vec<u8>>> {
        let told = {
            let forwarder = self.others.get()?.forwarder.upgrade()?;
            forwarder.say(*node, address, About::Leases.word(said)?)
        };
        match timeout(within, told).await {
            Ok(Ok(Word::Answered(bytes))) => Some(Some(bytes)),
            Ok(Ok(Word::NotUnderstood)) => Some(None),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Asks another node, and takes what the call takes of its offer.
    async fn ask(
        &self,
        place: usize,
        node: (NodeId, String),
        call: u64,
        wanted: Wanted,
        events: mpsc::UnboundedSender<Event>,
    ) {
        let tell = |event| {
            // The call may be over. What is held is released then.
            events.send(event).unwrap_or_default();
        };
        let queues = wanted.queues.iter();
        let asks = Said::Asks {
            call,
            queues: queues
                .map(|(queue, lease)| (queue.as_str(), *lease))
                .collect(),
            max: wanted.max,
            bytes: wanted.bytes,
            wait: wanted.wait,
            worker: wanted.worker.as_deref(),
        };
        let within = wanted.wait.max(GLANCE) + ANSWERS;
        let answer = match self.say(&node, &asks, within).await {
            Some(Some(answer)) => answer,
            Some(None) => {
                if let Some(others) = self.others.get()
                    && others.apart.lock().insert(node.0)
                {
                    tracing::warn!(node = %node.0, "a node of an earlier version leases for its own callers alone");
                }
                return tell(Event::Apart(place));
            }
            None => return tell(Event::Failed(place)),
        };
        let Ok(Answered::Offers { offer, leases }) = postcard::from_bytes(&answer) else {
            return tell(Event::Failed(place));
        };
        let leases = leases
            .iter()
            .map(Lease::of_said)
            .collect::<Option<Vec<_>>>();
        let (send, receive) = oneshot::channel();
        tell(Event::Offers(place, leases.unwrap_or_default(), send));
        if offer == 0 {
            return;
        }
        // A call that is over takes nothing.
        let taken = receive.await.unwrap_or_default();
        let takes = Said::Takes {
            offer,
            which: (0..taken.len()).collect(),
        };
        let mut is_confirmed = None;
        for _ in 0..TAKES {
            if let Some(Some(answer)) = self.say(&node, &takes, CONFIRMED_WITHIN).await {
                is_confirmed = match postcard::from_bytes(&answer) {
                    Ok(Answered::Took(is_confirmed)) => Some(is_confirmed),
                    _ => None,
                };
                break;
            }
        }
        if taken.is_empty() {
            return;
        }
        // Until it has confirmed that, a lease is the owner's to release.
        let taken = taken.into_iter().map(|lease| {
            let held = Held::new(&self.timers, &lease.name, lease.token);
            (lease, held)
        });
        let taken: Vec<_> = match is_confirmed {
            Some(true) => taken.collect(),
            _ => Vec::new(),
        };
        tell(Event::Confirmed(place, is_confirmed, taken));
    }
}

/// A call that asks all nodes.
struct Gather {
    leaser: Arc<Leaser>,
    number: u64,
    others: Vec<(NodeId, String)>,
    gathering: Gathering,
    share: Share,
    /// The question that waits on this node.
    here: Option<AbortHandle>,
    bytes: usize,
    ready: Ready,
}

impl Gather {
    /// Asks a node: this one, or another.
    fn ask(
        &mut self,
        place: usize,
        many: u32,
        wanted: &Wanted,
        left: Duration,
        events: &mpsc::UnboundedSender<Event>,
    ) {
        let (leaser, events) = (Arc::clone(&self.leaser), events.clone());
        let wanted = Wanted {
            max: many,
            bytes: LEASED_MAX_BYTES.saturating_sub(self.bytes),
            wait: left.min(wanted.wait).min(SLICE),
            ..wanted.clone()
        };
        let Some(other) = place.checked_sub(1) else {
            let share = self.share.another();
            let asked = leaser.runtime.clone().spawn(async move {
                let ready = leaser.here(&wanted, share).await;
                // The call may be over. What is held is released then.
                events.send(Event::Here(ready)).unwrap_or_default();
            });
            self.here = Some(asked.abort_handle());
            return;
        };
        let Some(node) = self.others.get(other).cloned() else {
            return;
        };
        let call = self.number;
        leaser.runtime.clone().spawn(async move {
            leaser.ask(place, node, call, wanted, events).await;
        });
    }

    fn came(&mut self, event: Event, now: Instant, worker: Option<&Arc<str>>) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        match event {
            Event::Here(mut here) => {
                let sizes = here.leases.iter().map(|(lease, _)| lease.payload.len());
                let fitting = self.fitting(sizes);
                let count = number(here.leases.len());
                let takes = self.gathering.offered(0, count, number(fitting), now);
                self.ready.is_refused |= here.is_refused;
                if here.is_refused {
                    self.gathering.fill();
                }
                here.leases.truncate(takes as usize);
                if takes > 0 && self.gathering.confirmed(0, Some(true), now) {
                    self.bytes += bytes_of(here.leases.iter().map(|(lease, _)| lease));
                    self.ready.leases.append(&mut here.leases);
                    self.ready.shares.append(&mut here.shares);
                }
            }
            Event::Offers(place, mut leases, tell) => {
                let fitting = self.fitting(leases.iter().map(|lease| lease.payload.len()));
                let count = number(leases.len());
                let mut fits = 0;
                for lease in leases.iter().take(fitting) {
                    if !self.share.take(lease.payload.len()) {
                        self.ready.is_refused = true;
                        break;
                    }
                    fits += 1;
                }
                let takes = self.gathering.offered(place, count, fits, now);
                leases.truncate(takes as usize);
                self.bytes += bytes_of(leases.iter());
                // Nobody waits for it if nothing was offered.
                drop(tell.send(leases));
            }
            Event::Confirmed(place, is_confirmed, mut leases) => {
                if self.gathering.confirmed(place, is_confirmed, now) {
                    for (lease, _) in &leases {
                        let desk = &self.leaser.desk;
                        desk.note_worker(&lease.name, lease.token, worker);
                    }
                    self.ready.leases.append(&mut leases);
                }
            }
            Event::Failed(place) => self.gathering.failed(place, now),
            Event::Apart(place) => self.gathering.apart(place),
        }
    }

    /// How many of the first bodies fit into the answer.
    fn fitting(&self, sizes: impl Iterator<Item = usize>) -> usize {
        let mut bytes = self.bytes;
        let fits = |size: &usize| {
            let is_first = bytes == 0;
            bytes += size;
            is_first || bytes <= LEASED_MAX_BYTES
        };
        sizes.take_while(fits).count()
    }
}

impl Drop for Gather {
    /// Tells those that were asked that the call is over, also where its caller has gone.
    fn drop(&mut self) {
        let (leaser, call) = (Arc::clone(&self.leaser), self.number);
        for place in self.gathering.asked() {
            let Some(other) = place.checked_sub(1) else {
                if let Some(here) = self.here.take() {
                    here.abort();
                }
                continue;
            };
            if let Some(node) = self.others.get(other).cloned() {
                let leaser = Arc::clone(&leaser);
                leaser.runtime.clone().spawn(async move {
                    // A node that does not hear it releases what it offers after a while.
                    drop(leaser.say(&node, &Said::Ends { call }, ANSWERS).await);
                });
            }
        }
    }
}

/// What another node asks for; `None` if no version of ours asks for that.
fn wanted(said: &Said<'_>) -> Option<(u64, Wanted)> {
    let Said::Asks {
        call,
        queues,
        max,
        bytes,
        wait,
        worker,
    } = said
    else {
        return None;
    };
    let queues = queues.iter().map(|(queue, lease)| {
        let queue = QueueName::from_text(*queue).ok()?;
        let lease = (*lease).clamp(LEASE_MIN, LEASE_MAX);
        Some((queue, lease))
    });
    let queues = queues.collect::<Option<Vec<_>>>();
    let queues = queues.filter(|it| (1..=QUEUES_MAX).contains(&it.len()))?;
    let wanted = Wanted {
        queues,
        max: (*max).min(LEASES_MAX),
        bytes: (*bytes).min(LEASED_MAX_BYTES),
        wait: (*wait).min(SLICE),
        worker: worker.map(Arc::from),
    };
    Some((*call, wanted))
}

fn bytes_of<'a>(leases: impl Iterator<Item = &'a Lease>) -> usize {
    leases.map(|lease| lease.payload.len()).sum()
}

/// A word, or what answers one.
fn said_of(said: &impl Serialize) -> Option<Vec<u8>> {
    postcard::to_allocvec(said).ok()
}

impl fmt::Debug for Leaser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaser").finish_non_exhaustive()
    }
}
