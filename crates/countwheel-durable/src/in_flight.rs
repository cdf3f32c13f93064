//! The attempts that run, by timer and by queue.

use std::collections::BTreeMap;

use crate::planted::planted;
use crate::{Config, QueueName, Revision, TimerName};

/// The attempts that run, and who may have more.
#[derive(Debug)]
pub(crate) struct InFlight {
    names: BTreeMap<Revision, TimerName>,
    by_queue: BTreeMap<QueueName, usize>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
    percent: usize,
}

impl InFlight {
    pub(crate) fn new(config: &Config, most_bytes: usize) -> Self {
        Self {
            names: BTreeMap::new(),
            by_queue: BTreeMap::new(),
            bytes: 0,
            most: config.max_in_flight.max(1),
            most_bytes,
            percent: usize::from(config.queue_share_percent.clamp(1, 100)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, revision: Revision) -> bool {
        self.names.contains_key(&revision)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Revision, &TimerName)> {
        self.names.iter().map(|(revision, name)| (*revision, name))
    }

    pub(crate) fn get(&self, revision: Revision) -> Option<&TimerName> {
        self.names.get(&revision)
    }

    /// Whether no attempt can start before one ends.
    pub(crate) fn is_full(&self) -> bool {
        let fits = self.bytes + Self::longest() <= self.most_bytes || self.names.is_empty();
        self.names.len() >= self.most || !fits
    }

    /// Whether a queue may have one more, if there is one to have: while it has less than its
    /// share of what would be left to it alone.
    ///
    /// With a share of three quarters that is three times what is free: one queue by itself
    /// gets three quarters, two get three sevenths each, and so on. So some are always left
    /// for the next queue, however many do not give theirs back.
    pub(crate) fn may(&self, queue: &QueueName) -> bool {
        let has = self.by_queue.get(queue).copied().unwrap_or(0);
        let free = self.most.saturating_sub(self.names.len());
        has == 0 || has.saturating_mul(100 - self.percent) < free.saturating_mul(self.percent)
    }

    pub(crate) fn insert(&mut self, revision: Revision, name: TimerName) {
        self.bytes += Self::entry_bytes(&name);
        *self.by_queue.entry(name.queue.clone()).or_default() += 1;
        self.names.insert(revision, name);
    }

    pub(crate) fn remove(&mut self, revision: Revision) -> Option<TimerName> {
        let name = self.names.remove(&revision)?;
        self.bytes -= Self::entry_bytes(&name);
        if let Some(count) = self.by_queue.get_mut(&name.queue)
            && !planted!(LeakPlace)
        {
            *count -= 1;
            if *count == 0 {
                self.by_queue.remove(&name.queue);
            }
        }
        Some(name)
    }

    /// What an attempt takes: its place in two sorted maps that may be half empty, and its
    /// name.
    fn entry_bytes(name: &TimerName) -> usize {
        Self::bytes_of(name.queue.as_str().len() + name.key.as_str().len())
    }

    const fn bytes_of(name: usize) -> usize {
        2 * (size_of::<Revision>() + size_of::<TimerName>())
            + 2 * (size_of::<QueueName>() + size_of::<usize>())
            + 64
            + name
    }

    const fn longest() -> usize {
        Self::bytes_of(QueueName::MAX_BYTES + crate::Key::MAX_BYTES)
    }
}
