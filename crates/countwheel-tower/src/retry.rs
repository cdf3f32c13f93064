//! Failed calls again, within a budget and within the deadline.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use countwheel::{Instant, Sleep, SleepError, Timer};
use countwheel_patterns::Attempts;
use countwheel_time::Random;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{BoxError, CarriesDeadline, Deadline, GiveUp, RetryBudget, RetryPolicy};

/// What a judge says about the result of an attempt. See [`RetryLayer::judge`].
///
/// ```
/// use countwheel_tower::Verdict;
/// use std::time::Duration;
///
/// let judge = |status: u16| match status {
///     429 => Verdict::RetryAfter(Duration::from_secs(30)),
///     500.. => Verdict::Retry,
///     _ => Verdict::Stands,
/// };
/// assert_eq!(judge(404), Verdict::Stands, "no attempt would find it");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The result goes to the caller: a success, or a failure that no other attempt would mend.
    Stands,
    /// Another attempt may succeed: after the delay of the policy.
    Retry,
    /// Another attempt may succeed, and the other side said after how long, as HTTP does with
    /// `Retry-After`. That takes the place of the policy's delay, up to [`RetryPolicy::retry_after_cap`].
    RetryAfter(Duration),
}

/// Says of each result whether another attempt follows. Every function of these arguments is one.
///
/// ```
/// use countwheel_tower::{EveryError, Judge, Verdict};
///
/// let failed: Result<(), _> = Err("down");
/// assert_eq!(EveryError.judge(&"request", &failed), Verdict::Retry);
/// let only_reads = |request: &&str, _: &Result<(), &str>| match *request {
///     "read" => Verdict::Retry,
///     _ => Verdict::Stands,
/// };
/// assert_eq!(only_reads.judge(&"write", &failed), Verdict::Stands);
/// ```
pub trait Judge<R, T, E> {
    /// The verdict on `result`, which is an attempt's at `request`. Must not wait.
    fn judge(&self, request: &R, result: &Result<T, E>) -> Verdict;
}

impl<J, R, T, E> Judge<R, T, E> for J
where
    J: Fn(&R, &Result<T, E>) -> Verdict,
{
    fn judge(&self, request: &R, result: &Result<T, E>) -> Verdict {
        self(request, result)
    }
}

/// Each error is followed by another attempt, and each response stands: the judge of a [`RetryLayer`] that
/// was given no other. See [`Judge`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EveryError;

impl<R, T, E> Judge<R, T, E> for EveryError {
    fn judge(&self, _: &R, result: &Result<T, E>) -> Verdict {
        match result {
            Ok(_) => Verdict::Stands,
            Err(_) => Verdict::Retry,
        }
    }
}

/// Makes failed calls again. See [`Retry`] for what it promises.
///
/// ```
/// use countwheel::Timer;
/// use countwheel_tower::{RetryBudget, RetryLayer, RetryPolicy, Verdict, WithDeadline};
/// use std::convert::Infallible;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let policy = RetryPolicy::fixed(Duration::from_millis(1)).max_retries(3);
/// let layer = RetryLayer::new(Timer::new(), policy)
///     .budget(RetryBudget::new(0.2, 10.0, Duration::from_secs(10))?)
///     .judge(|_: &WithDeadline<&str>, status: &Result<u16, Infallible>| match status {
///         Ok(503) => Verdict::Retry,
///         _ => Verdict::Stands,
///     });
/// let calls = AtomicU32::new(0);
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |_| {
///     let call = calls.fetch_add(1, Ordering::Relaxed);
///     Ok(if call < 2 { 503 } else { 200 })
/// });
/// assert_eq!(service.oneshot("get".into()).await.unwrap(), 200);
/// assert_eq!(calls.into_inner(), 3);
/// # Ok::<(), countwheel_patterns::RetryBudgetError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RetryLayer<J = EveryError> {
    plan: Plan,
    judge: J,
}

