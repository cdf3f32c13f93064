//! Periodic tasks under supervision: a timeout, and longer pauses while there is trouble.

mod options;
mod watch;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use self::watch::{Cancel, Watch};
use super::chain::{CancelGuard, Chain, Perform, Running};
use super::start::RunEnd;
use super::stop_signal::StopSignal;
use countwheel::Instant;

pub use self::options::{AfterTrouble, SupervisedBuilder};

/// A task that runs again and again under supervision: each run has a timeout, and as long as
/// runs time out, the pause between them grows. This is its handle.
///
/// | what happens to a run | counter | the delay to the next |
/// |---|---|---|
/// | it ends in time | [`success`](SupervisedStats::success) | the period |
/// | it goes on longer than the timeout | [`timeouts`](SupervisedStats::timeouts) | grown, up to the maximum |
/// | it cannot begin: those before go on still, or the executor has no room for as long as the timeout, or drops it | [`rejected`](SupervisedStats::rejected) | as it is, or as [told](SupervisedBuilder::on_rejection) |
/// | it returns an error, or panics | [`failed`](SupervisedStats::failed) | as it is, or as [told](SupervisedBuilder::on_failure) |
///
/// The delay counts from that moment. The state machine is that of `TimedSupervisorTask` in
/// Eureka, without what is wrong there: nobody waits for a timeout on a thread; period, timeout
/// and maximum are three things; cancelling ends it.
///
/// At its timeout a run is **given up**. A function is told by its [`StopSignal`], and may go on
/// nevertheless, since nothing stops a thread from the outside; while it does, the next runs are
/// rejected, so that never more than one run goes on, unless
/// [more are asked for](SupervisedBuilder::concurrency). A future is dropped. What such a run
/// still returns counts as [`late`](SupervisedStats::late) and as nothing else.
///
/// Runs take place on the timer's executor. Once one of them is due it has as long as the timeout
/// to get a thread, and then the whole timeout to run.
///
/// It ends with [`cancel`](Self::cancel), with a run that returns [`RunEnd::Break`], or with its
/// timer. Clones are the same handle, and dropping them all changes nothing; it does not keep its
/// timer alive.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Supervised;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let is_down = Arc::new(AtomicBool::new(true));
/// let down = Arc::clone(&is_down);
/// let poll = Supervised::every(10 * second)
///     .timeout(2 * second)
///     .max_delay(60 * second)
///     .start_async(host.timer(), move || {
///         let down = down.load(Ordering::Relaxed);
///         async move {
///             if down {
///                 std::future::pending::<()>().await; // no answer
///             }
///         }
///     })?;
///
/// host.advance(300 * second);
/// assert_eq!(poll.current_delay(), 60 * second, "20 s, 40 s, and from then on 60 s");
/// is_down.store(false, Ordering::Relaxed);
/// host.advance(30 * second);
/// assert_eq!(poll.current_delay(), 10 * second, "it recovers at once");
/// let stats = poll.stats();
/// assert_eq!((stats.success, stats.timeouts, stats.rejected, stats.failed), (1, 6, 0, 0));
///
/// assert!(poll.cancel());
/// assert!(poll.is_over());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Supervised {
    chain: Arc<Chain<Watch>>,
}

/// What a [`Supervised`] task has done so far.
///
/// `due` equals `success + timeouts + rejected + failed + abandoned + in_flight`, exactly and at
/// any moment.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Supervised;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let mut answers = [Ok(()), Err("refused"), Ok(())].into_iter();
/// let answers = std::sync::Mutex::new(answers);
/// let poll = Supervised::every(second)
///     .start(host.timer(), move |_| answers.lock().unwrap().next().expect("three runs"))?;
/// host.advance(4 * second);
/// let stats = poll.stats();
/// assert_eq!((stats.due, stats.success, stats.failed, stats.panicked), (4, 2, 2, 1));
/// assert_eq!((stats.timeouts, stats.rejected, stats.abandoned, stats.in_flight), (0, 0, 0, 0));
/// assert_eq!((stats.overdue, stats.late), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SupervisedStats {
    /// Runs that have come due.
    pub due: u64,
    /// Runs that ended well and in time.
    pub success: u64,
    /// Runs that went on longer than the timeout.
    pub timeouts: u64,
    /// Runs that could not begin.
    pub rejected: u64,
    /// Runs that returned an error in time, or panicked.
    pub failed: u64,
    /// Runs that were queued or went on when the task was cancelled or the timer stopped.
    pub abandoned: u64,
    /// Whether a run is queued or goes on, within its timeout: one or zero.
    pub in_flight: u64,
    /// Of those that failed, how many panicked.
    pub panicked: u64,
    /// Runs that were given up, be it for their timeout or with the task, and still go on.
    pub overdue: u64,
    /// Runs that were given up and ended later, in whatever way.
    pub late: u64,
}

/// What has become of a run of a [`Supervised`] task: see [`SupervisedBuilder::on_event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SupervisedEvent {
    /// What.
    pub outcome: SupervisedOutcome,
    /// The delay to the next run, jitter not included.
    pub delay: Duration,
}

/// How a run of a [`Supervised`] task came out.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Supervised, SupervisedEvent, SupervisedOutcome};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, events) = mpsc::channel();
/// let second = Duration::from_secs(1);
/// Supervised::every(second)
///     .on_event(move |event: SupervisedEvent| sender.send(event).unwrap())
///     .start_async(host.timer(), std::future::pending::<()>)?;
/// host.advance(2 * second);
/// let timed_out = events.try_iter().find(|event| event.outcome == SupervisedOutcome::TimedOut);
/// assert_eq!(timed_out.unwrap().delay, 2 * second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SupervisedOutcome {
    /// It ended well, in time.
    Success,
    /// It was given up, since it took too long.
    TimedOut,
    /// Rejected: as many runs that were given up go on as may go on at all.
    Busy,
    /// Rejected: the executor had no room for as long as the timeout, or dropped it.
    NoRoom,
    /// It returned an error.
    Failed,
    /// It panicked.
    Panicked,
    /// Its future was dropped by the end of the timer.
    Abandoned,
    /// It had been given up before, and has ended now. The delay is not changed by that.
    Late,
}

