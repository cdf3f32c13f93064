//! The clock of the cluster.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countwheel_time::locks::lock;
use countwheel_time::{BootId, Clock, Instant, Timestamp};

use crate::planted::planted;

/// So many of the last samples are believed.
const SAMPLES: usize = 8;

/// The clock of a machine runs faster or slower than that of the registry by at most one part in so
/// many: 500 millionths.
const DRIFT: u64 = 2_000;

/// The clock of the registry, which all nodes share, as far as this node knows it without asking: its
/// [`timestamp`](Clock::timestamp) is never ahead of the registry's clock and behind it by the time that
/// the best of the last 8 answers was under way. The other readings are the machine's own.
///
/// What the registry says when it is asked was true no later than when the answer came. From there on the
/// boot clock of the machine counts, less 500 millionths for its drift. An answer that shows that the
/// registry's clock was set back, or that another server answers, ends what was believed before.
///
/// Before the first [sample](Self::sample) it shows the machine's wall clock.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_cluster::{ClusterClock, Offset};
/// use countwheel_time::{Clock, ManualClock, Timestamp};
///
/// let machine = ManualClock::at(Timestamp::from_micros(5_000_000));
/// let clock = ClusterClock::new(Arc::new(machine.clone()));
/// let sent = machine.boot();
/// machine.advance(Duration::from_millis(3));
/// clock.sample(sent, machine.boot(), Timestamp::from_micros(4_000_000));
/// assert_eq!(clock.timestamp(), Timestamp::from_micros(4_000_000));
/// assert_eq!(clock.offset(), Offset::Ahead(Duration::from_micros(1_003_000)));
/// ```
pub struct ClusterClock {
    machine: Arc<dyn Clock>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// When an answer came, by the boot clock, and what it said.
    samples: VecDeque<(Instant, Timestamp)>,
    /// The latest that was shown since the registry's clock was last seen to be set back.
    shown: Timestamp,
}

/// How far the wall clock of a machine is from that of the registry.
///
/// ```
/// use std::time::Duration;
/// use countwheel_cluster::Offset;
///
/// let offset = Offset::Behind(Duration::from_millis(300));
/// assert_eq!(offset.size(), Duration::from_millis(300));
/// assert_eq!(offset.to_string(), "300ms behind");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offset {
    /// The machine's is ahead by so much.
    Ahead(Duration),
    /// The machine's is behind by so much.
    Behind(Duration),
}

impl Offset {
    /// How far, in either direction.
    #[must_use]
    pub fn size(self) -> Duration {
        match self {
            Self::Ahead(by) | Self::Behind(by) => by,
        }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ahead(by) => write!(f, "{by:?} ahead"),
            Self::Behind(by) => write!(f, "{by:?} behind"),
        }
    }
}

impl ClusterClock {
    /// A clock on a machine, which knows nothing yet of the registry's.
    #[must_use]
    pub fn new(machine: Arc<dyn Clock>) -> Self {
        Self {
            machine,
            known: Mutex::default(),
        }
    }

    /// Learns what the registry's clock showed at some moment between `sent` and `came`, readings of
    /// [`boot`](Clock::boot).
    pub fn sample(&self, sent: Instant, came: Instant, shown: Timestamp) {
        let mut known = lock(&self.known);
        let latest = shown + longest(came - sent);
        let at = if planted!(NodesClockFromAsking) {
            sent
        } else {
            came
        };
        if known.at(came).is_some_and(|bound| bound > latest) && !planted!(NodesClockKeepsStep) {
            // The clock was set back, or is another server's.
            *known = Known::default();
        }
        if known.samples.len() == SAMPLES {
            known.samples.pop_front();
        }
        known.samples.push_back((at, shown));
    }

    /// How far the machine's own wall clock is from this one.
    #[must_use]
    pub fn offset(&self) -> Offset {
        let (machine, cluster) = (self.machine.timestamp(), self.timestamp());
        match machine >= cluster {
            true => Offset::Ahead(machine.saturating_since(cluster)),
            false => Offset::Behind(cluster.saturating_since(machine)),
        }
    }
}

impl Known {
    /// The latest moment that the registry's clock has passed for certain.
    fn at(&self, now: Instant) -> Option<Timestamp> {
        let samples = self.samples.iter();
        let bounds = samples.map(|(at, shown)| *shown + shortest(now - *at));
        bounds.max().map(|bound| bound.max(self.shown))
    }
}

/// How long it is at least by the registry's clock, in whole microseconds, rounded down.
fn shortest(span: Duration) -> Duration {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let drift = if planted!(NodesClockWithoutDrift) {
        0
    } else {
        micros.div_ceil(DRIFT)
    };
    Duration::from_micros(micros - drift)
}

/// How long it is at most, and a microsecond for each rounding.
fn longest(span: Duration) -> Duration {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    // One part more than the drift: 1 / (1 - x) is more than 1 + x.
    let drift = nanos / (DRIFT - 1);
    Duration::from_nanos(nanos.saturating_add(drift).saturating_add(2_000))
}

impl Clock for ClusterClock {
    fn now(&self) -> Instant {
        self.machine.now()
    }

    fn timestamp(&self) -> Timestamp {
        let mut known = lock(&self.known);
        let Some(bound) = known.at(self.machine.boot()) else {
            drop(known);
            return self.machine.timestamp();
        };
        known.shown = bound;
        bound
    }

    fn boot(&self) -> Instant {
        self.machine.boot()
    }

    fn boot_id(&self) -> Option<BootId> {
        self.machine.boot_id()
    }
}

impl fmt::Debug for ClusterClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterClock")
            .field("timestamp", &self.timestamp())
            .finish_non_exhaustive()
    }
}
