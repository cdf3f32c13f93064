//! A store in memory: the plain reference for the other stores.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use countwheel_time::{Clock, Timestamp};
use parking_lot::{Mutex, MutexGuard};

use super::page::{DueBuilder, PageBuilder, begins_with, position};
use super::{
    Before, Change, ClockNote, DueEntry, DuePage, DueScan, Fence, Filter, Found, Lease, Ownership,
    Page, Position, QueueCounts, Shard, Store, StoreError,
};
use crate::{
    DueClock, QueueName, Record, Revision, Settings, SettingsVersion, StateKind, TimerName, Wake,
};

/// Keeps timers in memory. Nothing survives the process; a clone shares the content, so a
/// test can drop one owner and let the next one find what it left.
///
/// ```
/// use countwheel_durable::store::{MemoryStore, Shard, Store};
///
/// let store = MemoryStore::new(7);
/// let before = store.acquire(Shard::ONLY)?;
/// let after = store.clone().acquire(Shard::ONLY)?;
/// assert!(after.lease.fence > before.lease.fence);
/// assert!(store.commit(before.lease, &[]).is_err());
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    store_id: u64,
    /// By which it forgets done records by itself.
    forgets_by: Option<Arc<dyn Clock>>,
    /// Taken before the settings.
    shards: Arc<Mutex<BTreeMap<Shard, Content>>>,
    settings: Arc<Mutex<Settings>>,
}

/// One shard.
#[derive(Debug)]
struct Content {
    fence: Fence,
    last_revision: Revision,
    clock: Option<ClockNote>,
    timers: BTreeMap<TimerName, Record>,
    due: BTreeMap<(DueClock, Wake), TimerName>,
    queues: BTreeMap<QueueName, Queue>,
}

/// One queue: what is listed and what is counted.
#[derive(Default, Debug)]
struct Queue {
    list: BTreeMap<Position, TimerName>,
    by_state: [u64; 4],
}

impl MemoryStore {
    /// An empty store of that id.
    #[must_use]
    pub fn new(store_id: u64) -> Self {
        Self {
            store_id,
            forgets_by: None,
            shards: Arc::default(),
            settings: Arc::default(),
        }
    }

    /// The same, of a store that forgets done records by itself at the end of their retention, as a
    /// database may.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel_time::ManualClock;
    /// use countwheel_durable::store::{MemoryStore, Shard, Store};
    ///
    /// let store = MemoryStore::new(7).forgetting(Arc::new(ManualClock::new()));
    /// assert!(store.acquire(Shard::ONLY)?.forgets_done);
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    #[must_use]
    pub fn forgetting(mut self, clock: Arc<dyn Clock>) -> Self {
        self.forgets_by = Some(clock);
        self
    }

    /// Takes a shard, also [the one that no owner has](Shard::SETTINGS). [`Store::acquire`] refuses that
    /// one.
    #[must_use]
    pub fn take(&self, shard: Shard) -> Ownership {
        let mut shards = self.shards();
        let content = shards.entry(shard).or_default();
        content.fence.0 += 1;
        Ownership {
            lease: Lease {
                shard,
                fence: content.fence,
            },
            store_id: shard.id(self.store_id),
            last_revision: content.last_revision,
            clock: content.clock,
            forgets_done: self.forgets_by.is_some(),
        }
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<Shard, Content>> {
        let mut shards = self.shards.lock();
        if let Some(clock) = &self.forgets_by {
            let wall = clock.timestamp();
            shards.values_mut().for_each(|content| content.forget(wall));
        }
        shards
    }
}

impl Store for MemoryStore {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        if shard.is_reserved() {
            return Err(StoreError::Reserved { shard });
        }
        Ok(self.take(shard))
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        let mut shards = self.shards();
        let current = shards.get(&lease.shard).map_or(Fence(0), |c| c.fence);
        let content = match shards.get_mut(&lease.shard) {
            Some(content) if current == lease.fence => content,
            _ => {
                return Err(StoreError::Fenced {
                    shard: lease.shard,
                    ours: lease.fence,
                    current,
                });
            }
        };
        for change in changes {
            match change {
                Change::Put { record, before } => content.put(record, *before),
                Change::Remove { name, .. } => drop(content.remove(name)),
                Change::Given(revision) => {
                    content.last_revision = content.last_revision.max(*revision);
                }
                Change::Clock(note) => content.clock = Some(*note),
                Change::Setting(setting) => self.settings.lock().apply(setting),
            }
        }
        Ok(())
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        // A commit that changes more than one holds the shards.
        let _no_commit = self.shards();
        let settings = self.settings.lock();
        Ok((settings.version() > after).then(|| settings.clone()))
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let shards = self.shards();
        Ok(shards.get(&shard).and_then(|c| c.timers.get(name)).cloned())
    }

