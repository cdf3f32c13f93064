//! The life of one timer: callers schedule, move and cancel, time passes, a host takes out
//! what is due, executors run it, and somebody stops it all, in one of several ways and at
//! any moment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use countwheel::ManualClock;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;

use crate::concurrent::{Fate, Host, Hub, Parker, Ready, Refusal, Shards};
use crate::ledger::{Ledger, Outcome};
use crate::{Fired, Instant, Layout, Resolution, TimerKey};

const THREADS_MIN: usize = 8;
const THREADS_MAX: usize = 16;
/// Beside the callers: the host, three executors, the clock, one that waits for the end, and
/// the one that stops.
const OTHERS: usize = 7;
/// How many tasks stop the timer that they run on, at most. One executor is left for the
/// others.
const STOPPING_TASKS: usize = 2;
const SHARDS: usize = 3;
const ACTS: usize = 3;
const MAX_PENDING: u64 = 6;
/// The room of the executors' queue.
const WORK_ROOM: usize = 2;

const STEPS: u64 = 3;
/// Some hundred ticks, so that what is filed has to come nearer before it is due.
const STEP: u64 = 200_000_000;
/// When time ends.
const END: Instant = Instant::from_nanos(STEPS * STEP);
const AFTER_THE_END: Instant = Instant::from_nanos(10 * STEPS * STEP);

/// What all threads share.
struct Life {
    shards: Shards<usize>,
    ready: Ready<usize>,
    ledger: Ledger,
    /// Keys, for those who act on others' entries: the shard, the key, the entry.
    handles: std::sync::Mutex<Vec<(usize, TimerKey, usize)>>,
    time: Mutex<Time>,
    /// Whether the timer is stopped only when all callers are done and time has passed.
    is_long: bool,
    stop: Stop,
    stopping_tasks: AtomicUsize,
    /// Something is done, or time has passed.
    news: Condvar,
    work: Mutex<WorkQueue>,
    work_came: Condvar,
    /// What keeps a stop that moves entries to the queue apart from the end of the host, as
    /// the engine's plan does.
    plan: Mutex<()>,
}

/// What becomes of what is pending when the timer is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    HandBack,
    RunNow,
    /// It stays, until the last has been cancelled.
    Cancel,
}

struct Time {
    now: Instant,
    /// When the host's sleep ends by itself, and how.
    alarm: Option<(Instant, Waker)>,
    /// Whether a stop may run entries before their time.
    may_be_early: bool,
}

#[derive(Default)]
struct WorkQueue {
    tickets: VecDeque<()>,
    ended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends the model")
}

/// One life, from the first insert to the last account.
pub(crate) fn live() {
    let hub = Hub::new(
        Arc::new(ManualClock::new()),
        Resolution::MILLISECOND,
        Layout::Hierarchical,
        Some(MAX_PENDING),
    );
    let life = Arc::new(Life {
        shards: Shards::new(hub, SHARDS),
        ready: Ready::new(),
        ledger: Ledger::default(),
        handles: std::sync::Mutex::default(),
        time: Mutex::new(Time {
            now: Instant::ZERO,
            alarm: None,
            may_be_early: false,
        }),
        is_long: thread_rng().gen_bool(0.5),
        stop: match thread_rng().gen_range(0..3) {
            0 => Stop::HandBack,
            1 => Stop::RunNow,
            _ => Stop::Cancel,
        },
        stopping_tasks: AtomicUsize::new(0),
        news: Condvar::new(),
        work: Mutex::default(),
        work_came: Condvar::new(),
        plan: Mutex::new(()),
    });
    let spawn = |act: fn(&Life)| {
        let life = Arc::clone(&life);
        thread::spawn(move || act(&life))
    };
    // As the product does: whoever stops it from now on waits for the host.
    life.ready.set_host(Host::Task);
    let mut others = vec![
        spawn(Life::host),
        spawn(Life::execute),
        spawn(Life::execute),
        spawn(Life::execute),
        spawn(Life::wait_for_the_end),
    ];
    let clock = spawn(Life::pass_time);
    let callers = thread_rng().gen_range(THREADS_MIN - OTHERS..=THREADS_MAX - OTHERS);
    let callers: Vec<_> = (0..callers)
        .map(|number| {
            let life = Arc::clone(&life);
            thread::spawn(move || life.call(number))
        })
        .collect();
    if life.is_long {
        // Nobody does anything any more, and time has passed: what was due has fired.
        for thread in callers.into_iter().chain([clock]) {
            thread.join().expect("a panic ends the model");
        }
        life.await_what_is_due();
        life.fill_up();
    } else {
        others.extend(callers);
        others.push(clock);
    }
    life.stop();
    life.ready.wait_over(None);
    life.assert_over();
    {
        let mut work = lock(&life.work);
        work.ended = true;
    }
    life.work_came.notify_all();
    for thread in others {
        thread.join().expect("a panic ends the model");
    }
    life.assert_settled();
}

impl Life {
    fn now(&self) -> Instant {
        lock(&self.time).now
    }

    // Callers.

