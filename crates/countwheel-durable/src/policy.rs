//! Retry schedules as data: the delay of the next attempt after a failure, and the end of the
//! schedule.

use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use countwheel_time::Random;

/// When to try again after a failed attempt, and when to give up.
///
/// A schedule that is used up means dead, unless `max_attempts` asks to repeat its last
/// step. Whatever ends first, ends it.
///
/// ```
/// use countwheel_durable::{Delays, Jitter, Preset, RetryPolicy};
/// use std::time::Duration;
///
/// let policy = RetryPolicy {
///     delays: Delays::Preset(Preset::Wechat),
///     jitter: Jitter::None,
///     max_attempts: None,
///     max_age: None,
/// };
/// policy.validate()?;
/// let total: Duration = policy.preview().map(|step| step.longest).sum();
/// assert_eq!(total, Duration::from_secs(24 * 3600 + 4 * 60));
/// # Ok::<(), countwheel_durable::PolicyError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// The delay after each failure.
    pub delays: Delays,
    /// How much of each delay is left to chance.
    pub jitter: Jitter,
    /// How many attempts there are in all, the first included; 1 to 10,000.
    pub max_attempts: Option<u32>,
    /// No retry starts later than this after the first deadline. The first attempt is always
    /// made, however late.
    pub max_age: Option<Duration>,
}

// Factors are validated to be finite, so equality is total.
impl Eq for RetryPolicy {}

/// The delays between attempts, before jitter. Each is 1 ms to 1 year.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Delays {
    /// One delay after each failure, 1 to 1,000 of them.
    List(Vec<Duration>),
    /// A list that has a name.
    Preset(Preset),
    /// The same delay each time.
    Fixed(Duration),
    /// `first`, then `factor` times the last, at most `cap`.
    Exponential {
        /// The delay after the first failure.
        first: Duration,
        /// 1, or from 1.01 to 1,000.
        factor: f64,
        /// The longest delay, at least `first`.
        cap: Duration,
    },
}

/// A schedule known by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Preset {
    /// 15s 15s 30s 3m 10m 20m 30m 30m 30m 60m 3h 3h 3h 6h 6h: 24 h 4 min in all.
    ///
    /// The intervals at which WeChat Pay repeats a payment notification.
    Wechat,
}

impl Preset {
    /// Every preset there is.
    pub const ALL: [Self; 1] = [Self::Wechat];

    /// The name used in the API and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wechat => "wechat",
        }
    }

    /// The preset of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.as_str() == name)
    }

    /// Its delays.
    #[must_use]
    pub const fn delays(self) -> &'static [Duration] {
        const WECHAT: [Duration; 15] = {
            let seconds = [
                15, 15, 30, 180, 600, 1200, 1800, 1800, 1800, 3600, 10_800, 10_800, 10_800, 21_600,
                21_600,
            ];
            let mut delays = [Duration::ZERO; 15];
            let mut i = 0;
            while i < delays.len() {
                delays[i] = Duration::from_secs(seconds[i]);
                i += 1;
            }
            delays
        };
        match self {
            Self::Wechat => &WECHAT,
        }
    }
}

/// How much of a delay is left to chance, so that failures that came together do not come
/// back together. Names and formulas as in Brooker, "Exponential Backoff and Jitter" (2015).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Jitter {
    /// Nothing: the delay as it stands.
    #[default]
    None,
    /// Everything: uniform from zero to the delay.
    Full,
    /// Half: uniform from half the delay to the delay.
    Equal,
}

impl Jitter {
    fn shortest(self, delay: Duration) -> Duration {
        match self {
            Self::None => delay,
            Self::Full => Duration::ZERO,
            Self::Equal => delay / 2,
        }
    }
}

/// One step of a schedule, as [`RetryPolicy::preview`] gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryStep {
    /// The attempt it leads to: 2 for the first retry.
    pub attempt: u32,
    /// The shortest delay that jitter can make of it.
    pub shortest: Duration,
    /// The longest: the delay as it stands in the schedule.
    pub longest: Duration,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Try again then.
    Retry(Timestamp),
    /// The schedule or the number of attempts is used up.
    Exhausted,
    /// The next attempt would come after the maximum age.
    TooOld,
}

