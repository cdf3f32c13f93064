//! One deadline after another.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::future::{Sleep, SleepError};
use crate::{Instant, Timer};

impl Timer {
    /// Ticks again and again, `period` apart, the first time at once.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let mut heartbeat = timer.interval(Duration::from_millis(2))?;
    /// let first = heartbeat.tick().await?;
    /// let second = heartbeat.tick().await?;
    /// assert_eq!(second.saturating_since(first), Duration::from_millis(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If `period` is zero.
    pub fn interval(&self, period: Duration) -> Result<Interval, PeriodError> {
        self.interval_at(self.now(), period)
    }

    /// Ticks again and again, `period` apart, the first time when [`now`](Self::now) has
    /// reached `start`.
    ///
    /// ```
    /// use countwheel::{PeriodError, Timer};
    /// use std::time::Duration;
    ///
    /// let timer = Timer::new();
    /// let minute = Duration::from_secs(60);
    /// let hourly = timer.interval_at(timer.now() + minute, 60 * minute)?;
    /// assert_eq!(hourly.period(), 60 * minute);
    /// assert!(hourly.deadline() <= timer.now() + minute);
    /// # Ok::<(), PeriodError>(())
    /// ```
    ///
    /// # Errors
    /// If `period` is zero.
    pub fn interval_at(&self, start: Instant, period: Duration) -> Result<Interval, PeriodError> {
        if period.is_zero() {
            return Err(PeriodError);
        }
        Ok(Interval {
            sleep: self.sleep_until(start),
            period,
            missed: MissedTicks::default(),
        })
    }
}

/// Ticks at fixed distances. Made by [`Timer::interval`] and [`Timer::interval_at`].
///
/// Each tick is a [`Sleep`] until the next deadline, so it is never early, and what is said
/// there of memory, cost and errors holds here as well. An interval does nothing on its own:
/// who does not ask for a tick in time misses it, and [`MissedTicks`] says how it goes on.
///
/// ```
/// use countwheel::{MissedTicks, Timer};
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// let period = Duration::from_millis(5);
/// let mut polling = timer.interval(period)?.missed_ticks(MissedTicks::Skip);
/// for _ in 0..3 {
///     let due = polling.tick().await?;
///     assert!(due <= timer.now());
///     // ... ask the device ...
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "an interval ticks only when it is asked"]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed: MissedTicks,
}

/// The period is zero. See [`Timer::interval`].
///
/// ```
/// # use countwheel::Timer;
/// # use std::time::Duration;
/// let error = Timer::new().interval(Duration::ZERO).unwrap_err();
/// assert_eq!(error.to_string(), "an interval's period is longer than zero");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an interval's period is longer than zero")]
pub struct PeriodError;

/// How an [`Interval`] goes on after a tick that was taken late: because nobody asked for it
/// in time, or because the machine was late. (And how a
/// `Periodic` (of `countwheel-patterns`) task does after a run that began late or took long.) With a period of 10 s and the tick of second 20
/// taken in second 45, the next ones come in second
///
/// | | | | | |
/// |---|---|---|---|---|
/// | `Burst` | 45 (that of 30) | 45 (that of 40) | 50 | 60 |
/// | `Delay` | 55 | 65 | 75 | 85 |
/// | `Skip`  | 50 | 60 | 70 | 80 |
///
/// ```
/// use countwheel::{ManualHost, MissedTicks};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
///
/// let seconds = Duration::from_secs;
/// let mut host = ManualHost::new();
/// let timer = host.timer().clone();
/// let start = timer.now();
/// let mut interval = timer.interval_at(start + seconds(20), seconds(10))?
///     .missed_ticks(MissedTicks::Skip);
/// host.advance(seconds(45));
///
/// let mut cx = Context::from_waker(Waker::noop());
/// let Poll::Ready(Ok(due)) = interval.poll_tick(&mut cx) else { panic!() };
/// assert_eq!(due, start + seconds(20));
/// assert_eq!(interval.deadline(), start + seconds(50));
/// # Ok::<(), countwheel::PeriodError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MissedTicks {
    /// No tick is left out: those that were missed come at once, one after another, until the
    /// interval has caught up. For those who count ticks.
    #[default]
    Burst,
    /// The next tick comes a whole period after the late one was taken, and so do those after
    /// it. A tick that was at most 5 ms late (or a period,
    /// if that is shorter) counts as in time, or else the interval would drift.
    Delay,
    /// What was missed is left out: the next tick is the first still to come of those that are
    /// whole periods from the start. For those who want the rhythm.
    Skip,
}

/// Up to this late, a tick is in time. See [`MissedTicks::Delay`].
const IN_TIME: Duration = Duration::from_millis(5);

impl Interval {
    /// Goes on after a late tick as told. [`MissedTicks::Burst`] unless told otherwise.
    pub fn missed_ticks(mut self, missed: MissedTicks) -> Self {
        self.missed = missed;
        self
    }

    /// Waits for the next tick, and returns when that was due: at or before now.
    ///
    /// **Cancelling:** dropping the future loses nothing; the next call waits for the same
    /// tick.
    ///
    /// # Errors
    /// Those of [`Sleep`]. The tick is still to come: the next call waits for it again, or
    /// fails again.
    pub async fn tick(&mut self) -> Result<Instant, SleepError> {
        poll_fn(|cx| self.poll_tick(cx)).await
    }

