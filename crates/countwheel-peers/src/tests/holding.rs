//! Who is asked, and again, while nobody takes a question: no socket, and a clock moved by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::Shard;
use countwheel_durable::{Asked, Request, Response, TimerError, TimerName, Was};
use countwheel_time::{Clock, ManualClock};
use parking_lot::Mutex;

use crate::forwarder::Inner;
use crate::frame::Encoded;
use crate::server::Asked as Questions;
use crate::{Here, Owners, PeersConfig};

pub(super) const ME: NodeId = NodeId(1);
const SHARD: Shard = Shard(3);

/// A map that is changed by hand.
#[derive(Default)]
pub(super) struct Map {
    owned: Mutex<(u64, Owned)>,
    /// Happens once somebody has looked up an owner, and has not used it yet.
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

type Owned = BTreeMap<Shard, (NodeId, String)>;

impl Map {
    pub(super) fn give(&self, shard: Shard, owner: Option<(NodeId, &str)>) {
        let mut map = self.owned.lock();
        map.0 += 1;
        match owner {
            Some((owner, address)) => {
                map.1.insert(shard, (owner, address.to_owned()));
            }
            None => {
                map.1.remove(&shard);
            }
        }
    }
}

impl Owners for Map {
    fn owner(&self, shard: Shard) -> Option<(NodeId, String)> {
        let owner = self.owned.lock().1.get(&shard).cloned();
        let then = self.then.lock().take();
        if let Some(then) = then {
            then();
        }
        owner
    }

    fn version(&self) -> u64 {
        self.owned.lock().0
    }
}

/// Timers that answer as a test wants it.
pub(super) struct Answers<F>(pub(super) F);

impl<F: Fn(Shard, Asked) + Send + Sync> Here for Answers<F> {
    fn ask(&self, shard: Shard, asked: Asked) {
        (self.0)(shard, asked);
    }
}

pub(super) fn fire(key: &str) -> Request {
    Request::Fire {
        name: TimerName::new("orders", key).unwrap(),
    }
}

pub(super) type Answer = Result<Response, TimerError>;

pub(super) fn asked(key: &str) -> (Asked, Receiver<Answer>) {
    let (send, answer) = channel();
    let asked = Asked::one(fire(key), move |answer| send.send(answer).unwrap());
    (asked, answer)
}

struct World {
    inner: Arc<Inner>,
    map: Arc<Map>,
    clock: Arc<ManualClock>,
    here: Arc<Mutex<Vec<Asked>>>,
}

fn world(config: PeersConfig) -> World {
    let (map, clock) = (Arc::new(Map::default()), Arc::new(ManualClock::new()));
    let here: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let took = Arc::clone(&here);
    let timers = Answers(move |_, asked| took.lock().push(asked));
    let (owners, time) = (Arc::clone(&map), Arc::clone(&clock));
    World {
        inner: Inner::new(config, owners, Arc::new(timers), time, None),
        map,
        clock,
        here,
    }
}

impl World {
    fn new() -> Self {
        world(PeersConfig::new(7, ME))
    }

    fn later(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
        self.inner.look();
    }

    fn ask(&self, key: &str) -> Receiver<Answer> {
        let (asked, answer) = asked(key);
        self.inner.ask(SHARD, asked);
        answer
    }

