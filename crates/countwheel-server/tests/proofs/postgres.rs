//! The service on a PostgreSQL is killed under load, and so is the database: nothing that was
//! acknowledged is lost.
//!
//! `COUNTWHEEL_KILLS` says how often, `COUNTWHEEL_SEED` repeats what is asked.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use countwheel_postgres::testing;
use serde_json::{Value, json};

use crate::harness::load::{Load, span};
use crate::harness::process::{Launch, Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, PATIENCE, Random, now_us, seed, setting, turn, wait, wait_until};

/// What is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service,
    Database,
}

/// Makes a cluster by the program, for a service to be launched on it.
fn cluster(database: &testing::Server) -> Launch {
    let options = database.fresh();
    let made = program()
        .args(["cluster", "init", "--store", &options.url])
        .args(["--schema", &options.schema])
        .status();
    assert!(made.expect("the program starts").success());
    Launch {
        database: Some((options.url, options.schema)),
        ..Launch::default()
    }
}

fn kill(victim: Victim, what: &str, kills: u64) {
    let _turn = turn();
    let kills = setting("COUNTWHEEL_KILLS", || kills);
    let mut random = Random::new(seed());
    let directory = Directory::new("postgres");
    let mut database = testing::Server::start(&[]).expect("the stage has installed it");
    let launch = cluster(&database);
    let receiver = Receiver::start();
    let start = now_us();
    let mut server = Server::start_as(&directory.join("data"), launch);
    let mut load = Load::new(&receiver.url, &mut random);
    for _ in 0..kills {
        let under_load = span(
            &mut random,
            Duration::from_millis(20),
            Duration::from_millis(250),
        );
        match victim {
            Victim::Service => load.kill_after(&mut server, under_load),
            Victim::Database => {
                load.until(&mut server, |server| {
                    wait(under_load);
                    database.crash();
                    assert_eq!(says(server, "/readyz"), Some(503), "it is away");
                    assert_eq!(
                        says(server, "/healthz"),
                        Some(200),
                        "a new process is no help"
                    );
                    wait(under_load);
                    database.go_on().expect("it comes up again");
                    wait(under_load);
                    assert_eq!(says(server, "/readyz"), Some(200), "it is back");
                    let ended = server.end_within(Duration::ZERO);
                    assert!(ended.is_none(), "it ended by itself: {}", server.said());
                });
                server.restart();
            }
        }
    }
    let took_us = now_us() - start;

    let settled = load.settle(&server, &receiver);
    let title = format!("{kills} kills of {what} under load");
    settled.demand_innocence(&title, &server, took_us);
}

fn says(server: &Server, path: &str) -> Option<u16> {
    let reply = server.caller().ask("GET", path, None);
    reply.map(|reply| reply.status)
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn kills_of_the_service_lose_nothing() {
    kill(Victim::Service, "the service on a PostgreSQL", 12);
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn crashes_of_the_database_lose_nothing() {
    kill(Victim::Database, "the database and the service", 6);
}

/// A receiver of one delivery at a time, which it answers when it is told to.
struct Slow {
    url: String,
    arrived: mpsc::Receiver<()>,
    answer: mpsc::Sender<()>,
}

impl Slow {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
        let (arrives, arrived) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).is_ok_and(|length| length > 2) {
                    line.clear();
                }
                if arrives.send(()).is_err() || answers.recv().is_err() {
                    return;
                }
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let sent = stream.get_mut().write_all(answer.as_bytes());
                sent.expect("the service waits for it");
            }
        });
        Self {
            url,
            arrived,
            answer,
        }
    }
}

fn put(server: &Server, key: &str, body: &Value) -> (u16, Value) {
    let path = format!("/v1/queues/default/timers/{key}");
    let reply = server.caller().ask("PUT", &path, Some(body));
    let reply = reply.expect("it answers");
    (reply.status, reply.body["code"].clone())
}

fn state(server: &Server, key: &str) -> Value {
    let path = format!("/v1/queues/default/timers/{key}");
    let reply = server.caller().ask("GET", &path, None).expect("it answers");
    reply.body["state"].clone()
}

/// While the database is away an attempt ends, new requests are refused at once, and what was asked
/// before waits: all of it is as it was said once the database is back.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn what_runs_while_the_database_is_away_ends_and_is_kept() {
    let _turn = turn();
    let directory = Directory::new("postgres-away");
    let mut database = testing::Server::start(&[]).expect("the stage has installed it");
    let launch = cluster(&database);
    let server = Server::start_as(&directory.join("data"), launch);
    let receiver = Slow::start();
    let target = json!({"url": receiver.url});
    let at_once = json!({"in": 0, "target": target});
    assert_eq!(put(&server, "runs", &at_once).0, 201);
    let arrives = receiver.arrived.recv_timeout(PATIENCE);
    arrives.expect("it is delivered");

    database.crash();
    receiver.answer.send(()).expect("it waits");
    let later = json!({"in": "1h", "target": target});
    for number in 0..50 {
        let asked = now_us();
        let refused = put(&server, &format!("new-{}", number % 3), &later);
        assert_eq!(
            refused,
            (503, json!("store_unavailable")),
            "request {number}"
        );
        assert!(
            now_us() - asked < 1_500_000,
            "request {number}: {} us",
            now_us() - asked
        );
        wait(Duration::from_millis(20));
    }
    database.go_on().expect("it comes up again");
    wait_until("the outcome is kept", || state(&server, "runs") == "done");
    let again = receiver.arrived.try_recv();
    assert!(again.is_err(), "it was delivered twice");
    wait_until("sets are taken again", || {
        put(&server, "new-0", &later).0 < 300
    });

    database.freeze();
    let accepted = std::thread::scope(|scope| {
        let asking = scope.spawn(|| put(&server, "waits", &later));
        wait(Duration::from_secs(3));
        let is_waiting = !asking.is_finished();
        database.thaw();
        (is_waiting, asking.join().expect("it is answered"))
    });
    assert_eq!(
        accepted,
        (true, (201, Value::Null)),
        "it waits, and is done"
    );
    assert_eq!(state(&server, "waits"), "pending");
}

