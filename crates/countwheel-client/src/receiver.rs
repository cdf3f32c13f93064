//! The receiver of deliveries, as a Tower layer before its handler: it checks signatures, drops repeats, and hands the
//! headers of the delivery to the handler.
//!
//! Deliveries come at least once: an attempt whose answer was lost comes again, with the same `webhook-id`. The layer
//! answers a repeat of a delivery that was handled with 200, and the handler does not see it. What the handler answered with
//! another status than 2xx was not handled, nor was a call that was given up: the next attempt is one of its own.
//!
//! ```
//! use axum::extract::Extension;
//! use axum::routing::post;
//! use axum::Router;
//! use countwheel_client::receiver::{Delivery, DeliveryLayer};
//! use countwheel_client::signature::Verifier;
//!
//! async fn handle(Extension(delivery): Extension<Delivery>, body: String) {
//!     println!("{} is due, attempt {}: {body}", delivery.key, delivery.attempt);
//! }
//!
//! let verifier = Verifier::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
//! let deliveries = DeliveryLayer::new().verified(verifier);
//! let app: Router = Router::new().route("/hook", post(handle)).layer(deliveries);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | the layer answers | when |
//! |---|---|
//! | 200 | the delivery was handled before |
//! | 400 | the headers are not those of a delivery |
//! | 401 | a signature is needed, and none is right |
//! | 413 | the body is too long |
//! | 503 with `Retry-After` | the same delivery is being handled, or the store of ids fails |

use std::collections::{HashSet, VecDeque};
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use countwheel_time::{Clock, SystemClock, Timestamp};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, Request, Response, StatusCode};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tower_layer::Layer;
use tower_service::Service;

use crate::signature::Verifier;
use crate::time::parse_time;

/// The longest body that is taken unless [`DeliveryLayer::body_limit`] says otherwise.
const BODY_MAX_BYTES: usize = 8 << 20;
/// How many ids a [`MemoryStore`] keeps by default.
const IDS: usize = 100_000;

/// What the headers of a delivery say. The handler finds it in the extensions of its request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The id: the same in every attempt of a timer, or of a run of a recurring one.
    pub id: String,
    /// The queue of the timer.
    pub queue: String,
    /// The key of the timer.
    pub key: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// The deadline of the timer.
    pub due: Timestamp,
    /// How late the attempt is.
    pub late: Duration,
    /// For how long a limit held it.
    pub held: Duration,
    /// When the attempt was sent, in whole seconds.
    pub sent: Timestamp,
    /// Of a recurring timer: the number of the run.
    pub run: Option<u32>,
    /// Of a recurring timer: the nominal time of the run.
    pub nominal: Option<Timestamp>,
    /// The number of the store's ownership: it only grows.
    pub fence: u64,
}

/// Which header of a delivery is missing or cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this is no delivery of Countwheel: {header} is missing or cannot be read")]
pub struct BadDelivery {
    header: &'static str,
}

impl Delivery {
    /// Reads the headers of a delivery.
    ///
    /// # Errors
    /// [`BadDelivery`] with the first header that is missing or cannot be read.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, BadDelivery> {
        let maybe = |header: &'static str| match headers.get(header) {
            None => Ok(None),
            Some(value) => value.to_str().map(Some).map_err(|_| BadDelivery { header }),
        };
        let text = |header| maybe(header)?.ok_or(BadDelivery { header });
        let number = |header| {
            let number = text(header)?.parse::<u64>();
            number.map_err(|_| BadDelivery { header })
        };
        let small = |header: &'static str, text: &str| {
            let number = text.parse::<u32>();
            number.map_err(|_| BadDelivery { header })
        };
        let time =
            |header: &'static str, text: &str| parse_time(text).ok_or(BadDelivery { header });
        let id = text("webhook-id")?;
        if id.is_empty() {
            let header = "webhook-id";
            return Err(BadDelivery { header });
        }
        let key = percent_decode_str(text("timer-key")?).decode_utf8();
        let key = key.map_err(|_| BadDelivery {
            header: "timer-key",
        })?;
        let run = maybe("timer-run")?.map(|text| small("timer-run", text));
        let nominal = maybe("timer-nominal")?.map(|text| time("timer-nominal", text));
        Ok(Self {
            id: id.to_owned(),
            queue: text("timer-queue")?.to_owned(),
            key: key.into_owned(),
            attempt: small("timer-attempt", text("timer-attempt")?)?,
            due: time("timer-due", text("timer-due")?)?,
            late: Duration::from_micros(number("timer-late-us")?),
            held: Duration::from_micros(number("timer-held-us")?),
            sent: Timestamp::EPOCH + Duration::from_secs(number("webhook-timestamp")?),
            run: run.transpose()?,
            nominal: nominal.transpose()?,
            fence: number("timer-fence")?,
        })
    }
}

/// What a store of ids knows of a delivery that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It is new, and is being handled from now on.
    New,
    /// It is being handled.
    Running,
    /// It was handled.
    Done,
}

/// Why a store of ids failed.
pub type StoreError = Box<dyn Error + Send + Sync>;

