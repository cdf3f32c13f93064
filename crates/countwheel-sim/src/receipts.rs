//! Worlds of receipts: callers who set timers once and ask again, over ends of the process, timers that fire, are
//! moved, replaced and removed, drains, and a wall clock that is set ahead.
//!
//! While the receipt of a set is kept, the same request has the same answer and sets nothing, and another request
//! under its key is refused, whatever has become of the timer. Once it is over, the request sets a timer again, but
//! never in place of one that is still there. A set that was refused leaves no receipt. A receipt that is over does not
//! stay in the store.
//!
//! ```
//! use countwheel_sim::{Stepped, receipts};
//!
//! let report = receipts::run(7, &Stepped::of(receipts::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.sets > 0 && report.replayed > 0);
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::store::{Filter, MemoryStore, Shard, Store};
use countwheel_durable::{
    Attempt, BatchError, Config, DrainMode, Due, Effect, Engine, Event, Key, Outcome, Precondition,
    QueueName, Receipt, Record, Request, Response, RetryPolicy, Set, SetOptions, Shift, StateKind,
    Ticket, TimerError, TimerName, Verdict,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

/// How many turns may follow each other while no time passes.
const RESTLESS: usize = 400;
/// Where the engine keeps receipts.
const RECEIPTS: &str = "countwheel:internal/receipts";

/// How many steps a run has, if nobody says it.
pub const STEPS: u64 = 300;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Turns that were taken.
    pub turns: u64,
    /// Sets with a receipt that set a timer.
    pub sets: u64,
    /// Sets that were answered like an earlier one.
    pub replayed: u64,
    /// Sets that asked for something else than an earlier one.
    pub mismatched: u64,
    /// Sets that came while an earlier one was under way.
    pub pending: u64,
    /// Sets whose receipt was over, and whose timer was still there.
    pub kept_out: u64,
    /// Receipts that were over.
    pub over: u64,
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
        self.sets += other.sets;
        self.replayed += other.replayed;
        self.mismatched += other.mismatched;
        self.pending += other.pending;
        self.kept_out += other.kept_out;
        self.over += other.over;
        self.ends += other.ends;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} turns, {} sets with a receipt, {} repeated, {} with another body, {} while the first ran, {} \
             after their receipt and beside their timer; {} receipts over; {} ends of a process",
            self.seeds,
            self.turns,
            self.sets,
            self.replayed,
            self.mismatched,
            self.pending,
            self.kept_out,
            self.over,
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

/// What is known of a set that was done.
#[derive(Clone, Copy, Debug)]
struct First {
    body: u8,
    set: Set,
    until: Timestamp,
}

/// What a set with a receipt has to come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    Set,
    Replayed,
    Mismatch,
    Pending,
    Exists(StateKind),
    Draining,
}

