//! Who may ask for what: the token or the certificate that a request shows, and the scope that its operation wants.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, header};
use countwheel_durable::Namespace;
use countwheel_time::{Instant, Timestamp};
use parking_lot::Mutex;

use super::problem::{Code, Problem};
use super::{App, Token};
use crate::callers::{Caller, Peer};
use crate::dashboard::login::Viewer;
use crate::dashboard::session::{self, is_secure};
use crate::resources::token::{Scope, Shown, StoredToken, TokenId};
use crate::resources::{Resources, expiring};

/// How many wrong tokens an address may show in a while.
pub(crate) const WRONG_MAX: u32 = 20;
/// How long that while is.
pub(crate) const WRONG_FOR: Duration = Duration::from_secs(60);
/// How many refusals of an address have lines of their own in the log in such a while.
const REFUSALS_TOLD: u32 = 20;
/// How much of a path a line of the log has, in bytes.
const PATH_TOLD_BYTES: usize = 256;
/// How many addresses are told apart. Those of others are counted together.
const ADDRESSES_MAX: usize = 4_096;

/// Where a form of the pages revives a timer.
pub(crate) const REVIVE: &str = "/timer/revive";
/// Where the page of sessions ends some.
pub(crate) const END_SESSIONS: &str = "/sessions/end";

/// The scope that a request wants, by its method and its path; `None` for what is open to everyone.
///
/// A path that leads nowhere wants the least: whoever may not read learns nothing of it.
pub(crate) fn scope_of(method: &Method, path: &str) -> Option<Scope> {
    // It says what a path takes, and asks no store.
    if *method == Method::OPTIONS {
        return None;
    }
    if path == "/metrics" {
        return Some(Scope::Metrics);
    }
    if path == REVIVE {
        return Some(Scope::Write);
    }
    if is_page(path) || path == END_SESSIONS {
        return Some(Scope::Read);
    }
    if path != "/v1" && !path.starts_with("/v1/") {
        return None;
    }
    let rest = path.strip_prefix("/v1/").unwrap_or_default();
    let (first, more) = rest.split_once('/').unwrap_or((rest, ""));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    Some(match first {
        "tokens" | "audit" => Scope::Admin,
        _ if reads => Scope::Read,
        "simulate" => Scope::Read,
        "batch" | "jobs" => Scope::Write,
        "leases" | "leases:ack" | "leases:nack" | "leases:extend" => Scope::Deliver,
        "queues" => match more.split_once('/') {
            Some((_, of_queue)) if of_queue == "timers" || of_queue.starts_with("timers/") => {
                Scope::Write
            }
            None if more.ends_with(":lease") && *method == Method::POST => Scope::Deliver,
            _ => Scope::Admin,
        },
        _ => Scope::Admin,
    })
}

/// Whether a page for the operator is there that names timers or queues.
pub(crate) fn is_page(path: &str) -> bool {
    matches!(
        path,
        "/" | "/cluster" | "/dead" | "/queue" | "/sessions" | "/timer"
    )
}

/// Whether a form of a page is sent there by who has a session.
pub(super) fn is_form(path: &str) -> bool {
    matches!(path, REVIVE | END_SESSIONS)
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Identity {
    /// Somebody, where no token is needed.
    Anyone,
    /// Somebody who has shown no token where one is needed, and asks for what is open.
    Nobody,
    /// Whoever has the token that was given to the program.
    Configured,
    /// Whoever has a token that is stored, or its certificate.
    Token(TokenId, Arc<StoredToken>, Proof),
}

/// By what somebody has a token.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// By a secret with this hash.
    Secret(Arc<str>),
    /// By a certificate.
    Certificate,
}

impl Identity {
    /// The id of the token that is stored.
    pub(crate) fn token(&self) -> Option<&TokenId> {
        match self {
            Self::Token(id, ..) => Some(id),
            _ => None,
        }
    }

    /// Whether a browser would show by itself what whoever it is has shown.
    pub(crate) fn is_by_certificate(&self) -> bool {
        matches!(self, Self::Token(_, _, Proof::Certificate))
    }

