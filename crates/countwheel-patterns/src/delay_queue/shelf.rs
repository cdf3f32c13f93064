//! The items of a delay queue: one thread at a time, no waiting.

use std::collections::VecDeque;

use super::results::{DelayQueueStats, Due, Undue};
use countwheel::building::Index;
use countwheel::{Driver, Fired, Instant, TimerKey};

/// The items of a queue, those that have keys by the hashes of these as well.
pub(super) struct Shelf<T> {
    later: Driver<Item<T>>,
    /// Those that are known to be due, earliest first, and not taken yet. Only as many as there
    /// are waiters to be woken for them.
    due: VecDeque<Fired<Item<T>>>,
    index: Index<TimerKey>,
    capacity: usize,
    /// How many items are out for a moment and come back, so that their room is not to be had.
    held: usize,
    books: DelayQueueStats,
}

pub(super) struct Item<T> {
    pub(super) value: T,
    /// The deadline asked for, since a wheel does not tell.
    pub(super) deadline: Instant,
    /// Of the item's key, if it has one.
    pub(super) hash: Option<u64>,
}

impl<T> Shelf<T> {
    pub(super) fn new(later: Driver<Item<T>>, capacity: usize) -> Self {
        Self {
            later,
            due: VecDeque::new(),
            index: Index::default(),
            capacity,
            held: 0,
            books: DelayQueueStats::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.later.len() + self.due.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() + self.held < self.capacity
    }

    pub(super) fn stats(&self) -> DelayQueueStats {
        DelayQueueStats {
            pending: self.len() as u64,
            ..self.books.clone()
        }
    }

    pub(super) fn refuse(&mut self) {
        self.books.refused += 1;
    }

    pub(super) fn note_wake_ups(&mut self, wake_ups: usize) {
        self.books.wake_ups += wake_ups as u64;
    }

    /// When an item with this deadline would be due.
    pub(super) fn due_of(&self, deadline: Instant) -> Instant {
        self.later.due(deadline)
    }

    /// By when to look again; `None` if there is nothing.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let first = self.due.front().map(|fired| fired.deadline);
        first.or_else(|| self.later.next_wake())
    }

    /// The same of the items that are not known to be due.
    pub(super) fn next_wake_of_later(&self) -> Option<Instant> {
        self.later.next_wake()
    }

    /// Adds an item, whether there is room or not.
    pub(super) fn put(&mut self, now: Instant, item: Item<T>) -> TimerKey {
        self.books.pushed += 1;
        self.file(now, item)
    }

    fn file(&mut self, now: Instant, item: Item<T>) -> TimerKey {
        let (deadline, hash) = (item.deadline, item.hash);
        let key = self.later.schedule(now, deadline, item);
        if let Some(hash) = hash {
            self.index.insert(hash, key);
        }
        key
    }

    /// How many items are due, `wanted` at most.
    pub(super) fn look(&mut self, now: Instant, wanted: usize) -> usize {
        while self.due.len() < wanted
            && let Some(fired) = self.later.expire(now)
        {
            self.due.push_back(fired);
        }
        self.due.len()
    }

