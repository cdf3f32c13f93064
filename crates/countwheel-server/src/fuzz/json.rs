//! Bodies of requests and lines of batches.
//!
//! - What is read is JSON, without doubled names, within the depth; and what is refused is not.
//! - Each value is found by its pointer (RFC 6901), and is what a second reader finds there.
//! - An object of a shape has the fields of the shape, and all that the shape needs.
//! - The fields of a set that are read, written again and read again are the same. They keep the limits: how far ahead a
//!   timer is due, how long a URL and headers may be, which headers and which timeouts a target may have.

use std::collections::BTreeSet;
use std::fmt;

use countwheel_durable::Due;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::{Seen, seed};
use crate::api::described::{Shape, requests};
use crate::api::json::{self, Field, Kind, MAX_DEPTH, Object};
use crate::api::problem::Problem;
use crate::api::timers::{self, Content, SetFields, Target};
use crate::guard::Targets;
use crate::job::To;
use crate::time::{format_duration, format_time};

/// What the first byte of an input tells the rest to be.
static SHAPES: [&Shape; 11] = [
    &requests::SET,
    &requests::MOVE,
    &requests::PUT_QUEUE,
    &requests::PUT_ENDPOINT,
    &requests::JOB,
    &requests::PURGE,
    &requests::LEASE_OF_QUEUES,
    &requests::CREATE_TOKEN,
    &requests::DRAIN,
    &requests::BACKFILL,
    &requests::SIMULATE,
];

pub(super) fn run(input: &[u8]) -> Seen {
    let Some((&kind, text)) = input.split_first() else {
        return Seen::Refused;
    };
    let tree = std::str::from_utf8(text).ok();
    let tree = tree.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    let tree = tree.and_then(|raw| Tree::of(raw, 0));
    let Ok(value) = json::parse(text) else {
        let is_good = tree.is_some_and(|tree| tree.is_strict());
        assert!(!is_good, "refused, and good");
        return Seen::Refused;
    };
    let tree = tree.expect("what is read is JSON");
    assert!(tree.is_strict(), "a name is there twice");
    let root = Field::root(value);
    walk(&root, &tree, "", &root);
    // A line says itself of which shape it is.
    let line = root.object().ok().and_then(|object| object.peek("op"));
    let line = line.and_then(|op| requests::line(&op.text().ok()?));
    if let Some(shape) = line {
        shaped(&root, &tree, shape);
    }
    match SHAPES.get(usize::from(kind)) {
        None => Seen::Right,
        Some(shape) => {
            let is_right = shaped(&root, &tree, shape);
            let is_set = usize::from(kind) == 0;
            Seen::of(is_right && (!is_set || is_set_right(&root)))
        }
    }
}

/// What a second reader makes of a text.
enum Tree {
    /// A value without parts, as `serde_json` reads it; `None` for a number without bounds.
    Leaf(Option<Value>),
    Text(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    /// `None` for what is too deep, or has an escape that is no character.
    fn of(raw: &RawValue, depth: usize) -> Option<Self> {
        let text = raw.get();
        Some(match text.as_bytes().first()? {
            b'[' | b'{' if depth == MAX_DEPTH => return None,
            b'[' => {
                let parts: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                let parts = parts.into_iter().map(|raw| Self::of(raw, depth + 1));
                Self::Array(parts.collect::<Option<_>>()?)
            }
            b'{' => {
                let Pairs(parts) = serde_json::from_str(text).ok()?;
                let parts = parts.into_iter();
                let parts = parts.map(|(name, raw)| Some((name, Self::of(raw, depth + 1)?)));
                Self::Object(parts.collect::<Option<_>>()?)
            }
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            _ => Self::Leaf(serde_json::from_str(text).ok()),
        })
    }

    /// Whether no name is in one object twice.
    fn is_strict(&self) -> bool {
        match self {
            Self::Array(parts) => parts.iter().all(Self::is_strict),
            Self::Object(parts) => {
                let names: BTreeSet<_> = parts.iter().map(|(name, _)| name).collect();
                names.len() == parts.len() && parts.iter().all(|(_, part)| part.is_strict())
            }
            Self::Leaf(_) | Self::Text(_) => true,
        }
    }

    /// What a pointer leads to.
    fn at(&self, pointer: &str) -> Option<&Self> {
        let Some(rest) = pointer.strip_prefix('/') else {
            return pointer.is_empty().then_some(self);
        };
        let end = rest.find('/').unwrap_or(rest.len());
        let name = rest[..end].replace("~1", "/").replace("~0", "~");
        let part = match self {
            Self::Array(parts) => parts.get(name.parse::<usize>().ok()?),
            Self::Object(parts) => {
                let found = parts.iter().find(|(known, _)| *known == name);
                found.map(|(_, part)| part)
            }
            Self::Leaf(_) | Self::Text(_) => None,
        };
        part?.at(&rest[end..])
    }
}

/// The members of an object, all of them.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    all.push(pair);
                }
                Ok(Pairs(all))
            }
        }

        from.deserialize_map(All)
    }
}

