//! How a store writes the answers of a record's attempts.
//!
//! The form that a [`Record`](crate::Record) serializes to leaves the answers out, so a record without
//! one has the bytes that it had before there were answers. A store writes what [`of`] returns behind a
//! record that has an answer, under a version of its own, and hands it to [`put_back`] when it reads the
//! record.
//!
//! ```
//! use countwheel_durable::store::stored_answers::{self, StoredAnswers};
//! use countwheel_durable::{Answer, AttemptRecord};
//!
//! # fn ended() -> AttemptRecord {
//! #     use countwheel_durable::{AttemptEnd, AttemptResult};
//! #     let at = countwheel_time::Timestamp::EPOCH;
//! #     let end = AttemptEnd { at, result: AttemptResult::Failed, detail: String::new(), answer: None };
//! #     AttemptRecord { number: 1, due: at, started: at, held: Default::default(), ended: Some(end) }
//! # }
//! let mut attempts: Vec<AttemptRecord> = vec![ended(), ended()];
//! assert!(!stored_answers::are_in(&attempts));
//! attempts[1].ended.as_mut().unwrap().answer = Answer::new("7");
//! assert!(stored_answers::are_in(&attempts));
//!
//! let bytes = postcard::to_allocvec(&stored_answers::of(&attempts))?;
//! assert_eq!(bytes, [1, 1, 1, b'7']);
//! let mut read = vec![ended(), ended()];
//! stored_answers::put_back(postcard::from_bytes::<StoredAnswers>(&bytes)?, &mut read)?;
//! assert_eq!(read, attempts);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{Answer, AttemptRecord};

/// Answers, each with the place of its attempt among those of the record, in their order.
pub type StoredAnswers = Vec<(u32, Answer)>;

/// The answers of a record are not those of its attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an answer has no attempt that it belongs to")]
pub struct Misplaced;

/// Whether one of the attempts has an answer.
#[must_use]
pub fn are_in(attempts: &[AttemptRecord]) -> bool {
    answers(attempts).next().is_some()
}

/// The answers of these attempts, as a store writes them.
#[must_use]
pub fn of(attempts: &[AttemptRecord]) -> Vec<(u32, &Answer)> {
    answers(attempts).collect()
}

fn answers(attempts: &[AttemptRecord]) -> impl Iterator<Item = (u32, &Answer)> {
    let numbered = (0..).zip(attempts);
    numbered.filter_map(|(place, attempt)| Some((place, attempt.ended.as_ref()?.answer.as_ref()?)))
}

/// Gives the attempts of a record the answers that were written of them.
///
/// # Errors
/// [`Misplaced`] if there is none, or if one belongs to no attempt that has ended, or stands out of
/// order.
pub fn put_back(answers: StoredAnswers, attempts: &mut [AttemptRecord]) -> Result<(), Misplaced> {
    if answers.is_empty() {
        return Err(Misplaced);
    }
    let mut least = 0;
    for (place, answer) in answers {
        let index = usize::try_from(place).map_err(|_| Misplaced)?;
        let attempt = attempts.get_mut(index).filter(|_| place >= least);
        let end = attempt.and_then(|attempt| attempt.ended.as_mut());
        end.ok_or(Misplaced)?.answer = Some(answer);
        least = place + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use countwheel_time::Timestamp;

    use super::*;
    use crate::{AttemptEnd, AttemptResult};

    fn attempt(has_ended: bool) -> AttemptRecord {
        let at = Timestamp::EPOCH;
        AttemptRecord {
            number: 1,
            due: at,
            started: at,
            held: std::time::Duration::ZERO,
            ended: has_ended.then(|| AttemptEnd {
                at,
                result: AttemptResult::Done,
                detail: String::new(),
                answer: None,
            }),
        }
    }

    #[test]
    fn answers_that_no_store_wrote_are_refused() {
        let answer = || Answer::new("7").expect("it is not empty");
        let at = |places: &[u32]| places.iter().map(|place| (*place, answer())).collect();
        for (places, is_right) in [
            (&[][..], false),
            (&[0], true),
            (&[0, 1], true),
            (&[1, 0], false),
            (&[0, 0], false),
            (&[2], false), // it runs
            (&[3], false),
            (&[u32::MAX], false),
        ] {
            let mut attempts = [attempt(true), attempt(true), attempt(false)];
            let put = put_back(at(places), &mut attempts);
            assert_eq!(put.is_ok(), is_right, "{places:?}");
        }
        let empty = postcard::from_bytes::<Answer>(&[0]);
        let mut long = vec![0x81, 0x0c];
        long.resize(2 + Answer::MAX_BYTES + 1, 7);
        let long = postcard::from_bytes::<Answer>(&long);
        assert!(empty.is_err() && long.is_err());
        let longest = Answer::new(vec![7; Answer::MAX_BYTES]).expect("it is not empty");
        let bytes = postcard::to_allocvec(&longest).expect("it is written");
        assert_eq!(postcard::from_bytes(&bytes), Ok(longest));
    }
}
