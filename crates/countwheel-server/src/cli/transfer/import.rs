//! `countwheel import`.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use countwheel_durable::{Precondition, StateKind};
use countwheel_time::{Clock, Instant, SystemClock, Timestamp};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::export::TELL_EVERY;
use super::line::{Imported, LineError, Lines};
use crate::cli::arguments::queue;
use crate::cli::connection::Service;
use crate::cli::follow;
use crate::cli::{Exit, Failure, Terminal, imported, interrupted, text};
use crate::client::{Client, ClientError};

/// How many lines are read ahead.
const READ_AHEAD: usize = 64;
/// How many bytes lines may have that are read ahead or under way, but for one that is longer, in KiB.
const READ_AHEAD_KIB: usize = 64 << 10;
/// For how long a server that takes nothing now is asked again.
const ASKED_FOR: Duration = Duration::from_secs(30);
/// How long one set may take: so many at once wait for each other on a slow disk.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// Between two tries, where the server says nothing else.
const PAUSE: Duration = Duration::from_millis(250);

/// `countwheel import`.
#[derive(Clone, Debug, clap::Args)]
pub struct Import {
    /// What `export` has written; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// What becomes of a line whose timer is there already, in any state
    #[arg(long, value_enum, default_value_t = Existing::Fail)]
    existing: Existing,
    /// Only this queue; may be given more than once
    #[arg(long = "queue", value_name = "QUEUE", value_parser = queue)]
    queues: Vec<String>,
    /// Also set timers that were dead: they are due at once
    #[arg(long)]
    revive_dead: bool,
    /// Leave out lines that are bad or refused, and go on
    #[arg(long)]
    skip_bad: bool,
    /// How many timers are being set at once
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=1_024))]
    concurrency: u16,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

/// What becomes of a timer that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Existing {
    /// The import stops
    Fail,
    /// It stays as it is
    Keep,
    /// The line takes its place
    Replace,
}

impl Existing {
    fn precondition(self) -> Precondition {
        match self {
            Self::Fail | Self::Keep => Precondition::Absent,
            Self::Replace => Precondition::None,
        }
    }
}

/// What became of the lines.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Timers that were set, those that replaced one included.
    set: u64,
    replaced: u64,
    kept: u64,
    /// Dead and done ones, which no set makes.
    ended: u64,
    missed_runs: u64,
    bad: u64,
}

/// What became of one line.
struct Became {
    line: u64,
    name: (String, String),
    misses_run: bool,
    asked: Result<Asked, ClientError>,
}

#[derive(Clone, Copy)]
enum Asked {
    Set,
    Replaced,
    Kept,
}

/// A line that stops the import.
enum Stop {
    Line(LineError),
    Refused(u64, ClientError),
    /// Wherever it is in the file.
    Interrupted,
}

impl Stop {
    fn line(&self) -> u64 {
        match self {
            Self::Line(error) => error.line(),
            Self::Refused(line, _) => *line,
            Self::Interrupted => 0,
        }
    }
}

/// An import that is under way.
struct Work<'a> {
    import: &'a Import,
    client: Client,
    clock: SystemClock,
    under_way: JoinSet<Became>,
    /// Their names: of two lines of one name, the later one is set later.
    names: HashSet<(String, String)>,
    counts: Counts,
    /// What is to be said of lines that were left out.
    left_out: Vec<String>,
    /// The first line in the file at which it stops.
    stop: Option<Stop>,
    /// When progress was told last.
    told: Instant,
}

