//! The schedules of other systems, under their names.

use std::sync::Arc;
use std::time::Duration;

use super::{Backoff, Shape};

impl Backoff {
    /// Dubbo's failback cluster: 5 s, three retries.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// let times: Vec<_> = Backoff::dubbo_failback().preview().map(|step| step.at.as_secs()).collect();
    /// assert_eq!(times, [5, 10, 15]);
    /// ```
    pub fn dubbo_failback() -> Self {
        Self::dubbo_registry().max_retries(3)
    }

    /// Dubbo's registry: 5 s, for ever.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// # use std::time::Duration;
    /// assert_eq!(Backoff::dubbo_registry(), Backoff::fixed(Duration::from_secs(5)));
    /// ```
    pub fn dubbo_registry() -> Self {
        Self::fixed(Duration::from_secs(5))
    }

    /// The cleaner of go-zero, which repeats deletions in a cache: 1 s, 5 s, 1 min, 5 min, 1 h.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// assert_eq!(Backoff::go_zero_cleaner().preview().count(), 5);
    /// ```
    pub fn go_zero_cleaner() -> Self {
        Self::seconds(&[1, 5, 60, 300, 3600])
    }

    /// Eureka's supervised task: 30 s, doubled each time up to ten times as much, for ever.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// let delays: Vec<_> = Backoff::eureka().preview().map(|step| step.delay.as_secs()).take(6).collect();
    /// assert_eq!(delays, [30, 60, 120, 240, 300, 300]);
    /// ```
    pub fn eureka() -> Self {
        let first = Duration::from_secs(30);
        Self::new(Shape::Exponential { first, factor: 2.0 }).cap(10 * first)
    }

    /// The intervals at which WeChat Pay repeats a payment notification: 15s 15s 30s 3m 10m 20m
    /// 30m 30m 30m 60m 3h 3h 3h 6h 6h, which is 24 h 4 min in all.
    ///
    /// ```
    /// # use countwheel_patterns::Backoff;
    /// assert_eq!(Backoff::wechat().preview().count(), 15);
    /// ```
    pub fn wechat() -> Self {
        Self::seconds(&[
            15, 15, 30, 180, 600, 1200, 1800, 1800, 1800, 3600, 10_800, 10_800, 10_800, 21_600,
            21_600,
        ])
    }

    fn seconds(seconds: &[u64]) -> Self {
        let delays: Arc<[Duration]> = seconds
            .iter()
            .map(|&secs| Duration::from_secs(secs))
            .collect();
        Self::new(Shape::List {
            delays,
            repeats_last: false,
        })
    }
}
