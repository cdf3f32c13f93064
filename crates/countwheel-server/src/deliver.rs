//! Carries out attempts: one HTTP request each, under one deadline.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use countwheel::{Clock, Timestamp};
use countwheel_durable::{Attempt, Completion, Handler, Outcome, Verdict};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime::Handle;

use crate::guard::is_public;
use crate::job::Job;
use crate::resolver::{Forbidden, NotResolved, Resolver};
use crate::time::{format_duration, format_time};

/// How much of an answer is read.
const ANSWER_MAX_BYTES: usize = 64 << 10;
/// How long an idle connection is kept for the next attempt.
const IDLE: Duration = Duration::from_secs(30);
const USER_AGENT: &str = concat!("countwheel/", env!("CARGO_PKG_VERSION"));
/// What stands unencoded in `timer-key`: the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Which addresses deliveries may go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Targets {
    /// Those of the public Internet.
    Public,
    /// All, this machine and its network included.
    Any,
}

/// Delivers timers over HTTP. Follows no redirect, uses no proxy, keeps connections.
#[derive(Clone, Debug)]
pub struct HttpHandler {
    runtime: Handle,
    sender: Sender,
}

#[derive(Clone, Debug)]
struct Sender {
    client: Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>,
    targets: Targets,
    clock: Arc<dyn Clock>,
}

impl HttpHandler {
    /// A handler whose attempts run on `runtime`. `clock` tells how far off the date in a
    /// `Retry-After` is.
    #[must_use]
    pub fn new(runtime: Handle, targets: Targets, clock: Arc<dyn Clock>) -> Self {
        let mut connector = HttpConnector::new_with_resolver(Resolver::new(targets));
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(32)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            runtime,
            sender: Sender {
                client,
                targets,
                clock,
            },
        }
    }
}

impl Handler for HttpHandler {
    fn start(&self, attempt: Attempt, done: Completion) {
        let sender = self.sender.clone();
        self.runtime.spawn(async move {
            let outcome = sender.attempt(&attempt).await;
            let (timer, id, number) = (&attempt.name, attempt.id, attempt.number);
            let detail = &outcome.detail;
            if outcome.verdict == Verdict::Done {
                tracing::debug!(%timer, %id, attempt = number, %detail, "delivered");
            } else {
                tracing::info!(%timer, %id, attempt = number, %detail, "not delivered");
            }
            done.complete(outcome);
        });
    }
}

impl Sender {
    async fn attempt(&self, attempt: &Attempt) -> Outcome {
        let stopped = |detail: &str| Outcome {
            verdict: Verdict::Stopped,
            detail: detail.to_owned(),
        };
        let Ok(job) = Job::decode(&attempt.payload) else {
            return stopped("the stored request cannot be read");
        };
        let timeout = job.timeout;
        let ends = tokio::time::Instant::now() + timeout;
        let Some(request) = request(attempt, job) else {
            return stopped("the stored request cannot be made");
        };
        if self.targets == Targets::Public
            && let Some(address) = literal_address(request.uri())
            && !is_public(address)
        {
            return failed(Forbidden.to_string());
        }
        match tokio::time::timeout_at(ends, self.exchange(request)).await {
            Ok((outcome, body)) => {
                // The status has decided. The rest is read so that the connection can be used
                // again, for as long as the attempt may take.
                if let Some(body) = body {
                    let rest = Limited::new(body, ANSWER_MAX_BYTES).collect();
                    drop(tokio::time::timeout_at(ends, rest).await);
                }
                outcome
            }
            Err(_) => failed(format!("timed out after {}", format_duration(timeout))),
        }
    }

    /// Sends the request, and judges by the status of the answer.
    async fn exchange(&self, request: Request<Full<Bytes>>) -> (Outcome, Option<Incoming>) {
        let answer = match self.client.request(request).await {
            Ok(answer) => answer,
            Err(error) => return (failed(describe(&error)), None),
        };
        let (head, body) = answer.into_parts();
        let verdict = match head.status {
            status if status.is_success() => Verdict::Done,
            StatusCode::GONE => Verdict::Stopped,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Verdict::Failed {
                retry_after: head
                    .headers
                    .get(header::RETRY_AFTER)
                    .and_then(|value| retry_after(value.to_str().ok()?, self.clock.timestamp())),
            },
            _ => Verdict::Failed { retry_after: None },
        };
        let detail = head.status.as_str().to_owned();
        (Outcome { verdict, detail }, Some(body))
    }
}

fn failed(detail: String) -> Outcome {
    Outcome {
        verdict: Verdict::Failed { retry_after: None },
        detail,
    }
}

