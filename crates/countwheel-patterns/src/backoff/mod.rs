//! The times of retries: a schedule as data, apart from the code that waits and tries.

mod attempts;
mod budget;
mod jitter;
mod presets;

use std::sync::Arc;
use std::time::Duration;

use countwheel::Instant;

pub use self::attempts::{Attempts, GiveUp, Planned};
pub use self::budget::RetryBudget;
pub use self::jitter::{Jitter, Share};

/// When to try again after an attempt that failed, and when to give up. Data: it waits for
/// nothing and counts nothing, so one serves any number of operations, and equal ones compare
/// equal.
///
/// The delays come from a [`list`](Self::list), or are [`fixed`](Self::fixed),
/// [`linear`](Self::linear) or [`exponential`](Self::exponential). Each counts from the end of
/// the attempt before it. A [`cap`](Self::cap) bounds each delay, [`Jitter`] leaves some of it
/// to chance, and [`max_attempts`](Self::max_attempts) and [`max_age`](Self::max_age) end the
/// schedule. Without those, all but a list go on for ever.
///
/// Any duration will do; sums stop at [`Duration::MAX`]. A clone costs one atomic addition.
///
/// ```
/// use countwheel_patterns::{Backoff, BackoffError, Jitter};
/// use std::time::Duration;
///
/// let backoff = Backoff::exponential(Duration::from_millis(100), 2.0)?
///     .cap(Duration::from_secs(1))
///     .jitter(Jitter::Equal)
///     .max_attempts(6)?;
/// let steps: Vec<_> = backoff.preview().collect();
/// let delays: Vec<_> = steps.iter().map(|step| step.delay.as_millis()).collect();
/// assert_eq!(delays, [100, 200, 400, 800, 1000]);
/// assert_eq!(steps[1].at, Duration::from_millis(300), "at the latest, if attempts take no time");
/// assert_eq!(steps[1].earliest, Duration::from_millis(150));
///
/// let error = Backoff::exponential(Duration::from_millis(100), 0.5).unwrap_err();
/// assert_eq!(error.to_string(), "a factor is finite and at least 1, not 0.5");
/// # Ok::<(), BackoffError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
#[must_use]
pub struct Backoff {
    shape: Shape,
    cap: Duration,
    jitter: Jitter,
    /// The first one included; none without a limit.
    max_attempts: Option<u32>,
    max_age: Option<Duration>,
    retry_after_cap: Duration,
}

/// Where the delays come from.
#[derive(Clone, PartialEq, Debug)]
enum Shape {
    List {
        delays: Arc<[Duration]>,
        repeats_last: bool,
    },
    Linear {
        first: Duration,
        increment: Duration,
    },
    Exponential {
        first: Duration,
        factor: f64,
    },
}

/// Why something is not a schedule, or not a [`RetryBudget`].
///
/// ```
/// use countwheel_patterns::{Backoff, BackoffError};
///
/// assert_eq!(Backoff::list([]).unwrap_err(), BackoffError::NoDelay);
/// let none = Backoff::dubbo_registry().max_attempts(0);
/// assert_eq!(none.unwrap_err().to_string(), "there is at least one attempt: the first");
/// ```
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackoffError {
    /// A list is empty.
    #[error("a list has at least one delay")]
    NoDelay,
    /// No attempt is allowed, not even the first.
    #[error("there is at least one attempt: the first")]
    NoAttempt,
    /// Delays would shrink, or are not a number.
    #[error("a factor is finite and at least 1, not {0}")]
    Factor(f64),
    /// More than all of a delay, less than nothing, or not a number.
    #[error("a share of a delay is 0 to 1, not {0}")]
    Share(f64),
    /// What durations cannot be multiplied by.
    #[error("a scale is finite and not negative, not {0}")]
    Scale(f64),
    /// Less than nothing, more than a billion, or not a number.
    #[error("a budget's retries are 0 to a billion, not {0}")]
    Budget(f64),
    /// No time over which a budget could be counted.
    #[error("a budget's window is at least ten nanoseconds")]
    Window,
}

impl Backoff {
    fn new(shape: Shape) -> Self {
        Self {
            shape,
            cap: Duration::MAX,
            jitter: Jitter::None,
            max_attempts: None,
            max_age: None,
            retry_after_cap: Duration::MAX,
        }
    }

