//! One timer as the store has it: its action, its deadline, its attempts so far.

use std::fmt;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::planted::planted;
use crate::{Answer, Missed, Recurring, RetryPolicy, TimerName, answer};

/// A number that only grows within a shard: given to a timer by every set, move, fire,
/// revive and retry, never given twice, not even across remove and restart.
///
/// It is what a conditional request names, and the order of equal deadlines.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one leased attempt of a timer. A later attempt of the timer, and any of a timer that takes its name, has a
/// higher one: a worker's resource that remembers the highest it saw can refuse a worker whose lease was lost.
///
/// ```
/// use countwheel_durable::{LeaseToken, Revision};
///
/// let token = LeaseToken { revision: Revision(7), attempt: 2 };
/// assert_eq!(token.to_string(), "000000000000000700000002");
/// assert_eq!(token.to_string().parse(), Ok(token));
/// assert!("7-2".parse::<LeaseToken>().is_err());
/// assert!(token < LeaseToken { revision: Revision(8), attempt: 1 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseToken {
    /// The revision of the timer.
    pub revision: Revision,
    /// The number of the attempt.
    pub attempt: u32,
}

/// 24 hexadecimal digits, which have the order of the tokens.
impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:08x}", self.revision.0, self.attempt)
    }
}

impl std::str::FromStr for LeaseToken {
    type Err = UnknownToken;

    fn from_str(text: &str) -> Result<Self, UnknownToken> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 24 || !text.as_bytes().iter().all(is_digit) {
            return Err(UnknownToken);
        }
        let (revision, attempt) = text.split_at(16);
        let revision = u64::from_str_radix(revision, 16).map_err(|_| UnknownToken)?;
        let attempt = u32::from_str_radix(attempt, 16).map_err(|_| UnknownToken)?;
        Ok(Self {
            revision: Revision(revision),
            attempt,
        })
    }
}

/// A text that is no [`LeaseToken`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a token of a lease is 24 hexadecimal digits, in lower case")]
pub struct UnknownToken;

/// Which set made this timer: the same through moves, retries and restarts, another after
/// the next set of the same key. Unique in the whole world, so a receiver can use it to
/// tell a repeated delivery from a new one.
///
/// ```
/// use countwheel_durable::{Revision, TimerId};
///
/// let id = TimerId { store: 0xfeed, set: Revision(7) };
/// assert_eq!(id.to_string(), "tmr-000000000000feed-7");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TimerId {
    /// Drawn at random when the store was made.
    pub store: u64,
    /// The revision of the set.
    pub set: Revision,
}

impl fmt::Display for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tmr-{:016x}-{}", self.store, self.set)
    }
}

/// Where a timer stands. The diagram is in `docs/timer-states.md`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "StoredState", into = "StoredState")]
pub enum State {
    /// Waits for its deadline, or for the next attempt.
    Pending,
    /// An attempt was started and its outcome is not known yet.
    Delivering,
    /// An attempt succeeded.
    Done {
        /// When the outcome was recorded.
        at: Timestamp,
        /// Until when the record is kept for those who ask.
        keep_until: Timestamp,
    },
    /// Given up. Kept until removed, replaced or revived, or as long as its queue keeps the dead.
    Dead {
        /// When.
        at: Timestamp,
        /// Why.
        reason: DeadReason,
        /// Until when the record is kept at the most. `None`: for good.
        keep_until: Option<Timestamp>,
    },
}

/// A state as it is stored. Variants are added behind the last: their numbers are in the bytes of records.
#[derive(Serialize, Deserialize)]
enum StoredState {
    Pending,
    Delivering,
    Done {
        at: Timestamp,
        keep_until: Timestamp,
    },
    /// Dead, and kept for good.
    Dead {
        at: Timestamp,
        reason: DeadReason,
    },
    /// Dead, and kept until then. Earlier programs know no such state.
    DeadUntil {
        at: Timestamp,
        reason: DeadReason,
        keep_until: Timestamp,
    },
}

impl From<State> for StoredState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => Self::Pending,
            State::Delivering => Self::Delivering,
            State::Done { at, keep_until } => Self::Done { at, keep_until },
            State::Dead {
                at,
                reason,
                keep_until: None,
            } => Self::Dead { at, reason },
            State::Dead {
                at,
                reason,
                keep_until: Some(keep_until),
            } => Self::DeadUntil {
                at,
                reason,
                keep_until,
            },
        }
    }
}

