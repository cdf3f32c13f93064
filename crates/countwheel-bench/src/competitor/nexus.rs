//! The wheel of the crate `nexus-timer`.

use std::time::{Duration, Instant};

use nexus_timer::{TimerHandle, Wheel, WheelBuilder};

use super::{Competitor, Fired};
use crate::stopwatch::Stopwatch;

/// Timers of `nexus-timer`, polled the way its documentation recommends for a steady
/// loop: collect and rebalance in one call.
///
/// A handle keeps its timer's memory after the timer has fired, until it is given back.
/// Handles cannot be copied, so a timer cannot be cancelled twice.
///
/// The usual shape has seven levels, each eight times as wide as the one below. Timers
/// beyond its reach wait on the last level and are looked at again and again, so for
/// them we widen the levels.
pub(crate) struct Nexus {
    /// Half a tick after the wheel's own origin: the wheel converts to ticks by a
    /// multiplication that rounds down, and whole ticks would sit on the edge.
    origin: Instant,
    now: u64,
    wheel: Wheel<u64>,
    due: Vec<u64>,
}

/// The chunk size of the crate's own examples.
const CHUNK: usize = 4096;

/// So many ticks the usual seven levels span.
const USUAL_REACH: u64 = 1 << 24;

impl Competitor for Nexus {
    type Handle = TimerHandle<u64>;

    fn new(longest_delay: u64) -> Self {
        let start = Stopwatch::start().instant();
        let shape = if longest_delay < USUAL_REACH {
            WheelBuilder::default()
        } else {
            WheelBuilder::default().clk_shift(4).num_levels(8)
        };
        Self {
            origin: start + Duration::from_micros(500),
            now: 0,
            wheel: shape
                .unbounded(CHUNK)
                .build(start)
                .expect("both shapes are allowed"),
            due: Vec::new(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> Self::Handle {
        let deadline = self.origin + Duration::from_millis(self.now + delay);
        self.wheel.schedule(deadline, id)
    }

    fn cancel(&mut self, handle: Self::Handle) -> bool {
        self.wheel.cancel(handle).is_some()
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        self.now = now;
        let instant = self.origin + Duration::from_millis(now);
        self.wheel.poll_and_rebalance(instant, &mut self.due);
        for id in self.due.drain(..) {
            fired.fire(id);
        }
    }

    fn release(&mut self, handle: Self::Handle) {
        self.wheel.free(handle);
    }
}
