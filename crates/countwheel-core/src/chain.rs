//! First-in first-out chains through the cells of a slab.

use core::iter;

use crate::slab::{Index, Slab};

/// The entries of one slot, in the order in which they were filed.
///
/// The links are in the cells, so a chain costs eight bytes and no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    ends: Option<Ends>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ends {
    first: Index,
    last: Index,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { ends: None };

    pub(crate) fn is_empty(self) -> bool {
        self.ends.is_none()
    }

    pub(crate) fn first(self) -> Option<Index> {
        self.ends.map(|ends| ends.first)
    }

    pub(crate) fn last(self) -> Option<Index> {
        self.ends.map(|ends| ends.last)
    }

    /// Appends an entry that is on no chain. O(1).
    pub(crate) fn push<T>(&mut self, slab: &mut Slab<T>, index: Index) {
        let last = self.last();
        let cell = slab.cell_mut(index);
        cell.previous = last;
        cell.next = None;
        if let Some(last) = last {
            slab.cell_mut(last).next = Some(index);
        }
        self.ends = Some(Ends {
            first: self.first().unwrap_or(index),
            last: index,
        });
    }

    /// Takes one of this chain's entries out of it. O(1).
    pub(crate) fn unlink<T>(&mut self, slab: &mut Slab<T>, index: Index) {
        let cell = slab.cell_mut(index);
        let (previous, next) = (cell.previous.take(), cell.next.take());
        if let Some(previous) = previous {
            slab.cell_mut(previous).next = next;
        }
        if let Some(next) = next {
            slab.cell_mut(next).previous = previous;
        }
        let ends = self.ends.expect("an entry is unlinked from its own chain");
        debug_assert!(
            previous.is_some() || ends.first == index,
            "an entry without a predecessor is its chain's first"
        );
        debug_assert!(
            next.is_some() || ends.last == index,
            "an entry without a successor is its chain's last"
        );
        let first = if previous.is_none() {
            next
        } else {
            Some(ends.first)
        };
        let last = if next.is_none() {
            previous
        } else {
            Some(ends.last)
        };
        self.ends = first.zip(last).map(|(first, last)| Ends { first, last });
    }

    /// All entries, first to last.
    pub(crate) fn iter<T>(self, slab: &Slab<T>) -> impl Iterator<Item = Index> {
        iter::successors(self.first(), |&index| slab.cell(index).next)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::Tick;

    #[test]
    fn entries_leave_in_the_order_they_came_wherever_one_is_taken_out() {
        for taken in 0..4 {
            let mut slab = Slab::new();
            let mut chain = Chain::EMPTY;
            let mut indices = Vec::new();
            for name in 0..4 {
                let index = slab.insert(Tick::ZERO, name).index;
                chain.push(&mut slab, index);
                indices.push(index);
            }
            chain.unlink(&mut slab, indices.remove(taken));
            assert!(chain.iter(&slab).eq(indices.iter().copied()));
            for index in indices {
                chain.unlink(&mut slab, index);
            }
            assert!(chain.is_empty());
        }
    }
}
