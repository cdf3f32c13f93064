//! Reads a trace: operations on timers, each with the time at which it happened.
//!
//! A trace is text, with one JSON object a line. `docs/operate.md` names the fields. The fields of
//! a set are those of a set's body in `docs/api.md`, and the same code reads them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::time::Duration;

use countwheel_durable::{Due, Key, NameError, QueueName, RetryPolicy, SetOptions};
use countwheel_time::Timestamp;
use hyper::Method;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::api::described::requests;
use crate::api::json::{self, Field, Object};
use crate::api::problem::Problem;
use crate::api::timers::{self, Content, SetFields};
use crate::client::TimerBody;
use crate::guard::Targets;
use crate::job::To;

/// The longest line in bytes: as long as the longest body of a request.
pub const LINE_MAX_BYTES: usize = crate::api::request::MAX_BODY_BYTES;
/// The headers that a replay adds to those of a target.
pub(crate) const RUN_HEADER: &str = "replay-run";
pub(crate) const LINE_HEADER: &str = "replay-line";
/// What a file that was compressed with gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// One operation of a trace.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The number of its line, from 1.
    pub line: u64,
    /// When it happened.
    pub happened: Timestamp,
    /// The queue, if the line names one.
    pub queue: Option<QueueName>,
    /// The timer's key.
    pub key: Key,
    /// What was asked. Times are those of the trace.
    pub request: TracedRequest,
}

/// What a line asks for.
#[derive(Clone, Debug)]
pub enum TracedRequest {
    /// Set the timer.
    Set(Box<TracedTimer>),
    /// Move it.
    Move {
        /// To when; a delay counts from the time of the line.
        due: Due,
    },
    /// Remove it.
    Remove,
}

/// What a set asks for: the fields of the API.
#[derive(Clone, Debug)]
pub struct TracedTimer {
    /// When it is due; a delay counts from the time of the line.
    pub due: Due,
    /// Whether the line says `in` or `at`. Else the first run is one interval away, or the first
    /// that an expression names.
    pub says_when: bool,
    /// When it comes again, and what becomes of it if it is missed.
    pub options: SetOptions,
    /// Where it is delivered, if the line says so.
    pub target: Option<TracedTarget>,
    /// What is delivered.
    pub body: Option<TimerBody>,
    /// With it, the body is a text and is delivered as it stands.
    pub content_type: Option<String>,
    /// When it is tried again, if the line says so.
    pub retry: Option<RetryPolicy>,
}

/// Where a timer of a trace is delivered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedTarget {
    /// By which method.
    pub method: Method,
    /// `http` or `https`.
    pub url: String,
    /// Sent with each delivery, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The deadline of one attempt, the server's default if `None`.
    pub timeout: Option<Duration>,
}

/// Reads operations in the order of the lines. Ends after an error.
///
/// Lines of nothing but white space are skipped. Memory: one line.
///
/// ```
/// use countwheel_server::trace::{TraceError, TraceReader};
///
/// let text = r#"{"t":"2026-03-01T12:00:00Z","op":"set","key":"order-42","in":"30m"}
/// {"t":"2026-03-01T12:10:00Z","op":"cancel","key":"order-42"}
/// "#;
/// let mut trace = TraceReader::new(text.as_bytes());
/// let set = trace.next().transpose()?.expect("a line");
/// assert_eq!(set.key.as_str(), "order-42");
/// let error = trace.next().transpose().unwrap_err();
/// assert_eq!(error.to_string(), r#"line 2: /op: "cancel" is none of set, move, remove"#);
/// # Ok::<(), TraceError>(())
/// ```
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    /// Where the next line begins, and the number of the line before it.
    offset: u64,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Reads nothing yet.
    pub fn new(source: R) -> Self {
        Self {
            source,
            offset: 0,
            line: 0,
            buffer: Vec::new(),
            ended: false,
        }
    }

    /// Reads the next line that is not empty; `false` at the end.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        const MOST: u64 = LINE_MAX_BYTES as u64 + 1;
        loop {
            self.buffer.clear();
            let line = self.line + 1;
            let read = (&mut self.source)
                .take(MOST)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| TraceError::Read { line, source })?;
            if read == 0 {
                return Ok(false);
            }
            self.line = line;
            self.offset += read as u64;
            if self.offset == read as u64 && self.buffer.starts_with(&GZIP) {
                return Err(TraceError::Compressed);
            }
            if read > LINE_MAX_BYTES && self.buffer.last() != Some(&b'\n') {
                return Err(TraceError::TooLong { line });
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> Result<Option<Entry>, TraceError> {
        if !self.read_line()? {
            return Ok(None);
        }
        parse(&self.buffer, self.line).map(Some)
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Entry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let entry = self.read().transpose();
        self.ended = !matches!(entry, Some(Ok(_)));
        entry
    }
}

