//! Workers: LIF-13 (LoopRunnable), ELV-1 (replicator), ELV-4 as far as the worker goes, 2.8 (HEAD
//! loops), 2.9 (DelayExecutor, PeriodicalExecutor), defect 34.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use countwheel::{Instant, ManualClock, ManualHost, Stop, Timer};
use countwheel_patterns::{StartError, Step, StopSignal, Worker, WorkerBuilder};

use crate::support::{Desk, Journal, MS, Presence, Random, SECOND};

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn desk_host() -> (ManualHost, Arc<Desk>) {
    let desk = Desk::with_room(usize::MAX);
    let builder = Timer::builder().executor(Arc::clone(&desk));
    (builder.manual(ManualClock::new()), desk)
}

/// A worker whose steps write down when they begin, in seconds, and say what they are told.
fn written(
    host: &ManualHost,
    builder: WorkerBuilder,
    mut says: impl FnMut(u64) -> Step + Send + 'static,
) -> (Worker, Journal<u64>) {
    let (journal, clock) = (Journal::new(), host.clock().clone());
    let writer = journal.clone();
    let mut steps = 0;
    let worker = builder.start(host.timer(), move || {
        steps += 1;
        writer.write(countwheel::Clock::now(&clock).as_nanos() / 1_000_000_000);
        says(steps)
    });
    (worker.unwrap(), journal)
}

// ---- the loop ----------------------------------------------------------------------------

/// LIF-13: run, wait, run.
#[test]
fn it_steps_and_waits_and_steps() {
    let mut host = ManualHost::new();
    let clock = host.clock().clone();
    let builder = Worker::every(10 * SECOND);
    let (worker, journal) = written(&host, builder, move |_| {
        clock.advance(3 * SECOND);
        Step::Wait
    });
    host.advance(40 * SECOND);
    assert_eq!(
        journal.take(),
        [0, 13, 26, 39],
        "the wait begins at the end of a step"
    );
    assert_eq!(worker.next_step(), Some(at(52_000)));

    let mut host = ManualHost::new();
    let builder = Worker::every(10 * SECOND).first_delay(4 * SECOND);
    let (_worker, journal) = written(&host, builder, |_| Step::Wait);
    host.advance(40 * SECOND);
    assert_eq!(journal.take(), [4, 14, 24, 34]);
}

#[test]
fn what_a_step_says_decides_how_it_goes_on() {
    let mut host = ManualHost::new();
    let says = |step| match step {
        2 | 3 => Step::Again,
        5 => Step::Pause(60 * SECOND),
        6 => Step::Sleep,
        8 => Step::End,
        _ => Step::Wait,
    };
    let (worker, journal) = written(&host, Worker::every(10 * SECOND), says);
    host.advance(30 * SECOND);
    assert_eq!(journal.take(), [0, 10, 10, 10, 20]);
    // ELV-4: a pause after congestion, which no new work shortens.
    assert!(worker.wake());
    host.advance(49 * SECOND);
    assert_eq!(journal.take(), [0_u64; 0]);
    host.advance(SECOND);
    assert_eq!(journal.take(), [80]);
    assert_eq!(worker.next_step(), None);
    host.advance(1_000 * SECOND);
    worker.wake();
    host.advance(10 * SECOND);
    assert_eq!(journal.take(), [1_080, 1_090]);
    assert!(worker.is_over() && !worker.wake());
    assert_eq!(host.timer().pending(), 0);
}

