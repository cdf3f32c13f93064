//! Where segments come from and go to.
//!
//! A **spare** is a file that nobody needs, all of it really on the disk: made so, and synced,
//! before it got the name of a spare, or freed. So a segment that is begun in a spare needs no room
//! that the disk might not have.
//!
//! # Lengths
//!
//! The first segments are short, so that a new directory costs little. The first segment of each length
//! that fills doubles the length of those that are made from then on, up to that of the options. The next
//! spare is there already, so there are two of each length. A commit that does not fit doubles the length
//! as well, until a segment has room for two of its kind.
//!
//! A spare of the reserve is twice as long, up to the length of the options: until then it has two
//! thirds of the bytes that were ever committed, or more. When the length doubles, the spare of the
//! reserve has the length of an ordinary one, and becomes one, once there is one for the reserve. A
//! reserve that grows faster costs commits their speed: the zeros that fill it go to the same disk.
//!
//! Where a file of its length finds no room, and nothing is left to flush that would give some back, the
//! length halves, down to a sixteenth of the first one. The next segment that fills doubles the length
//! again, and so asks whether there is room by now.
//!
//! The length of a file is the file's own, and a segment's header says it. An opening takes the
//! length that the log had come to from the files that are there: nothing else keeps it.

use std::io;
use std::sync::Arc;

use super::full::FullDisk;
use super::segment::{HEADERS_BYTES, Segment, VERSION, frames_end};
use super::{LogOptions, SEGMENT_MIN_BYTES};
use crate::files::{Files, is_full};
use crate::planted::planted;

/// Without room for longer ones, segments have down to such a part of the first length.
const SHORTENED_MOST: u64 = 16;

pub(super) struct Supply {
    pub(super) files: Arc<dyn Files>,
    /// How long a segment is that is made now; [`segment_bytes`](Self::segment_bytes) in the end.
    pub(super) len: u64,
    /// How long the first segment is and, but for a commit that does not fit, the longest.
    pub(super) len_min: u64,
    pub(super) segment_bytes: u64,
    pub(super) store_id: u64,
    /// Shorter ones first.
    spares: Vec<Spare>,
    /// The last that are left, and so the longest, are for when the disk is full.
    pub(super) reserve: usize,
    /// Knows whether the last file that was to be made found no room.
    pub(super) full_disk: Arc<FullDisk>,
    /// More is in the memtable than the options allow, and cannot be flushed: what is there already
    /// is all that may be used.
    pub(super) capped: bool,
    /// What is to be begun is not worth what is set aside.
    pub(super) keeps_reserve: bool,
    /// Somebody else makes spares, and tries again when the disk was full.
    pub(super) has_maker: bool,
    pub(super) next_name: u64,
    /// How many bytes of files were made.
    pub(super) zeros: u64,
}

/// A file that a segment can begin in.
#[derive(Clone, Debug)]
pub(super) struct Spare {
    pub(super) name: String,
    pub(super) len: u64,
}

/// Why no segment could be begun.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The disk is full. Nothing was changed.
    Full,
    /// What became of it is unknown.
    Io(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        if is_full(&error) {
            Self::Full
        } else {
            Self::Io(error)
        }
    }
}

/// Makes a file of `len` bytes and gives it `name`, once it is really there.
pub(super) fn make(files: &dyn Files, name: &str, len: u64) -> io::Result<()> {
    let unfinished = format!("making-{name}");
    let make = || {
        files.create(&unfinished, len)?.sync()?;
        files.rename(&unfinished, name)
    };
    make().inspect_err(|error| {
        // What there is of it takes room that others need.
        if is_full(error)
            && let Err(error) = files.remove(&unfinished)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(unfinished, %error, "a file could not be removed");
        }
    })
}

