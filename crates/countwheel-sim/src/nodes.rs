//! Worlds of nodes: processes that find each other in the registry of a simulated PostgreSQL, take the
//! shards of those that are gone and give away what is another's.
//!
//! Each node has its own machine, whose wall clock is far off and whose boot clock drifts, its own
//! connections, and the control of the product. Clients ask any node, which sends on what it does not own:
//! frames between nodes are late and held up, connections break, nothing comes through in one direction or in
//! both, an answer comes twice. Nodes are killed, stopped and woken, cut off from the
//! server, drained and restarted, and operators want shards on them; the server is away for three leases, fails over, and its clock is
//! set. Nothing acknowledged is lost, no timer leaves early, no attempt leaves twice under the same
//! number, and none leaves a node that was replaced. What a client was told is not done was not done, and
//! nothing is done long after its deadline. No shard is taken from a node that is well, whatever
//! the server does. Once everything works, every shard is at work within two leases and ten seconds,
//! and in the end each node has its share, or what operators want it to have, nothing moves, and every node
//! answers for every shard.
//!
//! ```
//! use countwheel_sim::nodes::{self, Options};
//!
//! let report = nodes::run(7, &Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.attempts > 0 && report.taken > 0);
//! ```

mod clients;
mod network;
mod process;
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_cluster::{Member, NodeConfig, NodeId, Registry, View};
use countwheel_durable::store::{Durability, Shard};
use countwheel_durable::{Config, Shards};
use countwheel_postgres::PostgresStore;
use countwheel_postgres::testing::{SimulatedFaults, SimulatedPostgres};
use countwheel_time::{Clock, ManualClock, Timestamp};
use parking_lot::Mutex;

use self::clients::{Answer, Timer};
use self::network::Network;
use self::process::Process;
use crate::failure::{Failure, Log};
use crate::random::Random;

const START: Timestamp = Timestamp::from_micros(1_356_998_400_000_000); // 2013-01-01

/// The boot clock of a machine is off by at most so many parts in a million.
const RATE_MAX: u64 = 500;

const SECOND: u64 = 1_000_000;

