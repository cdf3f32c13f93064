//! Purges: timers of a queue are removed in bounded steps, by state, prefix and due time.
//!
//! A purge is a setting of the store, and how far it is in a shard is another, which changes in the commit that
//! removes the timers. So a purge goes on after a restart, on whichever process owns the shard, and counts nothing twice.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::planted::planted;
use crate::store::{Filter, Page, Position, Shard};
use crate::{
    BatchError, Configured, QueueName, Request, Response, Revision, SettingError, SettingName,
    SettingPrecondition, Settings, SettingsVersion, StateKind, TimerError, TimerName, Timers,
    elsewhere,
};

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

/// The setting of a queue's purge begins so.
const PURGE: &str = "purge/";
/// The setting of its progress in one shard begins so, with the shard and the queue behind it.
const PROGRESS: &str = "purged/";
/// The version of both stored forms.
const FORMAT: u8 = 1;

/// How often it is looked whether the owners of other shards have seen a purge, and how long between.
const LOOKS: usize = 100;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The stored form of a purge.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) filter: PurgeFilter,
    pub(crate) since: Timestamp,
    /// How many shards there were. In a store of another number, the marks mean nothing.
    pub(crate) shards: u16,
    /// The last revision of each shard that the process owned which took the purge.
    pub(crate) marks: BTreeMap<u16, Revision>,
    pub(crate) ended: Option<Ended>,
}

/// How a purge went that is through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    pub(crate) removed: u64,
    /// The version of the setting while it ran.
    pub(crate) id: SettingsVersion,
}

/// How far a purge is in one shard, as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Of which purge.
    pub(crate) id: SettingsVersion,
    /// The last revision of the shard when the purge came to be known: what was set later stays.
    pub(crate) mark: Revision,
    /// Behind which position this pass goes on.
    pub(crate) after: Option<Position>,
    /// Whether this pass has found something, so that another follows.
    pub(crate) found: bool,
    pub(crate) removed: u64,
    pub(crate) is_through: bool,
}

impl Progress {
    pub(crate) fn new(id: SettingsVersion, mark: Revision) -> Self {
        Self {
            id,
            mark,
            after: None,
            found: false,
            removed: 0,
            is_through: false,
        }
    }

    /// What is to be read next.
    pub(crate) fn page(&self, queue: &QueueName, filter: &PurgeFilter, limit: usize) -> Filter {
        let state = match filter.states[..] {
            [state] => Some(state),
            _ => None,
        };
        Filter {
            state,
            prefix: filter.prefix.clone(),
            due_from: filter.due_from,
            due_before: filter.due_before,
            after: self.after,
            limit,
            ..Filter::queue(queue.clone())
        }
    }

    /// Which timers of the page are to be removed, with their revisions, and how far the purge is in this shard once
    /// they are. The page is that of [`page`](Self::page).
    ///
    /// A pass that has found something is followed by another: a timer that was delivered while the pass came by, or
    /// that was moved, may be behind.
    pub(crate) fn over(
        &self,
        filter: &PurgeFilter,
        page: &Page,
    ) -> (Vec<(TimerName, Revision)>, Self) {
        let wanted = page.records.iter().filter(|record| {
            let kind = record.state.kind();
            let is_older = record.id.set <= self.mark || planted!(PurgeTakesLaterSets);
            is_older && kind != StateKind::Delivering && filter.states.contains(&kind)
        });
        let wanted: Vec<_> = wanted
            .map(|record| (record.name.clone(), record.revision))
            .collect();
        let found = self.found || !wanted.is_empty();
        let (is_last, again) = (page.next.is_none(), found && !planted!(PurgePassesOnce));
        let next = Self {
            after: page.next,
            found: found && !is_last,
            removed: self.removed + wanted.len() as u64,
            is_through: is_last && !again,
            ..*self
        };
        (wanted, next)
    }

    /// The same without one of those that were to be removed: it has changed, so the shard is looked at once more.
    pub(crate) fn without_one(self) -> Self {
        Self {
            removed: self.removed.saturating_sub(1),
            ..self
        }
    }
}

