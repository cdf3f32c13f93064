//! Worlds of shards: a store that several nodes share, each with clocks of its own, and engines that
//! take shards from each other.
//!
//! Each shard has one working owner, and at times replaced owners that do not know it. Between the
//! two halves of a turn other owners act. Owners end in every place, shards change hands on
//! purpose, the store is away or does not answer, leases end. Acknowledged changes are there for
//! the next owner. Nothing leaves a replaced owner. An attempt is handed out once, and not before
//! its deadline by more than the clocks of two owners differ. In the end everything works, and
//! every timer comes to its end.
//!
//! Where the store is a simulated PostgreSQL, each node has connections of its own to it, and what
//! goes wrong does so there. A failover that loses what was acknowledged is the one exception: the
//! owner is told so by its next commit, and the model goes back to what is left when the shard is
//! taken. An owner from before a taking that is lost is the owner again by its token, and may commit
//! nothing all the same. Only where the server is wrongly believed to lose nothing is no taking lost:
//! there that owner would go on, and no promise holds.
//!
//! ```
//! use countwheel_sim::shards::{self, Options};
//!
//! let report = shards::run(7, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.attempts > 0 && report.takings > 0);
//! ```

mod acting;
mod model;
mod seam;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use countwheel_durable::store::{Durability, Fence, Shard, StoreError};
use countwheel_durable::{
    Attempt, Budget, Config, Due, Engine, Precondition, Record, Request, RetryPolicy, SetOptions,
    Shards, Shift, TimerName, Turn,
};
use countwheel_postgres::PostgresStore;
use countwheel_postgres::testing::{SimulatedFaults, SimulatedPostgres};
use countwheel_time::{BootId, Clock, Instant, ManualClock, Timestamp};

use self::model::{Doubt, Item, Model, Now, RATE_MAX};
use self::seam::{Clocks, Seam, Shared};
use self::watch::Watch;
use crate::failure::{Failure, Log};
use crate::machine::{Kept, Kind, Machine};
use crate::random::Random;

const START: Timestamp = Timestamp::from_micros(1_356_998_400_000_000); // 2013-01-01

/// The wall clock of a node is at most so far from the time, in microseconds, when it is set.
const SKEW_MAX: u64 = 3_000_000;

/// The second phase has at most so many rounds.
const ROUNDS_MAX: u64 = 20_000;

/// What of a run is not drawn from its seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many steps the first phase has.
    pub steps: u64,
    /// How many of the last things that happened a failure shows.
    pub log: usize,
    /// The store, if it is not drawn as well.
    pub kind: Option<Kind>,
    /// A bug for the checkers to find.
    #[cfg(feature = "planted-bugs")]
    pub planted_bug: Option<crate::planted::PlantedBug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps: 600,
            log: 40,
            kind: None,
            #[cfg(feature = "planted-bugs")]
            planted_bug: None,
        }
    }
}

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Turns that were begun.
    pub turns: u64,
    /// Requests that were answered otherwise than that the store is not available.
    pub requests: u64,
    /// Attempts that left.
    pub attempts: u64,
    /// Openings of a shard.
    pub takings: u64,
    /// Of these, of a shard whose owner did not know.
    pub takings_over: u64,
    /// Of those, between the halves of a turn.
    pub takings_within: u64,
    /// Turns of owners that were replaced, and that let nothing out.
    pub fenced: u64,
    /// Turns that were refused because the store was not available.
    pub unavailable: u64,
    /// Commits whose answer was lost.
    pub lost: u64,
    /// Turns that let no attempt out, since the lease had ended.
    pub leases: u64,
    /// Owners that ended without notice.
    pub killed: u64,
    /// Times that several commits were made together.
    pub together: u64,
    /// Commits of which the next owner had to learn.
    pub adopted: u64,
    /// Shards that were handed over on purpose.
    pub hand_overs: u64,
    /// Machines that started anew.
    pub boots: u64,
    /// Wall clocks that were set.
    pub clock_steps: u64,
    /// Machines that slept.
    pub sleeps: u64,
    /// Statements that each fault of a server has struck.
    pub struck: SimulatedFaults,
    /// Standbys that took the place of a server.
    pub failovers: u64,
    /// Shards of which they lost what was acknowledged.
    pub rolled_back: u64,
    /// Owners of these that were told so.
    pub reported: u64,
    /// Timers done.
    pub done: u64,
    /// Timers removed or replaced before their end.
    pub removed: u64,
    /// Timers given up.
    pub dead: u64,
    /// Timers that were done and that the store has forgotten.
    pub forgotten: u64,
    /// A hash over everything that was let out, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.turns += other.turns;
        self.requests += other.requests;
        self.attempts += other.attempts;
        self.takings += other.takings;
        self.takings_over += other.takings_over;
        self.takings_within += other.takings_within;
        self.fenced += other.fenced;
        self.unavailable += other.unavailable;
        self.lost += other.lost;
        self.leases += other.leases;
        self.killed += other.killed;
        self.together += other.together;
        self.adopted += other.adopted;
        self.hand_overs += other.hand_overs;
        self.boots += other.boots;
        self.clock_steps += other.clock_steps;
        self.sleeps += other.sleeps;
        self.struck.add(other.struck);
        self.failovers += other.failovers;
        self.rolled_back += other.rolled_back;
        self.reported += other.reported;
        self.done += other.done;
        self.removed += other.removed;
        self.dead += other.dead;
        self.forgotten += other.forgotten;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} turns, {} requests, {} attempts; shards taken {} times, {} of them from an \
             owner that did not know, {} of those within its turn; {} turns fenced, {} refused, {} \
             answers lost, {} leases ended before an attempt, {} owners killed, {} times commits were made \
             together, {} commits learned of by the next owner; {} hand-overs, {} boots, {} clock steps, {} sleeps, \
             {} failovers that lost commits of {} shards, told to {} owners; {} done, {} removed, {} \
             dead, {} forgotten",
            self.seeds,
            self.turns,
            self.requests,
            self.attempts,
            self.takings,
            self.takings_over,
            self.takings_within,
            self.fenced,
            self.unavailable,
            self.lost,
            self.leases,
            self.killed,
            self.together,
            self.adopted,
            self.hand_overs,
            self.boots,
            self.clock_steps,
            self.sleeps,
            self.failovers,
            self.rolled_back,
            self.reported,
            self.done,
            self.removed,
            self.dead,
            self.forgotten,
        )?;
        if self.struck == SimulatedFaults::default() {
            return Ok(());
        }
        let struck = self.struck;
        write!(
            f,
            "; statements: {} without a connection, {} not sent, {} answers lost, {} late, {} refused, {} \
             without room, {} with a warning, {} slow, {} that hung",
            struck.away,
            struck.request_lost,
            struck.answer_lost,
            struck.late,
            struck.refused,
            struck.full,
            struck.unreplicated,
            struck.slow,
            struck.hangs,
        )
    }
}

