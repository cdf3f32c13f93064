//! Programs that the benchmark starts, and ends.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

/// How long a program may take until it says that it is ready.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// A process that ends with this.
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program whose log goes to a file. A closed input tells a program that this one has ended.
    pub(crate) fn start(command: &mut Command, log: PathBuf, out: Stdio) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("{} does not start", command.get_program().display()))?;
        Ok(Self { child, log })
    }

    /// Waits for a line that begins with `ready`, and returns it.
    pub(crate) fn ready(&mut self) -> anyhow::Result<String> {
        let out = self.child.stdout.take().context("the output is taken")?;
        let (send, receive) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Nobody listens after the first line.
                send.send(line).unwrap_or_default();
            }
        });
        let line = receive.recv_timeout(STARTS_WITHIN);
        let line = line.with_context(|| format!("it is not ready: {}", self.said()))?;
        ensure!(line.starts_with("ready"), "it is not ready: {line}");
        Ok(line)
    }

    /// The end of its log.
    pub(crate) fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// The service on a directory of its own. The fields are dropped in this order.
pub(crate) struct Program {
    process: Process,
    _directory: TempDir,
    pub(crate) port: u16,
}

impl Program {
    /// The number that the system has for the process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// An amount of memory that the system names for the process, in MiB.
    pub(crate) fn memory(&self, what: &str) -> anyhow::Result<f64> {
        memory_of(self.pid(), what)
    }

    pub(crate) fn start(program: &Path, place: &Path) -> anyhow::Result<Self> {
        Self::start_with(program, place, None)
    }

    /// The same, with a token that opens everything, if there is one.
    pub(crate) fn start_with(
        program: &Path,
        place: &Path,
        token: Option<&str>,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(place)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--allow-private-targets", "--log-level", "warn"])
            .args(["--listen", "127.0.0.1:0", "--data"])
            .arg(directory.path().join("data"))
            .env_remove("COUNTWHEEL_STORE")
            .env_remove("COUNTWHEEL_TOKEN");
        if let Some(token) = token {
            command.env("COUNTWHEEL_TOKEN", token);
        }
        let log = directory.path().join("log");
        let mut process = Process::start(&mut command, log, Stdio::piped())?;
        let line = process.ready()?;
        let address = line.split_whitespace().nth(1).context("no address")?;
        let port = address.rsplit(':').next().context("no port")?.parse()?;
        Ok(Self {
            process,
            _directory: directory,
            port,
        })
    }
}

/// An amount of memory that the system names for a process, in MiB.
pub(crate) fn memory_of(pid: u32, what: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: f64 = kib.context("no such amount")?.parse()?;
    Ok(kib / 1_024.0)
}

/// How long a process or one of its threads, `self/task/1` for instance, has used processors, in seconds. The system counts
/// in hundredths.
pub(crate) fn processor_time_of(task: &str) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{task}/stat"))?;
    // The name, in brackets, may have spaces in it.
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || Ok::<f64, anyhow::Error>(fields.next().context("no such time")?.parse()?);
    Ok((next()? + next()?) / 100.0)
}
