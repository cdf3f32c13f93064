//! Loops without a thread of their own.

mod options;
mod turns;

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use self::turns::{Order, Turns};
use super::chain::{CancelGuard, Chain};
use countwheel::Instant;

pub use self::options::WorkerBuilder;

/// A loop that takes a step, waits, and takes the next, without a thread of its own: the steps run
/// on the timer's executor. This is its handle.
///
/// It can be [woken](Self::wake) out of its wait, [suspended](Self::suspend) and
/// [resumed](Self::resume), and [closed](Self::close). Wake-ups **coalesce**: however many come
/// before a step begins, that one step answers them all, and however many come while it goes on,
/// one more step follows. None is lost: not by a suspension, not by a panic, not by an executor
/// that drops the step.
///
/// Nothing ends it by mistake. A step that panics or says [`Step::Failed`] is counted and followed
/// by [a pause](WorkerBuilder::pause_after_failure), and then by the next. Steps never overlap.
///
/// What a step says decides how it goes on: see [`Step`]. A function that returns nothing waits.
///
/// The loops that this replaces sleep in a thread, poll every few milliseconds, or die of what
/// they do not catch: SOFARegistry's `WakeUpLoopRunnable`, the workers of Eureka's batcher, and
/// go-zero's `DelayExecutor` and `PeriodicalExecutor`.
///
/// Clones are the same handle. When the last is dropped, the loop goes on, but ends where only a
/// handle could go on: in a suspension, or in a wait for a wake-up. (A step that holds a handle of
/// its own worker keeps it until it is closed.) It does not keep its timer alive, and ends with it.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Worker;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let (sender, sweeps) = mpsc::channel();
/// let sweeper = Worker::every(60 * second)
///     .start(host.timer(), move || sender.send("swept").unwrap())?;
/// host.advance(200 * second);
/// assert_eq!(sweeps.try_iter().count(), 4, "the first at once");
///
/// sweeper.wake();
/// sweeper.wake();
/// host.advance(Duration::ZERO);
/// assert_eq!(sweeps.try_iter().count(), 1, "one step answers both");
/// assert_eq!(sweeper.next_step(), Some(host.timer().now() + 60 * second), "and then the wait");
///
/// assert!(sweeper.suspend());
/// sweeper.wake();
/// host.advance(600 * second);
/// assert_eq!(sweeps.try_iter().count(), 0);
/// assert!(sweeper.is_suspended() && sweeper.resume());
/// host.advance(Duration::ZERO);
/// assert_eq!(sweeps.try_iter().count(), 1, "it was woken meanwhile");
///
/// assert!(sweeper.close() && sweeper.is_over());
/// assert!(!sweeper.wake());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Worker {
    owner: Arc<WorkerOwner>,
}

/// All clones of a worker together, as opposed to its loop.
struct WorkerOwner {
    chain: Arc<Chain<Turns>>,
}

impl Drop for WorkerOwner {
    fn drop(&mut self) {
        self.chain.tell(Order::Orphaned);
    }
}

/// How a [`Worker`] goes on after a step, by what the step returns.
///
/// Nothing returned is [`Wait`](Self::Wait); so is `Ok`, and `Err` is [`Failed`](Self::Failed);
/// [`ControlFlow::Break`] is [`End`](Self::End).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Step, Worker};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// // Sends what has gathered, 250 at a time, and rests when the server is overloaded.
/// let mut host = ManualHost::new();
/// let mut answers = ["a full batch", "503", "a full batch", "the rest"].into_iter();
/// let worker = Worker::on_demand().start(host.timer(), move || match answers.next() {
///     Some("503") => Step::Pause(Duration::from_secs(1)),
///     Some("a full batch") => Step::Again,
///     Some(_) => Step::Sleep,
///     None => Step::End,
/// })?;
/// worker.wake();
/// host.advance(Duration::ZERO);
/// assert_eq!(worker.stats().steps, 2);
/// worker.wake(); // does not shorten the pause
/// host.advance(Duration::from_millis(999));
/// assert_eq!(worker.stats().steps, 2);
/// host.advance(Duration::from_millis(1));
/// assert_eq!(worker.stats().steps, 4);
/// worker.wake();
/// host.advance(Duration::ZERO);
/// assert!(worker.is_over());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Step {
    /// It waits as long as the worker is told to, or until it is woken.
    #[default]
    Wait,
    /// There is more to do: the next step comes at once, after others that wait for the executor.
    Again,
    /// There is nothing to do: the next step comes when the worker is woken.
    Sleep,
    /// The next step comes after this long, and no wake-up makes it come sooner.
    Pause(Duration),
    /// It failed. Counted, and followed by the
    /// [pause after failures](WorkerBuilder::pause_after_failure).
    Failed,
    /// It was the last.
    End,
}