/// What holds for every call.
#[derive(Clone, Debug)]
struct Plan {
    timer: Timer,
    // A list of delays is long.
    policy: Arc<RetryPolicy>,
    budget: Option<RetryBudget>,
    attempt_takes: Duration,
    seed: Option<u64>,
}

impl RetryLayer {
    /// Attempts at the times that `policy` says, by the clock of `timer`, after each error.
    #[must_use]
    pub fn new(timer: Timer, policy: RetryPolicy) -> Self {
        Self {
            plan: Plan {
                timer,
                policy: Arc::new(policy),
                budget: None,
                attempt_takes: Duration::ZERO,
                seed: None,
            },
            judge: EveryError,
        }
    }
}

impl<J> RetryLayer<J> {
    /// Shares a budget of retries with others: clones of this layer's services, other layers, and the
    /// retries of `countwheel-patterns`. None unless told otherwise.
    #[must_use]
    pub fn budget(mut self, budget: RetryBudget) -> Self {
        self.plan.budget = Some(budget);
        self
    }

    /// How long an attempt takes at least: none starts with less time than that before the deadline. Zero
    /// unless told otherwise, and then none starts at the deadline or after it.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_tower::{Deadline, RetryError, RetryLayer, RetryPolicy, WithDeadline};
    /// use std::time::Duration;
    /// use tower::{BoxError, ServiceBuilder, ServiceExt};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let timer = Timer::new();
    /// let millis = Duration::from_millis;
    /// let layer = RetryLayer::new(timer.clone(), RetryPolicy::default()).attempt_takes(millis(200));
    /// let service = ServiceBuilder::new()
    ///     .layer(layer)
    ///     .service_fn(async |_: WithDeadline<&str>| Ok::<_, BoxError>("never called"));
    /// let deadline = Deadline::after(&timer, millis(100));
    /// let refused = service.oneshot(WithDeadline::new("get", deadline)).await;
    /// assert!(matches!(refused, Err(RetryError::NoTime { attempts: 0, .. })));
    /// # });
    /// ```
    #[must_use]
    pub fn attempt_takes(mut self, least: Duration) -> Self {
        self.plan.attempt_takes = least;
        self
    }

    /// Decides what the policy's jitter leaves to chance, the same for each call: for tests. Without it,
    /// each call draws a seed of its own.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use countwheel_tower::{RetryLayer, RetryPolicy};
    /// let layer = RetryLayer::new(Timer::new(), RetryPolicy::default()).seed(7);
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.plan.seed = Some(seed);
        self
    }

    /// Asks `judge` whether another attempt follows, in place of [`EveryError`]: after a response too. The
    /// request is among the arguments, so that what must not be done twice is not. The arguments have to be
    /// annotated.
    #[must_use]
    pub fn judge<K, R, T, E>(self, judge: K) -> RetryLayer<K>
    where
        K: Fn(&R, &Result<T, E>) -> Verdict,
    {
        RetryLayer {
            plan: self.plan,
            judge,
        }
    }
}

impl<S, J: Clone> Layer<S> for RetryLayer<J> {
    type Service = Retry<S, J>;

    fn layer(&self, inner: S) -> Retry<S, J> {
        Retry {
            layer: self.clone(),
            inner,
        }
    }
}

