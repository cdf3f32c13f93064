//! Refusals: every answer that is not a success, in the form of RFC 9457.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::store::StoreError;
use countwheel_durable::{
    NameError, RecurrenceError, Revision, SettingError, SettingsVersion, StateKind, TimerError,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::timers::LEASED;
use crate::quotas::Quota;

/// When to ask again once the disk was full: by then the store has looked again.
const FULL_RETRY_SECONDS: &str = "5";

/// Why a request was refused. Nothing was changed, unless the code is `unavailable` and
/// the detail says that the outcome is not known.
#[derive(Debug)]
pub(crate) struct Problem {
    code: Code,
    detail: String,
    pointer: Option<String>,
    state: Option<&'static str>,
    revision: Option<Revision>,
    purge: Option<Box<Value>>,
    ceiling: Option<Box<Value>>,
    /// Of a lease that was asked about: of which timer, and who has it.
    lease: Option<Box<Map<String, Value>>>,
    item: Option<u16>,
    /// The quota that forbids the request.
    quota: Option<Quota>,
    /// When to ask again, in seconds, where that is not as for every refusal with the code.
    retry_in: Option<u32>,
}

/// What is wrong, as the API's table of errors names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Malformed,
    InvalidKey,
    InvalidQueue,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Timeout,
    Conflict,
    Draining,
    Purging,
    Gone,
    RevisionMismatch,
    Exists,
    TooLarge,
    UriTooLong,
    HeadTooLarge,
    NotImplemented,
    UnsupportedMediaType,
    ExpectationFailed,
    Unschedulable,
    InvalidRetry,
    InvalidTarget,
    BatchSpansShards,
    Overloaded,
    Internal,
    Unreadable,
    Unavailable,
    StoreUnavailable,
    ShardUnavailable,
    Unknown,
    StorageFull,
    NoCluster,
    UnknownNode,
    NodeDraining,
    LastNode,
    InvalidEndpoint,
    InvalidSetting,
    AboveCeiling,
    InUse,
    NotEmpty,
    SecretKeyRequired,
    LeaseLost,
    PlacementFixed,
    PushQueue,
    PullQueue,
    IdempotencyMismatch,
    IdempotencyInProgress,
    TooManyJobs,
    TooBroad,
    QuotaExceeded,
    OverRate,
}

impl Code {
    /// Every one of them.
    pub(crate) const ALL: [Self; 52] = [
        Self::IdempotencyInProgress,
        Self::IdempotencyMismatch,
        Self::Malformed,
        Self::LeaseLost,
        Self::PlacementFixed,
        Self::PushQueue,
        Self::PullQueue,
        Self::InvalidKey,
        Self::InvalidQueue,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Timeout,
        Self::Conflict,
        Self::Draining,
        Self::Purging,
        Self::Gone,
        Self::RevisionMismatch,
        Self::Exists,
        Self::TooLarge,
        Self::UriTooLong,
        Self::HeadTooLarge,
        Self::NotImplemented,
        Self::UnsupportedMediaType,
        Self::ExpectationFailed,
        Self::Unschedulable,
        Self::InvalidRetry,
        Self::InvalidTarget,
        Self::BatchSpansShards,
        Self::Overloaded,
        Self::Internal,
        Self::Unreadable,
        Self::Unavailable,
        Self::StoreUnavailable,
        Self::ShardUnavailable,
        Self::Unknown,
        Self::StorageFull,
        Self::NoCluster,
        Self::UnknownNode,
        Self::NodeDraining,
        Self::LastNode,
        Self::InvalidEndpoint,
        Self::InvalidSetting,
        Self::AboveCeiling,
        Self::InUse,
        Self::NotEmpty,
        Self::SecretKeyRequired,
        Self::TooManyJobs,
        Self::TooBroad,
        Self::QuotaExceeded,
        Self::OverRate,
    ];