/// The batch that removes these and says so.
pub(crate) fn requests(
    remove: &[(TimerName, Revision)],
    progress: Request,
) -> impl Iterator<Item = Request> {
    let remove = remove.iter().map(|(name, revision)| Request::Forget {
        name: name.clone(),
        revision: *revision,
    });
    remove.chain([progress])
}

/// Whether a part of a batch is refused because its timer is not as it was read.
pub(crate) fn has_changed(error: &TimerError) -> bool {
    matches!(
        error,
        TimerError::Changed { .. }
            | TimerError::NotFound
            | TimerError::Gone { .. }
            | TimerError::Conflict { .. }
            | TimerError::Unreadable { .. }
    )
}

/// Whether a setting is refused because somebody else has changed it.
fn is_overtaken(error: &TimerError) -> bool {
    matches!(
        error,
        TimerError::Setting(
            SettingError::Exists { .. } | SettingError::Changed { .. } | SettingError::NotFound
        )
    )
}

/// The setting of a queue's purge.
pub(crate) fn setting_of(queue: &QueueName) -> Result<SettingName, TimerError> {
    Ok(SettingName::new(format!("{PURGE}{queue}"))?)
}

/// The setting of its progress in a shard.
pub(crate) fn progress_setting_of(
    queue: &QueueName,
    shard: Shard,
) -> Result<SettingName, TimerError> {
    Ok(SettingName::new(format!("{PROGRESS}{}/{queue}", shard.0))?)
}

/// A name that no setting has: a change of it has an owner look at the store.
pub(crate) fn setting_of_none() -> Result<SettingName, TimerError> {
    Ok(SettingName::new(PURGE)?)
}

fn to_value(what: &impl Serialize) -> Option<Vec<u8>> {
    postcard::to_extend(what, vec![FORMAT]).ok()
}

fn of_value<T: for<'de> Deserialize<'de>>(value: &[u8]) -> Option<T> {
    let (format, rest) = value.split_first()?;
    if *format != FORMAT {
        return None;
    }
    postcard::from_bytes(rest).ok()
}

/// A request that stores a purge, if none of the queue is stored in another version.
pub(crate) fn ask(
    queue: &QueueName,
    asked: &Asked,
    before: Option<SettingsVersion>,
) -> Result<Request, TimerError> {
    Ok(Request::Configure {
        name: setting_of(queue)?,
        value: to_value(asked),
        precondition: before.map_or(SettingPrecondition::Absent, SettingPrecondition::Version),
    })
}

/// A request that stores how far a purge is.
pub(crate) fn note(
    queue: &QueueName,
    shard: Shard,
    progress: &Progress,
    before: Option<SettingsVersion>,
) -> Result<Request, TimerError> {
    Ok(Request::Configure {
        name: progress_setting_of(queue, shard)?,
        value: to_value(progress),
        precondition: before.map_or(SettingPrecondition::Absent, SettingPrecondition::Version),
    })
}

/// A request that removes a setting which has this version.
pub(crate) fn remove(name: SettingName, version: SettingsVersion) -> Request {
    Request::Configure {
        name,
        value: None,
        precondition: SettingPrecondition::Version(version),
    }
}

/// A progress with the version of its setting.
pub(crate) type Noted = (SettingsVersion, Option<Progress>);

/// All that the settings say of purges.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// What a later version has written is `None`, and left alone.
    pub(crate) asked: BTreeMap<QueueName, (SettingsVersion, Option<Asked>)>,
    pub(crate) progress: BTreeMap<(QueueName, Shard), Noted>,
}

