//! Reads the checksums of tables and of the manifest, a piece at a time.

use std::io;
use std::sync::Arc;

use super::TableStore;
use super::block::{Block, Entries};

use super::directory::Directory;
use super::format::{FRAME_HEADER, Kind, Pointer, Value, frame_len, name_of, u32_at};
use super::manifest::Manifest;
use super::reader::Table;
use crate::Trouble;
use crate::files::cannot_open;
use crate::planted::planted;
use crate::scrub::{At, Found, Piece};
use crate::{DiskError, Scrubbed, StoreError};

/// No table has this number.
const MANIFEST: u64 = u64::MAX;
/// So much of a damaged table is looked through for its next frame at a time.
const WINDOW: usize = 1 << 16;
/// Frames begin at multiples of this.
const STEP: usize = 8;

impl TableStore {
    pub(super) fn scrub_tables(&self, budget: u64) -> Scrubbed {
        let list = || {
            let version = self.version();
            let tables = version.tables().map(|(_, table)| table.entry.number);
            tables.chain([MANIFEST]).collect()
        };
        let files = &*self.directory.files;
        self.scrub.step(files, budget, list, |file, at, found| {
            if file == MANIFEST {
                return self.scrub_manifest(found);
            }
            let version = self.version();
            let mut tables = version.tables();
            let Some((run, table)) = tables.find(|(_, table)| table.entry.number == file) else {
                return GONE;
            };
            table.scrub_lost(at.offset, found, |key| version.is_replaced(run, key));
            table.scrub(at, found)
        })
    }

    pub(super) fn scrub_troubles(&self) -> Vec<Trouble> {
        let version = self.version();
        let directory = self.directory.files.path();
        self.scrub.troubles(|path| {
            path == directory.join(Directory::MANIFEST)
                || version
                    .tables()
                    .any(|(_, t)| path == directory.join(t.name()))
        })
    }

    fn scrub_manifest(&self, found: &mut Found) -> Piece {
        let files = &*self.directory.files;
        let problem = match Manifest::read(files, self.directory.store_id) {
            Ok(Some(_)) => return GONE,
            Ok(None) => "is missing".to_owned(),
            // With too many files open it may be as sound as ever.
            Err(StoreError::Disk(DiskError::Io { source, .. })) if cannot_open(&source) => {
                return GONE;
            }
            Err(error) => error.to_string(),
        };
        found.note(&files.path().join(Directory::MANIFEST), 0, &problem);
        GONE
    }
}

/// Nothing is left to read of the file.
const GONE: Piece = Piece {
    bytes: 0,
    next: None,
};

impl Table {
    /// Reads the frame that stands there.
    fn scrub(self: &Arc<Self>, at: At, found: &mut Found) -> Piece {
        let offset = at.offset;
        let length = self.entry.length;
        let go_on = |bytes, offset| Piece {
            bytes,
            next: (offset < length).then_some(At { offset, commit: 0 }),
        };
        match self.frame_at(offset) {
            Ok(Some(end)) => go_on(end - offset, end),
            Ok(None) => {
                found.note(&self.path(), offset, "a checksum does not match");
                match self.frame_after(offset) {
                    Ok(next) => go_on(next - offset, next),
                    Err(error) => {
                        found.note(&self.path(), offset, &error.to_string());
                        go_on(length - offset, length)
                    }
                }
            }
            Err(error) => {
                found.note(&self.path(), offset, &error.to_string());
                // Perhaps only these bytes: the next piece tells.
                let end = length.min(offset + WINDOW as u64);
                match self.frame_after(end) {
                    Ok(next) => go_on(next - offset, next),
                    Err(_) => go_on(length - offset, length),
                }
            }
        }
    }

    /// Notes the records of the frame at `offset` that could not be read when they were flushed
    /// here: their bytes are whole, but a timer is lost, and only the process that flushed it has
    /// said so.
    fn scrub_lost(
        &self,
        offset: u64,
        found: &mut Found,
        is_replaced: impl Fn(&[u8]) -> Result<bool, StoreError>,
    ) {
        let mut header = [0; FRAME_HEADER];
        let read = self.store_file().read_at(offset, &mut header);
        if read.is_err() || Kind::of(header[8]) != Some(Kind::Records) {
            return;
        }
        let len = u32_at(&header, 4);
        let frame = self.frame(Pointer { offset, len }, Kind::Records);
        // What cannot be read now is said as such.
        let Some(block) = frame
            .ok()
            .and_then(|bytes| Block::new(bytes, FRAME_HEADER, offset).ok())
        else {
            return;
        };
        let mut entries = Entries::new(Arc::new(block));
        while matches!(entries.advance(), Ok(true)) {
            let is_lost = matches!(Value::read(entries.value()), Ok(Value::Unreadable(_)));
            if is_lost
                && !matches!(is_replaced(entries.key()), Ok(true))
                && let Ok((_, name)) = name_of(entries.key())
            {
                let problem = format!("the record {name} could not be read when it moved");
                found.note(&self.path(), offset, &problem);
            }
        }
    }

    /// Where the frame at `offset` ends, with what fills up to the next one; `None` if there is
    /// none, or something else than zeros behind it.
    fn frame_at(&self, offset: u64) -> io::Result<Option<u64>> {
        let left = self.entry.length - offset;
        let mut header = [0; FRAME_HEADER];
        if left < header.len() as u64 {
            return Ok(None);
        }
        let file = self.store_file();
        file.read_at(offset, &mut header)?;
        let body = u32_at(&header, 4) as usize;
        if !looks_sound(&header) || frame_len(body) > left {
            return Ok(None);
        }
        let whole = usize::try_from(frame_len(body)).map_err(io::Error::other)?;
        let mut bytes = vec![0; whole - FRAME_HEADER];
        file.read_at(offset + FRAME_HEADER as u64, &mut bytes)?;
        let (body, padding) = bytes.split_at(body);
        let checksum = self.place().checksum(offset, header[8], body);
        let looks_away = planted!(ScrubLooksAway) && Kind::of(header[8]) == Some(Kind::Due);
        let is_sound =
            (checksum == u32_at(&header, 0) || looks_away) && padding.iter().all(|&byte| byte == 0);
        Ok(is_sound.then_some(offset + whole as u64))
    }

    /// Where the first whole frame behind `offset` stands, or the end.
    fn frame_after(&self, offset: u64) -> io::Result<u64> {
        let length = self.entry.length;
        let mut window = vec![0; WINDOW + FRAME_HEADER];
        let mut start = (offset + 1).next_multiple_of(STEP as u64);
        while start + FRAME_HEADER as u64 <= length {
            let left = usize::try_from(length - start).unwrap_or(usize::MAX);
            let bytes = &mut window[..left.min(WINDOW + FRAME_HEADER)];
            self.store_file().read_at(start, bytes)?;
            for at in (0..WINDOW).step_by(STEP) {
                let Some(header) = bytes.get(at..at + FRAME_HEADER) else {
                    break;
                };
                if looks_sound(header) && self.frame_at(start + at as u64)?.is_some() {
                    return Ok(start + at as u64);
                }
            }
            start += WINDOW as u64;
        }
        Ok(length)
    }
}

/// Whether these bytes may begin a frame.
fn looks_sound(header: &[u8]) -> bool {
    Kind::of(header[8]).is_some() && header[9..] == [0; 3]
}
