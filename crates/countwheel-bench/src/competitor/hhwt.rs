//! The cancellable wheel of the crate `hierarchical_hash_wheel_timer`.

use std::rc::Rc;
use std::time::Duration;

use hierarchical_hash_wheel_timer::wheels::cancellable::{
    CancellableTimerEntry, QuadWheelWithOverflow,
};

use super::hhwt_raw::{DELAY_LIMIT, skippable};
use super::{Competitor, Fired};

/// Timers found by their id in a hash map.
///
/// Cancelling takes the entry out of the map; the wheel keeps a weak reference, and
/// with it the entry's memory, until the tick comes or the entry moves to a finer level.
pub(crate) struct Hhwt {
    now: u64,
    wheel: QuadWheelWithOverflow<Timer>,
}

#[derive(Debug)]
struct Timer(u64);

impl CancellableTimerEntry for Timer {
    type Id = u64;

    fn id(&self) -> &u64 {
        &self.0
    }
}

impl Competitor for Hhwt {
    type Handle = u64;

    const DELAY_LIMIT: u64 = DELAY_LIMIT;

    fn new(_longest_delay: u64) -> Self {
        Self {
            now: 0,
            wheel: QuadWheelWithOverflow::new(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> u64 {
        self.wheel
            .insert_ref_with_delay(Rc::new(Timer(id)), Duration::from_millis(delay))
            .expect("a delay of at least one tick is accepted");
        id
    }

    fn cancel(&mut self, handle: u64) -> bool {
        self.wheel.cancel(&handle).is_ok()
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        while self.now < now {
            self.now += skippable(&self.wheel.can_skip(), now - self.now, |ticks| {
                self.wheel.skip(ticks);
            });
            if self.now < now {
                self.now += 1;
                for timer in self.wheel.tick() {
                    fired.fire(timer.0);
                }
            }
        }
    }

    fn copy(handle: &u64) -> Option<u64> {
        Some(*handle)
    }
}
