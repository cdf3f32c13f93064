//! The local times that an expression names, and the instants at which a zone has them.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};

/// How far ahead a date is looked for. No date that there is at all is further away: the rarest
/// is a 29th of February on a given day of the week, at most 40 years after the one before.
const YEARS: i16 = 100;
/// For so long transitions are followed that leave out the time that was found: an expression can
/// name nothing but times that a zone's clock never shows.
const LEFT_OUT_SECONDS: i64 = 100 * 366 * 86_400;

/// Which values each field has: bit n stands for the value n.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::recurrence) struct Fields {
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) month_days: MonthDays,
    pub(super) months: u64,
    pub(super) week_days: WeekDays,
    /// The minute or the hour begins with a star.
    pub(super) follows_the_clock: bool,
}

/// The day of the month.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MonthDays {
    /// The field begins with a star or a question mark.
    pub(super) star: bool,
    pub(super) days: u64,
    /// Bit n: the day n days before the last.
    pub(super) from_last: u64,
    /// Bit n: the weekday nearest to day n.
    pub(super) nearest: u64,
    pub(super) last_weekday: bool,
}

/// The day of the week, from Sunday.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct WeekDays {
    pub(super) star: bool,
    pub(super) days: u64,
    /// The last one of the month.
    pub(super) last: u64,
    /// The first to the fifth one of the month.
    pub(super) nth: [u64; 5],
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value)
        .is_ok_and(|value| bits.checked_shr(value).is_some_and(|bits| bits & 1 == 1))
}

/// The first value with a bit at `from` or after it.
fn at_or_after(bits: u64, from: i8) -> Option<i8> {
    let from = u32::try_from(from).ok()?;
    let found = from + bits.checked_shr(from)?.trailing_zeros();
    i8::try_from(found).ok().filter(|&found| has(bits, found))
}

impl MonthDays {
    fn has(&self, date: Date) -> bool {
        let (day, last) = (date.day(), date.days_in_month());
        has(self.days, day)
            || has(self.from_last, last - day)
            || (self.last_weekday && nearest_weekday(date, last) == Some(day))
            || (self.nearest != 0
                && (day - 2..=day + 2).any(|target| {
                    has(self.nearest, target) && nearest_weekday(date, target) == Some(day)
                }))
    }
}

/// The day from Monday to Friday nearest to day `target` in the month of `date`, in which it
/// stays. `None` if the month has no such day.
fn nearest_weekday(date: Date, target: i8) -> Option<i8> {
    let last = date.days_in_month();
    let of_month = Date::new(date.year(), date.month(), target).ok()?;
    let day = match of_month.weekday() {
        Weekday::Saturday if target > 1 => target - 1,
        Weekday::Saturday => target + 2,
        Weekday::Sunday if target < last => target + 1,
        Weekday::Sunday => target - 2,
        _ => target,
    };
    Some(day)
}

impl WeekDays {
    fn has(&self, date: Date) -> bool {
        let day = date.weekday().to_sunday_zero_offset();
        let week = usize::try_from((date.day() - 1) / 7).unwrap_or(0);
        has(self.days, day)
            || has(self.nth[week], day)
            || (has(self.last, day) && date.day() + 7 > date.days_in_month())
    }
}

impl Fields {
    /// Whether any day matches at all.
    pub(super) fn ever_match(&self) -> bool {
        self.local_at_or_after(DateTime::constant(2000, 1, 1, 0, 0, 0, 0))
            .is_some()
    }

    /// Whether this local second is one of those named.
    #[cfg(test)]
    pub(super) fn match_local(&self, local: DateTime) -> bool {
        let time = local.time();
        self.match_date(local.date())
            && has(self.hours, time.hour())
            && has(self.minutes, time.minute())
            && has(self.seconds, time.second())
    }

    fn match_date(&self, date: Date) -> bool {
        let (month_day, week_day) = (self.month_days.has(date), self.week_days.has(date));
        let both = self.month_days.star || self.week_days.star;
        has(self.months, date.month())
            && if both {
                month_day && week_day
            } else {
                month_day || week_day
            }
    }

    /// The first local second named, from `from` on. A bounded search: `None` if there is none
    /// in a hundred years or in the calendar.
    fn local_at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let last_year = from.year().saturating_add(YEARS);
        let mut date = from.date();
        let mut time = from.time();
        while date.year() <= last_year {
            if !has(self.months, date.month()) {
                date = date.last_of_month().tomorrow().ok()?;
                time = Time::midnight();
                continue;
            }
            if self.match_date(date)
                && let Some(time) = self.time_at_or_after(time)
            {
                return Some(date.to_datetime(time));
            }
            date = date.tomorrow().ok()?;
            time = Time::midnight();
        }
        None
    }

    /// The first time of the day named, from `from` on.
    fn time_at_or_after(&self, from: Time) -> Option<Time> {
        let time = |hour, minute, second| Time::new(hour, minute, second, 0).ok();
        let first = |bits| at_or_after(bits, 0);
        let (hour, minute) = (from.hour(), from.minute());
        if has(self.hours, hour) {
            if has(self.minutes, minute)
                && let Some(second) = at_or_after(self.seconds, from.second())
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = at_or_after(self.minutes, minute + 1) {
                return time(hour, minute, first(self.seconds)?);
            }
        }
        let hour = at_or_after(self.hours, hour + 1)?;
        time(hour, first(self.minutes)?, first(self.seconds)?)
    }

    /// The first instant after `after` at which one of the times named comes in `zone`.
    pub(in crate::recurrence) fn next_after(
        &self,
        zone: &TimeZone,
        after: Timestamp,
    ) -> Option<Timestamp> {
        let second = after.as_nanosecond().div_euclid(1_000_000_000);
        let second = Timestamp::from_second(i64::try_from(second).ok()?).ok()?;
        if self.follows_the_clock {
            self.next_shown(zone, second)
        } else {
            self.next_named(zone, second, after)
        }
    }

    /// The first whole second after `second` at which a clock in the zone shows a time named.
    fn next_shown(&self, zone: &TimeZone, second: Timestamp) -> Option<Timestamp> {
        let mut from = Timestamp::from_second(second.as_second().checked_add(1)?).ok()?;
        let end = second.as_second().saturating_add(LEFT_OUT_SECONDS);
        while from.as_second() <= end {
            // As far as one offset reaches, local time is plain arithmetic.
            let offset = zone.to_offset(from);
            let found = self.local_at_or_after(offset.to_datetime(from))?;
            let found = offset.to_timestamp(found).ok()?;
            match zone.following(from).next() {
                Some(next) if found >= next.timestamp() => from = next.timestamp(),
                _ => return Some(found),
            }
        }
        None
    }

    /// The first of the times named that comes after `after`, each of them once.
    fn next_named(
        &self,
        zone: &TimeZone,
        second: Timestamp,
        after: Timestamp,
    ) -> Option<Timestamp> {
        // What is before this local time has come: a time comes when the clock first shows it
        // or more.
        let mut from = zone.to_datetime(second);
        loop {
            let local = self.local_at_or_after(from)?;
            let comes = first_shown(zone, local)?;
            if comes > after {
                return Some(comes);
            }
            from = local.checked_add(jiff::SignedDuration::from_secs(1)).ok()?;
        }
    }
}

/// When a clock in the zone first shows `local` or something later.
fn first_shown(zone: &TimeZone, local: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            // Read with the offset after the gap, a time in the gap is before it.
            let before_the_gap = after.to_timestamp(local).ok()?;
            Some(zone.following(before_the_gap).next()?.timestamp())
        }
    }
}
