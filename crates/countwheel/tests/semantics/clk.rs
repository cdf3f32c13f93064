//! CLK: the clock, the sleep, and what waking costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel::{Clock, Instant, Layout, ManualClock, ManualHost, Timer, Timestamp};

use super::harness::Hosted;
use crate::support::{HOUR, Journal, MS, SECOND, YEAR, layouts, manual, ns, ticks_of};

// CLK-1
#[test]
fn the_first_instant_is_a_time_like_any_other() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let journal = Journal::new();
        let timer = host.timer();
        timer
            .schedule_at(Instant::ZERO, journal.writes("zero"))
            .unwrap();
        timer.schedule(MS, journal.writes("one")).unwrap();
        assert_eq!(host.run_due(), 1);
        assert_eq!(host.advance(MS), 1);
        assert_eq!(journal.take(), ["zero", "one"]);
    }
}

// CLK-2
#[test]
fn to_schedule_waits_for_no_host() {
    let mut hosted = Hosted::new(Timer::builder());
    let journal = Journal::new();
    let timer = hosted.timer.clone();
    // Nobody has polled the host, ever.
    timer.schedule(MS, journal.writes("early bird")).unwrap();
    assert!(timer.schedule(MS, || ()).unwrap().cancel());
    assert_eq!(timer.pending(), 1);
    hosted.advance(MS);
    assert_eq!(journal.take(), ["early bird"]);
}

// CLK-3, CLK-4
#[test]
fn a_sleep_lasts_exactly_until_the_deadline_whatever_its_length() {
    for layout in layouts() {
        for tick in [ns(1), ns(333), MS] {
            let mut hosted = Hosted::new(ticks_of(tick, layout));
            let mut expected = Vec::new();
            for delay in [ns(1), ns(999), MS, ns(10_000_001), SECOND, HOUR] {
                let from = hosted.clock.now();
                let timeout = hosted.timer.schedule(delay, || ()).unwrap();
                hosted.settle();
                let until = hosted.asleep_until().unwrap();
                assert!(until >= timeout.deadline());
                assert!(until.saturating_since(timeout.deadline()) < tick);
                expected.push(until.saturating_since(from));
                hosted.advance(delay + tick);
                assert!(timeout.is_expired());
            }
            assert_eq!(
                hosted.naps(),
                expected,
                "one sleep each, not cut or rounded"
            );
        }
    }
}

// CLK-3
#[test]
fn what_follows_from_deadlines_does_not_drift() {
    fn again(timer: &Timer, deadline: Instant, journal: &Journal<Duration>) {
        let (next, journal) = (timer.clone(), journal.clone());
        let task = move || {
            journal.write(next.now().saturating_since(deadline));
            again(&next, deadline + ns(1_234_567), &journal);
        };
        timer.schedule_at(deadline, task).unwrap();
    }
    let mut host = ManualHost::new();
    let journal = Journal::new();
    again(host.timer(), Instant::ZERO + ns(1_234_567), &journal);
    let ran = host.advance(ns(1_234_567) * 1_000 + MS);
    assert_eq!(ran, 1_000, "a thousand periods later, none is missing");
    assert!(journal.take().into_iter().all(|lateness| lateness < MS));
}

// CLK-5
#[test]
fn a_stall_costs_as_much_as_what_is_due_however_long_it_was() {
    // A century has 3e18 ticks: whoever walked them would not come back.
    for layout in layouts() {
        let mut host = manual(ns(1), layout);
        let journal = Journal::new();
        for years in (1..=100_u32).rev() {
            let task = journal.writes(years);
            host.timer().schedule(years * YEAR, task).unwrap();
        }
        host.timer().schedule(200 * YEAR, || ()).unwrap();
        host.clock().advance(150 * YEAR);
        assert_eq!(host.run_due(), 100);
        assert!(journal.take().into_iter().eq(1..=100));
        assert_eq!(host.timer().pending(), 1);
        assert_eq!(host.next_wake(), Some(Instant::ZERO + 200 * YEAR));
    }
}

// CLK-5
#[test]
fn a_host_that_was_suspended_makes_up_for_it_in_order_and_at_once() {
    for layout in layouts() {
        let mut hosted = Hosted::new(ticks_of(MS, layout));
        let journal = Journal::new();
        for minutes in (1..=60_u32).rev() {
            let task = journal.writes(minutes);
            hosted.timer.schedule(minutes * 60 * SECOND, task).unwrap();
        }
        hosted.settle();
        hosted.clock.advance(24 * HOUR);
        hosted.poll();
        hosted.settle();
        assert!(journal.take().into_iter().eq(1..=60));
        assert_eq!(hosted.timer.stats().wake_ups, 1);
    }
}

// CLK-6
#[test]
fn with_nothing_pending_nothing_ever_wakes() {
    for layout in layouts() {
        let mut hosted = Hosted::new(ticks_of(MS, layout));
        hosted.timer.schedule(Duration::ZERO, || ()).unwrap();
        hosted.timer.schedule(HOUR, || ()).unwrap();
        hosted.advance(HOUR);
        assert_eq!(hosted.asleep_until(), None, "for ever");
        assert_eq!(hosted.timer.stats().wake_ups, 1);
        hosted.advance(YEAR);
        assert_eq!(hosted.timer.stats().wake_ups, 1);
    }
}

