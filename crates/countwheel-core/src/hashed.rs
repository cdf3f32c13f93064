//! The hashed wheel: one ring, in which all rounds share a slot.

use alloc::vec::Vec;
use core::fmt;

use crate::geometry::{GeometryError, Revolution};
use crate::storage::{OccupiedSlot, SlotLoad, Storage};
use crate::{Expired, Tick, TimerKey};

/// The classic hashed timing wheel: one ring of slots, as Netty and its kin have it.
///
/// A deadline's slot is the deadline modulo the number of slots. Entries further
/// ahead than one revolution wait in the same slots for a later *round*: whenever
/// the hand visits their slot they are looked at and left there. That visit per
/// far entry and revolution is the price of the single ring; where delays are
/// mostly longer than a revolution, take
/// [`HierarchicalWheel`](crate::HierarchicalWheel). Rounds are not counted, since
/// entries keep their whole deadline and a comparison tells.
///
/// Entries of a slot share chunks of 256 bytes, so a ring wants several entries to an
/// occupied slot: with one to a slot each takes ten times the room. Rather too few slots
/// than too many.
///
/// Unlike the classic one, this wheel skips empty slots and does not go round in
/// vain: after a revolution in which nothing was due it looks up the earliest
/// deadline, in O(n), and goes directly there.
///
/// The scheme is the sixth of Varghese and Lauck, *Hashed and Hierarchical Timing
/// Wheels* (1987).
///
/// ```
/// use countwheel_core::{HashedWheel, Tick};
///
/// let mut wheel = HashedWheel::with_ticks_per_wheel(100)?;
/// assert_eq!(wheel.ticks_per_wheel(), 128, "rounded up to a power of two");
///
/// let slow = wheel.insert(Tick::new(7 + 128), "a round later");
/// wheel.insert(Tick::new(7), "first at 7");
/// wheel.insert(Tick::new(7), "second at 7");
///
/// let mut order = Vec::new();
/// while let Some(expired) = wheel.expire(Tick::new(10)) {
///     order.push(expired.value);
/// }
/// assert_eq!(order, ["first at 7", "second at 7"]);
/// assert_eq!(wheel.now(), Tick::new(10));
///
/// assert!(wheel.reschedule(slow, Tick::new(20)));
/// assert_eq!(wheel.next_wake(), Some(Tick::new(20)));
/// assert_eq!(wheel.cancel(slow), Some("a round later"));
/// assert!(wheel.is_empty());
/// # Ok::<(), countwheel_core::GeometryError>(())
/// ```
pub struct HashedWheel<T> {
    pub(crate) now: Tick,
    pub(crate) revolution: Revolution,
    /// What is on its way out is due at the hand, or was when it was filed; the deadlines
    /// of all others lie ahead of the hand.
    pub(crate) storage: Storage<T>,
    /// Nothing happens before this tick: the hand meets no slot that is occupied.
    pub(crate) quiet_until: Tick,
    /// No entry in the ring is due before this tick.
    pub(crate) not_before: Tick,
    /// Where the hand last met something due, or searched for it.
    quiet_since: Tick,
}

impl<T> HashedWheel<T> {
    /// An empty wheel of 512 slots with its hand at tick 0.
    pub fn new() -> Self {
        Self::of(Tick::ZERO, Revolution::USUAL)
    }

    /// An empty wheel with its hand at tick 0, and `ticks_per_wheel` slots, rounded
    /// up to a power of two.
    ///
    /// Allocates 12 bytes and one bit a slot.
    ///
    /// # Errors
    /// [`GeometryError`] if `ticks_per_wheel` is 0 or more than 2^30.
    pub fn with_ticks_per_wheel(ticks_per_wheel: usize) -> Result<Self, GeometryError> {
        Self::starting_at(Tick::ZERO, ticks_per_wheel)
    }

    /// An empty wheel with its hand at `now`, and `ticks_per_wheel` slots, rounded
    /// up to a power of two.
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let wheel = HashedWheel::<()>::starting_at(Tick::new(30), 512)?;
    /// assert_eq!(wheel.now(), Tick::new(30));
    /// # Ok::<(), countwheel_core::GeometryError>(())
    /// ```
    ///
    /// # Errors
    /// [`GeometryError`] if `ticks_per_wheel` is 0 or more than 2^30.
    pub fn starting_at(now: Tick, ticks_per_wheel: usize) -> Result<Self, GeometryError> {
        let revolution = Revolution::rounded_up(ticks_per_wheel)?;
        Ok(Self::of(now, revolution))
    }

    fn of(now: Tick, revolution: Revolution) -> Self {
        Self {
            now,
            revolution,
            storage: Storage::new(revolution.ticks()),
            quiet_until: now,
            not_before: Tick::MAX,
            quiet_since: now,
        }
    }

