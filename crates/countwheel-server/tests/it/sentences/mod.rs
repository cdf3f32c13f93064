//! One vocabulary: what the verbs do, as sentences that hold of everything that has them.
//!
//! `words.rs` has the words, `table.rs` the sentences, which a proof hears as well, `speakers.rs` those that are asked: keyed timers in a process, durable
//! timers, the HTTP client and the commands. A store or a protocol that comes later is one more speaker.

mod receiver;
mod speakers;
mod table;
mod words;

use std::time::Duration;

use countwheel_time::Patience;

use self::speakers::{Durable, Keyed, Speaker, over_http};
pub(crate) use self::speakers::{client_of, commands_of};
pub(crate) use self::table::SENTENCES;
pub(crate) use self::words::{Delivery, Do, Mode, Revision, Say, Sentence};
use crate::support::PATIENCE;

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
