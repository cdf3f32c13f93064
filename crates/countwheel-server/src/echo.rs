//! A receiver for trying out timers, in `dev` only: it answers as its query asks and shows the
//! requests it got.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::sleep;

use crate::api::problem::Problem;
use crate::api::request::{Query, body};
use crate::api::{App, answer};
use crate::time::format_time;

/// How many deliveries are shown.
const KEPT: usize = 100;
/// Of how many timers the failures are counted before counting begins anew.
const COUNTED_MAX: usize = 10_000;
/// How much of a body is shown.
const BODY_SHOWN_BYTES: usize = 1_024;
const DELAY_MAX_MILLIS: u64 = 60_000;

/// What came in so far.
#[derive(Debug, Default)]
pub(crate) struct Echo(Mutex<Received>);

#[derive(Debug, Default)]
struct Received {
    last: VecDeque<Delivery>,
    /// How often each timer was delivered, by its `webhook-id`.
    deliveries: HashMap<String, u32>,
}

#[derive(Clone, Serialize, Debug)]
struct Delivery {
    at: String,
    id: String,
    queue: String,
    key: String,
    attempt: String,
    late_us: String,
    answered: u16,
    body: String,
}

fn text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).map(HeaderValue::as_bytes);
    String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
}

/// `?fail=N` answers 503 the first N times, `?status=` with that status, `?delay=` so many
/// milliseconds later, `?retry_after=` with that header.
pub(crate) async fn receive(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let query = Query::of(&uri, &["fail", "status", "delay", "retry_after"])?;
    let fail = query.read("fail", "a whole number", |text| text.parse::<u32>().ok())?;
    let status = query.read("status", "a status from 200 to 599", |text| {
        let status = text
            .parse()
            .ok()
            .filter(|status| (200..600).contains(status))?;
        StatusCode::from_u16(status).ok()
    })?;
    let delay = query.read("delay", "a number of milliseconds up to 60000", |text| {
        text.parse::<u64>()
            .ok()
            .filter(|&millis| millis <= DELAY_MAX_MILLIS)
    })?;
    let retry_after = query.read("retry_after", "a header value", |text| {
        HeaderValue::from_str(text).ok()
    })?;

    let headers = request.headers().clone();
    let body = body(&app, request).await?;
    let id = text(&headers, "webhook-id");
    let count = app.echo.count(&id);
    let status = match (fail, status) {
        (Some(fail), _) if count <= fail => StatusCode::SERVICE_UNAVAILABLE,
        (_, Some(status)) => status,
        _ => StatusCode::OK,
    };
    if let Some(millis) = delay {
        sleep(Duration::from_millis(millis)).await;
    }
    let delivery = Delivery {
        at: format_time(app.clock.timestamp()),
        id,
        queue: text(&headers, "timer-queue"),
        key: text(&headers, "timer-key"),
        attempt: text(&headers, "timer-attempt"),
        late_us: text(&headers, "timer-late-us"),
        answered: status.as_u16(),
        body: String::from_utf8_lossy(&body[..body.len().min(BODY_SHOWN_BYTES)]).into_owned(),
    };
    tracing::info!(
        queue = delivery.queue,
        key = delivery.key,
        attempt = delivery.attempt,
        late_us = delivery.late_us,
        answered = delivery.answered,
        "echo"
    );
    app.echo.keep(delivery);
    let mut response = status.into_response();
    if let Some(value) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    Ok(response)
}

/// The last deliveries, the latest first.
pub(crate) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        deliveries: Vec<Delivery>,
    }
    Query::of(&uri, &[])?;
    let deliveries = app.echo.last();
    Ok(answer(StatusCode::OK, &Answer { deliveries }))
}

impl Echo {
    /// Counts a delivery of `id`: 1 for the first.
    fn count(&self, id: &str) -> u32 {
        let mut received = self.0.lock();
        if received.deliveries.len() >= COUNTED_MAX {
            received.deliveries.clear();
        }
        let count = received.deliveries.entry(id.to_owned()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    fn keep(&self, delivery: Delivery) {
        let mut received = self.0.lock();
        received.last.truncate(KEPT - 1);
        received.last.push_front(delivery);
    }

    fn last(&self) -> Vec<Delivery> {
        self.0.lock().last.iter().cloned().collect()
    }
}
