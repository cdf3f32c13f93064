//! Recurring timers: schedules as data, and the order of runs.
//!
//! This module reads neither a clock nor a store: times go in and times come out.

mod cron;
mod position;
mod schedule;
mod zone;

use std::num::NonZeroU32;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::DueClock;
use crate::planted::planted;

pub use cron::{CronError, CronExpression};
pub use position::Recurring;
pub(crate) use position::{Ended, Overdue};
pub use zone::{UnknownZone, Zone};

/// When a timer comes again, how often, and what becomes of a run that comes due while the one
/// before is not at its end.
///
/// A **run** is one delivery with all its retries. Its **nominal time** is the point of the
/// schedule that it belongs to.
///
/// ```
/// use std::time::Duration;
/// use countwheel_time::Timestamp;
/// use countwheel_durable::{CronExpression, Recurrence, Schedule, Zone};
///
/// let nine = Schedule::Cron {
///     expression: CronExpression::new("0 9 * * MON-FRI")?,
///     zone: Zone::new("Europe/Berlin")?,
/// };
/// let recurrence = Recurrence {
///     jitter: Duration::from_secs(60),
///     ..Recurrence::new(nine)
/// };
/// recurrence.validate()?;
/// // Friday, 2026-03-27 12:00 UTC. The clocks go forward on Sunday.
/// let from = Timestamp::from_micros(1_774_612_800_000_000);
/// let monday = recurrence.nominal_times(from).next().expect("it has no end");
/// assert_eq!(monday.as_micros(), 1_774_854_000_000_000); // 07:00 UTC
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recurrence {
    /// When it comes again.
    pub schedule: Schedule,
    /// How many runs are made in all. Without it there is no such end.
    pub repeats: Option<NonZeroU32>,
    /// No run has a nominal time after this one.
    pub until: Option<Timestamp>,
    /// Each run is due at a time drawn evenly from its nominal time to this much later. The
    /// draw depends on the timer's id and the nominal time only, so it is the same after a
    /// restart, and the nominal times stay where they are. At most a day, and at most the
    /// interval of a fixed rate.
    pub jitter: Duration,
    /// What becomes of a run that comes due while the one before is not at its end.
    pub overlap: Overlap,
}

/// When a timer comes again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Schedule {
    /// At the points of a grid.
    FixedRate {
        /// From one point to the next: 100 ms to 36,525 days.
        every: Duration,
        /// A point of the grid, which then stands on the wall clock. Without one the first run
        /// is where the grid begins, and steps of the wall clock do not touch it.
        anchor: Option<Timestamp>,
    },
    /// This long after the end of the run before, its retries included.
    FixedDelay {
        /// From the end of a run to the next: 100 ms to 36,525 days.
        every: Duration,
    },
    /// At the times that a cron expression names in a zone.
    Cron {
        /// The expression.
        expression: CronExpression,
        /// The zone.
        zone: Zone,
    },
}

/// What becomes of a run that comes due while the one before is not at its end, its retries
/// included.
///
/// ```
/// use countwheel_durable::Overlap;
///
/// assert_eq!(Overlap::default(), Overlap::Skip);
/// assert_eq!(Overlap::from_name("queue"), Some(Overlap::Queue));
/// assert_eq!(Overlap::Queue.as_str(), "queue");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Overlap {
    /// It is not made.
    #[default]
    Skip,
    /// The latest one is made as soon as the one before ends; those before it are not.
    Queue,
}

impl Overlap {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Skip, Self::Queue];

    /// The name used in the API and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
        }
    }

    /// The policy of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == name)
    }
}

/// What becomes of a timer whose deadline passed before its first attempt could be made, as
/// after a time in which no process ran. A retry is never missed.
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::Missed;
///
/// assert_eq!(Missed::default(), Missed::Fire);
/// let fresh = Missed::SkipIfOlderThan(Duration::from_secs(300));
/// assert!(fresh != Missed::Collapse);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Missed {
    /// It is delivered, however late. Of a recurring timer every missed run is made, in order.
    #[default]
    Fire,
    /// It is delivered unless it is more than this overdue. If it is, a timer for one time is
    /// dead with [`DeadReason::Missed`](crate::DeadReason::Missed), and a recurring one goes on
    /// with its first run that is not. Overdue counts from the end of the jitter's window.
    SkipIfOlderThan(Duration),
    /// Of all the missed runs of a recurring timer the latest is made. For a timer that is due
    /// one time the same as [`Missed::Fire`].
    Collapse,
}

