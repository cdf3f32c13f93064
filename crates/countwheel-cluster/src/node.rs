//! What drives a node: looks at the registry, takes shards and gives them away.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use countwheel_durable::store::Shard;
use countwheel_durable::{Health, Loss, Timers};
use countwheel_time::locks::{lock, whole};
use countwheel_time::{Clock, Instant, Random, Timestamp};

use crate::{
    Action, ClusterClock, Control, Holding, Looked, Member, Node, NodeConfig, NodeId, Offset,
    Reason, Registry, RegistryError, Standing, View, Why,
};

/// So many of the last events are kept.
const EVENTS: usize = 100;

/// What happened to a shard or to the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Happening {
    /// The node has joined.
    Joined,
    /// It took a shard.
    Takeover,
    /// It gave a shard to another node.
    HandOver,
    /// It let go of a shard.
    LetGo,
    /// A shard was not its own any more.
    Lost,
    /// Something was not done.
    Refusal,
}

impl Happening {
    /// In a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Takeover => "takeover",
            Self::HandOver => "hand_over",
            Self::LetGo => "let_go",
            Self::Lost => "lost",
            Self::Refusal => "refusal",
        }
    }
}

/// What happened to a shard or to this node, for people. See [`NodeHandle::events`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeEvent {
    /// When, by the clock of the registry.
    pub at: Timestamp,
    /// What.
    pub what: Happening,
    /// Which shard, if it is about one.
    pub shard: Option<Shard>,
    /// The name of the node that had the shard; its id if it is gone.
    pub from: Option<String>,
    /// The name of the node that has it now, or was to have it.
    pub to: Option<String>,
    /// Why.
    pub reason: String,
}

/// What a node has counted since it was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NodeCounts {
    /// Shards that it took, by why it could.
    pub takeovers: BTreeMap<Why, u64>,
    /// Shards that it gave to others, by why.
    pub hand_overs: BTreeMap<Reason, u64>,
    /// How long all hand-overs took together, from the last start of the shard to its next owner's right.
    pub handing_over: Duration,
    /// Shards that were not its own any more.
    pub lost: u64,
    /// What was not done.
    pub refusals: u64,
    /// Looks at the registry that failed.
    pub missed: u64,
}

/// Makes a process a node. See [`start`](Self::start).
#[derive(Debug)]
pub struct NodeRunner;

/// A node that runs. Dropped, it looks at the registry no more, and its lease runs out.
pub struct NodeHandle {
    driver: Arc<Driver>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl NodeRunner {
    /// Joins, and takes and gives shards from then on, until [`stop`](NodeHandle::stop). The clock is
    /// the one that `timers` have: each look is a sample for it.
    ///
    /// # Errors
    /// Those of [`Registry::join`].
    pub fn start(
        timers: Timers,
        registry: Arc<dyn Registry>,
        clock: Arc<ClusterClock>,
        node: Node,
        config: NodeConfig,
    ) -> Result<NodeHandle, RegistryError> {
        let givers = config.at_once;
        let driver = Driver::join(timers, registry, clock, node, config)?;
        let handle = NodeHandle {
            driver: Arc::clone(&driver),
            threads: Mutex::default(),
        };
        handle.spawn("countwheel-node", Driver::look_on);
        handle.spawn("countwheel-takes", |driver| driver.work_on(Lane::Takes));
        handle.spawn("countwheel-waits", |driver| driver.work_on(Lane::Held));
        for _ in 0..givers {
            handle.spawn("countwheel-gives", |driver| driver.work_on(Lane::Gives));
        }
        Ok(handle)
    }
}

impl NodeHandle {
    fn spawn(&self, name: &str, run: impl FnOnce(&Driver) + Send + 'static) {
        let driver = Arc::clone(&self.driver);
        let thread = std::thread::Builder::new().name(name.to_owned());
        match thread.spawn(move || run(&driver)) {
            Ok(thread) => lock(&self.threads).push(thread),
            // Without it the lease runs out, and others go on.
            Err(error) => self
                .driver
                .note(Happening::Refusal, None, error.to_string()),
        }
    }

