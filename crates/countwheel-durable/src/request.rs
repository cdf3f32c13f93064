//! What callers ask of the scheduler, and what it answers.

use std::convert::Infallible;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use countwheel_time::{By, Timestamp};
use serde::{Deserialize, Serialize};

use crate::drain;
use crate::store::{Shard, StoreError};
use crate::{
    CronError, DrainMode, JobAction, LeaseToken, Missed, NameError, Note, Outcome, PayloadError,
    PolicyError, QueueName, Receipt, Recurrence, RecurrenceError, RetryPolicy, Revision,
    SettingError, SettingName, SettingPrecondition, SettingsVersion, StateKind, TimerId, TimerName,
    UnknownZone,
};

/// When something shall be due. The order of the variants is that of the stored form of a [job](crate::Job).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Due {
    /// At this time. One that has passed is due at once, and stays the
    /// [deadline](crate::Attempt::deadline) by which it is [missed](Missed).
    At(Timestamp),
    /// This long after the request is taken up.
    In(Duration),
}

impl Due {
    /// The longest time ahead that a timer can be due: 36,525 days, a hundred years.
    pub const MAX_AHEAD: Duration = Duration::from_secs(36_525 * 86_400);

    /// The deadline this means at `now`: never before it.
    ///
    /// # Errors
    /// [`TimerError::TooFar`] beyond [`Due::MAX_AHEAD`].
    pub fn resolve(self, now: Timestamp) -> Result<Timestamp, TimerError> {
        let due = match self {
            Self::At(at) => at.max(now),
            Self::In(delay) => now + delay,
        };
        if due > now + Self::MAX_AHEAD {
            return Err(TimerError::TooFar);
        }
        Ok(due)
    }
}

impl From<Timestamp> for Due {
    fn from(at: Timestamp) -> Self {
        Self::At(at)
    }
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Self {
        Self::In(delay)
    }
}

impl From<SystemTime> for Due {
    /// At that time. One before 1970 has passed as well at 1970.
    fn from(at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::At(Timestamp::EPOCH + since)
    }
}

// A name that is one already breaks no rule.
impl From<Infallible> for TimerError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Where a move takes a timer. The order of the variants is that of the stored form of a [job](crate::Job).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Shift {
    /// To a new deadline.
    To(Due),
    /// Later than its deadline now.
    Later(Duration),
    /// Sooner than its deadline now, at most to now.
    Sooner(Duration),
}

impl From<By> for Shift {
    fn from(by: By) -> Self {
        match by {
            By::Later(span) => Self::Later(span),
            By::Sooner(span) => Self::Sooner(span),
        }
    }
}

/// What must hold of the timer for a request to do anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// There is no timer of that name, in whatever state.
    Absent,
    /// It has this revision.
    Revision(Revision),
}

/// What most timers do without. The default is a timer for one time that is delivered however
/// late it is.
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::{Missed, Recurrence, Schedule, SetOptions};
///
/// let hourly = Schedule::FixedRate { every: Duration::from_secs(3600), anchor: None };
/// let options = SetOptions {
///     missed: Missed::Collapse,
///     recurrence: Some(Recurrence::new(hourly).into()),
///     ..SetOptions::default()
/// };
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetOptions {
    /// What becomes of it if its deadline passes before its first attempt can be made.
    pub missed: Missed,
    /// When it comes again.
    pub recurrence: Option<Box<Recurrence>>,
    /// What makes it one set, however often it is asked for.
    pub receipt: Option<Box<Receipt>>,
}

impl SetOptions {
    /// Checks every bound that the fields name.
    ///
    /// # Errors
    /// [`RecurrenceError`] names the first one broken.
    pub fn validate(&self) -> Result<(), RecurrenceError> {
        self.missed.validate()?;
        self.recurrence
            .as_ref()
            .map_or(Ok(()), |recurrence| recurrence.validate())
    }
}

