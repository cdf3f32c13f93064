//! A store that reads each name by itself.

use countwheel_durable::store::{
    Change, Commit, DuePage, DueScan, Filter, Lease, Ownership, Page, QueueCounts, Shard, Store,
    StoreError,
};
use countwheel_durable::{Record, Settings, SettingsVersion, TimerName};
use countwheel_postgres::PostgresStore;

/// The store in a PostgreSQL without the question for many names.
pub(crate) struct OneByOne(pub(crate) PostgresStore);

impl Store for OneByOne {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.0.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.0.commit(lease, changes)
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        self.0.commit_all(commits)
    }

    fn lanes(&self) -> usize {
        self.0.lanes()
    }

    fn changes_together(&self) -> usize {
        self.0.changes_together()
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.0.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.0.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.0.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.0.counts(shard)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.0.settings(after)
    }
}
