//! The results of a run with threads.

use serde::{Deserialize, Serialize};

use super::peer::Name;
use super::workload::{Workload, judge};
use crate::cell::{self, Measured};
use crate::results::Outcome;

/// One measurement that was to be made.
pub(crate) type Cell = cell::Cell<Workload, Name>;

/// What the check found out about one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) peer: Name,
    /// What went wrong, if anything did.
    pub(crate) failure: Option<String>,
    /// How many timers fired, and how many of these too early.
    pub(crate) fired: u64,
    pub(crate) early: u64,
    /// The least lateness, in microseconds.
    pub(crate) least: f64,
}

impl Verdict {
    /// What the outcome of a check means.
    pub(crate) fn of(peer: Name, outcome: &Outcome) -> Self {
        let mut verdict = Self {
            peer,
            failure: None,
            fired: 0,
            early: 0,
            least: 0.0,
        };
        match outcome {
            Outcome::Figures(figures) => {
                let figure = |name: &str| figures.get(name).copied().unwrap_or_default();
                verdict.failure = judge(figures);
                verdict.fired = whole(figure("fired"));
                verdict.early = whole(figure("early"));
                verdict.least = figure("min");
            }
            Outcome::OverSeconds(seconds) => {
                verdict.failure = Some(format!("no end after {seconds} s"));
            }
            Outcome::Failed(why) => verdict.failure = Some(why.clone()),
        }
        verdict
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures that count are whole, positive and small"
)]
fn whole(figure: f64) -> u64 {
    figure as u64
}

/// A peer that could not run here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NotRun {
    pub(crate) peer: Name,
    pub(crate) why: String,
}

/// The part of a run that is on the real clock.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Threaded {
    /// Which Java it was, if any.
    pub(crate) java: Option<String>,
    pub(crate) not_run: Vec<NotRun>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) samples: Vec<Measured<Workload, Name>>,
}

impl Threaded {
    /// Adds what another run on the same machine has found.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.java = self.java.take().or_else(|| other.java.clone());
        self.samples.extend(other.samples.iter().cloned());
        for verdict in &other.verdicts {
            if self.verdicts.iter().all(|v| v.peer != verdict.peer) {
                self.verdicts.push(verdict.clone());
            }
        }
        for not_run in &other.not_run {
            if self.not_run.iter().all(|n| n.peer != not_run.peer) {
                self.not_run.push(not_run.clone());
            }
        }
    }
}