    /// The id under which it has joined: another one after it had to join again.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.driver.state().control.me()
    }

    /// What the registry had at the last look, and what this node did since then.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.driver.state().view)
    }

    /// Who owns what, as [`view`](Self::view) has it.
    #[must_use]
    pub fn owners(&self) -> Arc<ShardMap> {
        Arc::clone(&self.driver.state().owners)
    }

    /// The owner of a shard, whether its lease goes on or not. `None` also if that has left.
    #[must_use]
    pub fn owner(&self, shard: Shard) -> Option<Member> {
        self.owners().owner(shard).cloned()
    }

    /// Where each shard is to be, as of this view.
    #[must_use]
    pub fn placed(&self, view: &View) -> BTreeMap<Shard, NodeId> {
        self.driver.state().control.placed(view)
    }

    /// The last 100 events, the latest first.
    #[must_use]
    pub fn events(&self) -> Vec<NodeEvent> {
        self.driver.state().events.iter().rev().cloned().collect()
    }

    /// What it has counted.
    #[must_use]
    pub fn counts(&self) -> NodeCounts {
        self.driver.state().counts.clone()
    }

    /// Whether the lease is believed: if not, no attempt leaves, and no request is done.
    #[must_use]
    pub fn is_lease_believed(&self) -> bool {
        let now = self.driver.clock.boot();
        self.driver.state().control.believes(now)
    }

    /// How far the clock of this machine is from that of the registry.
    #[must_use]
    pub fn offset(&self) -> Offset {
        self.driver.clock.offset()
    }

    /// Hands all shards over, stops the timers and leaves, within `grace`. What could not be handed over
    /// by then is free for others to take. Says how many attempts were left running.
    pub fn stop(&self, grace: Duration) -> usize {
        let driver = &*self.driver;
        let until = driver.clock.boot() + grace;
        driver.leave(until);
        driver.wait_for_hand_overs(until);
        driver.end();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            thread.join().unwrap_or_default();
        }
        driver.finish(until)
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandle")
            .field("me", &self.me())
            .finish_non_exhaustive()
    }
}

impl Drop for NodeHandle {
    fn drop(&mut self) {
        self.driver.end();
    }
}

/// The owners of all shards, made anew when one changes.
#[derive(Clone, Debug, Default)]
pub struct ShardMap {
    version: u64,
    owners: BTreeMap<Shard, Arc<Member>>,
}

impl ShardMap {
    /// The owner of a shard, whether its lease goes on or not. `None` also if that has left.
    #[must_use]
    pub fn owner(&self, shard: Shard) -> Option<&Member> {
        self.owners.get(&shard).map(|owner| &**owner)
    }

    /// All shards that have an owner.
    pub fn owned(&self) -> impl Iterator<Item = (Shard, &Member)> {
        let owners = self.owners.iter();
        owners.map(|(shard, owner)| (*shard, &**owner))
    }

    /// Another number whenever any owner has changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replaces the owners by those of a view.
    pub fn change(&mut self, view: &View) {
        let members = view.members.iter();
        let members: BTreeMap<_, _> = members
            .map(|member| (member.node.id, Arc::new(member.clone())))
            .collect();
        let holdings = view.holdings.iter();
        let owner = |holding: &Holding| Some((holding.shard, holding.owner?));
        let owners: BTreeMap<_, _> = holdings
            .filter_map(owner)
            .filter_map(|(shard, owner)| Some((shard, Arc::clone(members.get(&owner)?))))
            .collect();
        let is_other = !are_same(&self.owners, &owners);
        self.version += u64::from(is_other);
        self.owners = owners;
    }
}

fn are_same(one: &BTreeMap<Shard, Arc<Member>>, other: &BTreeMap<Shard, Arc<Member>>) -> bool {
    let mut pairs = one.iter().zip(other);
    let are_same = pairs.all(|((a, one), (b, other))| a == b && one.node == other.node);
    are_same && one.len() == other.len()
}

