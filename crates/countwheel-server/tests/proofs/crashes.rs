//! The server in crash loops: killed from outside 50 ms after each start, and ended by what it
//! delivers. No timer dies of what it has not done.
//!
//! `COUNTWHEEL_CRASHES` says how many kills there are from outside, `COUNTWHEEL_KILLERS` up to how
//! many deliveries end the server, `COUNTWHEEL_HOLD` what `--suspect-hold` is there.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::harness::caller::{Caller, number, text};
use crate::harness::process::{Launch, Server};
use crate::harness::{Directory, figures, micros, now_us, pause, setting, turn, wait};

/// How long each process lives that is killed from outside.
const LIFE: Duration = Duration::from_millis(50);
/// What the receivers take to answer, in milliseconds.
const ANSWERS: [u64; 3] = [0, 20, 200];
/// How long the last process may take to deliver what is left.
const REST: Duration = Duration::from_secs(600);

/// Receivers that answer at once and later, and one that ends the server.
struct Receivers {
    address: SocketAddr,
    seen: Arc<Seen>,
    _runtime: Runtime,
}

#[derive(Default)]
struct Seen {
    /// The server to be killed by the next delivery that does so; 0 if none.
    victim: AtomicU32,
    killed: AtomicU64,
    arrivals: AtomicU64,
}