/// What of a run is not drawn from its seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how many seconds something goes wrong.
    pub seconds: u64,
    /// How many of the last things that happened a failure shows.
    pub log: usize,
    /// A bug for the checkers to find.
    #[cfg(feature = "planted-bugs")]
    pub planted_bug: Option<crate::planted::PlantedBug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 90,
            log: 60,
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
    /// Looks at the registry.
    pub looks: u64,
    /// Of these, looks that failed.
    pub missed: u64,
    /// Timers that were set, as far as their clients know. All of them are done in the end.
    pub acknowledged: u64,
    /// Attempts that left.
    pub attempts: u64,
    /// Attempts under a later number than the first.
    pub repeated: u64,
    /// Shards that were taken.
    pub taken: u64,
    /// Of these, from nodes whose lease was over.
    pub overdue: u64,
    /// Of these, after another node had given them.
    pub given: u64,
    /// Shards that could not be taken.
    pub refused: u64,
    /// Shards that were handed over.
    pub hand_overs: u64,
    /// Schedulers that heard by the registry that another has their shard.
    pub ended: u64,
    /// Turns after which an owner ended, since it was replaced.
    pub fenced: u64,
    /// Nodes that joined again.
    pub rejoined: u64,
    /// Processes that ended without notice.
    pub killed: u64,
    /// Processes that left.
    pub left: u64,
    /// Processes that were stopped for a while, or slept.
    pub paused: u64,
    /// Nodes that were cut off.
    pub cut_off: u64,
    /// Times that the server was away for three leases.
    pub stalls: u64,
    /// Times that the clock of the server was set.
    pub clock_steps: u64,
    /// Standbys that took the place of the server.
    pub failovers: u64,
    /// Nodes that were drained.
    pub drained: u64,
    /// Wishes of operators that were written down.
    pub wishes: u64,
    /// Connections between nodes that came to be.
    pub calls: u64,
    /// Of these, such that broke with a process, or by themselves.
    pub broken: u64,
    /// Frames of questions from node to node.
    pub frames: u64,
    /// Requests of which a client knows that they were not done.
    pub not_done: u64,
    /// Requests of which no client knows whether they were done.
    pub unknown: u64,
    /// Statements that each fault of a server has struck.
    pub struck: SimulatedFaults,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        let (mut theirs, trace) = (*other, self.trace.wrapping_add(other.trace));
        for (sum, other) in self.counts().into_iter().zip(theirs.counts()) {
            *sum += *other;
        }
        self.struck.add(other.struck);
        self.trace = trace;
    }

    fn counts(&mut self) -> [&mut u64; 28] {
        [
            &mut self.seeds,
            &mut self.looks,
            &mut self.missed,
            &mut self.acknowledged,
            &mut self.attempts,
            &mut self.repeated,
            &mut self.taken,
            &mut self.overdue,
            &mut self.given,
            &mut self.refused,
            &mut self.hand_overs,
            &mut self.ended,
            &mut self.fenced,
            &mut self.rejoined,
            &mut self.killed,
            &mut self.left,
            &mut self.paused,
            &mut self.cut_off,
            &mut self.stalls,
            &mut self.clock_steps,
            &mut self.failovers,
            &mut self.drained,
            &mut self.wishes,
            &mut self.calls,
            &mut self.broken,
            &mut self.frames,
            &mut self.not_done,
            &mut self.unknown,
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} looks, {} of them failed; {} timers acknowledged and done; {} attempts, {} of \
             them repeated; {} shards taken, {} of them overdue and {} given, {} refused; {} handed over; \
             {} schedulers ended by the registry, {} by a commit; {} nodes killed, {} left, {} paused, {} \
             cut off, {} drained, {} joined again; {} wishes; {} stalls, {} clock steps, {} failovers; {} frames over {} connections \
             between nodes, {} of them broke; {} requests not done, {} unknown",
            self.seeds,
            self.looks,
            self.missed,
            self.acknowledged,
            self.attempts,
            self.repeated,
            self.taken,
            self.overdue,
            self.given,
            self.refused,
            self.hand_overs,
            self.ended,
            self.fenced,
            self.killed,
            self.left,
            self.paused,
            self.cut_off,
            self.drained,
            self.rejoined,
            self.wishes,
            self.stalls,
            self.clock_steps,
            self.failovers,
            self.frames,
            self.calls,
            self.broken,
            self.not_done,
            self.unknown,
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
    let (step, World { report, log, .. }) = (world.time() / 1_000, world);
    result
        .map(|()| report)
        .map_err(|what| log.failure(seed, step, what))
}

/// The time, and the clocks of all machines.
#[derive(Default)]
struct Times {
    /// The time that has really passed, in microseconds.
    time: u64,
    /// Each with the parts in a million by which it is too fast.
    clocks: Vec<(ManualClock, i64)>,
    /// The machines that sleep.
    asleep: BTreeSet<usize>,
}

impl Times {
    fn pass(&mut self, micros: u64) {
        self.time += micros;
        for (machine, (clock, rate)) in self.clocks.iter().enumerate() {
            let nanos = i128::from(micros) * i128::from(1_000_000 + rate) / 1_000;
            let span = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
            match self.asleep.contains(&machine) {
                true => clock.suspend(span),
                false => clock.advance(span),
            }
        }
    }
}

/// What the seed draws for the whole run.
struct Plan {
    shards: u16,
    config: NodeConfig,
    /// One in so many ticks.
    sets: u64,
    kills: u64,
    pauses: u64,
    cuts: u64,
    drains: u64,
    wishes: u64,
    leaves: u64,
    stalls: u64,
    clock_steps: u64,
    failovers: u64,
    /// The longest an attempt runs, in microseconds.
    service: u64,
    failing: u64,
    server: SimulatedFaults,
    /// For how long a commit is sent again.
    within: Duration,
    /// How long a client waits, in microseconds.
    answer_within: u64,
    /// One in so many ticks.
    breaks: u64,
    peer_cuts: u64,
}