/// Passes operations on whose times are in order. Ends with an error at the first that is not.
///
/// ```
/// use countwheel_server::trace::{TraceError, TraceReader, in_order};
///
/// let text = r#"{"t":"2026-03-01T12:00:00Z","op":"remove","key":"a"}
/// {"t":"2026-03-01T11:00:00Z","op":"remove","key":"b"}"#;
/// let last = in_order(TraceReader::new(text.as_bytes())).last();
/// assert!(matches!(last, Some(Err(TraceError::Order { line: 2 }))));
/// ```
pub fn in_order(
    entries: impl Iterator<Item = Result<Entry, TraceError>>,
) -> impl Iterator<Item = Result<Entry, TraceError>> {
    let mut last = Timestamp::EPOCH;
    let mut ended = false;
    entries.map_while(move |entry| {
        if ended {
            return None;
        }
        let entry = entry.and_then(|entry| {
            if entry.happened < last {
                return Err(TraceError::Order { line: entry.line });
            }
            last = entry.happened;
            Ok(entry)
        });
        ended = entry.is_err();
        Some(entry)
    })
}

/// A file whose every line was read and found good.
///
/// Gives its operations in the order of their times, and those of one time in the order of their
/// lines. A file whose lines are in that order is read from its beginning to its end. Of any other
/// file each line is looked up; that takes 24 bytes of memory a line.
///
/// ```no_run
/// use countwheel_server::trace::{TracedRequest, TraceFile};
/// use std::fs::File;
///
/// for entry in TraceFile::check(File::open("yesterday.jsonl")?)? {
///     if let TracedRequest::Set(timer) = entry?.request {
///         println!("{:?}: {:?}", timer.due, timer.target.map(|target| target.url));
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TraceFile {
    reader: TraceReader<BufReader<File>>,
    /// The lines in the order of their times, last first, if the file is not in that order.
    places: Option<Vec<Place>>,
    without_target: Option<u64>,
}

/// Where the line of an operation is. Places are in the order of time, then of the lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    happened: Timestamp,
    line: u64,
    offset: u64,
}

impl TraceFile {
    /// Reads all of `file`, from its beginning.
    ///
    /// # Errors
    /// [`TraceError`] of the first line that is bad, or if the file cannot be read.
    pub fn check(file: File) -> Result<Self, TraceError> {
        let mut reader = TraceReader::new(BufReader::new(file));
        let mut last = Timestamp::EPOCH;
        let mut is_in_order = true;
        let mut without_target = None;
        while let Some(entry) = reader.read()? {
            is_in_order &= last <= entry.happened;
            last = entry.happened;
            if without_target.is_none() && entry.needs_target() {
                without_target = Some(entry.line);
            }
        }
        reader.seek(0, 0)?;
        let mut places = None;
        if !is_in_order {
            let places = places.insert(Vec::new());
            while let Some(entry) = reader.read()? {
                let length = reader.buffer.len() as u64;
                places.push(Place {
                    happened: entry.happened,
                    line: entry.line,
                    offset: reader.offset - length,
                });
            }
            places.sort_unstable_by(|one, other| other.cmp(one));
        }
        Ok(Self {
            reader,
            places,
            without_target,
        })
    }

