//! The commands about stores: calls, bytes, rot, shards, copies, histories, sabotage.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use countwheel_sim::machine::{Kind, Machine};
use countwheel_sim::sabotage::Sabotage;
use countwheel_sim::stores::{Tally, bytes, calls, copies, histories};
use countwheel_sim::world::{self, Options};
use countwheel_sim::{Failure, Random, Stepped, nodes, panic_text, rot, shards};
use countwheel_time::{Clock, SystemClock};
use parking_lot::Mutex;

use crate::{first, on_all_cores};

/// Memory that a damaged file may make a store ask for.
const MEMORY_MAX_BYTES: u64 = 64 << 20;

/// What `sim calls` takes.
#[derive(Args)]
pub(crate) struct Calls {
    /// How many lives are drawn, beside the scripts.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
    /// Only this store, by name.
    #[arg(long)]
    store: Option<String>,
    /// In the scripts, let only every so many-th call fail.
    #[arg(long, default_value_t = 1)]
    stride: u64,
    /// Leave out the scripts.
    #[arg(long)]
    no_scripts: bool,
}

/// What `sim bytes` takes.
#[derive(Args)]
pub(crate) struct Bytes {
    /// How many seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
    /// Only this store, by name.
    #[arg(long)]
    store: Option<String>,
}

/// What `sim rot` takes.
#[derive(Args)]
pub(crate) struct Rots {
    /// How many seeds.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
}

/// What `sim shards` takes.
#[derive(Args)]
pub(crate) struct Shards {
    /// How many seeds.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
    /// How many steps each before everything works.
    #[arg(long, default_value_t = 600)]
    steps: u64,
    /// How many of the last things that happened to show if one fails.
    #[arg(long, default_value_t = 40)]
    log: usize,
    /// The store, by name, if it is not drawn.
    #[arg(long)]
    store: Option<String>,
}

/// What `sim nodes` takes.
#[derive(Args)]
pub(crate) struct Nodes {
    /// How many seeds.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
    /// For how many seconds each before everything works.
    #[arg(long, default_value_t = 90)]
    seconds: u64,
    /// How many of the last things that happened to show if one fails.
    #[arg(long, default_value_t = 60)]
    log: usize,
}

/// What the commands take that run worlds of a number of steps.
#[derive(Args)]
pub(crate) struct InSteps {
    /// How many seeds.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
    /// How many steps each; of some worlds before everything works. Each kind has a number of its own.
    #[arg(long)]
    steps: Option<u64>,
    /// How many of the last things that happened to show if one fails.
    #[arg(long, default_value_t = 60)]
    log: usize,
}

/// What `sim copies` takes.
#[derive(Args)]
pub(crate) struct Copies {
    /// How many mixes, 25 of the copies of each store.
    #[arg(long, default_value_t = 2_000)]
    mixes: u64,
    /// The seed of the first store; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    seed: String,
    /// How many of those that are not as they have to be are told.
    #[arg(long, default_value_t = 10)]
    told: usize,
    /// How many of those that are beyond the limits, or not all of which a repair gave back.
    #[arg(long, default_value_t = 0)]
    limits: usize,
}

/// What `sim histories` takes.
#[derive(Args)]
pub(crate) struct Histories {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
}

/// What `sim sabotage` takes.
#[derive(Args)]
pub(crate) struct Sabotages {
    /// The most seeds that each may take.
    #[arg(long, default_value_t = 1_000)]
    within: u64,
    /// The first seed; `fresh` for one that the clock gives.
    #[arg(long, default_value = "1")]
    first_seed: String,
    /// Only this many of them, chosen by the first seed.
    #[arg(long)]
    only: Option<usize>,
    /// Only those whose names contain this.
    #[arg(long)]
    named: Option<String>,
}

/// The stores that were asked for.
fn kinds(store: Option<&str>) -> Result<Vec<Kind>, ExitCode> {
    match store {
        None => Ok(Kind::ON_DISK.to_vec()),
        Some(name) => kind(name, &Kind::ON_DISK).map(|kind| vec![kind]),
    }
}

