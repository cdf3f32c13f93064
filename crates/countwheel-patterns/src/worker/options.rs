//! The options of workers.

use std::future::Future;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::turns::{Rules, Turns};
use super::{Step, Worker, WorkerOwner};
use crate::chain::{Calls, Chain, Futures, Hears, Perform};
use crate::start::StartError;
use crate::stop_signal::StopSignal;
use countwheel::{ScheduleError, Timer};

/// The options of a [`Worker`]. Made by [`Worker::every`] and [`Worker::on_demand`].
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{StopSignal, Worker};
/// use std::time::Duration;
///
/// // Eureka's replicator: every 30 s, at once when something has changed, but not twice in 15 s.
/// let mut host = ManualHost::new();
/// let (second, signal) = (Duration::from_secs(1), StopSignal::new());
/// let replicator = Worker::every(30 * second)
///     .first_delay(40 * second)
///     .min_gap(15 * second)
///     .pause_after_failure(5 * second)
///     .stop_signal(signal.clone())
///     .start(host.timer(), || {})?;
///
/// host.advance(20 * second);
/// replicator.wake(); // a step now, and the regular one 30 s later
/// host.advance(10 * second);
/// assert_eq!(replicator.stats().steps, 1);
/// replicator.wake(); // too soon: it comes when 15 s have passed
/// assert_eq!(replicator.next_step(), Some(host.timer().now() + 5 * second));
/// replicator.close();
/// assert!(signal.is_stopped());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before it is started"]
pub struct WorkerBuilder {
    rules: Rules,
    first_delay: Duration,
    is_suspended: bool,
    stop_signal: Option<StopSignal>,
}

impl WorkerBuilder {
    pub(super) fn new(wait: Duration, first_delay: Duration) -> Self {
        Self {
            rules: Rules {
                wait,
                min_gap: Duration::ZERO,
                burst: 1,
                wake_delay: Duration::ZERO,
                pause_after_failure: Duration::from_secs(1),
            },
            first_delay,
            is_suspended: false,
            stop_signal: None,
        }
    }

    /// How long from the start to the first step, unless the worker is woken: none unless told
    /// otherwise. (One on demand waits for the first wake-up.)
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// From the end of a step to the next it is at least this long, however often the worker is
    /// woken: none unless told otherwise. A wake-up that comes too soon is put off, not lost.
    pub fn min_gap(mut self, gap: Duration) -> Self {
        self.rules.min_gap = gap;
        self
    }

    /// Lets so many steps come one upon another before [`min_gap`](Self::min_gap) applies: a bucket
    /// that holds `steps` tokens, of which each step takes one, and to which one comes back in each
    /// gap. One unless told otherwise, which is a gap after each step. In the long run there is
    /// never more than one step for each gap.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Worker;
    /// use std::num::NonZeroU32;
    /// use std::time::Duration;
    ///
    /// // Eureka's replicator lets two through at once, and then one each 15 s.
    /// let mut host = ManualHost::new();
    /// let second = Duration::from_secs(1);
    /// let replicator = Worker::on_demand()
    ///     .min_gap(15 * second)
    ///     .burst(NonZeroU32::new(2).unwrap())
    ///     .start(host.timer(), || ())?;
    /// let wake = |host: &mut ManualHost| {
    ///     replicator.wake();
    ///     host.advance(second);
    ///     replicator.stats().steps
    /// };
    /// assert_eq!([wake(&mut host), wake(&mut host), wake(&mut host)], [1, 2, 2]);
    /// host.advance(15 * second);
    /// assert_eq!(replicator.stats().steps, 3, "it was put off");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn burst(mut self, steps: NonZeroU32) -> Self {
        self.rules.burst = steps.get();
        self
    }

    /// A wake-up asks for a step after this long, not at once; those that follow it do not
    /// postpone the step. So one step does what has gathered meanwhile.
    pub fn wake_delay(mut self, delay: Duration) -> Self {
        self.rules.wake_delay = delay;
        self
    }

    /// How long it pauses after a step that panicked, failed or was lost: a second unless told
    /// otherwise. Then it steps again, also one that would wait for a wake-up, since that of the
    /// step before has not been answered.
    pub fn pause_after_failure(mut self, pause: Duration) -> Self {
        self.rules.pause_after_failure = pause;
        self
    }

    /// It begins suspended.
    pub fn suspended(mut self) -> Self {
        self.is_suspended = true;
        self
    }

    /// This is given when the worker closes, ends or loses its timer, so that a step that takes
    /// long may look at it.
    pub fn stop_signal(mut self, signal: StopSignal) -> Self {
        self.stop_signal = Some(signal);
        self
    }

    /// Runs `step` on the executor of `timer`, each time anew.
    ///
    /// # Errors
    /// As when a task is [scheduled](Timer::schedule). All give `step` back.
    pub fn start<F, R>(self, timer: &Timer, step: F) -> Result<Worker, StartError<F>>
    where
        F: FnMut() -> R + Send + 'static,
        R: Into<Step>,
    {
        let calls = Calls::new(step);
        self.file(timer, Arc::clone(&calls) as _)
            .map_err(|error| StartError::new(error, calls, Calls::into_inner))
    }

    /// Like [`start`](Self::start), with a future for each step. It is polled on the timer's
    /// executor, one task a poll, and needs no runtime; what it waits for may: see
    /// [`Timer::require_runtime`]. Closing lets it end;
    /// what the timer's stop leaves without hope is dropped.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_async<F, A>(self, timer: &Timer, step: F) -> Result<Worker, StartError<F>>
    where
        F: FnMut() -> A + Send + 'static,
        A: Future<Output: Into<Step>> + Send + 'static,
    {
        let futures = Futures::new(step);
        self.file(timer, Arc::clone(&futures) as _)
            .map_err(|error| StartError::new(error, futures, Futures::into_inner))
    }

    fn file(self, timer: &Timer, work: Arc<dyn Perform<Turns>>) -> Result<Worker, ScheduleError> {
        let now = timer.now();
        let turns = Turns::new(self.rules, self.is_suspended, now + self.first_delay);
        let hears = Hears {
            listener: None,
            ending: self.stop_signal,
        };
        let chain = Chain::start(timer, now, turns, work, hears)?;
        let owner = Arc::new(WorkerOwner { chain });
        Ok(Worker { owner })
    }
}
