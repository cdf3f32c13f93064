//! The handler of `webhook` with moka, and in place of the service a task that sleeps and then sends with backon's
//! retries: `cargo run -p countwheel-programs --example webhook_usual`.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::{Router, routing::post};
use backon::{ConstantBuilder, Retryable};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use moka::sync::Cache;
use tokio::{net::TcpListener, sync::mpsc};

type Failure = Box<dyn Error + Send + Sync>;

struct Shop {
    /// The deliveries of the last day, by their `webhook-id`.
    seen: Cache<HeaderValue, ()>,
    /// For each call, whether it closed the order.
    calls: mpsc::UnboundedSender<bool>,
}

/// Closes an order, once.
async fn hook(State(shop): State<Arc<Shop>>, headers: HeaderMap) -> StatusCode {
    let Some(id) = headers.get("webhook-id").cloned() else {
        return StatusCode::BAD_REQUEST;
    };
    let is_new = shop.seen.entry(id).or_insert(()).is_fresh();
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

/// Sends a webhook later, until the receiver takes it.
async fn deliver(
    delay: Duration,
    url: String,
    id: &str,
    body: &'static str,
) -> Result<(), Failure> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    tokio::time::sleep(delay).await;
    let send = || {
        let request = Request::post(&url).header("webhook-id", id);
        let request = request.body(Body::from(body));
        let client = &client;
        async move {
            let answer = client.request(request?);
            let answer = tokio::time::timeout(Duration::from_secs(15), answer).await??;
            answer
                .status()
                .is_success()
                .then_some(())
                .ok_or(Failure::from("refused"))
        }
    };
    let policy = ConstantBuilder::default().with_delay(Duration::from_millis(50));
    send.retry(policy.with_max_times(19)).await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (calls, mut called) = mpsc::unbounded_channel();
    let day = Duration::from_secs(24 * 3600);
    let seen = Cache::builder().time_to_live(day).build();
    let shop = Arc::new(Shop { seen, calls });
    let hooks = Router::new().route("/close", post(hook));
    let here = listen(hooks.with_state(shop)).await?;

    let url = format!("http://{here}/close");
    tokio::spawn(deliver(
        Duration::from_millis(50),
        url,
        "o-42",
        r#"{"order": 42}"#,
    ));
    let closed = [called.recv().await, called.recv().await];
    println!("the first webhook closed the order, and the second did not: {closed:?}");
    assert_eq!(closed, [Some(true), Some(false)]);
    Ok(())
}
