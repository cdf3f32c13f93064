//! The free cells of a segmented array, and its unused segments.

use alloc::vec::Vec;

use crate::bits::Bits;

/// Indices that were freed last, kept apart: the next ones to be given out.
const RECENT: usize = 64;

/// Hands out the indices of an array that grows and shrinks by whole segments.
///
/// An index freed a moment ago is given out again first: its cell is still in the cache.
/// After those come the lowest ones, word by word, so that new entries lie side by side
/// and the upper segments run empty. A segment is *surplus* when its cells were all to
/// spare for a whole epoch; the owner says when one ends, and takes surplus segments one
/// at a time, so that no single call has much to do.
pub(crate) struct Indices<const SEGMENT: usize> {
    recent: [u32; RECENT],
    recent_len: usize,
    /// The free indices that are not among the recent ones.
    free: Bits,
    free_len: usize,
    segments: usize,
    /// Segments without storage: released ones.
    absent: Bits,
    absent_len: usize,
    /// The fewest free indices in this epoch.
    low_water: usize,
    /// Cells the last epoch found to spare and that are still to be released.
    surplus: usize,
    /// Segments below this one are still to be looked at for release.
    release_below: usize,
}

impl<const SEGMENT: usize> Indices<SEGMENT> {
    pub(crate) fn new() -> Self {
        Self {
            recent: [0; RECENT],
            recent_len: 0,
            free: Bits::below(0),
            free_len: 0,
            segments: 0,
            absent: Bits::below(0),
            absent_len: 0,
            low_water: 0,
            surplus: 0,
            release_below: 0,
        }
    }

    /// How many cells there are, free or not.
    pub(crate) fn cells(&self) -> usize {
        (self.segments - self.absent_len) * SEGMENT
    }

    /// Behind the last index there is memory for.
    pub(crate) fn end(&self) -> usize {
        self.segments * SEGMENT
    }

