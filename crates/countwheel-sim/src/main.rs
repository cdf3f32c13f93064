//! Runs the simulation: fixed seeds, fresh seeds, one seed again, the planted bugs.

mod prove;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Parser, Subcommand};
use countwheel::{Clock, SystemClock, Timeout, Timer};
use countwheel_disk::simulated::Disk;
use countwheel_disk::{FlushingLog, LogOptions, LogStore, TableOptions, TableStore};
use countwheel_durable::store::{MemoryStore, Store};
use countwheel_sim::ages::{self, Ages};
use countwheel_sim::machine::Kind;
use countwheel_sim::world::{self, Options, Part, Report};
use countwheel_sim::{
    Failure, audit, flows, gathers, idle, jobs, leases, loans, receipts, streams, stress, timers,
    year,
};
use parking_lot::Mutex;

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
        /// Leave this out of its world; can be given several times.
        #[arg(long)]
        without: Vec<String>,
        /// If it fails, look for a smaller world in which it still does.
        #[arg(long)]
        shrink: bool,
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
        /// Keep the timers in a log and tables, on a simulated disk, instead of in memory.
        #[arg(long)]
        on_disk: bool,
    },
    /// Let days pass with requests all the time, and a century with one a week: whatever is due
    /// starts at that microsecond, and nothing else does.
    Ages {
        /// How many days with ten requests a second.
        #[arg(long, default_value_t = 1)]
        days: u32,
        /// How many years with one a week.
        #[arg(long, default_value_t = 100)]
        years: u32,
        /// The seed; `fresh` for one that the clock gives.
        #[arg(long, default_value = "fresh")]
        seed: String,
        /// The store: memory, log or tables.
        #[arg(long, default_value = "memory")]
        store: String,
    },
    /// Run timers in a process against a sorted map, on both cores.
    Timers {
        /// How many seeds.
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// How many operations each.
        #[arg(long, default_value_t = 100_000)]
        operations: u64,
        /// The first seed; `fresh` for one that the clock gives.
        #[arg(long, default_value = "1")]
        first_seed: String,
        /// How many of the last things that happened to show if one fails.
        #[arg(long, default_value_t = 40)]
        log: usize,
        /// Print everything that happens.
        #[arg(long)]
        trace: bool,
        /// Plant each fault in turn and show that it is found.
        #[arg(long)]
        sabotage: bool,
    },
    /// Let threads schedule, cancel and move on real timers until they are closed, and see
    /// that every task comes to exactly one end, none of them early.
    Stress {
        /// How many threads.
        #[arg(long, default_value_t = 64)]
        threads: usize,
        /// How long, all rounds together.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// The seed of what the threads do; `fresh` for one that the clock gives.
        #[arg(long, default_value = "fresh")]
        seed: String,
        /// Tell each lie in turn and show that it is found.
        #[arg(long)]
        sabotage: bool,
    },
    /// Watch idle timers, and see that they do nothing.
    Idle {
        /// How long.
        #[arg(long, default_value_t = 20)]
        seconds: u64,
        /// How many far tasks on those timers that have some.
        #[arg(long, default_value_t = 1_000_000)]
        tasks: u64,
    },
    /// Let every call to the disk fail once, in sixty-four scripts, and many calls in drawn lives;
    /// open the store again each time, and see that it has what was acknowledged.
    Calls(prove::Calls),
    /// Change the bytes of stores, and see that they answer rightly or refuse.
    Bytes(prove::Bytes),
    /// Flip bits of tables and segments while an engine runs on them, and see that nobody but the
    /// timers there is touched.
    Rot(prove::Rots),
    /// Let nodes take the shards of one store from each other, between the halves of their turns and
    /// with clocks of their own, and see that nothing is lost, early or handed out twice.
    Shards(prove::Shards),
    /// Run worlds of nodes that find each other in a registry and share the shards of one store.
    Nodes(prove::Nodes),
    /// Run worlds of engines whose timers wait for flows with limits, which change.
    Flows(prove::InSteps),
    /// Run worlds of jobs that act on many timers, while nodes end and shards change hands.
    Jobs(prove::InSteps),
    /// Run worlds of workers that lease attempts, and settle, extend and lose them.
    Leases(prove::InSteps),
    /// Run worlds of callers that set timers once and ask again.
    Receipts(prove::InSteps),
    /// Run worlds of callers whose requests are noted in the audit log, beside others.
    Audit(prove::InSteps),
    /// Run worlds of nodes that lend each other the places of limits.
    Loans(prove::InSteps),
    /// Run worlds of workers that ask one node for the leases of all.
    Gathers(prove::InSteps),
    /// Run worlds of nodes that copy each other's events for the streams of clients.
    Streams(prove::InSteps),
    /// Put data directories together of copies of different times, and see that each is complete
    /// when it is opened, or refused and unchanged.
    Copies(prove::Copies),
    /// Put the same histories to the simulated disk and to a real one.
    Histories(prove::Histories),
    /// Make each mistake in turn, and show after how many seeds it is found.
    Sabotage(prove::Sabotages),
    /// Run seeds and print the hash of all that was let out.
    Trace {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Seed {
            seed,
            turns,
            log,
            without,
            shrink,
            #[cfg(feature = "planted-bugs")]
            bug,
        } => {
            let parts = without.iter().map(|name| Part::named(name).ok_or(name));
            let without = match parts.collect() {
                Ok(without) => without,
                Err(name) => {
                    eprintln!("no part is called {name}; there are {:?}", Part::ALL);
                    return ExitCode::from(2);
                }
            };
            let options = Options {
                turns,
                log,
                without,
                #[cfg(feature = "planted-bugs")]
                planted_bug: bug.and_then(|name| countwheel_sim::planted::PlantedBug::named(&name)),
                ..Options::default()
            };
            match world::run(seed, &options) {
                Ok(report) => {
                    println!("{report:#?}");
                    ExitCode::SUCCESS
                }
                Err(failure) if shrink => {
                    let shrunk = world::shrink(failure, &options, SHRINK_TRIES);
                    eprintln!("{}", shrunk.failure);
                    eprintln!("run it again: {shrunk}");
                    ExitCode::FAILURE
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
            let options = Options {
                turns,
                ..Options::default()
            };
            match self::first(&first) {
                Ok(first) => seeds(first, count, &options),
                Err(code) => code,
            }
        }
        Command::Year {
            file,
            window,
            on_disk,
        } => match departures(&file, window, on_disk) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
        Command::Ages {
            days,
            years,
            seed,
            store,
        } => match (first(&seed), prove::kind(&store, &Kind::ALL)) {
            (Ok(seed), Ok(kind)) => live_ages(seed, days, years, kind),
            (Err(code), _) | (_, Err(code)) => code,
        },
        Command::Timers {
            seeds,
            operations,
            first_seed,
            log,
            trace,
            sabotage,
        } => {
            let options = timers::Options {
                operations,
                log,
                trace,
                sabotage: None,
            };
            match first(&first_seed) {
                Err(code) => code,
                Ok(first) if sabotage => sabotages(first, seeds, &options),
                Ok(first) => check_timers(first, seeds, &options),
            }
        }
        Command::Stress {
            threads,
            seconds,
            seed,
            sabotage,
        } => match first(&seed) {
            Err(code) => code,
            Ok(seed) => {
                let options = stress::Options {
                    threads: threads.max(1),
                    span: Duration::from_secs(seconds),
                    seed,
                    sabotage: None,
                };
                if sabotage {
                    lies(&options)
                } else {
                    strain(&options)
                }
            }
        },
        Command::Idle { seconds, tasks } => watch(&idle::Options {
            span: Duration::from_secs(seconds),
            tasks,
        }),
        Command::Calls(calls) => calls.run(),
        Command::Bytes(bytes) => bytes.run(),
        Command::Rot(rots) => rots.run(),
        Command::Shards(shards) => shards.run(),
        Command::Nodes(nodes) => nodes.run(),
        Command::Flows(of) => of.run("flows", flows::STEPS, flows::run, flows::Report::add),
        Command::Jobs(of) => of.run("jobs", jobs::STEPS, jobs::run, jobs::Report::add),
        Command::Leases(of) => of.run("leases", leases::STEPS, leases::run, leases::Report::add),
        Command::Receipts(of) => of.run(
            "receipts",
            receipts::STEPS,
            receipts::run,
            receipts::Report::add,
        ),
        Command::Audit(of) => of.run("audit", audit::STEPS, audit::run, audit::Report::add),
        Command::Loans(of) => of.run("loans", loans::STEPS, loans::run, loans::Report::add),
        Command::Gathers(of) => of.run(
            "gathers",
            gathers::STEPS,
            gathers::run,
            gathers::Report::add,
        ),
        Command::Streams(of) => of.run(
            "streams",
            streams::STEPS,
            streams::run,
            streams::Report::add,
        ),
        Command::Copies(copies) => copies.run(),
        Command::Histories(histories) => histories.run(),
        Command::Sabotage(sabotages) => sabotages.run(),
        Command::Trace { first, count } => trace(first, count),
    }
}

/// How many runs the search for a smaller failing world may take.
const SHRINK_TRIES: usize = 80;

/// A seed, or one that the clock gives.
fn first(seed: &str) -> Result<u64, ExitCode> {
    if seed == "fresh" {
        return Ok(SystemClock::new().timestamp().as_micros());
    }
    seed.parse().map_err(|error| {
        eprintln!("{seed}: {error}");
        ExitCode::from(2)
    })
}

/// One line a seed: what two processes have to agree on.
fn trace(first: u64, count: u64) -> ExitCode {
    for seed in first..first.saturating_add(count) {
        match world::run(seed, &Options::default()) {
            Ok(report) => println!("{seed} {:016x} {report:?}", report.trace),
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn departures(file: &Path, window: usize, on_disk: bool) -> anyhow::Result<()> {
    let clock = SystemClock::new();
    let flights: Vec<_> = countwheel_departures::open(file)?.collect::<Result<_, _>>()?;
    let read = clock.now();
    let store: Arc<dyn Store> = if on_disk {
        let disk = Disk::default();
        let tables = TableStore::open(disk.files("tables"), 1, TableOptions::default())?;
        let log = LogStore::open(tables, disk.files("log"), 1, LogOptions::default())?;
        Arc::new(FlushingLog::start(log)?)
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
        let shrunk = world::shrink(Box::new(failure), options, SHRINK_TRIES);
        eprintln!("smaller: {shrunk}\n{}", shrunk.failure.what);
        return ExitCode::FAILURE;
    }
    let took = clock.now().saturating_since(start);
    println!(
        "{count} seeds from {first}: {} turns, {} requests, {} batches of them ({} refused), \
         {} drains, {} deferred, {} attempts, {} of them of later runs, {} crashes ({} in a commit, \
         {} in an opening), {} failed calls, {} full disks, {} clock steps, {} boots, {} openings before the \
         commits, {} overdue and {} by due time in counts; {} accepted = {} done \
         + {} removed + {} dead; {took:.1?}",
        sum.turns,
        sum.requests,
        sum.batches,
        sum.batches_refused,
        sum.drains,
        sum.deferred,
        sum.attempts,
        sum.reruns,
        sum.crashes,
        sum.torn,
        sum.torn_openings,
        sum.struck,
        sum.full,
        sum.clock_steps,
        sum.boots,
        sum.behind,
        sum.overdue,
        sum.counted,
        sum.accepted,
        sum.done,
        sum.removed,
        sum.dead,
    );
    ExitCode::SUCCESS
}

/// Runs `count` seeds on all cores, until one fails.
fn search(first: u64, count: u64, options: &Options) -> (Report, Option<Failure>) {
    let sum = Mutex::new(Report::default());
    let failure = on_all_cores(first, count, |seed| {
        let report = world::run(seed, options)?;
        sum.lock().add(&report);
        Ok(())
    });
    let sum = sum.into_inner();
    (sum, failure.map(|failure: Box<Failure>| *failure))
}

/// Runs `count` seeds on all cores, until one fails.
fn on_all_cores<F: Send>(
    first: u64,
    count: u64,
    run: impl Fn(u64) -> Result<(), F> + Sync,
) -> Option<F> {
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    if let Err(failure) = run(first.wrapping_add(index)) {
                        next.store(count, Ordering::Relaxed);
                        *failed.lock() = Some(failure);
                    }
                }
            });
        }
    });
    failed.into_inner()
}