/// The request of one attempt. `None` if the job holds what was never accepted.
fn request(attempt: &Attempt, job: Job) -> Option<Request<Full<Bytes>>> {
    let uri = check_url(&job.url).ok()?;
    let late_us = attempt.lateness().as_micros();
    let started = attempt.started.saturating_since(Timestamp::EPOCH).as_secs();
    let key = utf8_percent_encode(attempt.name.key.as_str(), ENCODED);
    // Each run of a recurring timer is another delivery to those who remember what they had.
    let id = match attempt.run {
        None => attempt.id.to_string(),
        Some(run) => format!("{}-r{}", attempt.id, run.number),
    };
    let own = [
        ("webhook-id", id),
        ("webhook-timestamp", started.to_string()),
        ("timer-queue", attempt.name.queue.to_string()),
        ("timer-key", key.to_string()),
        ("timer-attempt", attempt.number.to_string()),
        ("timer-due", format_time(attempt.due)),
        ("timer-late-us", late_us.to_string()),
        ("timer-fence", attempt.fence.0.to_string()),
    ];
    let mut request = Request::post(uri)
        .body(Full::new(Bytes::from(job.body)))
        .ok()?;
    let headers = request.headers_mut();
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    for (name, value) in job.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.insert(name, value.try_into().ok()?);
    }
    if let Some(content_type) = job.content_type {
        headers.insert(header::CONTENT_TYPE, content_type.try_into().ok()?);
    }
    let run = attempt.run.map(|run| {
        [
            ("timer-run", run.number.to_string()),
            ("timer-nominal", format_time(run.nominal)),
        ]
    });
    for (name, value) in own.into_iter().chain(run.into_iter().flatten()) {
        headers.insert(HeaderName::from_static(name), value.try_into().ok()?);
    }
    Some(request)
}

/// Reads a target's URL by its syntax alone: where it leads is seen at each attempt.
pub(crate) fn check_url(url: &str) -> Result<Uri, &'static str> {
    let uri: Uri = url.parse().map_err(|_| "this is no absolute URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("the URL must begin with http:// or https://");
    }
    let authority = uri.authority().ok_or("the URL has no host")?;
    if authority.as_str().contains('@') {
        return Err("the URL must not have a user or password; send a header");
    }
    let host = authority.host();
    if host.is_empty() {
        return Err("the URL has no host");
    }
    let is_address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let is_name = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if !is_address && !is_name {
        return Err("the URL's host is neither a name nor an address");
    }
    match authority.as_str()[host.len()..].strip_prefix(':') {
        None if authority.as_str().len() == host.len() => Ok(uri),
        Some(port)
            if port
                .parse::<u16>()
                .is_ok_and(|n| n > 0 && n.to_string() == port) =>
        {
            Ok(uri)
        }
        _ => Err("the URL's port is not from 1 to 65535"),
    }
}

/// The address that the URL names outright. Other notations of addresses, such as
/// `0x7f.1`, are names to us and meet the check in the [`Resolver`].
fn literal_address(uri: &Uri) -> Option<IpAddr> {
    let host = uri.host()?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

/// How long the receiver wants to be left alone: seconds, or a date.
fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than fit are as good as any other large number.
        return Some(Duration::from_secs(
            value.parse().unwrap_or(u64::from(u32::MAX)),
        ));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    let micros = u64::try_from(date.as_microsecond()).unwrap_or(0);
    Some(Timestamp::from_micros(micros).saturating_since(now))
}

/// Why there was no answer, in few words and without addresses.
fn describe(error: &(dyn Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<Forbidden>() {
            return error.to_string();
        }
        if let Some(error) = error.downcast_ref::<NotResolved>() {
            return error.to_string();
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return describe_io(error);
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>() {
            if error.is_incomplete_message() {
                return "connection closed before the answer".to_owned();
            }
            if error.is_parse() {
                return "the answer is not HTTP".to_owned();
            }
        }
        cause = error.source();
    }
    "no connection".to_owned()
}

fn describe_io(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "host unreachable".to_owned()
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "connection closed before the answer".to_owned()
        }
        // What TLS has to say comes in this kind.
        io::ErrorKind::InvalidData => match error.get_ref() {
            Some(cause) => format!("tls: {cause}"),
            None => "tls failed".to_owned(),
        },
        kind => format!("no connection: {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_absolute_http_without_a_user() {
        for good in [
            "http://example.com",
            "https://example.com:8443/a?b=c#d",
            "HTTP://EXAMPLE.com/",
            "http://127.0.0.1:7070/echo",
            "http://[::1]:80/",
            "http://2130706433/",
            "http://a_b.example/",
        ] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/hook",
            "example.com/hook",
            "ftp://example.com/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "http:example.com",
            "http://",
            "http:///hook",
            "http://:80/",
            "http://user@example.com/",
            "http://user:secret@example.com/",
            "http://@example.com/",
            "http://a b/",
            "http://exämple.com/",
            "http://example.com:0/",
            "http://example.com:65536/",
            "http://example.com:/",
            "http://example.com:80:80/",
            "http://[::1/",
            "http://[fe80::1%25eth0]/",
            "http://ex%61mple.com/",
            "http://example.com\\@evil/",
            "http://example.com/\n",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = Timestamp::from_micros(784_111_777_000_000);
        for (value, seconds) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("99999999999999999999", Some(u64::from(u32::MAX))),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(
                retry_after(value, now),
                seconds.map(Duration::from_secs),
                "{value}"
            );
        }
    }

    #[test]
    fn literal_addresses_are_seen() {
        let address = |url: &str| literal_address(&check_url(url).unwrap());
        assert!(address("http://127.0.0.1/").is_some());
        assert!(address("http://[::ffff:127.0.0.1]:80/").is_some());
        assert!(address("http://example.com/").is_none());
    }
}