impl Supply {
    /// Without a spare, for segments of the options' first length.
    pub(super) fn new(
        files: Arc<dyn Files>,
        store_id: u64,
        options: LogOptions,
        full_disk: Arc<FullDisk>,
    ) -> Self {
        let segment_bytes = options.segment_bytes.max(SEGMENT_MIN_BYTES);
        let len_min = options.segment_bytes_first;
        let len_min = len_min.clamp(SEGMENT_MIN_BYTES, segment_bytes);
        Self {
            files,
            len: len_min,
            len_min,
            segment_bytes,
            store_id,
            spares: Vec::new(),
            reserve: options.reserve_segments,
            full_disk,
            capped: false,
            keeps_reserve: false,
            has_maker: false,
            next_name: 0,
            zeros: 0,
        }
    }

    /// Learns from the files of an earlier process how long its segments had become: the lengths of
    /// its segments and of its spares.
    pub(super) fn learn(&mut self, segments: impl Iterator<Item = u64>, spares: &[Spare]) {
        let mut spares: Vec<_> = spares.iter().map(|spare| spare.len).collect();
        spares.retain(|&len| len <= self.segment_bytes);
        spares.sort_unstable();
        spares.reverse();
        // One of the reserve may be twice as long as the others.
        let ordinary = spares.get(self.reserve).copied();
        let reserve = spares.first().map(|longest| longest / 2);
        // One that is longer was made for a commit.
        let segments = segments.filter(|&len| len <= self.segment_bytes);
        let lengths = segments.chain(ordinary).chain(reserve);
        self.len = lengths.fold(self.len, u64::max);
    }

    /// A segment has filled.
    pub(super) fn grow(&mut self) {
        self.len = self.len.saturating_mul(2).min(self.segment_bytes);
    }

    /// The shortest segment that is made where there is little room.
    fn floor(&self) -> u64 {
        (self.len_min / SHORTENED_MOST).max(SEGMENT_MIN_BYTES)
    }

    /// A file of the length of now found no room. False if it cannot be shorter.
    pub(super) fn shorten(&mut self) -> bool {
        let shorter = (self.len / 2).max(self.floor());
        let is_shorter = shorter < self.len;
        if is_shorter {
            self.len = shorter;
        }
        is_shorter
    }

    /// How long a spare of the reserve is.
    fn reserve_len(&self) -> u64 {
        self.len.saturating_mul(2).min(self.segment_bytes)
    }

    /// How many spares are kept ready, and how many at the most.
    fn wanted(&self) -> usize {
        self.reserve + 1
    }

    fn kept(&self) -> usize {
        self.reserve + 3
    }

    /// The length of the spare at this place, from the longest on; zero if there is none.
    fn longest(&self, at: usize) -> u64 {
        self.spares
            .iter()
            .rev()
            .nth(at)
            .map_or(0, |spare| spare.len)
    }

    /// How long the spare is that is missing: one of the reserve, or, if it is asked for, the one for
    /// the next segment.
    pub(super) fn missing(&self, ordinary: bool) -> Option<u64> {
        let has = self.spares.len();
        if let Some(last) = self.reserve.checked_sub(1) {
            let shortest = self.longest(last);
            if ordinary && has == self.reserve && shortest < self.len {
                // None of the reserve becomes the next segment's, and commits would wait for that.
                return Some(self.len);
            }
            if shortest < self.reserve_len() {
                return Some(self.reserve_len());
            }
        }
        (ordinary && self.longest(self.reserve) < self.len).then_some(self.len)
    }

    /// Whether a file of that length is worth being a spare: one that is shorter than those that are
    /// made now is, as long as there are too few.
    pub(super) fn keeps(&self, len: u64) -> bool {
        let is_needed = len >= self.len || self.spares.len() < self.wanted();
        let lengths = self.floor()..=self.segment_bytes;
        is_needed && lengths.contains(&len) && self.spares.len() < self.kept()
    }

    pub(super) fn add(&mut self, spare: Spare) {
        let at = self.spares.partition_point(|other| other.len <= spare.len);
        self.spares.insert(at, spare);
    }

    /// The longest spare.
    pub(super) fn last(&self) -> Option<&Spare> {
        self.spares.last()
    }

    /// Takes out a spare that is shorter than those that are made now, and that nobody lacks.
    pub(super) fn superfluous(&mut self) -> Option<Spare> {
        let is_short = self
            .spares
            .first()
            .is_some_and(|spare| spare.len < self.len);
        (is_short && self.spares.len() > self.wanted()).then(|| self.spares.remove(0))
    }

