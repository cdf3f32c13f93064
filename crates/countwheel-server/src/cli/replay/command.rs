//! `countwheel replay`.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use countwheel_time::{Clock, Timestamp};
use tokio::sync::mpsc;

use super::perform::{Acknowledgement, OperationResult};
use super::plan::{Operation, Planner, Speed};
use super::report::Report;
use super::run::{Observer, Progress, Replay, ReplayError};
use crate::cli::arguments::date;
use crate::cli::connection::Connection;
use crate::cli::retry::Retry;
use crate::cli::{Exit, Failure, Terminal, interrupted, text};
use crate::client::ClientError;
use crate::trace::{Entry, TraceError, TraceFile, TraceReader, in_order};

/// How many operations are read ahead.
const READ_AHEAD: usize = 64;
/// In seconds: how often progress is told if all is well.
const TELL_EVERY: u32 = 10;

/// `countwheel replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayFile {
    /// The trace, one JSON object a line; - is standard input. A file is checked to its end first,
    /// and its lines may stand in any order
    file: PathBuf,
    /// How many times faster than it happened
    #[arg(long, value_name = "N", default_value = "1")]
    speed: Speed,
    /// Only operations that happened at this time or later: 2013-01-15
    #[arg(long, value_name = "DATE", value_parser = date)]
    from: Option<Timestamp>,
    /// Only operations that happened before this time
    #[arg(long, value_name = "DATE", value_parser = date)]
    to: Option<Timestamp>,
    /// Where timers are delivered, whatever their lines say; if not given, where their lines say,
    /// else to the server's own echo
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
        let trace = self.open().map_err(|error| self.unreadable(error))?;
        let mut entries = between(trace.entries, self.from, self.to).peekable();
        match entries.peek() {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => {
                let error = entries.next().and_then(Result::err);
                return Err(error.map_or_else(|| self.empty(), |error| self.unreadable(error)));
            }
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
        let echo = match trace.needs_echo {
            _ if self.target.is_some() => None,
            NeedsEcho::No => None,
            NeedsEcho::Yes => Some(client.echo().await.map_err(no_echo)?),
            NeedsEcho::Unknown => match client.echo().await {
                Ok(()) => Some(()),
                Err(error) if is_no_echo(&error) => None,
                Err(error) => return Err(error.into()),
            },
        };
        let echo = echo.map(|()| format!("{}/echo", client.server()));
        let clock = terminal.clock;
        let start = clock.timestamp();
        let replay = Replay {
            batches: true,
            target: self.target.clone(),
            echo,
            client,
            queue: self.connection.queue.clone(),
            run: format!("{:x}-{:x}", start.as_micros(), std::process::id()),
            concurrency: usize::from(self.concurrency),
            retry,
        };
        let has_target = replay.target.is_some() || replay.echo.is_some();
        let entries = entries.map(move |entry| match entry {
            Ok(entry) if !has_target && entry.needs_target() => {
                Err(TraceError::NoTarget { line: entry.line })
            }
            entry => entry,
        });
        let operations = read_ahead(Planner::new(entries, self.speed, start))
            .map_err(|error| Failure::Usage(format!("cannot read the trace: {error}")))?;
        let run = replay.run(operations, clock, &mut console, interrupted());
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

    /// Opens the trace, and reads it to its end if it is a file.
    fn open(&self) -> Result<Trace, TraceError> {
        if self.is_standard_input() {
            return Ok(Trace::stream(std::io::stdin()));
        }
        let read = |source| TraceError::Read { line: 1, source };
        let file = File::open(&self.file).map_err(read)?;
        if !file.metadata().map_err(read)?.is_file() {
            return Ok(Trace::stream(file));
        }
        let file = TraceFile::check(file)?;
        Ok(Trace {
            needs_echo: match file.without_target() {
                Some(_) => NeedsEcho::Yes,
                None => NeedsEcho::No,
            },
            entries: Box::new(file),
        })
    }

    fn is_standard_input(&self) -> bool {
        self.file.as_os_str() == "-"
    }

    /// What errors call the trace.
    fn name(&self) -> String {
        if self.is_standard_input() {
            "standard input".to_owned()
        } else {
            self.file.display().to_string()
        }
    }

    fn empty(&self) -> Failure {
        let asked = match (self.from, self.to) {
            (None, None) => "",
            _ => " in the time that --from and --to ask for",
        };
        Failure::Usage(format!("{}: no operation{asked}", self.name()))
    }

    fn unreadable(&self, source: TraceError) -> Failure {
        let path = self.name();
        match source {
            // The file cannot be opened, or is none: that is no matter of a line.
            TraceError::Read { line: 1, source } if source.raw_os_error().is_some() => {
                Failure::File { path, source }
            }
            source => Failure::Trace { path, source },
        }
    }
}

