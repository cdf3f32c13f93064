//! One seed, many generators: each concern draws from its own, so that a draw added in one
//! place does not shift all the others. SplitMix64 (Steele, Lea and Flood, 2014).

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed` for the concern `what`.
    #[must_use]
    pub fn new(seed: u64, what: &str) -> Self {
        let mut random = Self(seed);
        for byte in what.bytes() {
            random.0 ^= u64::from(byte);
            random.draw();
        }
        random
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        let scaled = u128::from(self.draw()) * u128::from(bound);
        u64::try_from(scaled >> 64).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `times`, never if it is zero.
    pub fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let index = self.below(from.len() as u64);
        &from[usize::try_from(index).unwrap_or(0)]
    }
}