/// A machine of the cluster.
struct Machine {
    name: String,
    clock: ManualClock,
    process: Option<Process>,
    /// Which start of a process runs, also while that does something.
    born: Option<u128>,
    /// When the next process is started, if there is none.
    starts_at: u64,
    /// Until when nothing of it runs.
    paused_until: u64,
    /// Until when it does not reach the server.
    cut_until: u64,
    /// Whether the statements of one that is cut off are done, and their answers lost.
    hears_nothing: bool,
    /// When it was last unable to renew its lease, or was told to give its shards away.
    unwell: u64,
}

struct World {
    plan: Plan,
    config: Config,
    times: Arc<Mutex<Times>>,
    server: SimulatedPostgres,
    server_clock: ManualClock,
    /// The latest that the server's clock has shown, or would have if it had not been set back a moment
    /// ago: a node does not know before it looks.
    latest: Timestamp,
    /// Until when nodes may not know that the clock was set back.
    back_until: u64,
    /// When it was seen last.
    shown: u64,
    observer: PostgresStore,
    machines: Vec<Machine>,
    network: Network,
    /// Connections that broke, by the machine that had called, which has not noticed yet.
    broken: BTreeSet<(usize, NodeId)>,
    /// What clients have been told and not read.
    told: Arc<Mutex<Vec<(usize, Answer)>>>,
    timers: Vec<Timer>,
    /// Attempts that have left, by timer and number.
    attempts: BTreeSet<(usize, u32)>,
    drained: BTreeSet<usize>,
    stalled_until: u64,
    healing: bool,
    starts: u128,
    next_ticket: u64,
    order: Random,
    clients: Random,
    receivers: Random,
    faults: Random,
    network_draws: Random,
    seconds: u64,
    /// When something was wrong last.
    troubled: u64,
    /// A shard on which nobody works, and since when there is one.
    vacant: Option<(Shard, u64)>,
    /// When a shard was taken or handed over last.
    moved: u64,
    report: Report,
    log: Log,
}

