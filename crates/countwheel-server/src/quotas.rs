//! What namespaces use of their quotas, and what is refused beyond them.
//!
//! Timers and queues are counted by the store, now and then for all namespaces together. What this process has admitted since
//! is added to the last count, so that none is admitted beyond the quota in between. Of several nodes, each admits its part of
//! what is left until the next count. The rate is a token bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use countwheel_durable::{Namespace, QueueName, TimerName};
use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;

use crate::api::App;
use crate::api::access::Identity;
use crate::api::problem::{Code, Problem};
use crate::api::reach;
use crate::callers::Peer;
use crate::cluster::seen::NodeState;
use crate::resources::endpoint::Rate;
use crate::resources::namespace::{Quotas, namespace_in};
use crate::resources::token::Scope;

/// A count counts for so long. What was removed since, here or by another node, is not known.
const COUNTED_FOR: Duration = Duration::from_secs(1);
/// A namespace that has no room is counted again after so long at the soonest.
const COUNT_AGAIN: Duration = Duration::from_millis(100);
/// Counting takes one part in so many of the time at the most.
const COUNT_SHARE: u32 = 10;
/// How often it is looked how many nodes there are.
const NODES_FOR: Duration = Duration::from_millis(500);

/// A quota, by its name in the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quota {
    Timers,
    Rate,
    Queues,
    Endpoints,
    Connections,
}

impl Quota {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Timers => "timers",
            Self::Rate => "rate",
            Self::Queues => "queues",
            Self::Endpoints => "endpoints",
            Self::Connections => "connections",
        }
    }
}

/// What every namespace with quotas uses.
#[derive(Debug)]
pub(crate) struct Usage {
    clock: Arc<dyn Clock>,
    of: Mutex<BTreeMap<Box<str>, Arc<Used>>>,
    /// Whoever holds it counts.
    counting: tokio::sync::Mutex<Counting>,
    nodes: Mutex<(Option<Instant>, u64)>,
}

/// When it was counted last, and for how long.
#[derive(Default, Debug)]
struct Counting {
    began: Option<Instant>,
    took: Duration,
}

/// What one namespace uses.
#[derive(Default, Debug)]
struct Used {
    state: Mutex<State>,
    connections: AtomicU64,
}

#[derive(Default, Debug)]
struct State {
    bucket: Bucket,
    /// When it was counted.
    at: Option<Instant>,
    timers: u64,
    queues: BTreeSet<QueueName>,
    /// How many of the queues the store has counted.
    queues_counted: u64,
    /// Sets that are under way.
    under_way: u64,
    /// Those that have ended since the count.
    ended: u64,
}

/// A token bucket (Turner, 1986).
#[derive(Default, Debug)]
struct Bucket {
    at: Option<Instant>,
    /// Below zero, so much of what is to come is taken already.
    tokens: f64,
}

impl Bucket {
    /// Fills it up to now. Returns the tokens that come in a second.
    fn fill(&mut self, rate: Rate, nodes: u64, now: Instant) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "there are few nodes")]
        let per_second = rate.per_second / nodes as f64;
        let burst = f64::from(rate.burst);
        let since = self.at.map(|at| now.saturating_since(at));
        let filled = since.map_or(burst, |since| {
            self.tokens + since.as_secs_f64() * per_second
        });
        self.tokens = filled.min(burst);
        self.at = Some(now);
        per_second
    }

    /// Takes a token, if there is one. Otherwise says after how long there is.
    fn take(&mut self, rate: Rate, nodes: u64, now: Instant) -> Result<(), Duration> {
        let per_second = self.fill(rate, nodes, now);
        if self.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.tokens) / per_second));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Takes so many tokens that have all come within `patience`, and says after how long they have. Otherwise says by how much
    /// that is too long.
    fn reserve(
        &mut self,
        rate: Rate,
        nodes: u64,
        count: f64,
        patience: Duration,
        now: Instant,
    ) -> Result<Duration, Duration> {
        let per_second = self.fill(rate, nodes, now);
        let left = self.tokens - count;
        let wait = (-left / per_second).max(0.0);
        let beyond = wait - patience.as_secs_f64();
        if beyond > 0.0 {
            // A rate may be so small that no duration has room for it.
            let beyond = Duration::try_from_secs_f64(beyond);
            return Err(beyond.unwrap_or(Duration::from_secs(u64::from(u32::MAX))));
        }
        self.tokens = left;
        Ok(Duration::from_secs_f64(wait))
    }
}

