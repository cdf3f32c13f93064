//! Limits that hold for three nodes together, one of which is killed and comes back: a receiver counts how many
//! attempts run and how fast they start.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::{Nodes, TTL, asked};
use crate::harness::process::Server;
use crate::harness::{micros, now_us, turn, wait, wait_until};

/// The limits that are proved, and the queue whose timers go by each.
const TWO: u32 = 2;
const TWELVE: u32 = 12;
const PER_SECOND: u64 = 6;
const BURST: u64 = 2;
/// How many timers each has, and how long a delivery takes, in milliseconds.
const TIMERS: [(&str, usize, u64); 3] = [("two", 30, 100), ("twelve", 60, 600), ("rated", 40, 1)];
/// What a machine that others use may add between two starts that a node has kept apart.
const JITTER: Duration = Duration::from_millis(500);

/// A receiver that takes its time, and knows how many deliveries to each path run. One whose connection ends, as that of
/// a node that is killed, runs no more.
struct Sink {
    address: SocketAddr,
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    _runtime: Runtime,
}

#[derive(Default)]
struct Seen {
    running: u32,
    most: u32,
    starts_us: Vec<u64>,
    /// The keys of those that were answered.
    answered: BTreeSet<String>,
}

/// A delivery that runs, until this goes.
struct Runs(Arc<Mutex<BTreeMap<String, Seen>>>, String);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.lock().entry(self.1.clone()).or_default().running -= 1;
    }
}

impl Sink {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<BTreeMap<String, Seen>>>::default();
        let of_all = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = Arc::clone(&of_all);
                tokio::spawn(async move {
                    let receive = service_fn(|request| receive(request, Arc::clone(&seen)));
                    let conversation = hyper::server::conn::http1::Builder::new();
                    drop(
                        conversation
                            .serve_connection(TokioIo::new(stream), receive)
                            .await,
                    );
                });
            }
        });
        Self {
            address,
            seen,
            _runtime: runtime,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    fn answered(&self, path: &str) -> usize {
        self.seen
            .lock()
            .get(path)
            .map_or(0, |seen| seen.answered.len())
    }
}

