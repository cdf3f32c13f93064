//! The bytes of records and keys. The byte order of keys is the order of the index.
//!
//! A record is a version byte, the record in postcard, the answers of its attempts if it has any, and
//! the CRC-32 of all that, little endian. A key
//! is a sequence of big-endian numbers and names. A NUL follows each name. Neither a queue nor a
//! key contains a NUL, so no name reaches into the next field.

use std::ops::Bound;
use std::time::Duration;

use countwheel_durable::store::stored_answers::{self, StoredAnswers};
use countwheel_durable::store::stored_policy;
use countwheel_time::Timestamp;
use serde::Deserialize;

use crate::{
    AttemptEnd, AttemptRecord, DueClock, Key, Missed, QueueName, Record, Recurring, RetryPolicy,
    Revision, State, StateKind, TimerId, TimerName, Wake,
};
use crate::{Filter, Position, Shard};

/// The latest version of the record's bytes. This code reads those before as well, and writes this one
/// for a dead record that is not kept for good: earlier programs know no such state. Behind what version 4
/// has, there are the answers of attempts, also if there are none.
const VERSION: u8 = 6;
/// What any other record is written as that has the answer of an attempt: the answers stand behind what
/// version 4 has.
const VERSION_5: u8 = 5;
/// What a record without an answer is written as whose retry policy version 3 has no words for: a
/// program that knows only that one says so, and does not take the record for damaged.
const VERSION_4: u8 = 4;
/// What every other record is written as: the same bytes behind the version.
const VERSION_3: u8 = 3;
/// In records of this version no attempt was held.
const VERSION_2: u8 = 2;
/// Records of this version have no clock, and none comes again: all are due one time, by the
/// wall clock.
const VERSION_1: u8 = 1;
const CRC_BYTES: usize = 4;

/// Why bytes are not what this code wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum CodecError {
    /// The bytes may well be right, for a later version of this code.
    #[error("written by a later version (record version {version})")]
    LaterVersion { version: u8 },
    #[error("a record of {bytes} bytes is too short")]
    Short { bytes: usize },
    #[error("a record's checksum does not match")]
    Checksum,
    #[error("a record's content cannot be read: {0}")]
    Content(postcard::Error),
    #[error("a record's answers cannot be read: {0}")]
    Answers(stored_answers::Misplaced),
    #[error("a record is followed by {bytes} bytes of something else")]
    Trailing { bytes: usize },
    #[error("a name in an index cannot be read")]
    Name,
    #[error("a key in an index cannot be read")]
    Key,
    #[error("a copy of the counts is not what the commits before come to")]
    Counts,
}

/// The bytes of `record`.
pub(super) fn encode(record: &Record) -> Vec<u8> {
    // More than the numbers, the retry schedule and a few attempts take.
    let mut bytes = Vec::with_capacity(record.payload.len() + 512);
    encode_into(record, &mut bytes);
    bytes
}

