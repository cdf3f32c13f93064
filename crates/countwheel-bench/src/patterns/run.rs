//! Runs the measurements of patterns, each in a process of its own.

use super::name::Name;
use super::results::{Cell, Patterns};
use super::workload::{Extent, Workload};
use crate::cell::{Entrant as _, Loaded as _};
use crate::child;
use crate::choice::Word as _;
use crate::plan;
use crate::results::Outcome;
use crate::run::{none_failed, rounds};

/// What is to be measured.
pub(crate) type Plan = plan::Plan<Workload>;

/// Measures; `save` keeps what there is after each workload. Whether everybody did what
/// was to be done.
pub(crate) fn run(
    plan: &Plan,
    mut save: impl FnMut(&Patterns) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut found = Patterns::default();
    for &workload in &plan.workloads {
        for load in workload.loads(&plan.threads, plan.short) {
            rounds(
                &format!("{} {load} {}", workload.word(), workload.unit()),
                plan.cells(workload, load, &plan.peers),
                plan.rounds(workload),
                |cell| measure(cell, plan.deadline_seconds),
                &mut found.samples,
            )?;
            save(&found)?;
        }
    }
    for grid in super::grids(&found) {
        println!("\n{}", grid.text());
    }
    Ok(none_failed(&found.samples))
}

/// Runs a little of every workload with every peer, and reports each failure loudly: each workload
/// checks its own result. Returns whether all went well.
pub(crate) fn check_all(peers: &[Name], deadline_seconds: u64) -> anyhow::Result<bool> {
    let mut went_well = true;
    for &peer in peers {
        let workloads = Workload::all().iter().copied();
        for workload in workloads.filter(|&workload| peer.is_in(workload)) {
            let cell = Cell {
                workload,
                load: workload.loads(&[1], true)[0],
                short: true,
                peer,
            };
            let failure = match measure(cell, deadline_seconds)? {
                Outcome::Figures(_) => None,
                Outcome::OverSeconds(seconds) => Some(format!("no end after {seconds} s")),
                Outcome::Failed(why) => Some(why),
            };
            let (label, word) = (peer.label(), workload.word());
            match failure {
                None => println!("{label:<42} correct in {word}"),
                Some(why) => {
                    went_well = false;
                    println!("FAILED THE CHECK: {label} in {word}: {why}");
                }
            }
        }
    }
    Ok(went_well)
}

fn measure(cell: Cell, deadline_seconds: u64) -> anyhow::Result<Outcome> {
    let command = child::on_the_real_clock("one-pattern", cell)?;
    child::outcome_of(command, deadline_seconds)
}

/// The other side: measures and prints one line.
pub(crate) fn measure_here(cell: Cell) -> anyhow::Result<()> {
    let extent = Extent::of(cell.short);
    let figures = cell.workload.measure(cell.peer, cell.load, extent)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
