//! The bodies of frames: the changes of a commit, or a snapshot.
//!
//! The body of a commit is a 1, the shard as two bytes, and the changes, one after the other: a
//! byte that says which, and what it needs. In that byte are
//!
//! - in the lowest three bits, which: a put, a removal, a revision given, a new owner, or how far
//!   the sorted store was passed, see [`passed`](super::passed), or where the clocks stand;
//! - in the next, whether the sorted store may have the name;
//! - in the three above, what the change replaces: 0 for nothing, or 1 more than the state.
//!
//! So whoever reads the log knows from it alone what each change did to the counts. A record is
//! what [`codec`] makes of it, behind its length. A snapshot is a 3 and, for each shard, its
//! number, fence and last revision, a 1 and the note of the clocks or a 0 if there is none, and its
//! queues with their counts. Before version 6 of a segment it is a 2, and without the clocks. All
//! numbers are little endian.

use countwheel::Timestamp;

use crate::planted::planted;
use crate::store::embedded::codec::{self, CodecError};
use crate::store::log::passed::Note;
use crate::store::log::segment::FRAME_HEADER;
use crate::store::{Change, ClockNote, Fence, QueueCounts, Shard};
use crate::{DueClock, QueueName, Revision, StateKind, Wake};

const COMMIT: u8 = 1;
const SNAPSHOT_WITHOUT_CLOCKS: u8 = 2;
const SNAPSHOT: u8 = 3;

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const GIVEN: u8 = 3;
const FENCE: u8 = 4;
const PASSED: u8 = 5;
const CLOCK: u8 = 6;
const MAY_BE_OLD: u8 = 1 << 3;
const BEFORE_SHIFT: u8 = 4;

/// What was known of a name just before a change of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Replaces {
    /// The state of the record that the change replaces; `None` if there is none.
    pub(super) kind: Option<StateKind>,
    /// Whether the sorted store may have something under the name.
    pub(super) may_be_old: bool,
}

impl Replaces {
    fn bits(self) -> u8 {
        let kind = self.kind.map_or(0, |kind| kind as u8 + 1) << BEFORE_SHIFT;
        kind | if self.may_be_old { MAY_BE_OLD } else { 0 }
    }

    fn of_bits(bits: u8) -> Result<Self, CodecError> {
        let kind = match bits >> BEFORE_SHIFT {
            0 => None,
            kind => Some(*kind_of(kind - 1)?),
        };
        Ok(Self {
            kind,
            may_be_old: bits & MAY_BE_OLD != 0,
        })
    }
}

fn kind_of(number: u8) -> Result<&'static StateKind, CodecError> {
    StateKind::ALL
        .get(usize::from(number))
        .ok_or(CodecError::Key)
}

/// One change, as it stands in a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Logged<'a> {
    Put {
        record: &'a [u8],
        /// Where its bytes stand, counted from the beginning of the body.
        at: usize,
        replaces: Replaces,
    },
    Remove {
        queue: &'a str,
        key: &'a str,
        at: usize,
        replaces: Replaces,
    },
    Given(Revision),
    Fence(Fence),
    /// How far the sorted store was passed.
    Passed(Note),
    Clock(ClockNote),
}

/// A body to which changes are added, behind the bytes of a frame's header.
pub(super) fn begin(frame: &mut Vec<u8>, shard: Shard) {
    frame.clear();
    frame.resize(FRAME_HEADER, 0);
    frame.push(COMMIT);
    frame.extend_from_slice(&shard.0.to_le_bytes());
}

