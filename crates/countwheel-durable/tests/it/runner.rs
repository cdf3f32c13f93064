//! The scheduler on its thread: what callers, handlers and a failing store see.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use countwheel_disk::{DiskOptions, DiskStore};
use countwheel_durable::store::{
    Change, DiskError, Lease, MemoryStore, OnDisk, OnFailure, Shard, Store, StoreError,
};
use countwheel_durable::{
    Attempt, Completion, Config, Due, Handler, Health, Outcome, Request, Response, RetryPolicy,
    StateKind, TimerError, TimerName, Timers, Verdict,
};
use countwheel_time::SystemClock;

use crate::support::forward::forward;

const LONG: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(20);

/// A memory store whose commits can be held back, and can fail.
#[derive(Clone)]
struct Gate {
    inner: MemoryStore,
    held: Arc<(Mutex<bool>, Condvar)>,
    fails: Arc<AtomicBool>,
    commits: Arc<AtomicU64>,
    listeners: Arc<Mutex<Vec<OnFailure>>>,
}

impl Gate {
    fn new() -> Self {
        Self {
            inner: MemoryStore::new(1),
            held: Arc::default(),
            fails: Arc::default(),
            commits: Arc::default(),
            listeners: Arc::default(),
        }
    }

    fn hold(&self, held: bool) {
        *self.held.0.lock().unwrap() = held;
        self.held.1.notify_all();
    }
}

impl Store for Gate {
    forward!(inner: acquire, settings, get, due, list, counts);

    fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        let held = self.held.0.lock().unwrap();
        drop(self.held.1.wait_while(held, |held| *held).unwrap());
        if self.fails.load(Ordering::SeqCst) {
            return Err(DiskError::Io {
                path: "the disk".into(),
                source: std::io::Error::other("is gone"),
            }
            .into());
        }
        self.inner.commit(lease, changes)
    }

    fn on_disk(&self) -> Option<&dyn OnDisk> {
        Some(self)
    }
}

impl OnDisk for Gate {
    fn on_failure(&self, f: OnFailure) {
        self.listeners.lock().unwrap().push(f);
    }
}

/// A handler that hands every attempt to the test.
struct ToTest(mpsc::Sender<(Attempt, Completion)>);

impl Handler for ToTest {
    fn start(&self, attempt: Attempt, done: Completion) {
        self.0.send((attempt, done)).unwrap_or_default();
    }
}

type Started = mpsc::Receiver<(Attempt, Completion)>;

fn open(store: impl Store + 'static, config: Config) -> (Timers, Started) {
    let (send, receive) = mpsc::channel();
    let clock = Arc::new(SystemClock::new());
    (
        Timers::open(store, ToTest(send), clock, config).unwrap(),
        receive,
    )
}

fn name(key: &str) -> TimerName {
    TimerName::new("q", key).unwrap()
}

fn set(key: &str, delay: Duration) -> Request {
    Request::Set {
        name: name(key),
        due: Due::In(delay),
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        precondition: countwheel_durable::Precondition::None,
        options: countwheel_durable::SetOptions::default(),
    }
}

fn done() -> Outcome {
    Outcome::done()
}

/// Submits and gives the end of a channel on which the answer comes.
fn submit(timers: &Timers, request: Request) -> mpsc::Receiver<Result<Response, TimerError>> {
    let (send, receive) = mpsc::channel();
    timers.submit(request, move |answer| send.send(answer).unwrap_or_default());
    receive
}