impl From<StoredState> for State {
    fn from(stored: StoredState) -> Self {
        match stored {
            StoredState::Pending => Self::Pending,
            StoredState::Delivering => Self::Delivering,
            StoredState::Done { at, keep_until } => Self::Done { at, keep_until },
            StoredState::Dead { at, reason } => Self::Dead {
                at,
                reason,
                keep_until: None,
            },
            StoredState::DeadUntil {
                at,
                reason,
                keep_until,
            } => Self::Dead {
                at,
                reason,
                keep_until: Some(keep_until),
            },
        }
    }
}

impl State {
    /// The state without its details.
    #[must_use]
    pub fn kind(&self) -> StateKind {
        match self {
            Self::Pending => StateKind::Pending,
            Self::Delivering => StateKind::Delivering,
            Self::Done { .. } => StateKind::Done,
            Self::Dead { .. } => StateKind::Dead,
        }
    }

    /// Until when a record in this state is kept. `None` if it is not done and not dead, or is dead and kept for
    /// good.
    #[must_use]
    pub fn kept_until(&self) -> Option<Timestamp> {
        match *self {
            Self::Pending | Self::Delivering => None,
            Self::Done { keep_until, .. } => Some(keep_until),
            Self::Dead { keep_until, .. } => keep_until,
        }
    }

    /// Whether this is a state that the form of records before it has no words for: a dead timer that is not kept
    /// for good. A store says so in the version of the record.
    #[must_use]
    pub fn came_later(&self) -> bool {
        matches!(
            self,
            Self::Dead {
                keep_until: Some(_),
                ..
            }
        )
    }
}

/// The four states by name.
///
/// ```
/// use countwheel_durable::{StateKind, UnknownState};
///
/// assert_eq!("dead".parse(), Ok(StateKind::Dead));
/// assert_eq!("asleep".parse::<StateKind>(), Err(UnknownState));
/// assert_eq!(StateKind::Delivering.to_string(), "delivering");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateKind {
    /// Waits for its deadline, or for the next attempt.
    Pending,
    /// An attempt was started and its outcome is not known yet.
    Delivering,
    /// An attempt succeeded.
    Done,
    /// Given up.
    Dead,
}

impl StateKind {
    /// All four, in the order of a life.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivering, Self::Done, Self::Dead];

    /// The name used in the API, the metrics and the documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivering => "delivering",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }
}

impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for StateKind {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or(UnknownState)
    }
}

/// A text that names none of the four states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a state is one of pending, delivering, done, dead")]
pub struct UnknownState;

/// By which clock a deadline comes.
///
/// ```
/// use countwheel_durable::DueClock;
///
/// assert_eq!(DueClock::default(), DueClock::Wall);
/// ```
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum DueClock {
    /// The wall clock: a step of it brings the deadline nearer or takes it away.
    #[default]
    Wall,
    /// A clock that counts on through steps of the wall clock, also over restarts, from where that
    /// stood when the store was first used.
    Boot,
}

impl DueClock {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Wall, Self::Boot];
}

/// Why a timer was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// The retry schedule, or its maximum number of attempts, is used up.
    Exhausted,
    /// The next attempt would come after the maximum age.
    TooOld,
    /// The receiver said that it wants no more.
    Stopped,
    /// The process ended during too many attempts in a row.
    Interrupted,
    /// It was more overdue before its first attempt than it may be.
    Missed,
    /// The last attempt of its retry schedule was leased, and the lease ended without an outcome.
    LeaseLost,
}

impl DeadReason {
    /// The name used in the API and the documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::TooOld => "too_old",
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
            Self::Missed => "missed",
            Self::LeaseLost => "lease_lost",
        }
    }
}

impl fmt::Display for DeadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One attempt that was started: what is known of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// 1 for the first since the set, one more each time.
    pub number: u32,
    /// The deadline it belongs to.
    pub due: Timestamp,
    /// When it was claimed; once it has ended, when its receiver had it. Never before `due`.
    pub started: Timestamp,
    /// For how long of the time in between a limit held it: see
    /// [`Attempt::held`](crate::Attempt::held).
    pub held: Duration,
    /// How it ended. `None` while it runs.
    pub ended: Option<AttemptEnd>,
}

