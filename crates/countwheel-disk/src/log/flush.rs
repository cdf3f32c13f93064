//! What keeps a log short: full segments are flushed to the sorted store, and spares are made.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

use super::batch::{self, Changes, Logged, Part};
use super::low_water::Earliest;
use super::memtable::LogPlace;
use super::segment::{Frame, Segment, sealed_len};
use super::supply::{self, Spare, Trouble};
use super::{LogStore, damaged, io_error};
use crate::codec::{self, CodecError, Indexed};
use crate::files::is_full;
use crate::planted::planted;
use crate::sorted::{keep, share};
use crate::{DiskError, Flushed, Shard, Sorted, StoreError};
use crate::{DueClock, QueueName, TimerName, Wake};

/// What became of something that keeps a log short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It was done, and there may be more.
    More,
    /// There is nothing to do until something changes.
    Nothing,
    /// It could not be done, and is tried again after a while.
    Later,
}

impl Step {
    /// Of something that says whether there may be more.
    pub(super) fn of(more: bool) -> Self {
        if more { Self::More } else { Self::Nothing }
    }
}

/// So many names are looked up, marked or forgotten while commits wait.
pub(super) const MARKED_AT_ONCE: usize = 1_024;
/// A low-water mark goes by so many pages of what was delivered between two steps of a merge: 65,536
/// entries.
const PAGES_AT_ONCE: usize = 64;

/// About how much of a flush is done, as a share of 1, once it is known what is current; and once
/// the sorted store has it all.
const COLLECTED: f64 = 0.25;
const TAKEN_IN: f64 = 0.9;

/// What is current of a segment.
#[derive(Default)]
pub(super) struct Current {
    pub(super) flushed: Flushed,
    /// For each change that is flushed: in which slot of which memtable it is, and what stands for it.
    slots: Vec<(Shard, u32, LogPlace)>,
    /// How many of them are marked.
    marked: usize,
    /// The earliest wakes of all that were looked up.
    earliest: Vec<Earliest>,
}

impl Current {
    /// Notes that what stands at `at` flushes.
    pub(super) fn add(
        &mut self,
        shard: Shard,
        slot: u32,
        at: LogPlace,
        wake: Option<(DueClock, Wake)>,
    ) {
        self.slots.push((shard, slot, at));
        self.wakes(shard, wake);
    }

    fn wakes(&mut self, shard: Shard, wake: Option<(DueClock, Wake)>) {
        let Some((clock, wake)) = wake else { return };
        let same = |(s, c, _): &&mut Earliest| *s == shard && *c == clock;
        match self.earliest.iter_mut().find(same) {
            Some((_, _, earliest)) => *earliest = wake.min(*earliest),
            None => self.earliest.push((shard, clock, wake)),
        }
    }
}

impl<B: Sorted> LogStore<B> {
    /// Flushes what is current of the oldest full segment to the sorted store, and frees the
    /// segment. False if no segment is full, or if the system gives back nothing of that one and
    /// there is room to wait until it does.
    ///
    /// Commits and reads go on meanwhile. In memory is what of one segment is current.
    ///
    /// # Errors
    /// [`StoreError`] if the sorted store or the system fails. After [`DiskError::Full`] it can be
    /// tried again. A record that cannot be read any more is no error: it is flushed as one that is
    /// unreadable.
    pub fn flush_oldest(&self) -> Result<bool, StoreError> {
        self.try_flush().map(|flushed| flushed == Step::More)
    }

    pub(super) fn try_flush(&self) -> Result<Step, StoreError> {
        let _one_at_a_time = self.flushing.lock();
        let mut writer = self.writer()?;
        self.must_be_there(&mut writer)?;
        let active = writer.active.number;
        drop(writer);
        let oldest = self.state().segments.values().next().cloned();
        let Some(segment) = oldest.filter(|segment| segment.number < active) else {
            return Ok(Step::Nothing);
        };
        // What was taken in before, but not freed, is not taken in again.
        if segment.number > self.base.ingested() {
            self.watch.begins(self.names_and_segments().0);
            if !planted!(CountsFlushUncopied) {
                self.copy_counts(segment.number)?;
            }
            let Current {
                mut flushed,
                slots,
                earliest,
                ..
            } = match self.collect(&segment) {
                Err(error) if error.is_unreadable() => match self.rescue(&segment, error)? {
                    Some(rescued) => rescued,
                    None => return Ok(Step::Later),
                },
                collected => {
                    let collected = collected?;
                    // It may have been refused before.
                    let path = self.files.path().join(segment.name());
                    self.troubles.clear_file(&path);
                    collected
                }
            };
            // What was replaced up to here is not flushed: without the commits up to here, what is
            // taken in would be what never was.
            flushed.follows(self.writer()?.last_commit());
            let hidden = self.hide(&mut flushed);
            self.flushes(earliest);
            let watch = Arc::clone(&self.watch);
            flushed.heard_by(Arc::new(move |taken_in| {
                watch.tell(COLLECTED + (TAKEN_IN - COLLECTED) * taken_in);
            }));
            if let Err(error) = self.base.ingest(segment.number, flushed) {
                self.flushes_no_more();
                return Err(error);
            }
            if hidden {
                let mut state = self.state_mut();
                let tables = state.shards.values_mut();
                tables.for_each(|memtable| memtable.not_hidden.clear());
            }
            for (at, some) in (0..).zip(slots.chunks(MARKED_AT_ONCE)) {
                let forgotten = share(at * MARKED_AT_ONCE as u64, slots.len() as u64);
                self.watch.tell(TAKEN_IN + (1.0 - TAKEN_IN) * forgotten);
                let mut state = self.state_mut();
                for &(shard, slot, at) in some {
                    if let Some(memtable) = state.shards.get_mut(&shard) {
                        memtable.forget(slot, at);
                    }
                }
                RwLockWriteGuard::unlock_fair(state);
            }
            self.flushes_no_more();
        }
        self.free(&segment)?;
        Ok(Step::More)
    }