#[test]
fn requests_that_arrive_during_one_commit_share_the_next() {
    let gate = Gate::new();
    let (timers, _started) = open(gate.clone(), Config::default());
    gate.hold(true);
    let first = submit(&timers, set("first", LONG));
    while gate.commits.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let rest: Vec<_> = (0..100)
        .map(|i| submit(&timers, set(&format!("{i}"), LONG)))
        .collect();
    assert!(first.try_recv().is_err(), "not answered before the commit");
    gate.hold(false);
    for answer in std::iter::once(first).chain(rest) {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    assert_eq!(gate.commits.load(Ordering::SeqCst), 2);
}

#[test]
fn a_full_inbox_refuses_and_loses_nothing() {
    let gate = Gate::new();
    let (timers, _started) = open(
        gate.clone(),
        Config {
            max_waiting: 3,
            ..Config::default()
        },
    );
    gate.hold(true);
    let mut answers = vec![submit(&timers, set("first", LONG))];
    while gate.commits.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    answers.extend((0..3).map(|i| submit(&timers, set(&format!("{i}"), LONG))));
    let refused = submit(&timers, set("one too many", LONG));
    assert!(matches!(refused.try_recv(), Ok(Err(TimerError::Full))));
    gate.hold(false);
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    assert_eq!(timers.get(name("one too many")).unwrap(), None);
    assert_eq!(timers.counts().unwrap()[0].of(StateKind::Pending), 4);
}

#[test]
fn an_earlier_timer_wakes_the_thread() {
    let (timers, started) = open(MemoryStore::new(1), Config::default());
    timers.call(set("far", LONG)).unwrap();
    timers.call(set("near", Duration::from_millis(5))).unwrap();
    let (attempt, completion) = started.recv_timeout(PATIENCE).unwrap();
    assert_eq!(attempt.name, name("near"));
    assert!(attempt.started >= attempt.due);
    completion.complete(done());
}

#[test]
fn a_failed_commit_answers_unknown_and_ends_the_scheduler() {
    let gate = Gate::new();
    let (timers, _started) = open(gate.clone(), Config::default());
    timers.call(set("kept", LONG)).unwrap();
    let (send, failed) = mpsc::channel();
    timers.on_failure(move |reason| send.send(reason.to_owned()).unwrap());
    gate.fails.store(true, Ordering::SeqCst);
    let error = timers.call(set("lost", LONG)).unwrap_err();
    assert!(matches!(error, TimerError::Unknown(_)), "{error:?}");
    let reason = failed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reason, "the disk: is gone");
    assert_eq!(timers.health(), Health::Failed(reason));
    let error = timers.call(set("late", LONG)).unwrap_err();
    assert!(matches!(error, TimerError::Closed));
    let (send, failed) = mpsc::channel();
    timers.on_failure(move |_| send.send(()).unwrap());
    failed.try_recv().expect("told at once");
}

#[test]
fn a_store_that_fails_while_nothing_happens_ends_the_scheduler_at_once() {
    let gate = Gate::new();
    let (timers, _started) = open(gate.clone(), Config::default());
    timers.call(set("kept", LONG)).unwrap();
    let (send, failed) = mpsc::channel();
    timers.on_failure(move |reason| send.send(reason.to_owned()).unwrap());
    for listener in gate.listeners.lock().unwrap().drain(..) {
        listener("the log can move nothing");
    }
    let reason = failed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(reason, "the log can move nothing");
    assert_eq!(timers.health(), Health::Failed(reason));
    let error = timers.call(set("late", LONG)).unwrap_err();
    assert!(matches!(error, TimerError::Closed));
}

#[test]
fn a_handler_that_panics_or_forgets_has_failed_its_attempt() {
    struct Bad;
    impl Handler for Bad {
        fn start(&self, attempt: Attempt, done: Completion) {
            assert_eq!(attempt.name.key.as_str(), "forgets", "this handler panics");
            drop(done);
        }
    }
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), Bad, clock, Config::default()).unwrap();
    for key in ["forgets", "panics"] {
        timers.call(set(key, Duration::ZERO)).unwrap();
        let failures = || timers.get(name(key)).unwrap().unwrap().failures;
        while failures() == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(timers.health(), Health::Running);
}