/// One request. Each is answered once, after what it changed is durable.
#[derive(Clone, PartialEq, Debug)]
pub enum Request {
    /// Set a timer: a new one, or one in place of whatever had the name.
    Set {
        /// Its name.
        name: TimerName,
        /// When it is due. With a recurrence, the first run is the first of the schedule that is
        /// not before this.
        due: Due,
        /// When to try again.
        policy: RetryPolicy,
        /// What the handler will need.
        payload: Vec<u8>,
        /// What must hold.
        precondition: Precondition,
        /// What most timers do without.
        options: SetOptions,
    },
    /// Move a pending timer to another deadline. Counts as a new insertion.
    Move {
        /// Its name.
        name: TimerName,
        /// Where to.
        shift: Shift,
        /// What must hold.
        precondition: Precondition,
    },
    /// Remove a timer: no attempt starts afterwards.
    Remove {
        /// Its name.
        name: TimerName,
        /// What must hold.
        precondition: Precondition,
        /// Refuse unless it is pending.
        only_pending: bool,
    },
    /// Act on a timer as a [job](crate::Job) does, if the timer is as it was read and no attempt runs. A removal is one
    /// of done timers as well.
    AsRead {
        /// Its name.
        name: TimerName,
        /// The revision that it had.
        revision: Revision,
        /// The state in which it was.
        state: StateKind,
        /// What to do.
        action: JobAction,
    },
    /// Make a pending timer due now.
    Fire {
        /// Its name.
        name: TimerName,
    },
    /// Make a dead timer pending again, from the start of its retry schedule.
    Revive {
        /// Its name.
        name: TimerName,
        /// When it is due.
        due: Due,
    },
    /// End a leased attempt with its outcome. The same again, of an attempt that was settled as done and whose timer
    /// is still known, changes nothing and is no error.
    Settle {
        /// The timer's name.
        name: TimerName,
        /// The attempt's token.
        token: LeaseToken,
        /// How it ended.
        outcome: Outcome,
    },
    /// Let a lease end this long after now, whenever it would have ended before.
    Extend {
        /// The timer's name.
        name: TimerName,
        /// The attempt's token.
        token: LeaseToken,
        /// At most [`Due::MAX_AHEAD`].
        lease: Duration,
    },
    /// Give a leased attempt back that nobody has begun: the timer is due as before, and the attempt was none.
    Release {
        /// The timer's name.
        name: TimerName,
        /// The attempt's token. The next attempt has the same.
        token: LeaseToken,
    },
    /// Change a setting, or remove it.
    ///
    /// What must hold is compared with the settings as they are when the request is taken up. An
    /// owner of another shard may change the same setting between that and the commit.
    Configure {
        /// Its name.
        name: SettingName,
        /// What it is from now on; `None` removes it. Removing nothing is no error.
        value: Option<Vec<u8>>,
        /// What must hold.
        precondition: SettingPrecondition,
    },
    /// Do what a request asks for and, if that changes something, write an entry of the audit log in the same commit.
    /// A request that is refused, and one that changes nothing, writes none. The answer is that of the request.
    Noted {
        /// What to do.
        request: Box<Self>,
        /// Who has asked for it, in the caller's words.
        note: Box<Note>,
    },
}

impl Request {
    /// The same, with a note for the audit log. See [`Timers::audit`](crate::Timers::audit).
    ///
    /// ```
    /// use std::time::Duration;
    /// use countwheel_durable::{Note, Request, TimerName};
    ///
    /// let fire = Request::Fire { name: TimerName::new("orders", "order-42")? };
    /// let noted = fire.clone().noted(Note::new("ada", Duration::from_secs(86_400))?);
    /// assert_eq!((noted.plain(), noted.name()), (&fire, fire.name()));
    /// # Ok::<(), countwheel_durable::TimerError>(())
    /// ```
    #[must_use]
    pub fn noted(self, note: Note) -> Self {
        let (request, note) = (Box::new(self), Box::new(note));
        Self::Noted { request, note }
    }

    /// The request without its notes.
    #[must_use]
    pub fn plain(&self) -> &Self {
        let mut plain = self;
        while let Self::Noted { request, .. } = plain {
            plain = request;
        }
        plain
    }

