//! What of a shard is not in the sorted store yet: where it stands in the log, and the
//! indexes by which it is found.
//!
//! Everything known of a name is in one slot of a slab. The indexes hold numbers of slots, so
//! that a name is in memory once, whatever finds it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::ops::{Bound, RangeBounds as _};

use countwheel::Timestamp;

use super::batch::{Replaces, ShardSnapshot};
use super::due::{Due, Entry};
use super::passed::Passed;
use super::short::Short;
use crate::planted::planted;
use crate::store::embedded::codec::Indexed;
use crate::store::{ClockNote, Fence, Position, QueueCounts, Shard};
use crate::{DueClock, QueueName, Revision, StateKind, TimerName, Wake};

/// A name of so many bytes, with one between queue and key, is hashed in one piece.
const HASHED_WHOLE: usize = 64;
/// No slot.
const NONE: u32 = u32::MAX;

/// Where a change stands in the log: of a put, the bytes of its record. Two changes never stand
/// in the same place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// What the log says of a name.
#[derive(Debug)]
pub(super) struct Young {
    key: Option<Short>,
    queue: u32,
    /// The next slot whose name has the same hash, or the next that is free.
    next: u32,
    /// Where, and for a name that was removed where its removal stands.
    pub(super) at: Place,
    due: u64,
    revision: Revision,
    wake_at: u64,
    /// `None`: it was removed.
    pub(super) kind: Option<StateKind>,
    clock: DueClock,
    /// Whether the sorted store may have something under the name.
    pub(super) may_be_old: bool,
}

/// A queue of which something is young or counted.
#[derive(Debug)]
struct Queue {
    name: QueueName,
    by_state: [u64; 4],
    /// How many slots are of this queue.
    slots: usize,
    /// In the order of listings, from the first listing on: most queues are never listed, and
    /// this would be half of what a change costs.
    list: Option<BTreeMap<Position, u32>>,
}

/// The young part of a shard, and what is known of all of it.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) fence: Fence,
    pub(super) last_revision: Revision,
    pub(super) clock: Option<ClockNote>,
    /// How far the sorted store has nothing that is not hidden here.
    pub(super) passed: Passed,
    /// How many of its entries were passed since that was written.
    pub(super) unnoted: usize,
    /// In which segment it was written last.
    pub(super) noted_in: u64,
    /// How many changes there were of names that the sorted store may have.
    pub(super) hid: usize,
    /// The names of which a change that was read back says that the sorted store has nothing, while
    /// one before it says that it may. So the log was written behind a newer sorted store than this
    /// one: once the earlier change has moved, nothing in the log hides what is there.
    pub(super) not_hidden: BTreeSet<TimerName>,
    hasher: RandomState,
    slots: Vec<Young>,
    /// The first free slot.
    free: Option<u32>,
    used: usize,
    /// The first slot with each hash.
    first: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    due: [Due; 2],
    queues: Vec<Queue>,
    free_queues: Vec<u32>,
    /// Of which queue the last change was, if it is still there.
    last_queue: Option<u32>,
    queue_numbers: HashMap<QueueName, u32>,
}

impl Table {
    /// A table of which nothing is young yet.
    pub(super) fn of(snapshot: ShardSnapshot) -> Self {
        let mut table = Self {
            fence: snapshot.fence,
            last_revision: snapshot.last_revision,
            clock: snapshot.clock,
            ..Self::default()
        };
        for counts in snapshot.counts {
            let queue = table.queue(&counts.queue);
            table.queues[queue as usize].by_state = counts.by_state;
            table.release(queue);
        }
        table
    }

    pub(super) fn snapshot(&self, shard: Shard) -> ShardSnapshot {
        ShardSnapshot {
            shard,
            fence: self.fence,
            last_revision: if planted!(LogSnapshotForgets) {
                Revision(0)
            } else {
                self.last_revision
            },
            clock: self.clock.filter(|_| !planted!(LogSnapshotForgetsClock)),
            counts: self.counts(),
        }
    }

