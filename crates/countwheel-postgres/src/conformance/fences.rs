//! Who was replaced writes nothing, what is under way is waited for, and what was lost is noticed.
//! Each mistake that could break it is planted, and found.

use std::thread;
use std::time::Duration;

use countwheel_durable::store::conformance::varied_records;
use countwheel_durable::store::{Before, Change, Commit, Shard, Store, StoreError};
use countwheel_durable::{Record, Revision, TimerName};

use super::{Fresh, Mistake, Proxy};
use crate::{PostgresOptions, PostgresStore};

/// How long what is late is on its way.
const LATE: Duration = Duration::from_millis(600);

/// A cluster of its own, with a proxy before it.
pub(super) struct Scene {
    proxy: Proxy,
    options: PostgresOptions,
    mistake: Option<Mistake>,
    /// Behind the proxy, with the mistake if there is one.
    store: PostgresStore,
}

impl Scene {
    fn new(fresh: &Fresh, mistake: Option<Mistake>) -> Self {
        let options = fresh.make(4);
        let proxy = Proxy::before(&options).expect("the server has an address of TCP");
        let mut behind = options.clone();
        (behind.through, behind.lanes) = (Some(proxy.port()), 1);
        Self {
            store: open(&behind, mistake),
            mistake,
            proxy,
            options,
        }
    }

    /// Another node.
    fn other(&self) -> PostgresStore {
        PostgresStore::open(&self.options).expect("there is a cluster")
    }

    fn execute(&self, statement: &str) {
        let statement = statement.replace('@', &format!("\"{}\".", self.options.schema));
        super::execute(&self.options, &statement).expect("the server takes it");
    }
}

fn open(options: &PostgresOptions, mistake: Option<Mistake>) -> PostgresStore {
    match mistake {
        Some(mistake) => PostgresStore::open_with(options, mistake),
        None => PostgresStore::open(options),
    }
    .expect("there is a cluster")
}

fn numbered(number: u64) -> Record {
    let mut record = varied_records().swap_remove(1);
    record.revision = Revision(number);
    record.payload = vec![u8::try_from(number % 251).unwrap_or(0); 20];
    record
}

fn put(number: u64) -> [Change; 1] {
    [Change::put(numbered(number))]
}

/// The same of a timer that is there: nothing is read before.
fn put_again(number: u64) -> [Change; 1] {
    let record = Box::new(numbered(number));
    let before = Before::Present(record.state.kind());
    [Change::Put { record, before }]
}

fn name() -> TimerName {
    numbered(1).name
}

pub(super) type Held = Result<(), String>;

