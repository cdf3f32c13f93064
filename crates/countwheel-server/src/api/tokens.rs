//! Tokens: made, shown without their secrets, rotated and revoked.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::Response;
use countwheel_durable::{Namespace, Precondition, Setting};
use countwheel_time::Timestamp;
use serde::Serialize;

use super::described::requests;
use super::json::{self, Field};
use super::problem::{Code, Problem};
use super::reach::{Reach, no_such_namespace};
use super::request::{
    Condition, Honoured, Query, json_body, optional_json_body, precondition, text_segment,
};
use super::{App, answer, retry, stored};
use crate::resources::token::{
    self, Before, Drawn, NAME_MAX_BYTES, Scope, StoredToken, TOKENS_MAX, TOKENS_OF_NAMESPACE_MAX,
    TokenId,
};
use crate::resources::{Entry, Resources};
use crate::time::format_time;

/// The longest time for which a secret counts that was rotated away.
pub(crate) const OVERLAP_MAX: Duration = Duration::from_secs(30 * 86_400);
/// How long the name of a certificate may be.
pub(crate) const CERTIFICATE_MAX_BYTES: usize = 512;
/// The longest time after which a token expires.
pub(crate) const EXPIRES_MAX: Duration = Duration::from_secs(3_650 * 86_400);

/// A token as it is shown: neither its secret nor a hash of it.
#[derive(Serialize)]
struct TokenBody<'a> {
    id: &'a str,
    revision: u64,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    scopes: &'a [Scope],
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<&'a str>,
    created: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    /// Until when the secret before the last rotation counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    before_until: Option<String>,
    /// The token itself, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl<'a> TokenBody<'a> {
    fn of(id: &'a TokenId, revision: u64, stored: &'a StoredToken, now: Timestamp) -> Self {
        let before = stored.before.as_ref().filter(|before| now < before.until);
        Self {
            id: id.as_str(),
            revision,
            name: &stored.name,
            namespace: stored.namespace.as_ref().map(Namespace::as_str),
            scopes: &stored.scopes,
            certificate: stored.certificate.as_deref(),
            created: format_time(stored.created),
            expires: stored.expires.map(format_time),
            before_until: before.map(|before| format_time(before.until)),
            token: None,
        }
    }
}

/// What a request to make a token asks for.
struct Wanted {
    name: String,
    scopes: Vec<Scope>,
    namespace: Option<Namespace>,
    certificate: Option<String>,
    expires: Option<Duration>,
}