/// The store of that name; who asks for another is told what there is.
pub(crate) fn kind(name: &str, there_are: &[Kind]) -> Result<Kind, ExitCode> {
    Kind::named(name).ok_or_else(|| {
        eprintln!("no store is called {name}; there are {there_are:?}");
        ExitCode::from(2)
    })
}

fn report<T: fmt::Display>(result: Result<T, Box<Failure>>, again: &str) -> ExitCode {
    match result {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            eprintln!(
                "run it again: sim {again} --first-seed {} --seeds 1",
                failure.seed
            );
            ExitCode::FAILURE
        }
    }
}

impl Calls {
    pub(crate) fn run(&self) -> ExitCode {
        let (first, kinds) = match (first(&self.first_seed), kinds(self.store.as_deref())) {
            (Ok(first), Ok(kinds)) => (first, kinds),
            (Err(code), _) | (_, Err(code)) => return code,
        };
        let result = self.prove(first, &kinds);
        report(result, "calls --no-scripts")
    }

    fn prove(&self, first: u64, kinds: &[Kind]) -> Result<String, Box<Failure>> {
        let mut lines = Vec::new();
        for &kind in kinds {
            let clock = SystemClock::new();
            let start = clock.now();
            let sum = Mutex::new(Tally::default());
            if !self.no_scripts {
                let cases = calls::cases(&[kind]);
                let failure: Option<Box<Failure>> = on_all_cores(0, cases.len() as u64, |index| {
                    let case = &cases[usize::try_from(index).unwrap_or(0)];
                    let tally = calls::run_case(case, self.stride)?;
                    sum.lock().add(&tally);
                    Ok(())
                });
                failure.map_or(Ok(()), Err)?;
            }
            let scripted = std::mem::take(&mut *sum.lock());
            let failure: Option<Box<Failure>> = on_all_cores(first, self.seeds.max(1), |seed| {
                let tally = calls::run_life(kind, seed)?;
                sum.lock().add(&tally);
                Ok(())
            });
            failure.map_or(Ok(()), Err)?;
            let drawn = *sum.lock();
            let took = clock.now().saturating_since(start);
            lines.push(format!("{kind:?}, scripts: {scripted}"));
            lines.push(format!("{kind:?}, drawn from {first}: {drawn}; {took:.1?}"));
        }
        Ok(lines.join("\n"))
    }
}

impl Bytes {
    pub(crate) fn run(&self) -> ExitCode {
        let (first, kinds) = match (first(&self.first_seed), kinds(self.store.as_deref())) {
            (Ok(first), Ok(kinds)) => (first, kinds),
            (Err(code), _) | (_, Err(code)) => return code,
        };
        report(self.prove(first, &kinds), "bytes")
    }

    /// On one thread, so that the memory that is asked for is this one's.
    fn prove(&self, first: u64, kinds: &[Kind]) -> Result<String, Box<Failure>> {
        let mut lines = Vec::new();
        for &kind in kinds {
            let clock = SystemClock::new();
            let start = clock.now();
            let mut sum = bytes::Verdicts::default();
            let mut most = 0;
            for seed in first..first.saturating_add(self.seeds) {
                let before = memory_peak();
                sum.add(&bytes::run(kind, seed)?);
                let asked = memory_peak().saturating_sub(before);
                most = most.max(asked);
                if asked > MEMORY_MAX_BYTES {
                    return Err(Box::new(Failure {
                        seed,
                        step: 0,
                        what: format!("{kind:?}: {asked} bytes of memory asked for"),
                        last: Vec::new(),
                    }));
                }
            }
            let took = clock.now().saturating_since(start);
            lines.push(format!(
                "{kind:?}, {} seeds from {first}: {} refused, {} refused when asked, {} right, {} \
                 without the last commit, {} without an end that was cut off, {} empty without a file, none wrong; {} repaired into a new store; at most {} MiB more memory; {took:.1?}",
                self.seeds,
                sum.refused,
                sum.refused_later,
                sum.right,
                sum.without_the_last,
                sum.without_an_end,
                sum.started_empty,
                sum.repaired,
                most >> 20
            ));
        }
        Ok(lines.join("\n"))
    }
}

