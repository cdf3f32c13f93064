//! The counters of a scheduler.

use std::time::Duration;

use countwheel_time::Timestamp;

use crate::store::{QueueCounts, Totals};

/// Counts since the scheduler was opened, and what it holds now. A copy, taken at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Timers set, replaced ones included.
    pub set: u64,
    /// Timers moved.
    pub moved: u64,
    /// Timers removed.
    pub removed: u64,
    /// Timers made due by request.
    pub fired_by_request: u64,
    /// Dead timers made pending again.
    pub revived: u64,
    /// Requests refused for what they asked.
    pub refused: u64,
    /// Attempts started.
    pub attempts: u64,
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that failed, with or without a retry to follow.
    pub failed: u64,
    /// Attempts whose receiver ended the timer.
    pub stopped: u64,
    /// Attempts that were claimed and [not made](crate::Verdict::Held).
    pub not_made: u64,
    /// Timers given up.
    pub dead: u64,
    /// Runs of recurring timers given up.
    pub runs_dead: u64,
    /// Runs of recurring timers not made, and timers given up, because they were more overdue
    /// than they may be or another was made in their place.
    pub missed: u64,
    /// Runs of recurring timers not made because the one before was not at its end.
    pub overlapped: u64,
    /// Attempts found interrupted by the end of the process before.
    pub interrupted: u64,
    /// Outcomes of timers that had been removed or replaced meanwhile.
    pub outdated: u64,
    /// Attempts that were leased.
    pub leases: u64,
    /// Leases that were extended.
    pub leases_extended: u64,
    /// Leases that ended without an outcome.
    pub leases_lost: u64,
    /// Leases that were given back before anybody began.
    pub leases_released: u64,
    /// Times a record could not be read, for a request, for an outcome or when it was due: each
    /// time, nothing but that was left out.
    pub unreadable: u64,
    /// Done timers forgotten at the end of their retention.
    pub forgotten: u64,
    /// Commits made.
    pub commits: u64,
    /// Records and removals in them.
    pub changes: u64,
    /// Times the window was filled from the store.
    pub refills: u64,
    /// Entries of the store's order of wakes that were looked at for that and for
    /// [`overdue`](Self::overdue), at most
    /// [`Config::max_scanned`](crate::Config::max_scanned) a turn.
    pub scanned: u64,
    /// Times the window gave up what was latest because it was full, or was read anew because
    /// the wall clock was set back.
    pub rebuilds: u64,
    /// Timers in the window now.
    pub in_window: usize,
    /// Bytes of memory used for what is known of timers, at most
    /// [`Config::window_bytes`](crate::Config::window_bytes): names and their places in the
    /// window, among the overdue and among the attempts that run.
    pub window_bytes: usize,
    /// Queues that have used up their share of the window: what comes next of them is read
    /// when what is held of them runs low.
    pub capped_queues: usize,
    /// Of what was overdue when the scheduler was opened, the deadline of what was started
    /// last: how far it has come. `None` before the first.
    pub caught_up_to: Option<Timestamp>,
    /// Whether anything is left of that.
    pub catching_up: bool,
    /// Times the wall clock was found set forward, by more than a quarter of a second.
    pub steps_forward: u64,
    /// Times the wall clock was found set back.
    pub steps_backward: u64,
    /// By how much the last time, in microseconds; negative is back.
    pub last_step_micros: i64,
    /// The wall time of the last commit of an earlier process, if the wall clock stood before it when
    /// the scheduler was opened. See [`behind_commits`](Self::behind_commits).
    pub committed_before: Option<Timestamp>,
    /// By how much the wall clock is ahead of the time line of delays, in microseconds; negative is
    /// behind.
    pub line_skew_micros: i64,
    /// Attempts that run now, without those that are leased.
    pub in_flight: usize,
    /// Attempts that are leased now, of the leases that were granted since the opening.
    pub leased: usize,
    /// Timers that run or wait as suspects: the process ended at least twice in a row during an
    /// attempt of each.
    pub suspects: usize,
    /// Timers that are due and wait for room in a [flow](crate::Flows), as far as they are held in memory.
    pub parked: usize,
    /// How many timers are overdue now.
    pub overdue: OverdueCount,
    /// How late receivers had the attempts that have ended.
    pub lateness: Lateness,
    /// For how long limits held the attempts that were held at all.
    pub held: Lateness,
}