impl Stored {
    pub(crate) fn of(settings: &Settings) -> Self {
        let mut stored = Self::default();
        for (name, value) in settings.iter() {
            let name = name.as_str();
            if let Some(queue) = name.strip_prefix(PURGE) {
                if let Ok(queue) = QueueName::from_text(queue) {
                    let asked = of_value(&value.value);
                    stored.asked.insert(queue, (value.version, asked));
                }
            } else if let Some((shard, queue)) = name
                .strip_prefix(PROGRESS)
                .and_then(|rest| rest.split_once('/'))
                && let (Ok(shard), Ok(queue)) = (shard.parse(), QueueName::from_text(queue))
            {
                let progress = of_value(&value.value).filter(|_| !planted!(PurgeForgetsPosition));
                let noted = (value.version, progress);
                stored.progress.insert((queue, Shard(shard)), noted);
            }
        }
        stored
    }

    /// How far the purge of this id is in a shard; `None` if that is not known.
    pub(crate) fn of_shard(
        &self,
        queue: &QueueName,
        id: SettingsVersion,
        shard: Shard,
    ) -> Option<&Progress> {
        let (_, progress) = self.progress.get(&(queue.clone(), shard))?;
        progress.as_ref().filter(|progress| progress.id == id)
    }

    /// The purge of a queue, if this version can read it.
    pub(crate) fn purge(&self, queue: &QueueName) -> Option<Purge> {
        let (id, asked) = self.asked.get(queue)?;
        let asked = asked.as_ref()?;
        let shards = (0..asked.shards).map(Shard);
        let known = shards.map(|shard| self.of_shard(queue, *id, shard));
        let (mut removed, mut shards_left) = (0, 0);
        for progress in known {
            removed += progress.map_or(0, |progress| progress.removed);
            shards_left += u16::from(progress.is_none_or(|progress| !progress.is_through));
        }
        let mut id = *id;
        if let Some(ended) = asked.ended {
            (id, removed, shards_left) = (ended.id, ended.removed, 0);
        }
        Some(Purge {
            queue: queue.clone(),
            id,
            filter: asked.filter.clone(),
            since: asked.since,
            removed,
            shards_left,
            ended: asked.ended.map(|ended| ended.at),
        })
    }

    /// A shard of which it is not known yet which timers were there before the purge.
    pub(crate) fn unmarked(&self, queue: &QueueName, id: SettingsVersion) -> Option<Shard> {
        let (_, asked) = self.asked.get(queue)?;
        let asked = asked.as_ref()?;
        let mut shards = (0..asked.shards).map(Shard);
        shards.find(|shard| {
            let is_marked = asked.marks.contains_key(&shard.0);
            !is_marked && self.of_shard(queue, id, *shard).is_none()
        })
    }

    /// Whether the purge of this id runs.
    fn is_running(&self, queue: &QueueName, id: SettingsVersion) -> bool {
        let asked = self.asked.get(queue);
        asked.is_some_and(|(version, asked)| {
            *version == id && asked.as_ref().is_none_or(|asked| asked.ended.is_none())
        })
    }
}

impl Purge {
    /// How long a purge is shown that is through.
    pub const SHOWN_FOR: Duration = Duration::from_secs(3_600);
}

impl Asked {
    /// Whether it need not be shown any more.
    pub(crate) fn is_over(&self, wall: Timestamp) -> bool {
        let since = |ended: Ended| wall.saturating_since(ended.at);
        self.ended
            .is_some_and(|ended| since(ended) >= Purge::SHOWN_FOR)
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
        if self.is_own_thread() {
            return Err(TimerError::OwnThread.into());
        }
        self.look_at_settings()?;
        let stored = Stored::of(&self.settings());
        let before = stored.asked.get(queue);
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
        let marks = self.last_revisions().into_iter();
        let asked = Asked {
            filter,
            since: self.wall(),
            shards: self.shards().count(),
            marks: marks.map(|(shard, mark)| (shard.0, mark)).collect(),
            ended: None,
        };
        let request = ask(queue, &asked, before.map(|(version, _)| *version))?;
        let id = match self.call(request) {
            Ok(Response::Configured(Configured { version, .. })) => version,
            Ok(_) => return Err(TimerError::Closed.into()),
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
            shards_left: asked.shards,
            filter: asked.filter,
            since: asked.since,
            removed: 0,
            ended: None,
        };
        let mut missing = self.shards().all();
        match missing.find(|shard| !asked.marks.contains_key(&shard.0)) {
            None => Ok(purge),
            Some(_) => self.wait_for_marks(purge),
        }
    }

