//! The points of a schedule.

use std::time::Duration;

use countwheel_time::Timestamp;

use super::{CronExpression, Schedule, Zone};

/// How many points between two are counted one by one.
const COUNT_MAX: u64 = 10_000;

impl Schedule {
    /// The first point at `from` or after it.
    pub(super) fn first(&self, from: Timestamp) -> Option<Timestamp> {
        match self {
            Self::FixedRate { anchor: None, .. } | Self::FixedDelay { .. } => Some(from),
            Self::FixedRate {
                every,
                anchor: Some(anchor),
            } => Some(match before(from) {
                Some(before) => on_grid(micros(*every), *anchor, before)?,
                None => *anchor,
            }),
            Self::Cron { .. } => self.at_or_after(from, from),
        }
    }

    /// The first point of its grid at `from` or after it.
    pub(super) fn at_or_after(&self, origin: Timestamp, from: Timestamp) -> Option<Timestamp> {
        match (self, before(from)) {
            (_, Some(before)) => self.next(origin, before),
            // The very first microsecond there is has none before it.
            (Self::Cron { expression, zone }, None) => {
                let before = jiff::Timestamp::from_second(-1).ok()?;
                of_calendar(expression, zone, before)
            }
            (_, None) if origin == from => Some(from),
            (_, None) => self.next(origin, from),
        }
    }

    /// Where the grid of a fixed rate begins, if its first run is at `first`.
    pub(super) fn origin(&self, first: Timestamp) -> Timestamp {
        match self {
            Self::FixedRate { anchor, .. } => anchor.unwrap_or(first),
            _ => first,
        }
    }

    /// The first point after `after`. Of a fixed delay: after a run that ended then.
    pub(super) fn next(&self, origin: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::FixedRate { every, .. } => on_grid(micros(*every), origin, after),
            Self::FixedDelay { every } => after.as_micros().checked_add(micros(*every)).map(at),
            Self::Cron { expression, zone } => {
                let micros = i64::try_from(after.as_micros()).ok()?;
                let after = jiff::Timestamp::from_microsecond(micros).ok()?;
                of_calendar(expression, zone, after)
            }
        }
    }

    /// The last point at `end` or before it; `from`, which is one, if none comes after that.
    /// O(log (end - from)) steps.
    pub(super) fn last(&self, origin: Timestamp, from: Timestamp, end: Timestamp) -> Timestamp {
        let comes_by_end =
            |after: u64| self.next(origin, at(after)).is_some_and(|next| next <= end);
        // The points by the end are those after which none comes by the end, but for the last.
        let (mut low, mut high) = (from.as_micros(), end.as_micros().max(from.as_micros()));
        while low < high {
            let middle = low + (high - low) / 2;
            if comes_by_end(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        at(low)
    }

    /// Whether [`count`](Self::count) looks each point up.
    pub(crate) fn is_counted_by_point(&self) -> bool {
        matches!(self, Self::Cron { .. })
    }

    /// How many points lie after `after` and before `end`; of those that a calendar names, at
    /// most 10,000.
    pub(super) fn count(&self, origin: Timestamp, after: Timestamp, end: Timestamp) -> u64 {
        match self {
            Self::FixedRate { every, .. } => {
                let Some(first) = self.next(origin, after).filter(|&first| first < end) else {
                    return 0;
                };
                (end.as_micros() - 1 - first.as_micros()) / micros(*every) + 1
            }
            Self::FixedDelay { .. } => 0,
            Self::Cron { .. } => {
                let mut count = 0;
                let mut point = self.next(origin, after);
                while count < COUNT_MAX
                    && let Some(this) = point.filter(|&this| this < end)
                {
                    count += 1;
                    point = self.next(origin, this);
                }
                count
            }
        }
    }
}

/// The first point after `after` of the grid through `origin`; none is before the origin.
fn on_grid(every: u64, origin: Timestamp, after: Timestamp) -> Option<Timestamp> {
    if after < origin {
        return Some(origin);
    }
    let passed = after.as_micros() - origin.as_micros();
    let steps = (passed / every).checked_add(1)?;
    let offset = steps.checked_mul(every)?;
    origin.as_micros().checked_add(offset).map(at)
}

/// The first point after `after` of a calendar.
fn of_calendar(
    expression: &CronExpression,
    zone: &Zone,
    after: jiff::Timestamp,
) -> Option<Timestamp> {
    let next = expression.fields().next_after(zone.rules(), after)?;
    u64::try_from(next.as_microsecond()).ok().map(at)
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn before(time: Timestamp) -> Option<Timestamp> {
    time.as_micros().checked_sub(1).map(at)
}

/// Whole microseconds, a part of one counted as one, and never none.
fn micros(every: Duration) -> u64 {
    let micros = every.as_nanos().div_ceil(1_000);
    u64::try_from(micros).unwrap_or(u64::MAX).max(1)
}
