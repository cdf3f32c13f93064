//! Retry policies of durable timers: which ones are kept, and what follows a failed attempt.

use std::time::Duration;

use countwheel_time::{Preset, Random, RetryPolicy, Timestamp};

use crate::store::stored_policy::{Stored, StoredDelays};

/// The most delays a list can have.
pub(crate) const MAX_LIST: usize = 1_000;
/// The largest `max_attempts`.
pub(crate) const MAX_ATTEMPTS: u32 = 10_000;

const DELAY_MIN: Duration = Duration::from_millis(1);
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(365 * 86_400);
const AGE_MAX: Duration = Duration::from_secs(36_525 * 86_400);

/// The presets that durable timers keep under their names: all there are.
///
/// ```
/// use countwheel_durable::{RETRY_PRESETS, check_policy};
///
/// for preset in RETRY_PRESETS {
///     check_policy(&preset.policy())?;
/// }
/// # Ok::<(), countwheel_durable::PolicyError>(())
/// ```
pub const RETRY_PRESETS: [Preset; 5] = Preset::ALL;

/// Checks that durable timers take a policy. A set checks the policy of its own accord.
///
/// A record has room for a list, a fixed delay, a linear or exponential schedule with a cap, and the
/// [presets](RETRY_PRESETS), with a [`Jitter`](crate::Jitter) that is none, full or equal. Each
/// delay, the increment and the cap are 1 ms to 365 days, `max_age` is at most 36,525 days, `max_attempts` 1 to
/// 10,000, and a factor 1 or 1.01 to 1,000. A list has 1 to 1,000 delays and
/// [repeats its last](RetryPolicy::repeat_last) if `max_attempts` goes beyond its end.
///
/// ```
/// use countwheel_durable::{PolicyError, RetryPolicy, check_policy};
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// assert_eq!(check_policy(&RetryPolicy::fixed(second)), Ok(()));
/// let linear = RetryPolicy::linear(3 * second, 5 * second).cap(60 * second);
/// assert_eq!(check_policy(&linear), Ok(()));
/// let capped = RetryPolicy::wechat().cap(second);
/// assert!(matches!(check_policy(&capped), Err(PolicyError::NotKept { .. })));
/// let endless = RetryPolicy::exponential(second, 2.0)?; // up to 365 days
/// assert_eq!(check_policy(&endless), Ok(()));
/// # Ok::<(), countwheel_durable::RetryPolicyError>(())
/// ```
///
/// # Errors
/// [`PolicyError`] names the first bound that is broken.
pub fn check_policy(policy: &RetryPolicy) -> Result<(), PolicyError> {
    let stored = Stored::of(policy)?;
    match &stored.delays {
        StoredDelays::List(list) if list.is_empty() || list.len() > MAX_LIST => {
            return Err(PolicyError::ListLength { found: list.len() });
        }
        StoredDelays::List(list) => list.iter().copied().try_for_each(check_delay)?,
        StoredDelays::Preset(_) => {}
        StoredDelays::Fixed(delay) => check_delay(*delay)?,
        StoredDelays::Linear {
            first,
            increment,
            cap,
        } => {
            for delay in [first, increment, cap] {
                check_delay(*delay)?;
            }
            if cap < first {
                return Err(PolicyError::Cap);
            }
        }
        StoredDelays::Exponential { first, factor, cap } => {
            check_delay(*first)?;
            check_delay(*cap)?;
            if cap < first {
                return Err(PolicyError::Cap);
            }
            if *factor != 1.0 && !(1.01..=1_000.0).contains(factor) {
                return Err(PolicyError::Factor);
            }
        }
    }
    match stored.max_attempts {
        Some(found) if found == 0 || found > MAX_ATTEMPTS => {
            return Err(PolicyError::Attempts { found });
        }
        _ => {}
    }
    match stored.max_age {
        Some(found) if found < DELAY_MIN || found > AGE_MAX => Err(PolicyError::Age { found }),
        _ => Ok(()),
    }
}

fn check_delay(found: Duration) -> Result<(), PolicyError> {
    if found < DELAY_MIN || found > DELAY_MAX {
        return Err(PolicyError::Delay { found });
    }
    Ok(())
}

