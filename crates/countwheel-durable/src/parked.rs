//! Timers that are due and whose flow has no room: by flow, in the order in which they start.
//!
//! What does not fit into memory is left to the store. The flow that holds most gives up what it needs last, and notes
//! from where on, in the order of each clock, timers of it may be in the store alone. There it goes on once it holds
//! little.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Bound;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::flow::Flow;
use crate::planted::planted;
use crate::store::DueEntry;
use crate::{DueClock, Key, QueueName, Revision, TimerName, Wake};

/// A flow that holds no more than this goes on in the store.
const LOW: usize = 16;

/// While there is room for one timer of each flow and queue only, one of them that has none goes on in the store so
/// often.
const CROWDED: Duration = Duration::from_millis(50);

/// What the names of the flows begin with in which those wait that their handler held. No text of a program is meant to.
const HELD: &str = "\0held ";

/// After so many starts of others in a flow, one of what was overdue at the opening goes first.
const OVERDUE_SHARE: usize = 8;

/// In which order those of a flow start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Order {
    /// It was overdue at the opening: these have their share of the flow, and no more.
    pub(crate) is_overdue: bool,
    pub(crate) priority: u32,
    /// When it was due, on the line of the boot clock: timers of both clocks stand in one order.
    pub(crate) due: Timestamp,
    pub(crate) revision: Revision,
}

/// A timer that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) order: Order,
    pub(crate) clock: DueClock,
    pub(crate) entry: DueEntry,
    /// Since when, by the boot clock, it could not start.
    pub(crate) since: Timestamp,
}

/// What is kept of one: its name is that of its place.
#[derive(Debug)]
struct Kept {
    clock: DueClock,
    wake: Wake,
    key: Key,
    since: Timestamp,
}

/// All that wait for flows.
#[derive(Debug)]
pub(crate) struct Parked {
    lanes: BTreeMap<Flow, Lane>,
    places: BTreeMap<Revision, Place>,
    /// The lanes to be looked at.
    awake: BTreeSet<Flow>,
    /// When lanes wake by themselves.
    until: BTreeSet<(Timestamp, Flow)>,
    /// What is held of each flow and queue, by how many.
    sizes: BTreeSet<(usize, Flow, QueueName)>,
    /// What goes on in the store.
    rests: BTreeSet<(Flow, QueueName)>,
    /// Flows that nothing waits for here any more.
    left: Vec<Flow>,
    /// The lane that was looked at last.
    served: Option<Flow>,
    /// What was read last of what goes on in the store.
    read: Option<(Flow, QueueName)>,
    /// What gave up its only one last, so that each does in its turn.
    gave_up: Option<(usize, Flow, QueueName)>,
    /// When the next goes on in the store while there is room for one of each only.
    crowded_until: Timestamp,
    bytes: usize,
    most_bytes: usize,
    /// Entries of the store that were looked at for what was left there.
    pub(crate) scanned: u64,
}

#[derive(Debug)]
struct Place {
    flow: Flow,
    queue: QueueName,
    order: Order,
}

/// Those that wait for one flow.
#[derive(Default, Debug)]
struct Lane {
    queues: BTreeMap<QueueName, OfQueue>,
    /// The first of each queue, of those that were not overdue at the opening, and of those that were: whoever starts next is
    /// found without a look at each queue.
    heads: [BTreeSet<(Order, QueueName)>; 2],
    len: usize,
    /// Starts of others since the last one of what was overdue.
    ahead_of_overdue: usize,
    /// Until when it sleeps, if that is known.
    until: Option<Timestamp>,
    /// The scheduler is woken for the flow, or sleeps for it.
    waits: bool,
}

/// Those of one queue that wait for one flow.
#[derive(Default, Debug)]
struct OfQueue {
    waiting: BTreeMap<Order, Kept>,
    /// By each clock, what wakes from here on may be in the store alone.
    rest: [Option<Wake>; 2],
}

impl OfQueue {
    fn has_rest(&self) -> bool {
        self.rest.iter().any(Option::is_some)
    }

    /// The first that was not overdue at the opening, and the first that was.
    fn heads(&self) -> [Option<Order>; 2] {
        let first = self.waiting.keys().next().copied();
        let overdue = self.waiting.range(Order::OVERDUE..).next();
        [
            first.filter(|order| !order.is_overdue),
            overdue.map(|(order, _)| *order),
        ]
    }
}

