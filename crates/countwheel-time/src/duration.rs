//! Durations as text: `1h 30m`, `250ms`, `0.5h`, `PT30M`.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use crate::By;

/// Reads a duration. Policies in text, the HTTP API and the command line have no other reader.
///
/// A duration is some whole numbers with units, from the longest unit to the shortest, with blanks
/// between them or none. The units are weeks, days, hours, minutes, seconds, milliseconds,
/// microseconds and nanoseconds, whole or short: `w`, `d`, `h`, `m` or `min`, `s`, `ms`, `us`, `ns`.
/// A day has 24 hours; months and years have no length. The last number may have a fraction of up to
/// nine digits, from hours to microseconds; what is less than a nanosecond is cut off. A duration of
/// ISO 8601 is read as well.
///
/// ```
/// use countwheel_time::{DurationTextError, read_duration};
/// use std::time::Duration;
///
/// let half = Duration::from_secs(1_800);
/// for text in ["30m", "30 minutes", "0.5h", "29m60s", "29min 60s", "PT30M", "+1800s"] {
///     assert_eq!(read_duration(text), Ok(half), "{text}");
/// }
/// assert_eq!(read_duration("1w"), read_duration("P7D"));
/// let calendar = DurationTextError::Calendar("1mo".to_owned());
/// assert_eq!(read_duration("1mo"), Err(calendar));
/// assert_eq!(read_duration("-5s"), Err(DurationTextError::Negative("-5s".to_owned())));
/// assert!(read_duration("30").is_err(), "which unit?");
/// ```
///
/// # Errors
/// [`DurationTextError`] has the text and what is wrong with it.
pub fn read_duration(text: &str) -> Result<Duration, DurationTextError> {
    match text.parse()? {
        By::Sooner(span) if !span.is_zero() => Err(DurationTextError::Negative(text.to_owned())),
        By::Later(span) | By::Sooner(span) => Ok(span),
    }
}

impl FromStr for By {
    type Err = DurationTextError;

    /// A duration as [`read_duration`] reads it, sooner with a `-` before it.
    ///
    /// ```
    /// use countwheel_time::By;
    /// use std::time::Duration;
    ///
    /// assert_eq!("-1h30m".parse(), Ok(By::Sooner(Duration::from_secs(5_400))));
    /// assert_eq!("+5m".parse(), "5m".parse::<By>());
    /// ```
    fn from_str(text: &str) -> Result<Self, DurationTextError> {
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let span = span(unsigned).map_err(|fault| match fault {
            Fault::Shape => DurationTextError::Shape(text.to_owned()),
            Fault::Calendar => DurationTextError::Calendar(text.to_owned()),
            Fault::TooLong => DurationTextError::TooLong(text.to_owned()),
        })?;
        Ok(if is_negative {
            Self::Sooner(span)
        } else {
            Self::Later(span)
        })
    }
}

/// Why a text is no duration, with the text. See [`read_duration`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DurationTextError {
    /// Not numbers with units, or not from the longest to the shortest.
    Shape(String),
    /// Of months or of years, which differ in length.
    Calendar(String),
    /// Less than nothing, where only a move may have a sign.
    Negative(String),
    /// More than [`Duration::MAX`].
    TooLong(String),
}

impl Display for DurationTextError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(text) => {
                write!(f, "{text:?} is no duration such as 15s, 1h30m or 250ms")
            }
            Self::Calendar(text) => write!(f, "{text:?} has no length: a month or a year differs"),
            Self::Negative(text) => write!(f, "{text:?} is less than nothing"),
            Self::TooLong(text) => write!(f, "{text:?} is too long"),
        }
    }
}

impl Error for DurationTextError {}

enum Fault {
    Shape,
    Calendar,
    TooLong,
}

/// A unit: how many nanoseconds it has, its names, the one that is written first, and its letter in
/// ISO 8601 if it has one.
pub(crate) struct Unit {
    pub(crate) nanos: u64,
    names: &'static [&'static str],
    iso: Option<char>,
}

