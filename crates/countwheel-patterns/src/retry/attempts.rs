//! How far an operation has come in its schedule.

use std::fmt;
use std::time::Duration;

use countwheel::Instant;
use countwheel_time::{RetryPolicy, nanos};

/// How often one operation was tried, and since when: with a [`RetryPolicy`], all that it takes to
/// say when it is tried next.
///
/// ```
/// use countwheel_patterns::{Attempts, RetryPolicy};
/// use countwheel::Instant;
///
/// // A loop without a timer: simulate ten minutes of a schedule.
/// let policy = RetryPolicy::eureka();
/// let mut attempts = Attempts::new(Instant::ZERO, 1);
/// let mut now = Instant::ZERO;
/// while now < Instant::from_nanos(600_000_000_000) {
///     attempts.begin();
///     now = attempts.next(&policy, now).unwrap();
/// }
/// assert_eq!(attempts.made(), 5, "at 0, 30, 90, 210, 450");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempts {
    made: u32,
    first_at: Instant,
    /// What the maximum age counts before that, in nanoseconds.
    age_before: u64,
    seed: u64,
}

impl Attempts {
    /// None so far. `first_at` is when the first one starts, `seed` decides what jitter leaves
    /// to chance: the same seed, the same times.
    #[must_use]
    pub const fn new(first_at: Instant, seed: u64) -> Self {
        Self {
            made: 0,
            first_at,
            age_before: 0,
            seed,
        }
    }

    /// The same, with so many attempts made already: for what was kept somewhere.
    ///
    /// ```
    /// # use countwheel_patterns::{Attempts, GiveUp, RetryPolicy};
    /// # use countwheel::Instant;
    /// let kept = Attempts::new(Instant::ZERO, 0).with_made(4);
    /// assert_eq!(kept.made(), 4);
    /// assert_eq!(kept.next(&RetryPolicy::dubbo_failback(), Instant::ZERO), Err(GiveUp::Attempts));
    /// ```
    #[must_use]
    pub const fn with_made(self, made: u32) -> Self {
        Self { made, ..self }
    }

    /// The same, with an age at [`first_at`](Self::first_at) already, at most 584 years: for what
    /// began before the clock did, as in another process. A maximum age counts it.
    ///
    /// ```
    /// # use countwheel_patterns::{Attempts, GiveUp, RetryPolicy};
    /// # use countwheel::Instant;
    /// # use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let policy = RetryPolicy::fixed(minute).max_age(10 * minute);
    /// let next = |age| {
    ///     let attempts = Attempts::new(Instant::ZERO, 0).with_made(1).with_age_before(age);
    ///     attempts.next(&policy, Instant::ZERO)
    /// };
    /// assert_eq!(next(9 * minute), Ok(Instant::ZERO + minute));
    /// assert_eq!(next(10 * minute), Err(GiveUp::MaxAge));
    /// ```
    #[must_use]
    pub fn with_age_before(self, age: Duration) -> Self {
        let age_before = nanos(age);
        Self { age_before, ..self }
    }

    /// How old the operation was when its clock showed [`first_at`](Self::first_at): zero unless
    /// [told otherwise](Self::with_age_before).
    #[must_use]
    pub const fn age_before(&self) -> Duration {
        Duration::from_nanos(self.age_before)
    }

    /// Another attempt begins. Returns its number: 1 for the first.
    pub fn begin(&mut self) -> u32 {
        self.made = self.made.saturating_add(1);
        self.made
    }

    /// How many attempts have begun.
    #[must_use]
    pub const fn made(&self) -> u32 {
        self.made
    }

    /// When the first attempt began, or is to begin. If that was before the clock was made, it is
    /// [`Instant::ZERO`], and [`age_before`](Self::age_before) tells the rest.
    #[must_use]
    pub const fn first_at(&self) -> Instant {
        self.first_at
    }

