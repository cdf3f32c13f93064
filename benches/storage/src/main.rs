//! Measures Countwheel's stores against other embedded stores and a job queue.
//!
//! ```text
//! bench-storage run --out results.json         everybody, every workload; hours
//! bench-storage run --quick                    about two minutes; only to see that it works
//! bench-storage run --peer lmdb --batch 1,256  only these
//! bench-storage pending --timers 1e8           what many pending timers cost
//! bench-storage build-facts --out builds.json  clean builds with each library; long
//! bench-storage report results.json builds.json --out docs/benchmarks-storage.md
//! ```

#[cfg(any(feature = "fjall", feature = "rocksdb"))]
mod behind;
mod build_facts;
mod child;
mod item;
mod machine;
mod numbers;
mod ours;
mod peer;
mod pending;
mod report;
mod results;
mod run;
mod statistics;
mod stopwatch;
mod syncs;
mod system;
mod traffic;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use countwheel_time::Timestamp;

use machine::Machine;
use peer::Name;
use results::Results;
use workload::{Figures, insert, life, removed, reopen};

/// Measures Countwheel's stores against other embedded stores and a job queue.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure, and write all samples.
    Run(Run),
    /// Load many timers into ours, open again, and fire some.
    Pending {
        #[command(flatten)]
        pending: Many,
        /// Bytes that a timer takes on the disk, at the most, if you know better: without that
        /// much free nothing is begun.
        #[arg(long)]
        disk_per_timer: Option<u64>,
        /// Where the store is made, in a directory of its own that is removed afterwards.
        #[arg(long, default_value = ".")]
        directory: PathBuf,
        /// Where to write what was seen, as JSON.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Clean builds of this program with each library. Many minutes.
    BuildFacts {
        /// Where to write what was seen, as JSON.
        #[arg(long)]
        out: PathBuf,
    },
    /// Write a page about runs on the same machine; without any, what would be measured.
    Report {
        /// What the other commands wrote.
        results: Vec<PathBuf>,
        /// The Markdown file to write.
        #[arg(long)]
        out: PathBuf,
    },
    #[command(hide = true)]
    OneInsert {
        #[command(flatten)]
        one: One,
        #[arg(long)]
        batch: usize,
    },
    #[command(hide = true)]
    OneLife {
        #[command(flatten)]
        one: One,
        #[arg(long)]
        live: u64,
        #[arg(long)]
        near: u64,
    },
    #[command(hide = true)]
    OneRemoved {
        #[command(flatten)]
        one: One,
        #[arg(long)]
        live: u64,
    },
    #[command(hide = true)]
    OneWriter {
        #[command(flatten)]
        one: One,
    },
    #[command(hide = true)]
    OneReopen {
        #[command(flatten)]
        one: One,
        #[arg(long)]
        acknowledged: u64,
    },
    #[command(hide = true)]
    PendingLoad(Step),
    #[command(hide = true)]
    PendingOpen(Step),
    #[command(hide = true)]
    PendingNear(Step),
    #[command(hide = true)]
    PendingFire(Step),
}

#[derive(Args)]
struct Run {
    /// Only this one; may be repeated. The raw files, which are the limit, always take part.
    #[arg(long, alias = "only")]
    peer: Vec<Name>,
    /// How many records in a batch, in S1; `0` for no S1.
    #[arg(long, value_delimiter = ',', default_value = "1,16,256,4096")]
    batch: Vec<usize>,
    /// How many timers, as in `1e6,1e7`, in S2 to S6; `0` for none of those.
    #[arg(long, value_delimiter = ',', value_parser = whole_number, default_value = "1e6,1e7")]
    sizes: Vec<u64>,
    /// How many timers, as in `1e6`, of which nine in ten are removed, in S7.
    #[arg(long, value_delimiter = ',', value_parser = whole_number, default_value = "0")]
    removed: Vec<u64>,
    /// How many near timers at a time, in the near-heavy pattern.
    #[arg(long, value_parser = whole_number, default_value = "50000")]
    near: u64,
    /// How many rounds; above two million timers there is one.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// How many seconds each part is measured for; a steady state four times as long.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Little of everything, in one round: to see that it works. Its figures mean nothing.
    #[arg(long, conflicts_with_all = ["batch", "sizes", "rounds", "seconds", "near"])]
    quick: bool,
    /// Where the stores are made, each in a directory of its own that is removed afterwards.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// After how many seconds a measurement is stopped.
    #[arg(long, default_value_t = 1_800)]
    deadline_seconds: u64,
    /// Where to write all samples as JSON.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct One {
    #[arg(long)]
    peer: Name,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    directory: PathBuf,
}

