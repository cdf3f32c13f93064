//! Requests that end together, because they share a connection.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::books::ChannelNumber;
use super::response::Response;
use super::shard::RequestShard;
use super::{OwnId, RegisterError, Requests};
use crate::Limit;
use crate::concurrent::Outcome;
use countwheel::building::block_until;

/// A connection, as a table of requests sees it: what is registered on it can be ended
/// together. Made by [`Requests::channel`].
///
/// All requests of a channel are behind one lock of the table. So threads that share a channel
/// share a lock, as they share the connection.
///
/// Clones are handles of the same channel, and handles of its table. Dropping them all closes
/// nothing: what is in flight goes on.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{RegisterError, RequestError, Requests};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let requests = Requests::new(host.timer().clone());
/// let connection = requests.channel();
/// let minute = Duration::from_secs(60);
/// let (quick, slow) = (connection.register(minute)?, connection.register(minute)?);
///
/// // The other side says good-bye: what comes within three seconds still counts.
/// let closing = connection.close(Duration::from_secs(3));
/// assert!(matches!(connection.register(minute), Err(RegisterError::ChannelClosed)));
/// requests.complete(quick.id(), "pong").unwrap();
/// assert_eq!(quick.wait().unwrap(), "pong");
/// host.advance(Duration::from_secs(3));
/// assert!(matches!(slow.wait(), Err(RequestError::ChannelClosed)));
/// closing.wait(); // not at all: nothing is in flight
/// # Ok::<(), RegisterError>(())
/// ```
#[must_use = "the channel is closed when its last handle is dropped"]
pub struct RequestChannel<T: Send + 'static> {
    held: Arc<Held<T>>,
}

/// All clones of a channel together.
struct Held<T: Send + 'static> {
    requests: Requests<T>,
    shard: Arc<RequestShard<T>>,
    number: ChannelNumber,
}

impl<T: Send + 'static> RequestChannel<T> {
    pub(super) fn new(requests: Requests<T>, shard: Arc<RequestShard<T>>) -> Self {
        let number = shard.with(super::books::RequestBooks::add_channel);
        Self {
            held: Arc::new(Held {
                requests,
                shard,
                number,
            }),
        }
    }

    /// Like [`Requests::register`], for a request on this channel.
    ///
    /// # Errors
    /// [`RegisterError::ChannelClosed`] after [`close`](Self::close), and those of
    /// [`Requests::register`].
    pub fn register(&self, limit: impl Into<Limit>) -> Result<Response<T>, RegisterError> {
        let number = Some(self.held.number);
        self.held.shard.register(number, None, limit.into())
    }

    /// Like [`Requests::register_as`], for a request on this channel.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{OwnId, Requests};
    /// # use std::time::Duration;
    /// # let host = ManualHost::new();
    /// # let requests = Requests::new(host.timer().clone());
    /// let connection = requests.channel();
    /// let response = connection.register_as(OwnId(1), Duration::from_secs(1))?;
    /// requests.complete(OwnId(1), "pong").unwrap();
    /// assert_eq!(response.wait().unwrap(), "pong");
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    ///
    /// # Errors
    /// [`RegisterError::ChannelClosed`] after [`close`](Self::close), and those of
    /// [`Requests::register_as`].
    pub fn register_as(
        &self,
        own: OwnId,
        limit: impl Into<Limit>,
    ) -> Result<Response<T>, RegisterError> {
        let number = Some(self.held.number);
        self.held.shard.register(number, Some(own), limit.into())
    }

    /// The table it belongs to.
    #[must_use]
    pub fn requests(&self) -> &Requests<T> {
        &self.held.requests
    }

    /// How many requests are in flight on it.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let number = self.held.number;
        self.held.shard.with(|books| books.in_flight_on(number))
    }

    /// Whether it takes requests no more, because it was closed or the table stopped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let number = self.held.number;
        let shard = &self.held.shard;
        shard.timer().is_stopped()
            || shard.with(|books| books.is_closed || books.is_channel_closed(number))
    }

    /// Takes requests no more. Those in flight have `grace` left, all at the same time; those
    /// that have not ended by then fail with
    /// [`RequestError::ChannelClosed`](super::RequestError::ChannelClosed). Never blocks, and
    /// makes nothing end later than it would otherwise.
    ///
    /// With [`Duration::ZERO`] they all have failed when this returns. With
    /// [`Duration::MAX`] each has its own time. A channel may be closed again; what counts is
    /// the sooner end.
    ///
    /// O(1), but for the requests that it fails itself.
    pub fn close(&self, grace: Duration) -> Closing {
        let idle = Arc::new(Outcome::new());
        let held = &self.held;
        held.shard.close_channel(held.number, grace, &idle);
        Closing { idle }
    }
}

impl<T: Send + 'static> Clone for RequestChannel<T> {
    fn clone(&self) -> Self {
        Self {
            held: Arc::clone(&self.held),
        }
    }
}

impl<T: Send + 'static> Drop for Held<T> {
    fn drop(&mut self) {
        let number = self.number;
        self.shard.with(|books| books.release_channel(number));
    }
}

impl<T: Send + 'static> fmt::Debug for RequestChannel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestChannel")
            .field("in_flight", &self.in_flight())
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// A channel that closes. Ends when nothing is in flight on it any more: then the connection
/// itself may go. Made by [`RequestChannel::close`].
///
/// Await it or block with [`wait`](Self::wait). Dropping it waits for nothing.
///
/// ```
/// use countwheel::Timer;
/// use countwheel_patterns::Requests;
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let requests = Requests::<()>::new(Timer::new());
/// let connection = requests.channel();
/// let response = connection.register(Duration::from_secs(60))?;
/// connection.close(Duration::from_millis(2)).await;
/// assert!(response.is_ended());
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// # }).unwrap();
/// ```
#[must_use = "to wait for the last request; dropping it is fine"]
pub struct Closing {
    idle: Arc<Outcome<()>>,
}

impl Closing {
    /// Blocks this thread until nothing is in flight on the channel any more.
    ///
    /// # Panics
    /// If it was polled to its end before.
    pub fn wait(mut self) {
        block_until(|cx| Pin::new(&mut self).poll(cx));
    }
}

impl Future for Closing {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.idle.poll(cx)
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closing")
            .field("is_over", &self.idle.is_settled())
            .finish_non_exhaustive()
    }
}
