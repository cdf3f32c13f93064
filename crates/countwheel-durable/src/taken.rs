//! Attempts that a program takes from a channel when it has time for them.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::{Attempt, Completion, Handler, Outcome};

/// A handler that keeps attempts for the program to take, and the end from which it takes them.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Config, SystemClock, Timers, attempt_channel};
///
/// let (handler, attempts) = attempt_channel();
/// let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
/// timers.set(("orders", "o-1"), Duration::ZERO, "close it")?;
///
/// let attempt = attempts.recv().expect("the timers run");
/// assert_eq!((attempt.number, &*attempt.payload), (1, &b"close it"[..]));
/// attempt.complete(());
///
/// timers.stop(Duration::from_secs(1));
/// drop(timers);
/// assert!(attempts.recv().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The channel holds at most [`Config::max_in_flight`](crate::Config::max_in_flight) attempts: each of
/// them counts as running from the moment it was due and had room. Several threads may take from
/// clones of [`Attempts`]; each attempt goes to one of them. Once every clone is dropped, attempts
/// fail.
#[must_use]
pub fn attempt_channel() -> (ToChannel, Attempts) {
    let shared = Arc::new(Shared {
        state: Mutex::default(),
        came: Condvar::new(),
        takers: AtomicUsize::new(1),
    });
    (ToChannel(Arc::clone(&shared)), Attempts(shared))
}

/// The [`Handler`] end of an [`attempt_channel`].
#[derive(Debug)]
pub struct ToChannel(Arc<Shared>);

/// The end of an [`attempt_channel`] from which a program takes attempts.
#[derive(Debug)]
pub struct Attempts(Arc<Shared>);

/// An attempt that was taken from a channel. Dropped without an outcome, the attempt has failed.
#[derive(Debug)]
#[must_use = "an attempt that is dropped without an outcome has failed"]
pub struct Taken {
    attempt: Attempt,
    done: Completion,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    came: Condvar,
    takers: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Taken>,
    has_ended: bool,
}

impl Handler for ToChannel {
    fn start(&self, attempt: Attempt, done: Completion) {
        let mut state = self.0.state.lock();
        if self.0.takers.load(Ordering::Acquire) == 0 {
            drop(state);
            done.complete(Outcome::failed("nobody takes attempts from the channel"));
            return;
        }
        state.waiting.push_back(Taken { attempt, done });
        drop(state);
        self.0.came.notify_one();
    }
}

impl Drop for ToChannel {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.came.notify_all();
    }
}

impl Attempts {
    /// The next attempt; waits for one. `None` once the timers are gone and nothing is left to take.
    #[must_use]
    pub fn recv(&self) -> Option<Taken> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(taken) = state.waiting.pop_front() {
                return Some(taken);
            }
            if state.has_ended {
                return None;
            }
            self.0.came.wait(&mut state);
        }
    }

    /// The next attempt, if one comes within `patience` by the system's clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::attempt_channel;
    ///
    /// let (_handler, attempts) = attempt_channel();
    /// assert!(attempts.recv_timeout(Duration::from_millis(1)).is_none());
    /// ```
    #[must_use]
    pub fn recv_timeout(&self, patience: Duration) -> Option<Taken> {
        let mut state = self.0.state.lock();
        if state.waiting.is_empty() && !state.has_ended {
            let nothing = |state: &mut State| state.waiting.is_empty() && !state.has_ended;
            self.0.came.wait_while_for(&mut state, nothing, patience);
        }
        state.waiting.pop_front()
    }
}

impl Clone for Attempts {
    fn clone(&self) -> Self {
        self.0.takers.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        let state = self.0.state.lock();
        let is_last = self.0.takers.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(state);
        if is_last {
            // Their completions report, so they are dropped without the lock.
            let left = std::mem::take(&mut self.0.state.lock().waiting);
            drop(left);
        }
    }
}

impl Iterator for Attempts {
    type Item = Taken;

    fn next(&mut self) -> Option<Taken> {
        self.recv()
    }
}

impl Taken {
    /// Reports how the attempt ended: an [`Outcome`], `()` for done, or a `Result`.
    pub fn complete(self, outcome: impl Into<Outcome>) {
        self.done.complete(outcome.into());
    }
}

impl Deref for Taken {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.attempt
    }
}
