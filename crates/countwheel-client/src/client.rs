//! A small client of our own HTTP API, in the words of the durable crate.

mod audit;
pub mod batch;
mod cluster;
mod connector;
mod namespaces;
mod runs;
mod stats;
mod tokens;
mod tries;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_durable::{
    DrainMode, Due, PolicyError, Precondition, Recurrence, RetryPolicy, Revision, Schedule,
    SetOptions, StateKind, check_policy,
};
use countwheel_time::{By, Jitter, Timestamp};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub use self::audit::{AuditEntry, AuditField, AuditFilter, AuditPage, AuditWho};
pub use self::cluster::{
    ClusterDatabase, ClusterEvent, ClusterGlance, ClusterNode, ClusterNodes, ClusterShard,
    ClusterShards, MoveProgress, MoveTarget, NodeCounts, NodeMarked, PlannedMove, Rebalanced,
    ShardCounts, ShardMoved,
};
use self::connector::Connector;
pub use self::connector::SocketFault;
pub use self::namespaces::{
    NamespaceRemoved, NamespaceSettings, NamespaceShown, NamespaceUsage, Namespaces, QuotaRate,
    Quotas,
};
pub use self::runs::{Backfilled, BackfilledRun, SimulatedThere, TimerRun, TimerRuns};
pub use self::stats::{DueFigures, DueSpan, Figures, OverdueFigure, TimerFigures};
pub use self::tokens::{NewToken, TokenMade, TokenRevoked, TokenShown, Tokens};
use self::tries::{IDEMPOTENCY_KEY, Repeatable, Tries};
use crate::time::{format_duration, format_time, parse_time};
use crate::words::{self, LEASED, escape};
pub use crate::words::{one_line, timer_path};
use crate::{roots, shown};

/// The longest answer that is read: a page of a thousand timers fits many times.
const ANSWER_MAX_BYTES: usize = 160 << 20;

/// How much is told of an answer that is not in the words of the API.
const FOREIGN_MAX_BYTES: usize = 100;

/// The body of a request.
type Sent = BoxBody<Bytes, std::io::Error>;

/// The URL of a server at a socket, as its requests have it. Nothing looks up its host.
const AT_SOCKET: &str = "http://localhost";

/// What makes connections, and keeps them.
fn connecting(connector: Connector) -> HttpClient<Connector, Sent> {
    HttpClient::builder(TokioExecutor::new()).build(connector)
}

/// An idempotency key that nobody has used: see [`Client::post`].
///
/// ```
/// use countwheel_client::idempotency_key;
///
/// assert_ne!(idempotency_key(), idempotency_key());
/// ```
///
/// # Panics
/// If the system has no random numbers.
#[must_use]
pub fn idempotency_key() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("random numbers");
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Speaks to one server. Cheap to clone; clones share their connections.
///
/// ```
/// use countwheel_client::{Client, ClientError};
///
/// let client = Client::new("http://127.0.0.1:7070", Some("dev"))?;
/// assert_eq!(client.server(), "http://127.0.0.1:7070");
/// let error = Client::new("127.0.0.1:7070", None).unwrap_err();
/// assert!(error.to_string().ends_with("did you mean http://127.0.0.1:7070?"));
/// # Ok::<(), ClientError>(())
/// ```
#[derive(Clone)]
pub struct Client {
    http: HttpClient<Connector, Sent>,
    server: String,
    is_at_socket: bool,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    retry: Option<RetryPolicy>,
}

/// Without what is secret.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &shown::Url(&self.server))
            .field(
                "authorization",
                &self.authorization.as_ref().map(|_| shown::Token("")),
            )
            .field("timeout", &self.timeout)
            .field("retry", &self.retry)
            .finish()
    }
}

