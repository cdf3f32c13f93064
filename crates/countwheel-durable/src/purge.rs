//! Purges: timers of a queue are removed in bounded steps, by state, prefix and due time.
//!
//! A purge is a [job](crate::Job) that removes, of which each queue has one at a time, and which is known by its queue.

use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::jobs::{
    Job, JobAction, JobFilter, JobOrder, Place, Stored, forget, is_overtaken, look_at_settings,
    noted, store_asked,
};
use crate::{Note, QueueName, SettingError, SettingsVersion, StateKind, TimerError, Timers};

/// Which timers of a queue a purge removes: those that all of its fields want.
///
/// ```
/// use countwheel_durable::{PurgeFilter, StateKind};
///
/// let filter = PurgeFilter { prefix: Some("order-".to_owned()), ..PurgeFilter::default() };
/// assert_eq!(filter.states, [StateKind::Pending, StateKind::Done, StateKind::Dead]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PurgeFilter {
    /// In which states. A timer that is being delivered is never removed.
    pub states: Vec<StateKind>,
    /// Only those whose key begins so.
    pub prefix: Option<String>,
    /// Only those due at this time or later.
    pub due_from: Option<Timestamp>,
    /// Only those due before this time.
    pub due_before: Option<Timestamp>,
}

impl Default for PurgeFilter {
    /// Everything that is not being delivered.
    fn default() -> Self {
        Self {
            states: vec![StateKind::Pending, StateKind::Done, StateKind::Dead],
            prefix: None,
            due_from: None,
            due_before: None,
        }
    }
}

/// A purge as it stands.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use countwheel_durable::store::MemoryStore;
/// # use countwheel_durable::{Config, SystemClock, Timers, inline};
/// use countwheel_durable::{Purge, PurgeFilter, QueueName};
///
/// # let clock = Arc::new(SystemClock::new());
/// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
/// timers.set(("orders", "order-42"), Duration::from_secs(60), ())?;
/// let orders = QueueName::new("orders")?;
/// let asked: Purge = timers.purge(&orders, PurgeFilter::default())?;
/// assert_eq!((asked.removed, asked.shards_left, asked.ended), (0, 1, None));
///
/// while timers.purge_step(100)?.goes_on {}
/// let through = &timers.purges()[0];
/// assert_eq!((through.removed, through.shards_left), (1, 0));
/// assert!(through.ended.is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Purge {
    /// The queue.
    pub queue: QueueName,
    /// The version of the setting that asked for it: no other purge of the store has it.
    pub id: SettingsVersion,
    /// What it removes.
    pub filter: PurgeFilter,
    /// When it was asked for.
    pub since: Timestamp,
    /// How many timers it has removed.
    pub removed: u64,
    /// In how many shards there may be more to remove.
    pub shards_left: u16,
    /// When it was through, if it is. It is shown for an hour then.
    pub ended: Option<Timestamp>,
}

/// Why there is no purge, or no other one.
///
/// ```
/// use countwheel_durable::{PurgeError, TimerError};
///
/// assert_eq!(PurgeError::from(TimerError::Closed).to_string(), "the scheduler has stopped");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PurgeError {
    /// The queue is being purged already.
    #[error("the queue {} is being purged already", _0.queue)]
    Running(Box<Purge>),
    /// It could not be stored.
    #[error(transparent)]
    Timer(#[from] TimerError),
}

/// What a step of the purges has done. See [`Timers::purge_step`](crate::Timers::purge_step).
///
/// ```
/// use countwheel_durable::PurgeStep;
///
/// assert!(!PurgeStep::default().goes_on);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PurgeStep {
    /// How many timers it has removed.
    pub removed: usize,
    /// Whether this process has another step to do at once.
    pub goes_on: bool,
}

impl Purge {
    /// How long a purge is shown that is through.
    pub const SHOWN_FOR: Duration = Job::SHOWN_FOR;
}

impl From<Job> for Purge {
    fn from(job: Job) -> Self {
        Self {
            queue: job.order.queue,
            id: job.id,
            filter: job.order.filter.into(),
            since: job.since,
            removed: job.counts.done,
            shards_left: job.shards_left,
            ended: job.ended,
        }
    }
}

/// Purges. A program that opens timers calls [`purge_step`](Timers::purge_step) again and again; the service does so by
/// itself.
impl Timers {
    /// Asks for timers of a queue to be removed in steps: those in the states, with the prefix and in the range of due
    /// times that the filter names. Only timers that were set before this was called are removed: a timer that is set
    /// once it has returned stays, also one of the same name. The purge is durable when this returns, and the
    /// processes that own the shards carry it out, each by [`purge_step`](Self::purge_step). Blocks.
    ///
    /// A timer that is being delivered is not removed, and one that is delivered, moved or fired while the purge is at
    /// its end may stay.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{PurgeError, PurgeFilter, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let orders = QueueName::new("orders")?;
    /// timers.purge(&orders, PurgeFilter::default())?;
    /// let again = timers.purge(&orders, PurgeFilter::default());
    /// assert!(matches!(again, Err(PurgeError::Running(_))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PurgeError::Running`] while another purge of the queue runs; as [`Timers::call`]. If an owner of another shard
    /// does not see the purge within five seconds, it is [`TimerError::ShardUnavailable`], and there is no purge.
    pub fn purge(&self, queue: &QueueName, filter: PurgeFilter) -> Result<Purge, PurgeError> {
        self.purge_noted(queue, filter, None)
    }

