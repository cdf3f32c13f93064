//! Retry policies: schedules as data, and the budget that many share.

use std::time::Duration;

use countwheel::Instant;
use countwheel_patterns::{
    Attempts, GiveUp, Jitter, RetryBudget, RetryBudgetError, RetryPolicy, RetryPolicyError,
};

use crate::support::{HOUR, Random, SECOND};

fn seconds(policy: &RetryPolicy, most: usize) -> Vec<u64> {
    let steps = policy.preview().take(most);
    steps.map(|step| step.delay.as_secs()).collect()
}

fn after(span: Duration) -> Instant {
    Instant::ZERO + span
}

fn made(attempts: u32, seed: u64) -> Attempts {
    let mut made = Attempts::new(Instant::ZERO, seed);
    (0..attempts).for_each(|_| {
        made.begin();
    });
    made
}

/// 2.1, 2.2, 2.6, 2.9 and the payment schedule.
#[test]
fn presets_have_the_numbers_of_the_originals() {
    assert_eq!(seconds(&RetryPolicy::dubbo_failback(), 9), [5, 5, 5]);
    assert_eq!(seconds(&RetryPolicy::dubbo_registry(), 1000), [5; 1000]);
    assert_eq!(
        seconds(&RetryPolicy::go_zero_cleaner(), 9),
        [1, 5, 60, 300, 3600]
    );
    assert_eq!(
        seconds(&RetryPolicy::eureka(), 7),
        [30, 60, 120, 240, 300, 300, 300]
    );
    let wechat = [
        15, 15, 30, 180, 600, 1200, 1800, 1800, 1800, 3600, 10_800, 10_800, 10_800, 21_600, 21_600,
    ];
    assert_eq!(seconds(&RetryPolicy::wechat(), 99), wechat);
    let last = RetryPolicy::wechat().preview().last().unwrap();
    assert_eq!(last.at, 24 * HOUR + 4 * 60 * SECOND);
}

/// 2.8: first + increment × (n − 1), with the defaults of SOFARegistry v5.4.2. A publication and
/// a cancellation once stood here with smaller increments than theirs.
#[test]
fn linear_schedules_are_those_of_sofa_registry() {
    let millis = Duration::from_millis;
    for (first, increment, retries, expected) in [
        (3000, 5000, 2, vec![3000, 8000]),                       // publish
        (500, 500, 2, vec![500, 1000]),                          // cancel
        (5000, 5000, 1, vec![5000]),                             // snapshot
        (500, 500, 3, vec![500, 1000, 1500]),                    // push
        (3000, 3000, 5, vec![3000, 6000, 9000, 12_000, 15_000]), // session notify
    ] {
        let policy = RetryPolicy::linear(millis(first), millis(increment)).max_retries(retries);
        let delays: Vec<_> = policy
            .preview()
            .map(|step| step.delay.as_millis())
            .collect();
        assert_eq!(delays, expected);
    }
}

#[test]
fn a_scaled_copy_keeps_its_proportions() {
    let demo = RetryPolicy::wechat().scaled(1e-3).unwrap();
    for (step, full) in demo.preview().zip(RetryPolicy::wechat().preview()) {
        assert_eq!(step.delay * 1000, full.delay);
    }
    assert_eq!(demo.preview().count(), 15);
    // The limits shrink with the delays, and what is unlimited stays so.
    let limited = RetryPolicy::eureka().max_age(HOUR).retry_after_cap(HOUR);
    let scaled = limited.scaled(0.5).unwrap();
    let half = RetryPolicy::exponential(15 * SECOND, 2.0)
        .unwrap()
        .cap(150 * SECOND);
    assert_eq!(scaled, half.max_age(HOUR / 2).retry_after_cap(HOUR / 2));
    assert_eq!(
        RetryPolicy::fixed(SECOND).scaled(0.5),
        Ok(RetryPolicy::fixed(SECOND / 2))
    );
    assert_eq!(
        RetryPolicy::fixed(SECOND).scaled(0.0),
        Ok(RetryPolicy::fixed(Duration::ZERO))
    );
    for wrong in [f64::NAN, f64::INFINITY, -0.1] {
        let error = RetryPolicy::wechat().scaled(wrong).unwrap_err();
        assert!(matches!(error, RetryPolicyError::Scale(_)));
    }
}

