//! Events: what each commit did, told in order once the commit is durable.

mod copies;
mod log;

pub use copies::{EventCopies, KnownEvents, ResumeError, ToldEvents};
pub use log::{Chunk, EventLog, EventPosition, FutureEvent, OwnEvents};

use std::fmt;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::store::{Lease, Ownership};
use crate::{
    AttemptResult, DeadReason, Record, Revision, SettingName, State, StateKind, TimerId, TimerName,
};

/// Hears what commits did: set as [`Config::events`](crate::Config::events).
///
/// The events of a shard come in the order of its commits, each after its commit is durable and before anybody is
/// answered. Each function is called on a scheduler's thread and must not wait.
///
/// ```
/// use std::sync::Arc;
/// use countwheel_durable::{Config, EventLog};
///
/// let log = Arc::new(EventLog::new(EventLog::EVENTS, EventLog::BYTES));
/// let config = Config { events: Some(log), ..Config::default() };
/// # drop(config);
/// ```
pub trait EventSink: fmt::Debug + Send + Sync {
    /// A scheduler has taken a shard: a term begins. All events of the term come after this.
    fn opened(&self, ownership: &Ownership);

    /// A commit of the term did this, in this order. It is never empty.
    fn committed(&self, lease: Lease, events: Vec<TimerEvent>);

    /// The term has ended, and every commit of it was told. A term of which this is never said may have changed what
    /// nobody was told.
    fn closed(&self, lease: Lease);
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A set made the timer, in place of one of the same name if there was one.
    Set,
    /// A request gave it another deadline.
    Moved,
    /// A request made it due at once.
    Fired,
    /// A request brought it back from the dead.
    Revived,
    /// It was removed before its retention ended.
    Removed,
    /// An attempt was claimed, and starts.
    Started,
    /// An attempt was leased to a worker.
    Leased,
    /// A worker has more time for its attempt.
    Extended,
    /// A worker gave its attempt back that it had not begun.
    Released,
    /// An attempt has ended: [`TimerEvent::result`] says how.
    AttemptEnded,
    /// An attempt that was claimed was not made, or one that was due was put off.
    Held,
    /// Runs of a recurring timer were passed over, since they were too late.
    Missed,
    /// The timer is done.
    Done,
    /// The timer was given up: [`TimerEvent::reason`] says why.
    Dead,
    /// A setting was put or removed.
    Configured,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Set,
        Self::Moved,
        Self::Fired,
        Self::Revived,
        Self::Removed,
        Self::Started,
        Self::Leased,
        Self::Extended,
        Self::Released,
        Self::AttemptEnded,
        Self::Held,
        Self::Missed,
        Self::Done,
        Self::Dead,
        Self::Configured,
    ];

    /// The name used in the API and the documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Moved => "moved",
            Self::Fired => "fired",
            Self::Revived => "revived",
            Self::Removed => "removed",
            Self::Started => "started",
            Self::Leased => "leased",
            Self::Extended => "extended",
            Self::Released => "released",
            Self::AttemptEnded => "attempt_ended",
            Self::Held => "held",
            Self::Missed => "missed",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Configured => "configured",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whom an event is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Subject {
    /// A timer.
    Timer(TimerName),
    /// A setting, and whether there is one of that name from now on.
    Setting(SettingName, bool),
}

/// What a commit did to one timer or one setting, and where that stands after it.
///
/// ```
/// use countwheel_durable::{EventKind, SettingName, TimerEvent, Timestamp};
///
/// let name = SettingName::new("queue/orders")?;
/// let event = TimerEvent::of_setting(name, true, Timestamp::EPOCH);
/// assert_eq!((event.kind, event.state), (EventKind::Configured, None));
/// # Ok::<(), countwheel_durable::SettingError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimerEvent {
    /// What happened.
    pub kind: EventKind,
    /// When it was decided, by the wall clock.
    pub at: Timestamp,
    /// To whom.
    pub subject: Subject,
    /// Which set made the timer. `None` of a setting, and of a timer that could not be read when it was removed.
    pub id: Option<TimerId>,
    /// The timer's revision after it, or when it was removed.
    pub revision: Revision,
    /// Its state after it. `None` if it is gone.
    pub state: Option<StateKind>,
    /// When the next attempt is due, or when the last one was.
    pub due: Timestamp,
    /// The number of the attempt, of an event of one; of the last attempt otherwise.
    pub attempt: u32,
    /// What the attempt came to.
    pub result: Option<AttemptResult>,
    /// How late its receiver had it.
    pub lateness: Option<Duration>,
    /// What the handler said of it.
    pub detail: String,
    /// Why the timer was given up.
    pub reason: Option<DeadReason>,
}

