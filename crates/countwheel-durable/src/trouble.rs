//! Faults that leave everything else going on.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use countwheel_time::Timestamp;
use parking_lot::Mutex;

use crate::TimerName;
use crate::store::StoreError;

/// Something that a store or an engine cannot read or do, while it goes on with everything else.
///
/// ```
/// use countwheel_durable::{Trouble, TroubleReason};
///
/// let trouble = Trouble::new(TroubleReason::UnreadableRecord, None, "orders/42");
/// assert_eq!(trouble.reason.as_str(), "unreadable_record");
/// assert_eq!(trouble.to_string(), "unreadable_record: orders/42");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Trouble {
    /// What kind of trouble it is.
    pub reason: TroubleReason,
    /// The file, if it is about one.
    pub path: Option<PathBuf>,
    /// What was found, with the offset in the file or the name of the timer.
    pub detail: String,
    /// When it was noticed, by the wall clock; `None` from a store, which has no clock.
    pub first_seen: Option<Timestamp>,
}

impl Trouble {
    /// A trouble that was found just now.
    #[must_use]
    pub fn new(reason: TroubleReason, path: Option<PathBuf>, detail: impl Into<String>) -> Self {
        Self {
            reason,
            path,
            detail: detail.into(),
            first_seen: None,
        }
    }

    /// The trouble behind an error of a read.
    #[must_use]
    pub fn of(reason: TroubleReason, error: &StoreError) -> Self {
        let (path, detail) = error.finding();
        Self::new(reason, path.map(Path::to_owned), detail)
    }

    /// Whether `other` is about the same place for the same reason.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.reason, &self.path, &self.detail) == (other.reason, &other.path, &other.detail)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.reason)?;
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.detail)
    }
}

/// Why a store or an engine is degraded. See [`Trouble`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum TroubleReason {
    /// The record of a timer cannot be read. The timer is left out until it is set anew or
    /// removed.
    UnreadableRecord,
    /// A block of an index cannot be read. The table is rewritten from its records.
    UnreadableIndex,
    /// A run of tables cannot be merged, since a block of it cannot be read.
    RunLeftAlone,
    /// A part of a segment of the log cannot be read.
    UnreadableSegment,
    /// The disk has no room.
    DiskFull,
    /// A scrub found a checksum that does not match.
    Scrub,
    /// The wall clock stands before what an earlier process committed.
    ClockBehindCommits,
    /// A database lost commits that it had acknowledged.
    TailLost,
    /// Somebody keeps an old snapshot of the database open, so that it gives no room back.
    OldSnapshot,
    /// The clock of this machine and that of the database differ.
    ClockOffset,
    /// The certificate that a node shows to others was changed and cannot be used.
    PeerCertificate,
    /// A node that lives cannot be reached by this one.
    PeersUnreachable,
    /// The certificate that callers are shown was changed and cannot be used, or has ended.
    TlsCertificate,
}

impl TroubleReason {
    /// Every reason.
    pub const ALL: [Self; 13] = [
        Self::UnreadableRecord,
        Self::UnreadableIndex,
        Self::RunLeftAlone,
        Self::UnreadableSegment,
        Self::DiskFull,
        Self::Scrub,
        Self::ClockBehindCommits,
        Self::TailLost,
        Self::OldSnapshot,
        Self::ClockOffset,
        Self::PeerCertificate,
        Self::PeersUnreachable,
        Self::TlsCertificate,
    ];

    /// The reason as a metric's label has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnreadableRecord => "unreadable_record",
            Self::UnreadableIndex => "unreadable_index",
            Self::RunLeftAlone => "run_left_alone",
            Self::UnreadableSegment => "unreadable_segment",
            Self::DiskFull => "disk_full",
            Self::Scrub => "scrub",
            Self::ClockBehindCommits => "clock_behind_commits",
            Self::TailLost => "tail_lost",
            Self::OldSnapshot => "old_snapshot",
            Self::ClockOffset => "clock_offset",
            Self::PeerCertificate => "peer_certificate",
            Self::PeersUnreachable => "peers_unreachable",
            Self::TlsCertificate => "tls_certificate",
        }
    }
}

impl fmt::Display for TroubleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Troubles that were noted since an opening: each place once, and a bounded number of places.
///
/// ```
/// use countwheel_durable::{Trouble, TroubleReason, Troubles};
///
/// let troubles = Troubles::default();
/// let trouble = || Trouble::new(TroubleReason::Scrub, None, "at offset 8");
/// assert!(troubles.note(trouble()) && !troubles.note(trouble()));
/// assert_eq!((troubles.list(), troubles.count()), (vec![trouble()], 1));
/// assert!(troubles.has(TroubleReason::Scrub));
/// troubles.clear(TroubleReason::Scrub);
/// assert!(troubles.list().is_empty());
///
/// let file = "tables/table-0000000000000001";
/// let index = TroubleReason::UnreadableIndex;
/// troubles.note(Trouble::new(index, Some(file.into()), "at offset 8"));
/// troubles.clear_file(file.as_ref());
/// assert!(troubles.list().is_empty());
/// ```
#[derive(Debug, Default)]
pub struct Troubles {
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    listed: Vec<Trouble>,
    /// Reasons of troubles beyond those that are listed.
    unlisted: HashSet<TroubleReason>,
    count: u64,
}

