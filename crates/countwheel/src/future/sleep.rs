//! A future that is ready once a deadline has come.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::concurrent::{Refusal, Shard};
use crate::task::Job;
use crate::timer::number_of_thread;
use crate::{Instant, Timer, TimerKey};

/// How often, on one thread, what is asked to wait may find that it need not, before it says
/// that it has to and is polled again. As many as a task of tokio may do.
const IN_A_ROW_MAX: u32 = 128;

thread_local! {
    /// How often that has happened since somebody last had to wait.
    static IN_A_ROW: Cell<u32> = const { Cell::new(0) };
}

impl Timer {
    /// A future that is ready once `delay` has passed, counted from this call. Any delay will
    /// do: after [`Duration::ZERO`] it is ready at its first poll, after [`Duration::MAX`]
    /// never.
    ///
    /// Works on every runtime and without one: the timer's own host wakes whoever waits. Reads
    /// the clock once; nothing is filed and nothing can fail before the first poll. See
    /// [`Sleep`] for the rest.
    ///
    /// ```
    /// use countwheel::{SleepError, Timer};
    /// use std::time::Duration;
    ///
    /// async fn brew(timer: &Timer) -> Result<&'static str, SleepError> {
    ///     timer.sleep(Duration::from_millis(3)).await?;
    ///     Ok("tea")
    /// }
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let start = timer.now();
    /// assert_eq!(brew(&timer).await?, "tea");
    /// assert!(timer.now().saturating_since(start) >= Duration::from_millis(3));
    /// # Ok::<(), SleepError>(())
    /// # }).unwrap();
    /// ```
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.sleep_until(self.now() + delay)
    }

    /// A future that is ready once [`now`](Self::now) has reached `deadline`; at its first
    /// poll if that has passed.
    ///
    /// ```
    /// use countwheel::{ManualHost, SleepError};
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let noon = host.timer().now() + Duration::from_secs(12 * 3600);
    /// let mut sleep = pin!(host.timer().sleep_until(noon));
    /// let mut cx = Context::from_waker(Waker::noop());
    ///
    /// assert!(sleep.as_mut().poll(&mut cx).is_pending());
    /// host.advance(Duration::from_secs(12 * 3600));
    /// assert!(matches!(sleep.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
    /// ```
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep {
            timer: self.clone(),
            deadline,
            state: State::Idle,
        }
    }
}

/// Ready once its deadline has come. Made by [`Timer::sleep`] and [`Timer::sleep_until`].
///
/// The deadline is fixed when the sleep is made. It is filed with the timer by the first poll
/// and not before, so a sleep that nobody polls costs nothing and holds no place. It keeps its
/// timer alive, as a clone of it would.
///
/// It ends with `Ok` only when the timer's clock has reached the deadline, to the nanosecond,
/// and less than a tick later if the timer's host gets its turn; with a [`SleepError`] when it
/// cannot be waited for. Polled once more, it ends once more or, after an error that has gone
/// away, waits again; it never panics.
///
/// **Cancelling** is dropping: what was filed leaves the timer at once. **Cost:** the first
/// poll reads the clock and takes one lock that other threads seldom want, every other poll
/// takes that lock, dropping takes it if the sleep is still filed. Nothing is allocated. A
/// sleep has 32 bytes, and takes 51 more in the timer while it is filed (measured with 100,000
/// of them; a test holds the sum below 100).
///
/// **Turns.** One whose deadline has come is ready at once. After 128 such in a row on a thread,
/// intervals included, the next one is pending once and has itself polled again: so that a loop
/// that never has to wait does not keep the other tasks of its thread from running.
///
/// ```
/// use countwheel::{SleepError, Timer};
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// let mut sleep = timer.sleep(Duration::from_secs(3600));
/// assert!(!sleep.is_elapsed());
/// sleep.reset(timer.now() + Duration::from_millis(1)); // changed our mind
/// (&mut sleep).await?;
/// assert!(sleep.is_elapsed());
/// # Ok::<(), SleepError>(())
/// # }).unwrap();
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    timer: Timer,
    deadline: Instant,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// Nothing is filed: not yet, or not any more.
    Idle,
    /// A waker is filed, or was when we last looked.
    Filed { shard: u32, key: TimerKey },
}

