//! fjall behind the log: a segment is an ingestion into one keyspace, past fjall's journal.

use std::path::Path;

use fjall::{AbstractTree as _, Database, Keyspace, KeyspaceCreateOptions, Slice};

use super::{Library, Put, Rows};
use crate::peer::CACHE_BYTES;

pub(crate) struct Fjall {
    keyspace: Keyspace,
    /// Its threads compact.
    _database: Database,
}

impl Library for Fjall {
    type Bytes = Slice;

    fn open(directory: &Path) -> anyhow::Result<Self> {
        let database = Database::builder(directory)
            .cache_size(CACHE_BYTES)
            .worker_threads(2)
            .open()?;
        Ok(Self {
            keyspace: database.keyspace("all", KeyspaceCreateOptions::default)?,
            _database: database,
        })
    }

    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Slice>> {
        Ok(self.keyspace.get(key)?)
    }

    fn range(&self, from: &[u8], end: &[u8]) -> Rows<'_, Slice> {
        let rows = self.keyspace.range(from..end);
        Box::new(rows.map(|row| Ok(row.into_inner()?)))
    }

    fn ingest(&self, fill: &mut dyn FnMut(Put<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut ingestion = self.keyspace.start_ingestion()?;
        fill(&mut |key, value| {
            match value {
                Some(value) => ingestion.write(key, value)?,
                None => ingestion.write_tombstone(key)?,
            }
            Ok(())
        })?;
        Ok(ingestion.finish()?)
    }

    fn runs(&self) -> usize {
        self.keyspace.tree.l0_run_count()
    }
}
