//! Worlds of flows: engines of several shards that share one budget, timers whose flows have limits, and limits that
//! change.
//!
//! Whatever comes due starts as soon as its flows, its queue and the process have room, and not before. A flow that
//! hangs delays no other. Those that wait for a flow start in order, the most urgent first. No engine waits for a flow
//! for long while others have it. What waits and does not fit into memory comes all the same. An attempt that its handler
//! holds uses up nothing, and is made again once its time has come or a limit has changed, and not before. Runs that come
//! due while a flow holds the run before are late by nothing but the runs between. In the end every timer is done.
//!
//! The clocks of a world stand still while its engines take turns, so every attempt is late by nothing but what held it.
//!
//! ```
//! use countwheel_sim::{Stepped, flows};
//!
//! let report = flows::run(7, &Stepped::of(flows::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.attempts > 0 && report.held > 0);
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Budget, Config, DeadReason, Due, Effect, Engine, Event, Flow, FlowLimits, FlowRate,
    Flows, Key, Missed, Outcome, Overlap, Precondition, QueueName, Record, Recurrence, Request,
    RetryPolicy, Revision, Route, Schedule, SetOptions, Shift, State, Ticket, TimerId, TimerName,
    Verdict,
};
use countwheel_time::{Clock, Instant, ManualClock, Timestamp};
use parking_lot::Mutex;

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

/// How many turns may follow each other while no time passes, in turns an engine and timer.
const RESTLESS: usize = 60;

/// A failed attempt is made again after this time.
const RETRY: Duration = Duration::from_millis(700);

/// What was overdue at an opening starts at a rate: the next of it within this time.
const CATCH_UP: Duration = Duration::from_millis(1);

/// How many steps a run has, if nobody says it.
pub const STEPS: u64 = 300;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Turns that were taken.
    pub turns: u64,
    /// Attempts that started.
    pub attempts: u64,
    /// Of these, held by a limit.
    pub held: u64,
    /// Of these, not made, since the handler held them.
    pub not_made: u64,
    /// Of these, runs that came due before the run before them had ended.
    pub following: u64,
    /// Changes of limits.
    pub changes: u64,
    /// Times the process ended.
    pub ends: u64,
    /// The most timers that waited for flows in memory.
    pub parked: usize,
    /// Timers done.
    pub done: u64,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.turns += other.turns;
        self.attempts += other.attempts;
        self.held += other.held;
        self.not_made += other.not_made;
        self.following += other.following;
        self.changes += other.changes;
        self.ends += other.ends;
        self.parked = self.parked.max(other.parked);
        self.done += other.done;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} turns, {} attempts, {} of them held, {} not made, {} of runs that followed at once; {} changes \
             of limits, {} ends of a process, at most {} timers waited in memory; {} done",
            self.seeds,
            self.turns,
            self.attempts,
            self.held,
            self.not_made,
            self.following,
            self.changes,
            self.ends,
            self.parked,
            self.done
        )
    }
}

/// Runs one seed.
///
/// # Errors
/// The first rule broken.
pub fn run(seed: u64, options: &Stepped) -> Result<Report, Box<Failure>> {
    #[cfg(feature = "planted-bugs")]
    let _planted = crate::planted::Planted::new(options.planted_bug);
    let mut world = World::new(seed, options);
    let result = world.live(options.steps);
    let World {
        mut report,
        log,
        step,
        ..
    } = world;
    report.seeds = 1;
    report.trace = log.hash;
    result
        .map(|()| report)
        .map_err(|what| log.failure(seed, step, what))
}

/// The limits of this time.
#[derive(Debug, Default)]
struct Rules {
    limits: Mutex<BTreeMap<Flow, FlowLimits>>,
    /// What is added to the numbers of flows in payloads, as if endpoints were moved, and how many flows there are.
    moved: AtomicU8,
    flows: AtomicU8,
}

impl Flows for Rules {
    fn route(&self, _: &TimerName, payload: &[u8]) -> Route {
        self.route_of(payload)
    }

    fn limits(&self, flow: &Flow) -> FlowLimits {
        self.limits.lock().get(flow).copied().unwrap_or_default()
    }
}

impl Rules {
    /// A payload is a priority and the numbers of flows.
    fn route_of(&self, payload: &[u8]) -> Route {
        let (priority, flows) = payload.split_first().map_or((0, &[][..]), |(p, f)| (*p, f));
        let moved = self.moved.load(Ordering::Relaxed);
        let of = self.flows.load(Ordering::Relaxed).max(1);
        let flows = flows
            .iter()
            .map(|number| flow(number.wrapping_add(moved) % of));
        Route {
            flows: flows.collect(),
            priority: u32::from(priority),
            lease: None,
        }
    }
}

