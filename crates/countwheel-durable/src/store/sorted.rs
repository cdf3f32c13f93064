//! What stands behind a log: records in order, taken in by the segment.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Change, DueEntry, DueScan, Filter, Lease, MemoryStore, Page, Shard, Store, StoreError,
};
use crate::{Record, TimerName};

/// Keeps the records that outlived their segment of a log.
///
/// It knows no owners and counts nothing: the log in front of it does. It is written by one
/// caller at a time, and read by any number meanwhile.
pub trait Sorted: Send + Sync {
    /// The last segment that [`ingest`](Self::ingest) took in; 0 before the first.
    fn ingested(&self) -> u64;

    /// Takes in what is left of the log's segment `segment`: all or nothing, together with the
    /// number, and durable on return. Each name of a shard occurs at most once. A put replaces
    /// whatever was there, a removal of nothing is no error.
    ///
    /// # Errors
    /// [`StoreError`]. Whether it was taken in is unknown then until the store is opened again,
    /// and no later call of this opening may succeed, but after [`StoreError::Full`]: nothing
    /// was taken in, and a later call may succeed.
    fn ingest(&self, segment: u64, changes: Vec<(Shard, Change)>) -> Result<(), StoreError>;

    /// The record of that name.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError>;

    /// As [`Store::due`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError>;

    /// As [`Store::list`].
    ///
    /// # Errors
    /// [`StoreError`] if the store failed.
    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError>;

    /// Does a piece of what keeps it in shape, such as a merge, and says whether more is left.
    /// Ingests and reads go on meanwhile.
    ///
    /// # Errors
    /// As [`ingest`](Self::ingest).
    fn tend(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Whether [`tend`](Self::tend) has fallen so far behind that taking in more would cost reads
    /// and room without a bound. A log with threads moves nothing then, until it is full.
    fn is_behind(&self) -> bool {
        false
    }
}

/// Sorted records in memory: the plain reference. A clone shares the content.
///
/// ```
/// use countwheel_durable::store::{MemorySorted, Sorted};
///
/// let sorted = MemorySorted::default();
/// sorted.clone().ingest(1, vec![])?;
/// assert_eq!(sorted.ingested(), 1);
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemorySorted {
    records: MemoryStore,
    ingested: Arc<Mutex<u64>>,
}

impl Default for MemorySorted {
    fn default() -> Self {
        Self {
            records: MemoryStore::new(0),
            ingested: Arc::default(),
        }
    }
}

impl Sorted for MemorySorted {
    fn ingested(&self) -> u64 {
        *self.ingested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ingest(&self, segment: u64, changes: Vec<(Shard, Change)>) -> Result<(), StoreError> {
        let mut ingested = self.ingested.lock().unwrap_or_else(PoisonError::into_inner);
        for (shard, change) in changes {
            let fence = self.records.acquire(shard)?.lease.fence;
            self.records.commit(Lease { shard, fence }, &[change])?;
        }
        *ingested = segment;
        Ok(())
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.records.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<Vec<DueEntry>, StoreError> {
        self.records.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.records.list(shard, filter)
    }
}
