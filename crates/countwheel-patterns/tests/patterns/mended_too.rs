//! Faults that were found when the patterns were read again, second part: what stays behind,
//! what runs hot, and what a stall or a destructor must not do.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use countwheel::{ManualClock, ManualHost, Timer};
use countwheel_patterns::broker::{DelayedOperation, DelayedOperations, LeaseConfig, Leases};
use countwheel_patterns::{
    Attempt, Backoff, Dead, DelayQueue, ExpiringMap, Failure, HeartbeatConfig, Heartbeats,
    IdleLimits, IdleWatch, Peer, Recovery, Requests, Retry, Step, Supervised, Ttl, Watched, Worker,
};

use crate::support::{Count, Desk, HOUR, MS, SECOND};

struct Quiet;
impl Peer for Quiet {
    fn send_heartbeat(&self) {}
    async fn recover(&self, _dead: Dead) -> Recovery {
        Recovery::Restored
    }
}

#[test]
fn a_run_that_cancels_its_own_async_task_leaves_no_entry() {
    let mut host = ManualHost::new();
    let own = Arc::new(Mutex::new(None::<Supervised>));
    let handle = Arc::clone(&own);
    let task = Supervised::every(SECOND)
        .start_async(host.timer(), move || {
            handle.lock().unwrap().as_ref().unwrap().cancel();
            std::future::pending::<()>()
        })
        .unwrap();
    *own.lock().unwrap() = Some(task.clone());
    host.advance(2 * SECOND);
    assert!(task.is_over());
    assert_eq!(host.timer().pending(), 0);
}

#[test]
fn a_peer_that_says_restored_and_is_not_connected_is_no_hot_loop() {
    struct Liar(Arc<AtomicUsize>);
    impl Peer for Liar {
        fn send_heartbeat(&self) {}
        fn is_connected(&self) -> bool {
            false
        }
        async fn recover(&self, _dead: Dead) -> Recovery {
            if self.0.fetch_add(1, Ordering::SeqCst) > 5_000 {
                Recovery::Closed
            } else {
                Recovery::Restored
            }
        }
    }
    let mut host = ManualHost::new();
    let beats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo()).unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let peer = beats.watch(Liar(Arc::clone(&tries))).unwrap();
    peer.check_now();
    host.run_due();
    assert!(
        tries.load(Ordering::SeqCst) < 10,
        "{} attempts in no time",
        tries.load(Ordering::SeqCst)
    );
}

#[test]
fn a_key_whose_destructor_panics_does_not_end_all_evictions() {
    struct Key(bool);
    impl Drop for Key {
        fn drop(&mut self) {
            assert!(!self.0 || std::thread::panicking(), "on purpose");
        }
    }
    let mut host = ManualHost::new();
    let config = LeaseConfig::new(10 * SECOND)
        .percent_per_period(100, SECOND)
        .second_look(5 * SECOND);
    let leases = Leases::new(host.timer().clone(), config, |_: &Key| {});
    let held: Vec<_> = (0..5).map(|_| leases.grant(Key(false)).unwrap()).collect();
    let bad = leases.grant(Key(true)).unwrap();
    host.advance(12 * SECOND);
    assert_eq!(leases.stats().suspects, 6);
    drop(bad); // freed by the run
    host.advance(60 * SECOND);
    let later = leases.grant(Key(false)).unwrap();
    host.advance(600 * SECOND);
    let stats = leases.stats();
    drop((held, later));
    assert_eq!(stats.evicted, 6, "{stats:?}");
}

#[test]
fn a_stall_makes_no_quick_peer_dead() {
    let mut host = ManualHost::new();
    let config = HeartbeatConfig::new(100 * MS);
    assert_eq!(config.check(), Ok(()));
    let beats = Heartbeats::new(host.timer().clone(), config).unwrap();
    let peer = beats.watch(Quiet).unwrap();
    for _ in 0..20 {
        host.advance(50 * MS);
        peer.touch();
    }
    host.clock().advance(10 * SECOND); // this process does not run
    host.run_due();
    assert_eq!(beats.stats().recoveries, 0);
}

#[test]
fn a_stall_in_the_second_look_counts_against_nobody() {
    let mut host = ManualHost::new();
    let config = LeaseConfig::new(10 * SECOND).second_look(30 * SECOND);
    let leases = Leases::new(host.timer().clone(), config, |_: &u32| {});
    let lease = leases.grant(1).unwrap();
    host.advance(11 * SECOND);
    assert_eq!(leases.stats().suspects, 1);
    host.clock().advance(HOUR); // the machine sleeps
    host.run_due();
    assert!(leases.stats().stalled > 3_000 * SECOND);
    assert!(!lease.is_evicted(), "29 s of its last chance are left");
}

#[test]
fn an_executor_without_room_gathers_no_old_runs() {
    let desk = Desk::with_room(0);
    let mut host = Timer::builder()
        .executor(Arc::clone(&desk))
        .manual(ManualClock::new());
    let task = Supervised::every(SECOND)
        .max_delay(SECOND)
        .start(host.timer(), |_| ())
        .unwrap();
    host.advance(1_000 * SECOND);
    let waiting = host.timer().stats().waiting;
    assert!(
        waiting < 10,
        "{waiting} runs wait, {} were rejected",
        task.stats().rejected
    );
}

