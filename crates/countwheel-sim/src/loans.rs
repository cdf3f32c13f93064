//! Worlds of loans: two to five nodes that share limits, of which one node counts the places and lends them.
//!
//! On all nodes together no more attempts of a flow run than its limit allows, and in a calm world none starts before its
//! rate allows it: while questions and answers are late, overtake each other or are lost, nodes are killed, stopped and
//! cut off, the one who counts changes, and limits do. Every node has its turn in the end.
//!
//! What a node runs counts no more once it could not reach who counts for as long as a loan lasts, or the database for
//! as long as its lease does: its attempts go on.
//!
//! ```
//! use countwheel_sim::{Stepped, loans};
//!
//! let report = loans::run(7, &Stepped::of(loans::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.attempts > 0);
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use countwheel_cluster::{
    Borrower, Borrowing, LOAN, Lender, Lending, Lends, Lent, Limited, NodeId, Usage,
};
use countwheel_durable::{Flow, FlowUse};
use countwheel_time::Instant;

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

const MILLISECOND: Duration = Duration::from_millis(1);
/// From one step to the next.
const STEP: Duration = Duration::from_millis(10);
/// How often a node looks at the registry, and at its loans.
const LOOKS: Duration = Duration::from_millis(500);
const ASKS: Duration = Duration::from_millis(50);
/// How long an answer is waited for.
const ANSWERS: Duration = Duration::from_secs(1);
/// How long a lease lasts, how much earlier its node stops, and how much later others take.
const LEASE: Duration = Duration::from_secs(5);
const EARLIER: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_millis(250);
/// Until a lower limit holds everywhere: who counts may be cut off from the database, and go on until its lease is over,
/// and then what it has lent has to end.
const SETTLES: Duration = Duration::from_secs(9);
/// The longest that a node waits for its turn where nothing is in the way, for each node.
const TURNS: Duration = Duration::from_secs(4);

/// How many steps of 10 ms a run has, if nobody says it.
pub const STEPS: u64 = 4_000;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Attempts that started.
    pub attempts: u64,
    /// Questions that were asked of other nodes.
    pub questions: u64,
    /// Changes of the one who counts.
    pub homes: u64,
    /// Nodes that were killed, stopped or cut off.
    pub troubles: u64,
    /// Changes of limits.
    pub changes: u64,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.attempts += other.attempts;
        self.questions += other.questions;
        self.homes += other.homes;
        self.troubles += other.troubles;
        self.changes += other.changes;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} attempts, {} questions, {} changes of the one who counts, {} troubles, {} changes of limits",
            self.seeds, self.attempts, self.questions, self.homes, self.troubles, self.changes
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
    let mut result = Ok(());
    for step in 0..options.steps {
        world.step = step;
        result = world.live();
        if result.is_err() {
            break;
        }
    }
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

/// An attempt that runs.
struct Attempt {
    ends: Instant,
    /// Its node could not reach who counts for too long.
    is_excused: bool,
}

/// What one node does with one flow.
#[derive(Default)]
struct Work {
    running: Vec<Attempt>,
    pending: u32,
    waits_since: Option<Instant>,
    most: usize,
    started: u32,
    /// The virtual scheduling time of its part of the rate, and the part.
    next: Instant,
    part: u32,
}

/// One start of a node.
struct Node {
    id: NodeId,
    lender: Lender,
    borrower: Borrower,
    work: Vec<Work>,
    /// The limits as it knows them.
    limits: Vec<u32>,
    /// Who counts, as it has seen last, and under which number.
    sees: (usize, u64),
    lends: Option<(u64, Instant)>,
    renewed: Instant,
    looks: Instant,
    asks: Instant,
    /// The question that it waits for, what it asked, and when.
    asked: Option<(u64, Vec<Borrowing>, Instant)>,
    /// When it heard last from who counts.
    heard: Instant,
    killed: bool,
    starts_again: Instant,
    stopped_until: Instant,
    cut_until: Instant,
    without_database_until: Instant,
}

