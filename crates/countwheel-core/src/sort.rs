//! Sorts entries by deadline, and leaves equal ones in their order.

use alloc::vec::Vec;
use core::mem;

use crate::chunks::ChunkEntry;

/// Below this, sorting by insertion is quicker than counting.
const FEW: usize = 24;

/// Sorts by the lowest `bytes` bytes of the deadlines; in the others the entries agree.
/// Stable. `spare` is for its memory.
///
/// A radix sort, byte by byte from the lowest, each by counting: O(entries) a byte.
pub(crate) fn by_deadline(
    entries: &mut Vec<ChunkEntry>,
    bytes: usize,
    spare: &mut Vec<ChunkEntry>,
) {
    if entries.len() <= FEW {
        entries.sort_by_key(|entry| entry.deadline);
        return;
    }
    spare.clear();
    spare.resize(entries.len(), ChunkEntry::default());
    for byte in 0..bytes {
        let digit = |entry: &ChunkEntry| (entry.deadline >> (8 * byte)) as usize % 256;
        let mut ends = [0_u32; 256];
        for entry in entries.iter() {
            ends[digit(entry)] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += mem::replace(end, sum);
        }
        for entry in entries.iter() {
            let place = &mut ends[digit(entry)];
            spare[*place as usize] = *entry;
            *place += 1;
        }
        mem::swap(entries, spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_entries_are_sorted_and_equal_ones_stay_in_order() {
        for len in [0_u32, 1, 2, 24, 25, 1_000, 70_000] {
            for bytes in 1..=3 {
                let deadline = |node: u32| node.wrapping_mul(2_654_435_761) % (1 << (8 * bytes));
                let unsorted = (0..len).map(|node| ChunkEntry {
                    deadline: deadline(node) / 3 * 3,
                    node,
                });
                let mut entries: Vec<ChunkEntry> = unsorted.collect();
                let mut expected = entries.clone();
                expected.sort_by_key(|entry| entry.deadline);
                by_deadline(&mut entries, bytes, &mut Vec::new());
                assert_eq!(entries, expected, "{len} entries, {bytes} bytes");
            }
        }
    }
}
