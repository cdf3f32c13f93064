//! The attempts that run, by timer and by queue.

use std::collections::BTreeMap;

use countwheel::Timestamp;

use crate::planted::planted;
use crate::{Config, QueueName, Revision, TimerName};

/// An attempt that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: TimerName,
    /// From when on it is late: its deadline, and as long after that as it was held.
    pub(crate) late_from: Timestamp,
    /// When it was handed over.
    pub(crate) started: Timestamp,
}

/// The attempts that run, and who may have more.
#[derive(Debug)]
pub(crate) struct InFlight {
    attempts: BTreeMap<Revision, Running>,
    by_queue: BTreeMap<QueueName, usize>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
    percent: usize,
}

impl InFlight {
    pub(crate) fn new(config: &Config, most_bytes: usize) -> Self {
        Self {
            attempts: BTreeMap::new(),
            by_queue: BTreeMap::new(),
            bytes: 0,
            most: config.max_in_flight.max(1),
            most_bytes,
            percent: usize::from(config.queue_share_percent.clamp(1, 100)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.attempts.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, revision: Revision) -> bool {
        self.attempts.contains_key(&revision)
    }

    pub(crate) fn name(&self, revision: Revision) -> Option<&TimerName> {
        self.attempts.get(&revision).map(|running| &running.name)
    }

    /// How many more can run.
    pub(crate) fn free(&self) -> usize {
        self.most.saturating_sub(self.attempts.len())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Revision, &TimerName)> {
        let attempts = self.attempts.iter();
        attempts.map(|(revision, running)| (*revision, &running.name))
    }

    /// An attempt was handed over at this time.
    pub(crate) fn handed_over(&mut self, revision: Revision, started: Timestamp) {
        if let Some(running) = self.attempts.get_mut(&revision) {
            running.started = started;
        }
    }

    /// The queues that have attempts.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &QueueName> {
        self.by_queue.keys()
    }

    /// Whether so many places are taken that a queue can have its share: not while one that had
    /// all that run could have one more.
    pub(crate) fn is_scarce(&self) -> bool {
        !self.has_room_for(self.attempts.len())
    }

    /// Whether no attempt can start before one ends.
    pub(crate) fn is_full(&self) -> bool {
        let fits = self.bytes + Self::longest() <= self.most_bytes || self.attempts.is_empty();
        self.attempts.len() >= self.most || !fits
    }

    /// Whether a queue may have one more, if there is one to have: while it has less than its
    /// share of what would be left to it alone.
    ///
    /// With a share of three quarters that is three times what is free: one queue by itself
    /// gets three quarters, two get three sevenths each, and so on. So some are always left
    /// for the next queue, however many do not give theirs back.
    pub(crate) fn may(&self, queue: &QueueName) -> bool {
        self.has_room_for(self.by_queue.get(queue).copied().unwrap_or(0))
    }

    /// Whether a queue that has so many may have one more.
    fn has_room_for(&self, has: usize) -> bool {
        let free = self.most.saturating_sub(self.attempts.len());
        has == 0 || has.saturating_mul(100 - self.percent) < free.saturating_mul(self.percent)
    }

    pub(crate) fn insert(&mut self, revision: Revision, running: Running) {
        let name = &running.name;
        self.bytes += Self::entry_bytes(name);
        *self.by_queue.entry(name.queue.clone()).or_default() += 1;
        self.attempts.insert(revision, running);
    }

    pub(crate) fn remove(&mut self, revision: Revision) -> Option<Running> {
        let running = self.attempts.remove(&revision)?;
        let name = &running.name;
        self.bytes -= Self::entry_bytes(name);
        if let Some(count) = self.by_queue.get_mut(&name.queue)
            && !planted!(LeakPlace)
        {
            *count -= 1;
            if *count == 0 {
                self.by_queue.remove(&name.queue);
            }
        }
        Some(running)
    }

    /// What an attempt takes: its place in two sorted maps that may be half empty, and its
    /// name.
    fn entry_bytes(name: &TimerName) -> usize {
        Self::bytes_of(name.queue.as_str().len() + name.key.as_str().len())
    }

    const fn bytes_of(name: usize) -> usize {
        2 * (size_of::<Revision>() + size_of::<Running>())
            + 2 * (size_of::<QueueName>() + size_of::<usize>())
            + 64
            + name
    }

    const fn longest() -> usize {
        Self::bytes_of(QueueName::MAX_BYTES + crate::Key::MAX_BYTES)
    }
}
