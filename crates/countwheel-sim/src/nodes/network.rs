//! What nodes ask each other, and the connections between them: frames are late, held up, and gone with a
//! connection that breaks. A connection brings no frame twice and none out of order, but an answer comes twice
//! at times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use countwheel_cluster::{NodeId, ShardMap, View};
use countwheel_durable::store::Shard;
use countwheel_durable::{Asked, Request};
use countwheel_peers::testing::{SimulatedConnection, SimulatedPeers};
use countwheel_peers::{Here, Owners, PeersConfig};
use countwheel_time::Clock;
use parking_lot::Mutex;

use super::process::Process;
use super::{SECOND, World};

/// A caller gives a connection up that has been silent for so long, whoever is asked after twice that.
pub(super) const SILENCE: u64 = 2 * SECOND;
/// A caller sends a sign of life so often.
const SIGNS: u64 = SILENCE / 5;
/// So long after its deadline a question may be done at the most: on each of two ways it may be held up until
/// the connection counts as silent, and lie with a process that is stopped for less than that.
const LATE_MAX: u64 = 2 * (2 * SILENCE + SILENCE) + SECOND;
/// Between two calls.
const CALL_AGAIN: u64 = SECOND / 5;

/// The connections of all nodes.
#[derive(Default)]
pub(super) struct Network {
    /// By the machine that calls, and the node that is called.
    links: BTreeMap<(usize, NodeId), Link>,
    /// Those that have ended, with what had been sent by then.
    ended: Vec<Link>,
    /// When a node may be called again.
    calls: BTreeMap<(usize, NodeId), u64>,
    /// Until when nothing comes from one machine to another.
    pub(super) cuts: BTreeMap<(usize, usize), u64>,
}

/// A connection from one process to another.
struct Link {
    /// The machine that called, and which start of a process there.
    from: usize,
    caller: u128,
    /// The machine that was called, and which start of a process there.
    to: (usize, u128),
    connection: SimulatedConnection,
    is_open: bool,
    questions: VecDeque<Frame>,
    answers: VecDeque<Frame>,
    signed: u64,
    /// When a frame of the other side came last: to who was called, and to who called.
    heard: (u64, u64),
}

struct Frame {
    comes: u64,
    bytes: Vec<u8>,
}

/// A node's part in it.
pub(super) struct Peers {
    pub(super) peers: SimulatedPeers,
    map: Arc<Map>,
    desk: Arc<Desk>,
}

/// The owners of the shards, as a node knows them.
#[derive(Default)]
struct Map {
    owners: Mutex<ShardMap>,
    me: Mutex<Option<NodeId>>,
}

/// What other nodes have asked, until the process looks at it.
#[derive(Default)]
struct Desk(Mutex<VecDeque<(Shard, Asked)>>);

impl Owners for Map {
    fn owner(&self, shard: Shard) -> Option<(NodeId, String)> {
        let owners = self.owners.lock();
        owners.owner(shard).map(|it| (it.node.id, String::new()))
    }

    fn version(&self) -> u64 {
        self.owners.lock().version()
    }

    fn me(&self) -> Option<NodeId> {
        *self.me.lock()
    }
}

impl Here for Desk {
    fn ask(&self, shard: Shard, asked: Asked) {
        self.0.lock().push_back((shard, asked));
    }
}

impl Peers {
    pub(super) fn new(config: PeersConfig, clock: Arc<dyn Clock>) -> Self {
        let (map, desk) = (Arc::<Map>::default(), Arc::<Desk>::default());
        let owners = Arc::clone(&map) as Arc<dyn Owners>;
        let here = Arc::clone(&desk) as Arc<dyn Here>;
        Self {
            peers: SimulatedPeers::new(config, owners, here, clock),
            map,
            desk,
        }
    }

    /// Knows who owns what, and which node this is.
    pub(super) fn learn(&self, me: NodeId, view: &View) {
        *self.map.me.lock() = Some(me);
        self.map.owners.lock().change(view);
    }
}

impl World {
    /// A process sends and takes what nodes ask each other.
    pub(super) fn talk(&mut self, machine: usize, process: &mut Process) -> Result<(), String> {
        self.end_links();
        self.take_questions(machine);
        self.take_asked(process)?;
        self.take_answers(machine, process)?;
        process.peers.peers.look();
        self.take_asked(process)?;
        self.call(machine, process);
        self.send(machine, process);
        Ok(())
    }

