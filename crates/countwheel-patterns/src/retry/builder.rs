//! The options of a retry store.

use std::fmt;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::books::Limits;
use super::flight::{Async, Blocking, Launch};
use super::store::{DeadLetterHandler, Store};
use super::{Attempt, DeadLetter, Failure, KeyedRetry, Retry, RetryId};
use crate::{DEFAULT_MAX_PENDING, RetryBudget, RetryPolicy};
use countwheel::Timer;

/// What a retry store does with a new operation when it is full. See
/// [`RetryBuilder::max_pending`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// Refuses it, and gives it back with
    /// [`SubmitError::Full`](crate::SubmitError::Full).
    #[default]
    Refuse,
    /// Drops the one that was submitted first, of those that wait. If all are in flight, the
    /// new one is refused.
    DropOldest,
    /// Accepts and drops it.
    DropNewest,
    /// The same, but only with a [`dead_letter`](RetryBuilder::dead_letter) handler to take it:
    /// without one, the store cannot be built.
    DeadLetter,
}

/// What a retry store does when an attempt panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnPanic {
    /// It tries again as after any failure. The last error stays what it was.
    #[default]
    Retry,
    /// It gives up, with [`GiveUp::Panic`](crate::GiveUp::Panic).
    GiveUp,
}

/// Why a retry store cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetryBuildError {
    /// [`WhenFull::DeadLetter`] was asked for.
    #[error("there is no handler for dead letters")]
    NoDeadLetter,
    /// The attempts [need a runtime](RetryBuilder::needs_runtime), and the timer runs them in none:
    /// give it one, with `TimerBuilder::runtime` or `Timer::on_tokio`.
    #[error("the attempts need a runtime, and the timer has none")]
    NoRuntime,
}

/// The options of a [`Retry`] or a [`KeyedRetry`].
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{Failure, OnPanic, Retry, RetryBudget, RetryPolicy, WhenFull};
/// use std::num::NonZeroUsize;
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let (sender, dead) = mpsc::channel();
/// let retry = Retry::builder(host.timer().clone(), RetryPolicy::dubbo_failback())
///     .max_pending(NonZeroUsize::new(2).unwrap())
///     .when_full(WhenFull::DropOldest)
///     .max_in_flight(NonZeroUsize::new(10).unwrap())
///     .on_panic(OnPanic::GiveUp)
///     .budget(RetryBudget::new(0.2, 10.0, Duration::from_secs(10))?)
///     .seed(1)
///     .dead_letter(move |letter| sender.send((letter.value, letter.reason)).unwrap())
///     .build(|_: &&str, _| Err(Failure::Retryable("down")))?;
/// for call in ["first", "second", "third"] {
///     retry.submit(call).unwrap();
/// }
/// assert_eq!(dead.try_recv()?.0, "first");
/// host.advance(Duration::from_secs(15));
/// let dead: Vec<_> = dead.try_iter().map(|(value, reason)| format!("{value}: {reason}")).collect();
/// assert_eq!(dead, ["second: all attempts were made", "third: all attempts were made"]);
///
/// let unkept = Retry::<u32, ()>::builder(host.timer().clone(), RetryPolicy::eureka())
///     .when_full(WhenFull::DeadLetter)
///     .build(|_, _| Ok(()));
/// assert_eq!(unkept.unwrap_err().to_string(), "there is no handler for dead letters");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct RetryBuilder<K, T, E> {
    timer: Timer,
    options: Options<K, T, E>,
}

pub(super) struct Options<K, T, E> {
    pub(super) policy: RetryPolicy,
    pub(super) budget: Option<RetryBudget>,
    pub(super) on_panic: OnPanic,
    needs_runtime: bool,
    pub(super) first_delay: Duration,
    pub(super) seed: Option<u64>,
    pub(super) limits: Limits,
    pub(super) dead_letter: Option<DeadLetterHandler<K, T, E>>,
}

