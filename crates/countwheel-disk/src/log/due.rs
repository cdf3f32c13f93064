//! What wakes when, of what is in the memtable.
//!
//! Most of what is in the memtable is gone before anybody asks for it in order, so it is not kept
//! in order: only in **leaves**, each with what wakes within a range, and in a leaf as it came. A
//! leaf is put in order when it is read, and split when it is full. What goes is counted and stays,
//! since whether something is there is in its slot as well; it is cleared away once it is most of
//! the leaf. So neither what comes nor what goes has to look at others.

use std::collections::BTreeMap;

use crate::Wake;

/// A leaf has at most so many.
const LEAF_MAX: usize = 256;

/// A wake, and the slot of what wakes.
pub(super) type LeafEntry = (Wake, u32);

/// Slots in the order in which they wake.
#[derive(Debug, Default)]
pub(super) struct DueLeaves {
    /// By the wake with which a leaf begins. What is before the first one goes to one that
    /// begins with everything.
    leaves: BTreeMap<Wake, Leaf>,
}

#[derive(Debug, Default)]
struct Leaf {
    entries: Vec<LeafEntry>,
    /// How many of them are still there.
    live: usize,
}

impl DueLeaves {
    /// Adds one. `is_live` says of the others whether they are still there.
    pub(super) fn insert(&mut self, entry: LeafEntry, is_live: impl Fn(&LeafEntry) -> bool) {
        let found = self.leaves.range_mut(..=entry.0).next_back();
        let leaf = match found {
            Some((_, leaf)) => leaf,
            None => self.leaves.entry(Wake::default()).or_default(),
        };
        leaf.entries.push(entry);
        leaf.live += 1;
        if leaf.entries.len() < LEAF_MAX {
            return;
        }
        leaf.clear(is_live);
        if leaf.live > LEAF_MAX / 2 {
            let upper = leaf.split();
            self.leaves.extend(upper);
        }
    }

    /// Removes one that is there.
    pub(super) fn remove(&mut self, entry: LeafEntry, is_live: impl Fn(&LeafEntry) -> bool) {
        let found = self.leaves.range_mut(..=entry.0).next_back();
        let Some((&begin, leaf)) = found else {
            return;
        };
        leaf.live = leaf.live.saturating_sub(1);
        if leaf.live == 0 {
            self.leaves.remove(&begin);
        } else if leaf.live < leaf.entries.len() / 4 {
            leaf.clear(|other| *other != entry && is_live(other));
            leaf.entries.shrink_to(LEAF_MAX / 4);
        }
    }

    /// Those after `after`, in order.
    pub(super) fn after(
        &self,
        after: Option<Wake>,
        is_live: impl Fn(&LeafEntry) -> bool,
    ) -> impl Iterator<Item = LeafEntry> {
        let first = after.and_then(|after| self.leaves.range(..=after).next_back());
        let begin = first.map_or(Wake::default(), |(&begin, _)| begin);
        self.leaves.range(begin..).flat_map(move |(_, leaf)| {
            let entries = leaf.entries.iter();
            let is_wanted = |entry: &&LeafEntry| after.is_none_or(|after| entry.0 > after);
            let wanted = entries.filter(is_wanted).filter(|&entry| is_live(entry));
            in_order(wanted.copied().collect())
        })
    }
}

impl Leaf {
    /// Clears away what is gone.
    fn clear(&mut self, is_live: impl Fn(&LeafEntry) -> bool) {
        if self.live < self.entries.len() {
            self.entries.retain(is_live);
            self.entries = in_order(std::mem::take(&mut self.entries));
            self.live = self.entries.len();
        }
    }

    /// Takes the upper half out, and says with what it begins. What wakes at the same time stays
    /// together.
    fn split(&mut self) -> Option<(Wake, Self)> {
        self.entries.sort_unstable();
        let middle = self.entries[self.entries.len() / 2].0;
        let at = self.entries.partition_point(|&(wake, _)| wake < middle);
        if at == 0 {
            return None;
        }
        let mut upper = Vec::with_capacity(LEAF_MAX);
        upper.extend(self.entries.drain(at..));
        self.live = at;
        let live = upper.len();
        let entries = upper;
        Some((middle, Self { entries, live }))
    }
}

/// In order, and each once: what goes and comes back as it was is there twice.
fn in_order(mut entries: Vec<LeafEntry>) -> Vec<LeafEntry> {
    entries.sort_unstable();
    entries.dedup();
    entries
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use countwheel_time::Timestamp;

    use super::*;
    use crate::Revision;
    use countwheel_time::Random;

    fn entry(at: u64, number: u32) -> LeafEntry {
        let wake = Wake {
            at: Timestamp::from_micros(at),
            revision: Revision(number.into()),
        };
        (wake, number)
    }

    /// Whatever comes and goes, from many at the same time to all far apart: what is left is
    /// there, once, and in order.
    #[test]
    fn what_is_left_is_in_order() {
        for (seed, spread) in (0..40).zip([3, 500, 1 << 40].into_iter().cycle()) {
            let mut random = Random::new(seed);
            let (mut due, mut left) = (DueLeaves::default(), BTreeSet::new());
            let mut gone = Vec::new();
            for number in 0..6_000 {
                let added = match random.below(20) {
                    0 => gone.pop(),
                    _ => Some(entry(random.below(spread), number)),
                };
                // Waves: grows, is drained, grows again.
                let drains = number / 1_000 % 2 == 1;
                if let Some(added) = added.filter(|_| !drains || random.below(3) == 0) {
                    left.insert(added);
                    due.insert(added, |other| left.contains(other));
                }
                for _ in 0..random.below(if drains { 3 } else { 2 }) {
                    // The first, or any.
                    let from = entry(random.below(2) * random.below(spread), 0);
                    let Some(&removed) = left.range(from..).next() else {
                        continue;
                    };
                    // It is removed while it still looks as if it were there.
                    due.remove(removed, |other| left.contains(other));
                    left.remove(&removed);
                    gone.push(removed);
                }
                if number % 97 == 0 {
                    let after = entry(random.below(spread), number / 2).0;
                    let after = Some(after).filter(|_| random.below(3) > 0);
                    let seen: Vec<LeafEntry> =
                        due.after(after, |other| left.contains(other)).collect();
                    let wanted = left.iter().filter(|(wake, _)| Some(*wake) > after);
                    assert_eq!(seen, wanted.copied().collect::<Vec<_>>());
                    let kept: usize = due.leaves.values().map(|leaf| leaf.entries.len()).sum();
                    assert!(kept <= 5 * left.len() + 4, "{kept} for {}", left.len());
                }
            }
        }
    }

    /// Nothing is kept of what is gone.
    #[test]
    fn what_is_empty_keeps_nothing() {
        let mut due = DueLeaves::default();
        let mut left: BTreeSet<LeafEntry> = (0..10_000).map(|n| entry(n.into(), n)).collect();
        for &entry in &left {
            due.insert(entry, |_| true);
        }
        assert!(due.leaves.len() > 10_000 / LEAF_MAX);
        while let Some(first) = left.pop_first() {
            due.remove(first, |other| left.contains(other));
        }
        assert!(due.leaves.is_empty());
    }
}
