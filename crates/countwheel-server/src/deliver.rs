//! Carries out attempts: one HTTP request each, under one deadline.

use std::error::Error;
use std::io;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header, response};
use countwheel_durable::store::Shard;
use countwheel_durable::{
    Attempt, AttemptEnd, AttemptRecord, AttemptResult, Completion, Handler, Outcome,
    Request as Asked, SettingPrecondition, SettingsVersion, Verdict,
};
use countwheel_time::{Clock, Instant, Timestamp};
use http_body_util::Full;
use hyper::body::{Body, Bytes};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime::Handle;

use crate::answered::{Answered, KeepAnswers, Times};
use crate::api::audit::Audit;
use crate::api::backfill::timer_of_run;
use crate::egress::EgressProxy;
use crate::failures::{Failed, Failures};
use crate::guard::{RefusedTarget, Targets, literal_address};
use crate::job::Job;
use crate::pool::{
    AnswerBody, AnswerTooLong, Connection, Going, Phases, Pool, ProxyFailed, Refused, Sent,
    TooManyHeaders,
};
use crate::pull::Desk;
use crate::resolver::NotResolved;
use crate::resources::blocked::{Place, Why};
use crate::resources::breaker::{Sign, Turn};
use crate::resources::endpoint::{DisabledBy, EndpointName, Means, NoWay};
use crate::resources::route::{Held, Reached, Route, Rules};
use crate::resources::sealed::Vault;
use crate::resources::signature::{self, SigningKey};
use crate::resources::statuses::Meaning;
use crate::resources::{Catalogue, setting_of_endpoint};
use crate::roots;
use crate::time::{format_duration, format_time};
use crate::traced::{self, TRACEPARENT, TRACESTATE};
use crate::wishes::{self, Ignored};

/// How much of an answer is read.
pub(crate) const ANSWER_MAX_BYTES: usize = 64 << 10;
/// How often an attempt whose lease is over looks whether it goes on.
const LEASE_LOOK: Duration = Duration::from_millis(50);
/// When an attempt is made again whose endpoint is not there or is disabled, unless it is back before.
const HELD_LOOK: Duration = Duration::from_secs(5);
/// How long the test of an endpoint may take.
pub(crate) const TEST_MAX: Duration = Duration::from_secs(30);
const USER_AGENT: &str = concat!("countwheel/", env!("CARGO_PKG_VERSION"));
/// What stands unencoded in `timer-key`: the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Delivers timers over HTTP. Follows no redirect, uses no proxy unless one is named, keeps connections. One handler is for the timers
/// of one store, whose settings say where endpoints are.
#[derive(Clone, Debug)]
pub struct HttpHandler {
    runtime: Handle,
    sender: Sender,
    desk: Arc<Desk>,
}

#[derive(Clone, Debug)]
struct Sender {
    pool: Pool,
    targets: Targets,
    clock: Arc<dyn Clock>,
    failures: Arc<Failures>,
    keep: KeepAnswers,
    audit: Audit,
    catalogue: Arc<Catalogue>,
}

impl HttpHandler {
    /// A handler whose attempts run on `runtime`. `clock` tells how far off the date in a
    /// `Retry-After` is. It trusts the authorities of the public Internet.
    #[must_use]
    pub fn new(runtime: Handle, targets: Targets, clock: Arc<dyn Clock>) -> Self {
        let (vault, own) = (Vault::without_key(true), Arc::new(roots::of_program()));
        let catalogue = Catalogue::new(vault, own, Arc::clone(&clock));
        Self::with(runtime, targets, clock, 64, 512, Arc::new(catalogue))
    }

    /// The same, with so many lookups of names at a time. Unless files are ample, it keeps no
    /// connection and tries the addresses of a target one after the other, so that each attempt
    /// that runs has one file open.
    pub(crate) fn with(
        runtime: Handle,
        targets: Targets,
        clock: Arc<dyn Clock>,
        lookups: usize,
        kept: usize,
        catalogue: Arc<Catalogue>,
    ) -> Self {
        let tls = roots::trusting(Arc::clone(catalogue.roots()));
        let pool = Pool::new(targets.clone(), lookups, tls, kept, Arc::clone(&clock));
        Self {
            runtime,
            desk: Arc::default(),
            sender: Sender {
                pool,
                targets,
                clock,
                failures: Arc::default(),
                keep: KeepAnswers::default(),
                audit: Audit::default(),
                catalogue,
            },
        }
    }

    /// The same, with another rule of what is kept of answers than [`KeepAnswers::On`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use countwheel_server::config::KeepAnswers;
    /// use countwheel_server::deliver::HttpHandler;
    /// use countwheel_server::guard::Targets;
    /// use countwheel_time::SystemClock;
    ///
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let clock = Arc::new(SystemClock::new());
    /// let handler = HttpHandler::new(runtime.handle().clone(), Targets::public(), clock);
    /// let handler = handler.keeping(KeepAnswers::Redacted);
    /// # drop(handler);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn keeping(mut self, answers: KeepAnswers) -> Self {
        self.sender.keep = answers;
        self
    }

    /// The same, with this audit log of what it changes by itself.
    pub(crate) fn noting(mut self, audit: Audit) -> Self {
        self.sender.audit = audit;
        self
    }

    /// The same, whose leased attempts go to the workers at this desk.
    pub(crate) fn at_desk(mut self, desk: &Arc<Desk>) -> Self {
        self.desk = Arc::clone(desk);
        self
    }

    /// The same, where all deliveries whose endpoints name no proxy leave through this one.
    pub(crate) fn through(mut self, proxy: Option<EgressProxy>) -> Self {
        self.sender.pool = self.sender.pool.through(proxy);
        self
    }

    /// How long the phases took of connections that were made.
    pub(crate) fn phases(&self) -> Arc<Mutex<Phases>> {
        self.sender.pool.phases()
    }
}

