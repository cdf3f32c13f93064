//! A server of timers in memory that can be told to misbehave: to take a request and drop
//! the connection, to drop it untaken, to be away, to answer late.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use countwheel_server::time::{format_time, parse_time};
use countwheel_time::{Clock, SystemClock, Timestamp};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What goes wrong with one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The connection breaks before the request is taken.
    Before,
    /// The request is taken, then the connection breaks.
    After,
    /// The request is taken, and the answer is that the store failed.
    AfterFailing,
    /// Refused untaken: too many requests.
    Overloaded,
}

/// Decides what goes wrong, from the method, the key and the number of the request.
type Faults = Box<dyn FnMut(&Method, &str, usize) -> Fault + Send>;

/// One timer, and all that ever happened under its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// How many sets were taken.
    pub(crate) sets: usize,
    /// Requests in the order in which they were taken.
    pub(crate) taken: Vec<String>,
    pub(crate) live: Option<Live>,
}

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) id: String,
    pub(crate) revision: u64,
    pub(crate) created: Timestamp,
    pub(crate) due: Timestamp,
    pub(crate) body: Value,
    /// The states it takes, one for each look; the last one stays.
    pub(crate) states: Vec<Value>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) timers: BTreeMap<String, Entry>,
    pub(crate) requests: Vec<String>,
    /// The last body that came, as it stood.
    pub(crate) last_body: String,
    /// Whether there is no echo.
    pub(crate) no_echo: bool,
    /// What is answered about a cluster, by path; nothing if it is none.
    pub(crate) cluster: BTreeMap<&'static str, Value>,
    pub(crate) under_way: HashMap<String, usize>,
    pub(crate) most_under_way: usize,
    pub(crate) most_of_one_key: usize,
    revision: u64,
    faults: Option<Faults>,
    delay: Duration,
    /// Whether timers become done when they are due.
    fires: bool,
}

/// A running stub. Ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Stub {
    inner: Arc<Mutex<Inner>>,
    clock: SystemClock,
    pub(crate) url: String,
}

impl Stub {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stub = Self {
            inner: Arc::default(),
            clock: SystemClock::new(),
            url: format!("http://{}", listener.local_addr().unwrap()),
        };
        let serving = stub.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stub = serving.clone();
                let service = service_fn(move |request| stub.clone().serve(request));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        stub
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn faults(
        &self,
        faults: impl FnMut(&Method, &str, usize) -> Fault + Send + 'static,
    ) {
        self.inner().faults = Some(Box::new(faults));
    }

    pub(crate) fn delay(&self, delay: Duration) {
        self.inner().delay = delay;
    }

    pub(crate) fn fires(&self) {
        self.inner().fires = true;
    }

    /// Puts a timer there that looks like each of these in turn.
    pub(crate) fn put(&self, key: &str, states: Vec<Value>) {
        let live = Live {
            id: format!("tmr-{key}"),
            revision: 1,
            created: self.clock.timestamp(),
            due: self.clock.timestamp() + Duration::from_secs(60),
            body: json!({ "target": { "url": "http://x/" } }),
            states,
        };
        self.inner().timers.entry(key.to_owned()).or_default().live = Some(live);
    }

