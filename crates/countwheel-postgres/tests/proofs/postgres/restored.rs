//! Tables that are brought back from a backup: nothing that was given after it is given again, its timers fire,
//! and a node that has lived through it says what is lost.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_cluster::{Registry, RegistryError};
use countwheel_durable::store::{Change, Lease, Shard, Store, StoreError};
use countwheel_durable::{
    Attempt, AttemptResult, Completion, Config, Handler, Outcome, Revision, Shards, StateKind,
    SystemClock, TimerName, Timers, TroubleReason,
};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore};

use super::nodes::node;

/// How far revisions go on at least, whatever was given after the backup.
const AHEAD: u64 = 1 << 40;
/// Longer than a proof lasts.
const LONG: Duration = Duration::from_secs(600);
const TABLES: [&str; 9] = [
    "meta", "shard", "node", "turn", "setting", "loss", "counts", "timer", "done",
];

/// The tables of a schema as they were.
struct Backup {
    schema: String,
}

impl Backup {
    fn make(server: &Server, options: &PostgresOptions) -> Self {
        let backup = Self {
            schema: options.schema.clone(),
        };
        let mut text = format!("CREATE SCHEMA {};", backup.of());
        for table in TABLES {
            let (from, of) = (&backup.schema, backup.of());
            text += &format!("CREATE TABLE {of}.{table} AS TABLE {from}.{table};");
        }
        // One snapshot for all of them, as a dump has.
        let whole = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {text} COMMIT");
        server.execute(&whole).expect("the server is there");
        backup
    }

    fn of(&self) -> String {
        format!("{}_backup", self.schema)
    }

    fn restore(&self, server: &Server) {
        let (into, of) = (&self.schema, self.of());
        let mut text = String::new();
        for table in TABLES {
            text += &format!("TRUNCATE {into}.{table};");
            text += &format!("INSERT INTO {into}.{table} SELECT * FROM {of}.{table};");
        }
        server.execute(&text).expect("the server is there");
    }
}

/// What was delivered. The first attempt of a timer whose key is `stuck` does not end.
#[derive(Clone, Default)]
struct Told {
    attempts: Arc<Mutex<Vec<Attempt>>>,
    held: Arc<Mutex<Vec<Completion>>>,
}

impl Handler for Told {
    fn start(&self, attempt: Attempt, done: Completion) {
        let is_stuck = attempt.name.key.as_str() == "stuck" && attempt.number == 1;
        self.attempts.lock().expect("nobody panics").push(attempt);
        match is_stuck {
            true => self.held.lock().expect("nobody panics").push(done),
            false => done.complete(Outcome::done()),
        }
    }
}

impl Told {
    fn count(&self, prefix: &str) -> usize {
        let attempts = self.attempts.lock().expect("nobody panics");
        let keys = attempts.iter().map(|it| it.name.key.as_str());
        let keys: BTreeSet<_> = keys.filter(|key| key.starts_with(prefix)).collect();
        keys.len()
    }

    fn fences(&self) -> impl Iterator<Item = u64> + use<> {
        let attempts = self.attempts.lock().expect("nobody panics");
        let fences: Vec<_> = attempts.iter().map(|it| it.fence.0).collect();
        fences.into_iter()
    }
}

fn open(options: &PostgresOptions, told: &Told) -> Timers {
    let store = PostgresStore::open(options).expect("there is a cluster");
    let (shards, clock) = (store.shards(), Arc::new(SystemClock::new()));
    let config = Config::default();
    let opened = Timers::open_divided(store, shards, shards.all(), told.clone(), clock, config);
    opened.expect("they are free")
}

fn settle(what: &str, is_so: impl Fn() -> bool) {
    let seen = (0..200).any(|_| {
        is_so() || {
            super::wait(Duration::from_millis(50));
            false
        }
    });
    assert!(seen, "{what}");
}

fn name(key: &str, number: usize) -> TimerName {
    TimerName::new("restored", format!("{key}-{number}")).expect("a good name")
}

