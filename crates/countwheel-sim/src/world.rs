//! The world around an engine: a clock, clients, receivers, a store that crashes.
//!
//! A run has two phases. In the first phase every fault is allowed, and every turn is followed by
//! checks. In the second phase nothing fails any more, and every accepted timer must come to an
//! end.

mod boots;
mod crashing;
mod drawing;
mod places;
mod shrinking;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use countwheel_disk::simulated::{Calls, Failure, Fault as DiskFault, Operation};
use countwheel_durable::store::{DueScan, Filter, Shard, Store};
use countwheel_durable::{
    Attempt, BatchError, Config, DeadReason, DrainMode, Drains, DueClock, Effect, Engine, Event,
    NextRun, Outcome, Precondition, QueueName, Record, Request, Response, Revision, State, Ticket,
    TimerError, TimerName, Verdict,
};
use countwheel_time::{Clock, Instant, ManualClock, Timestamp};

use self::boots::Boots;
use self::crashing::{CrashingStore, Fault, NextCommit};
use self::places::Places;
pub use self::shrinking::{Part, Shrunk, shrink};
use crate::due_counts;
use crate::events::Listener;
use crate::failure::{Failure as Failed, Log, panic_text};
use crate::keeps::Keeps;
use crate::machine::{Kind, Machine};
use crate::model::{Model, Now, answer_to, asked_of_runs};
use crate::random::Random;
use crate::rules::QueueRules;
use crate::sabotage::Sabotage;
use crate::stores::Answers;
use crate::stores::script::in_other_namespace;

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1_000 * 366 * 86_400);

const START: Timestamp = Timestamp::from_micros(1_356_998_400_000_000); // 2013-01-01

/// As many queues at the most has a world, unless it is one of many queues.
const FEW_QUEUES: u64 = 6;

/// What of a run is not drawn from its seed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many turns the first phase has.
    pub turns: u64,
    /// How many of the last things that happened a failure shows.
    pub log: usize,
    /// A bug for the checkers to find.
    #[cfg(feature = "planted-bugs")]
    pub planted_bug: Option<crate::planted::PlantedBug>,
    /// A disk whose syncs do nothing: the checkers must notice.
    pub lying_disk: bool,
    /// The store, if it is not drawn as well.
    pub kind: Option<Kind>,
    /// A mistake in the store for the checkers to find.
    pub sabotage: Option<Sabotage>,
    /// What of the drawn world is left out.
    pub without: Vec<Part>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            turns: 400,
            log: 40,
            #[cfg(feature = "planted-bugs")]
            planted_bug: None,
            lying_disk: false,
            kind: None,
            sabotage: None,
            without: Vec::new(),
        }
    }
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Turns taken.
    pub turns: u64,
    /// Requests made, those of batches included.
    pub requests: u64,
    /// Batches among them, and how many of those were refused.
    pub batches: u64,
    /// See there.
    pub batches_refused: u64,
    /// Drains of queues, and ends of them.
    pub drains: u64,
    /// How often something was more than one commit takes, and deferred to the next turn.
    pub deferred: u64,
    /// Attempts of timers that come again, the first of each left out.
    pub reruns: u64,
    /// Attempts started.
    pub attempts: u64,
    /// Timers that were overdue when they were counted, each time.
    pub overdue: u64,
    /// Timers that were counted by due time, each time.
    pub counted: u64,
    /// Times the process ended.
    pub crashes: u64,
    /// Of these, in the middle of a commit.
    pub torn: u64,
    /// Of these, by an attempt of a timer that ends the process.
    pub killed: u64,
    /// Times an opening was cut short.
    pub torn_openings: u64,
    /// Pieces of upkeep, such as moves.
    pub upkeep: u64,
    /// Calls to the disk that failed.
    pub struck: u64,
    /// Times the disk was full for a while.
    pub full: u64,
    /// Times the wall clock was set.
    pub clock_steps: u64,
    /// Times the machine started anew.
    pub boots: u64,
    /// Openings that found the wall clock before the last commit.
    pub behind: u64,
    /// Timers accepted, revived ones again.
    pub accepted: u64,
    /// Timers done.
    pub done: u64,
    /// Timers removed or replaced before their end.
    pub removed: u64,
    /// Timers given up.
    pub dead: u64,
    /// A hash over everything that was let out, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.turns += other.turns;
        self.requests += other.requests;
        self.batches += other.batches;
        self.batches_refused += other.batches_refused;
        self.drains += other.drains;
        self.deferred += other.deferred;
        self.reruns += other.reruns;
        self.attempts += other.attempts;
        self.crashes += other.crashes;
        self.torn += other.torn;
        self.killed += other.killed;
        self.torn_openings += other.torn_openings;
        self.upkeep += other.upkeep;
        self.struck += other.struck;
        self.full += other.full;
        self.clock_steps += other.clock_steps;
        self.boots += other.boots;
        self.overdue += other.overdue;
        self.counted += other.counted;
        self.behind += other.behind;
        self.accepted += other.accepted;
        self.done += other.done;
        self.removed += other.removed;
        self.dead += other.dead;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

/// Runs one seed.
///
/// # Errors
/// The first rule broken.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failed>> {
    #[cfg(feature = "planted-bugs")]
    let _planted = crate::planted::Planted::new(options.planted_bug);
    let mut world = World::new(seed, options);
    // A failed assertion is a failure like others, with its seed and what led to it.
    let lived = catch_unwind(AssertUnwindSafe(|| world.live()));
    let result = lived.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    let World { report, log, .. } = world;
    result.map(|()| report.clone()).map_err(|what| {
        Box::new(Failed {
            seed,
            step: report.turns,
            what,
            last: log.lines.into(),
        })
    })
}

struct World {
    options: Options,
    clock: ManualClock,
    /// The highest wall time there ever was.
    latest: Timestamp,
    machine: Machine,
    store: Arc<CrashingStore>,
    in_bulk: bool,
    engine: Engine,
    opened: Now,
    /// Where the engine's second time line stood, and by which reading of the clock it counts.
    boot_origin: (Timestamp, Instant),
    /// What the wall clock should have shown at least, and where the line stood then.
    presumed: Option<(Timestamp, Timestamp)>,
    boots: Boots,
    /// How often this engine has found the wall clock set back.
    steps_back: u64,
    stepped_since_opened: bool,
    config: Config,
    model: Model,
    running: BTreeMap<(Instant, u64), (Attempt, Verdict)>,
    /// Between which two readings of the boot clock an attempt was handed over.
    handed_over: BTreeMap<(Revision, u32), (Timestamp, Timestamp)>,
    /// Outcomes that the engine keeps, since there was no room for them, and what it has deferred.
    kept: Vec<Happening>,
    /// What is asked next, before everything else.
    asked: Vec<Happening>,
    /// Since when there is room again, as far as that is known.
    room_since: Instant,
    /// Of which time the last count of what is overdue was, and when that was first told, by the boot
    /// clock.
    counted: Option<(Timestamp, Timestamp)>,
    /// How many calls had failed when that was looked at.
    struck: u64,
    /// Backlog starts of this process.
    caught_up: u64,
    places: Places,
    /// The payloads that end the process, and when one does next.
    killers: BTreeSet<Vec<u8>>,
    killed_at: Option<Instant>,
    plan: Plan,
    clients: Random,
    receivers: Random,
    /// Draws of drains have a generator of their own: a world without any is as it was.
    drains: Random,
    retentions: Random,
    /// How long queues keep what has ended, if they say it.
    keeps: Option<Keeps>,
    /// When the rules of queues change.
    ruling: Random,
    rules: Option<QueueRules>,
    /// Who hears what commits did.
    listener: Listener,
    faults: Random,
    next_request: Instant,
    next_ticket: u64,
    next_tag: u64,
    healing: bool,
    report: Report,
    log: Log,
}

