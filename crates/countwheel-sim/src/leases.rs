//! Worlds of leases: engines of several shards that share one budget, timers whose attempts are leased, and workers that
//! settle, extend and forget what they lease, over ends of the process.
//!
//! No timer is leased to two at once. Each lease of a timer has a higher token than the one before. Whoever holds a lease
//! can settle and extend it, also after the process has ended; whoever does not hold it can do neither. What is due is
//! leased as soon as somebody asks and its flows have room. A lease that ends without an outcome counts as an attempt
//! that failed, and the timer is due again at once. In the end every timer is done or dead.
//!
//! ```
//! use countwheel_sim::{Stepped, leases};
//!
//! let report = leases::run(7, &Stepped::of(leases::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.leases > 0 && report.lost > 0);
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_durable::store::{MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, Budget, Config, Due, Effect, Engine, Event, Flow, FlowLimits, FlowRate, Flows, Key,
    LeaseToken, Outcome, Precondition, QueueName, Record, Request, Response, RetryPolicy, Route,
    SetOptions, State, Ticket, TimerError, TimerId, TimerName, Verdict,
};
use countwheel_time::{Clock, Instant, ManualClock, Timestamp};
use parking_lot::Mutex;

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

/// How many turns may follow each other while no time passes, in turns an engine and timer.
const RESTLESS: usize = 60;
/// How many attempts a timer has.
const ATTEMPTS: u32 = 4;
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
    /// Leases that were granted.
    pub leases: u64,
    /// Leases that were settled.
    pub settled: u64,
    /// Leases that were extended.
    pub extended: u64,
    /// Leases that ended without an outcome.
    pub lost: u64,
    /// Requests with a token that had no lease, all of them refused.
    pub refused: u64,
    /// Times the process ended.
    pub ends: u64,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.turns += other.turns;
        self.leases += other.leases;
        self.settled += other.settled;
        self.extended += other.extended;
        self.lost += other.lost;
        self.refused += other.refused;
        self.ends += other.ends;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} turns, {} leases, {} settled, {} extended, {} lost; {} old tokens refused; {} ends of a \
             process",
            self.seeds,
            self.turns,
            self.leases,
            self.settled,
            self.extended,
            self.lost,
            self.refused,
            self.ends
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

/// What workers ask for, and the limits of flows.
#[derive(Debug, Default)]
struct Rules {
    /// How many leases of each flow somebody asks for, and how long each lasts.
    asked: Mutex<BTreeMap<Flow, (u32, Duration)>>,
    limits: Mutex<BTreeMap<Flow, FlowLimits>>,
}

/// All timers leave their retry policy to their queue, and are set with one that has more attempts.
impl countwheel_durable::Rules for Rules {
    fn retry(&self, _: &QueueName, _: &[u8]) -> Option<RetryPolicy> {
        policy(ATTEMPTS).ok()
    }
}

fn policy(attempts: u32) -> Result<RetryPolicy, String> {
    let policy = RetryPolicy::fixed(Duration::from_millis(700)).max_attempts(attempts);
    policy.map_err(|error| error.to_string())
}

impl Flows for Rules {
    fn route(&self, _: &TimerName, payload: &[u8]) -> Route {
        route_of(payload)
    }

    fn limits(&self, flow: &Flow) -> FlowLimits {
        if let Some((asked, _)) = self.asked.lock().get(flow) {
            return FlowLimits {
                at_once: (*asked == 0).then_some(0),
                ..FlowLimits::default()
            };
        }
        self.limits.lock().get(flow).copied().unwrap_or_default()
    }

    fn lease(&self, flow: &Flow) -> Option<Duration> {
        let mut asked = self.asked.lock();
        let (asked, lease) = asked.get_mut(flow).filter(|(asked, _)| *asked > 0)?;
        *asked -= 1;
        Some(*lease)
    }
}