async fn receive(
    request: Request<Incoming>,
    all: Arc<Mutex<BTreeMap<String, Seen>>>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let key = request.headers().get("timer-key");
    let key = key
        .and_then(|key| key.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    {
        let mut all = all.lock();
        let seen = all.entry(path.clone()).or_default();
        seen.running += 1;
        seen.most = seen.most.max(seen.running);
        seen.starts_us.push(now_us());
    }
    let _runs = Runs(Arc::clone(&all), path.clone());
    drop(request.into_body().collect().await);
    let mut all_paths = TIMERS.iter();
    let millis = all_paths.find_map(|(queue, _, millis)| (*queue == path).then_some(*millis));
    tokio::time::sleep(Duration::from_millis(millis.unwrap_or(0))).await;
    let mut answer = Response::new(Empty::new());
    if path == "broken" {
        *answer.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
    }
    all.lock().entry(path).or_default().answered.insert(key);
    Ok(answer)
}

/// By how many starts the fastest of them are more than the rate allows, with its burst once.
fn beyond_rate(starts_us: &[u64]) -> u64 {
    let mut most = 0;
    for (from, first) in starts_us.iter().enumerate() {
        for (count, last) in (1..).zip(&starts_us[from..]) {
            let span = last - first + micros(JITTER);
            let allowed = BURST + span * PER_SECOND / 1_000_000;
            most = most.max(u64::saturating_sub(count, allowed));
        }
    }
    most
}

#[test]
fn starts_beyond_a_rate_are_seen() {
    let every = |micros: u64| (0..100).map(|at| at * micros).collect::<Vec<_>>();
    let interval = 1_000_000 / PER_SECOND;
    assert_eq!(beyond_rate(&every(interval)), 0);
    // Three nodes that keep to the whole rate each.
    assert!(beyond_rate(&every(interval / 3)) > BURST);
}

fn put(node: &Server, path: &str, body: &Value) {
    let reply = asked(node, "PUT", path, Some(body));
    assert!(
        reply.status < 300,
        "{path}: {} {}",
        reply.status,
        reply.body
    );
}

/// Timers of one shard fail, so one node sees it. Soon all leave the endpoint alone, and say so.
fn a_breaker_is_known_to_all(sink: &Sink, first: &Server, others: &[Server]) {
    let broken = json!({
        "url": sink.url("broken"),
        "breaker": { "failures": 2, "pause": "5m" },
    });
    put(first, "/v1/endpoints/broken", &broken);
    let timer = json!({ "in": 1, "target": { "endpoint": "broken" } });
    for number in 0..3 {
        put(
            first,
            &format!("/v1/queues/default/timers/%7Bone%7D{number}"),
            &timer,
        );
    }
    for node in std::iter::once(first).chain(others) {
        wait_until("each node leaves the endpoint alone", || {
            let health = &asked(node, "GET", "/v1/endpoints/broken", None).body["health"];
            // What was under way when the breaker opened may have failed as well.
            health["state"] == "paused" && health["failures"].as_u64() >= Some(2)
        });
    }
}

#[test]
#[ignore = "needs a PostgreSQL: cargo xtask check nodes"]
fn no_limit_is_exceeded_while_a_node_dies_and_comes_back() {
    let _turn = turn();
    let sink = Sink::start();
    let (mut nodes, first) = Nodes::start(3);
    put(&first, "/v1/queues/two", &json!({ "concurrency": TWO }));
    let rate = json!({ "rate": { "per_second": PER_SECOND, "burst": BURST } });
    put(&first, "/v1/queues/rated", &rate);
    let twelve = json!({ "url": sink.url("twelve"), "concurrency": TWELVE });
    put(&first, "/v1/endpoints/twelve", &twelve);
    // Every node has them within a second.
    wait(Duration::from_secs(1));
    let began = now_us();
    std::thread::scope(|scope| {
        for (at, (queue, count, _)) in TIMERS.into_iter().enumerate() {
            let node = if at == 0 {
                &first
            } else {
                &nodes.others[at - 1]
            };
            let target = match queue {
                "twelve" => json!({ "endpoint": "twelve" }),
                queue => json!({ "url": sink.url(queue) }),
            };
            scope.spawn(move || {
                let mut caller = node.caller();
                for number in 0..count {
                    let body = json!({ "in": "1s", "target": target });
                    let path = format!("/v1/queues/{queue}/timers/{queue}-{number}");
                    let reply = caller.ask("PUT", &path, Some(&body)).expect("it answers");
                    assert_eq!(reply.status, 201, "{}", reply.body);
                }
            });
        }
    });
    // All three deliver, and two of them have to wait for the third at times.
    wait_until("some of all are delivered", || {
        TIMERS.iter().all(|(queue, ..)| sink.answered(queue) >= 8)
    });
    let victim = nodes.busiest(&first);
    nodes.others[victim].kill();
    wait(TTL);
    nodes.others[victim].restart();
    let mut told = now_us();
    wait_until("all are delivered", || {
        if now_us() > told {
            told = now_us() + 1_000_000;
            let counts = TIMERS.map(|(queue, ..)| sink.answered(queue));
            println!("{} ms: {counts:?} delivered", (now_us() - began) / 1_000);
        }
        let is_done = |(queue, count, _): &(&str, usize, u64)| sink.answered(queue) == *count;
        TIMERS.iter().all(is_done)
    });
    println!("{} ms until all were delivered", (now_us() - began) / 1_000);
    a_breaker_is_known_to_all(&sink, &first, &nodes.others);
    let seen = sink.seen.lock();
    let most = |path: &str| seen[path].most;
    println!("at a time: {} and {}", most("two"), most("twelve"));
    assert!(most("two") <= TWO, "{} at a time", most("two"));
    assert!(most("twelve") <= TWELVE, "{} at a time", most("twelve"));
    let beyond = beyond_rate(&seen["rated"].starts_us);
    assert!(beyond <= BURST, "{beyond} beyond the rate and a burst");
}
