//! Where chance comes from: a generator that each owner has of its own.

use std::hash::{BuildHasher, RandomState};

/// Sebastiano Vigna's splitmix64: for jitter and random order, not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The same seed, the same numbers.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Other numbers in each process and at each call.
    pub(crate) fn new() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `most`, both included.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        // The upper half of a product: no bias that anybody could measure, and no division.
        let product = u128::from(self.next()) * (u128::from(most) + 1);
        u64::try_from(product >> 64).unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_up_to_the_most_comes_and_none_beyond() {
        let mut random = Random::seeded(1);
        let mut seen = [0; 4];
        for _ in 0..4_000 {
            seen[usize::try_from(random.up_to(3)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| count > 800), "{seen:?}");
        assert_eq!(random.up_to(0), 0);
        assert_ne!(random.up_to(u64::MAX), random.up_to(u64::MAX));
        assert_ne!(Random::new().next(), Random::new().next());
    }
}
