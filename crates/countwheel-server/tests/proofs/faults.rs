//! Calls of the real server to the system fail, one after the other: nothing that it
//! acknowledged is lost, nobody is told a success that was none, and a sync that failed ends
//! it.
//!
//! `COUNTWHEEL_CELLS=all` takes every cell, not just those of the gate; `COUNTWHEEL_SEED`
//! repeats what is asked.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::harness::checker::{Verdict, judge};
use crate::harness::load::Load;
use crate::harness::mounts::{Mounted, run, try_run};
use crate::harness::process::{Launch, Server};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, Random, figures, seed, setting, turn, wait, wait_until};

const SYNC: &str = "fdatasync,fsync,sync_file_range,msync";
const WRITE: &str = "pwrite64,pwritev,pwritev2";
const LENGTH: &str = "ftruncate,fallocate";
const NAME: &str = "mkdir,mkdirat,unlink,unlinkat,link,linkat";
const RENAME: &str = "rename,renameat,renameat2";
const READ: &str = "pread64,preadv,preadv2";
const OPEN: &str = "openat";

/// How long the server has under load to come to the call that fails.
const REACH: Duration = Duration::from_millis(1_500);
const SIGKILL: i32 = 9;
const STORE_FAILED: i32 = 3;
const NOT_STARTED: i32 = 1;

/// One call that fails in one way at one time. Times are counted by thread and by call: the
/// first of them are those of the start.
#[derive(Clone, Copy)]
struct Cell {
    call: &'static str,
    fault: &'static str,
    when: u32,
    /// Whether all such calls fail from then on.
    lasts: bool,
    on: On,
    in_gate: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum On {
    /// The store that all these cells share, with all that was asked of it.
    Shared,
    /// A directory that is not there yet.
    New,
}

const fn cell(call: &'static str, fault: &'static str, when: u32) -> Cell {
    Cell {
        call,
        fault,
        when,
        lasts: false,
        on: On::Shared,
        in_gate: false,
    }
}

const fn new(call: &'static str, fault: &'static str, when: u32) -> Cell {
    Cell {
        on: On::New,
        ..cell(call, fault, when)
    }
}

const fn lasting(cell: Cell) -> Cell {
    Cell {
        lasts: true,
        ..cell
    }
}

const fn gate(cell: Cell) -> Cell {
    Cell {
        in_gate: true,
        ..cell
    }
}

const EIO: &str = "error=EIO";
const ENOSPC: &str = "error=ENOSPC";
const EDQUOT: &str = "error=EDQUOT";
const KILL: &str = "signal=SIGKILL";
/// Each call takes 50 ms.
const SLOW: &str = "delay_exit=50000";

const CELLS: [Cell; 51] = [
    gate(cell(SYNC, EIO, 1)),
    cell(SYNC, EIO, 2),
    cell(SYNC, EIO, 3),
    cell(SYNC, EIO, 4),
    gate(cell(SYNC, EIO, 6)),
    cell(SYNC, EIO, 10),
    gate(cell(SYNC, EIO, 20)),
    cell(SYNC, EIO, 40),
    cell(SYNC, ENOSPC, 5),
    gate(cell(SYNC, ENOSPC, 12)),
    cell(SYNC, EDQUOT, 8),
    cell(SYNC, KILL, 1),
    cell(SYNC, KILL, 2),
    cell(SYNC, KILL, 3),
    cell(SYNC, KILL, 5),
    gate(cell(SYNC, KILL, 10)),
    cell(SYNC, KILL, 30),
    gate(cell(SYNC, SLOW, 1)),
    cell(WRITE, ENOSPC, 1),
    cell(WRITE, ENOSPC, 2),
    cell(WRITE, ENOSPC, 3),
    cell(WRITE, ENOSPC, 5),
    cell(WRITE, ENOSPC, 10),
    gate(cell(WRITE, ENOSPC, 20)),
    cell(WRITE, ENOSPC, 50),
    cell(WRITE, ENOSPC, 100),
    cell(WRITE, EDQUOT, 15),
    gate(lasting(cell(WRITE, ENOSPC, 25))),
    lasting(cell(WRITE, ENOSPC, 60)),
    lasting(cell(WRITE, EDQUOT, 40)),
    cell(WRITE, EIO, 1),
    cell(WRITE, EIO, 4),
    cell(WRITE, EIO, 8),
    gate(cell(WRITE, EIO, 30)),
    cell(WRITE, KILL, 15),
    cell(OPEN, EIO, 1),
    gate(cell(OPEN, EIO, 3)),
    cell(READ, EIO, 1),
    gate(cell(READ, EIO, 2)),
    new(SYNC, EIO, 1),
    gate(new(SYNC, EIO, 3)),
    new(SYNC, EIO, 6),
    cell(RENAME, ENOSPC, 4),
    cell(RENAME, ENOSPC, 6),
    new(LENGTH, ENOSPC, 1),
    new(LENGTH, EIO, 1),
    new(NAME, EIO, 1),
    gate(new(RENAME, EIO, 1)),
    new(RENAME, EIO, 2),
    new(RENAME, KILL, 1),
    new(RENAME, KILL, 2),
];

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match self.call {
            SYNC => "sync",
            WRITE => "write",
            LENGTH => "length",
            NAME => "name",
            RENAME => "rename",
            READ => "read",
            _ => "open",
        };
        let (_, fault) = self.fault.split_once('=').unwrap_or_default();
        let fault = if self.fault == SLOW { "50 ms" } else { fault };
        let on = if self.lasts { "+" } else { "" };
        write!(f, "{call} {fault} {}{on}", self.when)?;
        match self.on {
            On::Shared => Ok(()),
            On::New => f.write_str(", new"),
        }
    }
}