    async fn serve(self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        // It knows no batches, so each operation is a request of its own. It reads the lines on behind its refusal: a
        // caller that is still sending could see the connection close before it.
        if path == "/v1/batch" {
            let mut lines = request.into_body();
            tokio::spawn(async move { while lines.frame().await.is_some() {} });
            return Ok(answer(404, &problem("not_found", "there is no such path")));
        }
        let header = |name: &str| {
            let value = request.headers().get(name)?;
            Some(value.to_str().unwrap().to_owned())
        };
        let (if_match, if_none_match) = (header("if-match"), header("if-none-match"));
        let decode = |text| percent_decode_str(text).decode_utf8().unwrap().into_owned();
        let name = path.strip_prefix("/v1/queues/");
        let name = name.and_then(|name| name.split_once("/timers/"));
        // A key of another queue than the default one is known with it.
        let key = name.map(|(queue, key)| match queue {
            "default" => decode(key),
            queue => format!("{} {}", decode(queue), decode(key)),
        });
        let body = request.into_body().collect().await.unwrap().to_bytes();
        self.inner().last_body = String::from_utf8(body.to_vec()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if path == "/echo" && self.inner().no_echo {
            return Ok(answer(404, &problem("no_route", "there is nothing here")));
        }
        if path.starts_with("/v1/cluster") {
            return Ok(self.of_cluster(&method, &path));
        }
        let Some(key) = key else {
            return Ok(answer(200, &self.other(&path)));
        };
        let fault = self.begin(&method, &key);
        let delay = self.inner().delay;
        tokio::time::sleep(delay).await;
        if matches!(fault, Fault::None | Fault::After | Fault::AfterFailing) {
            let (status, json) = self.take(
                &method,
                &key,
                &body,
                if_match.as_deref(),
                if_none_match.as_deref(),
            );
            self.end(&key);
            return match fault {
                Fault::None => Ok(answer(status, &json)),
                Fault::After => Err(io::Error::other("dropped")),
                _ => Ok(answer(503, &problem("unavailable", "the store failed"))),
            };
        }
        self.end(&key);
        match fault {
            Fault::Overloaded => Ok(answer(429, &problem("overloaded", "too many"))),
            _ => Err(io::Error::other("dropped")),
        }
    }

    fn of_cluster(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let mut inner = self.inner();
        inner.requests.push(format!("{method} {path}"));
        match inner.cluster.get(path) {
            Some(json) => answer(200, json),
            None => answer(404, &problem("no_cluster", "this service is no node")),
        }
    }

    fn begin(&self, method: &Method, key: &str) -> Fault {
        let mut inner = self.inner();
        let number = inner.requests.len();
        inner.requests.push(format!("{method} {key}"));
        *inner.under_way.entry(key.to_owned()).or_default() += 1;
        let all = inner.under_way.values().sum();
        inner.most_under_way = inner.most_under_way.max(all);
        inner.most_of_one_key = inner.most_of_one_key.max(inner.under_way[key]);
        match &mut inner.faults {
            Some(faults) => faults(method, key, number),
            None => Fault::None,
        }
    }

    fn end(&self, key: &str) {
        let mut inner = self.inner();
        let left = inner.under_way.get_mut(key).unwrap();
        *left -= 1;
        if *left == 0 {
            inner.under_way.remove(key);
        }
    }

    fn take(
        &self,
        method: &Method,
        key: &str,
        body: &Value,
        if_match: Option<&str>,
        if_none_match: Option<&str>,
    ) -> (u16, Value) {
        let now = self.clock.timestamp();
        let mut inner = self.inner();
        inner.revision += 1;
        let (revision, fires) = (inner.revision, inner.fires);
        let entry = inner.timers.entry(key.to_owned()).or_default();
        let state = entry.live.as_mut().map(|live| live.state(now, fires));
        if method == Method::GET {
            return match (&entry.live, state) {
                (Some(live), Some(state)) => (200, live.show(key, &state)),
                _ => (404, problem("not_found", "there is no timer of that name")),
            };
        }
        if if_none_match.is_some() && entry.live.is_some() {
            return (412, problem("exists", "a timer of that name exists"));
        }
        if let Some(expected) = if_match {
            let current = entry
                .live
                .as_ref()
                .map(|live| format!("\"{}\"", live.revision));
            if current.as_deref() != Some(expected) {
                return (412, problem("revision_mismatch", "another revision"));
            }
        }
        let due = |json: &Value| parse_time(json["at"].as_str().unwrap()).unwrap().max(now);
        let pending = state
            .as_ref()
            .is_some_and(|state| state["state"] == "pending");
        if method == Method::PUT {
            entry.sets += 1;
            entry.taken.push("PUT".to_owned());
            let id = format!("tmr-{revision}");
            entry.live = Some(Live {
                id: id.clone(),
                revision,
                created: now,
                due: due(body),
                body: body.clone(),
                states: Vec::new(),
            });
            let due = format_time(due(body));
            let replaced = state.map(|state| state["state"].clone());
            return (
                201,
                json!({ "queue": "default", "key": key, "id": id, "revision": revision,
                        "due": due, "replaced": replaced }),
            );
        }
        match &mut entry.live {
            None => (404, problem("not_found", "there is no timer of that name")),
            Some(_) if !pending => (410, problem("gone", "the timer is done")),
            Some(live) if method == Method::PATCH => {
                let old_due = std::mem::replace(&mut live.due, due(body));
                live.revision = revision;
                let due = format_time(live.due);
                entry.taken.push("PATCH".to_owned());
                let old_due = format_time(old_due);
                (
                    200,
                    json!({ "revision": revision, "old_due": old_due, "due": due }),
                )
            }
            Some(live) => {
                let due = format_time(live.due);
                entry.live = None;
                entry.taken.push("DELETE".to_owned());
                (200, json!({ "was": "pending", "due": due }))
            }
        }
    }

    /// A list without end, and no queues.
    fn other(&self, path: &str) -> Value {
        if path == "/v1/queues" {
            return json!({ "queues": [] });
        }
        let now = self.clock.timestamp();
        let live = Live {
            id: "tmr-1".to_owned(),
            revision: 1,
            created: now,
            due: now,
            body: json!({ "target": { "url": "http://x/" } }),
            states: Vec::new(),
        };
        let timer = live.show("some", &json!({ "state": "pending" }));
        json!({ "items": vec![timer; 100], "next": "more" })
    }
}

impl Live {
    fn state(&mut self, now: Timestamp, fires: bool) -> Value {
        if self.states.len() > 1 {
            return self.states.remove(0);
        }
        if let Some(last) = self.states.first() {
            return last.clone();
        }
        if !fires || now < self.due {
            return json!({ "state": "pending" });
        }
        let due = format_time(self.due);
        let attempt = json!({ "number": 1, "due": due, "started": due, "late_us": 0,
                              "ended": due, "result": "done", "detail": "200" });
        json!({ "state": "done", "attempt": 1, "attempts": [attempt] })
    }

    fn show(&self, key: &str, state: &Value) -> Value {
        let mut timer = json!({
            "queue": "default", "key": key, "id": self.id, "revision": self.revision,
            "created": format_time(self.created), "due": format_time(self.due),
            "target": self.body["target"], "retry": self.body["retry"],
        });
        for (name, value) in state.as_object().unwrap() {
            timer[name] = value.clone();
        }
        timer
    }
}

fn problem(code: &str, detail: &str) -> Value {
    json!({ "type": format!("/problems/{code}"), "code": code, "detail": detail })
}

fn answer(status: u16, json: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(json.to_string()));
    *response.status_mut() = status.try_into().unwrap();
    response
}
