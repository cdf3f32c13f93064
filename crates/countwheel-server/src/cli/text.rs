//! Times and durations as text for people.

use std::time::Duration;

use countwheel_time::Timestamp;

use crate::time::format_time;

/// A time as seen on a day: the time of day alone if it is the same day in UTC.
pub(crate) fn clock(at: Timestamp, now: Timestamp) -> String {
    let (full, today) = (format_time(at), format_time(now));
    match (full.split_once('T'), today.split_once('T')) {
        (Some((day, time)), Some((today, _))) if day == today => {
            time.trim_end_matches('Z').to_owned()
        }
        _ => full,
    }
}

/// A time in a table: to the millisecond.
pub(crate) fn moment(at: Timestamp) -> String {
    let millis = Timestamp::from_micros(at.as_micros() / 1_000 * 1_000);
    let text = format_time(millis).replace('T', " ");
    text.strip_suffix("000Z").unwrap_or(&text).to_owned()
}

/// A duration with as much as one takes in: `0.3 ms`, `58.2 s`, `24 h 4 min`.
pub(crate) fn span(span: Duration) -> String {
    let micros = span.as_micros();
    if micros < 999_950 {
        return format!("{} ms", tenths(micros, 1_000));
    }
    if micros < 59_950_000 {
        return format!("{} s", tenths(micros, 1_000_000));
    }
    let seconds = (micros + 500_000) / 1_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600, seconds / 60);
    // A schedule of 24 hours is read as such, so days begin with the third.
    if hours > 72 {
        pair(days, "d", hours % 24, "h")
    } else if hours > 0 {
        pair(hours, "h", minutes % 60, "min")
    } else {
        pair(minutes, "min", seconds % 60, "s")
    }
}

/// Where a time lies from now: `in 58.2 s`, `3 min ago`.
pub(crate) fn from_now(at: Timestamp, now: Timestamp) -> String {
    if at >= now {
        format!("in {}", span(at.saturating_since(now)))
    } else {
        format!("{} ago", span(now.saturating_since(at)))
    }
}

/// Seconds to the millisecond, as on a stopwatch: `+5.000 s`.
pub(crate) fn stopwatch(span: Duration) -> String {
    let millis = (span.as_micros() + 500) / 1_000;
    format!("+{}.{:03} s", millis / 1_000, millis % 1_000)
}

/// How many of what: `1 retry`, `2 retries`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// `micros` in `unit`s with one digit after the point, unless that is a zero.
fn tenths(micros: u128, unit: u128) -> String {
    let tenths = (micros * 10 + unit / 2) / unit;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

fn pair(large: u128, large_unit: &str, small: u128, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well_at_every_size() {
        for (micros, text) in [
            (0, "0 ms"),
            (49, "0 ms"),
            (312, "0.3 ms"),
            (1_140, "1.1 ms"),
            (15_000, "15 ms"),
            (999_949, "999.9 ms"),
            (999_950, "1 s"),
            (15_000_000, "15 s"),
            (58_240_000, "58.2 s"),
            (59_949_999, "59.9 s"),
            (59_950_000, "1 min"),
            (90_000_000, "1 min 30 s"),
            (3_599_600_000, "1 h"),
            (86_640_000_000, "24 h 4 min"),
            (262_740_000_000, "72 h 59 min"),
            (266_400_000_000, "3 d 2 h"),
        ] {
            assert_eq!(span(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn a_time_of_another_day_is_written_in_full() {
        let noon = Timestamp::from_micros(1_772_366_405_000_001);
        assert_eq!(clock(noon, noon), "12:00:05.000001");
        let next_day = noon + Duration::from_secs(86_400);
        assert_eq!(clock(next_day, noon), "2026-03-02T12:00:05.000001Z");
        assert_eq!(moment(noon), "2026-03-01 12:00:05.000");
    }

    #[test]
    fn a_stopwatch_shows_milliseconds() {
        assert_eq!(stopwatch(Duration::from_micros(5_000_300)), "+5.000 s");
        assert_eq!(stopwatch(Duration::from_micros(65_000_500)), "+65.001 s");
    }

    #[test]
    fn what_lies_behind_is_ago() {
        let at = Timestamp::from_micros(10_000_000);
        let later = at + Duration::from_millis(58_200);
        assert_eq!(from_now(later, at), "in 58.2 s");
        assert_eq!(from_now(at, later), "58.2 s ago");
    }
}