/// What the seed draws for the whole run.
struct Plan {
    keys: u64,
    /// The mean time between requests, in microseconds.
    pace: u64,
    /// The longest delay asked for, in microseconds.
    horizon: u64,
    /// The longest an attempt runs, in microseconds.
    service: u64,
    /// Attempts in a hundred that fail, and that stop.
    failing: u64,
    stopping: u64,
    /// One in so many turns.
    crash: u64,
    commit_crash: u64,
    clock_step: u64,
    /// One in so many ends of the process is one of the machine.
    boots: u64,
    /// Parts in a million by which the wall clock is too fast.
    drift: i64,
    /// One in so many turns the machine sleeps, or the clock stands still.
    suspend: u64,
    freeze: u64,
    slow_commit: u64,
    queues: u64,
    bursts: Vec<u64>,
    /// The long payloads, and one in how many is one.
    payload: usize,
    long: u64,
    /// One in so many sets comes again, and one in so many requests is a batch.
    recurring: u64,
    batch: u64,
    /// One in so many turns a piece of upkeep, or the disk is full for a while.
    upkeep: u64,
    full: u64,
    /// How calls to the disk fail, if they do.
    failures: Vec<Failure>,
    /// How many payloads end the process. With some, nothing else does.
    killers: usize,
    /// Whether nearly all that is set is removed again.
    removing: bool,
    /// Every other queue has the name of the one before, in another namespace.
    namespaces: bool,
    /// Queues have names of a hundred bytes.
    long_names: bool,
    /// One in so many requests drains a queue, or ends that.
    drains: u64,
}

impl World {
    fn new(seed: u64, options: &Options) -> Self {
        let mut draw = Random::new(seed, "plan");
        let mut more = Random::new(seed, "recurring timers and batches");
        let mut bounds = Random::new(seed, "bounds");
        let mut plan = Plan {
            keys: *draw.pick(&[1, 3, 12, 40, 150]),
            pace: *draw.pick(&[1_000, 100_000, 10_000_000]),
            horizon: *draw.pick(&[10_000, 10_000_000, 3_600_000_000, 864_000_000_000]),
            service: *draw.pick(&[1, 10_000, 10_000_000]),
            failing: *draw.pick(&[0, 10, 60]),
            stopping: *draw.pick(&[0, 2]),
            crash: *draw.pick(&[0, 30, 200]),
            commit_crash: *draw.pick(&[0, 30, 200]),
            clock_step: *draw.pick(&[0, 0, 40]),
            boots: 0,
            drift: *draw.pick(&[0, 0, 500, -500]),
            suspend: *draw.pick(&[0, 0, 60]),
            freeze: *draw.pick(&[0, 0, 5]),
            slow_commit: *draw.pick(&[0, 10]),
            queues: draw.between(1, FEW_QUEUES),
            bursts: draw
                .pick(&[vec![1], vec![1, 1, 1, 2, 10], vec![1, 40]])
                .clone(),
            payload: *draw.pick(&[8, 300, 3_000, 20_000]),
            long: *draw.pick(&[2, 50]),
            recurring: *more.pick(&[0, 0, 2, 6]),
            batch: *more.pick(&[0, 2, 10]),
            upkeep: *draw.pick(&[0, 2, 10, 40]),
            full: *draw.pick(&[0, 0, 50]),
            failures: [Failure::Io, Failure::NoSpace, Failure::Short, Failure::Torn]
                .into_iter()
                .filter(|_| draw.one_in(2))
                .collect(),
            killers: 0,
            removing: false,
            namespaces: Random::new(seed, "namespaces").one_in(3),
            long_names: false,
            drains: *Random::new(seed, "how many drains").pick(&[0, 0, 20, 200]),
        };
        let mut many = Random::new(seed, "many queues");
        // So many that they do not fit into the window together, and each is held to its share.
        let has_many = many.one_in(64);
        if has_many {
            plan.queues = many.between(40, 120);
            plan.keys = plan.queues * many.between(20, 60);
            plan.bursts = vec![40];
            plan.horizon = *many.pick(&[300_000, 1_000_000, 5_000_000]);
            plan.pace = 1_000;
            plan.crash = 30;
            // A thousand series that are far behind would be all there is to see.
            plan.recurring = 0;
        }
        let mut copies = Random::new(seed, "long copies of counts");
        // So many, of such long names, that their counts take more than the whole log may have.
        let has_long_copies = copies.one_in(32) && !has_many;
        if has_long_copies {
            plan.queues = copies.between(40, 120);
            plan.keys = plan.queues * copies.between(1, 4);
            plan.long_names = true;
        }
        let clock = ManualClock::at(START);
        let mut boots = Boots::new(seed, &clock);
        plan.boots = boots.draw();
        let mut loops = Random::new(seed, "crash loops");
        let max_interruptions = *loops.pick(&[2, 3, 4, 6, 10, u32::MAX]);
        let suspect_hold = Duration::from_micros(*loops.pick(&[0, 50_000, 1_000_000]));
        if loops.one_in(16) && !has_many {
            plan.killers = usize::try_from(loops.between(1, 4)).unwrap_or(1);
            plan.keys = plan.keys.max(40);
            (plan.crash, plan.commit_crash, plan.full, plan.recurring) = (0, 0, 0, 0);
        }
        let mut scans = Random::new(seed, "scans");
        let max_scanned = usize::try_from(*scans.pick(&[4_096, 4_096, 40, 8, 4])).unwrap_or(2);
        plan.removing = scans.one_in(8);
        for part in &options.without {
            part.leave_out(&mut plan);
        }
        let mut config = Config {
            window: usize::try_from(*draw.pick(&[2, 3, 8, 64, 100_000])).unwrap_or(2),
            max_in_flight: usize::try_from(*draw.pick(&[1, 2, 8, 256])).unwrap_or(1),
            catch_up_per_second: *draw.pick(&[1, 10, 1_000, 1_000_000]),
            keep_done: Duration::from_micros(*draw.pick(&[1, 1_000_000, 86_400_000_000])),
            max_interruptions,
            suspect_hold,
            due_counts: true,
            seed: draw.draw(),
            max_batch_bytes: *bounds.pick(&[64 << 20, 64 << 20, 1, 5_000]),
            max_scanned,
            ..Config::default()
        };
        if plan.killers > 0 {
            config.max_interruptions = 10;
        }
        let mut retentions = Random::new(seed, "retentions");
        let keeps = retentions.one_in(2).then(|| Keeps::new(seed));
        if let Some(keeps) = &keeps {
            config.retention = Some(Arc::new(keeps.clone()));
        }
        let listener = Listener::new(seed);
        config.events = Some(listener.sink());
        let mut ruling = Random::new(seed, "rules");
        let rules = ruling.one_in(2).then(|| QueueRules::new(seed));
        if let Some(rules) = &rules {
            config.rules = Some(Arc::new(rules.clone()));
        }
        if has_many {
            config.max_batch_bytes = 64 << 20;
            // Enough for one entry each by each clock, and not for much more.
            config.window = usize::try_from(plan.queues * many.between(2, 5)).unwrap_or(2);
        }
        let kinds = [Kind::Log, Kind::Log, Kind::Log, Kind::Tables, Kind::Memory];
        let mut kind = options.kind.unwrap_or(*draw.pick(&kinds));
        if options.lying_disk && kind == Kind::Memory {
            kind = Kind::Tables;
        }
        let mut machine = Machine::new(kind, seed).with(options.sabotage);
        if has_long_copies {
            machine = machine.with_short_log();
        }
        machine.disk.ignore_syncs(options.lying_disk);
        let in_bulk = Random::new(seed, "reads of many names").one_in(2);
        let store = Arc::new(
            CrashingStore::new(&machine, &clock, in_bulk)
                .unwrap_or_else(|error| unreachable!("a healthy disk opens: {error}")),
        );
        let engine = Engine::open(
            store.clone(),
            Shard::ONLY,
            Arc::new(clock.clone()),
            config.clone(),
        )
        .unwrap_or_else(|error| unreachable!("a healthy store opens: {error}"));
        Self {
            options: options.clone(),
            latest: START,
            model: Model::new(&config, START),
            clients: Random::new(seed, "clients"),
            receivers: Random::new(seed, "receivers"),
            drains: Random::new(seed, "drains"),
            retentions,
            keeps,
            ruling,
            rules,
            listener,
            faults: Random::new(seed, "faults"),
            next_request: Instant::ZERO,
            opened: Now {
                wall: START,
                boot: START,
            },
            boot_origin: (START, clock.boot()),
            presumed: None,
            boots,
            steps_back: 0,
            stepped_since_opened: false,
            running: BTreeMap::new(),
            handed_over: BTreeMap::new(),
            kept: Vec::new(),
            asked: Vec::new(),
            room_since: Instant::ZERO,
            counted: None,
            struck: 0,
            caught_up: 0,
            places: Places::default(),
            killers: BTreeSet::new(),
            killed_at: None,
            next_ticket: 0,
            next_tag: 0,
            healing: false,
            report: Report::default(),
            log: Log::new(options.log),
            clock,
            machine,
            store,
            in_bulk,
            engine,
            config,
            plan,
        }
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..self.options.turns {
            self.pass_time();
            if self.faults.one_in(self.plan.clock_step) {
                self.step_clock();
            }
            self.set_clock_right(false);
            if self.faults.one_in(self.plan.clock_step) {
                let span = Duration::from_micros(self.faults.below(10_000_000));
                self.log.note(format!("the machine sleeps for {span:?}"));
                self.clock.suspend(span);
                self.latest = self.latest.max(self.clock.timestamp());
            }
            if self.faults.one_in(self.plan.crash) {
                self.log.note("the process is killed".to_owned());
                self.restart(None)?;
            }
            if self.faults.one_in(self.plan.suspend) {
                let span = Duration::from_micros(self.faults.below(7_200_000_000));
                self.log.note(format!("the machine sleeps for {span:?}"));
                self.clock.advance(span);
                self.latest = self.latest.max(self.clock.timestamp());
            }
            if self.faults.one_in(self.plan.full) {
                self.limit();
            }
            if let Some(keeps) = self.keeps.as_ref().filter(|_| self.retentions.one_in(50)) {
                keeps.draw_anew();
                self.model.retention_changed();
                self.log
                    .note("queues keep what ends for another time".to_owned());
            }
            if let Some(rules) = self.rules.as_ref().filter(|_| self.ruling.one_in(20)) {
                rules.draw_anew();
                self.model.rules_changed();
                self.log
                    .note("queues have other rules for their timers".to_owned());
            }
            self.turn()?;
            self.kill_if_due()?;
            if self.faults.one_in(self.plan.upkeep) {
                self.upkeep()?;
            }
        }
        self.heal()?;
        self.report.accepted = self.model.accepted;
        self.report.done = self.model.done;
        self.report.removed = self.model.removed;
        self.report.dead = self.model.dead;
        self.report.trace = self.log.hash;
        self.report.struck = self.machine.disk.struck();
        let ended = self.model.done + self.model.removed + self.model.dead;
        if ended != self.model.accepted {
            let accepted = self.model.accepted;
            return Err(format!("{accepted} accepted, {ended} came to an end"));
        }
        Ok(())
    }

