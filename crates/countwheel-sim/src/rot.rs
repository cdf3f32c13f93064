//! Bit rot: bits of synced tables and segments flip while a store is open and an engine runs on it.
//!
//! One rule is behind all others: an unreadable record affects no other timer. No turn and no piece
//! of upkeep fails. Every timer readable in the end was delivered once, and not early. Removed
//! timers stay removed. The store takes a set and a removal of any name, and the counts are right
//! then.
//!
//! ```
//! let report = countwheel_sim::rot::run(7).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.flips > 0 && report.delivered > 0);
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_durable::store::{
    Change, DiskError, DuePage, DueScan, Filter, Gaps, Lease, Ownership, Page, QueueCounts, Shard,
    Store, StoreError,
};
use countwheel_durable::{
    Attempt, Config, Due, Effect, Engine, Event, Moved, Outcome, Precondition, QueueName, Record,
    Request, Response, RetryPolicy, Set, SetOptions, Settings, SettingsVersion, Shift, Ticket,
    TimerError, TimerId, TimerName, Trouble, Was,
};
use countwheel_time::{Clock, ManualClock, Timestamp};

use crate::failure::Failure;
use crate::machine::{Kept, Kind, Machine};
use crate::model::timer_of;
use crate::random::Random;

const START: Timestamp = Timestamp::from_micros(1_356_998_400_000_000);

/// The end of a table's file is its footer, which an opening reads: what it cannot read it refuses.
const FOOTER_BYTES: usize = 128;
/// So is the end of a segment's file.
const SECOND_HEADER_BYTES: usize = 64;

/// The header of a frame of a table, and the kind of those that say what wakes when.
const FRAME_HEADER: usize = 12;
const DUE_BLOCK: u8 = 2;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Bits that flipped, in tables and in segments.
    pub flips: u64,
    /// Timers set.
    pub set: u64,
    /// Attempts of timers, each of which was done.
    pub delivered: u64,
    /// Requests that were refused because the timer was unreadable.
    pub refused: u64,
    /// Timers that could not be read in the end.
    pub lost: u64,
    /// Runs in which an index was made anew.
    pub mended: u64,
    /// Times the process ended.
    pub restarts: u64,
    /// Reads that failed for good.
    pub ended: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.flips += other.flips;
        self.set += other.set;
        self.delivered += other.delivered;
        self.refused += other.refused;
        self.lost += other.lost;
        self.mended += other.mended;
        self.restarts += other.restarts;
        self.ended += other.ended;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} bits flipped; {} timers set, {} delivered, {} unreadable in the end and \
             removed; {} requests refused as unreadable; indexes made anew in {}; {} restarts, {} \
             of them after a read that failed for good",
            self.seeds,
            self.flips,
            self.set,
            self.delivered,
            self.lost,
            self.refused,
            self.mended,
            self.restarts,
            self.ended
        )
    }
}

/// Runs one seed.
///
/// # Errors
/// The first rule broken.
pub fn run(seed: u64) -> Result<Report, Box<Failure>> {
    let mut turns = 0;
    let lived = World::new(seed).and_then(|mut world| {
        let lived = world.live();
        turns = world.turns;
        lived.map(|()| world.report)
    });
    lived.map_err(|what| {
        Box::new(Failure {
            seed,
            step: turns,
            what,
            last: Vec::new(),
        })
    })
}

/// The store of the machine, which can fail a read for good.
struct Mutable {
    kept: Box<dyn Kept>,
    is_mute: AtomicBool,
}

impl Store for Mutable {
    fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
        self.kept.acquire(shard)
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.kept.commit(lease, changes)
    }

    fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
        self.kept.settings(after)
    }

    fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
        self.kept.get(shard, name)
    }

    fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
        if self.is_mute.load(Ordering::Relaxed) {
            return Err(StoreError::Poisoned);
        }
        self.kept.due(shard, scan)
    }

    fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.kept.list(shard, filter)
    }

    fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
        self.kept.counts(shard)
    }

    fn gaps(&self) -> Gaps {
        self.kept.gaps()
    }

    fn troubles(&self) -> Vec<Trouble> {
        self.kept.troubles()
    }
}

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    Gone,
    Waits(TimerId, Timestamp),
    Runs(TimerId),
    Done,
}

