//! Tasks that run again and again.

mod beat;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use self::beat::{Beat, Cancel, Rhythm, Rules};
use super::chain::{Calls, CancelGuard, Chain, Futures, Hears, Perform};
use super::start::{RunEnd, StartError, is_share, times};
use countwheel::{Instant, MissedTicks, Timer};
use countwheel_time::Random;

/// A task that runs again and again, at a fixed rate or with a fixed delay between. This is its
/// handle.
///
/// Runs take place on the timer's executor, **one at a time**: the next is not due before the one
/// before has ended. What becomes of the deadlines that come meanwhile says [`MissedTicks`]. A run
/// that panics is counted, and the next comes all the same, unless
/// [told otherwise](PeriodicBuilder::end_on_panic); the same goes for one that the executor has
/// dropped. Nothing but its end ends it:
///
/// - [`cancel`](Self::cancel), after which no run begins any more;
/// - a run that returns [`RunEnd::Break`] (or [`ControlFlow::Break`](std::ops::ControlFlow)), or
///   as many runs as it [may have](PeriodicBuilder::max_runs);
/// - the end of its timer: no run begins once that is closed. One that waits for the executor just
///   then is among the tasks that [come back](countwheel::Stopped::unfired); whoever runs it has had the
///   last.
///
/// Clones are the same handle. Dropping them all changes nothing: the task goes on, but does not
/// keep its timer alive. ([`cancel_on_drop`](Self::cancel_on_drop) makes a guard that ends it.)
/// Once it is started, its runs are not refused for lack of room
/// ([`max_pending`](countwheel::TimerBuilder::max_pending)).
///
/// A period costs two entries in the timer, one of them with a box. Runs are due at deadlines,
/// never early, and as late as any task is: [`PeriodicStats::lateness_max`].
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Periodic;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let (sender, received) = mpsc::channel();
/// let mut number = 0;
/// let heartbeat = Periodic::at_fixed_rate(10 * second)
///     .first_delay(second)
///     .start(host.timer(), move || {
///         number += 1;
///         sender.send(number).unwrap();
///     })?;
///
/// host.advance(25 * second);
/// assert_eq!(received.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
/// assert_eq!(heartbeat.next_run(), Some(host.timer().now() + 6 * second));
/// assert!(heartbeat.cancel(), "no run begins from here on");
/// assert!(heartbeat.is_over() && !heartbeat.cancel());
/// assert_eq!(host.advance(100 * second), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Periodic {
    chain: Arc<Chain<Beat>>,
}

/// The options of a [`Periodic`] task. Made by [`Periodic::at_fixed_rate`] and
/// [`Periodic::with_fixed_delay`].
///
/// ```
/// use countwheel::{ManualHost, MissedTicks};
/// use countwheel_patterns::Periodic;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let clock = host.clock().clone();
/// let second = Duration::from_secs(1);
/// let mut runs = 0;
/// let slow_once = Periodic::at_fixed_rate(10 * second)
///     .first_delay(Duration::ZERO)
///     .missed_ticks(MissedTicks::Skip)
///     .max_runs(3)
///     .start(host.timer(), move || {
///         runs += 1;
///         clock.advance(if runs == 1 { 25 * second } else { second });
///     })?;
///
/// host.advance(Duration::ZERO);
/// let at = |seconds| Some(countwheel::Instant::ZERO + seconds * second);
/// assert_eq!(slow_once.next_run(), at(30), "those of 10 and 20 came during the run");
/// assert_eq!(slow_once.stats().skipped, 2);
/// host.advance(20 * second);
/// assert!(slow_once.is_over(), "three runs were all it may have");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before it is started"]
pub struct PeriodicBuilder {
    rhythm: Rhythm,
    period: Duration,
    first_delay: Option<Duration>,
    jitter: f64,
    max_runs: u64,
    ends_on_panic: bool,
    seed: Option<u64>,
}