impl HttpHandler {
    /// Sends one request to an endpoint now, whatever the endpoint's limits and its health are, and counts it nowhere.
    /// What came of it, as a record keeps an attempt.
    pub(crate) async fn test(&self, job: Job, route: Route) -> AttemptRecord {
        let sender = &self.sender;
        let started = sender.clock.timestamp();
        let mut delivery = Delivery::new(None, sender.clock.now());
        // Receivers tell two tests apart by it.
        let id = format!("test-{:016x}", getrandom::u64().unwrap_or_default());
        let stamp = Stamp {
            own: vec![
                ("webhook-id", id.clone()),
                ("timer-test", "1".to_owned()),
                ("timer-attempt", "1".to_owned()),
                ("timer-due", format_time(started)),
                ("timer-held-us", "0".to_owned()),
            ],
            id,
            key: String::new(),
            deadline: started,
        };
        let ceiling = sender.catalogue.ceilings().timeout;
        let route = Route {
            timeout: route.timeout.min(TEST_MAX).min(ceiling),
            ..route
        };
        let outcome = sender.deliver(&stamp, job, route, &mut delivery).await;
        let outcome = outcome.unwrap_or_else(|NoAnswer { detail, .. }| failed(detail));
        let result = match outcome.verdict {
            Verdict::Done => AttemptResult::Done,
            Verdict::Stopped => AttemptResult::Stopped,
            Verdict::Failed { .. } | Verdict::Held { .. } => AttemptResult::Failed,
        };
        AttemptRecord {
            number: 1,
            due: started,
            started: delivery.sent.unwrap_or(started),
            held: Duration::ZERO,
            ended: Some(AttemptEnd {
                at: sender.clock.timestamp(),
                result,
                detail: outcome.detail,
                answer: outcome.answer,
            }),
        }
    }
}

impl Handler for HttpHandler {
    fn start(&self, mut attempt: Attempt, done: Completion) {
        if attempt.lease.is_some() {
            self.desk.arrived(&self.runtime, attempt);
            return;
        }
        let sender = self.sender.clone();
        let payload = std::mem::take(&mut attempt.payload);
        let attempt = Arc::new(attempt);
        let mut delivery = Delivery::new(Some(Arc::clone(&attempt)), sender.clock.now());
        self.runtime.spawn(async move {
            let (mut outcome, reason) = match sender.attempt(&attempt, payload, &mut delivery).await
            {
                Ok(outcome) => (outcome, String::new()),
                Err(NoAnswer { detail, reason, .. }) => (failed(detail), reason),
            };
            outcome.started = delivery.sent;
            if !matches!(outcome.verdict, Verdict::Held { .. }) {
                let target = delivery.target.as_ref();
                sender.log(&attempt, target, &outcome, &reason);
                // Before the place is free: what starts next goes by it.
                if let Some(reached) = delivery.endpoint.take() {
                    sender.notes(&attempt, reached, &outcome);
                }
            }
            done.complete(outcome);
        });
    }
}

/// A request that is carried out.
struct Delivery {
    /// `None` if the request is a test.
    attempt: Option<Arc<Attempt>>,
    /// When it came from the scheduler.
    began: Instant,
    target: Option<Authority>,
    /// If it goes to one.
    endpoint: Option<Reached>,
    /// When its head was handed to an open connection, on the time line of the attempt.
    sent: Option<Timestamp>,
}

impl Delivery {
    fn new(attempt: Option<Arc<Attempt>>, began: Instant) -> Self {
        Self {
            attempt,
            began,
            target: None,
            endpoint: None,
            sent: None,
        }
    }

    /// The head is handed over now, by the wall clock and by the one that is never set. How late that is.
    fn sends(&mut self, wall: Timestamp, now: Instant) -> Duration {
        let Some(attempt) = &self.attempt else {
            self.sent = Some(wall);
            return Duration::ZERO;
        };
        let sent = attempt.started + now.saturating_since(self.began);
        self.sent = Some(sent);
        sent.saturating_since(attempt.due + attempt.held)
    }

    fn may_start(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_none_or(|attempt| attempt.may_start())
    }
}

/// An attempt that came to no answer.
#[derive(PartialEq, Eq, Debug)]
struct NoAnswer {
    /// What callers see, without addresses: who may set timers learns nothing from it of a network
    /// that deliveries do not go to.
    detail: String,
    /// What the operator's log has.
    reason: String,
    /// If it is no fault of the target's.
    blocked: Option<Why>,
}

impl Sender {
    /// Logs what came of an attempt at a target; `None` if the stored request names none.
    fn log(&self, attempt: &Attempt, target: Option<&Authority>, outcome: &Outcome, reason: &str) {
        let (timer, id, number) = (&attempt.name, attempt.id, attempt.number);
        let detail = &outcome.detail;
        tracing::debug!(%timer, %id, attempt = number, %detail, %reason, "attempted");
        let Some(target) = target else {
            // Where the endpoint is not there, its timers wait, and there may be many of them.
            if outcome.verdict == Verdict::Stopped {
                tracing::warn!(%timer, %id, %detail, "not delivered");
            }
            return;
        };
        if outcome.verdict == Verdict::Done {
            if let Some(failed) = self.failures.succeeded(target) {
                tracing::info!(%target, failed, "delivers again");
            }
        } else if let Some(Failed { attempts, is_own }) = self.failures.failed(target) {
            let of = if is_own {
                ""
            } else {
                " with many other targets"
            };
            tracing::info!(
                %target, failed = attempts, %timer, %id, attempt = number, %detail, %reason,
                "not delivered{of}"
            );
        }
    }

