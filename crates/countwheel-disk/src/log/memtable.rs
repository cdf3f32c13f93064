//! What of a shard is not in the sorted store yet: where it stands in the log, and the
//! indexes by which it is found.
//!
//! Everything known of a name is in one slot of a slab. The indexes hold numbers of slots, so
//! that a name is in memory once, whatever finds it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::ops::Bound;

use countwheel_time::Timestamp;

use super::batch::{Counts, Form, Part, Replaces, ShardSnapshot};
use super::due::{DueLeaves, LeafEntry};
use super::low_water::LowWater;
use super::short::Short;
use crate::codec::{CodecError, Indexed};
use crate::planted::planted;
use crate::{ClockNote, Fence, Position, QueueCounts, Shard, Summary, Totals};
use crate::{DueClock, QueueName, Revision, StateKind, TimerName, Wake};

/// A name of so many bytes, with one between queue and key, is hashed in one piece.
const HASHED_WHOLE: usize = 64;
/// No slot.
const NONE: u32 = u32::MAX;

/// Where a change stands in the log: of a put, the bytes of its record. Two changes never stand
/// in the same place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogPlace {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// An entry: what the log says of a name.
#[derive(Debug)]
pub(super) struct MemtableEntry {
    key: Option<Short>,
    queue: u32,
    /// The next slot whose name has the same hash, or the next that is free.
    next: u32,
    /// The slots before and behind it in the chain of its queue.
    beside: [u32; 2],
    /// Where, and for a name that was removed where its removal stands.
    pub(super) at: LogPlace,
    due: u64,
    revision: Revision,
    wake_at: u64,
    /// Whether it wakes at all.
    wakes: bool,
    /// `None`: it was removed.
    pub(super) kind: Option<StateKind>,
    clock: DueClock,
    /// Whether the sorted store may have something under the name.
    pub(super) may_be_sorted: bool,
}

/// A queue of which something is in the memtable or counted.
#[derive(Debug)]
struct Queue {
    name: QueueName,
    by_state: [u64; 4],
    /// The first slot of the chain of those of this queue.
    first: u32,
    /// In the order of listings, from the first listing on: most queues are never listed, and
    /// this would be half of what a change costs.
    list: Option<List>,
}

/// What is of a queue, in the order of listings.
#[derive(Debug)]
struct List {
    order: BTreeMap<Position, u32>,
    /// From which slot of the chain on the slots are not taken in yet.
    from: u32,
}

/// What is in the log of a shard and not in the sorted store yet, and what is known of the whole shard.
#[derive(Debug, Default)]
pub(super) struct Memtable {
    pub(super) fence: Fence,
    pub(super) last_revision: Revision,
    pub(super) clock: Option<ClockNote>,
    /// How far the sorted store has nothing that is not hidden here: the low-water marks.
    pub(super) low_water: LowWater,
    /// How many entries that mark has low_water since it was written.
    pub(super) unnoted: usize,
    /// In which segment it was written last.
    pub(super) noted_in: u64,
    /// How many changes there were of names that the sorted store may have.
    pub(super) hid: usize,
    /// The names of which a change that was read back says that the sorted store has nothing, while
    /// one before it says that it may. So the log was written behind a newer sorted store than this
    /// one: once the earlier change has been flushed, nothing in the log hides what is there.
    pub(super) not_hidden: BTreeSet<TimerName>,
    hasher: RandomState,
    slots: Vec<MemtableEntry>,
    /// The first free slot.
    free: Option<u32>,
    used: usize,
    /// The first slot with each hash.
    first: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    due: [DueLeaves; 2],
    queues: Vec<Queue>,
    free_queues: Vec<u32>,
    /// Of which queue the last change was, if it is still there.
    last_queue: Option<u32>,
    numbers: Numbers,
    /// The queues of which something is counted, in order of name.
    counted: BTreeSet<QueueName>,
    /// Of all queues.
    by_state: [u64; 4],
    /// The queues that have dead records, the most first.
    dead: BTreeSet<(Reverse<u64>, QueueName)>,
    /// The counts are not known yet: what of them stands in the log was read from its middle on.
    is_uncounted: bool,
    /// Up to which queue a copy of the counts was read back; `None` before its first.
    copied_to: Option<QueueName>,
}

