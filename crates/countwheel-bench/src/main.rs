//! Measures our timing wheels against other timer libraries.
//!
//! ```text
//! bench run --out results.json                 measure; about twenty minutes
//! bench run --quick                            100,000 timers only, about one minute
//! bench check                                  does everybody fire the right timers?
//! bench chart results.json --out chart.svg
//! bench report results.json --out docs/benchmarks.md
//! ```

#![forbid(unsafe_code)]

mod chart;
mod check;
mod child;
mod competitor;
mod latency;
mod machine;
mod random;
mod report;
mod results;
mod run;
mod statistics;
mod stopwatch;
mod table;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

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
        #[arg(long)]
        competitor: Vec<Name>,
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
}

#[derive(Args)]
struct Run {
    /// Only this workload; may be repeated.
    #[arg(long)]
    workload: Vec<Workload>,
    /// Only this competitor; may be repeated.
    #[arg(long)]
    competitor: Vec<Name>,
    /// How many timers, as in `1e5,1e6`.
    #[arg(long, value_delimiter = ',', value_parser = whole_number, default_value = "1e5,1e6,1e7")]
    timers: Vec<u64>,
    /// How many rounds, instead of 5 and, above a million timers, 3.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// How the allocator gets its memory; both are measured in turn if both are named.
    #[arg(long, value_delimiter = ',', default_value = "default")]
    pages: Vec<Pages>,
    /// The same as `--pages huge`.
    #[arg(long, conflicts_with = "pages")]
    huge_pages: bool,
    /// 100,000 timers only, in three rounds.
    #[arg(long, conflicts_with_all = ["timers", "rounds"])]
    quick: bool,
    /// After how many seconds a measurement is stopped.
    #[arg(long, default_value_t = 60)]
    deadline_seconds: u64,
    /// Where to write all samples as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let went_well = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments.plan())?,
        Command::Check { competitor } => {
            let verdicts = run::check_all(&or_all(competitor, Name::all()));
            verdicts.iter().all(|verdict| verdict.failure.is_none())
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
    };
    Ok(ExitCode::from(u8::from(!went_well)))
}

impl Run {
    fn plan(self) -> run::Plan {
        run::Plan {
            workloads: or_all(self.workload, Workload::all()),
            competitors: or_all(self.competitor, Name::all()),
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

fn or_all<T: Clone>(chosen: Vec<T>, all: &[T]) -> Vec<T> {
    if chosen.is_empty() {
        all.to_vec()
    } else {
        chosen
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
