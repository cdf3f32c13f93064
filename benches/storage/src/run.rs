//! Runs the measurements, each in a process of its own, in rounds whose order changes.

use std::path::{Path, PathBuf};

use anyhow::ensure;

use crate::child;
use crate::machine::Machine;
use crate::ours;
use crate::peer::{Name, Skill};
use crate::results::{Kind, NotRun, Outcome, Results, Sample};
use crate::stopwatch::Stopwatch;
use crate::{syncs, system};

/// What is to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) peers: Vec<Name>,
    pub(crate) batches: Vec<usize>,
    pub(crate) sizes: Vec<u64>,
    /// How many timers there are before nine in ten are removed.
    pub(crate) removed: Vec<u64>,
    pub(crate) rounds: u64,
    pub(crate) seconds: f64,
    pub(crate) near: u64,
    pub(crate) quick: bool,
    /// Where the stores are made, each in a directory of its own that is removed afterwards.
    pub(crate) directory: PathBuf,
    pub(crate) deadline_seconds: u64,
    pub(crate) out: Option<PathBuf>,
}

/// Bytes on the disk for each timer, at the most: B-trees that were filled in random order.
const DISK_BYTES_PER_TIMER: u64 = 1_000;
/// And beside those: logs, journals, and what raw files take.
const DISK_BYTES_BESIDE: u64 = 6 << 30;

/// More timers than these are loaded and measured once: a round of them takes an hour.
const USUAL: u64 = 2_000_000;

/// Measures, prints and writes. Whether all went well.
pub(crate) fn run(plan: &Plan) -> anyhow::Result<bool> {
    std::fs::create_dir_all(&plan.directory)?;
    let machine = Machine::describe(&plan.directory);
    ensure!(
        !machine.file_system.starts_with("tmpfs") && !machine.file_system.starts_with("ramfs"),
        "{} is in memory, where no sync means anything: name another with --directory",
        plan.directory.display()
    );
    let largest = plan
        .sizes
        .iter()
        .chain(&plan.removed)
        .max()
        .copied()
        .unwrap_or(0);
    let needed = DISK_BYTES_BESIDE + largest * DISK_BYTES_PER_TIMER;
    let free = system::free_bytes(&plan.directory)?;
    ensure!(
        free > needed || plan.quick,
        "{} has {} GB free, {} GB are needed",
        plan.directory.display(),
        free >> 30,
        needed >> 30
    );
    let mut results = Results {
        commands: vec![command_line()],
        machine,
        ours: vec![ours::Kind::Log.describe().to_owned()],
        seconds: plan.seconds,
        near: plan.near,
        quick: plan.quick,
        ..Results::default()
    };
    let counted = match syncs::missing() {
        None => true,
        Some(why) => {
            println!("NOT RUN: the check of the syncs: {why}");
            false
        }
    };
    let (mut peers, mut went_well) = (Vec::new(), true);
    for &peer in &plan.peers {
        match peer.missing() {
            None => {
                if counted && let Err(why) = check_syncs(peer, plan, &mut results) {
                    let why = format!("{why:#}");
                    println!("NOT RUN: {}: {why}", peer.label());
                    results.not_run.push(NotRun { peer, why });
                    went_well = false;
                    continue;
                }
                peers.push(peer);
            }
            Some(why) => {
                println!("NOT RUN: {}: {why}", peer.label());
                results.not_run.push(NotRun { peer, why });
            }
        }
    }
    let inserts = plan.batches.iter().map(|&batch| Kind::Insert { batch });
    let lives = plan.sizes.iter().map(|&live| Kind::Life { live });
    let removed = plan.removed.iter().map(|&live| Kind::Removed { live });
    for kind in inserts.chain(lives).chain(removed) {
        plan.rounds_of(kind, &peers, &mut results)?;
    }
    for sample in &results.samples {
        if let Outcome::Failed(why) = &sample.outcome {
            println!("FAILED: {} {:?}: {why}", sample.peer.label(), sample.kind);
            went_well = false;
        }
    }
    // A person may do without one; a machine that checks may not.
    let all_there = counted && results.not_run.is_empty();
    Ok(went_well && (all_there || std::env::var_os("CI").is_none()))
}

/// Whether it syncs each commit.
fn check_syncs(peer: Name, plan: &Plan, results: &mut Results) -> anyhow::Result<()> {
    let syncs = syncs::count(peer, &plan.directory)?;
    println!(
        "{:<40} {} commits of 16, {} syncs",
        peer.label(),
        syncs.commits,
        syncs.syncs
    );
    results.syncs.push(syncs);
    ensure!(
        syncs.are_enough(),
        "REFUSED: it does not sync each commit: {} syncs for {}",
        syncs.syncs,
        syncs.commits
    );
    Ok(())
}