/// Why a recurrence, or what is to become of missed runs, is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecurrenceError {
    /// The interval is too short or too long.
    #[error("an interval is from 100 ms to 36525 days, not {found:?}")]
    Every {
        /// The interval.
        found: Duration,
    },
    /// The jitter's window is too long.
    #[error("a jitter is at most a day and at most the interval of a fixed rate, not {found:?}")]
    Jitter {
        /// The window.
        found: Duration,
    },
    /// No run would ever be made.
    #[error("the schedule has no run")]
    NoRun,
    /// There is a run, but none until the end that was asked for.
    #[error("the schedule has no run before its end")]
    NoRunInTime,
    /// How old a missed run may be is too long.
    #[error("a missed run is at most 36525 days old, not {found:?}")]
    Missed {
        /// The age.
        found: Duration,
    },
}

impl Missed {
    const AGE_MAX: Duration = crate::Due::MAX_AHEAD;

    /// Checks the bound of the age: at most 36,525 days.
    ///
    /// # Errors
    /// [`RecurrenceError::Missed`].
    pub fn validate(self) -> Result<(), RecurrenceError> {
        match self {
            Self::SkipIfOlderThan(found) if found > Self::AGE_MAX => {
                Err(RecurrenceError::Missed { found })
            }
            _ => Ok(()),
        }
    }
}

impl Recurrence {
    /// The shortest interval.
    pub const EVERY_MIN: Duration = Duration::from_millis(100);
    /// The longest interval.
    pub const EVERY_MAX: Duration = crate::Due::MAX_AHEAD;
    /// The longest window of a jitter.
    pub const JITTER_MAX: Duration = Duration::from_secs(86_400);

    /// This schedule without an end and without jitter, and with [`Overlap::Skip`].
    #[must_use]
    pub const fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            repeats: None,
            until: None,
            jitter: Duration::ZERO,
            overlap: Overlap::Skip,
        }
    }

    /// Checks every bound that the fields name.
    ///
    /// # Errors
    /// [`RecurrenceError`] names the first one broken.
    pub fn validate(&self) -> Result<(), RecurrenceError> {
        let found = self.jitter;
        let longest = match self.schedule {
            Schedule::FixedRate { every, .. } => every.min(Self::JITTER_MAX),
            _ => Self::JITTER_MAX,
        };
        match self.schedule {
            Schedule::FixedRate { every, .. } | Schedule::FixedDelay { every }
                if !(Self::EVERY_MIN..=Self::EVERY_MAX).contains(&every) =>
            {
                Err(RecurrenceError::Every { found: every })
            }
            _ if found > longest => Err(RecurrenceError::Jitter { found }),
            _ => Ok(()),
        }
    }

    /// By which clock its runs are due: what stands on a calendar goes by the wall clock, what
    /// is a distance by the one that goes through its steps.
    #[must_use]
    pub fn clock(&self) -> DueClock {
        match self.schedule {
            Schedule::FixedRate {
                anchor: Some(_), ..
            }
            | Schedule::Cron { .. } => DueClock::Wall,
            Schedule::FixedRate { anchor: None, .. } | Schedule::FixedDelay { .. } => {
                DueClock::Boot
            }
        }
    }

    /// The nominal times of its runs from `from` on, that time included; of a fixed delay those
    /// of runs that take no time.
    pub fn nominal_times(&self, from: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let first = self.schedule.first(from);
        let origin = self.schedule.origin(first.unwrap_or(from));
        let repeats = self.repeats.map_or(usize::MAX, |repeats| {
            usize::try_from(repeats.get()).unwrap_or(usize::MAX)
        });
        std::iter::successors(first, move |&before| self.schedule.next(origin, before))
            .take_while(|&nominal| !self.is_over(nominal))
            .take(repeats)
    }

    /// Whether no run may have this nominal time.
    fn is_over(&self, nominal: Timestamp) -> bool {
        let early = Duration::from_micros(u64::from(planted!(EndExcluded)));
        self.until.is_some_and(|until| nominal + early > until)
    }
}

#[cfg(test)]
mod tests;
