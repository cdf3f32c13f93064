//! What a word from one node to another is about: its first byte. Words about limits have none, and begin with less.

use serde::Serialize;

/// A word that begins with a byte of its own. Two with the same byte do not compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum About {
    Leases = 64,
    Events = 65,
    Figures = 66,
}

impl About {
    /// The word that says this; `None` if that cannot be written.
    pub(crate) fn word(self, said: &impl Serialize) -> Option<Vec<u8>> {
        let mut word = vec![self as u8];
        word.extend(postcard::to_allocvec(said).ok()?);
        Some(word)
    }

    /// What a word says, if it is about this.
    pub(crate) fn said(self, word: &[u8]) -> Option<&[u8]> {
        word.strip_prefix(&[self as u8])
    }
}
