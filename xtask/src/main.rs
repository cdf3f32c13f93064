//! The gate and the long proofs.
//!
//! `cargo xtask check` is what everyone runs, people and machines; every stage of it can be
//! run alone, as `cargo xtask check model year`. The long proofs are commands of their own.

mod fuzz;
mod gate;
mod instructions;
mod programs;
mod proofs;
mod prose;
mod storage;
mod tests;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

const HELP: &str = "\
cargo xtask check [STAGE...]   the gate, or some stages of it
cargo xtask bench [RUN...]     measures against other libraries, 40 minutes; writes the pages
cargo xtask bench storage [--quick] [--only NAME] [--out FILE]
                               the stores against other embedded stores and a job queue; hours
cargo xtask bench cluster [--rounds N] [--seconds S] [--only ROW...] [--long] [--json FILE]
                               the store in a PostgreSQL, beside other job queues on the same server;
                               half an hour
cargo xtask bench service [--only ROW...] [--pairs N] [--rate R] [--seconds S] [--rounds N] [--alone]
                               the program over HTTP, beside other job queues; half an hour
cargo xtask bench pending --timers N [--payload BYTES]
                               what N pending timers cost, and how late they fire
cargo xtask bench build-facts  clean builds with each of those libraries; many minutes
cargo xtask bench storage-report, storage-test
                               writes the page anew; the tests of that harness
cargo xtask instructions       counts the wheels' instructions and stores them
cargo xtask model-long         1e9 operations of the wheels' model, about 2 minutes
cargo xtask timers-long        1e8 operations of timers in a process, about 2 minutes
cargo xtask stress-long        64 threads on real timers for 60 s
cargo xtask idle-long          wake-ups in 20 s of nothing to do
cargo xtask sim-long           20,000 fresh seeds of the simulation, an hour and a half
cargo xtask ages-long          30 days at full load, and one on tables
cargo xtask copies             2,000 data directories put together of copies, 10 seconds
cargo xtask fuzz [--target NAME] [--minutes N]
                               the fuzzer for the readers of files and of the service, 10 minutes for
                               each if not said; nightly
cargo xtask kill-long          1,000 kills of the real server under load, about 6 minutes
cargo xtask crashes            6,000 kills of the real server, each 50 ms after its start, and what
                               it delivers ends it, about 10 minutes
cargo xtask workers-long       three workers and the server killed at random for 10 minutes
cargo xtask power-long         1,000 cuts of its power, and 100 below an ext4, about 10 minutes
cargo xtask faults-long        every cell of the calls that fail, half a minute
cargo xtask damage             a bit flipped in each region of each file while it runs, 10 times each
cargo xtask soak [--minutes N] half of peak for N minutes, 100 if not said
cargo xtask postgres [--version N]
                               the stage postgres on PostgreSQL 15 or 18, 18 if not said; 4 minutes
cargo xtask nodes-long         72 troubles of three nodes, 50 deaths timed, a rolling restart, 200 crashes
                               of a primary with a synchronous standby; an hour
cargo xtask nodes-patroni      10 failovers of a PostgreSQL by Patroni under three nodes; 10 minutes
cargo xtask nodes-builds OLD NEW
                               two builds of the program in one cluster, and an upgrade of its tables
cargo xtask moves-long         50 moves of a service into a cluster, each killed; 10 minutes
cargo xtask api-long           schemathesis asks 100 times for everything in the document, 5 minutes
cargo xtask clock-long         100 random scenarios of clocks that are set, about 6 minutes

Stages, in order:";

/// How a stage ended.
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    /// For lack of something, named here: a failure where `CI` is set.
    NotRun(String),
}

