//! Reads the command line: durations, times, deadlines, headers.

use std::path::Path;
use std::time::Duration;

use countwheel_durable::{Due, Precondition, QueueName, Revision};
use countwheel_time::{By, DurationTextError, Timestamp};
use serde_json::{Value, json};

use super::Failure;
use crate::time::{parse_time, read_time};

/// A duration with its unit: `5s`, `1h 30m`, `250ms`, `PT30M`, `2d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match signed(text)? {
        By::Sooner(span) if !span.is_zero() => Err(format!("{text:?} is less than nothing")),
        By::Later(span) | By::Sooner(span) => Ok(span),
    }
}

/// A duration with a sign before it, or none: `+5m`, `-90s`.
pub(crate) fn signed(text: &str) -> Result<By, String> {
    let by = text
        .trim()
        .parse()
        .map_err(|error: DurationTextError| error.to_string())?;
    let (By::Later(span) | By::Sooner(span)) = by;
    if span.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!("{text:?} has a fraction of a millisecond"));
    }
    Ok(by)
}

/// RFC 3339 with an offset.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    read_time(text).map_err(|error| error.to_string())
}

/// RFC 3339, or a date alone, which is its midnight in UTC.
pub(crate) fn date(text: &str) -> Result<Timestamp, String> {
    parse_time(text)
        .or_else(|| parse_time(&format!("{text}T00:00:00Z")))
        .ok_or_else(|| format!("{text:?} is no date such as 2013-01-31"))
}

/// The name of a queue, as it is written.
pub(crate) fn queue(text: &str) -> Result<String, String> {
    let name = QueueName::from_text(text).map_err(|error| error.to_string())?;
    Ok(name.to_string())
}

/// `name: value`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} is no header such as 'x-shop: 7'"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// `--in` or `--at`, or neither.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct When {
    /// How long from now: 5s, 1h30m, 250ms
    #[arg(long = "in", value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    delay: Option<Duration>,
    /// When, with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
}

impl When {
    pub(crate) fn due(&self) -> Option<Due> {
        self.at.map(Due::At).or(self.delay.map(Due::In))
    }
}

/// `--if-revision`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct IfRevision {
    /// Only if the timer has this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

impl IfRevision {
    pub(crate) fn precondition(self) -> Precondition {
        self.if_revision.map_or(Precondition::None, |revision| {
            Precondition::Revision(Revision(revision))
        })
    }
}

/// `--if-absent` or `--if-revision`, of what is put.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Change {
    /// Only if there is none yet
    #[arg(long)]
    if_absent: bool,
    /// Only if it has this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

impl Change {
    pub(crate) fn precondition(self) -> Precondition {
        match self.if_revision {
            Some(revision) => Precondition::Revision(Revision(revision)),
            None if self.if_absent => Precondition::Absent,
            None => Precondition::None,
        }
    }
}

/// Adds the limits that are given to what is put.
pub(crate) fn limits(
    body: &mut Value,
    concurrency: Option<u32>,
    per_second: Option<f64>,
    burst: Option<u32>,
) {
    if let Some(attempts) = concurrency {
        body["concurrency"] = attempts.into();
    }
    if let Some(per_second) = per_second {
        body["rate"] = json!({ "per_second": per_second });
    }
    if let Some(burst) = burst {
        body["rate"]["burst"] = burst.into();
    }
}

/// The text of a file, or of standard input for `-`.
pub(crate) fn read_file(file: &Path) -> Result<String, Failure> {
    let read = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|source| Failure::File {
        path: file.display().to_string(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_no_less_than_a_millisecond() {
        for (text, millis) in [
            ("5s", 5_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("PT30M", 1_800_000),
            ("2d", 172_800_000),
            ("1.5s", 1_500),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in [
            "5",
            "",
            "s",
            "five seconds ago",
            "10us",
            "-5s",
            "1mo",
            "1y",
            "5s5",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(signed("-5m"), Ok(By::Sooner(Duration::from_secs(300))));
        assert_eq!(signed("+90s"), Ok(By::Later(Duration::from_secs(90))));
    }

    #[test]
    fn a_date_alone_is_its_midnight() {
        assert_eq!(date("2013-01-31"), time("2013-01-31T00:00:00Z"));
        assert_eq!(date("2013-01-31T01:00:00+01:00"), date("2013-01-31"));
        assert!(date("2013-02-30").is_err());
        assert!(time("2013-01-31").is_err());
    }

    #[test]
    fn a_header_is_split_at_its_first_colon() {
        let split = |text| header(text).unwrap();
        assert_eq!(split("x-at: 12:00"), ("x-at".into(), "12:00".into()));
        assert!(header("nothing").is_err());
    }
}
