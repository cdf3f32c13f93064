//! The results of a run: every single sample, and the data needed to understand it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::check::{Order, Verdict};
use crate::competitor::Name;
use crate::machine::Machine;
use crate::patterns::Patterns;
use crate::statistics::Summary;
use crate::threaded::Threaded;
use crate::workload::{Figures, Workload};

/// How the allocator gets its memory from the system.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pages {
    /// As the system is set up.
    Default,
    /// The C library asks for huge pages wherever it maps memory.
    Huge,
}

impl Pages {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Default => "default pages",
            Self::Huge => "huge pages",
        }
    }
}

/// One measurement that was to be made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) pages: Pages,
    pub(crate) workload: Workload,
    pub(crate) timers: u64,
    pub(crate) competitor: Name,
}

/// How one measurement went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample<C = Cell> {
    #[serde(flatten)]
    pub(crate) cell: C,
    pub(crate) round: u64,
    pub(crate) outcome: Outcome,
}

/// What came of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Figures(Figures),
    /// It was stopped after so many seconds.
    OverSeconds(u64),
    Failed(String),
}

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) command: String,
    pub(crate) machine: Machine,
    /// What reading the clock twice cost, in nanoseconds.
    pub(crate) clock_ns: u64,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) samples: Vec<Sample>,
    /// The part on the real clock.
    #[serde(default)]
    pub(crate) threaded: Threaded,
    /// The part about what is built on timers.
    #[serde(default)]
    pub(crate) patterns: Patterns,
}

impl Results {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result of `bench run`", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())
    }

    /// The settings of pages that were measured.
    pub(crate) fn pages(&self) -> Vec<Pages> {
        let mut pages: Vec<Pages> = self.samples.iter().map(|s| s.cell.pages).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    pub(crate) fn order_of(&self, name: Name) -> Option<Order> {
        let of_name = |verdict: &&Verdict| verdict.competitor == name;
        self.verdicts.iter().find(of_name)?.order
    }

    /// What `figure` of `workload` came to, for every competitor that was to deliver it.
    pub(crate) fn rows(
        &self,
        pages: Pages,
        workload: Workload,
        timers: u64,
        figure: &str,
    ) -> BTreeMap<Name, Entry> {
        let mut samples: BTreeMap<Name, Vec<&Outcome>> = BTreeMap::new();
        for sample in &self.samples {
            let cell = sample.cell;
            if (cell.pages, cell.workload, cell.timers) == (pages, workload, timers) {
                samples
                    .entry(cell.competitor)
                    .or_default()
                    .push(&sample.outcome);
            }
        }
        samples
            .into_iter()
            .filter_map(|(name, outcomes)| Some((name, Entry::of(&outcomes, figure)?)))
            .collect()
    }

    /// The sizes at which a workload was measured.
    pub(crate) fn sizes(&self, pages: Pages, workload: Workload) -> Vec<u64> {
        let cells = self.samples.iter().map(|sample| sample.cell);
        let mut sizes: Vec<u64> = cells
            .filter(|cell| (cell.pages, cell.workload) == (pages, workload))
            .map(|cell| cell.timers)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// What a table shows of one competitor.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Entry {
    Measured(Summary),
    OverSeconds(u64),
    Failed,
}

impl Entry {
    /// `None` if this figure is none of the competitor's.
    pub(crate) fn of(outcomes: &[&Outcome], figure: &str) -> Option<Self> {
        let mut values = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Figures(figures) => values.extend(figures.get(figure)),
                Outcome::OverSeconds(seconds) => return Some(Self::OverSeconds(*seconds)),
                Outcome::Failed(_) => return Some(Self::Failed),
            }
        }
        Summary::of(&values).map(Self::Measured)
    }

    pub(crate) fn median(&self) -> Option<f64> {
        match self {
            Self::Measured(summary) => Some(summary.median),
            Self::OverSeconds(_) | Self::Failed => None,
        }
    }
}

/// A small result for tests, read from the text that `bench run` would have written.
#[cfg(test)]
pub(crate) fn fixture() -> Results {
    serde_json::from_str(include_str!("../tests/fixture.json")).unwrap()
}
