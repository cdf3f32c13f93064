//! Durable timers as a program has them: one scheduler on a thread of its own for each shard that the
//! program owns, and one name for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use countwheel_time::{By, Clock, Instant, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::elsewhere::Held;
use crate::handler::Origin;
use crate::jobs::JobSteps;
use crate::pool::Pool;
use crate::runner::{Common, Ended, Owned, is_handling, is_own_thread, shielded};
use crate::store::{
    Cursor, Durability, Fence, Filter, Lease, OnDisk, OnFailure, OpenFiles, Page, QueueCounts,
    Scrubbed, Shard, Snapshot, Store, StoreError, Summary, Totals, no_snapshots,
};

use crate::across;
use crate::audit;
use crate::merged;
use crate::receipt;
use crate::together::Together;
use crate::trouble::Noticed;
use crate::verbs::{self, AsyncTimers, ToFilter, ToPayload, ToQueues, ToTimerName};
use crate::{
    AcrossError, AcrossFilter, AcrossPage, Asked, AuditFilter, AuditPage, BatchError, Budget,
    Config, Counted, DrainMode, Drains, Due, DueClock, DueCounts, Elsewhere, Engine, Flow, FlowUse,
    Handler, Moved, Note, Overview, Precondition, QueueName, QueueOverview, Receipt, Record,
    Request, Response, RetryPolicy, Revision, Set, Settings, SettingsVersion, Shards, Shift, State,
    StateKind, Stats, TimerError, TimerName, Trouble, Was, Zone,
};

/// Durable timers, running. Clones share one scheduler, which stops when the last of them
/// is dropped.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
/// use countwheel_time::SystemClock;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{
///     Attempt, Config, Due, Outcome, RetryPolicy, TimerError, TimerName, Timers, Verdict,
/// };
///
/// let (fired, receive) = mpsc::channel();
/// let handler = move |attempt: &Attempt| {
///     fired.send(attempt.name.to_string()).expect("the test listens");
///     Outcome::done()
/// };
/// let store = MemoryStore::new(1);
/// let timers = Timers::open(store, handler, Arc::new(SystemClock::new()), Config::default())?;
///
/// let name = TimerName::new("orders", "order-42")?;
/// timers.set_with(name.clone(), Due::In(Duration::from_millis(5)), RetryPolicy::default(), vec![])?;
/// assert_eq!(receive.recv()?, "orders/order-42");
///
/// timers.stop(Duration::from_secs(1));
/// assert!(matches!(timers.remove(name), Err(TimerError::Closed)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Timers {
    hub: Arc<Hub>,
    /// Stops the threads when the last clone goes. What an attempt gave does not count.
    _last: Option<Arc<StopOnDrop>>,
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
    /// Another owner has its shard, or may take it: see [`Timers::take`]. Only of a shard of several.
    Lost(String),
    /// The store failed, or an assertion did. What was acknowledged is safe; open the
    /// store again to go on.
    Failed(String),
}

/// What a drain answers. See [`Timers::drain`].
#[derive(Clone, PartialEq, Debug)]
#[must_use]
pub struct Drained {
    /// The timers that were taken out, as they were: with [`DrainMode::Remove`] alone.
    pub removed: Vec<Record>,
    /// What is left.
    pub left: Left,
}

/// How many timers a drained queue still holds, without those that are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Left {
    /// Those that wait for their time.
    pub pending: u64,
    /// Those of which an attempt runs.
    pub delivering: u64,
    /// Those that were given up.
    pub dead: u64,
}

impl Left {
    fn of(count: impl Fn(StateKind) -> u64) -> Self {
        Self {
            pending: count(StateKind::Pending),
            delivering: count(StateKind::Delivering),
            dead: count(StateKind::Dead),
        }
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.pending == 0 && self.delivering == 0 && self.dead == 0
    }
}

/// How many timers one call of a drain takes out at most.
const TAKEN_OUT_MAX: usize = 1_000;

/// Whether one call takes out no more.
fn is_enough(taken: &[Record]) -> bool {
    let bytes: usize = taken.iter().map(Record::content_bytes).sum();
    taken.len() >= TAKEN_OUT_MAX || bytes >= Filter::PAGE_MAX_BYTES
}

pub(crate) struct Hub {
    store: Arc<dyn Store>,
    shards: Shards,
    config: Config,
    common: Common,
    /// Where turns are committed together: shards of the same lane in one place.
    lanes: Vec<Arc<Together>>,
    owned: RwLock<BTreeMap<Shard, Arc<Owned>>>,
    /// What schedulers have counted that are gone: no count goes back when a shard does.
    counted: Mutex<Option<Stats>>,
    /// Held while a shard is taken.
    taking: Mutex<()>,
    ends: Arc<Mutex<Ends>>,
    /// Where async code reads the store.
    readers: OnceLock<Pool>,
    /// Where requests go that are about shards of others.
    elsewhere: RwLock<Option<Arc<dyn Elsewhere>>>,
    /// Whether the last counts had every timer.
    counts_were_exact: AtomicBool,
    /// What the store says, also where no shard is owned.
    noticed: Noticed,
    /// Held while a step of the jobs is done.
    jobs: Mutex<JobSteps>,
}

/// How many threads read the store for async code.
const READERS_MAX: usize = 2;

/// The receivers of the end of a scheduler that nobody stopped.
#[derive(Default)]
struct Ends {
    on_failure: Vec<OnFailure>,
    on_lost: Vec<OnLost>,
    /// Why the store takes no more commits, if it said so by itself.
    store_failed: Option<String>,
    is_stopping: bool,
}

/// What is called when a shard is lost. See [`Timers::on_lost`].
type OnLost = Arc<dyn Fn(Shard, &Loss) + Send + Sync>;

/// Why a shard was lost. See [`Timers::on_lost`].
///
/// ```
/// use countwheel_durable::Loss;
///
/// let loss = Loss::Over("the lease has ended".to_owned());
/// assert_eq!(loss.to_string(), "the lease has ended");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// Another owner has taken the shard.
    Taken(String),
    /// This ownership is over, and the shard may be free: it can be taken again.
    Over(String),
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(reason) | Self::Over(reason) => f.write_str(reason),
        }
    }
}

