//! The work of the peers, and the figures measured.

mod churn;
mod exact;
mod idle;
mod lateness;
mod memory;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::peer::{Form, Name, Peer, Task};
use crate::cell::Loaded;
use crate::choice::Word as _;
use crate::random::SplitMix;
use crate::workload::Figures;

pub(crate) use exact::judge;

/// The workloads by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Threads that schedule, and cancel what they scheduled.
    W4,
    /// Threads that schedule, and others that cancel.
    W4x,
    /// How late timers fire.
    W5,
    /// Memory for each pending timer.
    W6t,
    /// Nothing to do for a while.
    W7,
    /// Whether the right timers fire. Not measured, but done in a process of its own too.
    #[value(hide = true)]
    Exact,
}

/// How much is to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Extent {
    /// How many timers each thread schedules in W4.
    pub(crate) schedules: u64,
    /// Over what time the deadlines of W5 spread.
    pub(crate) spread: Duration,
    /// How long W7 waits.
    pub(crate) idle: Duration,
}

impl Extent {
    pub(crate) const FULL: Self = Self {
        schedules: 1_000_000,
        spread: Duration::from_secs(5),
        idle: Duration::from_secs(20),
    };
    pub(crate) const SHORT: Self = Self {
        schedules: 100_000,
        spread: Duration::from_secs(1),
        idle: Duration::from_secs(2),
    };

    pub(crate) fn of(short: bool) -> Self {
        if short { Self::SHORT } else { Self::FULL }
    }
}

impl Loaded for Workload {
    type Peer = Name;

    fn unit(self) -> &'static str {
        match self {
            Self::W4 | Self::W4x | Self::Exact => "threads",
            Self::W5 | Self::W6t | Self::W7 => "timers",
        }
    }

    fn loads(self, threads: &[u64], short: bool) -> Vec<u64> {
        match self {
            Self::W4 => threads.to_vec(),
            Self::W4x => threads.iter().copied().filter(|n| n % 2 == 0).collect(),
            Self::W5 if short => vec![10_000],
            Self::W5 => vec![10_000, 100_000],
            Self::W6t if short => vec![100_000],
            Self::W6t => vec![1_000_000],
            Self::W7 if short => vec![0, 100_000],
            Self::W7 => vec![0, 1_000_000],
            Self::Exact => vec![exact::THREADS],
        }
    }

    fn rounds(self, short: bool) -> u64 {
        match self {
            Self::W4 | Self::W4x | Self::W6t if !short => 3,
            Self::W5 if !short => 2,
            _ => 1,
        }
    }

    fn suits(self, name: Name, load: u64) -> bool {
        match name {
            Name::Jvm => self == Self::W7 && load == 0,
            Name::NettyCoarse => matches!(self, Self::W7 | Self::Exact),
            _ => true,
        }
    }
}

impl Workload {
    /// Those that are measured.
    pub(crate) fn all() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|&workload| workload != Self::Exact).collect()
    }

    /// Measures once, in this process.
    pub(crate) fn measure(self, name: Name, load: u64, extent: Extent) -> anyhow::Result<Figures> {
        let form = match self {
            Self::W5 | Self::Exact => Form::Working,
            Self::W4 | Self::W4x | Self::W6t | Self::W7 => Form::Cheapest,
        };
        let measurement = Measurement {
            workload: self,
            load,
            extent,
        };
        let measured = name.dispatch(form, measurement);
        measured.with_context(|| format!("{} is another program", name.word()))?
    }

    /// What another program is told after its option: the same numbers.
    pub(crate) fn arguments(self, load: u64, extent: Extent) -> [String; 3] {
        let how_much = match self {
            Self::W4 | Self::W4x => extent.schedules.into(),
            Self::W5 => extent.spread.as_micros(),
            Self::W7 => extent.idle.as_millis(),
            Self::W6t | Self::Exact => 0,
        };
        [self.word(), load.to_string(), how_much.to_string()]
    }
}

struct Measurement {
    workload: Workload,
    load: u64,
    extent: Extent,
}

impl Task for Measurement {
    type Output = anyhow::Result<Figures>;

    fn run<P: Peer>(self) -> Self::Output {
        let (load, extent) = (self.load, self.extent);
        let peer = P::start()?;
        match self.workload {
            Workload::W4 => churn::own(&peer, load, extent.schedules),
            Workload::W4x => churn::crossing(&peer, load, extent.schedules),
            Workload::W5 => lateness::measure(peer, load, extent.spread),
            Workload::W6t => memory::measure(peer, load),
            Workload::W7 => idle::measure(peer, load, extent.idle),
            Workload::Exact => exact::check(&peer),
        }
    }
}

/// How long a peer has for what it should do at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the peer has done what it put off: a timer scheduled now has fired.
fn settle<P: Peer>(peer: &mut P) -> anyhow::Result<()> {
    let (sender, receiver) = channel();
    // Nobody listens any more if patience has run out.
    peer.call(Duration::from_millis(1), move || {
        sender.send(()).unwrap_or_default();
    });
    let fired = receiver.recv_timeout(PATIENCE);
    fired.context("a timer of a millisecond does not fire")
}

/// The cheapest use of an id that a compiler cannot leave out.
fn tally(id: u64) {
    static TALLY: AtomicU64 = AtomicU64::new(0);
    TALLY.fetch_add(id, Ordering::Relaxed);
}

/// `count` delays in milliseconds, from `least` to `least + range`, for one of many threads.
fn delays(thread: u64, count: u64, least: u64, range: u64) -> Vec<u32> {
    let mut numbers = SplitMix::new(42 + thread);
    let mut draw = || u32::try_from(least + numbers.below(range + 1)).expect("it has 32 bits");
    (0..count).map(|_| draw()).collect()
}

fn milliseconds(delay: u32) -> Duration {
    Duration::from_millis(delay.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Extent = Extent {
        schedules: 3_000,
        spread: Duration::from_millis(20),
        idle: Duration::from_millis(50),
    };

    fn here() -> impl Iterator<Item = Name> {
        let all = Name::all().iter().copied();
        all.filter(|name| name.program().is_none())
    }

    #[test]
    fn every_peer_gets_through_every_workload() {
        for name in here() {
            for workload in Workload::all() {
                let load = if workload.unit() == "threads" { 2 } else { 500 };
                let figures = workload.measure(name, load, TINY);
                let figures =
                    figures.unwrap_or_else(|error| panic!("{name:?} {workload:?}: {error}"));
                assert!(!figures.is_empty(), "{name:?} {workload:?}");
            }
        }
    }

    #[test]
    fn every_peer_fires_exactly_what_was_not_cancelled() {
        for name in here() {
            let figures = Workload::Exact.measure(name, exact::THREADS, TINY).unwrap();
            assert_eq!(judge(&figures), None, "{name:?}: {figures:?}");
        }
    }
}
