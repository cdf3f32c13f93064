//! The options of a timer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::concurrent::{Hub, Shards};
use crate::engine::{Engine, Parts};
use crate::executor::context::Context;
use crate::executor::{Executor, Overload, Pool};
use crate::host::manual::ManualHost;
use crate::host::task::HostFuture;
use crate::{Clock, Layout, ManualClock, Resolution, SystemClock, Timer};

/// The options of a [`Timer`].
///
/// ```
/// use countwheel::{Layout, ManualClock, Resolution, SystemClock, Timer};
/// use std::time::Duration;
///
/// // As Netty has it, for real ...
/// let builder = || {
///     Timer::builder()
///         .resolution(Resolution::new(Duration::from_millis(100)).unwrap())
///         .layout(Layout::hashed(512).unwrap())
///         .inline()
/// };
/// let timer = builder().clock(SystemClock::new()).thread_name("requests").build();
/// assert_eq!(timer.stats().wake_ups, 0);
///
/// // ... and by hand.
/// let mut host = builder().manual(ManualClock::new());
/// host.timer().schedule(Duration::from_millis(250), || {}).unwrap();
/// host.advance(Duration::from_secs(1));
/// assert_eq!(host.timer().stats().lateness_max, Duration::from_millis(50));
/// ```
#[derive(Debug)]
#[must_use]
pub struct TimerBuilder {
    resolution: Resolution,
    layout: Layout,
    max_pending: Option<u64>,
    thread_name: String,
    clock: Option<Arc<dyn Clock>>,
    executor: Choice,
    context: Context,
    overload: Overload,
    slow_task_budget: Duration,
    join_on_drop: bool,
    shards: Option<NonZeroUsize>,
}

#[derive(Debug)]
enum Choice {
    Default,
    Inline,
    Given(Box<dyn Executor>),
}

/// Who makes time pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostKind {
    /// A thread of the timer, from the first task on.
    Thread,
    /// Somebody's runtime, or somebody's hands.
    Other,
}

/// What the default pool has room for.
const POOL_ROOM: usize = 10_000;

impl TimerBuilder {
    /// How long a tick is: a millisecond unless told otherwise. A finer one is less late and
    /// otherwise costs next to nothing, since no tick is waited for but those with deadlines.
    pub fn resolution(mut self, resolution: Resolution) -> Self {
        self.resolution = resolution;
        self
    }

    /// How the pending tasks are laid out: [`Layout::Hierarchical`] unless told otherwise.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// How many tasks may be pending, or expired and waiting for an executor: any number unless
    /// told otherwise. One more is refused with
    /// [`ScheduleError::Full`](crate::ScheduleError::Full). A task gives its place back just
    /// before it starts, so it may schedule its successor. Exact; the price is a counter that
    /// all threads share.
    pub fn max_pending(mut self, tasks: u64) -> Self {
        self.max_pending = Some(tasks);
        self
    }

