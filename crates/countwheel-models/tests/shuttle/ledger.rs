//! What the model knows of each entry, to compare it with what became of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Instant;

/// Where an entry may end. In one place, and only once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Refused,
    Fired,
    Cancelled,
    Returned,
}

/// The model's own account. Its lock is no part of the model: nothing happens under it that
/// threads could be interrupted at.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Mutex<Vec<Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    deadline: Instant,
    outcome: Option<Outcome>,
}

impl Ledger {
    pub(crate) fn open(&self, deadline: Instant) -> usize {
        let mut entries = self.lock();
        entries.push(Entry {
            deadline,
            outcome: None,
        });
        entries.len() - 1
    }

    pub(crate) fn moved(&self, entry: usize, deadline: Instant) {
        self.lock()[entry].deadline = deadline;
    }

    /// An entry has ended.
    pub(crate) fn close(&self, entry: usize, outcome: Outcome) {
        let before = self.lock()[entry].outcome.replace(outcome);
        assert_eq!(
            before, None,
            "entry {entry} ended before it was {outcome:?}"
        );
    }

    /// Whether everything that is due by `now` has ended.
    pub(crate) fn is_done(&self, now: Instant) -> bool {
        let entries = self.lock();
        let mut due = entries.iter().filter(|entry| entry.deadline <= now);
        due.all(|entry| entry.outcome.is_some())
    }

    /// How many entries ended so.
    pub(crate) fn count(&self, outcome: Outcome) -> u64 {
        let entries = self.lock();
        let same = entries
            .iter()
            .filter(|entry| entry.outcome == Some(outcome));
        same.count() as u64
    }

    /// How many entries have not ended.
    pub(crate) fn open_entries(&self) -> u64 {
        let entries = self.lock();
        let open = entries.iter().filter(|entry| entry.outcome.is_none());
        open.count() as u64
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
