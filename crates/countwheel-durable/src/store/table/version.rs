//! What the store is at one moment: runs of tables, which never change.

use std::sync::Arc;

use super::filter;
use super::format::restore;
use super::manifest::RunEntry;
use super::reader::{Cursor, Table};
use crate::Record;
use crate::planted::planted;
use crate::store::StoreError;
use crate::store::embedded::codec;

/// All runs at one moment. Whoever holds it can read their files, whatever is merged meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Version {
    pub(super) ingested: u64,
    /// How many ingests there were.
    pub(super) sequence: u64,
    /// Newest first.
    pub(super) runs: Vec<Arc<Run>>,
}

/// Tables one behind the other by name.
#[derive(Debug)]
pub(super) struct Run {
    /// How often what is in it was merged.
    pub(super) tier: u32,
    /// The last ingest of which something is in it.
    pub(super) newest: u64,
    pub(super) tables: Vec<Arc<Table>>,
}

impl Run {
    /// The table that has the key, if any has it.
    fn table_of(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let index = self
            .tables
            .partition_point(|table| table.entry.last_key.as_slice() < key);
        self.tables.get(index)
    }

    fn may_contain(&self, key: &[u8], hash: u64) -> Result<bool, StoreError> {
        self.table_of(key)
            .map_or(Ok(false), |table| table.may_contain(key, hash))
    }

    /// Where the name stands; `None` if it is not in this run.
    fn find(&self, key: &[u8], hash: u64) -> Result<Option<Cursor>, StoreError> {
        match self.table_of(key) {
            Some(table) if table.may_contain(key, hash)? => table.find(key),
            _ => Ok(None),
        }
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
    pub(super) fn may_contain(&self, run: usize, key: &[u8]) -> Result<bool, StoreError> {
        if planted!(TablesForgetRemovals) {
            return Ok(false);
        }
        let hash = filter::hash(key);
        for older in &self.runs[run..] {
            if older.may_contain(key, hash)? {
                return Ok(true);
            }
        }
        Ok(false)
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
