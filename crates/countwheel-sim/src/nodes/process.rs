//! A process on a machine: the control of the product, and an engine for each shard that it has.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::{
    Action, ClusterClock, Control, Looked, Node, NodeId, Reason, Registry, Standing, View, Why,
};
use countwheel_durable::store::{Fence, Shard, Store, StoreError};
use countwheel_durable::{
    Asked, Attempt, BatchError, Budget, Effect, Engine, Event, Outcome, Request, Ticket,
    TimerError, Turn, Verdict,
};
use countwheel_peers::PeersConfig;
use countwheel_postgres::testing::SimulatedPostgres;
use countwheel_postgres::{PostgresRegistry, PostgresStore};
use countwheel_time::Clock;

use super::network::{Peers, SILENCE};
use super::{SECOND, World};

pub(super) struct Process {
    store: Arc<PostgresStore>,
    pub(super) registry: PostgresRegistry,
    clock: Arc<ClusterClock>,
    budget: Budget,
    pub(super) control: Control,
    node: Node,
    view: View,
    actions: VecDeque<Action>,
    pub(super) owners: Vec<Owner>,
    pub(super) peers: Peers,
    /// What went elsewhere since the owner that had it here ended: with a deadline of its own.
    pub(super) asked_again: Vec<Request>,
    pub(super) leaves_until: Option<u64>,
}

/// An engine that has a shard, or had it and does not know.
pub(super) struct Owner {
    pub(super) shard: Shard,
    fence: Fence,
    /// When it came here from another node.
    came: Option<u64>,
    engine: Engine,
    asked: Vec<Waiting>,
    within: Option<Within>,
    /// The attempts that it let out, and when each ends.
    running: Vec<(u64, Attempt)>,
    giving: Option<Giving>,
}

/// A request, and who waits for the answer.
struct Waiting {
    ticket: Ticket,
    asked: Asked,
    /// Whether a client of this node has asked, and not another node.
    is_own: bool,
}

/// A turn between its halves.
struct Within {
    turn: Turn,
    asked: Vec<Waiting>,
    committed: Option<Result<(), StoreError>>,
}

/// A hand-over that waits for the attempts that run.
#[derive(Clone, Copy)]
struct Giving {
    to: NodeId,
    until: u64,
}

impl Owner {
    pub(super) fn is_of(&self, shard: Shard, fence: Fence) -> bool {
        (self.shard, self.fence) == (shard, fence)
    }

    /// Whether nobody has taken the shard since.
    pub(super) fn is_current(&self, server: &SimulatedPostgres) -> bool {
        server.owner(self.shard) == self.fence && server.is_held(self.shard, self.fence)
    }

    pub(super) fn works(&self) -> bool {
        self.giving.is_none()
    }
}

impl Process {
    fn here(&self) -> BTreeMap<Shard, Standing> {
        let owners = self.owners.iter();
        let standing = |owner: &Owner| match owner.works() {
            true => Standing::Works(owner.fence),
            false => Standing::Stops,
        };
        owners.map(|owner| (owner.shard, standing(owner))).collect()
    }

    /// Takes what a client of this node asks, or another node.
    pub(super) fn take_in(
        &mut self,
        shard: Shard,
        asked: Asked,
        is_own: bool,
        next_ticket: &mut u64,
    ) {
        let mut owners = self.owners.iter_mut();
        match owners.find(|owner| owner.shard == shard && owner.works()) {
            Some(owner) => {
                *next_ticket += 1;
                owner.asked.push(Waiting {
                    ticket: Ticket(*next_ticket),
                    asked,
                    is_own,
                });
            }
            None if is_own => self.peers.peers.ask(shard, asked),
            None => asked.refuse(TimerError::NotOwned { shard }),
        }
    }

    /// The owner is none any more. What it has not begun goes elsewhere.
    fn ends(&mut self, index: usize) -> Owner {
        let mut owner = self.owners.remove(index);
        for waiting in owner.asked.drain(..) {
            let shard = owner.shard;
            match waiting.is_own {
                true => {
                    self.asked_again.extend_from_slice(waiting.asked.requests());
                    self.peers.peers.ask(shard, waiting.asked);
                }
                false => waiting.asked.refuse(TimerError::NotOwned { shard }),
            }
        }
        owner
    }

