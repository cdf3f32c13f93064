//! Worlds of calls for leases: two to four nodes, and workers that ask any of them for what is due on all.
//!
//! A worker gets no more than it asks for, and never a timer that another worker has. What was leased for a call and is
//! not handed to its worker goes back to its queue, and is no attempt, unless a node was killed meanwhile or did not hear
//! that its taking was confirmed: such a lease is lost when it ends. Questions and answers are late, lost or overtake each
//! other, and nodes are killed. In the end every timer is done.
//!
//! ```
//! use countwheel_sim::{Stepped, gathers};
//!
//! let report = gathers::run(7, &Stepped::of(gathers::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.handed > 0);
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use countwheel_cluster::{Gathering, NodeId, Offers};
use countwheel_time::Instant;

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

const MILLISECOND: Duration = Duration::from_millis(1);
/// From one step to the next.
const STEP: Duration = Duration::from_millis(5);
/// How long a lease lasts that no worker ends.
const LEASE: Duration = Duration::from_secs(30);
/// The longest wait of one question, and how much later its answer counts no more.
const SLICE: Duration = Duration::from_secs(5);
const ANSWERS: Duration = Duration::from_secs(2);
/// How often a taking is asked, and how long each answer is waited for.
const TAKES: u32 = 3;
const CONFIRMED_WITHIN: Duration = Duration::from_millis(500);
/// Once nothing fails any more, every timer is done after so long.
const HEALED_WITHIN: Duration = Duration::from_secs(90);

/// How many steps of 5 ms a run has, if nobody says it.
pub const STEPS: u64 = 8_000;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Calls of workers.
    pub calls: u64,
    /// Leases that workers got.
    pub handed: u64,
    /// Leases that went back, and were no attempts.
    pub released: u64,
    /// Leases that ended with no worker having them.
    pub lost: u64,
    /// Words that were lost.
    pub troubles: u64,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.calls += other.calls;
        self.handed += other.handed;
        self.released += other.released;
        self.lost += other.lost;
        self.troubles += other.troubles;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} calls, {} leases handed out, {} released, {} lost, {} words lost",
            self.seeds, self.calls, self.handed, self.released, self.lost, self.troubles
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

/// A lease, as its token names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Lease {
    timer: usize,
    attempt: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Pending,
    Leased {
        until: Instant,
        /// The node whose call it was leased for.
        asker: usize,
        /// A worker has it.
        is_handed: bool,
        /// It may end with no worker having it.
        is_excused: bool,
    },
    Done,
}

/// A timer in the store of all nodes.
#[derive(Debug)]
struct Timer {
    owner: usize,
    due: Instant,
    attempt: u32,
    state: State,
}

/// A question that waits at its owner.
struct Asked {
    from: Start,
    call: u64,
    question: u64,
    max: u32,
    until: Instant,
}

/// What a call takes of an offer, until the owner confirms it.
struct Taking {
    offer: u64,
    leases: Vec<Lease>,
    tries: u32,
    next: Instant,
}

struct Call {
    gathering: Gathering,
    max: u32,
    got: Vec<Lease>,
    ends: Instant,
    /// The starts of the nodes that it asks: a node that is started again is not one of them.
    starts: Vec<Start>,
    /// The question that each node has, and until when its answer counts.
    questions: BTreeMap<usize, (u64, Instant)>,
    takings: BTreeMap<usize, Taking>,
}

struct Node {
    id: NodeId,
    offers: Offers<Lease>,
    asked: Vec<Asked>,
    calls: BTreeMap<u64, Call>,
    killed_until: Instant,
}

#[derive(Debug)]
enum Message {
    Asks {
        call: u64,
        question: u64,
        max: u32,
        wait: Duration,
    },
    Offers {
        call: u64,
        question: u64,
        offer: u64,
        leases: Vec<Lease>,
    },
    Takes {
        call: u64,
        offer: u64,
        which: Vec<usize>,
    },
    Took {
        call: u64,
        offer: u64,
        is_confirmed: bool,
    },
    Ends {
        call: u64,
    },
}

