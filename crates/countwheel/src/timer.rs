//! What callers hold: a timer, and a handle for each timeout.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use countwheel_core::TimerKey;

use crate::ledger::{Fate, Host, Ledger};
use crate::{Clock, Instant, Layout, ManualClock, ManualHost, Resolution, SystemClock};

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Runs tasks once their deadlines are reached.
///
/// Clones are handles to the same timer. Its one thread starts with the first task, sleeps
/// until the next deadline, or for ever if there is none, and runs the tasks itself: a task
/// that takes long makes the next ones late. A panicking task is counted and goes no
/// further.
///
/// The timer stops with [`stop`](Self::stop), which gives back what has not fired, or when
/// the last clone is dropped, which drops it. A task that holds a clone keeps its timer
/// alive.
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
    owner: Arc<Owner>,
}

/// All clones of a timer together, as opposed to its handles and its host.
#[derive(Debug)]
struct Owner {
    ledger: Arc<Ledger>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.ledger.close());
    }
}

impl Timer {
    /// A timer on the system's clock, with ticks of a millisecond.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A timer with other options.
    pub fn builder() -> TimerBuilder {
        TimerBuilder::default()
    }

    /// What the timer's clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.ledger().clock.now()
    }

    /// Has `task` run once `delay` has passed, and never before. Any delay will do:
    /// [`Duration::ZERO`] runs it at once, [`Duration::MAX`] never.
    ///
    /// O(1). Wakes the timer's thread only if the task is due before everything else.
    ///
    /// # Errors
    /// [`ScheduleError::Closed`] if the timer has stopped, [`ScheduleError::NoThread`] if its
    /// thread could not be started. Both give the task back.
    pub fn schedule(
        &self,
        delay: Duration,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError> {
        self.schedule_at(self.now() + delay, task)
    }

    /// Has `task` run once [`now`](Self::now) has reached `deadline`, and never before; at
    /// once if it has passed. Tasks of one tick run in the order they were scheduled.
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
    pub fn schedule_at(
        &self,
        deadline: Instant,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<Timeout, ScheduleError> {
        let (key, fate) = self.ledger().schedule(deadline, Box::new(task))?;
        Ok(Timeout {
            ledger: Arc::clone(self.ledger()),
            key,
            deadline,
            fate,
        })
    }

    /// How many tasks wait for their deadline.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.stats().pending
    }

    /// What the timer has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.ledger().stats()
    }

    /// Stops the timer and gives back what has not fired. Later calls get nothing back.
    ///
    /// Waits for a task that is running, so that none is when this returns, and for the
    /// timer's thread. (So do not call it while holding what the running task waits for, nor
    /// on a thread that must not block.) Called from a task of this timer, it does not wait:
    /// that task is then the last one.
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
        Stopped {
            unfired: self.ledger().stop(),
        }
    }

    /// Whether the timer refuses tasks, because someone has called [`stop`](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.ledger().is_stopped()
    }

    fn with(ledger: Ledger) -> Self {
        let ledger = Arc::new(ledger);
        Self {
            owner: Arc::new(Owner { ledger }),
        }
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.owner.ledger
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

/// The options of a [`Timer`].
///
/// ```
/// use countwheel::{Layout, ManualClock, Resolution, SystemClock, Timer};
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
///
/// // As Netty has it, for real ...
/// let builder = || {
///     Timer::builder()
///         .resolution(Resolution::new(Duration::from_millis(100)).unwrap())
///         .layout(Layout::Hashed { ticks_per_wheel: NonZeroUsize::new(512).unwrap() })
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
    thread_name: String,
    clock: Option<Box<dyn Clock>>,
}

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

    /// What the timer's thread is called: `countwheel` unless told otherwise.
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

    /// What tells the time: a [`SystemClock`] unless told otherwise. It must advance as
    /// real time does, because the thread waits in real time. For a [`ManualClock`], see
    /// [`manual`](Self::manual).
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    /// A timer with a thread of its own, which starts with the first task.
    #[must_use]
    pub fn build(self) -> Timer {
        let clock = self.clock.unwrap_or_else(|| Box::new(SystemClock::new()));
        let host = Host::Lazy {
            thread_name: self.thread_name,
        };
        Timer::with(Ledger::new(clock, self.resolution, self.layout, host))
    }

    /// A timer without a thread, driven by hand and by `clock`, which takes the place of any
    /// other clock. Several may share one.
    #[must_use]
    pub fn manual(self, clock: ManualClock) -> ManualHost {
        let shared = Box::new(clock.clone());
        let ledger = Ledger::new(shared, self.resolution, self.layout, Host::Manual);
        ManualHost::with(Timer::with(ledger), clock)
    }
}

impl Default for TimerBuilder {
    fn default() -> Self {
        Self {
            resolution: Resolution::default(),
            layout: Layout::default(),
            thread_name: "countwheel".to_owned(),
            clock: None,
        }
    }
}