impl Node {
    /// Who has no lease starts nothing, and its timers are other nodes' soon.
    fn has_lease(&self, now: Instant) -> bool {
        self.renewed + (LEASE - EARLIER) > now
    }

    /// Whether others may have been lent what it runs: also while it is stopped, and sees nothing of that.
    fn is_out_of_reach(&self, now: Instant) -> bool {
        !self.has_lease(now) || self.heard + (LOAN - EARLIER) <= now
    }
}

enum Message {
    Asks {
        from: NodeId,
        number: u64,
        asked: Vec<Borrowing>,
    },
    Answers {
        number: u64,
        answers: Vec<Lent>,
    },
}

struct World {
    random: Random,
    is_calm: bool,
    now: Instant,
    step: u64,
    flows: Vec<Limited>,
    fill: Duration,
    limits: Vec<u32>,
    /// What each limit was before, and until when it counts.
    before: Vec<(u32, Instant)>,
    nodes: Vec<Node>,
    home: (usize, u64),
    messages: BTreeMap<(Instant, u64), (usize, usize, Message)>,
    next: u64,
    /// The bucket of each rate, in starts, and when it was looked at.
    buckets: Vec<(f64, Instant)>,
    report: Report,
    log: Log,
}

/// What a lender knows in its node.
struct Here<'a> {
    flows: &'a [Limited],
    limits: &'a [u32],
    lends: Option<Instant>,
    nodes: u32,
}

