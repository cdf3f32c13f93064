//! Carries out planned operations at their time: a bounded number at once, and the operations of
//! one timer one after the other.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::{QueueName, RetryPolicy};
use countwheel_time::{Clock, Instant, SystemClock, Timestamp};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::task::JoinSet;

use super::perform::{Acknowledgement, Shared, perform};
use super::plan::Operation;
use super::report::{Report, Tally};
use crate::client::Client;
use crate::client::batch::Pipe;

/// How often an observer hears of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Where and how operations are carried out.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The server.
    pub client: Client,
    /// The queue of the lines that name none.
    pub queue: String,
    /// Where all timers are delivered, whatever a line says.
    pub target: Option<String>,
    /// Else, where those are delivered whose line does not say.
    pub echo: Option<String>,
    /// The replay's name: tells its timers from those of another.
    pub run: String,
    /// Whether operations are sent as lines of batches, and not each as a request.
    pub batches: bool,
    /// How many operations are under way at once, at most.
    pub concurrency: usize,
    /// When a timer is tried again whose line does not say.
    pub retry: RetryPolicy,
}

/// Sees what a replay does, as it does it.
pub trait Observer {
    /// An operation's result is known.
    fn acknowledged(&mut self, acknowledgement: &Acknowledgement);

    /// Once a second, also while the server is away.
    fn progress(&mut self, _progress: Progress) {}
}

impl<F: FnMut(&Acknowledgement)> Observer for F {
    fn acknowledged(&mut self, acknowledgement: &Acknowledgement) {
        self(acknowledgement);
    }
}

/// Where a replay stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Operations whose result is known.
    pub acknowledged: u64,
    /// Operations that are being asked.
    pub under_way: usize,
    /// How often an operation was asked again.
    pub retries: u64,
    /// How late the next operation is.
    pub behind: Duration,
}

