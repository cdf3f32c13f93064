//! The login of people who look at the pages, and its end.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use super::session::{self, cookie, is_secure};
use super::{html, refuse};
use crate::api::access::{self, Identity};
use crate::api::audit;
use crate::api::problem::{Code, Problem};
use crate::api::request::Query;
use crate::api::{App, is_from_here};
use crate::callers::{Caller, Peer};
use crate::resources::token::{Scope, TokenId};

/// How long a form may be, in bytes.
const FORM_MAX_BYTES: usize = 8 << 10;
/// How often the end of a session is tried again that the store did not take, and how long after a try.
const ENDS_MAX: usize = 360;
const ENDED_EVERY: Duration = Duration::from_secs(5);
/// How long it may take to come.
const FORM_WITHIN: Duration = Duration::from_secs(10);

/// Who looks at a page.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    /// Whether timers may be changed.
    pub(crate) may_change: bool,
    /// Whether the API needs a token, which a browser does not show.
    pub(crate) needs_token: bool,
    /// Whose sessions are those of whoever it is.
    pub(super) who: Option<String>,
    /// The session that the browser has shown.
    session: Option<String>,
    /// What forms have to say.
    pub(crate) form_key: Option<String>,
}

impl Viewer {
    /// Whether it is by a session that counts, and not by a token or a certificate.
    pub(crate) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// The session that the browser has shown.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    pub(crate) fn of(app: &App, asks: &Identity, session: Option<&str>) -> Self {
        Self {
            may_change: asks.has(Scope::Write),
            needs_token: !matches!(asks, Identity::Anyone),
            who: session::who(asks).map(str::to_owned),
            form_key: session.map(|session| app.sessions.form_key(session)),
            session: session.map(str::to_owned),
        }
    }

    #[cfg(test)]
    pub(crate) fn of_test(needs_token: bool) -> Self {
        Self {
            may_change: true,
            needs_token,
            who: None,
            session: None,
            form_key: None,
        }
    }

    /// Whether what a form asks for was asked for on a page of this service. A caller that shows a token itself is no
    /// page of another origin.
    pub(super) async fn check_form(
        &self,
        app: &App,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(), Problem> {
        if self.session.is_none() {
            return Ok(());
        }
        let form = read(body).await?;
        let form = Query::of_form(&form, &["form_key"])?;
        self.is_of_this(app, headers, form.get("form_key"))
    }

    /// The same of a form that was read.
    pub(super) fn is_of_this(
        &self,
        app: &App,
        headers: &HeaderMap,
        form_key: Option<&str>,
    ) -> Result<(), Problem> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        let said = form_key.unwrap_or_default();
        if is_from_here(headers) && app.sessions.is_form_key(session, said) {
            return Ok(());
        }
        let detail = "the form is not of a page of this session: load the page again";
        Err(Problem::new(Code::Forbidden, detail))
    }
}

impl Viewer {
    /// Whether the session counts still, once a form has come that has taken a while.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] if its token was revoked or rotated or has expired meanwhile, or the session was ended.
    pub(super) fn still(&self, app: &App) -> Result<(), Problem> {
        let Some(session) = &self.session else {
            return Ok(());
        };
        let (known, now) = (app.catalogue().known(), app.clock.timestamp());
        let counts = app.sessions.read(session, &app.access, &known, now);
        counts.map(drop).ok_or_else(access::unauthorized)
    }
}

pub(super) async fn read(body: Body) -> Result<String, Problem> {
    let coming = axum::body::to_bytes(body, FORM_MAX_BYTES);
    let bytes = tokio::time::timeout(FORM_WITHIN, coming).await;
    let late = |_| Problem::new(Code::Timeout, "the form did not come in time");
    let bytes = bytes.map_err(late)?.map_err(|_| {
        let detail = format!("a form has at most {FORM_MAX_BYTES} bytes");
        Problem::new(Code::TooLarge, detail)
    })?;
    String::from_utf8(bytes.into()).map_err(|_| Problem::malformed("the form is not UTF-8"))
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    to: String,
    wrong: Option<String>,
}

