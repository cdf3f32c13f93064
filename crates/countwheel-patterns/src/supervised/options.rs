//! The options of supervised tasks.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::watch::{Rules, Watch};
use super::{Dropped, Supervised, SupervisedEvent, Told};
use crate::StopSignal;
use crate::chain::{Chain, Hears, Listener, Perform};
use crate::start::{RunEnd, StartError, is_share};
use countwheel::{ScheduleError, Timer};
use countwheel_time::Random;

/// What becomes of the delay of a [`Supervised`](super::Supervised) task after a run that was
/// rejected or has failed.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{AfterTrouble, Supervised};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let delay_after = |host: &mut ManualHost, trouble| {
///     let poll = Supervised::every(second)
///         .on_failure(trouble)
///         .start(host.timer(), |_| Err("no route"))
///         .unwrap();
///     host.advance(second);
///     poll.current_delay()
/// };
/// assert_eq!(delay_after(&mut host, AfterTrouble::Keep), second);
/// assert_eq!(delay_after(&mut host, AfterTrouble::Grow), 2 * second);
/// assert_eq!(delay_after(&mut host, AfterTrouble::Reset), second);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AfterTrouble {
    /// It stays as it is, grown or not: as in Eureka.
    #[default]
    Keep,
    /// It grows as after a timeout: for those who do not want to hammer what refuses them.
    Grow,
    /// It is the period again: an answer is an answer.
    Reset,
}

/// The options of a [`Supervised`](super::Supervised) task. Made by
/// [`Supervised::every`](super::Supervised::every) and
/// [`Supervised::eureka`](super::Supervised::eureka).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{AfterTrouble, StartError, Supervised};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let renewal = Supervised::every(30 * second)
///     .first_delay(Duration::ZERO)
///     .timeout(5 * second)
///     .max_delay(300 * second)
///     .growth(1.5)
///     .jitter(0.1)
///     .on_rejection(AfterTrouble::Grow)
///     .on_failure(AfterTrouble::Reset)
///     .concurrency(2)
///     .seed(7);
/// assert!(renewal.clone().start(host.timer(), |_stop| ()).is_ok());
///
/// let refused = renewal.growth(0.5).start(host.timer(), |_stop| ()).unwrap_err();
/// assert!(matches!(refused, StartError::Invalid { problem: "the delay shrinks", .. }));
/// ```
#[derive(Clone)]
#[must_use = "nothing runs before it is started"]
pub struct SupervisedBuilder {
    period: Duration,
    timeout: Duration,
    max_delay: Duration,
    first_delay: Duration,
    growth: f64,
    jitter: f64,
    concurrency: usize,
    on_rejection: AfterTrouble,
    on_failure: AfterTrouble,
    on_event: Option<Listener<SupervisedEvent>>,
    name: Option<&'static str>,
    seed: Option<u64>,
}

