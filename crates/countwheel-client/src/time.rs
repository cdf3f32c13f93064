//! Times and durations as texts: RFC 3339 in UTC, and `1h 30m` or `PT1H30M`.

use std::borrow::Cow;
use std::time::Duration;

use countwheel_time::{By, Timestamp, read_duration};
use jiff::fmt::friendly::{Designator, SpanPrinter};
use jiff::fmt::temporal::DateTimePrinter;

/// A time as the API writes it: UTC with six digits of a second.
///
/// ```
/// use countwheel_time::Timestamp;
/// use countwheel_client::time::{format_time, parse_time};
///
/// let time = parse_time("2026-03-01T13:00:05.5+01:00").expect("RFC 3339");
/// assert_eq!(format_time(time), "2026-03-01T12:00:05.500000Z");
/// assert_eq!(parse_time("2026-03-01T12:00:05"), None); // which offset?
/// ```
///
/// Times after the year 9999 have no such text and are written as its last microsecond.
#[must_use]
pub fn format_time(time: Timestamp) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_microsecond(micros.min(LAST_MICROS));
    PRINTER.timestamp_to_string(&time.unwrap_or(jiff::Timestamp::MAX))
}

/// 9999-12-30T22:00:00Z less a microsecond: the last time that every offset can show.
const LAST_MICROS: i64 = 253_402_207_200_000_000 - 1;

/// The last time that [`format_time`] can write.
pub const LAST_TIME: Timestamp = Timestamp::from_micros(LAST_MICROS.unsigned_abs());

/// Why a text is no time.
///
/// ```
/// use countwheel_client::time::{TimeError, read_time};
///
/// assert_eq!(read_time("tomorrow"), Err(TimeError::NotRfc3339));
/// assert_eq!(read_time("2016-12-31T23:59:60Z"), Err(TimeError::LeapSecond));
/// assert_eq!(read_time("10000-01-01T00:00:00Z"), Err(TimeError::TooFar));
/// assert_eq!(read_time("1914-07-28T00:00:00Z"), Err(TimeError::TooEarly));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// The text is not RFC 3339 with an offset, or names a day or an hour that does not exist.
    #[error("a time is RFC 3339 with an offset, such as 2026-03-01T12:00:00Z")]
    NotRfc3339,
    /// The second is 60. Clocks of computers have no leap seconds, so no timer can wait for one.
    #[error("a minute has the seconds 0 to 59: leap seconds are not known here")]
    LeapSecond,
    /// The time lies at the end of the year 9999 or after it: it could not be written.
    #[error("this time is too far ahead: the last is 9999-12-30T21:59:59.999999Z")]
    TooFar,
    /// The time lies before 1970. Timers have no such times.
    #[error("times begin with the year 1970")]
    TooEarly,
}

/// Reads an RFC 3339 time with an offset. A fraction of a microsecond rounds up, so that
/// what waits for it is never early.
///
/// # Errors
/// [`TimeError`], with an example there.
pub fn read_time(text: &str) -> Result<Timestamp, TimeError> {
    const SECOND: std::ops::Range<usize> = 17..19;
    if !has_shape_of_rfc_3339(text.as_bytes()) {
        return Err(if is_too_far(text) {
            TimeError::TooFar
        } else {
            TimeError::NotRfc3339
        });
    }
    // jiff takes it for the second before.
    if text.get(SECOND) == Some("60") {
        return Err(TimeError::LeapSecond);
    }
    let (readable, part_of_nano) = to_nanoseconds(text);
    let Ok(time) = readable.parse::<jiff::Timestamp>() else {
        return Err(if is_too_far(&readable) {
            TimeError::TooFar
        } else {
            TimeError::NotRfc3339
        });
    };
    let nanos = u128::try_from(time.as_nanosecond()).map_err(|_| TimeError::TooEarly)?;
    let micros = u64::try_from((nanos + u128::from(part_of_nano)).div_ceil(1_000));
    let time = micros.ok().map(Timestamp::from_micros);
    time.filter(|&time| time <= LAST_TIME)
        .ok_or(TimeError::TooFar)
}

/// Reads a time as [`read_time`] does; nothing if it is none.
#[must_use]
pub fn parse_time(text: &str) -> Option<Timestamp> {
    read_time(text).ok()
}

/// The same time with at most nine digits of a second, which is what jiff reads, and whether there
/// was more than a nanosecond can say. The text has the shape of a time.
fn to_nanoseconds(text: &str) -> (Cow<'_, str>, bool) {
    const END: usize = "0000-00-00T00:00:00.123456789".len();
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let behind = text.as_bytes().get(END..).unwrap_or_default();
    let digits = behind.iter().take_while(|byte| is_digit(byte)).count();
    if digits == 0 || !text.as_bytes()[END - 9..END].iter().all(is_digit) {
        return (Cow::Borrowed(text), false);
    }
    let (read, rest) = text.split_at(END);
    let (left, offset) = rest.split_at(digits);
    (
        Cow::Owned(format!("{read}{offset}")),
        left.bytes().any(|digit| digit != b'0'),
    )
}

