//! Sets of small numbers that know their lowest member.

use alloc::vec;
use alloc::vec::Vec;

const WORD: usize = u64::BITS as usize;

/// A set of numbers below a limit: one bit each, and above every 64 words of bits one
/// word that tells which of them are not zero, and so on up to a single word.
///
/// Insert, remove and the searches take one step a storey: at most six for 2^32 numbers.
pub(crate) struct Bits {
    storeys: Vec<Vec<u64>>,
}

impl Bits {
    /// The empty set of numbers below `limit`.
    pub(crate) fn below(limit: usize) -> Self {
        let mut bits = Self {
            storeys: vec![Vec::new()],
        };
        bits.grow(limit);
        bits
    }

    /// Makes room for the numbers below `limit`.
    pub(crate) fn grow(&mut self, limit: usize) {
        let mut words = limit.div_ceil(WORD);
        let mut storey = 0;
        loop {
            if storey == self.storeys.len() {
                // What was the top says whether it was empty; the new top repeats it.
                let below = self.storeys[storey - 1].first().copied();
                self.storeys
                    .push(vec![u64::from(below.is_some_and(|w| w != 0))]);
            }
            let longer = words.max(self.storeys[storey].len());
            self.storeys[storey].resize(longer, 0);
            if longer <= 1 {
                break;
            }
            words = longer.div_ceil(WORD);
            storey += 1;
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, number: usize) {
        let mut number = number;
        for storey in &mut self.storeys {
            let word = &mut storey[number / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (number % WORD);
            if !was_empty {
                break;
            }
            number /= WORD;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: usize) {
        self.remove_all(number / WORD, 1 << (number % WORD));
    }

    /// Removes the members of the word at `index` that `mask` names.
    #[inline]
    pub(crate) fn remove_all(&mut self, index: usize, mask: u64) {
        let (mut index, mut mask) = (index, mask);
        for storey in &mut self.storeys {
            let word = &mut storey[index];
            *word &= !mask;
            if *word != 0 {
                break;
            }
            mask = 1 << (index % WORD);
            index /= WORD;
        }
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        let word = self.storeys[0].get(number / WORD);
        word.is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        let mut found = 0;
        for storey in self.storeys.iter().rev() {
            let word = *storey.get(found)?;
            if word == 0 {
                return None;
            }
            found = found * WORD + word.trailing_zeros() as usize;
        }
        Some(found)
    }

    /// The first member that is not below `number`.
    pub(crate) fn first_from(&self, number: usize) -> Option<usize> {
        let mut from = number;
        for (height, storey) in self.storeys.iter().enumerate() {
            let ahead = *storey.get(from / WORD)? & (u64::MAX << (from % WORD));
            if ahead != 0 {
                let mut found = from / WORD * WORD + ahead.trailing_zeros() as usize;
                for below in self.storeys[..height].iter().rev() {
                    found = found * WORD + below[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            from = from / WORD + 1;
        }
        None
    }

    /// The lowest word that has members: its index and its bits.
    pub(crate) fn first_word(&self) -> Option<(usize, u64)> {
        let index = self.first()? / WORD;
        Some((index, self.storeys[0][index]))
    }

    pub(crate) fn bytes(&self) -> usize {
        let words: usize = self.storeys.iter().map(Vec::capacity).sum();
        words * size_of::<u64>()
    }

    /// Checks that every storey tells what the one below holds.
    pub(crate) fn check(&self) {
        for (below, above) in self.storeys.iter().zip(&self.storeys[1..]) {
            for (index, word) in below.iter().enumerate() {
                let told = above[index / WORD] >> (index % WORD) & 1 == 1;
                assert_eq!(told, *word != 0, "a storey tells what the one below holds");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_member_is_found_as_the_set_grows_and_changes() {
        let mut bits = Bits::below(0);
        assert_eq!(bits.first(), None);
        for limit in [1, 64, 65, 4_096, 4_097, 300_000] {
            bits.grow(limit);
            bits.check();
            bits.insert(limit - 1);
            assert!(bits.contains(limit - 1));
        }
        for expected in [0, 63, 64, 4_095, 4_096, 299_999] {
            assert_eq!(bits.first(), Some(expected));
            bits.remove(expected);
            bits.check();
        }
        assert_eq!(bits.first(), None);
    }

    #[test]
    fn the_first_member_from_a_number_on_is_found() {
        let mut bits = Bits::below(5_000);
        for member in [3, 64, 4_999] {
            bits.insert(member);
        }
        let found = |from| bits.first_from(from);
        assert_eq!((found(0), found(3), found(4)), (Some(3), Some(3), Some(64)));
        assert_eq!((found(64), found(65)), (Some(64), Some(4_999)));
        assert_eq!((found(4_999), found(5_000)), (Some(4_999), None));
    }
}