/// Holds a value and its parts to what stands there, and their pointers to where that is.
fn walk(field: &Field<'_>, tree: &Tree, pointer: &str, root: &Field<'_>) {
    assert_eq!(field.pointer(), pointer);
    assert!(root.raw().contains(field.raw()), "{pointer}");
    match (field.kind(), tree) {
        (Kind::Text(text), Tree::Text(expected)) => assert_eq!(text, *expected, "{pointer}"),
        (Kind::Null, Tree::Leaf(Some(Value::Null))) => {}
        (Kind::Bool, Tree::Leaf(Some(Value::Bool(expected)))) => {
            assert!(field.truth().is_ok_and(|it| it == *expected), "{pointer}");
        }
        (Kind::Number(_), Tree::Leaf(expected)) => {
            let whole = field.whole().ok().flatten();
            let expected = expected.as_ref();
            if let Some(expected) = expected.and_then(Value::as_u64) {
                assert_eq!(whole, Some(expected), "{pointer}");
            } else if let Some(whole) = whole {
                // Written with a fraction of zeros.
                let is_same = field.raw().split_once('.').is_some_and(|(before, after)| {
                    before.parse::<i128>() == Ok(whole.into()) && after.bytes().all(|it| it == b'0')
                });
                assert!(is_same || field.raw() == "-0", "{pointer}: {whole}");
            }
        }
        (Kind::Array, Tree::Array(parts)) => {
            let elements = field.elements().unwrap_or_default();
            assert_eq!(elements.len(), parts.len(), "{pointer}");
            for (index, (element, part)) in elements.iter().zip(parts).enumerate() {
                walk(element, part, &format!("{pointer}/{index}"), root);
            }
        }
        (Kind::Object, Tree::Object(parts)) => {
            let object = field.object().ok();
            let members = object.map(Object::into_members);
            let members = members.unwrap_or_default();
            assert_eq!(members.len(), parts.len(), "{pointer}");
            for ((name, member), (expected, part)) in members.iter().zip(parts) {
                assert_eq!(name, expected, "{pointer}");
                let found = tree.at(&member.pointer()[pointer.len()..]);
                let is_there = found.is_some_and(|found| std::ptr::eq(found, part));
                assert!(is_there, "{} leads elsewhere", member.pointer());
                walk(member, part, member.pointer(), root);
            }
        }
        _ => panic!("{pointer} is another kind of value"),
    }
}

/// Whether a value is an object of the shape; whether it is, is held to the table.
fn shaped(root: &Field<'_>, tree: &Tree, shape: &'static Shape) -> bool {
    let read = root.object_of(shape);
    let Tree::Object(parts) = tree else {
        assert!(read.is_err(), "no object");
        return false;
    };
    let is_known = parts.iter().all(|(name, _)| shape.field(name).is_some());
    let has_all = shape
        .all()
        .filter(|field| field.is_required)
        .all(|field| parts.iter().any(|(name, _)| name == field.name));
    if read.is_ok() {
        assert!(is_known && has_all, "no {}", shape.name);
    }
    read.is_ok()
}

/// What a set says.
struct Set<'a> {
    due: Due,
    recurs: bool,
    target: Option<Target>,
    content: Content<'a>,
}

fn read_set<'a>(root: &Field<'a>) -> Result<Set<'a>, Problem> {
    let mut object = root.object_of(&requests::SET)?;
    for other in ["spread", "serial_key", "priority", "adaptive", "tags"] {
        object.take(other);
    }
    let fields = SetFields::take(&mut object)?;
    object.finish()?;
    let target = fields.target(&Targets::public(), false)?;
    if let Some(target) = &target {
        fields.check_method(&target.method)?;
    }
    let content = fields.content()?;
    fields.policy()?;
    Ok(Set {
        due: fields.due,
        recurs: fields.options.recurrence.is_some(),
        target,
        content,
    })
}