/// Where to go behind the login: a page of this service, else the first one.
fn destination(to: Option<&str>) -> &str {
    let is_page = |to: &&str| {
        let path = to.split('?').next().unwrap_or_default();
        access::is_page(path) && to.bytes().all(|byte| byte.is_ascii_graphic())
    };
    to.filter(is_page).unwrap_or("/")
}

pub(super) fn go_to(place: &str) -> Response {
    let place = HeaderValue::from_str(place).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response()
}

/// Where a browser without a session gets one. Behind the login of who has sent a form is the page that the form is about:
/// nothing is changed by a login.
pub(crate) fn lead_here(uri: &Uri) -> Response {
    let page = uri.path_and_query().map_or("/", |it| it.as_str());
    let page = match page.strip_prefix(access::REVIVE) {
        Some(query) => format!("/timer{query}"),
        None if page == access::END_SESSIONS => "/sessions".to_owned(),
        None => page.to_owned(),
    };
    let page = percent_encoding::utf8_percent_encode(&page, percent_encoding::NON_ALPHANUMERIC);
    go_to(&format!("/login?to={page}"))
}

pub(super) async fn show(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    let query = match Query::of(&uri, &["to"]) {
        Ok(query) => query,
        Err(problem) => return refuse(&headers, problem),
    };
    let to = destination(query.get("to"));
    if !app.needs_token() {
        return go_to(to);
    }
    page(StatusCode::OK, to, None)
}

fn page(status: StatusCode, to: &str, wrong: Option<String>) -> Response {
    let to = to.to_owned();
    html(status, &LoginPage { to, wrong }).unwrap_or_else(IntoResponse::into_response)
}