    /// Connections end with their processes, and with those the answers. What was sent comes, if there is
    /// somebody.
    fn end_links(&mut self) {
        let time = self.time();
        let machines = &self.machines;
        let lives = |machine: usize, born: u128| machines[machine].born == Some(born);
        let gone = self.network.links.extract_if(.., |(from, _), link| {
            !link.is_open || !lives(*from, link.caller) || !lives(link.to.0, link.to.1)
        });
        let gone: Vec<_> = gone.collect();
        for (link, it) in gone {
            if lives(link.0, it.caller) {
                self.broken.insert(link);
            }
            self.network.calls.insert(link, time + CALL_AGAIN);
            self.network.ended.push(it);
        }
        let goes_on = |it: &Link| lives(it.to.0, it.to.1) && !it.questions.is_empty();
        self.network.ended.retain(goes_on);
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        let until = self.network.cuts.get(&(from, to));
        until.is_some_and(|until| *until > self.time())
    }

    fn take_questions(&mut self, machine: usize) {
        let time = self.time();
        let awake = self.machines[machine].paused_until;
        let machines = 0..self.machines.len();
        let cut: Vec<bool> = machines.map(|from| self.is_cut(from, machine)).collect();
        let links = self.network.links.values_mut();
        let mut refused = Vec::new();
        for link in links.chain(&mut self.network.ended) {
            if link.to.0 != machine || cut[link.from] {
                continue;
            }
            // What came while it was stopped is there before its time is over.
            let mut goes_on = time <= link.heard.0.max(awake) + 2 * SILENCE;
            while goes_on
                && let Some(frame) = link.questions.pop_front_if(|frame| frame.comes <= time)
            {
                goes_on = link.connection.take(frame.bytes);
                link.heard.0 = time;
            }
            if !goes_on {
                link.is_open = false;
                link.questions.clear();
                refused.push(link.from);
            }
        }
        for from in refused {
            self.note(format_args!("node {machine} ends what {from} had called"));
        }
    }

    /// Takes what is asked of the process itself.
    fn take_asked(&mut self, process: &mut Process) -> Result<(), String> {
        let until = self.time() + self.plan.answer_within;
        for request in process.asked_again.drain(..) {
            if let Some(timer) = number(&request) {
                self.timers[timer].asked_until = until;
            }
        }
        let asked = mem::take(&mut *process.peers.desk.0.lock());
        for (shard, asked) in asked {
            for request in asked.requests() {
                self.look_at_question(request)?;
            }
            process.take_in(shard, asked, false, &mut self.next_ticket);
        }
        Ok(())
    }

    /// What nobody waits for any more is not done.
    fn look_at_question(&self, request: &Request) -> Result<(), String> {
        let until = number(request).map_or(u64::MAX, |timer| self.timers[timer].asked_until);
        match self.time() > until.saturating_add(LATE_MAX) {
            true => Err(format!(
                "{request:?} is taken, and had to be answered by {until}"
            )),
            false => Ok(()),
        }
    }

    fn take_answers(&mut self, machine: usize, process: &mut Process) -> Result<(), String> {
        let time = self.time();
        let broken = self.broken.extract_if(.., |(from, _)| *from == machine);
        let broken: Vec<_> = broken.collect();
        for (_, to) in broken {
            self.report.broken += 1;
            process.peers.peers.broken(to);
        }
        let mut links = mem::take(&mut self.network.links);
        let mut silent = BTreeSet::new();
        for ((from, to), link) in &mut links {
            // Whoever is asked writes what there is to say.
            if link.to.0 == machine
                && let Some(bytes) = link.connection.next_frame()
            {
                let comes = self.draw_arrival(link.answers.back());
                link.answers.push_back(Frame { comes, bytes });
            }
            if *from != machine {
                continue;
            }
            while !self.is_cut(link.to.0, machine)
                && let Some(frame) = link.answers.pop_front_if(|frame| frame.comes <= time)
            {
                link.heard.1 = time;
                for _ in 0..=u64::from(self.network_draws.one_in(8)) {
                    if !process.peers.peers.take_answers(*to, &frame.bytes) {
                        return Err(format!("an answer of {to:?} cannot be read"));
                    }
                }
            }
            if time > link.heard.1 + SILENCE {
                silent.insert((*from, *to));
            }
        }
        self.network.links = links;
        for link in silent {
            // What was sent may be done yet: its deadline ends it.
            self.note(format_args!(
                "node {machine} gives a silent node up: {link:?}"
            ));
            self.network.ended.extend(self.network.links.remove(&link));
            self.network.calls.insert(link, time + CALL_AGAIN);
        }
        Ok(())
    }

