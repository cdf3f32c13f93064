//! The last events of a process, in memory, for readers that each have a place of their own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::{EventSink, TimerEvent};
use crate::planted::planted;
use crate::store::{Fence, Lease, Ownership, Shard};

/// A place behind an event of a shard: in which term of its owners, and behind which event of the term. The first
/// event of a term has the number 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EventPosition {
    /// The term: the fence of its owner.
    pub term: Fence,
    /// The number of the event.
    pub number: u64,
}

/// A reader asks for what follows an event that there was not yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("shard {} has no event {} of the term {} yet", shard.0, position.number, position.term.0)]
pub struct FutureEvent {
    /// The shard.
    pub shard: Shard,
    /// The place that does not exist yet.
    pub position: EventPosition,
}

/// What one commit did.
#[derive(Debug)]
struct Told {
    first: u64,
    events: Vec<TimerEvent>,
    bytes: usize,
}

impl Told {
    fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }
}

/// What an owner in another process told of a term: from the event of the number `first` on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnEvents {
    /// The term.
    pub term: u64,
    /// The number of the first event, or of the next one.
    pub first: u64,
    /// The events, in order.
    pub events: Vec<TimerEvent>,
    /// The number of the last event of the term, which may be a later one.
    pub end: u64,
    /// Whether these are the last of the term, and every commit of it was told.
    pub is_closed: bool,
}

/// What a reader gets at a time: what is left of one commit.
///
/// See [`EventLog::read`].
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Whether events before these may be missing.
    pub gap: bool,
    /// The term of the events.
    pub term: Fence,
    /// The number of the first one.
    pub first: u64,
    told: Option<Arc<Told>>,
    skip: usize,
}

impl Chunk {
    /// The events, in order. Empty if there is nothing more to read but the gap, or the beginning of a term.
    #[must_use]
    pub fn events(&self) -> &[TimerEvent] {
        let events = self.told.as_ref().map(|told| &told.events[self.skip..]);
        events.unwrap_or_default()
    }

    /// The place behind all of them.
    #[must_use]
    pub fn end(&self) -> EventPosition {
        EventPosition {
            term: self.term,
            number: self.first + self.events().len() as u64 - 1,
        }
    }
}

/// One term of a shard, as far as it is kept.
#[derive(Debug)]
struct Term {
    term: Fence,
    kept: VecDeque<Arc<Told>>,
    /// The number of the first event that is kept, or comes next.
    oldest: u64,
    next: u64,
    /// Whether every commit of it was told.
    is_closed: bool,
    /// Whether its owner is in this process.
    is_own: bool,
}

impl Term {
    fn new(term: Fence, next: u64, is_own: bool) -> Self {
        Self {
            term,
            kept: VecDeque::new(),
            oldest: next,
            next,
            is_closed: false,
            is_own,
        }
    }
}

#[derive(Debug, Default)]
struct Kept {
    /// The terms of each shard, oldest first.
    shards: BTreeMap<Shard, VecDeque<Term>>,
    /// Of which shard and term the commits are, oldest first.
    order: VecDeque<(Shard, Fence)>,
    events: usize,
    bytes: usize,
}

/// What is called when there is something new.
type OnNews = Box<dyn Fn() + Send + Sync>;

/// The last events of all shards of a process. A reader says behind which event it goes on, so that any number of
/// readers cost the writer nothing; one that is too slow finds a gap.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_time::ManualClock;
/// use countwheel_durable::store::{MemoryStore, Shard};
/// use countwheel_durable::{
///     Config, Due, Engine, Event, EventKind, EventLog, Precondition, Request, RetryPolicy, SetOptions,
///     Ticket, TimerName,
/// };
///
/// let log = Arc::new(EventLog::new(EventLog::EVENTS, EventLog::BYTES));
/// let config = Config { events: Some(log.clone()), ..Config::default() };
/// let clock = Arc::new(ManualClock::new());
/// let mut engine = Engine::open(Arc::new(MemoryStore::new(1)), Shard::ONLY, clock, config)?;
/// let start = log.end(Shard::ONLY).expect("a term has begun");
///
/// let name = TimerName::new("orders", "order-42")?;
/// let set = Request::Set {
///     name,
///     due: Due::In(std::time::Duration::from_secs(5)),
///     policy: RetryPolicy::default(),
///     payload: Vec::new(),
///     precondition: Precondition::None,
///     options: SetOptions::default(),
/// };
/// engine.turn(vec![Event::Request(Ticket(1), set)], &mut |_| {})?;
///
/// let chunk = log.read(Shard::ONLY, Some(start))?.expect("there is news");
/// assert_eq!(chunk.events()[0].kind, EventKind::Set);
/// assert!(!chunk.gap);
/// assert!(log.read(Shard::ONLY, Some(chunk.end()))?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EventLog {
    kept: Mutex<Kept>,
    most: usize,
    most_bytes: usize,
    /// Grows with everything that is told.
    version: AtomicU64,
    store: AtomicU64,
    on_news: RwLock<Option<OnNews>>,
}

