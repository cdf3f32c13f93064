//! The HTTP API. Its contract is `docs/api.md`.

pub(crate) mod access;
pub(crate) mod access_log;
pub(crate) mod audit;
pub(crate) mod backfill;
pub(crate) mod batch;
mod cluster;
pub(crate) mod cors;
pub(crate) mod described;
mod drain;
pub(crate) mod endpoints;
pub(crate) mod events;
pub(crate) mod idempotency;
pub(crate) mod jobs;
pub(crate) mod json;
mod leases;
mod moving;
mod namespaces;
mod operate;
mod pages;
pub(crate) mod problem;
mod purge;
mod queues;
pub(crate) mod reach;
pub(crate) mod reading;
pub(crate) mod recurrence;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod simulate;
mod snapshots;
pub(crate) mod stats;
pub(crate) mod stored;
pub(crate) mod tags;
pub(crate) mod timers;
pub(crate) mod tokens;

use std::any::Any;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::uri::Authority;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header,
};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use countwheel_durable::store::Shard;
use countwheel_durable::{
    self as durable, Key, Record, State as Standing, TimerError, Timers, Trouble,
};
use countwheel_time::Clock;
use parking_lot::Mutex;
use serde::Serialize;
use subtle::ConstantTimeEq;
use tokio::sync::{Semaphore, oneshot, watch};
use tower_http::catch_panic::CatchPanicLayer;

use self::access::{Access, Identity};
use self::access_log::Line;
use self::audit::{Asking, Audit};
use self::idempotency::Posts;
use self::problem::{Code, Problem};
use self::snapshots::Snapshots;
use crate::answered::KeepAnswers;
use crate::bodies::Bodies;
use crate::callers::{Caller, Peer};
use crate::cluster::Cluster;
use crate::dashboard;
use crate::dashboard::session::Sessions;
use crate::deliver::HttpHandler;
use crate::echo::{self, Echo};
use crate::events::Events;
use crate::framing::{Fault, HEAD_MAX_BYTES, HEADERS_MAX};
use crate::gather::Leaser;
use crate::guard::Targets;
use crate::metrics::{Callers, RequestLabels, Requests};
use crate::moving::{Moves, Passed};
use crate::places::{Figures, Places};
use crate::pool::Phases;
use crate::quotas::{self, Usage};
use crate::resources::flows::{Closed, DeliveryLimits};
use crate::resources::sealed::Vault;
use crate::resources::token::TokenId;
use crate::resources::{Catalogue, Resources};
use crate::roots;
use crate::scrub::Progress;
use crate::tally::Tally;
use crate::time::format_time;
use crate::tls::{ServerTls, TlsFigures};

/// How long an answer of a service on a database may take: a second longer than what is asked of another node.
const ANSWERED_WITHIN: Duration = Duration::from_secs(16);
/// The longest path with query, in bytes.
const URI_MAX_BYTES: usize = 8 << 10;
/// How many reads of the store run at a time; the others wait. A page can be large.
const READS_MAX: usize = 16;

/// The methods that one path or another takes.
const ALL_METHODS: &str = "GET,HEAD,PUT,PATCH,DELETE,POST";

/// How many bytes of bodies there may be at a time, unless said otherwise.
pub(crate) const BODY_BYTES: usize = 64 << 20;
/// For how long a request waits while all timers change hands.
const HELD_AT_MOST: Duration = Duration::from_secs(15);
/// The header of an answer to a request by a token that ends soon: when.
pub(crate) static TOKEN_EXPIRES: HeaderName = HeaderName::from_static("countwheel-token-expires");
/// How many of `/metrics` are written at a time, beside the reads of the store.
const METRICS_MAX: usize = 2;
/// How many tests of endpoints run at a time.
pub(crate) const TESTS_MAX: usize = 4;

/// Why a request goes no further than the connection that it came on. The connection notes it in the
/// request's extensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Barred {
    /// There is no place for it, but for health and metrics.
    NoPlace,
    /// It stands for one that was not in due form.
    Framing(Fault),
}

impl Barred {
    fn refuses(self, request: &Request<Body>) -> Option<Problem> {
        match self {
            Self::NoPlace if is_of_operator(request.uri().path()) => None,
            Self::NoPlace => Some(Problem::new(
                Code::Overloaded,
                "too many connections or requests are open, of this address or in all",
            )),
            Self::Framing(Fault::Malformed(detail)) => Some(Problem::malformed(detail)),
            Self::Framing(Fault::UnknownCoding) => Some(Problem::new(
                Code::NotImplemented,
                "the only supported transfer coding is chunked",
            )),
            Self::Framing(Fault::TooLarge) => Some(Problem::new(
                Code::HeadTooLarge,
                format!("a head has at most {HEAD_MAX_BYTES} bytes and {HEADERS_MAX} headers"),
            )),
        }
    }
}

