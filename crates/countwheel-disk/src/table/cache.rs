//! A cache of blocks, bounded in bytes. All tables of a store share it.
//!
//! Eviction is by second chance: blocks leave in the order in which they came, but a block used
//! since then goes to the end of the line once more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::block::Block;

/// Parts with a lock of their own, so that readers seldom wait for each other.
const PARTS: usize = 8;

type Id = (u64, u64);

/// The cache.
#[derive(Debug)]
pub(super) struct Cache {
    parts: [Mutex<Part>; PARTS],
    max_bytes_of_part: usize,
    loads: AtomicU64,
}

#[derive(Default, Debug)]
struct Part {
    blocks: HashMap<Id, Slot>,
    line: VecDeque<Id>,
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    block: Arc<Block>,
    used: bool,
}

impl Cache {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            parts: Default::default(),
            max_bytes_of_part: max_bytes / PARTS,
            loads: AtomicU64::new(0),
        }
    }

    pub(super) fn get(&self, file: u64, offset: u64) -> Option<Arc<Block>> {
        let mut part = self.part(file, offset);
        let slot = part.blocks.get_mut(&(file, offset))?;
        slot.used = true;
        Some(Arc::clone(&slot.block))
    }

    /// How many blocks had to be read so far.
    pub(super) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Keeps a block that had to be read.
    pub(super) fn insert(&self, file: u64, block: &Arc<Block>) {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let id = (file, block.offset);
        if block.weight() > self.max_bytes_of_part / 4 {
            return;
        }
        let mut part = self.part(file, block.offset);
        let slot = Slot {
            block: Arc::clone(block),
            used: false,
        };
        if part.blocks.insert(id, slot).is_some() {
            return; // two readers missed it at once
        }
        part.bytes += block.weight();
        part.line.push_back(id);
        while part.bytes > self.max_bytes_of_part {
            let Some(oldest) = part.line.pop_front() else {
                return;
            };
            match part.blocks.get_mut(&oldest) {
                Some(slot) if slot.used => {
                    slot.used = false;
                    part.line.push_back(oldest);
                }
                _ => {
                    if let Some(slot) = part.blocks.remove(&oldest) {
                        part.bytes -= slot.block.weight();
                    }
                }
            }
        }
    }

    /// Gives up the blocks of a file that is no more: nobody asks for them again, and they would
    /// take the room of others until the line has gone round. Looks at every block there is.
    pub(super) fn forget(&self, file: u64) {
        for mut part in self.parts() {
            let part = &mut *part;
            part.blocks.retain(|id, slot| {
                let stays = id.0 != file;
                if !stays {
                    part.bytes -= slot.block.weight();
                }
                stays
            });
            part.line.retain(|id| id.0 != file);
        }
    }

    /// How many bytes the blocks have.
    pub(super) fn bytes(&self) -> usize {
        self.parts().map(|part| part.bytes).sum()
    }

    fn parts(&self) -> impl Iterator<Item = MutexGuard<'_, Part>> {
        self.parts.iter().map(Mutex::lock)
    }

    fn part(&self, file: u64, offset: u64) -> MutexGuard<'_, Part> {
        let mixed = (file ^ (offset >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let index = usize::try_from(mixed).unwrap_or(0) % PARTS;
        self.parts[index].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::block::Builder;

    fn block(offset: u64) -> Arc<Block> {
        let mut body = Builder::default();
        body.push(b"key", &[0; 1_000]);
        Arc::new(Block::new(body.take(), 0, offset).unwrap())
    }

    #[test]
    fn a_cache_stays_in_its_bounds_and_keeps_what_is_used() {
        let cache = Cache::new(PARTS * 10_000);
        cache.insert(1, &block(0));
        for offset in 1..1_000 {
            cache.insert(1, &block(8 * offset));
            assert!(cache.get(1, 0).is_some(), "used all the time");
        }
        let held: usize = (0..1_000)
            .filter(|offset| cache.get(1, 8 * offset).is_some())
            .count();
        assert!((PARTS..=PARTS * 10).contains(&held), "{held}");
        assert!(cache.get(2, 0).is_none(), "of another file");
    }

    #[test]
    fn a_file_that_is_no_more_leaves_its_room_to_others() {
        let cache = Cache::new(PARTS * 20_000);
        let held = |file| {
            let there = |offset: &u64| cache.get(file, 8 * offset).is_some();
            (0..16).filter(there).count()
        };
        for offset in 0..16 {
            cache.insert(1, &block(8 * offset));
            cache.insert(2, &block(8 * offset));
        }
        cache.forget(1);
        assert_eq!((held(1), held(2)), (0, 16));
        for part in cache.parts() {
            let bytes: usize = part.blocks.values().map(|slot| slot.block.weight()).sum();
            assert_eq!((part.bytes, part.line.len()), (bytes, part.blocks.len()));
        }
        for file in 3..1_000 {
            cache.insert(file, &block(0));
            assert!(cache.get(file, 0).is_some(), "there is room for it");
            cache.forget(file);
        }
    }
}
