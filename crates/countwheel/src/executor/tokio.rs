//! Tasks on a tokio runtime.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use crate::task::returns;
use crate::{Executor, Work};
use countwheel_time::locks::lock;

/// Runs tasks on a tokio runtime, so many at a time. With the cargo feature `tokio`.
///
/// [`blocking`](Self::blocking) is for tasks that may take long or wait, [`tasks`](Self::tasks)
/// for those that do neither. What is more than the limit is given back to the timer, which
/// does with it what its [`Overload`](crate::Overload) says; and so is one for which the runtime
/// gets no thread from the system. Clones share their limit, and so do the timers that have them.
///
/// A runtime that shuts down may drop what has not started, and drops what comes later: such
/// tasks count as returned in [`Stats`](crate::Stats), and a warning is logged for each. So stop
/// the timer before its runtime, or give it a runtime that outlives it.
///
/// ```
/// use countwheel::{Timer, TokioExecutor};
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
/// let limit = NonZeroUsize::new(100).unwrap();
/// let executor = TokioExecutor::blocking(runtime.handle().clone(), limit);
/// let timer = Timer::builder().executor(executor).build();
///
/// let (sender, receiver) = std::sync::mpsc::channel();
/// let task = move || {
///     let handle = tokio::runtime::Handle::current(); // a task may use the runtime
///     sender.send(handle.block_on(async { 6 * 7 })).unwrap();
/// };
/// timer.schedule(Duration::from_millis(1), task)?;
/// assert_eq!(receiver.recv(), Ok(42));
/// timer.stop();
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokioExecutor {
    handle: Handle,
    limit: NonZeroUsize,
    outstanding: Arc<AtomicUsize>,
    blocking: bool,
}

/// One of so many; given back when dropped.
struct PoolPlace(Arc<AtomicUsize>);

impl TokioExecutor {
    /// On the threads that the runtime has for what blocks (512 unless it was told otherwise).
    /// No more than `limit` tasks wait or run at a time.
    #[must_use]
    pub fn blocking(handle: Handle, limit: NonZeroUsize) -> Self {
        Self::new(handle, limit, true)
    }

    /// As async tasks, among all others of the runtime: for short functions that never wait.
    /// No more than `limit` tasks wait or run at a time.
    ///
    /// ```
    /// use countwheel::{Timer, TokioExecutor};
    /// use std::num::NonZeroUsize;
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// runtime.block_on(async {
    ///     let limit = NonZeroUsize::new(10_000).unwrap();
    ///     let here = TokioExecutor::tasks(tokio::runtime::Handle::current(), limit);
    ///     let timer = Timer::builder().executor(here).build();
    ///     let (sender, receiver) = tokio::sync::oneshot::channel();
    ///     timer.schedule(Duration::from_millis(1), move || sender.send("tea").unwrap())?;
    ///     assert_eq!(receiver.await, Ok("tea"));
    ///     # Ok::<(), countwheel::ScheduleError>(())
    /// })?;
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn tasks(handle: Handle, limit: NonZeroUsize) -> Self {
        Self::new(handle, limit, false)
    }

    fn new(handle: Handle, limit: NonZeroUsize, blocking: bool) -> Self {
        Self {
            handle,
            limit,
            outstanding: Arc::default(),
            blocking,
        }
    }

    /// How many tasks wait or run.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    fn take_place(&self) -> Option<PoolPlace> {
        let more = |taken| (taken < self.limit.get()).then_some(taken + 1);
        self.outstanding
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(PoolPlace(Arc::clone(&self.outstanding)))
    }
}

impl Drop for PoolPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Executor for TokioExecutor {
    fn execute(&self, work: Work) -> Result<(), Work> {
        let Some(place) = self.take_place() else {
            return Err(work);
        };
        // Dropped unrun, a closure gives back both.
        if !self.blocking {
            let run = move || {
                work.run();
                drop(place);
            };
            drop(self.handle.spawn(async { run() }));
            return Ok(());
        }
        // A runtime that gets no thread from the system panics, and may keep the closure all the
        // same: so what it holds can be taken back.
        let errand = Arc::new(Mutex::new(Some((work, place))));
        let taken = Arc::clone(&errand);
        let run = move || {
            if let Some((work, place)) = take(&taken) {
                work.run();
                drop(place);
            }
        };
        if !returns(|| drop(self.handle.spawn_blocking(run)))
            && let Some((work, place)) = take(&errand)
        {
            drop(place);
            return Err(work);
        }
        Ok(())
    }

    fn has_runtime(&self) -> bool {
        true
    }
}

fn take<T>(errand: &Mutex<Option<T>>) -> Option<T> {
    lock(errand).take()
}