/// Runs one seed.
///
/// # Errors
/// The first rule broken.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    #[cfg(feature = "planted-bugs")]
    let _planted = crate::planted::Planted::new(options.planted_bug);
    let mut world = World::new(seed, options);
    let result = world.live();
    let World {
        report, log, step, ..
    } = world;
    result
        .map(|()| report)
        .map_err(|what| log.failure(seed, step, what))
}

/// What the seed draws for the whole run.
struct Plan {
    shards: u16,
    names: u64,
    /// The longest delay asked for, the longest time between two steps, and the longest an attempt
    /// runs, in microseconds.
    horizon: u64,
    pace: u64,
    service: u64,
    /// Attempts in a hundred that fail, and that stop.
    failing: u64,
    stopping: u64,
    in_bulk: bool,
    /// One in so many steps.
    takes: u64,
    kills: u64,
    unavailable: u64,
    lost: u64,
    lease_ends: u64,
    hand_overs: u64,
    clock_steps: u64,
    upkeep: u64,
    sleeps: u64,
    /// Of a server that nodes are connected to.
    failovers: u64,
    lossy: u64,
    /// Whether stores believe that a failover loses nothing.
    believed: bool,
    /// For how long a commit is sent again.
    within: Duration,
}

/// A machine with clocks of its own.
struct Node {
    clock: ManualClock,
    store: Arc<dyn Kept>,
    /// What its engines share.
    budget: Budget,
    boots: u64,
}

/// An engine that has a shard, or had it and does not know.
struct Owner {
    node: usize,
    shard: Shard,
    fence: Fence,
    engine: Engine,
    seam: Arc<Seam>,
    /// Where its second time line stood, by which reading of the boot clock.
    origin: (Timestamp, Instant),
    within: Option<Within>,
    /// The outcomes that it keeps, since the store was not available.
    kept: Vec<Item>,
    /// The attempts that it let out, and when each ends.
    running: Vec<(u64, Attempt)>,
    /// It starts nothing any more, and goes after so many turns.
    leaving: Option<u64>,
    /// How many failovers there had been when it took the shard.
    failovers: u64,
}

/// A turn between its halves.
struct Within {
    turn: Turn,
    items: Vec<Item>,
    now: Now,
    /// What the commit came to, once it is made.
    committed: Option<Result<(), StoreError>>,
}