impl Cell {
    /// A server whose calls go through strace, which notes those that it changed.
    fn launch(&self, notes: &Path, data: &Path) -> Launch {
        let when = match (self.fault, self.lasts) {
            (SLOW, _) => "1+".to_owned(),
            (_, true) => format!("{}+", self.when),
            (_, false) => self.when.to_string(),
        };
        let mut under = vec!["strace".into(), "-D".into(), "-f".into(), "-qq".into()];
        under.extend(["-o".into(), notes.into()]);
        under.extend(["-e".into(), format!("trace={}", self.call).into()]);
        let inject = format!("inject={}:{}:when={when}", self.call, self.fault);
        under.extend(["-e".into(), inject.into()]);
        if matches!(self.call, OPEN | READ) {
            // Of its own files only: others are read by every program that starts.
            for file in files(data) {
                under.extend(["-P".into(), file.into()]);
            }
        }
        under.push("--".into());
        Launch {
            under,
            ..Launch::default()
        }
    }

    /// Runs the server with this fault; afterwards it is gone.
    fn run(&self, server: &mut Server, load: &mut Load, notes: &Path) -> End {
        server.launch = self.launch(notes, &server.data);
        server.respawn();
        let ended = match server.wait_until_ready() {
            Err(_) => server.end_within(Duration::ZERO),
            Ok(()) if self.on == On::New => None,
            Ok(()) => load.until(server, |server| server.end_within(REACH)),
        };
        server.kill();
        server.launch = Launch::default();
        let notes = std::fs::read_to_string(notes).unwrap_or_default();
        let reached = ["INJECTED", "DELAYED"]
            .iter()
            .any(|one| notes.contains(one));
        let killed = ended.is_some_and(|status| status.signal() == Some(SIGKILL));
        if !reached && !killed {
            return End::NotReached;
        }
        ended.map_or(End::WentOn, End::Ended)
    }

    /// How it has to end.
    fn allows(&self, end: End) -> bool {
        match (end, self.fault) {
            (End::NotReached, _) | (End::WentOn, SLOW) => true,
            (End::Ended(status), KILL) => status.signal() == Some(SIGKILL),
            (_, KILL | SLOW) => false,
            // A call that fails may be one that it can do without, but for a sync.
            (End::WentOn, _) => self.call != SYNC,
            // A full disk is one whichever call says so, but for a sync.
            (End::Ended(status), ENOSPC | EDQUOT) if self.call != SYNC && self.on == On::Shared => {
                status.code() == Some(NOT_STARTED)
            }
            (End::Ended(status), _) => {
                matches!(status.code(), Some(STORE_FAILED | NOT_STARTED))
            }
        }
    }
}

