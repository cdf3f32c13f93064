//! The caller's handle of a request.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use super::handler::Handoff;
use super::shard::RequestShard;
use super::{OwnId, RequestError, RequestId};
use crate::concurrent::Outcome;
use countwheel::Instant;
use countwheel::building::{block_for, block_until};
use countwheel_time::Patience;

/// What a request's caller and its table share.
pub(super) struct Call<T> {
    pub(super) answer: Outcome<Result<T, RequestError>>,
    pub(super) registered_at: Instant,
    pub(super) own: Option<OwnId>,
}

/// The answer to a request, when it comes, or why there is none. Made by
/// [`Requests::register`](super::Requests::register).
///
/// Await it, block with [`wait`](Self::wait), or leave a handler with
/// [`on_end`](Self::on_end). It always ends: at the deadline at the latest, and with the table
/// or its timer if they end before.
///
/// **Cancelling** is dropping: the request leaves the table at once, and its answer, should
/// it come, is [`Late`](super::Late).
///
/// ```
/// use countwheel::Timer;
/// use countwheel_patterns::{RequestError, Requests};
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let requests = Requests::new(Timer::new());
/// let response = requests.register(Duration::from_secs(60))?;
/// let id = response.id();
/// requests.mark_sent(id);
/// let reader = requests.clone();
/// std::thread::spawn(move || reader.complete(id, "pong").unwrap());
/// assert_eq!(response.await?, "pong");
///
/// let silence = requests.register(Duration::from_millis(2))?.await;
/// assert!(matches!(silence, Err(RequestError::TimedOut { sent: false, .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "dropping it cancels the request"]
pub struct Response<T: Send + 'static> {
    id: RequestId,
    deadline: Instant,
    call: Arc<Call<T>>,
    shard: Weak<RequestShard<T>>,
    /// Whether nobody is going to ask: the answer was taken, or goes to a handler.
    is_over: bool,
}

impl<T: Send + 'static> Response<T> {
    pub(super) fn new(
        id: RequestId,
        deadline: Instant,
        call: Arc<Call<T>>,
        shard: Weak<RequestShard<T>>,
    ) -> Self {
        Self {
            id,
            deadline,
            call,
            shard,
            is_over: false,
        }
    }

    /// What names the request: to be sent with it.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// When it times out.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it has ended, so that waiting would return at once.
    ///
    /// ```
    /// # use countwheel::ManualHost;
    /// # use countwheel_patterns::Requests;
    /// # use std::time::Duration;
    /// let host = ManualHost::new();
    /// let requests = Requests::new(host.timer().clone());
    /// let response = requests.register(Duration::from_secs(1))?;
    /// assert!(!response.is_ended());
    /// requests.complete(response.id(), ()).unwrap();
    /// assert!(response.is_ended());
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_over || self.call.answer.is_settled()
    }

    /// Blocks this thread until the request ends.
    ///
    /// Not on the thread that has to bring the answer, and not on that of the timer. (On a
    /// thread of the timer's executor it does block that, but not the time-out.)
    ///
    /// # Errors
    /// Why there is no answer: see [`RequestError`].
    ///
    /// # Panics
    /// If the answer was taken before, by a poll.
    pub fn wait(mut self) -> Result<T, RequestError> {
        block_until(|cx| Pin::new(&mut self).poll(cx))
    }

    /// Like [`wait`](Self::wait), but for `patience` of real time at most: for a thread that has
    /// something else to do, or looks whether it is still wanted.
    ///
    /// # Errors
    /// Gives the response back if the request has not ended by then. It goes on, until its
    /// deadline, or until the response is dropped.
    ///
    /// # Panics
    /// If the answer was taken before, by a poll.
    ///
    /// ```
    /// use countwheel::ManualHost;
    /// use countwheel_patterns::Requests;
    /// use std::time::Duration;
    ///
    /// let host = ManualHost::new();
    /// let requests = Requests::new(host.timer().clone());
    /// let response = requests.register(Duration::from_secs(60))?;
    /// let response = response.wait_for(Duration::from_millis(1)).unwrap_err(); // not yet
    /// requests.complete(response.id(), "pong").unwrap();
    /// assert_eq!(response.wait_for(Duration::ZERO).unwrap().unwrap(), "pong");
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    pub fn wait_for(mut self, patience: Duration) -> Result<Result<T, RequestError>, Self> {
        let patience = Patience::of(patience);
        let answer = block_for(patience, |cx| Pin::new(&mut self).poll(cx));
        answer.ok_or(self)
    }

    /// Takes the request back: the same as dropping this.
    pub fn cancel(self) {
        drop(self);
    }

    /// Calls `handler` with the answer, or the reason why there is none, once: as a task
    /// of the timer, on its executor. Returns the id.
    ///
    /// It is called in any case. If the executor has not begun it
    /// [in time](super::RequestsBuilder::handler_patience), because it is full or all its
    /// threads are stuck, the timer's host calls it, and everything else waits meanwhile: so be
    /// short. If the timer drops the task or has stopped, or the table has, the thread that
    /// ends the request calls it. A panic is caught, and logged or counted by the timer.
    ///
    /// ```
    /// use countwheel::Timer;
    /// use countwheel_patterns::Requests;
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// let requests = Requests::<String>::new(Timer::new());
    /// let (sender, receiver) = mpsc::channel();
    /// for timeout in [Duration::from_secs(60), Duration::from_millis(2)] {
    ///     let sender = sender.clone();
    ///     let id = requests.register(timeout)?.on_end(move |answer| {
    ///         sender.send(answer.unwrap_or_else(|error| error.to_string())).unwrap();
    ///     });
    ///     if timeout > Duration::from_secs(1) {
    ///         requests.complete(id, "pong".to_owned()).unwrap();
    ///     }
    /// }
    /// let mut ends = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    /// ends.sort();
    /// assert!(ends[0].starts_with("not sent within") && ends[1] == "pong");
    /// # Ok::<(), countwheel_patterns::RegisterError>(())
    /// ```
    ///
    /// # Panics
    /// If the answer was taken before, by a poll.
    pub fn on_end(
        mut self,
        handler: impl FnOnce(Result<T, RequestError>) + Send + 'static,
    ) -> RequestId {
        assert!(!self.is_over, "asked again after the answer");
        self.is_over = true;
        let shard = Weak::clone(&self.shard);
        Handoff::set(shard, &self.call, Box::new(handler));
        self.id
    }
}

impl<T: Send + 'static> Future for Response<T> {
    type Output = Result<T, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.call.answer.poll(cx);
        self.is_over |= polled.is_ready();
        polled
    }
}

impl<T: Send + 'static> Drop for Response<T> {
    fn drop(&mut self) {
        if !self.is_ended()
            && let Some(shard) = self.shard.upgrade()
        {
            shard.cancel(self.id);
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Response<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("id", &self.id)
            .field("deadline", &self.deadline)
            .field("is_ended", &self.is_ended())
            .finish_non_exhaustive()
    }
}
