//! The stages of the gate, and how they run.
//!
//! Everything is built once, in the `dev` profile and with all features, and every stage runs
//! what that build made. Stages that measure no time run beside each other, in four lanes: what asks a
//! PostgreSQL, what asks nodes and workers, what asks one server, and what computes. The last one takes the time
//! that the others leave: its priority is lower.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::{
    Cargo, Outcome, cargo, instructions, is_ci, list as files, programs, proofs, prose, root, stem,
    target, tests,
};

/// One stage of the gate.
struct Stage {
    name: &'static str,
    what: &'static str,
    lane: Lane,
    work: Work,
}

/// Beside what a stage may run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// Nothing.
    Alone,
    /// The stages of the other lanes, in its own turn.
    Database,
    Nodes,
    Server,
    Computing,
}

impl Lane {
    const BESIDE: [Self; 4] = [Self::Database, Self::Nodes, Self::Server, Self::Computing];
}

enum Work {
    Calls(fn() -> Vec<Call>),
    Own(fn() -> Outcome),
    Proof(&'static proofs::Proof),
}

/// One program that a stage runs.
enum Call {
    Cargo(Cargo),
    /// One that the build made: where, below cargo's directory of it, and its arguments.
    Built(String, Vec<String>),
}

const STAGES: [Stage; 30] = [
    Stage {
        name: "format",
        what: "the code is formatted",
        lane: Lane::Alone,
        work: Work::Calls(|| {
            vec![
                Call::cargo("fmt --all --check"),
                Call::cargo("fmt --check --manifest-path benches/storage/Cargo.toml"),
            ]
        }),
    },
    Stage {
        name: "prose",
        what: "the phrases that CONTRIBUTING.md does without are nowhere",
        lane: Lane::Alone,
        work: Work::Own(|| prose::check(&root())),
    },
    Stage {
        name: "lint",
        what: "clippy with warnings denied; what is shipped builds without the others' features",
        lane: Lane::Alone,
        work: Work::Calls(|| {
            vec![
                Call::cargo("clippy --workspace --all-targets --all-features -- -D warnings"),
                // What enables a feature of another crate is not checked together with that crate.
                Call::cargo(
                    "check -p countwheel-time -p countwheel -p countwheel-patterns -p countwheel-tower",
                ),
                Call::cargo("check -p countwheel-durable -p countwheel-disk -p countwheel-server"),
            ]
        }),
    },
    Stage {
        name: "build",
        what: "all that the stages run, assertions on",
        lane: Lane::Alone,
        work: Work::Own(programs::stage),
    },
    Stage {
        name: "test",
        what: "all tests and doc tests; the planted bugs are found",
        lane: Lane::Alone,
        work: Work::Own(tests::run),
    },
    Stage {
        name: "timers",
        what: "timers in a process: fixed seeds, fresh seeds, 64 threads, and nothing to do",
        lane: Lane::Alone,
        work: Work::Calls(|| {
            vec![
                sim("timers --seeds 100 --operations 50000 --first-seed 1"),
                sim("timers --seeds 100 --operations 50000 --first-seed fresh"),
                sim("stress --threads 64 --seconds 4"),
                sim("idle --seconds 4"),
            ]
        }),
    },
    Stage {
        name: "postgres",
        what: "the store in a PostgreSQL: every property of a store; connections cut at every byte",
        lane: Lane::Database,
        work: Work::Proof(&proofs::POSTGRES),
    },
    Stage {
        name: "database_full",
        what: "a PostgreSQL without room under the program: sets are refused, and it goes on by itself",
        lane: Lane::Database,
        work: Work::Proof(&proofs::DATABASE_FULL),
    },
    Stage {
        name: "nodes",
        what: "three nodes on a PostgreSQL, under load and four troubles of eighteen; the sentences of the verbs",
        lane: Lane::Nodes,
        work: Work::Proof(&proofs::NODES),
    },
    Stage {
        name: "january",
        what: "a month of departures through the real server, killed ten times",
        lane: Lane::Server,
        work: Work::Proof(&proofs::JANUARY),
    },
    Stage {
        name: "kill",
        what: "200 kills of the real server under load",
        lane: Lane::Server,
        work: Work::Proof(&proofs::KILL),
    },
    Stage {
        name: "crashes",
        what: "60 kills in a row, and deliveries that end the server: no other timer is dead",
        lane: Lane::Server,
        work: Work::Proof(&proofs::CRASHES),
    },
    Stage {
        name: "workers",
        what: "three workers that fetch timers and the server are killed: no timer is lost, or leased to two",
        lane: Lane::Nodes,
        work: Work::Proof(&proofs::WORKERS),
    },
    Stage {
        name: "power",
        what: "40 cuts of its power under load; a disk that ignores syncs is found",
        lane: Lane::Server,
        work: Work::Proof(&proofs::POWER),
    },
    Stage {
        name: "faults",
        what: "its calls to the system fail, its disk is full, its disk turns read-only",
        lane: Lane::Server,
        work: Work::Proof(&proofs::FAULTS),
    },
    Stage {
        name: "damage",
        what: "bits of its files are flipped while it delivers",
        lane: Lane::Server,
        work: Work::Proof(&proofs::DAMAGE),
    },
    Stage {
        name: "api",
        what: "schemathesis asks for everything in the document of the API, in due form and not: 10 times each",
        lane: Lane::Server,
        work: Work::Proof(&proofs::API),
    },
    Stage {
        name: "clients",
        what: "the clients in Rust, TypeScript and Python say the sentences of the verbs while the server is killed",
        lane: Lane::Nodes,
        work: Work::Proof(&proofs::CLIENTS),
    },
    Stage {
        name: "signatures",
        what: "readers that others wrote, in Python and on Node, take the signatures and the events of its deliveries",
        lane: Lane::Server,
        work: Work::Proof(&proofs::SIGNATURES),
    },
    Stage {
        name: "stores",
        what: "calls that fail, unknown bytes, copies of two times, mistakes that must be found, a real disk beside",
        lane: Lane::Computing,
        work: Work::Calls(|| {
            vec![
                sim("calls --store tables --seeds 0"),
                sim("calls --no-scripts --seeds 300 --first-seed fresh"),
                sim("bytes --seeds 500 --first-seed fresh"),
                sim("rot --seeds 200 --first-seed fresh"),
                sim("shards --seeds 300 --first-seed fresh"),
                sim("shards --store postgres --seeds 200 --first-seed 1"),
                sim("nodes --seeds 200 --first-seed 1"),
                sim("flows --seeds 100 --first-seed fresh"),
                sim("leases --seeds 200 --first-seed fresh"),
                sim("receipts --seeds 200 --first-seed fresh"),
                sim("audit --seeds 200 --first-seed fresh"),
                sim("jobs --seeds 100 --first-seed fresh"),
                sim("loans --seeds 100 --first-seed fresh"),
                sim("gathers --seeds 100 --first-seed fresh"),
                sim("streams --seeds 100 --first-seed fresh"),
                sim("copies --mixes 50 --seed fresh"),
                sim("sabotage --only 8 --first-seed fresh"),
                sim("histories --seeds 100 --first-seed fresh"),
            ]
        }),
    },
    Stage {
        name: "sim",
        what: "fixed and fresh seeds of the simulation",
        lane: Lane::Computing,
        work: Work::Calls(|| vec![sim("seeds 1 300"), sim("seeds fresh 100")]),
    },
    Stage {
        name: "examples",
        what: "every example runs",
        lane: Lane::Computing,
        work: Work::Own(examples),
    },
    Stage {
        name: "doc",
        what: "the documents build without a warning",
        lane: Lane::Computing,
        work: Work::Calls(|| {
            let mut doc = cargo("doc --workspace --no-deps --all-features");
            doc.environment = Some(("RUSTDOCFLAGS", "-D warnings"));
            vec![Call::Cargo(doc)]
        }),
    },
    Stage {
        name: "ages",
        what: "a day at full load and a hundred years under the simulated clock",
        lane: Lane::Computing,
        work: Work::Calls(|| vec![sim("ages")]),
    },
    Stage {
        name: "instructions",
        what: "no operation of the wheels takes 5 % more instructions than stored",
        lane: Lane::Computing,
        work: Work::Own(instructions::compare),
    },
    Stage {
        name: "model",
        what: "the wheels agree with a sorted map over 5e7 operations",
        lane: Lane::Computing,
        work: Work::Calls(|| vec![Call::built("examples/model", "--ops 5e7")]),
    },
    Stage {
        name: "year",
        what: "a year of departures under the simulated clock",
        lane: Lane::Computing,
        work: Work::Calls(|| vec![sim("year examples-data/flights-2013.csv.gz")]),
    },
    Stage {
        name: "pages",
        what: "the pages for the operator in a browser: figures, widths, themes, axe-core; pictures in target/pages",
        lane: Lane::Alone,
        work: Work::Proof(&proofs::PAGES),
    },
    Stage {
        name: "soak",
        what: "half of its peak for a while; everything is drained to zero",
        lane: Lane::Alone,
        work: Work::Proof(&proofs::SOAK),
    },
    Stage {
        name: "clock",
        what: "its wall clock is set, and it is stopped and continued",
        lane: Lane::Alone,
        work: Work::Proof(&proofs::CLOCK),
    },
];

/// The stages with what each is for.
pub(crate) fn list() {
    for stage in &STAGES {
        println!("  {:<12} {}", stage.name, stage.what);
    }
}

/// Runs the stages named, or all. None begins once one has failed.
pub(crate) fn check(names: &[&str]) -> ExitCode {
    if let Some(unknown) = names
        .iter()
        .find(|name| !STAGES.iter().any(|s| s.name == **name))
    {
        eprintln!("no stage is called {unknown}; see cargo xtask");
        return ExitCode::from(2);
    }
    let wanted = |stage: &&Stage| names.is_empty() || names.contains(&stage.name);
    let stages: Vec<&Stage> = STAGES.iter().filter(wanted).collect();
    let report = Report::default();
    let start = now();
    for group in stages.chunk_by(|one, next| one.lane != Lane::Alone && next.lane != Lane::Alone) {
        let of = |lane| group.iter().copied().filter(move |it| it.lane == lane);
        let lanes = Lane::BESIDE.into_iter();
        let lanes: Vec<Lane> = lanes.filter(|lane| of(*lane).next().is_some()).collect();
        if lanes.len() < 2 {
            report.run_all(group.iter().copied(), false);
            continue;
        }
        // What is built for stages that are not run would be minutes for nothing.
        if report.failures.load(Ordering::SeqCst) == 0 {
            let building = programs::stage();
            if !matches!(building, Outcome::Passed) {
                report.end("build", start, building);
            }
        }
        std::thread::scope(|scope| {
            for lane in lanes {
                let (report, stages) = (&report, of(lane));
                scope.spawn(move || report.run_all(stages, true));
            }
        });
    }
    println!("\n=== the gate, {} s", start.elapsed().as_secs());
    for line in report.lines.into_inner().unwrap_or_default() {
        println!("{line}");
    }
    ExitCode::from(u8::from(report.failures.into_inner() > 0))
}

/// What came of the stages so far.
#[derive(Default)]
struct Report {
    lines: Mutex<Vec<String>>,
    failures: AtomicUsize,
}

impl Report {
    /// Runs one after the other; what they print comes in one piece each if others run beside.
    fn run_all<'a>(&self, stages: impl Iterator<Item = &'a Stage>, beside: bool) {
        for stage in stages {
            if self.failures.load(Ordering::SeqCst) > 0 {
                self.add(stage.name, "not run: an earlier stage failed");
                continue;
            }
            println!("\n=== {}: {}", stage.name, stage.what);
            let start = now();
            let outcome = stage.run(beside);
            self.end(stage.name, start, outcome);
        }
    }

