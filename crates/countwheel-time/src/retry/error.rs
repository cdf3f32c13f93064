//! Why something is no retry policy.

use std::error::Error;
use std::fmt;

/// Why something is not a [`RetryPolicy`](crate::RetryPolicy).
///
/// ```
/// use countwheel_time::{RetryPolicy, RetryPolicyError};
///
/// assert_eq!(RetryPolicy::list([]).unwrap_err(), RetryPolicyError::NoDelay);
/// let none = RetryPolicy::dubbo_registry().max_attempts(0);
/// assert_eq!(none.unwrap_err().to_string(), "there is at least one attempt: the first");
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum RetryPolicyError {
    /// A list is empty.
    NoDelay,
    /// No attempt is allowed, not even the first.
    NoAttempt,
    /// Delays would shrink, or are not a number.
    Factor(f64),
    /// More than all of a delay, less than nothing, or not a number.
    Share(f64),
    /// What durations cannot be multiplied by.
    Scale(f64),
}

impl fmt::Display for RetryPolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDelay => f.write_str("a list has at least one delay"),
            Self::NoAttempt => f.write_str("there is at least one attempt: the first"),
            Self::Factor(factor) => write!(f, "a factor is finite and at least 1, not {factor}"),
            Self::Share(share) => write!(f, "a share of a delay is 0 to 1, not {share}"),
            Self::Scale(scale) => write!(f, "a scale is finite and not negative, not {scale}"),
        }
    }
}

impl Error for RetryPolicyError {}