    /// The namespace of the token, if it has one.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Token(_, token, _) => token.namespace.as_ref(),
            _ => None,
        }
    }

    /// When what whoever it is has shown opens nothing any more, if that is soon: at the end of the token, or of a secret that
    /// was rotated away.
    pub(crate) fn ends_soon(&self, now: Timestamp) -> Option<Timestamp> {
        let Self::Token(_, token, proof) = self else {
            return None;
        };
        let before = token.before.as_ref().filter(|_| match proof {
            Proof::Secret(hash) => **hash != *token.hash,
            Proof::Certificate => false,
        });
        let ends = [token.expires, before.map(|before| before.until)];
        let ends = ends.into_iter().flatten().min();
        ends.filter(|&ends| expiring::is_soon(ends, now))
    }

    /// Whether whoever it is may do what wants this scope.
    pub(crate) fn has(&self, wanted: Scope) -> bool {
        match self {
            Self::Anyone | Self::Configured => true,
            Self::Nobody => false,
            Self::Token(_, token, _) => token.has(wanted),
        }
    }

    /// Refuses what wants this scope too.
    ///
    /// # Errors
    /// [`Code::Forbidden`] if whoever it is lacks it.
    pub(crate) fn needs(&self, wanted: Scope) -> Result<(), Problem> {
        if self.has(wanted) {
            return Ok(());
        }
        let detail = format!("the token lacks the scope {}", wanted.word());
        Err(Problem::new(Code::Forbidden, detail))
    }

    /// Whether whoever it is would be known by the same proof now. A request that takes a while is asked again.
    ///
    /// # Errors
    /// [`Code::Unauthorized`] for a token that was revoked, rotated away or has expired meanwhile, and for no token, where
    /// there was none before.
    pub(crate) fn still(&self, app: &App) -> Result<(), Problem> {
        if self.counts(app) {
            return Ok(());
        }
        Err(unauthorized())
    }

    fn counts(&self, app: &App) -> bool {
        let known = known(app);
        let now = app.clock.timestamp();
        match self {
            Self::Nobody | Self::Configured => true,
            Self::Anyone => !app.access.is_needed(&known),
            Self::Token(id, before, proof) => {
                let token = known.token(id).and_then(|entry| entry.what.as_deref());
                token.is_some_and(|token| match proof {
                    Proof::Secret(hash) => token.has_secret(hash, now),
                    Proof::Certificate => {
                        token.certificate == before.certificate && token.counts(now)
                    }
                })
            }
        }
    }

    /// Waits until whoever it is may go on no longer.
    pub(crate) async fn ended(&self, app: &App) {
        let mut changes = app.catalogue.changes();
        loop {
            changes.borrow_and_update();
            if !self.counts(app) {
                return;
            }
            let expires = match self {
                Self::Token(_, token, _) => token.expires,
                _ => None,
            };
            let expires = async {
                match expires {
                    None => std::future::pending().await,
                    Some(at) => {
                        let left = at.saturating_since(app.clock.timestamp());
                        tokio::time::sleep(left).await;
                    }
                }
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = expires => {}
            }
        }
    }
}

/// What opens the API.
#[derive(Debug)]
pub(crate) struct Access {
    configured: Option<Token>,
    /// Whether the API is closed though no token is there.
    is_closed: bool,
    /// Whether tokens were there. Once it was closed, the API stays so until the process ends.
    was_closed: AtomicBool,
    open_metrics: bool,
    /// Tokens that were none.
    wrong: Mutex<Counted>,
    /// Requests that were refused to who is known, or comes from elsewhere.
    refused: Mutex<Counted>,
}

