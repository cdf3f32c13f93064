//! Our wheels.

use std::hint::black_box;

use countwheel_core::{Expired, HashedWheel, HierarchicalWheel, Tick, TimerKey};

use super::{Competitor, Fired};

/// The hierarchical wheel, one call for each timer.
pub(crate) type Hierarchical = Ours<HierarchicalWheel<u64>, false>;

/// The hierarchical wheel, many timers to a call where it has such calls.
pub(crate) type InBatches = Ours<HierarchicalWheel<u64>, true>;

/// The hashed wheel, one call for each timer.
pub(crate) type Hashed = Ours<HashedWheel<u64>, false>;

const RING: usize = 4_096;

/// How many timers a batch holds at most.
const BATCH: usize = 256;

/// How many timers are cancelled in one call.
const GROUP: usize = 64;

/// One of our wheels under the competitors' clock.
pub(crate) struct Ours<W, const IN_BATCHES: bool> {
    now: u64,
    wheel: W,
    batch: Vec<Expired<u64>>,
}

impl<W: Wheel, const IN_BATCHES: bool> Competitor for Ours<W, IN_BATCHES> {
    type Handle = TimerKey;

    fn new(_longest_delay: u64) -> Self {
        Self {
            now: 0,
            wheel: W::new(),
            batch: Vec::new(),
        }
    }

    fn schedule(&mut self, delay: u64, id: u64) -> TimerKey {
        self.wheel.insert(Tick::new(self.now + delay), id)
    }

    fn cancel(&mut self, handle: TimerKey) -> bool {
        self.wheel.cancel(handle).is_some()
    }

    fn cancel_all(&mut self, handles: impl Iterator<Item = TimerKey>) -> u64 {
        if !IN_BATCHES {
            return handles.map(|key| u64::from(self.cancel(key))).sum();
        }
        let (mut handles, mut cancelled) = (handles.peekable(), 0);
        while handles.peek().is_some() {
            cancelled += self.wheel.cancel_each(handles.by_ref().take(GROUP));
        }
        cancelled as u64
    }

    fn advance_to(&mut self, now: u64, fired: &mut impl Fired) {
        self.now = now;
        let now = Tick::new(now);
        if IN_BATCHES {
            loop {
                let taken = self.wheel.expire_batch(now, BATCH, &mut self.batch);
                for expired in self.batch.drain(..) {
                    fired.fire(expired.value);
                }
                if taken < BATCH {
                    break;
                }
            }
        } else {
            while let Some(expired) = self.wheel.expire(now) {
                fired.fire(expired.value);
            }
        }
    }

    fn copy(handle: &TimerKey) -> Option<TimerKey> {
        Some(*handle)
    }
}

/// The calls that both wheels have.
pub(crate) trait Wheel {
    fn new() -> Self;
    fn insert(&mut self, deadline: Tick, id: u64) -> TimerKey;
    fn cancel(&mut self, key: TimerKey) -> Option<u64>;
    fn expire(&mut self, now: Tick) -> Option<Expired<u64>>;

    fn expire_batch(&mut self, now: Tick, limit: usize, batch: &mut Vec<Expired<u64>>) -> usize;
    fn cancel_each(&mut self, keys: impl Iterator<Item = TimerKey>) -> usize;
}

macro_rules! ours {
    ($wheel:ident, $new:expr) => {
        impl Wheel for $wheel<u64> {
            fn new() -> Self {
                $new
            }

            fn insert(&mut self, deadline: Tick, id: u64) -> TimerKey {
                self.insert(deadline, id)
            }

            fn cancel(&mut self, key: TimerKey) -> Option<u64> {
                self.cancel(key)
            }

            fn expire(&mut self, now: Tick) -> Option<Expired<u64>> {
                self.expire(now)
            }

            fn expire_batch(
                &mut self,
                now: Tick,
                limit: usize,
                batch: &mut Vec<Expired<u64>>,
            ) -> usize {
                self.expire_batch(now, limit, batch)
            }

            fn cancel_each(&mut self, keys: impl Iterator<Item = TimerKey>) -> usize {
                self.cancel_each(keys, |_, id| {
                    black_box(id);
                })
            }
        }
    };
}

ours!(HierarchicalWheel, HierarchicalWheel::new());
ours!(
    HashedWheel,
    HashedWheel::with_ticks_per_wheel(RING).expect("a ring of this size is allowed")
);
