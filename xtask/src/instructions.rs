//! Counts the instructions of each operation of the wheels and compares them with those
//! that were stored. Times are noise on a shared machine; counts are not.

use std::collections::BTreeMap;
use std::process::Command;

use crate::{Outcome, cargo};

const BASELINE: &str = "crates/countwheel-core/instructions.txt";
const PROGRAM: &str = "release/examples/operations";

/// How often each operation is counted.
const COUNT: u32 = 10_000;

/// An operation may take this share more than was stored.
const TOLERANCE: f64 = 0.05;

const HEAD: &str = "\
# Instructions of one operation, as valgrind counts them: 20,000 timers pending, delays
# up to 60,000 ticks, the mean over 10,000 operations. The gate allows 5 % more.
# Written by `cargo xtask instructions`.
";

/// The stage: counts and compares.
pub(crate) fn compare() -> Outcome {
    let stored = std::fs::read_to_string(BASELINE).unwrap_or_default();
    let (Some(compiler), stored) = read(&stored) else {
        return Outcome::Failed(format!("{BASELINE} names no compiler"));
    };
    let this = this_compiler();
    if compiler != this {
        return Outcome::NotRun(format!(
            "the counts are those of {compiler}, this is {this}"
        ));
    }
    let counted = match count() {
        Ok(counted) => counted,
        Err(outcome) => return outcome,
    };
    let mut worse = Vec::new();
    println!("{:<26} {:>8} {:>8}  ratio", "operation", "stored", "now");
    for (operation, &now) in &counted {
        let Some(&then) = stored.get(operation) else {
            worse.push(format!("{operation} has no stored count"));
            continue;
        };
        // Below a few instructions a share says nothing.
        let ratio = (now + 1.0) / (then + 1.0);
        println!("{operation:<26} {then:>8.1} {now:>8.1}  {ratio:.3}");
        if ratio > 1.0 + TOLERANCE {
            worse.push(format!("{operation}: {then:.1} -> {now:.1}"));
        }
        if ratio < 1.0 - TOLERANCE {
            println!("  better than stored: cargo xtask instructions stores it");
        }
    }
    if let Some(lost) = stored.keys().find(|name| !counted.contains_key(*name)) {
        worse.push(format!("{lost} was not counted"));
    }
    match worse.as_slice() {
        [] => Outcome::Passed,
        worse => Outcome::Failed(format!("more instructions: {}", worse.join(", "))),
    }
}

/// The command: counts and stores.
pub(crate) fn store() -> Outcome {
    let counted = match count() {
        Ok(counted) => counted,
        Err(outcome) => return outcome,
    };
    let mut text = format!("{HEAD}compiler {}\n", this_compiler());
    for (operation, instructions) in counted {
        println!("{operation:<26} {instructions:>8.1}");
        text.push_str(&format!("{operation} {instructions:.1}\n"));
    }
    match std::fs::write(BASELINE, text) {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{BASELINE}: {error}")),
    }
}

/// The compiler and the counts of a stored baseline.
fn read(text: &str) -> (Option<String>, BTreeMap<String, f64>) {
    let mut compiler = None;
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.rsplit_once(' ') {
            Some(("compiler rustc", version)) => compiler = Some(format!("rustc {version}")),
            Some((operation, count)) => {
                counts.insert(operation.to_owned(), count.parse().unwrap_or(0.0));
            }
            None => {}
        }
    }
    (compiler, counts)
}

fn count() -> Result<BTreeMap<String, f64>, Outcome> {
    if !has_valgrind() {
        return Err(Outcome::NotRun("valgrind is not installed".into()));
    }
    if !cargo("build --profile bench -p countwheel-core --example operations").run() {
        return Err(Outcome::Failed("the example does not build".into()));
    }
    let program = program();
    let listed = Command::new(&program).output();
    let listed = listed.map_err(|error| Outcome::Failed(format!("{program}: {error}")))?;
    let mut counts = BTreeMap::new();
    for operation in String::from_utf8_lossy(&listed.stdout).lines() {
        let with = instructions(&program, operation, COUNT)?;
        let without = instructions(&program, operation, 0)?;
        let all = with.saturating_sub(without);
        #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
        counts.insert(operation.to_owned(), all as f64 / f64::from(COUNT));
    }
    Ok(counts)
}

/// Instructions of one run of the program.
fn instructions(program: &str, operation: &str, count: u32) -> Result<u64, Outcome> {
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=no"])
        .args(["--cachegrind-out-file=/dev/null", program])
        .args(operation.split(' '))
        .arg(count.to_string())
        .output();
    let report = output
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .map_err(|error| Outcome::Failed(format!("valgrind: {error}")))?;
    let line = report.lines().find(|line| line.contains("I   refs:"));
    let number: Option<String> = line
        .and_then(|line| line.rsplit(' ').next())
        .map(|number| number.chars().filter(char::is_ascii_digit).collect());
    let parsed = number.and_then(|number| number.parse().ok());
    parsed.ok_or_else(|| Outcome::Failed(format!("valgrind counted nothing:\n{report}")))
}

/// Whether valgrind is there, or can be installed.
fn has_valgrind() -> bool {
    let is_there = || {
        let version = Command::new("valgrind").arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    is_there() || (crate::install("valgrind") && is_there())
}

fn this_compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    words.join(" ")
}

fn program() -> String {
    crate::target().join(PROGRAM).display().to_string()
}