/// LIF-13 and defect 34: the loop survives whatever the step does.
#[test]
fn a_step_that_panics_or_fails_is_counted_and_followed_by_a_pause() {
    let mut host = ManualHost::new();
    let builder = Worker::every(10 * SECOND).pause_after_failure(2 * SECOND);
    let (worker, journal) = written(&host, builder, |step| {
        assert!(step % 2 == 0, "every other step panics");
        if step == 2 { Step::Failed } else { Step::Wait }
    });
    host.advance(20 * SECOND);
    assert_eq!(journal.take(), [0, 2, 4, 6, 16, 18]);
    let stats = worker.stats();
    assert_eq!((stats.steps, stats.panicked, stats.failed), (6, 3, 1));

    // One that steps only when woken tries again: that wake-up has not been answered.
    let mut host = ManualHost::new();
    let (worker, journal) = written(&host, Worker::on_demand(), |step| {
        assert!(step > 2, "twice");
        Step::Wait
    });
    host.advance(10 * SECOND);
    worker.wake();
    host.advance(10 * SECOND);
    assert_eq!(journal.take(), [10, 11, 12]);
    assert_eq!(worker.next_step(), None);
}

#[test]
fn a_step_that_the_executor_drops_is_made_up_for() {
    let (mut host, desk) = desk_host();
    let (worker, journal) = written(&host, Worker::on_demand(), |_| Step::Wait);
    worker.wake();
    host.advance(Duration::ZERO);
    drop(desk.take());
    assert_eq!((worker.stats().lost, worker.stats().steps), (1, 0));
    host.advance(SECOND);
    desk.run_all();
    assert_eq!((journal.take().len(), worker.stats().steps), (1, 1));
}

// ---- wake-ups ----------------------------------------------------------------------------

/// LIF-13: a bell of capacity one. 2.9: the flag is reset before the run.
#[test]
fn wake_ups_coalesce_and_none_is_lost() {
    let (mut host, desk) = desk_host();
    let handle = Arc::new(OnceLock::<Worker>::new());
    let own = Arc::clone(&handle);
    let (worker, journal) = written(&host, Worker::on_demand(), move |step| {
        if step == 2 {
            // During a step: one more follows, however many they are.
            for _ in 0..10 {
                assert!(own.get().unwrap().wake());
            }
        }
        Step::Wait
    });
    handle.set(worker.clone()).unwrap();
    for _ in 0..5 {
        assert!(worker.wake());
    }
    host.advance(SECOND);
    for _ in 0..5 {
        assert!(worker.wake(), "it is on its way");
    }
    desk.run_all();
    host.advance(SECOND);
    desk.run_all();
    assert_eq!(journal.take().len(), 1);
    assert_eq!((worker.stats().wakes, worker.stats().coalesced), (10, 9));

    worker.wake();
    for _ in 0..5 {
        host.advance(SECOND);
        desk.run_all();
    }
    assert_eq!(journal.take().len(), 2);
    assert_eq!((worker.stats().wakes, worker.stats().coalesced), (21, 18));
    worker.close();
}

/// ELV-1: an update on demand comes at once, unless too soon after the last; it takes the place of
/// the periodic one, which is counted from it. There an update that is limited is refused, and
/// lost unless it is asked for again.
#[test]
fn an_update_on_demand_is_limited_and_moves_the_periodic_one() {
    let mut host = ManualHost::new();
    let builder = Worker::every(30 * SECOND)
        .first_delay(40 * SECOND)
        .min_gap(15 * SECOND);
    let (replicator, journal) = written(&host, builder, |_| Step::Wait);
    host.advance(10 * SECOND);
    assert!(replicator.wake());
    host.advance(Duration::ZERO);
    assert_eq!(replicator.next_step(), Some(at(40_000)));
    for _ in 0..12 {
        host.advance(SECOND);
        assert!(replicator.wake(), "put off, not refused");
    }
    assert_eq!(replicator.next_step(), Some(at(25_000)));
    host.advance(60 * SECOND);
    assert_eq!(journal.take(), [10, 25, 55]);
    assert!(replicator.close() && !replicator.wake());
}

/// 2.9: triggers within the delay are one run, and do not postpone it.
#[test]
fn triggers_within_the_delay_are_one_step() {
    let mut host = ManualHost::new();
    let builder = Worker::on_demand().wake_delay(SECOND);
    let (worker, journal) = written(&host, builder, |_| Step::Wait);
    for _ in 0..25 {
        worker.wake();
        host.advance(100 * MS);
    }
    // Woken at 0.0, at 1.1 (the step of 1.0 has begun) ...
    assert_eq!(journal.take(), [1, 2]);
    host.advance(10 * SECOND);
    assert_eq!((journal.take(), worker.stats().steps), (vec![3], 3));
}

