//! The records of attempts in flight, kept in memory from the claim to the outcome, so that the
//! outcome needs no read.

use std::collections::HashMap;

use crate::store::Change;
use crate::{Record, State, TimerName};

/// The records of attempts in flight, as far as they are short and there is room. What is not kept
/// is read.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    records: HashMap<TimerName, Box<Record>>,
    bytes: usize,
    most_bytes: usize,
}

impl Kept {
    /// A longer payload is not kept.
    const PAYLOAD_MAX: usize = 64 << 10;

    pub(crate) fn new(most_bytes: usize) -> Self {
        Self {
            most_bytes,
            ..Self::default()
        }
    }

    /// From now on it may take so many bytes.
    pub(crate) fn resize(&mut self, most_bytes: usize) {
        self.most_bytes = most_bytes;
        if self.bytes > most_bytes {
            self.records.clear(); // they are read then
            self.bytes = 0;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has(&self, name: &TimerName) -> bool {
        self.records.contains_key(name)
    }

    /// Keeps a record as the store has it, if there is room.
    pub(crate) fn keep(&mut self, record: Box<Record>) {
        self.take(&record.name);
        let bytes = bytes_of(&record);
        if record.payload.len() > Self::PAYLOAD_MAX || self.bytes + bytes > self.most_bytes {
            return;
        }
        self.bytes += bytes;
        self.records.insert(record.name.clone(), record);
    }

    /// Takes out the record of that name.
    pub(crate) fn take(&mut self, name: &TimerName) -> Option<Box<Record>> {
        let record = self.records.remove(name)?;
        self.bytes -= bytes_of(&record);
        Some(record)
    }

    /// These changes are durable: what was claimed is kept. What changed otherwise was taken out when
    /// the step read it.
    pub(crate) fn settle(&mut self, changes: Vec<Change>) {
        for change in changes {
            if let Change::Put { record, .. } = change
                && record.state == State::Delivering
            {
                self.keep(record);
            }
        }
    }
}

/// About how much memory a record takes, with its place in a map that may be half empty.
fn bytes_of(record: &Record) -> usize {
    let details = record.attempts.iter().filter_map(|it| it.ended.as_ref());
    let details: usize = details.map(|ended| ended.detail.len()).sum();
    let attempts = record.attempts.capacity() * size_of::<crate::AttemptRecord>();
    let name = record.name.queue.as_str().len() + record.name.key.as_str().len();
    size_of::<Record>()
        + 2 * size_of::<(TimerName, Box<Record>)>()
        + 64
        + name
        + attempts
        + details
        + record.content_bytes()
        + record
            .recurring
            .as_ref()
            .map_or(0, |_| size_of::<crate::Recurring>())
}
