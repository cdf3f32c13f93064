//! CAN: what a cancel does, and what it does not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use countwheel::{ManualClock, ManualHost, Timeout, Timer};

use crate::support::{Desk, HOUR, Journal, MS, Presence, SECOND, layouts, manual};

/// Four threads cancel the same tasks while these become due: of each, one wins.
// CAN-1, EXP-5
#[test]
fn of_all_who_want_a_task_exactly_one_gets_it() {
    const TASKS: usize = 500;
    for layout in layouts() {
        for desk in [None, Some(Desk::with_room(usize::MAX))] {
            let mut builder = Timer::builder().layout(layout);
            if let Some(desk) = &desk {
                builder = builder.executor(Arc::clone(desk));
            }
            let mut host = builder.manual(ManualClock::new());
            let wins: Arc<[AtomicU64]> = (0..TASKS).map(|_| AtomicU64::new(0)).collect();
            let timeouts: Vec<Timeout> = (0..TASKS)
                .map(|number| {
                    let wins = Arc::clone(&wins);
                    let task = move || {
                        wins[number].fetch_add(1, Ordering::Relaxed);
                    };
                    let delay = MS * u32::try_from(number).unwrap();
                    host.timer().schedule(delay, task).unwrap()
                })
                .collect();
            let together = Barrier::new(4);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        together.wait();
                        for (timeout, wins) in timeouts.iter().zip(&*wins).rev() {
                            let won = u64::from(timeout.cancel());
                            wins.fetch_add(won, Ordering::Relaxed);
                        }
                    });
                }
                together.wait();
                host.advance(SECOND);
            });
            if let Some(desk) = desk {
                desk.run_all();
            }
            let wins: Vec<_> = wins.iter().map(|win| win.load(Ordering::Relaxed)).collect();
            assert_eq!(wins, [1; TASKS]);
            let stats = host.timer().stats();
            assert_eq!(stats.added, stats.ran + stats.cancelled);
            for timeout in &timeouts {
                assert!(timeout.is_cancelled() != timeout.is_expired());
            }
        }
    }
}

// CAN-2, CAN-3, CAN-4
#[test]
fn a_cancelled_task_is_dropped_at_once_by_who_cancels_it() {
    struct SaysWhere(mpsc::Sender<thread::ThreadId>);
    impl Drop for SaysWhere {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let (sender, dropped) = mpsc::channel();
        let held = SaysWhere(sender);
        let timeout = host.timer().schedule(HOUR, || drop(held)).unwrap();
        assert!(timeout.cancel());
        assert_eq!(dropped.try_recv(), Ok(thread::current().id()));
        assert_eq!(host.timer().pending(), 0);
        assert_eq!(host.next_wake(), None, "nothing is left of it");
        assert_eq!(host.advance(2 * HOUR), 0);
    }
}

// CAN-2
#[test]
fn a_handle_that_outlives_its_task_holds_nothing_of_it() {
    let mut host = ManualHost::new();
    let presence = Presence::default();
    let fates: Vec<Timeout> = (0..3)
        .map(|_| {
            let presence = presence.clone();
            host.timer().schedule(MS, move || drop(presence)).unwrap()
        })
        .collect();
    fates[0].cancel();
    host.advance(MS);
    assert!(presence.is_over());
    assert!(fates[0].is_cancelled() && fates[1].is_expired());
}

// CAN-5
#[test]
fn a_handle_says_without_ambiguity_what_became_of_its_task() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let state = |timeout: &Timeout| {
        (
            timeout.is_pending(),
            timeout.is_expired(),
            timeout.is_cancelled(),
        )
    };
    let [ran, cancelled, stopped] = [MS, HOUR, HOUR].map(|delay| {
        let timeout = timer.schedule(delay, || ()).unwrap();
        assert_eq!(state(&timeout), (true, false, false));
        timeout
    });
    host.advance(MS);
    assert!(!ran.cancel(), "too late, and that changes nothing");
    assert!(cancelled.cancel());
    timer.stop();
    assert!(!stopped.cancel());
    assert_eq!(state(&ran), (false, true, false));
    assert_eq!(state(&cancelled), (false, false, true));
    assert_eq!(state(&stopped), (false, false, false));
}

// CAN-6
#[test]
fn what_is_cancelled_by_the_hundred_thousand_holds_nothing() {
    for layout in layouts() {
        let host = manual(MS, layout);
        let presence = Presence::default();
        let timeouts: Vec<_> = (0..100_000)
            .map(|_| {
                let presence = presence.clone();
                host.timer().schedule(HOUR, || drop(presence)).unwrap()
            })
            .collect();
        assert!(timeouts.iter().all(Timeout::cancel));
        assert!(presence.is_over(), "at once, not when the hand comes by");
    }
}

