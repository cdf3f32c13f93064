//! The bytes of a log: segments, and the frames in them.
//!
//! A **segment** is a file of fixed length. It begins with a header: what it is, its number,
//! the store's id, the commit that comes first, its length, a nonce, a checksum. It ends with the
//! same once more, for when the beginning is damaged. In between are frames, each at a multiple of
//! eight bytes:
//!
//! ```text
//! | checksum u32 | length u32 | commit ^ nonce u64 | body ... | to a multiple of 8 |
//! ```
//!
//! All numbers are little endian. The checksum is the CRC-32C of what follows it up to the end
//! of the body, and of where the frame stands: the store's id, the segment's number, the offset.
//! So bytes of another store or of an earlier life of the file are no frame. Nor are those of a
//! payload: a checksum can be made to be right, but which commit a frame is of can be said by
//! nobody who does not know the nonce, a random number that each segment has of its own.
//!
//! Segments of version 4 have no nonce, and no second header; those before version 6 have no notes of
//! the clocks, and those before version 8 no settings. They are read; what is begun is of version 8,
//! and what is written goes there if there is room to begin one.
//!
//! The first frame is a snapshot: what the commits before came to, as far as it is not in the
//! sorted store. Header and snapshot are synced before the file gets the name of a segment, so
//! both are there in every segment.
//!
//! Every other frame is a commit, and a commit is one frame: one that does not fit the rest of a
//! segment begins the next. Commits are numbered without a gap, and one is written only after
//! the one before was synced. So where the frames end, either nothing follows, or the remains of
//! the one commit that was never acknowledged: a **torn tail**. If instead the frame of a later
//! commit follows, then something was damaged that had been synced.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::files::StoreFile;

/// Where the first frame of a segment stands.
pub(super) const FRAMES_BEGIN: u64 = HEADER_BYTES as u64;
/// What a segment takes besides its frames.
pub(super) const HEADERS_BYTES: u64 = 2 * FRAMES_BEGIN;
const HEADER_BYTES: usize = 64;
/// The bytes of a frame before its body.
pub(super) const FRAME_HEADER: usize = 16;
const ALIGNMENT: usize = 8;
const MAGIC: [u8; 8] = *b"cwheelog";
pub(super) const VERSION: u32 = 8;
/// The earliest that is read: without a nonce, which is zero there.
const VERSION_MIN: u32 = 4;
/// So much of a tail is looked through at a time.
const WINDOW: usize = 1 << 20;

/// One segment, and what says where its frames stand.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// That of its header.
    pub(super) version: u32,
    pub(super) number: u64,
    pub(super) store_id: u64,
    /// The commit with which the segment begins.
    pub(super) first_commit: u64,
    /// What the numbers of commits are hidden with; zero if they are not.
    pub(super) nonce: u64,
    pub(super) file: Arc<dyn StoreFile>,
    pub(super) len: u64,
    /// Where frames have to end.
    pub(super) frames_end: u64,
}

/// One frame that was read; its body is in the reader's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) commit: u64,
    /// Where its body stands.
    pub(super) body_at: u64,
    /// Where the next frame would stand.
    pub(super) end: u64,
}

/// What the beginning of a segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    Of {
        version: u32,
        number: u64,
        store_id: u64,
        first_commit: u64,
        /// How long the file has to be.
        len: u64,
        nonce: u64,
    },
    /// Written by another version.
    Other { version: u32 },
    /// Never written, or not in full.
    None,
}

/// What the end of one says of it, if it is of this version.
pub(super) fn read_second_header(file: &dyn StoreFile) -> io::Result<Header> {
    read_header_at(file, file.length()?.saturating_sub(FRAMES_BEGIN))
}

pub(super) fn read_header(file: &dyn StoreFile) -> io::Result<Header> {
    read_header_at(file, 0)
}

fn read_header_at(file: &dyn StoreFile, at: u64) -> io::Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    if file.length()? < FRAMES_BEGIN {
        return Ok(Header::None);
    }
    file.read_at(at, &mut bytes)?;
    let (covered, crc) = bytes.split_at(60);
    if covered[..8] != MAGIC || crc32fast::hash(covered).to_le_bytes() != crc {
        return Ok(Header::None);
    }
    let version = u32_at(covered, 8);
    if !(VERSION_MIN..=VERSION).contains(&version) {
        return Ok(Header::Other { version });
    }
    Ok(Header::Of {
        version,
        number: u64_at(covered, 16),
        store_id: u64_at(covered, 24),
        first_commit: u64_at(covered, 32),
        len: u64_at(covered, 40),
        nonce: u64_at(covered, 48),
    })
}