    /// How many records each queue has in each state, old and young; in order of name.
    pub(super) fn counts(&self) -> Vec<QueueCounts> {
        let queues = self.queues.iter();
        let counted = queues.filter(|queue| queue.by_state != [0; 4]);
        let mut counts: Vec<_> = counted
            .map(|queue| QueueCounts {
                queue: queue.name.clone(),
                by_state: queue.by_state,
            })
            .collect();
        counts.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        counts
    }

    /// The queue and the state of each young record.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&QueueName, StateKind)> {
        let used = self.slots.iter().filter(|young| young.key.is_some());
        used.filter_map(|young| Some((&self.queues[young.queue as usize].name, young.kind?)))
    }

    /// How many names are young.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn get(&self, name: &TimerName) -> Option<&Young> {
        self.get_at(self.hash(name), name)
    }

    /// What is under a name of this hash.
    pub(super) fn get_at(&self, hash: u64, name: &TimerName) -> Option<&Young> {
        let slot = self.find(hash, name.queue.as_str(), name.key.as_str())?;
        Some(&self.slots[slot as usize])
    }

    fn find(&self, hash: u64, queue: &str, key: &str) -> Option<u32> {
        self.follow(*self.first.get(&hash)?, queue, key)
    }

    /// The first slot with this hash.
    pub(super) fn first(&self, hash: u64) -> Option<u32> {
        self.first.get(&hash).copied()
    }

    /// The slot of a name, of which the first with its hash is `slot`.
    pub(super) fn follow(&self, mut slot: u32, queue: &str, key: &str) -> Option<u32> {
        while slot != NONE {
            let young = &self.slots[slot as usize];
            if self.is(young, queue, key) {
                return Some(slot);
            }
            slot = young.next;
        }
        None
    }

    fn is(&self, young: &Young, queue: &str, key: &str) -> bool {
        let is_key = |it: &Short| it.as_bytes() == key.as_bytes();
        young.key.as_ref().is_some_and(is_key)
            && self.queues[young.queue as usize].name.as_str() == queue
    }

    /// By what a name is found. Another table has others.
    pub(super) fn hash(&self, name: &TimerName) -> u64 {
        self.hash_of(name.queue.as_str(), name.key.as_str())
    }

    fn hash_of(&self, queue: &str, key: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        // In one piece if it is short: each piece costs as much as many bytes. There is a zero
        // in neither.
        let mut whole = [0; HASHED_WHOLE];
        let (queue, key) = (queue.as_bytes(), key.as_bytes());
        let end = queue.len() + 1 + key.len();
        if end <= HASHED_WHOLE {
            whole[..queue.len()].copy_from_slice(queue);
            whole[queue.len() + 1..end].copy_from_slice(key);
            hasher.write(&whole[..end]);
        } else {
            hasher.write(queue);
            hasher.write_u8(0);
            hasher.write(key);
        }
        hasher.finish()
    }

    /// Notes a change that stands at `at`: the name, of which the hash is given, is `indexed` from
    /// now on, or removed.
    ///
    /// Whether the sorted store may have the name is what the change says or, if a change of
    /// the same commit came before it, what is known here.
    pub(super) fn apply(
        &mut self,
        (name, hash): (&TimerName, u64),
        indexed: Option<Indexed>,
        replaces: Replaces,
        at: Place,
    ) {
        let known = self.get_at(hash, name);
        if !replaces.may_be_old && known.is_some_and(|young| young.may_be_old) {
            self.not_hidden.insert(name.clone());
        }
        self.apply_to((name, hash, None), indexed, replaces, at);
    }

    /// The same, of a name that was in a slot just now, if it is still there.
    pub(super) fn apply_to(
        &mut self,
        (name, hash, slot): (&TimerName, u64, Option<u32>),
        indexed: Option<Indexed>,
        replaces: Replaces,
        at: Place,
    ) {
        let (in_queue, key) = (name.queue.as_str(), name.key.as_str());
        let queue = self.queue(&name.queue);
        if let Some(kind) = replaces.kind {
            let count = &mut self.queues[queue as usize].by_state[kind as usize];
            *count = count.saturating_sub(1);
        }
        if let Some(indexed) = &indexed {
            self.queues[queue as usize].by_state[indexed.kind as usize] += 1;
            self.last_revision = self.last_revision.max(indexed.position.revision);
        }
        // What moved meanwhile is forgotten, and its slot may be another's.
        let is_still = |slot: &u32| {
            let young = self.slots.get(*slot as usize);
            young.is_some_and(|young| self.is(young, in_queue, key))
        };
        let found = slot.filter(is_still);
        let found = found.or_else(|| self.find(hash, in_queue, key));
        let mut may_be_old = replaces.may_be_old;
        if let Some(slot) = found {
            self.unlist(slot);
            may_be_old |= self.slots[slot as usize].may_be_old;
        }
        if indexed.is_none() && !may_be_old {
            // Nowhere: nothing has to be remembered.
            if let Some(slot) = found {
                self.give_back(slot, hash);
            }
            self.release(queue);
            return;
        }
        self.hid += usize::from(may_be_old);
        let slot = found.unwrap_or_else(|| self.take(queue, Short::of(key), hash));
        let young = &mut self.slots[slot as usize];
        (young.at, young.may_be_old) = (at, may_be_old);
        young.kind = indexed.map(|indexed| indexed.kind);
        if let Some(indexed) = indexed {
            young.due = indexed.position.due.as_micros();
            young.revision = indexed.position.revision;
            young.clock = indexed.clock;
            young.wake_at = indexed.wake.map_or(0, |wake| wake.at.as_micros());
            if let Some(list) = &mut self.queues[queue as usize].list {
                list.insert(indexed.position, slot);
            }
            if let Some(wake) = indexed.wake {
                let is_live = is_live(&self.slots, indexed.clock);
                self.due[indexed.clock as usize].insert((wake, slot), is_live);
            }
        }
    }

    /// The sorted store is about to get what stands at `at`, and was current in this slot. False
    /// if it is not any more.
    pub(super) fn mark(&mut self, slot: u32, at: Place) -> bool {
        // The slots of one that was full may all be gone.
        let young = self.slots.get_mut(slot as usize);
        let current = |young: &&mut Young| young.key.is_some() && young.at == at;
        let Some(young) = young.filter(|young| current(young) || planted!(LogMovesOutdated)) else {
            return false;
        };
        young.may_be_old |= !planted!(LogMovesUnmarked);
        true
    }

    /// How many slots there are, free ones included.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(NONE)
    }

    /// Whether what a slot stands for is in the segment with this number.
    pub(super) fn is_in(&self, slot: u32, segment: u64) -> bool {
        let young = &self.slots[slot as usize];
        young.key.is_some() && young.at.segment == segment
    }

    /// What the indexes say of a slot; `None` if its name was removed.
    pub(super) fn indexed(&self, slot: u32) -> Option<Indexed> {
        let young = &self.slots[slot as usize];
        let kind = young.kind?;
        let wake = Wake {
            at: Timestamp::from_micros(young.wake_at),
            revision: young.revision,
        };
        Some(Indexed {
            kind,
            position: young.position(),
            wake: (kind != StateKind::Dead).then_some(wake),
            clock: young.clock,
        })
    }

    /// The slot of a name, if what stands at `at` is what the name stands for.
    pub(super) fn current(&self, queue: &str, key: &str, at: Place) -> Option<u32> {
        let slot = self.find(self.hash_of(queue, key), queue, key)?;
        let is_current = self.slots[slot as usize].at == at || planted!(LogMovesOutdated);
        is_current.then_some(slot)
    }

    /// The sorted store has what stands at `at`. If nothing newer is in its slot, it is
    /// forgotten.
    pub(super) fn forget(&mut self, slot: u32, at: Place) {
        let Some(young) = self.slots.get(slot as usize) else {
            return;
        };
        let Some(key) = young.key.as_ref().filter(|_| young.at == at) else {
            return;
        };
        let queue = young.queue;
        let hash = self.hash_of(self.queues[queue as usize].name.as_str(), key.as_str());
        self.unlist(slot);
        self.give_back(slot, hash);
        self.release(queue);
    }

    /// What wakes by `clock` after `after`.
    pub(super) fn due_after(
        &self,
        clock: DueClock,
        after: Option<Wake>,
    ) -> impl Iterator<Item = (Wake, u32)> {
        self.due[clock as usize].after(after, is_live(&self.slots, clock))
    }

    /// Whether the queue can be listed without sorting all of it.
    pub(super) fn is_listed(&self, queue: &QueueName) -> bool {
        let queue = self.queue_numbers.get(queue);
        queue.is_none_or(|&queue| self.queues[queue as usize].list.is_some())
    }

    /// Keeps the queue in the order of listings from now on, until nothing of it is young.
    pub(super) fn keep_listed(&mut self, queue: &QueueName) {
        if let Some(&number) = self.queue_numbers.get(queue) {
            let list = self.sorted(number).into_iter().collect();
            self.queues[number as usize].list.get_or_insert(list);
        }
    }

    /// What is of the queue, in the order of listings.
    fn sorted(&self, queue: u32) -> Vec<(Position, u32)> {
        let of_queue = (0..NONE).zip(&self.slots).filter(|(_, young)| {
            young.queue == queue && young.key.is_some() && young.kind.is_some()
        });
        let mut sorted: Vec<_> = of_queue
            .map(|(slot, young)| (young.position(), slot))
            .collect();
        sorted.sort_unstable();
        sorted
    }

    /// What of the queue is listed after `after`.
    pub(super) fn listed_after(
        &self,
        queue: &QueueName,
        after: Bound<Position>,
    ) -> Box<dyn Iterator<Item = (Position, u32)> + '_> {
        let Some(&number) = self.queue_numbers.get(queue) else {
            return Box::new(std::iter::empty());
        };
        let range = (after, Bound::Unbounded);
        match &self.queues[number as usize].list {
            Some(list) => Box::new(list.range(range).map(|(&position, &slot)| (position, slot))),
            None => {
                let sorted = self.sorted(number).into_iter();
                Box::new(sorted.filter(move |(position, _)| range.contains(position)))
            }
        }
    }

    pub(super) fn slot(&self, slot: u32) -> &Young {
        &self.slots[slot as usize]
    }

    pub(super) fn queue_of(&self, slot: u32) -> &QueueName {
        &self.queues[self.slots[slot as usize].queue as usize].name
    }

    /// The name in a slot that an index led to.
    pub(super) fn name(&self, slot: u32) -> Option<TimerName> {
        Some(TimerName {
            queue: self.queue_of(slot).clone(),
            key: self.slots[slot as usize].key.as_ref()?.key()?,
        })
    }

    fn take(&mut self, queue: u32, key: Short, hash: u64) -> u32 {
        let young = Young {
            key: Some(key),
            queue,
            next: NONE,
            at: Place {
                segment: 0,
                offset: 0,
                len: 0,
            },
            due: 0,
            revision: Revision(0),
            wake_at: 0,
            kind: None,
            clock: DueClock::Wall,
            may_be_old: false,
        };
        let slot = match self.free {
            Some(slot) => {
                let freed = &mut self.slots[slot as usize];
                self.free = Some(freed.next).filter(|&next| next != NONE);
                *freed = young;
                slot
            }
            None => {
                self.slots.push(young);
                u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
            }
        };
        assert!(slot != NONE, "a table has fewer than 2^32 names");
        // Others with the same hash come behind it.
        if let Some(next) = self.first.insert(hash, slot) {
            self.slots[slot as usize].next = next;
        }
        self.queues[queue as usize].slots += 1;
        self.used += 1;
        slot
    }

    /// Takes a slot that is in no index out of the chain of its hash.
    fn give_back(&mut self, slot: u32, hash: u64) {
        let next = self.slots[slot as usize].next;
        let mut link = self.first.get(&hash).copied().unwrap_or(NONE);
        if link == slot {
            if next == NONE {
                self.first.remove(&hash);
            } else {
                self.first.insert(hash, next);
            }
        } else {
            while link != NONE {
                let young = &mut self.slots[link as usize];
                if young.next == slot {
                    young.next = next;
                    break;
                }
                link = young.next;
            }
        }
        let free = self.free.unwrap_or(NONE);
        let young = &mut self.slots[slot as usize];
        (young.key, young.next) = (None, free);
        let queue = &mut self.queues[young.queue as usize];
        self.free = Some(slot);
        queue.slots -= 1;
        if queue.slots == 0 {
            queue.list = None;
        }
        self.used -= 1;
        if self.used == 0 {
            // After a peak: nothing is left that refers to a slot.
            self.slots = Vec::new();
            self.free = None;
            self.first = HashMap::default();
        }
    }

    /// Takes it out of the indexes by time.
    fn unlist(&mut self, slot: u32) {
        let young = &self.slots[slot as usize];
        let Some(kind) = young.kind else {
            return;
        };
        if kind != StateKind::Dead {
            let wake = Wake {
                at: Timestamp::from_micros(young.wake_at),
                revision: young.revision,
            };
            let is_live = is_live(&self.slots, young.clock);
            self.due[young.clock as usize].remove((wake, slot), is_live);
        }
        if let Some(list) = &mut self.queues[young.queue as usize].list {
            list.remove(&young.position());
        }
    }

    /// The number of a queue, which it has as long as anything of it is counted or young.
    fn queue(&mut self, name: &QueueName) -> u32 {
        if let Some(number) = self.last_queue
            && self.queues[number as usize].name == *name
        {
            return number;
        }
        if let Some(&number) = self.queue_numbers.get(name) {
            self.last_queue = Some(number);
            return number;
        }
        let queue = Queue {
            name: name.clone(),
            by_state: [0; 4],
            slots: 0,
            list: None,
        };
        let number = match self.free_queues.pop() {
            Some(number) => {
                self.queues[number as usize] = queue;
                number
            }
            None => {
                self.queues.push(queue);
                u32::try_from(self.queues.len() - 1).unwrap_or(NONE)
            }
        };
        self.queue_numbers.insert(name.clone(), number);
        number
    }

    /// Forgets a queue of which nothing is left.
    fn release(&mut self, number: u32) {
        let queue = &self.queues[number as usize];
        if queue.slots == 0 && queue.by_state == [0; 4] {
            self.queue_numbers.remove(&queue.name);
            self.last_queue = self.last_queue.filter(|&last| last != number);
            self.free_queues.push(number);
        }
    }
}

