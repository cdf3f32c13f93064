//! When to try again: a schedule as data, apart from whoever waits and tries.

mod error;
mod jitter;
mod listed;
mod presets;
mod text;

use std::time::Duration;

use crate::Instant;

pub use self::error::RetryPolicyError;
pub use self::jitter::{Jitter, Share};
use self::listed::Listed;
pub use self::presets::Preset;
pub use self::text::RetryTextError;

/// When to try again after an attempt that failed, and when to give up. Data: it waits for
/// nothing and counts nothing, so one serves any number of operations, and equal ones compare
/// equal.
///
/// The delays come from a [`list`](Self::list), or are [`fixed`](Self::fixed),
/// [`linear`](Self::linear) or [`exponential`](Self::exponential). Each counts from the end of
/// the attempt before it. A [`cap`](Self::cap) bounds each delay, [`Jitter`] leaves some of it
/// to chance, and [`max_attempts`](Self::max_attempts) and [`max_age`](Self::max_age) end the
/// schedule. Without those, all but a list go on for ever. The schedules of others have a name: a
/// [`Preset`].
///
/// The same policy gives the same delays on every machine and in every version: what was stored
/// keeps its times.
///
/// ```
/// use countwheel_time::{Jitter, RetryPolicy, RetryPolicyError};
/// use std::time::Duration;
///
/// let policy = RetryPolicy::exponential(Duration::from_millis(100), 2.0)?
///     .cap(Duration::from_secs(1))
///     .jitter(Jitter::Equal)
///     .max_attempts(6)?;
/// let steps: Vec<_> = policy.preview().collect();
/// let delays: Vec<_> = steps.iter().map(|step| step.delay.as_millis()).collect();
/// assert_eq!(delays, [100, 200, 400, 800, 1000]);
/// assert_eq!(steps[1].at, Duration::from_millis(300), "at the latest, if attempts take no time");
/// assert_eq!(steps[1].earliest, Duration::from_millis(150));
///
/// let error = RetryPolicy::exponential(Duration::from_millis(100), 0.5).unwrap_err();
/// assert_eq!(error.to_string(), "a factor is finite and at least 1, not 0.5");
/// # Ok::<(), RetryPolicyError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RetryPolicy {
    shape: Shape,
    /// Whose delays these are, if they have a name.
    preset: Option<Preset>,
    cap: Duration,
    jitter: Jitter,
    /// The first one included; none without a limit.
    max_attempts: Option<u32>,
    max_age: Option<Duration>,
    retry_after_cap: Duration,
}

/// Where the delays come from.
#[derive(Clone, Debug)]
enum Shape {
    List {
        delays: Listed,
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

/// What was set of a [`RetryPolicy`]: see [`RetryPolicy::settings`]. A field that is `None` was not
/// set.
///
/// ```
/// use countwheel_time::{Delays, Jitter, Preset, RetryPolicy, RetrySettings};
/// use std::time::Duration;
///
/// let minute = Duration::from_secs(60);
/// let every_minute = RetryPolicy::fixed(minute).max_age(60 * minute);
/// let settings = RetrySettings {
///     delays: Delays::Fixed(minute),
///     preset: None,
///     repeats_last: false,
///     cap: None,
///     jitter: Jitter::None,
///     max_attempts: None,
///     max_age: Some(60 * minute),
///     retry_after_cap: None,
/// };
/// assert_eq!(every_minute.settings(), settings);
/// assert_eq!(RetryPolicy::wechat().max_retries(3).settings().preset, Some(Preset::Wechat));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetrySettings<'a> {
    /// Where the delays come from.
    pub delays: Delays<'a>,
    /// Whose delays they are, if they came by that name and neither a cap nor another scale has
    /// changed them.
    pub preset: Option<Preset>,
    /// Whether a list goes on with its last delay. False as well where that makes no difference:
    /// to a policy with no more retries than the list has delays.
    pub repeats_last: bool,
    /// The longest delay, before jitter.
    pub cap: Option<Duration>,
    /// How much of a delay is left to chance.
    pub jitter: Jitter,
    /// How many attempts there are at most, the first one included.
    pub max_attempts: Option<u32>,
    /// No attempt is planned for later than this after the first one.
    pub max_age: Option<Duration>,
    /// How long somebody else may make us wait.
    pub retry_after_cap: Option<Duration>,
}

/// Delays before the cap and before jitter: a part of [`RetrySettings`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Delays<'a> {
    /// One after another; at least one.
    List(&'a [Duration]),
    /// The same each time.
    Fixed(Duration),
    /// Longer by the same each time.
    Linear {
        /// The delay before the first retry.
        first: Duration,
        /// How much longer each one is than the one before; not zero.
        increment: Duration,
    },
    /// Longer by the same factor each time.
    Exponential {
        /// The delay before the first retry.
        first: Duration,
        /// At least 1, and finite.
        factor: f64,
    },
}

// No factor is NaN, so equality is total.
impl Eq for Delays<'_> {}

/// One attempt of a schedule: see [`RetryPolicy::preview`]. Times count from the first attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PlannedAttempt {
    /// The number of the attempt, from 2 on.
    pub attempt: u32,
    /// How long it waits after the attempt before, without jitter.
    pub delay: Duration,
    /// When it starts, without jitter. If that is beyond the maximum age, only a jitter that
    /// shortens can make it happen.
    pub at: Duration,
    /// When it starts if chance always takes the shortest delay.
    pub earliest: Duration,
    /// When it starts if chance always takes the longest delay, but no later than the maximum
    /// age.
    pub latest: Duration,
}