    /// Calls the nodes that questions wait for.
    fn call(&mut self, machine: usize, process: &Process) {
        let time = self.time();
        for to in process.peers.peers.wanted() {
            let link = (machine, to);
            let may_call = self.network.calls.get(&link).is_none_or(|at| *at <= time);
            if !may_call || self.network.links.contains_key(&link) {
                continue;
            }
            self.network.calls.insert(link, time + CALL_AGAIN);
            let is_called = |it: &super::Machine| {
                let process = it.process.as_ref();
                process.is_some_and(|process| process.control.me() == to)
            };
            let Some(called) = self.machines.iter().position(is_called) else {
                continue;
            };
            let is_away = self.machines[called].paused_until > time;
            if is_away || self.is_cut(machine, called) || self.is_cut(called, machine) {
                continue;
            }
            let (Some(caller), Some(born)) =
                (self.machines[machine].born, self.machines[called].born)
            else {
                continue;
            };
            let Some(other) = &self.machines[called].process else {
                continue;
            };
            let new = Link {
                from: machine,
                caller,
                is_open: true,
                to: (called, born),
                connection: other.peers.peers.accept(process.control.me()),
                questions: VecDeque::new(),
                answers: VecDeque::new(),
                signed: time,
                heard: (time, time),
            };
            self.network.links.insert(link, new);
            self.report.calls += 1;
        }
    }

    fn send(&mut self, machine: usize, process: &Process) {
        let time = self.time();
        let mut links = mem::take(&mut self.network.links);
        for ((from, to), link) in &mut links {
            if *from != machine {
                continue;
            }
            while let Some(bytes) = process.peers.peers.gather(*to) {
                let comes = self.draw_arrival(link.questions.back());
                link.questions.push_back(Frame { comes, bytes });
                link.signed = time;
                self.report.frames += 1;
            }
            if time >= link.signed + SIGNS {
                let comes = self.draw_arrival(link.questions.back());
                let bytes = SimulatedConnection::sign_of_life();
                link.questions.push_back(Frame { comes, bytes });
                link.signed = time;
            }
        }
        self.network.links = links;
    }

    /// When a frame comes that is sent now, after the one before it.
    fn draw_arrival(&mut self, before: Option<&Frame>) -> u64 {
        let most = match self.network_draws.one_in(20) && !self.healing {
            true => 2 * SECOND,
            false => SECOND / 50,
        };
        let comes = self.time() + self.network_draws.below(most);
        before.map_or(comes, |before| comes.max(before.comes))
    }

    /// Connections break, and nothing comes through in one direction or in both.
    pub(super) fn trouble_network(&mut self) {
        if self.network_draws.one_in(self.plan.breaks) {
            let count = self.network.links.len() as u64;
            let which = usize::try_from(self.network_draws.below(count.max(1))).unwrap_or(0);
            if let Some((link, it)) = self.network.links.iter_mut().nth(which) {
                it.is_open = false;
                let link = *link;
                self.note(format_args!("the connection {link:?} breaks"));
            }
        }
        if self.network_draws.one_in(self.plan.peer_cuts) {
            let machines = self.machines.len() as u64;
            let from = usize::try_from(self.network_draws.below(machines)).unwrap_or(0);
            let to = usize::try_from(self.network_draws.below(machines)).unwrap_or(0);
            let until = self.time() + self.draw_span();
            self.network.cuts.insert((from, to), until);
            if self.network_draws.one_in(2) {
                self.network.cuts.insert((to, from), until);
            }
            self.note(format_args!(
                "nothing comes from {from} to {to} until {until}"
            ));
        }
    }
}

/// Which timer it is about.
fn number(request: &Request) -> Option<usize> {
    request.name()?.key.as_str().parse().ok()
}