impl AttemptRecord {
    /// How late its receiver had it, without the time for which a limit held it. `None` while it runs,
    /// and if the process ended during it: then nobody knows.
    #[must_use]
    pub fn lateness(&self) -> Option<Duration> {
        let ended = self.ended.as_ref()?;
        if ended.result == AttemptResult::Interrupted {
            return None;
        }
        Some(self.started.saturating_since(self.due + self.held))
    }
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// When the outcome arrived; for an interrupted attempt, when that was noticed.
    pub at: Timestamp,
    /// What it came to.
    pub result: AttemptResult,
    /// What the handler said of it, such as `503`. At most [`Record::DETAIL_MAX_BYTES`].
    pub detail: String,
    /// What the handler kept of the answer, of the last [`Answer::KEPT`] attempts of a record. A store
    /// writes it apart: see [`stored_answers`](crate::store::stored_answers).
    #[serde(skip)]
    pub answer: Option<Answer>,
}

/// What an attempt came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptResult {
    /// It succeeded: the timer is done.
    Done,
    /// It failed: the retry schedule decides what follows.
    Failed,
    /// The receiver wants no more: the timer is dead.
    Stopped,
    /// The process ended before the outcome was recorded: it may have been delivered.
    Interrupted,
    /// It was leased, and the lease ended before the outcome came: it may have been done. The retry schedule counts it
    /// as a failure, and the timer is due again at once.
    Lost,
}

impl AttemptResult {
    /// The name used in the API, the metrics and the documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
        }
    }
}

/// A timer as it is stored.
///
/// ```
/// use std::time::Duration;
/// use countwheel_time::Timestamp;
/// use countwheel_durable::{
///     Answer, AttemptEnd, AttemptRecord, AttemptResult, DeadReason, DueClock, Missed, Record,
///     RetryPolicy, Revision, State, TimerId, TimerName, Wake,
/// };
///
/// let at = Timestamp::from_micros;
/// let end = AttemptEnd {
///     at: at(15),
///     result: AttemptResult::Stopped,
///     detail: "410".to_owned(),
///     answer: Answer::new("no such order"),
/// };
/// let mut record = Record {
///     name: TimerName::new("orders", "order-42")?,
///     id: TimerId { store: 7, set: Revision(1) },
///     revision: Revision(1),
///     state: State::Dead { at: at(15), reason: DeadReason::Stopped, keep_until: None },
///     created: at(0),
///     due: at(10),
///     clock: DueClock::Wall,
///     missed: Missed::Fire,
///     recurring: None,
///     first_due: at(10),
///     policy: RetryPolicy::default(),
///     failures: 1,
///     interruptions: 0,
///     attempt: 1,
///     attempts: vec![AttemptRecord { number: 1, due: at(10), started: at(12), held: Duration::ZERO, ended: Some(end) }],
///     payload: b"unpaid".to_vec(),
/// };
/// assert_eq!(record.wake(), None); // it waits for nothing
/// assert_eq!(record.content_bytes(), 6 + 13);
/// record.state = State::Pending;
/// assert_eq!(record.wake(), Some(Wake { at: at(10), revision: Revision(1) }));
/// # Ok::<(), countwheel_durable::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Queue and key.
    pub name: TimerName,
    /// Which set made it.
    pub id: TimerId,
    /// Its last set, move, fire, revive or retry.
    pub revision: Revision,
    /// Where it stands.
    pub state: State,
    /// When it was set: by the clock of its deadline as it was set, so never after that.
    pub created: Timestamp,
    /// When the next attempt is due, or when the last one was.
    pub due: Timestamp,
    /// By which clock it is due.
    pub clock: DueClock,
    /// What becomes of it if it is overdue before its first attempt.
    pub missed: Missed,
    /// If it comes again: when, and which run this is.
    pub recurring: Option<Box<Recurring>>,
    /// When the first attempt, of this run if it comes again, was due: the maximum age counts
    /// from here.
    pub first_due: Timestamp,
    /// When to try again after a failure, and when to give up. One that
    /// [`check_policy`](crate::check_policy) takes: a store cannot write another.
    #[serde(with = "crate::store::stored_policy")]
    pub policy: RetryPolicy,
    /// Failed attempts since it was set or revived, or since the run before: the position in the
    /// retry schedule.
    pub failures: u32,
    /// Attempts in a row that the end of the process interrupted, with no outcome between.
    pub interruptions: u32,
    /// The number of the last attempt started; 0 if there was none.
    pub attempt: u32,
    /// The last attempts, oldest first, at most [`Record::ATTEMPTS_KEPT`].
    pub attempts: Vec<AttemptRecord>,
    /// What the handler needs to know; opaque here.
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
}

