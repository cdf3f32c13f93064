//! What [`concurrent`](crate::concurrent) takes from the machine. The models put the checker's
//! own of the same names in its place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;

use std::sync::{PoisonError, TryLockError};

/// How many entries of a wheel are moved while its lock is held once.
pub(crate) const MOVES: usize = 4_096;

/// Those who wait for a lock. The system gives it to whom it likes, and that is as a rule who
/// has just given it up and wants it again.
#[derive(Default)]
pub(crate) struct Queue {
    came: AtomicU64,
    entered: AtomicU64,
}

impl Queue {
    /// Takes the lock, and counts who has to wait for it.
    #[inline]
    pub(crate) fn enter<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        match mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(mutex),
        }
    }

    #[cold]
    fn wait<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.came.fetch_add(1, Ordering::Relaxed);
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.entered.fetch_add(1, Ordering::Relaxed);
        guard
    }

    /// For one who has given up the lock and wants it again: lets in those who wait for it, as
    /// far as they come soon.
    pub(crate) fn let_in(&self) {
        /// One that sleeps takes some fifty microseconds to come.
        const PATIENCE: u32 = 400;
        let came = self.came.load(Ordering::Relaxed);
        for _ in 0..PATIENCE {
            if self.entered.load(Ordering::Relaxed) >= came {
                return;
            }
            thread::yield_now();
        }
    }
}
