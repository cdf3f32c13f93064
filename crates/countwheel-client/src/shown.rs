//! How [`Debug`](std::fmt::Debug) shows what callers keep to themselves: tokens, paths and queries of URLs, values of
//! headers, payloads. A line of somebody's log has none of them.

use std::collections::BTreeMap;
use std::fmt;

/// A mistake that a test plants to prove that it finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leak {
    /// A URL is shown with its user, path and query.
    Url,
    /// Headers are shown with their values.
    Header,
    /// A payload is shown.
    Payload,
    /// A token is shown.
    Token,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Leak>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
fn is_planted(leak: Leak) -> bool {
    PLANTED.get() == Some(leak)
}

#[cfg(not(test))]
fn is_planted(_: Leak) -> bool {
    false
}

/// The scheme, the host and the port of a URL, and nothing of what does not begin with them.
pub(crate) struct Url<'a>(pub(crate) &'a str);

impl fmt::Debug for Url<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_planted(Leak::Url) {
            return self.0.fmt(f);
        }
        if self.0.is_empty() {
            return f.write_str("\"\"");
        }
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return f.write_str("…");
        };
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let host = authority.rsplit('@').next().unwrap_or_default();
        let more = if rest.len() > 1 { "/…" } else { "" };
        write!(f, "{scheme}://{host}{more}")
    }
}

/// The names of headers.
pub(crate) struct Headers<'a>(pub(crate) &'a BTreeMap<String, String>);

impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_planted(Leak::Header) {
            return self.0.fmt(f);
        }
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A payload that is there as a text.
pub(crate) fn text(payload: Option<&str>) -> Option<Payload<'_>> {
    payload.map(|text| Payload(text.as_bytes()))
}

/// How long a payload is.
pub(crate) struct Payload<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_planted(Leak::Payload) {
            return String::from_utf8_lossy(self.0).fmt(f);
        }
        write!(f, "{} bytes", self.0.len())
    }
}

/// That there is a token.
pub(crate) struct Token<'a>(pub(crate) &'a str);

impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_planted(Leak::Token) {
            return self.0.fmt(f);
        }
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use countwheel_durable::Due;
    use hyper::Method;
    use serde_json::json;

    use super::*;
    use crate::client::{
        Answer, Client, EndpointShown, LeaseTaken, Leases, NewTarget, NewTimer, Timer, TimerBody,
        TokenMade,
    };
    use crate::signature::Verifier;
    use crate::worker::{self, Worker};

    const MARKER: &str = "MARKER";

    fn headers() -> BTreeMap<String, String> {
        [("x-key".to_owned(), "MARKER-header".to_owned())].into()
    }

    fn answer<T: serde::de::DeserializeOwned>(said: &serde_json::Value) -> Answer<T> {
        Answer::read(said.to_string().as_bytes()).expect("it is in due form")
    }

    /// What `Debug` says of each public type that has a token, a URL, a header or a payload of somebody.
    fn all() -> Vec<(&'static str, String)> {
        let url = "https://user:MARKER-word@example.com:8443/MARKER-path?key=MARKER-query#MARKER";
        let target = NewTarget {
            url: url.to_owned(),
            method: Method::POST,
            headers: headers(),
            timeout: None,
        };
        let timer = |body| NewTimer {
            headers: headers(),
            body: Some(body),
            endpoint: Some(("shop".to_owned(), "/a?key=MARKER-query".to_owned())),
            ..NewTimer::to(url, Due::In(Duration::ZERO))
        };
        let raw = serde_json::value::RawValue::from_string("\"MARKER-raw\"".to_owned());
        let bodies = [
            TimerBody::Value(json!({"a": "MARKER-value"})),
            TimerBody::Verbatim(raw.expect("a text")),
            TimerBody::Bytes(b"MARKER-bytes".to_vec()),
        ];
        let client = Client::new("http://127.0.0.1:7070", Some("MARKER-token"));
        let client = client.expect("a client");
        let target_of = json!({"url": url, "path": "/MARKER-path", "headers": headers()});
        let attempt = json!({
            "number": 1, "due": "2026-03-01T12:00:00Z", "started": "2026-03-01T12:00:00Z",
            "answer": {
                "status": 200, "body": "MARKER-body", "body_base64": "MARKERbase64", "body_bytes": 9,
                "truncated": false, "times_us": {"first_byte": 1, "total": 2},
            },
        });
        let shown = json!({
            "queue": "q", "key": "k", "id": "i", "revision": 1, "state": "pending",
            "created": "2026-03-01T12:00:00Z", "due": "2026-03-01T12:00:00Z", "target": target_of,
            "body": "MARKER-body", "body_base64": "MARKERbase64", "attempts": [attempt],
        });
        let endpoint = json!({
            "endpoint": "shop", "revision": 1, "url": url, "headers": headers(), "egress_proxy": url,
        });
        let made = json!({
            "id": "0123456789ab", "revision": 1, "name": "ada", "scopes": ["admin"],
            "created": "2026-03-01T12:00:00Z", "token": "cwt_0123456789ab_MARKER",
        });
        let leased = json!({
            "leases": [{"queue": "q", "key": "k", "token": "MARKER-lease", "body": "MARKER-body"}],
        });
        let job = worker::Job {
            queue: "q".to_owned(),
            key: "k".to_owned(),
            id: "i".to_owned(),
            token: "MARKER-lease".to_owned(),
            attempt: 1,
            due: countwheel_time::Timestamp::EPOCH,
            late: Duration::ZERO,
            held: Duration::ZERO,
            run: None,
            headers: headers(),
            content_type: None,
            body: b"MARKER-body".to_vec(),
        };
        let secret = "whsec_MARKERsecretMARKERsecretMARKERsecretMARKERs=";
        let mut all = vec![
            ("NewTarget", format!("{target:?}")),
            ("Client", format!("{client:?}")),
            ("Timer", format!("{:?}", answer::<Timer>(&shown))),
            (
                "EndpointShown",
                format!("{:?}", answer::<EndpointShown>(&endpoint)),
            ),
            ("TokenMade", format!("{:?}", answer::<TokenMade>(&made))),
            ("Leases", format!("{:?}", answer::<Leases>(&leased))),
            (
                "LeaseTaken",
                format!("{:?}", LeaseTaken::new("q", "k", "MARKER-lease")),
            ),
            ("Job", format!("{job:?}")),
            (
                "Verifier",
                format!("{:?}", Verifier::new([secret]).expect("a secret")),
            ),
            ("Worker", format!("{:?}", Worker::new(client, ["q"]))),
        ];
        for body in bodies {
            all.push(("TimerBody", format!("{body:?}")));
            all.push(("NewTimer", format!("{:?}", timer(body))));
        }
        all
    }

    /// Those that show a marker, each once.
    fn leaking() -> Vec<&'static str> {
        let mut found: Vec<_> = all()
            .into_iter()
            .filter(|(_, shown)| shown.contains(MARKER))
            .map(|(name, _)| name)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Somebody logged a timer with `{:?}`, and the key of a receiver was in the log.
    #[test]
    fn debug_shows_no_token_no_path_or_query_no_header_and_no_payload() {
        for (name, shown) in all() {
            assert!(!shown.contains(MARKER), "{name}: {shown}");
        }
        let shown = all().into_iter().find(|(name, _)| *name == "NewTarget");
        let (_, shown) = shown.expect("it is among them");
        assert!(shown.contains("https://example.com:8443/…") && shown.contains("x-key"));
        let url = |url| format!("{:?}", Url(url));
        assert_eq!(url("http://127.0.0.1:80/"), "http://127.0.0.1:80");
        assert_eq!(
            (url(""), url("MARKER")),
            ("\"\"".to_owned(), "…".to_owned())
        );
    }

    #[test]
    fn each_planted_leak_is_found() {
        for (leak, found) in [
            (
                Leak::Url,
                &["EndpointShown", "NewTarget", "NewTimer", "Timer"][..],
            ),
            (
                Leak::Header,
                &["EndpointShown", "Job", "NewTarget", "NewTimer", "Timer"],
            ),
            (
                Leak::Payload,
                &[
                    "EndpointShown",
                    "Job",
                    "Leases",
                    "NewTimer",
                    "Timer",
                    "TimerBody",
                    "TokenMade",
                ],
            ),
            (Leak::Token, &["Job", "LeaseTaken"]),
        ] {
            PLANTED.set(Some(leak));
            let leaking = leaking();
            PLANTED.set(None);
            assert_eq!(leaking, found, "{leak:?}");
        }
        assert!(leaking().is_empty());
    }
}