impl Timers {
    /// Takes ownership of what an undivided store holds and starts the scheduler's thread.
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
        let shards = Shards::ONE;
        Self::open_divided(store, shards, shards.all(), handler, clock, config)
    }

    /// The same of a store that is divided into `shards`, of which this process takes those that are
    /// `owned`: each has a scheduler and a thread of its own, and all of them share one [`Budget`].
    ///
    /// A request about a timer of another shard is refused with [`TimerError::NotOwned`]. Reads see
    /// all shards. A shard can be [taken](Self::take) and [handed over](Self::hand_over) later.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use countwheel_time::SystemClock;
    /// use countwheel_durable::store::{MemoryStore, Shard};
    /// use countwheel_durable::{
    ///     Attempt, Config, Due, Health, Outcome, RetryPolicy, Shards, TimerError, TimerName, Timers,
    ///     Verdict,
    /// };
    ///
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// let shards = Shards::new(8).expect("from 1 to 1024");
    /// let (store, config) = (MemoryStore::new(7), Config::default());
    /// let timers = Timers::open_divided(store, shards, shards.all(), handler, clock, config)?;
    /// let name = TimerName::new("orders", "order-42")?;
    /// let set = || {
    ///     let due = Due::In(Duration::from_secs(60));
    ///     timers.set_with(name.clone(), due, RetryPolicy::default(), vec![])
    /// };
    /// set()?;
    ///
    /// let shard: Shard = shards.of(&name);
    /// timers.on_lost(|shard, reason| eprintln!("shard {}: {reason}", shard.0));
    /// timers.hand_over(shard, Duration::from_secs(1));
    /// assert!(matches!(set(), Err(TimerError::NotOwned { .. })));
    /// assert!(timers.get(&name)?.is_some());
    /// timers.take(shard)?;
    /// assert_eq!(timers.owned().get(&shard), Some(&Health::Running));
    /// assert_eq!(timers.owned_under()[&shard].1.0, 2, "it was taken twice");
    /// set()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_divided(
        store: impl Store + 'static,
        shards: Shards,
        owned: impl IntoIterator<Item = Shard>,
        handler: impl Handler,
        clock: Arc<dyn Clock>,
        config: Config,
    ) -> Result<Self, StoreError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let ends = Arc::new(Mutex::new(Ends::default()));
        let told = Arc::clone(&ends);
        let is_divided = shards != Shards::ONE;
        let store: Arc<dyn Store> = Arc::new(store);
        let lane = || Arc::new(Together::of(Arc::clone(&store)));
        let lanes: Vec<_> = (0..store.lanes().max(1)).map(|_| lane()).collect();
        let common = Common {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            pool: handler
                .blocks()
                .then(|| Arc::new(Pool::new(config.handler_threads))),
            handler: Arc::new(handler),
            clock,
            budget: Budget::new(&config),
            max_batch: config.max_batch.max(2),
            max_together: config.max_together.max(2),
            together: Arc::clone(&lanes[0]),
            failed: Arc::new(move |shard, ended| tell(&told, is_divided, shard, ended)),
            origin: Origin::default(),
        };
        let hub = Arc::new_cyclic(|hub| Hub {
            store,
            shards,
            config,
            common: Common {
                origin: Origin(Weak::clone(hub)),
                ..common
            },
            lanes,
            owned: RwLock::default(),
            counted: Mutex::default(),
            taking: Mutex::default(),
            ends,
            readers: OnceLock::new(),
            elsewhere: RwLock::default(),
            counts_were_exact: AtomicBool::new(true),
            noticed: Noticed::default(),
            jobs: Mutex::default(),
        });
        if let Some(disk) = hub.store.on_disk() {
            let hub: Weak<Hub> = Arc::downgrade(&hub);
            disk.on_failure(Box::new(move |reason| {
                let Some(hub) = hub.upgrade() else { return };
                hub.ends.lock().store_failed = Some(reason.to_owned());
                for owned in hub.owned.read().values() {
                    owned.store_failed(reason);
                }
            }));
        }
        let _last = Some(Arc::new(StopOnDrop(Arc::clone(&hub))));
        let timers = Self { hub, _last };
        for shard in owned {
            timers.take(shard)?;
        }
        Ok(timers)
    }

    /// Takes a shard, also from another owner: a scheduler for it starts, with what the shard holds.
    /// Takes it again if it was lost or has failed. A shard that this one owns and that works stays
    /// as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`StoreError::Lost`] if these timers have stopped or are stopping, or
    /// if the store has no such shard.
    pub fn take(&self, shard: Shard) -> Result<(), StoreError> {
        let hub = &*self.hub;
        let refused = |reason: &str| StoreError::Lost {
            shard,
            reason: reason.to_owned(),
        };
        if shard.0 >= hub.shards.count() {
            return Err(refused("the store has no such shard"));
        }
        // One at a time; the others go on meanwhile.
        let _taking = hub.taking.lock();
        if hub.ends.lock().is_stopping {
            return Err(refused("the timers have stopped"));
        }
        let before = hub.owned.read().get(&shard).map(|owned| owned.health());
        match before {
            Some(Health::Running) => return Ok(()),
            Some(Health::Stopping) => return Err(refused("it is being handed over")),
            Some(Health::Stopped | Health::Lost(_) | Health::Failed(_)) | None => {}
        }
        let common = Common {
            together: Arc::clone(&hub.lanes[usize::from(shard.0) % hub.lanes.len()]),
            ..hub.common.clone()
        };
        let engine = Engine::open_within(
            &common.budget,
            Arc::clone(&hub.store),
            shard,
            Arc::clone(&common.clock),
            hub.config.clone(),
        )?;
        let started = Owned::start(engine, shard, common)?;
        // It may have failed while nothing was owned.
        if let Some(reason) = &hub.ends.lock().store_failed {
            started.store_failed(reason);
        }
        let mut all = hub.owned.write();
        if let Some(before) = all.insert(shard, Arc::clone(&started)) {
            hub.count(&before);
        }
        drop(all);
        if hub.ends.lock().is_stopping {
            // Who stops may have come too early to see it.
            started.tell_to_stop(Duration::ZERO);
            return Err(refused("the timers have stopped"));
        }
        Ok(())
    }

    /// Ends the scheduler of a shard so that another owner can take it: takes no more requests for it,
    /// answers those it took, starts nothing, waits up to `grace` for the outcomes of attempts that
    /// run, and notes where the clocks stand. Attempts that run longer are made again by the next owner
    /// under the next number, and do not count as [interrupted](Config::max_interruptions). Says how
    /// many.
    ///
    /// Of a shard that is not owned nothing is ended. From a scheduler's own thread and from a handler
    /// it does not wait.
    pub fn hand_over(&self, shard: Shard, grace: Duration) -> usize {
        self.hand_over_and(shard, grace, |left| left).unwrap_or(0)
    }

    /// The same, and calls `give` with how many attempts were left, for who writes down meanwhile who the
    /// next owner is: what is asked for about the shard is kept until `give` has returned, and goes
    /// [elsewhere](Self::on_elsewhere) then, or to the scheduler of this process if it has taken the shard
    /// again by then.
    ///
    /// `None`, without a call of `give`, of a shard that is not owned, and where `hand_over` does not wait.
    pub fn hand_over_and<T>(
        &self,
        shard: Shard,
        grace: Duration,
        give: impl FnOnce(usize) -> T,
    ) -> Option<T> {
        let hub = &*self.hub;
        let owned = hub.owned.read().get(&shard).cloned()?;
        let waits = !hub.must_not_wait();
        owned.tell_to_stop_and_hold(grace, hub.hold(!waits));
        if !waits {
            return None;
        }
        let left = owned.wait();
        // Held until then, also if `give` panics.
        let _sends_on = SendsOn(hub, shard, &owned);
        let given = give(left);
        let mut all = hub.owned.write();
        if all.get(&shard).is_some_and(|it| Arc::ptr_eq(it, &owned)) {
            all.remove(&shard);
            hub.count(&owned);
        }
        drop(all);
        Some(given)
    }

    /// The shards that this process has taken and not handed over, and how each is.
    #[must_use]
    pub fn owned(&self) -> BTreeMap<Shard, Health> {
        let owned = self.hub.owned.read();
        let health = owned.iter().map(|(shard, owned)| (*shard, owned.health()));
        health.collect()
    }

    /// The same, each with the number under which it was taken: who compares that with what the store has
    /// sees that another process has had the shard since.
    #[must_use]
    pub fn owned_under(&self) -> BTreeMap<Shard, (Health, Fence)> {
        let owned = self.hub.owned.read();
        let under = |(shard, owned): (&Shard, &Arc<Owned>)| (*shard, (owned.health(), owned.fence));
        owned.iter().map(under).collect()
    }

    /// Into how many shards the store is divided.
    #[must_use]
    pub fn shards(&self) -> Shards {
        self.hub.shards
    }

    /// Calls `f` with the shard and the reason whenever one of several shards is lost: another owner
    /// took it, or the store says that this ownership is over. The other shards go on. It is called on
    /// the thread that ends, and must not block.
    pub fn on_lost(&self, f: impl Fn(Shard, &Loss) + Send + Sync + 'static) {
        self.hub.ends.lock().on_lost.push(Arc::new(f));
    }

    /// From now on, what is asked for about shards that are not owned here goes there, and is answered
    /// from there. What is about a shard that is being handed over waits for the end of that. Without
    /// it, and after [`stop`](Self::stop), such requests are refused with [`TimerError::NotOwned`].
    ///
    /// Whether it is done is for the other side to say: see [`Elsewhere`]. A `Timers` that `elsewhere`
    /// holds keeps these running until they are stopped.
    pub fn on_elsewhere(&self, elsewhere: Arc<dyn Elsewhere>) {
        let before = self.hub.elsewhere.write().replace(elsewhere);
        drop(before);
    }

    /// Hands in a request and returns at once. `answer` is called exactly once: from the
    /// scheduler's thread after what the request changed is durable, or right here with
    /// [`TimerError::Full`] or [`TimerError::Closed`] if it was not taken; from any thread if the
    /// request went [elsewhere](Self::on_elsewhere). It must not block.
    pub fn submit(
        &self,
        request: Request,
        answer: impl FnOnce(Result<Response, TimerError>) + Send + 'static,
    ) {
        self.take_in(Asked::one(request, answer));
    }

    /// The same, but never elsewhere: refused with [`TimerError::NotOwned`] if the shard is not owned here.
    pub fn submit_here(
        &self,
        request: Request,
        answer: impl FnOnce(Result<Response, TimerError>) + Send + 'static,
    ) {
        self.take_in(Asked::one(request, answer).here());
    }

    /// The same of a request about a setting, for the scheduler of this shard, wherever that is. All changes of a
    /// setting that one scheduler makes are in order: see [`Request::Configure`].
    ///
    /// ```
    /// # use std::sync::{Arc, mpsc};
    /// # use countwheel_durable::{Config, Request, Response, SystemClock, Timers, inline};
    /// # use countwheel_durable::store::{MemoryStore, Shard};
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let (send, answer) = mpsc::channel();
    /// timers.submit_at(Shard::ONLY, Request::drain(None, None)?, move |answer| {
    ///     send.send(answer).expect("somebody listens");
    /// });
    /// assert!(matches!(answer.recv()?, Ok(Response::Configured(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_at(
        &self,
        shard: Shard,
        request: Request,
        answer: impl FnOnce(Result<Response, TimerError>) + Send + 'static,
    ) {
        self.take_in_at(Some(shard), Asked::one(request, answer));
    }

    /// Hands in requests that shall be done all together or not at all, in order and in one
    /// commit. Returns at once; `answer` is called as that of [`Timers::submit`].
    ///
    /// If one of them is refused, nothing of the batch is done, and the answer says which. A
    /// batch has at most [`Config::max_together`] requests, all about timers of one shard: see
    /// [`Shards::by_tag`].
    ///
    /// ```
    /// use std::sync::{Arc, mpsc};
    /// use std::time::Duration;
    /// use countwheel_time::SystemClock;
    /// use countwheel_durable::store::MemoryStore;
    /// use countwheel_durable::{
    ///     Attempt, Config, Due, Outcome, Precondition, Request, RetryPolicy, SetOptions, TimerError,
    ///     TimerName, Timers, Verdict,
    /// };
    ///
    /// # let handler = |_: &Attempt| Outcome::done();
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
        self.take_in(Asked::batch(requests, answer));
    }

    /// The same, but never elsewhere: refused with [`TimerError::NotOwned`] if the shard is not owned here.
    pub fn submit_batch_here(
        &self,
        requests: Vec<Request>,
        answer: impl FnOnce(Result<Vec<Response>, BatchError>) + Send + 'static,
    ) {
        self.take_in(Asked::batch(requests, answer).here());
    }

    /// Hands in what somebody asked for elsewhere, and answers it here: as [`submit_here`](Self::submit_here)
    /// and [`submit_batch_here`](Self::submit_batch_here). A change of settings is made by the scheduler of
    /// `shard`.
    pub fn ask_here(&self, shard: Shard, asked: Asked) {
        self.take_in_at(Some(shard), asked.here());
    }

    fn take_in(&self, asked: Asked) {
        self.take_in_at(None, asked);
    }

    /// Requests that are about no timer are for the scheduler `of`, or for any.
    fn take_in_at(&self, of: Option<Shard>, asked: Asked) {
        let hub = &*self.hub;
        let (requests, limit) = (asked.count(), hub.common.max_together);
        if requests > limit {
            asked.refuse(TimerError::BatchTooLarge { requests, limit });
            return;
        }
        match hub.shard_of(asked.requests(), of) {
            Ok(shard) => hub.route(shard, asked, true),
            Err(error) => asked.refuse(error),
        }
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
    /// use countwheel_time::SystemClock;
    /// use countwheel_durable::store::{Cursor, Filter, MemoryStore, Page, Position, QueueCounts, Shard};
    /// use countwheel_durable::{
    ///     Attempt, Config, Due, Health, Moved, Outcome, Precondition, Request, Response, RetryPolicy,
    ///     Shift, StateKind, Stats, TimerName, Timers, Was,
    /// };
    ///
    /// let handler = |_: &Attempt| Outcome::done();
    /// let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let hour = Duration::from_secs(3_600);
    /// let name = TimerName::new("orders", "order-42")?;
    /// timers.set_with(name.clone(), Due::In(hour), RetryPolicy::default(), vec![])?;
    ///
    /// let shift = Shift::Later(hour);
    /// let precondition = Precondition::None;
    /// let moved = timers.call(Request::Move { name: name.clone(), shift, precondition })?;
    /// let Response::Moved(Moved { old_due, due, revision }) = moved else { panic!("{moved:?}") };
    /// assert_eq!(due, old_due + hour);
    ///
    /// let all: Vec<QueueCounts> = timers.counts()?;
    /// assert_eq!(all[0].of(StateKind::Pending), 1);
    /// let first = Filter { limit: 1, ..Filter::queue(name.queue.clone()) };
    /// let Page { records, .. } = timers.page(&first, None)?;
    /// assert_eq!(records[0].due, due);
    /// let position = Position { due, revision };
    /// let after = Some(Cursor { position, shard: Shard::ONLY });
    /// assert!(timers.page(&first, after)?.records.is_empty());
    ///
    /// assert_eq!(timers.remove(name)?, Was::Pending { due });
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
        if is_own_thread(self.hub.common.id) {
            return Err(TimerError::OwnThread);
        }
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.submit(request, move |answer| {
            send.send(answer).unwrap_or_default();
        });
        receive.recv().unwrap_or(Err(TimerError::Closed))
    }

    /// Sets a timer, in place of whatever has its name, with the default [`RetryPolicy`].
    /// [`set_with`](Self::set_with) takes another policy, [`every`](Self::every),
    /// [`every_after`](Self::every_after) and [`cron`](Self::cron) set recurring timers; a batch, a
    /// precondition or another recurrence goes through [`call`](Self::call).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, inline};
    /// use std::time::{Duration, SystemTime};
    /// use countwheel_durable::{Json, SystemClock, TimerError, TimerName, Timers};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let minute = Duration::from_secs(60);
    /// timers.set(("unpaid", "o-1"), minute, "close it")?;
    /// timers.set("unpaid/o-2", SystemTime::now() + minute, vec![0xff, 0xfe])?;
    /// timers.set(TimerName::new("unpaid", "o-3")?, minute, Json(vec![1, 2, 3]))?;
    /// assert!(matches!(timers.set("unpaid", minute, ""), Err(TimerError::Name(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn set(
        &self,
        name: impl ToTimerName,
        due: impl Into<Due>,
        payload: impl ToPayload,
    ) -> Result<Set, TimerError> {
        self.set_with(name, due, RetryPolicy::default(), payload)
    }

    /// Sets a timer as [`set`](Self::set) does, with a retry policy of its own.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn set_with(
        &self,
        name: impl ToTimerName,
        due: impl Into<Due>,
        policy: RetryPolicy,
        payload: impl ToPayload,
    ) -> Result<Set, TimerError> {
        self.ask(verbs::set(name, due, policy, payload)?)
    }

    /// Sets a recurring timer at a fixed rate, in place of whatever has its name, with the default
    /// [`RetryPolicy`]. The first run is one interval from now, of 100 ms to 36,525 days.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::TimerError;
    /// use std::time::Duration;
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let minute = Duration::from_secs(60);
    /// timers.every("reports/sales", minute, "count")?;
    /// timers.every_after("reports/stock", minute, "count")?;
    /// timers.cron("reports/day", "0 9 * * MON-FRI", "close")?;
    /// timers.cron_in("reports/day", "0 9 * * MON-FRI", "Europe/Berlin", "close")?;
    ///
    /// let record = timers.get("reports/sales")?.expect("it was set");
    /// assert!(record.recurring.is_some());
    /// assert!(matches!(timers.cron("reports/day", "9 o'clock", ""), Err(TimerError::Cron(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn every(
        &self,
        name: impl ToTimerName,
        every: Duration,
        payload: impl ToPayload,
    ) -> Result<Set, TimerError> {
        self.ask(verbs::every(name, every, payload)?)
    }

    /// Sets a recurring timer with a fixed delay: each run comes so long after the end of the run before,
    /// its retries included. Otherwise as [`every`](Self::every).
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn every_after(
        &self,
        name: impl ToTimerName,
        every: Duration,
        payload: impl ToPayload,
    ) -> Result<Set, TimerError> {
        self.ask(verbs::every_after(name, every, payload)?)
    }

    /// Sets a recurring timer by a cron expression in UTC, such as `0 9 * * MON-FRI`. Otherwise as
    /// [`every`](Self::every). [`CronExpression`](crate::CronExpression) has the rules.
    ///
    /// # Errors
    /// [`TimerError::Cron`] if the text is no expression. As [`Timers::call`] otherwise.
    pub fn cron(
        &self,
        name: impl ToTimerName,
        expression: impl AsRef<str>,
        payload: impl ToPayload,
    ) -> Result<Set, TimerError> {
        self.ask(verbs::cron(
            name,
            expression.as_ref(),
            Zone::default(),
            payload,
        )?)
    }

    /// The same in a zone of the IANA database, such as `Europe/Berlin`.
    ///
    /// # Errors
    /// [`TimerError::Zone`] if there is no such zone. As [`cron`](Self::cron) otherwise.
    pub fn cron_in(
        &self,
        name: impl ToTimerName,
        expression: impl AsRef<str>,
        zone: impl AsRef<str>,
        payload: impl ToPayload,
    ) -> Result<Set, TimerError> {
        let zone = Zone::new(zone)?;
        self.ask(verbs::cron(name, expression.as_ref(), zone, payload)?)
    }

    /// Moves a pending timer to another deadline. The move counts as a new insertion.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Attempt, Config, Outcome, RetryPolicy, Timers};
    /// use countwheel_durable::{Moved, Set, TimerError, TimerName, Was};
    /// use countwheel_time::By;
    ///
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    /// let name = TimerName::new("orders", "order-42")?;
    /// let Set { due: first, .. } = timers.set_with(&name, hour, RetryPolicy::default(), "paid?")?;
    ///
    /// let Moved { old_due, due, .. } = timers.move_by(&name, By::Sooner(minute))?;
    /// assert_eq!((old_due, due), (first, first.saturating_sub(minute)));
    /// assert_eq!(timers.move_to(&name, first)?.due, first);
    ///
    /// assert!(matches!(timers.revive(&name, minute), Err(TimerError::Conflict { .. })));
    /// assert_eq!(timers.remove(&name)?, Was::Pending { due: first });
    /// assert!(matches!(timers.fire(&name), Err(TimerError::NotFound)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn move_to(
        &self,
        name: impl ToTimerName,
        due: impl Into<Due>,
    ) -> Result<Moved, TimerError> {
        self.ask(verbs::shift(name, Shift::To(due.into()))?)
    }

    /// Moves a pending timer by so much from its deadline, at most to now.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn move_by(&self, name: impl ToTimerName, by: impl Into<By>) -> Result<Moved, TimerError> {
        self.ask(verbs::shift(name, by.into().into())?)
    }

    /// Removes a timer and says what it was doing.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn remove(&self, name: impl ToTimerName) -> Result<Was, TimerError> {
        self.ask(verbs::remove(name)?)
    }

    /// Makes a pending timer due now.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn fire(&self, name: impl ToTimerName) -> Result<Moved, TimerError> {
        self.ask(verbs::fire(name)?)
    }

    /// Makes a dead timer pending again, from the start of its retry schedule.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn revive(&self, name: impl ToTimerName, due: impl Into<Due>) -> Result<Moved, TimerError> {
        self.ask(verbs::revive(name, due)?)
    }

    /// Calls, and takes the answer of one verb.
    fn ask<T: TryFrom<Response, Error = Response>>(
        &self,
        request: Request,
    ) -> Result<T, TimerError> {
        verbs::answer(self.call(request)?)
    }

    /// The same timers for async code: each verb returns a future.
    #[must_use]
    pub fn to_async(&self) -> AsyncTimers {
        AsyncTimers(self.clone())
    }

    /// The timers of `hub`, which go on no longer for it.
    pub(crate) fn of(hub: Arc<Hub>) -> Result<Self, TimerError> {
        if hub.ends.lock().is_stopping {
            return Err(TimerError::Closed);
        }
        Ok(Self { hub, _last: None })
    }

    /// Where async code reads the store.
    pub(crate) fn readers(&self) -> &Pool {
        self.hub.readers.get_or_init(|| Pool::new(READERS_MAX))
    }

    /// The timer of that name, as it was last made durable; one that is done is gone at the end of its
    /// retention. Reads the store; blocks.
    ///
    /// # Errors
    /// [`TimerError::Name`] if the name breaks a rule, [`TimerError::Store`] if the store could not be
    /// read.
    pub fn get(&self, name: impl ToTimerName) -> Result<Option<Record>, TimerError> {
        let name = verbs::named(name)?;
        let hub = &*self.hub;
        let found = hub.find(&name)?;
        let wall = hub.common.clock.timestamp();
        Ok(found.filter(|record| !record.is_over(wall)))
    }

    /// The timers of a queue that `filter` wants, in order of (due, revision, shard), without the done
    /// ones whose retention has ended. Reads the store page by page, each of at most
    /// [`Filter::limit`] records; blocks. The iterator ends with the first error.
    ///
    /// A timer that is moved meanwhile may come twice or not at all.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// for order in 0..250_u64 {
    ///     timers.set(("unpaid", order), Duration::from_secs(60 + order), ())?;
    /// }
    /// let orders = timers.list("unpaid");
    /// let keys: Result<Vec<_>, _> = orders.map(|order| order.map(|it| it.name.key)).collect();
    /// assert_eq!(keys?.len(), 250);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list(&self, filter: impl ToFilter) -> Listed<'_> {
        let next = match filter.try_into() {
            Ok(filter) => Next::Page(filter, None),
            Err(error) => Next::Refused(error.into()),
        };
        Listed {
            timers: self,
            page: Vec::new().into_iter(),
            next,
        }
    }

    /// A page of a queue's timers behind `after`, in order of (due, revision, shard), without the done
    /// ones whose retention has ended. Reads the store; blocks.
    ///
    /// A page with fewer timers than its limit, and another page behind it, has looked at as many entries as
    /// [`Filter::scan_limit`] says, or read [`Filter::PAGE_MAX_BYTES`].
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn page(&self, filter: &Filter, after: Option<Cursor>) -> Result<Page<Cursor>, StoreError> {
        let hub = &*self.hub;
        let list = |shard, filter: &Filter| hub.store.list(shard, filter);
        self.whole_page(filter.limit, filter.scan_limit, after, |limit, after| {
            let filter = Filter {
                limit,
                ..filter.clone()
            };
            merged::page(hub.shards, &filter, after, list)
        })
    }

    /// A page behind `after` of the timers of all queues that `filter` wants, in order of (due, revision, shard), without
    /// the done ones whose retention has ended. Reads the store; blocks.
    ///
    /// Timers that are done, dead or delivered are listed queue by queue. If they are more than 10,000, in more than 64
    /// queues, the list is refused; of a divided store, if they are in more than 256 lists of queues and shards.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{AcrossFilter, Config, SystemClock, Timers, inline};
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// timers.set(("unpaid", "o-1"), Duration::from_secs(120), ())?;
    /// timers.set(("carts", "c-1"), Duration::from_secs(60), ())?;
    /// let page = timers.page_across(&AcrossFilter::default(), None)?.page;
    /// let keys: Vec<_> = page.records.iter().map(|it| it.name.to_string()).collect();
    /// assert_eq!(keys, ["carts/c-1", "unpaid/o-1"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AcrossError::TooBroad`] says what there is too much of.
    pub fn page_across(
        &self,
        filter: &AcrossFilter,
        after: Option<Cursor>,
    ) -> Result<AcrossPage, AcrossError> {
        let hub = &*self.hub;
        let (mut counts, mut exact) = (Vec::new(), true);
        if !filter.by_queue().is_empty() {
            for (shard, counted) in hub.counted_by_shard()? {
                exact &= counted.exact;
                counts.push((shard, counted.queues));
            }
        }
        let page = self.whole_page(filter.limit, filter.scan_limit, after, |limit, after| {
            let filter = AcrossFilter {
                limit,
                ..filter.clone()
            };
            across::page(&*hub.store, hub.shards, &filter, after, &counts)
        })?;
        Ok(AcrossPage { page, exact })
    }

    /// A page of the audit log behind `after`: of the changes that were asked for with a [note](crate::Note), in order of
    /// (time, revision, shard), whichever process has made them. Reads the store; blocks.
    ///
    /// The oldest first, a page reads as many records as it has entries. The newest first, it reads about twice as many,
    /// in up to 64 pieces of each shard.
    ///
    /// An entry is committed with its change, so one is never there without the other. No request changes or removes an
    /// entry; it is gone once its time is over. No count, no list and no event has it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{AuditFilter, Changed, Note, Request, StateKind, Stood, TimerName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let name = TimerName::new("orders", "order-42")?;
    /// timers.set(name.clone(), Duration::from_secs(60), ())?;
    /// let note = Note::new("ada", Duration::from_secs(90 * 86_400))?;
    /// timers.call(Request::Fire { name: name.clone() }.noted(note))?;
    ///
    /// let page = timers.audit(&AuditFilter::default(), None)?;
    /// let [(_, entry)] = &page.entries[..] else { panic!("only the fire was noted") };
    /// assert_eq!(entry.note, b"ada");
    /// let Changed::Timer { name: changed, before, .. } = &entry.changed else { panic!("it is a timer") };
    /// assert_eq!(*changed, name);
    /// assert!(matches!(before, Stood::There { state: StateKind::Pending, attempts: 0, .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn audit(
        &self,
        filter: &AuditFilter,
        after: Option<Cursor>,
    ) -> Result<AuditPage, StoreError> {
        let hub = &*self.hub;
        let reader = audit::Reader {
            wall: hub.common.clock.timestamp(),
            list: |filter: &Filter, after| {
                let list = |shard, filter: &Filter| hub.store.list(shard, filter);
                merged::page(hub.shards, filter, after, list)
            },
            place: |record: &Record| audit::cursor(record, hub.shards.of(&record.name)),
        };
        reader.page(filter, after)
    }

    /// A page without what is over, which is filled up with what comes behind.
    fn whole_page<E>(
        &self,
        limit: usize,
        scan_limit: usize,
        after: Option<Cursor>,
        read: impl Fn(usize, Option<Cursor>) -> Result<Page<Cursor>, E>,
    ) -> Result<Page<Cursor>, E> {
        let wall = self.hub.common.clock.timestamp();
        let mut whole = read(limit, after)?;
        let mut newest = whole.records.len();
        whole.records.retain(|record| !record.is_over(wall));
        let (mut asked, mut over) = (limit, newest - whole.records.len());
        let bytes =
            |page: &Page<Cursor>| -> usize { page.records.iter().map(Record::content_bytes).sum() };
        while whole.next.is_some()
            && newest == asked
            && whole.records.len() < limit
            && over < scan_limit
            && bytes(&whole) < Filter::PAGE_MAX_BYTES
        {
            asked = limit - whole.records.len();
            let mut page = read(asked, whole.next)?;
            newest = page.records.len();
            page.records.retain(|record| !record.is_over(wall));
            over += newest - page.records.len();
            whole.records.append(&mut page.records);
            whole.unreadable += page.unreadable;
            whole.next = page.next;
        }
        Ok(whole)
    }

    /// A page of the timers of one shard, whoever owns it: the filter says behind which position. Reads the store;
    /// blocks.
    pub(crate) fn page_of(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        let mut page = self.hub.store.list(shard, filter)?;
        let wall = self.hub.common.clock.timestamp();
        page.records.retain(|record| !record.is_over(wall));
        Ok(page)
    }

    /// The last revision of each shard that is owned here: each set that was answered before has that one or an
    /// earlier one.
    pub(crate) fn last_revisions(&self) -> BTreeMap<Shard, Revision> {
        let owned = self.hub.owned.read();
        let works = owned
            .iter()
            .filter(|(_, owned)| owned.health() == Health::Running);
        works
            .map(|(shard, owned)| (*shard, owned.last_revision()))
            .collect()
    }

    /// The present time of the wall clock.
    pub(crate) fn wall(&self) -> Timestamp {
        self.hub.common.clock.timestamp()
    }

    /// The clock of the timers.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.hub.common.clock
    }

    /// Whose turn is next among the jobs.
    pub(crate) fn steps_of_jobs(&self) -> &Mutex<JobSteps> {
        &self.hub.jobs
    }

    /// How many requests share a commit.
    pub(crate) fn max_batch(&self) -> usize {
        self.hub.common.max_batch
    }

    /// Whether this thread must not wait for an answer.
    pub(crate) fn is_own_thread(&self) -> bool {
        is_own_thread(self.hub.common.id)
    }

    /// The limits of [flows](Config::flows) are others than before: timers that wait for one are looked at again.
    ///
    /// ```
    /// # use countwheel_durable::Timers;
    /// fn resume(timers: &Timers) {
    ///     // Here the program raises a limit that its `Flows` gives.
    ///     timers.flows_changed();
    /// }
    /// ```
    pub fn flows_changed(&self) {
        self.hub.common.budget.flows_changed();
    }

    /// The same of one flow, or there is a new [grant](crate::Flows::lease) of it. Costs nothing for what waits for
    /// others.
    ///
    /// ```
    /// # use countwheel_durable::{Flow, Timers};
    /// fn lease_one_more(timers: &Timers, queue: &str) {
    ///     // Here the program notes that `Flows::lease` may grant one lease more.
    ///     timers.flow_changed(&Flow::new(queue));
    /// }
    /// ```
    pub fn flow_changed(&self, flow: &Flow) {
        self.hub.common.budget.flow_changed(flow);
    }

    /// The same of these flows alone. Once it is back, what starts goes by their limits as they are now.
    ///
    /// ```
    /// # use countwheel_durable::{Flow, Timers};
    /// fn resume(timers: &Timers, flow: Flow) {
    ///     timers.limits_of_flows_changed(&[flow]);
    /// }
    /// ```
    pub fn limits_of_flows_changed(&self, flows: &[Flow]) {
        self.hub.common.budget.limits_of_flows_changed(flows);
    }

    /// What attempts use of the limits of these flows, in the same order. What counts since somebody asked last is
    /// counted anew from now on.
    ///
    /// ```
    /// # use countwheel_durable::{Flow, Timers};
    /// fn run_now(timers: &Timers, flow: Flow) -> u32 {
    ///     timers.flows_used(&[flow]).iter().map(|used| used.running).sum()
    /// }
    /// ```
    #[must_use]
    pub fn flows_used(&self, flows: &[Flow]) -> Vec<FlowUse> {
        let boot = self.hub.common.clock.boot();
        self.hub.common.budget.flows_used(flows, boot)
    }

    /// Timers may have other [flows](crate::Flows::route) than before, since where they go has changed: those that
    /// wait are read anew. Costs a look at all that is due.
    ///
    /// ```
    /// # use countwheel_durable::Timers;
    /// fn move_to_another_receiver(timers: &Timers) {
    ///     // Here the program changes what its `Flows` makes of payloads.
    ///     timers.routes_changed();
    /// }
    /// ```
    pub fn routes_changed(&self) {
        self.hub.common.budget.routes_changed();
    }

    /// All settings: those that were there at the opening, with what was acknowledged since, and with
    /// what owners of other shards have changed, as of half a second before the last turn. Reads no
    /// store, unless no shard is owned here and the others are asked [elsewhere](Self::on_elsewhere).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{
    /// #     Attempt, Config, Configured, Outcome, Request, Response, SettingError, SettingName,
    /// #     SettingPrecondition, TimerError, Timers,
    /// # };
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let name = SettingName::new("queue/orders")?;
    /// let configure = |value: &str, precondition| Request::Configure {
    ///     name: name.clone(),
    ///     value: Some(value.into()),
    ///     precondition,
    /// };
    /// let made = timers.call(configure("paused", SettingPrecondition::Absent))?;
    /// let Response::Configured(Configured { version, .. }) = made else { panic!("{made:?}") };
    /// assert_eq!(timers.settings().get(&name).expect("it is there").version, version);
    ///
    /// timers.call(configure("resumed", SettingPrecondition::Version(version)))?;
    /// let late = timers.call(configure("paused", SettingPrecondition::Version(version)));
    /// assert!(matches!(late, Err(TimerError::Setting(SettingError::Changed { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        let owned = self.hub.owned.read();
        let known = owned.values().map(|owned| owned.settings());
        let newest = known.max_by_key(|settings| settings.version());
        drop(owned);
        newest.unwrap_or_else(|| self.hub.settings_of_others())
    }

    /// The settings as the store has them, with all that any process has changed; `None` if their version is
    /// `after`. [`settings`](Self::settings) may be older: a process that gives a shard away forgets what only
    /// its scheduler had seen. Reads the store; blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, Request, SettingsVersion, SystemClock, Timers, inline};
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// assert_eq!(timers.stored_settings(SettingsVersion::default())?, None);
    /// timers.call(Request::drain(None, None)?)?;
    /// let stored = timers.stored_settings(SettingsVersion::default())?.expect("one has changed");
    /// assert_eq!(timers.stored_settings(stored.version())?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn stored_settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.hub.store.settings(after)
    }

    /// Drains a queue, or all of them (`None`): its sets are refused with [`TimerError::Draining`] until
    /// it is [resumed](Self::resume), and [`DrainMode`] says what becomes of its timers. A drain is a
    /// setting of the store: it is durable when this returns, and outlives the process. A second drain
    /// takes the place of the first.
    ///
    /// With [`DrainMode::Remove`], up to 1,000 timers are removed and handed back, pending, delivering or
    /// dead; fewer once their payloads have 8 MiB. Done timers stay until their retention ends. Call it
    /// again until it hands back nothing; timers that cannot be read are left then. An attempt that runs
    /// may still arrive. The answer is the only copy of what it hands back.
    ///
    /// The owners of other shards are told [elsewhere](Self::on_elsewhere). One who is not, or does not
    /// answer, sees the drain within half a second, at its next turn.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Attempt, Config, Outcome, Timers};
    /// use countwheel_durable::{Drained, DrainMode, TimerError};
    /// use std::time::Duration;
    ///
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let set = |key: &str| timers.set(("orders", key), Duration::from_secs(60), key);
    /// set("order-42")?;
    ///
    /// let held = timers.drain("orders", DrainMode::Hold)?;
    /// assert_eq!((held.removed.len(), held.left.pending), (0, 1));
    /// assert!(matches!(set("order-43"), Err(TimerError::Draining { .. })));
    ///
    /// let Drained { removed, left } = timers.drain("orders", DrainMode::Remove)?;
    /// assert_eq!((removed[0].payload.as_slice(), left.is_empty()), (&b"order-42"[..], true));
    ///
    /// assert_eq!(timers.resume("orders")?, Some(DrainMode::Remove));
    /// set("order-43")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn drain(&self, queue: impl ToQueues, mode: DrainMode) -> Result<Drained, TimerError> {
        let queue = queue.queues()?;
        self.drain_noted(queue.as_ref(), mode, None)
    }

    /// The same, with a note.
    pub(crate) fn drain_noted(
        &self,
        queue: Option<&QueueName>,
        mode: DrainMode,
        note: Option<&Note>,
    ) -> Result<Drained, TimerError> {
        self.configure_drain(queue, Some(mode), note)?;
        let removed = if mode == DrainMode::Remove {
            self.take_out(queue)?
        } else {
            Vec::new()
        };
        let left = self.left(queue)?;
        Ok(Drained { removed, left })
    }

    /// Pauses a queue, or all of them (`None`), until a time of the wall clock, or until it is
    /// [resumed](Self::resume): nothing of it starts, and sets are taken. Says what the queue holds. A pause takes the
    /// place of a [drain](Self::drain) or of an earlier pause, and is as durable.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Attempt, Config, Outcome, Timers};
    /// use countwheel_durable::DrainMode;
    /// use std::time::Duration;
    ///
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// timers.pause("orders", None)?;
    /// timers.set(("orders", "order-42"), Duration::ZERO, "")?;
    /// let paused = DrainMode::Pause { until: None };
    /// assert_eq!(timers.resume("orders")?, Some(paused));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn pause(
        &self,
        queue: impl ToQueues,
        until: Option<Timestamp>,
    ) -> Result<Left, TimerError> {
        Ok(self.drain(queue, DrainMode::Pause { until })?.left)
    }

    /// Ends the drain or pause of a queue, or that of all queues (`None`). Says how it was drained; `None` if it was
    /// not. A drain of all holds a queue whose own drain has ended, and the other way round.
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn resume(&self, queue: impl ToQueues) -> Result<Option<DrainMode>, TimerError> {
        let queue = queue.queues()?;
        self.resume_noted(queue.as_ref(), None)
    }

    /// The same, with a note.
    pub(crate) fn resume_noted(
        &self,
        queue: Option<&QueueName>,
        note: Option<&Note>,
    ) -> Result<Option<DrainMode>, TimerError> {
        let drains = self.drains();
        let before = match queue {
            None => drains.all(),
            Some(queue) => drains.own(queue),
        };
        self.configure_drain(queue, None, note)?;
        Ok(before)
    }

    /// The drains, as of the last turn. Reads no store.
    #[must_use]
    pub fn drains(&self) -> Drains {
        Drains::of_settings(&self.settings())
    }

    /// What a drained queue still holds, or all queues (`None`). Reads the store; blocks.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn left(&self, queue: Option<&QueueName>) -> Result<Left, StoreError> {
        Ok(match queue {
            None => {
                let totals = self.overview(0)?.totals;
                Left::of(|state| totals.of(state))
            }
            Some(queue) => {
                let counts = self.queue_overview(queue)?.counts;
                Left::of(|state| counts.of(state))
            }
        })
    }

    /// Tells every shard: each that is owned here has committed when this returns, and so has each of
    /// others whose owner answers. The others see it within half a second, and their next owners at once.
    fn configure_drain(
        &self,
        queue: Option<&QueueName>,
        mode: Option<DrainMode>,
        note: Option<&Note>,
    ) -> Result<(), TimerError> {
        let hub = &*self.hub;
        if is_own_thread(hub.common.id) {
            return Err(TimerError::OwnThread);
        }
        queue.map_or(Ok(()), QueueName::must_be_of_callers)?;
        let request = Request::drain(queue, mode)?;
        // All shards make the change, and one of them notes it: the first that does.
        let noted = match note {
            Some(note) => Some(self.call_at_any(&request.clone().noted(note.clone()))?),
            None => None,
        };
        let (send, receive) = std::sync::mpsc::channel();
        let asks_others = hub.has_elsewhere();
        for shard in hub.shards.all().filter(|it| Some(*it) != noted) {
            let is_ours = hub.is_owned(shard);
            if is_ours || asks_others {
                let send = send.clone();
                let answer = move |answer: Result<Response, TimerError>| {
                    send.send((is_ours, answer.map(drop))).unwrap_or_default();
                };
                hub.route(shard, Asked::one(request.clone(), answer), true);
            }
        }
        drop(send);
        let (mut is_done, mut failure) = (noted.is_some(), None);
        for (is_ours, answer) in receive {
            match answer {
                Ok(()) => is_done = true,
                // It was given away meanwhile, and its next owner reads the settings.
                Err(
                    error @ (TimerError::NotOwned { .. } | TimerError::ShardUnavailable { .. }),
                ) => {
                    failure = Some(error);
                }
                Err(error) if is_ours => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        match is_done {
            true => Ok(()),
            false => Err(failure.unwrap_or(TimerError::Closed)),
        }
    }

    /// Has one shard do a request about a setting: one that is owned here, if there is one. Says which has done it.
    fn call_at_any(&self, request: &Request) -> Result<Shard, TimerError> {
        let hub = &*self.hub;
        let (ours, others): (Vec<_>, Vec<_>) = hub.shards.all().partition(|it| hub.is_owned(*it));
        let asks_others = hub.has_elsewhere();
        let others = others.into_iter().filter(|_| asks_others);
        let mut failure = TimerError::Closed;
        for shard in ours.into_iter().chain(others) {
            let (send, receive) = std::sync::mpsc::sync_channel(1);
            self.submit_at(shard, request.clone(), move |answer| {
                send.send(answer).unwrap_or_default();
            });
            match receive.recv().unwrap_or(Err(TimerError::Closed)) {
                Ok(_) => return Ok(shard),
                Err(
                    error @ (TimerError::NotOwned { .. } | TimerError::ShardUnavailable { .. }),
                ) => failure = error,
                Err(error) => return Err(error),
            }
        }
        Err(failure)
    }

    /// Removes as many timers as one call takes out, and hands them back.
    fn take_out(&self, queue: Option<&QueueName>) -> Result<Vec<Record>, TimerError> {
        let queues = match queue {
            Some(queue) => vec![queue.clone()],
            None => self.counts()?.into_iter().map(|it| it.queue).collect(),
        };
        let mut taken = Vec::new();
        for queue in queues {
            for state in [StateKind::Pending, StateKind::Delivering, StateKind::Dead] {
                self.take_out_those(&queue, state, &mut taken)?;
                if is_enough(&taken) {
                    return Ok(taken);
                }
            }
        }
        Ok(taken)
    }

    fn take_out_those(
        &self,
        queue: &QueueName,
        state: StateKind,
        taken: &mut Vec<Record>,
    ) -> Result<(), TimerError> {
        let mut after = None;
        while !is_enough(taken) {
            let filter = Filter {
                state: Some(state),
                limit: TAKEN_OUT_MAX - taken.len(),
                ..Filter::queue(queue.clone())
            };
            let page = self.page(&filter, after)?;
            taken.extend(self.remove_unchanged(page.records)?);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Removes those of the records that have not changed since they were read.
    fn remove_unchanged(&self, records: Vec<Record>) -> Result<Vec<Record>, TimerError> {
        let (send, receive) = std::sync::mpsc::channel();
        for record in records {
            let send = send.clone();
            let request = Request::Remove {
                name: record.name.clone(),
                precondition: Precondition::Revision(record.revision),
                only_pending: false,
            };
            self.submit(request, move |answer| {
                send.send((record, answer)).unwrap_or_default();
            });
        }
        drop(send);
        let mut removed = Vec::new();
        let mut failure = None;
        for (mut record, answer) in receive {
            match answer {
                // An attempt leaves the revision as it is, and may have begun since the record was read.
                Ok(Response::Removed(Was::Delivering { attempt })) => {
                    (record.state, record.attempt) = (State::Delivering, attempt);
                    removed.push(record);
                }
                Ok(_) => removed.push(record),
                // The next page has it as it is now, or it is gone.
                Err(
                    TimerError::Changed { .. } | TimerError::NotFound | TimerError::Gone { .. },
                ) => {}
                // Whether it is removed shows where it was.
                Err(error @ TimerError::Unknown(_)) => match self.hub.find(&record.name) {
                    Ok(None) => removed.push(record),
                    Ok(Some(_)) | Err(_) => failure = Some(error),
                },
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            // What is removed is handed back, whatever became of the others.
            Some(error) if removed.is_empty() => Err(error),
            _ => Ok(removed),
        }
    }

    /// What a set of this timer with this receipt is answered with, if one was done already and its receipt is not
    /// over. Reads the store; blocks.
    ///
    /// # Errors
    /// [`TimerError::ReceiptMismatch`] if that set asked for something else, any other if the store could not be read.
    pub fn replayed(
        &self,
        timer: &TimerName,
        receipt: &Receipt,
    ) -> Result<Option<Set>, TimerError> {
        let hub = &*self.hub;
        let Some(place) = receipt.place(timer) else {
            return Ok(None);
        };
        let wall = hub.common.clock.timestamp();
        let stored = hub.store.get(hub.shards.of(timer), &place)?;
        let stored = stored.filter(|stored| !stored.is_over(wall));
        stored.map(|stored| receipt.answer(&stored)).transpose()
    }

    /// How many timers each queue has in each state: see [`counted`](Self::counted). Reads the store; blocks.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn counts(&self) -> Result<Vec<QueueCounts>, StoreError> {
        Ok(self.counted()?.queues)
    }

    /// The same, and whether that is every timer. Those of shards of others are asked for
    /// [elsewhere](Self::on_elsewhere); where nobody answers, they are as the owner saved them last.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Attempt, Config, Counted, Outcome, Timers};
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// assert_eq!(timers.counted()?, Counted { queues: vec![], exact: true });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn counted(&self) -> Result<Counted, StoreError> {
        let hub = &*self.hub;
        let (mut queues, mut exact) = (Vec::new(), true);
        for (_, counted) in hub.counted_by_shard()? {
            exact &= counted.exact;
            queues.extend(counted.queues);
        }
        hub.counts_were_exact.store(exact, Ordering::Relaxed);
        let mut queues = QueueCounts::summed(queues);
        queues.retain(|counts| !counts.queue.is_reserved());
        Ok(Counted { queues, exact })
    }

    /// The counts of those of the shards that are owned here, for who asks elsewhere.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn counts_here(&self, shards: &[Shard]) -> Result<BTreeMap<Shard, Counted>, StoreError> {
        let hub = &*self.hub;
        let ours = shards.iter().filter(|shard| hub.is_owned(**shard));
        let counted = ours.map(|shard| {
            let exact = hub.store.counts_are_exact(*shard);
            let queues = hub.store.counts(*shard)?;
            Ok((*shard, Counted { queues, exact }))
        });
        counted.collect()
    }

    /// Whether [`counts`](Self::counts) and [`overview`](Self::overview) have every timer: a store in a
    /// database may still count the timers of large shards for a while after it was opened. Of shards of
    /// others it is as it was when they were last counted.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Attempt, Config, Outcome, Timers};
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// assert!(timers.counts_are_exact());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn counts_are_exact(&self) -> bool {
        let hub = &*self.hub;
        let all_ours = hub.counts_all();
        let mut ours = hub.shards.all().filter(|shard| hub.counts_itself(*shard));
        ours.all(|shard| hub.store.counts_are_exact(shard))
            && (all_ours || hub.counts_were_exact.load(Ordering::Relaxed))
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
        if !self.hub.counts_all() {
            let behind = |counts: &QueueCounts| after.is_none_or(|after| counts.queue > *after);
            let counts = self.counts()?.into_iter();
            return Ok(counts.filter(behind).take(limit).collect());
        }
        let mut sums = Vec::new();
        // Nothing is known of a shard behind the last queue of a full page.
        let mut end: Option<QueueName> = None;
        // Some of them may be those of receipts and of the audit log, which are left out.
        let most = limit.saturating_add(reserved_queues().count());
        for shard in self.hub.shards.all() {
            let page = self.hub.store.counts_after(shard, after, most)?;
            if let Some(last) = page.last().filter(|_| page.len() >= most)
                && end.as_ref().is_none_or(|end| last.queue < *end)
            {
                end = Some(last.queue.clone());
            }
            sums.extend(page);
        }
        let mut sums = QueueCounts::summed(sums);
        let is_known = |queue: &QueueName| end.as_ref().is_none_or(|end| queue <= end);
        sums.retain(|counts| is_known(&counts.queue) && !counts.queue.is_reserved());
        sums.truncate(limit);
        Ok(sums)
    }

    /// How many timers there are in each state and how many are overdue, in all and in at most `limit`
    /// queues: those of which most is overdue come first, then those with the most dead timers, then the
    /// others in order of name.
    ///
    /// Everything is a count that commits keep: neither the timers nor the queues are looked through. What is
    /// overdue is that of the shards that are owned here.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_time::SystemClock;
    /// # use countwheel_durable::store::{MemoryStore, QueueCounts, Totals};
    /// # use countwheel_durable::{
    /// #     Attempt, Config, Due, Outcome, Overview, QueueOverview, RetryPolicy, StateKind, TimerName,
    /// #     Timers, Verdict,
    /// # };
    /// # use std::time::Duration;
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let due = Due::In(Duration::from_secs(3_600));
    /// timers.set_with(TimerName::new("orders", "order-42")?, due, RetryPolicy::default(), vec![])?;
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
        let hub = &*self.hub;
        let owned: Vec<_> = hub.owned.read().values().cloned().collect();
        let mut most = Vec::new();
        for owned in &owned {
            let overdue = owned.overdue.lock();
            most.extend(overdue.most().take(limit).cloned());
        }
        if owned.len() > 1 {
            let mut by_count: Vec<_> = BTreeSet::from_iter(most)
                .into_iter()
                .map(|queue| (std::cmp::Reverse(hub.overdue_of(&queue)), queue))
                .collect();
            by_count.sort();
            most = by_count
                .into_iter()
                .map(|(_, queue)| queue)
                .take(limit)
                .collect();
        }
        let Summary { totals, queues } = if hub.shards == Shards::ONE {
            hub.summary(Shard::ONLY, most, limit)?
        } else {
            Summary::of(self.counts()?, &most, limit)
        };
        let queues = queues.into_iter().map(|counts| QueueOverview {
            overdue: hub.overdue_of(&counts.queue),
            counts,
        });
        Ok(Overview {
            totals,
            queues: queues.collect(),
            overdue: self.stats().overdue,
        })
    }

    /// The same of one queue.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn queue_overview(&self, queue: &QueueName) -> Result<QueueOverview, StoreError> {
        let hub = &*self.hub;
        let mut counts = QueueCounts {
            queue: queue.clone(),
            by_state: [0; 4],
        };
        if !hub.counts_all() {
            let all = self.counts()?;
            let found = all.iter().filter(|it| it.queue == *queue);
            found.for_each(|found| counts.add(found));
            let overdue = hub.overdue_of(queue);
            return Ok(QueueOverview { counts, overdue });
        }
        for shard in hub.shards.all() {
            let found = hub.store.summary(shard, std::slice::from_ref(queue), 1)?;
            for found in found.queues.iter().filter(|it| it.queue == *queue) {
                counts.add(found);
            }
        }
        Ok(QueueOverview {
            counts,
            overdue: hub.overdue_of(queue),
        })
    }

    /// How many timers pend, by when they are due: of the shards that are owned here, as of the last turn of each.
    /// These are counts that commits keep, if [`Config::due_counts`] says so. They are not exact where another process owns a shard.
    ///
    /// The shortest buckets are a second within the next hour, a minute within a day, an hour within a year and a day
    /// beyond; what is more than a hundred years ahead is one bucket, and what is overdue is one. A bucket may be longer
    /// for a while when many timers come near.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use std::time::Duration;
    /// # use countwheel_durable::{Attempt, Config, Outcome, Timers, Timestamp};
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_time::ManualClock;
    /// # let clock = Arc::new(ManualClock::at(Timestamp::EPOCH + Duration::from_secs(7_200)));
    /// # let handler = |_: &Attempt| Outcome::done();
    /// let config = Config { due_counts: true, ..Config::default() };
    /// let timers = Timers::open(MemoryStore::new(1), handler, clock, config)?;
    /// for order in 0..10_u64 {
    ///     timers.set(("unpaid", order), Duration::from_secs(60), "close it")?;
    /// }
    /// let counts = timers.due_counts();
    /// assert_eq!(counts.total(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn due_counts(&self) -> DueCounts {
        let hub = &*self.hub;
        let all = hub.shards.all().map(|shard| self.due_counts_of(shard));
        // Of a shard of another, nothing is known.
        let all = all.map(Option::unwrap_or_default);
        DueCounts::sum_of(all).unwrap_or_default()
    }

    /// The same of one shard; `None` if this process does not work on it.
    #[must_use]
    pub fn due_counts_of(&self, shard: Shard) -> Option<DueCounts> {
        let owned = self.hub.owned.read().get(&shard).cloned();
        let owned = owned.filter(|owned| owned.health() == Health::Running)?;
        let counts = owned.ahead.lock().counts();
        Some(counts)
    }

    /// Makes a snapshot of the store in the empty directory `into`, while timers fire and requests
    /// are taken: see [`OnDisk::snapshot`](crate::store::OnDisk::snapshot). Blocks until it
    /// is durable.
    ///
    /// # Errors
    /// As there; [`DiskError::NotAStore`](crate::store::DiskError::NotAStore) if the store is one that
    /// makes none.
    pub fn snapshot(&self, into: &Path) -> Result<Snapshot, StoreError> {
        match self.hub.store.on_disk() {
            Some(disk) => disk.snapshot(into),
            None => Err(no_snapshots(into)),
        }
    }

    /// Reads on in a round through all checksums of what the store has on the disk, until about
    /// `budget` bytes were read or the round is over. Blocks. What is damaged is one of the
    /// [`troubles`](Self::troubles) then.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel_time::SystemClock;
    /// use countwheel_durable::store::{MemoryStore, Scrubbed};
    /// use countwheel_durable::{Attempt, Config, Outcome, Timers, Verdict};
    ///
    /// # let handler = |_: &Attempt| Outcome::done();
    /// # let clock = Arc::new(SystemClock::new());
    /// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
    /// let Scrubbed { bytes, ended, .. } = timers.scrub_step(1 << 20);
    /// assert_eq!((bytes, ended), (0, true)); // nothing is on a disk
    /// assert_eq!(timers.open_files().open, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn scrub_step(&self, budget: u64) -> Scrubbed {
        let disk = self.hub.store.on_disk();
        disk.map_or(Scrubbed::NOTHING, |disk| disk.scrub_step(budget))
    }

    /// How many files the store has open and may need besides.
    #[must_use]
    pub fn open_files(&self) -> OpenFiles {
        let disk = self.hub.store.on_disk();
        disk.map_or_else(OpenFiles::default, OnDisk::open_files)
    }

    /// What the schedulers have done and hold, as of the last turn of each.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let owned = self.hub.owned.read();
        let all = owned
            .values()
            .map(|owned| owned.mailbox.stats.lock().clone());
        let counted = self.hub.counted.lock().clone();
        all.chain(counted)
            .reduce(|sum, other| sum.with(&other))
            .unwrap_or_default()
    }

    /// The same of one shard; `None` if this process does not work on it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::{Attempt, Config, Outcome, SystemClock, Timers};
    /// # use countwheel_durable::store::{MemoryStore, Shard};
    /// # let (store, clock) = (MemoryStore::new(1), Arc::new(SystemClock::new()));
    /// # let handler = |_: &Attempt| Outcome::done();
    /// let timers = Timers::open(store, handler, clock, Config::default())?;
    /// assert_eq!(timers.stats_of(Shard::ONLY).map(|stats| stats.set), Some(0));
    /// assert!(timers.stats_of(Shard(1)).is_none());
    /// assert_eq!(timers.totals_of(Shard::ONLY)?.queues, 0);
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    #[must_use]
    pub fn stats_of(&self, shard: Shard) -> Option<Stats> {
        let owned = self.hub.owned.read();
        let owned = owned.get(&shard)?;
        Some(owned.mailbox.stats.lock().clone())
    }

    /// Whether the deadline of a record has come, by the clock of that deadline: a delay goes on through steps of the
    /// wall clock. For a shard that this process does not work on, the wall clock says it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use std::time::Duration;
    /// # use countwheel_durable::{Attempt, Config, Outcome, Timers};
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_time::ManualClock;
    /// # let clock = Arc::new(ManualClock::new());
    /// # let handler = |_: &Attempt| Outcome::done();
    /// let timers = Timers::open(MemoryStore::new(1), handler, clock.clone(), Config::default())?;
    /// timers.set("orders/1", Duration::from_secs(60), "")?;
    /// let record = timers.get("orders/1")?.expect("it was set");
    /// assert!(!timers.is_due(&record));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_due(&self, record: &Record) -> bool {
        let hub = &*self.hub;
        let clock = &hub.common.clock;
        let shard = hub.shards.of(&record.name);
        let zero = match record.clock {
            DueClock::Wall => None,
            DueClock::Boot => {
                let owned = hub.owned.read();
                owned.get(&shard).map(|owned| owned.mailbox.line_zero)
            }
        };
        let passed = || clock.boot().saturating_since(Instant::ZERO);
        record.due <= zero.map_or_else(|| clock.timestamp(), |zero| zero + passed())
    }

    /// How many timers one shard has in each state, whoever owns it. Reads the store; blocks.
    ///
    /// # Errors
    /// If the store could not be read.
    pub fn totals_of(&self, shard: Shard) -> Result<Totals, StoreError> {
        Ok(self.hub.summary(shard, Vec::new(), 0)?.totals)
    }

    /// Whether the store can be reached now. One on this machine always can; one in a database is asked
    /// something that costs little, so that this may block as a read does.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::{Attempt, Config, Outcome, SystemClock, Timers};
    /// # use countwheel_durable::store::MemoryStore;
    /// # let (store, clock) = (MemoryStore::new(1), Arc::new(SystemClock::new()));
    /// # let handler = |_: &Attempt| Outcome::done();
    /// let timers = Timers::open(store, handler, clock, Config::default())?;
    /// assert!(timers.reach().is_ok());
    /// # Ok::<(), countwheel_durable::store::StoreError>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it cannot.
    pub fn reach(&self) -> Result<(), StoreError> {
        self.hub.store.reach()
    }

    /// What a loss of the machine that has the store would cost; `None` if the store does not say.
    #[must_use]
    pub fn durability(&self) -> Option<Durability> {
        self.hub.store.durability()
    }

    /// How long the transaction lasts that has kept a snapshot of the store's database for longest, as of
    /// the last time that somebody asked whether it [can be reached](Self::reach); `None` of a store that
    /// does not say.
    #[must_use]
    pub fn oldest_snapshot(&self) -> Option<Duration> {
        self.hub.store.oldest_snapshot()
    }

    /// What the schedulers or their store cannot read or do, while everything else goes on: a bounded
    /// number of places. Empty unless something is damaged or full.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        let hub = &*self.hub;
        let (says, now) = (hub.store.troubles(), hub.common.clock.timestamp());
        let mut all: Vec<Trouble> = Vec::new();
        let owned = hub.owned.read();
        // A process that owns no shard says what its store says, too.
        let noticed = owned.values().map(|owned| &*owned.noticed);
        for noticed in noticed.chain([&hub.noticed]) {
            noticed.look(says.clone(), now);
            for trouble in noticed.list() {
                // The engines have noticed what the store says at different times.
                match all.iter_mut().find(|known| known.is_same(&trouble)) {
                    Some(known) => known.first_seen = known.first_seen.min(trouble.first_seen),
                    None => all.push(trouble),
                }
            }
        }
        all
    }

    /// Whether all of it works. One lost shard of several does not make a difference: see
    /// [`owned`](Self::owned).
    #[must_use]
    pub fn health(&self) -> Health {
        if let Some(reason) = self.failure() {
            return Health::Failed(reason);
        }
        if !self.hub.ends.lock().is_stopping {
            return Health::Running;
        }
        let runs = |health| matches!(health, Health::Running | Health::Stopping);
        if self.owned().into_values().any(runs) {
            Health::Stopping
        } else {
            Health::Stopped
        }
    }

    /// Why a scheduler has failed, if one has. The loss of an undivided store is a failure.
    fn failure(&self) -> Option<String> {
        let is_divided = self.hub.shards != Shards::ONE;
        self.owned().into_values().find_map(|health| match health {
            Health::Failed(reason) => Some(reason),
            Health::Lost(reason) if !is_divided => Some(reason),
            _ => None,
        })
    }

    /// Calls `f` with the reason if a scheduler fails, or at once if one has.
    pub fn on_failure(&self, f: impl FnOnce(&str) + Send + 'static) {
        // Held meanwhile: who fails from here on finds `f`.
        let mut ends = self.hub.ends.lock();
        if let Some(reason) = self.failure() {
            drop(ends);
            f(&reason);
        } else {
            ends.on_failure.push(Box::new(f));
        }
    }

    /// Stops: takes no more requests, answers those it took, starts nothing, waits up to
    /// `grace` for the outcomes of attempts that run, and ends the threads. Returns how many
    /// attempts were left running: they are repeated when the store is opened again.
    ///
    /// May be called from any thread, also twice; every call returns after the end. From
    /// a scheduler's own thread and from a handler it does not wait.
    pub fn stop(&self, grace: Duration) -> usize {
        self.hub.stop(grace)
    }
}

