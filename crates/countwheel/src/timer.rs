//! The handle of a timer.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::task::Waker;
use std::time::Duration;

use crate::builder::{HostKind, TimerBuilder};
use crate::concurrent::{Refusal, Shard};
use crate::engine::Engine;
use crate::host;
use crate::stats::{Snapshot, Stats};
use crate::stop::{Stop, Stopped, Stopping};
use crate::task::{Delivery, Function, Job, Task};
use crate::timeout::Timeout;
use crate::{Clock, Instant, TimerKey, Timestamp};
use countwheel_time::locks::lock;

/// Runs tasks once their deadlines are reached.
///
/// Clones are handles to the same timer, and cheap. Any number of threads may schedule and
/// cancel: each uses a wheel of its own, so they do not get in each other's way.
///
/// Its one thread starts with the first task, sleeps until the next deadline, or for ever if
/// there is none, and hands what is due to an [`Executor`](crate::Executor), a small
/// [`Pool`](crate::Pool) of threads unless told otherwise: so a task that takes long does not
/// make others late. A panicking task is counted and goes no further.
///
/// The timer stops with [`stop`](Self::stop), which gives back what has not run, with
/// [`close`](Self::close), which does as it is told, or when the last clone of one that is open
/// is dropped, which drops what is pending. A task that holds a clone keeps its timer alive.
///
/// ```
/// use countwheel::Timer;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let timer = Timer::new();
/// let (sender, receiver) = mpsc::channel();
/// timer.schedule(Duration::from_millis(5), move || sender.send("tea is ready").unwrap())?;
/// assert_eq!(timer.pending(), 1);
/// assert_eq!(receiver.recv(), Ok("tea is ready"));
/// assert_eq!(timer.pending(), 0);
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Timer {
    owner: Arc<TimerOwner>,
}

/// All clones of a timer together, as opposed to its handles and its host.
#[derive(Debug)]
struct TimerOwner {
    engine: Arc<Engine>,
    /// Whether there is a host, or was one: then nobody needs to start it.
    hosted: AtomicBool,
    starting: Mutex<()>,
    join_on_drop: bool,
}

/// More timers than this at a time, and a warning is logged, once: somebody makes one for
/// each request where one for all would do.
const MANY_TIMERS: usize = 64;

static TIMERS: AtomicUsize = AtomicUsize::new(0);
static MANY_WARNED: AtomicBool = AtomicBool::new(false);

impl Drop for TimerOwner {
    fn drop(&mut self) {
        TIMERS.fetch_sub(1, Ordering::Relaxed);
        let hub = self.engine.shards.hub();
        if !hub.is_closed() {
            let pending = self.engine.shards.counts().pending;
            let waiting = self.engine.ready.progress().waiting;
            if pending + waiting > 0 {
                let timer = &self.engine.name;
                tracing::warn!(
                    timer,
                    pending,
                    waiting,
                    "a timer was dropped with work pending"
                );
            }
            self.engine.close_and_drop(true);
        }
        if self.join_on_drop {
            self.engine.ready.wait_over(None);
        }
    }
}

impl Timer {
    /// A timer on the system's clock, with ticks of a millisecond.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A timer without a thread, hosted by the current tokio runtime and on its clock. With the
    /// cargo feature `tokio`.
    ///
    /// The host is a task of the runtime, and tasks run in it, unless the builder is given an
    /// [`executor`](TimerBuilder::executor): so they find the runtime ([`tokio::spawn`] works), are
    /// short, and never wait. The host ends with its timer. A runtime that ends first closes the
    /// timer.
    ///
    /// The clock is [`tokio::time::Instant`]. In a test whose clock is paused, the timer stands still
    /// with it, `tokio::time::advance` moves both, and a runtime with nothing to do goes on to the
    /// next deadline of the timer as it does to that of a sleep of its own. A timer with nothing
    /// pending sleeps in no clock, so it moves none. (A keyed timer or a pattern keeps its one entry
    /// for a deadline of its own that is cancelled, and looks once in vain.)
    ///
    /// Tokio sleeps in whole milliseconds from the start of the runtime. A deadline between two of
    /// them comes at the second; a paused clock then stops up to a millisecond beyond it.
    ///
    /// In async code, stop it by awaiting [`close`](Self::close): [`stop`](Self::stop) would wait on
    /// the thread that is to drive the host.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread()
    ///     .enable_time()
    ///     .start_paused(true) // needs tokio's feature `test-util`
    ///     .build()?;
    /// runtime.block_on(async {
    ///     let timer = Timer::on_tokio()?;
    ///     let start = tokio::time::Instant::now();
    ///     let (sender, receiver) = tokio::sync::oneshot::channel();
    ///     timer.schedule(Duration::from_secs(3600), move || {
    ///         tokio::spawn(async move { sender.send("an hour") });
    ///     })?;
    ///     assert_eq!(receiver.await?, "an hour");
    ///     assert_eq!(start.elapsed(), Duration::from_secs(3600), "in no time");
    ///     # Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NoRuntime`] outside of a tokio runtime, or in one that was built without
    /// time. (In the second case tokio's panic is caught, and printed as any other.)
    #[cfg(feature = "tokio")]
    pub fn on_tokio() -> Result<Self, NoRuntime> {
        Self::builder().build_on_tokio()
    }