impl Young {
    fn position(&self) -> Position {
        Position {
            due: Timestamp::from_micros(self.due),
            revision: self.revision,
        }
    }
}

/// Whether what wakes by `clock` is still there.
fn is_live(slots: &[Young], clock: DueClock) -> impl Fn(&Entry) -> bool {
    move |&(wake, slot)| {
        slots.get(slot as usize).is_some_and(|young| {
            young.revision == wake.revision
                && young.wake_at == wake.at.as_micros()
                && young.clock == clock
                && young.kind.is_some_and(|kind| kind != StateKind::Dead)
                && young.key.is_some()
        })
    }
}

/// What is stored by its hash need not be hashed again.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only hashes are hashed");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::varied_records;

    fn place(offset: u64) -> Place {
        Place {
            segment: 1,
            offset,
            len: 1,
        }
    }

    /// A name was found in a slot, moved, and another took the slot, before it is changed.
    #[test]
    fn a_slot_that_is_anothers_by_now_stays_so() {
        let mut table = Table::default();
        let names = ["gone", "other", "third"].map(|key| TimerName::new("q", key).unwrap());
        let indexed = Some(Indexed::of(&varied_records()[0]));
        let put = Replaces::default();
        let [gone, other, third] = &names;
        for (name, at) in [(gone, 1), (third, 2)] {
            table.apply((name, table.hash(name)), indexed, put, place(at));
        }
        let hash = table.hash(gone);
        let slot = table.first(hash);
        let slot = slot
            .and_then(|slot| table.follow(slot, "q", "gone"))
            .unwrap();
        table.forget(slot, place(1));
        table.apply((other, table.hash(other)), indexed, put, place(3));
        assert!(table.is(table.slot(slot), "q", "other"));

        table.apply_to((gone, hash, Some(slot)), indexed, put, place(4));
        let at = |name| table.get(name).map(|young| young.at);
        assert_eq!(at(other), Some(place(3)));
        assert_eq!(at(gone), Some(place(4)));
        assert_eq!((at(third), table.len()), (Some(place(2)), 3));
    }
}
