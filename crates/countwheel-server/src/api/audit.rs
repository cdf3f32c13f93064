//! The audit log: who asks for what is noted with the request, and `/v1/audit` reads it.
//!
//! Whoever asks is known to the task that answers. So the one place that hands requests to the scheduler adds the note,
//! and no handler can forget it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, StatusCode, Uri};
use axum::response::Response;
use countwheel_durable::store::Cursor;
use countwheel_durable::{
    AuditEntry, AuditFilter, Changed, Note, QueueName, Request as Asked, SettingName,
    SettingPrecondition, Settings, SettingsVersion, Stood, TimerError, Timers,
};
use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::access::{self, Identity};
use super::described::operations::{self, Operation as Described};
use super::problem::Problem;
use super::reading::Pages;
use super::request::Query;
use super::timers::{cursor, read_cursor};
use super::{App, answer};
use crate::callers::{Caller, Peer, Source};
use crate::dashboard::login::Viewer;
use crate::time::{format_time, parse_time};

/// How long an entry is kept, unless said otherwise.
pub(crate) const KEEP: Duration = Duration::from_secs(90 * 86_400);
/// One page of a filtered list looks at so many entries.
pub(crate) const LOOKED_AT_MAX: usize = 10_000;
/// How many entries one read of the store takes for that.
const PIECE: usize = 1_000;
/// A value of a setting is shown up to this length, as JSON.
const VALUE_MAX_BYTES: usize = 256;
/// What the forms of pages do that is no operation of the API.
const OF_PAGES: [(&str, &str); 3] = [
    ("/login", "logIn"),
    ("/logout", "logOut"),
    (access::END_SESSIONS, "endSessions"),
];
/// What the settings of operations begin with.
const OPERATION: &str = "operation/";
/// So many names of a certificate are noted, each up to this length.
const NAMES_MAX: usize = 3;
const NAME_MAX_BYTES: usize = 256;

/// What is noted, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Audit {
    /// How long an entry is kept; zero for no log.
    keep: Duration,
    /// Whether each set, move and removal of a timer is noted.
    timers: bool,
}

impl Default for Audit {
    fn default() -> Self {
        Self::new(KEEP, false)
    }
}

impl Audit {
    /// Keeps entries for so long; zero writes none. `timers` is whether single sets, moves and removals have entries.
    pub(crate) const fn new(keep: Duration, timers: bool) -> Self {
        Self { keep, timers }
    }

    fn is_on(self) -> bool {
        !self.keep.is_zero()
    }

    /// The note of what the service does by itself.
    pub(crate) fn by_service(self, why: &str) -> Option<Note> {
        let form = Form {
            who: Who::plain("service"),
            details: Some(json!({ "reason": why })),
            ..Form::default()
        };
        self.written(form)
    }

    /// The note of who has a data directory that no service has open, and changes a setting in it.
    pub(crate) fn by_directory(self, name: &SettingName, after: &[u8]) -> Option<Note> {
        let user = rustix::process::geteuid();
        let form = Form {
            who: Who::plain("directory"),
            from: Some(Source::User(user.as_raw()).to_string()),
            operation: Some(operations::CREATE_TOKEN.id.into()),
            fields: changes(name, None, Some(after)),
            ..Form::default()
        };
        self.written(form)
    }

    /// The note, without what does not fit into one.
    fn written(self, mut form: Form) -> Option<Note> {
        if !self.is_on() {
            return None;
        }
        let is_long = |form: &Form| form.bytes().len() > Note::MAX_BYTES;
        if is_long(&form) {
            form.fields.iter_mut().for_each(Field::forget_values);
        }
        if is_long(&form) {
            form.details = Some(json!({ "too_long": true }));
        }
        if is_long(&form) {
            form.fields.clear();
        }
        Note::new(form.bytes(), self.keep).ok()
    }
}

/// Who asks, as the note of an entry has it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Who {
    pub(super) kind: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Whether it is somebody at the pages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) session: bool,
}

impl Who {
    fn plain(kind: &'static str) -> Self {
        Self {
            kind: kind.into(),
            ..Self::default()
        }
    }

    /// Who asks, by a session of the pages or without one.
    pub(super) fn of(identity: &Identity, session: bool) -> Self {
        let who = match identity {
            Identity::Anyone | Identity::Nobody => Self::plain("anyone"),
            Identity::Configured => Self::plain("configured"),
            Identity::Token(id, token, _) => Self {
                id: Some(id.as_str().to_owned()),
                name: Some(token.name.clone()),
                ..Self::plain("token")
            },
        };
        Self { session, ..who }
    }

