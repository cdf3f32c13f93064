//! The position of an operation in its schedule.

use std::fmt;
use std::time::Duration;

use countwheel::Instant;

/// How often one operation was tried, and since when: all that a
/// [`Backoff`](super::Backoff) needs to know about it.
///
/// ```
/// use countwheel_patterns::{Attempts, Backoff};
/// use countwheel::Instant;
///
/// // A loop without a timer: simulate ten minutes of a schedule.
/// let backoff = Backoff::eureka();
/// let mut attempts = Attempts::new(Instant::ZERO, 1);
/// let mut now = Instant::ZERO;
/// while now < Instant::from_nanos(600_000_000_000) {
///     attempts.begin();
///     now = backoff.next(&attempts, now).unwrap();
/// }
/// assert_eq!(attempts.made(), 5, "at 0, 30, 90, 210, 450");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempts {
    made: u32,
    first_at: Instant,
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
            seed,
        }
    }

    /// The same, with so many attempts made already: for what was kept somewhere.
    ///
    /// ```
    /// # use countwheel_patterns::{Attempts, Backoff, GiveUp};
    /// # use countwheel::Instant;
    /// let kept = Attempts::new(Instant::ZERO, 0).with_made(4);
    /// assert_eq!(kept.made(), 4);
    /// assert_eq!(Backoff::dubbo_failback().next(&kept, Instant::ZERO), Err(GiveUp::Attempts));
    /// ```
    #[must_use]
    pub const fn with_made(self, made: u32) -> Self {
        Self { made, ..self }
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

    /// When the first attempt began, or is to begin.
    #[must_use]
    pub const fn first_at(&self) -> Instant {
        self.first_at
    }

    /// What decides about chance.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }
}

/// One step of a schedule: see [`Backoff::preview`](super::Backoff::preview). Times count from
/// the first attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Planned {
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
            Self::Full => "there was no room",
            Self::Dropped => "the store was dropped",
            Self::Timer => "the timer could not wait",
        })
    }
}
