//! Three nodes under load, and what happens to one of them, to the database or between them: what was
//! acknowledged is not lost, nothing is early, and what comes twice says so.
//!
//! `COUNTWHEEL_TROUBLES` says how many there are, `COUNTWHEEL_TROUBLE` which alone, `COUNTWHEEL_SEED` repeats what
//! is asked.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{Nodes, TTL, asked as ask, name, owners};
use crate::harness::load::Load;
use crate::harness::process::Server;
use crate::harness::receiver::Receiver;
use crate::harness::way::Held;
use crate::harness::{
    PATIENCE, Random, faketime, micros, now_us, seed, setting, turn, wait, wait_until,
};

/// What happens under load to a node, to the database or between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// It is told to stop, and hands its shards over.
    Drains,
    /// It is killed, and its shards are taken.
    Dies,
    /// It is stopped for longer than its lease, and continued.
    Sleeps,
    /// The same for a minute.
    SleepsLong,
    /// The database answers nothing for three leases.
    DatabaseHangs,
    /// The database crashes, and is back after three leases.
    DatabaseCrashes,
    /// Nothing passes between the node and the database.
    CutOff,
    /// The same of the node that is asked.
    AskedCutOff,
    /// What the node sends arrives at the database, and no answer does.
    Unanswered,
    /// The way to the database is cut and whole in turns of half a second, for four leases.
    Flaps,
    /// No node reaches another one, for longer than a request is held.
    PeersCut,
    /// What others ask the node arrives, and no answer does.
    PeerUnanswered,
    /// The ways between the nodes are cut and whole in turns of half a second.
    PeersFlap,
    /// The clock of its machine is set an hour ahead, and it is killed and started so.
    ClockAhead,
    /// The same an hour behind.
    ClockBehind,
    /// The clock of its machine goes 500 millionths fast.
    ClockDrifts,
    /// A session of the node waits within a commit for a lock of a stranger, and the node is killed.
    SessionHangs,
    /// The process of a session of the node is stopped within a commit, and continued after three leases.
    SessionStops,
}

use Trouble::{
    AskedCutOff, ClockAhead, ClockBehind, ClockDrifts, CutOff, DatabaseCrashes, DatabaseHangs,
    Dies, Drains, Flaps, PeerUnanswered, PeersCut, PeersFlap, SessionHangs, SessionStops, Sleeps,
    SleepsLong, Unanswered,
};

/// Of each group, the gate takes one, which the seed decides: none takes long.
const GATE: [&[Trouble]; 4] = [
    &[Drains, ClockAhead, ClockBehind],
    &[Dies, Sleeps, SessionHangs],
    &[DatabaseHangs, DatabaseCrashes, SessionStops],
    &[CutOff, AskedCutOff, Unanswered, Flaps, PeerUnanswered],
];

const ALL: [Trouble; 18] = [
    Drains,
    Dies,
    Sleeps,
    DatabaseHangs,
    CutOff,
    Unanswered,
    Flaps,
    PeersCut,
    SessionHangs,
    ClockAhead,
    AskedCutOff,
    PeerUnanswered,
    DatabaseCrashes,
    ClockBehind,
    SessionStops,
    PeersFlap,
    ClockDrifts,
    SleepsLong,
];

/// How a stranger's session is called.
const STRANGER: &str = "stranger";

