//! Worlds of the audit log: callers whose requests are noted, beside others whose are not, over ends of the process,
//! timers that fire, die and are forgotten, batches that are refused, drains, and a wall clock that is set.
//!
//! The log has one entry of each noted request that has changed something: with how the timer or the setting stood before,
//! and how it stands by the answer, as soon as that answer is there. Nothing else has an entry. An entry stays for its
//! time and no longer, and no count has it.
//!
//! ```
//! use countwheel_sim::{Stepped, audit};
//!
//! let report = audit::run(7, &Stepped::of(audit::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.entries > 0 && report.refused > 0);
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Filter, MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, AuditEntry, BatchError, Changed, Config, DrainMode, Due, Effect, Engine, Event, Key,
    Note, Outcome, Precondition, QueueName, Receipt, Record, Request, Response, RetryPolicy,
    Revision, SetOptions, SettingError, SettingName, SettingPrecondition, SettingsVersion, Shift,
    StateKind, Stood, Ticket, TimerError, TimerName, Verdict,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

/// How many turns may follow each other while no time passes.
const RESTLESS: usize = 400;
/// Where the engine keeps the log.
const AUDIT: &str = "countwheel:internal/audit";

/// How many steps a run has, if nobody says it.
pub const STEPS: u64 = 300;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Turns that were taken.
    pub turns: u64,
    /// Noted requests that have changed something.
    pub entries: u64,
    /// Noted requests that were refused.
    pub refused: u64,
    /// Noted requests that have changed nothing.
    pub nothing: u64,
    /// Requests that were done without a note.
    pub plain: u64,
    /// Batches that were refused.
    pub batches_refused: u64,
    /// Entries whose time was over.
    pub over: u64,
    /// Timers that were forgotten at the end of their retention.
    pub forgotten: u64,
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
        self.entries += other.entries;
        self.refused += other.refused;
        self.nothing += other.nothing;
        self.plain += other.plain;
        self.batches_refused += other.batches_refused;
        self.over += other.over;
        self.forgotten += other.forgotten;
        self.ends += other.ends;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} turns, {} noted changes, {} noted requests refused and {} that changed nothing, {} requests \
             without a note, {} batches refused; {} entries over, {} timers forgotten; {} ends of a process",
            self.seeds,
            self.turns,
            self.entries,
            self.refused,
            self.nothing,
            self.plain,
            self.batches_refused,
            self.over,
            self.forgotten,
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

/// An entry that has to be there until its time is over.
#[derive(Clone, PartialEq, Debug)]
struct Expected {
    at: Timestamp,
    keep_until: Timestamp,
    changed: Changed,
    note: Vec<u8>,
}

/// A request, and the note that it has, if it has one.
struct Asked {
    request: Request,
    note: Option<(Vec<u8>, Duration)>,
}

struct World {
    random: Random,
    clock: ManualClock,
    store: Arc<MemoryStore>,
    config: Config,
    engine: Engine,
    /// The attempts that run, and when each ends.
    running: Vec<(Timestamp, Attempt)>,
    /// In the order in which they were answered.
    expected: Vec<Expected>,
    /// The timers as this world knows them, while a turn is looked at.
    timers: BTreeMap<u64, Stood>,
    /// The settings in the same way.
    settings: BTreeMap<SettingName, SettingsVersion>,
    /// That of all settings.
    version: SettingsVersion,
    keys: u64,
    next_note: u64,
    next_ticket: u64,
    step: u64,
    report: Report,
    log: Log,
}

type Answer = Result<Response, TimerError>;

