//! Whether everybody really syncs: counted by strace, one call a commit at least.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::child::complaint;
use crate::peer::{Name, stop_daemon_of};
use crate::workload::Figures;

/// Calls that return when data is on the disk. LMDB ends a commit with a write through a
/// descriptor that syncs by itself, after one of these.
const CALLS: &str = "fsync,fdatasync,msync,sync_file_range";
const BATCH: usize = 16;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Syncs {
    pub(crate) peer: Name,
    /// Of 16 records each; of as many callers, in an engine.
    pub(crate) commits: u64,
    pub(crate) syncs: u64,
}

impl Syncs {
    /// Whether there can have been one for each commit.
    pub(crate) fn are_enough(self) -> bool {
        self.syncs >= self.commits
    }
}

/// Whether calls can be counted here.
pub(crate) fn missing() -> Option<&'static str> {
    let version = Command::new("strace").arg("-V").output();
    let works = version.is_ok_and(|output| output.status.success());
    (!works).then_some("strace is not installed, so nobody checked that everybody syncs")
}

/// Inserts next to nothing into a candidate, and then a little, and counts the difference: an
/// opening syncs, too.
pub(crate) fn count(peer: Name, directory: &Path) -> anyhow::Result<Syncs> {
    let less = count_of(peer, directory, "0.000001")?;
    let more = count_of(peer, directory, "0.2")?;
    Ok(Syncs {
        peer,
        commits: more.commits.saturating_sub(less.commits),
        syncs: more.syncs.saturating_sub(less.syncs),
    })
}

fn count_of(peer: Name, directory: &Path, seconds: &str) -> anyhow::Result<Syncs> {
    let place = tempfile::tempdir_in(directory)?;
    let counts = tempfile::NamedTempFile::new_in(directory)?;
    let program = std::env::current_exe()?;
    let output = Command::new("strace")
        .args(["-f", "-c", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(counts.path())
        .arg(program)
        .args(["one-insert", "--peer", &peer.word()])
        .args(["--batch", &BATCH.to_string(), "--seconds", seconds])
        .arg("--directory")
        .arg(place.path())
        .stdin(Stdio::null())
        .output()?;
    stop_daemon_of(place.path());
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = complaint(&output.stderr);
    ensure!(output.status.success(), "{complaint}");
    let figures: Figures = serde_json::from_str(&text).context(complaint)?;
    let of = |name: &str| figures.get(name).copied().unwrap_or(0.0);
    let records = of("records") + of("warm_up_records");
    let calls = parse(&std::fs::read_to_string(counts.path())?);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small count"
    )]
    let commits = (records / BATCH as f64) as u64;
    Ok(Syncs {
        peer,
        commits,
        syncs: calls.values().sum(),
    })
}

/// The number of calls, by name, in the table that `strace -c` writes.
fn parse(table: &str) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(count), Some(name)) = (fields.get(3), fields.last()) else {
            continue;
        };
        if let Ok(count) = count.parse()
            && *name != "total"
        {
            calls.insert((*name).to_owned(), count);
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_strace_is_read() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                      98.01    0.012345          12       101           fdatasync\n\
                       1.99    0.000345          17         2         1 fsync\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                     100.00    0.012690          12       103         1 total\n";
        let calls = parse(table);
        assert_eq!(calls.len(), 2);
        assert_eq!((calls["fdatasync"], calls["fsync"]), (101, 2));
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_commit_without_a_sync_is_noticed() {
        let syncs = |commits, syncs| Syncs {
            peer: Name::Lmdb,
            commits,
            syncs,
        };
        assert!(syncs(10, 11).are_enough() && !syncs(10, 9).are_enough());
    }
}