impl World {
    fn new(seed: u64, options: &Options) -> Self {
        let mut draw = Random::new(seed, "plan of nodes");
        let shards = u16::try_from(draw.between(2, 9)).unwrap_or(2);
        let mut server = SimulatedFaults::default();
        if draw.one_in(2) {
            server.away = *draw.pick(&[0, 0, 50, 300]);
            server.request_lost = *draw.pick(&[0, 50, 200]);
            server.answer_lost = *draw.pick(&[0, 20, 100]);
            server.late = *draw.pick(&[0, 0, 400]);
            server.refused = *draw.pick(&[0, 20, 80]);
            server.unreplicated = *draw.pick(&[0, 0, 50]);
            server.slow = *draw.pick(&[0, 0, 400]);
            server.hangs = *draw.pick(&[0, 0, 1_000]);
        }
        let plan = Plan {
            shards,
            config: NodeConfig {
                ttl: Duration::from_secs(*draw.pick(&[2, 5, 5])),
                grace: Duration::from_secs(*draw.pick(&[1, 10])),
                rest: Duration::from_secs(*draw.pick(&[5, 60])),
                ..NodeConfig::default()
            },
            sets: *draw.pick(&[5, 20, 60]),
            kills: *draw.pick(&[0, 1_200, 400]),
            pauses: *draw.pick(&[0, 1_200, 400]),
            cuts: *draw.pick(&[0, 1_200, 400]),
            drains: *draw.pick(&[0, 0, 800]),
            wishes: *draw.pick(&[0, 0, 400]),
            leaves: *draw.pick(&[0, 0, 800]),
            stalls: *draw.pick(&[0, 0, 1_000]),
            clock_steps: *draw.pick(&[0, 0, 0, 1_000]),
            failovers: *draw.pick(&[0, 0, 1_000]),
            service: *draw.pick(&[1_000, SECOND / 2, 8 * SECOND]),
            failing: *draw.pick(&[0, 20]),
            within: Duration::from_millis(*draw.pick(&[0, 300])),
            server,
            answer_within: *draw.pick(&[2 * SECOND, 15 * SECOND]),
            breaks: *draw.pick(&[0, 400, 40]),
            peer_cuts: *draw.pick(&[0, 800, 100]),
        };
        let times = Arc::new(Mutex::new(Times::default()));
        let machines = draw.between(1, 5);
        // At times two of them have the same name: the second is refused while the first lives.
        let names = if draw.one_in(3) {
            machines - machines / 3
        } else {
            machines
        };
        let machines = (0..machines).map(|machine| {
            // Nobody has set the clock.
            let clock = ManualClock::at(START + Duration::from_secs(draw.below(7_200)));
            let rate = draw.below(2 * RATE_MAX + 1).cast_signed() - RATE_MAX.cast_signed();
            times.lock().clocks.push((clock.clone(), rate));
            Machine {
                name: format!("node-{}", machine % names),
                clock,
                process: None,
                born: None,
                starts_at: draw.below(5 * SECOND),
                paused_until: 0,
                cut_until: 0,
                hears_nothing: false,
                unwell: 0,
            }
        });
        let machines: Vec<_> = machines.collect();
        let server_clock = ManualClock::at(START + Duration::from_secs(3_600));
        times.lock().clocks.push((server_clock.clone(), 0));
        let passing = Arc::clone(&times);
        let long = Duration::from_secs(1_000 * 86_400);
        let server = SimulatedPostgres::keeping(
            Shards::new(shards).unwrap_or(Shards::ONE),
            seed,
            long,
            Arc::new(server_clock.clone()),
            move |pause| {
                let micros = u64::try_from(pause.as_micros()).unwrap_or(0);
                passing.lock().pass(micros);
            },
        );
        server.set_durability(Durability::Standby);
        let clock = Arc::new(server_clock.clone());
        let observer = PostgresStore::on_simulated(&server.observer(), 0, clock, Duration::ZERO);
        Self {
            config: Config {
                max_in_flight: 64,
                keep_done: long,
                max_interruptions: 1_000_000,
                suspect_hold: Duration::ZERO,
                catch_up_per_second: 1_000,
                seed: draw.draw(),
                ..Config::default()
            },
            plan,
            times,
            latest: server_clock.timestamp(),
            back_until: 0,
            shown: 0,
            server,
            server_clock,
            observer,
            machines,
            network: Network::default(),
            broken: BTreeSet::new(),
            told: Arc::default(),
            timers: Vec::new(),
            attempts: BTreeSet::new(),
            drained: BTreeSet::new(),
            stalled_until: 0,
            healing: false,
            starts: 0,
            next_ticket: 0,
            order: Random::new(seed, "order of nodes"),
            clients: Random::new(seed, "clients of nodes"),
            receivers: Random::new(seed, "receivers of nodes"),
            faults: Random::new(seed, "faults of nodes"),
            network_draws: Random::new(seed, "network of nodes"),
            seconds: options.seconds,
            troubled: 0,
            vacant: None,
            moved: 0,
            report: Report {
                seeds: 1,
                ..Report::default()
            },
            log: Log::new(options.log),
        }
    }

    fn live(&mut self) -> Result<(), String> {
        while self.time() < self.seconds * SECOND {
            self.fail_something();
            self.ask_something();
            self.tick()?;
            self.look_at_vacant()?;
        }
        self.heal()?;
        self.report.struck = self.server.struck();
        self.report.trace = self.log.hash;
        Ok(())
    }

    fn time(&self) -> u64 {
        self.times.lock().time
    }

