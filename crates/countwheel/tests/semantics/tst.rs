//! TST: what there is for those who test with timers.

use std::time::Duration;

use countwheel::{Driver, Instant, Layout, ManualClock, ManualHost, Resolution, Timer};

use crate::support::{HOUR, Journal, MS, SECOND};

// TST-1, TST-3
#[test]
fn time_moved_by_hand_stops_at_every_deadline_on_the_way() {
    let mut host = ManualHost::new();
    let (timer, journal) = (host.timer().clone(), Journal::new());
    for hours in [3, 1, 2] {
        let (clock, journal) = (timer.clone(), journal.clone());
        let task = move || journal.write(clock.now());
        timer.schedule(hours * HOUR, task).unwrap();
    }
    assert_eq!(host.next_wake(), Some(Instant::ZERO + HOUR));
    assert_eq!(host.advance(24 * HOUR), 3);
    let hours = [1, 2, 3].map(|hours| Instant::ZERO + hours * HOUR);
    assert_eq!(journal.take(), hours);
    assert_eq!(host.next_wake(), None);
    assert_eq!(timer.now(), Instant::ZERO + 24 * HOUR);
}

// TST-2
#[test]
fn the_timer_of_a_test_fires_when_the_real_one_does() {
    let mut host = ManualHost::new();
    let journal = Journal::new();
    let timer = host.timer().clone();
    timer
        .schedule(Duration::ZERO, journal.writes("zero"))
        .unwrap();
    assert_eq!(journal.take(), [""; 0], "not within the call");
    timer.schedule(SECOND, journal.writes("second")).unwrap();
    host.clock().advance(SECOND);
    host.run_due();
    assert_eq!(
        journal.take(),
        ["zero", "second"],
        "at the deadline, not after"
    );
}

// TST-1
#[test]
fn several_timers_of_a_test_share_one_clock() {
    let clock = ManualClock::new();
    let mut hosts = [(); 2].map(|()| Timer::builder().manual(clock.clone()));
    for host in &hosts {
        host.timer().schedule(MS, || ()).unwrap();
    }
    clock.advance(MS);
    assert_eq!(hosts.each_mut().map(ManualHost::run_due), [1, 1]);
}

// TST-4
#[test]
fn below_everything_is_a_machine_that_is_told_the_time() {
    let start = Instant::ZERO + HOUR;
    let mut driver = Driver::new(start, Resolution::MILLISECOND, Layout::default());
    driver.schedule(start, start + SECOND, "value");
    assert!(driver.expire(start + (SECOND - MS)).is_none());
    assert_eq!(driver.expire(start + SECOND).unwrap().value, "value");
}