/// The part of what is left that one of several nodes may use.
fn share(left: u64, nodes: u64) -> u64 {
    left.div_ceil(nodes)
}

impl State {
    /// The quota that has no room.
    fn lacks(&self, quotas: &Quotas, queue: &QueueName, nodes: u64, wants: Wants) -> Option<Quota> {
        let since = self.under_way + self.ended;
        if let Some(most) = quotas.timers.filter(|_| wants == Wants::Timer) {
            let left = most.saturating_sub(self.timers);
            if since >= share(left, nodes) {
                return Some(Quota::Timers);
            }
        }
        if let Some(most) = quotas.queues
            && !self.queues.contains(queue)
        {
            let new = self.queues.len() as u64 - self.queues_counted;
            let left = most.saturating_sub(self.queues_counted);
            if new >= share(left, nodes) {
                return Some(Quota::Queues);
            }
        }
        None
    }

    fn counts(&self, now: Instant) -> bool {
        self.at
            .is_some_and(|at| now.saturating_since(at) < COUNTED_FOR)
    }
}

/// What has room. A set is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    used: Arc<Used>,
    wants: Wants,
    /// Whether it may have made a timer.
    has_made: bool,
}

impl Admitted {
    /// The set is over. One that has made no timer gives its room back.
    pub(crate) fn end(mut self, has_made: bool) {
        self.has_made = has_made;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.wants == Wants::Timer {
            let mut state = self.used.state.lock();
            state.under_way -= 1;
            state.ended += u64::from(self.has_made);
        }
    }
}

/// A connection that counts for a namespace until this is dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    namespace: Box<str>,
    used: Arc<Used>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.used.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The timers and queues of a namespace, as they were counted last, and its connections here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InUse {
    pub(crate) timers: u64,
    pub(crate) queues: u64,
    pub(crate) connections: u64,
    /// Those that are shown: an ended one as well, for a while.
    pub(crate) jobs: u64,
    pub(crate) purges: u64,
}