/// The first page as it is.
fn first_page(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.address).expect("it listens");
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    page
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn the_first_page_says_what_a_loss_of_the_machine_costs_and_what_was_lost() {
    let _turn = turn();
    let directory = Directory::new("postgres-page");
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let mut launch = cluster(&database);
    let (url, schema) = launch.database.clone().expect("it is on one");
    let says = |name: &str, class: &str, means: &str| {
        format!("Durability: <span class=\"tag {class}\">{name}</span> {means}")
    };
    let one_machine = says(
        "one-machine",
        "warn",
        "If the database&#39;s machine is lost, all",
    );
    let managed = says(
        "managed",
        "ok",
        "The vendor&#39;s storage is believed to keep",
    );
    let may_lose = says("may-lose", "bad", "Acknowledged timers may be lost even if");
    let lazy = format!("{url}?options=-c%20synchronous_commit%3Doff");
    let cases: [(&str, Vec<&'static str>, String); 3] = [
        (&url, Vec::new(), one_machine),
        (&url, vec!["--durability", "managed"], managed),
        (&lazy, vec!["--accept-loss"], may_lose),
    ];
    for (url, options, expected) in cases {
        launch.database = Some((url.to_owned(), schema.clone()));
        launch.options = options;
        let server = Server::start_as(&directory.join("data"), launch.clone());
        let page = first_page(&server);
        assert!(page.contains(&expected), "{expected}: {page}");
        assert!(!page.contains("degraded"), "{page}");
    }
    launch.database = Some((url.clone(), schema.clone()));
    launch.options = Vec::new();
    let lose = format!("INSERT INTO \"{schema}\".loss (shard, turn) VALUES (3, 7)");
    database.execute(&lose).expect("we may");
    let server = Server::start_as(&directory.join("data"), launch);
    let page = first_page(&server);
    let lost = "<span class=\"tag bad\">tail_lost</span>";
    let names = "turn 7 of shard 3 was acknowledged and is missing";
    assert!(page.contains(lost) && page.contains(names), "{page}");
    let acknowledged = program()
        .args([
            "cluster",
            "acknowledge-loss",
            "--store",
            &url,
            "--schema",
            &schema,
        ])
        .status();
    assert!(acknowledged.expect("the program starts").success());
    assert_eq!(self::says(&server, "/readyz"), Some(200));
    assert!(!first_page(&server).contains("tail_lost"));
}

/// A database that answers nothing for longer than an exchange may take: its connections are given up,
/// and what was sent on them comes when it goes on. The process goes on, so nothing is delivered twice.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check postgres"]
fn a_database_that_hangs_makes_nothing_happen_twice() {
    const TIMERS: u64 = 300;
    let _turn = turn();
    let directory = Directory::new("postgres-hangs");
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let launch = cluster(&database);
    let receiver = Receiver::start();
    let server = Server::start_as(&directory.join("data"), launch);
    let mut caller = server.caller();
    for number in 0..TIMERS {
        let delay = format!("{}ms", 1_500 + 5 * number);
        let body = json!({"in": delay, "target": {"url": receiver.url}});
        let path = format!("/v1/queues/default/timers/hangs-{number}");
        let reply = caller.ask("PUT", &path, Some(&body)).expect("it answers");
        assert!((200..300).contains(&reply.status), "{:?}", reply.body);
    }
    let start = now_us();
    database.freeze();
    wait(Duration::from_secs(3));
    let asked = now_us();
    assert_eq!(says(&server, "/readyz"), Some(503), "it answers nothing");
    assert!(now_us() - asked < 4_000_000, "and readiness says so soon");
    assert_eq!(says(&server, "/healthz"), Some(200));
    wait(Duration::from_secs(9)); // beyond what an exchange may take
    database.thaw();
    let frozen_us = now_us() - start;
    wait_until("everything is delivered", || caller.is_quiet(now_us()));
    assert_eq!(says(&server, "/readyz"), Some(200), "it is back");
    let arrivals = receiver.arrivals();
    let ids: BTreeSet<_> = arrivals.iter().map(|arrival| &arrival.id).collect();
    assert_eq!(ids.len() as u64, TIMERS, "after {frozen_us} us");
    assert_eq!(arrivals.len() as u64, TIMERS, "some came twice");
}
