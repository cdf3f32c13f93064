//! A PostgreSQL in a directory that goes with it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use countwheel_durable::Shards;
use countwheel_postgres::{PostgresOptions, PostgresStore};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::server::{StartError, random};

use super::process::Process;

/// The oldest version that holds the store.
const OLDEST: u32 = 15;
/// Where Debian keeps the programs, by version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Enough for 8 nodes on one database.
const SHARDS: Shards = Shards::new(64).expect("a power of two");
/// How long a program may take until the database is ready.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How often a program is asked whether it has ended.
const ASKED_EVERY: Duration = Duration::from_millis(20);

/// What ends the database and removes its directory, the first argument, once standard input has ended.
/// The server takes its file `postmaster.pid` away as it ends.
const KEEPER: &str = r#"
read -r end
cd "$1" && read -r pid <data/postmaster.pid && kill -QUIT "$pid"
for try in 1 2 3 4 5 6 7 8 9 10; do test -e data/postmaster.pid && sleep 1; done
cd / && rm -rf "$1"
"#;

/// The directory with the programs.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Installed(PathBuf);

impl Installed {
    /// Those of the latest version that the system has, else those on the path.
    pub(super) fn find() -> Result<Self, StartError> {
        let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
        let versions = versions.filter_map(|it| it.file_name().into_string().ok());
        let on_path = std::env::var_os("PATH").unwrap_or_default();
        newest(versions)
            .map(|version| Path::new(VERSIONS).join(version.to_string()).join("bin"))
            .filter(|programs| has_all(programs))
            .or_else(|| on_the_path(&on_path))
            .map(Self)
            .ok_or(StartError::NoPostgres)
    }
}

/// The latest version of those directories, if it is not too old.
fn newest(names: impl Iterator<Item = String>) -> Option<u32> {
    let versions = names.filter_map(|name| name.parse::<u32>().ok());
    versions.filter(|version| *version >= OLDEST).max()
}

fn on_the_path(path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).find(|programs| {
        has_all(programs) && {
            let said = Command::new(programs.join("initdb"))
                .arg("--version")
                .output();
            let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            said.ok().and_then(|said| version(&said)) >= Some(OLDEST)
        }
    })
}

