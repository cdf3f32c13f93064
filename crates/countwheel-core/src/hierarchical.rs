//! The hierarchical wheel: eight levels of 256 slots over all of time.

use alloc::vec::Vec;
use core::fmt;

use crate::chunks::{CHUNK, ChunkEntry};
use crate::geometry::{LEVELS, SLOTS, WheelPlace};
use crate::sort;
use crate::storage::{OccupiedSlot, SlotLoad, Storage};
use crate::{Expired, Tick, TimerKey};

/// The highest level whose ticks agree in their upper halves.
const SORTED_LEVEL_MAX: usize = 3;

/// Memory for sorting this many entries is kept.
const KEPT_FOR_SORTING: usize = 4_096;

/// A hierarchy of timing wheels over every tick there is.
///
/// Read a tick as eight bytes. An entry's level is the highest byte in which its
/// deadline differs from the hand, and its slot is that byte. When the hand enters the
/// span of a slot, the slot's entries *cascade*: they are filed again, on finer levels.
/// The last steps of that way are taken at once: a slot of 256 ticks, or one that has
/// passed as a whole, is sorted by deadline into the *run*, from which entries expire.
/// So there is no longest delay, an entry moves down at most seven times, and a jump over
/// 2^60 empty ticks costs no more than a jump over one.
///
/// The hierarchy is the seventh scheme of Varghese and Lauck, *Hashed and Hierarchical
/// Timing Wheels* (1987); the sorted run in front of it is the bottom of the ladder queue
/// of Tang, Goh and Thng (2005).
///
/// ```
/// use countwheel_core::{HierarchicalWheel, Tick};
///
/// let mut wheel = HierarchicalWheel::starting_at(Tick::new(1_000));
/// let slow = wheel.insert(Tick::new(1_000_000), "slow");
/// wheel.insert(Tick::new(1_007), "first at 1007");
/// wheel.insert(Tick::new(1_007), "second at 1007");
/// wheel.insert(Tick::new(3), "had passed, so is due at once");
///
/// let mut order = Vec::new();
/// while let Some(expired) = wheel.expire(Tick::new(1_010)) {
///     order.push(expired.value);
/// }
/// assert_eq!(order, ["had passed, so is due at once", "first at 1007", "second at 1007"]);
/// assert_eq!(wheel.now(), Tick::new(1_010));
///
/// assert!(wheel.reschedule(slow, Tick::new(1_020)));
/// assert_eq!(wheel.next_wake(), Some(Tick::new(1_020)));
/// assert_eq!(wheel.cancel(slow), Some("slow"));
/// assert!(wheel.is_empty());
/// ```
pub struct HierarchicalWheel<T> {
    pub(crate) now: Tick,
    /// Nothing in the run is due before this tick.
    pub(crate) run_from: Tick,
    /// No slot of the levels begins before this tick.
    pub(crate) levels_from: Tick,
    /// The lowest slot of the level of which one cascades, from the call at which the hand has
    /// entered that one until none of its entries is left there; 0 if none cascades.
    pub(crate) cascading: usize,
    /// What is on its way out is the run. Its deadlines ascend, and all its entries were
    /// filed before any of equal deadline on the levels.
    pub(crate) storage: Storage<T>,
    sorted: Vec<ChunkEntry>,
    spare: Vec<ChunkEntry>,
}

impl<T> HierarchicalWheel<T> {
    /// An empty wheel with its hand at tick 0. Allocates 25 KB for the slots.
    pub fn new() -> Self {
        Self::starting_at(Tick::ZERO)
    }

