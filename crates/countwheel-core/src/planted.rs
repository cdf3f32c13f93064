//! Known bugs, planted on request, to prove that the model test finds each of them.

use crate::chain::Chain;
use crate::geometry::{Place, SLOTS};
use crate::slab::Index;
use crate::{HashedWheel, HierarchicalWheel, Tick, TimerKey};

/// A mistake that is easy to make in a timing wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantedBug {
    /// A deadline exactly on a border (of a level, or one revolution ahead) is
    /// taken for one just before it.
    BorderOffByOne,
    /// A reschedule within a slot changes the deadline but not the place in the chain.
    RescheduleKeepsItsPlaceInTheChain,
    /// A cancel that empties a slot leaves its bit set.
    CancelLeavesOccupancy,
    /// A cancel does not make the key stale.
    CancelLeavesGeneration,
    /// A slot's entries are handed on last to first.
    ReversedHandOver,
    /// A passed deadline is filed under the slot it had, which the hand has left.
    PassedDeadlineInItsOldSlot,
    /// The next wake-up comes one tick late.
    NextWakeLateByOne,
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::BorderOffByOne,
        Self::RescheduleKeepsItsPlaceInTheChain,
        Self::CancelLeavesOccupancy,
        Self::CancelLeavesGeneration,
        Self::ReversedHandOver,
        Self::PassedDeadlineInItsOldSlot,
        Self::NextWakeLateByOne,
    ];
}

impl<T> HierarchicalWheel<T> {
    /// Plants `bug`, or none. Only for a wheel that is still empty.
    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<PlantedBug>) {
        self.planted = bug;
    }

    pub(crate) fn spoil_cancel(&mut self, place: Place, key: TimerKey) {
        if self.planted == Some(PlantedBug::CancelLeavesOccupancy) {
            self.levels[place.level].occupied |= 1 << place.slot;
        }
        if self.planted == Some(PlantedBug::CancelLeavesGeneration) {
            self.slab.cell_mut(key.index).generation = key.generation;
        }
    }

    pub(crate) fn spoil_reschedule(&mut self, index: Index, deadline: Tick) -> bool {
        let place = Place::of(self.now, deadline.max(self.now));
        let spoilt = self.planted == Some(PlantedBug::RescheduleKeepsItsPlaceInTheChain)
            && place == self.place_of(index);
        if spoilt {
            self.slab.cell_mut(index).deadline = deadline;
        }
        spoilt
    }

    pub(crate) fn spoil_wake(&self, wake: Tick) -> Tick {
        let late = self.planted == Some(PlantedBug::NextWakeLateByOne);
        wake.saturating_add(u64::from(late))
    }

    pub(crate) fn spoilt_place(&self, deadline: Tick) -> Option<Place> {
        match self.planted? {
            PlantedBug::BorderOffByOne => {
                let place = Place::of(self.now, deadline.max(self.now));
                let on_border = place.level > 0 && place.start(self.now) == deadline;
                on_border.then(|| Place {
                    level: place.level - 1,
                    slot: SLOTS - 1,
                })
            }
            PlantedBug::PassedDeadlineInItsOldSlot => Some(Place::of(self.now, deadline)),
            _ => None,
        }
    }

    pub(crate) fn spoil_cascade(&mut self, mut chain: Chain) -> Chain {
        if self.planted != Some(PlantedBug::ReversedHandOver) {
            return chain;
        }
        let mut reversed = Chain::EMPTY;
        while let Some(index) = chain.last() {
            chain.unlink(&mut self.slab, index);
            reversed.push(&mut self.slab, index);
        }
        reversed
    }
}

impl<T> HashedWheel<T> {
    /// Plants `bug`, or none. Only for a wheel that is still empty.
    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<PlantedBug>) {
        self.planted = bug;
    }

    pub(crate) fn spoil_cancel(&mut self, deadline: Tick, key: TimerKey) {
        if self.planted == Some(PlantedBug::CancelLeavesOccupancy) {
            let slot = self.revolution.slot_of(deadline);
            self.ring.occupied[slot / 64] |= 1 << (slot % 64);
        }
        if self.planted == Some(PlantedBug::CancelLeavesGeneration) {
            self.slab.cell_mut(key.index).generation = key.generation;
        }
    }

    pub(crate) fn spoil_reschedule(&mut self, index: Index, deadline: Tick) -> bool {
        let slot = |tick: Tick| (tick > self.now).then(|| self.revolution.slot_of(tick));
        let spoilt = self.planted == Some(PlantedBug::RescheduleKeepsItsPlaceInTheChain)
            && slot(deadline) == slot(self.slab.cell(index).deadline);
        if spoilt {
            self.slab.cell_mut(index).deadline = deadline;
        }
        spoilt
    }

    pub(crate) fn spoil_wake(&self, wake: Tick) -> Tick {
        let late = self.planted == Some(PlantedBug::NextWakeLateByOne);
        wake.saturating_add(u64::from(late))
    }

    pub(crate) fn spoil_order_of_due(&mut self) {
        if self.planted == Some(PlantedBug::ReversedHandOver) {
            let mut reversed = Chain::EMPTY;
            while let Some(index) = self.due.last() {
                self.due.unlink(&mut self.slab, index);
                reversed.push(&mut self.slab, index);
            }
            self.due = reversed;
        }
    }
}