    /// How many bytes the notes have.
    pub(crate) fn note_bytes(&self) -> usize {
        let (mut request, mut bytes) = (self, 0);
        while let Self::Noted {
            request: inner,
            note,
        } = request
        {
            bytes += note.bytes().len();
            request = inner;
        }
        bytes
    }

    /// Drains a queue, or all queues (`None`), as an owner of one shard sees it at once and the others
    /// within half a second; `None` for a mode ends the drain. [`Timers::drain`](crate::Timers::drain)
    /// tells all shards of a process.
    ///
    /// ```
    /// use countwheel_durable::{DrainMode, QueueName, Request};
    ///
    /// let orders = QueueName::new("orders")?;
    /// let hold = Request::drain(Some(&orders), Some(DrainMode::Hold))?;
    /// assert!(matches!(hold, Request::Configure { name, .. } if name.as_str() == "drain/orders"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// None with a queue's name of today's length.
    pub fn drain(queue: Option<&QueueName>, mode: Option<DrainMode>) -> Result<Self, SettingError> {
        Ok(Self::Configure {
            name: drain::setting_of(queue)?,
            value: mode.map(DrainMode::to_value),
            precondition: SettingPrecondition::None,
        })
    }

    /// Where the receipt is stored of a set that has one.
    pub(crate) fn receipt(&self) -> Option<TimerName> {
        match self.plain() {
            Self::Set { name, options, .. } => options.receipt.as_ref()?.place(name),
            _ => None,
        }
    }

    /// The timer it is about; `None` if it is about a setting.
    #[must_use]
    pub fn name(&self) -> Option<&TimerName> {
        match self.plain() {
            Self::Set { name, .. }
            | Self::Move { name, .. }
            | Self::Remove { name, .. }
            | Self::AsRead { name, .. }
            | Self::Fire { name }
            | Self::Revive { name, .. }
            | Self::Settle { name, .. }
            | Self::Extend { name, .. }
            | Self::Release { name, .. } => Some(name),
            Self::Configure { .. } | Self::Noted { .. } => None,
        }
    }
}

/// What a request did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// The timer was set.
    Set(Set),
    /// The timer was moved, fired or revived.
    Moved(Moved),
    /// The timer was removed.
    Removed(Was),
    /// The timer was removed as it was read.
    Forgotten(Forgotten),
    /// The setting was changed.
    Configured(Configured),
    /// The leased attempt has ended, or was given back.
    Settled(Settled),
    /// The lease ends at another time.
    Extended(Extended),
}

/// The answer to a [settle](Request::Settle) and a [release](Request::Release).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// The timer's state now.
    pub state: StateKind,
    /// When the next attempt is due, if there is one.
    pub due: Option<Timestamp>,
}

/// The answer to an [extend](Request::Extend).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extended {
    /// When the lease ends, by the boot clock.
    pub until: Timestamp,
}

/// The answer to a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Set {
    /// The timer's id, which every delivery carries.
    pub id: TimerId,
    /// The timer's revision.
    pub revision: Revision,
    /// When the timer is due: not before the request was taken up.
    pub due: Timestamp,
    /// The state of the timer that the set replaced.
    pub replaced: Option<StateKind>,
    /// Whether this is the answer to an earlier set with the same [receipt](Receipt): now, nothing was set.
    pub replayed: bool,
}

/// The answer to a move, a fire and a revive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The timer's new revision.
    pub revision: Revision,
    /// When the timer was due.
    pub old_due: Timestamp,
    /// When the timer is due now.
    pub due: Timestamp,
}

