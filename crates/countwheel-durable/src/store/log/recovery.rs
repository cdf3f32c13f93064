//! Reads a log from its beginning to its end, and decides where that is.

use std::collections::BTreeMap;

use super::batch::{self, Logged};
use super::segment::{FRAME_HEADER, FRAMES_BEGIN, Frame, Header, Segment, read_header};
use super::young::Table;
use super::{State, damaged, io_error, located};
use crate::store::embedded::codec::Indexed;
use crate::store::files::Files;
use crate::store::{Change, Store, StoreError};

/// What a directory holds.
pub(super) struct Found {
    /// In order.
    pub(super) segments: Vec<Segment>,
    pub(super) spares: Vec<String>,
    pub(super) next_spare: u64,
}

/// What a log holds.
pub(super) struct Recovered {
    pub(super) state: State,
    /// The last segment, and where the next frame goes; `None` if there is no segment.
    pub(super) end: Option<(Segment, u64)>,
    pub(super) next_commit: u64,
}

/// Looks for the files of a log.
pub(super) fn find(files: &dyn Files, store_id: u64) -> Result<Found, StoreError> {
    let on_error = |source| io_error(files, source);
    let not_a_store = |name: &str, problem: String| StoreError::NotAStore {
        path: files.path().join(name),
        problem,
    };
    let mut segments = BTreeMap::new();
    let mut spares = Vec::new();
    let mut next_spare = 0;
    for name in files.list().map_err(on_error)? {
        if let Some(number) = name.strip_prefix("spare-") {
            next_spare = next_spare.max(number.parse().unwrap_or(0));
            spares.push(name);
            continue;
        }
        let Some(number) = Segment::number_of(&name) else {
            return Err(not_a_store(&name, "is no file of a log".to_owned()));
        };
        let file = files.open(&name).map_err(on_error)?;
        let (first_commit, first_part) = match read_header(&*file).map_err(on_error)? {
            Header::Of {
                number: found,
                store_id: of,
                first_commit,
                first_part,
            } if found == number && of == store_id => (first_commit, first_part),
            Header::Of { store_id: of, .. } if of != store_id => {
                return Err(not_a_store(&name, format!("belongs to store {of:016x}")));
            }
            Header::Later { version } => {
                return Err(not_a_store(
                    &name,
                    format!("is of a later version, {version}"),
                ));
            }
            Header::Of { .. } | Header::None => {
                return Err(StoreError::Corrupt {
                    path: files.path().join(&name),
                    problem: "at offset 0: the header is damaged".to_owned(),
                });
            }
        };
        let len = file.length().map_err(on_error)?;
        segments.insert(
            number,
            Segment {
                number,
                store_id,
                first_commit,
                first_part,
                file,
                len,
            },
        );
    }
    let mut numbers = segments.keys().copied();
    let first = numbers.next().unwrap_or(0);
    for (expected, number) in (first + 1..).zip(numbers) {
        if number != expected {
            return Err(not_a_store(
                &Segment::name_of(expected),
                "is missing".to_owned(),
            ));
        }
    }
    Ok(Found {
        segments: segments.into_values().collect(),
        // Whether they were really made in full is not known.
        spares: Vec::new(),
        next_spare,
    }
    .discard(files, &spares))
}

impl Found {
    /// Files that were left behind: nothing is known of them, and new ones are soon made.
    fn discard(self, files: &dyn Files, spares: &[String]) -> Self {
        for spare in spares {
            if let Err(error) = files.remove(spare) {
                tracing::warn!(spare, %error, "a spare segment could not be removed");
            }
        }
        self
    }
}

/// Reads everything that was committed.
pub(super) fn replay(
    base: &dyn Store,
    files: &dyn Files,
    segments: &[Segment],
) -> Result<Recovered, StoreError> {
    let mut replay = Replay {
        base,
        files,
        state: State {
            shards: BTreeMap::new(),
            segments: BTreeMap::new(),
        },
        next_commit: segments.first().map_or(0, |first| first.first_commit),
        // What comes before this part of its commit was in a segment that has moved since.
        parts_before: segments.first().map_or(0, |first| first.first_part),
        parts: Vec::new(),
        last: Vec::new(),
    };
    let mut end = None;
    for (index, segment) in segments.iter().enumerate() {
        if segment.first_commit != replay.next_commit {
            // The one before had more, and it was synced before this one was begun.
            return Err(replay.lost(
                &segments[index.saturating_sub(1)],
                end.map_or(0, |(_, at)| at),
            ));
        }
        let offset = replay.read(segment)?;
        replay
            .state
            .segments
            .insert(segment.number, segment.clone());
        end = Some((segment.clone(), offset));
    }
    if let Some((last, offset)) = &end {
        replay.check_tail(last, *offset)?;
        replay.settle(last)?;
    }
    Ok(Recovered {
        state: replay.state,
        end,
        next_commit: replay.next_commit,
    })
}

