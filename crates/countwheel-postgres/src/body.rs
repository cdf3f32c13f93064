//! What a row has of a record beside its name, its place in the indexes and its payload.

use countwheel_durable::store::stored_answers::{self, StoredAnswers};
use countwheel_durable::store::stored_policy;
use countwheel_durable::{
    AttemptRecord, DueClock, Missed, Record, Recurring, RetryPolicy, Revision, State, StateKind,
    TimerId, TimerName,
};
use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

/// The latest version of a body, whose first byte it is. It is written for a dead record that is not kept for
/// good: earlier programs know no such state. Behind what version 2 has, it has the answers of attempts, also if
/// there are none.
const VERSION: u8 = 4;
/// What any other record is written as that has the answer of an attempt.
const VERSION_3: u8 = 3;
/// What every other record is written as.
const VERSION_2: u8 = 2;
/// The version before it had no checksum.
const UNSUMMED: u8 = 1;

/// Why the bytes of a row are no record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("a record without a version")]
    Empty,
    /// The bytes may well be right, for a later version of this code.
    #[error("a record was written by a later version (record version {0})")]
    LaterVersion(u8),
    #[error("the content of a record cannot be read: {0}")]
    Content(postcard::Error),
    #[error("the answers of a record cannot be read: {0}")]
    Answers(stored_answers::Misplaced),
    #[error("a record is followed by {0} bytes of something else")]
    Trailing(usize),
    #[error("state {column} of a row is not that of its record")]
    State { column: i8 },
    #[error("a column of a row is not as it was written")]
    Checksum,
    #[error("a record is not as its version (record version {0}) writes it")]
    Version(u8),
}

/// In the order in which they are written.
#[derive(Serialize)]
struct Written<'a> {
    id: TimerId,
    state: &'a State,
    created: Timestamp,
    clock: DueClock,
    missed: Missed,
    recurring: &'a Option<Box<Recurring>>,
    first_due: Timestamp,
    #[serde(with = "stored_policy")]
    policy: &'a RetryPolicy,
    failures: u32,
    interruptions: u32,
    attempt: u32,
    attempts: &'a [AttemptRecord],
}

#[derive(Deserialize)]
struct Read {
    id: TimerId,
    state: State,
    created: Timestamp,
    clock: DueClock,
    missed: Missed,
    recurring: Option<Box<Recurring>>,
    first_due: Timestamp,
    #[serde(with = "stored_policy")]
    policy: RetryPolicy,
    failures: u32,
    interruptions: u32,
    attempt: u32,
    attempts: Vec<AttemptRecord>,
}

/// The body of `record`.
pub(crate) fn encode(record: &Record) -> Result<Vec<u8>, postcard::Error> {
    let written = Written {
        id: record.id,
        state: &record.state,
        created: record.created,
        clock: record.clock,
        missed: record.missed,
        recurring: &record.recurring,
        first_due: record.first_due,
        policy: &record.policy,
        failures: record.failures,
        interruptions: record.interruptions,
        attempt: record.attempt,
        attempts: &record.attempts,
    };
    let version = if record.state.came_later() {
        VERSION
    } else if stored_answers::are_in(&record.attempts) {
        VERSION_3
    } else {
        VERSION_2
    };
    let sum = [version, 0, 0, 0, 0];
    let mut body = postcard::to_extend(&written, sum.to_vec())?;
    if version != VERSION_2 {
        body = postcard::to_extend(&stored_answers::of(&record.attempts), body)?;
    }
    let (at, to) = (record.revision, record.due);
    let sum = checksum(&record.name, at, to, &record.payload, &body[SUMMED..]);
    body[1..SUMMED].copy_from_slice(&sum);
    Ok(body)
}

/// Where the content of a body begins: after its version and its checksum.
const SUMMED: usize = 5;

/// Of all that a row has of a record. What the columns `state`, `wake` and `clock` have is in the
/// content as well.
fn checksum(
    name: &TimerName,
    revision: Revision,
    due: Timestamp,
    payload: &[u8],
    content: &[u8],
) -> [u8; 4] {
    let (queue, key) = (name.queue.as_str().as_bytes(), name.key.as_str().as_bytes());
    let numbers = [revision.0, due.as_micros()].map(u64::to_le_bytes);
    let parts: [&[u8]; 6] = [&numbers[0], &numbers[1], queue, b"/", key, content];
    let sum = parts
        .iter()
        .fold(0, |sum, part| crc32c::crc32c_append(sum, part));
    crc32c::crc32c_append(sum, payload).to_le_bytes()
}

/// What columns of its own have of a record.
pub(crate) struct Columns {
    pub(crate) name: TimerName,
    pub(crate) revision: Revision,
    pub(crate) due: Timestamp,
    pub(crate) state: i8,
    pub(crate) payload: Vec<u8>,
}

