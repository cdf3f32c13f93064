//! Whether a future has been woken, and who polls it.

use crate::sync::{AtomicU64, Ordering};

/// The word by which a future that is polled by tasks knows what is to happen to it. At any
/// time one task at most is queued for it or polls it, and a wake-up that comes during a poll
/// is followed by another.
pub(crate) struct Notice(AtomicU64);

const IDLE: u64 = 0;
const QUEUED: u64 = 1;
const POLLED: u64 = 2;
/// Polled, and woken meanwhile.
const AGAIN: u64 = 3;
const OVER: u64 = 4;

/// What follows a poll that was not the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing, until it is woken.
    Rest,
    /// Another poll: queue a task for it.
    Queue,
    /// It was ended meanwhile: drop the future.
    Over,
}

impl Notice {
    /// A task is queued already.
    pub(crate) fn queued() -> Self {
        Self(AtomicU64::new(QUEUED))
    }

    /// It is woken. True if the caller has to queue a task for it.
    pub(crate) fn wake(&self) -> bool {
        // Written even where it stays as it is: the poll to come has to see what the caller
        // did before this.
        let woken = |state| match state {
            IDLE | QUEUED => Some(QUEUED),
            POLLED | AGAIN => Some(AGAIN),
            _ => None,
        };
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, woken);
        before == Ok(IDLE)
    }

    /// The queued task starts. True if it may poll.
    pub(crate) fn start(&self) -> bool {
        self.0
            .compare_exchange(QUEUED, POLLED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The poll is over, and the future is not.
    pub(crate) fn rest(&self) -> Next {
        let rested = |state| match state {
            POLLED => Some(IDLE),
            AGAIN => Some(QUEUED),
            _ => None,
        };
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, rested);
        match before {
            Ok(POLLED) => Next::Rest,
            Ok(_) => Next::Queue,
            Err(_) => Next::Over,
        }
    }

    /// Nobody polls any more after this. True if nobody does now either, so that the caller
    /// may drop the future; false if the one who polls has to, or if it was over before.
    pub(crate) fn end(&self) -> bool {
        let before = self.0.swap(OVER, Ordering::AcqRel);
        before == IDLE || before == QUEUED
    }
}
