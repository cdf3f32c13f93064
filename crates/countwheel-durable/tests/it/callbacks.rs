//! Every call from every callback: it answers, or refuses with words, and never waits for itself.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use countwheel_disk::simulated::{Calls, Disk, Failure, Fault, Operation};
use countwheel_disk::{LogOptions, LogStore, MemorySorted};
use countwheel_durable::store::{Filter, MemoryStore, Shard};
use countwheel_durable::{
    Attempt, Config, Due, Handler, Inline, Outcome, Precondition, QueueName, Request, RetryPolicy,
    SetOptions, TimerError, TimerName, Timers,
};
use countwheel_time::{Clock as _, SystemClock};

/// Longer than anything here takes, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(30);

fn name(key: &str) -> TimerName {
    TimerName::new("q", key).unwrap()
}

fn set(timers: &Timers, key: &str) -> Result<(), TimerError> {
    let due = Due::In(Duration::from_secs(3_600));
    timers
        .set_with(name(key), due, RetryPolicy::default(), vec![])
        .map(drop)
}

fn setting(key: &str) -> Request {
    Request::Set {
        name: name(key),
        due: Due::In(Duration::ZERO),
        policy: RetryPolicy::default(),
        payload: vec![],
        precondition: Precondition::None,
        options: SetOptions::default(),
    }
}

fn done() -> Outcome {
    Outcome::done()
}

/// What a call came to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    /// It answered, with whatever.
    Something,
    /// It waits for nobody, and says so.
    OwnThread,
}

fn said<T>(result: &Result<T, TimerError>) -> Said {
    match result {
        Err(TimerError::OwnThread) => Said::OwnThread,
        _ => Said::Something,
    }
}

type Call = fn(&Timers) -> Said;

/// Those that wait for the scheduler's answer.
const WAITING: [(&str, Call); 3] = [
    ("set", |timers| said(&set(timers, "from-within"))),
    ("remove", |timers| said(&timers.remove(name("other")))),
    ("call", |timers| said(&timers.call(setting("called")))),
];

/// The others.
const PROMPT: [(&str, Call); 18] = [
    ("submit", |timers| {
        timers.submit(setting("submitted"), drop);
        Said::Something
    }),
    ("submit_batch", |timers| {
        timers.submit_batch(vec![setting("a"), setting("b")], drop);
        Said::Something
    }),
    ("get", |timers| {
        timers.get(name("other")).map(drop).unwrap_or_default();
        Said::Something
    }),
    ("list", |timers| {
        let queue = QueueName::new("q").unwrap();
        timers
            .page(&Filter::queue(queue), None)
            .map(drop)
            .unwrap_or_default();
        Said::Something
    }),
    ("counts", |timers| {
        timers.counts().map(drop).unwrap_or_default();
        Said::Something
    }),
    ("stats", |timers| {
        let _stats = timers.stats();
        Said::Something
    }),
    ("health", |timers| {
        let _health = timers.health();
        Said::Something
    }),
    ("troubles", |timers| {
        let _troubles = timers.troubles();
        Said::Something
    }),
    ("take", |timers| {
        timers.take(Shard::ONLY).unwrap_or_default();
        Said::Something
    }),
    ("hand_over", |timers| {
        let _left = timers.hand_over(Shard(1), Duration::ZERO);
        Said::Something
    }),
    ("owned", |timers| {
        let _owned = (timers.owned(), timers.shards());
        Said::Something
    }),
    ("on_lost", |timers| {
        timers.on_lost(|_, _| ());
        Said::Something
    }),
    ("open_files", |timers| {
        let _files = timers.open_files();
        Said::Something
    }),
    ("scrub_step", |timers| {
        let _scrubbed = timers.scrub_step(1 << 20);
        Said::Something
    }),
    ("snapshot", |timers| {
        let directory = tempfile::tempdir().unwrap();
        let made = timers.snapshot(&directory.path().join("snapshot"));
        made.map(drop).unwrap_or_default();
        Said::Something
    }),
    ("on_failure", |timers| {
        timers.on_failure(|_| ());
        Said::Something
    }),
    ("stop", |timers| {
        timers.stop(Duration::ZERO);
        Said::Something
    }),
    ("clone and drop", |timers| {
        drop(timers.clone());
        Said::Something
    }),
];

/// Where the call is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Answer,
    BatchAnswer,
    Destructor,
    Inline,
    Function,
    Failure,
}

impl Where {
    const ALL: [Self; 6] = [
        Self::Answer,
        Self::BatchAnswer,
        Self::Destructor,
        Self::Inline,
        Self::Function,
        Self::Failure,
    ];

    fn is_on_the_schedulers_thread(self) -> bool {
        self != Self::Function
    }
}

