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

impl<T: Send + 'static> fmt::Debug for NextDue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextDue")
            .field("waits", &self.ticket.is_some())
            .finish_non_exhaustive()
    }
}