impl Client {
    /// How long a request may take unless [`Client::with_timeout`] says otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// A client of the server at this URL. Connects when first used.
    ///
    /// The URL is of `http` or `https`, or it is `unix:` and the absolute path of a socket at which the server listens
    /// without TLS.
    ///
    /// ```
    /// use countwheel_client::{Client, ClientError};
    ///
    /// let client = Client::new("unix:/run/countwheel.sock", None)?;
    /// assert_eq!(client.server(), "unix:/run/countwheel.sock");
    /// let error = Client::new("unix:countwheel.sock", None).unwrap_err();
    /// assert!(matches!(error, ClientError::Socket { .. }));
    /// # Ok::<(), ClientError>(())
    /// ```
    ///
    /// # Errors
    /// [`ClientError::Address`], [`ClientError::Socket`] or [`ClientError::Token`] if one of them cannot be used.
    pub fn new(server: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let authorization = token.map(|token| {
            let mut value =
                HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| ClientError::Token)?;
            value.set_sensitive(true);
            Ok(value)
        });
        let socket = connector::socket_of(server)?;
        let is_at_socket = socket.is_some();
        let (connector, server) = match socket {
            Some(path) => (Connector::Socket(path.into()), server),
            None => (web(server)?, server.trim_end_matches('/')),
        };
        Ok(Self {
            http: connecting(connector),
            server: server.to_owned(),
            is_at_socket,
            authorization: authorization.transpose()?,
            timeout: Self::TIMEOUT,
            retry: None,
        })
    }

    /// The same client, which trusts and shows what this says where it speaks TLS. See
    /// [`roots::from_files`](crate::roots::from_files).
    ///
    /// ```
    /// use countwheel_client::{Client, ClientError, roots};
    ///
    /// let tls = roots::from_files(&[], None)?;
    /// let client = Client::new("https://timers.example:7743", Some("token"))?.with_tls(tls);
    /// assert_eq!(client.server(), "https://timers.example:7743");
    /// # Ok::<(), ClientError>(())
    /// ```
    #[must_use]
    pub fn with_tls(mut self, tls: ClientConfig) -> Self {
        if !self.is_at_socket {
            self.http = connecting(Connector::web(tls));
        }
        self
    }

    /// The same client with another limit on how long a request may take.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same client, which makes a request again that has failed, as the policy says: one of which nothing was done,
    /// and one that may have been done if another time does no harm. These are gets, sets, removes, moves to a
    /// deadline, all with a precondition, and posts with an idempotency key; not moves by a span, fires, revives, drains and
    /// leases. The age of the policy bounds the whole, and `Retry-After` counts where the server says it.
    ///
    /// An answer that may be of the effect of an earlier try says so: [`Answer::is_repeated`], [`Problem::repeated`].
    ///
    /// ```
    /// # use countwheel_client::{Client, ClientError};
    /// let client = Client::new("http://127.0.0.1:7070", None)?.with_retry(Client::usual_retry());
    /// # Ok::<(), ClientError>(())
    /// ```
    #[must_use]
    pub fn with_retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// A policy for [`with_retry`](Self::with_retry): from 50 ms to 2 s, doubled, with full jitter, for 30 s at most.
    pub fn usual_retry() -> RetryPolicy {
        let millis = Duration::from_millis;
        let delays = (0..6)
            .map(|doubled| millis(50 << doubled))
            .chain([millis(2_000)]);
        let policy = RetryPolicy::list(delays).unwrap_or_default();
        policy
            .repeat_last()
            .jitter(Jitter::Full)
            .max_age(Duration::from_secs(30))
    }

    /// The server's URL, without a slash at its end.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The URL of a path, as a request has it.
    fn url(&self, path: &str) -> String {
        let base = if self.is_at_socket {
            AT_SOCKET
        } else {
            &self.server
        };
        format!("{base}{path}")
    }

    /// Sets a timer.
    ///
    /// # Errors
    /// [`ClientError`]; see [`ClientError::is_unknown`] before repeating it.
    pub async fn set(
        &self,
        queue: &str,
        key: &str,
        timer: &NewTimer,
        precondition: Precondition,
    ) -> Result<Answer<TimerSet>, ClientError> {
        sayable(timer.retry.as_ref())?;
        let path = timer_path(queue, key, "");
        self.send_text(Method::PUT, &path, Some(timer.to_json()), precondition)
            .await
    }

    /// Sets a timer whose key the server draws. With an idempotency key it may be repeated: within a day, the same
    /// request has the same answer and sets nothing more.
    ///
    /// # Errors
    /// [`ClientError`]; without an idempotency key see [`ClientError::is_unknown`] before repeating it.
    pub async fn post(
        &self,
        queue: &str,
        timer: &NewTimer,
        idempotency_key: Option<&str>,
    ) -> Result<Answer<TimerSet>, ClientError> {
        sayable(timer.retry.as_ref())?;
        let path = format!("/v1/queues/{}/timers", escape(queue));
        let mut request = self.request(Method::POST, &path, Precondition::None);
        if let Some(key) = idempotency_key {
            let quoted = key.replace('\\', "\\\\").replace('"', "\\\"");
            request = request.header(IDEMPOTENCY_KEY, format!("\"{quoted}\""));
        }
        self.send_request(request, Some(timer.to_json())).await
    }

    /// Moves a pending timer to another deadline.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn move_to(
        &self,
        queue: &str,
        key: &str,
        due: Due,
        precondition: Precondition,
    ) -> Result<Answer<TimerMoved>, ClientError> {
        self.patch(queue, key, due_field(due), precondition, true)
            .await
    }

    /// Moves a pending timer by so much from its deadline, at most to now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn move_by(
        &self,
        queue: &str,
        key: &str,
        by: By,
        precondition: Precondition,
    ) -> Result<Answer<TimerMoved>, ClientError> {
        // Done twice, it would go twice as far; with a revision it is done once at most.
        let is_repeatable = precondition != Precondition::None;
        self.patch(queue, key, by_field(by), precondition, is_repeatable)
            .await
    }

    async fn patch(
        &self,
        queue: &str,
        key: &str,
        (field, value): (&str, Value),
        precondition: Precondition,
        is_repeatable: bool,
    ) -> Result<Answer<TimerMoved>, ClientError> {
        let path = timer_path(queue, key, "");
        let body = json!({ field: value });
        let request = self.request(Method::PATCH, &path, precondition);
        let request = request.extension(Repeatable(is_repeatable));
        self.send_request(request, Some(body.to_string())).await
    }

    /// Removes a timer; with `only_pending` nothing but a pending one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn remove(
        &self,
        queue: &str,
        key: &str,
        only_pending: bool,
        precondition: Precondition,
    ) -> Result<Answer<TimerRemoved>, ClientError> {
        let mut path = timer_path(queue, key, "");
        if only_pending {
            path.push_str("?only=pending");
        }
        self.send(Method::DELETE, &path, None, precondition).await
    }

    /// Asks for one timer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get(&self, queue: &str, key: &str) -> Result<Answer<Timer>, ClientError> {
        let path = timer_path(queue, key, "");
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Asks for one page of a queue's timers, in the order of their deadlines.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(
        &self,
        queue: &str,
        filter: &Filter,
        limit: u32,
        after: Option<&str>,
    ) -> Result<Answer<Page>, ClientError> {
        let listing = Listing::default();
        let of = ListOf::Queue(queue);
        self.list_of(of, filter, &listing, limit, after).await
    }

    /// The same of all queues whose names begin with `queue_prefix`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list_all(
        &self,
        queue_prefix: Option<&str>,
        filter: &Filter,
        limit: u32,
        after: Option<&str>,
    ) -> Result<Answer<Page>, ClientError> {
        let listing = Listing::default();
        let of = ListOf::All { queue_prefix };
        self.list_of(of, filter, &listing, limit, after).await
    }

    /// Asks for one page of a list, in the order and with what `listing` says.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list_of(
        &self,
        of: ListOf<'_>,
        filter: &Filter,
        listing: &Listing,
        limit: u32,
        after: Option<&str>,
    ) -> Result<Answer<Page>, ClientError> {
        let mut path = match of {
            ListOf::Queue(queue) => format!("/v1/queues/{}/timers?limit={limit}", escape(queue)),
            ListOf::All { .. } => format!("/v1/timers?limit={limit}"),
        };
        if let ListOf::All {
            queue_prefix: Some(prefix),
        } = of
        {
            path.push_str(&format!("&queue_prefix={}", escape(prefix)));
        }
        if listing.order != ListOrder::Due {
            path.push_str(&format!("&order={}", listing.order.as_str()));
        }
        if listing.next_attempts {
            path.push_str("&include=next_attempts");
        }
        if listing.bodies {
            path.push_str("&bodies=text");
        }
        self.list_at(path, filter, after).await
    }

    async fn list_at(
        &self,
        mut path: String,
        filter: &Filter,
        after: Option<&str>,
    ) -> Result<Answer<Page>, ClientError> {
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", escape(&value)));
            }
        };
        add("state", filter.state.map(|state| state.to_string()));
        add("prefix", filter.prefix.clone());
        add("due_after", filter.due_after.map(format_time));
        add("due_before", filter.due_before.map(format_time));
        add(
            "tag",
            Some(filter.tags.join(",")).filter(|tags| !tags.is_empty()),
        );
        add("after", after.map(str::to_owned));
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Asks for one page of a queue's timers that are in a state, each with its body as a text.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list_with_bodies(
        &self,
        queue: &str,
        state: StateKind,
        after: Option<&str>,
    ) -> Result<Answer<Page>, ClientError> {
        let queue = escape(queue);
        let mut path = format!("/v1/queues/{queue}/timers?bodies=text&limit=1000&state={state}");
        if let Some(after) = after {
            path.push_str(&format!("&after={}", escape(after)));
        }
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Sets a timer as these fields of a set say, byte for byte.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn set_as_said(
        &self,
        queue: &str,
        key: &str,
        fields: String,
        precondition: Precondition,
    ) -> Result<Answer<TimerSet>, ClientError> {
        let path = timer_path(queue, key, "");
        self.send_text(Method::PUT, &path, Some(fields), precondition)
            .await
    }

    /// Makes a pending timer due now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fire(&self, queue: &str, key: &str) -> Result<Answer<TimerMoved>, ClientError> {
        let path = timer_path(queue, key, ":fire");
        self.send(Method::POST, &path, None, Precondition::None)
            .await
    }

    /// Makes a dead timer pending again, due now unless `due` says otherwise.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn revive(
        &self,
        queue: &str,
        key: &str,
        due: Option<Due>,
    ) -> Result<Answer<TimerMoved>, ClientError> {
        let path = timer_path(queue, key, ":revive");
        let body = due
            .map(due_field)
            .map(|(field, value)| json!({ field: value }));
        self.send(Method::POST, &path, body, Precondition::None)
            .await
    }

    /// Sends a timer again that is done, dead, or pending after failures: to its target, or to another one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn resend(
        &self,
        queue: &str,
        key: &str,
        target: Option<&NewTarget>,
        precondition: Precondition,
    ) -> Result<Answer<TimerSet>, ClientError> {
        let path = timer_path(queue, key, ":resend");
        let body = target.map(|target| json!({ "target": target.to_json() }));
        self.send(Method::POST, &path, body, precondition).await
    }

    /// Drains a queue, or all of them (`None`). With [`DrainMode::Remove`] up to 1,000 timers are handed
    /// back: ask again until nothing is left.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn drain(
        &self,
        queue: Option<&str>,
        mode: DrainMode,
    ) -> Result<Answer<QueueDrained>, ClientError> {
        let mut body = json!({ "mode": mode.to_string() });
        if let DrainMode::Fire { until: Some(until) } = mode {
            body["at"] = format_time(until).into();
        }
        let path = queue_path(queue, ":drain");
        self.send(Method::POST, &path, Some(body), Precondition::None)
            .await
    }

    /// Pauses a queue, or all of them (`None`), until a time or a resume.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn pause(
        &self,
        queue: Option<&str>,
        until: Option<Timestamp>,
    ) -> Result<Answer<QueueDrained>, ClientError> {
        let until = until.map(|until| json!({ "at": format_time(until) }));
        let path = queue_path(queue, ":pause");
        self.send(Method::POST, &path, until, Precondition::None)
            .await
    }

    /// Ends the drain or pause of a queue, or that of all (`None`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn resume(&self, queue: Option<&str>) -> Result<Answer<QueueResumed>, ClientError> {
        let path = queue_path(queue, ":resume");
        self.send(Method::POST, &path, None, Precondition::None)
            .await
    }

    /// Has timers of a queue removed: those in the states (all but those that are delivered, if none are named) that the
    /// rest of the filter wants.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn purge(
        &self,
        queue: &str,
        states: &[StateKind],
        filter: &Filter,
    ) -> Result<Answer<QueuePurged>, ClientError> {
        let mut body = json!({});
        if !states.is_empty() {
            body["states"] = json!(states);
        }
        filter.put_into(&mut body);
        let path = queue_path(Some(queue), ":purge");
        self.send(Method::POST, &path, Some(body), Precondition::None)
            .await
    }

    /// Ends the purge of a queue. What was removed stays removed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel_purge(&self, queue: &str) -> Result<Answer<QueuePurged>, ClientError> {
        let path = queue_path(Some(queue), ":cancel-purge");
        self.send(Method::POST, &path, None, Precondition::None)
            .await
    }

    /// Asks for a job: an action on many timers of a queue.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn begin_job(&self, job: &NewJob) -> Result<Answer<JobShown>, ClientError> {
        let body = Some(job.to_json());
        self.send(Method::POST, "/v1/jobs", body, Precondition::None)
            .await
    }

    /// Asks for all jobs.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn jobs(&self) -> Result<Answer<Jobs>, ClientError> {
        self.send(Method::GET, "/v1/jobs", None, Precondition::None)
            .await
    }

    /// Asks for one job.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn job(&self, id: u64) -> Result<Answer<JobShown>, ClientError> {
        let path = format!("/v1/jobs/{id}");
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Ends a job. What was done stays done.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel_job(&self, id: u64) -> Result<Answer<JobShown>, ClientError> {
        let path = format!("/v1/jobs/{id}:cancel");
        self.send(Method::POST, &path, None, Precondition::None)
            .await
    }

    /// Asks how many timers each queue has: one page of the queues, in order of name.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn queues(&self, after: Option<&str>) -> Result<Answer<Queues>, ClientError> {
        let after = after.map(|after| format!("?after={}", escape(after)));
        let path = format!("/v1/queues{}", after.unwrap_or_default());
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Asks the server for a snapshot of its store. A snapshot may take long: see
    /// [`with_timeout`](Self::with_timeout).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn snapshot(&self, name: &str) -> Result<Answer<SnapshotMade>, ClientError> {
        let body = json!({ "name": name });
        self.send(
            Method::POST,
            "/v1/snapshots",
            Some(body),
            Precondition::None,
        )
        .await
    }

    /// Asks when each attempt would come under a retry policy.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn simulate(
        &self,
        retry: &RetryPolicy,
        start: Option<Timestamp>,
        limit: u32,
    ) -> Result<Answer<Simulation>, ClientError> {
        let body = simulation(retry, start, limit)?;
        self.send(Method::POST, "/v1/simulate", Some(body), Precondition::None)
            .await
    }

    /// Asks when each run of a schedule would come that is set at `start`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn simulate_runs(
        &self,
        due: Due,
        recurrence: &Recurrence,
        start: Option<Timestamp>,
        limit: u32,
    ) -> Result<Answer<SimulatedRuns>, ClientError> {
        let body = runs_simulation(due, recurrence, start, limit);
        self.send(Method::POST, "/v1/simulate", Some(body), Precondition::None)
            .await
    }

    /// Asks whether the server has an echo, to which timers can be delivered.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] with status 404 if it has none.
    pub async fn echo(&self) -> Result<(), ClientError> {
        let answer = self.send(Method::GET, "/echo", None, Precondition::None);
        answer.await.map(|_: Answer<IgnoredAny>| ())
    }

    /// Makes an endpoint of its JSON, as the API takes it, or puts another in its place.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_endpoint(
        &self,
        name: &str,
        json: String,
        precondition: Precondition,
    ) -> Result<Answer<EndpointShown>, ClientError> {
        let path = endpoint_path(name);
        self.send_text(Method::PUT, &path, Some(json), precondition)
            .await
    }

    /// Asks for one endpoint.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn endpoint(&self, name: &str) -> Result<Answer<EndpointShown>, ClientError> {
        let path = endpoint_path(name);
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Asks for one page of the endpoints, in the order of their names.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn endpoints(
        &self,
        after: Option<&str>,
    ) -> Result<Answer<EndpointPage>, ClientError> {
        let mut path = "/v1/endpoints?limit=1000".to_owned();
        if let Some(after) = after {
            path.push_str(&format!("&after={}", escape(after)));
        }
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Removes an endpoint that nothing names, if it has this revision.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn remove_endpoint(
        &self,
        name: &str,
        revision: Option<u64>,
    ) -> Result<Answer<Value>, ClientError> {
        let path = endpoint_path(name);
        self.send(Method::DELETE, &path, None, of_revision(revision))
            .await
    }

    /// Tests an endpoint with one request now, of its JSON as the API takes it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn test_endpoint(
        &self,
        name: &str,
        json: String,
    ) -> Result<Answer<EndpointTested>, ClientError> {
        let path = format!("{}:test", endpoint_path(name));
        self.send_text(Method::POST, &path, Some(json), Precondition::None)
            .await
    }

    /// Gives a queue settings, of their JSON as the API takes it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_queue(
        &self,
        queue: &str,
        json: String,
        precondition: Precondition,
    ) -> Result<Answer<QueueShown>, ClientError> {
        let path = queue_path(Some(queue), "");
        self.send_text(Method::PUT, &path, Some(json), precondition)
            .await
    }

    /// Asks for the settings of a queue, and how many timers it has.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn queue(&self, queue: &str) -> Result<Answer<QueueShown>, ClientError> {
        let path = queue_path(Some(queue), "");
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }

    /// Leases timers of queues of mode pull, and waits for some as long as is asked for.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use countwheel_client::{Client, LeaseTaken, LeaseVerb, LeasesAsked};
    ///
    /// # async fn work(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let asked = LeasesAsked {
    ///     queues: vec!["jobs".to_owned()],
    ///     max: 100,
    ///     lease: Some(Duration::from_secs(30)),
    ///     wait: Duration::from_secs(20),
    ///     worker: None,
    /// };
    /// for lease in client.lease(&asked).await?.value.leases {
    ///     let taken: LeaseTaken = serde_json::from_str(lease.get())?;
    ///     let results = client.settle(LeaseVerb::Ack, &[taken], &serde_json::json!({})).await?;
    ///     assert!(results[0].0.is_done());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn lease(&self, asked: &LeasesAsked) -> Result<Answer<Leases>, ClientError> {
        let mut body = json!({ "queues": asked.queues, "max": asked.max });
        body["wait"] = format_duration(asked.wait).into();
        if let Some(lease) = asked.lease {
            body["lease"] = format_duration(lease).into();
        }
        if let Some(worker) = &asked.worker {
            body["worker"] = json!(worker);
        }
        let client = self.clone().with_timeout(self.timeout + asked.wait);
        client
            .send(Method::POST, "/v1/leases", Some(body), Precondition::None)
            .await
    }

    /// Settles or extends leases, up to 1,000. Returns what became of each, also as the server said it, on one line.
    /// `more` is said of each lease.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn settle(
        &self,
        verb: LeaseVerb,
        leases: &[LeaseTaken],
        more: &Value,
    ) -> Result<Vec<(LeaseResult, String)>, ClientError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let items = leases.iter().map(|lease| {
            let mut item = json!({ "queue": lease.queue, "key": lease.key, "token": lease.token });
            for (name, value) in more.as_object().into_iter().flatten() {
                item[name] = value.clone();
            }
            item
        });
        let body = json!({ "items": items.collect::<Vec<_>>() });
        let path = format!("/v1/leases:{}", verb.as_str());
        // A repeated nack finds its lease lost.
        let is_repeatable = verb != LeaseVerb::Nack;
        let request = self.request(Method::POST, &path, Precondition::None);
        let request = request.extension(Repeatable(is_repeatable));
        let answer: Answer<LeaseResults> =
            self.send_request(request, Some(body.to_string())).await?;
        let results = answer.value.results.into_iter();
        let results = results.map(|text| {
            let result = serde_json::from_str(text.get());
            let result = result.map_err(|source| ClientError::Unintelligible {
                status: 200,
                source,
            })?;
            Ok((result, one_line(&text)))
        });
        results.collect()
    }

    /// Removes the settings of a queue without timers, if they have this revision.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn remove_queue(
        &self,
        queue: &str,
        revision: Option<u64>,
    ) -> Result<Answer<Value>, ClientError> {
        let path = queue_path(Some(queue), "");
        self.send(Method::DELETE, &path, None, of_revision(revision))
            .await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        precondition: Precondition,
    ) -> Result<Answer<T>, ClientError> {
        let body = body.map(|value| value.to_string());
        self.send_text(method, path, body, precondition).await
    }

    async fn send_text<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        precondition: Precondition,
    ) -> Result<Answer<T>, ClientError> {
        let request = self.request(method, path, precondition);
        self.send_request(request, body).await
    }

    fn request(&self, method: Method, path: &str, precondition: Precondition) -> Builder {
        let mut request = Request::builder().method(method).uri(self.url(path));
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        match precondition {
            Precondition::None => {}
            Precondition::Absent => request = request.header(IF_NONE_MATCH, "*"),
            Precondition::Revision(revision) => {
                request = request.header(IF_MATCH, format!("\"{revision}\""));
            }
        }
        request
    }

    async fn send_request<T: DeserializeOwned>(
        &self,
        mut request: Builder,
        body: Option<String>,
    ) -> Result<Answer<T>, ClientError> {
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(()).map_err(|_| ClientError::Address {
            text: self.server.clone(),
        })?;
        let (parts, ()) = request.into_parts();
        let body = body.map(Bytes::from).unwrap_or_default();
        let mut tries = Tries::new(self.retry.as_ref(), &parts);
        loop {
            let sent = Full::from(body.clone()).map_err(|never| match never {});
            let request = Request::from_parts(parts.clone(), sent.boxed());
            let answered = tokio::time::timeout(self.timeout, self.exchange(request)).await;
            let answered = answered.unwrap_or_else(|_| {
                Err(ClientError::Silent {
                    server: self.server.clone(),
                    timeout: self.timeout,
                })
            });
            match answered {
                Ok(mut answer) => {
                    answer.repeated = tries.is_unsure();
                    return Ok(answer);
                }
                Err(error) => match tries.again_after(&error) {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => return Err(tries.mark(error)),
                },
            }
        }
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        request: Request<Sent>,
    ) -> Result<Answer<T>, ClientError> {
        let answer = self.begin(request).await?;
        let status = answer.status();
        let bytes = self.read(answer.into_body()).await?;
        if serde_json::from_slice::<IgnoredAny>(&bytes).is_err() {
            return Err(self.foreign(status.as_u16(), &bytes));
        }
        Answer::read(&bytes).map_err(|source| ClientError::Unintelligible {
            status: status.as_u16(),
            source,
        })
    }

    /// Sends a request, and reads the answer if that is a refusal.
    async fn begin(&self, request: Request<Sent>) -> Result<Response<Incoming>, ClientError> {
        let answer = match self.http.request(request).await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => {
                return Err(ClientError::Unreachable {
                    server: self.server.clone(),
                    source: Box::new(error),
                });
            }
            Err(error) => return Err(self.broken(error)),
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let retry_after = answer
            .headers()
            .get(hyper::header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let bytes = self.read(answer.into_body()).await?;
        let mut problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
        problem.status = status.as_u16();
        problem.retry_after = retry_after;
        match (problem.code.as_str(), problem.status) {
            ("", status) => Err(self.foreign(status, &bytes)),
            (_, 401) => Err(ClientError::Unauthorized(Box::new(problem))),
            _ => Err(ClientError::Refused(Box::new(problem))),
        }
    }

    pub(crate) fn retry(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref()
    }

    pub(crate) fn get_request(&self, path: &str) -> Builder {
        self.request(Method::GET, path, Precondition::None)
    }

    /// Sends a request without a body, and waits for the head of the answer.
    pub(crate) async fn begin_get(
        &self,
        request: Builder,
    ) -> Result<Response<Incoming>, ClientError> {
        let body = Full::default().map_err(|never| match never {}).boxed();
        let request = request.body(body).map_err(|_| ClientError::Address {
            text: self.server.clone(),
        })?;
        let begun = tokio::time::timeout(self.timeout, self.begin(request)).await;
        begun.unwrap_or_else(|_| {
            Err(ClientError::Silent {
                server: self.server.clone(),
                timeout: self.timeout,
            })
        })
    }

    /// Reads the whole of an answer.
    async fn read(&self, body: Incoming) -> Result<Bytes, ClientError> {
        match Limited::new(body, ANSWER_MAX_BYTES).collect().await {
            Ok(collected) => Ok(collected.to_bytes()),
            Err(error) => Err(self.broken(error)),
        }
    }

    /// The error of an answer that is not in the words of the API.
    pub(crate) fn foreign(&self, status: u16, bytes: &[u8]) -> ClientError {
        let begins = String::from_utf8_lossy(&bytes[..bytes.len().min(FOREIGN_MAX_BYTES)]);
        ClientError::Foreign {
            server: self.server.clone(),
            status,
            begins: begins.lines().next().unwrap_or_default().to_owned(),
        }
    }

    pub(crate) fn broken(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ClientError {
        ClientError::Broken {
            server: self.server.clone(),
            source: source.into(),
        }
    }
}

/// What a timer delivers.
#[derive(Clone)]
pub enum TimerBody {
    /// This value. A text, if the timer has a content type.
    Value(Value),
    /// This JSON, byte for byte: numbers, order and doubled names stay as they are.
    Verbatim(Box<RawValue>),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// How long it is.
impl fmt::Debug for TimerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text);
        let bytes = match self {
            Self::Value(value) => {
                (kind, text) = ("Value", value.to_string());
                text.as_bytes()
            }
            Self::Verbatim(json) => {
                kind = "Verbatim";
                json.get().as_bytes()
            }
            Self::Bytes(bytes) => {
                kind = "Bytes";
                bytes
            }
        };
        f.debug_tuple(kind).field(&shown::Payload(bytes)).finish()
    }
}

