//! Real threads on a real clock: whatever they do to each other's timeouts, every task comes
//! to exactly one end, and none is early.
//!
//! Many threads schedule, cancel, move and pass handles on to each other, until the timer is
//! closed under them. Each task keeps its own record: how often it ran, was cancelled, was
//! dropped. One round for each way of running tasks and each way of stopping.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use countwheel::{
    Clock, Histogram, Overload, Pool, ScheduleError, Stats, Stop, SystemClock, Timeout, Timer,
};
use parking_lot::Mutex;

use crate::idle::pause;
use crate::random::Random;

/// How many threads, how long, and from which seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many threads schedule and cancel.
    pub threads: usize,
    /// How long all rounds take together.
    pub span: Duration,
    /// Of what the threads do. When they do it, the machine decides.
    pub seed: u64,
    /// A lie for the checks to find.
    pub sabotage: Option<Sabotage>,
}

/// What a thread may do wrong, to show that it is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Sabotage {
    /// A task counts as run twice.
    RunsTwice,
    /// A task is forgotten by the one who has it.
    LosesTask,
    /// A cancel is reported that did not succeed.
    ClaimsCancel,
    /// A task says that it ran before its deadline.
    IsEarly,
}

impl Sabotage {
    /// Every one.
    pub const ALL: [Self; 4] = [
        Self::RunsTwice,
        Self::LosesTask,
        Self::ClaimsCancel,
        Self::IsEarly,
    ];
}

/// Who runs the tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Executor {
    DefaultPool,
    Inline,
    SmallPoolRunInline,
    SmallPoolRetryAfter,
    SmallPoolHandBack,
}

const EXECUTORS: [Executor; 5] = [
    Executor::DefaultPool,
    Executor::Inline,
    Executor::SmallPoolRunInline,
    Executor::SmallPoolRetryAfter,
    Executor::SmallPoolHandBack,
];

const STOPS: [Stop; 4] = [
    Stop::HandBack,
    Stop::Drop,
    Stop::RunNow,
    Stop::WaitUpTo(Duration::from_millis(20)),
];

/// How many tasks a round begins with, each earlier than the one before.
const WAKERS: u32 = 8;

/// How long anything may take on a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// Handles that a thread keeps at a time.
const HANDLES: usize = 400;

/// The longest delay, in microseconds.
const DELAY_MAX: u64 = 50_000;

/// What a round came to, or all rounds of one executor.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Tasks accepted.
    pub added: u64,
    /// Tasks that ran once, and wakers that were woken.
    pub ran: u64,
    /// Tasks that were cancelled, by exactly one call.
    pub cancelled: u64,
    /// Tasks that came back or were dropped by the stop.
    pub returned: u64,
    /// Tasks that were not accepted.
    pub refused: u64,
    /// Moves that succeeded.
    pub moved: u64,
    /// Handles passed on to another thread.
    pub passed: u64,
    /// Calls that came too late: the task had come to its end.
    pub stale: u64,
    /// How often the executor had no room.
    pub overloaded: u64,
    /// The longest lateness.
    pub lateness_max: Duration,
    /// The lateness of all.
    pub lateness: Histogram,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.added += other.added;
        self.ran += other.ran;
        self.cancelled += other.cancelled;
        self.returned += other.returned;
        self.refused += other.refused;
        self.moved += other.moved;
        self.passed += other.passed;
        self.stale += other.stale;
        self.overloaded += other.overloaded;
        self.lateness_max = self.lateness_max.max(other.lateness_max);
        for (end, count) in other.lateness.iter() {
            (0..count).for_each(|_| self.lateness.record(end));
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quantile = |share| self.lateness.quantile(share).unwrap_or_default();
        write!(
            f,
            "{} added = {} ran + {} cancelled + {} returned; {} refused, {} moved, {} passed on, \
             {} stale, {} overloaded; late by {:.1?} (p50), {:.1?} (p99), {:.1?} (max)",
            self.added,
            self.ran,
            self.cancelled,
            self.returned,
            self.refused,
            self.moved,
            self.passed,
            self.stale,
            self.overloaded,
            quantile(0.5),
            quantile(0.99),
            self.lateness_max,
        )
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// For each way of running tasks.
    pub tallies: Vec<(String, Tally)>,
    /// How many rounds there were.
    pub rounds: usize,
    /// What was wrong; the first few.
    pub violations: Vec<String>,
}