/// What every request may need.
#[derive(Debug)]
pub struct App {
    pub(crate) timers: Timers,
    /// Of a service on a database, how long an answer may take.
    answers_within: Option<Duration>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) requests: Requests,
    pub(crate) echo: Echo,
    pub(crate) scrub: Arc<Progress>,
    /// How long connections to targets take.
    phases: Arc<Mutex<Phases>>,
    /// The connections of callers.
    places: Option<Arc<Places>>,
    pub(crate) access: Access,
    /// Who looks at the pages.
    pub(crate) sessions: Sessions,
    dev: bool,
    reads: Arc<Semaphore>,
    metrics: Arc<Semaphore>,
    /// The memory for pages that are read whole, in KiB.
    pages: Arc<Semaphore>,
    /// The memory for bodies.
    pub(crate) bodies: Arc<Bodies>,
    snapshots: Option<Snapshots>,
    /// On a database, the nodes.
    cluster: Option<Arc<Cluster>>,
    /// In a directory, what moves the timers into a database.
    moves: Option<Arc<Moves>>,
    pub(crate) targets: Targets,
    /// The queues and endpoints that are stored.
    catalogue: Arc<Catalogue>,
    /// Where deliveries have limits by where they go.
    flows: Option<Arc<DeliveryLimits>>,
    /// Where workers get leases.
    leaser: Option<Arc<Leaser>>,
    /// The figures of all nodes.
    tally: Arc<Tally>,
    /// Where streams of events get them.
    events: Option<Arc<Events>>,
    /// What streams of events were told last.
    last_pieces: Arc<events::LastPieces>,
    /// What makes the requests of tests of endpoints.
    tester: Option<HttpHandler>,
    tests: Semaphore,
    /// Changes of queues and endpoints are checked and made one after the other.
    changes: tokio::sync::Mutex<()>,
    /// What namespaces use of their quotas.
    usage: Usage,
    /// What POSTs with an idempotency key need.
    posts: Posts,
    /// Whether the service stops: then batches end.
    stopping: watch::Sender<bool>,
    /// What of the answers of targets is kept, and shown.
    keep_answers: KeepAnswers,
    /// What is noted of changes, and for how long.
    audit: Audit,
    /// Whether each request has a line in the log.
    has_access_log: bool,
    /// The web pages that may call.
    cors: cors::Origins,
    /// What callers are shown, where TLS is spoken.
    tls: Option<Arc<ServerTls>>,
    /// Whether the start is over: of a node, whether it has taken its shards once.
    is_started: AtomicBool,
    next_request: AtomicU64,
    /// Told apart from those of another process by this.
    request_prefix: u32,
}

/// What callers must show. Never printed.
#[derive(Clone)]
pub struct Token(Box<str>);

impl Token {
    /// Takes `token`; `None` unless it is one or more printable ASCII characters.
    #[must_use]
    pub fn new(token: &str) -> Option<Self> {
        let printable = token.bytes().all(|byte| byte.is_ascii_graphic());
        (printable && !token.is_empty()).then(|| Self(token.into()))
    }

    /// How many bits of randomness it has at the most, by its length and the kinds of characters in
    /// it.
    pub(crate) fn bits(&self) -> u32 {
        let is_of = |kind: fn(u8) -> bool| self.0.bytes().all(kind);
        // In thousandths of a bit a character.
        let per_character = if is_of(|byte| byte.is_ascii_digit()) {
            3_322
        } else if is_of(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            4_000
        } else if is_of(|byte| byte.is_ascii_lowercase()) {
            4_700
        } else if is_of(|byte| byte.is_ascii_alphanumeric()) {
            5_954
        } else {
            6_555
        };
        u32::try_from(self.0.len() * per_character / 1_000).unwrap_or(u32::MAX)
    }

    /// Takes as long for a wrong token as for the right one, but for its length.
    pub(crate) fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Hands an answer on to a caller.
fn answer_to(
    send: oneshot::Sender<Result<durable::Response, TimerError>>,
) -> impl FnOnce(Result<durable::Response, TimerError>) + Send + 'static {
    move |answer| {
        // A caller that hung up does not hear what was done.
        send.send(answer).unwrap_or_default();
    }
}

impl App {
    /// The API of `timers`. In `dev`, there is `/echo` as well.
    #[must_use]
    pub fn new(timers: Timers, clock: Arc<dyn Clock>, token: Option<Token>, dev: bool) -> Self {
        let is_far = timers.durability().is_some();

        let (vault, roots) = (Vault::without_key(true), Arc::new(roots::of_program()));
        let catalogue = Catalogue::new(vault, roots, Arc::clone(&clock));
        let tally = Arc::new(Tally::new(timers.clone(), Arc::clone(&clock)));
        let usage = Usage::new(Arc::clone(&clock));
        Self {
            answers_within: is_far.then_some(ANSWERED_WITHIN),
            timers,
            clock,
            requests: Requests::default(),
            echo: Echo::default(),
            scrub: Arc::default(),
            phases: Arc::default(),
            places: None,
            access: Access::new(token),
            sessions: Sessions::of(catalogue.vault()),
            dev,
            reads: Arc::new(Semaphore::new(READS_MAX)),
            metrics: Arc::new(Semaphore::new(METRICS_MAX)),
            pages: Arc::new(Semaphore::new(pages::WHOLE_KIB)),
            bodies: Bodies::new(BODY_BYTES),
            snapshots: None,
            cluster: None,
            moves: None,
            targets: Targets::public(),
            catalogue: Arc::new(catalogue),
            flows: None,
            leaser: None,
            tally,
            events: None,
            last_pieces: Arc::default(),
            tester: None,
            tests: Semaphore::new(TESTS_MAX),
            changes: tokio::sync::Mutex::default(),
            usage,
            posts: Posts::default(),
            stopping: watch::Sender::new(false),
            keep_answers: KeepAnswers::default(),
            audit: Audit::default(),
            has_access_log: false,
            cors: cors::Origins::default(),
            tls: None,
            is_started: AtomicBool::new(false),
            next_request: AtomicU64::new(1),
            // Only to tell processes apart in logs: without randomness it is merely duller.
            request_prefix: getrandom::u32().unwrap_or_default(),
        }
    }

