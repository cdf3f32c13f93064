//! Runs the measurements, each in a process of its own, in rounds that interleave.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::check::{Verdict, check};
use crate::child::measure_in_child;
use crate::competitor::Name;
use crate::latency::Latencies;
use crate::machine::Machine;
use crate::results::{Cell, Outcome, Pages, Results, Sample};
use crate::stopwatch::{Stopwatch, clock_cost};
use crate::table::Table;
use crate::workload::{USUAL, Workload};

/// What is to be measured.
pub(crate) struct Plan {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) competitors: Vec<Name>,
    pub(crate) timers: Vec<u64>,
    /// The number of rounds; if none is given, five, and three above a million timers.
    pub(crate) rounds: Option<u64>,
    pub(crate) pages: Vec<Pages>,
    pub(crate) deadline_seconds: u64,
    pub(crate) out: Option<PathBuf>,
}

const ROUNDS: u64 = 5;
const ROUNDS_OF_MANY: u64 = 3;

/// How thorough the check before the measurements is.
const CHECK_SEEDS: u64 = 20;
const CHECK_OPERATIONS: u64 = 20_000;

/// Checks, measures, prints and writes. Whether all went well.
pub(crate) fn run(plan: &Plan) -> anyhow::Result<bool> {
    let verdicts = check_all(&plan.competitors);
    let passed = |name: &Name| {
        let failed = |v: &Verdict| v.competitor == *name && v.failure.is_some();
        !verdicts.iter().any(failed)
    };
    let competitors: Vec<Name> = plan.competitors.iter().copied().filter(passed).collect();

    let mut results = Results {
        command: format!(
            "bench {}",
            std::env::args().skip(1).collect::<Vec<_>>().join(" ")
        ),
        machine: Machine::describe(),
        clock_ns: clock_cost(),
        verdicts,
        samples: Vec::new(),
    };
    for &workload in &plan.workloads {
        for timers in workload.sizes(&plan.timers) {
            plan.measure(workload, timers, &competitors, &mut results)?;
            // Written after each workload, so that a run that is stopped leaves what it has.
            if let Some(path) = &plan.out {
                results.write(path)?;
            }
        }
    }
    for table in Table::all(&results) {
        println!("\n{}", table.text());
    }
    for table in Latencies::all(&results) {
        println!("\n{}", table.text());
    }
    let failed = |sample: &Sample| matches!(sample.outcome, Outcome::Failed(_));
    let failures = results.samples.iter().filter(|sample| failed(sample));
    for sample in failures {
        if let Outcome::Failed(why) = &sample.outcome {
            println!("FAILED: {:?}: {why}", sample.cell);
        }
    }
    Ok(competitors.len() == plan.competitors.len() && !results.samples.iter().any(failed))
}

impl Plan {
    fn measure(
        &self,
        workload: Workload,
        timers: u64,
        competitors: &[Name],
        results: &mut Results,
    ) -> anyhow::Result<()> {
        let suits = |name: &Name| workload.suits(*name);
        let names = competitors.iter().copied().filter(suits);
        let cells = |pages| {
            let cell = move |competitor| Cell {
                pages,
                workload,
                timers,
                competitor,
            };
            names.clone().map(cell)
        };
        let mut cells: Vec<Cell> = self.pages.iter().flat_map(|&pages| cells(pages)).collect();
        let usual = if timers > USUAL {
            ROUNDS_OF_MANY
        } else {
            ROUNDS
        };
        let mut given_up = BTreeSet::new();
        for round in 0..self.rounds.unwrap_or(usual) {
            eprint!("{} {timers} timers, round {}", workload.word(), round + 1);
            let watch = Stopwatch::start();
            for &cell in &cells {
                if given_up.contains(&cell) {
                    continue;
                }
                let outcome = measure_in_child(cell, self.deadline_seconds)?;
                if !matches!(outcome, Outcome::Figures(_)) {
                    given_up.insert(cell);
                }
                results.samples.push(Sample {
                    cell,
                    round,
                    outcome,
                });
            }
            eprintln!(" ({:.0} s)", watch.nanoseconds_per(1_000_000_000));
            // Nobody is always the first.
            let step = 3.min(cells.len());
            cells.rotate_left(step);
        }
        Ok(())
    }
}

/// Checks the competitors and says loudly who fails.
pub(crate) fn check_all(competitors: &[Name]) -> Vec<Verdict> {
    let verdict = |&name: &Name| {
        let verdict = check(name, CHECK_SEEDS, CHECK_OPERATIONS);
        match (&verdict.failure, verdict.order) {
            (Some(why), _) => println!("FAILED THE CHECK: {}: {why}", name.label()),
            (None, order) => println!(
                "{:<40} correct; order: {}",
                name.label(),
                order.map_or("not visible", |order| order.label())
            ),
        }
        verdict
    };
    competitors.iter().map(verdict).collect()
}
