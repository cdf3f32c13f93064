//! Which cells of a segmented array are free, and which segments nobody needs.

use alloc::vec::Vec;

use crate::bits::Bits;

/// Indices that were freed last, kept apart: the next ones to be given out.
const RECENT: usize = 64;

/// Hands out the indices of an array that grows and shrinks by whole segments.
///
/// An index freed a moment ago is given out again first: its cell is still in the cache.
/// After those come the lowest ones, word by word, so that new entries lie side by side
/// and the upper segments run empty. A segment is *surplus* when its cells were all to
/// spare for a whole epoch, in which as many indices came back as there are cells; it is
/// then released, one at a time, so that no single call has much to do.
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
    epoch: Epoch,
}

/// The watch for surplus segments.
struct Epoch {
    /// Indices that came back since it began.
    returned: usize,
    /// The fewest free indices it has seen.
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
            epoch: Epoch {
                returned: 0,
                low_water: 0,
                surplus: 0,
                release_below: 0,
            },
        }
    }

    /// How many cells there are, free or not.
    pub(crate) fn cells(&self) -> usize {
        (self.segments - self.absent_len) * SEGMENT
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

    /// Takes an index back; perhaps there is a segment to release now. O(1), amortised.
    #[inline]
    #[must_use]
    pub(crate) fn give(&mut self, index: u32) -> Option<usize> {
        let released = if self.recent_len == RECENT {
            self.put_by(RECENT / 2);
            self.look_for_surplus()
        } else {
            None
        };
        self.recent[self.recent_len % RECENT] = index;
        self.recent_len += 1;
        released
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
        self.epoch.low_water = self.epoch.low_water.min(self.free_len);
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
        self.epoch.returned += count;
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
        self.epoch.low_water = 0; // all there was had been needed
        self.epoch.surplus = 0;
    }

    /// Ends an epoch that is over, and releases the next surplus segment, if any.
    fn look_for_surplus(&mut self) -> Option<usize> {
        if self.epoch.returned >= self.cells() {
            self.epoch = Epoch {
                returned: 0,
                low_water: self.free_len,
                surplus: self.epoch.low_water,
                release_below: self.segments,
            };
        }
        // One segment stays to spare, so that a population around a border costs nothing.
        if self.epoch.surplus < 2 * SEGMENT {
            return None;
        }
        let below = self.epoch.release_below;
        let looked_at = below.saturating_sub(RECENT)..below;
        self.epoch.release_below = looked_at.start;
        if looked_at.is_empty() {
            self.epoch.surplus = 0;
        }
        let found = looked_at.rev().find(|&segment| self.is_unused(segment))?;
        self.epoch.release_below = found;
        self.epoch.surplus -= SEGMENT;
        self.release(found);
        Some(found)
    }

    /// Releases every segment in which nothing is in use.
    pub(crate) fn release_all(&mut self) -> Vec<usize> {
        self.put_by(self.recent_len);
        let segments = 0..self.segments;
        let unused: Vec<usize> = segments.filter(|&s| self.is_unused(s)).collect();
        for &segment in &unused {
            self.release(segment);
        }
        self.epoch.returned = 0;
        self.epoch.surplus = 0;
        self.epoch.low_water = self.free_len;
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
        self.epoch.low_water = self.epoch.low_water.min(self.free_len);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.free.bytes() + self.absent.bytes()
    }

    /// Checks the books, and that `is_used` holds for just what is not free.
    pub(crate) fn check(&self, is_used: impl Fn(usize) -> bool) {
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
                assert!(!cells.clone().any(&is_used), "nothing is in no storage");
                continue;
            }
            for cell in cells {
                let among_recent = recent.iter().filter(|&&r| r as usize == cell).count();
                let free = among_recent + usize::from(self.free.contains(cell));
                let used = usize::from(is_used(cell));
                assert_eq!(free + used, 1, "a cell is used or free, and once");
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
        assert_eq!(indices.give(7), None);
        assert_eq!(indices.give(5), None);
        assert_eq!((indices.take(), indices.take()), (5, 7));
        indices.check(|index| index < 300);
    }

    #[test]
    fn a_segment_is_released_after_an_epoch_in_which_nobody_needed_it() {
        let mut indices = Small::new();
        let taken: Vec<u32> = (0..10 * 128).map(|_| indices.take()).collect();
        let mut released = Vec::new();
        for index in taken {
            released.extend(indices.give(index));
        }
        assert_eq!(released, [], "the peak belongs to this epoch");
        for _ in 0..40 * 128 {
            let batch: Vec<u32> = (0..100).map(|_| indices.take()).collect();
            for index in batch {
                released.extend(indices.give(index));
            }
        }
        assert!(released.len() >= 7, "{released:?}");
        assert_eq!(indices.cells(), (10 - released.len()) * 128);
        assert!(indices.cells() <= 3 * 128);
        indices.check(|_| false);
    }

    #[test]
    fn everything_unused_is_released_when_asked_for_and_comes_back_when_needed() {
        let mut indices = Small::new();
        for _ in 0..500 {
            indices.take();
        }
        for index in 130..500 {
            let _ = indices.give(index);
        }
        assert_eq!(indices.release_all(), [2, 3]);
        indices.check(|index| index < 130);
        let again: Vec<u32> = (0..200).map(|_| indices.take()).collect();
        assert!(again.iter().copied().eq(130..330));
    }
}
