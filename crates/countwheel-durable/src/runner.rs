//! An engine on a thread of its own: requests and outcomes come in by an inbox, and while
//! one commit runs the next one gathers.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use countwheel::{Clock, Timestamp};

use crate::backlog::{self, ByQueue};
use crate::pool::Pool;
use crate::store::{
    Filter, OnDisk, OnFailure, OpenFiles, Page, QueueCounts, Scrubbed, Shard, Snapshot, Store,
    StoreError, Summary,
};
use crate::trouble::Noticed;
use crate::{
    Attempt, BatchError, Completion, Config, Due, Effect, Engine, Event, Handler, Outcome,
    Overview, Precondition, QueueName, QueueOverview, Record, Request, Response, RetryPolicy,
    Revision, SetOptions, Stats, Ticket, TimerError, TimerName, Trouble,
};

/// The longest wait while anything is pending: a deadline is a wall time and the wait is
/// not, so a wall clock that was set forward costs at most this much.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Durable timers, running. Clones share one scheduler, which stops when the last of them
/// is dropped.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
/// use countwheel::SystemClock;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{
///     Attempt, Config, Due, Outcome, RetryPolicy, TimerError, TimerName, Timers, Verdict,
/// };
///
/// let (fired, receive) = mpsc::channel();
/// let handler = move |attempt: &Attempt| {
///     fired.send(attempt.name.to_string()).expect("the test listens");
///     Outcome::new(Verdict::Done, "")
/// };
/// let store = MemoryStore::new(1);
/// let timers = Timers::open(store, handler, Arc::new(SystemClock::new()), Config::default())?;
///
/// let name = TimerName::new("orders", "order-42")?;
/// timers.set(name.clone(), Due::In(Duration::from_millis(5)), RetryPolicy::default(), vec![])?;
/// assert_eq!(receive.recv()?, "orders/order-42");
///
/// timers.stop(Duration::from_secs(1));
/// assert!(matches!(timers.remove(name), Err(TimerError::Closed)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Shared>,
    /// Stops the thread when the last clone goes.
    _last: Arc<StopOnDrop>,
}

/// Whether a scheduler works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// It works.
    Running,
    /// It was told to stop and waits for the attempts that run.
    Stopping,
    /// It has stopped.
    Stopped,
    /// The store failed, or an assertion did. What was acknowledged is safe; open the
    /// store again to go on.
    Failed(String),
}

type Answer = Box<dyn FnOnce(Result<Response, TimerError>) + Send>;
type BatchAnswer = Box<dyn FnOnce(Result<Vec<Response>, BatchError>) + Send>;

struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    noticed: Arc<Noticed>,
    overdue: Arc<Mutex<ByQueue>>,
    mailbox: Arc<Mailbox>,
    max_waiting: usize,
    max_waiting_bytes: usize,
    max_batch: usize,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and everybody else meet at. An attempt that still runs keeps this alive
/// and nothing else: not the store, which somebody may want to open again.
struct Mailbox {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    stats: Mutex<Stats>,
}

struct Inbox {
    asked: VecDeque<Asked>,
    /// How many requests those are.
    requests: usize,
    /// The payload of those.
    bytes: usize,
    /// Whether the thread waits for something to happen. Whoever finds it so wakes it, and
    /// nobody else needs to.
    is_asleep: bool,
    outcomes: VecDeque<(Revision, Outcome)>,
    health: Health,
    /// How long to wait for running attempts, once told to stop.
    grace: Duration,
    left_running: usize,
    on_failure: Vec<OnFailure>,
    /// Why the store takes no more commits, if it said so by itself.
    store_failure: Option<String>,
}

/// What somebody asked for, and who waits for the answer.
enum Asked {
    One(Request, Answer),
    Batch(Vec<Request>, BatchAnswer),
}

/// Who waits for an answer.
enum Waiter {
    One(Answer),
    Batch(BatchAnswer),
}

