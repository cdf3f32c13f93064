//! The work of a timer: it takes out due tasks, runs them, keeps count, and stops.
//!
//! The engine never waits. A host calls [`Engine::turn`] and sleeps for the returned time; a call
//! that needs the host sooner wakes it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::concurrent::{Host, Ready, Shards};
use crate::executor::context::Context;
use crate::executor::{Executor, Overload, Work};
use crate::stats::{RunningTask, SlowTask, Snapshot, Stats};
use crate::task::{Job, Task, returns};
use crate::watchdog::Health;
use crate::{Clock, Fired, Instant, Unfired};
use countwheel_time::locks::lock;
use countwheel_time::nanos;

/// What the handles, the host and the executor's work share.
pub(crate) struct Engine {
    pub(crate) name: String,
    pub(crate) shards: Shards<Job>,
    pub(crate) ready: Ready<Job>,
    /// `None`: the host runs tasks itself.
    executor: Option<Box<dyn Executor>>,
    /// Where the host runs tasks.
    pub(crate) context: Context,
    overload: Overload,
    slow_after: Duration,
    plan: Mutex<Plan>,
    seen: Mutex<Seen>,
}

/// What the host is going to do beside what the shards tell it.
#[derive(Default)]
struct Plan {
    /// When to ask the executor again.
    retry_at: Option<Instant>,
    /// When a closing timer gives up waiting for its deadlines.
    give_up_at: Option<Instant>,
    /// What was left over when it gave up, for the first who asks.
    left_over: Vec<Task>,
    /// Whether somebody drops all that is pending: nothing of it runs meanwhile.
    dropping: bool,
    /// Whether the host has left before its time.
    deserted: bool,
}

/// What has been seen of the tasks that ran.
#[derive(Default)]
struct Seen {
    stats: Stats,
    /// Wakers and channels, which run without being put into the queue.
    short: u64,
}

/// What the host does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostTurn {
    /// Take the next turn.
    Again,
    /// Sleep until then, unless woken.
    Rest(Instant),
    /// Nothing is ever to do again.
    Ended,
}

/// The options of an engine.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) shards: Shards<Job>,
    pub(crate) executor: Option<Box<dyn Executor>>,
    pub(crate) context: Context,
    pub(crate) overload: Overload,
    pub(crate) slow_after: Duration,
}

/// How many expired tasks are taken out at a time for an executor.
const BATCH: usize = 64;

/// How many entries are dropped at a time.
const PIECE: usize = 1_024;

impl Engine {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            name: parts.name,
            shards: parts.shards,
            ready: Ready::new(),
            executor: parts.executor,
            context: parts.context,
            overload: parts.overload,
            slow_after: parts.slow_after,
            plan: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Does what is due, up to a batch, and says what is next.
    pub(crate) fn turn(self: &Arc<Self>) -> HostTurn {
        let now = self.clock().now();
        if self.step(now).is_some() {
            return HostTurn::Again;
        }
        let mut plan = lock(&self.plan);
        let limits = plan.retry_at.into_iter().chain(plan.give_up_at);
        let limit = limits.min().unwrap_or(Instant::MAX);
        // Under the lock: nobody is just moving tasks from the shards to the queue.
        let closed = self.shards.hub().is_closed();
        if closed && self.shards.counts().pending == 0 && self.ready.is_handed_out() {
            plan.give_up_at = None;
            return HostTurn::Ended;
        }
        if plan.dropping {
            // Who drops it rouses the host at the end.
            return HostTurn::Rest(Instant::MAX);
        }
        drop(plan);
        match self.shards.fall_asleep(now, limit) {
            Some(until) => HostTurn::Rest(until),
            None => HostTurn::Again,
        }
    }

