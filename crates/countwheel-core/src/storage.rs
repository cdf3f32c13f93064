//! The storage of both wheels: values in nodes, deadlines in chunks, chunks on slots.

use alloc::vec::Vec;

use crate::chunks::{CHUNK, ChunkEntry, Chunks, Slots, Taken, joined, members, upper};
use crate::nodes::{Nodes, Position};
use crate::{Expired, Tick, TimerKey};

/// How many nodes are looked up together.
const GROUP: usize = 32;

/// After how many removals there is something to tidy, perhaps.
const TIDY_AFTER: usize = 32;

/// How many chunks are then looked at while they are sparse, and merged with others.
const CHUNKS_LOOKED_AT: usize = 4 * TIDY_AFTER;
const CHUNKS_MERGED: usize = TIDY_AFTER / 4;

/// A population of less than one in so many of the room, and of no more than this that are
/// always taken to live, is what a peak has left.
const SHARE_OF_FEW: usize = 16;
const FEW: usize = 256;

/// How many segments of each kind are then released at a time.
const RELEASED_AFTER_A_PEAK: usize = 8;

/// The entries of one wheel, filed under numbered slots. Which slot a deadline belongs
/// to is the wheel's business.
pub(crate) struct Storage<T> {
    pub(crate) nodes: Nodes<T>,
    pub(crate) chunks: Chunks,
    pub(crate) slots: Slots,
    /// Values that left in this epoch. It ends when as many have left as there is room for.
    removed_in_epoch: usize,
}

/// How the entries of a wheel are spread over its slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SlotLoad {
    /// How many slots have entries, on all levels.
    pub occupied: usize,
    /// How many entries the fullest slot has.
    pub fullest: usize,
}

/// A slot of a wheel with its entries, as [`HashedWheel::slots`](crate::HashedWheel::slots) and
/// [`HierarchicalWheel::slots`](crate::HierarchicalWheel::slots) show it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OccupiedSlot<'a, T> {
    /// The level, from 0, the finest. A ring is level 0.
    pub level: usize,
    /// The number of the slot on its level, from 0.
    pub slot: usize,
    /// The deadline of each entry, as it was asked for, and its value, in the order of filing.
    pub entries: Vec<(Tick, &'a T)>,
}

