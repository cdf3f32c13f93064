//! One suite for all hosts: whoever makes time pass, the same happens at the same time in the
//! same order. Time is a clock moved by hand, also for the host that has a thread, and nothing
//! here sleeps.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod support;

use std::collections::BTreeMap;
use std::future::pending;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use countwheel::{
    Clock, Executor, Instant, Layout, ManualClock, ManualHost, Overload, Resolution, ScheduleError,
    SleepError, Stats, Stop, Stopped, Stopping, Task, Timeout, Timer, TimerBuilder, Timestamp,
    Work,
};

use support::Random;

const HOUR: Duration = Duration::from_secs(3600);

// The hosts.

/// A timer, a clock, and somebody who looks at it.
trait TestHost {
    fn timer(&self) -> &Timer;

    fn clock(&self) -> &ManualClock;

    /// Runs all due tasks, and the tasks that follow from them.
    fn settle(&mut self);

    /// Waits for the end of a stop.
    fn finish(&mut self, stopping: Stopping) -> Stopped;

    /// Time passes, and the host gets its turn whenever it asked for one.
    fn advance(&mut self, span: Duration) {
        let target = self.clock().now() + span;
        self.settle();
        loop {
            let next = self.timer().snapshot().next_wake;
            let Some(wake) = next.filter(|&wake| wake <= target) else {
                break;
            };
            let rest = wake.saturating_since(self.clock().now());
            if rest.is_zero() {
                // Nothing but the end of time, at which the clock stands already.
                break;
            }
            self.stall(rest);
        }
        let rest = target.saturating_since(self.clock().now());
        self.stall(rest);
    }

    /// Time passes, and the host does not get its turn before the end.
    fn stall(&mut self, span: Duration) {
        self.clock().advance(span);
        self.settle();
    }
}

impl TestHost for ManualHost {
    fn timer(&self) -> &Timer {
        self.timer()
    }

    fn clock(&self) -> &ManualClock {
        self.clock()
    }

    fn settle(&mut self) {
        self.run_due();
    }

    fn advance(&mut self, span: Duration) {
        self.advance(span);
    }

    fn finish(&mut self, stopping: Stopping) -> Stopped {
        self.run_due();
        stopping.wait()
    }
}

/// The host that everybody has, on a clock that stands still unless it is moved.
struct OnThread {
    timer: Timer,
    clock: ManualClock,
}

impl OnThread {
    fn new(builder: TimerBuilder) -> Self {
        let clock = ManualClock::new();
        let timer = builder.clock(clock.clone()).build();
        timer.start().unwrap();
        Self { timer, clock }
    }
}

/// Whether nothing is due, under way or running; then also how much has run.
fn rest(timer: &Timer) -> Option<u64> {
    let snapshot = timer.snapshot();
    let stats = snapshot.stats;
    let accounted = stats.ran + stats.cancelled + stats.returned + stats.pending;
    let is_over = snapshot.stopped && stats.pending == 0;
    let nothing_due = is_over || snapshot.next_wake.is_none_or(|wake| wake > snapshot.now);
    let still = stats.waiting == 0 && stats.running == 0 && accounted == stats.added;
    (nothing_due && still).then_some(stats.ran)
}

/// Calls `pass` until two looks in a row find nothing to do and nothing done between them: then
/// nothing was under way either.
fn until_still(timer: &Timer, mut pass: impl FnMut()) {
    let mut before = None;
    loop {
        let now = rest(timer);
        if now.is_some() && now == before {
            return;
        }
        before = now;
        pass();
    }
}

impl TestHost for OnThread {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn settle(&mut self) {
        // A turn that began before the clock was moved does not know the time: what is scheduled
        // next would seem to have run that long. After a wake-up, a new turn has begun.
        let before = self.timer.stats().wake_ups;
        while self.timer.stats().wake_ups == before && !self.timer.is_stopped() {
            self.timer.rouse();
            thread::yield_now();
        }
        until_still(&self.timer, thread::yield_now);
    }

    fn finish(&mut self, stopping: Stopping) -> Stopped {
        stopping.wait()
    }
}

/// A flag for a waker.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Flag {
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The host that is a future, on the smallest runtime there is.
struct Polled {
    timer: Timer,
    clock: ManualClock,
    host: Option<BoxFuture>,
    flag: Arc<Flag>,
    polls: usize,
}

impl Polled {
    fn new(builder: TimerBuilder) -> Self {
        // Its sleeps never end by themselves: whoever moves the clock rouses it.
        Self::sleeping(builder, |_| pending())
    }

    fn sleeping<F: Future<Output = ()> + 'static>(
        builder: TimerBuilder,
        sleep: impl FnMut(Duration) -> F + 'static,
    ) -> Self {
        let clock = ManualClock::new();
        Self::of(builder.clock(clock.clone()), clock, sleep)
    }

    fn of<F: Future<Output = ()> + 'static>(
        builder: TimerBuilder,
        clock: ManualClock,
        sleep: impl FnMut(Duration) -> F + 'static,
    ) -> Self {
        let (timer, host) = builder.build_hosted(sleep);
        let mut polled = Self {
            timer,
            clock,
            host: Some(Box::pin(host)),
            flag: Arc::default(),
            polls: 0,
        };
        polled.poll();
        polled
    }

    fn poll(&mut self) {
        if let Some(host) = &mut self.host {
            let waker = Waker::from(Arc::clone(&self.flag));
            self.polls += 1;
            if host
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
            {
                self.host = None;
            }
        }
    }

    /// What a runtime does.
    fn poll_while_woken(&mut self) {
        while self.flag.take() {
            self.poll();
        }
    }
}

