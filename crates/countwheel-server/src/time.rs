//! Times and durations as texts: RFC 3339 in UTC, and `1h 30m` or `PT1H30M`.

use std::time::Duration;

use countwheel::Timestamp;
use jiff::fmt::friendly::{Designator, SpanPrinter};
use jiff::fmt::temporal::DateTimePrinter;
use jiff::{Span, SpanRelativeTo};

/// A time as the API writes it: UTC with six digits of a second.
///
/// ```
/// use countwheel::Timestamp;
/// use countwheel_server::time::{format_time, parse_time};
///
/// let time = parse_time("2026-03-01T13:00:05.5+01:00").expect("RFC 3339");
/// assert_eq!(format_time(time), "2026-03-01T12:00:05.500000Z");
/// // What lies before 1970 has passed just as 1970 has.
/// assert_eq!(parse_time("1914-07-28T00:00:00Z"), Some(Timestamp::EPOCH));
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
pub(crate) const LAST_TIME: Timestamp = Timestamp::from_micros(LAST_MICROS.unsigned_abs());

/// Reads an RFC 3339 time with an offset. A fraction of a microsecond rounds up, so that
/// what waits for it is never early; what lies before 1970 is read as 1970.
#[must_use]
pub fn parse_time(text: &str) -> Option<Timestamp> {
    if !has_shape_of_rfc_3339(text.as_bytes()) {
        return None;
    }
    let time: jiff::Timestamp = text.parse().ok()?;
    let nanos = u128::try_from(time.as_nanosecond()).unwrap_or(0);
    u64::try_from(nanos.div_ceil(1_000))
        .ok()
        .map(Timestamp::from_micros)
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

/// A duration with its sign, as `1h 30m`, `-250ms`, `P1DT2H` or `7d`. Days have 24 hours;
/// months and years have no length and are no duration.
///
/// ```
/// use std::time::Duration;
/// use countwheel_server::time::{format_duration, parse_signed};
///
/// let (negative, span) = parse_signed("-1h 30m").expect("a duration");
/// assert!(negative);
/// assert_eq!(span, Duration::from_secs(5_400));
/// assert_eq!(format_duration(span), "1h 30m");
/// assert_eq!(parse_signed("2 months"), None);
/// ```
#[must_use]
pub fn parse_signed(text: &str) -> Option<(bool, Duration)> {
    let span: Span = text.parse().ok()?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Some((duration.is_negative(), duration.unsigned_abs()))
}

/// Reads a duration that is not negative.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    match parse_signed(text)? {
        (true, span) if !span.is_zero() => None,
        (_, span) => Some(span),
    }
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
            ("1970-01-01T00:00:00.0000000001Z", 0),
            ("1970-01-01T00:00:00.000000001Z", 1),
            ("1970-01-01T00:00:00+01:00", 0),
        ] {
            let expected = Timestamp::from_micros(micros);
            if text.len() > 30 && micros == 0 {
                // Ten digits of a second: more than jiff keeps.
                assert!(parse_time(text).is_none_or(|time| time == expected));
            } else {
                assert_eq!(parse_time(text), Some(expected), "{text}");
            }
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
}