impl Import {
    pub(in crate::cli) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?.with_timeout(ANSWERED_WITHIN);
        let path = self.file.display().to_string();
        let name = if path == "-" { "standard input" } else { &path };
        let source: Box<dyn BufRead + Send> = match name {
            "standard input" => Box::new(BufReader::new(io::stdin())),
            _ => Box::new(BufReader::new(File::open(&self.file).map_err(
                |source| {
                    let path = path.clone();
                    Failure::File { path, source }
                },
            )?)),
        };
        let mut lines = read(source, terminal.clock.timestamp(), self.revive_dead);
        let mut work = Work {
            import: self,
            client,
            clock: terminal.clock,
            under_way: JoinSet::new(),
            names: HashSet::new(),
            counts: Counts::default(),
            left_out: Vec::new(),
            stop: None,
            told: terminal.clock.now(),
        };
        tokio::select! {
            biased;
            () = interrupted() => work.stop_at(Stop::Interrupted),
            done = work.work(&mut lines, terminal) => done?,
        }
        // What is under way may be done, and then counts. It is waited for, unless somebody insists.
        tokio::select! {
            biased;
            () = interrupted() => {}
            done = work.finish(terminal) => done?,
        }
        let (counts, stop) = (work.counts, work.stop.take());
        if let Some(stop) = stop {
            let set = counts.set;
            let name = name.to_owned();
            return Err(match stop {
                Stop::Interrupted => Failure::Interrupted(imported(set)),
                Stop::Line(source) => Failure::Line {
                    path: name,
                    source,
                    set,
                },
                Stop::Refused(line, source) => Failure::Import {
                    path: name,
                    line,
                    source,
                    set,
                },
            });
        }
        self.report(counts, terminal)?;
        Ok(if counts.bad == 0 {
            Exit::Done
        } else {
            Exit::Refused
        })
    }

    fn report(&self, counts: Counts, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
        let Counts {
            set,
            replaced,
            kept,
            ended,
            missed_runs,
            bad,
        } = counts;
        if self.json {
            let report = json!({
                "set": set, "replaced": replaced, "kept": kept, "ended": ended,
                "missed_runs": missed_runs, "bad": bad,
            });
            writeln!(terminal.out, "{report}")?;
            return Ok(());
        }
        let mut words = text::count(set, "timer", "timers");
        for (number, what) in [
            (replaced, "replaced one"),
            (kept, "there already"),
            (ended, "dead or done, left out"),
            (bad, "bad, left out"),
        ] {
            if number > 0 {
                words += &format!("  {number} {what}");
            }
        }
        writeln!(terminal.out, "{}", follow::line("imported", &words))?;
        if missed_runs > 0 {
            let series = text::count(missed_runs, "series goes", "series go");
            let line = "on with the next run: the one before was under way or is past";
            writeln!(terminal.err, "{series} {line}")?;
        }
        Ok(())
    }
}

impl Work<'_> {
    /// Sets what the lines say, until there are no more, or one stops it.
    async fn work(
        &mut self,
        lines: &mut mpsc::Receiver<Ahead>,
        terminal: &mut Terminal<'_>,
    ) -> io::Result<()> {
        while self.stop.is_none()
            && let Some(Ahead { line, room }) = lines.recv().await
        {
            match line {
                Ok(timer) => self.take(timer, room).await,
                Err(error) if self.import.skip_bad && !error.is_for_all() => self.leave_out(&error),
                Err(error) => self.stop_at(Stop::Line(error)),
            }
            self.tell(terminal)?;
        }
        self.finish(terminal).await
    }

    /// Waits for all that is under way.
    async fn finish(&mut self, terminal: &mut Terminal<'_>) -> io::Result<()> {
        while self.settle().await {
            self.tell(terminal)?;
        }
        Ok(())
    }

    /// Begins to set a timer, once there is a place.
    async fn take(&mut self, timer: Imported, room: OwnedSemaphorePermit) {
        let import = self.import;
        if !import.queues.is_empty() && !import.queues.contains(&timer.queue) {
            return;
        }
        let is_ended = match timer.state {
            StateKind::Done => true,
            StateKind::Dead => !import.revive_dead,
            _ => false,
        };
        if is_ended {
            self.counts.ended += 1;
            return;
        }
        let name = (timer.queue.clone(), timer.key.clone());
        let most = usize::from(import.concurrency);
        while self.under_way.len() >= most || self.names.contains(&name) {
            self.settle().await;
        }
        if self.stop.is_some() {
            return;
        }
        self.names.insert(name.clone());
        let (client, existing, clock) = (self.client.clone(), import.existing, self.clock);
        self.under_way.spawn(async move {
            let (line, misses_run) = (timer.line, timer.misses_run);
            let asked = set(&client, timer, existing, &clock).await;
            drop(room);
            Became {
                line,
                name,
                misses_run,
                asked,
            }
        });
    }

    /// Waits for one that is under way. `false` if none is.
    async fn settle(&mut self) -> bool {
        let Some(became) = self.under_way.join_next().await else {
            return false;
        };
        // It panics nowhere, and nobody ends it.
        let Ok(became) = became else { return true };
        self.names.remove(&became.name);
        match became.asked {
            Ok(asked) => {
                let counts = &mut self.counts;
                match asked {
                    Asked::Kept => counts.kept += 1,
                    Asked::Set => counts.set += 1,
                    Asked::Replaced => {
                        counts.set += 1;
                        counts.replaced += 1;
                    }
                }
                if became.misses_run && !matches!(asked, Asked::Kept) {
                    counts.missed_runs += 1;
                }
            }
            Err(error) if self.import.skip_bad && is_of_the_line(&error) => {
                self.leave_out(&format_args!("line {}: {error}", became.line));
            }
            Err(error) => self.stop_at(Stop::Refused(became.line, error)),
        }
        true
    }

    fn leave_out(&mut self, what: &dyn fmt::Display) {
        self.counts.bad += 1;
        self.left_out.push(format!("left out: {what}"));
    }

    fn stop_at(&mut self, stop: Stop) {
        let is_first = self.stop.as_ref().is_none_or(|it| stop.line() < it.line());
        if is_first {
            self.stop = Some(stop);
        }
    }

    fn tell(&mut self, terminal: &mut Terminal<'_>) -> io::Result<()> {
        for line in self.left_out.drain(..) {
            writeln!(terminal.err, "{line}")?;
        }
        let now = terminal.clock.now();
        if now.saturating_since(self.told) < TELL_EVERY {
            return Ok(());
        }
        self.told = now;
        let set = self.counts.set;
        writeln!(terminal.err, "{set} timers imported, and more to come")
    }
}

