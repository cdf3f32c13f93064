//! `countwheel queue put`, `get` and `remove`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::{Change, duration, limits};
use super::connection::Connection;
use super::follow::line;
use super::{Exit, Failure, Terminal};
use crate::client::QueueShown;
use crate::time::format_duration;

/// The settings of a queue, for timers that do not say it themselves.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Queue {
    /// Give a queue settings, in place of those it has: of a file with their JSON, or of options
    Put(Box<Put>),
    /// Show the settings of a queue, and how many timers it has
    Get(Named),
    /// Remove the settings of a queue without timers
    Remove(Remove),
}

/// `countwheel queue put`.
#[derive(Clone, Debug, clap::Args)]
pub struct Put {
    /// The JSON of the settings, as the API takes it; - reads standard input
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["endpoint", "timeout", "concurrency", "per_second", "burst", "payload_limit", "keep_done", "keep_dead", "overlap", "mode", "lease", "placement"])]
    file: Option<PathBuf>,
    /// Where its timers go that name no place
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// How long one attempt may take
    #[arg(long, value_name = "D", value_parser = duration)]
    timeout: Option<Duration>,
    /// How many attempts may run at a time
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How many attempts may start a second
    #[arg(long, value_name = "N")]
    per_second: Option<f64>,
    /// How many of them at once
    #[arg(long, value_name = "N", requires = "per_second")]
    burst: Option<u32>,
    /// How many bytes the body of a timer may have
    #[arg(long, value_name = "BYTES")]
    payload_limit: Option<u64>,
    /// How long a done timer is kept
    #[arg(long, value_name = "D", value_parser = duration)]
    keep_done: Option<Duration>,
    /// How long a dead timer is kept; until it is removed unless given
    #[arg(long, value_name = "D", value_parser = duration)]
    keep_dead: Option<Duration>,
    /// What becomes of a run of a recurring timer that comes due before the run before has ended
    #[arg(long, value_name = "RULE", value_parser = ["skip", "queue"])]
    overlap: Option<String>,
    /// Whether its timers are delivered, or fetched by workers
    #[arg(long, value_name = "MODE", value_parser = ["push", "pull"])]
    mode: Option<String>,
    /// How long a worker has a timer that does not say it: 1s to 12h
    #[arg(long, value_name = "D", value_parser = duration, requires = "mode")]
    lease: Option<Duration>,
    /// Whether its timers are in one shard of a cluster, or spread
    #[arg(long, value_name = "WHERE", value_parser = ["one", "spread"])]
    placement: Option<String>,
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    connection: Connection,
}

/// One queue.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    #[command(flatten)]
    connection: Connection,
}

/// `countwheel queue remove`.
#[derive(Clone, Debug, clap::Args)]
pub struct Remove {
    /// Only if the settings have this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    #[command(flatten)]
    connection: Connection,
}

impl Queue {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        match self {
            Self::Put(put) => put.run(terminal).await?,
            Self::Get(Named { connection }) => {
                let client = connection.client()?;
                let answer = client.queue(&connection.queue).await?;
                if connection.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    for line in sheet(&answer.value) {
                        writeln!(terminal.out, "{line}")?;
                    }
                }
            }
            Self::Remove(Remove {
                if_revision,
                connection,
            }) => {
                let client = connection.client()?;
                let queue = &connection.queue;
                let answer = client.remove_queue(queue, *if_revision).await?;
                if connection.json {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    writeln!(terminal.out, "{}", line("removed", queue))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

impl Put {
    async fn run(&self, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let body = match &self.file {
            Some(file) => super::arguments::read_file(file)?,
            None => self.body().to_string(),
        };
        let client = self.connection.client()?;
        let queue = &self.connection.queue;
        let answer = client
            .put_queue(queue, body, self.change.precondition())
            .await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            let revision = answer.value.revision.unwrap_or_default();
            let words = format!("{queue}  rev {revision}");
            writeln!(terminal.out, "{}", line("put", &words))?;
        }
        Ok(())
    }

    fn body(&self) -> Value {
        let mut body = json!({});
        if let Some(endpoint) = &self.endpoint {
            body["endpoint"] = json!(endpoint);
        }
        if let Some(timeout) = self.timeout {
            body["timeout"] = format_duration(timeout).into();
        }
        if let Some(bytes) = self.payload_limit {
            body["payload_limit"] = bytes.into();
        }
        for (name, text) in [
            ("overlap", &self.overlap),
            ("mode", &self.mode),
            ("placement", &self.placement),
        ] {
            if let Some(text) = text {
                body[name] = json!(text);
            }
        }
        if let Some(lease) = self.lease {
            body["lease"] = format_duration(lease).into();
        }
        for (name, keep) in [("done", self.keep_done), ("dead", self.keep_dead)] {
            if let Some(keep) = keep {
                body["retention"][name] = format_duration(keep).into();
            }
        }
        limits(&mut body, self.concurrency, self.per_second, self.burst);
        body
    }
}

/// A queue as a sheet, one property a line.
fn sheet(queue: &QueueShown) -> Vec<String> {
    let counts = format!(
        "{} pending, {} delivering, {} done, {} dead",
        queue.pending, queue.delivering, queue.done, queue.dead
    );
    let mut lines = vec![line("queue", &queue.queue), line("timers", &counts)];
    let revision = queue.revision.map(|revision| revision.to_string());
    let limit = queue.payload_limit.map(|bytes| format!("{bytes} bytes"));
    let kept = queue.retention.as_ref();
    let done = kept.and_then(|kept| kept.done.clone());
    let dead = kept.and_then(|kept| kept.dead.clone());
    let at_a_time = queue.concurrency.map(|attempts| attempts.to_string());
    for (name, value) in [
        ("revision", &revision),
        ("endpoint", &queue.endpoint),
        ("timeout", &queue.timeout),
        ("concurrency", &at_a_time),
        ("body", &limit),
        ("overlap", &queue.overlap),
        ("done kept", &done),
        ("dead kept", &dead),
    ] {
        lines.extend(value.iter().map(|value| line(name, value)));
    }
    lines
}
