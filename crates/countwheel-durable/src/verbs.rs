//! The verbs as requests, and their twins for async code.

use std::num::NonZeroUsize;

use countwheel_time::By;
use futures_channel::oneshot;

use crate::store::{Filter, StoreError};
use crate::{
    DrainMode, Drained, Due, Moved, Payload, Precondition, QueueName, Record, Request, Response,
    RetryPolicy, Set, SetOptions, Shift, TimerError, TimerName, Timers, Was,
};

/// A name of a timer as the verbs take it: a [`TimerName`], a queue and a key as `("unpaid", "o-1")`,
/// or the text `"unpaid/o-1"`.
pub trait ToTimerName: TryInto<TimerName, Error: Into<TimerError>> {}

impl<T: TryInto<TimerName, Error: Into<TimerError>>> ToTimerName for T {}

/// A payload as the verbs take it: bytes, a text, `()` for none, or [`Json`](crate::Json) of a value.
pub trait ToPayload: TryInto<Payload, Error: Into<TimerError>> {}

impl<T: TryInto<Payload, Error: Into<TimerError>>> ToPayload for T {}

/// The name, checked.
pub(crate) fn named(name: impl ToTimerName) -> Result<TimerName, TimerError> {
    name.try_into().map_err(Into::into)
}

pub(crate) fn set(
    name: impl ToTimerName,
    due: impl Into<Due>,
    policy: RetryPolicy,
    payload: impl ToPayload,
) -> Result<Request, TimerError> {
    let payload: Payload = payload.try_into().map_err(Into::into)?;
    Ok(Request::Set {
        name: named(name)?,
        due: due.into(),
        policy,
        payload: payload.0,
        precondition: Precondition::None,
        options: SetOptions::default(),
    })
}

pub(crate) fn shift(name: impl ToTimerName, shift: Shift) -> Result<Request, TimerError> {
    Ok(Request::Move {
        name: named(name)?,
        shift,
        precondition: Precondition::None,
    })
}

pub(crate) fn remove(name: impl ToTimerName) -> Result<Request, TimerError> {
    Ok(Request::Remove {
        name: named(name)?,
        precondition: Precondition::None,
        only_pending: false,
    })
}

pub(crate) fn fire(name: impl ToTimerName) -> Result<Request, TimerError> {
    let name = named(name)?;
    Ok(Request::Fire { name })
}

pub(crate) fn revive(name: impl ToTimerName, due: impl Into<Due>) -> Result<Request, TimerError> {
    Ok(Request::Revive {
        name: named(name)?,
        due: due.into(),
    })
}

/// What one verb is answered with.
pub(crate) fn answer<T: TryFrom<Response, Error = Response>>(
    response: Response,
) -> Result<T, TimerError> {
    let answer = T::try_from(response);
    // No request is answered as another.
    answer.map_err(|other| TimerError::Unknown(format!("the answer was {other:?}")))
}

/// The verbs of [`Timers`] for async code, on any runtime. See [`Timers::to_async`].
///
/// A verb hands its request in when it is called, and its future brings the answer. A future that is
/// dropped takes nothing back. Reads of the store wait on a thread of their own.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Config, SystemClock, Timers, Was, inline};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = Arc::new(SystemClock::new());
/// # let store = MemoryStore::new(7);
/// let timers = Timers::open(store, inline(|_| ()), clock, Config::default())?.to_async();
/// let (order, hour) = (("unpaid", "o-1"), Duration::from_secs(3_600));
/// let set = timers.set(order, hour, "close it").await?;
/// let moved = timers.move_by(order, Duration::from_secs(60)).await?;
/// assert_eq!(moved.old_due, set.due);
/// assert!(timers.get(order).await?.is_some());
/// assert_eq!(timers.remove(order).await?, Was::Pending { due: moved.due });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncTimers(pub(crate) Timers);

impl AsyncTimers {
    /// As [`Timers::set`].
    pub fn set<N: ToTimerName, D: Into<Due>, P: ToPayload>(
        &self,
        name: N,
        due: D,
        payload: P,
    ) -> impl Future<Output = Result<Set, TimerError>> + Send + use<N, D, P> {
        self.ask(set(name, due, RetryPolicy::default(), payload))
    }

    /// As [`Timers::set_with`].
    pub fn set_with<N: ToTimerName, D: Into<Due>, P: ToPayload>(
        &self,
        name: N,
        due: D,
        policy: RetryPolicy,
        payload: P,
    ) -> impl Future<Output = Result<Set, TimerError>> + Send + use<N, D, P> {
        self.ask(set(name, due, policy, payload))
    }