fn read(body: &[u8], reach: &Reach) -> Result<Wanted, Problem> {
    let root = Field::root(json::parse(body)?);
    let mut object = root.object_of(&requests::CREATE_TOKEN)?;
    let name = object.require("name")?;
    let text = name.text()?;
    if text.is_empty() || text.len() > NAME_MAX_BYTES || text.chars().any(char::is_control) {
        let detail = format!("a name has 1 to {NAME_MAX_BYTES} bytes and no control characters");
        return Err(name.malformed(detail));
    }
    let text = text.into_owned();
    let field = object.require("scopes")?;
    let mut scopes = Vec::new();
    for element in field.elements()? {
        let scope = Scope::of_word(&element.text()?).ok_or_else(|| {
            element.malformed(format!("a scope is one of {}", Scope::WORDS.join(", ")))
        })?;
        if scopes.contains(&scope) {
            return Err(element.malformed("the scope is there twice"));
        }
        scopes.push(scope);
    }
    if scopes.is_empty() {
        return Err(field.malformed("at least one scope is needed"));
    }
    scopes.sort();
    let namespace = object.take("namespace");
    let namespace = namespace
        .map(|field| read_namespace(&field, reach))
        .transpose()?;
    let namespace = namespace.or_else(|| reach.namespace().cloned());
    if namespace.is_some() && scopes.contains(&Scope::Metrics) {
        return Err(field.malformed("the metrics are of the whole service, and not of a namespace"));
    }
    let certificate = object.take("certificate");
    let certificate = certificate
        .map(|field| read_certificate(&field))
        .transpose()?;
    let expires = object.take("expires_in");
    let expires = expires.map(|field| span(&field, Duration::from_secs(1), EXPIRES_MAX));
    let expires = expires.transpose()?;
    object.finish()?;
    if certificate.is_some() && *reach != Reach::Whole {
        let detail = "a token of a namespace makes none that a certificate stands for";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    Ok(Wanted {
        name: text,
        scopes,
        namespace,
        certificate,
        expires,
    })
}

/// The namespace of a token. Names in `default` are those of the whole service.
fn read_namespace(field: &Field<'_>, reach: &Reach) -> Result<Namespace, Problem> {
    let namespace = Namespace::new(field.text()?);
    let namespace = namespace.map_err(|error| field.malformed(error.to_string()))?;
    if namespace.is_default() {
        return Err(field.malformed("a token of the namespace default is one of the whole service"));
    }
    match reach.has(namespace.as_str()) {
        true => Ok(namespace),
        false => Err(no_such_namespace().at(field.pointer())),
    }
}

/// A name of a certificate: what it is, and the name.
fn read_certificate(field: &Field<'_>) -> Result<String, Problem> {
    let text = field.text()?;
    let name = text.split_once(':').filter(|(kind, name)| {
        matches!(*kind, "dns" | "uri" | "cn")
            && !name.is_empty()
            && !name.chars().any(char::is_control)
    });
    if name.is_none() || text.len() > CERTIFICATE_MAX_BYTES {
        let detail = format!(
            "a name of a certificate is such as dns:worker.example, uri:spiffe://example.org/worker or cn:worker, \
             of {CERTIFICATE_MAX_BYTES} bytes at the most"
        );
        return Err(field.malformed(detail));
    }
    Ok(text.into_owned())
}

/// A duration within bounds.
fn span(field: &Field<'_>, least: Duration, most: Duration) -> Result<Duration, Problem> {
    let span = retry::duration(field)?.filter(|span| (least..=most).contains(span));
    span.ok_or_else(|| {
        let [least, most] = [least, most].map(crate::time::format_duration);
        field.malformed(format!("must be a duration from {least} to {most}"))
    })
}

fn after(now: Timestamp, span: Duration) -> Timestamp {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(now.as_micros().saturating_add(micros))
}

fn no_randomness(error: getrandom::Error) -> Problem {
    tracing::error!(%error, "no token can be drawn");
    Problem::new(Code::Internal, "the system gives no randomness")
}

fn missing() -> Problem {
    Problem::new(Code::NotFound, "there is no such token")
}

/// The id at the end of the path, and what follows it behind a colon.
fn id_of(uri: &Uri) -> Result<(TokenId, Option<String>), Problem> {
    let segment = text_segment(uri, 3).ok_or_else(missing)?;
    let (id, verb) = match segment.split_once(':') {
        Some((id, verb)) => (id, Some(verb.to_owned())),
        None => (&*segment, None),
    };
    Ok((TokenId::new(id).ok_or_else(missing)?, verb))
}

/// Whether whoever asks sees the token: one of a namespace sees those of the same.
fn is_seen(reach: &Reach, token: &StoredToken) -> bool {
    *reach == Reach::Whole || token.namespace.as_ref() == reach.namespace()
}

fn seen<'k>(
    known: &'k Resources,
    id: &TokenId,
    reach: &Reach,
) -> Result<&'k Entry<StoredToken>, Problem> {
    let entry = known.token(id).ok_or_else(missing)?;
    let is_seen = match entry.what.as_deref() {
        Some(token) => is_seen(reach, token),
        None => *reach == Reach::Whole,
    };
    is_seen.then_some(entry).ok_or_else(missing)
}

fn version(id: &TokenId) -> impl Fn(&Resources) -> Option<countwheel_durable::SettingsVersion> {
    move |known| known.token(id).map(|entry| entry.version)
}

/// The token of an answer that nobody may keep: it is in no cache.
fn once(status: StatusCode, body: &TokenBody<'_>) -> Response {
    let mut response = answer(status, body);
    let never = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, never);
    response
}

/// A token that was drawn, and is not stored yet.
struct Made {
    id: TokenId,
    drawn: Drawn,
    made: StoredToken,
}

impl Made {
    fn of(body: &[u8], now: Timestamp, reach: &Reach) -> Result<Self, Problem> {
        let wanted = read(body, reach)?;
        let drawn = Drawn::draw().map_err(no_randomness)?;
        Ok(Self {
            id: token::draw_id().map_err(no_randomness)?,
            made: StoredToken {
                name: wanted.name,
                hash: drawn.hash(),
                before: None,
                certificate: wanted.certificate,
                namespace: wanted.namespace,
                scopes: wanted.scopes,
                created: now,
                expires: wanted.expires.map(|span| after(now, span)),
            },
            drawn,
        })
    }