impl Trouble {
    fn happen(self, nodes: &mut Nodes, asked: &mut Server, victim: usize) {
        let began = now_us();
        match self {
            Drains => {
                let node = &mut nodes.others[victim];
                node.signal(Signal::TERM);
                let ended = node.end_within(PATIENCE).expect("it ends");
                assert!(ended.success(), "{ended}: {}", node.said());
                wait_without(asked, node);
                node.restart();
            }
            Dies => die(nodes, asked, victim),
            Sleeps => sleep(nodes, asked, victim, TTL * 2),
            SleepsLong => sleep(nodes, asked, victim, Duration::from_secs(60)),
            DatabaseHangs => {
                let before = nodes.takeovers(asked);
                nodes.database.freeze();
                wait(TTL * 3);
                nodes.database.thaw();
                wait(TTL);
                assert_eq!(nodes.takeovers(asked), before, "nobody is dead");
            }
            DatabaseCrashes => {
                let before = nodes.takeovers(asked);
                nodes.database.crash();
                wait(TTL * 3);
                nodes.database.go_on().expect("it comes up again");
                wait(TTL);
                assert_eq!(nodes.takeovers(asked), before, "nobody is dead");
            }
            CutOff => cut(nodes, asked, victim, Held::All),
            Unanswered => cut(nodes, asked, victim, Held::Answers),
            AskedCutOff => {
                nodes.ways[0].database.hold(Held::All);
                wait_without(&nodes.others[victim], asked);
                nodes.ways[0].database.hold(Held::Nothing);
                wait_until("it is back", || {
                    ask(asked, "GET", "/readyz", None).status == 200
                });
            }
            Flaps => flap(TTL * 4, |held| nodes.ways[victim + 1].database.hold(held)),
            PeersCut => {
                const HELD_MAX: Duration = Duration::from_secs(15);
                let before = nodes.takeovers(asked);
                nodes.peers(Held::All);
                wait(HELD_MAX + TTL);
                nodes.peers(Held::Nothing);
                assert_eq!(nodes.takeovers(asked), before, "nobody is dead");
            }
            PeerUnanswered => {
                nodes.ways[victim + 1].peers.hold(Held::Answers);
                wait(TTL * 4);
                nodes.ways[victim + 1].peers.hold(Held::Nothing);
            }
            PeersFlap => flap(TTL * 4, |held| nodes.peers(held)),
            ClockAhead => be_wrong(nodes, asked, victim, "+3600", 3_600_000),
            ClockBehind => be_wrong(nodes, asked, victim, "-3600", -3_600_000),
            ClockDrifts => {
                let before = nodes.takeovers(asked);
                faketime::set(&nodes.ways[victim + 1].clock, "+0 x1.0005");
                wait(TTL * 3);
                assert_eq!(nodes.takeovers(asked), before, "nobody is dead");
                faketime::set(&nodes.ways[victim + 1].clock, "+0");
            }
            SessionHangs => hang(nodes, asked, victim),
            SessionStops => stop(nodes, asked, victim),
        }
        asked.outages.push((began, now_us()));
    }
}

/// Waits until all shards have owners that work on them, and none is of that node. How soon that is another proof
/// shows, which has no load.
fn wait_without(asked: &Server, node: &Server) {
    let gone = name(node);
    wait_until("the others have all shards", || {
        let owners = owners(asked);
        owners.keys().all(|owner| owner.contains(':')) && !owners.contains_key(&gone)
    });
}

impl Nodes {
    /// Between all of them.
    fn peers(&self, held: Held) {
        for ways in &self.ways {
            ways.peers.hold(held);
        }
    }

    /// How many shards the nodes have taken since they were started whose owner they took for dead.
    fn takeovers(&self, asked: &Server) -> u64 {
        let of_one = |node: &Server| {
            let metrics = ask(node, "GET", "/metrics", None).body;
            let lines = metrics.as_str().expect("a text").lines();
            let mut lines = lines.filter_map(|line| {
                line.strip_prefix("countwheel_takeovers_total{reason=\"overdue\"} ")
            });
            // None was taken where nothing is said.
            let count = lines.next().unwrap_or("0");
            count.parse::<u64>().expect("a number")
        };
        of_one(asked) + self.others.iter().map(of_one).sum::<u64>()
    }

    /// A number that the database says.
    fn number(&self, question: &str) -> i32 {
        let said = self.database.execute(question).expect("it answers");
        said.trim().parse().unwrap_or(0)
    }
}

fn die(nodes: &mut Nodes, asked: &Server, victim: usize) {
    nodes.others[victim].kill();
    wait_without(asked, &nodes.others[victim]);
    nodes.others[victim].restart();
}