    fn owner_of(&self, shard: Shard) -> Option<usize> {
        self.owners.iter().position(|owner| owner.shard == shard)
    }

    fn lives(&self, id: NodeId) -> bool {
        let mut members = self.view.members.iter();
        members.any(|it| it.node.id == id && it.expires > self.view.now)
    }
}

impl World {
    /// A machine does a little.
    pub(super) fn go_on(&mut self, machine: usize) -> Result<(), String> {
        let time = self.time();
        let it = &mut self.machines[machine];
        let is_well = it.paused_until <= time && it.cut_until <= time && it.process.is_some();
        if !is_well || self.drained.contains(&machine) {
            it.unwell = time;
        }
        if it.paused_until > time {
            return Ok(());
        }
        self.times.lock().asleep.remove(&machine);
        let faults = self.faults_of(machine);
        self.server.set_faults(faults);
        let Some(mut process) = self.machines[machine].process.take() else {
            if self.machines[machine].starts_at <= time {
                self.start(machine);
            }
            return Ok(());
        };
        let result = self.steps(machine, &mut process);
        let now = self.time();
        if now > time + self.ttl() / 2 {
            // Something hung, and here nobody renews meanwhile.
            self.machines.iter_mut().for_each(|it| it.unwell = now);
        }
        match result {
            Ok(true) => self.machines[machine].process = Some(process),
            Ok(false) => {
                self.machines[machine].born = None;
                let pause = if self.healing { 0 } else { 10 * SECOND };
                let starts_at = self.time() + self.faults.below(pause + 1);
                self.machines[machine].starts_at = starts_at;
            }
            Err(what) => return Err(what),
        }
        Ok(())
    }

    /// A process is started. It is refused while the one before has a lease.
    fn start(&mut self, machine: usize) {
        self.starts += 1;
        let clock = self.machines[machine].clock.clone();
        let clock = Arc::new(ClusterClock::new(Arc::new(clock)));
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let store =
            PostgresStore::on_simulated(&self.server, self.starts, shared, self.plan.within);
        let node = Node {
            id: NodeId(self.starts),
            name: self.machines[machine].name.clone(),
            api: String::new(),
            peers: None,
            weight: 100,
            version: String::new(),
            zones: String::new(),
        };
        let (sent, registry) = (clock.boot(), store.registry());
        let joined = registry.join(&node, self.plan.config.ttl);
        let (id, error) = (self.starts, joined.as_ref().err());
        self.note(format_args!("node {machine} starts as {id}: {error:?}"));
        let Ok(view) = joined else {
            self.machines[machine].starts_at = self.time() + SECOND / 2;
            return;
        };
        let looked = Looked {
            sent,
            came: clock.boot(),
            renewed: true,
        };
        clock.sample(sent, looked.came, view.now);
        let mut control = Control::new(node.id, self.plan.config.clone(), self.order.draw());
        let actions = control.joined(node.id, looked, &view, &BTreeMap::new());
        self.drained.remove(&machine);
        let config = PeersConfig {
            answer_within: Duration::from_micros(self.plan.answer_within),
            silence: Duration::from_micros(SILENCE),
            ..PeersConfig::new(0, node.id)
        };
        let peers = Peers::new(config, Arc::clone(&clock) as Arc<dyn Clock>);
        peers.learn(node.id, &view);
        self.machines[machine].born = Some(self.starts);
        self.machines[machine].process = Some(Process {
            store: Arc::new(store),
            registry,
            clock,
            budget: Budget::new(&self.config),
            control,
            node,
            view,
            actions: actions.into(),
            owners: Vec::new(),
            peers,
            asked_again: Vec::new(),
            leaves_until: None,
        });
    }