    /// Does what is due at `now`, up to a batch, or comes nearer to it. `None` if there was
    /// nothing to do, else how many tasks it ran or handed out, which may be none.
    pub(crate) fn step(self: &Arc<Self>, now: Instant) -> Option<usize> {
        let inline = self.executor.is_none();
        // What was made ready otherwise comes first: it has waited longer.
        if inline && self.ready.issue_ticket() {
            self.run_next();
            return Some(1);
        }
        // One at a time if it runs here: until then it may be cancelled by the one before.
        let limit = if inline { 1 } else { BATCH };
        let (mut due, mut short, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        let mut here = None;
        let plan = lock(&self.plan);
        // What is due later than a closing timer waits is handed back, however late we are.
        let until = plan.give_up_at.map_or(now, |at| at.min(now));
        let is_done = plan.dropping || self.shards.take_due(until, limit, &mut due);
        let took = due.len();
        for fired in due {
            if fired.value.is_short() {
                short.push(fired);
            } else if inline {
                let name = fired.value.name();
                let run = self.ready.start(name, now, fired.deadline);
                here = Some((fired, run, name));
            } else {
                waiting.push(fired);
            }
        }
        let mut done = took - waiting.len();
        if !waiting.is_empty() {
            self.ready.put(waiting);
        }
        // Until here nobody who stops the timer looks: a task is on its wheel, in the queue
        // or counted as running.
        drop(plan);
        if !is_done {
            self.shards.let_in();
        }
        self.shards.hub().give_room(done as u64);
        for fired in short {
            self.run_short(fired);
        }
        if let Some((fired, run, name)) = here {
            self.perform(fired, run, name, Some(now));
        }
        done += self.hand_out(now);
        if took == 0 && done == 0 && is_done {
            return self.gives_up(now).then_some(0);
        }
        Some(done)
    }

    /// Asks the executor to take what is ready. Returns how many it took, or were otherwise
    /// dealt with.
    fn hand_out(self: &Arc<Self>, now: Instant) -> usize {
        let Some(executor) = &self.executor else {
            return 0;
        };
        {
            let mut plan = lock(&self.plan);
            match plan.retry_at {
                Some(at) if at > now => return 0,
                _ => plan.retry_at = None,
            }
        }
        let mut done = 0;
        while self.ready.issue_ticket() {
            let mut answer = Ok(());
            let work = Work::new(Arc::clone(self));
            // What it panicked with in its hands is dropped there, and counts as returned.
            if !returns(|| answer = executor.execute(work)) {
                let so_far = self.host_failed();
                returns(|| tracing::error!(timer = self.name, so_far, "an executor panicked"));
            }
            let Err(work) = answer else {
                done += 1;
                continue;
            };
            lock(&self.seen).stats.overloaded += 1;
            match &self.overload {
                Overload::RunInline => {
                    work.run();
                    done += 1;
                }
                Overload::RetryAfter(pause) => {
                    work.forget();
                    self.ready.return_ticket();
                    let pause = (*pause).max(Duration::from_micros(1));
                    lock(&self.plan).retry_at = Some(now + pause);
                    break;
                }
                Overload::HandBack(receiver) => {
                    work.forget();
                    if let Some(fired) = self.take_back() {
                        let task = Task::new(fired.deadline, fired.value);
                        if !returns(|| receiver(task)) {
                            returns(|| {
                                tracing::error!(timer = self.name, "the overload handler panicked");
                            });
                        }
                    }
                    done += 1;
                }
            }
        }
        done
    }

    /// Runs the first task of the queue, unless a stop was faster.
    pub(crate) fn run_next(self: &Arc<Self>) {
        let since = self.now_if_possible();
        let noted = since.unwrap_or(Instant::ZERO);
        if let Some((fired, run)) = self.ready.take(noted, Job::name) {
            self.shards.hub().give_room(1);
            let name = fired.value.name();
            self.perform(fired, run, name, since);
        }
    }

    /// A clock that panics must not take a task or a thread of an executor with it.
    fn now_if_possible(&self) -> Option<Instant> {
        let mut now = None;
        returns(|| now = Some(self.clock().now()));
        now
    }

    /// Takes the first of the queue out for good, for work that is not going to run.
    fn take_back(&self) -> Option<Fired<Job>> {
        let fired = self.ready.take_back();
        self.shards.hub().give_room(u64::from(fired.is_some()));
        fired
    }

    /// An executor dropped what it had accepted.
    pub(crate) fn work_was_dropped(&self) {
        if let Some(fired) = self.take_back() {
            let name = fired.value.name();
            returns(|| {
                tracing::warn!(timer = self.name, task = name, "executor dropped a task");
            });
            returns(|| drop(fired));
        }
    }

    /// Runs a task. A panic ends the task, not the thread.
    fn perform(&self, fired: Fired<Job>, run: u64, name: &'static str, since: Option<Instant>) {
        let Fired {
            deadline, value, ..
        } = fired;
        // Not before it was taken out, and until it starts: a full executor makes it late.
        let lateness = since.map_or(Duration::ZERO, |since| since.saturating_since(deadline));
        // A subscriber is foreign, too: one that panics is not to keep the task from running.
        returns(|| {
            tracing::trace!(
                timer = self.name,
                task = name,
                deadline_ns = deadline.as_nanos(),
                lateness_ns = nanos(lateness),
                "task fires"
            );
        });
        let panicked = !returns(|| value.run());
        let ended = self.now_if_possible();
        let took = ended
            .zip(since)
            .map(|(ended, since)| ended.saturating_since(since));
        let took = took.unwrap_or_default();
        if panicked {
            returns(|| tracing::error!(timer = self.name, task = name, "task panicked"));
        }
        let slow = took > self.slow_after;
        if slow {
            returns(|| tracing::warn!(timer = self.name, task = name, took = ?took, "slow task"));
        }
        let mut seen = lock(&self.seen);
        seen.count(lateness);
        let stats = &mut seen.stats;
        stats.panicked += u64::from(panicked);
        if slow {
            stats.slow += 1;
            if stats.slowest.is_none_or(|slowest| slowest.took < took) {
                stats.slowest = Some(SlowTask { name, took });
            }
        }
        drop(seen);
        self.ready.end(run);
    }

    /// Wakes or delivers, on the host itself. Counted first: who is woken may look.
    fn run_short(&self, fired: Fired<Job>) {
        let mut seen = lock(&self.seen);
        seen.short += 1;
        seen.count(fired.lateness);
        drop(seen);
        if !returns(|| fired.value.run()) {
            returns(|| tracing::error!(timer = self.name, "a waker or a channel panicked"));
            lock(&self.seen).stats.panicked += 1;
        }
    }

    /// What the host calls when its sleep is over.
    pub(crate) fn woke_up(&self) {
        self.shards.hub().host_is_awake();
        lock(&self.seen).stats.wake_ups += 1;
    }

    pub(crate) fn host_failed(&self) -> u64 {
        let mut seen = lock(&self.seen);
        seen.stats.host_failures += 1;
        seen.stats.host_failures
    }

    pub(crate) fn stats(&self) -> Stats {
        let progress = self.ready.progress();
        let counts = self.shards.counts();
        let seen = lock(&self.seen);
        Stats {
            added: counts.added,
            ran: progress.started + seen.short,
            cancelled: counts.cancelled,
            returned: counts.returned + progress.returned,
            pending: counts.pending,
            waiting: progress.waiting,
            running: progress.running,
            refused: counts.refused,
            moved: counts.moved,
            ..seen.stats.clone()
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let now = self.clock().now();
        let mut running: Vec<_> = self
            .ready
            .running()
            .into_iter()
            .map(|running| RunningTask {
                name: running.name,
                deadline: running.deadline,
                since: now.saturating_since(running.since),
            })
            .collect();
        running.sort_by_key(|running| std::cmp::Reverse(running.since));
        Snapshot {
            now,
            stats: self.stats(),
            next_wake: self.next_wake(),
            overdue: self.overdue(now),
            running,
            shards: self.shards.load(),
            stopped: self.shards.hub().is_closed(),
        }
    }

    /// When there is next something to do.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let plan = lock(&self.plan);
        let planned = plan.retry_at.into_iter().chain(plan.give_up_at);
        planned.chain(self.shards.next_wake()).min()
    }

    /// By how much what has waited the longest is overdue, be it pending or ready.
    pub(crate) fn overdue(&self, now: Instant) -> Duration {
        let pending = (self.shards.bound() < now).then(|| self.shards.next_wake());
        let first = pending
            .flatten()
            .into_iter()
            .chain(self.ready.first_deadline());
        first
            .min()
            .map_or(Duration::ZERO, |first| now.saturating_since(first))
    }

    pub(crate) fn health(&self, tolerance: Duration) -> Health {
        let plan = lock(&self.plan);
        if plan.deserted && !plan.left_over.is_empty() {
            return Health::Dead;
        }
        drop(plan);
        let overdue = self.overdue(self.clock().now());
        if overdue > tolerance {
            Health::Behind(overdue)
        } else {
            Health::Fine
        }
    }

    /// Refuses tasks from now on; what is pending comes at its time until `give_up_at`, and
    /// the rest is left over.
    pub(crate) fn close_and_wait(&self, give_up_at: Instant) {
        self.shards.hub().close();
        {
            let mut plan = lock(&self.plan);
            let sooner = plan.give_up_at.is_none_or(|at| give_up_at < at);
            if sooner {
                plan.give_up_at = Some(give_up_at);
            }
        }
        self.shards.hub().rouse();
    }

    /// Refuses tasks from now on, and takes out all that have not started.
    pub(crate) fn close_and_take(&self) -> Vec<Task> {
        self.shards.hub().close();
        let mut plan = lock(&self.plan);
        let mut tasks = std::mem::take(&mut plan.left_over);
        let taken = self.take_all();
        drop(plan);
        tasks.extend(self.tasks_of(taken));
        self.shards.hub().rouse();
        tasks
    }

    /// Refuses tasks from now on, and drops all that have not started, a piece at a time: for many
    /// that are pending there is no second place, and no lock is held for long. Who sleeps learns
    /// that it was in vain. `is_dropped` says that nobody holds the timer any more.
    pub(crate) fn close_and_drop(&self, is_dropped: bool) {
        self.shards.hub().close();
        let mut plan = lock(&self.plan);
        plan.dropping = true;
        let left_over = std::mem::take(&mut plan.left_over);
        drop(plan);
        for task in left_over {
            self.let_go(task.into_job());
        }
        loop {
            // Under the lock: nothing is on its way from the shards to the queue.
            let mut plan = lock(&self.plan);
            let waiting = self.ready.drain();
            let piece = self.shards.take_any(PIECE, is_dropped);
            if waiting.is_empty() && piece.is_empty() {
                plan.dropping = false;
                break;
            }
            drop(plan);
            for fired in waiting {
                self.let_go(fired.value);
            }
            for unfired in piece {
                self.let_go(unfired.value);
            }
        }
        self.ready.announce();
        self.shards.hub().rouse();
    }

    /// Drops a task, or wakes who waits for what does not come.
    fn let_go(&self, job: Job) {
        let let_go = || match job {
            Job::Wake(waker) => waker.wake(),
            Job::Task(task) => drop(task),
        };
        if !returns(let_go) {
            returns(|| tracing::error!(timer = self.name, "a task panicked as it was dropped"));
        }
    }

    /// Refuses tasks from now on, and makes all that are pending ready now. What is short is
    /// done here: an executor that is full must not hold up a waker.
    pub(crate) fn close_and_run(&self) {
        self.shards.hub().close();
        let plan = lock(&self.plan);
        let unfired = self.shards.drain(true).into_iter().map(|one| Fired {
            key: one.key,
            deadline: one.deadline,
            lateness: Duration::ZERO,
            value: one.value,
        });
        let (short, long): (Vec<_>, Vec<_>) = unfired.partition(|one| one.value.is_short());
        self.ready.put(long);
        drop(plan);
        for fired in short {
            self.run_short(fired);
        }
        self.shards.hub().rouse();
    }

    /// Before a thread waits for the end: runs what is ready, if nobody else would, because
    /// there is no host or because it is this very thread that ought to.
    pub(crate) fn help(self: &Arc<Self>) {
        while self.ready.needs_help() {
            self.context.within(|| self.run_next());
        }
    }

    /// Whether tasks find a runtime where they run.
    pub(crate) fn has_runtime(&self) -> bool {
        match &self.executor {
            Some(executor) => executor.has_runtime(),
            None => self.context.has_runtime(),
        }
    }

    /// Whether nothing is pending any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.counts().pending == 0
    }

