//! The time from which limits hold back attempts.
//!
//! An attempt that waits for a place is not late through the fault of the scheduler: the operator
//! has limited the running attempts. So the time from the moment when all places, or a queue's
//! share of them, were taken counts as **held**. A place that becomes free and is taken again in
//! one step does not end it. The time for which a drain holds a queue counts as held too, also of an
//! attempt that starts after the drain has ended.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Duration;

use countwheel_time::Timestamp;

use crate::clocks::Now;
use crate::drain::Drains;
use crate::in_flight::InFlight;
use crate::planted::planted;
use crate::{QueueName, Revision};

/// Since when, by the boot clock, steps have ended with places taken or queues drained.
#[derive(Default, Debug)]
pub(crate) struct Holds {
    all: Option<Timestamp>,
    queues: BTreeMap<QueueName, Timestamp>,
    /// Drains that hold now.
    drained: Drained,
    /// From when until when drains held that have ended; `None` for those of all queues. What was due
    /// then may start much later.
    ended: BTreeMap<Option<QueueName>, VecDeque<Span>>,
    /// When timers that are due were held before, by the revisions under which they wait.
    before: BTreeMap<Revision, Vec<Span>>,
}

/// From when until when, by the boot clock.
pub(crate) type Span = (Timestamp, Timestamp);

/// As many ended drains are known of a queue, and as many spans of a timer, the newest.
const ENDED_MAX: usize = 16;

/// Of as many timers it is known when they were held before.
const BEFORE_MAX: usize = 4_096;

/// Of as many queues ended drains are known.
const ENDED_QUEUES_MAX: usize = 1_024;

/// Since when drains hold.
#[derive(Default, Debug)]
struct Drained {
    all: Option<Timestamp>,
    queues: BTreeMap<QueueName, Timestamp>,
}

impl Holds {
    /// A step was committed, and left these attempts and drains.
    pub(crate) fn look(&mut self, in_flight: &InFlight, drains: &Drains, now: Now) {
        let boot = now.boot;
        self.look_at_drains(drains, now);
        self.all = in_flight.is_full().then(|| self.all.unwrap_or(boot));
        let held = in_flight.held_queues();
        if held.is_empty() && planted!(HoldsNeverEnd) {
            return;
        }
        let before = mem::take(&mut self.queues);
        self.queues = since(held, &before, boot);
    }

    fn look_at_drains(&mut self, drains: &Drains, now: Now) {
        let boot = now.boot;
        let held = drains.held(now.wall).cloned();
        let before = mem::take(&mut self.drained);
        self.drained = Drained {
            all: (drains.holds_all(now.wall)).then(|| before.all.unwrap_or(boot)),
            queues: since(held, &before.queues, boot),
        };
        let all = before.all.filter(|_| self.drained.all.is_none());
        for (queue, since) in before.queues {
            if !self.drained.queues.contains_key(&queue) {
                self.note_end(Some(queue), (since, boot));
            }
        }
        if let Some(since) = all {
            self.note_end(None, (since, boot));
        }
    }

    fn note_end(&mut self, queue: Option<QueueName>, span: Span) {
        let is_known = self.ended.contains_key(&queue);
        if !is_known && self.ended.len() >= ENDED_QUEUES_MAX {
            let until = |spans: &VecDeque<Span>| spans.back().map(|(_, until)| *until);
            let oldest = self.ended.iter().min_by_key(|(_, spans)| until(spans));
            if let Some(oldest) = oldest.map(|(queue, _)| queue.clone()) {
                self.ended.remove(&oldest);
            }
        }
        let spans = self.ended.entry(queue).or_default();
        if spans.len() == ENDED_MAX {
            spans.pop_front();
        }
        spans.push_back(span);
    }

    /// Since when nothing of this queue could start.
    pub(crate) fn since(&self, queue: &QueueName) -> Option<Timestamp> {
        let own = self.queues.get(queue).copied();
        let drained = self.drained.queues.get(queue).copied();
        let all = self.all.into_iter().chain(self.drained.all);
        all.chain(own).chain(drained).min()
    }

    /// A timer that waits under this revision was held at these times already.
    pub(crate) fn note_held(&mut self, revision: Revision, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let before = self.before.entry(revision).or_default();
        before.extend(spans);
        let left_out = before.len().saturating_sub(ENDED_MAX);
        before.drain(..left_out);
        if self.before.len() > BEFORE_MAX {
            self.before.pop_first();
        }
    }

    /// For how long a timer of this queue was held that is `waited` past its deadline, starts now and could not start
    /// `since` that time. And when it was, and the runs before it: in order, and none of the times overlap.
    pub(crate) fn held(
        &mut self,
        queue: &QueueName,
        revision: Revision,
        since: Option<Timestamp>,
        waited: Duration,
        boot: Timestamp,
    ) -> (Duration, Vec<Span>) {
        let due = boot.saturating_sub(waited);
        let mut spans = self.before.remove(&revision).unwrap_or_default();
        spans.extend(since.map(|since| (since, boot)));
        if !self.ended.is_empty() {
            let of = |queue: Option<QueueName>| self.ended.get(&queue).into_iter().flatten();
            let ended = of(None).chain(of(Some(queue.clone())));
            spans.extend(ended.filter(|(_, until)| *until > due));
        }
        spans.sort_unstable();
        // Several may have been at the same time: no time counts twice.
        let mut end = Timestamp::EPOCH;
        spans.retain_mut(|(since, until)| {
            *since = (*since).max(end);
            end = end.max(*until);
            *since < *until
        });
        let lengths = spans.iter();
        let lengths = lengths.map(|(since, until)| until.saturating_since(due.max(*since)));
        (lengths.sum::<Duration>().min(waited), spans)
    }
}

/// Each of `held` with the time since when it is, or `boot` if it was not before.
fn since(
    held: impl IntoIterator<Item = QueueName>,
    before: &BTreeMap<QueueName, Timestamp>,
    boot: Timestamp,
) -> BTreeMap<QueueName, Timestamp> {
    let since = |queue: QueueName| {
        let since = before.get(&queue).copied().unwrap_or(boot);
        (queue, since)
    };
    held.into_iter().map(since).collect()
}
