//! Measures our timing wheels against other timer libraries.
//!
//! ```text
//! bench run --out results.json                 measure; about forty minutes
//! bench run --quick                            100,000 timers only, about three minutes
//! bench run --workload w4 --threads 1,2        only this workload
//! bench run --workload p1 --workload p2        what is built on timers; see --help
//! bench check                                  does everybody fire the right timers?
//! bench chart results.json --out chart.svg
//! bench report results.json --out docs/benchmarks.md
//! ```

#![forbid(unsafe_code)]

mod cell;
mod chart;
mod check;
mod child;
mod choice;
mod competitor;
mod dispatch;
mod gate;
mod grid;
mod latency;
mod machine;
mod patterns;
mod plan;
mod random;
mod report;
mod results;
mod run;
mod statistics;
mod stopwatch;
mod system;
mod table;
mod threaded;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand};

use cell::{Cell, Entrant, Loaded};
use choice::{Choice, apart};

use competitor::Name;
use results::{Pages, Results};
use workload::Workload;

/// Measures our timing wheels against other timer libraries.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check everybody, measure, and print a table for each workload.
    Run(Run),
    /// Check that everybody fires the right timers, and see in what order.
    Check {
        /// Only this one; may be repeated.
        #[arg(long, value_parser = AnyName::parser())]
        competitor: Vec<AnyName>,
    },
    /// Draw the main figures of a run.
    Chart {
        /// What `run` wrote.
        results: PathBuf,
        /// The SVG file to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// Write a page about one or more runs on the same machine.
    Report {
        /// What `run` wrote.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// The Markdown file to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// One measurement, in this process.
    #[command(hide = true)]
    One {
        #[arg(long)]
        competitor: Name,
        #[arg(long)]
        workload: Workload,
        #[arg(long)]
        timers: u64,
    },
    /// One measurement on the real clock, in this process.
    #[command(hide = true)]
    OneThreaded(OneCell<threaded::Workload, threaded::Name>),
    /// One measurement of a pattern, in this process.
    #[command(hide = true)]
    OnePattern(OneCell<patterns::Workload, patterns::Name>),
}

#[derive(Args)]
struct OneCell<W: Loaded + Send + Sync, N: Entrant + Send + Sync> {
    #[arg(long)]
    competitor: N,
    #[arg(long)]
    workload: W,
    #[arg(long)]
    load: u64,
    #[arg(long)]
    short: bool,
}

impl<W: Loaded + Send + Sync, N: Entrant + Send + Sync> OneCell<W, N> {
    fn cell(&self) -> Cell<W, N> {
        Cell {
            workload: self.workload,
            load: self.load,
            short: self.short,
            peer: self.competitor,
        }
    }
}

type AnyName = Choice<Name, threaded::Name, patterns::Name>;
type AnyWorkload = Choice<Workload, threaded::Workload, patterns::Workload>;

#[derive(Args)]
struct Run {
    /// Only this workload; may be repeated.
    #[arg(long, value_parser = AnyWorkload::parser())]
    workload: Vec<AnyWorkload>,
    /// Only this competitor; may be repeated.
    #[arg(long, value_parser = AnyName::parser())]
    competitor: Vec<AnyName>,
    /// How many timers, as in `1e5,1e6`, under virtual time.
    #[arg(long, value_delimiter = ',', value_parser = whole_number, default_value = "1e5,1e6,1e7")]
    timers: Vec<u64>,
    /// How many threads, in W4 and, where the number is even, in W4x; in P2 and P3, where
    /// there are as many cores.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u64).range(1..=MOST_THREADS))]
    threads: Vec<u64>,
    /// How many rounds, instead of 5 and, above a million timers and with threads, 1 to 3.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// How the allocator gets its memory; both are measured in turn if both are named.
    #[arg(long, value_delimiter = ',', default_value = "default")]
    pages: Vec<Pages>,
    /// The same as `--pages huge`.
    #[arg(long, conflicts_with = "pages")]
    huge_pages: bool,
    /// 100,000 timers only, in three rounds; with threads, less of everything, in one.
    #[arg(long, conflicts_with_all = ["timers", "rounds", "threads"])]
    quick: bool,
    /// After how many seconds a measurement is stopped.
    #[arg(long, default_value_t = DEADLINE_SECONDS)]
    deadline_seconds: u64,
    /// Where to write all samples as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// After how many seconds a measurement is stopped unless told otherwise.
const DEADLINE_SECONDS: u64 = 60;

/// More could not be told apart from a mistake.
const MOST_THREADS: u64 = 256;

fn main() -> ExitCode {
    match obey(Arguments::parse().command) {
        Ok(went_well) => ExitCode::from(u8::from(!went_well)),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all went well.
fn obey(command: Command) -> anyhow::Result<bool> {
    Ok(match command {
        Command::Run(arguments) => {
            let plan = arguments.plan();
            ensure!(
                !plan.is_empty(),
                "no competitor that was named takes part in a workload that was named"
            );
            run::run(&plan)?
        }
        Command::Check { competitor } => {
            let (competitors, peers, of_patterns) = apart(&competitor, everybody());
            let verdicts = run::check_all(&competitors);
            let threads_went_well = threaded::check_all(&peers, DEADLINE_SECONDS)?;
            let patterns_went_well = patterns::check_all(&of_patterns, DEADLINE_SECONDS)?;
            threads_went_well
                && patterns_went_well
                && verdicts.iter().all(|verdict| verdict.failure.is_none())
        }
        Command::Chart { results, out } => {
            std::fs::write(out, chart::draw(&Results::read(&results)?))?;
            true
        }
        Command::Report { results, out } => {
            let runs: Vec<Results> = results
                .iter()
                .map(|path| Results::read(path))
                .collect::<Result<_, _>>()?;
            let command: Vec<String> = std::env::args().skip(1).collect();
            std::fs::write(out, report::write(&command.join(" "), &runs)?)?;
            true
        }
        Command::One {
            competitor,
            workload,
            timers,
        } => {
            child::measure_here(competitor, workload, timers)?;
            true
        }
        Command::OneThreaded(one) => {
            threaded::measure_here(one.cell())?;
            true
        }
        Command::OnePattern(one) => {
            patterns::measure_here(one.cell())?;
            true
        }
    })
}

impl Run {
    fn plan(self) -> run::Plan {
        let all = (
            Workload::all(),
            &*threaded::Workload::all(),
            patterns::Workload::all(),
        );
        let (workloads, with_threads, of_patterns) = apart(&self.workload, all);
        let (competitors, peers, pattern_peers) = apart(&self.competitor, everybody());
        run::Plan {
            threaded: threaded::Plan {
                // Nobody is checked for nothing.
                peers: none_without(&with_threads, peers),
                workloads: with_threads,
                threads: if self.quick {
                    vec![1, 4]
                } else {
                    self.threads.clone()
                },
                rounds: self.rounds,
                short: self.quick,
                deadline_seconds: self.deadline_seconds,
            },
            patterns: patterns::Plan {
                workloads: of_patterns,
                peers: pattern_peers,
                threads: if self.quick { vec![1] } else { self.threads },
                rounds: self.rounds,
                short: self.quick,
                deadline_seconds: self.deadline_seconds,
            },
            competitors: none_without(&workloads, competitors),
            workloads,
            timers: if self.quick {
                vec![100_000]
            } else {
                self.timers
            },
            rounds: if self.quick { Some(3) } else { self.rounds },
            pages: if self.huge_pages {
                vec![Pages::Huge]
            } else {
                self.pages
            },
            deadline_seconds: self.deadline_seconds,
            out: self.out,
        }
    }
}

/// Whoever takes part in anything.
fn everybody() -> (
    &'static [Name],
    &'static [threaded::Name],
    &'static [patterns::Name],
) {
    (Name::all(), threaded::Name::all(), patterns::Name::all())
}

/// Everybody, or nobody if there is nothing to do.
fn none_without<W, N>(workloads: &[W], names: Vec<N>) -> Vec<N> {
    if workloads.is_empty() {
        Vec::new()
    } else {
        names
    }
}

/// Reads `1000000` and, since zeros are hard to count, `1e6`.
fn whole_number(text: &str) -> Result<u64, String> {
    let (digits, zeros) = text.split_once('e').unwrap_or((text, "0"));
    let scale = zeros
        .parse()
        .ok()
        .and_then(|zeros| 10_u64.checked_pow(zeros));
    let digits = digits.parse::<u64>().ok();
    digits
        .zip(scale)
        .and_then(|(digits, scale)| digits.checked_mul(scale))
        .filter(|&number| number > 0)
        .ok_or_else(|| format!("{text} is not a whole number above zero"))
}
