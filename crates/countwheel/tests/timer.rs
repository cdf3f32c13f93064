//! What a timer promises, mostly on a clock moved by hand: nothing here sleeps.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use countwheel::{
    Executor, Instant, Layout, ManualClock, ManualHost, Overload, Pool, ScheduleError, Stop, Task,
    Timeout, Timer, Work, pretend_to_be_thread,
};

use support::{Journal, Random, layouts, manual, ns};

/// Schedules, cancels and advances at random, and compares what ran with a sorted list.
fn never_early_and_less_than_a_tick_late(seed: u64, tick: Duration, layout: Layout) {
    let mut random = Random(seed);
    let mut host = manual(tick, layout);
    let timer = host.timer().clone();
    let tick_nanos = u64::try_from(tick.as_nanos()).unwrap();
    let (journal, mut expected) = (Journal::new(), Vec::new());

    for number in 0..400 {
        match random.below(4) {
            0 => {
                host.advance(ns(random.nanos_up_to(1_000 * tick_nanos)));
            }
            choice => {
                let deadline = timer.now() + ns(random.nanos_up_to(100_000 * tick_nanos));
                let (journal, clock) = (journal.clone(), timer.clone());
                let task = move || journal.write((number, deadline, clock.now()));
                let timeout = timer.schedule_at(deadline, task).unwrap();
                if choice == 1 && random.below(2) == 0 {
                    assert!(timeout.cancel());
                } else {
                    // A deadline that has come already belongs to the tick that has begun.
                    let passed = deadline <= timer.now();
                    let up = if passed { 0 } else { tick_nanos - 1 };
                    expected.push(((deadline.as_nanos() + up) / tick_nanos, number));
                }
            }
        }
    }
    host.advance(Duration::MAX);

    expected.sort_unstable();
    let ran = journal.take();
    let order = ran.iter().map(|&(number, ..)| number);
    let expected_order = expected.iter().map(|&(_, number)| number);
    assert!(order.eq(expected_order), "seed {seed}, {tick:?}");
    for (number, deadline, now) in ran {
        assert!(now >= deadline, "seed {seed}, {tick:?}: {number} is early");
        let lateness = now.saturating_since(deadline);
        assert!(
            lateness < tick,
            "seed {seed}: {number} late by {lateness:?}"
        );
    }
    assert!(timer.stats().lateness_max < tick);
}

#[test]
fn nothing_is_early_or_late_by_a_tick_whatever_the_tick() {
    for tick_nanos in [
        1,
        2,
        7,
        64,
        1_000,
        65_537,
        1_000_000,
        10_000_000,
        999_999_999,
        1_000_000_000,
    ] {
        for layout in layouts() {
            for seed in 0..20 {
                never_early_and_less_than_a_tick_late(seed, ns(tick_nanos), layout);
            }
        }
    }
}

#[test]
fn equal_deadlines_run_in_the_order_they_were_scheduled() {
    for layout in layouts() {
        let mut host = manual(Duration::from_millis(1), layout);
        let journal = Journal::new();
        let deadline = Instant::ZERO + Duration::from_secs(3600);
        for number in 0..100 {
            let timer = host.timer();
            timer.schedule_at(deadline, journal.writes(number)).unwrap();
            // Those already pending come down the levels, the next ones start further down.
            host.advance(Duration::from_secs(36));
        }
        assert!(journal.take().into_iter().eq(0..100));
    }
}

#[test]
fn a_task_that_is_cancelled_does_not_run_and_one_that_ran_cannot_be_cancelled() {
    let mut host = ManualHost::new();
    let second = Duration::from_secs(1);
    let journal = Journal::new();
    let ran = host
        .timer()
        .schedule(second, journal.writes("ran"))
        .unwrap();
    let cancelled = host
        .timer()
        .schedule(second, journal.writes("not"))
        .unwrap();
    assert!(!ran.is_expired() && !ran.is_cancelled());
    assert!(cancelled.cancel() && !cancelled.cancel());
    host.advance(second);

    assert!(!ran.cancel());
    assert!(ran.is_expired() && !ran.is_cancelled());
    assert!(cancelled.is_cancelled() && !cancelled.is_expired());
    assert_eq!(journal.take(), ["ran"]);
}

#[test]
fn a_handle_that_is_dropped_does_not_cancel() {
    let mut host = ManualHost::new();
    drop(host.timer().schedule(Duration::from_secs(1), || ()));
    assert_eq!(host.advance(Duration::from_secs(1)), 1);
}

