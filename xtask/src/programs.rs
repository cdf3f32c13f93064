//! What the gate's one build makes: the test programs, by name, run without cargo.
//!
//! Cargo looks at every file of the workspace before it runs anything, one call at a time. A stage that runs
//! its program itself neither waits for that nor for a stage that compiles.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::{Outcome, cargo};

/// One program with tests.
pub(crate) struct Program {
    /// The name of its target.
    pub(crate) name: String,
    executable: PathBuf,
    /// The directory of its package.
    package: PathBuf,
}

/// Builds what the stages run, once, and says which test programs there are, as cargo would run them.
pub(crate) fn build() -> Result<&'static [Program], String> {
    static DONE: OnceLock<Result<Vec<Program>, String>> = OnceLock::new();
    match DONE.get_or_init(programs) {
        Ok(programs) => Ok(programs),
        Err(why) => Err(why.clone()),
    }
}

/// The stage: the build, and no more.
pub(crate) fn stage() -> Outcome {
    build().map_or_else(Outcome::Failed, |_| Outcome::Passed)
}

fn programs() -> Result<Vec<Program>, String> {
    // With the tests, and with all features, as the tests are: cargo would else choose other
    // features for the dependencies and build them all again.
    let cargo =
        cargo("test --workspace --all-features --no-run --message-format json-render-diagnostics");
    println!("$ {cargo}");
    let built = cargo
        .command()
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !built.status.success() {
        return Err("it does not build".to_owned());
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

    /// With the package it is of.
    pub(crate) fn full_name(&self) -> String {
        let package = self.package.file_name().unwrap_or_default();
        format!("{} of {}", self.name, package.to_string_lossy())
    }

    /// Runs it as cargo does: in the directory of its package.
    pub(crate) fn command(&self) -> Command {
        self.behind(&[])
    }

    /// The same behind the words of another program, which runs it.
    pub(crate) fn behind(&self, words: &[String]) -> Command {
        let mut command = match words {
            [] => Command::new(&self.executable),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&self.executable);
                command
            }
        };
        command
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package);
        command
    }

    /// The ignored tests of one of its modules, named in full: as a filter, a module's name also finds
    /// modules of that name within others.
    pub(crate) fn ignored(&self, module: &str) -> Result<Vec<String>, String> {
        let listed = self
            .command()
            .args(["--list", "--ignored", "--format", "terse"])
            .output()
            .map_err(|error| format!("{}: {error}", self.executable.display()))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        let is_of = |name: &&str| {
            name.strip_prefix(module)
                .is_some_and(|it| it.starts_with("::"))
        };
        Ok(names.filter(is_of).map(str::to_owned).collect())
    }
}
