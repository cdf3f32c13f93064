//! The commands on a data directory that no process has open: init, check, repair, verify, restore.
//!
//! Exit codes: 0 sound, or done; 1 something is damaged or lost; 2 wrong usage, or the directory
//! cannot be read or written; 4 a process has the directory, or changes it faster than `check`
//! reads it.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use countwheel_disk::{AtRisk, CheckReport, DiskOptions, DiskStore, Loss, Problem};
use countwheel_durable::Shards;
use countwheel_durable::store::{DiskError, StoreError};
use countwheel_postgres::{PostgresError, PostgresStore, conformance, give_up_move};
use serde_json::{Value, json};

use crate::config::{Database, Init, Log, Tables};

const DAMAGED: u8 = 1;
const FAILED: u8 = 2;
const IN_USE: u8 = 4;

/// The list that a repair leaves in the new directory.
const LOSSES: &str = "losses.jsonl";

/// `countwheel check`: reads all of a data directory, and says what is wrong with it.
#[derive(Args, Clone, Debug)]
pub struct Check {
    /// The data directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Print JSON: one line for each file and each problem, and one at the end
    #[arg(long)]
    pub json: bool,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

/// `countwheel verify`: the same for a snapshot, whose files are compared with its list as well.
#[derive(Args, Clone, Debug)]
pub struct Verify {
    /// The snapshot
    #[arg(value_name = "SNAPSHOT")]
    pub directory: PathBuf,
    /// Print JSON: one line for each file and each problem, and one at the end
    #[arg(long)]
    pub json: bool,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

/// From one directory into a new one.
#[derive(Args, Clone, Debug)]
pub struct Anew {
    /// What is read; it stays as it is
    #[arg(value_name = "FROM")]
    pub from: PathBuf,
    /// The data directory to make: empty, or not there
    #[arg(value_name = "INTO")]
    pub into: PathBuf,
    /// How long a segment of the log is, in MiB: as in `serve`
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub log_segment_mib: u32,
    /// What is logged, and how
    #[command(flatten)]
    pub log: Log,
}

impl Anew {
    fn disk(&self) -> DiskOptions {
        let mut options = DiskOptions::default();
        options.log.segment_bytes = u64::from(self.log_segment_mib) << 20;
        options
    }
}

/// Runs a command on a cluster's database to its end.
#[must_use]
pub fn cluster(command: &Tables) -> ExitCode {
    match done_to_tables(command) {
        Ok(done) => {
            print(&done);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("countwheel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does it, and says what was done.
fn done_to_tables(command: &Tables) -> Result<String, PostgresError> {
    let say =
        |as_json: bool, json: Value, text: String| if as_json { json.to_string() } else { text };
    Ok(match command {
        Tables::Init {
            database,
            shards,
            keep_done,
            json,
        } => {
            let mut options = database.options();
            options.keep_done = *keep_done;
            let made = Shards::new(*shards).map(|shards| PostgresStore::make(&options, shards));
            made.unwrap_or(Ok(()))?;
            let schema = &options.schema;
            say(
                *json,
                json!({"schema": schema, "shards": shards}),
                format!("made a cluster of {shards} shards in schema {schema}"),
            )
        }
        Tables::Upgrade { database, json } => {
            let options = database.options();
            let (from, to) = PostgresStore::upgrade(&options)?;
            let schema = &options.schema;
            let text = match from == to {
                true => format!("schema {schema} has version {to} already"),
                false => format!("schema {schema} had version {from}, and has version {to}"),
            };
            say(
                *json,
                json!({"schema": schema, "from": from, "to": to}),
                text,
            )
        }
        Tables::AcknowledgeLoss { database, json } => {
            let count = PostgresStore::acknowledge_losses(&database.options())?;
            say(
                *json,
                json!({"acknowledged": count}),
                format!("{count} lost turns are acknowledged"),
            )
        }
        Tables::GiveUpMove { database, json } => {
            let given_up = give_up_move(&database.options())?;
            let text = match &given_up {
                None => "no move is under way".to_owned(),
                Some(it) if it.is_arrival => {
                    format!("given up: the timers stay at {}", it.place)
                }
                Some(it) => format!("given up: the timers stay here, and not at {}", it.place),
            };
            let value = json!({
                "given_up": given_up.is_some(), "place": given_up.map(|it| it.place),
            });
            say(*json, value, text)
        }
        Tables::Restored { database, json } => {
            let options = database.options();
            let restored = PostgresStore::restored(&options)?;
            let schema = &options.schema;
            let (shards, nodes) = (restored.shards, restored.nodes);
            let (revisions, fences) = (restored.revisions, restored.fences);
            let text = format!(
                "schema {schema}: {shards} shards are free, {nodes} nodes are gone; revisions go on {revisions} \
                 higher, fences {fences}"
            );
            let value = json!({
                "schema": schema, "shards": shards, "nodes_gone": nodes,
                "revisions_ahead": revisions, "fences_ahead": fences,
            });
            say(*json, value, text)
        }
    })
}

/// Runs `countwheel conformance` to its end: 1 if a sentence does not hold, or if the server cannot be
/// used.
#[must_use]
pub fn conformance(database: &Database) -> ExitCode {
    let run = conformance::run(&database.options(), |sentence, result| match result {
        Ok(()) => println!("holds   {sentence}"),
        Err(why) => println!(
            "FAILED  {sentence} {}",
            why.lines().next().unwrap_or_default()
        ),
    });
    match run {
        Ok(true) => {
            println!("the server holds the store");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            println!("the server does not hold the store");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("countwheel: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `countwheel init` to its end.
#[must_use]
pub fn init(args: &Init) -> ExitCode {
    let path = &args.directory;
    let id = getrandom::u64().map_err(|error| {
        DiskError::Io {
            path: path.clone(),
            source: io::Error::other(error),
        }
        .into()
    });
    let made = id.and_then(|id| DiskStore::init(path, id, args.disk()));
    ended(made.map(|_| {
        print(&format!("made {}", path.display()));
        true
    }))
}

/// Runs `countwheel check` to its end.
#[must_use]
pub fn check(args: &Check) -> ExitCode {
    ended(DiskStore::check(&args.directory).map(|report| say(&report, args.json)))
}

/// Runs `countwheel verify` to its end.
#[must_use]
pub fn verify(args: &Verify) -> ExitCode {
    ended(DiskStore::verify(&args.directory).map(|report| say(&report, args.json)))
}

/// Runs `countwheel repair` to its end.
#[must_use]
pub fn repair(args: &Anew) -> ExitCode {
    let path = args.into.join(LOSSES);
    let on_error = |source| {
        DiskError::Io {
            path: path.clone(),
            source,
        }
        .into()
    };
    let mut list = None;
    let repaired = DiskStore::repair(&args.from, &args.into, args.disk(), &mut |loss| {
        let list = match &mut list {
            Some(list) => list,
            none => none.insert(begin(&path).map_err(on_error)?),
        };
        writeln!(list, "{}", loss_json(&loss)).map_err(on_error)
    });
    let repaired = repaired.and_then(|repaired| {
        if let Some(mut list) = list {
            let synced = list.flush().and_then(|()| list.get_ref().sync_all());
            synced.map_err(on_error)?;
        }
        Ok(repaired)
    });
    ended(repaired.map(|repaired| {
        let (timers, into) = (repaired.timers, args.into.display());
        if repaired.problems == 0 && repaired.stale == 0 {
            print(&format!(
                "repaired {into}: {timers} timers, nothing is lost"
            ));
            return true;
        }
        let (problems, stale, path) = (repaired.problems, repaired.stale, path.display());
        print(&format!(
            "repaired {into}: {timers} timers, {stale} of them may be stale; {problems} places \
             cannot be read; see {path}"
        ));
        tracing::warn!(
            "settings may be missing or older: compare tokens, endpoints, queues, pauses and drains before a start"
        );
        false
    }))
}

/// Runs `countwheel restore` to its end.
#[must_use]
pub fn restore(args: &Anew) -> ExitCode {
    let restored = DiskStore::restore(&args.from, &args.into, args.disk());
    ended(restored.map(|_| {
        print(&format!("restored {}", args.into.display()));
        tracing::warn!(
            "tokens are those of the snapshot: revoke what was revoked or rotated since"
        );
        true
    }))
}

/// The exit code. What went wrong is one line for the operator.
fn ended(is_sound: Result<bool, StoreError>) -> ExitCode {
    match is_sound {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DAMAGED),
        Err(error) => {
            eprintln!("countwheel: {error}");
            ExitCode::from(match error {
                StoreError::Disk(DiskError::Locked { .. } | DiskError::Busy { .. }) => IN_USE,
                StoreError::Disk(DiskError::Corrupt { .. }) => DAMAGED,
                _ => FAILED,
            })
        }
    }
}

/// A line of what was asked for. Whoever does not read it has the exit code.
fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a report. Says whether all is sound.
fn say(report: &CheckReport, as_json: bool) -> bool {
    let torn: u64 = report.files.iter().map(|file| file.torn_bytes).sum();
    for file in &report.files {
        let (path, kind) = (file.path.display(), file.kind);
        let (bytes, entries) = (file.bytes, file.entries);
        if as_json {
            print(
                &json!({
                    "file": path.to_string(), "kind": kind.to_string(), "bytes": bytes,
                    "entries": entries, "torn_bytes": file.torn_bytes,
                })
                .to_string(),
            );
        } else {
            let torn = match file.torn_bytes {
                0 => String::new(),
                torn => format!(", and {torn} bytes of a commit that was not finished"),
            };
            print(&format!(
                "{kind} {path}: {bytes} bytes, {entries} entries{torn}"
            ));
        }
    }
    for problem in &report.problems {
        if as_json {
            print(&problem_json(problem).to_string());
        } else {
            print(&format!("damaged {problem}"));
        }
    }
    let problems = report.problems.len();
    if as_json {
        let end = json!({
            "sound": report.is_sound(), "timers": report.timers, "problems": problems,
            "torn_bytes": torn, "running": report.is_running,
        });
        print(&end.to_string());
    } else if let (true, Some(timers)) = (report.is_sound(), report.timers) {
        print(&format!("sound: {timers} timers"));
    } else if report.is_sound() && report.is_running {
        print("sound, while a process has it; the counts are not compared");
    } else {
        print(&format!("{problems} problems: see `countwheel repair`"));
    }
    report.is_sound()
}

fn problem_json(problem: &Problem) -> Value {
    let (records, commits) = match problem.at_risk {
        AtRisk::Records(records) => (Some(records), None),
        AtRisk::Commits(commits) => (None, Some(commits)),
        _ => (None, None),
    };
    json!({
        "file": problem.path.display().to_string(), "offset": problem.offset,
        "what": problem.problem, "records_at_risk": records, "commits_at_risk": commits,
    })
}

fn loss_json(loss: &Loss) -> Value {
    match loss {
        Loss::Damage(problem) => problem_json(problem),
        Loss::Stale { name, revision } => json!({
            "queue": name.queue.as_str(), "key": name.key.as_str(), "revision": revision.0,
            "what": "may be stale",
        }),
        other => json!({ "what": other.to_string() }),
    }
}

/// A list that only its owner may read: it has names.
fn begin(path: &Path) -> io::Result<BufWriter<std::fs::File>> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path).map(BufWriter::new)
}