/// How the server took it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    NotReached,
    WentOn,
    Ended(ExitStatus),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReached => f.write_str("not reached"),
            Self::WentOn => f.write_str("went on"),
            Self::Ended(status) => match status.code() {
                Some(STORE_FAILED) => f.write_str("ended: the store failed"),
                Some(NOT_STARTED) => f.write_str("did not start"),
                _ => write!(f, "{status}"),
            },
        }
    }
}

/// All files below, and the directory itself.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![directory.to_owned()];
    let mut place = 0;
    while let Some(path) = found.get(place) {
        let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
        let inside: Vec<_> = inside.map(|entry| entry.path()).collect();
        found.extend(inside);
        place += 1;
    }
    found
}

#[test]
#[ignore = "20 seconds, needs strace: cargo xtask check faults"]
fn no_call_that_fails_loses_anything() {
    let _turn = turn();
    let all = std::env::var("COUNTWHEEL_CELLS").is_ok_and(|cells| cells == "all");
    let mut random = Random::new(seed());
    let directory = Directory::new("faults");
    let notes = directory.join("strace");
    let receiver = Receiver::start();
    let mut server = Server::start(&directory.join("data"));
    let mut load = Load::new(&receiver.url, &mut random);
    load.kill_after(&mut server, Duration::from_millis(300));
    server.kill();
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    let cells = CELLS.iter().filter(|cell| all || cell.in_gate);
    for (number, cell) in cells.enumerate() {
        std::fs::remove_file(&notes).unwrap_or_default();
        let name = cell.to_string();
        let end = match cell.on {
            On::Shared => cell.run(&mut server, &mut load, &notes),
            On::New => {
                let data = directory.join(&format!("data-{number}"));
                let launch = Launch::default();
                let mut new = Server::launch(&data, launch);
                new.kill();
                std::fs::remove_dir_all(&data).unwrap_or_default();
                let end = cell.run(&mut new, &mut load, &notes);
                if let Err(why) = new.try_restart() {
                    wrong.push(format!("{name}: not opened afterwards: {why}"));
                }
                end
            }
        };
        if !cell.allows(end) {
            wrong.push(format!("{name}: {end}: {}", server.said()));
        }
        if cell.on == On::Shared {
            server.restart();
            // What it had acknowledged is looked at under the next load, and at the end.
            load.kill_after(&mut server, Duration::from_millis(20));
            server.kill();
        }
        rows.push((name, end));
    }
    server.restart();
    let settled = load.settle(&server, &receiver);
    let verdict = judge(&settled.evidence);
    let cells: Vec<_> = rows
        .iter()
        .map(|(name, end)| (name.as_str(), end.to_string()))
        .collect();
    figures::print("Calls that fail", &cells);
    let mut sums = settled.rows(&verdict, &server);
    let health = &settled.health_after_failure;
    sums.push(("health, failed", format!("{health:?}")));
    figures::print("All of them together", &sums);
    assert!(wrong.is_empty(), "{wrong:#?}");
    settled.demand_red_health();
    verdict.demand_innocence();
    let missed = rows.iter().filter(|(_, end)| *end == End::NotReached);
    let missed: Vec<_> = missed.map(|(name, _)| name).collect();
    // How often a store calls is its own affair; most of the table has to fit all the same.
    assert!(missed.len() * 8 <= rows.len(), "not reached: {missed:?}");
}

#[test]
#[ignore = "part of faults, needs root: cargo xtask check faults"]
fn a_full_tmpfs_loses_nothing() {
    let _turn = turn();
    let directory = Directory::new("faults-full-tmpfs");
    let mount = directory.join("mount");
    // Without the ballast there is room for the segments that a log keeps, of 1 MiB each.
    let _mounted = Mounted::memory(&mount, 16 << 20);
    full("A tmpfs of 16 MiB", &mount, 11 << 20);
}

#[test]
#[ignore = "part of faults, needs root: cargo xtask check faults"]
fn a_full_ext4_loses_nothing() {
    let _turn = turn();
    let directory = Directory::new("faults-full-ext4");
    let (image, mount) = (directory.join("image"), directory.join("mount"));
    Mounted::format(&image, 16 << 20);
    let _mounted = Mounted::ext4(&image, &mount, "");
    full("An ext4 of 16 MiB", &mount, 9 << 20);
}

