//! The resources that all schedulers of a process share: places for running attempts, memory, the
//! rate of the catch-up, and room for waiting requests.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::planted::planted;
use crate::{Config, QueueName};

/// The limits of a [`Config`] that hold for all schedulers of a process together: handed to each
/// [`Engine`](crate::Engine) that shares them. Clones are the same budget.
///
/// - [`max_in_flight`](Config::max_in_flight), and the
///   [share](Config::queue_share_percent) of each queue in it, whichever shard its timers are in;
/// - [`window_bytes`](Config::window_bytes) and [`window`](Config::window): each scheduler has an equal
///   part, which is made smaller or larger as schedulers come and go;
/// - [`catch_up_per_second`](Config::catch_up_per_second): each scheduler that catches up has an equal
///   part;
/// - [`max_waiting`](Config::max_waiting) and [`max_waiting_bytes`](Config::max_waiting_bytes).
///
/// ```
/// use std::sync::Arc;
/// use countwheel_time::ManualClock;
/// use countwheel_durable::store::{MemoryStore, Shard};
/// use countwheel_durable::{Budget, Config, Engine};
///
/// let (store, clock) = (Arc::new(MemoryStore::new(1)), Arc::new(ManualClock::new()));
/// let config = Config::default();
/// let budget = Budget::new(&config);
/// let open = |shard| {
///     Engine::open_within(&budget, store.clone(), Shard(shard), clock.clone(), config.clone())
/// };
/// let (first, second) = (open(0)?, open(1)?);
/// assert_eq!(budget.schedulers(), 2);
/// drop(first);
/// assert_eq!(budget.schedulers(), 1);
/// # drop(second);
/// # Ok::<(), countwheel_durable::store::StoreError>(())
/// ```
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// As many as the state has.
    members: AtomicUsize,
    catching_up: AtomicUsize,
    max_in_flight: usize,
    percent: usize,
    max_waiting: usize,
    max_waiting_bytes: usize,
}

#[derive(Default)]
struct State {
    next_member: u64,
    members: BTreeMap<u64, Waker>,
    in_flight: usize,
    by_queue: HashMap<QueueName, usize>,
    requests: usize,
    bytes: usize,
}

/// How a scheduler learns that a place has become free.
#[derive(Default)]
struct Waker {
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Whether it waits for a place.
    waits: bool,
}

impl State {
    /// Whether a queue that has so many places may have one more.
    ///
    /// With a share of three quarters, a queue may have three times what is free: one queue by itself
    /// gets three quarters, two get three sevenths each, and so on. So some are always left
    /// for the next queue, however many do not give theirs back.
    fn has_room_for(&self, has: usize, shared: &Shared) -> bool {
        let free = shared.max_in_flight.saturating_sub(self.in_flight);
        let percent = shared.percent;
        has == 0 || has.saturating_mul(100 - percent) < free.saturating_mul(percent)
    }

    fn of(&self, queue: &QueueName) -> usize {
        self.by_queue.get(queue).copied().unwrap_or(0)
    }
}

impl Budget {
    /// A budget of its own.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            members: AtomicUsize::new(0),
            catching_up: AtomicUsize::new(0),
            max_in_flight: config.max_in_flight.max(1),
            percent: usize::from(config.queue_share_percent.clamp(1, 100)),
            max_waiting: config.max_waiting,
            max_waiting_bytes: config.max_waiting_bytes,
        }))
    }

    /// How many schedulers share it.
    #[must_use]
    pub fn schedulers(&self) -> usize {
        self.0.members.load(Ordering::Acquire)
    }

    /// How many attempts run, those of schedulers that have ended included, as far as they still run.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.state.lock().in_flight
    }

    /// Takes room for requests that wait; one request that is too large for all of it has it alone.
    pub(crate) fn let_wait(&self, requests: usize, bytes: usize) -> bool {
        let shared = &*self.0;
        let mut state = shared.state.lock();
        let fits = state.requests + requests <= shared.max_waiting
            && state.bytes + bytes <= shared.max_waiting_bytes;
        if !fits && (state.requests > 0 || shared.max_waiting == 0) {
            return false;
        }
        state.requests += requests;
        state.bytes += bytes;
        true
    }

    /// Takes it for what has waited before, whether there is room or not.
    pub(crate) fn waits_longer(&self, requests: usize, bytes: usize) {
        let mut state = self.0.state.lock();
        state.requests += requests;
        state.bytes += bytes;
    }

    /// Gives that back.
    pub(crate) fn waits_no_longer(&self, requests: usize, bytes: usize) {
        let mut state = self.0.state.lock();
        state.requests = state.requests.saturating_sub(requests);
        state.bytes = state.bytes.saturating_sub(bytes);
    }

    pub(crate) fn join(&self) -> Member {
        let mut state = self.0.state.lock();
        let id = state.next_member;
        state.next_member += 1;
        state.members.insert(id, Waker::default());
        self.0.members.store(state.members.len(), Ordering::Release);
        Member {
            budget: self.clone(),
            id,
            catches_up: false,
        }
    }

    /// The places of attempts that run.
    pub(crate) fn places(&self) -> Places {
        Places(self.clone())
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("schedulers", &self.schedulers())
            .finish_non_exhaustive()
    }
}

