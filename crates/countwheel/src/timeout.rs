//! The handle of one scheduled task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::concurrent::{Fate, Shard};
use crate::task::Job;
use crate::timer::Rouse;
use crate::{Instant, TimerKey};

/// The handle of one scheduled task.
///
/// Dropping it does **not** cancel: schedule and forget is fine.
/// ([`cancel_on_drop`](Self::cancel_on_drop) makes a guard that does.) A handle does not keep its timer from
/// stopping either. To share one, put it into an [`Arc`].
///
/// ```
/// use countwheel::ManualHost;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let answer = host.timer().schedule(Duration::from_secs(3), || println!("no answer"))?;
/// host.advance(Duration::from_secs(2));
/// assert_eq!(answer.remaining(), Duration::from_secs(1));
/// assert!(answer.cancel(), "the answer came in time");
/// assert!(!answer.cancel(), "only one call cancels");
/// assert!(answer.is_cancelled() && !answer.is_expired());
/// assert_eq!(host.advance(Duration::from_secs(2)), 0);
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
pub struct Timeout {
    shard: Arc<Shard<Job>>,
    key: TimerKey,
    /// Nanoseconds.
    deadline: AtomicU64,
    cancelled: AtomicBool,
}

impl Timeout {
    #[inline]
    pub(crate) fn new(shard: Arc<Shard<Job>>, key: TimerKey, deadline: Instant) -> Self {
        Self {
            shard,
            key,
            deadline: AtomicU64::new(deadline.as_nanos()),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Takes the task back. True: it will never run, and has been dropped. False: it ran, is
    /// running, waits for an executor, was cancelled, or the timer has stopped.
    ///
    /// O(1), from any thread, and the task is freed at once. Never waits for a running task,
    /// so a task may cancel itself in vain, or one of the same tick in time.
    #[inline]
    pub fn cancel(&self) -> bool {
        let note = || self.cancelled.store(true, Ordering::Release);
        self.shard.cancel(self.key, note).is_some()
    }

    /// Moves the task to `delay` from now, be that sooner or later than before. False if it
    /// is not pending any more: then nothing happens.
    ///
    /// O(1), without an allocation. It counts as scheduled anew in the order of a tick.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let idle = host.timer().schedule(Duration::from_secs(60), || println!("idle"))?;
    /// host.advance(Duration::from_secs(59));
    /// assert!(idle.reschedule(Duration::from_secs(60)), "there was some traffic");
    /// assert_eq!(host.advance(Duration::from_secs(59)), 0);
    /// assert!(idle.reschedule(Duration::from_millis(1)), "or sooner");
    /// assert_eq!(host.advance(Duration::from_millis(1)), 1);
    /// assert!(!idle.reschedule(Duration::from_secs(60)), "it has fired");
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    pub fn reschedule(&self, delay: Duration) -> bool {
        let now = self.shard.hub().clock.now();
        self.move_to(now, now + delay)
    }

    /// Moves the task to another deadline. See [`reschedule`](Self::reschedule).
    pub fn reschedule_at(&self, deadline: Instant) -> bool {
        self.move_to(self.shard.hub().clock.now(), deadline)
    }

    /// Like [`reschedule`](Self::reschedule), for those who hold locks; `None` for false.
    pub(crate) fn reschedule_quietly(&self, delay: Duration) -> Option<Rouse> {
        let now = self.shard.hub().clock.now();
        self.move_quietly(now, now + delay)
    }

    /// Like [`reschedule_at`](Self::reschedule_at), for those who hold locks; `None` for false.
    pub(crate) fn reschedule_at_quietly(&self, deadline: Instant) -> Option<Rouse> {
        self.move_quietly(self.shard.hub().clock.now(), deadline)
    }

    fn move_quietly(&self, now: Instant, deadline: Instant) -> Option<Rouse> {
        let note = || self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
        let moved = self.shard.reschedule_quietly(now, self.key, deadline, note);
        moved.map(Rouse)
    }

    /// Like [`cancel`](Self::cancel), for those whose tasks must not run meanwhile.
    pub(crate) fn cancel_quietly(&self) -> Rouse {
        let note = || self.cancelled.store(true, Ordering::Release);
        let cancelled = self.shard.cancel_quietly(self.key, note);
        cancelled.map_or(Rouse::NO, |(_, wake)| Rouse(wake))
    }

    /// For what was done quietly: see [`Timer::rouse_if`](crate::Timer::rouse_if).
    pub(crate) fn rouse_if(&self, rouse: Rouse) {
        if rouse.0 {
            self.shard.hub().rouse();
        }
    }

    fn move_to(&self, now: Instant, deadline: Instant) -> bool {
        let note = || self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
        self.shard.reschedule(now, self.key, deadline, note)
    }

    /// Whether the task still waits for its deadline.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.shard.fate(self.key) == Fate::Pending
    }

    /// Whether the deadline was reached and the task was taken to run: it may still be
    /// running, or wait for an executor. Excludes [`is_cancelled`](Self::is_cancelled);
    /// neither is true of a task that is pending, or [was](Self::is_returned) when the timer
    /// stopped. (Unless it stopped with [`Stop::RunNow`](crate::Stop::RunNow), which takes all to
    /// run.)
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.shard.fate(self.key) == Fate::Gone && !self.is_cancelled()
    }