struct World {
    plan: Plan,
    config: Config,
    shared: Arc<Shared>,
    nodes: Vec<Node>,
    owners: Vec<Owner>,
    /// By shard: a commit of which no owner knows, and how far openings may have moved the line.
    doubts: Vec<Option<Doubt>>,
    slack: Vec<u64>,
    /// Those of which a failover lost what was acknowledged, until they are taken.
    rolled_back: Vec<bool>,
    model: Model,
    order: Random,
    clients: Random,
    receivers: Random,
    /// Whose commits are made together.
    groups: Random,
    faults: Random,
    next_ticket: u64,
    healing: bool,
    steps: u64,
    step: u64,
    report: Report,
    log: Log,
}

impl World {
    fn new(seed: u64, options: &Options) -> Self {
        let mut draw = Random::new(seed, "plan of shards");
        let horizon = *draw.pick(&[10_000, 1_000_000, 60_000_000, 3_600_000_000]);
        let plan = Plan {
            shards: u16::try_from(draw.between(1, 8)).unwrap_or(1),
            names: *draw.pick(&[2, 8, 24]),
            horizon,
            pace: (horizon / *draw.pick(&[10, 50, 300])).max(1),
            service: *draw.pick(&[1, horizon / 20, horizon]),
            failing: *draw.pick(&[0, 20, 60]),
            stopping: *draw.pick(&[0, 2]),
            in_bulk: draw.one_in(2),
            takes: *draw.pick(&[0, 15, 60]),
            kills: *draw.pick(&[0, 0, 20, 60]),
            unavailable: *draw.pick(&[0, 10, 60]),
            lost: *draw.pick(&[0, 0, 20]),
            lease_ends: *draw.pick(&[0, 0, 30]),
            hand_overs: *draw.pick(&[0, 3, 10, 40]),
            clock_steps: *draw.pick(&[0, 0, 40]),
            upkeep: *draw.pick(&[0, 10]),
            sleeps: 0,
            failovers: 0,
            lossy: 0,
            believed: false,
            within: Duration::ZERO,
        };
        let retry = Duration::from_micros(*draw.pick(&[1_000, 100_000, 5_000_000]));
        let mut config = Config {
            window: usize::try_from(*draw.pick(&[2, 8, 100_000])).unwrap_or(2),
            max_in_flight: usize::try_from(*draw.pick(&[1, 3, 256])).unwrap_or(1),
            catch_up_per_second: *draw.pick(&[10, 1_000]),
            // Longer than any run.
            keep_done: Duration::from_secs(1_000 * 86_400),
            max_interruptions: *draw.pick(&[2, 3, 10]),
            suspect_hold: Duration::from_micros(*draw.pick(&[0, 50_000, 1_000_000])),
            seed: draw.draw(),
            ..Config::default()
        };
        let mut clocks = Random::new(seed, "clocks of nodes");
        let time = Arc::new(Clocks::default());
        let nodes = 0..draw.between(1, 3);
        let machines = nodes.map(|node| {
            let clock = ManualClock::at(START + Duration::from_micros(clocks.below(SKEW_MAX)));
            clock.reboot(boot_id(node, 0));
            let rate = clocks.below(2 * RATE_MAX + 1);
            time.add(clock.clone(), rate.cast_signed() - RATE_MAX.cast_signed());
            clock
        });
        let machines: Vec<_> = machines.collect();
        let kinds = [Kind::Memory, Kind::Memory, Kind::Log, Kind::Tables];
        let kind = options.kind.unwrap_or(*draw.pick(&kinds));
        let mut plan = plan;
        let watch = (kind == Kind::Postgres).then(|| {
            let (watch, kept) = plan.connect(seed, &time);
            config.keep_done = kept;
            watch
        });
        let store: Arc<dyn Kept> = match &watch {
            Some(watch) => {
                let observer = watch.server.observer();
                connected(&observer, 0, &watch.clock, plan.within)
            }
            None => {
                let opened = Machine::new(kind, seed).open();
                let opened =
                    opened.unwrap_or_else(|error| unreachable!("a healthy disk opens: {error}"));
                Arc::from(opened)
            }
        };
        let nodes = machines.into_iter().enumerate().map(|(node, clock)| Node {
            store: match &watch {
                Some(watch) => connected(&watch.server, node, &clock, plan.within),
                None => store.clone(),
            },
            clock,
            budget: Budget::new(&config),
            boots: 0,
        });
        let nodes = nodes.collect();
        let model = Model::new(config.max_interruptions, config.keep_done, retry);
        Self {
            doubts: (0..plan.shards).map(|_| None).collect(),
            slack: vec![0; usize::from(plan.shards)],
            rolled_back: vec![false; usize::from(plan.shards)],
            plan,
            config,
            shared: Arc::new(Shared::new(store, time, watch)),
            nodes,
            owners: Vec::new(),
            model,
            order: Random::new(seed, "order of shards"),
            clients: Random::new(seed, "clients of shards"),
            receivers: Random::new(seed, "receivers of shards"),
            groups: Random::new(seed, "groups of shards"),
            faults: Random::new(seed, "faults of shards"),
            next_ticket: 0,
            healing: false,
            steps: options.steps,
            step: 0,
            report: Report {
                seeds: 1,
                ..Report::default()
            },
            log: Log::new(options.log),
        }
    }