impl Receivers {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        runtime.spawn(listen(listener, Arc::clone(&seen)));
        Self {
            address,
            seen,
            _runtime: runtime,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    fn arrivals(&self) -> u64 {
        self.seen.arrivals.load(Ordering::Relaxed)
    }
}

async fn listen(listener: TcpListener, seen: Arc<Seen>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let receive = service_fn(|request| receive(request, &seen));
                    let conversation = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), receive);
                    // It ends with the server's process.
                    drop(conversation.await);
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn receive(
    request: Request<Incoming>,
    seen: &Seen,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    seen.arrivals.fetch_add(1, Ordering::Relaxed);
    let path = request.uri().path().trim_start_matches('/').to_owned();
    drop(request.into_body().collect().await);
    match path.parse() {
        Ok(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Err(_) => {
            // Each process is killed once: it may be gone, and another one have its number.
            let victim = seen.victim.swap(0, Ordering::SeqCst);
            if victim != 0 {
                let arguments = ["-KILL".to_owned(), victim.to_string()];
                let killed = Command::new("kill").args(arguments).status();
                assert!(killed.unwrap().success());
                seen.killed.fetch_add(1, Ordering::SeqCst);
            }
            std::future::pending::<()>().await;
        }
    }
    Ok(Response::new(Empty::new()))
}

fn set(caller: &mut Caller, key: &str, at_us: u64, url: &str) {
    let path = format!("/v1/queues/default/timers/{key}");
    let at = crate::harness::caller::moment(at_us);
    let body = json!({ "at": at, "target": { "url": url } });
    let reply = caller.ask("PUT", &path, Some(&body)).expect("an answer");
    assert_eq!(reply.status, 201, "{}", reply.body);
}

/// Whether everything has come to its end. `None` if the server cannot tell.
fn is_over(server: &Server) -> Option<bool> {
    let mut caller = Caller::connect(server.address)?;
    // A look at one state may miss what leaves the other meanwhile.
    for state in ["delivering", "pending", "delivering", "pending"] {
        let path = format!("/v1/queues/default/timers?limit=1&state={state}");
        let mut after = String::new();
        loop {
            let page = caller.ask("GET", &format!("{path}{after}"), None)?;
            if page.status == 410 {
                break;
            }
            if page.status != 200 {
                return None;
            }
            if page.body["items"] != json!([]) {
                return Some(false);
            }
            match page.body["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
    }
    Some(true)
}

/// How many ended well, and the keys of those that are dead.
fn ends(server: &Server) -> (u64, Vec<(String, u64)>) {
    let mut done = 0;
    let mut dead = Vec::new();
    for (key, sight) in server.caller().all() {
        match sight.state.as_str() {
            "done" => done += 1,
            "dead" => dead.push((key, sight.attempt)),
            other => panic!("{key} is {other}"),
        }
    }
    (done, dead)
}

#[test]
#[ignore = "seconds to minutes: cargo xtask crashes"]
fn kills_in_a_row_make_no_timer_dead() {
    let _turn = turn();
    let kills = setting("COUNTWHEEL_CRASHES", || 60);
    let directory = Directory::new("crashes");
    let receivers = Receivers::start();
    let launch = Launch {
        options: vec!["--suspect-hold", "1s"],
        ..Launch::default()
    };
    let mut server = Server::start_as(&directory.join("data"), launch);
    // They come due all the time that the kills take, and what setting them takes before.
    let timers = kills;
    let begin_us = now_us() + timers * 4_000;
    let pace_us = micros(LIFE) * 11 / 10;
    let mut caller = server.caller();
    for timer in 0..timers {
        let answers = ANSWERS[usize::try_from(timer).unwrap() % ANSWERS.len()];
        let url = receivers.url(&answers.to_string());
        set(
            &mut caller,
            &format!("timer-{timer}"),
            begin_us + timer * pace_us,
            &url,
        );
    }
    drop(caller);
    while now_us() < begin_us {
        pause();
    }
    let start_us = now_us();
    let mut lived = 0;
    let mut delivering = 0;
    let mut arrivals = 0;
    for _ in 0..kills {
        server.kill();
        server.respawn();
        wait(LIFE);
        lived += u64::from(server.end_within(Duration::ZERO).is_none());
        let now = receivers.arrivals();
        delivering += u64::from(now > arrivals);
        arrivals = now;
    }
    let took_us = now_us() - start_us;
    server.kill();
    server.restart();
    let rest_us = now_us();
    while is_over(&server) != Some(true) {
        assert!(now_us() < rest_us + micros(REST), "{}", server.said());
        wait(Duration::from_millis(50));
    }
    let (done, dead) = ends(&server);
    figures::print(
        &format!("{kills} kills, each {LIFE:?} after a start"),
        &[
            ("timers", timers.to_string()),
            ("processes that lived until their kill", lived.to_string()),
            ("of these, with deliveries", delivering.to_string()),
            ("deliveries until the last kill", arrivals.to_string()),
            ("deliveries in all", receivers.arrivals().to_string()),
            ("done", done.to_string()),
            ("dead", dead.len().to_string()),
            ("the kills took", format!("{} s", took_us / 1_000_000)),
            (
                "the rest took",
                format!("{} ms", (now_us() - rest_us) / 1_000),
            ),
        ],
    );
    assert_eq!((done, dead), (timers, Vec::new()));
    assert!(lived > kills / 2 && delivering > 0);
}

#[test]
#[ignore = "seconds to minutes: cargo xtask crashes"]
fn a_delivery_that_ends_the_server_dies_alone() {
    let _turn = turn();
    let hold = std::env::var("COUNTWHEEL_HOLD").unwrap_or("5ms".to_owned());
    let most = usize::try_from(setting("COUNTWHEEL_KILLERS", || 1)).unwrap();
    for killers in 1..=most {
        let directory = Directory::new("crashes");
        let receivers = Receivers::start();
        let hold: &'static str = hold.clone().leak();
        let launch = Launch {
            options: vec!["--suspect-hold", hold],
            ..Launch::default()
        };
        let mut server = Server::start_as(&directory.join("data"), launch);
        let others = 300;
        let due_us = now_us() + 3_000_000;
        let mut caller = server.caller();
        for timer in 0..others {
            let answers = ANSWERS[timer % ANSWERS.len()];
            let url = receivers.url(&answers.to_string());
            set(&mut caller, &format!("other-{timer:03}"), due_us, &url);
            if timer % 100 == 50 && timer / 100 < killers {
                let key = format!("killer-{}", timer / 100);
                set(&mut caller, &key, due_us, &receivers.url("kill"));
            }
        }
        drop(caller);
        let start_us = now_us();
        let mut restarts = 0;
        receivers.seen.victim.store(server.pid(), Ordering::SeqCst);
        loop {
            assert!(now_us() < start_us + micros(REST), "{}", server.said());
            if server.end_within(Duration::from_millis(20)).is_some() {
                server.kill();
                server.respawn();
                restarts += 1;
                receivers.seen.victim.store(server.pid(), Ordering::SeqCst);
            } else if is_over(&server) == Some(true) {
                break;
            }
        }
        let took_us = now_us() - start_us;
        let (done, dead) = ends(&server);
        let mut caller = server.caller();
        let attempts: Vec<_> = dead.iter().map(|(_, attempts)| *attempts).collect();
        figures::print(
            &format!("{killers} of {} end the server", others + killers),
            &[
                ("--suspect-hold", hold.to_owned()),
                ("restarts", restarts.to_string()),
                ("deliveries", receivers.arrivals().to_string()),
                ("done", done.to_string()),
                (
                    "dead",
                    format!("{}, after attempts {attempts:?}", dead.len()),
                ),
                ("took", format!("{} ms", took_us / 1_000)),
            ],
        );
        assert_eq!((done, dead.len()), (others as u64, killers));
        for (key, attempts) in dead {
            assert!(
                key.starts_with("killer-") && attempts <= 10,
                "{key}: {attempts}"
            );
            let path = format!("/v1/queues/default/timers/{key}");
            let timer: Value = caller.ask("GET", &path, None).expect("an answer").body;
            assert_eq!(text(&timer, "dead_reason"), "interrupted", "{timer}");
            assert_eq!(number(&timer, "attempt"), attempts);
        }
        assert!(restarts <= 30 * killers, "{restarts}");
    }
}
