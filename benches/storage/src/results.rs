//! What a run leaves behind: every single measurement, and what is needed to understand it.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::build_facts::BuildFacts;
use crate::machine::Machine;
use crate::peer::Name;
use crate::pending::Pending;
use crate::statistics::median;
use crate::syncs::Syncs;
use crate::workload::Figures;

/// What was to be measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// S1, with so many records in a batch.
    Insert { batch: usize },
    /// S2 to S6, with so many timers.
    Life { live: u64 },
    /// S7, with so many timers before nine in ten are removed.
    Removed { live: u64 },
}

/// How one measurement went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) peer: Name,
    pub(crate) kind: Kind,
    pub(crate) round: u64,
    pub(crate) outcome: Outcome,
}

/// What came of a measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    Figures(Figures),
    /// It was stopped after so many seconds.
    OverSeconds(u64),
    /// It failed, or its row was refused.
    Failed(String),
}

/// A peer that could not be measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct NotRun {
    pub(crate) peer: Name,
    pub(crate) why: String,
}

/// A whole run.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// The commands; more than one if runs were put together.
    pub(crate) commands: Vec<String>,
    pub(crate) machine: Machine,
    /// What ours was.
    pub(crate) ours: Vec<String>,
    /// Seconds of each part.
    pub(crate) seconds: f64,
    pub(crate) near: u64,
    pub(crate) quick: bool,
    pub(crate) not_run: Vec<NotRun>,
    /// Whether everybody syncs.
    #[serde(default)]
    pub(crate) syncs: Vec<Syncs>,
    pub(crate) samples: Vec<Sample>,
    #[serde(default)]
    pub(crate) pending: Vec<Pending>,
    #[serde(default)]
    pub(crate) builds: Vec<BuildFacts>,
}

impl Results {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result of this program", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())
    }

    /// Puts runs together that come from the same machine. Shares and ratios stay those of a
    /// run, since rounds do not get mixed: each run keeps rounds of its own.
    pub(crate) fn together(runs: Vec<Self>) -> anyhow::Result<Self> {
        let mut all: Option<Self> = None;
        for mut run in runs {
            let Some(all) = &mut all else {
                all = Some(run);
                continue;
            };
            ensure!(
                run.machine.is_same(&all.machine),
                "the runs are from different machines"
            );
            let rounds = all.samples.iter().map(|sample| sample.round + 1).max();
            for sample in &mut run.samples {
                sample.round += rounds.unwrap_or(0);
            }
            all.commands.append(&mut run.commands);
            all.syncs.append(&mut run.syncs);
            all.samples.append(&mut run.samples);
            all.pending.append(&mut run.pending);
            all.builds.append(&mut run.builds);
            all.quick |= run.quick;
            all.near = all.near.max(run.near);
            all.seconds = all.seconds.max(run.seconds);
            for ours in run.ours {
                if !all.ours.contains(&ours) {
                    all.ours.push(ours);
                }
            }
            for missing in run.not_run {
                if !all.not_run.contains(&missing) {
                    all.not_run.push(missing);
                }
            }
        }
        Ok(all.unwrap_or_default())
    }

    /// What was measured of `kind`, by peers in their order.
    pub(crate) fn peers(&self, kind: Kind) -> Vec<Name> {
        let mut peers: Vec<Name> = self.of(kind).map(|sample| sample.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// All kinds that were measured.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self.samples.iter().map(|sample| sample.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.kind == kind)
    }

    /// The median of a figure over the rounds.
    pub(crate) fn figure(&self, kind: Kind, peer: Name, figure: &str) -> Option<f64> {
        let of_peer = self.of(kind).filter(|sample| sample.peer == peer);
        let values: Vec<f64> = of_peer.filter_map(|s| s.figure(figure)).collect();
        median(&values)
    }

    /// The median over the rounds of a figure's share of what the limit came to in the same
    /// round.
    pub(crate) fn share(&self, kind: Kind, peer: Name, figure: &str) -> Option<f64> {
        let of_peer = self.of(kind).filter(|sample| sample.peer == peer);
        let shares: Vec<f64> = of_peer
            .filter_map(|sample| {
                let limit = |other: &&Sample| {
                    other.peer == Name::RawPreallocated && other.round == sample.round
                };
                let limit = self.of(kind).find(limit)?.figure(figure)?;
                Some(sample.figure(figure)? / limit)
            })
            .collect();
        median(&shares)
    }

    /// Why there is no figure.
    pub(crate) fn failure(&self, kind: Kind, peer: Name) -> Option<String> {
        let mut of_peer = self.of(kind).filter(|sample| sample.peer == peer);
        of_peer.find_map(|sample| match &sample.outcome {
            Outcome::Figures(_) => None,
            Outcome::OverSeconds(seconds) => Some(format!("over {seconds} s")),
            Outcome::Failed(why) => Some(format!("failed: {why}")),
        })
    }
}

impl Sample {
    fn figure(&self, name: &str) -> Option<f64> {
        match &self.outcome {
            Outcome::Figures(figures) => figures.get(name).copied(),
            Outcome::OverSeconds(_) | Outcome::Failed(_) => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(peer: Name, kind: Kind, round: u64, per_s: f64) -> Sample {
        Sample {
            peer,
            kind,
            round,
            outcome: Outcome::Figures(Figures::from([("per_s".to_owned(), per_s)])),
        }
    }

    const KIND: Kind = Kind::Insert { batch: 16 };

    #[test]
    fn a_share_is_of_the_limit_of_the_same_round() {
        let samples = vec![
            sample(Name::RawPreallocated, KIND, 0, 100.0),
            sample(Name::Redb, KIND, 0, 50.0),
            sample(Name::RawPreallocated, KIND, 1, 1_000.0),
            sample(Name::Redb, KIND, 1, 300.0),
            sample(Name::RawPreallocated, KIND, 2, 10.0),
            sample(Name::Redb, KIND, 2, 4.0),
        ];
        let results = Results {
            samples,
            ..Results::default()
        };
        assert_eq!(results.share(KIND, Name::Redb, "per_s"), Some(0.4));
        assert_eq!(results.figure(KIND, Name::Redb, "per_s"), Some(50.0));
        assert_eq!(results.share(KIND, Name::Lmdb, "per_s"), None);
    }

    #[test]
    fn runs_keep_rounds_of_their_own() {
        let run = |limit, redb| Results {
            samples: vec![
                sample(Name::RawPreallocated, KIND, 0, limit),
                sample(Name::Redb, KIND, 0, redb),
            ],
            ..Results::default()
        };
        let all = Results::together(vec![run(100.0, 50.0), run(10.0, 5.0)]).unwrap();
        assert_eq!(all.share(KIND, Name::Redb, "per_s"), Some(0.5));
        let mut elsewhere = run(1.0, 1.0);
        elsewhere.machine.cpu = "another".to_owned();
        assert!(Results::together(vec![run(1.0, 1.0), elsewhere]).is_err());
    }
}