/// How many timers pend although their time has come: a count that each commit corrects, not a look
/// through the store.
///
/// ```
/// # use std::sync::Arc;
/// # use countwheel_time::ManualClock;
/// # use countwheel_durable::store::{MemoryStore, Shard};
/// # use countwheel_durable::{Config, Engine, OverdueCount};
/// # let (store, clock) = (Arc::new(MemoryStore::new(1)), Arc::new(ManualClock::new()));
/// let mut engine = Engine::open(store, Shard::ONLY, clock, Config::default())?;
/// engine.turn(vec![], &mut |_| {})?;
/// let OverdueCount { count, is_exact, oldest, .. } = engine.stats().overdue;
/// assert!(count == 0 && is_exact && oldest.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OverdueCount {
    /// Those that pend and were due at [`as_of`](Self::as_of). At least so many, unless it
    /// [is exact](Self::is_exact).
    pub count: u64,
    /// The time of which the count is, by the wall clock: not more than a second or so ago while
    /// something is overdue. While nothing is, it is the time of the last turn, and nothing has come
    /// due since.
    pub as_of: Timestamp,
    /// Whether everything that came due up to then is counted. After an opening, and after many came
    /// due together, the count needs a while to catch up.
    pub is_exact: bool,
    /// When the one that was due first was, by the wall clock; `None` if none is known.
    pub oldest: Option<Timestamp>,
}

impl Stats {
    /// What stays of a scheduler that has ended: what it has counted, and nothing that it holds.
    pub(crate) fn ended(self) -> Self {
        Self {
            in_window: 0,
            window_bytes: 0,
            capped_queues: 0,
            caught_up_to: None,
            catching_up: false,
            last_step_micros: 0,
            committed_before: None,
            line_skew_micros: 0,
            in_flight: 0,
            leased: 0,
            suspects: 0,
            parked: 0,
            overdue: OverdueCount {
                as_of: Timestamp::MAX,
                is_exact: true,
                ..OverdueCount::default()
            },
            ..self
        }
    }

    /// The sum of the counts of two schedulers. What is not a count is that of the one that is further
    /// behind or off.
    pub(crate) fn with(self, other: &Self) -> Self {
        let earlier = |one: Option<Timestamp>, other: Option<Timestamp>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            set: self.set + other.set,
            moved: self.moved + other.moved,
            removed: self.removed + other.removed,
            fired_by_request: self.fired_by_request + other.fired_by_request,
            revived: self.revived + other.revived,
            refused: self.refused + other.refused,
            attempts: self.attempts + other.attempts,
            done: self.done + other.done,
            failed: self.failed + other.failed,
            stopped: self.stopped + other.stopped,
            not_made: self.not_made + other.not_made,
            dead: self.dead + other.dead,
            runs_dead: self.runs_dead + other.runs_dead,
            missed: self.missed + other.missed,
            overlapped: self.overlapped + other.overlapped,
            interrupted: self.interrupted + other.interrupted,
            outdated: self.outdated + other.outdated,
            leases: self.leases + other.leases,
            leases_extended: self.leases_extended + other.leases_extended,
            leases_lost: self.leases_lost + other.leases_lost,
            leases_released: self.leases_released + other.leases_released,
            unreadable: self.unreadable + other.unreadable,
            forgotten: self.forgotten + other.forgotten,
            commits: self.commits + other.commits,
            changes: self.changes + other.changes,
            refills: self.refills + other.refills,
            scanned: self.scanned + other.scanned,
            rebuilds: self.rebuilds + other.rebuilds,
            in_window: self.in_window + other.in_window,
            window_bytes: self.window_bytes + other.window_bytes,
            capped_queues: self.capped_queues + other.capped_queues,
            caught_up_to: earlier(self.caught_up_to, other.caught_up_to),
            catching_up: self.catching_up || other.catching_up,
            steps_forward: self.steps_forward.max(other.steps_forward),
            steps_backward: self.steps_backward.max(other.steps_backward),
            last_step_micros: if self.last_step_micros == 0 {
                other.last_step_micros
            } else {
                self.last_step_micros
            },
            committed_before: self.committed_before.max(other.committed_before),
            line_skew_micros: [self.line_skew_micros, other.line_skew_micros]
                .into_iter()
                .max_by_key(|skew| skew.unsigned_abs())
                .unwrap_or(0),
            in_flight: self.in_flight + other.in_flight,
            leased: self.leased + other.leased,
            suspects: self.suspects + other.suspects,
            parked: self.parked + other.parked,
            overdue: OverdueCount {
                count: self.overdue.count + other.overdue.count,
                as_of: self.overdue.as_of.min(other.overdue.as_of),
                is_exact: self.overdue.is_exact && other.overdue.is_exact,
                oldest: earlier(self.overdue.oldest, other.overdue.oldest),
            },
            lateness: self.lateness.with(&other.lateness),
            held: self.held.with(&other.held),
        }
    }

    /// By how much a wall clock that shows `wall` is behind what an earlier process committed: it
    /// is wrong then, or was wrong before. Zero if it was not behind when the scheduler was opened,
    /// or is not any more.
    ///
    /// ```
    /// use countwheel_time::Timestamp;
    /// use countwheel_durable::Stats;
    /// use std::time::Duration;
    ///
    /// let at = |seconds| Timestamp::EPOCH + Duration::from_secs(seconds);
    /// let mut stats = Stats::default();
    /// assert_eq!(stats.behind_commits(at(5)), Duration::ZERO);
    /// stats.committed_before = Some(at(60));
    /// assert_eq!(stats.behind_commits(at(5)), Duration::from_secs(55));
    /// assert_eq!(stats.behind_commits(at(61)), Duration::ZERO); // the clock was set right
    /// ```
    #[must_use]
    pub fn behind_commits(&self, wall: Timestamp) -> Duration {
        let before = self.committed_before.unwrap_or_default();
        before.saturating_since(wall)
    }
}