/// What [`Timers::list`] reads, one page at a time.
#[derive(Debug)]
#[must_use = "an iterator reads nothing before it is asked"]
pub struct Listed<'a> {
    timers: &'a Timers,
    page: std::vec::IntoIter<Record>,
    next: Next,
}

/// What [`Listed`] does next.
#[derive(Debug)]
enum Next {
    /// Read what comes behind the cursor.
    Page(Filter, Option<Cursor>),
    /// Say why there is no page.
    Refused(TimerError),
    End,
}

impl Iterator for Listed<'_> {
    type Item = Result<Record, TimerError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.page.next() {
                return Some(Ok(record));
            }
            let (filter, after) = match std::mem::replace(&mut self.next, Next::End) {
                Next::Page(filter, after) => (filter, after),
                Next::Refused(error) => return Some(Err(error)),
                Next::End => return None,
            };
            match self.timers.page(&filter, after) {
                Ok(page) => {
                    self.page = page.records.into_iter();
                    if page.next.is_some() {
                        self.next = Next::Page(filter, page.next);
                    }
                }
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers")
            .field("health", &self.health())
            .finish_non_exhaustive()
    }
}

/// The queues of what the engine stores for itself: those of the reserved namespace.
fn reserved_queues() -> impl Iterator<Item = &'static QueueName> {
    [audit::queue(), receipt::queue()].into_iter().flatten()
}