// CLK-6
#[test]
fn a_deadline_at_the_end_of_time_wakes_nobody_before() {
    for layout in layouts() {
        let mut hosted = Hosted::new(ticks_of(MS, layout));
        hosted.timer.schedule(Duration::MAX, || ()).unwrap();
        hosted.advance(500 * YEAR);
        assert_eq!(hosted.asleep_until(), None);
        assert_eq!(hosted.timer.stats().wake_ups, 0);
        assert_eq!(hosted.timer.pending(), 1);
    }
}

fn wake_ups_in_the_hour_before(timers: u64, layout: Layout) -> u64 {
    let mut hosted = Hosted::new(ticks_of(MS, layout));
    for number in 0..timers {
        let delay = HOUR + Duration::from_millis(1 + number % 3_600_000);
        hosted.timer.schedule(delay, || ()).unwrap();
    }
    hosted.advance(HOUR);
    assert_eq!(hosted.timer.pending(), timers);
    hosted.timer.stats().wake_ups
}

// CLK-6, CLK-7
#[test]
fn a_hundred_thousand_far_timers_are_left_alone() {
    for layout in [Layout::Hierarchical, Layout::hashed(512).unwrap()] {
        assert_eq!(wake_ups_in_the_hour_before(1_000, layout), 0);
    }
    let wake_ups = wake_ups_in_the_hour_before(100_000, Layout::Hierarchical);
    assert!(wake_ups <= 8, "one a level at most, not {wake_ups}");
    let wake_ups = wake_ups_in_the_hour_before(100_000, Layout::hashed(512).unwrap());
    assert!(wake_ups <= 8, "{wake_ups}");
}

// CLK-8
#[test]
fn the_wall_clock_may_be_set_without_any_effect() {
    let mut host = ManualHost::new();
    let journal = Journal::new();
    host.timer().schedule(HOUR, journal.writes("due")).unwrap();
    for wall in [Timestamp::MAX, Timestamp::EPOCH] {
        host.clock().set_timestamp(wall);
        assert_eq!(host.advance(HOUR / 2 - MS), 0);
    }
    assert_eq!(host.advance(2 * MS), 1);
    assert_eq!(journal.take(), ["due"]);
    assert_eq!(host.timer().stats().lateness_max, Duration::ZERO);
}

/// A clock that breaks its promise.
#[derive(Clone, Debug)]
struct Liar(Arc<AtomicU64>);

impl Clock for Liar {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp::EPOCH
    }
}

// CLK-9
#[test]
fn a_clock_that_goes_backwards_makes_nothing_early() {
    for layout in layouts() {
        let liar = Liar(Arc::new(AtomicU64::new(10_000_000_000)));
        let builder = ticks_of(MS, layout).clock(liar.clone());
        let mut hosted = Hosted::with(builder, ManualClock::new());
        let timeout = hosted.timer.schedule(SECOND, || ()).unwrap();
        let turn_at = |hosted: &mut Hosted, nanos| {
            liar.0.store(nanos, Ordering::Relaxed);
            hosted.timer.rouse();
            hosted.settle();
        };
        turn_at(&mut hosted, 10_500_000_000);
        turn_at(&mut hosted, 0);
        let another = hosted.timer.schedule(SECOND, || ()).unwrap();
        turn_at(&mut hosted, 10_999_999_999);
        assert!(timeout.is_pending(), "{layout:?}");
        assert!(another.is_expired(), "long due: its second is over");
        turn_at(&mut hosted, 11_000_000_000);
        assert!(timeout.is_expired());
    }
}

// CLK-11
#[test]
fn a_clock_moved_on_without_a_turn_loses_nothing() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let journal = Journal::new();
        for seconds in [5, 3, 9] {
            let task = journal.writes(seconds);
            host.timer()
                .schedule(Duration::from_secs(seconds), task)
                .unwrap();
        }
        host.clock().advance(4 * SECOND);
        host.timer()
            .schedule(SECOND / 2, journal.writes(4))
            .unwrap();
        host.clock().advance(4 * SECOND);
        assert_eq!(host.timer().pending(), 4);
        assert_eq!(host.run_due(), 3);
        assert_eq!(journal.take(), [3, 4, 5]);
    }
}

// CLK-6, KEY-10
#[test]
fn a_heartbeat_that_moves_its_timeout_costs_the_host_one_wake_up_a_period() {
    for layout in layouts() {
        let mut hosted = Hosted::new(ticks_of(MS, layout));
        let minute = 60 * SECOND;
        let idle = hosted.timer.schedule(minute, || ()).unwrap();
        for _ in 0..6_000 {
            hosted.advance(SECOND / 10);
            assert!(idle.reschedule(minute));
        }
        assert!(idle.is_pending());
        assert_eq!(hosted.timer.stats().moved, 6_000);
        let wake_ups = hosted.timer.stats().wake_ups;
        assert!(wake_ups <= 11, "{wake_ups} in ten minutes");
        hosted.advance(minute);
        assert!(idle.is_expired());
    }
}
