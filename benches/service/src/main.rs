//! Measures the program under load over HTTP, beside other job queues.
//!
//! ```text
//! bench-service --program target/release/countwheel                   every row
//! bench-service --program target/release/countwheel --only isolation  one row
//! ```
//!
//! Each measurement starts its service on an empty directory below `--directory`, on loopback, and ends it.

mod figures;
mod http;
mod load;
mod machine;
mod peers;
mod program;
mod rows;
mod service;
mod sink;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, ValueEnum as _};
use countwheel_postgres::testing::Server;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use peers::graphile;
use rows::Row;
use service::Candidate;

/// Measures the program under load over HTTP, beside other job queues.
#[derive(Parser)]
struct Arguments {
    /// The program: its release build.
    #[arg(long, default_value = "target/release/countwheel")]
    program: PathBuf,
    /// Only these rows.
    #[arg(long, num_args = 1..)]
    only: Vec<Row>,
    /// Without the peers.
    #[arg(long)]
    alone: bool,
    /// Pairs of runs for `isolation` and `events`, rounds of `namespaces`.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Deliveries a second for `isolation`.
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// How many seconds the due times of `isolation` cover.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// How many seconds the due times of each lateness of `deliveries` cover.
    #[arg(long, default_value_t = 10.0)]
    late_seconds: f64,
    /// How many seconds each number of connections of `sets` is measured.
    #[arg(long, default_value_t = 5.0)]
    set_seconds: f64,
    /// The numbers of connections of `sets`.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    connections: Vec<usize>,
    /// How many timers of `deliveries` are due at once.
    #[arg(long, default_value_t = 50_000)]
    deliveries: usize,
    /// How many timers of `leases` are due.
    #[arg(long, default_value_t = 100_000)]
    leases: usize,
    /// How many operations the call of `batch` has.
    #[arg(long, default_value_t = 1_000_000)]
    operations: usize,
    /// How many timers `lists` has.
    #[arg(long, default_value_t = 1_000_000)]
    listed: usize,
    /// In how many queues the timers of `lists` are.
    #[arg(long, default_value_t = 20_000)]
    queues: usize,
    /// How many timers of `lists` are dead.
    #[arg(long, default_value_t = 10_000)]
    dead: usize,
    /// How many requests of each kind `lists` makes.
    #[arg(long, default_value_t = 100)]
    requests: usize,
    /// How many streams `events` has.
    #[arg(long, default_value_t = 1_000)]
    streams: usize,
    /// How many of their clients never read.
    #[arg(long, default_value_t = 100)]
    silent: usize,
    /// Deliveries a second for `events`: each is three events.
    #[arg(long, default_value_t = 200.0)]
    event_rate: f64,
    /// How many seconds the due times of `events` cover.
    #[arg(long, default_value_t = 50.0)]
    event_seconds: f64,
    /// How many seconds the namespace that is measured in `namespaces` sets timers.
    #[arg(long, default_value_t = 10.0)]
    namespace_seconds: f64,
    /// Rounds of `sets`, `deliveries`, `leases` and `batch`.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Where the services keep their data meanwhile.
    #[arg(long, default_value = "target/service")]
    directory: PathBuf,
}

/// What all rows use.
struct Bench {
    arguments: Arguments,
    program: PathBuf,
    directory: PathBuf,
    /// The database of the peer that needs one.
    server: Option<Server>,
    /// Whether everything that was wanted was measured.
    is_whole: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.directory)?;
    let directory = arguments.directory.canonicalize()?;
    machine::check(&directory)?;
    let program = arguments.program.canonicalize()?;
    let mut bench = Bench {
        arguments,
        program,
        directory,
        server: None,
        is_whole: true,
    };
    bench.start_server();
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut tables = Vec::new();
    for row in Row::value_variants() {
        if bench.has(*row) {
            tables.push(runtime.block_on(bench.measure_until_stopped(*row))?);
        }
    }
    drop(runtime);
    let after = machine::State::read(&bench.directory)?;
    println!("\n{}\n\nAfter all rows: {after}.", tables.join("\n\n"));
    Ok(ExitCode::from(u8::from(!bench.is_whole)))
}

impl Bench {
    fn has(&self, row: Row) -> bool {
        self.arguments.only.is_empty() || self.arguments.only.contains(&row)
    }

    fn candidates(&self) -> Vec<Candidate> {
        if self.arguments.alone {
            return vec![Candidate::Ours];
        }
        Candidate::ALL.to_vec()
    }

    /// Starts the database of a peer, if a row needs one. A peer without its database is named as not run.
    fn start_server(&mut self) {
        let has_peers = self.has(Row::Sets) || self.has(Row::Deliveries);
        if self.arguments.alone || !has_peers {
            return;
        }
        match Server::start_in(&self.directory, &graphile::SETTINGS) {
            Ok(server) => self.server = Some(server),
            Err(error) => println!("NOT RUN: no PostgreSQL: {error}"),
        }
    }

    /// The table of a row. A signal that ends the benchmark ends the programs that it started.
    async fn measure_until_stopped(&mut self, row: Row) -> anyhow::Result<String> {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            table = self.measure(row) => Ok(table),
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminated.recv() => bail!("terminated"),
        }
    }

    /// The table of a row, with the state of the machine before it.
    async fn measure(&mut self, row: Row) -> String {
        let before = machine::State::read(&self.directory);
        let before = before.map_or_else(|error| error.to_string(), |state| state.to_string());
        let (name, measured) = match row {
            Row::Isolation => ("isolation", rows::isolation::measure(self).await),
            Row::Sets => ("sets", rows::sets::measure(self).await),
            Row::Deliveries => ("deliveries", rows::deliveries::measure(self).await),
            Row::Leases => ("leases", rows::leases::measure(self).await),
            Row::Batch => ("batch", rows::batch::measure(self).await),
            Row::Lists => ("lists", rows::lists::measure(self).await),
            Row::Events => ("events", rows::events::measure(self).await),
            Row::Namespaces => ("namespaces", rows::namespaces::measure(self).await),
        };
        let text = measured.unwrap_or_else(|error| {
            self.is_whole = false;
            format!("NOT RUN: {error:#}")
        });
        format!("### {name}\n\nBefore the row: {before}.\n\n{text}")
    }

    /// A table with what was not run below it.
    fn whole(&mut self, table: String, not_run: &[String]) -> String {
        self.is_whole &= not_run.is_empty();
        let lines = not_run.iter().map(|why| format!("\n\nNOT RUN: {why}"));
        lines.fold(table, |text, line| text + &line)
    }
}
