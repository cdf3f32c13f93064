//! Queues whose items can be taken once they are due.
//!
//! `shelf.rs` has the items of a queue, `line.rs` its waiting consumers, `queue.rs` puts the two
//! behind a lock; `keyed.rs` is the kind whose items have keys.

mod keyed;
mod line;
mod next;
mod queue;
mod results;
mod shelf;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::queue::Queue;
use crate::DEFAULT_MAX_PENDING;
use countwheel::{Instant, Timer, TimerKey};

pub use self::keyed::KeyedDelayQueue;
pub use self::next::{DueItems, NextDue};
pub use self::results::{DelayQueueStats, Due, PushError, TakeError, Undue};

/// A queue whose items can be taken once their deadlines have come, by whoever is ready to.
///
/// A timer pushes: it runs your code when time says so. From a delay queue you pull: as many
/// consumers as there are, threads or futures, each take an item when they have time for it.
/// What is due and not taken stays, and its lateness tells how far behind the consumers are.
/// It is the `DelayQueue` of Java's `java.util.concurrent`, on a timing wheel.
///
/// Items come in the order of their deadlines, in ticks of the timer, and within a tick in the
/// order in which they were pushed. (One whose deadline had passed when it was pushed may come
/// after others that were due by then.) Nobody is woken before an item is due, and one item
/// wakes one consumer, the one who has waited the longest. While nobody waits, the queue does
/// nothing at all.
///
/// Pushing, cancelling and taking are O(1), apart from the place of one who waits: O(log
/// waiters). All take the one lock of the queue. Whatever its length, the queue has one entry
/// in the timer, and that only while somebody waits; it is not counted against
/// [`max_pending`](countwheel::TimerBuilder::max_pending).
///
/// Clones are handles to the same queue. When the last one is dropped, so are the items.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::DelayQueue;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let unpaid = DelayQueue::new(host.timer().clone());
/// let half_hour = Duration::from_secs(30 * 60);
/// let first = unpaid.push("order 1", half_hour)?;
/// unpaid.push("order 2", half_hour)?;
/// assert_eq!(unpaid.cancel(first), Some("order 1"), "it was paid");
///
/// assert_eq!(unpaid.try_take(), None, "nothing is due");
/// host.advance(half_hour);
/// let due = unpaid.take().unwrap();
/// assert_eq!((due.value, due.lateness), ("order 2", Duration::ZERO));
///
/// unpaid.close();
/// assert!(unpaid.take().is_none(), "and nothing will be");
/// assert!(unpaid.push("order 3", half_hour).is_err());
/// # Ok::<(), countwheel_patterns::PushError<&str>>(())
/// ```
///
/// # How it ends
///
/// [`close`](Self::close) refuses pushes; what is there still becomes due and is taken, then
/// those who wait are told that it is over. [`stop`](Self::stop) refuses pushes and gives back
/// what nobody has taken. If the timer stops, nobody can wait any more: pushes are refused,
/// those who wait are told so, what is due can still be taken, and a stop gives back the rest.
pub struct DelayQueue<T: Send + 'static> {
    queue: Arc<Queue<T>>,
}

/// One item of a [`DelayQueue`], to [`cancel`](DelayQueue::cancel) it by.
///
/// Means nothing to any other queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DelayKey(TimerKey);