fn is_set_right(root: &Field<'_>) -> bool {
    let Ok(set) = read_set(root) else {
        return false;
    };
    if let Due::In(delay) = set.due {
        assert!(delay <= Due::MAX_AHEAD, "{delay:?} ahead");
    }
    if let Some(target) = &set.target {
        check(target);
    }
    let sent = |name| {
        let field = root.object().ok().and_then(|object| object.peek(name));
        field.map(|field| field.raw())
    };
    match &set.content {
        Content::Json(raw) => assert_eq!(sent("body"), Some(*raw), "as it was sent"),
        Content::Bytes { bytes, .. } => {
            let text = sent("body_base64").and_then(|raw| serde_json::from_str(raw).ok());
            assert_eq!(text, Some(BASE64_STANDARD.encode(bytes)));
        }
        Content::Nothing | Content::Text { .. } => {}
    }
    let text = written(&set);
    let again = json::parse(text.as_bytes());
    let again = again.and_then(|value| read_set(&Field::root(value)).map(|set| owned(&set)));
    let again = again.unwrap_or_else(|problem| panic!("{text}: {problem:?}"));
    let (target, content, due) = owned(&set);
    assert_eq!((&again.0, &again.1), (&target, &content), "{text}");
    if !set.recurs {
        assert_eq!(again.2, due, "{text}");
    }
    true
}

/// The parts that are compared, without what they are borrowed from.
fn owned(set: &Set<'_>) -> (Option<Target>, String, Due) {
    (set.target.clone(), format!("{:?}", set.content), set.due)
}

/// The limits of a target, as the API's document states them.
fn check(target: &Target) {
    match &target.to {
        To::Url(url) => {
            assert!(url.len() <= 2_048 && url.is_ascii(), "{url}");
            let lower = url.to_ascii_lowercase();
            assert!(lower.starts_with("http://") || lower.starts_with("https://"));
        }
        To::Endpoint { path, .. } => assert!(path.len() <= 2_048 && path.is_ascii()),
    }
    let mut bytes = 0;
    let mut names = BTreeSet::new();
    for (name, value) in &target.headers {
        bytes += name.len() + value.len();
        assert!(names.insert(name), "{name} is there twice");
        assert!(
            !name
                .bytes()
                .any(|byte| byte.is_ascii_uppercase() || b"_: \r\n".contains(&byte))
        );
        let is_plain = value.chars().all(|it| it == '\t' || !it.is_control());
        assert!(is_plain, "{value:?}");
        let is_own = ["content-length", "transfer-encoding", "host", "connection"];
        assert!(!is_own.contains(&&**name) && !name.starts_with("webhook-"));
    }
    assert!(bytes <= 8_192 && names.len() <= 32, "{bytes} bytes");
    if let Some(timeout) = target.timeout {
        assert!((timers::TIMEOUT_MIN..=timers::TIMEOUT_MAX).contains(&timeout));
    }
}

