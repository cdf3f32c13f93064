//! The results of a retry store.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::{Attempts, GiveUp, StopSignal};
use countwheel::Instant;

/// One attempt, as its handler sees it.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Attempt, Failure, Retry, RetryPolicy};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let handler = |name: &String, attempt: &Attempt| -> Result<(), Failure<String>> {
///     attempt.signal().check().map_err(|told| Failure::Permanent(told.to_string()))?;
///     assert_eq!(attempt.first_at().as_nanos(), 0);
///     match attempt.number() {
///         1 => Err(format!("{name} is down"))?, // worth another try
///         2 => Err(Failure::RetryAfter("busy".to_owned(), Duration::from_secs(60))),
///         _ => Ok(()),
///     }
/// };
/// let retry = Retry::new(host.timer().clone(), RetryPolicy::dubbo_failback(), handler);
/// retry.submit("registry".to_owned()).unwrap();
/// host.advance(Duration::from_secs(64));
/// assert_eq!(retry.stats().succeeded, 0);
/// host.advance(Duration::from_secs(1));
/// assert_eq!(retry.stats().succeeded, 1);
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    pub(super) attempts: Attempts,
    pub(super) signal: StopSignal,
}

impl Attempt {
    /// Its number: 1 for the first, without a gap.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.attempts.made()
    }

    /// When the operation was submitted, on the clock of the timer.
    #[must_use]
    pub fn first_at(&self) -> Instant {
        self.attempts.first_at()
    }

    /// How far the operation has come, this attempt included.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        self.attempts
    }

    /// Tells the attempt to stop: it was overtaken or cancelled, or the store has stopped.
    /// An attempt that does not look goes on to its end, async ones included: none is dropped
    /// half-way, since what it has sent may still arrive.
    #[must_use]
    pub fn signal(&self) -> &StopSignal {
        &self.signal
    }
}

/// How an attempt failed.
///
/// Any error becomes a retryable failure with `?` or `into`.
///
/// ```
/// use countwheel_patterns::Failure;
/// use std::time::Duration;
///
/// fn judge(status: u16) -> Result<(), Failure<u16>> {
///     match status {
///         200..300 => Ok(()),
///         429 => Err(Failure::RetryAfter(status, Duration::from_secs(30))),
///         400..500 => Err(Failure::Permanent(status)),
///         _ => Err(status.into()),
///     }
/// }
/// assert_eq!(judge(503), Err(Failure::Retryable(503)));
/// assert_eq!(judge(404).unwrap_err().into_error(), 404);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure<E> {
    /// Another attempt may succeed: after the delay of the schedule.
    Retryable(E),
    /// No attempt ever will.
    Permanent(E),
    /// Another attempt may succeed, and the other side said after how long: see
    /// [`Attempts::next_after`](crate::Attempts::next_after).
    RetryAfter(E, Duration),
}

impl<E> Failure<E> {
    /// What went wrong.
    pub fn into_error(self) -> E {
        match self {
            Self::Retryable(error) | Self::Permanent(error) | Self::RetryAfter(error, _) => error,
        }
    }
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Self::Retryable(error)
    }
}

/// Names an operation of a [`Retry`](super::Retry). Never given twice by one store; those of two
/// stores, or of two processes, have nothing to do with each other. With the feature `serde` it is
/// data, a number.
///
/// ```
/// use countwheel_patterns::RetryId;
///
/// let written = RetryId::new(7).get();
/// assert_eq!(RetryId::new(written), RetryId::new(7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RetryId(pub(super) u64);

impl RetryId {
    /// The id with that number: for what was kept somewhere.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// An operation that ended without success: given up, or dropped for lack of room. See
/// [`RetryBuilder::dead_letter`](super::RetryBuilder::dead_letter).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeadLetter<K, T, E> {
    /// Its key, or its [`RetryId`].
    pub key: K,
    /// What was submitted.
    pub value: T,
    /// How often it was tried, and since when.
    pub attempts: Attempts,
    /// The last error; none if no attempt has returned one.
    pub error: Option<E>,
    /// Why it is here.
    pub reason: GiveUp,
}

/// An operation that has not ended, with all that is needed to go on with it elsewhere. See
/// [`Retry::stop`](super::Retry::stop) and [`Retry::resume`](super::Retry::resume). Its times are of
/// one clock: a [`SavedRetry`](crate::SavedRetry) can be kept on a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingRetry<K, T, E> {
    /// Its key, or its [`RetryId`].
    pub key: K,
    /// What was submitted.
    pub value: T,
    /// How often it was tried, and since when.
    pub attempts: Attempts,
    /// The last error; none if no attempt has returned one.
    pub error: Option<E>,
    /// When the next attempt was to start, on the clock of the timer.
    pub next_at: Instant,
}

/// What a stop gives back.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RetryStopped<K, T, E> {
    /// What waited, in the order in which it would have been tried.
    pub pending: Vec<PendingRetry<K, T, E>>,
    /// How many attempts were told to stop and have not ended yet.
    pub in_flight: usize,
}

