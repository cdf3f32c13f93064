//! A retry without a store: for code that waits for the value.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::Failure;
use crate::{Attempts, GiveUp, RetryBudget, RetryPolicy};
use countwheel::building::block_until;
use countwheel::{Instant, Sleep, Timer};
use countwheel_time::Random;

/// See [`TimerExt::retry`](crate::TimerExt::retry).
pub(crate) fn retry<T, E, O, F>(
    timer: &Timer,
    policy: RetryPolicy,
    operation: O,
) -> RetryLoop<O, F, E>
where
    O: FnMut(u32) -> F,
    F: Future<Output = Result<T, Failure<E>>>,
{
    RetryLoop {
        operation,
        course: Course::new(timer.clone(), policy),
        attempt: None,
        waiting: None,
    }
}

/// See [`TimerExt::retry_blocking`](crate::TimerExt::retry_blocking).
pub(crate) fn retry_blocking<T, E>(
    timer: &Timer,
    policy: RetryPolicy,
    mut operation: impl FnMut(u32) -> Result<T, Failure<E>>,
) -> Result<T, GivenUp<E>> {
    let mut course = Course::new(timer.clone(), policy);
    loop {
        let failure = match operation(course.begin()) {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let (next, error) = course.failed(failure)?;
        let mut sleep = timer.sleep_until(next);
        if block_until(|cx| Pin::new(&mut sleep).poll(cx)).is_err() {
            return Err(course.end(error, GiveUp::Timer));
        }
    }
}

pin_project! {
    /// A future that tries an operation until it succeeds. Made by [`TimerExt::retry`](crate::TimerExt::retry). Its output
    /// is what the operation gives, or a [`GivenUp`].
    ///
    /// Nothing happens before the first poll. A panic of the operation is the caller's. If the
    /// timer cannot wait, having stopped or being full, it ends with [`GiveUp::Timer`].
    ///
    /// **Cancelling** is dropping: the attempt in flight is dropped with it, and no other
    /// follows. Polled after its end, it begins anew.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::{Failure, GiveUp, RetryBudget, RetryPolicy, TimerExt};
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let budget = RetryBudget::new(1.0, 0.0, Duration::from_secs(60)).unwrap();
    /// let policy = RetryPolicy::fixed(Duration::from_millis(1));
    /// let down = async |_| Err::<(), _>(Failure::Retryable("down"));
    /// let given_up = timer.retry(policy, down).budget(budget).seed(7).await.unwrap_err();
    /// assert_eq!(given_up.attempts, 2, "one retry for one first attempt");
    /// assert_eq!(given_up.to_string(), "given up after attempt 2: the retry budget is used up");
    /// # });
    /// ```
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct RetryLoop<O, F, E> {
        operation: O,
        course: Course,
        #[pin]
        attempt: Option<F>,
        // With the error because of which it waits.
        waiting: Option<(Sleep, E)>,
    }
}

/// Why there is no value: the operation is not tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("given up after attempt {attempts}: {reason}")]
#[non_exhaustive]
pub struct GivenUp<E> {
    /// The last error.
    pub error: E,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why there is no other.
    pub reason: GiveUp,
}

impl<O, F, E> RetryLoop<O, F, E> {
    /// Shares a budget of retries with others.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.course.budget = Some(budget);
        self
    }

    /// Decides what jitter leaves to chance: see
    /// [`RetryPolicy::preview_seeded`](crate::RetryPolicy::preview_seeded).
    pub fn seed(mut self, seed: u64) -> Self {
        self.course.seed = seed;
        self
    }
}

impl<T, E, O, F> Future for RetryLoop<O, F, E>
where
    O: FnMut(u32) -> F,
    F: Future<Output = Result<T, Failure<E>>>,
{
    type Output = Result<T, GivenUp<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some((sleep, _)) = this.waiting {
                let slept = ready!(Pin::new(sleep).poll(cx));
                let waited = this.waiting.take();
                if let (Err(_), Some((_, error))) = (slept, waited) {
                    return Poll::Ready(Err(this.course.end(error, GiveUp::Timer)));
                }
            }
            if this.attempt.is_none() {
                let attempt = (this.operation)(this.course.begin());
                this.attempt.set(Some(attempt));
            }
            let Some(attempt) = this.attempt.as_mut().as_pin_mut() else {
                continue;
            };
            let result = ready!(attempt.poll(cx));
            this.attempt.set(None);
            match result {
                Ok(value) => {
                    this.course.attempts = None;
                    return Poll::Ready(Ok(value));
                }
                Err(failure) => match this.course.failed(failure) {
                    Ok((next, error)) => {
                        let is_due = next <= this.course.timer.now();
                        *this.waiting = Some((this.course.timer.sleep_until(next), error));
                        if is_due {
                            // Without a delay there is no wait: others have their turn here.
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                    }
                    Err(given_up) => return Poll::Ready(Err(given_up)),
                },
            }
        }
    }
}

impl<O, F, E> fmt::Debug for RetryLoop<O, F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryLoop")
            .field("policy", &self.course.policy)
            .field("attempts", &self.course.attempts)
            .finish_non_exhaustive()
    }
}

/// What both loops know, apart from how they wait.
struct Course {
    timer: Timer,
    policy: RetryPolicy,
    budget: Option<RetryBudget>,
    seed: u64,
    attempts: Option<Attempts>,
}

impl Course {
    fn new(timer: Timer, policy: RetryPolicy) -> Self {
        Self {
            timer,
            policy,
            budget: None,
            seed: Random::unseeded().draw(),
            attempts: None,
        }
    }

    /// Another attempt begins: its number.
    fn begin(&mut self) -> u32 {
        let (seed, timer, budget) = (self.seed, &self.timer, &self.budget);
        let attempts = self.attempts.get_or_insert_with(|| {
            let now = timer.now();
            if let Some(budget) = budget {
                budget.deposit(now);
            }
            Attempts::new(now, seed)
        });
        attempts.begin()
    }

    /// When the next attempt starts.
    fn failed<E>(&mut self, failure: Failure<E>) -> Result<(Instant, E), GivenUp<E>> {
        let now = self.timer.now();
        let attempts = self.attempts.unwrap_or(Attempts::new(now, self.seed));
        let next = match &failure {
            Failure::Permanent(_) => Err(GiveUp::Permanent),
            Failure::Retryable(_) => attempts.next(&self.policy, now),
            Failure::RetryAfter(_, wanted) => attempts.next_after(&self.policy, now, *wanted),
        };
        let error = failure.into_error();
        match next {
            Ok(_)
                if self
                    .budget
                    .as_ref()
                    .is_some_and(|budget| !budget.withdraw(now)) =>
            {
                Err(self.end(error, GiveUp::Budget))
            }
            Ok(next) => Ok((next, error)),
            Err(reason) => Err(self.end(error, reason)),
        }
    }

    fn end<E>(&mut self, error: E, reason: GiveUp) -> GivenUp<E> {
        GivenUp {
            error,
            attempts: self.attempts.take().map_or(0, |attempts| attempts.made()),
            reason,
        }
    }
}
