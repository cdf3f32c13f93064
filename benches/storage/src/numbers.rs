//! The numbers behind the records: from a counter to a key, a payload and a place, and back, so
//! that nobody keeps a list of what was stored.

/// One step of the generator called splitmix64: a bijection on 64 bits.
pub(crate) fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const ROUNDS: u64 = 4;

/// A permutation of the numbers below `len` that looks random, and its inverse.
///
/// A Feistel network over the next even number of bits, walked until it comes back into range:
/// at most four steps on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    len: u64,
    half: u32,
    seed: u64,
}

impl Permutation {
    pub(crate) fn new(len: u64, seed: u64) -> Self {
        assert!(len > 0, "there is no permutation of nothing");
        let bits = u64::BITS - (len - 1).leading_zeros();
        let half = bits.div_ceil(2).max(1);
        Self { len, half, seed }
    }

    pub(crate) fn of(self, x: u64) -> u64 {
        self.walk(x, |(left, right), round| {
            (right, left ^ self.scramble(right, round))
        })
    }

    pub(crate) fn inverse(self, x: u64) -> u64 {
        self.walk(x, |(left, right), round| {
            let round = ROUNDS - 1 - round;
            (right ^ self.scramble(left, round), left)
        })
    }

    fn walk(self, mut x: u64, step: impl Fn((u64, u64), u64) -> (u64, u64)) -> u64 {
        let mask = (1 << self.half) - 1;
        loop {
            let halves = (x >> self.half, x & mask);
            let (left, right) = (0..ROUNDS).fold(halves, &step);
            x = left << self.half | right;
            if x < self.len {
                return x;
            }
        }
    }

    fn scramble(self, half: u64, round: u64) -> u64 {
        mix(half ^ self.seed.rotate_left(17) ^ (round << 56)) & ((1 << self.half) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_meets_every_number_once_and_can_be_undone() {
        for len in [1, 2, 3, 5, 64, 1000, 4097] {
            let permutation = Permutation::new(len, 7);
            let mut seen: Vec<u64> = (0..len).map(|x| permutation.of(x)).collect();
            assert!((0..len).all(|x| permutation.inverse(permutation.of(x)) == x));
            assert!(len < 64 || !seen.is_sorted());
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..len));
        }
    }

    #[test]
    fn another_seed_is_another_order() {
        let order = |seed| {
            let permutation = Permutation::new(1000, seed);
            (0..1000).map(|x| permutation.of(x)).collect::<Vec<_>>()
        };
        assert_ne!(order(1), order(2));
    }
}