/// Appends the bytes of `record`.
pub(super) fn encode_into(record: &Record, out: &mut Vec<u8>) {
    let begins_at = out.len();
    out.push(version_of(record));
    postcard::serialize_with_flavor(record, Append(out))
        .expect("a record holds nothing postcard cannot write");
    if matches!(out[begins_at], VERSION_5 | VERSION) {
        let answers = stored_answers::of(&record.attempts);
        postcard::serialize_with_flavor(&answers, Append(out))
            .expect("an answer is nothing that postcard cannot write");
    }
    let crc = crc32fast::hash(&out[begins_at..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn version_of(record: &Record) -> u8 {
    if record.state.came_later() {
        VERSION
    } else if stored_answers::are_in(&record.attempts) {
        VERSION_5
    } else if stored_policy::came_later(&record.policy) {
        VERSION_4
    } else {
        VERSION_3
    }
}

/// Writes to the end of a vector.
struct Append<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// The record of these bytes.
///
/// No length in them is trusted: postcard reads from the slice alone, and serde caps what it
/// sets aside for a sequence before it has seen the elements.
pub(super) fn decode(bytes: &[u8]) -> Result<Record, CodecError> {
    let (version, content) = checked(bytes)?;
    let (record, rest) = match version {
        VERSION_1 => postcard::take_from_bytes::<RecordV1>(content)
            .map(|(record, rest)| (Record::from(record), rest)),
        VERSION_2 => postcard::take_from_bytes::<RecordV2>(content)
            .map(|(record, rest)| (Record::from(record), rest)),
        VERSION_3 | VERSION_4 => postcard::take_from_bytes(content),
        version => return with_answers(version, content),
    }
    .map_err(CodecError::Content)?;
    match rest.len() {
        0 => Ok(record),
        bytes => Err(CodecError::Trailing { bytes }),
    }
}

/// The record of these bytes, behind which its answers stand.
fn with_answers(version: u8, content: &[u8]) -> Result<Record, CodecError> {
    let (mut record, rest): (Record, _) =
        postcard::take_from_bytes(content).map_err(CodecError::Content)?;
    let (answers, rest): (StoredAnswers, _) =
        postcard::take_from_bytes(rest).map_err(CodecError::Content)?;
    let has_none = version == VERSION && answers.is_empty();
    if !has_none {
        stored_answers::put_back(answers, &mut record.attempts).map_err(CodecError::Answers)?;
    }
    match rest.len() {
        0 => Ok(record),
        bytes => Err(CodecError::Trailing { bytes }),
    }
}

/// A record as version 1 wrote it.
#[derive(Deserialize)]
struct RecordV1 {
    name: TimerName,
    id: TimerId,
    revision: Revision,
    state: State,
    created: Timestamp,
    due: Timestamp,
    first_due: Timestamp,
    #[serde(with = "countwheel_durable::store::stored_policy")]
    policy: RetryPolicy,
    failures: u32,
    interruptions: u32,
    attempt: u32,
    attempts: Vec<AttemptRecordV2>,
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
}

/// A record as version 2 wrote it.
#[derive(Deserialize)]
struct RecordV2 {
    name: TimerName,
    id: TimerId,
    revision: Revision,
    state: State,
    created: Timestamp,
    due: Timestamp,
    clock: DueClock,
    missed: Missed,
    recurring: Option<Box<Recurring>>,
    first_due: Timestamp,
    #[serde(with = "countwheel_durable::store::stored_policy")]
    policy: RetryPolicy,
    failures: u32,
    interruptions: u32,
    attempt: u32,
    attempts: Vec<AttemptRecordV2>,
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
}

/// An attempt as versions 1 and 2 wrote it.
#[derive(Deserialize)]
struct AttemptRecordV2 {
    number: u32,
    due: Timestamp,
    started: Timestamp,
    ended: Option<AttemptEnd>,
}

impl From<AttemptRecordV2> for AttemptRecord {
    fn from(old: AttemptRecordV2) -> Self {
        Self {
            number: old.number,
            due: old.due,
            started: old.started,
            held: Duration::ZERO,
            ended: old.ended,
        }
    }
}

impl From<RecordV2> for Record {
    fn from(old: RecordV2) -> Self {
        Self {
            name: old.name,
            id: old.id,
            revision: old.revision,
            state: old.state,
            created: old.created,
            due: old.due,
            clock: old.clock,
            missed: old.missed,
            recurring: old.recurring,
            first_due: old.first_due,
            policy: old.policy,
            failures: old.failures,
            interruptions: old.interruptions,
            attempt: old.attempt,
            attempts: old.attempts.into_iter().map(AttemptRecord::from).collect(),
            payload: old.payload,
        }
    }
}

impl From<RecordV1> for Record {
    fn from(old: RecordV1) -> Self {
        Self {
            name: old.name,
            id: old.id,
            revision: old.revision,
            state: old.state,
            created: old.created,
            due: old.due,
            clock: DueClock::Wall,
            missed: Missed::Fire,
            recurring: None,
            first_due: old.first_due,
            policy: old.policy,
            failures: old.failures,
            interruptions: old.interruptions,
            attempt: old.attempt,
            attempts: old.attempts.into_iter().map(AttemptRecord::from).collect(),
            payload: old.payload,
        }
    }
}

/// Where a record stands in the indexes, read without its attempts and its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Indexed {
    pub(super) kind: StateKind,
    pub(super) position: Position,
    pub(super) wake: Option<Wake>,
    /// By which clock the wake is meant.
    pub(super) clock: DueClock,
}

impl Indexed {
    pub(super) fn of(record: &Record) -> Self {
        Self {
            kind: record.state.kind(),
            position: Position {
                due: record.due,
                revision: record.revision,
            },
            wake: record.wake(),
            clock: record.wake_clock(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Self::named(bytes).map(|(_, indexed)| indexed)
    }

    /// With the record's queue and key, as they stand in the bytes.
    pub(super) fn named(bytes: &[u8]) -> Result<((&str, &str), Self), CodecError> {
        let (version, content) = checked(bytes)?;
        Self::unchecked(version, content)
    }

    /// Of a record without its version and without its checksum, which somebody else has checked.
    pub(super) fn unchecked(
        version: u8,
        content: &[u8],
    ) -> Result<((&str, &str), Self), CodecError> {
        /// The fields that a [`Record`] begins with.
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(borrow)]
            name: (&'a str, &'a str),
            _id: TimerId,
            revision: Revision,
            state: State,
            _created: Timestamp,
            due: Timestamp,
        }

        known(version)?;
        let (head, rest) =
            postcard::take_from_bytes::<Head<'_>>(content).map_err(CodecError::Content)?;
        let due_clock = match version {
            VERSION_1 => DueClock::Wall,
            _ => {
                postcard::take_from_bytes(rest)
                    .map_err(CodecError::Content)?
                    .0
            }
        };
        let (at, clock) = match head.state {
            State::Pending | State::Delivering => (Some(head.due), due_clock),
            State::Done { .. } | State::Dead { .. } => (head.state.kept_until(), DueClock::Wall),
        };
        let indexed = Self {
            kind: head.state.kind(),
            position: Position {
                due: head.due,
                revision: head.revision,
            },
            wake: at.map(|at| Wake {
                at,
                revision: head.revision,
            }),
            clock,
        };
        Ok((head.name, indexed))
    }
}

/// The version, and what stands between it and the checksum, once both are known to be right.
fn checked(bytes: &[u8]) -> Result<(u8, &[u8]), CodecError> {
    let short = CodecError::Short { bytes: bytes.len() };
    let Some((covered, crc)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(short);
    };
    let Some((&version, content)) = covered.split_first() else {
        return Err(short);
    };
    // The checksum first: a version byte that was damaged is no later version.
    if crc32fast::hash(covered) != u32::from_le_bytes(*crc) {
        return Err(CodecError::Checksum);
    }
    known(version)?;
    Ok((version, content))
}

fn known(version: u8) -> Result<(), CodecError> {
    match version {
        VERSION_1..=VERSION => Ok(()),
        version => Err(CodecError::LaterVersion { version }),
    }
}

/// The key of a timer: shard, queue, NUL, key.
pub(super) fn timer_key(shard: Shard, name: &TimerName) -> Vec<u8> {
    let (queue, key) = (name.queue.as_str(), name.key.as_str());
    let mut bytes = Vec::with_capacity(2 + queue.len() + 1 + key.len());
    push_timer_key(&mut bytes, shard, queue, key);
    bytes
}

/// Appends the same.
pub(super) fn push_timer_key(out: &mut Vec<u8>, shard: Shard, queue: &str, key: &str) {
    out.extend_from_slice(&shard.0.to_be_bytes());
    out.extend_from_slice(queue.as_bytes());
    out.push(0);
    out.extend_from_slice(key.as_bytes());
}

/// The wake of a key that ends with its time and its revision.
pub(super) fn wake_of(key: &[u8]) -> Result<Wake, CodecError> {
    let Position { due, revision } = position_of(key)?;
    Ok(Wake { at: due, revision })
}

/// The name that bytes say: queue, NUL, key.
pub(super) fn name_of(value: &[u8]) -> Result<TimerName, CodecError> {
    let text = std::str::from_utf8(value).map_err(|_| CodecError::Name)?;
    let (queue, key) = text.split_once('\0').ok_or(CodecError::Name)?;
    TimerName::from_text(queue, key).map_err(|_| CodecError::Name)
}

/// The key of a value that is a key alone.
pub(super) fn key_of(value: &[u8]) -> Result<Key, CodecError> {
    let text = std::str::from_utf8(value).map_err(|_| CodecError::Name)?;
    Key::new(text).map_err(|_| CodecError::Name)
}

/// The place in a queue's list: shard, queue, NUL, state, due, revision.
pub(super) fn list_key(
    shard: Shard,
    queue: &QueueName,
    kind: StateKind,
    position: Position,
) -> Vec<u8> {
    let mut bytes = count_key(shard, queue, kind);
    bytes.extend_from_slice(&position.due.as_micros().to_be_bytes());
    bytes.extend_from_slice(&position.revision.0.to_be_bytes());
    bytes
}

/// The position of a key that [`list_key`] made.
pub(super) fn position_of(key: &[u8]) -> Result<Position, CodecError> {
    let (rest, revision) = key.split_last_chunk::<8>().ok_or(CodecError::Key)?;
    let (_, due) = rest.split_last_chunk::<8>().ok_or(CodecError::Key)?;
    Ok(Position {
        due: Timestamp::from_micros(u64::from_be_bytes(*due)),
        revision: Revision(u64::from_be_bytes(*revision)),
    })
}

/// The part of a queue's list in one state that `filter` can want.
pub(super) fn list_range(
    shard: Shard,
    filter: &Filter,
    kind: StateKind,
) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let key = |position| list_key(shard, &filter.queue, kind, position);
    let first = |due| Position {
        due,
        revision: Revision(0),
    };
    let from = Bound::Included(key(first(filter.due_from.unwrap_or(Timestamp::EPOCH))));
    let start = match filter.after {
        Some(after) if filter.due_from.is_none_or(|from| from <= after.due) => {
            Bound::Excluded(key(after))
        }
        _ => from,
    };
    let end = match filter.due_before {
        Some(before) => Bound::Excluded(key(first(before))),
        None => Bound::Included(key(Position {
            due: Timestamp::MAX,
            revision: Revision(u64::MAX),
        })),
    };
    (start, end)
}

/// The key of a count: shard, queue, NUL, state.
pub(super) fn count_key(shard: Shard, queue: &QueueName, kind: StateKind) -> Vec<u8> {
    let mut bytes = queue_prefix(shard, queue);
    bytes.push(kind as u8);
    bytes
}

fn queue_prefix(shard: Shard, queue: &QueueName) -> Vec<u8> {
    let queue = queue.as_str().as_bytes();
    // Room for what follows: the longest key, or a state and a position.
    let mut bytes = Vec::with_capacity(2 + queue.len() + 1 + Key::MAX_BYTES);
    bytes.extend_from_slice(&shard.0.to_be_bytes());
    bytes.extend_from_slice(queue);
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use countwheel_durable::store::conformance::varied_records;
    use countwheel_durable::{Answer, Jitter};

    /// The bytes are those of the code before retry policies were moved to `countwheel-time`.
    #[test]
    fn every_kind_of_retry_policy_has_the_bytes_it_always_had() {
        let secs = Duration::from_secs;
        let two = || RetryPolicy::list([secs(1), secs(7)]).unwrap().repeat_last();
        let three = [secs(1), Duration::from_micros(2_500), secs(365 * 86_400)];
        let three = RetryPolicy::list(three).unwrap();
        let exponential =
            |first, factor, cap| RetryPolicy::exponential(first, factor).unwrap().cap(cap);
        let slow = exponential(Duration::from_millis(100), 1.01, secs(365 * 86_400));
        let cases = [
            (
                RetryPolicy::default(),
                "030a000000000000000040e0a80100010114000102ffffffff0f000130b40b758b",
            ),
            (
                RetryPolicy::wechat(),
                "01000000000102ffffffff0f00013071f9d13f",
            ),
            (
                RetryPolicy::wechat()
                    .jitter(Jitter::Equal)
                    .max_retries(2)
                    .max_age(secs(86_400)),
                "01000201030180a305000102ffffffff0f0001301550c663",
            ),
            (
                RetryPolicy::wechat().repeat_last().max_retries(19),
                "0100000114000102ffffffff0f000130f42da69b",
            ),
            (
                three.max_age(Duration::from_nanos(1_500_000)),
                "0003010000a0cb980180e7840f0000000100e0c65b0102ffffffff0f0001302eb03b65",
            ),
            (
                two().jitter(Jitter::Full).max_retries(1),
                "000201000700010102000102ffffffff0f0001305ed0536b",
            ),
            (
                two().jitter(Jitter::Full).max_retries(9_999),
                "0002010007000101904e000102ffffffff0f000130eacfc84f",
            ),
            (
                RetryPolicy::fixed(Duration::from_millis(1)).jitter(Jitter::Equal),
                "0200c0843d0200000102ffffffff0f000130886bc81c",
            ),
            (
                RetryPolicy::fixed(secs(5))
                    .max_retries(0)
                    .max_age(secs(36_525 * 86_400)),
                "0205000001010180a7e4e00b000102ffffffff0f0001306faee5e3",
            ),
            (
                exponential(secs(2), 1.0, secs(2)),
                "030200000000000000f03f02000000000102ffffffff0f000130cde91fba",
            ),
            (
                slow.jitter(Jitter::Equal).max_retries(9_999),
                "030080c2d72f295c8fc2f528f03f80e7840f000201904e000102ffffffff0f000130570c5bc2",
            ),
            (
                exponential(secs(10), 1_000.0, secs(3_600))
                    .jitter(Jitter::Full)
                    .max_age(secs(60)),
                "030a000000000000408f40901c000100013c000102ffffffff0f000130a9a345c5",
            ),
        ];
        for (policy, expected) in cases {
            has_bytes(policy, VERSION_3, expected);
        }
    }

    #[track_caller]
    fn has_bytes(policy: RetryPolicy, version: u8, expected: &str) {
        let mut record = varied_records().swap_remove(0);
        (record.attempts, record.recurring) = (Vec::new(), None);
        record.policy = policy;
        let bytes = encode(&record);
        let hex = bytes
            .iter()
            .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        assert_eq!(
            hex,
            format!("{version:02x}03616c6c0130edfd03010100000000000000{expected}")
        );
        assert_eq!(decode(&bytes), Ok(record));
    }

    /// What a record of version 3 has no words for. A program that knows only that one refuses these.
    #[test]
    fn the_policies_that_came_later_are_of_version_4() {
        let secs = Duration::from_secs;
        let linear = RetryPolicy::linear(secs(3), secs(5));
        for (policy, expected) in [
            (
                linear.clone().cap(secs(365 * 86_400)),
                "040300050080e7840f000000000102ffffffff0f000130e6c56f6a",
            ),
            (
                linear.cap(secs(60)).jitter(Jitter::Full).max_retries(2),
                "04030005003c00010103000102ffffffff0f000130213f1759",
            ),
            (
                RetryPolicy::dubbo_failback(),
                "0101000104000102ffffffff0f0001305b760c2d",
            ),
            (
                RetryPolicy::dubbo_registry(),
                "01020000000102ffffffff0f0001305e8a3021",
            ),
            (
                RetryPolicy::eureka().max_age(secs(60)),
                "01030000013c000102ffffffff0f000130283a2484",
            ),
            (
                RetryPolicy::go_zero_cleaner(),
                "01040000000102ffffffff0f000130e8c1f2d9",
            ),
        ] {
            has_bytes(policy, VERSION_4, expected);
        }
    }

    /// A record without an answer has the bytes that it had before there were answers.
    #[test]
    fn the_answers_of_attempts_stand_behind_what_the_version_before_has() {
        let answer = |attempts: &mut [AttemptRecord], answer| {
            let ends = attempts.iter_mut().filter_map(|it| it.ended.as_mut());
            ends.last().expect("one has ended").answer = answer;
        };
        for mut record in varied_records().into_iter().skip(34) {
            if record.attempts.is_empty()
                || stored_answers::are_in(&record.attempts)
                || record.state.came_later()
            {
                continue;
            }
            let without = encode(&record);
            assert!([VERSION_3, VERSION_4].contains(&without[0]));
            answer(&mut record.attempts, Answer::new("busy"));
            let with = encode(&record);
            let content = without.len() - CRC_BYTES;
            assert_eq!(
                (with[0], &with[1..content]),
                (VERSION_5, &without[1..content])
            );
            // How many, and of each the place, the length and the bytes.
            let place = record.attempts.iter().rposition(|it| it.ended.is_some());
            let place = u8::try_from(place.expect("one has ended")).unwrap();
            let answers = [&[1, place, 4][..], b"busy"].concat();
            assert_eq!(with[content..with.len() - CRC_BYTES], answers);
            assert_eq!(decode(&with), Ok(record.clone()));
            // No answer is written under this version: a record has one form.
            let none = [&[VERSION_5][..], &without[1..content], &[0]].concat();
            let refused = CodecError::Answers(stored_answers::Misplaced);
            assert_eq!(decode(&sealed(&none)), Err(refused));
            answer(&mut record.attempts, None);
            assert_eq!(encode(&record), without);
        }
    }

    /// Programs before know no such state, and must not take the record for damaged.
    #[test]
    fn a_dead_record_that_is_not_kept_for_good_is_of_version_6() {
        let mut seen = [false; 2];
        for record in varied_records() {
            let bytes = encode(&record);
            assert_eq!(bytes[0] == VERSION, record.state.came_later());
            if bytes[0] == VERSION {
                let has_answers = stored_answers::are_in(&record.attempts);
                seen[usize::from(has_answers)] = true;
                // How many answers there are stands there in any case.
                let last = bytes[bytes.len() - CRC_BYTES - 1];
                assert!(has_answers || last == 0);
            }
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn a_record_comes_back_from_its_bytes() {
        for record in varied_records() {
            let bytes = encode(&record);
            assert_eq!(decode(&bytes), Ok(record.clone()));
            assert_eq!(Indexed::decode(&bytes), Ok(Indexed::of(&record)));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        for record in varied_records().into_iter().skip(1).take(3) {
            let bytes = encode(&record);
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&damaged), Err(CodecError::Checksum));
                assert_eq!(Indexed::decode(&damaged), Err(CodecError::Checksum));
            }
            for len in 0..bytes.len() {
                assert!(decode(&bytes[..len]).is_err());
            }
        }
    }

    /// Bytes that nobody wrote, with a checksum that fits.
    fn sealed(content: &[u8]) -> Vec<u8> {
        let mut bytes = content.to_vec();
        bytes.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
        bytes
    }

    #[test]
    fn bytes_that_nobody_wrote_are_refused() {
        let record = varied_records().swap_remove(1);
        let bytes = encode(&record);
        let content = &bytes[..bytes.len() - CRC_BYTES];
        // Any byte can be changed to any value: lengths, variants, names.
        for at in 1..content.len() {
            for value in 0..=u8::MAX {
                let mut changed = content.to_vec();
                changed[at] = value;
                let _ = decode(&sealed(&changed));
                let _ = Indexed::decode(&sealed(&changed));
            }
        }
        for len in 1..content.len() {
            let refused = decode(&sealed(&content[..len]));
            assert!(
                matches!(refused, Err(CodecError::Content(_))),
                "{refused:?}"
            );
        }
        let mut longer = content.to_vec();
        longer.push(0);
        assert_eq!(
            decode(&sealed(&longer)),
            Err(CodecError::Trailing { bytes: 1 })
        );
        // A length of 2^63 or so: nothing is set aside for it.
        let huge = [&[VERSION][..], &[0xff; 9], &[1]].concat();
        assert!(matches!(
            decode(&sealed(&huge)),
            Err(CodecError::Content(_))
        ));
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let record = varied_records().swap_remove(1);
        let mut bytes = encode(&record);
        bytes.truncate(bytes.len() - CRC_BYTES);
        bytes[0] = VERSION + 1;
        let later = CodecError::LaterVersion {
            version: VERSION + 1,
        };
        assert_eq!(decode(&sealed(&bytes)), Err(later));
    }

    #[test]
    fn keys_are_in_the_order_of_what_they_stand_for() {
        let shard = Shard(258);
        let queues = ["a", "a.", "aa", "b"].map(|queue| QueueName::new(queue).unwrap());
        let numbers = [0, 1, 255, 256, u64::MAX];
        let mut lists = Vec::new();
        for queue in &queues {
            for kind in StateKind::ALL {
                for due in numbers.map(Timestamp::from_micros) {
                    for revision in numbers.map(Revision) {
                        let position = Position { due, revision };
                        let key = list_key(shard, queue, kind, position);
                        assert_eq!(position_of(&key), Ok(position));
                        assert_eq!(wake_of(&key), Ok(Wake { at: due, revision }));
                        lists.push(key);
                    }
                }
            }
        }
        assert!(lists.is_sorted());
    }

    #[test]
    fn index_bytes_that_nobody_wrote_are_refused() {
        for bytes in [
            &b""[..],
            b"q",
            b"q\0",
            b"\0k",
            b"q\0a\0b",
            b"q\0\xff",
            b"q q\0k",
        ] {
            assert_eq!(name_of(bytes), Err(CodecError::Name));
        }
        assert_eq!(key_of(b"\xff"), Err(CodecError::Name));
        assert_eq!(position_of(&[0; 15]), Err(CodecError::Key));
    }
}
