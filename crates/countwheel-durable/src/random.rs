//! A seeded generator by value: SplitMix64 (Steele, Lea and Flood, 2014).
//!
//! The scheduler draws jitter from it. A simulation that knows the seed knows the draws.

use std::time::Duration;

/// The generator. Not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform from zero to `most`, both included, in whole microseconds.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX - 1);
        // The high half of a 64 x 64 bit product: uniform but for 1 part in 2^64 / micros.
        let scaled = u128::from(self.draw()) * (u128::from(micros) + 1);
        Duration::from_micros(u64::try_from(scaled >> 64).unwrap_or(micros))
    }
}
