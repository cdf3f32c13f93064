//! The results of calls of delay queues.

use std::time::Duration;
use std::{fmt, io};

use countwheel::{Histogram, Instant};

/// An item that was taken after its deadline. See
/// [`DelayQueue::take`](crate::DelayQueue::take).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due<T> {
    /// What was pushed; of a keyed queue, the key and the value.
    pub value: T,
    /// The deadline that was asked for, on the clock of the timer, not rounded.
    pub deadline: Instant,
    /// The moment of the taking minus the deadline.
    pub lateness: Duration,
}

/// An item that came back before anybody took it, be it due or not. See
/// [`DelayQueue::stop`](crate::DelayQueue::stop), and [`SavedItem`](crate::SavedItem) to write it
/// down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undue<T> {
    /// What was pushed; of a keyed queue, the key and the value.
    pub value: T,
    /// The deadline that was asked for, on the clock of the timer, not rounded.
    pub deadline: Instant,
}

/// Why an item was not accepted. It comes back. See
/// [`DelayQueue::push`](crate::DelayQueue::push).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{DelayQueue, PushError};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let queue = DelayQueue::bounded(host.timer().clone(), 1);
/// queue.push("first", Duration::from_secs(1))?;
/// let refused = queue.push("second", Duration::from_secs(1)).unwrap_err();
/// assert_eq!(refused.to_string(), "as many items wait as may");
/// assert_eq!(refused.into_value(), "second");
///
/// queue.close();
/// let refused = queue.push("third", Duration::from_secs(1));
/// assert!(matches!(refused, Err(PushError::Closed("third"))));
/// # Ok::<(), PushError<&str>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PushError<T> {
    /// The queue was closed, or the timer below it has stopped, for good.
    #[error("the queue is closed")]
    Closed(T),
    /// As many items wait as the queue has room for. There is room as soon as one is taken or
    /// cancelled.
    #[error("as many items wait as may")]
    Full(T),
    /// The timer's thread could not be started. The queue is as it was: try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// What was to be pushed.
        value: T,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl<T> PushError<T> {
    /// What was not accepted.
    #[must_use]
    pub fn into_value(self) -> T {
        match self {
            Self::Closed(value) | Self::Full(value) | Self::NoThread { value, .. } => value,
        }
    }
}

/// Names the reason alone, so that any value will do.
impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.debug_tuple("Closed").finish_non_exhaustive(),
            Self::Full(_) => f.debug_tuple("Full").finish_non_exhaustive(),
            Self::NoThread { source, .. } => f
                .debug_struct("NoThread")
                .field("source", source)
                .finish_non_exhaustive(),
        }
    }
}

/// Why nothing was taken. See [`DelayQueue::take_for`](crate::DelayQueue::take_for).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TakeError {
    /// Nothing was due in time. There may be something later.
    #[error("nothing was due in time")]
    TimedOut,
    /// Nothing will ever come: the queue was closed and is empty, or the timer below it has
    /// stopped.
    #[error("the queue has ended")]
    Ended,
}

/// What a delay queue has done so far. See
/// [`DelayQueue::stats`](crate::DelayQueue::stats).
///
/// `pushed` equals `taken + replaced + cancelled + returned + pending`, exactly and at any
/// moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DelayQueueStats {
    /// Items that were accepted.
    pub pushed: u64,
    /// Items that were taken after their deadlines.
    pub taken: u64,
    /// Items whose place a newer one of the same key took.
    pub replaced: u64,
    /// Items that were cancelled.
    pub cancelled: u64,
    /// Items that were given back by a drain or a stop.
    pub returned: u64,
    /// Items that are there now, due or not.
    pub pending: u64,
    /// Items that were not accepted. They are in no other number.
    pub refused: u64,
    /// How often somebody who waited was woken.
    pub wake_ups: u64,
    /// The moment each item was taken minus its deadline.
    pub lateness: Histogram,
    /// The longest lateness.
    pub lateness_max: Duration,
}