/// A payload is the number of the flow that leases it, and those of other flows.
fn route_of(payload: &[u8]) -> Route {
    let (lease, others) = payload.split_first().map_or((0, &[][..]), |(p, f)| (*p, f));
    let others = others
        .iter()
        .map(|number| Flow::new(format!("flow-{number}")));
    Route {
        flows: others.collect(),
        priority: 0,
        lease: Some(pulled(lease)),
    }
}

fn pulled(number: u8) -> Flow {
    Flow::new(format!("pulled-{number}"))
}

struct Driven {
    engine: Engine,
    woken: Arc<AtomicBool>,
}

/// A lease as its worker knows it.
#[derive(Clone, Debug)]
struct Lease {
    shard: usize,
    id: TimerId,
    token: LeaseToken,
    until: Timestamp,
    flows: Vec<Flow>,
}

struct World {
    random: Random,
    clock: ManualClock,
    store: Arc<MemoryStore>,
    config: Config,
    rules: Arc<Rules>,
    budget: Budget,
    all: Vec<Driven>,
    leases: BTreeMap<TimerName, Lease>,
    /// The tokens of leases that are over.
    old: Vec<(usize, TimerName, LeaseToken)>,
    /// The highest token of each timer that anybody has had.
    highest: BTreeMap<TimerName, LeaseToken>,
    attempts: BTreeMap<TimerId, u32>,
    /// Those that were given back: since when they wait is not known.
    released: BTreeSet<TimerName>,
    /// The virtual scheduling time of each rate, by the boot clock.
    rates: BTreeMap<Flow, Instant>,
    pulled: u8,
    flows: u8,
    keys: u64,
    opened: Timestamp,
    next_ticket: u64,
    step: u64,
    report: Report,
    log: Log,
}

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "leases");
        let clock = ManualClock::at(Timestamp::from_micros(1_356_998_400_000_000));
        let rules = Arc::<Rules>::default();
        let rules_of_config: Arc<dyn Flows> = Arc::<Rules>::clone(&rules);
        let config = Config {
            max_in_flight: 2,
            window_bytes: if random.one_in(3) {
                128 << 10
            } else {
                64 << 20
            },
            catch_up_per_second: 1_000_000,
            flows: Some(rules_of_config),
            rules: Some(Arc::<Rules>::clone(&rules)),
            seed,
            ..Config::default()
        };
        let shards = random.between(1, 3);
        let mut world = Self {
            store: Arc::new(MemoryStore::new(seed)),
            budget: Budget::new(&config),
            all: Vec::new(),
            leases: BTreeMap::new(),
            old: Vec::new(),
            highest: BTreeMap::new(),
            attempts: BTreeMap::new(),
            released: BTreeSet::new(),
            rates: BTreeMap::new(),
            pulled: u8::try_from(random.between(1, 2)).unwrap_or(1),
            flows: u8::try_from(random.between(1, 3)).unwrap_or(1),
            keys: random.between(5, 40),
            opened: clock.timestamp(),
            next_ticket: 0,
            step: 0,
            report: Report::default(),
            log: Log::new(options.log),
            random,
            clock,
            config,
            rules,
        };
        for number in 0..world.pulled {
            let none = (0, Duration::from_secs(1));
            world.rules.asked.lock().insert(pulled(number), none);
        }
        for number in 0..world.flows {
            let at_once = u32::try_from(world.random.between(1, 4)).ok();
            let rate = world.random.one_in(3).then(|| {
                let starts = u32::try_from(world.random.between(1, 50)).unwrap_or(1);
                let burst = u32::try_from(world.random.between(1, 5)).unwrap_or(1);
                FlowRate::new(starts, Duration::from_secs(1), burst)
            });
            let limits = FlowLimits {
                at_once: at_once.filter(|_| !world.random.one_in(3)),
                rate,
                ..FlowLimits::default()
            };
            let flow = Flow::new(format!("flow-{number}"));
            world.rules.limits.lock().insert(flow, limits);
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
            self.all.push(Driven { engine, woken });
        }
    }

    fn live(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.step += 1;
            match self.random.below(24) {
                0..6 => self.set()?,
                6 => self.remove()?,
                7..11 => self.ask_for_leases(),
                11 => self.give_up_asking(),
                12..15 => self.settle_one()?,
                15 if self.random.one_in(3) => self.release_one()?,
                15 => self.extend_one()?,
                16 => self.use_old_token()?,
                17 if self.random.one_in(6) => self.end_process(),
                _ => self.pass_time(),
            }
            self.rest()?;
            self.check()?;
        }
        self.heal()
    }

    /// From here on a worker takes everything, and settles it.
    fn heal(&mut self) -> Result<(), String> {
        self.log.note("it heals".to_owned());
        for _ in 0..10_000 {
            for number in 0..self.pulled {
                let flow = pulled(number);
                let plenty = (1_000, Duration::from_secs(30));
                self.rules.asked.lock().insert(flow.clone(), plenty);
                self.budget.flow_changed(&flow);
            }
            self.rest()?;
            self.check()?;
            let held: Vec<_> = self.leases.keys().cloned().collect();
            for name in held {
                self.settle(&name, Verdict::Done)?;
            }
            self.rest()?;
            let mut left = self.records()?.into_iter();
            if !left.any(|it| matches!(it.state, State::Pending | State::Delivering)) {
                return Ok(());
            }
            self.pass_time();
        }
        Err("it does not come to its end".to_owned())
    }

    fn name(&self, number: u64) -> Result<(usize, TimerName), String> {
        let name = TimerName {
            queue: QueueName::new("jobs").map_err(|error| error.to_string())?,
            key: Key::new(format!("key-{number}")).map_err(|error| error.to_string())?,
        };
        let shard = usize::try_from(number).unwrap_or(0) % self.all.len();
        Ok((shard, name))
    }

    fn records(&self) -> Result<Vec<Record>, String> {
        let mut records = Vec::new();
        for number in 0..self.keys {
            let (shard, name) = self.name(number)?;
            let shard = Shard(u16::try_from(shard).unwrap_or(0));
            let record = self.store.get(shard, &name);
            records.extend(record.map_err(|error| error.to_string())?);
        }
        Ok(records)
    }

    fn set(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        let (shard, name) = self.name(number)?;
        let mut payload = vec![u8::try_from(self.random.below(self.pulled.into())).unwrap_or(0)];
        if self.random.one_in(2) {
            let flow = self.random.below(self.flows.into());
            payload.push(u8::try_from(flow).unwrap_or(0));
        }
        let span = Duration::from_millis(self.random.below(3_000));
        self.log.note(format!("set {name} in {span:?}"));
        self.forget_lease(&name);
        let request = Request::Set {
            name,
            due: Due::In(span),
            policy: policy(ATTEMPTS + 5)?,
            payload,
            precondition: Precondition::None,
            options: SetOptions::default(),
        };
        self.ask(shard, request)?
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn remove(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        let (shard, name) = self.name(number)?;
        self.log.note(format!("remove {name}"));
        self.forget_lease(&name);
        let request = Request::Remove {
            name,
            precondition: Precondition::None,
            only_pending: false,
        };
        // There may be none.
        drop(self.ask(shard, request)?);
        Ok(())
    }

    fn ask_for_leases(&mut self) {
        let flow = pulled(u8::try_from(self.random.below(self.pulled.into())).unwrap_or(0));
        let many = u32::try_from(self.random.between(1, 5)).unwrap_or(1);
        let lease = Duration::from_millis(self.random.between(1, 4_000));
        self.log
            .note(format!("{many} leases of {flow} for {lease:?}"));
        self.rules.asked.lock().insert(flow.clone(), (many, lease));
        self.budget.flow_changed(&flow);
    }

    fn give_up_asking(&mut self) {
        let flow = pulled(u8::try_from(self.random.below(self.pulled.into())).unwrap_or(0));
        self.log.note(format!("nobody asks for {flow}"));
        if let Some((asked, _)) = self.rules.asked.lock().get_mut(&flow) {
            *asked = 0;
        }
        self.budget.flow_changed(&flow);
    }

    fn some_lease(&mut self) -> Option<TimerName> {
        let held: Vec<_> = self.leases.keys().cloned().collect();
        (!held.is_empty()).then(|| self.random.pick(&held).clone())
    }

    fn settle_one(&mut self) -> Result<(), String> {
        let Some(name) = self.some_lease() else {
            return Ok(());
        };
        let verdict = match self.random.below(6) {
            0 => Verdict::Failed { retry_after: None },
            1 => Verdict::Stopped,
            _ => Verdict::Done,
        };
        self.settle(&name, verdict)
    }

    /// The holder of a lease settles it.
    fn settle(&mut self, name: &TimerName, verdict: Verdict) -> Result<(), String> {
        let Some(lease) = self.forget_lease(name) else {
            return Ok(());
        };
        self.log.note(format!("settle {name}: {verdict:?}"));
        let is_done = verdict == Verdict::Done;
        let request = Request::Settle {
            name: name.clone(),
            token: lease.token,
            outcome: Outcome::new(verdict, ""),
        };
        let again = request.clone();
        match self.ask(lease.shard, request)? {
            Ok(Response::Settled(_)) => self.report.settled += 1,
            other => return Err(format!("the holder of {name} settles: {other:?}")),
        }
        // Whoever has not seen the answer asks again.
        if is_done {
            let answer = self.ask(lease.shard, again)?;
            if !matches!(answer, Ok(Response::Settled(_))) {
                return Err(format!("settled twice, {name}: {answer:?}"));
            }
        }
        Ok(())
    }

    fn extend_one(&mut self) -> Result<(), String> {
        let Some(name) = self.some_lease() else {
            return Ok(());
        };
        let lease = Duration::from_millis(self.random.between(1, 6_000));
        self.log.note(format!("extend {name} by {lease:?}"));
        let (shard, token) = {
            let held = &self.leases[&name];
            (held.shard, held.token)
        };
        let until = self.clock.timestamp() + lease;
        let request = Request::Extend {
            name: name.clone(),
            token,
            lease,
        };
        match self.ask(shard, request)? {
            Ok(Response::Extended(extended)) if extended.until == until => {
                self.report.extended += 1;
            }
            other => return Err(format!("the holder of {name} extends: {other:?}")),
        }
        if let Some(held) = self.leases.get_mut(&name) {
            held.until = until;
        }
        Ok(())
    }

    /// Nobody has begun: it is as if it had never been leased.
    fn release_one(&mut self) -> Result<(), String> {
        let Some(name) = self.some_lease() else {
            return Ok(());
        };
        self.log.note(format!("release {name}"));
        let Some(lease) = self.leases.remove(&name) else {
            return Ok(());
        };
        // It may be leased again in the same turn, under the same token.
        if self.highest.get(&name) == Some(&lease.token) {
            self.highest.remove(&name);
        }
        if let Some(seen) = self.attempts.get_mut(&lease.id) {
            *seen -= 1;
        }
        self.released.insert(name.clone());
        let request = Request::Release {
            name: name.clone(),
            token: lease.token,
        };
        match self.ask(lease.shard, request)? {
            Ok(Response::Settled(_)) => {}
            other => return Err(format!("the holder of {name} gives it back: {other:?}")),
        }
        Ok(())
    }

    fn use_old_token(&mut self) -> Result<(), String> {
        if self.old.is_empty() {
            return Ok(());
        }
        let (shard, name, token) = self.random.pick(&self.old).clone();
        let verdict = if self.random.one_in(2) {
            Verdict::Stopped
        } else {
            Verdict::Failed { retry_after: None }
        };
        let settles = self.random.one_in(2);
        let request = if settles {
            Request::Settle {
                name: name.clone(),
                token,
                outcome: Outcome::new(verdict, ""),
            }
        } else {
            let lease = Duration::from_secs(1);
            Request::Extend {
                name: name.clone(),
                token,
                lease,
            }
        };
        match self.ask(shard, request)? {
            Err(TimerError::LeaseLost { .. } | TimerError::NotFound | TimerError::Gone { .. }) => {
                self.report.refused += 1;
                Ok(())
            }
            other => Err(format!("an old token of {name}: {other:?}")),
        }
    }

    /// The timer's lease, if there is one, counts no more.
    fn forget_lease(&mut self, name: &TimerName) -> Option<Lease> {
        let lease = self.leases.remove(name)?;
        self.old.push((lease.shard, name.clone(), lease.token));
        Some(lease)
    }

    fn end_process(&mut self) {
        self.log.note("the process ends".to_owned());
        self.report.ends += 1;
        let shards = self.all.len();
        self.all.clear();
        self.rates.clear();
        self.budget = Budget::new(&self.config);
        self.open(shards);
    }

    fn pass_time(&mut self) {
        let wall = self.clock.timestamp();
        let wakes = self.all.iter().filter_map(|it| it.engine.next_wake());
        let next = wakes.min().map(|at| at.saturating_since(wall));
        let span = Duration::from_micros(self.random.between(1, 900_000));
        let span = match next {
            Some(next) if !next.is_zero() => next.min(span),
            _ => span,
        };
        self.clock.advance(span);
        let now = self.clock.timestamp();
        let over = self.leases.iter().filter(|(_, lease)| lease.until <= now);
        let over: Vec<_> = over.map(|(name, _)| name.clone()).collect();
        for name in over {
            self.log.note(format!("the lease of {name} is over"));
            self.report.lost += 1;
            self.forget_lease(&name);
        }
    }

    fn ask(
        &mut self,
        shard: usize,
        request: Request,
    ) -> Result<Result<Response, TimerError>, String> {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let mut answer = self.turn(shard, vec![Event::Request(ticket, request)])?;
        let most = RESTLESS;
        for _ in 0..most {
            if answer.is_some() {
                break;
            }
            answer = self.turn(shard, Vec::new())?;
        }
        answer.ok_or_else(|| "a request is not answered".to_owned())
    }

    /// Engines take turns until none has anything to do at this time.
    fn rest(&mut self) -> Result<(), String> {
        let wall = self.clock.timestamp();
        let most = RESTLESS * (self.all.len() + usize::try_from(self.keys).unwrap_or(0));
        for _ in 0..most {
            let ready: Vec<_> = (0..self.all.len())
                .filter(|shard| {
                    let driven = &self.all[*shard];
                    let is_due = driven.engine.next_wake().is_some_and(|at| at <= wall);
                    is_due || driven.woken.load(Ordering::Relaxed)
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

    fn turn(
        &mut self,
        shard: usize,
        events: Vec<Event>,
    ) -> Result<Option<Result<Response, TimerError>>, String> {
        self.report.turns += 1;
        self.all[shard].woken.store(false, Ordering::Relaxed);
        let (mut starts, mut answer) = (Vec::new(), None);
        let taken = self.all[shard]
            .engine
            .turn(events, &mut |effect| match effect {
                Effect::Start(attempt) => starts.push(attempt),
                Effect::Answer(_, said) => answer = Some(said),
                _ => {}
            });
        taken.map_err(|error| error.to_string())?;
        let stats = self.all[shard].engine.stats();
        if stats.window_bytes > self.config.window_bytes {
            return Err(format!("{} bytes in memory", stats.window_bytes));
        }
        for attempt in starts {
            self.leased(shard, &attempt)?;
        }
        Ok(answer)
    }

    fn leased(&mut self, shard: usize, attempt: &Attempt) -> Result<(), String> {
        self.report.leases += 1;
        let (now, name, token) = (
            self.clock.timestamp(),
            attempt.name.clone(),
            attempt.lease_token(),
        );
        let until = attempt.lease.ok_or("it is not leased")?;
        self.log
            .note(format!("{now:?} {name} is leased until {until:?}: {token}"));
        if until <= now || attempt.started < attempt.due {
            return Err(format!(
                "{name} is leased from before its time, or until it"
            ));
        }
        if let Some(held) = self.leases.get(&name) {
            return Err(format!("{name} is leased twice: {held:?}"));
        }
        if self
            .highest
            .get(&name)
            .is_some_and(|highest| *highest >= token)
        {
            return Err(format!("{name} has a token that is no higher: {token}"));
        }
        let seen = self.attempts.entry(attempt.id).or_default();
        *seen += 1;
        if *seen != attempt.number {
            let number = attempt.number;
            return Err(format!("{name} has attempt {number} after {seen} leases"));
        }
        if *seen > ATTEMPTS {
            return Err(format!("{name} has {seen} attempts of {ATTEMPTS}"));
        }
        let is_known = attempt.due >= self.opened && !self.released.contains(&name);
        if !attempt.lateness().is_zero() && is_known {
            return Err(format!("{name} is late by {:?}", attempt.lateness()));
        }
        let flows = route_of(&attempt.payload).flows;
        for flow in &flows {
            if let Some(refusal) = self.refusal(flow) {
                return Err(format!("{name} is leased, and {refusal}"));
            }
        }
        for flow in &flows {
            let limits = self.rules.limits.lock().get(flow).copied();
            if let Some(rate) = limits.and_then(|limits| limits.rate) {
                let next = self.rates.entry(flow.clone()).or_insert(Instant::ZERO);
                *next = (*next).max(self.clock.boot()) + rate.interval();
            }
        }
        self.highest.insert(name.clone(), token);
        let lease = Lease {
            shard,
            id: attempt.id,
            token,
            until,
            flows,
        };
        self.leases.insert(name, lease);
        Ok(())
    }

    fn refusal(&self, flow: &Flow) -> Option<String> {
        let limits = self.rules.limits.lock().get(flow).copied()?;
        let held = self.leases.values();
        let held = held.filter(|lease| lease.flows.contains(flow)).count();
        if limits.at_once.is_some_and(|most| held >= most as usize) {
            return Some(format!("{flow} has {held} leases of {limits:?}"));
        }
        let next = self.rates.get(flow).copied().unwrap_or(Instant::ZERO);
        let allowed = limits.rate.map(|rate| {
            let burst = rate.interval() * (rate.burst() - 1);
            Instant::ZERO + next.saturating_since(Instant::ZERO).saturating_sub(burst)
        });
        let is_early = allowed.is_some_and(|allowed| allowed > self.clock.boot());
        is_early.then(|| format!("{flow} starts again at {allowed:?}"))
    }

    /// Nothing waits that somebody asks for and whose flows have room.
    fn check(&self) -> Result<(), String> {
        let now = self.clock.timestamp();
        let catching_up: BTreeSet<_> = (0..self.all.len())
            .filter(|shard| {
                let wake = self.all[*shard].engine.next_wake();
                wake.is_some_and(|at| at <= now + CATCH_UP)
            })
            .collect();
        for number in 0..self.keys {
            let (shard, name) = self.name(number)?;
            let of = Shard(u16::try_from(shard).unwrap_or(0));
            let record = self
                .store
                .get(of, &name)
                .map_err(|error| error.to_string())?;
            let is_due = |it: &Record| it.state == State::Pending && it.due <= now;
            let Some(record) = record.filter(is_due) else {
                continue;
            };
            if catching_up.contains(&shard) {
                continue;
            }
            let route = route_of(&record.payload);
            let asked = self.rules.asked.lock();
            let asked = route.lease.and_then(|flow| asked.get(&flow).copied());
            let has_room = !route.flows.iter().any(|flow| self.refusal(flow).is_some());
            if has_room && asked.is_some_and(|(asked, _)| asked > 0) {
                return Err(format!("{name} waits in shard {shard}, and somebody asks"));
            }
        }
        Ok(())
    }
}