    fn waiting(&self) -> u64 {
        self.inner.counts().waiting
    }
}

fn is_not_done(answer: &Receiver<Answer>) -> bool {
    matches!(answer.try_recv(), Ok(Err(TimerError::ShardUnavailable { shard })) if shard == SHARD)
}

#[test]
fn a_frame_that_may_be_old_ends_the_connection() {
    what_came_before_a_stop_is_not_done();
}

/// How long a process was stopped nobody tells it but its clock.
pub(super) fn what_came_before_a_stop_is_not_done() {
    let world = World::new();
    let (going, _leaving) = tokio::sync::mpsc::unbounded_channel();
    let questions = Questions::new(Arc::clone(&world.inner), NodeId(2), going);
    let mut before = world.clock.boot();
    world.clock.advance(Duration::from_secs(5));
    assert!(!questions.was_stopped(&mut before));
    world.clock.suspend(Duration::from_micros(5_000_001));
    assert!(questions.was_stopped(&mut before));
    // The next connection begins anew.
    assert!(!questions.was_stopped(&mut before));
}

#[test]
fn a_question_without_an_owner_is_held_until_its_deadline() {
    what_nobody_takes_ends_at_its_deadline();
}

pub(super) fn what_nobody_takes_ends_at_its_deadline() {
    let world = World::new();
    let answer = world.ask("a");
    world.later(14_999);
    assert!(answer.try_recv().is_err());
    assert_eq!(world.waiting(), 1);
    world.later(1);
    assert!(is_not_done(&answer));
    let counts = world.inner.counts();
    assert_eq!(
        (counts.waiting, counts.unavailable, counts.unknown),
        (0, 1, 0)
    );

    // The same if there is an owner, and no way to it.
    world.map.give(SHARD, Some((NodeId(2), "127.0.0.1:1")));
    let answer = world.ask("b");
    world.later(14_999);
    assert!(answer.try_recv().is_err());
    world.later(1);
    assert!(is_not_done(&answer));
}

#[test]
fn what_waits_for_one_owner_goes_to_the_next() {
    let world = World::new();
    let answer = world.ask("a");
    assert_eq!(world.inner.counts().held, 1);
    world.map.give(SHARD, Some((NodeId(2), "127.0.0.1:1")));
    world.later(50);
    // It waits for a connection to node 2 now, which is gone: node 1 has its shard.
    assert_eq!((world.waiting(), world.here.lock().len()), (1, 0));
    world.map.give(SHARD, Some((ME, "")));
    world.later(1);
    let asked = world.here.lock().pop().expect("it is asked here");
    assert_eq!(asked.requests(), [fire("a")]);
    // It has not taken it yet.
    asked.refuse(TimerError::NotOwned { shard: SHARD });
    world.later(49);
    assert!(world.here.lock().is_empty());
    world.later(1);
    let asked = world.here.lock().pop().expect("it is asked again");
    asked.answer(Ok(vec![Response::Removed(Was::Dead)]));
    let answer = answer.try_recv().unwrap().unwrap();
    assert_eq!(answer, Response::Removed(Was::Dead));
    assert_eq!(world.waiting(), 0);
}

#[test]
fn what_comes_to_an_owner_that_was_just_replaced_goes_to_the_next() {
    what_comes_late_is_looked_at_again();
}

pub(super) fn what_comes_late_is_looked_at_again() {
    let world = World::new();
    world.map.give(SHARD, Some((NodeId(2), "127.0.0.1:1")));
    let (map, inner) = (Arc::clone(&world.map), Arc::clone(&world.inner));
    // Between the look at the map and the way into the outbox of node 2.
    *world.map.then.lock() = Some(Box::new(move || {
        map.give(SHARD, Some((ME, "")));
        inner.look();
    }));
    let answer = world.ask("a");
    world.later(20);
    let asked = world.here.lock().pop().expect("it is asked here");
    asked.answer(Ok(vec![Response::Removed(Was::Dead)]));
    assert!(answer.try_recv().unwrap().is_ok());
}

#[test]
fn an_error_of_the_timers_here_is_the_answer() {
    let world = World::new();
    world.map.give(SHARD, Some((ME, "")));
    let answer = world.ask("a");
    world.later(50);
    let asked = world.here.lock().pop().unwrap();
    asked.refuse(TimerError::NotFound);
    assert!(matches!(answer.try_recv(), Ok(Err(TimerError::NotFound))));
}

#[test]
fn a_batch_is_asked_as_one() {
    let world = World::new();
    world.map.give(SHARD, Some((ME, "")));
    let (send, answer) = channel();
    let requests = vec![fire("a"), fire("b")];
    let asked = Asked::batch(requests.clone(), move |answer| send.send(answer).unwrap());
    world.inner.ask(SHARD, asked);
    assert_eq!(world.waiting(), 2);
    world.later(50);
    let asked = world.here.lock().pop().unwrap();
    assert!(asked.is_batch());
    assert_eq!(asked.requests(), requests);
    asked.answer(Ok(vec![Response::Removed(Was::Dead); 2]));
    assert_eq!(answer.try_recv().unwrap().unwrap().len(), 2);
}

#[test]
fn more_than_may_wait_is_refused_at_once() {
    let world = world(PeersConfig {
        max_waiting: 2,
        ..PeersConfig::new(7, ME)
    });
    let answers = ["a", "b", "c"].map(|key| world.ask(key));
    assert!(answers[0].try_recv().is_err() && answers[1].try_recv().is_err());
    assert!(is_not_done(&answers[2]));
    world.map.give(SHARD, Some((NodeId(2), "127.0.0.1:1")));
    world.later(50);
    assert!(is_not_done(&world.ask("d")), "the same for a peer");

    let long = world_of_bytes();
    assert!(is_not_done(&long.ask(&"k".repeat(200))));
    assert!(long.ask("k").try_recv().is_err(), "there is room for this");
}

fn world_of_bytes() -> World {
    world(PeersConfig {
        max_waiting_bytes: 100,
        ..PeersConfig::new(7, ME)
    })
}

#[test]
fn a_stop_ends_what_waits_and_takes_no_more() {
    let world = World::new();
    let held = world.ask("a");
    world.map.give(SHARD, Some((NodeId(2), "127.0.0.1:1")));
    let waits = world.ask("b");
    world.inner.stop();
    assert!(is_not_done(&held) && is_not_done(&waits));
    assert!(is_not_done(&world.ask("c")));
    assert_eq!(world.waiting(), 0);
}

#[test]
fn what_is_too_long_for_a_frame_is_refused() {
    let world = World::new();
    let payload = |bytes: usize| Request::Set {
        name: TimerName::new("orders", "a").unwrap(),
        due: countwheel_durable::Due::In(Duration::ZERO),
        policy: countwheel_durable::RetryPolicy::default(),
        payload: vec![0; bytes],
        precondition: countwheel_durable::Precondition::None,
        options: countwheel_durable::SetOptions::default(),
    };
    let (send, answers) = channel();
    let tell = send.clone();
    let one = Asked::one(payload(24 << 20), move |answer| {
        tell.send(answer.unwrap_err()).unwrap();
    });
    world.inner.ask(SHARD, one);
    assert!(matches!(
        answers.try_recv(),
        Ok(TimerError::PayloadTooLarge { .. })
    ));
    let several = vec![payload(8 << 20), payload(8 << 20), payload(8 << 20)];
    let batch = Asked::batch(several, move |answer| {
        send.send(answer.unwrap_err().error).unwrap();
    });
    world.inner.ask(SHARD, batch);
    assert!(matches!(
        answers.try_recv(),
        Ok(TimerError::BatchTooLong { .. })
    ));
}

#[test]
fn a_question_is_sent_on_once() {
    what_came_over_two_hops_goes_no_further();
}

pub(super) fn what_came_over_two_hops_goes_no_further() {
    let world = World::new();
    let (from, owner) = (NodeId(2), NodeId(3));
    world.map.give(SHARD, Some((owner, "127.0.0.1:1")));
    let send_on = |hops| {
        let (send, told) = channel();
        let what = Encoded::of(&[fire("a")], false).unwrap();
        let deadline = world.clock.now() + Duration::from_secs(10);
        let tell = Box::new(move |answer: Option<_>| send.send(answer.is_some()).unwrap());
        world.inner.send_on(SHARD, what, deadline, hops, from, tell);
        told
    };
    let third = send_on(2);
    assert_eq!(third.try_recv(), Ok(false), "it would be a third hop");
    assert_eq!((world.waiting(), world.inner.counts().hops_refused), (0, 1));

    let second = send_on(1);
    assert_eq!(world.waiting(), 1);
    assert!(second.try_recv().is_err());
    // The asker has time left for another node.
    world.later(5_000);
    assert_eq!(second.try_recv(), Ok(false));

    // Not back to who asks, and not to itself.
    for owner in [Some((from, "127.0.0.1:1")), Some((ME, "")), None] {
        world.map.give(SHARD, owner);
        assert_eq!(send_on(1).try_recv(), Ok(false));
    }
    assert_eq!(world.inner.counts().hops_refused, 1);
}

#[test]
fn a_peer_that_nothing_is_asked_of_is_forgotten() {
    let world = World::new();
    world.map.give(SHARD, Some((NodeId(2), "127.0.0.1:1")));
    let first = world.ask("a");
    world.later(59_999);
    assert!(is_not_done(&first));
    world.later(1);
    let again = world.ask("b");
    assert_eq!(world.waiting(), 1);
    world.later(15_000);
    assert!(is_not_done(&again));
}