/// Takes a token, and has the browser keep a session in its place.
pub(super) async fn begin(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response {
    let body = std::mem::take(request.body_mut());
    let headers = request.headers().clone();
    let form = match read(body).await {
        Ok(form) => form,
        Err(problem) => return refuse(&headers, problem),
    };
    let form = match Query::of_form(&form, &["token", "to"]) {
        Ok(form) => form,
        Err(problem) => return refuse(&headers, problem),
    };
    if !is_from_here(&headers) {
        let detail = "a login comes from the page of this service";
        return refuse(&headers, Problem::new(Code::Forbidden, detail));
    }
    let to = destination(form.get("to"));
    let token = form.get("token").unwrap_or_default().trim();
    let asks = match access::of_token(&app, &request, token) {
        Ok(asks) => asks,
        Err(problem) => {
            let (status, _, detail) = problem.parts();
            let detail = match status {
                StatusCode::UNAUTHORIZED => "There is no such token.".to_owned(),
                _ => format!("{detail}."),
            };
            let mut response = page(status, to, Some(detail));
            if let Some(seconds) = problem.retry_after() {
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
            return response;
        }
    };
    let extensions = request.extensions();
    let from = extensions.get::<Caller>().map(ToString::to_string);
    let mut response = open(&app, &headers, extensions.get(), from, &asks, to).await;
    // For the access log: whoever shows a token in a form is known here alone.
    response.extensions_mut().insert(asks);
    response
}

/// The answer to who has shown a token: a session, if the token opens the pages.
async fn open(
    app: &App,
    headers: &HeaderMap,
    peer: Option<&Peer>,
    from: Option<String>,
    asks: &Identity,
    to: &str,
) -> Response {
    if !asks.has(Scope::Read) {
        let wrong = "The token lacks the scope read.".to_owned();
        return page(StatusCode::FORBIDDEN, to, Some(wrong));
    }
    if asks.namespace().is_some() {
        let wrong =
            "The token is of a namespace, and the pages are of the whole service.".to_owned();
        return page(StatusCode::FORBIDDEN, to, Some(wrong));
    }
    let now = app.clock.timestamp();
    let Some(session) = app.sessions.begin(&app.access, asks, now) else {
        return refuse(headers, Problem::new(Code::Internal, "no session begins"));
    };
    tracing::info!(
        token = asks.token().map(TokenId::as_str),
        peer = peer.map(tracing::field::display),
        "a session of the pages begins"
    );
    let storing = app.sessions.store(app, &session, from, now);
    if let Err(problem) = audit::as_login_of(asks, storing).await {
        let reason = problem.parts().2;
        tracing::warn!(%reason, "a session is known to this node alone: the store does not take it");
    }
    keep(go_to(to), Some(&session), headers, peer)
}

/// The answer that has the browser keep a session, or forget it.
fn keep(
    mut response: Response,
    session: Option<&str>,
    headers: &HeaderMap,
    peer: Option<&Peer>,
) -> Response {
    let cookie = cookie(session, is_secure(headers, peer));
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

/// Ends a session.
pub(super) async fn end(
    State(app): State<Arc<App>>,
    viewer: Option<Extension<Viewer>>,
    mut request: Request<Body>,
) -> Response {
    let body = std::mem::take(request.body_mut());
    let headers = request.headers().clone();
    // A page of another site has a browser send no session, and would have it forget the one that it has.
    if !is_from_here(&headers) {
        let detail = "a logout comes from a page of this service";
        return refuse(&headers, Problem::new(Code::Forbidden, detail));
    }
    if let Some(Extension(viewer)) = viewer {
        if let Err(problem) = viewer.check_form(&app, &headers, body).await {
            return refuse(&headers, problem);
        }
        if let Some(session) = &viewer.session {
            let now = app.clock.timestamp();
            app.sessions.end(session, now);
            if let (Some(who), Some(nonce)) = (&viewer.who, session::nonce(session))
                && let Err(problem) = app.sessions.remove(&app, who, Some(nonce), now).await
            {
                let reason = problem.parts().2;
                tracing::warn!(%reason, "a session is ended on this node alone for now: the store does not take its end");
                let ending = end_later(Arc::clone(&app), who.clone(), nonce.to_owned());
                tokio::spawn(audit::still_asked(ending));
            }
        }
    }
    keep(go_to("/login"), None, &headers, request.extensions().get())
}

/// Ends a session that the store did not end, as soon as it takes changes again.
async fn end_later(app: Arc<App>, who: String, nonce: String) {
    for _ in 0..ENDS_MAX {
        tokio::time::sleep(ENDED_EVERY).await;
        let now = app.clock.timestamp();
        let ended = app.sessions.remove(&app, &who, Some(&nonce), now).await;
        if ended.is_ok() {
            tracing::info!("a session that was ended on this node is ended on all nodes");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_pages_of_this_service_alone() {
        for (to, place) in [
            (None, "/"),
            (Some("/dead?queue=q"), "/dead?queue=q"),
            (Some("/timer?queue=q&key=k"), "/timer?queue=q&key=k"),
            (Some("https://example.com/"), "/"),
            (Some("//example.com/"), "/"),
            (Some("/\\example.com/"), "/"),
            (Some("/dead\r\nx: y"), "/"),
            (Some("/login"), "/"),
            (Some("/v1/queues"), "/"),
            (Some("dead"), "/"),
        ] {
            assert_eq!(destination(to), place, "{to:?}");
        }
        let led = lead_here(&"/timer?queue=q&key=%2F".parse().unwrap());
        let place = led.headers()[header::LOCATION].to_str().unwrap();
        assert_eq!(place, "/login?to=%2Ftimer%3Fqueue%3Dq%26key%3D%252F");
        let led = lead_here(&"/timer/revive?queue=q&key=k".parse().unwrap());
        let place = led.headers()[header::LOCATION].to_str().unwrap();
        assert_eq!(place, "/login?to=%2Ftimer%3Fqueue%3Dq%26key%3Dk");
    }
}
