//! Since when all places of attempts that run were taken, or a queue's share of them.

use std::collections::BTreeMap;

use countwheel_durable::{Config, QueueName};
use countwheel_time::Timestamp;

/// Since when, by the boot clock, turns have ended so.
#[derive(Default, Debug)]
pub(super) struct Places {
    all: Option<Timestamp>,
    queues: BTreeMap<QueueName, Timestamp>,
}

impl Places {
    /// A turn has ended with attempts of these queues.
    pub(super) fn look<'a>(
        &mut self,
        config: &Config,
        running: impl Iterator<Item = &'a QueueName>,
        boot: Timestamp,
    ) {
        let mut by_queue = BTreeMap::<_, usize>::new();
        running.for_each(|queue| *by_queue.entry(queue).or_default() += 1);
        let taken: usize = by_queue.values().sum();
        let free = config.max_in_flight.saturating_sub(taken);
        self.all = (free == 0).then(|| self.all.unwrap_or(boot));
        let percent = usize::from(config.queue_share_percent);
        let capped = by_queue
            .into_iter()
            .filter(|(_, has)| has * (100 - percent) >= free * percent);
        self.queues = capped
            .map(|(queue, _)| {
                let since = self.queues.get(queue).copied().unwrap_or(boot);
                (queue.clone(), since)
            })
            .collect();
    }

    /// Since when nothing of this queue could start.
    pub(super) fn since(&self, queue: &QueueName) -> Option<Timestamp> {
        let own = self.queues.get(queue).copied();
        self.all.into_iter().chain(own).min()
    }
}