    /// The same API, with snapshots in `directory` if there is one.
    #[must_use]
    pub fn with_snapshots(mut self, directory: Option<PathBuf>) -> Self {
        self.snapshots = directory.map(Snapshots::new);
        self
    }

    /// The same API, of a node of a cluster.
    #[must_use]
    pub(crate) fn with_cluster(mut self, cluster: Option<Arc<Cluster>>) -> Self {
        self.cluster = cluster;
        self
    }

    /// The same API, of a service whose timers can be moved.
    #[must_use]
    pub(crate) fn with_moves(mut self, moves: Option<Arc<Moves>>) -> Self {
        self.moves = moves;
        self
    }

    /// The same API, where callers are shown this.
    #[must_use]
    pub(crate) fn with_tls(mut self, tls: Option<Arc<ServerTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// What the operator sees of the certificate that callers are shown.
    pub(crate) fn tls(&self) -> Option<TlsFigures> {
        self.tls.as_ref().map(|tls| tls.figures())
    }

    /// What moves the timers into a database, if anything may.
    pub(crate) fn moves(&self) -> Option<&Arc<Moves>> {
        self.moves.as_ref()
    }

    /// Of a service on a database, how long an answer may take.
    pub(crate) fn answers_within(&self) -> Option<Duration> {
        self.answers_within
    }

    /// Whether the service stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// The service stops: batches read nothing more, and later ones are refused.
    pub(crate) fn stop_batches(&self) {
        self.stopping.send_replace(true);
    }

    /// What cannot be read or done, while everything else goes on.
    pub(crate) fn troubles(&self) -> Vec<Trouble> {
        let own = self.cluster().map(|cluster| cluster.troubles());
        let tls = self.tls.as_ref().and_then(|tls| tls.trouble());
        let own = own.into_iter().flatten().chain(tls);
        self.timers.troubles().into_iter().chain(own).collect()
    }

    /// The nodes, if this process is one.
    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// The same API, which takes timers for `targets`. Without it, those are
    /// [`Targets::public`].
    #[must_use]
    pub fn with_targets(mut self, targets: Targets) -> Self {
        self.targets = targets;
        self
    }

    /// The same API with the queues and endpoints that deliveries see.
    #[must_use]
    pub(crate) fn with_catalogue(
        mut self,
        catalogue: Arc<Catalogue>,
        flows: Arc<DeliveryLimits>,
    ) -> Self {
        self.sessions = Sessions::of(catalogue.vault());
        self.catalogue = catalogue;
        self.flows = Some(flows);
        self
    }

    /// The same API, which tests endpoints by this handler.
    #[must_use]
    pub(crate) fn with_tester(mut self, tester: HttpHandler) -> Self {
        self.tester = Some(tester);
        self
    }

    /// What POSTs with an idempotency key need of each other.
    pub(crate) fn posts(&self) -> &Posts {
        &self.posts
    }

    /// What namespaces use of their quotas.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The queues and endpoints that are stored.
    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The same API, whose workers get their leases here.
    #[must_use]
    pub(crate) fn with_leaser(mut self, leaser: Arc<Leaser>) -> Self {
        self.leaser = Some(leaser);
        self
    }

    /// The same API, which shows these figures.
    #[must_use]
    pub(crate) fn with_tally(mut self, tally: Arc<Tally>) -> Self {
        self.tally = tally;
        self
    }

    /// The figures of all nodes.
    pub(crate) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// The same API, which tells what commits do.
    #[must_use]
    pub(crate) fn with_events(mut self, events: Arc<Events>) -> Self {
        self.events = Some(events);
        self
    }

    /// What streams of events were told last.
    fn last_pieces(&self) -> &Arc<events::LastPieces> {
        &self.last_pieces
    }

    /// Where streams of events get them.
    pub(crate) fn events(&self) -> Option<&Arc<Events>> {
        self.events.as_ref()
    }

    /// Where workers get leases.
    pub(crate) fn leaser(&self) -> Option<&Arc<Leaser>> {
        self.leaser.as_ref()
    }

    /// Why a timer that is due waits, if something else than a lack of places holds it.
    fn held_by(&self, record: &Record) -> Option<String> {
        let flows = self.flows.as_ref()?;
        if record.state != Standing::Pending || !self.timers.is_due(record) {
            return None;
        }
        let closed = flows.closed(&record.name, &record.payload);
        let closed = closed.map(|Closed(why)| why);
        closed.or_else(|| drain::held_by(&self.timers.drains(), &record.name.queue, &*self.clock))
    }

    /// All queues and endpoints, as they are now or were a moment ago.
    pub(crate) async fn resources(&self) -> Result<Arc<Resources>, Problem> {
        match self.catalogue.current(&self.timers) {
            Some(known) => Ok(known),
            None => self.look().await,
        }
    }

    /// All queues and endpoints, as they are now.
    pub(crate) async fn look(&self) -> Result<Arc<Resources>, Problem> {
        let catalogue = Arc::clone(&self.catalogue);
        if self.cluster.is_some() {
            return Ok(catalogue.look_at_store(self.timers.clone()).await);
        }
        self.read(move |timers| Ok(catalogue.refresh(timers))).await
    }

    /// The same API, which shows no more of the answers of targets than is kept of new ones.
    #[must_use]
    pub fn with_answers(mut self, keep: KeepAnswers) -> Self {
        self.keep_answers = keep;
        self
    }

    /// What is shown of the answers of targets.
    pub(crate) fn keep_answers(&self) -> KeepAnswers {
        self.keep_answers
    }

    /// The same API, which web pages of these origins may call.
    #[must_use]
    pub(crate) fn with_cors(mut self, origins: cors::Origins) -> Self {
        self.cors = origins;
        self
    }

    /// The same API, with this memory for bodies.
    #[must_use]
    pub(crate) fn with_bodies(mut self, bodies: Arc<Bodies>) -> Self {
        self.bodies = bodies;
        self
    }

    /// The same API, with so many bytes of bodies at a time.
    #[must_use]
    pub fn with_body_bytes(mut self, bytes: usize) -> Self {
        self.bodies = Bodies::new(bytes);
        self
    }

    /// The same API, which shows how long connections take to targets, and what callers have open.
    #[must_use]
    pub(crate) fn with_connections(
        mut self,
        phases: Arc<Mutex<Phases>>,
        places: Arc<Places>,
    ) -> Self {
        self.phases = phases;
        self.places = Some(places);
        self
    }

    /// What is open of callers and to targets.
    pub(crate) fn callers(&self) -> Callers {
        let phases = self.phases.lock();
        Callers {
            places: self
                .places
                .as_ref()
                .map_or_else(Figures::default, |places| places.figures()),
            bodies: self.bodies.taken(),
            events: self
                .events
                .as_ref()
                .map_or_else(Default::default, |events| events.figures()),
            phases: phases.clone(),
        }
    }

    pub(crate) fn scrub(&self) -> Arc<Progress> {
        Arc::clone(&self.scrub)
    }

    pub(crate) fn needs_token(&self) -> bool {
        self.access.is_needed(&self.catalogue.known())
    }

    /// The key of a timer, where its tag decides about its shard.
    pub(crate) fn tagged<'k>(&self, key: &'k Key) -> Option<&'k Key> {
        self.timers.shards().is_by_tag().then_some(key)
    }

    /// Hands a request to the scheduler, with a note for the audit log if that has such requests. The future waits for the
    /// answer of its verb.
    pub(crate) fn ask<T: TryFrom<durable::Response>>(
        &self,
        request: durable::Request,
    ) -> impl Future<Output = Result<T, TimerError>> {
        let (send, receive) = oneshot::channel();
        self.timers.submit(self.noted(request), answer_to(send));
        self.answered(receive)
    }

    /// The same of a change of a setting, for the owner of the first shard: one owner sees all changes in order.
    pub(crate) fn ask_first_shard<T: TryFrom<durable::Response>>(
        &self,
        request: durable::Request,
    ) -> impl Future<Output = Result<T, TimerError>> {
        let (send, receive) = oneshot::channel();
        let timers = &self.timers;
        timers.submit_at(Shard::ONLY, request, answer_to(send));
        self.answered(receive)
    }

    fn answered<T: TryFrom<durable::Response>>(
        &self,
        receive: oneshot::Receiver<Result<durable::Response, TimerError>>,
    ) -> impl Future<Output = Result<T, TimerError>> {
        let late = || TimerError::Unknown("the database has not answered in time".to_owned());
        let wrong = |_| TimerError::Unknown("the answer was that of another request".to_owned());
        async move {
            let answer = self.in_time(receive).await.ok_or_else(late)?;
            let answer = answer.unwrap_or(Err(TimerError::Closed))?;
            T::try_from(answer).map_err(wrong)
        }
    }

    /// What comes in time, if this is a service on a database: one that does not answer may do so for hours.
    async fn in_time<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        match self.answers_within {
            Some(within) => tokio::time::timeout(within, future).await.ok(),
            None => Some(future.await),
        }
    }

    /// Runs what blocks, such as a read of the store, where it may.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Timers) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.read_among(&self.reads, read).await
    }

    /// The same for metrics, which wait for no read of anybody.
    pub(crate) async fn measure<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Timers) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.read_among(&self.metrics, read).await
    }

    async fn read_among<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        read: impl FnOnce(&Timers) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let gone = || Problem::new(Code::Internal, "the read of the store did not end");
        let reading = async {
            let permit = Arc::clone(permits).acquire_owned().await;
            let permit = permit.map_err(|_| gone())?;
            let timers = self.timers.clone();
            let work = move || {
                // Until the read has ended, also if its caller has gone.
                let _permit = permit;
                read(&timers)
            };
            tokio::task::spawn_blocking(work)
                .await
                .map_err(|_| gone())?
        };
        let late = || {
            Problem::new(
                Code::StoreUnavailable,
                "the database has not answered in time",
            )
        };
        self.in_time(reading).await.ok_or_else(late)?
    }

    /// Says that the start is over.
    pub(crate) fn has_started(&self) {
        self.is_started.store(true, Ordering::Release);
    }

    /// The same API, closed where no token is there either, and with metrics that are open to everyone if that is wished.
    #[must_use]
    pub(crate) fn with_access(mut self, is_closed: bool, open_metrics: bool) -> Self {
        self.access = self.access.with(is_closed, open_metrics);
        self
    }

    /// The same API, of which each request has a line in the log if that is wished.
    #[must_use]
    pub(crate) fn with_access_log(mut self, is_on: bool) -> Self {
        self.has_access_log = is_on;
        self
    }

    fn request_id(&self) -> String {
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        format!("{:08x}-{number}", self.request_prefix)
    }
}

