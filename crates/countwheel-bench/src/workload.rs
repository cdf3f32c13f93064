//! The work of the competitors, and the figures measured.

mod calls;
mod churn;
mod expiry;
mod memory;
mod pairs;

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::competitor::{Competitor, Name, Task};

/// The workloads by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Schedule N timers and cancel them in random order, twice on the same structure.
    W1,
    /// Request timeouts: schedule one, cancel the one N older.
    W2,
    /// Expire N timers of uniform delays, tick by tick.
    W3u,
    /// Expire N timers of log-uniform delays in jumps of 2^20 ticks.
    W3h,
    /// Expire 1000 timers spread over 2^32 ticks in the same jumps.
    W3s,
    /// A million empty ticks.
    W3e,
    /// Memory for each pending timer.
    W6,
    /// The latency of single calls.
    Calls,
}

/// How many timers pend while ticks are empty or the line is sparse.
const FEW: u64 = 1000;

/// The number of timers that most tables are about.
pub(crate) const USUAL: u64 = 1_000_000;

impl Workload {
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The sizes to measure if the command line names `asked`.
    pub(crate) fn sizes(self, asked: &[u64]) -> Vec<u64> {
        let usual = || {
            let greatest = asked.iter().copied().max().unwrap_or(USUAL);
            vec![greatest.min(USUAL)]
        };
        match self {
            Self::W1 | Self::W2 | Self::W3u => asked.to_vec(),
            Self::W3h | Self::Calls => usual(),
            Self::W3s | Self::W3e => vec![FEW],
            Self::W6 => {
                let large: Vec<u64> = asked.iter().copied().filter(|&n| n >= USUAL).collect();
                if large.is_empty() { usual() } else { large }
            }
        }
    }

    /// Whether there is anything to measure: no row repeats another one.
    pub(crate) fn suits(self, name: Name) -> bool {
        match name {
            Name::CountwheelBatches => !matches!(self, Self::W2 | Self::W6),
            Name::HhwtRaw => !matches!(self, Self::W2),
            _ => true,
        }
    }

    /// Measures once, in this process.
    pub(crate) fn measure(self, name: Name, timers: u64) -> anyhow::Result<Figures> {
        name.dispatch(Measurement {
            workload: self,
            timers,
        })
    }
}

/// What one measurement found, by the name of the figure.
pub(crate) type Figures = BTreeMap<String, f64>;

struct Measurement {
    workload: Workload,
    timers: u64,
}

impl Task for Measurement {
    type Output = anyhow::Result<Figures>;

    fn run<C: Competitor>(self) -> Self::Output {
        let timers = self.timers;
        match self.workload {
            Workload::W1 => Ok(churn::measure::<C>(timers)),
            Workload::W2 => pairs::measure::<C>(timers),
            Workload::W3u => expiry::tick_by_tick::<C>(timers),
            Workload::W3h => expiry::in_jumps::<C>(timers),
            Workload::W3s => expiry::sparse::<C>(timers),
            Workload::W3e => expiry::empty_ticks::<C>(timers),
            Workload::W6 => memory::measure::<C>(timers),
            Workload::Calls => calls::measure::<C>(timers),
        }
    }
}

pub(crate) fn figures<const N: usize>(pairs: [(&str, f64); N]) -> Figures {
    pairs
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

/// Room for handles whose pages have been touched, so that storing them costs the same for all.
pub(crate) fn room<H>(timers: u64) -> Vec<Option<H>> {
    (0..timers).map(|_| None).collect()
}

/// The end of a measurement: gives all handles back and leaves the memory to the process.
fn finish<C: Competitor>(mut competitor: C, handles: Vec<Option<C::Handle>>) {
    for handle in handles.into_iter().flatten() {
        competitor.release(handle);
    }
    std::mem::forget(competitor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_competitor_gets_through_every_workload() {
        for &name in Name::all() {
            for &workload in Workload::all() {
                // A million empty ticks take seconds without optimisation.
                if !workload.suits(name) || workload == Workload::W3e {
                    continue;
                }
                let figures = workload.measure(name, 2_000);
                let figures =
                    figures.unwrap_or_else(|error| panic!("{name:?} {workload:?}: {error}"));
                assert!(!figures.is_empty(), "{name:?} {workload:?}");
            }
        }
    }
}
