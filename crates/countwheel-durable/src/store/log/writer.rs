//! The end of the log: appends commits, and begins the next segment when one is full.

use std::io;
use std::sync::Arc;

use super::batch::{self, place_of};
use super::segment::{FRAMES_BEGIN, Segment, frame_len};
use super::young::Location;
use crate::store::files::Files;
use crate::store::{Change, Shard};

/// The end of the log.
pub(super) struct Writer {
    pub(super) active: Segment,
    /// Where the next frame goes.
    pub(super) offset: u64,
    pub(super) next_commit: u64,
    pub(super) supply: Supply,
    pub(super) poisoned: bool,
}

/// Where segments come from and go to.
pub(super) struct Supply {
    pub(super) files: Arc<dyn Files>,
    pub(super) segment_bytes: u64,
    pub(super) store_id: u64,
    /// Files that can be used again.
    pub(super) spares: Vec<String>,
    pub(super) next_spare: u64,
}

/// The bodies of a commit's frames, and where in which of them each change stands.
struct Parts {
    bodies: Vec<Vec<u8>>,
    places: Vec<(usize, usize, usize)>,
}

impl Writer {
    /// Appends a commit and syncs it. Returns where each change stands, and the segments that
    /// were begun.
    ///
    /// After an error nothing may be appended any more: what became of it is unknown.
    pub(super) fn append(
        &mut self,
        shard: Shard,
        changes: &[Change],
    ) -> io::Result<(Vec<Location>, Vec<Segment>)> {
        let mut begun = Vec::new();
        let parts = self.divide(shard, changes);
        let commit = self.next_commit;
        let count = u32::try_from(parts.bodies.len()).map_err(io::Error::other)?;
        let mut bodies_at = Vec::with_capacity(parts.bodies.len());
        for (part, body) in (0..).zip(&parts.bodies) {
            let needed = frame_len(body.len());
            if self.offset + needed > self.active.len {
                begun.push(self.begin_next(commit, part, needed)?);
            }
            let (frame, body_at) = self.active.frame(self.offset, commit, part, count, body);
            self.active.file.write_at(self.offset, &frame)?;
            self.offset += frame.len() as u64;
            bodies_at.push((self.active.number, body_at));
        }
        self.active.file.sync()?;
        self.next_commit += 1;
        let places = parts.places.into_iter().map(|(part, at, len)| {
            let (segment, body_at) = bodies_at[part];
            Location {
                segment,
                offset: body_at + at as u64,
                len,
            }
        });
        Ok((places.collect(), begun))
    }

    /// Begins the next segment, unless nothing is in this one.
    pub(super) fn seal(&mut self) -> io::Result<Option<Segment>> {
        if self.offset == FRAMES_BEGIN {
            return Ok(None);
        }
        self.begin_next(self.next_commit, 0, 0).map(Some)
    }

    fn begin_next(&mut self, commit: u64, part: u32, needed: u64) -> io::Result<Segment> {
        // What stands in this one is synced before another says that it comes after it.
        self.active.file.sync()?;
        let number = self.active.number + 1;
        self.active = self.supply.next_segment(number, commit, part, needed)?;
        self.offset = FRAMES_BEGIN;
        Ok(self.active.clone())
    }

    /// Puts changes into bodies, as few as the segments allow. No change is divided.
    fn divide(&self, shard: Shard, changes: &[Change]) -> Parts {
        let mut parts = Parts {
            bodies: vec![batch::begin(shard)],
            places: Vec::with_capacity(changes.len()),
        };
        let mut room = self.active.len - self.offset;
        for change in changes {
            let bytes = batch::encode(change);
            let mut part = parts.bodies.len() - 1;
            let is_begun = parts.places.last().is_some_and(|last| last.0 == part);
            if frame_len(parts.bodies[part].len() + bytes.len()) > room {
                // Then it goes to the next segment, and the part before it stays behind.
                if is_begun {
                    parts.bodies.push(batch::begin(shard));
                    part += 1;
                }
                room = self.supply.segment_bytes - FRAMES_BEGIN;
            }
            let (at, len) = place_of(change, parts.bodies[part].len(), &bytes);
            parts.places.push((part, at, len));
            parts.bodies[part].extend_from_slice(&bytes);
        }
        parts
    }
}

impl Supply {
    /// Begins a segment: it is there, under its name, with its header, when this returns.
    pub(super) fn next_segment(
        &mut self,
        number: u64,
        first_commit: u64,
        first_part: u32,
        needed: u64,
    ) -> io::Result<Segment> {
        let len = self.segment_bytes.max(FRAMES_BEGIN + needed);
        let spare = match self.spares.pop() {
            Some(spare) if len == self.segment_bytes => spare,
            other => {
                self.spares.extend(other);
                self.next_spare += 1;
                let name = format!("spare-{}", self.next_spare);
                self.files.create(&name, len)?;
                name
            }
        };
        let file = self.files.open(&spare)?;
        let segment = Segment {
            number,
            store_id: self.store_id,
            first_commit,
            first_part,
            len: file.length()?,
            file,
        };
        segment.write_header()?;
        segment.file.sync()?;
        self.files.rename(&spare, &segment.name())?;
        self.files.sync()?;
        Ok(segment)
    }

    /// Takes back a segment of which nothing is needed. It has lost its name for good when
    /// this returns, so it can be written again.
    pub(super) fn free(&mut self, segment: &Segment) -> io::Result<()> {
        self.next_spare += 1;
        let spare = format!("spare-{}", self.next_spare);
        self.files.rename(&segment.name(), &spare)?;
        self.files.sync()?;
        self.spares.push(spare);
        Ok(())
    }
}
