//! The wheel of the crate `slab-wheel`.

use std::time::{Duration, Instant};

use slab_wheel::{Key, Policy, TimingWheel};

use super::{Competitor, Fired};
use crate::stopwatch::Stopwatch;

/// Timers of `slab-wheel`, drained into a buffer that is reused.
pub(crate) struct Wheel {
    origin: Instant,
    now: u64,
    wheel: TimingWheel<u64, Reaching>,
    due: Vec<(Key, u64)>,
}

/// The crate's own policy `Millis` with one level more, so that no timer of ours has to
/// wait in the sorted map beyond the last one. Near timers take the same way as without.
struct Reaching;

impl Policy for Reaching {
    const SLOTS: &'static [usize] = &[256, 64, 64, 64, 64];
    const RESOLUTION: &'static [u64] = &[1, 1 << 8, 1 << 14, 1 << 20, 1 << 26];
}

impl Competitor for Wheel {
    type Handle = Key;

    fn new(_longest_delay: u64) -> Self {
        let origin = Stopwatch::start().instant();
        Self {
            origin,
            now: 0,
            wheel: TimingWheel::starting_at(origin),
            due: Vec::new(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> Key {
        let deadline = self.origin + Duration::from_millis(self.now + delay);
        self.wheel.insert(deadline, id)
    }

    fn cancel(&mut self, handle: Key) -> bool {
        self.wheel.remove(handle).is_some()
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        self.now = now;
        self.wheel
            .advance_to(self.origin + Duration::from_millis(now));
        self.wheel.drain_expired_into(&mut self.due);
        for (_, id) in self.due.drain(..) {
            fired.fire(id);
        }
    }

    fn copy(handle: &Key) -> Option<Key> {
        Some(*handle)
    }
}
