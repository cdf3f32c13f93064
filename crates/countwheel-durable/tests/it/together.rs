//! Turns of several shards that are committed together.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use countwheel_durable::store::{Change, Commit, Lease, MemoryStore, Shard, Store, StoreError};
use countwheel_durable::{
    Attempt, Config, Due, Health, Outcome, Precondition, Request, Response, RetryPolicy,
    SetOptions, Shards, TimerError, TimerName, Timers,
};
use countwheel_time::SystemClock;

use crate::support::forward::forward;

const SHARDS: u16 = 8;
const PATIENCE: Duration = Duration::from_secs(20);

/// What the next commits come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Works,
    Waits,
    Panics,
}

/// A memory store whose commits can be held back, and that notes which are made together.
#[derive(Clone)]
struct Gate {
    inner: MemoryStore,
    lanes: usize,
    changes_together: usize,
    mood: Arc<(Mutex<Mood>, Condvar)>,
    made: Arc<Mutex<Vec<Vec<Shard>>>>,
}

impl Gate {
    fn new() -> Self {
        Self {
            inner: MemoryStore::new(1),
            lanes: 1,
            changes_together: usize::MAX,
            mood: Arc::new((Mutex::new(Mood::Works), Condvar::new())),
            made: Arc::default(),
        }
    }

    fn is(&self, mood: Mood) {
        *self.mood.0.lock().unwrap() = mood;
        self.mood.1.notify_all();
    }

    /// A commit for these shards has come.
    fn enter(&self, shards: Vec<Shard>) {
        self.made.lock().unwrap().push(shards);
        let mood = self.mood.0.lock().unwrap();
        let waits = |mood: &mut Mood| *mood == Mood::Waits;
        let mood = *self.mood.1.wait_while(mood, waits).unwrap();
        assert!(mood != Mood::Panics, "the store panics");
    }

    /// Waits until so many commits have come.
    fn wait_for(&self, commits: usize) {
        let clock = SystemClock::new();
        let until = countwheel_time::Clock::now(&clock) + PATIENCE;
        while self.made.lock().unwrap().len() < commits {
            assert!(
                countwheel_time::Clock::now(&clock) < until,
                "no commit comes"
            );
            std::thread::yield_now();
        }
    }
}

impl Store for Gate {
    forward!(inner: acquire, settings, get, due, list, counts);

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn changes_together(&self) -> usize {
        self.changes_together
    }

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.enter(vec![lease.shard]);
        self.inner.commit(lease, changes)
    }

    fn commit_all(&self, commits: &[Commit<'_>]) -> Vec<Result<(), StoreError>> {
        self.enter(commits.iter().map(|commit| commit.lease.shard).collect());
        self.inner.commit_all(commits)
    }
}

fn open(gate: &Gate) -> Timers {
    let shards = Shards::new(SHARDS).unwrap();
    let handler = |_: &Attempt| Outcome::done();
    let (clock, config) = (Arc::new(SystemClock::new()), Config::default());
    Timers::open_divided(gate.clone(), shards, shards.all(), handler, clock, config).unwrap()
}

type Answers = mpsc::Receiver<Result<Response, TimerError>>;

/// Sets a timer in each of these shards, and does not wait.
fn set_in(timers: &Timers, wanted: impl IntoIterator<Item = u16>) -> Vec<Answers> {
    let each = wanted.into_iter().map(|shard| {
        let mut names = (0..).map(|i| TimerName::new("orders", format!("{shard}-{i}")).unwrap());
        let name = names.find(|name| timers.shards().of(name) == Shard(shard));
        let (send, receive) = mpsc::channel();
        let set = Request::Set {
            name: name.unwrap(),
            due: Due::In(Duration::from_secs(3_600)),
            policy: RetryPolicy::default(),
            payload: vec![],
            options: SetOptions::default(),
            precondition: Precondition::None,
        };
        timers.submit(set, move |answer| send.send(answer).unwrap());
        receive
    });
    each.collect()
}

