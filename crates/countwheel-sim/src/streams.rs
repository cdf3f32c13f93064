//! Worlds of streams of events: two to four nodes that own shards, tell what their commits did, and copy from each other
//! what the others told, and clients that read all of it at any node.
//!
//! Questions and answers are late, lost or overtake each other; nodes are killed, shards change hands with and without
//! their owner's say, owners die before they tell a commit, and clients go on at another node. Each client has each
//! event of a shard at most once and in the order of its commits, and misses none without a gap. No node refuses a place
//! that another one gave. In worlds without trouble there is no gap, and every client has everything in the end.
//!
//! ```
//! use countwheel_sim::{Stepped, streams};
//!
//! let report = streams::run(7, &Stepped::of(streams::STEPS)).unwrap_or_else(|failure| panic!("{failure}"));
//! assert!(report.read > 0);
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use countwheel_durable::store::{Fence, Lease, Ownership, Shard};
use countwheel_durable::{
    EventCopies, EventLog, EventPosition, EventSink, KnownEvents, ResumeError, Revision,
    SettingName, Subject, TimerEvent, ToldEvents,
};
use countwheel_time::Timestamp;

use crate::failure::{Failure, Log};
use crate::random::Random;
use crate::stepped::Stepped;

/// How many steps a run has before all trouble ends, if nobody says it.
pub const STEPS: u64 = 1_500;
/// From the end of all trouble to the end.
const CALM: u64 = 400;
/// How long an answer is waited for, and how long a round is away from the next one, in steps.
const ANSWERED_WITHIN: u64 = 20;
const ROUNDS: u64 = 3;
/// A reader has so many commits at a time.
const COMMITS: usize = 3;
/// What all nodes share.
const STORE: u64 = 7;

/// What runs came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Events of commits.
    pub events: u64,
    /// Events that clients read.
    pub read: u64,
    /// Gaps that clients were told of.
    pub gaps: u64,
    /// Times a client went on at a node.
    pub resumed: u64,
    /// Changes of owners, and nodes that were killed.
    pub troubles: u64,
    /// A hash over everything that happened, in order.
    pub trace: u64,
}

impl Report {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.read += other.read;
        self.gaps += other.gaps;
        self.resumed += other.resumed;
        self.troubles += other.troubles;
        self.trace = self.trace.wrapping_add(other.trace);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds: {} events, {} read by clients, {} gaps, {} times a client went on, {} troubles",
            self.seeds, self.events, self.read, self.gaps, self.resumed, self.troubles
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
    for step in 0..options.steps + CALM {
        world.now = step;
        world.is_over = step >= options.steps;
        result = world.live();
        if result.is_err() {
            break;
        }
    }
    let result = result.and_then(|()| world.has_ended());
    let World {
        mut report,
        log,
        now,
        ..
    } = world;
    report.seeds = 1;
    report.trace = log.hash;
    result
        .map(|()| report)
        .map_err(|what| log.failure(seed, now, what))
}

/// A commit that is durable, and that its owner has not told yet.
struct Untold {
    at: u64,
    lease: Lease,
    events: Vec<TimerEvent>,
}

/// A question to all other nodes, and what they have answered.
struct Round {
    number: u64,
    ends: u64,
    missing: usize,
    told: Vec<ToldEvents>,
}

/// One start of a node.
struct Node {
    copies: EventCopies,
    untold: VecDeque<Untold>,
    round: Option<Round>,
    asks_at: u64,
    /// How many rounds have ended.
    rounds: u64,
    /// A dead one starts again then.
    starts_at: Option<u64>,
}

/// A client, with what it has seen.
struct Client {
    node: usize,
    /// Until so many rounds of the node have ended, it waits to go on.
    waits_for: Option<u64>,
    places: BTreeMap<Shard, EventPosition>,
    /// How many events of the history of each shard it is behind.
    seen: BTreeMap<Shard, usize>,
    /// It has been anywhere before.
    has_begun: bool,
}

