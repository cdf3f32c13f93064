//! The bodies of frames: the changes of a commit, or a snapshot.
//!
//! The body of a commit is a 1, the shard as two bytes, and the changes, one after the other: a
//! byte that says which, and what it needs. In that byte are
//!
//! - in the lowest three bits, which: a put, a removal, a revision given, a new owner, how far
//!   the low-water mark stands, see [`low_water`](super::low_water), where the clocks stand, a piece of
//!   a copy of the counts, or that what follows is of another shard, whose two bytes follow. So
//!   settings are in the frame of the timers with which they were committed;
//! - in the next, whether the sorted store may have the name;
//! - in the three above, what the change replaces: 0 for nothing, or 1 more than the state.
//!
//! So whoever reads the log knows from it alone what each change did to the counts. A record is
//! what [`codec`] makes of it, behind its length. A snapshot is a 3 and, for each shard, its
//! number, fence and last revision, a 1 and the note of the clocks or a 0 if there is none, and its
//! queues with their counts. Before version 6 of a segment it is a 2, and without the clocks. With
//! many queues it is a 4, and has the sum of the counts instead: the counts stand in commits, see
//! [`Piece`]. All numbers are little endian.

use countwheel_time::Timestamp;

use crate::codec::{self, CodecError};
use crate::log::low_water::Note;
use crate::log::segment::FRAME_HEADER;
use crate::planted::planted;
use crate::{Change, ClockNote, Fence, QueueCounts, Shard, Totals};
use crate::{DueClock, QueueName, Revision, StateKind, Wake};

const COMMIT: u8 = 1;
const SNAPSHOT_WITHOUT_CLOCKS: u8 = 2;
const SNAPSHOT: u8 = 3;
const SNAPSHOT_WITH_SUMS: u8 = 4;

const SHARD: u8 = 0;
const PUT: u8 = 1;
const REMOVE: u8 = 2;
const GIVEN: u8 = 3;
const FENCE: u8 = 4;
const PASSED: u8 = 5;
const CLOCK: u8 = 6;
const COUNTS: u8 = 7;
const MAY_BE_OLD: u8 = 1 << 3;
const BEFORE_SHIFT: u8 = 4;

/// What was known of a name just before a change of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Replaces {
    /// The state of the record that the change replaces; `None` if there is none.
    pub(super) kind: Option<StateKind>,
    /// Whether the sorted store may have something under the name.
    pub(super) may_be_sorted: bool,
}

impl Replaces {
    fn bits(self) -> u8 {
        let kind = self.kind.map_or(0, |kind| kind as u8 + 1) << BEFORE_SHIFT;
        kind | if self.may_be_sorted { MAY_BE_OLD } else { 0 }
    }

    fn of_bits(bits: u8) -> Result<Self, CodecError> {
        let kind = match bits >> BEFORE_SHIFT {
            0 => None,
            kind => Some(*kind_of(kind - 1)?),
        };
        Ok(Self {
            kind,
            may_be_sorted: bits & MAY_BE_OLD != 0,
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
    /// Where the low-water mark of a clock stands.
    LowWater(Note),
    Clock(ClockNote),
    Counts(Piece<'a>),
}

/// A piece of a **copy of the counts**: those of some queues of a shard, one behind the other in order
/// of name. A copy has all queues of all shards, shard by shard; commits stand between its pieces. What
/// a commit changes of a queue behind the place that the copy has come to is in a later piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece<'a> {
    pub(super) part: Part,
    counts: &'a [u8],
}

/// Where in a copy a piece stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Part {
    /// It is the first of the copy.
    pub(super) is_first: bool,
    /// It is the first of its shard.
    pub(super) begins: bool,
    /// It is the last of its shard.
    pub(super) ends: bool,
    /// It is the last of the copy.
    pub(super) is_last: bool,
}

impl Part {
    fn bits(self) -> u8 {
        let bits = [self.is_first, self.begins, self.ends, self.is_last];
        (0..).zip(bits).map(|(at, bit)| u8::from(bit) << at).sum()
    }

    fn of_bits(bits: u8) -> Self {
        let bit = |at: u8| bits & 1 << at != 0;
        Self {
            is_first: bit(0),
            begins: bit(1),
            ends: bit(2),
            is_last: bit(3),
        }
    }
}

impl Piece<'_> {
    /// The counts, in order of name.
    pub(super) fn counts(&self) -> Result<Vec<QueueCounts>, CodecError> {
        let decoded: Vec<(&str, [u64; 4])> =
            postcard::from_bytes(self.counts).map_err(CodecError::Content)?;
        let counts = decoded.into_iter().map(|(queue, by_state)| {
            let queue = QueueName::from_text(queue).map_err(|_| CodecError::Name)?;
            Ok(QueueCounts { queue, by_state })
        });
        let counts: Vec<_> = counts.collect::<Result<_, CodecError>>()?;
        let is_sorted = counts.is_sorted_by(|one, other| one.queue < other.queue);
        if is_sorted {
            Ok(counts)
        } else {
            Err(CodecError::Key)
        }
    }
}

/// Appends a piece of a copy of the counts.
pub(super) fn encode_counts(frame: &mut Vec<u8>, part: Part, counts: &[QueueCounts]) {
    let counts: Vec<_> = counts
        .iter()
        .map(|counts| (counts.queue.as_str(), counts.by_state))
        .collect();
    let encoded = postcard::to_allocvec(&counts).expect("names and numbers can be written");
    frame.extend_from_slice(&[COUNTS, part.bits()]);
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&encoded);
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
        // What it changes stands behind the others, as of its own shard.
        Change::Setting(_) => (begins_at - FRAME_HEADER, 0),
    }
}