impl TestHost for Polled {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn settle(&mut self) {
        self.timer.rouse();
        self.poll_while_woken();
        assert!(rest(&self.timer).is_some());
    }

    fn finish(&mut self, stopping: Stopping) -> Stopped {
        self.poll_while_woken();
        assert!(self.host.is_none(), "it ends with its timer");
        stopping.wait()
    }
}

/// The host that is a future, on a runtime that others use.
struct OnTokio {
    timer: Timer,
    clock: ManualClock,
    runtime: tokio::runtime::Runtime,
}

impl OnTokio {
    fn new(builder: TimerBuilder) -> Self {
        let clock = ManualClock::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (timer, host) = builder
            .clock(clock.clone())
            .build_hosted(tokio::time::sleep);
        runtime.spawn(host);
        Self {
            timer,
            clock,
            runtime,
        }
    }
}

impl TestHost for OnTokio {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn settle(&mut self) {
        self.timer.rouse();
        until_still(&self.timer, || {
            self.runtime.block_on(tokio::task::yield_now());
        });
    }

    fn finish(&mut self, stopping: Stopping) -> Stopped {
        self.runtime.block_on(stopping)
    }
}

type Make = fn(TimerBuilder) -> Box<dyn TestHost>;

const HOSTS: [(&str, Make); 4] = [
    ("by hand", |builder| {
        Box::new(builder.manual(ManualClock::new()))
    }),
    ("on a thread", |builder| Box::new(OnThread::new(builder))),
    ("as a future", |builder| Box::new(Polled::new(builder))),
    ("on tokio", |builder| Box::new(OnTokio::new(builder))),
];

fn layouts() -> [Layout; 2] {
    [Layout::Hierarchical, Layout::hashed(32).unwrap()]
}

const TICKS: [Duration; 3] = [
    Duration::from_micros(1),
    Duration::from_millis(1),
    Duration::from_millis(7),
];

/// Tasks run one after another; and whatever thread schedules, all is on one wheel, so that
/// the order in a tick is one, too.
fn builder(tick: Duration, layout: Layout) -> TimerBuilder {
    Timer::builder()
        .resolution(Resolution::new(tick).unwrap())
        .layout(layout)
        .shards(NonZeroUsize::MIN)
        .inline()
}

/// A rule of the suite: with the host and the length of a tick.
fn everywhere(options: fn(TimerBuilder) -> TimerBuilder, rule: fn(&mut dyn TestHost, Duration)) {
    for (name, make) in HOSTS {
        for layout in layouts() {
            for tick in TICKS {
                println!("{name}, {layout:?}, {tick:?}");
                let mut host = make(options(builder(tick, layout)));
                rule(&mut *host, tick);
                accounts_balance(&host.timer().stats());
            }
        }
    }
}

fn as_is(builder: TimerBuilder) -> TimerBuilder {
    builder
}

fn accounts_balance(stats: &Stats) {
    let fates = stats.ran + stats.cancelled + stats.returned;
    assert_eq!(stats.added, fates + stats.pending + stats.waiting);
    assert_eq!(stats.lateness.count(), stats.ran);
}

/// What tasks write down, and when.
#[derive(Clone)]
struct Journal {
    clock: ManualClock,
    lines: Arc<Mutex<Vec<(u64, Instant)>>>,
}

impl Journal {
    fn of(host: &dyn TestHost) -> Self {
        Self {
            clock: host.clock().clone(),
            lines: Arc::default(),
        }
    }

    fn write(&self, name: u64) {
        self.lines.lock().unwrap().push((name, self.clock.now()));
    }

    fn writes(&self, name: u64) -> impl FnOnce() + Send + 'static {
        let journal = self.clone();
        move || journal.write(name)
    }

    fn take(&self) -> Vec<(u64, Instant)> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }

    fn names(&self) -> Vec<u64> {
        self.take().into_iter().map(|(name, _)| name).collect()
    }
}

fn at(span: Duration) -> Instant {
    Instant::ZERO + span
}

// The suite.

#[test]
fn tasks_run_at_their_ticks_and_in_order() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        for name in [9, 3, 700, 1, 40, 2_000, 5] {
            let delay = tick * u32::try_from(name).unwrap();
            let task = journal.writes(name);
            host.timer().schedule(delay, task).unwrap();
        }
        host.advance(tick * 700 - Duration::from_nanos(1));
        let expected = [1, 3, 5, 9, 40].map(|name| (name, at(tick * u32::try_from(name).unwrap())));
        assert_eq!(journal.take(), expected);
        host.advance(tick * 2_000);
        assert_eq!(journal.names(), [700, 2_000]);
    });
}

#[test]
fn tasks_of_one_tick_run_as_they_were_scheduled() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        for name in 0..100 {
            // Anywhere in the tick, and from nearer and nearer.
            let deadline = at(tick * 200 - Duration::from_nanos((name * 7_919) % 999));
            let task = journal.writes(name);
            host.timer().schedule_at(deadline, task).unwrap();
            host.advance(tick);
        }
        assert_eq!(journal.names(), []);
        host.advance(tick * 100);
        let took_place = journal.take();
        assert!(took_place.iter().map(|&(name, _)| name).eq(0..100));
        assert!(took_place.iter().all(|&(_, when)| when == at(tick * 200)));
    });
}

