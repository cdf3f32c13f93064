//! Reads what can be read of a log, whatever is damaged, and writes nothing.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use super::State;
use super::batch::{self, Changes, Logged};
use super::memtable::LogPlace;
use super::recovery::{self, unreadable};
use super::scrub::SECOND_HEADER_DAMAGED;
use super::segment::{
    FRAMES_BEGIN, Frame, Header, Segment, VERSION, frames_end, read_header, read_second_header,
};
use crate::codec::{self, CodecError};
use crate::files::Files;
use crate::{
    AtRisk, CheckReport, CheckedFile, ClockNote, DiskError, Fence, FileKind, Problem, QueueCounts,
    Reached, Shard, StoreError,
};
use crate::{QueueName, Record, Revision, StateKind, TimerName};

/// Where it is not known at which commit a segment stands, none but these is looked for: a
/// store has as many after a lifetime of commits all the time.
const COMMITS: RangeInclusive<u64> = 1..=1 << 48;

/// What a sound log says, for who only looks.
pub(crate) struct Looked {
    state: State,
    path: PathBuf,
}

/// Reads a log as an opening does, but writes nothing.
pub(crate) fn look(files: &dyn Files, store_id: u64, ingested: u64) -> Result<Looked, StoreError> {
    let found = recovery::find(files, store_id, ingested, None)?;
    let recovered = recovery::replay(files, &found.segments, None)?;
    Ok(Looked {
        state: recovered.state,
        path: files.path(),
    })
}

fn other_version(files: &dyn Files, name: &str, version: u32) -> StoreError {
    DiskError::NotAStore {
        path: files.path().join(name),
        problem: format!("is of another version, {version}"),
    }
    .into()
}

/// The store that most segments say they are of.
pub(crate) fn store_id(files: &dyn Files) -> Option<u64> {
    let names = files.list().ok()?;
    let segments = names
        .iter()
        .filter(|name| Segment::number_of(name).is_some());
    let mut votes = std::collections::BTreeMap::new();
    for name in segments {
        let header = files.open(name).and_then(|file| read_header(&*file));
        if let Ok(Header::Of { store_id, .. }) = header {
            *votes.entry(store_id).or_insert(0) += 1;
        }
    }
    let most = votes.into_iter().max_by_key(|&(_, votes)| votes);
    most.map(|(store_id, _)| store_id)
}

impl Looked {
    /// Hands over the queue and the state of each record that is in the log.
    pub(crate) fn in_memtable(&self, each: &mut impl FnMut(Shard, &QueueName, StateKind)) {
        for (&shard, memtable) in &self.state.shards {
            memtable
                .kinds()
                .for_each(|(queue, kind)| each(shard, queue, kind));
        }
    }

    /// Whether the log knows the name, so that nothing behind it counts.
    pub(crate) fn hides(&self, shard: Shard, name: &TimerName) -> bool {
        let memtable = self.state.shards.get(&shard);
        memtable.is_some_and(|memtable| memtable.get(name).is_some())
    }

    /// Hands over what the log counts, in the memtable and in the sorted store.
    pub(crate) fn counts(&self, mut each: impl FnMut(Shard, QueueCounts)) {
        for (&shard, memtable) in &self.state.shards {
            let counts = memtable.counts().into_iter();
            counts.for_each(|counts| each(shard, counts));
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }
}

/// What a walk comes by, in the order of the log.
pub(crate) enum Seen<'a> {
    /// What a segment begins with can be read. All shards that there were follow.
    Snapshot,
    /// What a segment begins with.
    Shard(Shard, Fence, Revision),
    Put {
        shard: Shard,
        record: Box<Record>,
        at: RecordAt<'a>,
    },
    Removed {
        shard: Shard,
        name: TimerName,
    },
    Given(Shard, Revision),
    Owned(Shard, Fence),
    Clock(Shard, ClockNote),
    /// Something is lost here: so many commits, if that is known, in at most so many bytes.
    Lost {
        commits: u64,
        bytes: u64,
    },
}

/// Where the bytes of a record stand.
#[derive(Clone, Copy)]
pub(crate) struct RecordAt<'a> {
    segment: &'a Segment,
    place: LogPlace,
}