impl Record {
    /// How many attempts are kept; older ones are dropped, the count goes on.
    pub const ATTEMPTS_KEPT: usize = 32;
    /// The longest detail kept of an attempt, in bytes.
    pub const DETAIL_MAX_BYTES: usize = 200;

    /// How many bytes callers and receivers gave: those of the payload, and those of the answers of
    /// attempts. What a page or a step may hold of records is counted in them.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        self.payload.len() + answer::bytes_of(&self.attempts)
    }

    /// Whether it is done or dead and its retention has ended by `wall`. It is forgotten soon, and gone for
    /// whoever asks.
    #[must_use]
    pub fn is_over(&self, wall: Timestamp) -> bool {
        self.state.kept_until().is_some_and(|until| until <= wall) && !planted!(RetentionEndsLate)
    }

    /// Whether the delivery, of this run if it comes again, waits for its first attempt.
    pub(crate) fn is_untried(&self) -> bool {
        self.state == State::Pending && self.failures == 0 && self.interruptions == 0
    }

    /// Until when, by the boot clock, the attempt that runs is leased: the record is due again then. `None` if none runs,
    /// or if it is not leased.
    ///
    /// An attempt starts no sooner than it is due, so only a leased one has its record due after its start.
    #[must_use]
    pub fn leased_until(&self) -> Option<Timestamp> {
        let last = self.attempts.last()?;
        let is_leased =
            self.state == State::Delivering && last.ended.is_none() && self.due > last.started;
        is_leased.then_some(self.due)
    }

    /// The token of the last attempt.
    #[must_use]
    pub fn lease_token(&self) -> LeaseToken {
        LeaseToken {
            revision: self.revision,
            attempt: self.attempt,
        }
    }

    /// The clock by which [`wake`](Self::wake) is meant: how long a done or dead record is kept goes by
    /// the wall clock, whatever its deadline went by.
    #[must_use]
    pub fn wake_clock(&self) -> DueClock {
        match self.state {
            State::Pending | State::Delivering => self.clock,
            State::Done { .. } | State::Dead { .. } => DueClock::Wall,
        }
    }

    /// The point at which the scheduler must look at this record again: its deadline, or
    /// the end of its retention. `None` for the dead that are kept for good: they wait for nothing.
    ///
    /// A record in delivery keeps the deadline of its attempt, so that one interrupted by
    /// the end of the process is found again among the overdue.
    #[must_use]
    pub fn wake(&self) -> Option<Wake> {
        let at = match self.state {
            State::Pending | State::Delivering => self.due,
            State::Done { .. } | State::Dead { .. } => self.state.kept_until()?,
        };
        Some(Wake {
            at,
            revision: self.revision,
        })
    }
}

/// A position in the order in which a shard's records need attention: by time, then by
/// revision. Unique in its shard.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Wake {
    /// When.
    pub at: Timestamp,
    /// Which of those at the same time.
    pub revision: Revision,
}

impl Wake {
    /// After every other.
    pub const MAX: Self = Self {
        at: Timestamp::MAX,
        revision: Revision(u64::MAX),
    };

    /// The last position of all at this time.
    #[must_use]
    pub fn end_of(at: Timestamp) -> Self {
        Self { at, ..Self::MAX }
    }

    /// The position just before.
    pub(crate) fn before(self) -> Self {
        let (at, Revision(revision)) = (self.at, self.revision);
        match (revision, at.as_micros()) {
            (0, 0) => self,
            (0, micros) => Self::end_of(Timestamp::from_micros(micros - 1)),
            _ => Self {
                at,
                revision: Revision(revision - 1),
            },
        }
    }

    /// The position just after.
    pub(crate) fn after(self) -> Self {
        match self.revision.0.checked_add(1) {
            Some(revision) => Self {
                at: self.at,
                revision: Revision(revision),
            },
            None => Self {
                at: Timestamp::from_micros(self.at.as_micros().saturating_add(1)),
                revision: Revision(0),
            },
        }
    }
}
