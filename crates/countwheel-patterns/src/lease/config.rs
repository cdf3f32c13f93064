//! The duration of leases, and the limits of eviction.

use std::time::Duration;

use crate::activity::Options;
use countwheel::Resolution;

/// The options of [`Leases`](crate::broker::Leases).
///
/// ```
/// use countwheel_patterns::broker::LeaseConfig;
/// use std::time::Duration;
///
/// let seconds = Duration::from_secs;
/// let eureka = LeaseConfig::new(seconds(90)).percent_per_period(15, seconds(60));
/// assert_eq!(eureka.self_preservation(15).gather(seconds(30)), LeaseConfig::eureka());
/// let sofa = LeaseConfig::new(seconds(900)).resume_after(seconds(30));
/// assert_eq!(sofa, LeaseConfig::sofa());
/// assert_ne!(sofa.second_look(seconds(5)).stall_period(seconds(5)), sofa);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct LeaseConfig {
    pub(super) duration: Duration,
    pub(super) percent: u32,
    pub(super) period: Duration,
    pub(super) second_look: Duration,
    pub(super) gather: Duration,
    pub(super) resume_after: Duration,
    pub(super) self_preservation: Option<u32>,
    pub(super) seed: Option<u64>,
    pub(super) stall_period: Duration,
    pub(super) tick: Resolution,
}

impl LeaseConfig {
    /// Leases that last for `duration` after each renewal. Unless told otherwise, at most 15
    /// percent of them are evicted in a minute, each after a second look one second later.
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            percent: 15,
            period: Duration::from_secs(60),
            second_look: Duration::from_secs(1),
            gather: Duration::ZERO,
            resume_after: Duration::ZERO,
            self_preservation: None,
            seed: None,
            stall_period: Duration::from_secs(1),
            tick: Options::default().tick,
        }
    }

    /// What a Eureka server does: 90 s, at most 15 percent in 60 s, and nobody while more than 15
    /// percent do not renew. Those that run out are gathered for 30 s, the time in which each
    /// instance renews once: by then it shows how many are silent. (A lease of Eureka lasts for
    /// twice its duration, by an old mistake, and its runs come every 60 s.)
    pub fn eureka() -> Self {
        Self::new(Duration::from_secs(90))
            .self_preservation(15)
            .gather(Duration::from_secs(30))
    }

    /// What SOFARegistry's data server does: 900 s, and no eviction in the first 30 s. (It has
    /// no limit for how many. To have none here, allow 100 percent.)
    pub fn sofa() -> Self {
        Self::new(Duration::from_secs(900)).resume_after(Duration::from_secs(30))
    }

    /// At most `percent` of all leases are evicted in one `period`, and always one. A period
    /// begins with the first eviction after the one before; what counts is how many leases
    /// there were then. With 100 percent or a period of zero there is no limit.
    pub fn percent_per_period(mut self, percent: u32, period: Duration) -> Self {
        self.percent = percent.min(100);
        self.period = period;
        self
    }

    /// How long after a lease has run out it is looked at again, and until when its holder
    /// has a last chance. With zero, the second look comes at once.
    pub fn second_look(mut self, after: Duration) -> Self {
        self.second_look = after;
        self
    }

    /// How long to wait for others to run out as well: which of them are evicted is then left to
    /// chance, and whether there are too many is seen before the first is. With zero, as unless
    /// told otherwise, they go as they come until the limit is reached.
    pub fn gather(mut self, span: Duration) -> Self {
        self.gather = span;
        self
    }

    /// Nobody is evicted in this time after the table is made: a server that has just started
    /// has not heard from anybody.
    pub fn resume_after(mut self, span: Duration) -> Self {
        self.resume_after = span;
        self
    }

    /// Nobody is evicted while more than `percent` of all leases have run out: then it is
    /// probably the network. Off unless asked for, since who is really dead then stays.
    ///
    /// Eureka counts the renewals of the last minute for this, and compares. Leases that
    /// have run out say the same, and a renewal need not be counted.
    pub fn self_preservation(mut self, percent: u32) -> Self {
        self.self_preservation = Some(percent);
        self
    }

    /// The same seed, the same random order.
    ///
    /// ```
    /// # use countwheel_patterns::broker::LeaseConfig;
    /// let config = LeaseConfig::eureka();
    /// assert_ne!(config.seed(1), config);
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How often this process looks whether it still runs: every second unless told otherwise.
    /// Of a stall, two periods at most count against a lease; with zero, all of it does.
    pub fn stall_period(mut self, period: Duration) -> Self {
        self.stall_period = period;
        self
    }

    /// How late all this may be: 10 milliseconds unless told otherwise.
    ///
    /// ```
    /// # use countwheel::Resolution;
    /// # use countwheel_patterns::broker::LeaseConfig;
    /// let config = LeaseConfig::eureka();
    /// assert_ne!(config.tick(Resolution::MILLISECOND), config);
    /// ```
    pub fn tick(mut self, tick: Resolution) -> Self {
        self.tick = tick;
        self
    }

    pub(super) fn options(&self) -> Options {
        Options {
            tick: self.tick,
            stall_period: (!self.stall_period.is_zero()).then_some(self.stall_period),
            ..Options::default()
        }
    }
}
