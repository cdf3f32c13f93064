//! Worlds of jobs: nodes that share the shards of a store, timers with tags that callers and attempts change, and jobs that
//! remove, move, fire and revive them, over ends of processes and over shards that change hands.
//!
//! A job acts on a timer at most once, on none that its filter does not want, and on none that was set or changed since it
//! was asked for. It acts on each timer that it wants and that stays as it is. Its counts are exact. A dry run changes
//! nothing, a job that was cancelled acts no more, a rate holds over all nodes, and every job comes to its end.
//!
//! ```
//! use countwheel_sim::{Stepped, jobs};
//!
//! let report = jobs::run(7, &Stepped::of(jobs::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.jobs > 0 && report.acted > 0);
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Filter, MemoryStore, Page, Shard, Store, StoreError};
use countwheel_durable::{
    BatchError, Budget, Config, Due, Effect, Engine, Event, Job, JobAction, JobError, JobHost,
    JobOrder, JobSteps, Key, Outcome, Precondition, QueueName, Record, Request, Response,
    RetryPolicy, Revision, SetOptions, SettingName, SettingPrecondition, Settings, SettingsVersion,
    Shift, StateKind, Ticket, TimerError, TimerName, Verdict,
};
use countwheel_time::{Clock, Instant, ManualClock, Timestamp};

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

/// How many turns may follow each other while no time passes.
const RESTLESS: usize = 500;
/// How many steps the jobs may take once nothing disturbs them.
const STEPS_TO_END: usize = 20_000;
/// The tags that timers have, and jobs ask for.
const TAGS: [&str; 3] = ["eu", "us", "vip"];

/// How many steps a run has, if nobody says it.
pub const STEPS: u64 = 300;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Turns that were taken.
    pub turns: u64,
    /// Jobs that came to their end.
    pub jobs: u64,
    /// Jobs of these that were cancelled.
    pub cancelled: u64,
    /// Timers on which jobs have acted.
    pub acted: u64,
    /// Timers that had changed between the read and the commit.
    pub skipped: u64,
    /// Times a process ended.
    pub ends: u64,
    /// Shards that changed hands.
    pub takeovers: u64,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.turns += other.turns;
        self.jobs += other.jobs;
        self.cancelled += other.cancelled;
        self.acted += other.acted;
        self.skipped += other.skipped;
        self.ends += other.ends;
        self.takeovers += other.takeovers;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} turns, {} jobs, {} of them cancelled, {} timers acted on, {} skipped; {} ends of a process, \
             {} takeovers",
            self.seeds,
            self.turns,
            self.jobs,
            self.cancelled,
            self.acted,
            self.skipped,
            self.ends,
            self.takeovers
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
    let world = RefCell::new(World::new(seed, options));
    let result = live(&world, options.steps);
    let World {
        mut report,
        log,
        step,
        ..
    } = world.into_inner();
    report.seeds = 1;
    report.trace = log.hash;
    result
        .map(|()| report)
        .map_err(|what| log.failure(seed, step, what))
}

/// How a process ends within a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Before so many more commits are done.
    Before(u64),
    /// Once so many more are done, and before the answer to the last of them.
    After(u64),
}

/// A job, and what has to come of it.
#[derive(Clone, Debug)]
struct Believed {
    id: SettingsVersion,
    order: JobOrder,
    /// What was there before it was asked for, matched its filter, and has stayed as it was but for what the job did.
    must: BTreeSet<TimerName>,
    /// What may have been there before: how many a dry run may count.
    may: BTreeSet<TimerName>,
    /// What was changed later than this is left alone.
    marked: u64,
    acted: BTreeSet<TimerName>,
    done: u64,
    skipped: u64,
    began: Instant,
    /// How often some process has begun to work at the job anew.
    starts: u64,
    cancelled: bool,
}

/// When a timer was set and changed last, in the order of all that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Changed {
    set: u64,
    last: u64,
}