/// Which thread does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    Takes,
    /// Takes of shards whose rows somebody holds: nothing else waits for them.
    Held,
    Gives,
}

impl Lane {
    fn of(action: Action) -> Self {
        match action {
            Action::HandOver { .. } => Self::Gives,
            _ => Self::Takes,
        }
    }
}

/// What one of them does next.
enum Work {
    One(Action),
    /// All that are to be taken, with their shards.
    Takes(Vec<(Action, Shard)>),
    Held(Action, Shard),
}

fn to_take(action: Action) -> Option<(Action, Shard)> {
    match action {
        Action::Take { shard, .. } => Some((action, shard)),
        _ => None,
    }
}

/// What the threads of a node share. None of it needs a thread of its own.
struct Driver {
    timers: Timers,
    registry: Arc<dyn Registry>,
    clock: Arc<ClusterClock>,
    config: NodeConfig,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    control: Control,
    node: Node,
    ids: Random,
    view: Arc<View>,
    owners: Arc<ShardMap>,
    events: VecDeque<NodeEvent>,
    counts: NodeCounts,
    actions: VecDeque<Action>,
    /// Shards that are to be taken and whose rows somebody holds.
    held: VecDeque<Action>,
    /// Until when a node that leaves hands over.
    until: Option<Instant>,
    is_over: bool,
}