/// Why a policy is not one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The list has no delay, or too many.
    #[error("a retry schedule has 1 to {max} delays, not {found}", max = RetryPolicy::MAX_LIST)]
    ListLength {
        /// How many it has.
        found: usize,
    },
    /// A delay is too short or too long.
    #[error("a retry delay is from 1 ms to 365 days, not {found:?}")]
    Delay {
        /// The delay.
        found: Duration,
    },
    /// The factor is out of range or no number.
    #[error("an exponential factor is 1, or a number from 1.01 to 1000")]
    Factor,
    /// The cap is below the first delay.
    #[error("the cap of an exponential schedule is at least its first delay")]
    Cap,
    /// The number of attempts is out of range.
    #[error("max_attempts is from 1 to {max}, not {found}", max = RetryPolicy::MAX_ATTEMPTS)]
    Attempts {
        /// The number.
        found: u32,
    },
    /// The maximum age is too short or too long.
    #[error("max_age is from 1 ms to 36525 days, not {found:?}")]
    Age {
        /// The age.
        found: Duration,
    },
}

impl Default for RetryPolicy {
    /// 20 attempts over at most 2 days and 6 hours: exponential from 10 s, doubling, at
    /// most 6 h, with full jitter.
    fn default() -> Self {
        Self {
            delays: Delays::Exponential {
                first: Duration::from_secs(10),
                factor: 2.0,
                cap: Duration::from_secs(6 * 3600),
            },
            jitter: Jitter::Full,
            max_attempts: Some(20),
            max_age: None,
        }
    }
}

impl RetryPolicy {
    /// The most delays a list can have.
    pub const MAX_LIST: usize = 1_000;
    /// The largest `max_attempts`.
    pub const MAX_ATTEMPTS: u32 = 10_000;

    const DELAY_MIN: Duration = Duration::from_millis(1);
    const DELAY_MAX: Duration = Duration::from_secs(365 * 86_400);
    const AGE_MAX: Duration = Duration::from_secs(36_525 * 86_400);

