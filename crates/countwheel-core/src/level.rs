//! One level of the hierarchy: 64 slots and a word that says which are occupied.

use crate::chain::Chain;
use crate::geometry::SLOTS;
use crate::slab::{Index, Slab};

#[derive(Clone)]
pub(crate) struct Level {
    /// Bit `s` is set exactly if slot `s` holds an entry.
    pub(crate) occupied: u64,
    pub(crate) slots: [Chain; SLOTS],
}

impl Level {
    pub(crate) const EMPTY: Self = Self {
        occupied: 0,
        slots: [Chain::EMPTY; SLOTS],
    };

    pub(crate) fn first_occupied(&self) -> Option<usize> {
        (self.occupied != 0).then(|| self.occupied.trailing_zeros() as usize)
    }

    pub(crate) fn push<T>(&mut self, slot: usize, slab: &mut Slab<T>, index: Index) {
        self.slots[slot].push(slab, index);
        self.occupied |= 1 << slot;
    }

    pub(crate) fn unlink<T>(&mut self, slot: usize, slab: &mut Slab<T>, index: Index) {
        self.slots[slot].unlink(slab, index);
        if self.slots[slot].is_empty() {
            self.occupied &= !(1 << slot);
        }
    }

    /// Empties a slot and hands out its chain.
    pub(crate) fn take(&mut self, slot: usize) -> Chain {
        self.occupied &= !(1 << slot);
        core::mem::replace(&mut self.slots[slot], Chain::EMPTY)
    }
}