impl Driver {
    fn join(
        timers: Timers,
        registry: Arc<dyn Registry>,
        clock: Arc<ClusterClock>,
        node: Node,
        config: NodeConfig,
    ) -> Result<Arc<Self>, RegistryError> {
        let sent = clock.boot();
        let view = registry.join(&node, config.ttl)?;
        let came = clock.boot();
        let halves = (node.id.0 >> 64, node.id.0 & u128::from(u64::MAX));
        let half = |half: u128| u64::try_from(half).unwrap_or_default();
        let mut ids = Random::new(half(halves.0) ^ half(halves.1));
        let control = Control::new(node.id, config.clone(), ids.draw());
        let driver = Arc::new(Self {
            timers,
            registry,
            clock,
            config,
            state: Mutex::new(State {
                control,
                node,
                ids,
                view: Arc::new(view.clone()),
                owners: Arc::default(),
                events: VecDeque::new(),
                counts: NodeCounts::default(),
                actions: VecDeque::new(),
                held: VecDeque::new(),
                until: None,
                is_over: false,
            }),
            changed: Condvar::new(),
        });
        let told = Arc::downgrade(&driver);
        driver.timers.on_lost(move |shard, loss| {
            if let Some(driver) = told.upgrade() {
                driver.lost(shard, loss);
            }
        });
        driver.joined(sent, came, view);
        Ok(driver)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn joined(&self, sent: Instant, came: Instant, view: View) {
        self.clock.sample(sent, came, view.now);
        let here = self.here();
        let mut state = self.state();
        let (me, renewed) = (state.node.id, true);
        let looked = Looked {
            sent,
            came,
            renewed,
        };
        let actions = state.control.joined(me, looked, &view, &here);
        state.saw(sent, view);
        state.actions.extend(actions);
        drop(state);
        self.note(Happening::Joined, None, "the node has joined".to_owned());
        self.changed.notify_all();
    }

    /// How the shards of this process stand.
    fn here(&self) -> BTreeMap<Shard, Standing> {
        let standing = |(health, fence)| match health {
            Health::Running => Standing::Works(fence),
            Health::Stopping => Standing::Stops,
            Health::Stopped | Health::Lost(_) | Health::Failed(_) => Standing::Ended,
        };
        let owned = self.timers.owned_under().into_iter();
        owned
            .map(|(shard, owned)| (shard, standing(owned)))
            .collect()
    }

    /// Looks until the end.
    fn look_on(&self) {
        loop {
            let mut state = self.state();
            loop {
                if state.is_over {
                    return;
                }
                let wait = state.control.next_look() - self.clock.boot();
                if wait.is_zero() {
                    break;
                }
                // The boot clock counts while the machine sleeps, and this does not.
                let wait = wait.min(self.config.look);
                state = whole(self.changed.wait_timeout(state, wait)).0;
            }
            drop(state);
            self.look();
        }
    }

    /// Looks once.
    fn look(&self) {
        let sent = self.clock.boot();
        let renewed = self.state().control.renews(sent);
        let looked = self.registry.look(renewed);
        let came = self.clock.boot();
        let actions = match looked {
            Ok(view) => {
                self.clock.sample(sent, came, view.now);
                let here = self.here();
                let mut state = self.state();
                let looked = Looked {
                    sent,
                    came,
                    renewed,
                };
                let actions = state.control.seen(looked, &view, &here);
                state.saw(sent, view);
                actions
            }
            Err(error) => {
                let mut state = self.state();
                state.counts.missed += 1;
                state.control.missed(came, &error)
            }
        };
        if actions.contains(&Action::Rejoin) {
            return self.rejoin();
        }
        self.state().actions.extend(actions);
        self.changed.notify_all();
    }

    /// Joins again, as another start.
    fn rejoin(&self) {
        let mut state = self.state();
        if state.until.is_some() {
            return;
        }
        let id = u128::from(state.ids.draw()) << 64 | u128::from(state.ids.draw());
        let node = Node {
            id: NodeId(id),
            ..state.node.clone()
        };
        drop(state);
        let sent = self.clock.boot();
        match self.registry.join(&node, self.config.ttl) {
            Ok(view) => {
                let came = self.clock.boot();
                self.state().node = node;
                self.joined(sent, came, view);
            }
            Err(error) => {
                let now = self.clock.boot();
                // Nothing is its own any more.
                let ends = self.here().into_keys().map(|shard| Action::End { shard });
                let mut state = self.state();
                state.control.missed(now, &error);
                state.actions.extend(ends);
                drop(state);
                self.note(Happening::Refusal, None, error.to_string());
                self.changed.notify_all();
            }
        }
    }

    /// Does what is to be done until the end.
    fn work_on(&self, lane: Lane) {
        loop {
            let mut state = self.state();
            let work = loop {
                if state.is_over {
                    return;
                }
                if let Some(work) = state.next(lane) {
                    break work;
                }
                state = whole(self.changed.wait(state));
            };
            drop(state);
            self.work(work);
        }
    }

    fn work(&self, work: Work) {
        match work {
            Work::One(action) => self.act(action),
            Work::Takes(takes) => self.take_all(takes),
            Work::Held(take, shard) => self.take_held(take, shard),
        }
    }

    /// Takes what nobody holds in one piece, and leaves the rest to another thread.
    fn take_all(&self, takes: Vec<(Action, Shard)>) {
        let shards: Vec<_> = takes.iter().map(|(_, shard)| *shard).collect();
        match self.registry.take(&shards) {
            Ok(taken) => {
                let (taken, held): (Vec<_>, Vec<_>) = takes
                    .into_iter()
                    .partition(|(_, shard)| taken.contains(shard));
                if !held.is_empty() {
                    let held = held.into_iter().map(|(take, _)| take);
                    self.state().held.extend(held);
                    self.changed.notify_all();
                }
                for (take, _) in taken {
                    self.act(take);
                }
            }
            Err(error) => {
                for (_, shard) in takes {
                    self.not_taken(shard, &error);
                }
            }
        }
    }

    fn take_held(&self, take: Action, shard: Shard) {
        match self.registry.take_held(shard) {
            Ok(()) => self.act(take),
            Err(error) => self.not_taken(shard, &error),
        }
    }

    fn not_taken(&self, shard: Shard, error: &RegistryError) {
        self.note(Happening::Refusal, Some(shard), error.to_string());
        let now = self.clock.boot();
        self.state().control.ended(now, shard, false);
        self.changed.notify_all();
    }

    fn act(&self, action: Action) {
        let Some(shard) = action.shard() else { return };
        let is_done = match action {
            Action::Take { shard, why } => self.take(shard, why),
            Action::HandOver { shard, to, reason } => self.hand_over(shard, to, reason),
            Action::LetGo { shard } => self.let_go(shard),
            Action::End { shard } => {
                self.timers.hand_over(shard, Duration::ZERO);
                true
            }
            Action::Rejoin => false,
        };
        let now = self.clock.boot();
        self.state().control.ended(now, shard, is_done);
        self.changed.notify_all();
    }

    fn take(&self, shard: Shard, why: Why) -> bool {
        match self.timers.take(shard) {
            Ok(()) => {
                let mut state = self.state();
                let from = state.owner_name(shard);
                let me = state.control.me();
                state.now_owns(shard, Some(me));
                *state.counts.takeovers.entry(why).or_default() += 1;
                let event = NodeEvent {
                    to: Some(state.node.name.clone()),
                    from,
                    ..self.event(Happening::Takeover, Some(shard), why.as_str().to_owned())
                };
                state.push(event);
                true
            }
            Err(error) => {
                self.note(Happening::Refusal, Some(shard), error.to_string());
                false
            }
        }
    }

    fn hand_over(&self, shard: Shard, to: NodeId, reason: Reason) -> bool {
        let began = self.clock.boot();
        let until = self.state().until;
        let grace = until.map_or(self.config.grace, |until| until - began);
        let grace = grace.min(self.config.grace);
        // What is asked for about the shard waits until its next owner is known.
        let given = self.timers.hand_over_and(shard, grace, |_| {
            let to = self.state().who_lives(to);
            let given = self.registry.give(shard, to);
            if given == Ok(true) {
                self.state().now_owns(shard, to);
            }
            (to, given)
        });
        let Some((to, given)) = given else {
            return false;
        };
        let took = self.clock.boot() - began;
        match given {
            Ok(true) => {
                let mut state = self.state();
                *state.counts.hand_overs.entry(reason).or_default() += 1;
                state.counts.handing_over += took;
                let event = NodeEvent {
                    from: Some(state.node.name.clone()),
                    to: to.map(|to| state.name_of(to)),
                    ..self.event(Happening::HandOver, Some(shard), reason.as_str().to_owned())
                };
                state.push(event);
                true
            }
            Ok(false) => {
                self.note(Happening::Lost, Some(shard), "another has it".to_owned());
                false
            }
            Err(error) => {
                self.note(Happening::Refusal, Some(shard), error.to_string());
                false
            }
        }
    }

    fn let_go(&self, shard: Shard) -> bool {
        self.timers.hand_over(shard, Duration::ZERO);
        match self.registry.give(shard, None) {
            Ok(true) => {
                self.state().now_owns(shard, None);
                let reason = "it cannot be taken here".to_owned();
                self.note(Happening::LetGo, Some(shard), reason);
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.note(Happening::Refusal, Some(shard), error.to_string());
                false
            }
        }
    }

    /// A scheduler has ended: its store says that the shard is not this node's.
    fn lost(&self, shard: Shard, loss: &Loss) {
        self.note(Happening::Lost, Some(shard), loss.to_string());
    }

    fn event(&self, what: Happening, shard: Option<Shard>, reason: String) -> NodeEvent {
        NodeEvent {
            at: self.clock.timestamp(),
            what,
            shard,
            from: None,
            to: None,
            reason,
        }
    }

    fn note(&self, what: Happening, shard: Option<Shard>, reason: String) {
        let event = self.event(what, shard, reason);
        self.state().push(event);
    }

    /// From now on everything is given away.
    fn leave(&self, until: Instant) {
        let mut state = self.state();
        state.control.leave();
        state.until = Some(until);
        let name = state.node.name.clone();
        drop(state);
        // Another process may have the name by now.
        let looked = self.registry.look(false);
        let marked = looked.and_then(|_| self.registry.mark_draining(&name, true));
        if let Err(error) = marked {
            // The others learn of it when they are given the shards.
            self.note(Happening::Refusal, None, error.to_string());
        }
        self.changed.notify_all();
    }

    fn wait_for_hand_overs(&self, until: Instant) {
        let mut state = self.state();
        while state.control.has_to_give() && !state.is_over {
            let left = until - self.clock.boot();
            if left.is_zero() {
                break;
            }
            let wait = left.min(self.config.look);
            state = whole(self.changed.wait_timeout(state, wait)).0;
        }
    }

    fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Stops what is left and leaves.
    fn finish(&self, until: Instant) -> usize {
        let left = self.timers.stop(until - self.clock.boot());
        if let Err(error) = self.registry.leave() {
            // The lease runs out.
            self.note(Happening::Refusal, None, error.to_string());
        }
        left
    }
}

impl State {
    /// The next that this thread is to do: of takes all that are there.
    fn next(&mut self, lane: Lane) -> Option<Work> {
        if lane == Lane::Held {
            let (take, shard) = to_take(self.held.pop_front()?)?;
            return Some(Work::Held(take, shard));
        }
        let mut actions = self.actions.iter();
        let at = actions.position(|action| Lane::of(*action) == lane)?;
        let next = self.actions.remove(at)?;
        let Some(first) = to_take(next) else {
            return Some(Work::One(next));
        };
        let (takes, others): (VecDeque<_>, _) = std::mem::take(&mut self.actions)
            .into_iter()
            .partition(|action| to_take(*action).is_some());
        self.actions = others;
        let others = takes.into_iter().filter_map(to_take);
        Some(Work::Takes(std::iter::once(first).chain(others).collect()))
    }

