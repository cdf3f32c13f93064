//! Three owners of one store answer as one does: histories drawn from a seed are asked of one node or
//! another, while shards change hands, and of a single owner of a store of its own. All answers are the
//! same, and so is all that can be read. Mistakes on the way between the nodes are found.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use countwheel_durable::store::{Filter, MemoryStore, Shard};
use countwheel_durable::{
    Asked, Attempt, BatchError, Completion, Config, Counted, DrainMode, Due, Elsewhere, Handler,
    Outcome, Precondition, QueueName, Request, Response, RetryPolicy, Revision, SetOptions,
    SettingName, SettingPrecondition, Shards, Shift, StateKind, TimerError, TimerName, Timers,
};
use countwheel_time::{Clock, ManualClock, SystemClock, Timestamp};

const NODES: usize = 3;
const START: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);
const HOUR: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(20);

fn shards() -> Shards {
    Shards::new(8).unwrap().by_tag()
}

/// What may be wrong on the way between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    /// What is asked for is asked for twice.
    AsksTwice,
    /// The requests of a batch go one by one.
    SplitsBatches,
    /// What was done is answered as if it had not been.
    LosesAnswers,
    /// An answer goes out, and nobody was asked.
    AnswersUnasked,
    /// The other nodes are not told of settings.
    KeepsSettings,
    /// A node counts its own shards alone.
    ForgetsCounts,
    /// The precondition is lost on the way.
    DropsPreconditions,
    /// What is asked of a shard that changes hands meanwhile is not asked again.
    GivesUp,
}

const MISTAKES: [Mistake; 8] = [
    Mistake::AsksTwice,
    Mistake::SplitsBatches,
    Mistake::LosesAnswers,
    Mistake::AnswersUnasked,
    Mistake::KeepsSettings,
    Mistake::ForgetsCounts,
    Mistake::DropsPreconditions,
    Mistake::GivesUp,
];

/// Draws: SplitMix64 (Steele, Lea and Flood, 2014).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// Says no to each attempt as soon as it comes: its timer is dead then.
struct Refusing;

impl Handler for Refusing {
    fn start(&self, _: Attempt, done: Completion) {
        done.complete(Outcome::stopped());
    }
}

/// Which node owns which shard, and a way to each node.
struct Way {
    nodes: Mutex<Vec<Timers>>,
    owners: Mutex<Vec<usize>>,
    mistake: Option<Mistake>,
    asked: Mutex<mpsc::Sender<(Shard, Asked, u32)>>,
}

/// The way as one node has it.
struct Peers(Arc<Way>);

impl Elsewhere for Peers {
    fn ask(&self, shard: Shard, asked: Asked) {
        self.0.forward(shard, asked, 0);
    }

    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        if self.0.mistake == Some(Mistake::ForgetsCounts) {
            return shards.iter().map(|it| (*it, Counted::default())).collect();
        }
        let nodes = self.0.nodes.lock().unwrap().clone();
        let counts = nodes.iter().map(|node| node.counts_here(shards).unwrap());
        counts.flatten().collect()
    }
}

impl Way {
    fn forward(&self, shard: Shard, asked: Asked, hops: u32) {
        let sent = self.asked.lock().unwrap().send((shard, asked, hops));
        sent.unwrap_or_else(|unsent| unsent.0.1.refuse(TimerError::Closed));
    }

