//! The rules that hold for a timer now: those that it has named itself, else those of its endpoint, else those of its
//! queue, else those of the program.

use std::time::Duration;

use countwheel_durable::{Missed, Overlap, QueueName, Record, RetryPolicy, Rules};
use serde::Serialize;

use super::ceilings::Ceilings;
use super::endpoint::{EndpointName, Opened};
use super::queue::{Mode, Queue};
use super::{Catalogue, Resources};
use crate::job::{Extras, Job, Place, TIMEOUT_DEFAULT, To};

/// Who says a rule that a timer has left open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Origin {
    Endpoint,
    Queue,
    Default,
}

impl Origin {
    /// In words, behind a rule.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Endpoint => "as the endpoint says",
            Self::Queue => "as the queue says",
            Self::Default => "by default",
        }
    }
}

/// Who says each of the rules that a timer has left open; `None` for those that it has named itself, or does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Origins {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missed: Option<Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overlap: Option<Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<Origin>,
}

impl Origins {
    /// Whether the timer has named all of its rules.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The rules of a timer as they are now.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    pub(crate) retry: RetryPolicy,
    pub(crate) missed: Missed,
    /// Of a timer that recurs.
    pub(crate) overlap: Option<Overlap>,
    /// `None` where nothing is sent.
    pub(crate) timeout: Option<Duration>,
    pub(crate) from: Origins,
}

/// The settings that a timer's rules may come from.
struct Said<'r> {
    queue: Option<&'r Queue>,
    endpoint: Option<&'r Opened>,
    /// One of them is there, and a later version of the program has written it.
    is_unread: bool,
}

impl Said<'_> {
    /// The first that is said.
    fn first<T>(of_endpoint: Option<T>, of_queue: Option<T>, default: T) -> (T, Origin) {
        match (of_endpoint, of_queue) {
            (Some(said), _) => (said, Origin::Endpoint),
            (None, Some(said)) => (said, Origin::Queue),
            (None, None) => (default, Origin::Default),
        }
    }

    fn retry(&self) -> Option<(RetryPolicy, Origin)> {
        let of_endpoint = self.endpoint.and_then(|it| it.settings.retry.clone());
        let of_queue = self.queue.and_then(|it| it.retry.clone());
        let first = Self::first(of_endpoint, of_queue, RetryPolicy::default());
        (!self.is_unread).then_some(first)
    }

    fn missed(&self) -> Option<(Missed, Origin)> {
        let of_queue = self.queue.and_then(|it| it.missed);
        (!self.is_unread).then(|| Self::first(None, of_queue, Missed::default()))
    }

    fn overlap(&self) -> Option<(Overlap, Origin)> {
        let of_queue = self.queue.and_then(|it| it.overlap);
        (!self.is_unread).then(|| Self::first(None, of_queue, Overlap::Skip))
    }

    fn timeout(&self) -> (Duration, Origin) {
        let of_endpoint = self.endpoint.and_then(|it| it.settings.timeout);
        let of_queue = self.queue.and_then(|it| it.timeout);
        Self::first(of_endpoint, of_queue, TIMEOUT_DEFAULT)
    }
}