    /// The first line that sets a timer and has no target.
    #[must_use]
    pub fn without_target(&self) -> Option<u64> {
        self.without_target
    }
}

impl Iterator for TraceFile {
    type Item = Result<Entry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(places) = &mut self.places
            && !self.reader.ended
        {
            let place = places.pop()?;
            if let Err(error) = self.reader.seek(place.offset, place.line - 1) {
                self.reader.ended = true;
                return Some(Err(error));
            }
        }
        self.reader.next()
    }
}

impl TraceReader<BufReader<File>> {
    /// Goes to where a line begins, behind so many lines.
    fn seek(&mut self, offset: u64, line: u64) -> Result<(), TraceError> {
        // What is near is in the buffer already.
        let sought = match (i64::try_from(offset), i64::try_from(self.offset)) {
            (Ok(to), Ok(from)) => self.source.seek_relative(to - from),
            _ => self.source.seek(SeekFrom::Start(offset)).map(drop),
        };
        sought.map_err(|source| TraceError::Read {
            line: line + 1,
            source,
        })?;
        (self.offset, self.line) = (offset, line);
        Ok(())
    }
}

impl Entry {
    /// Whether it sets a timer without saying where that is delivered.
    #[must_use]
    pub fn needs_target(&self) -> bool {
        matches!(&self.request, TracedRequest::Set(timer) if timer.target.is_none())
    }
}

fn parse(text: &[u8], line: u64) -> Result<Entry, TraceError> {
    let field = |problem: Problem| TraceError::field(line, &problem);
    let value = json::parse_named("the line", text.trim_ascii_end()).map_err(field)?;
    let mut object = Field::root(value)
        .object_of(&requests::TRACED)
        .map_err(field)?;
    let operation = object.require("op").map_err(field)?;
    let operation = operation.text().map_err(field)?.into_owned();
    let happened = object.require("t").map_err(field)?;
    let happened = timers::time(&happened).map_err(field)?;
    let name = |pointer, source| TraceError::Name {
        line,
        pointer,
        source,
    };
    let queue = match object.take("queue") {
        Some(queue) => {
            let queue = QueueName::from_text(queue.text().map_err(field)?);
            Some(queue.map_err(|source| name("/queue", source))?)
        }
        None => None,
    };
    let key = object.require("key").map_err(field)?;
    let key = Key::new(key.text().map_err(field)?).map_err(|source| name("/key", source))?;
    let request = match &*operation {
        "set" => read_set(&mut object).map(|timer| TracedRequest::Set(Box::new(timer))),
        "move" => timers::due(&mut object).map(|due| TracedRequest::Move { due }),
        "remove" => Ok(TracedRequest::Remove),
        _ => {
            return Err(TraceError::Operation {
                line,
                text: operation,
            });
        }
    };
    let request = request.map_err(field)?;
    object.finish().map_err(field)?;
    Ok(Entry {
        line,
        happened,
        queue,
        key,
        request,
    })
}

fn read_set(object: &mut Object<'_>) -> Result<TracedTimer, Problem> {
    let says_when = object.has("in") || object.has("at");
    let fields = SetFields::take(object)?;
    // Which targets the server refuses, the server knows.
    let target = fields.target(&Targets::any(), false)?;
    let target = target.map(|target| match target.to {
        To::Url(url) => Ok((target.method, url, target.headers, target.timeout)),
        To::Endpoint { .. } => {
            let detail = "a trace names URLs and no endpoints";
            Err(object.malformed(detail).at("/target/endpoint"))
        }
    });
    let target = target.transpose()?;
    let target = target.map(|(method, url, headers, timeout)| TracedTarget {
        method,
        url,
        headers,
        timeout,
    });
    if let Some(target) = &target {
        leave_room_for_headers(&target.headers)
            .map_err(|detail| object.malformed(detail).at("/target/headers"))?;
        fields.check_method(&target.method)?;
    }
    let (body, content_type) = match fields.content()? {
        Content::Nothing => (None, None),
        Content::Json(text) => {
            let verbatim = RawValue::from_string(text.to_owned());
            let verbatim = verbatim
                .map_err(|error| object.malformed(format!("the body is not JSON: {error}")))?;
            (Some(TimerBody::Verbatim(verbatim)), None)
        }
        Content::Text { content_type, text } => (
            Some(TimerBody::Value(Value::String(text))),
            Some(content_type),
        ),
        Content::Bytes {
            content_type,
            bytes,
        } => (Some(TimerBody::Bytes(bytes)), Some(content_type)),
    };
    Ok(TracedTimer {
        says_when,
        target,
        body,
        content_type,
        retry: fields.policy()?,
        due: fields.due,
        options: fields.options,
    })
}

