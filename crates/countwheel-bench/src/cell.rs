//! One measurement on the real clock: the workload, the load and the peer.

use std::collections::BTreeSet;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::results::{Entry, Outcome, Sample};

/// Who takes part, as tables show it.
pub(crate) trait Entrant: ValueEnum + Copy + Ord + 'static {
    /// The name in tables.
    fn label(self) -> &'static str;

    fn is_ours(self) -> bool;

    /// The name in tables in Markdown: ours stand out.
    fn emphasised(self) -> String {
        let label = self.label();
        if self.is_ours() {
            format!("**{label}**")
        } else {
            label.to_owned()
        }
    }
}

/// A workload, which is measured under one load or several.
pub(crate) trait Loaded: ValueEnum + Copy + Ord + 'static {
    /// Who may take part.
    type Peer: Entrant;

    /// How a load is called.
    fn unit(self) -> &'static str;

    /// How many threads, timers, connections or entries there are, one after the other.
    fn loads(self, threads: &[u64], short: bool) -> Vec<u64>;

    /// How many rounds there are unless the command line says otherwise.
    fn rounds(self, short: bool) -> u64;

    /// Whether there is anything to measure.
    fn suits(self, peer: Self::Peer, load: u64) -> bool;
}

/// One measurement that was to be made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Cell<W, N> {
    pub(crate) workload: W,
    /// How many threads, timers, connections, entries.
    pub(crate) load: u64,
    /// Whether less was done than the workload asks for.
    #[serde(default)]
    pub(crate) short: bool,
    pub(crate) peer: N,
}

/// What came of one measurement.
pub(crate) type Measured<W, N> = Sample<Cell<W, N>>;

/// What `figure` came to in a cell, if it was to be measured.
pub(crate) fn entry<W: Loaded, N: Entrant>(
    samples: &[Measured<W, N>],
    cell: Cell<W, N>,
    figure: &str,
) -> Option<Entry> {
    let samples = samples.iter().filter(|sample| sample.cell == cell);
    let outcomes: Vec<&Outcome> = samples.map(|sample| &sample.outcome).collect();
    Entry::of(&outcomes, figure)
}

/// The loads under which a workload was measured, in the order of their size.
pub(crate) fn loads<W: Loaded, N: Entrant>(
    samples: &[Measured<W, N>],
    workload: W,
    short: bool,
) -> Vec<u64> {
    let cells = samples.iter().map(|sample| sample.cell);
    let loads: BTreeSet<u64> = cells
        .filter(|cell| (cell.workload, cell.short) == (workload, short))
        .map(|cell| cell.load)
        .collect();
    loads.into_iter().collect()
}