struct StopOnDrop(Arc<Hub>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop(Duration::ZERO);
    }
}

/// Hands on what was kept of a shard that was given away.
struct SendsOn<'a>(&'a Hub, Shard, &'a Owned);

impl Drop for SendsOn<'_> {
    fn drop(&mut self) {
        let Self(hub, shard, owned) = self;
        while let Some(asked) = owned.next_held() {
            hub.send_on(*shard, asked);
        }
    }
}

impl Hub {
    /// Whether an attempt of that timer under that ownership may start.
    pub(crate) fn may_start(&self, name: &TimerName, fence: Fence) -> bool {
        let shard = self.shards.of(name);
        self.store.may_start(Lease { shard, fence })
    }

    /// Keeps what a scheduler has counted that is gone.
    fn count(&self, owned: &Owned) {
        let ended = owned.mailbox.stats.lock().clone().ended();
        let mut counted = self.counted.lock();
        *counted = Some(match counted.take() {
            Some(before) => before.with(&ended),
            None => ended,
        });
    }

    /// The one shard that all of these are about. Settings are of all shards: they go with the timers
    /// beside them, or to shard `of`, or to any that is owned.
    fn shard_of(&self, requests: &[Request], of: Option<Shard>) -> Result<Shard, TimerError> {
        if self.shards == Shards::ONE {
            return Ok(Shard::ONLY);
        }
        let mut names = requests.iter().filter_map(Request::name);
        let Some(first) = names.next() else {
            return Ok(of.unwrap_or_else(|| self.any_owned()));
        };
        let shard = self.shards.of(first);
        match names.find(|name| self.shards.of(name) != shard) {
            None => Ok(shard),
            Some(other) => Err(TimerError::SeveralShards {
                first: first.clone(),
                other: other.clone(),
            }),
        }
    }

