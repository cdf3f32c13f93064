//! Jobs: timers of a queue are removed, moved, fired or revived in bounded steps, by state, prefix, tags and due time.
//!
//! A job is a setting of the store, and how far it is in a shard is another, which changes in the commit that changes the
//! timers. So a job goes on after a restart, on whichever process owns the shard, and acts on no timer twice. A
//! [purge](crate::Purge) is a job with a place of its own.

mod stored;
mod work;

use std::num::NonZeroU32;
use std::sync::mpsc;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) use self::stored::{Place, Stored, forget};
pub use self::work::{JobHost, JobSteps};
pub(crate) use self::work::{is_overtaken, look_at_settings, noted, store_asked};
use crate::store::{Filter, Page, Shard, StoreError};
use crate::{
    BatchError, Note, QueueName, Record, Request, Response, Revision, Settings, SettingsVersion,
    Shift, StateKind, TimerError, Timers, elsewhere,
};

/// How often a process looks whether the owners of other shards have seen a job, and the pause between two looks.
const LOOKS: usize = 100;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Says whether a timer has all of these tags. What a tag is, the payload says, which is opaque here.
pub type HasTags<'a> = &'a dyn Fn(&Record, &[String]) -> bool;

/// What a job does to each of its timers. The order of the variants is that of the stored form.
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::{JobAction, Shift, StateKind};
///
/// let later = JobAction::Move(Shift::Later(Duration::from_secs(3_600)));
/// assert_eq!(later.states(), [StateKind::Pending]);
/// assert_eq!(JobAction::Revive.states(), [StateKind::Dead]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobAction {
    /// Removes it.
    Remove,
    /// Moves it, if it is pending.
    Move(Shift),
    /// Makes it due now, if it is pending.
    Fire,
    /// Makes it pending again and due now, if it is dead.
    Revive,
}

impl JobAction {
    /// The states of the timers on which it can act.
    #[must_use]
    pub fn states(self) -> &'static [StateKind] {
        match self {
            Self::Remove => &[StateKind::Pending, StateKind::Done, StateKind::Dead],
            Self::Move(_) | Self::Fire => &[StateKind::Pending],
            Self::Revive => &[StateKind::Dead],
        }
    }
}

/// Which timers of a queue a job is for: those that all of its fields want.
///
/// ```
/// use countwheel_durable::JobFilter;
///
/// let filter = JobFilter { tags: vec!["eu".to_owned()], ..JobFilter::default() };
/// assert!(filter.states.is_empty()); // none
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobFilter {
    /// In which states. A timer that is being delivered is left alone.
    pub states: Vec<StateKind>,
    /// Only those whose key begins so.
    pub prefix: Option<String>,
    /// Only those that have all of these tags.
    pub tags: Vec<String>,
    /// Only those due at this time or later.
    pub due_from: Option<Timestamp>,
    /// Only those due before this time.
    pub due_before: Option<Timestamp>,
}

/// What is asked of a job.
///
/// ```
/// use std::num::NonZeroU32;
/// use countwheel_durable::{JobAction, JobOrder, QueueName};
///
/// let order = JobOrder {
///     rate: NonZeroU32::new(500),
///     ..JobOrder::new(QueueName::new("orders")?, JobAction::Fire)
/// };
/// assert_eq!(order.filter.states, JobAction::Fire.states());
/// # Ok::<(), countwheel_durable::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobOrder {
    /// The queue.
    pub queue: QueueName,
    /// What it does.
    pub action: JobAction,
    /// To which timers.
    pub filter: JobFilter,
    /// On how many timers it acts each second, in all shards together. Without a rate, the pauses of who calls
    /// [`Timers::job_step`] are the only limit.
    pub rate: Option<NonZeroU32>,
    /// Whether it only counts the timers.
    pub dry_run: bool,
}

impl JobOrder {
    /// The action, on all timers of the queue that are in one of its states.
    #[must_use]
    pub fn new(queue: QueueName, action: JobAction) -> Self {
        Self {
            queue,
            action,
            filter: JobFilter {
                states: action.states().to_vec(),
                ..JobFilter::default()
            },
            rate: None,
            dry_run: false,
        }
    }
}

/// How many timers a job has come to.
///
/// ```
/// use countwheel_durable::JobCounts;
///
/// let counts = JobCounts { matched: 7, done: 6, skipped: 1 };
/// assert_eq!(counts.matched, counts.done + counts.skipped); // of a job that is no dry run
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobCounts {
    /// How many its filter wanted.
    pub matched: u64,
    /// On how many it has acted. None of a dry run.
    pub done: u64,
    /// How many had changed between the read and the commit, and were left alone.
    pub skipped: u64,
}

