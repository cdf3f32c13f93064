//! The plain wheel of the crate `hierarchical_hash_wheel_timer`.

use std::time::Duration;

use hierarchical_hash_wheel_timer::wheels::Skip;
use hierarchical_hash_wheel_timer::wheels::quad_wheel::QuadWheelWithOverflow;

use super::{Competitor, Fired};

/// Timers that fire for certain: this wheel cannot cancel.
///
/// It places a timer by the bytes in which its 32-bit deadline differs from the time.
/// A delay within 2^24 ticks of 2^32 can end in the same highest byte, one turn later,
/// and is then taken for a near one. The test below shows it.
pub(crate) struct Raw {
    now: u64,
    wheel: QuadWheelWithOverflow<u64>,
}

/// Shorter delays are safe at any time.
pub(super) const DELAY_LIMIT: u64 = (1 << 32) - (1 << 24);

impl Competitor for Raw {
    type Handle = ();

    const CANCELS: bool = false;
    const DELAY_LIMIT: u64 = DELAY_LIMIT;

    fn new(_longest_delay: u64) -> Self {
        Self {
            now: 0,
            wheel: QuadWheelWithOverflow::default(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) {
        self.wheel
            .insert_with_delay(id, Duration::from_millis(delay))
            .expect("a delay of at least one tick is accepted");
    }

    fn cancel(&mut self, (): ()) -> bool {
        false
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        while self.now < now {
            self.now += skippable(&self.wheel.can_skip(), now - self.now, |ticks| {
                self.wheel.skip(ticks);
            });
            if self.now < now {
                self.now += 1;
                for id in self.wheel.tick() {
                    fired.fire(id);
                }
            }
        }
    }
}

/// Skips what may be skipped of the next `ticks` ticks, and says how many that were.
///
/// An empty wheel stays where it is: it counts delays from wherever it stands.
pub(super) fn skippable(skip: &Skip, ticks: u64, apply: impl FnOnce(u32)) -> u64 {
    match *skip {
        Skip::None => 0,
        Skip::Empty => ticks,
        Skip::Millis(free) => {
            let skipped = u32::try_from(ticks).map_or(free, |ticks| free.min(ticks));
            apply(skipped);
            u64::from(skipped)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_close_to_the_whole_cycle_fires_early() {
        let mut raw = Raw::new(u64::MAX);
        raw.advance_to(1, &mut Vec::new());
        raw.schedule(0xff_ffff, 1); // takes the wheel along; an empty one stands still
        let mut fired = Vec::new();
        raw.advance_to(0x80_0000, &mut fired);
        raw.schedule(0xffff_0000, 2);
        raw.advance_to(0x0200_0000, &mut fired);
        assert_eq!(
            fired,
            [1, 2],
            "the second was asked for at tick 2^32 and more"
        );
    }
}