impl Usage {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            of: Mutex::default(),
            counting: tokio::sync::Mutex::default(),
            nodes: Mutex::new((None, 1)),
        }
    }

    fn of(&self, namespace: &str) -> Arc<Used> {
        let mut all = self.of.lock();
        if let Some(used) = all.get(namespace) {
            return Arc::clone(used);
        }
        let used = Arc::new(Used::default());
        all.insert(namespace.into(), Arc::clone(&used));
        used
    }

    /// How many nodes share the quotas.
    fn nodes(&self, app: &App) -> u64 {
        let Some(cluster) = app.cluster() else {
            return 1;
        };
        let now = self.clock.now();
        let mut nodes = self.nodes.lock();
        if nodes
            .0
            .is_none_or(|at| now.saturating_since(at) >= NODES_FOR)
        {
            let seen = cluster.seen(&app.timers).nodes();
            let lives = seen.iter().filter(|node| node.state != NodeState::Over);
            *nodes = (Some(now), (lives.count() as u64).max(1));
        }
        nodes.1
    }

    /// Counts timers and queues of all namespaces, unless that was done a moment ago and for this one as well.
    async fn count(&self, app: &App, wanted: &Used) -> Result<(), Problem> {
        let called = self.clock.now();
        let mut counting = self.counting.lock().await;
        let began = self.clock.now();
        let is_counted = wanted.state.lock().at.is_some();
        if let Some(last) = counting.began.filter(|_| is_counted) {
            let pause = COUNT_AGAIN.max(counting.took * COUNT_SHARE);
            if last > called || began.saturating_since(last) < pause {
                return Ok(());
            }
        }
        let all: Vec<_> = self
            .of
            .lock()
            .iter()
            .map(|(namespace, used)| (namespace.clone(), Arc::clone(used)))
            .collect();
        let before: Vec<_> = all.iter().map(|(_, it)| it.state.lock().ended).collect();
        let (counted, drains) = app
            .measure(|timers| {
                let counted = timers.counted().map_err(|error| Problem::from(&error))?;
                Ok((counted, timers.drains()))
            })
            .await?;
        let known = app.catalogue().known();
        let mut sums: BTreeMap<Box<str>, (u64, BTreeSet<QueueName>)> = BTreeMap::new();
        let with_timers = counted.queues.iter();
        let with_timers = with_timers.map(|it| (&it.queue, it.by_state.iter().sum::<u64>()));
        let with_settings = known.queues().map(|(queue, _)| (queue, 0));
        let drained = drains.iter().map(|(queue, _)| (queue, 0));
        for (queue, timers) in with_timers.chain(with_settings).chain(drained) {
            let namespace = queue.namespace();
            let wants_queues = known
                .quotas(namespace)
                .map(|quotas| quotas.queues.is_some());
            let Some(wants_queues) = wants_queues else {
                continue;
            };
            let sum = sums.entry(namespace.into()).or_default();
            sum.0 += timers;
            if wants_queues {
                sum.1.insert(queue.clone());
            }
        }
        for ((namespace, used), before) in all.into_iter().zip(before) {
            let (timers, queues) = sums.remove(&namespace).unwrap_or_default();
            let mut state = used.state.lock();
            state.timers = timers;
            state.queues_counted = queues.len() as u64;
            state.queues = queues;
            state.ended -= before;
            state.at = Some(began);
        }
        counting.took = self.clock.now().saturating_since(began);
        counting.began = Some(began);
        Ok(())
    }

    /// What a namespace uses, as it is now.
    pub(crate) async fn in_use(&self, app: &App, namespace: &str) -> Result<InUse, Problem> {
        let name: Box<str> = namespace.into();
        let (timers, queues, [jobs, purges]) = app
            .measure(move |timers| {
                let counted = timers.counted().map_err(|error| Problem::from(&error))?;
                let own = counted.queues.iter();
                let own = own.filter(|it| it.queue.namespace() == &*name);
                let mut queues = BTreeSet::new();
                let mut count = 0;
                for it in own {
                    count += it.by_state.iter().sum::<u64>();
                    queues.insert(it.queue.clone());
                }
                let of_own = |queue: &QueueName| queue.namespace() == &*name;
                let drains = timers.drains();
                let drained = drains.iter().map(|(queue, _)| queue);
                queues.extend(drained.filter(|it| of_own(it)).cloned());
                let purges = timers.purges().into_iter();
                let purges = purges.filter(|purge| of_own(&purge.queue)).count() as u64;
                let jobs = timers.jobs().into_iter();
                let jobs = jobs.filter(|job| of_own(&job.order.queue)).count() as u64;
                Ok((count, queues, [jobs, purges]))
            })
            .await?;
        let known = app.catalogue().known();
        let with_settings = known.queues().map(|(queue, _)| queue);
        let with_settings =
            with_settings.filter(|it| it.namespace() == namespace && !queues.contains(*it));
        Ok(InUse {
            timers,
            queues: queues.len() as u64 + with_settings.count() as u64,
            connections: self.of(namespace).connections.load(Ordering::Relaxed),
            jobs,
            purges,
        })
    }
}

fn over(quota: Quota, namespace: &str, most: u64) -> Problem {
    let name = quota.name();
    let detail = format!("the namespace {namespace} has its quota of {most} {name}");
    Problem::new(Code::QuotaExceeded, detail).with_quota(quota)
}

/// What wants room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    /// A timer, and its queue if that is a new one.
    Timer,
    Queue,
}