    fn is(&self, wanted: &str) -> bool {
        let names = [&self.id, &self.name].into_iter().flatten();
        self.kind == wanted || names.into_iter().any(|name| name == wanted)
    }
}

/// A field of a setting that is another than before. A value that is no secret and short is shown.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Field {
    field: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
}

impl Field {
    fn forget_values(&mut self) {
        (self.before, self.after) = (None, None);
    }
}

/// The bytes of a note, as JSON.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Form {
    who: Who,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<Cow<'static, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<Cow<'static, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
}

impl Form {
    fn bytes(&self) -> Vec<u8> {
        // Texts, numbers and truths can always be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A request that may change something, for as long as it is answered.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    identity: Identity,
    caller: Option<Caller>,
    peer: Option<Peer>,
    method: Method,
    uri: Uri,
    id: String,
    /// Whether it is of a page, by a session.
    is_of_session: bool,
}

tokio::task_local! {
    static ASKING: Arc<Asking>;
}

impl Asking {
    /// Who asks with this request; `None` for one that changes nothing, whoever asks.
    pub(super) fn of(request: &Request<Body>, id: &str) -> Option<Arc<Self>> {
        if matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS
        ) {
            return None;
        }
        let extensions = request.extensions();
        Some(Arc::new(Self {
            identity: extensions.get::<Identity>()?.clone(),
            caller: extensions.get::<Caller>().copied(),
            peer: extensions.get::<Peer>().cloned(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            id: id.to_owned(),
            is_of_session: extensions.get::<Viewer>().is_some_and(Viewer::has_session),
        }))
    }

    /// Answers as who asks.
    pub(super) async fn within<F: Future>(asking: Option<Arc<Self>>, answering: F) -> F::Output {
        match asking {
            Some(asking) => ASKING.scope(asking, answering).await,
            None => answering.await,
        }
    }

    /// Who asks now.
    pub(super) fn current() -> Option<Arc<Self>> {
        ASKING.try_with(Arc::clone).ok()
    }

    /// What the table of operations calls it.
    fn operation(&self) -> Option<&'static str> {
        let path = self.uri.path();
        let of_page = OF_PAGES.iter().find(|(page, _)| *page == path);
        let of_page = of_page.map(|(_, operation)| *operation);
        of_page.or_else(|| operation(&self.method, path).map(|it| it.id))
    }

    /// Whether this is what people do and services do not: by a page, or a timer that is sent again.
    fn is_by_person(&self) -> bool {
        let path = self.uri.path();
        let sends_again = path.ends_with(":resend") || path.ends_with(":backfill");
        self.is_of_session || self.method == Method::POST && sends_again
    }

    fn form(&self) -> Form {
        Form {
            who: Who::of(&self.identity, self.is_of_session),
            from: self.caller.map(|caller| caller.to_string()),
            certificate: self.peer.as_ref().and_then(certificate),
            operation: self.operation().map(Cow::Borrowed),
            request: Some(self.id.clone()),
            ..Form::default()
        }
    }
}

/// Answers as whoever has shown a token in what was asked for.
pub(crate) async fn as_login_of<F: Future>(asks: &Identity, answering: F) -> F::Output {
    let asking = Asking::current().map(|asking| {
        Arc::new(Asking {
            identity: asks.clone(),
            ..Asking::clone(&asking)
        })
    });
    Asking::within(asking, answering).await
}

/// Goes on as who asks now, in a task of its own.
pub(crate) fn still_asked<F: Future>(answering: F) -> impl Future<Output = F::Output> {
    Asking::within(Asking::current(), answering)
}

/// The operation of the table that a request asks for. A page that revives a timer does what that operation does.
pub(super) fn operation(method: &Method, path: &str) -> Option<&'static Described> {
    if path == access::REVIVE {
        return Some(&operations::REVIVE);
    }
    let method = match method.as_str() {
        "HEAD" => "GET",
        method => method,
    };
    let of_method = operations::ALL.iter().filter(|it| it.method == method);
    // A path with a verb is one without a verb as well, of which the name is longer.
    let fitting = of_method.filter(|it| fits(it.path, path));
    fitting.min_by_key(|it| !it.path.contains("}:")).copied()
}

/// The names of the certificate that a caller has shown, as far as a note has them.
pub(super) fn certificate(peer: &Peer) -> Option<String> {
    let names = peer.certificate.as_ref()?;
    let names = names.iter().take(NAMES_MAX).map(|name| {
        let mut name = name.to_string();
        name.truncate(name.floor_char_boundary(NAME_MAX_BYTES));
        name
    });
    Some(names.collect::<Vec<_>>().join(" "))
}

