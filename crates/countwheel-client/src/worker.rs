//! A worker: it leases timers of queues of mode pull, has a function work on each, and settles them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use countwheel_time::{Random, RetryPolicy, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::shown;
use crate::time::{format_duration, parse_time};
use crate::{Client, ClientError, LeaseTaken, LeaseVerb, LeasesAsked};

/// The most bytes of the reason of a nack.
const DETAIL_MAX_BYTES: usize = 200;
/// How long a failed outcome waits before it is sent again.
const AGAIN: Duration = Duration::from_millis(500);

/// A timer that a worker has.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// The queue of the timer.
    pub queue: String,
    /// Its key.
    pub key: String,
    /// Its id, the same in every attempt.
    pub id: String,
    /// The token of the lease. Tokens of one key compare as texts: the later lease has the higher one.
    pub token: String,
    /// The number of the attempt.
    pub attempt: u32,
    /// When the timer was due.
    pub due: Timestamp,
    /// How late that was, without what a limit held it.
    pub late: Duration,
    /// For how long a limit held it, or no worker asked.
    pub held: Duration,
    /// The number of the run of a recurring timer.
    pub run: Option<u32>,
    /// The headers that the timer was set with.
    pub headers: BTreeMap<String, String>,
    /// Of its body.
    pub content_type: Option<String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// Without what is secret.
impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("queue", &self.queue)
            .field("key", &self.key)
            .field("id", &self.id)
            .field("token", &shown::Token(&self.token))
            .field("attempt", &self.attempt)
            .field("due", &self.due)
            .field("late", &self.late)
            .field("held", &self.held)
            .field("run", &self.run)
            .field("headers", &shown::Headers(&self.headers))
            .field("content_type", &self.content_type)
            .field("body", &shown::Payload(&self.body))
            .finish()
    }
}

/// A lease as the server says it.
#[derive(Deserialize)]
struct Said {
    queue: String,
    key: String,
    id: String,
    token: String,
    attempt: u32,
    due: String,
    #[serde(default)]
    late_us: u64,
    #[serde(default)]
    held_us: u64,
    #[serde(default)]
    run: Option<u32>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    body_base64: Option<String>,
}

impl Job {
    fn read(json: &str) -> serde_json::Result<Self> {
        let said: Said = serde_json::from_str(json)?;
        let bad = <serde_json::Error as serde::de::Error>::custom::<&str>;
        let due = parse_time(&said.due).ok_or_else(|| bad("the due of a lease is no time"))?;
        let body = match (said.body, said.body_base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text)
                .map_err(|_| bad("the body of a lease is no base64"))?,
            (None, None) => Vec::new(),
        };
        Ok(Self {
            queue: said.queue,
            key: said.key,
            id: said.id,
            token: said.token,
            attempt: said.attempt,
            due,
            late: Duration::from_micros(said.late_us),
            held: Duration::from_micros(said.held_us),
            run: said.run,
            headers: said.headers,
            content_type: said.content_type,
            body,
        })
    }
}

/// Why a job was not done: the attempt has failed. Made of any error by `?`.
///
/// ```
/// use std::time::Duration;
///
/// use countwheel_client::worker::Failure;
///
/// let later = Failure::new("the other side is down").after(Duration::from_secs(60));
/// let never = Failure::new("the order is gone").dead();
/// assert_eq!(later.detail(), "the other side is down");
/// assert_ne!(later, never);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    detail: String,
    after: Option<Duration>,
    is_dead: bool,
}

impl Failure {
    /// The next attempt comes as the retry policy of the timer says. `detail` is kept with the attempt, cut to 200 bytes.
    #[must_use]
    pub fn new(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            after: None,
            is_dead: false,
        }
    }

    /// The same, and the next attempt comes after so long.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// The same, and no attempt comes any more: the timer is dead.
    #[must_use]
    pub fn dead(mut self) -> Self {
        self.is_dead = true;
        self
    }

    /// What is kept with the attempt.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    fn fields(&self) -> Value {
        let cut = self.detail.floor_char_boundary(DETAIL_MAX_BYTES);
        let mut fields = json!({ "detail": self.detail[..cut] });
        match (self.is_dead, self.after) {
            (true, _) => fields["dead"] = true.into(),
            (false, Some(after)) => fields["in"] = format_duration(after).into(),
            (false, None) => {}
        }
        fields
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// What a worker has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Worked {
    /// Jobs that were done, and of which the server knows it.
    pub done: u64,
    /// Jobs that failed, and of which the server knows it.
    pub failed: u64,
    /// Jobs whose lease was lost, or whose outcome the server was not told: they come again.
    pub lost: u64,
}

enum Outcome {
    Done,
    Failed,
    Lost,
}