    /// An empty wheel with its hand at `now`.
    pub fn starting_at(now: Tick) -> Self {
        Self {
            now,
            run_from: Tick::MAX,
            levels_from: Tick::MAX,
            cascading: 0,
            storage: Storage::new(LEVELS * SLOTS),
            sorted: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Files `value` under `deadline`. A deadline that has passed is due at once,
    /// behind those already due.
    ///
    /// O(1), amortised over the growth of the storage. Every tick has a slot, so
    /// there is nothing to refuse.
    ///
    /// # Panics
    /// If the wheel would need more than 2^27 chunks: beyond 2^29 entries, or beyond 2^28 of
    /// which deadlines are more than 2^32 ticks away.
    #[inline]
    pub fn insert(&mut self, deadline: Tick, value: T) -> TimerKey {
        let place = self.own_place_of(deadline);
        if self.cascades_above(place) {
            let slot = self.cascading_place().slot();
            return self.storage.insert(slot, deadline, self.now, value);
        }
        let start = place.start_of(deadline.max(self.now));
        self.levels_from = self.levels_from.min(start);
        self.storage.insert(place.slot(), deadline, self.now, value)
    }

    /// Takes the entry of `key` out of the wheel; `None` if the key is stale.
    ///
    /// O(1), amortised over merging what cancels leave sparse. The value's room is free for
    /// the next one at once.
    #[inline]
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.storage.cancel(key, self.now)
    }

    /// Takes the entries of all `keys` out of the wheel and hands each value to `each`;
    /// stale keys are passed over. Returns how many were not stale.
    ///
    /// O(keys). Keys whose entries are no longer in the cache are waited for together,
    /// not one after the other, which makes this several times as fast as as many calls
    /// of [`cancel`](Self::cancel). If `each` panics, the keys after it keep their entries.
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// let keys: Vec<_> = (1..=9).map(|n| wheel.insert(Tick::new(n), n)).collect();
    /// wheel.cancel(keys[0]);
    ///
    /// let mut sum = 0;
    /// assert_eq!(wheel.cancel_each(keys, |_, value| sum += value), 8);
    /// assert_eq!(sum, 44);
    /// assert!(wheel.is_empty());
    /// ```
    pub fn cancel_each(
        &mut self,
        keys: impl IntoIterator<Item = TimerKey>,
        each: impl FnMut(TimerKey, T),
    ) -> usize {
        self.storage.cancel_each(self.now, keys, each)
    }

    /// Moves the entry of `key` to `deadline`, sooner or later than before; false
    /// if the key is stale.
    ///
    /// O(1). The key stays valid. For the order among equal deadlines the entry
    /// counts as inserted now.
    pub fn reschedule(&mut self, key: TimerKey, deadline: Tick) -> bool {
        let Some(position) = self.storage.nodes.find(key) else {
            return false;
        };
        let place = self.place_of(deadline);
        let start = place.start_of(deadline.max(self.now));
        self.levels_from = self.levels_from.min(start);
        self.storage
            .refile(position, key.index, place.slot(), deadline, self.now);
        true
    }

    /// Takes out the next entry that is due at `now`; `None` if nothing more is.
    ///
    /// Entries come by deadline, and equal deadlines in the order of insertion.
    /// After `Some` the hand stands at the tick at which that entry was due, after
    /// `None` at `now`. Time never goes backwards: a `now` behind the hand is taken
    /// as the hand's position.
    ///
    /// An entry moves down at most seven times between insertion and expiry, once for
    /// each level it cascades through, and its share of sorting a slot is three steps at
    /// most; a call is O(1) besides. Empty ticks cost nothing. The call at which the hand
    /// enters a slot moves all the slot's entries at once;
    /// [`expire_within`](Self::expire_within) does not.
    #[inline]
    pub fn expire(&mut self, now: Tick) -> Option<Expired<T>> {
        let now = now.max(self.now);
        if now < self.run_from && now < self.levels_from {
            self.now = now;
            return None;
        }
        let due = self.advance(now, &mut { usize::MAX })?;
        self.storage.pop(due.slot, self.now)
    }

    /// Like [`expire`](Self::expire), but moves at most `moves` entries on their way down, and
    /// takes those it has moved off that number. For those who must not be away for long:
    /// a slot that holds a million entries cascades in as many calls as they like.
    ///
    /// After `None`, nothing more is due if there are `moves` left. With none left there may be
    /// more to do: ask again, with as many as suit. Meanwhile everything may be called as
    /// ever, the hand stands where the slot begins, and [`next_wake`](Self::next_wake) tells
    /// that tick. Entries come in the same order as from `expire`, whatever is filed and
    /// moved in between.
    ///
    /// O(moves).
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// for n in 0..1_000 {
    ///     wheel.insert(Tick::new(3_600), n);
    /// }
    /// let mut calls = 0;
    /// let first = loop {
    ///     let mut moves = 100;
    ///     calls += 1;
    ///     match wheel.expire_within(Tick::new(3_600), &mut moves) {
    ///         Some(expired) => break expired,
    ///         None => assert_eq!(moves, 0, "something is due"),
    ///     }
    ///     wheel.insert(Tick::new(3_600), 1_000 + calls);
    /// };
    /// assert_eq!((first.value, first.deadline), (0, Tick::new(3_600)));
    /// assert_eq!(calls, 11, "ten for the thousand, one for what was filed meanwhile");
    /// ```
    #[inline]
    pub fn expire_within(&mut self, now: Tick, moves: &mut usize) -> Option<Expired<T>> {
        let now = now.max(self.now);
        if now < self.run_from && now < self.levels_from {
            self.now = now;
            return None;
        }
        let due = self.advance(now, moves)?;
        self.storage.pop(due.slot, self.now)
    }

    /// Takes out up to `limit` entries that are due at `now`, appends them to `batch`, and
    /// returns how many they were: fewer than `limit` if nothing more is due.
    ///
    /// The same entries in the same order as from as many calls of
    /// [`expire`](Self::expire), by deadline and then by insertion, and the hand ends in
    /// the same place; it only takes less time.
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// for n in [30, 10, 20, 10] {
    ///     wheel.insert(Tick::new(n), n);
    /// }
    /// let mut batch = Vec::new();
    /// assert_eq!(wheel.expire_batch(Tick::new(25), 2, &mut batch), 2);
    /// assert_eq!(wheel.now(), Tick::new(10), "the limit was met there");
    /// assert_eq!(wheel.expire_batch(Tick::new(25), 2, &mut batch), 1);
    /// assert_eq!(wheel.now(), Tick::new(25));
    /// assert_eq!(batch.iter().map(|e| e.value).collect::<Vec<_>>(), [10, 10, 20]);
    /// ```
    #[inline]
    pub fn expire_batch(&mut self, now: Tick, limit: usize, batch: &mut Vec<Expired<T>>) -> usize {
        let now = now.max(self.now);
        if now < self.run_from && now < self.levels_from && limit > 0 {
            self.now = now;
            return 0;
        }
        self.take_batch(now, limit, batch)
    }

    fn take_batch(&mut self, now: Tick, limit: usize, batch: &mut Vec<Expired<T>>) -> usize {
        let before = batch.len();
        let mut moves = usize::MAX;
        loop {
            let rest = limit - (batch.len() - before);
            if rest == 0 {
                break;
            }
            let Some(due) = self.advance(now, &mut moves) else {
                break;
            };
            self.storage
                .pop_batch(due.slot, self.now, due.until, rest, batch);
            if let Some(last) = batch.last() {
                self.now = self.now.max(last.deadline);
            }
        }
        batch.len() - before
    }

    /// When to call [`expire`](Self::expire) next: never later than the earliest
    /// deadline. `None` if the wheel is empty.
    ///
    /// Exact while the earliest deadline lies in the hand's own block of 256 ticks
    /// (equal to the hand in all but the lowest byte). Further ahead it is a lower
    /// bound: the tick at which the slot of the earliest deadline cascades, which
    /// still lies ahead of the hand. Expiring there yields an entry or brings a later
    /// answer, and after at most seven such wake-ups the answer is exact. While a slot has
    /// cascaded in part ([`expire_within`](Self::expire_within)), it is the hand.
    ///
    /// O(1).
    pub fn next_wake(&self) -> Option<Tick> {
        let first_of_run = self.first_of_run();
        let first_place = match self.half_cascaded() {
            Some(_) => Some(self.now),
            None => self.first_place().map(|place| place.start(self.now)),
        };
        first_of_run.into_iter().chain(first_place).min()
    }

    /// The earliest tick at which an entry is due, exactly. `None` if the wheel is
    /// empty. An entry whose deadline had passed is due at the hand.
    ///
    /// O(1) within the hand's block of 256 ticks; beyond it, O(entries in the
    /// slot of the earliest deadline).
    pub fn next_deadline(&self) -> Option<Tick> {
        let earliest_in = |place: WheelPlace| match place.level() {
            0 => Some(place.start(self.now)),
            _ => self.storage.earliest_deadline(place.slot(), self.now),
        };
        let in_slot = self.first_place().and_then(earliest_in);
        let not_cascaded = self.half_cascaded().and_then(earliest_in);
        let due = in_slot.into_iter().chain(not_cascaded).min();
        // What was filed while its slot cascaded may have passed then.
        let due = due.map(|deadline| deadline.max(self.now));
        self.first_of_run().into_iter().chain(due).min()
    }

    /// The value of `key`; `None` if the key is stale. O(1).
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// let key = wheel.insert(Tick::new(8), 1);
    /// *wheel.get_mut(key).unwrap() += 1;
    /// assert_eq!(wheel.get(key), Some(&2));
    /// assert_eq!(wheel.deadline(key), Some(Tick::new(8)));
    ///
    /// wheel.clear();
    /// assert!(!wheel.contains(key));
    /// assert_eq!(wheel.get(key), None);
    /// ```
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.storage.nodes.value(key)
    }