fn cluster(server: &Server) -> PostgresOptions {
    let options = server.fresh();
    PostgresStore::make(&options, Shards::new(4).expect("from 1 to 1024")).expect("a fresh schema");
    options
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn what_was_given_after_a_backup_is_not_given_again_and_its_timers_fire() {
    const KEPT: usize = 20;
    const LATER: usize = 60;
    let server = super::server();
    let options = cluster(&server);
    let told = Told::default();
    let timers = open(&options, &told);
    for number in 0..KEPT {
        let set = timers.set(name("kept", number), Duration::from_millis(700), "payload");
        set.expect("it is a good timer");
    }
    let stuck = TimerName::new("restored", "stuck").expect("a good name");
    timers
        .set(stuck.clone(), Duration::ZERO, "payload")
        .expect("it is a good timer");
    settle("it starts", || told.count("stuck") == 1);
    // Its claim is a commit before its start.
    let backup = Backup::make(&server, &options);

    let set = |timers: &Timers, key: &str| -> Vec<_> {
        let all = (0..LATER).map(|number| {
            let set = timers.set(name(key, number), LONG, "payload");
            set.expect("it is a good timer")
        });
        all.collect()
    };
    let given = set(&timers, "later");
    settle("all fire", || told.count("kept") == KEPT);
    timers.stop(Duration::ZERO);
    drop(timers);
    // Shards change hands.
    let timers = open(&options, &told);
    timers
        .set(name("fence", 0), Duration::ZERO, "payload")
        .expect("it is a good timer");
    settle("it fires", || told.count("fence") == 1);
    timers.stop(Duration::ZERO);
    drop(timers);
    let highest = told.fences().max().expect("some were made");
    told.attempts.lock().expect("nobody panics").clear();
    backup.restore(&server);

    // While a node lives nothing is changed, and the node is named.
    let store = PostgresStore::open(&options).expect("there is a cluster");
    let registry = store.registry();
    registry.join(&node(1, "one"), LONG).expect("it is free");
    let fence = format!("SELECT max(fence) FROM {}.shard", options.schema);
    let fence = || server.execute(&fence).expect("the server is there");
    let before = fence();
    let refused = PostgresStore::restored(&options).expect_err("a node lives");
    let said = refused.to_string();
    assert!(
        said.contains("node one lives: its lease ends at 20"),
        "{said}"
    );
    assert!(!said.contains('\n'), "{said}");
    assert!(matches!(refused, PostgresError::NodeLives { .. }));
    assert_eq!(fence(), before);
    registry.leave().expect("it is there");
    drop(store);

    let restored = PostgresStore::restored(&options).expect("no node lives");
    assert_eq!((restored.shards, restored.nodes), (4, 0));
    // An answer that was lost is no reason not to ask again.
    let again = PostgresStore::restored(&options).expect("no node lives");
    assert_eq!(again, restored);

    let timers = open(&options, &told);
    settle("all fire again", || told.count("kept") == KEPT);
    settle("what ran is made again", || told.count("stuck") == 1);
    for number in 0..LATER {
        let found = timers.get(name("later", number)).expect("it answers");
        assert!(found.is_none(), "it was set after the backup");
    }
    let last = given.iter().map(|it| it.revision).max();
    let ids: BTreeSet<_> = given.iter().map(|it| it.id.to_string()).collect();
    for set in set(&timers, "new") {
        assert!(Some(set.revision) > last, "{set:?}");
        assert!(!ids.contains(&set.id.to_string()), "{set:?}");
    }
    for fence in told.fences() {
        assert!(fence > highest, "{fence}, and {highest} before");
    }
    let found = timers.get(&stuck).expect("it answers");
    let ended = found.expect("it is done").attempts;
    let ended: Vec<_> = ended
        .iter()
        .map(|it| (it.number, it.ended.as_ref().map(|end| end.result)))
        .collect();
    let expected = [
        (1, Some(AttemptResult::Interrupted)),
        (2, Some(AttemptResult::Done)),
    ];
    assert_eq!(ended, expected);
    let totals = timers.overview(0).expect("it answers").totals;
    let counted = [StateKind::Pending, StateKind::Delivering, StateKind::Done];
    let expected = [LATER as u64, 0, KEPT as u64 + 1];
    assert_eq!(counted.map(|kind| totals.of(kind)), expected);
    timers.stop(Duration::ZERO);
}

/// The timeline of the server has changed as well, as after a recovery to a point in time.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_server_that_is_recovered_to_a_point_in_time_gives_nothing_again() {
    let server = Server::start(&["max_wal_senders=4"]).expect("the stage has installed it");
    let mut options = cluster(&server);
    let store = PostgresStore::open(&options).expect("there is a cluster");
    let owned = store.acquire(Shard::ONLY).expect("it is free");
    commit(&store, owned.lease, 1).expect("it is owned");
    let mut recovered = server.standby(&[]).expect("a copy of a running server");
    recovered.crash(); // it hears no more
    commit(&store, owned.lease, 1 << 30).expect("it is owned");
    drop(store);

    recovered.go_on().expect("it comes up again");
    recovered.promote().expect("it is a standby");
    options.url = recovered.url();
    PostgresStore::restored(&options).expect("no node lives");
    let store = PostgresStore::open(&options).expect("there is a cluster");
    let again = store.acquire(Shard::ONLY).expect("it is free");
    assert!(again.last_revision.0 > AHEAD + (1 << 20), "{again:?}");
    assert!(
        again.lease.fence.0 > owned.lease.fence.0 + (1 << 32),
        "{again:?}"
    );
    commit(&store, again.lease, again.last_revision.0 + 1).expect("it is owned");
}

