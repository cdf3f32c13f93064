//! A service moves its timers into a cluster under load, and is killed at any moment of it. Then exactly one side
//! has the timers: the directory, whose service starts again, or the cluster, and a start is refused that says so.
//!
//! `COUNTWHEEL_MOVES` says how often, `COUNTWHEEL_TIMERS` how many timers are there beside those of the load,
//! `COUNTWHEEL_SEED` repeats what is asked.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use countwheel_postgres::testing;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{asked, fill, name, owners};
use crate::harness::figures::{self, Spans};
use crate::harness::load::Load;
use crate::harness::process::{Launch, Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{
    Directory, PATIENCE, Random, micros, now_us, pause, seed, setting, turn, wait, wait_until,
};

const PATH: &str = "/v1/cluster/move-to";
/// Longer than a move of these few timers takes.
const MOVE: Duration = Duration::from_millis(600);
/// A move that is about to be decided, and what follows, takes no longer.
const DECISION: Duration = Duration::from_millis(20);
const UNDER_LOAD: Duration = Duration::from_millis(300);

/// A service in a directory, and a cluster with a node that has no timers.
struct Sides {
    _directory: Directory,
    target: (String, String),
    from: Server,
    node: Server,
}

impl Sides {
    fn start(database: &testing::Server) -> Self {
        let directory = Directory::new("nodes-moving");
        let options = database.fresh();
        let target = (options.url, options.schema);
        let made = program()
            .args(["cluster", "init", "--store", &target.0])
            .args(["--schema", &target.1])
            .output();
        assert!(made.expect("the program starts").status.success());
        let launch = Launch {
            database: Some(target.clone()),
            options: vec!["--lease-ttl", "2s"],
            ..Launch::default()
        };
        Self {
            from: Server::start(&directory.join("from")),
            node: Server::start_as(&directory.join("node"), launch),
            target,
            _directory: directory,
        }
    }

    /// What the target says of the moves into it.
    fn states(&self, database: &testing::Server) -> String {
        let text = format!("SELECT state FROM {}.move ORDER BY began", self.target.1);
        let states = database.execute(&text).expect("the server is there");
        states.trim().to_owned()
    }
}

/// Asks the service to begin a move.
fn begin(from: &Server, (url, schema): &(String, String)) {
    let body = json!({ "store": url, "schema": schema });
    let begun = asked(from, "POST", PATH, Some(&body));
    assert_eq!(begun.status, 202, "{}: {}", begun.body, from.said());
}

fn progress(from: &Server) -> Value {
    asked(from, "GET", PATH, None).body
}

fn state(from: &Server) -> String {
    let progress = progress(from);
    progress["state"].as_str().expect("a state").to_owned()
}

/// Waits until there is something to move, and something of it was moved and removed before.
fn wait_for_much(receiver: &Receiver) {
    const DELIVERIES: u64 = 100;
    wait_until("much was asked for", || receiver.count() >= DELIVERIES);
}

/// Waits until a node has all shards: until then it holds what it was asked, also of a service that is gone.
fn wait_until_taken(node: &Server) {
    wait_until("the node has all shards", || {
        let owners = owners(node);
        owners.keys().eq([&name(node)])
    });
    // What it has held is done.
    wait(UNDER_LOAD);
}

/// Waits until the service is about to ask for the decision, or has not done so for long.
fn wait_for_marker(data: &Path) {
    let (marker, end) = (data.join("move.json"), now_us() + micros(PATIENCE));
    while !marker.exists() && now_us() < end {
        pause();
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_move_that_is_killed_leaves_one_side_with_all_timers() {
    let _turn = turn();
    let moves = setting("COUNTWHEEL_MOVES", || 2);
    let mut random = Random::new(seed());
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let mut moved = 0;
    for number in 0..moves {
        let receiver = Receiver::start();
        let start = now_us();
        let mut sides = Sides::start(&database);
        let mut load = Load::of_a_node(&receiver.url, &mut random);
        let near_the_end = number % 2 == 1;
        let within = if near_the_end { DECISION } else { MOVE };
        let after = Duration::from_micros(random.between(0, micros(within)));
        let target = sides.target.clone();
        load.until(&mut sides.from, |from| {
            wait_for_much(&receiver);
            begin(from, &target);
            if near_the_end {
                wait_for_marker(&from.data);
            }
            wait(after);
        });
        let started = sides.from.try_restart();
        let states = sides.states(&database);
        println!("move {number}: killed {after:?} later, then {states:?}, {started:?}");
        match &started {
            // A move that had only begun is not known to its directory: the next one gives it up.
            Ok(()) => {
                assert!(["moving", "given up"].contains(&&*states), "{states}");
                if states == "moving" {
                    wait_until("no node has what is half there", || {
                        let owners = owners(&sides.node);
                        owners.keys().all(|owner| owner.starts_with("move-"))
                    });
                } else {
                    let of_node = asked(&sides.node, "GET", "/v1/queues", None).body;
                    assert_eq!(of_node["queues"], json!([]), "{of_node}");
                }
                assert!(!sides.from.data.join("move.json").exists());
            }
            Err(why) => {
                moved += 1;
                assert_eq!(states, "decided", "{why}");
                assert!(why.contains("were moved to schema"), "{why}");
                assert!(why.contains("ended with exit status: 1"), "{why}");
            }
        }
        let is_moved = started.is_err();
        if is_moved {
            wait_until_taken(&sides.node);
        }
        let (truth, other) = match is_moved {
            true => (&mut sides.node, &mut sides.from),
            false => (&mut sides.from, &mut sides.node),
        };
        let killed = other.outages.clone();
        truth.outages.extend(killed);
        load.until(truth, |_| wait(UNDER_LOAD));
        truth.restart();
        let took_us = now_us() - start;
        let mut settled = load.settle(truth, &receiver);
        // A node goes on with what it was sent by the service that was killed.
        settled.evidence.under_way_us = 1_000_000;
        let side = if is_moved { "cluster" } else { "directory" };
        settled.demand_innocence(&format!("a move that was killed: {side}"), truth, took_us);
    }
    println!("{moved} of {moves} moves were decided");
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_move_under_load_loses_nothing_and_refuses_nothing() {
    let _turn = turn();
    let mut random = Random::new(seed());
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let receiver = Receiver::start();
    let start = now_us();
    let mut sides = Sides::start(&database);
    let timers = setting("COUNTWHEEL_TIMERS", || 0);
    fill(&sides.from, timers);
    let mut load = Load::of_a_node(&receiver.url, &mut random);
    let target = sides.target.clone();
    let (mut held, mut took) = (Vec::new(), Vec::new());
    load.until(&mut sides.from, |from| {
        wait_for_much(&receiver);
        let began = now_us();
        let moving = program()
            .args(["move-to", &target.0, "--schema", &target.1])
            .args(["--server", &format!("http://{}", from.address)])
            .output()
            .expect("the program starts");
        let said = String::from_utf8_lossy(&moving.stdout).into_owned();
        assert!(moving.status.success(), "{said}: {}", from.said());
        took.push(now_us() - began);
        println!("{said}");
        assert_eq!(state(from), "moved");
        held.push(progress(from)["held_ms"].as_u64().expect("a number") * 1_000);
        // What is asked there is answered by the node.
        wait_until_taken(&sides.node);
        // The entry of the audit log is one of what was moved.
        let path = "/v1/audit?operation=beginMoveToCluster";
        let log = asked(&sides.node, "GET", path, None).body;
        assert_eq!(log["items"][0]["details"]["schema"], target.1, "{log}");
        wait(UNDER_LOAD);
        let again = asked(from, "POST", PATH, Some(&json!({ "store": target.0 })));
        assert_eq!(again.status, 409, "{}", again.body);
    });
    assert_eq!(load.refused(), 0, "{}", sides.from.said());
    let why = sides
        .from
        .try_restart()
        .expect_err("the timers are elsewhere");
    assert!(why.contains("were moved to schema"), "{why}");
    let node = &mut sides.node;
    node.outages.extend(sides.from.outages.clone());
    load.until(node, |_| wait(UNDER_LOAD));
    node.restart();
    let settled = load.settle(node, &receiver);
    settled.demand_innocence("a move under load", node, now_us() - start);
    let rows = [
        ("timers beside the load", timers.to_string()),
        ("it took", Spans::new(took).typical()),
        ("requests held", Spans::new(held.iter().copied()).typical()),
    ];
    figures::print("a move under load", &rows);
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_move_back_that_is_killed_is_given_up_and_nothing_is_lost() {
    /// Longer than a move back of these few timers takes to be decided.
    const MOVE_BACK: Duration = Duration::from_millis(150);
    let _turn = turn();
    let moves = setting("COUNTWHEEL_MOVES", || 2);
    let mut random = Random::new(seed());
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    for number in 0..moves {
        let receiver = Receiver::start();
        let start = now_us();
        let mut sides = Sides::start(&database);
        let mut load = Load::of_a_node(&receiver.url, &mut random);
        wait_until_taken(&sides.node);
        load.until(&mut sides.node, |node| {
            wait_for_much(&receiver);
            node.signal(Signal::TERM);
            assert!(node.end_within(PATIENCE).is_some(), "{}", node.said());
        });
        let data = sides.node.data.with_extension("back");
        let mut moving = program()
            .args(["move-from", &sides.target.0, "--schema", &sides.target.1])
            .args(["--data", &data.to_string_lossy()])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        // The first of them is killed while the directory has no name yet.
        if number == 0 {
            let half = data.with_extension("back.moving");
            let end = now_us() + micros(PATIENCE);
            while !half.exists() && now_us() < end {
                pause();
            }
        } else {
            wait(Duration::from_micros(random.between(0, micros(MOVE_BACK))));
        }
        moving.kill().expect("it was started");
        moving.wait().expect("it was started");
        let before = sides.states(&database);
        let given_up = program()
            .args(["cluster", "give-up-move", "--store", &sides.target.0])
            .args(["--schema", &sides.target.1])
            .output()
            .expect("the program starts");
        let said = String::from_utf8_lossy(&given_up.stdout).into_owned();
        println!("move back {number}: {before:?} when it was killed, then {said}");
        assert!(given_up.status.success(), "{said}");
        if before == "decided" {
            assert!(said.contains("no move is under way"), "{said}");
            let why = sides.node.try_restart().expect_err("they are elsewhere");
            assert!(why.contains("were moved to"), "{why}");
            let back = Server::start(&data);
            let queues = asked(&back, "GET", "/v1/queues", None).body;
            assert_ne!(queues["queues"], json!([]), "{queues}");
            continue;
        }
        assert_eq!(said.contains("stay here"), before == "moving", "{said}");
        sides.node.restart();
        load.until(&mut sides.node, |_| wait(UNDER_LOAD));
        sides.node.restart();
        let took_us = now_us() - start;
        let settled = load.settle(&sides.node, &receiver);
        settled.demand_innocence("a move back that was killed", &sides.node, took_us);
    }
}

/// Runs a command of moves, and says how it ended and what it said.
fn command(words: &[&str]) -> (Option<i32>, String) {
    let ended = program().args(words).output().expect("the program starts");
    let said = [ended.stdout, ended.stderr].concat();
    (
        ended.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

/// How many timers are in the queue that [`fill`] fills.
fn far(node: &Server) -> u64 {
    let body = asked(node, "GET", "/v1/queues", None).body;
    let queues = body["queues"].as_array().expect("a list");
    let queue = queues.iter().find(|queue| queue["queue"] == "far");
    queue.map_or(0, |queue| queue["pending"].as_u64().expect("a number"))
}

/// Puts an endpoint with a secret, and a queue that names it.
fn put_by_name(at: &Server) {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let endpoint = json!({"url": "http://x.invalid/", "secrets": [{"id": "a", "secret": secret}]});
    let queue = json!({"endpoint": "shop"});
    for (path, body) in [("/v1/endpoints/shop", endpoint), ("/v1/queues/far", queue)] {
        assert_eq!(asked(at, "PUT", path, Some(&body)).status, 201, "{path}");
    }
}

/// What a service shows of both, but for the revisions.
fn by_name(at: &Server) -> [Value; 3] {
    let endpoint = asked(at, "GET", "/v1/endpoints/shop", None).body;
    let queue = asked(at, "GET", "/v1/queues/far", None).body;
    let shown = [&endpoint["url"], &endpoint["secrets"], &queue["endpoint"]];
    shown.map(Value::clone)
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn a_move_is_given_up_then_made_then_made_back_and_made_again() {
    const TIMERS: u64 = 10_000;
    let _turn = turn();
    let database = testing::Server::start(&[]).expect("the stage has installed it");
    let mut sides = Sides::start(&database);
    let (url, schema) = sides.target.clone();
    let here = ["--schema", &*schema];
    fill(&sides.from, TIMERS);
    put_by_name(&sides.from);
    let named = by_name(&sides.from);
    assert_eq!(named[2], "shop");

    // One that hangs while it copies is ended from outside. The service notices, and serves on.
    begin(&sides.from, &sides.target);
    sides.from.signal(Signal::STOP);
    let (status, said) =
        command(&[&["cluster", "give-up-move", "--store", &url], &here[..]].concat());
    sides.from.signal(Signal::CONT);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("the timers stay at"), "{said}");
    wait_until("the service knows", || state(&sides.from) == "given_up");
    assert_eq!(far(&sides.from), TIMERS);
    wait_until_taken(&sides.node);
    assert_eq!(far(&sides.node), 0);

    // The same once more is done.
    let server = format!("http://{}", sides.from.address);
    let there = [&["move-to", &url, "--server", &server], &here[..]].concat();
    let (status, said) = command(&there);
    assert_eq!(status, Some(0), "{said}");
    wait_until_taken(&sides.node);
    assert_eq!(far(&sides.node), TIMERS);
    assert_eq!(far(&sides.from), TIMERS, "it asks the node");
    assert_eq!(by_name(&sides.node), named);

    // Not back while a node lives.
    let data = sides.node.data.with_extension("back");
    let data_said = data.to_string_lossy().into_owned();
    let back = [&["move-from", &url, "--data", &data_said], &here[..]].concat();
    let (status, said) = command(&back);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains(&name(&sides.node)), "{said}");
    sides.node.signal(Signal::TERM);
    assert!(sides.node.end_within(PATIENCE).is_some());
    let (status, said) = command(&back);
    assert_eq!(status, Some(0), "{said}");

    // The tables say where the timers are, to a node and to who restores them.
    let why = sides.node.try_restart().expect_err("they are elsewhere");
    assert!(why.contains("were moved to"), "{why}");
    let restored = [&["cluster", "restored", "--store", &url], &here[..]].concat();
    let (status, said) = command(&restored);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("were moved to"), "{said}");
    let returned = Server::start(&data);
    assert_eq!(far(&returned), TIMERS);
    assert_eq!(by_name(&returned), named);

    // Into the same tables again: they are emptied, and the move waits for a node, which can start now.
    sides.from.kill();
    let server = format!("http://{}", returned.address);
    let again = [&["move-to", &url, "--server", &server], &here[..]].concat();
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| command(&again));
        wait_until("it waits for a node", || {
            let progress = progress(&returned);
            progress["reason"]
                .as_str()
                .is_some_and(|why| why.contains("no node"))
        });
        sides.node.restart();
        let (status, said) = moving.join().expect("it ends");
        assert_eq!(status, Some(0), "{said}");
    });
    wait_until_taken(&sides.node);
    assert_eq!(far(&sides.node), TIMERS);
    assert_eq!(by_name(&sides.node), named);
}