#[test]
fn a_cancelled_task_does_not_run_and_its_memory_is_free_at_once() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        let (sender, dropped) = mpsc::channel::<()>();
        let held = move || drop(sender);
        let cancelled = host.timer().schedule(tick * 5, held).unwrap();
        let ran = host.timer().schedule(tick * 5, journal.writes(1)).unwrap();
        assert!(cancelled.cancel() && !cancelled.cancel());
        assert!(dropped.recv().is_err());
        host.advance(tick * 5);
        assert!(!ran.cancel() && ran.is_expired() && cancelled.is_cancelled());
        assert_eq!(journal.names(), [1]);
        assert_eq!(host.timer().stats().cancelled, 1);
    });
}

#[test]
fn a_task_can_be_moved_to_sooner_and_to_later_until_it_has_run() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        let timer = host.timer().clone();
        let sooner = timer.schedule(tick * 1_000, journal.writes(1)).unwrap();
        let later = timer.schedule(tick * 10, journal.writes(2)).unwrap();
        let again = timer.schedule(tick * 10, journal.writes(3)).unwrap();
        assert!(sooner.reschedule(tick * 20) && later.reschedule(tick * 30));
        host.advance(tick * 9);
        assert!(again.reschedule(tick * 11) && again.reschedule(tick * 2));
        host.advance(tick * 100);
        let expected = [(3, 11), (1, 20), (2, 30)].map(|(name, ticks)| (name, at(tick * ticks)));
        assert_eq!(journal.take(), expected);
        assert!(!again.reschedule(tick) && !later.reschedule(tick));
        assert_eq!(timer.stats().moved, 4);
    });
}

#[test]
fn no_delay_is_now_and_the_longest_is_never() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        let timer = host.timer().clone();
        host.advance(tick / 2);
        let (now, start) = (timer.now(), at(Duration::ZERO));
        timer.schedule(Duration::ZERO, journal.writes(1)).unwrap();
        timer.schedule_at(start, journal.writes(2)).unwrap();
        let never = timer.schedule(Duration::MAX, journal.writes(3)).unwrap();
        host.settle();
        assert_eq!(journal.take(), [(1, now), (2, now)]);
        host.advance(HOUR * 24 * 365 * 100);
        assert!(never.is_pending());
        host.advance(Duration::MAX);
        assert_eq!(journal.names(), [3], "the end of time");
    });
}

#[test]
fn after_a_stall_all_that_is_overdue_runs_once_and_in_order() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        for name in 1..=500 {
            // Each tick is met twice.
            let delay = tick * u32::try_from(name * 7_919 % 500 / 2 + 1).unwrap();
            host.timer().schedule(delay, journal.writes(name)).unwrap();
        }
        let mut expected: Vec<_> = (1..=500).collect();
        expected.sort_by_key(|name| name * 7_919 % 500 / 2);
        host.stall(tick * 10_000);
        let took_place = journal.take();
        assert!(
            took_place
                .iter()
                .all(|&(_, when)| when == at(tick * 10_000))
        );
        let order: Vec<_> = took_place.into_iter().map(|(name, _)| name).collect();
        assert_eq!(order, expected);
        assert_eq!(host.timer().stats().lateness_max, tick * 9_999);
        host.advance(tick * 10_000);
        assert_eq!(journal.names(), []);
    });
}

#[test]
fn a_task_may_schedule_the_next() {
    fn chain(timer: &Timer, journal: &Journal, tick: Duration, left: u64) {
        let (next, writer) = (timer.clone(), journal.clone());
        let task = move || {
            writer.write(left);
            if left > 0 {
                chain(&next, &writer, tick, left - 1);
            }
        };
        // Every third without a delay.
        let delay = if left.is_multiple_of(3) {
            Duration::ZERO
        } else {
            tick
        };
        timer.schedule(delay, task).unwrap();
    }
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        chain(host.timer(), &journal, tick, 9);
        host.advance(tick * 100);
        let (names, when): (Vec<_>, Vec<_>) = journal.take().into_iter().unzip();
        assert_eq!(names, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        let ticks = [0, 1, 2, 2, 3, 4, 4, 5, 6, 6];
        assert!(when.into_iter().eq(ticks.map(|ticks| at(tick * ticks))));
    });
}

#[test]
fn a_task_may_cancel_another_of_its_tick_but_not_itself() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        let handles = Arc::new(Mutex::new(Vec::<Timeout>::new()));
        let (cancels, writer) = (Arc::clone(&handles), journal.clone());
        let task = move || {
            for handle in &*cancels.lock().unwrap() {
                writer.write(u64::from(handle.cancel()));
            }
        };
        let itself = host.timer().schedule(tick, task).unwrap();
        let sibling = host.timer().schedule(tick, journal.writes(7)).unwrap();
        *handles.lock().unwrap() = vec![itself, sibling];
        host.advance(tick);
        assert_eq!(journal.names(), [0, 1]);
        let stats = host.timer().stats();
        assert_eq!((stats.ran, stats.cancelled), (1, 1));
        handles.lock().unwrap().clear();
    });
}

#[test]
fn a_panic_ends_its_task_and_nothing_else() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        for name in 0..10 {
            let write = journal.writes(name);
            let task = move || {
                write();
                if name % 2 == 0 {
                    resume_unwind(Box::new("on purpose")); // without a message
                }
            };
            host.timer().schedule(tick * 3, task).unwrap();
        }
        host.advance(tick * 3);
        assert_eq!(journal.names(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let stats = host.timer().stats();
        assert_eq!((stats.ran, stats.panicked, stats.host_failures), (10, 5, 0));
    });
}

