//! The resources that all schedulers of a process share: places for running attempts, memory, the
//! rate of the catch-up, and room for waiting requests.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use countwheel_time::{Instant, Timestamp};
use parking_lot::{Mutex, MutexGuard};

mod flows;
#[cfg(test)]
mod tests;

pub(crate) use flows::May;
use flows::{FlowTable, Spare};

use crate::flow::{Flow, FlowLimits, FlowUse, Flows};
use crate::planted::planted;
use crate::{Config, QueueName};

/// The limits of a [`Config`] that hold for all schedulers of a process together: handed to each
/// [`Engine`](crate::Engine) that shares them. Clones are the same budget.
///
/// - [`max_in_flight`](Config::max_in_flight), and the
///   [share](Config::queue_share_percent) of each queue in it, whichever shard its timers are in;
/// - the limits of each flow ([`Config::flows`]);
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
    /// How often limits of flows have changed: changed under the lock of the state.
    flow_changes: AtomicU64,
    /// How often timers have been given other flows.
    route_changes: AtomicU64,
    max_in_flight: usize,
    percent: usize,
    max_waiting: usize,
    max_waiting_bytes: usize,
}

#[derive(Default)]
struct State {
    next_member: u64,
    members: BTreeMap<u64, Waiting>,
    in_flight: usize,
    /// Places that are free, each for a scheduler that was woken for it and has not looked yet.
    promised: usize,
    /// Places that were given back and nobody was woken for.
    freed: usize,
    /// How often a place was given back, and what it was when a queue gave its last one back.
    given_back: u64,
    emptied: u64,
    by_queue: HashMap<QueueName, usize>,
    flows: FlowTable,
    requests: usize,
    bytes: usize,
}

/// How a scheduler learns that a place has become free.
#[derive(Default)]
struct Waiting {
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Why it waits, if it does.
    lacks: Option<Lacks>,
    /// Its count of places given back when it looked last: later ones are news.
    looked: u64,
    /// The same when it began to wait, with no place since.
    since: Option<u64>,
    /// It was woken, and a place is kept for it.
    is_promised: bool,
    /// When it looked last, what was free was promised to others.
    missed_promised: bool,
    /// The flows that it was woken for and has not looked at since.
    flows: Vec<Flow>,
    /// It is to be woken for each change of limits.
    minds_changes: bool,
}

/// Why a scheduler waits for a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lacks {
    /// There is none.
    Place,
    /// There are some, and its queues have their shares already.
    Share,
}

/// What an attempt lacks that may not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lacking {
    /// A place, of all or in its queue's share.
    Place,
    /// Room in the flow at that position.
    Flow(usize, May),
}

type Wakes = Vec<Arc<dyn Fn() + Send + Sync>>;

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

    /// How many places a scheduler may take: those that are promised to others are not among them.
    fn free_for(&mut self, id: u64, shared: &Shared) -> usize {
        let free = shared.max_in_flight.saturating_sub(self.in_flight);
        let Some(member) = self.members.get_mut(&id) else {
            return free.saturating_sub(self.promised);
        };
        let of_others = self.promised - usize::from(member.is_promised);
        member.missed_promised = free > 0 && free <= of_others;
        free.saturating_sub(of_others)
    }

    /// What flows may have of what is free.
    fn spare(&self, shared: &Shared) -> Spare {
        let free = shared.max_in_flight.saturating_sub(self.in_flight);
        let left = shared.max_in_flight * (100 - shared.percent) / 100;
        Spare {
            places: free.saturating_sub(left),
            percent: shared.percent,
        }
    }

    /// Wakes those that wait for flows in which there may be room now.
    fn wake_for_flows(&mut self, shared: &Shared, wakes: &mut Wakes) {
        let spare = self.spare(shared);
        let members = &mut self.members;
        self.flows
            .wake(spare, |id, flow| wake_for(members, id, flow, wakes));
    }

    /// The scheduler that has waited longest of those for which there may be a place now, if there is one
    /// that is not promised.
    fn next(&self, shared: &Shared) -> Option<u64> {
        if self.in_flight + self.promised >= shared.max_in_flight {
            return None;
        }
        let mut queues = self.by_queue.values();
        let of_queues = queues.any(|has| self.has_room_for(*has, shared));
        let may = |waiting: &Waiting| match waiting.lacks {
            Some(Lacks::Place) => true,
            // A queue that has none may always have one.
            Some(Lacks::Share) => of_queues || waiting.looked < self.emptied,
            None => false,
        };
        let is_news = |it: &Waiting| it.looked < self.given_back || it.missed_promised;
        let can_be_woken = |it: &Waiting| it.wake.is_some() && !it.is_promised;
        let members = self.members.iter();
        let waiting = members.filter(|(_, it)| may(it) && is_news(it) && can_be_woken(it));
        let first = waiting.min_by_key(|(id, it)| (it.since.unwrap_or(self.given_back), **id));
        first.map(|(id, _)| *id)
    }

    /// Keeps a place for a scheduler, which is to be woken.
    fn promise(&mut self, id: u64, wakes: &mut Wakes) {
        if let Some(member) = self.members.get_mut(&id) {
            (member.is_promised, member.missed_promised) = (true, false);
            self.promised += 1;
            wakes.extend(member.wake.clone());
        }
    }

    /// See [`Places::wake_waiting`].
    fn wake_waiting(&mut self, shared: &Shared, wakes: &mut Wakes) {
        self.wake_for_flows(shared, wakes);
        for _ in 0..std::mem::take(&mut self.freed).max(1) {
            let Some(next) = self.next(shared) else {
                break;
            };
            self.promise(next, wakes);
        }
    }

    /// It has looked, and needs no place that was kept for it: the next one may.
    fn give_up_promise(&mut self, id: u64, shared: &Shared, wakes: &mut Wakes) {
        let Some(member) = self.members.get_mut(&id) else {
            return;
        };
        if !std::mem::take(&mut member.is_promised) {
            return;
        }
        self.promised -= 1;
        if !planted!(BudgetPromiseEnds)
            && let Some(next) = self.next(shared)
        {
            self.promise(next, wakes);
        }
    }
}

