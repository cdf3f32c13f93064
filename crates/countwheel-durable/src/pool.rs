//! Threads for slow handlers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread::Builder;

use parking_lot::{Condvar, Mutex};

/// Something to run once.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A bounded number of threads. One starts when there is a job and none is free, and then stays.
/// When this is dropped, what has not begun is dropped, and the threads end with what they run.
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    threads_max: usize,
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    has_ended: bool,
}

impl Pool {
    /// At least one thread.
    pub(crate) fn new(threads_max: usize) -> Self {
        Self(Arc::new(Shared {
            threads_max: threads_max.max(1),
            state: Mutex::default(),
            came: Condvar::new(),
        }))
    }

    /// Runs `job` on one of the threads. A job must not panic. The pool drops the job if the system
    /// gives no thread at all.
    pub(crate) fn run(&self, job: Job) {
        let mut state = self.0.state.lock();
        if state.idle <= state.jobs.len() && state.threads < self.0.threads_max {
            let shared = Arc::clone(&self.0);
            let thread = Builder::new().name("countwheel-handle".to_owned());
            match thread.spawn(move || shared.work()) {
                Ok(_) => state.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "a handler has no thread of its own");
                    if state.threads == 0 {
                        drop(state);
                        return;
                    }
                }
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.0.came.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.has_ended = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.0.came.notify_all();
        drop(jobs);
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.has_ended {
            let Some(job) = state.jobs.pop_front() else {
                state.idle += 1;
                self.came.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            drop(state);
            job();
            state = self.state.lock();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}
