//! Since when limits hold back what could start otherwise.
//!
//! What waits for a place is not late by the fault of the scheduler: the operator has said how many
//! attempts may run. So the time from when all places were taken, or a queue's share of them, counts as
//! **held**. A place that becomes free and is taken again in one step does not end it.

use std::collections::BTreeMap;
use std::mem;

use countwheel_time::Timestamp;

use crate::QueueName;
use crate::in_flight::InFlight;
use crate::planted::planted;

/// Since when, by the boot clock, steps have ended with places taken.
#[derive(Default, Debug)]
pub(crate) struct Holds {
    all: Option<Timestamp>,
    queues: BTreeMap<QueueName, Timestamp>,
}

impl Holds {
    /// A step was committed, and left these attempts.
    pub(crate) fn look(&mut self, in_flight: &InFlight, boot: Timestamp) {
        self.all = in_flight.is_full().then(|| self.all.unwrap_or(boot));
        let held = in_flight.held_queues();
        if held.is_empty() && planted!(HoldsNeverEnd) {
            return;
        }
        let before = mem::take(&mut self.queues);
        let since = |queue| before.get(&queue).copied().map(|since| (queue, since));
        let since = |queue: QueueName| since(queue.clone()).unwrap_or((queue, boot));
        self.queues = held.into_iter().map(since).collect();
    }

    /// Since when nothing of this queue could start.
    pub(crate) fn since(&self, queue: &QueueName) -> Option<Timestamp> {
        let own = self.queues.get(queue).copied();
        self.all.into_iter().chain(own).min()
    }
}