/// Leases timers of queues of mode pull, works on so many at a time, extends their leases meanwhile, and acks or nacks
/// them. An outage ends no worker: it asks again, ever more slowly.
///
/// ```no_run
/// use countwheel_client::Client;
/// use countwheel_client::worker::{Failure, Job, Worker};
///
/// async fn handle(job: Job) -> Result<(), Failure> {
///     let order: serde_json::Value = serde_json::from_slice(&job.body)?;
///     println!("{} {order}", job.key);
///     Ok(())
/// }
///
/// # async fn run(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let worker = Worker::new(client, ["jobs"]).concurrency(8);
/// let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
/// let worked = worker.run(handle, stop).await?;
/// println!("{} done, {} failed", worked.done, worked.failed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Worker {
    client: Client,
    queues: Vec<String>,
    concurrency: u32,
    lease: Duration,
    wait: Duration,
    grace: Duration,
    name: Option<String>,
}

impl Worker {
    /// A worker for these queues: one job at a time, with leases of 30 s, 30 s for the jobs under way when it stops.
    pub fn new<S: Into<String>>(client: Client, queues: impl IntoIterator<Item = S>) -> Self {
        Self {
            client,
            queues: queues.into_iter().map(Into::into).collect(),
            concurrency: 1,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(20),
            grace: Duration::from_secs(30),
            name: None,
        }
    }

    /// How many jobs run at a time, 1 to 1,000.
    #[must_use]
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency.clamp(1, 1_000);
        self
    }

    /// How long a lease lasts that is not extended: a job whose worker has died comes again after that.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long one call waits for what comes due.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long the jobs under way have once the worker is stopped. Those that take longer are given up and nacked.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The name of the worker, which the service shows.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Works until `stop` is ready. Then it leases no more, and waits for the jobs under way.
    ///
    /// A job whose lease is lost is given up: its future is dropped, as somebody else may have it.
    ///
    /// # Errors
    /// [`ClientError`] if the server refuses leases for good: no such queue, a wrong token. The jobs under way are
    /// waited for before.
    pub async fn run<H, F>(
        &self,
        handler: H,
        stop: impl Future<Output = ()>,
    ) -> Result<Worked, ClientError>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        // Its calls are asked again here: a lease that nobody heard of must not be asked for unseen.
        let policy = self.client.retry().cloned();
        let policy = policy.unwrap_or_else(Client::usual_retry);
        let (ends, ended) = tokio::sync::watch::channel(false);
        let mut worked = Worked::default();
        let mut running = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        let mut asking = None;
        let mut back_off = BackOff::new(&policy);
        let why = loop {
            let busy = u32::try_from(running.len()).unwrap_or(u32::MAX);
            let room = self.concurrency.saturating_sub(busy);
            if room > 0 && asking.is_none() {
                asking = Some(Box::pin(self.ask(room, back_off.delay())));
            }
            // A call is never given up for a job that ends: its leases would be lost.
            let answer = async {
                match &mut asking {
                    Some(asking) => asking.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(outcome) = running.join_next() => count(&mut worked, &outcome),
                answer = answer => {
                    asking = None;
                    match answer {
                        Ok(jobs) => {
                            back_off.failures = 0;
                            for job in jobs {
                                let work = work(self.clone(), job, Arc::clone(&handler), ended.clone());
                                running.spawn(work);
                            }
                        }
                        Err(error) if error.is_passing() => back_off.failures += 1,
                        Err(error) => break Some(error),
                    }
                }
                () = &mut stop => break None,
            }
        };
        drop(asking);
        let rest = async {
            while let Some(outcome) = running.join_next().await {
                count(&mut worked, &outcome);
            }
        };
        if tokio::time::timeout(self.grace, rest).await.is_err() {
            // Each gives its job up, and says so to the server.
            ends.send(true).unwrap_or_default();
            while let Some(outcome) = running.join_next().await {
                count(&mut worked, &outcome);
            }
        }
        why.map_or(Ok(worked), Err)
    }

    async fn ask(&self, max: u32, delay: Option<Duration>) -> Result<Vec<Job>, ClientError> {
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        let asked = LeasesAsked {
            queues: self.queues.clone(),
            max,
            lease: Some(self.lease),
            wait: self.wait,
            worker: self.name.clone(),
        };
        let leases = self.client.lease(&asked).await?.value.leases;
        let jobs = leases.iter().map(|lease| Job::read(lease.get()));
        let jobs: serde_json::Result<Vec<_>> = jobs.collect();
        jobs.map_err(|source| ClientError::Unintelligible {
            status: 200,
            source,
        })
    }

    /// Extends a lease again and again. Ends if it is lost.
    async fn extend_until_lost(&self, lease: &LeaseTaken) {
        let more = json!({ "lease": format_duration(self.lease) });
        loop {
            tokio::time::sleep(self.lease / 3).await;
            let leases = std::slice::from_ref(lease);
            // A failure that is not a refusal may pass before the lease ends.
            if let Ok(results) = self.client.settle(LeaseVerb::Extend, leases, &more).await
                && results
                    .iter()
                    .any(|(result, _)| result.code.as_deref() == Some("lease_lost"))
            {
                return;
            }
        }
    }

    /// Settles a lease. A server that is away is asked again while the lease may last.
    async fn settle(&self, verb: LeaseVerb, lease: &LeaseTaken, more: &Value) -> bool {
        let asking = async {
            loop {
                match self
                    .client
                    .settle(verb, std::slice::from_ref(lease), more)
                    .await
                {
                    Ok(results) => return results.first().is_some_and(|(it, _)| it.is_done()),
                    Err(error) if error.is_passing() => tokio::time::sleep(AGAIN).await,
                    Err(_) => return false,
                }
            }
        };
        tokio::time::timeout(self.lease, asking)
            .await
            .unwrap_or(false)
    }
}