    /// A timer with other options.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::default()
    }

    /// The timer of the whole process, made at the first call with the default options. Do
    /// not stop it: others use it, too.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    ///
    /// Timer::global().schedule(Duration::from_secs(1), || println!("a second later"))?;
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Timer> = OnceLock::new();
        GLOBAL.get_or_init(|| Self::builder().thread_name("countwheel-global").build())
    }

    pub(crate) fn with(engine: Engine, kind: HostKind, join_on_drop: bool) -> Self {
        let live = TIMERS.fetch_add(1, Ordering::Relaxed) + 1;
        if live > MANY_TIMERS && !MANY_WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(live, "many timers at a time: one could be shared");
        }
        let hosted = AtomicBool::new(!matches!(kind, HostKind::Thread));
        Self {
            owner: Arc::new(TimerOwner {
                engine: Arc::new(engine),
                hosted,
                starting: Mutex::new(()),
                join_on_drop,
            }),
        }
    }

    /// What the timer's clock shows.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        self.engine().clock().now()
    }

    /// What tells the time to this timer, for those who need another of its readings: a
    /// [`ClockReading`](crate::ClockReading) of it translates instants into UTC and back.
    ///
    /// ```
    /// use countwheel::{Clock, ManualHost};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// host.advance(Duration::from_secs(1));
    /// let timer = host.timer();
    /// assert_eq!(timer.clock().now(), timer.now());
    /// assert_eq!(timer.clock().timestamp(), timer.timestamp());
    /// ```
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.engine().clock()
    }

    /// What the wall clock beside the timer's clock shows: for what is stored or shown. It may
    /// jump in both directions, and no deadline of the timer goes by it.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.clock().timestamp()
    }

    /// Runs `task` once `delay` has passed, and never before. Any delay will do: [`Duration::ZERO`]
    /// runs the task at once, [`Duration::MAX`] never.
    ///
    /// O(1): reads the clock once, takes one lock that other threads seldom want, and puts
    /// what the task captures into a box, if it captures anything. Wakes the timer's thread
    /// only if the task is due before everything else.
    ///
    /// # Errors
    /// [`ScheduleError::Closed`] if the timer has stopped, [`ScheduleError::Full`] if as many
    /// tasks are pending as may be, [`ScheduleError::NoThread`] if the timer's thread could
    /// not be started. All give the task back.
    #[inline]
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError> {
        self.after(delay, Job::Task(Box::new(Function(task))))
    }

    /// Runs `task` once [`now`](Self::now) has reached `deadline`, and never before; at once if the
    /// deadline has passed.
    ///
    /// Tasks start in the order of their deadlines, in ticks. Those of one tick start in the
    /// order in which they were scheduled, if one thread did so.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let start = host.timer().now();
    /// let deadline = start + Duration::from_secs(30);
    /// let timeout = host.timer().schedule_at(deadline, || {})?;
    /// assert_eq!(timeout.deadline(), deadline);
    ///
    /// host.timer().schedule_at(start, || println!("long due"))?;
    /// assert_eq!(host.run_due(), 1);
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`schedule`](Self::schedule).
    #[inline]
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError> {
        self.at(deadline, Job::Task(Box::new(Function(task))))
    }

    /// Takes on a task that came back from a timer, by a stop, an overload or a refusal: under
    /// a deadline on *this* timer's clock, under its own name, and without another box.
    ///
    /// ```
    /// use countwheel::{ManualHost, ScheduleError, Timer};
    /// use std::time::Duration;
    ///
    /// let old = Timer::new();
    /// old.schedule(Duration::from_secs(60), || println!("flush"))?;
    /// let mut host = ManualHost::new();
    /// for task in old.stop().unfired {
    ///     let in_a_second = host.timer().now() + Duration::from_secs(1);
    ///     host.timer().schedule_task(in_a_second, task)?;
    /// }
    /// assert_eq!(host.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`schedule`](Self::schedule).
    pub fn schedule_task(&self, deadline: Instant, task: Task) -> Result<Timeout, ScheduleError> {
        self.at(deadline, task.into_job())
    }

    /// Sends `value` once `delay` has passed: the timer's thread does so itself, no executor
    /// is asked. If nobody listens any more, the value is dropped.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let (sender, due) = mpsc::channel();
    /// let timer = Timer::new();
    /// timer.schedule_send(Duration::from_millis(90), "order 2", &sender)?;
    /// timer.schedule_send(Duration::from_millis(1), "order 1", &sender)?;
    /// assert_eq!([due.recv(), due.recv()], [Ok("order 1"), Ok("order 2")]);
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`schedule`](Self::schedule).
    pub fn schedule_send<T: Send + 'static>(
        &self,
        delay: Duration,
        value: T,
        to: &mpsc::Sender<T>,
    ) -> Result<Timeout, ScheduleError> {
        let to = to.clone();
        self.after(delay, Job::Task(Box::new(Delivery { value, to })))
    }

    /// Wakes `waker` once `delay` has passed: the timer's thread does so itself. For futures
    /// of your own; [`sleep`](Self::sleep) is one.
    ///
    /// A waker is also woken when the timer stops, so look at the clock.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use std::task::Waker;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// host.timer().schedule_wake(Duration::from_secs(1), Waker::noop().clone())?;
    /// assert_eq!(host.advance(Duration::from_secs(1)), 1);
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`schedule`](Self::schedule).
    pub fn schedule_wake(&self, delay: Duration, waker: Waker) -> Result<Timeout, ScheduleError> {
        self.after(delay, Job::Wake(waker))
    }

    #[inline]
    pub(crate) fn after(&self, delay: Duration, job: Job) -> Result<Timeout, ScheduleError> {
        let now = self.now();
        self.insert(now, now + delay, job)
    }

    #[inline]
    pub(crate) fn at(&self, deadline: Instant, job: Job) -> Result<Timeout, ScheduleError> {
        self.insert(self.now(), deadline, job)
    }

    #[inline]
    fn insert(&self, now: Instant, deadline: Instant, job: Job) -> Result<Timeout, ScheduleError> {
        let (timeout, rouse) = self.insert_quietly(now, deadline, job)?;
        self.rouse_if(rouse);
        Ok(timeout)
    }

    /// Like [`after`](Self::after), for those who hold locks.
    pub(crate) fn after_quietly(
        &self,
        delay: Duration,
        job: Job,
    ) -> Result<(Timeout, Rouse), ScheduleError> {
        let now = self.now();
        self.insert_quietly(now, now + delay, job)
    }

    /// Like [`at`](Self::at), for those who hold locks.
    pub(crate) fn at_quietly(
        &self,
        deadline: Instant,
        job: Job,
    ) -> Result<(Timeout, Rouse), ScheduleError> {
        self.insert_quietly(self.now(), deadline, job)
    }

    #[inline]
    fn insert_quietly(
        &self,
        now: Instant,
        deadline: Instant,
        job: Job,
    ) -> Result<(Timeout, Rouse), ScheduleError> {
        if !self.owner.hosted.load(Ordering::Acquire)
            && let Err(source) = self.host()
        {
            let task = Task::new(deadline, job);
            return Err(ScheduleError::NoThread { task, source });
        }
        let shard = self.engine().shards.of_thread(number_of_thread() as usize);
        Self::answer(shard, deadline, shard.insert_quietly(now, deadline, job))
    }

    /// Wakes the host, if what was done quietly calls for it: by those who hold no lock.
    #[inline]
    pub(crate) fn rouse_if(&self, rouse: Rouse) {
        if rouse.0 {
            self.rouse();
        }
    }

    /// Runs `job` at `deadline`, as the continuation of accepted work:
    /// [`max_pending`](TimerBuilder::max_pending) does not apply.
    pub(crate) fn go_on_at(&self, deadline: Instant, job: Job) -> Result<Timeout, ScheduleError> {
        let (timeout, rouse) = self.go_on_at_quietly(deadline, job)?;
        self.rouse_if(rouse);
        Ok(timeout)
    }

    /// The same, for those who hold locks.
    pub(crate) fn go_on_at_quietly(
        &self,
        deadline: Instant,
        job: Job,
    ) -> Result<(Timeout, Rouse), ScheduleError> {
        if let Err(source) = self.host() {
            let task = Task::new(deadline, job);
            return Err(ScheduleError::NoThread { task, source });
        }
        let shard = self.engine().shards.of_thread(number_of_thread() as usize);
        let filed = shard.insert_anyway_quietly(self.now(), deadline, job);
        Self::answer(shard, deadline, filed)
    }

    #[inline]
    fn answer(
        shard: &Arc<Shard<Job>>,
        deadline: Instant,
        filed: Result<(TimerKey, bool), (Refusal, Job)>,
    ) -> Result<(Timeout, Rouse), ScheduleError> {
        match filed {
            Ok((key, wake)) => {
                let timeout = Timeout::new(Arc::clone(shard), key, deadline);
                Ok((timeout, Rouse(wake)))
            }
            Err((Refusal::Closed, job)) => Err(ScheduleError::Closed(Task::new(deadline, job))),
            Err((Refusal::Full, job)) => Err(ScheduleError::Full(Task::new(deadline, job))),
        }
    }

    /// Starts the timer's thread, as the first task would. Twice does no harm.
    ///
    /// ```
    /// use countwheel::{Timer, TimerStartError};
    ///
    /// let timer = Timer::new();
    /// timer.start()?; // now rather than in the middle of something
    /// timer.stop();
    /// assert!(matches!(timer.start(), Err(TimerStartError::Closed)));
    /// # Ok::<(), TimerStartError>(())
    /// ```
    ///
    /// # Errors
    /// [`TimerStartError::Closed`] if the timer has stopped, whoever hosts it,
    /// [`TimerStartError::NoThread`] if the system cannot start a thread.
    pub fn start(&self) -> Result<(), TimerStartError> {
        if self.is_stopped() {
            return Err(TimerStartError::Closed);
        }
        self.host().map_err(TimerStartError::NoThread)
    }

    /// Makes sure that there is a host, unless the timer has stopped: then nobody needs one.
    #[cold]
    pub(crate) fn host(&self) -> io::Result<()> {
        let owner = &self.owner;
        if owner.hosted.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = lock(&owner.starting);
        if owner.hosted.load(Ordering::Acquire) {
            return Ok(());
        }
        let engine = &owner.engine;
        if !engine.shards.hub().is_closed() {
            host::thread::start(engine)?;
        }
        owner.hosted.store(true, Ordering::Release);
        Ok(())
    }

    /// How many tasks wait for their deadline, at one moment: exact, and never more than
    /// [`max_pending`](TimerBuilder::max_pending), but for what goes on with something that was
    /// accepted before. Takes all locks of the timer together, for as long as it takes to add up
    /// as many numbers.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.engine().shards.counts().pending
    }

    /// What the timer has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// What the timer looks like now: counters, what runs and since when, what is overdue.
    /// For people and dashboards; it takes every lock for a moment.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// host.timer().schedule(Duration::from_secs(5), || {})?;
    /// host.clock().advance(Duration::from_secs(65));
    /// let snapshot = host.timer().snapshot();
    /// assert_eq!(snapshot.stats.pending, 1);
    /// assert_eq!(snapshot.overdue, Duration::from_secs(60), "nobody drives it");
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.engine().snapshot()
    }

    /// Makes the timer's host look at the clock again: after the clock jumped, or the machine
    /// was suspended with a clock that went on. Without a reason it does no harm.
    ///
    /// ```
    /// use countwheel::{ManualClock, Timer};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let timer = Timer::builder().clock(clock.clone()).build();
    /// let (sender, receiver) = mpsc::channel();
    /// timer.schedule_send(Duration::from_secs(3600), "an hour", &sender)?;
    /// clock.advance(Duration::from_secs(3600));
    /// timer.rouse();
    /// assert_eq!(receiver.recv(), Ok("an hour"));
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    pub fn rouse(&self) {
        self.engine().shards.hub().rouse();
    }

    /// Stops the timer and gives back what has not run. Later calls get nothing back.
    ///
    /// The same as [`close(Stop::HandBack).wait()`](Self::close): it blocks until the tasks
    /// that are running have ended, and the timer's thread. In async code, await
    /// [`close`](Self::close) instead: a host that is a future cannot end on a thread that waits
    /// for it.
    ///
    /// ```
    /// use countwheel::{ScheduleError, Timer};
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// timer.schedule(Duration::from_secs(60), || println!("flush"))?;
    ///
    /// for task in timer.stop().unfired {
    ///     task.run(); // flush now rather than never
    /// }
    /// assert!(timer.is_stopped());
    /// assert!(timer.stop().unfired.is_empty());
    /// # Ok::<(), ScheduleError>(())
    /// ```
    pub fn stop(&self) -> Stopped {
        self.close(Stop::HandBack).wait()
    }

    /// Refuses tasks from now on, and says what becomes of those that are pending. Never
    /// blocks: what it returns is for those who want to wait, on a thread or in async code.
    ///
    /// From any thread, also from a task of this timer; any number of times. A later call may
    /// be harsher than the first: after a [`Stop::WaitUpTo`], [`Stop::HandBack`] takes what
    /// is left.
    ///
    /// ```
    /// use countwheel::{Stop, Timer};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let (sender, receiver) = mpsc::channel();
    /// timer.schedule(Duration::from_secs(3600), move || sender.send("flushed").unwrap())?;
    /// assert!(timer.close(Stop::RunNow).wait().unfired.is_empty());
    /// assert_eq!(receiver.recv(), Ok("flushed"));
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    pub fn close(&self, stop: Stop) -> Stopping {
        let engine = self.engine();
        let unfired = match stop {
            Stop::HandBack => engine.close_and_take(),
            Stop::Drop => {
                engine.close_and_drop(false);
                Vec::new()
            }
            Stop::RunNow => {
                engine.close_and_run();
                Vec::new()
            }
            Stop::WaitUpTo(span) => {
                engine.close_and_wait(self.now() + span);
                Vec::new()
            }
        };
        Stopping::new(Arc::clone(engine), unfired)
    }

    /// Whether the timer refuses tasks, because someone has closed it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.engine().shards.hub().is_closed()
    }

    /// Whether tasks run in the context of an async runtime, as far as the timer knows: one on tokio,
    /// one that was given a `runtime`, or an executor that [says so](crate::Executor::has_runtime).
    /// Work that needs a runtime asks before it starts, rather than panics at each try.
    ///
    /// A [hosted](TimerBuilder::build_hosted) timer does not know where its host is polled, and says
    /// no unless it was told a runtime.
    ///
    /// ```
    /// use countwheel::Timer;
    ///
    /// assert!(!Timer::new().has_runtime());
    /// ```
    #[must_use]
    pub fn has_runtime(&self) -> bool {
        self.engine().has_runtime()
    }

    /// This timer, if its tasks [have a runtime](Self::has_runtime): for the start of whatever needs
    /// one, which would else panic at its first run, and at each that follows.
    ///
    /// ```
    /// use countwheel::{NoRuntime, Timer};
    ///
    /// fn start(timer: &Timer) -> Result<(), NoRuntime> {
    ///     let _timer = timer.require_runtime()?;
    ///     // ... start a periodic task that opens connections ...
    ///     Ok(())
    /// }
    /// assert_eq!(start(&Timer::new()), Err(NoRuntime::NoneOfTimer));
    /// ```
    ///
    /// # Errors
    /// [`NoRuntime::NoneOfTimer`] if they have none.
    pub fn require_runtime(&self) -> Result<&Self, NoRuntime> {
        let has_runtime = self.has_runtime();
        has_runtime.then_some(self).ok_or(NoRuntime::NoneOfTimer)
    }

    /// A handle that does not keep the timer alive: for what the timer itself holds, which
    /// would keep it alive for ever.
    ///
    /// ```
    /// use countwheel::Timer;
    ///
    /// let timer = Timer::new();
    /// let weak = timer.downgrade();
    /// assert!(weak.upgrade().is_some());
    /// drop(timer);
    /// assert!(weak.upgrade().is_none());
    /// ```
    #[must_use]
    pub fn downgrade(&self) -> WeakTimer {
        WeakTimer {
            owner: Arc::downgrade(&self.owner),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.owner.engine
    }
}

