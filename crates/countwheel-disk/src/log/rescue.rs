//! Flushes a segment of which a part cannot be read: by name, not frame by frame.
//!
//! The memtable has, for each name, where its bytes stand and what the indexes say of it. So
//! every record that can be read is flushed, whatever stands before it in the segment, and of one that
//! cannot be read the sorted store gets that: the name stays taken, its state is counted, and
//! whoever asks for it is told. What was there before it must not come back.

use parking_lot::RwLockReadGuard;

use super::flush::{Current, MARKED_AT_ONCE};
use super::memtable::{LogPlace, Memtable};
use super::segment::Segment;
use super::{LogStore, damaged, refused};
use crate::codec::{CodecError, Indexed};
use crate::planted::planted;
use crate::{DiskError, Shard, Sorted, StoreError};
use crate::{Trouble, TroubleReason};

impl<B: Sorted> LogStore<B> {
    /// What of the segment is current, marked, of a segment that cannot be read for `error`.
    ///
    /// `None` if the system gives back nothing of it, or nothing any more, and there is room for more
    /// commits: then it is more than a damaged segment, and perhaps not for good, so the segment is
    /// better kept as it is.
    ///
    /// # Errors
    /// That one, if the system gives back nothing (more) and no commit has room without this segment's.
    pub(super) fn rescue(
        &self,
        segment: &Segment,
        error: StoreError,
    ) -> Result<Option<Current>, StoreError> {
        let mut current = Current::default();
        let (mut lost, mut refused) = (0_u64, 0_u64);
        // What was read last.
        let mut read: Option<LogPlace> = None;
        let shards: Vec<Shard> = self.state().shards.keys().copied().collect();
        for shard in shards {
            let mut from = 0;
            loop {
                let state = self.state();
                let slots = state.shards.get(&shard).map_or(0, Memtable::slots);
                let end = slots.min(from + AT_ONCE);
                if let Some(memtable) = state.shards.get(&shard) {
                    for slot in (from..end).filter(|&slot| memtable.is_in(slot, segment.number)) {
                        match self.rescue_one(segment, shard, memtable, slot, &mut current) {
                            Rescued::Record => read = Some(memtable.slot(slot).at),
                            Rescued::Lost { was_refused } => {
                                lost += 1;
                                refused += u64::from(was_refused);
                            }
                            Rescued::Removal => {}
                        }
                    }
                }
                RwLockReadGuard::unlock_fair(state);
                self.mark(&mut current);
                let nothing_yet = read.is_none() && refused >= REFUSED_MAX && refused == lost;
                if end >= slots || nothing_yet {
                    break;
                }
                from = end;
            }
        }
        // A system that does not give back what it gave a moment ago has fallen silent meanwhile.
        let is_silent = || match read {
            Some(at) => segment
                .file
                .read_at(at.offset, &mut vec![0; at.len as usize])
                .is_err(),
            None => refused == lost,
        };
        let is_refused = refused > 0 && is_silent();
        if is_refused && self.needs_way() {
            return Err(error);
        }
        let path = self.files.path().join(segment.name());
        let mut trouble = Trouble::of(TroubleReason::UnreadableSegment, &error);
        trouble.path = Some(path.clone());
        let detail = &mut trouble.detail;
        if is_refused {
            *detail += "; it stays in the log as long as there is room for more";
        } else {
            *detail = format!("{detail}; records that are lost: {lost}");
            self.troubles.clear_file(&path);
        }
        if self.troubles.note(trouble.clone()) {
            tracing::error!(%trouble, "a segment of the log cannot be read; everything else goes on");
        }
        Ok((!is_refused).then_some(current))
    }

    /// Adds what a slot stands for.
    fn rescue_one(
        &self,
        segment: &Segment,
        shard: Shard,
        memtable: &Memtable,
        slot: u32,
        current: &mut Current,
    ) -> Rescued {
        let at = memtable.slot(slot).at;
        let Some(name) = memtable.name(slot) else {
            return Rescued::Removal;
        };
        let key = (name.queue.as_str(), name.key.as_str());
        let Some(indexed) = memtable.indexed(slot) else {
            current.add(shard, slot, at, None);
            current.flushed.push(shard, key, None);
            return Rescued::Removal;
        };
        // It is for good: a read that fails once is not enough.
        let mut read = self.reread(segment, at, key, indexed);
        for _ in 1..TRIES {
            read = read.or_else(|_| self.reread(segment, at, key, indexed));
        }
        let was_refused = matches!(read, Err(StoreError::Disk(DiskError::Io { .. })));
        if read.is_err() && planted!(FlushForgetsUnreadable) {
            return Rescued::Lost { was_refused };
        }
        let wake = indexed.wake.map(|wake| (indexed.clock, wake));
        current.add(shard, slot, at, wake);
        if let Ok(record) = &read {
            current.flushed.push(shard, key, Some(record));
            return Rescued::Record;
        }
        current.flushed.push_unreadable(shard, key, indexed);
        Rescued::Lost { was_refused }
    }

    /// The bytes of a record, if they are those that the memtable speaks of.
    fn reread(
        &self,
        segment: &Segment,
        at: LogPlace,
        key: (&str, &str),
        indexed: Indexed,
    ) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; at.len as usize];
        let read = segment.file.read_at(at.offset, &mut bytes);
        read.map_err(|source| refused(&*self.files, segment, source))?;
        let found = Indexed::named(&bytes);
        let fits = found.and_then(|found| {
            if found == (key, indexed) {
                return Ok(());
            }
            Err(CodecError::Key)
        });
        fits.map_err(|error| damaged(&*self.files, segment, at.offset, &error))?;
        Ok(bytes)
    }
}

/// What became of a slot.
enum Rescued {
    Record,
    /// Its record cannot be read: the system refuses, or the bytes are others.
    Lost {
        was_refused: bool,
    },
    /// A removal, which is in memory.
    Removal,
}

/// Once the system has refused so many records, and given back none, the others are not tried.
const REFUSED_MAX: u64 = 64;

/// So often a record is read before it is taken for lost.
const TRIES: usize = 3;

/// So many slots are looked at while commits wait.
#[expect(clippy::cast_possible_truncation, reason = "it is small")]
const AT_ONCE: u32 = MARKED_AT_ONCE as u32;
