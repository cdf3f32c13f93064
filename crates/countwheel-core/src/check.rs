//! The invariants of both wheels, checked thoroughly. For tests: O(everything).

use alloc::vec;

use crate::chain::Chain;
use crate::geometry::Place;
use crate::slab::{Index, Slab};
use crate::{HashedWheel, HierarchicalWheel};

impl<T> HierarchicalWheel<T> {
    /// Checks every invariant.
    ///
    /// # Panics
    /// With a sentence, if one does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        self.slab.check();
        let mut chained = 0;
        for (level, slots) in self.levels.iter().enumerate() {
            for (slot, &chain) in slots.slots.iter().enumerate() {
                let occupied = slots.occupied >> slot & 1 == 1;
                assert_eq!(
                    occupied,
                    !chain.is_empty(),
                    "a slot's bit says whether it is occupied"
                );
                let here = Place { level, slot };
                assert!(
                    !occupied || here.is_ahead_of(self.now),
                    "occupied slots lie ahead of now"
                );
                chained += chain.check(&self.slab, |index| {
                    let due = self.slab.cell(index).deadline.max(self.now);
                    let place = Place::of(self.now, due);
                    assert_eq!(place, here, "an entry is filed in its own place");
                });
            }
        }
        assert_eq!(chained, self.len(), "every entry is on one chain");
    }
}

impl<T> HashedWheel<T> {
    /// Checks every invariant.
    ///
    /// # Panics
    /// With a sentence, if one does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        self.slab.check();
        let mut chained = self.due.check(&self.slab, |index| {
            let deadline = self.slab.cell(index).deadline;
            assert!(deadline <= self.now, "what is on the due chain is due");
        });
        for (slot, &chain) in self.ring.slots.iter().enumerate() {
            assert_eq!(
                self.ring.is_occupied(slot),
                !chain.is_empty(),
                "a slot's bit says whether it is occupied"
            );
            chained += chain.check(&self.slab, |index| {
                let deadline = self.slab.cell(index).deadline;
                assert!(deadline > self.now, "what is in the ring is not yet due");
                assert!(
                    deadline >= self.not_before,
                    "nothing in the ring is due before the bound"
                );
                let own = self.revolution.slot_of(deadline);
                assert_eq!(own, slot, "an entry is filed in its own slot");
            });
        }
        assert_eq!(chained, self.len(), "every entry is on one chain");
    }
}

impl Chain {
    /// Checks the links, and `each` entry; returns the number of entries.
    fn check<T>(self, slab: &Slab<T>, mut each: impl FnMut(Index)) -> usize {
        let mut previous = None;
        let mut len = 0;
        for index in self.iter(slab) {
            let cell = slab.cell(index);
            assert!(cell.value.is_some(), "a chained cell holds a value");
            assert_eq!(cell.previous, previous, "the links agree both ways");
            each(index);
            previous = Some(index);
            len += 1;
            assert!(len <= slab.len, "a chain ends");
        }
        assert_eq!(self.last(), previous, "a chain knows its last entry");
        len
    }
}

impl<T> Slab<T> {
    pub(crate) fn check(&self) {
        let holding = self.cells.iter().filter(|cell| cell.value.is_some());
        assert_eq!(holding.count(), self.len, "the number of entries is known");
        let mut is_free = vec![false; self.cells.len()];
        let mut next = self.first_free;
        while let Some(index) = next {
            let cell = self.cell(index);
            assert!(cell.value.is_none(), "a free cell holds no value");
            assert!(!is_free[index.position()], "a cell is free only once");
            is_free[index.position()] = true;
            next = cell.next;
        }
        for (cell, is_free) in self.cells.iter().zip(is_free) {
            assert!(
                is_free || cell.value.is_some() || cell.generation.get() == u32::MAX,
                "a cell is in use, free, or retired"
            );
        }
    }
}
