//! The end of the log: appends commits, and begins the next segment when one is full.

use std::io;

use super::batch::{self, Form, Replaces};
use super::segment::{FRAME_HEADER, Segment, sealed_len};
use super::supply::{Supply, Trouble};
use super::{LogStats, State};
use crate::Reached;
use crate::files::is_full;
use crate::planted::planted;
use crate::sorted::share;

/// A buffer that is larger than this is not kept for the next commit.
const BUFFER_KEPT: usize = 4 << 20;

/// What a device gets at least of what is written.
const PAGE_BYTES: u64 = 4_096;

/// The end of the log.
pub(super) struct Writer {
    pub(super) active: Segment,
    /// What the file of the active segment is, by its name.
    pub(super) identity: Option<(u64, u64)>,
    /// The active segment has no commits, and may lose its name: it must not get any.
    pub(super) unsure: bool,
    /// The last checkpoint that this opening wrote.
    pub(super) checkpoint: Option<Reached>,
    /// In which segment the last copy of the counts begins that is whole.
    pub(super) copied: u64,
    /// With more queues than this, a segment does not begin with all counts.
    pub(super) counts_whole: usize,
    /// Where the first commit of the active segment goes.
    pub(super) begins_at: u64,
    /// Where the next frame goes.
    pub(super) offset: u64,
    pub(super) next_commit: u64,
    /// Changes that the active segment has, of those since the opening, and how many are enough.
    pub(super) changes: usize,
    pub(super) changes_max: usize,
    pub(super) supply: Supply,
    pub(super) poisoned: bool,
    /// The frame of the commit that is being made.
    pub(super) frame: Vec<u8>,
    pub(super) snapshot: Vec<u8>,
    /// The commits in it, and how many of these are.
    pub(super) parts: Vec<Part>,
    pub(super) parts_used: usize,
    /// But for the zeros, which the supply counts.
    pub(super) stats: LogStats,
}

/// What stands in a frame for one commit.
#[derive(Default)]
pub(super) struct Part {
    /// Which of those that were asked for.
    pub(super) asked: usize,
    /// For each change.
    pub(super) places: Vec<Written>,
    /// For each change in the shard of the settings.
    pub(super) beside: Vec<Written>,
    /// Whether it says where a low-water mark stands.
    pub(super) notes: bool,
}

/// What stands in a frame for one change.
#[derive(Default)]
pub(super) struct Written {
    pub(super) replaces: Replaces,
    /// Where in the body, and how long it is.
    pub(super) at: usize,
    pub(super) len: usize,
    /// By what the shard's memtable finds the name.
    pub(super) hash: u64,
    /// Where it was found.
    pub(super) slot: Option<u32>,
}

impl Writer {
    /// Makes sure that the frame has room behind the last commit. Returns the segment that was
    /// begun for it.
    ///
    /// A segment with many small records ends early, since it is flushed as a whole.
    pub(super) fn make_room(&mut self, state: &State) -> Result<Option<Segment>, Trouble> {
        let needed = sealed_len(self.frame.len());
        let fits = !self.unsure && self.offset + needed <= self.active.frames_end;
        if fits && (self.changes < self.changes_max || !self.supply.has_room()) {
            return Ok(None);
        }
        // A shorter one was made before the last that filled.
        let is_filled = !self.unsure && self.active.len >= self.supply.len;
        match self.begin_next(state, needed) {
            Err(Trouble::Full) if fits => Ok(None),
            begun => {
                let segment = begun?;
                if is_filled {
                    self.supply.grow();
                }
                Ok(Some(segment))
            }
        }
    }

    /// Begins the next segment, or once more the one that may lose its name. Everything in this
    /// one was synced by the commit that wrote it.
    pub(super) fn begin_next(&mut self, state: &State, needed: u64) -> Result<Segment, Trouble> {
        let number = self.active.number + u64::from(!self.unsure);
        let form = state.form(self.counts_whole, self.copied, number);
        state.snapshot_as(form, &mut self.snapshot);
        let (segment, begins_at) =
            self.supply
                .next_segment(number, self.next_commit, &mut self.snapshot, needed)?;
        (self.begins_at, self.offset) = (begins_at, begins_at);
        self.stats.beginnings += begins_at;
        self.changes = 0;
        if form == Form::Whole {
            self.copied = number;
        }
        self.active = segment.clone();
        self.unsure = false;
        if self.snapshot.capacity() > BUFFER_KEPT {
            self.snapshot = Vec::new();
        }
        Ok(segment)
    }

