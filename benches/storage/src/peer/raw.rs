//! The limit: append and sync, and nothing else.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{bail, ensure};

use super::{Found, Peer, Visit};
use crate::item::{Item, Op, PLACE_BYTES, VALUE_BYTES};

/// How the file comes to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// It gets longer with each write.
    Growing,
    /// It was written with zeros before, and is written again from its beginning when full.
    Preallocated,
}

const PREALLOCATED_BYTES: u64 = 256 << 20;

const MAGIC: &[u8; 4] = b"RAWF";
/// Magic, inserted, delivered, and how many were inserted before.
const HEAD_BYTES: usize = 4 + 4 + 4 + 8;
/// A record once: its place and its value.
const RECORD_BYTES: usize = PLACE_BYTES + VALUE_BYTES;

pub(crate) struct Raw {
    file: File,
    shape: Shape,
    offset: u64,
    inserted: u64,
    /// Where the records are that this opening found.
    found: HashMap<u64, u64>,
    /// How many were inserted before the first of those.
    overwritten: u64,
    buffer: Vec<u8>,
}

struct Head {
    inserts: u32,
    deliveries: u32,
    before: u64,
}

impl Raw {
    pub(crate) fn open(directory: &Path, shape: Shape) -> anyhow::Result<Self> {
        let path = directory.join("raw");
        let is_new = !path.exists();
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)?;
        if is_new && shape == Shape::Preallocated {
            let zeros = vec![0; 1 << 20];
            for at in (0..PREALLOCATED_BYTES).step_by(zeros.len()) {
                file.write_all_at(&zeros, at)?;
            }
        }
        file.sync_all()?;
        File::open(directory)?.sync_all()?;
        let mut raw = Self {
            file,
            shape,
            offset: 0,
            inserted: 0,
            found: HashMap::new(),
            overwritten: 0,
            buffer: Vec::new(),
        };
        raw.read()?;
        Ok(raw)
    }

    /// Finds the frames of the last time through the file.
    fn read(&mut self) -> anyhow::Result<()> {
        let len = self.file.metadata()?.len();
        let mut first = true;
        while self.offset + HEAD_BYTES as u64 <= len {
            let mut head = [0; HEAD_BYTES];
            self.file.read_exact_at(&mut head, self.offset)?;
            let Some(head) = Head::read(&head) else { break };
            if first {
                self.overwritten = head.before;
            } else if head.before != self.inserted {
                break;
            }
            first = false;
            let mut at = self.offset + HEAD_BYTES as u64;
            for _ in 0..head.inserts {
                let mut id = [0; 8];
                // The id is the end of the place.
                self.file
                    .read_exact_at(&mut id, at + PLACE_BYTES as u64 - 8)?;
                self.found.insert(u64::from_be_bytes(id), at);
                at += RECORD_BYTES as u64;
            }
            self.offset = at + u64::from(head.deliveries) * PLACE_BYTES as u64;
            self.inserted = head.before + u64::from(head.inserts);
        }
        Ok(())
    }
}

impl Head {
    fn read(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let number = |from: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[from..from + 4]);
            u32::from_le_bytes(four)
        };
        (&bytes[..4] == MAGIC).then(|| Self {
            inserts: number(4),
            deliveries: number(8),
            before: u64::from(number(16)) << 32 | u64::from(number(12)),
        })
    }
}

impl Peer for Raw {
    fn commit(&mut self, ops: &[Op]) -> anyhow::Result<()> {
        self.buffer.clear();
        self.buffer.resize(HEAD_BYTES, 0);
        let mut inserts = 0_u32;
        for op in ops {
            if let Op::Insert(item) = op {
                self.buffer.extend_from_slice(&item.place());
                self.buffer.extend_from_slice(&item.value());
                inserts += 1;
            }
        }
        let mut deliveries = 0_u32;
        for op in ops {
            match op {
                Op::Insert(_) => {}
                Op::Deliver(item) => {
                    self.buffer.extend_from_slice(&item.place());
                    deliveries += 1;
                }
                Op::Move(_) | Op::Remove(_) => bail!("a file finds nothing by its key"),
            }
        }
        self.buffer[..4].copy_from_slice(MAGIC);
        self.buffer[4..8].copy_from_slice(&inserts.to_le_bytes());
        self.buffer[8..12].copy_from_slice(&deliveries.to_le_bytes());
        self.buffer[12..20].copy_from_slice(&self.inserted.to_le_bytes());
        let end = self.offset + self.buffer.len() as u64;
        if self.shape == Shape::Preallocated && end > PREALLOCATED_BYTES {
            ensure!(self.offset > 0, "a batch does not fit the file");
            self.offset = 0;
        }
        self.file.write_all_at(&self.buffer, self.offset)?;
        self.file.sync_data()?;
        self.offset += self.buffer.len() as u64;
        self.inserted += u64::from(inserts);
        Ok(())
    }

    fn get(&mut self, item: Item) -> anyhow::Result<Option<Found>> {
        let Some(&at) = self.found.get(&item.id) else {
            return Ok(None);
        };
        let mut record = [0; RECORD_BYTES];
        self.file.read_exact_at(&mut record, at)?;
        let (place, value) = record.split_at(PLACE_BYTES);
        Ok(Item::payload_in(value).map(|payload| Found {
            due_ms: Item::due_in(place),
            payload: payload.to_vec(),
        }))
    }

    fn scan(&mut self, _: u64, _: Visit<'_>) -> anyhow::Result<()> {
        bail!("a file has no order")
    }

    fn count(&mut self) -> anyhow::Result<u64> {
        Ok(self.inserted)
    }

    fn overwritten(&self) -> u64 {
        self.overwritten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: u64) -> Item {
        Item { id, due_ms: id * 3 }
    }

    fn insert(raw: &mut Raw, ids: std::ops::Range<u64>) {
        let ops: Vec<Op> = ids.map(|id| Op::Insert(item(id))).collect();
        raw.commit(&ops).unwrap();
    }

    #[test]
    fn what_was_appended_is_found_again() {
        for shape in [Shape::Growing, Shape::Preallocated] {
            let directory = tempfile::tempdir().unwrap();
            let mut raw = Raw::open(directory.path(), shape).unwrap();
            insert(&mut raw, 0..3);
            raw.commit(&[Op::Deliver(item(1)), Op::Insert(item(3))])
                .unwrap();
            insert(&mut raw, 4..5);
            drop(raw);
            let mut raw = Raw::open(directory.path(), shape).unwrap();
            assert_eq!(raw.count().unwrap(), 5);
            let found = raw.get(item(3)).unwrap().unwrap();
            assert_eq!(found.due_ms, Some(9));
            assert_eq!(found.payload, item(3).payload());
            assert_eq!(raw.get(item(5)).unwrap(), None);
        }
    }

    #[test]
    fn a_file_written_again_from_its_beginning_knows_what_it_lost() {
        let directory = tempfile::tempdir().unwrap();
        let mut raw = Raw::open(directory.path(), Shape::Preallocated).unwrap();
        insert(&mut raw, 0..3);
        raw.offset = PREALLOCATED_BYTES - 1;
        insert(&mut raw, 3..5);
        drop(raw);
        let mut raw = Raw::open(directory.path(), Shape::Preallocated).unwrap();
        assert_eq!((raw.overwritten(), raw.count().unwrap()), (3, 5));
        assert!(raw.get(item(2)).unwrap().is_none());
        assert!(raw.get(item(4)).unwrap().is_some());
    }
}