/// Whether a path is one of a template of the table of operations.
fn fits(template: &str, path: &str) -> bool {
    let (mut wanted, mut found) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) => {
                let is_same = match wanted.split_once('}') {
                    None => wanted == found,
                    Some((_, verb)) => found.len() > verb.len() && found.ends_with(verb),
                };
                if !is_same {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

/// What a request does to a timer, and the queue if that is noted only where it is asked for.
fn action(request: &Asked) -> Option<(&'static str, Option<&QueueName>)> {
    match request.plain() {
        Asked::Set { name, .. } => Some(("set", Some(&name.queue))),
        Asked::Move { name, .. } => Some(("move", Some(&name.queue))),
        Asked::Remove { name, .. } => Some(("remove", Some(&name.queue))),
        Asked::Fire { .. } => Some(("fire", None)),
        Asked::Revive { .. } => Some(("revive", None)),
        _ => None,
    }
}

impl App {
    /// The same API with this log.
    #[must_use]
    pub(crate) fn with_audit(mut self, audit: Audit) -> Self {
        self.audit = audit;
        self
    }

    /// The request about a timer, with a note if it is one that is noted.
    pub(super) fn noted(&self, request: Asked) -> Asked {
        if !self.audit.is_on() || matches!(request, Asked::Noted { .. }) {
            return request;
        }
        let Some((action, queue)) = action(&request) else {
            return request;
        };
        let Some(asking) = Asking::current() else {
            return request;
        };
        let is_wanted = queue.is_none_or(|queue| {
            let known = self.catalogue().known();
            let of_namespace = known.namespace(queue.namespace());
            let stored = of_namespace.and_then(|entry| entry.what.as_deref());
            self.audit.timers || stored.is_some_and(|it| it.audit_timers) || asking.is_by_person()
        });
        if !is_wanted {
            return request;
        }
        let form = Form {
            action: Some(action.into()),
            ..asking.form()
        };
        match self.audit.written(form) {
            Some(note) => request.noted(note),
            None => request,
        }
    }

    /// The note of a change that is about more than a timer, with what is to be known of it.
    pub(super) fn note(&self, details: Value) -> Option<Note> {
        let details = Some(details).filter(|details| !details.is_null());
        self.note_with(Vec::new(), details)
    }

    fn note_with(&self, fields: Vec<Field>, details: Option<Value>) -> Option<Note> {
        let form = Form {
            fields,
            details,
            ..Asking::current()?.form()
        };
        self.audit.written(form)
    }

    /// The note of a change of a setting of which this version is there now: with the fields that change.
    pub(super) async fn note_of_setting(
        &self,
        name: &SettingName,
        current: Option<SettingsVersion>,
        after: Option<&[u8]>,
    ) -> Option<Note> {
        if !self.audit.is_on() {
            return None;
        }
        let before = match current {
            None => None,
            Some(version) => {
                let name = name.clone();
                let read = move |timers: &Timers| {
                    let value_in = |settings: &Settings| {
                        let found = settings.get(&name).filter(|it| it.version == version);
                        found.map(|it| it.value.clone())
                    };
                    if let Some(value) = value_in(&timers.settings()) {
                        return Ok(Some(value));
                    }
                    // The owners of this node may have seen less than is known of the store.
                    let stored = timers.stored_settings(SettingsVersion::default());
                    let stored = stored.map_err(|error| Problem::from(&error))?;
                    Ok(stored.as_ref().and_then(value_in))
                };
                self.read(read).await.ok()?
            }
        };
        // The request is refused if that is not what is there.
        let is_known = current.is_none() || before.is_some();
        let fields = if is_known {
            changes(name, before.as_deref(), after)
        } else {
            Vec::new()
        };
        self.note_with(fields, None)
    }
}

/// The entry of an operation that changes no timer and no queue, endpoint or token: a snapshot, a drain of a node, a move of a
/// shard or of all timers. Its setting names the operation and the request that was the last to ask for it, so that the
/// entry is in a commit as every other one is.
#[derive(Debug)]
#[must_use = "the entry is not there yet"]
pub(crate) struct Operation(Option<Asked>);

impl Operation {
    /// Writes the entry, before what it is about begins. A disk without room has no entry and refuses no operation for that:
    /// a snapshot may be what helps. Blocks.
    ///
    /// # Errors
    /// Those of a change of a setting.
    pub(crate) fn begins(self, timers: &Timers) -> Result<(), TimerError> {
        let Some(request) = self.0 else {
            return Ok(());
        };
        match timers.call(request) {
            Err(error @ TimerError::StorageFull) => {
                tracing::warn!(%error, "an operation begins without an entry of the audit log");
                Ok(())
            }
            answer => answer.map(drop),
        }
    }
}

impl App {
    /// The entry of the operation that is asked for, with what is to be known of it.
    pub(super) fn operation(&self, details: Value) -> Operation {
        Operation(self.operation_of(details))
    }

    fn operation_of(&self, details: Value) -> Option<Asked> {
        let note = self.note(details)?;
        let asking = Asking::current()?;
        let name = SettingName::new(format!("{OPERATION}{}", asking.operation()?)).ok()?;
        let value = json!({ "format": 1, "request": asking.id });
        let request = Asked::Configure {
            name,
            value: Some(value.to_string().into_bytes()),
            precondition: SettingPrecondition::None,
        };
        Some(request.noted(note))
    }
}

/// The fields of endpoints whose values say nothing that is secret.
const OF_ENDPOINTS: [&str; 11] = [
    "timeout",
    "retry",
    "concurrency",
    "rate",
    "disabled",
    "auto_disable",
    "breaker",
    "statuses",
    "allow",
    "http",
    "ca",
];
/// And those of tokens.
const OF_TOKENS: [&str; 5] = ["name", "scopes", "certificate", "created", "expires"];

/// Which fields of a setting change, and from what to what where that is no secret.
fn changes(name: &SettingName, before: Option<&[u8]>, after: Option<&[u8]>) -> Vec<Field> {
    let object = |value: Option<&[u8]>| -> Map<String, Value> {
        let value = value.and_then(|value| serde_json::from_slice(value).ok());
        value.unwrap_or_default()
    };
    let (before, after) = (object(before), object(after));
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let kind = name.as_str().split('/').next().unwrap_or_default();
    let changed = names.into_iter().filter(|name| *name != "format");
    let changed = changed.filter_map(|field| {
        let [before, after] = [&before, &after].map(|of| of.get(field).filter(|it| !is_empty(it)));
        (before != after).then(|| Field {
            field: shown_name(kind, field).to_owned(),
            before: before.and_then(|value| shown(kind, field, value)),
            after: after.and_then(|value| shown(kind, field, value)),
        })
    });
    changed.collect()
}

/// Whether a field with this value is one that nobody has set.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// What the API calls a field.
fn shown_name<'a>(kind: &str, field: &'a str) -> &'a str {
    match (kind, field) {
        ("token", "hash") => "secret",
        ("token", "before") => "before_until",
        _ => field,
    }
}