    /// What the outcome says of the endpoint. An endpoint that has failed too often is left alone for a while.
    fn notes(&self, attempt: &Attempt, reached: Reached, outcome: &Outcome) {
        let Reached {
            name: endpoint,
            revision,
            breaker,
            auto_disable,
        } = reached;
        let detail = &*outcome.detail;
        let serves = |status: u16| status < 500 && status != StatusCode::TOO_MANY_REQUESTS.as_u16();
        // What the endpoint's own rules call done or the end of a timer is an answer of an endpoint that works.
        let has_failed = matches!(outcome.verdict, Verdict::Failed { .. });
        let is_alive = !has_failed || detail.parse().is_ok_and(serves);
        let sign = if is_alive { Sign::Alive } else { Sign::Failing };
        if let Some(after) = auto_disable {
            let failing = self.catalogue.failing();
            if !has_failed {
                failing.succeeded(&endpoint, revision);
            } else if failing.failed(&endpoint, revision, after, &*self.clock) {
                self.disable(attempt, &endpoint, revision, (after, detail));
            }
        }
        let breakers = self.catalogue.breakers();
        let is_current = || {
            let known = self.catalogue.known();
            let entry = known.endpoint(&endpoint);
            entry.is_some_and(|entry| entry.version == revision)
        };
        let turn = breakers.ended(&endpoint, breaker, (sign, detail), is_current, &*self.clock);
        let Ok(timers) = attempt.timers() else {
            return;
        };
        match turn {
            Turn::Nothing => {}
            Turn::Closed => {
                tracing::info!(%endpoint, "answers again");
                timers.flows_changed();
            }
            Turn::Opened(pause) => {
                tracing::warn!(%endpoint, ?pause, detail, "fails again and again, and is left alone");
                // The timers are held no longer than by what follows: the service may stop meanwhile.
                drop(timers);
                let (sender, attempt) = (self.clone(), without_payload(attempt));
                tokio::spawn(async move {
                    // Both clocks count on their own.
                    tokio::time::sleep(pause + Duration::from_millis(1)).await;
                    let breakers = sender.catalogue.breakers();
                    if breakers.half_open(&endpoint, &*sender.clock)
                        && let Ok(timers) = attempt.timers()
                    {
                        timers.flows_changed();
                    }
                });
            }
        }
    }

    /// Disables an endpoint at which every attempt has failed for so long, if nobody has changed it.
    fn disable(
        &self,
        attempt: &Attempt,
        endpoint: &EndpointName,
        revision: SettingsVersion,
        (after, detail): (Duration, &str),
    ) {
        let known = self.catalogue.known();
        let entry = known.endpoint(endpoint);
        let current = entry.filter(|entry| entry.version == revision);
        let opened = current.and_then(|entry| entry.what.as_ref());
        let (Some(opened), Some(name)) = (opened, setting_of_endpoint(endpoint)) else {
            return;
        };
        let after = format_duration(after);
        let disabled = opened.settings.disabled_by(DisabledBy {
            reason: format!("every attempt failed for {after}: {detail}"),
            at: self.clock.timestamp(),
        });
        let request = Asked::Configure {
            name,
            value: Some(disabled.to_value()),
            precondition: SettingPrecondition::Version(revision),
        };
        let Ok(timers) = attempt.timers() else {
            return;
        };
        let note = self.audit.by_service("every attempt failed for too long");
        let request = match note {
            Some(note) => request.noted(note),
            None => request,
        };
        let endpoint = endpoint.clone();
        // As all changes of endpoints, so that none is lost to another.
        timers.submit_at(Shard::ONLY, request, move |answer| match answer {
            Ok(_) => tracing::warn!(%endpoint, %after, "is disabled: every attempt failed"),
            Err(error) => tracing::info!(%endpoint, %error, "is not disabled"),
        });
    }

    /// The attempt was not made, for a reason that is not its target's. Its place is looked at again after a while.
    fn holds(&self, attempt: &Attempt, place: Option<&Place>, why: Why, reason: &str) -> Outcome {
        let Some(place) = place else {
            return Outcome::held(Some(HELD_LOOK));
        };
        let found = self.catalogue.blocked().found(place, why, self.clock.now());
        if found.is_news {
            tracing::warn!(%place, reason, "deliveries wait: {why}");
        }
        if found.is_first {
            let (attempt, wait) = (without_payload(attempt), found.wait);
            tokio::spawn(async move {
                tokio::time::sleep(wait + Duration::from_millis(1)).await;
                if let Ok(timers) = attempt.timers() {
                    timers.flows_changed();
                }
            });
        }
        Outcome::held(Some(found.wait))
    }

    /// What came of the attempt. An error is a failure without an answer.
    async fn attempt(
        &self,
        attempt: &Attempt,
        payload: Vec<u8>,
        delivery: &mut Delivery,
    ) -> Result<Outcome, NoAnswer> {
        let Ok(job) = Job::decode(&payload) else {
            return Ok(unusable("the stored request cannot be read"));
        };
        // A long one is in memory once for as long as the attempt takes.
        drop(payload);
        // An endpoint may go away between the claim of an attempt and here: it is no fault of the receiver, and uses
        // up nothing.
        let Ok(route) = self.route(attempt, &job).await else {
            return Ok(Outcome::held(Some(HELD_LOOK)));
        };
        let way = route.means.as_ref().map_or(0, |means| means.way.number);
        let place = check_url(&route.url).ok();
        let place = place.and_then(|url| Place::of(&url, way));
        let outcome = self
            .deliver(&Stamp::of(attempt, &job), job, route, delivery)
            .await;
        if let Err(NoAnswer {
            blocked: Some(why),
            reason,
            ..
        }) = &outcome
        {
            return Ok(self.holds(attempt, place.as_ref(), *why, reason));
        }
        let was_blocked = place.is_some_and(|place| self.catalogue.blocked().passed(&place));
        if was_blocked && let Ok(timers) = attempt.timers() {
            timers.flows_changed();
        }
        outcome
    }