impl TimerEvent {
    /// A setting was put, or removed.
    #[must_use]
    pub fn of_setting(name: SettingName, is_put: bool, at: Timestamp) -> Self {
        Self {
            kind: EventKind::Configured,
            at,
            subject: Subject::Setting(name, is_put),
            id: None,
            revision: Revision(0),
            state: None,
            due: Timestamp::EPOCH,
            attempt: 0,
            result: None,
            lateness: None,
            detail: String::new(),
            reason: None,
        }
    }

    fn of_removal(name: &TimerName, record: Option<&Record>, at: Timestamp) -> Self {
        Self {
            kind: EventKind::Removed,
            at,
            subject: Subject::Timer(name.clone()),
            id: record.map(|record| record.id),
            revision: record.map_or(Revision(0), |record| record.revision),
            state: None,
            due: record.map_or(Timestamp::EPOCH, |record| record.due),
            attempt: record.map_or(0, |record| record.attempt),
            result: None,
            lateness: None,
            detail: String::new(),
            reason: None,
        }
    }

    fn of(kind: EventKind, record: &Record, at: Timestamp) -> Self {
        Self {
            kind,
            at,
            subject: Subject::Timer(record.name.clone()),
            id: Some(record.id),
            revision: record.revision,
            state: Some(record.state.kind()),
            due: record.due,
            attempt: record.attempt,
            result: None,
            lateness: None,
            detail: String::new(),
            reason: None,
        }
    }

    /// About how much memory it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let name = match &self.subject {
            Subject::Timer(name) => name.queue.as_str().len() + name.key.as_str().len(),
            Subject::Setting(name, _) => name.as_str().len(),
        };
        size_of::<Self>() + name + self.detail.len()
    }
}

/// Tells what a write changes of a timer, or a removal. `asked` is what a request asked for, if its name says more
/// than the records do.
pub(crate) fn tell(
    name: &TimerName,
    old: Option<&Record>,
    new: Option<&Record>,
    asked: Option<EventKind>,
    at: Timestamp,
    told: &mut Vec<TimerEvent>,
) {
    // What the engine stores for itself.
    if name.queue.is_reserved() {
        return;
    }
    let Some(new) = new else {
        // The end of its retention is no news: it was told until when the timer is kept.
        if !old.is_some_and(|old| old.is_over(at)) {
            told.push(TimerEvent::of_removal(name, old, at));
        }
        return;
    };
    let same = old.filter(|old| old.id == new.id);
    let Some(old) = same else {
        told.push(TimerEvent::of(EventKind::Set, new, at));
        return;
    };
    let before = told.len();
    if let Some(running) = old.attempts.last().filter(|last| last.ended.is_none()) {
        let mut attempts = new.attempts.iter().rev();
        match attempts.find(|attempt| attempt.number == running.number) {
            Some(attempt) => {
                if let Some(ended) = &attempt.ended {
                    let mut event = TimerEvent::of(EventKind::AttemptEnded, new, at);
                    event.attempt = attempt.number;
                    event.result = Some(ended.result);
                    event.lateness = attempt.lateness();
                    event.detail.clone_from(&ended.detail);
                    told.push(event);
                }
            }
            None => {
                let kind = match old.leased_until() {
                    Some(_) => EventKind::Released,
                    None => EventKind::Held,
                };
                told.push(TimerEvent::of(kind, new, at));
            }
        }
    }
    if new.attempt > old.attempt {
        let kind = match new.leased_until() {
            Some(_) => EventKind::Leased,
            None => EventKind::Started,
        };
        told.push(TimerEvent::of(kind, new, at));
    }
    match (&old.state, &new.state) {
        (State::Done { .. }, State::Done { .. }) | (State::Dead { .. }, State::Dead { .. }) => {}
        (_, State::Done { .. }) => told.push(TimerEvent::of(EventKind::Done, new, at)),
        (_, State::Dead { reason, .. }) => {
            let mut event = TimerEvent::of(EventKind::Dead, new, at);
            event.reason = Some(*reason);
            told.push(event);
        }
        _ => {}
    }
    if told.len() > before {
        return;
    }
    let runs_missed = |record: &Record| record.recurring.as_ref().map_or(0, |it| it.missed);
    let kind = match (asked, new.state.kind()) {
        (Some(asked), _) => asked,
        (None, StateKind::Delivering) => EventKind::Extended,
        (None, _) if runs_missed(new) > runs_missed(old) => EventKind::Missed,
        (None, _) => EventKind::Held,
    };
    told.push(TimerEvent::of(kind, new, at));
}
