//! The hierarchical wheel: eleven levels of 64 slots over all of time.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::geometry::{LEVELS, Place};
use crate::level::Level;
#[cfg(feature = "planted-bugs")]
use crate::planted::PlantedBug;
use crate::slab::{Index, Slab};
use crate::{Expired, Tick, TimerKey};

/// A hierarchy of timing wheels over every tick there is.
///
/// Read a tick as eleven base-64 digits. An entry's level is the highest digit in
/// which its deadline differs from the hand, and its slot is that digit. When the
/// hand enters the span of a slot, the slot's entries *cascade*: they are filed
/// again, on finer levels, until on the lowest level a slot is a single tick.
/// So there is no longest delay, an entry moves at most ten times, and a jump
/// over 2^60 empty ticks costs no more than a jump over one.
///
/// The scheme is the seventh of Varghese and Lauck, *Hashed and Hierarchical
/// Timing Wheels* (1987).
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
    pub(crate) levels: Box<[Level]>,
    pub(crate) slab: Slab<T>,
    #[cfg(feature = "planted-bugs")]
    pub(crate) planted: Option<PlantedBug>,
}

impl<T> HierarchicalWheel<T> {
    /// An empty wheel with its hand at tick 0. Allocates 6 KiB for the slots.
    pub fn new() -> Self {
        Self::starting_at(Tick::ZERO)
    }

    /// An empty wheel with its hand at `now`.
    pub fn starting_at(now: Tick) -> Self {
        Self {
            now,
            levels: vec![Level::EMPTY; LEVELS].into(),
            slab: Slab::new(),
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    /// Files `value` under `deadline`. A deadline that has passed is due at once,
    /// behind those already due.
    ///
    /// O(1), amortised over the growth of the storage. Every tick has a slot, so
    /// there is nothing to refuse.
    ///
    /// # Panics
    /// If the wheel would hold more than 2^32 - 1 entries.
    pub fn insert(&mut self, deadline: Tick, value: T) -> TimerKey {
        let key = self.slab.insert(deadline, value);
        self.file(key.index);
        key
    }

    /// Takes the entry of `key` out of the wheel; `None` if the key is stale.
    ///
    /// O(1). The entry's room is free for the next one at once.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let index = self.slab.find(key)?;
        #[cfg(feature = "planted-bugs")]
        let place = self.place_of(index);
        self.unlink(index);
        let cancelled = self.slab.remove(index);
        #[cfg(feature = "planted-bugs")]
        self.spoil_cancel(place, key);
        Some(cancelled.value)
    }

    /// Moves the entry of `key` to `deadline`, sooner or later than before; false
    /// if the key is stale.
    ///
    /// O(1). The key stays valid. For the order among equal deadlines the entry
    /// counts as inserted now.
    pub fn reschedule(&mut self, key: TimerKey, deadline: Tick) -> bool {
        let Some(index) = self.slab.find(key) else {
            return false;
        };
        #[cfg(feature = "planted-bugs")]
        if self.spoil_reschedule(index, deadline) {
            return true;
        }
        self.unlink(index);
        self.slab.cell_mut(index).deadline = deadline;
        self.file(index);
        true
    }

    /// Takes out the next entry that is due at `now`; `None` if nothing more is.
    ///
    /// Entries come by deadline, and equal deadlines in the order of insertion.
    /// After `Some` the hand stands at the tick at which that entry was due, after
    /// `None` at `now`. Time never goes backwards: a `now` behind the hand is taken
    /// as the hand's position.
    ///
    /// An entry is touched at most ten times between insertion and expiry, once for
    /// each level it cascades through; a call is O(1) besides. Empty ticks cost nothing.
    pub fn expire(&mut self, now: Tick) -> Option<Expired<T>> {
        let now = now.max(self.now);
        while let Some(place) = self.next_place() {
            let start = place.start(self.now);
            if start > now {
                break;
            }
            debug_assert!(place.is_ahead_of(self.now), "occupied slots lie ahead");
            self.now = start;
            if place.level == 0 {
                return Some(self.take_first(place));
            }
            self.cascade(place);
        }
        self.now = now;
        None
    }

    /// When to call [`expire`](Self::expire) next: never later than the earliest
    /// deadline. `None` if the wheel is empty.
    ///
    /// Exact while the earliest deadline lies in the hand's own block of 64 ticks
    /// (equal to the hand in all but the lowest digit). Further ahead it is a lower
    /// bound: the tick at which the slot of the earliest deadline cascades, which
    /// still lies ahead of the hand. Expiring there yields an entry or brings a later
    /// answer, and after at most ten such wake-ups the answer is exact.
    ///
    /// O(levels), that is at most eleven steps.
    pub fn next_wake(&self) -> Option<Tick> {
        let wake = self.next_place()?.start(self.now);
        #[cfg(feature = "planted-bugs")]
        let wake = self.spoil_wake(wake);
        Some(wake)
    }

    /// The earliest tick at which an entry is due, exactly. `None` if the wheel is
    /// empty. An entry whose deadline had passed is due at the hand.
    ///
    /// O(1) within the hand's block of 64 ticks; beyond it, O(entries in the
    /// slot of the earliest deadline).
    pub fn next_deadline(&self) -> Option<Tick> {
        let place = self.next_place()?;
        if place.level == 0 {
            return Some(place.start(self.now));
        }
        let slot = self.levels[place.level].slots[place.slot];
        slot.iter(&self.slab)
            .map(|index| self.slab.cell(index).deadline)
            .min()
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
        self.slab.cell(self.slab.find(key)?).value.as_ref()
    }

    /// The value of `key`, to change; `None` if the key is stale. O(1).
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        let index = self.slab.find(key)?;
        self.slab.cell_mut(index).value.as_mut()
    }