    /// The second phase: everything works, and everything comes to an end: a minute after the
    /// last deadline, or as long as the backlog takes.
    fn heal(&mut self) -> Result<(), String> {
        self.log.note("everything works from here".to_owned());
        self.healing = true;
        self.machine.disk.heal();
        self.machine.disk.set_capacity(None);
        self.set_clock_right(true);
        self.restart(None)?;
        self.end_the_endless();
        for queue in self.model.drains() {
            let ticket = self.next_ticket();
            self.asked.push(Happening::Drain(ticket, queue, None));
        }
        let now = self.clock.timestamp();
        let rate = u64::from(self.config.catch_up_per_second);
        let (backlog, last) = self.model.last_due(self.now());
        let last = last.map_or(now, |due| due.max(now));
        // Each payload that ends the process does so at most ten times more, and has to wait.
        let held = u32::try_from(1 + 10 * self.killers.len()).unwrap_or(u32::MAX);
        let held = self.config.suspect_hold * 129 * held;
        let until = last + Duration::from_secs(60 + backlog.div_ceil(rate)) + held;
        let mut turns = 0;
        while self.model.unfinished() > 0 {
            self.pass_time();
            self.turn()?;
            self.kill_if_due()?;
            turns += 1;
            let stuck = self.engine.next_wake().is_none() && self.running.is_empty();
            let left = self.model.unfinished();
            let late = self.clock.timestamp() > until;
            if left > 0 && (stuck || late || turns > 100_000) {
                return Err(format!(
                    "{left} timers come to no end by {until:?}, in {turns} turns"
                ));
            }
        }
        if self.keeps.is_some() {
            self.forget_all()?;
        }
        self.restart(None)
    }

    /// The retention of everything ends that is not kept for good. Nobody asks for it, and it goes.
    fn forget_all(&mut self) -> Result<(), String> {
        let Some(last) = self.model.last_kept() else {
            return Ok(());
        };
        self.log.note(format!("time passes until {last:?}"));
        let span = last.saturating_since(self.clock.timestamp());
        self.clock.advance(span);
        self.latest = self.latest.max(self.clock.timestamp());
        let mut turns = 0;
        loop {
            let wall = self.clock.timestamp();
            let records = self.everything()?;
            let is_over = |it: &&Record| it.state.kept_until().is_some_and(|until| until <= wall);
            let Some(over) = records.iter().find(is_over) else {
                return Ok(());
            };
            let next = self.engine.next_wake();
            // What was over at the opening goes at the rate of what was overdue then.
            let pause = Duration::from_secs(1) / self.config.catch_up_per_second;
            if let Some(at) = next.filter(|at| (wall..=wall + pause).contains(at)) {
                self.clock.advance(at.saturating_since(wall));
                self.latest = self.latest.max(self.clock.timestamp());
            }
            let is_stuck = next.is_none_or(|at| at > wall + pause);
            if turns > 0 && is_stuck || turns > 100_000 {
                let (name, state) = (&over.name, &over.state);
                return Err(format!(
                    "{name} stays at {wall:?} as {state:?}, in {turns} turns"
                ));
            }
            self.turn()?;
            turns += 1;
        }
    }

    /// What comes again for ever is removed, all of it in one batch.
    fn end_the_endless(&mut self) {
        self.asked.clear();
        for name in self.model.endless(self.now()) {
            let removal = Request::Remove {
                name,
                precondition: Precondition::None,
                only_pending: false,
            };
            let ticket = self.next_ticket();
            self.asked.push(Happening::Request(ticket, removal));
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket - 1)
    }

