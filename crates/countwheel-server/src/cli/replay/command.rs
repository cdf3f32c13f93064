//! `countwheel replay`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use countwheel::{Clock, Timestamp};
use countwheel_departures::{DeparturesError, Flight};

use super::perform::{Acknowledgement, OperationResult};
use super::plan::{Planner, Speed};
use super::report::Report;
use super::run::{Observer, Progress, Replay, ReplayError};
use crate::cli::arguments::date;
use crate::cli::connection::Connection;
use crate::cli::retry::Retry;
use crate::cli::{Exit, Failure, Terminal, text};
use crate::client::ClientError;

/// In seconds: how often progress is told if all is well.
const TELL_EVERY: u32 = 10;

/// `countwheel replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayFile {
    /// The trace: CSV, plain or compressed with gzip
    file: PathBuf,
    /// How many times faster than it happened
    #[arg(long, value_name = "N", default_value = "1")]
    speed: Speed,
    /// Only flights scheduled at this time or later: 2013-01-15
    #[arg(long, value_name = "DATE", value_parser = date)]
    from: Option<Timestamp>,
    /// Only flights scheduled before this time
    #[arg(long, value_name = "DATE", value_parser = date)]
    to: Option<Timestamp>,
    /// Where timers are delivered; the server's own echo if not given
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// How many operations are under way at once
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Write the report to this file as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write each acknowledged operation to this file, one line of JSON each
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    connection: Connection,
}

impl ReplayFile {
    pub(in crate::cli) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let retry = self.retry.policy()?.unwrap_or_else(Replay::default_retry);
        let flights =
            countwheel_departures::open(&self.file).map_err(|error| self.unreadable(error))?;
        let mut flights = between(flights, self.from, self.to).peekable();
        if flights.peek().is_none() {
            let path = self.file.display();
            let asked = match (self.from, self.to) {
                (None, None) => "",
                _ => " in the time that --from and --to ask for",
            };
            return Err(Failure::Usage(format!("{path}: no flight{asked}")));
        }
        let mut console = Console {
            log: self.log.as_deref().map(create).transpose()?,
            lost: None,
            retries: 0,
            quiet: 0,
            err: terminal.err,
        };
        let mut report_file = self.report.as_deref().map(create).transpose()?;
        // Whoever mistypes the URL shall not wait for that server for ever.
        client.queues().await?;
        if self.target.is_none() {
            client.echo().await.map_err(no_echo)?;
        }
        let clock = terminal.clock;
        let start = clock.timestamp();
        let replay = Replay {
            target: match &self.target {
                Some(url) => url.clone(),
                None => format!("{}/echo", client.server()),
            },
            client,
            queue: self.connection.queue.clone(),
            run: format!("{:x}-{:x}", start.as_micros(), std::process::id()),
            concurrency: usize::from(self.concurrency),
            retry,
        };
        let operations = Planner::new(flights, self.speed, start);
        let stop = async {
            // Without a way to hear of it, nobody can stop us so.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let run = replay.run(operations, clock, &mut console, stop);
        let report = run.await.map_err(|error| match error {
            ReplayError::Operations(error) => self.unreadable(error),
            other => Failure::Usage(other.to_string()),
        })?;
        if let Some((path, source)) = console.lost {
            return Err(Failure::File { path, source });
        }
        let json = serde_json::to_string(&report).map_err(std::io::Error::from)?;
        if let Some((path, file)) = &mut report_file {
            let written = writeln!(file, "{json}");
            written.map_err(|source| Failure::File {
                path: path.clone(),
                source,
            })?;
        }
        if self.connection.json {
            writeln!(terminal.out, "{json}")?;
        } else {
            writeln!(terminal.out, "{report}")?;
        }
        Ok(exit(&report))
    }

    fn unreadable(&self, source: DeparturesError) -> Failure {
        let path = self.file.display().to_string();
        match source {
            // The file cannot be opened, or is none: that is no matter of a line.
            DeparturesError::Read { line: 1, source } if source.raw_os_error().is_some() => {
                Failure::File { path, source }
            }
            source => Failure::Trace { path, source },
        }
    }
}