impl Order {
    /// Before all that were overdue at the opening, and after all others.
    const OVERDUE: Self = Self {
        is_overdue: true,
        priority: 0,
        due: Timestamp::EPOCH,
        revision: Revision(0),
    };
}

impl Lane {
    /// The one that starts next, of queues that `may`.
    fn first(&self, may_overdue: bool, may: impl Fn(&QueueName) -> bool) -> Option<Order> {
        let head = |of: usize| {
            let mut heads = self.heads[of].iter();
            heads.find(|(_, queue)| may(queue)).map(|(order, _)| *order)
        };
        let overdue = may_overdue.then(|| head(1)).flatten();
        overdue
            .filter(|_| self.ahead_of_overdue >= OVERDUE_SHARE)
            .or_else(|| head(0))
            .or(overdue)
    }

    /// Changes what waits of a queue.
    fn change<T>(
        &mut self,
        queue: &QueueName,
        change: impl FnOnce(&mut OfQueue) -> T,
    ) -> Option<T> {
        let of_queue = self.queues.get_mut(queue)?;
        let before = of_queue.heads();
        let changed = change(of_queue);
        let after = of_queue.heads();
        for ((heads, before), after) in self.heads.iter_mut().zip(before).zip(after) {
            if before == after {
                continue;
            }
            if let Some(before) = before {
                heads.remove(&(before, queue.clone()));
            }
            heads.extend(after.map(|after| (after, queue.clone())));
        }
        Some(changed)
    }
}