/// The value of a field, if it is short and no secret.
fn shown(kind: &str, field: &str, value: &Value) -> Option<Value> {
    let value = match (kind, field) {
        ("queue" | "namespace", _) => value.clone(),
        ("endpoint", "url") => origin(value.as_str()?)?.into(),
        ("endpoint", field) if OF_ENDPOINTS.contains(&field) => value.clone(),
        ("token", "before") => value.get("until")?.clone(),
        ("token", field) if OF_TOKENS.contains(&field) => value.clone(),
        _ => return None,
    };
    (value.to_string().len() <= VALUE_MAX_BYTES).then_some(value)
}

/// The scheme, the host and the port of a URL: its user, its path and its query may be secrets.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?;
    let port = uri.port_u16().map(|port| format!(":{port}"));
    let port = port.unwrap_or_default();
    Some(format!("{}://{host}{port}", uri.scheme_str()?))
}

/// One entry, as it is answered.
#[derive(Serialize)]
struct EntryBody {
    id: String,
    at: String,
    kept_until: String,
    who: Who,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    setting: Option<String>,
    before: Option<StoodBody>,
    after: Option<StoodBody>,
    fields: Vec<Field>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
}

/// How a timer or a setting stood.
#[derive(Serialize, Default)]
struct StoodBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
}

impl StoodBody {
    fn of(stood: Stood) -> Option<Self> {
        match stood {
            Stood::Nothing => None,
            Stood::Unreadable => Some(Self {
                state: Some("unreadable"),
                ..Self::default()
            }),
            Stood::There {
                state,
                due,
                revision,
                attempts,
            } => Some(Self {
                state: Some(state.as_str()),
                due: Some(format_time(due)),
                revision: Some(revision.0),
                attempts: Some(attempts),
            }),
        }
    }

    fn of_setting(version: Option<SettingsVersion>) -> Option<Self> {
        let revision = Some(version?.0);
        Some(Self {
            revision,
            ..Self::default()
        })
    }
}

