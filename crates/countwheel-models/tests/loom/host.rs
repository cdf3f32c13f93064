//! What the models have in common: a timer's shards, and a host that does with them what a
//! timer's thread does.

use std::sync::Arc;
use std::task::Waker;

use countwheel::ManualClock;

use crate::concurrent::{Hub, Parker, Shards};
use crate::{Fired, Instant, Layout, Resolution};

/// Time does not pass in a model: a host that nobody wakes sleeps for ever, and loom reports
/// a deadlock.
pub(crate) const NOW: Instant = Instant::from_nanos(10_000_000);
pub(crate) const PAST: Instant = Instant::from_nanos(5_000_000);
pub(crate) const SOON: Instant = Instant::from_nanos(20_000_000);
pub(crate) const LATE: Instant = Instant::from_nanos(90_000_000);

/// What is filed: something to tell entries apart by.
pub(crate) type Value = u8;

pub(crate) fn shards(count: usize, max_pending: Option<u64>) -> Arc<Shards<Value>> {
    let clock = Arc::new(ManualClock::new());
    let hub = Hub::new(clock, Resolution::default(), Layout::default(), max_pending);
    Arc::new(Shards::new(hub, count))
}

/// A thread that takes out what is due.
pub(crate) struct Host {
    shards: Arc<Shards<Value>>,
    parker: Arc<Parker>,
}

impl Host {
    pub(crate) fn new(shards: &Arc<Shards<Value>>) -> Self {
        let parker = Arc::new(Parker::default());
        shards.hub().set_host(&Waker::from(Arc::clone(&parker)));
        Self {
            shards: Arc::clone(shards),
            parker,
        }
    }

    pub(crate) fn parker(self) -> Arc<Parker> {
        self.parker
    }

    /// Takes out what is due, and sleeps when there is nothing, until there were `count`
    /// entries.
    pub(crate) fn take(&self, count: usize) -> Vec<Value> {
        let mut due = Vec::new();
        loop {
            self.shards.take_due(NOW, 8, &mut due);
            if due.len() >= count {
                return values(due);
            }
            self.sleep_unless(|_| false);
        }
    }

    /// Sleeps once, unless it must not or need not. Whether it need not.
    pub(crate) fn sleep_unless(&self, enough: impl FnOnce(Instant) -> bool) -> bool {
        let Some(until) = self.shards.fall_asleep(NOW, Instant::MAX) else {
            return false;
        };
        let enough = enough(until);
        if !enough {
            self.parker.park(None);
        }
        self.shards.hub().host_is_awake();
        enough
    }
}

pub(crate) fn values(fired: Vec<Fired<Value>>) -> Vec<Value> {
    let mut values: Vec<_> = fired.into_iter().map(|one| one.value).collect();
    values.sort_unstable();
    values
}
