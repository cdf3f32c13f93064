//! The payload of a timer: the request that a delivery makes.

use std::time::Duration;

use axum::http::Method;
use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::traced::TraceContext;
use crate::wishes::Adaptive;

/// How long an attempt may take where nothing says it.
pub(crate) const TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);

/// One request to make. As it is stored, its first byte is the format's version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    pub(crate) method: Method,
    pub(crate) to: To,
    /// In the order in which they were sent, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content_type: Option<String>,
    pub(crate) body: Vec<u8>,
    /// `None` leaves it to the endpoint and to the queue.
    pub(crate) timeout: Option<Duration>,
    pub(crate) extras: Extras,
}

/// What a job has beside its request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Extras {
    /// The trace that the set belongs to.
    pub(crate) trace: Option<TraceContext>,
    /// How far the due time was spread.
    pub(crate) spread: Option<Spread>,
    /// Of the timers of a queue with the same key, one is delivered at a time.
    pub(crate) serial_key: Option<String>,
    /// How urgent it is; `None` leaves it to the queue.
    pub(crate) priority: Option<u32>,
    /// Between which delays the receiver chooses the next run.
    pub(crate) adaptive: Option<Adaptive>,
    /// The rules that the timer has not named.
    pub(crate) inherits: Inherits,
    /// In the order in which they were sent, none twice.
    pub(crate) tags: Vec<String>,
    /// Of a run that a backfill has made: its nominal time.
    pub(crate) backfill: Option<Timestamp>,
}

/// The rules that a timer leaves to its endpoint and to its queue. Nothing stands for a timer that has named all of
/// them, and for one of an earlier program: what held when that was set holds for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Inherits {
    pub(crate) retry: bool,
    pub(crate) missed: bool,
    /// Of a timer that recurs.
    pub(crate) overlap: bool,
    /// The timeout that held at the set for a URL that names none.
    pub(crate) timeout: Option<Duration>,
}

impl Inherits {
    /// As it is stored: a spread that nobody draws, further than it may be. Earlier programs take it for one of no length,
    /// show it, and go by what held at the set. `None` if all rules are named.
    fn to_spread(self, leaves_timeout: bool) -> Option<Spread> {
        let rules = [self.retry, self.missed, self.overlap, leaves_timeout];
        let bits = rules
            .iter()
            .rev()
            .fold(0, |bits, rule| bits << 1 | u64::from(*rule));
        (bits > 0).then(|| Spread {
            within: Duration::ZERO,
            drawn: Duration::from_nanos(bits),
        })
    }

    /// And whether nobody has named the timeout of a URL. `None` for a spread that was drawn.
    fn of_spread(spread: Spread) -> Option<(Self, bool)> {
        if spread.drawn <= spread.within {
            return None;
        }
        let has = |rule: u32| spread.drawn.subsec_nanos() >> rule & 1 == 1;
        let inherits = Self {
            retry: has(0),
            missed: has(1),
            overlap: has(2),
            timeout: None,
        };
        Some((inherits, has(3)))
    }
}

/// A due time that was drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// How much later than asked for it may be.
    pub(crate) within: Duration,
    /// How much later it is.
    pub(crate) drawn: Duration,
}

/// Where a job goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum To {
    /// To a URL of its own.
    Url(String),
    /// To an endpoint, as that is when the attempt starts.
    Endpoint {
        /// Which one; `None` for that of the queue.
        name: Option<String>,
        /// What follows the URL of the endpoint: a path, a query, both, or nothing.
        path: String,
    },
}

