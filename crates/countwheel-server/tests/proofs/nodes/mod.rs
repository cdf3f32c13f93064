//! Several nodes on one PostgreSQL: what happens to them, and that they answer as one.
//!
//! The same on a small scale for the nodes of `dev --nodes`, of which nothing is left.

mod limits;
mod lists;
mod moving;
mod starts;
mod troubles;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use countwheel_postgres::testing;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::caller::{Caller, Reply};
use crate::harness::figures::{self, Spans};
use crate::harness::process::{Launch, Server, free_address, program};
use crate::harness::receiver::Receiver;
use crate::harness::way::Way;
use crate::harness::{Directory, faketime, now_us, setting, turn, wait, wait_until};

/// The lease of a node.
const TTL: Duration = Duration::from_secs(2);

/// Nodes of one cluster. The first is asked; troubles come to the others.
pub(crate) struct Nodes {
    directory: Directory,
    pub(crate) database: testing::Server,
    options: (String, String),
    pub(crate) others: Vec<Server>,
    /// What can be cut, of each node, the first one's first. None if nothing can.
    ways: Vec<Ways>,
}

/// The ways to and from one node.
struct Ways {
    /// From the node to the database.
    database: Way,
    /// From other nodes to the node.
    peers: Way,
    /// What its machine makes of the time, as libfaketime reads it.
    clock: PathBuf,
}

impl Nodes {
    pub(crate) fn start(count: usize) -> (Self, Server) {
        let (directory, database) = Self::place();
        let url = database.url();
        Self::of(directory, database, url, count)
    }

    /// With ways that can be cut, and clocks that can be set.
    fn on_ways(count: usize) -> (Self, Server) {
        let (directory, database) = Self::place();
        let url = database.url();
        Self::make(directory, database, url).started(count, true)
    }

    /// On a database that is reached there.
    pub(crate) fn of(
        directory: Directory,
        database: testing::Server,
        url: String,
        count: usize,
    ) -> (Self, Server) {
        Self::make(directory, database, url).started(count, false)
    }

    fn place() -> (Directory, testing::Server) {
        let database = testing::Server::start(&[]).expect("the stage has installed it");
        (Directory::new("nodes"), database)
    }

    fn make(directory: Directory, database: testing::Server, url: String) -> Self {
        let schema = database.fresh().schema;
        make_cluster(&url, &schema);
        Self {
            directory,
            database,
            options: (url, schema),
            others: Vec::new(),
            ways: Vec::new(),
        }
    }

    fn started(mut self, count: usize, has_ways: bool) -> (Self, Server) {
        let mut all: Vec<_> = (0..count)
            .map(|number| self.node(number, has_ways))
            .collect();
        let first = all.remove(0);
        self.others = all;
        wait_until("each node has its share", || {
            let owners = owners(&first);
            let share = 64 / count;
            owners.len() == count && owners.values().all(|shards| shards.len() >= share)
        });
        (self, first)
    }

    pub(crate) fn schema(&self) -> &str {
        &self.options.1
    }