    fn live(&mut self) -> Result<(), String> {
        while self.step < self.steps {
            self.step += 1;
            let span = *self.order.pick(&[0, self.plan.pace / 20, self.plan.pace]);
            let span = self.order.below(span + 1);
            self.pass(span);
            self.fail_something()?;
            self.act()?;
        }
        self.heal()?;
        let Model {
            done,
            removed,
            dead,
            forgotten,
            ..
        } = self.model;
        (self.report.done, self.report.removed, self.report.dead) = (done, removed, dead);
        self.report.forgotten = forgotten;
        if let Some(watch) = &self.shared.watch {
            watch.look_at_all()?;
            self.report.reported = watch.reported();
            self.report.struck = watch.server.struck();
        }
        self.report.trace = self.log.hash;
        Ok(())
    }

    /// Time passes for all.
    fn pass(&self, micros: u64) {
        self.shared.clocks.pass(micros);
    }

    fn time(&self) -> u64 {
        self.shared.clocks.time()
    }

    /// Somebody goes on, or takes a shard that nobody has.
    fn act(&mut self) -> Result<(), String> {
        let free: Vec<_> = self
            .shards()
            .filter(|shard| self.owner_of(*shard).is_none())
            .collect();
        if !free.is_empty() && (self.owners.is_empty() || self.order.one_in(3)) {
            let shard = *self.order.pick(&free);
            let node = self.order.below(self.nodes.len() as u64);
            return self.take(shard, usize::try_from(node).unwrap_or(0));
        }
        if self.owners.is_empty() {
            return Ok(());
        }
        let index = self.order.below(self.owners.len() as u64);
        self.go_on(usize::try_from(index).unwrap_or(0))
    }

    fn fail_something(&mut self) -> Result<(), String> {
        if self.faults.one_in(self.plan.upkeep) {
            let which = self.faults.draw();
            let kept = self.shared.store.upkeep(which);
            kept.map_err(|error| format!("upkeep: {error}"))?;
        }
        if self.faults.one_in(self.plan.clock_steps) {
            let node = self.faults.below(self.nodes.len() as u64);
            let to = START + Duration::from_micros(self.time() + self.faults.below(SKEW_MAX));
            self.log.note(format!("node {node}: the wall clock is set"));
            self.nodes[usize::try_from(node).unwrap_or(0)]
                .clock
                .set_timestamp(to);
            self.report.clock_steps += 1;
        }
        if self.faults.one_in(self.plan.sleeps) {
            let node = self.faults.below(self.nodes.len() as u64);
            self.log.note(format!("node {node} sleeps"));
            let span = self.faults.below(self.plan.horizon + 1);
            let node = usize::try_from(node).unwrap_or(0);
            self.shared.clocks.sleep(node, span);
            self.report.sleeps += 1;
        }
        if self.faults.one_in(self.plan.takes) {
            let shard = self.faults.below(u64::from(self.plan.shards));
            let shard = Shard(u16::try_from(shard).unwrap_or(0));
            let node = self.faults.below(self.nodes.len() as u64);
            self.take(shard, usize::try_from(node).unwrap_or(0))?;
        }
        if self.faults.one_in(self.plan.failovers) {
            self.fail_over();
        }
        if self.owners.is_empty() {
            return Ok(());
        }
        let index = self.faults.below(self.owners.len() as u64);
        let index = usize::try_from(index).unwrap_or(0);
        if self.faults.one_in(self.plan.unavailable) {
            let unavailable = (self.faults.below(4), self.faults.between(1, 3));
            self.owners[index].seam.faults.lock().unavailable = Some(unavailable);
        }
        if self.faults.one_in(self.plan.lost) {
            self.owners[index].seam.faults.lock().lost = Some(self.faults.one_in(2));
        }
        if self.faults.one_in(self.plan.lease_ends) {
            self.note(index, "the lease ends");
            self.owners[index].seam.faults.lock().lease_ended = true;
        }
        let owner = &mut self.owners[index];
        if self.faults.one_in(self.plan.hand_overs)
            && owner.within.is_none()
            && owner.leaving.is_none()
        {
            owner.engine.pause();
            owner.leaving = Some(self.faults.below(3));
            self.note(index, "pauses");
        }
        if self.faults.one_in(self.plan.kills) {
            if self.faults.one_in(3) {
                self.boot(self.owners[index].node);
            } else {
                self.note(index, "is killed");
                self.owners.remove(index);
                self.report.killed += 1;
            }
        }
        Ok(())
    }