/// Runs so many seeds on all cores, and says what they came to together.
fn prove_all<R: Default + fmt::Display + Send>(
    first: u64,
    seeds: u64,
    run: impl Fn(u64) -> Result<R, Box<Failure>> + Sync,
    add: impl Fn(&mut R, &R) + Sync,
) -> Result<String, Box<Failure>> {
    let clock = SystemClock::new();
    let start = clock.now();
    let sum = Mutex::new(R::default());
    let failure: Option<Box<Failure>> = on_all_cores(first, seeds, |seed| {
        let report = run(seed)?;
        add(&mut sum.lock(), &report);
        Ok(())
    });
    failure.map_or(Ok(()), Err)?;
    let took = clock.now().saturating_since(start);
    let sum = sum.lock();
    Ok(format!("From {first}: {sum}; {took:.1?}"))
}

impl Rots {
    pub(crate) fn run(&self) -> ExitCode {
        let first = match first(&self.first_seed) {
            Ok(first) => first,
            Err(code) => return code,
        };
        report(self.prove(first), "rot")
    }

    fn prove(&self, first: u64) -> Result<String, Box<Failure>> {
        let run = |seed| rot::run(seed);
        prove_all(first, self.seeds, run, rot::Report::add)
    }
}

impl Nodes {
    pub(crate) fn run(&self) -> ExitCode {
        let first = match first(&self.first_seed) {
            Ok(first) => first,
            Err(code) => return code,
        };
        let options = nodes::Options {
            seconds: self.seconds,
            log: self.log,
            ..nodes::Options::default()
        };
        report(self.prove(first, &options), "nodes")
    }

    fn prove(&self, first: u64, options: &nodes::Options) -> Result<String, Box<Failure>> {
        let run = |seed| nodes::run(seed, options);
        prove_all(first, self.seeds, run, nodes::Report::add)
    }
}

impl InSteps {
    pub(crate) fn run<R: Default + fmt::Display + Send>(
        &self,
        what: &str,
        steps: u64,
        run: fn(u64, &Stepped) -> Result<R, Box<Failure>>,
        add: fn(&mut R, &R),
    ) -> ExitCode {
        let first = match first(&self.first_seed) {
            Ok(first) => first,
            Err(code) => return code,
        };
        let options = Stepped {
            log: self.log,
            ..Stepped::of(self.steps.unwrap_or(steps))
        };
        let proved = prove_all(first, self.seeds, |seed| run(seed, &options), add);
        report(proved, what)
    }
}

impl Shards {
    pub(crate) fn run(&self) -> ExitCode {
        let kind = self.store.as_deref().map(|name| kind(name, &Kind::ALL));
        let (first, kind) = match (first(&self.first_seed), kind.transpose()) {
            (Ok(first), Ok(kind)) => (first, kind),
            (Err(code), _) | (_, Err(code)) => return code,
        };
        let options = shards::Options {
            steps: self.steps,
            log: self.log,
            kind,
            ..shards::Options::default()
        };
        report(self.prove(first, &options), "shards")
    }

    fn prove(&self, first: u64, options: &shards::Options) -> Result<String, Box<Failure>> {
        let run = |seed| shards::run(seed, options);
        prove_all(first, self.seeds, run, shards::Report::add)
    }
}

/// The most address space that this process ever had, in bytes; 0 where that is not known.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

/// A directory of this process, gone when this goes. In memory if there is such a place: what is
/// not synced for long need not be on a disk.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let path = root.join(format!("countwheel-copies-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