/// A service that makes failed calls again. Made by a [`RetryLayer`].
///
/// **Attempts** follow the [`RetryPolicy`]: how many, when, up to what age. Each is a clone of the request,
/// and has the request's deadline.
///
/// **The deadline**: no attempt starts that cannot end before the request's deadline, the first included. A
/// call whose next attempt would come too late ends at once, and does not wait first. An attempt that has
/// started is not cut here: put a [`TimeoutLayer`](crate::TimeoutLayer) inside.
///
/// **The budget**: a first attempt puts in, a retry takes out, and a call that finds nothing there ends.
///
/// **The end**: if no other attempt follows, a response goes to the caller, though the judge wanted
/// another; an error goes to the caller in a [`RetryError`], which says why. A response after which another
/// attempt follows is dropped before the wait, with its body and its connection.
///
/// **Readiness** is that of the inner service. A call takes the instance that is ready and leaves a clone.
/// Each later attempt waits until its instance is ready again, as Tower demands, and while the call waits
/// for its delay it holds no place. An inner service that fails to become ready ends the call.
///
/// **Cost**: a clone of the inner service for each call and of the request for each attempt. A call that
/// succeeds at once reads the clock twice and files nothing with the timer.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_tower::{Retry, RetryLayer, RetryPolicy, WithDeadline};
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
/// use tower_layer::Layer;
/// use tower_service::Service;
///
/// let mut host = ManualHost::new();
/// let policy = RetryPolicy::fixed(Duration::from_secs(5)).max_retries(1);
/// let down = tower::service_fn(async |_: WithDeadline<&str>| Err::<(), _>("down"));
/// let mut service: Retry<_> = RetryLayer::new(host.timer().clone(), policy).layer(down);
///
/// let mut call = pin!(service.call("ping".into()));
/// let mut cx = Context::from_waker(Waker::noop());
/// assert!(call.as_mut().poll(&mut cx).is_pending());
/// host.advance(Duration::from_secs(5));
/// let Poll::Ready(Err(error)) = call.poll(&mut cx) else { panic!() };
/// assert_eq!(error.to_string(), "given up after attempt 2: all attempts were made");
/// ```
#[derive(Clone, Debug)]
pub struct Retry<S, J = EveryError> {
    layer: RetryLayer<J>,
    inner: S,
}

impl<S, J> Retry<S, J> {
    /// The service inside.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use countwheel_tower::{RetryLayer, RetryPolicy};
    /// # use tower_layer::Layer;
    /// let mut retried = RetryLayer::new(Timer::new(), RetryPolicy::default()).layer(6);
    /// *retried.get_mut() += 1;
    /// assert_eq!((*retried.get_ref(), retried.into_inner()), (7, 7));
    /// ```
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to be changed.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the retries.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, R, J> Service<R> for Retry<S, J>
where
    S: Service<R> + Clone,
    R: CarriesDeadline + Clone,
    J: Judge<R, S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = RetryError<S::Error>;
    type Future = RetryFuture<S, R, J>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(RetryError::NotReady)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let RetryLayer { plan, judge } = self.layer.clone();
        // The instance that is ready goes with the call: a clone need not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let now = plan.timer.now();
        let seed = plan.seed.unwrap_or_else(|| Random::unseeded().draw());
        let mut attempts = Attempts::new(now, seed);
        let deadline = request.deadline();
        let state = if plan.has_time(now, deadline) {
            if let Some(budget) = &plan.budget {
                budget.deposit(now);
            }
            attempts.begin();
            let call = inner.call(request.clone());
            State::Calling { call }
        } else {
            State::Refused
        };
        RetryFuture {
            inner,
            request,
            deadline,
            plan,
            judge,
            attempts,
            state,
        }
    }
}

impl Plan {
    /// Whether an attempt that starts at `start` can end before the deadline.
    fn has_time(&self, start: Instant, deadline: Deadline) -> bool {
        let end = start + self.attempt_takes;
        let limit = deadline.instant();
        deadline == Deadline::NEVER || (start < limit && end <= limit)
    }
}

