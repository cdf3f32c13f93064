//! Runs the measurements, each in a process of its own, in rounds that interleave.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;

use crate::cell::Entrant as _;
use crate::check::{Verdict, check};
use crate::child::measure_in_child;
use crate::choice::Word as _;
use crate::competitor::Name;
use crate::latency::Latencies;
use crate::machine::Machine;
use crate::patterns::{self, Patterns};
use crate::results::{Cell, Outcome, Pages, Results, Sample};
use crate::stopwatch::{Stopwatch, clock_cost};
use crate::table::Table;
use crate::threaded;
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
    pub(crate) threaded: threaded::Plan,
    pub(crate) patterns: patterns::Plan,
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
        threaded: threaded::Threaded::default(),
        patterns: Patterns::default(),
    };
    for &workload in &plan.workloads {
        for timers in workload.sizes(&plan.timers) {
            plan.measure(workload, timers, &competitors, &mut results)?;
            // Written after each workload, so that a run that is stopped leaves what it has.
            plan.save(&results)?;
        }
    }
    let threads_went_well = threaded::run(&plan.threaded, |found| {
        results.threaded = found.clone();
        plan.save(&results)
    })?;
    let patterns_went_well = patterns::run(&plan.patterns, |found| {
        results.patterns = found.clone();
        plan.save(&results)
    })?;
    for table in Table::all(&results) {
        println!("\n{}", table.text());
    }
    for table in Latencies::all(&results) {
        println!("\n{}", table.text());
    }
    Ok(none_failed(&results.samples)
        && threads_went_well
        && patterns_went_well
        && competitors.len() == plan.competitors.len())
}

impl Plan {
    /// Whether there is anything to measure at all.
    pub(crate) fn is_empty(&self) -> bool {
        let some = |workload: &Workload| self.competitors.iter().any(|&name| workload.suits(name));
        !self.workloads.iter().any(some) && self.threaded.is_empty() && self.patterns.is_empty()
    }

    fn save(&self, results: &Results) -> anyhow::Result<()> {
        match &self.out {
            Some(path) => results.write(path),
            None => Ok(()),
        }
    }

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
        let cells: Vec<Cell> = self.pages.iter().flat_map(|&pages| cells(pages)).collect();
        let usual = if timers > USUAL {
            ROUNDS_OF_MANY
        } else {
            ROUNDS
        };
        rounds(
            &format!("{} {timers} timers", workload.word()),
            cells,
            self.rounds.unwrap_or(usual),
            |cell| measure_in_child(cell, self.deadline_seconds),
            &mut results.samples,
        )
    }
}

/// Measures all cells in turn, several times. Who fails once is not asked again.
pub(crate) fn rounds<C: Copy + Ord>(
    title: &str,
    mut cells: Vec<C>,
    times: u64,
    measure: impl Fn(C) -> anyhow::Result<Outcome>,
    samples: &mut Vec<Sample<C>>,
) -> anyhow::Result<()> {
    let mut given_up = BTreeSet::new();
    for round in 0..times {
        eprint!("{title}, round {}", round + 1);
        let watch = Stopwatch::start();
        for &cell in &cells {
            if given_up.contains(&cell) {
                continue;
            }
            let outcome = measure(cell)?;
            if !matches!(outcome, Outcome::Figures(_)) {
                given_up.insert(cell);
            }
            samples.push(Sample {
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

/// Whether no measurement failed; says loudly which did.
pub(crate) fn none_failed<C: Debug>(samples: &[Sample<C>]) -> bool {
    let mut none = true;
    for sample in samples {
        if let Outcome::Failed(why) = &sample.outcome {
            none = false;
            println!("FAILED: {:?}: {why}", sample.cell);
        }
    }
    none
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