    /// Files `value` under `deadline`. A deadline that has passed is due at once,
    /// behind those already due.
    ///
    /// O(1), amortised over the growth of the storage. Every tick has a slot, so
    /// there is nothing to refuse.
    ///
    /// # Panics
    /// If the wheel would need more than 2^27 chunks: beyond 2^26 occupied slots, or beyond
    /// 2^28 entries.
    #[inline]
    pub fn insert(&mut self, deadline: Tick, value: T) -> TimerKey {
        let slot = self.slot_of(deadline);
        self.storage.insert(slot, deadline, self.now, value)
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
    /// stale keys are passed over. Returns how many were not stale. See
    /// [`HierarchicalWheel::cancel_each`](crate::HierarchicalWheel::cancel_each).
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
    /// let keys: Vec<_> = (1..=9).map(|n| wheel.insert(Tick::new(n), n)).collect();
    /// let mut sum = 0;
    /// assert_eq!(wheel.cancel_each(keys, |_, value| sum += value), 9);
    /// assert_eq!(sum, 45);
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
        let slot = self.slot_of(deadline);
        self.storage
            .refile(position, key.index, slot, deadline, self.now);
        true
    }

    /// Takes out the next entry that is due at `now`; `None` if nothing more is.
    ///
    /// Entries come by deadline, and equal deadlines in the order of insertion.
    /// After `Some` the hand stands at the tick at which that entry was due, after
    /// `None` at `now`. Time never goes backwards: a `now` behind the hand is taken
    /// as the hand's position.
    ///
    /// Costs one look at each entry in the slots the hand passes. A jump of many
    /// revolutions costs no more than O(n) for n entries for each tick at which something
    /// is due. Empty slots and empty revolutions cost nothing.
    #[inline]
    pub fn expire(&mut self, now: Tick) -> Option<Expired<T>> {
        if !self.advance_to_due(now) {
            return None;
        }
        self.storage.pop(self.storage.way_out(), self.now)
    }

    /// Takes out up to `limit` entries that are due at `now`, appends them to `batch`, and
    /// returns how many they were: fewer than `limit` if nothing more is due.
    ///
    /// The same entries in the same order as from as many calls of
    /// [`expire`](Self::expire), by deadline and then by insertion, and the hand ends in
    /// the same place; it only takes less time.
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
    /// for n in [30, 10, 20, 10] {
    ///     wheel.insert(Tick::new(n), n);
    /// }
    /// let mut batch = Vec::new();
    /// assert_eq!(wheel.expire_batch(Tick::new(25), 100, &mut batch), 3);
    /// assert_eq!(batch.iter().map(|e| e.value).collect::<Vec<_>>(), [10, 10, 20]);
    /// assert_eq!(wheel.now(), Tick::new(25));
    /// ```
    pub fn expire_batch(&mut self, now: Tick, limit: usize, batch: &mut Vec<Expired<T>>) -> usize {
        let before = batch.len();
        loop {
            let rest = limit - (batch.len() - before);
            if rest == 0 || !self.advance_to_due(now) {
                break;
            }
            self.storage
                .pop_batch(self.storage.way_out(), self.now, None, rest, batch);
        }
        batch.len() - before
    }

    /// When to call [`expire`](Self::expire) next: never later than the earliest
    /// deadline. `None` if the wheel is empty.
    ///
    /// Exact when something is due already, and while all deadlines lie within one
    /// revolution of the hand. Otherwise it is a lower bound: the next tick at which
    /// the hand meets an occupied slot, which lies ahead of the hand. Expiring there
    /// yields an entry or brings a later answer; after one revolution that yields
    /// nothing the answer is exact, until another entry is filed or the earliest one leaves.
    ///
    /// O(1).
    pub fn next_wake(&self) -> Option<Tick> {
        if self.is_anything_due() {
            return Some(self.now);
        }
        self.next_visit()
    }

    /// The earliest tick at which an entry is due, exactly. `None` if the wheel is
    /// empty. An entry whose deadline had passed is due at the hand.
    ///
    /// O(1) when something is due already. Otherwise it looks at the slots in the
    /// order of the hand, up to the first one that is due in this round: O(n) for n
    /// entries at worst.
    pub fn next_deadline(&self) -> Option<Tick> {
        if self.is_anything_due() {
            return Some(self.now);
        }
        let mut earliest = None;
        let mut visit = self.next_visit();
        let last_visit = visit?.saturating_add(self.revolution.ticks() as u64 - 1);
        while let Some(tick) = visit.filter(|&tick| tick <= last_visit) {
            let slot = self.revolution.slot_of(tick);
            let in_slot = self.storage.earliest_deadline(slot, self.now);
            earliest = in_slot.into_iter().chain(earliest).min();
            if earliest == Some(tick) || tick == Tick::MAX {
                break;
            }
            visit = self.first_visit_from(tick.saturating_add(1));
        }
        earliest
    }

