//! The words of the sentences.

use std::time::Duration;

use countwheel_time::Timestamp;
use serde_json::Value;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
/// A revision that no timer gets.
pub(crate) const NO_REVISION: u64 = 1 << 60;

/// What is done with one timer of a queue, or with the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Do {
    /// A set, due in so many hours, whose delivery goes as it says.
    Set(&'static str, i64, Delivery),
    /// A set of a key that must not be there.
    SetNew(&'static str, i64),
    /// A set of a key of the revision that the last answer gave, or of another.
    SetIf(&'static str, i64, Revision),
    MoveTo(&'static str, i64),
    MoveBy(&'static str, i64),
    MoveIf(&'static str, i64, Revision),
    Remove(&'static str),
    RemoveIf(&'static str, Revision),
    RemovePending(&'static str),
    Get(&'static str),
    List,
    Fire(&'static str),
    Revive(&'static str, i64),
    Drain(Mode),
    DrainAll(Mode),
    Resume,
    ResumeAll,
    /// Waits until the timer is in this state.
    Await(&'static str, &'static str),
    /// Lets the deliveries that hang succeed.
    Release,
}

/// Which revision a precondition names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Revision {
    Last,
    Wrong,
}

/// How a delivery goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Done,
    /// It fails, and there is no retry.
    Fails,
    /// It hangs until it is released.
    Hangs,
}

impl Delivery {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Fails => "fails",
            Self::Hangs => "hangs",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Fire,
    Hold,
    Remove,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fire => "fire",
            Self::Hold => "hold",
            Self::Remove => "remove",
        }
    }
}

/// What is answered. Times are in hours from the beginning of the sentence, rounded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Say {
    /// Set; in place of a timer in this state.
    Set(Option<String>),
    /// Moved, from when to when.
    Moved(i64, i64),
    /// Moved, by a speaker that does not say from when to when.
    MovedSomewhere,
    /// Removed; the timer was in this state.
    Was(String),
    /// The timer is in this state, and due then.
    Is(String, i64),
    /// The keys of the queue, in order of deadline.
    Keys(Vec<String>),
    /// Drained: the keys that were taken out, and how many timers are left (pending, delivering, dead).
    Drained(Vec<String>, [u64; 3]),
    /// Resumed; the mode of the drain that ended.
    Resumed(Option<String>),
    /// Refused, by the code of the HTTP API.
    No(String),
    /// A wait has ended.
    Done,
}

impl Say {
    /// What an answer in JSON says, to whoever began at `start`.
    pub(crate) fn of(what: Do, answer: &Value, start: Timestamp) -> Self {
        let time = |field: &Value| {
            let at = countwheel_server::time::parse_time(field.as_str().unwrap()).unwrap();
            after(start, at)
        };
        let text = |field: &Value| field.as_str().map(str::to_owned);
        let left = |answer: &Value| {
            ["pending", "delivering", "dead"].map(|state| answer["left"][state].as_u64().unwrap())
        };
        match what {
            Do::Set(..) | Do::SetNew(..) | Do::SetIf(..) => Self::Set(text(&answer["replaced"])),
            Do::MoveTo(..) | Do::MoveBy(..) | Do::MoveIf(..) | Do::Fire(_) | Do::Revive(..) => {
                Self::Moved(time(&answer["old_due"]), time(&answer["due"]))
            }
            Do::Remove(_) | Do::RemoveIf(..) | Do::RemovePending(_) => {
                Self::Was(text(&answer["was"]).unwrap())
            }
            Do::Get(_) => Self::Is(text(&answer["state"]).unwrap(), time(&answer["due"])),
            Do::List => Self::Keys(keys(answer["items"].as_array().unwrap())),
            Do::Drain(_) => {
                let none = Vec::new();
                let mut removed = keys(answer["removed"].as_array().unwrap_or(&none));
                removed.sort();
                Self::Drained(removed, left(answer))
            }
            Do::Resume | Do::ResumeAll => Self::Resumed(text(&answer["was"]["mode"])),
            Do::DrainAll(_) | Do::Await(..) | Do::Release => Self::Done,
        }
    }

    /// Whether the answer says this much.
    pub(crate) fn is_said_by(&self, answer: &Self) -> bool {
        self == answer || matches!((self, answer), (Self::Moved(..), Self::MovedSomewhere))
    }
}

/// A sentence, and what it means: what is done, and what is answered.
pub(crate) struct Sentence {
    pub(crate) says: &'static str,
    pub(crate) steps: fn() -> Vec<(Do, Say)>,
}

/// How many hours from `start` to `at`, rounded.
pub(crate) fn after(start: Timestamp, at: Timestamp) -> i64 {
    let half = HOUR / 2;
    let span = at.saturating_since(start) + half;
    i64::try_from(span.as_secs() / HOUR.as_secs()).unwrap()
}

fn keys(timers: &[Value]) -> Vec<String> {
    let keys = timers.iter().map(|timer| timer["key"].as_str().unwrap());
    keys.map(str::to_owned).collect()
}