#[test]
fn a_task_may_cancel_one_of_the_same_tick_but_not_itself() {
    for layout in layouts() {
        let mut host = manual(Duration::from_millis(1), layout);
        let delay = Duration::from_millis(5);
        let (sender, handles) = mpsc::channel::<Arc<Timeout>>();
        let journal = Journal::new();
        let answers = journal.clone();
        let canceller = move || {
            handles
                .iter()
                .for_each(|handle| answers.write(handle.cancel()));
        };
        let itself = Arc::new(host.timer().schedule(delay, canceller).unwrap());
        let sibling = Arc::new(host.timer().schedule(delay, || unreachable!()).unwrap());
        for handle in [&itself, &sibling] {
            sender.send(Arc::clone(handle)).unwrap();
        }
        drop(sender);
        assert_eq!(host.advance(delay), 1);
        assert_eq!(journal.take(), [false, true]);
        assert!(itself.is_expired() && sibling.is_cancelled());
    }
}

#[test]
fn a_task_may_schedule_the_next() {
    fn tick(timer: &Timer, journal: &Journal<Instant>) {
        let (next, journal) = (timer.clone(), journal.clone());
        let task = move || {
            journal.write(next.now());
            tick(&next, &journal);
        };
        timer.schedule(Duration::from_secs(1), task).unwrap();
    }
    for layout in layouts() {
        let mut host = manual(Duration::from_millis(10), layout);
        let journal = Journal::new();
        tick(host.timer(), &journal);
        assert_eq!(host.advance(Duration::from_millis(3_500)), 3);
        let seconds = (1..=3).map(|s| Instant::ZERO + Duration::from_secs(s));
        assert!(journal.take().into_iter().eq(seconds));
        assert_eq!(host.timer().pending(), 1);
    }
}

#[test]
fn no_delay_runs_at_once_and_the_longest_runs_only_when_time_ends() {
    for layout in layouts() {
        let mut host = manual(Duration::from_secs(1), layout);
        host.advance(Duration::from_millis(1_500));
        let journal = Journal::new();
        let timer = host.timer().clone();
        timer
            .schedule(Duration::MAX, journal.writes("the end"))
            .unwrap();
        timer
            .schedule(Duration::ZERO, journal.writes("now"))
            .unwrap();
        timer
            .schedule_at(Instant::ZERO, journal.writes("long ago"))
            .unwrap();
        assert_eq!(host.run_due(), 2);
        assert_eq!(journal.take(), ["now", "long ago"]);

        let century = Duration::from_secs(100 * 365 * 86_400);
        assert_eq!(host.advance(5 * century), 0);
        assert_eq!(timer.pending(), 1);
        assert_eq!(host.advance(century), 1, "time ends after 584 years");
        assert_eq!(timer.now(), Instant::MAX);
    }
}

#[test]
fn after_a_stall_everything_runs_once_and_in_order() {
    for layout in layouts() {
        let mut host = manual(Duration::from_millis(1), layout);
        let journal = Journal::new();
        for second in (0..1_000).rev() {
            let delay = Duration::from_secs(second);
            host.timer()
                .schedule(delay, journal.writes(second))
                .unwrap();
        }
        host.clock().advance(Duration::from_secs(10_000));
        assert_eq!(host.run_due(), 1_000);
        assert!(journal.take().into_iter().eq(0..1_000));
        let stats = host.timer().stats();
        assert_eq!(stats.lateness_max, Duration::from_secs(10_000));
        assert_eq!(host.run_due(), 0);
    }
}

#[test]
fn a_slow_task_makes_the_next_ones_late_not_lost() {
    let mut host = ManualHost::new();
    let (clock, timer) = (host.clock().clone(), host.timer().clone());
    let second = Duration::from_secs(1);
    timer
        .schedule(second, move || clock.advance(5 * second))
        .unwrap();
    timer.schedule(2 * second, || ()).unwrap();
    assert_eq!(host.advance(2 * second), 2);
    assert_eq!(timer.stats().lateness_max, 4 * second);
    assert_eq!(timer.now(), Instant::ZERO + 6 * second);
}

#[test]
fn a_panic_ends_its_task_and_nothing_else() {
    let timer = Timer::new();
    let (sender, ran) = mpsc::channel();
    timer
        .schedule(Duration::ZERO, || panic!("on purpose"))
        .unwrap();
    timer
        .schedule(Duration::from_millis(1), move || sender.send(()).unwrap())
        .unwrap();
    ran.recv().unwrap();
    timer.stop();
    let stats = timer.stats();
    assert_eq!((stats.ran, stats.panicked), (2, 1));
}