impl Waiter {
    /// Answers that nothing came of it.
    fn refuse(self, error: TimerError) {
        shielded("an answer's receiver", || match self {
            Self::One(answer) => answer(Err(error)),
            Self::Batch(answer) => answer(Err(BatchError { index: None, error })),
        });
    }
}

impl Asked {
    fn requests(&self) -> &[Request] {
        match self {
            Self::One(request, _) => std::slice::from_ref(request),
            Self::Batch(requests, _) => requests,
        }
    }

    /// How many requests it counts as: an empty batch takes its turn as well.
    fn count(&self) -> usize {
        self.requests().len().max(1)
    }

    fn bytes(&self) -> usize {
        self.requests().iter().map(payload_bytes).sum()
    }

    fn into_waiter(self) -> Waiter {
        match self {
            Self::One(_, answer) => Waiter::One(answer),
            Self::Batch(_, answer) => Waiter::Batch(answer),
        }
    }
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.outcomes.is_empty()
    }
}

impl Timers {
    /// Takes ownership of what the store holds and starts the scheduler's thread.
    ///
    /// What was overdue before follows in turns by queue, in each in deadline order, at a bounded
    /// rate; what an earlier process was delivering is delivered again under the next attempt
    /// number.
    ///
    /// # Errors
    /// If the store cannot be taken, or nothing that is due can be read of it: the first of that is
    /// read before this returns.
    pub fn open(
        store: impl Store + 'static,
        handler: impl Handler,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Self, StoreError> {
        let store: Arc<dyn Store> = Arc::new(store);
        let max_batch = config.max_batch.max(2);
        let (max_waiting, max_waiting_bytes) = (config.max_waiting, config.max_waiting_bytes);
        let handler_threads = config.handler_threads;
        let engine = Engine::open(Arc::clone(&store), Shard::ONLY, Arc::clone(&clock), config)?;
        let (noticed, overdue) = (engine.noticed(), engine.overdue());
        let seen_by = Arc::clone(&clock);
        let pool = handler.blocks().then(|| Pool::new(handler_threads));
        let mailbox = Arc::new(Mailbox {
            inbox: Mutex::new(Inbox {
                asked: VecDeque::new(),
                requests: 0,
                bytes: 0,
                is_asleep: false,
                outcomes: VecDeque::new(),
                health: Health::Running,
                grace: Duration::ZERO,
                left_running: 0,
                on_failure: Vec::new(),
                store_failure: None,
            }),
            arrived: Condvar::new(),
            stats: Mutex::new(engine.stats()),
        });
        let told = Arc::clone(&mailbox);
        if let Some(disk) = store.on_disk() {
            disk.on_failure(Box::new(move |reason| {
                let mut inbox = lock(&told.inbox);
                inbox.store_failure = Some(reason.to_owned());
                told.wake(inbox);
            }));
        }
        let mut runner = Runner {
            engine,
            handler: Arc::new(handler),
            pool,
            last: clock.timestamp(),
            clock,
            mailbox: Arc::clone(&mailbox),
            max_batch,
            first_ticket: 0,
            waiting: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("countwheel-durable".to_owned())
            .spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| runner.run()));
                runner.end(match ended {
                    Ok(result) => result,
                    Err(panic) => Err(panic_text(&*panic)),
                });
            })
            .map_err(|source| StoreError::Io {
                path: "the scheduler's thread".into(),
                source,
            })?;
        let shared = Arc::new(Shared {
            store,
            clock: seen_by,
            noticed,
            overdue,
            mailbox,
            max_waiting,
            max_waiting_bytes,
            max_batch,
            thread_id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
        });
        let _last = Arc::new(StopOnDrop(Arc::clone(&shared)));
        Ok(Self { shared, _last })
    }

    /// Hands in a request and returns at once. `answer` is called exactly once: from the
    /// scheduler's thread after what the request changed is durable, or right here with
    /// [`TimerError::Full`] or [`TimerError::Closed`] if it was not taken. It must not
    /// block.
    pub fn submit(
        &self,
        request: Request,
        answer: impl FnOnce(Result<Response, TimerError>) + Send + 'static,
    ) {
        self.take_in(Asked::One(request, Box::new(answer)));
    }

    /// Hands in requests that shall be done all together or not at all, in order and in one
    /// commit. Returns at once; `answer` is called as that of [`Timers::submit`].
    ///
    /// If one of them is refused, nothing of the batch is done, and the answer says which. A
    /// batch has at most [`Config::max_batch`] requests.
    ///
    /// ```
    /// use std::sync::{Arc, mpsc};
    /// use std::time::Duration;
    /// use countwheel::SystemClock;
    /// use countwheel_durable::store::MemoryStore;
    /// use countwheel_durable::{
    ///     Attempt, Config, Due, Outcome, Precondition, Request, RetryPolicy, SetOptions, TimerError,
    ///     TimerName, Timers, Verdict,
    /// };
    ///
    /// # let handler = |_: &Attempt| Outcome::new(Verdict::Done, "");
    /// # let (clock, config) = (Arc::new(SystemClock::new()), Config::default());
    /// # let timers = Timers::open(MemoryStore::new(1), handler, clock, config)?;
    /// let set = |key: &str| Request::Set {
    ///     name: TimerName::new("orders", key).expect("a good name"),
    ///     due: Due::In(Duration::from_secs(60)),
    ///     policy: RetryPolicy::default(),
    ///     payload: vec![],
    ///     options: SetOptions::default(),
    ///     precondition: Precondition::Absent,
    /// };
    /// let (send, answers) = mpsc::channel();
    /// let ask = |keys: [&str; 2]| {
    ///     let send = send.clone();
    ///     timers.submit_batch(keys.map(set).into(), move |answer| {
    ///         send.send(answer).expect("somebody listens");
    ///     });
    /// };
    /// ask(["a", "b"]);
    /// assert_eq!(answers.recv()?.expect("both are new").len(), 2);
    ///
    /// ask(["c", "b"]);
    /// let refused = answers.recv()?.expect_err("b is not");
    /// assert_eq!(refused.index, Some(1));
    /// assert!(matches!(refused.error, TimerError::Exists { .. }));
    /// assert!(timers.get(&TimerName::new("orders", "c")?)?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_batch(
        &self,
        requests: Vec<Request>,
        answer: impl FnOnce(Result<Vec<Response>, BatchError>) + Send + 'static,
    ) {
        self.take_in(Asked::Batch(requests, Box::new(answer)));
    }

    fn take_in(&self, asked: Asked) {
        let (requests, bytes) = (asked.count(), asked.bytes());
        let Shared {
            mailbox,
            max_waiting,
            max_waiting_bytes,
            max_batch: limit,
            ..
        } = &*self.shared;
        let refusal = if requests > *limit {
            let limit = *limit;
            TimerError::BatchTooLarge { requests, limit }
        } else {
            let mut inbox = lock(&mailbox.inbox);
            let room = inbox.requests + requests <= *max_waiting
                && inbox.bytes + bytes <= *max_waiting_bytes;
            if inbox.health != Health::Running {
                TimerError::Closed
            } else if !room && (!inbox.asked.is_empty() || *max_waiting == 0) {
                TimerError::Full
            } else {
                inbox.requests += requests;
                inbox.bytes += bytes;
                inbox.asked.push_back(asked);
                mailbox.wake(inbox);
                return;
            }
        };
        asked.into_waiter().refuse(refusal);
    }

    /// Hands in a request and waits for the answer: for at least one sync of the disk.
    ///
    /// On the scheduler's own thread, where an answer's receiver and a handler that does not
    /// [block](Handler::blocks) are called, that is refused with [`TimerError::OwnThread`]:
    /// [`submit`](Self::submit) there.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use countwheel::SystemClock;
    /// use countwheel_durable::store::{Filter, MemoryStore, Page, Position, QueueCounts};
    /// use countwheel_durable::{
    ///     Attempt, Config, Due, Health, Outcome, Precondition, Request, Response, RetryPolicy, Shift,
    ///     StateKind, Stats, TimerName, Timers, Verdict, Was,
    /// };
    ///
    /// let handler = |_: &Attempt| Outcome::new(Verdict::Done, "");
    /// let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let hour = Duration::from_secs(3_600);
    /// let name = TimerName::new("orders", "order-42")?;
    /// timers.set(name.clone(), Due::In(hour), RetryPolicy::default(), vec![])?;
    ///
    /// let shift = Shift::Later(hour);
    /// let precondition = Precondition::None;
    /// let moved = timers.call(Request::Move { name: name.clone(), shift, precondition })?;
    /// let Response::Moved { old_due, due, revision } = moved else { panic!("{moved:?}") };
    /// assert_eq!(due, old_due + hour);
    ///
    /// let all: Vec<QueueCounts> = timers.counts()?;
    /// assert_eq!(all[0].of(StateKind::Pending), 1);
    /// let first = Filter { limit: 1, ..Filter::queue(name.queue.clone()) };
    /// let Page { records, .. } = timers.list(&first)?;
    /// assert_eq!(records[0].due, due);
    /// let after = Some(Position { due, revision });
    /// assert!(timers.list(&Filter { after, ..first })?.records.is_empty());
    ///
    /// assert_eq!(timers.remove(name)?, Response::Removed(Was::Pending { due }));
    /// let stats: Stats = timers.stats();
    /// println!("{} commits, {} timers in memory", stats.commits, stats.in_window);
    /// assert_eq!(timers.health(), Health::Running);
    /// assert!(timers.troubles().is_empty()); // nothing is unreadable
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What [`TimerError`] says; the request did nothing, but for [`TimerError::Unknown`].
    pub fn call(&self, request: Request) -> Result<Response, TimerError> {
        if std::thread::current().id() == self.shared.thread_id {
            return Err(TimerError::OwnThread);
        }
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.submit(request, move |answer| {
            send.send(answer).unwrap_or_default();
        });
        receive.recv().unwrap_or(Err(TimerError::Closed))
    }

    /// Sets a timer, in place of whatever has its name.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn set(
        &self,
        name: TimerName,
        due: Due,
        policy: RetryPolicy,
        payload: Vec<u8>,
    ) -> Result<Response, TimerError> {
        self.call(Request::Set {
            name,
            due,
            policy,
            payload,
            precondition: Precondition::None,
            options: SetOptions::default(),
        })
    }

    /// Removes a timer and says what it was doing.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn remove(&self, name: TimerName) -> Result<Response, TimerError> {
        self.call(Request::Remove {
            name,
            precondition: Precondition::None,
            only_pending: false,
        })
    }

    /// The timer of that name, as it was last made durable; one that is done is gone at the end of its
    /// retention. Reads the store; blocks.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn get(&self, name: &TimerName) -> Result<Option<Record>, StoreError> {
        let found = self.shared.store.get(Shard::ONLY, name)?;
        let wall = self.shared.clock.timestamp();
        Ok(found.filter(|record| !record.is_over(wall)))
    }

    /// A page of a queue's timers, without the done ones whose retention has ended. Reads the store;
    /// blocks.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn list(&self, filter: &Filter) -> Result<Page, StoreError> {
        let mut page = self.shared.store.list(Shard::ONLY, filter)?;
        let wall = self.shared.clock.timestamp();
        page.records.retain(|record| !record.is_over(wall));
        Ok(page)
    }

    /// How many timers each queue has in each state. Reads the store; blocks.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn counts(&self) -> Result<Vec<QueueCounts>, StoreError> {
        self.shared.store.counts(Shard::ONLY)
    }

    /// The same of at most `limit` queues whose names come after `after`. There are more if the page is
    /// full. However many queues there are, nobody waits for such a page for long.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn counts_after(
        &self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueCounts>, StoreError> {
        self.shared.store.counts_after(Shard::ONLY, after, limit)
    }

    /// How many timers there are in each state and how many are overdue, in all and in at most `limit`
    /// queues: those of which most is overdue come first, then those with the most dead timers, then the
    /// others in order of name.
    ///
    /// Everything is a count that commits keep: neither the timers nor the queues are looked through.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel::SystemClock;
    /// # use countwheel_durable::store::{MemoryStore, QueueCounts, Totals};
    /// # use countwheel_durable::{
    /// #     Attempt, Config, Due, Outcome, Overview, QueueOverview, RetryPolicy, StateKind, TimerName,
    /// #     Timers, Verdict,
    /// # };
    /// # use std::time::Duration;
    /// # let handler = |_: &Attempt| Outcome::new(Verdict::Done, "");
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let due = Due::In(Duration::from_secs(3_600));
    /// timers.set(TimerName::new("orders", "order-42")?, due, RetryPolicy::default(), vec![])?;
    /// let Overview { totals, queues, overdue } = timers.overview(50)?;
    /// assert_eq!((totals.queues, totals.of(StateKind::Pending)), (1, 1));
    /// assert_eq!((queues[0].counts.queue.as_str(), queues[0].overdue), ("orders", 0));
    /// assert_eq!(overdue.count, 0);
    /// assert_eq!(timers.queue_overview(&queues[0].counts.queue)?, queues[0]);
    /// assert!(timers.counts_after(Some(&queues[0].counts.queue), 1_000)?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn overview(&self, limit: usize) -> Result<Overview, StoreError> {
        let most: Vec<QueueName> = {
            let overdue = backlog::lock(&self.shared.overdue);
            let most = overdue.most().take(limit);
            most.cloned().collect()
        };
        let Summary { totals, queues } = self.shared.store.summary(Shard::ONLY, &most, limit)?;
        let by_queue = backlog::lock(&self.shared.overdue);
        let queues = queues.into_iter().map(|counts| QueueOverview {
            overdue: by_queue.of(&counts.queue),
            counts,
        });
        Ok(Overview {
            totals,
            queues: queues.collect(),
            overdue: lock(&self.shared.mailbox.stats).overdue,
        })
    }

    /// The same of one queue.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn queue_overview(&self, queue: &QueueName) -> Result<QueueOverview, StoreError> {
        let asked = std::slice::from_ref(queue);
        let found = self.shared.store.summary(Shard::ONLY, asked, 1)?;
        let counts = found.queues.into_iter().find(|it| it.queue == *queue);
        Ok(QueueOverview {
            counts: counts.unwrap_or_else(|| QueueCounts {
                queue: queue.clone(),
                by_state: [0; 4],
            }),
            overdue: backlog::lock(&self.shared.overdue).of(queue),
        })
    }

    /// Makes a snapshot of the store in the empty directory `into`, while timers fire and requests
    /// are taken: see [`DiskStore::snapshot`](crate::store::DiskStore::snapshot). Blocks until it
    /// is durable.
    ///
    /// # Errors
    /// As there; [`StoreError::NotAStore`] if the store is one that makes none.
    pub fn snapshot(&self, into: &Path) -> Result<Snapshot, StoreError> {
        match self.shared.store.on_disk() {
            Some(disk) => disk.snapshot(into),
            None => Err(StoreError::NotAStore {
                path: into.to_owned(),
                problem: "this store is on no disk, and makes no snapshots".to_owned(),
            }),
        }
    }

    /// Reads on in a round through all checksums of what the store has on the disk, until about
    /// `budget` bytes were read or the round is over. Blocks. What is damaged is one of the
    /// [`troubles`](Self::troubles) then.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel::SystemClock;
    /// use countwheel_durable::store::{MemoryStore, Scrubbed};
    /// use countwheel_durable::{Attempt, Config, Outcome, Timers, Verdict};
    ///
    /// # let handler = |_: &Attempt| Outcome::new(Verdict::Done, "");
    /// # let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let Scrubbed { bytes, ended, .. } = timers.scrub_step(1 << 20);
    /// assert_eq!((bytes, ended), (0, true)); // nothing is on a disk
    /// assert_eq!(timers.open_files().open, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn scrub_step(&self, budget: u64) -> Scrubbed {
        let disk = self.shared.store.on_disk();
        disk.map_or(Scrubbed::NOTHING, |disk| disk.scrub_step(budget))
    }

    /// How many files the store has open and may need besides.
    #[must_use]
    pub fn open_files(&self) -> OpenFiles {
        let disk = self.shared.store.on_disk();
        disk.map_or_else(OpenFiles::default, OnDisk::open_files)
    }

    /// What the scheduler has done and holds, as of its last turn.
    #[must_use]
    pub fn stats(&self) -> Stats {
        lock(&self.shared.mailbox.stats).clone()
    }

    /// What the scheduler or its store cannot read or do, while everything else goes on: a bounded
    /// number of places. Empty unless something is damaged or full.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        let Shared {
            store,
            clock,
            noticed,
            ..
        } = &*self.shared;
        noticed.look(store.troubles(), clock.timestamp());
        noticed.list()
    }

    /// Whether it works.
    #[must_use]
    pub fn health(&self) -> Health {
        lock(&self.shared.mailbox.inbox).health.clone()
    }

    /// Has `f` called with the reason if the scheduler fails, or at once if it has.
    pub fn on_failure(&self, f: impl FnOnce(&str) + Send + 'static) {
        let mut inbox = lock(&self.shared.mailbox.inbox);
        if let Health::Failed(reason) = &inbox.health {
            let reason = reason.clone();
            drop(inbox);
            f(&reason);
        } else {
            inbox.on_failure.push(Box::new(f));
        }
    }

    /// Stops: takes no more requests, answers those it took, starts nothing, waits up to
    /// `grace` for the outcomes of attempts that run, and ends the thread. Returns how many
    /// attempts were left running: they are repeated when the store is opened again.
    ///
    /// May be called from any thread, also twice; every call returns after the end. From
    /// the scheduler's own thread and from a handler it does not wait.
    pub fn stop(&self, grace: Duration) -> usize {
        self.shared.stop(grace)
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop(Duration::ZERO);
    }
}

