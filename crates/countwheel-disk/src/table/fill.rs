//! Fills the gaps in an index of a table that cannot be merged, in memory.
//!
//! A merge of a table with a damaged index by itself makes its indexes anew. A table that has a
//! damaged record as well is left alone. For such a table, the entries of the damaged index blocks
//! come from its readable records, and form one more block until the table is closed. That block
//! holds only the entries of the damaged blocks, whatever the size of the table.

use std::sync::Arc;

use super::block::{Block, Builder, Entries};
use super::format::restore_unchecked;
use super::format::{FRAME_HEADER, Kind, Malformed, Pointer, SHARD_BYTES, Tree, Value};
use super::reader::{Section, Table};
use super::writer::{due_key, put_position, queue_len};
use crate::codec::Indexed;
use crate::{DiskError, StoreError};

/// From behind one key up to another, or to the end.
type Range = (Vec<u8>, Option<Vec<u8>>);

/// What is kept in place of the blocks of an index that cannot be read.
pub(super) struct Filled {
    /// What they would say, as far as records say it; `None` if they can all be read.
    pub(super) block: Option<Block>,
    /// Whether that is all: the system refused to read none of the records.
    pub(super) is_whole: bool,
}

pub(super) fn fill(table: &Arc<Table>, section: Section) -> Filled {
    let mut is_whole = true;
    let block = filled(table, section, &mut is_whole);
    Filled { block, is_whole }
}

