//! The parts of a request outside its fields: the timer's name in the path, the query, the
//! preconditions, the media type and the bytes of its body.

use std::borrow::Cow;
use std::ops::Deref;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Method, Request, Uri, header};
use countwheel_durable::{Key, Precondition, QueueName, Revision, TimerName};
use http_body_util::BodyExt;
use memmap2::MmapMut;
use percent_encoding::percent_decode_str;

use super::App;
use super::access::Identity;
use super::drain;
use super::idempotency::IDEMPOTENCY_KEY;
use super::problem::{Code, Problem};
use crate::bodies::Share;
use crate::callers::Caller;
use crate::resources::Resources;
use crate::resources::endpoint::EndpointName;

/// The longest body, in bytes, unless it sets a timer of a queue that takes longer ones.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;
/// How long everything but the timer's body may be in the body of a set of such a queue.
const AROUND_BODY_BYTES: u64 = 64 << 10;
/// So much of each body is not counted as memory for bodies, so that small requests go on while large
/// ones have it all. The number of connections bounds it.
const FREE_BODY_BYTES: usize = 8 << 10;
/// A longer body is not on the heap.
const SMALL_BODY_BYTES: usize = 16 << 10;
/// How long a caller may take to send a body.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
/// So many bytes more of it may take a second longer.
const BODY_BYTES_A_SECOND: usize = 1 << 20;

/// The longest body of a request that sets a timer of a queue with this limit: what a timer's body takes in base64,
/// and what stands around it.
pub(crate) const fn body_bytes_for(payload: u64) -> u64 {
    let bytes = payload.div_ceil(3) * 4 + AROUND_BODY_BYTES;
    if bytes < MAX_BODY_BYTES as u64 {
        MAX_BODY_BYTES as u64
    } else {
        bytes
    }
}

/// What a POST asks of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Fire,
    Revive,
    Resend,
    Backfill,
}

/// What a POST asks of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueVerb {
    Pause,
    Drain,
    Resume,
    Purge,
    CancelPurge,
    Lease,
}

/// The queue that the raw path `/v1/queues/{queue}/…` names.
pub(crate) fn queue_of(uri: &Uri) -> Result<QueueName, Problem> {
    queue(segment(uri, 3))
}

/// The queue and the verb of `/v1/queues/{queue}:{verb}`, split at the last colon before anything is
/// decoded.
pub(crate) fn queue_and_verb_of(uri: &Uri) -> Result<(QueueName, QueueVerb), Problem> {
    let (encoded, verb) = match segment(uri, 3).rsplit_once(':') {
        Some((encoded, "pause")) => (encoded, QueueVerb::Pause),
        Some((encoded, "drain")) => (encoded, QueueVerb::Drain),
        Some((encoded, "resume")) => (encoded, QueueVerb::Resume),
        Some((encoded, "purge")) => (encoded, QueueVerb::Purge),
        Some((encoded, "cancel-purge")) => (encoded, QueueVerb::CancelPurge),
        Some((encoded, "lease")) => (encoded, QueueVerb::Lease),
        _ => return Err(drain::no_such_verb()),
    };
    Ok((queue(encoded)?, verb))
}

fn queue(encoded: &str) -> Result<QueueName, Problem> {
    let queue = decode(encoded)
        .ok_or_else(|| Problem::new(Code::InvalidQueue, "the queue name is not UTF-8"))?;
    Ok(QueueName::from_text(queue)?)
}

/// The endpoint that the raw path `/v1/endpoints/{name}` names.
pub(crate) fn endpoint_of(uri: &Uri) -> Result<EndpointName, Problem> {
    let name = decode(segment(uri, 3));
    let name = name.and_then(|name| EndpointName::new(&name).ok());
    name.ok_or_else(invalid_endpoint)
}