impl Memtable {
    /// A memtable without entries.
    pub(super) fn of(snapshot: ShardSnapshot) -> Self {
        let mut memtable = Self {
            fence: snapshot.fence,
            last_revision: snapshot.last_revision,
            clock: snapshot.clock,
            ..Self::default()
        };
        match snapshot.counts {
            Counts::Whole(counts) => memtable.set_counts(&counts),
            Counts::Sum(_) => memtable.is_uncounted = true,
        }
        memtable
    }

    /// Whether the counts are known.
    pub(super) fn is_counted(&self) -> bool {
        !self.is_uncounted
    }

    /// These are the counts of all queues.
    pub(super) fn adopt(&mut self, counts: &[QueueCounts]) {
        let known: Vec<_> = self.counted.iter().cloned().collect();
        for queue in known {
            self.set_count(&queue, [0; 4]);
        }
        self.set_counts(counts);
        self.is_uncounted = false;
    }

    /// Takes in a piece of a copy of the counts, or sees whether it says what is known.
    pub(super) fn copy_back(
        &mut self,
        part: Part,
        counts: &[QueueCounts],
    ) -> Result<(), CodecError> {
        if part.begins {
            self.copied_to = None;
        }
        let after = self.copied_to.take();
        if !part.begins && after.is_none() {
            return Ok(()); // it began in a segment that is gone
        }
        let last = counts.last().map(|last| last.queue.clone());
        let begin = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let end = match &last {
            Some(last) if !part.ends => Bound::Included(last),
            _ => Bound::Unbounded,
        };
        if after.is_some()
            && counts
                .first()
                .is_some_and(|first| Some(&first.queue) <= after.as_ref())
        {
            return Err(CodecError::Key);
        }
        let known = self.counted.range::<QueueName, _>((begin, end));
        if self.is_uncounted {
            let known: Vec<_> = known.cloned().collect();
            for queue in known {
                self.set_count(&queue, [0; 4]);
            }
            self.set_counts(counts);
            self.is_uncounted = !part.ends;
        } else if !known
            .map(|queue| self.counts_of(queue))
            .eq(counts.iter().cloned())
        {
            return Err(CodecError::Counts);
        }
        self.copied_to = last.or(after);
        Ok(())
    }

    fn set_counts(&mut self, counts: &[QueueCounts]) {
        for counts in counts {
            self.set_count(&counts.queue, counts.by_state);
        }
    }

    fn set_count(&mut self, queue: &QueueName, by_state: [u64; 4]) {
        let number = self.queue(queue);
        self.count(number, by_state);
        self.release(number);
    }

    pub(super) fn snapshot(&self, shard: Shard, form: Form) -> ShardSnapshot {
        ShardSnapshot {
            shard,
            fence: self.fence,
            last_revision: if planted!(LogSnapshotForgets) {
                Revision(0)
            } else {
                self.last_revision
            },
            clock: self.clock.filter(|_| !planted!(LogSnapshotForgetsClock)),
            counts: match form {
                Form::Sums => Counts::Sum(self.totals()),
                Form::WithoutClocks | Form::Whole => Counts::Whole(self.counts()),
            },
        }
    }

    /// How many records each queue has in each state, in the memtable and in the sorted store; in
    /// order of name.
    pub(super) fn counts(&self) -> Vec<QueueCounts> {
        let names = self.counted.iter();
        names.map(|queue| self.counts_of(queue)).collect()
    }