pin_project! {
    /// A call that is made again when it fails. Made by [`Retry`].
    ///
    /// **Cancelling** is dropping: the attempt in flight is dropped with it, and no other follows. Not to
    /// be polled after its end, like most futures.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_tower::{RetryFuture, RetryLayer, RetryPolicy, WithDeadline};
    /// use tower_layer::Layer;
    /// use tower_service::Service;
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// let echo = tower::service_fn(async |request: WithDeadline<u32>| Ok::<_, ()>(request.request));
    /// let mut service = RetryLayer::new(Timer::new(), RetryPolicy::default()).layer(echo);
    /// let call: RetryFuture<_, _, _> = service.call(7.into());
    /// assert_eq!(call.await.unwrap(), 7);
    /// # });
    /// ```
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct RetryFuture<S, R, J>
    where
        S: Service<R>,
    {
        inner: S,
        request: R,
        deadline: Deadline,
        plan: Plan,
        judge: J,
        attempts: Attempts,
        #[pin]
        state: State<S::Future, S::Error>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, E> {
        Calling { #[pin] call: F },
        // With the error after which it waits; none after a response.
        Waiting { sleep: Sleep, error: Option<E> },
        // The delay is over, and the inner service is not ready yet.
        Readying { error: Option<E> },
        // There was no time for a first attempt.
        Refused,
    }
}

/// What follows a result.
enum Next<T, E> {
    Wait(Instant, Option<E>),
    End(Result<T, RetryError<E>>),
}

impl<S, R, J> Future for RetryFuture<S, R, J>
where
    S: Service<R>,
    R: CarriesDeadline + Clone,
    J: Judge<R, S::Response, S::Error>,
{
    type Output = Result<S::Response, RetryError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                Projected::Calling { call } => {
                    let result = ready!(call.poll(cx));
                    let verdict = this.judge.judge(this.request, &result);
                    let now = this.plan.timer.now();
                    let next = this
                        .plan
                        .next(verdict, result, this.attempts, *this.deadline, now);
                    let (next, error) = match next {
                        Next::End(end) => return Poll::Ready(end),
                        Next::Wait(next, error) => (next, error),
                    };
                    let sleep = this.plan.timer.sleep_until(next);
                    this.state.set(State::Waiting { sleep, error });
                    if next <= now {
                        // Without a delay there is no wait: others have their turn here.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Projected::Waiting { sleep, error } => {
                    let slept = ready!(Pin::new(sleep).poll(cx));
                    let (error, attempts) = (error.take(), this.attempts.made());
                    if let Err(source) = slept {
                        return Poll::Ready(Err(RetryError::Timer {
                            error,
                            attempts,
                            source,
                        }));
                    }
                    this.state.set(State::Readying { error });
                }
                Projected::Readying { error } => {
                    ready!(this.inner.poll_ready(cx)).map_err(RetryError::NotReady)?;
                    // It may have taken until now.
                    let now = this.plan.timer.now();
                    if !this.plan.has_time(now, *this.deadline) {
                        let error = error.take();
                        let attempts = this.attempts.made();
                        return Poll::Ready(Err(RetryError::NoTime { error, attempts }));
                    }
                    this.attempts.begin();
                    let call = this.inner.call(this.request.clone());
                    this.state.set(State::Calling { call });
                }
                Projected::Refused => {
                    return Poll::Ready(Err(RetryError::NoTime {
                        error: None,
                        attempts: 0,
                    }));
                }
            }
        }
    }
}

impl Plan {
    fn next<T, E>(
        &self,
        verdict: Verdict,
        result: Result<T, E>,
        attempts: &Attempts,
        deadline: Deadline,
        now: Instant,
    ) -> Next<T, E> {
        let next = match verdict {
            Verdict::Stands => Err(GiveUp::Permanent),
            Verdict::Retry => attempts.next(&self.policy, now),
            Verdict::RetryAfter(wanted) => attempts.next_after(&self.policy, now, wanted),
        };
        let made = attempts.made();
        let end = |to_error: fn(E, u32) -> RetryError<E>, result: Result<T, E>| {
            Next::End(result.map_err(|error| to_error(error, made)))
        };
        match next {
            Err(reason) => Next::End(result.map_err(|error| RetryError::GaveUp {
                error,
                attempts: made,
                reason,
            })),
            Ok(next) if !self.has_time(next, deadline) => end(
                |error, attempts| RetryError::NoTime {
                    error: Some(error),
                    attempts,
                },
                result,
            ),
            Ok(_)
                if self
                    .budget
                    .as_ref()
                    .is_some_and(|budget| !budget.withdraw(now)) =>
            {
                end(
                    |error, attempts| RetryError::NoBudget { error, attempts },
                    result,
                )
            }
            Ok(next) => Next::Wait(next, result.err()),
        }
    }
}

