//! The verbs as requests, and their twins for async code.

use std::num::NonZeroUsize;
use std::time::Duration;

use countwheel_time::By;
use futures_channel::oneshot;

use crate::store::Filter;
use crate::{
    CronExpression, DrainMode, Drained, Due, Moved, NameError, Payload, Precondition, QueueName,
    Record, Recurrence, Request, Response, RetryPolicy, Schedule, Set, SetOptions, Shift,
    TimerError, TimerName, Timers, Was, Zone,
};

/// A name of a timer as the verbs take it: a [`TimerName`], a queue and a key as `("unpaid", "o-1")` or
/// `("unpaid", 42)`, or the text `"unpaid/o-1"`.
pub trait ToTimerName: TryInto<TimerName, Error: Into<TimerError>> {}

impl<T: TryInto<TimerName, Error: Into<TimerError>>> ToTimerName for T {}

/// A payload as the verbs take it: bytes, a text, `()` for none, or [`Json`](crate::Json) of a value.
pub trait ToPayload: TryInto<Payload, Error: Into<TimerError>> {}

impl<T: TryInto<Payload, Error: Into<TimerError>>> ToPayload for T {}

/// What [`Timers::list`] takes: a [`Filter`], or a queue, also by [its text](QueueName::from_text).
pub trait ToFilter: TryInto<Filter, Error: Into<TimerError>> {}

impl<T: TryInto<Filter, Error: Into<TimerError>>> ToFilter for T {}

/// Which queues [`Timers::drain`] and [`Timers::resume`] are about: a queue, also by
/// [its text](QueueName::from_text), or `None` for all.
///
/// ```
/// use countwheel_durable::{NameError, QueueName, ToQueues};
///
/// assert_eq!("unpaid".queues()?, Some(QueueName::new("unpaid")?));
/// assert_eq!(None.queues()?, None);
/// # Ok::<(), NameError>(())
/// ```
pub trait ToQueues {
    /// The one queue, or `None` for all.
    ///
    /// # Errors
    /// [`NameError`] if a text is no queue's name.
    fn queues(self) -> Result<Option<QueueName>, NameError>;
}

// Each type by itself: with more than one of `Option`, a bare `None` would need a type.
impl ToQueues for Option<&QueueName> {
    fn queues(self) -> Result<Option<QueueName>, NameError> {
        Ok(self.cloned())
    }
}

impl ToQueues for &QueueName {
    fn queues(self) -> Result<Option<QueueName>, NameError> {
        Ok(Some(self.clone()))
    }
}

impl ToQueues for QueueName {
    fn queues(self) -> Result<Option<QueueName>, NameError> {
        Ok(Some(self))
    }
}

impl ToQueues for &str {
    fn queues(self) -> Result<Option<QueueName>, NameError> {
        QueueName::from_text(self).map(Some)
    }
}

impl ToQueues for &String {
    fn queues(self) -> Result<Option<QueueName>, NameError> {
        self.as_str().queues()
    }
}

impl ToQueues for String {
    fn queues(self) -> Result<Option<QueueName>, NameError> {
        self.as_str().queues()
    }
}

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

/// A set of a recurring timer: `first` is how far from now its first run is.
pub(crate) fn recur(
    name: impl ToTimerName,
    first: Duration,
    schedule: Schedule,
    payload: impl ToPayload,
) -> Result<Request, TimerError> {
    let mut request = set(name, first, RetryPolicy::default(), payload)?;
    if let Request::Set { options, .. } = &mut request {
        options.recurrence = Some(Recurrence::new(schedule).into());
    }
    Ok(request)
}

pub(crate) fn every(
    name: impl ToTimerName,
    every: Duration,
    payload: impl ToPayload,
) -> Result<Request, TimerError> {
    let anchor = None;
    recur(name, every, Schedule::FixedRate { every, anchor }, payload)
}

pub(crate) fn every_after(
    name: impl ToTimerName,
    every: Duration,
    payload: impl ToPayload,
) -> Result<Request, TimerError> {
    recur(name, every, Schedule::FixedDelay { every }, payload)
}

pub(crate) fn cron(
    name: impl ToTimerName,
    expression: &str,
    zone: Zone,
    payload: impl ToPayload,
) -> Result<Request, TimerError> {
    let expression = CronExpression::new(expression)?;
    // The expression says when: not before now.
    recur(
        name,
        Duration::ZERO,
        Schedule::Cron { expression, zone },
        payload,
    )
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

    /// As [`Timers::every`].
    pub fn every<N: ToTimerName, P: ToPayload>(
        &self,
        name: N,
        every: Duration,
        payload: P,
    ) -> impl Future<Output = Result<Set, TimerError>> + Send + use<N, P> {
        self.ask(self::every(name, every, payload))
    }

    /// As [`Timers::every_after`].
    pub fn every_after<N: ToTimerName, P: ToPayload>(
        &self,
        name: N,
        every: Duration,
        payload: P,
    ) -> impl Future<Output = Result<Set, TimerError>> + Send + use<N, P> {
        self.ask(every_after(name, every, payload))
    }

    /// As [`Timers::cron`].
    pub fn cron<N: ToTimerName, E: AsRef<str>, P: ToPayload>(
        &self,
        name: N,
        expression: E,
        payload: P,
    ) -> impl Future<Output = Result<Set, TimerError>> + Send + use<N, E, P> {
        self.ask(cron(name, expression.as_ref(), Zone::default(), payload))
    }

    /// As [`Timers::cron_in`].
    pub fn cron_in<N: ToTimerName, E: AsRef<str>, Z: AsRef<str>, P: ToPayload>(
        &self,
        name: N,
        expression: E,
        zone: Z,
        payload: P,
    ) -> impl Future<Output = Result<Set, TimerError>> + Send + use<N, E, Z, P> {
        let zone = Zone::new(zone).map_err(TimerError::from);
        self.ask(zone.and_then(|zone| cron(name, expression.as_ref(), zone, payload)))
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
    pub fn list<F: ToFilter>(
        &self,
        filter: F,
        count: NonZeroUsize,
    ) -> impl Future<Output = Result<Vec<Record>, TimerError>> + Send + use<F> {
        let filter: Result<Filter, TimerError> = filter.try_into().map_err(Into::into);
        self.elsewhere(move |timers| timers.list(filter?).take(count.get()).collect())
    }

    /// As [`Timers::drain`]. The drain goes on if the future is dropped, and with
    /// [`DrainMode::Remove`] its answer is the only copy of the timers: no time-out belongs around it.
    pub fn drain<Q: ToQueues>(
        &self,
        queue: Q,
        mode: DrainMode,
    ) -> impl Future<Output = Result<Drained, TimerError>> + Send + use<Q> {
        let queue = queue.queues();
        self.elsewhere(move |timers| timers.drain(queue?.as_ref(), mode))
    }

    /// As [`Timers::resume`].
    pub fn resume<Q: ToQueues>(
        &self,
        queue: Q,
    ) -> impl Future<Output = Result<Option<DrainMode>, TimerError>> + Send + use<Q> {
        let queue = queue.queues();
        self.elsewhere(move |timers| timers.resume(queue?.as_ref()))
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