/// What there is and what is overdue. See [`Timers::overview`](crate::Timers::overview).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overview {
    /// How many timers there are in each state, in how many queues.
    pub totals: Totals,
    /// How many are overdue. The queues' figures may be newer by a turn.
    pub overdue: OverdueCount,
    /// Some of the queues.
    pub queues: Vec<QueueOverview>,
}

/// One queue of an [`Overview`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueOverview {
    /// How many timers it has in each state.
    pub counts: QueueCounts,
    /// How many of those that pend are overdue.
    pub overdue: u64,
}

/// How many timers pend, by when they are due: counts that commits keep, not a look through the store. See
/// [`Timers::due_counts`](crate::Timers::due_counts).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DueCounts {
    /// In order of time. None overlaps another, and none is empty but that of [`with_past`](Self::with_past): between
    /// them, nothing is due.
    pub buckets: Vec<DueBucket>,
    /// Whether all timers are counted. After an opening, a step of the wall clock and a repair, the count needs a
    /// while to catch up; until then each count is a lower bound.
    pub exact: bool,
    /// By how many microseconds the buckets of delays are before (negative: behind) where the wall clock shows them
    /// now, at the least and at the most over all shards. They stand where the wall clock showed them when the count
    /// began, less than a second away; what is due at an instant of the wall clock is always where it is.
    pub drift_micros: (i64, i64),
}

/// How many timers are due within a span of time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DueBucket {
    /// Its beginning. [`Timestamp::EPOCH`]: all that is before its end.
    pub from: Timestamp,
    /// Its end, which belongs to the next. [`Timestamp::MAX`]: all that is from its beginning on.
    pub until: Timestamp,
    /// How many pend that are due in it.
    pub count: u64,
}

impl DueBucket {
    /// The same counts where none overlaps another: those that do are one.
    pub(crate) fn merged(mut buckets: Vec<Self>) -> Vec<Self> {
        buckets.sort_unstable_by_key(|bucket| bucket.from);
        let mut merged = Vec::<Self>::with_capacity(buckets.len());
        for bucket in buckets {
            match merged.last_mut() {
                Some(last) if bucket.from < last.until => {
                    last.until = last.until.max(bucket.until);
                    last.count += bucket.count;
                }
                _ => merged.push(bucket),
            }
        }
        merged
    }
}