#[derive(Args, Clone, Copy)]
struct Many {
    /// How many timers pend.
    #[arg(long, value_parser = whole_number)]
    timers: u64,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 200)]
    payload: usize,
    /// How many fire a second.
    #[arg(long, value_parser = whole_number, default_value = "20000")]
    rate: u64,
    /// For how many seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// How many attempts may run at a time.
    #[arg(long, default_value_t = 1_024)]
    in_flight: usize,
    /// Which of our stores.
    #[arg(long, value_enum, default_value = "log")]
    store: ours::Kind,
}

#[derive(Args)]
struct Step {
    #[command(flatten)]
    pending: Many,
    #[arg(long)]
    directory: PathBuf,
    #[arg(long, default_value_t = 0)]
    start: u64,
}

impl Many {
    fn parameters(self) -> pending::Parameters {
        pending::Parameters {
            kind: self.store,
            timers: self.timers,
            payload: self.payload,
            rate: self.rate,
            seconds: self.seconds,
            in_flight: self.in_flight,
        }
    }
}

impl Step {
    fn start(&self) -> Timestamp {
        Timestamp::from_micros(self.start)
    }
}

impl Run {
    fn plan(self) -> run::Plan {
        let limits = [Name::RawGrowing, Name::RawPreallocated];
        let wanted =
            |name: &Name| self.peer.is_empty() || self.peer.contains(name) || limits.contains(name);
        let positive = |sizes: Vec<u64>| sizes.into_iter().filter(|&size| size > 0).collect();
        run::Plan {
            peers: Name::all().iter().copied().filter(wanted).collect(),
            batches: self.batch.into_iter().filter(|&batch| batch > 0).collect(),
            sizes: if self.quick {
                vec![20_000]
            } else {
                positive(self.sizes)
            },
            removed: if self.quick && !self.removed.is_empty() {
                vec![20_000]
            } else {
                positive(self.removed)
            },
            rounds: if self.quick { 1 } else { self.rounds },
            seconds: if self.quick { 0.25 } else { self.seconds },
            near: if self.quick { 2_000 } else { self.near },
            quick: self.quick,
            directory: self.directory,
            deadline_seconds: self.deadline_seconds,
            out: self.out,
        }
    }
}

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
    let figures = match command {
        Command::Run(arguments) => return run::run(&arguments.plan()),
        Command::Pending {
            pending: many,
            disk_per_timer,
            directory,
            out,
        } => return pending::run(many.parameters(), disk_per_timer, &directory, out),
        Command::BuildFacts { out } => {
            let results = Results {
                commands: vec![run::command_line()],
                machine: Machine::describe(std::path::Path::new(".")),
                builds: build_facts::measure()?,
                ..Results::default()
            };
            results.write(&out)?;
            return Ok(true);
        }
        Command::Report { results, out } => {
            let runs = results.iter().map(|path| Results::read(path));
            let results = Results::together(runs.collect::<anyhow::Result<_>>()?)?;
            std::fs::write(out, report::write(&results))?;
            return Ok(true);
        }
        Command::OneInsert { one, batch } => {
            insert::measure(one.peer, batch, one.seconds, &one.directory)?
        }
        Command::OneLife { one, live, near } => {
            let parameters = life::Parameters {
                live,
                near,
                seconds: one.seconds,
            };
            life::measure(one.peer, parameters, &one.directory)?
        }
        Command::OneRemoved { one, live } => removed::measure(one.peer, live, &one.directory)?,
        Command::OneWriter { one } => {
            reopen::write_until_killed(one.peer, &one.directory)?;
            return Ok(true);
        }
        Command::OneReopen { one, acknowledged } => {
            reopen::measure(one.peer, &one.directory, acknowledged)?
        }
        Command::PendingLoad(step) => pending::load(&step.pending.parameters(), &step.directory)?,
        Command::PendingOpen(step) => pending::open(&step.pending.parameters(), &step.directory)?,
        Command::PendingNear(step) => {
            pending::load_near(&step.pending.parameters(), step.start(), &step.directory)?
        }
        Command::PendingFire(step) => {
            pending::fire(&step.pending.parameters(), step.start(), &step.directory)?
        }
    };
    tell(&figures)?;
    Ok(true)
}

/// What a measurement in a process of its own came to, for the process that started it.
fn tell(figures: &Figures) -> anyhow::Result<()> {
    // A rate of nothing in no time is no figure.
    let figures: Figures = figures
        .iter()
        .filter(|(_, value)| value.is_finite())
        .map(|(name, value)| (name.clone(), *value))
        .collect();
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
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
        .ok_or_else(|| format!("{text} is not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
        assert_eq!(whole_number("1e8"), Ok(100_000_000));
        assert_eq!(whole_number("12"), Ok(12));
        assert!(whole_number("1e99").is_err() && whole_number("x").is_err());
    }
}