fn live_ages(seed: u64, days: u32, years: u32, kind: Kind) -> ExitCode {
    let (dense, sparse) = (Ages::dense(), Ages::sparse());
    let lives = [
        Ages {
            span: dense.span * days,
            kind,
            ..dense
        },
        Ages {
            span: sparse.span / 100 * years,
            kind,
            ..sparse
        },
    ];
    let clock = SystemClock::new();
    for ages in lives.iter().filter(|ages| !ages.span.is_zero()) {
        let start = clock.now();
        let lived = match ages::run(seed, ages) {
            Ok(lived) => lived,
            Err(what) => {
                eprintln!("{what}");
                return ExitCode::FAILURE;
            }
        };
        let took = clock.now().saturating_since(start);
        println!(
            "{} days from seed {seed}, {kind:?}: {} set, {} moved, {} removed, {} attempts at \
             their microsecond, {} of them of timers that come again ({} on a leap day), {} \
             retries, {} interrupted by {} ends of the process; at most {} waited, {} in the \
             window; {took:.1?}",
            lived.spanned.as_secs() / 86_400,
            lived.set,
            lived.moved,
            lived.removed,
            lived.started,
            lived.again,
            lived.leap_days,
            lived.retries,
            lived.interrupted,
            lived.restarts,
            lived.pending_peak,
            lived.window_peak,
        );
    }
    ExitCode::SUCCESS
}

