//! A map from numbers that are given out one after another.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from numbers that this file's neighbours give out.
pub(super) type Numbered<V> = HashMap<u64, V, BuildHasherDefault<Spread>>;

/// Spreads numbers that follow one another.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only numbers are hashed");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
