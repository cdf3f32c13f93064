//! One vocabulary: what the verbs do, as sentences that hold of everything that has them.
//!
//! `table.rs` has the sentences, `speakers.rs` those that are asked: keyed timers in a process, durable
//! timers, the HTTP client and the commands. A store or a protocol that comes later is one more speaker.

mod receiver;
mod speakers;
mod table;

use std::time::Duration;

use countwheel_time::Patience;

use self::speakers::{Durable, Keyed, Speaker, over_http};
pub(crate) use self::speakers::{client_of, commands_of};
pub(crate) use self::table::SENTENCES;
use crate::support::PATIENCE;

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
    /// Whether the answer says this much.
    fn is_said_by(&self, answer: &Self) -> bool {
        self == answer || matches!((self, answer), (Self::Moved(..), Self::MovedSomewhere))
    }
}

/// A sentence, and what it means: what is done, and what is answered.
pub(crate) struct Sentence {
    pub(crate) says: &'static str,
    pub(crate) steps: fn() -> Vec<(Do, Say)>,
}

/// Asks a speaker every sentence that it has the verbs for. Says how many those are.
pub(crate) fn hear(speaker: &mut dyn Speaker) -> usize {
    let mut heard = 0;
    for (number, sentence) in SENTENCES.iter().enumerate() {
        let steps = (sentence.steps)();
        if !steps.iter().all(|(what, say)| speaker.knows(*what, say)) {
            continue;
        }
        heard += 1;
        speaker.begin(&format!("sentence-{number}"));
        for (index, (what, expected)) in steps.iter().enumerate() {
            let answer = match *what {
                Do::Await(key, state) => wait(speaker, key, state),
                what => speaker.ask(what),
            };
            assert!(
                expected.is_said_by(&answer),
                "{}: {:?}, step {index}, {what:?}: answered {answer:?}, expected {expected:?}",
                speaker.name(),
                sentence.says,
            );
        }
    }
    heard
}

#[expect(clippy::disallowed_methods, reason = "polls another process")]
fn wait(speaker: &mut dyn Speaker, key: &'static str, state: &str) -> Say {
    let patience = Patience::of(PATIENCE);
    loop {
        if speaker.state(key) == state {
            return Say::Done;
        }
        assert!(
            !patience.left().is_zero(),
            "{}: {key} is {:?}, not {state}",
            speaker.name(),
            speaker.state(key)
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn there_are_forty_sentences_and_no_two_are_the_same() {
    let mut texts: Vec<_> = SENTENCES.iter().map(|sentence| sentence.says).collect();
    assert!(texts.len() >= 40, "{}", texts.len());
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), SENTENCES.len());
}

#[test]
fn every_sentence_holds_of_durable_timers() {
    assert_eq!(hear(&mut Durable::new()), SENTENCES.len());
}

#[test]
fn the_sentences_of_verbs_that_keyed_timers_have_hold_of_them() {
    let heard = hear(&mut Keyed::new());
    assert!(heard >= 14, "{heard} of {}", SENTENCES.len());
}

#[test]
fn every_sentence_holds_of_the_client_and_of_the_commands() {
    for speaker in over_http() {
        let mut speaker = speaker;
        assert_eq!(hear(&mut *speaker), SENTENCES.len(), "{}", speaker.name());
    }
}