/// A line that was read ahead, and its room in the memory for such lines until its timer is set.
struct Ahead {
    line: Result<Imported, LineError>,
    room: OwnedSemaphorePermit,
}

/// Reads on a thread of its own, a little ahead.
fn read(source: Box<dyn BufRead + Send>, now: Timestamp, revives: bool) -> mpsc::Receiver<Ahead> {
    let (send, lines) = mpsc::channel(READ_AHEAD);
    let rooms = Arc::new(Semaphore::new(READ_AHEAD_KIB));
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        for line in Lines::new(source, now, revives) {
            let bytes = line.as_ref().map_or(0, |timer| timer.fields.len());
            let kib = (bytes / 1_024 + 1).min(READ_AHEAD_KIB);
            let kib = u32::try_from(kib).unwrap_or(u32::MAX);
            // The semaphore is never closed.
            let Ok(room) = runtime.block_on(Arc::clone(&rooms).acquire_many_owned(kib)) else {
                return;
            };
            if send.blocking_send(Ahead { line, room }).is_err() {
                return;
            }
        }
    });
    lines
}

/// Sets a timer, also if the server takes nothing for a while. What is sent again may have been done before, so
/// that is not done where an existing timer stops the import.
async fn set(
    client: &Client,
    timer: Imported,
    existing: Existing,
    clock: &SystemClock,
) -> Result<Asked, ClientError> {
    let until = clock.now() + ASKED_FOR;
    loop {
        let fields = timer.fields.clone();
        let asked = client.set_as_said(&timer.queue, &timer.key, fields, existing.precondition());
        let error = match asked.await {
            Ok(answer) if answer.value.replaced.is_some() => return Ok(Asked::Replaced),
            Ok(_) => return Ok(Asked::Set),
            Err(error) => error,
        };
        let problem = error.problem();
        if existing == Existing::Keep && problem.is_some_and(|it| it.code == "exists") {
            return Ok(Asked::Kept);
        }
        let is_not_done =
            problem.is_some_and(|it| matches!(it.status, 429 | 503) && it.code != "unknown");
        let may_ask = is_not_done || (error.is_unknown() && existing != Existing::Fail);
        if !may_ask || clock.now() >= until {
            return Err(error);
        }
        let pause = problem.and_then(|it| it.retry_after).unwrap_or(PAUSE);
        tokio::time::sleep(pause.min(ASKED_FOR)).await;
    }
}

/// Whether another line may fare better.
fn is_of_the_line(error: &ClientError) -> bool {
    error.problem().is_some_and(|problem| {
        (400..500).contains(&problem.status) && !matches!(problem.status, 401 | 403 | 408 | 429)
    })
}
