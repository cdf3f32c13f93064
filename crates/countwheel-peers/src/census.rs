//! How many timers other nodes count in their shards: each is asked once for all of its own.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::time::Duration;

use countwheel_durable::store::{QueueCounts, Shard};
use countwheel_durable::{Counted, QueueName};

use crate::frame;
use crate::planted::planted;
use crate::wire::{AskCounts, WireCounted, WireCounts, WireQueue};

/// The limit of time for the counts of all owners together.
pub(crate) const COUNTED_WITHIN: Duration = Duration::from_secs(1);

/// What a peer says, with the number of the question.
pub(crate) type Told = (u64, BTreeMap<Shard, Counted>);

/// What one peer is asked to count. A question stays until its answer comes, the connection breaks, or the
/// asker gives the question up.
#[derive(Default)]
pub(crate) struct Census(BTreeMap<u64, Question>);

struct Question {
    shards: Vec<Shard>,
    is_sent: bool,
    tell: Sender<Told>,
}

impl Census {
    pub(crate) fn ask(&mut self, id: u64, shards: Vec<Shard>, tell: Sender<Told>) {
        let is_sent = false;
        let question = Question {
            shards,
            is_sent,
            tell,
        };
        self.0.insert(id, question);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.0.values().any(|question| !question.is_sent)
    }

    /// The frame of a question that is sent now.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let mut waiting = self.0.iter_mut().filter(|(_, question)| !question.is_sent);
        let (&id, question) = waiting.next()?;
        question.is_sent = true;
        let shards = question.shards.iter().map(|shard| shard.0).collect();
        Some(frame::ask_counts(&AskCounts { id, shards }))
    }

    /// Says whether anybody waits for it still.
    pub(crate) fn answered(&mut self, answer: &WireCounts<'_>) -> bool {
        let Some(question) = self.0.remove(&answer.id) else {
            return false;
        };
        let counted = answer.shards.iter().filter_map(WireCounted::counted);
        question.tell.send((answer.id, counted.collect())).is_ok()
    }

    /// What was sent has no answer any more.
    pub(crate) fn broken(&mut self) {
        self.0.retain(|_, question| !question.is_sent);
    }

    pub(crate) fn forget(&mut self, id: u64) {
        self.0.remove(&id);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Adds what a peer says of the shards that it was asked for. It may have others, which another one has by
/// the map, and not have all of these any more.
pub(crate) fn add(
    counted: &mut BTreeMap<Shard, Counted>,
    asked: &[Shard],
    mut told: BTreeMap<Shard, Counted>,
) {
    if !planted!(PeersCountsUnasked) {
        told.retain(|shard, _| asked.contains(shard));
    }
    if planted!(PeersUncountedIsNone) {
        for shard in asked {
            let (queues, exact) = (Vec::new(), true);
            told.entry(*shard).or_insert(Counted { queues, exact });
        }
    }
    counted.extend(told);
}

impl<'a> WireCounted<'a> {
    pub(crate) fn of(shard: Shard, counted: &'a Counted) -> Self {
        let queues = counted.queues.iter().map(|counts| WireQueue {
            queue: counts.queue.as_str(),
            by_state: counts.by_state,
        });
        Self {
            shard: shard.0,
            is_exact: counted.exact,
            queues: queues.collect(),
        }
    }

    /// `None` with the name of a queue that no version of ours gives.
    pub(crate) fn counted(&self) -> Option<(Shard, Counted)> {
        let queues = self.queues.iter().map(|counts| {
            Some(QueueCounts {
                queue: QueueName::from_text(counts.queue).ok()?,
                by_state: counts.by_state,
            })
        });
        let (queues, exact) = (queues.collect::<Option<_>>()?, self.is_exact);
        Some((Shard(self.shard), Counted { queues, exact }))
    }
}