    /// Sees to it that the log has a copy of the counts behind this segment, which goes. With few queues
    /// the next segment begins with one. Otherwise it is made in pieces, each a frame of its own, so
    /// that no commit waits for more than one of them.
    fn copy_counts(&self, segment: u64) -> Result<(), StoreError> {
        let mut part = Part {
            is_first: true,
            ..Part::default()
        };
        if self.writer()?.copied > segment {
            return Ok(());
        }
        let (mut begins_in, mut bytes) = (None, 0);
        let shards = self.shards();
        for (at, &shard) in shards.iter().enumerate() {
            let mut after: Option<QueueName> = None;
            part.begins = true;
            part.ends = false;
            while !part.ends {
                let mut writer = self.writer()?;
                let state = self.state();
                let memtable = state.shards.get(&shard);
                let most = self.options.counts_at_once.max(1);
                let mut counts = memtable.map_or_else(Vec::new, |memtable| {
                    memtable.counts_after(after.as_ref(), most)
                });
                drop(state);
                part.ends = counts.len() < most;
                part.is_last = part.ends && at + 1 == shards.len();
                after = counts.last().map(|last| last.queue.clone());
                if planted!(CopyForgetsQueue) {
                    counts.pop();
                }
                batch::begin(&mut writer.frame, shard);
                batch::encode_counts(&mut writer.frame, part, &counts);
                // However many names are in the memtable: without it none of them is flushed. What is
                // set aside is for removals.
                let is_capped = std::mem::replace(&mut writer.supply.capped, false);
                writer.supply.keeps_reserve = true;
                bytes += sealed_len(writer.frame.len());
                let appended = self.append(&mut writer);
                writer.supply.keeps_reserve = false;
                writer.supply.capped = is_capped;
                let (number, _) = appended?;
                begins_in.get_or_insert(number);
                if part.is_last {
                    writer.copied = writer.copied.max(begins_in.unwrap_or(number));
                    self.state_mut().copy_bytes = bytes;
                }
                (part.is_first, part.begins) = (false, false);
                // A commit that waits comes before the next piece.
                MutexGuard::unlock_fair(writer);
            }
        }
        Ok(())
    }

    /// Adds removals for the names that the log hides as long as the segment is in it. What is in
    /// the memtable of them hides the removal in turn; what is flushed itself needs none. Says whether
    /// there are any.
    fn hide(&self, flushed: &mut Flushed) -> bool {
        let state = self.state();
        let shards = state.shards.iter();
        let names = shards.flat_map(|(&shard, memtable)| {
            let is_in_memtable = |name: &&TimerName| memtable.get(name).is_some();
            let names = memtable.not_hidden.iter().filter(is_in_memtable);
            names.map(move |name| (shard, name.clone()))
        });
        let names: Vec<_> = names.collect();
        drop(state);
        if names.is_empty() || planted!(FlushHidesNothing) {
            return false;
        }
        let keys = (0..flushed.len()).map(|at| flushed.change(at).0.to_vec());
        let keys: HashSet<Vec<u8>> = keys.collect();
        for (shard, name) in &names {
            if !keys.contains(codec::timer_key(*shard, name).as_slice()) {
                let name = (name.queue.as_str(), name.key.as_str());
                flushed.push(*shard, name, None);
            }
        }
        true
    }

