//! Who waits for a number that only grows.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::concurrent::Outcome;
use crate::task::returns;

/// Waits for a number that only grows: an offset that is committed, a version that is applied.
/// Whoever waits for less than has been reached, or as much, goes on; those with the lowest
/// threshold first.
///
/// It needs no timer. One who wants to wait no longer than so long says so to a timer, with
/// [`Timer::timeout`](crate::Timer::timeout). Kafka's Raft has a `ThresholdPurgatory` for this;
/// here the number that was reached is remembered, so that nobody who comes late waits for
/// the next one.
///
/// Clones are handles to the same. When the last one is dropped, those who still wait are told
/// that it is closed.
///
/// ```
/// use countwheel::{Timer, TimeoutError};
/// use countwheel::pattern::{Thresholds, ThresholdsClosed};
/// use std::time::Duration;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(async {
/// let timer = Timer::new();
/// let committed = Thresholds::new();
/// let write = committed.wait(7);
/// assert_eq!(committed.reach(9), 1);
/// assert_eq!(write.await, Ok(9));
///
/// let limit = Duration::from_millis(1);
/// assert_eq!(timer.timeout(limit, committed.wait(8)).await.unwrap(), Ok(9), "it is past that");
/// let late = timer.timeout(limit, committed.wait(10)).await;
/// assert!(matches!(late, Err(TimeoutError::Elapsed)));
/// assert_eq!(committed.waiting(), 0, "who gives up leaves nothing behind");
///
/// let write = committed.wait(10);
/// assert_eq!(committed.close(), 1);
/// assert_eq!(write.await, Err(ThresholdsClosed));
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Thresholds {
    door: Arc<Door>,
}

/// All clones together.
#[derive(Default)]
struct Door {
    shared: Arc<Shared>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reached: Option<u64>,
    closed: bool,
    last: u64,
    /// By threshold, and then in the order of coming.
    waiting: BTreeMap<(u64, u64), Arc<Answer>>,
}

type Answer = Outcome<Result<u64, ThresholdsClosed>>;

/// The number will not be reached, since nobody reports it any more. See [`Thresholds::close`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the thresholds are closed")]
pub struct ThresholdsClosed;

impl Thresholds {
    /// Nothing is reached yet, not even zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until `threshold` is reached: its output is the number that was reached then,
    /// which may be greater. Waits from this call on, polled or not.
    ///
    /// O(log waiting).
    pub fn wait(&self, threshold: u64) -> ThresholdWait {
        let shared = Arc::clone(&self.door.shared);
        let answer = Arc::new(Outcome::new());
        let mut state = shared.lock();
        state.last += 1;
        let place = (threshold, state.last);
        let answered = match state.reached {
            Some(reached) if reached >= threshold => answer.settle(Ok(reached)),
            _ if state.closed => answer.settle(Err(ThresholdsClosed)),
            _ => {
                state.waiting.insert(place, Arc::clone(&answer));
                Ok(())
            }
        };
        drop(state);
        debug_assert!(answered.is_ok(), "nobody else has it yet");
        ThresholdWait {
            shared,
            place,
            answer,
        }
    }

    /// `value` is reached: everybody goes on who waits for that or less, in the order of the
    /// thresholds, and of coming where these are equal. Returns how many. A value that is not
    /// greater than an earlier one changes nothing.
    ///
    /// Each is woken by this call, without a lock.
    pub fn reach(&self, value: u64) -> usize {
        let mut state = self.door.shared.lock();
        if state.closed || state.reached >= Some(value) {
            return 0;
        }
        state.reached = Some(value);
        let rest = match value.checked_add(1) {
            Some(next) => state.waiting.split_off(&(next, 0)),
            None => BTreeMap::new(),
        };
        let reached = std::mem::replace(&mut state.waiting, rest);
        drop(state);
        settle(reached, Ok(value))
    }

    /// The greatest number that was reached.
    #[must_use]
    pub fn reached(&self) -> Option<u64> {
        self.door.shared.lock().reached
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.door.shared.lock().waiting.len()
    }

    /// Nothing more will be reached: everybody who waits, or will, for more than that is told
    /// so. Returns how many waited.
    pub fn close(&self) -> usize {
        self.door.shared.close()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> usize {
        let mut state = self.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        settle(waiting, Err(ThresholdsClosed))
    }
}

fn settle(
    waiting: BTreeMap<(u64, u64), Arc<Answer>>,
    result: Result<u64, ThresholdsClosed>,
) -> usize {
    let settled = waiting.into_values().map(|answer| {
        // A waker is foreign, and one that panics is not to keep the others asleep.
        returns(|| {
            let _ = answer.settle(result);
        });
    });
    settled.count()
}

impl fmt::Debug for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.door.shared.lock();
        f.debug_struct("Thresholds")
            .field("reached", &state.reached)
            .field("waiting", &state.waiting.len())
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

/// Waits for a number to be reached. Made by [`Thresholds::wait`].
///
/// # Cancel safety
/// Dropping it is to wait no more.
#[must_use = "a future does nothing unless it is awaited"]
pub struct ThresholdWait {
    shared: Arc<Shared>,
    place: (u64, u64),
    answer: Arc<Answer>,
}

impl Future for ThresholdWait {
    type Output = Result<u64, ThresholdsClosed>;

    /// # Panics
    /// If it is polled after its end.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.poll(cx)
    }
}

impl Drop for ThresholdWait {
    fn drop(&mut self) {
        let waiting = self.shared.lock().waiting.remove(&self.place);
        drop(waiting);
    }
}

impl fmt::Debug for ThresholdWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThresholdWait")
            .field("threshold", &self.place.0)
            .finish_non_exhaustive()
    }
}