/// Appends one change. Returns where it stands, counted from the beginning of the body, and how
/// long it is: of a record only that.
pub(super) fn encode(frame: &mut Vec<u8>, change: &Change, replaces: Replaces) -> (usize, usize) {
    let begins_at = frame.len();
    match change {
        Change::Put { record, .. } => {
            frame.push(PUT | replaces.bits());
            frame.extend_from_slice(&[0; 4]);
            let at = frame.len();
            codec::encode_into(record, frame);
            let len = frame.len() - at;
            let length = u32::try_from(len).unwrap_or(u32::MAX);
            frame[at - 4..at].copy_from_slice(&length.to_le_bytes());
            (at - FRAME_HEADER, len)
        }
        Change::Remove { name, .. } => {
            frame.push(REMOVE | replaces.bits());
            for part in [name.queue.as_str(), name.key.as_str()] {
                put_text(frame, part);
            }
            (begins_at - FRAME_HEADER, 0)
        }
        Change::Given(revision) => {
            frame.push(GIVEN);
            frame.extend_from_slice(&revision.0.to_le_bytes());
            (begins_at - FRAME_HEADER, 0)
        }
        Change::Clock(note) => {
            frame.push(CLOCK);
            frame.extend_from_slice(&note.to_bytes());
            (begins_at - FRAME_HEADER, 0)
        }
    }
}

/// Appends that the shard has another owner.
pub(super) fn encode_fence(frame: &mut Vec<u8>, fence: Fence) {
    frame.push(FENCE);
    frame.extend_from_slice(&fence.0.to_le_bytes());
}

/// Appends how far the sorted store was passed.
pub(super) fn encode_passed(frame: &mut Vec<u8>, note: Note) {
    frame.extend_from_slice(&[PASSED, note.clock as u8]);
    let Wake { at, revision } = note.wake;
    for number in [
        at.as_micros(),
        revision.0,
        note.ingested.unwrap_or(u64::MAX),
    ] {
        frame.extend_from_slice(&number.to_le_bytes());
    }
}

/// A text of at most 65,535 bytes, which all names are.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// What of a shard is to survive the segments before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ShardSnapshot {
    pub(super) shard: Shard,
    pub(super) fence: Fence,
    pub(super) last_revision: Revision,
    pub(super) clock: Option<ClockNote>,
    /// In order of name.
    pub(super) counts: Vec<QueueCounts>,
}

/// Whether the snapshot with this body has the notes of the clocks.
pub(super) fn has_clocks(body: &[u8]) -> bool {
    body.first() != Some(&SNAPSHOT_WITHOUT_CLOCKS)
}

/// A snapshot, behind the bytes of a frame's header. One without the notes of the clocks is for
/// comparing it with what an earlier version wrote.
pub(super) fn encode_snapshot(
    frame: &mut Vec<u8>,
    with_clocks: bool,
    shards: impl Iterator<Item = ShardSnapshot>,
) {
    frame.clear();
    frame.resize(FRAME_HEADER, 0);
    frame.push(if with_clocks {
        SNAPSHOT
    } else {
        SNAPSHOT_WITHOUT_CLOCKS
    });
    for snapshot in shards {
        frame.extend_from_slice(&snapshot.shard.0.to_le_bytes());
        frame.extend_from_slice(&snapshot.fence.0.to_le_bytes());
        frame.extend_from_slice(&snapshot.last_revision.0.to_le_bytes());
        if with_clocks {
            frame.push(u8::from(snapshot.clock.is_some()));
            if let Some(note) = snapshot.clock {
                frame.extend_from_slice(&note.to_bytes());
            }
        }
        frame.extend_from_slice(&(snapshot.counts.len() as u64).to_le_bytes());
        for counts in snapshot.counts {
            put_text(frame, counts.queue.as_str());
            for count in counts.by_state {
                frame.extend_from_slice(&count.to_le_bytes());
            }
        }
    }
}