/// Where a payload goes, as it stands there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place<'p> {
    Url(&'p str),
    /// An endpoint; `None` for that of the queue.
    Endpoint(Option<&'p str>),
}

/// A payload that no version of this program wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the payload cannot be read")]
pub(crate) struct NotAJob;

/// A request by `POST`.
const VERSION: u8 = 1;
/// The method stands before what version 1 has: earlier programs read nothing that they would send by another.
const WITH_METHOD: u8 = 2;
/// A request to an endpoint: earlier programs know none.
const TO_ENDPOINT: u8 = 3;
/// What the request has beside it stands before one of the forms above: earlier programs would lose it.
const WITH_EXTRAS: u8 = 4;

/// One of the extras, as it is stored. Further ones come behind the last.
#[derive(Serialize, Deserialize)]
enum Extra {
    Trace(TraceContext),
    Spread(Spread),
    SerialKey(String),
    Priority(u32),
    Adaptive(Adaptive),
    Tags(Vec<String>),
    /// In microseconds.
    Backfill(u64),
}

impl Extras {
    /// `leaves_timeout`: of a URL whose timeout nobody has named.
    fn to_list(&self, leaves_timeout: bool) -> Vec<Extra> {
        let trace = self.trace.clone().map(Extra::Trace);
        let spread = self.spread.map(Extra::Spread);
        let serial_key = self.serial_key.clone().map(Extra::SerialKey);
        let priority = self.priority.map(Extra::Priority);
        let adaptive = self.adaptive.map(Extra::Adaptive);
        let tags = Some(&self.tags).filter(|tags| !tags.is_empty());
        let tags = tags.cloned().map(Extra::Tags);
        let inherits = self.inherits.to_spread(leaves_timeout).map(Extra::Spread);
        let backfill = self.backfill.map(|at| Extra::Backfill(at.as_micros()));
        // Of two spreads, an earlier program believes the last.
        let extras = [
            inherits, trace, spread, serial_key, priority, adaptive, tags, backfill,
        ];
        extras.into_iter().flatten().collect()
    }

    /// And whether nobody has named the timeout of a URL.
    fn of_list(list: Vec<Extra>) -> (Self, bool) {
        let mut extras = Self::default();
        let mut leaves_timeout = false;
        for extra in list {
            match extra {
                Extra::Trace(trace) => extras.trace = Some(trace),
                Extra::Spread(spread) => match Inherits::of_spread(spread) {
                    Some((inherits, leaves)) => {
                        (extras.inherits, leaves_timeout) = (inherits, leaves);
                    }
                    None => extras.spread = Some(spread),
                },
                Extra::SerialKey(key) => extras.serial_key = Some(key),
                Extra::Priority(priority) => extras.priority = Some(priority),
                Extra::Adaptive(adaptive) => extras.adaptive = Some(adaptive),
                Extra::Tags(tags) => extras.tags = tags,
                Extra::Backfill(at) => extras.backfill = Some(Timestamp::from_micros(at)),
            }
        }
        (extras, leaves_timeout)
    }
}

/// What version 1 has, borrowed to be written.
#[derive(Serialize)]
struct Written<'a> {
    url: &'a str,
    headers: &'a [(String, String)],
    content_type: Option<&'a str>,
    #[serde(with = "serde_bytes")]
    body: &'a [u8],
    timeout: Duration,
}

/// What version 3 has.
#[derive(Serialize)]
struct WrittenToEndpoint<'a> {
    method: &'a str,
    endpoint: Option<&'a str>,
    path: &'a str,
    headers: &'a [(String, String)],
    content_type: Option<&'a str>,
    #[serde(with = "serde_bytes")]
    body: &'a [u8],
    timeout: Option<Duration>,
}

#[derive(Deserialize)]
struct ReadToEndpoint {
    method: String,
    endpoint: Option<String>,
    path: String,
    headers: Vec<(String, String)>,
    content_type: Option<String>,
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
    timeout: Option<Duration>,
}

#[derive(Deserialize)]
struct Read {
    url: String,
    headers: Vec<(String, String)>,
    content_type: Option<String>,
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
    timeout: Duration,
}

