//! A shop sets a timer over HTTP, and its web handler gets the webhook twice, since the answer to the first goes wrong
//! after the work: it recognises the repeat: `cargo run -p countwheel-programs --example webhook`.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::{Router, routing::post};
use countwheel::Timer;
use countwheel_disk::Opening;
use countwheel_patterns::{ExpiringMap, Ttl};
use countwheel_server::api::{App, router};
use countwheel_server::{deliver::HttpHandler, guard::Targets};
use countwheel_time::SystemClock;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, runtime::Handle, sync::mpsc};

type Failure = Box<dyn Error + Send + Sync>;

struct Shop {
    /// The deliveries of the last day, by their `webhook-id`.
    seen: ExpiringMap<HeaderValue, ()>,
    /// For each call, whether it closed the order.
    calls: mpsc::UnboundedSender<bool>,
}

/// Closes an order, once.
async fn hook(State(shop): State<Arc<Shop>>, headers: HeaderMap) -> StatusCode {
    let Some(id) = headers.get("webhook-id").cloned() else {
        return StatusCode::BAD_REQUEST;
    };
    let is_new = shop.seen.insert_if_absent(id, ()).is_ok();
    shop.calls.send(is_new).unwrap_or_default();
    if !is_new {
        return StatusCode::OK; // a repeat
    }
    StatusCode::INTERNAL_SERVER_ERROR // the work is done, and the sender does not learn it
}

async fn listen(routes: Router) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, routes).await });
    Ok(address)
}

/// The service that `countwheel serve` runs, in this process.
async fn service(directory: &Path) -> Result<SocketAddr, Failure> {
    let clock = Arc::new(SystemClock::new());
    let handler = HttpHandler::new(Handle::current(), Targets::any(), clock.clone());
    let timers = Opening::new(directory).start(handler)?;
    let app = App::new(timers, clock, None, false).with_targets(Targets::any());
    listen(router(Arc::new(app))).await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (calls, mut called) = mpsc::unbounded_channel();
    let day = Ttl::after(Duration::from_secs(24 * 3600));
    let seen = ExpiringMap::new(Timer::new(), day);
    let shop = Arc::new(Shop { seen, calls });
    let hooks = Router::new().route("/close", post(hook));
    let here = listen(hooks.with_state(shop)).await?;
    let directory = tempfile::tempdir()?;
    let service = service(directory.path()).await?;

    let timer = format!(
        r#"{{"in": "50ms", "target": {{"url": "http://{here}/close"}}, "body": {{"order": 42}}, "retry": {{"fixed": "50ms"}}}}"#
    );
    let request = Request::put(format!("http://{service}/v1/queues/unpaid/timers/o-42"))
        .header("content-type", "application/json")
        .body(Body::from(timer))?;
    let set = Client::builder(TokioExecutor::new())
        .build_http()
        .request(request)
        .await?;
    assert_eq!(set.status(), StatusCode::CREATED);
    let closed = [called.recv().await, called.recv().await];
    println!("the first webhook closed the order, and the second did not: {closed:?}");
    assert_eq!(closed, [Some(true), Some(false)]);
    Ok(())
}