    /// The value of `key`, to change; `None` if the key is stale. O(1).
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.storage.nodes.value_mut(key)
    }

    /// The deadline of `key` as it was asked for; `None` if the key is stale. O(1).
    pub fn deadline(&self, key: TimerKey) -> Option<Tick> {
        self.storage.deadline(key, self.now)
    }

    /// Every entry: its key, its deadline as it was asked for, its value. In no particular order.
    /// O(room).
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// let key = wheel.insert(Tick::new(8), "entry");
    /// assert!(wheel.iter().eq([(key, Tick::new(8), &"entry")]));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (TimerKey, Tick, &T)> {
        self.storage.iter(self.now)
    }

    /// Whether the entry of `key` is still in the wheel. O(1).
    pub fn contains(&self, key: TimerKey) -> bool {
        self.storage.nodes.find(key).is_some()
    }

    /// The tick the hand stands at. Only expiring moves it.
    pub fn now(&self) -> Tick {
        self.now
    }

    /// How many entries are in the wheel. O(1).
    pub fn len(&self) -> usize {
        self.storage.len()
    }

    /// Whether no entry is in the wheel. O(1).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops every entry; all keys become stale. The hand stays. Costs what
    /// [`drain`](Self::drain) costs.
    pub fn clear(&mut self) {
        // The values are dropped when the wheel is whole again, whatever their `drop` does.
        drop(self.drain());
    }

    /// Takes every entry out, in the order in which they would have expired. The
    /// hand stays.
    ///
    /// O(n log n) for n entries.
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// wheel.insert(Tick::new(7_000), 'c');
    /// wheel.insert(Tick::new(20), 'a');
    /// wheel.insert(Tick::new(20), 'b');
    /// let unfired: String = wheel.drain().into_iter().map(|entry| entry.value).collect();
    /// assert_eq!(unfired, "abc");
    /// assert!(wheel.is_empty());
    /// ```
    pub fn drain(&mut self) -> Vec<Expired<T>> {
        self.storage.drain(self.now)
    }

    /// Takes out up to `limit` entries in no particular order and appends them to `batch`;
    /// returns how many they were: fewer than `limit` if the wheel is empty now. The hand
    /// stays. For those who give up what is pending, a piece at a time.
    ///
    /// O(limit), amortised as [`cancel`](Self::cancel) is.
    ///
    /// ```
    /// # use countwheel_core::HierarchicalWheel;
    /// # use countwheel_core::Tick;
    /// let mut wheel = HierarchicalWheel::new();
    /// for n in 0..100 {
    ///     wheel.insert(Tick::new(n), n);
    /// }
    /// let mut batch = Vec::new();
    /// assert_eq!(wheel.take_any(70, &mut batch), 70);
    /// assert_eq!(wheel.take_any(70, &mut batch), 30);
    /// assert!(wheel.is_empty());
    /// let mut all: Vec<_> = batch.into_iter().map(|entry| entry.value).collect();
    /// all.sort();
    /// assert!(all.into_iter().eq(0..100));
    /// ```
    pub fn take_any(&mut self, limit: usize, batch: &mut Vec<Expired<T>>) -> usize {
        self.storage.take_any(self.now, limit, batch)
    }

    /// How many entries there is memory for: as many as there are, or more, after a peak. O(1).
    ///
    /// ```
    /// # use countwheel_core::HierarchicalWheel;
    /// # use countwheel_core::Tick;
    /// let mut wheel = HierarchicalWheel::new();
    /// wheel.insert(Tick::new(1), "entry");
    /// assert!(wheel.room() >= wheel.len());
    /// ```
    pub fn room(&self) -> usize {
        self.storage.room()
    }

    /// Gives back the memory that nothing needs now.
    ///
    /// A wheel does so by itself when it has gone through as many removals as it has
    /// room for entries without needing that room; this is for one that has become
    /// quiet after a peak. O(room). Memory is in pieces of 4,096 values, and a piece in
    /// which one value lives stays.
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// let keys: Vec<_> = (0..100_000).map(|n| wheel.insert(Tick::new(n), n)).collect();
    /// let at_the_peak = wheel.memory_bytes();
    /// wheel.cancel_each(keys, |_, _| ());
    /// wheel.shrink_to_fit();
    /// assert!(wheel.memory_bytes() < at_the_peak / 10);
    /// ```
    pub fn shrink_to_fit(&mut self) {
        self.storage.shrink_to_fit();
        self.sorted = Vec::new();
        self.spare = Vec::new();
    }

    /// Like [`shrink_to_fit`](Self::shrink_to_fit), but gives back so many pieces of each kind at
    /// most; whether there may be more. For those who must not be away for long.
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// let keys: Vec<_> = (0..100_000).map(|n| wheel.insert(Tick::new(n), n)).collect();
    /// let at_the_peak = wheel.memory_bytes();
    /// wheel.cancel_each(keys, |_, _| ());
    /// while wheel.shrink_by(4) {
    ///     assert!(wheel.memory_bytes() > 0, "others may come in here");
    /// }
    /// assert!(wheel.memory_bytes() < at_the_peak / 10);
    /// ```
    pub fn shrink_by(&mut self, pieces: usize) -> bool {
        self.sorted = Vec::new();
        self.spare = Vec::new();
        self.storage.shrink_by(pieces)
    }

    /// How the entries are spread over the slots. Those that have been taken out of their
    /// slots, because they come next, are not counted. For people who wonder whether a
    /// layout suits their delays.
    ///
    /// O(slots and entries).
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// for deadline in [300, 300, 400] {
    ///     wheel.insert(Tick::new(deadline), "entry");
    /// }
    /// assert_eq!(wheel.slot_load().fullest, 3);
    /// ```
    pub fn slot_load(&self) -> SlotLoad {
        self.storage.slot_load()
    }

    /// The occupied slots with their entries, by level and then by number. An entry in the run has
    /// left its slot and is in none of them. For pictures of a wheel, and for debugging.
    ///
    /// O(slots and entries), and an allocation for each occupied slot.
    ///
    /// ```
    /// # use countwheel_core::{HierarchicalWheel, Tick};
    /// let mut wheel = HierarchicalWheel::new();
    /// for deadline in [7, 256, 300, 70_000] {
    ///     wheel.insert(Tick::new(deadline), "entry");
    /// }
    /// let slots = wheel.slots().map(|slot| (slot.level, slot.slot, slot.entries.len()));
    /// assert!(slots.eq([(0, 7, 1), (1, 1, 2), (2, 1, 1)]));
    /// ```
    pub fn slots(&self) -> impl Iterator<Item = OccupiedSlot<'_, T>> {
        self.storage.occupied_slots(SLOTS, self.now)
    }

    /// How many bytes of memory the wheel holds, apart from what values point to. O(room).
    pub fn memory_bytes(&self) -> usize {
        let for_sorting = self.sorted.capacity() + self.spare.capacity();
        self.storage.bytes() + for_sorting * size_of::<ChunkEntry>()
    }

    /// Where a deadline is filed. One that has passed counts as now: the hand cannot
    /// have moved since, because it never moves past an entry that is due.
    #[inline]
    fn place_of(&self, deadline: Tick) -> WheelPlace {
        let place = self.own_place_of(deadline);
        if self.cascades_above(place) {
            return self.cascading_place();
        }
        place
    }

    /// Whether a place belongs to the slot that cascades: so do all below its level. What is
    /// filed there goes to the end of that slot's chain, so that it comes behind its equals.
    #[inline]
    fn cascades_above(&self, place: WheelPlace) -> bool {
        place.slot() < self.cascading
    }

    /// Where a deadline belongs, whatever cascades.
    #[inline]
    fn own_place_of(&self, deadline: Tick) -> WheelPlace {
        WheelPlace::of(self.now, deadline.max(self.now))
    }

    /// The slot that cascades, if one does: the hand stands where it begins.
    #[cold]
    pub(crate) fn cascading_place(&self) -> WheelPlace {
        WheelPlace::of_slot(self.cascading).entered(self.now)
    }

    /// The slot that has cascaded in part, if entries are left there.
    fn half_cascaded(&self) -> Option<WheelPlace> {
        if self.cascading == 0 {
            return None;
        }
        Some(self.cascading_place()).filter(|place| !self.storage.slots.is_empty(place.slot()))
    }

    /// The place of the earliest slot that is occupied: since occupied slots lie ahead
    /// of now, the one with the lowest number.
    #[inline]
    fn first_place(&self) -> Option<WheelPlace> {
        self.storage.slots.first_occupied().map(WheelPlace::of_slot)
    }

    #[inline]
    fn first_of_run(&self) -> Option<Tick> {
        let run = self.storage.way_out();
        self.storage.first_deadline(run, self.now)
    }

    /// Moves the hand up to the next entry that is due, cascading on the way, or to `now`
    /// if there is none; or less far, if there are no `moves` left.
    fn advance(&mut self, now: Tick, moves: &mut usize) -> Option<DueEntries> {
        self.storage.tidy_sometimes(self.now);
        loop {
            if self.cascading > 0 && !self.cascade(moves) {
                return None;
            }
            let first_of_run = self.first_of_run();
            self.run_from = first_of_run.unwrap_or(Tick::MAX);
            if let Some(deadline) = first_of_run
                && deadline < self.levels_from
            {
                if deadline > now {
                    break;
                }
                self.now = deadline;
                let before_the_levels = Tick::new(self.levels_from.get() - 1);
                return Some(DueEntries {
                    slot: self.storage.way_out(),
                    until: Some(before_the_levels.min(now)),
                });
            }
            let Some(place) = self.first_place() else {
                self.levels_from = Tick::MAX;
                match first_of_run {
                    Some(Tick::MAX) if now == Tick::MAX => {
                        self.now = Tick::MAX;
                        return Some(self.due_run());
                    }
                    Some(deadline) if deadline < Tick::MAX => continue,
                    _ => break,
                }
            };
            let start = place.start(self.now);
            debug_assert!(place.is_ahead_of(self.now), "occupied slots lie ahead");
            debug_assert!(start >= self.levels_from, "the bound holds");
            if start > self.levels_from && first_of_run.is_some() {
                self.levels_from = start; // cancels had left the bound behind
                continue;
            }
            self.levels_from = start;
            if start > now {
                break;
            }
            self.now = start;
            // Equal deadlines of the run were filed before; but a slot of a higher level
            // must cascade first, since the hand enters it.
            if place.level() == 0 && first_of_run == Some(start) {
                return Some(self.due_run());
            }
            if place.level() == 0 {
                return Some(DueEntries {
                    slot: place.slot(),
                    until: None,
                });
            }
            let is_sorted = match place.level() {
                1 => true,
                level => level <= SORTED_LEVEL_MAX && place.end(self.now) <= now,
            };
            if is_sorted && first_of_run.is_none() && self.fits(place, *moves) {
                *moves -= self.sort_into_run(place);
            } else {
                self.cascading = place.level() * SLOTS;
            }
        }
        self.now = now;
        None
    }

    /// The run, as far as it is due at the hand.
    fn due_run(&self) -> DueEntries {
        DueEntries {
            slot: self.storage.way_out(),
            until: Some(self.now),
        }
    }

    /// Files entries of the slot that cascades again, first to last, `moves` of them at most;
    /// whether none is left. The slots below were empty when the hand entered this one, and
    /// get what they get from here alone: so the order is kept.
    fn cascade(&mut self, moves: &mut usize) -> bool {
        let now = self.now;
        let from = self.cascading_place();
        while *moves >= CHUNK as usize {
            let Some(taken) = self.storage.take_first(from.slot()) else {
                self.cascading = 0;
                return true;
            };
            self.storage
                .nodes
                .look_at(taken.iter(now.get()).map(|(_, node)| node));
            for (deadline, node) in taken.iter(now.get()) {
                let place = self.own_place_of(Tick::new(deadline));
                debug_assert!(place.level() < from.level(), "a cascade leads downwards");
                self.storage.file(place.slot(), deadline, now.get(), node);
            }
            *moves -= taken.len();
        }
        self.cascade_one_by_one(from, moves)
    }

    /// The same for less than a chunk.
    #[cold]
    fn cascade_one_by_one(&mut self, from: WheelPlace, moves: &mut usize) -> bool {
        while let Some((deadline, node, position)) = self.storage.first(from.slot(), self.now) {
            if *moves == 0 {
                return false;
            }
            *moves -= 1;
            let place = self.own_place_of(deadline);
            debug_assert!(place.level() < from.level(), "a cascade leads downwards");
            self.storage
                .refile(position, node, place.slot(), deadline, self.now);
        }
        self.cascading = 0;
        true
    }

    /// Whether a slot has no more entries than that.
    #[inline]
    fn fits(&self, place: WheelPlace, moves: usize) -> bool {
        moves == usize::MAX || self.storage.holds_at_most(place.slot(), moves)
    }

    /// Sorts the entries of a slot into the run, which is empty, now that the hand has
    /// entered it. Nothing is on the levels below. Returns how many they were.
    fn sort_into_run(&mut self, from: WheelPlace) -> usize {
        let mut sorted = core::mem::take(&mut self.sorted);
        while let Some(taken) = self.storage.take_first(from.slot()) {
            taken.move_narrow(&mut sorted);
        }
        sort::by_deadline(&mut sorted, from.level(), &mut self.spare);
        self.storage.file_run(&sorted);
        let moved = sorted.len();
        sorted.clear();
        if sorted.capacity() <= KEPT_FOR_SORTING {
            self.sorted = sorted;
        } else {
            self.spare = Vec::new();
        }
        moved
    }
}

