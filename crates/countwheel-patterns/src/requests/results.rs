//! The results of requests: answers, refusals, values that came too late, counters.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use super::OwnId;

/// Why a request has no answer.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{RequestError, Requests};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let requests = Requests::<()>::new(host.timer().clone());
/// let (queued, sent) = (
///     requests.register(Duration::from_secs(1))?,
///     requests.register(Duration::from_secs(1))?,
/// );
/// requests.mark_sent(sent.id());
/// host.advance(Duration::from_secs(1));
/// let (queued, sent) = (queued.wait().unwrap_err(), sent.wait().unwrap_err());
/// assert_eq!(queued.to_string(), "not sent within 1s");
/// assert_eq!(sent.to_string(), "sent, but not answered within 1s");
/// assert!(matches!(sent, RequestError::TimedOut { sent: true, .. }));
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The deadline came first.
    #[error("{} within {elapsed:?}", if *sent { "sent, but not answered" } else { "not sent" })]
    TimedOut {
        /// Whether it was marked as sent: if not, the time was spent on this side, and the
        /// other side has not seen it.
        sent: bool,
        /// From the registration until it ended: the limit and the lateness.
        elapsed: Duration,
    },
    /// Somebody cancelled it, by its id or by dropping its [`Promise`](super::Promise).
    #[error("the request was cancelled")]
    Cancelled,
    /// Its channel was closed, and the grace was over.
    #[error("the channel was closed")]
    ChannelClosed,
    /// The table or its timer has stopped, or was dropped.
    #[error("the requests were stopped")]
    Stopped,
    /// Somebody said so with [`Requests::fail`](super::Requests::fail).
    #[error("the request failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

/// Why a request was not taken on.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{OwnId, RegisterError, Requests};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let requests = Requests::<()>::builder(host.timer().clone()).max_in_flight(1).build();
/// let first = requests.register_as(OwnId(7), Duration::from_secs(1))?;
/// let refused = requests.register(Duration::from_secs(1)).unwrap_err();
/// assert!(matches!(refused, RegisterError::Full));
/// drop(first);
/// let again = requests.register_as(OwnId(7), Duration::from_secs(1))?;
/// assert_eq!(requests.stats().refused, 1);
/// # Ok::<(), RegisterError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The table or its timer has stopped.
    #[error("the requests were stopped")]
    Stopped,
    /// The channel is closed, or closes.
    #[error("the channel was closed")]
    ChannelClosed,
    /// As many requests are in flight as may be. There is room as soon as one ends.
    #[error("as many requests are in flight as may be")]
    Full,
    /// A request with this number is in flight.
    #[error("a request with the number {} is in flight", .0.0)]
    Duplicate(OwnId),
    /// The timer's thread could not be started: try again later.
    #[error("the timer's thread could not be started")]
    NoThread(#[source] io::Error),
}

/// A value for which no request waits: it has ended already, in whatever way, or there never
/// was one. The value comes back.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::Requests;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let requests = Requests::new(host.timer().clone());
/// let response = requests.register(Duration::from_secs(1))?;
/// host.advance(Duration::from_millis(1_250));
/// let late = requests.complete(response.id(), "here I am").unwrap_err();
/// assert_eq!(late.value, "here I am");
/// assert_eq!(late.by, Some(Duration::from_millis(250)));
/// assert_eq!(late.to_string(), "late by 250ms");
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late<T> {
    /// The value.
    pub value: T,
    /// How long after its deadline it came. `None` if the request did not time out, or that is
    /// forgotten: each part of a table remembers the last 256 or so.
    pub by: Option<Duration>,
}

impl<T> fmt::Display for Late<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Some(by) => write!(f, "late by {by:?}"),
            None => f.write_str("no request waits for this"),
        }
    }
}

impl<T> fmt::Debug for Late<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late")
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

impl<T> Error for Late<T> {}

/// What a table of requests has done so far. See [`Requests::stats`](super::Requests::stats).
///
/// `registered` equals `completed + failed + timed_out_unsent + timed_out_sent + cancelled +
/// closed + stopped + in_flight`, exactly, at whatever moment it is read: a request is counted
/// together with its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RequestStats {
    /// Requests that were taken on.
    pub registered: u64,
    /// Those that got their value.
    pub completed: u64,
    /// Those that were failed by [`fail`](super::Requests::fail).
    pub failed: u64,
    /// Those that timed out before they were marked as sent.
    pub timed_out_unsent: u64,
    /// Those that timed out after they were marked as sent.
    pub timed_out_sent: u64,
    /// Those that were cancelled, or whose [`Response`](super::Response) was dropped.
    pub cancelled: u64,
    /// Those whose channel was closed.
    pub closed: u64,
    /// Those that ended because the table or its timer did.
    pub stopped: u64,
    /// Those that have not ended.
    pub in_flight: u64,
    /// Values and errors that came for no request. They are in no other number.
    pub late: u64,
    /// Requests that were not taken on. They are in no other number.
    pub refused: u64,
    /// Handlers that did not run on the executor, because it had not begun them in time or
    /// had stopped. See [`Response::on_end`](super::Response::on_end).
    pub handled_inline: u64,
}

impl RequestStats {
    pub(super) fn ended(&self) -> u64 {
        self.completed
            + self.failed
            + self.timed_out_unsent
            + self.timed_out_sent
            + self.cancelled
            + self.closed
            + self.stopped
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.registered += other.registered;
        self.completed += other.completed;
        self.failed += other.failed;
        self.timed_out_unsent += other.timed_out_unsent;
        self.timed_out_sent += other.timed_out_sent;
        self.cancelled += other.cancelled;
        self.closed += other.closed;
        self.stopped += other.stopped;
        self.in_flight += other.in_flight;
    }
}
