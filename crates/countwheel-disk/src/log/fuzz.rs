//! Segments made of arbitrary bytes: with the checksums and the headers of a real one, so that what
//! is behind them is reached.
//!
//! What they are made of, the **recipe**, is
//!
//! ```text
//! | number of the first segment - 1 u8 | first commit - 1 u8 | part ... |
//! ```
//!
//! and each part a byte that says what comes: below 250 a frame, whose commit is so many behind the
//! one expected; 250 the next segment; 251 the same with the next commit left out; else the rest is
//! written as it is, as of a commit that was torn. A frame is a length u16 and its body. Checksums
//! of records in it are made right.

use crate::log::segment::{
    FRAME_HEADER, FRAMES_BEGIN, HEADERS_BYTES, Segment, VERSION, frames_end, sealed_len,
};
use crate::{ClockNote, Files};

const LEN_MIN: u64 = 1 << 12;
const NONCE: u64 = 0x0123_4567_89ab_cdef;
const NEXT: u8 = 250;
const NEXT_LATER: u8 = 251;
const TORN: u8 = 252;

enum Part {
    Frame { step: u64, body: Vec<u8> },
    Torn(Vec<u8>),
}

/// Writes the segments of a recipe.
pub(crate) fn write(recipe: &[u8], files: &dyn Files, store_id: u64) {
    let Some((&[number, first, ..], mut rest)) = recipe.split_at_checked(2) else {
        return;
    };
    let (mut number, mut next) = (u64::from(number) + 1, u64::from(first) + 1);
    loop {
        let mut parts = Vec::new();
        let mut then = None;
        while let Some((&what, after)) = rest.split_first() {
            rest = after;
            match what {
                NEXT | NEXT_LATER => {
                    then = Some(u64::from(what == NEXT_LATER));
                    break;
                }
                TORN.. => {
                    parts.push(Part::Torn(std::mem::take(&mut rest).to_vec()));
                }
                step => {
                    let (body, after) = body(rest);
                    rest = after;
                    let step = u64::from(step);
                    parts.push(Part::Frame { step, body });
                }
            }
        }
        next = write_one(parts, files, (store_id, number, next));
        match then {
            None => return,
            Some(left_out) => next += left_out,
        }
        number += 1;
    }
}

/// A length and as many bytes, or as there are.
fn body(bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return (Vec::new(), &[]);
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (body, rest) = rest.split_at(length);
    (body.to_vec(), rest)
}

/// Writes one segment, and says which commit comes next.
fn write_one(
    parts: Vec<Part>,
    files: &dyn Files,
    (store_id, number, first_commit): (u64, u64, u64),
) -> u64 {
    let bytes = parts.iter().map(|part| match part {
        Part::Frame { body, .. } => sealed_len(FRAME_HEADER + body.len()),
        Part::Torn(rest) => rest.len() as u64,
    });
    let len = (bytes.sum::<u64>() + HEADERS_BYTES).max(LEN_MIN);
    let Ok(file) = files.create(&Segment::name_of(number), len) else {
        return first_commit;
    };
    let segment = Segment {
        number,
        store_id,
        first_commit,
        nonce: NONCE,
        version: VERSION,
        file,
        len,
        frames_end: frames_end(len, NONCE),
    };
    let mut parts = parts.into_iter();
    let snapshot = match parts.next() {
        Some(Part::Frame { body, .. } | Part::Torn(body)) => body,
        None => Vec::new(),
    };
    let framed = |body: &[u8]| [&[0; FRAME_HEADER], body].concat();
    let mut frame = framed(&snapshot);
    let mut at = FRAMES_BEGIN + sealed_len(frame.len());
    segment.write_beginning(&mut frame).unwrap_or_default();
    let mut next = first_commit;
    for part in parts {
        match part {
            Part::Torn(rest) => segment.file.write_at(at, &rest).unwrap_or_default(),
            Part::Frame { step, mut body } => {
                seal_records(&mut body);
                let mut frame = framed(&body);
                segment.seal(at, next + step, &mut frame);
                segment.file.write_at(at, &frame).unwrap_or_default();
                at += frame.len() as u64;
                next += step + 1;
            }
        }
    }
    next
}