impl Copies {
    pub(crate) fn run(&self) -> ExitCode {
        let first = match first(&self.seed) {
            Ok(first) => first,
            Err(code) => return code,
        };
        let clock = SystemClock::new();
        let start = clock.now();
        let report = match self.prove(first) {
            Ok(report) => report,
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        };
        let took = clock.now().saturating_since(start);
        for (kind, verdicts) in &report.kinds {
            println!("{kind:?}: {verdicts}");
        }
        println!("all, from seed {first}: {}; {took:.1?}", report.sum());
        for failure in report.failures.iter().take(self.told) {
            eprintln!("{failure}");
        }
        for limit in report.limits.iter().take(self.limits) {
            println!("{limit}");
        }
        if !report.failures.is_empty() {
            let mixes = copies::MIXES_OF_A_STORE;
            eprintln!("run one again: sim copies --mixes {mixes} --seed SEED");
        }
        ExitCode::from(u8::from(!report.failures.is_empty()))
    }

    fn prove(&self, first: u64) -> Result<copies::Report, String> {
        let scratch = Scratch::new().map_err(|error| error.to_string())?;
        let sum = Mutex::new(copies::Report::default());
        let stores = self.mixes.div_ceil(copies::MIXES_OF_A_STORE);
        let failed = on_all_cores(first, stores, |seed| {
            let directory = scratch.0.join(seed.to_string());
            let done = seed.wrapping_sub(first) * copies::MIXES_OF_A_STORE;
            let mixes = (self.mixes - done).min(copies::MIXES_OF_A_STORE);
            let report = copies::run(seed, mixes, &directory, None)?;
            sum.lock().add(report);
            std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())
        });
        match failed {
            Some(why) => Err(why),
            None => Ok(sum.into_inner()),
        }
    }
}

impl Histories {
    pub(crate) fn run(&self) -> ExitCode {
        let first = match first(&self.first_seed) {
            Ok(first) => first,
            Err(code) => return code,
        };
        report(self.prove(first), "histories")
    }

    fn prove(&self, first: u64) -> Result<String, Box<Failure>> {
        let clock = SystemClock::new();
        let start = clock.now();
        let trouble = |error: std::io::Error| {
            Box::new(Failure {
                seed: first,
                step: 0,
                what: error.to_string(),
                last: Vec::new(),
            })
        };
        let root = std::env::temp_dir().join(format!("countwheel-sim-{}", std::process::id()));
        let mut sum = histories::Compared::default();
        let mut result = Ok(());
        for seed in first..first.saturating_add(self.seeds) {
            let directory = root.join(seed.to_string());
            std::fs::create_dir_all(&directory).map_err(trouble)?;
            let compared = histories::run(seed, &directory);
            std::fs::remove_dir_all(&directory).map_err(trouble)?;
            match compared {
                Ok(compared) => sum.add(&compared),
                Err(failure) => {
                    result = Err(failure);
                    break;
                }
            }
        }
        std::fs::remove_dir_all(&root).map_err(trouble)?;
        result?;
        let took = clock.now().saturating_since(start);
        Ok(format!(
            "{} histories from {first}: {} calls, {} of them refused, with the same results; {} \
             bytes in the end, the same; {} cuts that leave what they may; a log opened {} times \
             on both, with the same answers and bytes; {took:.1?}",
            self.seeds, sum.calls, sum.refused, sum.bytes, sum.cuts, sum.openings
        ))
    }
}

/// A mistake, and the stage that has to find it.
struct Mistake {
    name: String,
    stage: &'static str,
    seeds: u64,
    find: Box<dyn Fn(u64) -> Option<String> + Sync>,
}

impl Mistake {
    /// After how many seeds it is found, and what is seen then.
    fn look(&self, first: u64) -> Option<(u64, String)> {
        (0..self.seeds).find_map(|index| {
            let seed = first.wrapping_add(index);
            let found = catch_unwind(AssertUnwindSafe(|| (self.find)(seed)));
            let what = found.unwrap_or_else(|panic| Some(panic_text(&*panic)))?;
            Some((index + 1, what))
        })
    }
}