    /// The disk has no more room than a little.
    fn limit(&mut self) {
        let disk = &self.machine.disk;
        if disk.is_limited() {
            disk.set_capacity(None);
            self.log.note("there is room again".to_owned());
            self.room_since = self.clock.boot();
        } else {
            let room = self.faults.below(30_000);
            disk.set_capacity(Some(disk.used() + room));
            self.report.full += 1;
            self.log.note(format!("room for {room} bytes more"));
        }
    }

    /// What a thread of the store's does now and then. If it fails, the process ends.
    fn upkeep(&mut self) -> Result<(), String> {
        let which = self.faults.below(8);
        let fails = self.faults.one_in(self.plan.commit_crash);
        let fault = self.draw_fault();
        if fails {
            self.machine.disk.fail(fault);
        }
        let kept = self.store.upkeep(which);
        self.report.upkeep += 1;
        self.note_trouble();
        self.log.note(format!("upkeep {which}: {kept:?}"));
        match kept {
            Ok(()) => {
                self.machine.disk.heal();
                Ok(())
            }
            // Then it is tried again later.
            Err(error) if error.is_full() && !fails && self.is_short() => Ok(()),
            Err(_) if fails || self.machine.disk.is_limited() => self.restart(None),
            Err(error) => Err(format!("upkeep failed without a cause: {error}")),
        }
    }

    /// How and when a call to the disk fails.
    fn draw_fault(&mut self) -> DiskFault {
        let after = self.faults.below(8);
        let calls = match self.faults.below(4) {
            0 => Calls::All,
            1 => Calls::Only(Operation::Sync),
            _ => Calls::Changing,
        };
        let lasts = self.faults.one_in(2);
        let which = self.faults.draw();
        match self.plan.failures.as_slice() {
            [] => DiskFault::power(after),
            some => DiskFault {
                calls,
                after: if matches!(calls, Calls::Only(_)) {
                    after / 4
                } else {
                    after
                },
                lasts,
                failure: some[usize::try_from(which % some.len() as u64).unwrap_or(0)],
            },
        }
    }

    /// Moves the clock to whatever happens next.
    fn pass_time(&mut self) {
        let now = self.clock.now();
        let wall = self.clock.timestamp();
        let wake = self.engine.next_wake();
        let wake = wake.map(|at| now + at.saturating_since(wall));
        let outcome = self.running.keys().next().map(|(at, _)| *at);
        let request = (!self.healing).then_some(self.next_request);
        let next = [wake, outcome, request, self.killed_at];
        let next = next.into_iter().flatten().min();
        let span = next.unwrap_or(now).saturating_since(now);
        if !self.healing && self.faults.one_in(self.plan.freeze) {
            return; // as after a long stall: much happens at one time
        }
        self.clock.advance(span);
        if !self.healing && self.plan.drift != 0 {
            let micros = u64::try_from(span.as_micros()).unwrap_or(0);
            let drifted = micros / 1_000_000 * self.plan.drift.unsigned_abs();
            let by = Duration::from_micros(drifted);
            let wall = self.clock.timestamp();
            self.clock.set_timestamp(if self.plan.drift > 0 {
                wall + by
            } else {
                wall.saturating_sub(by)
            });
        }
        self.latest = self.latest.max(self.clock.timestamp());
    }

    fn step_clock(&mut self) {
        let wall = self.clock.timestamp();
        let span = Duration::from_micros(self.faults.below(3_600_000_000));
        let to = if self.faults.one_in(2) {
            wall + span
        } else {
            wall.saturating_sub(span)
        };
        self.log
            .note(format!("the clock is set from {wall:?} to {to:?}"));
        self.clock.set_timestamp(to);
        self.latest = self.latest.max(to);
        self.stepped_since_opened = true;
        self.report.clock_steps += 1;
    }

    fn now(&self) -> Now {
        let (wall, boot) = self.boot_origin;
        let passed = self.clock.boot().saturating_since(boot);
        let micros = Duration::from_micros(u64::try_from(passed.as_micros()).unwrap_or(u64::MAX));
        Now {
            wall: self.clock.timestamp(),
            boot: wall + micros,
        }
    }

    fn turn(&mut self) -> Result<(), String> {
        self.report.turns += 1;
        self.machine.bound_calls();
        if !self.machine.disk.is_limited() && !self.store.has_room() {
            // As the store's own threads would: segments are flushed, and spare ones are made.
            for which in [3, 2] {
                if let Err(error) = self.store.upkeep(which) {
                    return Err(format!("room is not seen: {error}"));
                }
            }
        }
        let has_room = self.store.has_room();
        let now = self.now();
        let commits = self.store.noted().commits;
        let happened = self.gather()?;
        // What was deferred was drawn earlier: done timers may have been forgotten since.
        let kept = self.kept.iter().flat_map(Happening::names);
        for name in kept.cloned().collect::<Vec<_>>() {
            self.look(&name)?;
        }
        if !self.healing {
            self.arm_store();
        }
        let mut answers = BTreeMap::new();
        let mut batches = BTreeMap::new();
        let mut starts = Vec::new();
        let events = happened.iter().map(Happening::event).collect();
        let scanned = self.engine.stats().scanned;
        let result = self.engine.turn(events, &mut |effect| match effect {
            Effect::Answer(ticket, answer) => {
                answers.insert(ticket, answer);
            }
            Effect::BatchAnswer(ticket, answer) => {
                batches.insert(ticket, answer);
            }
            Effect::Start(attempt) => starts.push(attempt),
        });
        *self.store.next.lock() = NextCommit::default();
        let stats = self.engine.stats();
        if stats.window_bytes > self.config.window_bytes {
            return Err(format!("{} bytes in memory", stats.window_bytes));
        }
        if stats.scanned - scanned > self.config.max_scanned as u64 {
            let scanned = stats.scanned - scanned;
            return Err(format!("{scanned} entries looked at in a turn"));
        }
        if stats.steps_backward > self.steps_back {
            // The engine begins anew by this clock, as after a restart.
            self.steps_back = stats.steps_backward;
            self.opened.wall = now.wall;
            self.caught_up = 0;
        }
        self.latest = self.latest.max(self.clock.timestamp());
        // The model holds what is known for certain; beside it, what would be true if a
        // turn whose commit failed has survived after all.
        let mut survived = result.is_err().then(|| self.model.clone());
        let limited = self.machine.disk.is_limited();
        let was_full = self.store.was_full();
        self.note_trouble();
        if was_full {
            // The engine begins anew: what is overdue by then is a backlog.
            self.opened = now;
            self.caught_up = 0;
        }
        let mut told = std::mem::take(&mut self.kept);
        told.extend(happened);
        let taken = told.len().saturating_sub(self.engine.deferred());
        let deferred = told.split_off(taken);
        let mut ended = Vec::new();
        self.report.deferred += deferred.len() as u64;
        for event in told {
            match event {
                Happening::Request(ticket, request) => {
                    let answer = answers.remove(&ticket);
                    self.log.note(format!("{now:?} {request:?} -> {answer:?}"));
                    match (answer, &mut survived) {
                        (Some(Err(TimerError::StorageFull)), _) if limited || self.is_short() => {}
                        (Some(answer), survived) => {
                            self.model.answered(now, &request, &answer)?;
                            if let Some(survived) = survived {
                                survived.answered(now, &request, &answer)?;
                            }
                        }
                        (None, Some(survived)) => {
                            let is_urgent = matches!(request, Request::Remove { .. });
                            if has_room || is_urgent {
                                survived.unanswered(now, &request);
                            }
                        }
                        (None, None) => return Err("a request was not answered".to_owned()),
                    }
                }
                Happening::Drain(ticket, queue, mode) => {
                    let answer = answers.remove(&ticket);
                    let of = queue.as_ref().map_or("all", |queue| queue.as_str());
                    self.log
                        .note(format!("{now:?} drain of {of}: {mode:?} -> {answer:?}"));
                    self.report.drains += 1;
                    match (answer, &mut survived) {
                        (Some(Err(TimerError::StorageFull)), _) if limited || self.is_short() => {}
                        (Some(Ok(Response::Configured(_))), survived) => {
                            self.model.drained(queue.clone(), mode);
                            if let Some(survived) = survived {
                                survived.drained(queue, mode);
                            }
                        }
                        (None, Some(survived)) if has_room => survived.drained(queue, mode),
                        (None, Some(_)) => {}
                        (answer, _) => return Err(format!("a drain was answered {answer:?}")),
                    }
                }
                Happening::Batch(ticket, requests) => {
                    let answer = batches.remove(&ticket);
                    self.log.note(format!("{now:?} {requests:?} -> {answer:?}"));
                    let of_all = |refused: &BatchError| {
                        refused.index.is_none() && matches!(refused.error, TimerError::StorageFull)
                    };
                    match (answer, &mut survived) {
                        (Some(Err(refused)), _)
                            if of_all(&refused) && (limited || self.is_short()) => {}
                        (Some(answer), survived) => {
                            self.report.batches_refused += u64::from(answer.is_err());
                            self.model.answered_batch(now, &requests, &answer)?;
                            if let Some(survived) = survived {
                                survived.answered_batch(now, &requests, &answer)?;
                            }
                        }
                        (None, Some(survived)) => {
                            let urgent = |request| matches!(request, &Request::Remove { .. });
                            if has_room || requests.iter().all(urgent) {
                                survived.unanswered_batch(now, &requests);
                            }
                        }
                        (None, None) => return Err("a batch was not answered".to_owned()),
                    }
                }
                outcome @ Happening::Outcome(..) if was_full && result.is_ok() => {
                    self.kept.push(outcome);
                }
                Happening::Outcome(attempt, verdict, next) => {
                    let name = &attempt.name;
                    self.log.note(format!("{now:?} {name} ends: {verdict:?}"));
                    let model = survived.as_mut().unwrap_or(&mut self.model);
                    model.ended(now, &attempt, verdict, next);
                    ended.push(attempt);
                }
            }
        }
        self.kept.extend(deferred);
        self.check_order(now, &starts)?;
        for attempt in starts {
            self.start(now, attempt)?;
        }
        match result {
            Ok(()) => {
                self.listener.look()?;
                self.machine.disk.heal();
                self.settle_unheard_of(now)?;
                for attempt in &ended {
                    self.check_handed_over(now, attempt)?;
                }
                self.check_limits()?;
                self.look_at_places(now);
                if !limited && !self.is_short() {
                    self.check_note(now, commits)?;
                }
                self.check_promptness()?;
                self.check_overdue(now)?;
                self.check_due_counts(now, limited)
            }
            Err(error) => {
                self.log.note(format!("{now:?} the store fails: {error}"));
                self.report.torn += 1;
                self.restart(survived.map(|model| (model, now)))
            }
        }
    }