#[test]
fn a_full_timer_refuses_and_has_room_again_once_something_has_left() {
    everywhere(
        |builder| builder.max_pending(3),
        |host, tick| {
            let journal = Journal::of(host);
            let timer = host.timer().clone();
            let schedule = |name| timer.schedule(tick * 2, journal.writes(name));
            let first = schedule(1).unwrap();
            schedule(2).unwrap();
            schedule(3).unwrap();
            for _ in 0..2 {
                let Err(ScheduleError::Full(task)) = schedule(4) else {
                    panic!("there is no room");
                };
                task.run();
            }
            assert!(first.cancel());
            schedule(5).unwrap();
            assert!(schedule(6).is_err());
            host.advance(tick * 2);
            assert_eq!(journal.names(), [4, 4, 2, 3, 5]);
            schedule(7).unwrap();
            host.advance(tick * 2);
            assert_eq!(journal.names(), [7]);
            assert_eq!(timer.stats().refused, 3);
        },
    );
}

/// Five tasks, of ticks 1 to 5, after two ticks: and then a stop.
fn stop(host: &mut dyn TestHost, tick: Duration, stop: Stop) -> (Journal, Stopping) {
    let journal = Journal::of(host);
    for name in [4, 2, 1, 5, 3] {
        let delay = tick * u32::try_from(name).unwrap();
        host.timer().schedule(delay, journal.writes(name)).unwrap();
    }
    host.advance(tick * 2);
    assert_eq!(journal.names(), [1, 2]);
    let stopping = host.timer().close(stop);
    assert!(host.timer().is_stopped());
    let refused = host.timer().schedule(tick, || ());
    assert!(matches!(refused, Err(ScheduleError::Closed(_))));
    (journal, stopping)
}

fn is_over(host: &mut dyn TestHost, stopped: &Stopped, journal: &Journal) {
    assert!(stopped.is_complete() && stopped.running.is_empty());
    assert_eq!(host.timer().pending(), 0);
    let again = host.timer().close(Stop::HandBack);
    assert!(host.finish(again).unfired.is_empty());
    journal.take();
    host.stall(HOUR);
    assert_eq!(journal.names(), [], "nothing runs any more");
}

#[test]
fn a_stop_hands_back_what_has_not_run() {
    everywhere(as_is, |host, tick| {
        let (journal, stopping) = stop(host, tick, Stop::HandBack);
        let stopped = host.finish(stopping);
        let deadlines = stopped.unfired.iter().map(Task::deadline);
        assert!(deadlines.eq([3, 4, 5].map(|ticks| at(tick * ticks))));
        is_over(host, &stopped, &journal);
        stopped.unfired.into_iter().for_each(Task::run);
        assert_eq!(journal.names(), [3, 4, 5]);
        assert_eq!(host.timer().stats().returned, 3);
    });
}

#[test]
fn a_stop_may_drop_what_has_not_run() {
    everywhere(as_is, |host, tick| {
        let (journal, stopping) = stop(host, tick, Stop::Drop);
        let stopped = host.finish(stopping);
        assert!(stopped.unfired.is_empty());
        is_over(host, &stopped, &journal);
        assert_eq!(Arc::strong_count(&journal.lines), 1, "they were dropped");
        assert_eq!(host.timer().stats().returned, 3);
    });
}

#[test]
fn a_stop_may_run_all_before_its_time() {
    everywhere(as_is, |host, tick| {
        let (journal, stopping) = stop(host, tick, Stop::RunNow);
        let stopped = host.finish(stopping);
        let now = at(tick * 2);
        assert_eq!(journal.take(), [(3, now), (4, now), (5, now)]);
        is_over(host, &stopped, &journal);
        assert_eq!(host.timer().stats().returned, 0);
    });
}

#[test]
fn a_stop_may_wait_for_what_comes_soon() {
    everywhere(as_is, |host, tick| {
        let (journal, stopping) = stop(host, tick, Stop::WaitUpTo(tick * 2));
        host.advance(tick * 2);
        let stopped = host.finish(stopping);
        let expected = [(3, at(tick * 3)), (4, at(tick * 4))];
        assert_eq!(journal.take(), expected);
        assert_eq!(stopped.unfired.len(), 1);
        is_over(host, &stopped, &journal);
        stopped.unfired.into_iter().for_each(Task::run);
        assert_eq!(journal.names(), [5]);
    });
}

#[test]
fn a_stop_that_waits_ends_with_the_last_task() {
    everywhere(as_is, |host, tick| {
        let (journal, stopping) = stop(host, tick, Stop::WaitUpTo(HOUR));
        host.advance(tick * 3);
        let stopped = host.finish(stopping);
        assert_eq!(journal.names(), [3, 4, 5]);
        assert!(stopped.unfired.is_empty());
        is_over(host, &stopped, &journal);
    });
}

#[test]
fn a_task_may_stop_its_own_timer() {
    everywhere(as_is, |host, tick| {
        let journal = Journal::of(host);
        let (own, writer) = (host.timer().clone(), journal.clone());
        let task = move || {
            for task in own.stop().unfired {
                task.run();
            }
            writer.write(1);
        };
        host.timer().schedule(tick, task).unwrap();
        host.timer().schedule(tick, journal.writes(2)).unwrap();
        host.timer().schedule(HOUR, journal.writes(3)).unwrap();
        host.advance(tick);
        let again = host.timer().close(Stop::HandBack);
        assert!(host.finish(again).is_complete());
        assert_eq!(journal.names(), [2, 3, 1]);
    });
}