    /// Waits until the owners of other shards have noted which timers there are.
    fn wait_for_marks(&self, purge: Purge) -> Result<Purge, PurgeError> {
        let mut missing = Shard::ONLY;
        let (_kept, nobody) = mpsc::channel::<()>();
        for _ in 0..LOOKS {
            self.look_at_settings()?;
            let stored = Stored::of(&self.settings());
            match stored.asked.get(&purge.queue) {
                Some((version, _)) if *version == purge.id => {}
                _ => {
                    return match stored.purge(&purge.queue) {
                        Some(other) if other.ended.is_none() => {
                            Err(PurgeError::Running(Box::new(other)))
                        }
                        // It is through, or was cancelled.
                        _ => Ok(purge),
                    };
                }
            }
            match stored.unmarked(&purge.queue, purge.id) {
                None => return Ok(purge),
                Some(shard) => missing = shard,
            }
            // Nobody sends: it is a pause.
            let _paused = nobody.recv_timeout(LOOK_EVERY);
        }
        self.call(remove(setting_of(&purge.queue)?, purge.id))?;
        Err(TimerError::ShardUnavailable { shard: missing }.into())
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
        self.look_at_settings()?;
        let running = Stored::of(&self.settings()).purge(queue);
        let Some(purge) = running.filter(|purge| purge.ended.is_none()) else {
            return Ok(None);
        };
        match self.call(remove(setting_of(queue)?, purge.id)) {
            Ok(_) => Ok(Some(purge)),
            // It was through meanwhile, or was cancelled.
            Err(TimerError::Setting(_)) => Ok(None),
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
        let shown = stored.asked.iter().filter(|(_, (_, asked))| {
            let asked = asked.as_ref();
            asked.is_some_and(|asked| !asked.is_over(wall))
        });
        shown.filter_map(|(queue, _)| stored.purge(queue)).collect()
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
        if self.is_own_thread() {
            return Err(TimerError::OwnThread);
        }
        let owned = self.last_revisions();
        if owned.is_empty() {
            return Ok(PurgeStep::default());
        }
        let stored = Stored::of(&self.settings());
        let leads = owned.contains_key(&Shard::ONLY);
        for ((queue, shard), noted) in &stored.progress {
            if let (version, Some(progress)) = noted
                && !stored.is_running(queue, progress.id)
            {
                let setting = progress_setting_of(queue, *shard)?;
                if owned.contains_key(shard) {
                    self.ask_at(*shard, vec![remove(setting, *version)])?;
                } else if leads && shard.0 >= self.shards().count() {
                    // Of a store with more shards, from which all timers have moved here.
                    self.ask_at(Shard::ONLY, vec![remove(setting, *version)])?;
                }
            }
        }
        let mut failure = None;
        for (queue, (id, asked)) in &stored.asked {
            let Some(asked) = asked else { continue };
            if asked.ended.is_some() {
                if leads && asked.is_over(self.wall()) {
                    self.ask_at(Shard::ONLY, vec![remove(setting_of(queue)?, *id)])?;
                }
                continue;
            }
            // In a store of another number of shards, the marks mean nothing.
            let is_from_elsewhere = asked.shards != self.shards().count();
            if !is_from_elsewhere {
                for (shard, last) in &owned {
                    match self.purge_shard(&stored, queue, (*id, asked), (*shard, *last), limit) {
                        Ok(None) => {}
                        Ok(Some(removed)) => {
                            let goes_on = true;
                            return Ok(PurgeStep { removed, goes_on });
                        }
                        Err(error) => failure = Some(error),
                    }
                }
            }
            let purge = stored.purge(queue);
            let is_over = |purge: &Purge| purge.shards_left == 0 || is_from_elsewhere;
            if let Some(purge) = purge.filter(is_over).filter(|_| leads) {
                if is_from_elsewhere {
                    tracing::warn!(%queue, "a purge has ended, since all timers have moved");
                }
                let ended = Asked {
                    ended: Some(Ended {
                        at: self.wall(),
                        removed: purge.removed,
                        id: *id,
                    }),
                    ..asked.clone()
                };
                self.ask_at(Shard::ONLY, vec![ask(queue, &ended, Some(*id))?])?;
                let (removed, goes_on) = (0, true);
                return Ok(PurgeStep { removed, goes_on });
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(PurgeStep::default()),
        }
    }

    /// A step of one purge in one shard; `None` if there is nothing to do.
    fn purge_shard(
        &self,
        stored: &Stored,
        queue: &QueueName,
        (id, asked): (SettingsVersion, &Asked),
        (shard, last): (Shard, Revision),
        limit: usize,
    ) -> Result<Option<usize>, TimerError> {
        let noted = stored.progress.get(&(queue.clone(), shard));
        let before = noted.map(|(version, _)| *version);
        let progress = match (noted, stored.of_shard(queue, id, shard)) {
            (_, Some(progress)) if progress.is_through => return Ok(None),
            (_, Some(progress)) => *progress,
            // A later version has written it.
            (Some((_, None)), None) => return Ok(None),
            (_, None) => match asked.marks.get(&shard.0) {
                Some(mark) => Progress::new(id, *mark),
                None => {
                    let progress = Progress::new(id, last);
                    self.ask_at(shard, vec![note(queue, shard, &progress, before)?])?;
                    return Ok(Some(0));
                }
            },
        };
        let mut limit = limit.min(self.max_batch().saturating_sub(1)).max(1);
        'smaller: loop {
            let page = self.page_of(shard, &progress.page(queue, &asked.filter, limit))?;
            let (mut wanted, mut next) = progress.over(&asked.filter, &page);
            loop {
                let note = note(queue, shard, &next, before)?;
                let asked = requests(&wanted, note).collect();
                match self.batch_at(shard, asked) {
                    Ok(_) => return Ok(Some(wanted.len())),
                    Err(BatchError {
                        index: Some(index),
                        error,
                    }) if index < wanted.len() && has_changed(&error) => {
                        wanted.remove(index);
                        next = next.without_one();
                    }
                    Err(BatchError {
                        error: TimerError::BatchTooLong { .. },
                        ..
                    }) if limit > 1 => {
                        limit /= 2;
                        continue 'smaller;
                    }
                    // Somebody has changed the setting meanwhile: the next step sees to what.
                    Err(refused) if is_overtaken(&refused.error) => return Ok(Some(0)),
                    Err(refused) => return Err(refused.error),
                }
            }
        }
    }

    /// The same, where a setting that somebody has changed meanwhile is no failure.
    fn ask_at(&self, shard: Shard, requests: Vec<Request>) -> Result<(), TimerError> {
        match self.batch_at(shard, requests) {
            Ok(_) => Ok(()),
            Err(refused) if is_overtaken(&refused.error) => Ok(()),
            Err(refused) => Err(refused.error),
        }
    }

    /// Hands a batch to the scheduler of a shard that is owned here, and waits for the answer.
    fn batch_at(&self, shard: Shard, requests: Vec<Request>) -> Result<Vec<Response>, BatchError> {
        let (send, receive) = mpsc::channel();
        let answer = move |answer| send.send(answer).unwrap_or_default();
        self.ask_here(shard, elsewhere::Asked::batch(requests, answer));
        let closed = |_| BatchError::of_all(TimerError::Closed);
        receive.recv().map_err(closed)?
    }

    /// Makes an owner look at what others have changed of the settings.
    fn look_at_settings(&self) -> Result<(), TimerError> {
        let nothing = remove(setting_of_none()?, SettingsVersion(u64::MAX));
        match self.call(nothing) {
            Ok(_) | Err(TimerError::Setting(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