// CAN-7, CAN-8
#[test]
fn a_stale_handle_touches_nobody_elses_task() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        let timer = host.timer().clone();
        let mut stale = Vec::new();
        for round in 0..10 {
            let timeouts: Vec<_> = (0..100)
                .map(|_| timer.schedule(MS, || ()).unwrap())
                .collect();
            // Their places on the wheel are those of the ones before.
            for old in &stale {
                let old: &Timeout = old;
                assert!(!old.cancel() && !old.reschedule(HOUR) && !old.is_pending());
            }
            if round % 2 == 0 {
                assert_eq!(host.advance(MS), 100);
            } else {
                assert!(timeouts.iter().all(Timeout::cancel));
            }
            stale.extend(timeouts);
        }
        let stats = timer.stats();
        assert_eq!((stats.ran, stats.cancelled, stats.moved), (500, 500, 0));
    }
}

// CAN-9
#[test]
fn what_waits_for_an_executor_has_expired_and_a_cancel_says_so() {
    let desk = Desk::with_room(1);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    let mut host = builder.manual(ManualClock::new());
    let journal = Journal::new();
    let timeouts = ["first", "second"].map(|name| {
        let task = journal.writes(name);
        host.timer().schedule(MS, task).unwrap()
    });
    host.advance(MS);
    for timeout in &timeouts {
        assert!(!timeout.cancel());
        assert!(timeout.is_expired() && !timeout.is_cancelled());
    }
    desk.set_room(1);
    host.advance(MS);
    desk.run_all();
    assert_eq!(
        journal.take(),
        ["first", "second"],
        "what was not cancelled runs"
    );
}

// CAN-10
#[test]
fn guards_in_one_scope_are_cancelled_together() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let kept = timer.schedule(MS, || ()).unwrap();
    let mut request = Vec::new();
    for _ in 0..100 {
        let timeout = timer.schedule(MS, || unreachable!()).unwrap();
        request.push(timeout.cancel_on_drop());
    }
    drop(request);
    assert_eq!(timer.stats().cancelled, 100);
    assert_eq!(host.advance(MS), 1);
    assert!(kept.is_expired());
}

// CAN-11
#[test]
fn a_running_task_is_left_to_its_end() {
    let timer = Timer::new();
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let (sender, ended) = mpsc::channel();
    let task = move || {
        start.send(()).unwrap();
        sender.send(finished.recv().is_err()).unwrap();
    };
    let timeout = timer.schedule(MS, task).unwrap();
    started.recv().unwrap();
    assert!(!timeout.cancel());
    assert!(timeout.is_expired());
    assert!(ended.try_recv().is_err(), "it goes on");
    drop(finish);
    assert_eq!(ended.recv(), Ok(true));
}

/// Two threads move a task to and fro, a third cancels it, while it becomes due.
#[test]
fn a_move_and_a_cancel_that_meet_agree_on_what_became_of_a_task() {
    for layout in layouts() {
        let mut host = manual(MS, layout);
        for _ in 0..300 {
            let ran = Arc::new(AtomicU64::new(0));
            let runs = Arc::clone(&ran);
            let task = move || {
                runs.fetch_add(1, Ordering::Relaxed);
            };
            let timeout = host.timer().schedule(MS, task).unwrap();
            let together = Barrier::new(4);
            let cancelled = thread::scope(|scope| {
                for delay in [MS, HOUR] {
                    let (timeout, together) = (&timeout, &together);
                    scope.spawn(move || {
                        together.wait();
                        while timeout.is_pending() {
                            timeout.reschedule(delay);
                        }
                        assert!(!timeout.reschedule(delay), "what is gone is not moved back");
                    });
                }
                let cancel = scope.spawn(|| {
                    together.wait();
                    (0..20).any(|_| timeout.cancel())
                });
                together.wait();
                host.advance(SECOND);
                let cancelled = cancel.join().unwrap();
                // Whoever is left with a task that nobody cancelled ends the game.
                cancelled || timeout.cancel()
            });
            let ran = ran.load(Ordering::Relaxed);
            assert_eq!(ran + u64::from(cancelled), 1);
            assert_eq!(timeout.is_cancelled(), cancelled);
            assert_eq!(timeout.is_expired(), ran == 1);
        }
        assert_eq!(host.timer().pending(), 0);
    }
}
