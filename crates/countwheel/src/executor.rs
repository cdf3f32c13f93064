//! The seam to where tasks run.

pub(crate) mod context;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::Duration;

use self::context::Context;
use crate::Task;
use crate::engine::Engine;
use crate::task::returns;
use countwheel_time::locks;

/// Where tasks run. The second of the seams.
///
/// A timer calls this on its host, which everything else waits for: so it must not block and
/// must not run the work itself, unless that is what is wanted.
///
/// ```
/// use countwheel::{Executor, Timer, Work};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// /// A thread for each task.
/// #[derive(Debug)]
/// struct Threads;
///
/// impl Executor for Threads {
///     fn execute(&self, work: Work) -> Result<(), Work> {
///         std::thread::spawn(|| work.run());
///         Ok(())
///     }
/// }
///
/// let timer = Timer::builder().executor(Threads).build();
/// let (sender, receiver) = mpsc::channel();
/// timer.schedule(Duration::from_millis(1), move || sender.send(6 * 7).unwrap())?;
/// assert_eq!(receiver.recv(), Ok(42));
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
pub trait Executor: Send + Sync + fmt::Debug {
    /// Runs `work` soon. Never blocks.
    ///
    /// # Errors
    /// Gives the work back if there is no room for it now. The timer does with it what its
    /// [`Overload`] says.
    fn execute(&self, work: Work) -> Result<(), Work>;

    /// Whether tasks run in the context of an async runtime, and so may use what only a runtime has:
    /// its connections, its sleeps. Not unless the executor says so.
    /// [`Timer::has_runtime`](crate::Timer::has_runtime) asks.
    ///
    /// ```
    /// use countwheel::{Executor, Pool};
    ///
    /// assert!(!Pool::new(1, 1).unwrap().has_runtime());
    /// ```
    fn has_runtime(&self) -> bool {
        false
    }
}

impl<E: Executor + ?Sized> Executor for Arc<E> {
    fn execute(&self, work: Work) -> Result<(), Work> {
        (**self).execute(work)
    }

    fn has_runtime(&self) -> bool {
        (**self).has_runtime()
    }
}

/// One task to run, the next of its timer at the moment it is run: so tasks start in order,
/// and a timer that was stopped has nothing to run any more.
///
/// Work that is dropped instead of run loses a task: it counts as returned, and a warning is
/// logged.
#[must_use = "work that is dropped loses a task"]
pub struct Work {
    engine: Option<Arc<Engine>>,
}

impl Work {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine: Some(engine),
        }
    }

    /// Runs the task, on this thread. Never panics: a panic of the task ends here and is
    /// counted.
    pub fn run(mut self) {
        if let Some(engine) = self.engine.take() {
            engine.run_next();
        }
    }

    /// The ticket is void, and not by mistake.
    pub(crate) fn forget(mut self) {
        self.engine = None;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.work_was_dropped();
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// What a timer does with an expired task that its [`Executor`] has no room for. Whatever it
/// is, the host does not wait.
///
/// ```
/// use countwheel::{Overload, Pool, Timer};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let (sender, dead_letters) = mpsc::channel();
/// let timer = Timer::builder()
///     .executor(Pool::new(1, 1).unwrap())
///     .overload(Overload::hand_back(move |task| sender.send(task).unwrap()))
///     .build();
/// let (release, wait) = mpsc::channel::<()>();
/// timer.schedule(Duration::ZERO, move || drop(wait.recv()))?; // keeps the only thread busy
/// for _ in 0..3 {
///     timer.schedule(Duration::from_millis(20), || {})?;
/// }
/// let refused = dead_letters.recv().unwrap(); // one is queued, the others come back
/// refused.run();
/// drop(release);
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Overload {
    /// The host runs it: nothing is lost or postponed, but everything else waits meanwhile.
    RunInline,
    /// It stays first in the queue, and the executor is asked again after this long (at least
    /// a microsecond).
    RetryAfter(Duration),
    /// The one that has waited the longest is handed to this function, which is called on the
    /// host: be short. Counts as returned.
    HandBack(Arc<dyn Fn(Task) + Send + Sync>),
}

impl Overload {
    /// [`HandBack`](Self::HandBack) to `receiver`.
    pub fn hand_back(receiver: impl Fn(Task) + Send + Sync + 'static) -> Self {
        Self::HandBack(Arc::new(receiver))
    }
}

impl Default for Overload {
    /// Asks again every millisecond.
    fn default() -> Self {
        Self::RetryAfter(Duration::from_millis(1))
    }
}

impl fmt::Debug for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunInline => f.write_str("RunInline"),
            Self::RetryAfter(pause) => f.debug_tuple("RetryAfter").field(pause).finish(),
            Self::HandBack(_) => f.write_str("HandBack(..)"),
        }
    }
}