impl EventLog {
    /// How many events a service keeps.
    pub const EVENTS: usize = 65_536;
    /// How many bytes of events a service keeps.
    pub const BYTES: usize = 32 << 20;
    /// How many terms of a shard are remembered.
    const TERMS: usize = 4;

    /// Keeps the last `events` events, or fewer if those are more than `bytes` bytes. The commit that is told last is
    /// kept in any case.
    #[must_use]
    pub fn new(events: usize, bytes: usize) -> Self {
        Self {
            kept: Mutex::default(),
            most: events,
            most_bytes: bytes,
            version: AtomicU64::new(0),
            store: AtomicU64::new(0),
            on_news: RwLock::new(None),
        }
    }

    /// Calls `wake` whenever there is something new, on the thread of whoever tells it: it must not wait, and must not
    /// read.
    pub fn on_news(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.on_news.write() = Some(Box::new(wake));
    }

    /// A number that changes whenever there is something new.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The id of the store whose shards these are; 0 before the first was opened.
    #[must_use]
    pub fn store(&self) -> u64 {
        self.store.load(Ordering::Acquire)
    }

    /// The place behind the last event of a shard; `None` if no term of it is known.
    #[must_use]
    pub fn end(&self, shard: Shard) -> Option<EventPosition> {
        let kept = self.kept.lock();
        let last = kept.shards.get(&shard)?.back()?;
        Some(EventPosition {
            term: last.term,
            number: last.next - 1,
        })
    }

