//! Reads a log from its beginning to its end, and decides where that is.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::batch::{self, Changes, Counts, Form, Logged, ShardSnapshot};
use super::memtable::{LogPlace, Memtable};
use super::segment::{
    FRAME_HEADER, FRAMES_BEGIN, Frame, Header, Segment, frames_end, read_header, sealed_len,
};
use super::supply::{Spare, Supply};
use super::{Recovery, State, damaged, io_error};
use crate::codec::{CodecError, Indexed};
use crate::directory::write_failed;
use crate::files::Files;
use crate::planted::planted;
use crate::{DiskError, Reached, StoreError};
use crate::{TimerName, Trouble};

/// No log comes to a spare of a higher number.
const SPARES_MAX: u64 = 1 << 62;

/// What a directory holds.
pub(super) struct Found {
    /// Those that the sorted store has not taken in, in order.
    pub(super) segments: Vec<Segment>,
    /// Those of them of which the second header is damaged, by number. The first one is enough to
    /// go on.
    pub(super) one_header: Vec<(u64, Trouble)>,
    /// The names of those that it has taken in.
    pub(super) flushed: Vec<String>,
    pub(super) spares: Vec<String>,
    /// What nobody can use.
    pub(super) unfinished: Vec<String>,
    pub(super) next_name: u64,
}

/// What a log holds.
pub(super) struct Recovered {
    pub(super) state: State,
    /// The last segment, where its first commit stands and where the next frame goes; `None` if
    /// there is no segment.
    pub(super) end: Option<(Segment, u64, u64)>,
    pub(super) next_commit: u64,
    pub(super) recovery: Recovery,
    /// In which segment the last copy of the counts begins that is whole.
    pub(super) copied: u64,
    /// The last commit, if it stands in the last segment.
    last_commit: Option<(Frame, Vec<u8>)>,
}

impl Recovered {
    /// Makes durable what was read. The process before may have ended before its last sync, or
    /// because it failed; and after a sync that failed, another one says nothing about what was
    /// written before it. So what that sync was for is written again.
    pub(super) fn persist(&self, files: &dyn Files) -> Result<(), StoreError> {
        let Some((segment, ..)) = &self.end else {
            return Ok(());
        };
        let write = || {
            if let Some((frame, body)) = &self.last_commit
                && !planted!(LogPersistsWithoutWrite)
            {
                let mut bytes = vec![0; FRAME_HEADER];
                bytes.extend_from_slice(body);
                let at = frame.body_at - FRAME_HEADER as u64;
                segment.seal(at, frame.commit, &mut bytes);
                segment.file.write_at(at, &bytes)?;
            }
            segment.file.sync()?;
            files.sync()
        };
        write().map_err(|source| write_failed(&files.path(), source))
    }
}

/// Looks for the files of a log of which the sorted store has taken in all segments up to
/// `ingested`, and which is known to have `reached` so far. Changes nothing.
pub(super) fn find(
    files: &dyn Files,
    store_id: u64,
    ingested: u64,
    reached: Option<Reached>,
) -> Result<Found, StoreError> {
    let on_error = |source| io_error(files, source);
    let mut found = Found {
        segments: Vec::new(),
        one_header: Vec::new(),
        flushed: Vec::new(),
        spares: Vec::new(),
        unfinished: Vec::new(),
        next_name: 0,
    };
    let mut segments = BTreeMap::new();
    for name in files.list().map_err(on_error)? {
        let finished = name.strip_prefix("making-");
        if let Some(number) = finished.unwrap_or(&name).strip_prefix("spare-") {
            // One that is higher than any that was given is not in the way.
            let number = number.parse().ok().filter(|&number| number <= SPARES_MAX);
            found.next_name = found.next_name.max(number.unwrap_or(0));
            match finished {
                Some(_) => found.unfinished.push(name),
                None => found.spares.push(name),
            }
            continue;
        }
        match Segment::number_of(&name) {
            Some(number) if number <= ingested => found.flushed.push(name),
            Some(number) => {
                segments.insert(number, open(files, &name, number, store_id)?);
            }
            None => {
                return Err(DiskError::NotAStore {
                    path: files.path().join(&name),
                    problem: "is no file of a log".to_owned(),
                }
                .into());
            }
        }
    }
    // A segment is there from the first opening on, and the last is never taken in.
    let is_new = segments.is_empty() && ingested == 0 && reached.is_none();
    let last = segments.last_key_value().map_or(ingested + 1, |(&n, _)| n);
    let last = reached.map_or(last, |reached| last.max(reached.segment));
    for expected in ingested + 1..=last {
        if !is_new && !segments.contains_key(&expected) {
            return Err(DiskError::NotAStore {
                path: files.path().join(Segment::name_of(expected)),
                problem: "is missing".to_owned(),
            }
            .into());
        }
    }
    found.segments = segments.into_values().collect();
    if planted!(LogTrustsOneLength)
        && let Some(len) = found.segments.first().map(|first| first.len)
    {
        for segment in &mut found.segments {
            segment.len = len.min(segment.len);
            segment.frames_end = frames_end(segment.len, segment.nonce);
        }
    }
    let damaged = found.segments.iter().filter_map(|segment| {
        let has_both = segment.has_second_header().unwrap_or(false);
        (!has_both).then(|| (segment.number, segment.one_header_left(&files.path())))
    });
    found.one_header = damaged.collect();
    Ok(found)
}