impl<T: Send + 'static> DelayQueue<T> {
    /// A queue with room for [`DEFAULT_MAX_PENDING`] items, by the clock and in the ticks of `timer`.
    #[must_use]
    pub fn new(timer: Timer) -> Self {
        Self::bounded(timer, DEFAULT_MAX_PENDING)
    }

    /// A queue with room for any number of items, until the memory is full: for those who bound
    /// the items elsewhere.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::DelayQueue;
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let queue = DelayQueue::unbounded(host.timer().clone());
    /// assert!(queue.push("tea", Duration::from_secs(1)).is_ok());
    /// ```
    #[must_use]
    pub fn unbounded(timer: Timer) -> Self {
        Self::bounded(timer, usize::MAX)
    }

    /// A queue with room for `capacity` items. Those that are due and not taken count, too.
    #[must_use]
    pub fn bounded(timer: Timer, capacity: usize) -> Self {
        Self {
            queue: Queue::new(timer, capacity),
        }
    }

    /// Adds an item that can be taken once `delay` has passed, and never before. Any delay will
    /// do: [`Duration::ZERO`] is due at once, [`Duration::MAX`] never.
    ///
    /// # Errors
    /// [`PushError::Closed`] if the queue was closed or the timer has stopped,
    /// [`PushError::Full`] if there is no room, [`PushError::NoThread`] if the timer's thread
    /// could not be started. All give the item back.
    pub fn push(&self, value: T, delay: Duration) -> Result<DelayKey, PushError<T>> {
        self.push_at(value, self.queue.now() + delay)
    }

    /// Adds an item that can be taken once the timer's [`now`](Timer::now) has reached
    /// `deadline`, and never before; at once if it has passed.
    ///
    /// # Errors
    /// Those of [`push`](Self::push).
    pub fn push_at(&self, value: T, deadline: Instant) -> Result<DelayKey, PushError<T>> {
        self.queue.push(value, deadline).map(DelayKey)
    }

    /// Takes back an item, due or not, that nobody has taken; `None` if somebody has.
    pub fn cancel(&self, key: DelayKey) -> Option<T> {
        self.queue.change(|state| state.shelf.cancel(key.0))
    }

    /// Takes the next item, and blocks until it is due. `None` if there will be none: the
    /// queue was closed and is empty, or the timer has stopped.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// let queue = DelayQueue::new(Timer::new());
    /// queue.push("second", Duration::from_millis(90))?;
    /// queue.push("first", Duration::from_millis(1))?;
    /// queue.close();
    /// let mut taken = Vec::new();
    /// while let Some(due) = queue.take() {
    ///     taken.push(due.value);
    /// }
    /// assert_eq!(taken, ["first", "second"]);
    /// # Ok::<(), countwheel_patterns::PushError<&str>>(())
    /// ```
    #[must_use]
    pub fn take(&self) -> Option<Due<T>> {
        self.next().block(None).ok()
    }

    /// Takes the next item, and blocks until it is due, or for `patience` of real time.
    ///
    /// # Errors
    /// [`TakeError::TimedOut`] if nothing was due in time, [`TakeError::Ended`] if nothing will
    /// ever be.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{DelayQueue, TakeError};
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let queue = DelayQueue::<u32>::new(host.timer().clone());
    /// assert_eq!(queue.take_for(Duration::from_millis(1)), Err(TakeError::TimedOut));
    /// queue.close();
    /// assert_eq!(queue.take_for(Duration::from_millis(1)), Err(TakeError::Ended));
    /// ```
    pub fn take_for(&self, patience: Duration) -> Result<Due<T>, TakeError> {
        self.next().block(Some(patience))
    }

    /// Takes the next item, and waits until it is due. `None` if there will be none.
    ///
    /// Works on every runtime and without one: the timer's host wakes whoever waits. Dropping
    /// the future loses nothing, so it may stand in a `select!`. A future that is dropped
    /// without being polled costs nothing.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let queue = DelayQueue::new(Timer::new());
    /// queue.push("tea", Duration::from_millis(1)).unwrap();
    /// assert_eq!(queue.next().await.unwrap().value, "tea");
    /// # });
    /// ```
    pub fn next(&self) -> NextDue<T> {
        NextDue::new(&self.queue)
    }

    /// One item after another as they become due, until there will be none: a `Stream` with the cargo
    /// feature `stream`. Several may take from one queue.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let queue = DelayQueue::new(Timer::new());
    /// queue.push("second", Duration::from_millis(90)).unwrap();
    /// queue.push("first", Duration::from_millis(1)).unwrap();
    /// queue.close();
    /// let (mut items, mut taken) = (queue.items(), Vec::new());
    /// while let Some(due) = items.take().await {
    ///     taken.push(due.value);
    /// }
    /// assert_eq!(taken, ["first", "second"]);
    /// # });
    /// ```
    pub fn items(&self) -> DueItems<T> {
        DueItems::new(&self.queue)
    }

    /// Takes the next item if one is due, without waiting.
    #[must_use]
    pub fn try_take(&self) -> Option<Due<T>> {
        self.queue.try_take()
    }

    /// Takes what is due, `limit` items at most, without waiting: one lock for all of them.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let queue = DelayQueue::new(host.timer().clone());
    /// for n in 1..=5 {
    ///     queue.push(n, Duration::from_secs(n))?;
    /// }
    /// let next = queue.next_wake().unwrap();
    /// assert!(next <= host.timer().now() + Duration::from_secs(1));
    /// host.advance(Duration::from_secs(3));
    /// let taken = queue.take_due(2).into_iter().map(|due| (due.value, due.lateness.as_secs()));
    /// assert_eq!(taken.collect::<Vec<_>>(), [(1, 2), (2, 1)]);
    /// assert_eq!(queue.take_due(100).len(), 1);
    /// # Ok::<(), countwheel_patterns::PushError<u64>>(())
    /// ```
    #[must_use]
    pub fn take_due(&self, limit: usize) -> Vec<Due<T>> {
        self.queue.take_due(limit)
    }

    /// When to call [`try_take`](Self::try_take) next, for a loop that polls: no later than the
    /// first item is due, but it may be earlier. `None` if the queue is empty.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.queue.next_wake()
    }

    /// How many items there are, due or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the queue has done so far.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let queue = DelayQueue::bounded(host.timer().clone(), 2);
    /// queue.push("a", Duration::from_secs(1)).unwrap();
    /// queue.push("b", Duration::from_secs(2)).unwrap();
    /// queue.push("c", Duration::from_secs(3)).unwrap_err();
    /// host.advance(Duration::from_secs(5));
    /// assert!(queue.try_take().is_some());
    /// let stats = queue.stats();
    /// assert_eq!((stats.pushed, stats.taken, stats.pending, stats.refused), (2, 1, 1, 1));
    /// assert_eq!(stats.lateness_max, Duration::from_secs(4));
    /// ```
    #[must_use]
    pub fn stats(&self) -> DelayQueueStats {
        self.queue.stats()
    }

    /// Refuses pushes from now on. What is there becomes due and can be taken; then those who
    /// wait are told that it is over.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Whether pushes are refused, because the queue was closed or the timer has stopped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Gives back everything that is there, due or not, in order, and goes on.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let queue = DelayQueue::new(host.timer().clone());
    /// queue.push("late", Duration::from_secs(2)).unwrap();
    /// queue.push("soon", Duration::from_secs(1)).unwrap();
    /// let values: Vec<_> = queue.drain().into_iter().map(|undue| undue.value).collect();
    /// assert_eq!(values, ["soon", "late"]);
    /// assert!(queue.push("again", Duration::ZERO).is_ok());
    /// ```
    #[must_use]
    pub fn drain(&self) -> Vec<Undue<T>> {
        self.queue.drain(false)
    }

    /// Refuses pushes from now on and gives back everything that nobody has taken, due or not,
    /// in order. Those who wait are told that it is over.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::DelayQueue;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let queue = DelayQueue::new(host.timer().clone());
    /// queue.push("tea", Duration::from_secs(2)).unwrap();
    /// let undue = queue.stop();
    /// assert_eq!((undue[0].value, undue[0].deadline.as_nanos()), ("tea", 2_000_000_000));
    /// assert!(queue.is_closed() && queue.take().is_none());
    /// ```
    #[must_use]
    pub fn stop(&self) -> Vec<Undue<T>> {
        self.queue.drain(true)
    }
}

impl<T: Send + 'static> Clone for DelayQueue<T> {
    fn clone(&self) -> Self {
        Self {
            queue: Arc::clone(&self.queue),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("pending", &self.len())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