struct World {
    draw: Random,
    clock: ManualClock,
    machine: Machine,
    store: Arc<Mutable>,
    engine: Engine,
    config: Config,
    names: Vec<TimerName>,
    known: BTreeMap<TimerName, Known>,
    /// Names of which somebody was told that they cannot be read.
    doubtful: BTreeSet<TimerName>,
    running: Vec<Attempt>,
    /// A segment that an opening would refuse has not been flushed yet.
    must_move: bool,
    /// Removals and sets of what could not be read.
    replaced: usize,
    /// Where bits flip, if not everywhere.
    only: Option<&'static str>,
    turns: u64,
    report: Report,
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn text(error: StoreError) -> String {
    error.to_string()
}

impl World {
    fn new(seed: u64) -> Result<Self, String> {
        let mut draw = Random::new(seed, "rot");
        let machine = Machine::new(Kind::Tables, seed);
        let clock = ManualClock::at(START);
        let config = Config {
            window: usize::try_from(*draw.pick(&[4, 16, 100_000])).unwrap_or(4),
            max_in_flight: usize::try_from(*draw.pick(&[2, 16, 256])).unwrap_or(2),
            catch_up_per_second: 1_000_000,
            keep_done: Duration::from_secs(*draw.pick(&[1, 60, 86_400])),
            max_interruptions: 10,
            seed: draw.draw(),
            ..Config::default()
        };
        let store = Arc::new(Mutable {
            kept: machine.open().map_err(text)?,
            is_mute: AtomicBool::new(false),
        });
        let engine = Engine::open(
            store.clone(),
            Shard::ONLY,
            Arc::new(clock.clone()),
            config.clone(),
        );
        let queues = draw.between(1, 3);
        let keys = *draw.pick(&[12, 60, 200]);
        let name =
            |key: u64| TimerName::new(format!("queue-{}", key % queues), format!("key-{key}"));
        let names = (0..keys).map(name).collect::<Result<_, _>>();
        Ok(Self {
            only: *draw.pick(&[None, None, Some("tables/"), Some("log/")]),
            draw,
            clock,
            machine,
            store,
            engine: engine.map_err(text)?,
            config,
            names: names.map_err(|error| error.to_string())?,
            known: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            running: Vec::new(),
            must_move: false,
            replaced: 0,
            turns: 0,
            report: Report {
                seeds: 1,
                ..Report::default()
            },
        })
    }

    fn live(&mut self) -> Result<(), String> {
        let rot = *self.draw.pick(&[8, 25, 60]);
        let span = *self.draw.pick(&[5_000, 200_000, 2_000_000]);
        let mut restarts = 6;
        for _ in 0..250 {
            let passed = self.draw.below(span);
            self.clock.advance(Duration::from_micros(passed));
            let burst = *self.draw.pick(&[0, 1, 1, 5]);
            let requests = (0..burst).map(|_| self.draw_request()).collect();
            self.turn(requests)?;
            if self.draw.one_in(3) {
                let which = self.draw.below(5);
                self.upkeep(which)?;
            }
            if self.draw.one_in(rot) {
                self.flip();
            }
            if restarts > 0 && self.draw.one_in(3 * rot) && self.flip_index() {
                // Whoever opens reads the index: until then the window knows better.
                restarts -= 1;
                self.restart()?;
            }
            if self.draw.one_in(20) {
                self.list()?;
            }
            if restarts > 0 && self.draw.one_in(100) {
                restarts -= 1;
                if self.draw.one_in(2) {
                    self.fail_a_read()?;
                } else {
                    self.restart()?;
                }
            }
        }
        self.end()
    }

    fn draw_request(&mut self) -> Request {
        let name = self.draw.pick(&self.names).clone();
        let precondition = Precondition::None;
        match self.draw.below(10) {
            0 | 1 => Request::Remove {
                name,
                precondition,
                only_pending: false,
            },
            2 | 3 => Request::Move {
                name,
                shift: Shift::Later(Duration::from_millis(self.draw.below(5_000))),
                precondition,
            },
            _ => {
                let wait = *self.draw.pick(&[1_000, 1_000_000, 20_000_000, 200_000_000]);
                let len = *self.draw.pick(&[8, 8, 100, 3_000]);
                let byte = || self.draw.draw().to_le_bytes()[0];
                let payload = std::iter::repeat_with(byte).take(len).collect();
                let wait = Duration::from_micros(self.draw.below(wait));
                Request::Set {
                    name,
                    due: Due::In(wait),
                    policy: RetryPolicy::default(),
                    payload,
                    precondition,
                    options: SetOptions::default(),
                }
            }
        }
    }

