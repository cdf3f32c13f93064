//! What several may decide, and one waits for.

use std::task::{Context, Poll, Waker};

use super::lock;
use crate::sync::{Mutex, MutexGuard};

/// A value that is settled once, by the first of all who try, and taken once.
///
/// The waker is woken without the lock. A value that comes too late goes back to who brings it.
pub(crate) struct Outcome<T>(Mutex<State<T>>);

enum State<T> {
    Open(Option<Waker>),
    Settled(T),
    Taken,
}

impl<T> Outcome<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::Open(None)))
    }

    /// Settles it, unless somebody has.
    pub(crate) fn settle(&self, value: T) -> Result<(), T> {
        let mut state = lock(&self.0);
        if !matches!(*state, State::Open(_)) {
            return Err(value);
        }
        let before = std::mem::replace(&mut *state, State::Settled(value));
        drop(state);
        if let State::Open(Some(waker)) = before {
            waker.wake();
        }
        Ok(())
    }

    /// The value, once; until then the waker of the last who asked is kept.
    ///
    /// # Panics
    /// If the value was taken before, as a future does that is polled after its end.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        {
            let state = lock(&self.0);
            match &*state {
                State::Open(Some(kept)) if kept.will_wake(cx.waker()) => return Poll::Pending,
                State::Open(_) => {}
                State::Settled(_) | State::Taken => return Self::take(state),
            }
        }
        // A waker is foreign: it is neither cloned nor dropped under the lock.
        let mut waker = Some(cx.waker().clone());
        let mut state = lock(&self.0);
        if let State::Open(kept) = &mut *state {
            std::mem::swap(kept, &mut waker);
            drop(state);
            return Poll::Pending;
        }
        Self::take(state)
    }

    fn take(mut state: MutexGuard<'_, State<T>>) -> Poll<T> {
        let settled = std::mem::replace(&mut *state, State::Taken);
        drop(state);
        match settled {
            State::Settled(value) => Poll::Ready(value),
            State::Open(_) | State::Taken => panic!("asked again after the answer"),
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        !matches!(*lock(&self.0), State::Open(_))
    }
}
