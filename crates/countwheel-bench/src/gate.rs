//! A gate for threads: they wait first until all are ready, then for the start.

use std::sync::Barrier;
use std::thread;

/// The gate itself. Who starts the others waits at it too.
pub(crate) struct Gate(Barrier);

impl Gate {
    fn new(threads: usize) -> Self {
        Self(Barrier::new(threads + 1))
    }

    /// Called once by each thread that was started.
    pub(crate) fn pass(&self) {
        self.0.wait();
        self.0.wait();
    }
}

/// What one thread does; from the gate on, it is measured.
pub(crate) type Role<T> = Box<dyn FnOnce(&Gate) -> T + Send>;

pub(crate) fn role<T>(body: impl FnOnce(&Gate) -> T + Send + 'static) -> Role<T> {
    Box::new(body)
}

/// Runs all roles at once, and calls `start` when all are ready. Returns the results of the roles
/// that did not panic.
pub(crate) fn at_once<T: Send>(roles: Vec<Role<T>>, start: impl FnOnce()) -> Vec<T> {
    let gate = Gate::new(roles.len());
    thread::scope(|scope| {
        let spawn = |role: Role<T>| scope.spawn(|| role(&gate));
        let threads: Vec<_> = roles.into_iter().map(spawn).collect();
        gate.0.wait();
        start();
        gate.0.wait();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| thread.join().ok();
        threads.into_iter().filter_map(join).collect()
    })
}