/// Where a timer is sent again, in place of its own target.
#[derive(Clone)]
pub struct NewTarget {
    /// `http` or `https`.
    pub url: String,
    /// By which method.
    pub method: Method,
    /// Sent with each delivery.
    pub headers: BTreeMap<String, String>,
    /// The deadline of one attempt, the server's default if `None`.
    pub timeout: Option<Duration>,
}

/// Without what is secret.
impl fmt::Debug for NewTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewTarget")
            .field("url", &shown::Url(&self.url))
            .field("method", &self.method)
            .field("headers", &shown::Headers(&self.headers))
            .field("timeout", &self.timeout)
            .finish()
    }
}

impl NewTarget {
    fn to_json(&self) -> Value {
        let place = json!({ "url": self.url });
        target_json(place, &self.method, &self.headers, self.timeout)
    }
}

fn target_json(
    mut target: Value,
    method: &Method,
    headers: &BTreeMap<String, String>,
    timeout: Option<Duration>,
) -> Value {
    if method != Method::POST {
        target["method"] = json!(method.as_str());
    }
    if !headers.is_empty() {
        target["headers"] = json!(headers);
    }
    if let Some(timeout) = timeout {
        target["timeout"] = millis(timeout).into();
    }
    target
}

/// What a set asks for.
#[derive(Clone)]
pub struct NewTimer {
    /// When it is due; with a recurrence, before which its first run is not. Does not count where
    /// the schedule has an anchor.
    pub due: Due,
    /// When it comes again, and what becomes of it if it is missed.
    pub options: SetOptions,
    /// Where it is delivered: `http` or `https`; empty for an endpoint, and where the queue says it.
    pub url: String,
    /// The endpoint that it is delivered to, with what follows the endpoint's URL, if it names one.
    pub endpoint: Option<(String, String)>,
    /// By which method.
    pub method: Method,
    /// Sent with each delivery.
    pub headers: BTreeMap<String, String>,
    /// The deadline of one attempt, the server's default if `None`.
    pub timeout: Option<Duration>,
    /// What is delivered.
    pub body: Option<TimerBody>,
    /// With it, the body is a text or bytes, and is delivered as it stands.
    pub content_type: Option<String>,
    /// When to try again, the server's default if `None`.
    pub retry: Option<RetryPolicy>,
    /// Its tags, by which lists and jobs find it.
    pub tags: Vec<String>,
}