    fn get_many(
        &self,
        shard: Shard,
        names: &mut dyn Iterator<Item = TimerName>,
        bytes: usize,
    ) -> Result<Found, StoreError> {
        let shards = self.shards();
        let content = shards.get(&shard);
        let mut found = Found::default();
        let mut left = Some(bytes);
        while left.is_some()
            && let Some(name) = names.next()
        {
            let record = content.and_then(|content| content.timers.get(&name));
            let bytes = record.map_or(0, Record::content_bytes);
            left = left.and_then(|left| left.checked_sub(bytes));
            found.add(name, record.cloned());
        }
        Ok(found)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        let shards = self.shards();
        let mut page = DueBuilder::new(scan);
        let Some(content) = shards.get(&shard).filter(|_| !page.is_full()) else {
            return Ok(page.finish());
        };
        let start = match scan.after {
            Some(after) => Bound::Excluded((scan.clock, after)),
            None => Bound::Included((scan.clock, Wake::default())),
        };
        for (&(clock, wake), name) in content.due.range((start, Bound::Unbounded)) {
            if clock != scan.clock || wake.at > scan.until || !page.come_to(wake) {
                break;
            }
            let wanted = scan.queue.is_none_or(|queue| name.queue == *queue);
            let name = name.clone();
            let record = content.timers.get(&name);
            let kind = record.map(|record| record.state.kind());
            let wanted = wanted && !(self.forgets_by.is_some() && kind == Some(StateKind::Done));
            if wanted && !page.take(DueEntry { wake, name, kind }) {
                break;
            }
        }
        Ok(page.finish())
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        let shards = self.shards();
        let mut page = PageBuilder::new(filter);
        let Some(content) = shards.get(&shard) else {
            return Ok(page.finish());
        };
        let Some(queue) = content.queues.get(&filter.queue) else {
            return Ok(page.finish());
        };
        let start = filter.after.map_or(Bound::Unbounded, Bound::Excluded);
        for (position, name) in queue.list.range((start, Bound::Unbounded)) {
            if !page.come_to(*position) {
                break;
            }
            let record = &content.timers[name];
            let wanted = filter.state.is_none_or(|kind| record.state.kind() == kind)
                && filter.due_from.is_none_or(|from| position.due >= from)
                && filter.due_before.is_none_or(|before| position.due < before)
                && begins_with(name, filter.prefix.as_deref());
            if wanted && !page.take(|| Ok::<_, StoreError>(record.clone()))? {
                break;
            }
        }
        Ok(page.finish())
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        let shards = self.shards();
        let Some(content) = shards.get(&shard) else {
            return Ok(Vec::new());
        };
        let queues = content.queues.iter();
        Ok(queues
            .map(|(queue, kept)| QueueCounts {
                queue: queue.clone(),
                by_state: kept.by_state,
            })
            .collect())
    }
}

impl Default for Content {
    fn default() -> Self {
        Self {
            fence: Fence(0),
            last_revision: Revision(0),
            clock: None,
            timers: BTreeMap::new(),
            due: BTreeMap::new(),
            queues: BTreeMap::new(),
        }
    }
}

impl Content {
    fn put(&mut self, record: &Record, before: Before) {
        let mut record = record.clone();
        let old = self.remove(&record.name);
        if let (Before::SamePayload(_), Some(old)) = (before, old) {
            record.payload = old.payload;
        }
        let record = &record;
        let queue = self.queues.entry(record.name.queue.clone()).or_default();
        queue.by_state[record.state.kind() as usize] += 1;
        let listed = queue.list.insert(position(record), record.name.clone());
        let woken = record.wake().and_then(|wake| {
            let key = (record.wake_clock(), wake);
            self.due.insert(key, record.name.clone())
        });
        debug_assert!(
            listed.or(woken).is_none(),
            "a revision is given to one timer"
        );
        self.last_revision = self.last_revision.max(record.revision);
        self.timers.insert(record.name.clone(), record.clone());
    }

    /// Forgets what is done and was kept for long enough.
    fn forget(&mut self, wall: Timestamp) {
        let end = (DueClock::Wall, Wake::end_of(wall));
        let past = self.due.range(..=end).map(|(_, name)| name);
        let over = past.filter(|name| {
            let record = self.timers.get(*name);
            record.is_some_and(|record| record.state.kind() == StateKind::Done)
        });
        for name in over.cloned().collect::<Vec<_>>() {
            self.remove(&name);
        }
    }

    fn remove(&mut self, name: &TimerName) -> Option<Record> {
        let old = self.timers.remove(name)?;
        if let Some(wake) = old.wake() {
            self.due.remove(&(old.wake_clock(), wake));
        }
        if let Some(queue) = self.queues.get_mut(&name.queue) {
            queue.list.remove(&position(&old));
            queue.by_state[old.state.kind() as usize] -= 1;
            if queue.list.is_empty() {
                self.queues.remove(&name.queue);
            }
        }
        Some(old)
    }
}
