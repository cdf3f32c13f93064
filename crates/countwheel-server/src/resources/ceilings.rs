//! How far the settings of queues and endpoints may go in this process: the flags of the program are ceilings.

use std::time::Duration;

use super::endpoint::LIMIT_MAX;
use super::queue::{PAYLOAD_MAX_BYTES, Queue, Retention};
use crate::api::request::body_bytes_for;
use crate::api::timers::TIMEOUT_MAX;

/// The ceilings of a process. What is stored may be above them, since the flags were others when it was put, or are
/// others on another node: then it counts as much as the ceiling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ceilings {
    /// How many attempts may run at a time, on all nodes that there may be.
    pub(crate) concurrency: u32,
    /// How many bytes the body of a timer may have.
    pub(crate) payload: u64,
    /// How long a done timer is kept.
    pub(crate) keep_done: Duration,
    /// How long an attempt may take.
    pub(crate) timeout: Duration,
}

impl Default for Ceilings {
    /// Those of the defaults of the flags.
    fn default() -> Self {
        let config = countwheel_durable::Config::default();
        Self {
            concurrency: u32::try_from(config.max_in_flight).unwrap_or(u32::MAX),
            payload: PAYLOAD_MAX_BYTES,
            keep_done: config.keep_done,
            timeout: TIMEOUT_MAX,
        }
    }
}

impl Ceilings {
    /// Those of a process that runs so many attempts at a time and has so much memory for the bodies of requests, of
    /// `nodes` that there may be at the most.
    pub(crate) fn new(
        max_in_flight: usize,
        nodes: u16,
        (payload, memory): (u64, usize),
        keep_done: Duration,
    ) -> Self {
        let attempts = u32::try_from(max_in_flight).unwrap_or(u32::MAX);
        let attempts = attempts.saturating_mul(u32::from(nodes.max(1)));
        // One caller has three quarters of the memory, and the request of the longest body has to have room in it.
        let room = memory - memory / 4;
        let fits = |bytes: &u64| body_bytes_for(*bytes) <= room as u64;
        let step = 64 << 10;
        let steps = payload.min(PAYLOAD_MAX_BYTES) / step;
        let longest = (1..=steps).rev().map(|steps| steps * step).find(fits);
        Self {
            concurrency: attempts.min(LIMIT_MAX),
            payload: longest.unwrap_or(step),
            keep_done,
            timeout: TIMEOUT_MAX,
        }
    }

    /// The same, where an attempt may take so long.
    pub(crate) fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// So long, as far as that goes here.
    pub(crate) fn timeout_of(&self, set: Option<Duration>) -> Option<Duration> {
        set.map(|set| set.min(self.timeout))
    }

    /// So many attempts, as far as they go here.
    pub(crate) fn concurrency_of(&self, set: Option<u32>) -> Option<u32> {
        set.map(|set| set.min(self.concurrency))
    }

    /// The longest body of a timer of the queue, if the queue says one.
    pub(crate) fn payload_of(&self, queue: Option<&Queue>) -> Option<u64> {
        Some(queue?.payload_limit?.min(self.payload))
    }

    /// How long the queue keeps what has ended, as far as that goes here.
    pub(crate) fn retention_of(&self, queue: &Queue) -> Option<Retention> {
        let Retention { done, dead } = queue.retention?;
        let done = done.map(|done| done.min(self.keep_done));
        Some(Retention { done, dead })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_payload_has_room_in_the_memory_for_bodies() {
        let day = Duration::from_secs(86_400);
        let payload = |flag: u64, memory| Ceilings::new(256, 1, (flag, memory), day).payload;
        assert_eq!(payload(16 << 20, 64 << 20), 16 << 20);
        assert_eq!(payload(4 << 20, 64 << 20), 4 << 20);
        for memory in [2 << 20, 8 << 20, 28 << 20] {
            let longest = payload(16 << 20, memory);
            assert!((1 << 20..16 << 20).contains(&longest), "{longest}");
            assert!(body_bytes_for(longest) <= (memory - memory / 4) as u64);
        }
    }

    #[test]
    fn what_is_stored_counts_as_much_as_the_ceiling() {
        let ceilings = Ceilings {
            concurrency: 7,
            payload: 1_000,
            keep_done: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
        };
        let long = Duration::from_secs(3_600);
        let queue = Queue {
            payload_limit: Some(2_000),
            retention: Some(Retention {
                done: Some(long),
                dead: Some(long),
            }),
            ..Queue::default()
        };
        assert_eq!(ceilings.concurrency_of(Some(9)), Some(7));
        assert_eq!(ceilings.concurrency_of(Some(2)), Some(2));
        assert_eq!(ceilings.concurrency_of(None), None);
        assert_eq!(ceilings.timeout_of(Some(long)), Some(ceilings.timeout));
        let short = Duration::from_secs(1);
        assert_eq!(ceilings.timeout_of(Some(short)), Some(short));
        let lifted = ceilings.with_timeout(2 * TIMEOUT_MAX);
        assert_eq!(lifted.timeout, TIMEOUT_MAX);
        assert_eq!(ceilings.payload_of(Some(&queue)), Some(1_000));
        assert_eq!(ceilings.payload_of(Some(&Queue::default())), None);
        let kept = ceilings.retention_of(&queue).unwrap();
        assert_eq!(
            (kept.done, kept.dead),
            (Some(ceilings.keep_done), Some(long))
        );
        // A cluster has as many nodes as shards at the most.
        let day = Duration::from_secs(86_400);
        let of = |nodes| Ceilings::new(256, nodes, (1 << 20, 64 << 20), day).concurrency;
        assert_eq!((of(1), of(64), of(u16::MAX)), (256, 16_384, LIMIT_MAX));
    }
}
