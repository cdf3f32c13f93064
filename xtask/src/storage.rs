//! The storage benchmarks: a crate of its own beside the workspace, since its peers are built
//! from C and C++.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::answers;

const CRATE: &str = "benches/storage";
const PAGE: &str = "docs/benchmarks-storage.md";

/// What is needed, by whom, and what Debian calls it.
struct Need {
    package: &'static str,
    /// Who is left out without it: features of the crate.
    features: &'static [&'static str],
    is_there: fn() -> bool,
}

const FEATURES: [&str; 5] = ["redb", "fjall", "rocksdb", "rusqlite", "heed"];

const NEEDS: [Need; 5] = [
    Need {
        package: "g++",
        features: &["rocksdb", "rusqlite", "heed"],
        is_there: || answers("c++", "--version"),
    },
    Need {
        package: "librocksdb-dev",
        features: &["rocksdb"],
        is_there: || Path::new("/usr/include/rocksdb/c.h").exists(),
    },
    Need {
        package: "libclang-dev",
        features: &["rocksdb"],
        is_there: || is_installed("libclang-dev"),
    },
    // The program itself says who is not run without these.
    Need {
        package: "beanstalkd",
        features: &[],
        is_there: || answers("beanstalkd", "-v"),
    },
    Need {
        package: "strace",
        features: &[],
        is_there: || answers("strace", "-V"),
    },
];

/// Obeys `cargo xtask bench storage`, `pending`, `build-facts`, `storage-report` and
/// `storage-test`; `None` if it is none of those.
pub(crate) fn bench(words: &[&str]) -> Option<ExitCode> {
    let went_well = match words {
        ["storage", rest @ ..] => storage(rest),
        ["pending", rest @ ..] => pending(rest),
        ["build-facts"] => run("build-facts", &["--out", &path_of("builds.json")]),
        ["storage-report"] => report(),
        ["storage-test"] => test(),
        _ => return None,
    };
    Some(ExitCode::from(u8::from(!went_well)))
}

fn storage(rest: &[&str]) -> bool {
    let is_quick = rest.contains(&"--quick");
    let out = path_of(if is_quick {
        "storage-quick.json"
    } else {
        "storage.json"
    });
    let mut arguments = absolute(rest);
    if !rest.contains(&"--out") {
        arguments.extend(["--out".to_owned(), out.clone()]);
    }
    let went_well = run("run", &with_directory(&mut arguments));
    if !Path::new(&out).exists() {
        return went_well;
    }
    // The figures of a quick run are not for the documents.
    let written = if is_quick {
        write_page(&[out], &path_of("benchmarks-storage.md"))
    } else {
        report()
    };
    went_well && written
}

fn pending(rest: &[&str]) -> bool {
    let mut arguments = absolute(rest);
    if !rest.contains(&"--out") {
        let name: String = rest
            .iter()
            .flat_map(|word| word.chars())
            .filter(char::is_ascii_alphanumeric)
            .collect();
        let out = path_of(&format!("pending-{name}.json"));
        arguments.extend(["--out".to_owned(), out]);
    }
    run("pending", &with_directory(&mut arguments))
}

/// Writes the page from all that was measured.
fn report() -> bool {
    let entries = std::fs::read_dir(target()).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| {
            let is_ours = ["pending-", "storage", "builds"]
                .iter()
                .any(|kind| name.starts_with(kind));
            is_ours && name.ends_with(".json") && name != "storage-quick.json"
        })
        .map(|name| path_of(&name))
        .collect();
    found.sort();
    write_page(&found, &root().join(PAGE).display().to_string())
}

fn write_page(results: &[String], page: &str) -> bool {
    let mut arguments: Vec<&str> = results.iter().map(String::as_str).collect();
    arguments.extend(["--out", page]);
    run("report", &arguments)
}

/// Its tests and its lints, without the peers that are built from C and C++.
fn test() -> bool {
    let few = ["--no-default-features", "--features", "redb,fjall"];
    let mut lint = cargo();
    lint.args(["clippy", "--all-targets"]).args(few);
    lint.args(["--", "-D", "warnings"]);
    let mut test = cargo();
    test.arg("test").args(few);
    succeeds(&mut lint) && succeeds(&mut test)
}

/// Builds the program with whoever can be had, and runs it.
fn run(word: &str, arguments: &[&str]) -> bool {
    let mut command = cargo();
    command.args(["run", "--profile", "bench", "--no-default-features"]);
    command.args(["--features", &features().join(",")]);
    command.arg("--").arg(word).args(arguments);
    succeeds(&mut command)
}

/// Installs what is missing where it may, and says loudly what is missing still.
fn features() -> Vec<&'static str> {
    let mut features = FEATURES.to_vec();
    for need in &NEEDS {
        if (need.is_there)() || (install(need.package) && (need.is_there)()) {
            continue;
        }
        println!("NOT RUN: {} is not installed, nor can it be", need.package);
        features.retain(|feature| !need.features.contains(feature));
    }
    features
}

/// Only root can, and a machine without Debian's packages has no such command.
fn install(package: &str) -> bool {
    println!("installing {package}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        let output = command.args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    apt(&["update"]) && apt(&["install", "--yes", "--no-install-recommends", package])
}

fn is_installed(package: &str) -> bool {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Status}", package])
        .output();
    output.is_ok_and(|output| output.stdout.ends_with(b" installed"))
}

/// Cargo in the crate's own directory, where its configuration is.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(root().join(CRATE));
    command
}

fn succeeds(command: &mut Command) -> bool {
    println!("$ {command:?}");
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cargo does not start: {error}");
            false
        }
    }
}

/// Files and directories that are named are meant from here, not from the crate's directory.
fn absolute(words: &[&str]) -> Vec<String> {
    let mut is_path = false;
    words
        .iter()
        .map(|word| {
            let path = std::mem::replace(&mut is_path, ["--out", "--directory"].contains(word));
            if path {
                root().join(word).display().to_string()
            } else {
                (*word).to_owned()
            }
        })
        .collect()
}

/// Where the stores are made, unless another place is named.
fn with_directory(arguments: &mut Vec<String>) -> Vec<&str> {
    if !arguments.iter().any(|word| word == "--directory") {
        arguments.extend(["--directory".to_owned(), path_of("storage-data")]);
    }
    arguments.iter().map(String::as_str).collect()
}

fn path_of(name: &str) -> String {
    target().join(name).display().to_string()
}

fn target() -> PathBuf {
    let target = root().join(crate::target());
    std::fs::create_dir_all(&target).unwrap_or_default();
    target
}

fn root() -> PathBuf {
    // The gate has gone there.
    std::env::current_dir().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_named_are_meant_from_the_root() {
        let words = absolute(&["--quick", "--out", "x.json", "--peer", "lmdb"]);
        let out = root().join("x.json").display().to_string();
        assert_eq!(words, ["--quick", "--out", &out, "--peer", "lmdb"]);
        assert_eq!(absolute(&["--out", "/tmp/y"])[1], "/tmp/y");
    }

    #[test]
    fn a_directory_that_is_named_is_taken() {
        let mut arguments = vec!["--directory".to_owned(), "/d".to_owned()];
        assert_eq!(with_directory(&mut arguments), ["--directory", "/d"]);
        assert_eq!(with_directory(&mut Vec::new()).len(), 2);
    }
}
