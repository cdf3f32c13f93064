//! Requests in flight: each ends once, by its answer or at its deadline at the latest.
//!
//! `shard.rs` holds the one lock that decides the end of a request. `books.rs` has the state under
//! that lock, `directory.rs` the callers' own numbers, `handler.rs` the way of a handler to its
//! run.

mod books;
mod channel;
mod directory;
mod handler;
mod id;
mod promise;
mod response;
mod results;
mod shard;

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use self::id::MOST_SHARDS;
use self::id::sealed::Name;
use self::shard::{RequestHub, RequestShard};
use super::Limit;
use countwheel::Timer;
use countwheel::building::number_of_thread;

pub use self::channel::{Closing, RequestChannel};
pub use self::id::{OwnId, RequestId, RequestKey};
pub use self::promise::Promise;
pub use self::response::Response;
pub use self::results::{Late, RegisterError, RequestError, RequestStats};

/// How long Dubbo waits for an answer unless told otherwise.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{DUBBO_TIMEOUT, Requests};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let requests = Requests::<()>::new(host.timer().clone());
/// let response = requests.register(DUBBO_TIMEOUT)?;
/// assert_eq!(response.deadline().as_nanos(), 1_000_000_000);
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
pub const DUBBO_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Requests that wait for an answer, each with a deadline: what stands between a client and
/// its connections.
///
/// [`register`](Self::register) gives an id, which is sent with the request and comes back
/// with the answer, and a [`Response`], which is what the caller waits for. Then exactly one
/// thing happens, through every race: the answer [completes](Self::complete) it, somebody
/// [fails](Self::fail) or [cancels](Self::cancel) it, its
/// [channel](RequestChannel::close) is closed, its deadline comes, or the table stops. And one
/// of them always does, so that no caller waits for ever. Never early: a request times out once
/// the timer's clock has reached its deadline. [`Duration::ZERO`] times out at once,
/// [`Duration::MAX`] never.
///
/// Where a request ends, its place in the table is freed there and then. The table
/// holds neither question nor answer: the answer goes from the one who brings it to the
/// [`Response`], and no further.
///
/// To register or to complete is O(1) and takes one short lock, that of a shard; a thread
/// registers on a shard of its own. To register allocates what the two ends share, and nothing
/// else does; to register and to mark as sent reads the clock. Whoever ends a request wakes its caller, without the lock. The
/// timer has one entry for each shard, however many requests there are, and they do not count
/// under its [`max_pending`](countwheel::TimerBuilder::max_pending).
///
/// Clones are handles to the same table, and cheap. When the last one is dropped, the requests
/// in flight end as with [`stop`](Self::stop); and so they do if the timer stops. (A timer that
/// is closed with [`Stop::WaitUpTo`](countwheel::Stop::WaitUpTo) ends them at the next deadline at
/// the latest.)
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{RequestError, Requests};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let requests = Requests::new(host.timer().clone());
/// let timeout = Duration::from_secs(3);
/// let (first, second) = (requests.register(timeout)?, requests.register(timeout)?);
/// requests.mark_sent(first.id()); // once it has been written
///
/// host.advance(Duration::from_secs(1));
/// requests.complete(second.id(), "pong").unwrap();
/// assert_eq!(second.wait().unwrap(), "pong");
///
/// let id = first.id();
/// host.advance(Duration::from_secs(2));
/// assert!(matches!(first.wait(), Err(RequestError::TimedOut { sent: true, .. })));
/// host.advance(Duration::from_secs(1));
/// let late = requests.complete(id, "pong").unwrap_err();
/// assert_eq!((late.value, late.by), ("pong", Some(Duration::from_secs(1))));
///
/// let stats = requests.stats();
/// assert_eq!((stats.registered, stats.completed, stats.timed_out_sent), (2, 1, 1));
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
pub struct Requests<T: Send + 'static> {
    table: Arc<Table<T>>,
}