    /// Takes the item that has been due the longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<Due<T>> {
        let first = self.due.pop_front();
        let Fired { key, value, .. } = first.or_else(|| self.later.expire(now))?;
        self.forget(value.hash, key);
        let lateness = now.saturating_since(value.deadline);
        self.books.taken += 1;
        self.books.lateness.record(lateness);
        self.books.lateness_max = self.books.lateness_max.max(lateness);
        Some(Due {
            value: value.value,
            deadline: value.deadline,
            lateness,
        })
    }

    /// The key of the item with this hash that `is` recognises.
    pub(super) fn find(&mut self, hash: u64, is: impl Fn(&T) -> bool) -> Option<TimerKey> {
        let Self {
            later, due, index, ..
        } = self;
        let found = index.find(hash, |&key| {
            item_of(later, due, key).is_some_and(|item| is(&item.value))
        });
        found.copied()
    }

    pub(super) fn get_mut(&mut self, key: TimerKey) -> Option<&mut Item<T>> {
        item_of(&mut self.later, &mut self.due, key)
    }

    /// Puts `value` in the place of what is under `key`, with another deadline if one is given,
    /// and returns what was there.
    pub(super) fn replace(
        &mut self,
        now: Instant,
        key: TimerKey,
        value: T,
        deadline: Option<Instant>,
    ) -> Option<T> {
        let item = self.get_mut(key)?;
        let old = std::mem::replace(&mut item.value, value);
        item.deadline = deadline.unwrap_or(item.deadline);
        self.books.pushed += 1;
        self.books.replaced += 1;
        if let Some(deadline) = deadline
            && !self.later.reschedule(now, key, deadline)
            && let Some(item) = self.remove(key)
        {
            // It was known to be due, and perhaps it is so no longer.
            self.file(now, item);
        }
        Some(old)
    }

    pub(super) fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let item = self.remove(key)?;
        self.books.cancelled += 1;
        Some(item.value)
    }

    /// Takes an item out that will come back, with another value: its room stays taken until
    /// [`release`](Self::release).
    pub(super) fn hold(&mut self, key: TimerKey) -> Option<Item<T>> {
        let item = self.remove(key)?;
        self.books.replaced += 1;
        self.held += 1;
        Some(item)
    }

    pub(super) fn release(&mut self, held: usize) {
        self.held -= held;
    }

    fn remove(&mut self, key: TimerKey) -> Option<Item<T>> {
        let item = self.later.cancel(key).or_else(|| {
            let found = self.due.iter().position(|fired| fired.key == key)?;
            self.due.remove(found).map(|fired| fired.value)
        })?;
        self.forget(item.hash, key);
        Some(item)
    }

    fn forget(&mut self, hash: Option<u64>, key: TimerKey) {
        if let Some(hash) = hash {
            self.index.remove(hash, |&found| found == key);
        }
    }

    /// Takes everything out, in order.
    pub(super) fn drain(&mut self) -> Vec<Undue<T>> {
        self.index = Index::default();
        let due = self.due.drain(..).map(|fired| fired.value);
        let later = self.later.drain().into_iter().map(|unfired| unfired.value);
        let drained: Vec<_> = due
            .chain(later)
            .map(|item| Undue {
                value: item.value,
                deadline: item.deadline,
            })
            .collect();
        self.books.returned += drained.len() as u64;
        drained
    }
}

fn item_of<'a, T>(
    later: &'a mut Driver<Item<T>>,
    due: &'a mut VecDeque<Fired<Item<T>>>,
    key: TimerKey,
) -> Option<&'a mut Item<T>> {
    let late = due.iter_mut().find(|fired| fired.key == key);
    match late {
        Some(fired) => Some(&mut fired.value),
        None => later.get_mut(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countwheel::{Layout, Resolution};

    #[test]
    fn what_is_taken_out_is_forgotten() {
        let now = Instant::ZERO;
        let driver = Driver::new(now, Resolution::MILLISECOND, Layout::default());
        let mut shelf = Shelf::new(driver, 9);
        let item = || Item {
            value: (),
            deadline: now,
            hash: Some(7),
        };
        let known = |shelf: &Shelf<()>| shelf.index.find(7, |_| true).is_some();
        shelf.put(now, item());
        assert!(known(&shelf) && shelf.take(now).is_some());
        assert!(!known(&shelf), "taken");
        let key = shelf.put(now, item());
        assert_eq!(shelf.look(now, 1), 1);
        assert!(shelf.cancel(key).is_some() && !known(&shelf), "cancelled");
        let key = shelf.put(now, item());
        assert!(shelf.hold(key).is_some() && !known(&shelf), "held");
        shelf.release(1);
        shelf.put(now, item());
        assert_eq!((shelf.drain().len(), known(&shelf)), (1, false));
    }
}