/// Whether the host has to be woken, by who did something quietly because it held locks: a waker
/// is foreign, and may poll the host where it is woken. For [`Timer::rouse_if`].
#[derive(Clone, Copy, Debug)]
#[must_use = "the host may sleep too long"]
pub(crate) struct Rouse(pub(crate) bool);

impl Rouse {
    pub(crate) const NO: Self = Self(false);
}

/// A handle of a [`Timer`] that does not keep it alive: see [`Timer::downgrade`].
#[derive(Clone, Debug)]
pub struct WeakTimer {
    owner: Weak<TimerOwner>,
}

impl WeakTimer {
    /// The timer, if somebody still holds it.
    #[must_use]
    pub fn upgrade(&self) -> Option<Timer> {
        let owner = self.owner.upgrade()?;
        Some(Timer { owner })
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

thread_local! {
    static NUMBER: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// The number of this thread: threads are numbered from zero as they first schedule something or
/// ask for it. Says which of many locks a thread takes, always the same.
///
/// ```
/// use countwheel::building::number_of_thread;
///
/// let mine = number_of_thread();
/// assert_eq!(number_of_thread(), mine);
/// let other = std::thread::spawn(number_of_thread).join().unwrap();
/// assert_ne!(other, mine);
/// ```
#[inline]
pub fn number_of_thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NUMBER.with(|number| {
        if number.get() == u32::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) % u32::MAX);
        }
        number.get()
    })
}