    /// The same of at most `limit` queues behind `after`.
    pub(super) fn counts_after(&self, after: Option<&QueueName>, limit: usize) -> Vec<QueueCounts> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self
            .counted
            .range::<QueueName, _>((begin, Bound::Unbounded));
        names
            .take(limit)
            .map(|queue| self.counts_of(queue))
            .collect()
    }

    /// The same of one queue.
    fn counts_of(&self, queue: &QueueName) -> QueueCounts {
        let number = self.numbers.get(queue);
        QueueCounts {
            queue: queue.clone(),
            by_state: number.map_or([0; 4], |number| self.queues[number as usize].by_state),
        }
    }

    /// As [`Store::summary`](crate::Store::summary).
    pub(super) fn summary(&self, first: &[QueueName], limit: usize) -> Summary {
        let dead = self.dead.iter().map(|(_, queue)| queue);
        let named = first.iter().filter(|queue| self.counted.contains(*queue));
        let mut seen = HashSet::new();
        let all = named.chain(dead).chain(&self.counted);
        let some = all.filter(|queue| seen.insert(*queue)).take(limit);
        Summary {
            queues: some.map(|queue| self.counts_of(queue)).collect(),
            totals: self.totals(),
        }
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            queues: self.counted.len() as u64,
            by_state: self.by_state,
        }
    }

    /// Notes how many records a queue has in each state from now on.
    fn count(&mut self, queue: u32, by_state: [u64; 4]) {
        let queue = &mut self.queues[queue as usize];
        let before = std::mem::replace(&mut queue.by_state, by_state);
        for (sum, (before, after)) in self.by_state.iter_mut().zip(before.iter().zip(by_state)) {
            *sum = sum.wrapping_sub(*before).wrapping_add(after);
        }
        let dead = |counts: [u64; 4]| counts[StateKind::Dead as usize];
        if dead(before) != dead(by_state) {
            if dead(before) > 0 {
                let ranked = (Reverse(dead(before)), queue.name.clone());
                self.dead.remove(&ranked);
            }
            if dead(by_state) > 0 {
                let ranked = (Reverse(dead(by_state)), queue.name.clone());
                self.dead.insert(ranked);
            }
        }
        match (before == [0; 4], by_state == [0; 4]) {
            (true, false) => drop(self.counted.insert(queue.name.clone())),
            (false, true) => drop(self.counted.remove(&queue.name)),
            _ => {}
        }
    }

    /// The queue and the state of each record in the memtable.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&QueueName, StateKind)> {
        let used = self.slots.iter().filter(|entry| entry.key.is_some());
        used.filter_map(|entry| Some((&self.queues[entry.queue as usize].name, entry.kind?)))
    }

    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn get(&self, name: &TimerName) -> Option<&MemtableEntry> {
        self.get_at(self.hash(name), name)
    }

    /// What is under a name of this hash.
    pub(super) fn get_at(&self, hash: u64, name: &TimerName) -> Option<&MemtableEntry> {
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
            let entry = &self.slots[slot as usize];
            if self.is(entry, queue, key) {
                return Some(slot);
            }
            slot = entry.next;
        }
        None
    }

    fn is(&self, entry: &MemtableEntry, queue: &str, key: &str) -> bool {
        let is_key = |it: &Short| it.as_bytes() == key.as_bytes();
        let found = self.queues[entry.queue as usize].name.as_str();
        entry.key.as_ref().is_some_and(is_key) && looked_up(found) == looked_up(queue)
    }

    /// By what a name is found. Another memtable has others.
    pub(super) fn hash(&self, name: &TimerName) -> u64 {
        self.hash_of(name.queue.as_str(), name.key.as_str())
    }

    fn hash_of(&self, queue: &str, key: &str) -> u64 {
        let queue = looked_up(queue);
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
        at: LogPlace,
    ) {
        let known = self.get_at(hash, name);
        if !replaces.may_be_sorted && known.is_some_and(|entry| entry.may_be_sorted) {
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
        at: LogPlace,
    ) {
        let (in_queue, key) = (name.queue.as_str(), name.key.as_str());
        let queue = self.queue(&name.queue);
        let mut by_state = self.queues[queue as usize].by_state;
        if let Some(kind) = replaces.kind {
            let count = &mut by_state[kind as usize];
            *count = count.saturating_sub(1);
        }
        if let Some(indexed) = &indexed {
            by_state[indexed.kind as usize] += 1;
            self.last_revision = self.last_revision.max(indexed.position.revision);
        }
        self.count(queue, by_state);
        // What was flushed meanwhile is forgotten, and its slot may be another's.
        let is_still = |slot: &u32| {
            let entry = self.slots.get(*slot as usize);
            entry.is_some_and(|entry| self.is(entry, in_queue, key))
        };
        let found = slot.filter(is_still);
        let found = found.or_else(|| self.find(hash, in_queue, key));
        let mut may_be_sorted = replaces.may_be_sorted;
        if let Some(slot) = found {
            self.unlist(slot);
            may_be_sorted |= self.slots[slot as usize].may_be_sorted;
        }
        if indexed.is_none() && !may_be_sorted {
            // Nowhere: nothing has to be remembered.
            if let Some(slot) = found {
                self.give_back(slot, hash);
            }
            self.release(queue);
            return;
        }
        self.hid += usize::from(may_be_sorted);
        let slot = found.unwrap_or_else(|| self.take(queue, Short::of(key), hash));
        let entry = &mut self.slots[slot as usize];
        (entry.at, entry.may_be_sorted) = (at, may_be_sorted);
        entry.kind = indexed.map(|indexed| indexed.kind);
        if let Some(indexed) = indexed {
            entry.due = indexed.position.due.as_micros();
            entry.revision = indexed.position.revision;
            entry.clock = indexed.clock;
            entry.wake_at = indexed.wake.map_or(0, |wake| wake.at.as_micros());
            entry.wakes = indexed.wake.is_some();
            if let Some(list) = &mut self.queues[queue as usize].list {
                list.order.insert(indexed.position, slot);
            }
            if let Some(wake) = indexed.wake {
                let is_live = is_live(&self.slots, indexed.clock);
                self.due[indexed.clock as usize].insert((wake, slot), is_live);
            }
        }
    }

    /// The sorted store is about to get what stands at `at`, and was current in this slot. False
    /// if it is not any more.
    pub(super) fn mark(&mut self, slot: u32, at: LogPlace) -> bool {
        // The slots of one that was full may all be gone.
        let entry = self.slots.get_mut(slot as usize);
        let current = |entry: &&mut MemtableEntry| entry.key.is_some() && entry.at == at;
        let Some(entry) = entry.filter(|entry| current(entry) || planted!(LogFlushesOutdated))
        else {
            return false;
        };
        entry.may_be_sorted |= !planted!(LogFlushesUnmarked);
        true
    }

    /// How many slots there are, free ones included.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(NONE)
    }

    /// Whether what a slot stands for is in the segment with this number.
    pub(super) fn is_in(&self, slot: u32, segment: u64) -> bool {
        let entry = &self.slots[slot as usize];
        entry.key.is_some() && entry.at.segment == segment
    }

    /// What the indexes say of a slot; `None` if its name was removed.
    pub(super) fn indexed(&self, slot: u32) -> Option<Indexed> {
        let entry = &self.slots[slot as usize];
        let kind = entry.kind?;
        let wake = Wake {
            at: Timestamp::from_micros(entry.wake_at),
            revision: entry.revision,
        };
        Some(Indexed {
            kind,
            position: entry.position(),
            wake: entry.wakes.then_some(wake),
            clock: entry.clock,
        })
    }

    /// The slot of a name, if what stands at `at` is what the name stands for.
    pub(super) fn current(&self, queue: &str, key: &str, at: LogPlace) -> Option<u32> {
        let slot = self.find(self.hash_of(queue, key), queue, key)?;
        let is_current = self.slots[slot as usize].at == at || planted!(LogFlushesOutdated);
        is_current.then_some(slot)
    }

    /// The sorted store has what stands at `at`. If nothing newer is in its slot, it is
    /// forgotten.
    pub(super) fn forget(&mut self, slot: u32, at: LogPlace) {
        let Some(entry) = self.slots.get(slot as usize) else {
            return;
        };
        let Some(key) = entry.key.as_ref().filter(|_| entry.at == at) else {
            return;
        };
        let queue = entry.queue;
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

    /// Whether all of the queue is in the order of listings.
    pub(super) fn is_listed(&self, queue: &QueueName) -> bool {
        let Some(number) = self.numbers.get(queue) else {
            return true;
        };
        let list = &self.queues[number as usize].list;
        list.as_ref().is_some_and(|list| list.from == NONE)
    }

    /// Keeps the queue in the order of listings from now on, until nothing of it is in the
    /// memtable. Takes in at most so many slots, so that nobody waits for long; what changes
    /// meanwhile is taken in.
    pub(super) fn keep_listed(&mut self, queue: &QueueName, most: usize) {
        let Some(number) = self.numbers.get(queue) else {
            return;
        };
        let queue = &mut self.queues[number as usize];
        let list = queue.list.get_or_insert_with(|| List {
            order: BTreeMap::new(),
            from: queue.first,
        });
        for _ in 0..most {
            if list.from == NONE {
                return;
            }
            let entry = &self.slots[list.from as usize];
            if entry.kind.is_some() {
                list.order.insert(entry.position(), list.from);
            }
            list.from = entry.beside[1];
        }
    }

    /// What of the queue is listed after `after`, of what is in the order of listings.
    pub(super) fn listed_after(
        &self,
        queue: &QueueName,
        after: Bound<Position>,
    ) -> impl Iterator<Item = (Position, u32)> {
        let number = self.numbers.get(queue);
        let list = number.and_then(|number| self.queues[number as usize].list.as_ref());
        let range = (after, Bound::Unbounded);
        let listed = list.map(|list| list.order.range(range));
        listed
            .into_iter()
            .flatten()
            .map(|(&position, &slot)| (position, slot))
    }

    pub(super) fn slot(&self, slot: u32) -> &MemtableEntry {
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
        let entry = MemtableEntry {
            key: Some(key),
            queue,
            next: NONE,
            beside: [NONE, self.queues[queue as usize].first],
            at: LogPlace {
                segment: 0,
                offset: 0,
                len: 0,
            },
            due: 0,
            revision: Revision(0),
            wake_at: 0,
            wakes: false,
            kind: None,
            clock: DueClock::Wall,
            may_be_sorted: false,
        };
        let slot = match self.free {
            Some(slot) => {
                let freed = &mut self.slots[slot as usize];
                self.free = Some(freed.next).filter(|&next| next != NONE);
                *freed = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
            }
        };
        assert!(slot != NONE, "a memtable has fewer than 2^32 names");
        // Others with the same hash come behind it.
        if let Some(next) = self.first.insert(hash, slot) {
            self.slots[slot as usize].next = next;
        }
        let behind = std::mem::replace(&mut self.queues[queue as usize].first, slot);
        if behind != NONE {
            self.slots[behind as usize].beside[0] = slot;
        }
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
                let entry = &mut self.slots[link as usize];
                if entry.next == slot {
                    entry.next = next;
                    break;
                }
                link = entry.next;
            }
        }
        let free = self.free.unwrap_or(NONE);
        let entry = &mut self.slots[slot as usize];
        (entry.key, entry.next) = (None, free);
        let ([before, behind], number) = (entry.beside, entry.queue);
        self.free = Some(slot);
        if behind != NONE {
            self.slots[behind as usize].beside[0] = before;
        }
        if before != NONE {
            self.slots[before as usize].beside[1] = behind;
        }
        let queue = &mut self.queues[number as usize];
        if before == NONE {
            queue.first = behind;
        }
        match &mut queue.list {
            _ if queue.first == NONE => queue.list = None,
            Some(list) if list.from == slot => list.from = behind,
            _ => {}
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
        let entry = &self.slots[slot as usize];
        if entry.kind.is_none() {
            return;
        }
        if entry.wakes {
            let wake = Wake {
                at: Timestamp::from_micros(entry.wake_at),
                revision: entry.revision,
            };
            let is_live = is_live(&self.slots, entry.clock);
            self.due[entry.clock as usize].remove((wake, slot), is_live);
        }
        if let Some(list) = &mut self.queues[entry.queue as usize].list {
            list.order.remove(&entry.position());
        }
    }

    /// The number of a queue, which it has as long as anything of it is counted or in the memtable.
    fn queue(&mut self, name: &QueueName) -> u32 {
        if let Some(number) = self.last_queue
            && self.queues[number as usize].name == *name
        {
            return number;
        }
        if let Some(number) = self.numbers.get(name) {
            self.last_queue = Some(number);
            return number;
        }
        let queue = Queue {
            name: name.clone(),
            by_state: [0; 4],
            first: NONE,
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
        self.numbers.insert(name.clone(), number);
        number
    }

    /// Forgets a queue of which nothing is left.
    fn release(&mut self, number: u32) {
        let queue = &self.queues[number as usize];
        if queue.first == NONE && queue.by_state == [0; 4] {
            self.numbers.remove(&queue.name);
            self.last_queue = self.last_queue.filter(|&last| last != number);
            self.free_queues.push(number);
        }
    }
}

