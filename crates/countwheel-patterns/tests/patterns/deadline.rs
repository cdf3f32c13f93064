//! Deadlines that are handed down only shrink.

use std::future::pending;
use std::time::Duration;

use countwheel::{Instant, Layout, TimeoutError};
use countwheel_patterns::{Deadline, DeadlineExceeded, Limit, Requests, TimerExt};

use crate::support::{Count, HOUR, MS, Random, SECOND, manual, ns};

#[test]
fn whatever_is_done_to_it_a_child_never_outlives_its_parent() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut now = Instant::from_nanos(random.nanos_up_to(u64::MAX / 2));
        let mut deadline = match random.below(4) {
            0 => Deadline::NEVER,
            _ => Deadline::at(now + ns(random.nanos_up_to(u64::MAX / 4))),
        };
        for _ in 0..50 {
            let span = match random.below(8) {
                0 => Duration::ZERO,
                1 => Duration::MAX,
                _ => ns(random.nanos_up_to(1 << 40)),
            };
            let child = match random.below(4) {
                0 => deadline.shrink_to(now, span),
                1 => deadline.shrink_by(span),
                2 => deadline.min(Deadline::at(now + span)),
                // Through a header, and over to the other side, in no time at all.
                _ => Deadline::from_millis_left(now, deadline.millis_left(now)),
            };
            // What has passed is sent as "nothing left": the child's clock says now.
            assert!(child <= deadline.max(Deadline::at(now)), "seed {seed}");
            assert!(
                child.remaining(now) <= deadline.remaining(now),
                "seed {seed}"
            );
            if random.below(3) == 0 {
                deadline = child;
            }
            now = now + ns(random.nanos_up_to(1 << 30));
        }
    }
}

#[test]
fn a_deadline_is_reached_at_its_nanosecond_and_not_before() {
    let deadline = Deadline::at(Instant::from_nanos(1_000));
    assert_eq!(deadline.check(Instant::from_nanos(999)), Ok(ns(1)));
    for nanos in [1_000, 1_001, u64::MAX] {
        let now = Instant::from_nanos(nanos);
        assert_eq!(deadline.check(now), Err(DeadlineExceeded));
        assert_eq!(deadline.remaining(now), Duration::ZERO);
        assert_eq!(deadline.millis_left(now), Some(0));
    }
    assert_eq!(
        Deadline::NEVER.check(Instant::from_nanos(7)),
        Ok(Duration::MAX)
    );
    assert_eq!(DeadlineExceeded.to_string(), "the deadline has passed");
}

#[test]
fn a_header_has_whole_milliseconds_rounded_down() {
    let now = Instant::from_nanos(5);
    for (nanos, millis) in [(0, 0), (1, 0), (999_999, 0), (1_000_000, 1), (1_999_999, 1)] {
        assert_eq!(Deadline::at(now + ns(nanos)).millis_left(now), Some(millis));
    }
    let far = Deadline::from_millis_left(now, Some(u64::MAX));
    assert_eq!(far, Deadline::NEVER, "the sum stops at the end of time");
    assert_eq!(Deadline::from_millis_left(now, None), Deadline::NEVER);
    assert_eq!(
        Deadline::from_millis_left(now, Some(3)),
        Deadline::at(now + 3 * MS)
    );
}

#[test]
fn a_request_and_a_future_keep_to_the_deadline_they_are_given() {
    let mut host = manual(MS, Layout::default());
    let timer = host.timer().clone();
    let page = Deadline::after(&timer, 2 * SECOND);
    let query = page.shrink_to(timer.now(), HOUR);
    assert_eq!(query, page);

    let requests = Requests::<()>::new(timer.clone());
    let mut response = requests.register(query).unwrap();
    let mut limited = timer.timeout_by(query, pending::<()>());
    let waker = Count::new();
    assert!(waker.poll(&mut response).is_pending());
    assert!(waker.poll(&mut limited).is_pending());
    host.advance(2 * SECOND - ns(1));
    assert_eq!(waker.woken(), 0);
    host.advance(ns(1));
    assert_eq!(waker.woken(), 2);
    assert!(response.wait().is_err());
    let std::task::Poll::Ready(Err(TimeoutError::Elapsed)) = waker.poll(&mut limited) else {
        panic!("it is due");
    };

    // What has passed already ends at once.
    let response = requests.register(query).unwrap();
    host.run_due();
    assert!(response.is_ended());
    assert_eq!(Limit::from(page), Limit::from(page.instant()));
}
