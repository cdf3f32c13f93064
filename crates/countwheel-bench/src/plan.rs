//! The list of measurements on the real clock.

use crate::cell::{Cell, Loaded};

/// Which workloads, of whom, and how much.
pub(crate) struct Plan<W: Loaded> {
    pub(crate) workloads: Vec<W>,
    pub(crate) peers: Vec<W::Peer>,
    pub(crate) threads: Vec<u64>,
    /// If none is given, as many as each workload needs.
    pub(crate) rounds: Option<u64>,
    pub(crate) short: bool,
    pub(crate) deadline_seconds: u64,
}

impl<W: Loaded> Plan<W> {
    /// One measurement for each of the peers that takes part.
    pub(crate) fn cells(&self, workload: W, load: u64, peers: &[W::Peer]) -> Vec<Cell<W, W::Peer>> {
        let peers = peers.iter().copied();
        let cell = |peer| Cell {
            workload,
            load,
            short: self.short,
            peer,
        };
        peers
            .filter(|&peer| workload.suits(peer, load))
            .map(cell)
            .collect()
    }

    /// Whether there is anything to measure at all.
    pub(crate) fn is_empty(&self) -> bool {
        let mut some = self.workloads.iter().flat_map(|&workload| {
            let loads = workload.loads(&self.threads, self.short);
            loads
                .into_iter()
                .flat_map(move |load| self.cells(workload, load, &self.peers))
        });
        some.next().is_none()
    }

    /// How often each is measured.
    pub(crate) fn rounds(&self, workload: W) -> u64 {
        self.rounds.unwrap_or(workload.rounds(self.short))
    }
}
