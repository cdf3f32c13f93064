//! Nodes with leases on the simulated server: they renew, stop, sleep, go on, take from each other, give and
//! leave, each by a clock of its own, while statements get lost, come late and are refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::{Node, NodeId, Registry, RegistryError};
use countwheel_durable::store::{Change, Fence, Lease, Shard, Store, StoreError};
use countwheel_durable::{Revision, Shards};
use countwheel_time::{ManualClock, Random, Timestamp};
use parking_lot::Mutex;

use super::{SimulatedFaults, SimulatedPostgres};
use crate::{PostgresRegistry, PostgresStore};

const START: Timestamp = Timestamp::from_micros(1_356_998_400_000_000); // 2013-01-01
const STEPS: u64 = 300;
/// So many names of nodes.
const NAMES: u64 = 3;
/// Nodes that have been started. More are not looked at.
const NODES_MAX: usize = 6;
/// No clock is faster or slower by more, in millionths: a quarter of a second in the longest lease.
const DRIFT_MAX: u64 = 4_000;
const SECOND: Duration = Duration::from_secs(1);

/// What nodes have done. See [`leases`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Leases {
    /// Shards that were taken.
    pub taken: u64,
    /// Of these, shards that were taken with others at once.
    pub at_once: u64,
    /// Takings that were refused, as of a shard whose owner lives.
    pub refused: u64,
    /// Looks that renewed.
    pub renewed: u64,
    /// Leases that were believed again after they were over, with something still owned.
    pub kept: u64,
    /// Shards that were given away.
    pub given: u64,
    /// Nodes that left.
    pub left: u64,
    /// Nodes that had to join again.
    pub rejoined: u64,
    /// Nodes that were refused, since their name was taken.
    pub name_taken: u64,
    /// Commits that were made.
    pub committed: u64,
}

impl Leases {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.at_once += other.at_once;
        self.refused += other.refused;
        self.renewed += other.renewed;
        self.kept += other.kept;
        self.given += other.given;
        self.left += other.left;
        self.rejoined += other.rejoined;
        self.name_taken += other.name_taken;
        self.committed += other.committed;
    }
}

/// Lets nodes do what is drawn from `seed`, and demands at every moment: an attempt may start only while its
/// owner's token is the one in the tables, nothing is committed under a token that was let go, a lease that is
/// renewed in time keeps everybody else out, and one that is over keeps nobody out.
///
/// ```
/// use countwheel_postgres::testing::leases;
///
/// assert!(leases(7)?.taken > 0);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// What is wrong.
pub fn leases(seed: u64) -> Result<Leases, String> {
    a_lease_ends_within_a_taking(seed)?;
    a_lease_is_renewed_within_a_takeover(seed)?;
    a_shard_is_let_go_within_a_commit(seed)?;
    a_shard_is_let_go_late(seed)?;
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.act()?;
        world.look()?;
    }
    world.heal()?;
    Ok(world.report)
}

/// The clock of the server, and those of the nodes with how much faster they are, in millionths.
#[derive(Clone)]
struct Clocks {
    truth: ManualClock,
    nodes: Arc<Mutex<Vec<(ManualClock, i64)>>>,
}

impl Clocks {
    fn new() -> Self {
        Self {
            truth: ManualClock::at(START),
            nodes: Arc::default(),
        }
    }

    fn add(&self, faster: i64) -> ManualClock {
        let clock = ManualClock::at(START);
        self.nodes.lock().push((clock.clone(), faster));
        clock
    }

    /// Time passes. The machine of one node may sleep meanwhile.
    fn pass(&self, span: Duration, sleeper: Option<usize>) {
        self.truth.advance(span);
        for (at, (clock, faster)) in self.nodes.lock().iter().enumerate() {
            let micros = i64::try_from(span.as_micros()).unwrap_or(0);
            let own = micros + micros * faster / 1_000_000;
            let own = Duration::from_micros(own.unsigned_abs());
            match sleeper == Some(at) {
                true => clock.suspend(own),
                false => clock.advance(own),
            }
        }
    }
}

struct Process {
    node: Node,
    store: PostgresStore,
    registry: PostgresRegistry,
    /// What it has taken, and may have lost.
    leases: BTreeMap<Shard, Lease>,
}

