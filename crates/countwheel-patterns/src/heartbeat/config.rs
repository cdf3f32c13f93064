//! The time of a heartbeat, and the time after which a silent peer counts as dead.

use std::time::Duration;

use crate::activity::Options;
use countwheel::Resolution;

/// The times of [`Heartbeats`](super::Heartbeats), among them a pause of 60 s from a failed attempt
/// to recover a connection to the next, however short the time between heartbeats is, unless
/// [told otherwise](Self::recovery_pause).
///
/// ```
/// use countwheel_patterns::{HeartbeatConfig, HeartbeatConfigError};
/// use std::time::Duration;
///
/// let seconds = Duration::from_secs;
/// assert_eq!(HeartbeatConfig::new(seconds(60)), HeartbeatConfig::dubbo());
/// let quick = HeartbeatConfig::new(seconds(5))
///     .idle_timeout(seconds(12))
///     .recovery_pause(seconds(1))
///     .jitter_percent(10);
/// assert_eq!(quick.check(), Ok(()));
/// let hasty = quick.idle_timeout(seconds(9));
/// let error = hasty.check().unwrap_err();
/// assert!(matches!(error, HeartbeatConfigError::TimeoutTooShort { .. }));
/// assert_eq!(error.to_string(), "9s without a sign is less than two heartbeats of 5s");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct HeartbeatConfig {
    pub(super) heartbeat: Duration,
    pub(super) sends: bool,
    pub(super) idle_timeout: Duration,
    pub(super) write_timeout: Option<Duration>,
    pub(super) recovery_pause: Duration,
    pub(super) jitter_percent: u32,
    pub(super) stall_period: Duration,
    pub(super) tick: Resolution,
}

/// A [`HeartbeatConfig`] by which living connections would be taken for dead. See
/// [`HeartbeatConfig::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeartbeatConfigError {
    /// The time between heartbeats is less than a millisecond.
    #[error("heartbeats are at least a millisecond apart, not {heartbeat:?}")]
    HeartbeatTooShort {
        /// That time.
        heartbeat: Duration,
    },
    /// A connection that loses one heartbeat would be dead.
    #[error("{timeout:?} without a sign is less than two heartbeats of {heartbeat:?}")]
    TimeoutTooShort {
        /// How long nothing may be heard.
        timeout: Duration,
        /// The time between heartbeats.
        heartbeat: Duration,
    },
}

impl HeartbeatConfig {
    /// A heartbeat after `heartbeat` without traffic, dead after three times as long, and a
    /// minute between attempts to recover.
    pub fn new(heartbeat: Duration) -> Self {
        Self {
            heartbeat,
            sends: true,
            idle_timeout: heartbeat.saturating_mul(3),
            write_timeout: None,
            recovery_pause: Duration::from_secs(60),
            jitter_percent: 0,
            // Up to two periods of a stall count: fewer than a heartbeat.
            stall_period: (heartbeat / 4).clamp(Options::TICK, Duration::from_secs(1)),
            tick: Options::default().tick,
        }
    }

    /// What a client of Dubbo does: a heartbeat after 60 s, reconnect after 180 s without a sign
    /// or when disconnected, and not again for 60 s. Dubbo looks every third of such a time, and
    /// so is up to a third late; here each is exact.
    pub fn dubbo() -> Self {
        Self::new(Duration::from_secs(60))
    }

    /// What a server of Dubbo does: no heartbeats of its own, but who has neither sent nor been
    /// sent anything for 180 s is closed.
    ///
    /// ```
    /// # use countwheel_patterns::HeartbeatConfig;
    /// # use std::time::Duration;
    /// let server = HeartbeatConfig::dubbo().without_heartbeats();
    /// assert_eq!(HeartbeatConfig::dubbo_server(), server.write_timeout(Duration::from_secs(180)));
    /// ```
    pub fn dubbo_server() -> Self {
        let client = Self::dubbo();
        let timeout = client.idle_timeout;
        client.without_heartbeats().write_timeout(timeout)
    }

    /// Sends no heartbeats: the other side does, after the time that
    /// [`new`](Self::new) was given.
    pub fn without_heartbeats(mut self) -> Self {
        self.sends = false;
        self
    }

    /// After which time without anything read the other side is dead.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// After which time without anything written the connection is dead: never, unless told
    /// otherwise.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = Some(timeout);
        self
    }

    /// The time from the end of an attempt that has failed to the next: at least a millisecond.
    pub fn recovery_pause(mut self, pause: Duration) -> Self {
        self.recovery_pause = pause;
        self
    }

    /// Each connection sends its heartbeats earlier, and waits longer between attempts, by
    /// a share of its own up to so many percent (at most 100): so that those that were
    /// made together do not stay together. None unless told otherwise.
    pub fn jitter_percent(mut self, percent: u32) -> Self {
        self.jitter_percent = percent.min(100);
        self
    }

    /// How often this process looks whether it still runs: four times a heartbeat, but not more
    /// than once in 10 milliseconds and not less than once a second, unless told otherwise. Of a
    /// stall, two periods at most count against a connection; with zero, all of it does. Only the
    /// configuration that a table is made with decides this.
    pub fn stall_period(mut self, period: Duration) -> Self {
        self.stall_period = period;
        self
    }

    /// How late all this may be: 10 milliseconds unless told otherwise. Only the configuration
    /// that a table is made with decides this.
    pub fn tick(mut self, tick: Resolution) -> Self {
        self.tick = tick;
        self
    }

    /// Whether it makes sense, as Dubbo sees it: whoever loses one heartbeat is not dead yet.
    ///
    /// # Errors
    /// If a timeout is less than two heartbeats, or heartbeats come more often than every
    /// millisecond.
    pub fn check(&self) -> Result<(), HeartbeatConfigError> {
        let heartbeat = self.heartbeat;
        if heartbeat < Duration::from_millis(1) {
            return Err(HeartbeatConfigError::HeartbeatTooShort { heartbeat });
        }
        let timeouts = [Some(self.idle_timeout), self.write_timeout];
        let least = heartbeat.saturating_mul(2);
        match timeouts
            .into_iter()
            .flatten()
            .find(|&timeout| timeout < least)
        {
            Some(timeout) => Err(HeartbeatConfigError::TimeoutTooShort { timeout, heartbeat }),
            None => Ok(()),
        }
    }

    pub(super) fn options(&self) -> Options {
        Options {
            tick: self.tick,
            stall_period: (!self.stall_period.is_zero()).then_some(self.stall_period),
            ..Options::default()
        }
    }
}