    /// What was left over by a wait that was given up.
    pub(crate) fn take_left_over(&self) -> Vec<Task> {
        std::mem::take(&mut lock(&self.plan).left_over)
    }

    /// Gives up waiting for deadlines, if it is time to.
    fn gives_up(&self, now: Instant) -> bool {
        let mut plan = lock(&self.plan);
        if plan.give_up_at.is_none_or(|at| at > now) {
            return false;
        }
        plan.give_up_at = None;
        let taken = self.take_all();
        drop(plan);
        self.leave_over(taken);
        true
    }

    /// Nobody hosts the timer any more: closes it, and keeps what is left for the next who
    /// stops it. Who sleeps learns that it was in vain.
    pub(crate) fn abandon(&self) {
        self.shards.hub().close();
        let mut plan = lock(&self.plan);
        plan.deserted = true;
        plan.give_up_at = None;
        let taken = self.take_all();
        drop(plan);
        self.leave_over(taken);
    }

    fn leave_over(&self, taken: Vec<(Instant, Job)>) {
        let left = self.tasks_of(taken);
        lock(&self.plan).left_over.extend(left);
    }

    /// Takes all that have not started. Called under the lock of the plan, so that none is on
    /// its way from the shards to the queue.
    fn take_all(&self) -> Vec<(Instant, Job)> {
        let ready = self.ready.drain().into_iter();
        let waiting = ready.map(|fired| (fired.deadline, fired.value));
        let unfired = self.shards.drain(false).into_iter();
        let pending = unfired.map(
            |Unfired {
                 deadline, value, ..
             }| (deadline, value),
        );
        waiting.chain(pending).collect()
    }

    /// The tasks among what was taken. Wakers are woken: who waits learns that it was in vain.
    fn tasks_of(&self, taken: Vec<(Instant, Job)>) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (deadline, job) in taken {
            match job {
                Job::Wake(waker) => {
                    returns(|| waker.wake());
                }
                Job::Task(_) => tasks.push(Task::new(deadline, job)),
            }
        }
        self.ready.announce();
        tasks
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.shards.hub().clock
    }
}

impl Seen {
    fn count(&mut self, lateness: Duration) {
        self.stats.lateness.record(lateness);
        self.stats.lateness_max = self.stats.lateness_max.max(lateness);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.name)
            .field("clock", &self.clock())
            .finish_non_exhaustive()
    }
}

/// That an engine has a host: a stop waits until this is dropped.
pub(crate) struct Hosting<'a>(&'a Engine);

impl Engine {
    /// From now on there is a host.
    pub(crate) fn host(&self, host: Host) {
        self.ready.set_host(host);
    }

    /// There is one until the end of this.
    pub(crate) fn hosting(&self) -> Hosting<'_> {
        Hosting(self)
    }
}

impl Drop for Hosting<'_> {
    fn drop(&mut self) {
        self.0.ready.set_host(Host::None);
    }
}