/// What a turn has answered.
#[derive(Default)]
struct Answers {
    answers: BTreeMap<u64, Answer>,
    batches: BTreeMap<u64, Result<Vec<Response>, BatchError>>,
}

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "audit");
        let clock = ManualClock::at(Timestamp::from_micros(1_356_998_400_000_000));
        let config = Config {
            max_in_flight: 4,
            window_bytes: if random.one_in(3) {
                128 << 10
            } else {
                64 << 20
            },
            catch_up_per_second: 1_000_000,
            keep_done: Duration::from_millis(random.between(1, 5_000)),
            seed,
            ..Config::default()
        };
        let store = Arc::new(MemoryStore::new(seed));
        let engine = open(&store, &clock, &config);
        Self {
            keys: random.between(2, 12),
            random,
            clock,
            store,
            config,
            engine,
            running: Vec::new(),
            expected: Vec::new(),
            timers: BTreeMap::new(),
            settings: BTreeMap::new(),
            version: SettingsVersion::default(),
            next_note: 0,
            next_ticket: 0,
            step: 0,
            report: Report::default(),
            log: Log::new(options.log),
        }
    }

    fn live(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.step += 1;
            match self.random.below(20) {
                0..8 => self.ask_some()?,
                8..11 => self.ask_batch()?,
                11 if self.random.one_in(3) => self.end_process()?,
                12 if self.random.one_in(6) => {
                    let by = Duration::from_millis(self.random.between(1, 3_000));
                    let now = self.clock.timestamp();
                    let to = if self.random.one_in(3) {
                        now.saturating_sub(by)
                    } else {
                        now + by
                    };
                    self.log.note(format!("the wall clock is set to {to:?}"));
                    self.clock.set_timestamp(to);
                }
                _ => self.pass_time(),
            }
            self.rest()?;
            self.check(true)?;
        }
        Ok(())
    }

    /// Draws a request, with a note or without one.
    fn draw(&mut self) -> Result<Asked, String> {
        let number = self.random.below(self.keys);
        let name = name(number)?;
        let due = Due::In(Duration::from_millis(self.random.below(8_000)));
        let precondition = match self.random.below(6) {
            0 => Precondition::Absent,
            1 => Precondition::Revision(Revision(self.random.below(200))),
            _ => Precondition::None,
        };
        let request = match self.random.below(11) {
            0..3 => Request::Set {
                name,
                due,
                policy: policy()?,
                payload: vec![9],
                precondition,
                options: SetOptions::default(),
            },
            3 => Request::Set {
                name,
                due,
                policy: policy()?,
                payload: vec![1],
                precondition: Precondition::None,
                options: SetOptions {
                    receipt: Some(Box::new(Receipt {
                        key: u128::from(number).to_be_bytes(),
                        fingerprint: [1; 32],
                        keep: Duration::from_secs(5),
                    })),
                    ..SetOptions::default()
                },
            },
            4 => Request::Move {
                name,
                shift: Shift::Later(Duration::from_millis(self.random.below(4_000))),
                precondition,
            },
            5 => Request::Remove {
                name,
                precondition,
                only_pending: self.random.one_in(3),
            },
            6 => Request::Fire { name },
            7 => Request::Revive { name, due },
            8 => {
                let queue = QueueName::new("orders").map_err(text)?;
                let mode = self.random.one_in(4).then_some(DrainMode::Hold);
                Request::drain(Some(&queue), mode).map_err(text)?
            }
            _ => Request::Configure {
                name: SettingName::new(format!("setting-{}", self.random.below(3)))
                    .map_err(text)?,
                value: (!self.random.one_in(3)).then(|| b"value".to_vec()),
                precondition: match self.random.below(6) {
                    0..2 => SettingPrecondition::Absent,
                    2 => SettingPrecondition::Settings(self.version),
                    _ => SettingPrecondition::None,
                },
            },
        };
        let note = self.random.one_in(2).then(|| {
            self.next_note += 1;
            let keep = Duration::from_millis(self.random.between(100, 20_000));
            (format!("note {}", self.next_note).into_bytes(), keep)
        });
        Ok(Asked { request, note })
    }

    /// Some requests in one turn, and perhaps an end of the process before anybody has heard the answers.
    fn ask_some(&mut self) -> Result<(), String> {
        let count = self.random.between(1, 4);
        let mut asked = Vec::new();
        for _ in 0..count {
            asked.push(self.draw()?);
        }
        let now = self.clock.timestamp();
        let ends = self.random.one_in(5);
        self.look()?;
        let first = self.next_ticket + 1;
        let mut events = Vec::new();
        for asked in &asked {
            self.next_ticket += 1;
            self.log
                .note(format!("{now:?} {:?} {:?}", asked.request, asked.note));
            events.push(Event::Request(Ticket(self.next_ticket), asked.request()?));
        }
        let mut answers = self.turn(events)?;
        for (ticket, asked) in (first..).zip(&asked) {
            let answer = answers.answers.remove(&ticket);
            let answer = answer.ok_or("a request is not answered")?;
            match &answer {
                Ok(response) => self.expect(asked, response, now)?,
                Err(error) => {
                    self.check_refusal(asked, error)?;
                    self.report.refused += u64::from(asked.note.is_some());
                }
            }
        }
        // Whatever becomes of the process: the log is as durable as the answers.
        self.check(false)?;
        if ends {
            self.end_process()?;
        }
        Ok(())
    }

    /// All of a batch has entries, or nothing has.
    fn ask_batch(&mut self) -> Result<(), String> {
        let count = self.random.between(1, 4);
        let mut asked = Vec::new();
        for _ in 0..count {
            asked.push(self.draw()?);
        }
        let now = self.clock.timestamp();
        self.look()?;
        let mut requests = Vec::new();
        for asked in &asked {
            self.log.note(format!(
                "{now:?} in a batch {:?} {:?}",
                asked.request, asked.note
            ));
            requests.push(asked.request()?);
        }
        self.next_ticket += 1;
        let answers = self.turn(vec![Event::Batch(Ticket(self.next_ticket), requests)])?;
        let answer = answers.batches.into_values().next();
        match answer.ok_or("a batch is not answered")? {
            Ok(responses) => {
                for (asked, response) in asked.iter().zip(&responses) {
                    self.expect(asked, response, now)?;
                }
            }
            Err(_) => self.report.batches_refused += 1,
        }
        self.check(false)
    }

    /// How everything stands before a turn.
    fn look(&mut self) -> Result<(), String> {
        let now = self.clock.timestamp();
        for number in 0..self.keys {
            let record = self.store.get(Shard::ONLY, &name(number)?).map_err(text)?;
            let record = record.filter(|record| !record.is_over(now));
            self.timers.insert(number, stood(record.as_ref()));
        }
        self.settings.clear();
        let settings = self.store.settings(SettingsVersion::default());
        if let Some(settings) = settings.map_err(text)? {
            let known = settings.iter().map(|(name, it)| (name.clone(), it.version));
            self.settings.extend(known);
            self.version = settings.version();
        }
        Ok(())
    }

    /// Whether settings have changed, if that is why a request is refused.
    fn check_refusal(&self, asked: &Asked, error: &TimerError) -> Result<(), String> {
        let TimerError::Setting(SettingError::SettingsChanged { current }) = error else {
            return Ok(());
        };
        if *current != self.version || self.is_unchanged(asked) {
            return Err(format!(
                "{:?} is refused with {error}: the settings have version {:?}",
                asked.request, self.version
            ));
        }
        Ok(())
    }

    /// Whether no setting has changed that a request wants unchanged.
    fn is_unchanged(&self, asked: &Asked) -> bool {
        match &asked.request {
            Request::Configure {
                precondition: SettingPrecondition::Settings(version),
                ..
            } => *version == self.version,
            _ => true,
        }
    }

    /// What has to be in the log of a request that was answered so, and how things stand after it.
    fn expect(&mut self, asked: &Asked, response: &Response, now: Timestamp) -> Result<(), String> {
        let changed = match &asked.request {
            Request::Configure { name, value, .. } => {
                let Response::Configured(configured) = response else {
                    return Err(format!("a change of a setting: {response:?}"));
                };
                if !self.is_unchanged(asked) {
                    return Err(format!(
                        "{:?} is done, though the settings have version {:?}",
                        asked.request, self.version
                    ));
                }
                self.version = configured.version;
                let before = self.settings.remove(name);
                let after = value.as_ref().map(|_| configured.version);
                if let Some(version) = after {
                    self.settings.insert(name.clone(), version);
                }
                let is_change = before.is_some() || after.is_some();
                is_change.then(|| Changed::Setting {
                    name: name.clone(),
                    before,
                    after,
                })
            }
            request => {
                let name = request.name().ok_or("a request without a name")?;
                let number = number(name)?;
                let before = self.timers[&number];
                let after = after(before, response)?;
                self.timers.insert(number, after);
                let is_replay = matches!(response, Response::Set(set) if set.replayed);
                (!is_replay).then(|| Changed::Timer {
                    name: name.clone(),
                    before,
                    after,
                })
            }
        };
        match (&asked.note, changed) {
            (None, _) => self.report.plain += 1,
            (Some(_), None) => self.report.nothing += 1,
            (Some((note, keep)), Some(changed)) => {
                self.report.entries += 1;
                self.expected.push(Expected {
                    at: now,
                    keep_until: now + *keep,
                    changed,
                    note: note.clone(),
                });
            }
        }
        Ok(())
    }

    fn end_process(&mut self) -> Result<(), String> {
        self.log.note("the process ends".to_owned());
        self.report.ends += 1;
        self.running.clear();
        self.engine = open(&self.store, &self.clock, &self.config);
        self.turn(Vec::new()).map(drop)
    }

    fn pass_time(&mut self) {
        let now = self.clock.timestamp();
        let wake = self.engine.next_wake();
        let next = wake.map(|at| at.saturating_since(now));
        let span = Duration::from_micros(self.random.between(1, 3_000_000));
        let span = match next {
            Some(next) if !next.is_zero() && self.random.one_in(2) => next.min(span),
            _ => span,
        };
        self.clock.advance(span);
    }

    /// The engine takes turns until it has nothing to do at this time, and attempts end.
    fn rest(&mut self) -> Result<(), String> {
        for _ in 0..RESTLESS {
            let now = self.clock.timestamp();
            let ended = self.running.iter().position(|(until, _)| *until <= now);
            if let Some(ended) = ended {
                let (_, attempt) = self.running.swap_remove(ended);
                let verdict = match self.random.below(4) {
                    0 => Verdict::Failed { retry_after: None },
                    1 => Verdict::Stopped,
                    _ => Verdict::Done,
                };
                let (revision, outcome) = (attempt.revision, Outcome::new(verdict, ""));
                self.turn(vec![Event::Outcome { revision, outcome }])?;
                continue;
            }
            if self.engine.next_wake().is_none_or(|at| at > now) {
                return Ok(());
            }
            self.turn(Vec::new())?;
        }
        Err(format!(
            "after {RESTLESS} turns there is still something to do"
        ))
    }

    fn turn(&mut self, events: Vec<Event>) -> Result<Answers, String> {
        self.report.turns += 1;
        let (mut starts, mut answers) = (Vec::new(), Answers::default());
        let (before, counted) = (self.count()?, self.engine.stats().forgotten);
        let taken = self.engine.turn(events, &mut |effect| match effect {
            Effect::Start(attempt) => starts.push(attempt),
            Effect::Answer(Ticket(ticket), said) => drop(answers.answers.insert(ticket, said)),
            Effect::BatchAnswer(Ticket(ticket), said) => {
                drop(answers.batches.insert(ticket, said));
            }
        });
        taken.map_err(text)?;
        for attempt in starts {
            if attempt.name.queue.as_str() == AUDIT {
                return Err(format!("an entry is delivered: {attempt:?}"));
            }
            let runs = Duration::from_millis(self.random.below(500));
            let until = self.clock.timestamp() + runs;
            self.running.push((until, attempt));
        }
        self.check_counts(before, counted, &answers)?;
        Ok(answers)
    }

    /// Of the timers that were there, each is still there, or was removed, or counts as forgotten. Nothing else does.
    fn check_counts(&mut self, before: i64, counted: u64, answers: &Answers) -> Result<(), String> {
        let batches = answers.batches.values().flatten().flatten();
        let single = answers.answers.values().flatten();
        let (mut set, mut removed) = (0, 0);
        for response in batches.chain(single) {
            match response {
                // What is over and replaced is not forgotten.
                Response::Set(found) if !found.replayed => {
                    set += i64::from(found.replaced.is_none());
                }
                Response::Removed(_) => removed += 1,
                _ => {}
            }
        }
        let forgotten = self.engine.stats().forgotten - counted;
        self.report.forgotten += forgotten;
        let forgotten = i64::try_from(forgotten).map_err(text)?;
        let gone = before + set - removed - self.count()?;
        // A set may have taken the place of a timer whose time was over, and which was counted before.
        if !(forgotten..=forgotten + set).contains(&gone) {
            return Err(format!(
                "{forgotten} timers count as forgotten, and {gone} are gone, where {set} were set"
            ));
        }
        Ok(())
    }

    /// How many timers the store has.
    fn count(&self) -> Result<i64, String> {
        let counts = self.store.counts(Shard::ONLY).map_err(text)?;
        let counts = counts.iter().filter(|it| it.queue.as_str() == "orders");
        let count: u64 = counts.map(|it| it.by_state.iter().sum::<u64>()).sum();
        i64::try_from(count).map_err(text)
    }

    /// The log has each entry whose time is not over, and no other. What is over may be there until the engine rests.
    fn check(&mut self, rests: bool) -> Result<(), String> {
        let now = self.clock.timestamp();
        let queue = QueueName::from_text(AUDIT).map_err(text)?;
        let filter = Filter {
            limit: usize::MAX,
            scan_limit: usize::MAX,
            ..Filter::queue(queue)
        };
        let page = self.store.list(Shard::ONLY, &filter).map_err(text)?;
        let over = page.records.iter().find(|record| record.is_over(now));
        if let Some(over) = over.filter(|_| rests) {
            return Err(format!("at {now:?} an entry is over, and stored: {over:?}"));
        }
        let stored = page.records.iter().filter(|record| !record.is_over(now));
        let mut found = Vec::new();
        for record in stored {
            let entry = AuditEntry::of(record);
            let entry = entry.ok_or_else(|| format!("it is no entry: {record:?}"))?;
            found.push(Expected {
                at: entry.at,
                keep_until: entry.keep_until,
                changed: entry.changed,
                note: entry.note,
            });
        }
        let before = self.expected.len();
        // A clock that is set back brings nothing back.
        self.expected.retain(|entry| entry.keep_until > now);
        self.report.over += (before - self.expected.len()) as u64;
        let mut expected: Vec<_> = self.expected.iter().collect();
        expected.sort_by_key(|entry| entry.at);
        let differs = expected
            .iter()
            .zip(&found)
            .find(|(one, other)| *one != other);
        if expected.len() != found.len() || differs.is_some() {
            let (left, there) = (expected.len(), found.len());
            return Err(format!(
                "{there} entries are stored and {left} are to be kept; the first that differs: {differs:?}"
            ));
        }
        Ok(())
    }
}

