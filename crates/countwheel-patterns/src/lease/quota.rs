//! The number of leases that may be evicted.

use super::LeaseConfig;
use countwheel::Instant;

/// At most a share of all in each period, and always one. From Eureka.
pub(super) struct Quota {
    config: LeaseConfig,
    period_ends: Instant,
    left: u64,
}

impl Quota {
    pub(super) fn new(config: LeaseConfig) -> Self {
        Self {
            config,
            period_ends: Instant::ZERO,
            left: 0,
        }
    }

    /// How many may go now, of `all` that there are.
    pub(super) fn left(&mut self, now: Instant, all: u64) -> u64 {
        if self.is_unlimited() {
            return u64::MAX;
        }
        if now >= self.period_ends {
            let share = u128::from(all) * u128::from(self.config.percent) / 100;
            self.left = u64::try_from(share).unwrap_or(u64::MAX).max(1);
            self.period_ends = Instant::ZERO;
        }
        self.left
    }

    fn is_unlimited(&self) -> bool {
        self.config.percent == 100 || self.config.period.is_zero()
    }

    /// So many go.
    pub(super) fn take(&mut self, now: Instant, taken: u64) {
        if taken > 0 && now >= self.period_ends {
            self.period_ends = now + self.config.period;
        }
        self.left = self.left.saturating_sub(taken);
    }

    /// When more may go.
    pub(super) fn renewed_at(&self) -> Instant {
        if self.left > 0 || self.is_unlimited() {
            Instant::ZERO
        } else {
            self.period_ends
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_share_of_those_at_the_beginning_of_each_period() {
        let mut quota = Quota::new(LeaseConfig::eureka());
        assert_eq!(quota.left(at(5), 1_000), 150);
        quota.take(at(5), 100);
        assert_eq!(quota.left(at(30), 900), 50);
        assert_eq!(quota.renewed_at(), at(0));
        quota.take(at(30), 50);
        assert_eq!(quota.left(at(64), 850), 0);
        assert_eq!(quota.renewed_at(), at(65));
        assert_eq!(quota.left(at(65), 850), 127);
        quota.take(at(65), 0);
        assert_eq!(quota.left(at(500), 100), 15, "no period has begun");
    }

    #[test]
    fn one_may_always_go_and_there_may_be_no_limit() {
        let quota = |percent, period| {
            let config = LeaseConfig::eureka().percent_per_period(percent, period);
            Quota::new(config).left(at(1), 3)
        };
        let minute = Duration::from_secs(60);
        assert_eq!(quota(15, minute), 1);
        assert_eq!(quota(0, minute), 1);
        assert_eq!(quota(99, minute), 2);
        assert_eq!(quota(100, minute), u64::MAX);
        assert_eq!(quota(15, Duration::ZERO), u64::MAX);
    }
}
