//! Done records are forgotten by the table, and none before its time.

use std::time::Duration;

use countwheel_durable::store::conformance::varied_records;
use countwheel_durable::store::{Change, Filter, Lease, Shard, Store};
use countwheel_durable::{Record, Revision, Shards, State, StateKind, TimerName};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore};
use countwheel_time::{Clock, SystemClock, Timestamp};

use super::wait;

/// For how long records may be kept: seven slices.
const LONGEST: Duration = Duration::from_millis(1_400);
const SLICE: Duration = Duration::from_millis(200);
/// Far more than two slices, on a machine that has other work.
const AT_LAST: Duration = Duration::from_secs(20);

struct Tested {
    server: std::sync::Arc<Server>,
    options: PostgresOptions,
    store: PostgresStore,
    lease: Lease,
}

impl Tested {
    fn new() -> Self {
        let server = super::server();
        let mut options = server.fresh();
        options.keep_done = LONGEST;
        PostgresStore::make(&options, Shards::ONE).expect("a fresh schema");
        let store = PostgresStore::open(&options).expect("there is a cluster");
        let lease = store.acquire(Shard::ONLY).expect("it is free").lease;
        Self {
            server,
            options,
            store,
            lease,
        }
    }

    fn put(&self, records: impl IntoIterator<Item = Record>) {
        let changes: Vec<_> = records.into_iter().map(Change::put).collect();
        let committed = self.store.commit(self.lease, &changes);
        committed.expect("it is owned");
    }

    fn get(&self, record: &Record) -> Option<Record> {
        let found = self.store.get(Shard::ONLY, &record.name);
        found.expect("the server is there")
    }

    fn counted(&self) -> u64 {
        let counts = self.store.counts(Shard::ONLY).expect("it is owned");
        counts.iter().map(|queue| queue.of(StateKind::Done)).sum()
    }

    /// A number that the server is asked for.
    fn number(&self, question: &str) -> i64 {
        let question = question.replace('@', &format!("\"{}\".", self.options.schema));
        let answer = self.server.execute(&question).expect("it is there");
        answer.trim().parse().expect("a number")
    }

    /// How many bytes the tables of the ring have.
    fn bytes(&self) -> i64 {
        self.number(
            "SELECT coalesce(sum(pg_relation_size(inhrelid)), 0) FROM pg_inherits \
             WHERE inhparent = '@done'::regclass",
        )
    }

    fn eventually(&self, what: &str, is_so: impl Fn() -> bool) {
        let clock = SystemClock::new();
        let began = clock.now();
        while !is_so() {
            let waited = clock.now().saturating_since(began);
            assert!(waited < AT_LAST, "{what}: {} bytes", self.bytes());
            wait(SLICE / 4);
        }
    }
}

fn now() -> Timestamp {
    SystemClock::new().timestamp()
}

fn done(number: u64, kept: Duration) -> Record {
    let at = now();
    let mut record = varied_records().swap_remove(1);
    record.name = TimerName::from_text("q", &format!("{number}")).expect("a good name");
    record.revision = Revision(number);
    record.payload = vec![7; 3_000];
    record.state = State::Done {
        at,
        keep_until: at + kept,
    };
    record
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn done_timers_are_forgotten_by_the_table() {
    let tested = Tested::new();
    let records: Vec<_> = (1..=40).map(|number| done(number, LONGEST)).collect();
    tested.put(records.clone());
    for record in &records {
        assert_eq!(tested.get(record).as_ref(), Some(record));
    }
    let listed = tested
        .store
        .list(Shard::ONLY, &Filter::try_from("q").expect("a name"));
    assert_eq!(listed.expect("the server is there").records.len(), 40);
    assert_eq!(tested.counted(), 40);
    // One that is set anew leaves the ring.
    let mut again = records[0].clone();
    (again.revision, again.state) = (Revision(50), State::Pending);
    tested.put([again.clone()]);
    assert_eq!(tested.counted(), 39);
    assert!(tested.bytes() > 0);
    tested.eventually("the tables are emptied", || tested.bytes() == 0);
    assert_eq!(tested.counted(), 0);
    assert_eq!(tested.get(&again), Some(again));
    assert_eq!(tested.get(&records[1]), None);
    let counted = tested.number("SELECT count(*) FROM @timer");
    assert_eq!(counted, 1);
}

/// A clock that was set ahead once leaves records that are kept for long, in tables whose slices come again.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_table_with_a_record_that_is_kept_still_is_not_emptied() {
    let tested = Tested::new();
    let far = done(1, 9 * 1_000 * SLICE);
    let near: Vec<_> = (2..=30).map(|number| done(number, LONGEST)).collect();
    tested.put([far.clone()]);
    tested.put(near.clone());
    // All in one table, whatever the time is.
    let moved = "WITH moved AS (UPDATE @done d SET slot = f.slot, \
                   keep_until = f.keep_until - 9 * 1000 * m.done_slice \
                 FROM @done f, @meta m WHERE f.key = '1' AND d.key <> '1' RETURNING 1) \
                 SELECT count(*) FROM moved";
    assert_eq!(tested.number(moved), 29);
    tested.eventually("what is past is removed", || {
        tested.number("SELECT count(*) FROM @done") == 1
    });
    assert_eq!(tested.get(&far), Some(far));
    assert_eq!(tested.get(&near[0]), None);
}