struct Replay<'a> {
    base: &'a dyn Store,
    files: &'a dyn Files,
    state: State,
    next_commit: u64,
    parts_before: u32,
    /// What there is of the next commit.
    parts: Vec<(Segment, Frame)>,
    /// The last commit that was read.
    last: Vec<(Segment, Frame)>,
}

impl Replay<'_> {
    /// Reads a segment, and says where in it the last commit ends.
    fn read(&mut self, segment: &Segment) -> Result<u64, StoreError> {
        let mut end = FRAMES_BEGIN;
        let mut offset = FRAMES_BEGIN;
        loop {
            let frame = segment.read_frame(offset);
            let Some(frame) = frame.map_err(|source| io_error(self.files, source))? else {
                return Ok(end);
            };
            if frame.commit > self.next_commit {
                return Err(self.lost(segment, offset));
            }
            if frame.part == 0 {
                // What there was before is of an earlier try that did not come to its end.
                self.parts.clear();
                self.parts_before = 0;
            }
            let expected = u64::from(self.parts_before) + self.parts.len() as u64;
            if frame.commit < self.next_commit || u64::from(frame.part) != expected {
                return Ok(end);
            }
            offset = frame.end;
            let last = frame.part + 1 == frame.parts;
            self.parts.push((segment.clone(), frame));
            if last {
                self.apply()?;
                self.next_commit += 1;
                self.parts_before = 0;
                end = offset;
            }
        }
    }

    fn apply(&mut self) -> Result<(), StoreError> {
        self.last = std::mem::take(&mut self.parts);
        for (segment, frame) in &self.last {
            let decoded = batch::decode(&frame.body);
            let (shard, changes) =
                decoded.map_err(|error| damaged(self.files, segment, frame.body_at, &error))?;
            if !self.state.shards.contains_key(&shard) {
                let table = Table::with_counts(self.base.counts(shard)?);
                self.state.shards.insert(shard, table);
            }
            let Some(table) = self.state.shards.get_mut(&shard) else {
                continue;
            };
            for (logged, at) in located(segment, frame, changes) {
                let (change, name) = match logged {
                    Logged::Put { record, .. } => {
                        let name = record.name.clone();
                        (Change::put(*record), Some(name))
                    }
                    Logged::Remove { name, .. } => (Change::remove(name.clone()), Some(name)),
                    Logged::Given(revision) => (Change::Given(revision), None),
                };
                let unknown = name.filter(|name| table.get(name).is_none());
                let old = match unknown {
                    Some(name) => self.base.get(shard, &name)?,
                    None => None,
                };
                table.apply(&change, at, old.as_ref().map(Indexed::of));
            }
        }
        Ok(())
    }

    /// Makes durable what was read. The process before may have ended before its last sync, or
    /// because it failed; and after a sync that failed, another one says nothing about what was
    /// written before it. So what that sync was for is written again.
    fn settle(&self, segment: &Segment) -> Result<(), StoreError> {
        let write = || {
            let frames = self.last.iter();
            for (_, frame) in frames.filter(|(in_segment, _)| in_segment.number == segment.number) {
                let at = frame.body_at - FRAME_HEADER as u64;
                let (bytes, _) =
                    segment.frame(at, frame.commit, frame.part, frame.parts, &frame.body);
                segment.file.write_at(at, &bytes)?;
            }
            segment.file.sync()?;
            self.files.sync()
        };
        write().map_err(|source| io_error(self.files, source))
    }

    /// Behind the last commit there is nothing, or what is left of one that was not synced.
    fn check_tail(&self, last: &Segment, offset: u64) -> Result<(), StoreError> {
        let later = last.later_commit(offset, self.next_commit);
        if later
            .map_err(|source| io_error(self.files, source))?
            .is_some()
        {
            return Err(self.lost(last, offset));
        }
        Ok(())
    }

    /// A commit that was synced cannot be read.
    fn lost(&self, segment: &Segment, offset: u64) -> StoreError {
        StoreError::Corrupt {
            path: self.files.path().join(segment.name()),
            problem: format!(
                "at offset {offset}: commit {} cannot be read, and later ones can",
                self.next_commit
            ),
        }
    }
}