impl Shared {
    fn stop(&self, grace: Duration) -> usize {
        let mut inbox = lock(&self.mailbox.inbox);
        if inbox.health == Health::Running {
            inbox.health = Health::Stopping;
            inbox.grace = grace;
        }
        self.mailbox.wake(inbox);
        // It would wait for itself.
        let handles = HANDLES_FOR.get() == Some(self.thread_id);
        if !handles && std::thread::current().id() != self.thread_id {
            // Held while joining, so that a second stopper waits for the first one's end.
            let mut thread = lock(&self.thread);
            if let Some(handle) = thread.take() {
                // The thread catches what it runs and cannot panic itself.
                handle.join().unwrap_or_default();
            }
        }
        lock(&self.mailbox.inbox).left_running
    }
}

impl Mailbox {
    fn report(&self, revision: Revision, outcome: Outcome) {
        let mut inbox = lock(&self.inbox);
        inbox.outcomes.push_back((revision, outcome));
        self.wake(inbox);
    }

    /// Wakes the thread if it sleeps: to wake one that does not costs as much.
    fn wake(&self, mut inbox: MutexGuard<'_, Inbox>) {
        let was_asleep = std::mem::take(&mut inbox.is_asleep);
        drop(inbox);
        if was_asleep {
            self.arrived.notify_one();
        }
    }
}