impl Troubles {
    /// So many troubles are listed; the others are counted.
    pub const LISTED_MAX: usize = 64;

    /// Notes a trouble. Says whether it is new: false for one that is listed already, and for all
    /// that are too many to be listed, which are counted.
    pub fn note(&self, trouble: Trouble) -> bool {
        let mut noted = self.noted.lock();
        if noted.listed.iter().any(|listed| listed.is_same(&trouble)) {
            return false;
        }
        noted.count += 1;
        let is_listed = noted.listed.len() < Self::LISTED_MAX;
        if is_listed {
            noted.listed.push(trouble);
        } else {
            noted.unlisted.insert(trouble.reason);
        }
        is_listed
    }

    /// The first that were noted and not cleared, at most [`Troubles::LISTED_MAX`].
    #[must_use]
    pub fn list(&self) -> Vec<Trouble> {
        self.noted.lock().listed.clone()
    }

    /// How many were noted so far. One that is not listed counts each time it is noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.noted.lock().count
    }

    /// Whether there is one of this reason.
    #[must_use]
    pub fn has(&self, reason: TroubleReason) -> bool {
        let noted = self.noted.lock();
        let is_listed = noted.listed.iter().any(|listed| listed.reason == reason);
        is_listed || noted.unlisted.contains(&reason)
    }

    /// Forgets those of this reason, once it is gone.
    pub fn clear(&self, reason: TroubleReason) {
        let mut noted = self.noted.lock();
        noted.listed.retain(|listed| listed.reason != reason);
        noted.unlisted.remove(&reason);
    }

    /// Forgets those about this file, once the file is gone.
    pub fn clear_file(&self, file: &Path) {
        let mut noted = self.noted.lock();
        noted
            .listed
            .retain(|listed| listed.path.as_deref() != Some(file));
    }

    /// Forgets those about the record of this name.
    pub fn clear_name(&self, name: &TimerName) {
        let mut noted = self.noted.lock();
        let begin = format!("{name}: ");
        noted.listed.retain(|listed| {
            listed.reason != TroubleReason::UnreadableRecord || !listed.detail.starts_with(&begin)
        });
    }
}

/// What an engine and its store know, with the times at which it was noticed.
#[derive(Debug, Default)]
pub(crate) struct Noticed {
    /// The engine's own.
    pub(crate) own: Troubles,
    of_store: Mutex<Vec<Trouble>>,
}

impl Noticed {
    /// Takes what the store says at `now`: what is new gets the time, what is over is forgotten.
    pub(crate) fn look(&self, says: Vec<Trouble>, now: Timestamp) {
        let mut known = self.of_store.lock();
        if says.is_empty() && known.is_empty() {
            return;
        }
        let stamped = says.into_iter().map(|mut trouble| {
            let before = known.iter().find(|known| known.is_same(&trouble));
            trouble.first_seen = before.map_or(Some(now), |before| before.first_seen);
            trouble
        });
        *known = stamped.collect();
    }

    /// The engine's own, and what the store said last: what both say once.
    pub(crate) fn list(&self) -> Vec<Trouble> {
        let mut list = self.own.list();
        let own = list.len();
        let of_store = self.of_store.lock();
        for trouble in of_store.iter() {
            if !list[..own].iter().any(|listed| listed.is_same(trouble)) {
                list.push(trouble.clone());
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_says_keeps_the_time_at_which_it_was_noticed() {
        let noticed = Noticed::default();
        let index = || Trouble::new(TroubleReason::UnreadableIndex, None, "at offset 8");
        let run = || Trouble::new(TroubleReason::RunLeftAlone, None, "at offset 8");
        noticed.look(vec![index()], Timestamp::from_micros(7));
        noticed.look(vec![index(), run()], Timestamp::from_micros(9));
        let times = || {
            noticed
                .list()
                .iter()
                .map(|t| t.first_seen)
                .collect::<Vec<_>>()
        };
        let at = |micros| Some(Timestamp::from_micros(micros));
        assert_eq!(times(), [at(7), at(9)]);
        noticed.look(vec![run()], Timestamp::from_micros(11));
        assert_eq!(times(), [at(9)]);
    }

    #[test]
    fn troubles_are_bounded_and_each_place_is_listed_once() {
        let troubles = Troubles::default();
        for number in 0..200 {
            let detail = format!("at offset {}", number % 100);
            troubles.note(Trouble::new(TroubleReason::UnreadableRecord, None, detail));
        }
        assert_eq!(troubles.list().len(), Troubles::LISTED_MAX);
        assert_eq!(troubles.count(), 64 + 36 + 36);
        // One more of a kind that is not listed is known by its reason.
        troubles.note(Trouble::new(TroubleReason::Scrub, None, "at offset 1"));
        assert!(troubles.has(TroubleReason::Scrub));
    }
}
