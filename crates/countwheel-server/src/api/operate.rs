//! Health, readiness and metrics, for those who run the service.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::Health;
use serde::Serialize;

use super::problem::{Code, Problem};
use super::{App, answer};
use crate::metrics;

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

/// Red only when the process should be replaced.
pub(super) async fn healthz(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    match app.timers.health() {
        Health::Failed(reason) => Err(Problem::new(Code::Unavailable, reason)),
        Health::Running | Health::Stopping | Health::Stopped => {
            Ok(answer(StatusCode::OK, &Status { status: "ok" }))
        }
    }
}

/// Red when no traffic should come here.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    match app.timers.health() {
        Health::Failed(reason) => Err(Problem::new(Code::Unavailable, reason)),
        Health::Running => Ok(answer(StatusCode::OK, &Status { status: "ready" })),
        _ => Err(Problem::new(Code::Unavailable, "shutting down")),
    }
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let http = app.requests.clone();
    app.read(move |timers| {
        // Without the store there are still the numbers of the process.
        let counts = timers.counts().ok();
        let text = metrics::text(timers.stats(), &timers.health(), counts, &http)
            .map_err(|_| Problem::new(Code::Internal, "the metrics could not be written"))?;
        let content_type = HeaderValue::from_static(metrics::CONTENT_TYPE);
        Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
    })
    .await
}