struct World {
    random: Random,
    clock: ManualClock,
    store: Arc<MemoryStore>,
    config: Config,
    engines: Vec<Engine>,
    /// Which node has which shard.
    owners: Vec<usize>,
    steps: Vec<JobSteps>,
    budgets: Vec<Budget>,
    jobs: BTreeMap<QueueName, Believed>,
    changed: BTreeMap<TimerName, Changed>,
    /// Attempts that run, by shard.
    running: Vec<BTreeMap<TimerName, Revision>>,
    keys: u64,
    /// What happens to the node that does the step.
    end: Option<End>,
    has_ended: bool,
    /// What was refused since the last commit of the step, and of which queue.
    refused: Option<(QueueName, u64)>,
    may_disturb: bool,
    broken: Option<String>,
    events: u64,
    next_ticket: u64,
    step: u64,
    report: Report,
    log: Log,
}

type Answered = Option<Result<Vec<Response>, BatchError>>;

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "jobs");
        let clock = ManualClock::at(Timestamp::from_micros(1_356_998_400_000_000));
        let config = Config {
            seed,
            ..Config::default()
        };
        let shards = usize::try_from(random.between(1, 4)).unwrap_or(1);
        let nodes = usize::try_from(random.between(1, 2)).unwrap_or(1);
        let mut world = Self {
            store: Arc::new(MemoryStore::new(seed)),
            engines: Vec::new(),
            owners: (0..shards).map(|shard| shard % nodes).collect(),
            steps: (0..nodes).map(|_| JobSteps::default()).collect(),
            budgets: (0..nodes).map(|_| Budget::new(&config)).collect(),
            jobs: BTreeMap::new(),
            changed: BTreeMap::new(),
            running: vec![BTreeMap::new(); shards],
            keys: random.between(5, 60),
            end: None,
            has_ended: false,
            refused: None,
            may_disturb: true,
            broken: None,
            events: 0,
            next_ticket: 0,
            step: 0,
            report: Report::default(),
            log: Log::new(options.log),
            random,
            clock,
            config,
        };
        for shard in 0..shards {
            let engine = world.open(shard);
            world.engines.push(engine);
        }
        world
    }

    fn open(&self, shard: usize) -> Engine {
        let engine = Engine::open_within(
            &self.budgets[self.owners[shard]],
            self.store.clone(),
            shard_of(shard),
            Arc::new(self.clock.clone()),
            self.config.clone(),
        );
        engine.unwrap_or_else(|error| unreachable!("a healthy store opens: {error}"))
    }

    /// The process of a node ends, and another begins.
    fn end_process(&mut self, node: usize) {
        self.log.note(format!("node {node} ends"));
        self.report.ends += 1;
        self.steps[node] = JobSteps::default();
        self.budgets[node] = Budget::new(&self.config);
        for job in self.jobs.values_mut() {
            job.starts += 1;
        }
        for shard in 0..self.owners.len() {
            if self.owners[shard] == node {
                self.running[shard].clear();
                self.engines[shard] = self.open(shard);
            }
        }
    }

    fn take_over(&mut self) {
        let shard = self.below(self.owners.len());
        let node = self.below(self.steps.len());
        if self.owners[shard] == node {
            return;
        }
        self.log.note(format!("node {node} takes shard {shard}"));
        self.report.takeovers += 1;
        for job in self.jobs.values_mut() {
            job.starts += 1;
        }
        self.owners[shard] = node;
        self.running[shard].clear();
        self.engines[shard] = self.open(shard);
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap_or(0)
    }

    fn name(&self, number: u64) -> Result<(usize, TimerName), String> {
        let queue = format!("queue-{}", number % 2);
        let name = TimerName {
            queue: QueueName::new(queue).map_err(|error| error.to_string())?,
            key: Key::new(format!(
                "{}-{number}",
                ["a", "b"][usize::from(number.is_multiple_of(3))]
            ))
            .map_err(|error| error.to_string())?,
        };
        let shard = usize::try_from(number / 2).unwrap_or(0) % self.engines.len();
        Ok((shard, name))
    }

    fn records_of(&self, shard: usize) -> Result<BTreeMap<TimerName, Record>, String> {
        let mut records = BTreeMap::new();
        for number in 0..self.keys {
            let (of, name) = self.name(number)?;
            if of == shard {
                let record = self.store.get(shard_of(shard), &name);
                let record = record.map_err(|error| error.to_string())?;
                records.extend(record.map(|record| (name, record)));
            }
        }
        Ok(records)
    }

    fn records(&self) -> Result<BTreeMap<TimerName, Record>, String> {
        let mut all = BTreeMap::new();
        for shard in 0..self.engines.len() {
            all.append(&mut self.records_of(shard)?);
        }
        Ok(all)
    }

    /// One turn of a shard, and what it has changed.
    fn turn(&mut self, shard: usize, events: Vec<Event>) -> Result<Answered, String> {
        self.report.turns += 1;
        let by_job: Vec<_> = events
            .iter()
            .flat_map(|event| match event {
                Event::Batch(_, requests) => requests.clone(),
                _ => Vec::new(),
            })
            .collect();
        let before = self.records_of(shard)?;
        let (mut starts, mut answer) = (Vec::new(), None);
        let taken = self.engines[shard].turn(events, &mut |effect| match effect {
            Effect::Start(attempt) => starts.push(attempt),
            Effect::Answer(_, said) => {
                let said = said.map(|response| vec![response]);
                answer = Some(said.map_err(|error| BatchError { index: None, error }));
            }
            Effect::BatchAnswer(_, said) => answer = Some(said),
        });
        taken.map_err(|error| error.to_string())?;
        let is_done = matches!(answer, Some(Ok(_)));
        for attempt in starts {
            self.log.note(format!("{} starts", attempt.name));
            self.running[shard].insert(attempt.name, attempt.revision);
        }
        let after = self.records_of(shard)?;
        self.events += 1;
        let acted = if is_done {
            self.acted(&by_job, &before)?
        } else {
            BTreeMap::new()
        };
        let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
        for name in names {
            let (was, is) = (before.get(name), after.get(name));
            if was == is {
                continue;
            }
            if let Some(action) = acted.get(name) {
                self.check_change(*action, was, is)?;
            }
            let changed = self.changed.entry(name.clone()).or_default();
            let set = |record: Option<&Record>| record.map(|record| record.id);
            let revision = |record: Option<&Record>| record.map(|record| record.revision);
            if set(was) != set(is) {
                changed.set = self.events;
            }
            if revision(was) != revision(is) {
                changed.last = self.events;
            }
            if let Some(job) = self.jobs.get_mut(&name.queue)
                && !acted.contains_key(name)
            {
                job.must.remove(name);
                // An attempt that ends leaves the revision as it is.
                if is.is_some_and(|is| wants(&job.order, is)) {
                    job.may.insert(name.clone());
                }
            }
        }
        Ok(answer)
    }

    /// What a job did to these timers, which are as they are in `before`.
    fn acted(
        &mut self,
        requests: &[Request],
        before: &BTreeMap<TimerName, Record>,
    ) -> Result<BTreeMap<TimerName, JobAction>, String> {
        let mut acted = BTreeMap::new();
        for request in requests {
            let Request::AsRead { name, action, .. } = request else {
                continue;
            };
            let job = self.jobs.get_mut(&name.queue);
            let job = job.ok_or_else(|| format!("{name}: no job of its queue runs"))?;
            if job.order.action != *action || job.order.dry_run || job.cancelled {
                return Err(format!("{action:?} of {name}, and the job is {job:?}"));
            }
            let record = before.get(name);
            let record = record.ok_or_else(|| format!("{name} is not there"))?;
            if !wants(&job.order, record) {
                return Err(format!("{name} is not one of the job: {record:?}"));
            }
            let changed = self.changed.get(name).copied().unwrap_or_default();
            let since = match action {
                JobAction::Remove => changed.set,
                _ => changed.last,
            };
            if since > job.marked {
                return Err(format!("{name} was changed after the job began"));
            }
            if !job.acted.insert(name.clone()) {
                return Err(format!("{name} is acted on twice"));
            }
            job.must.remove(name);
            job.done += 1;
            self.report.acted += 1;
            acted.insert(name.clone(), *action);
        }
        self.check_rates()?;
        Ok(acted)
    }

    fn check_rates(&self) -> Result<(), String> {
        let now = self.clock.now();
        for job in self.jobs.values() {
            let Some(rate) = job.order.rate else { continue };
            let rate = u128::from(rate.get());
            let step = (rate / 10).max(1);
            let span = now.saturating_since(job.began).as_nanos();
            let most = rate * span / 1_000_000_000 + step * u128::from(job.starts) + 1;
            if u128::from(job.done) > most {
                let done = job.done;
                return Err(format!(
                    "{done} timers, and the rate allows {most}: {job:?}"
                ));
            }
        }
        Ok(())
    }

    fn check_change(
        &self,
        action: JobAction,
        was: Option<&Record>,
        is: Option<&Record>,
    ) -> Result<(), String> {
        let due = match (action, was, is) {
            (JobAction::Remove, Some(_), None) => return Ok(()),
            (JobAction::Move(Shift::Later(span)), Some(was), Some(_)) => was.due + span,
            (JobAction::Fire | JobAction::Revive, Some(_), Some(_)) => self.clock.timestamp(),
            _ => return Err(format!("{action:?} made {is:?} of {was:?}")),
        };
        match is.filter(|is| is.due == due) {
            Some(_) => Ok(()),
            None => Err(format!("{action:?}: due {due:?} is not that of {is:?}")),
        }
    }

    fn ask(
        &mut self,
        shard: usize,
        event: Event,
    ) -> Result<Result<Vec<Response>, BatchError>, String> {
        let mut answer = self.turn(shard, vec![event])?;
        for _ in 0..RESTLESS {
            if let Some(answer) = answer {
                return Ok(answer);
            }
            answer = self.turn(shard, Vec::new())?;
        }
        Err("a request is not answered".to_owned())
    }

    fn request(
        &mut self,
        shard: usize,
        request: Request,
    ) -> Result<Result<Response, TimerError>, String> {
        self.next_ticket += 1;
        let answer = self.ask(shard, Event::Request(Ticket(self.next_ticket), request))?;
        Ok(match answer {
            Ok(mut responses) => responses.pop().ok_or(TimerError::Closed),
            Err(refused) => Err(refused.error),
        })
    }

    /// A caller sets, moves, fires or removes a timer.
    fn call(&mut self, number: u64) -> Result<(), String> {
        let (shard, name) = self.name(number)?;
        let what = self.random.below(8);
        let hours = Duration::from_secs(3_600 * self.random.between(1, 9));
        let request = match what {
            0..4 => {
                let payload = self.random.below(1 << TAGS.len());
                let policy = RetryPolicy::fixed(Duration::from_secs(1)).max_attempts(3);
                Request::Set {
                    name,
                    due: Due::At(self.clock.timestamp() + hours),
                    policy: policy.map_err(|error| error.to_string())?,
                    payload: vec![u8::try_from(payload).unwrap_or(0)],
                    precondition: Precondition::None,
                    options: SetOptions::default(),
                }
            }
            4 => Request::Move {
                name,
                shift: Shift::Later(hours),
                precondition: Precondition::None,
            },
            5 => Request::Fire { name },
            6 => Request::Revive {
                name,
                due: Due::In(hours),
            },
            _ => Request::Remove {
                name,
                precondition: Precondition::None,
                only_pending: false,
            },
        };
        self.log.note(format!("a caller: {request:?}"));
        // There may be none, or one in another state.
        drop(self.request(shard, request)?);
        Ok(())
    }

    /// An attempt ends.
    fn end_attempt(&mut self) -> Result<(), String> {
        let shard = self.below(self.running.len());
        let Some((name, revision)) = self.running[shard].pop_first() else {
            return Ok(());
        };
        let verdict = match self.random.below(5) {
            0 => Verdict::Done,
            1 => Verdict::Failed { retry_after: None },
            _ => Verdict::Stopped,
        };
        self.log.note(format!("{name} ends: {verdict:?}"));
        let outcome = Outcome::new(verdict, "");
        self.turn(shard, vec![Event::Outcome { revision, outcome }])?;
        Ok(())
    }

    fn order(&mut self) -> Result<JobOrder, String> {
        let queue = format!("queue-{}", self.random.below(2));
        let queue = QueueName::new(queue).map_err(|error| error.to_string())?;
        let action = match self.random.below(5) {
            0 => JobAction::Remove,
            1 | 2 => JobAction::Move(Shift::Later(Duration::from_secs(
                self.random.between(1, 9_000),
            ))),
            3 => JobAction::Fire,
            _ => JobAction::Revive,
        };
        let mut order = JobOrder::new(queue, action);
        if action == JobAction::Remove && self.random.one_in(3) {
            order.filter.states = vec![StateKind::Pending];
        }
        if self.random.one_in(3) {
            order.filter.prefix = Some("a-".to_owned());
        }
        if self.random.one_in(2) {
            let tag = *self.random.pick(&TAGS);
            order.filter.tags = vec![tag.to_owned()];
        }
        let now = self.clock.timestamp();
        if self.random.one_in(4) {
            order.filter.due_from = Some(now + Duration::from_secs(7_200));
        }
        if self.random.one_in(4) {
            order.filter.due_before = Some(now + Duration::from_secs(25_000));
        }
        if self.random.one_in(3) {
            let rate = u32::try_from(self.random.between(1, 40)).unwrap_or(1);
            order.rate = NonZeroU32::new(rate);
        }
        order.dry_run = self.random.one_in(6);
        Ok(order)
    }

    /// What has come of a job that has ended.
    fn check_end(&mut self, job: &Job) -> Result<(), String> {
        let Some(believed) = self.jobs.remove(&job.order.queue) else {
            return Ok(());
        };
        self.report.jobs += 1;
        self.report.skipped += job.counts.skipped;
        self.log.note(format!("ended: {job:?}"));
        if job.shards_left != 0 || job.cancelled != believed.cancelled {
            return Err(format!("{job:?} is {believed:?}"));
        }
        if job.order.dry_run {
            let least = if job.cancelled {
                0
            } else {
                believed.must.len()
            };
            let matched = usize::try_from(job.counts.matched).unwrap_or(usize::MAX);
            if job.counts.done != 0 || !(least..=believed.may.len()).contains(&matched) {
                return Err(format!("a dry run has counted {job:?} of {believed:?}"));
            }
            return Ok(());
        }
        let counts = (job.counts.done, job.counts.skipped, job.counts.matched);
        let expected = (
            believed.done,
            believed.skipped,
            believed.done + believed.skipped,
        );
        if counts != expected {
            return Err(format!(
                "the counts are {counts:?}, not {expected:?}: {job:?}"
            ));
        }
        if job.cancelled {
            self.report.cancelled += 1;
        } else if !believed.must.is_empty() {
            return Err(format!(
                "these were left out: {:?} of {job:?}",
                believed.must
            ));
        }
        Ok(())
    }
}