    /// What has happened by now: outcomes of attempts, requests of clients.
    fn gather(&mut self) -> Result<Vec<Happening>, String> {
        let now = self.clock.now();
        let mut happened = std::mem::take(&mut self.asked);
        while let Some(first) = self.running.first_entry() {
            if first.key().0 > now {
                break;
            }
            let (attempt, verdict) = first.remove();
            // Once everything is to come to its end, runs come as their schedules have them.
            let next = asked_of_runs(attempt.id, attempt.number).filter(|_| !self.healing);
            happened.push(Happening::Outcome(attempt, verdict, next));
        }
        if !self.healing && now >= self.next_request {
            let burst = *self.clients.pick(&self.plan.bursts);
            for _ in 0..burst {
                let ticket = self.next_ticket();
                let asked = if self.drains.one_in(self.plan.drains) {
                    self.draw_drain(ticket)?
                } else if self.clients.one_in(self.plan.batch) {
                    let batch = self.draw_batch()?;
                    self.report.batches += 1;
                    self.report.requests += batch.len() as u64;
                    Happening::Batch(ticket, batch)
                } else {
                    self.report.requests += 1;
                    Happening::Request(ticket, self.draw_request()?)
                };
                let at = self.clients.below(happened.len() as u64 + 1);
                let at = usize::try_from(at).unwrap_or(0);
                happened.insert(at, asked);
            }
            let pause = Duration::from_micros(self.clients.below(2 * self.plan.pace));
            self.next_request = now + pause;
        }
        Ok(happened)
    }

    /// Decides whether and how the next commit fails.
    fn arm_store(&mut self) {
        let crash = self.faults.one_in(self.plan.commit_crash);
        let slow = self.faults.one_in(self.plan.slow_commit);
        let how = self.faults.below(4);
        let fault = self.draw_fault();
        let mut next = self.store.next.lock();
        next.slow = Duration::from_micros(if slow { self.faults.below(50_000) } else { 0 });
        next.fault = match (crash, how, self.machine.kind) {
            (false, ..) => Fault::None,
            (true, 0, _) => Fault::Before,
            (true, 1 | 2, Kind::Log | Kind::Tables) => Fault::Within(fault),
            (true, ..) => Fault::After,
        };
    }

    fn start(&mut self, claimed: Now, attempt: Attempt) -> Result<(), String> {
        self.report.attempts += 1;
        self.report.reruns += u64::from(attempt.run.is_some_and(|run| run.number > 1));
        let Attempt {
            name,
            number,
            due,
            started,
            ..
        } = &attempt;
        self.log.note(format!(
            "{claimed:?} {name} starts: {number} {:?} due {due:?} at {started:?} as {} {} {:?} {:x?}",
            attempt.run,
            attempt.id,
            attempt.revision,
            attempt.fence,
            attempt.payload.get(..8)
        ));
        let handed_over = (claimed.boot, self.now().boot);
        self.handed_over
            .insert((attempt.revision, attempt.number), handed_over);
        let is_suspect = self.model.is_suspect(&attempt.name);
        self.model.started(claimed, &attempt)?;
        self.check_held(claimed, &attempt, is_suspect)?;
        if attempt.due < self.opened.by(self.model.clock_of(&attempt.name)) {
            self.caught_up += 1;
            let open_for = claimed.boot.saturating_since(self.opened.boot);
            let open_for = open_for + Duration::from_millis(20);
            let rate = f64::from(self.config.catch_up_per_second);
            #[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
            let over = self.caught_up as f64 > open_for.as_secs_f64() * rate + 2.0;
            if over && !self.stepped_since_opened {
                return Err(format!("{} caught up after {open_for:?}", self.caught_up));
            }
        }
        let verdict = self.draw_verdict();
        let service = if self.healing {
            0
        } else {
            self.receivers.below(self.plan.service)
        };
        let mut ends = self.clock.now() + Duration::from_micros(service);
        if self.killers.contains(&attempt.payload) {
            let killed_at = self.killed_at.map_or(ends, |at| at.min(ends));
            self.killed_at = Some(killed_at);
            ends = ends + NEVER;
        }
        let previous = self
            .running
            .insert((ends, self.report.attempts), (attempt, verdict));
        debug_assert!(previous.is_none());
        if self.running.len() > self.config.max_in_flight {
            return Err(format!("{} attempts run at once", self.running.len()));
        }
        Ok(())
    }