    /// The token, once; `None` where a certificate stands for it.
    fn token(&self) -> Option<String> {
        let has_secret = self.made.certificate.is_none();
        has_secret.then(|| self.drawn.token(&self.id))
    }
}

/// Whether its holder may make others for good.
fn lasts(token: &StoredToken) -> bool {
    token.has(Scope::Admin)
        && token.namespace.is_none()
        && token.certificate.is_none()
        && token.expires.is_none()
}

/// Whether one more token may be there.
fn may_be_made(known: &Resources, made: &StoredToken, is_configured: bool) -> Result<(), Problem> {
    let refused = |detail: &str| Err(Problem::new(Code::Conflict, detail));
    if known.tokens().count() >= TOKENS_MAX {
        return refused(&format!("there are {TOKENS_MAX} tokens: revoke some"));
    }
    if let Some(namespace) = &made.namespace {
        if known.namespace(namespace.as_str()).is_none() {
            return Err(no_such_namespace().at("/namespace"));
        }
        let own = known.tokens().filter(|(_, entry)| {
            let token = entry.what.as_deref();
            token.is_some_and(|token| token.namespace.as_ref() == Some(namespace))
        });
        if own.count() >= TOKENS_OF_NAMESPACE_MAX {
            let most = TOKENS_OF_NAMESPACE_MAX;
            return refused(&format!(
                "the namespace {namespace} has {most} tokens: revoke some"
            ));
        }
    }
    let certificate = made.certificate.as_ref();
    if certificate.is_some_and(|name| known.has_certificate(name)) {
        return refused("another token is for the same certificate: revoke that one first");
    }
    // The first one closes the API for all that show none, so it must open what makes others.
    if !is_configured && !known.has_tokens() && !lasts(made) {
        return refused(
            "the first token needs the scope admin, a secret, no namespace, and no end: without such a token nobody could make another",
        );
    }
    Ok(())
}

/// A token that is to be stored where no service runs.
pub(crate) struct Offline {
    pub(crate) id: TokenId,
    /// The token, once.
    pub(crate) token: Option<String>,
    pub(crate) setting: Setting,
}

/// Makes a token as a request with this body does, for a store that nobody has open.
///
/// # Errors
/// As that request.
pub(crate) fn offline(known: &Resources, body: &[u8], now: Timestamp) -> Result<Offline, Problem> {
    let made = Made::of(body, now, &Reach::Whole)?;
    may_be_made(known, &made.made, false)?;
    Ok(Offline {
        token: made.token(),
        setting: Setting {
            name: made.id.setting().ok_or_else(missing)?,
            value: Some(made.made.to_value()),
        },
        id: made.id,
    })
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    precondition(request.headers(), Honoured::Nothing)?;
    Query::of(request.uri(), &[])?;
    let reach = Reach::of(&request);
    let body = json_body(&app, request).await?;
    let now = app.clock.timestamp();
    let made = Made::of(&body, now, &reach)?;
    drop(body);
    let make = |known: &Resources| {
        may_be_made(known, &made.made, app.access.has_configured())?;
        Ok(Some(made.made.to_value()))
    };
    let id = &made.id;
    let setting = id.setting().ok_or_else(missing)?;
    let absent = Condition::Engine(Precondition::Absent);
    let changed = stored::change(&app, &setting, absent, version(id), "token", make).await?;
    tracing::info!(token = id.as_str(), "a token was made");
    let shown = TokenBody {
        token: made.token(),
        ..TokenBody::of(&made.id, changed.version.0, &made.made, now)
    };
    Ok(once(StatusCode::CREATED, &shown))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        tokens: Vec<TokenBody<'a>>,
    }
    Query::of(&uri, &[])?;
    let known = app.look().await?;
    let now = app.clock.timestamp();
    let tokens = known.tokens().filter_map(|(id, entry)| {
        let stored = entry.what.as_deref().filter(|it| is_seen(&reach, it))?;
        Some(TokenBody::of(id, entry.version.0, stored, now))
    });
    let body = Answer {
        tokens: tokens.collect(),
    };
    Ok(answer(StatusCode::OK, &body))
}