// The same script on all hosts.

impl Random {
    /// None, whole ticks, parts of them, and now and then more than anybody waits for.
    fn delay(&mut self, tick: Duration) -> Duration {
        let tick_nanos = u64::try_from(tick.as_nanos()).unwrap();
        let bits = self.below(12);
        let some = self.below(2 << bits);
        match self.below(20) {
            0 | 1 => Duration::ZERO,
            2 => Duration::MAX,
            3 => Duration::from_nanos(tick_nanos.saturating_mul(some << 20)),
            4..=9 => Duration::from_nanos(tick_nanos * some),
            _ => Duration::from_nanos(tick_nanos * some / 16 + self.below(tick_nanos)),
        }
    }

    fn deed(&mut self, tick: Duration, depth: u64) -> Deed {
        match self.below(10 + depth) {
            0 => Deed::Panic,
            1 => Deed::Cancel(self.next()),
            2 => Deed::Move(self.next(), self.delay(tick)),
            3 | 4 => Deed::Schedule(self.delay(tick), Box::new(self.deed(tick, depth + 10))),
            _ => Deed::Nothing,
        }
    }
}

/// What a task does beside writing that it ran. The numbers choose one of all tasks so far.
enum Deed {
    Nothing,
    Panic,
    Cancel(u64),
    Move(u64, Duration),
    Schedule(Duration, Box<Deed>),
}

/// What happened.
#[derive(PartialEq, Eq, Debug)]
enum Event {
    Ran(u64, Instant),
    Refused(u64, Instant),
    Cancelled(u64, bool),
    Moved(u64, bool),
    /// How many have run, and how many are pending.
    Counted(u64, u64),
    Returned(Instant),
}

/// One run of a script on one host.
struct Script {
    timer: Timer,
    state: Mutex<ScriptState>,
}

#[derive(Default)]
struct ScriptState {
    /// How many tasks have been named.
    names: u64,
    handles: Vec<(u64, Timeout)>,
    deadlines: BTreeMap<u64, Instant>,
    early: u64,
    events: Vec<Event>,
}

impl ScriptState {
    fn choose(&self, number: u64) -> Option<&(u64, Timeout)> {
        let among = u64::try_from(self.handles.len().max(1)).unwrap();
        self.handles.get(usize::try_from(number % among).unwrap())
    }
}

impl Script {
    fn schedule(self: &Arc<Self>, deadline: Instant, deed: Deed) {
        // Held until the handle is in the list: the task may begin before this returns.
        let mut state = self.state.lock().unwrap();
        let name = state.names;
        state.names += 1;
        let script = Arc::clone(self);
        let task = move || script.perform(name, deed);
        match self.timer.schedule_at(deadline, task) {
            Ok(handle) => {
                state.handles.push((name, handle));
                state.deadlines.insert(name, deadline);
            }
            Err(error) => {
                drop(error);
                state.events.push(Event::Refused(name, self.timer.now()));
            }
        }
    }

    fn perform(self: &Arc<Self>, name: u64, deed: Deed) {
        let now = self.timer.now();
        let mut state = self.state.lock().unwrap();
        state.events.push(Event::Ran(name, now));
        let early = now < state.deadlines[&name];
        state.early += u64::from(early && !self.timer.is_stopped());
        drop(state);
        match deed {
            Deed::Nothing => {}
            Deed::Panic => resume_unwind(Box::new("on purpose")),
            Deed::Cancel(number) => self.cancel(number),
            Deed::Move(number, delay) => self.reschedule(number, delay),
            Deed::Schedule(delay, deed) => self.schedule(now + delay, *deed),
        }
    }

    fn cancel(&self, number: u64) {
        let mut state = self.state.lock().unwrap();
        let Some((name, handle)) = state.choose(number) else {
            return;
        };
        let event = Event::Cancelled(*name, handle.cancel());
        state.events.push(event);
    }

    fn reschedule(&self, number: u64, delay: Duration) {
        let mut state = self.state.lock().unwrap();
        let Some((name, handle)) = state.choose(number) else {
            return;
        };
        let (name, moved) = (*name, handle.reschedule(delay));
        let deadline = handle.deadline();
        state.events.push(Event::Moved(name, moved));
        state.deadlines.insert(name, deadline);
    }
}

fn play(host: &mut dyn TestHost, seed: u64, tick: Duration) -> (Vec<Event>, Stats) {
    const STEPS: u64 = 2_000;
    let mut random = Random(seed);
    let script = Arc::new(Script {
        timer: host.timer().clone(),
        state: Mutex::default(),
    });
    for step in 0..STEPS {
        let now = host.timer().now();
        match random.below(20) {
            0..=8 => {
                let (delay, deed) = (random.delay(tick), random.deed(tick, 0));
                script.schedule(now + delay, deed);
            }
            9 => {
                let past = random.below(now.as_nanos() + 1);
                let deed = random.deed(tick, 0);
                script.schedule(Instant::from_nanos(past), deed);
            }
            10 | 11 => script.cancel(random.next()),
            12..=14 => {
                let (number, delay) = (random.next(), random.delay(tick));
                script.reschedule(number, delay);
            }
            15..=18 => {
                let span = tick / 8 * u32::try_from(random.below(400)).unwrap();
                host.advance(span);
            }
            _ => {
                let span = tick / 8 * u32::try_from(random.below(4_000)).unwrap();
                host.stall(span);
            }
        }
        host.settle();
        if step % 100 == 0 {
            let stats = host.timer().stats();
            let mut state = script.state.lock().unwrap();
            state.events.push(Event::Counted(stats.ran, stats.pending));
        }
    }
    let mode = match seed % 4 {
        0 => Stop::HandBack,
        1 => Stop::RunNow,
        2 => Stop::WaitUpTo(tick * 100),
        _ => Stop::Drop,
    };
    let stopping = host.timer().close(mode);
    host.advance(tick * 100);
    let unfired = host.finish(stopping).unfired;
    let mut state = script.state.lock().unwrap();
    assert_eq!(state.early, 0);
    let mut events = std::mem::take(&mut state.events);
    events.extend(unfired.iter().map(|task| Event::Returned(task.deadline())));
    state.handles.clear();
    let stats = host.timer().stats();
    accounts_balance(&stats);
    (events, stats)
}

