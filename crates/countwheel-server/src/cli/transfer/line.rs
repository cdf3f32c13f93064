//! One line of an export.

use std::io::{self, BufRead, Read};

use countwheel_durable::{Key, QueueName, StateKind};
use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::api::json::{self, Field, Object};
use crate::api::problem::Problem;
use crate::api::timers::LEASED;
use crate::time::{format_time, parse_time};

/// What the first line says.
const FORMAT: &str = "countwheel-timers";
/// The version that this program writes, and the latest that it reads.
const VERSION: u64 = 1;
/// The longest line: the longest body of a timer, each byte of it escaped, and the rest of a timer.
pub(super) const LINE_MAX_BYTES: usize = 100 << 20;

/// The fields of a set: what a line may have beside name and state.
const SET_FIELDS: [&str; 21] = [
    "adaptive",
    "at",
    "body",
    "body_base64",
    "content_type",
    "cron",
    "every",
    "every_after",
    "in",
    "jitter",
    "missed",
    "overlap",
    "priority",
    "repeats",
    "retry",
    "serial_key",
    "spread",
    "tags",
    "target",
    "until",
    "zone",
];

/// What is wrong with a line of an export. Lines count from 1, those that are empty included.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// The first line is not that of an export.
    #[error(
        "line {line}: an export begins with a line such as {{\"format\":\"{FORMAT}\",\"version\":{VERSION}}}"
    )]
    NotAnExport {
        /// Where.
        line: u64,
    },
    /// A later program wrote it.
    #[error(
        "line {line}: the export has version {found}, and this program reads versions up to {VERSION}: \
         use a later program"
    )]
    Later {
        /// Where.
        line: u64,
        /// Its version.
        found: u64,
    },
    /// A line is not JSON, or a field of it is missing, unknown, doubled or wrong.
    #[error("line {line}: {detail}")]
    Field {
        /// Where.
        line: u64,
        /// What is wrong.
        detail: String,
    },
    /// A line is longer than any timer is.
    #[error("line {line} is longer than {LINE_MAX_BYTES} bytes")]
    TooLong {
        /// Where.
        line: u64,
    },
    /// There is something behind the last line.
    #[error("line {line}: something stands behind the line that says it is the last")]
    Behind {
        /// Where.
        line: u64,
    },
    /// The last line is missing: the export was broken off, or somebody has cut the file.
    #[error("line {line}: the export is not whole: its last line is missing")]
    Torn {
        /// The number of the line that would have been it.
        line: u64,
    },
    /// Lines are missing, or there are more than there were.
    #[error(
        "line {line}: the export is not whole: it had {written} timers, and {found} stand here. Without \
         \"timers\" in that line nobody compares"
    )]
    Miscounted {
        /// Where.
        line: u64,
        /// How many timers there were.
        written: u64,
        /// How many lines of timers were read.
        found: u64,
    },
    /// The file cannot be read on.
    #[error("line {line}: {source}")]
    Read {
        /// Where.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl LineError {
    /// Whether there is nothing to be read behind it.
    pub(super) fn is_last(&self) -> bool {
        matches!(
            self,
            Self::Later { .. } | Self::Torn { .. } | Self::Miscounted { .. } | Self::Read { .. }
        )
    }

    /// Whether nothing can be left out and the rest be read.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::Later { .. } | Self::Read { .. })
    }

    /// Which line.
    #[must_use]
    pub fn line(&self) -> u64 {
        match self {
            Self::NotAnExport { line }
            | Self::Later { line, .. }
            | Self::Field { line, .. }
            | Self::TooLong { line }
            | Self::Behind { line }
            | Self::Torn { line }
            | Self::Miscounted { line, .. }
            | Self::Read { line, .. } => *line,
        }
    }
}

/// A timer as a server shows it, with its body.
#[derive(Deserialize)]
struct Shown {
    queue: String,
    key: String,
    state: String,
    due: String,
    target: Option<Box<RawValue>>,
    content_type: Option<String>,
    body: Option<String>,
    body_base64: Option<String>,
    #[serde(default)]
    serial_key: Option<String>,
    #[serde(default)]
    priority: Option<u32>,
    #[serde(default)]
    tags: Vec<String>,
    retry: Box<RawValue>,
    missed: Option<Box<RawValue>>,
    recurring: Option<Map<String, Value>>,
    /// The rules that the timer has not named; nothing where an earlier program shows it.
    #[serde(default)]
    from: Map<String, Value>,
}