    /// Makes one request, and says what the answer means. An error is a failure without an answer.
    async fn deliver(
        &self,
        stamp: &Stamp,
        job: Job,
        route: Route,
        delivery: &mut Delivery,
    ) -> Result<Outcome, NoAnswer> {
        let (timeout, means) = (route.timeout, route.means.clone());
        delivery.endpoint.clone_from(&route.endpoint);
        let rules = route.rules.clone();
        let adaptive = job.extras.adaptive;
        let ends = tokio::time::Instant::now() + timeout;
        let Some((url, request, signing)) = request(stamp, job, route) else {
            return Ok(unusable("the stored request cannot be made"));
        };
        delivery.target = url.authority().cloned();
        let way = means.map(|means| means.way).unwrap_or_default();
        // A timer may have been set when the service was started with other options.
        let checked = way.check(&url, &self.targets, self.pool.is_proxied());
        checked.map_err(|refused| match refused {
            NoWay::Target(refused) => describe(&refused),
            NoWay::Proxy(refused) => describe(&ProxyFailed(Box::new(refused))),
        })?;
        let targets = way.narrowed(&self.targets);
        let going = Going {
            url: &url,
            way: &way,
            targets: &targets,
        };
        let exchange = self.exchange(&going, request, signing.as_ref(), delivery);
        match tokio::time::timeout_at(ends, exchange).await {
            Ok(answered) => {
                let (head, mut answered, body, connection) = answered?;
                let mut outcome = self.judge(&head, &rules);
                let is_done = outcome.verdict == Verdict::Done;
                (outcome.next, answered.ignored) = wishes::read(&head.headers, adaptive, is_done);
                // The status has decided. The rest is read so that the beginning can be kept and the
                // connection be used again, for as long as the attempt may take.
                let rest = tokio::time::timeout_at(ends, read(body, &mut answered)).await;
                answered.is_whole = rest == Ok(true);
                if answered.is_whole {
                    self.pool.keep(connection);
                }
                Ok(match self.keep {
                    KeepAnswers::On | KeepAnswers::Redacted => {
                        outcome.with_answer(answered.encode())
                    }
                    KeepAnswers::Off => outcome,
                })
            }
            Err(_) => {
                // The look-up of its name had no end, and the last one of any name had no answer. Behind a proxy
                // the only name is that of the proxy.
                let looked_up = self.pool.proxy(&way).map_or(&url, EgressProxy::uri);
                let is_silent = delivery.sent.is_none()
                    && literal_address(looked_up).is_none()
                    && self.pool.is_resolver_silent();
                let detail = format!("timed out after {}", format_duration(timeout));
                Err(NoAnswer {
                    reason: detail.clone(),
                    detail,
                    blocked: is_silent.then_some(Why::NoResolver),
                })
            }
        }
    }

    /// The way of an attempt, also to what another node has put a moment ago.
    async fn route(&self, attempt: &Attempt, job: &Job) -> Result<Route, Held> {
        let queue = &attempt.name.queue;
        let timers = attempt.timers().ok();
        let known = timers.as_ref().and_then(|it| self.catalogue.current(it));
        let known = known.unwrap_or_else(|| self.catalogue.known());
        let route = match (known.route(queue, job), timers) {
            (Err(held), Some(timers)) if held.is_unknown => {
                let known = self.catalogue.look_at_store(timers).await;
                known.route(queue, job)
            }
            (route, _) => route,
        };
        let ceiling = self.catalogue.ceilings().timeout;
        route.map(|route| Route {
            timeout: route.timeout.min(ceiling),
            ..route
        })
    }

    /// What an answer means, by its status and by how long it asks to be left alone.
    fn judge(&self, head: &response::Parts, rules: &Rules) -> Outcome {
        let asks_to_wait = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ]
        .contains(&head.status);
        let wait = head.headers.get(header::RETRY_AFTER);
        let wait = wait.filter(|_| asks_to_wait);
        let wait = wait.and_then(|value| value.to_str().ok());
        let verdict = match rules.meaning(head.status) {
            Meaning::Done => Verdict::Done,
            Meaning::Stop => Verdict::Stopped,
            Meaning::Retry => Verdict::Failed {
                retry_after: wait.and_then(|value| retry_after(value, self.clock.timestamp())),
            },
        };
        Outcome::new(verdict, head.status.as_str())
    }

    /// Sends the request, up to the head of the answer.
    async fn exchange(
        &self,
        going: &Going<'_>,
        mut request: Request<Full<Bytes>>,
        signing: Option<&Signing>,
        delivery: &mut Delivery,
    ) -> Result<(response::Parts, Answered, AnswerBody, Connection), NoAnswer> {
        let (answer, connection, sent) = loop {
            let connection = self.pool.take(going).await;
            let mut connection = connection.map_err(|error| describe(&*error))?;
            // The lease of this node may have ended since: nothing leaves unless it goes on. Of that the
            // target knows nothing.
            let target = delivery.target.take();
            while !delivery.may_start() {
                tokio::time::sleep(LEASE_LOOK).await;
            }
            delivery.target = target;
            // Receivers compare this time with their own clock, so it is one by the wall clock.
            let (wall, sent) = (self.clock.timestamp(), self.clock.now());
            let late = delivery.sends(wall, sent);
            let wall = wall.saturating_since(Timestamp::EPOCH);
            let headers = request.headers_mut();
            headers.insert("webhook-timestamp", wall.as_secs().into());
            if let Some(signature) = signing.and_then(|signing| signing.at(wall.as_secs())) {
                headers.insert("webhook-signature", signature);
            }
            let late_us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
            headers.insert("timer-late-us", late_us.into());
            match connection.send(request).await {
                Ok(Sent::Answered(answer)) => break (answer, connection, sent),
                Ok(Sent::Closed(unsent)) => request = unsent,
                Err(error) => return Err(describe(&*error)),
            }
        };
        let times = Times {
            first_byte: self.clock.now().saturating_since(sent),
            ..connection.times()
        };
        let (head, body) = answer.into_parts();
        let answered = Answered {
            status: head.status.as_u16(),
            body: (self.keep == KeepAnswers::On).then(Vec::new),
            body_bytes: 0,
            is_whole: false,
            times,
            ignored: Ignored::default(),
        };
        Ok((head, answered, body, connection))
    }
}

/// Reads the body of an answer, as far as it is read. Whether that is all of it.
async fn read(mut body: AnswerBody, answered: &mut Answered) -> bool {
    while let Some(bytes) = body.next().await {
        let Ok(bytes) = bytes else {
            return false;
        };
        if !answered.take(&bytes, ANSWER_MAX_BYTES) {
            return false;
        }
    }
    true
}

/// What a stored request comes to that is none.
fn unusable(detail: &str) -> Outcome {
    Outcome::new(Verdict::Stopped, detail)
}

/// The attempt for those who need its timers.
fn without_payload(attempt: &Attempt) -> Attempt {
    let mut attempt = attempt.clone();
    attempt.payload = Vec::new();
    attempt
}

fn failed(detail: String) -> Outcome {
    Outcome::new(Verdict::Failed { retry_after: None }, detail)
}

