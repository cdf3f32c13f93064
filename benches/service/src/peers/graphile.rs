//! graphile-worker on a PostgreSQL: jobs by its SQL function, and a worker on Node that posts to the receiver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use countwheel_postgres::testing::Server;
use countwheel_time::Timestamp;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, Statement};

use crate::program::Process;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
const FILES: [&str; 3] = ["package.json", "package-lock.json", "worker.mjs"];

/// The settings of the server besides its defaults: it syncs each commit.
pub(crate) const SETTINGS: [&str; 3] = [
    "shared_buffers=512MB",
    "max_wal_size=4GB",
    "max_connections=300",
];

/// A database with the tables of graphile-worker. The database stays until the server ends.
pub(crate) struct Graphile {
    url: String,
    program: PathBuf,
    directory: TempDir,
}

impl Graphile {
    /// Makes a database on the server.
    pub(crate) async fn start(server: &Server, place: &Path) -> anyhow::Result<Self> {
        let program = installed(place)?;
        let directory = tempfile::tempdir_in(place)?;
        let name = format!("graphile_{}", std::process::id());
        let to =
            |database: &str| format!("postgres://postgres@127.0.0.1:{}/{database}", server.port());
        let admin = connect(&to("postgres")).await?;
        for statement in [
            format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
            format!("CREATE DATABASE {name}"),
            "CHECKPOINT".to_owned(),
        ] {
            admin.batch_execute(&statement).await?;
        }
        let url = to(&name);
        let made = Command::new("node")
            .arg(&program)
            .args(["make", &url])
            .stdin(Stdio::null())
            .status()
            .context("node does not start")?;
        ensure!(made.success(), "graphile-worker makes no tables");
        Ok(Self {
            url,
            program,
            directory,
        })
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let client = connect(&self.url).await?;
        let add = "SELECT id FROM graphile_worker.add_job('deliver', $1::text::json, \
                   run_at := $2::text::timestamptz)";
        let add = client.prepare(add).await?;
        let add_many = "SELECT count(graphile_worker.add_job('deliver', body::json, \
                        run_at := due::timestamptz)) FROM unnest($1::text[], $2::text[]) AS t(body, due)";
        let add_many = client.prepare(add_many).await?;
        Ok(Connection {
            client,
            add,
            add_many,
        })
    }

    /// Starts a worker that posts each payload to a port, so many at a time.
    pub(crate) fn work(&self, port: u16, places: usize) -> anyhow::Result<Process> {
        let mut command = Command::new("node");
        command.arg(&self.program).args([
            "deliver",
            &self.url,
            &port.to_string(),
            &places.to_string(),
        ]);
        let log = self.directory.path().join("log");
        let mut worker = Process::start(&mut command, log, Stdio::piped())?;
        worker.ready()?;
        Ok(worker)
    }
}

pub(crate) struct Connection {
    client: Client,
    add: Statement,
    add_many: Statement,
}

impl Connection {
    pub(crate) async fn add(&self, due: Timestamp, body: &str) -> anyhow::Result<()> {
        let due = due.to_string();
        self.client.execute(&self.add, &[&body, &due]).await?;
        Ok(())
    }
}

impl Connection {
    /// Adds jobs by one statement.
    pub(crate) async fn add_many(&self, jobs: &[(Timestamp, String)]) -> anyhow::Result<()> {
        let bodies: Vec<&str> = jobs.iter().map(|(_, body)| body.as_str()).collect();
        let dues: Vec<String> = jobs.iter().map(|(due, _)| due.to_string()).collect();
        self.client.query(&self.add_many, &[&bodies, &dues]).await?;
        Ok(())
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .with_context(|| format!("no connection to {url}"))?;
    // It ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

/// The program with its packages, as the lock has them.
fn installed(place: &Path) -> anyhow::Result<PathBuf> {
    let place = place.join("peers");
    fs::create_dir_all(&place)?;
    let mut is_new = !place.join("node_modules").is_dir();
    for file in FILES {
        let wanted = fs::read(Path::new(SOURCES).join(file))?;
        let there = place.join(file);
        if fs::read(&there).ok().as_ref() != Some(&wanted) {
            fs::write(there, wanted)?;
            is_new = true;
        }
    }
    if is_new {
        println!("installing the packages of graphile-worker");
        let status = Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            .current_dir(&place)
            .stdout(Stdio::null())
            .status()
            .context("npm does not start")?;
        ensure!(status.success(), "the packages cannot be installed");
    }
    Ok(place.join("worker.mjs"))
}