/// A lease that a worker has, until it ends it.
struct Worked {
    lease: Lease,
    acks: Instant,
}

/// A start of a node. What is said to one is not heard by another, as a connection to a node names the start.
type Start = (usize, NodeId);
/// From which start of a node to which start of another.
type Connection = [Start; 2];

struct World {
    random: Random,
    is_calm: bool,
    /// One word in so many is lost, and one in so many is long on its way.
    loses: u64,
    /// Timers are set in one step of so many.
    sets: u64,
    now: Instant,
    step: u64,
    timers: Vec<Timer>,
    nodes: Vec<Node>,
    workers: Vec<Worked>,
    messages: BTreeMap<(Instant, u64), (Connection, Message)>,
    next: u64,
    report: Report,
    log: Log,
}

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "gathers");
        let mut world = Self {
            is_calm: random.one_in(4),
            loses: *random.pick(&[3, 20]),
            sets: *random.pick(&[30, 600]),
            now: Instant::ZERO + Duration::from_secs(100),
            step: 0,
            timers: Vec::new(),
            nodes: Vec::new(),
            workers: Vec::new(),
            messages: BTreeMap::new(),
            next: 1,
            report: Report::default(),
            log: Log::new(options.log),
            random,
        };
        for _ in 0..world.random.between(2, 4) {
            let node = world.start();
            world.nodes.push(node);
        }
        world
    }

    fn start(&mut self) -> Node {
        self.next += 1;
        Node {
            id: NodeId(u128::from(self.next)),
            offers: Offers::new(),
            asked: Vec::new(),
            calls: BTreeMap::new(),
            killed_until: Instant::ZERO,
        }
    }

    fn live(&mut self, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.happen();
            self.go_on()?;
        }
        self.is_calm = true;
        self.log.note("it heals".to_owned());
        let ends = self.now + HEALED_WITHIN;
        while self.timers.iter().any(|it| it.state != State::Done) {
            if self.now > ends {
                return Err("it does not come to its end".to_owned());
            }
            if self.random.one_in(40) {
                self.call();
            }
            self.go_on()?;
        }
        Ok(())
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).unwrap_or(0)
    }

    fn small(&mut self, most: u64) -> u32 {
        u32::try_from(self.random.between(1, most)).unwrap_or(1)
    }

    fn happen(&mut self) {
        if self.random.one_in(self.sets) {
            for _ in 0..self.small(8) {
                let owner = self.one_of(self.nodes.len());
                let due = self.now + MILLISECOND * self.small(2_000);
                let (attempt, state) = (0, State::Pending);
                self.timers.push(Timer {
                    owner,
                    due,
                    attempt,
                    state,
                });
            }
        }
        if self.random.one_in(40) {
            self.call();
        }
        if !self.is_calm && self.random.one_in(700) {
            let at = self.one_of(self.nodes.len());
            if self.nodes[at].killed_until <= self.now {
                self.kill(at);
            }
        }
    }

    /// A node ends, and is there again soon: what it kept in memory is gone.
    fn kill(&mut self, at: usize) {
        let until = self.now + MILLISECOND * self.small(3_000);
        self.log
            .note(format!("node {at} is killed until {until:?}"));
        self.nodes[at] = self.start();
        self.nodes[at].killed_until = until;
        for timer in &mut self.timers {
            if let State::Leased {
                asker, is_excused, ..
            } = &mut timer.state
            {
                *is_excused |= *asker == at || timer.owner == at;
            }
        }
    }

    /// A worker asks a node.
    fn call(&mut self) {
        let at = self.one_of(self.nodes.len());
        if self.nodes[at].killed_until > self.now {
            return;
        }
        let (max, first) = (self.small(12), self.one_of(self.nodes.len()));
        let most = if self.random.one_in(3) { 8_000 } else { 300 };
        let wait = MILLISECOND * self.small(most);
        self.next += 1;
        let (number, ends) = (self.next, self.now + wait);
        self.log.note(format!(
            "node {at}: call {number} for {max} within {wait:?}"
        ));
        self.report.calls += 1;
        let gathering = Gathering::new(self.nodes.len(), first, max, self.now, ends);
        let call = Call {
            gathering,
            max,
            got: Vec::new(),
            ends,
            starts: (0..self.nodes.len()).map(|at| self.start_of(at)).collect(),
            questions: BTreeMap::new(),
            takings: BTreeMap::new(),
        };
        self.nodes[at].calls.insert(number, call);
    }

    fn go_on(&mut self) -> Result<(), String> {
        self.step += 1;
        self.now = self.now + STEP;
        while let Some(entry) = self.messages.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (connection, message) = entry.remove();
            let [from, (to, _)] = connection;
            let is_connected = connection
                .iter()
                .all(|(node, id)| self.nodes[*node].id == *id);
            if is_connected && self.nodes[to].killed_until <= self.now {
                self.deliver(from, to, message);
            }
        }
        for at in 0..self.nodes.len() {
            let back = self.nodes[at].offers.sweep(self.now);
            self.release(&back);
            self.grant(at);
            let calls: Vec<_> = self.nodes[at].calls.keys().copied().collect();
            for call in calls {
                self.gather(at, call)?;
            }
        }
        self.work()?;
        self.end_leases()
    }

    fn start_of(&self, at: usize) -> Start {
        (at, self.nodes[at].id)
    }

    fn send(&mut self, from: usize, to: Start, message: Message) {
        if !self.is_calm && self.random.one_in(self.loses) {
            self.report.troubles += 1;
            self.log
                .note(format!("lost from {from} to {}: {message:?}", to.0));
            return;
        }
        let most = match self.random.below(self.loses) {
            0 if !self.is_calm => 3_000,
            1 => 300,
            _ => 10,
        };
        let at = self.now + MILLISECOND * self.small(most);
        self.next += 1;
        let connection = [self.start_of(from), to];
        self.messages.insert((at, self.next), (connection, message));
    }

    fn release(&mut self, leases: &[Lease]) {
        for lease in leases {
            let timer = &mut self.timers[lease.timer];
            let is_own = timer.attempt == lease.attempt;
            if is_own && matches!(timer.state, State::Leased { .. }) {
                timer.attempt -= 1;
                timer.state = State::Pending;
                self.report.released += 1;
                self.log.note(format!("released: {lease:?}"));
            }
        }
    }

    /// An owner leases what is due to the questions that wait.
    fn grant(&mut self, at: usize) {
        let asked = std::mem::take(&mut self.nodes[at].asked);
        for asked in asked {
            let mut leases = Vec::new();
            for (number, timer) in self.timers.iter_mut().enumerate() {
                let is_due = timer.owner == at && timer.due <= self.now;
                let has_room = leases.len() < asked.max as usize;
                if !has_room || !is_due || timer.state != State::Pending {
                    continue;
                }
                timer.attempt += 1;
                timer.state = State::Leased {
                    until: self.now + LEASE,
                    asker: asked.from.0,
                    is_handed: false,
                    is_excused: false,
                };
                let (timer, attempt) = (number, timer.attempt);
                leases.push(Lease { timer, attempt });
            }
            if leases.is_empty() && asked.until > self.now {
                self.nodes[at].asked.push(asked);
                continue;
            }
            self.log.note(format!(
                "node {at} offers to call {}: {leases:?}",
                asked.call
            ));
            if asked.from.0 == at {
                let own = asked.from;
                self.offered(at, own, (asked.call, asked.question), 0, &leases);
                continue;
            }
            let now = self.now;
            let offers = &mut self.nodes[at].offers;
            let offer = offers.offer(asked.from.1, asked.call, leases.clone(), now);
            let message = Message::Offers {
                call: asked.call,
                question: asked.question,
                offer,
                leases,
            };
            self.send(at, asked.from, message);
        }
    }

    /// What a node offers has come to the node that asked.
    fn offered(
        &mut self,
        at: usize,
        from: Start,
        (call, question): (u64, u64),
        offer: u64,
        leases: &[Lease],
    ) {
        let owner = from.0;
        let (now, mut takes) = (self.now, 0);
        if let Some(known) = self.nodes[at].calls.get_mut(&call) {
            let waits = known.questions.get(&owner).map(|(waits, _)| *waits);
            if waits == Some(question) {
                known.questions.remove(&owner);
                let count = u32::try_from(leases.len()).unwrap_or(u32::MAX);
                takes = known.gathering.offered(owner, count, count, now) as usize;
            }
        }
        if at == owner {
            let (own, back) = leases.split_at(takes);
            self.release(back);
            if let Some(known) = self.nodes[at].calls.get_mut(&call)
                && takes > 0
                && known.gathering.confirmed(owner, Some(true), now)
            {
                known.got.extend(own);
            }
            return;
        }
        if !leases.is_empty() {
            let which = (0..takes).collect();
            self.send(at, from, Message::Takes { call, offer, which });
        }
        if takes > 0
            && let Some(known) = self.nodes[at].calls.get_mut(&call)
        {
            let taking = Taking {
                offer,
                leases: leases[..takes].to_vec(),
                tries: 1,
                next: now + CONFIRMED_WITHIN,
            };
            known.takings.insert(owner, taking);
        }
    }

    fn deliver(&mut self, from: Start, to: usize, message: Message) {
        let (now, asks) = (self.now, from.1);
        match message {
            Message::Asks {
                call,
                question,
                max,
                wait,
            } => {
                let until = now + wait.min(SLICE);
                self.nodes[to].asked.push(Asked {
                    from,
                    call,
                    question,
                    max,
                    until,
                });
            }
            Message::Offers {
                call,
                question,
                offer,
                leases,
            } => self.offered(to, from, (call, question), offer, &leases),
            Message::Takes { call, offer, which } => {
                let offers = &mut self.nodes[to].offers;
                let taken = offers.take(asks, offer, &which, now);
                let (is_confirmed, back) = (taken.is_confirmed, taken.back);
                self.log.note(format!(
                    "node {to} confirms {which:?} of offer {offer}: {is_confirmed}"
                ));
                self.release(&back);
                let took = Message::Took {
                    call,
                    offer,
                    is_confirmed,
                };
                self.send(to, from, took);
            }
            Message::Took {
                call,
                offer,
                is_confirmed,
            } => self.took(to, from.0, call, offer, Some(is_confirmed)),
            Message::Ends { call } => {
                let node = &mut self.nodes[to];
                node.asked.retain(|it| (it.from, it.call) != (from, call));
                let back = node.offers.end(asks, call);
                self.release(&back);
            }
        }
    }

    fn took(&mut self, at: usize, owner: usize, call: u64, offer: u64, is_confirmed: Option<bool>) {
        let Some(known) = self.nodes[at].calls.get_mut(&call) else {
            return;
        };
        let is_own = |taking: &Taking| taking.offer == offer;
        if !known.takings.get(&owner).is_some_and(is_own) {
            return;
        }
        let Some(taking) = known.takings.remove(&owner) else {
            return;
        };
        if known.gathering.confirmed(owner, is_confirmed, self.now) {
            known.got.extend(taking.leases);
            return;
        }
        // The owner may have confirmed it, and then does not release it.
        for lease in taking.leases {
            let timer = &mut self.timers[lease.timer];
            if let State::Leased { is_excused, .. } = &mut timer.state
                && timer.attempt == lease.attempt
                && is_confirmed.is_none()
            {
                *is_excused = true;
            }
        }
    }

    /// A node says something to another, or to itself.
    fn say(&mut self, at: usize, to: Start, message: Message) {
        if to.0 == at {
            self.deliver(to, at, message);
        } else {
            self.send(at, to, message);
        }
    }

    /// A node goes on with one of its calls.
    fn gather(&mut self, at: usize, number: u64) -> Result<(), String> {
        let now = self.now;
        let Some(call) = self.nodes[at].calls.get_mut(&number) else {
            return Ok(());
        };
        let mut sends = Vec::new();
        let starts = call.starts.clone();
        let (mut unanswered, mut unconfirmed) = (Vec::new(), Vec::new());
        for (owner, (_, until)) in &call.questions {
            if *until <= now {
                unanswered.push(*owner);
            }
        }
        for owner in unanswered {
            call.questions.remove(&owner);
            call.gathering.failed(owner, now);
        }
        for (owner, taking) in &mut call.takings {
            if taking.next > now {
                continue;
            }
            if taking.tries == TAKES {
                unconfirmed.push((*owner, taking.offer));
                continue;
            }
            (taking.tries, taking.next) = (taking.tries + 1, now + CONFIRMED_WITHIN);
            let which = (0..taking.leases.len()).collect();
            let takes = Message::Takes {
                call: number,
                offer: taking.offer,
                which,
            };
            sends.push((*owner, takes));
        }
        for (owner, max) in call.gathering.asks(now) {
            let wait = call.ends.saturating_since(now);
            self.next += 1;
            let question = self.next;
            let until = now + wait.min(SLICE) + ANSWERS;
            call.questions.insert(owner, (question, until));
            let asks = Message::Asks {
                call: number,
                question,
                max,
                wait,
            };
            sends.push((owner, asks));
        }
        for (owner, offer) in unconfirmed {
            self.took(at, owner, number, offer, None);
        }
        for (owner, message) in sends {
            self.say(at, starts[owner], message);
        }
        let calls = &mut self.nodes[at].calls;
        let is_over = calls
            .get(&number)
            .is_some_and(|it| it.gathering.is_over(now));
        if !is_over {
            return Ok(());
        }
        let Some(call) = calls.remove(&number) else {
            return Ok(());
        };
        self.hand_over(at, number, call)
    }

    fn hand_over(&mut self, at: usize, number: u64, call: Call) -> Result<(), String> {
        self.log.note(format!("call {number} gets {:?}", call.got));
        for owner in call.gathering.asked() {
            self.say(at, call.starts[owner], Message::Ends { call: number });
        }
        if call.got.len() > call.max as usize {
            let (got, max) = (call.got.len(), call.max);
            return Err(format!("call {number} gets {got} leases of {max}"));
        }
        for lease in call.got {
            let timer = &mut self.timers[lease.timer];
            let State::Leased { is_handed, .. } = &mut timer.state else {
                return Err(format!("call {number} gets {lease:?}, which is not leased"));
            };
            if timer.attempt != lease.attempt || *is_handed {
                let held = timer.attempt;
                return Err(format!("call {number} gets {lease:?}, and another {held}"));
            }
            *is_handed = true;
            self.report.handed += 1;
            let acks = self.now + MILLISECOND * self.small(500);
            self.workers.push(Worked { lease, acks });
        }
        Ok(())
    }

    /// Workers end what they have.
    fn work(&mut self) -> Result<(), String> {
        let now = self.now;
        let (ended, rest) = std::mem::take(&mut self.workers)
            .into_iter()
            .partition(|it| it.acks <= now);
        self.workers = rest;
        let ended: Vec<Worked> = ended;
        for Worked { lease, .. } in ended {
            let timer = &mut self.timers[lease.timer];
            let is_leased = matches!(timer.state, State::Leased { .. });
            if !is_leased || timer.attempt != lease.attempt {
                return Err(format!("{lease:?} was taken from its worker"));
            }
            timer.state = State::Done;
        }
        Ok(())
    }

    fn end_leases(&mut self) -> Result<(), String> {
        for (number, timer) in self.timers.iter_mut().enumerate() {
            let State::Leased {
                until, is_excused, ..
            } = timer.state
            else {
                continue;
            };
            if until > self.now {
                continue;
            }
            if !is_excused {
                return Err(format!(
                    "the lease of timer {number} ends, and no worker had it"
                ));
            }
            self.report.lost += 1;
            timer.state = State::Pending;
        }
        Ok(())
    }
}
