//! The same futures on the timer of the whole process.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::Timer;
use crate::future::{Interval, PeriodError, Sleep, SleepError, TimeoutError, WithTimeout};

/// Waits until `delay` has passed, counted from this call, on [`Timer::global`].
///
/// It has no error to hand out, since that timer has room for everything and is never to be
/// stopped. For a sleep that can be moved, or lasts until an [`Instant`](crate::Instant) of
/// that timer's clock, there are [`Timer::sleep`] and [`Timer::sleep_until`].
///
/// ```
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// countwheel::sleep(Duration::from_millis(2)).await;
/// # });
/// ```
///
/// # Panics
/// When polled, if somebody has stopped [`Timer::global`] all the same, or if the system
/// refuses to start its thread, which [`Timer::start`] can find out before.
#[must_use = "a future does nothing unless it is awaited"]
pub fn sleep(delay: Duration) -> impl Future<Output = ()> + Send + Sync + Unpin + 'static {
    GlobalSleep(Timer::global().sleep(delay))
}

/// Waits for `future`, but no longer than `delay`, counted from this call, on
/// [`Timer::global`]. See [`Timer::timeout`], which also says what is dropped when.
///
/// ```
/// use countwheel::Elapsed;
/// use std::future::{pending, ready};
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// assert_eq!(countwheel::timeout(Duration::from_secs(60), ready(42)).await, Ok(42));
/// let silence = countwheel::timeout(Duration::from_millis(2), pending::<()>()).await;
/// assert_eq!(silence, Err(Elapsed));
/// # });
/// ```
///
/// # Errors
/// [`Elapsed`] if the time is up first.
///
/// # Panics
/// When polled, if somebody has stopped [`Timer::global`] all the same, or if the system
/// refuses to start its thread.
#[must_use = "a future does nothing unless it is awaited"]
pub fn timeout<F: IntoFuture>(
    delay: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> {
    GlobalTimeout {
        inner: Timer::global().timeout(delay, future),
    }
}

/// Ticks again and again on [`Timer::global`], `period` apart, the first time at once. See
/// [`Timer::interval`].
///
/// ```
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let mut heartbeat = countwheel::interval(Duration::from_millis(2))?;
/// for _ in 0..3 {
///     heartbeat.tick().await?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// If `period` is zero.
pub fn interval(period: Duration) -> Result<Interval, PeriodError> {
    Timer::global().interval(period)
}

/// The time is up. See [`timeout`].
///
/// ```
/// assert_eq!(countwheel::Elapsed.to_string(), "the time is up");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the time is up")]
pub struct Elapsed;

struct GlobalSleep(Sleep);

impl Future for GlobalSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_end(cx).map(|end| match end {
            Ok(()) => (),
            Err(error) => global_failed(&error),
        })
    }
}

pin_project! {
    struct GlobalTimeout<F> {
        #[pin]
        inner: WithTimeout<F>,
    }
}

impl<F: Future> Future for GlobalTimeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().inner.poll(cx).map(|end| match end {
            Ok(output) => Ok(output),
            Err(TimeoutError::Elapsed) => Err(Elapsed),
            Err(TimeoutError::Sleep(error)) => global_failed(&error),
        })
    }
}

#[cold]
fn global_failed(error: &SleepError) -> ! {
    panic!("the timer of the whole process does not work: {error}")
}
