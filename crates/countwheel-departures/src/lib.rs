//! Departures of aircraft: real set, move and remove traffic, as a trace to replay.
//!
//! `cargo run --release -p countwheel-departures -- FILE` writes the trace. [`Departures`] reads
//! the file, [`Planner`] makes the operations on timers, and [`write_trace`] writes them down.
//!
//! Departures are CSV with the columns `scheduled_departure` (RFC 3339), `flight` (a key) and
//! `delay_minutes` (empty: cancelled), in the order of the first.

mod plan;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use countwheel_time::Timestamp;
use csv::{ByteRecord, ReaderBuilder};
use flate2::bufread::MultiGzDecoder;

pub use self::plan::{Action, Operation, Planner, WriteError, write_trace};

/// The columns, by the names in its header.
const COLUMNS: [&str; 3] = ["scheduled_departure", "flight", "delay_minutes"];

/// One departure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flight {
    /// When it should have left.
    pub scheduled: Timestamp,
    /// Its unique key.
    pub key: String,
    /// How late it left; negative if early, `None` if it was cancelled.
    pub delay_minutes: Option<i32>,
}

/// Reads flights one by one, holding no more than one in memory. Ends after an error.
///
/// ```
/// use countwheel_departures::{DeparturesError, Departures};
///
/// let text = "scheduled_departure,flight,delay_minutes\n\
///             2013-01-01T10:15:00Z,UA1545-20130101-EWR-IAH,2\n\
///             2013-01-01T10:20:00Z,UA1-20130101-EWR-IAH,soon\n";
/// let mut departures = Departures::new(text.as_bytes())?;
/// assert_eq!(departures.next().transpose()?.and_then(|flight| flight.delay_minutes), Some(2));
/// let error = departures.next().transpose().unwrap_err();
/// assert_eq!(error.to_string(), "line 3: the delay \"soon\" is not a whole number of minutes");
/// # Ok::<(), DeparturesError>(())
/// ```
#[derive(Debug)]
pub struct Departures<R: BufRead> {
    csv: csv::Reader<R>,
    /// Where each of [`COLUMNS`] stands.
    columns: [usize; 3],
    record: ByteRecord,
    last: Timestamp,
    ended: bool,
}

/// Opens a file of departures, plain or compressed with gzip, whatever its name.
///
/// # Errors
/// [`DeparturesError`] if it cannot be opened or its header is not that of departures.
pub fn open(path: &Path) -> Result<Departures<Box<dyn BufRead + Send>>, DeparturesError> {
    let read = |source| DeparturesError::Read { line: 1, source };
    let mut file = BufReader::new(File::open(path).map_err(read)?);
    let compressed = file.fill_buf().map_err(read)?.starts_with(&[0x1f, 0x8b]);
    Departures::new(if compressed {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    })
}

impl<R: BufRead> Departures<R> {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// [`DeparturesError`] if it cannot be read or is not that of departures.
    pub fn new(source: R) -> Result<Self, DeparturesError> {
        let mut csv = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(source);
        let mut record = ByteRecord::new();
        csv.read_byte_record(&mut record)
            .map_err(|error| read_error(1, error))?;
        let mut columns = [0; 3];
        for (place, column) in columns.iter_mut().zip(COLUMNS) {
            let mut found = (0..record.len()).filter(|&i| &record[i] == column.as_bytes());
            *place = found.next().ok_or(DeparturesError::NoColumn { column })?;
            if found.next().is_some() {
                return Err(DeparturesError::ColumnTwice { column });
            }
        }
        Ok(Self {
            csv,
            columns,
            record,
            last: Timestamp::EPOCH,
            ended: false,
        })
    }

    fn read(&mut self) -> Result<Option<Flight>, DeparturesError> {
        let line = self.csv.position().line();
        if !self
            .csv
            .read_byte_record(&mut self.record)
            .map_err(|error| read_error(line, error))?
        {
            return Ok(None);
        }
        // Empty lines are skipped, so the record knows better where it began.
        let line = self.record.position().map_or(line, csv::Position::line);
        let [time, key, delay] = self.fields(line)?;
        if [time, key, delay] == COLUMNS {
            return Err(DeparturesError::HeaderAgain { line });
        }
        let scheduled = parse_time(time).ok_or_else(|| DeparturesError::Time {
            line,
            text: time.to_owned(),
        })?;
        if scheduled < self.last {
            return Err(DeparturesError::Order { line });
        }
        if key.is_empty() {
            return Err(DeparturesError::NoKey { line });
        }
        let delay_minutes = match delay {
            "" => None,
            text => Some(text.parse().map_err(|_| DeparturesError::Delay {
                line,
                text: text.to_owned(),
            })?),
        };
        let flight = Flight {
            scheduled,
            key: key.to_owned(),
            delay_minutes,
        };
        self.last = scheduled;
        Ok(Some(flight))
    }

