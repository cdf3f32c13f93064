//! Tables of an earlier version become those of this one, also if that is interrupted at any step.

use std::path::Path;
use std::thread;
use std::time::Duration;

use countwheel_cluster::Registry;
use countwheel_durable::store::{Filter, Store};
use countwheel_durable::{QueueName, Record, Shards, StateKind, TimerName};
use countwheel_postgres::conformance::{Cut, Proxy};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore};

use super::nodes::node;
use super::{Pinned, wait};

/// So many steps lead from these tables of version 3 to version 4.
const TO_4: usize = 31;
const LEASE: Duration = Duration::from_secs(60);

/// The tables of version 1 as that version of the program left them, with eleven timers.
const VERSION_1: &str = "tests/proofs/postgres/version_1.sql";
/// The same of version 3.
const VERSION_3: &str = "tests/proofs/postgres/version_3.sql";

fn version_1(server: &Server) -> PostgresOptions {
    tables(server, VERSION_1, "version_one")
}

/// The same of version 3.
fn version_3(server: &Server) -> PostgresOptions {
    tables(server, VERSION_3, "version_three")
}

fn tables(server: &Server, dumped: &str, schema: &str) -> PostgresOptions {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(dumped);
    let tables = std::fs::read_to_string(path).expect("it is in the tree");
    let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
    server.execute(&drop).expect("the server is there");
    server.execute(&tables).expect("it was dumped so");
    let mut options = server.fresh();
    options.schema = schema.to_owned();
    options
}

/// What a store has after it was opened.
fn records(store: &PostgresStore) -> Vec<Record> {
    let queue = QueueName::new("default").expect("a name");
    let mut records = Vec::new();
    for shard in store.shards().all() {
        let page = store.list(shard, &Filter::queue(queue.clone()));
        records.extend(page.expect("the tables are whole").records);
    }
    records.sort_by(|one, other| one.name.cmp(&other.name));
    records
}

/// The tables are whole, and all timers are there.
fn is_whole(options: &PostgresOptions) {
    let store = PostgresStore::open(options).expect("they were upgraded");
    let kept = records(&store);
    let is_kept = |record: &&Record| record.state.kind() != StateKind::Done;
    assert_eq!(kept.iter().filter(is_kept).count(), 10);
    for number in 1..=8 {
        let name = TimerName::new("default", format!("order-{number}")).expect("a name");
        let record = kept.iter().find(|record| record.name == name);
        let record = record.expect("it was set");
        assert_eq!(record.state.kind(), StateKind::Pending);
        assert!(!record.payload.is_empty());
    }
    let is_dead = |record: &&Record| record.state.kind() == StateKind::Dead;
    assert_eq!(kept.iter().filter(is_dead).count(), 1);
    for shard in store.shards().all() {
        store.acquire(shard).expect("the tables are whole");
    }
}

const LISTS: &str = "done_queues valid\ntimer_fits with dead that wake\ntimer_queues valid";

/// The indexes of lists, and whether all of their parts are there; and what the rows of timers have to fit.
fn lists(server: &Server) -> String {
    let text = "SELECT c.relname || CASE WHEN i.indisvalid THEN ' valid' ELSE ' broken' END \
                FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
                JOIN pg_namespace n ON n.oid = c.relnamespace \
                WHERE n.nspname = 'version_one' AND (c.relname LIKE '%lists' \
                OR c.relname LIKE '%queues' AND (c.relkind = 'I' OR NOT i.indisvalid)) \
                UNION ALL SELECT k.conname || CASE \
                WHEN pg_get_constraintdef(k.oid) LIKE '%(wake IS NULL) OR (clock%' \
                THEN ' with dead that wake' ELSE '' END FROM pg_constraint k \
                JOIN pg_namespace n ON n.oid = k.connamespace \
                WHERE n.nspname = 'version_one' AND k.conname = 'timer_fits' AND k.coninhcount = 0 \
                ORDER BY 1";
    let lists = server.execute(text).expect("the server is there");
    lists.trim().to_owned()
}

/// Whether the program refuses tables that are not upgraded.
fn is_earlier(options: &PostgresOptions) -> bool {
    let opened = PostgresStore::open(options);
    matches!(opened, Err(PostgresError::EarlierSchema { .. }))
}

