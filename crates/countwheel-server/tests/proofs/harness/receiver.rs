//! Where deliveries arrive: outlives the server's kills, answers 200 and forgets nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use super::checker::Arrival;
use super::{caller, now_us};

/// An HTTP server in this process.
pub(crate) struct Receiver {
    pub(crate) url: String,
    seen: Arc<Seen>,
    _runtime: Runtime,
}

/// What has arrived.
struct Seen {
    arrivals: Mutex<Vec<Arrival>>,
    count: AtomicU64,
    /// Whether it remembers more than how many there were.
    keeps: bool,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        Self::with(true)
    }

    /// One that counts and forgets.
    pub(crate) fn counting() -> Self {
        Self::with(false)
    }

    fn with(keeps: bool) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let seen = Arc::new(Seen {
            arrivals: Mutex::default(),
            count: AtomicU64::new(0),
            keeps,
        });
        runtime.spawn(listen(listener, Arc::clone(&seen)));
        Self {
            url,
            seen,
            _runtime: runtime,
        }
    }

    /// What has arrived, in that order.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.seen.arrivals.lock().clone()
    }

    /// How many deliveries have arrived.
    pub(crate) fn count(&self) -> u64 {
        self.seen.count.load(Ordering::Relaxed)
    }
}

async fn listen(listener: TcpListener, seen: Arc<Seen>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(converse(stream, Arc::clone(&seen)))),
            // Of one that is gone already, or of too many at once: the next may be taken.
            Err(error) => {
                eprintln!("the receiver: {error}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, seen: Arc<Seen>) {
    let receive = service_fn(|request| receive(request, &seen));
    let conversation =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), receive);
    // It ends with the server's process, in the middle if need be.
    drop(conversation.await);
}

/// Records the arrival as its head is read; one whose body is cut off counts as well.
async fn receive(
    request: Request<Incoming>,
    seen: &Seen,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let at_us = now_us();
    seen.count.fetch_add(1, Ordering::Relaxed);
    if !seen.keeps {
        drop(request.into_body().collect().await);
        return Ok(Response::new(Empty::new()));
    }
    let headers = request.headers();
    let arrival = Arrival {
        at_us,
        key: text(headers, "timer-key"),
        id: text(headers, "webhook-id"),
        attempt: number(headers, "timer-attempt"),
        due_us: caller::time_us(&text(headers, "timer-due")).expect("a time"),
        late_us: number(headers, "timer-late-us"),
        held_us: number(headers, "timer-held-us"),
        body_bytes: None,
    };
    let place = {
        let mut arrivals = seen.arrivals.lock();
        arrivals.push(arrival);
        arrivals.len() - 1
    };
    if let Ok(body) = request.into_body().collect().await {
        let bytes = u64::try_from(body.to_bytes().len()).unwrap_or(u64::MAX);
        seen.arrivals.lock()[place].body_bytes = Some(bytes);
    }
    Ok(Response::new(Empty::new()))
}

fn text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    text(headers, name).parse().expect("a number")
}