    /// The code, for programs.
    pub(crate) const fn name(self) -> &'static str {
        self.parts().0
    }

    /// The status of answers with it.
    pub(crate) fn status(self) -> u16 {
        self.parts().1.as_u16()
    }

    /// The code in words.
    pub(crate) const fn title(self) -> &'static str {
        self.parts().2
    }

    /// When to ask again, in seconds.
    pub(crate) const fn retry_after(self) -> Option<&'static str> {
        match self {
            Self::Overloaded
            | Self::OverRate
            | Self::StoreUnavailable
            | Self::ShardUnavailable
            | Self::IdempotencyInProgress => Some("1"),
            Self::StorageFull => Some(FULL_RETRY_SECONDS),
            _ => None,
        }
    }

    /// The code's name, its status and its title.
    const fn parts(self) -> (&'static str, StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::Malformed => ("malformed", S::BAD_REQUEST, "Malformed request"),
            Self::InvalidKey => ("invalid_key", S::BAD_REQUEST, "Invalid key"),
            Self::InvalidQueue => ("invalid_queue", S::BAD_REQUEST, "Invalid queue"),
            Self::Unauthorized => ("unauthorized", S::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden => ("forbidden", S::FORBIDDEN, "Forbidden"),
            Self::NotFound => ("not_found", S::NOT_FOUND, "Not found"),
            Self::MethodNotAllowed => (
                "method_not_allowed",
                S::METHOD_NOT_ALLOWED,
                "Method not allowed",
            ),
            Self::Timeout => ("timeout", S::REQUEST_TIMEOUT, "Request timed out"),
            Self::Conflict => ("conflict", S::CONFLICT, "Conflict"),
            Self::Draining => ("draining", S::CONFLICT, "Queue is drained"),
            Self::Purging => ("purging", S::CONFLICT, "Queue is being purged"),
            Self::Gone => ("gone", S::GONE, "Gone"),
            Self::RevisionMismatch => (
                "revision_mismatch",
                S::PRECONDITION_FAILED,
                "Another revision",
            ),
            Self::Exists => ("exists", S::PRECONDITION_FAILED, "Exists"),
            Self::TooLarge => ("too_large", S::PAYLOAD_TOO_LARGE, "Too large"),
            Self::UriTooLong => ("uri_too_long", S::URI_TOO_LONG, "URI too long"),
            Self::HeadTooLarge => (
                "head_too_large",
                S::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "Head too large",
            ),
            Self::NotImplemented => ("not_implemented", S::NOT_IMPLEMENTED, "Not implemented"),
            Self::UnsupportedMediaType => (
                "unsupported_media_type",
                S::UNSUPPORTED_MEDIA_TYPE,
                "Unsupported media type",
            ),
            Self::ExpectationFailed => (
                "expectation_failed",
                S::EXPECTATION_FAILED,
                "Expectation failed",
            ),
            Self::Unschedulable => ("unschedulable", S::UNPROCESSABLE_ENTITY, "Unschedulable"),
            Self::InvalidRetry => (
                "invalid_retry",
                S::UNPROCESSABLE_ENTITY,
                "Invalid retry policy",
            ),
            Self::InvalidTarget => ("invalid_target", S::UNPROCESSABLE_ENTITY, "Invalid target"),
            Self::BatchSpansShards => (
                "batch_spans_shards",
                S::UNPROCESSABLE_ENTITY,
                "Batch spans shards",
            ),
            Self::Overloaded => ("overloaded", S::TOO_MANY_REQUESTS, "Overloaded"),
            Self::Internal => ("internal", S::INTERNAL_SERVER_ERROR, "Internal error"),
            Self::Unreadable => ("unreadable", S::INTERNAL_SERVER_ERROR, "Unreadable timer"),
            Self::Unavailable => ("unavailable", S::SERVICE_UNAVAILABLE, "Unavailable"),
            Self::StoreUnavailable => (
                "store_unavailable",
                S::SERVICE_UNAVAILABLE,
                "Store unavailable",
            ),
            Self::ShardUnavailable => (
                "shard_unavailable",
                S::SERVICE_UNAVAILABLE,
                "Shard unavailable",
            ),
            Self::Unknown => ("unknown", S::SERVICE_UNAVAILABLE, "Outcome unknown"),
            Self::StorageFull => ("storage_full", S::INSUFFICIENT_STORAGE, "Storage full"),
            Self::NoCluster => ("no_cluster", S::NOT_FOUND, "No cluster"),
            Self::UnknownNode => ("unknown_node", S::NOT_FOUND, "Unknown node"),
            Self::NodeDraining => ("node_draining", S::CONFLICT, "Node is drained"),
            Self::LastNode => ("last_node", S::CONFLICT, "Last node"),
            Self::InvalidEndpoint => ("invalid_endpoint", S::BAD_REQUEST, "Invalid endpoint"),
            Self::InvalidSetting => (
                "invalid_setting",
                S::UNPROCESSABLE_ENTITY,
                "Invalid setting",
            ),
            Self::AboveCeiling => (
                "above_ceiling",
                S::UNPROCESSABLE_ENTITY,
                "Above the ceiling of the service",
            ),
            Self::InUse => ("in_use", S::CONFLICT, "In use"),
            Self::NotEmpty => ("not_empty", S::CONFLICT, "Queue is not empty"),
            Self::SecretKeyRequired => (
                "secret_key_required",
                S::UNPROCESSABLE_ENTITY,
                "No key for secrets",
            ),
            Self::LeaseLost => ("lease_lost", S::CONFLICT, "Lease lost"),
            Self::PlacementFixed => ("placement_fixed", S::CONFLICT, "Placement is fixed"),
            Self::PushQueue => ("push_queue", S::CONFLICT, "Queue is pushed"),
            Self::PullQueue => ("pull_queue", S::UNPROCESSABLE_ENTITY, "Queue is pulled"),
            Self::IdempotencyMismatch => (
                "idempotency_mismatch",
                S::UNPROCESSABLE_ENTITY,
                "Another request had this idempotency key",
            ),
            Self::IdempotencyInProgress => (
                "idempotency_in_progress",
                S::CONFLICT,
                "A request with this idempotency key is under way",
            ),
            Self::TooManyJobs => ("too_many_jobs", S::CONFLICT, "Too many jobs"),
            Self::TooBroad => ("too_broad", S::UNPROCESSABLE_ENTITY, "Too broad"),
            Self::QuotaExceeded => ("quota_exceeded", S::INSUFFICIENT_STORAGE, "Quota exceeded"),
            Self::OverRate => ("over_rate", S::TOO_MANY_REQUESTS, "Over the rate"),
        }
    }
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            pointer: None,
            state: None,
            revision: None,
            purge: None,
            ceiling: None,
            lease: None,
            item: None,
            quota: None,
            retry_in: None,
        }
    }

    /// The same with when to ask again, in whole seconds.
    pub(crate) fn retry_in(mut self, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        self.retry_in = u32::try_from(seconds).ok();
        self
    }

    /// The same with the operation of a batch that it is about, counted from 0.
    pub(crate) fn of_item(mut self, item: usize) -> Self {
        self.item = u16::try_from(item).ok();
        self
    }

    /// What a line of a batch says of it.
    pub(crate) fn line(&self) -> LineBody<'_> {
        let (code, _, _) = self.code.parts();
        LineBody {
            code,
            detail: &self.detail,
            state: self.state,
            revision: self.revision,
            ceiling: self.ceiling.as_deref(),
            quota: self.quota.map(Quota::name),
            errors: self.errors(),
            lease: self.lease.as_deref(),
        }
    }

    fn errors(&self) -> Option<[FieldError<'_>; 1]> {
        let pointer = self.pointer.as_deref()?;
        let detail = &self.detail;
        Some([FieldError { pointer, detail }])
    }

    /// The same with the quota that forbids the request.
    pub(crate) fn with_quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// The same with the ceiling that forbids the request.
    pub(crate) fn with_ceiling(mut self, ceiling: impl Into<Value>) -> Self {
        self.ceiling = Some(Box::new(ceiling.into()));
        self
    }

    /// The same with the state of the timer, which forbids the request.
    pub(crate) fn in_state(mut self, state: StateKind) -> Self {
        self.state = Some(state.as_str());
        self
    }

    /// The same of a timer that a worker has.
    pub(crate) fn of_leased(mut self) -> Self {
        self.state = Some(LEASED);
        self
    }

    /// The same with the lease that it is about.
    pub(crate) fn with_lease(mut self, lease: Map<String, Value>) -> Self {
        self.lease = Some(Box::new(lease));
        self
    }

    /// The state of the timer, if that forbids the request.
    pub(crate) fn state(&self) -> Option<&'static str> {
        self.state
    }

    /// The same with the purge that forbids the request.
    pub(crate) fn with_purge(mut self, purge: Value) -> Self {
        self.purge = Some(Box::new(purge));
        self
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Code::Malformed, detail)
    }

    /// When to ask again, as `Retry-After` says it.
    pub(crate) fn retry_after(&self) -> Option<HeaderValue> {
        match self.retry_in {
            Some(seconds) => Some(HeaderValue::from(seconds)),
            None => self.code.retry_after().map(HeaderValue::from_static),
        }
    }

    /// The code, for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code.parts().0
    }

    /// The status, the title and what is wrong, for people.
    pub(crate) fn parts(&self) -> (StatusCode, &'static str, &str) {
        let (_, status, title) = self.code.parts();
        (status, title, &self.detail)
    }

    /// The field that is at fault, as a JSON pointer.
    pub(crate) fn pointer(&self) -> Option<&str> {
        self.pointer.as_deref()
    }

    /// Names the field of the body that is at fault, as a JSON pointer.
    pub(crate) fn at(mut self, pointer: impl Into<String>) -> Self {
        self.pointer = Some(pointer.into());
        self
    }
}