    /// Keeps what a look showed, but not of shards with which something was done since it was sent.
    fn saw(&mut self, sent: Instant, mut view: View) {
        for (new, known) in view.holdings.iter_mut().zip(&self.view.holdings) {
            if new.shard == known.shard && self.control.is_outdated(new.shard, sent) {
                new.clone_from(known);
            }
        }
        Arc::make_mut(&mut self.owners).change(&view);
        self.view = Arc::new(view);
    }

    fn now_owns(&mut self, shard: Shard, owner: Option<NodeId>) {
        let view = Arc::make_mut(&mut self.view);
        let mut holdings = view.holdings.iter_mut();
        if let Some(holding) = holdings.find(|holding| holding.shard == shard) {
            holding.owner = owner;
        }
        Arc::make_mut(&mut self.owners).change(view);
    }

    fn owner_name(&self, shard: Shard) -> Option<String> {
        let mut holdings = self.view.holdings.iter();
        let owner = holdings.find(|it| it.shard == shard)?.owner?;
        Some(self.name_of(owner))
    }

    fn name_of(&self, id: NodeId) -> String {
        let mut members = self.view.members.iter();
        let member = members.find(|member| member.node.id == id);
        member.map_or_else(|| id.to_string(), |member| member.node.name.clone())
    }

    /// That node, if its lease goes on. A shard that nobody was given is free for the next.
    fn who_lives(&self, id: NodeId) -> Option<NodeId> {
        let mut members = self.view.members.iter();
        let lives = members.any(|it| it.node.id == id && it.expires > self.view.now);
        lives.then_some(id)
    }

    fn push(&mut self, event: NodeEvent) {
        match event.what {
            Happening::Lost => self.counts.lost += 1,
            Happening::Refusal => self.counts.refusals += 1,
            _ => {}
        }
        // What fails again for the same reason is one event.
        let mut latest = self.events.iter().rev();
        let latest = latest.find(|before| before.shard == event.shard);
        let is_again = latest.is_some_and(|before| {
            event.what == Happening::Refusal
                && (before.what, &before.reason) == (event.what, &event.reason)
        });
        if is_again {
            return;
        }
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

#[cfg(test)]
mod tests;
