//! The one ring of a hashed wheel: its slots and a bit each that says which are occupied.

use alloc::boxed::Box;
use alloc::vec;

use crate::chain::Chain;
use crate::slab::{Index, Slab};

const WORD_BITS: usize = u64::BITS as usize;

pub(crate) struct Ring {
    /// Bit `s % 64` of word `s / 64` is set exactly if slot `s` holds an entry.
    pub(crate) occupied: Box<[u64]>,
    pub(crate) slots: Box<[Chain]>,
}

impl Ring {
    /// A ring of `slots` slots, a power of two.
    pub(crate) fn new(slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two(), "a ring's size is a power of two");
        Self {
            occupied: vec![0; slots.div_ceil(WORD_BITS)].into(),
            slots: vec![Chain::EMPTY; slots].into(),
        }
    }

    /// How many slots after `slot`, counting round the ring, the first occupied one
    /// lies: 0 if `slot` itself is occupied. O(slots / 64) at worst.
    pub(crate) fn distance_to_occupied(&self, slot: usize) -> Option<usize> {
        let words = self.occupied.len();
        let first = slot / WORD_BITS;
        let ahead = u64::MAX << (slot % WORD_BITS);
        // The first word comes twice: what lies ahead of `slot`, and at the very end what lies behind.
        (0..=words).find_map(|step| {
            let at = (first + step) % words;
            let word = self.occupied[at] & if step == 0 { ahead } else { u64::MAX };
            (word != 0).then(|| {
                let found = at * WORD_BITS + word.trailing_zeros() as usize;
                found.wrapping_sub(slot) & (self.slots.len() - 1)
            })
        })
    }

    pub(crate) fn push<T>(&mut self, slot: usize, slab: &mut Slab<T>, index: Index) {
        self.slots[slot].push(slab, index);
        self.occupied[slot / WORD_BITS] |= 1 << (slot % WORD_BITS);
    }

    pub(crate) fn unlink<T>(&mut self, slot: usize, slab: &mut Slab<T>, index: Index) {
        self.slots[slot].unlink(slab, index);
        if self.slots[slot].is_empty() {
            self.occupied[slot / WORD_BITS] &= !(1 << (slot % WORD_BITS));
        }
    }

    pub(crate) fn is_occupied(&self, slot: usize) -> bool {
        self.occupied[slot / WORD_BITS] & (1 << (slot % WORD_BITS)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tick;

    #[test]
    fn the_next_occupied_slot_is_found_round_the_ring() {
        for slots in [1, 2, 8, 64, 256] {
            for occupied in 0..slots {
                let (mut ring, mut slab) = (Ring::new(slots), Slab::new());
                assert_eq!(ring.distance_to_occupied(occupied), None);
                let index = slab.insert(Tick::ZERO, ()).index;
                ring.push(occupied, &mut slab, index);
                for from in 0..slots {
                    let distance = (occupied + slots - from) % slots;
                    assert_eq!(ring.distance_to_occupied(from), Some(distance));
                }
            }
        }
    }
}
