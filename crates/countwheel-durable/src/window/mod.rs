//! The near future in memory: for each queue, in order of deadline, a part of what the store
//! holds, within a number of bytes.
//!
//! The store is the truth. In the order of each clock, the window knows everything up to a position
//! and nothing beyond. For a queue that has used up its share, it knows only where the queue goes
//! on. So any part of the window can be thrown away and read again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use countwheel_time::Timestamp;

mod lane;
mod refill;

pub(crate) use lane::Room;
use lane::{Ends, Lane, Queue};
pub(crate) use refill::LOOK_MIN;

use crate::clocks::Now;
use crate::store::DueEntry;
use crate::{DueClock, Key, QueueName, TimerName, Wake};

/// How many queues at a time are held to their share: each costs some memory of its own.
const CAPPED_MAX: usize = 1_024;

/// The nearest records, by queue.
#[derive(Debug)]
pub(crate) struct Window {
    queues: BTreeMap<QueueName, Queue>,
    sides: [Side; 2],
    /// The queues that have something due, in turns.
    ring: VecDeque<QueueName>,
    /// Those that go on in the store before their side does.
    capped: BTreeSet<(DueClock, QueueName)>,
    room: Room,
    held: Held,
    /// Whether the last look for a queue that could give something up found none.
    stuck: bool,
    /// What wakes before these, by each clock, wakes soon.
    horizon: [Timestamp; 2],
    /// Whether it is being filled until there is enough.
    filling: bool,
    /// The capped queue that was read last.
    served: Option<(DueClock, QueueName)>,
    pub(crate) refills: u64,
    pub(crate) scanned: u64,
    pub(crate) rebuilds: u64,
}

/// What is held of one clock's order.
#[derive(Debug)]
struct Side {
    clock: DueClock,
    /// Nothing that wakes later belongs here.
    until: Timestamp,
    /// Everything up to here, and nothing beyond, is in memory, but for capped queues.
    loaded: Wake,
    /// Whether the last page of it was nearly all of capped queues.
    is_sparse: bool,
    /// The first entry of each queue that is not in the ring.
    heads: BTreeMap<Wake, QueueName>,
    /// The last entry of each queue.
    tails: BTreeMap<Wake, QueueName>,
}

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Held {
    entries: usize,
    bytes: usize,
    /// Bytes, but an entry counts at least what one of the greatest allowed number may.
    cost: usize,
}

impl Side {
    fn new(clock: DueClock, from: Timestamp, until: Timestamp) -> Self {
        Self {
            clock,
            until,
            loaded: Wake {
                at: from,
                ..Wake::default()
            }
            .before(),
            is_sparse: false,
            heads: BTreeMap::new(),
            tails: BTreeMap::new(),
        }
    }

    /// Notes that a queue's first and last entry have changed.
    fn update(&mut self, queue: &QueueName, in_ring: bool, old: Ends, new: Ends) {
        if old == new {
            return;
        }
        if let Some((first, last)) = old {
            if !in_ring {
                self.heads.remove(&first);
            }
            self.tails.remove(&last);
        }
        if let Some((first, last)) = new {
            if !in_ring {
                self.heads.insert(first, queue.clone());
            }
            self.tails.insert(last, queue.clone());
        }
    }
}

impl Window {
    /// An empty window over what wakes between `from` and `until`, both included, with room
    /// for so much.
    pub(crate) fn new(from: Now, until: Now, room: Room) -> Self {
        Self {
            queues: BTreeMap::new(),
            sides: DueClock::ALL.map(|clock| Side::new(clock, from.by(clock), until.by(clock))),
            ring: VecDeque::new(),
            capped: BTreeSet::new(),
            room,
            held: Held::default(),
            stuck: false,
            horizon: [Timestamp::EPOCH; 2],
            filling: true,
            served: None,
            refills: 0,
            scanned: 0,
            rebuilds: 0,
        }
    }

    /// Throws away what is held by `clock` and begins anew at `from`, to be read again from
    /// the store.
    pub(crate) fn restart(&mut self, clock: DueClock, from: Timestamp, until: Timestamp) {
        let names: Vec<_> = self.queues.keys().cloned().collect();
        for name in names {
            self.lane(clock, &name, |lane| *lane = Lane::default());
            self.uncap(clock, &name);
        }
        self.sides[clock as usize] = Side::new(clock, from, until);
        self.rebuilds += 1;
        self.stuck = false;
        self.filling = true;
    }