impl Asked {
    fn request(&self) -> Result<Request, String> {
        let request = self.request.clone();
        match &self.note {
            None => Ok(request),
            Some((bytes, keep)) => {
                let note = Note::new(bytes.clone(), *keep).map_err(text)?;
                Ok(request.noted(note))
            }
        }
    }
}

fn stood(record: Option<&Record>) -> Stood {
    match record {
        None => Stood::Nothing,
        Some(record) => Stood::There {
            state: record.state.kind(),
            due: record.due,
            revision: record.revision,
            attempts: record.attempt,
        },
    }
}

/// How a timer stands by the answer.
fn after(before: Stood, response: &Response) -> Result<Stood, String> {
    let had = match before {
        Stood::There { attempts, .. } => attempts,
        _ => 0,
    };
    let pending = |due, revision, attempts| Stood::There {
        state: StateKind::Pending,
        due,
        revision,
        attempts,
    };
    match response {
        Response::Set(set) if set.replayed => Ok(before),
        Response::Set(set) => Ok(pending(set.due, set.revision, 0)),
        Response::Moved(moved) => Ok(pending(moved.due, moved.revision, had)),
        Response::Removed(_) => Ok(Stood::Nothing),
        other => Err(format!("an answer about a timer: {other:?}")),
    }
}

fn open(store: &Arc<MemoryStore>, clock: &ManualClock, config: &Config) -> Engine {
    let clock = Arc::new(clock.clone());
    let engine = Engine::open(store.clone(), Shard::ONLY, clock, config.clone());
    engine.unwrap_or_else(|error| unreachable!("a healthy store opens: {error}"))
}

fn name(number: u64) -> Result<TimerName, String> {
    Ok(TimerName {
        queue: QueueName::new("orders").map_err(text)?,
        key: Key::new(format!("key-{number}")).map_err(text)?,
    })
}

fn number(name: &TimerName) -> Result<u64, String> {
    let number = name.key.as_str().strip_prefix("key-");
    number.ok_or("a name of another")?.parse().map_err(text)
}

fn policy() -> Result<RetryPolicy, String> {
    let policy = RetryPolicy::fixed(Duration::from_millis(300)).max_attempts(3);
    policy.map_err(text)
}

#[expect(clippy::needless_pass_by_value, reason = "errors are given to it")]
fn text(error: impl ToString) -> String {
    error.to_string()
}
