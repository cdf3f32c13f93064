//! The random part of a delay.

use std::time::Duration;

use super::{RetryPolicyError, times};
use crate::Random;

/// How much of a delay is left to chance, so that failures that came together do not come
/// back together. Names and formulas of the first three as in Brooker, "Exponential Backoff
/// and Jitter" (2015). Uniform, and exact to the nanosecond.
///
/// ```
/// use countwheel_time::{RetryPolicy, Jitter};
/// use std::time::Duration;
///
/// let cache = RetryPolicy::fixed(Duration::from_secs(100)).jitter(Jitter::proportional(0.05)?);
/// let step = cache.preview().next().unwrap();
/// assert_eq!((step.earliest.as_secs(), step.latest.as_secs()), (95, 105));
/// assert!(Jitter::proportional(1.5).is_err());
/// # Ok::<(), countwheel_time::RetryPolicyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Jitter {
    /// Nothing: the delay as it stands.
    #[default]
    None,
    /// Everything: from zero to the delay.
    Full,
    /// Half: from half the delay to the delay.
    Equal,
    /// A share of the delay, up and down: with 0.05 from 95 % to 105 % of it, as go-zero's
    /// cache does.
    Proportional(Share),
}

/// A part of a delay, from 0 to 1. See [`Jitter::proportional`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share(f64);

// A share is never NaN, so equality is total.
impl Eq for Share {}

impl Share {
    /// The number.
    ///
    /// ```
    /// # use countwheel_time::Jitter;
    /// let Ok(Jitter::Proportional(share)) = Jitter::proportional(0.25) else { panic!() };
    /// assert_eq!(share.get(), 0.25);
    /// ```
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Jitter {
    /// Up and down by `share` of the delay.
    ///
    /// # Errors
    /// [`RetryPolicyError::Share`] unless it is from 0 to 1.
    pub fn proportional(share: f64) -> Result<Self, RetryPolicyError> {
        if (0.0..=1.0).contains(&share) {
            Ok(Self::Proportional(Share(share)))
        } else {
            Err(RetryPolicyError::Share(share))
        }
    }

    /// The name that the programs show and understand.
    ///
    /// ```
    /// # use countwheel_time::Jitter;
    /// assert_eq!(Jitter::Full.name(), "full");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Full => "full",
            Self::Equal => "equal",
            Self::Proportional(_) => "proportional",
        }
    }

    /// The shortest and the longest that a delay becomes.
    ///
    /// ```
    /// # use countwheel_time::Jitter;
    /// # use std::time::Duration;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(Jitter::Full.range(second), (Duration::ZERO, second));
    /// ```
    #[must_use]
    pub fn range(self, delay: Duration) -> (Duration, Duration) {
        match self {
            Self::None => (delay, delay),
            Self::Full => (Duration::ZERO, delay),
            Self::Equal => (delay / 2, delay),
            Self::Proportional(Share(share)) => {
                let part = times(delay, share);
                (delay.saturating_sub(part), delay.saturating_add(part))
            }
        }
    }

    /// One delay of that range, always the same for the same seed and retry.
    pub(super) fn draw(self, delay: Duration, seed: u64, retry: u32) -> Duration {
        let (shortest, longest) = self.range(delay);
        // More than 584 years is never, with or without jitter.
        let width = longest.saturating_sub(shortest).as_nanos();
        let width = u64::try_from(width).unwrap_or(u64::MAX);
        if width == 0 {
            return shortest;
        }
        let own = Random::new(u64::from(retry)).draw();
        let drawn = Random::new(seed ^ own).up_to(width);
        shortest.saturating_add(Duration::from_nanos(drawn))
    }
}