/// Without what is secret.
impl fmt::Debug for NewTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewTimer")
            .field("due", &self.due)
            .field("options", &self.options)
            .field("url", &shown::Url(&self.url))
            .field(
                "endpoint",
                &self
                    .endpoint
                    .as_ref()
                    .map(|(name, path)| (name, shown::Url(path))),
            )
            .field("method", &self.method)
            .field("headers", &shown::Headers(&self.headers))
            .field("timeout", &self.timeout)
            .field("body", &self.body)
            .field("content_type", &self.content_type)
            .field("retry", &self.retry)
            .field("tags", &self.tags)
            .finish()
    }
}

impl NewTimer {
    /// A timer that is due then and posted to this URL, without a body; the rest is as the service and the queue have it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use countwheel_client::NewTimer;
    /// use countwheel_durable::Due;
    ///
    /// let timer = NewTimer::to("http://127.0.0.1:8080/hook", Due::In(Duration::from_secs(5)));
    /// assert_eq!(timer.to_json(), r#"{"in":5000,"target":{"url":"http://127.0.0.1:8080/hook"}}"#);
    /// ```
    pub fn to(url: impl Into<String>, due: Due) -> Self {
        Self {
            due,
            options: SetOptions::default(),
            url: url.into(),
            endpoint: None,
            method: Method::POST,
            headers: BTreeMap::new(),
            timeout: None,
            body: None,
            content_type: None,
            retry: None,
            tags: Vec::new(),
        }
    }

    /// The body of a set, as the contract has it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let place = match &self.endpoint {
            // As the queue says.
            None if self.url.is_empty() => json!({}),
            None => json!({ "url": self.url }),
            Some((endpoint, path)) if path.is_empty() => json!({ "endpoint": endpoint }),
            Some((endpoint, path)) => json!({ "endpoint": endpoint, "path": path }),
        };
        let target = target_json(place, &self.method, &self.headers, self.timeout);
        let says_nothing = target.as_object().is_some_and(serde_json::Map::is_empty);
        let mut timer = match says_nothing {
            true => json!({}),
            false => json!({ "target": target }),
        };
        put_schedule(&mut timer, self.due, self.options.recurrence.as_deref());
        if let Some(missed) = words::missed(self.options.missed) {
            timer["missed"] = missed;
        }
        if !self.tags.is_empty() {
            timer["tags"] = json!(self.tags);
        }
        let verbatim = match &self.body {
            Some(TimerBody::Verbatim(json)) => Some(json.get()),
            Some(TimerBody::Value(value)) => {
                timer["body"] = value.clone();
                None
            }
            Some(TimerBody::Bytes(bytes)) => {
                timer["body_base64"] = json!(BASE64_STANDARD.encode(bytes));
                None
            }
            None => None,
        };
        if let Some(content_type) = &self.content_type {
            timer["content_type"] = json!(content_type);
        }
        if let Some(retry) = &self.retry {
            timer["retry"] = retry_json(retry);
        }
        let mut text = timer.to_string();
        if let Some(body) = verbatim {
            // A `Value` would write it anew. The object has members, and ends with its brace.
            text.pop();
            text.push_str(&format!(",\"body\":{body}}}"));
        }
        text
    }
}

/// What a worker asks for.
#[derive(Clone, Debug)]
pub struct LeasesAsked {
    /// Of which queues, whose mode is pull.
    pub queues: Vec<String>,
    /// How many at the most.
    pub max: u32,
    /// How long each lasts; as its queue says if `None`.
    pub lease: Option<Duration>,
    /// How long to wait if nothing is due.
    pub wait: Duration,
    /// The name of the worker.
    pub worker: Option<String>,
}

/// What a worker has got, each as the server said it.
#[derive(Deserialize)]
pub struct Leases {
    /// The leases.
    pub leases: Vec<Box<RawValue>>,
}

/// Without their bodies.
impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases = self.leases.iter();
        let leases = leases.map(|lease| shown::Payload(lease.get().as_bytes()));
        f.debug_list().entries(leases).finish()
    }
}

/// Names a lease. A line of `countwheel lease` is one.
#[derive(Clone, Deserialize)]
pub struct LeaseTaken {
    /// The queue of the timer.
    pub queue: String,
    /// Its key.
    pub key: String,
    /// The token of the lease.
    pub token: String,
}

/// Without what is secret.
impl fmt::Debug for LeaseTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseTaken")
            .field("queue", &self.queue)
            .field("key", &self.key)
            .field("token", &shown::Token(&self.token))
            .finish()
    }
}

impl LeaseTaken {
    /// The lease of that token.
    #[must_use]
    pub fn new(queue: &str, key: &str, token: &str) -> Self {
        let [queue, key, token] = [queue, key, token].map(str::to_owned);
        Self { queue, key, token }
    }
}

/// What is asked about leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseVerb {
    /// The attempt is done.
    Ack,
    /// It has failed.
    Nack,
    /// The lease is to end later.
    Extend,
}

