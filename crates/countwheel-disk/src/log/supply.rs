//! Where segments come from and go to.
//!
//! A **spare** is a file as long as a segment, all of it really on the disk, that nobody needs:
//! made so, and synced, before it got the name of a spare, or freed. So a segment that is begun
//! in a spare needs no room that the disk might not have.

use std::io;
use std::sync::Arc;

use super::full::FullDisk;
use super::segment::{HEADERS_BYTES, Segment, VERSION, frames_end};
use crate::files::{Files, is_full};
use crate::planted::planted;

pub(super) struct Supply {
    pub(super) files: Arc<dyn Files>,
    pub(super) segment_bytes: u64,
    pub(super) store_id: u64,
    pub(super) spares: Vec<String>,
    /// The last that are left are for when the disk is full.
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
    /// How many spares are kept ready, and how many at the most.
    pub(super) fn wanted(&self) -> usize {
        self.reserve + 1
    }

    pub(super) fn kept(&self) -> usize {
        self.reserve + 3
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
        let len = self.segment_bytes.max(at_least);
        let spare = self.find(len)?;
        let mut begin = || {
            let file = self.files.open(&spare)?;
            // Zero is for none.
            let (len, nonce) = (file.length()?, self.files.nonce()?.max(1));
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
                    self.spares.push(spare);
                }
                return Err(error.into());
            }
        };
        let named = self.files.rename(&spare, &segment.name());
        self.full_disk.named(named.as_ref().is_err_and(is_full));
        if let Err(error) = named {
            if is_full(&error) {
                self.spares.push(spare); // it kept its name
            }
            return Err(error.into());
        }
        if !planted!(LogNameUnsynced) {
            // Whether the name is there is unknown, also if there was no room for it.
            self.files.sync().map_err(Trouble::Io)?;
        }
        Ok((segment, snapshot.len() as u64))
    }

    /// A file of `len` bytes: an ordinary spare, a new one, or one of the reserve.
    fn find(&mut self, len: u64) -> Result<String, Trouble> {
        let fits = len == self.segment_bytes;
        if fits
            && self.spares.len() > self.reserve
            && let Some(spare) = self.spares.pop()
        {
            return Ok(spare);
        }
        if !(self.capped || self.full_disk.has_no_file() && self.has_maker) {
            let name = self.spare_name();
            let made = make(&*self.files, &name, len).map_err(Trouble::from);
            self.full_disk.made(matches!(made, Err(Trouble::Full)));
            match made {
                Ok(()) => {
                    self.zeros += len;
                    return Ok(name);
                }
                Err(Trouble::Full) => {}
                Err(error) => return Err(error),
            }
        }
        let may_take = fits && !self.keeps_reserve;
        let reserve = if may_take { self.spares.pop() } else { None };
        reserve.ok_or(Trouble::Full)
    }

    /// Whether there is room for what is not urgent.
    pub(super) fn has_room(&self) -> bool {
        self.spares.len() > self.reserve || !(self.full_disk.has_no_file() || self.capped)
    }
}