    /// The deadline of `key` as it was asked for; `None` if the key is stale. O(1).
    pub fn deadline(&self, key: TimerKey) -> Option<Tick> {
        Some(self.slab.cell(self.slab.find(key)?).deadline)
    }

    /// Whether the entry of `key` is still in the wheel. O(1).
    pub fn contains(&self, key: TimerKey) -> bool {
        self.slab.find(key).is_some()
    }

    /// The tick the hand stands at. Only [`expire`](Self::expire) moves it.
    pub fn now(&self) -> Tick {
        self.now
    }

    /// How many entries are in the wheel. O(1).
    pub fn len(&self) -> usize {
        self.slab.len
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
        let mut entries = Vec::with_capacity(self.len());
        for level in &mut self.levels {
            while let Some(slot) = level.first_occupied() {
                let mut chain = level.take(slot);
                while let Some(index) = chain.first() {
                    chain.unlink(&mut self.slab, index);
                    entries.push(self.slab.remove(index));
                }
            }
        }
        // Equal deadlines share a slot and stand there in order; the sort is stable.
        entries.sort_by_key(|entry| entry.deadline.max(self.now));
        entries
    }

    /// Where an entry is filed. A deadline that has passed counts as now: the hand
    /// cannot have moved since, because it never moves past an entry that is due.
    pub(crate) fn place_of(&self, index: Index) -> Place {
        let deadline = self.slab.cell(index).deadline;
        #[cfg(feature = "planted-bugs")]
        if let Some(place) = self.spoilt_place(deadline) {
            return place;
        }
        Place::of(self.now, deadline.max(self.now))
    }

    fn file(&mut self, index: Index) {
        let place = self.place_of(index);
        debug_assert!(
            place.is_ahead_of(self.now),
            "an entry is filed ahead of now"
        );
        self.levels[place.level].push(place.slot, &mut self.slab, index);
    }

    fn unlink(&mut self, index: Index) {
        let place = self.place_of(index);
        self.levels[place.level].unlink(place.slot, &mut self.slab, index);
    }

    /// The occupied slot that begins first: since occupied slots lie ahead of now,
    /// the lowest one of the lowest occupied level.
    fn next_place(&self) -> Option<Place> {
        let mut levels = self.levels.iter().enumerate();
        levels.find_map(|(level, slots)| {
            let slot = slots.first_occupied()?;
            Some(Place { level, slot })
        })
    }

    fn take_first(&mut self, place: Place) -> Expired<T> {
        let first = self.levels[place.level].slots[place.slot].first();
        let index = first.expect("an occupied slot has a first entry");
        debug_assert!(
            self.slab.cell(index).deadline <= self.now,
            "nothing expires early"
        );
        self.levels[place.level].unlink(place.slot, &mut self.slab, index);
        self.slab.remove(index)
    }

    /// Files the entries of a slot again, first to last, now that the hand has
    /// entered it. Their new slots are empty before, so the order is kept.
    fn cascade(&mut self, from: Place) {
        let chain = self.levels[from.level].take(from.slot);
        #[cfg(feature = "planted-bugs")]
        let chain = self.spoil_cascade(chain);
        let mut next = chain.first();
        while let Some(index) = next {
            next = self.slab.cell(index).next;
            let place = self.place_of(index);
            debug_assert!(place.level < from.level, "a cascade leads downwards");
            self.levels[place.level].push(place.slot, &mut self.slab, index);
        }
    }
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

    #[test]
    fn waking_only_when_told_reaches_the_farthest_entry_in_eleven_steps() {
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