    /// What a process does. Says whether it goes on.
    fn steps(&mut self, machine: usize, process: &mut Process) -> Result<bool, String> {
        if process.clock.boot() >= process.control.next_look() {
            self.look(machine, process)?;
        }
        self.talk(machine, process)?;
        for _ in 0..2 {
            if let Some(action) = process.actions.pop_front() {
                self.act(machine, process, action)?;
            }
        }
        let mut index = 0;
        while index < process.owners.len() {
            let goes_on = match process.owners[index].giving {
                Some(giving) if process.owners[index].is_at_rest(self.time(), giving) => {
                    self.give(machine, process, index, giving);
                    false
                }
                _ => self.half_turn(machine, process, index)?,
            };
            index += usize::from(goes_on);
        }
        if let Some(until) = process.leaves_until
            && (!process.control.has_to_give() || self.time() >= until)
        {
            while !process.owners.is_empty() {
                process.ends(0).leave();
            }
            let left = process.registry.leave();
            self.note(format_args!("node {machine} has left: {left:?}"));
            return Ok(false);
        }
        Ok(true)
    }

    fn look(&mut self, machine: usize, process: &mut Process) -> Result<(), String> {
        let sent = process.clock.boot();
        let renewed = process.control.renews(sent);
        let looked = process.registry.look(renewed);
        let came = process.clock.boot();
        self.report.looks += 1;
        let actions = match looked {
            Ok(view) => {
                process.clock.sample(sent, came, view.now);
                let looked = Looked {
                    sent,
                    came,
                    renewed,
                };
                let here = process.here();
                let actions = process.control.seen(looked, &view, &here);
                process.peers.learn(process.control.me(), &view);
                process.view = view;
                actions
            }
            Err(error) => {
                self.report.missed += 1;
                process.control.missed(came, &error)
            }
        };
        if !actions.is_empty() {
            self.note(format_args!("node {machine} is to do {actions:?}"));
        }
        match actions.contains(&Action::Rejoin) {
            true => self.rejoin(machine, process),
            false => {
                look_at_targets(&process.view, &actions)?;
                process.actions.extend(actions);
            }
        }
        Ok(())
    }

    fn rejoin(&mut self, machine: usize, process: &mut Process) {
        if process.leaves_until.is_some() {
            return;
        }
        self.starts += 1;
        let node = Node {
            id: NodeId(self.starts),
            ..process.node.clone()
        };
        let sent = process.clock.boot();
        let joined = process.registry.join(&node, self.plan.config.ttl);
        let came = process.clock.boot();
        let (id, error) = (self.starts, joined.as_ref().err());
        self.note(format_args!(
            "node {machine} joins again as {id}: {error:?}"
        ));
        match joined {
            Ok(view) => {
                process.clock.sample(sent, came, view.now);
                let looked = Looked {
                    sent,
                    came,
                    renewed: true,
                };
                let here = process.here();
                let actions = process.control.joined(node.id, looked, &view, &here);
                process.actions.extend(actions);
                process.peers.learn(node.id, &view);
                (process.node, process.view) = (node, view);
                self.report.rejoined += 1;
            }
            Err(error) => {
                process.control.missed(came, &error);
                // Nothing is its own any more.
                while !process.owners.is_empty() {
                    let owner = process.ends(0);
                    if owner.giving.is_some() {
                        process.control.ended(came, owner.shard, false);
                    }
                }
            }
        }
    }

    fn act(&mut self, machine: usize, process: &mut Process, action: Action) -> Result<(), String> {
        let Some(shard) = action.shard() else {
            return Ok(());
        };
        let is_done = match action {
            Action::Take { shard, why } => self.take(machine, process, shard, why)?,
            Action::HandOver { shard, to, reason } => {
                if let Some(index) = process.owner_of(shard) {
                    self.look_at_hand_over(machine, process, index, reason)?;
                    let grace = u64::try_from(self.plan.config.grace.as_micros()).unwrap_or(0);
                    let until = self.time() + grace;
                    let until = process.leaves_until.map_or(until, |end| end.min(until));
                    let owner = &mut process.owners[index];
                    owner.giving = Some(Giving { to, until });
                    owner.engine.pause();
                    return Ok(());
                }
                false
            }
            Action::LetGo { shard } => process.registry.give(shard, None) == Ok(true),
            Action::End { shard } => {
                if let Some(index) = process.owner_of(shard) {
                    process.ends(index);
                    self.report.ended += 1;
                }
                true
            }
            Action::Rejoin => false,
        };
        process.control.ended(process.clock.boot(), shard, is_done);
        Ok(())
    }

