//! `countwheel bulk`, `countwheel jobs` and `countwheel job`.

use std::time::Duration;

use countwheel_durable::{Due, StateKind};
use countwheel_time::{By, Timestamp};

use super::arguments::{duration, signed, time};
use super::connection::{Connection, Service};
use super::follow::line;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::{Answer, Client, Filter, JobShift, JobShown, NewJob};

/// The pause between two questions how far a job is.
const POLL: Duration = Duration::from_millis(500);

/// What a job does to each of its timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Action {
    /// Remove those that are pending, done or dead
    Remove,
    /// Move those that are pending: with --in, --at or --by
    Move,
    /// Make those due now that are pending
    Fire,
    /// Make those pending again, and due now, that are dead
    Revive,
}

impl Action {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Remove => "remove",
            Self::Move => "move",
            Self::Fire => "fire",
            Self::Revive => "revive",
        }
    }
}

/// `countwheel bulk`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Timers that are being delivered, and those that are set after the answer, are left alone."
)]
pub struct Bulk {
    /// What to do
    action: Action,
    /// Only those in this state; may be said more than once
    #[arg(long)]
    state: Vec<StateKind>,
    /// Only those whose key begins so
    #[arg(long)]
    prefix: Option<String>,
    /// Only those with this tag; said more than once, with all of them
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Only those due then or later
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_after: Option<Timestamp>,
    /// Only those due earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_before: Option<Timestamp>,
    #[command(flatten)]
    to: To,
    /// How many timers a second, on all nodes together
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Count the timers, and change none
    #[arg(long)]
    dry_run: bool,
    /// Show how far it is until it has ended
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Where a move takes the timers.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct To {
    /// Of a move: how long from now
    #[arg(long = "in", value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    delay: Option<Duration>,
    /// Of a move: when, with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// Of a move: later than the deadline of each now, or sooner: 5m, -5m
    #[arg(long, value_name = "D", value_parser = signed, allow_hyphen_values = true)]
    by: Option<By>,
}

impl To {
    fn shift(&self) -> Option<JobShift> {
        let by = self.by.map(JobShift::By);
        let at = self.at.map(Due::At).map(JobShift::To);
        by.or(at).or(self.delay.map(Due::In).map(JobShift::To))
    }
}

impl Bulk {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let job = NewJob {
            queue: self.connection.queue.clone(),
            action: self.action.as_str().to_owned(),
            states: self.state.clone(),
            filter: Filter {
                state: None,
                prefix: self.prefix.clone(),
                due_after: self.due_after,
                due_before: self.due_before,
                tags: self.tags.clone(),
            },
            shift: self.to.shift(),
            rate: self.rate,
            dry_run: self.dry_run,
        };
        let answer = client.begin_job(&job).await?;
        report("asked", &answer, self.connection.json, terminal)?;
        if !self.watch {
            return Ok(Exit::Done);
        }
        follow(&client, answer.value.id, terminal).await
    }
}

/// `countwheel jobs`.
#[derive(Clone, Debug, clap::Args)]
pub struct Jobs {
    #[command(flatten)]
    service: Service,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
}

impl Jobs {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let answer = self.service.client()?.jobs().await?;
        if self.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        let mut table = Table::new([
            "JOB>", "QUEUE", "ACTION", "STATE", "MATCHED>", "DONE>", "SKIPPED>",
        ]);
        for job in &answer.value.jobs {
            let action = if job.dry_run {
                format!("{} (dry run)", job.action)
            } else {
                job.action.clone()
            };
            table.push([
                job.id.to_string(),
                job.queue.clone(),
                action,
                state(job).to_owned(),
                job.matched.to_string(),
                job.done.to_string(),
                job.skipped.to_string(),
            ]);
        }
        table.write(terminal.out)?;
        Ok(Exit::Done)
    }
}

/// `countwheel job`.
#[derive(Clone, Debug, clap::Args)]
pub struct Job {
    /// Its number
    id: u64,
    /// Show how far it is until it has ended
    #[arg(long)]
    watch: bool,
    /// End it; what was done stays done
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    service: Service,
    /// Print the server's JSON
    #[arg(long)]
    json: bool,
}

impl Job {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let answer = if self.cancel {
            client.cancel_job(self.id).await?
        } else {
            client.job(self.id).await?
        };
        report(state(&answer.value), &answer, self.json, terminal)?;
        if !self.watch {
            return Ok(Exit::Done);
        }
        follow(&client, self.id, terminal).await
    }
}

fn report(
    word: &str,
    answer: &Answer<JobShown>,
    json: bool,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    if json {
        writeln!(terminal.out, "{}", answer.json())?;
    } else {
        writeln!(terminal.out, "{}", line(word, &words(&answer.value)))?;
    }
    Ok(())
}

/// Says how far a job is until it has ended.
async fn follow(client: &Client, id: u64, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
    loop {
        let job = client.job(id).await?.value;
        // What is on standard output is the answer of the server, for the next program.
        writeln!(terminal.err, "{}", line(state(&job), &words(&job)))?;
        if job.ended.is_some() {
            return Ok(if job.cancelled {
                Exit::Refused
            } else {
                Exit::Done
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

fn state(job: &JobShown) -> &'static str {
    match (job.ended, job.cancelled) {
        (None, false) => "running",
        (None, true) => "ending",
        (Some(_), false) => "ended",
        (Some(_), true) => "cancelled",
    }
}

fn words(job: &JobShown) -> String {
    let (id, queue, action) = (job.id, &job.queue, &job.action);
    let timers = |count| text::count(count, "timer", "timers");
    let counts = if job.dry_run {
        format!("a dry run, {} matched", timers(job.matched))
    } else {
        format!("{} done, {} skipped", timers(job.done), job.skipped)
    };
    let shards = text::count(u64::from(job.shards_left), "shard", "shards");
    format!("job {id}  {action} {queue}: {counts}, {shards} left")
}