/// Fills the disk by load, first with something else on it, then with room again.
fn full(title: &str, mount: &Path, ballast_bytes: usize) {
    let mut random = Random::new(seed());
    let receiver = Receiver::start();
    let ballast = mount.join("ballast");
    std::fs::write(&ballast, vec![1; ballast_bytes]).unwrap();
    std::fs::File::open(&ballast).unwrap().sync_all().unwrap();
    let mut server = Server::start(&mount.join("data"));
    let mut load = Load::new(&receiver.url, &mut random);
    let patience = Duration::from_secs(setting("COUNTWHEEL_FULL_SECONDS", || 6));
    let ended = load.until(&mut server, |server| server.end_within(patience));
    if let Some(status) = ended {
        assert_eq!(status.code(), Some(STORE_FAILED), "{}", server.said());
    }
    let still_full = match server.try_restart() {
        Ok(()) => "opened",
        Err(why) => {
            assert!(why.contains("space"), "{why}");
            "refused, and said why"
        }
    };
    server.kill();
    std::fs::remove_file(&ballast).unwrap();
    server.restart();
    load.kill_after(&mut server, Duration::from_millis(200));
    let settled = load.settle(&server, &receiver);
    let verdict = judge(&settled.evidence);
    let mut rows = vec![
        (
            "when it was full",
            ended.map_or("went on".to_owned(), |status| status.to_string()),
        ),
        ("started while full", still_full.to_owned()),
        ("refused", settled.refused.to_string()),
    ];
    rows.extend(settled.rows(&verdict, &server));
    figures::print(title, &rows);
    settled.demand_red_health();
    verdict.demand_innocence();
    assert!(
        ended.is_some() || settled.refused > 0,
        "the disk was never full"
    );
    assert_accepts(&verdict);
}

/// What is open stays open. What needs another file waits for it, as for room on a full disk.
#[test]
#[ignore = "part of faults: cargo xtask check faults"]
fn no_file_can_be_opened_for_a_while_and_nothing_is_lost() {
    const TIMERS: usize = 2_000;
    let _turn = turn();
    let directory = Directory::new("faults-descriptors");
    let mut server = Server::start(&directory.join("data"));
    let mut caller = server.caller();
    let path = |number: usize| format!("/v1/queues/default/timers/{number}");
    let body = json!({
        "in": "1h",
        "body": "timers ".repeat(1_000),
        "content_type": "text/plain",
        "target": {"url": "http://127.0.0.1:9/"},
    });
    let mut set = |number| {
        let reply = caller.ask("PUT", &path(number), Some(&body));
        reply.expect("an answer").status
    };
    let limit = |to| {
        let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
        prlimit(pid, Resource::Nofile, to).unwrap()
    };
    let mut next = 0..TIMERS;
    assert!(next.by_ref().take(100).all(|number| set(number) == 201));
    let before = limit(Rlimit {
        current: Some(0),
        maximum: getrlimit(Resource::Nofile).maximum,
    });
    let refused = next.find(|&number| set(number) != 201);
    let refused = refused.expect("a file has to be opened some time");
    assert_eq!(set(refused), 507);
    limit(before);
    wait_until("it takes timers again", || set(refused) == 201);
    assert!(next.all(|number| set(number) == 201));
    let waited = server.said().matches("no file can be opened").count();
    server.kill();
    server.restart();
    let mut caller = server.caller();
    let mut has = |number| {
        caller
            .ask("GET", &path(number), None)
            .expect("an answer")
            .status
            == 200
    };
    assert!((0..TIMERS).all(&mut has));
    figures::print(
        "No file can be opened",
        &[
            ("timers", TIMERS.to_string()),
            ("refused first", refused.to_string()),
            ("opened in vain", waited.to_string()),
        ],
    );
    assert!(waited > 0, "nobody was told why: {}", server.said());
}

/// What makes calls of a running server fail, until it is dropped.
struct Attached {
    strace: std::process::Child,
}

impl Attached {
    /// From now on these calls fail, of any file or of those given.
    fn to(server: &Server, call: &str, fault: &str, of: &[std::path::PathBuf]) -> Self {
        let mut command = std::process::Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e"]);
        command.arg(format!("trace={call}"));
        command.args(["-e", &format!("inject={call}:{fault}:when=1+")]);
        for path in of {
            command.arg("-P").arg(path);
        }
        command.args(["-p", &server.pid().to_string()]);
        let strace = command.spawn().unwrap();
        Self { strace }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Asked to end it lets go of the server; killed it might not.
        let pid = Pid::from_child(&self.strace);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap_or_default();
        self.strace.wait().map(drop).unwrap_or_default();
    }
}

