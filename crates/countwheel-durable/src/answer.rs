//! What the receiver of an attempt answered, as far as a record keeps it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::AttemptRecord;

/// What a handler keeps of the answer to an attempt: bytes in a form of the handler's own, opaque to
/// the engine and to stores.
///
/// A record keeps the answers of its last [`Answer::KEPT`] attempts.
///
/// ```
/// use countwheel_durable::Answer;
///
/// let answer = Answer::new("out of stock").expect("it is not empty");
/// assert_eq!(answer.as_bytes(), b"out of stock");
/// assert_eq!(Answer::new(""), None);
/// assert_eq!(Answer::new(vec![7; 9_999]).map(|cut| cut.as_bytes().len()), Some(Answer::MAX_BYTES));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Answer(Box<[u8]>);

impl Answer {
    /// The longest answer in bytes. What a handler gives beyond that is cut off.
    pub const MAX_BYTES: usize = 1_536;
    /// Of how many attempts, counted from the last, a record keeps the answers.
    pub const KEPT: usize = 4;

    /// The first [`MAX_BYTES`](Self::MAX_BYTES) of these bytes; `None` for no bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let mut bytes = bytes.into();
        bytes.truncate(Self::MAX_BYTES);
        (!bytes.is_empty()).then(|| Self(bytes.into()))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Answer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?.into_vec();
        let is_whole = bytes.len() <= Self::MAX_BYTES;
        let answer = Self::new(bytes).filter(|_| is_whole);
        answer.ok_or_else(|| de::Error::custom("an answer is empty or too long"))
    }
}

/// Drops the answers of all attempts but the last [`Answer::KEPT`].
pub(crate) fn keep_the_newest(attempts: &mut [AttemptRecord]) {
    let older = attempts.len().saturating_sub(Answer::KEPT);
    for attempt in &mut attempts[..older] {
        if let Some(end) = &mut attempt.ended {
            end.answer = None;
        }
    }
}

/// How many bytes the answers of these attempts have.
pub(crate) fn bytes_of(attempts: &[AttemptRecord]) -> usize {
    let ends = attempts.iter().filter_map(|it| it.ended.as_ref());
    let answers = ends.filter_map(|end| end.answer.as_ref());
    answers.map(|answer| answer.0.len()).sum()
}