    /// A standby takes the place of the server, at times without the last commits.
    fn fail_over(&mut self) {
        let shared = self.shared.clone();
        let Some(watch) = &shared.watch else {
            return;
        };
        let lost = match self.faults.one_in(self.plan.lossy) {
            true => self.faults.between(1, 6),
            false => 0,
        };
        let before: Vec<_> = self.shards().map(|shard| shared.owner(shard)).collect();
        let lost = watch.server.fail_over(usize::try_from(lost).unwrap_or(0));
        self.log.note(format!("the server fails over: {lost:?}"));
        self.report.failovers += 1;
        for shard in lost.into_keys() {
            let index = usize::from(shard.0);
            let owner = before[index].unwrap_or_default();
            self.report.rolled_back += 1;
            self.rolled_back[index] = true;
            self.doubts[index] = None;
            watch.lost(shard, owner);
        }
    }

    /// Whether another server has taken the place of the one where it took the shard, and may have lost
    /// commits: then its ownership is over, whether this one has lost any or not.
    fn is_promoted(&self, index: usize) -> bool {
        !self.plan.believed && self.owners[index].failovers < self.report.failovers
    }

    /// A machine starts anew, after a while.
    fn boot(&mut self, node: usize) {
        self.log.note(format!("node {node} starts anew"));
        let before = self.owners.len();
        self.owners.retain(|owner| owner.node != node);
        self.report.killed += (before - self.owners.len()) as u64;
        self.report.boots += 1;
        let off = self.faults.below(self.plan.pace + 1);
        self.pass(off);
        let node_id = node as u64;
        let node = &mut self.nodes[node];
        node.boots += 1;
        node.clock.reboot(boot_id(node_id, node.boots));
        if let Some(watch) = &self.shared.watch {
            let index = usize::try_from(node_id).unwrap_or(0);
            node.store = connected(&watch.server, index, &node.clock, self.plan.within);
        }
    }

    /// Where engines are opened: what those of one node share is given to them here.
    fn open_engine(
        &self,
        seam: &Arc<Seam>,
        shard: Shard,
        node: usize,
    ) -> Result<Engine, StoreError> {
        let Node { clock, budget, .. } = &self.nodes[node];
        let (clock, config) = (Arc::new(clock.clone()), self.config.clone());
        Engine::open_within(budget, seam.clone(), shard, clock, config)
    }

    /// A node takes a shard, whoever has it.
    fn take(&mut self, shard: Shard, node: usize) -> Result<(), String> {
        let of_node = &self.nodes[node];
        let seam = Seam::new(
            self.shared.clone(),
            (of_node.store.clone(), of_node.clock.clone()),
            self.plan.in_bulk,
        );
        let seam = Arc::new(seam);
        if !self.healing && self.faults.one_in(self.plan.unavailable) {
            seam.faults.lock().unavailable = Some((self.faults.below(4), 1));
        }
        seam.faults.lock().began = self.time();
        let before = self.owner_of(shard);
        let opened = self.open_engine(&seam, shard, node);
        self.look()?;
        self.log.note(format!(
            "{} node {node} takes {shard:?}: {:?}",
            self.time(),
            opened.as_ref().map(drop)
        ));
        let engine = match opened {
            Ok(engine) => engine,
            Err(StoreError::Unavailable { .. }) if seam.faults.lock().struck || self.may_fail() => {
                return Ok(());
            }
            Err(error) => return Err(format!("{shard:?} cannot be opened: {error}")),
        };
        self.report.takings += 1;
        if let Some(before) = before {
            self.report.takings_over += 1;
            self.report.takings_within += u64::from(self.owners[before].within.is_some());
        }
        seam.faults.lock().unavailable = None;
        seam.faults.lock().struck = false;
        let origin = self.look_at_line(&engine, &seam, shard, node)?;
        let fence = seam.faults.lock().fence;
        self.owners.push(Owner {
            node,
            shard,
            fence,
            engine,
            seam,
            origin,
            within: None,
            kept: Vec::new(),
            running: Vec::new(),
            leaving: None,
            failovers: self.report.failovers,
        });
        if let Some(doubt) = self.doubts[usize::from(shard.0)].take()
            && self.is_made(shard, &doubt)
        {
            self.model.adopt(&doubt)?;
            self.report.adopted += 1;
        }
        if std::mem::take(&mut self.rolled_back[usize::from(shard.0)]) {
            for name in self.names_of(shard) {
                let record = self.record(shard, &name)?;
                self.model.goes_back(&name, record.as_ref())?;
            }
        }
        for name in self.names_of(shard) {
            self.model.taken(&name);
            self.compare(shard, &name)?;
        }
        Ok(())
    }