impl<K, T, E> RetryBuilder<K, T, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    pub(super) fn new(timer: Timer, policy: RetryPolicy) -> Self {
        let options = Options {
            policy,
            budget: None,
            on_panic: OnPanic::default(),
            needs_runtime: false,
            first_delay: Duration::ZERO,
            seed: None,
            limits: Limits {
                max_pending: DEFAULT_MAX_PENDING,
                when_full: WhenFull::default(),
                max_in_flight: usize::MAX,
            },
            dead_letter: None,
        };
        Self { timer, options }
    }

    /// How many operations the store holds, those in flight included:
    /// [`DEFAULT_MAX_PENDING`] unless told otherwise. A retry has its place already, so none is
    /// ever lost for lack of room. With keys, it is the number of keys; one that was cancelled
    /// counts until its attempt has ended.
    pub fn max_pending(mut self, operations: NonZeroUsize) -> Self {
        self.options.limits.max_pending = operations.get();
        self
    }

    /// The store holds any number of operations, until the memory is full: for those who bound the
    /// operations elsewhere.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, Retry, RetryPolicy};
    ///
    /// let host = ManualHost::new();
    /// let retry = Retry::builder(host.timer().clone(), RetryPolicy::eureka())
    ///     .unbounded()
    ///     .build(|_: &u32, _| Ok::<_, Failure<()>>(()))?;
    /// assert!(retry.submit(1).is_ok());
    /// # Ok::<(), countwheel_patterns::RetryBuildError>(())
    /// ```
    pub fn unbounded(mut self) -> Self {
        self.options.limits.max_pending = usize::MAX;
        self
    }

    /// What happens to one more: it is refused unless told otherwise.
    pub fn when_full(mut self, policy: WhenFull) -> Self {
        self.options.limits.when_full = policy;
        self
    }

    /// How many attempts may be in flight at a time: as many as the store holds operations unless
    /// told otherwise. Others that are due wait, and start in the order in which they came due.
    pub fn max_in_flight(mut self, attempts: NonZeroUsize) -> Self {
        self.options.limits.max_in_flight = attempts.get();
        self
    }

    /// What happens when an attempt panics: it is tried again unless told otherwise.
    pub fn on_panic(mut self, policy: OnPanic) -> Self {
        self.options.on_panic = policy;
        self
    }

    /// How long an operation waits before its first attempt: not at all unless told otherwise.
    /// For what is likely to be overtaken by something newer of the same key, or to fail if it is
    /// tried at once. One that comes with its [failure](Retry::submit_failed) waits as the policy
    /// says, and one that is resumed until its own time.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::{Failure, KeyedRetry, RetryPolicy};
    /// use std::time::Duration;
    ///
    /// let mut host = ManualHost::new();
    /// let second = Duration::from_secs(1);
    /// let pushes = KeyedRetry::<String, u32, ()>::builder(host.timer().clone(), RetryPolicy::eureka())
    ///     .first_delay(second)
    ///     .build_keyed(|_, version, _| Ok::<_, Failure<()>>(assert_eq!(*version, 2)))?;
    /// pushes.submit("app".to_owned(), 1).unwrap();
    /// assert_eq!(pushes.submit("app".to_owned(), 2).unwrap(), Some(1), "it had not been tried");
    /// assert!(pushes.contains("app") && !pushes.is_in_flight("app"));
    /// host.advance(second);
    /// assert!(!pushes.contains("app"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.options.first_delay = delay;
        self
    }

    /// Says that attempts use what only a runtime has, such as connections and sleeps of tokio's. A
    /// timer whose tasks [have none](Timer::has_runtime) is then refused when the store is built.
    ///
    /// Without this call the store finds out at the first attempt: that panics, and the operation
    /// is given up with [`GiveUp::NoRuntime`](crate::GiveUp::NoRuntime), whatever
    /// [`on_panic`](Self::on_panic) says.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::{Failure, Retry, RetryBuildError, RetryPolicy};
    ///
    /// let builder = Retry::<u32, ()>::builder(Timer::new(), RetryPolicy::eureka()).needs_runtime();
    /// let refused = builder.build_async(async |_, _| Ok(()));
    /// assert_eq!(refused.unwrap_err(), RetryBuildError::NoRuntime);
    /// ```
    pub fn needs_runtime(mut self) -> Self {
        self.options.needs_runtime = true;
        self
    }

    /// Shares a budget of retries with others.
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.options.budget = Some(budget);
        self
    }

    /// The same jitter at each run: the operations get the same seeds in the same order.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// What is called with each operation that is given up, dropped for lack of room, or still
    /// there when the last handle of the store is dropped. Without such a handler, a warning
    /// is logged.
    ///
    /// It is called without a lock, on the thread on which that was decided: the executor's
    /// after an attempt, otherwise the caller's. A panic of it is logged.
    pub fn dead_letter(
        mut self,
        handler: impl Fn(DeadLetter<K, T, E>) + Send + Sync + 'static,
    ) -> Self {
        self.options.dead_letter = Some(Box::new(handler));
        self
    }

    /// A keyed store whose attempts are calls of `handler`, on the timer's executor.
    ///
    /// # Errors
    /// [`RetryBuildError::NoDeadLetter`] if dead letters would go nowhere,
    /// [`RetryBuildError::NoRuntime`] if the timer has no runtime that attempts need.
    pub fn build_keyed(
        self,
        handler: impl Fn(&K, &T, &Attempt) -> Result<(), Failure<E>> + Send + Sync + 'static,
    ) -> Result<KeyedRetry<K, T, E>, RetryBuildError> {
        let store = self.store(Box::new(Blocking(Arc::new(handler))))?;
        Ok(KeyedRetry::over(store))
    }

    /// A keyed store whose attempts are futures that `handler` makes. They are polled on the
    /// timer's executor: what they wait for may need a runtime, see
    /// [`needs_runtime`](Self::needs_runtime).
    ///
    /// # Errors
    /// [`RetryBuildError::NoDeadLetter`] if dead letters would go nowhere,
    /// [`RetryBuildError::NoRuntime`] if the timer has no runtime that attempts need.
    pub fn build_keyed_async<F>(
        self,
        handler: impl Fn(K, T, Attempt) -> F + Send + Sync + 'static,
    ) -> Result<KeyedRetry<K, T, E>, RetryBuildError>
    where
        T: Clone,
        F: Future<Output = Result<(), Failure<E>>> + Send + 'static,
    {
        let store = self.store(Box::new(Async(Arc::new(handler))))?;
        Ok(KeyedRetry::over(store))
    }

    fn store(
        self,
        handler: Box<dyn Launch<K, T, E>>,
    ) -> Result<Arc<Store<K, T, E>>, RetryBuildError> {
        let when_full = self.options.limits.when_full;
        if when_full == WhenFull::DeadLetter && self.options.dead_letter.is_none() {
            return Err(RetryBuildError::NoDeadLetter);
        }
        if self.options.needs_runtime && !self.timer.has_runtime() {
            return Err(RetryBuildError::NoRuntime);
        }
        Ok(self.unchecked(handler))
    }

    /// For those who have chosen no option.
    pub(super) fn unchecked(self, handler: Box<dyn Launch<K, T, E>>) -> Arc<Store<K, T, E>> {
        Store::new(self.timer, self.options, handler)
    }
}