    /// Whether a call of [`cancel`](Self::cancel) returned true.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Whether a stop of the timer took the task out before its deadline was reached: it was given
    /// back in [`Stopped::unfired`](crate::Stopped::unfired), or dropped, if nobody wanted it.
    ///
    /// Of [`is_pending`](Self::is_pending), [`is_expired`](Self::is_expired),
    /// [`is_cancelled`](Self::is_cancelled) and this, exactly one is true. (A task that a stop
    /// gives back after its deadline, while it waited for an executor, has expired.)
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let flush = timer.schedule(Duration::from_secs(60), || println!("flush"))?;
    /// assert_eq!(timer.stop().unfired.len(), 1);
    /// assert!(flush.is_returned());
    /// assert!(!flush.is_pending() && !flush.is_expired() && !flush.is_cancelled());
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn is_returned(&self) -> bool {
        self.shard.fate(self.key) == Fate::Returned
    }

    /// The deadline that was asked for, not rounded.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Relaxed))
    }

    /// The time left until the deadline; zero once it has passed. It says nothing about
    /// whether the task is still pending.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline()
            .saturating_since(self.shard.hub().clock.now())
    }

    /// Ties the task to a scope: dropping the guard cancels it.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let timeout = host.timer().schedule(Duration::from_secs(3), || println!("no answer"))?;
    /// let guard = timeout.cancel_on_drop();
    /// assert!(guard.timeout().is_pending());
    /// drop(guard);
    /// assert_eq!(host.timer().stats().cancelled, 1);
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    #[must_use = "the guard cancels when it is dropped"]
    pub fn cancel_on_drop(self) -> TimeoutGuard {
        TimeoutGuard { timeout: self }
    }
}

/// As people know it from Netty: what remains, and what became of it.
impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("deadline", &self.deadline())
            .field("remaining", &self.remaining())
            .field("is_pending", &self.is_pending())
            .field("is_cancelled", &self.is_cancelled())
            .field("is_returned", &self.is_returned())
            .finish_non_exhaustive()
    }
}

/// Cancels its task when dropped. See [`Timeout::cancel_on_drop`].
#[derive(Debug)]
#[must_use = "the guard cancels when it is dropped"]
pub struct TimeoutGuard {
    timeout: Timeout,
}

impl TimeoutGuard {
    /// The handle.
    #[must_use]
    pub fn timeout(&self) -> &Timeout {
        &self.timeout
    }
}

impl Drop for TimeoutGuard {
    fn drop(&mut self) {
        self.timeout.cancel();
    }
}
