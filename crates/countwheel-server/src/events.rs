//! Events for callers: one log of what commits did, on this node and, while somebody listens, on all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::Shard;
use countwheel_durable::{
    EventCopies, EventLog, EventPosition, KnownEvents, ResumeError, ToldEvents,
};
use countwheel_peers::{Forwarder, Word};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::cluster::joined::Map;
use crate::word::About;

/// How many streams of events there may be at a time, unless said otherwise.
pub(crate) const STREAMS: usize = 1_024;
/// After so long without an event, a stream says that it is there.
pub(crate) const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Streams are woken in so many groups, one after the other: what comes between, such as a delivery, waits for the few streams of
/// one group and not for all.
const GROUPS: usize = 256;
/// Groups that come sooner after each other are woken together: a timer of the system is no finer.
const TICK: Duration = Duration::from_millis(1);
/// How often a stream looks for news at the most, by how many streams there are.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
const PAUSE_OF_ONE: Duration = Duration::from_micros(200);
/// How often other nodes are asked for what is new.
const ASKED_EVERY: Duration = Duration::from_millis(50);
/// How long another node may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How long a new stream waits for what other nodes say: two rounds in which a node does not answer, and a bit.
const HEARD_WITHIN: Duration = Duration::from_millis(2_500);
/// About how many events one answer has at the most.
const EVENTS_TOLD: usize = 8_192;

/// What one node asks of another. The answer is a [`ToldEvents`].
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// For what it told behind these places of shards.
    Asks(KnownEvents),
}

/// What there is of streams, and what has been since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Figures {
    /// Streams that are open.
    pub(crate) open: usize,
    /// Gaps that streams were told of.
    pub(crate) gaps: u64,
    /// Events that are known to be missing in them: those of one term.
    pub(crate) missed: u64,
    /// Streams that ended because their caller read nothing for too long.
    pub(crate) unread: u64,
}

/// Where streams get their events.
#[derive(Debug)]
pub(crate) struct Events {
    copies: EventCopies,
    news: Arc<Notify>,
    opened: Notify,
    groups: Vec<watch::Sender<u64>>,
    next_group: AtomicUsize,
    /// Up to where the groups of this round are told: all of them up to the same places, so that what is written for one of them is
    /// written for all.
    told_to: Mutex<Arc<Ends>>,
    streams: Arc<Semaphore>,
    open: Arc<AtomicUsize>,
    gaps: AtomicU64,
    missed: AtomicU64,
    unread: AtomicU64,
    /// Grows with each time that all other nodes were asked.
    rounds: watch::Sender<u64>,
    others: OnceLock<Others>,
}

/// The ends of the logs of all shards, at some time.
pub(crate) type Ends = BTreeMap<Shard, EventPosition>;

/// The other nodes.
struct Others {
    forwarder: Arc<Forwarder>,
    map: Arc<Map>,
}

impl std::fmt::Debug for Others {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Others").finish_non_exhaustive()
    }
}