/// Waits until the turn of each of these shards but the first is begun.
fn queue_up(gate: &Gate, timers: &Timers) -> Vec<Answers> {
    gate.made.lock().unwrap().clear();
    gate.is(Mood::Waits);
    let mut answers = set_in(timers, [0]);
    gate.wait_for(1);
    answers.extend(set_in(timers, 1..SHARDS));
    answers
}

/// Lets all commits be made, waits for the answers, and says what was committed together.
fn let_go(gate: &Gate, answers: Vec<Answers>) -> Vec<Vec<Shard>> {
    gate.is(Mood::Works);
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    gate.made.lock().unwrap().clone()
}

#[test]
fn what_comes_during_a_commit_is_committed_together() {
    let gate = Gate::new();
    let timers = open(&gate);
    // How many have begun their turns meanwhile is up to the machine: at last it is all of them.
    for _ in 0..10_000 {
        let answers = queue_up(&gate, &timers);
        for _ in 0..100 {
            std::thread::yield_now();
        }
        let made = let_go(&gate, answers);
        let all: Vec<_> = made.iter().flatten().copied().collect();
        assert_eq!(
            all.iter().collect::<BTreeSet<_>>().len(),
            usize::from(SHARDS)
        );
        assert_eq!(all.len(), usize::from(SHARDS), "each once: {made:?}");
        if made.len() == 2 {
            assert_eq!(made[0], [Shard(0)]);
            return;
        }
    }
    panic!("seven shards are never committed together");
}

#[test]
fn a_store_that_panics_leaves_nobody_waiting() {
    let gate = Gate::new();
    let timers = open(&gate);
    let answers = queue_up(&gate, &timers);
    gate.is(Mood::Panics);
    for answer in answers {
        let answer = answer.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(answer, Err(TimerError::Unknown(_))), "{answer:?}");
    }
    assert!(matches!(timers.health(), Health::Failed(_)));
}

#[test]
fn an_owner_that_was_replaced_takes_no_other_shard_with_it() {
    let gate = Gate::new();
    let timers = open(&gate);
    let answers = queue_up(&gate, &timers);
    gate.inner.acquire(Shard(5)).unwrap();
    gate.is(Mood::Works);
    for (shard, answer) in answers.into_iter().enumerate() {
        let answer = answer.recv_timeout(PATIENCE).unwrap();
        assert_eq!(answer.is_err(), shard == 5, "of shard {shard}: {answer:?}");
    }
    for answer in set_in(&timers, 0..SHARDS) {
        let answer = answer.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(
            answer,
            Ok(_) | Err(TimerError::NotOwned { shard: Shard(5) })
        ));
    }
}

#[test]
fn a_commit_of_one_lane_waits_for_none_of_another() {
    let gate = Gate {
        lanes: 2,
        ..Gate::new()
    };
    let timers = open(&gate);
    gate.made.lock().unwrap().clear();
    gate.is(Mood::Waits);
    let mut answers = set_in(&timers, [0]);
    gate.wait_for(1);
    answers.extend(set_in(&timers, [1]));
    gate.wait_for(2);
    answers.extend(set_in(&timers, 2..SHARDS));
    let made = let_go(&gate, answers);
    assert_eq!(made[..2], [[Shard(0)], [Shard(1)]]);
    for together in &made {
        let lane = together[0].0 % 2;
        assert!(together.iter().all(|it| it.0 % 2 == lane), "{made:?}");
    }
}

#[test]
fn no_more_turns_are_committed_together_than_the_store_likes() {
    let gate = Gate {
        changes_together: 4, // each set has a note of the clocks beside it at the most
        ..Gate::new()
    };
    let timers = open(&gate);
    let mut most = 0;
    for _ in 0..1_000 {
        let answers = queue_up(&gate, &timers);
        for _ in 0..100 {
            std::thread::yield_now();
        }
        let made = let_go(&gate, answers);
        let all: BTreeSet<_> = made.iter().flatten().copied().collect();
        assert_eq!(all.len(), usize::from(SHARDS), "{made:?}");
        let largest = made.iter().map(Vec::len).max();
        most = most.max(largest.unwrap_or(0));
        assert!(most <= 4, "{made:?}");
    }
    assert!(most > 1, "none are committed together");
}
