//! beanstalkd with its log, and workers that post to the receiver.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::http::{Caller, connect};
use crate::program::Process;

/// How often a connection is tried, 50 ms apart.
const TRIES: usize = 100;

/// When its log is synced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Synced {
    EachWrite,
    Never,
}

/// The fields are dropped in this order.
pub(crate) struct Beanstalkd {
    process: Process,
    _directory: TempDir,
    port: u16,
}

impl Beanstalkd {
    pub(crate) async fn start(place: &Path, synced: Synced) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(place)?;
        let data = directory.path().join("data");
        std::fs::create_dir(&data)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mut command = Command::new("beanstalkd");
        command
            .args(["-l", "127.0.0.1", "-p", &port.to_string(), "-b"])
            .arg(&data);
        match synced {
            Synced::EachWrite => command.args(["-f", "0"]),
            Synced::Never => command.arg("-F"),
        };
        let log = directory.path().join("log");
        let process = Process::start(&mut command, log, Stdio::null())?;
        let started = Self {
            process,
            _directory: directory,
            port,
        };
        for _ in 0..TRIES {
            if connect(port).await.is_ok() {
                return Ok(started);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("beanstalkd does not answer: {}", started.process.said())
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        Ok(Connection {
            stream: BufStream::new(connect(self.port).await?),
            line: String::new(),
        })
    }

    /// Starts workers: each reserves a job, posts its body to a port, and deletes it.
    pub(crate) async fn work(&self, port: u16, workers: usize) -> anyhow::Result<JoinSet<()>> {
        let mut running = JoinSet::new();
        for _ in 0..workers {
            let (jobs, receiver) = (self.connect().await?, Caller::connect(port).await?);
            running.spawn(async move {
                if let Err(error) = work(jobs, receiver).await {
                    eprintln!("a worker of beanstalkd ended: {error:#}");
                }
            });
        }
        Ok(running)
    }
}

async fn work(mut jobs: Connection, mut receiver: Caller) -> anyhow::Result<()> {
    loop {
        let (id, body) = jobs.reserve().await?;
        receiver.send("POST", "/", &body).await?;
        jobs.delete(&id).await?;
    }
}

/// One connection, for one request after the other.
pub(crate) struct Connection {
    stream: BufStream<TcpStream>,
    line: String,
}

impl Connection {
    async fn ask(&mut self, command: &str) -> anyhow::Result<&str> {
        self.stream.write_all(command.as_bytes()).await?;
        self.stream.flush().await?;
        self.line.clear();
        self.stream.read_line(&mut self.line).await?;
        Ok(self.line.trim_end())
    }

    pub(crate) async fn put(&mut self, delay: u64, body: &str) -> anyhow::Result<()> {
        let put = format!("put 0 {delay} 120 {}\r\n{body}\r\n", body.len());
        let answer = self.ask(&put).await?;
        ensure!(answer.starts_with("INSERTED"), "put: {answer}");
        Ok(())
    }

    pub(crate) async fn reserve(&mut self) -> anyhow::Result<(String, String)> {
        let answer = self.ask("reserve\r\n").await?;
        let words: Vec<&str> = answer.split(' ').collect();
        let ["RESERVED", id, length] = words.as_slice() else {
            bail!("reserve: {answer}");
        };
        let (id, length): (String, usize) = ((*id).to_owned(), length.parse()?);
        let mut body = vec![0; length + 2];
        self.stream.read_exact(&mut body).await?;
        body.truncate(length);
        let body = String::from_utf8(body).context("a body is no text")?;
        Ok((id, body))
    }

    pub(crate) async fn delete(&mut self, id: &str) -> anyhow::Result<()> {
        let answer = self.ask(&format!("delete {id}\r\n")).await?;
        ensure!(answer == "DELETED", "delete: {answer}");
        Ok(())
    }
}