impl<S, R, J> fmt::Debug for RetryFuture<S, R, J>
where
    S: Service<R>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture")
            .field("policy", &self.plan.policy)
            .field("attempts", &self.attempts)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Why a call that was made again has no response.
///
/// ```
/// use countwheel_tower::{GiveUp, RetryError};
/// use std::{error::Error, io};
///
/// let error = io::Error::other("the line is dead");
/// let error = RetryError::GaveUp { error, attempts: 3, reason: GiveUp::Attempts };
/// assert_eq!(error.to_string(), "given up after attempt 3: all attempts were made");
/// assert_eq!(error.source().unwrap().to_string(), "the line is dead");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetryError<E> {
    /// The policy has no other attempt, or the judge wanted none ([`GiveUp::Permanent`]).
    #[error("given up after attempt {attempts}: {reason}")]
    GaveUp {
        /// The last error.
        #[source]
        error: E,
        /// How many attempts were made.
        attempts: u32,
        /// Why there is no other: [`GiveUp::Attempts`], [`GiveUp::MaxAge`] or [`GiveUp::Permanent`].
        reason: GiveUp,
    },
    /// The [`RetryBudget`] is used up.
    #[error("given up after attempt {attempts}: the retry budget is used up")]
    NoBudget {
        /// The last error.
        #[source]
        error: E,
        /// How many attempts were made.
        attempts: u32,
    },
    /// No other attempt, or not even a first, could end before the request's deadline.
    #[error("the deadline leaves no time for attempt {}", attempts.saturating_add(1))]
    NoTime {
        /// The last error: none before a first attempt, and after a response that another attempt was to
        /// replace.
        #[source]
        error: Option<E>,
        /// How many attempts were made.
        attempts: u32,
    },
    /// The inner service will not be ready again. It gets no other call.
    #[error("the service is not ready")]
    NotReady(#[source] E),
    /// The delay before the next attempt cannot be measured: the timer has stopped, or took no sleep.
    #[error("the timer could not wait after attempt {attempts}")]
    Timer {
        /// The last error: none after a response that another attempt was to replace.
        error: Option<E>,
        /// How many attempts were made.
        attempts: u32,
        /// What ailed the timer.
        source: SleepError,
    },
}

impl<E> RetryError<E> {
    /// The last error of the inner service, if there is one.
    ///
    /// ```
    /// use countwheel_tower::RetryError;
    ///
    /// let error = RetryError::NoBudget { error: "down", attempts: 1 };
    /// assert_eq!(error.into_inner(), Some("down"));
    /// ```
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::GaveUp { error, .. } | Self::NoBudget { error, .. } | Self::NotReady(error) => {
                Some(error)
            }
            Self::NoTime { error, .. } | Self::Timer { error, .. } => error,
        }
    }

    /// The error as Tower's layers expect it, in a box: its text, and the inner error as its source. For an
    /// inner error that is a box already, and so no error of its own; where it is an error, `into` does
    /// more, since this type then is one. Match before you call this: the variant is not to be had
    /// afterwards.
    ///
    /// ```
    /// use countwheel_tower::RetryError;
    /// use std::error::Error;
    ///
    /// let error = Box::<dyn Error + Send + Sync>::from("full");
    /// let boxed = RetryError::NoBudget { error, attempts: 2 }.into_boxed();
    /// assert_eq!(boxed.to_string(), "given up after attempt 2: the retry budget is used up");
    /// assert_eq!(boxed.source().unwrap().to_string(), "full");
    /// ```
    pub fn into_boxed(self) -> BoxError
    where
        E: Into<BoxError>,
    {
        let text = self.to_string();
        match self {
            Self::Timer { source, .. } => Box::new(Told {
                text,
                source: Some(source.into()),
            }),
            other => Box::new(Told {
                text,
                source: other.into_inner().map(Into::into),
            }),
        }
    }
}

/// See [`RetryError::into_boxed`].
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Told {
    text: String,
    source: Option<BoxError>,
}
