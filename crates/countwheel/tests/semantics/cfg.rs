//! CFG: what can be configured, and what is refused.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use countwheel::{Clock, Instant, Layout, ManualClock, Pool, Resolution, ResolutionError, Timer};

use crate::support::{Desk, HOUR, Journal, MS, SECOND, YEAR, layouts, manual, ns, ticks_of};

// CFG-1
#[test]
fn a_tick_lasts_a_millisecond_unless_told_otherwise() {
    assert_eq!(Resolution::default().tick_duration(), MS);
    let mut host = Timer::builder().manual(ManualClock::new());
    host.timer().schedule(ns(1), || ()).unwrap();
    assert_eq!(host.advance(ns(999_999)), 0);
    assert_eq!(host.advance(ns(1)), 1);
}

// CFG-2, CFG-3
#[test]
fn a_ring_has_as_many_slots_as_asked_for_rounded_up_to_a_power_of_two() {
    for (asked, got) in [(1, 1), (2, 2), (3, 4), (6, 8), (511, 512), (513, 1024)] {
        let layout = Layout::hashed(asked).unwrap();
        let Layout::Hashed { ticks_per_wheel } = layout else {
            panic!("a ring");
        };
        assert_eq!(ticks_per_wheel.get(), got);
        let mut host = manual(MS, layout);
        let journal = Journal::new();
        for millis in (1..=40).rev() {
            let delay = Duration::from_millis(millis);
            host.timer()
                .schedule(delay, journal.writes(millis))
                .unwrap();
        }
        assert_eq!(host.advance(SECOND), 40);
        assert!(journal.take().into_iter().eq(1..=40));
    }
}

// CFG-4
#[test]
fn a_ring_with_too_many_slots_is_refused_and_not_tried() {
    assert!(Layout::hashed(1 << 30).is_ok());
    for slots in [(1 << 30) + 1, i32::MAX as usize, usize::MAX] {
        let error = Layout::hashed(slots).unwrap_err();
        let text = format!("a wheel has 1 to 1073741824 ticks, not {slots}");
        assert_eq!(error.to_string(), text);
    }
}

// CFG-5
#[test]
fn what_makes_no_sense_is_a_typed_error() {
    let none: ResolutionError = Resolution::new(Duration::ZERO).unwrap_err();
    let text = "a tick lasts at least 1 ns and at most 584 years, not 0ns";
    assert_eq!(none.to_string(), text);
    assert!(Resolution::new(Duration::from_nanos(u64::MAX)).is_ok());
    assert!(Resolution::new(Duration::from_nanos(u64::MAX) + ns(1)).is_err());
    assert!(Layout::hashed(0).is_err());
    assert!(Pool::new(0, 1).is_err());
    assert!(Pool::new(1, 0).is_err());
    assert!(Pool::named("a\0b", 1, 1).is_err());
}

// CFG-5
#[test]
#[should_panic(expected = "no NUL")]
fn a_thread_name_that_cannot_be_one_is_found_where_it_is_given() {
    let _builder = Timer::builder().thread_name("a\0b");
}

// CFG-6
#[test]
fn a_round_longer_than_time_itself_overflows_nothing() {
    let tick = Duration::from_nanos(u64::MAX / 2);
    let mut host = manual(tick, Layout::hashed(1 << 16).unwrap());
    let journal = Journal::new();
    for delay in [Duration::ZERO, ns(1), tick, Duration::MAX] {
        host.timer().schedule(delay, journal.writes(delay)).unwrap();
    }
    assert_eq!(host.run_due(), 1);
    assert_eq!(host.advance(tick), 2);
    assert_eq!(host.advance(Duration::MAX), 1);
    assert_eq!(journal.take(), [Duration::ZERO, ns(1), tick, Duration::MAX]);
}

// CFG-7
#[test]
fn a_tick_of_a_nanosecond_takes_no_more_steps_than_one_of_a_millisecond() {
    for layout in layouts() {
        for tick in [ns(1), ns(1_000), MS] {
            let mut host = manual(tick, layout);
            let delay = Duration::from_millis(20);
            host.timer().schedule(delay, || ()).unwrap();
            let mut steps = 0;
            while let Some(wake) = host.next_wake() {
                let span = wake.saturating_since(host.timer().now());
                host.clock().advance(span);
                host.run_due();
                steps += 1;
            }
            assert_eq!(steps, 1, "{tick:?}");
            assert_eq!(host.timer().now(), Instant::ZERO + delay);
            assert_eq!(host.timer().stats().ran, 1);
        }
    }
}

// CFG-8
#[test]
fn tasks_run_where_they_are_told_to() {
    let desk = Desk::with_room(usize::MAX);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    let mut host = builder.manual(ManualClock::new());
    let journal = Journal::new();
    host.timer().schedule(MS, journal.writes("done")).unwrap();
    host.advance(MS);
    assert_eq!(journal.take(), [""; 0], "it was handed over, not run");
    thread::scope(|scope| {
        scope.spawn(|| desk.run_all());
    });
    assert_eq!(journal.take(), ["done"]);

    let pool = Pool::named("mine", 1, 10).unwrap();
    let names = [
        Timer::builder().executor(pool),
        Timer::builder().thread_name("mine").inline(),
        Timer::builder().thread_name("mine"),
    ]
    .map(|builder| {
        let (sender, ran_on) = mpsc::channel();
        let timer = builder.build();
        let task = move || sender.send(thread::current().name().map(str::to_owned));
        timer
            .schedule(Duration::ZERO, move || task().unwrap())
            .unwrap();
        ran_on.recv().unwrap()
    });
    assert_eq!(
        names,
        [const { "mine" }; 3].map(|name| Some(name.to_owned()))
    );
}

// CFG-8
#[test]
fn timers_may_share_an_executor() {
    let desk = Desk::with_room(usize::MAX);
    let journal = Journal::new();
    let clock = ManualClock::new();
    let mut hosts = ["one", "other"].map(|name| {
        let builder = Timer::builder().executor(Arc::clone(&desk));
        let host = builder.manual(clock.clone());
        host.timer().schedule(MS, journal.writes(name)).unwrap();
        host
    });
    clock.advance(MS);
    for host in &mut hosts {
        assert_eq!(host.run_due(), 1);
    }
    assert!(
        hosts[0].timer().stop().unfired.len() == 1,
        "stopping one ..."
    );
    desk.run_all();
    assert_eq!(journal.take(), ["other"], "... leaves the other alone");
}

// CFG-12
#[test]
fn a_clock_may_stand_anywhere_when_its_timer_is_made() {
    for layout in layouts() {
        for since in [Duration::ZERO, ns(1), HOUR, 300 * YEAR] {
            let clock = ManualClock::new();
            clock.advance(since);
            let mut host = ticks_of(MS, layout).manual(clock.clone());
            host.timer().schedule(SECOND, || ()).unwrap();
            assert_eq!(host.advance(SECOND - MS), 0);
            assert_eq!(host.advance(MS), usize::from(since != ns(1)));
            host.advance(MS);
            assert_eq!(host.timer().stats().ran, 1);
            assert_eq!(clock.now(), Instant::ZERO + since + SECOND + MS);
        }
    }
}