/// What health says: the status, and why it is degraded.
fn health(server: &Server) -> (u16, Vec<String>) {
    let reply = server.caller().ask("GET", "/healthz", None);
    let reply = reply.expect("an answer");
    let degraded = reply.body["degraded"].as_array().cloned();
    let reasons = degraded.unwrap_or_default();
    let reasons = reasons.iter().filter_map(|one| one["reason"].as_str());
    (reply.status, reasons.map(str::to_owned).collect())
}

/// A write that found no room, and zeros in its place that found none either, ended the service.
#[test]
#[ignore = "part of faults, needs strace: cargo xtask check faults"]
fn a_disk_without_room_for_any_write_is_full_and_no_more() {
    let _turn = turn();
    let directory = Directory::new("faults-no-write");
    let snapshots: &'static str = directory.join("snapshots").display().to_string().leak();
    let launch = Launch {
        options: vec!["--snapshot-dir", snapshots],
        ..Launch::default()
    };
    let mut server = Server::start_as(&directory.join("data"), launch);
    let body = json!({"in": "1h", "target": {"url": "http://127.0.0.1:9/"}});
    let path = |number: usize| format!("/v1/queues/default/timers/{number}");
    let mut acknowledged = Vec::new();
    let mut next = 0;
    let mut set = |server: &Server| {
        next += 1;
        let reply = server.caller().ask("PUT", &path(next), Some(&body));
        let status = reply.expect("an answer").status;
        if status == 201 {
            acknowledged.push(next);
        }
        status
    };
    let mut rows = Vec::new();
    for fault in [ENOSPC, EDQUOT] {
        assert_eq!(set(&server), 201);
        let attached = Attached::to(&server, WRITE, fault, &[]);
        wait_until("a set is refused", || set(&server) == 507);
        let mut refused = 0;
        for _ in 0..50 {
            assert_eq!(set(&server), 507);
            refused += 1;
            assert_eq!(health(&server), (200, vec!["disk_full".to_owned()]));
        }
        drop(attached);
        wait_until("it takes timers again", || set(&server) == 201);
        wait_until("health is green", || health(&server) == (200, vec![]));
        rows.push((fault, format!("{refused} refused")));
    }
    // Of a snapshot, which is the one that asks for another length.
    let snapshot = |server: &Server, name: &str| {
        let named = json!({ "name": name });
        let reply = server.caller().ask("POST", "/v1/snapshots", Some(&named));
        reply.expect("an answer").status
    };
    let attached = Attached::to(&server, LENGTH, ENOSPC, &[]);
    let mut made = 0;
    wait_until("a snapshot is refused", || {
        made += 1;
        snapshot(&server, &format!("made-{made}")) == 507
    });
    assert_eq!(set(&server), 201, "nobody else is");
    drop(attached);
    assert_eq!(snapshot(&server, "last"), 201);
    server.kill();
    server.restart();
    let mut caller = server.caller();
    for &number in &acknowledged {
        let reply = caller.ask("GET", &path(number), None).expect("an answer");
        assert_eq!(reply.status, 200, "{number}");
    }
    rows.push(("acknowledged, and there", acknowledged.len().to_string()));
    figures::print("No room for any write", &rows);
}