/// What one task is known by.
#[derive(Debug)]
struct Record {
    clock: SystemClock,
    /// Whether it is a waker, which is also woken when it was in vain.
    is_waker: bool,
    ran: AtomicU32,
    dropped: AtomicU32,
    cancelled: AtomicU32,
    /// When it ran, in nanoseconds.
    ran_at: AtomicU64,
}

impl Record {
    fn new(clock: SystemClock, is_waker: bool) -> Arc<Self> {
        Arc::new(Self {
            clock,
            is_waker,
            ran: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            cancelled: AtomicU32::new(0),
            ran_at: AtomicU64::new(0),
        })
    }

    fn runs(&self) {
        let now = self.clock.now().as_nanos();
        self.ran_at.store(now, Ordering::Relaxed);
        self.ran.fetch_add(1, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ran.load(Ordering::Acquire) + self.dropped.load(Ordering::Acquire) > 0
    }
}

/// What the timer holds of a task: it runs, or it is dropped.
#[derive(Debug)]
struct Probe {
    record: Arc<Record>,
    armed: bool,
}

impl Probe {
    fn run(mut self) {
        self.armed = false;
        self.record.runs();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.armed {
            self.record.dropped.fetch_add(1, Ordering::Release);
        }
    }
}

/// The same for a waker.
struct WakeProbe {
    record: Arc<Record>,
    armed: AtomicBool,
}

impl Wake for WakeProbe {
    fn wake(self: Arc<Self>) {
        self.armed.store(false, Ordering::Relaxed);
        self.record.runs();
    }
}

impl Drop for WakeProbe {
    fn drop(&mut self) {
        if *self.armed.get_mut() {
            self.record.dropped.fetch_add(1, Ordering::Release);
        }
    }
}

/// A handle on its way between threads, and what it should say.
struct Handle {
    timeout: Timeout,
    record: Arc<Record>,
}

/// One round: a timer, its threads, its end.
struct Round {
    timer: Timer,
    clock: SystemClock,
    stop: Stop,
    sabotage: Option<Sabotage>,
    /// When the timer was closed, in nanoseconds; never yet.
    closed_at: AtomicU64,
    violations: Mutex<Vec<String>>,
}

/// Violations that are kept.
const VIOLATIONS_MAX: usize = 10;

impl Round {
    fn violation(&self, what: String) {
        let mut violations = self.violations.lock();
        if violations.len() < VIOLATIONS_MAX {
            violations.push(what);
        }
    }

    /// Checks a task that has come to its end.
    fn judge(&self, handle: &Handle, tally: &mut Tally) {
        let Handle { timeout, record } = handle;
        let ran = record.ran.load(Ordering::Acquire);
        let dropped = record.dropped.load(Ordering::Acquire);
        let cancelled = record.cancelled.load(Ordering::Acquire);
        let deadline = timeout.deadline().as_nanos();
        let mut ran_at = record.ran_at.load(Ordering::Relaxed);
        if self.sabotage == Some(Sabotage::IsEarly) && tally.ran % 1_000 == 999 {
            ran_at = ran_at.min(deadline.saturating_sub(1));
        }
        match (ran, dropped, cancelled) {
            (1, 0, 0) => {
                tally.ran += 1;
                let closed_at = self.closed_at.load(Ordering::Relaxed);
                let may_be_early = record.is_waker || self.stop == Stop::RunNow;
                if ran_at < deadline && !(may_be_early && ran_at >= closed_at) {
                    self.violation(format!("ran at {ran_at}, early: {timeout:?}"));
                }
                if !record.is_waker && !timeout.is_expired() {
                    self.violation(format!("ran and is not expired: {timeout:?}"));
                }
            }
            (0, 1, 1) => {
                tally.cancelled += 1;
                if !timeout.is_cancelled() {
                    self.violation(format!("was cancelled and does not say so: {timeout:?}"));
                }
            }
            (0, 1, 0) => tally.returned += 1,
            _ => self.violation(format!(
                "ran {ran} times, was cancelled {cancelled} times, dropped {dropped} times: \
                 {timeout:?}"
            )),
        }
        if timeout.is_pending() || timeout.cancel() || timeout.reschedule(Duration::ZERO) {
            self.violation(format!("has ended and is pending: {timeout:?}"));
        }
    }

