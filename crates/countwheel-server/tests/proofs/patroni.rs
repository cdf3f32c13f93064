//! Three nodes under load on three servers of PostgreSQL, of which Patroni makes one the primary: its machine dies,
//! again and again, and nothing that was acknowledged is lost.
//!
//! `COUNTWHEEL_FAILOVERS` says how often, `COUNTWHEEL_SEED` repeats what is asked.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use countwheel_postgres::testing;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::caller::Caller;
use crate::harness::figures::{self, Spans};
use crate::harness::load::{Load, span};
use crate::harness::process::{Launch, Server, free_address, program};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, Random, micros, now_us, pause, seed, setting, turn, wait};
use crate::nodes::asked as ask;

/// So many failovers come until the node that is asked is killed as well, and all is looked at.
const AT_ONCE: u64 = 2;
/// Longer than Patroni takes for anything.
const LONG: Duration = Duration::from_secs(180);
const SCHEMA: &str = "patroni";

/// Waits until `holds`, for as long as Patroni may take.
#[track_caller]
fn wait_long(what: &str, mut holds: impl FnMut() -> bool) {
    let end = now_us() + micros(LONG);
    while !holds() {
        assert!(now_us() < end, "waited in vain: {what}");
        wait(Duration::from_millis(50));
    }
}

/// A program of which nothing is left.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// One of the machines with a database.
struct Member {
    place: PathBuf,
    /// Where Patroni answers.
    api: SocketAddr,
    database: SocketAddr,
    patroni: Option<Running>,
}

impl Member {
    fn start(&mut self, user: Option<(u32, u32)>) {
        let log = File::create(self.place.join("log")).unwrap();
        let mut command = Command::new("patroni");
        command.arg(self.place.join("patroni.yml"));
        command.current_dir(&self.place).env("HOME", &self.place);
        if let Some((user, group)) = user {
            command.uid(user).gid(group);
        }
        let errors = log.try_clone().unwrap();
        let child = command.stdout(log).stderr(errors).spawn();
        self.patroni = Some(Running(child.expect("the command has installed it")));
    }

    /// Whether it is what Patroni calls so.
    fn is(&self, what: &str) -> bool {
        let answer =
            Caller::connect(self.api).and_then(|mut it| it.ask("GET", &format!("/{what}"), None));
        answer.is_some_and(|answer| answer.status == 200)
    }

    /// All that runs on it ends at once.
    fn die(&mut self) {
        let data = self.place.join("data");
        let postmaster = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        let postmaster = postmaster.lines().next().unwrap_or_default().to_owned();
        drop(self.patroni.take());
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = all.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
        for number in numbers {
            let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            let is_its = parent.is_some_and(|it| it.trim() == postmaster);
            if is_its || number.to_string() == postmaster {
                let pid = Pid::from_raw(number);
                let _gone_already = pid.map(|pid| kill_process(pid, Signal::KILL));
            }
        }
    }

    fn said(&self) -> String {
        let said = fs::read_to_string(self.place.join("log")).unwrap_or_default();
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.die();
        if std::thread::panicking() {
            eprintln!("{}: {}", self.place.display(), self.said());
        }
    }
}

/// Three of them, and what they agree by.
struct Trio {
    members: Vec<Member>,
    user: Option<(u32, u32)>,
    _etcd: Running,
    _place: TempDir,
}

impl Trio {
    fn start() -> Self {
        let user = testing::Server::user().expect("there is a user postgres");
        let place = tempfile::Builder::new()
            .prefix("countwheel-patroni-")
            .tempdir()
            .unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        let [etcd, peers] = [free_address(), free_address()];
        let store = Self::etcd(place.path(), etcd, peers);
        let names = ["a", "b", "c"];
        let members = names.map(|name| {
            let place = place.path().join(name);
            fs::create_dir(&place).unwrap();
            if let Some((user, group)) = user {
                chown(&place, Some(user), Some(group)).unwrap();
            }
            let [api, database] = [free_address(), free_address()];
            let settings = settings(name, &place, api, database, etcd);
            fs::write(place.join("patroni.yml"), settings).unwrap();
            Member {
                place,
                api,
                database,
                patroni: None,
            }
        });
        let mut trio = Self {
            members: members.into(),
            user,
            _etcd: store,
            _place: place,
        };
        for at in 0..trio.members.len() {
            trio.members[at].start(user);
            // The first makes the database, the others copy it.
            wait_long("a member is there", || {
                trio.members[at].is("leader") || trio.members[at].is("replica")
            });
        }
        trio.wait_for_standby();
        trio
    }

    fn etcd(place: &Path, callers: SocketAddr, peers: SocketAddr) -> Running {
        let [callers, peers] = [callers, peers].map(|at| format!("http://{at}"));
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(place.join("etcd"))
            .args(["--listen-client-urls", &callers])
            .args(["--advertise-client-urls", &callers])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Running(child.expect("the command has installed it"))
    }

