//! What runs later, and whose value somebody waits for.

use std::any::type_name;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::concurrent::Outcome;
use crate::spawned::spawn;
use countwheel::building::{Panicked, block_until, caught, schedule_named};
use countwheel::{ScheduleError, Timeout, Timer};

/// Something that was scheduled and has a value: a future of that value. Made by
/// [`TimerExt::schedule_with`](crate::TimerExt::schedule_with) and
/// [`TimerExt::schedule_async`](crate::TimerExt::schedule_async).
///
/// Await it, or block with [`join`](Self::join). Dropping it cancels nothing: schedule and forget is
/// fine.
///
/// # Panics
/// Polled after its end, it panics.
#[must_use = "the value goes nowhere"]
pub struct Scheduled<T> {
    timeout: Timeout,
    outcome: Arc<Outcome<Result<T, NoValue>>>,
}

/// Why something that was [scheduled](Scheduled) has no value.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{NoValue, TimerExt};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let cancelled = host.timer().schedule_with(second, || 42)?;
/// assert!(cancelled.timeout().cancel());
/// assert_eq!(cancelled.join(), Err(NoValue::NeverRan));
///
/// let lost = host.timer().schedule_with(second, || std::panic::resume_unwind(Box::new("oh")))?;
/// host.advance(second);
/// let lost: Result<(), _> = lost.join();
/// assert_eq!(lost.unwrap_err().to_string(), "the task panicked");
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoValue {
    /// It never came to its end: it was cancelled, or its timer stopped first.
    #[error("the task was cancelled, or its timer stopped first")]
    NeverRan,
    /// It panicked.
    #[error("the task panicked")]
    Panicked,
    /// It needs a tokio runtime where it ran, and there was none: see
    /// [`Timer::has_runtime`](countwheel::Timer::has_runtime).
    #[error("the task needs a runtime, and its timer has none")]
    NoRuntime,
}

impl From<Panicked> for NoValue {
    fn from(why: Panicked) -> Self {
        match why {
            Panicked::NoRuntime => Self::NoRuntime,
            _ => Self::Panicked,
        }
    }
}

impl<T> Scheduled<T> {
    /// The handle of the task: to cancel it, or to move it. An async block that has begun is
    /// not cancelled by it.
    #[must_use]
    pub fn timeout(&self) -> &Timeout {
        &self.timeout
    }

    /// Whether there is a value, or will be none.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.outcome.is_settled()
    }

    /// Blocks until there is a value. Not in a task of a timer that runs its tasks one by one, and
    /// not where nobody else moves the clock.
    ///
    /// # Errors
    /// [`NoValue`] if there will be none.
    pub fn join(self) -> Result<T, NoValue> {
        block_until(|cx| self.outcome.poll(cx))
    }
}

impl<T> Future for Scheduled<T> {
    type Output = Result<T, NoValue>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.outcome.poll(cx)
    }
}

impl<T> fmt::Debug for Scheduled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduled")
            .field("timeout", &self.timeout)
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// Says what came of it, once. Dropped before, it says that nothing did.
struct Answer<T>(Option<Arc<Outcome<Result<T, NoValue>>>>);

impl<T> Answer<T> {
    fn give(mut self, value: Result<T, NoValue>) {
        if let Some(outcome) = self.0.take() {
            drop(outcome.settle(value));
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(outcome) = self.0.take() {
            drop(outcome.settle(Err(NoValue::NeverRan)));
        }
    }
}

fn answer<T>() -> (Answer<T>, Arc<Outcome<Result<T, NoValue>>>) {
    let outcome = Arc::new(Outcome::new());
    (Answer(Some(Arc::clone(&outcome))), outcome)
}

/// See [`TimerExt::schedule_with`](crate::TimerExt::schedule_with).
pub(crate) fn schedule_with<F, T>(
    timer: &Timer,
    delay: Duration,
    task: F,
) -> Result<Scheduled<T>, ScheduleError>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let (answer, outcome) = answer();
    let task = move || match catch_unwind(AssertUnwindSafe(task)) {
        Ok(value) => answer.give(Ok(value)),
        Err(thrown) => {
            answer.give(Err(Panicked::of(&*thrown).into()));
            // The timer counts it, and says so in its log.
            resume_unwind(thrown);
        }
    };
    let timeout = schedule_named(timer, delay, type_name::<F>(), task)?;
    Ok(Scheduled { timeout, outcome })
}

/// See [`TimerExt::schedule_async`](crate::TimerExt::schedule_async).
pub(crate) fn schedule_async<F>(
    timer: &Timer,
    delay: Duration,
    future: F,
) -> Result<Scheduled<F::Output>, ScheduleError>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (answer, outcome) = answer();
    let weak = timer.downgrade();
    let task = move || {
        let run = async move {
            let mut future = pin!(future);
            let value = poll_fn(|cx| match caught(|| future.as_mut().poll(cx)) {
                Ok(polled) => polled.map(Ok),
                Err(thrown) => Poll::Ready(Err(thrown.into())),
            });
            answer.give(value.await);
        };
        // If it is refused, it has been dropped, and has said so.
        drop(spawn(&weak, run));
    };
    let timeout = schedule_named(timer, delay, type_name::<F>(), task)?;
    Ok(Scheduled { timeout, outcome })
}
