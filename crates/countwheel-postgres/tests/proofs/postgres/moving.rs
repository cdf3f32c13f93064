//! Timers come into the tables of a cluster from elsewhere, whole or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_cluster::Registry;
use countwheel_durable::store::conformance::varied_records;
use countwheel_durable::store::{Change, ClockNote, Fence, Filter, Shard, Store, StoreError};
use countwheel_durable::{
    Record, Revision, SettingName, SettingValue, Settings, SettingsVersion, Shards, State,
    TimerName,
};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{
    Arrival, MoveEnd, MoveState, PostgresError, PostgresOptions, PostgresStore, Tried, settle_move,
    shown_url,
};
use countwheel_time::{Instant, Timestamp};

use super::nodes::node;
use super::server;

const LEASE: Duration = Duration::from_secs(60);

fn made(server: &Server, shards: u16) -> PostgresOptions {
    let options = server.fresh();
    let shards = Shards::new(shards).expect("a number").by_tag();
    PostgresStore::make(&options, shards).expect("an empty schema");
    options
}

/// Records of which none is past, each under a name and a revision of its own.
fn records() -> BTreeMap<TimerName, Record> {
    let records = varied_records().into_iter().zip(1..);
    let records = records.map(|(mut record, number)| {
        let queue = record.name.queue.as_str().to_owned();
        record.name = TimerName::new(&queue, format!("moved-{number}"))
            .or_else(|_| TimerName::new("moved", format!("moved-{number}")))
            .expect("a name");
        record.revision = Revision(number);
        if let State::Done { keep_until, .. } = &mut record.state {
            *keep_until = Timestamp::MAX;
        }
        (record.name.clone(), record)
    });
    records.collect()
}

fn end() -> MoveEnd {
    let value = SettingValue {
        version: SettingsVersion(3),
        value: b"hold".to_vec(),
    };
    let name = SettingName::new("drain/orders").expect("a name");
    MoveEnd {
        revision: Revision(1_000_000),
        fence: Fence(77),
        clock: Some(ClockNote {
            wall: Timestamp::from_micros(5),
            boot_id: None,
            boot: Instant::from_nanos(6),
            line: Timestamp::from_micros(7),
        }),
        settings: Settings::new(SettingsVersion(3), [(name, value)]),
    }
}

fn puts<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Change> {
    records.into_iter().cloned().map(Change::put).collect()
}