/// A timer has at most 32 headers, and each once: those that a replay adds included.
fn leave_room_for_headers(headers: &[(String, String)]) -> Result<(), String> {
    let added = [RUN_HEADER, LINE_HEADER];
    if headers.iter().any(|(name, _)| added.contains(&&**name)) {
        return Err(format!("a replay sets {RUN_HEADER} and {LINE_HEADER}"));
    }
    let most = timers::HEADERS_MAX - added.len();
    if headers.len() > most {
        return Err(format!(
            "at most {most} headers, since a replay adds {RUN_HEADER} and {LINE_HEADER}"
        ));
    }
    Ok(())
}

/// Why a trace cannot be read on. Lines count from 1, those that are empty included.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A line is not JSON, or a field of it is missing, unknown, doubled or wrong.
    #[error("line {line}: {}{detail}", in_front(pointer))]
    Field {
        /// Where.
        line: u64,
        /// Which field, as a JSON pointer; empty for the whole line.
        pointer: String,
        /// What is wrong.
        detail: String,
    },
    /// There is no such operation.
    #[error("line {line}: /op: {text:?} is none of set, move, remove")]
    Operation {
        /// Where.
        line: u64,
        /// What stands there.
        text: String,
    },
    /// A name cannot be a queue's or a key.
    #[error("line {line}: {pointer}: {source}")]
    Name {
        /// Where.
        line: u64,
        /// `/queue` or `/key`.
        pointer: &'static str,
        /// Which rule it breaks.
        source: NameError,
    },
    /// An operation happened before the one above it.
    #[error(
        "line {line}: /t: earlier than the line before: only a file is put in order, so write \
         the trace to one or sort it by t"
    )]
    Order {
        /// Where.
        line: u64,
    },
    /// A set has no target, and nothing says where it is delivered else.
    #[error(
        "line {line}: no target, and the server has no /echo to deliver to, as `countwheel dev` \
         has: give --target URL"
    )]
    NoTarget {
        /// Where.
        line: u64,
    },
    /// A line is longer than [`LINE_MAX_BYTES`].
    #[error("line {line}: a line has at most {LINE_MAX_BYTES} bytes")]
    TooLong {
        /// Where.
        line: u64,
    },
    /// The file is compressed.
    #[error("line 1: compressed with gzip: gzip -dc FILE | countwheel replay -")]
    Compressed,
    /// The source cannot be read.
    #[error("line {line}: {source}")]
    Read {
        /// Where.
        line: u64,
        /// Why.
        source: io::Error,
    },
}

impl TraceError {
    fn field(line: u64, problem: &Problem) -> Self {
        Self::Field {
            line,
            pointer: problem.pointer().unwrap_or_default().to_owned(),
            // A line of JSON has one line.
            detail: problem
                .parts()
                .2
                .replace(" at line 1 column ", " at column "),
        }
    }
}

