//! A commit whose connection is cut at any byte is made once or not at all, and its caller knows which.

use std::time::Duration;

use countwheel_durable::store::conformance::varied_records;
use countwheel_durable::store::{Change, Shard, Store, StoreError};
use countwheel_durable::{Record, Revision, Shards};
use countwheel_postgres::conformance::{Cut, Proxy};
use countwheel_postgres::{PostgresOptions, PostgresStore};

/// As many as a store opens, or more.
const CONNECTIONS: usize = 16;

fn four() -> Shards {
    Shards::new(4).expect("from 1 to 1024")
}

fn numbered(number: u64, payload: u8) -> Record {
    let mut record = varied_records().swap_remove(1);
    record.revision = Revision(number);
    record.payload = vec![payload; 20];
    record
}

/// Says how many cuts were made.
fn cuts(make: impl Fn(u64) -> Cut, bytes: impl Fn((u64, u64)) -> u64) -> u64 {
    let server = super::server();
    let proxy = Proxy::start(server.port()).expect("a port");
    let mut options: PostgresOptions = server.fresh();
    PostgresStore::make(&options, four()).expect("a fresh schema");
    let direct = PostgresStore::open(&options).expect("there is a cluster");
    options.url = server.url_at(proxy.port());
    options.lanes = 1;
    options.readers = 1;
    options.exchange_within = Duration::from_secs(5);
    let store = PostgresStore::open(&options).expect("there is a cluster");
    let lease = store.acquire(Shard::ONLY).expect("it is free").lease;
    let mut number = 1;
    let mut commit = |cut: Option<Cut>| {
        number += 1;
        let record = numbered(number, u8::try_from(number % 251).unwrap_or(0));
        let kept = record.clone();
        if let Some(cut) = cut {
            proxy.cut(cut);
        } else {
            proxy.cut(Cut::Sent(u64::MAX));
        }
        let put = [Change::put(record)];
        let mut committed = store.commit(lease, &put);
        if let Err(StoreError::Unavailable { .. }) = &committed {
            // Nothing was done, for certain.
            let found = direct
                .get(Shard::ONLY, &kept.name)
                .expect("the server is there");
            assert_ne!(found.as_ref(), Some(&kept), "after {cut:?}");
            committed = store.commit(lease, &put);
        }
        assert!(committed.is_ok(), "{cut:?}: {committed:?}");
        let passed = proxy.passed();
        let was_cut = cut.is_some() && proxy.take_cut().is_none();
        let found = direct
            .get(Shard::ONLY, &kept.name)
            .expect("the server is there");
        assert_eq!(found, Some(kept), "after {cut:?}");
        (passed, was_cut)
    };
    commit(None);
    let (passed, _) = commit(None);
    let all = bytes(passed);
    assert!(all > 50, "an exchange has {all} bytes");
    let mut made = 0;
    for at in 1..=all {
        let (_, was_cut) = commit(Some(make(at)));
        made += u64::from(was_cut);
    }
    // Of those that are kept, each commit is one turn; one that was found after a lost answer has an
    // empty turn behind it.
    let kept = format!(
        "SELECT count(*) FILTER (WHERE writes > 0), min(seq), max(seq) FROM \"{}\".turn WHERE shard = 0",
        options.schema
    );
    let kept = server.execute(&kept).expect("it is there");
    let kept: Vec<i64> = kept
        .trim()
        .split('|')
        .map(|text| text.parse().expect("a number"))
        .collect();
    println!("{number} commits, {made} cuts, turns {kept:?}");
    let commits = i64::try_from(number - 1).expect("a few");
    match kept[..] {
        [with_changes, 0, _] => assert_eq!(with_changes, commits, "each is one turn"),
        // Turns before are pruned.
        [_, _, last] => assert!((commits..=2 * commits).contains(&last), "{last}"),
        _ => panic!("{kept:?}"),
    }
    made
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_commit_whose_sending_is_cut_is_made_once() {
    let made = cuts(Cut::Sent, |(sent, _)| sent);
    assert!(made > 500, "{made} cuts");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_commit_whose_answer_is_cut_is_made_once() {
    let made = cuts(Cut::Answered, |(_, answered)| answered);
    assert!(made > 50, "{made} cuts");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_server_that_is_away_refuses_what_was_not_sent() {
    let server = super::server();
    let proxy = Proxy::start(server.port()).expect("a port");
    let mut options = server.fresh();
    PostgresStore::make(&options, four()).expect("a fresh schema");
    options.url = server.url_at(proxy.port());
    let store = PostgresStore::open(&options).expect("there is a cluster");
    let lease = store.acquire(Shard::ONLY).expect("it is free").lease;
    let put = || [Change::put(numbered(2, 1))];
    proxy.refuse(true);
    let away = PostgresStore::open(&options).expect_err("nobody answers");
    assert!(away.to_string().contains("cannot be reached"), "{away}");
    // Each cut ends one of the connections that are there, until it is that of the lane.
    let refused = (0..CONNECTIONS).find_map(|_| {
        proxy.cut(Cut::Sent(0));
        store.acquire(Shard(1)).err()
    });
    assert!(
        matches!(refused, Some(StoreError::Unavailable { .. })),
        "{refused:?}"
    );
    proxy.refuse(false);
    store.commit(lease, &put()).expect("the server is back");
}
