//! A start that is refused takes nothing from the owner that works.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

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

const CASES: [Case; 10] = [
    (
        "connections",
        &[
            "CREATE ROLE few LOGIN CONNECTION LIMIT 11",
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
        "no right to empty a table",
        &[
            "CREATE ROLE keeper LOGIN",
            "GRANT USAGE ON SCHEMA \"@\" TO keeper",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"@\" TO keeper",
        ],
        |options| {
            options.url = options.url.replace("postgres@", "keeper@");
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
        &[
            "UPDATE \"@\".meta SET schema_version = schema_version + 1, min_version = schema_version + 1",
        ],
        |_| {},
    ),
    (
        "a partition is gone",
        &[
            "UPDATE \"@\".meta SET min_version = schema_version - 1",
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
        let names = error
            .to_string()
            .contains("a node needs 12: raise max_connections");
        assert_eq!(names, what == "connections", "{what}: {error}");
        let is_known = !matches!(error, PostgresError::System { .. });
        assert!(is_known, "{what}: {error}");
        for lease in leases.iter().filter(|lease| lease.shard != Shard(3)) {
            record.revision.0 += 1;
            let committed = store.commit(*lease, &[Change::put(record.clone())]);
            assert!(committed.is_ok(), "{what}: {committed:?}");
        }
    }
}

/// Who is let in how; the first line that fits counts.
const RULES: &str = "\
host all postgres 127.0.0.1/32 trust
host all stranger 127.0.0.1/32 trust
host all barred 127.0.0.1/32 reject
hostssl all encrypted 127.0.0.1/32 trust
host all timers,nobody 127.0.0.1/32 scram-sha-256
";

/// What is said of a way in that fails, for a server at `@`.
const WAYS: [(&str, &str); 10] = [
    (
        "postgres://stranger@@/postgres",
        "the database server has no role \"stranger\": make it there, or name another in the URL",
    ),
    (
        "postgres://timers:wrong@@/postgres",
        "the password of role \"timers\" is wrong, or the database server has no such role",
    ),
    (
        "postgres://nobody:wrong@@/postgres",
        "the password of role \"nobody\" is wrong, or the database server has no such role",
    ),
    (
        "postgres://timers@@/postgres",
        "the database server asks for the password of role \"timers\", and the URL has none",
    ),
    (
        "postgres://postgres@@/absent",
        "the server has no database \"absent\": make it there (createdb), or name another in the URL",
    ),
    (
        "postgres://postgres@@/postgres?sslmode=require",
        "the database server has no TLS: turn ssl on there, or leave out --store-ca and \
         sslmode=require",
    ),
    (
        "postgres://barred@@/postgres",
        "the database server does not admit this connection: pg_hba.conf rejects connection",
    ),
    (
        "postgres://encrypted@@/postgres",
        "the database server does not admit this connection: no pg_hba.conf entry",
    ),
    (
        "postgres://postgres@127.0.0.1:1/postgres",
        "the database cannot be reached: nobody listens at 127.0.0.1:1 (Connection refused",
    ),
    (
        "postgres://postgres@nowhere.invalid/postgres",
        "the database cannot be reached: no address is known of nowhere.invalid:5432 (failed to lookup",
    ),
];

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn each_way_in_that_fails_has_a_line_of_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let rules = directory.path().join("rules");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("it is ours");
    fs::write(&rules, RULES).expect("it is ours");
    let setting = format!("hba_file={}", rules.display());
    let server = Server::start(&[&setting]).expect("the stage has installed it");
    let role = "CREATE ROLE timers LOGIN PASSWORD 'right'";
    server.execute(role).expect("it is there");
    PostgresStore::make(&server.fresh(), Shards::ONE).expect("a fresh schema");
    let place = format!("127.0.0.1:{}", server.port());
    for (way, line) in WAYS {
        let url = match way.split_once("@@") {
            Some((user, rest)) => format!("{user}@{place}{rest}"),
            None => way.to_owned(),
        };
        let mut options = server.fresh();
        options.url = url;
        let refused = PostgresStore::open(&options).expect_err(way).to_string();
        println!("{way}: {refused}");
        assert!(refused.starts_with(line), "{way}: {refused}");
        assert!(!refused.contains('\n'), "{way}: {refused}");
        let made = PostgresStore::make(&options, Shards::ONE).expect_err(way);
        assert_eq!(made.to_string(), refused, "{way}");
        let told = PostgresStore::acknowledge_losses(&options).expect_err(way);
        assert_eq!(told.to_string(), refused, "{way}");
    }
}
