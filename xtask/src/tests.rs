//! The test programs of the workspace, a few at a time.
//!
//! `cargo test` runs one program after the other, and most programs wait more than they reckon.
//! Here every program runs as `cargo test` runs it: in the directory of its package, whole. The doc
//! tests run beside the programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Outcome, cargo, gate};

/// How many programs run at a time.
const AT_A_TIME: usize = 3;

/// The programs that take longest begin first. A name that is missing here costs time alone.
const LONGEST: [&str; 5] = ["it", "bench", "hosts", "loom", "patterns"];

/// One program with tests.
struct Program {
    /// The name of its target.
    name: String,
    executable: PathBuf,
    /// The directory of its package.
    package: PathBuf,
}

enum Job {
    Documents,
    Program(Program),
}

/// Runs all tests and doc tests, of what was built before.
pub(crate) fn run() -> Outcome {
    let programs = match programs() {
        Ok(programs) => programs,
        Err(why) => return Outcome::Failed(why),
    };
    let documents = std::iter::once(Job::Documents);
    let jobs: Vec<Job> = documents
        .chain(programs.into_iter().map(Job::Program))
        .collect();
    gate::beside(AT_A_TIME, &jobs, Job::run, Job::name)
}

/// The programs that cargo would run, those that take longest first.
fn programs() -> Result<Vec<Program>, String> {
    let mut command =
        cargo("test --workspace --all-features --no-run --message-format json").command();
    let built = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !built.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&built.stdout).lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        programs.extend(Program::of(&message));
    }
    if programs.is_empty() {
        return Err("cargo names no test program".to_owned());
    }
    programs.sort_by_key(|program| {
        let place = LONGEST.iter().position(|name| *name == program.name);
        place.unwrap_or(LONGEST.len())
    });
    Ok(programs)
}

impl Program {
    /// The test program that cargo speaks of in a message, if it speaks of one.
    fn of(message: &serde_json::Value) -> Option<Self> {
        let is_test = message.pointer("/profile/test")?.as_bool()?;
        let executable = message.get("executable")?.as_str()?;
        let manifest = Path::new(message.get("manifest_path")?.as_str()?);
        is_test.then_some(Self {
            name: message.pointer("/target/name")?.as_str()?.to_owned(),
            executable: executable.into(),
            package: manifest.parent()?.to_owned(),
        })
    }
}

impl Job {
    fn name(&self) -> String {
        match self {
            Self::Documents => "the doc tests".to_owned(),
            Self::Program(program) => {
                let package = program.package.file_name().unwrap_or_default();
                format!("{} of {}", program.name, package.to_string_lossy())
            }
        }
    }

    fn run(&self) -> bool {
        let mut command = match self {
            Self::Documents => cargo("test --workspace --all-features --doc").command(),
            Self::Program(program) => {
                let mut command = Command::new(&program.executable);
                command
                    .current_dir(&program.package)
                    .env("CARGO_MANIFEST_DIR", &program.package);
                command
            }
        };
        match command.output() {
            Ok(output) => {
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8_lossy(&said);
                println!("=== tests: {}\n{}", self.name(), said.trim_end());
                output.status.success()
            }
            Err(error) => {
                println!("=== tests: {} do not start: {error}", self.name());
                false
            }
        }
    }
}
