//! Operations that are tried again until they succeed: a store of failed operations.
//!
//! `books` has the rules, `store.rs` the lock and the work without it, `flight.rs` the way to the
//! handler and back. [`Retry`] is the keyed store with keys that no other operation has.

mod attempts;
mod books;
mod budget;
mod builder;
mod flight;
mod keyed;
mod looped;
mod numbered;
mod results;
mod store;

use std::fmt;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use countwheel::Timer;
use countwheel_time::RetryPolicy;

pub use self::attempts::{Attempts, GiveUp};
pub use self::budget::{RetryBudget, RetryBudgetError};
pub use self::builder::{OnPanic, RetryBuildError, RetryBuilder, WhenFull};
pub use self::keyed::{KeyedRetry, WeakKeyedRetry};
pub use self::looped::{GivenUp, RetryLoop};
pub(crate) use self::looped::{retry, retry_blocking};
pub use self::results::{
    Attempt, Cancelled, DeadLetter, Failure, PendingRetry, RetryId, RetryStats, RetryStopped,
    SubmitError,
};

use self::flight::Blocking;
use self::keyed::unwrapped;
use self::store::RetryEntry;

/// How many failed calls Dubbo's failback cluster keeps (`failbacktasks`).
const DUBBO_FAILBACK_TASKS: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// What keys have to be.
trait Key: Hash + Eq + Clone + Send + Sync + 'static {}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Key for K {}

/// What becomes of a key that has an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RetryRule {
    /// The newer takes its place.
    Supersede,
    /// The newer is refused.
    IfAbsent,
    /// The newer goes on where the older was, if that one waits.
    InPlace,
}

/// Why an operation is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Closed,
    Full,
    Present,
}

/// Tries operations until they succeed or a [`RetryPolicy`] says that it is enough: what Dubbo calls
/// failback, and others a retry queue.
///
/// All operations of one store are values for the one handler, which makes an attempt and says
/// how that ended: with an async handler when its future is done, not before. The first attempt
/// is made at once, the others when the policy says, counted from the end of the one before.
/// Attempts run on the timer's executor, as many at a time as there are operations unless
/// [told otherwise](RetryBuilder::max_in_flight); a submit never runs one itself. Delays are
/// rounded up to a tick of the timer.
///
/// Every operation that was accepted ends in exactly one way: it succeeds, is given up or
/// dropped (and goes to the [dead letter](RetryBuilder::dead_letter) handler with its last
/// error), is cancelled, or comes back from [`stop`](Self::stop). [`RetryStats`] is the account.
/// An attempt that panics is a failed attempt.
///
/// Clones are handles to the same store, and cheap. When the last one is dropped, what waits is
/// dropped to the dead letter handler, and an attempt in flight goes on to its end: it keeps what
/// it needs alive, the timer included. If the timer stops first, nothing is lost either: what
/// waits stays where it is, until `stop` gives it back.
///
/// Any method may be called from anywhere, the handlers included. Each takes one lock for a
/// moment, under which nothing of yours runs, and is O(1), or O(log n) of the operations that
/// are due for lack of attempts (or could be [dropped](WhenFull::DropOldest)). However many
/// wait, the timer below has one entry for them.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Failure, GiveUp, Retry, RetryPolicy};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, dead) = mpsc::channel();
/// let calls = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
///     .dead_letter(move |letter| sender.send(letter).unwrap())
///     .build(|call: &&str, attempt| match (*call, attempt.number()) {
///         ("ping", 3) => Ok(()),
///         ("pong", _) => Err(Failure::Permanent("no such method")),
///         _ => Err(Failure::Retryable("no provider")),
///     })?;
/// for call in ["ping", "pong", "pang"] {
///     calls.submit(call).unwrap();
/// }
///
/// host.advance(Duration::from_secs(15));
/// assert_eq!(calls.stats().succeeded, 1, "the ping, after ten seconds");
/// let dead: Vec<_> = dead.try_iter().collect();
/// assert_eq!((dead[0].value, dead[0].reason), ("pong", GiveUp::Permanent));
/// assert_eq!((dead[1].value, dead[1].reason), ("pang", GiveUp::Attempts));
/// assert_eq!((dead[1].attempts.made(), dead[1].error), (4, Some("no provider")));
/// # Ok::<(), countwheel_patterns::RetryBuildError>(())
/// ```
///
/// A handler that needs the store itself takes a [`WeakRetry`]: a [`Retry`] in it would keep
/// the store alive for ever.
pub struct Retry<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    store: KeyedRetry<RetryId, T, E>,
    last: Arc<AtomicU64>,
}