impl Process {
    fn new(server: &SimulatedPostgres, clock: ManualClock, (id, name): (u128, String)) -> Self {
        // What is given up is given up at once, so that it may come late.
        let store = PostgresStore::on_simulated(server, id, Arc::new(clock), Duration::ZERO);
        Self {
            node: Node {
                id: NodeId(id),
                api: format!("http://{name}.example"),
                name,
                peers: None,
                weight: 100,
                version: "1".to_owned(),
                zones: "2026a".to_owned(),
            },
            registry: store.registry(),
            store,
            leases: BTreeMap::new(),
        }
    }

    fn starts(&self, shard: Shard) -> bool {
        let lease = self.leases.get(&shard);
        lease.is_some_and(|lease| self.store.may_start(*lease))
    }
}

struct World {
    server: SimulatedPostgres,
    clocks: Clocks,
    random: Random,
    shards: u16,
    lease: Duration,
    processes: Vec<Process>,
    /// How many ids of nodes were drawn.
    nodes: u128,
    /// What was let go, and how many turns were made under it by then.
    let_go: BTreeMap<(Shard, Fence), u64>,
    revision: u64,
    report: Leases,
}

fn server(shards: u16, seed: u64, clocks: &Clocks) -> SimulatedPostgres {
    let passing = clocks.clone();
    let shards = Shards::new(shards).unwrap_or(Shards::ONE);
    let clock = Arc::new(clocks.truth.clone());
    let day = Duration::from_secs(86_400);
    SimulatedPostgres::keeping(shards, seed, day, clock, move |pause| {
        passing.pass(pause, None);
    })
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let clocks = Clocks::new();
        let shards = 1 + u16::try_from(random.below(3)).unwrap_or(0);
        let lease = [2, 5, 60][usize::try_from(random.below(3)).unwrap_or(0)];
        let mut world = Self {
            server: server(shards, seed, &clocks),
            clocks,
            random,
            shards,
            lease: Duration::from_secs(lease),
            processes: Vec::new(),
            nodes: 0,
            let_go: BTreeMap::new(),
            revision: 0,
            report: Leases::default(),
        };
        for name in 0..2 {
            world.start(name);
        }
        world.draw_faults();
        world
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    fn draw_faults(&mut self) {
        let mut faults = SimulatedFaults::default();
        for (fault, odds) in [
            (&mut faults.away, 40),
            (&mut faults.request_lost, 40),
            (&mut faults.answer_lost, 20),
            (&mut faults.late, 10),
            (&mut faults.refused, 40),
            (&mut faults.unreplicated, 20),
            (&mut faults.slow, 10),
        ] {
            if self.random.below(2) == 0 {
                *fault = odds;
            }
        }
        self.server.set_faults(faults);
    }

    fn next_id(&mut self) -> NodeId {
        self.nodes += 1;
        NodeId(self.nodes)
    }

    /// A process starts. One of the same name before it goes on, as one that was cut off does.
    fn start(&mut self, name: u64) {
        let faster = self.random.below(2 * DRIFT_MAX + 1);
        let faster = faster.cast_signed() - DRIFT_MAX.cast_signed();
        let clock = self.clocks.add(faster);
        let id = self.next_id().0;
        let process = Process::new(&self.server, clock, (id, format!("node-{name}")));
        self.processes.push(process);
        self.join(self.processes.len() - 1);
    }

    fn join(&mut self, at: usize) {
        let process = &self.processes[at];
        let joined = process.registry.join(&process.node, self.lease);
        if let Err(RegistryError::NameTaken { .. }) = joined {
            self.report.name_taken += 1;
        }
    }

    fn renew(&mut self, at: usize, renew: bool) {
        let process = &self.processes[at];
        let shards = || (0..self.shards).map(Shard);
        let before = shards().any(|shard| process.starts(shard));
        match process.registry.look(renew) {
            Ok(_) => {
                self.report.renewed += u64::from(renew);
                let after = shards().any(|shard| process.starts(shard));
                self.report.kept += u64::from(after && !before);
            }
            Err(RegistryError::NotJoined) => {
                self.report.rejoined += 1;
                self.join(at);
            }
            Err(_) => {}
        }
    }

    fn take(&mut self, at: usize, shard: Shard) {
        let process = &mut self.processes[at];
        match process.store.acquire(shard) {
            Ok(ownership) => {
                self.report.taken += 1;
                process.leases.insert(shard, ownership.lease);
            }
            Err(_) => self.report.refused += 1,
        }
    }

    /// Takes all shards that it does not have, as far as it may.
    fn take_at_once(&mut self, at: usize) {
        let process = &self.processes[at];
        let shards = (0..self.shards).map(Shard);
        let shards: Vec<_> = shards.filter(|it| !process.starts(*it)).collect();
        let taken = process.registry.take(&shards).unwrap_or_default();
        let is_late = self.one_in(4);
        for shard in taken {
            self.report.at_once += 1;
            // At times nobody goes on with it.
            if !is_late {
                self.take(at, shard);
            }
        }
    }

    fn commit(&mut self, at: usize, shard: Shard) {
        self.revision += 1;
        let process = &self.processes[at];
        if let Some(lease) = process.leases.get(&shard) {
            let changes = [Change::Given(Revision(self.revision))];
            let committed = process.store.commit(*lease, &changes);
            self.report.committed += u64::from(committed.is_ok());
        }
    }

    fn give(&mut self, at: usize, shard: Shard, to: Option<usize>) {
        let to = to.map(|to| self.processes[to].node.id);
        let process = &self.processes[at];
        if let Ok(true) = process.registry.give(shard, to)
            && let Some(lease) = process.leases.get(&shard)
        {
            self.report.given += 1;
            self.note(*lease);
        }
    }

    fn leave(&mut self, at: usize) {
        let next = self.next_id();
        let process = &mut self.processes[at];
        let has_left = process.registry.leave().is_ok();
        // Who has left comes back as another.
        process.node.id = next;
        if has_left {
            self.report.left += 1;
            let leases: Vec<_> = process.leases.values().copied().collect();
            for lease in leases {
                self.note(lease);
            }
        }
    }

    /// Nothing may be committed under the lease any more.
    fn note(&mut self, lease: Lease) {
        let turns = self.server.turns(lease.shard, lease.fence);
        self.let_go
            .entry((lease.shard, lease.fence))
            .or_insert(turns);
    }

    fn act(&mut self) -> Result<(), String> {
        let at = usize::try_from(self.random.below(self.processes.len() as u64)).unwrap_or(0);
        let shard = Shard(u16::try_from(self.random.below(self.shards.into())).unwrap_or(0));
        let lease = self.lease;
        match self.random.below(40) {
            0..=9 => {
                let spans = [lease / 40, lease / 10, lease / 4, lease, SECOND / 4];
                let span = spans[usize::try_from(self.random.below(5)).unwrap_or(0)];
                let sleeper = self.one_in(4).then_some(at);
                self.clocks.pass(span, sleeper);
            }
            10..=20 => self.renew(at, true),
            21 => self.renew(at, false),
            22..=23 => self.take_at_once(at),
            24..=29 => self.take(at, shard),
            30..=33 => self.commit(at, shard),
            34 => self.give(at, shard, None),
            35 => {
                let to = usize::try_from(self.random.below(self.processes.len() as u64));
                self.give(at, shard, to.ok());
            }
            36 if self.one_in(3) => self.leave(at),
            37 if self.processes.len() < NODES_MAX => {
                let name = self.random.below(NAMES);
                self.start(name);
            }
            38 => self.draw_faults(),
            39 if self.one_in(4) => drop(self.server.fail_over(0)),
            _ => {
                let name = self.processes[at].node.name.clone();
                let is_draining = self.one_in(2);
                let _none_of_that_name = self.processes[at]
                    .registry
                    .mark_draining(&name, is_draining);
                let wished = self.processes[at].registry.want(Some(shard), Some(&name));
                if matches!(wished, Err(RegistryError::NoSuchShard { .. })) {
                    return Err("a shard is not there".to_owned());
                }
            }
        }
        Ok(())
    }

    /// What must hold at every moment.
    fn look(&self) -> Result<(), String> {
        for process in &self.processes {
            for (shard, lease) in &process.leases {
                let starts = process.store.may_start(*lease);
                if starts && !self.server.is_held(*shard, lease.fence) {
                    let (node, fence) = (&process.node, lease.fence);
                    return Err(format!(
                        "{} may start attempts of {shard:?} under {fence:?}, and does not own it",
                        node.name
                    ));
                }
            }
        }
        for ((shard, fence), turns) in &self.let_go {
            if self.server.turns(*shard, *fence) > *turns {
                return Err(format!("{shard:?} was let go, and changed under {fence:?}"));
            }
        }
        Ok(())
    }

    /// In the end nothing goes wrong: one node takes everything, keeps it, and would keep it after a pause.
    fn heal(&mut self) -> Result<(), String> {
        self.server.set_faults(SimulatedFaults::default());
        self.look()?;
        self.clocks.pass(self.lease + SECOND, None);
        let [at, other] = [0, 1];
        self.revive(at)?;
        for shard in (0..self.shards).map(Shard) {
            let process = &mut self.processes[at];
            let taken = process.store.acquire(shard);
            let taken = taken.map_err(|error| format!("nobody lives, and {error}"))?;
            process.leases.insert(shard, taken.lease);
        }
        // Only now: it may own shards still, and they are its own as soon as it lives.
        self.revive(other)?;
        for _ in 0..8 {
            self.clocks.pass(self.lease / 4, None);
            for at in [at, other] {
                let seen = self.processes[at].registry.look(true);
                seen.map_err(|error| format!("nothing is wrong, and {error}"))?;
            }
            self.demand_all(at)?;
            let refused = self.processes[other].store.acquire(Shard::ONLY);
            if !matches!(refused, Err(StoreError::Unavailable { .. })) {
                return Err("a shard is taken from a node that lives".to_owned());
            }
        }
        self.clocks.pass(2 * self.lease, None);
        if self.processes[at].starts(Shard::ONLY) {
            return Err("a lease does not end".to_owned());
        }
        let seen = self.processes[at].registry.look(true);
        seen.map_err(|error| error.to_string())?;
        self.demand_all(at)
    }

    /// A node goes on where nobody else lives, as itself or anew.
    fn revive(&self, at: usize) -> Result<(), String> {
        let process = &self.processes[at];
        match process.registry.look(true) {
            Err(RegistryError::NotJoined) => {
                let joined = process.registry.join(&process.node, self.lease);
                joined.map_err(|error| format!("nobody has its name, and {error}"))?;
            }
            seen => drop(seen.map_err(|error| format!("nothing is wrong, and {error}"))?),
        }
        Ok(())
    }

    /// The node owns all shards, and can commit.
    fn demand_all(&mut self, at: usize) -> Result<(), String> {
        self.look()?;
        for shard in (0..self.shards).map(Shard) {
            let process = &self.processes[at];
            if !process.starts(shard) {
                return Err(format!("{shard:?} does not go on, and nobody took it"));
            }
            self.revision += 1;
            let changes = [Change::Given(Revision(self.revision))];
            let committed = process.store.commit(process.leases[&shard], &changes);
            committed.map_err(|error| format!("nothing is wrong, and {error}"))?;
        }
        Ok(())
    }
}