/// The same, for later.
#[derive(Clone)]
pub(crate) struct Kept {
    file: Arc<dyn crate::StoreFile>,
    offset: u64,
    len: u32,
}

impl RecordAt<'_> {
    pub(crate) fn keep(self) -> Kept {
        Kept {
            file: Arc::clone(&self.segment.file),
            offset: self.place.offset,
            len: self.place.len,
        }
    }
}

impl Kept {
    /// The record, which could be read a moment ago.
    pub(crate) fn read(&self) -> std::io::Result<Record> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_at(self.offset, &mut bytes)?;
        codec::decode(&bytes).map_err(std::io::Error::other)
    }
}

/// Goes through everything of a log that the sorted store has not taken in, as far as it can be
/// read, and hands it to `each`. Files and problems go into `report`. Without `ingested`, which
/// is what the sorted store says, it goes through all segments that there are. The log is known to
/// have `reached` so far.
///
/// # Errors
/// What `each` gives, [`DiskError::Io`] if the directory cannot be read, and
/// [`DiskError::NotAStore`] if a segment is of another version.
pub(crate) fn walk(
    files: &Arc<dyn Files>,
    store_id: u64,
    ingested: Option<u64>,
    reached: Option<Reached>,
    report: &mut CheckReport,
    each: impl FnMut(Seen<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut walk = Walk {
        files: &**files,
        report,
        each,
        expected: None,
        end: None,
    };
    let segments = walk.open(store_id, ingested)?;
    let firsts: Vec<_> = segments.iter().map(|(_, found)| found.first()).collect();
    let mut before = ingested;
    for (index, (number, found)) in segments.iter().enumerate() {
        if let Some(before) = before
            && before.checked_add(1) != Some(*number)
        {
            walk.missing(before + 1, *number)?;
        }
        before = Some(*number);
        let next = firsts[index + 1..].iter().copied().flatten().next();
        let is_last = index + 1 == segments.len();
        walk.segment(found, next, is_last)?;
    }
    let after = match segments.last() {
        Some((last, _)) => last.saturating_add(1),
        None => ingested.unwrap_or(0).saturating_add(1),
    };
    let end = reached.map_or(0, |reached| reached.segment.saturating_add(1));
    if segments.is_empty() || after < end {
        walk.missing(after, end.max(after + 1))
    } else if let (Some(Reached { commit, .. }), Some(expected)) = (reached, walk.expected)
        && commit >= expected
    {
        walk.ends_early(expected, commit)
    } else {
        Ok(())
    }
}

/// Hands over what the segments say that the sorted store has taken in up to `ingested`, as far as
/// they are there and can be read: for who finds that it has lost a part of that. What is wrong
/// with them is nobody's loss.
///
/// # Errors
/// What `each` gives, and [`DiskError::Io`] if the directory cannot be read.
pub(crate) fn taken_in(
    files: &Arc<dyn Files>,
    store_id: u64,
    ingested: u64,
    each: impl FnMut(Seen<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let names = files.list();
    let mut names = names.map_err(|source| super::io_error(&**files, source))?;
    names.sort();
    let mut walk = Walk {
        files: &**files,
        report: &mut CheckReport::default(),
        each,
        expected: None,
        end: None,
    };
    for name in names {
        let number = Segment::number_of(&name).filter(|&number| number <= ingested);
        let Some(number) = number else { continue };
        if let Ok(opened) = walk.open_one(&name, number, store_id) {
            walk.expected = None;
            walk.segment(&opened, None, false)?;
        }
    }
    Ok(())
}

/// A segment's file, as far as it could be opened.
enum Opened {
    /// Nothing in it can be read; how long it is.
    No(u64),
    Yes {
        segment: Segment,
        /// The commit with which it begins, if that is known.
        first: Option<u64>,
        /// Its header is what it should be.
        has_header: bool,
        /// How many bytes it is too short.
        cut: u64,
    },
}

impl Opened {
    fn first(&self) -> Option<u64> {
        match self {
            Self::No(_) => None,
            Self::Yes { first, .. } => *first,
        }
    }
}

struct Walk<'a, E> {
    files: &'a dyn Files,
    report: &'a mut CheckReport,
    each: E,
    /// The commit that comes next, if that is known.
    expected: Option<u64>,
    /// Where the last segment ended that could be read.
    end: Option<(String, u64)>,
}

impl<E: FnMut(Seen<'_>) -> Result<(), StoreError>> Walk<'_, E> {
    fn problem(&mut self, name: &str, offset: u64, problem: impl Into<String>, at_risk: AtRisk) {
        let path = self.files.path().join(name);
        let problem = Problem::new(path, offset, problem.into(), at_risk);
        self.report.problems.push(problem);
    }

    fn lost(&mut self, commits: u64, bytes: u64) -> Result<(), StoreError> {
        (self.each)(Seen::Lost { commits, bytes })
    }

    /// Opens the segments that are not taken in, in order. Notes the other files.
    fn open(
        &mut self,
        store_id: u64,
        ingested: Option<u64>,
    ) -> Result<Vec<(u64, Opened)>, StoreError> {
        let listed = self.files.list();
        let mut names = listed.map_err(|source| super::io_error(self.files, source))?;
        names.sort();
        let mut segments = Vec::new();
        for name in names {
            let number = Segment::number_of(&name);
            let finished = name.strip_prefix("making-").unwrap_or(&name);
            let is_spare = finished.starts_with("spare-")
                || number.is_some_and(|number| Some(number) <= ingested);
            match number {
                _ if is_spare => {
                    let length = self.files.open(&name).and_then(|file| file.length());
                    self.file(&name, FileKind::Spare, length.unwrap_or(0), 0, 0);
                }
                Some(number) => {
                    let opened = self.open_one(&name, number, store_id)?;
                    segments.push((number, opened));
                }
                None => self.problem(&name, 0, "is no file of a log", AtRisk::Unknown),
            }
        }
        segments.sort_by_key(|(number, _)| *number);
        Ok(segments)
    }

    fn file(&mut self, name: &str, kind: FileKind, bytes: u64, entries: u64, torn_bytes: u64) {
        self.report.files.push(CheckedFile {
            path: self.files.path().join(name),
            kind,
            bytes,
            entries,
            torn_bytes,
        });
    }

    fn open_one(&mut self, name: &str, number: u64, store_id: u64) -> Result<Opened, StoreError> {
        let opened = self.files.open(name).and_then(|file| {
            let length = file.length()?;
            let header = read_header(&*file)?;
            Ok((file, length, header))
        });
        let (file, length, header) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let problem = format!("cannot be read: {error}");
                self.problem(name, 0, problem, AtRisk::Unknown);
                return Ok(Opened::No(0));
            }
        };
        let mut has_header = true;
        let (version, first, len, nonce) = match header {
            Header::Of { store_id: of, .. } if of != store_id => {
                let problem = format!("belongs to store {of:016x}");
                self.problem(name, 0, problem, AtRisk::Unknown);
                return Ok(Opened::No(length));
            }
            // Whole, so this is no damage.
            Header::Other { version } => {
                return Err(other_version(self.files, name, version));
            }
            Header::Of {
                version,
                number: found,
                first_commit,
                len,
                nonce,
                ..
            } if found == number => {
                let second = read_second_header(&*file).ok();
                if nonce != 0 && len == length && second != Some(header) {
                    let at = frames_end(len, nonce);
                    self.problem(name, at, SECOND_HEADER_DAMAGED, AtRisk::Commits(0));
                }
                (version, Some(first_commit), len, nonce)
            }
            Header::Of { .. } | Header::None => {
                self.problem(name, 0, "the header is damaged", AtRisk::Unknown);
                has_header = false;
                match read_second_header(&*file) {
                    Ok(Header::Of {
                        version,
                        number: found,
                        store_id: of,
                        first_commit,
                        nonce,
                        ..
                    }) if found == number && of == store_id => {
                        (version, Some(first_commit), length, nonce)
                    }
                    _ => (VERSION, None, length, 0),
                }
            }
        };
        if len != length {
            let problem = format!("it has {length} bytes instead of {len}");
            self.problem(name, length.min(len), problem, AtRisk::Unknown);
        }
        let segment = Segment {
            version,
            number,
            store_id,
            first_commit: first.unwrap_or(0),
            nonce,
            file,
            len: length.min(len),
            frames_end: frames_end(len, nonce).min(length),
        };
        // What a header says is said once more by the snapshot behind it.
        let first = first.or_else(|| {
            let frame = segment.read_frame(FRAMES_BEGIN, &mut Vec::new()).ok()??;
            // Without the nonce it says anything.
            Some(frame.commit).filter(|commit| COMMITS.contains(commit))
        });
        Ok(Opened::Yes {
            segment,
            first,
            has_header,
            cut: len.saturating_sub(length),
        })
    }

    /// Segments from `first` on and before `end` are not there.
    fn missing(&mut self, first: u64, end: u64) -> Result<(), StoreError> {
        let name = Segment::name_of(first);
        let problem = match end - first {
            1 => "is missing".to_owned(),
            missing => format!("is missing, and {} after it", missing - 1),
        };
        self.problem(&name, 0, problem, AtRisk::Unknown);
        self.lost(0, 0)
    }

    /// The log ends before the commit `expected`, and had come to the commit `reached`.
    fn ends_early(&mut self, expected: u64, reached: u64) -> Result<(), StoreError> {
        let (name, offset) = self.end.take().unwrap_or_default();
        let end = reached.saturating_add(1);
        let problem = format!("the log ends here, and {}", unreadable(expected, end));
        self.problem(&name, offset, problem, AtRisk::Commits(end - expected));
        self.lost(end - expected, 0)
    }

    /// Goes through a segment. `next` is the first commit of a later one.
    fn segment(
        &mut self,
        opened: &Opened,
        next: Option<u64>,
        is_last: bool,
    ) -> Result<(), StoreError> {
        let (segment, first, has_header, cut) = match opened {
            Opened::No(bytes) => return self.lost(0, *bytes),
            Opened::Yes {
                segment,
                first,
                has_header,
                cut,
            } => (segment, *first, *has_header, *cut),
        };
        let name = segment.name();
        match (self.expected, first) {
            (Some(expected), Some(first)) if first > expected => {
                let (at, offset) = self.end.take().unwrap_or_else(|| (name.clone(), 0));
                let lost = first - expected;
                let problem = unreadable(expected, first);
                self.problem(&at, offset, problem, AtRisk::Commits(lost));
                self.lost(lost, 0)?;
            }
            (Some(expected), Some(first)) if first < expected => {
                let problem = format!("it begins with commit {first}, not with {expected}");
                self.problem(&name, 0, problem, AtRisk::Unknown);
                self.lost(0, 0)?;
            }
            _ => {}
        }
        self.expected = first.or(self.expected);
        let mut body = Vec::new();
        let mut offset = FRAMES_BEGIN;
        let snapshot = match segment.read_frame(FRAMES_BEGIN, &mut body) {
            Ok(Some(frame)) => batch::decode_snapshot(&body)
                .ok()
                .inspect(|_| offset = frame.end),
            _ => None,
        };
        let is_whole = has_header && snapshot.is_some();
        match snapshot {
            Some(shards) => {
                (self.each)(Seen::Snapshot)?;
                for of in shards {
                    (self.each)(Seen::Shard(of.shard, of.fence, of.last_revision))?;
                    if let Some(note) = of.clock {
                        (self.each)(Seen::Clock(of.shard, note))?;
                    }
                }
            }
            None => {
                let problem = "the snapshot is damaged";
                self.problem(&name, offset, problem, AtRisk::Unknown);
            }
        }
        let commits = self.commits(segment, offset, next, is_last, &mut body)?;
        let (commits, torn) = commits;
        // What is lost of any other segment, the next one shows, if it is known what came before.
        let is_unknown = is_last && (cut > 0 || commits == 0 && !is_whole);
        if is_unknown || self.expected.is_none() {
            self.lost(0, segment.len + cut)?;
        }
        self.file(&name, FileKind::Segment, segment.len, commits, torn);
        Ok(())
    }

    /// Goes through the commits of a segment. Says how many can be read, and how many bytes of
    /// one at the end were not finished.
    fn commits(
        &mut self,
        segment: &Segment,
        mut offset: u64,
        next: Option<u64>,
        is_last: bool,
        body: &mut Vec<u8>,
    ) -> Result<(u64, u64), StoreError> {
        let name = segment.name();
        let mut commits = 0;
        loop {
            let frame = match self.next_frame(segment, offset, next, body) {
                Ok(frame) => frame,
                Err(error) => {
                    let problem = format!("cannot be read: {error}");
                    self.problem(&name, offset, problem, AtRisk::Unknown);
                    self.lost(0, segment.len - offset)?;
                    break;
                }
            };
            let Some((at, frame)) = frame else {
                break;
            };
            match self.expected {
                Some(expected) if frame.commit > expected => {
                    let lost = frame.commit - expected;
                    let problem = unreadable(expected, frame.commit);
                    self.problem(&name, offset, problem, AtRisk::Commits(lost));
                    self.lost(lost, at - offset)?;
                }
                None => {
                    let problem = format!("nothing is known of what was before {}", frame.commit);
                    self.problem(&name, offset, problem, AtRisk::Unknown);
                    self.lost(0, at - offset)?;
                }
                Some(_) => {}
            }
            if let Some(error) = self.changes(segment, frame, body)? {
                let problem = format!("commit {}: {error}", frame.commit);
                self.problem(&name, frame.body_at, problem, AtRisk::Commits(1));
                self.lost(1, frame.end - at)?;
            }
            commits += 1;
            self.expected = frame.commit.checked_add(1);
            offset = frame.end;
        }
        let mut torn = 0;
        if is_last && let Some(expected) = self.expected {
            torn = segment.torn(offset, expected).unwrap_or(0);
        }
        self.end = Some((name, offset));
        Ok((commits, torn))
    }

    /// The next frame that can be read, and where it stands.
    fn next_frame(
        &self,
        segment: &Segment,
        offset: u64,
        next: Option<u64>,
        body: &mut Vec<u8>,
    ) -> std::io::Result<Option<(u64, Frame)>> {
        if let Some(frame) = segment.read_frame(offset, body)?
            && (self.expected).map_or(COMMITS.contains(&frame.commit), |expected| {
                expected == frame.commit
            })
        {
            return Ok(Some((offset, frame)));
        }
        let (first, last) = match self.expected {
            Some(expected) => (expected, segment.highest_commit(expected)),
            None => COMMITS.into_inner(),
        };
        let last = next.map_or(last, |next| last.min(next.saturating_sub(1)));
        segment.find_frame(offset, first..=last, body)
    }

    /// Hands over the changes of a commit, up to one that makes no sense.
    fn changes(
        &mut self,
        segment: &Segment,
        frame: Frame,
        body: &[u8],
    ) -> Result<Option<CodecError>, StoreError> {
        let mut changes = match Changes::of(body) {
            Ok(changes) => changes,
            Err(error) => return Ok(Some(error)),
        };
        loop {
            let next = changes.next();
            let shard = changes.shard;
            let seen = match next {
                Err(error) => return Ok(Some(error)),
                Ok(None) => return Ok(None),
                Ok(Some(Logged::Put { record, at, .. })) => match codec::decode(record) {
                    Err(error) => return Ok(Some(error)),
                    Ok(decoded) => Seen::Put {
                        shard,
                        record: Box::new(decoded),
                        at: RecordAt {
                            segment,
                            place: LogPlace {
                                segment: segment.number,
                                offset: frame.body_at + at as u64,
                                len: u32::try_from(record.len()).unwrap_or(u32::MAX),
                            },
                        },
                    },
                },
                Ok(Some(Logged::Remove { queue, key, .. })) => {
                    match TimerName::from_text(queue, key) {
                        Err(_) => return Ok(Some(CodecError::Name)),
                        Ok(name) => Seen::Removed { shard, name },
                    }
                }
                Ok(Some(Logged::Given(revision))) => Seen::Given(shard, revision),
                Ok(Some(Logged::Fence(fence))) => Seen::Owned(shard, fence),
                Ok(Some(Logged::Clock(note))) => Seen::Clock(shard, note),
                Ok(Some(Logged::LowWater(_) | Logged::Counts(_))) => continue,
            };
            (self.each)(seen)?;
        }
    }
}
