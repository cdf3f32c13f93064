//! The limits of a scheduler.

use std::sync::Arc;
use std::time::Duration;

use crate::store::DueScan;
use crate::{EventSink, Flows, Retention, Rules};

/// What bounds a scheduler. The defaults suit a service of one process.
///
/// ```
/// use countwheel_durable::Config;
/// use std::time::Duration;
///
/// let config = Config {
///     keep_done: Duration::from_secs(3600),
///     ..Config::default()
/// };
/// assert_eq!(config.max_in_flight, 256);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// How many timers the window may hold in memory: the nearest ones; the rest stay in
    /// the store. At least 2, and better twice as many as there are queues that may hang at
    /// the same time: each of them has one in it. Default 100,000.
    pub window: usize,
    /// How many bytes of memory the scheduler may use for what it knows of timers: for the
    /// window, for what is overdue, for attempts that run and for what is on its way from the
    /// store. At least 128 KiB. Default 64 MiB. However many timers the store holds, whatever
    /// their names.
    pub window_bytes: usize,
    /// How many attempts run at a time. At least 1. Default 256.
    pub max_in_flight: usize,
    /// How many threads call a handler that [`blocks`](crate::Handler::blocks), such as a plain
    /// function. What is handed over waits for one of them. At least 1. Default 4.
    pub handler_threads: usize,
    /// The share of [`max_in_flight`](Self::max_in_flight) that one queue by itself gets, in
    /// percent, 1 to 100. Default 75: the rest is for the next queue, should the attempts of
    /// this one hang. Several queues share accordingly, and some is always left, unless the
    /// share is 100.
    pub queue_share_percent: u8,
    /// How many timers a second are started of those that were overdue when the scheduler
    /// was opened, in turns by queue. At least 1. Default 1,000. What a forward step of the
    /// wall clock makes due is not held back.
    pub catch_up_per_second: u32,
    /// How long a done timer is kept for those who ask. Default 24 hours.
    pub keep_done: Duration,
    /// The longest payload, in bytes. At most 512 MiB. Default 2 MiB.
    pub max_payload: usize,
    /// How many requests may wait before [`TimerError::Full`](crate::TimerError::Full).
    /// Default 16,384.
    pub max_waiting: usize,
    /// How many bytes of payload may wait with them. Default 64 MiB.
    pub max_waiting_bytes: usize,
    /// How many requests and outcomes share one commit at the most, but for the last batch of
    /// them, which is not divided. At least 2. Default 1,024.
    pub max_batch: usize,
    /// How many requests a batch may have, which is done all together or not at all. One with more than
    /// [`max_batch`](Self::max_batch) is a commit of its own, or the last of one. At least 2. Default 10,000.
    pub max_together: usize,
    /// How many bytes of payloads one commit reads and writes for requests and outcomes at the
    /// most, but for the last of them: the rest comes with the next one. A batch that finds
    /// or writes more is refused, unless it is a single request. At most 256 MiB. Default 64 MiB.
    pub max_batch_bytes: usize,
    /// How many entries of the store's order of wakes one turn looks at, at most, to find what
    /// comes next: those of removed records among them. A block that has to be read for an entry
    /// counts as sixteen. At least 4. Default 4,096.
    pub max_scanned: usize,
    /// How many attempts in a row the end of the process may interrupt before the timer is
    /// dead. Default 10. From two on the timer is a suspect: the more there were, the fewer
    /// suspects run together, and before the last one it is alone among them.
    pub max_interruptions: u32,
    /// How long the process has lived before a timer starts whose last two attempts were
    /// interrupted; twice as long for each one more, at most 128 times. So a process that ends
    /// sooner is no evidence against it. Default 1 s.
    pub suspect_hold: Duration,
    /// The limits of attempts by where they go. Default none.
    pub flows: Option<Arc<dyn Flows>>,
    /// How long timers of a queue are kept once they have ended. Default none: a done timer for
    /// [`keep_done`](Self::keep_done), a dead one until it is removed.
    pub retention: Option<Arc<dyn Retention>>,
    /// Which rules hold now for timers that leave them to their queues. Default none: those with which each was set.
    pub rules: Option<Arc<dyn Rules>>,
    /// Whether timers are counted by when they are due: see [`Timers::due_counts`](crate::Timers::due_counts). After an
    /// opening all wakes are read once for that, and an idle scheduler wakes up for buckets that come near. Default
    /// false: nothing is counted.
    pub due_counts: bool,
    /// Who hears what commits did. Default nobody.
    pub events: Option<Arc<dyn EventSink>>,
    /// The seed of the jitter. Default 0: give a random one, so that not all processes
    /// draw the same.
    pub seed: u64,
}

impl Config {
    /// With these, and what starts beside it, a commit is shorter than the stores can take.
    const PAYLOAD_MAX: usize = 512 << 20;
    const BATCH_MAX_BYTES: usize = 256 << 20;

    /// What would make a commit longer than the stores can take is made less.
    pub(crate) fn bounded(mut self) -> Self {
        self.max_payload = self.max_payload.min(Self::PAYLOAD_MAX);
        self.max_scanned = self.max_scanned.max(4);
        self.max_batch_bytes = self.max_batch_bytes.clamp(1, Self::BATCH_MAX_BYTES);
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 100_000,
            window_bytes: 64 << 20,
            max_in_flight: 256,
            handler_threads: 4,
            queue_share_percent: 75,
            catch_up_per_second: 1_000,
            keep_done: Duration::from_secs(86_400),
            max_payload: 2 << 20,
            max_waiting: 16_384,
            max_waiting_bytes: 64 << 20,
            max_batch: 1_024,
            max_together: 10_000,
            max_batch_bytes: 64 << 20,
            max_scanned: DueScan::SCAN_LIMIT,
            max_interruptions: 10,
            suspect_hold: Duration::from_secs(1),
            flows: None,
            retention: None,
            rules: None,
            due_counts: false,
            events: None,
            seed: 0,
        }
    }
}