/// A segment of the log of which nothing could be read ended the service as soon as it was to move.
#[test]
#[ignore = "part of faults, needs strace: cargo xtask check faults"]
fn a_segment_that_gives_nothing_back_stops_nobody_else() {
    let _turn = turn();
    let directory = Directory::new("faults-segment");
    let data = directory.join("data");
    let receiver = Receiver::start();
    let server = Server::start(&data);
    let mut caller = server.caller();
    let path = |key: &str| format!("/v1/queues/default/timers/{key}");
    let mut ask = |method: &str, key: &str, body: Option<serde_json::Value>| {
        let reply = caller.ask(method, &path(key), body.as_ref());
        reply.expect("an answer").status
    };
    let timer = |within: &str, text: &str| {
        Some(json!({
            "in": within, "body": text, "content_type": "text/plain",
            "target": {"url": receiver.url},
        }))
    };
    assert_eq!(ask("PUT", "lost", timer("2s", "lost")), 201);
    assert_eq!(ask("PUT", "later", timer("1h", "later")), 201);
    let segment = data.join("log/segment-0000000000000001");
    let attached = Attached::to(&server, READ, EIO, &[segment]);
    wait_until("it cannot be read", || ask("GET", "later", None) == 500);
    assert_eq!(health(&server), (200, vec!["unreadable_record".to_owned()]));
    // Until it would have moved long ago. Who is due in it is put aside.
    let filling = "x".repeat(900_000);
    for number in 0..3 {
        let key = format!("filling-{number}");
        assert_eq!(ask("PUT", &key, timer("1h", &filling)), 201);
    }
    assert_eq!(ask("PUT", "now", timer("0s", "now")), 201);
    wait_until("it is kept, and that is told", || {
        let (status, reasons) = health(&server);
        assert_eq!(status, 200, "{}", server.said());
        reasons.iter().any(|reason| reason == "unreadable_segment")
    });
    let arrived = |key: &str| receiver.arrivals().iter().any(|one| one.key == key);
    wait_until("the others are delivered", || arrived("now"));
    wait_until("it is due", || health(&server).1.len() >= 3);
    assert!(!arrived("lost"));
    drop(attached);
    wait_until("it can be read again", || ask("GET", "later", None) == 200);
    assert_eq!(ask("PUT", "lost", timer("0s", "lost")), 200);
    wait_until("nothing is lost", || arrived("lost"));
    wait_until("health is green", || {
        // It says what the store said when something was last done.
        ask("PUT", "more", timer("1h", "more"));
        health(&server) == (200, vec![])
    });
}

#[test]
#[ignore = "part of faults, needs root: cargo xtask check faults"]
fn a_disk_that_turns_read_only_loses_nothing() {
    let _turn = turn();
    let mut random = Random::new(seed());
    let directory = Directory::new("faults-read-only");
    let (image, mount) = (directory.join("image"), directory.join("mount"));
    Mounted::format(&image, 32 << 20);
    let mounted = Mounted::ext4(&image, &mount, ",errors=remount-ro");
    let receiver = Receiver::start();
    let mut server = Server::start(&mount.join("data"));
    let mut load = Load::new(&receiver.url, &mut random);
    let trigger = trigger_of(&mount);
    let ended = load.until(&mut server, |server| {
        wait(Duration::from_millis(200));
        // The kernel takes it for an error of the file system, and does what it is told to do.
        std::fs::write(&trigger, "an error by intent").unwrap();
        server.end_within(Duration::from_secs(5))
    });
    let ended = ended.unwrap_or_else(|| panic!("it went on on a read-only disk"));
    assert_eq!(ended.code(), Some(STORE_FAILED), "{}", server.said());
    let why = server.try_restart().expect_err("the disk is read-only");
    assert!(why.contains("Read-only"), "{why}");
    drop(mounted);
    // It finds the error that was noted, and says so with its exit code.
    try_run("e2fsck", &[&"-p", &image]).unwrap_or_default();
    let mounted = Mounted::ext4(&image, &mount, "");
    server.restart();
    let settled = load.settle(&server, &receiver);
    let verdict = judge(&settled.evidence);
    figures::print(
        "An ext4 that turned read-only",
        &settled.rows(&verdict, &server),
    );
    settled.demand_red_health();
    verdict.demand_innocence();
    assert_accepts(&verdict);
    drop(server);
    drop(mounted);
}

/// Where the kernel can be told that an ext4 has an error.
fn trigger_of(mount: &Path) -> std::path::PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mount.canonicalize().unwrap();
    let device = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let device = words.next()?;
        (Path::new(words.next()?) == mount).then_some(device)
    });
    let device = Path::new(device.unwrap()).file_name().unwrap();
    run("sync", &[&"-f", &mount]);
    Path::new("/sys/fs/ext4")
        .join(device)
        .join("trigger_fs_error")
}

fn assert_accepts(verdict: &Verdict) {
    assert!(verdict.sets > 0 && verdict.delivered > 0, "{verdict:?}");
}
