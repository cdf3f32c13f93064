//! The consumers that wait for an item, first come, first served.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use countwheel::Instant;

/// How long one who was called may take to come before the next one is called for the same.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Those who wait at a queue. One who is called stays in the line until it takes something or
/// leaves, so that what it was called for is not promised twice; or until it has not come for
/// [`PATIENCE`]: then somebody else may have it.
#[derive(Default)]
pub(super) struct Line {
    waiting: BTreeMap<Ticket, Waker>,
    /// With when it was called.
    called: BTreeMap<Ticket, Instant>,
    /// In the order of the calls; some may have come since.
    calls: VecDeque<(Instant, Ticket)>,
    last: u64,
}

/// A place in the line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ticket(u64);

impl Line {
    /// How many there are, called or not.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.called.len()
    }

    /// How many were called and have not answered.
    pub(super) fn called(&self) -> usize {
        self.called.len()
    }

    /// Whether there is anybody to call.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Waits, or goes on waiting in the same place. Returns the waker of before, to be dropped
    /// without the lock.
    pub(super) fn wait(&mut self, ticket: &mut Option<Ticket>, waker: Waker) -> Option<Waker> {
        let ticket = *ticket.get_or_insert_with(|| {
            self.last += 1;
            Ticket(self.last)
        });
        self.called.remove(&ticket);
        self.waiting.insert(ticket, waker)
    }

    /// Waits no more. Returns the waker, to be dropped without the lock.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        self.called.remove(&ticket);
        self.waiting.remove(&ticket)
    }

    /// Calls whoever has waited the longest: to be woken without the lock.
    pub(super) fn call(&mut self, now: Instant) -> Option<Waker> {
        let (ticket, waker) = self.waiting.pop_first()?;
        self.called.insert(ticket, now);
        self.calls.push_back((now, ticket));
        Some(waker)
    }

    /// Counts no more on those who were called long ago and have not come. Somebody else may have
    /// what they were called for; if they come, they take what there is, or wait again.
    pub(super) fn forget_absent(&mut self, now: Instant) {
        while let Some(&(called, ticket)) = self.calls.front() {
            let is_open = self.called.get(&ticket) == Some(&called);
            if is_open && called + PATIENCE > now {
                return;
            }
            if is_open {
                self.called.remove(&ticket);
            }
            self.calls.pop_front();
        }
    }

    /// When those who wait may have what somebody was called for who does not come.
    pub(super) fn next_absent(&self) -> Option<Instant> {
        let (called, _) = self.calls.front().filter(|_| self.has_waiting())?;
        (!self.called.is_empty()).then(|| *called + PATIENCE)
    }
}