type Meanwhile = Box<dyn FnOnce() + Send>;

/// Two nodes that have joined, and what happens when a statement waits for the next time.
struct Pair {
    server: SimulatedPostgres,
    clocks: Clocks,
    nodes: [Arc<Process>; 2],
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

/// The leases there.
const SHORT: Duration = Duration::from_secs(2);
/// What is late stays on its way, and nothing else goes wrong.
fn nothing_else() -> SimulatedFaults {
    SimulatedFaults {
        refused: u64::MAX,
        ..SimulatedFaults::default()
    }
}

impl Pair {
    fn new(seed: u64) -> Result<Self, String> {
        let clocks = Clocks::new();
        let meanwhile = Arc::new(Mutex::new(None::<Meanwhile>));
        let (passing, hook) = (clocks.clone(), Arc::clone(&meanwhile));
        let (clock, day) = (Arc::new(clocks.truth.clone()), Duration::from_secs(86_400));
        let server = SimulatedPostgres::keeping(Shards::ONE, seed, day, clock, move |pause| {
            passing.pass(pause, None);
            let next = hook.lock().take();
            if let Some(next) = next {
                next();
            }
        });
        let nodes = [1, 2].map(|id| {
            let clock = clocks.add(0);
            Arc::new(Process::new(&server, clock, (id, format!("node-{id}"))))
        });
        for process in &nodes {
            let joined = process.registry.join(&process.node, SHORT);
            joined.map_err(|error| error.to_string())?;
        }
        Ok(Self {
            server,
            clocks,
            nodes,
            meanwhile,
        })
    }

