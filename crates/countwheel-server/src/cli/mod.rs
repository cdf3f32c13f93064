//! The commands that talk to a server: one file each.
//!
//! Exit codes: 0 done; 1 the server refused, or a watched timer is dead; 2 wrong usage, or
//! no such timer; 3 the server cannot be reached; 124 a `watch` ran out of time; 130 an `export`
//! or `import` was interrupted.

mod arguments;
mod audit;
mod backfill;
mod batch;
pub mod bulk;
pub mod cluster;
mod connection;
mod drain;
pub mod endpoint;
mod events;
mod fire;
mod follow;
mod get;
mod lease;
mod list;
mod move_all;
mod move_timer;
mod namespace;
pub mod purge;
mod queue;
mod queues;
mod remove;
mod repeat;
pub mod replay;
mod resend;
mod retry;
mod revive;
mod runs;
mod set;
mod settle;
mod simulate;
mod snapshot;
mod stats;
mod table;
mod text;
pub mod token;
pub mod transfer;
mod watch;
mod work;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use countwheel_time::SystemClock;
use rustix::fs::OFlags;

use crate::client::ClientError;
use crate::shown::Showing;
use crate::trace::TraceError;

use self::transfer::LineError;

/// What to do with the timers of a server.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Set a timer, in place of whatever has its key
    Set(Box<set::Set>),
    /// Move a pending timer to another deadline
    Move(move_timer::Move),
    /// Remove a timer: no attempt starts afterwards
    Remove(remove::Remove),
    /// Show one timer
    Get(get::Get),
    /// Show the timers of a queue in the order of their deadlines
    List(list::List),
    /// Make a pending timer due now
    Fire(fire::Fire),
    /// Make a dead timer pending again
    Revive(revive::Revive),
    /// Send a timer again that is done, dead or has failed, to its target or to another
    Resend(resend::Resend),
    /// Show the runs of a recurring timer that come next
    Runs(runs::Runs),
    /// Make runs of a recurring timer for times in the past
    Backfill(backfill::Backfill),
    /// Lease timers of pull queues that are due, and print them as lines of JSON
    Lease(lease::Lease),
    /// Say that what was leased is done
    Ack(settle::Ack),
    /// Say that what was leased has failed
    Nack(settle::Nack),
    /// Let a lease end later
    Extend(settle::Extend),
    /// Run a command for each timer of pull queues that is due, and ack it if that succeeds
    Work(work::Work),
    /// Pause a queue: it takes timers, and starts none
    Pause(drain::Pause),
    /// Drain a queue: it takes no timers, and its own are fired, held or taken out
    Drain(drain::Drain),
    /// End the pause or drain of a queue
    Resume(drain::Resume),
    /// Remove timers of a queue: by state, key and due time, in steps
    Purge(purge::Purge),
    /// Remove, move, fire or revive many timers of a queue, in steps: a job
    Bulk(Box<bulk::Bulk>),
    /// Show the bulk jobs
    Jobs(bulk::Jobs),
    /// Show, follow or cancel one bulk job
    Job(bulk::Job),
    /// Do operations, one JSON object a line, and print their results
    Batch(batch::Batch),
    /// Show how many timers each queue has
    Queues(queues::Queues),
    /// Show how many timers there are, are overdue, and are due when, over all queues and nodes
    Stats(stats::Stats),
    /// Put, show and remove endpoints: where deliveries go, by name
    #[command(subcommand)]
    Endpoint(endpoint::Endpoint),
    /// Put, show and remove the settings of a queue
    #[command(subcommand)]
    Queue(queue::Queue),
    /// Make, show, rotate and revoke tokens: what callers show, and what each opens
    #[command(subcommand)]
    Token(token::Token),
    /// Make, show and remove namespaces, and give them quotas
    #[command(subcommand)]
    Namespace(namespace::Namespace),
    /// Show who has changed what, the newest first
    Audit(audit::Audit),
    /// Print what happens: a line for each event
    Events(events::Events),
    /// Follow one timer until it is done, dead or removed
    Watch(watch::Watch),
    /// Show when each attempt would come under a retry policy, in a queue or to an endpoint, or each run of a schedule
    Simulate(simulate::Simulate),
    /// Have the server make a snapshot of its store, below its --snapshot-dir
    Snapshot(snapshot::Snapshot),
    /// Move all timers of a running service with a data directory to a cluster
    MoveTo(move_all::MoveTo),
    /// Replay a trace of set, move and remove, one JSON object a line, at any speed
    Replay(replay::ReplayFile),
    /// Write timers as lines of JSON: those that wait, are delivered or are dead, with their bodies
    Export(transfer::Export),
    /// Set the timers that `export` has written
    Import(transfer::Import),
    /// Of `countwheel cluster`, what is asked of a node
    #[command(skip)]
    Cluster(cluster::Cluster),
}