/// The endpoint of `/v1/endpoints/{name}:test`, split at the last colon before anything is decoded.
pub(crate) fn tested_endpoint_of(uri: &Uri) -> Result<EndpointName, Problem> {
    let Some((encoded, "test")) = segment(uri, 3).rsplit_once(':') else {
        let detail = "an endpoint takes POST with :test at the end of its path";
        return Err(Problem::new(Code::NotFound, detail));
    };
    let name = decode(encoded);
    let name = name.and_then(|name| EndpointName::new(&name).ok());
    name.ok_or_else(invalid_endpoint)
}

/// What is no name of an endpoint.
pub(crate) fn invalid_endpoint() -> Problem {
    Problem::new(
        Code::InvalidEndpoint,
        "an endpoint's name is 1 to 128 ASCII letters, digits and . _ : -, in a namespace other than default with the \
         name of that and / in front",
    )
}

/// The timer that the raw path `/v1/queues/{queue}/timers/{key}` names. The key is decoded
/// exactly once, so `%252F` is the key `%2F`.
pub(crate) fn timer_of(uri: &Uri) -> Result<TimerName, Problem> {
    Ok(TimerName {
        queue: queue_of(uri)?,
        key: key(segment(uri, 5))?,
    })
}

/// The timer and the verb of `/v1/queues/{queue}/timers/{key}:{verb}`, split at the last
/// colon before anything is decoded.
pub(crate) fn timer_and_verb_of(uri: &Uri) -> Result<(TimerName, Verb), Problem> {
    let queue = queue_of(uri)?;
    let split = segment(uri, 5).rsplit_once(':');
    let (encoded, verb) = match split {
        Some((encoded, "fire")) => (encoded, Verb::Fire),
        Some((encoded, "revive")) => (encoded, Verb::Revive),
        Some((encoded, "resend")) => (encoded, Verb::Resend),
        Some((encoded, "backfill")) => (encoded, Verb::Backfill),
        _ => {
            return Err(Problem::new(
                Code::NotFound,
                "a timer takes POST with :fire, :revive, :resend or :backfill at the end of its path",
            ));
        }
    };
    let key = key(encoded)?;
    Ok((TimerName { queue, key }, verb))
}

/// The part of the raw path after its `index`-th slash.
fn segment(uri: &Uri, index: usize) -> &str {
    uri.path().split('/').nth(index).unwrap_or_default()
}

/// The same, decoded; `None` if it is not UTF-8.
pub(crate) fn text_segment(uri: &Uri, index: usize) -> Option<Cow<'_, str>> {
    decode(segment(uri, index))
}

fn key(encoded: &str) -> Result<Key, Problem> {
    let key =
        decode(encoded).ok_or_else(|| Problem::new(Code::InvalidKey, "the key is not UTF-8"))?;
    Ok(Key::new(key)?)
}

/// A part of a path, decoded; `None` if it is not UTF-8.
pub(super) fn decode(encoded: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(encoded).decode_utf8().ok()
}

/// The parameters of a query, each known and given once.
#[derive(Debug)]
pub(crate) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    /// Reads a query that may have the parameters `known`, and no other.
    pub(crate) fn of(uri: &'a Uri, known: &[&str]) -> Result<Self, Problem> {
        Self::of_form(uri.query().unwrap_or_default(), known)
    }

    /// Reads a form that a page sends, which has the form of a query.
    pub(crate) fn of_form(text: &'a str, known: &[&str]) -> Result<Self, Problem> {
        let mut parameters: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        let pairs = text.split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (decode_form(name), decode_form(value)) else {
                return Err(Problem::malformed("the query is not UTF-8"));
            };
            if !known.contains(&name.as_ref()) {
                return Err(Problem::malformed(format!(
                    "the query parameter {name:?} is unknown"
                )));
            }
            if parameters.iter().any(|(before, _)| *before == name) {
                return Err(Problem::malformed(format!(
                    "the query parameter {name:?} is given twice"
                )));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(parameter, _)| parameter == name)?;
        Some(&found.1)
    }

    /// The parameter as `read` understands it; refused if it does not.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        what: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        match read(text) {
            Some(value) => Ok(Some(value)),
            None => Err(Problem::malformed(format!(
                "the query parameter {name:?} must be {what}"
            ))),
        }
    }
}

