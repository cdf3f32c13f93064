//! A worker and a receiver of the client in Rust, under kills of the server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use countwheel_client::receiver::{Delivery, DeliveryLayer};
use countwheel_client::signature::Verifier;
use countwheel_client::worker::{Failure, Job, Worker};
use countwheel_client::{Client, NewTimer};
use countwheel_durable::{Due, Precondition, RetryPolicy};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use tower::{ServiceBuilder, service_fn};

use super::{Ends, Kills};
use crate::harness::process::Server;
use crate::harness::{
    Directory, PATIENCE, Random, figures, micros, now_us, pause, seed, setting, turn,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// How long a handler takes: so long that each kill meets some.
const TAKES: Duration = Duration::from_millis(40);

/// What handlers have seen, by key or by id.
#[derive(Clone, Default)]
struct Handled(Arc<Mutex<BTreeMap<String, u32>>>);

impl Handled {
    fn add(&self, name: &str) -> u32 {
        let mut handled = self.0.lock();
        let count = handled.entry(name.to_owned()).or_default();
        *count += 1;
        *count
    }

    fn all(&self) -> BTreeMap<String, u32> {
        self.0.lock().clone()
    }
}

/// A receiver of deliveries with the layer of the client. Counts what arrives before it.
struct Hook {
    url: String,
    arrived: Arc<AtomicU64>,
    /// By id.
    handled: Handled,
    refused: Arc<AtomicU64>,
}

async fn hook() -> Hook {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = Hook {
        url: format!("http://{}/hook", listener.local_addr().unwrap()),
        arrived: Arc::default(),
        handled: Handled::default(),
        refused: Arc::default(),
    };
    let (arrived, handled) = (Arc::clone(&hook.arrived), hook.handled.clone());
    let refused = Arc::clone(&hook.refused);
    let handler = service_fn(move |request: Request<Full<Bytes>>| {
        let (handled, refused) = (handled.clone(), Arc::clone(&refused));
        async move {
            let delivery: &Delivery = request.extensions().get().expect("a delivery");
            let (id, attempt) = (delivery.id.clone(), delivery.attempt);
            tokio::time::sleep(TAKES).await;
            let mut answer = Response::new(Full::<Bytes>::default());
            // A delivery that fails is none that was handled.
            if attempt == 1 && id.ends_with('7') {
                refused.fetch_add(1, Ordering::SeqCst);
                *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            } else {
                handled.add(&id);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let layer = DeliveryLayer::new().verified(Verifier::new([SECRET]).unwrap());
    let service = ServiceBuilder::new()
        .map_request(move |request: Request<Full<Bytes>>| {
            arrived.fetch_add(1, Ordering::SeqCst);
            request
        })
        .layer(layer)
        .service(handler);
    let whole = service_fn(move |request: Request<Incoming>| {
        let service = service.clone();
        async move {
            let (parts, body) = request.into_parts();
            // A body that a kill has cut off is no delivery.
            let body = body.collect().await?.to_bytes();
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
    hook
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

#[test]
#[ignore = "some seconds long: cargo xtask check clients"]
fn a_worker_and_a_receiver_handle_each_timer_while_the_server_is_killed() {
    let _turn = turn();
    let seconds = setting("COUNTWHEEL_CLIENTS_SECONDS", || 5);
    let seed = seed();
    let directory = Directory::new("work");
    let mut server = Server::start(&directory.join("data"));
    let runtime = Runtime::new().unwrap();
    let hook = runtime.block_on(hook());
    let mut caller = server.caller();
    let endpoint = json!({"url": hook.url, "secrets": [SECRET]});
    let pulled = json!({"mode": "pull", "retention": {"done": "1h"}});
    for (path, body) in [
        ("/v1/endpoints/hook", &endpoint),
        ("/v1/queues/pulled", &pulled),
    ] {
        let put = caller.ask("PUT", path, Some(body)).unwrap();
        assert!(matches!(put.status, 200 | 201), "{}", put.body);
    }
    let url = format!("http://{}", server.address);
    let client = Client::new(&url, None)
        .unwrap()
        .with_retry(Client::usual_retry());
    let worked = Handled::default();
    let works = worked.clone();
    let handler = move |job: Job| {
        let works = works.clone();
        async move {
            tokio::time::sleep(TAKES).await;
            // Some fail the first time.
            if works.add(&job.key) == 1 && job.key.ends_with('3') {
                return Err(Failure::new("as told").after(Duration::from_millis(10)));
            }
            Ok(())
        }
    };
    let worker = Worker::new(client.clone(), ["pulled"])
        .concurrency(50)
        .lease(Duration::from_secs(1))
        .wait(Duration::from_secs(1));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let working = runtime.spawn(async move {
        let stop = async { stopped.await.unwrap_or_default() };
        worker.run(handler, stop).await
    });
    let (kills, stops, sets_end) = (
        Kills::default(),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let address = server.address;
    let keys = std::thread::scope(|scope| {
        let killing = scope.spawn(|| kills.go_on(&mut server, &stops, &mut Random::new(seed)));
        let setting = scope.spawn(|| runtime.block_on(set_timers(&client, &sets_end)));
        let _ends = (Ends(&stops), Ends(&sets_end));
        crate::harness::wait(Duration::from_secs(seconds));
        sets_end.store(true, Ordering::SeqCst);
        let keys = setting.join().unwrap();
        stops.store(true, Ordering::SeqCst);
        killing.join().unwrap();
        keys
    });
    let end = now_us() + micros(PATIENCE);
    for queue in ["pushed", "pulled"] {
        loop {
            let caller = crate::harness::caller::Caller::connect(address);
            let counts =
                caller.and_then(|mut it| it.ask("GET", &format!("/v1/queues/{queue}"), None));
            let counts = counts.expect("the server answers").body;
            let of = |state: &str| counts[state].as_u64().unwrap();
            assert_eq!(of("dead"), 0, "{counts}");
            if of("pending") + of("delivering") == 0 {
                break;
            }
            assert!(now_us() < end, "it does not come to its end: {counts}");
            pause();
        }
    }
    stop.send(()).unwrap();
    let told = runtime.block_on(working).unwrap().unwrap();
    let (worked, delivered) = (worked.all(), hook.handled.all());
    let arrived = hook.arrived.load(Ordering::SeqCst);
    let handled: u64 = delivered.values().map(|count| u64::from(*count)).sum();
    let refused = hook.refused.load(Ordering::SeqCst);
    let repeats = arrived.saturating_sub(handled + refused);
    figures::print(
        "a worker and a receiver under kills",
        &[
            ("timers of each", keys.len().to_string()),
            ("kills", kills.count().to_string()),
            (
                "jobs done, failed, lost",
                format!("{}, {}, {}", told.done, told.failed, told.lost),
            ),
            ("deliveries arrived", arrived.to_string()),
            ("deliveries handled", handled.to_string()),
            ("deliveries dropped or turned away", repeats.to_string()),
        ],
    );
    for key in &keys {
        let times = worked.get(key).copied().unwrap_or_default();
        let least = if key.ends_with('3') { 2 } else { 1 };
        assert!(times >= least, "{key} was worked on {times} times");
    }
    // The ids of the last sets: a set that was repeated has another id, whose first may have been delivered as well.
    assert!(
        delivered.len() >= keys.len(),
        "{} of {}",
        delivered.len(),
        keys.len()
    );
    let twice: Vec<_> = delivered.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "handled more than once: {twice:?}");
    assert!(
        kills.count() >= 3 && repeats > 0,
        "{} kills, {repeats} repeats",
        kills.count()
    );
}
