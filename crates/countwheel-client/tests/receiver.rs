//! The receiver of deliveries before a handler of axum.
#![cfg(feature = "receiver")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::handler::Handler as _;
use axum::http::{HeaderMap, Request, StatusCode};
use countwheel_client::receiver::{
    Delivery, DeliveryLayer, IdStore, MemoryStore, Seen, StoreError,
};
use countwheel_client::signature::Verifier;
use countwheel_client::time::parse_time;
use countwheel_time::{ManualClock, Timestamp};
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tower::ServiceExt as _;

fn delivery(id: &str, body: &str) -> Request<Body> {
    let mut request = Request::post("/hook");
    for (name, value) in [
        ("webhook-id", id),
        ("webhook-timestamp", "1614265330"),
        ("timer-queue", "orders"),
        ("timer-key", "a%20b%2F%C3%BC"),
        ("timer-attempt", "3"),
        ("timer-due", "2026-03-01T12:00:05.000000Z"),
        ("timer-late-us", "1500"),
        ("timer-held-us", "0"),
        ("timer-fence", "7"),
    ] {
        request = request.header(name, value);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

async fn answer(app: &Router, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
    let answer = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (parts.status, parts.headers, body)
}

async fn status(app: &Router, request: Request<Body>) -> u16 {
    answer(app, request).await.0.as_u16()
}

/// A handler that answers its calls with these statuses, one after the other, and then with 200.
fn app<S: IdStore>(layer: &DeliveryLayer<S>, statuses: &'static [u16]) -> (Router, Arc<AtomicU32>) {
    let calls = Arc::<AtomicU32>::default();
    let count = Arc::clone(&calls);
    let handler = move |Extension(delivery): Extension<Delivery>, body: String| {
        let call = count.fetch_add(1, Ordering::SeqCst) as usize;
        let status = statuses.get(call).copied().unwrap_or(200);
        async move {
            (
                StatusCode::from_u16(status).unwrap(),
                format!("{} {body}", delivery.key),
            )
        }
    };
    let app = Router::new().fallback_service(handler.layer(layer.clone()).with_state(()));
    (app, calls)
}

#[test]
fn headers_are_read_and_one_that_cannot_be_is_named() {
    let request = delivery("tmr-1-r2", "");
    let mut headers = request.headers().clone();
    headers.insert("timer-run", "2".parse().unwrap());
    headers.insert("timer-nominal", "2026-03-01T12:00:00Z".parse().unwrap());
    let read = Delivery::from_headers(&headers).unwrap();
    assert_eq!(
        (read.id.as_str(), read.queue.as_str()),
        ("tmr-1-r2", "orders")
    );
    assert_eq!(
        (read.key.as_str(), read.attempt, read.run),
        ("a b/ü", 3, Some(2))
    );
    assert_eq!(read.late.as_micros(), 1_500);
    assert_eq!(read.sent, Timestamp::from_micros(1_614_265_330_000_000));
    assert_eq!(read.nominal, parse_time("2026-03-01T12:00:00Z"));
    for (header, bad) in [
        ("webhook-id", ""),
        ("timer-key", "%FF"),
        ("timer-attempt", "-1"),
        ("timer-due", "soon"),
        ("timer-late-us", "x"),
        ("timer-run", "99999999999"),
        ("timer-fence", ""),
    ] {
        let mut changed = headers.clone();
        changed.insert(header, bad.parse().unwrap());
        let told = Delivery::from_headers(&changed).unwrap_err().to_string();
        assert!(told.contains(header), "{told}");
    }
    headers.remove("timer-queue");
    let told = Delivery::from_headers(&headers).unwrap_err().to_string();
    assert!(told.contains("timer-queue"), "{told}");
}

#[tokio::test]
async fn a_repeat_is_answered_without_the_handler() {
    let (app, calls) = app(&DeliveryLayer::new(), &[]);
    let (first, _, said) = answer(&app, delivery("tmr-1", "x")).await;
    assert_eq!((first.as_u16(), said.as_str()), (200, "a b/ü x"));
    let (again, _, said) = answer(&app, delivery("tmr-1", "x")).await;
    assert_eq!((again.as_u16(), said.as_str()), (200, ""));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(status(&app, delivery("tmr-2", "x")).await, 200);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_was_not_handled_is_handled_again() {
    let (app, calls) = app(&DeliveryLayer::new(), &[500, 302, 201]);
    for expected in [500, 302, 201, 200] {
        assert_eq!(status(&app, delivery("tmr-1", "")).await, expected);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_is_no_delivery_does_not_come_to_the_handler() {
    let (app, calls) = app(&DeliveryLayer::new(), &[]);
    let request = Request::post("/hook").body(Body::empty()).unwrap();
    let (refused, _, said) = answer(&app, request).await;
    assert_eq!(refused.as_u16(), 400);
    assert!(said.contains("webhook-id"), "{said}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_delivery_that_is_being_handled_comes_again_later() {
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (starts, released) = (Arc::clone(&started), Arc::clone(&release));
    let handler = move || {
        let (starts, released) = (Arc::clone(&starts), Arc::clone(&released));
        async move {
            starts.notify_one();
            released.notified().await;
        }
    };
    let layer = DeliveryLayer::new();
    let app = Router::new().fallback_service(handler.layer(layer).with_state(()));
    let first = tokio::spawn(app.clone().oneshot(delivery("tmr-1", "")));
    started.notified().await;
    let (busy, headers, _) = answer(&app, delivery("tmr-1", "")).await;
    assert_eq!(
        (busy.as_u16(), &headers["retry-after"]),
        (503, &"1".parse().unwrap())
    );
    release.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(status(&app, delivery("tmr-1", "")).await, 200);
    // A call that is given up was not handled.
    let second = tokio::spawn(app.clone().oneshot(delivery("tmr-2", "")));
    started.notified().await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    release.notify_one();
    assert_eq!(status(&app, delivery("tmr-2", "")).await, 200);
    started.notified().await;
}

#[tokio::test]
async fn a_handler_that_panics_has_not_handled() {
    let calls = Arc::<AtomicU32>::default();
    let count = Arc::clone(&calls);
    let handler = move || {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move { assert!(!first, "the first call fails") }
    };
    let layer = DeliveryLayer::new();
    let app = Router::new().fallback_service(handler.layer(layer).with_state(()));
    let first = tokio::spawn(app.clone().oneshot(delivery("tmr-1", "")));
    assert!(first.await.unwrap_err().is_panic());
    assert_eq!(status(&app, delivery("tmr-1", "")).await, 200);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// The example of the specification.
fn signed() -> Request<Body> {
    let mut request = delivery("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#);
    let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let headers = request.headers_mut();
    headers.insert("webhook-signature", signature.parse().unwrap());
    request
}

#[tokio::test]
async fn a_delivery_without_a_right_signature_does_not_come_to_the_handler() {
    let verifier = Verifier::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
    let clock = ManualClock::at(Timestamp::from_micros(1_614_265_335_000_000));
    let layer = DeliveryLayer::new().verified(verifier).with_clock(clock);
    let (app, calls) = app(&layer, &[]);
    assert_eq!(status(&app, delivery("tmr-1", "x")).await, 401);
    let mut changed = signed();
    *changed.body_mut() = Body::from(r#"{"test": 2432232315}"#);
    assert_eq!(status(&app, changed).await, 401);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let (taken, _, said) = answer(&app, signed()).await;
    assert_eq!(taken.as_u16(), 200);
    assert!(said.ends_with(r#"{"test": 2432232314}"#), "{said}");
    // A wrong repeat is no way to learn what was handled.
    let mut repeat = signed();
    repeat.headers_mut().remove("webhook-signature");
    assert_eq!(status(&app, repeat).await, 401);
    let (short, calls) = self::app(&layer.body_limit(19), &[]);
    assert_eq!(status(&short, signed()).await, 413);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_store_in_memory_forgets_the_oldest() {
    let store = MemoryStore::of(2);
    for id in ["a", "b", "c"] {
        assert_eq!(store.begin(id).await.unwrap(), Seen::New);
        store.done(id).await.unwrap();
    }
    assert_eq!(store.begin("c").await.unwrap(), Seen::Done);
    assert_eq!(store.begin("b").await.unwrap(), Seen::Done);
    assert_eq!(store.begin("a").await.unwrap(), Seen::New);
    store.forget("a").await;
    assert_eq!(store.begin("a").await.unwrap(), Seen::New);
}

/// A store that is away.
struct Away;

impl IdStore for Away {
    async fn begin(&self, id: &str) -> Result<Seen, StoreError> {
        match id {
            "begins" => Ok(Seen::New),
            _ => Err("the database is away".into()),
        }
    }

    async fn done(&self, _: &str) -> Result<(), StoreError> {
        Err("the database is away".into())
    }

    async fn forget(&self, _: &str) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_store_that_fails_has_the_delivery_come_again() {
    let (app, calls) = app(&DeliveryLayer::with_store(Away), &[]);
    let (away, headers, said) = answer(&app, delivery("tmr-1", "")).await;
    assert_eq!(
        (away.as_u16(), said.as_str()),
        (503, "the database is away")
    );
    assert!(headers.contains_key("retry-after"));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(status(&app, delivery("begins", "")).await, 503);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}
