//! The scheduler's handling of unreadable records: it puts them aside, and everything else goes on.
//!
//! The scheduler notes the name of such a record, up to a bounded number of names, and leaves the
//! record out. It tries the record again after a while, since some reads fail only once, and at the
//! next start. A set or a removal of the name ends the trouble.

use std::time::Duration;

use countwheel_time::Timestamp;

use super::Scheduler;
use crate::clocks::Now;
use crate::planted::planted;
use crate::store::{Store, StoreError};
use crate::{DueClock, TimerError, TimerName, Trouble, TroubleReason};

/// After so long, what was put aside is tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(600);

/// While a part of the order of wakes is passed over, the store is asked so often whether it is
/// whole again.
const GAP_LOOK: Duration = Duration::from_secs(1);

/// What a scheduler knows of what it cannot read.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// When something that was put aside is tried again, by the boot clock.
    again_at: Option<Timestamp>,
    /// Whether the store passes over a part of the order of wakes, and how often it stopped to.
    has_gap: bool,
    closed: u64,
}

impl Aside {
    /// Whether something cannot be read that may be due.
    pub(super) fn has_any(&self) -> bool {
        self.again_at.is_some() || self.has_gap
    }

    /// Notes what was passed over just now, or is not any more: a turn has to look again.
    pub(super) fn look(&mut self, store: &dyn Store) {
        let gaps = store.gaps();
        self.has_gap = gaps.dues || gaps.closed != self.closed;
    }

    /// How long until something has to be read again; `None` if nothing is unreadable.
    pub(super) fn wait(&self, now: Now) -> Option<Duration> {
        let again = self.again_at.map(|at| at.saturating_since(now.boot));
        let gap = self.has_gap.then_some(GAP_LOOK);
        again.into_iter().chain(gap).min()
    }
}

impl Scheduler {
    /// Reads everything anew if something can be read by now that could not.
    pub(super) fn look_aside(&mut self, now: Now, store: &dyn Store) {
        let gaps = store.gaps();
        let is_closed = gaps.closed != self.aside.closed && !planted!(GapNotReadAgain);
        self.aside.closed = gaps.closed;
        let again = self.aside.again_at.is_some_and(|at| at <= now.boot);
        if is_closed || again {
            self.aside.again_at = None;
            self.begin_anew(now);
        }
    }

    /// Throws away what is known of the store, to read it again: as after an opening, but for what
    /// is in flight.
    pub(super) fn begin_anew(&mut self, now: Now) {
        self.parked.clear();
        for clock in DueClock::ALL {
            self.window.restart(clock, now.by(clock), Timestamp::MAX);
            self.overdue.restart(clock, now);
        }
    }

    /// Leaves out a record that is due and cannot be read.
    pub(super) fn put_aside(&mut self, name: &TimerName, error: &StoreError) {
        let at = self.now.boot + TRIED_AGAIN;
        self.aside.again_at.get_or_insert(at);
        self.note_unreadable(name, error);
    }

    /// Counts a record that cannot be read, and says so once.
    pub(super) fn note_unreadable(&mut self, name: &TimerName, error: &StoreError) {
        self.stats.unreadable += 1;
        let mut trouble = Trouble::of(TroubleReason::UnreadableRecord, error);
        trouble.detail = format!("{name}: {}", trouble.detail);
        trouble.first_seen = Some(self.now.wall);
        if self.noticed.own.note(trouble) {
            tracing::error!(%name, %error, "a timer cannot be read; everything else goes on");
        }
    }

    /// Notes what a request could not read.
    pub(super) fn note_refusal(&mut self, refusal: Option<&TimerError>) {
        if let Some(TimerError::Unreadable { name, source }) = refusal {
            self.note_unreadable(name, source);
        }
    }

    /// The name has another record from now on, or none, or its record was read.
    pub(super) fn is_mended(&self, name: &TimerName) {
        // Mostly there is nothing.
        if self.noticed.own.has(TroubleReason::UnreadableRecord) {
            self.noticed.own.clear_name(name);
        }
    }
}
