//! A retry store in which each key has at most one operation.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use super::books::Operation;
use super::flight::{Async, Blocking};
use super::store::{RetryEntry, Store};
use super::{
    Attempt, Cancelled, Failure, Key, PendingRetry, RetryBuilder, RetryRule, RetryStats,
    RetryStopped, SubmitError,
};
use crate::RetryPolicy;
use countwheel::Timer;

/// A [`Retry`](super::Retry) with keys: each has at most one operation, and the newest wins.
/// What Dubbo's registry does for its URLs, and others for the latest state of something that
/// is pushed or written.
///
/// A newer operation of a key, say an `Unregister` after a `Register`, takes the place of the
/// older:
///
/// - If the older one waits, it is gone, and comes back from the call.
/// - If an attempt of it is in flight, that is told to stop, and **fences** the newer one: the
///   first attempt of the newer starts when the attempt in flight has ended, not before. Its
///   result changes nothing. So no attempt of the older can take effect after one of the newer,
///   as far as the handler's end is the end of its effects.
///
/// An operation that has ended, in whatever way, leaves nothing behind: the next one of its key
/// starts afresh. All else is as with [`Retry`](super::Retry).
///
/// A key is hashed and cloned without the lock, and compared under it: its `Eq` must not call
/// the store.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Attempt, Failure, KeyedRetry, RetryPolicy};
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// enum Want { Registered, Gone }
///
/// let mut host = ManualHost::new();
/// let (sender, sent) = mpsc::channel();
/// let registry = KeyedRetry::new(
///     host.timer().clone(),
///     RetryPolicy::dubbo_registry(),
///     move |url: &String, want: &Want, attempt: &Attempt| {
///         sender.send((url.clone(), *want, attempt.number())).unwrap();
///         match want {
///             Want::Registered => Err(Failure::Retryable("the registry is down")),
///             Want::Gone => Ok(()),
///         }
///     },
/// );
/// let url = "dubbo://10.0.0.1/echo".to_owned();
/// registry.submit(url.clone(), Want::Registered).unwrap();
/// host.advance(Duration::from_secs(7));
/// let replaced = registry.submit(url.clone(), Want::Gone).unwrap();
/// assert_eq!(replaced, Some(Want::Registered), "it waited for its third attempt");
/// host.advance(Duration::from_secs(60));
/// let sent: Vec<_> = sent.try_iter().map(|(_, want, number)| (want, number)).collect();
/// assert_eq!(sent, [(Want::Registered, 1), (Want::Registered, 2), (Want::Gone, 1)]);
/// assert!(registry.is_empty());
/// ```
pub struct KeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    owner: Arc<StoreOwner<K, T, E>>,
}

/// All handles together, as opposed to attempts in flight.
struct StoreOwner<K, T, E>(Arc<Store<K, T, E>>)
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static;

impl<K, T, E> Drop for StoreOwner<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    fn drop(&mut self) {
        self.0.abandon();
    }
}

pub(super) type Refused<K, T, E> = SubmitError<(K, Operation<T, E>)>;

/// Without what the caller does not know of.
pub(super) fn unwrapped<K, T, E>(error: Refused<K, T, E>) -> SubmitError<(K, T)> {
    error.map(|(key, operation)| (key, operation.value))
}