impl Access {
    pub(crate) fn new(configured: Option<Token>) -> Self {
        Self {
            configured,
            is_closed: false,
            was_closed: AtomicBool::new(false),
            open_metrics: false,
            wrong: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// The same, closed as well where no token is there; the metrics are open to everyone if that is wished.
    pub(crate) fn with(mut self, is_closed: bool, open_metrics: bool) -> Self {
        self.is_closed = is_closed;
        self.open_metrics = open_metrics;
        self
    }

    pub(crate) fn has_configured(&self) -> bool {
        self.configured.is_some()
    }

    /// Whether a token has to be shown.
    pub(crate) fn is_needed(&self, known: &Resources) -> bool {
        if self.configured.is_some() || self.is_closed {
            return true;
        }
        if known.has_tokens() {
            self.was_closed.store(true, Ordering::Relaxed);
        }
        self.was_closed.load(Ordering::Relaxed)
    }

    /// What is another text once the token of whoever asks is rotated: only that token ends its sessions.
    pub(crate) fn mark_of(&self, asks: &Identity) -> Option<String> {
        match asks {
            Identity::Configured => self.configured.as_ref().map(|token| token.0.to_string()),
            Identity::Token(_, token, _) => Some(token.hash.clone()),
            Identity::Anyone | Identity::Nobody => None,
        }
    }

    /// Counts a refusal of a request of `caller`. How many these are within a while that has begun, and for how long they
    /// count.
    pub(super) fn note_refusal(&self, caller: Option<Caller>, now: Instant) -> (u32, Duration) {
        let (_, count, left) = self.refused.lock().count(caller, now);
        (count, left)
    }

    /// Whether it is the token that was configured.
    pub(super) fn is_configured(&self, shown: &str) -> bool {
        self.configured.as_ref().is_some_and(|it| it.is(shown))
    }
}

/// What happened within a while, counted by the address that it came from.
#[derive(Default, Debug)]
struct Counted {
    since: Option<Instant>,
    by_caller: HashMap<Option<Caller>, u32>,
}

impl Counted {
    /// Counts one more. How many these are by now, and for how long they count. None of the addresses that are counted
    /// together counts for the others.
    fn note(&mut self, caller: Option<Caller>, now: Instant) -> (u32, Duration) {
        let (is_alone, count, left) = self.count(caller, now);
        (if is_alone { count } else { 1 }, left)
    }

    /// The same, where addresses that are counted together count for each other. The first value is whether the address
    /// is counted alone.
    fn count(&mut self, caller: Option<Caller>, now: Instant) -> (bool, u32, Duration) {
        let since = self
            .since
            .filter(|&at| now.saturating_since(at) < WRONG_FOR);
        if since.is_none() {
            self.by_caller.clear();
        }
        let since = *self.since.insert(since.unwrap_or(now));
        if self.by_caller.len() >= ADDRESSES_MAX && !self.by_caller.contains_key(&caller) {
            // Addresses that have shown one wrong token make room for those that show more.
            self.by_caller
                .retain(|caller, count| caller.is_none() || *count > 1);
        }
        let is_full = self.by_caller.len() >= ADDRESSES_MAX;
        let caller = caller.filter(|_| !is_full || self.by_caller.contains_key(&caller));
        let count = self.by_caller.entry(caller).or_default();
        *count = count.saturating_add(1);
        let left = WRONG_FOR.saturating_sub(now.saturating_since(since));
        (caller.is_some(), *count, left)
    }
}

/// What a request shows in place of a user.
fn shown(headers: &HeaderMap) -> Option<&str> {
    let mut shown = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(shown), None) = (shown.next(), shown.next()) else {
        return None;
    };
    let (scheme, shown) = shown.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| shown.trim())
}

/// What is known of tokens, without a question to a store that is far away.
pub(crate) fn known(app: &App) -> Arc<Resources> {
    let known = app.catalogue.current(&app.timers);
    known.unwrap_or_else(|| app.catalogue.known())
}

/// Whether another node may have begun the session of a request a moment ago: only the store could tell.
pub(super) fn may_be_of_new_session(app: &App, request: &Request<Body>) -> bool {
    if !is_of_pages(request, scope_of(request.method(), request.uri().path())) {
        return false;
    }
    let (headers, now) = (request.headers(), app.clock.timestamp());
    let known = known(app);
    let mut cookies = session::shown(headers, is_secure(headers, request.extensions().get()));
    cookies.any(|cookie| app.sessions.may_be_new(cookie, &app.access, &known, now))
}

/// Who asks, if whoever it is may do what the request wants.
///
/// # Errors
/// [`Code::Unauthorized`] alike for a token that is missing, unknown, revoked, expired or wrong; [`Code::Forbidden`] for one
/// that lacks the scope; [`Code::Overloaded`] for one that is wrong after many others.
pub(super) fn admit(
    app: &App,
    request: &mut Request<Body>,
    wanted: Option<Scope>,
) -> Result<Identity, Problem> {
    let known = known(app);
    let is_of_pages = is_of_pages(request, wanted);
    let has_shown = request.headers().contains_key(header::AUTHORIZATION);
    let (session, begun_by) = match is_of_pages && !has_shown {
        true => {
            let (headers, now) = (request.headers(), app.clock.timestamp());
            let is_secure = is_secure(headers, request.extensions().get());
            let cookies = session::shown(headers, is_secure);
            let shown = app.sessions.first(cookies, &app.access, &known, now);
            shown.unzip()
        }
        false => (None, None),
    };
    let wanted = wanted.filter(|&it| it != Scope::Metrics || !app.access.open_metrics);
    let admitted = look(app, &known, request, begun_by, wanted)?;
    let is_of_metrics = wanted.is_none_or(|wanted| wanted == Scope::Metrics);
    if admitted.token().is_some() && !is_of_pages && !is_of_metrics && app.catalogue.is_stale() {
        request.extensions_mut().insert(admitted);
        let detail =
            "the node does not reach the database, and does not know which tokens were revoked";
        return Err(Problem::new(Code::StoreUnavailable, detail));
    }
    if let Some(Err(refused)) = wanted.map(|wanted| admitted.needs(wanted)) {
        // For the log: whoever is refused is known.
        request.extensions_mut().insert(admitted);
        return Err(refused);
    }
    if is_of_pages {
        let session: Option<String> = session.filter(|_| !matches!(admitted, Identity::Anyone));
        let viewer = Viewer::of(app, &admitted, session.as_deref());
        request.extensions_mut().insert(viewer);
    }
    Ok(admitted)
}