#[test]
fn a_script_at_random_does_the_same_on_every_host() {
    for seed in 0..4 {
        for layout in layouts() {
            for tick in TICKS {
                let mut first: Option<(Vec<Event>, Stats)> = None;
                for (name, make) in HOSTS {
                    let mut options = builder(tick, layout);
                    if seed % 2 == 0 {
                        options = options.max_pending(40);
                    }
                    let (events, mut stats) = play(&mut *make(options), seed, tick);
                    stats.wake_ups = 0; // the only thing that may differ
                    assert!(stats.ran > 300, "it is worth the while: {stats:?}");
                    let Some((first_events, first_stats)) = &first else {
                        first = Some((events, stats));
                        continue;
                    };
                    let script = format!("seed {seed}, {layout:?}, {tick:?}, {name}");
                    let pairs = first_events.iter().zip(&events);
                    for (place, (expected, found)) in pairs.enumerate() {
                        assert_eq!(expected, found, "{script}: event {place}");
                    }
                    assert_eq!(first_events.len(), events.len(), "{script}");
                    assert_eq!(first_stats, &stats, "{script}");
                }
            }
        }
    }
}

// The host that is a future, and what may happen to it.

/// How a future is polled: with this flag for a waker.
fn poll(flag: &Arc<Flag>, future: &mut (impl Future + Unpin)) -> bool {
    let waker = Waker::from(Arc::clone(flag));
    let poll = Pin::new(future).poll(&mut Context::from_waker(&waker));
    poll.is_ready()
}

#[test]
fn something_earlier_that_comes_between_the_turn_and_the_sleep_is_seen() {
    let timer = Arc::new(OnceLock::<Timer>::new());
    let ran = Arc::new(AtomicUsize::new(0));
    let (late, counts) = (Arc::clone(&timer), Arc::clone(&ran));
    // At the last moment, when the host has looked and is about to sleep for an hour.
    let sleep = move |span| {
        let counts = Arc::clone(&counts);
        let task = move || {
            counts.fetch_add(1, Ordering::SeqCst);
        };
        if span == HOUR {
            late.get().unwrap().schedule(HOUR / 2, task).unwrap();
        }
        pending()
    };
    let mut host = Polled::sleeping(Timer::builder(), sleep);
    timer.set(host.timer.clone()).unwrap();
    host.timer.schedule(HOUR, || ()).unwrap();
    host.poll_while_woken();
    assert_eq!(host.timer.pending(), 2);
    let next = host.timer.snapshot().next_wake;
    assert_eq!(next, Some(Instant::ZERO + HOUR / 2));
    host.advance(HOUR / 2);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[test]
fn a_rouse_between_the_turn_and_the_sleep_is_another_poll() {
    let timer = Arc::new(OnceLock::<Timer>::new());
    let rouses = Arc::clone(&timer);
    let mut sleeps = 0;
    let sleep = move |_| {
        sleeps += 1;
        if sleeps <= 3 {
            rouses.get().unwrap().rouse();
        }
        pending()
    };
    let mut host = Polled::sleeping(Timer::builder(), sleep);
    timer.set(host.timer.clone()).unwrap();
    host.timer.schedule(HOUR, || ()).unwrap();
    let before = host.polls;
    host.poll_while_woken();
    assert_eq!(host.polls - before, 4);
}

#[test]
fn the_waker_of_the_last_poll_is_the_one_that_is_woken() {
    let (timer, mut host) = Timer::builder().build_hosted(|_| pending());
    let flags = [Arc::new(Flag::default()), Arc::new(Flag::default())];
    for flag in &flags {
        assert!(!poll(flag, &mut host));
    }
    timer.schedule(HOUR, || ()).unwrap();
    assert!(!flags[0].take() && flags[1].take());
    assert_eq!(Arc::strong_count(&flags[0]), 1);
    drop(host);
    assert_eq!(
        Arc::strong_count(&flags[1]),
        1,
        "a host that has ended is not woken"
    );
}

#[test]
fn after_a_jump_of_the_clock_the_sleep_is_as_long_as_what_is_left() {
    let slept = Arc::new(Mutex::new(Vec::new()));
    let writes = Arc::clone(&slept);
    let sleep = move |span| {
        writes.lock().unwrap().push(span);
        pending()
    };
    let mut host = Polled::sleeping(Timer::builder().inline(), sleep);
    host.timer.schedule(HOUR, || ()).unwrap();
    host.poll_while_woken();
    host.clock.advance(HOUR / 4);
    host.timer.rouse();
    host.poll_while_woken();
    host.poll(); // for no reason
    assert_eq!(*slept.lock().unwrap(), [HOUR, HOUR / 4 * 3, HOUR / 4 * 3]);
    host.stall(HOUR);
    assert_eq!(host.timer.stats().ran, 1);
    assert_eq!(slept.lock().unwrap().len(), 3, "nothing to sleep for");
}

#[test]
fn a_host_with_nothing_to_wait_for_holds_no_sleep_of_its_runtime() {
    let alive = Arc::new(());
    let counted = Arc::clone(&alive);
    let sleep = move |_| {
        let one = Arc::clone(&counted);
        async move {
            pending::<()>().await;
            drop(one);
        }
    };
    let mut host = Polled::sleeping(Timer::builder(), sleep);
    let sleeps = || Arc::strong_count(&alive) - 2;
    for _ in 0..2 {
        let only = host.timer.schedule(HOUR, || ()).unwrap();
        host.settle();
        assert_eq!(sleeps(), 1);
        assert!(only.cancel());
        host.settle();
        assert_eq!(sleeps(), 0);
    }
}

#[test]
fn a_sleep_that_ends_early_is_followed_by_another() {
    let clock = ManualClock::new();
    let (moves, mut sleeps) = (clock.clone(), 0);
    let sleep = move |span: Duration| {
        sleeps += 1;
        if sleeps % 2 == 0 {
            moves.advance(span / 2 + Duration::from_nanos(1));
        }
        std::future::ready(())
    };
    let builder = Timer::builder().clock(clock.clone());
    let mut host = Polled::of(builder, clock, sleep);
    host.timer.schedule(HOUR, || ()).unwrap();
    host.poll_while_woken();
    assert_eq!(host.timer.stats().ran, 1);
    let now = host.timer.now();
    assert!(now >= Instant::ZERO + HOUR && now < Instant::ZERO + HOUR + HOUR / 1_000);
}

#[test]
fn a_host_that_has_much_to_do_lets_others_have_their_turn() {
    let mut host = Polled::new(Timer::builder());
    for _ in 0..1_000 {
        host.timer.schedule(Duration::ZERO, || ()).unwrap();
    }
    host.flag.take();
    host.poll();
    let ran = host.timer.stats().ran;
    assert!((1..=100).contains(&ran), "{ran} in one poll");
    assert!(host.flag.take(), "and comes back");
    host.settle();
    assert_eq!(host.timer.stats().ran, 1_000);
}

#[test]
fn a_host_that_is_dropped_closes_its_timer_and_loses_nothing() {
    let mut host = Polled::new(Timer::builder());
    let timer = host.timer.clone();
    let sleeper = Arc::new(Flag::default());
    let mut sleep = timer.sleep(HOUR);
    assert!(!poll(&sleeper, &mut sleep));
    timer.schedule(2 * HOUR, || ()).unwrap();
    timer.schedule(HOUR, || ()).unwrap();
    host.poll_while_woken();
    host.host = None;

    assert!(timer.is_stopped() && sleeper.take());
    let waker = Waker::from(sleeper);
    let end = Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker));
    assert!(matches!(end, Poll::Ready(Err(SleepError::Closed))));
    let stopped = timer.stop();
    let deadlines = stopped.unfired.iter().map(Task::deadline);
    assert!(deadlines.eq([HOUR, 2 * HOUR].map(at)));
    let stats = timer.stats();
    assert_eq!((stats.returned, stats.pending, stats.ran), (3, 0, 0));
}