fn shard_of(shard: usize) -> Shard {
    Shard(u16::try_from(shard).unwrap_or(0))
}

fn has_tags(record: &Record, tags: &[String]) -> bool {
    let bits = record.payload.first().copied().unwrap_or(0);
    tags.iter().all(|tag| {
        let bit = TAGS.iter().position(|known| known == tag);
        bit.is_some_and(|bit| bits & (1 << bit) != 0)
    })
}

fn wants(order: &JobOrder, record: &Record) -> bool {
    let filter = &order.filter;
    let prefix = filter.prefix.as_deref().unwrap_or_default();
    record.name.queue == order.queue
        && filter.states.contains(&record.state.kind())
        && record.name.key.as_str().starts_with(prefix)
        && has_tags(record, &filter.tags)
        && filter.due_from.is_none_or(|from| record.due >= from)
        && filter.due_before.is_none_or(|before| record.due < before)
}

/// The shards of one node.
struct Host<'a> {
    world: &'a RefCell<World>,
    node: usize,
}

impl Host<'_> {
    /// What is wrong ends the run.
    fn note<T>(&self, result: Result<T, String>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(what) => {
                self.world.borrow_mut().broken.get_or_insert(what);
                None
            }
        }
    }
}

impl JobHost for Host<'_> {
    fn settings(&self) -> Arc<Settings> {
        let world = self.world.borrow();
        let engines = world.engines.iter().zip(&world.owners);
        let own = engines.filter(|(_, owner)| **owner == self.node);
        let newest = own.map(|(engine, _)| engine.settings());
        let newest = newest.max_by_key(|settings| settings.version());
        newest.unwrap_or_else(|| world.engines[0].settings())
    }

    fn owned(&self) -> BTreeMap<Shard, Revision> {
        let world = self.world.borrow();
        let engines = world.engines.iter().zip(&world.owners).enumerate();
        let own = engines.filter(|(_, (_, owner))| **owner == self.node);
        own.map(|(shard, (engine, _))| (shard_of(shard), engine.last_revision()))
            .collect()
    }

    fn shard_count(&self) -> u16 {
        u16::try_from(self.world.borrow().engines.len()).unwrap_or(1)
    }

    fn page(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        let page = self.world.borrow().store.list(shard, filter)?;
        // Between the read and the commit, callers and attempts go on.
        let (disturbs, attempts, number) = {
            let mut world = self.world.borrow_mut();
            let disturbs = world.may_disturb && world.random.one_in(4);
            let keys = world.keys;
            (disturbs, world.random.one_in(4), world.random.below(keys))
        };
        if disturbs {
            let called = self.world.borrow_mut().call(number);
            self.note(called);
        }
        if disturbs && attempts {
            let ended = self.world.borrow_mut().end_attempt();
            self.note(ended);
        }
        Ok(page)
    }

    fn batch(&self, shard: Shard, requests: Vec<Request>) -> Result<Vec<Response>, BatchError> {
        let closed = || BatchError {
            index: None,
            error: TimerError::Closed,
        };
        let mut world = self.world.borrow_mut();
        if world.has_ended || world.broken.is_some() {
            return Err(closed());
        }
        let (before, after) = match world.end {
            Some(End::Before(0)) => (true, false),
            Some(End::After(0)) => (false, true),
            _ => (false, false),
        };
        if before {
            world.has_ended = true;
            return Err(closed());
        }
        let parts = requests.len();
        let queue = requests
            .iter()
            .find_map(Request::name)
            .map(|name| name.queue.clone());
        world
            .log
            .note(format!("node {} in {shard:?}: {requests:?}", self.node));
        world.next_ticket += 1;
        let event = Event::Batch(Ticket(world.next_ticket), requests);
        let answer = world.ask(usize::from(shard.0), event);
        drop(world);
        let answer = self.note(answer).ok_or_else(closed)?;
        let mut world = self.world.borrow_mut();
        match &answer {
            Err(refused) if refused.index.is_some_and(|index| index + 1 < parts) => {
                let before = world.refused.take().map_or(0, |(_, refused)| refused);
                world.refused = queue.map(|queue| (queue, before + 1));
            }
            Ok(_) => {
                // What was refused before it is in its counts.
                if let Some((queue, refused)) = world.refused.take()
                    && let Some(job) = world.jobs.get_mut(&queue)
                    && job.order.action != JobAction::Remove
                {
                    job.skipped += refused;
                }
                world.end = match world.end {
                    Some(End::Before(more)) => Some(End::Before(more.saturating_sub(1))),
                    Some(End::After(more)) => Some(End::After(more.saturating_sub(1))),
                    None => None,
                };
            }
            Err(_) => {}
        }
        if after && answer.is_ok() {
            world.has_ended = true;
            return Err(closed());
        }
        answer
    }

    fn configure(&self, request: Request) -> Result<Response, TimerError> {
        let mut world = self.world.borrow_mut();
        let own = world.owners.iter().position(|owner| *owner == self.node);
        let answer = world.request(own.unwrap_or(0), request);
        drop(world);
        self.note(answer).unwrap_or(Err(TimerError::Closed))
    }

    fn wall(&self) -> Timestamp {
        self.world.borrow().clock.timestamp()
    }

    fn now(&self) -> Instant {
        self.world.borrow().clock.now()
    }

    fn max_batch(&self) -> usize {
        self.world.borrow().config.max_batch
    }
}