    fn late(&self, odds: u64) {
        self.server.set_faults(SimulatedFaults {
            late: odds,
            ..SimulatedFaults::default()
        });
    }
}

/// A taking takes so long that its lease ends, another node takes the shard, and the lease is renewed.
fn a_lease_ends_within_a_taking(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed)?;
    let [one, other] = &pair.nodes;
    let (server, clocks) = (pair.server.clone(), pair.clocks.clone());
    let (first, second) = (Arc::clone(one), Arc::clone(other));
    *pair.meanwhile.lock() = Some(Box::new(move || {
        server.set_faults(nothing_else());
        clocks.pass(2 * SHORT, None);
        let _one_of_them_may_be_late = second.registry.look(true);
        let _the_first_may_not_have_it = second.store.acquire(Shard::ONLY);
        let _renewed = first.registry.look(true);
    }));
    pair.late(2 + seed % 4);
    let taken = one.store.acquire(Shard::ONLY);
    pair.late(0);
    let Ok(taken) = taken else {
        return Ok(());
    };
    let (starts, fence) = (one.store.may_start(taken.lease), taken.lease.fence);
    match starts && !pair.server.is_held(Shard::ONLY, fence) {
        true => Err("a taking that lasted too long is believed".to_owned()),
        false => Ok(()),
    }
}