/// Upgrades once the server has noticed that whoever was at it has gone: a busy one needs a moment.
fn upgrade_alone(options: &PostgresOptions) -> (u32, u32) {
    for _ in 0..500 {
        match PostgresStore::upgrade(options) {
            Err(PostgresError::Unfit { found, .. }) if found.contains("another program") => {
                wait(Duration::from_millis(20));
            }
            upgraded => return upgraded.expect("it goes on"),
        }
    }
    panic!("another program is at it for 10 s");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn an_upgrade_that_is_interrupted_is_done_again() {
    let server = Server::start(&[]).expect("the stage has installed it");
    // Each step but of the indexes, whose parts are alike.
    const INDEXES: usize = 22;
    let mut interrupted = 0;
    loop {
        let options = version_1(&server);
        assert!(is_earlier(&options));
        let done = PostgresStore::upgrade_until(&options, interrupted, false);
        if done.is_ok() {
            is_whole(&options);
            assert_eq!(lists(&server), LISTS);
            break;
        }
        assert!(is_earlier(&options), "after {interrupted} steps");
        let (from, to) = upgrade_alone(&options);
        assert!(from < to);
        is_whole(&options);
        assert_eq!(lists(&server), LISTS);
        let again = upgrade_alone(&options);
        assert_eq!(again, (to, to));
        interrupted += if interrupted < INDEXES { 1 } else { 5 };
    }
    assert!(interrupted > INDEXES, "{interrupted} steps");

    // The proof finds a version that is written before the steps.
    let found = (1..interrupted).rev().any(|steps| {
        let options = version_1(&server);
        let upgraded = PostgresStore::upgrade_until(&options, steps, true);
        let is_refused = PostgresStore::open(&options).is_err();
        let is_broken = is_refused || lists(&server) != LISTS;
        upgraded.is_err() && !is_earlier(&options) && is_broken
    });
    assert!(found);
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn an_upgrade_whose_connection_is_cut_is_done_again() {
    let server = Server::start(&[]).expect("the stage has installed it");
    let proxy = Proxy::start(server.port()).expect("a port");
    let options = version_1(&server);
    let mut cut = options.clone();
    cut.url = server.url_at(proxy.port());
    proxy.cut(Cut::Sent(u64::MAX));
    PostgresStore::upgrade(&cut).expect("nothing is cut yet");
    let (sent, answered) = proxy.passed();
    for part in 0..8 {
        for plan in [
            Cut::Sent(sent * part / 8),
            Cut::Answered(answered * part / 8),
        ] {
            let options = version_1(&server);
            proxy.cut(plan);
            let upgraded = PostgresStore::upgrade(&cut);
            proxy.take_cut();
            if upgraded.is_err() && !is_earlier(&options) {
                // The answer of its last step was lost.
                is_whole(&options);
            }
            let again = (0..50).find_map(|_| PostgresStore::upgrade(&options).ok());
            assert!(again.is_some(), "the session of before holds its lock");
            is_whole(&options);
        }
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn an_upgrade_waits_for_a_lock_and_two_are_not_made_at_once() {
    let server = Server::start(&[]).expect("the stage has installed it");
    let options = version_1(&server);
    thread::scope(|scope| {
        let held = "BEGIN; LOCK TABLE version_one.shard; SELECT pg_sleep(3); COMMIT";
        let holder = scope.spawn(|| server.execute(held));
        let upgrading = scope.spawn(|| PostgresStore::upgrade(&options));
        holder.join().expect("no panic").expect("it ends by itself");
        let upgraded = upgrading.join().expect("no panic");
        upgraded.expect("it tries again until the lock is free");
    });
    is_whole(&options);
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn an_index_is_made_while_timers_are_set_and_again_if_it_was_interrupted() {
    let server = Server::start(&[]).expect("the stage has installed it");
    let options = version_1(&server);
    let run = |text: &str| server.execute(text).expect("the server is there");
    run(
        "CREATE INDEX timer_3_queues ON version_one.timer_3 (shard, queue, due, revision) \
         WHERE queue >= ''; \
         UPDATE pg_index SET indisvalid = false \
         WHERE indexrelid = 'version_one.timer_3_queues'::regclass",
    );
    assert!(lists(&server).contains("timer_3_queues broken"));
    let pinned = Pinned::start(&server);
    thread::scope(|scope| {
        let upgrading = scope.spawn(|| PostgresStore::upgrade(&options));
        let is_waiting = "SELECT count(*) FROM pg_stat_progress_create_index \
                          WHERE phase LIKE 'waiting for%' AND lockers_total > 0";
        while run(is_waiting).trim() != "1" {
            assert!(!upgrading.is_finished(), "{:?}", upgrading.join());
            wait(Duration::from_millis(20));
        }
        // Nobody waits for the index, which waits for the snapshot.
        run(
            "SET lock_timeout = '500ms'; UPDATE version_one.timer SET due = due; \
             ROLLBACK",
        );
        drop(pinned);
        let upgraded = upgrading.join().expect("no panic");
        upgraded.expect("the snapshot ended");
    });
    assert_eq!(lists(&server), LISTS);
    is_whole(&options);
}

/// The version of the tables, and the earliest program that may use them.
fn versions(server: &Server, options: &PostgresOptions) -> String {
    let schema = &options.schema;
    let text = format!("SELECT schema_version, min_version FROM {schema}.meta");
    let versions = server.execute(&text).expect("the server is there");
    versions.trim().to_owned()
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_cluster_of_before_gets_nodes_and_keeps_its_routing() {
    let server = Server::start(&[]).expect("the stage has installed it");
    let at_4 = |steps: usize| {
        let options = version_3(&server);
        let upgraded = PostgresStore::upgrade_until(&options, steps, false);
        (options, upgraded)
    };
    let (options, _) = at_4(TO_4);
    assert_eq!(versions(&server, &options), "4|3");
    let mut interrupted = 0;
    loop {
        let (options, upgraded) = at_4(TO_4 + interrupted);
        if upgraded.is_ok() {
            break;
        }
        assert!(is_earlier(&options), "after {interrupted} steps");
        let upgraded = PostgresStore::upgrade(&options).expect("it goes on");
        assert!(matches!(upgraded, (4..=6, 7)), "{upgraded:?}");
        // A program of version 4 may go on: the tokens are the same, and so is the shard of each timer.
        assert_eq!(versions(&server, &options), "7|3");
        is_whole(&options);
        let store = PostgresStore::open(&options).expect("it was upgraded");
        assert!(!store.shards().is_by_tag());
        let registry = store.registry();
        let joined = registry.join(&node(1, "one"), LEASE).expect("it is there");
        assert_eq!(joined.members.len(), 1);
        for shard in store.shards().all() {
            store.acquire(shard).expect("its owner has no lease");
        }
        interrupted += 1;
    }
    assert!(interrupted > 3, "{interrupted} steps");

    let fresh = server.fresh();
    let shards = Shards::new(8).expect("from 1 to 1024");
    PostgresStore::make(&fresh, shards).expect("a fresh schema");
    assert_eq!(versions(&server, &fresh), "7|5");
    let store = PostgresStore::open(&fresh).expect("there is a cluster");
    assert!(store.shards().is_by_tag());
}