#[test]
fn stop_waits_for_attempts_that_run_and_says_how_many_it_left() {
    let store = MemoryStore::new(1);
    let (timers, started) = open(store.clone(), Config::default());
    timers.call(set("ends", Duration::ZERO)).unwrap();
    timers.call(set("hangs", Duration::ZERO)).unwrap();
    timers.call(set("waits", LONG)).unwrap();
    let (_, ends) = started.recv_timeout(PATIENCE).unwrap();
    let (_, hangs) = started.recv_timeout(PATIENCE).unwrap();
    let stopper = std::thread::spawn({
        let timers = timers.clone();
        move || timers.stop(Duration::from_millis(200))
    });
    while timers.health() == Health::Running {
        std::thread::yield_now();
    }
    ends.complete(done());
    assert_eq!(stopper.join().unwrap(), 1);
    assert_eq!(
        timers.stop(Duration::ZERO),
        1,
        "the second stop says the same"
    );
    assert_eq!(timers.health(), Health::Stopped);
    assert!(matches!(
        timers.call(set("late", LONG)),
        Err(TimerError::Closed)
    ));
    let state = |key| store.get(Shard::ONLY, &name(key)).unwrap().unwrap();
    assert_eq!(state("ends").state.kind(), StateKind::Done);
    assert_eq!(state("waits").state.kind(), StateKind::Pending);
    // What hangs is found by the next process, and delivered again.
    drop(hangs);
    let (_timers, started) = open(store, Config::default());
    let (attempt, _) = started.recv_timeout(PATIENCE).unwrap();
    assert_eq!((attempt.name, attempt.number), (name("hangs"), 2));
}

#[test]
fn a_handler_may_stop_the_scheduler_that_runs_it() {
    let cell: Arc<Mutex<Option<Timers>>> = Arc::default();
    let (send, stopped) = mpsc::channel();
    let handler = {
        let cell = Arc::clone(&cell);
        move |_: &Attempt| {
            let timers = cell.lock().unwrap().take().unwrap();
            timers.stop(LONG);
            send.send(()).unwrap();
            done()
        }
    };
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), handler, clock, Config::default()).unwrap();
    *cell.lock().unwrap() = Some(timers.clone());
    timers.call(set("a", Duration::ZERO)).unwrap();
    stopped.recv_timeout(PATIENCE).unwrap();
    assert_eq!(timers.stop(LONG), 0);
    assert_eq!(timers.health(), Health::Stopped);
}

#[test]
fn an_answer_may_ask_again_and_may_panic() {
    let (timers, _started) = open(MemoryStore::new(1), Config::default());
    let (send, receive) = mpsc::channel();
    let again = timers.clone();
    timers.submit(set("a", LONG), move |_| {
        again.submit(set("b", LONG), move |answer| {
            send.send(answer).unwrap();
            panic!("this receiver panics");
        });
    });
    receive.recv_timeout(PATIENCE).unwrap().unwrap();
    timers.call(set("c", LONG)).unwrap();
}

#[test]
fn dropping_the_last_handle_stops_the_thread_and_frees_the_store() {
    let store = Gate::new();
    let (timers, _started) = open(store.clone(), Config::default());
    timers.call(set("a", LONG)).unwrap();
    let other = timers.clone();
    drop(timers);
    other.call(set("b", LONG)).unwrap();
    drop(other);
    assert_eq!(Arc::strong_count(&store.commits), 1);
}

/// A timer for later with so long a payload.
fn with_bytes(key: &str, bytes: usize) -> Request {
    let mut request = set(key, LONG);
    if let Request::Set { payload, .. } = &mut request {
        *payload = vec![0; bytes];
    }
    request
}

#[test]
fn payloads_that_wait_are_bounded_in_bytes() {
    let gate = Gate::new();
    let config = Config {
        max_waiting_bytes: 1_000,
        ..Config::default()
    };
    let (timers, _started) = open(gate.clone(), config);
    gate.hold(true);
    let mut answers = vec![submit(&timers, with_bytes("first", 1))];
    while gate.commits.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // One that is larger than the limit is taken when nothing else waits.
    answers.push(submit(&timers, with_bytes("large", 5_000)));
    let refused = submit(&timers, with_bytes("small", 1));
    assert!(matches!(refused.try_recv(), Ok(Err(TimerError::Full))));
    gate.hold(false);
    for answer in answers {
        answer.recv_timeout(PATIENCE).unwrap().unwrap();
    }
    timers.call(with_bytes("again", 1_000)).unwrap();
}