    /// The same, with a note.
    pub(crate) fn purge_noted(
        &self,
        queue: &QueueName,
        filter: PurgeFilter,
        note: Option<&Note>,
    ) -> Result<Purge, PurgeError> {
        queue.must_be_of_callers()?;
        if self.is_own_thread() {
            return Err(TimerError::OwnThread.into());
        }
        look_at_settings(self)?;
        let place = Place::Purge(queue.clone());
        let stored = Stored::of(&self.settings());
        let before = stored.asked.get(&place);
        match (before, stored.purge(queue)) {
            (_, Some(purge)) if purge.ended.is_none() => {
                return Err(PurgeError::Running(Box::new(purge)));
            }
            (Some((version, None)), _) => {
                let version = *version;
                return Err(TimerError::from(SettingError::Exists { version }).into());
            }
            _ => {}
        }
        let order = JobOrder {
            queue: queue.clone(),
            action: JobAction::Remove,
            filter: JobFilter::from(filter.clone()),
            rate: None,
            dry_run: false,
        };
        let before = before.map(|(version, _)| *version);
        let (id, asked) = match store_asked(self, &place, order, before, note) {
            Ok(stored) => stored,
            Err(error) => {
                // Somebody else was faster.
                let running = Stored::of(&self.settings()).purge(queue);
                let running = running.filter(|purge| purge.ended.is_none());
                return Err(match (error, running) {
                    (TimerError::Setting(_), Some(purge)) => PurgeError::Running(Box::new(purge)),
                    (error, _) => error.into(),
                });
            }
        };
        let purge = Purge {
            queue: queue.clone(),
            id,
            filter,
            since: asked.since,
            removed: 0,
            shards_left: asked.shards,
            ended: None,
        };
        let is_there = |stored: &Stored| {
            let (version, _) = stored.asked.get(&place)?;
            (*version == id).then(|| place.clone())
        };
        if let Some(shard) = self.wait_for_marks(id, is_there)? {
            self.call(noted(forget(&place, id)?, note))?;
            return Err(TimerError::ShardUnavailable { shard }.into());
        }
        // It may have been cancelled while it waited, and another asked for.
        match Stored::of(&self.settings()).purge(queue) {
            Some(other) if other.id != id && other.ended.is_none() => {
                Err(PurgeError::Running(Box::new(other)))
            }
            _ => Ok(purge),
        }
    }

    /// Ends the purge of a queue, and says how far it was; `None` if none runs. What was removed stays removed, and a
    /// step that is under way is done. Blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{PurgeFilter, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let orders = QueueName::new("orders")?;
    /// let asked = timers.purge(&orders, PurgeFilter::default())?;
    /// assert_eq!(timers.cancel_purge(&orders)?, Some(asked));
    /// assert_eq!(timers.cancel_purge(&orders)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`].
    pub fn cancel_purge(&self, queue: &QueueName) -> Result<Option<Purge>, TimerError> {
        self.cancel_purge_noted(queue, None)
    }

    /// The same, with a note.
    pub(crate) fn cancel_purge_noted(
        &self,
        queue: &QueueName,
        note: Option<&Note>,
    ) -> Result<Option<Purge>, TimerError> {
        look_at_settings(self)?;
        let running = Stored::of(&self.settings()).purge(queue);
        let Some(purge) = running.filter(|purge| purge.ended.is_none()) else {
            return Ok(None);
        };
        let request = forget(&Place::Purge(queue.clone()), purge.id)?;
        match self.call(noted(request, note)) {
            Ok(_) => Ok(Some(purge)),
            // It was through meanwhile, or was cancelled.
            Err(error) if is_overtaken(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The purges that run, and those that were through within the last hour, by queue, as of the last turn. Reads no
    /// store where a shard is owned.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{PurgeFilter, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let orders = QueueName::new("orders")?;
    /// assert!(timers.purges().is_empty());
    /// timers.purge(&orders, PurgeFilter::default())?;
    /// assert_eq!(timers.purges()[0].queue, orders);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn purges(&self) -> Vec<Purge> {
        let stored = Stored::of(&self.settings());
        let wall = self.wall();
        let shown = stored
            .asked
            .iter()
            .filter_map(|(place, (_, asked))| match place {
                Place::Purge(_) if asked.as_ref().is_some_and(|asked| !asked.is_over(wall)) => {
                    stored.job(place).map(Purge::from)
                }
                _ => None,
            });
        shown.collect()
    }

    /// Does one step of the purges in the shards that are owned here: removes up to `limit` timers in one commit, which
    /// says how far the purge is as well. Call it again while it [goes on](PurgeStep::goes_on), with a pause between,
    /// so that other timers are not late. Blocks.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use countwheel_durable::store::MemoryStore;
    /// # use countwheel_durable::{Config, SystemClock, Timers, inline};
    /// use countwheel_durable::{PurgeFilter, QueueName};
    ///
    /// # let clock = Arc::new(SystemClock::new());
    /// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
    /// let orders = QueueName::new("orders")?;
    /// for order in 0..5_u64 {
    ///     timers.set(("orders", order), Duration::from_secs(60), ())?;
    /// }
    /// timers.purge(&orders, PurgeFilter::default())?;
    /// assert_eq!(timers.purge_step(3)?.removed, 3);
    /// assert_eq!(timers.purge_step(3)?.removed, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Timers::call`]: nothing was done, and a later step does it.
    pub fn purge_step(&self, limit: usize) -> Result<PurgeStep, TimerError> {
        let step = self.step_of(limit, &|_, _| true, |place| {
            matches!(place, Place::Purge(_))
        })?;
        Ok(PurgeStep {
            removed: step.acted,
            goes_on: step.goes_on,
        })
    }
}
