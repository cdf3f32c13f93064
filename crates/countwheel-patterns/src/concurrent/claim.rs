//! Who decides something that several try to, each as often as it likes.

use super::lock;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The word by which something that can be tried again and again is decided once, and the
/// handle of a timer that decides it when time is up.
///
/// One at a time tries. Who comes meanwhile makes the one who tries do so once more, since
/// what it has looked at may have changed since. Deciding needs no turn: a timer does not wait
/// for somebody who tries.
pub(crate) struct Claim<H> {
    state: AtomicU64,
    handle: Mutex<Option<H>>,
}

const OPEN: u64 = 0;
const TRIED: u64 = 1;
/// Tried, and somebody else wanted to meanwhile.
const AGAIN: u64 = 2;
const DECIDED: u64 = 3;

impl<H> Claim<H> {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU64::new(OPEN),
            handle: Mutex::new(None),
        }
    }

    /// True if the caller may try. Otherwise it is decided, or whoever tries will do so again.
    pub(crate) fn start(&self) -> bool {
        let started = |state| match state {
            OPEN => Some(TRIED),
            // Also if it is to be tried again already: the write is what makes that try see
            // what was done before this check.
            TRIED | AGAIN => Some(AGAIN),
            _ => None,
        };
        let before = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, started);
        before == Ok(OPEN)
    }

    /// The caller has tried in vain. True if it has to try again.
    pub(crate) fn rest(&self) -> bool {
        let rested = |state| match state {
            TRIED => Some(OPEN),
            AGAIN => Some(TRIED),
            _ => None,
        };
        let before = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, rested);
        before == Ok(AGAIN)
    }

    /// Decides. True if nobody has before: one caller is told so.
    pub(crate) fn decide(&self) -> bool {
        self.state.swap(DECIDED, Ordering::AcqRel) != DECIDED
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.state.load(Ordering::Acquire) == DECIDED
    }

    /// Keeps the handle for whoever decides; or gives it back, if somebody has.
    pub(crate) fn arm(&self, handle: H) -> Result<(), H> {
        let mut kept = lock(&self.handle);
        if self.is_decided() {
            return Err(handle);
        }
        *kept = Some(handle);
        Ok(())
    }

    /// The handle, for the one who has decided.
    pub(crate) fn disarm(&self) -> Option<H> {
        lock(&self.handle).take()
    }
}
