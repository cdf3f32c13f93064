//! The work of the peers, and the figures measured.

use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::name::Name;
use crate::cell::Loaded;
use crate::choice::Word as _;
use crate::workload::Figures;

/// The workloads by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Connections that are heard of now and then; who is silent for too long is noticed.
    P1,
    /// Requests with a deadline, all of them answered in time.
    P2,
    /// Requests with a deadline, of which one in a hundred is never answered.
    P2t,
    /// A map whose entries expire, read and written.
    P3,
    /// The same at rest: how large its entries are, and when expired ones are let go.
    P3m,
}

/// How much is to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Extent {
    /// After how long a silence P1 takes a connection for idle.
    pub(crate) limit: Duration,
    /// How often each connection is heard of in P1.
    pub(crate) period: Duration,
    /// How many requests each thread makes in P2.
    pub(crate) requests: u64,
    /// How long the map of P3 is used.
    pub(crate) span: Duration,
    /// How long an entry of the map lives.
    pub(crate) ttl: Duration,
    /// How many different keys there are in P3.
    pub(crate) keys: u32,
}

impl Extent {
    pub(crate) const FULL: Self = Self {
        limit: Duration::from_secs(10),
        period: Duration::from_secs(1),
        requests: 1_000_000,
        span: Duration::from_secs(4),
        ttl: Duration::from_secs(1),
        keys: 1_000_000,
    };
    pub(crate) const SHORT: Self = Self {
        limit: Duration::from_millis(500),
        period: Duration::from_millis(100),
        requests: 100_000,
        span: Duration::from_millis(500),
        ttl: Duration::from_millis(200),
        keys: 10_000,
    };

    pub(crate) fn of(short: bool) -> Self {
        if short { Self::SHORT } else { Self::FULL }
    }
}

impl Loaded for Workload {
    type Peer = Name;

    fn unit(self) -> &'static str {
        match self {
            Self::P1 => "connections",
            Self::P2 | Self::P2t | Self::P3 => "threads",
            Self::P3m => "entries",
        }
    }

    /// More threads than cores would show nothing but the system's scheduler.
    fn loads(self, threads: &[u64], short: bool) -> Vec<u64> {
        let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
        match self {
            Self::P1 | Self::P3m if short => vec![10_000],
            Self::P1 => vec![100_000, 1_000_000],
            Self::P2 | Self::P2t | Self::P3 => {
                threads.iter().copied().filter(|&n| n <= cores).collect()
            }
            Self::P3m => vec![1_000_000],
        }
    }

    fn rounds(self, short: bool) -> u64 {
        match self {
            Self::P2 | Self::P2t if !short => 3,
            Self::P3 if !short => 2,
            _ => 1,
        }
    }

    fn suits(self, peer: Name, _load: u64) -> bool {
        peer.is_in(self)
    }
}

impl Workload {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Measures once, in this process.
    pub(crate) fn measure(self, name: Name, load: u64, extent: Extent) -> anyhow::Result<Figures> {
        let takes_part = name.is_in(self);
        ensure!(takes_part, "{} is not in {}", name.word(), self.word());
        name.measure(self, load, extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Extent = Extent {
        limit: Duration::from_millis(800),
        period: Duration::from_millis(20),
        requests: 20_000,
        span: Duration::from_millis(50),
        ttl: Duration::from_millis(20),
        keys: 500,
    };

    #[test]
    fn everybody_does_what_is_to_be_done() {
        for &workload in Workload::all() {
            let load = if workload.unit() == "threads" { 2 } else { 500 };
            for &name in Name::all().iter().filter(|name| name.is_in(workload)) {
                let figures = workload.measure(name, load, TINY);
                let figures =
                    figures.unwrap_or_else(|error| panic!("{name:?} {workload:?}: {error:#}"));
                assert!(!figures.is_empty(), "{name:?} {workload:?}");
            }
        }
    }

    #[test]
    fn every_workload_has_ours_and_another() {
        use crate::cell::Entrant as _;
        for &workload in Workload::all() {
            let names = || Name::all().iter().filter(|name| name.is_in(workload));
            assert!(names().any(|name| name.is_ours()), "{workload:?}");
            assert!(names().any(|name| !name.is_ours()), "{workload:?}");
        }
    }
}