/// Wakes a scheduler, which looks at that flow.
fn wake_for(members: &mut BTreeMap<u64, Waiting>, id: u64, flow: &Flow, wakes: &mut Wakes) {
    if let Some(member) = members.get_mut(&id) {
        member.flows.push(flow.clone());
        wakes.extend(member.wake.clone());
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
            flow_changes: AtomicU64::new(0),
            route_changes: AtomicU64::new(0),
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

    /// The limits of flows are others than before: schedulers with timers that wait for one look again. A driver of
    /// [engines](crate::Engine) gives each of them a turn then.
    pub fn flows_changed(&self) {
        self.change(|state, shared, wakes| {
            shared.flow_changes.fetch_add(1, Ordering::AcqRel);
            if planted!(FlowChangeUnseen) {
                return;
            }
            let members = &mut state.members;
            let minding = members.values().filter(|it| it.minds_changes);
            wakes.extend(minding.filter_map(|it| it.wake.clone()));
            state
                .flows
                .limits_changed(|id, flow| wake_for(members, id, flow, wakes));
        });
    }

    /// The limits of one flow are others than before, or there is a new [grant](Flows::lease) of it: as
    /// [`flows_changed`](Self::flows_changed), of the schedulers that wait for that flow.
    pub fn flow_changed(&self, flow: &Flow) {
        self.change(|state, shared, wakes| {
            shared.flow_changes.fetch_add(1, Ordering::AcqRel);
            if planted!(FlowChangeUnseen) {
                return;
            }
            let members = &mut state.members;
            state
                .flows
                .limit_changed(flow, |id| wake_for(members, id, flow, wakes));
        });
    }

    /// The same of these flows alone. Once it is back, what starts goes by their limits as they are now.
    pub fn limits_of_flows_changed(&self, flows: &[Flow]) {
        self.change(|state, shared, wakes| {
            shared.flow_changes.fetch_add(1, Ordering::AcqRel);
            let members = &mut state.members;
            state
                .flows
                .limits_of_changed(flows, |id, flow| wake_for(members, id, flow, wakes));
        });
    }

    /// What attempts use of the limits of these flows, in the same order. What counts since
    /// somebody asked last is counted anew from now on.
    #[must_use]
    pub fn flows_used(&self, flows: &[Flow], boot: Instant) -> Vec<FlowUse> {
        let now = Timestamp::EPOCH + boot.saturating_since(Instant::ZERO);
        let mut state = self.0.state.lock();
        let used = flows.iter().map(|flow| state.flows.used(flow, now));
        used.collect()
    }

    /// Timers may have other [flows](Flows::route) than before: those that wait for one are read anew. Costs a look at
    /// all that is due. A driver of [engines](crate::Engine) gives each of them a turn then.
    pub fn routes_changed(&self) {
        self.change(|state, shared, wakes| {
            shared.route_changes.fetch_add(1, Ordering::AcqRel);
            if !planted!(FlowRoutesStay) {
                wakes.extend(state.members.values().filter_map(|it| it.wake.clone()));
            }
        });
    }

    /// How often they had.
    pub(crate) fn route_changes(&self) -> u64 {
        self.0.route_changes.load(Ordering::Acquire)
    }

    /// How often limits or flows were others than before.
    pub(crate) fn changes(&self) -> u64 {
        let limits = self.0.flow_changes.load(Ordering::Acquire);
        limits + self.route_changes()
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

    /// Changes who has which place. Whoever is to be woken is woken after that: a scheduler may look at the budget while
    /// somebody keeps it from being woken.
    fn change(&self, change: impl FnOnce(&mut State, &Shared, &mut Wakes)) {
        let (shared, mut wakes) = (&*self.0, Wakes::new());
        change(&mut shared.state.lock(), shared, &mut wakes);
        wakes.into_iter().for_each(|wake| wake());
    }

    pub(crate) fn join(&self) -> Member {
        let mut state = self.0.state.lock();
        let id = state.next_member;
        state.next_member += 1;
        state.members.insert(id, Waiting::default());
        self.0.members.store(state.members.len(), Ordering::Release);
        Member {
            budget: self.clone(),
            id,
            catches_up: false,
        }
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
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

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

    /// The places of attempts that run, for this scheduler.
    pub(crate) fn places(&self) -> Places {
        Places {
            budget: self.budget.clone(),
            id: self.id,
            zero: Timestamp::EPOCH,
        }
    }

    /// Calls `wake` when this scheduler [waits](Self::waits) for a place and one is kept for it.
    pub(crate) fn on_room(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        if let Some(member) = self.budget.0.state.lock().members.get_mut(&self.id) {
            member.wake = Some(wake);
        }
    }

    /// It is about to look whether it could use a place: what becomes free after that wakes it.
    pub(crate) fn looks(&self) {
        let mut state = self.budget.0.state.lock();
        let given_back = state.given_back;
        if let Some(member) = state.members.get_mut(&self.id) {
            (member.lacks, member.looked) = (Some(Lacks::Place), given_back);
            member.missed_promised = false;
        }
    }

    /// Whether it is to be woken for each change of the limits of flows.
    pub(crate) fn minds_changes(&self, minds: bool) {
        if let Some(member) = self.budget.0.state.lock().members.get_mut(&self.id) {
            member.minds_changes = minds;
        }
    }

    /// Whether it was woken for a flow and has not looked since.
    pub(crate) fn is_woken_for_flow(&self) -> bool {
        let state = self.budget.0.state.lock();
        let member = state.members.get(&self.id);
        member.is_some_and(|member| !member.flows.is_empty())
    }

    /// It has looked, and waits for a place, or for none.
    pub(crate) fn waits(&self, lacks: Option<Lacks>) {
        self.budget.change(|state, shared, wakes| {
            let given_back = state.given_back;
            if let Some(member) = state.members.get_mut(&self.id) {
                member.lacks = lacks;
                // Promised or not, no place was of use to it: only one that is given back later may be.
                member.missed_promised &= lacks != Some(Lacks::Share);
                member.since = lacks.map(|_| member.since.unwrap_or(given_back));
            }
            state.give_up_promise(self.id, shared, wakes);
        });
    }

    /// It starts nothing any more.
    pub(crate) fn rests(&self) {
        self.waits(None);
        self.budget.change(|state, shared, wakes| {
            state.flows.leave_all(self.id);
            state.wake_for_flows(shared, wakes);
        });
    }

    /// It has started what it could: the places that are left are for others until it looks again.
    pub(crate) fn has_started(&self) {
        self.budget.change(|state, shared, wakes| {
            if let Some(member) = state.members.get_mut(&self.id) {
                member.lacks = None;
            }
            state.give_up_promise(self.id, shared, wakes);
            state.wake_waiting(shared, wakes);
        });
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.catch_up(false);
        self.rests();
        let mut state = self.budget.0.state.lock();
        state.members.remove(&self.id);
        let shared = &self.budget.0;
        shared.members.store(state.members.len(), Ordering::Release);
    }
}

/// The places of attempts that run, of all schedulers together.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    budget: Budget,
    /// The scheduler that they are for.
    id: u64,
    /// Where its time line stood when the boot clock was at zero: the lines of several schedulers differ, and a rate
    /// is counted for all of them.
    zero: Timestamp,
}

impl Places {
    /// Its scheduler's time line stood there when the boot clock was at zero.
    pub(crate) fn count_from(&mut self, zero: Timestamp) {
        self.zero = zero;
    }

    fn since_zero(&self, now: Timestamp) -> Timestamp {
        Timestamp::EPOCH + now.saturating_since(self.zero)
    }

    /// As its scheduler's time line has it.
    fn on_line(&self, may: May) -> May {
        match may {
            May::At(at) => May::At(self.zero + at.saturating_since(Timestamp::EPOCH)),
            may => may,
        }
    }

    /// Takes a place for a queue and its flows, if each may have one more. If a flow may not, this scheduler waits for
    /// that flow from now on.
    pub(crate) fn take(
        &self,
        queue: &QueueName,
        flows: &[Flow],
        rules: Option<&dyn Flows>,
        now: Timestamp,
    ) -> Result<(), Lacking> {
        let (shared, now) = (&*self.budget.0, self.since_zero(now));
        let (mut state, limits) = self.with_limits(flows, rules);
        let has = state.of(queue);
        let is_free = state.free_for(self.id, shared) > 0 || planted!(BudgetForEach);
        if !is_free || !state.has_room_for(has, shared) {
            return Err(Lacking::Place);
        }
        let spare = state.spare(shared);
        for (at, (flow, limits)) in flows.iter().zip(limits).enumerate() {
            let may = state.flows.may(self.id, flow, limits, now, spare);
            if may != May::Now {
                return Err(Lacking::Flow(at, self.on_line(may)));
            }
        }
        for flow in flows {
            state.flows.take(self.id, flow, now);
        }
        state.in_flight += 1;
        state.freed = state.freed.saturating_sub(1);
        state.by_queue.insert(queue.clone(), has + 1);
        if let Some(member) = state.members.get_mut(&self.id) {
            member.since = None;
            let was_promised = std::mem::take(&mut member.is_promised);
            state.promised -= usize::from(was_promised);
        }
        Ok(())
    }

    /// Takes room for a leased attempt in its flows, the first of which grants the lease, and says for how long. If a
    /// flow has no room, this scheduler waits for that flow from now on.
    pub(crate) fn take_lease(
        &self,
        flows: &[Flow],
        rules: Option<&dyn Flows>,
        now: Timestamp,
    ) -> Result<Duration, Lacking> {
        let now = if planted!(LeaseRateByLine) {
            now
        } else {
            self.since_zero(now)
        };
        let (mut state, limits) = self.with_limits(flows, rules);
        let spare = state.spare(&self.budget.0);
        for (at, (flow, limits)) in flows.iter().zip(&limits).enumerate() {
            let may = state.flows.may(self.id, flow, *limits, now, spare);
            if may != May::Now {
                return Err(Lacking::Flow(at, self.on_line(may)));
            }
        }
        let granted = flows.first().zip(rules);
        let granted = granted.and_then(|(flow, rules)| rules.lease(flow));
        let Some(lease) = granted else {
            // Another scheduler was faster: this one waits for the next grant.
            let none = FlowLimits {
                at_once: Some(0),
                ..FlowLimits::default()
            };
            let may = flows
                .first()
                .map(|flow| state.flows.may(self.id, flow, none, now, spare));
            return Err(Lacking::Flow(0, may.unwrap_or(May::Later)));
        };
        for flow in flows {
            state.flows.take(self.id, flow, now);
        }
        Ok(lease)
    }

    /// A lease whose end was void goes on.
    pub(crate) fn lease_again(&self, flows: &[Flow]) {
        let mut state = self.budget.0.state.lock();
        for flow in flows {
            state.flows.take_again(flow);
        }
    }

    /// A leased attempt has ended.
    pub(crate) fn end_lease(&self, flows: &[Flow]) {
        self.budget.change(|state, shared, wakes| {
            for flow in flows {
                state.flows.give_back(flow);
            }
            state.wake_for_flows(shared, wakes);
        });
    }

    /// Whether one more attempt of a flow may start. If not, this scheduler waits for the flow from now on.
    pub(crate) fn may_flow(&self, flow: &Flow, rules: Option<&dyn Flows>, now: Timestamp) -> May {
        let (mut state, limits) = self.with_limits(std::slice::from_ref(flow), rules);
        let spare = state.spare(&self.budget.0);
        let limits = limits.first().copied().unwrap_or_default();
        let now = self.since_zero(now);
        self.on_line(state.flows.may(self.id, flow, limits, now, spare))
    }

    /// The state, and the limits of flows as they are now: a change of them comes after what is done with the state.
    fn with_limits(
        &self,
        flows: &[Flow],
        rules: Option<&dyn Flows>,
    ) -> (MutexGuard<'_, State>, Vec<FlowLimits>) {
        let shared = &*self.budget.0;
        loop {
            let seen = shared.flow_changes.load(Ordering::Acquire);
            let limits = flows.iter().map(|flow| {
                let limits = rules.map(|rules| rules.limits(flow));
                limits.unwrap_or_default()
            });
            let limits = limits.collect();
            let state = shared.state.lock();
            if shared.flow_changes.load(Ordering::Acquire) == seen {
                return (state, limits);
            }
        }
    }

    /// This scheduler waits for the flow no longer.
    pub(crate) fn leave_flow(&self, flow: &Flow) {
        self.budget.0.state.lock().flows.leave(self.id, flow);
    }

    /// The flows that this scheduler was woken for since it asked last.
    pub(crate) fn woken_for(&self) -> Vec<Flow> {
        let mut state = self.budget.0.state.lock();
        let member = state.members.get_mut(&self.id);
        member.map_or_else(Vec::new, |member| std::mem::take(&mut member.flows))
    }

    /// Takes a place for an attempt that has run already.
    pub(crate) fn take_again(&self, queue: &QueueName, flows: &[Flow]) {
        let mut state = self.budget.0.state.lock();
        state.in_flight += 1;
        *state.by_queue.entry(queue.clone()).or_default() += 1;
        for flow in flows {
            state.flows.take_again(flow);
        }
    }

    /// Gives a place back. Who gives it back may take it again: a scheduler's outcome and its next start are one
    /// commit then. Whoever waits is [woken](Self::wake_waiting) for what is left; but nobody has to see all places go
    /// to others more than twice.
    pub(crate) fn give_back(&self, queue: &QueueName, flows: &[Flow]) {
        self.budget.change(|state, shared, wakes| {
            for flow in flows {
                state.flows.give_back(flow);
            }
            state.in_flight = state.in_flight.saturating_sub(1);
            state.given_back += 1;
            let has = state.of(queue).saturating_sub(1);
            if has > 0 {
                state.by_queue.insert(queue.clone(), has);
            } else {
                state.by_queue.remove(queue);
                state.emptied = state.given_back;
            }
            let patience = 2 * shared.max_in_flight as u64;
            let seen_since = |id: &u64| {
                state.members[id]
                    .since
                    .map_or(0, |it| state.given_back - it)
            };
            let next = state.next(shared);
            match next.filter(|id| seen_since(id) > patience && !planted!(BudgetNobodyElse)) {
                Some(next) => state.promise(next, wakes),
                None => state.freed += 1,
            }
        });
    }

    /// Wakes a scheduler that waits for each place that was given back and not taken again, and one at least: what
    /// was taken again for another queue leaves the first one a share.
    pub(crate) fn wake_waiting(&self) {
        self.budget.change(State::wake_waiting);
    }

    /// How many this scheduler may take.
    pub(crate) fn free(&self) -> usize {
        let shared = &*self.budget.0;
        if planted!(BudgetForEach) {
            return shared.max_in_flight;
        }
        shared.state.lock().free_for(self.id, shared)
    }

    /// Whether a queue may have one more, if there is one to have: while it has less than its
    /// share of what would be left to it alone.
    pub(crate) fn may(&self, queue: &QueueName) -> bool {
        let shared = &*self.budget.0;
        let state = shared.state.lock();
        state.has_room_for(state.of(queue), shared)
    }

    /// The queues that may not have one more now. None unless so many places are taken that one queue
    /// that had them all could not.
    pub(crate) fn held_queues(&self) -> Vec<QueueName> {
        let shared = &*self.budget.0;
        let state = shared.state.lock();
        if state.has_room_for(state.in_flight, shared) {
            return Vec::new();
        }
        let held = |has: usize| !state.has_room_for(has, shared);
        let queues = state.by_queue.iter().filter(|(_, has)| held(**has));
        queues.map(|(queue, _)| queue.clone()).collect()
    }
}