    /// What runs ends, then the requests are made.
    fn turn(&mut self, requests: Vec<Request>) -> Result<(), String> {
        let ended = std::mem::take(&mut self.running);
        let outcomes = ended.iter().map(|attempt| Event::Outcome {
            revision: attempt.revision,
            outcome: Outcome::done(),
        });
        let asked = (0..).zip(&requests);
        let asked = asked.map(|(ticket, request)| Event::Request(Ticket(ticket), request.clone()));
        let events = outcomes.chain(asked).collect();
        for request in &requests {
            let is_lost = self.store.get(Shard::ONLY, timer_of(request)).is_err();
            self.replaced += usize::from(is_lost && !matches!(request, Request::Move { .. }));
        }
        let answers = self.engine_turn(events)?;
        for attempt in ended {
            self.ended(&attempt);
        }
        let mut answers: BTreeMap<_, _> = answers.0.into_iter().zip(answers.1).collect();
        for (ticket, request) in (0..).zip(requests) {
            let answer = answers.remove(&Ticket(ticket)).ok_or("no answer")?;
            self.answered(&request, answer)?;
        }
        while self.engine.deferred() > 0 {
            let (tickets, _) = self.engine_turn(vec![])?;
            if !tickets.is_empty() {
                return Err("an answer that comes late".to_owned());
            }
        }
        let started = std::mem::take(&mut self.running);
        for attempt in started {
            self.started(attempt)?;
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "the tickets and their answers")]
    fn engine_turn(
        &mut self,
        events: Vec<Event>,
    ) -> Result<(Vec<Ticket>, Vec<Result<Response, TimerError>>), String> {
        self.turns += 1;
        let (mut tickets, mut answers) = (Vec::new(), Vec::new());
        let running = &mut self.running;
        let turned = self.engine.turn(events, &mut |effect| match effect {
            Effect::Answer(ticket, answer) => {
                tickets.push(ticket);
                answers.push(answer);
            }
            Effect::Start(attempt) => running.push(attempt),
            Effect::BatchAnswer(..) => {}
        });
        turned.map_err(|error| format!("a turn fails: {error}"))?;
        let dead = self.engine.stats().dead;
        if dead > 0 {
            return Err(format!("{dead} are dead"));
        }
        Ok((tickets, answers))
    }

    fn known(&self, name: &TimerName) -> Known {
        self.known.get(name).copied().unwrap_or(Known::Gone)
    }

    fn started(&mut self, attempt: Attempt) -> Result<(), String> {
        let name = &attempt.name;
        if attempt.due > attempt.started {
            return Err(format!("{name} starts early"));
        }
        match self.known(name) {
            Known::Waits(id, due) if id == attempt.id && due == attempt.due => {
                self.known.insert(name.clone(), Known::Runs(id));
                self.report.delivered += 1;
                self.running.push(attempt);
                Ok(())
            }
            known => Err(format!("{attempt:?} starts, and it is {known:?}")),
        }
    }

    fn ended(&mut self, attempt: &Attempt) {
        // Or it was removed, or set anew, meanwhile.
        if self.known(&attempt.name) == Known::Runs(attempt.id) {
            self.known.insert(attempt.name.clone(), Known::Done);
        }
    }

    fn answered(
        &mut self,
        request: &Request,
        answer: Result<Response, TimerError>,
    ) -> Result<(), String> {
        let name = timer_of(request).clone();
        let known = self.known(&name);
        let wrong = |answer| Err(format!("{request:?} of what is {known:?} -> {answer:?}"));
        if let Err(TimerError::Unreadable { .. }) = &answer {
            self.report.refused += 1;
            // A removal and a set without a precondition ask for nothing that has to be read.
            return if matches!(request, Request::Move { .. }) {
                self.doubtful.insert(name);
                Ok(())
            } else {
                wrong(answer)
            };
        }
        match (request, &answer, known) {
            (Request::Set { .. }, Ok(Response::Set(Set { id, due, .. })), _) => {
                self.report.set += 1;
                self.doubtful.remove(&name);
                self.known.insert(name, Known::Waits(*id, *due));
            }
            (
                Request::Move { .. },
                Ok(Response::Moved(Moved { due, old_due, .. })),
                Known::Waits(id, was),
            ) if *old_due == was => {
                self.known.insert(name, Known::Waits(id, *due));
            }
            (Request::Move { .. }, Err(TimerError::Conflict { .. }), Known::Runs(_))
            | (
                Request::Move { .. } | Request::Remove { .. },
                Err(TimerError::NotFound),
                Known::Gone | Known::Done,
            )
            | (
                Request::Move { .. } | Request::Remove { .. },
                Err(TimerError::Gone { .. }),
                Known::Done,
            ) => {}
            // Also of what was removed before: whether it was cannot be read.
            (Request::Remove { .. }, Ok(Response::Removed(Was::Unreadable)), _)
            | (
                Request::Remove { .. },
                Ok(Response::Removed(Was::Pending { .. } | Was::Delivering { .. })),
                Known::Waits(..) | Known::Runs(_),
            ) => {
                self.doubtful.remove(&name);
                self.known.insert(name, Known::Gone);
            }
            // Its attempt was cut off by a restart, and not made again yet.
            (Request::Move { .. }, Err(TimerError::Conflict { .. }), Known::Waits(..))
                if self.report.restarts > 0 => {}
            // An outcome whose record could not be read did not count.
            (_, _, Known::Done) if self.doubtful.contains(&name) => {}
            _ => return wrong(answer),
        }
        Ok(())
    }