impl Lends for Here<'_> {
    fn limit(&self, limited: &Limited) -> Option<u32> {
        let at = self.flows.iter().position(|flow| flow == limited)?;
        self.limits.get(at).copied()
    }

    fn lends_from(&self, _: &Flow) -> Option<Instant> {
        self.lends
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }
}

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "loans");
        let is_calm = random.one_in(3);
        let count = random.between(2, 5);
        let flows: Vec<Limited> = (0..random.between(1, 3))
            .map(|number| {
                let is_rate = is_calm && random.one_in(2);
                let lending = if is_rate {
                    Lending::Starts
                } else {
                    Lending::Places
                };
                (Flow::new(format!("flow {number}")), lending)
            })
            .collect();
        let limits: Vec<u32> = flows.iter().map(|_| small(&mut random, 6)).collect();
        let now = Instant::ZERO + Duration::from_secs(100);
        let fill = MILLISECOND * small(&mut random, 3_000).max(50);
        let mut world = Self {
            is_calm,
            now,
            step: 0,
            before: limits.iter().map(|limit| (*limit, now)).collect(),
            buckets: limits
                .iter()
                .map(|limit| (f64::from(*limit), now))
                .collect(),
            flows,
            fill,
            limits,
            nodes: Vec::new(),
            home: (0, 1),
            messages: BTreeMap::new(),
            next: 1,
            report: Report::default(),
            log: Log::new(options.log),
            random,
        };
        for _ in 0..count {
            let node = world.start();
            world.nodes.push(node);
        }
        world
    }

    fn start(&mut self) -> Node {
        self.next += 1;
        Node {
            id: NodeId(u128::from(self.next)),
            lender: Lender::new(),
            borrower: Borrower::new(),
            work: self.flows.iter().map(|_| Work::default()).collect(),
            limits: self.limits.clone(),
            sees: (usize::MAX, 0),
            lends: None,
            renewed: self.now,
            looks: self.now,
            asks: self.now,
            asked: None,
            heard: self.now,
            killed: false,
            starts_again: Instant::MAX,
            stopped_until: Instant::ZERO,
            cut_until: Instant::ZERO,
            without_database_until: Instant::ZERO,
        }
    }

    fn live(&mut self) -> Result<(), String> {
        self.now = self.now + STEP;
        self.happen();
        while let Some(entry) = self.messages.first_entry() {
            let ((at, _), is_due) = (*entry.key(), entry.key().0 <= self.now);
            if !is_due {
                break;
            }
            let (from, to, message) = entry.remove();
            let _ = at;
            self.deliver(from, to, message);
        }
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let is_out_of_reach = node.is_out_of_reach(self.now);
            for work in &mut node.work {
                let now = self.now;
                work.running.retain(|attempt| attempt.ends > now);
                for attempt in &mut work.running {
                    attempt.is_excused |= is_out_of_reach;
                }
            }
            if node.killed || node.stopped_until > self.now {
                continue;
            }
            self.look(at);
            self.ask(at);
            self.work(at)?;
        }
        Ok(())
    }

    /// What comes over the nodes.
    fn happen(&mut self) {
        let count = self.nodes.len();
        for at in 0..count {
            if self.nodes[at].killed && self.nodes[at].starts_again <= self.now {
                self.nodes[at] = self.start();
                self.log.note(format!("node {at} starts again"));
            }
            for flow in 0..self.flows.len() {
                if self.random.one_in(40) {
                    let more = small(&mut self.random, 6);
                    let pending = &mut self.nodes[at].work[flow].pending;
                    *pending = (*pending + more).min(30);
                }
            }
        }
        if self.is_calm {
            return;
        }
        if self.random.one_in(400) {
            let flow = self.one_of(self.flows.len());
            let limit = small(&mut self.random, 6);
            let before = self.limits[flow].max(self.before[flow].0);
            self.before[flow] = (before, self.now + SETTLES);
            self.limits[flow] = limit;
            self.report.changes += 1;
            self.log.note(format!("the limit {flow} is {limit}"));
        }
        for flow in 0..self.flows.len() {
            if self.before[flow].1 <= self.now {
                self.before[flow].0 = self.limits[flow];
            }
        }
        if self.random.one_in(600) {
            let (from, to) = (self.home.0, self.one_of(count));
            let giver = &mut self.nodes[from];
            let may_give = !giver.killed
                && giver.stopped_until <= self.now
                && giver.without_database_until <= self.now
                && giver.sees == self.home;
            if to != from && may_give {
                self.home = (to, self.home.1 + 1);
                self.report.homes += 1;
                giver.sees = self.home;
                giver.lends = None;
                self.log.note(format!("node {from} gives to node {to}"));
            }
        }
        if self.random.one_in(300) {
            let (at, now) = (self.one_of(count), self.now);
            let span = MILLISECOND * small(&mut self.random, 9_000);
            let kind = self.random.below(4);
            let node = &mut self.nodes[at];
            if node.killed {
                return;
            }
            self.report.troubles += 1;
            let what = match kind {
                0 => {
                    node.killed = true;
                    node.starts_again = now + span;
                    for work in &mut node.work {
                        work.running.clear();
                    }
                    "is killed"
                }
                1 => {
                    node.stopped_until = now + span;
                    "is stopped"
                }
                2 => {
                    node.cut_until = now + span;
                    "is cut off from the others"
                }
                _ => {
                    node.without_database_until = now + span;
                    "is cut off from the database"
                }
            };
            self.log.note(format!("node {at} {what} for {span:?}"));
        }
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).unwrap_or(0)
    }

    fn live_nodes(&self) -> u32 {
        let lives = |node: &&Node| node.renewed + LEASE > self.now;
        u32::try_from(self.nodes.iter().filter(lives).count()).unwrap_or(1)
    }

    /// A node looks at the registry.
    fn look(&mut self, at: usize) {
        let now = self.now;
        if self.nodes[at].looks <= now && self.nodes[at].without_database_until <= now {
            self.nodes[at].looks = now + LOOKS;
            self.nodes[at].renewed = now;
            let owner = &self.nodes[self.home.0];
            if owner.renewed + LEASE + LATER <= now {
                self.home = (at, self.home.1 + 1);
                self.report.homes += 1;
                self.log.note(format!("node {at} takes the home"));
            }
            self.nodes[at].sees = self.home;
            self.nodes[at].limits.clone_from(&self.limits);
        }
        let nodes = self.live_nodes();
        let node = &mut self.nodes[at];
        let believes = node.has_lease(now);
        node.lends = match node.lends {
            _ if node.sees.0 != at || !believes => None,
            Some((number, from)) if number == node.sees.1 => Some((number, from)),
            _ => Some((node.sees.1, now + LOAN)),
        };
        let here = Here {
            flows: &self.flows,
            limits: &node.limits,
            lends: node.lends.map(|(_, from)| from),
            nodes,
        };
        node.lender.sweep(&here, now);
    }

    fn usage(&mut self, at: usize, due: &[Limited]) -> Vec<(Limited, Usage)> {
        let now = self.now;
        let node = &mut self.nodes[at];
        let mut all = Vec::new();
        for limited in due {
            let Some(flow) = self.flows.iter().position(|flow| flow == limited) else {
                continue;
            };
            let work = &mut node.work[flow];
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let used = FlowUse {
                running: count(work.running.len()),
                most: count(work.most.max(work.running.len())),
                started: work.started,
                waits: work.waits_since.is_some(),
                fills_in: work.next.saturating_since(now),
            };
            (work.most, work.started) = (work.running.len(), 0);
            let limit = Some(node.limits[flow]);
            all.push((limited.clone(), Usage { limit, used }));
        }
        all
    }

    /// A node asks who counts.
    fn ask(&mut self, at: usize) {
        let now = self.now;
        if self.nodes[at].asks > now {
            return;
        }
        self.nodes[at].asks = now + ASKS;
        let waits = self.nodes[at].asked.as_ref();
        if waits.is_some_and(|(_, _, sent)| *sent + ANSWERS > now) {
            return;
        }
        self.nodes[at].asked = None;
        let due = self.nodes[at].borrower.due(now);
        let used = self.usage(at, &due);
        self.nodes[at].borrower.give_up(&used, now);
        let used = self.usage(at, &due);
        let (number, asked) = self.nodes[at].borrower.asks(&used, now);
        let to = self.nodes[at].sees.0;
        if asked.is_empty() || to >= self.nodes.len() {
            return;
        }
        let from = self.nodes[at].id;
        self.nodes[at].asked = Some((number, asked.clone(), now));
        let message = Message::Asks {
            from,
            number,
            asked,
        };
        if to == at {
            self.deliver(at, at, message);
        } else {
            self.report.questions += 1;
            self.send(at, to, message);
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let is_lost = !self.is_calm && self.random.one_in(20);
        if is_lost || self.nodes[from].cut_until > self.now || self.nodes[to].cut_until > self.now {
            return;
        }
        let most = if self.random.one_in(8) { 900 } else { 30 };
        // A word that was given up may come all the same.
        let most = if !self.is_calm && self.random.one_in(10) {
            2_500
        } else {
            most
        };
        let at = self.now + MILLISECOND * small(&mut self.random, most);
        self.next += 1;
        self.messages.insert((at, self.next), (from, to, message));
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        let (now, nodes) = (self.now, self.live_nodes());
        let node = &mut self.nodes[to];
        if node.killed || node.stopped_until > now {
            return;
        }
        match message {
            Message::Asks {
                from: id,
                number,
                asked,
            } => {
                // Whoever finds that its lease is over counts anew from then on.
                node.lends = node.lends.filter(|_| node.has_lease(now));
                let here = Here {
                    flows: &self.flows,
                    limits: &node.limits,
                    lends: node.lends.map(|(_, from)| from),
                    nodes,
                };
                let answers = node.lender.answer(id, number, &asked, &here, now);
                self.log
                    .note(format!("{from} asks {to} {number}: {asked:?}: {answers:?}"));
                let Some(answers) = answers else {
                    return;
                };
                let answer = Message::Answers { number, answers };
                if from == to {
                    self.deliver(to, to, answer);
                } else {
                    self.send(to, from, answer);
                }
            }
            Message::Answers { number, answers } => {
                let is_asked = node
                    .asked
                    .as_ref()
                    .is_some_and(|(asked, _, _)| *asked == number);
                let Some((_, asked, sent)) = node.asked.take_if(|_| is_asked) else {
                    return;
                };
                if sent + ANSWERS <= now {
                    return;
                }
                // Whoever says that somebody else counts is not who counts.
                if !answers.contains(&Lent::Elsewhere) {
                    node.heard = sent;
                }
                node.borrower.answered(&asked, &answers, sent, now);
            }
        }
    }

    /// A node starts what it may.
    fn work(&mut self, at: usize) -> Result<(), String> {
        let now = self.now;
        for flow in 0..self.flows.len() {
            let node = &mut self.nodes[at];
            let has_lease = node.has_lease(now);
            let work = &mut node.work[flow];
            if work.pending == 0 {
                work.waits_since = None;
                continue;
            }
            let limited = &self.flows[flow];
            let count = node.borrower.count(limited, now).unwrap_or(0);
            let count = count.min(node.limits[flow]);
            let may = has_lease
                && match limited.1 {
                    Lending::Places => work.running.len() < count as usize,
                    Lending::Starts => work.may_start(count, self.fill, now),
                };
            if !may {
                let since = *work.waits_since.get_or_insert(now);
                let most = TURNS * u32::try_from(self.nodes.len()).unwrap_or(1) + self.fill * 8;
                if self.is_calm && since + most <= now {
                    return Err(format!(
                        "node {at} had no turn of flow {flow} since {since:?}"
                    ));
                }
                continue;
            }
            work.waits_since = None;
            work.pending -= 1;
            let ends = now + MILLISECOND * small(&mut self.random, 900);
            work.running.push(Attempt {
                ends,
                is_excused: false,
            });
            work.most = work.most.max(work.running.len());
            work.started += 1;
            self.report.attempts += 1;
            self.log.note(format!(
                "node {at} starts one of flow {flow} of its {count}"
            ));
            self.demand(flow)?;
        }
        Ok(())
    }

    /// An attempt has started: is that within the limit?
    fn demand(&mut self, flow: usize) -> Result<(), String> {
        let limit = self.limits[flow].max(self.before[flow].0);
        if self.flows[flow].1 == Lending::Starts {
            let (tokens, looked) = self.buckets[flow];
            let passed = self.now.saturating_since(looked).as_secs_f64();
            let rate = f64::from(limit) / self.fill.as_secs_f64();
            let tokens = (tokens + passed * rate).min(f64::from(limit)) - 1.0;
            self.buckets[flow] = (tokens, self.now);
            if tokens < -0.01 {
                return Err(format!(
                    "a start of flow {flow} before its rate allows it: {tokens}"
                ));
            }
            return Ok(());
        }
        let running = self.nodes.iter().flat_map(|node| &node.work[flow].running);
        let running = running.filter(|attempt| !attempt.is_excused).count();
        if running > limit as usize {
            return Err(format!(
                "{running} attempts of flow {flow} run, and {limit} may"
            ));
        }
        Ok(())
    }
}

impl Work {
    /// Whether one may start by a part of the rate; takes it.
    fn may_start(&mut self, count: u32, fill: Duration, now: Instant) -> bool {
        if count != self.part {
            let left = self.next.saturating_since(now);
            if count > 0 && self.part > 0 {
                let interval = fill / self.part;
                let used = left.as_nanos().div_ceil(interval.as_nanos().max(1));
                let used = u32::try_from(used).unwrap_or(u32::MAX).min(count);
                self.next = now + fill / count * used;
            } else if count > 0 {
                self.next = Instant::ZERO;
            }
            self.part = count;
        }
        if count == 0 {
            return false;
        }
        let interval = fill / count;
        if self.next > now + interval * (count - 1) {
            return false;
        }
        self.next = self.next.max(now) + interval;
        true
    }
}

/// From 1 to that.
fn small(random: &mut Random, most: u64) -> u32 {
    u32::try_from(random.between(1, most)).unwrap_or(1)
}