/// Takes room, or says which quota has none.
async fn take(
    app: &App,
    queue: &QueueName,
    quotas: &Quotas,
    wants: Wants,
) -> Result<Result<Admitted, Quota>, Problem> {
    let usage = app.usage();
    let used = usage.of(queue.namespace());
    let nodes = usage.nodes(app);
    let mut is_counted = false;
    loop {
        {
            let mut state = used.state.lock();
            if is_counted || state.counts(usage.clock.now()) {
                match state.lacks(quotas, queue, nodes, wants) {
                    None => {
                        if quotas.queues.is_some() && !state.queues.contains(queue) {
                            state.queues.insert(queue.clone());
                        }
                        state.under_way += u64::from(wants == Wants::Timer);
                        drop(state);
                        let has_made = true;
                        return Ok(Ok(Admitted {
                            used,
                            wants,
                            has_made,
                        }));
                    }
                    Some(lacks) if is_counted => return Ok(Err(lacks)),
                    Some(_) => {}
                }
            }
        }
        usage.count(app, &used).await?;
        is_counted = true;
    }
}

fn refused(quotas: &Quotas, lacks: Quota, namespace: &str) -> Problem {
    let most = match lacks {
        Quota::Queues => quotas.queues,
        _ => quotas.timers,
    };
    over(lacks, namespace, most.unwrap_or_default())
}

/// Room for one more timer of that name.
///
/// # Errors
/// [`Code::QuotaExceeded`] if its namespace has as many timers or queues as it may, and it is a new one.
pub(crate) async fn admit(app: &App, name: &TimerName) -> Result<Option<Admitted>, Problem> {
    let namespace = name.queue.namespace();
    let known = app.catalogue().known();
    let quotas = known.quotas(namespace);
    let limits = |quotas: &&Quotas| quotas.timers.is_some() || quotas.queues.is_some();
    let Some(quotas) = quotas.filter(limits) else {
        return Ok(None);
    };
    let lacks = match take(app, &name.queue, quotas, Wants::Timer).await? {
        Ok(admitted) => return Ok(Some(admitted)),
        Err(lacks) => lacks,
    };
    let name = name.clone();
    // What is there takes the room that it has.
    let there = app.read(move |timers| Ok(timers.get(name).is_ok_and(|it| it.is_some())));
    if there.await? {
        return Ok(None);
    }
    Err(refused(quotas, lacks, namespace))
}

/// Room for the settings of a queue.
///
/// # Errors
/// [`Code::QuotaExceeded`] if its namespace has as many queues as it may, and it is a new one.
pub(crate) async fn admit_queue(app: &App, queue: &QueueName) -> Result<(), Problem> {
    let namespace = queue.namespace();
    let known = app.catalogue().known();
    let quotas = known.quotas(namespace);
    let Some(quotas) = quotas.filter(|quotas| quotas.queues.is_some()) else {
        return Ok(());
    };
    let taken = take(app, queue, quotas, Wants::Queue).await?;
    taken
        .map(drop)
        .map_err(|lacks| refused(quotas, lacks, namespace))
}

/// Refuses one more endpoint or queue than the namespace may have. Whoever asks holds the lock of changes.
///
/// # Errors
/// [`Code::QuotaExceeded`].
pub(crate) fn check_count(
    quotas: Option<&Quotas>,
    quota: Quota,
    namespace: &str,
    count: u64,
) -> Result<(), Problem> {
    let most = quotas.and_then(|quotas| match quota {
        Quota::Endpoints => quotas.endpoints,
        Quota::Queues => quotas.queues,
        Quota::Timers | Quota::Rate | Quota::Connections => None,
    });
    match most.filter(|most| count >= *most) {
        Some(most) => Err(over(quota, namespace, most)),
        None => Ok(()),
    }
}

/// The namespace that a request counts for: that of its token, else that of what its path names.
fn namespace_of(request: &Request<Body>) -> Box<str> {
    let identity: Option<&Identity> = request.extensions().get();
    if let Some(namespace) = identity.and_then(Identity::namespace) {
        return namespace.as_str().into();
    }
    let named = reach::namespace_of_path(request.uri());
    named.map_or_else(|| Namespace::DEFAULT_NAME.into(), |named| (*named).into())
}

/// Whether whoever asks looks after the whole service: a namespace that is at its rate is not out of reach then.
fn is_operator(request: &Request<Body>) -> bool {
    let identity: Option<&Identity> = request.extensions().get();
    identity
        .is_some_and(|it| it.token().is_some() && it.namespace().is_none() && it.has(Scope::Admin))
}

