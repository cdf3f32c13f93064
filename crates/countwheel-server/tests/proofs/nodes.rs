//! Three nodes on one PostgreSQL: each of them is killed, stopped and drained under load, and the database
//! hangs. What was acknowledged is not lost, nothing is early, and what comes twice says so.
//!
//! `COUNTWHEEL_TROUBLES` says how many, `COUNTWHEEL_DEATHS` how many deaths are timed, `COUNTWHEEL_SEED` repeats
//! what is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_postgres::testing;
use rustix::process::Signal;

use crate::harness::figures::{self, Spans};
use crate::harness::load::Load;
use crate::harness::process::{Launch, Server, program};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, PATIENCE, Random, now_us, seed, setting, turn, wait, wait_until};

/// The lease of a node.
const TTL: Duration = Duration::from_secs(2);
/// Longer than a death takes to be noticed, and its shards to be taken.
const TAKEOVER: Duration = Duration::from_secs(3);

/// What happens to a node under load, or to the database.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// It is killed, and its shards are taken.
    Dies,
    /// It is told to stop, and hands its shards over.
    Drains,
    /// It is stopped for longer than its lease, and continued.
    Sleeps,
    /// The database answers nothing for three leases.
    DatabaseHangs,
}

const TROUBLES: [Trouble; 4] = [
    Trouble::Drains,
    Trouble::Dies,
    Trouble::Sleeps,
    Trouble::DatabaseHangs,
];

/// Nodes of one cluster. The first is asked; troubles come to the others.
struct Nodes {
    directory: Directory,
    database: testing::Server,
    options: (String, String),
    others: Vec<Server>,
}

impl Nodes {
    fn start(count: usize) -> (Self, Server) {
        let directory = Directory::new("nodes");
        let database = testing::Server::start(&[]).expect("the stage has installed it");
        let options = database.fresh();
        let made = program()
            .args(["cluster", "init", "--store", &options.url])
            .args(["--schema", &options.schema])
            .status();
        assert!(made.expect("the program starts").success());
        let mut nodes = Self {
            directory,
            database,
            options: (options.url, options.schema),
            others: Vec::new(),
        };
        let first = nodes.node();
        nodes.others = (1..count).map(|_| nodes.node()).collect();
        wait_until("each node has its share", || {
            let owners = owners(&first);
            let share = 64 / count;
            owners.len() == count && owners.values().all(|shards| shards.len() >= share)
        });
        (nodes, first)
    }

    fn node(&self) -> Server {
        let launch = Launch {
            database: Some(self.options.clone()),
            options: vec!["--lease-ttl", "2s"],
            ..Launch::default()
        };
        Server::start_as(&self.directory.join("data"), launch)
    }

    /// Which of the others has most shards. One that was started again may have none: a shard that has moved
    /// stays where it is for a minute.
    fn busiest(&self, asked: &Server) -> usize {
        let owners = owners(asked);
        let count = |node: &Server| owners.get(&name(node)).map_or(0, Vec::len);
        let others = 0..self.others.len();
        let busiest = others.max_by_key(|at| count(&self.others[*at]));
        busiest.expect("there are others")
    }
}

/// How a node is called: by its port, and by the name of the machine.
fn name(node: &Server) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    format!("{host}:{}", node.address.port())
}

/// All shards have owners that work on them, and none is of that node.
fn demand_without(asked: &Server, node: &Server) {
    let (owners, gone) = (owners(asked), name(node));
    let is_whole = owners
        .keys()
        .all(|owner| owner.contains(':') && *owner != gone);
    assert!(is_whole, "without {gone}: {owners:?}");
}

/// Which node has which shards, as one of them sees it.
fn owners(asked: &Server) -> BTreeMap<String, Vec<u64>> {
    let reply = asked.caller().ask("GET", "/v1/cluster/shards", None);
    let body = reply.expect("it answers").body;
    let mut owners: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for shard in body["shards"].as_array().expect("a list") {
        let owner = shard["owner"].as_str().unwrap_or("nobody");
        let state = shard["state"].as_str().unwrap_or_default();
        let owner = if state == "owned" { owner } else { state };
        let number = shard["shard"].as_u64().expect("a number");
        owners.entry(owner.to_owned()).or_default().push(number);
    }
    owners
}