impl Default for RetryPolicy {
    /// 20 attempts over at most 2 days and 6 hours: exponential from 10 s, doubling, at
    /// most 6 h, with full jitter.
    ///
    /// ```
    /// # use countwheel_time::{Jitter, RetryPolicy};
    /// # use std::time::Duration;
    /// let policy = RetryPolicy::exponential(Duration::from_secs(10), 2.0)?
    ///     .cap(Duration::from_secs(6 * 3600))
    ///     .jitter(Jitter::Full)
    ///     .max_attempts(20)?;
    /// assert_eq!(RetryPolicy::default(), policy);
    /// # Ok::<(), countwheel_time::RetryPolicyError>(())
    /// ```
    fn default() -> Self {
        let first = Duration::from_secs(10);
        Self::new(Shape::Exponential { first, factor: 2.0 })
            .cap(Duration::from_secs(6 * 3600))
            .jitter(Jitter::Full)
            .max_retries(19)
    }
}

impl PartialEq for RetryPolicy {
    /// Whether the [settings](Self::settings) are equal.
    fn eq(&self, other: &Self) -> bool {
        self.settings() == other.settings()
    }
}

impl Eq for RetryPolicy {}

impl RetryPolicy {
    fn new(shape: Shape) -> Self {
        Self {
            shape,
            preset: None,
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
    /// use countwheel_time::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// let policy = RetryPolicy::list([1, 5, 25].map(Duration::from_secs))?;
    /// assert_eq!(policy.delay(3), Some(Duration::from_secs(25)));
    /// assert_eq!(policy.delay(4), None);
    /// assert_eq!(policy.repeat_last().delay(4), Some(Duration::from_secs(25)));
    /// # Ok::<(), countwheel_time::RetryPolicyError>(())
    /// ```
    ///
    /// # Errors
    /// [`RetryPolicyError::NoDelay`] if there is none.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Result<Self, RetryPolicyError> {
        let delays: Listed = delays.into_iter().collect();
        if delays.as_slice().is_empty() {
            return Err(RetryPolicyError::NoDelay);
        }
        Ok(Self::new(Shape::List {
            delays,
            repeats_last: false,
        }))
    }

    /// The same delay each time.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// # use std::time::Duration;
    /// let every_second = RetryPolicy::fixed(Duration::from_secs(1));
    /// assert_eq!(every_second.delay(1_000_000), Some(Duration::from_secs(1)));
    /// assert_eq!(every_second.max_retries(2).delay(3), None);
    /// ```
    pub fn fixed(delay: Duration) -> Self {
        Self::linear(delay, Duration::ZERO)
    }

    /// `first`, and `increment` more each time.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// # use std::time::Duration;
    /// // As SOFARegistry publishes: after 3 s, then after 8 s, then not again.
    /// let secs = Duration::from_secs;
    /// let publish = RetryPolicy::linear(secs(3), secs(5)).max_retries(2);
    /// assert_eq!([1, 2, 3].map(|retry| publish.delay(retry)), [Some(secs(3)), Some(secs(8)), None]);
    /// ```
    pub fn linear(first: Duration, increment: Duration) -> Self {
        Self::new(Shape::Linear { first, increment })
    }

    /// `first`, and `factor` times as much each time. Give it a [`cap`](Self::cap).
    ///
    /// ```
    /// # use countwheel_time::{RetryPolicy, RetryPolicyError};
    /// # use std::time::Duration;
    /// let policy = RetryPolicy::exponential(Duration::from_secs(1), 10.0)?;
    /// assert_eq!(policy.delay(4), Some(Duration::from_secs(1000)));
    /// assert_eq!(policy.delay(u32::MAX), Some(Duration::MAX));
    /// assert!(matches!(
    ///     RetryPolicy::exponential(Duration::ZERO, f64::NAN),
    ///     Err(RetryPolicyError::Factor(_))
    /// ));
    /// # Ok::<(), RetryPolicyError>(())
    /// ```
    ///
    /// # Errors
    /// [`RetryPolicyError::Factor`] if `factor` is less than 1, infinite or not a number.
    pub fn exponential(first: Duration, factor: f64) -> Result<Self, RetryPolicyError> {
        if !factor.is_finite() || factor < 1.0 {
            return Err(RetryPolicyError::Factor(factor));
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
        self.preset = None;
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
    /// [`RetryPolicyError::NoAttempt`] if there are none.
    pub fn max_attempts(mut self, attempts: u32) -> Result<Self, RetryPolicyError> {
        if attempts == 0 {
            return Err(RetryPolicyError::NoAttempt);
        }
        self.max_attempts = Some(attempts);
        Ok(self)
    }

    /// How many attempts may follow the first: none if 0. The same limit as
    /// [`max_attempts`](Self::max_attempts), counted as Dubbo counts.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// let once = RetryPolicy::dubbo_failback().max_retries(0);
    /// assert_eq!(once.preview().count(), 0);
    /// assert_eq!(once, RetryPolicy::dubbo_failback().max_attempts(1)?);
    /// # Ok::<(), countwheel_time::RetryPolicyError>(())
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
    /// # use countwheel_time::RetryPolicy;
    /// # use std::time::Duration;
    /// let policy = RetryPolicy::dubbo_registry().max_age(Duration::from_secs(14));
    /// assert_eq!(policy.preview().count(), 2, "after 5 and 10 seconds");
    /// ```
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// How long somebody else, such as an HTTP server with its `Retry-After`, may make us wait: as
    /// long as they like unless told otherwise.
    pub fn retry_after_cap(mut self, cap: Duration) -> Self {
        self.retry_after_cap = cap;
        self
    }

    /// The same schedule in another scale of time, for demonstrations and tests: delays, caps
    /// and the maximum age are multiplied, as exactly as an `f64` is (to the nanosecond, up to some weeks).
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// # use std::time::Duration;
    /// let second_is_a_milli = RetryPolicy::wechat().scaled(1e-3)?;
    /// assert_eq!(second_is_a_milli.delay(1), Some(Duration::from_millis(15)));
    /// assert!(RetryPolicy::wechat().scaled(-1.0).is_err());
    /// # Ok::<(), countwheel_time::RetryPolicyError>(())
    /// ```
    ///
    /// # Errors
    /// [`RetryPolicyError::Scale`] if `factor` is negative, infinite or not a number.
    pub fn scaled(&self, factor: f64) -> Result<Self, RetryPolicyError> {
        if !factor.is_finite() || factor < 0.0 {
            return Err(RetryPolicyError::Scale(factor));
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
                delays: delays.as_slice().iter().copied().map(scaled).collect(),
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
            preset: None,
            cap: scaled(self.cap),
            max_age: self.max_age.map(scaled),
            retry_after_cap: scaled(self.retry_after_cap),
            ..*self
        })
    }

    /// What was set, for those who store a policy or show it. O(1).
    #[must_use]
    pub fn settings(&self) -> RetrySettings<'_> {
        let mut repeats_last = false;
        let delays = match &self.shape {
            Shape::List {
                delays,
                repeats_last: repeats,
            } => {
                let delays = delays.as_slice();
                let length = u32::try_from(delays.len()).unwrap_or(u32::MAX);
                repeats_last = *repeats && self.max_attempts.is_none_or(|most| most - 1 > length);
                Delays::List(delays)
            }
            &Shape::Linear { first, increment } if increment.is_zero() => Delays::Fixed(first),
            &Shape::Linear { first, increment } => Delays::Linear { first, increment },
            &Shape::Exponential { first, factor } => Delays::Exponential { first, factor },
        };
        let limited = |cap| Some(cap).filter(|&cap| cap != Duration::MAX);
        RetrySettings {
            delays,
            preset: self.preset,
            repeats_last,
            cap: limited(self.cap),
            jitter: self.jitter,
            max_attempts: self.max_attempts,
            max_age: self.max_age,
            retry_after_cap: limited(self.retry_after_cap),
        }
    }

    /// The delay before retry number `retry`, which is 1 after the first attempt, without
    /// jitter; `None` if there is no such retry. O(1); for an exponential one multiplication for
    /// each retry before it, until the delay has reached the cap.
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
                let delays = delays.as_slice();
                let last = delays.last().filter(|_| *repeats_last);
                let index = usize::try_from(before).unwrap_or(usize::MAX);
                *delays.get(index).or(last)?
            }
            Shape::Linear { first, increment } => {
                first.saturating_add(increment.saturating_mul(before))
            }
            Shape::Exponential { first, factor } => exponential(*first, *factor, self.cap, before),
        };
        Some(delay.min(self.cap))
    }

    /// The delay before retry number `retry` as chance has it: always the same for the same
    /// `seed`, to the nanosecond. Costs what [`delay`](Self::delay) costs.
    ///
    /// ```
    /// # use countwheel_time::{Jitter, RetryPolicy};
    /// # use std::time::Duration;
    /// let policy = RetryPolicy::fixed(Duration::from_secs(10)).jitter(Jitter::Equal);
    /// let delay = policy.seeded_delay(1, 7).unwrap();
    /// assert_eq!(policy.seeded_delay(1, 7), Some(delay));
    /// assert!((5..=10).contains(&delay.as_secs()));
    /// ```
    #[must_use]
    pub fn seeded_delay(&self, retry: u32, seed: u64) -> Option<Duration> {
        let delay = self.delay(retry)?;
        Some(self.jitter.draw(delay, seed, retry))
    }

    /// Every attempt after the first that may happen, if attempts take no time: for people who
    /// wonder what a schedule comes to. Endless if the schedule is, so `take` some.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// # use std::time::Duration;
    /// let last = RetryPolicy::wechat().preview().last().unwrap();
    /// assert_eq!((last.attempt, last.at), (16, Duration::from_secs(24 * 3600 + 4 * 60)));
    /// ```
    pub fn preview(&self) -> impl Iterator<Item = PlannedAttempt> {
        let max_age = self.max_age.unwrap_or(Duration::MAX);
        let mut sums = [Duration::ZERO; 3];
        (1..u32::MAX).map_while(move |retry| {
            let delay = self.delay(retry)?;
            let (shortest, longest) = self.jitter.range(delay);
            for (sum, term) in sums.iter_mut().zip([delay, shortest, longest]) {
                *sum = sum.saturating_add(term);
            }
            let [at, earliest, latest] = sums;
            (earliest <= max_age).then_some(PlannedAttempt {
                attempt: retry + 1,
                delay,
                at,
                earliest,
                latest: latest.min(max_age),
            })
        })
    }

    /// The very times at which an operation with this seed is tried again, counted from its first
    /// attempt, if attempts take no time and fail. Endless if the schedule is.
    ///
    /// ```
    /// # use countwheel_time::{Jitter, RetryPolicy};
    /// let policy = RetryPolicy::go_zero_cleaner().jitter(Jitter::proportional(0.05)?);
    /// let times: Vec<_> = policy.preview_seeded(7).collect();
    /// assert_eq!(times, policy.preview_seeded(7).collect::<Vec<_>>());
    /// for (time, step) in times.iter().zip(policy.preview()) {
    ///     assert!(step.earliest <= *time && *time <= step.latest);
    /// }
    /// # Ok::<(), countwheel_time::RetryPolicyError>(())
    /// ```
    pub fn preview_seeded(&self, seed: u64) -> impl Iterator<Item = Duration> {
        let max_age = self.max_age.unwrap_or(Duration::MAX);
        let mut now = Instant::ZERO;
        (1..u32::MAX).map_while(move |retry| {
            now = now + self.seeded_delay(retry, seed)?;
            let at = now.saturating_since(Instant::ZERO);
            (at <= max_age).then_some(at)
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

/// `first` times `factor`, `times` times over, and at most `cap`.
fn exponential(first: Duration, factor: f64, cap: Duration, times: u32) -> Duration {
    if factor <= 1.0 || first.is_zero() {
        return first;
    }
    // Multiplied step by step: the same bits on every machine, which a power of the mathematics
    // library does not promise. Stored timers have these delays: another formula is no option.
    let cap_seconds = cap.as_secs_f64();
    let mut seconds = first.as_secs_f64();
    for _ in 0..times {
        seconds *= factor;
        if seconds >= cap_seconds {
            return cap;
        }
    }
    Duration::try_from_secs_f64(seconds).map_or(cap, |delay| delay.min(cap))
}