fn live(world: &RefCell<World>, steps: u64) -> Result<(), String> {
    for _ in 0..steps {
        let what = {
            let mut world = world.borrow_mut();
            world.step += 1;
            world.random.below(24)
        };
        match what {
            0..5 => {
                let mut world = world.borrow_mut();
                let keys = world.keys;
                let number = world.random.below(keys);
                world.call(number)?;
            }
            5 | 6 => world.borrow_mut().end_attempt()?,
            7..9 => begin(world)?,
            9 if world.borrow_mut().random.one_in(3) => cancel(world)?,
            10 if world.borrow_mut().random.one_in(3) => {
                let mut world = world.borrow_mut();
                let nodes = world.steps.len();
                let node = world.below(nodes);
                world.end_process(node);
            }
            11 if world.borrow_mut().random.one_in(2) => world.borrow_mut().take_over(),
            12..15 => pass_time(world)?,
            _ => {
                let node = {
                    let mut world = world.borrow_mut();
                    let nodes = world.steps.len();
                    world.below(nodes)
                };
                job_step(world, node, true)?;
            }
        }
    }
    world.borrow_mut().log.note("it heals".to_owned());
    world.borrow_mut().may_disturb = false;
    for _ in 0..STEPS_TO_END {
        if world.borrow().jobs.is_empty() {
            return Ok(());
        }
        let nodes = world.borrow().steps.len();
        for node in 0..nodes {
            look(world, node)?;
            job_step(world, node, false)?;
        }
        world.borrow().clock.advance(Duration::from_millis(50));
    }
    let jobs = format!("{:?}", world.borrow().jobs);
    Err(format!("these do not come to their end: {jobs}"))
}