impl<T, E> RetryBuilder<RetryId, T, E>
where
    T: Send + 'static,
    E: Send + 'static,
{
    /// A store whose attempts are calls of `handler`, on the timer's executor.
    ///
    /// # Errors
    /// [`RetryBuildError::NoDeadLetter`] if dead letters would go nowhere,
    /// [`RetryBuildError::NoRuntime`] if the timer has no runtime that attempts need.
    pub fn build(
        self,
        handler: impl Fn(&T, &Attempt) -> Result<(), Failure<E>> + Send + Sync + 'static,
    ) -> Result<Retry<T, E>, RetryBuildError> {
        let keyed = self.build_keyed(move |_, value, attempt| handler(value, attempt));
        keyed.map(Retry::over)
    }

    /// A store whose attempts are futures that `handler` makes. They are polled on the timer's
    /// executor: what they wait for may need a runtime, see [`needs_runtime`](Self::needs_runtime).
    ///
    /// # Errors
    /// [`RetryBuildError::NoDeadLetter`] if dead letters would go nowhere,
    /// [`RetryBuildError::NoRuntime`] if the timer has no runtime that attempts need.
    pub fn build_async<F>(
        self,
        handler: impl Fn(T, Attempt) -> F + Send + Sync + 'static,
    ) -> Result<Retry<T, E>, RetryBuildError>
    where
        T: Clone,
        F: Future<Output = Result<(), Failure<E>>> + Send + 'static,
    {
        let keyed = self.build_keyed_async(move |_, value, attempt| handler(value, attempt));
        keyed.map(Retry::over)
    }
}

impl<K, T, E> fmt::Debug for RetryBuilder<K, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBuilder")
            .field("timer", &self.timer)
            .field("policy", &self.options.policy)
            .field("limits", &self.options.limits)
            .finish_non_exhaustive()
    }
}
