//! Idle events for who takes them.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::IdleEvent;
use countwheel_time::locks::lock;

/// The events of an [`IdleWatch`](super::IdleWatch), in the order in which they came. Made by
/// [`IdleWatchBuilder::build_events`](super::IdleWatchBuilder::build_events).
///
/// It ends once the last handle of the table is dropped and all events are taken. With the cargo
/// feature `stream` it is a `Stream` of the crate `futures-core`. Dropping it loses what was not
/// taken; the table goes on, and its events go nowhere.
pub struct IdleEvents<C> {
    shared: Arc<Mutex<Waiting<C>>>,
}

/// Where a table puts its events. They end when this is dropped.
pub(super) struct Reporter<C> {
    shared: Arc<Mutex<Waiting<C>>>,
}

struct Waiting<C> {
    events: VecDeque<(C, IdleEvent)>,
    room: usize,
    missed: u64,
    has_ended: bool,
    waker: Option<Waker>,
}

pub(super) fn channel<C>(room: NonZeroUsize) -> (Reporter<C>, IdleEvents<C>) {
    let shared = Arc::new(Mutex::new(Waiting {
        events: VecDeque::new(),
        room: room.get(),
        missed: 0,
        has_ended: false,
        waker: None,
    }));
    let reporter = Reporter {
        shared: Arc::clone(&shared),
    };
    (reporter, IdleEvents { shared })
}

impl<C: Clone> Reporter<C> {
    pub(super) fn report(&self, connection: &C, event: IdleEvent) {
        // What is cloned, dropped and woken is foreign: not under the lock.
        let report = (connection.clone(), event);
        let mut waiting = lock(&self.shared);
        if waiting.events.len() >= waiting.room {
            waiting.missed += 1;
            drop(waiting);
            return drop(report);
        }
        waiting.events.push_back(report);
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<C> Drop for Reporter<C> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.shared);
        waiting.has_ended = true;
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<C> IdleEvents<C> {
    /// Waits for the next event: the connection, and what has not happened there. `None` if there
    /// will be none.
    ///
    /// **Cancelling:** dropping the future loses nothing.
    pub async fn take(&mut self) -> Option<(C, IdleEvent)> {
        poll_fn(|cx| self.poll_take(cx)).await
    }

    /// Like [`take`](Self::take), for those who write futures by hand. If it is not ready, the waker
    /// is woken when it may be.
    pub fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<(C, IdleEvent)>> {
        // A waker is foreign: it is neither cloned nor dropped under the lock.
        let waker = cx.waker().clone();
        let mut waiting = lock(&self.shared);
        if let Some(event) = waiting.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if waiting.has_ended {
            return Poll::Ready(None);
        }
        let old = waiting.waker.replace(waker);
        drop(waiting);
        drop(old);
        Poll::Pending
    }

    /// How many events came while there was no room for them.
    #[must_use]
    pub fn missed(&self) -> u64 {
        lock(&self.shared).missed
    }
}

/// ```
/// use countwheel::Timer;
/// use countwheel_patterns::{IdleLimits, IdleWatch};
/// use futures_core::Stream;
/// use std::future::poll_fn;
/// use std::num::NonZeroUsize;
/// use std::pin::Pin;
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let (idle, mut events) = IdleWatch::builder(Timer::new()).build_events(NonZeroUsize::MIN);
/// let connection = idle.watch(7, IdleLimits::NONE.all(Duration::from_millis(20)))?;
/// // `StreamExt::next` of futures or tokio-stream does this.
/// let (number, event) = poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await.unwrap();
/// assert!(number == 7 && event.first);
/// # Ok::<(), countwheel_patterns::WatchError<u32>>(())
/// # }).unwrap();
/// ```
#[cfg(feature = "stream")]
impl<C> futures_core::Stream for IdleEvents<C> {
    type Item = (C, IdleEvent);

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        self.poll_take(cx)
    }
}

impl<C> fmt::Debug for IdleEvents<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleEvents")
            .field("waiting", &lock(&self.shared).events.len())
            .field("missed", &self.missed())
            .finish_non_exhaustive()
    }
}
