//! The gate and the long proofs.
//!
//! `cargo xtask check` is what everyone runs, people and machines; every stage of it can be
//! run alone, as `cargo xtask check model year`. The long proofs are commands of their own.

mod instructions;
mod proofs;
mod storage;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

const HELP: &str = "\
cargo xtask check [STAGE...]   the gate, or some stages of it
cargo xtask bench [RUN...]     measures against other libraries, 40 minutes; writes the pages
cargo xtask bench storage [--quick] [--only NAME] [--out FILE]
                               the stores against other embedded stores and a job queue; hours
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
cargo xtask sim-long           20,000 fresh seeds of the simulation, about 30 minutes
cargo xtask kill-long          1,000 kills of the real server under load, about 6 minutes
cargo xtask power-long         1,000 cuts of its power, and 100 below an ext4, about 10 minutes
cargo xtask faults-long        every cell of the calls that fail, half a minute
cargo xtask soak [--minutes N] half of peak for N minutes, 100 if not said
cargo xtask clock-long         100 random scenarios of clocks that are set, about 6 minutes

Stages, in order:";

/// One stage of the gate.
struct Stage {
    name: &'static str,
    what: &'static str,
    commands: Commands,
}

enum Commands {
    Cargo(fn() -> Vec<Cargo>),
    Own(fn() -> Outcome),
}

/// How a stage ended.
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    /// For want of something, named here: a failure where `CI` is set.
    NotRun(String),
}

/// One call of cargo.
pub(crate) struct Cargo {
    arguments: Vec<String>,
    environment: Option<(&'static str, &'static str)>,
}