fn check_timers(first: u64, count: u64, options: &timers::Options) -> ExitCode {
    let clock = SystemClock::new();
    let start = clock.now();
    let (sum, failure) = search_timers(first, count, options);
    if let Some(failure) = failure {
        eprintln!("{failure}");
        eprintln!("{}", again(failure.seed, options.operations));
        return ExitCode::FAILURE;
    }
    let took = clock.now().saturating_since(start);
    let rate = u128::from(sum.operations) * 1_000 / took.as_millis().max(1);
    println!(
        "{count} seeds from {first}: {} operations on {} timers, 0 differences; {} added = {} ran \
         + {} cancelled + {} returned; {} refused, {} moved, {} stale, {} overloaded, \
         {} panicked; {} timers closed, {} dropped; {took:.1?}, {rate} a second",
        sum.operations,
        sum.timers,
        sum.added,
        sum.ran,
        sum.cancelled,
        sum.returned,
        sum.refused,
        sum.moved,
        sum.stale,
        sum.overloaded,
        sum.panicked,
        sum.closed,
        sum.dropped,
    );
    ExitCode::SUCCESS
}

fn again(seed: u64, operations: u64) -> String {
    format!(
        "run it again: sim timers --first-seed {seed} --seeds 1 --operations {operations} --trace"
    )
}

