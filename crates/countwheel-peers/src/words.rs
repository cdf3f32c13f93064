//! What one node says to another that is about no shard, and what that answers: bytes, which only those know who say
//! them. A word may be lost, and is never said twice.

use std::collections::BTreeMap;

use tokio::sync::oneshot::Sender;

use crate::frame;

/// What comes of a [word](crate::Forwarder::say).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// The answer.
    Answered(Vec<u8>),
    /// The other node's program is of a version that takes no words, or does not understand this one.
    NotUnderstood,
}

/// The first version of the protocol with words.
pub(crate) const SINCE: u16 = 2;

/// What is to be said to one peer. A word stays until its answer comes or the connection breaks.
#[derive(Default)]
pub(crate) struct Words(BTreeMap<u64, Saying>);

struct Saying {
    bytes: Vec<u8>,
    is_sent: bool,
    tell: Sender<Word>,
}

impl Words {
    pub(crate) fn say(&mut self, id: u64, bytes: Vec<u8>, tell: Sender<Word>) {
        self.forget();
        let is_sent = false;
        self.0.insert(
            id,
            Saying {
                bytes,
                is_sent,
                tell,
            },
        );
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.0.values().any(|saying| !saying.is_sent)
    }

    /// The frame of a word that is said now, to a peer that speaks this version.
    pub(crate) fn next(&mut self, spoken: u16) -> Option<Vec<u8>> {
        self.forget();
        if spoken < SINCE {
            for saying in std::mem::take(&mut self.0).into_values() {
                // Whoever said it may have gone.
                saying.tell.send(Word::NotUnderstood).unwrap_or_default();
            }
            return None;
        }
        let mut waiting = self.0.iter_mut().filter(|(_, saying)| !saying.is_sent);
        let (&id, saying) = waiting.next()?;
        saying.is_sent = true;
        Some(frame::word(id, &std::mem::take(&mut saying.bytes)))
    }

    /// Says whether anybody waits for it still.
    pub(crate) fn answered(&mut self, id: u64, answer: Option<&[u8]>) -> bool {
        let Some(saying) = self.0.remove(&id) else {
            return false;
        };
        let answer = answer.map(<[u8]>::to_vec);
        let word = answer.map_or(Word::NotUnderstood, Word::Answered);
        saying.tell.send(word).is_ok()
    }

    /// What was sent has no answer any more.
    pub(crate) fn broken(&mut self) {
        self.0.retain(|_, saying| !saying.is_sent);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Nobody waits for these any more.
    fn forget(&mut self) {
        self.0.retain(|_, saying| !saying.tell.is_closed());
    }
}
