//! The bytes of a commit's changes.
//!
//! A body begins with the shard, as two bytes; the changes follow, one after the other: a
//! byte that says which, and what it needs. A record is what [`codec`] makes of it, behind its
//! length. All numbers are little endian.

use crate::store::embedded::codec::{self, CodecError};
use crate::store::{Change, Shard};
use crate::{Record, Revision, TimerName};

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const GIVEN: u8 = 3;

/// One change, as it stands in a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Logged {
    Put {
        record: Box<Record>,
        /// Where its bytes stand, counted from the beginning of the body, and how many they are.
        at: usize,
        len: usize,
    },
    Remove {
        name: TimerName,
        at: usize,
    },
    Given(Revision),
}

impl Logged {
    /// Where it stands, counted from the beginning of the body, and how long it is: of a
    /// record only that.
    pub(super) fn place(&self) -> (usize, usize) {
        match self {
            Self::Put { at, len, .. } => (*at, *len),
            Self::Remove { at, .. } => (*at, 0),
            Self::Given(_) => (0, 0),
        }
    }
}

/// The name that a change is about.
pub(super) fn name_of(change: &Change) -> Option<&TimerName> {
    match change {
        Change::Put { record, .. } => Some(&record.name),
        Change::Remove { name, .. } => Some(name),
        Change::Given(_) => None,
    }
}

/// Where a change stands that was put behind `at` bytes of a body: see [`Logged::place`].
pub(super) fn place_of(change: &Change, at: usize, bytes: &[u8]) -> (usize, usize) {
    match change {
        Change::Put { .. } => (at + PREFIX, bytes.len() - PREFIX),
        Change::Remove { .. } => (at, 0),
        Change::Given(_) => (0, 0),
    }
}

/// The bytes of a put before its record.
const PREFIX: usize = 5;

pub(super) fn begin(shard: Shard) -> Vec<u8> {
    shard.0.to_le_bytes().to_vec()
}

/// The bytes of one change.
pub(super) fn encode(change: &Change) -> Vec<u8> {
    match change {
        Change::Put { record, .. } => {
            let record = codec::encode(record);
            let mut bytes = Vec::with_capacity(record.len() + PREFIX);
            bytes.push(PUT);
            put_length(&mut bytes, record.len());
            bytes.extend_from_slice(&record);
            bytes
        }
        Change::Remove { name, .. } => {
            let mut bytes = vec![REMOVE];
            for part in [name.queue.as_str(), name.key.as_str()] {
                put_length(&mut bytes, part.len());
                bytes.extend_from_slice(part.as_bytes());
            }
            bytes
        }
        Change::Given(revision) => {
            let mut bytes = vec![GIVEN];
            bytes.extend_from_slice(&revision.0.to_le_bytes());
            bytes
        }
    }
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
}

/// The shard and the changes of a body.
pub(super) fn decode(body: &[u8]) -> Result<(Shard, Vec<Logged>), CodecError> {
    let mut rest = Rest { body, at: 0 };
    let shard = Shard(u16::from_le_bytes(rest.array()?));
    let mut changes = Vec::new();
    while rest.at < body.len() {
        let begins_at = rest.at;
        let [kind] = rest.array()?;
        changes.push(match kind {
            PUT => {
                let record = rest.prefixed()?;
                Logged::Put {
                    record: Box::new(codec::decode(record)?),
                    at: rest.at - record.len(),
                    len: record.len(),
                }
            }
            REMOVE => {
                let queue = rest.text()?;
                let key = rest.text()?;
                Logged::Remove {
                    name: TimerName::new(queue, key).map_err(|_| CodecError::Name)?,
                    at: begins_at,
                }
            }
            GIVEN => Logged::Given(Revision(u64::from_le_bytes(rest.array()?))),
            _ => return Err(CodecError::Key),
        });
    }
    Ok((shard, changes))
}

struct Rest<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
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

    fn prefixed(&mut self) -> Result<&'a [u8], CodecError> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&mut self) -> Result<&'a str, CodecError> {
        std::str::from_utf8(self.prefixed()?).map_err(|_| CodecError::Name)
    }
}
