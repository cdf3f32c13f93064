//! One seed, many generators: each concern draws from its own, so that a draw added in one
//! place does not shift all the others.

/// What each draw of the generator adds to its state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(countwheel_time::Random);

impl Random {
    /// The generator of `seed` for the concern `what`.
    #[must_use]
    pub fn new(seed: u64, what: &str) -> Self {
        // A draw after each byte of the name: the seeds that found a bug draw what they drew then.
        let state = what.bytes().fold(seed, |state, byte| {
            (state ^ u64::from(byte)).wrapping_add(STEP)
        });
        Self(countwheel_time::Random::new(state))
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
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
