//! The database has no room: sets are refused, nothing that was acknowledged is lost, and the service
//! goes on by itself once there is room.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;
use std::time::Duration;

use countwheel_postgres::testing;
use serde_json::{Value, json};

use crate::harness::caller::Caller;
use crate::harness::mounts::{Mounted, run};
use crate::harness::process::{Launch, Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, Random, now_us, temporary, turn, wait, wait_until};

/// How much room the tables have: some hundred timers' worth.
const ROOM: u64 = 16 << 20;
/// How long the body of a timer is that fills them.
const BODY: usize = 60_000;
/// So many timers are due while there is no room.
const DUE: u64 = 40;

/// A tablespace on a file system of its own that every table of a new cluster is in.
fn small(database: &testing::Server, path: &std::path::Path) -> Mounted {
    let mounted = Mounted::memory(path, ROOM);
    let place = path.join("tables");
    std::fs::create_dir(&place).unwrap();
    if let Some((user, group)) = testing::Server::user().unwrap() {
        chown(&place, Some(user), Some(group)).unwrap();
    }
    let make = format!("CREATE TABLESPACE small LOCATION '{}'", place.display());
    database.execute(&make).unwrap();
    let set = "ALTER DATABASE postgres SET default_tablespace = small";
    database.execute(set).unwrap();
    mounted
}

fn put(caller: &mut Caller, key: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v1/queues/default/timers/{key}");
    let reply = caller.ask("PUT", &path, Some(body)).expect("it answers");
    (reply.status, reply.body["code"].clone())
}

fn remove(caller: &mut Caller, key: &str) -> u16 {
    let path = format!("/v1/queues/default/timers/{key}");
    caller
        .ask("DELETE", &path, None)
        .expect("it answers")
        .status
}

/// Text that no compression makes shorter by much.
fn noise(random: &mut Random) -> String {
    let letter = |_| char::from(b'!' + u8::try_from(random.between(0, 64)).unwrap_or(0));
    (0..BODY)
        .map(letter)
        .filter(|letter| !"\"\\".contains(*letter))
        .collect()
}

#[test]
#[ignore = "needs a PostgreSQL and mounts: cargo xtask check database_full"]
fn a_full_database_refuses_sets_loses_nothing_and_goes_on_by_itself() {
    let _turn = turn();
    let directory = Directory::new("database_full");
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let place = temporary("database_full");
    let mounted = small(&database, &place);
    let options = database.fresh();
    let made = program()
        .args([
            "cluster",
            "init",
            "--store",
            &options.url,
            "--schema",
            &options.schema,
        ])
        .status();
    assert!(made.expect("the program starts").success());
    let launch = Launch {
        database: Some((options.url, options.schema)),
        ..Launch::default()
    };
    let receiver = Receiver::start();
    let mut server = Server::start_as(&directory.join("data"), launch);
    let mut caller = server.caller();
    let target = json!({"url": receiver.url});

    let mut random = Random::new(1);
    let mut filled = 0;
    let due = now_us() + 20_000_000;
    for number in 0..DUE {
        let left = format!("{}ms", (due - now_us()) / 1_000);
        let body = json!({"in": left, "target": target});
        assert_eq!(put(&mut caller, &format!("due-{number}"), &body).0, 201);
    }
    let refused = loop {
        let body = json!({"in": "1h", "target": target, "body": noise(&mut random)});
        let (status, code) = put(&mut caller, &format!("fill-{filled}"), &body);
        if status != 201 {
            break (status, code);
        }
        filled += 1;
    };
    assert_eq!(
        refused,
        (507, json!("storage_full")),
        "after {filled} timers"
    );
    assert!(now_us() < due, "it is full before they are due");
    let mut refusals = 1;
    while now_us() < due + 3_000_000 {
        let body = json!({"in": "1h", "target": target, "body": noise(&mut random)});
        let (status, code) = put(&mut caller, "more", &body);
        assert!(
            status == 507 && code == "storage_full" || status < 300,
            "{status} {code}"
        );
        refusals += u64::from(status == 507);
        let ready = caller.ask("GET", "/readyz", None).map(|reply| reply.status);
        assert_eq!(ready, Some(200), "it can be reached");
        wait(Duration::from_millis(100));
    }
    let removed: Vec<u16> = (0..5)
        .map(|n| remove(&mut caller, &format!("fill-{n}")))
        .collect();
    println!(
        "{filled} timers fill it, {refusals} sets refused, {} of {DUE} delivered while it is full, \
         removals {removed:?}",
        receiver.count()
    );
    assert!(refusals > 10, "{refusals}");

    run(
        "mount",
        &[&"-o", &format!("remount,size={}", 4 * ROOM), &mounted.0],
    );
    let body = json!({"in": "1h", "target": target, "body": noise(&mut random)});
    wait_until("a set is taken again", || {
        put(&mut caller, "again", &body).0 < 300
    });
    wait_until("all are delivered", || receiver.count() >= DUE);
    wait_until("all outcomes are kept", || {
        (0..DUE).all(|number| {
            let path = format!("/v1/queues/default/timers/due-{number}");
            let reply = caller.ask("GET", &path, None).expect("it answers");
            reply.body["state"] == "done"
        })
    });
    for number in 5..filled {
        let path = format!("/v1/queues/default/timers/fill-{number}");
        let reply = caller.ask("GET", &path, None).expect("it answers");
        assert_eq!(reply.status, 200, "it was acknowledged");
    }
    let mut times = BTreeMap::new();
    for arrival in receiver.arrivals() {
        *times.entry(arrival.id).or_insert(0) += 1;
    }
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    let ended = server.end_within(Duration::ZERO);
    assert!(ended.is_none(), "it ended by itself: {}", server.said());
    drop(server);
    drop(database);
}