/// How long one seed may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn search_timers(
    first: u64,
    count: u64,
    options: &timers::Options,
) -> (timers::Report, Option<Box<Failure>>) {
    let sum = Mutex::new(timers::Report::default());
    let failure = on_all_cores(first, count, |seed| {
        let operations = options.operations;
        let hangs = move || {
            eprintln!("seed {seed} does not end");
            eprintln!("{}", again(seed, operations));
            std::process::exit(1);
        };
        // Without it, a timer that goes round for ever would be a run that says nothing.
        let watch = Timer::global().schedule(PATIENCE, hangs);
        let report = timers::run(seed, options);
        drop(watch.map(Timeout::cancel_on_drop));
        sum.lock().add(&report?);
        Ok(())
    });
    let sum = sum.into_inner();
    (sum, failure)
}

fn strain(options: &stress::Options) -> ExitCode {
    let report = stress::run(options);
    for (executor, tally) in &report.tallies {
        println!("{executor}: {tally}");
    }
    for violation in &report.violations {
        eprintln!("{violation}");
    }
    println!(
        "{} threads, {} rounds of {:.1?}, seed {}, {} violations; {}",
        options.threads,
        report.rounds,
        options.span / u32::try_from(report.rounds).unwrap_or(1),
        options.seed,
        report.violations.len(),
        report.sum(),
    );
    ExitCode::from(u8::from(!report.violations.is_empty()))
}

/// Tells each lie in turn: every one must be noticed.
fn lies(options: &stress::Options) -> ExitCode {
    let mut missed = 0;
    for lie in stress::Sabotage::ALL {
        let report = stress::run(&stress::Options {
            sabotage: Some(lie),
            ..*options
        });
        match report.violations.first() {
            Some(violation) => println!("found  {lie:?}: {violation}"),
            None => {
                missed += 1;
                println!("MISSED {lie:?}");
            }
        }
    }
    ExitCode::from(u8::from(missed > 0))
}

fn watch(options: &idle::Options) -> ExitCode {
    let idlers = match idle::run(options) {
        Ok(idlers) => idlers,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for idler in &idlers {
        println!("{idler}");
    }
    let loud = idlers.iter().filter(|idler| !idler.is_quiet()).count();
    println!(
        "{} timers over {:?}, {loud} of them not idle",
        idlers.len(),
        options.span
    );
    ExitCode::from(u8::from(loud > 0))
}

/// Plants each fault in turn: every one must be found.
fn sabotages(first: u64, count: u64, options: &timers::Options) -> ExitCode {
    let mut missed = 0;
    for fault in timers::Sabotage::ALL {
        let options = timers::Options {
            sabotage: Some(fault),
            log: 0,
            ..options.clone()
        };
        match search_timers(first, count, &options).1 {
            Some(failure) => println!("found  {fault:?}: seed {}: {}", failure.seed, failure.what),
            None => {
                missed += 1;
                println!("MISSED {fault:?} in {count} seeds");
            }
        }
    }
    ExitCode::from(u8::from(missed > 0))
}