fn require(holds: bool, what: &str) -> Held {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// A commit that is on its way while its shard is taken changes nothing.
fn a_late_commit_of_a_replaced_owner(scene: &Scene) -> Held {
    let shard = Shard::ONLY;
    let lease = scene.store.acquire(shard).expect("it is free").lease;
    scene.store.commit(lease, &put(1)).expect("it is owned");
    let other = scene.other();
    thread::scope(|scope| {
        scene.proxy.delay(LATE);
        let late = scope.spawn(|| scene.store.commit(lease, &put(2)));
        // It is with the proxy.
        wait(LATE / 2);
        let taken = other.acquire(shard).expect("it can be taken").lease;
        scene.proxy.delay(Duration::ZERO);
        let late = late.join().expect("no panic");
        let found = other.get(shard, &name()).expect("the server is there");
        require(
            found == Some(numbered(1)),
            "the late commit changed a timer",
        )?;
        let is_fenced = matches!(late, Err(StoreError::Fenced { .. }));
        require(is_fenced, "the late commit was not refused")?;
        other
            .commit(taken, &put(3))
            .map_err(|error| error.to_string())
    })
}

/// A new owner waits for the commit that is under way, and sees it.
fn a_commit_under_way_when_its_shard_is_taken(scene: &Scene) -> Held {
    scene.execute(
        "CREATE FUNCTION @slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(0.6); RETURN NEW; END'; \
         CREATE TRIGGER slow BEFORE INSERT ON @timer FOR EACH ROW EXECUTE FUNCTION @slow()",
    );
    let shard = Shard::ONLY;
    let lease = scene.store.acquire(shard).expect("it is free").lease;
    let other = scene.other();
    thread::scope(|scope| {
        let slow = scope.spawn(|| scene.store.commit(lease, &put(7)));
        wait(LATE / 2);
        let taken = other.acquire(shard).expect("it can be taken");
        let slow = slow.join().expect("no panic");
        let found = other.get(shard, &name()).expect("the server is there");
        let is_there = found.is_some();
        require(slow.is_ok() == is_there, "the answer is not what was done")?;
        let is_seen = taken.last_revision == Revision(7);
        require(is_there == is_seen, "the new owner did not see the commit")
    })
}

/// A commit that was given up and sent again is not done a second time when the first comes.
fn a_commit_that_comes_after_its_repetition(scene: &Scene) -> Held {
    let mut behind = scene.options.clone();
    (behind.through, behind.lanes) = (Some(scene.proxy.port()), 1);
    behind.exchange_within = LATE / 2;
    let shard = Shard::ONLY;
    let store = &open(&behind, scene.mistake);
    let lease = store.acquire(shard).expect("it is free").lease;
    store.commit(lease, &put(1)).expect("it is owned");
    thread::scope(|scope| {
        scene.proxy.delay(2 * LATE);
        let repeated = scope.spawn(|| store.commit(lease, &put_again(2)));
        wait(LATE / 6);
        scene.proxy.delay(Duration::ZERO);
        repeated
            .join()
            .expect("no panic")
            .map_err(|error| error.to_string())?;
        store
            .commit(lease, &put_again(3))
            .map_err(|error| error.to_string())?;
        wait(3 * LATE);
        let found = store
            .get(shard, &name())
            .map_err(|error| error.to_string())?;
        require(
            found == Some(numbered(3)),
            "the first sending came after all",
        )
    })
}

/// Commits that the server has forgotten are noticed by the next one.
fn a_lost_tail(scene: &Scene) -> Held {
    let shard = Shard::ONLY;
    let lease = scene.store.acquire(shard).expect("it is free").lease;
    for number in 1..=3 {
        scene
            .store
            .commit(lease, &put(number))
            .expect("it is owned");
    }
    scene.execute("DELETE FROM @turn WHERE shard = 0 AND seq > 1; DELETE FROM @timer");
    let next = scene.store.commit(lease, &put(4));
    let is_noticed =
        matches!(&next, Err(StoreError::Lost { reason, .. }) if reason.contains("turn 3"));
    require(
        is_noticed,
        &format!("the lost commits are passed over: {next:?}"),
    )
}

/// Of two shards in one statement, the one that was taken is refused and the other is not.
fn a_shard_that_is_refused_beside_another(scene: &Scene) -> Held {
    let shards = [Shard(0), Shard(1)];
    let leases = shards.map(|shard| scene.store.acquire(shard).expect("it is free").lease);
    let taken = scene.other().acquire(shards[0]).expect("it can be taken");
    let changes = [put(1), put(2)];
    let commits = [0, 1].map(|i| Commit {
        lease: leases[i],
        changes: &changes[i],
    });
    let results = scene.store.commit_all(&commits);
    let is_right = matches!(results[..], [Err(StoreError::Fenced { .. }), Ok(())]);
    require(is_right, &format!("{results:?}"))?;
    let found = shards.map(|shard| scene.store.get(shard, &name()).expect("it is there"));
    require(found == [None, Some(numbered(2))], "not what was answered")?;
    require(taken.last_revision == Revision(0), "the new owner is wrong")
}

pub(super) type Check = fn(&Scene) -> Held;

pub(super) const CHECKS: [(&str, Check); 5] = [
    (
        "a late commit of a replaced owner",
        a_late_commit_of_a_replaced_owner,
    ),
    (
        "a commit under way when its shard is taken",
        a_commit_under_way_when_its_shard_is_taken,
    ),
    (
        "a commit that comes after its repetition",
        a_commit_that_comes_after_its_repetition,
    ),
    ("a lost tail", a_lost_tail),
    (
        "a shard that is refused beside another",
        a_shard_that_is_refused_beside_another,
    ),
];

#[expect(
    clippy::disallowed_methods,
    reason = "what is on its way is waited for in real time"
)]
fn wait(span: Duration) {
    thread::sleep(span);
}

/// Checks a fence by its number; with a mistake, to see whether it is found.
pub(super) fn check(number: usize, fresh: &Fresh, mistake: Option<Mistake>) -> Held {
    let (_, check) = CHECKS[number];
    check(&Scene::new(fresh, mistake))
}