/// Why a sleep ended before its deadline.
///
/// ```
/// use countwheel::{SleepError, Timer};
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// timer.stop();
/// let error = timer.sleep(Duration::from_secs(1)).await.unwrap_err();
/// assert!(matches!(error, SleepError::Closed));
/// assert_eq!(error.to_string(), "the timer has stopped");
/// # });
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SleepError {
    /// The timer has stopped for good, before the sleep or during it.
    #[error("the timer has stopped")]
    Closed,
    /// As many tasks are pending as [`max_pending`](crate::TimerBuilder::max_pending) allows,
    /// sleeps among them. There is room as soon as one fires or is cancelled: poll again then.
    #[error("as many tasks are pending as may be")]
    Full,
    /// The timer's thread could not be started. The timer is as it was: poll again later.
    #[error("the timer's thread could not be started")]
    NoThread(#[source] io::Error),
}

impl Sleep {
    /// When it ends: as it was asked for, not rounded.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use std::time::Duration;
    /// let timer = Timer::new();
    /// let deadline = timer.now() + Duration::from_secs(5);
    /// assert_eq!(timer.sleep_until(deadline).deadline(), deadline);
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the timer's clock has reached the deadline. Reads the clock, takes no lock.
    #[must_use]
    pub fn is_elapsed(&self) -> bool {
        self.timer.now() >= self.deadline
    }

    /// Moves the deadline, be that to sooner or later: whoever waits goes on waiting, for the
    /// new one. After the end, it makes the sleep one that can be awaited anew.
    ///
    /// O(1), without an allocation: what is filed is moved, what is not is filed by the next
    /// poll. A move counts as scheduled anew in the order of a tick.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use std::pin::Pin;
    /// use std::task::{Context, Waker};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let minute = Duration::from_secs(60);
    /// let mut idle = host.timer().sleep(minute);
    /// let mut cx = Context::from_waker(Waker::noop());
    /// assert!(Pin::new(&mut idle).poll(&mut cx).is_pending());
    ///
    /// host.advance(minute / 2);
    /// idle.reset(host.timer().now() + minute); // there was some traffic
    /// host.advance(minute / 2);
    /// assert!(Pin::new(&mut idle).poll(&mut cx).is_pending());
    /// host.advance(minute / 2);
    /// assert!(Pin::new(&mut idle).poll(&mut cx).is_ready());
    /// ```
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        if let State::Filed { shard, key } = self.state {
            let now = self.timer.now();
            if !self.shard(shard).reschedule(now, key, deadline, || ()) {
                self.state = State::Idle;
            }
        }
    }

    pub(super) fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Like polling, for those who hold a reference and no pin.
    /// Like [`poll_end`](Self::poll_end), but one that never has to wait lets others have their
    /// turn now and then.
    pub(super) fn poll_in_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SleepError>> {
        let has_waited = matches!(self.state, State::Filed { .. });
        if !has_waited && IN_A_ROW.get() >= IN_A_ROW_MAX && self.is_elapsed() {
            IN_A_ROW.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let end = self.poll_end(cx);
        match end {
            Poll::Ready(_) if !has_waited => IN_A_ROW.set(IN_A_ROW.get() + 1),
            Poll::Ready(_) => {}
            Poll::Pending => IN_A_ROW.set(0),
        }
        end
    }

    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SleepError>> {
        let was_filed = match self.state {
            State::Idle => false,
            State::Filed { shard, key } if self.is_filed_for(shard, key, cx.waker()) => {
                return Poll::Pending;
            }
            State::Filed { .. } => true,
        };
        // It has left the wheel, and the clock says why: it was due, or the timer stopped.
        self.state = State::Idle;
        let now = self.timer.now();
        if now >= self.deadline {
            return Poll::Ready(Ok(()));
        }
        if was_filed && self.timer.is_stopped() {
            return Poll::Ready(Err(SleepError::Closed));
        }
        match self.file(now, cx.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Whether the entry is still on the wheel; then it is going to wake `waker`.
    fn is_filed_for(&self, shard: u32, key: TimerKey, waker: &Waker) -> bool {
        let shard = self.shard(shard);
        match shard.with(key, |job| wakes(job, waker)) {
            None => false,
            Some(true) => true,
            Some(false) => {
                // A waker is foreign code: it is cloned and dropped outside the lock.
                let mut new = Job::Wake(waker.clone());
                let replaced = shard.with(key, |job| mem::swap(job, &mut new));
                drop(new);
                replaced.is_some()
            }
        }
    }

    fn file(&mut self, now: Instant, waker: &Waker) -> Result<(), SleepError> {
        self.timer.host().map_err(SleepError::NoThread)?;
        let shard = number_of_thread();
        let filed = self
            .shard(shard)
            .insert(now, self.deadline, Job::Wake(waker.clone()));
        match filed {
            Ok(key) => {
                self.state = State::Filed { shard, key };
                Ok(())
            }
            Err((Refusal::Closed, _)) => Err(SleepError::Closed),
            Err((Refusal::Full, _)) => Err(SleepError::Full),
        }
    }

    fn shard(&self, number: u32) -> &Arc<Shard<Job>> {
        self.timer.engine().shards.of_thread(number as usize)
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_in_turn(cx)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let State::Filed { shard, key } = self.state {
            drop(self.shard(shard).cancel(key, || ()));
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline)
            .field("is_filed", &matches!(self.state, State::Filed { .. }))
            .finish_non_exhaustive()
    }
}

fn wakes(job: &Job, waker: &Waker) -> bool {
    matches!(job, Job::Wake(known) if known.will_wake(waker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, Layout, Resolution};

    #[test]
    fn a_sleep_takes_less_than_a_hundred_bytes_with_its_place_in_the_wheel() {
        const SLEEPS: usize = 100_000;
        let start = Instant::ZERO;
        for layout in [Layout::Hierarchical, Layout::hashed(512).unwrap()] {
            let mut driver = Driver::new(start, Resolution::MILLISECOND, layout);
            let mut random = 1_u64;
            for _ in 0..SLEEPS {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let delay = Duration::from_micros(random >> 38); // up to 67 seconds
                driver.schedule(start, start + delay, Job::Wake(Waker::noop().clone()));
            }
            let filed = driver.memory_bytes().div_ceil(SLEEPS);
            println!("{layout:?}: {} + {filed} bytes", size_of::<Sleep>());
            assert_eq!(size_of::<Sleep>(), 32);
            assert!(size_of::<Sleep>() + filed < 100);
        }
    }
}