/// Some threads with a bounded queue, which timers may share. Clones are the same pool.
///
/// A thread starts when there is work and none is free, up to the limit, and then stays. The
/// threads end when the last clone is dropped and the queue is done.
///
/// ```
/// use countwheel::{Pool, Timer};
/// use std::time::Duration;
///
/// let pool = Pool::new(4, 10_000)?;
/// let orders = Timer::builder().executor(pool.clone()).build();
/// let sessions = Timer::builder().executor(pool).build();
///
/// let error = Pool::new(0, 10_000).unwrap_err();
/// assert_eq!(error.to_string(), "a pool has at least one thread and room for one task");
/// # Ok::<(), countwheel::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool {
    owner: Arc<PoolOwner>,
}

/// A pool without a thread, or without room for a task. See [`Pool::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a pool has at least one thread and room for one task")]
pub struct PoolError;

#[derive(Debug)]
struct PoolOwner {
    shared: Arc<PoolShared>,
}

#[derive(Debug)]
struct PoolShared {
    name: String,
    threads: NonZeroUsize,
    room: usize,
    context: Context,
    state: Mutex<PoolState>,
    work_came: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
    ending: bool,
}

impl Pool {
    /// Up to `threads` threads, and room for `room` tasks that wait for one.
    ///
    /// # Errors
    /// If either is zero.
    pub fn new(threads: usize, room: usize) -> Result<Self, PoolError> {
        Self::named("countwheel-pool", threads, room)
    }

    /// Like [`new`](Self::new), with threads of this name.
    ///
    /// # Errors
    /// If either number is zero, or the name contains a NUL.
    pub fn named(name: &str, threads: usize, room: usize) -> Result<Self, PoolError> {
        Self::within(Context::default(), name, threads, room)
    }

    /// Like [`named`](Self::named), with threads in the context of a tokio runtime: what tasks do
    /// there may use it. With the cargo feature `tokio`.
    ///
    /// Each thread enters the context once, when it starts. The runtime is not kept running by that.
    ///
    /// ```
    /// use countwheel::{Pool, Timer};
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    /// let pool = Pool::in_runtime(runtime.handle().clone(), "orders", 4, 10_000)?;
    /// let timer = Timer::builder().executor(pool).build();
    /// assert!(timer.has_runtime());
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let task = move || drop(tokio::spawn(async move { sender.send("spawned") }));
    /// timer.schedule(Duration::from_millis(1), task)?;
    /// assert_eq!(receiver.recv()?, "spawned");
    /// # timer.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`named`](Self::named).
    #[cfg(feature = "tokio")]
    pub fn in_runtime(
        runtime: ::tokio::runtime::Handle,
        name: &str,
        threads: usize,
        room: usize,
    ) -> Result<Self, PoolError> {
        Self::within(Context::of(runtime), name, threads, room)
    }

    pub(crate) fn within(
        context: Context,
        name: &str,
        threads: usize,
        room: usize,
    ) -> Result<Self, PoolError> {
        let threads = NonZeroUsize::new(threads).ok_or(PoolError)?;
        if room == 0 || name.contains('\0') {
            return Err(PoolError);
        }
        let shared = PoolShared {
            name: name.to_owned(),
            threads,
            room,
            context,
            state: Mutex::default(),
            work_came: Condvar::new(),
        };
        let owner = PoolOwner {
            shared: Arc::new(shared),
        };
        Ok(Self {
            owner: Arc::new(owner),
        })
    }

    /// How many tasks wait for a thread.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.owner.shared.lock().queue.len()
    }
}

impl Executor for Pool {
    fn execute(&self, work: Work) -> Result<(), Work> {
        let shared = &self.owner.shared;
        let mut state = shared.lock();
        if state.queue.len() >= shared.room {
            return Err(work);
        }
        if state.idle <= state.queue.len() && state.threads < shared.threads.get() {
            let worker = Arc::clone(shared);
            let thread = Builder::new().name(shared.name.clone());
            match thread.spawn(move || worker.context.within(|| worker.work_off())) {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads > 0 => {} // then it takes longer
                Err(_) => return Err(work),
            }
        }
        state.queue.push_back(work);
        drop(state);
        shared.work_came.notify_one();
        Ok(())
    }

    fn has_runtime(&self) -> bool {
        self.owner.shared.context.has_runtime()
    }
}

impl PoolShared {
    /// What each thread does.
    fn work_off(&self) {
        loop {
            let mut state = self.lock();
            let work = loop {
                if let Some(work) = state.queue.pop_front() {
                    break work;
                }
                if state.ending {
                    return;
                }
                state.idle += 1;
                state = locks::whole(self.work_came.wait(state));
                state.idle -= 1;
            };
            drop(state);
            returns(|| work.run()); // whatever happens, the thread stays
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        locks::lock(&self.state)
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.work_came.notify_all();
    }
}
