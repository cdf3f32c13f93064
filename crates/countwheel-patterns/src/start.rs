//! The start of periodic tasks and workers, and the end of one of their runs.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use countwheel::ScheduleError;

/// How a run of a [`Periodic`](super::Periodic) or [`Supervised`](super::Supervised) task has
/// ended, in what it says itself. (Panics and timeouts are noticed anyway.)
///
/// A function need not know it: one that returns nothing is [`Done`](Self::Done), an `Err` is
/// [`Failed`](Self::Failed), and [`ControlFlow::Break`] is [`Break`](Self::Break).
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Periodic, RunEnd};
/// use std::ops::ControlFlow;
/// use std::time::Duration;
///
/// assert_eq!(RunEnd::from(()), RunEnd::Done);
/// assert_eq!(RunEnd::from(Err::<(), _>("no route")), RunEnd::Failed);
///
/// let mut host = ManualHost::new();
/// let second = Duration::from_secs(1);
/// let mut left = 3;
/// let countdown = Periodic::at_fixed_rate(second).start(host.timer(), move || {
///     left -= 1;
///     if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
/// })?;
/// host.advance(10 * second);
/// assert!(countdown.is_over());
/// assert_eq!(countdown.stats().runs, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum RunEnd {
    /// It did what it was to do.
    #[default]
    Done,
    /// It did not. Counted apart; what follows is an option.
    Failed,
    /// It did, and was the last: none begins any more.
    Break,
}

impl From<()> for RunEnd {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<E> From<Result<(), E>> for RunEnd {
    fn from(result: Result<(), E>) -> Self {
        result.map_or(Self::Failed, |()| Self::Done)
    }
}

impl From<ControlFlow<()>> for RunEnd {
    fn from(flow: ControlFlow<()>) -> Self {
        match flow {
            ControlFlow::Continue(()) => Self::Done,
            ControlFlow::Break(()) => Self::Break,
        }
    }
}

/// Why something that runs again and again was not started. The function comes back unchanged.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Periodic, StartError};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let flush = || println!("flushed");
/// let never = Periodic::at_fixed_rate(Duration::ZERO).start(host.timer(), flush).unwrap_err();
/// assert_eq!(never.to_string(), "the period is zero");
///
/// host.timer().stop();
/// let second = Duration::from_secs(1);
/// let refused = Periodic::at_fixed_rate(second).start(host.timer(), flush).unwrap_err();
/// assert!(matches!(refused, StartError::Closed(_)));
/// (refused.into_work())(); // then here, once
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError<W> {
    /// The timer has stopped for good.
    #[error("the timer has stopped")]
    Closed(W),
    /// As many tasks are pending as [`max_pending`](countwheel::TimerBuilder::max_pending) allows.
    /// What has been started is not subject to that any more.
    #[error("as many tasks are pending as may be")]
    Full(W),
    /// The timer's thread could not be started. The timer is as it was: try again later.
    #[error("the timer's thread could not be started")]
    NoThread {
        /// The function.
        work: W,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The options make no sense.
    #[error("{problem}")]
    Invalid {
        /// The function.
        work: W,
        /// Which of them does not, in words.
        problem: &'static str,
    },
}

impl<W> StartError<W> {
    /// What was refused, out of the work that was made for it.
    pub(super) fn new<P>(error: ScheduleError, work: Arc<P>, inner: impl FnOnce(P) -> W) -> Self {
        let source = match error {
            ScheduleError::NoThread { task, source } => {
                drop(task);
                Some(Some(source))
            }
            ScheduleError::Full(task) => {
                drop(task);
                Some(None)
            }
            closed => {
                drop(closed);
                None
            }
        };
        let work = Arc::into_inner(work).expect("what was not started has no other owner");
        let work = inner(work);
        match source {
            Some(Some(source)) => Self::NoThread { work, source },
            Some(None) => Self::Full(work),
            None => Self::Closed(work),
        }
    }

    /// What was to be run.
    #[must_use]
    pub fn into_work(self) -> W {
        match self {
            Self::Closed(work)
            | Self::Full(work)
            | Self::NoThread { work, .. }
            | Self::Invalid { work, .. } => work,
        }
    }
}

/// Names the reason alone, so that any function will do.
impl<W> fmt::Debug for StartError<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(_) => f.write_str("Closed(..)"),
            Self::Full(_) => f.write_str("Full(..)"),
            Self::NoThread { source, .. } => {
                let mut fields = f.debug_struct("NoThread");
                fields.field("source", source).finish_non_exhaustive()
            }
            Self::Invalid { problem, .. } => {
                let mut fields = f.debug_struct("Invalid");
                fields.field("problem", problem).finish_non_exhaustive()
            }
        }
    }
}

/// A share of a span; [`Duration::MAX`] if that is too long.
pub(super) fn times(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// Whether it says how much of something: from none of it to all.
pub(super) fn is_share(share: f64) -> bool {
    (0.0..=1.0).contains(&share)
}