/// A set that says the same; one that recurs is written as one that does not.
fn written(set: &Set<'_>) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut parts = vec![match set.due {
        Due::In(delay) => format!("\"in\":{}", quoted(&format_duration(delay))),
        Due::At(at) => format!("\"at\":{}", quoted(&format_time(at))),
    }];
    if let Some(target) = &set.target {
        let to = match &target.to {
            To::Url(url) => format!("\"url\":{}", quoted(url)),
            To::Endpoint { name, path } => {
                let name = name.as_deref().map_or("null".to_owned(), quoted);
                format!("\"endpoint\":{name},\"path\":{}", quoted(path))
            }
        };
        let headers = target.headers.iter();
        let headers = headers.map(|(name, value)| format!("{}:{}", quoted(name), quoted(value)));
        let headers = headers.collect::<Vec<_>>().join(",");
        let timeout = target.timeout.map(|it| quoted(&format_duration(it)));
        let timeout = timeout.map_or(String::new(), |it| format!(",\"timeout\":{it}"));
        let method = quoted(target.method.as_str());
        parts.push(format!(
            "\"target\":{{{to},\"method\":{method},\"headers\":{{{headers}}}{timeout}}}"
        ));
    }
    match &set.content {
        Content::Nothing => {}
        Content::Json(raw) => parts.push(format!("\"body\":{raw}")),
        Content::Text { content_type, text } => {
            parts.push(format!("\"body\":{}", quoted(text)));
            parts.push(format!("\"content_type\":{}", quoted(content_type)));
        }
        Content::Bytes {
            content_type,
            bytes,
        } => {
            let bytes = BASE64_STANDARD.encode(bytes);
            parts.push(format!("\"body_base64\":{}", quoted(&bytes)));
            parts.push(format!("\"content_type\":{}", quoted(content_type)));
        }
    }
    format!("{{{}}}", parts.join(","))
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let texts: [(u8, &str); 24] = [
        (
            255,
            r#"[1, -0, 5.0, 1e3, 18446744073709551615, "a\u00e9\ud83d\ude00", null, true, {"a/b~c": [{}]}]"#,
        ),
        (
            255,
            r#"{"a": {"a": 1, "b": [[], [1, {"a": 2}]]}, "\u0062": "\"\\/", "": 0.5}"#,
        ),
        (
            0,
            r#"{"in": "30m", "target": {"url": "https://shop.example/hook?id=7", "method": "PUT", "headers": {"x-id": "7", "authorization": "Bearer a"}, "timeout": "20s"}, "body": {"order": 42}}"#,
        ),
        (
            0,
            r#"{"at": "2030-01-02T03:04:05.678901Z", "target": {"endpoint": "shop", "path": "/a?b=c"}, "body": "text", "content_type": "text/plain"}"#,
        ),
        (
            0,
            r#"{"in": 1500, "body_base64": "AAEC/w==", "retry": {"fixed": "5s", "max_attempts": 3}, "missed": "fire"}"#,
        ),
        (
            0,
            r#"{"cron": "0 9 * * 1-5", "zone": "Europe/Berlin", "jitter": "5m", "repeats": 10, "overlap": "queue", "target": {"url": "http://x.example/"}}"#,
        ),
        (
            0,
            r#"{"every": "1h", "at": "2030-01-01T00:00:00+01:00", "until": "2031-01-01T00:00:00Z", "target": {"endpoint": null}}"#,
        ),
        (
            0,
            r#"{"every_after": "10s", "in": 0, "target": {"url": "http://[2606:4700::1111]:8443/"}, "tags": ["a", "b"], "priority": 5}"#,
        ),
        (
            0,
            r#"{"in": "PT1H", "spread": "1m", "serial_key": "k", "retry": {"fixed": "1s"}}"#,
        ),
        (1, r#"{"by": "-5m"}"#),
        (1, r#"{"at": "2030-01-01T00:00:00Z"}"#),
        (
            2,
            r#"{"endpoint": "shop", "concurrency": 5, "serial": true, "retention": {"done": "1h", "dead": "30d"}}"#,
        ),
        (
            3,
            r#"{"url": "https://shop.example/", "headers": {"x-a": "b"}, "timeout": "5s", "breaker": {"failures": 5}}"#,
        ),
        (
            4,
            r#"{"queue": "orders", "action": "move", "filter": {"tags": ["eu"]}, "move": {"by": "1h"}, "dry_run": true}"#,
        ),
        (
            5,
            r#"{"states": ["done"], "due_before": "2026-01-01T00:00:00Z"}"#,
        ),
        (
            6,
            r#"{"queues": ["jobs", "mail/de"], "max": 10, "wait": "20s"}"#,
        ),
        (
            7,
            r#"{"name": "worker", "scopes": ["deliver", "read"], "expires_in": "30d"}"#,
        ),
        (8, r#"{"mode": "hold"}"#),
        (
            9,
            r#"{"from": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z"}"#,
        ),
        (10, r#"{"retry": {"fixed": "1s"}, "limit": 5}"#),
        (
            255,
            r#"{"op": "set", "queue": "orders", "key": "a/1", "in": "5s", "target": {"url": "http://x.example/"}, "if_none_match": "*"}"#,
        ),
        (
            255,
            r#"{"op": "remove", "queue": "orders", "key": "a", "only": "pending", "if_match": 7}"#,
        ),
        (
            255,
            r#"{"op": "ack", "queue": "jobs", "key": "a", "token": 12}"#,
        ),
        (
            255,
            r#"{"op": "nack", "queue": "jobs", "key": "a", "token": 12, "reason": "no paper", "retry_after": "1m"}"#,
        ),
    ];
    texts.map(|(kind, text)| seed(kind, text)).to_vec()
}