    /// On a timer that is asleep, every earlier deadline than all before has to wake the host.
    fn wakes_the_host(&self, tally: &mut Tally) {
        let (sender, fired) = mpsc::channel();
        let mut handles = Vec::new();
        for millis in (1..=WAKERS).rev() {
            countwheel::pretend_to_be_thread(millis);
            let record = Record::new(self.clock, false);
            let (probe, sender) = (Arc::clone(&record), sender.clone());
            let delay = Duration::from_millis(millis.into());
            let task = move || {
                probe.runs();
                let _ = sender.send(());
            };
            match self.timer.schedule(delay, task) {
                Ok(timeout) => handles.push(Handle { timeout, record }),
                Err(error) => self.violation(format!("refused: {error}")),
            }
        }
        drop(sender);
        for _ in 0..WAKERS {
            if fired.recv_timeout(PATIENCE).is_err() {
                self.violation("the host sleeps although something is due".to_owned());
                self.timer.rouse();
            }
        }
        handles.iter().for_each(|handle| self.judge(handle, tally));
    }

    /// What one thread does until the timer is closed. Returns what is not over yet.
    fn work(
        &self,
        mut random: Random,
        inbox: &mpsc::Receiver<Handle>,
        others: &[mpsc::Sender<Handle>],
        tally: &mut Tally,
    ) -> Vec<Handle> {
        let (sender, values) = mpsc::channel::<Probe>();
        let mut handles: Vec<Handle> = Vec::new();
        for turn in 0_u64.. {
            values.try_iter().for_each(Probe::run);
            handles.extend(inbox.try_iter());
            let choice = random.below(100);
            if choice < 45 && handles.len() < HANDLES {
                match self.schedule(&mut random, &sender) {
                    Ok(handle) => handles.push(handle),
                    Err(record) => {
                        tally.refused += 1;
                        let (ran, dropped) = (&record.ran, &record.dropped);
                        let ends = (ran.load(Ordering::Acquire), dropped.load(Ordering::Acquire));
                        if ends != (0, 1) {
                            self.violation(format!("was refused and did not come back: {ends:?}"));
                        }
                        break;
                    }
                }
            }
            if handles.is_empty() {
                continue;
            }
            let index = usize::try_from(random.below(handles.len() as u64)).unwrap_or(0);
            match choice {
                0..60 => {
                    if handles[index].record.has_ended() {
                        let handle = handles.swap_remove(index);
                        if self.sabotage == Some(Sabotage::LosesTask) && turn % 1_000 == 0 {
                            continue;
                        }
                        self.judge(&handle, tally);
                    }
                }
                60..75 => self.cancel(&handles[index], tally),
                75..88 => {
                    let delay = Duration::from_micros(random.below(DELAY_MAX));
                    let timeout = &handles[index].timeout;
                    let moved = if random.one_in(2) {
                        timeout.reschedule(delay)
                    } else {
                        timeout.reschedule_at(self.clock.now() + delay)
                    };
                    tally.moved += u64::from(moved);
                    tally.stale += u64::from(!moved);
                }
                _ => {
                    tally.passed += 1;
                    let other = random.pick(others);
                    if let Err(mpsc::SendError(back)) = other.send(handles.swap_remove(index)) {
                        handles.push(back);
                    }
                }
            }
            if turn % 32 == 0
                && let Ok(handle) = inbox.recv_timeout(Duration::from_millis(1))
            {
                handles.push(handle);
            }
        }
        drop(sender);
        // What has been sent, and what is still to be: until the timer holds none any more.
        values.iter().for_each(Probe::run);
        handles
    }