/// 2.9, PeriodicalExecutor: flush by size or interval; idle when there is nothing; flush at the
/// end, and after a panic.
#[test]
fn a_batch_is_flushed_by_size_by_time_after_a_panic_and_at_the_end() {
    let mut host = ManualHost::new();
    let rows = Arc::new(Mutex::new(VecDeque::new()));
    let (flushed, inbox) = (Journal::new(), Arc::clone(&rows));
    let (writer, mut idle) = (flushed.clone(), 0);
    let worker = Worker::every(SECOND)
        .first_delay(SECOND)
        .start(host.timer(), move || {
            let mut batch: Vec<u32> = inbox.lock().unwrap().drain(..).collect();
            if batch.contains(&13) {
                batch.retain(|row| *row != 13);
                inbox.lock().unwrap().extend(batch);
                panic!("thirteen");
            }
            idle = if batch.is_empty() { idle + 1 } else { 0 };
            if !batch.is_empty() {
                writer.write(batch);
            }
            if idle == 10 { Step::Sleep } else { Step::Wait }
        })
        .unwrap();
    let add = |row| {
        let mut rows = rows.lock().unwrap();
        rows.push_back(row);
        if rows.len() >= 3 || worker.next_step().is_none() {
            worker.wake();
        }
    };
    add(1);
    host.advance(SECOND);
    assert_eq!(flushed.take(), [vec![1]]);
    (2..5).for_each(add);
    host.advance(Duration::ZERO);
    assert_eq!(flushed.take(), [vec![2, 3, 4]]);
    host.advance(100 * SECOND);
    assert_eq!(
        (worker.next_step(), worker.stats().steps),
        (None, 12),
        "ten idle ones"
    );
    add(5);
    host.advance(Duration::ZERO);
    assert_eq!(flushed.take(), [vec![5]]);
    add(6);
    add(13);
    host.advance(2 * SECOND);
    assert_eq!(flushed.take(), [vec![6]]);
    add(7);
    assert!(worker.finish() && !worker.finish());
    host.advance(Duration::ZERO);
    assert_eq!(flushed.take(), [vec![7]]);
    assert!(worker.is_over());
}

// ---- suspend, resume, close --------------------------------------------------------------

/// LIF-13: close, suspend, resume.
#[test]
fn no_step_begins_in_a_suspension() {
    let (mut host, desk) = desk_host();
    let (worker, journal) = written(&host, Worker::every(10 * SECOND), |_| Step::Wait);
    host.advance(Duration::ZERO);
    assert_eq!(desk.taken(), 1);
    assert!(worker.suspend() && !worker.suspend());
    desk.run_all();
    assert!(
        journal.take().is_empty(),
        "it waited for a thread, and was taken back"
    );
    host.advance(100 * SECOND);
    assert_eq!((desk.taken(), worker.next_step()), (0, None));
    assert!(worker.is_suspended() && worker.resume() && !worker.resume());
    host.advance(Duration::ZERO);
    desk.run_all();
    assert_eq!(journal.take(), [100]);

    // The rest of the wait, if it is not over.
    worker.suspend();
    host.advance(4 * SECOND);
    worker.resume();
    assert_eq!(worker.next_step(), Some(at(110_000)));

    let mut host = ManualHost::new();
    let builder = Worker::every(SECOND).suspended();
    let (worker, journal) = written(&host, builder, |_| Step::Wait);
    host.advance(5 * SECOND);
    assert!(journal.take().is_empty());
    worker.resume();
    host.advance(SECOND);
    assert_eq!(journal.take(), [5, 6]);
}

