//! Who waits for an item, first come, first served.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

/// Those who wait at a queue. One who is called stays in the line until it takes something or
/// leaves, so that what it was called for is not promised twice.
#[derive(Default)]
pub(super) struct Line {
    waiting: BTreeMap<Ticket, Waker>,
    called: BTreeSet<Ticket>,
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
    pub(super) fn call(&mut self) -> Option<Waker> {
        let (ticket, waker) = self.waiting.pop_first()?;
        self.called.insert(ticket);
        Some(waker)
    }
}