impl LeaseVerb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Nack => "nack",
            Self::Extend => "extend",
        }
    }

    /// What was done of a lease, in the words of the command line.
    #[must_use]
    pub fn done(self) -> &'static str {
        match self {
            Self::Ack => "acked",
            Self::Nack => "nacked",
            Self::Extend => "extended",
        }
    }
}

#[derive(Debug, Deserialize)]
struct LeaseResults {
    results: Vec<Box<RawValue>>,
}

/// What became of a lease.
#[derive(Clone, Debug, Deserialize)]
pub struct LeaseResult {
    /// The queue of the timer.
    pub queue: String,
    /// Its key.
    pub key: String,
    /// 200, or why it was refused.
    pub status: u16,
    /// The state of the timer.
    #[serde(default)]
    pub state: Option<String>,
    /// When it is due next.
    #[serde(default)]
    pub due: Option<String>,
    /// When the lease ends.
    #[serde(default)]
    pub leased_until: Option<String>,
    /// Why it was refused, for programs.
    #[serde(default)]
    pub code: Option<String>,
    /// The same for people.
    #[serde(default)]
    pub detail: Option<String>,
}

impl LeaseResult {
    /// Whether it was done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.status == 200
    }

    /// Why it was refused, in one line.
    #[must_use]
    pub fn refusal(&self) -> String {
        let detail = self.detail.as_deref().unwrap_or("refused");
        let code = self.code.as_deref().unwrap_or_default();
        format!("{detail} ({code})")
    }
}

/// Of which queues a list is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListOf<'a> {
    /// Of one.
    Queue(&'a str),
    /// Of all whose names begin so.
    All {
        /// `None`: of every queue.
        queue_prefix: Option<&'a str>,
    },
}

/// In which order a list is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ListOrder {
    /// By due time.
    #[default]
    Due,
    /// By the time of the set, the oldest first.
    Created,
    /// The dead first, then those with the most failures.
    Trouble,
}

impl ListOrder {
    /// As the API has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Created => "created",
            Self::Trouble => "trouble",
        }
    }
}

/// In which order a list is, and what it shows of each timer.
///
/// ```
/// use countwheel_client::{ListOrder, Listing};
///
/// let listing = Listing { order: ListOrder::Trouble, ..Listing::default() };
/// assert!(!listing.next_attempts && !listing.bodies);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// The order.
    pub order: ListOrder,
    /// Whether each timer has its next attempts.
    pub next_attempts: bool,
    /// Whether each timer has its body.
    pub bodies: bool,
}

/// Which timers a list holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Only those in this state.
    pub state: Option<StateKind>,
    /// Only those whose key begins so.
    pub prefix: Option<String>,
    /// Only those due then or later.
    pub due_after: Option<Timestamp>,
    /// Only those due earlier.
    pub due_before: Option<Timestamp>,
    /// Only those that have all of these tags.
    pub tags: Vec<String>,
}

impl Filter {
    /// The fields of a filter in a body, but for the state.
    fn put_into(&self, body: &mut Value) {
        if let Some(prefix) = &self.prefix {
            body["prefix"] = prefix.as_str().into();
        }
        for (name, time) in [
            ("due_after", self.due_after),
            ("due_before", self.due_before),
        ] {
            if let Some(time) = time {
                body[name] = format_time(time).into();
            }
        }
        if !self.tags.is_empty() {
            body["tags"] = json!(self.tags);
        }
    }
}

/// What is asked of a job.
///
/// ```
/// use countwheel_client::{Filter, NewJob};
///
/// let fire = NewJob {
///     queue: "orders".to_owned(),
///     action: "fire".to_owned(),
///     filter: Filter { tags: vec!["eu".to_owned()], ..Filter::default() },
///     rate: Some(500),
///     ..NewJob::default()
/// };
/// assert!(fire.states.is_empty() && !fire.dry_run);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewJob {
    /// The queue.
    pub queue: String,
    /// `remove`, `move`, `fire` or `revive`.
    pub action: String,
    /// In which states the timers are; empty for all on which the action can act.
    pub states: Vec<StateKind>,
    /// Which timers, beside their states.
    pub filter: Filter,
    /// Where a move takes them.
    pub shift: Option<JobShift>,
    /// On how many timers it acts each second.
    pub rate: Option<u32>,
    /// Whether it only counts them.
    pub dry_run: bool,
}

/// Where a job moves timers.
///
/// ```
/// use std::time::Duration;
/// use countwheel_client::JobShift;
/// use countwheel_time::By;
///
/// let later = JobShift::By(By::Later(Duration::from_secs(300)));
/// assert_ne!(later, JobShift::To(Duration::from_secs(300).into()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobShift {
    /// To a deadline.
    To(Due),
    /// By so much from the deadline of each.
    By(By),
}

impl NewJob {
    fn to_json(&self) -> Value {
        let mut filter = json!({});
        if !self.states.is_empty() {
            filter["states"] = json!(self.states);
        }
        self.filter.put_into(&mut filter);
        let mut body = json!({ "queue": self.queue, "action": self.action, "filter": filter });
        let shift = self.shift.map(|shift| match shift {
            JobShift::To(due) => due_field(due),
            JobShift::By(by) => by_field(by),
        });
        if let Some((name, value)) = shift {
            body["move"] = json!({ name: value });
        }
        if let Some(rate) = self.rate {
            body["rate"] = rate.into();
        }
        if self.dry_run {
            body["dry_run"] = true.into();
        }
        body
    }
}

/// What the server answered: read, and as it stands.
#[derive(Clone)]
pub struct Answer<T> {
    /// What it says.
    pub value: T,
    json: Box<RawValue>,
    repeated: bool,
}

/// Without the answer as it stands, which may have a token.
impl<T: fmt::Debug> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("value", &self.value)
            .field("json", &shown::Payload(self.json.get().as_bytes()))
            .field("repeated", &self.repeated)
            .finish()
    }
}

impl<T: DeserializeOwned> Answer<T> {
    /// Reads an answer of its JSON.
    ///
    /// # Errors
    /// That it is none.
    pub fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        let json: Box<RawValue> = serde_json::from_slice(bytes)?;
        let value = serde_json::from_str(json.get())?;
        Ok(Self {
            value,
            json,
            repeated: false,
        })
    }
}

impl<T> Answer<T> {
    /// Whether an earlier try of the same request may have taken effect, of which this answer tells then: a set that is
    /// repeated may replace its own timer. Only of a client [`with_retry`](Client::with_retry).
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.repeated
    }

    /// The server's JSON on one line.
    #[must_use]
    pub fn json(&self) -> String {
        one_line(&self.json)
    }
}

/// The answer to a set.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerSet {
    /// Its key.
    #[serde(default)]
    pub key: String,
    /// What every delivery of this timer carries.
    pub id: String,
    /// Its revision.
    pub revision: u64,
    /// When it is due.
    #[serde(deserialize_with = "time")]
    pub due: Timestamp,
    /// The state of the timer that it replaced.
    #[serde(default, deserialize_with = "maybe_state")]
    pub replaced: Option<StateKind>,
}

/// The answer to a move, fire or revive.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerMoved {
    /// Its new revision.
    pub revision: u64,
    /// When it was due.
    #[serde(deserialize_with = "time")]
    pub old_due: Timestamp,
    /// When it is due now.
    #[serde(deserialize_with = "time")]
    pub due: Timestamp,
}

/// The answer to a remove.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerRemoved {
    /// What the timer was doing; `None` if it could not be read.
    #[serde(deserialize_with = "was")]
    pub was: Option<StateKind>,
    /// When it would have been due, if it was pending.
    #[serde(default, deserialize_with = "maybe_time")]
    pub due: Option<Timestamp>,
    /// The attempt that may still arrive, if it was delivering.
    #[serde(default)]
    pub attempt: Option<u32>,
}

/// A timer as the server shows it.
#[derive(Clone, PartialEq, Deserialize)]
pub struct Timer {
    /// Its queue.
    pub queue: String,
    /// Its key in the queue.
    pub key: String,
    /// What every delivery of it carries.
    pub id: String,
    /// Its revision.
    pub revision: u64,
    /// Where it stands.
    #[serde(deserialize_with = "state")]
    pub state: StateKind,
    /// When it was set.
    #[serde(deserialize_with = "time")]
    pub created: Timestamp,
    /// When the next attempt is due, or when the last one was.
    #[serde(deserialize_with = "time")]
    pub due: Timestamp,
    /// Where it is delivered.
    pub target: TimerTarget,
    /// Of its body.
    #[serde(default)]
    pub content_type: Option<String>,
    /// How long its body is.
    #[serde(default)]
    pub body_bytes: u64,
    /// Its body, if that is text and was asked for.
    #[serde(default)]
    pub body: Option<String>,
    /// Its body in base64, if that is no text and was asked for.
    #[serde(default)]
    pub body_base64: Option<String>,
    /// Its retry policy, as in a set.
    #[serde(default)]
    pub retry: Value,
    /// When it comes again, as in a set, and where it stands in that; null if it does not.
    #[serde(default)]
    pub recurring: Value,
    /// Failed attempts since it was set or revived.
    #[serde(default)]
    pub failures: u32,
    /// The number of the last attempt, 0 if there was none.
    #[serde(default)]
    pub attempt: u32,
    /// The last attempts, oldest first.
    #[serde(default)]
    pub attempts: Vec<TimerAttempt>,
    /// When the next ones would come if each failed at once.
    #[serde(default)]
    pub next_attempts: Vec<NextAttempt>,
    /// When it became done.
    #[serde(default, deserialize_with = "maybe_time")]
    pub done_at: Option<Timestamp>,
    /// When it became dead.
    #[serde(default, deserialize_with = "maybe_time")]
    pub dead_at: Option<Timestamp>,
    /// Why it is dead.
    #[serde(default)]
    pub dead_reason: Option<String>,
}