impl EntryBody {
    /// The entry with its note; `None` if this version cannot read the note.
    fn of(place: Cursor, entry: AuditEntry) -> Option<Self> {
        let form: Form = serde_json::from_slice(&entry.note).ok()?;
        let (queue, key, setting, before, after) = match entry.changed {
            Changed::Timer {
                name,
                before,
                after,
            } => {
                let (queue, key) = (name.queue.to_string(), name.key.as_str().to_owned());
                let [before, after] = [before, after].map(StoodBody::of);
                (Some(queue), Some(key), None, before, after)
            }
            Changed::Setting {
                name,
                before,
                after,
            } => {
                let [before, after] = [before, after].map(StoodBody::of_setting);
                (None, None, Some(name.to_string()), before, after)
            }
        };
        Some(Self {
            id: cursor(place),
            at: format_time(entry.at),
            kept_until: format_time(entry.keep_until),
            who: form.who,
            from: form.from,
            certificate: form.certificate,
            operation: form.operation,
            request: form.request,
            action: form.action,
            queue,
            key,
            setting,
            before,
            after,
            fields: form.fields,
            details: form.details,
        })
    }
}

/// What a reader of the log wants.
struct Wanted {
    filter: AuditFilter,
    who: Option<String>,
    operation: Option<String>,
}

impl Wanted {
    fn is_filtered(&self) -> bool {
        self.who.is_some() || self.operation.is_some()
    }

    fn has(&self, entry: &EntryBody) -> bool {
        let operation = self.operation.as_deref();
        self.who.as_deref().is_none_or(|who| entry.who.is(who))
            && operation.is_none_or(|it| entry.operation.as_deref() == Some(it))
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Answer {
        items: Vec<EntryBody>,
        next: Option<String>,
        #[serde(skip_serializing_if = "is_zero")]
        unreadable: usize,
    }
    let query = Query::of(&uri, &operations::LIST_AUDIT.query_names())?;
    let time = |name| query.read(name, "a time such as 2026-03-01T12:00:00Z", parse_time);
    let (since, until): (Option<Timestamp>, Option<Timestamp>) = (time("since")?, time("until")?);
    let limit = query.read("limit", "a whole number from 1 to 1000", |text| {
        let limit = text.parse().ok()?;
        (1..=1_000).contains(&limit).then_some(limit)
    })?;
    let order = query.read("order", "\"newest\" or \"oldest\"", |text| match text {
        "newest" => Some(true),
        "oldest" => Some(false),
        _ => None,
    })?;
    let wanted = Wanted {
        filter: AuditFilter {
            since,
            until,
            newest_first: order.unwrap_or(true),
            limit: limit.unwrap_or(100),
        },
        who: query.get("who").map(str::to_owned),
        operation: query.get("operation").map(str::to_owned),
    };
    let canonical = format!(
        "audit {since:?} {until:?} {} {:?} {:?}",
        wanted.filter.newest_first, wanted.who, wanted.operation
    );
    let pages = Pages::of(&uri, &canonical);
    let mut after = pages.after(&query, read_cursor)?;
    let (found, next, unreadable) = app
        .read(move |timers| {
            let limit = wanted.filter.limit;
            let piece = if wanted.is_filtered() { PIECE } else { limit };
            let (mut found, mut looked_at, mut unreadable) = (Vec::new(), 0, 0);
            loop {
                let filter = AuditFilter {
                    limit: piece,
                    ..wanted.filter.clone()
                };
                let page = timers.audit(&filter, after);
                let page = page.map_err(|error| Problem::from(&error))?;
                looked_at += page.entries.len();
                unreadable += page.unreadable;
                for (place, entry) in page.entries {
                    if found.len() >= limit {
                        return Ok((found, after, unreadable));
                    }
                    after = Some(place);
                    match EntryBody::of(place, entry) {
                        Some(entry) if wanted.has(&entry) => found.push(entry),
                        Some(_) => {}
                        None => unreadable += 1,
                    }
                }
                let is_over = found.len() >= limit || looked_at >= LOOKED_AT_MAX;
                match page.next {
                    None => return Ok((found, None, unreadable)),
                    next if is_over || !wanted.is_filtered() => {
                        return Ok((found, next, unreadable));
                    }
                    next => after = next,
                }
            }
        })
        .await?;
    let next = next.map(|next| pages.cursor(&cursor(next)));
    let body = Answer {
        items: found,
        next: next.clone(),
        unreadable,
    };
    Ok(pages.linked(answer(StatusCode::OK, &body), next.as_deref()))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