    /// What the store counts, without its receipts and its audit log, which are no timers.
    fn summary(
        &self,
        shard: Shard,
        mut first: Vec<QueueName>,
        limit: usize,
    ) -> Result<Summary, StoreError> {
        // They are few queues, so that they come first wherever they are.
        first.splice(0..0, reserved_queues().cloned());
        let most = limit.saturating_add(reserved_queues().count());
        let mut summary = self.store.summary(shard, &first, most)?;
        for reserved in summary.queues.iter().filter(|it| it.queue.is_reserved()) {
            summary.totals.take_off(reserved);
        }
        summary.queues.retain(|it| !it.queue.is_reserved());
        summary.queues.truncate(limit);
        Ok(summary)
    }

    /// The timer of that name, as the store has it.
    fn find(&self, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.store.get(self.shards.of(name), name)
    }

    /// The settings of a process that owns nothing, and knows others who do.
    fn settings_of_others(&self) -> Arc<Settings> {
        if !self.has_elsewhere() {
            return Arc::default();
        }
        let found = self.store.settings(SettingsVersion::default());
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(%error, "the settings cannot be read");
            None
        });
        found.map_or_else(Arc::default, Arc::new)
    }

    /// A shard that is owned, if there is one.
    fn any_owned(&self) -> Shard {
        let owned = self.owned.read();
        let works = |owned: &&Arc<Owned>| owned.health() == Health::Running;
        let running = owned.iter().find(|(_, owned)| works(owned));
        running.map_or(Shard::ONLY, |(shard, _)| *shard)
    }

    /// Hands it to the scheduler of the shard, or to who knows the owner. What is about a shard that is
    /// given away meanwhile is kept, if it may be.
    fn route(&self, shard: Shard, asked: Asked, holds: bool) {
        let owned = self.owned.read().get(&shard).cloned();
        let Some(owned) = owned else {
            return self.ask_elsewhere(shard, asked);
        };
        if let Some(reason) = self.store.stuck(shard)
            && (owned.health() == Health::Running || !self.has_elsewhere())
        {
            return asked.refuse(TimerError::Unavailable { reason });
        }
        if self.store.is_over() {
            return self.ask_elsewhere(shard, asked);
        }
        if let Err(refused) = owned.take_in(asked, holds) {
            match *refused {
                (asked, TimerError::Closed) if self.is_lost(&owned) => {
                    self.ask_elsewhere(shard, asked);
                }
                (asked, error) => asked.refuse(error),
            }
        }
    }

    /// Hands on what was kept.
    pub(crate) fn send_on(&self, shard: Shard, asked: Asked) {
        self.route(shard, asked, false);
    }

    fn ask_elsewhere(&self, shard: Shard, asked: Asked) {
        let elsewhere = self.elsewhere.read().clone();
        match elsewhere.filter(|_| asked.goes_on()) {
            Some(elsewhere) => shielded("the way elsewhere", || elsewhere.ask(shard, asked)),
            None => asked.refuse(TimerError::NotOwned { shard }),
        }
    }

    /// Whether this process owns the shard, and it works.
    fn is_owned(&self, shard: Shard) -> bool {
        let owned = self.owned.read();
        owned
            .get(&shard)
            .is_some_and(|it| it.health() == Health::Running)
    }

    /// Whether the counts of the shard are the store's: nobody else is asked for them.
    fn counts_itself(&self, shard: Shard) -> bool {
        !self.has_elsewhere() || self.is_owned(shard)
    }

    fn counts_all(&self) -> bool {
        self.shards.all().all(|shard| self.counts_itself(shard))
    }

    /// What each shard has, and whether that is every timer of it.
    fn counted_by_shard(&self) -> Result<Vec<(Shard, Counted)>, StoreError> {
        let (ours, others): (Vec<_>, Vec<_>) =
            self.shards.all().partition(|it| self.counts_itself(*it));
        let mut counted = Vec::with_capacity(ours.len() + others.len());
        for shard in ours {
            let exact = self.store.counts_are_exact(shard);
            let queues = self.store.counts(shard)?;
            counted.push((shard, Counted { queues, exact }));
        }
        let of_others = self.counts_of_others(&others)?;
        counted.extend(others.into_iter().zip(of_others));
        Ok(counted)
    }

    /// The counts of shards of others: from their owners, or else as they were saved last.
    fn counts_of_others(&self, shards: &[Shard]) -> Result<Vec<Counted>, StoreError> {
        let elsewhere = self.elsewhere.read().clone();
        let asks = elsewhere.filter(|_| !shards.is_empty());
        let mut told = asks.map_or_else(BTreeMap::new, |elsewhere| elsewhere.counts(shards));
        let mut counted = Vec::with_capacity(shards.len());
        for shard in shards {
            if let Some(told) = told.remove(shard) {
                counted.push(told);
                continue;
            }
            let saved = self.store.saved_counts(*shard)?;
            let exact = saved.is_none() && self.store.counts_are_exact(*shard);
            let queues = match saved {
                Some(saved) => saved,
                None => self.store.counts(*shard)?,
            };
            counted.push(Counted { queues, exact });
        }
        Ok(counted)
    }

    fn has_elsewhere(&self) -> bool {
        self.elsewhere.read().is_some()
    }

    /// Where what is asked for about a shard that is given away is kept, if it goes on afterwards.
    pub(crate) fn hold(&self, until_end: bool) -> Option<Held> {
        let holds = self.has_elsewhere() && !self.ends.lock().is_stopping;
        holds.then(|| Held {
            until_end,
            ..Held::default()
        })
    }

    /// Whether a shard of several is not owned any more, while these timers go on.
    fn is_lost(&self, owned: &Owned) -> bool {
        self.shards != Shards::ONE
            && !self.ends.lock().is_stopping
            && !matches!(owned.health(), Health::Failed(_))
    }

    fn overdue_of(&self, queue: &QueueName) -> u64 {
        let owned = self.owned.read();
        let overdue = owned.values().map(|owned| owned.overdue.lock().of(queue));
        overdue.sum()
    }

    /// Whether who waits for a scheduler's end may wait for itself.
    fn must_not_wait(&self) -> bool {
        is_own_thread(self.common.id) || is_handling(self.common.id)
    }

    fn stop(&self, grace: Duration) -> usize {
        self.ends.lock().is_stopping = true;
        let all: Vec<_> = self.owned.read().values().cloned().collect();
        for owned in &all {
            owned.tell_to_stop(grace);
        }
        let waits = !self.must_not_wait();
        let left = all.iter().map(|owned| {
            if waits {
                owned.wait()
            } else {
                owned.mailbox.inbox.lock().left_running
            }
        });
        let left = left.sum();
        if waits {
            for (shard, owned) in self.owned.read().clone() {
                drop(SendsOn(self, shard, &owned));
            }
            self.store.stopped();
        }
        let elsewhere = self.elsewhere.write().take();
        drop(elsewhere);
        left
    }
}

/// Reports the end of a scheduler that nobody stopped.
fn tell(ends: &Mutex<Ends>, is_divided: bool, shard: Shard, ended: &Ended) {
    match ended {
        Ended::Lost(loss) if is_divided => {
            tracing::warn!(shard = shard.0, reason = %loss, "a shard was lost");
            let told = ends.lock().on_lost.clone();
            for f in told {
                shielded("a lost shard's receiver", || f(shard, loss));
            }
        }
        Ended::Lost(Loss::Taken(reason) | Loss::Over(reason)) | Ended::Failed(reason) => {
            tracing::error!(reason, "the scheduler failed");
            let mut ends = ends.lock();
            let told = std::mem::take(&mut ends.on_failure);
            drop(ends);
            for f in told {
                shielded("a failure's receiver", || f(reason));
            }
        }
    }
}