/// All clones of a table together, as opposed to what the timer and the callers hold.
struct Table<T: Send + 'static> {
    hub: Arc<RequestHub>,
    shards: Box<[Arc<RequestShard<T>>]>,
    next_channel: AtomicUsize,
}

impl<T: Send + 'static> Requests<T> {
    /// A table without a limit on what is in flight, on `timer`.
    #[must_use]
    pub fn new(timer: Timer) -> Self {
        Self::builder(timer).build()
    }

    /// A table with other options.
    pub fn builder(timer: Timer) -> RequestsBuilder<T> {
        RequestsBuilder {
            timer,
            max_in_flight: None,
            handler_patience: Duration::from_millis(100),
            shards: None,
            values: PhantomData,
        }
    }

    /// Takes a request on, to be answered within `limit`: a [`Duration`] from now, an
    /// [`Instant`](countwheel::Instant) or a [`Deadline`](super::Deadline).
    ///
    /// Register before sending: else the answer may come first, and find nothing.
    ///
    /// # Errors
    /// [`RegisterError::Stopped`] if the table or the timer has stopped,
    /// [`RegisterError::Full`] if as many requests are in flight as may be,
    /// [`RegisterError::NoThread`] if the timer's thread could not be started.
    #[inline]
    pub fn register(&self, limit: impl Into<Limit>) -> Result<Response<T>, RegisterError> {
        self.shard_of_thread().register(None, None, limit.into())
    }

    /// Takes a request on under a number that the caller chooses, since a protocol or an older
    /// client does. All methods that take an id take the [`OwnId`] as well.
    ///
    /// The number is free again when the request has ended: its caller may take it at once.
    /// Costs an entry in a hash map, and its lock.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{OwnId, RegisterError, Requests};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let requests = Requests::new(host.timer().clone());
    /// let response = requests.register_as(OwnId(7), Duration::from_secs(1))?;
    /// let refused = requests.register_as(OwnId(7), Duration::from_secs(1)).unwrap_err();
    /// assert!(matches!(refused, RegisterError::Duplicate(OwnId(7))));
    /// requests.complete(OwnId(7), "pong").unwrap();
    /// assert_eq!(response.wait().unwrap(), "pong");
    /// assert!(requests.complete(OwnId(7), "pong").is_err(), "once is enough");
    /// # Ok::<(), RegisterError>(())
    /// ```
    ///
    /// # Errors
    /// [`RegisterError::Duplicate`] if a request with this number is in flight, and those of
    /// [`register`](Self::register).
    pub fn register_as(
        &self,
        own: OwnId,
        limit: impl Into<Limit>,
    ) -> Result<Response<T>, RegisterError> {
        let shard = self.shard_of_thread();
        shard.register(None, Some(own), limit.into())
    }

    /// A response together with the end at which it is given its value, for those who have no
    /// use for an id.
    ///
    /// # Errors
    /// Those of [`register`](Self::register).
    pub fn promise(
        &self,
        limit: impl Into<Limit>,
    ) -> Result<(Promise<T>, Response<T>), RegisterError> {
        let shard = self.shard_of_thread();
        let response = shard.register(None, None, limit.into())?;
        Ok((Promise::new(response.id(), shard), response))
    }

    /// The answer has come: the request ends with `value`, and its caller is woken.
    ///
    /// # Errors
    /// [`Late`], with the value, if no such request is in flight: it has ended, or never was.
    #[inline]
    pub fn complete(&self, id: impl RequestKey, value: T) -> Result<(), Late<T>> {
        match self.find(id) {
            Ok((shard, id)) => shard.complete(id, value),
            Err(by) => Err(self.table.hub.late(value, by)),
        }
    }

    /// There will be no answer: the request ends with
    /// [`RequestError::Failed`]. For what goes wrong on the way; an error that is the other
    /// side's answer is better a `Result` in `T`.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{RequestError, Requests};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let requests = Requests::<()>::new(host.timer().clone());
    /// let response = requests.register(Duration::from_secs(1))?;
    /// let id = response.id();
    /// requests.fail(id, "connection reset").unwrap();
    /// let Err(RequestError::Failed(error)) = response.wait() else { panic!() };
    /// assert_eq!(error.to_string(), "connection reset");
    /// assert_eq!(requests.fail(id, "again").unwrap_err().value, "again");
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    ///
    /// # Errors
    /// [`Late`], with the error, if no such request is in flight.
    pub fn fail<E>(&self, id: impl RequestKey, error: E) -> Result<(), Late<E>>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        match self.find(id) {
            Ok((shard, id)) => shard.fail(id, error),
            Err(by) => Err(self.table.hub.late(error, by)),
        }
    }

    /// Takes the request back: it ends with [`RequestError::Cancelled`]. False if no such
    /// request is in flight; then nothing happens, however often. (Its caller simply drops the
    /// [`Response`].)
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{RequestError, Requests};
    /// # use std::time::Duration;
    /// # let host = ManualHost::new();
    /// let requests = Requests::<()>::new(host.timer().clone());
    /// let response = requests.register(Duration::from_secs(1))?;
    /// assert!(requests.cancel(response.id()));
    /// assert!(!requests.cancel(response.id()));
    /// assert!(matches!(response.wait(), Err(RequestError::Cancelled)));
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    pub fn cancel(&self, id: impl RequestKey) -> bool {
        let found = self.find(id);
        found.is_ok_and(|(shard, id)| shard.cancel(id))
    }

    /// Notes that the request was written to the connection: if it times out, that is the other
    /// side's doing ([`RequestError::TimedOut`], `sent`). False, and without effect, if no such
    /// request is in flight, or if its deadline has come: then the time was spent on this side.
    ///
    /// O(1): reads the clock and takes the lock of a shard.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::{RequestError, Requests};
    /// # use std::time::Duration;
    /// # let mut host = ManualHost::new();
    /// let requests = Requests::<()>::new(host.timer().clone());
    /// let response = requests.register(Duration::from_secs(1))?;
    /// host.clock().advance(Duration::from_secs(1)); // a stall, before the write
    /// assert!(!requests.mark_sent(response.id()));
    /// host.run_due();
    /// assert!(matches!(response.wait(), Err(RequestError::TimedOut { sent: false, .. })));
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    pub fn mark_sent(&self, id: impl RequestKey) -> bool {
        let found = self.find(id);
        found.is_ok_and(|(shard, id)| shard.mark_sent(id))
    }

    /// A new channel, for the requests of one connection.
    pub fn channel(&self) -> RequestChannel<T> {
        let shards = &self.table.shards;
        let number = self.table.next_channel.fetch_add(1, Ordering::Relaxed);
        let shard = Arc::clone(&shards[number % shards.len()]);
        RequestChannel::new(self.clone(), shard)
    }

    /// How many requests are in flight. Looks at each shard.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.stats().in_flight
    }

    /// What the table has done so far. Looks at each shard.
    #[must_use]
    pub fn stats(&self) -> RequestStats {
        let mut stats = RequestStats::default();
        for shard in &self.table.shards {
            stats.add(&shard.stats());
        }
        self.table.hub.add_to(&mut stats);
        stats
    }

    /// Takes requests no more, and ends those in flight with [`RequestError::Stopped`]. When
    /// this returns, the caller of each has been told; how many there were. The timer goes on.
    ///
    /// From any thread, any number of times. [Handlers](Response::on_end) run on this thread.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{RegisterError, RequestError, Requests};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let requests = Requests::<()>::new(host.timer().clone());
    /// let response = requests.register(Duration::from_secs(1))?;
    /// assert_eq!(requests.stop(), 1);
    /// assert!(requests.is_stopped());
    /// assert!(matches!(response.wait(), Err(RequestError::Stopped)));
    /// let refused = requests.register(Duration::from_secs(1));
    /// assert!(matches!(refused, Err(RegisterError::Stopped)));
    /// # Ok::<(), RegisterError>(())
    /// ```
    pub fn stop(&self) -> u64 {
        self.table.stop()
    }

    /// Whether requests are refused, because the table or its timer was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let first = &self.table.shards[0];
        first.timer().is_stopped() || first.is_closed()
    }

    fn shard_of_thread(&self) -> &Arc<RequestShard<T>> {
        let shards = &self.table.shards;
        &shards[number_of_thread() as usize % shards.len()]
    }

    /// Where the request is, or how late this comes, if that is known.
    #[inline]
    fn find(&self, id: impl RequestKey) -> Result<(&RequestShard<T>, RequestId), Option<Duration>> {
        let (id, own) = match id.name() {
            Name::Given(id) => (Some(id), None),
            Name::Own(own) => (self.table.hub.directory.find(own), Some(own)),
        };
        let found = id.and_then(|id| Some((&**self.table.shards.get(id.shard())?, id)));
        found.ok_or_else(|| self.table.shards[0].own_late_by(own?))
    }
}