type Entries = Box<dyn Iterator<Item = Result<Entry, TraceError>> + Send>;

/// An open trace.
struct Trace {
    entries: Entries,
    needs_echo: NeedsEcho,
}

/// Whether a line sets a timer without a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NeedsEcho {
    Yes,
    No,
    Unknown,
}

impl Trace {
    /// What can be read once, and from its beginning to its end.
    fn stream(source: impl std::io::Read + Send + 'static) -> Self {
        Self {
            entries: Box::new(in_order(TraceReader::new(BufReader::new(source)))),
            needs_echo: NeedsEcho::Unknown,
        }
    }
}

/// Reads operations on a thread of their own: a source that is slow, as standard input can be,
/// holds up nothing that is under way. The thread ends with its source or with the process.
fn read_ahead<E: Send + 'static>(
    operations: impl Iterator<Item = Result<Operation, E>> + Send + 'static,
) -> std::io::Result<mpsc::Receiver<Result<Operation, E>>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let read = move || {
        for operation in operations {
            if sender.blocking_send(operation).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("trace".to_owned())
        .spawn(read)?;
    Ok(receiver)
}

/// Whether the server answers, and has no echo.
fn is_no_echo(error: &ClientError) -> bool {
    match error {
        ClientError::Refused(problem) => problem.status == 404,
        ClientError::Foreign { status, .. } => *status < 300 || *status == 404,
        ClientError::Unintelligible { .. } => true,
        _ => false,
    }
}

/// Says what to do without the server's echo, if that is what is wrong.
fn no_echo(error: ClientError) -> Failure {
    if is_no_echo(&error) {
        return Failure::Usage(
            "the server has no /echo to deliver to, as `countwheel dev` has: give --target URL"
                .to_owned(),
        );
    }
    Failure::Client(error)
}

fn exit(report: &Report) -> Exit {
    if report.stopped || report.count(OperationResult::Refused) > 0 {
        Exit::Refused
    } else {
        Exit::Done
    }
}

/// The operations that happened from `from`, before `to`. Errors pass.
fn between<E>(
    entries: impl Iterator<Item = Result<Entry, E>>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> impl Iterator<Item = Result<Entry, E>> {
    let happened = |entry: &Result<Entry, E>| entry.as_ref().ok().map(|one| one.happened);
    entries
        .skip_while(move |entry| {
            from.zip(happened(entry))
                .is_some_and(|(from, at)| at < from)
        })
        .take_while(move |entry| to.zip(happened(entry)).is_none_or(|(to, at)| at < to))
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
    use countwheel_durable::Key;

    use super::*;
    use crate::trace::TracedRequest;

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
    fn operations_between_two_dates_are_taken_and_the_rest_is_not_read() {
        let entry = |day: u64| Entry {
            line: day,
            happened: Timestamp::from_micros(day * 86_400_000_000),
            queue: None,
            key: Key::new("a").unwrap(),
            request: TracedRequest::Remove,
        };
        let mut read = 0;
        let days = (0..100).map(|day| Ok::<_, ()>(entry(day)));
        let days = days.inspect(|_| read += 1);
        let bound = |day| Some(entry(day).happened);
        let taken = between(days, bound(3), bound(5)).map(|entry| entry.unwrap().line);
        assert_eq!(taken.collect::<Vec<_>>(), [3, 4]);
        assert_eq!(read, 6);
    }
}