    /// Whether a commit was made, of which its owner may not know.
    fn is_made(&self, shard: Shard, doubt: &Doubt) -> bool {
        match (&self.shared.watch, doubt.lost) {
            (Some(watch), Some(fence)) => watch.is_made(shard, fence),
            _ => true,
        }
    }

    fn record(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, String> {
        let record = self.shared.store.get(shard, name);
        record.map_err(|error| format!("{name} cannot be read: {error}"))
    }

    fn compare(&mut self, shard: Shard, name: &TimerName) -> Result<(), String> {
        let record = self.record(shard, name)?;
        let time = START + Duration::from_micros(self.time());
        self.model.compare(name, record.as_ref(), time)
    }

    /// A new owner carries the line of delays on: in the same boot exactly, else as far off as the two
    /// wall clocks differ, that of the last note and its own. Says where its line begins.
    fn look_at_line(
        &mut self,
        engine: &Engine,
        seam: &Seam,
        shard: Shard,
        node: usize,
    ) -> Result<(Timestamp, Instant), String> {
        let clock = &self.nodes[node].clock;
        let (wall, boot) = (clock.timestamp(), clock.boot());
        let ahead = engine.stats().line_skew_micros;
        let line = Timestamp::from_micros(wall.as_micros().saturating_add_signed(-ahead));
        let Some(note) = seam.faults.lock().acquired else {
            return Ok((line, boot));
        };
        let went = signed(line) - signed(note.line);
        if note.boot_id == clock.boot_id() && boot >= note.boot {
            let passed = i128::from(boot.as_nanos() - note.boot.as_nanos()) / 1_000;
            if went != passed {
                return Err(format!(
                    "the line of {shard:?} went on by {went} µs in {passed} µs of the same boot"
                ));
            }
            return Ok((note.line, note.boot));
        }
        let seen = self.shared.seen.lock();
        let noted = seen.noted(shard, note);
        let noted = noted.ok_or_else(|| format!("nobody noted {note:?} of {shard:?}"))?;
        let passed = i128::from(self.shared.clocks.time() - noted);
        let differ = signed(wall) - signed(note.wall) - passed;
        // The clock drifts while the opening waits for the store.
        if (went - passed).unsigned_abs() > differ.unsigned_abs() + drift(passed) + 2 {
            return Err(format!(
                "the line of {shard:?} went on by {went} µs in {passed} µs, and the wall clocks \
                 differ by {differ} µs"
            ));
        }
        self.slack[usize::from(shard.0)] += moved(went, passed);
        Ok((line, boot))
    }

    /// From here on nothing fails, and everything comes to its end.
    fn heal(&mut self) -> Result<(), String> {
        self.log.note("everything works from here".to_owned());
        self.healing = true;
        let shared = self.shared.clone();
        if let Some(watch) = &shared.watch {
            watch.server.set_faults(SimulatedFaults::default());
            watch.may_fail.store(false, Ordering::Relaxed);
        }
        self.owners.retain(|owner| {
            let mut faults = owner.seam.faults.lock();
            (faults.unavailable, faults.lost) = (None, None);
            let is_current = shared.owner(owner.shard) == Some(owner.fence);
            is_current && !faults.lease_ended && owner.leaving.is_none()
        });
        // Every receiver answers now: one by one they may take longer than there are rounds.
        let time = self.time();
        for owner in &mut self.owners {
            owner.running.iter_mut().for_each(|(end, _)| *end = time);
        }
        for _ in 0..ROUNDS_MAX {
            self.step += 1;
            for shard in self.shards() {
                // Both halves of a turn, and the commit between them.
                for _ in 0..3 {
                    match self.owner_of(shard) {
                        Some(index) => self.go_on(index)?,
                        None => self.take(shard, usize::from(shard.0) % self.nodes.len())?,
                    }
                }
            }
            // A shard without names has no request that would tell its owner of a loss.
            let mut shards = self.shards();
            let is_behind = shards.any(|shard| {
                self.rolled_back[usize::from(shard.0)] && !self.names_of(shard).is_empty()
            });
            if self.model.unended().next().is_none() && !is_behind {
                for shard in self.shards() {
                    for name in self.names_of(shard) {
                        self.compare(shard, &name)?;
                    }
                }
                return Ok(());
            }
            let time = self.time();
            let wakes = self.owners.iter().filter_map(|owner| {
                let wall = self.nodes[owner.node].clock.timestamp();
                let wait = owner.engine.next_wake()?.saturating_since(wall);
                u64::try_from(wait.as_micros()).ok()
            });
            let ends = self.owners.iter().flat_map(|owner| &owner.running);
            let ends = ends.map(|(end, _)| end.saturating_sub(time));
            // As a runner does, which asks again.
            let wait = wakes.chain(ends).min().unwrap_or(1_000_000);
            self.pass(wait.clamp(1, 3_600_000_000));
        }
        let left: Vec<_> = self.model.unended().map(TimerName::to_string).collect();
        Err(format!("no end of {}", left.join(", ")))
    }

    fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.plan.shards).map(Shard)
    }

    /// Whether the server may fail.
    fn may_fail(&self) -> bool {
        self.shared.watch.as_ref().is_some_and(Watch::may_fail)
    }

    /// The names of a shard.
    fn names_of(&self, shard: Shard) -> Vec<TimerName> {
        let names = (0..self.plan.names).filter(|name| {
            let of = name.wrapping_mul(7) % u64::from(self.plan.shards);
            of == u64::from(shard.0)
        });
        let names =
            names.map(|name| TimerName::new(format!("queue-{}", name % 3), name.to_string()));
        names.filter_map(Result::ok).collect()
    }

    /// Who may work on a shard.
    fn owner_of(&self, shard: Shard) -> Option<usize> {
        let fence = self.shared.owner(shard)?;
        let mut owners = self.owners.iter();
        owners.position(|it| (it.shard, it.fence) == (shard, fence))
    }

    /// The time as an owner has it.
    fn now(&self, index: usize) -> Now {
        let owner = &self.owners[index];
        let clock = &self.nodes[owner.node].clock;
        let (line, boot) = owner.origin;
        let passed = clock.boot().saturating_since(boot).as_micros();
        Now {
            time: self.time(),
            wall: clock.timestamp(),
            line: line + Duration::from_micros(u64::try_from(passed).unwrap_or(u64::MAX)),
            slack: self.slack[usize::from(owner.shard.0)],
        }
    }

    /// What the store must never do.
    fn look(&self) -> Result<(), String> {
        self.shared.seen.lock().broken.take().map_or(Ok(()), Err)
    }

    fn note(&mut self, index: usize, what: impl fmt::Display) {
        let time = self.time();
        let owner = &self.owners[index];
        let (shard, fence, node) = (owner.shard.0, owner.fence.0, owner.node);
        self.log.note(format!(
            "{time} shard {shard}, owner {fence} on node {node}: {what}"
        ));
    }

    /// Something that a client asks of a shard, and that is not done without a commit.
    fn draw_set(&mut self, shard: Shard) -> Option<Request> {
        let names = self.names_of(shard);
        let name = names.first()?.clone();
        Some(Request::Set {
            name,
            due: Due::In(Duration::ZERO),
            policy: RetryPolicy::fixed(self.model.retry),
            payload: Vec::new(),
            precondition: Precondition::None,
            options: SetOptions::default(),
        })
    }

    /// Something that a client asks of a shard.
    fn draw_request(&mut self, shard: Shard, wall: Timestamp) -> Option<Request> {
        let names = self.names_of(shard);
        if names.is_empty() {
            return None;
        }
        let name = self.clients.pick(&names).clone();
        let span = Duration::from_micros(self.clients.below(self.plan.horizon + 1));
        let due = match self.clients.below(3) {
            0 => Due::At(wall + span),
            _ => Due::In(span),
        };
        Some(match self.clients.below(9) {
            0..=4 => Request::Set {
                name,
                due,
                policy: RetryPolicy::fixed(self.model.retry),
                payload: self.clients.draw().to_string().into_bytes(),
                precondition: Precondition::None,
                options: SetOptions::default(),
            },
            5..=6 => Request::Move {
                name,
                shift: *self.clients.pick(&[
                    Shift::To(due),
                    Shift::Later(span),
                    Shift::Sooner(span),
                ]),
                precondition: Precondition::None,
            },
            7 => Request::Remove {
                name,
                precondition: Precondition::None,
                only_pending: false,
            },
            _ => Request::Fire { name },
        })
    }
}