/// What signs the request of one attempt, if its endpoint has secrets.
struct Signing {
    keys: Arc<[SigningKey]>,
    id: String,
    body: Bytes,
}

impl Signing {
    fn of(means: Option<Means>, id: &str, body: &Bytes) -> Option<Self> {
        let keys = means.map(|means| means.keys)?;
        (!keys.is_empty()).then(|| Self {
            keys,
            id: id.to_owned(),
            body: body.clone(),
        })
    }

    /// The signatures of a request that is sent at this time.
    fn at(&self, timestamp: u64) -> Option<HeaderValue> {
        let signatures = signature::header(&self.keys, &self.id, timestamp, &self.body);
        signatures.try_into().ok()
    }
}

/// What a request says of its attempt.
struct Stamp {
    /// What its receiver remembers it by.
    id: String,
    key: String,
    /// The deadline that was asked for.
    deadline: Timestamp,
    /// Headers that nobody else sets.
    own: Vec<(&'static str, String)>,
}

impl Stamp {
    fn of(attempt: &Attempt, job: &Job) -> Self {
        let key = utf8_percent_encode(attempt.name.key.as_str(), ENCODED);
        // Each run of a recurring timer is another delivery to those who remember what they had.
        let id = match attempt.run {
            None => attempt.id.to_string(),
            Some(run) => format!("{}-r{}", attempt.id, run.number),
        };
        let mut own = vec![
            ("webhook-id", id.clone()),
            ("timer-queue", attempt.name.queue.to_string()),
            ("timer-key", key.to_string()),
            ("timer-attempt", attempt.number.to_string()),
            ("timer-due", format_time(attempt.deadline)),
            ("timer-held-us", attempt.held.as_micros().to_string()),
            ("timer-fence", attempt.fence.0.to_string()),
        ];
        if let Some(run) = attempt.run {
            own.push(("timer-run", run.number.to_string()));
            own.push(("timer-nominal", format_time(run.nominal)));
        }
        if let Some(nominal) = job.extras.backfill {
            let timer = timer_of_run(attempt.name.key.as_str(), nominal);
            let timer = utf8_percent_encode(timer, ENCODED);
            own.push(("timer-backfill", timer.to_string()));
            own.push(("timer-nominal", format_time(nominal)));
        }
        Self {
            id,
            key: attempt.name.key.to_string(),
            deadline: attempt.deadline,
            own,
        }
    }
}

/// The request of one attempt, and to where, but for the headers that say when it was sent. `None` if
/// the job holds what was never accepted.
fn request(
    stamp: &Stamp,
    job: Job,
    route: Route,
) -> Option<(Uri, Request<Full<Bytes>>, Option<Signing>)> {
    let url = check_url(&route.url).ok()?;
    let body = Bytes::from(job.body);
    let signing = Signing::of(route.means, &stamp.id, &body);
    let event = route.cloudevents.map(|event| {
        let time = format_time(stamp.deadline);
        event.headers(&stamp.id, &stamp.key, &time)
    });
    // A query may stand behind the host, without a path.
    let query = url.query().map(|query| format!("?{query}"));
    let path = format!("{}{}", url.path(), query.unwrap_or_default());
    let carries_body = carries_body(&job.method);
    let mut request = Request::builder()
        .method(job.method)
        .uri(path)
        .body(Full::new(body))
        .ok()?;
    let is_empty = request.body().size_hint().exact() == Some(0);
    let headers = request.headers_mut();
    headers.insert(header::HOST, host_of(&url)?);
    if is_empty && carries_body {
        // Left to itself, the client says nothing of a body that is not there, and some receivers
        // then answer 411.
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    for (name, value) in route.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.insert(name, value.try_into().ok()?);
    }
    if let Some(trace) = &job.extras.trace
        && !headers.contains_key(TRACEPARENT)
    {
        headers.insert(TRACEPARENT, trace.parent(traced::span()).try_into().ok()?);
        // What the caller says itself goes before what came with the set.
        if let (Some(state), false) = (trace.state(), headers.contains_key(TRACESTATE)) {
            headers.insert(TRACESTATE, state.try_into().ok()?);
        }
    }
    if let Some(content_type) = job.content_type {
        headers.insert(header::CONTENT_TYPE, content_type.try_into().ok()?);
    }
    let own = stamp.own.iter();
    let own = own.map(|(name, value)| (*name, value.clone()));
    for (name, value) in own.chain(event.into_iter().flatten()) {
        headers.insert(HeaderName::from_static(name), value.try_into().ok()?);
    }
    Some((url, request, signing))
}

/// Whether a body has a meaning in requests of this method.
pub(crate) fn carries_body(method: &Method) -> bool {
    ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// The host that a request names: without a port that is the usual one.
fn host_of(url: &Uri) -> Option<HeaderValue> {
    let authority = url.authority()?;
    let usual = if url.scheme() == Some(&Scheme::HTTPS) {
        443
    } else {
        80
    };
    let host = if authority.port_u16() == Some(usual) {
        authority.host()
    } else {
        authority.as_str()
    };
    host.parse().ok()
}

/// Reads a target's URL by its syntax alone: where it leads is seen at each attempt.
pub(crate) fn check_url(url: &str) -> Result<Uri, &'static str> {
    let uri: Uri = url.parse().map_err(|_| "this is no absolute URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("the URL must begin with http:// or https://");
    }
    let authority = uri.authority().ok_or("the URL has no host")?;
    if authority.as_str().contains('@') {
        return Err("the URL must not have a user or password; send a header");
    }
    let host = authority.host();
    if host.is_empty() {
        return Err("the URL has no host");
    }
    let is_address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let is_name = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if !is_address && !is_name {
        return Err("the URL's host is neither a name nor an address");
    }
    match authority.as_str()[host.len()..].strip_prefix(':') {
        None if authority.as_str().len() == host.len() => Ok(uri),
        Some(port)
            if port
                .parse::<u16>()
                .is_ok_and(|n| n > 0 && n.to_string() == port) =>
        {
            Ok(uri)
        }
        _ => Err("the URL's port is not from 1 to 65535"),
    }
}

/// Refuses what would have to be encoded in a URL, or in a part of one, and would be sent as it stands. What is stored
/// may have it: that was taken before.
pub(crate) fn check_encoding(text: &str) -> Result<(), &'static str> {
    if !text.is_ascii() {
        return Err("it has a character that is not ASCII: percent-encode the bytes of its UTF-8");
    }
    let mut parts = text.split('%');
    let is_hex = |digit: &u8| digit.is_ascii_hexdigit();
    let begins_with_two = |part: &str| {
        let first = part.as_bytes().get(..2);
        first.is_some_and(|first| first.iter().all(is_hex))
    };
    // The first part is before all of them.
    parts.next();
    if parts.all(begins_with_two) {
        Ok(())
    } else {
        Err("a % in it is not before two hex digits: a % itself is %25")
    }
}

