//! A limit for each call, and the deadline that it hands down.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use countwheel::{SleepError, Timer, WithTimeout};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{BoxError, CarriesDeadline, Deadline};

/// Limits each call to a duration, or to less if the request's deadline comes sooner. See [`Timeout`].
///
/// ```
/// use countwheel::Timer;
/// use countwheel_tower::{Timeout, TimeoutLayer};
/// use std::time::Duration;
/// use tower_layer::Layer;
///
/// let layer = TimeoutLayer::new(Timer::new(), Duration::from_secs(2));
/// let limited: Timeout<&str> = layer.layer("a service");
/// assert_eq!(limited.into_inner(), "a service");
/// ```
#[derive(Clone, Debug)]
pub struct TimeoutLayer {
    timer: Timer,
    limit: Duration,
}

impl TimeoutLayer {
    /// `limit` for each call, counted from [`call`](Service::call) by the clock of `timer`.
    /// [`Duration::MAX`] is no limit, and the request's deadline alone counts.
    #[must_use]
    pub const fn new(timer: Timer, limit: Duration) -> Self {
        Self { timer, limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout::new(self.timer.clone(), self.limit, inner)
    }
}

/// A service whose calls have a limit. The request carries the remaining time to the inner service.
///
/// Each call ends with the inner answer, or with [`TimeoutError::Elapsed`] when the sooner of two comes:
/// the limit of the layer, or the deadline of the request. The inner service gets the request with that
/// sooner one as its deadline. So a limit further inside, or in another process, is never longer than what
/// is left.
///
/// Where the same moment ends an inner limit as well, the inner layer reports it: as an error of the inner
/// service.
///
/// A call that ends so drops the inner future at once. A request whose deadline has come already fails
/// without reaching the inner service. What [`poll_ready`](Service::poll_ready) had reserved for it, such
/// as a place of a concurrency limit, then stays with this service for its next call, and is free when the
/// service is dropped.
///
/// **Readiness** is that of the inner service, and its waiting time counts against no limit: the limit
/// begins with [`call`](Service::call). The request's deadline does not wait.
///
/// **Cost**: one reading of the clock for each call. A call that is not ready at its first poll files one
/// entry with the timer, and nothing is allocated. A call without any limit files nothing.
///
/// ```
/// use countwheel::Timer;
/// use countwheel_tower::{Cut, Deadline, Timeout, TimeoutError, WithDeadline};
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use tower::{ServiceExt, service_fn};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// let silent = service_fn(async |_: WithDeadline<&str>| {
///     std::future::pending::<Result<(), Infallible>>().await
/// });
/// let service = Timeout::new(timer.clone(), Duration::from_secs(60), silent);
///
/// let deadline = Deadline::after(&timer, Duration::from_millis(2));
/// let error = service.oneshot(WithDeadline::new("ping", deadline)).await.unwrap_err();
/// let TimeoutError::Elapsed(elapsed) = error else { panic!("{error}") };
/// assert_eq!(elapsed.cut, Cut::Deadline(deadline), "not our minute");
/// assert!(elapsed.had <= Duration::from_millis(2));
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Timeout<S> {
    timer: Timer,
    limit: Duration,
    inner: S,
}

impl<S> Timeout<S> {
    /// Around `inner`: see [`TimeoutLayer::new`].
    pub const fn new(timer: Timer, limit: Duration, inner: S) -> Self {
        Self {
            timer,
            limit,
            inner,
        }
    }

    /// The service inside.
    ///
    /// ```
    /// # use countwheel::Timer;
    /// # use countwheel_tower::Timeout;
    /// # use std::time::Duration;
    /// let mut limited = Timeout::new(Timer::new(), Duration::from_secs(1), 6);
    /// *limited.get_mut() += 1;
    /// assert_eq!((*limited.get_ref(), limited.into_inner()), (7, 7));
    /// ```
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to be changed.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, R> Service<R> for Timeout<S>
where
    S: Service<R>,
    R: CarriesDeadline,
{
    type Response = S::Response;
    type Error = TimeoutError<S::Error>;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(TimeoutError::Inner)
    }