/// Runs a command on the process's own output, and says how it went.
#[must_use]
pub fn run(command: Command) -> ExitCode {
    let mut out = Showing::lines(io::stdout());
    let mut err = Showing::lines(io::stderr());
    let unwritten = match &command {
        Command::Drain(drain) if drain.removes() => Some(Failure::NoOutput),
        Command::Export(export) if export.prints() => Some(Failure::NoExport),
        _ => None,
    };
    if let Some(failure) = unwritten.filter(|_| is_closed(io::stdout())) {
        // With standard error closed too, the exit code still says it.
        let _ = writeln!(err, "countwheel: {failure}");
        return ExitCode::from(failure.exit().code());
    }
    let mut terminal = Terminal {
        out: &mut out,
        err: &mut err,
        clock: SystemClock::new(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let exit = match runtime {
        Ok(runtime) => {
            let exit = runtime.block_on(run_in(command, &mut terminal));
            // A thread may wait for standard input, which need not end.
            runtime.shutdown_background();
            exit
        }
        Err(error) => {
            // With standard error closed too, the exit code still says it.
            let _ = writeln!(terminal.err, "countwheel: cannot start: {error}");
            Exit::Refused
        }
    };
    ExitCode::from(exit.code())
}

/// Whether nobody can read what is written here. The standard library opens what a process is started
/// without as `/dev/null`, for reading too, and a write to it succeeds. A shell's `> /dev/null` is open
/// for writing alone: then somebody wants it so.
fn is_closed(out: impl AsFd) -> bool {
    let (Ok(flags), Ok(found), Ok(null)) = (
        rustix::fs::fcntl_getfl(&out),
        rustix::fs::fstat(&out),
        rustix::fs::stat("/dev/null"),
    ) else {
        return true;
    };
    let mode = OFlags::RDWR | OFlags::WRONLY;
    found.st_rdev == null.st_rdev && flags & mode == OFlags::RDWR
}

/// Runs a command, writing to `terminal`.
pub async fn run_in(command: Command, terminal: &mut Terminal<'_>) -> Exit {
    let result = match command {
        Command::Set(set) => set.run(terminal).await,
        Command::Move(shift) => shift.run(terminal).await,
        Command::Remove(remove) => remove.run(terminal).await,
        Command::Get(get) => get.run(terminal).await,
        Command::List(list) => list.run(terminal).await,
        Command::Fire(fire) => fire.run(terminal).await,
        Command::Revive(revive) => revive.run(terminal).await,
        Command::Resend(resend) => resend.run(terminal).await,
        Command::Runs(runs) => runs.run(terminal).await,
        Command::Backfill(backfill) => backfill.run(terminal).await,
        Command::Lease(lease) => lease.run(terminal).await,
        Command::Ack(ack) => ack.run(terminal).await,
        Command::Nack(nack) => nack.run(terminal).await,
        Command::Extend(extend) => extend.run(terminal).await,
        Command::Work(work) => work.run(terminal).await,
        Command::Pause(pause) => pause.run(terminal).await,
        Command::Drain(drain) => drain.run(terminal).await,
        Command::Resume(resume) => resume.run(terminal).await,
        Command::Purge(purge) => purge.run(terminal).await,
        Command::Bulk(bulk) => bulk.run(terminal).await,
        Command::Jobs(jobs) => jobs.run(terminal).await,
        Command::Job(job) => job.run(terminal).await,
        Command::Batch(batch) => batch.run(terminal).await,
        Command::Queues(queues) => queues.run(terminal).await,
        Command::Stats(stats) => stats.run(terminal).await,
        Command::Endpoint(endpoint) => endpoint.run(terminal).await,
        Command::Queue(queue) => queue.run(terminal).await,
        Command::Token(token) => token.run(terminal).await,
        Command::Namespace(namespace) => namespace.run(terminal).await,
        Command::Audit(audit) => audit.run(terminal).await,
        Command::Events(events) => events.run(terminal).await,
        Command::Watch(watch) => watch.run(terminal).await,
        Command::Simulate(simulate) => simulate.run(terminal).await,
        Command::Snapshot(snapshot) => snapshot.run(terminal).await,
        Command::MoveTo(move_to) => move_to.run(terminal).await,
        Command::Replay(replay) => replay.run(terminal).await,
        Command::Export(export) => export.run(terminal).await,
        Command::Import(import) => import.run(terminal).await,
        Command::Cluster(cluster) => cluster.run(terminal).await,
    };
    match result {
        Ok(exit) => exit,
        // Whoever read us has enough: that is no failure, and there is nobody to tell.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(failure) => {
            // With standard error closed too, the exit code still says it.
            let _ = writeln!(terminal.err, "countwheel: {failure}");
            failure.exit()
        }
    }
}

/// Where a command writes and reads the time.
pub struct Terminal<'a> {
    /// What was asked for.
    pub out: &'a mut (dyn Write + Send),
    /// Notices and failures.
    pub err: &'a mut (dyn Write + Send),
    /// Tells how far away deadlines are, and paces a replay.
    pub clock: SystemClock,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// As asked.
    Done,
    /// The server refused, or the watched timer is dead.
    Refused,
    /// Wrong usage, or no such timer.
    NotFound,
    /// The server cannot be reached or cannot work.
    Unreachable,
    /// A watch ran out of time.
    OutOfTime,
    /// Ctrl-C ended it before it was done.
    Interrupted,
}