    fn upkeep(&mut self, which: u64) -> Result<(), String> {
        let kept = self.store.kept.upkeep(which);
        kept.map_err(|error| format!("upkeep {which} fails: {error}"))
    }

    /// Lists have whatever can be read.
    fn list(&mut self) -> Result<(), String> {
        let queues: BTreeSet<QueueName> = self.names.iter().map(|n| n.queue.clone()).collect();
        for queue in queues {
            let mut filter = Filter {
                limit: 7,
                ..Filter::queue(queue.clone())
            };
            let (mut listed, mut left_out) = (BTreeSet::new(), 0);
            loop {
                let page = self.store.list(Shard::ONLY, &filter);
                let page = page.map_err(|error| format!("a list fails: {error}"))?;
                left_out += page.unreadable;
                listed.extend(page.records.into_iter().map(|record| record.name));
                match page.next {
                    Some(next) => filter.after = Some(next),
                    None => break,
                }
            }
            let waits = self.known.iter().filter(|(name, known)| {
                name.queue == queue && matches!(known, Known::Waits(..) | Known::Runs(_))
            });
            // Where the index is damaged as well, what cannot be read is not even counted.
            let missing = waits.filter(|(name, _)| {
                !listed.contains(name) && self.store.get(Shard::ONLY, name).is_ok()
            });
            let missing = missing.count();
            if missing > 0 && !self.store.gaps().lists {
                return Err(format!("a list lacks {missing}, and leaves out {left_out}"));
            }
        }
        Ok(())
    }

    /// One bit of what is synced turns.
    fn flip(&mut self) {
        let only = self.only.unwrap_or("");
        let mut paths = self.machine.disk.paths();
        paths.retain(|path| {
            let is_data = path.starts_with("tables/table-") || path.starts_with("log/segment-");
            is_data && path.starts_with(only)
        });
        if paths.is_empty() {
            return;
        }
        let path = self.draw.pick(&paths).clone();
        let Some(content) = self.machine.disk.content(&path) else {
            return;
        };
        let is_log = path.starts_with("log/");
        let end = if is_log {
            let frames = content.len().saturating_sub(SECOND_HEADER_BYTES);
            let used = content[..frames].iter().rposition(|&byte| byte != 0);
            used.map_or(0, |last| last + 1)
        } else {
            content.len().saturating_sub(FOOTER_BYTES)
        };
        if end == 0 {
            return;
        }
        let at = usize::try_from(self.draw.below(end as u64)).unwrap_or(0);
        self.flip_at(&path, content, at);
        self.must_move |= is_log;
    }

    fn flip_at(&mut self, path: &str, mut content: Vec<u8>, at: usize) {
        if let Some(byte) = content.get_mut(at) {
            *byte ^= 1 << self.draw.below(8);
            self.machine.disk.set_content(path, content);
            self.report.flips += 1;
        }
    }

    /// One bit turns in what a table says of when its timers wake. False if there is none.
    fn flip_index(&mut self) -> bool {
        let mut paths = self.machine.disk.paths();
        paths.retain(|path| path.starts_with("tables/table-"));
        if paths.is_empty() || self.only == Some("log/") {
            return false;
        }
        let path = self.draw.pick(&paths).clone();
        let content = self.machine.disk.content(&path).unwrap_or_default();
        let (mut at, mut bodies) = (0, Vec::new());
        while let Some(&[a, b, c, d, kind]) =
            content.get(at + 4..at + 9).and_then(|h| h.first_chunk())
        {
            let len = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(0);
            if kind & 0x7f == DUE_BLOCK && len > 0 {
                bodies.push(at + FRAME_HEADER + len / 2);
            }
            at = (at + FRAME_HEADER + len).next_multiple_of(8);
        }
        if bodies.is_empty() {
            return false;
        }
        let at = *self.draw.pick(&bodies);
        self.flip_at(&path, content, at);
        true
    }