/// The version in a line such as `initdb (PostgreSQL) 15.4`.
fn version(said: &str) -> Option<u32> {
    let (_, rest) = said.split_once("(PostgreSQL) ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

fn has_all(programs: &Path) -> bool {
    let needed = ["initdb", "postgres", "pg_isready"];
    needed.iter().all(|name| programs.join(name).is_file())
}

/// Who the database runs as, if not as whoever started us: it refuses to be root.
pub(super) struct User(Option<(u32, u32)>);

impl User {
    pub(super) fn of_database() -> Result<Self, StartError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let postgres = numbers("postgres", &users).ok_or(StartError::NoUser)?;
        Ok(Self(Some(postgres)))
    }

    /// Gives it a file or a directory.
    pub(super) fn own(&self, path: &Path) -> io::Result<()> {
        match self.0 {
            Some((user, group)) => chown(path, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    fn run(&self, program: impl AsRef<OsStr>, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory);
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        command
    }
}

/// The numbers of a user and of its group, by the lines of `/etc/passwd`.
fn numbers(user: &str, users: &str) -> Option<(u32, u32)> {
    let mut fields = users.lines().map(|line| line.split(':'));
    let mut fields = fields.find_map(|mut fields| (fields.next()? == user).then_some(fields))?;
    let user = fields.nth(1)?.parse().ok()?;
    Some((user, fields.next()?.parse().ok()?))
}

/// Starts what ends the database, and removes the directory, if this process is killed.
pub(super) fn keeper(directory: &Path, user: &User) -> io::Result<Process> {
    let mut keeper = user.run("/bin/sh", Path::new("/"));
    keeper
        .args(["-c", KEEPER, "countwheel-keeper"])
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::start(&mut keeper, Signal::KILL)
}

/// A server with the tables of a cluster, on loopback and with a password. It ends with this.
pub(super) struct Database {
    pub(super) url: String,
    pub(super) process: Process,
}

impl Database {
    /// Makes it in a directory that its user owns.
    pub(super) async fn start(
        installed: Installed,
        user: User,
        directory: &Path,
    ) -> Result<Self, StartError> {
        let starting = Starting {
            installed,
            user,
            directory,
        };
        let password = format!("{:016x}{:016x}", random()?, random()?);
        starting.initialize(&password).await?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let process = starting.server(port).await?;
        let url = format!("postgres://postgres:{password}@127.0.0.1:{port}/postgres");
        let options = PostgresOptions::new(&url);
        let made = tokio::task::spawn_blocking(move || PostgresStore::make(&options, SHARDS));
        made.await.map_err(io::Error::other)??;
        Ok(Self { url, process })
    }
}

struct Starting<'a> {
    installed: Installed,
    user: User,
    directory: &'a Path,
}

impl Starting<'_> {
    /// Makes an empty database, whose only user has a password: others of this machine reach it too.
    async fn initialize(&self, password: &str) -> Result<(), StartError> {
        let data = self.directory.join("data");
        DirBuilder::new().mode(0o700).create(&data)?;
        self.user.own(&data)?;
        let file = self.directory.join("password");
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        options.open(&file)?.write_all(password.as_bytes())?;
        self.user.own(&file)?;
        let mut initdb = self.command("initdb")?;
        initdb
            .args(["--no-sync", "--encoding=UTF8", "--locale=C"])
            .args(["--auth=scram-sha-256", "--username=postgres", "--pwfile"])
            .arg(&file)
            .arg("--pgdata")
            .arg(&data);
        let status = self.ended("initdb", &mut initdb).await?;
        fs::remove_file(&file)?;
        match status.success() {
            true => Ok(()),
            false => Err(self.failed("initdb")),
        }
    }

    /// Starts the server, and waits until it answers.
    async fn server(&self, port: u16) -> Result<Process, StartError> {
        let port = port.to_string();
        let mut server = self.command("postgres")?;
        server
            .arg("-D")
            .arg(self.directory.join("data"))
            .args(["-h", "127.0.0.1", "-p", &port])
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "max_connections=200"]);
        // At once: it has nothing that anybody wants.
        let mut server = Process::start(&mut server, Signal::QUIT)?;
        let answers = async {
            loop {
                let mut asked = self.user.run(self.program("pg_isready"), self.directory);
                asked.args(["--quiet", "--host", "127.0.0.1", "--port", &port]);
                asked.stdin(Stdio::null());
                if self.ended("pg_isready", &mut asked).await?.success() {
                    return Ok(());
                }
                if server.ended().is_some() {
                    return Err(self.failed("postgres"));
                }
                sleep(ASKED_EVERY).await;
            }
        };
        let answered = timeout(START_WITHIN, answers).await;
        answered.unwrap_or_else(|_| Err(self.failed("postgres")))?;
        Ok(server)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.installed.0.join(name)
    }

    /// The program, whose output is a file.
    fn command(&self, name: &str) -> io::Result<Command> {
        let log = File::create(self.log(name))?;
        let mut command = self.user.run(self.program(name), self.directory);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    /// Waits until it has ended.
    async fn ended(&self, name: &str, command: &mut Command) -> Result<ExitStatus, StartError> {
        let mut process = Process::start(command, Signal::KILL)?;
        let ended = async {
            loop {
                if let Some(status) = process.ended() {
                    return status;
                }
                sleep(ASKED_EVERY).await;
            }
        };
        let ended = timeout(START_WITHIN, ended).await;
        ended.map_err(|_| self.failed(name))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// That a program failed, and why.
    fn failed(&self, name: &str) -> StartError {
        let said = fs::read(self.log(name)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        StartError::Program {
            what: name.to_owned(),
            said: reason(&said)
                .unwrap_or("it does not come up")
                .trim()
                .to_owned(),
        }
    }
}

/// The line that says why a program failed: the first that complains, else the last.
fn reason(said: &str) -> Option<&str> {
    let complains = |line: &&str| line.contains("error: ") || line.contains("FATAL: ");
    let last = || said.lines().rfind(|line| !line.trim().is_empty());
    said.lines().find(complains).or_else(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_version_is_taken_unless_it_is_too_old() {
        let newest = |names: &[&str]| newest(names.iter().map(|&name| name.to_owned()));
        assert_eq!(newest(&["15", "9.6", "17", "16"]), Some(17));
        assert_eq!(newest(&["13", "14", "lib"]), None);
        assert_eq!(newest(&[]), None);
        let said = "initdb (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n";
        assert_eq!(version(said), Some(15));
        assert_eq!(version("initdb (PostgreSQL) 18"), Some(18));
        assert_eq!(version("initdb (PostgreSQL) 17devel"), Some(17));
        assert_eq!(version("something else 99"), None);
        assert_eq!(on_the_path(OsStr::new("/nowhere:")), None);
    }

    #[test]
    fn the_line_that_says_why_is_shown() {
        let said = "creating files ... ok\ninitdb: error: no room\ninitdb: removing contents\n";
        assert_eq!(reason(said), Some("initdb: error: no room"));
        assert_eq!(reason("one\ntwo\n\n"), Some("two"));
        assert_eq!(reason(""), None);
    }

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "postgresql:x:1:2::/:/bin/sh\npostgres:x:105:107:a,b:/var/lib:/bin/sh\n";
        assert_eq!(numbers("postgres", users), Some((105, 107)));
        assert_eq!(numbers("post", users), None);
        assert_eq!(numbers("broken", "broken:x:y:1::/:/bin/sh\n"), None);
    }
}