impl Unit {
    const fn new(nanos: u64, names: &'static [&'static str], iso: Option<char>) -> Self {
        Self { nanos, names, iso }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.names[0]
    }

    /// Whether a number of these may have a fraction.
    fn is_divisible(&self) -> bool {
        (1_000..=HOUR).contains(&self.nanos)
    }
}

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// From the longest to the shortest.
pub(crate) const UNITS: [Unit; 8] = [
    Unit::new(7 * DAY, &["w", "wk", "wks", "week", "weeks"], Some('W')),
    Unit::new(DAY, &["d", "day", "days"], Some('D')),
    Unit::new(HOUR, &["h", "hr", "hrs", "hour", "hours"], Some('H')),
    Unit::new(
        60 * SECOND,
        &["m", "min", "mins", "minute", "minutes"],
        Some('M'),
    ),
    Unit::new(
        SECOND,
        &["s", "sec", "secs", "second", "seconds"],
        Some('S'),
    ),
    Unit::new(
        1_000_000,
        &[
            "ms",
            "msec",
            "msecs",
            "milli",
            "millis",
            "millisecond",
            "milliseconds",
        ],
        None,
    ),
    Unit::new(
        1_000,
        &[
            "us",
            "usec",
            "usecs",
            "\u{b5}s",
            "\u{3bc}s",
            "micro",
            "micros",
            "microsecond",
            "microseconds",
        ],
        None,
    ),
    Unit::new(
        1,
        &[
            "ns",
            "nsec",
            "nsecs",
            "nano",
            "nanos",
            "nanosecond",
            "nanoseconds",
        ],
        None,
    ),
];

const CALENDAR: [&str; 9] = [
    "y", "yr", "yrs", "year", "years", "mo", "mos", "month", "months",
];

/// A duration without a sign.
fn span(text: &str) -> Result<Duration, Fault> {
    let mut sum = Sum::default();
    match text.strip_prefix(['P', 'p']) {
        Some(rest) => {
            let (days, times) = match rest.split_once(['T', 't']) {
                Some((days, times)) => (days, Some(times)),
                None => (rest, None),
            };
            if times == Some("") {
                return Err(Fault::Shape);
            }
            sum.take_all(days, |letter| iso(letter, true))?;
            sum.take_all(times.unwrap_or(""), |letter| iso(letter, false))?;
        }
        None => {
            sum.has_blanks = true;
            sum.take_all(text, named)?;
        }
    }
    sum.total()
}

fn named(name: &str) -> Result<&'static Unit, Fault> {
    if CALENDAR.contains(&name) {
        return Err(Fault::Calendar);
    }
    let unit = UNITS.iter().find(|unit| unit.names.contains(&name));
    unit.ok_or(Fault::Shape)
}

/// The unit of a letter before the `T` or behind it.
fn iso(letter: &str, is_date: bool) -> Result<&'static Unit, Fault> {
    let upper = letter.to_ascii_uppercase();
    if is_date && (upper == "Y" || upper == "M") {
        return Err(Fault::Calendar);
    }
    let mut units = UNITS.iter().filter(|unit| (unit.nanos >= DAY) == is_date);
    let unit = units.find(|unit| unit.iso.is_some_and(|iso| upper == iso.to_string()));
    unit.ok_or(Fault::Shape)
}

/// What the numbers so far come to.
#[derive(Default)]
struct Sum {
    nanos: u128,
    /// The last unit's length.
    last: Option<u64>,
    /// Whether the last number had a fraction: none can follow.
    is_divided: bool,
    has_blanks: bool,
}

impl Sum {
    fn take_all(
        &mut self,
        text: &str,
        unit: impl Fn(&str) -> Result<&'static Unit, Fault>,
    ) -> Result<(), Fault> {
        let mut rest = text;
        while !rest.is_empty() {
            rest = self.take(rest, &unit)?;
        }
        Ok(())
    }