impl<T: Send + 'static> Table<T> {
    fn stop(&self) -> u64 {
        // All refuse before the first caller is told, who might register again.
        let closed: Vec<_> = self.shards.iter().map(|shard| shard.close()).collect();
        let stopped = closed.iter().map(|due| due.stopped.len() as u64).sum();
        for (shard, due) in self.shards.iter().zip(closed) {
            shard.end_all(due);
        }
        stopped
    }
}

impl<T: Send + 'static> Drop for Table<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<T: Send + 'static> Clone for Requests<T> {
    fn clone(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Requests<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The options of [`Requests`].
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{RegisterError, Requests};
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let requests = Requests::<String>::builder(host.timer().clone())
///     .max_in_flight(2)
///     .handler_patience(Duration::from_millis(20))
///     .shards(NonZeroUsize::MIN)
///     .build();
/// let second = Duration::from_secs(1);
/// let _two = [requests.register(second)?, requests.register(second)?];
/// assert!(matches!(requests.register(second), Err(RegisterError::Full)));
/// # Ok::<(), RegisterError>(())
/// ```
#[must_use]
pub struct RequestsBuilder<T> {
    timer: Timer,
    max_in_flight: Option<u64>,
    handler_patience: Duration,
    shards: Option<NonZeroUsize>,
    values: PhantomData<fn() -> T>,
}

impl<T: Send + 'static> RequestsBuilder<T> {
    /// How many requests may be in flight: any number unless told otherwise. One more is
    /// refused with [`RegisterError::Full`]. Exact; the price is a counter that all threads
    /// share. (Without it, a shard takes 2^26 at a time.)
    pub fn max_in_flight(mut self, requests: u64) -> Self {
        self.max_in_flight = Some(requests);
        self
    }

    /// How long a [handler](Response::on_end) may wait for the executor before the timer's host
    /// runs it: 100 ms unless told otherwise.
    pub fn handler_patience(mut self, patience: Duration) -> Self {
        self.handler_patience = patience;
        self
    }

    /// How many wheels the threads share, rounded up to a power of two and to 64 at most: four
    /// times the number of processors unless told otherwise.
    pub fn shards(mut self, shards: NonZeroUsize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// The table.
    #[must_use]
    pub fn build(self) -> Requests<T> {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shards = self.shards.map_or(4 * processors, NonZeroUsize::get);
        let shards = shards.min(MOST_SHARDS).next_power_of_two();
        let hub = Arc::new(RequestHub::new(
            shards,
            self.max_in_flight,
            self.handler_patience,
        ));
        let shards = 0..shards as u64;
        let shards = shards.map(|number| RequestShard::new(&self.timer, &hub, number));
        let shards = shards.collect();
        Requests {
            table: Arc::new(Table {
                hub,
                shards,
                next_channel: AtomicUsize::new(0),
            }),
        }
    }
}

impl<T> fmt::Debug for RequestsBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestsBuilder")
            .field("max_in_flight", &self.max_in_flight)
            .field("handler_patience", &self.handler_patience)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}