impl Exit {
    /// The code for the shell.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::NotFound => 2,
            Self::Unreachable => 3,
            Self::OutOfTime => 124,
            Self::Interrupted => 130,
        }
    }
}

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{directory}: {why}")]
    Data { directory: String, why: String },
    #[error("{path}: {source}")]
    Trace { path: String, source: TraceError },
    #[error("{path}: {source}; {}", imported(*set))]
    Line {
        path: String,
        source: LineError,
        set: u64,
    },
    #[error("{path}: line {line}: {source}; {}", imported(*set))]
    Import {
        path: String,
        line: u64,
        source: ClientError,
        set: u64,
    },
    #[error("{source}; {answered} operations were answered, and of later ones it is not known")]
    Batch { answered: u64, source: ClientError },
    #[error("the server ended the batch after {answered} operations: {reason}")]
    Cut { answered: u64, reason: String },
    /// By Ctrl-C.
    #[error("interrupted: {0}")]
    Interrupted(String),
    #[error("{path}: {}", reason(source))]
    File { path: String, source: io::Error },
    #[error("cannot write: {source}; at least {lost} timers that were removed are lost")]
    Removed { lost: usize, source: io::Error },
    #[error(
        "standard output is closed, and what a drain removes is printed there and nowhere else: nothing \
         was removed"
    )]
    NoOutput,
    #[error("standard output is closed, and an export is printed there: name a file with --output")]
    NoExport,
    /// Also where the reader has gone: part of an export is none.
    #[error("cannot write: {0}; the export is not whole")]
    Export(io::Error),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Returns once Ctrl-C is pressed.
async fn interrupted() {
    // Without a way to hear of it, nobody can stop us so.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How many timers of an import are there, if it stops.
fn imported(set: u64) -> String {
    match set {
        0 => "nothing was imported".to_owned(),
        1 => "1 timer was imported".to_owned(),
        _ => format!("{set} timers were imported"),
    }
}

/// What is wrong with a file, without the number that the system has for it.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

impl Failure {
    fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) | Self::Trace { .. } | Self::Line { .. } | Self::File { .. } => {
                Exit::NotFound
            }
            Self::Client(error)
            | Self::Import { source: error, .. }
            | Self::Batch { source: error, .. } => exit_of(error),
            Self::Cut { .. } => Exit::Unreachable,
            Self::Output(_)
            | Self::Data { .. }
            | Self::Removed { .. }
            | Self::NoOutput
            | Self::NoExport
            | Self::Export(_) => Exit::Refused,
            Self::Interrupted(_) => Exit::Interrupted,
        }
    }
}

fn exit_of(error: &ClientError) -> Exit {
    match error {
        ClientError::Address { .. }
        | ClientError::Socket { .. }
        | ClientError::Token
        | ClientError::File { .. } => Exit::NotFound,
        ClientError::Refused(problem) if problem.status == 404 => Exit::NotFound,
        error if error.is_outage() => Exit::Unreachable,
        _ => Exit::Refused,
    }
}