#[test]
fn what_is_not_a_schedule_is_a_typed_error() {
    assert_eq!(RetryPolicy::list([]), Err(RetryPolicyError::NoDelay));
    assert_eq!(
        RetryPolicy::fixed(SECOND).max_attempts(0),
        Err(RetryPolicyError::NoAttempt)
    );
    for wrong in [f64::NAN, f64::INFINITY, 0.99, 0.0, -2.0] {
        let error = RetryPolicy::exponential(SECOND, wrong).unwrap_err();
        assert!(matches!(error, RetryPolicyError::Factor(_)));
    }
    for wrong in [f64::NAN, f64::INFINITY, -0.01, 1.01] {
        assert!(matches!(
            Jitter::proportional(wrong),
            Err(RetryPolicyError::Share(_))
        ));
    }
    for wrong in [f64::NAN, f64::INFINITY, -0.01, 1e10] {
        for (share, floor) in [(wrong, 1.0), (1.0, wrong)] {
            let error = RetryBudget::new(share, floor, SECOND).unwrap_err();
            assert!(matches!(error, RetryBudgetError::Retries(_)));
        }
    }
    let error = RetryBudget::new(1.0, 1.0, Duration::from_nanos(9)).unwrap_err();
    assert_eq!(error, RetryBudgetError::Window);
}

#[test]
fn no_duration_overflows() {
    let all = [
        RetryPolicy::fixed(Duration::MAX),
        RetryPolicy::linear(Duration::MAX, Duration::MAX),
        RetryPolicy::linear(Duration::ZERO, Duration::MAX),
        RetryPolicy::exponential(Duration::MAX, f64::MAX).unwrap(),
        RetryPolicy::exponential(Duration::from_nanos(1), 2.0).unwrap(),
        RetryPolicy::list([Duration::MAX]).unwrap().repeat_last(),
    ];
    let jitters = [
        Jitter::None,
        Jitter::Full,
        Jitter::Equal,
        Jitter::proportional(1.0).unwrap(),
    ];
    for policy in all {
        assert_eq!(policy.delay(u32::MAX), Some(Duration::MAX), "{policy:?}");
        for jitter in jitters {
            let policy = policy.clone().jitter(jitter);
            assert_eq!(policy.preview().take(100).count(), 100);
            assert_eq!(policy.preview_seeded(1).take(100).count(), 100);
            let next = made(1, 1).next(&policy, Instant::MAX);
            assert_eq!(next, Ok(Instant::MAX));
        }
    }
    let zero = RetryPolicy::exponential(Duration::ZERO, 1e300).unwrap();
    assert_eq!(
        zero.delay(u32::MAX),
        Some(Duration::ZERO),
        "nothing times infinity is nothing"
    );
    let mut attempts = made(1, 0);
    (0..10).for_each(|_| {
        attempts.begin();
    });
    assert_eq!(attempts.made(), 11);
}

#[test]
fn limits_end_a_schedule() {
    let list = RetryPolicy::list([SECOND, 2 * SECOND]).unwrap();
    assert_eq!(seconds(&list, 9), [1, 2]);
    assert_eq!(seconds(&list.clone().repeat_last(), 4), [1, 2, 2, 2]);
    assert_eq!(
        seconds(&list.clone().repeat_last().max_attempts(4).unwrap(), 9),
        [1, 2, 2]
    );
    assert_eq!(seconds(&list.clone().max_retries(1), 9), [1]);
    assert_eq!(seconds(&list.cap(SECOND), 9), [1, 1]);
    assert_eq!(
        seconds(&RetryPolicy::fixed(SECOND).max_retries(0), 9),
        [0; 0]
    );
    let forever = RetryPolicy::fixed(SECOND).max_retries(u32::MAX);
    assert_eq!(forever.delay(u32::MAX - 1), Some(SECOND));

    // The age counts from the start of the first attempt and includes its limit.
    let aged = RetryPolicy::fixed(SECOND).max_age(10 * SECOND);
    assert_eq!(
        made(1, 0).next(&aged, after(9 * SECOND)),
        Ok(after(10 * SECOND))
    );
    let late = after(9 * SECOND + Duration::from_nanos(1));
    assert_eq!(made(1, 0).next(&aged, late), Err(GiveUp::MaxAge));
    assert_eq!(aged.preview().count(), 10);
    let late = Attempts::new(after(HOUR), 0);
    assert_eq!(late.next(&aged, after(HOUR)), Ok(after(HOUR + SECOND)));
}

