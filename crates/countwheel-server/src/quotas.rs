//! What namespaces use of their quotas, and what is refused beyond them.
//!
//! Timers and queues are counted by the store, now and then for all namespaces together. What this process has admitted since
//! is added to the last count, so that none is admitted beyond the quota in between. Of several nodes, each admits its part of
//! what is left until the next count. Bytes are [weighed](weight), and the rate is a token bucket.

mod bucket;
pub(crate) mod weight;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use countwheel_durable::{
    Counted, Drains, Namespace, QueueName, Response, Set, TimerError, TimerName,
};
use countwheel_time::{Clock, Instant};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::bucket::Bucket;
use self::weight::Weight;
use crate::api::App;
use crate::api::access::Identity;
use crate::api::problem::{Code, Problem};
use crate::api::reach;
use crate::callers::Peer;
use crate::cluster::seen::NodeState;
use crate::resources::Resources;
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
    Bytes,
    Rate,
    Queues,
    Endpoints,
    Connections,
}

impl Quota {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Timers => "timers",
            Self::Bytes => "bytes",
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
    /// Some namespace is to be weighed.
    wishes: Notify,
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
    /// It was weighed.
    weighed: Notify,
    connections: AtomicU64,
}

#[derive(Default, Debug)]
struct State {
    bucket: Bucket,
    weight: Weight,
    /// When it was counted.
    at: Option<Instant>,
    timers: u64,
    queues: BTreeSet<QueueName>,
    /// How many of the queues the store has counted.
    queues_counted: u64,
    /// Sets that are under way.
    under_way: u64,
    /// Those that have ended since the count, and may have made a timer.
    ended: u64,
}

/// The part of what is left that one of several nodes may use.
fn share(left: u64, nodes: u64) -> u64 {
    left.div_ceil(nodes)
}