/// Where the ids of deliveries are. A store that several processes share, such as a database, drops repeats between
/// them; it should let an id that is being handled go after a while, for processes that die.
pub trait IdStore: Send + Sync + 'static {
    /// Says what is known of a delivery, and notes that it is being handled if it is new: of two calls at a time, one has
    /// [`Seen::New`].
    ///
    /// # Errors
    /// The store failed: the delivery is answered with 503, and comes again.
    fn begin(&self, id: &str) -> impl Future<Output = Result<Seen, StoreError>> + Send;

    /// Notes that a delivery was handled.
    ///
    /// # Errors
    /// The store failed: the delivery is answered with 503, and is handled again when it comes again.
    fn done(&self, id: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets a delivery that was not handled.
    fn forget(&self, id: &str) -> impl Future<Output = ()> + Send;
}

/// The ids of one process: of those that were handled, the last ones. They are gone with the process.
///
/// ```
/// use countwheel_client::receiver::{IdStore, MemoryStore, Seen};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let store = MemoryStore::of(1_000);
/// assert_eq!(store.begin("tmr-1").await?, Seen::New);
/// assert_eq!(store.begin("tmr-1").await?, Seen::Running);
/// store.done("tmr-1").await?;
/// assert_eq!(store.begin("tmr-1").await?, Seen::Done);
/// # Ok::<(), countwheel_client::receiver::StoreError>(())
/// # }).map_err(|error| std::io::Error::other(error.to_string()))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct MemoryStore {
    most: usize,
    ids: Mutex<Ids>,
}

#[derive(Default)]
struct Ids {
    running: HashSet<String>,
    done: HashSet<Arc<str>>,
    /// Those that were handled, the oldest first.
    order: VecDeque<Arc<str>>,
}

impl MemoryStore {
    /// Keeps so many ids of deliveries that were handled.
    #[must_use]
    pub fn of(most: usize) -> Self {
        let ids = Mutex::default();
        Self { most, ids }
    }
}

impl Default for MemoryStore {
    /// Keeps 100,000 ids.
    fn default() -> Self {
        Self::of(IDS)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.ids.lock();
        f.debug_struct("MemoryStore")
            .field("most", &self.most)
            .field("running", &ids.running.len())
            .field("done", &ids.done.len())
            .finish()
    }
}

impl IdStore for MemoryStore {
    async fn begin(&self, id: &str) -> Result<Seen, StoreError> {
        let mut ids = self.ids.lock();
        Ok(if ids.done.contains(id) {
            Seen::Done
        } else if ids.running.insert(id.to_owned()) {
            Seen::New
        } else {
            Seen::Running
        })
    }

    async fn done(&self, id: &str) -> Result<(), StoreError> {
        let mut ids = self.ids.lock();
        ids.running.remove(id);
        let id: Arc<str> = id.into();
        if ids.done.insert(Arc::clone(&id)) {
            ids.order.push_back(id);
        }
        if ids.order.len() > self.most
            && let Some(oldest) = ids.order.pop_front()
        {
            ids.done.remove(&oldest);
        }
        Ok(())
    }

    async fn forget(&self, id: &str) {
        self.ids.lock().running.remove(id);
    }
}

/// Puts a [`DeliveryService`] before the handler of deliveries. Its clones share the store of ids.
pub struct DeliveryLayer<S = MemoryStore> {
    settings: Arc<Settings<S>>,
}

struct Settings<S> {
    verifier: Option<Verifier>,
    store: Arc<S>,
    clock: Arc<dyn Clock>,
    body_limit: usize,
}

impl<S> Clone for Settings<S> {
    fn clone(&self) -> Self {
        Self {
            verifier: self.verifier.clone(),
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            body_limit: self.body_limit,
        }
    }
}

impl<S> Clone for DeliveryLayer<S> {
    fn clone(&self) -> Self {
        let settings = Arc::clone(&self.settings);
        Self { settings }
    }
}

impl<S> fmt::Debug for DeliveryLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryLayer")
            .field("verifier", &self.settings.verifier)
            .field("body_limit", &self.settings.body_limit)
            .finish_non_exhaustive()
    }
}

impl Default for DeliveryLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl DeliveryLayer {
    /// A layer that drops repeats by a [`MemoryStore`], and takes what is not signed.
    #[must_use]
    pub fn new() -> Self {
        Self::with_store(MemoryStore::default())
    }
}

impl<S: IdStore> DeliveryLayer<S> {
    /// A layer that drops repeats by this store.
    #[must_use]
    pub fn with_store(store: S) -> Self {
        let settings = Arc::new(Settings {
            verifier: None,
            store: Arc::new(store),
            clock: Arc::new(SystemClock::new()),
            body_limit: BODY_MAX_BYTES,
        });
        Self { settings }
    }

    /// The same, which takes nothing but what is signed right.
    #[must_use]
    pub fn verified(mut self, verifier: Verifier) -> Self {
        Arc::make_mut(&mut self.settings).verifier = Some(verifier);
        self
    }