/// Whether the text would be a time if the calendar went on: its year is 9999 or has more digits,
/// and the same text is a time in a year that has the same days.
fn is_too_far(text: &str) -> bool {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let (year, rest) = unsigned.split_at(digits);
    let significant = year.trim_start_matches('0');
    if significant.len() < 4 || (significant.len() == 4 && year != "9999") {
        return false;
    }
    // The calendar repeats itself every 400 years, and 10,000 years are a number of these.
    let in_cycle = year[digits - 4..].parse::<u32>().map(|year| year % 400);
    in_cycle.is_ok_and(|year| {
        let like = format!("{}{rest}", 2_000 + year);
        has_shape_of_rfc_3339(like.as_bytes()) && like.parse::<jiff::Timestamp>().is_ok()
    })
}

/// jiff reads more than RFC 3339: times without seconds, offsets with them, zones in
/// brackets. A contract is better off without these.
fn has_shape_of_rfc_3339(text: &[u8]) -> bool {
    const SHAPE: &[u8; 19] = b"0000-00-00T00:00:00";
    let fits = |(&byte, &shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        _ => byte == shape,
    };
    let Some((start, rest)) = text.split_at_checked(SHAPE.len()) else {
        return false;
    };
    if !start.iter().zip(SHAPE).all(fits) {
        return false;
    }
    let rest = match rest.split_first() {
        Some((b'.', fraction)) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit());
            let digits = digits.count();
            if digits == 0 {
                return false;
            }
            &fraction[digits..]
        }
        _ => rest,
    };
    match rest {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', offset @ ..] => offset.len() == 5 && offset.iter().zip(b"00:00").all(fits),
        _ => false,
    }
}

/// A duration with its sign, as `1h 30m`, `-250ms`, `P1DT2H` or `7d`: whatever
/// [`read_duration`] reads. Days have 24 hours; months and years have no length and are no duration.
///
/// ```
/// use std::time::Duration;
/// use countwheel_client::time::{format_duration, parse_signed};
///
/// let (negative, span) = parse_signed("-1h 30m").expect("a duration");
/// assert!(negative);
/// assert_eq!(span, Duration::from_secs(5_400));
/// assert_eq!(format_duration(span), "1h 30m");
/// assert_eq!(parse_signed("2 months"), None);
/// ```
#[must_use]
pub fn parse_signed(text: &str) -> Option<(bool, Duration)> {
    Some(match text.parse().ok()? {
        By::Later(span) => (false, span),
        By::Sooner(span) => (!span.is_zero(), span),
    })
}

/// Reads a duration that is not negative, by [`read_duration`].
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    read_duration(text).ok()
}

