//! The source of chance: a generator for each owner.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A seeded generator of numbers: SplitMix64 (Steele, Lea and Flood, 2014). For jitter and random
/// order, not for secrets.
///
/// The same seed gives the same numbers, in every version. Each draw is O(1) and takes no lock.
///
/// ```
/// use countwheel_time::Random;
/// use std::time::Duration;
///
/// let (mut one, mut other) = (Random::new(7), Random::new(7));
/// assert_eq!(one.draw(), other.draw());
/// assert!(one.below(6) < 6);
/// assert!(one.up_to(6) <= 6);
/// assert!(one.micros_up_to(Duration::from_secs(1)) <= Duration::from_secs(1));
/// ```
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    #[inline]
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator with other numbers in each process and at each call.
    ///
    /// ```
    /// use countwheel_time::Random;
    ///
    /// assert_ne!(Random::unseeded().draw(), Random::unseeded().draw());
    /// ```
    #[must_use]
    pub fn unseeded() -> Self {
        Self(RandomState::new().hash_one(0))
    }

    /// 64 random bits.
    #[inline]
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from zero to `bound`, which is excluded; zero if `bound` is zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.draw()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// A number from zero to `most`, both included.
    #[inline]
    pub fn up_to(&mut self, most: u64) -> u64 {
        // The upper half of a product: no bias that anybody could measure, and no division.
        let product = u128::from(self.draw()) * (u128::from(most) + 1);
        u64::try_from(product >> 64).unwrap_or(most)
    }

    /// A duration from zero to `most`, both included, in whole microseconds.
    #[inline]
    pub fn micros_up_to(&mut self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.up_to(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_up_to_the_most_comes_and_none_beyond() {
        let mut random = Random::new(1);
        let mut seen = [0; 4];
        for _ in 0..4_000 {
            seen[usize::try_from(random.up_to(3)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| count > 800), "{seen:?}");
        assert_eq!(random.up_to(0), 0);
        assert_ne!(random.up_to(u64::MAX), random.up_to(u64::MAX));
        assert_ne!(Random::unseeded().draw(), Random::unseeded().draw());
    }

    #[test]
    fn the_draws_of_a_seed_are_those_that_were_published() {
        let mut random = Random::new(1_234_567);
        let drawn = [random.draw(), random.draw(), random.draw()];
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(drawn, published);
    }
}
