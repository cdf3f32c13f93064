//! A PostgreSQL in a directory that goes with it.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::PostgresOptions;

/// The variable that names a directory with the programs of another version.
const PROGRAMS: &str = "COUNTWHEEL_POSTGRES_PROGRAMS";

/// How often a server is asked whether it is there, 50 ms apart.
const TRIES: usize = 600;

/// Why no server was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoServer {
    /// The programs are nowhere.
    #[error("no programs of PostgreSQL 15 or later are installed (Debian: postgresql-15)")]
    NotInstalled,
    /// PostgreSQL does not run as root, and there is no user `postgres` to run as.
    #[error("there is no user postgres, and PostgreSQL does not run as root")]
    NoUser,
    /// A program failed.
    #[error("{what}: {said}")]
    Failed {
        /// Which.
        what: String,
        /// What it said.
        said: String,
    },
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A PostgreSQL that listens on loopback. It ends with this, and its files with it.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    user: Option<(u32, u32)>,
    directory: TempDir,
    settings: Vec<String>,
    port: u16,
    running: Option<Child>,
    next: AtomicU32,
}

impl Server {
    /// Makes a directory and starts a server in it, in memory where the system has a place for that.
    ///
    /// # Errors
    /// [`NoServer`] says what is missing.
    pub fn start(settings: &[&str]) -> Result<Self, NoServer> {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        Self::start_in(&place, settings)
    }