    fn end(&self, name: &str, start: Instant, outcome: Outcome) {
        let took = start.elapsed().as_secs();
        let failed = match &outcome {
            Outcome::Passed => false,
            Outcome::Failed(_) => true,
            Outcome::NotRun(_) => is_ci(),
        };
        self.failures
            .fetch_add(usize::from(failed), Ordering::SeqCst);
        self.add(
            name,
            &match outcome {
                Outcome::Passed => format!("passed in {took} s"),
                Outcome::Failed(why) => format!("FAILED in {took} s: {why}"),
                Outcome::NotRun(why) => format!("NOT RUN: {why}"),
            },
        );
    }

    fn add(&self, name: &str, verdict: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(format!("  {name:<12} {verdict}"));
    }
}

impl Stage {
    fn run(&self, beside: bool) -> Outcome {
        match self.work {
            Work::Own(run) => run(),
            Work::Proof(proof) => proof.stage(beside),
            Work::Calls(calls) => {
                let calls = calls();
                let needs_build = calls.iter().any(|call| matches!(call, Call::Built(..)));
                if needs_build && let failed @ Outcome::Failed(_) = programs::stage() {
                    return failed;
                }
                let failed = calls.iter().find(|call| !call.run(beside));
                failed.map_or(Outcome::Passed, |call| Outcome::Failed(call.line()))
            }
        }
    }
}