fn pass_time(world: &RefCell<World>) -> Result<(), String> {
    let mut world = world.borrow_mut();
    let span = Duration::from_micros(world.random.between(1, 700_000));
    world.clock.advance(span);
    for shard in 0..world.engines.len() {
        world.turn(shard, Vec::new())?;
    }
    Ok(())
}

/// Every shard of a node sees what others have changed of the settings.
fn look(world: &RefCell<World>, node: usize) -> Result<(), String> {
    let mut world = world.borrow_mut();
    let name = SettingName::new("nothing").map_err(|error| error.to_string())?;
    for shard in 0..world.owners.len() {
        if world.owners[shard] == node {
            // There is none of that version.
            let nothing = Request::Configure {
                name: name.clone(),
                value: None,
                precondition: SettingPrecondition::Version(SettingsVersion(u64::MAX)),
            };
            drop(world.request(shard, nothing)?);
        }
    }
    Ok(())
}

fn broken(world: &RefCell<World>) -> Result<(), String> {
    match world.borrow_mut().broken.take() {
        Some(what) => Err(what),
        None => Ok(()),
    }
}

fn begin(world: &RefCell<World>) -> Result<(), String> {
    let order = world.borrow_mut().order()?;
    if world.borrow().jobs.contains_key(&order.queue) {
        return Ok(());
    }
    let (nodes, node) = {
        let mut world = world.borrow_mut();
        let nodes = world.steps.len();
        (nodes, world.below(nodes))
    };
    let records = world.borrow().records()?;
    let wanted = records.values().filter(|record| wants(&order, record));
    let wanted: BTreeSet<_> = wanted.map(|record| record.name.clone()).collect();
    let host = Host { world, node };
    let job = match JobSteps::begin(&host, &order) {
        Ok(job) => job,
        Err(JobError::TooMany) => return Err("two jobs are too many".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    broken(world)?;
    {
        let mut world = world.borrow_mut();
        world.log.note(format!("asked: {job:?}"));
        let believed = Believed {
            id: job.id,
            order: order.clone(),
            may: wanted.clone(),
            must: wanted,
            marked: u64::MAX,
            acted: BTreeSet::new(),
            done: 0,
            skipped: 0,
            began: world.clock.now(),
            starts: nodes as u64,
            cancelled: false,
        };
        world.jobs.insert(order.queue.clone(), believed);
    }
    // Whoever asks waits for the other nodes, while callers go on.
    for _ in 0..RESTLESS {
        if JobSteps::is_marked(&host, job.id) || !world.borrow().jobs.contains_key(&order.queue) {
            break;
        }
        let other = world.borrow_mut().below(nodes);
        look(world, other)?;
        job_step(world, other, true)?;
        look(world, node)?;
    }
    if !world.borrow().jobs.contains_key(&order.queue) {
        return Ok(());
    }
    if !JobSteps::is_marked(&host, job.id) {
        return Err(format!("not every shard has seen {job:?}"));
    }
    let mut world = world.borrow_mut();
    let records = world.records()?;
    let events = world.events;
    if let Some(job) = world.jobs.get_mut(&order.queue) {
        job.marked = events;
        let wanted = records.values().filter(|record| wants(&order, record));
        job.may.extend(wanted.map(|record| record.name.clone()));
    }
    Ok(())
}

fn cancel(world: &RefCell<World>) -> Result<(), String> {
    let queues: Vec<_> = world.borrow().jobs.keys().cloned().collect();
    if queues.is_empty() {
        return Ok(());
    }
    let (queue, node, nodes) = {
        let mut world = world.borrow_mut();
        let queue = world.random.pick(&queues).clone();
        let nodes = world.steps.len();
        (queue, world.below(nodes), nodes)
    };
    let id = world.borrow().jobs[&queue].id;
    let host = Host { world, node };
    let job = JobSteps::cancel(&host, id).map_err(|error| error.to_string())?;
    broken(world)?;
    let Some(job) = job.filter(|job| job.ended.is_none()) else {
        return Ok(());
    };
    for node in 0..nodes {
        look(world, node)?;
    }
    let mut world = world.borrow_mut();
    world.log.note(format!("cancelled: {job:?}"));
    if let Some(believed) = world.jobs.get_mut(&queue) {
        believed.cancelled = true;
    }
    Ok(())
}

/// A node does a step of the jobs, and may end within.
fn job_step(world: &RefCell<World>, node: usize, may_end: bool) -> Result<(), String> {
    let (mut steps, limit) = {
        let mut world = world.borrow_mut();
        world.end = match world.random.below(12) {
            0 if may_end => Some(End::Before(world.random.below(3))),
            1 if may_end => Some(End::After(world.random.below(2))),
            _ => None,
        };
        world.has_ended = false;
        world.refused = None;
        let limit = usize::try_from(world.random.between(1, 8)).unwrap_or(1);
        (mem::take(&mut world.steps[node]), limit)
    };
    let host = Host { world, node };
    let stepped = steps.step(&host, limit, &has_tags);
    broken(world)?;
    let mut borrowed = world.borrow_mut();
    borrowed.steps[node] = steps;
    borrowed.end = None;
    if mem::take(&mut borrowed.has_ended) {
        borrowed.end_process(node);
    } else if let Err(error) = stepped {
        return Err(format!("a step of node {node} failed: {error}"));
    }
    borrowed.check_rates()?;
    drop(borrowed);
    for job in JobSteps::all(&host) {
        let mut world = world.borrow_mut();
        let is_ours = world
            .jobs
            .get(&job.order.queue)
            .is_some_and(|believed| believed.id == job.id);
        if job.ended.is_some() && is_ours {
            world.check_end(&job)?;
        }
    }
    Ok(())
}
