//! All queues at a glance.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::{DrainMode, StateKind};
use serde::Serialize;

use super::drain::DrainBody;
use super::problem::Problem;
use super::request::Query;
use super::{App, answer};

pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        queues: Vec<QueueBody>,
        /// Said only where it is not so.
        #[serde(skip_serializing_if = "Option::is_none")]
        exact: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        drain: Option<DrainBody>,
    }
    #[derive(Serialize)]
    struct QueueBody {
        queue: String,
        pending: u64,
        delivering: u64,
        done: u64,
        dead: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        drain: Option<DrainBody>,
    }
    Query::of(&uri, &[])?;
    let now = app.clock.timestamp();
    app.read(move |timers| {
        let counted = timers.counted().map_err(|error| Problem::from(&error))?;
        let drains = timers.drains();
        let goes_on = |mode: &DrainMode| !mode.is_over(now);
        let queues = counted.queues.into_iter().map(|counts| QueueBody {
            queue: counts.queue.to_string(),
            pending: counts.of(StateKind::Pending),
            delivering: counts.of(StateKind::Delivering),
            done: counts.of(StateKind::Done),
            dead: counts.of(StateKind::Dead),
            drain: drains
                .own(&counts.queue)
                .filter(goes_on)
                .map(DrainBody::from),
        });
        let mut queues: Vec<QueueBody> = queues.collect();
        // A drained queue may have no timers, and refuses sets all the same.
        for (queue, mode) in drains.iter().filter(|(_, mode)| goes_on(mode)) {
            let queue = queue.to_string();
            if let Err(at) = queues.binary_search_by(|known| known.queue.cmp(&queue)) {
                let drained = QueueBody {
                    queue,
                    pending: 0,
                    delivering: 0,
                    done: 0,
                    dead: 0,
                    drain: Some(mode.into()),
                };
                queues.insert(at, drained);
            }
        }
        let body = Answer {
            queues,
            exact: (!counted.exact).then_some(false),
            drain: drains.all().filter(goes_on).map(DrainBody::from),
        };
        Ok(answer(StatusCode::OK, &body))
    })
    .await
}
