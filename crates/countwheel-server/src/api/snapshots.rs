//! Snapshots of the store, made while it goes on.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use countwheel_durable::Timers;
use countwheel_durable::store::{DiskError, Snapshot, StoreError};
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::described::requests;
use super::json::Field;
use super::problem::{Code, Problem};
use super::request::{Honoured, Query, json_body, precondition};
use super::{App, answer};

const NAME_MAX_BYTES: usize = 64;

/// Where snapshots go.
#[derive(Debug)]
pub(super) struct Snapshots {
    directory: PathBuf,
    /// One is made at a time, also if nobody waits for it any more.
    turn: Arc<Semaphore>,
}

impl Snapshots {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

#[derive(Serialize)]
struct Answer {
    name: String,
    commit: u64,
    files: u64,
    bytes: u64,
    copied_bytes: u64,
}

pub(super) async fn make(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let body = json_body(&app, request).await?;
    let name = name(&body)?;
    let Some(snapshots) = &app.snapshots else {
        let detail = "the service was started without --snapshot-dir";
        return Err(Problem::new(Code::NotFound, detail));
    };
    let Ok(turn) = Arc::clone(&snapshots.turn).try_acquire_owned() else {
        return Err(Problem::new(Code::Conflict, "a snapshot is being made"));
    };
    let into = snapshots.directory.join(&name);
    let timers: Timers = app.timers.clone();
    let entry = app.operation(json!({ "snapshot": name }));
    let made = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        entry.begins(&timers)?;
        Ok::<_, Problem>(timers.snapshot(&into))
    });
    let made = made.await;
    let made =
        made.map_err(|_| Problem::new(Code::Internal, "the snapshot was not finished"))??;
    let Snapshot {
        commit,
        files,
        bytes,
        copied,
        ..
    } = made.map_err(|error| refusal(&error))?;
    let body = Answer {
        name,
        commit,
        files,
        bytes,
        copied_bytes: copied,
    };
    Ok(answer(StatusCode::CREATED, &body))
}

/// The name: one component of a path, and no hidden one.
fn name(body: &[u8]) -> Result<String, Problem> {
    let value = super::json::parse(body)?;
    let mut object = Field::root(value).object_of(&requests::SNAPSHOT)?;
    let field = object.require("name")?;
    let name = field.text()?.into_owned();
    object.finish()?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=NAME_MAX_BYTES).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('.');
    if !is_name {
        let detail = format!(
            "a name has 1 to {NAME_MAX_BYTES} ASCII letters, digits and . _ -, and does not begin \
             with a dot"
        );
        return Err(field.malformed(detail));
    }
    Ok(name)
}

fn refusal(error: &StoreError) -> Problem {
    match error {
        StoreError::Disk(DiskError::NotAStore { .. } | DiskError::Locked { .. }) => Problem::new(
            Code::Conflict,
            "a snapshot, or something else, has that name already",
        ),
        error if error.is_full() => {
            Problem::new(Code::StorageFull, "there is no room for the snapshot")
        }
        error => {
            tracing::error!(%error, "a snapshot failed");
            Problem::new(Code::Unavailable, "the snapshot could not be made")
        }
    }
}
