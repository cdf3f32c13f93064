//! The schedules of others, under their names.

use std::time::Duration;

use super::listed::Listed;
use super::{RetryPolicy, Shape};

/// A schedule known by name. The library, durable timers, the HTTP API and the command line have
/// the names from here.
///
/// ```
/// use countwheel_time::{Preset, RetryPolicy};
///
/// assert_eq!(Preset::from_name("wechat"), Some(Preset::Wechat));
/// assert_eq!(Preset::Wechat.policy(), RetryPolicy::wechat());
/// assert!(Preset::ALL.iter().all(|&preset| Preset::from_name(preset.name()) == Some(preset)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Preset {
    /// See [`RetryPolicy::dubbo_failback`].
    DubboFailback,
    /// See [`RetryPolicy::dubbo_registry`].
    DubboRegistry,
    /// See [`RetryPolicy::eureka`].
    Eureka,
    /// See [`RetryPolicy::go_zero_cleaner`].
    GoZeroCleaner,
    /// See [`RetryPolicy::wechat`].
    Wechat,
}

impl Preset {
    /// Every preset there is.
    pub const ALL: [Self; 5] = [
        Self::DubboFailback,
        Self::DubboRegistry,
        Self::Eureka,
        Self::GoZeroCleaner,
        Self::Wechat,
    ];

    /// Its name in text, such as `wechat`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DubboFailback => "dubbo",
            Self::DubboRegistry => "dubbo-registry",
            Self::Eureka => "eureka",
            Self::GoZeroCleaner => "go-zero",
            Self::Wechat => "wechat",
        }
    }

    /// The preset of that name. The names of their functions are names, too: `dubbo-failback` and
    /// `go-zero-cleaner`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "dubbo-failback" => Some(Self::DubboFailback),
            "go-zero-cleaner" => Some(Self::GoZeroCleaner),
            _ => Self::ALL.into_iter().find(|preset| preset.name() == name),
        }
    }

    /// The policy of that name.
    pub fn policy(self) -> RetryPolicy {
        let policy = match self {
            Self::DubboFailback => RetryPolicy::fixed(Duration::from_secs(5)).max_retries(3),
            Self::DubboRegistry => RetryPolicy::fixed(Duration::from_secs(5)),
            Self::Eureka => {
                let first = Duration::from_secs(30);
                RetryPolicy::new(Shape::Exponential { first, factor: 2.0 }).cap(10 * first)
            }
            Self::GoZeroCleaner => list(&GO_ZERO_CLEANER),
            Self::Wechat => list(&WECHAT),
        };
        RetryPolicy {
            preset: Some(self),
            ..policy
        }
    }
}

static GO_ZERO_CLEANER: [Duration; 5] = seconds([1, 5, 60, 300, 3600]);
static WECHAT: [Duration; 15] = seconds([
    15, 15, 30, 180, 600, 1200, 1800, 1800, 1800, 3600, 10_800, 10_800, 10_800, 21_600, 21_600,
]);

fn list(delays: &'static [Duration]) -> RetryPolicy {
    RetryPolicy::new(Shape::List {
        delays: Listed::Known(delays),
        repeats_last: false,
    })
}

const fn seconds<const N: usize>(seconds: [u64; N]) -> [Duration; N] {
    let mut delays = [Duration::ZERO; N];
    let mut i = 0;
    while i < N {
        delays[i] = Duration::from_secs(seconds[i]);
        i += 1;
    }
    delays
}

impl RetryPolicy {
    /// Dubbo's failback cluster: 5 s, three retries.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// let policy = RetryPolicy::dubbo_failback();
    /// let times: Vec<_> = policy.preview().map(|step| step.at.as_secs()).collect();
    /// assert_eq!(times, [5, 10, 15]);
    /// ```
    pub fn dubbo_failback() -> Self {
        Preset::DubboFailback.policy()
    }

    /// Dubbo's registry: 5 s, for ever.
    ///
    /// ```
    /// # use countwheel_time::{Delays, RetryPolicy};
    /// # use std::time::Duration;
    /// let delays = Delays::Fixed(Duration::from_secs(5));
    /// assert_eq!(RetryPolicy::dubbo_registry().settings().delays, delays);
    /// ```
    pub fn dubbo_registry() -> Self {
        Preset::DubboRegistry.policy()
    }

    /// The cleaner of go-zero, which repeats deletions in a cache: 1 s, 5 s, 1 min, 5 min, 1 h.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// assert_eq!(RetryPolicy::go_zero_cleaner().preview().count(), 5);
    /// ```
    pub fn go_zero_cleaner() -> Self {
        Preset::GoZeroCleaner.policy()
    }

    /// Eureka's supervised task: 30 s, doubled each time up to ten times as much, for ever.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// let policy = RetryPolicy::eureka();
    /// let delays: Vec<_> = policy.preview().map(|step| step.delay.as_secs()).take(6).collect();
    /// assert_eq!(delays, [30, 60, 120, 240, 300, 300]);
    /// ```
    pub fn eureka() -> Self {
        Preset::Eureka.policy()
    }

    /// The intervals at which WeChat Pay repeats a payment notification: 15s 15s 30s 3m 10m 20m
    /// 30m 30m 30m 60m 3h 3h 3h 6h 6h, which is 24 h 4 min in all.
    ///
    /// ```
    /// # use countwheel_time::RetryPolicy;
    /// assert_eq!(RetryPolicy::wechat().preview().count(), 15);
    /// ```
    pub fn wechat() -> Self {
        Preset::Wechat.policy()
    }
}
