//! Where entries live: cells that are reused, and keys that notice it.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::Tick;

/// Names one entry of one wheel, from its insertion until it leaves.
///
/// Eight bytes, and so is an `Option` of it. A key is *stale* once its entry has
/// expired or was cancelled; a stale key finds nothing, even after the storage has
/// been given to another entry. (A cell counts its uses in 32 bits and is retired
/// when they run out, so that even then no key can be mistaken for an older one.)
/// A reschedule leaves the key as it is.
///
/// A key means something only to the wheel it came from.
///
/// ```
/// use countwheel_core::{HierarchicalWheel, Tick};
///
/// let mut wheel = HierarchicalWheel::new();
/// let key = wheel.insert(Tick::new(5), 'a');
/// assert_eq!(wheel.cancel(key), Some('a'));
///
/// wheel.insert(Tick::new(5), 'b'); // moves into the freed cell
/// assert_eq!(wheel.cancel(key), None);
/// assert_eq!(wheel.len(), 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey {
    pub(crate) index: Index,
    pub(crate) generation: NonZeroU32,
}

/// An entry that has left its wheel: what was asked for, and under which key.
///
/// ```
/// use countwheel_core::{Expired, HierarchicalWheel, Tick};
///
/// let mut wheel = HierarchicalWheel::new();
/// let key = wheel.insert(Tick::new(5), "tea");
/// let expired = wheel.expire(Tick::new(9));
/// assert_eq!(expired, Some(Expired { key, deadline: Tick::new(5), value: "tea" }));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expired<T> {
    /// The key the entry had. It is stale now.
    pub key: TimerKey,
    /// The deadline as it was asked for, even if it had passed by then.
    pub deadline: Tick,
    /// The value that was inserted.
    pub value: T,
}

/// A cell's position in the slab, counted from one so that an `Option` costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Index(NonZeroU32);

impl Index {
    fn of_cell(position: usize) -> Self {
        u32::try_from(position + 1)
            .ok()
            .and_then(NonZeroU32::new)
            .map(Self)
            .expect("a wheel holds at most 2^32 - 1 entries")
    }

    pub(crate) fn position(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// One entry, or the room for one.
pub(crate) struct Cell<T> {
    /// How often this cell was given out; the key of an entry repeats it.
    pub(crate) generation: NonZeroU32,
    /// The neighbours in the entry's chain. Of a free cell, `next` is the next free one.
    pub(crate) previous: Option<Index>,
    pub(crate) next: Option<Index>,
    pub(crate) deadline: Tick,
    /// `None` in a free cell, and for ever in a retired one.
    pub(crate) value: Option<T>,
}

/// All entries of one wheel.
pub(crate) struct Slab<T> {
    pub(crate) cells: Vec<Cell<T>>,
    pub(crate) first_free: Option<Index>,
    pub(crate) len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            cells: Vec::new(),
            first_free: None,
            len: 0,
        }
    }

    /// Stores an entry that is not yet on any chain. O(1), amortised over growth.
    pub(crate) fn insert(&mut self, deadline: Tick, value: T) -> TimerKey {
        let index = match self.first_free {
            Some(index) => {
                let cell = self.cell_mut(index);
                debug_assert!(cell.value.is_none(), "a free cell holds no value");
                let next_free = cell.next.take();
                cell.deadline = deadline;
                cell.value = Some(value);
                self.first_free = next_free;
                index
            }
            None => {
                let index = Index::of_cell(self.cells.len());
                self.cells.push(Cell {
                    generation: NonZeroU32::MIN,
                    previous: None,
                    next: None,
                    deadline,
                    value: Some(value),
                });
                index
            }
        };
        self.len += 1;
        self.key(index)
    }

    /// The cell that `key` names, unless the key is stale.
    pub(crate) fn find(&self, key: TimerKey) -> Option<Index> {
        let cell = self.cells.get(key.index.position())?;
        (cell.generation == key.generation && cell.value.is_some()).then_some(key.index)
    }

    pub(crate) fn key(&self, index: Index) -> TimerKey {
        TimerKey {
            index,
            generation: self.cell(index).generation,
        }
    }

    pub(crate) fn cell(&self, index: Index) -> &Cell<T> {
        &self.cells[index.position()]
    }

    pub(crate) fn cell_mut(&mut self, index: Index) -> &mut Cell<T> {
        &mut self.cells[index.position()]
    }

    /// Takes an entry that is on no chain any more, and makes its key stale. O(1).
    pub(crate) fn remove(&mut self, index: Index) -> Expired<T> {
        let key = self.key(index);
        let first_free = self.first_free;
        let cell = self.cell_mut(index);
        let value = cell.value.take().expect("a chained cell holds a value");
        let deadline = cell.deadline;
        cell.previous = None;
        cell.next = None;
        if let Some(generation) = cell.generation.checked_add(1) {
            cell.generation = generation;
            cell.next = first_free;
            self.first_free = Some(index);
        } // Otherwise the cell is retired: a further use would repeat an old key.
        self.len -= 1;
        Expired {
            key,
            deadline,
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_an_optional_key_take_eight_bytes() {
        assert_eq!(size_of::<TimerKey>(), 8);
        assert_eq!(size_of::<Option<TimerKey>>(), 8);
    }

    #[test]
    fn a_freed_cell_is_reused_under_another_key() {
        let mut slab = Slab::new();
        let old = slab.insert(Tick::ZERO, 'a');
        slab.remove(old.index);
        let new = slab.insert(Tick::ZERO, 'b');
        assert_eq!(new.index, old.index);
        assert_ne!(new, old);
        assert_eq!(slab.find(old), None);
        assert_eq!(slab.find(new), Some(new.index));
    }

    #[test]
    fn a_cell_retires_before_its_generations_repeat() {
        let mut slab = Slab::new();
        let first = slab.insert(Tick::ZERO, 'a');
        slab.cell_mut(first.index).generation = NonZeroU32::MAX;
        let last = slab.key(first.index);
        slab.remove(last.index);

        let next = slab.insert(Tick::ZERO, 'b');
        assert_ne!(next.index, last.index, "the retired cell is not given out");
        assert_eq!(slab.find(first), None);
        assert_eq!(slab.find(last), None);
        slab.check();
    }
}
