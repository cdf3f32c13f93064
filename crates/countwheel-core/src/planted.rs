//! Known bugs, planted on request, to prove that the model test finds each of them.

use alloc::vec::Vec;

use crate::geometry::{SLOTS, WheelPlace};
use crate::storage::Storage;
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
    /// An entry that is moved is looked for where it was.
    MoveLeavesPosition,
    /// Chunks that are merged turn the order of their entries round.
    MergeLosesOrder,
    /// Of a deadline more than 2^32 ticks away only the lower half is kept.
    UpperHalfLeftOut,
    /// Nodes whose memory was given back begin their generations anew.
    ReleaseForgetsGenerations,
    /// Of equal deadlines, the run's come after those filed since it was sorted.
    RunAfterItsEquals,
    /// The hand enters a slot with the run's first entry, and does not cascade it.
    RunBeforeItsSlotCascades,
    /// What is filed while its slot cascades overtakes those of equal deadline still there.
    CascadeOvertaken,
    /// The hand goes on though the slot it has entered has not cascaded to the end.
    HalfACascadeLeft,
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::BorderOffByOne,
        Self::RescheduleKeepsItsPlaceInTheChain,
        Self::CancelLeavesOccupancy,
        Self::CancelLeavesGeneration,
        Self::ReversedHandOver,
        Self::PassedDeadlineInItsOldSlot,
        Self::NextWakeLateByOne,
        Self::MoveLeavesPosition,
        Self::MergeLosesOrder,
        Self::UpperHalfLeftOut,
        Self::ReleaseForgetsGenerations,
        Self::RunAfterItsEquals,
        Self::RunBeforeItsSlotCascades,
        Self::CascadeOvertaken,
        Self::HalfACascadeLeft,
    ];

    /// Whether a hashed wheel can have it, too.
    pub fn concerns_hashed_wheels(self) -> bool {
        !matches!(
            self,
            Self::RunAfterItsEquals
                | Self::RunBeforeItsSlotCascades
                | Self::CascadeOvertaken
                | Self::HalfACascadeLeft
        )
    }
}

impl<T> Storage<T> {
    fn plant(&mut self, bug: Option<PlantedBug>) {
        self.nodes.planted = bug;
        self.chunks.planted = bug;
    }

    pub(crate) fn slot_of(&self, key: TimerKey) -> Option<usize> {
        Some(self.chunks.slot_of(self.nodes.find(key)?))
    }

    pub(crate) fn spoil_cancel(&mut self, slot: Option<usize>, key: TimerKey) {
        let bug = self.nodes.planted;
        if let (Some(PlantedBug::CancelLeavesOccupancy), Some(slot)) = (bug, slot) {
            self.slots.spoil_occupancy(slot);
        }
        if bug == Some(PlantedBug::CancelLeavesGeneration) {
            self.nodes.set_generation(key.index, key.generation);
        }
    }

    pub(crate) fn spoil_reschedule(&mut self, key: TimerKey, slot: usize, deadline: Tick) -> bool {
        let Some(position) = self.nodes.find(key) else {
            return false;
        };
        let spoilt = self.nodes.planted == Some(PlantedBug::RescheduleKeepsItsPlaceInTheChain)
            && self.chunks.slot_of(position) == slot;
        if spoilt {
            self.chunks.spoil_deadline(position, deadline.get());
        }
        spoilt
    }

    pub(crate) fn spoil_order(&mut self, slot: usize) {
        if self.nodes.planted != Some(PlantedBug::ReversedHandOver) {
            return;
        }
        let mut entries = Vec::new();
        while let Some(taken) = self.take_first(slot) {
            entries.extend(taken.iter(0));
        }
        for (deadline, node) in entries.into_iter().rev() {
            self.file(slot, deadline, 0, node);
        }
    }
}

impl<T> HierarchicalWheel<T> {
    /// Plants `bug`, or none. Only for a wheel that is still empty.
    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<PlantedBug>) {
        self.planted = bug;
        self.storage.plant(bug);
    }

    pub(crate) fn spoil_wake(&self, wake: Tick) -> Tick {
        let late = self.planted == Some(PlantedBug::NextWakeLateByOne);
        wake.saturating_add(u64::from(late))
    }

    pub(crate) fn spoilt_place(&self, deadline: Tick) -> Option<WheelPlace> {
        match self.planted? {
            PlantedBug::BorderOffByOne => {
                let place = WheelPlace::of(self.now, deadline.max(self.now));
                let on_border = place.level() > 0 && place.start(self.now) == deadline;
                on_border.then(|| WheelPlace::of_slot(place.level() * SLOTS - 1))
            }
            PlantedBug::PassedDeadlineInItsOldSlot => Some(WheelPlace::of(self.now, deadline)),
            _ => None,
        }
    }
}

impl<T> HashedWheel<T> {
    /// Plants `bug`, or none. Only for a wheel that is still empty.
    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<PlantedBug>) {
        self.planted = bug;
        self.storage.plant(bug);
    }

    pub(crate) fn spoil_reschedule(&mut self, key: TimerKey, deadline: Tick) -> bool {
        let slot = if deadline <= self.now {
            self.storage.way_out()
        } else {
            self.revolution.slot_of(deadline)
        };
        self.storage.spoil_reschedule(key, slot, deadline)
    }

    pub(crate) fn spoil_wake(&self, wake: Tick) -> Tick {
        let late = self.planted == Some(PlantedBug::NextWakeLateByOne);
        wake.saturating_add(u64::from(late))
    }
}