#[test]
fn a_host_that_was_never_polled_may_be_dropped() {
    let (timer, host) = Timer::builder().build_hosted(|_| pending());
    timer.schedule(Duration::ZERO, || unreachable!()).unwrap();
    drop(host);
    assert_eq!(timer.stop().unfired.len(), 1);
}

#[test]
fn a_host_and_the_wait_for_its_end_may_be_one_task() {
    let clock = ManualClock::new();
    let (timer, mut host) = Timer::builder()
        .clock(clock.clone())
        .build_hosted(|_| pending());
    timer.schedule(HOUR, || ()).unwrap();
    let mut stopping = timer.close(Stop::WaitUpTo(2 * HOUR));
    let (flag, mut polls) = (Arc::new(Flag::default()), 0);
    let mut poll_both = || {
        flag.0.store(true, Ordering::SeqCst);
        while flag.take() {
            polls += 1;
            assert!(polls < 20, "they keep waking each other");
            let over = poll(&flag, &mut host);
            if poll(&flag, &mut stopping) {
                assert!(over);
                return true;
            }
        }
        false
    };
    assert!(!poll_both() && !poll_both());
    clock.advance(HOUR);
    timer.rouse();
    assert!(poll_both());
}

/// A clock that panics as often as it is told.
#[derive(Clone, Debug, Default)]
struct Fragile {
    clock: ManualClock,
    panics: Arc<AtomicUsize>,
}

impl Clock for Fragile {
    fn now(&self) -> Instant {
        let fewer = |left: usize| left.checked_sub(1);
        let panics = self
            .panics
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        if panics.is_ok() {
            resume_unwind(Box::new("on purpose"));
        }
        self.clock.now()
    }

    fn timestamp(&self) -> Timestamp {
        self.clock.timestamp()
    }
}

#[test]
fn a_clock_that_panics_now_and_then_costs_turns_and_nothing_else() {
    let clock = Fragile::default();
    let builder = Timer::builder().clock(clock.clone());
    let mut host = Polled::of(builder, clock.clock.clone(), |_| pending());
    host.timer.schedule(HOUR, || ()).unwrap();
    for panics in [1, 15] {
        clock.panics.store(panics, Ordering::SeqCst);
        host.timer.rouse();
        host.poll_while_woken();
        assert_eq!(clock.panics.load(Ordering::SeqCst), 0);
        assert!(!host.timer.is_stopped());
    }
    assert_eq!(host.timer.stats().host_failures, 16);
    host.advance(HOUR);
    assert_eq!(host.timer.stats().ran, 1);
}