    /// The same, which reads bodies of so many bytes to check their signatures; 8 MiB if not said. Without a verifier the
    /// handler reads the body, and sets its limit.
    #[must_use]
    pub fn body_limit(mut self, bytes: usize) -> Self {
        Arc::make_mut(&mut self.settings).body_limit = bytes;
        self
    }

    /// The same with another clock, by which it is told how old a signature is.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        Arc::make_mut(&mut self.settings).clock = Arc::new(clock);
        self
    }
}

impl<I, S> Layer<I> for DeliveryLayer<S> {
    type Service = DeliveryService<I, S>;

    fn layer(&self, inner: I) -> Self::Service {
        let settings = Arc::clone(&self.settings);
        DeliveryService { inner, settings }
    }
}

/// Calls a handler for each delivery that was not handled before. See the [module](self).
pub struct DeliveryService<I, S = MemoryStore> {
    inner: I,
    settings: Arc<Settings<S>>,
}

impl<I: Clone, S> Clone for DeliveryService<I, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<I, S> fmt::Debug for DeliveryService<I, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryService").finish_non_exhaustive()
    }
}

impl<I, S, B, R> Service<Request<B>> for DeliveryService<I, S>
where
    I: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    I::Future: Send,
    I::Error: Send,
    S: IdStore,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<StoreError>,
    R: Default + From<Bytes> + Send,
{
    type Response = Response<R>;
    type Error = I::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, I::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let settings = Arc::clone(&self.settings);
        Box::pin(async move {
            let (delivery, request) = match settings.admit(request).await {
                Ok(admitted) => admitted,
                Err(refusal) => return Ok(refusal.answer()),
            };
            let id = delivery.id;
            match settings.store.begin(&id).await {
                Ok(Seen::New) => {}
                Ok(Seen::Done) => return Ok(Response::new(R::default())),
                Ok(Seen::Running) => {
                    return Ok(Refusal::later("this delivery is being handled").answer());
                }
                Err(error) => return Ok(Refusal::later(&error.to_string()).answer()),
            }
            let open = Open::new(&settings.store, id);
            let answer = inner.call(request).await?;
            if answer.status().is_success() {
                if let Err(error) = settings.store.done(&open.id).await {
                    return Ok(Refusal::later(&error.to_string()).answer());
                }
                open.close();
            }
            Ok(answer)
        })
    }
}

impl<S> Settings<S> {
    /// Reads a delivery, and checks what is to be checked.
    async fn admit<B>(&self, request: Request<B>) -> Result<(Delivery, Request<B>), Refusal>
    where
        B: Body + From<Bytes>,
        B::Error: Into<StoreError>,
    {
        let (mut parts, body) = request.into_parts();
        let delivery = Delivery::from_headers(&parts.headers)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, &error.to_string()))?;
        let body = match &self.verifier {
            None => body,
            Some(verifier) => {
                let read = Limited::new(body, self.body_limit).collect().await;
                let body = read.map_err(|error| unread(&*error))?.to_bytes();
                let now = self.clock.timestamp();
                let verified = verifier.verify(&parts.headers, &body, now);
                verified
                    .map_err(|error| Refusal::new(StatusCode::UNAUTHORIZED, &error.to_string()))?;
                B::from(body)
            }
        };
        parts.extensions.insert(delivery.clone());
        Ok((delivery, Request::from_parts(parts, body)))
    }
}

fn unread(error: &(dyn Error + Send + Sync + 'static)) -> Refusal {
    if error.is::<LengthLimitError>() {
        return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long");
    }
    Refusal::new(StatusCode::BAD_REQUEST, "the body did not arrive whole")
}

/// An answer without the handler.
struct Refusal {
    status: StatusCode,
    why: String,
}

impl Refusal {
    fn new(status: StatusCode, why: &str) -> Self {
        let why = why.to_owned();
        Self { status, why }
    }

    /// The next attempt may go better.
    fn later(why: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    fn answer<R: From<Bytes>>(self) -> Response<R> {
        let mut answer = Response::new(R::from(Bytes::from(self.why)));
        *answer.status_mut() = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let soon = hyper::header::HeaderValue::from_static("1");
            answer.headers_mut().insert(RETRY_AFTER, soon);
        }
        answer
    }
}

/// A delivery that is being handled. Forgotten if that comes to no good end: also if the call is dropped, or panics.
struct Open<S: IdStore> {
    store: Option<Arc<S>>,
    id: String,
}

impl<S: IdStore> Open<S> {
    fn new(store: &Arc<S>, id: String) -> Self {
        let store = Some(Arc::clone(store));
        Self { store, id }
    }

    /// It was handled.
    fn close(mut self) {
        self.store = None;
    }
}

impl<S: IdStore> Drop for Open<S> {
    fn drop(&mut self) {
        let Some(store) = self.store.take() else {
            return;
        };
        let id = std::mem::take(&mut self.id);
        let mut forgets = Box::pin(async move { store.forget(&id).await });
        // Most often it is done at once. A store that takes longer needs a runtime for it.
        let mut context = Context::from_waker(std::task::Waker::noop());
        if forgets.as_mut().poll(&mut context).is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(forgets);
        }
    }
}