impl Plan {
    /// Connects the nodes to a server, and draws what goes wrong there in place of what the seam does
    /// to a commit. Says for how long done timers are kept, too.
    fn connect(&mut self, seed: u64, clocks: &Arc<Clocks>) -> (Watch, Duration) {
        let mut draw = Random::new(seed, "server of shards");
        let passing = clocks.clone();
        let shards = Shards::new(self.shards).unwrap_or(Shards::ONE);
        // The shortest is still so long that no two clocks are half a slice apart. Some keep for longer
        // than the cluster was made for.
        let mut kept = Random::new(seed, "how long done timers are kept");
        let day = 86_400;
        let plans = [
            (240, 240),
            (240, 600),
            (600, 600),
            (1_000 * day, 1_000 * day),
        ];
        let (longest, kept) = *kept.pick(&plans);
        let (longest, kept) = (Duration::from_secs(longest), Duration::from_secs(kept));
        let clock = ManualClock::at(START);
        clocks.add(clock.clone(), 0);
        let server =
            SimulatedPostgres::keeping(shards, seed, longest, Arc::new(clock), move |pause| {
                passing.pass(u64::try_from(pause.as_micros()).unwrap_or(0));
            });
        (self.unavailable, self.lost) = (0, 0);
        self.failovers = *draw.pick(&[0, 0, 60, 150]);
        self.lossy = *draw.pick(&[0, 1, 2]);
        self.believed = self.lossy == 0 || draw.one_in(4);
        // Some shards are counted while they are at work.
        server.set_counted_at_once(1);
        server.set_durability(match self.believed {
            true => Durability::Standby,
            false => Durability::OneMachine,
        });
        self.within = Duration::from_secs(*draw.pick(&[0, 1, 30]));
        let mut faults = SimulatedFaults::default();
        faults.away = *draw.pick(&[0, 0, 50, 300]);
        faults.request_lost = *draw.pick(&[0, 30, 200]);
        faults.answer_lost = *draw.pick(&[0, 6, 40]);
        faults.late = *draw.pick(&[0, 5, 30, 200]);
        faults.refused = *draw.pick(&[0, 10, 80]);
        faults.full = *draw.pick(&[0, 0, 100]);
        faults.unreplicated = *draw.pick(&[0, 3, 20]);
        faults.slow = *draw.pick(&[0, 0, 5, 60]);
        faults.hangs = *draw.pick(&[0, 0, 200]);
        self.sleeps = *draw.pick(&[0, 0, 60]);
        server.set_faults(faults);
        (Watch::new(server, seed), kept)
    }
}