/// A duration as the API writes it: `1h 30m`, `15s`, `250ms`.
#[must_use]
pub fn format_duration(span: Duration) -> String {
    const PRINTER: SpanPrinter = SpanPrinter::new().designator(Designator::Compact);
    PRINTER.unsigned_duration_to_string(&span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rfc_3339_with_an_offset_and_nothing_else() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t00:00:01z", 1_000_000),
            ("1970-01-01 00:00:01.000001+00:00", 1_000_001),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("1970-01-01T00:00:00.0000000001Z", 1),
            ("1970-01-01T00:00:00.000001000000Z", 1),
            ("1970-01-01T00:00:00.000001000000000000001Z", 2),
            ("1970-01-01T01:00:00.00000099999999999999+01:00", 1),
            ("1970-01-01T00:00:00.0000000000-00:00", 0),
        ] {
            let expected = Timestamp::from_micros(micros);
            assert_eq!(parse_time(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "now",
            "2026-03-01",
            "2026-03-01T12:00Z",
            "2026-03-01T12:00:00",
            "2026-03-01T12:00:00.Z",
            "2026-03-01T12:00:00Z[UTC]",
            "2026-03-01T12:00:00+01",
            "2026-03-01T12:00:00+0100",
            "2026-02-30T12:00:00Z",
            "2026-03-01T25:00:00Z",
            "+002026-03-01T12:00:00Z",
            "2026-03-01T12:00:00Z\n",
            "２026-03-01T12:00:00Z",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    /// It was said of each that it is no RFC 3339, and of a second 60 that it is second 59.
    #[test]
    fn a_time_that_cannot_be_waited_for_says_why() {
        for text in [
            "9999-12-30T22:00:00Z",
            "9999-12-30T21:59:59.9999999Z", // rounds up to it
            "9999-12-31T23:59:59Z",
            "9999-12-30T23:00:00-12:00",
            "10000-01-01T00:00:00Z",
            "+010000-02-29T00:00:00Z",
            "12345678901234567890-01-01T00:00:00Z",
        ] {
            assert_eq!(read_time(text), Err(TimeError::TooFar), "{text}");
        }
        assert_eq!(read_time("9999-12-30T21:59:59.999999Z"), Ok(LAST_TIME));
        for text in [
            "10001-02-29T00:00:00Z", // no leap year
            "10000-01-01",
            "010000",
            "002026-03-01T12:00:00Z",
            "9999-02-30T00:00:00Z",
        ] {
            assert_eq!(read_time(text), Err(TimeError::NotRfc3339), "{text}");
        }
        for text in [
            "1969-12-31T23:59:59.999999999Z",
            "1969-12-31T23:59:59.99999999999Z",
            "1970-01-01T00:00:00+00:01",
            "0001-01-01T00:00:00Z",
        ] {
            assert_eq!(read_time(text), Err(TimeError::TooEarly), "{text}");
        }
        for text in ["2016-12-31T23:59:60Z", "2026-03-01t12:00:60.5+01:00"] {
            assert_eq!(read_time(text), Err(TimeError::LeapSecond), "{text}");
        }
    }

    #[test]
    fn the_last_times_can_be_written() {
        assert_eq!(format_time(Timestamp::MAX), format_time(LAST_TIME));
        assert!(format_time(LAST_TIME).starts_with("9999-12-30T21:59:59.999999Z"));
    }

    #[test]
    fn durations_are_read_as_they_are_written() {
        for (text, millis) in [
            ("0s", 0),
            ("250ms", 250),
            ("15s", 15_000),
            ("1h 30m", 5_400_000),
            ("24h", 86_400_000),
            ("1s 500ms", 1_500),
        ] {
            let span = Duration::from_millis(millis);
            assert_eq!(parse_duration(text), Some(span), "{text}");
            assert_eq!(format_duration(span), text);
        }
        for text in ["PT30M", "30 minutes", "0.5h", "30min"] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_secs(1_800)),
                "{text}"
            );
        }
        assert_eq!(parse_duration("7d"), Some(Duration::from_secs(604_800)));
        for text in [
            "",
            "5",
            "-5s",
            "5s ago",
            "soon",
            "1y",
            "1mo",
            "NaN",
            "1e400s",
            "99999999999999999h",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    /// The reader was jiff's before policies in text and the API had one together.
    #[test]
    fn a_duration_is_what_it_was_before_there_was_one_reader() {
        let of_jiff = |text: &str| {
            let span: jiff::Span = text.parse().ok()?;
            let days = jiff::SpanRelativeTo::days_are_24_hours();
            let duration = span.to_duration(days).ok()?;
            Some((duration.is_negative(), duration.unsigned_abs()))
        };
        let mut random = countwheel_time::Random::new(22);
        let mut pick = |words: &[&str]| {
            let most = u64::try_from(words.len()).unwrap();
            words[usize::try_from(random.below(most)).unwrap()].to_owned()
        };
        let units = [
            "w",
            "weeks",
            "d",
            "day",
            "h",
            "hrs",
            "hour",
            "m",
            "min",
            "minutes",
            "s",
            "sec",
            "seconds",
            "ms",
            "millis",
            "us",
            "\u{b5}s",
            "micros",
            "ns",
            "nanoseconds",
            "x",
            "",
        ];
        let letters = ["W", "D", "T", "TH", "TM", "H", "M", "S", "s", "TS", ""];
        let numbers = [
            "0",
            "1",
            "9",
            "007",
            "250",
            "1.5",
            "0.123456789",
            "1.",
            ".5",
            "",
        ];
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut text = pick(&["", "", "", "-", "+", "P", "-P", "PT"]);
            let is_iso = text.contains('P');
            for _ in 0..pick(&["1", "1", "2", "3"]).parse().unwrap() {
                text += &pick(&numbers);
                text += &if is_iso {
                    // Before a T, M is of months: no month at all had a length before.
                    let letter = pick(&letters);
                    if letter == "M" && !text.contains('T') {
                        "D".to_owned()
                    } else {
                        letter
                    }
                } else {
                    pick(&["", "", " "]) + &pick(&units) + &pick(&["", " ", "  "])
                };
            }
            let (ours, before) = (parse_signed(&text), of_jiff(&text));
            assert_eq!(ours, before, "{text:?}");
            match ours {
                Some(_) => read += 1,
                None => refused += 1,
            }
        }
        assert!(read > 1_000 && refused > 1_000, "{read} {refused}");
    }
}