    fn take(
        &mut self,
        machine: usize,
        process: &mut Process,
        shard: Shard,
        why: Why,
    ) -> Result<bool, String> {
        if process.owner_of(shard).is_some() {
            return Ok(true);
        }
        let before = self.truth()?;
        let store = Arc::clone(&process.store) as Arc<dyn Store>;
        let clock = Arc::clone(&process.clock) as Arc<dyn Clock>;
        let before_fence = self.server.owner(shard);
        let opened = Engine::open_within(&process.budget, store, shard, clock, self.config.clone());
        let fence = self.server.owner(shard);
        self.note(format_args!(
            "node {machine} takes {shard:?} under {fence:?}, {why:?}: {:?}",
            opened.as_ref().map(drop)
        ));
        if fence != before_fence {
            self.look_at_taking(machine, process, shard, &before)?;
        }
        let Ok(engine) = opened else {
            self.report.refused += 1;
            return Ok(false);
        };
        self.moved = self.time();
        self.report.taken += 1;
        self.report.overdue += u64::from(why == Why::Overdue);
        self.report.given += u64::from(why == Why::Given);
        process.owners.push(Owner {
            shard,
            fence,
            came: (why != Why::Free).then_some(self.moved),
            engine,
            asked: Vec::new(),
            within: None,
            running: Vec::new(),
            giving: None,
        });
        Ok(true)
    }

    /// Nobody takes a shard from a node that is well.
    fn look_at_taking(
        &self,
        machine: usize,
        process: &Process,
        shard: Shard,
        before: &View,
    ) -> Result<(), String> {
        let holding = &before.holdings[usize::from(shard.0)];
        let owner = holding.owner.filter(|owner| *owner != process.control.me());
        let is_of = |process: &Process| Some(process.control.me()) == owner;
        let mut others = self.machines.iter();
        let owner = others.find(|it| it.process.as_ref().is_some_and(is_of));
        let well_for = 2 * self.ttl() + 2 * SECOND;
        match owner {
            Some(owner) if owner.unwell + well_for < self.time() => Err(format!(
                "node {machine} takes {shard:?} from {}, which is well",
                owner.name
            )),
            _ => Ok(()),
        }
    }

    /// A shard that came a moment ago stays, and few are handed over at the same time.
    fn look_at_hand_over(
        &self,
        machine: usize,
        process: &Process,
        index: usize,
        reason: Reason,
    ) -> Result<(), String> {
        let shard = process.owners[index].shard;
        let giving = process.owners.iter().filter(|owner| !owner.works());
        if giving.count() >= self.plan.config.at_once {
            return Err(format!(
                "node {machine} hands {shard:?} over beside too many others"
            ));
        }
        let rest = u64::try_from(self.plan.config.rest.as_micros()).unwrap_or(0);
        let since = process.owners[index].came;
        // Its clock may be too fast.
        let rests = since.is_some_and(|since| self.time() < since + rest - rest / 1_000);
        match reason >= Reason::Wanted && rests {
            true => Err(format!(
                "node {machine} hands {shard:?} over, which has just come"
            )),
            false => Ok(()),
        }
    }

    /// Gives a shard away whose attempts have ended.
    fn give(&mut self, machine: usize, process: &mut Process, index: usize, giving: Giving) {
        let mut owner = process.ends(index);
        owner.leave();
        let to = Some(giving.to).filter(|to| process.lives(*to));
        let given = process.registry.give(owner.shard, to);
        self.note(format_args!(
            "node {machine} gives {:?} to {to:?}: {given:?}",
            owner.shard
        ));
        let is_done = given == Ok(true);
        self.report.hand_overs += u64::from(is_done);
        self.moved = self.time();
        let now = process.clock.boot();
        process.control.ended(now, owner.shard, is_done);
    }