    /// How many events are kept, and how many bytes of them.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let kept = self.kept.lock();
        (kept.events, kept.bytes)
    }

    /// Whether the last term of the shard has been told to its end.
    #[must_use]
    pub fn is_closed(&self, shard: Shard) -> bool {
        let kept = self.kept.lock();
        let last = kept.shards.get(&shard).and_then(VecDeque::back);
        last.is_some_and(|term| term.is_closed)
    }

    /// The next events of a shard behind `after`, or the oldest that are kept: of one commit at the most. `None` if
    /// there is nothing new.
    ///
    /// A chunk says [`gap`](Chunk::gap) if events between `after` and its own may be missing: `after` is no longer kept,
    /// or a term ended in between of which the end is not known.
    ///
    /// # Errors
    /// [`FutureEvent`] if `after` is behind what there is.
    pub fn read(
        &self,
        shard: Shard,
        after: Option<EventPosition>,
    ) -> Result<Option<Chunk>, FutureEvent> {
        self.kept.lock().read(shard, after)
    }

    /// The same of at most `most` commits in a row, which costs less than one by one.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_some(
        &self,
        shard: Shard,
        mut after: Option<EventPosition>,
        most: usize,
    ) -> Result<Vec<Chunk>, FutureEvent> {
        let kept = self.kept.lock();
        let mut chunks = Vec::new();
        while chunks.len() < most {
            let Some(chunk) = kept.read(shard, after)? else {
                break;
            };
            after = Some(chunk.end());
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    /// Whether an owner in this process told of a term of the shard.
    pub(super) fn has_own(&self, shard: Shard, term: Fence) -> bool {
        let kept = self.kept.lock();
        let terms = kept.shards.get(&shard).into_iter().flatten();
        terms.into_iter().any(|it| it.term == term && it.is_own)
    }

    /// The shards of which a term is known.
    #[must_use]
    pub fn shards(&self) -> Vec<Shard> {
        self.kept.lock().shards.keys().copied().collect()
    }

    /// What owners in this process told of a shard behind `after`, for another process that keeps a copy: about
    /// `most` events at the most, but for those of the last commit. A term without news is told of as well.
    #[must_use]
    pub fn own(&self, shard: Shard, after: Option<EventPosition>, most: usize) -> Vec<OwnEvents> {
        let kept = self.kept.lock();
        let mut own = Vec::new();
        let mut left = most;
        let after = after.unwrap_or_default();
        let terms = kept.shards.get(&shard).into_iter().flatten();
        for term in terms.filter(|it| it.is_own && it.term >= after.term) {
            let known = if term.term == after.term {
                after.number
            } else {
                0
            };
            let first = (known + 1).clamp(term.oldest, term.next);
            let mut events = Vec::new();
            let place = term.kept.partition_point(|told| told.last() < first);
            for told in term.kept.iter().skip(place) {
                if left == 0 {
                    break;
                }
                let skip = usize::try_from(first.saturating_sub(told.first)).unwrap_or(usize::MAX);
                let news = told.events.get(skip..).unwrap_or_default();
                events.extend_from_slice(news);
                left = left.saturating_sub(news.len());
            }
            let is_whole = first + events.len() as u64 == term.next;
            own.push(OwnEvents {
                term: term.term.0,
                first,
                events,
                end: term.next - 1,
                is_closed: term.is_closed && (is_whole || planted!(EventsCloseTooEarly)),
            });
            if !is_whole {
                // What follows comes once the copy is so far.
                break;
            }
        }
        own
    }

    /// Takes in what an owner in another process told of a shard. What is known already is left out; what is missing
    /// in between is a gap. Says whether there was anything new.
    ///
    /// ```
    /// use countwheel_durable::store::{Fence, Shard};
    /// use countwheel_durable::{EventLog, EventPosition, OwnEvents, SettingName, TimerEvent, Timestamp};
    ///
    /// let copy = EventLog::new(EventLog::EVENTS, EventLog::BYTES);
    /// let event = TimerEvent::of_setting(SettingName::new("queue/orders")?, true, Timestamp::EPOCH);
    /// let told = OwnEvents { term: 3, first: 41, events: vec![event], end: 41, is_closed: false };
    /// assert!(copy.copy(7, Shard(2), told.clone()));
    /// assert!(!copy.copy(7, Shard(2), told));
    /// let end = EventPosition { term: Fence(3), number: 41 };
    /// assert_eq!(copy.end(Shard(2)), Some(end));
    /// # Ok::<(), countwheel_durable::SettingError>(())
    /// ```
    pub fn copy(&self, store: u64, shard: Shard, told: OwnEvents) -> bool {
        let OwnEvents {
            term,
            first,
            mut events,
            is_closed,
            ..
        } = told;
        let (term, first) = (Fence(term), first.max(1));
        self.store.store(store, Ordering::Release);
        {
            let mut kept = self.kept.lock();
            let newest = kept.shards.get(&shard).and_then(VecDeque::back);
            let mut is_news = false;
            match newest.map(|newest| (newest.term, newest.is_own)) {
                // What this process owns, or owned later, it knows better.
                Some((newest, is_own)) if newest > term || newest == term && is_own => {
                    return false;
                }
                Some((newest, _)) if newest == term => {}
                _ => {
                    kept.begin(shard, Term::new(term, first, false));
                    is_news = true;
                }
            }
            let Some(of_shard) = kept.shards.get_mut(&shard).and_then(VecDeque::back_mut) else {
                return false;
            };
            is_news |= is_closed && !of_shard.is_closed;
            of_shard.is_closed |= is_closed;
            if first > of_shard.next && !planted!(EventsHoleUnsaid) {
                // What is between is lost: as if all up to there had gone.
                let dropped = mem::take(&mut of_shard.kept);
                (of_shard.oldest, of_shard.next) = (first, first);
                for told in dropped {
                    kept.events -= told.events.len();
                    kept.bytes -= told.bytes;
                }
                is_news = true;
            } else {
                let known = of_shard.next.saturating_sub(first);
                let known = usize::try_from(known).unwrap_or(usize::MAX);
                events.drain(..known.min(events.len()));
            }
            if !events.is_empty() {
                kept.add(shard, term, events);
                kept.bound(self.most, self.most_bytes);
                is_news = true;
            }
            if !is_news {
                return false;
            }
        }
        self.tell_news();
        true
    }

    fn tell_news(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
        if let Some(wake) = &*self.on_news.read() {
            wake();
        }
    }
}

/// What a term has from `number` on: the rest of one commit.
fn chunk_at(term: &Term, number: u64, gap: bool) -> Chunk {
    let place = term.kept.partition_point(|told| told.last() < number);
    let told = term.kept.get(place).cloned();
    let skip = told.as_ref().map_or(0, |told| number - told.first);
    Chunk {
        gap,
        term: term.term,
        first: number,
        told,
        skip: usize::try_from(skip).unwrap_or(usize::MAX),
    }
}

impl Kept {
    fn read(
        &self,
        shard: Shard,
        after: Option<EventPosition>,
    ) -> Result<Option<Chunk>, FutureEvent> {
        let Some(terms) = self.shards.get(&shard) else {
            return Ok(None);
        };
        let Some(after) = after else {
            // From the oldest on: what was before is nobody's.
            let first = terms.front();
            return Ok(first.map(|term| chunk_at(term, term.oldest, false)));
        };
        let Some(at) = terms.iter().position(|term| term.term == after.term) else {
            let newest = terms.back().map_or(Fence(0), |term| term.term);
            if after.term > newest {
                return Err(FutureEvent {
                    shard,
                    position: after,
                });
            }
            // Of that term nothing is known any more.
            let next = terms.iter().find(|term| term.term > after.term);
            return Ok(next.map(|term| chunk_at(term, term.oldest, true)));
        };
        let term = &terms[at];
        if after.number >= term.next {
            // Its owner may have told more, of which the copy ended before it was there.
            let next = terms.get(at + 1).filter(|_| !term.is_own);
            if let Some(next) = next {
                return Ok(Some(chunk_at(next, next.oldest, true)));
            }
            return Err(FutureEvent {
                shard,
                position: after,
            });
        }
        let wanted = after.number + 1;
        if wanted < term.next {
            let is_gone = wanted < term.oldest;
            let from = wanted.max(term.oldest);
            if is_gone && from >= term.next {
                // All of the term is gone.
                return Ok(Some(chunk_at(term, term.next, true)));
            }
            let gap = is_gone && !planted!(EventsLostAtEdge);
            return Ok(Some(chunk_at(term, from, gap)));
        }
        let Some(next) = terms.get(at + 1) else {
            return Ok(None);
        };
        let follows = next.term.0 == term.term.0 + 1 || planted!(EventsTermSkipped);
        let is_whole = term.is_closed && follows && next.oldest == 1;
        let gap = !is_whole && !planted!(EventsTermsJoined);
        Ok(Some(chunk_at(next, next.oldest, gap)))
    }

    fn begin(&mut self, shard: Shard, term: Term) {
        let terms = self.shards.entry(shard).or_default();
        terms.push_back(term);
        if terms.len() > EventLog::TERMS
            && let Some(oldest) = terms.pop_front()
        {
            for told in oldest.kept {
                self.events -= told.events.len();
                self.bytes -= told.bytes;
            }
            // Its places in the order mean nothing any more.
        }
    }

    fn add(&mut self, shard: Shard, term: Fence, events: Vec<TimerEvent>) {
        let terms = self.shards.get_mut(&shard).into_iter().flatten();
        let Some(of_shard) = terms.rev().find(|it| it.term == term) else {
            return;
        };
        let bytes = events.iter().map(TimerEvent::bytes).sum();
        let first = of_shard.next;
        of_shard.next += events.len() as u64;
        self.events += events.len();
        self.bytes += bytes;
        of_shard.kept.push_back(Arc::new(Told {
            first,
            events,
            bytes,
        }));
        self.order.push_back((shard, term));
    }

    /// Drops the oldest commits without which there are still as many events as are to be kept, and those beyond the
    /// bytes.
    fn bound(&mut self, most: usize, most_bytes: usize) {
        while self.order.len() > 1 {
            let Some(&(shard, term)) = self.order.front() else {
                return;
            };
            let terms = self.shards.get_mut(&shard).into_iter().flatten();
            let oldest = terms.into_iter().find(|it| it.term == term);
            let Some((of_shard, len)) = oldest.and_then(|it| {
                let len = it.kept.front()?.events.len();
                Some((it, len))
            }) else {
                self.order.pop_front();
                continue;
            };
            if self.events - len < most && self.bytes <= most_bytes {
                return;
            }
            self.order.pop_front();
            if let Some(told) = of_shard.kept.pop_front() {
                of_shard.oldest = told.last() + 1;
                self.events -= told.events.len();
                self.bytes -= told.bytes;
            }
        }
    }
}

impl EventSink for EventLog {
    fn opened(&self, ownership: &Ownership) {
        let lease = ownership.lease;
        // The id of a shard is that of its store, made different by its number: twice is as it was.
        let store = lease.shard.id(ownership.store_id);
        self.store.store(store, Ordering::Release);
        self.kept
            .lock()
            .begin(lease.shard, Term::new(lease.fence, 1, true));
        self.tell_news();
    }

    fn committed(&self, lease: Lease, events: Vec<TimerEvent>) {
        {
            let mut kept = self.kept.lock();
            kept.add(lease.shard, lease.fence, events);
            kept.bound(self.most, self.most_bytes);
        }
        self.tell_news();
    }

    fn closed(&self, lease: Lease) {
        {
            let mut kept = self.kept.lock();
            let terms = kept.shards.get_mut(&lease.shard).into_iter().flatten();
            for term in terms.filter(|term| term.term == lease.fence) {
                term.is_closed = true;
            }
        }
        self.tell_news();
    }
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (events, bytes) = self.held();
        f.debug_struct("EventLog")
            .field("events", &events)
            .field("bytes", &bytes)
            .finish_non_exhaustive()
    }
}