/// Says what to do without the server's echo, if that is what is wrong.
fn no_echo(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(_) | ClientError::Unintelligible { .. } => Failure::Usage(
            "the server has no /echo to deliver to, as `countwheel dev` has: give --target URL"
                .to_owned(),
        ),
        error => Failure::Client(error),
    }
}

fn exit(report: &Report) -> Exit {
    if report.stopped || report.count(OperationResult::Refused) > 0 {
        Exit::Refused
    } else {
        Exit::Done
    }
}

/// The flights scheduled from `from`, before `to`. Errors pass.
fn between<E>(
    flights: impl Iterator<Item = Result<Flight, E>>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> impl Iterator<Item = Result<Flight, E>> {
    let scheduled = |flight: &Result<Flight, E>| flight.as_ref().ok().map(|one| one.scheduled);
    flights
        .skip_while(move |flight| {
            from.zip(scheduled(flight))
                .is_some_and(|(from, at)| at < from)
        })
        .take_while(move |flight| to.zip(scheduled(flight)).is_none_or(|(to, at)| at < to))
}

fn create(path: &Path) -> Result<(String, File), Failure> {
    let name = path.display().to_string();
    match File::create(path) {
        Ok(file) => Ok((name, file)),
        Err(source) => Err(Failure::File { path: name, source }),
    }
}

/// Writes the log, and says what goes on where somebody waits.
struct Console<'a> {
    log: Option<(String, File)>,
    /// Why the log was given up.
    lost: Option<(String, std::io::Error)>,
    retries: u64,
    /// How often progress was heard of, once a second, since it was last told.
    quiet: u32,
    err: &'a mut (dyn Write + Send),
}

impl Observer for Console<'_> {
    fn acknowledged(&mut self, acknowledgement: &Acknowledgement) {
        let Some((_, file)) = &mut self.log else {
            return;
        };
        // A whole line in one write: what was acknowledged is in the file even if this
        // process is killed.
        let written = serde_json::to_vec(acknowledgement)
            .map_err(std::io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                file.write_all(&line)
            });
        if let (Err(error), Some((path, _))) = (written, self.log.as_ref()) {
            self.lost = Some((path.clone(), error));
            self.log = None;
        }
    }

    fn progress(&mut self, progress: Progress) {
        let Progress {
            acknowledged,
            under_way,
            retries,
            behind,
        } = progress;
        let again = retries > std::mem::replace(&mut self.retries, retries);
        self.quiet += 1;
        if again || behind > Duration::from_secs(1) || self.quiet >= TELL_EVERY {
            self.quiet = 0;
            let behind = text::span(behind);
            let retries = text::count(retries, "retry", "retries");
            // Whoever closed standard error does not want to know.
            let _ = writeln!(
                self.err,
                "countwheel: {acknowledged} acknowledged, {under_way} under way, \
                 {retries}, {behind} behind"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_every_ten_seconds_when_all_is_well() {
        let mut err = Vec::new();
        let mut console = Console {
            log: None,
            lost: None,
            retries: 0,
            quiet: 0,
            err: &mut err,
        };
        for acknowledged in 1..=25 {
            console.progress(Progress {
                acknowledged,
                under_way: 0,
                retries: 0,
                behind: Duration::ZERO,
            });
        }
        let told = String::from_utf8(err).unwrap();
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(lines.len(), 2, "{told}");
        assert!(
            lines[0].starts_with("countwheel: 10 acknowledged, "),
            "{told}"
        );
    }

    #[test]
    fn flights_between_two_dates_are_taken_and_the_rest_is_not_read() {
        let flight = |day: u64| Flight {
            scheduled: Timestamp::from_micros(day * 86_400_000_000),
            key: day.to_string(),
            delay_minutes: None,
        };
        let mut read = 0;
        let days = (0..100).map(|day| Ok::<_, ()>(flight(day)));
        let days = days.inspect(|_| read += 1);
        let bound = |day| Some(flight(day).scheduled);
        let taken: Vec<_> = between(days, bound(3), bound(5)).collect();
        assert_eq!(taken, [Ok(flight(3)), Ok(flight(4))]);
        assert_eq!(read, 6);
    }
}