    /// Checks every bound that the fields name.
    ///
    /// # Errors
    /// [`PolicyError`] names the first one broken.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let check = |found: Duration| {
            if found < Self::DELAY_MIN || found > Self::DELAY_MAX {
                return Err(PolicyError::Delay { found });
            }
            Ok(())
        };
        match &self.delays {
            Delays::List(list) if list.is_empty() || list.len() > Self::MAX_LIST => {
                return Err(PolicyError::ListLength { found: list.len() });
            }
            Delays::List(list) => list.iter().copied().try_for_each(check)?,
            Delays::Preset(_) => {}
            Delays::Fixed(delay) => check(*delay)?,
            Delays::Exponential { first, factor, cap } => {
                check(*first)?;
                check(*cap)?;
                if cap < first {
                    return Err(PolicyError::Cap);
                }
                if *factor != 1.0 && !(1.01..=1_000.0).contains(factor) {
                    return Err(PolicyError::Factor);
                }
            }
        }
        match self.max_attempts {
            Some(found) if found == 0 || found > Self::MAX_ATTEMPTS => {
                return Err(PolicyError::Attempts { found });
            }
            _ => {}
        }
        match self.max_age {
            Some(found) if found < Self::DELAY_MIN || found > Self::AGE_MAX => {
                Err(PolicyError::Age { found })
            }
            _ => Ok(()),
        }
    }

    /// The delay after the `failures`-th failure, before jitter; `None` when the schedule
    /// or the number of attempts is used up. O(1); for an exponential O(steps to its cap), which
    /// are at most 2,429.
    #[must_use]
    pub fn delay_after(&self, failures: u32) -> Option<Duration> {
        if failures == 0 || self.max_attempts.is_some_and(|max| failures >= max) {
            return None;
        }
        let listed = |list: &[Duration]| {
            let step = usize::try_from(failures - 1).unwrap_or(usize::MAX);
            match list.get(step) {
                Some(delay) => Some(*delay),
                // Only a stated number of attempts repeats the last step.
                None if self.max_attempts.is_some() => list.last().copied(),
                None => None,
            }
        };
        match &self.delays {
            Delays::List(list) => listed(list),
            Delays::Preset(preset) => listed(preset.delays()),
            Delays::Fixed(delay) => Some(*delay),
            Delays::Exponential { first, factor, cap } => {
                Some(exponential(*first, *factor, *cap, failures - 1))
            }
        }
    }

    /// Whether a retry that would start at `now` comes after the maximum age.
    pub(crate) fn is_too_old(&self, failures: u32, first_due: Timestamp, now: Timestamp) -> bool {
        failures > 0 && self.max_age.is_some_and(|age| now > first_due + age)
    }

    /// What follows the `failures`-th failure, noticed at `now`, of a timer whose first
    /// attempt was due at `first_due`. A receiver's own wish to wait (`not_before`, from
    /// Retry-After) can make the delay longer, never shorter.
    pub(crate) fn next(
        &self,
        failures: u32,
        first_due: Timestamp,
        now: Timestamp,
        not_before: Option<Timestamp>,
        random: &mut Random,
    ) -> Next {
        let Some(delay) = self.delay_after(failures) else {
            return Next::Exhausted;
        };
        let shortest = self.jitter.shortest(delay);
        let drawn = shortest + random.micros_up_to(delay.saturating_sub(shortest));
        let due = (now + drawn).max(not_before.unwrap_or(now));
        if self.is_too_old(failures, first_due, due) {
            return Next::TooOld;
        }
        Next::Retry(due)
    }

    /// Every retry of the schedule in order, should each attempt fail. Endless when
    /// nothing bounds the number of attempts. The maximum age is left to the caller, since
    /// it depends on how long each attempt takes.
    ///
    /// ```
    /// use countwheel_durable::{Delays, Jitter, RetryPolicy, RetryStep};
    /// use std::time::Duration;
    ///
    /// let policy = RetryPolicy {
    ///     delays: Delays::Fixed(Duration::from_secs(5)),
    ///     jitter: Jitter::Equal,
    ///     max_attempts: Some(3),
    ///     max_age: None,
    /// };
    /// let steps: Vec<RetryStep> = policy.preview().collect();
    /// assert_eq!(steps.len(), 2);
    /// assert_eq!(steps[0].attempt, 2);
    /// assert_eq!(steps[0].shortest, Duration::from_millis(2_500));
    /// assert_eq!(steps[0].longest, Duration::from_secs(5));
    /// ```
    pub fn preview(&self) -> impl Iterator<Item = RetryStep> + '_ {
        (1..u32::MAX).map_while(|failures| {
            let longest = self.delay_after(failures)?;
            Some(RetryStep {
                attempt: failures + 1,
                shortest: self.jitter.shortest(longest),
                longest,
            })
        })
    }
}