/// Whether a session counts for the request, which wants that scope.
fn is_of_pages(request: &Request<Body>, wanted: Option<Scope>) -> bool {
    request.uri().path() == "/logout" || wanted.is_some() && !is_of_api(request)
}

/// Whether the request is for programs, which have no sessions.
fn is_of_api(request: &Request<Body>) -> bool {
    let path = request.uri().path();
    path == "/metrics" || path == "/v1" || path.starts_with("/v1/")
}

/// Who asks. Who lacks the scope is known as well; who shows nothing is somebody only where nothing is wanted.
fn look(
    app: &App,
    known: &Resources,
    request: &Request<Body>,
    by_session: Option<Identity>,
    wanted: Option<Scope>,
) -> Result<Identity, Problem> {
    if !app.access.is_needed(known) {
        return Ok(Identity::Anyone);
    }
    let has_shown = request.headers().contains_key(header::AUTHORIZATION);
    let identity = by_session.or_else(|| identity(app, known, request));
    let is_wrong = identity.is_none() && has_shown;
    let refusal = is_wrong.then(|| wrong(app, request));
    match (identity, wanted) {
        (Some(identity), _) => Ok(identity),
        (None, None) => Ok(Identity::Nobody),
        (None, Some(_)) => Err(refusal.unwrap_or_else(unauthorized)),
    }
}

/// Who has this token.
///
/// # Errors
/// As those of a request that shows it.
pub(crate) fn of_token(
    app: &App,
    request: &Request<Body>,
    shown: &str,
) -> Result<Identity, Problem> {
    let known = app.catalogue.known();
    let found = token(app, &known, shown);
    found.ok_or_else(|| wrong(app, request))
}

fn token(app: &App, known: &Resources, shown: &str) -> Option<Identity> {
    if app.access.is_configured(shown) {
        return Some(Identity::Configured);
    }
    let shown = Shown::read(shown)?;
    let hash = shown.hash();
    let (id, token) = known.shown_token(&shown.id, &hash, app.clock.timestamp())?;
    let proof = Proof::Secret(hash.into());
    Some(Identity::Token(id.clone(), Arc::clone(token), proof))
}

/// Who asks, by what the request shows.
fn identity(app: &App, known: &Resources, request: &Request<Body>) -> Option<Identity> {
    let now = app.clock.timestamp();
    if let Some(shown) = shown(request.headers()) {
        return token(app, known, shown);
    }
    if request.headers().contains_key(header::AUTHORIZATION) {
        return None;
    }
    let peer = request.extensions().get::<Peer>()?;
    let mut names = peer.certificate.iter().flat_map(|names| names.iter());
    names.find_map(|name| {
        let (id, token) = known.token_of_certificate(&name.to_string(), now)?;
        Some(Identity::Token(
            id.clone(),
            Arc::clone(token),
            Proof::Certificate,
        ))
    })
}

pub(crate) fn unauthorized() -> Problem {
    Problem::new(
        Code::Unauthorized,
        "send a token as authorization: Bearer <token>",
    )
}

/// The refusal of a token that is none, counted for who has shown it. Two lines of log at the most for each while and
/// address.
fn wrong(app: &App, request: &Request<Body>) -> Problem {
    let caller = request.extensions().get::<Caller>().copied();
    let (count, left) = app.access.wrong.lock().note(caller, app.clock.now());
    let address = caller.as_ref().map(tracing::field::display);
    if count == 1 {
        tracing::warn!(address, "a wrong token was shown");
    }
    if count <= WRONG_MAX {
        return unauthorized();
    }
    if count == WRONG_MAX + 1 {
        tracing::warn!(address, ?left, "many wrong tokens were shown");
    }
    let detail = format!("more than {WRONG_MAX} wrong tokens were shown within a minute");
    Problem::new(Code::Overloaded, detail).retry_in(left)
}