/// Without what is secret.
impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("queue", &self.queue)
            .field("key", &self.key)
            .field("id", &self.id)
            .field("revision", &self.revision)
            .field("state", &self.state)
            .field("created", &self.created)
            .field("due", &self.due)
            .field("target", &self.target)
            .field("content_type", &self.content_type)
            .field("body_bytes", &self.body_bytes)
            .field("body", &shown::text(self.body.as_deref()))
            .field("body_base64", &shown::text(self.body_base64.as_deref()))
            .field("retry", &self.retry)
            .field("recurring", &self.recurring)
            .field("failures", &self.failures)
            .field("attempt", &self.attempt)
            .field("attempts", &self.attempts)
            .field("next_attempts", &self.next_attempts)
            .field("done_at", &self.done_at)
            .field("dead_at", &self.dead_at)
            .field("dead_reason", &self.dead_reason)
            .finish()
    }
}

/// An endpoint, without what is secret.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct EndpointShown {
    /// Its name.
    pub endpoint: String,
    /// Its revision.
    pub revision: u64,
    /// Where it is.
    pub url: String,
    /// Sent with each delivery.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How long one attempt may take.
    #[serde(default)]
    pub timeout: Option<String>,
    /// The only places where deliveries go; none if they go wherever the service allows.
    #[serde(default)]
    pub allow: Vec<String>,
    /// The proxy through which they leave.
    #[serde(default)]
    pub egress_proxy: Option<String>,
    /// The version of HTTP, if it is not chosen with the target.
    #[serde(default)]
    pub http: Option<String>,
    /// What signs deliveries.
    #[serde(default)]
    pub secrets: Vec<SecretShown>,
    /// Whether no attempt starts.
    #[serde(default)]
    pub disabled: bool,
    /// Why the service has disabled it, if it has.
    #[serde(default)]
    pub disabled_reason: Option<String>,
    /// Why nothing is delivered there, if a secret cannot be opened.
    #[serde(default)]
    pub fault: Option<String>,
}

/// Without what is secret.
impl fmt::Debug for EndpointShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointShown")
            .field("endpoint", &self.endpoint)
            .field("revision", &self.revision)
            .field("url", &shown::Url(&self.url))
            .field("headers", &shown::Headers(&self.headers))
            .field("timeout", &self.timeout)
            .field("allow", &self.allow)
            .field(
                "egress_proxy",
                &self.egress_proxy.as_deref().map(shown::Url),
            )
            .field("http", &self.http)
            .field("secrets", &self.secrets)
            .field("disabled", &self.disabled)
            .field("disabled_reason", &self.disabled_reason)
            .field("fault", &self.fault)
            .finish()
    }
}

/// What came of the test of an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct EndpointTested {
    /// Its name.
    pub endpoint: String,
    /// Its attempt.
    pub attempt: TestedAttempt,
}

/// The attempt of a test.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TestedAttempt {
    /// When its request was sent, as RFC 3339.
    pub started: String,
    /// `done`, `failed` or `stopped`.
    pub result: String,
    /// The status of the answer, or why there was none.
    pub detail: String,
}

/// A secret of an endpoint, without what is secret of it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct SecretShown {
    /// Its id.
    pub id: String,
    /// When it was given, as RFC 3339.
    pub created: String,
}

/// A page of endpoints.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct EndpointPage {
    /// Those on the page.
    pub endpoints: Vec<EndpointShown>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// The settings of a queue, and how many timers it has.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct QueueShown {
    /// Its name.
    pub queue: String,
    /// How many wait.
    pub pending: u64,
    /// How many are delivered.
    pub delivering: u64,
    /// How many are done.
    pub done: u64,
    /// How many are dead.
    pub dead: u64,
    /// The revision of its settings, if it has some.
    pub revision: Option<u64>,
    /// Where its timers go that name no place.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// How long one attempt may take.
    #[serde(default)]
    pub timeout: Option<String>,
    /// How many attempts may run at a time.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// How many bytes the body of a timer may have.
    #[serde(default)]
    pub payload_limit: Option<u64>,
    /// The rule for runs that overlap, of timers that do not say it.
    #[serde(default)]
    pub overlap: Option<String>,
    /// How long its timers are kept once they have ended.
    #[serde(default)]
    pub retention: Option<RetentionShown>,
    /// The purge that runs, or that has ended within the last hour.
    #[serde(default)]
    pub purge: Option<Purge>,
}

/// How long the timers of a queue are kept once they have ended.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct RetentionShown {
    /// How long done ones are kept, if the queue says it.
    #[serde(default)]
    pub done: Option<String>,
    /// How long dead ones are kept; `None` until they are removed.
    #[serde(default)]
    pub dead: Option<String>,
}

/// Where a timer is delivered.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct TimerTarget {
    /// The URL; empty if it is delivered to an endpoint.
    #[serde(default)]
    pub url: String,
    /// The endpoint, if it names one.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// What follows the URL of the endpoint.
    #[serde(default)]
    pub path: Option<String>,
    /// Sent with each delivery.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// Without what is secret.
impl fmt::Debug for TimerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerTarget")
            .field("url", &shown::Url(&self.url))
            .field("endpoint", &self.endpoint)
            .field("path", &self.path.as_deref().map(shown::Url))
            .field("headers", &shown::Headers(&self.headers))
            .finish()
    }
}

/// One attempt.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerAttempt {
    /// From 1, one more each time.
    pub number: u32,
    /// The deadline it belongs to.
    #[serde(deserialize_with = "time")]
    pub due: Timestamp,
    /// When it was claimed; once it has ended, when its receiver had it.
    #[serde(deserialize_with = "time")]
    pub started: Timestamp,
    /// How late that was, in microseconds, without what it was held; `None` while it runs.
    #[serde(default)]
    pub late_us: Option<u64>,
    /// For how many of them a limit held it.
    #[serde(default)]
    pub held_us: u64,
    /// When its outcome arrived; `None` while it runs.
    #[serde(default, deserialize_with = "maybe_time")]
    pub ended: Option<Timestamp>,
    /// What it came to: `done`, `failed`, `stopped` or `interrupted`.
    #[serde(default)]
    pub result: Option<String>,
    /// What the receiver said, such as `503`.
    #[serde(default)]
    pub detail: Option<String>,
    /// What the service kept of the receiver's answer.
    #[serde(default)]
    pub answer: Option<TimerAnswer>,
}

/// What the service kept of the answer to an attempt.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct TimerAnswer {
    /// The status.
    pub status: u16,
    /// The beginning of the body, if that is a text.
    #[serde(default)]
    pub body: Option<String>,
    /// The beginning of the body in base64, if that is no text.
    #[serde(default)]
    pub body_base64: Option<String>,
    /// How many bytes of the body the service read.
    pub body_bytes: u64,
    /// Whether the body has more than is here, or than was read.
    pub truncated: bool,
    /// How long the phases took.
    pub times_us: TimerPhases,
}

/// Without what is secret.
impl fmt::Debug for TimerAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerAnswer")
            .field("status", &self.status)
            .field("body", &shown::text(self.body.as_deref()))
            .field("body_base64", &shown::text(self.body_base64.as_deref()))
            .field("body_bytes", &self.body_bytes)
            .field("truncated", &self.truncated)
            .field("times_us", &self.times_us)
            .finish()
    }
}

/// How long the phases of an attempt took, in microseconds; `None` for one that was not needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub struct TimerPhases {
    /// The look-up of the name.
    #[serde(default)]
    pub resolve: Option<u64>,
    /// The connection.
    #[serde(default)]
    pub connect: Option<u64>,
    /// The handshake of TLS.
    #[serde(default)]
    pub tls: Option<u64>,
    /// From the head of the request to the head of the answer.
    pub first_byte: u64,
}

/// An attempt that would come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct NextAttempt {
    /// Its number.
    pub attempt: u32,
    /// When.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
}

/// One page of a list.
#[derive(Clone, Debug, Deserialize)]
pub struct Page {
    /// The timers, each as the server wrote it.
    pub items: Vec<Box<RawValue>>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
    /// How many timers were left out because they cannot be read.
    #[serde(default)]
    pub unreadable: usize,
}

impl Page {
    /// The timers, read.
    ///
    /// # Errors
    /// [`ClientError::Unintelligible`].
    pub fn timers(&self) -> Result<Vec<Timer>, ClientError> {
        let texts = self.items.iter().map(|item| item.get());
        let timers: Result<_, _> = texts.map(serde_json::from_str).collect();
        timers.map_err(|source| ClientError::Unintelligible {
            status: 200,
            source,
        })
    }
}

/// How many timers each queue has.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Queues {
    /// One for each queue.
    pub queues: Vec<QueueCount>,
    /// The cursor of the next page, if there is one.
    #[serde(default)]
    pub next: Option<String>,
    /// How all queues are drained or paused.
    #[serde(default)]
    pub drain: Option<Drain>,
}

/// How many timers one queue has.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct QueueCount {
    /// Its name.
    pub queue: String,
    /// Those that wait.
    pub pending: u64,
    /// Those with a running attempt.
    pub delivering: u64,
    /// Those that succeeded and are still known.
    pub done: u64,
    /// Those given up.
    pub dead: u64,
    /// How the queue is drained or paused.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// The purge that runs, or that has ended within the last hour.
    #[serde(default)]
    pub purge: Option<Purge>,
}