fn flow(number: u8) -> Flow {
    Flow::new(format!("flow-{number}"))
}

/// What rounding of times does to an age.
const ROUNDED_AGE: Duration = Duration::from_millis(1);
/// What rounding of times does to the starts in a bucket.
const EXACT: f64 = 1e-6;
/// The same after many changes of the rate, each of which rounds.
const ROUNDED: f64 = 0.01;

/// How many starts are left of a burst, at the most and at the least. An engine looks at a changed rate when it looks at
/// the flow next, and nobody sees when: since the last start that counted, the bucket has filled at one of the rates, up to
/// one of the bursts. So no number of changes begins a burst.
#[derive(Debug)]
struct Bucket {
    /// What was left at the most after that start, and when that was.
    left: f64,
    since: Timestamp,
    /// What is left now.
    most: f64,
    least: f64,
    at: Timestamp,
    /// The rates since that start.
    rates: Vec<FlowRate>,
    /// Whether there was such a start.
    is_counted: bool,
}

impl Bucket {
    fn new(rate: FlowRate, at: Timestamp) -> Self {
        let burst = f64::from(rate.burst());
        Self {
            left: burst,
            since: at,
            most: burst,
            least: burst,
            at,
            rates: vec![rate],
            is_counted: false,
        }
    }

    fn largest_burst(&self) -> f64 {
        let bursts = self.rates.iter().map(|rate| f64::from(rate.burst()));
        bursts.fold(0.0, f64::max)
    }

    fn fill(&mut self, now: Timestamp) {
        let per_second = |rate: &FlowRate| rate.interval().as_secs_f64().recip();
        let fastest = self.rates.iter().map(per_second).fold(0.0, f64::max);
        let slowest = self.rates.iter().map(per_second);
        let slowest = slowest.fold(f64::INFINITY, f64::min);
        let bursts = self.rates.iter().map(|rate| f64::from(rate.burst()));
        let smallest = bursts.fold(f64::INFINITY, f64::min);
        let since = |at: Timestamp| now.saturating_since(at).as_secs_f64();
        self.most = (self.left + fastest * since(self.since)).min(self.largest_burst());
        self.least = (self.least + slowest * since(self.at)).min(smallest);
        self.at = now;
    }

    fn turn_to(&mut self, rate: FlowRate, now: Timestamp) {
        self.fill(now);
        if self.rates.last() != Some(&rate) {
            self.rates.push(rate);
        }
        if !self.is_counted {
            // An engine that knows no rate of the flow begins with all of the burst.
            self.left = self.left.max(f64::from(rate.burst()));
        }
        self.fill(now);
    }

    /// A start that counts, after which the engine knows of this rate alone.
    fn take(&mut self, rate: FlowRate) {
        let burst = f64::from(rate.burst());
        self.left = self.most.min(burst) - 1.0;
        self.most = self.left;
        self.least = (self.least.min(burst) - 1.0).max(0.0);
        self.since = self.at;
        (self.rates, self.is_counted) = (vec![rate], true);
    }
}

/// An engine, and what its driver knows of it.
struct Driven {
    engine: Engine,
    woken: Arc<AtomicBool>,
    /// What was due and waited when its last turn ended, with its place in the order.
    waited: BTreeMap<(TimerName, Revision), (u32, Timestamp)>,
    /// For each flow of which something waits that only the flow holds back: starts of others since.
    passed_over: BTreeMap<Flow, u64>,
}

/// An attempt that runs.
struct Running {
    shard: usize,
    attempt: Attempt,
    verdict: Verdict,
    flows: Vec<Flow>,
    /// How often limits had changed when it started.
    changes: u64,
}

/// What is to become of a timer.
#[derive(Debug, Default)]
struct Expected {
    /// The number of the last attempt that was made or is under way.
    number: u32,
    /// Its failures that count: those of this run.
    failures: u32,
    run: u32,
    /// Not before this time, unless limits change or somebody moves the timer: its handler held it.
    not_before: Option<(Revision, Timestamp)>,
    /// The last attempt was not made: the timer waits beside those of its flow, and not in their order.
    was_held: bool,
    /// When the last attempt ended.
    ended: Option<Timestamp>,
    /// Since when runs follow each other that came due before the run before them had ended.
    follows_since: Option<Timestamp>,
    /// For how long the attempts ran that were made.
    ran: Duration,
    /// The process ended meanwhile, or timers were given other flows: the time for which it was held before used up age.
    is_unsure: bool,
}

