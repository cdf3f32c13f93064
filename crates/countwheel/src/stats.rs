//! The counters of a timer, and a view of its present work.

use std::time::Duration;

use crate::{Histogram, Instant};

/// What a [`Timer`](crate::Timer) has done so far.
///
/// `added` equals `ran + cancelled + returned + pending + waiting`, exactly, whenever no call
/// and no turn of the host is under way; each of the numbers is exact at the moment it was read.
///
/// ```
/// use countwheel::ManualHost;
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let timer = host.timer().clone();
/// for seconds in 1..=10 {
///     timer.schedule(Duration::from_secs(seconds), || {})?;
/// }
/// timer.schedule(Duration::ZERO, || {})?.cancel();
/// host.advance(Duration::from_secs(7));
/// assert_eq!(timer.stats().pending, 3);
/// timer.stop();
///
/// let stats = timer.stats();
/// assert_eq!((stats.added, stats.ran, stats.cancelled, stats.returned), (11, 7, 1, 3));
/// # Ok::<(), countwheel::ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Tasks (and wakers) that were accepted.
    pub added: u64,
    /// Tasks that were started, those that run now included.
    pub ran: u64,
    /// Tasks that were cancelled before they expired.
    pub cancelled: u64,
    /// Tasks that were given back, or dropped, before they ran: by a stop, or because no
    /// executor took them. Wakers that a stop woke before their time are among them (with
    /// [`Stop::RunNow`](crate::Stop::RunNow) they have run).
    pub returned: u64,
    /// Tasks that wait for their deadline.
    pub pending: u64,
    /// Tasks whose deadline has come and that wait for an executor.
    pub waiting: u64,
    /// Tasks that run now.
    pub running: u64,
    /// Tasks that were not accepted, since the timer was full or stopped. They are in no other
    /// number.
    pub refused: u64,
    /// How often a pending task was moved to another deadline.
    pub moved: u64,
    /// Of those that ran, how many panicked.
    pub panicked: u64,
    /// Of those that ran, how many took longer than the budget.
    pub slow: u64,
    /// How often an executor had no room for a task.
    pub overloaded: u64,
    /// How often the timer's host woke from a sleep, whether anything was due or not.
    pub wake_ups: u64,
    /// How often something panicked that the host called: an executor, which lost the task it was
    /// given; or a clock or the runtime's sleep, and the host began its turn again.
    pub host_failures: u64,
    /// The moment each task was taken to run minus its deadline.
    pub lateness: Histogram,
    /// The longest lateness.
    pub lateness_max: Duration,
    /// The task that took the longest, of those over the budget.
    pub slowest: Option<SlowTask>,
}

/// A task that took longer than its budget. See
/// [`TimerBuilder::slow_task_budget`](crate::TimerBuilder::slow_task_budget).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SlowTask {
    /// The type of the task, which for a closure is the function it was written in.
    pub name: &'static str,
    /// How long it ran.
    pub took: Duration,
}

/// A task that runs now. See [`Timer::snapshot`](crate::Timer::snapshot).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RunningTask {
    /// The type of the task, which for a closure is the function it was written in.
    pub name: &'static str,
    /// When it was due.
    pub deadline: Instant,
    /// How long it has run.
    pub since: Duration,
}

/// What a timer looks like at one moment. See [`Timer::snapshot`](crate::Timer::snapshot).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// When.
    pub now: Instant,
    /// The counters.
    pub stats: Stats,
    /// When the host looks next; `None` if nothing is pending.
    pub next_wake: Option<Instant>,
    /// By how much the task that has waited the longest is overdue, pending or waiting for an
    /// executor: the host or the executor is behind, or dead.
    pub overdue: Duration,
    /// The tasks that run, the one that has run the longest first.
    pub running: Vec<RunningTask>,
    /// How full the wheels are, one for each shard that has been used. Divide
    /// [`ShardLoad::pending`] by [`ShardLoad::occupied_slots`] for the load of a slot.
    pub shards: Vec<ShardLoad>,
    /// Whether the timer refuses tasks.
    pub stopped: bool,
}

/// How full one wheel of a timer is. See [`Snapshot::shards`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ShardLoad {
    /// How many tasks are pending on it.
    pub pending: u64,
    /// How many of its slots have tasks. (Tasks that come next are in none.)
    pub occupied_slots: usize,
    /// How many tasks its fullest slot has.
    pub fullest_slot: usize,
    /// How much memory the wheel takes, what the tasks own not included.
    pub memory_bytes: usize,
}