    fn fields(&self, line: u64) -> Result<[&str; 3], DeparturesError> {
        let mut fields = [""; 3];
        for (i, field) in fields.iter_mut().enumerate() {
            let bytes = self
                .record
                .get(self.columns[i])
                .ok_or(DeparturesError::NoField {
                    line,
                    column: COLUMNS[i],
                })?;
            *field = std::str::from_utf8(bytes).map_err(|_| DeparturesError::NotUtf8 {
                line,
                column: COLUMNS[i],
            })?;
        }
        Ok(fields)
    }
}

impl<R: BufRead> Iterator for Departures<R> {
    type Item = Result<Flight, DeparturesError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let flight = self.read().transpose();
        self.ended = !matches!(flight, Some(Ok(_)));
        flight
    }
}

/// Why departures cannot be read on. Lines count from 1, the header's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeparturesError {
    /// The header lacks a column.
    #[error("line 1: the header has no column {column}")]
    NoColumn {
        /// Its name.
        column: &'static str,
    },
    /// The header has a column twice.
    #[error("line 1: the header has the column {column} twice")]
    ColumnTwice {
        /// Its name.
        column: &'static str,
    },
    /// The header stands among the flights, as in files that were strung together.
    #[error("line {line}: the header again")]
    HeaderAgain {
        /// Where.
        line: u64,
    },
    /// A line is too short.
    #[error("line {line}: nothing in column {column}")]
    NoField {
        /// Where.
        line: u64,
        /// The first column that is missing.
        column: &'static str,
    },
    /// A field is not UTF-8.
    #[error("line {line}: the column {column} is not UTF-8")]
    NotUtf8 {
        /// Where.
        line: u64,
        /// Which.
        column: &'static str,
    },
    /// A time is not RFC 3339, or before 1970.
    #[error("line {line}: {text:?} is not a time such as 2013-01-01T10:15:00Z")]
    Time {
        /// Where.
        line: u64,
        /// What stands there.
        text: String,
    },
    /// A flight is scheduled before the one above it.
    #[error("line {line}: scheduled before the line above it")]
    Order {
        /// Where.
        line: u64,
    },
    /// A flight has no key.
    #[error("line {line}: nothing in column flight")]
    NoKey {
        /// Where.
        line: u64,
    },
    /// A delay is not a whole number, or beyond four thousand years.
    #[error("line {line}: the delay {text:?} is not a whole number of minutes")]
    Delay {
        /// Where.
        line: u64,
        /// What stands there.
        text: String,
    },
    /// The compressed file ends in the middle.
    #[error("line {line}: the compressed file is cut off here")]
    CutOff {
        /// Where.
        line: u64,
    },
    /// The file cannot be read.
    #[error("line {line}: {source}")]
    Read {
        /// Where.
        line: u64,
        /// Why.
        source: io::Error,
    },
}

/// Reads a time such as `2013-01-01T10:15:00Z`; nothing before 1970.
fn parse_time(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    let micros = u64::try_from(time.as_microsecond()).ok()?;
    Some(Timestamp::from_micros(micros))
}