/// Who reads a table for long holds up its emptying, and no commit for longer than a moment.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_table_that_is_read_is_emptied_later() {
    let tested = Tested::new();
    tested.put((1..=9).map(|number| done(number, LONGEST)));
    std::thread::scope(|scope| {
        let reads = format!(
            "BEGIN; LOCK TABLE \"{}\".done IN ACCESS SHARE MODE; SELECT pg_sleep(4); COMMIT",
            tested.options.schema
        );
        let server = &tested.server;
        let reader = scope.spawn(move || server.execute(&reads));
        wait(LONGEST + 4 * SLICE);
        assert!(tested.bytes() > 0, "it was emptied under a reader");
        tested.put([done(10, SLICE)]);
        reader.join().expect("no panic").expect("it is done");
    });
    tested.eventually("it is emptied later", || tested.bytes() == 0);
}

/// As a program without the ring has left them.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn done_timers_outside_of_the_ring_are_forgotten() {
    let tested = Tested::new();
    let (near, far) = (done(1, LONGEST), done(2, 1_000 * LONGEST));
    tested.put([near.clone(), far.clone()]);
    let moved = "WITH moved AS (DELETE FROM @done RETURNING *), outside AS ( \
                   INSERT INTO @timer (revision, due, wake, shard, clock, state, hash, queue, key, body, \
                     payload) \
                   SELECT revision, due, keep_until, shard, 'w', 'd', hash, queue, key, body, payload \
                   FROM moved RETURNING 1) SELECT count(*) FROM outside";
    assert_eq!(tested.number(moved), 2);
    assert_eq!(tested.get(&near).as_ref(), Some(&near));
    tested.eventually("it is removed", || tested.get(&near).is_none());
    // Counts fall once the slice is over.
    wait(SLICE);
    assert_eq!(tested.get(&far).as_ref(), Some(&far));
    // Who opens the shard next counts those as well.
    let next = PostgresStore::open(&tested.options).expect("there is a cluster");
    let lease = next.acquire(Shard::ONLY).expect("it can be taken").lease;
    let counts = next.counts(Shard::ONLY).expect("it is owned");
    assert_eq!(counts[0].of(StateKind::Done), 1);
    let mut again = far.clone();
    (again.revision, again.state) = (Revision(9), State::Pending);
    let changes = [Change::put(again.clone())];
    next.commit(lease, &changes).expect("it is owned");
    let counts = next.counts(Shard::ONLY).expect("it is owned");
    assert_eq!(counts[0].of(StateKind::Done), 0);
    let found = next.get(Shard::ONLY, &far.name).expect("it is there");
    assert_eq!(found, Some(again));
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_program_that_keeps_done_timers_for_longer_is_refused() {
    let tested = Tested::new();
    let mut options = tested.options.clone();
    options.keep_done = LONGEST + Duration::from_millis(1);
    let refused = PostgresStore::open(&options).expect_err("it is too long");
    println!("{refused}");
    let is_it = matches!(refused, PostgresError::KeptTooLong { longest, .. } if longest == LONGEST);
    assert!(is_it && !refused.to_string().contains('\n'), "{refused}");
    options.keep_done = Duration::ZERO;
    drop(PostgresStore::open(&options).expect("less is kept in it as well"));
}