impl Supervised {
    /// A run each time when `period` has passed since the end of the one before, as long as all
    /// is well.
    ///
    /// Unless told otherwise, a run may take as long as the period, the delay doubles up to ten
    /// times the period, and the first run comes after one period.
    pub fn every(period: Duration) -> SupervisedBuilder {
        SupervisedBuilder::new(period)
    }

    /// As Eureka's `TimedSupervisorTask` and SOFARegistry's of the same name are made: `timeout`
    /// is the timeout, the period and the first delay, all in one; the delay doubles up to
    /// `timeout * bound`. Eureka's own numbers are 30 s and 10.
    ///
    /// A bound of 0, which is a loop without a pause there, is the same as 1: no growth.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Supervised;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let heartbeat = Supervised::eureka(Duration::from_secs(30), 10)
    ///     .start_async(host.timer(), std::future::pending::<()>)?;
    /// host.advance(Duration::from_secs(3600));
    /// assert_eq!(heartbeat.current_delay(), Duration::from_secs(300));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn eureka(timeout: Duration, bound: u32) -> SupervisedBuilder {
        Self::every(timeout).max_delay(timeout.saturating_mul(bound.max(1)))
    }

    /// Ends it: once this has returned, no run begins any more, and one that goes on has been told
    /// to stop (or dropped, if it is a future), but is not waited for; [`wait`](Self::wait) does
    /// that. False if it has ended already, or been cancelled.
    ///
    /// From any thread, and from the run itself. What the task owns is dropped when no run goes
    /// on any more.
    pub fn cancel(&self) -> bool {
        self.chain.tell(Cancel)
    }

    /// Blocks until it has ended and no run goes on, those that were given up included; nobody
    /// has to have cancelled it. Called from a run of its own, it returns false at once instead of
    /// waiting for itself.
    ///
    /// Not for async code: a run that is a future may need the thread. Await
    /// [`ended`](Self::ended).
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Supervised;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let hour = Duration::from_secs(3600);
    /// let watcher = Supervised::every(hour)
    ///     .first_delay(Duration::ZERO)
    ///     .start(&timer, move |stop| drop(stop.wait_for(hour)))?;
    /// while !watcher.is_running() {
    ///     std::thread::yield_now();
    /// }
    /// watcher.cancel();
    /// assert!(watcher.wait(), "it was told to stop, and did");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self) -> bool {
        self.wait_for(Duration::MAX)
    }

    /// Like [`wait`](Self::wait), for `patience` of real time at most. Whether it has ended.
    pub fn wait_for(&self, patience: Duration) -> bool {
        self.chain.wait(patience)
    }

    /// The same for async code. A run that waits for it waits for itself.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Supervised;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let minute = Duration::from_secs(60);
    /// let watcher = Supervised::every(minute)
    ///     .first_delay(Duration::ZERO)
    ///     .start_async(&timer, std::future::pending::<()>)?;
    /// watcher.cancel();
    /// watcher.ended().await; // the future has been dropped
    /// assert!(watcher.is_over());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + 'static {
        self.chain.over().stopped()
    }

    /// Whether it has ended and no run goes on.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.chain.over().is_stopped()
    }

    /// Whether a run goes on, be it one that was given up.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.chain.look(Watch::is_running)
    }

    /// The delay as it is now: the period, or more while there is trouble. Jitter not included.
    #[must_use]
    pub fn current_delay(&self) -> Duration {
        self.chain.look(Watch::delay)
    }

    /// When the next run is due. `None` while one is in flight, and after the end.
    #[must_use]
    pub fn next_run(&self) -> Option<Instant> {
        self.chain.look(Watch::next_run)
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> SupervisedStats {
        self.chain.look(Watch::stats)
    }

    /// Ties it to a scope: dropping the guard cancels it.
    pub fn cancel_on_drop(self) -> CancelGuard<Self> {
        CancelGuard::new(self, Self::cancel)
    }
}

/// A function that is told when to stop, and its name in logs. It may be in several runs.
struct Told<F>(F, &'static str);

/// A function whose futures are the runs, and its name in logs. Several may go on.
struct Dropped<F>(F, &'static str);

impl<F, R> Perform<Watch> for Told<F>
where
    F: Fn(StopSignal) -> R + Send + Sync + 'static,
    R: Into<RunEnd>,
{
    fn perform(self: Arc<Self>, run: Running<Watch>) {
        // A panic drops it before `run`, as a return does.
        let work = self;
        let end = (work.0)(run.signal()).into();
        drop(work);
        run.end(end);
    }

    fn name(&self) -> &'static str {
        self.1
    }
}

impl<F, A> Perform<Watch> for Dropped<F>
where
    F: Fn() -> A + Send + Sync + 'static,
    A: Future<Output: Into<RunEnd>> + Send + 'static,
{
    fn perform(self: Arc<Self>, run: Running<Watch>) {
        let work = self;
        let future = (work.0)();
        drop(work);
        run.go_on(future);
    }

    fn name(&self) -> &'static str {
        self.1
    }
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised")
            .field("next_run", &self.next_run())
            .field("current_delay", &self.current_delay())
            .field("is_running", &self.is_running())
            .field("is_over", &self.is_over())
            .field("stats", &self.stats())
            .finish()
    }
}
