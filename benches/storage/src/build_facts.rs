//! S8: what it takes to build each library.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::peer::Name;
use crate::stopwatch::Stopwatch;

/// What building with one library came to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct BuildFacts {
    pub(crate) peer: Name,
    /// A clean release build of this harness with this library, in seconds.
    pub(crate) seconds: f64,
    /// The stripped program.
    pub(crate) program_bytes: u64,
    /// Crates that it needs, those to build it included.
    pub(crate) crates: usize,
    /// The same without any library of others: what to take off.
    pub(crate) of_nothing: bool,
}

/// The feature of this crate for each library.
const FEATURES: [(Name, &str); 5] = [
    (Name::Redb, "redb"),
    (Name::Fjall, "fjall"),
    (Name::Rocksdb, "rocksdb"),
    (Name::Sqlite, "rusqlite"),
    (Name::Lmdb, "heed"),
];

/// Builds this harness once without any library, and once with each. Minutes.
pub(crate) fn measure() -> anyhow::Result<Vec<BuildFacts>> {
    let mut facts = vec![build(Name::CountwheelLog, "")?];
    for (peer, feature) in FEATURES {
        facts.push(build(peer, feature)?);
    }
    Ok(facts)
}

fn build(peer: Name, feature: &str) -> anyhow::Result<BuildFacts> {
    eprintln!(
        "building with {}",
        if feature.is_empty() {
            "nothing"
        } else {
            feature
        }
    );
    let target = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command
            .args(arguments)
            .args(["--no-default-features", "--features", feature])
            .current_dir(source)
            .env("CARGO_TARGET_DIR", target.path());
        command
    };
    let watch = Stopwatch::start();
    let status = cargo(&[
        "build",
        "--release",
        "--config",
        "profile.release.strip=true",
    ])
    .status();
    let seconds = watch.seconds();
    ensure!(status?.success(), "it does not build with {feature}");
    let program = target.path().join("release/bench-storage");
    let tree = cargo(&["tree", "--prefix", "none", "--edges", "normal,build"]).output()?;
    Ok(BuildFacts {
        peer,
        seconds,
        program_bytes: program.metadata().context("no program")?.len(),
        crates: count_crates(&String::from_utf8_lossy(&tree.stdout)),
        of_nothing: feature.is_empty(),
    })
}

/// Different crates in the output of `cargo tree`.
fn count_crates(tree: &str) -> usize {
    let mut crates: Vec<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect();
    crates.sort_unstable();
    crates.dedup();
    crates.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_is_needed_twice_counts_once() {
        let tree = "a v1.0.0\nb v2.0.0\nc v0.1.0 (proc-macro)\nb v2.0.0 (*)\n\n";
        assert_eq!(count_crates(tree), 3);
    }
}