/// Why a replay ended early. What was acknowledged has been observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError<E> {
    /// The operations cannot be read on. Those before were carried out.
    #[error("the trace cannot be read")]
    Operations(#[source] E),
    /// An operation ended in a panic.
    #[error("an operation failed: {0}")]
    Panic(#[source] tokio::task::JoinError),
}

impl Replay {
    /// The default retry policy: every 200 ms, a thousand times. No outage of server or
    /// receiver that lasts less than three minutes loses a delivery.
    pub fn default_retry() -> RetryPolicy {
        RetryPolicy::fixed(Duration::from_millis(200)).max_retries(999)
    }

    /// Carries out what `operations` gives until it is closed and all are acknowledged, or `stop`
    /// completes.
    ///
    /// Operations must come in the order of their `issue` times. Each is asked at that
    /// time by `clock`, or as soon after as fewer than `concurrency` are under way. An
    /// operation whose result is unknown is asked again until it is known, so this waits
    /// for a server that is away, however long.
    ///
    /// Memory: the operations under way, those behind them of the same timer, and four bytes
    /// for each that is acknowledged.
    ///
    /// # Errors
    /// [`ReplayError`] if `operations` gives an error, after what came before is acknowledged.
    pub async fn run<E>(
        self,
        mut operations: mpsc::Receiver<Result<Operation, E>>,
        clock: SystemClock,
        observer: &mut impl Observer,
        stop: impl Future<Output = ()>,
    ) -> Result<Report, ReplayError<E>> {
        let (started, wall) = (clock.now(), clock.timestamp());
        let mut next = None;
        let mut ended = false;
        let mut flow = Flow {
            concurrency: self.concurrency.max(1),
            shared: Arc::new(Shared {
                pipe: self.batches.then(|| Pipe::new(self.client.clone())),
                replay: self,
                clock,
                retries: AtomicU64::new(0),
            }),
            tasks: JoinSet::new(),
            behind: HashMap::new(),
            tally: Tally::default(),
        };
        let mut stop = pin!(stop);
        let mut stopped = false;
        let mut failed = None;
        let mut tell = clock.now() + PROGRESS_EVERY;
        loop {
            if next.is_none() && !ended {
                match operations.try_recv() {
                    Ok(operation) => next = Some(operation),
                    Err(TryRecvError::Disconnected) => ended = true,
                    Err(TryRecvError::Empty) => {}
                }
            }
            // The wall clock was read once: if somebody sets it, the pace does not change.
            let planned = |operation: &Operation| started + operation.issue.saturating_since(wall);
            let now = clock.now();
            let mut wait = tell.saturating_since(now);
            match &next {
                Some(Ok(operation)) if flow.has_room() => {
                    let due = planned(operation);
                    wait = wait.min(due.saturating_since(now));
                    if due <= now
                        && let Some(Ok(operation)) = next.take()
                    {
                        flow.start(operation, due);
                        while let Some(done) = flow.tasks.try_join_next() {
                            flow.finish(&done.map_err(ReplayError::Panic)?, observer);
                        }
                        continue;
                    }
                }
                Some(Err(_)) => {
                    failed = next.take().and_then(Result::err);
                    ended = true;
                    continue;
                }
                None if ended && flow.tasks.is_empty() => break,
                Some(Ok(_)) | None => {}
            }
            tokio::select! {
                () = &mut stop => {
                    stopped = true;
                    break;
                }
                operation = operations.recv(), if next.is_none() && !ended => {
                    ended = operation.is_none();
                    next = operation;
                }
                Some(done) = flow.tasks.join_next() => {
                    flow.finish(&done.map_err(ReplayError::Panic)?, observer);
                }
                () = tokio::time::sleep(wait) => {
                    let now = clock.now();
                    if now >= tell {
                        tell = now + PROGRESS_EVERY;
                        let due = next.as_ref().and_then(|next| next.as_ref().ok()).map(planned);
                        observer.progress(flow.progress(due, now));
                    }
                }
            }
        }
        if let Some(error) = failed {
            return Err(ReplayError::Operations(error));
        }
        Ok(flow.report(wall, started, stopped))
    }
}

/// A timer, by its queue and its key.
type Name = (String, String);

/// The operations under way, and those that wait for one of the same timer.
struct Flow {
    concurrency: usize,
    shared: Arc<Shared>,
    tasks: JoinSet<Acknowledgement>,
    /// For each timer under way, what has to wait.
    behind: HashMap<Name, VecDeque<(Operation, Instant)>>,
    tally: Tally,
}

impl Flow {
    fn has_room(&self) -> bool {
        self.tasks.len() < self.concurrency
    }

    fn start(&mut self, operation: Operation, planned: Instant) {
        let queue = operation.queue.as_ref().map(QueueName::as_str);
        let queue = queue.unwrap_or(&self.shared.replay.queue);
        match self
            .behind
            .entry((queue.to_owned(), operation.key.as_str().to_owned()))
        {
            Entry::Occupied(mut behind) => behind.get_mut().push_back((operation, planned)),
            Entry::Vacant(place) => {
                place.insert(VecDeque::new());
                self.spawn(operation, planned);
            }
        }
    }

    fn spawn(&mut self, operation: Operation, planned: Instant) {
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(perform(shared, operation, planned));
    }

    fn finish(&mut self, acknowledged: &Acknowledgement, observer: &mut impl Observer) {
        self.tally.add(acknowledged);
        observer.acknowledged(acknowledged);
        let name = (acknowledged.queue.clone(), acknowledged.key.clone());
        let behind = self.behind.get_mut(&name);
        match behind.and_then(VecDeque::pop_front) {
            Some((operation, planned)) => self.spawn(operation, planned),
            None => {
                self.behind.remove(&name);
            }
        }
    }

    fn progress(&self, due: Option<Instant>, now: Instant) -> Progress {
        Progress {
            acknowledged: self.tally.acknowledged(),
            under_way: self.tasks.len(),
            retries: self.shared.retries.load(Ordering::Relaxed),
            behind: due.map_or(Duration::ZERO, |due| now.saturating_since(due)),
        }
    }

    fn report(self, wall: Timestamp, started: Instant, stopped: bool) -> Report {
        let took = self.shared.clock.now().saturating_since(started);
        let retries = self.shared.retries.load(Ordering::Relaxed);
        self.tally
            .report(&self.shared.replay.run, wall, took, retries, stopped)
    }
}