/// A job as it stands.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use countwheel_durable::store::MemoryStore;
/// # use countwheel_durable::{Config, SystemClock, Timers, inline};
/// use countwheel_durable::{Job, JobAction, JobOrder, QueueName, Shift};
///
/// # let clock = Arc::new(SystemClock::new());
/// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
/// let hour = Duration::from_secs(3_600);
/// let due = timers.set(("orders", "order-42"), hour, ())?.due;
/// let later = JobAction::Move(Shift::Later(hour));
/// let asked: Job = timers.begin_job(&JobOrder::new(QueueName::new("orders")?, later))?;
/// assert_eq!((asked.counts.done, asked.shards_left, asked.ended), (0, 1, None));
///
/// while timers.job_step(100, &|_, _| true)?.goes_on {}
/// let through = &timers.jobs()[0];
/// assert_eq!((through.id, through.counts.done, through.shards_left), (asked.id, 1, 0));
/// assert_eq!(timers.get(("orders", "order-42"))?.map(|timer| timer.due), Some(due + hour));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The version of the setting that asked for it: no other job of the store has it.
    pub id: SettingsVersion,
    /// What is asked of it.
    pub order: JobOrder,
    /// When it was asked for.
    pub since: Timestamp,
    /// How many timers it has come to.
    pub counts: JobCounts,
    /// In how many shards there may be more.
    pub shards_left: u16,
    /// Whether it was cancelled. It has not [`ended`](Self::ended) before each shard has seen so.
    pub cancelled: bool,
    /// When it ended, if it has. It is shown for an hour then.
    pub ended: Option<Timestamp>,
}

impl Job {
    /// How many jobs run at a time. A further one takes the place of one that has ended.
    pub const PLACES: u8 = 16;

    /// How many of the places the jobs of one namespace have, but for `default`: one tenant leaves places to others. A job
    /// that has ended gives its place to the next of its namespace first.
    pub const PLACES_OF_NAMESPACE: u8 = 4;

    /// How long a job is shown that has ended, unless another takes its place.
    pub const SHOWN_FOR: Duration = Duration::from_secs(3_600);
}

/// Why there is no job.
///
/// ```
/// use countwheel_durable::{JobError, TimerError};
///
/// assert_eq!(JobError::TooMany.to_string(), "16 jobs run already");
/// assert_eq!(JobError::from(TimerError::Closed).to_string(), "the scheduler has stopped");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// As many jobs run as may.
    #[error("{} jobs run already", Job::PLACES)]
    TooMany,
    /// As many jobs of the namespace run as may.
    #[error("{} jobs of the namespace run already", Job::PLACES_OF_NAMESPACE)]
    TooManyOfNamespace,
    /// It could not be stored.
    #[error(transparent)]
    Timer(#[from] TimerError),
}

/// What a step of the jobs has done. See [`Timers::job_step`].
///
/// ```
/// use countwheel_durable::JobStep;
///
/// assert!(!JobStep::default().goes_on);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobStep {
    /// On how many timers it has acted, or of a dry run how many it has counted.
    pub acted: usize,
    /// Whether this process may have another step to do at once.
    pub goes_on: bool,
    /// If not: when a rate allows another.
    pub wait: Option<Duration>,
}

/// Jobs. A program that opens timers calls [`job_step`](Timers::job_step) again and again; the service does so by
/// itself.
impl Timers {
    /// Asks for an action on timers of a queue, in steps: those in the states, with the prefix and the tags and in the
    /// range of due times that the filter names. A timer that is set once this has returned is not touched. A job that
    /// moves, fires or revives leaves those alone that have changed since, by a request or by an attempt: so it acts on no
    /// timer twice. The job is durable when this returns, and the processes that own the shards carry it out, each by
    /// [`job_step`](Self::job_step). Blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{Job, JobAction, JobError, JobOrder, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let fire = JobOrder::new(QueueName::new("orders")?, JobAction::Fire);
    /// for _ in 0..Job::PLACES {
    ///     timers.begin_job(&fire)?;
    /// }
    /// assert!(matches!(timers.begin_job(&fire), Err(JobError::TooMany)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`JobError::TooMany`] while [`Job::PLACES`] jobs run, [`JobError::TooManyOfNamespace`] while
    /// [`Job::PLACES_OF_NAMESPACE`] of the queue's namespace do; as [`Timers::call`]. If an owner of another shard does not
    /// see the job within five seconds, it is [`TimerError::ShardUnavailable`], and the job is cancelled.
    pub fn begin_job(&self, order: &JobOrder) -> Result<Job, JobError> {
        self.begin_job_noted(order, None)
    }

    /// The same, with a note.
    pub(crate) fn begin_job_noted(
        &self,
        order: &JobOrder,
        note: Option<&Note>,
    ) -> Result<Job, JobError> {
        order.queue.must_be_of_callers()?;
        if self.is_own_thread() {
            return Err(TimerError::OwnThread.into());
        }
        let job = JobSteps::begin_noted(self, order, note)?;
        let place = |stored: &Stored| stored.place_of(job.id).cloned();
        match self.wait_for_marks(job.id, place)? {
            None => Ok(job),
            Some(shard) => {
                JobSteps::cancel_noted(self, job.id, note)?;
                Err(TimerError::ShardUnavailable { shard }.into())
            }
        }
    }