/// What a [`Periodic`] task has done so far.
///
/// At a fixed rate, `runs + skipped + lost` is how many deadlines have gone by, exactly, that of
/// the next run not included (and of one that is on its way to the executor).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Periodic;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let poll = Periodic::at_fixed_rate(second).start(host.timer(), || Err("no answer"))?;
/// host.advance(2 * second);
/// host.clock().advance(2 * second + second / 2); // the machine stalls
/// host.run_due();
///
/// let stats = poll.stats();
/// assert_eq!((stats.runs, stats.failed, stats.skipped), (3, 3, 1));
/// assert_eq!(stats.lateness_max, second + second / 2);
/// assert_eq!(stats.lateness_total, stats.lateness_max);
/// assert_eq!((stats.panicked, stats.dropped, stats.lost), (0, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PeriodicStats {
    /// Runs that have begun, one that goes on included.
    pub runs: u64,
    /// Of those, how many said that they had failed.
    pub failed: u64,
    /// Of those, how many panicked.
    pub panicked: u64,
    /// Of those, how many were futures that were dropped before their end, because the timer
    /// stopped.
    pub dropped: u64,
    /// Deadlines of the rhythm that were left out: see [`MissedTicks`].
    pub skipped: u64,
    /// Runs that the executor took and dropped, or the timer handed back because of its
    /// [`Overload`](countwheel::Overload) and somebody dropped. (As long as somebody has such a run, it
    /// may still begin, and no other does.)
    pub lost: u64,
    /// The longest time from the deadline of a run (jitter included) to its beginning.
    pub lateness_max: Duration,
    /// The sum of those times; divided by `runs` it is the mean.
    pub lateness_total: Duration,
}

impl Periodic {
    /// A run each `period`, however long the runs take. The deadlines are whole periods after
    /// the first, as long as none is missed.
    ///
    /// (Java: `scheduleAtFixedRate`, but no burst after a stall unless asked for.)
    pub fn at_fixed_rate(period: Duration) -> PeriodicBuilder {
        PeriodicBuilder::new(Rhythm::Rate(MissedTicks::Skip), period)
    }

    /// A run each time when `delay` has passed since the end of the one before. For what must
    /// have a pause, and for retries.
    ///
    /// (Java: `scheduleWithFixedDelay`.)
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Periodic;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let (clock, second) = (host.clock().clone(), Duration::from_secs(1));
    /// let sweep = Periodic::with_fixed_delay(10 * second)
    ///     .start(host.timer(), move || clock.advance(7 * second))?;
    /// host.advance(10 * second);
    /// assert_eq!(sweep.next_run(), Some(countwheel::Instant::ZERO + 27 * second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_fixed_delay(delay: Duration) -> PeriodicBuilder {
        PeriodicBuilder::new(Rhythm::Delay, delay)
    }

    /// Ends it: once this has returned, no run begins any more. One that goes on is neither
    /// interrupted nor waited for; [`wait`](Self::wait) does the latter. False if none was going to
    /// begin anyway.
    ///
    /// From any thread, and from the run itself, which is then the last. O(1). What the function
    /// owns is dropped at once, or at the end of the run that goes on.
    pub fn cancel(&self) -> bool {
        self.chain.tell(Cancel)
    }

    /// Blocks until it has ended and no run goes on; nobody has to have cancelled it. Called from
    /// a run of its own, it returns false at once instead of waiting for itself.
    ///
    /// Not for async code: a run that is a future may need the thread. Await
    /// [`ended`](Self::ended).
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Periodic;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let millisecond = Duration::from_millis(1);
    /// let thrice = Periodic::at_fixed_rate(millisecond).max_runs(3).start(&timer, || {})?;
    /// assert!(thrice.wait());
    /// assert_eq!(thrice.stats().runs, 3);
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
    /// use countwheel_patterns::Periodic;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let builder = Periodic::at_fixed_rate(Duration::from_millis(1)).max_runs(2);
    /// let twice = builder.start(&timer, || {})?;
    /// twice.ended().await;
    /// assert_eq!(twice.stats().runs, 2);
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

    /// Whether a run goes on.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.chain.look(Beat::is_running)
    }

    /// When the next run is due. `None` while one goes on or is on its way to the executor, and
    /// after the end.
    #[must_use]
    pub fn next_run(&self) -> Option<Instant> {
        self.chain.look(Beat::next_run)
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> PeriodicStats {
        self.chain.look(Beat::stats)
    }

    /// Ties it to a scope: dropping the guard cancels it.
    pub fn cancel_on_drop(self) -> CancelGuard<Self> {
        CancelGuard::new(self, Self::cancel)
    }
}

impl PeriodicBuilder {
    fn new(rhythm: Rhythm, period: Duration) -> Self {
        Self {
            rhythm,
            period,
            first_delay: None,
            jitter: 0.0,
            max_runs: u64::MAX,
            ends_on_panic: false,
            seed: None,
        }
    }

