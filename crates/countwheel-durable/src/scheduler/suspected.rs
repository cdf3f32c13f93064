//! The scheduler's handling of suspects: it holds them back, and starts them in their turn.

use std::mem;
use std::time::Duration;

use super::parking::From;
use super::{Attended, Gate, Scheduler, Share, end_attempt, gate};
use crate::clocks::Now;
use crate::draft::Draft;
use crate::planted::planted;
use crate::store::{Change, DueEntry, Found, Store, StoreError};
use crate::{Attempt, AttemptResult, DueClock, Record, State, TimerEvent};

/// For so long a suspect is put off that there is no room for in memory: so many holds, and no less
/// than this.
const PUT_OFF_HOLDS: u32 = 30;
const PUT_OFF_MIN: Duration = Duration::from_secs(1);

impl Scheduler {
    /// Whether the next attempt of a timer that is due is that of a suspect that may not start.
    pub(super) fn has_to_wait(&self, record: &Record) -> bool {
        let interruptions = record.interruptions;
        self.suspects.is_suspect(interruptions)
            && !self.suspects.may_start(interruptions, self.now.boot)
    }

    /// Makes a suspect wait. The record of its interruption comes first: the process may end while
    /// the suspect waits, and that end is no evidence against it.
    pub(super) fn hold_back(&mut self, mut record: Box<Record>, draft: &mut Draft<'_>) -> Attended {
        let was_delivering = record.state == State::Delivering;
        record.state = State::Pending;
        if let Some(wake) = record.wake() {
            let name = record.name.clone();
            let kind = Some(record.state.kind());
            let entry = DueEntry { wake, name, kind };
            if self
                .suspects
                .wait(record.clock, entry, record.interruptions)
            {
                if was_delivering {
                    draft.write(record);
                }
                return Attended::Settled;
            }
        }
        // As many wait as there is room for. This one comes back later, as a retry would.
        let boot = self.now.boot;
        let to = DueClock::Boot;
        record.first_due = self.now.convert(record.first_due, record.clock, to);
        record.clock = to;
        let hold = self.config.suspect_hold.saturating_mul(PUT_OFF_HOLDS);
        record.due = boot + hold.max(PUT_OFF_MIN);
        record.revision = self.next_revision();
        self.write(draft, record);
        Attended::Settled
    }

    /// Ends the attempts that run, because the process stops by itself: that is no evidence against
    /// any of them. Those that do not fit into one commit stay as they are.
    pub(crate) fn abandon(
        &mut self,
        now: Now,
        store: &dyn Store,
    ) -> Result<(Vec<Change>, Vec<TimerEvent>), StoreError> {
        let draft = Draft::new(
            store,
            self.ownership.lease.shard,
            now.wall,
            (mem::take(&mut self.kept), Found::default()),
            &self.settings,
            self.in_flight.len(),
        );
        let mut draft = draft.tells(self.config.events.is_some());
        for (revision, name) in self.in_flight.iter() {
            if draft.bytes() >= self.config.max_batch_bytes {
                break;
            }
            let current = draft.read(name)?;
            let current =
                current.filter(|r| r.revision == revision && r.state == State::Delivering);
            let Some(mut record) = current.cloned().map(Box::new) else {
                continue;
            };
            let detail = "the service stopped during the attempt".to_owned();
            end_attempt(
                &mut record,
                now.wall,
                AttemptResult::Interrupted,
                detail,
                None,
            );
            record.state = State::Pending;
            // It has been tried, and does not become a suspect by this.
            record.interruptions = if planted!(HandOverCounts) {
                record.interruptions + 1
            } else {
                record.interruptions.max(1)
            };
            draft.write(record);
        }
        let told = draft.take_told();
        Ok((draft.into_changes().0, told))
    }

    /// Starts at most `most` of the suspects that wait, at the rate of what was overdue: all of
    /// them are.
    pub(super) fn start_suspects(
        &mut self,
        most: usize,
        share: &mut Share,
        draft: &mut Draft<'_>,
        starts: &mut Vec<(DueClock, Attempt)>,
    ) -> Result<(), StoreError> {
        self.ahead_of_suspects = 0;
        let mut done = 0;
        while done < most
            && !self.in_flight.is_full()
            && share.has_room(draft, self.points)
            && self.overdue.pause(self.now).is_zero()
        {
            let gate = gate!(self);
            let may = |queue: &_| gate.may(queue);
            let Some((clock, entry)) = self.suspects.take(self.now.boot, may) else {
                break;
            };
            if entry.wake.at > self.now.by(clock) {
                // The wall clock was set back since.
                self.admit(clock, entry);
                continue;
            }
            let since = self.rated_since(&entry.name.queue);
            match self.attend(&entry, since, From::Overdue, draft, starts)? {
                Attended::Started => {
                    let among = self.member.catch_up(true);
                    self.overdue.started(self.now, among);
                }
                Attended::Settled | Attended::Parked => share.left -= 1,
                Attended::Nothing => continue,
            }
            done += 1;
        }
        Ok(())
    }
}
