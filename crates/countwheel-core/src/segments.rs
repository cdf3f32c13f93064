//! Arrays in segments: they grow without moving, and give memory back from the middle.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// An array whose cells are found by index, `SEGMENT` of them to an allocation.
///
/// Growing it never moves a cell.
pub(crate) struct Segments<C, const SEGMENT: usize> {
    segments: Vec<Option<Box<[C; SEGMENT]>>>,
}

impl<C, const SEGMENT: usize> Segments<C, SEGMENT> {
    pub(crate) const fn new() -> Self {
        Self {
            segments: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&C> {
        let segment = self.segments.get(index / SEGMENT)?.as_ref()?;
        Some(&segment[index % SEGMENT])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut C> {
        let segment = self.segments.get_mut(index / SEGMENT)?.as_mut()?;
        Some(&mut segment[index % SEGMENT])
    }

    /// A cell that exists.
    ///
    /// # Panics
    /// If its segment was released, or never added.
    #[inline]
    pub(crate) fn cell(&self, index: usize) -> &C {
        self.get(index).expect("the cell exists")
    }

    /// A cell that exists, to change.
    ///
    /// # Panics
    /// If its segment was released, or never added.
    #[inline]
    pub(crate) fn cell_mut(&mut self, index: usize) -> &mut C {
        self.get_mut(index).expect("the cell exists")
    }

    /// Makes the segment of the cell at `index` exist.
    #[cold]
    #[inline(never)]
    pub(crate) fn add(&mut self, index: usize, mut cell: impl FnMut() -> C) {
        let segment = index / SEGMENT;
        if self.segments.len() <= segment {
            self.segments.resize_with(segment + 1, || None);
        }
        let cells: Box<[C]> = (0..SEGMENT).map(|_| cell()).collect();
        self.segments[segment] = cells.try_into().ok();
    }

    /// Takes a segment's storage away.
    pub(crate) fn release(&mut self, segment: usize) -> Option<Box<[C; SEGMENT]>> {
        self.segments.get_mut(segment)?.take()
    }

    /// Every cell that exists, with its index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &C)> {
        let segments = self.segments.iter().enumerate();
        segments.flat_map(|(number, segment)| {
            let cells = segment.iter().flat_map(|cells| cells.iter()).enumerate();
            cells.map(move |(at, cell)| (number * SEGMENT + at, cell))
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let segments = self.segments.iter().flatten().count();
        segments * SEGMENT * size_of::<C>()
            + self.segments.capacity() * size_of::<Option<Box<[C; SEGMENT]>>>()
    }
}