pub(super) fn open(
    files: &dyn Files,
    name: &str,
    number: u64,
    store_id: u64,
) -> Result<Segment, StoreError> {
    let on_error = |source| io_error(files, source);
    let not_a_store = |problem: String| {
        DiskError::NotAStore {
            path: files.path().join(name),
            problem,
        }
        .into()
    };
    let file = files.open(name).map_err(on_error)?;
    let (version, first_commit, len, nonce) = match read_header(&*file).map_err(on_error)? {
        Header::Of {
            version,
            number: found,
            store_id: of,
            first_commit,
            len,
            nonce,
        } if found == number && of == store_id => (version, first_commit, len, nonce),
        Header::Of { store_id: of, .. } if of != store_id => {
            return Err(not_a_store(format!("belongs to store {of:016x}")));
        }
        Header::Other { version } => {
            return Err(not_a_store(format!("is of another version, {version}")));
        }
        Header::Of { .. } | Header::None => {
            return Err(DiskError::Corrupt {
                path: files.path().join(name),
                problem: "at offset 0: the header is damaged".to_owned(),
            }
            .into());
        }
    };
    let found = file.length().map_err(on_error)?;
    if found != len {
        return Err(DiskError::Corrupt {
            path: files.path().join(name),
            problem: format!("it has {found} bytes instead of {len}"),
        }
        .into());
    }
    Ok(Segment {
        version,
        number,
        store_id,
        first_commit,
        nonce,
        len,
        frames_end: frames_end(len, nonce),
        file,
    })
}

/// Makes spares of what is not needed any more, and removes what cannot be one. The segments
/// that were flushed have lost their names for good when this returns.
pub(super) fn recycle(supply: &mut Supply, found: Found) -> Result<(), StoreError> {
    let files = std::sync::Arc::clone(&supply.files);
    let on_error = |source| io_error(&*files, source);
    supply.next_name = found.next_name;
    for name in found.unfinished {
        files.remove(&name).map_err(on_error)?;
    }
    let with_len = |name: String| {
        let len = files.open(&name).and_then(|file| file.length());
        len.map(|len| Spare { name, len }).map_err(on_error)
    };
    let spares = found.spares.into_iter().map(with_len);
    let mut spares = spares.collect::<Result<Vec<_>, _>>()?;
    let flushed = found.flushed.into_iter().map(with_len);
    let mut flushed = flushed.collect::<Result<Vec<_>, _>>()?;
    let segments = found.segments.iter().map(|segment| segment.len);
    let segments = segments.chain(flushed.iter().map(|segment| segment.len));
    supply.learn(segments, &spares);
    // Longer ones first: of those there are never too many.
    spares.sort_by_key(|spare| Reverse(spare.len));
    flushed.sort_by_key(|segment| Reverse(segment.len));
    for spare in spares {
        if supply.keeps(spare.len) {
            supply.add(spare);
        } else {
            files.remove(&spare.name).map_err(on_error)?;
        }
    }
    for Spare { name, len } in flushed {
        if supply.keeps(len) {
            let spare = supply.spare_name();
            files.rename(&name, &spare).map_err(on_error)?;
            supply.add(Spare { name: spare, len });
        } else {
            files.remove(&name).map_err(on_error)?;
        }
    }
    files.sync().map_err(on_error)
}