const STAGES: [Stage; 18] = [
    Stage {
        name: "format",
        what: "the code is formatted",
        commands: Commands::Cargo(|| {
            vec![
                cargo("fmt --all --check"),
                cargo("fmt --check --manifest-path benches/storage/Cargo.toml"),
            ]
        }),
    },
    Stage {
        name: "lint",
        what: "clippy with warnings denied",
        commands: Commands::Cargo(|| {
            vec![cargo(
                "clippy --workspace --all-targets --all-features -- -D warnings",
            )]
        }),
    },
    Stage {
        name: "test",
        what: "all tests and doc tests; the planted bugs are found",
        commands: Commands::Cargo(|| vec![cargo("test --workspace --all-features")]),
    },
    Stage {
        name: "doc",
        what: "the documents build without a warning",
        commands: Commands::Cargo(|| {
            let mut doc = cargo("doc --workspace --no-deps --all-features");
            doc.environment = Some(("RUSTDOCFLAGS", "-D warnings"));
            vec![doc]
        }),
    },
    Stage {
        name: "examples",
        what: "every example runs",
        commands: Commands::Cargo(examples),
    },
    Stage {
        name: "build",
        what: "what the proofs run: full speed, assertions on",
        commands: Commands::Cargo(|| {
            // Each as the stages ask for it: together, or the server without its tests, they
            // would have other features, and every dependency would be built once more.
            vec![
                cargo("build --profile proof -p countwheel-sim"),
                cargo("test --profile proof -p countwheel-server --test proofs --no-run"),
            ]
        }),
    },
    Stage {
        name: "model",
        what: "the wheels agree with a sorted map over 5e7 operations",
        commands: Commands::Cargo(|| {
            vec![cargo(
                "run --profile proof -p countwheel-core --example model -- --ops 5e7",
            )]
        }),
    },
    Stage {
        name: "instructions",
        what: "no operation of the wheels takes 5 % more instructions than stored",
        commands: Commands::Own(instructions::compare),
    },
    Stage {
        name: "timers",
        what: "timers in a process: fixed seeds, fresh seeds, 64 threads, and nothing to do",
        commands: Commands::Cargo(|| {
            vec![
                sim("timers --seeds 100 --operations 50000 --first-seed 1"),
                sim("timers --seeds 100 --operations 50000 --first-seed fresh"),
                sim("stress --threads 64 --seconds 4"),
                sim("idle --seconds 4"),
            ]
        }),
    },
    Stage {
        name: "sim",
        what: "fixed and fresh seeds of the simulation",
        commands: Commands::Cargo(|| vec![sim("seeds 1 400"), sim("seeds fresh 400")]),
    },
    Stage {
        name: "stores",
        what: "calls that fail, unknown bytes, mistakes that must be found, a real disk beside",
        commands: Commands::Cargo(|| {
            vec![
                sim("calls --store tables --seeds 0"),
                sim("calls --no-scripts --seeds 300 --first-seed fresh"),
                sim("bytes --seeds 500 --first-seed fresh"),
                sim("sabotage --only 8 --first-seed fresh"),
                sim("histories --seeds 60 --first-seed fresh"),
            ]
        }),
    },
    Stage {
        name: "year",
        what: "a year of departures under the simulated clock",
        commands: Commands::Cargo(|| vec![sim("year examples-data/flights-2013.csv.gz")]),
    },
    Stage {
        name: "january",
        what: "a month of departures through the real server, killed ten times",
        commands: Commands::Cargo(|| vec![server_test("january")]),
    },
    Stage {
        name: "kill",
        what: "200 kills of the real server under load",
        commands: Commands::Cargo(|| vec![server_test("kill")]),
    },
    Stage {
        name: "power",
        what: "40 cuts of its power under load; a disk that ignores syncs is found",
        commands: Commands::Own(|| proofs::POWER.stage()),
    },
    Stage {
        name: "faults",
        what: "its calls to the system fail, its disk is full, its disk turns read-only",
        commands: Commands::Own(|| proofs::FAULTS.stage()),
    },
    Stage {
        name: "soak",
        what: "half of its peak for a while; everything is drained to zero",
        commands: Commands::Own(|| proofs::SOAK.stage()),
    },
    Stage {
        name: "clock",
        what: "its wall clock is set, and it is stopped and continued",
        commands: Commands::Own(|| proofs::CLOCK.stage()),
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::env::set_current_dir(root()).unwrap_or_default();
    match words.as_slice() {
        ["check", names @ ..] => check(names),
        ["model-long"] => one(&cargo(
            "run --profile proof -p countwheel-core --example model -- --ops 1e9",
        )),
        ["bench", run @ ..] => storage::bench(run).unwrap_or_else(|| benchmark(run)),
        ["instructions"] => match instructions::store() {
            Outcome::Passed => ExitCode::SUCCESS,
            Outcome::Failed(why) | Outcome::NotRun(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
        ["timers-long"] => one(&sim("timers --seeds 1000 --operations 100000")),
        ["stress-long"] => one(&sim("stress --threads 64 --seconds 60")),
        ["idle-long"] => one(&sim("idle --seconds 20")),
        ["sim-long"] => one(&sim("seeds fresh 20000 --turns 2000")),
        ["kill-long"] => {
            let mut kill = server_test("kill");
            kill.environment = Some(("COUNTWHEEL_KILLS", "1000"));
            one(&kill)
        }
        ["power-long"] => proofs::POWER.long(&[
            ("COUNTWHEEL_CUTS", "1000"),
            ("COUNTWHEEL_CUTS_JOURNALED", "100"),
        ]),
        ["faults-long"] => proofs::FAULTS.long(&[("COUNTWHEEL_CELLS", "all")]),
        ["soak"] => soak("100"),
        ["soak", "--minutes", minutes] => soak(minutes),
        ["clock-long"] => proofs::CLOCK.long(&[("COUNTWHEEL_CLOCKS", "100")]),
        _ => {
            println!("{HELP}");
            for stage in &STAGES {
                println!("  {:<12} {}", stage.name, stage.what);
            }
            ExitCode::from(2)
        }
    }
}

/// Runs the stages named, or all. Stops at the first that fails.
fn check(names: &[&str]) -> ExitCode {
    if let Some(unknown) = names
        .iter()
        .find(|name| !STAGES.iter().any(|s| s.name == **name))
    {
        eprintln!("no stage is called {unknown}; see cargo xtask");
        return ExitCode::from(2);
    }
    let mut report = Vec::new();
    let mut failed = false;
    for stage in &STAGES {
        if !names.is_empty() && !names.contains(&stage.name) {
            continue;
        }
        if failed {
            report.push(format!(
                "  {:<12} not run: an earlier stage failed",
                stage.name
            ));
            continue;
        }
        println!("\n=== {}: {}", stage.name, stage.what);
        let start = now();
        let outcome = stage.run();
        let took = start.elapsed().as_secs();
        let verdict = match outcome {
            Outcome::Passed => format!("passed in {took} s"),
            Outcome::Failed(why) => {
                failed = true;
                format!("FAILED in {took} s: {why}")
            }
            Outcome::NotRun(why) => {
                failed = std::env::var_os("CI").is_some();
                format!("NOT RUN: {why}")
            }
        };
        report.push(format!("  {:<12} {verdict}", stage.name));
    }
    println!("\n=== the gate");
    for line in report {
        println!("{line}");
    }
    ExitCode::from(u8::from(failed))
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

impl Stage {
    fn run(&self) -> Outcome {
        match self.commands {
            Commands::Own(run) => run(),
            Commands::Cargo(commands) => match commands().iter().find(|cargo| !cargo.run()) {
                None => Outcome::Passed,
                Some(failed) => Outcome::Failed(format!("cargo {}", failed.arguments.join(" "))),
            },
        }
    }
}

impl Cargo {
    pub(crate) fn run(&self) -> bool {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        command.args(&self.arguments).envs(self.environment);
        println!("$ cargo {}", self.arguments.join(" "));
        match command.status() {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("cargo does not start: {error}");
                false
            }
        }
    }
}

pub(crate) fn cargo(arguments: &str) -> Cargo {
    Cargo {
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        environment: None,
    }
}

fn sim(arguments: &str) -> Cargo {
    cargo(&format!(
        "run --profile proof -p countwheel-sim -- {arguments}"
    ))
}

/// An end-to-end test that is too long for every `cargo test`: ignored there, named here. All
/// of them are one program, which is linked once.
pub(crate) fn server_test(name: &str) -> Cargo {
    cargo(&format!(
        "test --profile proof -p countwheel-server --test proofs -- --ignored --nocapture {name}::"
    ))
}

/// Whether a package of Debian's could be installed. Only root can, and a machine without
/// Debian's packages has no such command.
pub(crate) fn install(package: &str) -> bool {
    let install = format!("install --yes --no-install-recommends {package}");
    ["update", &install].iter().all(|arguments| {
        let apt = Command::new("apt-get").args(arguments.split(' ')).output();
        apt.is_ok_and(|output| output.status.success())
    })
}

/// Every example of every crate, but for those that are commands of a stage.
fn examples() -> Vec<Cargo> {
    let mut found = Vec::new();
    for package in list(Path::new("crates")) {
        for example in list(&package.join("examples")) {
            let name = stem(&example);
            if example.extension().is_some_and(|e| e == "rs")
                && name != "model"
                && name != "operations"
            {
                let package = stem(&package);
                found.push(cargo(&format!("run -p {package} --example {name}")));
            }
        }
    }
    found
}

fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a stage took is for people"
)]
fn now() -> Instant {
    Instant::now()
}