/// Where the entries stand that are due next.
struct DueEntries {
    slot: usize,
    /// Only those up to this tick, or all.
    until: Option<Tick>,
}

impl<T> Default for HierarchicalWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Tells the hand and the number of entries, not the entries.
impl<T> fmt::Debug for HierarchicalWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HierarchicalWheel")
            .field("now", &self.now)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_deadlines_expire_in_insertion_order_through_every_cascade() {
        let deadline = Tick::new(1 << 40);
        let mut wheel = HierarchicalWheel::new();
        wheel.insert(deadline, 0);
        assert!(wheel.expire(Tick::new((1 << 40) - 5_000)).is_none());
        wheel.insert(deadline, 1);
        assert!(wheel.expire(Tick::new((1 << 40) - 1)).is_none());
        wheel.insert(deadline, 2);
        for expected in 0..3 {
            assert_eq!(wheel.expire(deadline).map(|e| e.value), Some(expected));
        }
    }

    /// A slot that begins at the tick of the run's first entry was once entered without
    /// cascading, and what was filed next overtook its entries.
    #[test]
    fn a_slot_that_begins_with_an_entry_of_the_run_cascades_first() {
        const BLOCK: u64 = 65_536;
        let at = |ticks| Tick::new(BLOCK + ticks);
        let mut wheel = HierarchicalWheel::new();
        wheel.insert(at(100), 'a');
        wheel.insert(at(512), 'b');
        assert_eq!(wheel.expire(at(BLOCK * 2)).map(|e| e.value), Some('a'));
        wheel.insert(at(515), 'c'); // level 1, in the slot that begins at 512
        assert_eq!(wheel.expire(at(BLOCK * 2)).map(|e| e.value), Some('b'));
        wheel.check();
        wheel.insert(at(520), 'd');
        let mut batch = Vec::new();
        wheel.expire_batch(at(600), 10, &mut batch);
        assert_eq!(
            batch.iter().map(|e| e.value).collect::<Vec<_>>(),
            ['c', 'd']
        );
    }

    /// A slot with a million entries once cascaded under the lock of whoever owned the wheel,
    /// all at once.
    #[test]
    fn a_crowd_of_one_tick_moves_in_pieces_of_any_size_and_fires_in_order() {
        const CROWD: usize = 3_000;
        let deadline = Tick::new(0x36_ee80);
        for piece in [1, 2, 7, 31, 32, 33, 500, CROWD, usize::MAX] {
            let mut wheel = HierarchicalWheel::new();
            for n in 0..CROWD {
                wheel.insert(deadline, n);
            }
            let (mut values, mut calls, mut moved) = (Vec::new(), 0, 0);
            while values.len() < CROWD {
                let mut moves = piece;
                let fired = wheel.expire_within(deadline, &mut moves);
                calls += 1;
                moved += piece - moves;
                assert!(fired.is_some() || moves == 0, "it is due");
                values.extend(fired.map(|entry| entry.value));
                if calls % 100 == 1 {
                    wheel.check();
                    let left = (values.len() < CROWD).then_some(deadline);
                    assert_eq!(wheel.next_deadline(), left);
                    assert!(wheel.next_wake() <= left);
                }
            }
            assert!(values.into_iter().eq(0..CROWD));
            assert_eq!(moved, 2 * CROWD, "from level 2 to 1, and from there out");
        }
    }

    #[test]
    fn a_slot_that_has_cascaded_in_part_takes_everything_that_may_be_called() {
        let deadline = Tick::new(70_000); // in the slot that begins at 65,536
        let mut wheel = HierarchicalWheel::new();
        let keys: Vec<_> = (0..10).map(|n| wheel.insert(deadline, n)).collect();
        let cut = |wheel: &mut HierarchicalWheel<i32>, moves: &mut usize| {
            assert_eq!(wheel.expire_within(deadline, moves), None);
            assert_eq!((*moves, wheel.now()), (0, Tick::new(65_536)));
            assert_eq!(wheel.next_wake(), Some(wheel.now()));
            wheel.check();
        };
        cut(&mut wheel, &mut 4);
        assert_eq!(wheel.cancel(keys[1]), Some(1), "it has moved");
        assert_eq!(wheel.cancel(keys[8]), Some(8), "it has not");
        assert!(wheel.reschedule(keys[0], deadline), "behind all others now");
        assert!(wheel.reschedule(keys[9], Tick::new(69_999)));
        assert!(wheel.reschedule(keys[7], Tick::new(1 << 20)));
        wheel.insert(Tick::new(3), 100); // has passed, so is due where the hand stands
        assert_eq!(wheel.next_deadline(), Some(wheel.now()));
        cut(&mut wheel, &mut 2);
        wheel.insert(deadline, 101);
        let mut order = Vec::new();
        while let Some(entry) = wheel.expire(deadline) {
            order.push(entry.value);
        }
        assert_eq!(order, [100, 9, 2, 3, 4, 5, 6, 0, 101]);
        assert_eq!(wheel.len(), 1);
        wheel.check();
    }

    #[test]
    fn a_slot_may_lose_all_its_entries_while_it_cascades() {
        let mut wheel = HierarchicalWheel::new();
        let keys: Vec<_> = (0..50)
            .map(|n| wheel.insert(Tick::new(70_000), n))
            .collect();
        assert_eq!(wheel.expire_within(Tick::new(90_000), &mut 20), None);
        assert_eq!(wheel.cancel_each(keys, |_, _| ()), 50);
        wheel.check();
        assert_eq!((wheel.next_wake(), wheel.next_deadline()), (None, None));
        wheel.insert(Tick::new(70_001), 50);
        wheel.check();
        assert_eq!(wheel.next_deadline(), Some(Tick::new(70_001)));
        assert_eq!(
            wheel.expire(Tick::new(90_000)).map(|e| e.value),
            Some(50),
            "the slot takes entries as long as the hand stands there"
        );
        assert_eq!(wheel.expire_within(Tick::new(u64::MAX), &mut 0), None);
        assert_eq!(wheel.now(), Tick::new(u64::MAX));
    }

    #[test]
    fn what_is_taken_in_pieces_is_all_there_was_and_leaves_the_rest_in_order() {
        let spread = |n: u64| Tick::new(1 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 3_000_000_000);
        for pieces in [1, 5, 31, 32, 33, 1_000] {
            let mut wheel = HierarchicalWheel::new();
            for n in 0..20_000 {
                wheel.insert(spread(n), n);
            }
            // Some are on their way out, some on the levels.
            let mut taken = Vec::new();
            while taken.len() < 100 {
                taken.extend(
                    wheel
                        .expire(Tick::new(400_000_000))
                        .map(|entry| entry.value),
                );
            }
            let mut batch = Vec::new();
            while batch.len() < 10_000 {
                assert_eq!(wheel.take_any(pieces, &mut batch), pieces);
                if batch.len() % 7 == 0 {
                    wheel.check();
                }
            }
            wheel.check();
            assert!(!wheel.contains(batch[0].key), "its key is stale");
            let mut last = wheel.now();
            while let Some(entry) = wheel.expire(Tick::MAX) {
                assert!(entry.deadline >= last);
                last = entry.deadline;
                taken.push(entry.value);
            }
            taken.extend(batch.into_iter().map(|entry| entry.value));
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..20_000));
            assert_eq!(wheel.take_any(9, &mut Vec::new()), 0);
        }
    }

    // One entry that stayed kept the memory of a peak for as many removals as the peak had
    // entries.
    #[test]
    fn the_memory_of_a_peak_goes_soon_though_one_entry_stays() {
        let mut wheel = HierarchicalWheel::new();
        let at = |n: u64| Tick::new(n * 7 + 1);
        wheel.insert(Tick::MAX, 0);
        let peak: Vec<_> = (0..300_000).map(|n| wheel.insert(at(n), n)).collect();
        let at_the_peak = wheel.memory_bytes();
        wheel.cancel_each(peak, |_, _| ());
        for n in 0..15_000 {
            let key = wheel.insert(at(n), n);
            wheel.cancel(key);
        }
        wheel.check();
        let now = wheel.memory_bytes();
        assert!(now < at_the_peak / 10, "{at_the_peak} to {now}");
    }

    #[test]
    fn memory_follows_the_population_down_however_small_the_churn() {
        for amplitude in [1, 30, 1_000] {
            let mut wheel = HierarchicalWheel::new();
            let at = |n: u64| Tick::new(n * 7 + 1);
            let peak: Vec<_> = (0..100_000).map(|n| wheel.insert(at(n), n)).collect();
            let at_the_peak = wheel.memory_bytes();
            wheel.cancel_each(peak, |_, _| ());
            for _ in 0..400_000 / amplitude {
                let few: Vec<_> = (0..amplitude).map(|n| wheel.insert(at(n), n)).collect();
                wheel.cancel_each(few, |_, _| ());
            }
            wheel.check();
            let now = wheel.memory_bytes();
            assert!(now < at_the_peak / 5, "{amplitude}: {at_the_peak} to {now}");
        }
    }

    #[test]
    fn random_cancels_leave_chunks_at_least_an_eighth_full() {
        let mut wheel = HierarchicalWheel::new();
        let spread = |n: u64| Tick::new(1 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 60_000);
        let keys: Vec<_> = (0..200_000).map(|n| wheel.insert(spread(n), n)).collect();
        for (n, &key) in keys.iter().enumerate() {
            if n % 64 != 0 {
                wheel.cancel(key);
            }
        }
        wheel.check();
        let chunks = wheel.storage.chunks.in_use();
        assert!(
            chunks < wheel.len() / 4 + 256 + 32,
            "{chunks} chunks, {}",
            wheel.len()
        );
    }

    #[test]
    fn waking_only_when_told_reaches_the_farthest_entry_in_eight_steps() {
        let mut wheel = HierarchicalWheel::new();
        wheel.insert(Tick::MAX, ());
        for wakes in 1.. {
            let wake = wheel.next_wake().expect("the entry is still there");
            if wheel.expire(wake).is_some() {
                assert_eq!((wake, wakes), (Tick::MAX, LEVELS));
                break;
            }
            wheel.check();
        }
    }

    #[test]
    fn the_hand_stops_at_each_entry_it_hands_out() {
        let mut wheel = HierarchicalWheel::new();
        wheel.insert(Tick::new(5), 'a');
        wheel.insert(Tick::new(9), 'c');
        assert_eq!(wheel.expire(Tick::new(100)).map(|e| e.value), Some('a'));
        assert_eq!(wheel.now(), Tick::new(5));
        wheel.insert(Tick::new(2), 'b');
        assert_eq!(wheel.expire(Tick::new(100)).map(|e| e.value), Some('b'));
        assert_eq!(wheel.expire(Tick::new(100)).map(|e| e.value), Some('c'));
        assert!(wheel.expire(Tick::new(100)).is_none());
        assert!(wheel.expire(Tick::new(3)).is_none());
        assert_eq!(wheel.now(), Tick::new(100), "time never goes backwards");
    }
}