fn payload_bytes(request: &Request) -> usize {
    match request {
        Request::Set { payload, .. } => payload.len(),
        _ => 0,
    }
}

/// The thread's side.
struct Runner {
    engine: Engine,
    handler: Arc<dyn Handler>,
    /// Where the handler is called, if it blocks.
    pool: Option<Pool>,
    clock: Arc<dyn Clock>,
    /// The wall time of the last turn.
    last: Timestamp,
    mailbox: Arc<Mailbox>,
    max_batch: usize,
    /// The first ticket of the turn that runs, or of the one whose rest does.
    first_ticket: u64,
    /// Who waits for the answers to these, in the order of the tickets.
    waiting: Vec<Option<Waiter>>,
}

impl Runner {
    fn run(&mut self) -> Result<(), String> {
        let mut stop_at = None;
        loop {
            let events = self.next_events(stop_at);
            self.check_store()?;
            if stop_at.is_none() && lock(&self.mailbox.inbox).health == Health::Stopping {
                let grace = lock(&self.mailbox.inbox).grace;
                stop_at = Some(self.clock.now() + grace);
                self.engine.pause();
            }
            if let Err(error) = self.turn(events) {
                // It may only say that the store failed earlier.
                self.check_store()?;
                return Err(describe(&error));
            }
            if let Some(at) = stop_at {
                let running = self.engine.stats().in_flight;
                let mut inbox = lock(&self.mailbox.inbox);
                let ended = running == 0 && inbox.is_empty() && self.engine.left_over() == 0;
                if ended || self.clock.now() >= at {
                    inbox.left_running = running;
                    drop(inbox);
                    if let Err(error) = self.engine.note_clocks() {
                        tracing::warn!(%error, "where the clocks stand could not be noted");
                    }
                    if running > 0
                        && let Err(error) = self.engine.abandon()
                    {
                        let error = describe(&error);
                        tracing::warn!(error, "that attempts were stopped is not recorded");
                    }
                    return Ok(());
                }
            }
        }
    }

