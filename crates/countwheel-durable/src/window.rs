//! The near future in memory: a wheel over what the store holds, with a bound.
//!
//! The store is the truth. The window knows every record that needs attention between
//! [`Window::from`] and [`Window::loaded`] and none beyond, so it can be thrown away and
//! filled again at any moment; that is also how it shrinks when it has grown too large.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use countwheel::{Tick, Timestamp};
use countwheel_core::{HierarchicalWheel, TimerKey};

#[cfg(feature = "planted-bugs")]
use crate::scheduler::planted;
use crate::store::{DueEntry, DueScan, Shard, Store, StoreError};
use crate::{Config, DueClock, Revision, Wake};

/// How many entries one read of the store brings.
const PAGE: usize = 1_024;

/// The nearest records, on a wheel whose tick is a microsecond: what is stored in
/// microseconds needs no rounding.
#[derive(Debug)]
pub(crate) struct Window {
    wheel: HierarchicalWheel<DueEntry>,
    keys: BTreeMap<Revision, TimerKey>,
    capacity: usize,
    /// Where a refill from scratch begins: what is due before belongs to the backlog.
    from: Wake,
    /// Everything up to here, and nothing beyond, is on the wheel.
    loaded: Wake,
    pub(crate) refills: u64,
    pub(crate) rebuilds: u64,
    #[cfg(feature = "planted-bugs")]
    skip_page_border: bool,
}

impl Window {
    /// An empty window over everything that needs attention at `start` or later.
    pub(crate) fn new(start: Timestamp, config: &Config) -> Self {
        let from = Wake {
            at: start,
            revision: Revision(0),
        };
        Self {
            wheel: HierarchicalWheel::starting_at(Tick::new(start.as_micros())),
            keys: BTreeMap::new(),
            capacity: config.window.max(2),
            from,
            loaded: from,
            refills: 0,
            rebuilds: 0,
            #[cfg(feature = "planted-bugs")]
            skip_page_border: planted!(config, SkipPageBorder),
        }
    }

    /// Throws everything away and begins at `start`, to be read again from the store. The
    /// only way back for the hand.
    pub(crate) fn restart(&mut self, start: Timestamp) {
        self.wheel = HierarchicalWheel::starting_at(Tick::new(start.as_micros()));
        self.keys.clear();
        self.from = Wake {
            at: start,
            revision: Revision(0),
        };
        self.loaded = self.from;
        self.rebuilds += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Takes in an entry if it is near enough; one that is not will be read from the store
    /// when its time comes.
    pub(crate) fn admit(&mut self, entry: DueEntry) {
        if entry.wake > self.loaded {
            return;
        }
        self.insert(entry);
    }

    fn insert(&mut self, entry: DueEntry) {
        let revision = entry.wake.revision;
        if !self.keys.contains_key(&revision) {
            let key = self
                .wheel
                .insert(Tick::new(entry.wake.at.as_micros()), entry);
            self.keys.insert(revision, key);
        }
    }

    /// Drops the entry of a record that has changed.
    pub(crate) fn forget(&mut self, revision: Revision) {
        if let Some(key) = self.keys.remove(&revision) {
            self.wheel.cancel(key);
        }
    }

    /// The next entry whose time has come.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Option<DueEntry> {
        let expired = self.wheel.expire(Tick::new(now.as_micros()))?;
        self.keys.remove(&expired.value.wake.revision);
        Some(expired.value)
    }

    /// Never later than the next entry.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        let tick = self.wheel.next_wake()?;
        Some(Timestamp::from_micros(tick.get()))
    }

    /// Whether [`Window::refill`] would read.
    pub(crate) fn wants_refill(&self) -> bool {
        let low = self.wheel.len() < self.capacity.div_ceil(4);
        (low && self.loaded < Wake::MAX) || self.wheel.len() > self.capacity
    }

    /// Brings the window to half its capacity from the store: when it has run low, or has
    /// grown over its capacity. `skip` says which entries are in somebody's hands.
    ///
    /// The store must hold all changes made so far. O(capacity), which pays for at least a
    /// quarter of the capacity in expiries or insertions.
    pub(crate) fn refill(
        &mut self,
        store: &dyn Store,
        shard: Shard,
        skip: impl Fn(Revision) -> bool,
    ) -> Result<(), StoreError> {
        if !self.wants_refill() {
            return Ok(());
        }
        if self.wheel.len() > self.capacity {
            self.wheel.clear();
            self.keys.clear();
            self.loaded = self.from;
            self.rebuilds += 1;
        }
        let target = self.capacity.div_ceil(2);
        while self.wheel.len() < target && self.loaded < Wake::MAX {
            self.refills += 1;
            let limit = PAGE.min(target - self.wheel.len());
            let page = store.due(
                shard,
                &DueScan {
                    after: Some(self.loaded),
                    limit,
                    ..DueScan::all(DueClock::Wall)
                },
            )?;
            self.loaded = match page.last() {
                Some(last) if page.len() == limit => last.wake,
                _ => Wake::MAX,
            };
            #[cfg(feature = "planted-bugs")]
            let page = if self.skip_page_border && page.len() == limit && limit > 1 {
                page[..limit - 1].to_vec()
            } else {
                page
            };
            for entry in page {
                if !skip(entry.wake.revision) {
                    self.insert(entry);
                }
            }
        }
        Ok(())
    }
}

/// What was overdue when the scheduler was opened: taken in deadline order, at a bounded
/// rate, a page in memory at a time.
#[derive(Debug)]
pub(crate) struct Backlog {
    page: VecDeque<DueEntry>,
    after: Option<Wake>,
    until: Timestamp,
    read_all: bool,
    interval: Duration,
    /// The virtual scheduling time of the generic cell rate algorithm (ITU-T I.371): the
    /// next start is allowed from here on.
    next_start: Timestamp,
}

impl Backlog {
    /// The longest that unused allowance is kept.
    const BURST: Duration = Duration::from_millis(20);

    pub(crate) fn new(opened: Timestamp, per_second: u32) -> Self {
        Self {
            page: VecDeque::new(),
            after: None,
            until: opened.saturating_sub(Duration::from_micros(1)),
            read_all: opened == Timestamp::EPOCH,
            interval: Duration::from_secs(1) / per_second.max(1),
            next_start: opened,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.page.is_empty() && self.read_all
    }

    pub(crate) fn refill(&mut self, store: &dyn Store, shard: Shard) -> Result<(), StoreError> {
        if self.page.is_empty() && !self.read_all {
            self.page = store
                .due(
                    shard,
                    &DueScan {
                        after: self.after,
                        until: self.until,
                        limit: PAGE,
                        ..DueScan::all(DueClock::Wall)
                    },
                )?
                .into();
            self.read_all = self.page.len() < PAGE;
            self.after = self.page.back().map(|last| last.wake).or(self.after);
        }
        Ok(())
    }

    /// The next entry, if the rate allows one now.
    pub(crate) fn take(&mut self, now: Timestamp) -> Option<DueEntry> {
        if now < self.next_start {
            return None;
        }
        self.page.pop_front()
    }

    /// Notes that the entry last taken was started.
    pub(crate) fn started(&mut self, now: Timestamp) {
        let earliest = now.saturating_sub(Self::BURST);
        self.next_start = self.next_start.max(earliest) + self.interval;
    }

    /// When the rate allows the next start; `None` if nothing is left.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        (!self.is_empty()).then_some(self.next_start)
    }
}