/// Every route there is.
pub fn router(app: Arc<App>) -> Router {
    let timer = get(timers::get)
        .put(timers::set)
        .patch(timers::shift)
        .delete(timers::remove)
        .post(timers::act);
    let endpoint = get(endpoints::get)
        .put(endpoints::put)
        .delete(endpoints::remove)
        .post(endpoints::test);
    let queue = get(queues::get)
        .put(queues::put)
        .delete(queues::remove)
        .post(drain::of_queue);
    let token = get(tokens::get).delete(tokens::revoke).post(tokens::rotate);
    let mut router = Router::new()
        .merge(dashboard::routes())
        .route("/healthz", get(operate::healthz))
        .route("/livez", get(operate::healthz))
        .route("/startz", get(operate::startz))
        .route("/readyz", get(operate::readyz))
        .route("/metrics", get(operate::metrics))
        .route("/openapi.json", get(described::pages::document))
        .route("/reference", get(described::pages::reference))
        .route("/problems", get(described::pages::problems))
        .route("/problems/{code}", get(described::pages::problem))
        .route("/v1/queues", get(queues::list))
        .route("/v1/queues:pause", post(drain::pause_all))
        .route("/v1/queues:drain", post(drain::drain_all))
        .route("/v1/queues:resume", post(drain::resume_all))
        .route("/v1/queues/{queue}", queue)
        .route(
            "/v1/queues/{queue}/timers",
            get(reading::of_queue).post(timers::post),
        )
        .route("/v1/queues/{queue}/timers/{key}", timer)
        .route("/v1/queues/{queue}/timers/{key}/runs", get(backfill::runs))
        .route("/v1/timers", get(reading::of_all))
        .route("/v1/jobs", get(jobs::list).post(jobs::begin))
        .route("/v1/jobs/{id}", get(jobs::get).post(jobs::cancel))
        .route("/v1/batch", post(batch::batch))
        .route("/v1/leases", post(leases::of_queues))
        .route("/v1/leases:ack", post(leases::ack))
        .route("/v1/leases:nack", post(leases::nack))
        .route("/v1/leases:extend", post(leases::extend))
        .route("/v1/events", get(events::stream))
        .route("/v1/endpoints", get(endpoints::list))
        .route("/v1/endpoints/{name}", endpoint)
        .route("/v1/cluster", get(cluster::glance))
        .route("/v1/cluster/nodes", get(cluster::nodes))
        .route("/v1/cluster/nodes/{node}/drain", post(cluster::drain))
        .route("/v1/cluster/nodes/{node}/undrain", post(cluster::undrain))
        .route("/v1/cluster/shards", get(cluster::shards))
        .route("/v1/cluster/shards/{shard}/move", post(cluster::shift))
        .route("/v1/cluster/rebalance", post(cluster::rebalance))
        .route(
            "/v1/cluster/move-to",
            get(moving::progress).post(moving::begin),
        )
        .route("/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/v1/tokens/{token}", token)
        .route("/v1/audit", get(audit::list))
        .route("/v1/namespaces", get(namespaces::list))
        .route(
            "/v1/namespaces/{namespace}",
            get(namespaces::get)
                .put(namespaces::put)
                .delete(namespaces::remove),
        )
        .route("/v1/stats", get(stats::stats))
        .route("/v1/stats/due", get(stats::due))
        .route("/v1/simulate", post(simulate::simulate))
        .route("/v1/snapshots", post(snapshots::make));
    if app.dev {
        let receive = get(echo::list).post(echo::receive).put(echo::receive);
        let receive = receive.patch(echo::receive).delete(echo::receive);
        router = router.route("/echo", receive);
    }
    let router = router
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method);
    surrounded(app, router)
}

