//! The files of one moment, for a copy of the store while it goes on.

use std::sync::Arc;

use super::directory::Directory;
use super::version::Version;

/// What a table store was at one moment. As long as it lives, its files stay.
///
/// To copy the store, copy or link each of [`files`](Self::files) into another directory, and
/// write [`manifest`](Self::manifest) there as [`MANIFEST`](Self::MANIFEST); sync all of them and
/// the directory.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_disk::{Flushed, Sorted, SystemFiles, TableOptions, TableSnapshot, TableStore};
///
/// let (directory, copy) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// let open = |path| TableStore::open(Arc::new(SystemFiles::new(path)), 7, TableOptions::default());
/// let store = open(directory.path())?;
/// store.ingest(1, Flushed::default())?;
///
/// let snapshot = store.snapshot();
/// store.ingest(2, Flushed::default())?;
/// for file in snapshot.files() {
///     std::fs::hard_link(directory.path().join(&file), copy.path().join(&file))?;
/// }
/// std::fs::write(copy.path().join(TableSnapshot::MANIFEST), snapshot.manifest())?;
/// assert_eq!(open(copy.path())?.ingested(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TableSnapshot {
    version: Arc<Version>,
    manifest: Vec<u8>,
}

impl TableSnapshot {
    /// The name of the manifest's file.
    pub const MANIFEST: &str = Directory::MANIFEST;

    pub(super) fn new(version: Arc<Version>, directory: &Directory) -> Self {
        let manifest = version.manifest(directory).write(directory.store_id);
        Self { version, manifest }
    }

    /// The last segment that had been taken in.
    #[must_use]
    pub fn ingested(&self) -> u64 {
        self.version.ingested
    }

    /// The names of the tables' files, which never change.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.version
            .tables()
            .map(|(_, table)| table.name())
            .collect()
    }

    /// What the manifest has to hold.
    #[must_use]
    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }
}