#[test]
fn stop_gives_back_what_has_not_fired_in_order() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let journal = Journal::new();
    for seconds in [3, 1, 2, 1] {
        let task = journal.writes(seconds);
        timer.schedule(Duration::from_secs(seconds), task).unwrap();
    }
    let pending = timer.schedule(Duration::from_secs(9), || ()).unwrap();
    host.advance(Duration::from_secs(1));
    assert_eq!(journal.take(), [1, 1]);

    let unfired = timer.stop().unfired;
    assert_eq!(
        unfired[0].deadline(),
        Instant::ZERO + Duration::from_secs(2)
    );
    unfired.into_iter().for_each(Task::run);
    assert_eq!(journal.take(), [2, 3]);
    assert!(!pending.cancel() && !pending.is_cancelled() && !pending.is_expired());
    assert!(pending.is_returned());

    assert!(timer.stop().unfired.is_empty());
    let refused = timer.schedule(Duration::ZERO, journal.writes(0));
    let Err(ScheduleError::Closed(task)) = refused else {
        panic!("the timer has stopped");
    };
    task.run();
    assert_eq!(journal.take(), [0]);
    assert_eq!(host.advance(Duration::from_secs(10)), 0);
    assert_eq!(timer.stats().added, 5, "what is refused does not count");
}

#[test]
fn a_timer_that_never_started_stops() {
    let timer = Timer::new();
    assert!(timer.stop().unfired.is_empty());
    assert!(timer.is_stopped());
}

#[test]
fn a_task_may_stop_its_own_timer() {
    let timer = Timer::new();
    let (sender, stopped) = mpsc::channel();
    timer.schedule(Duration::from_secs(3600), || ()).unwrap();
    let own = timer.clone();
    let task = move || sender.send(own.stop().unfired.len()).unwrap();
    timer.schedule(Duration::ZERO, task).unwrap();
    assert_eq!(stopped.recv(), Ok(1));
    assert!(timer.stop().unfired.is_empty());
}

#[test]
fn a_task_may_drop_the_last_clone_of_its_timer() {
    let timer = Timer::new();
    let (sender, dropped) = mpsc::channel::<()>();
    let (start, started) = mpsc::channel();
    timer
        .schedule(Duration::from_secs(3600), move || drop(sender))
        .unwrap();
    let last = timer.clone();
    let task = move || {
        started.recv().unwrap();
        drop(last);
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    drop(timer);
    start.send(()).unwrap();
    assert!(dropped.recv().is_err(), "the pending task was dropped");
}

#[test]
fn every_stop_waits_for_the_running_task() {
    let timer = Timer::new();
    let ended = Arc::new(AtomicBool::new(false));
    let (start, started) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    let sets_ended = Arc::clone(&ended);
    let task = move || {
        start.send(()).unwrap();
        assert!(finished.recv().is_err());
        sets_ended.store(true, Ordering::SeqCst);
    };
    timer.schedule(Duration::ZERO, task).unwrap();
    started.recv().unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                timer.stop();
                assert!(ended.load(Ordering::SeqCst));
            });
        }
        while !timer.is_stopped() {
            thread::yield_now();
        }
        drop(finish);
    });
}