/// The routes within the layers of every service, from the inside out: a panic of a handler becomes an answer, each
/// request has its bounds, headers and counts, and browsers learn whose pages may call.
fn surrounded(app: Arc<App>, routes: Router<Arc<App>>) -> Router {
    let whole = Arc::clone(&app);
    let routes = routes
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app);
    cors::around(&whole, routes)
}

/// A path without a route: the name in it may be empty, else there is nothing here.
async fn no_such_path(uri: Uri) -> Problem {
    let mut segments = uri.path().split('/').skip(1);
    if uri.path() == "/v1/endpoints/" {
        return request::invalid_endpoint();
    }
    if let (Some("v1"), Some("queues"), Some(_), Some("timers"), key) = (
        segments.next(),
        segments.next(),
        segments.next(),
        segments.next(),
        segments.next(),
    ) {
        let named = match key {
            None => request::queue_of(&uri).map(drop),
            Some(_) => request::timer_of(&uri).map(drop),
        };
        if let Err(problem) = named {
            return problem;
        }
    }
    Problem::new(Code::NotFound, "there is no such path")
}

async fn no_such_method(method: Method) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("this path does not take {method}"),
    )
}

#[expect(clippy::needless_pass_by_value, reason = "the layer gives it so")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = text.unwrap_or("?"), "a request handler panicked");
    Problem::new(
        Code::Internal,
        "the request failed; see the log of the service",
    )
    .into_response()
}