impl<K, T, E> KeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    /// A store of [`DEFAULT_MAX_PENDING`](crate::DEFAULT_MAX_PENDING) keys at most, whose attempts
    /// are calls of `handler`.
    pub fn new(
        timer: Timer,
        policy: RetryPolicy,
        handler: impl Fn(&K, &T, &Attempt) -> Result<(), Failure<E>> + Send + Sync + 'static,
    ) -> Self {
        let handler = Box::new(Blocking(Arc::new(handler)));
        Self::over(Self::builder(timer, policy).unchecked(handler))
    }

    /// A store of [`DEFAULT_MAX_PENDING`](crate::DEFAULT_MAX_PENDING) keys at most, whose attempts
    /// are futures that `handler` makes, each with a clone of key and value. See [`Retry::new_async`](super::Retry::new_async).
    pub fn new_async<F>(
        timer: Timer,
        policy: RetryPolicy,
        handler: impl Fn(K, T, Attempt) -> F + Send + Sync + 'static,
    ) -> Self
    where
        T: Clone,
        F: Future<Output = Result<(), Failure<E>>> + Send + 'static,
    {
        let handler = Box::new(Async(Arc::new(handler)));
        Self::over(Self::builder(timer, policy).unchecked(handler))
    }

    /// A store with other options, such as another limit.
    pub fn builder(timer: Timer, policy: RetryPolicy) -> RetryBuilder<K, T, E> {
        RetryBuilder::new(timer, policy)
    }

    pub(super) fn over(store: Arc<Store<K, T, E>>) -> Self {
        let owner = Arc::new(StoreOwner(store));
        Self { owner }
    }

    /// Takes the place of whatever the key has. The first attempt is made at once, or when the
    /// attempt in flight has ended. Returns the value that waited, if one did.
    ///
    /// # Errors
    /// [`SubmitError::Closed`] if the store or its timer has stopped, [`SubmitError::Full`] if
    /// the key is new and there is no room, [`SubmitError::NoThread`] if the timer's thread
    /// could not be started. All give key and value back, and leave what the key has.
    pub fn submit(&self, key: K, value: T) -> Result<Option<T>, SubmitError<(K, T)>> {
        let answer = self.put(key, RetryEntry::Fresh(value), RetryRule::Supersede);
        answer.map_err(unwrapped)
    }

    /// The same for an operation of which the caller has made the first attempt itself: the
    /// next one is number 2, after the delay.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, KeyedRetry, RetryPolicy};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let timer = host.timer().clone();
    /// let retries = KeyedRetry::new(timer, RetryPolicy::dubbo_failback(), |_: &u32, _: &(), _| {
    ///     Ok::<_, Failure<&str>>(())
    /// });
    /// retries.submit_failed(1, (), "down").unwrap();
    /// assert!(retries.contains(&1));
    /// host.advance(Duration::from_secs(5));
    /// assert!(!retries.contains(&1));
    /// ```
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_failed(
        &self,
        key: K,
        value: T,
        failure: impl Into<Failure<E>>,
    ) -> Result<Option<T>, SubmitError<(K, T)>> {
        let entry = RetryEntry::Failed(value, failure.into());
        self.put(key, entry, RetryRule::Supersede)
            .map_err(unwrapped)
    }

    /// Like [`submit`](Self::submit), but only if the key has no operation. A cancelled one
    /// whose attempt is still in flight is none: the new one waits for its end.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, KeyedRetry, RetryPolicy, SubmitError};
    ///
    /// let host = ManualHost::new();
    /// let timer = host.timer().clone();
    /// let retries = KeyedRetry::new(timer, RetryPolicy::eureka(), |_: &u32, _: &&str, _| {
    ///     Ok::<_, Failure<()>>(())
    /// });
    /// retries.submit_if_absent(1, "first")?;
    /// let refused = retries.submit_if_absent(1, "second");
    /// assert!(matches!(refused, Err(SubmitError::Present((1, "second")))));
    /// # Ok::<(), SubmitError<(u32, &str)>>(())
    /// ```
    ///
    /// # Errors
    /// [`SubmitError::Present`] if the key has one, otherwise those of
    /// [`submit`](Self::submit).
    pub fn submit_if_absent(&self, key: K, value: T) -> Result<(), SubmitError<(K, T)>> {
        let answer = self.put(key, RetryEntry::Fresh(value), RetryRule::IfAbsent);
        answer.map(drop).map_err(unwrapped)
    }

    /// Like [`submit_failed`](Self::submit_failed), but only if the key has no operation: what
    /// Dubbo does with a second failure.
    ///
    /// # Errors
    /// Those of [`submit_if_absent`](Self::submit_if_absent).
    pub fn submit_failed_if_absent(
        &self,
        key: K,
        value: T,
        failure: impl Into<Failure<E>>,
    ) -> Result<(), SubmitError<(K, T)>> {
        let entry = RetryEntry::Failed(value, failure.into());
        let answer = self.put(key, entry, RetryRule::IfAbsent);
        answer.map(drop).map_err(unwrapped)
    }

    /// Like [`submit`](Self::submit), but an operation that waits only gets the newer value: the
    /// next attempt stays where it is, and the attempts made so far count. So a stream of newer
    /// states neither postpones the next attempt nor gets around the policy.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Attempt, Failure, KeyedRetry, RetryPolicy};
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let (sender, pushed) = mpsc::channel();
    /// let push = move |_topic: &&str, version: &u32, attempt: &Attempt| {
    ///     sender.send(*version).unwrap();
    ///     if attempt.number() == 1 { Err(Failure::Retryable("down")) } else { Ok(()) }
    /// };
    /// let pushes = KeyedRetry::new(host.timer().clone(), RetryPolicy::dubbo_registry(), push);
    /// for version in 0..10 {
    ///     pushes.update("prices", version).unwrap();
    ///     host.advance(Duration::from_secs(1));
    /// }
    /// assert_eq!(pushed.try_iter().collect::<Vec<_>>(), [0, 4, 5, 9]);
    /// ```
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn update(&self, key: K, value: T) -> Result<Option<T>, SubmitError<(K, T)>> {
        let answer = self.put(key, RetryEntry::Fresh(value), RetryRule::InPlace);
        answer.map_err(unwrapped)
    }

    /// Goes on with what another store gave back, in place of whatever the key has. See
    /// [`Retry::resume`](super::Retry::resume).
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn resume(
        &self,
        pending: PendingRetry<K, T, E>,
    ) -> Result<Option<T>, SubmitError<PendingRetry<K, T, E>>> {
        let PendingRetry {
            key,
            value,
            attempts,
            error,
            next_at,
        } = pending;
        let entry = RetryEntry::Resumed(value, attempts, error, next_at);
        let answer = self.put(key, entry, RetryRule::Supersede);
        answer.map_err(|error| error.map(|(key, operation)| operation.into_pending(key)))
    }

    pub(super) fn put(
        &self,
        key: K,
        entry: RetryEntry<T, E>,
        rule: RetryRule,
    ) -> Result<Option<T>, Refused<K, T, E>> {
        self.owner.0.submit(key, entry, rule)
    }

    /// Ends the operation of a key. If an attempt is in flight, it is told to stop, and fences
    /// the next operation of the key.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Cancelled, Failure, KeyedRetry, RetryPolicy};
    ///
    /// let host = ManualHost::new();
    /// let timer = host.timer().clone();
    /// let retries = KeyedRetry::new(timer, RetryPolicy::eureka(), |_: &u32, _: &&str, _| {
    ///     Ok::<_, Failure<()>>(())
    /// });
    /// retries.submit(1, "hello").unwrap();
    /// assert_eq!(retries.cancel(&1), Cancelled::Pending("hello"));
    /// assert_eq!(retries.cancel(&1), Cancelled::Absent);
    /// ```
    pub fn cancel<Q>(&self, key: &Q) -> Cancelled<T>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.owner.0.cancel(key)
    }

    /// Whether the key has an operation that has not ended.
    #[must_use]
    pub fn contains<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.owner.0.look(key).is_some()
    }

    /// Whether an attempt of the key's operation is in flight.
    #[must_use]
    pub fn is_in_flight<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.owner.0.look(key) == Some(true)
    }

    /// How many operations have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        let stats = self.stats();
        usize::try_from(stats.pending + stats.in_flight).unwrap_or(usize::MAX)
    }

    /// Whether all operations have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many attempts are in flight, those of cancelled or overtaken operations included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let stats = self.stats();
        usize::try_from(stats.in_flight + stats.fencing).unwrap_or(usize::MAX)
    }

    /// What the store has done so far.
    #[must_use]
    pub fn stats(&self) -> RetryStats {
        self.owner.0.stats()
    }

    /// Whether the store refuses operations because someone has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.owner.0.is_stopped()
    }

    /// Refuses operations from now on, gives back all that wait, and tells attempts in flight
    /// to stop. See [`Retry::stop`](super::Retry::stop).
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, KeyedRetry, PendingRetry, RetryPolicy};
    ///
    /// let host = ManualHost::new();
    /// let store = || {
    ///     let timer = host.timer().clone();
    ///     KeyedRetry::new(timer, RetryPolicy::eureka(), |_: &u32, _: &&str, _| Err(Failure::Retryable(503)))
    /// };
    /// let (old, new) = (store(), store());
    /// old.submit_failed_if_absent(1, "hello", 502).unwrap();
    /// let stopped = old.stop();
    /// assert_eq!(stopped.in_flight, 0);
    /// for pending in stopped.pending {
    ///     let PendingRetry { key, value, error, .. } = &pending;
    ///     assert_eq!((*key, *value, *error), (1, "hello", Some(502)));
    ///     assert_eq!(new.resume(pending).unwrap(), None, "nothing was in its place");
    /// }
    /// assert!(new.contains(&1) && !new.is_in_flight(&1));
    ///
    /// let weak = new.downgrade();
    /// assert_eq!(weak.upgrade().unwrap().len(), 1);
    /// drop(new);
    /// assert!(weak.upgrade().is_none());
    /// ```
    pub fn stop(&self) -> RetryStopped<K, T, E> {
        self.owner.0.stop()
    }

    /// A handle that does not keep the store alive: for its own handlers.
    #[must_use]
    pub fn downgrade(&self) -> WeakKeyedRetry<K, T, E> {
        WeakKeyedRetry {
            owner: Arc::downgrade(&self.owner),
        }
    }
}

impl<K, T, E> Clone for KeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    fn clone(&self) -> Self {
        Self {
            owner: Arc::clone(&self.owner),
        }
    }
}

impl<K, T, E> fmt::Debug for KeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRetry")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A handle of a [`KeyedRetry`] that does not keep it alive: see [`KeyedRetry::downgrade`].
pub struct WeakKeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    owner: Weak<StoreOwner<K, T, E>>,
}

impl<K, T, E> WeakKeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    /// The store, if somebody still holds it.
    #[must_use]
    pub fn upgrade(&self) -> Option<KeyedRetry<K, T, E>> {
        let owner = self.owner.upgrade()?;
        Some(KeyedRetry { owner })
    }
}

impl<K, T, E> Clone for WeakKeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    fn clone(&self) -> Self {
        Self {
            owner: Weak::clone(&self.owner),
        }
    }
}

impl<K, T, E> fmt::Debug for WeakKeyedRetry<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakKeyedRetry").finish_non_exhaustive()
    }
}