/// Where frames have to end in a segment of that length: with a nonce comes a second header.
pub(super) fn frames_end(len: u64, nonce: u64) -> u64 {
    match nonce {
        0 => len,
        _ => len.saturating_sub(FRAMES_BEGIN),
    }
}

impl Segment {
    /// The name of its file.
    pub(super) fn name(&self) -> String {
        Self::name_of(self.number)
    }

    pub(super) fn name_of(number: u64) -> String {
        format!("segment-{number:016x}")
    }

    /// The number of the segment whose file has this name.
    pub(super) fn number_of(name: &str) -> Option<u64> {
        let number = u64::from_str_radix(name.strip_prefix("segment-")?, 16).ok()?;
        (Self::name_of(number) == name).then_some(number)
    }

    /// Writes the headers and the snapshot, which is a frame that is not sealed yet. Not synced.
    pub(super) fn write_beginning(&self, snapshot: &mut Vec<u8>) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.number.to_le_bytes());
        header[24..32].copy_from_slice(&self.store_id.to_le_bytes());
        header[32..40].copy_from_slice(&self.first_commit.to_le_bytes());
        header[40..48].copy_from_slice(&self.len.to_le_bytes());
        header[48..56].copy_from_slice(&self.nonce.to_le_bytes());
        let crc = crc32fast::hash(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(self.frames_end, &header)?;
        self.seal(FRAMES_BEGIN, self.first_commit, snapshot);
        snapshot.splice(..0, header);
        self.file.write_at(0, snapshot)
    }

    /// Makes a frame of what is to stand at `offset`: `frame` is the body, behind as many bytes
    /// as a frame's header has.
    pub(super) fn seal(&self, offset: u64, commit: u64, frame: &mut Vec<u8>) {
        let length = u32::try_from(frame.len() - FRAME_HEADER).unwrap_or(u32::MAX);
        frame[4..8].copy_from_slice(&length.to_le_bytes());
        frame[8..16].copy_from_slice(&(commit ^ self.nonce).to_le_bytes());
        let crc = self.checksum(offset, [&frame[4..], &[]]);
        frame[..4].copy_from_slice(&crc.to_le_bytes());
        frame.resize(frame.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// Reads the frame at `offset`, and its body to `body`; `None` if there is none.
    pub(super) fn read_frame(&self, offset: u64, body: &mut Vec<u8>) -> io::Result<Option<Frame>> {
        let body_at = offset + FRAME_HEADER as u64;
        if body_at > self.frames_end {
            return Ok(None);
        }
        let mut header = [0; FRAME_HEADER];
        self.file.read_at(offset, &mut header)?;
        let length = u64::from(u32_at(&header, 4));
        // Whatever a damaged length says, no more is read than a segment holds.
        if length == 0 || length > self.frames_end - body_at {
            return Ok(None);
        }
        body.clear();
        body.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        self.file.read_at(body_at, body)?;
        if self.checksum(offset, [&header[4..], body]) != u32_at(&header, 0) {
            return Ok(None);
        }
        Ok(Some(Frame {
            commit: u64_at(&header, 8) ^ self.nonce,
            body_at,
            end: (body_at + length).next_multiple_of(ALIGNMENT as u64),
        }))
    }

    /// The frame of a commit after `commit` that stands at or behind `offset`, if there is one:
    /// proof that what stands before it had been synced. Reads the rest of the segment, a window
    /// at a time.
    pub(super) fn later_commit(&self, offset: u64, commit: u64) -> io::Result<Option<Frame>> {
        let commits = commit.saturating_add(1)..=self.highest_commit(commit);
        let found = self.find_frame(offset, commits, &mut Vec::new())?;
        Ok(found.map(|(_, frame)| frame))
    }

    /// None of this segment has a higher number behind `commit`: a commit takes more bytes than a
    /// header has.
    pub(super) fn highest_commit(&self, commit: u64) -> u64 {
        commit.saturating_add(self.len / FRAME_HEADER as u64)
    }

    /// The first frame at or behind `offset` that is of one of `commits`, and where it stands;
    /// its body is in `body`. Reads on to it, a window at a time.
    pub(super) fn find_frame(
        &self,
        offset: u64,
        commits: RangeInclusive<u64>,
        body: &mut Vec<u8>,
    ) -> io::Result<Option<(u64, Frame)>> {
        let mut window = vec![0; WINDOW + FRAME_HEADER];
        let mut start = offset;
        while start + FRAME_HEADER as u64 <= self.len {
            let left = usize::try_from(self.len - start).unwrap_or(usize::MAX);
            let bytes = &mut window[..left.min(WINDOW + FRAME_HEADER)];
            self.file.read_at(start, bytes)?;
            let mut at = 0;
            while at < WINDOW && at + FRAME_HEADER <= bytes.len() {
                // A cheap look first: most of it is zeros or somebody's payload.
                let found = start + at as u64;
                if commits.contains(&(u64_at(bytes, at + 8) ^ self.nonce))
                    && let Some(frame) = self.read_frame(found, body)?
                {
                    return Ok(Some((found, frame)));
                }
                at += ALIGNMENT;
            }
            start += WINDOW as u64;
        }
        Ok(None)
    }

    /// How many bytes of the commit `commit` stand at `offset`, whether or not they are whole.
    pub(super) fn torn(&self, offset: u64, commit: u64) -> io::Result<u64> {
        let body_at = offset + FRAME_HEADER as u64;
        if body_at > self.frames_end {
            return Ok(0);
        }
        let mut header = [0; FRAME_HEADER];
        self.file.read_at(offset, &mut header)?;
        let length = u64::from(u32_at(&header, 4));
        let is_torn =
            u64_at(&header, 8) ^ self.nonce == commit && length <= self.frames_end - body_at;
        Ok(if is_torn {
            FRAME_HEADER as u64 + length
        } else {
            0
        })
    }

    /// The checksum of a frame at `offset` whose bytes behind the checksum are `parts`: bytes of
    /// another store, segment or place do not have it.
    ///
    /// CRC-32C, because a record ends with its own CRC-32: over a text and its CRC-32, that of
    /// the whole is the same whatever the text. A frame in which one sound record had taken the
    /// place of another of its length would pass.
    fn checksum(&self, offset: u64, parts: [&[u8]; 2]) -> u32 {
        let mut salt = [0; 24];
        salt[..8].copy_from_slice(&self.store_id.to_le_bytes());
        salt[8..16].copy_from_slice(&self.number.to_le_bytes());
        salt[16..].copy_from_slice(&offset.to_le_bytes());
        parts.iter().fold(crc32c::crc32c(&salt), |crc, part| {
            crc32c::crc32c_append(crc, part)
        })
    }
}

/// How many bytes a frame takes that is `len` bytes long before it is sealed.
pub(super) fn sealed_len(len: usize) -> u64 {
    (len as u64).next_multiple_of(ALIGNMENT as u64)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::simulated::{Calls, Disk, Operation};

    const LEN: u64 = 1 << 16;
    const NONCES: [u64; 2] = [0, 0x0123_4567_89ab_cdef];

    fn segment(files: &dyn Files, nonce: u64) -> Segment {
        Segment {
            version: VERSION,
            number: 3,
            store_id: 7,
            first_commit: 40,
            nonce,
            file: files.create(&format!("of-{nonce}"), LEN).unwrap(),
            len: LEN,
            frames_end: frames_end(LEN, nonce),
        }
    }

    /// Somebody who knows all but the nonce made a frame of a later commit.
    #[test]
    fn bytes_of_a_payload_are_no_commit() {
        let disk = Disk::default();
        let files = disk.files("");
        for nonce in NONCES {
            let segment = segment(&*files, nonce);
            let stranger = Segment {
                nonce: 0,
                ..segment.clone()
            };
            let mut frame = vec![1; FRAME_HEADER + 100];
            stranger.seal(4_096, 50, &mut frame);
            segment.file.write_at(4_096, &frame).unwrap();
            let found = segment.later_commit(FRAMES_BEGIN, 41).unwrap();
            // Without a nonce it is one.
            assert_eq!(found.is_some(), nonce == 0, "{nonce}: {found:?}");
        }
    }

    #[test]
    fn bytes_that_look_like_commits_are_read_once() {
        let disk = Disk::default();
        let files = disk.files("");
        let reads = || disk.calls(Calls::Only(Operation::Read));
        for nonce in NONCES {
            let segment = segment(&*files, nonce);
            for offset in (FRAMES_BEGIN..LEN / 2).step_by(FRAME_HEADER) {
                let mut header = [0; FRAME_HEADER];
                header[4..8].copy_from_slice(&(1_u32 << 14).to_le_bytes());
                header[8..].copy_from_slice(&50_u64.to_le_bytes());
                segment.file.write_at(offset, &header).unwrap();
            }
            let before = reads();
            assert_eq!(segment.later_commit(FRAMES_BEGIN, 41).unwrap(), None);
            let reads = reads() - before;
            assert_eq!(reads == 1, nonce != 0, "{nonce}: {reads}");
        }
    }
}