impl<T> Storage<T> {
    /// Storage with `slots` slots, and one more, of that number, for what is on its way out.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            nodes: Nodes::new(),
            chunks: Chunks::new(),
            slots: Slots::new(slots),
            removed_in_epoch: 0,
        }
    }

    /// The number of the slot for what is on its way out.
    #[inline]
    pub(crate) fn way_out(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: usize, deadline: Tick, now: Tick, value: T) -> TimerKey {
        let node = self.nodes.reserve();
        let (deadline, now) = (deadline.get(), now.get());
        let position = self
            .chunks
            .append(&mut self.slots, slot, deadline, now, node);
        self.nodes.fill(node, position, value)
    }

    #[inline]
    pub(crate) fn cancel(&mut self, key: TimerKey, now: Tick) -> Option<T> {
        let (position, value) = self.nodes.take(key)?;
        self.chunks.remove(&mut self.slots, position);
        self.tidy_sometimes(now);
        Some(value)
    }

    pub(crate) fn cancel_each(
        &mut self,
        now: Tick,
        keys: impl IntoIterator<Item = TimerKey>,
        mut each: impl FnMut(TimerKey, T),
    ) -> usize {
        let mut keys = keys.into_iter().fuse();
        let mut cancelled = 0;
        let mut group = [None; GROUP];
        loop {
            let mut len = 0;
            for (place, key) in group.iter_mut().zip(&mut keys) {
                *place = Some(key);
                len += 1;
            }
            if len == 0 {
                return cancelled;
            }
            let group = group[..len].iter().flatten();
            self.nodes.look_at(group.clone().map(|key| key.index));
            for &key in group {
                if let Some(value) = self.cancel(key, now) {
                    cancelled += 1;
                    each(key, value);
                }
            }
        }
    }

    /// Moves the entry at a position, whose node is named, to the end of a slot, with
    /// another deadline.
    #[inline]
    pub(crate) fn refile(
        &mut self,
        position: Position,
        node: u32,
        slot: usize,
        deadline: Tick,
        now: Tick,
    ) {
        self.chunks.remove(&mut self.slots, position);
        self.file(slot, deadline.get(), now.get(), node);
        self.tidy_sometimes(now);
    }

    /// Appends an entry that is on no slot, and whose value is in its node.
    #[inline]
    pub(crate) fn file(&mut self, slot: usize, deadline: u64, now: u64, node: u32) {
        let position = self
            .chunks
            .append(&mut self.slots, slot, deadline, now, node);
        self.nodes.moved(node, position);
    }

    /// Appends entries, in order, to those on their way out.
    pub(crate) fn file_run(&mut self, entries: &[ChunkEntry]) {
        let way_out = self.way_out();
        for group in entries.chunks(CHUNK as usize) {
            self.nodes.look_at(group.iter().map(|entry| entry.node));
            let first = self.chunks.append_chunk(&mut self.slots, way_out, group);
            for (position, entry) in (first.get()..).zip(group) {
                self.nodes.moved(entry.node, Position::new(position));
            }
        }
    }

    /// Takes the first chunk off a slot.
    pub(crate) fn take_first(&mut self, slot: usize) -> Option<Taken> {
        self.chunks.take_first(&mut self.slots, slot)
    }

    /// Moves the entries of a slot that are due by `last_due` to those on their way out,
    /// first to last; whether there were any.
    pub(crate) fn pick_up(&mut self, slot: usize, last_due: Tick, now: Tick) -> bool {
        let mut thinned = 0;
        let mut chunk = self.slots.slot(slot).first;
        while chunk != 0 {
            let next = self.chunks.next(chunk);
            let from = self.slots.slot(slot);
            let due = self.chunks.due(from, chunk, last_due.get(), now.get());
            for at in members(due) {
                let (deadline, node) = self.chunks.entry(chunk as usize, at as usize, now.get());
                self.file(self.way_out(), deadline, now.get(), node);
            }
            if due != 0 {
                self.chunks.remove_all(&mut self.slots, chunk as usize, due);
                thinned += 1;
            }
            chunk = next;
        }
        thinned > 0
    }

    /// To be called once in a while, and after each cancel. O(1), amortised.
    #[inline]
    pub(crate) fn tidy_sometimes(&mut self, now: Tick) {
        if self.nodes.removed() >= TIDY_AFTER {
            self.tidy(now);
        }
    }

    /// Merges chunks if they are sparse, and releases a segment of each kind if there are
    /// any that an epoch found to be surplus.
    #[cold]
    #[inline(never)]
    fn tidy(&mut self, now: Tick) {
        let mut merged = 0;
        for _ in 0..CHUNKS_LOOKED_AT {
            if merged == CHUNKS_MERGED || !self.chunks.are_sparse(&self.slots, self.len()) {
                break;
            }
            merged += usize::from(self.merge_next_chunk(now));
        }
        self.removed_in_epoch += self.nodes.count_removals();
        // Few that live in the room of many: a peak is over, and not so much more has to leave
        // before that is certain.
        let few = SHARE_OF_FEW * self.len().max(FEW);
        if self.removed_in_epoch >= self.nodes.room().min(few) {
            self.removed_in_epoch = 0;
            self.nodes.end_epoch();
            self.chunks.end_epoch();
        }
        let releases = if few < self.nodes.room() {
            RELEASED_AFTER_A_PEAK
        } else {
            1
        };
        for _ in 0..releases {
            self.nodes.release_surplus();
            self.chunks.release_surplus();
        }
    }

    /// Merges the next chunk with those behind it that fit in with it; whether there were any.
    fn merge_next_chunk(&mut self, now: Tick) -> bool {
        let Some(merged) = self.chunks.merge_next(&mut self.slots, now.get()) else {
            return false;
        };
        self.nodes.look_at(merged.clone().map(|(node, _)| node));
        for (node, position) in merged {
            self.nodes.moved(node, position);
        }
        true
    }

    /// The deadline of `key` as it was asked for; `None` if the key is stale.
    pub(crate) fn deadline(&self, key: TimerKey, now: Tick) -> Option<Tick> {
        let position = self.nodes.find(key)?;
        Some(Tick::new(self.chunks.deadline(position, now.get())))
    }

    /// Every entry: its key, its deadline as it was asked for, its value. In no particular order.
    pub(crate) fn iter(&self, now: Tick) -> impl Iterator<Item = (TimerKey, Tick, &T)> {
        let nodes = self.nodes.iter();
        nodes.map(move |(key, position, value)| {
            let deadline = self.chunks.deadline(position, now.get());
            (key, Tick::new(deadline), value)
        })
    }

    /// The deadline of a slot's first entry.
    #[inline]
    pub(crate) fn first_deadline(&self, slot: usize, now: Tick) -> Option<Tick> {
        let first = self.chunks.first(self.slots.slot(slot), now.get());
        first.map(|(deadline, ..)| Tick::new(deadline))
    }

    /// The first entry of a slot: its deadline, its node, and its position.
    pub(crate) fn first(&self, slot: usize, now: Tick) -> Option<(Tick, u32, Position)> {
        let first = self.chunks.first(self.slots.slot(slot), now.get());
        first.map(|(deadline, node, position)| (Tick::new(deadline), node, position))
    }

    /// Whether no more than `most` entries are in a slot. O(most).
    pub(crate) fn holds_at_most(&self, slot: usize, most: usize) -> bool {
        let slot = self.slots.slot(slot);
        let chain = self.chunks.chain(slot);
        let mut entries = chain.map(|chunk| self.chunks.live(slot, chunk).count_ones() as usize);
        entries.try_fold(most, usize::checked_sub).is_some()
    }

    /// The earliest deadline in a slot. O(entries in the slot).
    pub(crate) fn earliest_deadline(&self, slot: usize, now: Tick) -> Option<Tick> {
        let entries = self.chunks.iter(self.slots.slot(slot), now.get());
        entries.map(|(deadline, ..)| Tick::new(deadline)).min()
    }

    /// Takes the first entry out of a slot.
    #[inline]
    pub(crate) fn pop(&mut self, slot: usize, now: Tick) -> Option<Expired<T>> {
        let first = self.chunks.first(self.slots.slot(slot), now.get());
        let (deadline, node, position) = first?;
        if position.get().is_multiple_of(CHUNK) {
            self.look_at_first_chunk(slot);
        }
        self.chunks.remove(&mut self.slots, position);
        Some(self.nodes.expire(node, Tick::new(deadline)))
    }

    /// Looks at the nodes of a slot's first entries, which are about to leave.
    fn look_at_first_chunk(&self, slot: usize) {
        let slot = self.slots.slot(slot);
        let entries = self.chunks.entries(slot.first as usize);
        let live = members(self.chunks.live(slot, slot.first as usize));
        self.nodes.look_at(live.map(|at| entries[at as usize].node));
    }

    /// Takes entries out of a slot, first to last, until one is due after `last_due`, or
    /// `limit` were taken. The slot's deadlines ascend, or are all due.
    pub(crate) fn pop_batch(
        &mut self,
        slot: usize,
        now: Tick,
        last_due: Option<Tick>,
        limit: usize,
        batch: &mut Vec<Expired<T>>,
    ) {
        let mut rest = limit;
        while rest > 0 {
            let from = self.slots.slot(slot);
            let chunk = from.first as usize;
            debug_assert!(chunk != 0 || rest < limit, "what is due is in its slot");
            if chunk == 0 {
                return;
            }
            let live = self.chunks.live(from, chunk);
            if live & 1 == 1 {
                self.look_at_first_chunk(slot);
            }
            if self.chunks.is_wide(chunk) {
                // Deadlines that passed long ago: they are rare and all due.
                batch.extend(self.pop(slot, now));
                rest -= 1;
                continue;
            }
            let taken_before = batch.len();
            batch.reserve(CHUNK as usize);
            let mut gone = 0_u32;
            let entries = self.chunks.entries(chunk);
            for at in members(live).take(rest) {
                let ChunkEntry { deadline, node } = entries[at as usize];
                let deadline = Tick::new(joined(upper(now.get()), deadline));
                if last_due.is_some_and(|last_due| deadline > last_due) {
                    break;
                }
                gone |= 1 << at;
                batch.push(self.nodes.expire(node, deadline));
            }
            rest -= batch.len() - taken_before;
            self.chunks.remove_all(&mut self.slots, chunk, gone);
            if gone != live {
                return;
            }
        }
    }

    /// Takes every entry out, in the order in which they would have expired.
    pub(crate) fn drain(&mut self, now: Tick) -> Vec<Expired<T>> {
        let mut entries = Vec::with_capacity(self.len());
        let way_out = self.way_out();
        loop {
            let slot = match self.slots.first_occupied() {
                _ if !self.slots.is_empty(way_out) => way_out,
                Some(slot) => slot,
                None => break,
            };
            while let Some(taken) = self.chunks.take_first(&mut self.slots, slot) {
                for (deadline, node) in taken.iter(now.get()) {
                    entries.push(self.nodes.expire(node, Tick::new(deadline)));
                }
            }
        }
        // Equal deadlines share a slot and stand there in order, or those on their way out
        // were filed before; the sort is stable.
        entries.sort_by_key(|entry| entry.deadline.max(now));
        entries
    }

    /// Takes `limit` entries out, or all if there are fewer, in no order, and appends them to
    /// `batch`. Returns how many they were.
    pub(crate) fn take_any(
        &mut self,
        now: Tick,
        limit: usize,
        batch: &mut Vec<Expired<T>>,
    ) -> usize {
        let before = batch.len();
        let way_out = self.way_out();
        loop {
            let rest = limit - (batch.len() - before);
            let slot = match self.slots.first_occupied() {
                _ if rest == 0 => break,
                _ if !self.slots.is_empty(way_out) => way_out,
                Some(slot) => slot,
                None => break,
            };
            if rest < CHUNK as usize {
                batch.extend(self.pop(slot, now));
            } else if let Some(taken) = self.chunks.take_first(&mut self.slots, slot) {
                for (deadline, node) in taken.iter(now.get()) {
                    batch.push(self.nodes.expire(node, Tick::new(deadline)));
                }
            }
            self.tidy_sometimes(now);
        }
        batch.len() - before
    }

    /// How many entries there is memory for.
    pub(crate) fn room(&self) -> usize {
        self.nodes.room()
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.shrink_by(usize::MAX);
    }

    /// Releases so many segments of each kind at most; whether there may be more.
    pub(crate) fn shrink_by(&mut self, most: usize) -> bool {
        let (nodes, chunks) = (self.nodes.shrink_by(most), self.chunks.shrink_by(most));
        nodes.max(chunks) == most
    }

    /// How the entries are spread over the slots, the way out not included.
    pub(crate) fn slot_load(&self) -> SlotLoad {
        let mut load = SlotLoad::default();
        for number in 0..self.way_out() {
            let slot = self.slots.slot(number);
            let entries = self.chunks.chain(slot);
            let entries = entries.map(|chunk| self.chunks.live(slot, chunk).count_ones() as usize);
            let entries = entries.sum();
            load.occupied += usize::from(entries > 0);
            load.fullest = load.fullest.max(entries);
        }
        load
    }

    /// The occupied slots by their numbers, the way out not included, on levels of so many slots.
    pub(crate) fn occupied_slots(
        &self,
        slots_of_level: usize,
        now: Tick,
    ) -> impl Iterator<Item = OccupiedSlot<'_, T>> {
        let occupied = (0..self.way_out()).filter(|&number| !self.slots.is_empty(number));
        occupied.map(move |number| {
            let entries = self.chunks.iter(self.slots.slot(number), now.get());
            let value_of = |node| self.nodes.value_at(node).expect("an entry has a value");
            OccupiedSlot {
                level: number / slots_of_level,
                slot: number % slots_of_level,
                entries: entries
                    .map(|(deadline, node, _)| (Tick::new(deadline), value_of(node)))
                    .collect(),
            }
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.bytes() + self.chunks.bytes() + self.slots.bytes()
    }

    /// Checks nodes and chunks, that they know each other, and `each` entry by its slot
    /// and deadline.
    pub(crate) fn check(&self, now: Tick, each: impl Fn(usize, Tick)) {
        self.nodes.check();
        self.chunks.check(&self.slots, self.len());
        for slot in 0..=self.way_out() {
            for (deadline, node, position) in self.chunks.iter(self.slots.slot(slot), now.get()) {
                assert_eq!(
                    self.nodes.position(node),
                    Some(position),
                    "a node knows where its entry stands"
                );
                each(slot, Tick::new(deadline));
            }
        }
    }
}