    /// Begins the next segment, so that what was committed so far can be flushed. False if nothing
    /// was committed in the last one.
    ///
    /// # Errors
    /// [`DiskError::Full`] if there is no room for one, and nothing was changed;
    /// [`DiskError::Io`] if the system refuses, [`StoreError::Poisoned`] if it did before.
    pub fn seal(&self) -> Result<bool, StoreError> {
        let mut writer = self.writer()?;
        if writer.is_empty() {
            return Ok(false);
        }
        self.must_be_there(&mut writer)?;
        // However many there are: without it nothing of this one can be flushed.
        writer.supply.capped = false;
        let begun = writer.begin_next(&self.state(), 0);
        let segment = self.judged(&mut writer, begun)?;
        self.begun(&mut writer, segment)?;
        Ok(true)
    }

    /// Makes a spare segment, if one is missing, so that no commit has to. False if none is.
    /// Commits go on meanwhile.
    ///
    /// # Errors
    /// [`DiskError::Full`] if the disk is; once it is not, a call that succeeds makes room
    /// known again. [`DiskError::Io`] if the system refuses otherwise.
    pub fn prepare(&self) -> Result<bool, StoreError> {
        self.look_for_room()?;
        self.make_spares(true)
    }

    /// Does a piece of the sorted store's compaction, [`Sorted::compact`], and advances the low-water
    /// marks past some of what was delivered, so that whoever begins to read need not go by it.
    /// Says whether more is left.
    ///
    /// # Errors
    /// As [`Sorted::compact`].
    pub fn compact(&self) -> Result<bool, StoreError> {
        let mut is_more = true;
        for _ in 0..PAGES_AT_ONCE {
            let advance = || match self.advance_low_water() {
                // Whoever asks for it is told; the mark can wait.
                Err(error) if error.is_unreadable() => Ok(false),
                advanced => advanced,
            };
            is_more = is_more && !self.is_stopped() && advance()?;
        }
        self.must_be_there(&mut *self.writer()?)?;
        let compacted = self.base.compact();
        if matches!(compacted, Ok(true)) && self.base.is_behind() {
            self.watch.catches_up(self.base.step_share());
        }
        if !matches!(compacted, Ok(false)) {
            // It may have been behind; and if there is no room to catch up, nobody waits for it.
            self.has_changed();
        }
        Ok(compacted? || is_more)
    }

    /// Makes spares until there are those of the reserve, and, if it is asked for, one for the next
    /// segment.
    pub(super) fn make_spares(&self, ordinary: bool) -> Result<bool, StoreError> {
        let mut any = false;
        loop {
            let mut writer = self.writer()?;
            self.must_be_there(&mut writer)?;
            let missing = writer.supply.missing(ordinary);
            let Some(len) = missing.filter(|_| !writer.supply.capped) else {
                if missing.is_none() {
                    // Shorter ones do, and nobody makes one, which would find out.
                    self.full_disk.made(false);
                }
                return Ok(any);
            };
            let name = writer.supply.spare_name();
            drop(writer);
            let made = supply::make(&*self.files, &name, len);
            let mut writer = self.writer()?;
            let is_full = made.as_ref().is_err_and(is_full);
            // What can be flushed gives back a segment of its length.
            let is_flushed = || self.state().segments.len() <= 1;
            if is_full && is_flushed() && writer.supply.shorten() {
                continue;
            }
            self.full_disk.made(is_full);
            if is_full {
                // A flush may give a segment back. Who flushes may sleep, and no commit comes that would
                // wake it.
                drop(writer);
                self.has_changed();
                writer = self.writer()?;
            }
            made.map_err(|error| Trouble::from(error).error(&*self.files))?;
            writer.supply.add(Spare { name, len });
            writer.supply.zeros += len;
            let superfluous = writer.supply.superfluous();
            drop(writer);
            any = true;
            if let Some(Spare { name, .. }) = superfluous
                && let Err(error) = self.files.remove(&name)
            {
                // The next opening does.
                tracing::warn!(name, %error, "a spare that is too short could not be removed");
            }
        }
    }

    /// Whether an ordinary commit finds room.
    pub(super) fn has_room_left(&self) -> bool {
        let is_capped = self.is_stuck() && self.is_over();
        !is_capped && !self.full_disk.takes_no_commit() && self.writer_whatever().supply.has_room()
    }

