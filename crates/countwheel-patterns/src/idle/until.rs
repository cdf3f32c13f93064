//! The future of a connection's next idle event.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{IdleEvent, IdleKind, Watched, last};
use crate::activity::{Live, next_multiple};
use countwheel::{Instant, Sleep, SleepError};

/// Ready once a connection has been idle for as long as one of its limits. Made by
/// [`Watched::idle`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct UntilIdle<'a, C: Send + Sync + 'static> {
    watched: &'a Watched<C>,
    /// Up to when all has been said.
    told: Live,
    sleep: Option<Sleep>,
}

impl<'a, C: Send + Sync + 'static> UntilIdle<'a, C> {
    pub(super) fn new(watched: &'a Watched<C>) -> Self {
        Self {
            watched,
            told: watched.shard.live(),
            sleep: None,
        }
    }

    /// The next event if nothing happens until then: when, of which kind, after which limit.
    fn next(&self, now: Live) -> Option<(Live, IdleKind, u64)> {
        let cell = &self.watched.cell;
        let limits = cell.data.limits.each();
        let events = limits.map(|(kind, limit)| {
            let due = next_multiple(last(cell, kind, now), limit, self.told);
            (due, kind, limit)
        });
        events.min_by_key(|&(due, ..)| due)
    }
}

impl<C: Send + Sync + 'static> Future for UntilIdle<'_, C> {
    type Output = Result<IdleEvent, SleepError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shard = &this.watched.shard;
        loop {
            let now = shard.live();
            let next = this.next(now);
            if let Some((_, kind, limit)) = next.filter(|&(due, ..)| due <= now) {
                let last = last(&this.watched.cell, kind, now);
                let first = this.told.since(last) < limit;
                this.told = now;
                this.sleep = None;
                return Poll::Ready(Ok(IdleEvent {
                    kind,
                    first,
                    idle_for: Duration::from_nanos(now.since(last)),
                }));
            }
            // Without a limit, there is only the end of the timer to wait for.
            let due = next.map_or(Live::NEVER, |(due, ..)| due);
            let deadline = match due {
                Live::NEVER => Instant::MAX,
                due => shard.hub().stalls.real(due),
            };
            let sleep = this
                .sleep
                .get_or_insert_with(|| shard.timer().sleep_until(deadline));
            if sleep.deadline() != deadline {
                sleep.reset(deadline);
            }
            ready!(Pin::new(sleep).poll(cx))?;
            this.sleep = None;
        }
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for UntilIdle<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UntilIdle")
            .field("sleep", &self.sleep)
            .finish_non_exhaustive()
    }
}