#[test]
fn a_host_that_fails_again_and_again_gives_up() {
    let clock = Fragile::default();
    let builder = Timer::builder().clock(clock.clone());
    let mut host = Polled::of(builder, clock.clock.clone(), |_| pending());
    let timer = host.timer.clone();
    let sleeper = Arc::new(Flag::default());
    let mut sleep = timer.sleep(HOUR);
    assert!(!poll(&sleeper, &mut sleep));
    timer.schedule(HOUR, || ()).unwrap();
    clock.panics.store(16, Ordering::SeqCst);
    host.poll_while_woken();
    assert!(host.host.is_none() && timer.is_stopped() && sleeper.take());
    assert_eq!(timer.stats().host_failures, 16);
    assert_eq!(timer.stop().unfired.len(), 1);
}

#[test]
fn a_runtime_that_cannot_sleep_ends_the_timer_instead_of_keeping_it_silent() {
    let sleep = |_| -> std::future::Pending<()> { resume_unwind(Box::new("no time driver")) };
    let mut host = Polled::sleeping(Timer::builder(), sleep);
    host.timer.schedule(HOUR, || ()).unwrap();
    host.poll_while_woken();
    assert!(host.host.is_none() && host.timer.is_stopped());
    assert_eq!(host.timer.stop().unfired.len(), 1);
}

/// Runs what it is given at once; panics instead every other time.
#[derive(Debug, Default)]
struct Moody(AtomicUsize);

impl Executor for Moody {
    fn execute(&self, work: Work) -> Result<(), Work> {
        if self.0.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
            resume_unwind(Box::new("on purpose"));
        }
        work.run();
        Ok(())
    }
}

#[test]
fn an_executor_that_panics_loses_what_it_was_given_and_nothing_else() {
    let builder = Timer::builder().executor(Moody::default());
    let mut host = Polled::new(builder);
    for _ in 0..10 {
        host.timer.schedule(HOUR, || ()).unwrap();
    }
    host.advance(HOUR);
    let stats = host.timer.stats();
    assert_eq!((stats.ran, stats.returned, stats.host_failures), (5, 5, 5));
    assert_eq!(stats.pending + stats.waiting, 0);
}

/// Panics whatever it is given.
#[derive(Debug)]
struct Broken;

impl Executor for Broken {
    fn execute(&self, _: Work) -> Result<(), Work> {
        resume_unwind(Box::new("on purpose"));
    }
}

// sixteen panics of an executor were sixteen failures of the host, which then gave up.
#[test]
fn an_executor_that_always_panics_does_not_end_the_timer() {
    let mut host = Polled::new(Timer::builder().executor(Broken));
    for _ in 0..40 {
        host.timer.schedule(Duration::ZERO, || ()).unwrap();
    }
    let mut sleep = host.timer.sleep(HOUR);
    let sleeper = Arc::new(Flag::default());
    assert!(!poll(&sleeper, &mut sleep));
    host.settle();
    assert!(!host.timer.is_stopped());
    let stats = host.timer.stats();
    assert_eq!((stats.returned, stats.host_failures), (40, 40));
    host.advance(HOUR);
    assert!(sleeper.take() && poll(&sleeper, &mut sleep), "it goes on");
}

// a runtime that gets no thread for what blocks panics: sixteen tasks ended the timer.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_without_a_thread_refuses_tasks_and_ends_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .thread_stack_size(1 << 46) // more than there is
        .build()
        .unwrap();
    let limit = NonZeroUsize::new(100).unwrap();
    let executor = countwheel::TokioExecutor::blocking(runtime.handle().clone(), limit);
    let builder = Timer::builder().executor(executor.clone());
    let mut host = Polled::new(builder.overload(Overload::RunInline));
    let ran = Arc::new(AtomicUsize::new(0));
    for _ in 0..17 {
        let ran = Arc::clone(&ran);
        let task = move || _ = ran.fetch_add(1, Ordering::SeqCst);
        host.timer.schedule(Duration::ZERO, task).unwrap();
    }
    host.settle();
    assert!(!host.timer.is_stopped());
    assert_eq!(ran.load(Ordering::SeqCst), 17, "each as the overload says");
    let stats = host.timer.stats();
    assert_eq!((stats.returned, stats.overloaded), (0, 17));
    assert_eq!(executor.outstanding(), 0);
}

/// A subscriber whose events panic.
struct Loud;

impl tracing::Subscriber for Loud {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        resume_unwind(Box::new("on purpose"));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

// a subscriber that panicked when a task fired lost the task, which counted as running for
// ever: a stop waited for it.
#[test]
fn a_subscriber_that_panics_loses_no_task_and_holds_up_no_stop() {
    let mut host = ManualHost::new();
    let ran = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&ran);
    let task = move || _ = counts.fetch_add(1, Ordering::SeqCst);
    host.timer().schedule(Duration::ZERO, task).unwrap();
    let panics = || resume_unwind(Box::new("on purpose"));
    host.timer().schedule(Duration::ZERO, panics).unwrap();
    tracing::subscriber::with_default(Loud, || {
        host.run_due();
    });
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    let stats = host.timer().stats();
    assert_eq!((stats.ran, stats.running, stats.panicked), (2, 0, 1));
    assert!(host.timer().stop().is_complete());
}
