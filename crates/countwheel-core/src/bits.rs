//! Sets of small numbers that know their lowest member.

use alloc::vec;
use alloc::vec::Vec;

const WORD: usize = u64::BITS as usize;

/// A set of numbers below a limit: one bit each, and above every 64 words of bits one
/// word that tells which of them are not zero, and so on up to a single word.
///
/// Insert, remove and the searches take one step a storey: at most six for 2^32 numbers.
pub(crate) struct Bits {
    ground: Vec<u64>,
    /// From the one above the ground to the top, which is a single word.
    storeys: Vec<Vec<u64>>,
}

impl Bits {
    /// The empty set of numbers below `limit`.
    pub(crate) fn below(limit: usize) -> Self {
        let mut bits = Self {
            ground: Vec::new(),
            storeys: vec![vec![0]],
        };
        bits.grow(limit);
        bits
    }

    /// Makes room for the numbers below `limit`.
    pub(crate) fn grow(&mut self, limit: usize) {
        let mut words = limit.div_ceil(WORD).max(self.ground.len());
        self.ground.resize(words, 0);
        let mut storey = 0;
        while words > 1 {
            words = words.div_ceil(WORD);
            if storey == self.storeys.len() {
                // What was the top says whether it was empty; the new top repeats it.
                let below = self.storeys[storey - 1][0];
                self.storeys.push(vec![u64::from(below != 0)]);
            }
            words = words.max(self.storeys[storey].len());
            self.storeys[storey].resize(words, 0);
            storey += 1;
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, number: usize) {
        let word = &mut self.ground[number / WORD];
        let was_empty = *word == 0;
        *word |= 1 << (number % WORD);
        if was_empty {
            self.tell(number / WORD);
        }
    }

    /// Inserts the 64 numbers from `64 * index` on.
    pub(crate) fn insert_word(&mut self, index: usize) {
        self.ground[index] = u64::MAX;
        self.tell(index);
    }

    /// Tells the storeys that a word of the ground has members now.
    fn tell(&mut self, index: usize) {
        let mut index = index;
        for storey in &mut self.storeys {
            let word = &mut storey[index / WORD];
            let was_empty = *word == 0;
            *word |= 1 << (index % WORD);
            if !was_empty {
                break;
            }
            index /= WORD;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: usize) {
        self.remove_all(number / WORD, 1 << (number % WORD));
    }

    /// Removes the members of the word at `index` that `mask` names.
    #[inline]
    pub(crate) fn remove_all(&mut self, index: usize, mask: u64) {
        self.ground[index] &= !mask;
        let (mut index, mut is_empty) = (index, self.ground[index] == 0);
        for storey in &mut self.storeys {
            if !is_empty {
                break;
            }
            let word = &mut storey[index / WORD];
            *word &= !(1 << (index % WORD));
            is_empty = *word == 0;
            index /= WORD;
        }
    }

    /// The 64 numbers from `64 * index` on, as bits.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.ground[index]
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        let word = self.ground.get(number / WORD);
        word.is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        let mut found = 0;
        for storey in self.storeys.iter().rev() {
            let word = storey[found];
            if word == 0 {
                return None; // only the top is without members
            }
            found = found * WORD + word.trailing_zeros() as usize;
        }
        Some(found * WORD + self.ground[found].trailing_zeros() as usize)
    }

    /// The first member that is not below `number`.
    pub(crate) fn first_from(&self, number: usize) -> Option<usize> {
        let ahead = *self.ground.get(number / WORD)? & (u64::MAX << (number % WORD));
        if ahead != 0 {
            return Some(number / WORD * WORD + ahead.trailing_zeros() as usize);
        }
        let mut from = number / WORD + 1;
        for (height, storey) in self.storeys.iter().enumerate() {
            let ahead = *storey.get(from / WORD)? & (u64::MAX << (from % WORD));
            if ahead != 0 {
                let mut found = from / WORD * WORD + ahead.trailing_zeros() as usize;
                for below in self.storeys[..height].iter().rev() {
                    found = found * WORD + below[found].trailing_zeros() as usize;
                }
                return Some(found * WORD + self.ground[found].trailing_zeros() as usize);
            }
            from = from / WORD + 1;
        }
        None
    }

    /// The lowest word that has members: its index and its bits.
    pub(crate) fn first_word(&self) -> Option<(usize, u64)> {
        let index = self.first()? / WORD;
        Some((index, self.ground[index]))
    }

    pub(crate) fn bytes(&self) -> usize {
        let upper: usize = self.storeys.iter().map(Vec::capacity).sum();
        (self.ground.capacity() + upper) * size_of::<u64>()
    }

    /// Checks that every storey tells what the one below holds.
    pub(crate) fn check(&self) {
        let below = core::iter::once(&self.ground).chain(&self.storeys);
        for (below, above) in below.zip(&self.storeys) {
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