fn sleep(nodes: &Nodes, asked: &Server, victim: usize, span: Duration) {
    nodes.others[victim].signal(Signal::STOP);
    wait(span);
    wait_without(asked, &nodes.others[victim]);
    nodes.others[victim].signal(Signal::CONT);
}

/// The others take its shards, and it goes on without them once the way is whole.
fn cut(nodes: &Nodes, asked: &Server, victim: usize, held: Held) {
    let node = &nodes.others[victim];
    let way = &nodes.ways[victim + 1].database;
    let before = nodes.takeovers(asked);
    way.hold(held);
    wait_without(asked, node);
    way.hold(Held::Nothing);
    wait_until("it is back", || {
        ask(node, "GET", "/readyz", None).status == 200
    });
    assert!(nodes.takeovers(asked) > before, "that is what they did");
}

fn flap(span: Duration, hold: impl Fn(Held)) {
    const TURN: Duration = Duration::from_millis(500);
    for _ in 0..span.as_millis() / (2 * TURN).as_millis() {
        hold(Held::All);
        wait(TURN);
        hold(Held::Nothing);
        wait(TURN);
    }
}

/// Its machine's clock is wrong: it says so, and works as before; also if it is started so.
fn be_wrong(nodes: &mut Nodes, asked: &Server, victim: usize, clock: &str, millis: i64) {
    let before = nodes.takeovers(asked);
    faketime::set(&nodes.ways[victim + 1].clock, clock);
    let node = &nodes.others[victim];
    wait_until("it sees that its clock is wrong", || {
        let glance = ask(node, "GET", "/v1/cluster", None).body;
        let offset = glance["clock_offset_ms"].as_i64().unwrap_or(0);
        (offset + millis).abs().min((offset - millis).abs()) < 10_000
    });
    wait(TTL);
    assert_eq!(nodes.takeovers(asked), before, "nobody is dead");
    die(nodes, asked, victim);
    faketime::set(&nodes.ways[victim + 1].clock, "+0");
}

/// A stranger's session, and a session of a node that waits for it within a commit: it holds the locks of a shard.
struct Blocked {
    stranger: Child,
    session: Pid,
}

impl Blocked {
    /// The stranger holds a timer of the node that is then set anew, in a queue that no caller uses.
    fn new(nodes: &Nodes, asked: &Server, victim: usize) -> Self {
        let later = json!({"in": "1h", "target": {"url": "http://127.0.0.1:1/"}});
        let of = |key| format!("/v1/queues/held/timers/{key}");
        let mut caller = asked.caller();
        for key in 0..16 {
            let set = caller.ask("PUT", &of(key), Some(&later));
            set.expect("it answers");
        }
        let owned = owners(asked);
        let owned = &owned[&name(&nodes.others[victim])];
        let shards: Vec<_> = owned.iter().map(u64::to_string).collect();
        let schema = nodes.schema();
        let key = nodes.number(&format!(
            "SELECT min(key) FROM \"{schema}\".timer WHERE queue = 'held' AND shard IN ({})",
            shards.join(",")
        ));
        let rows = format!(
            "SET application_name = '{STRANGER}'; BEGIN; SELECT count(*) FROM (\
             SELECT FROM \"{schema}\".timer WHERE queue = 'held' AND key = '{key}' FOR UPDATE) held; \
             SELECT pg_sleep(30)"
        );
        let mut stranger = nodes.database.psql(&rows);
        let stranger = stranger.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let holds = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = '{STRANGER}' AND wait_event = 'PgSleep'"
        );
        wait_until("the stranger has the timer", || nodes.number(&holds) > 0);
        // The answer is no matter, and may not come.
        let path = of(key);
        thread::spawn(move || drop(caller.ask("PUT", &path, Some(&later))));
        let waits = format!(
            "SELECT coalesce(min(pid), 0) FROM pg_stat_activity one \
             WHERE application_name = 'node-{}' AND EXISTS (SELECT FROM pg_stat_activity \
             WHERE application_name = '{STRANGER}' AND pid = ANY (pg_blocking_pids(one.pid)))",
            victim + 1
        );
        let mut session = 0;
        wait_until("a commit waits for the stranger", || {
            session = nodes.number(&waits);
            session > 0
        });
        Self {
            stranger: stranger.expect("psql is there"),
            session: Pid::from_raw(session).expect("a process"),
        }
    }

    /// The stranger goes.
    fn end(mut self, nodes: &Nodes) {
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = '{STRANGER}'"
        );
        nodes.number(&end);
        self.stranger.wait().map(drop).expect("it is ours");
    }
}

