//! Machines that reboot with a wall clock that may be wrong. The module says where the time line of
//! delays has to go on, as a reader of the documents would.

use std::time::Duration;

use countwheel_durable::store::ClockNote;
use countwheel_time::{BootId, Clock, Instant, ManualClock, Timestamp};

use super::crashing::CrashingStore;
use super::{START, World};
use crate::model::Now;
use crate::random::Random;

const DAY: Duration = Duration::from_secs(86_400);
/// A wall clock that was set by no more is not looked at.
const STEP_MICROS: u64 = 250_000;
/// A commit has a note that is no older.
const NOTE_AGE: Duration = Duration::from_secs(1);

/// The starts of the machine.
pub(super) struct Boots {
    random: Random,
    number: u128,
    /// The wall clock was wrong at the last one, and nobody has set it right.
    wrong: bool,
}

/// What is known of the notes of the clocks in the store.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Noted {
    /// The last that was acknowledged.
    pub(super) acknowledged: Option<ClockNote>,
    /// One behind it that nobody knows the fate of.
    pub(super) unsure: Option<ClockNote>,
    /// Commits of this process that were acknowledged.
    pub(super) commits: u64,
}

impl Noted {
    pub(super) fn commit(&mut self, note: Option<ClockNote>, is_acknowledged: Option<bool>) {
        match is_acknowledged {
            Some(true) => {
                self.commits += 1;
                self.acknowledged = note.or(self.acknowledged);
            }
            Some(false) => {} // refused as a whole
            None => self.unsure = note,
        }
    }
}

impl Boots {
    pub(super) fn new(seed: u64, clock: &ManualClock) -> Self {
        clock.reboot(BootId::from_u128(1));
        Self {
            random: Random::new(seed, "boots"),
            number: 1,
            wrong: false,
        }
    }

    /// One in so many ends of the process is one of the machine.
    pub(super) fn draw(&mut self) -> u64 {
        *self.random.pick(&[0, 0, 2])
    }
}

impl World {
    /// The machine starts anew, if that is drawn. What its wall clock shows is drawn as well.
    pub(super) fn reboot(&mut self) {
        if !self.boots.random.one_in(self.plan.boots) {
            return;
        }
        let boots = &mut self.boots;
        boots.number += 1;
        self.clock.reboot(BootId::from_u128(boots.number));
        self.room_since = Instant::ZERO;
        let hour = Duration::from_micros(boots.random.below(3_600_000_000));
        let wall = self.clock.timestamp();
        // The model counts missed runs one by one: of 56 years there are too many.
        let is_far = self.plan.recurring == 0;
        let shown = match boots.random.below(8) {
            0 | 1 if is_far => Timestamp::EPOCH + hour,
            2 if is_far => wall.saturating_sub(DAY),
            3 if is_far => wall + DAY,
            0..3 => wall.saturating_sub(hour),
            3 | 4 => wall + hour,
            _ => wall,
        };
        boots.wrong |= shown != wall;
        self.clock.set_timestamp(shown);
        self.latest = self.latest.max(shown);
        self.log
            .note(format!("the machine starts anew at {shown:?}"));
        self.report.boots += 1;
    }

    /// Somebody sets a wrong clock right, at a drawn moment.
    pub(super) fn set_clock_right(&mut self, at_once: bool) {
        if !self.boots.wrong || !at_once && !self.boots.random.one_in(20) {
            return;
        }
        self.boots.wrong = false;
        let to = START + self.clock.now().saturating_since(Instant::ZERO);
        self.log.note(format!("the clock is set right, to {to:?}"));
        self.clock.set_timestamp(to);
        self.latest = self.latest.max(to);
        self.stepped_since_opened = true;
    }

    /// Where the time line of delays has to go on in the process that has begun, by what the store
    /// says of the one before.
    pub(super) fn carry_on(&mut self, before: &CrashingStore) -> Result<(), String> {
        let said = before.noted();
        let found = self.store.acquired();
        let is_known = found == said.acknowledged || said.unsure.is_some() && found == said.unsure;
        if !is_known {
            return Err(format!("the clocks were {found:?}, but {said:?}"));
        }
        let (wall, boot) = (self.clock.timestamp(), self.clock.boot());
        let in_old_line = self.now();
        let Some(note) = found else {
            self.boot_origin = (wall, boot);
            self.presumed = None;
            return Ok(());
        };
        let same_boot = note.boot_id == self.clock.boot_id() && note.boot <= boot;
        self.boot_origin = if same_boot {
            (note.line, note.boot)
        } else {
            (note.line + wall.saturating_since(note.wall), boot)
        };
        let is_behind = note.wall.saturating_since(wall) > Duration::from_micros(STEP_MICROS);
        self.presumed = is_behind.then_some((note.wall, note.line));
        // If it was the line of the process before, no process and no clock has interrupted it.
        if same_boot && said.acknowledged == found && said.commits > 0 {
            let now = self.now();
            if now != in_old_line {
                return Err(format!(
                    "the line was at {in_old_line:?}, and is at {now:?}"
                ));
            }
        }
        let behind = self.engine.stats().behind_commits(wall);
        let expected = note.wall.saturating_since(wall);
        let small = Duration::from_micros(STEP_MICROS);
        if behind != expected && expected > small {
            return Err(format!(
                "{expected:?} before the commits, said to be {behind:?}"
            ));
        }
        self.report.behind += u64::from(behind > Duration::ZERO);
        Ok(())
    }

    /// After a turn the store knows the clocks, as far as a process that ends here needs it.
    pub(super) fn check_note(&self, now: Now, commits_before: u64) -> Result<(), String> {
        let Noted {
            acknowledged,
            commits,
            ..
        } = self.store.noted();
        let on_line = |note: &ClockNote| note.boot_id == self.clock.boot_id();
        let Some(note) = acknowledged.filter(on_line) else {
            return match commits {
                0 => Ok(()),
                _ => Err(format!("{commits} commits, and no note of the clocks")),
            };
        };
        let skew = |wall: Timestamp, line: Timestamp| {
            i128::from(wall.as_micros()) - i128::from(line.as_micros())
        };
        let presumed = self
            .presumed
            .map(|(wall, line)| wall + now.boot.saturating_since(line));
        let wall = presumed.map_or(now.wall, |presumed| now.wall.max(presumed));
        let by = skew(note.wall, note.line).abs_diff(skew(wall, now.boot));
        if by > u128::from(STEP_MICROS) {
            return Err(format!("{now:?} is not in the last note, {note:?}"));
        }
        let age = now.boot.saturating_since(note.line);
        if commits > commits_before && age >= NOTE_AGE {
            return Err(format!("a commit at {now:?}, the last note is {note:?}"));
        }
        Ok(())
    }
}