    /// The value of `key`; `None` if the key is stale. O(1).
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
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
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
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

    /// The number of slots, which is also the number of ticks in a revolution.
    pub fn ticks_per_wheel(&self) -> usize {
        self.revolution.ticks()
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
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
    /// wheel.insert(Tick::new(7_000), 'c');
    /// wheel.insert(Tick::new(20), 'a');
    /// wheel.insert(Tick::new(20), 'b');
    /// let unfired: String = wheel.drain().into_iter().map(|entry| entry.value).collect();
    /// assert_eq!(unfired, "abc");
    /// assert!(wheel.is_empty());
    /// ```
    pub fn drain(&mut self) -> Vec<Expired<T>> {
        self.not_before = Tick::MAX;
        self.storage.drain(self.now)
    }

    /// Takes out up to `limit` entries in no particular order and appends them to `batch`;
    /// returns how many they were: fewer than `limit` if the wheel is empty now. The hand
    /// stays. For those who give up what is pending, a piece at a time.
    ///
    /// O(limit), amortised as [`cancel`](Self::cancel) is.
    ///
    /// ```
    /// # use countwheel_core::HashedWheel;
    /// # use countwheel_core::Tick;
    /// let mut wheel = HashedWheel::new();
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
    /// # use countwheel_core::HashedWheel;
    /// # use countwheel_core::Tick;
    /// let mut wheel = HashedWheel::new();
    /// wheel.insert(Tick::new(1), "entry");
    /// assert!(wheel.room() >= wheel.len());
    /// ```
    pub fn room(&self) -> usize {
        self.storage.room()
    }

    /// Gives back the memory that nothing needs now. See
    /// [`HierarchicalWheel::shrink_to_fit`](crate::HierarchicalWheel::shrink_to_fit).
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
    /// let keys: Vec<_> = (0..100_000).map(|n| wheel.insert(Tick::new(n), n)).collect();
    /// let at_the_peak = wheel.memory_bytes();
    /// wheel.cancel_each(keys, |_, _| ());
    /// wheel.shrink_to_fit();
    /// assert!(wheel.memory_bytes() < at_the_peak / 10);
    /// ```
    pub fn shrink_to_fit(&mut self) {
        self.storage.shrink_to_fit();
    }

    /// Gives back a part of that. See
    /// [`HierarchicalWheel::shrink_by`](crate::HierarchicalWheel::shrink_by).
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
    /// let keys: Vec<_> = (0..100_000).map(|n| wheel.insert(Tick::new(n), n)).collect();
    /// let at_the_peak = wheel.memory_bytes();
    /// wheel.cancel_each(keys, |_, _| ());
    /// while wheel.shrink_by(4) {}
    /// assert!(wheel.memory_bytes() < at_the_peak / 10);
    /// ```
    pub fn shrink_by(&mut self, pieces: usize) -> bool {
        self.storage.shrink_by(pieces)
    }

    /// How the entries are spread over the slots. Those that have been taken out of their
    /// slots, because they come next, are not counted. For people who wonder whether a
    /// layout suits their delays.
    ///
    /// O(slots and entries).
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::new();
    /// for deadline in [300, 300, 400] {
    ///     wheel.insert(Tick::new(deadline), "entry");
    /// }
    /// assert_eq!(wheel.slot_load().fullest, 2);
    /// ```
    pub fn slot_load(&self) -> SlotLoad {
        self.storage.slot_load()
    }

    /// The occupied slots with their entries, by number. An entry that is due has left its slot
    /// and is in none of them. For pictures of a wheel, and for debugging.
    ///
    /// O(slots and entries), and an allocation for each occupied slot.
    ///
    /// ```
    /// # use countwheel_core::{HashedWheel, Tick};
    /// let mut wheel = HashedWheel::with_ticks_per_wheel(8)?;
    /// wheel.insert(Tick::new(3), "this round");
    /// wheel.insert(Tick::new(3 + 8), "the next round");
    /// let slots: Vec<_> = wheel.slots().collect();
    /// assert_eq!((slots.len(), slots[0].slot), (1, 3), "one slot for both rounds");
    /// let entries = [(Tick::new(3), &"this round"), (Tick::new(11), &"the next round")];
    /// assert_eq!(slots[0].entries, entries);
    /// # Ok::<(), countwheel_core::GeometryError>(())
    /// ```
    pub fn slots(&self) -> impl Iterator<Item = OccupiedSlot<'_, T>> {
        self.storage
            .occupied_slots(self.ticks_per_wheel(), self.now)
    }

    /// How many bytes of memory the wheel holds, apart from what values point to. O(room).
    pub fn memory_bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Where a deadline is filed. The hand leaves a tick only when nothing is due there,
    /// so what was on its way out when it was filed still is.
    #[inline]
    fn slot_of(&mut self, deadline: Tick) -> usize {
        self.quiet_until = self.quiet_until.min(deadline);
        if deadline <= self.now {
            return self.storage.way_out();
        }
        self.not_before = self.not_before.min(deadline);
        self.revolution.slot_of(deadline)
    }

