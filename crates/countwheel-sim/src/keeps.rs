//! How long the queues of a world keep what has ended: drawn for each queue, and anew now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::{Keep, QueueName, Retention};

use crate::random::Random;

/// The settings of all queues. Clones share them.
#[derive(Clone, Debug)]
pub struct Keeps {
    seed: u64,
    /// How often they were drawn anew.
    round: Arc<AtomicU64>,
}

impl Keeps {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let round = Arc::default();
        Self { seed, round }
    }

    /// Each queue has another one from here on, or the same.
    pub fn draw_anew(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }
}

impl Retention for Keeps {
    fn keep(&self, queue: &QueueName) -> Keep {
        let round = self.round.load(Ordering::Relaxed);
        let mut random = Random::new(self.seed, &format!("keep {round} {queue}"));
        let micros = [None, Some(0), Some(1_000_000), Some(172_800_000_000)];
        let mut draw = || random.pick(&micros).map(Duration::from_micros);
        Keep {
            done: draw(),
            dead: draw(),
        }
    }
}