impl Outcome {
    /// How a command ends that is this alone.
    fn exit(self) -> ExitCode {
        match self {
            Self::Passed => return ExitCode::SUCCESS,
            Self::Failed(why) => eprintln!("failed: {why}"),
            Self::NotRun(why) => eprintln!("not run: {why}"),
        }
        ExitCode::FAILURE
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::env::set_current_dir(root()).unwrap_or_default();
    match words.as_slice() {
        ["check", names @ ..] => gate::check(names),
        ["model-long"] => one(&cargo(
            "run --profile proof -p countwheel-core --example model -- --ops 1e9",
        )),
        ["bench", "cluster", run @ ..] => cluster(run),
        ["bench", "service", run @ ..] => service(run),
        ["bench", run @ ..] => storage::bench(run).unwrap_or_else(|| benchmark(run)),
        ["instructions"] => instructions::store().exit(),
        ["timers-long"] => one(&sim("timers --seeds 1000 --operations 100000")),
        ["stress-long"] => one(&sim("stress --threads 64 --seconds 60")),
        ["idle-long"] => one(&sim("idle --seconds 20")),
        ["sim-long"] => one(&sim("seeds fresh 20000 --turns 2000")),
        ["ages-long"] => {
            let month = one(&sim("ages --days 30"));
            let day = one(&sim("ages --days 1 --store tables"));
            if month == ExitCode::SUCCESS {
                day
            } else {
                month
            }
        }
        ["copies"] => one(&sim("copies --mixes 2000 --seed fresh")),
        ["fuzz", options @ ..] => fuzz::run(options),
        ["api-long"] => proofs::API.long(&[("COUNTWHEEL_EXAMPLES", "100")]),
        ["kill-long"] => proofs::KILL.long(&[("COUNTWHEEL_KILLS", "1000")]),
        ["crashes"] => proofs::CRASHES.long(&[
            ("COUNTWHEEL_CRASHES", "6000"),
            ("COUNTWHEEL_KILLERS", "3"),
            ("COUNTWHEEL_HOLD", "100ms"),
        ]),
        ["workers-long"] => proofs::WORKERS.long(&[("COUNTWHEEL_WORKERS_SECONDS", "600")]),
        ["power-long"] => proofs::POWER.long(&[
            ("COUNTWHEEL_CUTS", "1000"),
            ("COUNTWHEEL_CUTS_JOURNALED", "100"),
        ]),
        ["faults-long"] => proofs::FAULTS.long(&[("COUNTWHEEL_CELLS", "all")]),
        ["damage"] => proofs::DAMAGE.long(&[("COUNTWHEEL_FLIPS", "150")]),
        ["soak"] => soak("100"),
        ["soak", "--minutes", minutes] => soak(minutes),
        ["postgres"] => proofs::postgres("18"),
        ["postgres", "--version", version] => proofs::postgres(version),
        ["nodes-long"] => {
            let troubles = [("COUNTWHEEL_TROUBLES", "72"), ("COUNTWHEEL_DEATHS", "50")];
            let ended = proofs::NODES.long(&troubles);
            if ended == ExitCode::SUCCESS {
                proofs::NODES_LONG.long(&[("COUNTWHEEL_CRASHES", "200")])
            } else {
                ended
            }
        }
        ["nodes-patroni"] => proofs::PATRONI.long(&[("COUNTWHEEL_FAILOVERS", "10")]),
        ["nodes-builds", old, new] => proofs::BUILDS.long(&[
            ("COUNTWHEEL_OLD_BUILD", &absolute(old)),
            ("COUNTWHEEL_NEW_BUILD", &absolute(new)),
        ]),
        ["moves-long"] => proofs::MOVES.long(&[("COUNTWHEEL_MOVES", "50")]),
        ["clock-long"] => proofs::CLOCK.long(&[("COUNTWHEEL_CLOCKS", "100")]),
        _ => {
            println!("{HELP}");
            gate::list();
            ExitCode::from(2)
        }
    }
}

/// Measures, draws and writes, with what `bench run` takes as further arguments.
fn benchmark(run: &[&str]) -> ExitCode {
    let bench = |arguments: &str| {
        cargo(&format!(
            "run --profile bench -p countwheel-bench -- {arguments}"
        ))
    };
    let results = "target/benchmarks.json";
    let steps = [
        bench(&format!("run --out {results} {}", run.join(" "))),
        bench(&format!("chart {results} --out docs/benchmarks.svg")),
        bench(&format!("report {results} --out docs/benchmarks.md")),
    ];
    ExitCode::from(u8::from(!steps.iter().all(Cargo::run)))
}

/// Measures the store in a PostgreSQL, with what `bench-cluster` takes as further arguments.
fn cluster(run: &[&str]) -> ExitCode {
    one(&cargo(&format!(
        "run --profile bench -p countwheel-bench-cluster -- {}",
        run.join(" ")
    )))
}

/// Measures the program over HTTP, with what `bench-service` takes as further arguments.
fn service(run: &[&str]) -> ExitCode {
    if !answers("beanstalkd", "-v") {
        println!("installing beanstalkd");
        install("beanstalkd");
    }
    let program = target().join("release/countwheel");
    // Two calls, so that the program is built with its own features alone.
    let steps = [
        cargo("build --release -p countwheel-server"),
        cargo(&format!(
            "run --release -p countwheel-bench-service -- --program {} {}",
            program.display(),
            run.join(" ")
        )),
    ];
    ExitCode::from(u8::from(!steps.iter().all(Cargo::run)))
}

/// Proofs run elsewhere.
fn absolute(path: &str) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    path.to_string_lossy().into_owned()
}

