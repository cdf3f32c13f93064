//! The time since which all places for running attempts, or a queue's share of them, were taken.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_durable::{Config, QueueName};
use countwheel_time::Timestamp;

/// Since when, by the boot clock, turns have ended so.
#[derive(Default, Debug)]
pub(super) struct Places {
    all: Option<Timestamp>,
    queues: BTreeMap<QueueName, Timestamp>,
    /// From when until when each queue was drained so that nothing started, if that has ended.
    drained: BTreeMap<QueueName, Vec<(Timestamp, Option<Timestamp>)>>,
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

    /// A turn has ended with drains that let nothing of these queues start.
    pub(super) fn look_at_drains(&mut self, held: &[QueueName], boot: Timestamp) {
        for (queue, spans) in &mut self.drained {
            if let Some((_, end @ None)) = spans.last_mut()
                && !held.contains(queue)
            {
                *end = Some(boot);
            }
        }
        for queue in held {
            let spans = self.drained.entry(queue.clone()).or_default();
            if spans.last().is_none_or(|(_, end)| end.is_some()) {
                spans.push((boot, None));
            }
        }
    }

    /// The longest time for which a drain held a timer of this queue that was due then.
    pub(super) fn drained(&self, queue: &QueueName, due: Timestamp, boot: Timestamp) -> Duration {
        let spans = self.drained.get(queue).into_iter().flatten();
        let held = spans.map(|(since, end)| end.unwrap_or(boot).saturating_since(due.max(*since)));
        held.max().unwrap_or_default()
    }
}