    fn leader(&self) -> Option<usize> {
        self.members.iter().position(|member| member.is("leader"))
    }

    fn wait_for_standby(&self) {
        wait_long("the primary waits for a standby", || {
            self.leader().is_some() && self.members.iter().any(|member| member.is("sync"))
        });
    }

    /// All three, for a client that finds the primary by itself.
    fn url(&self) -> String {
        let places: Vec<_> = self
            .members
            .iter()
            .map(|member| member.database.to_string())
            .collect();
        format!(
            "postgres://postgres@{}/postgres?target_session_attrs=read-write",
            places.join(",")
        )
    }

    fn count(&self, question: &str) -> u64 {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        psql.args(["--dbname", &self.url(), "--command", question]);
        let said = psql.output().expect("it is installed").stdout;
        let said = String::from_utf8_lossy(&said);
        said.trim().parse().expect("a number")
    }
}

/// What Patroni reads: as for machines, but for times that are short.
fn settings(
    name: &str,
    place: &Path,
    api: SocketAddr,
    database: SocketAddr,
    etcd: SocketAddr,
) -> String {
    let place = place.display();
    let here = Ipv4Addr::LOCALHOST;
    format!(
        "scope: countwheel
name: {name}
restapi: {{listen: '{api}', connect_address: '{api}'}}
etcd3: {{host: '{etcd}'}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 8
    maximum_lag_on_failover: 1048576
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters: {{max_connections: 100, wal_log_hints: 'on'}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}, {{auth: trust}}, data-checksums]
postgresql:
  listen: '{database}'
  connect_address: '{database}'
  data_dir: {place}/data
  bin_dir: /usr/lib/postgresql/15/bin
  pgpass: {place}/pgpass
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: replicator}}
  pg_hba:
  - local all all trust
  - host all all {here}/32 trust
  - host replication all {here}/32 trust
  parameters: {{unix_socket_directories: {place}}}
"
    )
}

#[test]
#[ignore = "needs Patroni and etcd: cargo xtask nodes-patroni"]
fn failovers_by_patroni_lose_nothing() {
    let _turn = turn();
    let failovers = setting("COUNTWHEEL_FAILOVERS", || 10);
    let mut random = Random::new(seed());
    let directory = Directory::new("patroni");
    let receiver = Receiver::start();
    let mut trio = Trio::start();
    let made = program()
        .args(["cluster", "init", "--store", &trio.url()])
        .args(["--schema", SCHEMA])
        .status();
    assert!(made.expect("the program starts").success());
    let launch = Launch {
        database: Some((trio.url(), SCHEMA.to_owned())),
        options: vec!["--lease-ttl", "2s"],
        ..Launch::default()
    };
    let start = now_us();
    let [mut asked, _second, _third] =
        [(), (), ()].map(|()| Server::start_as(&directory.join("data"), launch.clone()));
    let mut load = Load::of_a_node(&receiver.url, &mut random);
    let [mut promoted, mut ready, mut back] = [const { Vec::new() }; 3];
    let mut done = 0;
    while done < failovers {
        let now = AT_ONCE.min(failovers - done);
        load.until(&mut asked, |asked| {
            for _ in 0..now {
                wait(span(
                    &mut random,
                    Duration::from_millis(300),
                    Duration::from_secs(2),
                ));
                let leader = trio.leader().expect("there is one");
                let began = now_us();
                trio.members[leader].die();
                wait_long("another one is the primary", || trio.leader().is_some());
                promoted.push(now_us() - began);
                wait_long("the node is ready again", || {
                    ask(asked, "GET", "/readyz", None).status == 200
                });
                ready.push(now_us() - began);
                asked.outages.push((began, now_us()));
                let user = trio.user;
                trio.members[leader].start(user);
                wait_long("it is back as a standby", || {
                    trio.members[leader].is("replica")
                });
                trio.wait_for_standby();
                back.push(now_us() - began);
            }
            wait(Duration::from_millis(300));
        });
        asked.restart();
        done += now;
        println!("{done} failovers");
        pause();
    }
    let took_us = now_us() - start;
    let lost = trio.count(&format!("SELECT count(*) FROM {SCHEMA}.loss"));
    let mut settled = load.settle(&asked, &receiver);
    // What a node had begun to commit is done, or not, once there is a primary again.
    settled.evidence.under_way_us = micros(Duration::from_secs(60));
    let rows = [
        ("losses that nodes noticed", lost.to_string()),
        (
            "until another one is the primary",
            Spans::new(promoted).typical(),
        ),
        ("until the node is ready again", Spans::new(ready).typical()),
        ("until the old one is a standby", Spans::new(back).typical()),
    ];
    figures::print("failovers by Patroni, with a TTL of 20 s", &rows);
    let title = format!("{failovers} failovers under three nodes with load");
    settled.demand_innocence(&title, &asked, took_us);
    assert_eq!(lost, 0);
}