/// Makes a call once, and says what it came to.
#[derive(Clone)]
struct Caller {
    timers: Arc<OnceLock<Timers>>,
    call: Call,
    says: Arc<Mutex<Option<Sender<Said>>>>,
}

impl Caller {
    fn make(&self) {
        let says = self.says.lock().unwrap().take();
        if let (Some(says), Some(timers)) = (says, self.timers.get()) {
            says.send((self.call)(timers)).unwrap_or_default();
        }
    }
}

struct WhenDropped(Caller);

impl Drop for WhenDropped {
    fn drop(&mut self) {
        self.0.make();
    }
}

fn open(disk: &Disk, handler: impl Handler) -> Timers {
    let mut options = LogOptions::default();
    options.segment_bytes = 1 << 16;
    let store = LogStore::open(MemorySorted::default(), disk.files("log"), 7, options).unwrap();
    let clock = Arc::new(SystemClock::new());
    Timers::open(store, handler, clock, Config::default()).unwrap()
}

fn make(at: Where, call: Call) -> Receiver<Said> {
    let disk = Disk::default();
    let (says, said) = channel();
    let caller = Caller {
        timers: Arc::new(OnceLock::new()),
        call,
        says: Arc::new(Mutex::new(Some(says))),
    };
    let from_handler = caller.clone();
    let function = move |_: &Attempt| {
        from_handler.make();
        done()
    };
    let timers = match at {
        Where::Function => open(&disk, function),
        Where::Inline => open(&disk, Inline(function)),
        _ => open(&disk, |_: &Attempt| done()),
    };
    caller.timers.set(timers.clone()).unwrap_or_default();
    match at {
        Where::Answer => timers.submit(setting("due"), move |_| caller.make()),
        Where::BatchAnswer => {
            timers.submit_batch(vec![setting("due")], move |_| caller.make());
        }
        Where::Destructor => {
            let dropped = WhenDropped(caller);
            timers.submit(setting("due"), move |_| drop(dropped));
        }
        Where::Inline | Where::Function => timers.submit(setting("due"), drop),
        Where::Failure => {
            disk.fail(Fault {
                calls: Calls::Only(Operation::Sync),
                after: 0,
                lasts: true,
                failure: Failure::Io,
            });
            timers.on_failure(move |_| caller.make());
            timers.submit(setting("due"), drop);
        }
    }
    // Whoever hangs must not hang the test as well: the timers live on in the caller.
    said
}

#[test]
fn every_call_from_every_callback_answers_or_refuses_with_words() {
    for at in Where::ALL {
        let waiting = WAITING.map(|call| (call, at.is_on_the_schedulers_thread()));
        let prompt = PROMPT.map(|call| (call, false));
        for ((what, call), is_refused) in waiting.into_iter().chain(prompt) {
            let said = make(at, call).recv_timeout(PATIENCE);
            let said = said.unwrap_or_else(|_| panic!("{what} in {at:?}: no answer"));
            let expected = if is_refused {
                Said::OwnThread
            } else {
                Said::Something
            };
            assert_eq!(said, expected, "{what} in {at:?}");
        }
    }
}

#[test]
fn a_function_that_takes_its_time_delays_nobody() {
    let (began, begins) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let handler = move |_: &Attempt| {
        began.send(()).unwrap_or_default();
        released.lock().unwrap().recv().unwrap_or_default();
        done()
    };
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), handler, clock, Config::default()).unwrap();
    timers.submit(setting("slow"), drop);
    begins.recv_timeout(PATIENCE).unwrap();
    let (answers, answered) = channel();
    timers.submit(setting("quick"), move |answer| {
        answers.send(answer.is_ok()).unwrap_or_default();
    });
    assert_eq!(answered.recv_timeout(PATIENCE), Ok(true));
    drop(release);
}

#[test]
fn no_more_functions_run_at_a_time_than_there_are_threads() {
    let (began, begins) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let handler = move |attempt: &Attempt| {
        began.send(attempt.name.clone()).unwrap_or_default();
        released.lock().unwrap().recv().unwrap_or_default();
        done()
    };
    let config = Config {
        handler_threads: 1,
        ..Config::default()
    };
    let clock = Arc::new(SystemClock::new());
    let timers = Timers::open(MemoryStore::new(1), handler, clock.clone(), config).unwrap();
    for key in ["one", "two"] {
        timers.call(setting(key)).unwrap();
    }
    begins.recv_timeout(PATIENCE).unwrap();
    // Both are handed over; the second waits for the thread.
    let end = clock.now() + PATIENCE;
    while timers.stats().in_flight < 2 {
        assert!(clock.now() < end, "{:?}", timers.stats());
        std::thread::yield_now();
    }
    assert!(begins.try_recv().is_err());
    release.send(()).unwrap();
    begins.recv_timeout(PATIENCE).unwrap();
    release.send(()).unwrap();
    assert_eq!(timers.stop(PATIENCE), 0);
}
