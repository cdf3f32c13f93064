//! Finds the blocks of records of a table whose name index cannot be read.
//!
//! The blocks stand in the file in the order of their keys. One pass through the file builds an
//! index of one level over all of them, about a hundredth of the size of the file. The index stays
//! in memory until the table is closed.

use std::io;
use std::sync::Arc;

use super::block::{Block, Builder, Entries};
use super::format::{FRAME_HEADER, Kind, Pointer, frame_len, u32_at};
use super::reader::Table;
use crate::{DiskError, StoreError};

/// So often the system is asked for a block before it counts as refused.
const TRIES: usize = 3;
/// Behind a place that the system refuses, the search goes on this much further: by a page.
const REFUSED_BYTES: u64 = 4_096;

/// An index over the blocks of records that can be read.
#[derive(Debug)]
pub(super) struct Flat {
    /// `None` if no block can be read.
    pub(super) index: Option<Arc<Block>>,
    /// The first place that the system refused to read. What stands there may come back.
    refused_at: Option<u64>,
    lost: Pointer,
}

impl Flat {
    /// Goes through the table. `lost` is the block of the index that could not be read.
    ///
    /// Keys that may have stood in what cannot be read lead there, not to the next block: nobody
    /// may take such a name for one that is not there.
    pub(super) fn of(table: &Table, lost: Pointer) -> Self {
        let mut refused_at = None;
        let index = index(table, lost, &mut refused_at);
        Self {
            index: index.map(Arc::new),
            refused_at,
            lost,
        }
    }

    /// The blocks of records that can be read.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Pointer> {
        let mut entries = self.index.clone().map(Entries::new);
        let pointers = std::iter::from_fn(move || {
            let entries = entries.as_mut()?;
            let is_there = matches!(entries.advance(), Ok(true));
            is_there.then(|| Pointer::read(entries.value()).ok())
        });
        // A gap leads to no block.
        pointers.flatten().filter(|pointer| pointer.len > 0)
    }

    /// Whether the system refused to read nothing.
    pub(super) fn is_whole(&self) -> bool {
        self.refused_at.is_none()
    }

    /// The same once more, if a place can be read that was refused; `None` if none was.
    ///
    /// # Errors
    /// The system refuses to read the place still.
    pub(super) fn again(&self, table: &Table) -> Result<Option<Self>, StoreError> {
        let Some(at) = self.refused_at else {
            return Ok(None);
        };
        let mut header = [0; FRAME_HEADER];
        let read = table.store_file().read_at(at, &mut header);
        read.map_err(|error| table.refused(at, &error))?;
        Ok(Some(Self::of(table, self.lost)))
    }
}

fn index(table: &Table, lost: Pointer, refused_at: &mut Option<u64>) -> Option<Block> {
    let mut index = Builder::default();
    let mut gap = None;
    let mut at = 0;
    while let Some(found) = next(table, at, lost) {
        match found {
            Found::Refused => {
                let len = 0;
                gap.get_or_insert(Pointer { offset: at, len });
                refused_at.get_or_insert(at);
                at += REFUSED_BYTES;
                continue;
            }
            Found::Gap => {
                let len = 0;
                gap.get_or_insert(Pointer { offset: at, len });
                at += super::format::ALIGNMENT;
                continue;
            }
            Found::Records(pointer, bytes) => {
                let (first, last) = keys(bytes)?;
                if let Some(gap) = gap.take() {
                    push(&mut index, &below(&first), gap);
                }
                push(&mut index, &last, pointer);
                at += frame_len(pointer.len as usize);
            }
            Found::Other(len) => at += frame_len(len),
        }
    }
    if let Some(gap) = gap {
        push(&mut index, &table.entry.last_key, gap);
    }
    (index.entries() > 0).then_some(())?;
    Block::new(index.take(), 0, lost.offset).ok()
}

enum Found {
    Records(Pointer, Vec<u8>),
    /// A frame that has no names, and how long its body is.
    Other(usize),
    /// Nothing that makes sense.
    Gap,
    /// What the system does not give back.
    Refused,
}

/// What stands at `at`; `None` behind the last block of records.
fn next(table: &Table, at: u64, lost: Pointer) -> Option<Found> {
    if at == lost.offset {
        return Some(Found::Other(lost.len as usize));
    }
    let mut header = [0; FRAME_HEADER];
    if at + FRAME_HEADER as u64 > table.entry.length {
        return None;
    }
    let file = table.store_file();
    if tried(|| file.read_at(at, &mut header), |_: &io::Error| true).is_err() {
        return Some(Found::Refused);
    }
    let (offset, len) = (at, u32_at(&header, 4));
    let pointer = Pointer { offset, len };
    let Some(kind) = Kind::of(header[8]) else {
        return Some(Found::Gap);
    };
    let is_refused = |error: &StoreError| matches!(error, StoreError::Disk(DiskError::Io { .. }));
    let frame = tried(|| table.frame(pointer, kind), is_refused);
    match (frame, kind) {
        (Ok(bytes), Kind::Records) => Some(Found::Records(pointer, bytes)),
        (Ok(_), Kind::Index | Kind::Large) => Some(Found::Other(len as usize)),
        (Ok(_), _) => None,
        (Err(error), _) if is_refused(&error) => Some(Found::Refused),
        (Err(_), _) => Some(Found::Gap),
    }
}

fn tried<T, E>(
    mut read: impl FnMut() -> Result<T, E>,
    is_refused: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut last = read();
    for _ in 1..TRIES {
        match &last {
            Err(error) if is_refused(error) => last = read(),
            _ => break,
        }
    }
    last
}

/// The first and the last key of a block.
fn keys(bytes: Vec<u8>) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut entries = Entries::new(Arc::new(Block::new(bytes, FRAME_HEADER, 0).ok()?));
    let mut first = None;
    while entries.advance().ok()? {
        first.get_or_insert_with(|| entries.key().to_vec());
    }
    Some((first?, entries.key().to_vec()))
}

/// A key that is less than `key`, and not less than any name that is: names have no byte 0xff.
fn below(key: &[u8]) -> Vec<u8> {
    let mut below = key.to_vec();
    match below.pop() {
        Some(0) | None => {}
        Some(last) => below.extend([last - 1, 0xff]),
    }
    below
}

fn push(index: &mut Builder, key: &[u8], pointer: Pointer) {
    let mut value = Vec::new();
    pointer.write(&mut value);
    index.push(key, &value);
}
