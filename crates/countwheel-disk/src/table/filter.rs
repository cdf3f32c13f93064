//! The names that a table certainly does not have: a Bloom filter (Bloom, 1970) in blocks of a
//! cache line (Putze, Sanders and Singler, 2007). It takes ten bits a name, so that about one name
//! in a hundred causes a needless look.

use super::format::Malformed;

const BITS_PER_NAME: usize = 10;
const PROBES: u32 = 6;
/// A block is one line of the processor's cache.
const BLOCK_BYTES: usize = 64;
const BLOCK_BITS: u64 = 8 * BLOCK_BYTES as u64;

/// A filter over the hashes of names.
#[derive(Debug)]
pub(super) struct Filter {
    bytes: Vec<u8>,
}

impl Filter {
    pub(super) fn of(hashes: &[u64]) -> Self {
        let blocks = (hashes.len() * BITS_PER_NAME).div_ceil(8 * BLOCK_BYTES);
        let mut filter = Self {
            bytes: vec![0; blocks.max(1) * BLOCK_BYTES],
        };
        for &hash in hashes {
            let block = filter.block(hash);
            for (byte, bit) in bits(hash) {
                filter.bytes[block + byte] |= bit;
            }
        }
        filter
    }

    /// The filter of these bytes.
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, Malformed> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            return Err(Malformed);
        }
        Ok(Self { bytes })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// False if the name with this hash is certainly not in the table.
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let block = self.block(hash);
        bits(hash).all(|(byte, bit)| self.bytes[block + byte] & bit != 0)
    }

    /// Where the block of a hash begins.
    fn block(&self, hash: u64) -> usize {
        let blocks = (self.bytes.len() / BLOCK_BYTES) as u64;
        let index = (u128::from(hash) * u128::from(blocks)) >> 64;
        usize::try_from(index).unwrap_or(0) * BLOCK_BYTES
    }
}

/// The bits of a hash in its block, which the upper bits of the hash chose.
fn bits(hash: u64) -> impl Iterator<Item = (usize, u8)> {
    (0..PROBES).map(move |probe| {
        let bit = (hash >> (9 * probe)) % BLOCK_BITS;
        (usize::try_from(bit / 8).unwrap_or(0), 1 << (bit % 8))
    })
}

/// The hash of a name's key. It is part of the format.
pub(super) fn hash(key: &[u8]) -> u64 {
    let mut state = key.len() as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    for word in words.iter().chain([&last]) {
        state = mix(state ^ u64::from_le_bytes(*word));
    }
    mix(state)
}

/// Both halves of a product, folded.
fn mix(number: u64) -> u64 {
    let product = u128::from(number ^ 0xa076_1d64_78bd_642f) * 0xe703_7ed1_a0b4_28db;
    let folded = (product >> 64) ^ (product & u128::from(u64::MAX));
    u64::try_from(folded).unwrap_or(0) ^ number.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_knows_its_names_and_few_others() {
        for count in [1_u32, 50, 10_000] {
            let hashes = |range: std::ops::Range<u32>| {
                let keys = range.map(|number| format!("\0\0queue\0key-{number}"));
                keys.map(|key| hash(key.as_bytes())).collect::<Vec<_>>()
            };
            let inside = hashes(0..count);
            let filter = Filter::of(&inside);
            let filter = Filter::read(filter.bytes().to_vec()).unwrap();
            assert!(inside.iter().all(|&hash| filter.may_contain(hash)));
            let outside = hashes(count..count + 10_000);
            let wrong = outside.iter().filter(|&&hash| filter.may_contain(hash));
            assert!(wrong.count() < 250, "of {count}");
        }
    }
}
