//! The methods that the patterns add to a timer.

use std::time::Duration;

use countwheel::{ScheduleError, Timer, WithTimeout};

use crate::retry::{retry, retry_blocking};
use crate::scheduled;
use crate::{Deadline, Failure, GivenUp, RetryLoop, RetryPolicy, Scheduled};

/// Calls of a [`Timer`] that need a pattern: tasks with a value, retries for code that waits for the
/// value, and limits that were handed down. See the example of each.
pub trait TimerExt {
    /// Runs `task` once `delay` has passed, like [`schedule`](Timer::schedule), and gives its value to
    /// who waits for it.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::TimerExt;
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let answer = timer.schedule_with(Duration::from_millis(1), || 6 * 7)?;
    /// assert_eq!(answer.join(), Ok(42)); // in async code, await it
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`schedule`](Timer::schedule).
    fn schedule_with<F, T>(&self, delay: Duration, task: F) -> Result<Scheduled<T>, ScheduleError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static;

    /// Begins to run `future` once `delay` has passed, on the timer's executor, and gives its output
    /// to who waits for it. It is polled there, one task a poll, and needs no runtime unless what it
    /// waits for does: then the timer [needs one](Timer::has_runtime).
    ///
    /// The future does not keep the timer alive; if that stops first, the future is dropped.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::TimerExt;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let clock = timer.clone();
    /// let later = timer.schedule_async(Duration::from_millis(1), async move {
    ///     clock.sleep(Duration::from_millis(1)).await.map(|()| "tea")
    /// })?;
    /// assert!(matches!(later.await, Ok(Ok("tea"))));
    /// # Ok::<(), countwheel::ScheduleError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Those of [`schedule`](Timer::schedule).
    fn schedule_async<F>(
        &self,
        delay: Duration,
        future: F,
    ) -> Result<Scheduled<F::Output>, ScheduleError>
    where
        F: Future<Output: Send> + Send + 'static;

    /// Calls `operation` and awaits what it returns, again and again, until that succeeds or
    /// `policy` says that it is enough. `operation` is told the number of the attempt.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::{Failure, GiveUp, RetryPolicy, TimerExt};
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let policy = RetryPolicy::fixed(Duration::from_millis(1)).max_attempts(3)?;
    /// let fetched = timer.retry(policy.clone(), async |attempt| match attempt {
    ///     3 => Ok("a page"),
    ///     _ => Err(Failure::Retryable(attempt)),
    /// });
    /// assert_eq!(fetched.await.unwrap(), "a page");
    ///
    /// let failed = timer.retry(policy, async |_| Err::<(), _>(Failure::Retryable("down"))).await;
    /// let given_up = failed.unwrap_err();
    /// assert_eq!((given_up.attempts, given_up.error), (3, "down"));
    /// assert_eq!(given_up.reason, GiveUp::Attempts);
    /// # Ok::<(), countwheel_patterns::RetryPolicyError>(())
    /// # }).unwrap();
    /// ```
    fn retry<T, E, O, F>(&self, policy: RetryPolicy, operation: O) -> RetryLoop<O, F, E>
    where
        O: FnMut(u32) -> F,
        F: Future<Output = Result<T, Failure<E>>>;

    /// The same on a thread, which it blocks: so neither in a task of a timer whose executor is
    /// its own thread, nor where nobody else moves the clock.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::{Failure, RetryPolicy, TimerExt};
    ///
    /// let timer = Timer::new();
    /// let policy = RetryPolicy::dubbo_failback().scaled(1e-3)?;
    /// let answer = timer.retry_blocking(policy.clone(), |attempt| match attempt {
    ///     1 => Err(Failure::Retryable("not yet")),
    ///     _ => Ok(42),
    /// });
    /// assert_eq!(answer, Ok(42));
    /// let failed = timer.retry_blocking(policy, |_| Err::<(), _>(Failure::Permanent("never")));
    /// assert_eq!(failed.unwrap_err().attempts, 1);
    /// # Ok::<(), countwheel_patterns::RetryPolicyError>(())
    /// ```
    ///
    /// # Errors
    /// [`GivenUp`] with the last error if it is not tried again.
    fn retry_blocking<T, E>(
        &self,
        policy: RetryPolicy,
        operation: impl FnMut(u32) -> Result<T, Failure<E>>,
    ) -> Result<T, GivenUp<E>>;

    /// Waits for `future`, but not beyond `deadline`: like
    /// [`timeout_at`](Timer::timeout_at), for a limit that was handed down.
    ///
    /// ```
    /// use countwheel::{Timer, TimeoutError};
    /// use countwheel_patterns::{Deadline, TimerExt};
    /// use std::future::{pending, ready};
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let page = Deadline::after(&timer, Duration::from_millis(5));
    /// assert_eq!(timer.timeout_by(page, ready("user")).await.unwrap(), "user");
    /// // A minute for the orders, but the page has no minute.
    /// let orders = page.shrink_to(timer.now(), Duration::from_secs(60));
    /// let silence = timer.timeout_by(orders, pending::<()>()).await;
    /// assert!(matches!(silence, Err(TimeoutError::Elapsed)));
    /// # });
    /// ```
    fn timeout_by<F: IntoFuture>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> WithTimeout<F::IntoFuture>;
}

impl TimerExt for Timer {
    fn schedule_with<F, T>(&self, delay: Duration, task: F) -> Result<Scheduled<T>, ScheduleError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        scheduled::schedule_with(self, delay, task)
    }

    fn schedule_async<F>(
        &self,
        delay: Duration,
        future: F,
    ) -> Result<Scheduled<F::Output>, ScheduleError>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        scheduled::schedule_async(self, delay, future)
    }

    fn retry<T, E, O, F>(&self, policy: RetryPolicy, operation: O) -> RetryLoop<O, F, E>
    where
        O: FnMut(u32) -> F,
        F: Future<Output = Result<T, Failure<E>>>,
    {
        retry(self, policy, operation)
    }

    fn retry_blocking<T, E>(
        &self,
        policy: RetryPolicy,
        operation: impl FnMut(u32) -> Result<T, Failure<E>>,
    ) -> Result<T, GivenUp<E>> {
        retry_blocking(self, policy, operation)
    }

    fn timeout_by<F: IntoFuture>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> WithTimeout<F::IntoFuture> {
        self.timeout_at(deadline.instant(), future)
    }
}