/// What is the same for all requests: the bounds before, the headers and counts after.
async fn around(
    State(app): State<Arc<App>>,
    route: Option<MatchedPath>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let id = app.request_id();
    let began = app.clock.now();
    let method = request.method().clone();
    let uri = request.uri().clone();
    let peer = request.extensions().get::<Peer>().cloned();
    if access::may_be_of_new_session(&app, &request)
        && let Err(error) = app.look().await
    {
        tracing::debug!(?error, "a session of another node is not looked for");
    }
    let refusal = refusal(&app, &request).or_else(|| unadmitted(&app, &mut request));
    let line = Line::of(&app, &request, &id, began);
    let refusal = match refusal {
        None => {
            // What is refused counts as well.
            let over = quotas::enter(&app, &request);
            match over.and_then(|()| reach::Aim::of(&request)) {
                Ok(aim) => aim.check(&app).await.err(),
                Err(refused) => Some(refused),
            }
        }
        refusal => refusal,
    };
    let asks = request.extensions().get::<Identity>().cloned();
    let caller = request.extensions().get::<Caller>().copied();
    let mut response = match refusal {
        Some(problem) if access::is_page(uri.path()) || access::is_form(uri.path()) => {
            dashboard::turn_away(&uri, request.headers(), problem)
        }
        Some(problem) => problem.into_response(),
        // Only OPTIONS asks for it: the whole service, and no path.
        None if uri.path() == "*" && method == Method::OPTIONS => {
            options(Some(HeaderValue::from_static(ALL_METHODS)))
        }
        None if uri.path() == "*" => {
            Problem::malformed("the target * is one of OPTIONS alone").into_response()
        }
        None => {
            let asking = Asking::of(&request, &id);
            Asking::within(asking, gated(&app, request, next)).await
        }
    };
    if method == Method::OPTIONS && response.status() == StatusCode::METHOD_NOT_ALLOWED {
        response = options(response.headers().get(header::ALLOW).cloned());
    }
    mark(&mut response, &id);
    let ends = asks
        .as_ref()
        .map(|asks| asks.ends_soon(app.clock.timestamp()));
    if let Some(ends) = ends.flatten()
        && let Ok(ends) = HeaderValue::from_str(&format_time(ends))
    {
        response.headers_mut().insert(TOKEN_EXPIRES.clone(), ends);
    }
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let status = response.status().as_u16();
    let took = app.clock.now().saturating_since(began);
    let peer = peer.as_ref().map(tracing::field::display);
    let token = asks.as_ref().and_then(Identity::token);
    let token = token.map(TokenId::as_str);
    // A token that stands where an id belongs is in no log.
    let path = Some(uri.path())
        .filter(|path| !path.contains("cwt_"))
        .unwrap_or(route);
    if response.status() == StatusCode::FORBIDDEN {
        let left = app.access.note_refusal(caller, app.clock.now());
        access::tell_refusal(left, caller, (token, &method, path));
    }
    tracing::debug!(request = id, %method, path, status, ?took, peer, token, "request");
    app.requests
        .get_or_create(&RequestLabels {
            method: label(&method),
            route: route.to_owned(),
            status,
        })
        .inc();
    match line {
        Some(line) => line.answered(response),
        None => response,
    }
}

/// What every answer carries.
fn mark(response: &mut Response, id: &str) {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    // An answer that may be kept says so itself.
    let never = HeaderValue::from_static("no-store");
    headers.entry(header::CACHE_CONTROL).or_insert(never);
}

/// Answers here, or where the timers are by now. Waits while they change hands.
async fn gated(app: &App, request: Request<Body>, next: Next) -> Response {
    let Some(moves) = &app.moves else {
        return next.run(request).await;
    };
    if matches!(
        request.uri().path(),
        "/healthz" | "/livez" | "/metrics" | moving::PATH
    ) {
        return next.run(request).await;
    }
    match moves.gate().pass(HELD_AT_MOST).await {
        Passed::Here(_within) => next.run(request).await,
        Passed::Elsewhere(forward) => forward.answer(app, request).await,
        Passed::TooLate => {
            let detail = "all timers are being moved to a cluster";
            Problem::new(Code::ShardUnavailable, detail).into_response()
        }
    }
}

/// Why the request is not even looked at.
fn refusal(app: &App, request: &Request<Body>) -> Option<Problem> {
    if let Some(barred) = request.extensions().get::<Barred>()
        && let Some(refusal) = barred.refuses(request)
    {
        return Some(refusal);
    }
    let uri = request.uri();
    let length = uri.path_and_query().map_or(0, |path| path.as_str().len());
    if length > URI_MAX_BYTES {
        return Some(Problem::new(
            Code::UriTooLong,
            format!("a path with its query has at most {URI_MAX_BYTES} bytes"),
        ));
    }
    if let Some(refusal) = ill_formed(request) {
        return Some(refusal);
    }
    if !app.needs_token()
        && let Some(refusal) = from_elsewhere(request, &app.cors)
    {
        return Some(refusal);
    }
    None
}

