//! The files of one moment, for a copy of the log while it goes on.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::LogStore;
use crate::{Reached, Sorted, StoreError, StoreFile};

/// What a log was behind one commit. Of what is in it nothing changes any more.
pub(crate) struct Frozen {
    /// Its newest segment, and the last commit that is in it.
    pub(crate) reached: Reached,
    /// Oldest first.
    pub(crate) segments: Vec<FrozenSegment>,
}

/// One segment, up to that commit.
pub(crate) struct FrozenSegment {
    pub(crate) name: String,
    /// How long its file is.
    pub(crate) len: u64,
    /// What is used of it; in between are zeros.
    used: [Range<u64>; 2],
    file: Arc<dyn StoreFile>,
}

impl FrozenSegment {
    /// Hands over what is used of it, piece by piece, and where each stands.
    pub(crate) fn read(
        &self,
        mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut piece = vec![0; 1 << 20];
        for Range { start, end } in self.used.clone() {
            let mut at = start;
            while at < end {
                let len = usize::try_from(end - at).unwrap_or(usize::MAX);
                let piece = &mut piece[..len.min(1 << 20)];
                self.file.read_at(at, piece)?;
                each(at, piece)?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }
}

impl<B: Sorted> LogStore<B> {
    /// Hands over what the log is at this moment, and what stands behind it. Nothing is flushed, so
    /// that no segment is freed, until `copy` returns. Commits go on, as long as the log has room;
    /// they wait only while it is noted where the log ends.
    pub(crate) fn frozen<T>(
        &self,
        copy: impl FnOnce(&B, Frozen) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let _nothing_flushed = self.flushing.lock();
        let writer = self.writer()?;
        let (active, end, next) = (writer.active.number, writer.offset, writer.next_commit);
        drop(writer);
        // What is begun behind the end is left out.
        let ingested = self.base.ingested();
        let state = self.state();
        let segments = state.segments.range(ingested.saturating_add(1)..=active);
        let segments = segments.map(|(&number, segment)| FrozenSegment {
            name: segment.name(),
            len: segment.len,
            used: if number == active {
                // What is between was not committed yet; the second header follows.
                [0..end, segment.frames_end..segment.len]
            } else {
                [0..segment.len, segment.len..segment.len]
            },
            file: Arc::clone(&segment.file),
        });
        let segments = segments.collect();
        drop(state);
        let reached = Reached {
            segment: active,
            commit: next - 1,
        };
        copy(&self.base, Frozen { reached, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogOptions, MemorySorted, SystemFiles};

    #[test]
    fn nothing_is_flushed_while_it_is_copied_and_commits_go_on() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = LogOptions {
            segment_bytes: 1 << 14,
            ..LogOptions::default()
        };
        let files = Arc::new(SystemFiles::new(directory.path()));
        let log = LogStore::open(MemorySorted::default(), files, 7, options).expect("a log");
        let frozen = log.frozen(|_, frozen| {
            assert!(
                log.flushing.try_lock().is_none(),
                "a segment could be freed"
            );
            assert!(log.writer.try_lock().is_some(), "commits wait");
            assert!(log.state.try_write().is_some(), "commits wait");
            Ok(frozen.segments.len())
        });
        assert_eq!(frozen.expect("a copy"), 1);
    }
}