    /// What an opening would refuse is flushed first.
    fn before_opening(&mut self) -> Result<(), String> {
        if self.must_move {
            // A segment without a commit is not flushed.
            let name = self.names[0].clone();
            let set = Request::Set {
                name,
                due: Due::In(Duration::from_secs(1)),
                policy: RetryPolicy::default(),
                payload: Vec::new(),
                precondition: Precondition::None,
                options: SetOptions::default(),
            };
            self.turn(vec![set])?;
            self.upkeep(3)?;
            self.must_move = false;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), String> {
        self.before_opening()?;
        self.open()
    }

    fn open(&mut self) -> Result<(), String> {
        self.report.restarts += 1;
        self.report.mended += u64::from(self.store.gaps().closed > 0);
        self.machine.disk.restart();
        self.store = Arc::new(Mutable {
            kept: self.machine.open().map_err(text)?,
            is_mute: AtomicBool::new(false),
        });
        let clock = Arc::new(self.clock.clone());
        let opened = Engine::open(self.store.clone(), Shard::ONLY, clock, self.config.clone());
        self.engine = opened.map_err(text)?;
        // What ran is delivered again.
        for attempt in std::mem::take(&mut self.running) {
            if self.known(&attempt.name) == Known::Runs(attempt.id) {
                let waits = Known::Waits(attempt.id, attempt.due);
                self.known.insert(attempt.name, waits);
            }
        }
        Ok(())
    }

    /// The store fails for good while it says what is due: what had ended by then has.
    fn fail_a_read(&mut self) -> Result<(), String> {
        self.before_opening()?;
        self.store.is_mute.store(true, Ordering::Relaxed);
        self.turn(vec![])?;
        self.store.is_mute.store(false, Ordering::Relaxed);
        let mut started = Vec::new();
        let ended = self.engine.turn(vec![], &mut |effect| {
            if let Effect::Start(attempt) = effect {
                started.push(attempt);
            }
        });
        if ended.is_err() {
            self.report.ended += 1;
            return self.open();
        }
        for attempt in started {
            self.started(attempt)?;
        }
        Ok(())
    }

    /// Nothing flips any more: whatever can be read comes to an end.
    fn end(&mut self) -> Result<(), String> {
        let last = self.clock.timestamp() + Duration::from_secs(2_000);
        for _ in 0..40_000 {
            self.upkeep(4)?;
            self.turn(vec![])?;
            if !self.running.is_empty() {
                continue;
            }
            match self.engine.next_wake() {
                Some(at) if at <= last => {
                    let wait = at.saturating_since(self.clock.timestamp());
                    self.clock.advance(wait);
                }
                _ => break,
            }
        }
        self.report.mended += u64::from(self.store.gaps().closed > 0);
        let mut lost = Vec::new();
        for name in &self.names {
            let known = self.known(name);
            match (self.store.get(Shard::ONLY, name), known) {
                (Err(StoreError::Disk(DiskError::Corrupt { .. })), _) => lost.push(name.clone()),
                (Err(error), _) => return Err(format!("{name}: {error}")),
                (Ok(None), Known::Gone | Known::Done) => {}
                (Ok(Some(record)), Known::Done) if record.wake().is_some() => {}
                (Ok(found), known) => {
                    let found = found.map(|record| (record.id, record.due, record.state));
                    return Err(format!(
                        "{name} is {known:?} in the end, and there is {found:?}, with {:?}, {:?}",
                        self.store.gaps(),
                        self.store.troubles()
                    ));
                }
            }
        }
        self.report.lost += lost.len() as u64;
        // Whatever cannot be read can be removed, and counts as nothing then.
        let removals = self.names.iter().map(|name| Request::Remove {
            name: name.clone(),
            precondition: Precondition::None,
            only_pending: false,
        });
        let mut removals: Vec<_> = removals.collect();
        while !removals.is_empty() {
            let rest = removals.split_off(removals.len().min(20));
            self.turn(std::mem::replace(&mut removals, rest))?;
        }
        let mut there = 0;
        for name in &self.names {
            let found = self.store.get(Shard::ONLY, name);
            there += usize::from(found.map_err(text)?.is_some());
        }
        let counts = self.store.counts(Shard::ONLY).map_err(text)?;
        let counted: u64 = counts.iter().flat_map(|queue| queue.by_state).sum();
        let counted = usize::try_from(counted).unwrap_or(usize::MAX);
        // A table whose indexes are damaged as well may not say the state of what was replaced.
        let is_exact = self.only == Some("log/");
        let unsaid = if is_exact { 0 } else { self.replaced };
        if counted < there || counted > there + unsaid {
            return Err(format!(
                "{counted} are counted, {there} are there, {} were replaced unread",
                self.replaced
            ));
        }
        Ok(())
    }
}