/// Makes this thread schedule on the shards of another: for simulations, which have one thread.
#[doc(hidden)]
pub fn pretend_to_be_thread(number: u32) {
    NUMBER.with(|own| own.set(number));
}

/// Why something that needs an async runtime was not begun.
///
/// ```
/// use countwheel::{NoRuntime, Timer};
///
/// let error = Timer::new().require_runtime().unwrap_err();
/// assert_eq!(error, NoRuntime::NoneOfTimer);
/// assert_eq!(error.to_string(), "the timer's tasks run in no runtime that it knows of");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoRuntime {
    /// The caller of `Timer::on_tokio` is in no runtime's context: call it in async code, or enter a
    /// runtime.
    #[error("no tokio runtime is current on this thread")]
    Absent,
    /// The runtime has no clock: build it with `enable_time`.
    #[error("the tokio runtime was built without time")]
    WithoutTime,
    /// The timer [runs its tasks in none](Timer::has_runtime): give it one, with
    /// `TimerBuilder::runtime` or an executor, or host it there, with `Timer::on_tokio`.
    #[error("the timer's tasks run in no runtime that it knows of")]
    NoneOfTimer,
}

/// Why a timer was not started. See [`Timer::start`].
///
/// ```
/// use countwheel::{Timer, TimerStartError};
///
/// let timer = Timer::new();
/// timer.stop();
/// let error = timer.start().unwrap_err();
/// assert!(matches!(error, TimerStartError::Closed));
/// assert_eq!(error.to_string(), "the timer has stopped");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimerStartError {
    /// The timer has stopped for good. Make another one.
    #[error("the timer has stopped")]
    Closed,
    /// The timer's thread could not be started. The timer is as it was: try again later.
    #[error("the timer's thread could not be started")]
    NoThread(#[source] io::Error),
}

/// Why a task was not accepted. It comes back unchanged.
///
/// ```
/// use countwheel::Timer;
/// use std::time::Duration;
///
/// let timer = Timer::builder().max_pending(1).build();
/// let hour = Duration::from_secs(3600);
/// timer.schedule(hour, || println!("first"))?;
/// let refused = timer.schedule(hour, || println!("now, then")).unwrap_err();
/// assert_eq!(refused.to_string(), "as many tasks are pending as may be");
/// refused.into_task().run();
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The timer has stopped for good. Run the task, drop it or take it to another timer.
    #[error("the timer has stopped")]
    Closed(Task),
    /// As many tasks are pending or wait for an executor as
    /// [`max_pending`](TimerBuilder::max_pending) allows. There is room as soon as one starts
    /// or is cancelled.
    #[error("as many tasks are pending as may be")]
    Full(Task),
    /// The timer's thread could not be started. The timer is as it was: try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// The task.
        task: Task,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ScheduleError {
    /// The task that was not accepted.
    #[must_use]
    pub fn into_task(self) -> Task {
        match self {
            Self::Closed(task) | Self::Full(task) | Self::NoThread { task, .. } => task,
        }
    }
}