    pub(super) fn spare_name(&mut self) -> String {
        self.next_name += 1;
        format!("spare-{}", self.next_name)
    }

    /// Begins a segment that has room for a snapshot and `needed` bytes more: it is there, under
    /// its name, when this returns.
    pub(super) fn next_segment(
        &mut self,
        number: u64,
        first_commit: u64,
        snapshot: &mut Vec<u8>,
        needed: u64,
    ) -> Result<(Segment, u64), Trouble> {
        // As much again as the snapshot, so that it is not written for each commit anew.
        let at_least = HEADERS_BYTES + 2 * snapshot.len() as u64 + 8 + needed;
        let spare = self.find(at_least)?;
        let mut begin = || {
            let file = self.files.open(&spare.name)?;
            // Zero is for none.
            let (mut len, nonce) = (file.length()?, self.files.nonce()?.max(1));
            if planted!(LogTrustsSpareLength) {
                len = self.len.max(at_least);
            }
            let segment = Segment {
                version: VERSION,
                number,
                store_id: self.store_id,
                first_commit,
                nonce,
                len,
                frames_end: frames_end(len, nonce),
                file,
            };
            segment.write_beginning(snapshot)?;
            segment.file.sync()?;
            Ok(segment)
        };
        let segment = match begin() {
            Ok(segment) => segment,
            Err(error) => {
                self.full_disk.begun(is_full(&error));
                // It has no name yet by which it counts, and may be written again.
                if is_full(&error) {
                    self.add(spare);
                }
                return Err(error.into());
            }
        };
        let named = self.files.rename(&spare.name, &segment.name());
        self.full_disk.named(named.as_ref().is_err_and(is_full));
        if let Err(error) = named {
            if is_full(&error) {
                self.add(spare); // it kept its name
            }
            return Err(error.into());
        }
        if !planted!(LogNameUnsynced) {
            // Whether the name is there is unknown, also if there was no room for it.
            self.files.sync().map_err(Trouble::Io)?;
        }
        Ok((segment, snapshot.len() as u64))
    }

    /// A file of `at_least` so many bytes: an ordinary spare, a new one, or one of the reserve.
    fn find(&mut self, at_least: u64) -> Result<Spare, Trouble> {
        let ordinary = self.spares.len().checked_sub(self.wanted());
        if let Some(at) = ordinary.filter(|&at| self.spares[at].len >= at_least) {
            return Ok(self.spares.remove(at));
        }
        if !(self.capped || self.full_disk.has_no_file() && self.has_maker) {
            // Room for two of what does not fit, so that the next one does.
            let mut len = self.len;
            let enough = match at_least.saturating_mul(2) {
                _ if len >= at_least => len,
                two => two.min(self.segment_bytes),
            };
            while len < enough {
                len = len.saturating_mul(2).min(self.segment_bytes);
            }
            let spare = Spare {
                name: self.spare_name(),
                len: len.max(at_least),
            };
            let made = make(&*self.files, &spare.name, spare.len).map_err(Trouble::from);
            self.full_disk.made(matches!(made, Err(Trouble::Full)));
            match made {
                Ok(()) => {
                    self.zeros += spare.len;
                    self.len = len;
                    return Ok(spare);
                }
                Err(Trouble::Full) => {}
                Err(error) => return Err(error),
            }
        }
        if self.keeps_reserve {
            return Err(Trouble::Full);
        }
        // The shortest that fits: another one may be needed for what is longer.
        let fits = self.spares.iter().position(|spare| spare.len >= at_least);
        fits.map(|at| self.spares.remove(at)).ok_or(Trouble::Full)
    }

    /// Whether there is room for what is not urgent. Without room for a file, a spare that is shorter
    /// than those that are made now is none: what does not fit into it would take one of the reserve.
    pub(super) fn has_room(&self) -> bool {
        self.longest(self.reserve) >= self.len || !(self.full_disk.has_no_file() || self.capped)
    }
}
