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

const CELLS: [Cell; 45] = [
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
        write!(f, "{call} {fault} {}", self.when)?;
        match self.on {
            On::Shared => Ok(()),
            On::New => f.write_str(", new"),
        }
    }
}

impl Cell {
    /// A server whose calls go through strace, which notes those that it changed.
    fn launch(&self, notes: &Path, data: &Path) -> Launch {
        let when = if self.fault == SLOW {
            "1+".to_owned()
        } else {
            self.when.to_string()
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