/// A node whose lease was over renews it, while another one is about to take its shard.
fn a_lease_is_renewed_within_a_takeover(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed)?;
    let [one, other] = &pair.nodes;
    let taken = one.store.acquire(Shard::ONLY);
    let lease = taken.map_err(|error| error.to_string())?.lease;
    pair.clocks.pass(2 * SHORT, None);
    let seen = other.registry.look(true);
    seen.map_err(|error| error.to_string())?;
    let (server, first) = (pair.server.clone(), Arc::clone(one));
    *pair.meanwhile.lock() = Some(Box::new(move || {
        server.set_faults(nothing_else());
        let _renewed = first.registry.look(true);
    }));
    pair.late(2 + seed % 4);
    let _late = other.store.acquire(Shard::ONLY);
    pair.late(0);
    match one.store.may_start(lease) && !pair.server.is_held(Shard::ONLY, lease.fence) {
        true => Err("a shard was taken whose owner had renewed its lease".to_owned()),
        false => Ok(()),
    }
}

/// A shard is given away, or its node leaves, while a commit of it is on its way.
fn a_shard_is_let_go_within_a_commit(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed)?;
    let one = Arc::clone(&pair.nodes[0]);
    let taken = one.store.acquire(Shard::ONLY);
    let lease = taken.map_err(|error| error.to_string())?.lease;
    let (server, giver) = (pair.server.clone(), Arc::clone(&one));
    let given = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&given);
    *pair.meanwhile.lock() = Some(Box::new(move || {
        server.set_faults(nothing_else());
        let let_go = match seed.is_multiple_of(2) {
            true => giver.registry.leave().map(|()| true),
            false => giver.registry.give(Shard::ONLY, None),
        };
        if let Ok(true) = let_go {
            *noted.lock() = Some(server.turns(Shard::ONLY, lease.fence));
        }
    }));
    // Always, so that it is the commit.
    pair.late(1);
    let committed = one.store.commit(lease, &[Change::Given(Revision(1))]);
    pair.late(0);
    let turns = pair.server.turns(Shard::ONLY, lease.fence);
    match *given.lock() {
        Some(before) if turns > before => Err(format!(
            "a shard that was let go changed, and its owner was told {committed:?}"
        )),
        _ => Ok(()),
    }
}

/// A giving has no answer, and is refused when it is sent again; or a leaving has none, and the node goes on. The
/// first sending comes late.
fn a_shard_is_let_go_late(seed: u64) -> Result<(), String> {
    let pair = Pair::new(seed)?;
    let one = &pair.nodes[0];
    let taken = one.store.acquire(Shard::ONLY);
    let lease = taken.map_err(|error| error.to_string())?.lease;
    let server = pair.server.clone();
    *pair.meanwhile.lock() = Some(Box::new(move || {
        server.set_faults(SimulatedFaults {
            refused: 1,
            ..SimulatedFaults::default()
        });
    }));
    pair.late(1);
    let leaves = seed.is_multiple_of(2);
    let let_go = match leaves {
        true => one.registry.leave().map(|()| true),
        false => one.registry.give(Shard::ONLY, None),
    };
    // What is late is on its way still.
    pair.server.set_faults(nothing_else());
    let _it_may_have_left = one.registry.look(true);
    pair.late(0);
    match one.store.may_start(lease) && !pair.server.is_held(Shard::ONLY, lease.fence) {
        true => Err(format!(
            "a shard was let go late, and its owner, which was told {let_go:?}, goes on"
        )),
        false => Ok(()),
    }
}