#[test]
fn a_wanted_delay_takes_the_place_of_the_own_within_the_limits() {
    let policy = RetryPolicy::fixed(SECOND)
        .jitter(Jitter::Full)
        .max_retries(2)
        .max_age(100 * SECOND)
        .retry_after_cap(60 * SECOND);
    let next =
        |attempts, ended, wanted| made(attempts, 3).next_after(&policy, after(ended), wanted);
    assert_eq!(
        next(1, SECOND, 30 * SECOND),
        Ok(after(31 * SECOND)),
        "longer"
    );
    assert_eq!(
        next(1, SECOND, Duration::ZERO),
        Ok(after(SECOND)),
        "or shorter"
    );
    assert_eq!(
        next(1, SECOND, Duration::MAX),
        Ok(after(61 * SECOND)),
        "but bounded"
    );
    assert_eq!(next(2, 40 * SECOND, HOUR), Ok(after(100 * SECOND)));
    assert_eq!(next(2, 41 * SECOND, HOUR), Err(GiveUp::MaxAge));
    assert_eq!(next(3, SECOND, Duration::ZERO), Err(GiveUp::Attempts));
}

#[test]
fn jitter_is_uniform_within_its_range() {
    let proportional = Jitter::proportional(0.05).unwrap();
    for (jitter, least, most) in [
        (Jitter::Full, 0, 10_000),
        (Jitter::Equal, 5_000, 10_000),
        (proportional, 9_500, 10_500),
        (Jitter::None, 10_000, 10_000),
    ] {
        let policy = RetryPolicy::fixed(Duration::from_nanos(10_000)).jitter(jitter);
        let step = policy.preview().next().unwrap();
        assert_eq!(
            (step.earliest.as_nanos(), step.latest.as_nanos()),
            (least, most)
        );
        let draws: Vec<_> = (0..20_000)
            .map(|seed| policy.preview_seeded(seed).next().unwrap().as_nanos())
            .collect();
        let mean = draws.iter().sum::<u128>() / 20_000;
        let middle = u128::midpoint(least, most);
        assert!(
            mean.abs_diff(middle) <= (most - least) / 100,
            "{jitter:?}: {mean}"
        );
        assert!(draws.iter().all(|draw| (least..=most).contains(draw)));
        let near = |edge: u128| {
            draws
                .iter()
                .any(|draw| draw.abs_diff(edge) <= (most - least) / 500)
        };
        assert!(near(least) && near(most), "{jitter:?} reaches its ends");
    }
}

/// Any schedule against the plainest one there is, in numbers of its own.
#[test]
fn next_is_the_sum_of_what_the_parts_say() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let first = Duration::from_nanos(random.nanos_up_to(1 << 40));
        let step = Duration::from_nanos(random.nanos_up_to(1 << 40));
        let jitter = match random.below(4) {
            0 => Jitter::None,
            1 => Jitter::Full,
            2 => Jitter::Equal,
            _ => Jitter::proportional(0.25).unwrap(),
        };
        let cap = Duration::from_nanos(1 + random.nanos_up_to(1 << 41));
        let retries = u32::try_from(random.below(12)).unwrap();
        let age = Duration::from_nanos(random.nanos_up_to(1 << 44));
        let (policy, nominal): (_, Box<dyn Fn(u32) -> Duration>) = match random.below(3) {
            0 => (
                RetryPolicy::linear(first, step),
                Box::new(move |retry| first + step * (retry - 1)),
            ),
            1 => (
                RetryPolicy::exponential(first, 2.0).unwrap(),
                Box::new(move |retry| first * 2_u32.pow(retry - 1)),
            ),
            _ => (
                RetryPolicy::list([first, step]).unwrap().repeat_last(),
                Box::new(move |retry| if retry == 1 { first } else { step }),
            ),
        };
        let policy = policy
            .cap(cap)
            .jitter(jitter)
            .max_retries(retries)
            .max_age(age);
        let mut attempts = Attempts::new(Instant::ZERO, seed);
        let mut now = Instant::ZERO;
        let mut ideal = policy.preview_seeded(seed);
        let mut is_ideal = true;
        loop {
            let retry = attempts.begin();
            let took = Duration::from_nanos(random.below(2) * random.nanos_up_to(1 << 30));
            is_ideal &= took.is_zero();
            now = now + took;
            let next = attempts.next(&policy, now);
            assert_eq!(next, attempts.next(&policy, now), "pure");
            if is_ideal {
                let at = next.ok().map(|next| next.saturating_since(Instant::ZERO));
                assert_eq!(ideal.next(), at);
            }
            let delay = (retry <= retries).then(|| nominal(retry).min(cap));
            assert_eq!(policy.delay(retry), delay);
            let next = match next {
                Err(GiveUp::Attempts) => {
                    assert_eq!(delay, None);
                    break;
                }
                Err(reason) => {
                    assert_eq!(reason, GiveUp::MaxAge);
                    let longest = now + delay.unwrap() * 5 / 4;
                    assert!(longest > Instant::ZERO + age);
                    break;
                }
                Ok(next) => next,
            };
            let delay = delay.unwrap();
            let (least, most) = match jitter {
                Jitter::Full => (Duration::ZERO, delay),
                Jitter::Equal => (delay / 2, delay),
                Jitter::Proportional(_) => (delay - delay / 4, delay + delay / 4),
                _ => (delay, delay),
            };
            let nano = Duration::from_nanos(1);
            let drawn = next.saturating_since(now);
            assert!(
                least.saturating_sub(nano) <= drawn && drawn <= most + nano,
                "{jitter:?}"
            );
            assert!(next <= Instant::ZERO + age);
            now = next;
        }
    }
}

