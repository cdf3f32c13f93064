//! The bytes of a log: segments, and the frames in them.
//!
//! A **segment** is a file of fixed length. It begins with a header: what it is, its number,
//! the store's id, the commit and the part of it that come first, a checksum. After that come frames, each at a multiple of eight bytes:
//!
//! ```text
//! | checksum u32 | length u32 | commit u64 | part u32 | parts u32 | body ... | to a multiple of 8 |
//! ```
//!
//! All numbers are little endian. The checksum is the CRC-32 of what follows it up to the end of
//! the body, and of where the frame stands: the store's id, the segment's number, the offset.
//! So bytes of another store, of an earlier life of the file or of somebody's payload are no
//! frame.
//!
//! One commit is one frame, or several **parts** if it is too long for the rest of a segment. It
//! counts only with all its parts. Commits are numbered without a gap, and one is written only
//! after the one before was synced. So where the frames end, either nothing follows, or the
//! remains of the one commit that was never acknowledged: a **torn tail**. If instead a frame
//! of a later commit follows, then something was damaged that had been synced.

use std::io;
use std::sync::Arc;

use crate::store::files::StoreFile;

/// Where the first frame of a segment stands.
pub(super) const FRAMES_BEGIN: u64 = HEADER_BYTES as u64;
const HEADER_BYTES: usize = 64;
/// The bytes of a frame before its body.
pub(super) const FRAME_HEADER: usize = 24;
const ALIGNMENT: u64 = 8;
const MAGIC: [u8; 8] = *b"cwheelog";
const VERSION: u32 = 1;

/// One segment, and what says where its frames stand.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) store_id: u64,
    /// The commit and the part of it with which the segment begins.
    pub(super) first_commit: u64,
    pub(super) first_part: u32,
    pub(super) file: Arc<dyn StoreFile>,
    pub(super) len: u64,
}

/// One frame that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) commit: u64,
    pub(super) part: u32,
    pub(super) parts: u32,
    /// Where its body stands.
    pub(super) body_at: u64,
    pub(super) body: Vec<u8>,
    /// Where the next frame would stand.
    pub(super) end: u64,
}

/// What the beginning of a segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Header {
    Of {
        number: u64,
        store_id: u64,
        first_commit: u64,
        first_part: u32,
    },
    /// Written by a later version.
    Later { version: u32 },
    /// Never written, or not in full.
    None,
}

pub(super) fn read_header(file: &dyn StoreFile) -> io::Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    if file.length()? < FRAMES_BEGIN {
        return Ok(Header::None);
    }
    file.read_at(0, &mut bytes)?;
    let (covered, crc) = bytes.split_at(60);
    if covered[..8] != MAGIC || crc32fast::hash(covered).to_le_bytes() != crc {
        return Ok(Header::None);
    }
    let version = u32_at(covered, 8);
    if version != VERSION {
        return Ok(Header::Later { version });
    }
    Ok(Header::Of {
        number: u64_at(covered, 16),
        store_id: u64_at(covered, 24),
        first_commit: u64_at(covered, 32),
        first_part: u32_at(covered, 40),
    })
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

    /// Writes the header. Not synced.
    pub(super) fn write_header(&self) -> io::Result<()> {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_commit.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.first_part.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(0, &bytes)
    }

    /// The bytes of a frame that is to stand at `offset`, and where its body then stands.
    pub(super) fn frame(
        &self,
        offset: u64,
        commit: u64,
        part: u32,
        parts: u32,
        body: &[u8],
    ) -> (Vec<u8>, u64) {
        let mut bytes = Vec::with_capacity(FRAME_HEADER + body.len() + 8);
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&commit.to_le_bytes());
        bytes.extend_from_slice(&part.to_le_bytes());
        bytes.extend_from_slice(&parts.to_le_bytes());
        bytes.extend_from_slice(body);
        let crc = self.checksum(offset, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        (bytes, offset + FRAME_HEADER as u64)
    }

    /// The frame at `offset`; `None` if there is none.
    pub(super) fn read_frame(&self, offset: u64) -> io::Result<Option<Frame>> {
        let header_end = offset + FRAME_HEADER as u64;
        if header_end > self.len {
            return Ok(None);
        }
        let mut header = [0; FRAME_HEADER];
        self.file.read_at(offset, &mut header)?;
        let length = u64::from(u32_at(&header, 4));
        // Whatever a damaged length says, no more is read than a segment holds.
        if length == 0 || length > self.len - header_end {
            return Ok(None);
        }
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let mut bytes = vec![0; FRAME_HEADER + length];
        self.file.read_at(offset, &mut bytes)?;
        if self.checksum(offset, &bytes[4..]) != u32_at(&header, 0) {
            return Ok(None);
        }
        let frame = Frame {
            commit: u64_at(&header, 8),
            part: u32_at(&header, 16),
            parts: u32_at(&header, 20),
            body_at: header_end,
            body: bytes.split_off(FRAME_HEADER),
            end: (header_end + length as u64).next_multiple_of(ALIGNMENT),
        };
        Ok((frame.part < frame.parts).then_some(frame))
    }

    /// The first frame at or behind `offset` of a commit after `commit`: proof that what stands
    /// before it had been synced. Reads the rest of the segment.
    pub(super) fn later_commit(&self, offset: u64, commit: u64) -> io::Result<Option<Frame>> {
        let len = usize::try_from(self.len.saturating_sub(offset)).map_err(io::Error::other)?;
        let mut rest = vec![0; len];
        self.file.read_at(offset, &mut rest)?;
        let mut at = 0;
        while at + FRAME_HEADER <= rest.len() {
            // A cheap look first: most of it is zeros or somebody's payload.
            let length = u32_at(&rest, at + 4) as usize;
            let body_end = at.saturating_add(FRAME_HEADER).saturating_add(length);
            if length > 0 && body_end <= rest.len() && u64_at(&rest, at + 8) > commit {
                let crc = self.checksum(offset + at as u64, &rest[at + 4..body_end]);
                if crc == u32_at(&rest, at) {
                    return self.read_frame(offset + at as u64);
                }
            }
            at += 8;
        }
        Ok(None)
    }

    fn checksum(&self, offset: u64, covered: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.store_id.to_le_bytes());
        hasher.update(&self.number.to_le_bytes());
        hasher.update(&offset.to_le_bytes());
        hasher.update(covered);
        hasher.finalize()
    }
}

/// How many bytes a frame with such a body takes.
pub(super) fn frame_len(body: usize) -> u64 {
    ((FRAME_HEADER + body) as u64).next_multiple_of(ALIGNMENT)
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