/// How far a purge is.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Purge {
    /// Its number.
    pub id: u64,
    /// How many timers it has removed.
    pub removed: u64,
    /// In how many shards there may be more to remove.
    pub shards_left: u16,
    /// When it was through.
    #[serde(default, deserialize_with = "maybe_time")]
    pub ended: Option<Timestamp>,
}

/// The answer to a purge, and to the end of one.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct QueuePurged {
    /// The queue.
    pub queue: String,
    /// How far its purge is.
    pub purge: Purge,
}

/// All jobs that are shown.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Jobs {
    /// In the order in which they were asked for.
    pub jobs: Vec<JobShown>,
}

/// How far a job is.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct JobShown {
    /// Its number.
    pub id: u64,
    /// The queue.
    pub queue: String,
    /// `remove`, `move`, `fire` or `revive`.
    pub action: String,
    /// Whether it only counts.
    pub dry_run: bool,
    /// How many timers its filter wanted.
    pub matched: u64,
    /// On how many it has acted.
    pub done: u64,
    /// How many had changed when it came to them.
    pub skipped: u64,
    /// In how many shards there may be more.
    pub shards_left: u16,
    /// Whether it was cancelled.
    #[serde(default)]
    pub cancelled: bool,
    /// When it ended.
    #[serde(default, deserialize_with = "maybe_time")]
    pub ended: Option<Timestamp>,
}

/// How a queue is drained or paused.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Drain {
    /// `fire`, `hold`, `remove` or `pause`.
    pub mode: String,
    /// When what is due goes out no more; of a pause, when it goes out again.
    #[serde(default, deserialize_with = "maybe_time")]
    pub until: Option<Timestamp>,
}

/// What a drained queue still holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Left {
    /// Those that wait.
    pub pending: u64,
    /// Those with a running attempt.
    pub delivering: u64,
    /// Those given up.
    pub dead: u64,
}

/// The answer to a drain or pause.
#[derive(Clone, Debug, Deserialize)]
pub struct QueueDrained {
    /// How the queue is drained.
    pub drain: Drain,
    /// The timers that were taken out, each as the server wrote it.
    #[serde(default)]
    pub removed: Vec<Box<RawValue>>,
    /// What is left.
    pub left: Left,
}

/// The answer to a resume.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct QueueResumed {
    /// How the queue was drained.
    #[serde(default)]
    pub was: Option<Drain>,
    /// What the queue holds.
    pub left: Left,
}

/// A snapshot that was made.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct SnapshotMade {
    /// Its name.
    pub name: String,
    /// The last commit that is in it.
    pub commit: u64,
    /// How many files it has.
    pub files: u64,
    /// How long they are together.
    pub bytes: u64,
    /// How many bytes were copied; the others are linked.
    pub copied_bytes: u64,
}

/// When each attempt would come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Simulation {
    /// The attempts in order.
    pub attempts: Vec<SimulatedAttempt>,
    /// From the first to the last.
    pub total_ms: u64,
    /// Whether more would follow.
    pub truncated: bool,
    /// What comes after the last, `None` if it was cut off.
    pub then: Option<String>,
}

/// One attempt that would come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct SimulatedAttempt {
    /// Its number, from 1.
    pub attempt: u32,
    /// When, with jitter taking nothing off.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
    /// When, with jitter taking off all it can.
    #[serde(deserialize_with = "time")]
    pub earliest: Timestamp,
    /// Since the attempt before it.
    pub delay_ms: u64,
    /// Since the first.
    pub after_ms: u64,
}

/// When each run would come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct SimulatedRuns {
    /// The runs in order.
    pub runs: Vec<SimulatedRun>,
    /// Whether more would follow.
    pub truncated: bool,
    /// What comes after the last, `None` if it was cut off.
    pub then: Option<String>,
}

/// One run that would come.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct SimulatedRun {
    /// Its number, from 1.
    pub run: u32,
    /// Its nominal time.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
    /// When it is due at the latest, by its jitter.
    #[serde(deserialize_with = "time")]
    pub latest: Timestamp,
    /// What a clock in the zone of a cron expression then shows.
    #[serde(default)]
    pub local: Option<String>,
}

/// Why a request brought no answer, or not the one asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server's URL cannot be used. Nothing was sent.
    #[error("{text:?} is not a server's http or https URL{}", suggestion(text))]
    Address {
        /// What was given.
        text: String,
    },
    /// The path of a `unix:/path` URL cannot be that of a socket. Nothing was sent.
    #[error("{text:?} names no socket: {fault}")]
    Socket {
        /// What was given.
        text: String,
        /// What is wrong with the path.
        fault: SocketFault,
    },
    /// The token cannot be sent in a header. Nothing was sent.
    #[error("the token has characters that a header cannot carry")]
    Token,
    /// A file with certificates or with a key cannot be used. Nothing was sent.
    #[error("{}: {problem}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The API has no words for the retry policy. Nothing was sent.
    #[error(transparent)]
    Policy(PolicyError),
    /// No connection. Nothing was sent.
    #[error("no server at {server}: {}", innermost(source.as_ref()))]
    Unreachable {
        /// Where.
        server: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke. Whether the request took effect is not known.
    #[error("the connection to {server} broke: {}", innermost(source.as_ref()))]
    Broken {
        /// Where.
        server: String,
        /// How.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer in time. Whether the request took effect is not known.
    #[error("no answer from {server} in {timeout:?}")]
    Silent {
        /// Where.
        server: String,
        /// How long was waited.
        timeout: Duration,
    },
    /// The token is missing or wrong. Nothing was changed.
    #[error(transparent)]
    Unauthorized(Box<Problem>),
    /// The server said no. Below status 500 nothing was changed.
    #[error(transparent)]
    Refused(Box<Problem>),
    /// An answer that is not in the words of the API: no JSON, or a refusal without a code. Most often the URL is that of
    /// another service, or a proxy has answered.
    #[error(
        "{server} answered {status}, and not as Countwheel does{}",
        told(begins)
    )]
    Foreign {
        /// Where.
        server: String,
        /// The status.
        status: u16,
        /// The first line of the answer, cut.
        begins: String,
    },
    /// The server said yes, but not in words that we know.
    #[error("the answer with status {status} cannot be read: {source}")]
    Unintelligible {
        /// The status.
        status: u16,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl ClientError {
    /// The server's refusal, if it is one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) | Self::Unauthorized(problem) => Some(problem),
            _ => None,
        }
    }

    /// The status of the answer, if there was one.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(problem) | Self::Unauthorized(problem) => Some(problem.status),
            Self::Unintelligible { status, .. } | Self::Foreign { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Which error it is, as one word.
    ///
    /// ```
    /// use countwheel_client::Client;
    ///
    /// assert_eq!(Client::new("127.0.0.1:7070", None).unwrap_err().kind(), "address");
    /// assert_eq!(Client::new("http://127.0.0.1", Some("a\n")).unwrap_err().kind(), "token");
    /// ```
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Address { .. } => "address",
            Self::Socket { .. } => "socket",
            Self::Token => "token",
            Self::File { .. } => "file",
            Self::Policy(_) => "policy",
            Self::Unreachable { .. } => "unreachable",
            Self::Broken { .. } => "broken",
            Self::Silent { .. } => "silent",
            Self::Unauthorized(_) => "unauthorized",
            Self::Refused(_) => "refused",
            Self::Foreign { .. } => "foreign",
            Self::Unintelligible { .. } => "unintelligible",
        }
    }

    /// Whether the server could not be spoken to, or said that it is not able to work. A namespace at its quota
    /// (`507 quota_exceeded`) is no outage.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Silent { .. } => true,
            Self::Refused(problem) => problem.status >= 500 && problem.code != "quota_exceeded",
            Self::Foreign { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Whether the next try may go better: an outage, or a server with too much to do.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.is_outage() || self.status() == Some(429)
    }

    /// Whether the request may have taken effect although it seems to have failed.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Unreachable { .. } => false,
            Self::Unintelligible { .. } => true,
            Self::Foreign { status, .. } => *status < 300 || *status >= 500,
            _ => self.is_outage(),
        }
    }
}

/// A refusal: RFC 9457 with our own members.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, thiserror::Error)]
#[serde(default)]
#[error("{}{detail} ({code}){}", self.operation(), self.faults())]
pub struct Problem {
    /// The status of the answer.
    pub status: u16,
    /// What went wrong, for programs.
    pub code: String,
    /// What went wrong, for people.
    pub detail: String,
    /// The state the timer is in, where that is the reason.
    pub state: Option<String>,
    /// The revision it has, where that is the reason.
    pub revision: Option<u64>,
    /// Which fields are at fault.
    pub errors: Vec<FieldError>,
    /// The operation of an atomic batch that was refused, counted from 0.
    pub item: Option<u64>,
    /// When to ask again.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
    /// Whether an earlier try of the same request may have taken effect, so that this refusal may be of it: a remove
    /// that is repeated finds nothing, and a set of a new key finds its own timer. Only of a client
    /// [`with_retry`](Client::with_retry).
    #[serde(skip)]
    pub repeated: bool,
}

impl Problem {
    fn operation(&self) -> String {
        let named = |item| format!("operation {item}: ");
        self.item.map(named).unwrap_or_default()
    }

