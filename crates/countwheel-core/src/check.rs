//! The invariants of both wheels, checked thoroughly. For tests: O(everything).

use crate::geometry::WheelPlace;
use crate::{HashedWheel, HierarchicalWheel, Tick};

impl<T> HierarchicalWheel<T> {
    /// Checks every invariant.
    ///
    /// # Panics
    /// With a sentence, if one does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        let run = self.storage.way_out();
        let cascading = (self.cascading > 0).then(|| self.cascading_place());
        if let Some(place) = cascading {
            assert_eq!(place.start(self.now), self.now, "the hand waits there");
            assert!(self.levels_from <= self.now, "nobody passes by");
        }
        self.storage.check(self.now, |slot, deadline| {
            let due = deadline.max(self.now);
            if cascading.is_some_and(|place| place.slot() == slot) {
                let own = WheelPlace::of(self.now, due);
                assert!(own.slot() < self.cascading, "what cascades leads downwards");
            } else if slot != run {
                let place = WheelPlace::of(self.now, due);
                assert_eq!(place.slot(), slot, "an entry is filed in its own place");
                assert!(place.is_ahead_of(self.now), "occupied slots lie ahead");
                let start = place.start(self.now);
                assert!(start >= self.levels_from, "no slot begins before the bound");
            }
        });
        let run = self
            .storage
            .chunks
            .iter(self.storage.slots.slot(run), self.now.get());
        let mut previous = self.now.max(self.run_from);
        for (deadline, ..) in run {
            assert!(
                Tick::new(deadline) >= previous,
                "the run ascends from now on"
            );
            previous = Tick::new(deadline);
        }
    }
}

impl<T> HashedWheel<T> {
    /// Checks every invariant.
    ///
    /// # Panics
    /// With a sentence, if one does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        let way_out = self.storage.way_out();
        self.storage.check(self.now, |slot, deadline| {
            if slot == way_out {
                assert!(deadline <= self.now, "what is on its way out is due");
                return;
            }
            assert!(deadline > self.now, "what is in the ring is not yet due");
            assert!(
                deadline >= self.quiet_until,
                "nothing is due while it is quiet"
            );
            assert!(
                deadline >= self.not_before,
                "nothing in the ring is due before the bound"
            );
            let own = self.revolution.slot_of(deadline);
            assert_eq!(own, slot, "an entry is filed in its own slot");
        });
    }
}