    #[inline]
    fn is_anything_due(&self) -> bool {
        !self.storage.slots.is_empty(self.storage.way_out())
    }

    /// Moves the hand to the next tick at which something is due, or to `now` if nothing
    /// is; whether something is.
    #[inline]
    fn advance_to_due(&mut self, now: Tick) -> bool {
        let now = now.max(self.now);
        if now < self.quiet_until {
            self.now = now;
            return false;
        }
        self.find_due(now)
    }

    fn find_due(&mut self, now: Tick) -> bool {
        self.storage.tidy_sometimes(self.now);
        while !self.is_anything_due() {
            match self.next_visit() {
                Some(visit) if visit <= now => self.advance(visit),
                visit => {
                    if visit.is_none() {
                        // Nothing is left: the bound of those that are gone is none for the next.
                        self.not_before = Tick::MAX;
                    }
                    self.quiet_until = visit.unwrap_or(Tick::MAX);
                    self.now = now;
                    return false;
                }
            }
        }
        true
    }

    /// The next tick at which the hand meets an occupied slot.
    fn next_visit(&self) -> Option<Tick> {
        self.first_visit_from(self.not_before.max(self.now.saturating_add(1)))
    }

    /// The first tick, from `tick` on, at which the hand meets an occupied slot.
    fn first_visit_from(&self, tick: Tick) -> Option<Tick> {
        let slot = self.revolution.slot_of(tick);
        let slots = &self.storage.slots;
        let found = slots.first_occupied_from(slot);
        let found = found.or_else(|| slots.first_occupied())?;
        let distance = found.wrapping_sub(slot) & (self.revolution.ticks() - 1);
        Some(tick.saturating_add(distance as u64))
    }

    /// Moves the hand to `visit` and picks up what is due there. After a quiet
    /// revolution it stays, and finds out where to go instead.
    fn advance(&mut self, visit: Tick) {
        debug_assert!(
            !self.is_anything_due(),
            "the hand leaves nothing due behind"
        );
        debug_assert!(visit > self.now, "occupied slots lie ahead of now");
        let quiet_ticks = visit.get() - self.quiet_since.get();
        if visit > self.not_before && quiet_ticks >= self.revolution.ticks() as u64 {
            // With the new bound the next visit is exactly there, and needs no search.
            self.not_before = self.next_deadline().expect("an occupied slot lies ahead");
            self.quiet_since = visit;
            return;
        }
        self.now = visit;
        self.pick_up_due();
    }

    /// Moves the entries of the hand's slot that are due, and not for a later
    /// round, to those on their way out, first to last.
    fn pick_up_due(&mut self) {
        let slot = self.revolution.slot_of(self.now);
        if self.storage.pick_up(slot, self.now, self.now) {
            self.quiet_since = self.now;
        }
    }
}

impl<T> Default for HashedWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Tells the hand, the size of the ring and the number of entries, not the entries.
impl<T> fmt::Debug for HashedWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashedWheel")
            .field("now", &self.now)
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Tick = Tick::new(1 << 60);

    #[test]
    fn a_far_jump_does_not_go_round_the_ring() {
        let mut wheel = HashedWheel::with_ticks_per_wheel(8).unwrap();
        wheel.insert(FAR, 'z');
        assert!(wheel.expire(Tick::new((1 << 60) - 1)).is_none());
        assert_eq!(wheel.expire(Tick::MAX).map(|e| e.value), Some('z'));
        assert_eq!(wheel.now(), FAR);
    }

    /// The search for the earliest deadline once counted as quiet up to what it had
    /// found, so that after a cancelled near entry the hand went round 2^57 times.
    #[test]
    fn a_cancelled_near_entry_does_not_send_the_hand_round() {
        let mut wheel = HashedWheel::with_ticks_per_wheel(8).unwrap();
        wheel.insert(FAR, 'z');
        assert!(wheel.expire(Tick::new(100)).is_none());
        let near = wheel.insert(Tick::new(200), 'a');
        wheel.cancel(near);
        assert!(wheel.expire(Tick::new(1 << 59)).is_none());
        assert_eq!(wheel.expire(FAR).map(|e| e.value), Some('z'));
    }

    #[test]
    fn waking_only_when_told_reaches_a_far_entry_within_two_revolutions() {
        let mut wheel = HashedWheel::new();
        wheel.insert(Tick::MAX, ());
        let mut wakes = 1;
        while wheel.expire(wheel.next_wake().unwrap()).is_none() {
            wakes += 1;
            wheel.check();
        }
        assert!(wakes <= 3, "{wakes}");
    }
}