    fn call(&self, number: usize) {
        for _ in 0..ACTS {
            match thread_rng().gen_range(0..6) {
                0..3 => self.insert(number, random_deadline()),
                3 => self.reschedule(),
                4 => self.cancel(),
                _ => self.look(),
            }
        }
    }

    fn insert(&self, number: usize, deadline: Instant) {
        let entry = self.ledger.open(deadline);
        let now = self.now();
        match self.shards.of_thread(number).insert(now, deadline, entry) {
            Ok(key) => self.handles().push((number, key, entry)),
            Err((refusal, back)) => {
                assert_eq!(back, entry);
                self.ledger.close(entry, Outcome::Refused);
                let closed = self.shards.hub().is_closed();
                assert!(closed || refusal == Refusal::Full);
            }
        }
    }

    fn reschedule(&self) {
        let Some((number, key, entry)) = self.any_handle() else {
            return;
        };
        let deadline = random_deadline();
        let now = self.now();
        let note = || self.ledger.moved(entry, deadline);
        self.shards
            .of_thread(number)
            .reschedule(now, key, deadline, note);
    }

    fn cancel(&self) {
        let Some((number, key, entry)) = self.any_handle() else {
            return;
        };
        let note = || self.ledger.close(entry, Outcome::Cancelled);
        let cancelled = self.shards.of_thread(number).cancel(key, note);
        assert!(cancelled.is_none_or(|value| value == entry));
    }

