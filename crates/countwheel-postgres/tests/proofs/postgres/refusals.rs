//! A start that is refused takes nothing from the owner that works.

use countwheel_durable::Shards;
use countwheel_durable::store::conformance::varied_records;
use countwheel_durable::store::{Change, Durability, Shard, Store};
use countwheel_postgres::testing::Server;
use countwheel_postgres::{PostgresError, PostgresOptions, PostgresStore};

/// What is done to the server before the start, and with which options it is made then.
type Case = (
    &'static str,
    &'static [&'static str],
    fn(&mut PostgresOptions),
);

const CASES: [Case; 9] = [
    (
        "connections",
        &[
            "CREATE ROLE few LOGIN CONNECTION LIMIT 4",
            "GRANT USAGE ON SCHEMA \"@\" TO few",
            "GRANT ALL ON ALL TABLES IN SCHEMA \"@\" TO few",
        ],
        |options| {
            options.url = options.url.replace("postgres@", "few@");
        },
    ),
    (
        "rights",
        &[
            "CREATE ROLE reader LOGIN",
            "GRANT USAGE ON SCHEMA \"@\" TO reader",
            "GRANT SELECT ON ALL TABLES IN SCHEMA \"@\" TO reader",
        ],
        |options| {
            options.url = options.url.replace("postgres@", "reader@");
        },
    ),
    (
        "no rights at all",
        &["CREATE ROLE nobody LOGIN"],
        |options| {
            options.url = options.url.replace("postgres@", "nobody@");
        },
    ),
    ("read only", &[], |options| {
        options.url += "?options=-c%20default_transaction_read_only%3Don";
    }),
    ("a lazy commit", &[], |options| {
        options.url += "?options=-c%20synchronous_commit%3Doff";
    }),
    ("no standby", &[], |options| options.require_standby = true),
    (
        "a later schema",
        &["UPDATE \"@\".meta SET schema_version = 99"],
        |_| {},
    ),
    (
        "a partition is gone",
        &[
            "UPDATE \"@\".meta SET schema_version = 1",
            "ALTER TABLE \"@\".timer DETACH PARTITION \"@\".timer_3",
        ],
        |_| {},
    ),
    ("no schema", &[], |options| {
        options.schema = "elsewhere".to_owned();
    }),
];

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_start_that_is_refused_takes_no_shard() {
    // Roles are of the whole server.
    let server = Server::start(&[]).expect("the stage has installed it");
    let options = server.fresh();
    let shards = Shards::new(4).expect("from 1 to 1024");
    PostgresStore::make(&options, shards).expect("a fresh schema");
    let store = PostgresStore::open(&options).expect("there is a cluster");
    let leases: Vec<_> = shards
        .all()
        .map(|shard| store.acquire(shard).expect("it is free").lease)
        .collect();
    assert_eq!(store.durability(), Some(Durability::OneMachine));
    let mut record = varied_records().swap_remove(1);
    for (what, statements, change) in CASES {
        for statement in statements {
            let statement = statement.replace('@', &options.schema);
            server.execute(&statement).expect(what);
        }
        let mut refused = options.clone();
        change(&mut refused);
        let error = PostgresStore::open(&refused).expect_err(what);
        println!("{what}: {error}");
        let is_one_line = !error.to_string().contains('\n');
        assert!(is_one_line, "{what}: {error}");
        let is_known = !matches!(error, PostgresError::System { .. });
        assert!(is_known, "{what}: {error}");
        for lease in leases.iter().filter(|lease| lease.shard != Shard(3)) {
            record.revision.0 += 1;
            let committed = store.commit(*lease, &[Change::put(record.clone())]);
            assert!(committed.is_ok(), "{what}: {committed:?}");
        }
    }
}
