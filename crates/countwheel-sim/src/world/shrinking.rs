//! Makes a failing seed smaller: fewer turns, and fewer of the things that its world has.

use std::fmt;

use super::{Options, Plan, run};
use crate::failure::Failure;

/// Something that a world may have and can do without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Ends of the process between two turns.
    Crashes,
    /// Ends of the process and failing calls in a commit or in upkeep.
    CommitCrashes,
    /// Steps of the wall clock.
    ClockSteps,
    /// Machines that start anew, with a wrong clock.
    Boots,
    /// A wall clock that is too fast or too slow.
    Drift,
    /// A machine that sleeps.
    Suspends,
    /// A clock that stands still for some turns.
    Freezes,
    /// Commits that take a while.
    SlowCommits,
    /// Disks that are full for a while.
    FullDisks,
    /// Calls that fail, other than by a power cut.
    Failures,
    /// Pieces of upkeep.
    Upkeep,
    /// Timers that come again, and missed ones.
    Recurring,
    /// Batches.
    Batches,
    /// Drains of queues.
    Drains,
    /// Several requests in one turn.
    Bursts,
    /// Long payloads.
    LongPayloads,
    /// Receivers that fail or want no more.
    FailingReceivers,
    /// More than one queue.
    Queues,
    /// Queues of the same name in two namespaces.
    Namespaces,
    /// More than three names.
    Names,
}

impl Part {
    /// All of them; what most can do without first.
    pub const ALL: [Self; 20] = [
        Self::FullDisks,
        Self::Failures,
        Self::CommitCrashes,
        Self::Crashes,
        Self::ClockSteps,
        Self::Boots,
        Self::Drift,
        Self::Suspends,
        Self::Freezes,
        Self::SlowCommits,
        Self::Upkeep,
        Self::Recurring,
        Self::Batches,
        Self::Drains,
        Self::Bursts,
        Self::LongPayloads,
        Self::FailingReceivers,
        Self::Namespaces,
        Self::Queues,
        Self::Names,
    ];

    /// The one of that name, as [`Debug`](fmt::Debug) shows it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let named = |part: &Self| format!("{part:?}").eq_ignore_ascii_case(name);
        Self::ALL.into_iter().find(named)
    }

    pub(super) fn leave_out(self, plan: &mut Plan) {
        match self {
            Self::Crashes => (plan.crash, plan.killers) = (0, 0),
            Self::CommitCrashes => plan.commit_crash = 0,
            Self::ClockSteps => plan.clock_step = 0,
            Self::Boots => plan.boots = 0,
            Self::Drift => plan.drift = 0,
            Self::Suspends => plan.suspend = 0,
            Self::Freezes => plan.freeze = 0,
            Self::SlowCommits => plan.slow_commit = 0,
            Self::FullDisks => plan.full = 0,
            Self::Failures => plan.failures.clear(),
            Self::Upkeep => plan.upkeep = 0,
            Self::Recurring => plan.recurring = 0,
            Self::Batches => plan.batch = 0,
            Self::Drains => plan.drains = 0,
            Self::Bursts => plan.bursts = vec![1],
            Self::LongPayloads => plan.long = 0,
            Self::FailingReceivers => (plan.failing, plan.stopping) = (0, 0),
            Self::Namespaces => plan.namespaces = false,
            Self::Queues => plan.queues = 1,
            Self::Names => plan.keys = plan.keys.min(3),
        }
    }
}

/// The smallest world found in which a seed fails.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// How to run it.
    pub options: Options,
    /// How it fails.
    pub failure: Box<Failure>,
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { turns, without, .. } = &self.options;
        write!(f, "sim seed {} --turns {turns}", self.failure.seed)?;
        for part in without {
            write!(f, " --without {part:?}")?;
        }
        #[cfg(feature = "planted-bugs")]
        if let Some(bug) = self.options.planted_bug {
            write!(f, " --bug {bug:?}")?;
        }
        Ok(())
    }
}

/// Leaves out of a failing world what it can do without, and shortens it, in at most `tries` runs.
/// Without one part the rest takes another course, so it may fail for another reason.
///
/// ```
/// use countwheel_sim::world::{self, Options, Part};
///
/// let lying = Options { lying_disk: true, ..Options::default() };
/// let failed = (1..100).find_map(|seed| world::run(seed, &lying).err());
/// let failed = failed.expect("a disk that ignores syncs is found");
/// let shrunk = world::shrink(failed, &lying, 60);
/// assert!(shrunk.options.turns <= lying.turns);
/// assert!(shrunk.options.without.contains(&Part::Drift));
/// println!("{shrunk}");
/// ```
#[must_use]
pub fn shrink(failure: Box<Failure>, options: &Options, tries: usize) -> Shrunk {
    let mut shrunk = Shrunk {
        options: options.clone(),
        failure,
    };
    let mut tries = 0..tries;
    let mut attempt = |options: Options, shrunk: &mut Shrunk| {
        let Some(_) = tries.next() else {
            return false;
        };
        let failed = run(shrunk.failure.seed, &options).err();
        if let Some(failure) = failed {
            *shrunk = Shrunk { options, failure };
            return true;
        }
        false
    };
    shrunk.cut_at_failure(&mut attempt);
    for part in Part::ALL {
        let mut options = shrunk.options.clone();
        if !options.without.contains(&part) {
            options.without.push(part);
            if attempt(options, &mut shrunk) {
                shrunk.cut_at_failure(&mut attempt);
            }
        }
    }
    // Fewer turns yet: what happens in the second phase needs some of the first.
    let mut less = shrunk.options.turns / 2;
    while less > 0 {
        let mut options = shrunk.options.clone();
        options.turns = options.turns.saturating_sub(less);
        if !attempt(options, &mut shrunk) {
            less /= 2;
        }
        less = less.min(shrunk.options.turns);
    }
    shrunk
}

impl Shrunk {
    /// No turn after the one that fails is needed.
    fn cut_at_failure(&mut self, attempt: &mut impl FnMut(Options, &mut Self) -> bool) {
        if self.failure.step < self.options.turns {
            let mut options = self.options.clone();
            options.turns = self.failure.step;
            attempt(options, self);
        }
    }
}
