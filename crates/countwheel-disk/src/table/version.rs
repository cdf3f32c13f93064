//! The state of the store at one moment: runs of tables, which never change.

use std::sync::Arc;

use super::filter;
use super::format::{Value, restore};
use super::manifest::RunEntry;
use super::reader::{Cursor, Table};
use crate::codec;
use crate::planted::planted;
use crate::{Reached, StoreError};
use crate::{Record, StateKind};

/// All runs at one moment. Whoever holds it can read their files, whatever is merged meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Version {
    pub(super) ingested: u64,
    /// How many ingests there were.
    pub(super) sequence: u64,
    /// How far the log had reached when the last segment was taken in.
    pub(super) reached: Option<Reached>,
    /// Newest first.
    pub(super) runs: Vec<Arc<TableRun>>,
}

/// Tables one behind the other by name.
#[derive(Debug)]
pub(super) struct TableRun {
    /// How often what is in it was merged.
    pub(super) tier: u32,
    /// The last ingest of which something is in it.
    pub(super) newest: u64,
    pub(super) tables: Vec<Arc<Table>>,
}

impl TableRun {
    /// The table that has the key, if any has it.
    fn table_of(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let index = self
            .tables
            .partition_point(|table| table.entry.last_key.as_slice() < key);
        self.tables.get(index)
    }

    fn may_contain(&self, key: &[u8], hash: u64) -> bool {
        self.table_of(key)
            .is_some_and(|table| table.may_contain(key, hash))
    }

    /// Where the name stands; `None` if it is not in this run.
    fn find(&self, key: &[u8], hash: u64) -> Result<Option<Cursor>, StoreError> {
        match self.table_of(key) {
            Some(table) if table.may_contain(key, hash) => table.find(key),
            _ => Ok(None),
        }
    }

    /// Whether a part of an index cannot be read.
    pub(super) fn has_gap(&self) -> bool {
        self.tables.iter().any(|table| table.has_gap())
    }

    /// Whether a record cannot be read, so that nothing of it is merged.
    pub(super) fn is_left_alone(&self) -> bool {
        self.tables.iter().any(|table| table.is_left_alone())
    }

    pub(super) fn entry(&self) -> RunEntry {
        RunEntry {
            tier: self.tier,
            newest: self.newest,
            tables: self.tables.iter().map(|t| t.entry.clone()).collect(),
        }
    }

    /// The sum of what its tables say.
    pub(super) fn sum(&self, of: impl Fn(&Table) -> u64) -> u64 {
        self.tables.iter().map(|table| of(table)).sum()
    }
}

impl Version {
    /// The record of that name.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Record>, StoreError> {
        let hash = filter::hash(key);
        for run in &self.runs {
            if let Some(found) = run.find(key, hash)? {
                return record(&found);
            }
        }
        Ok(None)
    }

    /// The state of the record of that name, also of one that cannot be read if an index says it.
    pub(super) fn kind(&self, key: &[u8]) -> Result<Option<StateKind>, StoreError> {
        let hash = filter::hash(key);
        for run in &self.runs {
            let table = run.table_of(key);
            let Some(table) = table.filter(|table| table.may_contain(key, hash)) else {
                continue;
            };
            let found = table.find(key).and_then(|found| {
                let kind = |found: Cursor| match Value::read(found.value()) {
                    Ok(Value::Unreadable(indexed)) => Ok(Some(indexed.kind)),
                    _ => Ok(record(&found)?.map(|record| record.state.kind())),
                };
                found.map(kind).transpose()
            });
            match found {
                Ok(None) => {}
                Ok(Some(kind)) => return Ok(kind),
                // If it is not listed, it may have been removed, or not be here at all.
                Err(error) => return table.listed(key).map(Some).ok_or(error),
            }
        }
        Ok(None)
    }

    /// Whether a newer run than number `run` knows the name: what the older one says of it counts
    /// no more.
    pub(super) fn is_replaced(&self, run: usize, key: &[u8]) -> Result<bool, StoreError> {
        if run == 0 || planted!(TablesShowReplaced) {
            return Ok(false);
        }
        let hash = filter::hash(key);
        for newer in &self.runs[..run] {
            if newer.find(key, hash)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether one of the runs from number `run` on may know the name. Reads no records.
    pub(super) fn may_contain(&self, run: usize, key: &[u8]) -> bool {
        if planted!(TablesForgetRemovals) {
            return false;
        }
        let hash = filter::hash(key);
        let mut older = self.runs[run..].iter();
        older.any(|older| older.may_contain(key, hash))
    }

    /// All tables, with the number of their run.
    pub(super) fn tables(&self) -> impl Iterator<Item = (usize, &Arc<Table>)> {
        let runs = self.runs.iter().enumerate();
        runs.flat_map(|(number, run)| run.tables.iter().map(move |table| (number, table)))
    }
}

/// The record at which a cursor over names is; `None` if it was removed.
pub(super) fn record(cursor: &Cursor) -> Result<Option<Record>, StoreError> {
    let (table, offset) = (cursor.table(), cursor.offset());
    let Some(stripped) = table.stripped(cursor.value(), offset)? else {
        return Ok(None);
    };
    let mut bytes = Vec::with_capacity(stripped.len() + cursor.key().len() + 4);
    restore(cursor.key(), &stripped, &mut bytes).map_err(|_| table.senseless(offset))?;
    let decoded = codec::decode(&bytes);
    decoded
        .map(Some)
        .map_err(|error| table.damaged(offset, &error.to_string()))
}