impl Call {
    fn cargo(arguments: &str) -> Self {
        Self::Cargo(cargo(arguments))
    }

    fn built(program: &str, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned);
        Self::Built(program.to_owned(), arguments.collect())
    }

    fn line(&self) -> String {
        match self {
            Self::Cargo(cargo) => cargo.to_string(),
            Self::Built(program, arguments) => format!("{program} {}", arguments.join(" ")),
        }
    }

    /// Those beside it wait for the clock and for each other, and have a processor when they need it.
    fn command(&self, beside: bool) -> Command {
        let command = match self {
            Self::Cargo(cargo) => cargo.command(),
            Self::Built(program, arguments) => {
                let mut command = Command::new(target().join("debug").join(program));
                command.args(arguments);
                command
            }
        };
        if beside { behind(&command) } else { command }
    }

    /// Whether it succeeded.
    fn run(&self, beside: bool) -> bool {
        let line = self.line();
        match status(&mut self.command(beside), &line, beside) {
            Ok(status) => status.success(),
            Err(error) => {
                eprintln!("{line} does not start: {error}");
                false
            }
        }
    }
}

/// The same command at a lower priority.
fn behind(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.arg("-n10")
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

/// Runs a command. Its output is shown as it comes, or at its end if others run beside.
pub(crate) fn status(command: &mut Command, line: &str, beside: bool) -> io::Result<ExitStatus> {
    if !beside {
        println!("$ {line}");
        return command.status();
    }
    let output = command.output()?;
    let said = [output.stdout, output.stderr].concat();
    println!("$ {line}\n{}", String::from_utf8_lossy(&said).trim_end());
    Ok(output.status)
}

/// Runs every example of every crate, some at a time: most wait more than they reckon. Those
/// that are commands of a stage are left to it.
fn examples() -> Outcome {
    const AT_A_TIME: usize = 4;
    if let failed @ Outcome::Failed(_) = programs::stage() {
        return failed;
    }
    let sources = files(Path::new("crates"))
        .into_iter()
        .flat_map(|package| files(&package.join("examples")));
    let calls: Vec<Call> = sources
        .filter(|source| source.extension() == Some(&OsString::from("rs")))
        .map(|source| stem(&source))
        .filter(|name| !["model", "operations", "tour"].contains(&&**name))
        .map(|name| Call::built(&format!("examples/{name}"), ""))
        .collect();
    beside(AT_A_TIME, &calls, |call| call.run(true), Call::line)
}

/// Runs `jobs` in their order, so many at a time. The ones that fail are named.
pub(crate) fn beside<T: Sync>(
    at_a_time: usize,
    jobs: &[T],
    run: impl Fn(&T) -> bool + Sync,
    name: impl Fn(&T) -> String + Sync,
) -> Outcome {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !run(job) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push(name(job));
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_default().as_slice() {
        [] => Outcome::Passed,
        failed => Outcome::Failed(failed.join(", ")),
    }
}

/// The simulator as the gate's build made it.
fn sim(arguments: &str) -> Call {
    Call::built("sim", arguments)
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a stage took is for people"
)]
fn now() -> Instant {
    Instant::now()
}