struct BackOff<'a> {
    policy: &'a RetryPolicy,
    seed: u64,
    failures: u32,
}

impl<'a> BackOff<'a> {
    fn new(policy: &'a RetryPolicy) -> Self {
        let seed = Random::unseeded().draw();
        let failures = 0;
        Self {
            policy,
            seed,
            failures,
        }
    }

    /// How long to wait before the next call. A worker never gives up: it goes on with the last delay.
    fn delay(&self) -> Option<Duration> {
        let mut failures = (1..=self.failures.min(64)).rev();
        let found = failures.find_map(|failures| self.policy.seeded_delay(failures, self.seed));
        (self.failures > 0).then(|| found.unwrap_or(AGAIN))
    }
}

fn count(worked: &mut Worked, outcome: &Result<Outcome, tokio::task::JoinError>) {
    match outcome {
        Ok(Outcome::Done) => worked.done += 1,
        Ok(Outcome::Failed) => worked.failed += 1,
        Ok(Outcome::Lost) | Err(_) => worked.lost += 1,
    }
}

/// Works on one job.
async fn work<H, F>(
    worker: Worker,
    job: Job,
    handler: Arc<H>,
    mut ended: tokio::sync::watch::Receiver<bool>,
) -> Outcome
where
    H: Fn(Job) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let lease = LeaseTaken::new(&job.queue, &job.key, &job.token);
    // A task of its own, so that a panic in it is a failure as any other.
    let mut running = tokio::spawn(async move { handler(job).await });
    let result = tokio::select! {
        result = &mut running => result.unwrap_or_else(|error| {
            let panics = "the handler panicked";
            Err(Failure::new(if error.is_panic() { panics } else { "the handler was ended" }))
        }),
        _ = ended.wait_for(|ended| *ended) => {
            running.abort();
            Err(Failure::new("the worker was stopped"))
        }
        () = worker.extend_until_lost(&lease) => {
            running.abort();
            return Outcome::Lost;
        }
    };
    let (verb, fields, outcome) = match result {
        Ok(()) => (LeaseVerb::Ack, json!({}), Outcome::Done),
        Err(failure) => (LeaseVerb::Nack, failure.fields(), Outcome::Failed),
    };
    if worker.settle(verb, &lease, &fields).await {
        outcome
    } else {
        Outcome::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_with_either_body() {
        let lease = json!({
            "queue": "jobs", "key": "job-42", "id": "tmr-1", "token": "0001", "attempt": 2,
            "due": "2026-03-01T12:00:05.000000Z", "leased_until": "2026-03-01T12:01:05.000000Z",
            "late_us": 7, "held_us": 412_000, "content_type": "application/json", "body": "{\"n\": 7}",
            "later": true
        });
        let job = Job::read(&lease.to_string()).unwrap();
        assert_eq!((job.key.as_str(), job.attempt), ("job-42", 2));
        assert_eq!(job.held, Duration::from_millis(412));
        assert_eq!(job.body, b"{\"n\": 7}");
        let mut bytes = lease.clone();
        bytes["body"] = Value::Null;
        bytes["body_base64"] = "AAE=".into();
        assert_eq!(Job::read(&bytes.to_string()).unwrap().body, [0, 1]);
        for (field, value) in [("due", json!("soon")), ("body_base64", json!("?"))] {
            let mut bad = bytes.clone();
            bad[field] = value;
            assert!(Job::read(&bad.to_string()).is_err(), "{field}");
        }
    }

    #[test]
    fn a_failure_is_said_as_the_api_takes_it() {
        let long = "ü".repeat(200);
        let fields = Failure::new(&*long).after(Duration::from_secs(60)).fields();
        assert_eq!(fields, json!({"detail": "ü".repeat(100), "in": "1m"}));
        let fields = Failure::new("no").dead().fields();
        assert_eq!(fields, json!({"detail": "no", "dead": true}));
        let io = std::io::Error::other("full");
        assert_eq!(Failure::from(io), Failure::new("full"));
    }

    #[test]
    fn a_worker_asks_ever_more_slowly_and_never_gives_up() {
        let policy = RetryPolicy::fixed(Duration::from_secs(3)).max_retries(2);
        let mut back_off = BackOff::new(&policy);
        assert_eq!(back_off.delay(), None);
        for failures in [1, 2, 3, 60, 100_000] {
            back_off.failures = failures;
            let delay = back_off.delay();
            assert_eq!(delay, Some(Duration::from_secs(3)), "{failures}");
        }
    }
}
