//! The rows of the table.

mod growth;
mod history;
mod late;
mod merging;
mod nodes;
mod pinned;
mod prefetch;
mod rates;
mod trips;
mod wal;

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

use crate::{Bench, peers};

pub(crate) use pinned::pin;
pub(crate) use rates::{KEPT, full_rate};

/// What can be measured by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Row {
    /// Durable sets, beside the merged statement with and without its fence.
    Sets,
    /// Whole lives, beside the merged statements of one.
    Lives,
    /// Many shards in one statement, beside one statement a shard.
    Merging,
    /// A set that reads its names together, beside one that reads one at a time.
    Prefetch,
    /// What 1 ms more a round trip costs.
    Trips,
    /// How late timers fire.
    Late,
    /// The log that a life takes, and how many claims are heap-only.
    Wal,
    /// The rate and the pages of what is due under a pinned snapshot.
    Pinned,
    /// What tables full of done timers cost.
    History,
    /// How much larger tables and indexes get by lives.
    Growth,
    /// Two and four nodes, beside one.
    Nodes,
    /// The same where the attempts that a node runs at a time are the limit.
    Slots,
    /// Sets that go to the owner's own node, and through another.
    Forwarding,
    /// Sets and lives beside other job queues.
    Peers,
}

impl Row {
    pub(crate) const ALL: [Self; 14] = [
        Self::Sets,
        Self::Lives,
        Self::Merging,
        Self::Prefetch,
        Self::Trips,
        Self::Late,
        Self::Wal,
        Self::Pinned,
        Self::History,
        Self::Growth,
        Self::Nodes,
        Self::Slots,
        Self::Forwarding,
        Self::Peers,
    ];

    /// Whether it is measured in each round. The others take long, or have rounds of their own.
    pub(crate) fn is_of_rounds(self) -> bool {
        !matches!(
            self,
            Self::Pinned | Self::History | Self::Growth | Self::Peers
        )
    }

    pub(crate) fn measure(self, bench: &mut Bench) -> anyhow::Result<()> {
        match self {
            Self::Sets => rates::sets(bench),
            Self::Lives => rates::lives(bench),
            Self::Merging => merging::measure(bench),
            Self::Prefetch => prefetch::measure(bench),
            Self::Trips => trips::measure(bench),
            Self::Late => late::measure(bench),
            Self::Wal => wal::measure(bench),
            Self::Pinned => pinned::measure(bench),
            Self::History => history::measure(bench),
            Self::Growth => growth::measure(bench),
            Self::Nodes => nodes::shared(bench),
            Self::Slots => nodes::slots(bench),
            Self::Forwarding => nodes::forwarding(bench),
            Self::Peers => peers::measure(bench),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}