/// Appends that what follows is of this shard.
pub(super) fn encode_shard(frame: &mut Vec<u8>, shard: Shard) {
    frame.push(SHARD);
    frame.extend_from_slice(&shard.0.to_le_bytes());
}

/// Appends that the shard has another owner.
pub(super) fn encode_fence(frame: &mut Vec<u8>, fence: Fence) {
    frame.push(FENCE);
    frame.extend_from_slice(&fence.0.to_le_bytes());
}

/// Appends where the low-water mark of a clock stands.
pub(super) fn encode_low_water(frame: &mut Vec<u8>, note: Note) {
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
    pub(super) counts: Counts,
}

/// What a snapshot says of the counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Counts {
    /// Those of all queues, in order of name.
    Whole(Vec<QueueCounts>),
    /// Their sum.
    Sum(Totals),
}

/// What stands in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// All counts, and no notes of the clocks: earlier versions wrote that.
    WithoutClocks,
    /// All counts.
    Whole,
    /// The sums of the counts.
    Sums,
}

impl Form {
    /// The form of the snapshot with this body.
    pub(super) fn of(body: &[u8]) -> Self {
        match body.first() {
            Some(&SNAPSHOT_WITHOUT_CLOCKS) => Self::WithoutClocks,
            Some(&SNAPSHOT_WITH_SUMS) => Self::Sums,
            _ => Self::Whole,
        }
    }

    fn byte(self) -> u8 {
        match self {
            Self::WithoutClocks => SNAPSHOT_WITHOUT_CLOCKS,
            Self::Whole => SNAPSHOT,
            Self::Sums => SNAPSHOT_WITH_SUMS,
        }
    }
}

/// A snapshot, behind the bytes of a frame's header.
pub(super) fn encode_snapshot(
    frame: &mut Vec<u8>,
    form: Form,
    shards: impl Iterator<Item = ShardSnapshot>,
) {
    let with_clocks = form != Form::WithoutClocks;
    frame.clear();
    frame.resize(FRAME_HEADER, 0);
    frame.push(form.byte());
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
        let (queues, sum, counts) = match &snapshot.counts {
            Counts::Whole(counts) => (counts.len() as u64, None, counts.as_slice()),
            Counts::Sum(totals) => (totals.queues, Some(totals.by_state), &[][..]),
        };
        let put_counts = |frame: &mut Vec<u8>, by_state: [u64; 4]| {
            for count in by_state {
                frame.extend_from_slice(&count.to_le_bytes());
            }
        };
        frame.extend_from_slice(&queues.to_le_bytes());
        if let Some(sum) = sum {
            put_counts(frame, sum);
        }
        for counts in counts {
            put_text(frame, counts.queue.as_str());
            put_counts(frame, counts.by_state);
        }
    }
}

/// The shards of a snapshot's body.
pub(super) fn decode_snapshot(body: &[u8]) -> Result<Vec<ShardSnapshot>, CodecError> {
    let mut rest = Rest { body, at: 0 };
    let [SNAPSHOT | SNAPSHOT_WITHOUT_CLOCKS | SNAPSHOT_WITH_SUMS] = rest.array()? else {
        return Err(CodecError::Key);
    };
    let form = Form::of(body);
    let with_clocks = form != Form::WithoutClocks;
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
        let queues = u64::from_le_bytes(rest.array()?);
        let counts = if form == Form::Sums {
            let by_state = rest.counts()?;
            Counts::Sum(Totals { queues, by_state })
        } else {
            let mut counts = Vec::new();
            // As many as it says, or until the bytes end: nothing is set aside for them.
            for _ in 0..queues {
                let queue = QueueName::from_text(rest.text()?).map_err(|_| CodecError::Name)?;
                let by_state = rest.counts()?;
                counts.push(QueueCounts { queue, by_state });
            }
            Counts::Whole(counts)
        };
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
    /// The shard of the change that was read last, or of the first if none was.
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
        let (begins_at, bits) = loop {
            let begins_at = rest.at;
            if begins_at == rest.body.len() {
                return Ok(None);
            }
            let [bits] = rest.array()?;
            if bits != SHARD {
                break (begins_at, bits);
            }
            self.shard = Shard(u16::from_le_bytes(rest.array()?));
        };
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
                Logged::LowWater(Note {
                    clock,
                    wake,
                    ingested,
                })
            }
            CLOCK => Logged::Clock(ClockNote::of_bytes(&rest.array()?)),
            COUNTS => {
                let [bits] = rest.array()?;
                let length = u32::from_le_bytes(rest.array()?);
                Logged::Counts(Piece {
                    part: Part::of_bits(bits),
                    counts: rest.take(usize::try_from(length).unwrap_or(usize::MAX))?,
                })
            }
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

    fn counts(&mut self) -> Result<[u64; 4], CodecError> {
        let mut by_state = [0; 4];
        for count in &mut by_state {
            *count = u64::from_le_bytes(self.array()?);
        }
        Ok(by_state)
    }

    fn text(&mut self) -> Result<&'a str, CodecError> {
        let length = u16::from_le_bytes(self.array()?);
        std::str::from_utf8(self.take(usize::from(length))?).map_err(|_| CodecError::Name)
    }
}