    /// Waits until the owners of other shards have noted which timers there are. A shard whose owner does not.
    pub(crate) fn wait_for_marks(
        &self,
        id: SettingsVersion,
        place: impl Fn(&Stored) -> Option<Place>,
    ) -> Result<Option<Shard>, TimerError> {
        let mut missing = None;
        let (_kept, nobody) = mpsc::channel::<()>();
        for _ in 0..LOOKS {
            let stored = Stored::of(&Self::settings(self));
            let Some(place) = place(&stored) else {
                // It is through, or was cancelled.
                return Ok(None);
            };
            missing = stored.unmarked(&place, id);
            if missing.is_none() {
                return Ok(None);
            }
            // Nobody sends: it is a pause.
            let _paused = nobody.recv_timeout(LOOK_EVERY);
            look_at_settings(self)?;
        }
        Ok(missing)
    }

    /// Ends a job, and says how it stands; `None` if there is none of this id. What was done stays done, and steps that
    /// are under way are done. The job has [ended](Job::ended) once each shard has seen it: its counts are exact then.
    /// Blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{JobAction, JobOrder, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let fire = JobOrder::new(QueueName::new("orders")?, JobAction::Fire);
    /// let id = timers.begin_job(&fire)?.id;
    /// assert!(timers.cancel_job(id)?.is_some_and(|job| job.cancelled && job.ended.is_none()));
    /// while timers.job_step(100, &|_, _| true)?.goes_on {}
    /// assert!(timers.jobs()[0].ended.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn cancel_job(&self, id: SettingsVersion) -> Result<Option<Job>, TimerError> {
        JobSteps::cancel(self, id)
    }

    /// A job as it is now; `None` if there is none of this id, or it is not shown any more. Blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{JobAction, JobOrder, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let asked = timers.begin_job(&JobOrder::new(QueueName::new("orders")?, JobAction::Fire))?;
    /// assert_eq!(timers.job(asked.id)?, Some(asked));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn job(&self, id: SettingsVersion) -> Result<Option<Job>, TimerError> {
        look_at_settings(self)?;
        Ok(self.jobs().into_iter().find(|job| job.id == id))
    }

    /// The jobs that run, and those that ended within the last hour, in the order in which they were asked for, as of
    /// the last turn. Reads no store where a shard is owned.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// assert!(timers.jobs().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        JobSteps::all(self)
    }

    /// Does one step of the jobs and of the purges in the shards that are owned here: acts on up to `limit` timers in one
    /// commit, which says how far the job is as well. Jobs take turns. Call it again while it
    /// [goes on](JobStep::goes_on), with a pause between, so that other timers are not late. Blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{JobAction, JobFilter, JobOrder, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// for order in 0..5_u64 {
    ///     timers.set(("orders", order), Duration::from_secs(60), if order < 3 { "eu" } else { "us" })?;
    /// }
    /// let mut order = JobOrder::new(QueueName::new("orders")?, JobAction::Remove);
    /// order.filter.tags = vec!["eu".to_owned()];
    /// timers.begin_job(&order)?;
    /// let step = timers.job_step(100, &|timer, tags| tags.iter().all(|it| it.as_bytes() == timer.payload))?;
    /// assert_eq!(step.acted, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`]: nothing was done, and a later step does it.
    pub fn job_step(&self, limit: usize, has_tags: HasTags<'_>) -> Result<JobStep, TimerError> {
        self.step_of(limit, has_tags, |_| true)
    }

    pub(crate) fn step_of(
        &self,
        limit: usize,
        has_tags: HasTags<'_>,
        is_meant: impl Fn(&Place) -> bool,
    ) -> Result<JobStep, TimerError> {
        if self.is_own_thread() {
            return Err(TimerError::OwnThread);
        }
        let mut steps = self.steps_of_jobs().lock();
        steps.step_of(self, limit, has_tags, is_meant)
    }
}

impl JobHost for Timers {
    fn settings(&self) -> std::sync::Arc<Settings> {
        Self::settings(self)
    }

    fn owned(&self) -> std::collections::BTreeMap<Shard, Revision> {
        self.last_revisions()
    }

    fn shard_count(&self) -> u16 {
        self.shards().count()
    }

    fn page(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
        self.page_of(shard, filter)
    }

    fn batch(&self, shard: Shard, requests: Vec<Request>) -> Result<Vec<Response>, BatchError> {
        let (send, receive) = mpsc::channel();
        let answer = move |answer| send.send(answer).unwrap_or_default();
        self.ask_here(shard, elsewhere::Asked::batch(requests, answer));
        let closed = |_| BatchError::of_all(TimerError::Closed);
        receive.recv().map_err(closed)?
    }

    fn configure(&self, request: Request) -> Result<Response, TimerError> {
        self.call(request)
    }

    fn wall(&self) -> Timestamp {
        Self::wall(self)
    }

    fn now(&self) -> countwheel_time::Instant {
        self.clock().now()
    }

    fn max_batch(&self) -> usize {
        Self::max_batch(self)
    }
}
