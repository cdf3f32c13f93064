//! The workers and the receivers of the clients, under kills of the server. Those in TypeScript and Python are in programs that say
//! what they see, one object a line.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use countwheel_client::receiver::{Delivery, DeliveryLayer};
use countwheel_client::signature::Verifier;
use countwheel_client::worker::{Failure, Job, Worked, Worker};
use countwheel_client::{Client, ClientError, NewTimer};
use countwheel_durable::{Due, Precondition, RetryPolicy};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot::{Sender, channel};
use tokio::task::JoinHandle;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::speakers::{directory, node, python};
use super::{Ends, Kills};
use crate::harness::caller::Caller;
use crate::harness::process::{Launch, Server};
use crate::harness::{
    Directory, PATIENCE, Random, figures, micros, now_us, pause, seed, setting, turn, wait,
    wait_until,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// How long a handler takes: so long that each kill meets some.
const TAKES: Duration = Duration::from_millis(40);

/// What a worker and a receiver have seen.
#[derive(Clone, Default, Debug)]
struct Seen {
    /// How often a handler worked on a job, by key.
    worked: BTreeMap<String, u32>,
    /// How often a handler took a delivery, by id.
    handled: BTreeMap<String, u32>,
    /// How many deliveries came, before repeats were dropped.
    arrived: u64,
    /// How many of them a handler refused.
    refused: u64,
    stopped: bool,
}

impl Seen {
    fn note(&mut self, what: &str, name: &str) -> u32 {
        let counts = match what {
            "worked" => &mut self.worked,
            "handled" => &mut self.handled,
            "arrived" => {
                self.arrived += 1;
                return 0;
            }
            "refused" => {
                self.refused += 1;
                return 0;
            }
            "stopped" => {
                self.stopped = true;
                return 0;
            }
            other => panic!("what is {other}?"),
        };
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Deliveries that no handler took or refused: it had them before, or had them just then.
    fn repeats(&self) -> u64 {
        let handled: u64 = self.handled.values().map(|count| u64::from(*count)).sum();
        self.arrived.saturating_sub(handled + self.refused)
    }
}

type Noted = Arc<Mutex<Seen>>;

/// A worker and a receiver at work.
trait Works: Send {
    /// Where the receiver listens.
    fn url(&self) -> String;
    /// The worker begins: its queue is there.
    fn begin(&mut self);
    /// The worker stops, and says what was seen.
    fn stop(self: Box<Self>) -> Seen;
}

/// The worker and the receiver of the client in that language.
fn of(language: &str, server: &str) -> Box<dyn Works> {
    match language {
        "Rust" => Box::new(InRust::start(server)),
        "TypeScript" => {
            let mut node = node();
            node.arg(script("work.mjs")).arg(directory("typescript"));
            Box::new(Piped::start(node, server))
        }
        "Python" => {
            let mut python = python(script("work.py"));
            python.arg(directory("python"));
            Box::new(Piped::start(python, server))
        }
        other => panic!("there is no client in {other}"),
    }
}

fn script(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/proofs/clients").join(name)
}

/// What stops a worker, and its end.
type Working = (Sender<()>, JoinHandle<Result<Worked, ClientError>>);

struct InRust {
    url: String,
    server: String,
    noted: Noted,
    runtime: Runtime,
    working: Option<Working>,
}

impl InRust {
    fn start(server: &str) -> Self {
        let noted = Noted::default();
        let runtime = Runtime::new().unwrap();
        Self {
            url: runtime.block_on(receive(Arc::clone(&noted))),
            server: server.to_owned(),
            noted,
            runtime,
            working: None,
        }
    }
}

impl Works for InRust {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn begin(&mut self) {
        let client = Client::new(&self.server, None).unwrap();
        let noted = Arc::clone(&self.noted);
        let handler = move |job: Job| {
            let noted = Arc::clone(&noted);
            async move {
                tokio::time::sleep(TAKES).await;
                // Some fail the first time.
                if noted.lock().note("worked", &job.key) == 1 && job.key.ends_with('3') {
                    return Err(Failure::new("as told").after(Duration::from_millis(10)));
                }
                Ok(())
            }
        };
        let worker = Worker::new(client.with_retry(Client::usual_retry()), ["pulled"])
            .concurrency(50)
            .lease(Duration::from_secs(1))
            .wait(Duration::from_secs(1));
        let (stop, stopped) = channel::<()>();
        let working = self.runtime.spawn(async move {
            let stop = async { stopped.await.unwrap_or_default() };
            worker.run(handler, stop).await
        });
        self.working = Some((stop, working));
    }

    fn stop(self: Box<Self>) -> Seen {
        let (stop, working) = self.working.unwrap();
        stop.send(()).unwrap();
        let worked = self.runtime.block_on(working).unwrap().unwrap();
        assert!(worked.done > 0, "{worked:?}");
        self.noted.lock().note("stopped", "");
        self.noted.lock().clone()
    }
}

/// A receiver with the layer of the client. Says where it listens.
async fn receive(noted: Noted) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let notes = Arc::clone(&noted);
    let handler = service_fn(move |request: Request<Full<Bytes>>| {
        let notes = Arc::clone(&notes);
        async move {
            let delivery: &Delivery = request.extensions().get().expect("a delivery");
            let (id, attempt) = (delivery.id.clone(), delivery.attempt);
            tokio::time::sleep(TAKES).await;
            let mut answer = Response::new(Full::<Bytes>::default());
            // A delivery that fails is none that was handled.
            if attempt == 1 && id.ends_with('7') {
                notes.lock().note("refused", &id);
                *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            } else {
                notes.lock().note("handled", &id);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let layer = DeliveryLayer::new().verified(Verifier::new([SECRET]).unwrap());
    let service = layer.layer(handler);
    let whole = service_fn(move |request: Request<Incoming>| {
        let (service, noted) = (service.clone(), Arc::clone(&noted));
        async move {
            let (parts, body) = request.into_parts();
            // A body that a kill has cut off is no delivery.
            let body = body.collect().await?.to_bytes();
            noted.lock().note("arrived", "");
            let request = Request::from_parts(parts, Full::from(body));
            let Ok(answer) = service.oneshot(request).await;
            Ok::<_, hyper::Error>(answer)
        }
    });
    tokio::spawn(async move {
        while let Ok((peer, _)) = listener.accept().await {
            let service = TowerToHyperService::new(whole.clone());
            tokio::spawn(async move {
                let serving = hyper::server::conn::http1::Builder::new();
                // Connections break with the server.
                drop(serving.serve_connection(TokioIo::new(peer), service).await);
            });
        }
    });
    url
}

/// A program that says what it sees, until its input ends.
struct Piped {
    url: String,
    child: Child,
    input: Option<ChildStdin>,
    noted: Noted,
}

impl Piped {
    fn start(mut command: Command, server: &str) -> Self {
        command
            .args([server, SECRET])
            .env_remove("COUNTWHEEL_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().expect("it says where it listens").unwrap();
        let first: Value = serde_json::from_str(&first).unwrap();
        let noted = Noted::default();
        let notes = Arc::clone(&noted);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let said: Value = serde_json::from_str(&line).unwrap();
                for (what, name) in said.as_object().unwrap() {
                    notes.lock().note(what, name.as_str().unwrap_or_default());
                }
            }
        });
        Self {
            url: first["listens"].as_str().unwrap().to_owned(),
            child,
            input,
            noted,
        }
    }
}

impl Works for Piped {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn begin(&mut self) {
        writeln!(self.input.as_ref().unwrap()).unwrap();
    }

    fn stop(mut self: Box<Self>) -> Seen {
        drop(self.input.take());
        wait_until("the worker stops", || self.noted.lock().stopped);
        self.noted.lock().clone()
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

fn timer(pushed: bool) -> NewTimer {
    NewTimer {
        endpoint: pushed.then(|| ("hook".to_owned(), String::new())),
        retry: Some(RetryPolicy::fixed(Duration::from_millis(50)).max_retries(1_000)),
        ..NewTimer::to("", Due::In(Duration::from_millis(100)))
    }
}

/// Sets a timer in each queue again and again, until that is to stop. Says which ones the service has taken.
async fn set_timers(client: &Client, stops: &AtomicBool) -> Vec<String> {
    let mut keys = Vec::new();
    while !stops.load(Ordering::SeqCst) {
        let key = format!("timer-{}", keys.len());
        for (queue, pushed) in [("pushed", true), ("pulled", false)] {
            let timer = timer(pushed);
            let set = client.set(queue, &key, &timer, Precondition::None);
            set.await.unwrap_or_else(|error| panic!("{error}"));
        }
        keys.push(key);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    keys
}

/// Works and receives for that long, while the server is killed. Says which keys were set, what was seen, and how many kills
/// there were.
fn work(language: &str, data: &Path, seed: u64, span: Duration) -> (Vec<String>, Seen, u64) {
    // As an operator has it: ten kills in a row on a slow machine make no timer dead.
    let launch = Launch {
        options: vec!["--suspect-hold", "1s"],
        ..Launch::default()
    };
    let mut server = Server::start_as(data, launch);
    let url = format!("http://{}", server.address);
    let mut works = of(language, &url);
    let mut caller = server.caller();
    let endpoint = json!({"url": works.url(), "secrets": [SECRET]});
    let pulled = json!({"mode": "pull", "retention": {"done": "1h"}});
    for (path, body) in [
        ("/v1/endpoints/hook", &endpoint),
        ("/v1/queues/pulled", &pulled),
    ] {
        let put = caller.ask("PUT", path, Some(body)).unwrap();
        assert!(matches!(put.status, 200 | 201), "{}", put.body);
    }
    works.begin();
    let client = Client::new(&url, None).unwrap();
    let client = client.with_retry(Client::usual_retry());
    let runtime = Runtime::new().unwrap();
    let (kills, stops) = (Kills::default(), AtomicBool::new(false));
    let sets_end = AtomicBool::new(false);
    let address = server.address;
    let keys = std::thread::scope(|scope| {
        let killing = scope.spawn(|| kills.go_on(&mut server, &stops, &mut Random::new(seed)));
        let setting = scope.spawn(|| runtime.block_on(set_timers(&client, &sets_end)));
        let _ends = (Ends(&stops), Ends(&sets_end));
        wait(span);
        sets_end.store(true, Ordering::SeqCst);
        let keys = setting.join().unwrap();
        stops.store(true, Ordering::SeqCst);
        killing.join().unwrap();
        keys
    });
    let end = now_us() + micros(PATIENCE);
    for queue in ["pushed", "pulled"] {
        loop {
            let counts = Caller::connect(address)
                .and_then(|mut it| it.ask("GET", &format!("/v1/queues/{queue}"), None));
            let counts = counts.expect("the server answers").body;
            let of = |state: &str| counts[state].as_u64().unwrap();
            if of("dead") > 0 {
                let path = format!("/v1/queues/{queue}/timers?state=dead&limit=1");
                let dead = Caller::connect(address).and_then(|mut it| it.ask("GET", &path, None));
                let dead = dead.expect("the server answers").body;
                panic!("{language}: {counts}: {dead}");
            }
            if of("pending") + of("delivering") == 0 {
                break;
            }
            assert!(
                now_us() < end,
                "{language} does not come to its end: {counts}"
            );
            pause();
        }
    }
    (keys, works.stop(), kills.count())
}

#[test]
#[ignore = "needs Python and Node with packages: cargo xtask check clients"]
fn each_worker_and_each_receiver_handle_each_timer_while_the_server_is_killed() {
    let _turn = turn();
    let span = Duration::from_secs(setting("COUNTWHEEL_CLIENTS_SECONDS", || 5));
    let seed = seed();
    let directory = Directory::new("work");
    let names = ["Rust", "TypeScript", "Python"];
    let found: Vec<_> = std::thread::scope(|scope| {
        let works = names.iter().zip(seed..).map(|(name, seed)| {
            let data = directory.join(name);
            scope.spawn(move || work(name, &data, seed, span))
        });
        let works: Vec<_> = works.collect();
        works.into_iter().map(|it| it.join().unwrap()).collect()
    });
    for (name, (keys, seen, kills)) in names.iter().zip(&found) {
        let worked: u32 = seen.worked.values().sum();
        figures::print(
            &format!("the worker and the receiver of the client in {name}"),
            &[
                ("timers of each", keys.len().to_string()),
                ("kills", kills.to_string()),
                ("jobs worked on", worked.to_string()),
                ("deliveries that came", seen.arrived.to_string()),
                ("deliveries handled", seen.handled.len().to_string()),
                ("deliveries refused as told", seen.refused.to_string()),
                ("repeats that no handler saw", seen.repeats().to_string()),
            ],
        );
        demand(name, keys, seen);
        assert!(*kills >= 3, "{name}: {kills} kills");
        assert!(seen.repeats() > 0, "{name}: no kill has met a delivery");
    }
}

/// Each timer was handled, and no delivery twice.
fn demand(name: &str, keys: &[String], seen: &Seen) {
    for key in keys {
        let times = seen.worked.get(key).copied().unwrap_or_default();
        let least = if key.ends_with('3') { 2 } else { 1 };
        assert!(times >= least, "{name}: {key} was worked on {times} times");
    }
    // A set that was repeated has another id, whose first may have been delivered as well.
    let handled = seen.handled.len();
    assert!(handled >= keys.len(), "{name}: {handled} of {}", keys.len());
    let twice = seen.handled.iter().find(|(_, count)| **count > 1);
    assert_eq!(twice, None, "{name}: handled more than once");
}

#[test]
fn a_timer_that_was_not_handled_and_a_delivery_that_was_handled_twice_are_found() {
    let keys = ["timer-1".to_owned(), "timer-3".to_owned()];
    let seen = |names: &[(&str, &str)]| {
        let mut seen = Seen::default();
        for (what, name) in names {
            seen.note(what, name);
        }
        std::panic::catch_unwind(|| demand("nobody", &keys, &seen)).is_ok()
    };
    let fine = [
        ("worked", "timer-1"),
        ("worked", "timer-3"),
        ("worked", "timer-3"),
        ("handled", "tmr-1"),
        ("handled", "tmr-2"),
    ];
    assert!(seen(&fine));
    for left_out in 0..fine.len() {
        let mut less = fine.to_vec();
        less.remove(left_out);
        assert!(!seen(&less), "{less:?}");
    }
    assert!(!seen(&[&fine[..], &[("handled", "tmr-1")]].concat()));
}