/// Eight threads schedule and cancel until another one stops the timer under them.
fn every_task_has_one_fate(seed: u64, layout: Layout, inline: bool) {
    let builder = Timer::builder().layout(layout);
    let timer = if inline {
        builder.inline().build()
    } else {
        builder.build()
    };
    let ran = Arc::new(AtomicU64::new(0));
    let schedule_until_stopped = |thread: u64| {
        let mut random = Random(seed * 8 + thread);
        let (mut timeouts, mut cancelled) = (Vec::<Timeout>::new(), 0);
        loop {
            let delay = Duration::from_micros(random.below(3_000));
            let ran = Arc::clone(&ran);
            let task = move || {
                ran.fetch_add(1, Ordering::Relaxed);
            };
            match timer.schedule(delay, task) {
                Ok(timeout) => timeouts.push(timeout),
                Err(ScheduleError::Closed(_)) => return (timeouts, cancelled),
                Err(error) => panic!("{error}"),
            }
            let any = random.below(timeouts.len() as u64 * 2);
            if let Some(timeout) = timeouts.get(usize::try_from(any).unwrap()) {
                cancelled += u64::from(timeout.cancel());
            }
        }
    };
    let (unfired, results) = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| scope.spawn(move || schedule_until_stopped(thread)))
            .collect();
        while timer.stats().added < 4_000 {
            thread::yield_now();
        }
        let unfired = timer.stop().unfired.len() as u64;
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        (unfired, results.collect::<Vec<_>>())
    });

    let stats = timer.stats();
    assert_eq!(stats.added, stats.ran + stats.cancelled + stats.returned);
    assert_eq!(stats.pending, 0);
    assert_eq!(stats.ran, ran.load(Ordering::Relaxed));
    assert_eq!(
        stats.cancelled,
        results.iter().map(|(_, cancelled)| cancelled).sum()
    );
    assert_eq!(stats.returned, unfired);
    let timeouts = || results.iter().flat_map(|(timeouts, _)| timeouts);
    let count = |is: fn(&Timeout) -> bool| timeouts().filter(|timeout| is(timeout)).count() as u64;
    assert_eq!(stats.added, timeouts().count() as u64);
    let expired = count(Timeout::is_expired);
    if inline {
        assert_eq!(stats.ran, expired);
    } else {
        // What waited for the pool when the timer stopped has expired and did not run.
        assert!(stats.ran <= expired && expired <= stats.ran + stats.returned);
    }
    assert_eq!(stats.cancelled, count(Timeout::is_cancelled));
}

#[test]
fn through_every_race_with_stop_what_was_added_ran_was_cancelled_or_came_back() {
    for seed in 0..15 {
        for layout in layouts() {
            every_task_has_one_fate(seed, layout, seed % 2 == 0);
        }
    }
}

#[test]
fn a_real_timer_is_never_early() {
    let timer = Timer::new();
    let (sender, fired) = mpsc::channel();
    let start = timer.now();
    for millis in [20, 3, 11, 0, 3] {
        let (sender, clock) = (sender.clone(), timer.clone());
        let deadline = start + Duration::from_millis(millis);
        let task = move || sender.send((millis, deadline, clock.now())).unwrap();
        timer.schedule_at(deadline, task).unwrap();
    }
    let fired: Vec<_> = fired.iter().take(5).collect();
    for (millis, deadline, now) in fired {
        assert!(now >= deadline, "{millis} ms came early");
    }
}

#[test]
fn what_callers_hold_may_cross_threads() {
    fn crosses<T: Send + Sync + 'static>() {}
    crosses::<Timer>();
    crosses::<Timeout>();
    crosses::<ManualHost>();
    crosses::<ScheduleError>();
}

/// Until the end, or for so long that nobody waits on purpose.
fn ends(what: impl FnOnce() + Send + 'static) -> bool {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        what();
        sender.send(()).unwrap();
    });
    ended.recv_timeout(Duration::from_secs(20)).is_ok()
}

#[test]
fn a_task_may_stop_its_timer_and_wait_until_all_has_run() {
    for threads in [0, 1, 2] {
        assert!(ends(move || {
            let builder = Timer::builder();
            let timer = match threads {
                0 => builder.inline().build(),
                _ => builder.executor(Pool::new(threads, 9).unwrap()).build(),
            };
            let journal = Journal::new();
            for number in 0..5 {
                let task = journal.writes(number);
                timer.schedule(Duration::from_secs(3600), task).unwrap();
            }
            let (sender, stopped) = mpsc::channel();
            for _ in 0..2 {
                let (own, sender) = (timer.clone(), sender.clone());
                let stops = move || {
                    let stopped = own.close(Stop::RunNow).wait();
                    sender.send(stopped.unfired.len()).unwrap();
                };
                // The second one may come too late, or be among those that run now.
                drop(timer.schedule(Duration::ZERO, stops));
            }
            drop(sender);
            assert!(stopped.iter().all(|unfired| unfired == 0));
            assert!(timer.stop().is_complete());
            let mut ran = journal.take();
            ran.sort_unstable();
            assert_eq!(ran, [0, 1, 2, 3, 4]);
        }));
    }
}

#[test]
fn a_timer_moved_by_hand_runs_what_its_executor_has_no_room_for() {
    assert!(ends(|| {
        let pool = Pool::new(1, 1).unwrap();
        let host = Timer::builder().executor(pool).manual(ManualClock::new());
        let journal = Journal::new();
        for number in 0..10 {
            let task = journal.writes(number);
            host.timer().schedule(Duration::ZERO, task).unwrap();
        }
        assert!(host.timer().close(Stop::RunNow).wait().is_complete());
        assert_eq!(journal.take().len(), 10);
    }));
}