    /// How long from the start to the first run: one period (or delay) unless told otherwise.
    /// [`Duration::ZERO`] runs it at once.
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = Some(delay);
        self
    }

    /// What becomes of the deadlines that are missed, because the machine stalled, the executor
    /// had no room or a run took long: [`MissedTicks::Skip`] unless told otherwise. No effect
    /// with a fixed delay, which misses none.
    ///
    /// With a period of 10 s and a run that begins in time, in second 20, and takes until second
    /// 45, the next ones begin in second
    ///
    /// | | | | |
    /// |---|---|---|---|
    /// | `Burst` | 45 (that of 30) | 45 (that of 40) | 50 |
    /// | `Delay` | 45 (that of 30) | 55 | 65 |
    /// | `Skip`  | 50 | 60 | 70 |
    ///
    /// After a stall it is as with an [`Interval`](countwheel::Interval). `Delay` keeps the starts a
    /// period apart (5 ms less at most); for a pause after each *end*, take
    /// [`Periodic::with_fixed_delay`].
    pub fn missed_ticks(mut self, missed: MissedTicks) -> Self {
        if let Rhythm::Rate(rule) = &mut self.rhythm {
            *rule = missed;
        }
        self
    }

    /// Each run is due later than the rhythm says by up to this share of the period (0 to 1),
    /// by chance, the first included; the rhythm itself stays. So many that were started together
    /// do not run together. None unless told otherwise.
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// It ends after this many runs: never unless told otherwise.
    pub fn max_runs(mut self, runs: u64) -> Self {
        self.max_runs = runs;
        self
    }

    /// A run that panics is the last. Unless told so, panics are only counted.
    pub fn end_on_panic(mut self) -> Self {
        self.ends_on_panic = true;
        self
    }

    /// The same seed, the same jitter: for tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Runs `run` on the executor of `timer`, each time anew.
    ///
    /// # Errors
    /// [`StartError::Invalid`] if the period or the number of runs is zero, or the jitter is not
    /// between 0 and 1; else as when a task is [scheduled](Timer::schedule). All give `run` back.
    pub fn start<F, R>(self, timer: &Timer, run: F) -> Result<Periodic, StartError<F>>
    where
        F: FnMut() -> R + Send + 'static,
        R: Into<RunEnd>,
    {
        if let Some(problem) = self.problem() {
            return Err(StartError::Invalid { work: run, problem });
        }
        let calls = Calls::new(run);
        self.file(timer, Arc::clone(&calls) as _)
            .map_err(|error| StartError::new(error, calls, Calls::into_inner))
    }

    /// Like [`start`](Self::start), with a future for each run. It is polled on the timer's
    /// executor, one task a poll, and needs no runtime; what it waits for may: see
    /// [`Timer::require_runtime`]. A run ends when its
    /// future does. A future that the timer's stop leaves without hope is dropped.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Periodic;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let naps = timer.clone();
    /// let millisecond = Duration::from_millis(1);
    /// let poll = Periodic::at_fixed_rate(2 * millisecond).max_runs(2).start_async(&timer, move || {
    ///     let nap = naps.sleep(millisecond);
    ///     async move { nap.await }
    /// })?;
    /// assert!(poll.wait());
    /// assert_eq!(poll.stats().failed, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_async<F, A>(self, timer: &Timer, run: F) -> Result<Periodic, StartError<F>>
    where
        F: FnMut() -> A + Send + 'static,
        A: Future<Output: Into<RunEnd>> + Send + 'static,
    {
        if let Some(problem) = self.problem() {
            return Err(StartError::Invalid { work: run, problem });
        }
        let futures = Futures::new(run);
        self.file(timer, Arc::clone(&futures) as _)
            .map_err(|error| StartError::new(error, futures, Futures::into_inner))
    }

    fn problem(&self) -> Option<&'static str> {
        if self.period.is_zero() {
            Some("the period is zero")
        } else if self.max_runs == 0 {
            Some("no run is allowed")
        } else if !is_share(self.jitter) {
            Some("the jitter is not between 0 and 1")
        } else {
            None
        }
    }

    fn file(
        self,
        timer: &Timer,
        work: Arc<dyn Perform<Beat>>,
    ) -> Result<Periodic, countwheel::ScheduleError> {
        let rules = Rules {
            rhythm: self.rhythm,
            period: self.period,
            jitter: times(self.period, self.jitter),
            max_runs: self.max_runs,
            ends_on_panic: self.ends_on_panic,
        };
        let now = timer.now();
        let first = now + self.first_delay.unwrap_or(self.period);
        let random = self.seed.map_or_else(Random::unseeded, Random::new);
        let beat = Beat::new(rules, random, first);
        let chain = Chain::start(timer, now, beat, work, Hears::nobody())?;
        Ok(Periodic { chain })
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("next_run", &self.next_run())
            .field("is_running", &self.is_running())
            .field("is_over", &self.is_over())
            .field("stats", &self.stats())
            .finish()
    }
}
