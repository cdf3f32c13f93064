//! The figures of the first page, as plain data, and the one function that takes them. All of them
//! are counts that the scheduler and its store keep.

use std::time::Duration;

use countwheel_durable::store::{Durability, Totals};
use countwheel_durable::{Health, OverdueCount, QueueOverview, StateKind, Stats, Timers, Trouble};
use countwheel_time::Timestamp;

use crate::api::problem::Problem;

/// How many queues are shown, those most in trouble.
const QUEUES_SHOWN: usize = 50;

/// What the first page says, as of one moment.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// When they were taken.
    pub(super) now: Timestamp,
    pub(super) health: Health,
    /// What the store or the scheduler goes on without.
    pub(super) troubles: Vec<Trouble>,
    /// What a loss of the machine with the store would cost, if the store says it.
    pub(super) durability: Option<Durability>,
    pub(super) stats: Stats,
    pub(super) overdue: OverdueCount,
    /// How many timers there are in each state, in how many queues.
    pub(super) totals: Totals,
    /// At most [`QUEUES_SHOWN`], those in trouble first.
    pub(super) queues: Vec<QueueOverview>,
}

impl Figures {
    /// Takes all figures, as of `now`. Blocks.
    pub(super) fn take(
        timers: &Timers,
        troubles: Vec<Trouble>,
        now: Timestamp,
    ) -> Result<Self, Problem> {
        let overview = timers.overview(QUEUES_SHOWN);
        let overview = overview.map_err(|error| Problem::from(&error))?;
        Ok(Self {
            now,
            health: timers.health(),
            troubles,
            durability: timers.durability(),
            stats: timers.stats(),
            overdue: overview.overdue,
            totals: overview.totals,
            queues: overview.queues,
        })
    }

    /// For how long the timer that was due first is overdue; `None` if none is, or it is not known.
    pub(super) fn oldest(&self) -> Option<Duration> {
        let age = self.now.saturating_since(self.overdue.oldest?);
        Some(Duration::from_micros(
            u64::try_from(age.as_micros()).unwrap_or(u64::MAX),
        ))
    }

    /// How many pend whose time has not come.
    pub(super) fn coming(&self) -> u64 {
        let pending = self.totals.of(StateKind::Pending);
        pending.saturating_sub(self.overdue.count)
    }
}