    /// Writes the frame, for which there is room, and syncs it. Returns where its body stands.
    ///
    /// After [`Trouble::Full`] nothing of it is there. After another error nothing may be
    /// appended any more: what became of it is unknown.
    pub(super) fn append(&mut self) -> Result<u64, Trouble> {
        let body_at = self.offset + FRAME_HEADER as u64;
        self.active
            .seal(self.offset, self.next_commit, &mut self.frame);
        let file = &self.active.file;
        if let Err(error) = file.write_at(self.offset, &self.frame) {
            if !is_full(&error) {
                return Err(Trouble::Io(error));
            }
            // A disk that copies on writing may have no room for what has its place already.
            self.supply.full_disk.appended(true);
            self.take_back()?;
            return Err(Trouble::Full);
        }
        self.supply.full_disk.appended(false);
        if !planted!(LogCommitUnsynced) {
            file.sync().map_err(Trouble::Io)?;
        }
        let begin = self.offset;
        self.offset += self.frame.len() as u64;
        self.stats.commits += self.offset - begin;
        let pages = begin / PAGE_BYTES..self.offset.div_ceil(PAGE_BYTES);
        self.stats.commit_pages += (pages.end - pages.start) * PAGE_BYTES;
        self.next_commit += 1;
        if self.frame.capacity() > BUFFER_KEPT {
            self.frame = Vec::new();
        }
        Ok(body_at)
    }

    /// Sees to it that no whole frame stands where the next one goes: a commit that found no room has
    /// the number of the next one, and was not made.
    ///
    /// # Errors
    /// [`Trouble::Io`] if a frame may stay.
    fn take_back(&self) -> Result<(), Trouble> {
        // Before anything is written there: what is no frame any more may be one again after a loss
        // of power.
        let frame = self.active.read_frame(self.offset, &mut Vec::new());
        let is_whole = matches!(&frame, Ok(Some(frame)) if frame.commit == self.next_commit);
        match self.clear_next() {
            Err(Trouble::Full) if frame.is_err() || is_whole => {
                let problem = "a commit that found no room cannot be taken back";
                Err(Trouble::Io(io::Error::other(problem)))
            }
            // There is no room for that, either. The bytes that were not written are missing: the
            // next frame is written over what there is, and an opening takes it for a torn tail.
            Err(Trouble::Full) => Ok(()),
            cleared => cleared,
        }
    }

    /// Makes the place of the next frame empty, durably. [`Trouble::Full`] if there is no room to
    /// write, and nothing was changed.
    pub(super) fn clear_next(&self) -> Result<(), Trouble> {
        let file = &self.active.file;
        let empty = [0; FRAME_HEADER];
        if self.offset + empty.len() as u64 <= self.active.frames_end {
            file.write_at(self.offset, &empty)?;
        }
        // After a sync that failed nobody knows anything, also if the disk was full.
        file.sync().map_err(Trouble::Io)
    }

    /// How far the log has reached.
    pub(super) fn reached(&self) -> Reached {
        Reached {
            segment: self.active.number,
            commit: self.next_commit - 1,
        }
    }

    /// The last commit, and the segment in which it stands. One that has none yet does not count:
    /// its name may not be durable.
    pub(super) fn last_commit(&self) -> Reached {
        let reached = self.reached();
        let segment = reached.segment.saturating_sub(self.is_empty().into());
        Reached { segment, ..reached }
    }

    /// How full the active segment is, as a share of 1.
    pub(super) fn full(&self) -> f64 {
        let by_changes = share(self.changes as u64, self.changes_max as u64);
        by_changes.max(share(self.offset, self.active.len))
    }

    /// Whether nothing was committed in the active segment.
    pub(super) fn is_empty(&self) -> bool {
        self.offset == self.begins_at
    }
}

impl State {
    /// What the snapshot says of the counts with which segment `number` begins: all of them if there
    /// are at most `most` queues, or if it is the one with which the last copy begins, which is
    /// `copied`, once more.
    pub(super) fn form(&self, most: usize, copied: u64, number: u64) -> Form {
        let queues = self
            .shards
            .values()
            .map(|memtable| memtable.totals().queues);
        let queues: u64 = queues.sum();
        if queues <= most as u64 || copied >= number {
            Form::Whole
        } else {
            Form::Sums
        }
    }

    /// What of everything committed so far is to survive the segments before.
    pub(super) fn snapshot_as(&self, form: Form, frame: &mut Vec<u8>) {
        let shards = self.shards.iter();
        let shards = shards.map(|(&shard, memtable)| memtable.snapshot(shard, form));
        batch::encode_snapshot(frame, form, shards);
    }
}