#[test]
fn close_ends_it_and_tells_the_step_that_goes_on() {
    let timer = Timer::new();
    let (started, start) = mpsc::channel();
    let signal = StopSignal::new();
    let (told, presence) = (signal.clone(), Presence::default());
    let own = presence.clone();
    let worker = Worker::every(MS)
        .stop_signal(signal)
        .start(&timer, move || {
            started.send(()).unwrap();
            assert!(told.wait_for(Duration::MAX));
            drop(own.clone());
        })
        .unwrap();
    start.recv().unwrap();
    assert!(!worker.wait_for(MS) && worker.is_running());
    assert!(worker.close() && !worker.close());
    assert!(worker.wait() && worker.is_over() && presence.is_over());
    assert!(!worker.suspend() && !worker.resume() && !worker.finish() && !worker.wake());
    assert_eq!(worker.stats().steps, 1);

    // And one that rests.
    let signal = StopSignal::new();
    let resting = Worker::on_demand().stop_signal(signal.clone());
    let guard = resting.start(&timer, || ()).unwrap().close_on_drop();
    assert!(!signal.is_stopped());
    drop(guard);
    assert!(signal.is_stopped());
}

#[test]
fn a_step_may_close_its_own_worker() {
    let mut host = ManualHost::new();
    let handle = Arc::new(OnceLock::<Worker>::new());
    let own = Arc::clone(&handle);
    let (worker, journal) = written(&host, Worker::every(SECOND), move |_| {
        let worker = own.get().unwrap();
        assert!(worker.close() && !worker.wait());
        Step::Again
    });
    handle.set(worker.clone()).unwrap();
    host.advance(10 * SECOND);
    assert_eq!((journal.take(), worker.stats().panicked), (vec![0], 0));
    assert!(worker.is_over());
}

#[test]
fn the_last_step_is_taken_whatever_it_waits_for() {
    for suspended in [false, true] {
        let mut host = ManualHost::new();
        let builder = Worker::every(100 * SECOND).min_gap(100 * SECOND);
        let (worker, journal) = written(&host, builder, |step| match step {
            2..5 => Step::Again,
            _ => Step::Wait,
        });
        host.advance(SECOND);
        if suspended {
            worker.suspend();
        }
        assert!(worker.finish());
        host.advance(SECOND);
        assert_eq!(journal.take(), [0, 1, 1, 1, 1], "as long as there is more");
        assert!(worker.is_over());
    }
}

// ---- handles and timers ------------------------------------------------------------------

#[test]
fn without_a_handle_it_goes_on_unless_only_a_handle_could_go_on() {
    let mut host = ManualHost::new();
    let (regular, first) = written(&host, Worker::every(SECOND), |_| Step::Wait);
    drop(regular);
    let presence = Presence::default();
    let own = presence.clone();
    let on_demand = Worker::on_demand().start(host.timer(), move || {
        assert!(!own.is_over());
    });
    let on_demand = on_demand.unwrap();
    let ended = on_demand.ended();
    on_demand.wake();
    drop(on_demand.clone());
    drop(on_demand);
    assert!(!presence.is_over(), "it has been woken");
    host.advance(3 * SECOND);
    assert!(presence.is_over());
    crate::support::block_on(ended);
    assert_eq!(first.take().len(), 4);

    let (suspended, _) = written(&host, Worker::every(SECOND), |_| Step::Wait);
    suspended.suspend();
    let pending = host.timer().pending();
    drop(suspended);
    assert_eq!(host.timer().pending(), pending - 1, "nothing stays behind");
}