fn exponential(first: Duration, factor: f64, cap: Duration, doublings: u32) -> Duration {
    if factor <= 1.0 {
        return first;
    }
    // Multiplied step by step: the same bits on every machine. It ends at the cap, at most a
    // factor of 3e10 away.
    let cap_seconds = cap.as_secs_f64();
    let mut seconds = first.as_secs_f64();
    for _ in 0..doublings {
        seconds *= factor;
        if seconds >= cap_seconds {
            return cap;
        }
    }
    Duration::from_secs_f64(seconds).min(cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(delays: Delays) -> RetryPolicy {
        RetryPolicy {
            delays,
            jitter: Jitter::None,
            max_attempts: None,
            max_age: None,
        }
    }

    fn seconds(policy: &RetryPolicy, take: usize) -> Vec<u64> {
        let steps = policy.preview().take(take);
        steps.map(|step| step.longest.as_secs()).collect()
    }

    #[test]
    fn the_wechat_preset_takes_24_hours_and_4_minutes() {
        let policy = policy(Delays::Preset(Preset::Wechat));
        assert_eq!(policy.preview().count(), 15);
        assert_eq!(seconds(&policy, 99).iter().sum::<u64>(), 86_640);
    }

    #[test]
    fn a_list_that_is_used_up_ends_unless_more_attempts_are_asked_for() {
        let mut policy = policy(Delays::List(vec![
            Duration::from_secs(1),
            Duration::from_secs(7),
        ]));
        assert_eq!(seconds(&policy, 99), [1, 7]);
        policy.max_attempts = Some(5);
        assert_eq!(seconds(&policy, 99), [1, 7, 7, 7]);
        policy.max_attempts = Some(2);
        assert_eq!(seconds(&policy, 99), [1]);
        policy.max_attempts = Some(1);
        assert_eq!(seconds(&policy, 99), [0; 0]);
    }

    #[test]
    fn an_exponential_schedule_stops_growing_at_its_cap() {
        let policy = policy(Delays::Exponential {
            first: Duration::from_secs(1),
            factor: 3.0,
            cap: Duration::from_secs(20),
        });
        assert_eq!(seconds(&policy, 5), [1, 3, 9, 20, 20]);
        assert_eq!(policy.delay_after(u32::MAX), Some(Duration::from_secs(20)));
    }

    #[test]
    fn jitter_stays_inside_its_bounds_and_uses_them() {
        let now = Timestamp::from_micros(1_000_000_000);
        for (jitter, low, high) in [
            (Jitter::None, 10_000, 10_000),
            (Jitter::Full, 0, 10_000),
            (Jitter::Equal, 5_000, 10_000),
        ] {
            let mut policy = policy(Delays::Fixed(Duration::from_secs(10)));
            policy.jitter = jitter;
            let mut random = Random::new(1);
            let (mut least, mut most) = (u128::MAX, 0);
            for _ in 0..10_000 {
                let Next::Retry(due) = policy.next(1, now, now, None, &mut random) else {
                    panic!("a fixed schedule never ends");
                };
                let delay = due.saturating_since(now).as_millis();
                assert!((low..=high).contains(&delay), "{jitter:?}: {delay} ms");
                least = least.min(delay);
                most = most.max(delay);
            }
            assert!(least <= low + 10 && most >= high - 10, "{jitter:?}");
        }
    }

    #[test]
    fn an_attempt_after_the_maximum_age_is_not_made() {
        let mut policy = policy(Delays::Fixed(Duration::from_secs(10)));
        policy.max_age = Some(Duration::from_secs(25));
        let first_due = Timestamp::from_micros(0);
        let at = |seconds| Timestamp::EPOCH + Duration::from_secs(seconds);
        let mut random = Random::new(1);
        assert_eq!(
            policy.next(1, first_due, at(15), None, &mut random),
            Next::Retry(at(25))
        );
        assert_eq!(
            policy.next(2, first_due, at(16), None, &mut random),
            Next::TooOld
        );
        assert_eq!(
            policy.next(1, first_due, at(1), Some(at(26)), &mut random),
            Next::TooOld
        );
    }

    #[test]
    fn a_receiver_can_ask_for_more_time_but_not_for_less() {
        let policy = policy(Delays::Fixed(Duration::from_secs(10)));
        let at = |seconds| Timestamp::EPOCH + Duration::from_secs(seconds);
        let mut random = Random::new(1);
        let mut next = |not_before| policy.next(1, at(0), at(0), Some(at(not_before)), &mut random);
        assert_eq!(next(3), Next::Retry(at(10)));
        assert_eq!(next(30), Next::Retry(at(30)));
    }

    #[test]
    fn every_bound_is_checked() {
        let list = |seconds: &[u64]| {
            policy(Delays::List(
                seconds.iter().copied().map(Duration::from_secs).collect(),
            ))
        };
        let exponential = |factor| {
            policy(Delays::Exponential {
                first: Duration::from_secs(2),
                factor,
                cap: Duration::from_secs(3),
            })
        };
        assert_eq!(
            list(&[]).validate(),
            Err(PolicyError::ListLength { found: 0 })
        );
        assert!(list(&[0]).validate().is_err());
        assert!(list(&[366 * 86_400]).validate().is_err());
        assert!(list(&[1; 1_001]).validate().is_err());
        assert!(list(&[1; 1_000]).validate().is_ok());
        for factor in [0.0, 0.99, 1.000_001, 1_000.1, f64::NAN, f64::INFINITY, -2.0] {
            assert_eq!(exponential(factor).validate(), Err(PolicyError::Factor));
        }
        assert!(exponential(1.0).validate().is_ok());
        for found in [0, 10_001] {
            let mut policy = list(&[1]);
            policy.max_attempts = Some(found);
            assert_eq!(policy.validate(), Err(PolicyError::Attempts { found }));
        }
        let mut policy = list(&[1]);
        policy.max_age = Some(Duration::ZERO);
        assert!(policy.validate().is_err());
        assert!(RetryPolicy::default().validate().is_ok());
    }

    /// The numbers are those of the code before retry policies were moved to `countwheel-time`:
    /// a timer that was stored then is tried again at the same microsecond.
    #[test]
    fn a_stored_timer_is_tried_again_at_the_same_microsecond_in_every_version() {
        let exponential = |first, factor, cap| policy(Delays::Exponential { first, factor, cap });
        let days = |days: u64| Duration::from_secs(days * 86_400);
        let cases = [
            exponential(Duration::from_millis(100), 1.1, days(365)),
            exponential(Duration::from_nanos(1_234_567), 1.01, days(365)),
            exponential(days(300) + Duration::from_nanos(1_001), 1.5, days(365)),
            exponential(Duration::from_millis(1), 1_000.0, days(365)),
            exponential(Duration::from_secs(7), 3.3, Duration::from_secs(100)),
            exponential(Duration::from_nanos(7_000_003), 1.0, days(1)),
        ];
        let year = 31_536_000_000_000;
        let none = [
            [100_000, 110_000, 121_000, 10_671_896, year],
            [1_235, 1_247, 1_260, 2_011, 536_958_665_654],
            [25_920_000_000_002, year, year, year, year],
            [1_000, 1_000_000, 1_000_000_000, year, year],
            [7_000_000, 23_100_000, 76_230_000, 100_000_000, 100_000_000],
            [7_001, 7_001, 7_001, 7_001, 7_001],
        ];
        let full = [
            [68_236, 82_577, 32_104, 8_375_450, 8_279_884_710_627],
            [842, 936, 334, 1_578, 140_980_335_045],
            [
                17_686_842_090_656,
                23_673_914_144_333,
                8_367_208_486_736,
                24_749_884_605_580,
                8_279_884_710_627,
            ],
            [
                683,
                750_695,
                265_322_440,
                24_749_884_605_580,
                8_279_884_710_627,
            ],
            [4_776_539, 17_341_052, 20_225_529, 78_481_370, 26_255_342],
            [4_777, 5_255, 1_857, 5_494, 1_838],
        ];
        let equal = [
            [84_118, 96_288, 76_552, 9_523_673, 19_907_942_355_313],
            [1_039, 1_092, 797, 1_795, 338_969_500_349],
            [
                21_803_421_045_329,
                27_604_957_072_166,
                19_951_604_243_368,
                28_142_942_302_790,
                19_907_942_355_313,
            ],
            [
                841,
                875_348,
                632_661_220,
                28_142_942_302_790,
                19_907_942_355_313,
            ],
            [5_888_270, 20_220_526, 48_227_765, 89_240_685, 63_127_671],
            [5_889, 6_129, 4_429, 6_248, 4_420],
        ];
        let start = Timestamp::EPOCH;
        for (jitter, expected) in [
            (Jitter::None, none),
            (Jitter::Full, full),
            (Jitter::Equal, equal),
        ] {
            for (case, expected) in cases.iter().zip(expected) {
                let case = RetryPolicy {
                    jitter,
                    ..case.clone()
                };
                let mut random = Random::new(9);
                let drawn = [1, 2, 3, 50, 2_000].map(|failures| {
                    match case.next(failures, start, start, None, &mut random) {
                        Next::Retry(at) => at.as_micros(),
                        next => panic!("{next:?}"),
                    }
                });
                assert_eq!(drawn, expected, "{case:?}");
            }
        }
    }
}
