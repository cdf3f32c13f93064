//! The server as a process that is killed and started again, on the same data and port.

use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use countwheel_disk::unchanged::Tree;
use rustix::process::{Pid, Signal, kill_process};

use super::caller::Caller;
use super::{PATIENCE, Random, micros, now_us, pause, temporary};

/// So many lines of what the server said are shown when a proof fails, the last.
const SAID_MAX: usize = 20;

/// The program, to be given arguments.
pub(crate) fn program() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_countwheel")))
}

/// What a person has set does not count.
fn without_settings(mut command: Command) -> Command {
    command
        .env_remove("COUNTWHEEL_TOKEN")
        .env_remove("COUNTWHEEL_SERVER");
    command
}

/// How the server is started, beyond what is always so.
#[derive(Clone, Default)]
pub(crate) struct Launch {
    /// Another build of the program.
    pub(crate) program: Option<PathBuf>,
    /// A program that runs it, with arguments. It has to leave the server its own process.
    pub(crate) under: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) options: Vec<&'static str>,
    /// Those of this run alone, as addresses are.
    pub(crate) more: Vec<String>,
    /// The URL of a database that has the timers in place of the data directory, and the schema.
    pub(crate) database: Option<(String, String)>,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) data: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) launch: Launch,
    child: Child,
    log: PathBuf,
    /// The data directory before the last start, if it could be read.
    before: Option<Tree>,
    /// Whether reads are all that fails, so that a start that they end has no other cause.
    pub(crate) only_reads_fail: bool,
    /// When it was killed, and when it was ready again, in microseconds since 1970.
    pub(crate) outages: Vec<(u64, u64)>,
    /// How long each start but the first took until the server was ready, in microseconds.
    pub(crate) restarts_us: Vec<u64>,
}

impl Server {
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_as(data, Launch::default())
    }

    pub(crate) fn start_as(data: &Path, launch: Launch) -> Self {
        let mut server = Self::launch(data, launch);
        server
            .wait_until_ready()
            .unwrap_or_else(|why| panic!("{why}"));
        server
    }

    /// Starts it, and does not wait until it is ready.
    pub(crate) fn launch(data: &Path, launch: Launch) -> Self {
        let log = temporary("server");
        let address = free_address();
        let child = spawn(data, address, &launch, &log);
        Self {
            data: data.to_owned(),
            address,
            launch,
            child,
            log,
            before: None,
            only_reads_fail: false,
            outages: Vec::new(),
            restarts_us: Vec::new(),
        }
    }

    /// `kill -9`, unless it ended by itself. Returns when the process is gone.
    pub(crate) fn kill(&mut self) {
        self.outages.push((now_us(), u64::MAX));
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself, and says how; `None` if it does not.
    pub(crate) fn end_within(&mut self, patience: Duration) -> Option<ExitStatus> {
        let end = now_us() + micros(patience);
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return Some(status),
                None if now_us() < end => pause(),
                None => return None,
            }
        }
    }

    /// Starts it again after a kill.
    pub(crate) fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|why| panic!("{why}"));
    }

    /// Starts it again; the error is what the server said when it ended instead.
    pub(crate) fn try_restart(&mut self) -> Result<(), String> {
        let spawned = now_us();
        self.respawn();
        self.wait_until_ready()?;
        let ready = now_us();
        self.restarts_us.push(ready - spawned);
        if let Some(outage) = self.outages.last_mut() {
            outage.1 = ready;
        }
        Ok(())
    }

    /// Starts it again, and does not wait until it is ready.
    pub(crate) fn respawn(&mut self) {
        self.respawn_after(|| ());
    }

    /// The same; `change` is what happens after the directory was looked at.
    pub(crate) fn respawn_after(&mut self, change: impl FnOnce()) {
        self.before = Tree::of(&self.data).ok();
        change();
        self.child = spawn(&self.data, self.address, &self.launch, &self.log);
    }

    /// A connection to the server, which is up.
    pub(crate) fn caller(&self) -> Caller {
        Caller::connect(self.address).expect("the server listens")
    }

    /// What it has written to standard error since it was started last.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(process.expect("a process"), signal).expect("it is ours");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What each of its threads waits for in the kernel, as far as that says so.
    fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let tasks = tasks.into_iter().flatten().flatten();
        let threads = tasks.map(|task| {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let [name, waits] = ["comm", "wchan"].map(read);
            format!("{} {}", name.trim(), waits.trim())
        });
        threads.collect()
    }

    pub(crate) fn wait_until_ready(&mut self) -> Result<(), String> {
        let end = now_us() + micros(PATIENCE);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.demand_unchanged(status);
                return Err(format!("the server ended with {status}: {}", self.said()));
            }
            let reply = Caller::connect(self.address)
                .and_then(|mut caller| caller.ask("GET", "/readyz", None));
            if reply.is_some_and(|reply| reply.status == 200) {
                return Ok(());
            }
            if now_us() > end {
                return Err(format!("the server is not ready: {}", self.said()));
            }
            pause();
        }
    }
}

impl Server {
    /// A start that is refused for what it found changes nothing. One of whose writes or syncs failed
    /// may have written before.
    fn demand_unchanged(&self, status: ExitStatus) {
        let said = self.said();
        let of_its_own = said.contains("os error") && !self.only_reads_fail;
        if status.code() != Some(1) || of_its_own || said.contains("space") {
            return;
        }
        if let (Some(before), Ok(after)) = (&self.before, Tree::of(&self.data)) {
            let changed = before.difference(&after);
            assert_eq!(changed, None, "by a start that was refused: {said}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.said();
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(SAID_MAX)..];
            eprintln!("the server said last: {}", last.join("\n"));
            match self.child.try_wait() {
                Ok(Some(status)) => eprintln!("the server had ended with {status}"),
                _ => eprintln!("the server was at: {}", self.threads().join(", ")),
            }
        }
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
        std::fs::remove_file(&self.log).unwrap_or_default();
    }
}

fn spawn(data: &Path, address: SocketAddr, launch: &Launch, log: &Path) -> Child {
    let mut server = program();
    if let Some(build) = &launch.program {
        server = without_settings(Command::new(build));
    }
    let mut command = match launch.under.split_first() {
        None => server,
        Some((under, arguments)) => {
            let mut command = Command::new(under);
            command.args(arguments).arg(server.get_program());
            for (name, value) in server.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            command
        }
    };
    let place: Vec<OsString> = match &launch.database {
        Some((url, schema)) => ["--store", url, "--schema", schema]
            .map(OsString::from)
            .into(),
        None => vec!["--data".into(), data.into()],
    };
    command
        .args(["serve", "--allow-private-targets", "--log-level", "warn"])
        .args(["--log-segment-mib", "1"])
        // The checker knows what pending means, and not that a suspect may have been tried; the
        // proof of crash loops sets its own.
        .args(hold(&launch.options))
        .args(["--listen", &address.to_string()])
        .args(&launch.options)
        .args(&launch.more)
        .args(place)
        .envs(launch.environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .stderr(File::create(log).unwrap())
        .spawn()
        .unwrap()
}

/// No suspect waits, unless the proof says how long.
fn hold(options: &[&str]) -> &'static [&'static str] {
    if options.contains(&"--suspect-hold") {
        &[]
    } else {
        &["--suspect-hold", "0s"]
    }
}

/// An address that is free now and stays so while the server is down: below the ports that
/// the system hands out to whoever connects.
pub(crate) fn free_address() -> SocketAddr {
    let mut random = Random::new(getrandom::u64().unwrap());
    loop {
        let port = u16::try_from(random.between(10_000, 32_000)).expect("a port");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