impl From<()> for Step {
    fn from((): ()) -> Self {
        Self::Wait
    }
}

impl<E> From<Result<(), E>> for Step {
    fn from(result: Result<(), E>) -> Self {
        result.map_or(Self::Failed, |()| Self::Wait)
    }
}

impl From<ControlFlow<()>> for Step {
    fn from(flow: ControlFlow<()>) -> Self {
        match flow {
            ControlFlow::Continue(()) => Self::Wait,
            ControlFlow::Break(()) => Self::End,
        }
    }
}

/// What a [`Worker`] has done so far.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Worker;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let mut step = 0;
/// let worker = Worker::every(10 * second).start(host.timer(), move || {
///     step += 1;
///     assert_ne!(step, 2, "the second step panics");
///     if step == 3 { Err("no answer") } else { Ok(()) }
/// })?;
/// host.advance(13 * second); // steps in seconds 0, 10, 11 and 12
/// assert!(worker.wake() && worker.wake());
/// host.advance(Duration::ZERO);
///
/// let stats = worker.stats();
/// assert_eq!((stats.steps, stats.panicked, stats.failed), (5, 1, 1));
/// assert_eq!((stats.wakes, stats.coalesced), (2, 1));
/// assert_eq!((stats.dropped, stats.lost), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Steps that have begun, one that goes on included.
    pub steps: u64,
    /// Of those, how many said that they had failed.
    pub failed: u64,
    /// Of those, how many panicked.
    pub panicked: u64,
    /// Of those, how many were futures that were dropped before their end, because the timer
    /// stopped.
    pub dropped: u64,
    /// Steps that the executor took and dropped, or the timer handed back because of its
    /// [`Overload`](countwheel::Overload) and somebody dropped. Others followed in their place.
    pub lost: u64,
    /// Wake-ups.
    pub wakes: u64,
    /// Of those, how many found that a step was to come already on account of another, or was on
    /// its way to the executor.
    pub coalesced: u64,
}

impl Worker {
    /// A loop with a wait of this length between the end of a step and the next. The first step
    /// comes at once.
    pub fn every(wait: Duration) -> WorkerBuilder {
        WorkerBuilder::new(wait, Duration::ZERO)
    }