#[test]
fn a_stop_that_runs_all_wakes_sleepers_though_the_executor_has_no_room() {
    /// Has no room, or drops what it takes.
    #[derive(Debug)]
    struct Useless(bool);
    impl Executor for Useless {
        fn execute(&self, work: Work) -> Result<(), Work> {
            if self.0 {
                drop(work);
                return Ok(());
            }
            Err(work)
        }
    }
    for drops in [false, true] {
        let builder = Timer::builder().executor(Useless(drops));
        let builder = builder.overload(Overload::hand_back(drop));
        let host = builder.manual(ManualClock::new());
        let sleeps: Vec<_> = (0..3)
            .map(|_| host.timer().sleep(Duration::from_secs(1)))
            .collect();
        let mut sleeps: Vec<_> = sleeps.into_iter().map(Box::pin).collect();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        for sleep in &mut sleeps {
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
        }
        drop(host.timer().close(Stop::RunNow));
        assert_eq!(woken.0.load(Ordering::SeqCst), 3);
        for sleep in &mut sleeps {
            assert!(sleep.as_mut().poll(&mut cx).is_ready());
        }
    }
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_may_look_at_the_timer_that_wakes_it() {
    struct Looks(Timer);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            assert!(self.0.snapshot().stopped);
        }
    }
    assert!(ends(|| {
        let timer = Timer::builder().inline().build();
        timer.schedule(Duration::from_secs(3600), || ()).unwrap();
        let waker = Waker::from(Arc::new(Looks(timer.clone())));
        let mut cx = Context::from_waker(&waker);
        let mut stopping = timer.close(Stop::WaitUpTo(Duration::from_secs(3600)));
        assert!(Pin::new(&mut stopping).poll(&mut cx).is_pending());
        assert_eq!(timer.stop().unfired.len(), 1);
    }));
}

#[test]
fn the_memory_of_a_peak_is_given_back_once_nothing_is_pending() {
    let memory = |host: &ManualHost| {
        let shards = host.timer().snapshot().shards;
        shards.iter().map(|shard| shard.memory_bytes).sum::<usize>()
    };
    for layout in layouts() {
        // On the first shard, and on one that nobody looks at once it is empty.
        for (cancels, thread) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
            pretend_to_be_thread(thread);
            let mut host = manual(Duration::from_millis(1), layout);
            let timer = host.timer().clone();
            let delay = |number| Duration::from_micros(number);
            let timeouts: Vec<_> = (0..50_000)
                .map(|number| timer.schedule(delay(number), || ()).unwrap())
                .collect();
            assert!(memory(&host) > 2_000_000);
            if cancels {
                timeouts.iter().for_each(|timeout| {
                    timeout.cancel();
                });
            }
            host.advance(Duration::from_secs(1));
            assert!(memory(&host) < 300_000, "{}", memory(&host));
        }
    }
}

// The host held the lock of a wheel for as long as a million timers of one tick took to come
// nearer; now it comes back to it many times.
#[test]
fn a_crowd_of_one_tick_fires_in_order_whatever_comes_in_between() {
    const CROWD: usize = 20_000; // several times what is moved while the lock is held once
    const HOUR: Duration = Duration::from_secs(3600);
    for layout in layouts() {
        let mut host = manual(Duration::from_millis(1), layout);
        let timer = host.timer().clone();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let task = |number: usize| {
            let ran = Arc::clone(&ran);
            move || ran.lock().unwrap().push(number)
        };
        let schedule = |number| timer.schedule(HOUR, task(number)).unwrap();
        let timeouts: Vec<_> = (0..CROWD).map(schedule).collect();
        host.advance(HOUR - Duration::from_millis(1));
        assert_eq!(timer.stats().ran, 0, "nothing is early");
        timeouts.iter().step_by(3).for_each(|timeout| {
            timeout.cancel();
        });
        let last = timer.schedule(Duration::from_millis(1), task(CROWD));
        host.clock().advance(Duration::from_millis(1));
        let expected: Vec<_> = (0..=CROWD).filter(|n| n % 3 != 0 || *n == CROWD).collect();
        assert_eq!(host.run_due(), expected.len(), "in one go for the caller");
        assert!(last.unwrap().is_expired());
        assert_eq!(*ran.lock().unwrap(), expected);
        assert_eq!(timer.pending(), 0);
    }
}

