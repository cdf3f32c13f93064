//! The results of calls of delayed operations.

use std::sync::Arc;
use std::{fmt, io};

/// What became of an operation when it was handed in. See
/// [`DelayedOperations::try_complete_else_watch`](crate::broker::DelayedOperations::try_complete_else_watch).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// The call has completed it.
    Completed,
    /// It waits for a check, or for its time. (Another thread may have completed it by now.)
    Waiting,
}

/// Why an operation was not accepted. It comes back, neither completed nor expired. See
/// [`DelayedOperations::try_complete_else_watch`](crate::broker::DelayedOperations::try_complete_else_watch).
///
/// ```
/// use countwheel::Timer;
/// use countwheel_patterns::broker::{DelayedOperation, DelayedOperations, DelayedOperationError};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// #[derive(Debug)]
/// struct Never;
/// impl DelayedOperation for Never {
///     fn try_complete(&self) -> bool {
///         false
///     }
///     fn on_complete(&self) {}
/// }
///
/// let operations = DelayedOperations::new(Timer::builder().max_pending(1).build());
/// let hour = Duration::from_secs(3600);
/// operations.try_complete_else_watch(Arc::new(Never), ["a"], hour)?;
/// let refused = operations.try_complete_else_watch(Arc::new(Never), ["a"], hour).unwrap_err();
/// assert!(matches!(refused, DelayedOperationError::Full(_)));
/// assert_eq!(Arc::strong_count(&refused.into_operation()), 1, "nobody else has it");
///
/// operations.close();
/// let refused = operations.try_complete_else_watch(Arc::new(Never), ["a"], hour);
/// assert!(matches!(refused, Err(DelayedOperationError::Closed(_))));
/// # Ok::<(), DelayedOperationError<Never>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DelayedOperationError<O: ?Sized> {
    /// No more operations are taken, or the timer below has stopped, for good.
    #[error("no more operations are taken")]
    Closed(Arc<O>),
    /// As many operations wait as may, or as many tasks are pending as
    /// [`max_pending`](countwheel::TimerBuilder::max_pending) of the timer allows.
    #[error("there is no room for another operation, here or in the timer")]
    Full(Arc<O>),
    /// The timer's thread could not be started: try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// The operation.
        operation: Arc<O>,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl<O: ?Sized> DelayedOperationError<O> {
    /// The operation that was not accepted.
    #[must_use]
    pub fn into_operation(self) -> Arc<O> {
        match self {
            Self::Closed(operation) | Self::Full(operation) | Self::NoThread { operation, .. } => {
                operation
            }
        }
    }
}

/// Names the reason alone, so that any operation will do.
impl<O: ?Sized> fmt::Debug for DelayedOperationError<O> {
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

/// What delayed operations have done so far. See
/// [`DelayedOperations::stats`](crate::broker::DelayedOperations::stats).
///
/// `submitted` equals `completed + expired + cancelled + returned + pending`, exactly, whenever
/// no call and no expiry is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DelayedOperationsStats {
    /// Operations that were accepted, those that were completed at once included.
    pub submitted: u64,
    /// Operations that were completed by a try.
    pub completed: u64,
    /// Operations whose time was up.
    pub expired: u64,
    /// Operations that were taken back by
    /// [`cancel_for_key`](crate::broker::DelayedOperations::cancel_for_key).
    pub cancelled: u64,
    /// Operations that were given back by a stop.
    pub returned: u64,
    /// Operations that wait.
    pub pending: u64,
    /// Operations that were not accepted. They are in no other number.
    pub refused: u64,
    /// How often an operation was asked to complete.
    pub tries: u64,
    /// How many calls of operations have panicked.
    pub panicked: u64,
}