/// Everything that a store has, by its own reads.
fn held(store: &PostgresStore) -> BTreeMap<TimerName, Record> {
    let mut held = BTreeMap::new();
    for shard in store.shards().all() {
        for counts in store.counts(shard).expect("it is counted") {
            let filter = Filter {
                limit: 1_000,
                ..Filter::queue(counts.queue)
            };
            let page = store.list(shard, &filter).expect("a page");
            for record in page.records {
                assert_eq!(store.shards().of(&record.name), shard);
                let found = store.get(shard, &record.name).expect("it is read");
                assert_eq!(found.as_ref(), Some(&record));
                held.insert(record.name.clone(), record);
            }
        }
    }
    held
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn what_is_moved_is_there_once_the_move_is_decided_and_numbers_go_on_behind() {
    let server = server();
    let options = made(&server, 64);
    let mut arrival = Arrival::begin(&options, "a directory").expect("it has no timers");
    let mut lane = arrival.lane().expect("the server is there");
    let mut wanted = records();
    assert!(lane.write(&puts(wanted.values())).expect("it is there"));
    // What was changed meanwhile: one is gone, one is done, one that was done is not.
    let names: Vec<_> = wanted.keys().cloned().collect();
    let mut changes = vec![Change::remove(names[0].clone())];
    wanted.remove(&names[0]);
    for (at, record) in wanted.values_mut().enumerate() {
        record.revision.0 += 1_000;
        record.state = match record.state {
            State::Done { .. } => State::Pending,
            _ if at % 2 == 0 => State::Done {
                at: Timestamp::from_micros(1),
                keep_until: Timestamp::MAX,
            },
            _ => continue,
        };
    }
    changes.extend(puts(wanted.values()));
    for _ in 0..2 {
        // Twice is as once.
        assert!(lane.write(&changes).expect("it is there"));
    }
    assert_eq!(arrival.decide(&end()).expect("it is there"), Tried::Done);
    assert_eq!(arrival.state().expect("it is there"), MoveState::Decided);
    assert_eq!(arrival.decide(&end()).expect("it is there"), Tried::Refused);
    assert_eq!(arrival.give_up().expect("it is there"), Tried::Refused);
    // A statement that comes late.
    assert!(!lane.write(&puts(records().values())).expect("it is there"));

    let store = PostgresStore::open(&options).expect("it is a cluster");
    let end = end();
    for shard in store.shards().all() {
        let owned = store.acquire(shard).expect("it is free");
        assert!(owned.last_revision >= end.revision, "{owned:?}");
        assert!(owned.lease.fence > end.fence, "{owned:?}");
        assert_eq!(owned.clock, end.clock);
        let given = [Change::Given(Revision(end.revision.0 + 1))];
        store.commit(owned.lease, &given).expect("it goes on");
    }
    assert_eq!(held(&store), wanted);
    let settings = store.settings(SettingsVersion::default());
    assert_eq!(settings.expect("they are read"), Some(end.settings));
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn while_a_move_is_under_way_no_node_has_a_shard() {
    let server = server();
    let options = made(&server, 16);
    let node_of_target = PostgresStore::open(&options).expect("it is a cluster");
    let registry = node_of_target.registry();
    registry
        .join(&node(1, "a"), LEASE)
        .expect("it is the first");
    let before = node_of_target.acquire(Shard(3)).expect("it is free").lease;
    let given = |number| [Change::Given(Revision(number))];
    node_of_target
        .commit(before, &given(1))
        .expect("it is ours");

    let mut arrival = Arrival::begin(&options, "a directory").expect("it has no timers");
    // Who had a shard has it no more, and gets none.
    let refused = node_of_target.commit(before, &given(2));
    assert!(
        matches!(refused, Err(StoreError::Fenced { .. })),
        "{refused:?}"
    );
    let refused = node_of_target.acquire(Shard(4));
    assert!(
        matches!(refused, Err(StoreError::Unavailable { .. })),
        "{refused:?}"
    );
    assert_eq!(
        arrival.nodes().expect("it is there"),
        ["http://a.example:7700"]
    );
    assert!(arrival.beat().expect("it is there"));
    // The looks of nodes cut leases down that end too far ahead, and not that of the move.
    let seen = registry.look(true).expect("it has joined");
    let mut others = seen.members.iter().filter(|it| it.node.name != "a");
    let of_move = others.next().expect("it has the shards");
    assert!(of_move.expires > seen.now + Duration::from_secs(86_400));
    let seen = registry.look(true).expect("it has joined");
    assert!(seen.members.contains(of_move), "{seen:?}");
    assert_eq!(registry.take(&[Shard(5)]).expect("it answers"), []);
    // Nobody else moves anything meanwhile.
    let other = Arrival::begin(&options, "another directory");
    assert!(
        matches!(other, Err(PostgresError::Moving { .. })),
        "{other:?}"
    );

    let mut lane = arrival.lane().expect("it is there");
    assert!(lane.write(&puts(records().values())).expect("it is there"));
    assert_eq!(arrival.give_up().expect("it is there"), Tried::Done);
    assert!(!arrival.beat().expect("it is there"));
    assert!(!lane.write(&puts(records().values())).expect("it is there"));
    assert_eq!(arrival.decide(&end()).expect("it is there"), Tried::Refused);
    // The node goes on with empty tables.
    let lease = node_of_target.acquire(Shard(4)).expect("it is free").lease;
    assert!(held(&node_of_target).is_empty());
    node_of_target.commit(lease, &given(5)).expect("it is ours");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn what_a_move_left_that_ended_in_the_middle_is_removed_by_the_next() {
    let server = server();
    let options = made(&server, 16);
    let first = Arrival::begin(&options, "a directory").expect("it has no timers");
    let mut late = first.lane().expect("it is there");
    assert!(late.write(&puts(records().values())).expect("it is there"));
    let token = first.token();
    drop(first);
    let schema = &options.schema;
    let silent = format!("UPDATE {schema}.move SET seen = seen - interval '11 s'");
    server.execute(&silent).expect("the server is there");
    let mut second = Arrival::begin(&options, "a directory").expect("nobody hears of the first");
    assert!(!late.write(&puts(records().values())).expect("it is there"));
    assert_eq!(
        settle_move(&options, token).expect("it is there"),
        MoveState::GivenUp
    );
    assert_eq!(second.decide(&end()).expect("it is there"), Tried::Done);
    let token = second.token();
    assert_eq!(
        settle_move(&options, token).expect("it is there"),
        MoveState::Decided
    );
    let store = PostgresStore::open(&options).expect("it is a cluster");
    assert!(held(&store).is_empty());
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn tables_with_timers_take_no_others() {
    let server = server();
    let options = made(&server, 16);
    let store = PostgresStore::open(&options).expect("it is a cluster");
    let records = records();
    for record in records.values() {
        let lease = store
            .acquire(store.shards().of(&record.name))
            .expect("it is free");
        let put = [Change::put(record.clone())];
        store.commit(lease.lease, &put).expect("it is ours");
    }
    let refused = Arrival::begin(&options, "a directory");
    assert!(
        matches!(refused, Err(PostgresError::NotEmpty { .. })),
        "{refused:?}"
    );
    // Nothing was changed.
    assert_eq!(held(&store), records);
    let token = store.acquire(Shard(0)).expect("it is free").lease;
    store
        .commit(token, &[Change::Given(Revision(9))])
        .expect("it is ours");
}

#[test]
fn a_url_is_written_down_without_its_password() {
    let shown = |url: &str| {
        let options = PostgresOptions::new(url);
        shown_url(&options).expect("it is a URL")
    };
    let url = "postgres://timers:s%40cret@db-1,db-2:5433/ti%2Fmers?sslmode=require";
    assert_eq!(
        shown(url),
        "postgres://timers@db-1:5432,db-2:5433/ti%2Fmers?sslmode=require"
    );
    let url = "host=db user='a b' password=secret dbname=timers";
    assert_eq!(shown(url), "postgres://a%20b@db:5432/timers");
    assert_eq!(shown(&shown(url)), shown(url));
}