#[test]
fn it_ends_with_its_timer_and_does_not_keep_it() {
    for stop in [Stop::HandBack, Stop::Drop, Stop::RunNow] {
        for builder in [
            Worker::every(SECOND),
            Worker::on_demand(),
            Worker::every(SECOND).suspended(),
        ] {
            let mut host = ManualHost::new();
            let signal = StopSignal::new();
            let (worker, _) = written(&host, builder.stop_signal(signal.clone()), |_| Step::Wait);
            host.advance(SECOND + 500 * MS);
            assert!(host.timer().close(stop).wait().unfired.is_empty());
            assert!(worker.is_over() && signal.is_stopped(), "{stop:?}");
        }
    }
    let mut host = ManualHost::new();
    let waits = Worker::every(SECOND)
        .start_async(host.timer(), pending::<()>)
        .unwrap();
    host.advance(SECOND);
    assert!(waits.close() && !waits.is_over(), "closing lets it end");
    host.timer().stop();
    assert!(waits.is_over());
    assert_eq!(waits.stats().dropped, 1);

    let timer = Timer::new();
    let worker = Worker::on_demand().start(&timer, || ()).unwrap();
    drop(timer);
    assert!(worker.is_over() && worker.wait() && !worker.wake());

    let host = Timer::builder().max_pending(0).manual(ManualClock::new());
    let full = Worker::on_demand().start(host.timer(), || ()).unwrap_err();
    assert!(matches!(full, StartError::Full(_)));
    host.timer().stop();
    let closed = Worker::every(SECOND)
        .start_async(host.timer(), || async {})
        .unwrap_err();
    assert!(matches!(closed, StartError::Closed(_)));
}

// ---- interleavings -----------------------------------------------------------------------

/// A queue and its worker: whatever happens, what was put in and announced is taken out, as soon
/// as nothing keeps the worker from it.
#[test]
fn whatever_was_announced_is_worked_off() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let (mut host, desk) = desk_host();
        let (inbox, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (queue, steps) = (Arc::clone(&inbox), Arc::clone(&inside));
        let mut dice = Random(!seed);
        let async_steps = random.below(2) == 0;
        let mut step = move || {
            steps.fetch_add(1, Ordering::SeqCst);
            match dice.below(6) {
                0 => panic!("as it happens"),
                1 => return Step::Failed,
                _ => {}
            }
            queue.store(0, Ordering::SeqCst);
            match dice.below(3) {
                0 => Step::Pause(SECOND),
                1 => Step::Sleep,
                _ => Step::Wait,
            }
        };
        let builder = Worker::on_demand().min_gap(SECOND).wake_delay(500 * MS);
        let worker = if async_steps {
            let start = builder.start_async(host.timer(), move || {
                let says = step();
                async move { says }
            });
            start.unwrap()
        } else {
            builder.start(host.timer(), step).unwrap()
        };
        for _ in 0..60 {
            match random.below(12) {
                0..3 => drop(host.advance(Duration::from_millis(random.below(1_500)))),
                3..6 => {
                    inbox.fetch_add(1, Ordering::SeqCst);
                    assert!(worker.wake());
                }
                6 | 7 => desk.run_all(),
                8 => drop(desk.take()),
                9 => drop(worker.suspend()),
                10 => drop(worker.resume()),
                _ => {
                    if let Some(work) = desk.take() {
                        work.run();
                    }
                }
            }
        }
        worker.resume();
        for _ in 0..60 {
            host.advance(SECOND);
            desk.run_all();
        }
        let stats = worker.stats();
        assert_eq!(inbox.load(Ordering::SeqCst), 0, "seed {seed}: {stats:?}");
        assert_eq!(stats.steps, inside.load(Ordering::SeqCst) as u64);
        assert_eq!(worker.next_step(), None, "seed {seed}");
        if random.below(2) == 0 {
            worker.close();
        } else {
            host.timer().stop();
        }
        assert!(worker.is_over());
    }
}

