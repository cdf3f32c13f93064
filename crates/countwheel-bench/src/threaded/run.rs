//! Runs the measurements with threads, each in a process of its own.

use std::thread;

use anyhow::Context as _;

use super::java::Java;
use super::peer::Name;
use super::results::{Cell, NotRun, Threaded, Verdict};
use super::workload::{Extent, Workload};
use crate::cell::{Entrant as _, Loaded as _};
use crate::child;
use crate::choice::Word as _;
use crate::plan;
use crate::results::{Outcome, Sample};
use crate::run::{none_failed, rounds};

/// What is to be measured.
pub(crate) type Plan = plan::Plan<Workload>;

/// Checks and measures; `save` keeps what there is after each workload. Whether everybody
/// passed the check; who did not is not measured.
pub(crate) fn run(
    plan: &Plan,
    mut save: impl FnMut(&Threaded) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut found = Threaded::default();
    let java = prepare(&plan.peers, &mut found)?;
    let is_there = |name: &Name| found.not_run.iter().all(|not_run| not_run.peer != *name);
    let peers: Vec<Name> = plan.peers.iter().copied().filter(is_there).collect();
    found.verdicts = check(&peers, java.as_ref(), plan.deadline_seconds)?;
    let passed = |name: &Name| {
        let failed = |v: &Verdict| v.peer == *name && v.failure.is_some();
        !found.verdicts.iter().any(failed)
    };
    let passed: Vec<Name> = peers.iter().copied().filter(passed).collect();

    for &workload in &plan.workloads {
        for load in workload.loads(&plan.threads, plan.short) {
            let cells = plan.cells(workload, load, &passed);
            let times = plan.rounds(workload);
            let title = format!("{} {load} {}", workload.word(), workload.unit());
            let measure = |cell: Cell| measure(cell, java.as_ref(), plan.deadline_seconds);
            if workload == Workload::W7 {
                // Who has nothing to do can do so beside the others.
                for round in 0..times {
                    eprintln!("{title}, all at once, round {}", round + 1);
                    found.samples.extend(at_once(&cells, round, measure)?);
                }
            } else {
                rounds(&title, cells, times, measure, &mut found.samples)?;
            }
            save(&found)?;
        }
    }
    for grid in super::grids(&found) {
        println!("\n{}", grid.text());
    }
    for NotRun { peer, why } in &found.not_run {
        println!("NOT RUN: {}: {why}", peer.label());
    }
    save(&found)?;
    Ok(none_failed(&found.samples) && passed.len() == peers.len())
}

fn at_once(
    cells: &[Cell],
    round: u64,
    measure: impl Fn(Cell) -> anyhow::Result<Outcome> + Sync,
) -> anyhow::Result<Vec<Sample<Cell>>> {
    thread::scope(|scope| {
        let measure = &measure;
        let start = |&cell| (cell, scope.spawn(move || measure(cell)));
        let started: Vec<_> = cells.iter().map(start).collect();
        let join = |(cell, thread): (Cell, thread::ScopedJoinHandle<'_, _>)| {
            let outcome = thread.join().ok().context("a measurement panicked")?;
            Ok(Sample {
                cell,
                round,
                outcome: outcome?,
            })
        };
        started.into_iter().map(join).collect()
    })
}

/// Makes the Java peers ready, and says loudly which are not to be had.
fn prepare(peers: &[Name], found: &mut Threaded) -> anyhow::Result<Option<Java>> {
    let java = Java::prepare(peers)?;
    if let Some(java) = &java {
        for (peer, why) in java.missing() {
            println!("NOT RUN: {}: {why}", peer.label());
            found.not_run.push(NotRun {
                peer: *peer,
                why: why.clone(),
            });
        }
        found.java = Some(java.version());
    }
    Ok(java)
}

/// Checks the peers, and says loudly who fails. Whether all went well.
pub(crate) fn check_all(peers: &[Name], deadline_seconds: u64) -> anyhow::Result<bool> {
    let mut found = Threaded::default();
    let java = prepare(peers, &mut found)?;
    let is_there = |name: &Name| found.not_run.iter().all(|not_run| not_run.peer != *name);
    let peers: Vec<Name> = peers.iter().copied().filter(is_there).collect();
    let verdicts = check(&peers, java.as_ref(), deadline_seconds)?;
    Ok(verdicts.iter().all(|verdict| verdict.failure.is_none()))
}

fn check(
    peers: &[Name],
    java: Option<&Java>,
    deadline_seconds: u64,
) -> anyhow::Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    for peer in peers.iter().copied().filter(|peer| peer.is_timer()) {
        let cell = Cell {
            workload: Workload::Exact,
            load: Workload::Exact.loads(&[], false)[0],
            short: false,
            peer,
        };
        let verdict = Verdict::of(peer, &measure(cell, java, deadline_seconds)?);
        match &verdict.failure {
            Some(why) => println!("FAILED THE CHECK: {}: {why}", peer.label()),
            None if verdict.early > 0 => println!(
                "{:<42} correct, but EARLY: {} of {} timers, by up to {:.0} µs",
                peer.label(),
                verdict.early,
                verdict.fired,
                -verdict.least
            ),
            None => println!("{:<42} correct; never early", peer.label()),
        }
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

fn measure(cell: Cell, java: Option<&Java>, deadline_seconds: u64) -> anyhow::Result<Outcome> {
    let command = match (cell.peer.program(), java) {
        (Some(program), Some(java)) => {
            let mut command = java.command(program);
            command.args(cell.workload.arguments(cell.load, Extent::of(cell.short)));
            command
        }
        _ => child::on_the_real_clock("one-threaded", cell)?,
    };
    child::outcome_of(command, deadline_seconds)
}

/// The other side: measures and prints one line.
pub(crate) fn measure_here(cell: Cell) -> anyhow::Result<()> {
    let extent = Extent::of(cell.short);
    let figures = cell.workload.measure(cell.peer, cell.load, extent)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