struct World {
    random: Random,
    clock: ManualClock,
    store: Arc<MemoryStore>,
    config: Config,
    engine: Engine,
    /// The attempts that run, and when each ends.
    running: Vec<(Timestamp, Attempt)>,
    first: BTreeMap<u64, First>,
    is_drained: bool,
    keys: u64,
    keep: Duration,
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
        let mut random = Random::new(seed, "receipts");
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
            keep: Duration::from_millis(random.between(200, 20_000)),
            random,
            clock,
            store,
            config,
            engine,
            running: Vec::new(),
            first: BTreeMap::new(),
            is_drained: false,
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
                0..7 => self.set_once()?,
                7 => self.set_in_a_batch()?,
                8 => self.set_plainly()?,
                9 => self.remove()?,
                10 => self.shift()?,
                11 if self.random.one_in(3) => self.drain()?,
                12 if self.random.one_in(3) => self.end_process()?,
                13 if self.random.one_in(6) => {
                    let ahead = Duration::from_millis(self.random.between(1, 3_000));
                    self.log
                        .note(format!("the wall clock is set {ahead:?} ahead"));
                    self.clock.set_timestamp(self.clock.timestamp() + ahead);
                }
                _ => self.pass_time(),
            }
            self.rest()?;
            self.check()?;
        }
        Ok(())
    }

    fn request(&self, number: u64, body: u8, due: Duration) -> Result<Request, String> {
        let receipt = Receipt {
            key: u128::from(number).to_be_bytes(),
            fingerprint: [body; 32],
            keep: self.keep,
        };
        Ok(Request::Set {
            name: name(number)?,
            due: Due::In(due),
            policy: policy()?,
            payload: vec![body],
            precondition: Precondition::None,
            options: SetOptions {
                receipt: Some(Box::new(receipt)),
                ..SetOptions::default()
            },
        })
    }

    /// A caller asks, and perhaps asks again in the same moment, or does not hear the answer.
    fn set_once(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        let body = u8::try_from(self.random.below(3) / 2).unwrap_or(0);
        let due = Duration::from_millis(self.random.below(8_000));
        let twice = self.random.one_in(4);
        let ends = self.random.one_in(5);
        let now = self.clock.timestamp();
        self.log.note(format!(
            "{now:?} set {number} with body {body}, twice: {twice}"
        ));
        let expected = self.expected(number, body)?;
        let mut requests = vec![self.request(number, body, due)?];
        let mut all = vec![expected];
        if twice {
            let other = if self.random.one_in(3) {
                1 - body
            } else {
                body
            };
            requests.push(self.request(number, other, due)?);
            all.push(match expected {
                Expected::Set => Expected::Pending,
                Expected::Replayed | Expected::Mismatch => self.expected(number, other)?,
                refused => refused,
            });
        }
        let first = self.next_ticket + 1;
        let events = requests.into_iter().map(|request| {
            self.next_ticket += 1;
            Event::Request(Ticket(self.next_ticket), request)
        });
        let events = events.collect();
        let mut answers = self.turn(events)?;
        for (ticket, expected) in (first..).zip(all) {
            let answer = answers.answers.remove(&ticket);
            let answer = answer.ok_or("a set is not answered")?;
            self.note(number, body, now, expected, &answer)?;
        }
        if ends {
            // Nobody has heard the answer.
            self.end_process()?;
        }
        Ok(())
    }

    /// Two sets, or one and what is refused: all or nothing, receipts included.
    fn set_in_a_batch(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        let other = (number + 1) % self.keys;
        let due = Duration::from_millis(self.random.below(8_000));
        let is_refused = self.random.one_in(2);
        let now = self.clock.timestamp();
        self.log.note(format!(
            "{now:?} a batch sets {number} and {other}, and is refused: {is_refused}"
        ));
        let all = [
            (number, self.expected(number, 0)?),
            (other, self.expected(other, 0)?),
        ];
        let mut requests = Vec::new();
        for (number, _) in all {
            requests.push(self.request(number, 0, due)?);
        }
        if is_refused {
            requests.push(Request::Fire {
                name: TimerName::new("nothing", "nobody").map_err(text)?,
            });
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let answers = self.turn(vec![Event::Batch(Ticket(ticket), requests)])?;
        let answer = answers.batches.into_values().next();
        let answer = answer.ok_or("a batch is not answered")?;
        let goes_on = |expected| matches!(expected, Expected::Set | Expected::Replayed);
        let refused = all.iter().position(|(_, expected)| !goes_on(*expected));
        let refused = refused.or(is_refused.then_some(2));
        match (answer, refused) {
            (Ok(responses), None) => {
                for ((number, expected), response) in all.into_iter().zip(responses) {
                    self.note(number, 0, now, expected, &Ok(response))?;
                }
                Ok(())
            }
            (Err(refusal), Some(at)) if refusal.index == Some(at) => Ok(()),
            (answer, refused) => Err(format!(
                "a batch that is refused at {refused:?}: {answer:?}"
            )),
        }
    }

    /// What a set has to come to, by what was answered before.
    fn expected(&self, number: u64, body: u8) -> Result<Expected, String> {
        let now = self.clock.timestamp();
        if let Some(first) = self.first.get(&number)
            && now < first.until
        {
            return Ok(if first.body == body {
                Expected::Replayed
            } else {
                Expected::Mismatch
            });
        }
        if self.is_drained {
            return Ok(Expected::Draining);
        }
        let there = self.record(number)?.filter(|record| !record.is_over(now));
        Ok(there.map_or(Expected::Set, |record| {
            Expected::Exists(record.state.kind())
        }))
    }

    fn note(
        &mut self,
        number: u64,
        body: u8,
        at: Timestamp,
        expected: Expected,
        answer: &Answer,
    ) -> Result<(), String> {
        let before = self.first.get(&number).map(|first| first.set);
        match (expected, answer) {
            (Expected::Set, Ok(Response::Set(set))) if !set.replayed && set.replaced.is_none() => {
                if before.is_some_and(|before| before.id == set.id) {
                    return Err(format!("{number} is set anew with its old id: {set:?}"));
                }
                self.report.sets += 1;
                let until = at + self.keep;
                let set = *set;
                self.first.insert(number, First { body, set, until });
            }
            (Expected::Replayed, Ok(Response::Set(set)))
                if before.map(|before| Set {
                    replayed: true,
                    ..before
                }) == Some(*set) =>
            {
                self.report.replayed += 1;
            }
            (Expected::Mismatch, Err(TimerError::ReceiptMismatch)) => self.report.mismatched += 1,
            (Expected::Pending, Err(TimerError::ReceiptPending)) => self.report.pending += 1,
            (Expected::Exists(state), Err(TimerError::Exists { state: found }))
                if state == *found =>
            {
                self.report.kept_out += 1;
            }
            (Expected::Draining, Err(TimerError::Draining { .. })) => {}
            _ => {
                return Err(format!(
                    "a set of {number} has to be {expected:?}, after {before:?}: {answer:?}"
                ));
            }
        }
        Ok(())
    }

    /// Somebody takes the name of a timer that was set once.
    fn set_plainly(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        self.log.note(format!("set {number} plainly"));
        let due = Duration::from_millis(self.random.below(8_000));
        let request = Request::Set {
            name: name(number)?,
            due: Due::In(due),
            policy: policy()?,
            payload: vec![9],
            precondition: Precondition::None,
            options: SetOptions::default(),
        };
        match (self.ask(request)?, self.is_drained) {
            (Ok(Response::Set(set)), false) if !set.replayed => Ok(()),
            (Err(TimerError::Draining { .. }), true) => Ok(()),
            (answer, _) => Err(format!("a plain set of {number}: {answer:?}")),
        }
    }

    fn remove(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        self.log.note(format!("remove {number}"));
        let request = Request::Remove {
            name: name(number)?,
            precondition: Precondition::None,
            only_pending: false,
        };
        // There may be none.
        self.ask(request).map(drop)
    }

    fn shift(&mut self) -> Result<(), String> {
        let number = self.random.below(self.keys);
        self.log.note(format!("move {number}"));
        let request = Request::Move {
            name: name(number)?,
            shift: Shift::Later(Duration::from_millis(self.random.below(4_000))),
            precondition: Precondition::None,
        };
        self.ask(request).map(drop)
    }

    fn drain(&mut self) -> Result<(), String> {
        self.is_drained = !self.is_drained;
        self.log.note(format!("drained: {}", self.is_drained));
        let queue = QueueName::new("orders").map_err(text)?;
        let mode = self.is_drained.then_some(DrainMode::Hold);
        let request = Request::drain(Some(&queue), mode).map_err(text)?;
        self.ask(request)?.map(drop).map_err(text)
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

    fn ask(&mut self, request: Request) -> Result<Answer, String> {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let mut answers = self.turn(vec![Event::Request(Ticket(ticket), request)])?;
        let answer = answers.answers.remove(&ticket);
        answer.ok_or_else(|| "a request is not answered".to_owned())
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
        let taken = self.engine.turn(events, &mut |effect| match effect {
            Effect::Start(attempt) => starts.push(attempt),
            Effect::Answer(Ticket(ticket), said) => drop(answers.answers.insert(ticket, said)),
            Effect::BatchAnswer(Ticket(ticket), said) => {
                drop(answers.batches.insert(ticket, said));
            }
        });
        taken.map_err(text)?;
        for attempt in starts {
            if attempt.name.queue.as_str() == RECEIPTS {
                return Err(format!("a receipt is delivered: {attempt:?}"));
            }
            let runs = Duration::from_millis(self.random.below(500));
            let until = self.clock.timestamp() + runs;
            self.running.push((until, attempt));
        }
        Ok(answers)
    }

    fn record(&self, number: u64) -> Result<Option<Record>, String> {
        self.store.get(Shard::ONLY, &name(number)?).map_err(text)
    }

    /// No receipt that is over is still stored, and every other is.
    fn check(&mut self) -> Result<(), String> {
        let now = self.clock.timestamp();
        let queue = QueueName::from_text(RECEIPTS).map_err(text)?;
        let page = self.store.list(Shard::ONLY, &Filter::queue(queue));
        let stored = page.map_err(text)?.records;
        let over = stored.iter().find(|record| record.is_over(now));
        if let Some(over) = over {
            return Err(format!(
                "at {now:?} a receipt is over, and stored: {over:?}"
            ));
        }
        let kept = self.first.values().filter(|first| now < first.until);
        let kept = kept.count();
        if stored.len() != kept {
            let stored = stored.len();
            return Err(format!(
                "{stored} receipts are stored, and {kept} are to be kept"
            ));
        }
        let over = self.first.values().filter(|first| now >= first.until);
        self.report.over = self.report.over.max(over.count() as u64);
        Ok(())
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

fn policy() -> Result<RetryPolicy, String> {
    let policy = RetryPolicy::fixed(Duration::from_millis(300)).max_attempts(3);
    policy.map_err(text)
}

#[expect(clippy::needless_pass_by_value, reason = "errors are given to it")]
fn text(error: impl ToString) -> String {
    error.to_string()
}