enum Message {
    Asks { number: u64, known: KnownEvents },
    Answers { number: u64, told: ToldEvents },
}

/// A shard: what its commits did, and who owns it.
#[derive(Default)]
struct Owned {
    /// Every event, in order, by its place; its number in that order is its name.
    history: Vec<EventPosition>,
    owner: Option<usize>,
    term: u64,
    number: u64,
    /// It has an owner again then.
    taken_at: u64,
}

struct World {
    random: Random,
    is_calm: bool,
    /// All trouble has ended, and there are no new commits.
    is_over: bool,
    now: u64,
    most: usize,
    nodes: Vec<Node>,
    shards: Vec<Owned>,
    clients: Vec<Client>,
    messages: BTreeMap<(u64, u64), (usize, usize, Message)>,
    next: u64,
    report: Report,
    log: Log,
}

impl World {
    fn new(seed: u64, options: &Stepped) -> Self {
        let mut random = Random::new(seed, "streams");
        let is_calm = random.one_in(4);
        let most = if is_calm {
            EventLog::EVENTS
        } else {
            usize::try_from(*random.pick(&[1, 8, 60, 65_536])).unwrap_or(1)
        };
        let nodes = random.between(2, 4);
        let shards = random.between(1, 3);
        let clients = random.between(1, 4);
        let mut world = Self {
            is_calm,
            is_over: false,
            now: 0,
            most,
            nodes: (0..nodes).map(|_| Node::new(most)).collect(),
            shards: (0..shards).map(|_| Owned::default()).collect(),
            clients: Vec::new(),
            messages: BTreeMap::new(),
            next: 0,
            report: Report::default(),
            log: Log::new(options.log),
            random,
        };
        for _ in 0..clients {
            let client = Client {
                node: world.one_of(world.nodes.len()),
                waits_for: None,
                places: BTreeMap::new(),
                seen: BTreeMap::new(),
                has_begun: false,
            };
            world.clients.push(client);
        }
        for client in 0..world.clients.len() {
            let node = world.clients[client].node;
            world.comes(client, node);
        }
        world
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).unwrap_or(0)
    }

    fn is_up(&self, node: usize) -> bool {
        self.nodes[node].starts_at.is_none()
    }

    fn live(&mut self) -> Result<(), String> {
        self.happen();
        for shard in 0..self.shards.len() {
            self.own(shard);
        }
        for node in 0..self.nodes.len() {
            self.tell(node, self.now);
        }
        while let Some(entry) = self.messages.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (from, to, message) = entry.remove();
            self.deliver(from, to, message);
        }
        for node in 0..self.nodes.len() {
            self.ask(node);
        }
        for client in 0..self.clients.len() {
            self.read(client)?;
        }
        Ok(())
    }

    /// What comes over nodes and clients.
    fn happen(&mut self) {
        for node in 0..self.nodes.len() {
            let starts = self.nodes[node].starts_at;
            if starts.is_some_and(|at| at <= self.now || self.is_over) {
                // Clients that came meanwhile wait for rounds of this start.
                let rounds = self.nodes[node].rounds;
                self.nodes[node] = Node::new(self.most);
                self.nodes[node].rounds = rounds;
                self.log.note(format!("node {node} starts again"));
            }
        }
        if self.is_over {
            return;
        }
        if self.random.one_in(80) {
            let (client, node) = (
                self.one_of(self.clients.len()),
                self.one_of(self.nodes.len()),
            );
            self.comes(client, node);
        }
        if self.is_calm {
            return;
        }
        if self.random.one_in(250) {
            let node = self.one_of(self.nodes.len());
            if self.is_up(node) {
                self.kill(node);
            }
        }
        if self.random.one_in(120) {
            let (shard, to) = (
                self.one_of(self.shards.len()),
                self.one_of(self.nodes.len()),
            );
            self.change_hands(shard, to);
        }
    }

    fn kill(&mut self, node: usize) {
        self.report.troubles += 1;
        self.log.note(format!("node {node} is killed"));
        self.nodes[node].starts_at = Some(self.now + self.random.between(1, 60));
        self.nodes[node].untold.clear();
        for owned in &mut self.shards {
            if owned.owner == Some(node) {
                owned.owner = None;
                owned.taken_at = self.now + self.random.between(1, 40);
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].node == node {
                let to = self.one_of(self.nodes.len());
                self.comes(client, to);
            }
        }
    }

    /// An owner gives a shard away, or loses it and may not know.
    fn change_hands(&mut self, shard: usize, to: usize) {
        let Some(from) = self.shards[shard].owner else {
            return;
        };
        self.report.troubles += 1;
        let lease = self.lease(shard);
        if self.random.one_in(3) {
            self.log.note(format!("node {from} loses shard {shard}"));
        } else {
            self.tell(from, u64::MAX);
            self.nodes[from].copies.log().closed(lease);
            self.log
                .note(format!("node {from} gives shard {shard} away"));
        }
        self.shards[shard].owner = None;
        self.shards[shard].taken_at = self.now + self.random.below(30);
        if self.random.one_in(6) {
            // Somebody had it in between, committed, and was gone before it told anybody.
            self.shards[shard].term += 1;
            self.shards[shard].number = 0;
            self.commit(shard);
        }
        if self.is_up(to) && self.random.one_in(2) {
            self.open(shard, to);
        }
    }

    fn lease(&self, shard: usize) -> Lease {
        Lease {
            shard: numbered(shard),
            fence: Fence(self.shards[shard].term),
        }
    }

    fn open(&mut self, shard: usize, node: usize) {
        let owned = &mut self.shards[shard];
        owned.owner = Some(node);
        owned.term += 1;
        owned.number = 0;
        let lease = self.lease(shard);
        self.log.note(format!(
            "node {node} takes shard {shard}: {}",
            lease.fence.0
        ));
        self.nodes[node].copies.log().opened(&Ownership {
            lease,
            store_id: STORE,
            last_revision: Revision(0),
            clock: None,
            forgets_done: false,
        });
    }

    /// A shard without an owner is taken, and its owner commits.
    fn own(&mut self, shard: usize) {
        let Some(node) = self.shards[shard].owner else {
            let node = self.one_of(self.nodes.len());
            if self.shards[shard].taken_at <= self.now && self.is_up(node) {
                self.open(shard, node);
            }
            return;
        };
        if self.is_over || !self.random.one_in(4) {
            return;
        }
        let events = self.commit(shard);
        let waits = if self.is_calm {
            0
        } else {
            self.random.below(6)
        };
        let lease = self.lease(shard);
        let before = self.nodes[node].untold.back().map_or(0, |untold| untold.at);
        self.nodes[node].untold.push_back(Untold {
            at: before.max(self.now + waits),
            lease,
            events,
        });
    }

    /// A commit is durable from here on.
    fn commit(&mut self, shard: usize) -> Vec<TimerEvent> {
        let count = self.random.between(1, 4);
        let mut events = Vec::new();
        for _ in 0..count {
            self.report.events += 1;
            let owned = &mut self.shards[shard];
            owned.number += 1;
            let name = SettingName::new(format!("queue/e-{shard}-{}", owned.history.len()));
            owned.history.push(EventPosition {
                term: Fence(owned.term),
                number: owned.number,
            });
            let event = name.map(|name| TimerEvent::of_setting(name, true, Timestamp::EPOCH));
            events.extend(event);
        }
        events
    }

    /// What a node has committed is told.
    fn tell(&mut self, node: usize, now: u64) {
        let node = &mut self.nodes[node];
        while let Some(untold) = node.untold.pop_front_if(|untold| untold.at <= now) {
            node.copies.log().committed(untold.lease, untold.events);
        }
    }

    /// A node asks all others, if anybody listens to it.
    fn ask(&mut self, node: usize) {
        let is_heard = self.clients.iter().any(|client| client.node == node);
        if !self.is_up(node) || !is_heard {
            return;
        }
        let now = self.now;
        let it = &mut self.nodes[node];
        if let Some(round) = it.round.take_if(|it| it.missing == 0 || it.ends <= now) {
            let is_more = it.copies.take(round.told);
            it.rounds += 1;
            it.asks_at = if is_more { now } else { now + ROUNDS };
        }
        if it.round.is_some() || it.asks_at > now {
            return;
        }
        let known = it.copies.asks();
        let others: Vec<_> = (0..self.nodes.len())
            .filter(|&other| other != node)
            .collect();
        self.next += 1;
        let number = self.next;
        self.nodes[node].round = Some(Round {
            number,
            ends: now + ANSWERED_WITHIN,
            missing: others.len(),
            told: Vec::new(),
        });
        for other in others {
            let known = known.clone();
            self.send(node, other, Message::Asks { number, known });
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let has_trouble = !self.is_calm && !self.is_over;
        if has_trouble && self.random.one_in(12) {
            return;
        }
        let most = if has_trouble && self.random.one_in(6) {
            3 * ANSWERED_WITHIN
        } else {
            4
        };
        let at = self.now + self.random.between(1, most);
        self.next += 1;
        self.messages.insert((at, self.next), (from, to, message));
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        if !self.is_up(to) {
            return;
        }
        match message {
            Message::Asks { number, known } => {
                let most = usize::try_from(self.random.between(1, 60)).unwrap_or(1);
                let told = self.nodes[to].copies.answer(&known, most);
                self.log
                    .note(format!("{to} answers {from} {number}: {told:?}"));
                self.send(to, from, Message::Answers { number, told });
            }
            Message::Answers { number, told } => {
                let round = self.nodes[to].round.as_mut();
                // Nobody waits for the answer to an earlier question.
                if let Some(round) = round.filter(|round| round.number == number) {
                    round.missing -= 1;
                    round.told.push(told);
                }
            }
        }
    }

    /// A client comes to a node, with the places that it has.
    fn comes(&mut self, client: usize, node: usize) {
        // The round that is under way may have begun before.
        let rounds = self.nodes[node].rounds + 2;
        let client = &mut self.clients[client];
        client.node = node;
        client.waits_for = Some(rounds);
    }

    /// A client goes on, and reads what there is, or a part of it.
    fn read(&mut self, client: usize) -> Result<(), String> {
        let at = self.clients[client].node;
        if !self.is_up(at) {
            let to = self.one_of(self.nodes.len());
            self.comes(client, to);
            return Ok(());
        }
        let node = &self.nodes[at];
        if let Some(rounds) = self.clients[client].waits_for {
            if node.rounds < rounds && self.nodes.len() > 1 {
                return Ok(());
            }
            if !self.goes_on(client)? {
                return Ok(());
            }
        }
        if !self.is_over && !self.random.one_in(3) {
            return Ok(());
        }
        let log = Arc::clone(self.nodes[at].copies.log());
        for shard in log.shards() {
            // Of a shard of which it had no place, what was before is not known.
            let after = self.clients[client].places.get(&shard).copied();
            let chunks = log.read_some(shard, Some(after.unwrap_or_default()), COMMITS);
            let chunks = chunks.map_err(|error| format!("client {client} is refused: {error}"))?;
            for chunk in chunks {
                if chunk.gap {
                    self.report.gaps += 1;
                    if self.is_calm && after.is_some() {
                        return Err(format!(
                            "client {client} has a gap in shard {} behind {after:?} without a cause",
                            shard.0
                        ));
                    }
                    self.clients[client].seen.remove(&shard);
                }
                let (first, term) = (chunk.first, chunk.term);
                for (number, event) in (first..).zip(chunk.events()) {
                    let place = EventPosition { term, number };
                    self.take(client, shard, place, event)?;
                    if !self.is_over && self.random.one_in(200) {
                        // It breaks off in the middle, and comes back.
                        let to = self.one_of(self.nodes.len());
                        self.comes(client, to);
                        return Ok(());
                    }
                }
                self.clients[client].places.insert(shard, chunk.end());
            }
        }
        Ok(())
    }

    /// A client goes on behind its places, if its node can say that.
    fn goes_on(&mut self, client: usize) -> Result<bool, String> {
        let it = &mut self.clients[client];
        let copies = &self.nodes[it.node].copies;
        let log = copies.log();
        if !it.has_begun {
            // From here on it misses nothing.
            for shard in log.shards() {
                if let Some(end) = log.end(shard) {
                    it.places.insert(shard, end);
                    let history = &self.shards[usize::from(shard.0)].history;
                    it.seen
                        .insert(shard, history.partition_point(|at| *at <= end));
                }
            }
        }
        for (&shard, &place) in &it.places {
            match copies.resume(shard, place) {
                Ok(()) => {}
                Err(ResumeError::Unknown(_)) => {
                    // It is told to come again, and may come anywhere.
                    self.log.note(format!("client {client} has to wait"));
                    let to = self.one_of(self.nodes.len());
                    self.comes(client, to);
                    return Ok(false);
                }
                Err(error) => {
                    return Err(format!("the place of client {client} is refused: {error}"));
                }
            }
        }
        it.has_begun = true;
        it.waits_for = None;
        self.report.resumed += 1;
        self.log
            .note(format!("client {client} goes on at node {}", it.node));
        Ok(true)
    }

    /// A client has an event: is it the next one?
    fn take(
        &mut self,
        client: usize,
        shard: Shard,
        place: EventPosition,
        event: &TimerEvent,
    ) -> Result<(), String> {
        self.report.read += 1;
        let history = &self.shards[usize::from(shard.0)].history;
        let who = format!(
            "client {client} has the event {place:?} of shard {}",
            shard.0
        );
        let Ok(number) = history.binary_search(&place) else {
            return Err(format!("{who}, which no commit made"));
        };
        let is_it = matches!(&event.subject, Subject::Setting(name, true)
            if name.as_str() == format!("queue/e-{}-{number}", shard.0));
        if !is_it {
            return Err(format!("{who}, which was another one: {:?}", event.subject));
        }
        let it = &mut self.clients[client];
        if it.places.get(&shard).is_some_and(|known| *known >= place) {
            return Err(format!("{who} again, or too late"));
        }
        match it.seen.get(&shard) {
            Some(&seen) if seen != number => {
                return Err(format!("{who}, the {number}th, after {seen} without a gap"));
            }
            _ => {}
        }
        it.places.insert(shard, place);
        it.seen.insert(shard, number + 1);
        Ok(())
    }

    /// In the end, every client is where the owners are.
    fn has_ended(&self) -> Result<(), String> {
        for (client, it) in self.clients.iter().enumerate() {
            for (shard, owned) in self.shards.iter().enumerate() {
                let shard = numbered(shard);
                let Some(owner) = owned.owner else {
                    return Err(format!("shard {} has no owner", shard.0));
                };
                let end = self.nodes[owner].copies.log().end(shard);
                let place = it.places.get(&shard).copied();
                if place != end {
                    return Err(format!(
                        "client {client} at node {} is at {place:?} of shard {}, whose end is {end:?}",
                        it.node, shard.0
                    ));
                }
                let seen = it.seen.get(&shard).copied().unwrap_or(0);
                if self.is_calm && seen != owned.history.len() && it.seen.contains_key(&shard) {
                    return Err(format!(
                        "client {client} has {seen} of {}",
                        owned.history.len()
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Node {
    fn new(most: usize) -> Self {
        Self {
            copies: EventCopies::new(Arc::new(EventLog::new(most, EventLog::BYTES))),
            untold: VecDeque::new(),
            round: None,
            asks_at: 0,
            rounds: 0,
            starts_at: None,
        }
    }
}

fn numbered(shard: usize) -> Shard {
    Shard(u16::try_from(shard).unwrap_or(u16::MAX))
}
