//! `DelayQueue` of the crate `tokio-util`.

use std::task::{Context, Poll, Waker};

use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use super::tokio_sleep::PausedClock;
use super::{Competitor, Fired};
use crate::random::index;

/// Timers of a `DelayQueue` on a clock that stands still until it is told.
///
/// Its keys carry no generation: removing a timer that has fired panics, or takes
/// the stranger that has moved into the place. Its users therefore have to know which
/// of their timers have fired; here one bit a timer says so.
pub(crate) struct Queue {
    timers: DelayQueue<u64>,
    gone: Bits,
    clock: PausedClock,
}

#[derive(Clone, Copy)]
pub(crate) struct Handle {
    key: Key,
    id: u64,
}

impl Competitor for Queue {
    type Handle = Handle;

    fn new(_longest_delay: u64) -> Self {
        let clock = PausedClock::new();
        Self {
            timers: DelayQueue::new(),
            gone: Bits(Vec::new()),
            clock,
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> Handle {
        let key = self.timers.insert_at(id, self.clock.deadline(delay));
        Handle { key, id }
    }

    fn cancel(&mut self, handle: Handle) -> bool {
        let pending = self.gone.set(handle.id);
        if pending {
            self.timers.remove(&handle.key);
        }
        pending
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        self.clock.advance_to(now);
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(timer)) = self.timers.poll_expired(&mut context) {
            let id = timer.into_inner();
            self.gone.set(id);
            fired.fire(id);
        }
    }

    fn copy(handle: &Handle) -> Option<Handle> {
        Some(*handle)
    }
}

/// A set of numbers, one bit each, that grows with the greatest.
struct Bits(Vec<u64>);

impl Bits {
    /// Whether it was not in the set before.
    fn set(&mut self, number: u64) -> bool {
        let (word, bit) = (index(number / 64), 1 << (number % 64));
        if word >= self.0.len() {
            self.0.resize((word + 1).next_power_of_two(), 0);
        }
        let fresh = self.0[word] & bit == 0;
        self.0[word] |= bit;
        fresh
    }
}
