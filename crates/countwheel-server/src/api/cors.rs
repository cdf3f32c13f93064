//! Web pages of other origins (CORS): which of them may call, by a list that the operator gives.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_service::Service;

use super::App;
use super::access_log::Line;
use super::idempotency::{IDEMPOTENCY_KEY, REPLAYED};
use crate::traced::{TRACEPARENT, TRACESTATE};

/// For how long a browser may keep the answer to a preflight.
pub(crate) const KEPT: Duration = Duration::from_secs(600);

/// An origin as browsers write it: scheme, host and port, and nothing else.
///
/// # Errors
/// Why it is none.
pub(crate) fn origin(text: &str) -> Result<HeaderValue, String> {
    let refused = |why: &str| Err(format!("{text:?} is no origin: {why}"));
    if text == "*" || text == "null" {
        return refused("each page that may call is named, such as https://example.com");
    }
    let Some((scheme, authority)) = text.split_once("://") else {
        return refused("it is a scheme and a host, such as https://example.com");
    };
    if scheme != "http" && scheme != "https" {
        return refused("the scheme is http or https, in small letters");
    }
    let Ok(uri) = text.parse::<Uri>() else {
        return refused("it is a scheme and a host, such as https://example.com");
    };
    let is_bare = uri.authority().is_some_and(|it| it.as_str() == authority)
        && !authority.contains('@')
        && !authority.ends_with(':');
    if !is_bare {
        return refused("it has no user, no path and no slash at its end");
    }
    if authority.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return refused("browsers write a host in small letters");
    }
    let usual = if scheme == "https" { 443 } else { 80 };
    if uri.port_u16() == Some(usual) {
        return refused("browsers leave the usual port of a scheme out");
    }
    HeaderValue::from_str(text).or_else(|_| refused("it is not printable ASCII"))
}

/// The origins whose pages may call.
#[derive(Clone, Default, Debug)]
pub(crate) struct Origins(Vec<HeaderValue>);

impl Origins {
    pub(crate) fn new(origins: Vec<HeaderValue>) -> Self {
        Self(origins)
    }

    /// Whether pages of this origin may.
    pub(super) fn has(&self, origin: &HeaderValue) -> bool {
        self.0.contains(origin)
    }

    fn layer(&self) -> CorsLayer {
        CorsLayer::new()
            .allow_origin(AllowOrigin::list(self.0.iter().cloned()))
            .allow_methods([
                Method::GET,
                Method::HEAD,
                Method::POST,
                Method::PUT,
                Method::PATCH,
                Method::DELETE,
            ])
            .allow_headers([
                header::ACCEPT,
                header::AUTHORIZATION,
                header::CONTENT_TYPE,
                header::IF_MATCH,
                header::IF_NONE_MATCH,
                IDEMPOTENCY_KEY.clone(),
                HeaderName::from_static("last-event-id"),
                HeaderName::from_static(TRACEPARENT),
                HeaderName::from_static(TRACESTATE),
            ])
            .expose_headers([
                header::ALLOW,
                header::ETAG,
                header::LINK,
                header::LOCATION,
                header::RETRY_AFTER,
                REPLAYED.clone(),
                super::TOKEN_EXPIRES.clone(),
                HeaderName::from_static("x-request-id"),
            ])
            .max_age(KEPT)
    }
}

/// The same routes, which say to browsers whose pages may call.
pub(super) fn around(app: &Arc<App>, router: Router) -> Router {
    if app.cors.0.is_empty() {
        return router;
    }
    let shared = router.clone().layer(app.cors.layer());
    router.layer(from_fn_with_state((Arc::clone(app), shared), choose))
}

/// The layer takes each OPTIONS for a preflight. One that is none asks which methods a path takes.
async fn choose(
    State((app, mut shared)): State<(Arc<App>, Router)>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let headers = request.headers();
    let is_options = request.method() == Method::OPTIONS;
    let is_preflight = is_options
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if is_options && !is_preflight {
        return next.run(request).await;
    }
    let preflight = is_preflight.then(|| {
        let id = app.request_id();
        let line = Line::of(&app, &request, &id, app.clock.now());
        (id, line)
    });
    let mut answer = match shared.call(request).await {
        Ok(answer) => answer,
        Err(never) => match never {},
    };
    let Some((id, line)) = preflight else {
        return answer;
    };
    // The layer answers a preflight itself, and what answers requests does not see it.
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    super::mark(&mut answer, &id);
    match line {
        Some(line) => line.answered(answer),
        None => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_as_browsers_write_it() {
        for text in [
            "https://example.com",
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "https://[::1]:8443",
            "https://xn--bcher-kva.example",
        ] {
            assert_eq!(origin(text).unwrap(), text);
        }
        for text in [
            "",
            "*",
            "null",
            "example.com",
            "https://",
            "https://example.com/",
            "https://example.com/a",
            "https://example.com?a",
            "https://a@example.com",
            "https://Example.com",
            "HTTPS://example.com",
            "https://example.com:443",
            "http://example.com:80",
            "http://example.com:",
            "https://*.example.com/",
            "ftp://example.com",
            "https://bücher.example",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }
}
