//! Arrays in segments: they grow without moving, and give memory back from the middle.

use alloc::vec::Vec;

/// An array whose cells are found by index, `SEGMENT` of them to an allocation.
///
/// Growing it never moves a cell, so no single growth is expensive.
pub(crate) struct Segments<C, const SEGMENT: usize> {
    segments: Vec<Vec<C>>,
}

impl<C, const SEGMENT: usize> Segments<C, SEGMENT> {
    pub(crate) const fn new() -> Self {
        Self {
            segments: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&C> {
        self.segments.get(index / SEGMENT)?.get(index % SEGMENT)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut C> {
        let segment = self.segments.get_mut(index / SEGMENT)?;
        segment.get_mut(index % SEGMENT)
    }

    /// A cell that exists.
    #[inline]
    pub(crate) fn cell(&self, index: usize) -> &C {
        &self.segments[index / SEGMENT][index % SEGMENT]
    }

    /// A cell that exists, to change.
    #[inline]
    pub(crate) fn cell_mut(&mut self, index: usize) -> &mut C {
        &mut self.segments[index / SEGMENT][index % SEGMENT]
    }

    /// Makes the cell at `index` exist, with those before it in its segment.
    #[cold]
    pub(crate) fn extend_to(&mut self, index: usize, mut cell: impl FnMut() -> C) {
        let (number, cells) = (index / SEGMENT, index % SEGMENT + 1);
        if self.segments.len() <= number {
            self.segments.resize_with(number + 1, Vec::new);
        }
        let segment = &mut self.segments[number];
        if number > 0 && segment.capacity() == 0 {
            segment.reserve_exact(SEGMENT); // the first one grows with a small wheel
        }
        while segment.len() < cells {
            segment.push(cell());
        }
    }

    /// Frees a segment's storage, and hands out what was in it.
    pub(crate) fn release(&mut self, segment: usize) -> Vec<C> {
        let released = self.segments.get_mut(segment);
        released.map(core::mem::take).unwrap_or_default()
    }

    /// Every cell that exists, with its index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &C)> {
        let segments = self.segments.iter().enumerate();
        segments.flat_map(|(number, segment)| {
            let cells = segment.iter().enumerate();
            cells.map(move |(at, cell)| (number * SEGMENT + at, cell))
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let cells: usize = self.segments.iter().map(Vec::capacity).sum();
        cells * size_of::<C>() + self.segments.capacity() * size_of::<Vec<C>>()
    }
}