/// In a query, `+` stands for a space.
fn decode_form(encoded: &str) -> Option<Cow<'_, str>> {
    if encoded.contains('+') {
        let spaced = encoded.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
        Some(Cow::Owned(decoded.into_owned()))
    } else {
        decode(encoded)
    }
}

/// Which preconditions a request may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Honoured {
    /// None: one that is sent is refused, not passed over.
    Nothing,
    /// `If-Match: "<revision>"` or `If-Match: *`.
    IfMatch,
    /// That, or `If-None-Match: *`.
    Both,
}

/// What must hold of the timer for a request to do anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    /// There is a timer of that name, in whatever state and of whatever revision.
    Exists,
    /// What the engine compares.
    Engine(Precondition),
}

impl Condition {
    /// The condition of a request that does nothing anyway where there is no timer.
    pub(crate) const fn of_existing(self) -> Precondition {
        match self {
            Self::Exists => Precondition::None,
            Self::Engine(precondition) => precondition,
        }
    }
}

/// Conditions that no request honours: a timer has a revision and no date.
const OTHER_CONDITIONS: [HeaderName; 3] = [
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
];

/// The precondition in the headers.
pub(crate) fn precondition(headers: &HeaderMap, honoured: Honoured) -> Result<Condition, Problem> {
    if let Some(name) = OTHER_CONDITIONS
        .iter()
        .find(|name| headers.contains_key(*name))
    {
        let detail = format!("the header {name} is not supported here");
        return Err(Problem::malformed(detail));
    }
    let if_match = only(headers, &header::IF_MATCH)?;
    let if_none_match = only(headers, &header::IF_NONE_MATCH)?;
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::Engine(Precondition::None)),
        (Some(_), _) if honoured == Honoured::Nothing => {
            Err(Problem::malformed("If-Match is not supported here"))
        }
        (_, Some(_)) if honoured != Honoured::Both => {
            Err(Problem::malformed("If-None-Match is not supported here"))
        }
        (Some(_), Some(_)) => Err(Problem::malformed(
            "If-Match and If-None-Match cannot be combined",
        )),
        (None, Some("*")) => Ok(Condition::Engine(Precondition::Absent)),
        (None, Some(_)) => Err(Problem::malformed("If-None-Match must be *")),
        (Some("*"), None) => Ok(Condition::Exists),
        (Some(tag), None) => tag
            .strip_prefix('"')
            .and_then(|tag| tag.strip_suffix('"'))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .map(|revision| Condition::Engine(Precondition::Revision(Revision(revision))))
            .ok_or_else(|| Problem::malformed("If-Match must be one revision in quotes, or *")),
    }
}

/// Whether the caller of a GET has what the tag `revision` names, by its `If-None-Match`: a list of
/// tags, each weak or not, or `*`. What is none of these names nothing.
pub(crate) fn has_already(headers: &HeaderMap, revision: Revision) -> Known {
    let tag = format!("\"{revision}\"");
    let values = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut known = Known::Nothing;
    for value in values.filter_map(|value| value.to_str().ok()) {
        for named in value.split(',').map(str::trim) {
            if named == "*" {
                return Known::Anything;
            }
            if named.strip_prefix("W/").unwrap_or(named) == tag {
                known = Known::Revision;
            }
        }
    }
    known
}

/// What the caller of a GET says to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// Not this revision.
    Nothing,
    /// This revision.
    Revision,
    /// Whatever there is.
    Anything,
}