    /// Gives out a free index. O(1), amortised.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        if self.recent_len == 0 {
            self.refill();
        }
        self.recent_len -= 1;
        self.recent[self.recent_len % RECENT]
    }

    /// Takes an index back. O(1), amortised.
    #[inline]
    pub(crate) fn give(&mut self, index: u32) {
        if self.recent_len == RECENT {
            self.put_by(RECENT / 2);
        }
        self.recent[self.recent_len % RECENT] = index;
        self.recent_len += 1;
    }

    /// Takes the lowest free word's indices among the recent ones, lowest on top.
    #[cold]
    fn refill(&mut self) {
        let (index, word) = self.free.first_word().unwrap_or_else(|| {
            self.add_segment();
            self.free.first_word().expect("a new segment is free")
        });
        let first = u32::try_from(index * 64).expect("indices have 32 bits");
        let taken = (word.count_ones() as usize).min(RECENT / 2);
        let mut rest = word;
        for place in self.recent[..taken].iter_mut().rev() {
            *place = first + rest.trailing_zeros();
            rest &= rest - 1;
        }
        self.recent_len = taken;
        self.free.remove_all(index, word & !rest);
        self.free_len -= taken;
        self.low_water = self.low_water.min(self.free_len);
    }

    /// Moves the `count` oldest of the recent indices to the free ones.
    #[cold]
    fn put_by(&mut self, count: usize) {
        for &index in &self.recent[..count] {
            self.free.insert(index as usize);
        }
        self.recent.copy_within(count..self.recent_len, 0);
        self.recent_len -= count;
        self.free_len += count;
    }

    #[cold]
    fn add_segment(&mut self) {
        let segment = if let Some(absent) = self.absent.first() {
            self.absent.remove(absent);
            self.absent_len -= 1;
            absent
        } else {
            let new = self.segments;
            self.free.grow((new + 1) * SEGMENT);
            self.absent.grow(new + 1);
            self.segments += 1;
            new
        };
        for word in segment * SEGMENT / 64..(segment + 1) * SEGMENT / 64 {
            self.free.insert_word(word);
        }
        self.free_len += SEGMENT;
        self.low_water = 0; // all there was had been needed
        self.surplus = 0;
    }

    /// Ends an epoch: what was to spare in all of it is surplus now.
    pub(crate) fn end_epoch(&mut self) {
        self.surplus = self.low_water;
        self.low_water = self.free_len;
        self.release_below = self.segments;
    }

    /// Takes the next surplus segment away; its storage is the caller's to free.
    pub(crate) fn release_surplus(&mut self) -> Option<usize> {
        // One segment stays to spare, so that a population around a border costs nothing.
        if self.surplus < 2 * SEGMENT {
            return None;
        }
        let below = self.release_below;
        let looked_at = below.saturating_sub(RECENT)..below;
        self.release_below = looked_at.start;
        if looked_at.is_empty() {
            self.surplus = 0;
        }
        let found = looked_at.rev().find(|&segment| self.is_unused(segment))?;
        self.release_below = found;
        self.surplus -= SEGMENT;
        self.release(found);
        Some(found)
    }

    /// Releases segments in which nothing is in use, the uppermost first, so many at most.
    pub(crate) fn release_unused(&mut self, most: usize) -> Vec<usize> {
        self.put_by(self.recent_len);
        let segments = (0..self.segments).rev();
        let unused = segments.filter(|&s| self.is_unused(s)).take(most);
        let unused: Vec<usize> = unused.collect();
        for &segment in &unused {
            self.release(segment);
        }
        while self.segments > 0 && self.absent.contains(self.segments - 1) {
            self.segments -= 1;
            self.absent_len -= 1;
            self.absent.remove(self.segments);
        }
        self.surplus = 0;
        self.low_water = self.free_len;
        unused
    }

    fn is_unused(&self, segment: usize) -> bool {
        let mut words = segment * SEGMENT / 64..(segment + 1) * SEGMENT / 64;
        words.all(|word| self.free.word(word) == u64::MAX)
    }

    fn release(&mut self, segment: usize) {
        for word in segment * SEGMENT / 64..(segment + 1) * SEGMENT / 64 {
            self.free.remove_all(word, u64::MAX);
        }
        self.free_len -= SEGMENT;
        self.absent.insert(segment);
        self.absent_len += 1;
        self.low_water = self.low_water.min(self.free_len);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.free.bytes() + self.absent.bytes()
    }

    /// Checks the books, and that just what is not free is used; `is_used` tells, or does not
    /// know.
    pub(crate) fn check(&self, is_used: impl Fn(usize) -> Option<bool>) {
        self.free.check();
        let recent = &self.recent[..self.recent_len];
        let mut free_len = 0;
        for segment in 0..self.segments {
            let cells = segment * SEGMENT..(segment + 1) * SEGMENT;
            free_len += cells
                .clone()
                .filter(|&cell| self.free.contains(cell))
                .count();
            if self.absent.contains(segment) {
                let uses = cells.clone().filter(|&cell| is_used(cell) == Some(true));
                assert_eq!(uses.count(), 0, "nothing is in no storage");
                continue;
            }
            for cell in cells {
                let among_recent = recent.iter().filter(|&&r| r as usize == cell).count();
                let free = among_recent + usize::from(self.free.contains(cell));
                match is_used(cell) {
                    Some(used) => {
                        let uses = free + usize::from(used);
                        assert_eq!(uses, 1, "a cell is used or free, and once");
                    }
                    None => assert!(free <= 1, "a cell is free only once"),
                }
            }
        }
        assert_eq!(free_len, self.free_len, "the number of free cells is known");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Small = Indices<128>;

    #[test]
    fn indices_come_lowest_first_and_the_one_freed_last_comes_next() {
        let mut indices = Small::new();
        let first: Vec<u32> = (0..300).map(|_| indices.take()).collect();
        assert!(first.iter().copied().eq(0..300));
        indices.give(7);
        indices.give(5);
        assert_eq!((indices.take(), indices.take()), (5, 7));
        indices.check(|index| Some(index < 300));
    }

    #[test]
    fn a_segment_is_surplus_after_an_epoch_in_which_nobody_needed_it() {
        let mut indices = Small::new();
        let taken: Vec<u32> = (0..10 * 128).map(|_| indices.take()).collect();
        for index in taken {
            indices.give(index);
        }
        indices.end_epoch();
        assert_eq!(indices.release_surplus(), None, "the peak was in this one");
        for _ in 0..100 {
            let index = indices.take();
            indices.give(index);
        }
        indices.end_epoch();
        let released: Vec<usize> = core::iter::from_fn(|| indices.release_surplus()).collect();
        // Segment 9 has those freed last, which stay at hand; one stays to spare.
        assert_eq!(released, [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(indices.cells(), 2 * 128);
        indices.check(|_| Some(false));
    }

    #[test]
    fn everything_unused_is_released_when_asked_for_and_comes_back_when_needed() {
        let mut indices = Small::new();
        for _ in 0..500 {
            indices.take();
        }
        for index in 130..500 {
            indices.give(index);
        }
        assert_eq!(indices.release_unused(1), [3], "the uppermost");
        assert_eq!(indices.release_unused(usize::MAX), [2]);
        indices.check(|index| Some(index < 130));
        let again: Vec<u32> = (0..200).map(|_| indices.take()).collect();
        assert!(again.iter().copied().eq(130..330));
    }
}