/// The answer to a removal of a timer [as it was read](Request::AsRead).
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use countwheel_durable::store::MemoryStore;
/// # use countwheel_durable::{Config, SystemClock, Timers, inline};
/// use countwheel_durable::{Forgotten, JobAction, Request, Response, StateKind, TimerName};
///
/// # let clock = Arc::new(SystemClock::new());
/// # let timers = Timers::open(MemoryStore::new(7), inline(|_| ()), clock, Config::default())?;
/// let name = TimerName::new("orders", "order-42")?;
/// let revision = timers.set(name.clone(), Duration::from_secs(60), ())?.revision;
/// let (state, action) = (StateKind::Pending, JobAction::Remove);
/// let forgotten = timers.call(Request::AsRead { name, revision, state, action })?;
/// assert_eq!(forgotten, Response::Forgotten(Forgotten { state }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forgotten {
    /// The state in which it was.
    pub state: StateKind,
}

/// The answer to a change of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configured {
    /// The setting's name.
    pub name: SettingName,
    /// The version of the setting, or of all settings if the setting was removed.
    pub version: SettingsVersion,
}

/// Takes the answer of one verb out of a [`Response`], and gives back a response of another.
macro_rules! answers {
    ($($variant:ident($answer:ty),)+) => {$(
        impl TryFrom<Response> for $answer {
            type Error = Response;

            fn try_from(response: Response) -> Result<Self, Response> {
                match response {
                    Response::$variant(answer) => Ok(answer),
                    other => Err(other),
                }
            }
        }
    )+};
}

answers! {
    Set(Set),
    Moved(Moved),
    Removed(Was),
    Forgotten(Forgotten),
    Configured(Configured),
    Settled(Settled),
    Extended(Extended),
}

/// What a removed timer was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Was {
    /// It waited: it was not delivered for this deadline and never will be.
    Pending {
        /// When it would have been due.
        due: Timestamp,
    },
    /// An attempt had started and may still arrive; none will follow.
    Delivering {
        /// Its number.
        attempt: u32,
    },
    /// It had been given up.
    Dead,
    /// It could not be read. An attempt that had started may still arrive; none will follow.
    Unreadable,
}

/// Why a batch of requests did nothing.
///
/// ```
/// use countwheel_durable::{BatchError, TimerError};
///
/// let refused = BatchError { index: Some(2), error: TimerError::NotFound };
/// assert_eq!(refused.to_string(), "request 2: there is no timer of that name");
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{}{error}", index.map_or(String::new(), |index| format!("request {index}: ")))]
pub struct BatchError {
    /// Which request was refused, counted from 0; those after it were not looked at. `None` if
    /// it is about the batch as a whole.
    pub index: Option<usize>,
    /// Why.
    pub error: TimerError,
}

impl BatchError {
    /// Nothing of the batch was looked at.
    pub(crate) fn of_all(error: TimerError) -> Self {
        Self { index: None, error }
    }
}