    /// What the timer's thread, and the timer in logs, is called: `countwheel` unless told
    /// otherwise.
    ///
    /// # Panics
    /// If `name` contains a NUL character, which no thread's name can.
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = name.into();
        assert!(
            !self.thread_name.contains('\0'),
            "a thread's name contains no NUL"
        );
        self
    }

    /// What tells the time: a [`SystemClock`] unless told otherwise. It should advance as
    /// real time does, because the thread waits in real time; where it does not,
    /// [`Timer::rouse`] makes the thread look. For a [`ManualClock`], see
    /// [`manual`](Self::manual).
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Where tasks run: on a [`Pool`] of the timer's own, of as many threads as the machine
    /// has processors (two to eight) with room for 10,000 tasks, unless told otherwise. (A
    /// [`ManualHost`] and a [`HostFuture`] run them themselves unless told otherwise.)
    pub fn executor(mut self, executor: impl Executor + 'static) -> Self {
        self.executor = Choice::Given(Box::new(executor));
        self
    }

    /// Tasks run on the timer's host itself, one after another: the least overhead and no
    /// other threads, for tasks that are short. One that takes long makes all others late.
    pub fn inline(mut self) -> Self {
        self.executor = Choice::Inline;
        self
    }

    /// The tokio runtime in whose context the timer's own threads run tasks, and poll the futures of
    /// patterns: those may then use what only a runtime has. With the cargo feature `tokio`.
    ///
    /// It holds for the timer's thread and its own pool, for a [`ManualHost`] and for a
    /// [`HostFuture`]. An [`executor`](Self::executor) that is given has a context of its own: see
    /// [`Pool::in_runtime`] and [`TokioExecutor`](crate::TokioExecutor).
    /// [`Timer::on_tokio`] needs no such call. Each thread enters the context once, so a task costs
    /// nothing more. The runtime is not kept running by it.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    /// let timer = Timer::builder().runtime(runtime.handle().clone()).build();
    /// assert!(timer.has_runtime());
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// let task = move || drop(tokio::spawn(async move { sender.send("spawned") }));
    /// timer.schedule(Duration::from_millis(1), task)?;
    /// assert_eq!(receiver.recv()?, "spawned");
    /// # timer.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tokio")]
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.context = Context::of(runtime);
        self
    }

    /// What happens to an expired task that the executor has no room for:
    /// [`Overload::RetryAfter`] a millisecond unless told otherwise.
    pub fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// How long a task may take before a warning with its name is logged and it is counted
    /// in [`Stats::slow`](crate::Stats::slow): 100 ms unless told otherwise.
    pub fn slow_task_budget(mut self, budget: Duration) -> Self {
        self.slow_task_budget = budget;
        self
    }

    /// Whether dropping the last clone of the timer waits for the tasks that run and for the
    /// timer's thread: not unless told so. (A thread that is not waited for does not keep the
    /// process alive.) For [`build`](Self::build) only.
    pub fn join_on_drop(mut self, join: bool) -> Self {
        self.join_on_drop = join;
        self
    }

    /// How many wheels the threads share: four times the number of processors unless told
    /// otherwise. Each takes about 80 KB once a thread uses it.
    pub fn shards(mut self, shards: NonZeroUsize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// A timer with a thread of its own, which starts with the first task.
    #[must_use]
    pub fn build(self) -> Timer {
        let join_on_drop = self.join_on_drop;
        Timer::with(self.engine(true), HostKind::Thread, join_on_drop)
    }

    /// A timer without a thread, driven by hand and by `clock`, which takes the place of any
    /// other clock. Several may share one.
    #[must_use]
    pub fn manual(mut self, clock: ManualClock) -> ManualHost {
        self.clock = Some(Arc::new(clock.clone()));
        let timer = Timer::with(self.engine(false), HostKind::Other, false);
        ManualHost::with(timer, clock)
    }

    /// A timer without a thread, driven by a future that is to be spawned on some runtime;
    /// `sleep` is how that runtime sleeps. Tasks run in the future itself unless there is an
    /// [`executor`](Self::executor).
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// runtime.block_on(async {
    ///     let (timer, host) = Timer::builder().build_hosted(tokio::time::sleep);
    ///     tokio::spawn(host);
    ///     let (sender, receiver) = tokio::sync::oneshot::channel();
    ///     timer.schedule(Duration::from_millis(2), move || sender.send("no thread").unwrap())?;
    ///     assert_eq!(receiver.await.unwrap(), "no thread");
    ///     # Ok::<(), countwheel::ScheduleError>(())
    /// })?;
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    ///
    /// `sleep` and the timer's [`clock`](Self::clock) have to be of one time. A test that
    /// [pauses](https://docs.rs/tokio/latest/tokio/time/fn.pause.html) tokio's clock has two: this
    /// timer goes by the machine's clock, the sleep by tokio's, which jumps to the end of the sleep. The
    /// host looks, finds that its deadline has not come, and sleeps again, until it has come by the
    /// machine's clock: a second moves tokio's clock by hours meanwhile. A timer by `Timer::on_tokio`
    /// has one clock.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    ///
    /// let mut test = tokio::runtime::Builder::new_current_thread();
    /// let test = test.enable_time().start_paused(true).build().unwrap();
    /// test.block_on(async {
    ///     let (timer, host) = Timer::builder().build_hosted(tokio::time::sleep);
    ///     tokio::spawn(host);
    ///     let (start, delay) = (Instant::now(), Duration::from_millis(10));
    ///     timer.sleep(delay).await?;
    ///     assert!(start.elapsed() > 2 * delay, "it has run away");
    ///     # Ok::<(), countwheel::SleepError>(())
    /// })?;
    /// # Ok::<(), countwheel::SleepError>(())
    /// ```
    pub fn build_hosted<S, F>(self, sleep: S) -> (Timer, HostFuture<S, F>)
    where
        S: FnMut(Duration) -> F,
        F: Future<Output = ()>,
    {
        let timer = Timer::with(self.engine(false), HostKind::Other, false);
        let host = HostFuture::new(Arc::clone(timer.engine()), sleep);
        (timer, host)
    }

    /// A timer without a thread, hosted by the current tokio runtime and on its clock, which takes the
    /// place of any other. See [`Timer::on_tokio`]. With the cargo feature `tokio`.
    ///
    /// ```
    /// use countwheel::{Timer, TokioExecutor};
    /// use std::num::NonZeroUsize;
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    /// runtime.block_on(async {
    ///     // Tasks that may block go to the threads that the runtime has for them.
    ///     let at_a_time = NonZeroUsize::new(100).unwrap();
    ///     let blocking = TokioExecutor::blocking(tokio::runtime::Handle::current(), at_a_time);
    ///     let timer = Timer::builder().executor(blocking).build_on_tokio()?;
    ///     let (sender, receiver) = tokio::sync::oneshot::channel();
    ///     timer.schedule(Duration::from_millis(2), move || sender.send("written").unwrap())?;
    ///     assert_eq!(receiver.await?, "written");
    ///     # Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Timer::on_tokio`].
    #[cfg(feature = "tokio")]
    pub fn build_on_tokio(mut self) -> Result<Timer, crate::NoRuntime> {
        let runtime = crate::host::tokio::current()?;
        let clock = crate::TokioClock::new()?;
        self.clock = Some(Arc::new(clock.clone()));
        self.context = Context::of(runtime.clone());
        let timer = Timer::with(self.engine(false), HostKind::Other, false);
        crate::host::tokio::host(&timer, &runtime, clock);
        Ok(timer)
    }

    fn engine(self, has_thread: bool) -> Engine {
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shards = self
            .shards
            .map_or_else(|| (4 * processors).next_power_of_two(), NonZeroUsize::get);
        let executor = match self.executor {
            Choice::Given(executor) => Some(executor),
            Choice::Inline => None,
            Choice::Default if !has_thread => None,
            Choice::Default => {
                let threads = processors.clamp(2, 8);
                let context = self.context.clone();
                let pool = Pool::within(context, &self.thread_name, threads, POOL_ROOM);
                pool.ok().map(|pool| Box::new(pool) as Box<dyn Executor>)
            }
        };
        let hub = Hub::new(clock, self.resolution, self.layout, self.max_pending);
        Engine::new(Parts {
            name: self.thread_name,
            shards: Shards::new(hub, shards),
            executor,
            context: self.context,
            overload: self.overload,
            slow_after: self.slow_task_budget,
        })
    }
}

impl Default for TimerBuilder {
    fn default() -> Self {
        Self {
            resolution: Resolution::default(),
            layout: Layout::default(),
            max_pending: None,
            thread_name: "countwheel".to_owned(),
            clock: None,
            executor: Choice::Default,
            context: Context::default(),
            overload: Overload::default(),
            slow_task_budget: Duration::from_millis(100),
            join_on_drop: false,
            shards: None,
        }
    }
}