/// Tells the log of a refusal that was counted so: by which token, of which request. After some of an address within a
/// while, one line says that more of them are counted alone.
pub(super) fn tell_refusal(
    (count, left): (u32, Duration),
    caller: Option<Caller>,
    (token, method, path): (Option<&str>, &Method, &str),
) {
    let address = caller.as_ref().map(tracing::field::display);
    if count <= REFUSALS_TOLD {
        let path = &path[..path.floor_char_boundary(PATH_TOLD_BYTES)];
        tracing::warn!(token, %method, path, address, "a request was refused");
    } else if count == REFUSALS_TOLD + 1 {
        tracing::warn!(
            token,
            address,
            ?left,
            "many requests were refused: more of them are counted alone"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::described::operations;
    use crate::resources::token::Before;

    #[test]
    fn each_operation_wants_the_scope_of_what_it_does() {
        for (method, path, scope) in [
            ("GET", "/v1/queues/orders/timers/a", Scope::Read),
            ("GET", "/v1/endpoints/shop", Scope::Read),
            ("GET", "/v1/tokens", Scope::Admin),
            ("GET", "/v1/audit", Scope::Admin),
            ("DELETE", "/v1/tokens/0123456789ab", Scope::Admin),
            ("POST", "/v1/tokens/0123456789ab:rotate", Scope::Admin),
            ("PUT", "/v1/queues/orders/timers/a", Scope::Write),
            ("POST", "/v1/queues/orders/timers", Scope::Write),
            ("POST", "/v1/queues/orders/timers/a:fire", Scope::Write),
            ("POST", "/v1/queues/timers/timers/a:lease", Scope::Write),
            ("POST", "/v1/batch", Scope::Write),
            ("POST", "/v1/jobs", Scope::Write),
            ("POST", "/v1/jobs/7:cancel", Scope::Write),
            ("POST", "/v1/simulate", Scope::Read),
            ("POST", "/v1/queues/orders:lease", Scope::Deliver),
            ("POST", "/v1/leases", Scope::Deliver),
            ("POST", "/v1/leases:ack", Scope::Deliver),
            ("POST", "/v1/queues/orders:pause", Scope::Admin),
            ("POST", "/v1/queues:pause", Scope::Admin),
            ("POST", "/v1/queues/orders:purge", Scope::Admin),
            ("PUT", "/v1/queues/orders", Scope::Admin),
            ("DELETE", "/v1/queues/orders", Scope::Admin),
            ("PUT", "/v1/endpoints/shop", Scope::Admin),
            ("POST", "/v1/endpoints/shop:test", Scope::Admin),
            ("POST", "/v1/snapshots", Scope::Admin),
            ("POST", "/v1/cluster/rebalance", Scope::Admin),
            ("PATCH", "/v1/nowhere", Scope::Admin),
            ("GET", "/metrics", Scope::Metrics),
            ("GET", "/", Scope::Read),
            ("GET", "/timer", Scope::Read),
            ("POST", "/timer/revive", Scope::Write),
        ] {
            let method = method.parse().unwrap();
            assert_eq!(scope_of(&method, path), Some(scope), "{method} {path}");
        }
    }

    /// A queue or a key whose name ends as a verb does opens nothing that the verb opens.
    #[test]
    fn no_name_changes_the_scope_of_an_operation() {
        let verbs = [
            "lease", "pause", "resume", "drain", "purge", "fire", "ack", "timers",
        ];
        let names = verbs
            .iter()
            .flat_map(|verb| [format!("x:{verb}"), (*verb).to_owned()]);
        let names: Vec<String> = names.collect();
        for operation in operations::ALL {
            let method: Method = operation.method.parse().unwrap();
            // A POST to a queue with such a name is a request for the verb.
            if method == Method::POST && operation.path.ends_with('}') {
                continue;
            }
            let path = |name: &str| {
                let parts = ["queue", "key", "name", "id", "token", "node", "shard"];
                let path = operation.path.to_owned();
                let fill = |path: String, part| path.replace(&format!("{{{part}}}"), name);
                parts.into_iter().fold(path, fill)
            };
            for name in &names {
                let scope = scope_of(&method, &path(name));
                assert_eq!(
                    scope,
                    scope_of(&method, &path("orders")),
                    "{method} {}",
                    path(name)
                );
            }
        }
        let put = Method::PUT;
        assert_eq!(
            scope_of(&put, "/v1/queues/billing:lease"),
            Some(Scope::Admin)
        );
    }

    /// What is described and changes something is never open to who may only read.
    #[test]
    fn whoever_may_only_read_changes_nothing() {
        for operation in operations::ALL {
            if operation.method == "GET" || !operation.is_guarded() {
                continue;
            }
            let scope = scope_of(&operation.method.parse().unwrap(), operation.path);
            assert_eq!(
                scope == Some(Scope::Read),
                operation.path == "/v1/simulate",
                "{}",
                operation.path
            );
        }
    }

    #[test]
    fn wrong_tokens_are_counted_for_each_address_and_for_a_while() {
        let start = Instant::from_nanos(7);
        let later = |seconds| start + Duration::from_secs(seconds);
        let caller = |last: u8| Some(Caller::from(std::net::IpAddr::from([192, 0, 2, last])));
        let mut wrong = Counted::default();
        for count in 1..=30 {
            assert_eq!(wrong.note(caller(1), start).0, count);
        }
        assert_eq!(
            wrong.note(caller(2), later(59)),
            (1, Duration::from_secs(1))
        );
        assert_eq!(wrong.note(caller(1), later(60)), (1, WRONG_FOR));
        // However many addresses there are, the memory for them is bounded.
        for address in 0..10_000_u32 {
            let address = std::net::Ipv4Addr::from(address);
            wrong.note(
                Some(Caller::from(std::net::IpAddr::from(address))),
                later(61),
            );
        }
        assert!(wrong.by_caller.len() <= ADDRESSES_MAX + 1);
        // One that guesses is told apart from those, and none of them is refused for another.
        let guesses = (1..=30).map(|_| wrong.note(caller(7), later(62)).0);
        assert!(guesses.eq(1..=30));
        for address in 0..10_000_u32 {
            let address = std::net::Ipv4Addr::from(address | 1 << 31);
            let address = Caller::from(std::net::IpAddr::from(address));
            assert_eq!(wrong.note(Some(address), later(62)).0, 1);
        }
        assert_eq!(wrong.note(caller(7), later(62)).0, 31);
    }

    /// Lines of the log are bounded for all addresses that are not told apart.
    #[test]
    fn refusals_of_addresses_that_are_counted_together_count_for_each_other() {
        let start = Instant::from_nanos(7);
        let caller = |number: usize| {
            let number = u32::try_from(number).unwrap();
            Some(Caller::from(std::net::IpAddr::from(
                std::net::Ipv4Addr::from(number),
            )))
        };
        let mut refused = Counted::default();
        for number in 0..ADDRESSES_MAX {
            for count in 1..=2 {
                let counted = refused.count(caller(number), start);
                assert_eq!(counted, (true, count, WRONG_FOR));
            }
        }
        for count in 1..=REFUSALS_TOLD + 2 {
            let another = ADDRESSES_MAX + count as usize;
            let counted = refused.count(caller(another), start);
            assert_eq!(counted, (false, count, WRONG_FOR));
        }
        // A wrong token of one of them refuses none of the others.
        assert_eq!(refused.note(caller(ADDRESSES_MAX), start), (1, WRONG_FOR));
    }

    #[test]
    fn a_token_that_ends_within_seven_days_says_so_and_so_does_a_secret_rotated_away() {
        let now = Timestamp::from_micros(1_772_366_400_000_000);
        let after = |days: u64| Timestamp::from_micros(now.as_micros() + days * 86_400_000_000);
        let ends = |expires: Option<u64>, until: Option<u64>, hash: &str| {
            let token = StoredToken {
                name: "ops".to_owned(),
                hash: "new".to_owned(),
                before: until.map(|days| Before {
                    hash: "old".to_owned(),
                    until: after(days),
                }),
                certificate: None,
                namespace: None,
                scopes: vec![Scope::Read],
                created: now,
                expires: expires.map(after),
            };
            let id = TokenId::new("0123456789ab").unwrap();
            let asks = Identity::Token(id, Arc::new(token), Proof::Secret(hash.into()));
            asks.ends_soon(now)
        };
        assert_eq!(ends(None, None, "new"), None);
        assert_eq!(ends(Some(8), None, "new"), None);
        assert_eq!(ends(Some(7), None, "new"), Some(after(7)));
        assert_eq!(ends(Some(7), Some(2), "new"), Some(after(7)));
        assert_eq!(ends(Some(7), Some(2), "old"), Some(after(2)));
        assert_eq!(ends(None, Some(2), "old"), Some(after(2)));
        assert_eq!(Identity::Configured.ends_soon(now), None);
    }
}
