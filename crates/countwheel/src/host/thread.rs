//! The host of a real timer: one thread that sleeps until the next deadline.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, Builder};

use crate::Instant;
use crate::concurrent::{Host, Parker};
use crate::engine::{Engine, HostTurn};
use crate::task::returns;

/// After so many failures without a turn that went well between them, the host gives up.
const FAILURES_MAX: u32 = 16;

/// Starts the thread. It ends when the timer has stopped and nothing is left to do.
pub(crate) fn start(engine: &Arc<Engine>) -> io::Result<()> {
    // Until the thread itself says more: so a stop that comes now waits for it.
    engine.host(Host::Task);
    let hosted = Arc::clone(engine);
    let thread = Builder::new().name(engine.name.clone()).spawn(move || {
        let _hosting = hosted.hosting();
        hosted.host(Host::Thread(thread::current().id()));
        tracing::debug!(timer = hosted.name, "timer thread started");
        hosted.context.within(|| keep_running(&hosted));
        tracing::debug!(timer = hosted.name, "timer thread ended");
    });
    if thread.is_err() {
        drop(engine.hosting());
    }
    thread.map(drop)
}

/// Runs until the timer ends, through panics of clocks.
fn keep_running(engine: &Arc<Engine>) {
    let parker = Arc::new(Parker::default());
    engine
        .shards
        .hub()
        .set_host(&Waker::from(Arc::clone(&parker)));
    let mut failures = 0;
    loop {
        let mut ended = false;
        let went_well = returns(|| {
            while !ended {
                ended = turn(engine, &parker);
                failures = 0;
            }
        });
        if went_well {
            return;
        }
        failures += 1;
        engine.shards.hub().host_is_awake();
        let so_far = engine.host_failed();
        tracing::error!(timer = engine.name, so_far, "timer thread failed");
        if failures == FAILURES_MAX {
            tracing::error!(timer = engine.name, "timer thread gives up");
            engine.abandon();
            return;
        }
    }
}

/// One turn and one sleep. Whether the timer has ended.
fn turn(engine: &Arc<Engine>, parker: &Parker) -> bool {
    match engine.turn() {
        HostTurn::Again => false,
        HostTurn::Ended => true,
        HostTurn::Rest(until) => {
            // What has passed since the turn makes the sleep longer by as much, never shorter.
            let rest = until.saturating_since(engine.clock().now());
            parker.park((until < Instant::MAX).then_some(rest));
            engine.woke_up();
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::{Layout, ManualClock, Resolution, Timer};

    const HOUR: Duration = Duration::from_secs(3600);

    /// A timer with a thread, on a clock that stands still: nothing is due but the past.
    fn timer() -> Timer {
        Timer::builder().clock(ManualClock::new()).build()
    }

    fn asleep_until(timer: &Timer) -> Option<Instant> {
        timer.engine().shards.hub().asleep_until()
    }

    fn wait_until_asleep(timer: &Timer) {
        while asleep_until(timer).is_none() {
            thread::yield_now();
        }
    }

    #[test]
    fn the_thread_starts_with_the_first_task() {
        let timer = timer();
        assert_eq!(Arc::strong_count(timer.engine()), 1);
        timer.schedule(HOUR, || ()).unwrap();
        assert_eq!(Arc::strong_count(timer.engine()), 2);
        timer.start().unwrap();
        assert_eq!(Arc::strong_count(timer.engine()), 2);
    }

    #[test]
    fn a_later_task_and_a_cancel_leave_the_thread_asleep_and_an_earlier_one_wakes_it() {
        let timer = timer();
        let first_deadline = Instant::ZERO + HOUR;
        let first = timer.schedule_at(first_deadline, || ()).unwrap();
        wait_until_asleep(&timer);
        assert_eq!(asleep_until(&timer), Some(first_deadline), "exactly");
        let before = timer.stats().wake_ups;
        for _ in 0..1_000 {
            timer.schedule(HOUR, || ()).unwrap();
            timer.schedule(2 * HOUR, || ()).unwrap().cancel();
            timer.schedule(Duration::MAX, || ()).unwrap();
        }
        first.cancel();
        assert!(asleep_until(&timer).is_some());
        assert_eq!(timer.stats().wake_ups, before);

        let (sender, ran) = mpsc::channel();
        timer.schedule_send(Duration::ZERO, (), &sender).unwrap();
        ran.recv().unwrap();
        wait_until_asleep(&timer);
        assert_eq!(timer.stats().wake_ups, before + 1);
        assert_eq!(timer.stats().pending, 2_000);
    }

    #[test]
    fn a_far_deadline_takes_one_wake_up() {
        for layout in [Layout::Hierarchical, Layout::hashed(64).unwrap()] {
            // 20,000 ticks: three levels of the hierarchy, 313 rounds of the ring.
            let microsecond = Resolution::new(Duration::from_micros(1)).unwrap();
            let timer = Timer::builder()
                .resolution(microsecond)
                .layout(layout)
                .build();
            let (sender, ran) = mpsc::channel();
            timer
                .schedule_send(Duration::from_millis(20), (), &sender)
                .unwrap();
            ran.recv().unwrap();
            // One, and one that came from the start of the thread at the same time.
            assert!(timer.stats().wake_ups <= 2, "{:?}", timer.stats());
        }
    }

    #[test]
    fn the_thread_ends_and_its_tasks_are_dropped_with_the_last_clone() {
        let timer = timer();
        let clone = timer.clone();
        let (sender, dropped) = mpsc::channel::<()>();
        let timeout = timer.schedule(HOUR, move || drop(sender)).unwrap();
        wait_until_asleep(&timer);
        drop(timer);
        assert_eq!(clone.pending(), 1);

        let engine = Arc::downgrade(clone.engine());
        drop(clone);
        assert!(dropped.recv().is_err());
        assert!(!timeout.cancel(), "it was dropped, not cancelled");
        assert!(!timeout.is_expired() && !timeout.is_cancelled());
        drop(timeout);
        while engine.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