/// Counts a request, and its connection if that counts for no namespace yet.
///
/// # Errors
/// [`Code::OverRate`] beyond the rate of its namespace, or beyond its connections.
pub(crate) fn enter(app: &App, request: &Request<Body>) -> Result<(), Problem> {
    let known = app.catalogue().known();
    if known.namespaces().next().is_none() || !request.uri().path().starts_with("/v1/") {
        return Ok(());
    }
    if is_operator(request) {
        return Ok(());
    }
    let namespace = namespace_of(request);
    let Some(quotas) = known.quotas(&namespace) else {
        return Ok(());
    };
    let usage = app.usage();
    if quotas.connections.is_some() {
        let peer: Option<&Peer> = request.extensions().get();
        connect(app, &namespace, quotas, peer)?;
    }
    let Some(rate) = quotas.rate else {
        return Ok(());
    };
    let used = usage.of(&namespace);
    let nodes = usage.nodes(app);
    let mut state = used.state.lock();
    let taken = state.bucket.take(rate, nodes, usage.clock.now());
    drop(state);
    taken.map_err(|wait| over_rate(&namespace, rate, wait))
}

fn over_rate(namespace: &str, rate: Rate, wait: Duration) -> Problem {
    let detail = format!(
        "the namespace {namespace} has a quota of {} requests a second",
        rate.per_second
    );
    Problem::new(Code::OverRate, detail)
        .with_quota(Quota::Rate)
        .retry_in(wait)
}

fn connect(
    app: &App,
    namespace: &str,
    quotas: &Quotas,
    peer: Option<&Peer>,
) -> Result<(), Problem> {
    let (Some(most), Some(peer)) = (quotas.connections, peer) else {
        return Ok(());
    };
    let mut counted = peer.counted.lock();
    if counted
        .as_ref()
        .is_some_and(|it| &*it.namespace == namespace)
    {
        return Ok(());
    }
    let usage = app.usage();
    let used = usage.of(namespace);
    let part = share(most, usage.nodes(app));
    let more = |open: u64| (open < part).then_some(open + 1);
    let connections = &used.connections;
    if connections
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        .is_err()
    {
        let detail = format!("the namespace {namespace} has its quota of {most} connections");
        let refused = Problem::new(Code::OverRate, detail).with_quota(Quota::Connections);
        return Err(refused.retry_in(Duration::from_secs(1)));
    }
    *counted = Some(Connected {
        namespace: namespace.into(),
        used,
    });
    Ok(())
}

/// Lines for which the rate has no room yet.
#[derive(Debug)]
pub(crate) struct Over {
    /// After how long it has.
    pub(crate) wait: Duration,
    pub(crate) problem: Box<Problem>,
}

/// Does something with the bucket of the namespace of a token, if that has a rate.
fn with_bucket<T>(
    app: &App,
    identity: Option<&Identity>,
    ask: impl FnOnce(&mut Bucket, Rate, u64, Instant) -> Result<T, Duration>,
) -> Result<Option<T>, Over> {
    let Some(namespace) = identity.and_then(Identity::namespace) else {
        return Ok(None);
    };
    let known = app.catalogue().known();
    let quotas = known.quotas(namespace.as_str());
    let Some(rate) = quotas.and_then(|quotas| quotas.rate) else {
        return Ok(None);
    };
    let usage = app.usage();
    let used = usage.of(namespace.as_str());
    let nodes = usage.nodes(app);
    let asked = ask(
        &mut used.state.lock().bucket,
        rate,
        nodes,
        usage.clock.now(),
    );
    asked.map(Some).map_err(|wait| Over {
        wait,
        problem: Box::new(over_rate(namespace.as_str(), rate, wait)),
    })
}

/// Takes room for a line of a batch out of the rate of the namespace of the token.
pub(crate) fn take_line(app: &App, identity: Option<&Identity>) -> Result<(), Over> {
    let taken = with_bucket(app, identity, |bucket, rate, nodes, now| {
        bucket.take(rate, nodes, now)
    });
    taken.map(|_| ())
}

