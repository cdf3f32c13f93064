//! Runs the simulation: fixed seeds, fresh seeds, one seed again, the planted bugs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::{Parser, Subcommand};
use countwheel::{Clock, SystemClock};
use countwheel_durable::store::{EmbeddedStore, MemoryStore, Store};
use countwheel_server::trace;
use countwheel_sim::disk::Disk;
use countwheel_sim::world::{self, Failure, Options, Report};
use countwheel_sim::year;

/// The deterministic simulation of durable timers: seed in, verdict out.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one seed and print what happened.
    Seed {
        /// The seed.
        seed: u64,
        /// How many turns before everything heals.
        #[arg(long, default_value_t = 400)]
        turns: u64,
        /// How many of the last things that happened to show if it fails.
        #[arg(long, default_value_t = 40)]
        log: usize,
        /// The bug to run it with.
        #[cfg(feature = "planted-bugs")]
        #[arg(long)]
        bug: Option<String>,
    },
    /// Run many seeds on all cores.
    Seeds {
        /// The first; `fresh` for one that the clock gives.
        first: String,
        /// How many.
        count: u64,
        /// How many turns each before everything heals.
        #[arg(long, default_value_t = 400)]
        turns: u64,
    },
    /// Run a trace of departures under the simulated clock: every flight that was not
    /// cancelled fires exactly once, at its final time, and nothing else fires.
    Year {
        /// The trace, as CSV or gzipped CSV.
        file: PathBuf,
        /// How many timers may be in memory.
        #[arg(long, default_value_t = 4_096)]
        window: usize,
        /// Keep the timers in the embedded store, on a simulated disk, instead of in memory.
        #[arg(long)]
        embedded: bool,
    },
    /// Show that a disk that lies and each planted bug is found.
    Planted {
        /// The most seeds that each may take.
        #[arg(long, default_value_t = 500)]
        within: u64,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Seed {
            seed,
            turns,
            log,
            #[cfg(feature = "planted-bugs")]
            bug,
        } => {
            let options = Options {
                turns,
                log,
                #[cfg(feature = "planted-bugs")]
                planted_bug: bug.and_then(|name| {
                    let mut all = countwheel_durable::PlantedBug::ALL.into_iter();
                    all.find(|bug| format!("{bug:?}") == name)
                }),
                ..Options::default()
            };
            match world::run(seed, &options) {
                Ok(report) => {
                    println!("{report:#?}");
                    ExitCode::SUCCESS
                }
                Err(failure) => {
                    eprintln!("{failure}");
                    ExitCode::FAILURE
                }
            }
        }
        Command::Seeds {
            first,
            count,
            turns,
        } => {
            let first = match first.as_str() {
                "fresh" => SystemClock::new().timestamp().as_micros(),
                number => match number.parse() {
                    Ok(seed) => seed,
                    Err(error) => {
                        eprintln!("{number}: {error}");
                        return ExitCode::from(2);
                    }
                },
            };
            let options = Options {
                turns,
                ..Options::default()
            };
            seeds(first, count, &options)
        }
        Command::Year {
            file,
            window,
            embedded,
        } => match departures(&file, window, embedded) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
        Command::Planted { within } => planted(within),
    }
}

fn departures(file: &Path, window: usize, embedded: bool) -> anyhow::Result<()> {
    let clock = SystemClock::new();
    let flights: Vec<_> = trace::open(file)?.collect::<Result<_, _>>()?;
    let read = clock.now();
    let store: Arc<dyn Store> = if embedded {
        Arc::new(EmbeddedStore::open_backend(Disk::default().open(), 1)?)
    } else {
        Arc::new(MemoryStore::new(1))
    };
    let year = year::run(&flights, store, window).map_err(anyhow::Error::msg)?;
    let took = clock.now().saturating_since(read);
    println!(
        "{} flights: {} moved, {} cancelled; {} fired exactly once, at their final time; \
         lateness max {:?}; at most {} in a window of {window}; {} commits; {took:.1?}",
        year.flights,
        year.moved,
        year.cancelled,
        year.fired,
        year.stats.lateness.max(),
        year.window_peak,
        year.stats.commits,
    );
    Ok(())
}

fn seeds(first: u64, count: u64, options: &Options) -> ExitCode {
    let clock = SystemClock::new();
    let start = clock.now();
    let (sum, failure) = search(first, count, options);
    if let Some(failure) = failure {
        eprintln!("{failure}");
        eprintln!(
            "run it again: sim seed {} --turns {}",
            failure.seed, options.turns
        );
        return ExitCode::FAILURE;
    }
    let took = clock.now().saturating_since(start);
    println!(
        "{count} seeds from {first}: {} turns, {} requests, {} attempts, {} crashes ({} in a commit), \
         {} clock steps; {} accepted = {} done + {} removed + {} dead; {took:.1?}",
        sum.turns,
        sum.requests,
        sum.attempts,
        sum.crashes,
        sum.torn,
        sum.clock_steps,
        sum.accepted,
        sum.done,
        sum.removed,
        sum.dead,
    );
    ExitCode::SUCCESS
}

/// Runs `count` seeds on all cores, until one fails.
fn search(first: u64, count: u64, options: &Options) -> (Report, Option<Failure>) {
    let next = AtomicU64::new(0);
    let result = Mutex::new((Report::default(), None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let ran = world::run(first.wrapping_add(index), options);
                    let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                    match ran {
                        Ok(report) => result.0.add(&report),
                        Err(failure) => {
                            next.store(count, Ordering::Relaxed);
                            result.1 = Some(*failure);
                        }
                    }
                }
            });
        }
    });
    result.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(feature = "planted-bugs")]
fn planted(within: u64) -> ExitCode {
    let mut cases = vec![(
        "a disk that ignores syncs".to_owned(),
        Options {
            lying_disk: true,
            ..Options::default()
        },
    )];
    for bug in countwheel_durable::PlantedBug::ALL {
        let planted_bug = Some(bug);
        let options = Options {
            planted_bug,
            ..Options::default()
        };
        cases.push((format!("{bug:?}"), options));
    }
    let mut missed = 0;
    for (name, options) in cases {
        match search(1, within, &options).1 {
            Some(failure) => println!("found  {name}: seed {}: {}", failure.seed, failure.what),
            None => {
                missed += 1;
                println!("MISSED {name} in {within} seeds");
            }
        }
    }
    ExitCode::from(u8::from(missed > 0))
}

#[cfg(not(feature = "planted-bugs"))]
fn planted(_within: u64) -> ExitCode {
    eprintln!("built without the feature planted-bugs");
    ExitCode::from(2)
}