    fn check_store(&self) -> Result<(), String> {
        let failure = lock(&self.mailbox.inbox).store_failure.clone();
        failure.map_or(Ok(()), Err)
    }

    /// Waits for something to happen, or for the engine's next wake-up, or for the end of
    /// the grace period, and takes what has gathered: at most one commit's worth.
    fn next_events(&mut self, stop_at: Option<countwheel::Instant>) -> Vec<Event> {
        let clock = &self.clock;
        let last = std::mem::replace(&mut self.last, clock.timestamp());
        if self.engine.left_over() > 0 {
            return Vec::new();
        }
        let mut inbox = lock(&self.mailbox.inbox);
        loop {
            let stopping = inbox.health == Health::Stopping && stop_at.is_none();
            if stopping || !inbox.is_empty() {
                break;
            }
            if inbox.store_failure.is_some() {
                return Vec::new();
            }
            if clock.timestamp() < last {
                break; // the wall clock was set back: the engine must know
            }
            let wait = match stop_at {
                Some(at) => Some(at.saturating_since(clock.now())),
                None => self.engine.next_wake().map(|at| wait_until(at, clock)),
            };
            inbox.is_asleep = wait != Some(Duration::ZERO);
            inbox = match wait {
                Some(Duration::ZERO) => break,
                Some(wait) => self
                    .mailbox
                    .arrived
                    .wait_timeout(inbox, wait)
                    .map_or_else(|poison| poison.into_inner().0, |(inbox, _)| inbox),
                None => self
                    .mailbox
                    .arrived
                    .wait(inbox)
                    .unwrap_or_else(PoisonError::into_inner),
            };
            inbox.is_asleep = false;
        }
        // Neither side can keep the other out: each has half a batch for certain.
        let requests = inbox.requests;
        let half = self.max_batch / 2;
        let outcomes = inbox.outcomes.len();
        let outcomes = outcomes.min(self.max_batch - requests.min(half));
        let mut events: Vec<_> = inbox
            .outcomes
            .drain(..outcomes)
            .map(|(revision, outcome)| Event::Outcome { revision, outcome })
            .collect();
        // A batch stays whole: the last may be more than is left.
        let mut left = requests.min(self.max_batch - outcomes);
        self.first_ticket += self.waiting.len() as u64;
        self.waiting.clear();
        while left > 0
            && let Some(asked) = inbox.asked.pop_front()
        {
            let requests = asked.count();
            left = left.saturating_sub(requests);
            inbox.requests -= requests;
            inbox.bytes -= asked.bytes();
            let ticket = Ticket(self.first_ticket + self.waiting.len() as u64);
            let (event, waiter) = match asked {
                Asked::One(request, answer) => {
                    (Event::Request(ticket, request), Waiter::One(answer))
                }
                Asked::Batch(requests, answer) => {
                    (Event::Batch(ticket, requests), Waiter::Batch(answer))
                }
            };
            self.waiting.push(Some(waiter));
            events.push(event);
        }
        events
    }