struct World {
    random: Random,
    clock: ManualClock,
    store: Arc<MemoryStore>,
    config: Config,
    rules: Arc<Rules>,
    budget: Budget,
    all: Vec<Driven>,
    running: BTreeMap<(Instant, u64), Running>,
    /// What may be left of the burst of each flow that has or had a rate.
    buckets: BTreeMap<Flow, Bucket>,
    expected: BTreeMap<TimerId, Expected>,
    holding: u64,
    opened: Timestamp,
    flows: u8,
    queues: u64,
    keys: u64,
    service: u64,
    failing: u64,
    next_ticket: u64,
    step: u64,
    /// Memory for what waits is short: order is not kept by what was left to the store.
    is_tight: bool,
    /// All timers are of one flow with few places, and more are always due.
    is_hot: bool,
    /// Places were short at some time: an engine that had no turn then does not know since when.
    was_short: bool,
    healing: bool,
    report: Report,
    log: Log,
}

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "flows");
        let clock = ManualClock::at(Timestamp::from_micros(1_356_998_400_000_000));
        let rules = Arc::<Rules>::default();
        let is_tight = random.one_in(3);
        let rules_of_config: Arc<dyn Flows> = Arc::<Rules>::clone(&rules);
        // More attempts would not fit into the memory for them.
        let places = *random.pick(&[1_usize, 2, 3, 3, 16, 64]);
        let places = if is_tight { places.min(16) } else { places };
        let config = Config {
            max_in_flight: places,
            queue_share_percent: *random.pick(&[75, 50, 50, 100]),
            window_bytes: if is_tight { 128 << 10 } else { 64 << 20 },
            max_interruptions: u32::MAX,
            suspect_hold: Duration::ZERO,
            catch_up_per_second: 1_000_000,
            flows: Some(rules_of_config),
            seed,
            ..Config::default()
        };
        let shards = random.between(1, 4);
        let is_hot = !is_tight && random.one_in(4);
        let mut world = Self {
            store: Arc::new(MemoryStore::new(seed)),
            budget: Budget::new(&config),
            all: Vec::new(),
            running: BTreeMap::new(),
            buckets: BTreeMap::new(),
            expected: BTreeMap::new(),
            holding: if random.one_in(2) {
                random.below(40)
            } else {
                0
            },
            opened: clock.timestamp(),
            flows: u8::try_from(random.between(1, 5)).unwrap_or(1),
            queues: random.between(1, 3),
            keys: if is_tight {
                random.between(60, 200)
            } else {
                random.between(10, 60)
            },
            service: *random.pick(&[1_000, 100_000, 20_000_000]),
            failing: random.below(30),
            next_ticket: 0,
            step: 0,
            is_tight,
            is_hot,
            was_short: false,
            healing: false,
            report: Report::default(),
            log: Log::new(options.log),
            random,
            clock,
            config,
            rules,
        };
        world.rules.flows.store(world.flows, Ordering::Relaxed);
        for number in 0..world.flows {
            let mut limits = world.draw_limits();
            if is_hot {
                limits.rate = None;
                limits.at_once = Some(world.random.pick(&[1, 2]).to_owned());
            }
            world.rules.limits.lock().insert(flow(number), limits);
        }
        world.open(usize::try_from(shards).unwrap_or(1));
        world
    }

    fn open(&mut self, shards: usize) {
        self.opened = self.clock.timestamp();
        for shard in 0..shards {
            let number = u16::try_from(shard).unwrap_or(0);
            let engine = Engine::open_within(
                &self.budget,
                self.store.clone(),
                Shard(number),
                Arc::new(self.clock.clone()),
                self.config.clone(),
            );
            let engine =
                engine.unwrap_or_else(|error| unreachable!("a healthy store opens: {error}"));
            let woken = Arc::new(AtomicBool::new(false));
            let wakes = Arc::clone(&woken);
            engine.on_room(move || wakes.store(true, Ordering::Relaxed));
            self.all.push(Driven {
                engine,
                woken,
                waited: BTreeMap::new(),
                passed_over: BTreeMap::new(),
            });
        }
    }

    fn draw_limits(&mut self) -> FlowLimits {
        let at_once = match self.random.below(6) {
            0 => Some(0),
            1 | 2 => Some(1),
            3 => u32::try_from(self.random.between(2, 8)).ok(),
            _ => None,
        };
        let rate = self.random.one_in(3).then(|| {
            let starts = u32::try_from(self.random.between(1, 50)).unwrap_or(1);
            let burst = u32::try_from(self.random.between(1, 5)).unwrap_or(1);
            FlowRate::new(starts, Duration::from_secs(1), burst)
        });
        FlowLimits {
            at_once,
            rate,
            shared: self.random.one_in(2),
        }
    }

    fn live(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.step += 1;
            match self.random.below(20) {
                0..7 => self.ask()?,
                7 => {
                    for _ in 0..self.keys {
                        self.ask()?;
                    }
                }
                8 | 9 if !self.is_hot => self.change_limits(),
                11 if self.random.one_in(4) => self.change_routes(),
                10 if self.random.one_in(8) => self.end_process(),
                _ => self.pass_time(),
            }
            self.settle()?;
            self.check()?;
        }
        self.heal()
    }

    /// Everything works from here on, and comes to its end.
    fn heal(&mut self) -> Result<(), String> {
        self.healing = true;
        self.look_at_held();
        for number in 0..self.flows {
            let limits = FlowLimits {
                at_once: Some(1),
                ..FlowLimits::default()
            };
            self.rules.limits.lock().insert(flow(number), limits);
        }
        self.budget.flows_changed();
        for _ in 0..100_000 {
            self.settle()?;
            self.check()?;
            let records = self.records()?;
            let mut left = records
                .iter()
                .flatten()
                .filter(|record| matches!(record.state, State::Pending | State::Delivering));
            if left.next().is_none() {
                return Ok(());
            }
            self.pass_time();
        }
        Err("it does not come to its end".to_owned())
    }

    fn name(&self, number: u64) -> Result<(usize, TimerName), String> {
        let queue = QueueName::new(format!("queue-{}", number % self.queues));
        let queue = queue.map_err(|error| error.to_string())?;
        let key = Key::new(format!("key-{number}")).map_err(|error| error.to_string())?;
        let shard = usize::try_from(number).unwrap_or(0) % self.all.len();
        Ok((shard, TimerName { queue, key }))
    }

    fn get(&self, shard: usize, name: &TimerName) -> Result<Option<Record>, String> {
        let shard = Shard(u16::try_from(shard).unwrap_or(0));
        self.store
            .get(shard, name)
            .map_err(|error| error.to_string())
    }

    /// The records of each shard.
    fn records(&self) -> Result<Vec<Vec<Record>>, String> {
        let mut records = vec![Vec::new(); self.all.len()];
        for number in 0..self.keys {
            let (shard, name) = self.name(number)?;
            records[shard].extend(self.get(shard, &name)?);
        }
        Ok(records)
    }

    /// What its handler held may start from now on.
    fn look_at_held(&mut self) {
        for expected in self.expected.values_mut() {
            expected.not_before = None;
        }
    }

    fn change_limits(&mut self) {
        let number = u8::try_from(self.random.below(u64::from(self.flows))).unwrap_or(0);
        let limits = self.draw_limits();
        self.log.note(format!("{:?} has {limits:?}", flow(number)));
        self.rules.limits.lock().insert(flow(number), limits);
        if let Some(rate) = limits.rate {
            self.bucket(&flow(number), rate);
        }
        self.report.changes += 1;
        self.look_at_held();
        self.budget.flows_changed();
    }

    /// What is of one flow is of another from here on. Everything is read anew, as after an opening.
    fn change_routes(&mut self) {
        self.rules.moved.fetch_add(1, Ordering::Relaxed);
        self.log.note("timers have other flows".to_owned());
        self.report.changes += 1;
        self.look_at_held();
        self.opened = self.clock.timestamp();
        for expected in self.expected.values_mut() {
            expected.is_unsure = true;
        }
        for driven in &mut self.all {
            driven.waited.clear();
        }
        self.budget.routes_changed();
    }

    /// The process ends here and starts again: what ran is interrupted.
    fn end_process(&mut self) {
        self.log.note("the process ends".to_owned());
        self.report.ends += 1;
        let shards = self.all.len();
        self.all.clear();
        let running = std::mem::take(&mut self.running);
        let running = running.values().map(|running| running.attempt.id);
        let running: BTreeSet<_> = running.collect();
        self.buckets.clear();
        self.look_at_held();
        for (id, expected) in &mut self.expected {
            // The interruption is no part of what follows.
            if running.contains(id) {
                expected.follows_since = None;
            }
            expected.is_unsure = true;
        }
        self.budget = Budget::new(&self.config);
        // The engines know of the rates from their first turn on, also of those that are others soon.
        for number in 0..self.flows {
            if let Some(rate) = self.rules.limits(&flow(number)).rate {
                self.bucket(&flow(number), rate);
            }
        }
        self.open(shards);
    }

    fn pass_time(&mut self) {
        let now = self.clock.now();
        let wall = self.clock.timestamp();
        let wakes = self
            .all
            .iter()
            .filter_map(|driven| driven.engine.next_wake());
        let wakes = wakes.map(|at| now + at.saturating_since(wall));
        let ends = self.running.keys().map(|(at, _)| *at);
        let Some(next) = wakes.chain(ends).min() else {
            self.clock.advance(Duration::from_secs(1));
            return;
        };
        self.clock.advance(next.saturating_since(now));
    }

    /// A client sets, moves or removes a timer.
    fn ask(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        let (shard, name) = self.name(number)?;
        let span = Duration::from_micros(match self.random.below(3) {
            _ if self.is_hot => 0,
            0 => 0,
            1 => self.random.below(3_000_000).next_multiple_of(100_000),
            _ => self.random.below(30_000_000),
        });
        let request = match self.random.below(8) {
            0 => Request::Remove {
                name,
                precondition: Precondition::None,
                only_pending: self.random.one_in(2),
            },
            1 => Request::Move {
                name,
                shift: Shift::Later(span),
                precondition: Precondition::None,
            },
            _ => {
                let mut payload = vec![u8::try_from(self.random.below(3)).unwrap_or(0)];
                let flows = *self.random.pick(&[0, 1, 1, 1, 2]);
                let mut known = BTreeSet::new();
                let flows = if self.is_hot { 1 } else { flows };
                for _ in 0..flows {
                    let number = if self.is_hot {
                        0
                    } else {
                        self.random.below(u64::from(self.flows))
                    };
                    known.insert(u8::try_from(number).unwrap_or(0));
                }
                payload.extend(known);
                let options = if self.random.one_in(5) {
                    self.draw_runs()
                } else {
                    SetOptions::default()
                };
                let policy = RetryPolicy::fixed(RETRY);
                let policy = if self.random.one_in(3) && options.recurrence.is_none() {
                    policy.max_age(RETRY * u32::try_from(self.random.between(1, 20)).unwrap_or(1))
                } else {
                    policy
                };
                Request::Set {
                    name,
                    due: Due::In(span),
                    policy,
                    payload,
                    precondition: Precondition::None,
                    options,
                }
            }
        };
        self.log.note(match &request {
            Request::Set { name, payload, .. } => {
                format!("set {name} in {span:?}: {:?}", self.rules.route_of(payload))
            }
            Request::Move { name, .. } => format!("move {name} by {span:?}"),
            other => format!("{other:?}"),
        });
        self.next_ticket += 1;
        let event = Event::Request(Ticket(self.next_ticket), request);
        self.turn(shard, vec![event])
    }

    /// A timer that comes again a few times, and makes up for runs that it missed.
    fn draw_runs(&mut self) -> SetOptions {
        let every = Duration::from_millis(self.random.between(300, 2_000));
        let repeats = u32::try_from(self.random.between(2, 8)).unwrap_or(2);
        let recurrence = Recurrence {
            repeats: NonZeroU32::new(repeats),
            overlap: Overlap::Queue,
            ..Recurrence::new(Schedule::FixedRate {
                every,
                anchor: None,
            })
        };
        SetOptions {
            missed: Missed::Fire,
            recurrence: Some(Box::new(recurrence)),
            ..SetOptions::default()
        }
    }

    /// Engines take turns until none has anything to do at this time.
    fn settle(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        let wall = self.clock.timestamp();
        let most = RESTLESS * (self.all.len() + usize::try_from(self.keys).unwrap_or(0));
        for _ in 0..most {
            let ended: BTreeSet<_> = self
                .running
                .iter()
                .filter(|((at, _), _)| *at <= now)
                .map(|(_, running)| running.shard)
                .collect();
            let ready: Vec<_> = (0..self.all.len())
                .filter(|shard| {
                    let driven = &self.all[*shard];
                    let is_due = driven.engine.next_wake().is_some_and(|at| at <= wall);
                    is_due || ended.contains(shard) || driven.woken.load(Ordering::Relaxed)
                })
                .collect();
            if ready.is_empty() {
                return Ok(());
            }
            let shard = *self.random.pick(&ready);
            self.turn(shard, Vec::new())?;
        }
        Err(format!("after {most} turns there is still something to do"))
    }

    fn turn(&mut self, shard: usize, mut events: Vec<Event>) -> Result<(), String> {
        self.report.turns += 1;
        let now = self.clock.now();
        self.all[shard].woken.store(false, Ordering::Relaxed);
        let ended = self
            .running
            .iter()
            .filter(|((at, _), running)| *at <= now && running.shard == shard);
        let ended: Vec<_> = ended.map(|(place, _)| *place).collect();
        for place in ended {
            let Some(running) = self.running.remove(&place) else {
                continue;
            };
            let Running {
                attempt,
                verdict,
                changes,
                ..
            } = running;
            self.log.note(format!("{} ends: {verdict:?}", attempt.name));
            self.report.done += u64::from(verdict == Verdict::Done);
            let expected = self.expected.entry(attempt.id).or_default();
            expected.ended = Some(self.clock.timestamp());
            match verdict {
                Verdict::Held { look_after } => {
                    self.report.not_made += 1;
                    expected.number -= 1;
                    expected.was_held = true;
                    expected.ended = None;
                    let later = look_after.map_or(Timestamp::MAX, |wait| {
                        self.clock.timestamp() + wait.max(Verdict::HELD_MIN)
                    });
                    let has_changed = changes != self.report.changes || self.healing;
                    let not_before = (attempt.revision, later);
                    expected.not_before = Some(not_before).filter(|_| !has_changed);
                }
                Verdict::Failed { .. } => {
                    expected.failures += 1;
                    expected.ran += self.clock.timestamp().saturating_since(attempt.started);
                }
                Verdict::Done | Verdict::Stopped => expected.failures = 0,
            }
            events.push(Event::Outcome {
                revision: attempt.revision,
                outcome: Outcome::new(verdict, ""),
            });
        }
        let mut starts = Vec::new();
        let taken = self.all[shard].engine.turn(events, &mut |effect| {
            if let Effect::Start(attempt) = effect {
                starts.push(attempt);
            }
        });
        taken.map_err(|error| error.to_string())?;
        let stats = self.all[shard].engine.stats();
        self.report.parked = self.report.parked.max(stats.parked);
        if stats.window_bytes > self.config.window_bytes {
            return Err(format!("{} bytes in memory", stats.window_bytes));
        }
        self.check_order(shard, &starts)?;
        for attempt in starts {
            self.start(shard, attempt)?;
        }
        self.note_waiting(shard)
    }

    /// Places that a flow may have of those that are free, as the documentation says.
    fn is_short(&self, flow: &Flow) -> bool {
        let (most, percent) = (
            self.config.max_in_flight,
            usize::from(self.config.queue_share_percent),
        );
        let free = most - self.running.len();
        let spare = free.saturating_sub(most * (100 - percent) / 100);
        let has = self.has(flow);
        has > 0 && has * (100 - percent) >= spare * percent
    }

    fn has(&self, flow: &Flow) -> usize {
        let running = self.running.values();
        running
            .filter(|running| running.flows.contains(flow))
            .count()
    }

    /// The bucket of a flow as of now, which goes by this rate from now on.
    fn bucket(&mut self, flow: &Flow, rate: FlowRate) -> &mut Bucket {
        let wall = self.clock.timestamp();
        let bucket = self.buckets.entry(flow.clone());
        let bucket = bucket.or_insert_with(|| Bucket::new(rate, wall));
        bucket.turn_to(rate, wall);
        bucket
    }

    /// Why an attempt of the flow may not start, if it certainly may not. Otherwise, with `maybe`, why it perhaps may not.
    fn refusal(&mut self, flow: &Flow, maybe: bool) -> Option<String> {
        let limits = self.rules.limits(flow);
        let has = self.has(flow);
        if limits.at_once.is_some_and(|most| has >= most as usize) {
            return Some(format!("{flow} has {has} places of {limits:?}"));
        }
        if limits.shared && self.is_short(flow) {
            return Some(format!("{flow} has its share with {has}"));
        }
        let bucket = self.bucket(flow, limits.rate?);
        let is_empty = bucket.most < 1.0 - EXACT || (maybe && bucket.least < 1.0 + ROUNDED);
        is_empty.then(|| format!("{flow} has {bucket:?}"))
    }

    fn start(&mut self, shard: usize, attempt: Attempt) -> Result<(), String> {
        self.report.attempts += 1;
        self.report.held += u64::from(!attempt.held.is_zero());
        let route = self.rules.route_of(&attempt.payload);
        self.log.note(format!(
            "{:?} {} starts in shard {shard}, due {:?}, held {:?}, {route:?}",
            self.clock.timestamp(),
            attempt.name,
            attempt.due,
            attempt.held
        ));
        for flow in &route.flows {
            if let Some(refusal) = self.refusal(flow, false) {
                return Err(format!("{} starts, and {refusal}", attempt.name));
            }
        }
        for flow in &route.flows {
            if let Some(rate) = self.rules.limits(flow).rate {
                self.bucket(flow, rate).take(rate);
            }
            for (other, driven) in self.all.iter_mut().enumerate() {
                if other == shard {
                    driven.passed_over.remove(flow);
                } else if let Some(passed_over) = driven.passed_over.get_mut(flow) {
                    *passed_over += 1;
                }
            }
        }
        let late = attempt.lateness();
        let allowed = self.expect(shard, &attempt)?;
        if late > allowed && attempt.due >= self.opened && !self.was_short {
            let name = &attempt.name;
            return Err(format!(
                "{name} is late by {late:?}, and not by {allowed:?}"
            ));
        }
        let verdict = match self.random.below(100) {
            _ if self.healing => Verdict::Done,
            draw if draw < self.failing => Verdict::Failed { retry_after: None },
            draw if draw < self.failing + self.holding => Verdict::Held {
                look_after: match self.random.below(3) {
                    0 => None,
                    1 => Some(Duration::ZERO),
                    _ => Some(Duration::from_millis(self.random.below(5_000))),
                },
            },
            _ => Verdict::Done,
        };
        let ends = self.clock.now() + Duration::from_micros(self.random.below(self.service));
        let running = Running {
            shard,
            attempt,
            verdict,
            flows: route.flows,
            changes: self.report.changes,
        };
        self.running.insert((ends, self.report.attempts), running);
        self.was_short |= self.running.len() > self.config.max_in_flight / 4;
        if self.running.len() > self.config.max_in_flight {
            return Err(format!("{} attempts run at once", self.running.len()));
        }
        Ok(())
    }

    /// Whether an attempt is the one that is to come, and how late it may be.
    fn expect(&mut self, shard: usize, attempt: &Attempt) -> Result<Duration, String> {
        let wall = self.clock.timestamp();
        let record = self.get(shard, &attempt.name)?;
        let expected = self.expected.entry(attempt.id).or_default();
        let (name, number) = (&attempt.name, expected.number + 1);
        expected.is_unsure |= attempt.due < self.opened;
        if attempt.number != number {
            return Err(format!(
                "{name} has attempt {}, not {number}",
                attempt.number
            ));
        }
        if let Some((revision, at)) = expected.not_before.take()
            && at > wall
            && revision == attempt.revision
            && !self.is_tight
        {
            return Err(format!(
                "{name} starts, and its handler is to be asked at {at:?}"
            ));
        }
        (expected.number, expected.was_held) = (number, false);
        let run = attempt.run.map_or(0, |run| run.number);
        if run != expected.run {
            (expected.run, expected.failures) = (run, 0);
            let follows = expected.ended.is_some_and(|ended| ended >= attempt.due);
            self.report.following += u64::from(follows);
            if !follows {
                expected.follows_since = None;
            }
        }
        if let Some(record) = record.filter(|it| it.revision == attempt.revision)
            && record.failures != expected.failures
        {
            let failures = (record.failures, expected.failures);
            return Err(format!(
                "{name} has failed {} times, not {}",
                failures.0, failures.1
            ));
        }
        let follows_since = *expected.follows_since.get_or_insert(wall);
        let follows_since = attempt.run.map_or(wall, |_| follows_since);
        Ok(wall.saturating_since(follows_since))
    }

    /// Of those that waited for the same flows in the same queue, the most urgent starts first, then the one that was
    /// due first.
    fn check_order(&self, shard: usize, starts: &[Attempt]) -> Result<(), String> {
        if self.is_tight {
            return Ok(());
        }
        let started: BTreeSet<_> = starts.iter().map(|it| (&it.name, it.revision)).collect();
        for attempt in starts {
            let route = self.rules.route_of(&attempt.payload);
            // What was overdue has its share.
            let was_held = self.expected.get(&attempt.id).is_some_and(|it| it.was_held);
            if route.flows.is_empty() || attempt.due < self.opened || was_held {
                continue;
            }
            let order = (route.priority, attempt.due);
            for ((name, revision), waiting) in &self.all[shard].waited {
                if name.queue != attempt.name.queue
                    || *waiting >= order
                    || started.contains(&(name, *revision))
                {
                    continue;
                }
                let still = self.get(shard, name)?.filter(|record| {
                    record.revision == *revision
                        && record.state == State::Pending
                        && self.rules.route_of(&record.payload).flows == route.flows
                });
                if let Some(record) = still {
                    return Err(format!(
                        "{} of {order:?} starts before {} of {waiting:?}",
                        attempt.name, record.name
                    ));
                }
            }
        }
        Ok(())
    }

    fn waiting(&self, shard: usize) -> Result<Vec<Record>, String> {
        let wall = self.clock.timestamp();
        let mut records = self.records()?;
        let of_shard = records.swap_remove(shard).into_iter();
        Ok(of_shard
            .filter(|record| record.state == State::Pending && record.due <= wall)
            .collect())
    }

    /// Notes what waits for flows alone: where places are short, what is due may not have been looked at.
    fn note_waiting(&mut self, shard: usize) -> Result<(), String> {
        let most = self.config.max_in_flight;
        let is_ample = most >= 16 && self.running.len() <= most / 4;
        let waiting = if is_ample {
            self.waiting(shard)?
        } else {
            Vec::new()
        };
        let opened = self.opened;
        let was_held = |id| self.expected.get(id).is_some_and(|it| it.was_held);
        let waited = waiting.iter();
        let waited = waited.filter(|record| record.due >= opened && !was_held(&record.id));
        let waited = waited.map(|record| {
            let order = (self.rules.route_of(&record.payload).priority, record.due);
            ((record.name.clone(), record.revision), order)
        });
        self.all[shard].waited = waited.collect();
        Ok(())
    }

    /// Nothing is too old that was held, but for the time of its attempts and the delays between them.
    fn check_ages(&self) -> Result<(), String> {
        for record in self.records()?.iter().flatten() {
            let State::Dead { reason, .. } = record.state else {
                continue;
            };
            let expected = self.expected.get(&record.id);
            let expected = expected.filter(|it| !it.is_unsure && !self.was_short);
            let (Some(expected), Some(age)) = (expected, record.policy.settings().max_age) else {
                continue;
            };
            let used = RETRY * expected.failures + expected.ran;
            if reason == DeadReason::TooOld && used + ROUNDED_AGE < age && !self.is_tight {
                return Err(format!(
                    "{} is too old for {age:?}, and has used up {used:?}",
                    record.name
                ));
            }
        }
        Ok(())
    }

    /// Nothing waits that could start, and nobody for long.
    fn check(&mut self) -> Result<(), String> {
        self.check_ages()?;
        let most = self.config.max_in_flight;
        let percent = usize::from(self.config.queue_share_percent);
        let free = most - self.running.len();
        let mut by_queue = BTreeMap::<QueueName, usize>::new();
        for running in self.running.values() {
            *by_queue
                .entry(running.attempt.name.queue.clone())
                .or_default() += 1;
        }
        for shard in 0..self.all.len() {
            let mut lacks_flow = BTreeSet::new();
            let wake = self.all[shard].engine.next_wake();
            let catches_up = wake.is_some_and(|at| at <= self.clock.timestamp() + CATCH_UP);
            for record in self.waiting(shard)? {
                if (record.due < self.opened || self.is_tight) && catches_up {
                    continue;
                }
                let not_before = (self.expected.get(&record.id)).and_then(|it| it.not_before);
                // What its handler held and memory has no room for comes once the handler holds no more.
                let is_left = self.is_tight && self.holding > 0 && !self.healing;
                let is_held = not_before.is_some_and(|(revision, at)| {
                    revision == record.revision && at > self.clock.timestamp()
                });
                if is_left || is_held {
                    continue;
                }
                let has = by_queue.get(&record.name.queue).copied().unwrap_or(0);
                let has_share = has > 0 && has * (100 - percent) >= free * percent;
                if free == 0 || has_share {
                    continue;
                }
                let route = self.rules.route_of(&record.payload);
                let flows = route.flows.iter();
                let refusals = flows.filter_map(|flow| self.refusal(flow, true));
                if refusals.count() == 0 {
                    return Err(format!(
                        "{} of {route:?}, due {:?}, waits in shard {shard}, and might start at {:?}; its engine wakes up at {wake:?}, \
                         and handlers hold {}; {:?}",
                        record.name,
                        record.due,
                        self.clock.timestamp(),
                        self.holding,
                        self.buckets
                    ));
                }
                if let [flow] = route.flows.as_slice() {
                    lacks_flow.insert(flow.clone());
                }
            }
            let passed_over = &mut self.all[shard].passed_over;
            passed_over.retain(|flow, _| lacks_flow.contains(flow));
            for flow in lacks_flow {
                passed_over.entry(flow).or_default();
            }
        }
        let engines = self.all.len() as u64;
        for (shard, driven) in self.all.iter().enumerate() {
            for (flow, passed) in &driven.passed_over {
                let places = self
                    .rules
                    .limits(flow)
                    .at_once
                    .map_or(most, |most| most as usize);
                let places = places.max(self.has(flow)) as u64;
                if *passed > (engines + 1) * (2 * places + 2) {
                    return Err(format!(
                        "shard {shard} waits for {flow}, of which others had {passed} places"
                    ));
                }
            }
        }
        Ok(())
    }
}