    fn node(&mut self, number: usize, has_ways: bool) -> Server {
        let mut launch = Launch {
            database: Some(self.options.clone()),
            options: vec!["--lease-ttl", "2s"],
            ..Launch::default()
        };
        if has_ways {
            let peers = free_address().port();
            // All of 127.0.0.0/8 is this machine: the node says that it is where its way begins.
            let place = Ipv4Addr::new(127, 0, 1, u8::try_from(number).expect("a few"));
            let ways = Ways {
                database: Way::to(self.database.port()),
                peers: Way::between(place, peers, peers),
                clock: self.directory.join(&format!("clock-{number}")),
            };
            let through = self.database.url_at(ways.database.address.port());
            let url = format!("{through}?application_name=node-{number}");
            launch.database = Some((url, self.options.1.clone()));
            launch.more = vec![
                format!("--advertise={place}:7070"),
                format!("--peer-listen=127.0.0.1:{peers}"),
            ];
            // The first one's clock is that of the machine.
            if number > 0 {
                faketime::set(&ways.clock, "+0");
                launch.environment = faketime::environment(&ways.clock);
                // In seconds.
                let read = ("FAKETIME_CACHE_DURATION", "1".into());
                launch.environment.push(read);
            }
            self.ways.push(ways);
        }
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

/// Makes a cluster by the program.
fn make_cluster(url: &str, schema: &str) {
    let made = program()
        .args(["cluster", "init", "--store", url])
        .args(["--schema", schema])
        .status();
    assert!(made.expect("the program starts").success());
}

/// How a node is called: by its port, and by the name of the machine.
pub(crate) fn name(node: &Server) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    format!("{host}:{}", node.address.port())
}

/// Which node has which shards, as one of them sees it.
pub(crate) fn owners(asked: &Server) -> BTreeMap<String, Vec<u64>> {
    owners_by(&mut asked.caller())
}

fn owners_by(caller: &mut Caller) -> BTreeMap<String, Vec<u64>> {
    let reply = caller.ask("GET", "/v1/cluster/shards", None);
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

/// From the kill of a node until all its shards work elsewhere. `COUNTWHEEL_DEATHS` says how often,
/// `COUNTWHEEL_TIMERS` with how many timers.
#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn the_shards_of_a_node_that_died_work_elsewhere_soon() {
    let _turn = turn();
    let deaths = setting("COUNTWHEEL_DEATHS", || 3);
    let timers = setting("COUNTWHEEL_TIMERS", || 0);
    let (mut nodes, asked) = Nodes::start(3);
    fill(&asked, timers);
    let mut took = Vec::new();
    for _ in 0..deaths {
        // One that has just been started takes nothing before its lease was renewed for as long as it lasts.
        wait(TTL + Duration::from_millis(500));
        let victim = nodes.busiest(&asked);
        let gone = name(&nodes.others[victim]);
        assert!(owners(&asked)[&gone].len() >= 16, "it has some to lose");
        let died = now_us();
        nodes.others[victim].kill();
        // The list of shards counts their timers, which takes from the nodes what they need to take shards.
        wait_until("the others have its shards", || {
            let cluster = self::asked(&asked, "GET", "/v1/cluster", None).body;
            cluster["nodes"]["live"] == 2 && cluster["shards"]["owned"] == 64
        });
        took.push(now_us() - died);
        assert!(!owners(&asked).contains_key(&gone));
        nodes.others[victim].restart();
    }
    let spans = Spans::new(took.iter().copied());
    let most = took.iter().max().copied().unwrap_or(0);
    let rows = [
        ("timers", timers.to_string()),
        ("deaths", deaths.to_string()),
        ("until all is taken", spans.typical()),
    ];
    figures::print("deaths of a node of three, with leases of 2 s", &rows);
    // The lease and a quarter of a second, and what a machine takes that others use.
    assert!((1_500_000..6_000_000).contains(&most), "{took:?} us");
}

/// `countwheel dev --nodes`, and what it says of itself.
struct Trial {
    child: Child,
    directory: Directory,
    /// Where each node is, and the number of its process.
    nodes: Vec<(SocketAddr, i32)>,
}

impl Trial {
    fn start(nodes: usize) -> Self {
        let directory = Directory::new("trial");
        // The database's user has to be able to remove its directory there, as in /tmp.
        let anybody = Permissions::from_mode(0o1777);
        std::fs::set_permissions(directory.join(""), anybody).expect("it is ours");
        let child = program()
            .args(["dev", "--listen", "127.0.0.1:0", "--nodes"])
            .arg(nodes.to_string())
            .env("TMPDIR", directory.join(""))
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("the program starts");
        let printed = child.stdout.take().expect("it is piped");
        let lines = BufReader::new(printed).lines().map_while(Result::ok);
        let banner: Vec<String> = lines
            .take_while(|line| !line.starts_with("then kill"))
            .collect();
        let found = banner.iter().filter_map(|line| {
            let (_, rest) = line.strip_prefix("node ")?.split_once("http://")?;
            let (address, pid) = rest.split_once("/    pid ")?;
            Some((address.parse().ok()?, pid.parse().ok()?))
        });
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), nodes, "{banner:?}");
        Self {
            child,
            directory,
            nodes: found,
        }
    }

    fn caller(&self, node: usize) -> Caller {
        Caller::connect(self.nodes[node].0).expect("it listens")
    }

    fn set(&self, node: usize, key: &str, millis: u64, receiver: &Receiver) {
        let body = json!({ "in": millis, "target": { "url": receiver.url } });
        let path = format!("/v1/queues/default/timers/{key}");
        let reply = self.caller(node).ask("PUT", &path, Some(&body));
        let reply = reply.expect("it answers");
        assert!(reply.status < 300, "{}: {}", reply.status, reply.body);
    }

    /// The processes that have to do with its directory or are its own: nodes, database, keeper.
    fn processes(&self) -> Vec<(i32, String)> {
        let place = self.directory.join("").display().to_string();
        let all = std::fs::read_dir("/proc").expect("there is one").flatten();
        let numbers = all.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
        let named = numbers.filter_map(|number| {
            let line = std::fs::read(format!("/proc/{number}/cmdline")).ok()?;
            Some((number, String::from_utf8_lossy(&line).replace('\0', " ")))
        });
        let is_node = |number| self.nodes.iter().any(|(_, node)| *node == number);
        // One that has ended and is not waited for has no command line.
        let named = named.filter(|(_, line)| !line.is_empty());
        named
            .filter(|(number, line)| line.contains(&place) || is_node(*number))
            .collect()
    }

    fn directories(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.directory.join("")).expect("it is there");
        all.flatten().map(|it| it.path()).collect()
    }

    /// Nobody is left, and no file.
    fn demand_nothing_left(&self) {
        wait_until("all processes have ended", || self.processes().is_empty());
        wait_until("all files are removed", || self.directories().is_empty());
    }

    fn signal(pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("it is ours");
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process")
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn nodes_to_try_out_take_over_and_leave_nothing_behind() {
    let _turn = turn();
    let receiver = Receiver::start();
    let mut trial = Trial::start(3);
    // Nodes, database and keeper: what is counted at the end is seen while it runs.
    assert!(trial.processes().len() >= 5, "{:?}", trial.processes());
    assert_eq!(trial.directories().len(), 1);
    // The first that joins may have all of them for a moment.
    wait_until("each node has shards", || {
        owners_by(&mut trial.caller(0)).contains_key("b")
    });
    trial.set(0, "first", 200, &receiver);
    wait_until("the first is delivered", || receiver.count() == 1);
    // Some of these are of the node that dies.
    let keys: Vec<String> = (0..24).map(|n| format!("then-{n}")).collect();
    for key in &keys {
        trial.set(2, key, 3_000, &receiver);
    }
    Trial::signal(trial.nodes[1].1, Signal::KILL);
    wait_until("the others fire", || receiver.count() > keys.len() as u64);
    wait_until("the others have its shards", || {
        owners_by(&mut trial.caller(0)).keys().eq(["a", "c"])
    });
    Trial::signal(trial.pid(), Signal::TERM);
    let status = trial.child.wait().expect("it is ours");
    assert_eq!(status.code(), Some(0));
    trial.demand_nothing_left();
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn nodes_to_try_out_end_when_what_started_them_is_killed() {
    let _turn = turn();
    let mut trial = Trial::start(2);
    assert!(trial.processes().len() >= 4, "{:?}", trial.processes());
    trial.child.kill().expect("it is ours");
    trial.child.wait().expect("it is ours");
    trial.demand_nothing_left();
}

/// Sets so many timers that are due long after, in a queue of their own. They have no history.
fn fill(node: &Server, timers: u64) {
    // A few for each shard, that its commits carry more than one.
    const AT_ONCE: u64 = 256;
    let later = json!({"in": "100h", "target": {"url": "http://127.0.0.1:1/"}});
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            let later = &later;
            scope.spawn(move || {
                let mut caller = node.caller();
                for number in (first..timers).step_by(usize::try_from(AT_ONCE).unwrap_or(1)) {
                    let path = format!("/v1/queues/far/timers/{number}");
                    let set = caller.ask("PUT", &path, Some(later)).expect("it answers");
                    assert_eq!(set.status, 201, "{}", set.body);
                }
            });
        }
    });
}

