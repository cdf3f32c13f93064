//! The sessions of the token of whoever looks: where each was begun, and their end.

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, Uri};
use axum::response::Response;
use countwheel_time::Timestamp;

use super::login::{self, Viewer};
use super::session;
use super::text::When;
use super::{Frame, answer, needed, refuse, turn_away};
use crate::api::problem::{Code, Problem};
use crate::api::request::Query;
use crate::api::{App, access};

/// What a form says that ends all sessions.
const ALL: &str = "all";

#[derive(Template)]
#[template(path = "sessions.html")]
struct SessionsPage {
    frame: Frame,
    sessions: Vec<Row>,
    /// Whether the session that is shown is known to this node alone.
    is_unstored: bool,
}

struct Row {
    nonce: String,
    begun: When,
    until: When,
    from: String,
    is_this: bool,
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    answer(&headers, page(&app, viewer, &uri).await)
}

async fn page(app: &App, viewer: Viewer, uri: &Uri) -> Result<SessionsPage, Problem> {
    Query::of(uri, &[])?;
    let known = app.look().await?;
    let now = app.clock.timestamp();
    let at = |micros| When::of(Timestamp::from_micros(micros), now);
    let this = viewer.session().and_then(session::nonce);
    let stored = viewer.who.as_deref().and_then(|who| known.sessions(who));
    let all = stored.iter().flat_map(|stored| stored.iter());
    let counting = all.filter(|(_, it)| now.as_micros() / 1_000_000 < it.until);
    let mut counting: Vec<_> = counting.collect();
    counting.sort_by_key(|(_, it)| std::cmp::Reverse(it.begun));
    let sessions = counting.into_iter().map(|(nonce, it)| Row {
        nonce: nonce.to_owned(),
        begun: at(it.begun),
        until: at(it.until.saturating_mul(1_000_000)),
        from: it.from.clone().unwrap_or_default(),
        is_this: this == Some(nonce),
    });
    let sessions: Vec<_> = sessions.collect();
    Ok(SessionsPage {
        is_unstored: this.is_some() && !sessions.iter().any(|it| it.is_this),
        frame: Frame::of(app, viewer, now, "/sessions", "Sessions"),
        sessions,
    })
}

/// Ends one session or all of a token that is shown once more.
pub(super) async fn end(
    State(app): State<Arc<App>>,
    Extension(viewer): Extension<Viewer>,
    mut request: Request<Body>,
) -> Response {
    let body = std::mem::take(request.body_mut());
    let (uri, headers) = (request.uri().clone(), request.headers().clone());
    let ends = match login::read(body).await {
        Ok(form) => asked(&app, &viewer, &request, &form),
        Err(problem) => Err(problem),
    };
    let ended = match ends {
        Ok((who, nonce)) => {
            let now = app.clock.timestamp();
            app.sessions.remove(&app, &who, nonce.as_deref(), now).await
        }
        Err(problem) => Err(problem),
    };
    match ended {
        Ok(()) => login::go_to("/sessions"),
        Err(problem) if viewer.still(&app).is_err() => turn_away(&uri, &headers, problem),
        Err(problem) => refuse(&headers, problem),
    }
}

/// Whose sessions a form ends, and which; `None` for all.
fn asked(
    app: &App,
    viewer: &Viewer,
    request: &Request<Body>,
    form: &str,
) -> Result<(String, Option<String>), Problem> {
    let form = Query::of_form(form, &["form_key", "session", "token"])?;
    viewer.is_of_this(app, request.headers(), form.get("form_key"))?;
    viewer.still(app)?;
    let token = form.get("token").unwrap_or_default().trim();
    let asks = access::of_token(app, request, token)?;
    let who = session::who(&asks).filter(|who| viewer.who.as_deref() == Some(who));
    let Some(who) = who else {
        let detail = "the token is not the one with which the session was begun";
        return Err(Problem::new(Code::Forbidden, detail));
    };
    let nonce = needed(&form, "session")?;
    Ok((who.to_owned(), (nonce != ALL).then(|| nonce.to_owned())))
}