fn filled(table: &Arc<Table>, section: Section, is_whole: &mut bool) -> Option<Block> {
    let mut ranges = Ranges {
        table,
        section,
        last_key: Vec::new(),
        lost: Vec::new(),
    };
    let Tree { root, height } = table.footer.trees[section as usize];
    if root.len > 0 {
        ranges.node(root, height, None);
    }
    let lost = ranges.lost;
    if lost.is_empty() {
        return None;
    }
    let is_lost = |key: &[u8]| {
        let mut ranges = lost.iter();
        ranges.any(|(from, to)| key > from.as_slice() && to.as_deref().is_none_or(|to| key <= to))
    };
    let mut found = Vec::new();
    let Tree { root, height } = table.footer.trees[Section::Names as usize];
    if root.len > 0 {
        let mut each = |key: &[u8], indexed| {
            if let Some((index_key, value)) = entry(table, section, key, indexed)
                && is_lost(&index_key)
            {
                found.push((index_key, value));
            }
        };
        let mut lost_node = None;
        *is_whole = names(table, (root, height), &mut each, &mut lost_node);
        if let Some(node) = lost_node {
            // What stands below it can be read all the same, block by block.
            let flat = table.flat(node);
            *is_whole = flat.is_whole();
            for block in flat.blocks() {
                *is_whole &= names(table, (block, 0), &mut each, &mut None);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    let mut block = Builder::default();
    for (key, value) in &found {
        block.push(key, value);
    }
    Block::new(block.take(), 0, 0).ok()
}

/// The entry that an index has for a record.
fn entry(
    table: &Table,
    section: Section,
    key: &[u8],
    indexed: Indexed,
) -> Option<(Vec<u8>, Vec<u8>)> {
    if section == Section::Due {
        let key_of = |wake| {
            due_key(
                *key.first_chunk().unwrap_or(&[0; SHARD_BYTES]),
                indexed.clock,
                wake,
            )
        };
        let mut value = Vec::new();
        let name = key.get(SHARD_BYTES..)?;
        table.footer.due_value(name, indexed.kind, &mut value);
        return Some((key_of(indexed.wake?), value));
    }
    let (queue, name) = key.split_at(queue_len(key));
    let mut list_key = queue.to_vec();
    list_key.push(indexed.kind as u8);
    put_position(&mut list_key, indexed.position);
    Some((list_key, name.to_vec()))
}

struct Ranges<'a> {
    table: &'a Table,
    section: Section,
    last_key: Vec<u8>,
    lost: Vec<Range>,
}

impl Ranges<'_> {
    fn node(&mut self, pointer: Pointer, height: u32, last: Option<&[u8]>) {
        let kind = if height > 0 {
            Kind::Index
        } else {
            self.section.kind()
        };
        if self.read(pointer, kind, height).is_none() {
            let to = last.map(<[u8]>::to_vec);
            self.lost.push((self.last_key.clone(), to));
        }
        if let Some(last) = last {
            self.last_key = last.to_vec();
        }
    }

    /// Goes through a block, and all below it; `None` if it cannot be read.
    fn read(&mut self, pointer: Pointer, kind: Kind, height: u32) -> Option<()> {
        let mut entries = open(self.table, pointer, kind).ok()??;
        while entries.advance().ok()? {
            if height > 0 {
                let child = Pointer::read(entries.value()).ok()?;
                self.node(child, height - 1, Some(entries.key()));
            } else {
                self.last_key = entries.key().to_vec();
            }
        }
        Some(())
    }
}

/// Hands over every record that can be read below a block so many levels up. False if the system
/// refused to read some. What can be read of no index is noted in `lost`.
fn names(
    table: &Table,
    (pointer, height): (Pointer, u32),
    each: &mut dyn FnMut(&[u8], Indexed),
    lost: &mut Option<Pointer>,
) -> bool {
    let kind = if height > 0 {
        Kind::Index
    } else {
        Kind::Records
    };
    let mut entries = match open(table, pointer, kind) {
        Ok(Some(entries)) => entries,
        Ok(None) => {
            if height > 0 {
                *lost = Some(pointer);
            }
            return true;
        }
        Err(Refused) => return false,
    };
    let mut is_whole = true;
    while matches!(entries.advance(), Ok(true)) {
        if height > 0 {
            match Pointer::read(entries.value()) {
                Ok(child) => is_whole &= names(table, (child, height - 1), each, lost),
                Err(_) => *lost = Some(pointer),
            }
        } else {
            match indexed(table, &entries) {
                Ok(Some(indexed)) => each(entries.key(), indexed),
                Ok(None) => {}
                Err(Refused) => is_whole = false,
            }
        }
    }
    is_whole
}

/// The system did not give back what stands there. It may later.
struct Refused;

/// `None` for what is damaged.
fn unless_refused<T>(read: Result<T, StoreError>) -> Result<Option<T>, Refused> {
    match read {
        Err(StoreError::Disk(DiskError::Io { .. })) => Err(Refused),
        read => Ok(read.ok()),
    }
}

/// What the indexes say of a record; `None` if it is none or is damaged.
fn indexed(table: &Table, entries: &Entries) -> Result<Option<Indexed>, Refused> {
    if let Ok(Value::Unreadable(indexed)) = Value::read(entries.value()) {
        return Ok(Some(indexed));
    }
    let stripped = unless_refused(table.stripped(entries.value(), entries.offset()))?;
    Ok(stripped.flatten().and_then(|stripped| {
        let mut record = Vec::new();
        restore_unchecked(entries.key(), &stripped, &mut record).ok()?;
        let (&version, content) = record.split_first()?;
        Some(Indexed::unchecked(version, content).ok()?.1)
    }))
}

/// A block, also one that can be read no more but was read before: reads find it in the cache.
fn open(table: &Table, pointer: Pointer, kind: Kind) -> Result<Option<Entries>, Refused> {
    let cached = || table.cached(pointer).map(Entries::new);
    match unless_refused(table.frame(pointer, kind)) {
        Ok(bytes) => {
            let read = bytes.and_then(|bytes| {
                let block: Result<_, Malformed> = Block::new(bytes, FRAME_HEADER, pointer.offset);
                Some(Entries::new(Arc::new(block.ok()?)))
            });
            Ok(read.or_else(cached))
        }
        Err(Refused) => cached().map(Some).ok_or(Refused),
    }
}