/// A line that is written.
#[derive(Serialize)]
struct Written {
    queue: String,
    key: String,
    state: String,
    at: Value,
    #[serde(flatten)]
    schedule: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<Box<RawValue>>,
    target: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Box<RawValue>>,
}

/// The first line of an export.
pub(super) fn first(now: Timestamp) -> String {
    serde_json::json!({"format": FORMAT, "version": VERSION, "exported": format_time(now)})
        .to_string()
}

/// The last one.
pub(super) fn last(timers: u64) -> String {
    serde_json::json!({"end": true, "timers": timers}).to_string()
}

/// The line of a timer that a server shows so. `None` if no request could set it: what it delivers is none.
pub(super) fn of(shown: &RawValue) -> serde_json::Result<Option<String>> {
    let shown: Shown = serde_json::from_str(shown.get())?;
    let Some(target) = shown.target else {
        return Ok(None);
    };
    let has_body = shown.body.is_some() || shown.body_base64.is_some();
    if shown.content_type.is_some() != has_body {
        return Ok(None);
    }
    // A rule that the timer leaves open is none of the line: what sets the timer leaves it open as well.
    let is_own = |rule: &str| !shown.from.contains_key(rule);
    let target = match is_own("timeout") {
        true => target,
        false => without(&target, "timeout")?,
    };
    let fire = RawValue::from_string("\"fire\"".to_owned())?;
    let missed = is_own("missed").then(|| shown.missed.unwrap_or(fire));
    let retry = is_own("retry").then_some(shown.retry);
    let owns_overlap = is_own("overlap");
    let (mut at, mut schedule) = (Value::String(shown.due), Map::new());
    if let Some(mut recurring) = shown.recurring {
        let run = recurring.get("run").and_then(Value::as_u64).unwrap_or(1);
        for name in [
            "every",
            "every_after",
            "cron",
            "zone",
            "until",
            "jitter",
            "overlap",
            "adaptive",
        ] {
            let field = recurring.remove_entry(name);
            schedule.extend(field.filter(|_| name != "overlap" || owns_overlap));
        }
        // The run that is next, or under way, is among those that are left.
        if let Some(repeats) = recurring.get("repeats").and_then(Value::as_u64) {
            let left = repeats.saturating_sub(run.saturating_sub(1)).max(1);
            schedule.insert("repeats".to_owned(), left.into());
        }
        // Of a schedule with points, the run is drawn anew from its point.
        if let Some(nominal) = recurring.remove("nominal")
            && !schedule.contains_key("every_after")
        {
            at = nominal;
        }
    }
    let line = Written {
        queue: shown.queue,
        key: shown.key,
        // A lease is not moved: whoever held it is told that it is lost.
        state: match &*shown.state {
            LEASED => StateKind::Delivering.to_string(),
            _ => shown.state,
        },
        at,
        schedule,
        missed,
        target,
        content_type: shown.content_type,
        body: shown.body,
        body_base64: shown.body_base64,
        serial_key: shown.serial_key,
        priority: shown.priority,
        tags: shown.tags,
        retry,
    };
    serde_json::to_string(&line).map(Some)
}

/// An object without one of its fields, and otherwise as it stands.
fn without(object: &RawValue, field: &str) -> serde_json::Result<Box<RawValue>> {
    let mut fields: Map<String, Value> = serde_json::from_str(object.get())?;
    fields.remove(field);
    serde_json::value::to_raw_value(&fields)
}

/// A timer that is to be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Imported {
    pub(super) line: u64,
    pub(super) queue: String,
    pub(super) key: String,
    pub(super) state: StateKind,
    /// The body of the set.
    pub(super) fields: String,
    /// It recurs, and the run that was next, or under way, has its time before now.
    pub(super) misses_run: bool,
}

/// Reads the timers of an export, line by line.
pub(super) struct Lines<R> {
    source: R,
    line: u64,
    /// So many lines of timers, good and bad.
    timers: u64,
    place: Place,
    buffer: Vec<u8>,
    now: Timestamp,
    revives: bool,
}

/// Where in an export the next line is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Before,
    Within,
    Behind,
    /// Nothing more is read.
    Over,
}

impl<R: BufRead> Lines<R> {
    /// What is past is so at `now`. With `revives`, what is dead becomes due at once.
    pub(super) fn new(source: R, now: Timestamp, revives: bool) -> Self {
        Self {
            source,
            line: 0,
            timers: 0,
            place: Place::Before,
            buffer: Vec::new(),
            now,
            revives,
        }
    }

