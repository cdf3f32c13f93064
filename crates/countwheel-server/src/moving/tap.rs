//! A store that notes which timers its commits change, while somebody wants to know.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use countwheel_durable::store::{
    Change, Commit, DuePage, DueScan, Durability, Filter, Found, Gaps, Lease, OnDisk, Ownership,
    Page, QueueCounts, Shard, Store, StoreError, Summary,
};
use countwheel_durable::{QueueName, Record, Settings, SettingsVersion, TimerName, Trouble};
use parking_lot::Mutex;

/// More names than this are not kept: whoever reads them is too slow.
const NAMES_MAX: usize = 1 << 21;

/// The store, and what was changed since somebody asked last. Clones are the same.
pub(crate) struct Tapped<S>(Arc<Inner<S>>);

struct Inner<S> {
    store: S,
    is_open: AtomicBool,
    changed: Mutex<HashSet<TimerName>>,
}

impl<S> Clone for Tapped<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> Tapped<S> {
    pub(crate) fn new(store: S) -> Self {
        Self(Arc::new(Inner {
            store,
            is_open: AtomicBool::new(false),
            changed: Mutex::default(),
        }))
    }

    /// From now on the names are noted of what is changed.
    pub(crate) fn open(&self) {
        self.0.changed.lock().clear();
        self.0.is_open.store(true, Ordering::SeqCst);
    }

    pub(crate) fn close(&self) {
        self.0.is_open.store(false, Ordering::SeqCst);
        *self.0.changed.lock() = HashSet::new();
    }

    /// How many names were noted since they were taken last.
    pub(crate) fn noted(&self) -> usize {
        self.0.changed.lock().len()
    }

    /// Takes what was changed since the last time; `None` if that was more than is kept.
    pub(crate) fn take(&self) -> Option<HashSet<TimerName>> {
        let changed = mem::take(&mut *self.0.changed.lock());
        (changed.len() < NAMES_MAX).then_some(changed)
    }

    /// Notes the names after the commit: who takes one out and reads it then sees what was committed. A commit
    /// that failed may be durable all the same.
    fn note(&self, changes: &[Change]) {
        if !self.0.is_open.load(Ordering::SeqCst) {
            return;
        }
        let mut changed = self.0.changed.lock();
        for change in changes {
            let name = match change {
                Change::Put { record, .. } => &record.name,
                Change::Remove { name, .. } => name,
                Change::Given(_) | Change::Clock(_) | Change::Setting(_) => continue,
            };
            if changed.len() < NAMES_MAX && !changed.contains(name) {
                changed.insert(name.clone());
            }
        }
    }
}

impl<S: Store> Store for Tapped<S> {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.0.store.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let committed = self.0.store.commit(lease, changes);
        self.note(changes);
        committed
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        let committed = self.0.store.commit_all(commits);
        commits.iter().for_each(|commit| self.note(commit.changes));
        committed
    }

    fn lanes(&self) -> usize {
        self.0.store.lanes()
    }

    fn changes_together(&self) -> usize {
        self.0.store.changes_together()
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.0.store.get(shard, name)
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        self.0.store.get_many(shard, names, bytes)
    }

    fn may_start(&self, lease: Lease) -> bool {
        self.0.store.may_start(lease)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        self.0.store.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.0.store.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.0.store.counts(shard)
    }

    fn counts_are_exact(&self, shard: Shard) -> bool {
        self.0.store.counts_are_exact(shard)
    }

    fn saved_counts(&self, shard: Shard) -> Result<Option<Vec<QueueCounts>>, StoreError> {
        self.0.store.saved_counts(shard)
    }

    fn counts_after(
        &self,
        shard: Shard,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        self.0.store.counts_after(shard, after, limit)
    }

    fn summary(
        &self,
        shard: Shard,
        first: &[QueueName],
        limit: usize,
    ) -> Result<Summary, StoreError> {
        self.0.store.summary(shard, first, limit)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.0.store.settings(after)
    }

    fn reach(&self) -> Result<(), StoreError> {
        self.0.store.reach()
    }

    fn stuck(&self, shard: Shard) -> Option<String> {
        self.0.store.stuck(shard)
    }

    fn stopped(&self) {
        self.0.store.stopped();
    }

    fn durability(&self) -> Option<Durability> {
        self.0.store.durability()
    }

    fn oldest_snapshot(&self) -> Option<std::time::Duration> {
        self.0.store.oldest_snapshot()
    }

    fn gaps(&self) -> Gaps {
        self.0.store.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.0.store.troubles()
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        self.0.store.on_disk()
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::store::conformance::varied_records;

    use super::*;

    #[test]
    fn what_is_changed_while_it_is_open_is_noted_once() {
        let store = Tapped::new(MemoryStore::new(7));
        let lease = store.acquire(Shard::ONLY).unwrap().lease;
        let records = varied_records();
        let [first, second] = [&records[0], &records[1]];
        let put = |record: &Record| [Change::put(record.clone())];
        store.commit(lease, &put(first)).unwrap();
        store.open();
        assert!(store.take().unwrap().is_empty());
        store.commit(lease, &put(second)).unwrap();
        let removed = [Change::remove(second.name.clone())];
        let commits = [Commit {
            lease,
            changes: &removed,
        }];
        assert!(store.commit_all(&commits).iter().all(Result::is_ok));
        assert_eq!(store.noted(), 1);
        let names: Vec<_> = store.take().unwrap().into_iter().collect();
        assert_eq!(names, std::slice::from_ref(&second.name));
        assert_eq!(store.noted(), 0);
        // One that is refused may have been done all the same.
        store.acquire(Shard::ONLY).unwrap();
        assert!(store.commit(lease, &put(first)).is_err());
        assert_eq!(store.noted(), 1);
        store.close();
        assert_eq!(store.noted(), 0);
    }
}