    /// The same in a directory below `place`.
    ///
    /// # Errors
    /// [`NoServer`] says what is missing.
    pub fn start_in(place: &Path, settings: &[&str]) -> Result<Self, NoServer> {
        let programs = programs().ok_or(NoServer::NotInstalled)?;
        let user = Self::user()?;
        let directory = tempfile::Builder::new()
            .prefix("countwheel-postgres-")
            .tempdir_in(place)?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let data = directory.path().join("data");
        fs::create_dir(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        if let Some((user, group)) = user {
            chown(directory.path(), Some(user), Some(group))?;
            chown(&data, Some(user), Some(group))?;
        }
        let mut server = Self {
            programs,
            user,
            directory,
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            port: 0,
            running: None,
            next: AtomicU32::new(0),
        };
        let mut init = server.command("initdb");
        init.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        init.args(["--username=postgres", "--pgdata"]).arg(&data);
        run("initdb", &mut init)?;
        server.port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        server.go_on()?;
        Ok(server)
    }

    /// Whether a variable names other programs than those that the system has installed.
    #[must_use]
    pub fn has_other_programs() -> bool {
        std::env::var_os(PROGRAMS).is_some()
    }

    /// The numbers of the user and the group that a server runs as, if not as who starts it.
    ///
    /// # Errors
    /// [`NoServer::NoUser`] if there is none.
    pub fn user() -> Result<Option<(u32, u32)>, NoServer> {
        match rustix::process::getuid().is_root() {
            true => postgres_user().map(Some).ok_or(NoServer::NoUser),
            false => Ok(None),
        }
    }

    /// A directory with a copy of the server's, for a standby, and the arguments that make one of it.
    ///
    /// # Errors
    /// [`NoServer`] if the copy fails.
    pub fn standby(&self, settings: &[&str]) -> Result<Self, NoServer> {
        let directory = tempfile::Builder::new()
            .prefix("countwheel-standby-")
            .tempdir_in(self.directory.path().parent().unwrap_or(Path::new("/tmp")))?;
        if let Some((user, group)) = self.user {
            chown(directory.path(), Some(user), Some(group))?;
        }
        let mut copy = self.command("pg_basebackup");
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        copy.args(["--wal-method=stream", "--pgdata"]);
        copy.arg(directory.path().join("data"));
        copy.arg("--dbname").arg(self.url());
        run("pg_basebackup", &mut copy)?;
        let mut server = Self {
            programs: self.programs.clone(),
            user: self.user,
            directory,
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            port: TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port(),
            running: None,
            next: AtomicU32::new(0),
        };
        server.go_on()?;
        Ok(server)
    }

    /// Makes a primary of a standby.
    ///
    /// # Errors
    /// [`NoServer`] if the server refuses.
    pub fn promote(&self) -> Result<(), NoServer> {
        let mut promote = self.command("pg_ctl");
        promote.args(["promote", "--wait", "--silent", "--pgdata"]);
        promote.arg(self.directory.path().join("data"));
        run("pg_ctl promote", &mut promote)
    }

    /// Where it is, as the user `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same behind another port of this machine.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Options for it with a schema that nobody has used.
    #[must_use]
    pub fn fresh(&self) -> PostgresOptions {
        let mut options = PostgresOptions::new(self.url());
        options.schema = format!("fresh_{}", self.next.fetch_add(1, Ordering::Relaxed));
        options
    }

    /// Has it do a statement, by `psql`.
    ///
    /// # Errors
    /// [`NoServer::Failed`] with what the server says.
    pub fn execute(&self, statement: &str) -> Result<String, NoServer> {
        output(statement, &mut self.psql(statement))
    }

    /// The program that does it, of a session that lasts as long.
    #[must_use]
    pub fn psql(&self, statement: &str) -> Command {
        let mut psql = self.command("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        psql.args(["--set=ON_ERROR_STOP=1", "--dbname", &self.url()]);
        psql.args(["--command", statement]);
        psql
    }

    /// What it has written to its log.
    ///
    /// # Errors
    /// [`NoServer::System`] if the log cannot be read.
    pub fn log(&self) -> Result<String, NoServer> {
        let log = fs::read(self.directory.path().join("log"))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// Ends it as a crash does, and what it has not written to a file is gone.
    pub fn crash(&mut self) {
        self.end(Signal::QUIT);
    }

    /// Stops it: sessions are ended, and all is written.
    pub fn stop(&mut self) {
        self.end(Signal::INT);
    }

    /// Stops all its processes where they are: it answers nothing, and its connections stay.
    pub fn freeze(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        let Some(running) = &self.running else { return };
        let postmaster = running.id();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = all.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
        for number in numbers {
            let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
            let is_its = parent.is_some_and(|it| it.trim() == postmaster.to_string());
            if is_its || u32::try_from(number) == Ok(postmaster) {
                let _gone_already = Pid::from_raw(number).map(|pid| kill_process(pid, signal));
            }
        }
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut running) = self.running.take() {
            if let Ok(pid) = i32::try_from(running.id()) {
                let _gone_already = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
            }
            let _status = running.wait();
        }
    }

    /// Starts it again where it was.
    ///
    /// # Errors
    /// [`NoServer::Failed`] if it does not come up.
    pub fn go_on(&mut self) -> Result<(), NoServer> {
        let data = self.directory.path().join("data");
        let log = fs::File::create(self.directory.path().join("log"))?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(&data);
        command.arg("-k").arg(self.directory.path());
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.stdout(Stdio::null()).stderr(log);
        self.running = Some(command.spawn()?);
        for _ in 0..TRIES {
            let mut ready = self.command("pg_isready");
            ready.args(["--quiet", "--dbname", &self.url()]);
            if ready.status()?.success() {
                return Ok(());
            }
            if let Some(running) = &mut self.running
                && running.try_wait()?.is_some()
            {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = self.directory.path().join("log");
        Err(NoServer::Failed {
            what: "postgres".to_owned(),
            said: fs::read_to_string(log)?,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.directory.path());
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thaw();
        self.crash();
    }
}

fn run(what: &str, command: &mut Command) -> Result<(), NoServer> {
    output(what, command).map(drop)
}

fn output(what: &str, command: &mut Command) -> Result<String, NoServer> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(NoServer::Failed {
        what: what.to_owned(),
        said: String::from_utf8_lossy(&said).into_owned(),
    })
}

/// Where the programs are, of the latest version.
fn programs() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(PROGRAMS) {
        return Some(named.into());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let numbers = versions.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    let latest = numbers.filter(|number| *number >= 15).max()?;
    let programs = PathBuf::from(format!("/usr/lib/postgresql/{latest}/bin"));
    programs.join("initdb").exists().then_some(programs)
}

/// The numbers of the user and the group `postgres`.
fn postgres_user() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2).map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}
