//! `countwheel drain`, `countwheel pause` and `countwheel resume`.

use std::time::Duration;

use countwheel_durable::{DrainMode, Due};
use countwheel_time::{Clock, Timestamp};

use super::arguments::{duration, time};
use super::connection::Connection;
use super::follow::line;
use super::{Exit, Failure, Terminal, text};
use crate::client::{Left, one_line};

/// `countwheel drain`.
#[derive(Clone, Debug, clap::Args)]
pub struct Drain {
    /// What becomes of its timers
    #[arg(long, value_enum)]
    mode: Mode,
    /// Fire what is due for so long, then hold the rest; only with --mode fire
    #[arg(long = "for", value_name = "D", value_parser = duration, conflicts_with = "until")]
    span: Option<Duration>,
    /// The same until a time with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    #[command(flatten)]
    which: Which,
}

/// What becomes of the timers of a drained queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Mode {
    /// What is due goes out
    Fire,
    /// Nothing starts
    Hold,
    /// All are removed and printed, one JSON object a line
    Remove,
}

/// Which queues: one, unless it is said that all are meant.
#[derive(Clone, Debug, clap::Args)]
struct Which {
    /// All queues, instead of the one of --queue
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Which {
    fn queue(&self) -> Option<&str> {
        (!self.all).then_some(&self.connection.queue)
    }

    fn name(&self) -> &str {
        self.queue().unwrap_or("all queues")
    }
}

/// `countwheel pause`.
#[derive(Clone, Debug, clap::Args)]
pub struct Pause {
    /// Start again after so long, and not with a resume
    #[arg(long = "for", value_name = "D", value_parser = duration, conflicts_with = "until")]
    span: Option<Duration>,
    /// The same at a time with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    #[command(flatten)]
    which: Which,
}

/// `countwheel resume`.
#[derive(Clone, Debug, clap::Args)]
pub struct Resume {
    #[command(flatten)]
    which: Which,
}

impl Drain {
    /// Whether the output is the only copy of what it removes.
    pub(super) fn removes(&self) -> bool {
        self.mode == Mode::Remove
    }

    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let mode = self.mode(terminal.clock.timestamp())?;
        let client = self.which.connection.client()?;
        let mut removed: u64 = 0;
        loop {
            let answer = client.drain(self.which.queue(), mode).await?;
            let drained = &answer.value;
            for (written, timer) in drained.removed.iter().enumerate() {
                let written_all = writeln!(terminal.out, "{}", one_line(timer));
                written_all.map_err(|source| Failure::Removed {
                    lost: drained.removed.len() - written,
                    source,
                })?;
            }
            removed += drained.removed.len() as u64;
            let is_over = drained.removed.is_empty() || drained.left == Left::default();
            if mode == DrainMode::Remove && !is_over {
                continue;
            }
            if mode == DrainMode::Remove {
                // What is on standard output is the timers, for the next program.
                let count = text::count(removed, "timer", "timers");
                let words = format!("{}  {count}  {}", self.which.name(), left(drained.left));
                writeln!(terminal.err, "{}", line("removed", &words))?;
            } else if self.which.connection.json {
                writeln!(terminal.out, "{}", answer.json())?;
            } else {
                report(
                    &format!("drained ({mode})"),
                    &self.which,
                    drained.left,
                    terminal,
                )?;
            }
            return Ok(Exit::Done);
        }
    }

    fn mode(&self, now: Timestamp) -> Result<DrainMode, Failure> {
        let until = end(self.until, self.span, now)?;
        match self.mode {
            Mode::Fire => Ok(DrainMode::Fire { until }),
            _ if until.is_some() => Err(Failure::Usage(
                "only a drain with --mode fire has an end".to_owned(),
            )),
            Mode::Hold => Ok(DrainMode::Hold),
            Mode::Remove => Ok(DrainMode::Remove),
        }
    }
}

/// The time that is named, or a span from now.
fn end(
    until: Option<Timestamp>,
    span: Option<Duration>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Failure> {
    let after = |span| Due::In(span).resolve(now);
    let until = until.map_or_else(|| span.map(after).transpose(), |until| Ok(Some(until)));
    until.map_err(|error| Failure::Usage(error.to_string()))
}

impl Pause {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let until = end(self.until, self.span, terminal.clock.timestamp())?;
        let client = self.which.connection.client()?;
        let answer = client.pause(self.which.queue(), until).await?;
        if self.which.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            report("paused", &self.which, answer.value.left, terminal)?;
        }
        Ok(Exit::Done)
    }
}

impl Resume {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.which.connection.client()?;
        let answer = client.resume(self.which.queue()).await?;
        if self.which.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        let was = answer.value.was.as_ref();
        let word = was.map_or("was not drained or paused".to_owned(), |was| {
            format!("resumed (was {})", was.mode)
        });
        report(&word, &self.which, answer.value.left, terminal)?;
        Ok(Exit::Done)
    }
}

fn report(
    word: &str,
    which: &Which,
    rest: Left,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let words = format!("{}  {}", which.name(), left(rest));
    writeln!(terminal.out, "{}", line(word, &words))?;
    Ok(())
}

fn left(left: Left) -> String {
    let Left {
        pending,
        delivering,
        dead,
    } = left;
    format!("left: {pending} pending, {delivering} delivering, {dead} dead")
}