fn mistakes(within: u64) -> Vec<Mistake> {
    let mut all: Vec<Mistake> = Vec::new();
    for sabotage in Sabotage::ALL {
        all.push(Mistake {
            name: format!("{sabotage:?}"),
            stage: "calls",
            seeds: within,
            find: Box::new(move |seed| {
                let machine = || Machine::new(Kind::Log, seed).with(Some(sabotage));
                let found = calls::find_on(&machine, seed);
                found.err()
            }),
        });
    }
    let in_world =
        |options: Options| move |seed| world::run(seed, &options).err().map(|failure| failure.what);
    all.push(Mistake {
        name: "a disk that ignores syncs".to_owned(),
        stage: "seeds",
        seeds: within,
        find: Box::new(in_world(Options {
            lying_disk: true,
            ..Options::default()
        })),
    });
    #[cfg(feature = "planted-bugs")]
    for bug in countwheel_sim::planted::PlantedBug::all() {
        all.push(Mistake {
            name: format!("{bug:?}"),
            stage: countwheel_sim::planted::stage(bug),
            seeds: within,
            find: Box::new(move |seed| countwheel_sim::planted::find(bug, seed)),
        });
    }
    #[cfg(feature = "planted-bugs")]
    for bug in countwheel_sim::planted::ALSO_IN_NODES {
        all.push(Mistake {
            name: format!("{bug:?}"),
            stage: "nodes",
            seeds: within,
            find: Box::new(move |seed| countwheel_sim::planted::find_in_nodes(bug, seed)),
        });
    }
    #[cfg(feature = "planted-bugs")]
    for (bug, kind) in countwheel_sim::planted::ALSO_IN_SHARDS {
        all.push(Mistake {
            name: format!("{bug:?}, among shards"),
            stage: "shards",
            seeds: within,
            find: Box::new(move |seed| countwheel_sim::planted::find_in_shards(bug, seed, kind)),
        });
    }
    all
}

impl Sabotages {
    pub(crate) fn run(&self) -> ExitCode {
        let first = match first(&self.first_seed) {
            Ok(first) => first,
            Err(code) => return code,
        };
        let clock = SystemClock::new();
        let begun = clock.now();
        let mut all = mistakes(self.within);
        if let Some(named) = &self.named {
            all.retain(|mistake| mistake.name.contains(named));
        }
        if let Some(only) = self.only {
            let mut random = Random::new(first, "rotation");
            while all.len() > only {
                let out = random.below(all.len() as u64);
                all.remove(usize::try_from(out).unwrap_or(0));
            }
        }
        // What is found by a panic is found.
        std::panic::set_hook(Box::new(|_| {}));
        let results = Mutex::new(BTreeMap::new());
        let nothing_fails: Option<()> = on_all_cores(0, all.len() as u64, |index| {
            let start = clock.now();
            let mistake = usize::try_from(index).ok().and_then(|index| all.get(index));
            let found = mistake.and_then(|mistake| mistake.look(first));
            let took: Duration = clock.now().saturating_since(start);
            results.lock().insert(index, (found, took));
            Ok(())
        });
        debug_assert!(nothing_fails.is_none());
        let results = std::mem::take(&mut *results.lock());
        let mut missed = 0;
        println!("| mistake | stage | found after seeds | in | by |");
        println!("|---|---|---|---|---|");
        for (mistake, (found, took)) in all.iter().zip(results.into_values()) {
            let (after, by) = match found {
                Some((after, what)) => (after.to_string(), what),
                None => {
                    missed += 1;
                    (format!("MISSED in {}", mistake.seeds), String::new())
                }
            };
            let by: String = by.chars().take(100).collect();
            println!(
                "| {} | {} | {after} | {took:.1?} | {by} |",
                mistake.name, mistake.stage
            );
        }
        let took = clock.now().saturating_since(begun);
        println!("{} mistakes, {missed} missed; {took:.1?}", all.len());
        ExitCode::from(u8::from(missed > 0))
    }
}