/// LIF-13 with threads: what is put in before a wake-up is seen by a step that begins after it.
#[test]
fn with_real_threads_no_wake_up_is_lost_and_no_step_overlaps() {
    let timer = Timer::new();
    let (inbox, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (queue, count) = (Arc::clone(&inbox), Arc::clone(&done));
    let (inside, overlaps) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let overlapped = Arc::clone(&overlaps);
    let worker = Worker::on_demand()
        .start(&timer, move || {
            if inside.swap(true, Ordering::SeqCst) {
                overlapped.store(true, Ordering::SeqCst);
            }
            count.fetch_add(queue.swap(0, Ordering::SeqCst), Ordering::SeqCst);
            inside.store(false, Ordering::SeqCst);
        })
        .unwrap();
    const EACH: u64 = 5_000;
    let producers: Vec<_> = (0..4)
        .map(|_| {
            let (worker, inbox) = (worker.clone(), Arc::clone(&inbox));
            thread::spawn(move || {
                for number in 0..EACH {
                    inbox.fetch_add(1, Ordering::SeqCst);
                    assert!(worker.wake());
                    if number % 64 == 0 {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let suspender = {
        let worker = worker.clone();
        thread::spawn(move || {
            for _ in 0..200 {
                worker.suspend();
                thread::yield_now();
                worker.resume();
            }
        })
    };
    for thread in producers {
        thread.join().unwrap();
    }
    suspender.join().unwrap();
    // Nobody wakes it any more: what it was told has to be enough.
    while done.load(Ordering::SeqCst) < 4 * EACH {
        thread::yield_now();
    }
    assert!(worker.finish() && worker.wait());
    let stats = worker.stats();
    assert_eq!((stats.wakes, stats.panicked), (4 * EACH, 0));
    assert!(stats.steps <= stats.wakes - stats.coalesced + 1);
    assert!(!overlaps.load(Ordering::SeqCst));
    timer.stop();
}

/// Once close has returned, no step begins.
#[test]
fn with_real_threads_no_step_begins_after_close() {
    let timer = Timer::new();
    for round in 0..300 {
        let builder = Worker::every(Duration::ZERO);
        let worker = builder.start(&timer, || ()).unwrap();
        while worker.stats().steps < round % 4 {
            thread::yield_now();
        }
        assert!(worker.close());
        let steps = worker.stats().steps;
        assert!(worker.wait());
        assert_eq!(worker.stats().steps, steps);
    }
    timer.stop();
}

// A worker could only be told to keep a gap after each step, not to let a few through at once.
#[test]
fn a_burst_lets_some_steps_through_at_once_and_no_more_in_the_long_run() {
    const BURST: u32 = 3;
    let mut host = ManualHost::new();
    let (steps, gap) = (Journal::new(), 10 * SECOND);
    let (log, clock) = (steps.clone(), host.timer().clone());
    let worker = Worker::on_demand()
        .min_gap(gap)
        .burst(std::num::NonZeroU32::new(BURST).unwrap())
        .start(host.timer(), move || log.write(clock.now()))
        .unwrap();
    let mut wake_each_second_for = |seconds: u64| {
        for _ in 0..seconds {
            worker.wake();
            host.advance(SECOND);
        }
        let at: Vec<_> = steps.take().into_iter().map(Instant::as_nanos).collect();
        at.into_iter()
            .map(|at| at / 1_000_000_000)
            .collect::<Vec<_>>()
    };
    assert_eq!(wake_each_second_for(41), [0, 1, 2, 10, 20, 30, 40]);
    // After a rest it has as many again, and not more.
    assert_eq!(wake_each_second_for(0), [0_u64; 0]);
    worker.suspend();
    assert_eq!(wake_each_second_for(100), [0_u64; 0]);
    worker.resume();
    let after = wake_each_second_for(21);
    assert_eq!(after.len(), BURST as usize + 2, "{after:?}");
    assert_eq!(after[..3], [141, 142, 143]);
}

#[test]
fn a_suspended_worker_takes_no_step_ever() {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        let mut host = ManualHost::new();
        let worker = Worker::every(SECOND)
            .suspended()
            .start(host.timer(), || Step::End)
            .unwrap();
        host.advance(Duration::MAX);
        sender.send(worker.stats().steps).unwrap();
    });
    assert_eq!(done.recv_timeout(5 * SECOND), Ok(0));
}

#[test]
fn suspending_and_resuming_gathers_no_old_steps() {
    let desk = Desk::with_room(0);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let worker = Worker::every(SECOND).start(host.timer(), || ()).unwrap();
    host.run_due();
    for _ in 0..1_000 {
        worker.suspend();
        worker.resume();
    }
    host.advance(SECOND);
    let waiting = host.timer().stats().waiting;
    assert!(waiting < 10, "{waiting} wait");
}
