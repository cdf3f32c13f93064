//! The way of one attempt: where it goes, with what, and for how long, as its timer, its endpoint and its queue say
//! when it starts.

use std::str::FromStr;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::uri::PathAndQuery;
use countwheel_durable::{QueueName, SettingsVersion};
use percent_encoding::percent_decode_str;

use super::Resources;
use super::breaker::Breaker;
use super::cloudevents::CloudEvents;
use super::endpoint::{EndpointName, Fault, Means, Opened};
use super::namespace::namespace_in;
use super::statuses::{self, Meaning, Statuses};
use crate::deliver::check_encoding;
use crate::job::{Job, TIMEOUT_DEFAULT, To};

/// How long a path may be, in bytes.
pub(crate) const PATH_MAX_BYTES: usize = 2_048;

/// What an attempt needs beside its job.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Duration,
    /// Of an endpoint.
    pub(crate) means: Option<Means>,
    pub(crate) endpoint: Option<Reached>,
    pub(crate) rules: Rules,
    /// Of a queue whose deliveries are events.
    pub(crate) cloudevents: Option<CloudEvents>,
}

/// The endpoint at which an attempt is made, as it is when the attempt starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    pub(crate) name: EndpointName,
    pub(crate) revision: SettingsVersion,
    pub(crate) breaker: Option<Breaker>,
    /// The endpoint is disabled once every attempt has failed for so long.
    pub(crate) auto_disable: Option<Duration>,
}

/// What the statuses of answers mean on this way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    endpoint: Statuses,
    queue: Statuses,
}

impl Rules {
    /// What an answer of this status means.
    pub(crate) fn meaning(&self, status: StatusCode) -> Meaning {
        statuses::meaning(status, &self.endpoint, &self.queue)
    }
}

/// Why no attempt can be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// In words for callers.
    pub(crate) detail: String,
    /// Whether another node may know the endpoint already.
    pub(crate) is_unknown: bool,
}

impl Held {
    fn unknown(detail: String) -> Self {
        let is_unknown = true;
        Self { detail, is_unknown }
    }

    fn known(detail: String) -> Self {
        let is_unknown = false;
        Self { detail, is_unknown }
    }
}

/// What a queue adds to the way of its timers.
#[derive(Default)]
struct OnTheWay {
    timeout: Option<Duration>,
    rules: Rules,
    cloudevents: Option<CloudEvents>,
}

/// The way of a request to an endpoint.
fn way(
    name: &str,
    endpoint: &Opened,
    path: &str,
    job: &Job,
    of_queue: OnTheWay,
) -> Result<Route, Held> {
    let means = endpoint.means.clone();
    let means = means.map_err(|fault| Held::known(unusable(name, &fault)))?;
    let (settings, own) = (&endpoint.settings, &job.headers);
    let known = EndpointName::new(name).ok();
    let is_of_timer = |name: &str| own.iter().any(|(known, _)| known == name);
    let others = settings.headers.iter();
    let others = others.filter(|(name, _)| !is_of_timer(name));
    let timeout = job.timeout.or(settings.timeout).or(of_queue.timeout);
    Ok(Route {
        url: join(&settings.url, path),
        headers: others.chain(own).cloned().collect(),
        timeout: timeout.unwrap_or(TIMEOUT_DEFAULT),
        means: Some(means),
        endpoint: known.map(|name| Reached {
            name,
            revision: endpoint.revision,
            breaker: settings.breaker,
            auto_disable: settings.auto_disable,
        }),
        rules: Rules {
            endpoint: settings.statuses.clone(),
            ..of_queue.rules
        },
        cloudevents: of_queue.cloudevents,
    })
}

impl Resources {
    /// The way of an attempt at a timer of this queue.
    pub(crate) fn route(&self, queue: &QueueName, job: &Job) -> Result<Route, Held> {
        let own = &job.headers;
        let name_of_queue = queue;
        let queue = self.queue(queue).and_then(|entry| entry.what.as_ref());
        let of_queue = queue.map(|queue| queue.statuses.clone());
        let rules = Rules {
            endpoint: Statuses::default(),
            queue: of_queue.unwrap_or_default(),
        };
        let cloudevents = queue.and_then(|queue| queue.cloudevents.clone());
        let (name, path) = match &job.to {
            To::Url(url) => {
                return Ok(Route {
                    url: url.clone(),
                    headers: own.clone(),
                    timeout: job
                        .timeout
                        .unwrap_or_else(|| self.timeout_of_url(name_of_queue)),
                    means: None,
                    endpoint: None,
                    rules,
                    cloudevents,
                });
            }
            To::Endpoint { name, path } => (name.as_deref(), path),
        };
        let of_queue = queue.and_then(|queue| queue.endpoint.as_deref());
        let name = name.or(of_queue);
        let none = || Held::unknown("the queue has no endpoint".to_owned());
        let name = name.ok_or_else(none)?;
        if namespace_in(name) != name_of_queue.namespace() {
            return Err(Held::known(format!(
                "the endpoint {name} is not in the namespace of the queue"
            )));
        }
        let endpoint = self.usable(name)?;
        let on_the_way = OnTheWay {
            timeout: queue.and_then(|queue| queue.timeout),
            rules,
            cloudevents,
        };
        way(name, endpoint, path, job, on_the_way)
    }