impl<T, E> Retry<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    /// A store of [`DEFAULT_MAX_PENDING`](crate::DEFAULT_MAX_PENDING) operations at most, whose
    /// attempts are calls of `handler`.
    pub fn new(
        timer: Timer,
        policy: RetryPolicy,
        handler: impl Fn(&T, &Attempt) -> Result<(), Failure<E>> + Send + Sync + 'static,
    ) -> Self {
        let handler = move |_: &_, value: &_, attempt: &_| handler(value, attempt);
        Self::over(KeyedRetry::new(timer, policy, handler))
    }

    /// A store of [`DEFAULT_MAX_PENDING`](crate::DEFAULT_MAX_PENDING) operations at most, whose
    /// attempts are futures that `handler` makes: an attempt has succeeded or failed when its
    /// future says so. Each gets a clone of the value.
    ///
    /// The futures are polled on the timer's executor. What they wait for may need a runtime, which
    /// a timer has if it was told so: see [`RetryBuilder::needs_runtime`]. The timer's sleeps and
    /// timeouts need none.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, Retry, RetryPolicy};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let timer = host.timer().clone();
    /// let calls = Retry::new_async(timer.clone(), RetryPolicy::dubbo_registry(), move |name: &str, attempt| {
    ///     let answer = timer.sleep(Duration::from_secs(1)); // the remote side takes its time
    ///     async move {
    ///         answer.await.map_err(|error| error.to_string())?;
    ///         match attempt.number() {
    ///             1 => Err(Failure::Retryable(format!("{name} fails late"))),
    ///             _ => Ok(()),
    ///         }
    ///     }
    /// });
    /// calls.submit("a call").unwrap();
    /// host.advance(Duration::from_millis(6_999));
    /// assert_eq!((calls.stats().failed, calls.in_flight()), (1, 1));
    /// host.advance(Duration::from_millis(1));
    /// assert_eq!(calls.stats().succeeded, 1, "1 s, then 5 s of waiting, then 1 s");
    /// ```
    pub fn new_async<F>(
        timer: Timer,
        policy: RetryPolicy,
        handler: impl Fn(T, Attempt) -> F + Send + Sync + 'static,
    ) -> Self
    where
        T: Clone,
        F: Future<Output = Result<(), Failure<E>>> + Send + 'static,
    {
        let handler = move |_, value, attempt| handler(value, attempt);
        Self::over(KeyedRetry::new_async(timer, policy, handler))
    }

    /// What Dubbo's failback cluster does: attempts 5 s apart, three retries, and at most 100
    /// operations pending. [`RetryPolicy::dubbo_failback`] is the schedule alone.
    ///
    /// Two differences are on purpose: the limit counts attempts in flight as well, and one operation
    /// more comes back instead of being lost.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, Retry, SubmitError};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let failback = Retry::dubbo_failback(host.timer().clone(), |_: &u32, _| {
    ///     Err(Failure::Retryable("no provider"))
    /// });
    /// for call in 0..100 {
    ///     failback.submit_failed(call, "no provider").unwrap();
    /// }
    /// let refused = failback.submit_failed(100, "no provider");
    /// assert!(matches!(refused, Err(SubmitError::Full(100))));
    /// host.advance(Duration::from_secs(15));
    /// let stats = failback.stats();
    /// assert_eq!((stats.attempts, stats.given_up, stats.pending), (300, 100, 0));
    /// ```
    pub fn dubbo_failback(
        timer: Timer,
        handler: impl Fn(&T, &Attempt) -> Result<(), Failure<E>> + Send + Sync + 'static,
    ) -> Self {
        let builder = Self::builder(timer, RetryPolicy::dubbo_failback());
        let handler = move |_: &_, value: &_, attempt: &_| handler(value, attempt);
        let builder = builder.max_pending(DUBBO_FAILBACK_TASKS);
        let store = builder.unchecked(Box::new(Blocking(Arc::new(handler))));
        Self::over(KeyedRetry::over(store))
    }

    /// A store with other options, such as another limit.
    pub fn builder(timer: Timer, policy: RetryPolicy) -> RetryBuilder<RetryId, T, E> {
        RetryBuilder::new(timer, policy)
    }

    fn over(store: KeyedRetry<RetryId, T, E>) -> Self {
        let last = Arc::default();
        Self { store, last }
    }

    fn next_id(&self) -> RetryId {
        RetryId(self.last.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes the first attempt at once, on the timer's executor.
    ///
    /// # Errors
    /// [`SubmitError::Closed`] if the store or its timer has stopped, [`SubmitError::Full`] if
    /// there is no room, [`SubmitError::NoThread`] if the timer's thread could not be started.
    /// All give the value back.
    pub fn submit(&self, value: T) -> Result<RetryId, SubmitError<T>> {
        self.put(RetryEntry::Fresh(value))
    }

    /// The caller has made the first attempt itself, and it has failed now: so the next one is
    /// number 2, after the delay. If there is to be none, the value goes to the dead letters.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, Retry, RetryPolicy};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let retry = Retry::new(host.timer().clone(), RetryPolicy::dubbo_failback(), |_: &u32, attempt| {
    ///     assert_eq!(attempt.number(), 2);
    ///     Ok::<_, Failure<&str>>(())
    /// });
    /// retry.submit_failed(1, "connection refused").unwrap();
    /// retry.submit_failed(2, Failure::Permanent("no such method")).unwrap();
    /// assert_eq!((retry.stats().pending, retry.stats().given_up), (1, 1));
    /// host.advance(Duration::from_secs(5));
    /// assert_eq!(retry.stats().succeeded, 1);
    /// ```
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_failed(
        &self,
        value: T,
        failure: impl Into<Failure<E>>,
    ) -> Result<RetryId, SubmitError<T>> {
        self.put(RetryEntry::Failed(value, failure.into()))
    }

    fn put(&self, entry: RetryEntry<T, E>) -> Result<RetryId, SubmitError<T>> {
        let id = self.next_id();
        let refused = self.store.put(id, entry, RetryRule::Supersede);
        match refused {
            Ok(_) => Ok(id),
            Err(error) => Err(unwrapped(error).map(|(_, value)| value)),
        }
    }

    /// Goes on with what another store gave back: the attempts made so far count, and the next
    /// one starts when it was to start. Both stores should have timers of one clock. It gets
    /// another id.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, Retry, RetryPolicy};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let store = || {
    ///     let policy = RetryPolicy::dubbo_failback();
    ///     Retry::new(host.timer().clone(), policy, |_: &u32, attempt| match attempt.number() {
    ///         1 => Err(Failure::Retryable("down")),
    ///         _ => Ok(()),
    ///     })
    /// };
    /// let (old, new) = (store(), store());
    /// old.submit(7).unwrap();
    /// host.advance(Duration::from_secs(1));
    /// for pending in old.stop().pending {
    ///     assert_eq!((pending.attempts.made(), pending.error), (1, Some("down")));
    ///     new.resume(pending).unwrap();
    /// }
    /// host.advance(Duration::from_secs(4));
    /// assert_eq!(new.stats().succeeded, 1);
    /// ```
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn resume(
        &self,
        pending: PendingRetry<RetryId, T, E>,
    ) -> Result<RetryId, SubmitError<PendingRetry<RetryId, T, E>>> {
        let old = pending.key;
        let id = self.next_id();
        let pending = PendingRetry { key: id, ..pending };
        match self.store.resume(pending) {
            Ok(_) => Ok(id),
            Err(error) => Err(error.map(|pending| PendingRetry {
                key: old,
                ..pending
            })),
        }
    }

    /// Ends an operation. If an attempt is in flight, it is told to stop.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Cancelled, Failure, Retry, RetryPolicy};
    ///
    /// let mut host = ManualHost::new();
    /// let retry = Retry::new(host.timer().clone(), RetryPolicy::eureka(), |_: &&str, _| {
    ///     Ok::<_, Failure<()>>(())
    /// });
    /// let id = retry.submit("hello").unwrap();
    /// assert_eq!(retry.cancel(id), Cancelled::Pending("hello"));
    /// assert_eq!(retry.cancel(id), Cancelled::Absent);
    /// host.run_due();
    /// assert_eq!(retry.stats().attempts, 0);
    /// ```
    pub fn cancel(&self, id: RetryId) -> Cancelled<T> {
        self.store.cancel(&id)
    }

    /// How many operations have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether all operations have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many attempts are in flight, those of cancelled operations included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.store.in_flight()
    }

    /// What the store has done so far.
    #[must_use]
    pub fn stats(&self) -> RetryStats {
        self.store.stats()
    }

    /// Whether the store refuses operations because someone has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.store.is_stopped()
    }

    /// Refuses operations from now on, gives back all that wait, and tells attempts in flight
    /// to stop. Never blocks. The timer below goes on.
    ///
    /// An attempt in flight goes on to its end. If it fails and was to be tried again, the
    /// operation is kept for the next call of this; stop the timer in between to wait for
    /// attempts that are functions.
    pub fn stop(&self) -> RetryStopped<RetryId, T, E> {
        self.store.stop()
    }

    /// A handle that does not keep the store alive: for its own handlers.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, Retry, RetryPolicy, WeakRetry};
    /// use std::sync::{Arc, OnceLock};
    ///
    /// let mut host = ManualHost::new();
    /// let own = Arc::new(OnceLock::<WeakRetry<u32, ()>>::new());
    /// let store = Arc::clone(&own);
    /// let retry = Retry::new(host.timer().clone(), RetryPolicy::eureka(), move |&count: &u32, _| {
    ///     if count > 0
    ///         && let Some(store) = store.get().and_then(WeakRetry::upgrade)
    ///     {
    ///         store.submit(count - 1).map_err(|_| Failure::Retryable(()))?;
    ///     }
    ///     Ok(())
    /// });
    /// own.set(retry.downgrade()).unwrap();
    /// retry.submit(3).unwrap();
    /// host.run_due();
    /// assert_eq!(retry.stats().succeeded, 4);
    /// drop(retry);
    /// assert!(own.get().unwrap().upgrade().is_none());
    /// ```
    #[must_use]
    pub fn downgrade(&self) -> WeakRetry<T, E> {
        WeakRetry {
            store: self.store.downgrade(),
            last: Arc::clone(&self.last),
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> Clone for Retry<T, E> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            last: Arc::clone(&self.last),
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> fmt::Debug for Retry<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A handle of a [`Retry`] that does not keep it alive: see [`Retry::downgrade`].
pub struct WeakRetry<T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    store: WeakKeyedRetry<RetryId, T, E>,
    last: Arc<AtomicU64>,
}

impl<T: Send + 'static, E: Send + 'static> WeakRetry<T, E> {
    /// The store, if somebody still holds it.
    #[must_use]
    pub fn upgrade(&self) -> Option<Retry<T, E>> {
        Some(Retry {
            store: self.store.upgrade()?,
            last: Arc::clone(&self.last),
        })
    }
}

impl<T: Send + 'static, E: Send + 'static> Clone for WeakRetry<T, E> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            last: Arc::clone(&self.last),
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> fmt::Debug for WeakRetry<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakRetry").finish_non_exhaustive()
    }
}