/// A pointer in front of what is wrong there.
fn in_front(pointer: &str) -> String {
    match pointer {
        "" => String::new(),
        pointer => format!("{pointer}: "),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;

    use countwheel_durable::{Delays, Missed, Schedule};

    use super::*;

    const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_000_000);

    fn read(text: &str) -> Result<Vec<Entry>, TraceError> {
        TraceReader::new(text.as_bytes()).collect()
    }

    /// What stands in the fields of a line, which begin with the time and the key.
    fn one(fields: &str) -> Result<Entry, TraceError> {
        let line = format!(r#"{{"t":"2026-03-01T12:00:00Z","key":"a",{fields}}}"#);
        read(&line).map(|mut entries| entries.remove(0))
    }

    fn set(fields: &str) -> TracedTimer {
        let fields = fields.replace('\n', " ");
        match one(&format!(r#""op":"set",{fields}"#)).unwrap().request {
            TracedRequest::Set(timer) => *timer,
            other => panic!("{other:?}"),
        }
    }

    fn refused(fields: &str) -> String {
        one(fields).unwrap_err().to_string()
    }

    /// A file that is gone once it is closed.
    fn file(text: &str) -> File {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("countwheel-trace-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        File::create(&path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    #[test]
    fn a_line_is_one_operation() {
        let text = "{\"op\":\"remove\",\"key\":\"a\",\"t\":\"2026-03-01T12:00:00Z\"}\r\n\n  \t\n\
                    {\"t\":\"2026-03-01T13:00:01+01:00\",\"op\":\"move\",\"queue\":\"q\",\"key\":\"b\",\"in\":\"5s\"}";
        let entries = read(text).unwrap();
        assert_eq!(entries.len(), 2);
        let [remove, shift] = &entries[..] else {
            panic!()
        };
        assert!(matches!(remove.request, TracedRequest::Remove));
        assert_eq!((remove.line, remove.happened), (1, NOON));
        assert_eq!((remove.key.as_str(), &remove.queue), ("a", &None));
        assert_eq!(shift.line, 4);
        assert_eq!(shift.happened, NOON + Duration::from_secs(1));
        assert_eq!(shift.queue.as_ref().map(QueueName::as_str), Some("q"));
        let delay = Due::In(Duration::from_secs(5));
        assert!(matches!(shift.request, TracedRequest::Move { due } if due == delay));
    }

    #[test]
    fn a_set_has_the_fields_of_the_api() {
        let timer = set(
            r#""at":"2026-03-01T12:30:00Z","body": {"n": 1.000},"retry":{"fixed":"5s"},
               "missed":"collapse",
               "target":{"url":"http://x/","headers":{"X-Shop":"7"},"timeout":"1s"}"#,
        );
        assert_eq!(timer.due, Due::At(NOON + Duration::from_secs(1_800)));
        assert!(timer.says_when);
        assert_eq!(timer.options.missed, Missed::Collapse);
        let target = TracedTarget {
            method: Method::POST,
            url: "http://x/".to_owned(),
            headers: vec![("x-shop".to_owned(), "7".to_owned())],
            timeout: Some(Duration::from_secs(1)),
        };
        assert_eq!(timer.target, Some(target));
        let Some(TimerBody::Verbatim(body)) = timer.body else {
            panic!("{:?}", timer.body)
        };
        assert_eq!(body.get(), r#"{"n": 1.000}"#);
        assert_eq!(timer.content_type, None);
        let retry = timer.retry.expect("a policy");
        let delays = retry.settings().delays;
        assert_eq!(delays, Delays::Fixed(Duration::from_secs(5)));

        let text = set(r#""in":0,"body":"a\n","content_type":"text/plain""#);
        assert!(matches!(text.body, Some(TimerBody::Value(Value::String(text))) if text == "a\n"));
        assert_eq!(text.content_type.as_deref(), Some("text/plain"));
        assert_eq!((text.target, text.retry), (None, None));

        let again = set(r#""every":"30s","repeats":3"#);
        assert!(!again.says_when);
        let recurrence = again.options.recurrence.unwrap();
        assert!(matches!(
            recurrence.schedule,
            Schedule::FixedRate { anchor: None, .. }
        ));
    }

    #[test]
    fn each_wrong_field_is_named() {
        for (fields, expected) in [
            (
                r#""op":"fire""#,
                r#"line 1: /op: "fire" is none of set, move, remove"#,
            ),
            (r#""op":7"#, "line 1: /op: must be a text"),
            (
                r#""at":"2026-03-01T12:00:00Z""#,
                r#"line 1: /op: the field "op" is missing"#,
            ),
            (
                r#""op":"set""#,
                "line 1: one of in, at, every, every_after, cron is needed",
            ),
            (
                r#""op":"set","in":1,"at":"2026-03-01T12:00:00Z""#,
                "line 1: only one of in, at may be given",
            ),
            (
                r#""op":"set","in":-1"#,
                "line 1: /in: a delay is a whole number",
            ),
            (
                r#""op":"set","at":"noon""#,
                "line 1: /at: a time is RFC 3339",
            ),
            (
                r#""op":"set","in":1,"retry":{}"#,
                "line 1: /retry: exactly one of",
            ),
            (
                r#""op":"set","in":1,"retry":{"fixed":0}"#,
                "line 1: /retry/fixed: ",
            ),
            (
                r#""op":"set","in":1,"target":{}"#,
                "line 1: /target: one of url, endpoint is needed",
            ),
            (
                r#""op":"set","in":1,"target":{"endpoint":"x"}"#,
                "line 1: /target/endpoint: a trace names URLs and no endpoints",
            ),
            (
                r#""op":"set","in":1,"target":{"url":"ftp://x"}"#,
                "line 1: /target/url: ",
            ),
            (
                r#""op":"set","in":1,"content_type":"a/b""#,
                "line 1: /content_type: ",
            ),
            (r#""op":"set","in":1,"missed":"never""#, "line 1: /missed: "),
            (r#""op":"set","in":1,"zone":"UTC""#, "line 1: /zone: "),
            (
                r#""op":"set","in":1,"bdy":1"#,
                r#"line 1: /bdy: the field "bdy" is unknown"#,
            ),
            (r#""op":"move""#, "line 1: exactly one of in, at is needed"),
            (
                r#""op":"move","by":"5m""#,
                r#"line 1: /by: the field "by" is unknown"#,
            ),
            (
                r#""op":"move","in":1,"body":1"#,
                r#"line 1: /body: the field "body" is unknown"#,
            ),
            (
                r#""op":"remove","in":1"#,
                r#"line 1: /in: the field "in" is unknown"#,
            ),
            (
                r#""op":"remove","op":"remove""#,
                r#"line 1: /op: the name "op" occurs twice"#,
            ),
            (r#""op":"remove","queue":"a b""#, "line 1: /queue: "),
            (
                r#""op":"remove","queue":1"#,
                "line 1: /queue: must be a text",
            ),
        ] {
            let told = refused(fields);
            assert!(told.starts_with(expected), "{fields}: {told}");
        }
    }

    #[test]
    fn each_wrong_line_is_named() {
        let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(LINE_MAX_BYTES));
        let key = format!(
            r#"{{"t":"2026-03-01T12:00:00Z","op":"remove","key":"{}"}}"#,
            "x".repeat(257)
        );
        for (line, expected) in [
            ("", ""),
            (
                "{",
                "line 2: the line is not JSON: EOF while parsing an object at column 1",
            ),
            (
                "a,b,c",
                "line 2: the line is not JSON: expected value at column 1",
            ),
            ("[]", "line 2: must be an object"),
            (
                r#"{"t":"2026-03-01T12:00:00Z","op":"remove"}"#,
                r#"line 2: /key: the field "key" is"#,
            ),
            (
                r#"{"op":"remove","key":"a"}"#,
                r#"line 2: /t: the field "t" is missing"#,
            ),
            (
                r#"{"t":1,"op":"remove","key":"a"}"#,
                "line 2: /t: must be a text",
            ),
            (
                r#"{"t":"2026-03-01","op":"remove","key":"a"}"#,
                "line 2: /t: a time is RFC 3339",
            ),
            (
                r#"{"t":"1969-12-31T23:59:59Z","op":"remove","key":"a"}"#,
                "line 2: /t: times begin",
            ),
            (&key, "line 2: /key: "),
            (&long, "line 2: a line has at most 1048576 bytes"),
        ] {
            let told = read(&format!("\n{line}\n"))
                .map_or_else(|error| error.to_string(), |_| String::new());
            assert!(
                told.starts_with(expected) && told.is_empty() == expected.is_empty(),
                "{told}"
            );
        }
        let not_utf8 = TraceReader::new(&b"\"\xff\"\n"[..])
            .next()
            .unwrap()
            .unwrap_err();
        assert_eq!(not_utf8.to_string(), "line 1: the line is not UTF-8");
        let gzip = TraceReader::new(&[0x1f, 0x8b, 8, 0, b'\n'][..]).next();
        assert!(matches!(gzip, Some(Err(TraceError::Compressed))));
    }

    #[test]
    fn the_longest_line_is_read_and_no_longer_one() {
        let start = r#"{"t":"2026-03-01T12:00:00Z","op":"set","in":0,"key":"a","body":""#;
        let line = |bytes: usize| {
            let body = "x".repeat(bytes - start.len() - 2);
            format!("{start}{body}\"}}")
        };
        assert_eq!(line(LINE_MAX_BYTES).len(), LINE_MAX_BYTES);
        for end in ["", "\n"] {
            assert!(read(&(line(LINE_MAX_BYTES) + end)).is_ok());
            let error = read(&(line(LINE_MAX_BYTES + 1) + end));
            assert!(matches!(error, Err(TraceError::TooLong { line: 1 })));
        }
    }

    #[test]
    fn a_target_leaves_room_for_what_a_replay_adds() {
        let headers = |number: usize| {
            let all: Vec<_> = (0..number).map(|i| format!(r#""x-{i}":"""#)).collect();
            let all = all.join(",");
            one(&format!(
                r#""op":"set","in":1,"target":{{"url":"http://x/","headers":{{{all}}}}}"#
            ))
        };
        assert!(headers(30).is_ok());
        let told = headers(31).unwrap_err().to_string();
        assert!(
            told.starts_with("line 1: /target/headers: at most 30 headers"),
            "{told}"
        );
        let told = refused(
            r#""op":"set","in":1,"target":{"url":"http://x/","headers":{"Replay-Run":"x"}}"#,
        );
        assert!(
            told.starts_with("line 1: /target/headers: a replay sets"),
            "{told}"
        );
    }

    #[test]
    fn nothing_follows_an_error() {
        let text = "soon\n{\"t\":\"2026-03-01T12:00:00Z\",\"op\":\"remove\",\"key\":\"a\"}\n";
        let mut trace = TraceReader::new(text.as_bytes());
        assert!(trace.next().unwrap().is_err());
        assert!(trace.next().is_none());
        let mut trace = in_order(TraceReader::new(text.as_bytes()));
        assert!(trace.next().unwrap().is_err());
        assert!(trace.next().is_none());
    }

    /// Removes of keys that tell the number of their lines, so many minutes after noon.
    fn removes(minutes: &[u64]) -> String {
        let mut text = String::new();
        for (i, minute) in minutes.iter().enumerate() {
            let line = i + 1;
            writeln!(
                text,
                r#"{{"op":"remove","key":"{line}","t":"2026-03-01T12:{minute:02}:00Z"}}"#
            )
            .unwrap();
            // A line that is skipped has a place too.
            if i % 3 == 0 {
                text.push_str("   ");
            }
        }
        text
    }

    fn lines(entries: impl Iterator<Item = Result<Entry, TraceError>>) -> Vec<u64> {
        let line = |entry: Entry| {
            assert_eq!(entry.key.as_str(), entry.line.to_string());
            entry.line
        };
        entries.map(|entry| line(entry.unwrap())).collect()
    }

    #[test]
    fn a_file_is_put_in_the_order_of_its_times() {
        let ordered = TraceFile::check(file(&removes(&[0, 1, 1, 5]))).unwrap();
        assert!(ordered.places.is_none());
        assert_eq!(lines(ordered), [1, 2, 3, 4]);
        let other = TraceFile::check(file(&removes(&[5, 1, 0, 5, 1]))).unwrap();
        assert!(other.places.is_some());
        assert_eq!(lines(other), [3, 2, 5, 1, 4]);
        // Far beyond what is buffered.
        let minutes: Vec<_> = (0..5_000).map(|i| i * 7_919 % 60).collect();
        let sorted = lines(TraceFile::check(file(&removes(&minutes))).unwrap());
        let mut expected: Vec<_> = (1..=5_000).collect();
        expected.sort_by_key(|line| minutes[usize::try_from(line - 1).unwrap()]);
        assert_eq!(sorted, expected);
    }

    #[test]
    fn a_stream_is_refused_where_it_is_out_of_order() {
        let text = removes(&[0, 2, 2, 1, 3]);
        let entries = in_order(TraceReader::new(text.as_bytes()));
        let seen: Vec<_> = entries.collect();
        assert_eq!(seen.len(), 4);
        assert!(matches!(seen[3], Err(TraceError::Order { line: 4 })));
    }

    #[test]
    fn a_file_is_checked_to_its_end_before_anything_of_it_is_given() {
        let bad = TraceFile::check(file(&(removes(&[1, 0]) + "\n\n{}")));
        let told = bad.unwrap_err().to_string();
        assert!(told.starts_with("line 5: /op: "), "{told}");
        let set = |line: &str| removes(&[1]) + "\n" + line;
        let line = r#"{"t":"2026-03-01T12:00:00Z","key":"a","op":"set","in":1}"#;
        let checked = TraceFile::check(file(&set(line))).unwrap();
        assert_eq!(checked.without_target(), Some(3));
        assert_eq!(
            TraceFile::check(file(&removes(&[1])))
                .unwrap()
                .without_target(),
            None
        );
    }

    #[test]
    fn any_line_is_read_or_refused_with_its_number() {
        const LINES: [&str; 5] = [
            r#"{"t":"2026-03-01T12:00:00Z","op":"set","key":"a","in":"30m","body":{"n":[1.5,null]}}"#,
            r#"{"t":"2026-03-01T12:00:00Z","op":"set","queue":"q","key":"\ud83d\ude00","at":"2026-03-01T13:00:00+01:00","target":{"url":"http://x/","headers":{"x":"y"},"timeout":500},"retry":{"exponential":{"first":"1s","factor":2,"cap":"1h"},"max_attempts":3}}"#,
            r#"{"t":"2026-03-01T12:00:00Z","op":"set","key":"a","cron":"0 9 * * MON-FRI","zone":"Europe/Berlin","until":"2027-01-01T00:00:00Z","missed":{"skip_if_older_than":"5m"}}"#,
            r#"{"t":"2026-03-01T12:00:00Z","op":"move","key":"a","in":1500}"#,
            r#"{"t":"2026-03-01T12:00:00Z","op":"remove","key":"a"}"#,
        ];
        const PIECES: [&[u8]; 22] = [
            b"",
            b"\"",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"\\",
            b"\\ud800",
            b"\xff",
            b"\0",
            b"-1",
            b"1e999",
            b"null",
            b"99999999999999999999",
            b"9999-12-31T00:00:00Z",
            b"\"op\":\"move\",",
            b"999999999999h",
            b"\"in\":0,",
            b" ",
            b"true",
        ];
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let (mut good, mut bad) = (0, 0);
        for _ in 0..100_000 {
            let mut line = LINES[random(LINES.len())].as_bytes().to_vec();
            for _ in 0..random(4) {
                let from = random(line.len() + 1);
                let to = (from + random(8)).min(line.len());
                let piece = PIECES[random(PIECES.len())];
                line.splice(from..to, piece.iter().copied());
            }
            let text = [b"\n", &line[..], b"\n"].concat();
            match TraceReader::new(&text[..]).next() {
                Some(Ok(entry)) => {
                    assert_eq!(entry.line, 2);
                    good += 1;
                }
                Some(Err(error)) => {
                    let told = error.to_string();
                    assert!(told.starts_with("line 2: ") && told.len() > 8, "{told}");
                    bad += 1;
                }
                None => assert!(line.trim_ascii().is_empty()),
            }
        }
        assert!(good > 10_000 && bad > 10_000, "{good} good, {bad} bad");
    }
}