impl Trouble {
    fn happen(self, nodes: &mut Nodes, asked: &mut Server, victim: usize) {
        let began = now_us();
        match self {
            Self::Dies => {
                nodes.others[victim].kill();
                wait(TTL + TAKEOVER);
                demand_without(asked, &nodes.others[victim]);
                nodes.others[victim].restart();
            }
            Self::Drains => {
                let node = &mut nodes.others[victim];
                node.signal(Signal::TERM);
                let ended = node.end_within(PATIENCE).expect("it ends");
                assert!(ended.success(), "{ended}: {}", node.said());
                demand_without(asked, node);
                node.restart();
            }
            Self::Sleeps => {
                nodes.others[victim].signal(Signal::STOP);
                wait(TTL + TAKEOVER);
                demand_without(asked, &nodes.others[victim]);
                nodes.others[victim].signal(Signal::CONT);
            }
            Self::DatabaseHangs => {
                let before = owners(asked);
                nodes.database.freeze();
                wait(TTL * 3);
                nodes.database.thaw();
                wait(TTL);
                assert_eq!(owners(asked), before, "nobody is dead, so no shard moves");
            }
        }
        asked.outages.push((began, now_us()));
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn three_nodes_lose_nothing_whatever_happens_to_one() {
    const UNDER_LOAD: Duration = Duration::from_millis(500);
    let _turn = turn();
    let cells = setting("COUNTWHEEL_TROUBLES", || 4);
    let mut random = Random::new(seed());
    let receiver = Receiver::start();
    let start = now_us();
    let (mut nodes, mut asked) = Nodes::start(3);
    let mut load = Load::of_a_node(&receiver.url, &mut random);
    for (cell, trouble) in (0..cells).zip(TROUBLES.into_iter().cycle()) {
        let victim = nodes.busiest(&asked);
        println!("cell {cell}: {} {trouble:?}", name(&nodes.others[victim]));
        let refused = load.refused();
        load.until(&mut asked, |asked| {
            wait(UNDER_LOAD);
            trouble.happen(&mut nodes, asked, victim);
            wait(UNDER_LOAD);
        });
        // What a node hands over is held meanwhile, and not refused.
        if matches!(trouble, Trouble::Drains) {
            assert_eq!(load.refused(), refused, "{}", asked.said());
        }
        asked.restart();
    }
    let took_us = now_us() - start;
    let settled = load.settle(&asked, &receiver);
    let title = format!("{cells} troubles of three nodes under load");
    settled.demand_innocence(&title, &asked, took_us);
}

/// From the kill of a node until all its shards work elsewhere.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn the_shards_of_a_node_that_died_work_elsewhere_soon() {
    let _turn = turn();
    let deaths = setting("COUNTWHEEL_DEATHS", || 3);
    let (mut nodes, asked) = Nodes::start(3);
    let mut took = Vec::new();
    for _ in 0..deaths {
        // One that has just been started takes nothing before its lease was renewed for as long as it lasts.
        wait(TTL + Duration::from_millis(500));
        let victim = nodes.busiest(&asked);
        let gone = name(&nodes.others[victim]);
        assert!(owners(&asked)[&gone].len() >= 16, "it has some to lose");
        let died = now_us();
        nodes.others[victim].kill();
        wait_until("the others have its shards", || {
            let owners = owners(&asked);
            owners.keys().all(|owner| owner.contains(':')) && !owners.contains_key(&gone)
        });
        took.push(now_us() - died);
        nodes.others[victim].restart();
    }
    let spans = Spans::new(took.iter().copied());
    let most = took.iter().max().copied().unwrap_or(0);
    let rows = [
        ("deaths", deaths.to_string()),
        ("until all is taken", spans.typical()),
    ];
    figures::print("deaths of a node of three, with leases of 2 s", &rows);
    // The lease and a quarter of a second, and what a machine takes that others use.
    assert!((1_500_000..6_000_000).contains(&most), "{took:?} us");
}