/// What a cancel found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an attempt may still be in flight"]
pub enum Cancelled<T> {
    /// The operation waited, and never will again.
    Pending(T),
    /// An attempt is in flight. It was told to stop, its result changes nothing, and no other
    /// follows.
    InFlight,
    /// There is no such operation: it has ended, or never was.
    Absent,
}

/// Why an operation was not accepted. It comes back unchanged.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Failure, Retry, RetryPolicy, SubmitError};
///
/// let host = ManualHost::new();
/// let retry = Retry::new(host.timer().clone(), RetryPolicy::eureka(), |_: &u32, _| {
///     Ok::<_, Failure<()>>(())
/// });
/// retry.stop();
/// let refused = retry.submit(7).unwrap_err();
/// assert!(matches!(refused, SubmitError::Closed(7)));
/// assert_eq!(refused.to_string(), "the store or its timer has stopped");
/// assert_eq!(refused.into_inner(), 7);
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError<V> {
    /// The store has stopped for good, or the timer below it.
    #[error("the store or its timer has stopped")]
    Closed(V),
    /// The store has no room: see [`WhenFull`](super::WhenFull).
    #[error("as many operations are pending as may be")]
    Full(V),
    /// The key has an operation already. Only the calls that say `if_absent` mind.
    #[error("the key has an operation already")]
    Present(V),
    /// The timer's thread could not be started. Try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// What was submitted.
        value: V,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl<V> SubmitError<V> {
    /// What was not accepted.
    pub fn into_inner(self) -> V {
        match self {
            Self::Closed(value)
            | Self::Full(value)
            | Self::Present(value)
            | Self::NoThread { value, .. } => value,
        }
    }

    pub(super) fn map<W>(self, change: impl FnOnce(V) -> W) -> SubmitError<W> {
        match self {
            Self::Closed(value) => SubmitError::Closed(change(value)),
            Self::Full(value) => SubmitError::Full(change(value)),
            Self::Present(value) => SubmitError::Present(change(value)),
            Self::NoThread { value, source } => SubmitError::NoThread {
                value: change(value),
                source,
            },
        }
    }
}

/// Names the reason alone, so that any value will do.
impl<V> fmt::Debug for SubmitError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Closed(_) => "Closed",
            Self::Full(_) => "Full",
            Self::Present(_) => "Present",
            Self::NoThread { source, .. } => {
                let mut fields = f.debug_struct("NoThread");
                return fields.field("source", source).finish_non_exhaustive();
            }
        };
        f.debug_tuple(name).finish_non_exhaustive()
    }
}

/// What a retry store has done so far.
///
/// Two accounts, each exact at any moment. Of operations: `submitted` equals `succeeded +
/// given_up + dropped + cancelled + superseded + returned + pending + in_flight`. Of attempts:
/// `attempts` equals `succeeded + failed + panicked + interrupted + void + in_flight +
/// fencing`.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Failure, Retry, RetryPolicy};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let policy = RetryPolicy::dubbo_failback();
/// let retry = Retry::new(host.timer().clone(), policy, |&value: &u32, _| match value {
///     1 => Ok(()),
///     2 => Err(Failure::Permanent("no")),
///     _ => Err(Failure::Retryable("not yet")),
/// });
/// for value in 1..=3 {
///     retry.submit(value).unwrap();
/// }
/// host.advance(Duration::from_secs(7));
/// let stats = retry.stats();
/// assert_eq!((stats.submitted, stats.succeeded, stats.given_up, stats.pending), (3, 1, 1, 1));
/// assert_eq!((stats.attempts, stats.failed), (4, 3));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RetryStats {
    /// Operations that were accepted.
    pub submitted: u64,
    /// Operations that succeeded; each with its last attempt.
    pub succeeded: u64,
    /// Operations that are not tried again: all attempts made, too old, no budget, permanent.
    pub given_up: u64,
    /// Operations that were dropped for lack of room, or with the store.
    pub dropped: u64,
    /// Operations that somebody cancelled.
    pub cancelled: u64,
    /// Operations that a newer one of their key took the place of.
    pub superseded: u64,
    /// Operations that a stop gave back.
    pub returned: u64,
    /// Operations that wait: for their time, for an attempt of their key to end, for a place
    /// among the attempts in flight, or for the executor.
    pub pending: u64,
    /// Operations of which an attempt is in flight.
    pub in_flight: u64,
    /// Operations that were not accepted. They are in no other number.
    pub refused: u64,
    /// Attempts that were started.
    pub attempts: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Attempts that panicked.
    pub panicked: u64,
    /// Async attempts that were dropped before their end: the timer had stopped, or nobody could
    /// wake them any more. The operation goes on as after a failure, or waits for the stop.
    pub interrupted: u64,
    /// Attempts that ended after their operation was cancelled or overtaken, however they
    /// ended.
    pub void: u64,
    /// Attempts in flight of operations that were cancelled or overtaken: the next operation
    /// of their key waits for them.
    pub fencing: u64,
}
