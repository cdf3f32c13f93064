//! HIE: levels, slots and what moves between them.

use std::sync::mpsc;
use std::time::Duration;

use countwheel::{Instant, Layout, Timer};

use super::harness::Hosted;
use crate::support::{HOUR, Journal, MS, SECOND, YEAR, layouts, manual, ns, ticks_of};

// HIE-1, CLK-10
#[test]
fn every_power_of_two_is_reached_to_the_tick() {
    for layout in layouts() {
        for start in [0, 1, 63, 64, 4_095, (1 << 40) - 1] {
            let mut host = manual(ns(1), layout);
            host.advance(ns(start));
            let clock = host.timer().clone();
            let journal = Journal::new();
            for power in (0..=63).rev() {
                for delay in [(1_u64 << power) - 1, 1 << power, (1 << power) + 1] {
                    let deadline = clock.now() + ns(delay);
                    let (journal, clock) = (journal.clone(), clock.clone());
                    let task = move || journal.write((deadline, clock.now()));
                    host.timer().schedule_at(deadline, task).unwrap();
                }
            }
            host.advance(Duration::MAX);
            let ran = journal.take();
            assert_eq!(ran.len(), 3 * 64);
            assert!(ran.is_sorted());
            assert!(ran.into_iter().all(|(deadline, now)| deadline == now));
        }
    }
}

// HIE-4
#[test]
fn while_a_task_holds_the_host_everybody_else_goes_on() {
    let timer = Timer::builder().inline().build();
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let task = move || {
        start.send(()).unwrap();
        let _ = finished.recv();
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    started.recv().unwrap();
    // The host stands in the middle of expiring.
    let timeouts: Vec<_> = (0..1_000)
        .map(|_| timer.schedule(Duration::ZERO, || ()).unwrap())
        .collect();
    assert_eq!(timer.pending(), 1_000);
    assert!(timeouts.iter().all(|timeout| timeout.reschedule(HOUR)));
    assert!(timeouts.iter().all(countwheel::Timeout::cancel));
    drop(finish);
}

// HIE-2, HIE-5
#[test]
fn cancelled_tasks_leave_nothing_behind_that_wakes_anybody() {
    for layout in layouts() {
        let mut hosted = Hosted::new(ticks_of(MS, layout));
        let timeouts: Vec<_> = (1..=1_000)
            .map(|seconds| {
                let delay = Duration::from_secs(seconds);
                hosted.timer.schedule(delay, || ()).unwrap()
            })
            .collect();
        hosted.settle();
        for timeout in timeouts {
            assert!(timeout.cancel());
        }
        hosted.advance(YEAR);
        assert_eq!(hosted.asleep_until(), None);
        let wake_ups = hosted.timer.stats().wake_ups;
        assert!(wake_ups <= 1, "the sleep that had begun, not {wake_ups}");
    }
}

// HIE-6
#[test]
fn a_month_of_idleness_makes_the_next_task_no_dearer() {
    for layout in layouts() {
        let mut hosted = Hosted::new(ticks_of(MS, layout));
        hosted.timer.schedule(MS, || ()).unwrap();
        hosted.advance(30 * 24 * HOUR);
        let before = hosted.timer.stats().wake_ups;
        let timeout = hosted.timer.schedule(SECOND, || ()).unwrap();
        hosted.advance(SECOND);
        assert!(timeout.is_expired());
        // One because something came, and one because it is due.
        assert_eq!(hosted.timer.stats().wake_ups, before + 2);
        assert_eq!(hosted.timer.stats().lateness_max, Duration::ZERO);
    }
}

// HIE-8, HIE-9
#[test]
fn a_hand_that_lags_behind_makes_nothing_early_or_late() {
    for layout in [Layout::Hierarchical, Layout::hashed(64).unwrap()] {
        for lag in [0, 1, 63, 64, 65, 4_095, 4_096, 5_000] {
            for delay in [1, 62, 63, 64, 65, 127, 4_095, 4_096] {
                let mut host = manual(ns(1), layout);
                let journal = Journal::new();
                // Something that keeps the wheel from being empty, so that it cannot wind on.
                host.timer().schedule(ns(1 << 20), || ()).unwrap();
                host.clock().advance(ns(lag));
                let deadline = host.timer().now() + ns(delay);
                host.timer()
                    .schedule_at(deadline, journal.writes(()))
                    .unwrap();
                assert_eq!(host.run_due(), 0, "{layout:?} {lag} {delay}");
                assert_eq!(host.advance(ns(delay - 1)), 0, "{layout:?} {lag} {delay}");
                assert_eq!(host.advance(ns(1)), 1, "{layout:?} {lag} {delay}");
                assert_eq!(host.timer().now(), Instant::ZERO + ns(lag + delay));
            }
        }
    }
}