/// The record of a row.
///
/// No length in the body is trusted: postcard reads from the slice alone.
pub(crate) fn decode(columns: Columns, body: &[u8]) -> Result<Record, BodyError> {
    let (&version, content) = body.split_first().ok_or(BodyError::Empty)?;
    let content = match version {
        UNSUMMED => content,
        VERSION_2..=VERSION => {
            let parts = content.split_at_checked(SUMMED - 1);
            let (sum, content) = parts.ok_or(BodyError::Empty)?;
            let (at, to) = (columns.revision, columns.due);
            if sum != checksum(&columns.name, at, to, &columns.payload, content) {
                return Err(BodyError::Checksum);
            }
            content
        }
        later => return Err(BodyError::LaterVersion(later)),
    };
    let (mut read, mut rest) =
        postcard::take_from_bytes::<Read>(content).map_err(BodyError::Content)?;
    if matches!(version, VERSION_3 | VERSION) {
        let (answers, behind) =
            postcard::take_from_bytes::<StoredAnswers>(rest).map_err(BodyError::Content)?;
        if version == VERSION_3 || !answers.is_empty() {
            stored_answers::put_back(answers, &mut read.attempts).map_err(BodyError::Answers)?;
        }
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(BodyError::Trailing(rest.len()));
    }
    // The checksum does not cover the version.
    if (version == VERSION) != read.state.came_later() {
        return Err(BodyError::Version(version));
    }
    let column = columns.state;
    if kind_of(column) != Some(read.state.kind()) {
        return Err(BodyError::State { column });
    }
    Ok(Record {
        name: columns.name,
        id: read.id,
        revision: columns.revision,
        state: read.state,
        created: read.created,
        due: columns.due,
        clock: read.clock,
        missed: read.missed,
        recurring: read.recurring,
        first_due: read.first_due,
        policy: read.policy,
        failures: read.failures,
        interruptions: read.interruptions,
        attempt: read.attempt,
        attempts: read.attempts,
        payload: columns.payload,
    })
}

/// As a column has a state: a letter.
pub(crate) fn letter(kind: StateKind) -> i8 {
    let letter = match kind {
        StateKind::Pending => b'p',
        StateKind::Delivering => b'r',
        StateKind::Done => b'd',
        StateKind::Dead => b'x',
    };
    letter.cast_signed()
}

/// The state of a column.
pub(crate) fn kind_of(column: i8) -> Option<StateKind> {
    let kinds = StateKind::ALL.into_iter();
    kinds.into_iter().find(|kind| letter(*kind) == column)
}

/// As a column has a clock: a letter.
pub(crate) fn clock_letter(clock: DueClock) -> i8 {
    let letter = match clock {
        DueClock::Wall => b'w',
        DueClock::Boot => b'b',
    };
    letter.cast_signed()
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::conformance::varied_records;
    use countwheel_durable::{Answer, DeadReason};

    use super::*;

    fn columns(record: &Record) -> Columns {
        Columns {
            name: record.name.clone(),
            revision: record.revision,
            due: record.due,
            state: letter(record.state.kind()),
            payload: record.payload.clone(),
        }
    }

    #[test]
    fn a_record_comes_back_from_its_row() {
        for record in varied_records() {
            let body = encode(&record).unwrap();
            assert_eq!(decode(columns(&record), &body).unwrap(), record);
        }
    }

    /// A record without an answer has the bytes that it had before there were answers.
    #[test]
    fn the_answers_of_attempts_stand_behind_what_the_version_before_has() {
        let mut record = varied_records().swap_remove(1);
        let without = encode(&record).unwrap();
        record.attempts[0].ended.as_mut().unwrap().answer = Answer::new("busy");
        let with = encode(&record).unwrap();
        assert_eq!((without[0], with[0]), (VERSION_2, VERSION_3));
        assert_eq!(
            with[SUMMED..],
            [&without[SUMMED..], &[1, 0, 4], b"busy"].concat()
        );
        assert_eq!(decode(columns(&record), &with).unwrap(), record);
    }

    #[test]
    fn bytes_that_nobody_wrote_are_refused() {
        let mut record = varied_records().swap_remove(1);
        bytes_of_nobody_are_refused(&record);
        record.attempts[0].ended.as_mut().unwrap().answer = Answer::new("busy");
        bytes_of_nobody_are_refused(&record);
        record.attempts[0].ended.as_mut().unwrap().answer = None;
        record.state = State::Dead {
            at: Timestamp::EPOCH,
            reason: DeadReason::Stopped,
            keep_until: Some(Timestamp::from_micros(7)),
        };
        bytes_of_nobody_are_refused(&record);
    }

    /// Programs before know no such state, and must not take the row for damaged.
    #[test]
    fn a_dead_record_that_is_not_kept_for_good_is_of_version_4() {
        for record in varied_records() {
            let body = encode(&record).unwrap();
            assert_eq!(body[0] == VERSION, record.state.came_later());
        }
    }

    fn bytes_of_nobody_are_refused(record: &Record) {
        let body = encode(record).unwrap();
        for len in 0..body.len() {
            assert!(decode(columns(record), &body[..len]).is_err());
        }
        for at in 0..body.len() {
            for value in 0..=u8::MAX {
                let mut changed = body.clone();
                changed[at] = value;
                let read = decode(columns(record), &changed);
                assert_eq!(read.is_ok(), changed == body, "{at} {value}");
            }
        }
        let mut longer = body.clone();
        longer.push(0);
        assert!(decode(columns(record), &longer).is_err());
        let mut later = body.clone();
        later[0] = VERSION + 1;
        let refused = decode(columns(record), &later);
        assert!(matches!(refused, Err(BodyError::LaterVersion(5))));
        let changes: [fn(&mut Columns); 5] = [
            |columns| columns.name = TimerName::new("other", "key").unwrap(),
            |columns| columns.revision.0 += 1,
            |columns| columns.due = Timestamp::EPOCH,
            |columns| columns.state = letter(StateKind::Done),
            |columns| columns.payload.push(0),
        ];
        for change in changes {
            let mut other = columns(record);
            change(&mut other);
            assert!(decode(other, &body).is_err());
        }
    }
}