    fn draw_verdict(&mut self) -> Verdict {
        let dice = self.receivers.below(100);
        if self.healing || dice >= self.plan.failing + self.plan.stopping {
            Verdict::Done
        } else if dice < self.plan.stopping {
            Verdict::Stopped
        } else {
            let asks = self.receivers.one_in(4);
            let wait = Duration::from_micros(self.receivers.below(120_000_000));
            Verdict::Failed {
                retry_after: asks.then_some(wait),
            }
        }
    }

    /// What starts in one turn starts in order in its queue: of deadline, then of insertion. Runs
    /// that came about in this turn, because one before was given up, left out: their deadline
    /// may have passed long before.
    fn check_order(&self, now: Now, starts: &[Attempt]) -> Result<(), String> {
        if starts.len() < 2 {
            return Ok(());
        }
        let unheard_of = self.model.unheard_of(now);
        let queues: BTreeSet<_> = starts.iter().map(|a| &a.name.queue).collect();
        for queue in queues {
            let of_queue = starts.iter().filter(|a| a.name.queue == *queue);
            let fresh = of_queue.filter(|a| !unheard_of.contains(&a.name));
            let fresh = fresh.filter(|a| !self.model.is_suspect(&a.name));
            let fresh: Vec<_> = fresh
                .map(|a| (self.model.clock_of(&a.name), a.due, a.revision))
                .filter(|&(clock, due, _)| due >= self.opened.by(clock))
                .collect();
            // Where the lines of the clocks part, those by one clock are in order.
            let is_one = self.opened.wall == self.opened.boot;
            for by in DueClock::ALL {
                let of_clock = fresh.iter().filter(|(clock, ..)| is_one || *clock == by);
                let order: Vec<_> = of_clock
                    .map(|&(_, due, revision)| (due, revision))
                    .collect();
                if !order.is_sorted() && !self.stepped_since_opened {
                    return Err(format!("started out of order at {now:?}: {order:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether a queue has as many attempts as it may while others want some.
    fn has_its_share(&self, queue: &QueueName) -> bool {
        let running = self.running.values().map(|(attempt, _)| attempt);
        let has = running.filter(|a| a.name.queue == *queue).count();
        let free = self.config.max_in_flight - self.running.len();
        let percent = usize::from(self.config.queue_share_percent);
        has > 0 && has * (100 - percent) >= free * percent
    }

    /// A call that failed may have been for lack of room.
    fn note_trouble(&mut self) {
        let struck = self.machine.disk.struck();
        if struck > self.struck {
            self.struck = struck;
            self.room_since = self.clock.boot();
        }
    }

    /// Whether queues that have used up their share of the slots may fill the window alone:
    /// each of them has an entry in it by each clock, and a drawn window can be as small. It is
    /// full from three quarters on: the rest is for what comes in.
    fn is_cramped(&self) -> bool {
        let few = 4 * self.plan.queues.max(FEW_QUEUES);
        let window = self.config.window;
        window as u64 <= few && self.engine.stats().in_window * 4 >= window * 3
    }

    /// Whether the store may not know yet that there is room again.
    fn is_short(&self) -> bool {
        let known_by = self.room_since + Duration::from_secs(2);
        self.machine.disk.is_limited() || self.clock.boot() < known_by
    }

    /// What has a limit keeps it, and what is counted is there.
    fn check_limits(&self) -> Result<(), String> {
        let stats = self.engine.stats();
        // An entry counts as one of as many as are allowed, and one more.
        if stats.in_window > self.config.window + 1 {
            return Err(format!("{} in the window", stats.in_window));
        }
        // Attempts of timers that were removed or replaced run on, and keep their place.
        let ended = |kept: &&Happening| matches!(kept, Happening::Outcome(..));
        let running = self.running.len() + self.kept.iter().filter(ended).count();
        if stats.in_flight != running {
            return Err(format!("{} in flight, {running} run", stats.in_flight));
        }
        // Each attempt runs, or is in one count of how it ended; or its record could not be read.
        let counted = stats.done + stats.failed + stats.stopped + stats.outdated;
        // No receiver of this world holds an attempt.
        if stats.not_made > 0 {
            return Err(format!("{} attempts were not made", stats.not_made));
        }
        let measured = stats.lateness.count();
        if measured < counted || measured > counted + stats.unreadable {
            return Err(format!(
                "{counted} attempts have ended, {measured} are measured"
            ));
        }
        let counted = counted + stats.in_flight as u64;
        if counted > stats.attempts || counted + stats.unreadable < stats.attempts {
            let attempts = stats.attempts;
            return Err(format!("{attempts} attempts, {counted} of them counted"));
        }
        Ok(())
    }

    /// What waited for a place was held for as long as there was none, and what was overdue at the
    /// opening, or is a suspect, for as long as that takes.
    fn check_held(&self, claimed: Now, attempt: &Attempt, is_suspect: bool) -> Result<(), String> {
        let clock = self.model.clock_of(&attempt.name);
        let waited = claimed.by(clock).saturating_since(attempt.due);
        let since = self.places.since(&attempt.name.queue);
        let least = since.map_or(Duration::ZERO, |since| claimed.boot.saturating_since(since));
        let due = claimed.boot.saturating_sub(waited);
        let queue = &attempt.name.queue;
        let drained = self.places.drained(queue, due, claimed.boot);
        let is_drained = !drained.is_zero();
        // Where commits fail, a drain begins and ends with the commit after.
        let is_sound = self.plan.full == 0 && self.plan.failures.is_empty();
        let drained = if is_sound { drained } else { Duration::ZERO };
        let least = least.max(drained).min(waited);
        // At the rate of the opening, or of one from when the engine began anew.
        let is_rated = attempt.due < self.opened.by(clock) || is_suspect;
        // A queue may have been drained more than once, or not have had a place as well. What held a run has held
        // those too that came due meanwhile.
        let follows = attempt.run.is_some_and(|run| run.number > 1);
        let is_right = if is_rated || self.is_cramped() || is_drained || follows {
            (least..=waited).contains(&attempt.held)
        } else {
            attempt.held == least
        };
        if is_right {
            return Ok(());
        }
        let Attempt {
            name, due, held, ..
        } = attempt;
        Err(format!(
            "{name}, due at {due:?}, started at {claimed:?}, was held for {held:?}, and not for {least:?}"
        ))
    }

    /// What is stored of an attempt that has ended says when its receiver had it, and nothing that had
    /// not come when the outcome came.
    fn check_handed_over(&mut self, now: Now, attempt: &Attempt) -> Result<(), String> {
        let handed_over = self
            .handed_over
            .remove(&(attempt.revision, attempt.number))
            .ok_or_else(|| format!("{attempt:?} has ended and was not handed over"))?;
        let record = self.store.get(Shard::ONLY, &attempt.name);
        let record = record.map_err(|error| error.to_string())?;
        let record = record.filter(|record| record.id == attempt.id);
        let mut stored = record.iter().flat_map(|record| &record.attempts);
        let Some(stored) = stored.find(|stored| stored.number == attempt.number) else {
            return Ok(());
        };
        let said = took(attempt).unwrap_or_default();
        let (before, after) = handed_over;
        let least = said.min(now.boot.saturating_since(after));
        let most = said.min(now.boot.saturating_since(before));
        let took = stored.started.saturating_since(attempt.started);
        let late = stored.started.saturating_since(attempt.due + attempt.held);
        let is_right = stored.started >= attempt.started && (least..=most).contains(&took);
        if is_right && stored.lateness() == Some(late) {
            return Ok(());
        }
        Err(format!(
            "{attempt:?} was late by {late:?}, and is stored as {stored:?}"
        ))
    }

    fn look_at_places(&mut self, now: Now) {
        let running = self.running.values().map(|(attempt, _)| attempt);
        let kept = self.kept.iter().filter_map(|kept| match kept {
            Happening::Outcome(attempt, ..) => Some(attempt),
            _ => None,
        });
        let queues = running.chain(kept).map(|attempt| &attempt.name.queue);
        self.places.look(&self.config, queues, now.boot);
        if self.plan.drains > 0 {
            let known = (0..self.plan.queues).filter_map(|number| self.plan.queue(number).ok());
            let held = known.filter(|queue| self.model.holds(queue, now.wall));
            self.places
                .look_at_drains(&held.collect::<Vec<_>>(), now.boot);
        }
    }

    /// The next turn is asked for in time, and whatever is due now was started.
    fn check_promptness(&self) -> Result<(), String> {
        let full = self.running.len() >= self.config.max_in_flight;
        let wall = self.clock.timestamp();
        let waits = |queue: &QueueName| self.has_its_share(queue) || self.model.holds(queue, wall);
        let next_due = self.model.next_due(self.now(), self.opened, waits);
        let next_suspect = self.model.next_suspect(self.now(), waits);
        // At the rate of the backlog: one a second at the least.
        let late = Duration::from_secs(1);
        let now = self.clock.timestamp();
        let next_suspect = next_suspect.map(|(from, name)| (from.max(now) + late, name));
        let paused = (0..self.plan.queues).filter_map(|number| {
            let queue = self.plan.queue(number).ok()?;
            let end = self.model.starts_again(&queue, wall)?;
            let others = |other: &QueueName| *other != queue || self.has_its_share(other);
            let (due, name) = self.model.next_due(self.now(), self.opened, others)?;
            Some((due.max(end), name))
        });
        let next = next_due.into_iter().chain(next_suspect).chain(paused).min();
        let Some((due, name)) = next else {
            return Ok(());
        };
        match self.engine.next_wake() {
            Some(wake) if wake <= due.max(self.clock.timestamp()) => Ok(()),
            _ if full || self.is_cramped() => Ok(()), // an outcome comes first
            _ if self.is_short() => Ok(()),
            wake => Err(format!(
                "{name} is due at {due:?}, the next turn is at {wake:?}"
            )),
        }
    }

    /// As much is counted as overdue as the store has, if the engine says that it knows.
    fn check_overdue(&mut self, now: Now) -> Result<(), String> {
        let told = self.engine.stats().overdue;
        // The wall clock may show the same time twice.
        let counted_at = match self.counted {
            Some((as_of, boot)) if as_of == told.as_of => boot,
            _ => now.boot,
        };
        self.counted = Some((told.as_of, counted_at));
        if !told.is_exact || told.as_of != now.wall || counted_at != now.boot {
            return Ok(());
        }
        let (mut count, mut oldest) = (0, None);
        for clock in DueClock::ALL {
            let until = now.by(clock);
            let scan = DueScan {
                until,
                ..DueScan::all(clock)
            };
            let page = self.store.due(Shard::ONLY, &scan);
            for entry in page.map_err(|e| e.to_string())?.entries {
                let record = self.store.get(Shard::ONLY, &entry.name);
                let record = record.map_err(|e| e.to_string())?;
                if record.is_some_and(|record| record.state == State::Pending) {
                    count += 1;
                    let due = now.convert(entry.wake.at, clock, DueClock::Wall);
                    oldest = Some(oldest.map_or(due, |oldest: Timestamp| oldest.min(due)));
                }
            }
        }
        self.report.overdue += count;
        if (told.count, told.oldest) == (count, oldest) {
            return Ok(());
        }
        Err(format!(
            "{count} are overdue, the first since {oldest:?}, and it says {told:?}"
        ))
    }

    /// The counts by due time are those of the store, and no longer than they are to be once nothing is left to read.
    fn check_due_counts(&mut self, now: Now, limited: bool) -> Result<(), String> {
        let counted = due_counts::check(&self.engine, &*self.store, Shard::ONLY)?;
        let Some(counted) = counted else {
            return Ok(());
        };
        self.report.counted += counted;
        // A disk that is full, or nearly, makes the engine wait, and look at nothing meanwhile.
        let since = now.boot.saturating_since(self.opened.boot);
        let waits = limited || since < Duration::from_secs(1);
        let is_done = self.engine.next_wake().is_none_or(|wake| wake > now.wall) && !waits;
        if is_done && self.clock.timestamp() == now.wall {
            due_counts::check_lengths(&self.engine, now.wall)?;
        }
        Ok(())
    }

    /// A retry that comes too late is given up, and so is a timer that was missed; a run that was
    /// is passed over. Nobody is told, the store shows it.
    fn settle_unheard_of(&mut self, now: Now) -> Result<(), String> {
        for name in self.model.unheard_of(now) {
            let record = self.store.get(Shard::ONLY, &name);
            match record.map_err(|e| e.to_string())? {
                Some(record) => self.model.follow(&name, now, &record),
                None => self.model.follow_to_its_end(&name, now),
            }
        }
        Ok(())
    }

    /// The process ends here and starts again some time later, on what the store kept.
    /// `survived` is what is true if the turn that failed at that time has survived.
    fn restart(&mut self, survived: Option<(Model, Now)>) -> Result<(), String> {
        self.report.crashes += 1;
        self.killed_at = None;
        self.running.clear();
        self.kept.clear();
        self.model.crashed();
        self.listener.look()?;
        self.listener.ends();
        let survived = survived.map(|(mut model, at)| {
            model.crashed();
            (model, at)
        });
        let torn = survived.is_some();
        self.end_process();
        if !self.healing {
            let away = *self.faults.pick(&[0, 1_000_000, 3_600_000_000]);
            let away = Duration::from_micros(self.faults.below(away + 1));
            self.clock.advance(away);
            self.latest = self.latest.max(self.clock.timestamp());
            self.reboot();
        }
        let before = Arc::clone(&self.store);
        let mut tries = 0;
        let engine = loop {
            // Recovery may be cut off as well, several times in a row, but not for ever.
            tries += 1;
            let fails = tries < 5 && !self.healing && self.faults.one_in(3);
            let fault = self.draw_fault();
            if fails {
                self.machine.disk.fail(fault);
            } else if tries > 1 {
                self.machine.disk.set_capacity(None);
            }
            let opened =
                CrashingStore::new(&self.machine, &self.clock, self.in_bulk).and_then(|store| {
                    self.store = Arc::new(store);
                    Engine::open(
                        self.store.clone(),
                        Shard::ONLY,
                        Arc::new(self.clock.clone()),
                        self.config.clone(),
                    )
                });
            let limited = self.machine.disk.is_limited();
            let opened = opened.map_err(|error| {
                self.log.note(format!("an opening fails: {error}"));
                error
            });
            match opened {
                Ok(engine) if !fails => break engine,
                Err(error) if !fails && !limited => {
                    return Err(format!("the store does not open: {error}"));
                }
                _ => {
                    self.report.torn_openings += 1;
                    self.end_process();
                }
            }
        };
        let replaced = std::mem::replace(&mut self.engine, engine);
        // Before the owner before tries once more.
        let carried_on = self.carry_on(&before);
        if !torn {
            self.check_fence(replaced)?;
        }
        carried_on?;
        self.opened = self.now();
        self.steps_back = 0;
        self.stepped_since_opened = false;
        self.places = Places::default();
        self.caught_up = 0;
        self.audit(survived)?;
        self.model.opened(self.opened);
        Ok(())
    }

    /// An attempt may end the process.
    fn kill_if_due(&mut self) -> Result<(), String> {
        if self.killed_at.is_none_or(|at| at > self.clock.now()) {
            return Ok(());
        }
        self.log.note("an attempt ends the process".to_owned());
        self.report.killed += 1;
        self.restart(None)
    }

    /// Where only payloads end the process, nothing else dies of that.
    fn check_innocence(&self, records: &[Record]) -> Result<(), String> {
        let reason = DeadReason::Interrupted;
        let mut dead = records
            .iter()
            .filter(|r| matches!(r.state, State::Dead { reason: r, .. } if r == reason));
        let innocent = dead.find(|record| !self.killers.contains(&record.payload));
        match innocent {
            Some(record) if self.plan.killers > 0 => Err(format!(
                "{} is dead of what others did: {record:?}",
                record.name
            )),
            _ => Ok(()),
        }
    }

    /// The process ends, and with it, now and then, the machine.
    fn end_process(&mut self) {
        let disk = &self.machine.disk;
        match self.faults.below(4) {
            0 | 1 => disk.cut(self.faults.draw()),
            2 => disk.restart(),
            _ => {
                disk.restart();
                disk.evict();
            }
        }
    }

    /// The owner before may still believe that it is one: it changes nothing.
    fn check_fence(&mut self, mut replaced: Engine) -> Result<(), String> {
        let late = Event::Request(Ticket(u64::MAX), self.draw_set()?);
        let mut let_out = 0;
        let mut sink = |effect| {
            let is_harmless = match effect {
                // A refusal is no lie, nor is it that nothing was done.
                Effect::Answer(_, answer) => answer.is_err(),
                Effect::BatchAnswer(_, answer) => answer.map_or(true, |done| done.is_empty()),
                Effect::Start(_) => false,
            };
            let_out += u64::from(!is_harmless);
        };
        let mut turn = replaced.turn(vec![late], &mut sink);
        while turn.is_ok() && replaced.deferred() > 0 {
            turn = replaced.turn(vec![], &mut sink);
        }
        match turn {
            _ if let_out == 0 => Ok(()),
            other => Err(format!(
                "an owner that was replaced let {let_out} out: {other:?}"
            )),
        }
    }

    /// Compares everything in the store with the model, and settles on what has survived.
    fn audit(&mut self, survived: Option<(Model, Now)>) -> Result<(), String> {
        self.machine.bound_calls_of_checks();
        let records = self.everything()?;
        self.listener.audit(&records, survived.is_some())?;
        self.check_innocence(&records)?;
        let names = records.iter().map(|record| record.name.clone()).collect();
        let answers = Answers::of(&*self.store, &names).map_err(|e| e.to_string())?;
        answers.check()?;
        self.check_recovery(&names, &answers)?;
        let mut certain = self.model.clone();
        let drains = Drains::of_settings(&self.engine.settings());
        let as_acknowledged = certain
            .audit(self.latest, None, &records)
            .and_then(|()| certain.audit_drains(&drains));
        let Err(what) = as_acknowledged else {
            self.model = certain;
            return Ok(());
        };
        let Some((mut survived, at)) = survived else {
            return Err(what);
        };
        let with_the_rest = survived
            .audit(self.latest, Some(at), &records)
            .and_then(|()| survived.audit_drains(&drains));
        with_the_rest.map_err(|other| format!("{what}; with the lost turn: {other}"))?;
        self.model = survived;
        Ok(())
    }

    /// A recovery of what was recovered finds the same.
    fn check_recovery(
        &mut self,
        names: &BTreeSet<TimerName>,
        answers: &Answers,
    ) -> Result<(), String> {
        if self.machine.kind == Kind::Memory || !self.faults.one_in(4) {
            return Ok(());
        }
        let copy = self.machine.copy();
        copy.disk.set_capacity(None);
        if self.faults.one_in(2) {
            copy.disk.cut(self.faults.draw());
        }
        let again = copy.open().map_err(|e| format!("not a second time: {e}"))?;
        let again = Answers::of(again.as_store(), names).map_err(|e| e.to_string())?;
        if again != *answers {
            return Err("a second recovery finds something else".to_owned());
        }
        Ok(())
    }

    fn everything(&self) -> Result<Vec<Record>, String> {
        let mut records = Vec::new();
        for queue in 0..self.plan.queues {
            let queue = self.plan.queue(queue)?;
            let mut filter = Filter::queue(queue);
            filter.limit = 7;
            loop {
                let page = self
                    .store
                    .list(Shard::ONLY, &filter)
                    .map_err(|e| e.to_string())?;
                records.extend(page.records);
                match page.next {
                    Some(next) => filter.after = Some(next),
                    None => break,
                }
                // In turns, the one limit and the other.
                filter.scan_limit ^= Filter::SCAN_LIMIT ^ 5;
            }
        }
        Ok(records)
    }
}

impl Plan {
    /// The queue of that number. With namespaces, every other one is the one before in another
    /// namespace.
    fn queue(&self, number: u64) -> Result<QueueName, String> {
        let of = number - self.twin_of(number);
        let queue = QueueName::new(queue_name(of, self.long_names)).map_err(|e| e.to_string())?;
        Ok(match number - of {
            0 => queue,
            _ => in_other_namespace(&queue),
        })
    }

    /// How far before a queue stands the one that has its name, in another namespace.
    fn twin_of(&self, number: u64) -> u64 {
        if self.namespaces { number % 2 } else { 0 }
    }
}

/// The first ones have a letter.
fn queue_name(number: u64, is_long: bool) -> String {
    if is_long {
        return format!("queue-{number:0>100}");
    }
    let letter = u8::try_from(number).ok().filter(|&number| number < 26);
    match letter {
        Some(number) => char::from(b'a' + number).to_string(),
        None => format!("queue-{number}"),
    }
}

/// How long after the hand-over the receiver of an attempt says that it had it: one in three at once.
fn took(attempt: &Attempt) -> Option<Duration> {
    let number = attempt.revision.0 + u64::from(attempt.number);
    let took = Duration::from_micros(number * 37 % 1_000);
    (!number.is_multiple_of(3)).then_some(took)
}

/// Something that happens to the engine, kept to be told to the model as well.
enum Happening {
    Request(Ticket, Request),
    /// A drain of a queue or of all; no mode ends it.
    Drain(Ticket, Option<QueueName>, Option<DrainMode>),
    Batch(Ticket, Vec<Request>),
    Outcome(Attempt, Verdict, Option<NextRun>),
}

impl Happening {
    /// The timers that it asks something of.
    fn names(&self) -> impl Iterator<Item = &TimerName> {
        let requests = match self {
            Self::Request(_, request) => std::slice::from_ref(request),
            Self::Batch(_, requests) => requests,
            Self::Drain(..) | Self::Outcome(..) => &[],
        };
        requests.iter().filter_map(Request::name)
    }

    fn event(&self) -> Event {
        match self {
            Self::Drain(ticket, queue, mode) => {
                let request = Request::drain(queue.as_ref(), *mode);
                let request = request.unwrap_or_else(|error| unreachable!("{error}"));
                Event::Request(*ticket, request)
            }
            Self::Request(ticket, request) => Event::Request(*ticket, request.clone()),
            Self::Batch(ticket, requests) => Event::Batch(*ticket, requests.clone()),
            Self::Outcome(attempt, verdict, next) => Event::Outcome {
                revision: attempt.revision,
                outcome: Outcome {
                    started: took(attempt).map(|took| attempt.started + took),
                    next: *next,
                    ..Outcome::new(*verdict, "").with_answer(answer_to(attempt.id, attempt.number))
                },
            },
        }
    }
}
