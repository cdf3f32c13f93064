//! The sorted map of the standard library. It is also the model for the check.

use std::collections::BTreeMap;

use super::{Competitor, Fired};

/// Timers in a map, by deadline and then in the order of insertion.
pub(crate) struct SortedMap {
    now: u64,
    sequence: u64,
    timers: BTreeMap<(u64, u64), u64>,
}

impl Competitor for SortedMap {
    type Handle = (u64, u64);

    fn new(_longest_delay: u64) -> Self {
        Self {
            now: 0,
            sequence: 0,
            timers: BTreeMap::new(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> Self::Handle {
        let key = (self.now + delay, self.sequence);
        self.sequence += 1;
        self.timers.insert(key, id);
        key
    }

    fn cancel(&mut self, handle: Self::Handle) -> bool {
        self.timers.remove(&handle).is_some()
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        self.now = now;
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > now {
                break;
            }
            fired.fire(first.remove());
        }
    }

    fn copy(handle: &Self::Handle) -> Option<Self::Handle> {
        Some(*handle)
    }
}