// A host that had its turn between two pieces of a stop ran what was due, which the stop drops.
#[test]
fn what_a_stop_drops_does_not_run_meanwhile_though_it_is_due() {
    type Host = Arc<Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>>;
    struct Polls(Host);
    impl Drop for Polls {
        fn drop(&mut self) {
            if let Ok(mut host) = self.0.try_lock() {
                let _ = host.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        }
    }
    let clock = ManualClock::new();
    let builder = Timer::builder().clock(clock.clone()).inline();
    let (timer, host) = builder.build_hosted(|_| std::future::pending::<()>());
    let host: Host = Arc::new(Mutex::new(Box::pin(host)));
    let ran = Arc::new(AtomicU64::new(0));
    let second = Duration::from_secs(1);
    for _ in 0..5_000 {
        let (polls, ran) = (Polls(Arc::clone(&host)), Arc::clone(&ran));
        let task = move || {
            ran.fetch_add(1, Ordering::Relaxed);
            drop(polls);
        };
        timer.schedule(second, task).unwrap();
    }
    clock.advance(second);
    drop(timer.close(Stop::Drop));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    assert_eq!((timer.pending(), timer.stats().returned), (0, 5_000));
}

// A timer that was dropped put all that was pending into a list, sorted it and then dropped it:
// 1.7 GB and 7 s for 1e7 tasks.
#[test]
fn what_a_timer_drops_it_drops_in_pieces_and_no_destructor_panics_into_it() {
    struct Looks(Timer, Arc<AtomicU64>, bool);
    impl Drop for Looks {
        fn drop(&mut self) {
            let Self(timer, most, panics) = self;
            most.fetch_max(timer.pending(), Ordering::Relaxed);
            if *panics {
                resume_unwind(Box::new("on purpose"));
            }
        }
    }
    for layout in layouts() {
        let timer = manual(Duration::from_millis(1), layout).timer().clone();
        let most = Arc::new(AtomicU64::new(0));
        let second = Duration::from_secs(1);
        let schedule = |number: u32| {
            let looks = Looks(
                timer.clone(),
                Arc::clone(&most),
                number.is_multiple_of(1_000),
            );
            timer
                .schedule(number * second, move || drop(looks))
                .unwrap()
        };
        let handles: Vec<_> = (0..20_000).map(schedule).collect();
        let waker = support::Count::new();
        let mut sleep = timer.sleep(second);
        assert!(waker.poll(&mut sleep).is_pending());
        assert!(timer.close(Stop::Drop).wait().unfired.is_empty());
        assert!(
            most.load(Ordering::Relaxed) > 15_000,
            "the first was dropped before all were out"
        );
        assert!(
            handles
                .iter()
                .all(|handle| handle.is_returned() && !handle.is_expired())
        );
        assert_eq!(
            (timer.stats().returned, timer.pending(), waker.woken()),
            (20_001, 0, 1)
        );
    }
}

// One far deadline kept the memory of a peak, as long as nothing else came and went.
#[test]
fn what_a_peak_has_left_is_given_back_though_something_is_pending() {
    for layout in layouts() {
        let mut host = manual(Duration::from_millis(1), layout);
        let timer = host.timer().clone();
        timer.schedule(Duration::from_secs(86_400), || ()).unwrap();
        for number in 0..100_000 {
            timer
                .schedule(Duration::from_micros(number), || ())
                .unwrap();
        }
        let bytes = || {
            let shards = timer.snapshot().shards;
            shards.iter().map(|shard| shard.memory_bytes).sum::<usize>()
        };
        let at_the_peak = bytes();
        host.advance(Duration::from_secs(1));
        assert_eq!(timer.pending(), 1);
        let now = bytes();
        assert!(now < at_the_peak / 5, "{at_the_peak} to {now}");
    }
}

// The shards were counted one after the other: 1,015 were pending of a limit of 1,000.
#[test]
fn pending_is_never_above_the_limit_however_many_threads_add_and_cancel() {
    const LIMIT: u64 = 50;
    let timer = Timer::builder().max_pending(LIMIT).build();
    let stop = AtomicBool::new(false);
    let hour = Duration::from_secs(3600);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let handles: Vec<_> = (0..40).map(|_| timer.schedule(hour, || ())).collect();
                    for handle in handles.into_iter().flatten() {
                        assert!(handle.cancel());
                    }
                }
            });
        }
        let most = (0..2_000).map(|_| timer.pending()).max();
        stop.store(true, Ordering::Relaxed);
        assert!(most <= Some(LIMIT), "{most:?} of {LIMIT}");
    });
    assert_eq!(timer.pending(), 0);
}