/// Why the request is refused for what its token opens, and then for what it wishes. Notes who asks.
fn unadmitted(app: &App, request: &mut Request<Body>) -> Option<Problem> {
    let wanted = access::scope_of(request.method(), request.uri().path());
    match access::admit(app, request, wanted) {
        Ok(identity) => {
            let is_by_certificate = identity.is_by_certificate();
            request.extensions_mut().insert(identity);
            if is_by_certificate && let Some(refusal) = for_another_page(request, &app.cors) {
                return Some(refusal);
            }
            wanted.and_then(|_| request::unknown_wishes(request))
        }
        Err(problem) => Some(problem),
    }
}

/// Whether this is what an operator asks for to see how the service does.
fn is_of_operator(path: &str) -> bool {
    matches!(
        path,
        "/healthz" | "/livez" | "/readyz" | "/startz" | "/metrics"
    )
}

/// Why a request is refused that another reader of it, in front of this one, may take for something
/// else (RFC 9112, section 3.2), or that asks for what nobody does here.
fn ill_formed(request: &Request<Body>) -> Option<Problem> {
    let headers = request.headers();
    let target = request.uri().path_and_query();
    if !target.is_none_or(|target| is_escaped(target.as_str())) {
        let detail = "in a path and a query, each % needs two hex digits behind it";
        return Some(Problem::malformed(detail));
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host),
        // HTTP/1.0 has none.
        (None, None) if request.version() == Version::HTTP_10 => None,
        _ => return Some(Problem::malformed("a request has exactly one host header")),
    };
    if !host.is_none_or(is_host) {
        return Some(Problem::malformed(
            "a host is a name or an address, with or without a port",
        ));
    }
    let same = |authority: &Authority| {
        host.is_none_or(|host| {
            host.as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes())
        })
    };
    if !request.uri().authority().is_none_or(same) {
        let detail = "the URL and the host header name different hosts";
        return Some(Problem::malformed(detail));
    }
    let others = |name, known: &'static str| {
        let mut values = headers.get_all(name).iter();
        values.any(|value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(known.as_bytes()))
    };
    if others(header::EXPECT, "100-continue") {
        let detail = "the only supported expectation is 100-continue";
        return Some(Problem::new(Code::ExpectationFailed, detail));
    }
    if others(header::CONTENT_ENCODING, "identity") {
        let detail = "send the body as it is, without content-encoding";
        return Some(Problem::new(Code::UnsupportedMediaType, detail));
    }
    None
}

/// Whether each percent sign begins an escape.
fn is_escaped(target: &str) -> bool {
    let mut escapes = target.as_bytes().split(|&byte| byte == b'%').skip(1);
    escapes.all(
        |escape| matches!(escape, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()),
    )
}

/// Whether a header names a host. It is empty only where a URL names none, and one of HTTP does.
fn is_host(host: &HeaderValue) -> bool {
    let Ok(authority) = Authority::try_from(host.as_bytes()) else {
        return false;
    };
    if authority.host().is_empty() {
        return false;
    }
    // Neither a user before the host, nor a port that is none behind it.
    match authority.as_str().strip_prefix(authority.host()) {
        Some("") => true,
        Some(port) => port.strip_prefix(':').is_some_and(|port| {
            port.is_empty() || authority.port_u16().is_some_and(|_| !port.starts_with('+'))
        }),
        None => false,
    }
}

/// Why a request is refused that a web page may have made a browser send. Without a token the
/// service listens on loopback alone; a page can reach that too, under a name of its own that
/// it lets lead here, or from its own origin.
fn from_elsewhere(request: &Request<Body>, allowed: &cors::Origins) -> Option<Problem> {
    let headers = request.headers();
    // HTTP/1.0 has none.
    let host = headers.get(header::HOST);
    let host = host.map_or("localhost", |host| host.to_str().unwrap_or_default());
    if !is_this_machine(host) {
        let detail =
            "without a token, the service takes only requests from this machine and under its name";
        return Some(Problem::new(Code::Forbidden, detail));
    }
    let is_from_here = has_origin(headers, host);
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    if origins.peek().is_some() && origins.all(|origin| allowed.has(origin)) {
        return None;
    }
    // A link that leads here from elsewhere may be followed. A request without the header is not of a
    // browser of today.
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_same_site = is_same_site(headers);
    if is_from_here && (is_safe || is_same_site) {
        return None;
    }
    Some(Problem::new(
        Code::Forbidden,
        "without a token, the service refuses changes from web pages of another origin",
    ))
}

/// Why a change is refused that a web page of another origin may have had a browser ask for: a browser shows a certificate by
/// itself, as it does a cookie.
fn for_another_page(request: &Request<Body>, allowed: &cors::Origins) -> Option<Problem> {
    let headers = request.headers();
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    let is_allowed = origins.peek().is_some() && origins.all(|origin| allowed.has(origin));
    if is_safe || is_allowed || is_from_here(headers) {
        return None;
    }
    let detail = "with a certificate, the service refuses changes from web pages of another origin";
    Some(Problem::new(Code::Forbidden, detail))
}

