//! The store of a simulated directory.

use std::path::{Path, PathBuf};

use super::super::disk::{Opened, RaisedFormat};
use super::super::{
    Change, DiskOptions, Lease, LogStore, Ownership, Shard, Store as _, StoreError, TableStore,
};
use super::tree::Tree;

/// The store of a directory, as one process has it open. See
/// [`Disk::open_store`](super::Disk::open_store).
#[derive(Debug)]
pub struct SimulatedStore {
    log: LogStore<TableStore>,
    format: RaisedFormat,
    place: Tree,
    directory: PathBuf,
    was_made: bool,
}

impl SimulatedStore {
    pub(super) fn open(
        place: Tree,
        directory: &Path,
        new_store_id: u64,
        options: DiskOptions,
    ) -> Result<Self, StoreError> {
        let opened = Opened::at(&place, directory, new_store_id, options)?;
        Ok(Self {
            log: opened.log,
            format: RaisedFormat::new(opened.format),
            place,
            directory: directory.to_owned(),
            was_made: opened.was_made,
        })
    }

    /// Whether this opening made the store.
    #[must_use]
    pub fn was_made(&self) -> bool {
        self.was_made
    }

    /// As [`Store::acquire`](super::super::Store::acquire) of a `DiskStore`.
    ///
    /// # Errors
    /// As that.
    pub fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.log.acquire(shard)
    }

    /// As [`Store::commit`](super::super::Store::commit) of a `DiskStore`.
    ///
    /// # Errors
    /// As that.
    pub fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let raised = self.format.before(&self.place, &self.directory, changes);
        raised.inspect_err(|error| {
            if !error.is_full() {
                self.log.end(&error.to_string());
            }
        })?;
        self.log.commit(lease, changes)
    }
}