    /// Reads the next line that is not empty. `false` at the end; an error if the line is too long, the rest of
    /// which is passed over.
    fn read_line(&mut self) -> Result<bool, LineError> {
        const MOST: u64 = LINE_MAX_BYTES as u64 + 1;
        loop {
            self.buffer.clear();
            let line = self.line + 1;
            let failed = |source| LineError::Read { line, source };
            let mut piece = (&mut self.source).take(MOST);
            let read = piece.read_until(b'\n', &mut self.buffer).map_err(failed)?;
            if read == 0 {
                return Ok(false);
            }
            self.line = line;
            if read > LINE_MAX_BYTES && self.buffer.last() != Some(&b'\n') {
                self.buffer = Vec::new();
                self.timers += 1;
                self.source.skip_until(b'\n').map_err(failed)?;
                return Err(LineError::TooLong { line });
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> Result<Option<Imported>, LineError> {
        loop {
            if !self.read_line()? {
                let place = std::mem::replace(&mut self.place, Place::Over);
                let line = self.line + 1;
                return match place {
                    Place::Before if self.line == 0 => Err(LineError::NotAnExport { line }),
                    Place::Before | Place::Within => Err(LineError::Torn { line }),
                    Place::Behind | Place::Over => Ok(None),
                };
            }
            let line = self.line;
            match self.place {
                Place::Before => {
                    self.place = Place::Within;
                    match first_line(&self.buffer) {
                        Some(found) if found > VERSION => {
                            return Err(LineError::Later { line, found });
                        }
                        Some(_) => {}
                        None => return Err(LineError::NotAnExport { line }),
                    }
                }
                Place::Behind => return Err(LineError::Behind { line }),
                Place::Within | Place::Over => {
                    self.timers += 1;
                    let read = timer(&self.buffer, line, self.now, self.revives);
                    let read = read.map_err(|problem| LineError::Field {
                        line,
                        detail: said(&problem),
                    })?;
                    match read {
                        Some(timer) => return Ok(Some(timer)),
                        None => {
                            self.place = Place::Behind;
                            let (found, written) = (self.timers - 1, last_line(&self.buffer));
                            if let Some(written) = written.filter(|written| *written != found) {
                                return Err(LineError::Miscounted {
                                    line,
                                    written,
                                    found,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Result<Imported, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.place == Place::Over {
            return None;
        }
        let read = self.read().transpose();
        if matches!(&read, Some(Err(error)) if error.is_last()) {
            self.place = Place::Over;
        }
        read
    }
}

/// The version of an export, if its first line is one of an export. A later version may have more fields.
fn first_line(text: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct First {
        format: String,
        version: u64,
    }
    let first: First = serde_json::from_slice(text).ok()?;
    (first.format == FORMAT).then_some(first.version)
}

/// How many timers an export has, if its last line says that.
fn last_line(text: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Last {
        timers: Option<u64>,
    }
    serde_json::from_slice::<Last>(text).ok()?.timers
}

/// What is wrong, behind where.
fn said(problem: &Problem) -> String {
    let (_, _, detail) = problem.parts();
    match problem.pointer() {
        None | Some("") => detail.to_owned(),
        Some(pointer) => format!("{pointer}: {detail}"),
    }
}

/// Reads a line. `None` if it is the last one.
fn timer(
    text: &[u8],
    line: u64,
    now: Timestamp,
    revives: bool,
) -> Result<Option<Imported>, Problem> {
    let value = json::parse_named("the line", text.trim_ascii())?;
    let mut object = Field::root(value).object()?;
    if object.has("end") {
        object.take("end");
        object.take("timers");
        object.finish()?;
        return Ok(None);
    }
    let queue = object.require("queue")?;
    let queue =
        QueueName::from_text(queue.text()?).map_err(|error| queue.malformed(error.to_string()))?;
    let key = object.require("key")?;
    let key = Key::new(key.text()?).map_err(|error| key.malformed(error.to_string()))?;
    let state = match object.take("state") {
        None => StateKind::Pending,
        Some(field) => {
            let text = field.text()?;
            let state = text.parse::<StateKind>();
            state.map_err(|_| field.malformed("a state is pending, delivering, done or dead"))?
        }
    };
    let recurs = ["every", "cron"].iter().any(|name| object.has(name));
    let is_once = !recurs && !object.has("every_after");
    let (fields, at) = set_fields(object, state == StateKind::Dead && revives && is_once)?;
    Ok(Some(Imported {
        line,
        queue: queue.to_string(),
        key: key.to_string(),
        state,
        fields,
        misses_run: recurs && at.is_some_and(|at| at < now),
    }))
}

/// The target of a timer that goes where its queue says, whether or not the queue says so by now.
const TO_QUEUE: &str = r#"{"endpoint":null}"#;

/// Appends a target. One that names no place leaves it to the queue, and says so: the timer is held until the queue
/// has an endpoint.
fn push_target(body: &mut String, field: &Field<'_>) {
    body.push_str("\"target\":");
    let is_named = |object: &Object<'_>| object.has("url") || object.has("endpoint");
    let Some(object) = field.object().ok().filter(|object| !is_named(object)) else {
        body.push_str(field.raw());
        return;
    };
    body.push_str("{\"endpoint\":null");
    for (name, field) in object.into_members() {
        let name = Value::String(name).to_string();
        for piece in [",", &name, ":", field.raw()] {
            body.push_str(piece);
        }
    }
    body.push('}');
}

/// The body of a set, and its `at`. What is due `at_once` says so in place of when it was due.
fn set_fields(object: Object<'_>, at_once: bool) -> Result<(String, Option<Timestamp>), Problem> {
    let mut body = String::from("{");
    let mut at = None;
    if at_once {
        body.push_str("\"in\":0");
    }
    let mut has_target = false;
    for (name, field) in object.into_members() {
        if !SET_FIELDS.contains(&name.as_str()) {
            return Err(field.malformed(format!("the field {name:?} is unknown")));
        }
        let is_when = matches!(name.as_str(), "at" | "in");
        if is_when && at_once {
            continue;
        }
        if name == "at" {
            at = parse_time(&field.text()?);
        }
        if body.len() > 1 {
            body.push(',');
        }
        if name == "target" {
            has_target = true;
            push_target(&mut body, &field);
            continue;
        }
        for piece in ["\"", &name, "\":", field.raw()] {
            body.push_str(piece);
        }
    }
    if !has_target {
        body.push_str(if body.len() > 1 { "," } else { "" });
        body.push_str("\"target\":");
        body.push_str(TO_QUEUE);
    }
    body.push('}');
    Ok((body, at))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const FIRST: &str = r#"{"format":"countwheel-timers","version":1,"exported":"x","more":[]}"#;
    const LAST: &str = r#"{"end":true}"#;

    fn read(text: &str) -> Vec<Result<Imported, String>> {
        let lines = Lines::new(text.as_bytes(), NOW, false);
        let read = lines.map(|line| line.map_err(|error| error.to_string()));
        read.take(100).collect()
    }

    fn line(key: &str) -> String {
        format!(r#"{{"queue":"q","key":"{key}","in":"1h","target":{{"url":"http://x/"}}}}"#)
    }

    fn errors(text: &str) -> Vec<String> {
        read(text).into_iter().filter_map(Result::err).collect()
    }

    #[test]
    fn a_line_is_a_name_and_the_body_of_a_set_as_it_stands() {
        let text = format!(
            "{FIRST}\n\n{}\n  {{\"queue\":\"q\",\"key\":\"ä/b\",\"state\":\"delivering\",\"body\" : \
             \"1\\u0000\",\"in\":1.0}} \r\n{LAST}\n",
            line("a")
        );
        let timers: Vec<_> = read(&text).into_iter().map(Result::unwrap).collect();
        let told = timers.iter().map(|it| (it.line, it.key.as_str(), it.state));
        let told: Vec<_> = told.collect();
        assert_eq!(
            told,
            [
                (3, "a", StateKind::Pending),
                (4, "ä/b", StateKind::Delivering)
            ]
        );
        let fields: Value = serde_json::from_str(&timers[1].fields).unwrap();
        let to_queue = json!({"endpoint": null});
        assert_eq!(
            fields,
            json!({"body": "1\u{0}", "in": 1.0, "target": to_queue})
        );
    }

    #[test]
    fn a_target_that_names_no_place_is_that_of_the_queue() {
        let target = |target: &str| {
            let line = format!(r#"{{"queue":"q","key":"k","in":1,"target":{target}}}"#);
            let text = format!("{FIRST}\n{line}\n{LAST}\n");
            let timer = read(&text).swap_remove(0).unwrap();
            let fields: Value = serde_json::from_str(&timer.fields).unwrap();
            fields["target"].clone()
        };
        assert_eq!(target("{}"), json!({"endpoint": null}));
        let with_path = json!({"endpoint": null, "path": "/a", "headers": {"x": "\""}});
        assert_eq!(target(r#"{"path":"/a","headers":{"x":"\""}}"#), with_path);
        // Whatever else there is, the server judges.
        for same in [r#"{"url":"http://x/"}"#, r#"{"endpoint":"e"}"#, "7"] {
            assert_eq!(target(same).to_string(), same);
        }
    }

    #[test]
    fn lines_that_are_missing_are_noticed_at_the_last_one() {
        let of = |timers: u64| {
            let (first, second) = (line("a"), r#"{"queue":"q"}"#);
            format!("{FIRST}\n{first}\n{second}\n{{\"end\":true,\"timers\":{timers}}}\n")
        };
        // A bad line is one of them.
        assert_eq!(errors(&of(2)).len(), 1);
        let expected = "line 4: the export is not whole: it had 3 timers, and 2 stand here";
        assert!(
            errors(&of(3))[1].starts_with(expected),
            "{:?}",
            errors(&of(3))
        );
        assert!(errors(&of(1))[1].contains("it had 1 timers"));
    }

    #[test]
    fn each_way_to_be_wrong_is_told_with_its_line() {
        let whole = |middle: &str| format!("{FIRST}\n{middle}\n{LAST}\n");
        for (text, expected) in [
            ("", "line 1: an export begins with"),
            ("\n\nnonsense\n", "line 3: an export begins with"),
            (&line("a"), "line 1: an export begins with"),
            (
                r#"{"format":"countwheel-timers","version":2}"#,
                "line 1: the export has version 2, and this program reads versions up to 1",
            ),
            (FIRST, "line 2: the export is not whole"),
            (
                &format!("{FIRST}\n{}\n", line("a")),
                "line 3: the export is not whole",
            ),
            // Torn within a line.
            (
                &format!("{FIRST}\n{}", &line("a")[..40]),
                "line 2: the line is not JSON: EOF",
            ),
            (&whole("[]"), "line 2: must be an object"),
            (&whole("\u{1}"), "line 2: the line is not JSON"),
            (&whole(r#"{"key":"a"}"#), "line 2: /queue: the field"),
            (
                &whole(r#"{"queue":"q","key":"a","key":"b"}"#),
                "line 2: /key: the name",
            ),
            (
                &whole(r#"{"queue":"q","key":"a","state":"gone"}"#),
                "line 2: /state: a state is",
            ),
            (
                &whole(r#"{"queue":"q","key":"a","ulr":"x"}"#),
                "line 2: /ulr: the field \"ulr\" is unknown",
            ),
            (&whole(r#"{"queue":"","key":"a"}"#), "line 2: /queue: "),
            (&whole(r#"{"queue":"q","key":"a\n"}"#), "line 2: /key: "),
            (
                &format!("{FIRST}\n{LAST}\n{}\n", line("a")),
                "line 3: something stands behind",
            ),
        ] {
            let errors = errors(text);
            assert!(
                errors.first().is_some_and(|it| it.starts_with(expected)),
                "{text}: {errors:?}"
            );
        }
        let latin = [FIRST.as_bytes(), b"\n\"\xe4\"\n"].concat();
        let mut lines = Lines::new(&latin[..], NOW, false);
        let error = lines.next().and_then(Result::err).unwrap();
        assert_eq!(error.to_string(), "line 2: the line is not UTF-8");
    }

    #[test]
    fn what_is_wrong_with_one_line_says_nothing_of_the_next() {
        let long = "x".repeat(LINE_MAX_BYTES + 10);
        let text = format!("{FIRST}\n{long}\n[]\n{}\n{LAST}\n", line("a"));
        let read = read(&text);
        let told: Vec<_> = read
            .iter()
            .map(|it| it.as_ref().map(|it| it.line))
            .collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].is_err() && told[1].is_err());
        assert_eq!(told[2], Ok(4));
        // A later version is read by nobody here, and what is torn has no next line.
        let later = r#"{"format":"countwheel-timers","version":2}"#;
        assert_eq!(self::read(&format!("{later}\n{}\n", line("a"))).len(), 1);
        assert_eq!(self::read(FIRST).len(), 1);
    }

    fn exported(shown: &str) -> Value {
        let shown: Box<RawValue> = serde_json::from_str(shown).unwrap();
        let line = of(&shown).unwrap().expect("it can be set");
        assert!(!line.contains('\n'));
        serde_json::from_str(&line).unwrap()
    }

    const TIMER: &str = r#""queue":"q","key":"k","state":"pending","due":"2026-03-01T12:00:00.000000Z",
        "target":{"url":"http://x/","headers":{"a":"b"},"timeout":"15s"},"retry":{"fixed":"5s"}"#;

    #[test]
    fn a_timer_is_written_as_it_is_set() {
        let shown = format!(
            "{{{TIMER},\"content_type\":\"application/json\",\"body\":\"{{\\\"n\\\":\\n1.00}}\",\
             \"missed\":\"collapse\",\"revision\":7,\"attempts\":[]}}"
        );
        let line = exported(&shown);
        assert_eq!(
            line,
            serde_json::json!({
                "queue": "q", "key": "k", "state": "pending", "at": "2026-03-01T12:00:00.000000Z",
                "target": {"url": "http://x/", "headers": {"a": "b"}, "timeout": "15s"},
                "retry": {"fixed": "5s"}, "missed": "collapse",
                "content_type": "application/json", "body": "{\"n\":\n1.00}",
            })
        );
        let shown = TIMER.replace(
            r#"{"url":"http://x/","headers":{"a":"b"},"timeout":"15s"}"#,
            "null",
        );
        let shown: Box<RawValue> = serde_json::from_str(&format!("{{{shown}}}")).unwrap();
        assert_eq!(of(&shown).unwrap(), None);
    }

    #[test]
    fn a_series_goes_on_at_its_next_point_with_the_runs_that_are_left() {
        let nominal = "2026-03-01T11:59:00.000000Z";
        let position = format!(r#""run":3,"nominal":"{nominal}","missed_runs":0,"next_runs":[]"#);
        let line = |schedule: &str| {
            exported(&format!(
                "{{{TIMER},\"recurring\":{{{schedule},{position}}}}}"
            ))
        };
        let at = |line: &Value| line["at"].as_str().unwrap_or_default().to_owned();
        let every = line(
            r#""every":"1h","at":"2020-01-01T00:00:00.000000Z","repeats":10,"overlap":"skip""#,
        );
        assert_eq!(at(&every), nominal);
        assert_eq!(
            (&every["repeats"], &every["overlap"]),
            (&8.into(), &"skip".into())
        );
        assert_eq!(at(&line(r#""cron":"@daily","zone":"UTC""#)), nominal);
        // The next run of a fixed delay is where it is due.
        assert_eq!(
            at(&line(r#""every_after":"1h""#)),
            "2026-03-01T12:00:00.000000Z"
        );
        assert_eq!(line(r#""every":"1h","repeats":2"#)["repeats"], 1);
    }

    #[test]
    fn a_series_whose_run_has_passed_is_told() {
        let at = |at: Timestamp, schedule: &str| {
            let at = format_time(at);
            let text = format!(r#"{{"queue":"q","key":"a","at":"{at}",{schedule}}}"#);
            timer(text.as_bytes(), 1, NOW, false)
                .unwrap()
                .unwrap()
                .misses_run
        };
        let past = NOW.saturating_sub(Duration::from_secs(1));
        assert!(at(past, r#""every":"1h""#) && at(past, r#""cron":"@daily""#));
        assert!(!at(NOW, r#""every":"1h""#));
        assert!(!at(past, r#""every_after":"1h""#) && !at(past, r#""body":1"#));
    }

    #[test]
    fn what_is_dead_is_due_at_once_when_it_is_revived() {
        let fields = |revives| {
            let text =
                br#"{"queue":"q","key":"a","state":"dead","at":"2026-03-01T12:00:00Z","retry":{}}"#;
            let fields = timer(text, 1, NOW, revives).unwrap().unwrap().fields;
            serde_json::from_str::<Value>(&fields).unwrap()
        };
        let target = json!({"endpoint": null});
        assert_eq!(
            fields(true),
            json!({"in": 0, "retry": {}, "target": target})
        );
        let at = "2026-03-01T12:00:00Z";
        assert_eq!(
            fields(false),
            json!({"at": at, "retry": {}, "target": target})
        );
    }
}
