//! Reads the checksums of the log's full segments, a commit at a time.

use std::io;

use super::LogStore;
use super::batch;
use super::segment::{FRAMES_BEGIN, Header, Segment, read_header, read_second_header};
use crate::scrub::{At, Found, Piece};
use crate::{Scrubbed, Sorted};
use crate::{Trouble, TroubleReason};

/// What a start, a scrub and a check say of a segment whose first header alone is sound.
pub(super) const SECOND_HEADER_DAMAGED: &str = "the second header is damaged";

impl<B: Sorted> LogStore<B> {
    /// Reads the next checksums: of the log, and behind them those of the sorted store.
    pub(super) fn scrub_all(&self, budget: u64) -> Scrubbed {
        let mut is_in_log = self.scrubbed_log.lock();
        if !*is_in_log {
            let list = || self.state().segments.keys().copied().collect();
            let files = &*self.files;
            let read = |number, at, found: &mut Found| self.scrub_segment(number, at, found);
            let mut scrubbed = self.scrub.step(files, budget, list, read);
            *is_in_log = scrubbed.ended;
            scrubbed.ended = false;
            return scrubbed;
        }
        let scrubbed = self.base.scrub_step(budget);
        *is_in_log = !scrubbed.ended;
        scrubbed
    }

    pub(super) fn scrub_troubles(&self) -> Vec<Trouble> {
        self.scrub.troubles(|path| {
            let state = self.state();
            let mut segments = state.segments.values();
            path.file_name()
                .is_some_and(|name| segments.any(|segment| name == segment.name().as_str()))
        })
    }

    fn scrub_segment(&self, number: u64, at: At, found: &mut Found) -> Piece {
        let gone = Piece {
            bytes: 0,
            next: None,
        };
        let state = self.state();
        let segment = state.segments.get(&number).cloned();
        let next = state.segments.get(&(number + 1));
        let next = next.map(|next| next.first_commit);
        drop(state);
        let Some(segment) = segment else {
            return gone;
        };
        // Of the last one, which grows, what it begins with and its second header.
        let next = next.unwrap_or(segment.first_commit);
        let mut noted = Found::default();
        let read = segment.scrub(
            at,
            next,
            &self.files.path().join(segment.name()),
            &mut noted,
        );
        // One that was freed meanwhile may have been written anew while it was read.
        if self.state().segments.contains_key(&number) {
            found.add(noted);
            read
        } else {
            gone
        }
    }
}

impl Segment {
    /// Reads the frame that stands there, of the segment whose next one begins with commit `end`.
    fn scrub(&self, at: At, end: u64, path: &std::path::Path, found: &mut Found) -> Piece {
        let read = self.try_scrub(at, end, path, found);
        read.unwrap_or_else(|error| {
            found.note(path, at.offset, &error.to_string());
            self.behind(at, end)
        })
    }

    fn try_scrub(
        &self,
        at: At,
        end: u64,
        path: &std::path::Path,
        found: &mut Found,
    ) -> io::Result<Piece> {
        let mut body = Vec::new();
        let bytes;
        let (mut offset, mut commit) = (at.offset, at.commit);
        if offset == 0 {
            self.scrub_headers(path, found)?;
            offset = FRAMES_BEGIN;
            // What was before it comes first, under the number of the first commit.
            commit = self.first_commit;
            let snapshot = self.read_frame(offset, &mut body)?;
            let sound = snapshot.filter(|_| batch::decode_snapshot(&body).is_ok());
            match sound {
                Some(frame) => {
                    self.scrub_padding(frame.body_at + body.len() as u64, frame.end, path, found)?;
                    offset = frame.end;
                }
                None => {
                    found.note(path, offset, "the snapshot is damaged");
                    let behind = At { offset, commit };
                    return Ok(self.behind(behind, end));
                }
            }
            bytes = offset + FRAMES_BEGIN;
        } else if let Some(frame) = self.read_frame(offset, &mut body)?
            && frame.commit == commit
        {
            self.scrub_padding(frame.body_at + body.len() as u64, frame.end, path, found)?;
            bytes = frame.end - offset;
            (offset, commit) = (frame.end, commit + 1);
        } else {
            let problem = format!("commit {commit} cannot be read");
            found.note(path, offset, &problem);
            return Ok(self.behind(at, end));
        }
        let next = (commit < end).then_some(At { offset, commit });
        Ok(Piece { bytes, next })
    }

    /// Where the round goes on behind a place that cannot be read.
    fn behind(&self, at: At, end: u64) -> Piece {
        let from = at.offset.max(FRAMES_BEGIN) + 8;
        let commits = at.commit.max(self.first_commit)..=end.saturating_sub(1);
        let next = self
            .find_frame(from, commits, &mut Vec::new())
            .ok()
            .flatten();
        let next = next.map(|(offset, frame)| At {
            offset,
            commit: frame.commit,
        });
        Piece {
            bytes: next.map_or(self.len, |next| next.offset) - at.offset.min(self.len),
            next,
        }
    }

    fn scrub_headers(&self, path: &std::path::Path, found: &mut Found) -> io::Result<()> {
        if read_header(&*self.file)? != self.header() {
            found.note(path, 0, "the header is damaged");
        }
        if !self.has_second_header()? {
            found.note(path, self.frames_end, SECOND_HEADER_DAMAGED);
        }
        Ok(())
    }

    fn header(&self) -> Header {
        Header::Of {
            version: self.version,
            number: self.number,
            store_id: self.store_id,
            first_commit: self.first_commit,
            len: self.len,
            nonce: self.nonce,
        }
    }

    /// Whether the second header says what the first one says, or there is none in this version.
    pub(super) fn has_second_header(&self) -> io::Result<bool> {
        Ok(self.nonce == 0 || read_second_header(&*self.file)? == self.header())
    }

    /// What to say if it does not, of a segment in this directory.
    pub(super) fn one_header_left(&self, directory: &std::path::Path) -> Trouble {
        let path = directory.join(self.name());
        let detail = format!("at offset {}: {SECOND_HEADER_DAMAGED}", self.frames_end);
        Trouble::new(TroubleReason::UnreadableSegment, Some(path), detail)
    }

    /// What fills up to the next frame is zero.
    fn scrub_padding(
        &self,
        from: u64,
        to: u64,
        path: &std::path::Path,
        found: &mut Found,
    ) -> io::Result<()> {
        let mut padding = [0; 8];
        let len = usize::try_from(to.saturating_sub(from)).unwrap_or_default();
        let padding = &mut padding[..len.min(8)];
        self.file.read_at(from, padding)?;
        if padding.iter().any(|&byte| byte != 0) {
            found.note(path, from, "what fills up to the next commit is not zero");
        }
        Ok(())
    }
}
