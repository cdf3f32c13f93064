//! A future with a limit on its wait.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::future::{Sleep, SleepError};
use crate::{Instant, Timer};

impl Timer {
    /// Waits for `future`, but no longer than `delay`, counted from this call.
    ///
    /// The future goes first: if it is ready when both are, its output is what comes out; and
    /// with [`Duration::ZERO`] it gets one poll. With [`Duration::MAX`] it has all the time
    /// there is. Nothing is allocated, and nothing is filed with the timer before the first
    /// poll that finds the future not ready: one that answers at once costs one reading of the
    /// clock.
    ///
    /// ```
    /// use countwheel::{Timer, TimeoutError};
    /// use std::future::{pending, ready};
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let answer = timer.timeout(Duration::from_secs(60), ready(42)).await;
    /// assert_eq!(answer.unwrap(), 42);
    ///
    /// let silence = timer.timeout(Duration::from_millis(2), pending::<()>()).await;
    /// assert!(matches!(silence, Err(TimeoutError::Elapsed)));
    /// # });
    /// ```
    pub fn timeout<F: IntoFuture>(&self, delay: Duration, future: F) -> WithTimeout<F::IntoFuture> {
        WithTimeout::new(self.sleep(delay), future.into_future())
    }

    /// Waits for `future`, but no longer than until [`now`](Self::now) has reached `deadline`.
    /// For one limit over several steps:
    ///
    /// ```
    /// use countwheel::{Timer, TimeoutError};
    /// use std::future::ready;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let deadline = timer.now() + Duration::from_secs(60);
    /// let connection = timer.timeout_at(deadline, ready("connected")).await?;
    /// let answer = timer.timeout_at(deadline, ready("answered")).await?;
    /// assert_eq!((connection, answer), ("connected", "answered"));
    /// # Ok::<(), TimeoutError>(())
    /// # }).unwrap();
    /// ```
    pub fn timeout_at<F: IntoFuture>(
        &self,
        deadline: Instant,
        future: F,
    ) -> WithTimeout<F::IntoFuture> {
        WithTimeout::new(self.sleep_until(deadline), future.into_future())
    }
}

pin_project! {
    /// A future that ends with another, or with an error when its time is up. Made by
    /// [`Timer::timeout`] and [`Timer::timeout_at`].
    ///
    /// **Cancelling** is dropping, which drops the future inside as well. So does the end of the
    /// time: the future is dropped together with this one, wherever it stands then, so it
    /// should be one that may be dropped at each of its awaits. One that should outlive the
    /// limit is awaited by reference, `timer.timeout(delay, &mut future)`.
    ///
    /// An error of the timer's ends it as well ([`TimeoutError::Sleep`]): a future without the
    /// limit that was asked for might wait for ever. It is seen only after the future was
    /// polled and found not ready.
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct WithTimeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

/// Why there is no output. See [`Timer::timeout`].
///
/// ```
/// use countwheel::{SleepError, Timer, TimeoutError};
/// use std::future::pending;
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// timer.stop();
/// let error = timer.timeout(Duration::from_secs(1), pending::<()>()).await.unwrap_err();
/// assert!(matches!(error, TimeoutError::Sleep(SleepError::Closed)));
/// assert_eq!(TimeoutError::Elapsed.to_string(), "the time is up");
/// # });
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimeoutError {
    /// The deadline came first.
    #[error("the time is up")]
    Elapsed,
    /// The time cannot be measured: the timer has stopped, or took no sleep.
    #[error("no limit could be kept")]
    Sleep(#[from] SleepError),
}

impl<F> WithTimeout<F> {
    fn new(sleep: Sleep, future: F) -> Self {
        Self { future, sleep }
    }

    /// When the time is up.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use std::time::Duration;
    /// let timer = Timer::new();
    /// let deadline = timer.now() + Duration::from_secs(5);
    /// let limited = timer.timeout_at(deadline, std::future::ready(()));
    /// assert_eq!(limited.deadline(), deadline);
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// The future inside, without the limit.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use std::time::Duration;
    /// let limited = Timer::new().timeout(Duration::from_secs(5), std::future::ready(6));
    /// assert_eq!(limited.into_inner().into_inner(), 6);
    /// ```
    #[must_use]
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for WithTimeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        this.sleep.poll_end(cx).map(|end| match end {
            Ok(()) => Err(TimeoutError::Elapsed),
            Err(error) => Err(error.into()),
        })
    }
}