/// What is wrong, as a line of a batch says it.
#[derive(Serialize)]
pub(crate) struct LineBody<'a> {
    code: &'a str,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<Revision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceiling: Option<&'a Value>,
    /// The name of the quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<[FieldError<'a>; 1]>,
    #[serde(flatten)]
    lease: Option<&'a Map<String, Value>>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(flatten)]
    line: LineBody<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purge: Option<&'a Value>,
    /// Of an atomic batch, the operation that is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<u16>,
}

#[derive(Serialize)]
struct FieldError<'a> {
    pointer: &'a str,
    detail: &'a str,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (code, status, title) = self.code.parts();
        let body = Body {
            r#type: format!("/problems/{code}"),
            title,
            status: status.as_u16(),
            line: self.line(),
            purge: self.purge.as_deref(),
            item: self.item,
        };
        let mut response = super::answer(status, &body);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds);
        }
        if self.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<TimerError> for Problem {
    fn from(error: TimerError) -> Self {
        let code = match &error {
            TimerError::NotFound => Code::NotFound,
            TimerError::Gone { .. } => {
                return Self {
                    state: Some(StateKind::Done.as_str()),
                    ..Self::new(Code::Gone, "the timer is done")
                };
            }
            TimerError::LeaseLost { state, until } => {
                // Another worker has it.
                let is_leased = until.is_some();
                return Self {
                    state: Some(if is_leased { LEASED } else { state.as_str() }),
                    ..Self::new(Code::LeaseLost, error.to_string())
                };
            }
            TimerError::Conflict { state } => {
                return Self {
                    state: Some(state.as_str()),
                    ..Self::new(Code::Conflict, error.to_string())
                };
            }
            TimerError::Changed { current } => {
                return Self {
                    revision: Some(*current),
                    ..Self::new(Code::RevisionMismatch, error.to_string())
                };
            }
            TimerError::Exists { state } => {
                return Self {
                    state: Some(state.as_str()),
                    ..Self::new(Code::Exists, error.to_string())
                };
            }
            TimerError::ReceiptMismatch => {
                let detail = "a request with this Idempotency-Key had another body";
                return Self::new(Code::IdempotencyMismatch, detail);
            }
            TimerError::ReceiptPending => {
                let detail = "a request with this Idempotency-Key is under way: ask again";
                return Self::new(Code::IdempotencyInProgress, detail);
            }
            TimerError::Draining { .. } => Code::Draining,
            TimerError::PayloadTooLarge { .. } | TimerError::BatchTooLong { .. } => Code::TooLarge,
            TimerError::Policy(_) => Code::InvalidRetry,
            TimerError::Recurrence(RecurrenceError::NoRunInTime) => {
                return Self::new(Code::Unschedulable, error.to_string()).at("/until");
            }
            TimerError::TooFar
            | TimerError::Recurrence(_)
            | TimerError::Cron(_)
            | TimerError::Zone(_) => Code::Unschedulable,
            TimerError::SeveralShards { .. } => Code::BatchSpansShards,
            TimerError::Full => Code::Overloaded,
            TimerError::Unavailable { .. } => Code::StoreUnavailable,
            TimerError::NotOwned { .. } | TimerError::ShardUnavailable { .. } => {
                Code::ShardUnavailable
            }
            TimerError::StorageFull => Code::StorageFull,
            // The engine's own fault is told to the operator, not to the caller.
            TimerError::Store(cause) => return cause.into(),
            // The engine has logged which file it is.
            TimerError::Unreadable { .. } => Code::Unreadable,
            TimerError::Unknown(cause) => {
                tracing::error!(%cause, "the outcome of a request is not known");
                return Self::new(
                    Code::Unknown,
                    "no answer came in time: what was asked is done whole or not at all. GET shows \
                     which; a set of the same timer may be repeated",
                );
            }
            TimerError::Name(cause) => return cause.clone().into(),
            TimerError::Setting(cause) => return cause.into(),
            _ => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

impl From<&SettingError> for Problem {
    fn from(error: &SettingError) -> Self {
        let at = |version: SettingsVersion| Some(Revision(version.0));
        let (code, revision) = match error {
            SettingError::Exists { version } => (Code::Exists, at(*version)),
            SettingError::Changed { current } => (Code::RevisionMismatch, at(*current)),
            SettingError::SettingsChanged { .. } => (Code::Conflict, None),
            SettingError::NotFound => (Code::NotFound, None),
            SettingError::ValueTooLong { .. } | SettingError::TooMany { .. } => {
                (Code::TooLarge, None)
            }
            _ => (Code::Malformed, None),
        };
        Self {
            revision,
            ..Self::new(code, error.to_string())
        }
    }
}

impl From<&StoreError> for Problem {
    fn from(error: &StoreError) -> Self {
        tracing::error!(%error, "the store could not be read");
        if error.is_unreadable() {
            let detail = "the timer cannot be read: remove it or set it anew";
            return Self::new(Code::Unreadable, detail);
        }
        let code = match error {
            StoreError::Unavailable { .. } => Code::StoreUnavailable,
            _ => Code::Unavailable,
        };
        Self::new(code, "the store could not be read")
    }
}

impl From<NameError> for Problem {
    fn from(error: NameError) -> Self {
        let code = match error {
            NameError::QueueEmpty
            | NameError::QueueTooLong { .. }
            | NameError::QueueCharacter { .. }
            | NameError::NamespaceEmpty
            | NameError::NamespaceTooLong { .. }
            | NameError::NamespaceCharacter { .. }
            | NameError::NamespaceDefault
            | NameError::NamespaceReserved => Code::InvalidQueue,
            _ => Code::InvalidKey,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rows `| status | `code`, … | when |` of the contract.
    fn written() -> BTreeSet<(u16, String)> {
        let text = include_str!("../../../../docs/api.md");
        let (_, errors) = text.split_once("\n## Errors\n").expect("it is there");
        let (errors, _) = errors.split_once("\n## ").expect("more follows");
        let mut rows = BTreeSet::new();
        for line in errors.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<_> = line.split(" | ").collect();
            let Ok(status) = cells[0].trim_start_matches("| ").parse() else {
                continue;
            };
            let codes = cells[1].split(", ").map(|code| code.trim_matches('`'));
            rows.extend(codes.map(|code| (status, code.to_owned())));
        }
        rows
    }

    /// A code that only one of the two has is a caller that nobody told.
    #[test]
    fn the_contract_has_every_code_with_its_status() {
        let parts = Code::ALL.map(Code::parts);
        let codes = parts.map(|(code, status, _)| (status.as_u16(), code.to_owned()));
        assert_eq!(BTreeSet::from(codes), written());
    }
}
