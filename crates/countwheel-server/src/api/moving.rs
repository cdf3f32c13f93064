//! All timers move to a cluster: `/v1/cluster/move-to`.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, Uri};
use axum::response::Response;
use countwheel_postgres::{PostgresError, PostgresOptions};
use serde::Serialize;
use serde_json::json;

use super::described::requests;
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::request::{Honoured, Query, json_body, precondition};
use super::{App, answer};
use crate::moving::{MoveError, Moves, Progress};

pub(super) const PATH: &str = "/v1/cluster/move-to";

/// How far the last move has come.
#[derive(Serialize)]
struct ProgressBody {
    state: &'static str,
    target: Option<String>,
    copied: u64,
    left: u64,
    took_ms: u64,
    held_ms: Option<u64>,
    interrupted: usize,
    reason: Option<String>,
}

impl From<Progress> for ProgressBody {
    fn from(progress: Progress) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis());
        Self {
            state: progress.phase.as_str(),
            target: progress.target,
            copied: progress.copied,
            left: progress.left,
            took_ms: millis(progress.took).unwrap_or(u64::MAX),
            held_ms: progress.held.and_then(|held| millis(held).ok()),
            interrupted: progress.interrupted,
            reason: progress.reason,
        }
    }
}

pub(super) async fn progress(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri, &[])?;
    let body = ProgressBody::from(moves(&app)?.progress());
    Ok(answer(StatusCode::OK, &body))
}

pub(super) async fn begin(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let body = json_body(&app, request).await?;
    let options = options(&body)?;
    let moves = moves(&app)?;
    let beginning = Arc::clone(&moves);
    let entry = app.operation(json!({ "schema": options.schema }));
    let begun = tokio::task::spawn_blocking(move || beginning.begin(options, entry)).await;
    begun
        .map_err(|_| Problem::new(Code::Internal, "the move was not begun"))?
        .map_err(|error| refusal(&error))?;
    let body = ProgressBody::from(moves.progress());
    Ok(answer(StatusCode::ACCEPTED, &body))
}

/// The database, as the command line names it.
fn options(body: &[u8]) -> Result<PostgresOptions, Problem> {
    let mut object = Field::root(json::parse(body)?).object_of(&requests::MOVE_TO)?;
    let field = object.require("store")?;
    let store = field.text()?.into_owned();
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| store.starts_with(scheme))
    {
        return Err(
            field.malformed("must be the URL of a PostgreSQL: postgres://user@host:5432/database")
        );
    }
    let mut options = PostgresOptions::new(store);
    if let Some(field) = object.take("schema") {
        options.schema = field.text()?.into_owned();
    }
    if let Some(field) = object.take("store_ca") {
        options.ca = Some(PathBuf::from(field.text()?.into_owned()));
    }
    if let Some(field) = object.take("accept_loss") {
        options.accept_loss = field.truth()?;
    }
    object.finish()?;
    Ok(options)
}

fn moves(app: &App) -> Result<Arc<Moves>, Problem> {
    app.moves.clone().ok_or_else(|| {
        let detail =
            "only a service with a data directory (serve --data) has timers to move to a cluster";
        Problem::new(Code::NotFound, detail)
    })
}

fn refusal(error: &MoveError) -> Problem {
    let code = match error {
        MoveError::Database(PostgresError::Url { .. } | PostgresError::Schema { .. }) => {
            Code::Malformed
        }
        MoveError::Database(PostgresError::Unreachable { .. }) | MoveError::System(_) => {
            Code::StoreUnavailable
        }
        _ => Code::Conflict,
    };
    Problem::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_contract_has_every_field_of_the_answer() {
        let text = include_str!("../../../../docs/api.md");
        let (_, text) = text
            .split_once("\n## Move all timers")
            .expect("it is there");
        let examples = text.split("```json\n").skip(1);
        let mut examples = examples.filter_map(|rest| rest.split("```").next());
        let asked = examples.next().expect("what is asked");
        let asked = options(asked.as_bytes()).expect("it is in due form");
        assert_eq!(asked.schema, "countwheel");
        let written: Value = serde_json::from_str(examples.next().expect("an answer")).unwrap();
        let names = |value: &Value| -> Vec<String> {
            let object = value.as_object().expect("an object");
            object.keys().cloned().collect()
        };
        let answer = serde_json::to_value(ProgressBody::from(Progress::default())).unwrap();
        assert_eq!(names(&answer), names(&written));
    }
}