    fn turn(&mut self, events: Vec<Event>) -> Result<(), StoreError> {
        let Self {
            engine,
            handler,
            pool,
            mailbox,
            waiting,
            first_ticket,
            ..
        } = self;
        let mut waiter = |ticket: Ticket| {
            let place = usize::try_from(ticket.0 - *first_ticket).ok()?;
            waiting.get_mut(place)?.take()
        };
        let result = engine.turn(events, &mut |effect| match effect {
            Effect::Answer(ticket, answer) => {
                if let Some(Waiter::One(waiter)) = waiter(ticket) {
                    shielded("an answer's receiver", || waiter(answer));
                }
            }
            Effect::BatchAnswer(ticket, answer) => {
                if let Some(Waiter::Batch(waiter)) = waiter(ticket) {
                    shielded("an answer's receiver", || waiter(answer));
                }
            }
            Effect::Start(attempt) => start(handler, pool.as_ref(), attempt, mailbox),
        });
        *lock(&self.mailbox.stats) = self.engine.stats();
        result
    }

    /// Leaves nobody waiting, whichever way the thread ended.
    fn end(&mut self, result: Result<(), String>) {
        let (asked, on_failure) = {
            let mut inbox = lock(&self.mailbox.inbox);
            inbox.health = match &result {
                Ok(()) => Health::Stopped,
                Err(reason) => Health::Failed(reason.clone()),
            };
            if result.is_err() {
                inbox.left_running = self.engine.stats().in_flight;
            }
            (
                std::mem::take(&mut inbox.asked),
                std::mem::take(&mut inbox.on_failure),
            )
        };
        for asked in asked {
            asked.into_waiter().refuse(TimerError::Closed);
        }
        let failure = result.err();
        for waiter in std::mem::take(&mut self.waiting).into_iter().flatten() {
            // After a good end it is what was left over, and was not done.
            let unknown = failure.clone().map(TimerError::Unknown);
            waiter.refuse(unknown.unwrap_or(TimerError::Closed));
        }
        let Some(reason) = failure else { return };
        tracing::error!(reason, "the scheduler failed");
        for f in on_failure {
            shielded("a failure's receiver", || f(&reason));
        }
    }
}