    fn ttl(&self) -> u64 {
        u64::try_from(self.plan.config.ttl.as_micros()).unwrap_or(0)
    }

    /// Where nothing has gone wrong for a while, somebody works on every shard.
    fn look_at_vacant(&mut self) -> Result<(), String> {
        let time = self.time();
        let is_well = |it: &Machine| {
            let works = it
                .process
                .as_ref()
                .is_some_and(|it| it.leaves_until.is_none());
            works && it.paused_until <= time && it.cut_until <= time
        };
        let may_fail = self.plan.server != SimulatedFaults::default();
        let is_calm = self.machines.iter().all(is_well) && self.stalled_until <= time;
        if may_fail || !is_calm {
            self.troubled = time;
        }
        if time < self.troubled + 2 * self.ttl() + 10 * SECOND {
            self.vacant = None;
            return Ok(());
        }
        // Not each time, and not in the middle of a hand-over.
        let vacant = self.unowned();
        self.vacant = vacant.map(|shard| (shard, self.vacant.map_or(time, |it| it.1)));
        match self.vacant {
            Some((shard, since)) if time > since + 15 * SECOND => {
                Err(format!("nobody works on {shard:?}, and nothing is wrong"))
            }
            _ => Ok(()),
        }
    }

    /// Whether every machine reaches the server.
    fn is_calm(&self) -> bool {
        let time = self.time();
        let is_well = |it: &Machine| it.paused_until <= time && it.cut_until <= time;
        self.machines.iter().all(is_well) && self.stalled_until <= time
    }

    /// A moment passes, and every machine does a little.
    fn tick(&mut self) -> Result<(), String> {
        let span = self.order.between(5_000, 45_000);
        self.times.lock().pass(span);
        let first = self.order.below(self.machines.len() as u64);
        let first = usize::try_from(first).unwrap_or(0);
        for machine in 0..self.machines.len() {
            let machine = (first + machine) % self.machines.len();
            self.show_clock();
            self.go_on(machine)?;
            self.hear()?;
        }
        Ok(())
    }

    /// Somebody sees the server's clock.
    fn show_clock(&mut self) {
        let time = self.time();
        let passed = time - std::mem::replace(&mut self.shown, time);
        if self.shown < self.back_until {
            if !self.is_calm() {
                self.back_until = time + self.ttl();
            }
            self.latest = self.latest + Duration::from_micros(passed);
        }
        self.latest = self.latest.max(self.server_clock.timestamp());
    }

    /// From here on nothing fails, and everything comes to its end.
    fn heal(&mut self) -> Result<(), String> {
        self.log.note("everything works from here".to_owned());
        self.healing = true;
        self.server.set_faults(SimulatedFaults::default());
        let time = self.time();
        self.stalled_until = 0;
        self.times.lock().asleep.clear();
        self.network.cuts.clear();
        for machine in &mut self.machines {
            (machine.paused_until, machine.cut_until) = (0, 0);
            machine.starts_at = machine.starts_at.min(time);
            if let Some(process) = &mut machine.process {
                process.leaves_until = process.leaves_until.map(|_| time);
            }
        }
        for machine in std::mem::take(&mut self.drained) {
            let name = self.machines[machine].name.clone();
            let undrained = self.observer.registry().mark_draining(&name, false);
            // One that is not there is not drained either.
            undrained.unwrap_or_default();
        }
        if self.faults.one_in(2) {
            let registry = self.observer.registry();
            let ended = registry.want(None, None);
            ended.map_err(|error| format!("wishes cannot be ended: {error}"))?;
        }
        let bound = time + 2 * self.ttl() + 10 * SECOND;
        self.tick_until(bound, |world| world.unowned().is_none())?;
        if let Some(shard) = self.unowned() {
            return Err(format!("nobody works on {shard:?}"));
        }
        self.come_to_an_end()?;
        // Then every node has its share.
        let bound = self.time() + 400 * SECOND;
        self.tick_until(bound, |world| world.time() > world.moved + 80 * SECOND)?;
        self.look_at_shares()?;
        self.look_at_answers()?;
        self.come_to_an_end()?;
        self.look_at_timers()
    }