    /// These delays, one after another, and then the end: one attempt more than delays.
    ///
    /// ```
    /// use countwheel_patterns::Backoff;
    /// use std::time::Duration;
    ///
    /// let backoff = Backoff::list([1, 5, 25].map(Duration::from_secs))?;
    /// assert_eq!(backoff.delay(3), Some(Duration::from_secs(25)));
    /// assert_eq!(backoff.delay(4), None);
    /// assert_eq!(backoff.repeat_last().delay(4), Some(Duration::from_secs(25)));
    /// # Ok::<(), countwheel_patterns::BackoffError>(())
    /// ```
    ///
    /// # Errors
    /// [`BackoffError::NoDelay`] if there is none.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Result<Self, BackoffError> {
        let delays: Arc<[Duration]> = delays.into_iter().collect();
        if delays.is_empty() {
            return Err(BackoffError::NoDelay);
        }
        Ok(Self::new(Shape::List {
            delays,
            repeats_last: false,
        }))
    }

    /// The same delay each time.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// # use std::time::Duration;
    /// let every_second = Backoff::fixed(Duration::from_secs(1));
    /// assert_eq!(every_second.delay(1_000_000), Some(Duration::from_secs(1)));
    /// assert_eq!(every_second.max_retries(2).delay(3), None);
    /// ```
    pub fn fixed(delay: Duration) -> Self {
        Self::linear(delay, Duration::ZERO)
    }

    /// `first`, and `increment` more each time.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// # use std::time::Duration;
    /// // As SOFARegistry publishes: after 3 s, then after 5 s, then not again.
    /// let secs = Duration::from_secs;
    /// let publish = Backoff::linear(secs(3), secs(2)).max_retries(2);
    /// assert_eq!([1, 2, 3].map(|retry| publish.delay(retry)), [Some(secs(3)), Some(secs(5)), None]);
    /// ```
    pub fn linear(first: Duration, increment: Duration) -> Self {
        Self::new(Shape::Linear { first, increment })
    }

    /// `first`, and `factor` times as much each time. Give it a [`cap`](Self::cap).
    ///
    /// ```
    /// # use countwheel_patterns::{Backoff, BackoffError};
    /// # use std::time::Duration;
    /// let backoff = Backoff::exponential(Duration::from_secs(1), 10.0)?;
    /// assert_eq!(backoff.delay(4), Some(Duration::from_secs(1000)));
    /// assert_eq!(backoff.delay(u32::MAX), Some(Duration::MAX));
    /// assert!(matches!(
    ///     Backoff::exponential(Duration::ZERO, f64::NAN),
    ///     Err(BackoffError::Factor(_))
    /// ));
    /// # Ok::<(), BackoffError>(())
    /// ```
    ///
    /// # Errors
    /// [`BackoffError::Factor`] if `factor` is less than 1, infinite or not a number.
    pub fn exponential(first: Duration, factor: f64) -> Result<Self, BackoffError> {
        if !factor.is_finite() || factor < 1.0 {
            return Err(BackoffError::Factor(factor));
        }
        Ok(Self::new(Shape::Exponential { first, factor }))
    }

    /// A [`list`](Self::list) goes on with its last delay instead of ending. Nothing else
    /// changes.
    pub fn repeat_last(mut self) -> Self {
        if let Shape::List { repeats_last, .. } = &mut self.shape {
            *repeats_last = true;
        }
        self
    }

    /// No delay is longer than `cap`, before jitter: a proportional one may go beyond by its
    /// share, so that not all who have reached the cap come at the same moment.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// How much of a delay is left to chance: nothing unless told otherwise.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// How many attempts there are at most, the first one included. A list may end before.
    ///
    /// # Errors
    /// [`BackoffError::NoAttempt`] if there are none.
    pub fn max_attempts(mut self, attempts: u32) -> Result<Self, BackoffError> {
        if attempts == 0 {
            return Err(BackoffError::NoAttempt);
        }
        self.max_attempts = Some(attempts);
        Ok(self)
    }

    /// How many attempts may follow the first: none if 0. The same limit as
    /// [`max_attempts`](Self::max_attempts), counted as Dubbo counts.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// let once = Backoff::dubbo_failback().max_retries(0);
    /// assert_eq!(once.preview().count(), 0);
    /// assert_eq!(once, Backoff::dubbo_failback().max_attempts(1)?);
    /// # Ok::<(), countwheel_patterns::BackoffError>(())
    /// ```
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_attempts = Some(retries.saturating_add(1));
        self
    }

    /// No attempt is planned for later than this after the first one: one that would be is not
    /// made, and the operation is given up when that is known, at the end of the attempt before.
    /// One that was planned in time is made, even if it has to wait for a thread or a place among
    /// the attempts in flight, and so starts later.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// # use std::time::Duration;
    /// let backoff = Backoff::dubbo_registry().max_age(Duration::from_secs(14));
    /// assert_eq!(backoff.preview().count(), 2, "after 5 and 10 seconds");
    /// ```
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// How long somebody else may make us wait, see [`next_after`](Self::next_after): as long
    /// as they like unless told otherwise.
    pub fn retry_after_cap(mut self, cap: Duration) -> Self {
        self.retry_after_cap = cap;
        self
    }

    /// The same schedule in another scale of time, for demonstrations and tests: delays, caps
    /// and the maximum age are multiplied, as exactly as an `f64` is (to the nanosecond, up to some weeks).
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// # use std::time::Duration;
    /// let second_is_a_milli = Backoff::wechat().scaled(1e-3)?;
    /// assert_eq!(second_is_a_milli.delay(1), Some(Duration::from_millis(15)));
    /// assert!(Backoff::wechat().scaled(-1.0).is_err());
    /// # Ok::<(), countwheel_patterns::BackoffError>(())
    /// ```
    ///
    /// # Errors
    /// [`BackoffError::Scale`] if `factor` is negative, infinite or not a number.
    pub fn scaled(&self, factor: f64) -> Result<Self, BackoffError> {
        if !factor.is_finite() || factor < 0.0 {
            return Err(BackoffError::Scale(factor));
        }
        let scaled = |duration| match duration {
            Duration::MAX => Duration::MAX, // no limit is none in any scale
            duration => times(duration, factor),
        };
        let shape = match &self.shape {
            Shape::List {
                delays,
                repeats_last,
            } => Shape::List {
                delays: delays.iter().copied().map(scaled).collect(),
                repeats_last: *repeats_last,
            },
            Shape::Linear { first, increment } => Shape::Linear {
                first: scaled(*first),
                increment: scaled(*increment),
            },
            Shape::Exponential { first, factor } => Shape::Exponential {
                first: scaled(*first),
                factor: *factor,
            },
        };
        Ok(Self {
            shape,
            cap: scaled(self.cap),
            max_age: self.max_age.map(scaled),
            retry_after_cap: scaled(self.retry_after_cap),
            ..*self
        })
    }

    /// The delay before retry number `retry`, which is 1 after the first attempt, without
    /// jitter; `None` if there is no such retry. O(1).
    #[must_use]
    pub fn delay(&self, retry: u32) -> Option<Duration> {
        if retry == 0 || self.max_attempts.is_some_and(|most| retry >= most) {
            return None;
        }
        let before = retry - 1;
        let delay = match &self.shape {
            Shape::List {
                delays,
                repeats_last,
            } => {
                let last = delays.last().filter(|_| *repeats_last);
                let index = usize::try_from(before).unwrap_or(usize::MAX);
                *delays.get(index).or(last)?
            }
            Shape::Linear { first, increment } => {
                first.saturating_add(increment.saturating_mul(before))
            }
            Shape::Exponential { first, factor } => times(*first, factor.powf(f64::from(before))),
        };
        Some(delay.min(self.cap))
    }

    /// When the next attempt may start, given what was tried so far and when the last attempt
    /// `ended` without success.
    ///
    /// Pure: the same arguments, the same answer. Chance comes from
    /// [`Attempts::seed`](Attempts::seed).
    ///
    /// ```
    /// use countwheel_patterns::{Attempts, Backoff, GiveUp};
    /// use countwheel::Instant;
    /// use std::time::Duration;
    ///
    /// let backoff = Backoff::dubbo_failback().max_retries(1);
    /// let mut attempts = Attempts::new(Instant::ZERO, 0);
    /// attempts.begin();
    /// let ended = Instant::ZERO + Duration::from_secs(2);
    /// assert_eq!(backoff.next(&attempts, ended), Ok(ended + Duration::from_secs(5)));
    /// attempts.begin();
    /// assert_eq!(backoff.next(&attempts, ended), Err(GiveUp::Attempts));
    /// ```
    ///
    /// # Errors
    /// [`GiveUp::Attempts`] or [`GiveUp::MaxAge`] if there is to be no other attempt.
    pub fn next(&self, attempts: &Attempts, ended: Instant) -> Result<Instant, GiveUp> {
        let retry = attempts.made().max(1);
        let delay = self.delay(retry).ok_or(GiveUp::Attempts)?;
        let delay = self.jitter.draw(delay, attempts.seed(), retry);
        self.within_age(attempts, ended + delay)
    }

    /// Like [`next`](Self::next), but after the delay that the other side `wanted`, as HTTP
    /// does with `Retry-After`: it takes the place of the schedule's own, be it shorter or
    /// longer and without jitter, but is no longer than
    /// [`retry_after_cap`](Self::retry_after_cap). The limits hold as ever.
    ///
    /// ```
    /// use countwheel_patterns::{Attempts, Backoff, GiveUp};
    /// use countwheel::Instant;
    /// use std::time::Duration;
    ///
    /// let minute = Duration::from_secs(60);
    /// let backoff = Backoff::dubbo_registry().retry_after_cap(2 * minute).max_age(3 * minute);
    /// let mut attempts = Attempts::new(Instant::ZERO, 0);
    /// attempts.begin();
    /// let wanted = |wanted, ended| backoff.next_after(&attempts, Instant::ZERO + ended, wanted);
    /// assert_eq!(wanted(minute, minute), Ok(Instant::ZERO + 2 * minute));
    /// assert_eq!(wanted(60 * minute, minute), Ok(Instant::ZERO + 3 * minute));
    /// assert_eq!(wanted(60 * minute, 2 * minute), Err(GiveUp::MaxAge));
    /// ```
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub fn next_after(
        &self,
        attempts: &Attempts,
        ended: Instant,
        wanted: Duration,
    ) -> Result<Instant, GiveUp> {
        self.delay(attempts.made().max(1)).ok_or(GiveUp::Attempts)?;
        self.within_age(attempts, ended + wanted.min(self.retry_after_cap))
    }

    fn within_age(&self, attempts: &Attempts, next: Instant) -> Result<Instant, GiveUp> {
        let age = next.saturating_since(attempts.first_at());
        if self.max_age.is_some_and(|most| age > most) {
            return Err(GiveUp::MaxAge);
        }
        Ok(next)
    }

    /// Every attempt after the first that may happen, if attempts take no time: for people who
    /// wonder what a schedule comes to. Endless if the schedule is, so `take` some.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// # use std::time::Duration;
    /// let last = Backoff::wechat().preview().last().unwrap();
    /// assert_eq!((last.attempt, last.at), (16, Duration::from_secs(24 * 3600 + 4 * 60)));
    /// ```
    pub fn preview(&self) -> impl Iterator<Item = Planned> {
        let max_age = self.max_age.unwrap_or(Duration::MAX);
        let mut sums = [Duration::ZERO; 3];
        (1..u32::MAX).map_while(move |retry| {
            let delay = self.delay(retry)?;
            let (shortest, longest) = self.jitter.range(delay);
            for (sum, term) in sums.iter_mut().zip([delay, shortest, longest]) {
                *sum = sum.saturating_add(term);
            }
            let [at, earliest, latest] = sums;
            (earliest <= max_age).then_some(Planned {
                attempt: retry + 1,
                delay,
                at,
                earliest,
                latest: latest.min(max_age),
            })
        })
    }

    /// The very times at which an operation with this [seed](Attempts::seed) is tried again,
    /// counted from its first attempt, if attempts take no time and fail. Endless if the
    /// schedule is.
    ///
    /// ```
    /// # use countwheel_patterns::{Backoff, Jitter};
    /// let backoff = Backoff::go_zero_cleaner().jitter(Jitter::proportional(0.05)?);
    /// let times: Vec<_> = backoff.preview_seeded(7).collect();
    /// assert_eq!(times, backoff.preview_seeded(7).collect::<Vec<_>>());
    /// for (time, step) in times.iter().zip(backoff.preview()) {
    ///     assert!(step.earliest <= *time && *time <= step.latest);
    /// }
    /// # Ok::<(), countwheel_patterns::BackoffError>(())
    /// ```
    pub fn preview_seeded(&self, seed: u64) -> impl Iterator<Item = Duration> {
        let mut attempts = Attempts::new(Instant::ZERO, seed);
        let mut now = Instant::ZERO;
        std::iter::from_fn(move || {
            attempts.begin();
            now = self.next(&attempts, now).ok()?;
            Some(now.saturating_since(Instant::ZERO))
        })
    }
}

/// A duration times a factor that is not negative, [`Duration::MAX`] if that is too long.
fn times(duration: Duration, factor: f64) -> Duration {
    if duration.is_zero() || factor == 1.0 {
        return duration;
    }
    let product = duration.as_secs_f64() * factor;
    Duration::try_from_secs_f64(product).unwrap_or(Duration::MAX)
}