    /// A loop that takes a step when it is woken, and waits for ever for that.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Worker;
    /// use std::time::Duration;
    ///
    /// // However often a configuration changes, it is written half a second later, once.
    /// let mut host = ManualHost::new();
    /// let millis = Duration::from_millis;
    /// let writer = Worker::on_demand().wake_delay(millis(500)).start(host.timer(), || {})?;
    /// for _ in 0..4 {
    ///     writer.wake();
    ///     host.advance(millis(100));
    /// }
    /// assert_eq!(writer.stats().steps, 0);
    /// host.advance(millis(100));
    /// assert_eq!(writer.stats().steps, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_demand() -> WorkerBuilder {
        WorkerBuilder::new(Duration::MAX, Duration::MAX)
    }

    /// Makes the next step come at once, or [a while](WorkerBuilder::wake_delay) from now, rather
    /// than at the end of the wait; no sooner than the [gap](WorkerBuilder::min_gap) or a
    /// [pause](Step::Pause) allows. In a suspension it is remembered. False if the worker is
    /// closed, or its last step has been asked for.
    ///
    /// A step always begins after this, so what was put into a queue before is seen by it.
    pub fn wake(&self) -> bool {
        self.owner.chain.tell(Order::Wake)
    }

    /// Lets no step begin until the worker is resumed. One that goes on is not waited for. False
    /// if it was suspended already, or closed.
    pub fn suspend(&self) -> bool {
        self.owner.chain.tell(Order::Suspend)
    }

    /// Goes on after a suspension: at once if the wait is over by now, or the worker was woken.
    /// False if it was not suspended, or is closed.
    pub fn resume(&self) -> bool {
        self.owner.chain.tell(Order::Resume)
    }

    /// Ends it: once this has returned, no step begins any more. One that goes on is told by the
    /// [signal](WorkerBuilder::stop_signal), if there is one, and not waited for;
    /// [`wait`](Self::wait) does that. False if it was closed already.
    pub fn close(&self) -> bool {
        self.owner.chain.tell(Order::Close)
    }

    /// Takes a last step, at once and whatever has been asked for, and then closes; after a step
    /// that says [`Step::Again`] another. For what has gathered. False if that was asked for
    /// before, or it is closed.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Worker;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let minute = Duration::from_secs(60);
    /// let flusher = Worker::every(minute).first_delay(minute).start(&timer, || {})?;
    /// assert!(flusher.finish());
    /// assert!(flusher.wait());
    /// assert_eq!(flusher.stats().steps, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish(&self) -> bool {
        self.owner.chain.tell(Order::Finish)
    }

    /// Blocks until it is closed and no step goes on; nobody has to have closed it. Called from a
    /// step of its own, it returns false at once instead of waiting for itself.
    ///
    /// Not for async code: a step that is a future may need the thread. Await
    /// [`ended`](Self::ended).
    pub fn wait(&self) -> bool {
        self.wait_for(Duration::MAX)
    }

    /// Like [`wait`](Self::wait), for `patience` of real time at most. Whether it has ended.
    pub fn wait_for(&self, patience: Duration) -> bool {
        self.owner.chain.wait(patience)
    }

    /// The same for async code. A step that waits for it waits for itself.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Worker;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let worker = Worker::on_demand().start(&timer, || {})?;
    /// worker.finish();
    /// worker.ended().await;
    /// assert_eq!(worker.stats().steps, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + 'static {
        self.owner.chain.over().stopped()
    }

    /// Whether it has ended and no step goes on.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.owner.chain.over().is_stopped()
    }

    /// Whether a step goes on.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.owner.chain.look(Turns::is_stepping)
    }

    /// Whether it is suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.owner.chain.look(Turns::is_suspended)
    }

    /// When the next step is due, if nobody wakes the worker. `None` while one goes on or is on
    /// its way to the executor, in a suspension, and if it waits for a wake-up.
    #[must_use]
    pub fn next_step(&self) -> Option<Instant> {
        self.owner.chain.look(Turns::next_step)
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        self.owner.chain.look(Turns::stats)
    }

    /// Ties it to a scope: dropping the guard closes it.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Worker;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let second = Duration::from_secs(1);
    /// let worker = Worker::every(second).suspended().start(host.timer(), || {})?;
    /// let other = worker.clone();
    /// let guard = worker.close_on_drop();
    /// host.advance(second);
    /// assert!(guard.resume());
    /// host.advance(Duration::ZERO);
    /// assert_eq!(guard.stats().steps, 1);
    /// drop(guard);
    /// assert!(other.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close_on_drop(self) -> CancelGuard<Self> {
        CancelGuard::new(self, Self::close)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("next_step", &self.next_step())
            .field("is_running", &self.is_running())
            .field("is_suspended", &self.is_suspended())
            .field("is_over", &self.is_over())
            .field("stats", &self.stats())
            .finish()
    }
}