/// Takes room for all lines of an atomic batch, and says how long they have to wait for it: at most `patience`.
pub(crate) fn reserve_lines(
    app: &App,
    identity: Option<&Identity>,
    count: usize,
    patience: Duration,
) -> Result<Duration, Over> {
    #[expect(clippy::cast_precision_loss, reason = "a batch has a million at most")]
    let count = count as f64;
    let reserved = with_bucket(app, identity, |bucket, rate, nodes, now| {
        bucket.reserve(rate, nodes, count, patience, now)
    });
    reserved.map(Option::unwrap_or_default)
}

/// How many endpoints and queues with settings are in a namespace.
pub(crate) fn count_in<'a>(names: impl Iterator<Item = &'a str>, namespace: &str) -> u64 {
    names.filter(|name| namespace_in(name) == namespace).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1) + Duration::from_millis(millis)
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let rate = Rate {
            per_second: 10.0,
            burst: 3,
        };
        let mut bucket = Bucket::default();
        let mut take = |millis| bucket.take(rate, 1, at(millis));
        assert!((0..3).all(|_| take(0).is_ok()));
        assert_eq!(take(0), Err(Duration::from_millis(100)));
        assert!(take(100).is_ok());
        assert_eq!(take(150), Err(Duration::from_millis(50)));
        // A pause fills it, and no more than that.
        assert!((0..3).all(|_| take(60_000).is_ok()) && take(60_000).is_err());
    }

    #[test]
    fn of_two_nodes_each_has_half_the_rate() {
        let rate = Rate {
            per_second: 10.0,
            burst: 1,
        };
        let mut buckets = [Bucket::default(), Bucket::default()];
        let taken = (0..=1_000).map(|millis| {
            let each = buckets.iter_mut();
            each.filter_map(|it| it.take(rate, 2, at(millis)).ok())
                .count()
        });
        // The bursts, and ten in the second.
        let taken: usize = taken.sum();
        assert!((11..=12).contains(&taken), "{taken}");
    }

    #[test]
    fn what_is_reserved_is_there_within_the_patience() {
        let rate = Rate {
            per_second: 2.0,
            burst: 4,
        };
        let patience = Duration::from_secs(30);
        let mut bucket = Bucket::default();
        let mut reserve = |count, millis| bucket.reserve(rate, 1, count, patience, at(millis));
        assert_eq!(reserve(4.0, 0), Ok(Duration::ZERO));
        // Sixty come within the patience, and no more than that.
        assert_eq!(reserve(61.0, 0), Err(Duration::from_millis(500)));
        assert_eq!(reserve(60.0, 0), Ok(patience));
        assert_eq!(reserve(1.0, 0), Err(Duration::from_millis(500)));
        assert_eq!(
            bucket.take(rate, 1, at(0)),
            Err(Duration::from_millis(30_500))
        );
        assert_eq!(bucket.take(rate, 1, at(30_500)), Ok(()));
    }

    #[test]
    fn what_was_admitted_since_the_count_counts() {
        let quotas = Quotas {
            timers: Some(10),
            queues: Some(2),
            ..Quotas::default()
        };
        let queue = |name: &str| QueueName::from_text(name).unwrap();
        let mut state = State {
            timers: 7,
            queues: [queue("t/a")].into(),
            queues_counted: 1,
            under_way: 1,
            ended: 1,
            ..State::default()
        };
        assert_eq!(state.lacks(&quotas, &queue("t/a"), 1, Wants::Timer), None);
        assert_eq!(state.lacks(&quotas, &queue("t/b"), 1, Wants::Timer), None);
        state.queues.insert(queue("t/b"));
        assert_eq!(
            state.lacks(&quotas, &queue("t/c"), 1, Wants::Timer),
            Some(Quota::Queues)
        );
        assert_eq!(state.lacks(&quotas, &queue("t/b"), 1, Wants::Timer), None);
        // Two nodes have two and one of the three that were left.
        assert_eq!(
            state.lacks(&quotas, &queue("t/a"), 2, Wants::Timer),
            Some(Quota::Timers)
        );
        state.ended = 2;
        assert_eq!(
            state.lacks(&quotas, &queue("t/a"), 1, Wants::Timer),
            Some(Quota::Timers)
        );
    }
}
