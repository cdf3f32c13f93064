//! The rules of the queues of a world, for timers that name none themselves: drawn for each queue, and anew now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::{Jitter, Missed, Overlap, QueueName, RetryPolicy, Rules};

use crate::random::Random;

/// The settings of all queues. Clones share them.
#[derive(Clone, Debug)]
pub struct QueueRules {
    seed: u64,
    /// How often they were drawn anew.
    round: Arc<AtomicU64>,
}

impl QueueRules {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let round = Arc::default();
        Self { seed, round }
    }

    /// Each queue has others from here on, or the same.
    pub fn draw_anew(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// What a rule of the queue is drawn from, if a timer of this payload leaves the rule to the queue.
    fn draw_for(&self, rule: u32, queue: &QueueName, payload: &[u8]) -> Option<Random> {
        if is_own(rule, payload) {
            return None;
        }
        let round = self.round.load(Ordering::Relaxed);
        Some(Random::new(
            self.seed,
            &format!("rule {rule} {round} {queue}"),
        ))
    }
}

/// Whether the timer of this payload has named the rule of that number itself. An empty payload names none.
fn is_own(rule: u32, payload: &[u8]) -> bool {
    payload.first().is_some_and(|tag| tag >> rule & 1 == 1)
}

impl Rules for QueueRules {
    fn retry(&self, queue: &QueueName, payload: &[u8]) -> Option<RetryPolicy> {
        let mut random = self.draw_for(0, queue, payload)?;
        let first = Duration::from_micros(random.between(1_000, 60_000_000));
        let policy = RetryPolicy::linear(first, first);
        let retries = u32::try_from(random.below(6)).unwrap_or(0);
        let policy = policy.max_retries(retries);
        Some(match random.below(4) {
            0 => policy.max_age(first * 3),
            1 => policy.jitter(Jitter::Full),
            2 => policy.jitter(Jitter::Equal),
            _ => policy,
        })
    }

    fn missed(&self, queue: &QueueName, payload: &[u8]) -> Option<Missed> {
        let mut random = self.draw_for(1, queue, payload)?;
        Some(match random.below(4) {
            0 => Missed::Fire,
            1 => Missed::Collapse,
            _ => Missed::SkipIfOlderThan(Duration::from_micros(random.below(60_000_000))),
        })
    }

    fn overlap(&self, queue: &QueueName, payload: &[u8]) -> Option<Overlap> {
        let mut random = self.draw_for(2, queue, payload)?;
        Some(*random.pick(&Overlap::ALL))
    }
}