/// Refuses what would change what a request does and is nowhere honoured.
pub(crate) fn unknown_wishes(request: &Request<Body>) -> Option<Problem> {
    let headers = request.headers();
    if headers.contains_key("prefer") {
        return Some(Problem::malformed("no preference is supported here"));
    }
    if headers.contains_key(&IDEMPOTENCY_KEY) && !is_post_of_timer(request) {
        let detail = "an Idempotency-Key goes with POST /v1/queues/{queue}/timers alone: a set of a named timer may \
                      be repeated, and If-Match and If-None-Match keep it from being done twice";
        return Some(Problem::malformed(detail));
    }
    None
}

/// Whether this is a set whose key the service draws.
fn is_post_of_timer(request: &Request<Body>) -> bool {
    let mut segments = request.uri().path().split('/').skip(1);
    let mut is = |word: &str| segments.next() == Some(word);
    let is_of_queue = is("v1") && is("queues");
    is_of_queue
        && segments.nth(1) == Some("timers")
        && segments.next().is_none()
        && request.method() == Method::POST
}

/// The header's value, if it is there; refused if it is there twice or no ASCII.
pub(super) fn only<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h str>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(Some)
            .map_err(|_| Problem::malformed(format!("the header {name} is not printable ASCII"))),
        (Some(_), Some(_)) => Err(Problem::malformed(format!(
            "the header {name} is given twice"
        ))),
    }
}

/// A body, and its share of the memory for bodies until it is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: Bytes,
    share: Share,
}

impl Held {
    /// Drops the body, and keeps its share: of what is made of it, as long as that is there.
    pub(crate) fn into_share(self) -> Share {
        self.share
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes of a body that must be JSON.
pub(crate) async fn json_body(app: &App, request: Request<Body>) -> Result<Held, Problem> {
    json_body_within(app, request, MAX_BODY_BYTES).await
}

/// The same of a request that sets a timer of this queue, which may take longer ones.
pub(crate) async fn json_body_for(
    app: &App,
    queue: &QueueName,
    request: Request<Body>,
) -> Result<Held, Problem> {
    let known = app.resources().await?;
    let mut most = longest_body(app, &known, queue);
    // Another node of the cluster may have put the limit a moment ago.
    if app.cluster().is_some() && announced(&request).is_some_and(|bytes| bytes > most as u64) {
        most = longest_body(app, &*app.look().await?, queue);
    }
    json_body_within(app, request, most).await
}

fn longest_body(app: &App, known: &Resources, queue: &QueueName) -> usize {
    let queue = known.queue(queue).and_then(|entry| entry.what.as_deref());
    let payload = app.catalogue().ceilings().payload_of(queue);
    let most = payload.map_or(MAX_BODY_BYTES as u64, body_bytes_for);
    usize::try_from(most).unwrap_or(usize::MAX)
}

async fn json_body_within(app: &App, request: Request<Body>, most: usize) -> Result<Held, Problem> {
    let is_json = has_type(request.headers(), "application/json")?;
    let bytes = body_within(app, request, most).await?;
    if !is_json {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "send the body as content-type: application/json",
        ));
    }
    Ok(bytes)
}

/// The bytes of a body that must be JSON, or nothing.
pub(crate) async fn optional_json_body(
    app: &App,
    request: Request<Body>,
) -> Result<Option<Held>, Problem> {
    if request.headers().contains_key(header::CONTENT_TYPE) {
        let bytes = json_body(app, request).await?;
        return Ok((!bytes.is_empty()).then_some(bytes));
    }
    let bytes = body(app, request).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    Err(Problem::new(
        Code::UnsupportedMediaType,
        "send the body as content-type: application/json",
    ))
}

/// How long the body of a request says to be.
fn announced(request: &Request<Body>) -> Option<u64> {
    let announced = request.headers().get(header::CONTENT_LENGTH)?;
    announced.to_str().ok()?.parse().ok()
}

/// Reads a body of bounded size in bounded time, as far as there is memory for it.
pub(crate) async fn body(app: &App, request: Request<Body>) -> Result<Held, Problem> {
    body_within(app, request, MAX_BODY_BYTES).await
}