/// Why a request did nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// There is no timer of that name.
    #[error("there is no timer of that name")]
    NotFound,
    /// It is done: an attempt succeeded. Only a set makes a new timer of it.
    #[error("the timer is done since {at:?}")]
    Gone {
        /// Since when.
        at: Timestamp,
    },
    /// The attempt is not leased under that token any more: its lease has ended, it was settled, or the timer was moved
    /// on or replaced.
    #[error("the lease is lost: the timer is {state}")]
    LeaseLost {
        /// The timer's state.
        state: StateKind,
        /// Until when another attempt of it is leased, by the boot clock.
        until: Option<Timestamp>,
    },
    /// It is in a state in which the request makes no sense.
    #[error("the timer is {state}")]
    Conflict {
        /// The state.
        state: StateKind,
    },
    /// The precondition does not hold.
    #[error("the timer has revision {current}, another than asked for")]
    Changed {
        /// The revision it has.
        current: Revision,
    },
    /// A timer of that name exists and the request asked for a new one.
    #[error("a timer of that name exists, it is {state}")]
    Exists {
        /// The state it is in.
        state: StateKind,
    },
    /// A set with this [receipt](Receipt) was done, and asked for something else.
    #[error("an earlier set under this key asked for something else")]
    ReceiptMismatch,
    /// A set with this [receipt](Receipt) is being done: ask again.
    #[error("an earlier set under this key is being done")]
    ReceiptPending,
    /// The queue is [drained](crate::Timers::drain): it takes no timers until it is resumed. Nothing was
    /// done.
    #[error("the queue {queue} is being drained ({mode}): it takes no timers until it is resumed")]
    Draining {
        /// The queue.
        queue: QueueName,
        /// What becomes of its timers.
        mode: DrainMode,
    },
    /// The deadline is more than a hundred years ahead.
    #[error("a timer is due at most 36525 days ahead")]
    TooFar,
    /// The payload is longer than the scheduler takes.
    #[error("a payload has at most {limit} bytes, not {bytes}")]
    PayloadTooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// The name breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The payload could not be written as JSON.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A setting breaks a rule, or is not as it was asked for.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The retry policy breaks a rule.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The recurrence, or what is to become of a missed run, breaks a rule.
    #[error(transparent)]
    Recurrence(#[from] RecurrenceError),
    /// The text is no cron expression.
    #[error(transparent)]
    Cron(#[from] CronError),
    /// There is no time zone of that name.
    #[error(transparent)]
    Zone(#[from] UnknownZone),
    /// The scheduler's own thread was to wait for itself: in a callback, such as an answer's
    /// receiver or a handler that does not [block](crate::Handler::blocks). Nothing was done.
    #[error(
        "the scheduler's own thread cannot wait for an answer: submit, or call from another thread"
    )]
    OwnThread,
    /// A batch has more requests than one may have. Nothing was done.
    #[error("a batch has at most {limit} requests, not {requests}")]
    BatchTooLarge {
        /// How many it has.
        requests: usize,
        /// How many it may have: [`Config::max_together`](crate::Config::max_together).
        limit: usize,
    },
    /// The payloads that a batch finds or writes, the longer of the two for each request, are
    /// longer together than one commit takes. Nothing was done.
    #[error("a batch finds or writes at most {limit} bytes of payloads")]
    BatchTooLong {
        /// How long they may be: [`Config::max_batch_bytes`](crate::Config::max_batch_bytes).
        limit: usize,
    },
    /// Too many requests wait. Nothing was done; ask again later.
    #[error("too many requests are waiting")]
    Full,
    /// The disk is full, or no more files can be opened. Nothing was done; removals may still be
    /// taken. It passes when there is room again.
    #[error("the disk is full, or too many files are open")]
    StorageFull,
    /// The store cannot be reached or is busy. Nothing was done; ask again.
    #[error("the store is not available: {reason}")]
    Unavailable {
        /// What the store said.
        reason: String,
    },
    /// This process does not own the shard of the timer. Nothing was done; ask the owner.
    #[error("shard {} of the timer is not owned here", shard.0)]
    NotOwned {
        /// The shard.
        shard: Shard,
    },
    /// The shard of the timer has no owner now, or its owner refuses. Nothing was done; ask again.
    #[error("shard {} of the timer is not available", shard.0)]
    ShardUnavailable {
        /// The shard.
        shard: Shard,
    },
    /// A batch is about timers of more than one shard. Nothing was done. See
    /// [`Shards::by_tag`](crate::Shards::by_tag) for how to keep together what belongs together.
    #[error("a batch is about timers of one shard, and {first} and {other} are in two")]
    SeveralShards {
        /// The first timer that the batch names.
        first: TimerName,
        /// The first that is in another shard.
        other: TimerName,
    },
    /// The scheduler has stopped or is stopping. Nothing was done.
    #[error("the scheduler has stopped")]
    Closed,
    /// The store failed, or the owner of the timer's shard did not answer. Whether the request took effect
    /// is not known.
    #[error("the outcome of the request is not known: {0}")]
    Unknown(String),
    /// The timer cannot be read: what the store holds of it is damaged. Nothing was done, and no attempt
    /// of it starts. A removal without a precondition takes it away, and a set without one makes
    /// it anew.
    #[error("the timer {name} cannot be read: remove it or set it anew")]
    Unreadable {
        /// Its name.
        name: TimerName,
        /// What the store said.
        source: StoreError,
    },
    /// The store failed while reading. Nothing was done.
    #[error("the store could not be read")]
    Store(#[from] StoreError),
}