    /// Sets the room of the window from now on. Entries that no longer fit are left to the store,
    /// the latest first.
    pub(crate) fn resize(&mut self, room: Room) {
        self.room = room;
        self.held.cost = 0;
        for (name, queue) in &mut self.queues {
            self.held.cost += Queue::bytes(name);
            for lane in &mut queue.lanes {
                self.held.cost += lane.count_cost(room);
            }
        }
        self.stuck = false;
        self.filling = true;
        self.keep_to_room();
    }

    pub(crate) fn len(&self) -> usize {
        self.held.entries
    }

    /// The memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.held.bytes
    }

    /// How many queues are held to their share.
    pub(crate) fn capped(&self) -> usize {
        self.capped.len()
    }

    /// Whether nothing is held, and nothing left in the store, by `clock`.
    pub(crate) fn is_done(&self, clock: DueClock) -> bool {
        let side = &self.sides[clock as usize];
        side.tails.is_empty()
            && side.loaded == Wake::MAX
            && self.capped.iter().all(|(capped, _)| *capped != clock)
    }

    /// Whether what wakes then is the window's to hold.
    pub(crate) fn reaches(&self, clock: DueClock, wake: Wake) -> bool {
        wake.at <= self.sides[clock as usize].until
    }

    /// Takes in an entry if it is near enough and its queue has room; one that is left out
    /// will be read from the store when its time comes.
    pub(crate) fn admit(&mut self, clock: DueClock, entry: DueEntry) {
        let DueEntry { wake, name, .. } = entry;
        if wake <= self.sides[clock as usize].loaded {
            self.insert(clock, wake, &name.queue, name.key);
        }
    }

    /// Drops the entry of a record that has changed or will.
    pub(crate) fn forget(&mut self, clock: DueClock, wake: Wake, queue: &QueueName) {
        let room = self.room;
        self.lane(clock, queue, |lane| lane.remove(wake, room));
    }

    /// The next entry whose time has come, of the queue whose turn it is among those that
    /// `may`.
    pub(crate) fn take(&mut self, now: Now, may: impl Fn(&QueueName) -> bool) -> Option<DueEntry> {
        self.promote(now);
        for _ in 0..self.ring.len() {
            let name = self.ring.pop_front()?;
            let Some((clock, wake)) = self.next_due(now, &name) else {
                self.leave_ring(&name);
                continue;
            };
            if !may(&name) {
                self.ring.push_back(name);
                continue;
            }
            let room = self.room;
            let key = self.lane(clock, &name, |lane| lane.remove(wake, room))?;
            if self.next_due(now, &name).is_some() {
                self.ring.push_back(name.clone());
            } else {
                self.leave_ring(&name);
            }
            let name = TimerName { queue: name, key };
            return Some(DueEntry {
                wake,
                name,
                kind: None,
            });
        }
        None
    }

    /// Whether something is held that is due, or may be in the store alone.
    pub(crate) fn has_due(&self, now: Now) -> bool {
        self.is_due(now) || self.has_unread(now)
    }

    /// Whether something that is due may be in the store alone.
    fn has_unread(&self, now: Now) -> bool {
        let mut capped = self.capped.iter().filter_map(|(clock, name)| {
            let rest = self.rest(*clock, name)?;
            Some((*clock, rest.at))
        });
        let is_past = |side: &Side| {
            let end = now.by(side.clock).min(side.until);
            side.loaded >= Wake::end_of(end)
        };
        !self.sides.iter().all(is_past) || capped.any(|(clock, at)| at <= now.by(clock))
    }

    /// Whether a queue that `may` is waiting for its turn.
    pub(crate) fn is_ready(&self, may: impl Fn(&QueueName) -> bool) -> bool {
        self.ring.iter().any(may)
    }

    /// Whether a queue that `may` is waiting for its turn, or something is due that has not been lined up yet.
    pub(crate) fn might_start(&self, now: Now, may: impl Fn(&QueueName) -> bool) -> bool {
        let mut heads = self.sides.iter().filter_map(|side| {
            let first = side.heads.keys().next()?;
            Some((side.clock, first.at))
        });
        self.is_ready(may) || heads.any(|(clock, at)| at <= now.by(clock)) || self.has_unread(now)
    }

    /// By `clock`, never later than the next entry of a queue that does not wait for its turn
    /// already.
    pub(crate) fn next_wake(&self, clock: DueClock) -> Option<Timestamp> {
        let side = &self.sides[clock as usize];
        let head = side.heads.keys().next().map(|wake| wake.at);
        head.into_iter().chain(self.next_read(side)).min()
    }

    /// About `most` of the timers that are due, of each queue as many: those that
    /// [`take`](Self::take) gives next, unless a limit is in their way.
    pub(crate) fn due_names(&self, now: Now, most: usize) -> impl Iterator<Item = TimerName> {
        let heads = self.sides.iter().flat_map(move |side| {
            let due = side.heads.range(..=Wake::end_of(now.by(side.clock)));
            due.map(|(_, name)| name)
        });
        let ready: Vec<_> = self.ring.iter().chain(heads).take(most).collect();
        let each = most.div_ceil(ready.len().max(1));
        let of_queue = move |name: &QueueName| {
            let lanes = self.queues.get(name).map(|queue| &queue.lanes);
            let lanes = DueClock::ALL.into_iter().zip(lanes.into_iter().flatten());
            let due = lanes.flat_map(|(clock, lane)| {
                let due = lane.entries.range(..=Wake::end_of(now.by(clock)));
                due.take(each)
            });
            let named = due.map(|(_, key)| TimerName {
                queue: name.clone(),
                key: key.clone(),
            });
            named.collect::<Vec<_>>()
        };
        ready.into_iter().flat_map(of_queue).take(most)
    }

    /// Lines up the queues with due timers for their turn.
    fn promote(&mut self, now: Now) {
        for clock in DueClock::ALL {
            while let Some((wake, name)) = self.sides[clock as usize].heads.first_key_value()
                && wake.at <= now.by(clock)
            {
                let name = name.clone();
                if let Some(queue) = self.queues.get_mut(&name) {
                    queue.in_ring = true;
                    for (side, lane) in self.sides.iter_mut().zip(&queue.lanes) {
                        if let Some((first, _)) = lane.ends() {
                            side.heads.remove(&first);
                        }
                    }
                }
                self.ring.push_back(name);
            }
        }
    }

    fn leave_ring(&mut self, name: &QueueName) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.in_ring = false;
        for (side, lane) in self.sides.iter_mut().zip(&queue.lanes) {
            if let Some((first, _)) = lane.ends() {
                side.heads.insert(first, name.clone());
            }
        }
        self.drop_if_empty(name);
    }

    /// Of what is due in a queue, the first.
    fn next_due(&self, now: Now, name: &QueueName) -> Option<(DueClock, Wake)> {
        let queue = self.queues.get(name)?;
        let lanes = DueClock::ALL.into_iter().zip(&queue.lanes);
        lanes
            .filter_map(|(clock, lane)| Some((clock, lane.ends()?.0)))
            .filter(|(clock, first)| first.at <= now.by(*clock))
            .min_by_key(|(_, first)| *first)
    }

    fn rest(&self, clock: DueClock, name: &QueueName) -> Option<Wake> {
        self.queues.get(name)?.lanes[clock as usize].rest
    }

    /// Takes in an entry, unless its queue leaves that to the store.
    fn insert(&mut self, clock: DueClock, wake: Wake, name: &QueueName, key: Key) {
        let room = self.room;
        let mut key = Some(key);
        let mut put = |lane: &mut Lane| {
            if lane.rest.is_some_and(|rest| wake >= rest) {
                return Some((0, true));
            }
            lane.insert(wake, key.take()?, room);
            Some((lane.cost, lane.rest.is_some()))
        };
        let changed = self.lane(clock, name, &mut put).or_else(|| {
            let bytes = Queue::bytes(name);
            self.held.bytes += bytes;
            self.held.cost += bytes;
            self.queues.insert(name.clone(), Queue::default());
            self.lane(clock, name, &mut put)
        });
        if changed.is_some_and(|(cost, is_capped)| cost > self.share(is_capped)) {
            self.keep_to_share(clock, name, usize::MAX);
        }
        self.keep_to_room();
    }

    /// Changes a lane, and what is known of it elsewhere.
    fn lane<R: Default>(
        &mut self,
        clock: DueClock,
        name: &QueueName,
        change: impl FnOnce(&mut Lane) -> R,
    ) -> R {
        let Some(queue) = self.queues.get_mut(name) else {
            return R::default();
        };
        let lane = &mut queue.lanes[clock as usize];
        let (ends, held) = (lane.ends(), lane.held());
        let result = change(lane);
        let after = lane.held();
        self.sides[clock as usize].update(name, queue.in_ring, ends, lane.ends());
        self.held.entries = self.held.entries - held.entries + after.entries;
        self.held.bytes = self.held.bytes - held.bytes + after.bytes;
        self.held.cost = self.held.cost - held.cost + after.cost;
        self.stuck &= after.cost >= held.cost;
        if after.entries == 0 {
            self.drop_if_empty(name);
        }
        result
    }

    fn drop_if_empty(&mut self, name: &QueueName) {
        if self.queues.get(name).is_some_and(Queue::is_empty) {
            self.queues.remove(name);
            let bytes = Queue::bytes(name);
            self.held.bytes -= bytes;
            self.held.cost -= bytes;
        }
    }
}
