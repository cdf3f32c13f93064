//! What the concurrent part takes from the machine, here from shuttle.

pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use shuttle::thread;

/// So few that nothing comes nearer in one go.
pub(crate) const MOVES: usize = 1;

/// The checker gives a lock to each who waits for it.
#[derive(Default)]
pub(crate) struct Queue(());

impl Queue {
    pub(crate) fn enter<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.lock().expect("a panic ends the model")
    }

    pub(crate) fn let_in(&self) {}
}
