//! The future of the next item.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::line::Ticket;
use super::queue::Queue;
use super::results::{Due, TakeError};
use countwheel::building::{block_for, block_until};
use countwheel_time::Patience;

/// Waits for the next item of a delay queue: its output is `None` if there will be none. Made
/// by [`DelayQueue::next`](crate::DelayQueue::next).
///
/// # Cancel safety
/// Dropping it loses nothing: an item leaves the queue only when this future returns it, and
/// a wake-up that came too late for this one goes to the next who waits.
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextDue<T: Send + 'static> {
    queue: Arc<Queue<T>>,
    ticket: Option<Ticket>,
}

impl<T: Send + 'static> NextDue<T> {
    pub(super) fn new(queue: &Arc<Queue<T>>) -> Self {
        Self {
            queue: Arc::clone(queue),
            ticket: None,
        }
    }

    /// Blocks instead, for `patience` at most.
    pub(super) fn block(mut self, patience: Option<Duration>) -> Result<Due<T>, TakeError> {
        let poll = |cx: &mut Context<'_>| Pin::new(&mut self).poll(cx);
        let due = match patience {
            None => block_until(poll),
            Some(span) => block_for(Patience::of(span), poll).ok_or(TakeError::TimedOut)?,
        };
        due.ok_or(TakeError::Ended)
    }
}

impl<T: Send + 'static> Future for NextDue<T> {
    type Output = Option<Due<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { queue, ticket } = &mut *self;
        queue.poll_take(ticket, cx)
    }
}

impl<T: Send + 'static> Drop for NextDue<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.queue.leave(ticket);
        }
    }
}

/// Items of a delay queue, one after another. Made by
/// [`DelayQueue::items`](crate::DelayQueue::items).
///
/// With the cargo feature `stream` it is a `Stream` of the crate `futures-core`, which ends when
/// there will be no item any more.
///
/// # Cancel safety
/// Dropping it, or the future of [`take`](Self::take), loses nothing: an item leaves the queue only
/// when it is returned.
#[must_use = "items are taken when they are asked for"]
pub struct DueItems<T: Send + 'static> {
    next: NextDue<T>,
}

impl<T: Send + 'static> DueItems<T> {
    pub(super) fn new(queue: &Arc<Queue<T>>) -> Self {
        Self {
            next: NextDue::new(queue),
        }
    }

    /// Takes the next item, and waits until it is due. `None` if there will be none.
    pub async fn take(&mut self) -> Option<Due<T>> {
        // A place in the line outlives the wait for it: who asks again goes on where it was.
        (&mut self.next).await
    }
}

/// ```
/// use countwheel::Timer;
/// use countwheel_patterns::DelayQueue;
/// use futures_core::Stream;
/// use std::future::poll_fn;
/// use std::pin::Pin;
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let queue = DelayQueue::new(Timer::new());
/// queue.push("tea", Duration::from_millis(1)).unwrap();
/// queue.close();
/// let mut items = queue.items();
/// // `StreamExt::next` of futures or tokio-stream does this.
/// assert_eq!(poll_fn(|cx| Pin::new(&mut items).poll_next(cx)).await.unwrap().value, "tea");
/// assert!(poll_fn(|cx| Pin::new(&mut items).poll_next(cx)).await.is_none());
/// # });
/// ```
#[cfg(feature = "stream")]
impl<T: Send + 'static> futures_core::Stream for DueItems<T> {
    type Item = Due<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.next).poll(cx)
    }
}

impl<T: Send + 'static> fmt::Debug for DueItems<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DueItems")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> fmt::Debug for NextDue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextDue")
            .field("waits", &self.ticket.is_some())
            .finish_non_exhaustive()
    }
}