/// Whether a page that asks comes from the `host` that it asks. Another port of a machine is another origin: whoever serves a
/// page there is no caller.
fn has_origin(headers: &HeaderMap, host: &str) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| origin.to_str().is_ok_and(|o| is_origin(o, host)))
}

fn is_same_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
}

/// Whether no page of another origin asks.
pub(crate) fn is_from_here(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST);
    let host = host.map_or("localhost", |host| host.to_str().unwrap_or_default());
    has_origin(headers, host) && is_same_site(headers)
}

/// Whether the origin of a page is the `host` that it asks, with the same port.
fn is_origin(origin: &str, host: &str) -> bool {
    let Some((scheme, at)) = origin.split_once("://") else {
        return false;
    };
    let usual = if scheme.eq_ignore_ascii_case("https") {
        443
    } else {
        80
    };
    let (Ok(at), Ok(host)) = (at.parse::<Authority>(), host.parse::<Authority>()) else {
        return false;
    };
    at.host().eq_ignore_ascii_case(host.host())
        && at.port_u16().unwrap_or(usual) == host.port_u16().unwrap_or(usual)
}

/// Whether `authority`, a host with or without a port, names this machine.
fn is_this_machine(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    let host = authority.host();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match bare.unwrap_or(host).parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// The answer to OPTIONS: which methods the path takes.
fn options(allow: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

/// A method's name as a label; a bounded number of them.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// An answer in JSON.
pub(crate) fn answer(status: StatusCode, body: &impl Serialize) -> Response {
    let json = HeaderValue::from_static("application/json");
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, json)], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::http::Request as Asked;
    use axum::routing::get;
    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::{Attempt, Config, Outcome};
    use countwheel_time::SystemClock;
    use tower_service::Service;
    use tracing::subscriber::DefaultGuard;

    use super::*;

    /// A log in memory.
    #[derive(Clone, Default)]
    pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        /// Takes the lines of this thread from now on.
        pub(super) fn hears(&self) -> DefaultGuard {
            let writer = self.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::set_default(subscriber)
        }

        /// What it has, which is gone then.
        pub(super) fn take(&self) -> String {
            let bytes = std::mem::take(&mut *self.0.lock());
            String::from_utf8(bytes).expect("text")
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn breaks() -> Response {
        panic!("a shelf broke");
    }

    /// A service in memory.
    pub(super) fn app(token: Option<&str>) -> App {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (store, handler) = (MemoryStore::new(1), |_: &Attempt| Outcome::done());
        let timers = Timers::open(store, handler, Arc::clone(&clock), Config::default());
        let token = token.map(|token| Token::new(token).expect("it is a token"));
        App::new(timers.expect("it is in memory"), clock, token, false)
    }

    /// HTTP/2 brings it with any method.
    #[test]
    fn a_star_is_a_target_of_options_alone() {
        let mut router = surrounded(Arc::new(app(None)), Router::new());
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("it is made");
        for (method, status) in [
            ("OPTIONS", StatusCode::NO_CONTENT),
            ("GET", StatusCode::BAD_REQUEST),
            ("HEAD", StatusCode::BAD_REQUEST),
            ("POST", StatusCode::BAD_REQUEST),
            ("DELETE", StatusCode::BAD_REQUEST),
        ] {
            let asked = Asked::builder().method(method).uri("*");
            let asked = asked.header(header::HOST, "localhost").body(Body::empty());
            let answer = runtime.block_on(router.call(asked.expect("it is a request")));
            assert_eq!(answer.expect("it answers").status(), status, "{method}");
        }
    }

    #[test]
    fn a_handler_that_panics_is_a_problem_and_a_line_of_the_log_and_the_service_goes_on() {
        let routes = Router::new()
            .route("/breaks", get(async || breaks()))
            .route("/v1/breaks", get(async || breaks()))
            .route("/livez", get(operate::healthz));
        let mut router = surrounded(Arc::new(app(None)), routes);
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("it is made");
        let log = Log::default();
        let _heard = log.hears();
        for (path, status) in [
            ("/breaks", StatusCode::INTERNAL_SERVER_ERROR),
            ("/livez", StatusCode::OK),
            ("/v1/breaks", StatusCode::INTERNAL_SERVER_ERROR),
            ("/livez", StatusCode::OK),
        ] {
            let asked = Asked::builder().uri(path).header(header::HOST, "localhost");
            let asked = asked.body(Body::empty()).expect("it is a request");
            let answer = runtime.block_on(router.call(asked));
            let answer = answer.expect("it answers");
            assert_eq!(answer.status(), status, "{path}");
            assert!(answer.headers().contains_key("x-request-id"), "{path}");
            if status == StatusCode::OK {
                continue;
            }
            let media = &answer.headers()[header::CONTENT_TYPE];
            assert_eq!(media, "application/problem+json");
            let body = runtime.block_on(axum::body::to_bytes(answer.into_body(), 4 << 10));
            let body: serde_json::Value =
                serde_json::from_slice(&body.expect("it is there")).expect("it is JSON");
            assert_eq!(body["code"], "internal");
            assert!(!body.to_string().contains("shelf"), "{body}");
        }
        let log = log.take();
        let lines = log.lines().filter(|line| {
            line.contains("a request handler panicked") && line.contains("a shelf broke")
        });
        assert_eq!(lines.count(), 2, "{log}");
    }
}