fn soak(minutes: &str) -> ExitCode {
    let Ok(minutes) = minutes.parse::<u32>() else {
        eprintln!("--minutes takes a whole number");
        return ExitCode::from(2);
    };
    let seconds = (u64::from(minutes) * 60).to_string();
    proofs::SOAK.long(&[("COUNTWHEEL_SOAK_SECONDS", &seconds)])
}

fn one(cargo: &Cargo) -> ExitCode {
    ExitCode::from(u8::from(!cargo.run()))
}

/// One call of cargo.
pub(crate) struct Cargo {
    arguments: Vec<String>,
    environment: Option<(&'static str, &'static str)>,
}

impl Cargo {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        command.args(&self.arguments).envs(self.environment);
        // What cargo says to this program of its package. A dependency that asks for these would be
        // built anew whenever a person's own cargo and this one take turns.
        for (name, _) in std::env::vars() {
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(name);
            }
        }
        if is_ci() {
            // Nobody builds there twice, and what would make that fast costs a fifth more now. A panic says its line
            // without the tables that a debugger reads.
            command.env("CARGO_INCREMENTAL", "0");
            command.env("CARGO_PROFILE_DEV_DEBUG", "false");
        }
        command
    }

    pub(crate) fn run(&self) -> bool {
        println!("$ {self}");
        match self.command().status() {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("cargo does not start: {error}");
                false
            }
        }
    }
}

impl std::fmt::Display for Cargo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cargo {}", self.arguments.join(" "))
    }
}

pub(crate) fn cargo(arguments: &str) -> Cargo {
    Cargo {
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        environment: None,
    }
}

/// The simulator at full speed.
fn sim(arguments: &str) -> Cargo {
    cargo(&format!(
        "run --profile proof -p countwheel-sim -- {arguments}"
    ))
}

/// Whether a program is there and runs.
pub(crate) fn answers(program: &str, argument: &str) -> bool {
    let output = Command::new(program).arg(argument).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether a package of Debian's could be installed. Only root can, and a machine without
/// Debian's packages has no such command.
pub(crate) fn install(package: &str) -> bool {
    // Two are not installed at a time.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let install = format!("install --yes --no-install-recommends {package}");
    ["update", &install].iter().all(|arguments| {
        let apt = Command::new("apt-get").args(arguments.split(' ')).output();
        apt.is_ok_and(|output| output.status.success())
    })
}

pub(crate) fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

pub(crate) fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether no person is there to read that something was not run.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from)
}
