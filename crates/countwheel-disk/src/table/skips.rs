//! Ranges of a table's due index in which newer runs have replaced or removed every record.
//!
//! What was replaced stays replaced for as long as the table lives: a merge of newer runs keeps each
//! name that an older run may have. So a scan that has looked at such a range need not look again,
//! after a step of the clock or when the memory for what is near was given to something else. The
//! ranges are in memory, and begin empty at each opening.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::planted::planted;

/// Keys of the due index: a range begins behind the first and ends with the second.
pub(super) type Range = (Vec<u8>, Vec<u8>);

/// Ranges that do not touch each other.
#[derive(Debug, Default)]
pub(super) struct SkipRanges(BTreeMap<Vec<u8>, Vec<u8>>);

impl SkipRanges {
    /// The first range that ends with `key` or later.
    pub(super) fn at(&self, key: &[u8]) -> Option<Range> {
        let before = self
            .0
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key)));
        let around = before
            .rev()
            .take(1)
            .filter(|(_, end)| end.as_slice() >= key);
        let behind = self
            .0
            .range::<[u8], _>((Bound::Included(key), Bound::Unbounded));
        let (begin, end) = around.chain(behind.take(1)).next()?;
        Some((begin.clone(), end.clone()))
    }

    /// Adds what a scan has looked at, `entries` of them. Fewer than `least` are not worth the
    /// memory, unless another range goes on with them.
    pub(super) fn add(&mut self, (mut begin, mut end): Range, entries: usize, least: usize) {
        if end <= begin {
            return;
        }
        let mut joined = Vec::new();
        let before = self
            .0
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(end.as_slice())));
        for (from, to) in before.rev() {
            if *to < begin {
                break;
            }
            joined.push(from.clone());
        }
        if joined.is_empty() && entries < least {
            return;
        }
        for from in joined {
            if let Some(to) = self.0.remove(&from) {
                begin = begin.min(from);
                end = end.max(to);
            }
        }
        self.0.insert(begin, end);
    }
}

/// What a scan has found of one table since the last entry that counts.
#[derive(Debug)]
pub(super) struct OpenSkip {
    begin: Vec<u8>,
    last: Vec<u8>,
    entries: usize,
}

impl OpenSkip {
    /// A scan that begins behind `begin`.
    pub(super) fn new(begin: Vec<u8>) -> Self {
        Self {
            last: begin.clone(),
            begin,
            entries: 0,
        }
    }

    /// Goes by an entry that was replaced.
    pub(super) fn replaced(&mut self, key: &[u8]) {
        self.last.clear();
        self.last.extend_from_slice(key);
        self.entries += 1;
    }

    /// Comes to an entry that counts. Returns the range that ends before it, and how many entries
    /// were replaced there, if any were.
    pub(super) fn counts(&mut self, key: &[u8]) -> Option<(Range, usize)> {
        let entries = std::mem::take(&mut self.entries);
        if planted!(TablesSkipWhatCounts) {
            self.last.clear();
            self.last.extend_from_slice(key);
        }
        let range = (entries > 0).then(|| (self.begin.clone(), self.last.clone()));
        self.begin.clear();
        self.begin.extend_from_slice(key);
        Some((range?, entries))
    }

    /// Ends a scan that has looked at everything up to `end`.
    pub(super) fn ends(self, end: &[u8]) -> Option<(Range, usize)> {
        (self.entries > 0).then(|| ((self.begin, end.to_vec()), self.entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(begin: u8, end: u8) -> Range {
        (vec![begin], vec![end])
    }

    fn all(skips: &SkipRanges) -> Vec<(u8, u8)> {
        let ranges = skips.0.iter();
        ranges.map(|(begin, end)| (begin[0], end[0])).collect()
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut skips = SkipRanges::default();
        skips.add(range(10, 20), 64, 64);
        skips.add(range(40, 50), 70, 64);
        skips.add(range(30, 32), 63, 64);
        assert_eq!(all(&skips), [(10, 20), (40, 50)]);
        skips.add(range(20, 25), 1, 64);
        assert_eq!(all(&skips), [(10, 25), (40, 50)]);
        skips.add(range(12, 45), 1, 64);
        assert_eq!(all(&skips), [(10, 50)]);
        skips.add(range(60, 60), 64, 64);
        skips.add(range(5, 90), 0, 64);
        assert_eq!(all(&skips), [(5, 90)]);
    }

    #[test]
    fn a_range_is_found_from_before_and_from_inside() {
        let mut skips = SkipRanges::default();
        skips.add(range(10, 20), 64, 64);
        for (key, found) in [
            (5, Some((10, 20))),
            (10, Some((10, 20))),
            (11, Some((10, 20))),
            (20, Some((10, 20))),
            (21, None),
        ] {
            let at = skips.at(&[key]);
            assert_eq!(at.map(|(begin, end)| (begin[0], end[0])), found, "{key}");
        }
    }

    /// Where an entry counts, one range ends and another begins.
    #[test]
    fn what_counts_is_in_no_range() {
        let mut open = OpenSkip::new(vec![1]);
        open.replaced(&[3]);
        open.replaced(&[4]);
        assert_eq!(open.counts(&[6]), Some((range(1, 4), 2)));
        assert_eq!(open.counts(&[7]), None);
        open.replaced(&[8]);
        assert_eq!(open.ends(&[9]), Some((range(7, 9), 1)));
        assert_eq!(OpenSkip::new(vec![1]).ends(&[9]), None);
    }
}