    /// What a call says of an entry is never taken back.
    fn look(&self) {
        let Some((number, key, _)) = self.any_handle() else {
            return;
        };
        let shard = self.shards.of_thread(number);
        let (first, second) = (shard.fate(key), shard.fate(key));
        assert!(first == Fate::Pending || first == second);
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, Vec<(usize, TimerKey, usize)>> {
        let handles = self.handles.lock();
        handles.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn any_handle(&self) -> Option<(usize, TimerKey, usize)> {
        let handles = self.handles();
        if handles.is_empty() {
            return None;
        }
        Some(handles[thread_rng().gen_range(0..handles.len())])
    }

    // Time.

    /// Time passes, and ends the host's sleep when that is over.
    fn pass_time(&self) {
        for _ in 0..STEPS {
            let mut time = lock(&self.time);
            time.now = time.now + Duration::from_nanos(STEP);
            let now = time.now;
            let alarm = time.alarm.take_if(|(until, _)| *until <= now);
            drop(time);
            if let Some((_, waker)) = alarm {
                waker.wake();
            }
        }
    }

    // The host, as the product's thread and engine are.

    fn host(&self) {
        self.ready.set_host(Host::Thread(thread::current().id()));
        let mut parker = Arc::new(Parker::default());
        loop {
            if thread_rng().gen_ratio(1, 4) {
                // As a future that is polled as a part of another task.
                parker = Arc::default();
            }
            let waker = Waker::from(Arc::clone(&parker));
            self.shards.hub().set_host(&waker);
            let now = self.now();
            let mut due = Vec::new();
            self.shards.take_due(now, 2, &mut due);
            let taken = due.len();
            self.shards.hub().give_room(taken as u64);
            self.ready.put(due);
            if self.hand_out() + taken > 0 {
                continue;
            }
            let plan = lock(&self.plan);
            let closed = self.shards.hub().is_closed();
            if closed && self.shards.counts().pending == 0 && self.ready.is_handed_out() {
                break;
            }
            drop(plan);
            let Some(until) = self.shards.fall_asleep(now, Instant::MAX) else {
                continue;
            };
            let mut time = lock(&self.time);
            let over = until <= time.now;
            time.alarm = (!over).then_some((until, waker));
            drop(time);
            if !over {
                parker.park(None);
            }
            self.shards.hub().host_is_awake();
        }
        self.ready.set_host(Host::None);
    }

    /// Gives tickets to the executors. One in eight finds that they have no room, and one
    /// that finds so indeed runs here.
    fn hand_out(&self) -> usize {
        let mut done = 0;
        while self.ready.issue_ticket() {
            done += 1;
            if thread_rng().gen_ratio(1, 8) {
                self.ready.return_ticket();
                continue;
            }
            let mut work = lock(&self.work);
            if work.tickets.len() < WORK_ROOM {
                work.tickets.push_back(());
                drop(work);
                self.work_came.notify_one();
            } else {
                drop(work);
                self.run_next();
            }
        }
        done
    }

    fn execute(&self) {
        loop {
            let mut work = lock(&self.work);
            loop {
                if work.tickets.pop_front().is_some() {
                    break;
                }
                if work.ended {
                    return;
                }
                work = self.work_came.wait(work).expect("a panic ends the model");
            }
            drop(work);
            if thread_rng().gen_ratio(1, 8) {
                if let Some(dropped) = self.ready.take_back() {
                    self.end(dropped.value, Outcome::Returned);
                }
            } else {
                self.run_next();
            }
        }
    }

    fn run_next(&self) {
        if let Some((fired, run)) = self.ready.take(Instant::ZERO, |_| "task") {
            let time = lock(&self.time);
            let early = fired.deadline > time.now;
            assert!(!early || time.may_be_early, "nothing is early");
            drop(time);
            self.end(fired.value, Outcome::Fired);
            if self.may_stop_here() {
                self.hand_back();
                self.ready.wait_over(None);
            }
            self.ready.end(run);
        }
    }

    /// Whether the task that runs stops the timer. Not where everything runs before a stop is
    /// over: that may need the thread that such a task keeps.
    fn may_stop_here(&self) -> bool {
        !self.is_long
            && self.stop != Stop::RunNow
            && thread_rng().gen_ratio(1, 4)
            && self.stopping_tasks.fetch_add(1, Ordering::Relaxed) < STOPPING_TASKS
    }

    fn end(&self, entry: usize, outcome: Outcome) {
        self.ledger.close(entry, outcome);
        drop(lock(&self.time));
        self.news.notify_all();
    }

    // The stop.

    /// Waits until everything has fired that is due. Nobody wakes the host any more: a
    /// wake-up that was lost leaves it asleep, and this waits for ever.
    fn await_what_is_due(&self) {
        let mut time = lock(&self.time);
        while !self.ledger.is_done(END) {
            time = self.news.wait(time).expect("a panic ends the model");
        }
    }

    /// As many are accepted as there is room for, neither more nor fewer.
    fn fill_up(&self) {
        let pending = self.ledger.open_entries();
        assert!(pending <= MAX_PENDING);
        let refused = self.ledger.count(Outcome::Refused);
        for _ in pending..MAX_PENDING {
            self.insert(0, AFTER_THE_END);
        }
        assert_eq!(
            self.ledger.count(Outcome::Refused),
            refused,
            "there is room"
        );
        self.insert(0, AFTER_THE_END);
        assert_eq!(self.ledger.count(Outcome::Refused), refused + 1);
    }

    fn stop(&self) {
        let hub = self.shards.hub();
        match self.stop {
            Stop::HandBack => self.hand_back(),
            Stop::RunNow => {
                lock(&self.time).may_be_early = true;
                hub.close();
                let plan = lock(&self.plan);
                let unfired = self.shards.drain(true);
                self.ready.put(unfired.into_iter().map(|one| Fired {
                    key: one.key,
                    deadline: one.deadline,
                    lateness: Duration::ZERO,
                    value: one.value,
                }));
                drop(plan);
                hub.rouse();
            }
            Stop::Cancel => {
                hub.close();
                hub.rouse();
                let mut cancelled = 0;
                while self.shards.counts().pending > 0 {
                    let handles = self.handles().clone();
                    for (number, key, entry) in handles.into_iter().skip(cancelled) {
                        let note = || self.ledger.close(entry, Outcome::Cancelled);
                        self.shards.of_thread(number).cancel(key, note);
                        cancelled += 1;
                    }
                    thread::yield_now();
                }
            }
        }
    }

    fn hand_back(&self) {
        self.shards.hub().close();
        for one in self.shards.drain(false) {
            self.ledger.close(one.value, Outcome::Returned);
        }
        for one in self.ready.drain() {
            self.ledger.close(one.value, Outcome::Returned);
        }
        self.ready.announce();
        self.shards.hub().rouse();
    }

    /// Waits as async code does, and may be the second who stops the timer.
    fn wait_for_the_end(&self) {
        if !self.is_long && thread_rng().gen_bool(0.5) {
            self.hand_back();
        }
        let parker = Arc::new(Parker::default());
        let waker = Waker::from(Arc::clone(&parker));
        while !self.ready.poll_over(&waker) {
            parker.park(None);
        }
        self.assert_over();
    }

    /// Nothing waits or runs, and nothing ever will: but a call that another thread is in may
    /// still come to its end.
    fn assert_over(&self) {
        let progress = self.ready.progress();
        assert_eq!((progress.waiting, progress.running), (0, 0));
        let counts = self.shards.counts();
        assert_eq!(counts.pending, 0);
        assert_eq!(
            counts.added,
            counts.fired + counts.cancelled + counts.returned
        );
        assert_eq!(counts.fired, progress.started + progress.returned);
        assert_eq!(progress.started, self.ledger.count(Outcome::Fired));
    }

    /// Each entry ended once, and the timer's accounts are the ledger's.
    fn assert_settled(&self) {
        self.assert_over();
        let (counts, progress) = (self.shards.counts(), self.ready.progress());
        assert_eq!(self.ledger.open_entries(), 0);
        assert_eq!(counts.refused, self.ledger.count(Outcome::Refused));
        assert_eq!(counts.cancelled, self.ledger.count(Outcome::Cancelled));
        let returned = counts.returned + progress.returned;
        assert_eq!(returned, self.ledger.count(Outcome::Returned));
    }
}

/// One that has passed, soon will have, or never will.
fn random_deadline() -> Instant {
    match thread_rng().gen_range(0..4) {
        0 => Instant::ZERO,
        1 => AFTER_THE_END,
        _ => Instant::from_nanos(thread_rng().gen_range(0..=STEPS * STEP)),
    }
}
