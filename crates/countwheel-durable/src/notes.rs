//! The notes of the clocks that commits carry, and how an opening goes on from them. See decision
//! 19.

use std::time::Duration;

use countwheel_time::{BootId, Clock, Timestamp};

use crate::clocks::{self, Now, Origin, Steps};
use crate::planted::planted;
use crate::store::ClockNote;
use crate::{Stats, Trouble, TroubleReason};

/// Keeps a note of the clocks that is never far from what they show.
#[derive(Debug)]
pub(crate) struct Notes {
    origin: Origin,
    boot_id: Option<BootId>,
    /// The last durable note of this second time line; `None` before the first.
    noted: Option<ClockNote>,
    /// When a note by itself found no room, by the second time line.
    refused: Option<Timestamp>,
    /// The last note's wall time and line, if the wall clock stood before that note at the opening:
    /// the wall clock should have shown at least as much when the line stood there.
    presumed: Option<(Timestamp, Timestamp)>,
}

impl Notes {
    /// A commit has a note if the last one is this old.
    const WITH_COMMIT: Duration = Duration::from_secs(1);
    /// A note is committed by itself if the last one is this old and a timer waits: a machine that
    /// starts anew with a wrong clock goes on from it.
    const ALONE: Duration = Duration::from_secs(60);

    /// Carries the second time line on from the last note of the process before:
    ///
    /// - in the same boot by the boot clock, whatever was done to the wall clock;
    /// - in another boot by the wall clock, which has counted while the machine was off;
    /// - in another boot with a wall clock before the note from the note: for how long the machine was
    ///   off is unknown;
    /// - without a note from the wall clock.
    pub(crate) fn open(clock: &dyn Clock, last: Option<ClockNote>) -> Self {
        let (wall, boot) = clocks::read(clock);
        let last = last.filter(|_| !planted!(LineStartsAtWall));
        let mut notes = Self {
            origin: Origin { line: wall, boot },
            boot_id: clock.boot_id(),
            noted: None,
            refused: None,
            presumed: None,
        };
        let Some(last) = last else {
            return notes;
        };
        let same_boot = notes.boot_id.is_some() && last.boot_id == notes.boot_id;
        if same_boot && boot >= last.boot {
            notes.noted = Some(last);
            (notes.origin.line, notes.origin.boot) = (last.line, last.boot);
        } else {
            let off = wall.saturating_since(last.wall);
            notes.origin.line = last.line + off;
            let seconds = off.as_secs();
            tracing::info!(seconds, "another boot: delays go on by the wall clock");
        }
        let behind = last.wall.saturating_since(wall);
        if behind > Steps::LEAST {
            notes.presumed = Some((last.wall, last.line));
            let seconds = behind.as_secs();
            tracing::warn!(
                seconds,
                "the wall clock stands before the last commit and may be wrong: instants wait for \
                 it, delays go on from where they stood"
            );
        }
        notes
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// The note for a commit at `now`; `None` if the last one is good enough. `has_changes` says
    /// whether there is a commit without it, and `waits` whether a timer waits and there is room.
    pub(crate) fn due(
        &self,
        now: Now,
        has_changes: bool,
        waits: impl Fn() -> bool,
    ) -> Option<ClockNote> {
        let is_due = match &self.noted {
            None => has_changes || waits(),
            Some(noted) => {
                let skew_now = skew(self.wall(now), now.boot);
                let stepped =
                    skew(noted.wall, noted.line).abs_diff(skew_now) > Steps::LEAST.as_micros();
                if stepped && planted!(StepUnnoted) {
                    return None;
                }
                let age = now.boot.saturating_since(noted.line);
                stepped || has_changes && age >= Self::WITH_COMMIT || age >= Self::ALONE && waits()
            }
        };
        let too_soon = |at| now.boot.saturating_since(at) < Self::WITH_COMMIT;
        if !is_due || !has_changes && self.refused.is_some_and(too_soon) {
            return None;
        }
        Some(self.note(now))
    }

    /// Where the clocks stand.
    pub(crate) fn note(&self, now: Now) -> ClockNote {
        ClockNote {
            wall: self.wall(now),
            boot_id: self.boot_id,
            boot: self.origin.boot + now.boot.saturating_since(self.origin.line),
            line: now.boot,
        }
    }

    /// The wall time of the last commit before the opening, if the wall clock stood before it.
    fn committed_before(&self) -> Option<Timestamp> {
        self.presumed.map(|(wall, _)| wall)
    }

    /// The wall time for a note. One that is known to be behind is no time to count from: the next
    /// boot, with the clock right, would take the difference for time that has passed.
    fn wall(&self, now: Now) -> Timestamp {
        let presumed = self
            .presumed
            .map(|(wall, line)| wall + now.boot.saturating_since(line));
        presumed.map_or(now.wall, |presumed| now.wall.max(presumed))
    }

    /// The note is durable.
    pub(crate) fn committed(&mut self, note: ClockNote) {
        (self.noted, self.refused) = (Some(note), None);
    }

    /// There was no room for a note by itself.
    pub(crate) fn refused(&mut self, now: Now) {
        self.refused = Some(now.boot);
    }

    /// What there is to say of a wall clock that shows `wall`.
    pub(crate) fn trouble(&self, wall: Timestamp) -> Option<Trouble> {
        self.committed_before().filter(|before| wall < *before)?;
        let detail = "the wall clock stands before the last commit of an earlier process";
        let reason = TroubleReason::ClockBehindCommits;
        Some(Trouble::new(reason, None, detail))
    }

    pub(crate) fn fill(&self, now: Now, stats: &mut Stats) {
        stats.committed_before = self.committed_before();
        let skew = skew(now.wall, now.boot);
        let most = if skew > 0 { i64::MAX } else { i64::MIN };
        stats.line_skew_micros = i64::try_from(skew).unwrap_or(most);
    }
}

/// By how many microseconds the wall clock is before the second time line.
fn skew(wall: Timestamp, line: Timestamp) -> i128 {
    i128::from(wall.as_micros()) - i128::from(line.as_micros())
}