impl Parked {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self {
            lanes: BTreeMap::new(),
            places: BTreeMap::new(),
            awake: BTreeSet::new(),
            until: BTreeSet::new(),
            sizes: BTreeSet::new(),
            rests: BTreeSet::new(),
            left: Vec::new(),
            served: None,
            read: None,
            gave_up: None,
            crowded_until: Timestamp::EPOCH,
            bytes: 0,
            most_bytes,
            scanned: 0,
        }
    }

    /// From now on those that wait may take so many bytes.
    pub(crate) fn resize(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
        self.keep_to_room(None);
    }

    /// How many wait here.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether something waits, here or in the store.
    pub(crate) fn has_any(&self) -> bool {
        !self.lanes.is_empty()
    }

    pub(crate) fn contains(&self, revision: Revision) -> bool {
        self.places.contains_key(&revision)
    }

    /// The flow in which those of a queue wait that their handler held. Their order is that of the times at which they
    /// are looked at again.
    pub(crate) fn held_flow(queue: &QueueName) -> Flow {
        Flow::new(format!("{HELD}{queue}"))
    }

    /// Whether that is the flow of those that their handler held.
    pub(crate) fn is_of_held(flow: &Flow) -> bool {
        flow.as_str().starts_with(HELD)
    }

    /// Whether some wait, here or in the store, that their handler held.
    pub(crate) fn has_held(&self) -> bool {
        self.held_lanes().next().is_some()
    }

    fn held_lanes(&self) -> impl Iterator<Item = &Flow> {
        let from = self.lanes.range::<Flow, _>(Flow::new(HELD)..);
        from.map(|(flow, _)| flow)
            .take_while(|flow| Self::is_of_held(flow))
    }

    /// When the first of those is looked at that their handler held, of this flow.
    pub(crate) fn held_until(&self, flow: &Flow) -> Option<Timestamp> {
        let queues = self.lanes.get(flow)?.queues.values();
        let first = queues.filter_map(|it| it.waiting.keys().next());
        first.map(|order| order.due).min()
    }

    /// Those that their handler held are looked at now.
    pub(crate) fn release(&mut self, now: Timestamp) {
        let lanes: Vec<Flow> = self.held_lanes().cloned().collect();
        for flow in lanes {
            let Some(lane) = self.lanes.get_mut(&flow) else {
                continue;
            };
            let queues: Vec<QueueName> = lane.queues.keys().cloned().collect();
            for queue in queues {
                let places = &mut self.places;
                lane.change(&queue, |of_queue| {
                    let later: Vec<Order> = (of_queue.waiting.keys())
                        .filter(|order| order.due > now)
                        .copied()
                        .collect();
                    for order in later {
                        let soon = Order { due: now, ..order };
                        if let Some(kept) = of_queue.waiting.remove(&order) {
                            of_queue.waiting.insert(soon, kept);
                        }
                        if let Some(place) = places.get_mut(&order.revision) {
                            place.order = soon;
                        }
                    }
                });
            }
            self.rouse(&flow);
        }
    }

    /// Takes in one that waits for a flow, or leaves it to the store.
    pub(crate) fn park(&mut self, flow: &Flow, waiting: Waiting) {
        let Waiting {
            order,
            clock,
            entry: DueEntry { wake, name, .. },
            since,
        } = waiting;
        self.forget(wake.revision);
        let lane = self.lanes.entry(flow.clone()).or_default();
        let of_queue = lane.queues.entry(name.queue.clone()).or_default();
        if of_queue.rest[clock as usize].is_some_and(|rest| wake >= rest) {
            return;
        }
        if lane.len == 0 {
            self.awake.insert(flow.clone());
        }
        let bytes = Self::entry_bytes(&name);
        lane.len += 1;
        let place = Place {
            flow: flow.clone(),
            queue: name.queue.clone(),
            order,
        };
        let kept = Kept {
            clock,
            wake,
            key: name.key,
            since,
        };
        let put = lane.change(&place.queue, |of_queue| {
            of_queue.waiting.insert(order, kept);
            of_queue.waiting.len()
        });
        let len = put.unwrap_or(1);
        self.bytes += bytes;
        self.resized(flow, &place.queue, len - 1, len);
        self.places.insert(wake.revision, place);
        self.keep_to_room(Some(wake.revision));
    }

    /// Drops one whose record has changed or will.
    pub(crate) fn forget(&mut self, revision: Revision) {
        let _gone = self.remove(revision);
    }

    /// Forgets all of them: they are read anew.
    pub(crate) fn clear(&mut self) {
        let lanes = mem::take(&mut self.lanes);
        let waits = lanes.into_iter().filter(|(_, lane)| lane.waits);
        self.left.extend(waits.map(|(flow, _)| flow));
        self.places.clear();
        self.awake.clear();
        self.until.clear();
        self.sizes.clear();
        self.rests.clear();
        self.bytes = 0;
    }

    /// The scheduler was woken for these flows.
    pub(crate) fn wake(&mut self, flows: Vec<Flow>) {
        for flow in flows {
            self.rouse(&flow);
        }
    }

    /// An attempt of these flows has started, with which the scheduler's turn in each of them is over, or has ended.
    pub(crate) fn look_at(&mut self, flows: &[Flow]) {
        for flow in flows {
            if self.lanes.contains_key(flow) {
                self.rouse(flow);
            }
        }
    }

    /// Wakes the lanes whose time has come.
    pub(crate) fn wake_due(&mut self, now: Timestamp) {
        while let Some((at, flow)) = self.until.first()
            && *at <= now
        {
            let flow = flow.clone();
            self.rouse(&flow);
        }
    }

    /// When the first lane wakes by itself, by the boot clock.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        self.until.first().map(|(at, _)| *at)
    }

    /// The flow has no room, until the scheduler is woken for it or that time.
    pub(crate) fn sleep(&mut self, flow: &Flow, until: Option<Timestamp>) {
        let Some(lane) = self.lanes.get_mut(flow) else {
            self.left.push(flow.clone());
            return;
        };
        if let Some(before) = lane.until.take() {
            self.until.remove(&(before, flow.clone()));
        }
        lane.waits = true;
        lane.until = until;
        self.awake.remove(flow);
        if let Some(until) = until {
            self.until.insert((until, flow.clone()));
        }
    }

    /// The flow whose turn it is to be looked at, of those with timers in queues that `may`.
    pub(crate) fn next(
        &self,
        may_overdue: bool,
        may: impl Fn(&QueueName) -> bool,
    ) -> Option<&Flow> {
        let later = self.served.as_ref().map(|served| {
            let later = (Bound::Excluded(served), Bound::Unbounded);
            self.awake.range::<Flow, _>(later)
        });
        let mut in_turns = later.into_iter().flatten().chain(&self.awake);
        in_turns.find(|flow| {
            let lane = self.lanes.get(*flow);
            lane.is_some_and(|lane| lane.first(may_overdue, &may).is_some())
        })
    }

    /// Takes out the first that waits for a flow, in queues that `may`.
    pub(crate) fn take(
        &mut self,
        flow: &Flow,
        may_overdue: bool,
        may: impl Fn(&QueueName) -> bool,
    ) -> Option<Waiting> {
        self.served = Some(flow.clone());
        let lane = self.lanes.get_mut(flow)?;
        let order = lane.first(may_overdue, may)?;
        lane.ahead_of_overdue = if order.is_overdue {
            0
        } else {
            lane.ahead_of_overdue + 1
        };
        self.remove(order.revision)
    }

    /// Of the lanes that are looked at, those with timers in queues that `may`: whether there are any, and whether they
    /// were all overdue at the opening.
    pub(crate) fn ready(&self, may: impl Fn(&QueueName) -> bool) -> (bool, bool) {
        let lanes = || self.awake.iter().filter_map(|flow| self.lanes.get(flow));
        if lanes().any(|lane| lane.first(false, &may).is_some()) {
            return (true, false);
        }
        let any = lanes().any(|lane| lane.first(true, &may).is_some());
        (any, any)
    }

    /// The flows that nothing waits for any more: those whose timers are gone, and those that were to be looked at and
    /// were not, since something else is in the way of their timers.
    pub(crate) fn take_left(&mut self) -> Vec<Flow> {
        for flow in &self.awake {
            if let Some(lane) = self.lanes.get_mut(flow)
                && mem::take(&mut lane.waits)
            {
                self.left.push(flow.clone());
            }
        }
        let mut left = mem::take(&mut self.left);
        // Something may have come to wait since.
        let waits = |flow: &Flow| self.lanes.get(flow).is_some_and(|lane| lane.waits);
        left.retain(|flow| !waits(flow));
        left
    }

    /// A flow and a queue that go on in the store now, and from where by each clock.
    pub(crate) fn next_rest(
        &self,
        now: Timestamp,
    ) -> Option<(&Flow, &QueueName, [Option<Wake>; 2])> {
        if self.rests.is_empty() || self.is_crowded() && now < self.crowded_until {
            return None;
        }
        let has_room = self.bytes <= self.most_bytes / 2;
        let later = self.read.as_ref().map(|read| {
            let later = (Bound::Excluded(read), Bound::Unbounded);
            self.rests.range::<(Flow, QueueName), _>(later)
        });
        let mut in_turns = later.into_iter().flatten().chain(&self.rests);
        in_turns.find_map(|(flow, queue)| {
            let of_queue = self.lanes.get(flow)?.queues.get(queue)?;
            let len = of_queue.waiting.len();
            let is_low = len == 0 || has_room && len <= LOW;
            is_low.then_some((flow, queue, of_queue.rest))
        })
    }

    /// When something goes on in the store that has to wait for it.
    pub(crate) fn next_rest_at(&self, now: Timestamp) -> Option<Timestamp> {
        let is_delayed = !self.rests.is_empty() && self.is_crowded() && now < self.crowded_until;
        is_delayed.then_some(self.crowded_until)
    }

    /// That flow and queue are read now.
    pub(crate) fn reads(&mut self, flow: &Flow, queue: &QueueName, now: Timestamp) {
        self.read = Some((flow.clone(), queue.clone()));
        if self.is_crowded() {
            self.crowded_until = now + CROWDED;
        }
    }

    /// The flow goes on with the queue from there, or has nothing left in the store by that clock.
    pub(crate) fn goes_on(
        &mut self,
        flow: &Flow,
        queue: &QueueName,
        clock: DueClock,
        rest: Option<Wake>,
    ) {
        let lane = self.lanes.get_mut(flow);
        let Some(of_queue) = lane.and_then(|lane| lane.queues.get_mut(queue)) else {
            return;
        };
        of_queue.rest[clock as usize] = rest;
        if !of_queue.has_rest() {
            self.rests.remove(&(flow.clone(), queue.clone()));
            self.drop_if_empty(flow, queue);
        }
    }

    /// Whether a timer of the queue is left to the store for a flow that has no room now: it comes when that has.
    pub(crate) fn is_left_to(
        &self,
        flow: &Flow,
        queue: &QueueName,
        clock: DueClock,
        wake: Wake,
    ) -> bool {
        let waits = self.lanes.get(flow).is_some_and(|lane| lane.waits);
        let rest = self.rest(flow, queue, clock);
        waits && !self.awake.contains(flow) && rest.is_some_and(|rest| rest <= wake)
    }

    /// Whether it has enough of the flow and the queue for a while.
    pub(crate) fn has_enough(&self, flow: &Flow, queue: &QueueName) -> bool {
        let of_queue = self.lanes.get(flow).and_then(|lane| lane.queues.get(queue));
        let len = of_queue.map_or(0, |of_queue| of_queue.waiting.len());
        len >= 4 * LOW || len > 0 && self.bytes > self.most_bytes / 4 * 3
    }

    /// Where the flow goes on with the queue in the store by that clock.
    pub(crate) fn rest(&self, flow: &Flow, queue: &QueueName, clock: DueClock) -> Option<Wake> {
        self.lanes.get(flow)?.queues.get(queue)?.rest[clock as usize]
    }

    fn rouse(&mut self, flow: &Flow) {
        let Some(lane) = self.lanes.get_mut(flow) else {
            self.left.push(flow.clone());
            return;
        };
        if let Some(until) = lane.until.take() {
            self.until.remove(&(until, flow.clone()));
        }
        if lane.len > 0 {
            self.awake.insert(flow.clone());
        }
    }

    fn remove(&mut self, revision: Revision) -> Option<Waiting> {
        let Place { flow, queue, order } = self.places.remove(&revision)?;
        let lane = self.lanes.get_mut(&flow)?;
        let (kept, len) = lane.change(&queue, |of_queue| {
            let kept = of_queue.waiting.remove(&order);
            (kept, of_queue.waiting.len())
        })?;
        let kept = kept?;
        let name = TimerName {
            queue,
            key: kept.key,
        };
        lane.len -= 1;
        self.bytes -= Self::entry_bytes(&name);
        self.resized(&flow, &name.queue, len + 1, len);
        self.drop_if_empty(&flow, &name.queue);
        Some(Waiting {
            clock: kept.clock,
            entry: DueEntry {
                wake: kept.wake,
                name,
                kind: None,
            },
            order,
            since: kept.since,
        })
    }

    fn resized(&mut self, flow: &Flow, queue: &QueueName, before: usize, after: usize) {
        let mut size = (before, flow.clone(), queue.clone());
        self.sizes.remove(&size);
        size.0 = after;
        if after > 0 {
            self.sizes.insert(size);
        }
    }

    /// Whether there is no room, and one of each flow and queue.
    fn is_crowded(&self) -> bool {
        let longest = Self::bytes_of(QueueName::TEXT_MAX_BYTES + Key::MAX_BYTES);
        let is_full = self.bytes + longest > self.most_bytes;
        is_full && self.sizes.last().is_none_or(|(len, ..)| *len <= 1)
    }

    /// A lane without timers is not looked at, and is gone unless it goes on in the store.
    fn drop_if_empty(&mut self, flow: &Flow, queue: &QueueName) {
        let Some(lane) = self.lanes.get_mut(flow) else {
            return;
        };
        let of_queue = lane.queues.get(queue);
        if of_queue.is_some_and(|of| of.waiting.is_empty() && !of.has_rest()) {
            lane.queues.remove(queue);
        }
        if lane.len > 0 {
            return;
        }
        self.awake.remove(flow);
        if let Some(until) = lane.until.take() {
            self.until.remove(&(until, flow.clone()));
        }
        if mem::take(&mut lane.waits) {
            self.left.push(flow.clone());
        }
        if lane.queues.is_empty() {
            self.lanes.remove(flow);
        }
    }

    /// Leaves to the store what does not fit: of the flow and queue that hold most, what starts last. Where each holds
    /// one, they give it up in turns, and not the `newest`.
    fn keep_to_room(&mut self, newest: Option<Revision>) {
        while self.bytes > self.most_bytes {
            let Some(largest) = self.sizes.last().cloned() else {
                return;
            };
            let (len, flow, queue) = if largest.0 > 1 {
                largest
            } else {
                self.next_to_give_up(newest).unwrap_or(largest)
            };
            if len == 1 {
                self.gave_up = Some((len, flow.clone(), queue.clone()));
            }
            let lane = self.lanes.get_mut(&flow);
            let Some(of_queue) = lane.and_then(|lane| lane.queues.get_mut(&queue)) else {
                return;
            };
            let Some((order, kept)) = of_queue.waiting.last_key_value() else {
                return;
            };
            let revision = order.revision;
            if !planted!(FlowForgetsRest) {
                let rest = &mut of_queue.rest[kept.clock as usize];
                *rest = Some(rest.map_or(kept.wake, |rest| rest.min(kept.wake)));
                self.rests.insert((flow, queue));
            }
            self.forget(revision);
        }
    }

    fn next_to_give_up(&self, newest: Option<Revision>) -> Option<(usize, Flow, QueueName)> {
        let newest = newest.and_then(|newest| self.places.get(&newest));
        let is_newest = |flow: &Flow, queue: &QueueName| {
            newest.is_some_and(|place| place.flow == *flow && place.queue == *queue)
        };
        let later = self.gave_up.as_ref().map(|gave_up| {
            let later = (Bound::Excluded(gave_up), Bound::Unbounded);
            self.sizes.range::<(usize, Flow, QueueName), _>(later)
        });
        let mut in_turns = later.into_iter().flatten().chain(&self.sizes);
        in_turns
            .find(|(_, flow, queue)| !is_newest(flow, queue))
            .cloned()
    }

    /// What one takes that waits: its places in sorted maps that may be half empty, its name, and its part of its
    /// lane.
    fn entry_bytes(name: &TimerName) -> usize {
        Self::bytes_of(name.queue.as_str().len() + name.key.as_str().len())
    }

    fn bytes_of(name: usize) -> usize {
        2 * (size_of::<Revision>() + size_of::<Place>() + size_of::<Order>() + size_of::<Kept>())
            + 2 * (size_of::<Order>() + 2 * size_of::<QueueName>())
            + 128
            + name
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn waiting(number: u64) -> Waiting {
        let at = Timestamp::from_micros(1_000);
        let revision = Revision(number);
        let wake = Wake { at, revision };
        Waiting {
            order: Order {
                is_overdue: number.is_multiple_of(3),
                priority: 0,
                due: at,
                revision,
            },
            clock: DueClock::Wall,
            entry: DueEntry {
                wake,
                name: TimerName::new(format!("queue-{number}"), "key").unwrap(),
                kind: None,
            },
            since: at,
        }
    }

    /// With 5,000 queues at one place, a start looked at each of them, and 15,000 took a core for 30 starts a second.
    #[test]
    fn a_start_looks_at_few_of_the_queues_that_wait_for_its_flow() {
        const QUEUES: u64 = 3_000;
        let mut parked = Parked::new(usize::MAX);
        let flow = Flow::new("place");
        for number in 1..=QUEUES {
            parked.park(&flow, waiting(number));
        }
        let looked = Cell::new(0_u64);
        let may = |_: &QueueName| {
            looked.set(looked.get() + 1);
            true
        };
        let mut started = Vec::new();
        while let Some(flow) = parked.next(true, may).cloned() {
            let waiting = parked.take(&flow, true, may).unwrap();
            started.push((waiting.order.is_overdue, waiting.order.revision.0));
        }
        assert_eq!(started.len() as u64, QUEUES);
        assert!(looked.get() <= 4 * QUEUES, "{}", looked.get());
        // Each kind is in its order, and the overdue have their share.
        for kind in [false, true] {
            let of_kind = started.iter().filter(|(overdue, _)| *overdue == kind);
            assert!(of_kind.is_sorted(), "{kind}");
        }
        let first = started.iter().position(|(overdue, _)| *overdue);
        assert_eq!(first, Some(OVERDUE_SHARE));
        assert!(!parked.has_any());
    }

    #[test]
    fn a_queue_that_may_not_start_holds_up_no_other() {
        let mut parked = Parked::new(usize::MAX);
        let flow = Flow::new("place");
        for number in [1, 2, 4] {
            parked.park(&flow, waiting(number));
        }
        let may = |queue: &QueueName| queue.as_str() != "queue-1";
        let taken =
            |parked: &mut Parked| parked.take(&flow, true, may).map(|it| it.order.revision.0);
        assert_eq!(taken(&mut parked), Some(2));
        parked.forget(Revision(4));
        assert_eq!(taken(&mut parked), None);
        let first = parked.take(&flow, true, |_| true);
        assert_eq!(first.map(|it| it.order.revision.0), Some(1));
    }
}