    fn cancel(&self, handle: &Handle, tally: &mut Tally) {
        let mut cancelled = handle.timeout.cancel();
        if self.sabotage == Some(Sabotage::ClaimsCancel) && tally.stale % 1_000 == 999 {
            cancelled = true;
        }
        if cancelled {
            handle.record.cancelled.fetch_add(1, Ordering::AcqRel);
        }
        tally.stale += u64::from(!cancelled);
    }

    fn schedule(
        &self,
        random: &mut Random,
        values: &mpsc::Sender<Probe>,
    ) -> Result<Handle, Arc<Record>> {
        let delay = match random.below(20) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            _ => Duration::from_micros(random.below(DELAY_MAX)),
        };
        let kind = random.below(8);
        let record = Record::new(self.clock, kind == 0);
        let mut probe = Probe {
            record: Arc::clone(&record),
            armed: true,
        };
        let twice = self.sabotage == Some(Sabotage::RunsTwice) && random.one_in(1_000);
        let result = match kind {
            0 => {
                probe.armed = false;
                let waker = WakeProbe {
                    record: Arc::clone(&record),
                    armed: AtomicBool::new(true),
                };
                self.timer
                    .schedule_wake(delay, Waker::from(Arc::new(waker)))
            }
            1 => self.timer.schedule_send(delay, probe, values),
            2 | 3 => {
                let deadline = self.clock.now() + delay;
                self.timer.schedule_at(deadline, move || probe.run())
            }
            _ => self.timer.schedule(delay, move || {
                if twice {
                    probe.record.runs();
                }
                probe.run();
            }),
        };
        match result {
            Ok(timeout) => Ok(Handle { timeout, record }),
            Err(error) => {
                if !matches!(error, ScheduleError::Closed(_)) {
                    self.violation(format!("refused: {error}"));
                }
                drop(error);
                Err(record)
            }
        }
    }

    fn check_stats(&self, tally: &Tally) -> Stats {
        let stats = self.timer.stats();
        let ended = stats.ran + stats.cancelled + stats.returned;
        let right = stats.added == ended
            && stats.pending + stats.waiting + stats.running == 0
            && stats.added == tally.ran + tally.cancelled + tally.returned
            && stats.cancelled == tally.cancelled
            // A waker that a stop has woken was returned; for its record it ran.
            && stats.ran + stats.returned == tally.ran + tally.returned
            && stats.ran <= tally.ran
            && stats.refused == tally.refused
            && stats.moved == tally.moved
            && stats.lateness.count() == stats.ran
            && stats.panicked + stats.host_failures == 0;
        if !right {
            self.violation(format!("the counters differ: {stats:?}, seen: {tally:?}"));
        }
        stats
    }
}

fn timer(executor: Executor, clock: SystemClock) -> (Timer, Arc<AtomicU64>) {
    let builder = Timer::builder().clock(clock).thread_name("stress");
    let handed_back = Arc::new(AtomicU64::new(0));
    let small = |overload| {
        let pool = Pool::new(1, 8).expect("a thread and some room");
        let builder = Timer::builder().clock(clock).thread_name("stress");
        builder.executor(pool).overload(overload).build()
    };
    let timer = match executor {
        Executor::DefaultPool => builder.build(),
        Executor::Inline => builder.inline().build(),
        Executor::SmallPoolRunInline => small(Overload::RunInline),
        Executor::SmallPoolRetryAfter => small(Overload::RetryAfter(Duration::from_micros(200))),
        Executor::SmallPoolHandBack => {
            let count = Arc::clone(&handed_back);
            small(Overload::hand_back(move |task| {
                count.fetch_add(1, Ordering::Relaxed);
                drop(task);
            }))
        }
    };
    (timer, handed_back)
}