impl MemtableEntry {
    fn position(&self) -> Position {
        Position {
            due: Timestamp::from_micros(self.due),
            revision: self.revision,
        }
    }
}

/// By which part of a queue's text a name in it is looked up: by all of it.
fn looked_up(queue: &str) -> &str {
    if planted!(LogIgnoresNamespace) {
        return queue.split_once('/').map_or(queue, |(_, name)| name);
    }
    queue
}

/// Whether what wakes by `clock` is still there.
fn is_live(slots: &[MemtableEntry], clock: DueClock) -> impl Fn(&LeafEntry) -> bool {
    move |&(wake, slot)| {
        slots.get(slot as usize).is_some_and(|entry| {
            entry.revision == wake.revision
                && entry.wake_at == wake.at.as_micros()
                && entry.clock == clock
                && entry.kind.is_some()
                && entry.wakes
                && entry.key.is_some()
        })
    }
}

/// The numbers of queues, by name. In many maps, of which each grows by itself: one of a million queues
/// would take a fifth of a second to grow, and commits would wait for it.
#[derive(Debug)]
struct Numbers {
    hasher: RandomState,
    maps: Vec<HashMap<QueueName, u32>>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            maps: (0..Self::MAPS).map(|_| HashMap::new()).collect(),
        }
    }
}