    /// Every timer does.
    fn come_to_an_end(&mut self) -> Result<(), String> {
        let bound = self.time() + 300 * SECOND;
        while self.time() < bound && !self.have_ended()? {
            let soon = self.time() + SECOND;
            self.tick_until(soon, |_| false)?;
        }
        Ok(())
    }

    fn tick_until(&mut self, bound: u64, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        while !done(self) && self.time() < bound {
            self.tick()?;
        }
        Ok(())
    }

    /// A shard that nobody works on who has it by the server.
    fn unowned(&self) -> Option<Shard> {
        let mut shards = (0..self.plan.shards).map(Shard);
        shards.find(|shard| {
            let fence = self.server.owner(*shard);
            let processes = self.machines.iter().filter_map(|it| it.process.as_ref());
            let mut owners = processes.flat_map(|process| &process.owners);
            let works = owners.any(|owner| owner.is_of(*shard, fence) && owner.works());
            !works || !self.server.is_held(*shard, fence)
        })
    }

    /// All that the registry has.
    fn truth(&self) -> Result<View, String> {
        let view = self.observer.registry().view();
        view.map_err(|error| format!("the registry cannot be read: {error}"))
    }

    fn look_at_shares(&self) -> Result<(), String> {
        let view = self.truth()?;
        let mut shares: BTreeMap<NodeId, usize> = view
            .members
            .iter()
            .filter(|member| self.runs(member))
            .map(|member| (member.node.id, 0))
            .collect();
        for holding in &view.holdings {
            let owner = holding.owner.and_then(|owner| shares.get_mut(&owner));
            *owner.ok_or_else(|| format!("{holding:?} has no owner that lives"))? += 1;
        }
        let processes = self.machines.iter().filter_map(|it| it.process.as_ref());
        let mut owners = processes.flat_map(|process| &process.owners);
        if let Some(owner) = owners.find(|owner| !owner.is_current(&self.server)) {
            return Err(format!("two work on {:?}", owner.shard));
        }
        let wishes = view.holdings.iter().filter_map(|holding| {
            let name = holding.wanted.as_deref()?;
            let mut members = view.members.iter().filter(|member| self.runs(member));
            let wanted = members.find(|member| member.node.name == name)?;
            Some((holding, wanted))
        });
        let wishes: Vec<_> = wishes.collect();
        for (holding, wanted) in &wishes {
            if holding.owner != Some(wanted.node.id) {
                let (shard, name) = (holding.shard, &wanted.node.name);
                return Err(format!("{shard:?} is wanted on {name}, and is elsewhere"));
            }
        }
        if !wishes.is_empty() {
            let mut processes = self.machines.iter().filter_map(|it| it.process.as_ref());
            let placed = processes
                .next()
                .map(|process| process.control.placed(&view));
            let placed = placed.unwrap_or_default();
            let mut holdings = view.holdings.iter();
            let moves = holdings.find(|it| it.owner != placed.get(&it.shard).copied());
            return moves.map_or(Ok(()), |it| Err(format!("{:?} is to move still", it.shard)));
        }
        let share = usize::from(self.plan.shards) / shares.len();
        match shares.values().all(|it| [share, share + 1].contains(it)) {
            true => Ok(()),
            false => Err(format!("the shards are not shared: {shares:?}")),
        }
    }

    /// Whether it is a process that runs.
    fn runs(&self, member: &Member) -> bool {
        let mut processes = self.machines.iter().filter_map(|it| it.process.as_ref());
        processes.any(|process| process.control.me() == member.node.id)
    }

    fn note(&mut self, what: impl fmt::Display) {
        let time = self.time();
        self.log.note(format!("{time} {what}"));
    }
}