/// The shards of a snapshot's body.
pub(super) fn decode_snapshot(body: &[u8]) -> Result<Vec<ShardSnapshot>, CodecError> {
    let mut rest = Rest { body, at: 0 };
    let [SNAPSHOT | SNAPSHOT_WITHOUT_CLOCKS] = rest.array()? else {
        return Err(CodecError::Key);
    };
    let with_clocks = has_clocks(body);
    let mut shards = Vec::new();
    while rest.at < body.len() {
        let shard = Shard(u16::from_le_bytes(rest.array()?));
        let fence = Fence(u64::from_le_bytes(rest.array()?));
        let last_revision = Revision(u64::from_le_bytes(rest.array()?));
        let mut clock = None;
        if with_clocks {
            clock = match rest.array()? {
                [0] => None,
                [1] => Some(ClockNote::of_bytes(&rest.array()?)),
                _ => return Err(CodecError::Key),
            };
        }
        let mut counts = Vec::new();
        // As many as it says, or until the bytes end: nothing is set aside for them.
        for _ in 0..u64::from_le_bytes(rest.array()?) {
            let queue = QueueName::new(rest.text()?).map_err(|_| CodecError::Name)?;
            let mut by_state = [0; 4];
            for count in &mut by_state {
                *count = u64::from_le_bytes(rest.array()?);
            }
            counts.push(QueueCounts { queue, by_state });
        }
        shards.push(ShardSnapshot {
            shard,
            fence,
            last_revision,
            clock,
            counts,
        });
    }
    Ok(shards)
}

/// Reads the changes of a commit's body.
#[derive(Debug)]
pub(super) struct Changes<'a> {
    pub(super) shard: Shard,
    rest: Rest<'a>,
}

impl<'a> Changes<'a> {
    pub(super) fn of(body: &'a [u8]) -> Result<Self, CodecError> {
        let mut rest = Rest { body, at: 0 };
        let [COMMIT] = rest.array()? else {
            return Err(CodecError::Key);
        };
        Ok(Self {
            shard: Shard(u16::from_le_bytes(rest.array()?)),
            rest,
        })
    }

    pub(super) fn next(&mut self) -> Result<Option<Logged<'a>>, CodecError> {
        let rest = &mut self.rest;
        let begins_at = rest.at;
        if begins_at == rest.body.len() {
            return Ok(None);
        }
        let [bits] = rest.array()?;
        Ok(Some(match bits & 7 {
            PUT => {
                let length = u32::from_le_bytes(rest.array()?);
                let at = rest.at;
                Logged::Put {
                    record: rest.take(usize::try_from(length).unwrap_or(usize::MAX))?,
                    at,
                    replaces: Replaces::of_bits(bits)?,
                }
            }
            REMOVE => Logged::Remove {
                queue: rest.text()?,
                key: rest.text()?,
                at: begins_at,
                replaces: Replaces::of_bits(bits)?,
            },
            GIVEN => Logged::Given(Revision(u64::from_le_bytes(rest.array()?))),
            FENCE => Logged::Fence(Fence(u64::from_le_bytes(rest.array()?))),
            PASSED => {
                let clock = match rest.array()? {
                    [0] => DueClock::Wall,
                    [1] => DueClock::Boot,
                    _ => return Err(CodecError::Key),
                };
                let mut number = || rest.array().map(u64::from_le_bytes);
                let wake = Wake {
                    at: Timestamp::from_micros(number()?),
                    revision: Revision(number()?),
                };
                let ingested = Some(number()?).filter(|&ingested| ingested < u64::MAX);
                Logged::Passed(Note {
                    clock,
                    wake,
                    ingested,
                })
            }
            CLOCK => Logged::Clock(ClockNote::of_bytes(&rest.array()?)),
            _ => return Err(CodecError::Key),
        }))
    }
}

#[derive(Debug)]
struct Rest<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
        if planted!(ReaderTrustsLengths) {
            let taken = &self.body[self.at..self.at + length];
            self.at += length;
            return Ok(taken);
        }
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.body.get(self.at..end));
        let taken = taken.ok_or(CodecError::Short {
            bytes: self.body.len(),
        })?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| CodecError::Key)
    }

    fn text(&mut self) -> Result<&'a str, CodecError> {
        let length = u16::from_le_bytes(self.array()?);
        std::str::from_utf8(self.take(usize::from(length))?).map_err(|_| CodecError::Name)
    }
}