impl DueCounts {
    /// The sum of the counts of two shards or of two nodes. A span that is one bucket of either is one bucket of the
    /// sum.
    ///
    /// ```
    /// use countwheel_durable::{DueBucket, DueCounts};
    /// use countwheel_time::Timestamp;
    ///
    /// let bucket = |from, until, count| DueBucket {
    ///     from: Timestamp::from_micros(from),
    ///     until: Timestamp::from_micros(until),
    ///     count,
    /// };
    /// let of = |buckets| DueCounts { buckets, exact: true, drift_micros: (0, 0) };
    /// let sum = of(vec![bucket(60, 120, 1)]).with(of(vec![bucket(60, 61, 2), bucket(120, 121, 3)]));
    /// assert_eq!(sum.buckets, [bucket(60, 120, 3), bucket(120, 121, 3)]);
    /// assert_eq!(sum.total(), 6);
    /// ```
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self::sum_of([self, other]).unwrap_or_default()
    }

    /// The same of any number; `None` of none.
    #[must_use]
    pub fn sum_of(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut all = all.into_iter();
        let mut sum = all.next()?;
        for counts in all {
            sum.buckets.extend(counts.buckets);
            sum.exact &= counts.exact;
            let ((least, most), (lower, higher)) = (sum.drift_micros, counts.drift_micros);
            sum.drift_micros = (least.min(lower), most.max(higher));
        }
        sum.buckets = DueBucket::merged(sum.buckets);
        Some(sum)
    }

    /// How many timers pend.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// The same, with everything before `until` as one bucket, the first, also if nothing is due in it. What is due
    /// in a count that goes on beyond `until` belongs to it.
    ///
    /// ```
    /// use countwheel_durable::{DueBucket, DueCounts};
    /// use countwheel_time::Timestamp;
    ///
    /// let at = Timestamp::from_micros;
    /// let counts = DueCounts::default().with_past(at(60));
    /// let past = DueBucket { from: Timestamp::EPOCH, until: at(60), count: 0 };
    /// assert_eq!(counts.buckets, [past]);
    /// ```
    #[must_use]
    pub fn with_past(mut self, until: Timestamp) -> Self {
        self.buckets.push(DueBucket {
            from: Timestamp::EPOCH,
            until,
            count: 0,
        });
        self.buckets = DueBucket::merged(self.buckets);
        self
    }

    /// Longer buckets: each is as long as `step` and begins where a multiple of it ends that is counted from
    /// [`Timestamp::EPOCH`], or is made of several of these if one of the counts here is longer. None begins before
    /// `from` or ends after `until`, unless a count here goes on beyond; what is not between the two is left out.
    ///
    /// ```
    /// use countwheel_durable::{DueBucket, DueCounts};
    /// use countwheel_time::Timestamp;
    /// use std::time::Duration;
    ///
    /// let at = |seconds: u64| Timestamp::EPOCH + Duration::from_secs(seconds);
    /// let bucket = |from, until, count| DueBucket { from: at(from), until: at(until), count };
    /// let buckets = vec![bucket(61, 62, 1), bucket(63, 64, 2), bucket(180, 240, 5)];
    /// let counts = DueCounts { buckets, exact: true, drift_micros: (0, 0) };
    /// let minutes = counts.in_steps(at(62), at(210), Duration::from_secs(60));
    /// assert_eq!(minutes, [bucket(62, 120, 2), bucket(180, 240, 5)]);
    /// ```
    #[must_use]
    pub fn in_steps(&self, from: Timestamp, until: Timestamp, step: Duration) -> Vec<DueBucket> {
        let step = u64::try_from(step.as_micros()).unwrap_or(u64::MAX).max(1);
        let buckets = self.buckets.iter();
        let buckets = buckets.filter(|it| it.until > from && it.from < until);
        let widened = buckets.map(|bucket| {
            let (start, end) = (bucket.from.as_micros(), bucket.until.as_micros());
            let start = Timestamp::from_micros(start - start % step).max(from);
            let end =
                Timestamp::from_micros(end.checked_next_multiple_of(step).unwrap_or(u64::MAX));
            DueBucket {
                from: start.min(bucket.from),
                until: end.min(until).max(bucket.until),
                count: bucket.count,
            }
        });
        DueBucket::merged(widened.collect())
    }
}

/// A histogram of spans, such as how late attempts were.
///
/// ```
/// use countwheel_durable::Lateness;
/// use std::time::Duration;
///
/// let mut lateness = Lateness::default();
/// lateness.record(Duration::from_micros(300));
/// lateness.record(Duration::from_secs(2));
/// assert_eq!(lateness.count(), 2);
/// assert_eq!(lateness.quantile(0.5), Duration::from_micros(500)); // at most
/// assert_eq!(lateness.max(), Duration::from_secs(2));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lateness {
    counts: [u64; Self::BOUNDS_MICROS.len() + 1],
    sum_micros: u64,
    max_micros: u64,
}

impl Lateness {
    /// The upper bounds of the buckets, in microseconds; the last bucket has none.
    pub const BOUNDS_MICROS: [u64; 19] = [
        100,
        200,
        500,
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        2_000_000,
        5_000_000,
        10_000_000,
        60_000_000,
        600_000_000,
        3_600_000_000,
    ];

    /// Adds one.
    pub fn record(&mut self, lateness: Duration) {
        let micros = u64::try_from(lateness.as_micros()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS_MICROS.partition_point(|&bound| bound < micros);
        self.counts[bucket] += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
        self.max_micros = self.max_micros.max(micros);
    }

    /// Both together.
    fn with(mut self, other: &Self) -> Self {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        self.sum_micros = self.sum_micros.saturating_add(other.sum_micros);
        self.max_micros = self.max_micros.max(other.max_micros);
        self
    }

    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_micros)
    }

    /// The largest.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.max_micros)
    }

    /// How many in each bucket, the one without a bound last.
    #[must_use]
    pub fn buckets(&self) -> &[u64] {
        &self.counts
    }

    /// The upper bound of the bucket in which the `quantile` (0 to 1) lies, at most the
    /// maximum; zero if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let count = self.count();
        let mut below = 0;
        for (bucket, in_bucket) in self.counts.iter().enumerate() {
            below += in_bucket;
            #[expect(clippy::cast_precision_loss, reason = "a share needs no more")]
            if *in_bucket > 0 && below as f64 >= quantile * count as f64 {
                let bound = Self::BOUNDS_MICROS.get(bucket).copied();
                return Duration::from_micros(bound.unwrap_or(u64::MAX).min(self.max_micros));
            }
        }
        Duration::ZERO
    }
}