    /// Takes one number with its unit, and returns what is behind it.
    fn take<'a>(
        &mut self,
        text: &'a str,
        unit: impl Fn(&str) -> Result<&'static Unit, Fault>,
    ) -> Result<&'a str, Fault> {
        let (whole, rest) = digits(text);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => digits(rest),
            None => ("0", rest),
        };
        if whole.is_empty() || !(1..=FRACTION_DIGITS).contains(&fraction.len()) {
            return Err(Fault::Shape);
        }
        let rest = self.skip_blanks(rest);
        let end = rest.find(|c: char| !c.is_alphabetic());
        let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
        let unit = unit(name)?;
        let has_fraction = whole.len() < text.len() && text[whole.len()..].starts_with('.');
        let falls = self.last.is_none_or(|last| unit.nanos < last);
        if !falls || self.is_divided || (has_fraction && !unit.is_divisible()) {
            return Err(Fault::Shape);
        }
        let length = u128::from(unit.nanos);
        let whole: u128 = whole.parse().map_err(|_| Fault::TooLong)?;
        let whole = whole.checked_mul(length).ok_or(Fault::TooLong)?;
        let scale = (0..fraction.len()).fold(1, |scale: u128, _| scale * 10);
        let fraction: u128 = fraction.parse().map_err(|_| Fault::Shape)?;
        let part = whole.checked_add(fraction * length / scale);
        let nanos = part.and_then(|part| self.nanos.checked_add(part));
        self.nanos = nanos.ok_or(Fault::TooLong)?;
        (self.last, self.is_divided) = (Some(unit.nanos), has_fraction);
        Ok(self.skip_blanks(rest))
    }

    fn skip_blanks<'a>(&self, text: &'a str) -> &'a str {
        if self.has_blanks {
            text.trim_ascii_start()
        } else {
            text
        }
    }

    fn total(&self) -> Result<Duration, Fault> {
        if self.last.is_none() {
            return Err(Fault::Shape);
        }
        let second = u128::from(SECOND);
        let seconds = u64::try_from(self.nanos / second).map_err(|_| Fault::TooLong)?;
        let nanos = u32::try_from(self.nanos % second).map_err(|_| Fault::TooLong)?;
        Ok(Duration::new(seconds, nanos))
    }
}

/// How many digits a fraction may have.
const FRACTION_DIGITS: usize = 9;

/// The digits that a text begins with, and what is behind them.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_its_names_and_its_letter() {
        for unit in &UNITS {
            let once = Duration::from_nanos(unit.nanos);
            for name in unit.names {
                for text in [
                    format!("2{name}"),
                    format!("2 {name}"),
                    format!("+2\t{name}"),
                ] {
                    assert_eq!(read_duration(&text), Ok(2 * once), "{text}");
                }
            }
            if let Some(letter) = unit.iso {
                let time = if unit.nanos < DAY { "T" } else { "" };
                let text = format!("P{time}2{letter}");
                assert_eq!(read_duration(&text), Ok(2 * once), "{text}");
                assert_eq!(read_duration(&text.to_lowercase()), Ok(2 * once), "{text}");
            }
        }
    }

    #[test]
    fn parts_add_up_from_the_longest_unit_to_the_shortest() {
        let nanos = |text| read_duration(text).unwrap().as_nanos();
        assert_eq!(nanos("1d1h1m1s1ms1us1ns"), 90_061_001_001_001);
        assert_eq!(nanos("1 day  2 hours 0.25s"), 93_600_250_000_000);
        assert_eq!(nanos("P1W2DT3H4M5.000000001S"), 788_645_000_000_001);
        assert_eq!(
            nanos("1.123456789us"),
            1_123,
            "the rest is less than a nanosecond"
        );
        assert_eq!((nanos("-0s"), nanos("1s ")), (0, 1_000_000_000));
        let longest = format!("{}s999ms999us999ns", u64::MAX);
        assert_eq!(read_duration(&longest), Ok(Duration::MAX));
    }

    #[test]
    fn what_is_no_duration_says_why() {
        for text in [
            "",
            " ",
            "5",
            "s",
            "-",
            "+",
            "P",
            "PT",
            "P1DT",
            "P5",
            "PT1D",
            "P1H",
            "P 1D",
            " 1s",
            "1s1h",
            "1s 1s",
            "1m1min",
            "1.s",
            ".5s",
            "1.5s 1ms",
            "0.5d",
            "0.5ns",
            "1.0123456789s",
            "--1s",
            "- 1s",
            "+-1s",
            "1h, 30m",
            "1:30:00",
            "5s ago",
            "1S",
            "NaN",
            "1e3s",
            "１s",
            "1s\0",
        ] {
            assert_eq!(
                text.parse::<By>(),
                Err(DurationTextError::Shape(text.into()))
            );
        }
        for text in ["1y", "2 months", "1mo", "P1Y", "P1M", "1y 1d"] {
            let error = text.parse::<By>().unwrap_err();
            assert_eq!(error, DurationTextError::Calendar(text.into()));
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("{text:?} has no length"))
            );
        }
        let nines = "9".repeat(60);
        for text in [
            "18446744073709551616s",
            "99999999999999999h",
            &format!("{nines}ns"),
        ] {
            let error = read_duration(text).unwrap_err();
            assert_eq!(error, DurationTextError::TooLong(text.into()));
        }
    }
}