    /// What a thread of the way does with each.
    fn carry(self: &Arc<Self>, shard: Shard, asked: Asked, hops: u32) {
        let requests = asked.requests().to_vec();
        if self.is(Mistake::KeepsSettings) && requests[0].name().is_none() {
            return asked.refuse(TimerError::ShardUnavailable { shard });
        }
        if self.is(Mistake::AnswersUnasked) && matches!(requests[..], [Request::Remove { .. }]) {
            return asked.refuse(TimerError::NotFound);
        }
        let node = self.owners.lock().unwrap()[usize::from(shard.0)];
        let node = self.nodes.lock().unwrap()[node].clone();
        let split = asked.is_batch() && self.is(Mistake::SplitsBatches);
        if self.is(Mistake::AsksTwice) {
            let again = Asked::batch(requests.clone(), |_| ());
            node.ask_here(shard, again);
        }
        let sent = if self.is(Mistake::DropsPreconditions) {
            requests.iter().cloned().map(without_precondition).collect()
        } else {
            requests
        };
        if split {
            let mut answers = Vec::new();
            for request in sent {
                let (send, answer) = mpsc::channel();
                let one = Asked::one(request, move |answer| send.send(answer).unwrap());
                node.ask_here(shard, one);
                match answer.recv().unwrap() {
                    Ok(response) => answers.push(response),
                    Err(error) => {
                        let index = Some(answers.len());
                        return asked.answer(Err(BatchError { index, error }));
                    }
                }
            }
            return asked.answer(Ok(answers));
        }
        let way = Arc::clone(self);
        let is_batch = asked.is_batch();
        let answer = move |answer: Result<Vec<Response>, BatchError>| {
            let moved = |refused: &BatchError| matches!(refused.error, TimerError::NotOwned { .. });
            match answer {
                Err(refused) if moved(&refused) && hops < 1_000 && !way.is(Mistake::GivesUp) => {
                    thread::yield_now();
                    way.forward(shard, asked, hops + 1);
                }
                Err(refused) if moved(&refused) => {
                    asked.refuse(TimerError::ShardUnavailable { shard });
                }
                Ok(_) if way.is(Mistake::LosesAnswers) => {
                    asked.refuse(TimerError::ShardUnavailable { shard });
                }
                answer => asked.answer(answer),
            }
        };
        node.ask_here(
            shard,
            match (is_batch, sent.first()) {
                (false, Some(request)) => Asked::one(request.clone(), move |one| {
                    let refused = |error| BatchError { index: None, error };
                    answer(one.map(|response| vec![response]).map_err(refused));
                }),
                _ => Asked::batch(sent, answer),
            },
        );
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

fn without_precondition(mut request: Request) -> Request {
    match &mut request {
        Request::Set { precondition, .. }
        | Request::Move { precondition, .. }
        | Request::Remove { precondition, .. } => *precondition = Precondition::None,
        _ => {}
    }
    request
}

/// Three nodes, and one that has everything.
struct World {
    draw: Draw,
    one: Timers,
    way: Arc<Way>,
    carrier: Option<JoinHandle<()>>,
    /// How often a shard was to change hands.
    moved: usize,
}

fn open(store: MemoryStore, clock: &ManualClock, owned: Vec<Shard>) -> Timers {
    let config = Config {
        max_batch: 8,
        ..Config::default()
    };
    let clock = Arc::new(clock.clone());
    Timers::open_divided(store, shards(), owned, Refusing, clock, config).unwrap()
}

fn ask_all(timers: &Timers, requests: Vec<Request>) -> Result<Vec<Response>, BatchError> {
    let (send, answer) = mpsc::channel();
    timers.submit_batch(requests, move |answer| send.send(answer).unwrap());
    answer.recv_timeout(PATIENCE).unwrap()
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> Self {
        let clock = ManualClock::at(START);
        let store = MemoryStore::new(7);
        let all: Vec<_> = shards().all().collect();
        let of = |node: usize| {
            let theirs = all.iter().filter(|it| usize::from(it.0) % NODES == node);
            open(store.clone(), &clock, theirs.copied().collect())
        };
        let (send, asked) = mpsc::channel();
        let way = Arc::new(Way {
            nodes: Mutex::new((0..NODES).map(of).collect()),
            owners: Mutex::new(all.iter().map(|it| usize::from(it.0) % NODES).collect()),
            mistake,
            asked: Mutex::new(send),
        });
        for node in &*way.nodes.lock().unwrap() {
            node.on_elsewhere(Arc::new(Peers(Arc::clone(&way))));
        }
        let carries = Arc::clone(&way);
        let carrier = thread::spawn(move || {
            for (shard, asked, hops) in asked {
                carries.carry(shard, asked, hops);
            }
        });
        Self {
            draw: Draw(seed),
            one: open(MemoryStore::new(7), &clock, all),
            way,
            carrier: Some(carrier),
            moved: 0,
        }
    }

    fn node(&mut self) -> Timers {
        let node = self.draw.below(NODES);
        self.way.nodes.lock().unwrap()[node].clone()
    }

    /// Asks both sides for the same, while a shard changes hands, as it may happen.
    fn both<T: Debug>(&mut self, what: &str, ask: impl Fn(&Timers) -> T) -> Result<T, String> {
        let node = self.node();
        let moves = self.draw.below(3) == 0;
        let moves = moves.then(|| self.hand_over());
        let theirs = ask(&node);
        if let Some(moves) = moves {
            moves.join().unwrap();
        }
        let ours = ask(&self.one);
        let (theirs, expected) = (format!("{theirs:?}"), format!("{ours:?}"));
        if theirs == expected {
            return Ok(ours);
        }
        Err(format!("{what}: {theirs}, and not {expected}"))
    }

    /// Gives a shard to another node.
    fn hand_over(&mut self) -> JoinHandle<()> {
        let shard = Shard(u16::try_from(self.draw.below(8)).unwrap());
        let next = self.draw.below(NODES);
        let way = Arc::clone(&self.way);
        self.moved += 1;
        thread::spawn(move || {
            let before = way.owners.lock().unwrap()[usize::from(shard.0)];
            if before == next {
                return;
            }
            let nodes = way.nodes.lock().unwrap().clone();
            let given = nodes[before].hand_over_and(shard, PATIENCE, |left| {
                assert_eq!(left, 0);
                nodes[next].take(shard).unwrap();
                way.owners.lock().unwrap()[usize::from(shard.0)] = next;
            });
            given.unwrap();
        })
    }

    fn name(&mut self) -> TimerName {
        let queue = self.draw.of(&["a", "b", "n/a"]);
        let key = self.draw.of(&[
            "1", "2", "3", "{t}1", "{t}2", "x{t}", "{u}1", "{u}", "{}1", "{}{t}", "{t",
        ]);
        TimerName::try_from((queue, key)).unwrap()
    }

    fn precondition(&mut self, name: &TimerName) -> Precondition {
        let there = self.one.get(name).unwrap();
        match (self.draw.below(4), there) {
            (0, _) => Precondition::Absent,
            (1, Some(record)) => Precondition::Revision(record.revision),
            (2, Some(record)) => Precondition::Revision(Revision(record.revision.0 + 1)),
            _ => Precondition::None,
        }
    }

    fn request(&mut self, name: TimerName) -> Request {
        let precondition = self.precondition(&name);
        let hours = u32::try_from(self.draw.below(9) + 1).unwrap();
        match self.draw.below(6) {
            0..=2 => Request::Set {
                name,
                due: self
                    .draw
                    .of(&[Due::In(HOUR * hours), Due::At(START + HOUR * hours)]),
                policy: RetryPolicy::default(),
                payload: vec![7; self.draw.below(30)],
                precondition,
                options: SetOptions::default(),
            },
            3 => Request::Move {
                name,
                shift: Shift::Later(HOUR),
                precondition,
            },
            4 => Request::Revive {
                name,
                due: Due::In(HOUR),
            },
            _ => Request::Remove {
                name,
                precondition,
                only_pending: self.draw.below(2) == 0,
            },
        }
    }

    /// A few requests: of one tag, or of whatever keys.
    fn batch(&mut self) -> Vec<Request> {
        let tag = self.draw.of(&["{t}", "{u}"]);
        let is_of_tag = self.draw.below(4) > 0;
        let count = self.draw.below(4) + 1;
        let mut batch = Vec::new();
        while batch.len() < count {
            let name = self.name();
            let fits = name.key.as_str().contains(tag) && !name.key.as_str().contains("{}");
            let fits = fits && name.queue.is_in_default();
            if fits || !is_of_tag {
                batch.push(self.request(name));
            }
        }
        batch
    }

    fn step(&mut self) -> Result<(), String> {
        match self.draw.below(20) {
            0..=8 => {
                let name = self.name();
                let request = self.request(name);
                let what = format!("{request:?}");
                drop(self.both(&what, |timers| timers.call(request.clone()))?);
            }
            9..=12 => {
                let batch = self.batch();
                let what = format!("{batch:?}");
                drop(self.both(&what, |timers| ask_all(timers, batch.clone()))?);
            }
            13 => self.fire()?,
            14 => {
                let name = SettingName::new(self.draw.of(&["x", "y"])).unwrap();
                let absent = SettingPrecondition::Absent;
                let request = Request::Configure {
                    name,
                    value: self.draw.of(&[Some(vec![1]), None]),
                    precondition: self.draw.of(&[SettingPrecondition::None, absent]),
                };
                let what = format!("{request:?}");
                drop(self.both(&what, |timers| timers.call(request.clone()))?);
            }
            15 => self.drain()?,
            16..=17 => {
                let name = self.name();
                self.both("get", |timers| timers.get(&name).unwrap())?;
            }
            _ => self.reads()?,
        }
        Ok(())
    }

    /// The timer is dead in the end.
    fn fire(&mut self) -> Result<(), String> {
        if self.one.drains().iter().next().is_some() || self.one.drains().all().is_some() {
            return Ok(());
        }
        let name = self.name();
        if self.both("fire", |timers| timers.fire(&name))?.is_err() {
            return Ok(());
        }
        let until = SystemClock::new();
        let until = (until.now() + PATIENCE, until);
        let node = self.node();
        for timers in [&node, &self.one] {
            let is_dead = || {
                let record = timers.get(&name).unwrap();
                record.is_some_and(|record| record.state.kind() == StateKind::Dead)
            };
            while !is_dead() {
                if until.1.now() > until.0 {
                    return Err(format!("{name} does not fire"));
                }
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), String> {
        let queue = self.draw.of(&[None, Some("a"), Some("n/a")]);
        let queue = queue.map(|queue| QueueName::from_text(queue).unwrap());
        let mode = self.draw.of(&[DrainMode::Hold, DrainMode::Remove]);
        let drained = self.both("drain", |timers| {
            let mut drained = timers.drain(queue.as_ref(), mode)?;
            drained.removed.sort_by(|a, b| a.name.cmp(&b.name));
            Ok::<_, TimerError>(drained)
        })?;
        drop(drained);
        for _ in 0..3 {
            let name = self.name();
            let set = |timers: &Timers| timers.set(&name, HOUR, ());
            drop(self.both("set in a drain", set)?);
        }
        drop(self.both("resume", |timers| timers.resume(queue.as_ref()))?);
        Ok(())
    }

    fn reads(&mut self) -> Result<(), String> {
        for queue in ["a", "b", "n/a"] {
            let filter = Filter::queue(QueueName::from_text(queue).unwrap());
            self.both("list", |timers| {
                let listed: Result<Vec<_>, _> = timers.list(filter.clone()).collect();
                listed.unwrap()
            })?;
            self.both("queue", |timers| {
                timers.queue_overview(&filter.queue).unwrap().counts
            })?;
        }
        self.both("counts", |timers| timers.counted().unwrap())?;
        self.both("some counts", |timers| {
            timers.counts_after(None, 2).unwrap()
        })?;
        self.both("what is left", |timers| timers.left(None).unwrap())?;
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        *self.way.asked.lock().unwrap() = mpsc::channel().0;
        let nodes = std::mem::take(&mut *self.way.nodes.lock().unwrap());
        for node in nodes {
            node.stop(Duration::ZERO);
        }
        self.one.stop(Duration::ZERO);
        self.carrier.take().unwrap().join().unwrap_or_default();
    }
}

/// Says what is not as it is on one node.
fn life(seed: u64, mistake: Option<Mistake>) -> Result<usize, String> {
    let mut world = World::new(seed, mistake);
    for step in 0..150 {
        world
            .step()
            .map_err(|wrong| format!("seed {seed}, step {step}: {wrong}"))?;
    }
    world
        .reads()
        .map_err(|wrong| format!("seed {seed}, in the end: {wrong}"))?;
    Ok(world.moved)
}

#[test]
fn three_nodes_answer_as_one_does_while_shards_change_hands() {
    let mut moved = 0;
    for seed in 0..20 {
        moved += life(seed, None).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    assert!(moved > 500, "{moved}");
}

#[test]
fn every_mistake_on_the_way_between_nodes_is_found() {
    for mistake in MISTAKES {
        let found = (0..20).find_map(|seed| life(seed, Some(mistake)).err());
        assert!(found.is_some(), "{mistake:?} was not found");
    }
}