    /// What decides about chance.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// When the next attempt may start by `policy`, if the last attempt `ended` without success.
    ///
    /// Pure: the same arguments, the same answer. Chance comes from the [`seed`](Self::seed).
    ///
    /// ```
    /// use countwheel_patterns::{Attempts, GiveUp, RetryPolicy};
    /// use countwheel::Instant;
    /// use std::time::Duration;
    ///
    /// let policy = RetryPolicy::dubbo_failback().max_retries(1);
    /// let mut attempts = Attempts::new(Instant::ZERO, 0);
    /// attempts.begin();
    /// let ended = Instant::ZERO + Duration::from_secs(2);
    /// assert_eq!(attempts.next(&policy, ended), Ok(ended + Duration::from_secs(5)));
    /// attempts.begin();
    /// assert_eq!(attempts.next(&policy, ended), Err(GiveUp::Attempts));
    /// ```
    ///
    /// # Errors
    /// [`GiveUp::Attempts`] or [`GiveUp::MaxAge`] if there is to be no other attempt.
    pub fn next(&self, policy: &RetryPolicy, ended: Instant) -> Result<Instant, GiveUp> {
        let delay = policy.seeded_delay(self.made.max(1), self.seed);
        self.within_age(policy, ended + delay.ok_or(GiveUp::Attempts)?)
    }

    /// Like [`next`](Self::next), but after the delay that the other side `wanted`, as HTTP
    /// does with `Retry-After`: it takes the place of the policy's own, be it shorter or
    /// longer and without jitter, but is no longer than
    /// [`retry_after_cap`](RetryPolicy::retry_after_cap). The limits hold as ever.
    ///
    /// ```
    /// use countwheel_patterns::{Attempts, GiveUp, RetryPolicy};
    /// use countwheel::Instant;
    /// use std::time::Duration;
    ///
    /// let minute = Duration::from_secs(60);
    /// let policy = RetryPolicy::dubbo_registry().retry_after_cap(2 * minute).max_age(3 * minute);
    /// let mut attempts = Attempts::new(Instant::ZERO, 0);
    /// attempts.begin();
    /// let wanted = |wanted, ended| attempts.next_after(&policy, Instant::ZERO + ended, wanted);
    /// assert_eq!(wanted(minute, minute), Ok(Instant::ZERO + 2 * minute));
    /// assert_eq!(wanted(60 * minute, minute), Ok(Instant::ZERO + 3 * minute));
    /// assert_eq!(wanted(60 * minute, 2 * minute), Err(GiveUp::MaxAge));
    /// ```
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub fn next_after(
        &self,
        policy: &RetryPolicy,
        ended: Instant,
        wanted: Duration,
    ) -> Result<Instant, GiveUp> {
        policy.delay(self.made.max(1)).ok_or(GiveUp::Attempts)?;
        let cap = policy.settings().retry_after_cap;
        self.within_age(policy, ended + wanted.min(cap.unwrap_or(Duration::MAX)))
    }

    fn within_age(&self, policy: &RetryPolicy, next: Instant) -> Result<Instant, GiveUp> {
        let age = next.saturating_since(self.first_at);
        let age = age.saturating_add(self.age_before());
        if policy.settings().max_age.is_some_and(|most| age > most) {
            return Err(GiveUp::MaxAge);
        }
        Ok(next)
    }
}

/// Why an operation is not tried again.
///
/// ```
/// use countwheel_patterns::GiveUp;
///
/// assert_eq!(GiveUp::MaxAge.to_string(), "the next attempt would start too late");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum GiveUp {
    /// As many attempts were made as the schedule has.
    Attempts,
    /// The next attempt would start later than the maximum age allows.
    MaxAge,
    /// The [`RetryBudget`](super::RetryBudget) is used up.
    Budget,
    /// The operation said that it can never succeed.
    Permanent,
    /// The operation panicked, and that was not to be tried again.
    Panic,
    /// The operation needs a tokio runtime where there is none, so that no attempt can succeed: see
    /// [`RetryBuilder::needs_runtime`](super::RetryBuilder::needs_runtime).
    NoRuntime,
    /// It had to make room for another, or found none itself.
    Full,
    /// The store it was in was dropped.
    Dropped,
    /// The timer could not wait: it has stopped, has no room or no thread.
    Timer,
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attempts => "all attempts were made",
            Self::MaxAge => "the next attempt would start too late",
            Self::Budget => "the retry budget is used up",
            Self::Permanent => "the failure is permanent",
            Self::Panic => "the attempt panicked",
            Self::NoRuntime => "the attempt needs a runtime, and its timer has none",
            Self::Full => "there was no room",
            Self::Dropped => "the store was dropped",
            Self::Timer => "the timer could not wait",
        })
    }
}