/// One timer, until it is closed under load, and what came of all its tasks.
fn round(
    executor: Executor,
    stop: Stop,
    options: &Options,
    span: Duration,
    mut random: Random,
) -> (Tally, Vec<String>) {
    let clock = SystemClock::new();
    let (timer, handed_back) = timer(executor, clock);
    let round = Round {
        timer,
        clock,
        stop,
        sabotage: options.sabotage,
        closed_at: AtomicU64::new(u64::MAX),
        violations: Mutex::default(),
    };
    let (senders, inboxes): (Vec<_>, Vec<_>) =
        (0..options.threads).map(|_| mpsc::channel()).unzip();
    let seeds: Vec<_> = inboxes.iter().map(|_| random.draw()).collect();
    let mut tally = Tally::default();
    round.wakes_the_host(&mut tally);
    let mut unfired = 0;
    thread::scope(|scope| {
        let round = &round;
        let workers: Vec<_> = inboxes
            .into_iter()
            .zip(seeds)
            .map(|(inbox, seed)| {
                let senders = senders.clone();
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    let random = Random::new(seed, "worker");
                    let handles = round.work(random, &inbox, &senders, &mut tally);
                    drop(senders);
                    (handles, inbox, tally)
                })
            })
            .collect();
        drop(senders);
        pause(span);
        round
            .closed_at
            .store(clock.now().as_nanos(), Ordering::Relaxed);
        let stopping = round.timer.close(stop);
        // Somebody else may stop it at the same time, and more harshly.
        let other = random
            .one_in(2)
            .then(|| scope.spawn(|| round.timer.close(Stop::HandBack).wait()));
        let mut stopped = vec![stopping.wait()];
        if let Some(other) = other {
            stopped.extend(other.join());
        }
        for stopped in stopped {
            if !stopped.is_complete() {
                round.violation(format!(
                    "a stop that has ended is not complete: {stopped:?}"
                ));
            }
            unfired += stopped.unfired.len() as u64;
        }
        let joined: Vec<_> = workers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        for result in joined {
            let Ok((mut handles, inbox, seen)) = result else {
                round.violation("a thread panicked".to_owned());
                continue;
            };
            tally.add(&seen);
            handles.extend(inbox.try_iter());
            handles
                .iter()
                .for_each(|handle| round.judge(handle, &mut tally));
        }
    });
    let stats = round.check_stats(&tally);
    let back = unfired + handed_back.load(Ordering::Relaxed);
    let dropped = stop == Stop::Drop;
    if !dropped && tally.returned != back {
        let returned = tally.returned;
        round.violation(format!("{returned} were dropped, {back} were given back"));
    }
    tally.added = stats.added;
    tally.overloaded = stats.overloaded;
    tally.lateness = stats.lateness.clone();
    tally.lateness_max = stats.lateness_max;
    let violations = round.violations.into_inner();
    let name = |what| format!("{executor:?}, {stop:?}: {what}");
    (tally, violations.into_iter().map(name).collect())
}

/// Runs all rounds.
#[must_use]
pub fn run(options: &Options) -> Report {
    let rounds = EXECUTORS.len() * STOPS.len();
    let span = options.span / u32::try_from(rounds).unwrap_or(1);
    let mut report = Report::default();
    let mut random = Random::new(options.seed, "stress");
    for executor in EXECUTORS {
        let mut sum = Tally::default();
        for stop in STOPS {
            let random = Random::new(random.draw(), "round");
            let (tally, violations) = round(executor, stop, options, span, random);
            sum.add(&tally);
            report.violations.extend(violations);
            report.rounds += 1;
        }
        report.tallies.push((format!("{executor:?}"), sum));
    }
    report.violations.truncate(VIOLATIONS_MAX);
    report
}

impl Report {
    /// All rounds together.
    #[must_use]
    pub fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.tallies.iter().for_each(|(_, tally)| sum.add(tally));
        sum
    }
}