    /// The way of a test of an endpoint, which a disabled one has too. `None` if there is none of that name.
    pub(crate) fn route_of_test(
        &self,
        name: &EndpointName,
        path: &str,
        job: &Job,
    ) -> Option<Result<Route, Held>> {
        let endpoint = self.endpoint(name)?.what.as_deref();
        let unread = || Held::known(format!("the endpoint {name} cannot be read"));
        let endpoint = endpoint.ok_or_else(unread);
        let name = name.as_str();
        Some(endpoint.and_then(|it| way(name, it, path, job, OnTheWay::default())))
    }

    /// The endpoint of that name, if attempts may go there.
    pub(super) fn usable(&self, name: &str) -> Result<&Opened, Held> {
        let held = |why: &str| Held::known(format!("the endpoint {name} {why}"));
        let unknown = || Held::unknown(format!("the endpoint {name} does not exist"));
        let known = EndpointName::new(name).ok();
        let entry = known.and_then(|name| self.endpoint(&name));
        let entry = entry.ok_or_else(unknown)?;
        let endpoint = entry.what.as_deref();
        let endpoint = endpoint.ok_or_else(|| held("cannot be read"))?;
        if endpoint.settings.disabled {
            return Err(held("is disabled"));
        }
        if let Err(fault) = &endpoint.means {
            return Err(Held::known(unusable(name, fault)));
        }
        Ok(endpoint)
    }
}

/// What callers see of an endpoint with a fault.
fn unusable(name: &str, fault: &Fault) -> String {
    let what = match fault {
        Fault::Secret(_) => "a secret cannot be opened",
        Fault::Tls(_) => "its authorities or its client certificate cannot be read",
    };
    format!("the endpoint {name} cannot be used: {what}")
}

/// Checks what is to follow the URL of an endpoint. It leads nowhere above that URL.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    if path.len() > PATH_MAX_BYTES {
        return Err(format!("a path has at most {PATH_MAX_BYTES} bytes"));
    }
    if path.is_empty() {
        return Ok(());
    }
    if !path.starts_with(['/', '?']) {
        return Err("a path begins with / or ?".to_owned());
    }
    if path.contains(['#', '\\']) || PathAndQuery::from_str(path).is_err() {
        return Err("this is no path of a URL, with a query or without".to_owned());
    }
    check_encoding(path)?;
    let (before, _) = path.split_once('?').unwrap_or((path, ""));
    let is_dots = |segment: &str| {
        let decoded: Vec<u8> = percent_decode_str(segment).collect();
        matches!(&decoded[..], b"." | b"..")
    };
    if before.split('/').any(is_dots) {
        return Err("a path has no part that is . or ..".to_owned());
    }
    Ok(())
}

/// The URL of an endpoint with what follows it: paths one behind the other, and queries as well.
pub(crate) fn join(base: &str, path: &str) -> String {
    let (base, _) = base.split_once('#').unwrap_or((base, ""));
    let (before, query) = base.split_once('?').unwrap_or((base, ""));
    let (after, more) = path.split_once('?').unwrap_or((path, ""));
    let before = match after {
        "" => before,
        _ => before.strip_suffix('/').unwrap_or(before),
    };
    let queries = [query, more].into_iter().filter(|query| !query.is_empty());
    let queries = queries.collect::<Vec<_>>().join("&");
    if queries.is_empty() {
        format!("{before}{after}")
    } else {
        format!("{before}{after}?{queries}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_follows_the_url_of_its_endpoint() {
        for (base, path, url) in [
            ("http://x", "", "http://x"),
            ("http://x", "/a", "http://x/a"),
            ("http://x/", "/a", "http://x/a"),
            ("http://x/b", "/a?q=1", "http://x/b/a?q=1"),
            ("http://x/b/", "?q=1", "http://x/b/?q=1"),
            ("http://x/b?k=7#f", "/a?q=1", "http://x/b/a?k=7&q=1"),
            ("http://x/b?k=7", "", "http://x/b?k=7"),
            ("http://x?k=7", "//evil/a", "http://x//evil/a?k=7"),
        ] {
            assert_eq!(join(base, path), url, "{base} and {path}");
            assert_eq!(check_path(path), Ok(()), "{path}");
            let host = |url: &str| {
                crate::deliver::check_url(url)
                    .unwrap()
                    .host()
                    .map(str::to_owned)
            };
            assert_eq!(host(&join(base, path)).as_deref(), Some("x"));
        }
    }

    #[test]
    fn a_path_that_leaves_its_endpoint_is_refused() {
        let long = format!("/{}", "x".repeat(PATH_MAX_BYTES));
        for path in [
            "a",
            "@evil/",
            ":80/",
            ".evil/",
            "/a#b",
            "/..",
            "/a/../b",
            "/%2e%2E/b",
            "/.",
            "/a b",
            "/a\n",
            "\\a",
            "/\\a",
            "/é\u{7f}",
            "/é",
            "/a?b=é",
            "/%zz",
            "?%",
            &long,
        ] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in ["/a..b", "/...", "/a?b=../c", "/%2F", "/a/"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
    }
}