impl Job {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let leaves_timeout = matches!(self.to, To::Url(_)) && self.timeout.is_none();
        let extras = self.extras.to_list(leaves_timeout);
        // More than everything but the body mostly takes. One of many bytes is copied once.
        let mut encoded = Vec::with_capacity(self.body.len() + 512);
        if !extras.is_empty() {
            encoded.push(WITH_EXTRAS);
            // Growing a vector is the only way in which this could fail, and it does not.
            encoded = postcard::to_extend(&extras, encoded).unwrap_or_default();
        }
        self.encode_request(encoded)
    }

    /// Behind what is there.
    fn encode_request(&self, mut before: Vec<u8>) -> Vec<u8> {
        let (content_type, body) = (self.content_type.as_deref(), &*self.body);
        // Growing a vector is the only way in which this could fail, and it does not.
        let encoded = match &self.to {
            To::Endpoint { name, path } => {
                let written = WrittenToEndpoint {
                    method: self.method.as_str(),
                    endpoint: name.as_deref(),
                    path,
                    headers: &self.headers,
                    content_type,
                    body,
                    timeout: self.timeout,
                };
                before.push(TO_ENDPOINT);
                postcard::to_extend(&written, before)
            }
            To::Url(url) => {
                let written = Written {
                    url,
                    headers: &self.headers,
                    content_type,
                    body,
                    timeout: self
                        .timeout
                        .or(self.extras.inherits.timeout)
                        .unwrap_or(TIMEOUT_DEFAULT),
                };
                if self.method == Method::POST {
                    before.push(VERSION);
                    postcard::to_extend(&written, before)
                } else {
                    let method = self.method.as_str();
                    before.push(WITH_METHOD);
                    postcard::to_extend(&(method, written), before)
                }
            }
        };
        encoded.unwrap_or_default()
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, NotAJob> {
        let Some(encoded) = payload.strip_prefix(&[WITH_EXTRAS]) else {
            return Self::decode_request(payload);
        };
        let (list, request) =
            postcard::take_from_bytes::<Vec<Extra>>(encoded).map_err(|_| NotAJob)?;
        let (mut extras, leaves_timeout) = Extras::of_list(list);
        let mut job = Self::decode_request(request)?;
        if leaves_timeout {
            extras.inherits.timeout = job.timeout.take();
        }
        Ok(Self { extras, ..job })
    }

    fn decode_request(payload: &[u8]) -> Result<Self, NotAJob> {
        let (version, encoded) = payload.split_first().ok_or(NotAJob)?;
        let method_of = |text: &str| text.parse().map_err(|_| NotAJob);
        let (method, rest) = match *version {
            VERSION => (Method::POST, encoded),
            WITH_METHOD => {
                let (method, rest) =
                    postcard::take_from_bytes::<&str>(encoded).map_err(|_| NotAJob)?;
                (method_of(method)?, rest)
            }
            TO_ENDPOINT => {
                let Ok((read, [])) = postcard::take_from_bytes::<ReadToEndpoint>(encoded) else {
                    return Err(NotAJob);
                };
                return Ok(Self {
                    method: method_of(&read.method)?,
                    to: To::Endpoint {
                        name: read.endpoint,
                        path: read.path,
                    },
                    headers: read.headers,
                    content_type: read.content_type,
                    body: read.body,
                    timeout: read.timeout,
                    extras: Extras::default(),
                });
            }
            _ => return Err(NotAJob),
        };
        let Ok((read, [])) = postcard::take_from_bytes::<Read>(rest) else {
            return Err(NotAJob);
        };
        Ok(Self {
            method,
            to: To::Url(read.url),
            headers: read.headers,
            content_type: read.content_type,
            body: read.body,
            timeout: Some(read.timeout),
            extras: Extras::default(),
        })
    }

    /// Where a payload goes and its extras, without a look at the rest of it; `None` if it cannot be read.
    pub(crate) fn glance(payload: &[u8]) -> Option<(Place<'_>, Extras)> {
        let Some(encoded) = payload.strip_prefix(&[WITH_EXTRAS]) else {
            return Some((Self::place_of(payload)?, Extras::default()));
        };
        let (list, request) = postcard::take_from_bytes(encoded).ok()?;
        let (extras, _) = Extras::of_list(list);
        Some((Self::place_of(request)?, extras))
    }

    /// Where a request goes.
    fn place_of(request: &[u8]) -> Option<Place<'_>> {
        let (version, encoded) = request.split_first()?;
        match *version {
            VERSION => {
                let (url, _) = postcard::take_from_bytes(encoded).ok()?;
                Some(Place::Url(url))
            }
            WITH_METHOD => {
                let ((_, url), _) = postcard::take_from_bytes::<(&str, &str)>(encoded).ok()?;
                Some(Place::Url(url))
            }
            TO_ENDPOINT => {
                let read = postcard::take_from_bytes::<(&str, Option<&str>)>(encoded);
                let ((_, endpoint), _) = read.ok()?;
                Some(Place::Endpoint(endpoint))
            }
            _ => None,
        }
    }

    /// Whether a payload has all of these tags, without a look at the rest of it.
    pub(crate) fn has_tags(payload: &[u8], wanted: &[String]) -> bool {
        if wanted.is_empty() {
            return true;
        }
        let extras = payload.strip_prefix(&[WITH_EXTRAS]);
        let list = extras.and_then(|encoded| postcard::take_from_bytes::<Vec<Extra>>(encoded).ok());
        let tags = list.map(|(list, _)| Extras::of_list(list).0.tags);
        let tags = tags.unwrap_or_default();
        wanted.iter().all(|tag| tags.contains(tag))
    }

    /// The endpoint that a payload names, without a look at the rest of it.
    pub(crate) fn endpoint_of(payload: &[u8]) -> Option<String> {
        match Self::glance(payload)?.0 {
            Place::Endpoint(name) => name.map(str::to_owned),
            Place::Url(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    #[test]
    fn a_job_survives_storage_and_anything_else_is_refused() {
        let post = Job {
            method: Method::POST,
            to: To::Url("https://example.com/hook".to_owned()),
            headers: vec![("x-shop".to_owned(), "7".to_owned())],
            content_type: None,
            body: b"{\"order\":42}".to_vec(),
            timeout: Some(Duration::from_millis(1_500)),
            extras: Extras::default(),
        };
        let put = Job {
            method: Method::PUT,
            body: vec![0, 0xff],
            ..post.clone()
        };
        let to_endpoint = Job {
            to: To::Endpoint {
                name: Some("shop".to_owned()),
                path: "/orders/7?x=1".to_owned(),
            },
            timeout: None,
            ..put.clone()
        };
        let to_any = Job {
            to: To::Endpoint {
                name: None,
                path: String::new(),
            },
            ..post.clone()
        };
        let mut headers = HeaderMap::new();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert("traceparent", parent.parse().unwrap());
        let with_extras = |job: &Job| Job {
            extras: Extras {
                trace: TraceContext::of(&headers),
                spread: Some(Spread {
                    within: Duration::from_secs(600),
                    drawn: Duration::from_micros(7),
                }),
                serial_key: Some("customer-7".to_owned()),
                priority: Some(u32::MAX),
                adaptive: Some(Adaptive {
                    min: Duration::from_secs(5),
                    max: Duration::from_secs(300),
                }),
                inherits: Inherits {
                    retry: true,
                    missed: false,
                    overlap: true,
                    timeout: None,
                },
                tags: vec!["eu".to_owned(), "vip".to_owned()],
                backfill: Some(Timestamp::from_micros(7)),
            },
            ..job.clone()
        };
        let mut open = Job {
            timeout: None,
            ..put.clone()
        };
        open.extras.inherits.timeout = Some(Duration::from_secs(9));
        let (traced, traced_to_endpoint) = (with_extras(&post), with_extras(&to_endpoint));
        assert!(traced.extras.trace.is_some());
        let named = |job: &Job| Job::endpoint_of(&job.encode());
        assert_eq!(named(&to_endpoint).as_deref(), Some("shop"));
        assert_eq!(named(&traced_to_endpoint).as_deref(), Some("shop"));
        assert_eq!(named(&traced), None);
        assert_eq!((named(&to_any), named(&post)), (None, None));
        let is_tagged = |job: &Job, tags: &[&str]| {
            let tags: Vec<_> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            Job::has_tags(&job.encode(), &tags)
        };
        assert!(is_tagged(&traced, &["vip", "eu"]) && is_tagged(&post, &[]));
        assert!(!is_tagged(&traced, &["vip", "us"]) && !is_tagged(&post, &["eu"]));
        let all = [
            post,
            put,
            to_endpoint,
            to_any,
            traced,
            traced_to_endpoint,
            open,
        ];
        for job in all {
            let encoded = job.encode();
            assert_eq!(Job::decode(&encoded), Ok(job));
            for cut in 0..encoded.len() {
                assert_eq!(Job::decode(&encoded[..cut]), Err(NotAJob), "{cut} bytes");
            }
            let mut longer = encoded.clone();
            longer.push(0);
            assert_eq!(Job::decode(&longer), Err(NotAJob));
            let mut later = encoded;
            later[0] = 5;
            assert_eq!(Job::decode(&later), Err(NotAJob));
        }
    }

    /// As the program wrote it before there were methods.
    #[test]
    fn a_job_of_version_1_is_a_post_and_stays_what_it_was() {
        let stored = b"\x01\x09http://x/\x01\x01a\x01b\x01\x01t\x02{}\x0f\x00";
        let job = Job::decode(stored).unwrap();
        let to = To::Url("http://x/".to_owned());
        assert_eq!((job.method.as_str(), &job.to), ("POST", &to));
        assert_eq!(
            (&*job.body, job.timeout),
            (&b"{}"[..], Some(TIMEOUT_DEFAULT))
        );
        assert_eq!(job.encode(), stored);
    }

    /// As programs wrote it before a timer could leave rules open.
    #[test]
    fn a_job_of_before_open_rules_has_named_all_of_them() {
        let stored: [&[u8]; 2] = [
            b"\x01\x09http://x/\x01\x01a\x01b\x01\x01t\x02{}\x0f\x00",
            // A priority of 7 before it.
            b"\x04\x01\x03\x07\x01\x09http://x/\x01\x01a\x01b\x01\x01t\x02{}\x0f\x00",
        ];
        for stored in stored {
            let job = Job::decode(stored).unwrap();
            assert_eq!(job.extras.inherits, Inherits::default());
            assert_eq!(job.timeout, Some(TIMEOUT_DEFAULT));
            assert_eq!(job.encode(), stored);
            let (_, extras) = Job::glance(stored).unwrap();
            assert_eq!(extras.inherits, Inherits::default());
        }
    }

    /// Nodes of the version before run beside this one while a cluster is upgraded.
    #[test]
    fn an_earlier_program_reads_open_rules_as_a_spread_of_no_length() {
        let mut open = Job::decode(b"\x01\x09http://x/\x00\x00\x00\x09\x00").unwrap();
        open.timeout = None;
        open.extras.inherits = Inherits {
            retry: true,
            missed: true,
            overlap: false,
            timeout: Some(Duration::from_secs(9)),
        };
        // One extra, number 1: a spread within nothing, of which 0b1011 nanoseconds were drawn. Then what held at the set.
        let stored = b"\x04\x01\x01\x00\x00\x00\x0b\x01\x09http://x/\x00\x00\x00\x09\x00";
        assert_eq!(open.encode(), stored);
        assert_eq!(Job::decode(stored), Ok(open.clone()));
        // Behind it comes a spread that was drawn: the one that an earlier program believes.
        let drawn = Spread {
            within: Duration::from_secs(1),
            drawn: Duration::from_secs(1),
        };
        open.extras.spread = Some(drawn);
        let encoded = open.encode();
        let list = postcard::take_from_bytes::<Vec<Extra>>(&encoded[1..]);
        let (list, _) = list.unwrap();
        assert!(matches!(list[..], [_, Extra::Spread(last)] if last == drawn));
        assert_eq!(Job::decode(&encoded), Ok(open));
    }

    /// As the first program wrote it that knew endpoints.
    #[test]
    fn a_job_of_version_3_stays_what_it_was() {
        let stored = b"\x03\x03PUT\x01\x04shop\x02/a\x01\x01a\x01b\x01\x01t\x02{}\x01\x0f\x00";
        let job = Job::decode(stored).unwrap();
        let to = To::Endpoint {
            name: Some("shop".to_owned()),
            path: "/a".to_owned(),
        };
        assert_eq!((&job.method, &job.to), (&Method::PUT, &to));
        assert_eq!(
            (&*job.body, job.timeout),
            (&b"{}"[..], Some(TIMEOUT_DEFAULT))
        );
        assert_eq!(job.encode(), stored);
    }
}