fn read_error(line: u64, error: csv::Error) -> DeparturesError {
    let source = match error.into_kind() {
        csv::ErrorKind::Io(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            return DeparturesError::CutOff { line };
        }
        csv::ErrorKind::Io(source) => source,
        other => io::Error::other(format!("{other:?}")),
    };
    DeparturesError::Read { line, source }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const HEADER: &str = "scheduled_departure,flight,delay_minutes\n";

    fn read(bytes: &[u8]) -> Result<Vec<Flight>, DeparturesError> {
        Departures::new(bytes)?.collect()
    }

    /// What the line below the header makes of the trace.
    fn error(line: &[u8]) -> DeparturesError {
        read(&[HEADER.as_bytes(), line].concat()).unwrap_err()
    }

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn flights_are_read_in_order_with_early_late_and_cancelled() {
        let text = format!(
            "{HEADER}2013-01-01T10:15:00Z,a,2\n\n2013-01-01T10:15:00Z,b,-7\r\n\
             2013-01-01T05:16:00-05:00,c,\n"
        );
        let flights = read(text.as_bytes()).unwrap();
        let minute = |m: u64| Timestamp::from_micros((1_357_035_300 + m * 60) * 1_000_000);
        let flight = |m, key: &str, delay_minutes| Flight {
            scheduled: minute(m),
            key: key.to_owned(),
            delay_minutes,
        };
        assert_eq!(
            flights,
            [
                flight(0, "a", Some(2)),
                flight(0, "b", Some(-7)),
                flight(1, "c", None)
            ]
        );
    }

    #[test]
    fn the_columns_may_stand_in_any_order_beside_others() {
        let text = "x,delay_minutes,flight,scheduled_departure\n1,5,a,2013-01-01T10:15:00Z\n";
        assert_eq!(read(text.as_bytes()).unwrap()[0].delay_minutes, Some(5));
    }

    #[test]
    fn a_header_that_is_not_that_of_departures_is_refused() {
        let refused = |text: &str| read(text.as_bytes()).unwrap_err();
        assert!(matches!(
            refused("scheduled_departure,delay_minutes\n"),
            DeparturesError::NoColumn { column: "flight" }
        ));
        assert!(matches!(refused(""), DeparturesError::NoColumn { .. }));
        assert!(matches!(
            refused("flight,scheduled_departure,flight,delay_minutes\n"),
            DeparturesError::ColumnTwice { column: "flight" }
        ));
    }

    #[test]
    fn a_header_among_the_flights_is_refused() {
        let again = error(format!("2013-01-01T10:15:00Z,a,2\n{HEADER}").as_bytes());
        assert!(matches!(again, DeparturesError::HeaderAgain { line: 3 }));
    }

    #[test]
    fn a_line_that_is_too_short_is_refused() {
        assert!(matches!(
            error(b"2013-01-01T10:15:00Z,a\n"),
            DeparturesError::NoField {
                line: 2,
                column: "delay_minutes"
            }
        ));
    }

    #[test]
    fn a_time_that_is_none_or_lies_before_1970_is_refused() {
        for time in [
            "2013-02-29T10:15:00Z",
            "2013-01-01 10:15",
            "yesterday",
            "",
            "1969-12-31T23:59:59Z",
        ] {
            let error = error(format!("{time},a,2\n").as_bytes());
            assert!(
                matches!(error, DeparturesError::Time { line: 2, .. }),
                "{time}"
            );
        }
    }

    #[test]
    fn flights_out_of_order_are_refused() {
        let text = b"2013-01-01T10:15:00Z,a,2\n2013-01-01T10:14:00Z,b,2\n";
        assert!(matches!(error(text), DeparturesError::Order { line: 3 }));
    }

    #[test]
    fn a_flight_without_a_key_is_refused() {
        assert!(matches!(
            error(b"2013-01-01T10:15:00Z,,2\n"),
            DeparturesError::NoKey { line: 2 }
        ));
    }

    #[test]
    fn a_delay_beyond_32_bits_or_with_a_fraction_is_refused() {
        for delay in ["2147483648", "-2147483649", "1.5", " 2"] {
            let error = error(format!("2013-01-01T10:15:00Z,a,{delay}\n").as_bytes());
            assert!(
                matches!(error, DeparturesError::Delay { line: 2, .. }),
                "{delay}"
            );
        }
        let most = format!("{HEADER}2013-01-01T10:15:00Z,a,{}\n", i32::MAX);
        assert_eq!(
            read(most.as_bytes()).unwrap()[0].delay_minutes,
            Some(i32::MAX)
        );
    }

    #[test]
    fn what_is_not_utf8_is_refused() {
        assert!(matches!(
            error(b"2013-01-01T10:15:00Z,\xff\xfe,2\n"),
            DeparturesError::NotUtf8 {
                line: 2,
                column: "flight"
            }
        ));
    }

    #[test]
    fn a_compressed_file_is_read_and_one_that_is_cut_off_is_refused() {
        use std::fmt::Write as _;
        let mut text = HEADER.to_owned();
        for i in 0..2_000 {
            writeln!(text, "2013-01-01T10:15:00Z,flight-{},{i}", i * 7919).unwrap();
        }
        let bytes = compressed(&text);
        let whole = Departures::new(BufReader::new(MultiGzDecoder::new(&bytes[..]))).unwrap();
        assert_eq!(whole.filter_map(Result::ok).count(), 2_000);

        let half = &bytes[..bytes.len() / 2];
        let cut = Departures::new(BufReader::new(MultiGzDecoder::new(half))).unwrap();
        let mut count = 0;
        let error = cut.inspect(|_| count += 1).find_map(Result::err);
        assert!(matches!(error, Some(DeparturesError::CutOff { line }) if line > 100));
        assert!(count > 100);
    }

    #[test]
    fn nothing_follows_an_error() {
        let text = format!("{HEADER}soon,a,2\n2013-01-01T10:15:00Z,b,2\n");
        let mut departures = Departures::new(text.as_bytes()).unwrap();
        assert!(departures.next().unwrap().is_err());
        assert!(departures.next().is_none());
    }
}
