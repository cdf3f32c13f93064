//! How far a deadline is moved.

use std::time::Duration;

/// How far a move takes a deadline from where it is: a duration with a direction.
///
/// ```
/// use countwheel_time::By;
/// use std::time::Duration;
///
/// let hour = Duration::from_secs(3_600);
/// assert_eq!(By::Later(hour), By::from(hour));
/// assert_ne!(By::Later(hour), By::Sooner(hour));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum By {
    /// So much later.
    Later(Duration),
    /// So much sooner.
    Sooner(Duration),
}

impl From<Duration> for By {
    fn from(later: Duration) -> Self {
        Self::Later(later)
    }
}