/// How many timers of the default queue wait, by what a node says of all queues and in its metrics, and
/// whether it says that these are all.
fn waiting(node: &Server) -> (u64, bool) {
    let body = asked(node, "GET", "/v1/queues", None).body;
    let queues = body["queues"].as_array().expect("a list");
    let of_queue = queues.iter().find(|queue| queue["queue"] == "default");
    let pending = of_queue.map_or(0, |queue| queue["pending"].as_u64().expect("a number"));
    let metrics = asked(node, "GET", "/metrics", None).body;
    let metrics = metrics.as_str().expect("a text");
    let counted = format!("countwheel_timers{{queue=\"default\",state=\"pending\"}} {pending}\n");
    assert!(pending == 0 || metrics.contains(&counted), "{metrics}");
    let is_exact = metrics.contains("\ncountwheel_counts_exact 1\n");
    (pending, is_exact && body["exact"].is_null())
}

/// On a connection of its own: one of which nothing comes for long is closed.
pub(crate) fn asked(node: &Server, method: &str, path: &str, body: Option<&Value>) -> Reply {
    let reply = node.caller().ask(method, path, body);
    reply.expect("it answers")
}

fn of_timer(number: usize) -> String {
    format!("/v1/queues/default/timers/order-{number}")
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn three_nodes_answer_as_one() {
    const TIMERS: usize = 900;
    let _turn = turn();
    let (nodes, first) = Nodes::start(3);
    let all = || std::iter::once(&first).chain(&nodes.others);
    let later = json!({"in": "1h", "target": {"url": "http://127.0.0.1:1/"}});
    let set_all = |node: &Server, from: usize| {
        for number in (from..TIMERS).step_by(12) {
            let set = asked(node, "PUT", &of_timer(number), Some(&later));
            assert_eq!(set.status, 201, "{}", set.body);
        }
    };
    std::thread::scope(|scope| {
        for (from, node) in all().cycle().take(12).enumerate() {
            let set_all = &set_all;
            scope.spawn(move || set_all(node, from));
        }
    });
    let asks: Vec<_> = all().collect();
    for node in &asks {
        assert_eq!(waiting(node), (TIMERS as u64, true));
        let keys: BTreeSet<_> = node
            .caller()
            .all()
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        assert_eq!(keys.len(), TIMERS);
    }

    // Half of them, each through another node than it was set by.
    for number in (0..TIMERS).step_by(2) {
        let node = asks[(number + 1) % 3];
        let removed = asked(node, "DELETE", &of_timer(number), None);
        assert_eq!(removed.status, 200, "{}", removed.body);
    }
    let left = TIMERS / 2;
    for node in &asks {
        assert_eq!(waiting(node), (left as u64, true));
        assert_eq!(node.caller().all().len(), left);
    }

    // One node is told to drain, and all do.
    let drain = |mode| json!({ "mode": mode });
    let path = "/v1/queues/default:drain";
    let held = asked(asks[1], "POST", path, Some(&drain("hold")));
    assert_eq!(held.body["left"]["pending"], left, "{}", held.body);
    for node in &asks {
        for number in 0..100 {
            let set = asked(node, "PUT", &of_timer(number), Some(&later));
            assert_eq!((set.status, &set.body["code"]), (409, &json!("draining")));
        }
    }
    let mut removed = BTreeSet::new();
    loop {
        let page = asked(asks[2], "POST", path, Some(&drain("remove")));
        let items = page.body["removed"].as_array().expect("a list");
        let keys = items.iter().map(|timer| timer["key"].to_string());
        let before = removed.len();
        removed.extend(keys);
        assert_eq!(removed.len(), before + items.len(), "none comes twice");
        if items.is_empty() {
            assert_eq!(page.body["left"]["pending"], 0);
            break;
        }
    }
    assert_eq!(removed.len(), left);
    for node in &asks {
        assert_eq!(waiting(node), (0, true));
        assert!(node.caller().all().is_empty());
    }
    let resumed = asked(asks[0], "POST", "/v1/queues/default:resume", None);
    assert_eq!(resumed.status, 200, "{}", resumed.body);
    for (number, node) in asks.iter().enumerate() {
        let set = asked(node, "PUT", &of_timer(number), Some(&later));
        assert_eq!(set.status, 201, "{}", set.body);
    }
}