fn start(
    handler: &Arc<dyn Handler>,
    pool: Option<&Pool>,
    attempt: Attempt,
    mailbox: &Arc<Mailbox>,
) {
    let revision = attempt.revision;
    let mailbox = Arc::clone(mailbox);
    let done = Completion::new(move |outcome| mailbox.report(revision, outcome));
    let Some(pool) = pool else {
        shielded("a handler", || handler.start(attempt, done));
        return;
    };
    let handler = Arc::clone(handler);
    let scheduler = std::thread::current().id();
    pool.run(Box::new(move || {
        HANDLES_FOR.set(Some(scheduler));
        shielded("a handler", || handler.start(attempt, done));
        HANDLES_FOR.set(None);
    }));
}

thread_local! {
    /// The scheduler whose handler runs on this thread of a pool.
    static HANDLES_FOR: Cell<Option<ThreadId>> = const { Cell::new(None) };
}

/// Runs somebody else's code: its panic is its own.
fn shielded(whose: &str, f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        tracing::error!(panic = panic_text(&*panic), "{whose} panicked");
    }
}

fn wait_until(at: Timestamp, clock: &Arc<dyn Clock>) -> Duration {
    at.saturating_since(clock.timestamp()).min(WAIT_MAX)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// An error with its sources, on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