    /// Like [`tick`](Self::tick), for those who write futures by hand. If it is not ready, the
    /// waker is woken when it may be.
    ///
    /// # Errors
    /// Those of [`Sleep`].
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Result<Instant, SleepError>> {
        ready!(self.sleep.poll_in_turn(cx))?;
        let due = self.sleep.deadline();
        let next = self.missed.next(due, self.sleep.timer().now(), self.period);
        self.sleep.reset(next);
        Poll::Ready(Ok(due))
    }

    /// Starts anew: the next tick comes one period from now.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use std::time::Duration;
    /// let mut host = ManualHost::new();
    /// let period = Duration::from_secs(10);
    /// let mut keep_alive = host.timer().interval(period)?;
    /// host.advance(Duration::from_secs(3));
    /// keep_alive.reset(); // something else was sent
    /// assert_eq!(keep_alive.deadline(), host.timer().now() + period);
    /// # Ok::<(), countwheel::PeriodError>(())
    /// ```
    pub fn reset(&mut self) {
        self.reset_at(self.sleep.timer().now() + self.period);
    }

    /// Starts anew: the next tick comes when the timer's clock has reached `start`, and the
    /// others from there. O(1), see [`Sleep::reset`].
    pub fn reset_at(&mut self, start: Instant) {
        self.sleep.reset(start);
    }

    /// When the next tick is due.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// How far apart the ticks are.
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }
}

/// The ticks, one after another, with the cargo feature `stream`. It ends when the timer has stopped;
/// another error is an item, and the tick is still to come.
///
/// ```
/// use countwheel::Timer;
/// use futures_core::Stream;
/// use std::future::poll_fn;
/// use std::pin::Pin;
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// let mut ticks = timer.interval(Duration::from_millis(2))?;
/// for _ in 0..3 {
///     // `StreamExt::next` of futures or tokio-stream does this.
///     let due = poll_fn(|cx| Pin::new(&mut ticks).poll_next(cx)).await.unwrap()?;
///     assert!(due <= timer.now());
/// }
/// timer.stop();
/// ticks.reset();
/// assert!(poll_fn(|cx| Pin::new(&mut ticks).poll_next(cx)).await.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[cfg(feature = "stream")]
impl futures_core::Stream for Interval {
    type Item = Result<Instant, SleepError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        let tick = ready!(self.poll_tick(cx));
        Poll::Ready(match tick {
            Err(SleepError::Closed) => None,
            tick => Some(tick),
        })
    }
}

impl MissedTicks {
    /// The deadline of the tick that follows the one at `due`, which was taken at `now`, not
    /// before. `period` is not zero.
    ///
    /// ```
    /// use countwheel::{Instant, MissedTicks};
    /// use std::time::Duration;
    ///
    /// let second = Duration::from_secs(1);
    /// let (due, now) = (Instant::ZERO + second, Instant::ZERO + 5 * second / 2);
    /// assert_eq!(MissedTicks::Burst.next(due, now, second), due + second);
    /// assert_eq!(MissedTicks::Skip.next(due, now, second), due + 2 * second);
    /// assert_eq!(MissedTicks::Delay.next(due, now, second), now + second);
    /// ```
    #[must_use]
    pub fn next(self, due: Instant, now: Instant, period: Duration) -> Instant {
        let late = now.saturating_since(due);
        match self {
            Self::Delay if late > IN_TIME.min(period) => now + period,
            Self::Skip if late >= period => {
                // Not zero, and shorter than a lateness: it fits.
                let past = late.as_nanos() % period.as_nanos();
                let past = Duration::from_nanos(u64::try_from(past).unwrap_or(0));
                now + (period - past)
            }
            Self::Burst | Self::Delay | Self::Skip => due + period,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn next(missed: MissedTicks, now: u64) -> Instant {
        missed.next(at(1_000), at(now), Duration::from_millis(100))
    }

    #[test]
    fn a_tick_in_time_is_followed_by_the_next_whatever_the_rule() {
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            for now in [1_000, 1_001, 1_005] {
                assert_eq!(next(missed, now), at(1_100));
            }
        }
    }

    #[test]
    fn a_late_tick_is_followed_as_its_rule_says() {
        for (now, delay, skip) in [
            (1_006, 1_106, 1_100),
            (1_099, 1_199, 1_100),
            (1_100, 1_200, 1_200),
            (1_250, 1_350, 1_300),
            (1_300, 1_400, 1_400),
        ] {
            assert_eq!(next(MissedTicks::Burst, now), at(1_100));
            assert_eq!(next(MissedTicks::Delay, now), at(delay));
            assert_eq!(next(MissedTicks::Skip, now), at(skip));
        }
    }

    #[test]
    fn periods_at_the_ends_of_what_there_is_do_not_overflow() {
        for missed in [MissedTicks::Burst, MissedTicks::Delay, MissedTicks::Skip] {
            let far = missed.next(Instant::ZERO, Instant::MAX, Duration::MAX);
            assert_eq!(far, Instant::MAX);
            let near = missed.next(Instant::MAX, Instant::MAX, Duration::from_nanos(1));
            assert_eq!(near, Instant::MAX);
        }
        let nanosecond = Duration::from_nanos(1);
        let skipped = MissedTicks::Skip.next(Instant::ZERO, at(1), nanosecond);
        assert_eq!(skipped, at(1) + nanosecond);
        let delayed = MissedTicks::Delay.next(Instant::ZERO, at(1), nanosecond);
        assert_eq!(delayed, at(1) + nanosecond);
    }
}