async fn body_within(app: &App, request: Request<Body>, most: usize) -> Result<Held, Problem> {
    if announced(&request).is_some_and(|bytes| bytes > most as u64) {
        return Err(too_large(most));
    }
    let caller = request.extensions().get::<Caller>().copied();
    let asks = request.extensions().get::<Identity>().cloned();
    let read = collect(request.into_body(), app.bodies.share(caller), most);
    let late = |_| Problem::new(Code::Timeout, "the body took too long to arrive");
    let longer = (most - MAX_BODY_BYTES).div_ceil(BODY_BYTES_A_SECOND);
    let longer = Duration::from_secs(u64::try_from(longer).unwrap_or_default());
    let read = tokio::time::timeout(BODY_DEADLINE + longer, read);
    let read = read.await.map_err(late)??;
    // A token may have been revoked while the body came.
    asks.map_or(Ok(()), |asks| asks.still(app))?;
    Ok(read)
}

/// Gathers a body. Its share grows with what has come, not with what is announced.
async fn collect(mut body: Body, mut share: Share, most: usize) -> Result<Held, Problem> {
    let mut bytes = Bytes::default();
    while let Some(frame) = body.frame().await {
        let broken = |_| Problem::malformed("the body ended early or is badly framed");
        let Ok(piece) = frame.map_err(broken)?.into_data() else {
            continue;
        };
        let length = bytes.len() + piece.len();
        if length > most {
            return Err(too_large(most));
        }
        let counted = |length: usize| match length {
            0..=FREE_BODY_BYTES => 0,
            more => more.next_multiple_of(FREE_BODY_BYTES),
        };
        let (before, after) = (counted(bytes.len()), counted(length));
        if after > before && !share.take(after - before) {
            return Err(full());
        }
        bytes.append(&piece, most)?;
    }
    Ok(Held { bytes, share })
}

/// The bytes of a body. Those of a large one are not on the heap: they would leave it in pieces, and
/// what lies above a piece that is free is not given back.
#[derive(Debug)]
enum Bytes {
    Small(Vec<u8>),
    Large { map: MmapMut, length: usize },
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Small(Vec::new())
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large { map, length } => &map[..*length],
        }
    }
}

impl Bytes {
    /// Adds a piece with which it has so many bytes at the most.
    fn append(&mut self, piece: &[u8], most: usize) -> Result<(), Problem> {
        if let Self::Small(bytes) = self {
            if bytes.len() + piece.len() <= SMALL_BODY_BYTES {
                bytes.extend_from_slice(piece);
                return Ok(());
            }
            // No page of it is there before it is written to.
            let mut map = MmapMut::map_anon(most).map_err(|_| full())?;
            let length = bytes.len();
            map[..length].copy_from_slice(bytes);
            *self = Self::Large { map, length };
        }
        if let Self::Large { map, length } = self {
            let end = *length + piece.len();
            map[*length..end].copy_from_slice(piece);
            *length = end;
        }
        Ok(())
    }
}

fn full() -> Problem {
    Problem::new(
        Code::Overloaded,
        "the bodies of other requests have taken the memory for bodies",
    )
}

fn too_large(most: usize) -> Problem {
    let detail = match most {
        MAX_BODY_BYTES => format!("a body has at most {most} bytes"),
        more => format!(
            "the body of a request that sets a timer of this queue has at most {more} bytes"
        ),
    };
    Problem::new(Code::TooLarge, detail)
}

/// Whether a request has a body of this media type, in UTF-8 if it says in what.
pub(crate) fn has_type(headers: &HeaderMap, media_type: &str) -> Result<bool, Problem> {
    let is = |content_type| is_type(content_type, media_type);
    Ok(only(headers, &header::CONTENT_TYPE)?.is_some_and(is))
}

/// `application/json`, in UTF-8 if it says in what.
#[cfg(test)]
fn is_json(content_type: &str) -> bool {
    is_type(content_type, "application/json")
}