/// Whether it is the request of an owner that has to hear of a loss: no other has an empty payload.
fn is_drawn_set(item: &Item) -> bool {
    matches!(item, Item::Request(_, Request::Set { payload, .. }) if payload.is_empty())
}

/// A node's connections to a server.
fn connected(
    server: &SimulatedPostgres,
    node: usize,
    clock: &ManualClock,
    within: Duration,
) -> Arc<dyn Kept> {
    let clock = Arc::new(clock.clone());
    let store = PostgresStore::on_simulated(server, node as u128, clock, within);
    Arc::new(store)
}

fn boot_id(node: u64, boot: u64) -> BootId {
    BootId::from_u128(u128::from(node + 1) << 64 | u128::from(boot + 1))
}

fn signed(timestamp: Timestamp) -> i128 {
    i128::from(timestamp.as_micros())
}

/// How early an opening may have made timers by true time, whose line went on by `went` in `passed`
/// microseconds since the last note, on a clock that did not run before. No timer is early by the line:
/// the line itself was moved.
///
/// The line parts from true time by as much as the two wall clocks do, less if it stood still. The owner
/// before decided deadlines after its note as well, by a boot clock that has drifted since then, and no
/// note says how far. Both wall times are whole microseconds.
fn moved(went: i128, passed: i128) -> u64 {
    let moved = (went - passed).unsigned_abs() + drift(passed) + 2;
    u64::try_from(moved).unwrap_or(u64::MAX)
}

/// By how much a clock drifts from true time at the most.
fn drift(passed: i128) -> u128 {
    (passed.unsigned_abs() * u128::from(RATE_MAX)).div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a world that was thought to break the rule: an owner whose boot clock had lost 7 µs in the
    /// 100,450 µs since its note decided a deadline 3,566 µs ahead. The wall clock of the next was 811 µs
    /// ahead, and the timer started after 2,749 µs.
    #[test]
    fn the_drift_of_the_owner_before_counts_from_its_note() {
        let drift = 7;
        let early = 3_566 - 2_749;
        assert!(moved(101_930, 101_119) >= 811 + drift);
        assert!(moved(101_930, 101_119) + 2 >= early);
        assert!(
            moved(100_000, 101_119) >= 1_119 + drift,
            "it may be behind as well"
        );
        assert_eq!(moved(0, 0), 2, "it hides nothing else");
    }
}