    fn faults(&self) -> String {
        let fault = |error: &FieldError| format!("; {}: {}", error.pointer, error.detail);
        // A single fault often repeats the detail.
        let told = |error: &&FieldError| error.detail != self.detail;
        self.errors.iter().filter(told).map(fault).collect()
    }
}

/// A field at fault.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct FieldError {
    /// Which, as a JSON pointer.
    #[serde(default)]
    pub pointer: String,
    /// What is wrong with it.
    #[serde(default)]
    pub detail: String,
}

/// What an answer began with, if it had something.
fn told(begins: &str) -> String {
    if begins.is_empty() {
        return String::new();
    }
    format!(": {begins:?}")
}

/// The URL that was meant, if nothing but the scheme is missing.
fn suggestion(text: &str) -> String {
    let url = format!("http://{text}");
    let meant = !text.contains("://")
        && !text.contains(['?', '#'])
        && url
            .parse::<Uri>()
            .is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    if meant {
        format!("; did you mean {url}?")
    } else {
        String::new()
    }
}

/// What connects to the server at this URL of `http` or `https`.
fn web(server: &str) -> Result<Connector, ClientError> {
    let address = || ClientError::Address {
        text: server.to_owned(),
    };
    let uri: Uri = server.parse().map_err(|_| address())?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    // The client adds it itself: with both, each path is one that there is not.
    let has_version = uri.path().trim_end_matches('/').ends_with("/v1");
    if !is_web || has_version || uri.query().is_some() || uri.host().is_none_or(str::is_empty) {
        return Err(address());
    }
    // To read the authorities of the system takes longer than most requests.
    let tls = if uri.scheme_str() == Some("https") {
        roots::with_system()
    } else {
        roots::public()
    };
    Ok(Connector::web(tls))
}

/// The path of an endpoint.
fn endpoint_path(name: &str) -> String {
    format!("/v1/endpoints/{}", escape(name))
}

/// Only of this revision, if there is one.
fn of_revision(revision: Option<u64>) -> Precondition {
    revision.map_or(Precondition::None, |revision| {
        Precondition::Revision(Revision(revision))
    })
}

fn queue_path(queue: Option<&str>, verb: &str) -> String {
    match queue {
        None => format!("/v1/queues{verb}"),
        Some(queue) => format!("/v1/queues/{}{verb}", escape(queue)),
    }
}

/// When a timer is due, as the fields of a set say it.
fn put_schedule(body: &mut Value, due: Due, recurrence: Option<&Recurrence>) {
    let (field, value) = due_field(due);
    body[field] = value;
    let Some(recurrence) = recurrence else {
        return;
    };
    if let Schedule::FixedRate {
        anchor: Some(_), ..
    } = recurrence.schedule
        && let Some(fields) = body.as_object_mut()
    {
        fields.remove(field);
    }
    for (name, value) in words::recurrence(recurrence) {
        body[name] = value;
    }
}

fn due_field(due: Due) -> (&'static str, Value) {
    match due {
        Due::In(delay) => ("in", json!(millis(delay))),
        Due::At(at) => ("at", json!(format_time(at))),
    }
}

fn by_field(by: By) -> (&'static str, Value) {
    let millis = match by {
        By::Later(span) => millis(span),
        By::Sooner(span) => -millis(span),
    };
    ("by", json!(millis))
}

/// Whole milliseconds, rounded up.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

fn retry_json(policy: &RetryPolicy) -> Value {
    let exponential = |first, factor, cap| json!({ "first": millis(first), "factor": factor, "cap": millis(cap) });
    Value::Object(words::retry(policy.settings(), millis, exponential))
}

/// The body of a request that simulates a retry policy. `countwheel simulate` counts it out without a server.
///
/// # Errors
/// [`ClientError`].
pub fn simulation(
    retry: &RetryPolicy,
    start: Option<Timestamp>,
    limit: u32,
) -> Result<Value, ClientError> {
    sayable(Some(retry))?;
    let mut body = json!({ "retry": retry_json(retry), "limit": limit });
    if let Some(start) = start {
        body["start"] = format_time(start).into();
    }
    Ok(body)
}

/// The body of a request that simulates a schedule.
pub fn runs_simulation(
    due: Due,
    recurrence: &Recurrence,
    start: Option<Timestamp>,
    limit: u32,
) -> Value {
    let mut body = json!({ "limit": limit });
    put_schedule(&mut body, due, Some(recurrence));
    if let Some(start) = start {
        body["start"] = format_time(start).into();
    }
    body
}

/// Refuses what the API has no words for. The server checks the bounds.
fn sayable(policy: Option<&RetryPolicy>) -> Result<(), ClientError> {
    match policy.map_or(Ok(()), check_policy) {
        Err(error @ PolicyError::NotKept { .. }) => Err(ClientError::Policy(error)),
        _ => Ok(()),
    }
}

/// The last error of a chain, which names the cause and not who passed it on.
fn innermost<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> &'e (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

fn time<'de, D: Deserializer<'de>>(source: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(source)?;
    parse_time(&text).ok_or_else(|| serde::de::Error::custom(format!("no time: {text:?}")))
}

fn maybe_time<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(source)?;
    let read = |text: String| {
        parse_time(&text).ok_or_else(|| serde::de::Error::custom(format!("no time: {text:?}")))
    };
    text.map(read).transpose()
}

fn state<'de, D: Deserializer<'de>>(source: D) -> Result<StateKind, D::Error> {
    let text = String::deserialize(source)?;
    if text == LEASED {
        return Ok(StateKind::Delivering);
    }
    text.parse().map_err(serde::de::Error::custom)
}

fn was<'de, D: Deserializer<'de>>(source: D) -> Result<Option<StateKind>, D::Error> {
    let text = String::deserialize(source)?;
    if text == "unreadable" {
        return Ok(None);
    }
    if text == LEASED {
        return Ok(Some(StateKind::Delivering));
    }
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn maybe_state<'de, D: Deserializer<'de>>(source: D) -> Result<Option<StateKind>, D::Error> {
    Option::<String>::deserialize(source)?
        .map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_one_segment_of_the_path() {
        assert_eq!(
            timer_path("a.b:c", "../ö?:fire", ":fire"),
            "/v1/queues/a.b%3Ac/timers/..%2F%C3%B6%3F%3Afire:fire"
        );
    }

    #[test]
    fn a_set_is_written_as_the_contract_says() {
        let timer = NewTimer {
            endpoint: None,
            method: Method::POST,
            due: Due::In(Duration::from_secs(1800)),
            options: SetOptions::default(),
            url: "https://example.com/hook".to_owned(),
            headers: [("x-shop".to_owned(), "7".to_owned())].into(),
            timeout: Some(Duration::from_secs(15)),
            body: Some(TimerBody::Value(json!({"order": 42}))),
            content_type: None,
            retry: Some(RetryPolicy::wechat().max_retries(2)),
            tags: vec!["eu".to_owned()],
        };
        assert_eq!(
            serde_json::from_str::<Value>(&timer.to_json()).unwrap(),
            json!({
                "in": 1_800_000,
                "target": {
                    "url": "https://example.com/hook",
                    "headers": {"x-shop": "7"},
                    "timeout": 15_000
                },
                "body": {"order": 42},
                "retry": {"preset": "wechat", "jitter": "none", "max_attempts": 3},
                "tags": ["eu"]
            })
        );
    }

    #[test]
    fn a_schedule_is_written_in_the_fields_of_a_set() {
        let written = |due, schedule| {
            let mut body = json!({});
            put_schedule(&mut body, due, Some(&Recurrence::new(schedule)));
            body
        };
        let every = Duration::from_secs(30);
        let first = Due::In(Duration::from_secs(5));
        let anchor = Some(Timestamp::EPOCH);
        let rate = |anchor| Schedule::FixedRate { every, anchor };
        assert_eq!(
            written(first, rate(None)),
            json!({"in": 5_000, "every": "30s", "overlap": "skip"})
        );
        assert_eq!(
            written(first, rate(anchor)),
            json!({"at": "1970-01-01T00:00:00.000000Z", "every": "30s", "overlap": "skip"})
        );
    }

    #[test]
    fn a_refusal_reads_as_one_line() {
        let problem: Problem = serde_json::from_value(json!({
            "type": "/problems/invalid_retry", "title": "x", "status": 422,
            "detail": "a delay is 1 ms to 365 days", "code": "invalid_retry",
            "errors": [{"pointer": "/retry/fixed", "detail": "0 ms"}]
        }))
        .unwrap();
        assert_eq!(
            problem.to_string(),
            "a delay is 1 ms to 365 days (invalid_retry); /retry/fixed: 0 ms"
        );
    }

    #[test]
    fn a_server_is_an_http_or_https_url() {
        for bad in [
            "http://timers.example/v1",
            "http://timers.example/base/v1/",
            "",
            "localhost",
            "ftp://x",
            "http://",
            "http://x/?q",
            "/v1",
        ] {
            let error = Client::new(bad, None).unwrap_err();
            assert!(matches!(error, ClientError::Address { .. }), "{bad}");
        }
        let told = |bad| Client::new(bad, None).unwrap_err().to_string();
        assert!(told("localhost:7171").ends_with("; did you mean http://localhost:7171?"));
        assert!(told("ftp://x").ends_with(" URL"));
        assert!(told("/v1").ends_with(" URL"));
        let client = Client::new("https://timers.example/under/", None).unwrap();
        assert_eq!(client.server(), "https://timers.example/under");
        assert!(matches!(
            Client::new("http://x", Some("a\nb")),
            Err(ClientError::Token)
        ));
    }
}