    fn call(&mut self, mut request: R) -> Self::Future {
        let now = self.timer.now();
        let carried = request.deadline();
        let own = Deadline::NEVER.shrink_to(now, self.limit);
        let deadline = carried.min(own);
        let cut = if carried <= own {
            Cut::Deadline(carried)
        } else {
            Cut::Limit(self.limit)
        };
        let had = deadline.remaining(now);
        let state = if had.is_zero() {
            State::Over
        } else if deadline == Deadline::NEVER {
            let call = self.inner.call(request);
            State::Unlimited { call }
        } else {
            request.set_deadline(deadline);
            let call = self.inner.call(request);
            let call = self.timer.timeout_at(deadline.instant(), call);
            State::Limited { call }
        };
        TimeoutFuture {
            elapsed: Elapsed { cut, had },
            state,
        }
    }
}

pin_project! {
    /// A call with a limit. Made by [`Timeout`].
    ///
    /// **Cancelling** is dropping, which drops the inner call. Polled after the time was up, it says so
    /// once more.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_tower::{Timeout, TimeoutError, WithDeadline};
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use std::time::Duration;
    /// use tower_service::Service;
    ///
    /// let mut host = ManualHost::new();
    /// let silent = tower::service_fn(async |_: WithDeadline<()>| {
    ///     std::future::pending::<Result<(), std::io::Error>>().await
    /// });
    /// let mut service = Timeout::new(host.timer().clone(), Duration::from_secs(60), silent);
    /// let mut call = pin!(service.call(().into()));
    /// let mut cx = Context::from_waker(Waker::noop());
    /// assert!(call.as_mut().poll(&mut cx).is_pending());
    /// host.advance(Duration::from_secs(60));
    /// let Poll::Ready(Err(error)) = call.poll(&mut cx) else { panic!() };
    /// assert_eq!(error.to_string(), "the limit of 60s for a call is up");
    /// ```
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct TimeoutFuture<F> {
        elapsed: Elapsed,
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = Projected]
    enum State<F> {
        Limited { #[pin] call: WithTimeout<F> },
        Unlimited { #[pin] call: F },
        // The time is up: at the call already, or since.
        Over,
    }
}

impl<F, T, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, TimeoutError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let end = match this.state.as_mut().project() {
            Projected::Unlimited { call } => return call.poll(cx).map_err(TimeoutError::Inner),
            Projected::Limited { call } => ready!(call.poll(cx)),
            Projected::Over => return Poll::Ready(Err(TimeoutError::Elapsed(*this.elapsed))),
        };
        Poll::Ready(match end {
            Ok(answer) => answer.map_err(TimeoutError::Inner),
            Err(countwheel::TimeoutError::Elapsed) => {
                this.state.set(State::Over);
                Err(TimeoutError::Elapsed(*this.elapsed))
            }
            Err(countwheel::TimeoutError::Sleep(error)) => Err(TimeoutError::Timer(error)),
            // The enumeration may grow: without a limit there is no call.
            Err(_) => Err(TimeoutError::Elapsed(*this.elapsed)),
        })
    }
}

/// Why a call with a limit has no answer.
///
/// ```
/// use countwheel_tower::TimeoutError;
/// use std::error::Error;
///
/// let error = TimeoutError::Inner(std::io::Error::other("the line is dead"));
/// assert_eq!(error.source().unwrap().to_string(), "the line is dead");
/// // An inner error that is boxed already stays what it is.
/// let boxed = TimeoutError::Inner(Box::<dyn Error + Send + Sync>::from("full")).into_boxed();
/// assert_eq!(boxed.to_string(), "full");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimeoutError<E> {
    /// The inner service failed, in time.
    #[error("the call failed")]
    Inner(#[source] E),
    /// The time was up first.
    #[error(transparent)]
    Elapsed(Elapsed),
    /// The time cannot be measured: the timer has stopped, or took no sleep. The call was dropped, since a
    /// call without the limit that was asked for might wait for ever.
    #[error("no limit could be kept")]
    Timer(#[source] SleepError),
}

impl<E> TimeoutError<E> {
    /// The error as Tower's layers expect it, in a box. An inner error comes out itself, without this type
    /// around it: so that one that is a box already, and so no error, gets through.
    pub fn into_boxed(self) -> BoxError
    where
        E: Into<BoxError>,
    {
        match self {
            Self::Inner(error) => error.into(),
            Self::Elapsed(elapsed) => elapsed.into(),
            Self::Timer(error) => error.into(),
        }
    }
}

/// The time of a call was up: what cut the call, and how long the call had.
///
/// ```
/// use countwheel_tower::{Cut, Elapsed};
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// let elapsed = Elapsed { cut: Cut::Limit(second), had: second };
/// assert_eq!(elapsed.to_string(), "the limit of 1s for a call is up");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed {
    /// Which limit came first.
    pub cut: Cut,
    /// How much time was left when the call began: zero if the call did not reach the inner service.
    pub had: Duration,
}

impl std::error::Error for Elapsed {}

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.cut {
            Cut::Limit(limit) => write!(f, "the limit of {limit:?} for a call is up"),
            Cut::Deadline(_) if self.had.is_zero() => {
                f.write_str("the request's deadline had passed before the call")
            }
            Cut::Deadline(_) => write!(
                f,
                "the request's deadline came {:?} after the call began",
                self.had
            ),
        }
    }
}

/// Which of two limits cut a call: a part of [`Elapsed`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cut {
    /// The limit of the layer.
    Limit(Duration),
    /// The deadline that the request carried: a limit further outside.
    Deadline(Deadline),
}
