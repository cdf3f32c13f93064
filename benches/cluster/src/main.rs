//! Measures the store in a PostgreSQL, beside other job queues on the same server.
//!
//! ```text
//! bench-cluster                                every row, three rounds
//! bench-cluster --only lives --only peers      only these
//! bench-cluster --long                         ten minutes under a pinned snapshot, 1e7 lives
//! ```
//!
//! The server is its own, on the disk below `--directory`, and goes with its data at the end.

mod load;
mod node;
mod nodes;
mod one_by_one;
mod ours;
mod peers;
mod place;
mod processor;
mod rows;
mod samples;
mod sql;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use countwheel_postgres::testing::Server;
use countwheel_time::{Clock as _, SystemClock};
use serde::Serialize;

use rows::Row;
use samples::{Goal, Samples};
use sql::Connection;

/// What the server has set, beside what is asked for. All that is measured runs with the same.
const SETTINGS: [&str; 8] = [
    "shared_buffers=1GB",
    "max_wal_size=4GB",
    "max_connections=60",
    // Both cost nothing until they are switched on. What is said here cannot be changed later.
    "shared_preload_libraries=auto_explain,pg_stat_statements",
    "pg_stat_statements.track_utility=on",
    "auto_explain.log_analyze=on",
    "auto_explain.log_buffers=on",
    "auto_explain.log_timing=off",
];

/// Measures the store in a PostgreSQL, beside other job queues on the same server.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    program: Option<Program>,
    /// How many rounds; the rows take turns in each.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many seconds each part is measured for.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Only these rows; may be repeated.
    #[arg(long, num_args = 1..)]
    only: Vec<Row>,
    /// A snapshot pinned for ten minutes instead of one, 1e7 lives on 1e6 timers instead of a tenth of
    /// both, and 1e7 pending timers beside the peers.
    #[arg(long)]
    long: bool,
    /// How many seconds the snapshot is pinned for, if not as long as said above.
    #[arg(long)]
    pinned_seconds: Option<u64>,
    /// How many timers pend beside the peers, as in `1e5,1e6`, if not as many as said above.
    #[arg(long, value_delimiter = ',', value_parser = whole_number)]
    pending: Vec<u64>,
    /// Another setting of the server, as in `autovacuum_naptime=5s`; may be repeated.
    #[arg(long = "setting", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Where the server keeps its data meanwhile.
    #[arg(long, default_value = "target/cluster")]
    directory: PathBuf,
    /// Where to write all samples.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Program {
    /// One node of a cluster; the benchmark starts it
    #[command(hide = true)]
    Node(node::Options),
}

impl Arguments {
    fn span(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn pending(&self) -> Vec<u64> {
        let all = [100_000, 1_000_000, 10_000_000];
        match self.pending.as_slice() {
            [] if self.long => all.to_vec(),
            [] => all[..2].to_vec(),
            named => named.to_vec(),
        }
    }

    fn settings(&self) -> Vec<&str> {
        let others = self.settings.iter().map(String::as_str);
        SETTINGS.into_iter().chain(others).collect()
    }

    fn has(&self, row: Row) -> bool {
        self.only.is_empty() || self.only.contains(&row)
    }
}

/// What all rows use.
struct Bench {
    arguments: Arguments,
    directory: PathBuf,
    server: Server,
    samples: Samples,
    clock: SystemClock,
}

/// Where the figures are from.
#[derive(Serialize)]
struct Machine<'a> {
    processors: usize,
    server: String,
    settings: Vec<&'a str>,
    directory: PathBuf,
    /// Blocks of 8 KiB that are written and synced in a second, one after the other.
    syncs_per_second: [f64; 2],
    seconds: f64,
    rounds: usize,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Program::Node(options)) = &arguments.program {
        match node::run(options)? {}
    }
    std::fs::create_dir_all(&arguments.directory)?;
    let directory = arguments.directory.canonicalize()?;
    place::check(&directory)?;
    let server = Server::start_in(&directory, &arguments.settings())?;
    let before = place::sync_rate(&directory, Duration::from_secs(1))?;
    println!("the disk syncs {before:.0} blocks of 8 KiB a second, one after the other");
    let mut bench = Bench {
        arguments,
        directory,
        server,
        samples: Samples::default(),
        clock: SystemClock::new(),
    };
    bench.configure("pg_stat_statements.track = none")?;
    bench.run();
    let after = place::sync_rate(&bench.directory, Duration::from_secs(1))?;
    let machine = bench.machine([before, after])?;
    println!("\n{}", bench.samples);
    println!(
        "{}, {} processors; the disk synced {before:.0} blocks a second at the beginning and {after:.0} \
         at the end",
        machine.server, machine.processors
    );
    println!(
        "{} figures miss what was to be reached",
        bench.samples.misses()
    );
    if let Some(path) = &bench.arguments.json {
        write(path, &machine, &bench.samples)?;
    }
    // A missed figure is a figure; what was not run is none.
    Ok(ExitCode::from(u8::from(!bench.samples.are_whole())))
}