#[test]
fn what_is_deferred_is_answered_also_when_the_scheduler_stops() {
    for stops in [false, true] {
        let gate = Gate::new();
        let config = Config {
            max_batch_bytes: 1,
            ..Config::default()
        };
        let (timers, _started) = open(gate.clone(), config);
        gate.hold(true);
        let first = submit(&timers, with_bytes("first", 1));
        while gate.commits.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let answers: Vec<_> = (0..10)
            .map(|i| submit(&timers, with_bytes(&format!("{i}"), 1)))
            .collect();
        std::thread::scope(|scope| {
            if stops {
                scope.spawn(|| timers.stop(Duration::ZERO));
                while timers.health() == Health::Running {
                    std::thread::yield_now();
                }
            }
            gate.hold(false);
        });
        first.recv_timeout(PATIENCE).unwrap().unwrap();
        for (key, answer) in answers.into_iter().enumerate() {
            let done = timers.get(name(&format!("{key}"))).unwrap().is_some();
            match answer.recv_timeout(PATIENCE).unwrap() {
                Ok(_) => assert!(!stops || done),
                Err(TimerError::Closed) => assert!(stops && !done),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Outcomes filled every batch, and a remove was never taken up.
#[test]
fn a_flood_of_outcomes_keeps_no_request_out() {
    let config = Config {
        max_batch: 16,
        ..Config::default()
    };
    let failing = |_: &Attempt| Outcome::new(Verdict::Failed { retry_after: None }, "");
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), failing, clock, config).unwrap();
    let keys: Vec<_> = (0..256).map(|i| format!("{i}")).collect();
    for key in &keys {
        let mut request = set(key, Duration::ZERO);
        if let Request::Set { policy, .. } = &mut request {
            *policy = RetryPolicy::fixed(Duration::from_millis(1));
        }
        timers.call(request).unwrap();
    }
    for key in &keys {
        timers.remove(name(key)).unwrap();
    }
}

/// The first stopper held a lock while it waited for the thread, and the thread waited for
/// the lock.
#[test]
fn the_scheduler_may_be_stopped_by_itself_and_by_another_at_once() {
    let cell: Arc<Mutex<Option<Timers>>> = Arc::default();
    let (send, stopping) = mpsc::channel();
    let handler = {
        let cell = Arc::clone(&cell);
        move |_: &Attempt| {
            let timers = cell.lock().unwrap().take().unwrap();
            send.send(()).unwrap();
            while timers.health() == Health::Running {
                std::thread::yield_now();
            }
            timers.stop(Duration::ZERO); // another stopper waits for this thread by now
            done()
        }
    };
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), handler, clock, Config::default()).unwrap();
    *cell.lock().unwrap() = Some(timers.clone());
    timers.call(set("a", Duration::ZERO)).unwrap();
    stopping.recv_timeout(PATIENCE).unwrap();
    timers.stop(LONG);
    assert_eq!(timers.health(), Health::Stopped);
}

#[test]
fn an_attempt_left_running_does_not_keep_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiskStore::open(directory.path(), 1, DiskOptions::default()).unwrap();
    let (timers, started) = open(store, Config::default());
    timers.call(set("a", Duration::ZERO)).unwrap();
    let (_, running) = started.recv_timeout(PATIENCE).unwrap();
    assert_eq!(timers.stop(Duration::ZERO), 1);
    drop(timers);
    let store = DiskStore::open(directory.path(), 1, DiskOptions::default()).unwrap();
    let (_timers, started) = open(store, Config::default());
    let (again, _) = started.recv_timeout(PATIENCE).unwrap();
    assert_eq!(again.number, 2);
    running.complete(done()); // comes too late, to nobody
}