    /// As [`Timers::move_to`].
    pub fn move_to<N: ToTimerName, D: Into<Due>>(
        &self,
        name: N,
        due: D,
    ) -> impl Future<Output = Result<Moved, TimerError>> + Send + use<N, D> {
        self.ask(shift(name, Shift::To(due.into())))
    }

    /// As [`Timers::move_by`].
    pub fn move_by<N: ToTimerName, B: Into<By>>(
        &self,
        name: N,
        by: B,
    ) -> impl Future<Output = Result<Moved, TimerError>> + Send + use<N, B> {
        self.ask(shift(name, by.into().into()))
    }

    /// As [`Timers::remove`].
    pub fn remove<N: ToTimerName>(
        &self,
        name: N,
    ) -> impl Future<Output = Result<Was, TimerError>> + Send + use<N> {
        self.ask(remove(name))
    }

    /// As [`Timers::fire`].
    pub fn fire<N: ToTimerName>(
        &self,
        name: N,
    ) -> impl Future<Output = Result<Moved, TimerError>> + Send + use<N> {
        self.ask(fire(name))
    }

    /// As [`Timers::revive`].
    pub fn revive<N: ToTimerName, D: Into<Due>>(
        &self,
        name: N,
        due: D,
    ) -> impl Future<Output = Result<Moved, TimerError>> + Send + use<N, D> {
        self.ask(revive(name, due))
    }

    /// As [`Timers::call`].
    pub fn call(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Response, TimerError>> + Send + use<> {
        self.submit(Ok(request))
    }

    /// As [`Timers::get`].
    pub fn get<N: ToTimerName>(
        &self,
        name: N,
    ) -> impl Future<Output = Result<Option<Record>, TimerError>> + Send + use<N> {
        let name = named(name);
        self.elsewhere(move |timers| timers.get(name?))
    }

    /// The first `count` records of [`Timers::list`].
    pub fn list<F: Into<Filter>>(
        &self,
        filter: F,
        count: NonZeroUsize,
    ) -> impl Future<Output = Result<Vec<Record>, TimerError>> + Send + use<F> {
        let filter: Filter = filter.into();
        self.elsewhere(move |timers| {
            let records: Result<Vec<Record>, StoreError> =
                timers.list(filter).take(count.get()).collect();
            Ok(records?)
        })
    }

    /// As [`Timers::drain`]. The drain goes on if the future is dropped, and with
    /// [`DrainMode::Remove`] its answer is the only copy of the timers: no time-out belongs around it.
    pub fn drain(
        &self,
        queue: Option<&QueueName>,
        mode: DrainMode,
    ) -> impl Future<Output = Result<Drained, TimerError>> + Send + use<> {
        let queue = queue.cloned();
        self.elsewhere(move |timers| timers.drain(queue.as_ref(), mode))
    }

    /// As [`Timers::resume`].
    pub fn resume(
        &self,
        queue: Option<&QueueName>,
    ) -> impl Future<Output = Result<Option<DrainMode>, TimerError>> + Send + use<> {
        let queue = queue.cloned();
        self.elsewhere(move |timers| timers.resume(queue.as_ref()))
    }

    /// The timers for code that may wait.
    #[must_use]
    pub fn timers(&self) -> &Timers {
        &self.0
    }

    fn ask<T: TryFrom<Response, Error = Response>>(
        &self,
        request: Result<Request, TimerError>,
    ) -> impl Future<Output = Result<T, TimerError>> + Send + use<T> {
        let response = self.submit(request);
        async move { answer(response.await?) }
    }

    fn submit(
        &self,
        request: Result<Request, TimerError>,
    ) -> impl Future<Output = Result<Response, TimerError>> + Send + use<> {
        let answer = request.map(|request| {
            let (send, receive) = oneshot::channel();
            self.0.submit(request, move |answer| {
                // Nobody may wait any more.
                let _ = send.send(answer);
            });
            receive
        });
        async move { answer?.await.unwrap_or(Err(TimerError::Closed)) }
    }

    /// Runs what waits on a thread of its own.
    fn elsewhere<T, R>(
        &self,
        read: R,
    ) -> impl Future<Output = Result<T, TimerError>> + Send + use<T, R>
    where
        T: Send + 'static,
        R: FnOnce(&Timers) -> Result<T, TimerError> + Send + 'static,
    {
        let (send, receive) = oneshot::channel();
        let timers = self.0.clone();
        self.0.readers().run(Box::new(move || {
            let _ = send.send(read(&timers));
        }));
        async move {
            receive.await.unwrap_or_else(|_| {
                Err(TimerError::Unavailable {
                    reason: "there is no thread to read on".to_owned(),
                })
            })
        }
    }
}