impl State {
    /// The quota that has no room.
    fn lacks(&self, quotas: &Quotas, queue: &QueueName, nodes: u64, wants: Wants) -> Option<Quota> {
        let since = self.under_way + self.ended;
        if let Some(most) = quotas.timers.filter(|_| wants.timers() > 0) {
            let left = most.saturating_sub(self.timers);
            if since >= share(left, nodes) {
                return Some(Quota::Timers);
            }
        }
        if let Some(most) = quotas.bytes.filter(|_| wants.bytes() > 0)
            && !self.weight.has_room(most, wants.bytes(), nodes)
        {
            return Some(Quota::Bytes);
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
    /// Whether it may have made a timer, and whether it may have stored one.
    has_made: bool,
    has_stored: bool,
}

impl Admitted {
    /// The set is answered so. Room that it has not taken is there again.
    pub(crate) fn end(mut self, set: Result<&Set, &TimerError>) {
        let (has_made, has_stored) = match set {
            Ok(set) => (!set.replayed && set.replaced.is_none(), !set.replayed),
            Err(TimerError::Unknown(_)) => (true, true),
            Err(_) => (false, false),
        };
        (self.has_made, self.has_stored) = (has_made, has_stored);
    }

    /// The same of the answer to a request, which is a set.
    pub(crate) fn answered(self, answer: Result<&Response, &TimerError>) {
        match answer {
            Ok(Response::Set(set)) => self.end(Ok(set)),
            Ok(_) => {}
            Err(error) => self.end(Err(error)),
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.used.state.lock();
        let (timers, bytes) = (self.wants.timers(), self.wants.bytes());
        state.under_way -= timers;
        state.ended += timers * u64::from(self.has_made);
        state.weight.end(bytes, self.has_stored);
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
    /// As they were weighed last; `None` without a quota of them.
    pub(crate) bytes: Option<u64>,
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
            wishes: Notify::new(),
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
        let mut sums = tally(&counted, &drains, &known, |namespace| {
            known.quotas(namespace).is_some()
        });
        for ((namespace, used), before) in all.into_iter().zip(before) {
            let (timers, mut queues) = sums.remove(&namespace).unwrap_or_default();
            let quotas = known.quotas(&namespace);
            if quotas.is_none_or(|quotas| quotas.queues.is_none()) {
                queues.clear();
            }
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
        let (counted, drains, jobs, purges) = app
            .measure(|timers| {
                let counted = timers.counted().map_err(|error| Problem::from(&error))?;
                Ok((counted, timers.drains(), timers.jobs(), timers.purges()))
            })
            .await?;
        let known = app.catalogue().known();
        let mut sums = tally(&counted, &drains, &known, |it| it == namespace);
        let (timers, queues) = sums.remove(namespace).unwrap_or_default();
        let of_own = |queue: &QueueName| queue.namespace() == namespace;
        let purges = purges.iter().filter(|it| of_own(&it.queue)).count();
        let jobs = jobs.iter().filter(|it| of_own(&it.order.queue)).count();
        let used = self.of(namespace);
        let quotas = known.quotas(namespace);
        let is_weighed = quotas.is_some_and(|quotas| quotas.bytes.is_some());
        let bytes = used.state.lock().weight.sum().filter(|_| is_weighed);
        Ok(InUse {
            timers,
            bytes,
            queues: queues.len() as u64,
            connections: used.connections.load(Ordering::Relaxed),
            jobs: jobs as u64,
            purges: purges as u64,
        })
    }
}

/// The timers of each wanted namespace, and its queues: those with timers, with settings or with a drain.
fn tally(
    counted: &Counted,
    drains: &Drains,
    known: &Resources,
    wanted: impl Fn(&str) -> bool,
) -> BTreeMap<Box<str>, (u64, BTreeSet<QueueName>)> {
    let mut sums: BTreeMap<Box<str>, (u64, BTreeSet<QueueName>)> = BTreeMap::new();
    let with_timers = counted.queues.iter();
    let with_timers = with_timers.map(|it| (&it.queue, it.by_state.iter().sum::<u64>()));
    let with_settings = known.queues().map(|(queue, _)| (queue, 0));
    let drained = drains.iter().map(|(queue, _)| (queue, 0));
    for (queue, timers) in with_timers.chain(with_settings).chain(drained) {
        let namespace = queue.namespace();
        if !wanted(namespace) {
            continue;
        }
        if !sums.contains_key(namespace) {
            sums.insert(namespace.into(), Default::default());
        }
        if let Some((sum, queues)) = sums.get_mut(namespace) {
            *sum += timers;
            queues.insert(queue.clone());
        }
    }
    sums
}

fn over(quota: Quota, namespace: &str, most: u64) -> Problem {
    let name = quota.name();
    let detail = format!("the namespace {namespace} has its quota of {most} {name}");
    Problem::new(Code::QuotaExceeded, detail).with_quota(quota)
}

/// What wants room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    /// A timer of so many bytes, and its queue if that is a new one.
    Timer(u64),
    /// So many bytes more, of a timer that is there.
    Bytes(u64),
    Queue,
}

impl Wants {
    const fn timers(self) -> u64 {
        matches!(self, Self::Timer(_)) as u64
    }

    const fn bytes(self) -> u64 {
        match self {
            Self::Timer(bytes) | Self::Bytes(bytes) => bytes,
            Self::Queue => 0,
        }
    }
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
    let known = app.catalogue().known();
    let revision = known.namespace(queue.namespace()).map(|it| it.version);
    let (mut is_counted, mut is_weighed) = (false, false);
    loop {
        let lacks = {
            let mut state = used.state.lock();
            // Until it was weighed for the first time, what was admitted counts alone, and only if that takes long.
            let needs_sum = quotas.bytes.is_some() && wants.bytes() > 0;
            let sum = state.weight.under(revision).sum();
            let is_known = is_weighed || !needs_sum || sum.is_some();
            let lacks = match is_known {
                true => state.lacks(quotas, queue, nodes, wants),
                false => Some(Quota::Bytes),
            };
            let is_new = is_counted || state.counts(usage.clock.now());
            if lacks.is_none() && is_new {
                if quotas.queues.is_some() && !state.queues.contains(queue) {
                    state.queues.insert(queue.clone());
                }
                state.under_way += wants.timers();
                state.weight.take(wants.bytes());
                drop(state);
                return Ok(Ok(Admitted {
                    used,
                    wants,
                    has_made: true,
                    has_stored: true,
                }));
            }
            lacks
        };
        match lacks {
            Some(Quota::Bytes) if !is_weighed => {
                weight::wait(usage, &used).await;
                is_weighed = true;
            }
            Some(lacks) if is_counted => return Ok(Err(lacks)),
            _ => {
                usage.count(app, &used).await?;
                is_counted = true;
            }
        }
    }
}

fn refused(quotas: &Quotas, lacks: Quota, namespace: &str) -> Problem {
    let most = match lacks {
        Quota::Queues => quotas.queues,
        Quota::Bytes => quotas.bytes,
        _ => quotas.timers,
    };
    over(lacks, namespace, most.unwrap_or_default())
}

/// Room for one more timer of that name and so many [bytes](weight::bytes_of).
///
/// # Errors
/// [`Code::QuotaExceeded`] if its namespace has as many timers, bytes or queues as it may, and it is a new one, or has more
/// bytes than the timer that it replaces.
pub(crate) async fn admit(
    app: &App,
    name: &TimerName,
    bytes: u64,
) -> Result<Option<Admitted>, Problem> {
    let namespace = name.queue.namespace();
    let known = app.catalogue().known();
    let quotas = known.quotas(namespace);
    let limits = |it: &&Quotas| it.timers.is_some() || it.bytes.is_some() || it.queues.is_some();
    let Some(quotas) = quotas.filter(limits) else {
        return Ok(None);
    };
    let mut lacks = match take(app, &name.queue, quotas, Wants::Timer(bytes)).await? {
        Ok(admitted) => return Ok(Some(admitted)),
        Err(lacks) => lacks,
    };
    let wanted = name.clone();
    // What is there takes the room that it has.
    let there = app.read(move |timers| Ok(timers.get(wanted).ok().flatten()));
    if let Some(there) = there.await? {
        let more = bytes.saturating_sub(weight::bytes_of_record(&there));
        if more == 0 || quotas.bytes.is_none() {
            return Ok(None);
        }
        lacks = match take(app, &name.queue, quotas, Wants::Bytes(more)).await? {
            Ok(admitted) => return Ok(Some(admitted)),
            Err(lacks) => lacks,
        };
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
        Quota::Timers | Quota::Bytes | Quota::Rate | Quota::Connections => None,
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
    identity.is_some_and(|it| match it {
        Identity::Configured | Identity::Token(..) => {
            it.namespace().is_none() && it.has(Scope::Admin)
        }
        Identity::Anyone | Identity::Nobody => false,
    })
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
        assert_eq!(
            state.lacks(&quotas, &queue("t/a"), 1, Wants::Timer(0)),
            None
        );
        assert_eq!(
            state.lacks(&quotas, &queue("t/b"), 1, Wants::Timer(0)),
            None
        );
        state.queues.insert(queue("t/b"));
        assert_eq!(
            state.lacks(&quotas, &queue("t/c"), 1, Wants::Timer(0)),
            Some(Quota::Queues)
        );
        assert_eq!(
            state.lacks(&quotas, &queue("t/b"), 1, Wants::Timer(0)),
            None
        );
        // Two nodes have two and one of the three that were left.
        assert_eq!(
            state.lacks(&quotas, &queue("t/a"), 2, Wants::Timer(0)),
            Some(Quota::Timers)
        );
        state.ended = 2;
        assert_eq!(
            state.lacks(&quotas, &queue("t/a"), 1, Wants::Timer(0)),
            Some(Quota::Timers)
        );
    }
}