/// Whether a retry that would start at `now` comes after the maximum age.
pub(crate) fn is_too_old(
    policy: &RetryPolicy,
    failures: u32,
    first_due: Timestamp,
    now: Timestamp,
) -> bool {
    let max_age = policy.settings().max_age;
    failures > 0 && max_age.is_some_and(|age| now > first_due + age)
}

/// What follows by `policy` on the `failures`-th failure, noticed at `now`, of a timer whose first
/// attempt was due at `first_due`. A receiver's own wish to wait (`not_before`, from
/// Retry-After) can make the delay longer, never shorter.
pub(crate) fn next(
    policy: &RetryPolicy,
    failures: u32,
    first_due: Timestamp,
    now: Timestamp,
    not_before: Option<Timestamp>,
    random: &mut Random,
) -> Next {
    let Some(delay) = policy.delay(failures) else {
        return Next::Exhausted;
    };
    let (shortest, longest) = policy.settings().jitter.range(delay);
    let drawn = shortest + random.micros_up_to(longest.saturating_sub(shortest));
    let due = (now + drawn).max(not_before.unwrap_or(now));
    if is_too_old(policy, failures, first_due, due) {
        return Next::TooOld;
    }
    Next::Retry(due)
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

/// Why durable timers do not take a retry policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The policy says something that no record of a timer has room for.
    #[error("a durable timer keeps no {found}")]
    NotKept {
        /// What the policy says.
        found: &'static str,
    },
    /// The list has no delay, or too many.
    #[error("a retry schedule has 1 to {max} delays, not {found}", max = MAX_LIST)]
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
    #[error("the cap of a schedule is at least its first delay")]
    Cap,
    /// The number of attempts is out of range.
    #[error("max_attempts is from 1 to {max}, not {found}", max = MAX_ATTEMPTS)]
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

#[cfg(test)]
mod tests {
    use countwheel_time::{Jitter, RetryPolicyError};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn list(seconds: &[u64]) -> RetryPolicy {
        RetryPolicy::list(seconds.iter().copied().map(Duration::from_secs)).unwrap()
    }

    fn exponential(first: Duration, factor: f64, cap: Duration) -> RetryPolicy {
        RetryPolicy::exponential(first, factor).unwrap().cap(cap)
    }

    /// As it comes back from a store.
    fn stored(policy: &RetryPolicy) -> RetryPolicy {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Kept(#[serde(with = "crate::store::stored_policy")] RetryPolicy);
        let bytes = postcard::to_allocvec(&Kept(policy.clone())).unwrap();
        postcard::from_bytes::<Kept>(&bytes).unwrap().0
    }

    fn seconds(policy: &RetryPolicy, take: usize) -> Vec<u64> {
        let steps = policy.preview().take(take);
        steps.map(|step| step.delay.as_secs()).collect()
    }

    #[test]
    fn the_wechat_preset_takes_24_hours_and_4_minutes() {
        let policy = stored(&RetryPolicy::wechat());
        assert_eq!(policy.preview().count(), 15);
        assert_eq!(seconds(&policy, 99).iter().sum::<u64>(), 86_640);
    }

    #[test]
    fn a_list_that_is_used_up_ends_unless_more_attempts_are_asked_for() {
        let list = list(&[1, 7]);
        let attempts = |most| stored(&list.clone().repeat_last().max_attempts(most).unwrap());
        assert_eq!(seconds(&stored(&list), 99), [1, 7]);
        assert_eq!(seconds(&attempts(5), 99), [1, 7, 7, 7]);
        assert_eq!(seconds(&attempts(2), 99), [1]);
        assert_eq!(seconds(&attempts(1), 99), [0; 0]);
    }

    #[test]
    fn an_exponential_schedule_stops_growing_at_its_cap() {
        let policy = stored(&exponential(SECOND, 3.0, 20 * SECOND));
        assert_eq!(seconds(&policy, 5), [1, 3, 9, 20, 20]);
        assert_eq!(policy.delay(u32::MAX), Some(Duration::from_secs(20)));
    }

    #[test]
    fn what_a_record_has_no_room_for_is_refused_and_not_lost() {
        let minute = 60 * SECOND;
        let refused = [
            RetryPolicy::fixed(SECOND).cap(minute),
            RetryPolicy::wechat().cap(minute),
            list(&[1, 7]).cap(minute),
            list(&[1, 7]).repeat_last(),
            list(&[1, 7]).max_retries(3),
            RetryPolicy::wechat().max_retries(16),
            RetryPolicy::fixed(SECOND).retry_after_cap(minute),
            RetryPolicy::fixed(SECOND).jitter(Jitter::proportional(0.5).unwrap()),
        ];
        for policy in refused {
            let error = check_policy(&policy).unwrap_err();
            assert!(matches!(error, PolicyError::NotKept { .. }), "{policy:?}");
        }
    }

    #[test]
    fn what_a_record_has_room_for_comes_back_as_it_was_set() {
        let minute = 60 * SECOND;
        for preset in RETRY_PRESETS {
            let policy = preset.policy();
            assert_eq!(check_policy(&policy), Ok(()));
            assert_eq!(stored(&policy), policy);
        }
        let taken = [
            RetryPolicy::default(),
            RetryPolicy::eureka().max_retries(3).jitter(Jitter::Full),
            RetryPolicy::dubbo_failback().max_retries(1),
            RetryPolicy::go_zero_cleaner().repeat_last().max_retries(9),
            RetryPolicy::linear(3 * SECOND, 5 * SECOND).cap(minute),
            RetryPolicy::wechat().max_retries(15),
            RetryPolicy::wechat().repeat_last().max_retries(16),
            list(&[1, 7]).repeat_last().max_retries(1),
            list(&[1, 7]).max_retries(2).jitter(Jitter::Equal),
            list(&[1, 7]).repeat_last().max_retries(3),
            RetryPolicy::linear(SECOND, Duration::ZERO).max_age(minute),
            exponential(SECOND, 1.0, minute).jitter(Jitter::Full),
        ];
        for policy in taken {
            assert_eq!(check_policy(&policy), Ok(()));
            assert_eq!(stored(&policy), policy);
        }
    }

    /// Both were refused for a cap that nobody had asked for.
    #[test]
    fn a_schedule_without_a_cap_grows_to_the_longest_delay() {
        for (text, with_cap) in [
            ("linear:3s+5s", "linear:3s..365d+5s"),
            ("exp:1s", "exp:1s..365d"),
            ("exp:1s*3 attempts=5", "exp:1s..365d*3 attempts=5"),
        ] {
            let policy: RetryPolicy = text.parse().unwrap();
            assert_eq!(check_policy(&policy), Ok(()), "{text}");
            assert_eq!(stored(&policy), with_cap.parse().unwrap(), "{text}");
        }
        let first = RetryPolicy::linear(DELAY_MAX + SECOND, SECOND);
        assert!(check_policy(&first).is_err());
    }

    #[test]
    fn stored_bytes_that_are_no_policy_are_refused() {
        #[derive(Debug, serde::Deserialize)]
        struct Kept(
            #[expect(dead_code, reason = "it is refused")]
            #[serde(with = "crate::store::stored_policy")]
            RetryPolicy,
        );
        let fixed = [2, 1, 0, 0, 0, 0];
        assert!(postcard::from_bytes::<Kept>(&fixed).is_ok());
        let unknown_preset = [1, 5, 0, 0, 0];
        assert!(postcard::from_bytes::<Kept>(&unknown_preset).is_err());
        let no_attempt = [2, 1, 0, 0, 1, 0, 0];
        let no_delay = [0, 0, 0, 0, 0];
        let shrinks = [3, 1, 0, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f, 9, 0, 0, 0, 0]; // a factor of 0.5
        for bytes in [&no_attempt[..], &no_delay, &shrinks] {
            let error = postcard::from_bytes::<Kept>(bytes).unwrap_err();
            assert_eq!(error, postcard::Error::SerdeDeCustom);
        }
    }

    #[test]
    fn jitter_stays_inside_its_bounds_and_uses_them() {
        let now = Timestamp::from_micros(1_000_000_000);
        for (jitter, low, high) in [
            (Jitter::None, 10_000, 10_000),
            (Jitter::Full, 0, 10_000),
            (Jitter::Equal, 5_000, 10_000),
        ] {
            let policy = RetryPolicy::fixed(Duration::from_secs(10)).jitter(jitter);
            let mut random = Random::new(1);
            let (mut least, mut most) = (u128::MAX, 0);
            for _ in 0..10_000 {
                let Next::Retry(due) = next(&policy, 1, now, now, None, &mut random) else {
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
        let policy = RetryPolicy::fixed(Duration::from_secs(10)).max_age(Duration::from_secs(25));
        let first_due = Timestamp::from_micros(0);
        let at = |seconds| Timestamp::EPOCH + Duration::from_secs(seconds);
        let mut random = Random::new(1);
        assert_eq!(
            next(&policy, 1, first_due, at(15), None, &mut random),
            Next::Retry(at(25))
        );
        assert_eq!(
            next(&policy, 2, first_due, at(16), None, &mut random),
            Next::TooOld
        );
        assert_eq!(
            next(&policy, 1, first_due, at(1), Some(at(26)), &mut random),
            Next::TooOld
        );
    }

    #[test]
    fn a_receiver_can_ask_for_more_time_but_not_for_less() {
        let policy = RetryPolicy::fixed(Duration::from_secs(10));
        let at = |seconds| Timestamp::EPOCH + Duration::from_secs(seconds);
        let mut random = Random::new(1);
        let mut retry =
            |not_before| next(&policy, 1, at(0), at(0), Some(at(not_before)), &mut random);
        assert_eq!(retry(3), Next::Retry(at(10)));
        assert_eq!(retry(30), Next::Retry(at(30)));
    }

    #[test]
    fn every_bound_is_checked() {
        let factored = |factor| exponential(2 * SECOND, factor, 3 * SECOND);
        assert!(check_policy(&list(&[0])).is_err());
        assert!(check_policy(&list(&[366 * 86_400])).is_err());
        let found = 1_001;
        let long = check_policy(&list(&[1; 1_001]));
        assert_eq!(long, Err(PolicyError::ListLength { found }));
        assert!(check_policy(&list(&[1; 1_000])).is_ok());
        for factor in [1.000_001, 1_000.1] {
            assert_eq!(check_policy(&factored(factor)), Err(PolicyError::Factor));
        }
        for factor in [0.0, 0.99, f64::NAN, f64::INFINITY, -2.0] {
            let error = RetryPolicy::exponential(SECOND, factor).unwrap_err();
            assert!(matches!(error, RetryPolicyError::Factor(_)));
        }
        assert!(check_policy(&factored(1.0)).is_ok());
        assert_eq!(
            check_policy(&exponential(4 * SECOND, 2.0, 3 * SECOND)),
            Err(PolicyError::Cap)
        );
        let linear = |increment| RetryPolicy::linear(4 * SECOND, increment);
        let found = 366 * 86_400 * SECOND;
        let long = check_policy(&linear(found).cap(5 * SECOND));
        assert_eq!(long, Err(PolicyError::Delay { found }));
        let low = check_policy(&linear(SECOND).cap(3 * SECOND));
        assert_eq!(low, Err(PolicyError::Cap));
        let found = 10_001;
        let many = list(&[1]).repeat_last().max_attempts(found).unwrap();
        assert_eq!(check_policy(&many), Err(PolicyError::Attempts { found }));
        assert!(list(&[1]).max_attempts(0).is_err());
        assert!(check_policy(&list(&[1]).max_age(Duration::ZERO)).is_err());
        assert!(check_policy(&RetryPolicy::default()).is_ok());
    }

    /// The numbers are those of the code before retry policies were moved to `countwheel-time`:
    /// a timer that was stored then is tried again at the same microsecond.
    #[test]
    fn a_stored_timer_is_tried_again_at_the_same_microsecond_in_every_version() {
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
                let case = stored(&case.clone().jitter(jitter));
                let mut random = Random::new(9);
                let drawn = [1, 2, 3, 50, 2_000].map(|failures| {
                    match next(&case, failures, start, start, None, &mut random) {
                        Next::Retry(at) => at.as_micros(),
                        next => panic!("{next:?}"),
                    }
                });
                assert_eq!(drawn, expected, "{case:?}");
            }
        }
    }
}
