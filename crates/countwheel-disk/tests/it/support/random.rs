//! Chance for the tests of stores.

/// A seeded generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(countwheel_time::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(countwheel_time::Random::new(seed))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// From zero to `end`, which is excluded.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.draw() % end as u64).unwrap()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.draw().to_le_bytes()[0]
    }
}