    /// The next half of a turn, or the commit between the two. Says whether the owner goes on.
    fn half_turn(
        &mut self,
        machine: usize,
        process: &mut Process,
        index: usize,
    ) -> Result<bool, String> {
        let store = Arc::clone(&process.store);
        let wall = process.clock.timestamp();
        let owner = &mut process.owners[index];
        let Some(mut within) = owner.within.take() else {
            return self.begin(owner, wall);
        };
        let Some(committed) = within.committed.take() else {
            let (lease, changes) = (within.turn.lease(), within.turn.changes());
            within.committed = Some(match changes {
                [] => Ok(()),
                changes => store.commit(lease, changes),
            });
            owner.within = Some(within);
            return Ok(true);
        };
        let (mut answers, mut starts) = (BTreeMap::new(), Vec::new());
        let ended = owner
            .engine
            .end(within.turn, committed, &mut |effect| match effect {
                Effect::Answer(ticket, answer) => drop(answers.insert(ticket, answer)),
                Effect::Start(attempt) => starts.push(attempt),
                Effect::BatchAnswer(..) => {}
            });
        for waiting in within.asked {
            // One that has no answer is told that nothing is known.
            if let Some(answer) = answers.remove(&waiting.ticket) {
                let answer = answer.map(|response| vec![response]);
                let refused = |error| BatchError { index: None, error };
                waiting.asked.answer(answer.map_err(refused));
            }
        }
        let (shard, fence) = (owner.shard, owner.fence);
        for attempt in &starts {
            self.leaves(shard, fence, attempt)?;
        }
        let time = self.time();
        let owner = &mut process.owners[index];
        for attempt in starts {
            let service = self.receivers.below(self.plan.service + 1);
            owner.running.push((time + service, attempt));
        }
        if let Err(error) = ended {
            self.note(format_args!(
                "node {machine}, {shard:?} under {fence:?}: {error}"
            ));
            return match error {
                StoreError::Fenced { .. } | StoreError::Lost { .. } => {
                    let owner = process.ends(index);
                    if owner.giving.is_some() {
                        process.control.ended(process.clock.boot(), shard, false);
                    }
                    self.report.fenced += 1;
                    Ok(false)
                }
                error => Err(format!("a turn of {shard:?} does not end: {error}")),
            };
        }
        Ok(true)
    }

    fn begin(
        &mut self,
        owner: &mut Owner,
        wall: countwheel_time::Timestamp,
    ) -> Result<bool, String> {
        let time = self.time();
        let mut events = Vec::new();
        for (_, attempt) in owner.running.extract_if(.., |(end, _)| *end <= time) {
            let is_done = self.healing || self.receivers.below(100) >= self.plan.failing;
            let verdict = match is_done {
                true => Verdict::Done,
                false => Verdict::Failed { retry_after: None },
            };
            events.push(Event::Outcome {
                revision: attempt.revision,
                outcome: Outcome::new(verdict, ""),
            });
        }
        let mut asked = Vec::new();
        for waiting in owner.asked.drain(..) {
            let requests = waiting.asked.requests().iter().cloned();
            events.extend(requests.map(|request| Event::Request(waiting.ticket, request)));
            asked.push(waiting);
        }
        let is_due = owner.engine.next_wake().is_some_and(|at| at <= wall);
        if events.is_empty() && !is_due && owner.engine.deferred() == 0 {
            return Ok(true);
        }
        let turn = owner.engine.begin(events);
        let turn =
            turn.map_err(|error| format!("a turn of {:?} does not begin: {error}", owner.shard))?;
        owner.within = Some(Within {
            turn,
            asked,
            committed: None,
        });
        Ok(true)
    }
}

impl Owner {
    /// Whether a hand-over waits for nothing more.
    fn is_at_rest(&self, time: u64, giving: Giving) -> bool {
        let ended = self.running.is_empty() && self.asked.is_empty() && self.engine.deferred() == 0;
        self.within.is_none() && (ended || time >= giving.until)
    }

    /// The end of a scheduler that is told to stop. What fails here is not needed.
    fn leave(&mut self) {
        if self.within.is_none() {
            self.engine.note_clocks().unwrap_or_default();
            self.engine.abandon().unwrap_or_default();
        }
    }
}

/// Nobody who drains is given anything.
fn look_at_targets(view: &View, actions: &[Action]) -> Result<(), String> {
    for action in actions {
        if let Action::HandOver { to, .. } = action {
            let mut members = view.members.iter();
            if members.any(|it| it.node.id == *to && it.is_draining) {
                return Err(format!("{action:?} is to a node that drains"));
            }
        }
    }
    Ok(())
}