/// Reads everything that was committed and that the sorted store has not. Writes nothing.
pub(super) fn replay(
    files: &dyn Files,
    segments: &[Segment],
    reached: Option<Reached>,
) -> Result<Recovered, StoreError> {
    let mut replay = Replay {
        files,
        state: State::default(),
        ingested: segments.first().map_or(0, |first| first.number - 1),
        next_commit: segments.first().map_or(1, |first| first.first_commit),
        body: Vec::new(),
        last_body: Vec::new(),
        last: None,
        copied: 0,
        copy_begins: None,
        copy_bytes: 0,
        recovery: Recovery::default(),
    };
    let total: u64 = segments.iter().map(|segment| segment.len).sum();
    let mut done = 0;
    let mut end: Option<(Segment, u64, u64)> = None;
    for segment in segments {
        if segment.first_commit != replay.next_commit
            && let Some((before, _, at)) = &end
        {
            // The one before had more, and it was synced before this one was begun.
            let later = before.later_commit(*at, replay.next_commit);
            let later = later.map_err(|source| io_error(files, source))?;
            let later = later.map_or(segment.first_commit, |frame| frame.commit);
            return Err(replay.lost(before, *at, later));
        }
        let begins_at = replay.begin(segment, end.is_none())?;
        let offset = replay.read(segment, begins_at)?;
        let segments = &mut replay.state.segments;
        segments.insert(segment.number, segment.clone());
        end = Some((segment.clone(), begins_at, offset));
        done += segment.len;
        tracing::info!(done, total, "read the log, in bytes");
    }
    if let Some((last, _, offset)) = &end {
        replay.check_tail(last, *offset)?;
        replay.check_reached(last, *offset, reached)?;
    }
    if let Some(first) = segments.first() {
        replay.check_counts(first)?;
    }
    let last = end.as_ref().map(|(last, ..)| last.number);
    Ok(Recovered {
        state: replay.state,
        end,
        next_commit: replay.next_commit,
        recovery: replay.recovery,
        copied: replay.copied,
        last_commit: replay
            .last
            .filter(|(number, _)| Some(*number) == last)
            .map(|(_, frame)| (frame, replay.last_body)),
    })
}

struct Replay<'a> {
    files: &'a dyn Files,
    state: State,
    /// The last segment that the sorted store has taken in: the one before the first.
    ingested: u64,
    next_commit: u64,
    body: Vec<u8>,
    /// The last commit that was read, and in which segment it stands.
    last_body: Vec<u8>,
    last: Option<(u64, Frame)>,
    /// In which segment the last copy of the counts begins that is whole, and the one that is read.
    copied: u64,
    copy_begins: Option<u64>,
    /// Bytes of the copy that is read.
    copy_bytes: u64,
    recovery: Recovery,
}

