//! Where deliveries arrive: outlives the server's kills, answers 200 and forgets nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use super::checker::Arrival;
use super::{caller, lock, now_us};

/// An HTTP server in this process.
pub(crate) struct Receiver {
    pub(crate) url: String,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    _runtime: Runtime,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let arrivals = Arc::default();
        runtime.spawn(listen(listener, Arc::clone(&arrivals)));
        Self {
            url,
            arrivals,
            _runtime: runtime,
        }
    }

    /// What has arrived, in that order.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        lock(&self.arrivals).clone()
    }
}

async fn listen(listener: TcpListener, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(converse(stream, Arc::clone(&arrivals)));
    }
}

async fn converse(stream: TcpStream, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    let receive = service_fn(|request| receive(request, &arrivals));
    let conversation =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), receive);
    // It ends with the server's process, in the middle if need be.
    drop(conversation.await);
}

/// Records the arrival as its head is read; one whose body is cut off counts as well.
async fn receive(
    request: Request<Incoming>,
    arrivals: &Mutex<Vec<Arrival>>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let at_us = now_us();
    let headers = request.headers();
    let arrival = Arrival {
        at_us,
        key: text(headers, "timer-key"),
        id: text(headers, "webhook-id"),
        attempt: number(headers, "timer-attempt"),
        due_us: caller::time_us(&text(headers, "timer-due")).expect("a time"),
        late_us: number(headers, "timer-late-us"),
        body_bytes: None,
    };
    let place = {
        let mut arrivals = lock(arrivals);
        arrivals.push(arrival);
        arrivals.len() - 1
    };
    if let Ok(body) = request.into_body().collect().await {
        let bytes = u64::try_from(body.to_bytes().len()).unwrap_or(u64::MAX);
        lock(arrivals)[place].body_bytes = Some(bytes);
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