impl Numbers {
    const MAPS: usize = 256;

    fn map(&self, queue: &QueueName) -> usize {
        let hash = self.hasher.hash_one(queue);
        usize::from(hash.to_le_bytes()[7]) % Self::MAPS
    }

    fn get(&self, queue: &QueueName) -> Option<u32> {
        self.maps[self.map(queue)].get(queue).copied()
    }

    fn insert(&mut self, queue: QueueName, number: u32) {
        let map = self.map(&queue);
        self.maps[map].insert(queue, number);
    }

    fn remove(&mut self, queue: &QueueName) {
        let map = self.map(queue);
        self.maps[map].remove(queue);
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
    use countwheel_durable::store::conformance::varied_records;

    fn place(offset: u64) -> LogPlace {
        LogPlace {
            segment: 1,
            offset,
            len: 1,
        }
    }

    /// A name was found in a slot, was flushed, and another took the slot, before it is changed.
    #[test]
    fn a_slot_that_is_anothers_by_now_stays_so() {
        let mut memtable = Memtable::default();
        let names = ["gone", "other", "third"].map(|key| TimerName::new("q", key).unwrap());
        let indexed = Some(Indexed::of(&varied_records()[0]));
        let put = Replaces::default();
        let [gone, other, third] = &names;
        for (name, at) in [(gone, 1), (third, 2)] {
            memtable.apply((name, memtable.hash(name)), indexed, put, place(at));
        }
        let hash = memtable.hash(gone);
        let slot = memtable.first(hash);
        let slot = slot
            .and_then(|slot| memtable.follow(slot, "q", "gone"))
            .unwrap();
        memtable.forget(slot, place(1));
        memtable.apply((other, memtable.hash(other)), indexed, put, place(3));
        assert!(memtable.is(memtable.slot(slot), "q", "other"));

        memtable.apply_to((gone, hash, Some(slot)), indexed, put, place(4));
        let at = |name| memtable.get(name).map(|entry| entry.at);
        assert_eq!(at(other), Some(place(3)));
        assert_eq!(at(gone), Some(place(4)));
        assert_eq!((at(third), memtable.len()), (Some(place(2)), 3));
    }
}