/// A stream that is open, until this goes.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) ticks: watch::Receiver<u64>,
    open: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Events {
    pub(crate) fn new(log: Arc<EventLog>, streams: usize) -> Arc<Self> {
        let (news, open) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (wake, listeners) = (Arc::clone(&news), Arc::clone(&open));
        log.on_news(move || {
            if listeners.load(Ordering::Acquire) > 0 {
                wake.notify_one();
            }
        });
        Arc::new(Self {
            copies: EventCopies::new(log),
            news,
            opened: Notify::new(),
            groups: (0..GROUPS).map(|_| watch::Sender::new(0)).collect(),
            next_group: AtomicUsize::new(0),
            told_to: Mutex::default(),
            streams: Arc::new(Semaphore::new(streams.min(Semaphore::MAX_PERMITS))),
            open,
            gaps: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            rounds: watch::Sender::new(0),
            others: OnceLock::new(),
        })
    }

    pub(crate) fn log(&self) -> &EventLog {
        self.copies.log()
    }

    /// Up to where streams are told, for now. With more, they are woken again.
    pub(crate) fn told_to(&self) -> Arc<Ends> {
        Arc::clone(&self.told_to.lock())
    }

    /// Streams are told up to now.
    pub(crate) fn begin_round(&self) {
        let log = self.log();
        let ends = log.shards().into_iter();
        let ends = ends.filter_map(|shard| Some((shard, log.end(shard)?)));
        let ends = Arc::new(ends.collect());
        *self.told_to.lock() = ends;
    }

    /// How many streams are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// What the operator sees of the streams.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            open: self.open(),
            gaps: self.gaps.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
            unread: self.unread.load(Ordering::Relaxed),
        }
    }

    /// A stream was told of a gap, in which at least so many events are missing.
    pub(crate) fn count_gap(&self, missed: u64) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
        self.missed.fetch_add(missed, Ordering::Relaxed);
    }

    /// A stream has ended because its caller read nothing for too long.
    pub(crate) fn count_unread(&self) {
        self.unread.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there are other nodes, which may have shards of which this one knows nothing yet.
    pub(crate) fn has_others(&self) -> bool {
        self.others.get().is_some()
    }

    /// Hears of other nodes as well.
    pub(crate) fn among(&self, forwarder: &Arc<Forwarder>, map: Arc<Map>) {
        let others = Others {
            forwarder: Arc::clone(forwarder),
            map,
        };
        // Once is enough.
        self.others.set(others).unwrap_or_default();
    }

    /// Takes a place for a stream; `None` if there is none. What is known of other nodes is of now.
    pub(crate) async fn listen(&self) -> Option<Listening> {
        let permit = Arc::clone(&self.streams).try_acquire_owned().ok()?;
        self.open.fetch_add(1, Ordering::AcqRel);
        // What was new while there was no stream began no round.
        self.begin_round();
        let group = self.next_group.fetch_add(1, Ordering::Relaxed) % GROUPS;
        let listening = Listening {
            ticks: self.groups[group].subscribe(),
            open: Arc::clone(&self.open),
            _permit: permit,
        };
        self.opened.notify_one();
        if self.has_others() {
            // The round that is under way may have begun before.
            let mut rounds = self.rounds.subscribe();
            let two_more = *rounds.borrow_and_update() + 2;
            let fresh = rounds.wait_for(|&round| round >= two_more);
            // A node that does not answer holds up nobody for longer.
            drop(tokio::time::timeout(HEARD_WITHIN, fresh).await);
        }
        Some(listening)
    }

    /// Whether a stream can go on behind this place. Waits for other nodes while only they know.
    pub(crate) async fn resume(
        &self,
        shard: Shard,
        place: EventPosition,
    ) -> Result<(), ResumeError> {
        let heard = async {
            let mut rounds = self.rounds.subscribe();
            loop {
                match self.copies.resume(shard, place) {
                    Err(ResumeError::Unknown(_)) if self.has_others() => {}
                    resumed => return resumed,
                }
                if rounds.changed().await.is_err() {
                    return Err(ResumeError::Unknown(shard));
                }
            }
        };
        let heard = tokio::time::timeout(HEARD_WITHIN, heard).await;
        heard.unwrap_or(Err(ResumeError::Unknown(shard)))
    }

    /// Wakes streams when there is something new, and asks other nodes while there are streams.
    pub(crate) async fn run(self: Arc<Self>) {
        let asking = Arc::clone(&self);
        tokio::join!(self.wake(), asking.ask_others());
    }

    async fn wake(&self) {
        loop {
            self.news.notified().await;
            let open = u32::try_from(self.open()).unwrap_or(u32::MAX);
            let pause = (PAUSE_OF_ONE * open).clamp(PAUSE_MIN, PAUSE_MAX);
            let heard = self.groups.iter().filter(|it| it.receiver_count() > 0);
            let heard: Vec<_> = heard.collect();
            let pause = pause / u32::try_from(heard.len().max(1)).unwrap_or(1);
            self.begin_round();
            let mut owed = Duration::ZERO;
            for group in heard {
                group.send_modify(|tick| *tick += 1);
                owed += pause;
                if owed >= TICK {
                    tokio::time::sleep(std::mem::take(&mut owed)).await;
                }
            }
            tokio::time::sleep(owed).await;
        }
    }

    async fn ask_others(&self) {
        loop {
            if self.open() == 0 {
                self.opened.notified().await;
            }
            let Some(others) = self.others.get() else {
                self.opened.notified().await;
                continue;
            };
            let known = self.copies.asks();
            let asked = others.map.others().into_iter();
            let asked = asked.map(|(node, address)| ask(others, node, address, &known));
            let told = futures_of_all(asked).await;
            let more = self.copies.take(told.into_iter().flatten().collect());
            self.rounds.send_modify(|round| *round += 1);
            if !more {
                tokio::time::sleep(ASKED_EVERY).await;
            }
        }
    }

    /// Answers a word of another node; `None` if it is not about events.
    pub(crate) fn word(&self, word: &[u8]) -> Option<Option<Vec<u8>>> {
        let Ok(Said::Asks(known)) = postcard::from_bytes(About::Events.said(word)?) else {
            return Some(None);
        };
        let told = self.copies.answer(&known, EVENTS_TOLD);
        Some(postcard::to_allocvec(&told).ok())
    }
}

/// Asks one node for what it told.
async fn ask(
    others: &Others,
    node: NodeId,
    address: String,
    known: &KnownEvents,
) -> Option<ToldEvents> {
    let word = About::Events.word(&Said::Asks(known.clone()))?;
    let answer = others.forwarder.say(node, &address, word);
    let answer = tokio::time::timeout(ANSWERED_WITHIN, answer).await;
    let Ok(Ok(Word::Answered(answer))) = answer else {
        return None;
    };
    postcard::from_bytes(&answer).ok()
}

/// Waits for all of them, which go on beside each other.
async fn futures_of_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(|it| (Box::pin(it), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_done = true;
        for (future, output) in &mut waiting {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(ready) => *output = Some(ready),
                    std::task::Poll::Pending => is_done = false,
                }
            }
        }
        if is_done {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    waiting
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}