// ---- the budget --------------------------------------------------------------------------

#[test]
fn a_budget_allows_a_share_and_a_floor() {
    let budget = RetryBudget::new(0.2, 0.0, 10 * SECOND).unwrap();
    let now = Instant::ZERO;
    assert!(!budget.withdraw(now), "nothing was put in");
    (0..4).for_each(|_| budget.deposit(now));
    assert!(!budget.withdraw(now), "four fifths of a token");
    budget.deposit(now);
    assert!(budget.clone().withdraw(now), "clones share");
    assert!(!budget.withdraw(now));

    let floor = RetryBudget::new(0.0, 3.0, 10 * SECOND).unwrap();
    assert_eq!(floor.balance(now), 30);
    assert_eq!((0..99).filter(|_| floor.withdraw(now)).count(), 30);
    assert_eq!(floor.balance(now + 9 * SECOND), 0);
    assert_eq!(
        floor.balance(now + 10 * SECOND),
        30,
        "what was taken is forgotten, too"
    );
    assert_eq!(
        floor.balance(now),
        30,
        "a clock that goes back changes nothing"
    );
    assert_eq!(floor.balance(Instant::MAX), 30);
}

/// Against a list of all that ever happened.
#[test]
fn a_budget_is_a_window_over_what_happened() {
    for seed in 0..300 {
        let mut random = Random(seed);
        // Milliseconds of which a second has a number that is exact in binary.
        let window = [10, 20, 40, 50, 80, 100, 200][usize::try_from(random.below(7)).unwrap()];
        let share = random.below(5);
        let floor = random.below(3);
        let float = |number: u64| f64::from(u32::try_from(number).unwrap());
        let budget = RetryBudget::new(
            float(share) / 4.0,
            float(floor) * 1000.0 / float(window),
            Duration::from_millis(window),
        )
        .unwrap();
        let mut events: Vec<(u64, i64)> = Vec::new();
        let mut now = 0;
        for _ in 0..200 {
            now += random.below(window / 4 + 1);
            let instant = after(Duration::from_millis(now));
            let slot = |time: u64| time / (window / 10);
            let is_counted = |(time, _): &&(u64, i64)| slot(*time) + 10 > slot(now);
            let left: i64 = events
                .iter()
                .filter(is_counted)
                .map(|(_, quarters)| quarters)
                .sum();
            let left = left + 4 * i64::try_from(floor).unwrap();
            if random.below(3) < 2 {
                budget.deposit(instant);
                events.push((now, i64::try_from(share).unwrap()));
            } else {
                assert_eq!(budget.withdraw(instant), left >= 4, "seed {seed}");
                if left >= 4 {
                    events.push((now, -4));
                }
            }
        }
    }
}
