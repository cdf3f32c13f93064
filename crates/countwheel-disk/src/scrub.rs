//! A slow round through all checksums, in pieces.
//!
//! A round begins at a file drawn at random, so that a process with frequent restarts does not
//! always read the same files. The position is in memory, and a restart forgets it. The system may
//! serve the reads from its cache.

use std::path::Path;

use parking_lot::Mutex;

use super::Files;
use crate::{Scrubbed, Trouble, TroubleReason, Troubles};

/// Where in a file a round stands: at which offset, and before which commit of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct At {
    pub(super) offset: u64,
    pub(super) commit: u64,
}

/// What was read of a file.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    /// Where it goes on; `None` at the end of the file, or if the file is not needed any more.
    pub(super) next: Option<At>,
}

/// The round of one part of a store.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    /// Held by one step at a time, while it reads.
    round: Mutex<Round>,
    /// Held only for a moment: whoever asks for troubles must not wait for the disk.
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Round {
    is_begun: bool,
    /// The files that are left, by number; the last comes next.
    files: Vec<u64>,
    /// The file that is being read, and where.
    at: Option<(u64, At)>,
}

#[derive(Debug, Default)]
struct Noted {
    found: Vec<Trouble>,
    /// What the round before found.
    before: Vec<Trouble>,
}

/// What is wrong in the piece that is read.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Trouble>);

impl Found {
    pub(super) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(super) fn note(&mut self, path: &Path, offset: u64, problem: &str) {
        let detail = format!("at offset {offset}: {problem}");
        let path = Some(path.to_owned());
        self.0
            .push(Trouble::new(TroubleReason::Scrub, path, detail));
    }
}

impl Scrub {
    /// Reads on until `budget` bytes were read or the round is over. `list` says which files there
    /// are, `read` reads a piece of one and notes what is wrong.
    pub(super) fn step(
        &self,
        files: &dyn Files,
        budget: u64,
        list: impl FnOnce() -> Vec<u64>,
        mut read: impl FnMut(u64, At, &mut Found) -> Piece,
    ) -> Scrubbed {
        let mut round = self.round.lock();
        if !round.is_begun {
            round.is_begun = true;
            round.files = list();
            // Anything will do, if there is no random number.
            let first = files.nonce().unwrap_or_default();
            let count = round.files.len();
            let first = first % (count.max(1) as u64);
            round
                .files
                .rotate_left(usize::try_from(first).unwrap_or_default());
        }
        let mut scrubbed = Scrubbed::default();
        while scrubbed.bytes < budget {
            let next = round.at.take();
            let next = next.or_else(|| round.files.pop().map(|file| (file, At::default())));
            let Some((file, at)) = next else {
                round.is_begun = false;
                let mut noted = self.noted.lock();
                noted.before = std::mem::take(&mut noted.found);
                scrubbed.ended = true;
                break;
            };
            let mut found = Found::default();
            let Piece { bytes, next } = read(file, at, &mut found);
            scrubbed.bytes += bytes;
            round.at = next.map(|next| (file, next));
            for trouble in found.0 {
                tracing::error!(%trouble, "a scrub found damage");
                let mut noted = self.noted.lock();
                if noted.found.len() < Troubles::LISTED_MAX {
                    noted.found.push(trouble);
                }
            }
        }
        scrubbed.files_left = (round.files.len() + usize::from(round.at.is_some())) as u64;
        scrubbed
    }

    /// What this round and the one before found, in files that are still needed.
    pub(super) fn troubles(&self, is_needed: impl Fn(&Path) -> bool) -> Vec<Trouble> {
        let mut noted = self.noted.lock();
        let Noted { found, before } = &mut *noted;
        for list in [&mut *found, before] {
            list.retain(|one| one.path.as_deref().is_none_or(&is_needed));
        }
        let older = before.iter().filter(|one| !found.contains(one)).cloned();
        let older: Vec<_> = older.collect();
        found.iter().cloned().chain(older).collect()
    }
}