    /// What of the segment is current, marked.
    fn collect(&self, segment: &Segment) -> Result<Current, StoreError> {
        let mut current = Current::default();
        let mut body = Vec::new();
        let on_error = |source| io_error(&*self.files, source);
        let snapshot = segment.read_frame(super::segment::FRAMES_BEGIN, &mut body);
        let mut at = snapshot.map_err(on_error)?.map(|frame| frame.end);
        let mut commit = segment.first_commit;
        while let Some(offset) = at {
            let frame = segment.read_frame(offset, &mut body).map_err(on_error)?;
            // Behind the last may stand anything: what was torn, or of an earlier life.
            let frame = frame.filter(|frame| frame.commit == commit);
            at = frame.map(|frame| frame.end);
            if let Some(frame) = frame {
                commit += 1;
                self.look_up(segment, frame, &body, &mut current)
                    .map_err(|error| damaged(&*self.files, segment, frame.body_at, &error))?;
                self.watch.tell(COLLECTED * share(frame.end, segment.len));
            }
            if at.is_none() || current.slots.len() - current.marked >= MARKED_AT_ONCE {
                self.mark(&mut current);
            }
        }
        // The next segment, which is there, knows how many there were.
        let state = self.state();
        let next = state.segments.get(&(segment.number + 1));
        if next.is_none_or(|next| next.first_commit != commit) {
            return Err(DiskError::Corrupt {
                path: self.files.path().join(segment.name()),
                problem: format!("commit {commit} cannot be read any more"),
            }
            .into());
        }
        Ok(current)
    }

    /// Adds what is current of a frame.
    fn look_up(
        &self,
        segment: &Segment,
        frame: Frame,
        body: &[u8],
        current: &mut Current,
    ) -> Result<(), CodecError> {
        let mut changes = Changes::of(body)?;
        let place = |at: usize, len: usize| LogPlace {
            segment: segment.number,
            offset: frame.body_at + at as u64,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        };
        let mut is_left = true;
        while is_left {
            let state = self.state();
            for _ in 0..MARKED_AT_ONCE {
                let Some(change) = changes.next()? else {
                    is_left = false;
                    break;
                };
                let shard = changes.shard;
                let Some(memtable) = state.shards.get(&shard) else {
                    continue;
                };
                if shard.is_reserved() && planted!(LogForgetsSettingsAtFlush) {
                    continue;
                }
                let (name, at, record, wake) = match change {
                    Logged::Put { record, at, .. } => {
                        let (name, indexed) = Indexed::named(record)?;
                        let wake = indexed.wake.map(|wake| (indexed.clock, wake));
                        (name, place(at, record.len()), Some(record), wake)
                    }
                    Logged::Remove { queue, key, at, .. } => {
                        ((queue, key), place(at, 0), None, None)
                    }
                    Logged::Given(_)
                    | Logged::Fence(_)
                    | Logged::LowWater(_)
                    | Logged::Clock(_)
                    | Logged::Counts(_) => continue,
                };
                if let Some(slot) = memtable.current(name.0, name.1, at) {
                    current.flushed.push(shard, name, record);
                    current.add(shard, slot, at, wake);
                }
            }
            RwLockReadGuard::unlock_fair(state);
        }
        Ok(())
    }

    /// Marks those that are not yet. What is not current any more is left out.
    pub(super) fn mark(&self, current: &mut Current) {
        let from = current.marked;
        let mut marked = Vec::with_capacity(current.slots.len() - from);
        for some in current.slots[from..].chunks(MARKED_AT_ONCE) {
            // With the writer held: a commit whose frame is written has changed the memtable, and
            // the next one sees the marks. Commits wait at the gate until this one is through.
            let gate = self.gate.lock();
            let writer = self.writer_whatever();
            drop(gate);
            let mut state = self.state_mut();
            marked.extend(some.iter().map(|&(shard, slot, at)| {
                let memtable = state.shards.get_mut(&shard);
                memtable.is_some_and(|memtable| memtable.mark(slot, at))
            }));
            drop(state);
            drop(writer);
        }
        current.flushed.keep(from, &marked);
        keep(&mut current.slots, from, &marked);
        current.marked = current.slots.len();
    }

    /// Nothing of the segment is needed any more.
    fn free(&self, segment: &Segment) -> Result<(), StoreError> {
        // A reader holds the state while it reads.
        self.state_mut().segments.remove(&segment.number);
        let mut writer = self.writer()?;
        let supply = &mut writer.supply;
        let is_kept = supply.keeps(segment.len);
        let spare = is_kept.then(|| supply.spare_name());
        drop(writer);
        let name = segment.name();
        let renamed = spare.as_ref().map(|spare| self.files.rename(&name, spare));
        let (freed, spare) = match renamed {
            // There is always room for a name less.
            Some(Err(error)) if is_full(&error) => (self.files.remove(&name), None),
            Some(renamed) => (renamed, spare),
            None => (self.files.remove(&name), None),
        };
        // It has lost its name for good before it is written again.
        let freed = freed.and_then(|()| self.files.sync());
        let mut writer = self.writer_whatever();
        self.judged(&mut writer, freed.map_err(Trouble::Io))?;
        if let Some(name) = spare {
            let len = segment.len;
            writer.supply.add(Spare { name, len });
        }
        writer.supply.capped = false;
        if writer.supply.missing(true).is_none() {
            self.full_disk.made(false); // nobody makes one, which would find out
        }
        drop(writer);
        self.flushed();
        Ok(())
    }
}