fn is_type(content_type: &str, media_type: &str) -> bool {
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    essence.trim().eq_ignore_ascii_case(media_type)
        && parameters
            .split(';')
            .map(str::trim)
            .all(|parameter| match parameter.split_once('=') {
                Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
                    value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
                }
                _ => true,
            })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(path: &str) -> Uri {
        path.parse().expect("a URI")
    }

    #[test]
    fn a_key_is_decoded_exactly_once() {
        for (encoded, key) in [
            ("order-42", "order-42"),
            ("a%2Fb", "a/b"),
            ("a%252Fb", "a%2Fb"),
            ("..%2F..%2Fetc", "../../etc"),
            ("100%25", "100%"),
            ("a+b", "a+b"),
            ("%F0%9F%95%B0", "\u{1F570}"),
            ("a:fire", "a:fire"),
        ] {
            let name = timer_of(&uri(&format!("/v1/queues/q/timers/{encoded}"))).unwrap();
            assert_eq!(name.key.as_str(), key);
        }
        for encoded in ["", "%00", "%0A", "%7F", "%C2%80", "%FF", "%C3"] {
            let problem = timer_of(&uri(&format!("/v1/queues/q/timers/{encoded}")));
            let problem = format!("{:?}", problem.expect_err(encoded));
            assert!(problem.contains("InvalidKey"), "{encoded}: {problem}");
        }
    }

    #[test]
    fn the_last_colon_splits_key_and_verb() {
        let split = |tail: &str| timer_and_verb_of(&uri(&format!("/v1/queues/q/timers/{tail}")));
        for (tail, key, verb) in [
            ("a:fire", "a", Verb::Fire),
            ("a:revive", "a", Verb::Revive),
            ("a:resend", "a", Verb::Resend),
            ("a:backfill", "a", Verb::Backfill),
            ("a:b:fire", "a:b", Verb::Fire),
            ("a%3Afire:revive", "a:fire", Verb::Revive),
        ] {
            let (name, found) = split(tail).unwrap();
            assert_eq!((name.key.as_str(), found), (key, verb));
        }
        for tail in ["a", "a%3Afire", "a:", "a:stop", "fire"] {
            assert!(split(tail).is_err(), "{tail}");
        }
        assert!(format!("{:?}", split(":fire")).contains("InvalidKey"));
    }

    #[test]
    fn a_query_has_known_parameters_once() {
        let known = ["a", "b"];
        let read = uri("/?a=1%2C+2&b=");
        let query = Query::of(&read, &known).unwrap();
        assert_eq!(query.get("a"), Some("1, 2"));
        assert_eq!(query.get("b"), Some(""));
        for bad in ["/?c=1", "/?a=1&a=2", "/?a=%FF", "/?a=1&%61=2"] {
            assert!(Query::of(&uri(bad), &known).is_err(), "{bad}");
        }
    }

    #[test]
    fn if_none_match_of_a_get_is_a_list_of_tags() {
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::IF_NONE_MATCH, value.parse().unwrap());
            }
            has_already(&headers, Revision(7))
        };
        for values in [
            &["\"7\""][..],
            &["W/\"7\""],
            &["\"6\", \"7\""],
            &["\"6\"", "\"7\""],
        ] {
            assert_eq!(known(values), Known::Revision, "{values:?}");
        }
        for values in [&[][..], &["7"], &["\"77\""], &["w/\"7\""], &["\"6\",8"]] {
            assert_eq!(known(values), Known::Nothing, "{values:?}");
        }
        assert_eq!(known(&["*"]), Known::Anything);
    }

    #[test]
    fn only_json_in_utf_8_is_json() {
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;",
        ] {
            assert!(is_json(good), "{good}");
        }
        for bad in [
            "",
            "text/json",
            "application/json; charset=latin1",
            "application/jsonx",
        ] {
            assert!(!is_json(bad), "{bad}");
        }
    }
}