fn commit(store: &PostgresStore, lease: Lease, revision: u64) -> Result<(), StoreError> {
    store.commit(lease, &[Change::Given(Revision(revision))])
}

fn says_a_loss(store: &PostgresStore) -> bool {
    let troubles = store.troubles();
    let mut troubles = troubles.iter();
    troubles.any(|one| one.reason == TroubleReason::TailLost)
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_node_that_lives_through_a_restore_says_what_is_lost() {
    let server = super::server();
    for is_made_ready in [false, true] {
        let options = cluster(&server);
        let store = PostgresStore::open(&options).expect("there is a cluster");
        let registry = store.registry();
        registry.join(&node(1, "one"), LONG).expect("it is free");
        let lease = store.acquire(Shard::ONLY).expect("it is free").lease;
        commit(&store, lease, 1).expect("it is owned");
        let backup = Backup::make(&server, &options);
        commit(&store, lease, 2).expect("it is owned");
        commit(&store, lease, 3).expect("it is owned");
        backup.restore(&server);
        if is_made_ready {
            // It slept for longer than its lease: nobody could see that it lives.
            let over = "SET expires = clock_timestamp() - interval '1 second'";
            let over = format!("UPDATE {}.node {over}", options.schema);
            server.execute(&over).expect("the server is there");
            let restored = PostgresStore::restored(&options).expect("no lease lives");
            assert_eq!(restored.nodes, 1);
        }
        let said = commit(&store, lease, 4);
        match is_made_ready {
            false => assert!(matches!(said, Err(StoreError::Lost { .. })), "{said:?}"),
            true => assert!(matches!(said, Err(StoreError::Fenced { .. })), "{said:?}"),
        }
        assert!(says_a_loss(&store), "made ready: {is_made_ready}");
        let looked = registry.look(true);
        match is_made_ready {
            false => assert!(looked.is_ok(), "{looked:?}"),
            true => assert!(
                matches!(looked, Err(RegistryError::NotJoined)),
                "{looked:?}"
            ),
        }
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn tables_of_another_version_are_not_made_ready() {
    let server = super::server();
    let options = cluster(&server);
    let meta = format!("{}.meta", options.schema);
    for (version, least, said) in [(6, 3, "cluster upgrade"), (8, 5, "use a later program")] {
        let set = format!("UPDATE {meta} SET schema_version = {version}, min_version = {least}");
        server.execute(&set).expect("the server is there");
        let refused = PostgresStore::restored(&options).expect_err("it is another version");
        assert!(refused.to_string().contains(said), "{version}: {refused}");
        let fences = format!("SELECT max(fence) FROM {}.shard", options.schema);
        let fences = server.execute(&fences).expect("the server is there");
        assert_eq!(fences.trim(), "0");
    }
}