/// Who takes the shard ends the commit of the dead node.
fn hang(nodes: &mut Nodes, asked: &Server, victim: usize) {
    let blocked = Blocked::new(nodes, asked, victim);
    let killed = now_us();
    nodes.others[victim].kill();
    wait_without(asked, &nodes.others[victim]);
    let took = (now_us() - killed) / 1_000;
    println!("  {took} ms from the kill until all shards had owners");
    blocked.end(nodes);
    nodes.others[victim].restart();
}

/// The process of the session goes on three leases after nobody stands in its way any more.
fn stop(nodes: &Nodes, asked: &Server, victim: usize) {
    let blocked = Blocked::new(nodes, asked, victim);
    let session = blocked.session;
    let signal = |signal| kill_process(session, signal).expect("it is the database's");
    signal(Signal::STOP);
    blocked.end(nodes);
    wait(TTL * 3);
    signal(Signal::CONT);
    wait(TTL);
}

/// Those of this run: one of each group where none is named and few are asked for.
fn troubles(random: &mut Random) -> Vec<Trouble> {
    let cells = setting("COUNTWHEEL_TROUBLES", || GATE.len() as u64);
    let cells = usize::try_from(cells).expect("a few");
    if let Ok(named) = std::env::var("COUNTWHEEL_TROUBLE") {
        let found = ALL.into_iter().find(|one| format!("{one:?}") == named);
        return vec![found.unwrap_or_else(|| panic!("{named} is none of {ALL:?}")); cells];
    }
    if cells > GATE.len() {
        return ALL.into_iter().cycle().take(cells).collect();
    }
    let one_of = |group: &&[Trouble]| {
        let place = random.between(0, group.len() as u64);
        group[usize::try_from(place).expect("a few")]
    };
    GATE.iter().take(cells).map(one_of).collect()
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn three_nodes_lose_nothing_whatever_happens_to_one() {
    const UNDER_LOAD: Duration = Duration::from_millis(500);
    let _turn = turn();
    let mut random = Random::new(seed());
    let troubles = troubles(&mut random);
    let receiver = Receiver::start();
    let start = now_us();
    let (mut nodes, mut asked) = Nodes::on_ways(3);
    let mut load = Load::of_a_node(&receiver.url, &mut random);
    for (cell, trouble) in troubles.iter().enumerate() {
        let victim = nodes.busiest(&asked);
        let began = now_us();
        println!("cell {cell}: {} {trouble:?}", name(&nodes.others[victim]));
        let refused = load.refused();
        load.until(&mut asked, |asked| {
            wait(UNDER_LOAD);
            trouble.happen(&mut nodes, asked, victim);
            wait(UNDER_LOAD);
        });
        // What a node hands over is held meanwhile, and not refused.
        if *trouble == Drains {
            assert_eq!(load.refused(), refused, "{}", asked.said());
        }
        asked.restart();
        println!("  {} ms", (now_us() - began) / 1_000);
    }
    let took_us = now_us() - start;
    let mut settled = load.settle(&asked, &receiver);
    // What a node was sent on before its trouble is done by another, long after the caller's connection broke.
    settled.evidence.under_way_us = micros(Duration::from_secs(60));
    let title = format!("{} troubles of three nodes under load", troubles.len());
    settled.demand_innocence(&title, &asked, took_us);
}
