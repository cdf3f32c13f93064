//! All queues at a glance.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::StateKind;
use serde::Serialize;

use super::problem::Problem;
use super::request::Query;
use super::{App, answer};

pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        queues: Vec<QueueBody>,
    }
    #[derive(Serialize)]
    struct QueueBody {
        queue: String,
        pending: u64,
        delivering: u64,
        done: u64,
        dead: u64,
    }
    Query::of(&uri, &[])?;
    app.read(|timers| {
        let counts = timers.counts().map_err(|error| Problem::from(&error))?;
        let queues = counts.into_iter().map(|counts| QueueBody {
            queue: counts.queue.to_string(),
            pending: counts.of(StateKind::Pending),
            delivering: counts.of(StateKind::Delivering),
            done: counts.of(StateKind::Done),
            dead: counts.of(StateKind::Dead),
        });
        let body = Answer {
            queues: queues.collect(),
        };
        Ok(answer(StatusCode::OK, &body))
    })
    .await
}
