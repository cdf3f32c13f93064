//! Whoever keeps an old snapshot of the database is named, whether or not the server says since when.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use countwheel_durable::store::Store;
use countwheel_durable::{Shards, TroubleReason};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresOptions, PostgresStore};

/// Longer than the store lets between two looks at the server.
const BETWEEN: Duration = Duration::from_millis(5_500);

const NONE: Vec<String> = Vec::new();

/// A session of somebody else that keeps a snapshot until it is ended.
struct Keeper(Child);

impl Keeper {
    fn start(server: &Server, statement: &str) -> Self {
        let mut psql: Command = server.psql(statement);
        psql.stdout(Stdio::null()).stderr(Stdio::null());
        Self(psql.spawn().expect("it comes with the server"))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _status = self.0.wait();
    }
}

fn details(store: &PostgresStore) -> Vec<String> {
    store.reach().expect("it is there");
    let troubles = store.troubles().into_iter();
    let old = troubles.filter(|one| one.reason == TroubleReason::OldSnapshot);
    old.map(|one| one.detail).collect()
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn an_old_snapshot_is_said_with_who_keeps_it() {
    let settings = [
        "max_prepared_transactions=4",
        "max_wal_senders=4",
        "wal_receiver_status_interval=1",
    ];
    let server = Server::start(&settings).expect("the stage has installed it");
    let mut options = server.fresh();
    options.snapshots_within = Duration::from_secs(3);
    PostgresStore::make(&options, Shards::ONE).expect("a fresh schema");
    let role = "CREATE ROLE timers LOGIN; GRANT USAGE ON SCHEMA \"@\" TO timers; \
                GRANT ALL ON ALL TABLES IN SCHEMA \"@\" TO timers";
    let role = role.replace('@', &options.schema);
    server.execute(&role).expect("we may");
    let mut low: PostgresOptions = options.clone();
    low.url = low.url.replace("postgres@", "timers@");
    let [high, low] = [&options, &low].map(|options| {
        let store = PostgresStore::open(options);
        store.expect("there is a cluster")
    });
    let both = || [&high, &low].map(details);
    assert_eq!(high.oldest_snapshot(), None, "nobody has asked");
    assert_eq!(both(), [NONE; 2]);
    assert!(
        high.oldest_snapshot()
            .is_some_and(|age| age < Duration::from_secs(3))
    );

    let sleeps = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1; SELECT pg_sleep(120)";
    let session = Keeper::start(&server, sleeps);
    super::wait(BETWEEN);
    let [seen, _too_early] = both();
    let is_named = seen.len() == 1 && seen[0].contains(" of postgres has kept a snapshot");
    assert!(is_named && !seen[0].contains("counted"), "{seen:?}");
    super::wait(BETWEEN);
    let [seen, hidden] = both();
    assert!(
        high.oldest_snapshot()
            .is_some_and(|age| age > BETWEEN + BETWEEN / 2),
        "{seen:?}"
    );
    let is_named = hidden.len() == 1 && hidden[0].contains(" of postgres has kept a snapshot");
    let is_said = is_named && hidden[0].contains("counted from when this process noticed it");
    assert!(
        is_said,
        "the user of that store has no rights on other sessions: {hidden:?}"
    );
    println!("{}\n{}", seen[0], hidden[0]);
    // The server does not see that its client is gone while it sleeps.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'psql' \
               AND pid <> pg_backend_pid()";
    server.execute(end).expect("we may");
    drop(session);
    super::wait(BETWEEN);
    assert_eq!(both(), [NONE; 2]);

    let prepared = "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'";
    server.execute(prepared).expect("we may");
    super::wait(BETWEEN);
    for seen in both() {
        let is_named = seen.len() == 1 && seen[0].starts_with("prepared transaction forgotten ");
        assert!(is_named, "everybody sees it: {seen:?}");
    }
    server
        .execute("ROLLBACK PREPARED 'forgotten'")
        .expect("we may");
    super::wait(BETWEEN);
    assert_eq!(both(), [NONE; 2]);
}
