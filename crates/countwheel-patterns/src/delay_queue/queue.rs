//! The one queue below both kinds: a shelf and a line behind a lock, and a bell.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::line::{Line, Ticket};
use super::results::{DelayQueueStats, Due, PushError, Undue};
use super::shelf::{Item, Shelf};
use crate::FAR;
use countwheel::building::returns;
use countwheel::building::{Bell, Rung, driver, start_host};
use countwheel::{Instant, Timer, TimerKey};
use countwheel_time::locks;

/// One who is called takes one item and, if there is more, so does the next one: it need not
/// be this call that wakes them all.
const AT_ONCE: usize = 256;

pub(super) struct Queue<T> {
    bell: Bell,
    state: Mutex<State<T>>,
}

pub(super) struct State<T> {
    pub(super) shelf: Shelf<T>,
    line: Line,
    closed: bool,
}

impl<T: Send + 'static> Queue<T> {
    pub(super) fn new(timer: Timer, capacity: usize) -> Arc<Self> {
        let shelf = Shelf::new(driver(&timer), capacity);
        let state = State {
            shelf,
            line: Line::default(),
            closed: false,
        };
        Arc::new_cyclic(|queue| Self {
            bell: Bell::new(timer, queue.clone()),
            state: Mutex::new(state),
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.bell.now()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A panic under the lock comes from a key that compares itself, and before any change.
        locks::lock(&self.state)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.bell.is_stopped() || self.lock().closed
    }

    /// Makes sure that there is somebody to ring.
    pub(super) fn start(&self) -> std::io::Result<()> {
        start_host(self.bell.timer())
    }

    pub(super) fn push(&self, value: T, deadline: Instant) -> Result<TimerKey, PushError<T>> {
        let now = self.now();
        if let Err(source) = self.start() {
            return Err(PushError::NoThread { value, source });
        }
        let mut state = self.lock();
        if let Err(refusal) = self.admit(&mut state, false) {
            drop(state);
            return Err(refusal.of(value));
        }
        let item = Item {
            value,
            deadline,
            hash: None,
        };
        let key = state.shelf.put(now, item);
        self.filed(state, now, deadline);
        Ok(key)
    }

    /// Whether an item may come in, be it in the place of another or one more.
    pub(super) fn admit(&self, state: &mut State<T>, has_place: bool) -> Result<(), Refusal> {
        let refusal = if state.closed || self.bell.is_stopped() {
            Refusal::Closed
        } else if has_place || state.shelf.has_room() {
            return Ok(());
        } else {
            Refusal::Full
        };
        state.shelf.refuse();
        Err(refusal)
    }

    /// Gives up the lock under which something was filed, and tells whom it concerns.
    pub(super) fn filed(
        &self,
        mut state: MutexGuard<'_, State<T>>,
        now: Instant,
        deadline: Instant,
    ) {
        if state.line.len() == 0 {
            return;
        }
        let called = self.call(&mut state, now);
        let due = state
            .line
            .has_waiting()
            .then(|| state.shelf.due_of(deadline));
        let ring_by = due.into_iter().chain(state.line.next_absent()).min();
        drop(state);
        wake(called);
        if let Some(due) = ring_by {
            self.ring_by(due);
        }
    }

    fn ring_by(&self, due: Instant) {
        // What a timer without a thread cannot do yet, the next push makes up for.
        if self.bell.ring_by(due.min(FAR)).is_err() && self.bell.is_stopped() {
            self.change(|_| ());
        }
    }

    /// Calls as many of the line as items are due, or everybody at the end.
    fn call(&self, state: &mut State<T>, now: Instant) -> Vec<Waker> {
        let mut wakers = Vec::new();
        state.line.forget_absent(now);
        let wanted = if !state.line.has_waiting() {
            return wakers;
        } else if self.is_over(state) {
            usize::MAX
        } else {
            let most = state.line.len().min(state.line.called() + AT_ONCE);
            state.shelf.look(now, most)
        };
        while state.line.called() < wanted
            && let Some(waker) = state.line.call(now)
        {
            wakers.push(waker);
        }
        state.shelf.note_wake_ups(wakers.len());
        wakers
    }

    /// Whether nothing becomes due any more.
    fn is_over(&self, state: &State<T>) -> bool {
        self.bell.is_stopped() || state.closed && state.shelf.len() == 0
    }

    pub(super) fn take_due(&self, limit: usize) -> Vec<Due<T>> {
        let now = self.now();
        self.change(|state| {
            let due = std::iter::from_fn(|| state.shelf.take(now));
            due.take(limit).collect()
        })
    }

    pub(super) fn try_take(&self) -> Option<Due<T>> {
        let now = self.now();
        self.change(|state| state.shelf.take(now))
    }

    /// Gives up the lock under which something was taken, or somebody left, and tells whom it
    /// concerns.
    fn taken(&self, mut state: MutexGuard<'_, State<T>>, now: Instant) {
        let called = self.call(&mut state, now);
        let ring_by = state.line.next_absent();
        drop(state);
        wake(called);
        if let Some(due) = ring_by {
            self.ring_by(due);
        }
    }

    /// Takes an item, or waits in the line. `None` if nothing will come.
    pub(super) fn poll_take(
        &self,
        ticket: &mut Option<Ticket>,
        cx: &Context<'_>,
    ) -> Poll<Option<Due<T>>> {
        // A waker is foreign: it is neither cloned nor dropped under the lock.
        let waker = cx.waker().clone();
        let now = self.now();
        let mut state = self.lock();
        let taken = state.shelf.take(now);
        if taken.is_some() || self.is_over(&state) {
            let old = ticket.take().and_then(|ticket| state.line.leave(ticket));
            self.taken(state, now);
            drop(old);
            return Poll::Ready(taken);
        }
        let old = state.line.wait(ticket, waker);
        let due = state.shelf.next_wake_of_later();
        let due = due.into_iter().chain(state.line.next_absent()).min();
        drop(state);
        drop(old);
        self.ring_by(due.unwrap_or(FAR));
        Poll::Pending
    }

    /// Leaves the line. If this one was called, the next one is.
    pub(super) fn leave(&self, ticket: Ticket) {
        let old = self.change(|state| state.line.leave(ticket));
        drop(old);
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.lock().shelf.next_wake()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().shelf.len()
    }

    pub(super) fn stats(&self) -> DelayQueueStats {
        self.lock().shelf.stats()
    }

    pub(super) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Does something that may leave less to wait for than there was.
    pub(super) fn change<R>(&self, act: impl FnOnce(&mut State<T>) -> R) -> R {
        let now = self.now();
        let mut state = self.lock();
        let result = act(&mut state);
        self.taken(state, now);
        result
    }

    pub(super) fn drain(&self, close: bool) -> Vec<Undue<T>> {
        self.change(|state| {
            state.closed |= close;
            state.shelf.drain()
        })
    }
}

impl<T: Send + 'static> Rung for Queue<T> {
    fn bell(&self) -> &Bell {
        &self.bell
    }

    fn ring(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let called = self.call(&mut state, now);
        let more = called.len() >= AT_ONCE;
        let next = state.shelf.next_wake_of_later();
        let next = next.into_iter().chain(state.line.next_absent()).min();
        let next = state.line.has_waiting().then_some(next.unwrap_or(FAR));
        drop(state);
        wake(called);
        if more {
            next.map(|_| now)
        } else {
            // Nothing is left that is due: only the end of time would ring again and again.
            next.filter(|&next| next > now)
        }
    }
}

/// Wakers are foreign, and one that panics is not to keep the others asleep.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        returns(|| waker.wake());
    }
}

/// Why nothing may come in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    Closed,
    Full,
}

impl Refusal {
    pub(super) fn of<V>(self, value: V) -> PushError<V> {
        match self {
            Self::Closed => PushError::Closed(value),
            Self::Full => PushError::Full(value),
        }
    }
}
