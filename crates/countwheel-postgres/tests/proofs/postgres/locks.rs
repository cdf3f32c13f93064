//! Somebody locks a table by hand.

use std::thread;
use std::time::Duration;

use countwheel_durable::store::{Shard, Store, StoreError};
use countwheel_durable::{Shards, TimerName};
use countwheel_postgres::PostgresStore;
use countwheel_time::{Clock, SystemClock};

/// More than there are connections that read.
const READS: usize = 6;
const SOON: Duration = Duration::from_secs(4);
const AT_ONCE: Duration = Duration::from_millis(500);

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_table_that_is_locked_is_a_store_that_is_away() {
    let server = super::server();
    let options = server.fresh();
    PostgresStore::make(&options, Shards::ONE).expect("a fresh schema");
    let store = PostgresStore::open(&options).expect("there is a cluster");
    store.acquire(Shard::ONLY).expect("it is free");
    let name = TimerName::new("q", "key").expect("a name");
    let clock = SystemClock::new();
    let eventually = |what: &str, is_so: &dyn Fn() -> bool| {
        let until = clock.now() + SOON;
        while !is_so() {
            assert!(clock.now() < until, "{what}");
            super::wait(Duration::from_millis(50));
        }
    };
    let held = format!(
        "BEGIN; LOCK TABLE {}.timer IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(5); COMMIT",
        options.schema
    );
    thread::scope(|scope| {
        let holder = scope.spawn(|| server.execute(&held));
        super::wait(AT_ONCE);
        for _ in 0..READS {
            scope.spawn(|| store.get(Shard::ONLY, &name));
        }
        eventually("it is said", &|| {
            matches!(store.reach(), Err(StoreError::Unavailable { .. }))
        });
        assert!(store.stuck(Shard::ONLY).is_some());
        let asked = clock.now();
        let refused = store.get(Shard::ONLY, &name);
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })));
        assert!(clock.now().saturating_since(asked) < AT_ONCE);
        holder.join().expect("no panic").expect("it ends by itself");
    });
    eventually("it is there again", &|| store.reach().is_ok());
    let found = store.get(Shard::ONLY, &name);
    assert_eq!(found.expect("the lock is gone"), None);
}
