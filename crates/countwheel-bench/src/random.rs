//! The numbers behind the workloads. They are simple enough to repeat in any language.

/// The generator called splitmix64, as `countwheel_time::Random` has it: written out, since the peers
/// in other languages have the same.
#[derive(Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// How long timers run, in ticks.
#[derive(Clone, Copy)]
pub(crate) enum Delays {
    /// 1 to 60,000.
    Uniform,
    /// 1 to 2^32 - 1, every power of two as likely as the next.
    LogUniform,
    /// 0 to 2^32 - 1.
    Sparse,
    /// 2^31 to 2^32 - 1.
    Far,
}

impl Delays {
    pub(crate) fn draw(self, numbers: &mut SplitMix) -> u64 {
        let x = numbers.next();
        match self {
            Self::Uniform => 1 + x % 60_000,
            Self::LogUniform => {
                let power = x & 31;
                (1 << power) + ((x >> 32) & ((1 << power) - 1))
            }
            Self::Sparse => x >> 32,
            Self::Far => (1 << 31) + (x >> 33),
        }
    }

    /// The longest there is.
    pub(crate) fn longest(self) -> u64 {
        match self {
            Self::Uniform => 60_000,
            Self::LogUniform | Self::Sparse | Self::Far => u64::from(u32::MAX),
        }
    }

    /// `count` delays from seed 42. They all fit 32 bits, and small arrays disturb less.
    pub(crate) fn list(self, count: usize) -> Vec<u32> {
        let mut numbers = SplitMix::new(42);
        let mut draw = || u32::try_from(self.draw(&mut numbers)).expect("delays have 32 bits");
        (0..count).map(|_| draw()).collect()
    }
}

/// Fisher and Yates, from seed 43.
pub(crate) fn shuffle<T>(items: &mut [T]) {
    let mut numbers = SplitMix::new(43);
    for last in (1..items.len()).rev() {
        items.swap(last, index(numbers.below(last as u64 + 1)));
    }
}

/// A number that is known to be an index.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).expect("an index fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        let mut numbers = SplitMix::new(1_234_567);
        assert_eq!(numbers.next(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn delays_stay_within_their_bounds() {
        let mut numbers = SplitMix::new(1);
        for _ in 0..10_000 {
            assert!((1..=60_000).contains(&Delays::Uniform.draw(&mut numbers)));
            assert!((1..1 << 32).contains(&Delays::LogUniform.draw(&mut numbers)));
            assert!((1 << 31..1 << 32).contains(&Delays::Far.draw(&mut numbers)));
        }
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<u32> = (0..1000).collect();
        shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..1000));
    }
}
