//! When something that keeps deadlines of its own wants to be woken.

use super::lock;
use crate::Instant;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// One handle of a timer, set no later than the earliest of many deadlines.
///
/// Who files a deadline does so under a lock of its own, gives it up, and then calls
/// [`ring_by`](Self::ring_by). Who is woken calls [`rang`](Self::rang), and then takes out what
/// is due under that same lock. So either the second finds what the first filed, or the first
/// finds that no alarm is set any more, and sets it.
pub(crate) struct Alarm<H> {
    /// Never after it rings, in nanoseconds; [`NEVER`] if it is not set, or set for the end
    /// of time.
    rings_at: AtomicU64,
    handle: Mutex<Option<H>>,
}

const NEVER: u64 = u64::MAX;

impl<H> Alarm<H> {
    pub(crate) fn new() -> Self {
        Self {
            rings_at: AtomicU64::new(NEVER),
            handle: Mutex::new(None),
        }
    }

    /// Makes sure that it rings by `due`. If it would not, `set` does so: it moves the handle
    /// it is given, or returns another; under a lock, so it wakes nobody. What it says beside
    /// that is for the caller, who has no lock any more.
    #[inline]
    pub(crate) fn ring_by<R, E>(
        &self,
        due: Instant,
        set: impl FnOnce(Option<&H>) -> Result<(Option<H>, R), E>,
    ) -> Result<Option<R>, E> {
        if due.as_nanos() >= self.rings_at.load(Ordering::Relaxed) && due != Instant::MAX {
            return Ok(None);
        }
        let mut handle = lock(&self.handle);
        // At the end of time it looks as if it were not set: the handle tells.
        let is_known = due != Instant::MAX || handle.is_some();
        if due.as_nanos() >= self.rings_at.load(Ordering::Relaxed) && is_known {
            return Ok(None);
        }
        let (other, said) = set(handle.as_ref())?;
        let old = other.and_then(|other| handle.replace(other));
        self.rings_at.store(due.as_nanos(), Ordering::Relaxed);
        drop(handle);
        drop(old);
        Ok(Some(said))
    }

    /// It rings, and is not set any more. Gives back the handle, which is of no more use.
    pub(crate) fn rang(&self) -> Option<H> {
        let mut handle = lock(&self.handle);
        self.rings_at.store(NEVER, Ordering::Relaxed);
        handle.take()
    }
}
