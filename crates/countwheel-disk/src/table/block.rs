//! Sorted entries in the body of a frame.
//!
//! An entry is three varints, how many bytes of its key are those of the key before, how many
//! follow, and how long the value is; then the bytes of the key that follow, and the value. Every
//! sixteenth entry has its whole key; where these stand is said at the end: the offset of each
//! and how many there are, in four bytes each, little endian.

use std::sync::Arc;

use super::format::{Malformed, length, put_varint, u32_at};

/// After so many entries there is a whole key.
const WHOLE_KEY_EVERY: u32 = 16;

/// Collects entries in order.
#[derive(Default, Debug)]
pub(super) struct Builder {
    bytes: Vec<u8>,
    whole: Vec<u32>,
    entries: u32,
    last_key: Vec<u8>,
}

impl Builder {
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        let shared = if self.entries.is_multiple_of(WHOLE_KEY_EVERY) {
            let at = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
            self.whole.push(at);
            0
        } else {
            let pairs = self.last_key.iter().zip(key);
            pairs.take_while(|(before, now)| before == now).count()
        };
        put_varint(&mut self.bytes, shared as u64);
        put_varint(&mut self.bytes, (key.len() - shared) as u64);
        put_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(&key[shared..]);
        self.bytes.extend_from_slice(value);
        self.entries += 1;
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() + 4 * self.whole.len() + 4
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    pub(super) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// The body, and a fresh start.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let whole = u32::try_from(self.whole.len()).unwrap_or(u32::MAX);
        for at in self.whole.drain(..).chain([whole]) {
            bytes.extend_from_slice(&at.to_le_bytes());
        }
        self.entries = 0;
        self.last_key.clear();
        bytes
    }
}

/// The body of a frame with sorted entries.
#[derive(Debug)]
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Where the body begins in the bytes.
    begin: usize,
    entries_end: usize,
    whole: usize,
    /// Where the frame stands in its file, for messages.
    pub(super) offset: u64,
}

impl Block {
    /// Takes a frame whose body begins at `begin`.
    pub(super) fn new(bytes: Vec<u8>, begin: usize, offset: u64) -> Result<Self, Malformed> {
        let body = bytes.get(begin..).ok_or(Malformed)?;
        let count_at = body.len().checked_sub(4).ok_or(Malformed)?;
        let whole = u32_at(body, count_at) as usize;
        let entries_end = whole
            .checked_mul(4)
            .and_then(|bytes| count_at.checked_sub(bytes))
            .ok_or(Malformed)?;
        if (whole == 0) != (entries_end == 0) {
            return Err(Malformed);
        }
        Ok(Self {
            bytes,
            begin,
            entries_end,
            whole,
            offset,
        })
    }

    /// About how much memory it takes.
    pub(super) fn weight(&self) -> usize {
        self.bytes.capacity() + size_of::<Self>()
    }

    fn entries(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.entries_end]
    }

    /// Where the entry number `index` of those with a whole key stands.
    fn whole_at(&self, index: usize) -> usize {
        u32_at(&self.bytes, self.begin + self.entries_end + 4 * index) as usize
    }

    fn whole_key(&self, index: usize) -> Result<&[u8], Malformed> {
        let entries = self.entries();
        let mut at = self.whole_at(index);
        let shared = length(entries, &mut at)?;
        let unshared = length(entries, &mut at)?;
        length(entries, &mut at)?;
        if shared != 0 {
            return Err(Malformed);
        }
        entries.get(at..at + unshared).ok_or(Malformed)
    }
}

/// A position in a block.
#[derive(Debug)]
pub(super) struct Entries {
    block: Arc<Block>,
    /// Where the next entry stands.
    next: usize,
    key: Vec<u8>,
    value: (usize, usize),
}

impl Entries {
    /// Before the first entry.
    pub(super) fn new(block: Arc<Block>) -> Self {
        Self {
            block,
            next: 0,
            key: Vec::new(),
            value: (0, 0),
        }
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.block.entries()[self.value.0..self.value.1]
    }

    pub(super) fn offset(&self) -> u64 {
        self.block.offset
    }

    /// Goes to the next entry. False at the end.
    pub(super) fn advance(&mut self) -> Result<bool, Malformed> {
        let entries = self.block.entries();
        let mut at = self.next;
        if at >= entries.len() {
            return Ok(false);
        }
        let shared = length(entries, &mut at)?;
        let unshared = length(entries, &mut at)?;
        let value = length(entries, &mut at)?;
        let value_at = at + unshared;
        if shared > self.key.len() || value_at + value > entries.len() {
            return Err(Malformed);
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(&entries[at..value_at]);
        self.value = (value_at, value_at + value);
        self.next = value_at + value;
        Ok(true)
    }

    /// Goes to the first entry whose key is not less than `target`. False if there is none.
    pub(super) fn seek(&mut self, target: &[u8]) -> Result<bool, Malformed> {
        // The last whole key before the target.
        let (mut low, mut high) = (0, self.block.whole);
        while low < high {
            let middle = low.midpoint(high);
            if self.block.whole_key(middle)? < target {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.key.clear();
        self.next = match low.checked_sub(1) {
            Some(index) => self.block.whole_at(index),
            None => 0,
        };
        while self.advance()? {
            if self.key.as_slice() >= target {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