#[test]
fn who_waits_at_an_empty_queue_does_so_until_the_end_of_time() {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
        let mut host = ManualHost::new();
        let queue = DelayQueue::<u32>::new(host.timer().clone());
        let mut next = queue.next();
        let count = Count::new();
        assert!(count.poll(&mut next).is_pending());
        host.advance(Duration::MAX);
        sender.send(()).unwrap();
    });
    assert!(
        done.recv_timeout(5 * SECOND).is_ok(),
        "the host turns in circles"
    );
}

#[test]
fn a_suspended_worker_takes_no_step_ever() {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
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
fn a_short_stall_period_does_not_stop_time() {
    let mut host = ManualHost::new();
    let idle = IdleWatch::builder(host.timer().clone())
        .compensate_stalls(Duration::from_micros(100))
        .build(|_: &u32, _| {});
    let _one = idle.watch(1, IdleLimits::NONE.reader(SECOND)).unwrap();
    host.advance(5 * SECOND);
    let stats = idle.stats();
    assert!(stats.reader_idle >= 1, "{stats:?}");
}

#[test]
fn a_handler_that_sets_limits_is_not_called_for_ever() {
    let mut host = ManualHost::new();
    type Slot = Arc<Mutex<Option<Arc<Watched<u32>>>>>;
    let slot: Slot = Arc::default();
    let (own, calls) = (Arc::clone(&slot), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let limits = IdleLimits::NONE.reader(SECOND);
    let idle = IdleWatch::new(host.timer().clone(), move |_: &u32, _| {
        if counted.fetch_add(1, Ordering::SeqCst) < 2_000 {
            own.lock().unwrap().as_ref().unwrap().set_limits(limits);
        }
    });
    let one = Arc::new(idle.watch(1, limits).unwrap());
    *slot.lock().unwrap() = Some(Arc::clone(&one));
    host.advance(SECOND + 50 * MS);
    slot.lock().unwrap().take();
    assert!(
        calls.load(Ordering::SeqCst) <= 2,
        "{} events",
        calls.load(Ordering::SeqCst)
    );
}

#[test]
fn a_destructor_that_panics_does_not_keep_others_from_being_checked() {
    struct Op {
        bad: bool,
        open: Arc<AtomicBool>,
        done: Arc<AtomicUsize>,
    }
    impl DelayedOperation for Op {
        fn try_complete(&self) -> bool {
            self.open.load(Ordering::SeqCst)
        }
        fn on_complete(&self) {
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }
    impl Drop for Op {
        fn drop(&mut self) {
            assert!(!self.bad || std::thread::panicking(), "on purpose");
        }
    }
    let host = ManualHost::new();
    let ops = DelayedOperations::new(host.timer().clone());
    let (open, done) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    for bad in [true, false, false] {
        let op = Op {
            bad,
            open: Arc::clone(&open),
            done: Arc::clone(&done),
        };
        assert!(
            ops.try_complete_else_watch(Arc::new(op), ["k"], HOUR)
                .is_ok()
        );
    }
    open.store(true, Ordering::SeqCst);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ops.check("k")));
    assert_eq!(done.load(Ordering::SeqCst), 3);
}

#[test]
fn a_coarse_timer_does_not_slow_time_down() {
    let tick = countwheel::Resolution::new(5 * SECOND).unwrap();
    let mut host = Timer::builder().resolution(tick).manual(ManualClock::new());
    let beats = Heartbeats::new(host.timer().clone(), HeartbeatConfig::dubbo()).unwrap();
    let _peer = beats.watch(Quiet).unwrap();
    host.advance(200 * SECOND);
    let stats = beats.stats();
    assert_eq!((stats.recoveries, stats.stalls), (1, 0), "{stats:?}");
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

/// The lock of a pattern was held for as long as all its deadlines of one tick took to come
/// nearer.
#[test]
fn what_comes_nearer_in_many_pieces_is_due_in_its_tick_all_the_same() {
    const CROWD: u32 = 100_000; // for each lock several times what is moved while it is held once
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let map = ExpiringMap::new(timer.clone(), Ttl::after(HOUR));
    let requests = Requests::<()>::new(timer.clone());
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    let retry = Retry::new(timer, Backoff::fixed(HOUR), move |_: &u32, _: &Attempt| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Failure<()>>(())
    });
    let mut responses = Vec::new();
    for number in 0..CROWD {
        map.insert(number, ()).unwrap();
        responses.push(requests.register(HOUR).unwrap());
        retry.submit_failed(number, ()).unwrap();
    }
    host.advance(HOUR - MS);
    let in_flight = requests.stats().in_flight;
    assert_eq!((map.len(), in_flight), (CROWD as usize, u64::from(CROWD)));
    assert_eq!(tried.load(Ordering::SeqCst), 0);
    host.advance(MS);
    assert_eq!((map.len(), requests.stats().in_flight), (0, 0));
    assert_eq!(tried.load(Ordering::SeqCst), CROWD as usize);
}
