//! What a timer has done, and what it is doing.

use std::fmt;
use std::time::Duration;

use crate::Instant;

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

/// How many durations fell into which range: each range is at most a quarter wider than the
/// one before, from a nanosecond to 584 years.
///
/// ```
/// use countwheel::Histogram;
/// use std::time::Duration;
///
/// let mut histogram = Histogram::default();
/// for micros in 1..=1_000 {
///     histogram.record(Duration::from_micros(micros));
/// }
/// let median = histogram.quantile(0.5).unwrap();
/// assert!(median >= Duration::from_micros(500) && median < Duration::from_micros(625));
/// assert_eq!(histogram.count(), 1_000);
/// assert_eq!(histogram.iter().map(|(_, count)| count).sum::<u64>(), 1_000);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; Self::RANGES]>,
}

impl Histogram {
    /// Of each power of two: four. The first four values have a range each.
    const RANGES: usize = 4 * 63;

    /// Counts one. O(1).
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[Self::range_of(nanos)] += 1;
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A duration that `share` of all (0 to 1) do not exceed: the end of the range in which
    /// that falls, so at most a quarter too much. `None` if there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        // As many as a float can count exactly; beyond, the rounding is of no consequence.
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the count"
        )]
        let rank = ((count as f64 * share.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut sum = 0;
        self.iter().find_map(|(end, count)| {
            sum += count;
            (sum >= rank).then_some(end)
        })
    }

    /// The ranges that are not empty: the longest duration of each, and how many fell in it.
    pub fn iter(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let ranges = self.counts.iter().enumerate();
        let used = ranges.filter(|&(_, &count)| count > 0);
        used.map(|(range, &count)| (Self::end_of(range), count))
    }

    fn range_of(nanos: u64) -> usize {
        if nanos < 4 {
            return usize::try_from(nanos).unwrap_or(0);
        }
        let power = nanos.ilog2();
        let quarter = (nanos >> (power - 2)) & 3;
        (power as usize - 1) * 4 + usize::try_from(quarter).unwrap_or(0)
    }

    fn end_of(range: usize) -> Duration {
        if range < 4 {
            return Duration::from_nanos(range as u64);
        }
        let power = range / 4 + 1;
        let start = (4 + (range as u64 % 4)) << (power - 2);
        let width = 1_u64 << (power - 2);
        Duration::from_nanos(start + (width - 1))
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Box::new([0; Self::RANGES]),
        }
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_its_range_and_no_range_is_wider_than_a_quarter() {
        let mut last = None;
        for range in 0..Histogram::RANGES {
            let end = u64::try_from(Histogram::end_of(range).as_nanos()).unwrap();
            assert_eq!(Histogram::range_of(end), range);
            let start = last.map_or(0, |last: u64| last + 1);
            assert_eq!(Histogram::range_of(start), range);
            assert!(end - start <= start / 4);
            last = Some(end);
        }
        assert_eq!(last, Some(u64::MAX));
    }
}