/// How long the receiver wants to be left alone: seconds, or a date.
fn retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than fit are as good as any other large number.
        return Some(Duration::from_secs(
            value.parse().unwrap_or(u64::from(u32::MAX)),
        ));
    }
    let date = httpdate::parse_http_date(value).ok();
    let date = date.map(|date| {
        date.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
    });
    // Some write the date as in a letter: with an offset, or in lower case.
    let date = date.or_else(|| {
        let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
        let micros = u64::try_from(date.as_microsecond()).unwrap_or(0);
        Some(Duration::from_micros(micros))
    })?;
    Some((Timestamp::EPOCH + date).saturating_since(now))
}

/// What callers see of a target that is refused, and of one to which no way leads: which of the
/// two it is would tell them of the operator's network.
const UNREACHABLE: &str = "target unreachable";

/// Why there was no answer.
fn describe(error: &(dyn Error + 'static)) -> NoAnswer {
    let mut reason = error.to_string();
    let (mut detail, mut blocked, mut is_of_proxy) = (None, None, false);
    let mut cause = Some(error);
    while let Some(error) = cause {
        is_of_proxy |= error.is::<ProxyFailed>();
        detail = detail.or_else(|| detail_of(error));
        blocked = blocked.or_else(|| why_blocked(error));
        cause = cause_of(error);
        if let Some(cause) = cause {
            reason = cause.to_string();
        }
    }
    let detail = match detail {
        Some(detail) if is_of_proxy => format!("proxy: {detail}"),
        None if is_of_proxy => "proxy: no tunnel".to_owned(),
        detail => detail.unwrap_or_else(|| "no connection".to_owned()),
    };
    let blocked = match blocked {
        Some(Why::Refused) if is_of_proxy => Some(Why::Proxy),
        blocked => blocked,
    };
    NoAnswer {
        detail,
        reason,
        blocked,
    }
}

/// Whether an error says nothing of the target.
fn why_blocked(error: &(dyn Error + 'static)) -> Option<Why> {
    if let Some(refused) = error.downcast_ref::<RefusedTarget>() {
        return Some(match refused {
            RefusedTarget::Outside => Why::Outside,
            _ => Why::Refused,
        });
    }
    let error = error.downcast_ref::<NotResolved>()?;
    (*error == NotResolved::NoResolver).then_some(Why::NoResolver)
}

/// What lies behind an error. An [`io::Error`] calls its own cause no source of it.
fn cause_of<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().map(|cause| cause as _),
        None => error.source(),
    }
}

/// An error in few words and without addresses; nothing if only its cause says more.
fn detail_of(error: &(dyn Error + 'static)) -> Option<String> {
    if error.is::<RefusedTarget>() {
        return Some(UNREACHABLE.to_owned());
    }
    if let Some(error) = error.downcast_ref::<NotResolved>() {
        return Some(error.to_string());
    }
    if let Some(error) = error.downcast_ref::<AnswerTooLong>() {
        return Some(error.to_string());
    }
    if let Some(error) = error.downcast_ref::<TooManyHeaders>() {
        return Some(error.to_string());
    }
    if let Some(error) = error.downcast_ref::<Refused>() {
        return Some(error.to_string());
    }
    if let Some(error) = error.downcast_ref::<h2::Error>() {
        return Some(http2_detail(error));
    }
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(format!("tls: {}", tls_detail(error)));
    }
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        if error.is_incomplete_message() {
            return Some("connection closed before the answer".to_owned());
        }
        if error.is_parse() {
            return Some("the answer is not HTTP".to_owned());
        }
    }
    let detail = match error.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::TimedOut => "connection timed out",
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::PermissionDenied => UNREACHABLE,
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "connection closed before the answer"
        }
        _ => return None,
    };
    Some(detail.to_owned())
}

fn http2_detail(error: &h2::Error) -> String {
    let of_system = error.get_io().map(|error| detail_of(error));
    let detail = match of_system {
        Some(Some(detail)) => return detail,
        Some(None) => "connection closed before the answer",
        None if error.is_go_away() && error.is_remote() => "connection closed before the answer",
        None if error.is_remote() => "stream reset",
        None => "the answer is not HTTP",
    };
    detail.to_owned()
}