/// Makes the checksums of the records in a commit right, as far as it can be followed.
fn seal_records(body: &mut [u8]) {
    // A one, and the shard.
    let mut at = 3;
    while let Some(&what) = body.get(at) {
        at += 1;
        let length = |at: usize| {
            let bytes = body.get(at..)?.first_chunk::<2>()?;
            Some(usize::from(u16::from_le_bytes(*bytes)) + 2)
        };
        match what & 7 {
            0 => at += 2,
            1 => {
                let long = body.get(at..).and_then(|rest| rest.first_chunk::<4>());
                let Some(long) = long.map(|long| u32::from_le_bytes(*long) as usize) else {
                    return;
                };
                let Some(record) = body.get_mut(at + 4..).and_then(|rest| rest.get_mut(..long))
                else {
                    return;
                };
                crate::fuzz::seal_record(record);
                at += 4 + long;
            }
            2 => {
                let Some(queue) = length(at) else { return };
                let Some(key) = length(at + queue) else {
                    return;
                };
                at += queue + key;
            }
            3 | 4 => at += 8,
            5 => at += 1 + 3 * 8,
            6 => at += ClockNote::BYTES,
            _ => return,
        }
    }
}

/// The recipe of the segments of a real log.
pub(crate) fn recipe(files: &dyn Files, store_id: u64) -> Vec<u8> {
    let mut recipe = Vec::new();
    let mut names = files.list().unwrap_or_default();
    names.sort();
    for name in names {
        let Some(number) = Segment::number_of(&name) else {
            continue;
        };
        let Ok(segment) = crate::log::recovery::open(files, &name, number, store_id) else {
            continue;
        };
        if recipe.is_empty() {
            let byte = |number: u64| u8::try_from(number - 1).unwrap_or(0);
            recipe.extend([byte(number), byte(segment.first_commit)]);
        } else {
            recipe.push(NEXT);
        }
        let (mut at, mut body) = (FRAMES_BEGIN, Vec::new());
        while let Ok(Some(frame)) = segment.read_frame(at, &mut body) {
            recipe.push(0);
            recipe.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
            recipe.extend_from_slice(&body);
            at = frame.end;
        }
    }
    recipe
}

#[cfg(test)]
mod tests {
    use countwheel_time::{Instant, Timestamp};

    use super::super::batch::{self, Replaces};
    use super::super::low_water::Note;
    use super::*;
    use crate::codec;
    use crate::{Change, Fence, Shard};
    use crate::{DueClock, Revision, TimerName, Wake};

    /// What stands behind a note of the clocks was not made right, so that the readers refused it for
    /// its checksum, and nothing behind that was reached.
    #[test]
    fn a_record_is_made_right_whatever_stands_before_it() {
        let mut frame = Vec::new();
        batch::begin(&mut frame, Shard::ONLY);
        let note = ClockNote {
            wall: Timestamp::from_micros(1),
            boot_id: None,
            boot: Instant::from_nanos(2),
            line: Timestamp::from_micros(3),
        };
        let wake = Wake {
            at: Timestamp::from_micros(4),
            revision: Revision(5),
        };
        let clock = DueClock::Boot;
        let ingested = None;
        batch::encode_low_water(
            &mut frame,
            Note {
                clock,
                wake,
                ingested,
            },
        );
        batch::encode_fence(&mut frame, Fence(6));
        let name = TimerName::new("queue", "key").expect("a good name");
        let record = crate::fuzz::sample(7, 8);
        let put = Change::put(record.clone());
        let before = [Change::Clock(note), Change::remove(name), put];
        let mut place = (0, 0);
        batch::encode_shard(&mut frame, Shard::SETTINGS);
        for change in &before {
            place = batch::encode(&mut frame, change, Replaces::default());
        }
        let body = &mut frame[FRAME_HEADER..];
        let (at, end) = (place.0, place.0 + place.1);
        body[end - 1] ^= 1;
        assert!(codec::decode(&body[at..end]).is_err());
        seal_records(body);
        assert_eq!(codec::decode(&body[at..end]).ok(), Some(record));
    }
}
