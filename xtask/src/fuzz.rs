//! The fuzzer for the readers of files and for those of the service, which needs a nightly compiler and `cargo-fuzz`.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::target;

const TARGETS: [&str; 10] = [
    "segment",
    "table",
    "text",
    "record",
    "url",
    "json",
    "framing",
    "config",
    "cookie",
    "certificate",
];
/// For how many minutes a target runs if the command does not say.
const MINUTES: u64 = 10;
/// A file this small gives no reader a reason to ask for more at a time.
const ALLOCATION_MAX_MIB: &str = "-malloc_limit_mb=64";
const INPUT_SECONDS: &str = "-timeout=5";
/// As long as an input may be that is kept.
const INPUT_MAX_BYTES: &str = "-max_len=8192";

/// Runs each target for some minutes, or the one that is named, then makes its corpus smaller.
pub(crate) fn run(options: &[&str]) -> ExitCode {
    let (mut targets, mut minutes) = (TARGETS.to_vec(), MINUTES);
    for option in options.chunks(2) {
        match option {
            ["--minutes", number] if number.parse::<u64>().is_ok() => {
                minutes = number.parse().unwrap_or(MINUTES);
            }
            ["--target", name] if TARGETS.contains(name) => targets = vec![name],
            _ => {
                let names = TARGETS.join(", ");
                eprintln!(
                    "fuzz takes --minutes and a whole number, and --target and one of {names}"
                );
                return ExitCode::from(2);
            }
        }
    }
    if !answers(&["+nightly", "--version"]) {
        eprintln!("not run: no nightly compiler is installed (rustup toolchain install nightly)");
        return ExitCode::FAILURE;
    }
    if !answers(&["+nightly", "fuzz", "--version"]) {
        eprintln!("not run: cargo-fuzz is not installed (cargo install cargo-fuzz)");
        return ExitCode::FAILURE;
    }
    for name in targets {
        let seconds = format!("-max_total_time={}", minutes * 60);
        let words = format!("-dict=fuzz/dictionaries/{name}.txt");
        let limits = [ALLOCATION_MAX_MIB, INPUT_SECONDS, INPUT_MAX_BYTES];
        let mut found = vec![seconds.as_str(), "-print_final_stats=1"];
        if Path::new("fuzz/dictionaries")
            .join(name)
            .with_extension("txt")
            .exists()
        {
            found.push(&words);
        }
        if !fuzz("run", name, &[&limits[..], &found].concat()) {
            eprintln!("{name}: what failed is in fuzz/artifacts/{name}");
            return ExitCode::FAILURE;
        }
        if !fuzz("cmin", name, &limits) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn answers(arguments: &[&str]) -> bool {
    let output = cargo().args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// With the compiler that `+nightly` names, and not the one that built this.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

fn fuzz(what: &str, name: &str, limits: &[&str]) -> bool {
    let mut command = cargo();
    command.args(["+nightly", "fuzz", what, "--release", "--debug-assertions"]);
    // No code here is unsafe, so there is nothing for a sanitizer.
    command.args(["--sanitizer", "none", "--fuzz-dir", "fuzz"]);
    command.arg("--target-dir").arg(target().join("fuzz"));
    command.arg(name).arg("--").args(limits);
    println!("$ cargo fuzz {what} {name} -- {}", limits.join(" "));
    command.status().is_ok_and(|status| status.success())
}