pub(super) async fn get(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (id, _) = id_of(&uri)?;
    Query::of(&uri, &[])?;
    let known = app.look().await?;
    let entry = seen(&known, &id, &reach)?;
    let stored = entry.what.as_ref();
    let stored = stored.ok_or_else(|| stored::unreadable("token"))?;
    let body = TokenBody::of(&id, entry.version.0, stored, app.clock.timestamp());
    Ok(stored::shown_unless_any(&headers, &body, entry.version))
}

pub(super) async fn revoke(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer<'a> {
        id: &'a str,
        revoked: bool,
    }
    let (id, _) = id_of(&uri)?;
    Query::of(&uri, &[])?;
    let condition = precondition(&headers, Honoured::IfMatch)?;
    let setting = id.setting().ok_or_else(missing)?;
    let check = |known: &Resources| {
        seen(known, &id, &reach)?;
        if app.access.has_configured() {
            return Ok(());
        }
        let lasts = |entry: &Entry<StoredToken>| entry.what.as_deref().is_some_and(lasts);
        let is_one = known.token(&id).is_some_and(lasts);
        let mut others = known.tokens().filter(|(other, _)| **other != id);
        if !is_one || others.any(|(_, entry)| lasts(entry)) {
            return Ok(());
        }
        let detail = "this is the last token with the scope admin, a secret, no namespace and no end: make another one first";
        Err(Problem::new(Code::Conflict, detail))
    };
    stored::remove(
        &app,
        &setting,
        condition,
        version(&id),
        "token",
        missing,
        check,
    )
    .await?;
    tracing::info!(token = id.as_str(), "a token was revoked");
    let body = Answer {
        id: id.as_str(),
        revoked: true,
    };
    Ok(answer(StatusCode::OK, &body))
}

pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let (id, verb) = id_of(request.uri())?;
    if verb.as_deref() != Some("rotate") {
        let detail = "a token takes POST with :rotate at the end of its path";
        return Err(Problem::new(Code::NotFound, detail));
    }
    Query::of(request.uri(), &[])?;
    precondition(request.headers(), Honoured::Nothing)?;
    let reach = Reach::of(&request);
    let body = optional_json_body(&app, request).await?;
    let overlap = {
        let root = json::parse(body.as_deref().unwrap_or(b"{}"))?;
        let mut object = Field::root(root).object_of(&requests::ROTATE_TOKEN)?;
        let overlap = object.take("overlap");
        let overlap = overlap.map(|field| span(&field, Duration::ZERO, OVERLAP_MAX));
        let overlap = overlap.transpose()?.unwrap_or_default();
        object.finish()?;
        overlap
    };
    drop(body);
    // One answer for what is another's and for what is not there.
    seen(&*app.look().await?, &id, &reach)?;
    let now = app.clock.timestamp();
    let drawn = Drawn::draw().map_err(no_randomness)?;
    let rotated = |known: &Resources| {
        let entry = seen(known, &id, &reach)?;
        let stored = entry.what.as_deref();
        let stored = stored.ok_or_else(|| stored::unreadable("token"))?;
        if stored.certificate.is_some() {
            let detail = "a certificate stands for this token: it has no secret to rotate";
            return Err(Problem::new(Code::Conflict, detail));
        }
        let before = Before {
            hash: stored.hash.clone(),
            until: after(now, overlap),
        };
        Ok::<_, Problem>(StoredToken {
            hash: drawn.hash(),
            before: (overlap > Duration::ZERO).then_some(before),
            ..stored.clone()
        })
    };
    let last = parking_lot::Mutex::new(None);
    let make = |known: &Resources| {
        let rotated = rotated(known)?;
        let value = rotated.to_value();
        *last.lock() = Some(rotated);
        Ok(Some(value))
    };
    let setting = id.setting().ok_or_else(missing)?;
    let changed = stored::change(
        &app,
        &setting,
        Condition::Exists,
        version(&id),
        "token",
        make,
    );
    let changed = changed.await?;
    tracing::info!(token = id.as_str(), ?overlap, "a token was rotated");
    let stored = last.into_inner().ok_or_else(missing)?;
    let shown = TokenBody {
        token: Some(drawn.token(&id)),
        ..TokenBody::of(&id, changed.version.0, &stored, now)
    };
    Ok(once(StatusCode::OK, &shown))
}