/// A scheduler's part in a budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    budget: Budget,
    id: u64,
    catches_up: bool,
}

impl Member {
    /// Among how many the memory is divided.
    pub(crate) fn of(&self) -> usize {
        if planted!(BudgetForEach) {
            return 1;
        }
        self.budget.schedulers().max(1)
    }

    /// Notes whether it catches up. Among how many the rate is divided.
    pub(crate) fn catch_up(&mut self, catches_up: bool) -> usize {
        let count = &self.budget.0.catching_up;
        match (self.catches_up, catches_up) {
            (false, true) => drop(count.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(count.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
        self.catches_up = catches_up;
        if planted!(BudgetForEach) {
            return 1;
        }
        count.load(Ordering::Acquire).max(1)
    }

    /// Calls `wake` whenever this scheduler [waits](Self::waits) for a place and one becomes free.
    pub(crate) fn on_room(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        if let Some(member) = self.budget.0.state.lock().members.get_mut(&self.id) {
            member.wake = Some(wake);
        }
    }

    /// Notes whether it waits for a place. To be noted before it looks whether there is one: what
    /// becomes free after that wakes it.
    pub(crate) fn waits(&self, waits: bool) {
        if self.budget.schedulers() < 2 {
            return; // its own outcomes wake it
        }
        if let Some(member) = self.budget.0.state.lock().members.get_mut(&self.id) {
            member.waits = waits;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.catch_up(false);
        let mut state = self.budget.0.state.lock();
        state.members.remove(&self.id);
        let shared = &self.budget.0;
        shared.members.store(state.members.len(), Ordering::Release);
    }
}

/// The places of attempts that run, of all schedulers together.
#[derive(Clone, Debug)]
pub(crate) struct Places(Budget);

impl Places {
    /// Takes a place for a queue, if it may have one more.
    pub(crate) fn take(&self, queue: &QueueName) -> bool {
        let shared = &*self.0.0;
        let mut state = shared.state.lock();
        let has = state.of(queue);
        let is_free = state.in_flight < shared.max_in_flight || planted!(BudgetForEach);
        let may = is_free && state.has_room_for(has, shared);
        if may {
            state.in_flight += 1;
            state.by_queue.insert(queue.clone(), has + 1);
        }
        may
    }

    /// Takes a place for an attempt that has run already.
    pub(crate) fn take_again(&self, queue: &QueueName) {
        let mut state = self.0.0.state.lock();
        state.in_flight += 1;
        *state.by_queue.entry(queue.clone()).or_default() += 1;
    }

    /// Gives a place back, and wakes who waits for one.
    pub(crate) fn give_back(&self, queue: &QueueName) {
        let mut waiting = Vec::new();
        let mut state = self.0.0.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        let has = state.of(queue).saturating_sub(1);
        if has > 0 {
            state.by_queue.insert(queue.clone(), has);
        } else {
            state.by_queue.remove(queue);
        }
        for member in state.members.values_mut() {
            if std::mem::take(&mut member.waits) {
                waiting.extend(member.wake.clone());
            }
        }
        drop(state);
        // A scheduler may look at the budget while somebody keeps it from being woken.
        for wake in waiting {
            wake();
        }
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        let shared = &*self.0.0;
        if planted!(BudgetForEach) {
            return shared.max_in_flight;
        }
        let taken = shared.state.lock().in_flight;
        shared.max_in_flight.saturating_sub(taken)
    }

    /// Whether a queue may have one more, if there is one to have: while it has less than its
    /// share of what would be left to it alone.
    pub(crate) fn may(&self, queue: &QueueName) -> bool {
        let shared = &*self.0.0;
        let state = shared.state.lock();
        state.has_room_for(state.of(queue), shared)
    }

    /// The queues that may not have one more now. None unless so many places are taken that one queue
    /// that had them all could not.
    pub(crate) fn held_queues(&self) -> Vec<QueueName> {
        let shared = &*self.0.0;
        let state = shared.state.lock();
        if state.has_room_for(state.in_flight, shared) {
            return Vec::new();
        }
        let held = |has: usize| !state.has_room_for(has, shared);
        let queues = state.by_queue.iter().filter(|(_, has)| held(**has));
        queues.map(|(queue, _)| queue.clone()).collect()
    }
}