/// The command of this run, as a person would give it; where files are is that person's.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args().skip(1);
    let mut line = "bench-storage".to_owned();
    while let Some(word) = words.next() {
        if ["--out", "--directory"].contains(&word.as_str()) {
            words.next();
        } else {
            line.push(' ');
            line.push_str(&word);
        }
    }
    line
}

impl Plan {
    fn rounds_of(&self, kind: Kind, peers: &[Name], results: &mut Results) -> anyhow::Result<()> {
        let skill = match kind {
            Kind::Insert { .. } => Skill::Insert,
            Kind::Life { .. } => Skill::Steady,
            Kind::Removed { .. } => Skill::Scan,
        };
        let mut peers: Vec<Name> = peers.iter().copied().filter(|p| p.can(skill)).collect();
        let mut given_up = Vec::new();
        let rounds = match kind {
            Kind::Life { live } | Kind::Removed { live } if live > USUAL => self.rounds.min(1),
            _ => self.rounds,
        };
        for round in 0..rounds {
            for &peer in &peers {
                if given_up.contains(&peer) {
                    continue;
                }
                eprint!("{kind:?}, round {}: {}", round + 1, peer.word());
                let watch = Stopwatch::start();
                let outcome = self.measure(kind, peer)?;
                eprintln!(" ({:.1} s){}", watch.seconds(), hint(&outcome));
                if !matches!(outcome, Outcome::Figures(_)) {
                    given_up.push(peer);
                }
                results.samples.push(Sample {
                    peer,
                    kind,
                    round,
                    outcome,
                });
                // Written after each, so that a run that is stopped leaves what it has.
                if let Some(out) = &self.out {
                    results.write(out)?;
                }
            }
            // Nobody is always the first, nor always behind the same.
            let step = 5.min(peers.len());
            peers.rotate_left(step);
            if round % 2 == 1 {
                peers.reverse();
            }
        }
        Ok(())
    }

    fn measure(&self, kind: Kind, peer: Name) -> anyhow::Result<Outcome> {
        let place = tempfile::tempdir_in(&self.directory)?;
        match kind {
            Kind::Insert { batch } => {
                let arguments = self.arguments("one-insert", peer, &[("--batch", batch as u64)]);
                child::measure(&arguments, place.path(), self.deadline_seconds)
            }
            Kind::Life { live } => self.life(peer, live, place.path()),
            Kind::Removed { live } => {
                let arguments = self.arguments("one-removed", peer, &[("--live", live)]);
                child::measure(&arguments, place.path(), self.deadline_seconds)
            }
        }
    }

    fn life(&self, peer: Name, live: u64, directory: &Path) -> anyhow::Result<Outcome> {
        let sizes = [("--live", live), ("--near", self.near)];
        let arguments = self.arguments("one-life", peer, &sizes);
        let outcome = child::measure(&arguments, directory, self.deadline_seconds)?;
        let Outcome::Figures(mut figures) = outcome else {
            return Ok(outcome);
        };
        if peer.can(Skill::Reopen) {
            let writer = self.arguments("one-writer", peer, &[]);
            let written = child::kill_writer(
                &writer,
                directory,
                self.seconds.min(2.0),
                self.deadline_seconds,
            )?;
            let acknowledged = match written {
                Ok(acknowledged) => acknowledged,
                Err(why) => return Ok(Outcome::Failed(format!("before the kill: {why}"))),
            };
            let acknowledged = [("--acknowledged", acknowledged)];
            let reopen = self.arguments("one-reopen", peer, &acknowledged);
            match child::measure(&reopen, directory, self.deadline_seconds)? {
                Outcome::Figures(more) => figures.extend(more),
                other => return Ok(other),
            }
        }
        Ok(Outcome::Figures(figures))
    }

    fn arguments(&self, word: &str, peer: Name, numbers: &[(&str, u64)]) -> Vec<String> {
        let mut arguments = vec![word.to_owned(), "--peer".to_owned(), peer.word()];
        arguments.extend(["--seconds".to_owned(), self.seconds.to_string()]);
        for (name, number) in numbers {
            arguments.extend([(*name).to_owned(), number.to_string()]);
        }
        arguments
    }
}

/// A word on what came out, for who watches.
fn hint(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Figures(figures) => {
            let names = ["per_s", "far_per_s", "removed_per_s"];
            let main = names.iter().find_map(|name| figures.get(*name));
            main.map_or_else(String::new, |rate| format!(" {rate:.0}/s"))
        }
        Outcome::OverSeconds(_) => " STOPPED".to_owned(),
        Outcome::Failed(why) => format!(" FAILED: {why}"),
    }
}