/// The handle of one scheduled task.
///
/// Dropping it does **not** cancel: schedule and forget is fine. A handle does not keep its
/// timer from stopping either. Clones are handles to the same task.
///
/// ```
/// use countwheel::ManualHost;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let answer = host.timer().schedule(Duration::from_secs(3), || println!("no answer"))?;
/// host.advance(Duration::from_secs(2));
/// assert!(answer.cancel(), "the answer came in time");
/// assert!(!answer.cancel(), "only one call cancels");
/// assert!(answer.is_cancelled() && !answer.is_expired());
/// assert_eq!(host.advance(Duration::from_secs(2)), 0);
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone)]
pub struct Timeout {
    ledger: Arc<Ledger>,
    key: TimerKey,
    deadline: Instant,
    fate: Arc<Fate>,
}

impl Timeout {
    /// Takes the task back. True: it will never run, and has been dropped. False: it ran, is
    /// running, was cancelled, or the timer has stopped.
    ///
    /// O(1). Never waits for a running task, so a task may cancel itself in vain, or one of
    /// the same tick in time.
    pub fn cancel(&self) -> bool {
        self.ledger.cancel(self.key)
    }

    /// Whether the deadline was reached and the task was taken to run: it may still be
    /// running. Excludes [`is_cancelled`](Self::is_cancelled); neither is true of a task that
    /// is pending or was left over when the timer stopped.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.fate.is_expired()
    }

    /// Whether a call of [`cancel`](Self::cancel) returned true.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.fate.is_cancelled()
    }

    /// The deadline that was asked for, not rounded.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("deadline", &self.deadline)
            .field("is_expired", &self.is_expired())
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// A task that did not fire and is the caller's again: refused, or left over by a stop.
///
/// ```
/// use countwheel::{ScheduleError, Timer};
/// use std::time::Duration;
///
/// let (old, new) = (Timer::new(), Timer::new());
/// old.stop();
/// let refused = old.schedule(Duration::from_secs(1), || println!("hello")).unwrap_err();
/// let ScheduleError::Closed(task) = refused else { panic!("not closed: {refused}") };
/// new.schedule(Duration::from_secs(1), move || task.run())?;
/// # Ok::<(), ScheduleError>(())
/// ```
pub struct Task {
    deadline: Instant,
    /// Never locked. It makes a task `Sync`, so that errors may contain one and still travel.
    work: Mutex<Work>,
}

impl Task {
    pub(crate) fn new(deadline: Instant, work: Work) -> Self {
        Self {
            deadline,
            work: Mutex::new(work),
        }
    }

    /// The deadline that was asked for, on the clock of its timer.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Runs the task here and now.
    pub fn run(self) {
        let work = self.work.into_inner();
        work.unwrap_or_else(PoisonError::into_inner)();
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// What [`Timer::stop`] gives back. Dropping it drops the tasks.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// The tasks that have not fired and never will, in the order in which they would have.
    pub unfired: Vec<Task>,
}

/// What a [`Timer`] has done so far: a snapshot, of one moment.
///
/// At any moment `added` equals `ran + cancelled + returned + pending`, exactly.
///
/// ```
/// use countwheel::ManualHost;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let timer = host.timer().clone();
/// for seconds in 1..=10 {
///     timer.schedule(Duration::from_secs(seconds), || {})?;
/// }
/// timer.schedule(Duration::ZERO, || {})?.cancel();
/// host.advance(Duration::from_secs(7));
/// assert_eq!(timer.stats().pending, 3);
/// timer.stop();
///
/// let stats = timer.stats();
/// assert_eq!((stats.added, stats.ran, stats.cancelled, stats.returned), (11, 7, 1, 3));
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Tasks that were accepted.
    pub added: u64,
    /// Tasks that were taken to run, the running one included.
    pub ran: u64,
    /// Tasks that were cancelled before they ran.
    pub cancelled: u64,
    /// Tasks that the stop gave back.
    pub returned: u64,
    /// Tasks that wait for their deadline.
    pub pending: u64,
    /// Of those that ran, how many panicked.
    pub panicked: u64,
    /// How often the timer's thread woke from a sleep, whether anything was due or not.
    pub wake_ups: u64,
    /// The longest time between a deadline and the moment the task was taken to run.
    pub lateness_max: Duration,
}

/// Why a task was not accepted. It comes back unchanged.
///
/// ```
/// use countwheel::Timer;
/// use std::time::Duration;
///
/// let timer = Timer::new();
/// timer.stop();
/// let refused = timer.schedule(Duration::ZERO, || println!("now, then")).unwrap_err();
/// assert_eq!(refused.to_string(), "the timer has stopped");
/// refused.into_task().run();
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The timer has stopped for good. Run the task, drop it or take it to another timer.
    #[error("the timer has stopped")]
    Closed(Task),
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
            Self::Closed(task) | Self::NoThread { task, .. } => task,
        }
    }
}