impl Replay<'_> {
    /// Reads the snapshot that a segment begins with, and says where it ends. The first is
    /// where the rest begins from; the others say what was read so far, once more.
    fn begin(&mut self, segment: &Segment, is_first: bool) -> Result<u64, StoreError> {
        let corrupt = |problem: &str| {
            DiskError::Corrupt {
                path: self.files.path().join(segment.name()),
                problem: format!("at offset {FRAMES_BEGIN}: {problem}"),
            }
            .into()
        };
        let frame = segment.read_frame(FRAMES_BEGIN, &mut self.body);
        let Some(frame) = frame.map_err(|source| io_error(self.files, source))? else {
            return Err(corrupt("the snapshot is damaged"));
        };
        let form = Form::of(&self.body);
        let wrong = || corrupt("the snapshot is not what the commits before come to");
        let is_counted = self.state.shards.values().all(Memtable::is_counted);
        if is_first || !is_counted {
            let decoded = batch::decode_snapshot(&self.body);
            let shards =
                decoded.map_err(|error| damaged(self.files, segment, frame.body_at, &error))?;
            if is_first {
                let tables = shards
                    .into_iter()
                    .map(|snapshot| (snapshot.shard, Memtable::of(snapshot)));
                self.state.shards = tables.collect();
            } else if !self.carries_on(shards) {
                return Err(wrong());
            }
        } else {
            let mut expected = Vec::new();
            self.state.snapshot_as(form, &mut expected);
            if expected[FRAME_HEADER..] != self.body {
                return Err(wrong());
            }
        }
        if form != Form::Sums {
            self.copied = segment.number;
        }
        Ok(frame.end)
    }

    /// Whether a snapshot says what the commits before come to, as far as that is known without the
    /// counts. If it has these, they are known from here on.
    fn carries_on(&mut self, shards: Vec<ShardSnapshot>) -> bool {
        let tables = &mut self.state.shards;
        let is_same = shards.len() == tables.len()
            && shards.iter().all(|snapshot| {
                tables.get(&snapshot.shard).is_some_and(|memtable| {
                    let known = (memtable.fence, memtable.last_revision, memtable.clock);
                    known == (snapshot.fence, snapshot.last_revision, snapshot.clock)
                })
            });
        for snapshot in shards {
            if let Some(memtable) = tables.get_mut(&snapshot.shard)
                && let Counts::Whole(counts) = snapshot.counts
            {
                memtable.adopt(&counts);
            }
        }
        is_same
    }

    /// The counts of all queues are known in the end.
    fn check_counts(&self, first: &Segment) -> Result<(), StoreError> {
        if self.state.shards.values().all(Memtable::is_counted) {
            return Ok(());
        }
        Err(DiskError::Corrupt {
            path: self.files.path().join(first.name()),
            problem: "the log has no copy of the counts of all queues".to_owned(),
        }
        .into())
    }

    /// Reads a segment's commits, and says where the last one ends.
    fn read(&mut self, segment: &Segment, begins_at: u64) -> Result<u64, StoreError> {
        let mut offset = begins_at;
        self.recovery.segments += 1;
        loop {
            let frame = segment.read_frame(offset, &mut self.body);
            let Some(frame) = frame.map_err(|source| io_error(self.files, source))? else {
                return Ok(offset);
            };
            // Whether a later one follows is looked for behind the end.
            if frame.commit != self.next_commit {
                return Ok(offset);
            }
            self.apply(segment, frame)
                .map_err(|error| damaged(self.files, segment, frame.body_at, &error))?;
            self.recovery.frames += 1;
            self.recovery.bytes += frame.end - offset;
            self.last = Some((segment.number, frame));
            std::mem::swap(&mut self.body, &mut self.last_body);
            self.next_commit += 1;
            offset = frame.end;
        }
    }

    fn apply(&mut self, segment: &Segment, frame: Frame) -> Result<(), CodecError> {
        let mut changes = Changes::of(&self.body)?;
        let place = |at: usize, len: usize| LogPlace {
            segment: segment.number,
            offset: frame.body_at + at as u64,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        };
        let named = |queue, key| TimerName::from_text(queue, key).map_err(|_| CodecError::Name);
        while let Some(change) = changes.next()? {
            let memtable = self.state.shards.entry(changes.shard).or_default();
            match change {
                Logged::Put {
                    record,
                    at,
                    replaces,
                } => {
                    let ((queue, key), indexed) = Indexed::named(record)?;
                    let (name, at) = (named(queue, key)?, place(at, record.len()));
                    let hash = memtable.hash(&name);
                    memtable.apply((&name, hash), Some(indexed), replaces, at);
                }
                Logged::Remove {
                    queue,
                    key,
                    at,
                    replaces,
                } => {
                    let name = named(queue, key)?;
                    let hash = memtable.hash(&name);
                    memtable.apply((&name, hash), None, replaces, place(at, 0));
                }
                Logged::Given(revision) => {
                    memtable.last_revision = memtable.last_revision.max(revision);
                }
                Logged::Clock(note) => memtable.clock = Some(note),
                Logged::Counts(piece) => {
                    memtable.copy_back(piece.part, &piece.counts()?)?;
                    if piece.part.is_first {
                        (self.copy_begins, self.copy_bytes) = (Some(segment.number), 0);
                    }
                    self.copy_bytes += sealed_len(FRAME_HEADER + self.body.len());
                    if piece.part.is_last {
                        self.state.copy_bytes = self.copy_bytes;
                        self.copied = self.copied.max(self.copy_begins.take().unwrap_or(0));
                    }
                }
                Logged::Fence(fence) => memtable.fence = fence,
                Logged::LowWater(note) => {
                    memtable.low_water.recover(note, self.ingested);
                    memtable.noted_in = segment.number;
                }
            }
        }
        Ok(())
    }

    /// The log reaches as far as it is known to have reached.
    fn check_reached(
        &self,
        last: &Segment,
        offset: u64,
        reached: Option<Reached>,
    ) -> Result<(), StoreError> {
        match reached {
            Some(Reached { commit, .. }) if commit >= self.next_commit => {
                let missing = unreadable(self.next_commit, commit.saturating_add(1));
                Err(DiskError::Corrupt {
                    path: self.files.path().join(last.name()),
                    problem: format!("at offset {offset}: the log ends here, and {missing}"),
                }
                .into())
            }
            _ => Ok(()),
        }
    }

    /// Behind the last commit there is nothing, or what is left of one that was not synced.
    fn check_tail(&mut self, last: &Segment, offset: u64) -> Result<(), StoreError> {
        let on_error = |source| io_error(self.files, source);
        let later = last.later_commit(offset, self.next_commit);
        if let Some(later) = later.map_err(on_error)? {
            return Err(self.lost(last, offset, later.commit));
        }
        let torn = last.torn(offset, self.next_commit).map_err(on_error)?;
        self.recovery.torn_bytes = torn;
        if torn > 0 {
            let segment = last.name();
            tracing::warn!(
                segment,
                offset,
                torn,
                "a commit that was not finished is cut off"
            );
        }
        Ok(())
    }

    /// Commits that were synced cannot be read: those before the commit `later`.
    fn lost(&self, segment: &Segment, offset: u64, later: u64) -> StoreError {
        DiskError::Corrupt {
            path: self.files.path().join(segment.name()),
            problem: format!(
                "at offset {offset}: {}, and later ones can",
                unreadable(self.next_commit, later)
            ),
        }
        .into()
    }
}

/// What to say of the commits from `first` on and before `later`.
pub(super) fn unreadable(first: u64, later: u64) -> String {
    match later.saturating_sub(first) {
        0 | 1 => format!("commit {first} cannot be read"),
        lost => format!("{lost} commits from {first} on cannot be read"),
    }
}