fn write(path: &Path, machine: &Machine<'_>, samples: &Samples) -> anyhow::Result<()> {
    let all = serde_json::json!({ "machine": machine, "samples": samples });
    std::fs::write(path, serde_json::to_vec_pretty(&all)?)
        .with_context(|| path.display().to_string())
}

impl Bench {
    /// Runs every row that is wanted. One that fails keeps none of the others out.
    fn run(&mut self) {
        for round in 1..=self.arguments.rounds {
            for row in Row::ALL {
                if self.arguments.has(row) && row.is_of_rounds() {
                    println!("round {round}: {row}");
                    self.try_row(row);
                }
            }
        }
        for row in Row::ALL {
            if self.arguments.has(row) && !row.is_of_rounds() {
                println!("{row}");
                self.try_row(row);
            }
        }
    }

    fn try_row(&mut self, row: Row) {
        let measured = row.measure(self);
        if let Err(error) = measured.and_then(|()| self.clear()) {
            self.samples.not_run(format!("{row}: {error:#}"));
        }
    }

    /// Removes what a row has made, and has everything written before the next one begins.
    fn clear(&self) -> anyhow::Result<()> {
        let admin = self.connect()?;
        let made = "SELECT coalesce(string_agg(format('DROP SCHEMA %I CASCADE', nspname), '; '), '') \
                    FROM pg_namespace WHERE nspname LIKE 'fresh\\_%'";
        admin.run(&admin.text(made)?)?;
        admin.run("CHECKPOINT")
    }

    fn span(&self) -> Duration {
        self.arguments.span()
    }

    fn add(&mut self, row: Row, what: impl Into<String>, goal: Goal, value: f64) {
        self.samples.add(row, what, goal, value);
    }

    /// The URL of a database of the server.
    fn url_of(&self, database: &str) -> String {
        let port = self.server.port();
        format!("postgres://postgres@127.0.0.1:{port}/{database}")
    }

    /// Changes a setting of the server for all sessions.
    fn configure(&self, setting: &str) -> anyhow::Result<()> {
        let admin = self.connect()?;
        admin.run(&format!("ALTER SYSTEM SET {setting}"))?;
        admin.run("SELECT pg_reload_conf()")
    }

    /// The process that started all others of the server.
    fn postmaster(&self) -> anyhow::Result<u32> {
        let data = self
            .connect()?
            .text("SELECT current_setting('data_directory')")?;
        let file = std::fs::read_to_string(Path::new(&data).join("postmaster.pid"))?;
        let first = file.lines().next().context("the server has no process")?;
        Ok(first.trim().parse()?)
    }

    fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(&self.server.url())
    }

    fn machine(&self, syncs_per_second: [f64; 2]) -> anyhow::Result<Machine<'_>> {
        let version = self
            .connect()?
            .text("SELECT 'PostgreSQL ' || current_setting('server_version')")?;
        Ok(Machine {
            processors: thread::available_parallelism()?.get(),
            server: version,
            settings: self.arguments.settings(),
            directory: self.directory.clone(),
            syncs_per_second,
            seconds: self.arguments.seconds,
            rounds: self.arguments.rounds,
        })
    }
}

/// Lets the time pass for which something is measured.
fn wait(clock: SystemClock, span: Duration) {
    let until = clock.now() + span;
    while clock.now() < until {
        thread::park_timeout(until.saturating_since(clock.now()));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate needs no more")]
fn rate(count: u64, span: Duration) -> f64 {
    count as f64 / span.as_secs_f64()
}

/// A whole number, also as `1e6`.
fn whole_number(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is no whole number");
    match text.split_once('e') {
        None => text.parse().map_err(|_| wrong()),
        Some((digits, zeros)) => {
            let zeros = zeros.parse().map_err(|_| wrong())?;
            let digits: u64 = digits.parse().map_err(|_| wrong())?;
            let power = 10_u64.checked_pow(zeros).ok_or_else(wrong)?;
            digits.checked_mul(power).ok_or_else(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_as_the_usage_says() {
        let parsed = Arguments::try_parse_from([
            "bench-cluster",
            "--rounds",
            "1",
            "--only",
            "sets",
            "peers",
            "--pending",
            "1e3,20",
        ])
        .unwrap();
        assert_eq!(parsed.only, [Row::Sets, Row::Peers]);
        assert_eq!(parsed.pending(), [1_000, 20]);
        let long = Arguments::try_parse_from(["bench-cluster", "--long"]).unwrap();
        assert_eq!(long.pending().last(), Some(&10_000_000));
        assert!(long.has(Row::Growth));
        for wrong in ["1e", "e6", "1.5e3", "1e30", "x"] {
            assert!(whole_number(wrong).is_err(), "{wrong}");
        }
    }
}