impl Resources {
    /// What is said for the timers of a queue that go to this place; for all of the queue without a place.
    fn said(&self, queue: &QueueName, place: Option<Place<'_>>) -> Said<'_> {
        let of_queue = self.queue(queue);
        let settings = of_queue.and_then(|entry| entry.what.as_deref());
        let name = match place {
            Some(Place::Endpoint(Some(name))) => Some(name),
            Some(Place::Endpoint(None)) => settings.and_then(|it| it.endpoint.as_deref()),
            Some(Place::Url(_)) | None => None,
        };
        let name = name.filter(|_| settings.is_none_or(|it| it.mode == Mode::Push));
        let name = name.and_then(|name| EndpointName::new(name).ok());
        let of_endpoint = name.and_then(|name| self.endpoint(&name));
        let endpoint = of_endpoint.and_then(|entry| entry.what.as_deref());
        let is_unread =
            of_queue.is_some() && settings.is_none() || of_endpoint.is_some() && endpoint.is_none();
        Said {
            queue: settings,
            endpoint,
            is_unread,
        }
    }

    /// The timeout of a request to a URL that names none.
    pub(super) fn timeout_of_url(&self, queue: &QueueName) -> Duration {
        self.said(queue, None).timeout().0
    }

    /// The rules that hold for a timer now, and who says them. `job` is what its payload is.
    pub(crate) fn in_force(
        &self,
        record: &Record,
        job: Option<&Job>,
        ceilings: &Ceilings,
    ) -> InForce {
        let recurring = record.recurring.as_deref();
        let mut rules = InForce {
            retry: record.policy.clone(),
            missed: record.missed,
            overlap: recurring.map(|it| it.recurrence.overlap),
            timeout: None,
            from: Origins::default(),
        };
        let Some(job) = job else {
            return rules;
        };
        let place = match &job.to {
            To::Url(url) => Place::Url(url),
            To::Endpoint { name, .. } => Place::Endpoint(name.as_deref()),
        };
        let said = self.said(&record.name.queue, Some(place));
        let left = job.extras.inherits;
        if let Some((retry, from)) = said.retry().filter(|_| left.retry) {
            (rules.retry, rules.from.retry) = (retry, Some(from));
        }
        if let Some((missed, from)) = said.missed().filter(|_| left.missed) {
            (rules.missed, rules.from.missed) = (missed, Some(from));
        }
        if let Some((overlap, from)) = said
            .overlap()
            .filter(|_| left.overlap && recurring.is_some())
        {
            (rules.overlap, rules.from.overlap) = (Some(overlap), Some(from));
        }
        let is_pulled = said.queue.is_some_and(|queue| queue.mode == Mode::Pull);
        let timeout = match job.timeout {
            None if is_pulled => None,
            None => {
                let (timeout, from) = said.timeout();
                rules.from.timeout = Some(from);
                Some(timeout)
            }
            own => own,
        };
        rules.timeout = timeout.map(|timeout| timeout.min(ceilings.timeout));
        rules
    }
}

/// The rules that a timer names itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) missed: Option<Missed>,
    pub(crate) overlap: Option<Overlap>,
    pub(crate) recurs: bool,
}

impl Resources {
    /// The rules that would hold for a timer of this queue that goes to this endpoint, and who says them. `None` where a
    /// later version of the program has written what is said.
    pub(crate) fn would_hold(
        &self,
        queue: Option<&QueueName>,
        endpoint: Option<&str>,
        named: Named,
        ceilings: &Ceilings,
    ) -> Option<InForce> {
        let said = match queue {
            Some(queue) => self.said(queue, Some(Place::Endpoint(endpoint))),
            None => {
                let name = endpoint.and_then(|name| EndpointName::new(name).ok());
                let entry = name.and_then(|name| self.endpoint(&name));
                let endpoint = entry.and_then(|entry| entry.what.as_deref());
                Said {
                    queue: None,
                    endpoint,
                    is_unread: entry.is_some() && endpoint.is_none(),
                }
            }
        };
        let mut from = Origins::default();
        let retry = match named.retry {
            Some(own) => own,
            None => take(said.retry()?, &mut from.retry),
        };
        let missed = match named.missed {
            Some(own) => own,
            None => take(said.missed()?, &mut from.missed),
        };
        let overlap = match named.overlap {
            Some(own) => Some(own),
            None if named.recurs => Some(take(said.overlap()?, &mut from.overlap)),
            None => None,
        };
        let is_pulled = said.queue.is_some_and(|queue| queue.mode == Mode::Pull);
        let timeout = (!is_pulled).then(|| take(said.timeout(), &mut from.timeout));
        Some(InForce {
            retry,
            missed,
            overlap,
            timeout: timeout.map(|timeout| timeout.min(ceilings.timeout)),
            from,
        })
    }
}

/// A rule, with who says it noted.
fn take<T>((rule, origin): (T, Origin), from: &mut Option<Origin>) -> T {
    *from = Some(origin);
    rule
}

/// The place and the extras of a payload, if it leaves a rule open.
fn open<'p>(payload: &'p [u8], is_left: impl Fn(&Extras) -> bool) -> Option<Place<'p>> {
    let (place, extras) = Job::glance(payload)?;
    is_left(&extras).then_some(place)
}

/// What queues and endpoints say at the moment at which a rule counts.
impl Rules for Catalogue {
    fn retry(&self, queue: &QueueName, payload: &[u8]) -> Option<RetryPolicy> {
        let place = open(payload, |extras| extras.inherits.retry)?;
        let known = self.known();
        let (retry, _) = known.said(queue, Some(place)).retry()?;
        Some(retry)
    }

    fn missed(&self, queue: &QueueName, payload: &[u8]) -> Option<Missed> {
        open(payload, |extras| extras.inherits.missed)?;
        let known = self.known();
        let (missed, _) = known.said(queue, None).missed()?;
        Some(missed)
    }

    fn overlap(&self, queue: &QueueName, payload: &[u8]) -> Option<Overlap> {
        open(payload, |extras| extras.inherits.overlap)?;
        let known = self.known();
        let (overlap, _) = known.said(queue, None).overlap()?;
        Some(overlap)
    }
}