impl SupervisedBuilder {
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            timeout: period,
            max_delay: period.saturating_mul(10),
            first_delay: period,
            growth: 2.0,
            jitter: 0.0,
            concurrency: 1,
            on_rejection: AfterTrouble::Keep,
            on_failure: AfterTrouble::Keep,
            on_event: None,
            name: None,
            seed: None,
        }
    }

    /// How long a run may take before it is given up, and how long it may wait for a thread
    /// before: the period unless told otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What the delay does not grow beyond: ten periods unless told otherwise. If that is shorter
    /// than the period, it is the period, and nothing grows.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = delay;
        self
    }

    /// By what the delay is multiplied when it grows: 2 unless told otherwise. Not below 1.
    pub fn growth(mut self, factor: f64) -> Self {
        self.growth = factor;
        self
    }

    /// How long from the start to the first run: one period unless told otherwise.
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// Each delay is longer by up to this share of it (0 to 1), by chance. None unless told
    /// otherwise.
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// How many runs may go on at a time: one unless told otherwise. More than one go on only
    /// after timeouts, when functions do not stop although they were told to.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.concurrency = runs;
        self
    }

    /// What becomes of the delay when a run is rejected: [`AfterTrouble::Keep`] unless told
    /// otherwise.
    pub fn on_rejection(mut self, trouble: AfterTrouble) -> Self {
        self.on_rejection = trouble;
        self
    }

    /// What becomes of the delay when a run fails: [`AfterTrouble::Keep`] unless told otherwise.
    pub fn on_failure(mut self, trouble: AfterTrouble) -> Self {
        self.on_failure = trouble;
        self
    }

    /// Calls `listener` with what became of each run: at its end on the thread of the run,
    /// else as a task of its own on the executor. So two calls may overlap, and a panic of it is
    /// logged and goes no further. While the executor has no room, the calls wait in the timer, one
    /// for each event. For logs and metrics; the counters are in
    /// [`SupervisedStats`](super::SupervisedStats) anyway.
    pub fn on_event(mut self, listener: impl Fn(SupervisedEvent) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(listener));
        self
    }

    /// What logs call the task when a run panics or is slow: the type of its function unless told
    /// otherwise, which is of little help with two closures of one function.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Supervised;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let renewal = Supervised::eureka(Duration::from_secs(30), 10)
    ///     .name("heartbeat")
    ///     .start(host.timer(), |_stop| println!("renewed"))?;
    /// assert_eq!(renewal.current_delay(), Duration::from_secs(30));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// The same seed, the same jitter: for tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Runs `work` on the executor of `timer`, each time anew. `work` gets the signal that tells it
    /// to stop, at its timeout and when the task ends.
    ///
    /// # Errors
    /// [`StartError::Invalid`] if period, timeout or concurrency is zero, the growth below 1, or
    /// the jitter not between 0 and 1; else as when a task is [scheduled](Timer::schedule). All
    /// give `work` back.
    pub fn start<F, R>(self, timer: &Timer, work: F) -> Result<Supervised, StartError<F>>
    where
        F: Fn(StopSignal) -> R + Send + Sync + 'static,
        R: Into<RunEnd>,
    {
        if let Some(problem) = self.problem() {
            return Err(StartError::Invalid { work, problem });
        }
        let told = Arc::new(Told(work, self.name.unwrap_or(type_name::<F>())));
        self.file(timer, Arc::clone(&told) as _)
            .map_err(|error| StartError::new(error, told, |told| told.0))
    }

    /// Like [`start`](Self::start), with a future for each run. It is polled on the timer's
    /// executor, one task a poll, and needs no runtime; what it waits for may: see
    /// [`Timer::require_runtime`]. It is dropped at
    /// its timeout and when the task ends, on the executor if there is room.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_async<F, A>(self, timer: &Timer, work: F) -> Result<Supervised, StartError<F>>
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output: Into<RunEnd>> + Send + 'static,
    {
        if let Some(problem) = self.problem() {
            return Err(StartError::Invalid { work, problem });
        }
        let dropped = Arc::new(Dropped(work, self.name.unwrap_or(type_name::<F>())));
        self.file(timer, Arc::clone(&dropped) as _)
            .map_err(|error| StartError::new(error, dropped, |dropped| dropped.0))
    }

    fn problem(&self) -> Option<&'static str> {
        if self.period.is_zero() {
            Some("the period is zero")
        } else if self.timeout.is_zero() {
            Some("the timeout is zero")
        } else if self.concurrency == 0 {
            Some("no run is allowed")
        } else if self.growth.is_nan() || self.growth < 1.0 {
            Some("the delay shrinks")
        } else if !is_share(self.jitter) {
            Some("the jitter is not between 0 and 1")
        } else {
            None
        }
    }

    fn file(
        self,
        timer: &Timer,
        work: Arc<dyn Perform<Watch>>,
    ) -> Result<Supervised, ScheduleError> {
        let rules = Rules {
            period: self.period,
            timeout: self.timeout,
            max_delay: self.max_delay.max(self.period),
            growth: self.growth,
            jitter: self.jitter,
            concurrency: self.concurrency,
            on_rejection: self.on_rejection,
            on_failure: self.on_failure,
        };
        let now = timer.now();
        let random = self.seed.map_or_else(Random::unseeded, Random::new);
        let watch = Watch::new(rules, random, now + self.first_delay);
        let hears = Hears {
            listener: self.on_event,
            ending: None,
        };
        let chain = Chain::start(timer, now, watch, work, hears)?;
        Ok(Supervised { chain })
    }
}

impl fmt::Debug for SupervisedBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupervisedBuilder")
            .field("name", &self.name)
            .field("period", &self.period)
            .field("timeout", &self.timeout)
            .field("max_delay", &self.max_delay)
            .field("first_delay", &self.first_delay)
            .field("growth", &self.growth)
            .finish_non_exhaustive()
    }
}