fn tls_detail(error: &rustls::Error) -> String {
    use rustls::CertificateError as Certificate;
    let detail = match error {
        rustls::Error::InvalidCertificate(error) => match error {
            // An authority of the issuer's name that cannot have signed it is not its issuer.
            Certificate::UnknownIssuer
            | Certificate::BadSignature
            | Certificate::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
                "the issuer of the certificate is unknown"
            }
            Certificate::Expired | Certificate::ExpiredContext { .. } => {
                "the certificate has expired"
            }
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
                "the certificate is not valid yet"
            }
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "the certificate is for another name"
            }
            _ => "the certificate is not valid",
        },
        rustls::Error::InvalidMessage(_) => "the answer is not TLS",
        error => return error.to_string(),
    };
    detail.to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use countwheel_durable::store::{
        Change, DuePage, DueScan, Filter, Lease, MemoryStore, Ownership, Page, QueueCounts, Shard,
        Store, StoreError,
    };
    use countwheel_durable::{Config, Record, Settings, SettingsVersion, TimerName, Timers};
    use countwheel_time::SystemClock;

    use super::*;
    use crate::job::{Extras, To};

    /// A store whose lease is over when it is told so.
    struct Leased {
        store: MemoryStore,
        is_over: Arc<AtomicBool>,
    }

    impl Store for Leased {
        fn acquire(&self, shard: Shard) -> Result<Ownership, StoreError> {
            self.store.acquire(shard)
        }

        fn commit(&self, lease: Lease, changes: &[Change]) -> Result<(), StoreError> {
            self.store.commit(lease, changes)
        }

        fn get(&self, shard: Shard, name: &TimerName) -> Result<Option<Record>, StoreError> {
            self.store.get(shard, name)
        }

        fn may_start(&self, _: Lease) -> bool {
            !self.is_over.load(Ordering::SeqCst)
        }

        fn due(&self, shard: Shard, scan: &DueScan<'_>) -> Result<DuePage, StoreError> {
            self.store.due(shard, scan)
        }

        fn list(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError> {
            self.store.list(shard, filter)
        }

        fn counts(&self, shard: Shard) -> Result<Vec<QueueCounts>, StoreError> {
            self.store.counts(shard)
        }

        fn settings(&self, after: SettingsVersion) -> Result<Option<Settings>, StoreError> {
            self.store.settings(after)
        }
    }

    /// The lease ends once the attempt has been handed over.
    struct Ending {
        handler: HttpHandler,
        is_over: Arc<AtomicBool>,
    }

    impl Handler for Ending {
        fn start(&self, attempt: Attempt, done: Completion) {
            self.is_over.store(true, Ordering::SeqCst);
            self.handler.start(attempt, done);
        }
    }

    #[test]
    fn nothing_leaves_after_the_lease_and_goes_on_with_it() {
        let receiver = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = receiver.local_addr().expect("an address");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let clock = Arc::new(SystemClock::new());
        let handle = runtime.handle().clone();
        let handler = HttpHandler::new(handle, Targets::any(), Arc::<SystemClock>::clone(&clock));
        let is_over = Arc::<AtomicBool>::default();
        let store = Leased {
            store: MemoryStore::new(7),
            is_over: Arc::clone(&is_over),
        };
        let ending = Ending {
            handler,
            is_over: Arc::clone(&is_over),
        };
        let timers = Timers::open(store, ending, clock, Config::default()).expect("it opens");
        let job = Job {
            method: Method::POST,
            to: To::Url(format!("http://{address}/")),
            headers: Vec::new(),
            content_type: None,
            body: Vec::new(),
            timeout: Some(Duration::from_secs(20)),
            extras: Extras::default(),
        };
        timers
            .set("orders/a", Duration::ZERO, job.encode())
            .expect("it is set");
        // The connection is made, and nothing comes over it.
        let (mut stream, _) = receiver.accept().expect("a connection");
        let mut head = [0; 2_048];
        let within = |span| stream.set_read_timeout(Some(span)).expect("a span");
        within(Duration::from_millis(200));
        let nothing = (&stream).read(&mut head).expect_err("the lease is over");
        assert!(matches!(
            nothing.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ));
        // Nobody took the shard.
        is_over.store(false, Ordering::SeqCst);
        within(Duration::from_secs(20));
        let length = (&stream).read(&mut head).expect("a request");
        assert!(head[..length].starts_with(b"POST / HTTP/1.1"));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .expect("it listens");
    }

    /// The clock of the deliveries is moved by hand, and that of the timers is the system's.
    #[test]
    fn an_endpoint_is_disabled_once_every_attempt_of_a_while_has_failed() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let handle = runtime.handle().clone();
        let clock = countwheel_time::ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let (vault, roots) = (Vault::without_key(true), Arc::new(roots::of_program()));
        let catalogue = Arc::new(Catalogue::new(vault, roots, Arc::clone(&shared)));
        let known = Arc::clone(&catalogue);
        let handler = HttpHandler::with(handle, Targets::any(), shared, 4, 4, known);
        let system = Arc::new(SystemClock::new());
        let store = MemoryStore::new(7);
        let timers = Timers::open(store, handler, system, Config::default()).expect("it opens");
        let receiver = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = receiver.local_addr().expect("an address");
        let (answered, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in receiver.incoming() {
                let mut stream = stream.expect("a connection");
                let mut head = [0; 4_096];
                drop(stream.read(&mut head));
                let failure =
                    b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(failure).expect("it listens");
                answered.send(()).unwrap_or_default();
            }
        });
        let name = EndpointName::new("shop").expect("a name");
        let url = format!("http://{address}/");
        let value = format!(
            r#"{{"format":1,"url":"{url}","headers":[],"secrets":[],"disabled":false,"auto_disable":"120h"}}"#
        );
        let (send, put) = std::sync::mpsc::channel();
        let request = Asked::Configure {
            name: setting_of_endpoint(&name).expect("a setting"),
            value: Some(value.into_bytes()),
            precondition: SettingPrecondition::None,
        };
        timers.submit(request, move |answer| drop(send.send(answer)));
        put.recv().expect("an answer").expect("it is put");
        catalogue.refresh(&timers);
        let job = Job {
            method: Method::POST,
            to: To::Endpoint {
                name: Some("shop".to_owned()),
                path: String::new(),
            },
            headers: Vec::new(),
            content_type: None,
            body: Vec::new(),
            timeout: None,
            extras: Extras::default(),
        };
        timers
            .set("orders/a", Duration::ZERO, job.encode())
            .expect("it is set");
        answers.recv().expect("an attempt");
        let is_disabled = || {
            let known = catalogue.refresh(&timers);
            let entry = known.endpoint(&name).expect("it is there");
            entry.what.as_ref().expect("it is read").settings.clone()
        };
        assert!(!is_disabled().disabled);
        let has_failed = || {
            let name = TimerName::new("orders", "a").expect("a name");
            let record = timers.get(&name).expect("it is read");
            record.is_some_and(|record| record.failures > 0)
        };
        while !has_failed() {
            std::thread::yield_now();
        }
        // The next attempt fails as well, after the time.
        clock.advance(Duration::from_secs(120 * 3_600));
        timers
            .set("orders/b", Duration::ZERO, job.encode())
            .expect("it is set");
        answers.recv().expect("an attempt");
        let settings = (0..2_000).find_map(|_| {
            let settings = is_disabled();
            std::thread::yield_now();
            settings.disabled.then_some(settings)
        });
        let settings = settings.expect("it is disabled");
        let by = settings.disabled_by.expect("by the service");
        assert_eq!(by.reason, "every attempt failed for 120h: 404");
        assert_eq!(by.at, clock.timestamp());
        let log = timers.audit(&countwheel_durable::AuditFilter::default(), None);
        let log = log.expect("it is read").entries;
        let [(_, entry)] = &log[..] else {
            panic!("the service alone has noted what it does: {log:?}")
        };
        let note = String::from_utf8_lossy(&entry.note);
        assert!(note.contains(r#""kind":"service""#), "{note}");
    }

    /// What was stored when such URLs were taken.
    #[test]
    fn a_url_that_would_not_be_taken_any_more_is_delivered_as_it_stands() {
        let receiver = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = receiver.local_addr().expect("an address");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let clock = Arc::new(SystemClock::new());
        let handle = runtime.handle().clone();
        let handler = HttpHandler::new(handle, Targets::any(), Arc::<SystemClock>::clone(&clock));
        let store = MemoryStore::new(7);
        let timers = Timers::open(store, handler, clock, Config::default()).expect("it opens");
        let job = Job {
            method: Method::POST,
            to: To::Url(format!("http://{address}/ü?%zz")),
            headers: Vec::new(),
            content_type: None,
            body: Vec::new(),
            timeout: Some(Duration::from_secs(20)),
            extras: Extras::default(),
        };
        timers
            .set("orders/a", Duration::ZERO, job.encode())
            .expect("it is set");
        let (mut stream, _) = receiver.accept().expect("a connection");
        let mut head = [0; 2_048];
        let length = (&stream).read(&mut head).expect("a request");
        assert!(head[..length].starts_with("POST /ü?%zz HTTP/1.1".as_bytes()));
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .expect("it listens");
    }

    #[test]
    fn what_would_have_to_be_encoded_is_refused() {
        for good in [
            "",
            "/a?b=%C3%bc&c=%25",
            "http://x/%00",
            "/a%2F%2f",
            "/[a]|b",
        ] {
            assert_eq!(check_encoding(good), Ok(()), "{good}");
        }
        for bad in [
            "/ü", "/a?b=ü", "/\u{80}", "/%zz", "/%", "/%4", "/%4g", "/%%41", "/%C3%", "/a?%",
        ] {
            assert!(check_encoding(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_is_absolute_http_without_a_user() {
        for good in [
            "http://example.com",
            "https://example.com:8443/a?b=c#d",
            "HTTP://EXAMPLE.com/",
            "http://127.0.0.1:7070/echo",
            "http://[::1]:80/",
            "http://2130706433/",
            "http://a_b.example/",
        ] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/hook",
            "example.com/hook",
            "ftp://example.com/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "http:example.com",
            "http://",
            "http:///hook",
            "http://:80/",
            "http://user@example.com/",
            "http://user:secret@example.com/",
            "http://@example.com/",
            "http://a b/",
            "http://exämple.com/",
            "http://example.com:0/",
            "http://example.com:65536/",
            "http://example.com:/",
            "http://example.com:80:80/",
            "http://[::1/",
            "http://[fe80::1%25eth0]/",
            "http://ex%61mple.com/",
            "http://example.com\\@evil/",
            "http://example.com/\n",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = Timestamp::from_micros(784_111_777_000_000);
        for (value, seconds) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:50:37 1994", Some(60)),
            ("Sun, 06 Nov 1994 09:50:37 +0100", Some(60)),
            ("sun, 06 nov 1994 08:50:37 gmt", Some(60)),
            ("Sunday, 06-Nov-94 08:50:37", None),
            ("Sun Nov  6 08:50:37", None),
            ("99999999999999999999", Some(u64::from(u32::MAX))),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(
                retry_after(value, now),
                seconds.map(Duration::from_secs),
                "{value}"
            );
        }
    }

    /// As the connector wraps what TLS says: one error of the system in another. Everything was
    /// said to be "no connection: other error" before.
    #[test]
    fn what_failed_in_tls_is_said() {
        use rustls::{CertificateError as Certificate, Error as Tls};
        let name = || "elsewhere.example".try_into().unwrap();
        for (error, detail) in [
            (
                Tls::InvalidCertificate(Certificate::UnknownIssuer),
                "tls: the issuer of the certificate is unknown",
            ),
            (
                Tls::InvalidCertificate(Certificate::Expired),
                "tls: the certificate has expired",
            ),
            (
                Tls::InvalidCertificate(Certificate::NotValidYet),
                "tls: the certificate is not valid yet",
            ),
            (
                Tls::InvalidCertificate(Certificate::NotValidForNameContext {
                    expected: name(),
                    presented: vec!["secret.internal".to_owned()],
                }),
                "tls: the certificate is for another name",
            ),
            (
                Tls::InvalidMessage(rustls::InvalidMessage::InvalidContentType),
                "tls: the answer is not TLS",
            ),
        ] {
            let reason = error.to_string();
            let inner = io::Error::new(io::ErrorKind::InvalidData, error);
            let found = describe(&io::Error::other(inner));
            assert_eq!((found.detail.as_str(), found.reason), (detail, reason));
        }
        for (kind, detail) in [
            (io::ErrorKind::ConnectionReset, "connection reset"),
            (io::ErrorKind::ConnectionRefused, "connection refused"),
            (
                io::ErrorKind::UnexpectedEof,
                "connection closed before the answer",
            ),
        ] {
            let found = describe(&io::Error::other(io::Error::from(kind)));
            assert_eq!(found.detail, detail);
        }
    }

    #[test]
    fn what_is_refused_and_what_cannot_be_reached_look_the_same_to_callers() {
        let address = "10.0.0.7".parse().unwrap();
        let refused = describe(&RefusedTarget::Private(address));
        let unreachable = describe(&io::Error::from(io::ErrorKind::HostUnreachable));
        assert_eq!(refused.detail, UNREACHABLE);
        assert_eq!(refused.detail, unreachable.detail);
        assert!(refused.reason.contains("10.0.0.7"), "{refused:?}");
        assert_ne!(refused.reason, unreachable.reason);
    }
}
