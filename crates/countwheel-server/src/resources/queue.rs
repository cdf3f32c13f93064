//! Queues as they are stored: what holds for the timers of one that do not say it themselves.

use std::time::Duration;

use countwheel_durable::{Missed, Overlap, RetryPolicy};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cloudevents::CloudEvents;
use super::endpoint::Rate;
use super::statuses::Statuses;
use super::{read_policy, read_span};
use crate::api::{recurrence, retry};
use crate::time::format_duration;

/// The most bytes that a queue's limit of payloads may name.
pub(crate) const PAYLOAD_MAX_BYTES: u64 = 16 << 20;
/// The longest request of a timer as it is stored: the longest body, and everything else. Also where the ceiling is
/// lower: a node of a cluster takes what another one has accepted.
pub(crate) const LONGEST_JOB: usize = 17 << 20;
/// The longest time for which dead timers are kept that are not kept for good.
pub(crate) const KEEP_DEAD_MAX: Duration = Duration::from_secs(3_650 * 86_400);
/// The version of the stored form.
const FORMAT: u32 = 1;

/// How the timers of a queue come to their receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Each is delivered where it goes.
    #[default]
    Push,
    /// Workers fetch them under leases.
    Pull,
}

impl Mode {
    fn is_push(&self) -> bool {
        *self == Self::Push
    }
}

/// How long timers are kept once they have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Retention {
    /// `None`: as long as the program keeps done timers.
    pub(crate) done: Option<Duration>,
    /// `None`: until they are removed.
    pub(crate) dead: Option<Duration>,
}

/// The stored form of it.
#[derive(Serialize, Deserialize)]
struct StoredRetention {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    done: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dead: Option<String>,
}

impl StoredRetention {
    fn of(retention: Retention) -> Self {
        Self {
            done: retention.done.map(format_duration),
            dead: retention.dead.map(format_duration),
        }
    }

    /// `None` if a text of it is no duration.
    fn read(&self) -> Option<Retention> {
        Some(Retention {
            done: read_span(self.done.as_deref())?,
            dead: read_span(self.dead.as_deref())?,
        })
    }
}

/// In which shards of a cluster the timers of a queue are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Placement {
    /// In any.
    #[default]
    Spread,
    /// In one: that of the tag [`ONE`](Self::ONE).
    One,
}

impl Placement {
    /// The tag that the keys have of timers which are in one shard.
    pub(crate) const ONE: &str = "one";

    fn is_spread(&self) -> bool {
        *self == Self::Spread
    }
}

/// The settings of a queue as they were asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Queue {
    /// The endpoint of timers that name none.
    pub(crate) endpoint: Option<String>,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) rate: Option<Rate>,
    /// The longest body of a timer, in bytes.
    pub(crate) payload_limit: Option<u64>,
    pub(crate) missed: Option<Missed>,
    /// The rule for runs that overlap, of recurring timers that do not say it.
    pub(crate) overlap: Option<Overlap>,
    pub(crate) retention: Option<Retention>,
    /// What the statuses of answers mean that the endpoint has no rule for.
    pub(crate) statuses: Statuses,
    /// What deliveries say of themselves as events, if they are to be some.
    pub(crate) cloudevents: Option<CloudEvents>,
    /// Whether timers may have a serial key.
    pub(crate) serial: bool,
    /// How urgent timers are that do not say it.
    pub(crate) priority: Option<u32>,
    pub(crate) mode: Mode,
    pub(crate) placement: Placement,
    /// How long a lease is of a worker that does not say it.
    pub(crate) lease: Option<Duration>,
}

/// The stored form.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    endpoint: Option<String>,
    retry: Option<Value>,
    timeout: Option<String>,
    concurrency: Option<u32>,
    rate: Option<Rate>,
    payload_limit: Option<u64>,
    missed: Option<Value>,
    #[serde(default, skip_serializing_if = "Statuses::is_empty")]
    statuses: Statuses,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cloudevents: Option<CloudEvents>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    serial: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Mode::is_push")]
    mode: Mode,
    #[serde(default, skip_serializing_if = "Placement::is_spread")]
    placement: Placement,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlap: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retention: Option<StoredRetention>,
}

impl Queue {
    /// The value of the setting that has this.
    pub(crate) fn to_value(&self) -> Vec<u8> {
        let stored = Stored {
            format: FORMAT,
            endpoint: self.endpoint.clone(),
            retry: self.retry.as_ref().map(retry::show),
            timeout: self.timeout.map(format_duration),
            concurrency: self.concurrency,
            rate: self.rate,
            payload_limit: self.payload_limit,
            missed: self.missed.map(recurrence::show_any_missed),
            statuses: self.statuses.clone(),
            cloudevents: self.cloudevents.clone(),
            serial: self.serial,
            priority: self.priority,
            mode: self.mode,
            placement: self.placement,
            lease: self.lease.map(format_duration),
            overlap: self.overlap.map(|overlap| overlap.as_str().to_owned()),
            retention: self.retention.map(StoredRetention::of),
        };
        // Texts and numbers are always JSON.
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    /// The queue of a setting; `None` if a later version has written it, or nobody.
    pub(crate) fn of_value(value: &[u8]) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(value).ok()?;
        if stored.format != FORMAT {
            return None;
        }
        let missed = stored.missed.as_ref().map(recurrence::missed_of);
        let overlap = stored.overlap.as_deref().map(Overlap::from_name);
        let retention = stored.retention.as_ref().map(StoredRetention::read);
        Some(Self {
            endpoint: stored.endpoint,
            retry: read_policy(stored.retry.as_ref())?,
            timeout: read_span(stored.timeout.as_deref())?,
            concurrency: stored.concurrency,
            rate: stored.rate,
            payload_limit: stored.payload_limit,
            missed: missed.map_or(Some(None), |missed| missed.map(Some))?,
            statuses: stored.statuses,
            cloudevents: stored.cloudevents,
            serial: stored.serial,
            priority: stored.priority,
            mode: stored.mode,
            placement: stored.placement,
            lease: read_span(stored.lease.as_deref())?,
            overlap: overlap.map_or(Some(None), |overlap| overlap.map(Some))?,
            retention: retention.map_or(Some(None), |retention| retention.map(Some))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use countwheel_durable::Preset;

    use super::super::statuses::{Meaning, Named};
    use super::*;

    #[test]
    fn a_queue_is_read_as_it_was_stored_and_nothing_else_is_one() {
        let full = Queue {
            endpoint: Some("shop".to_owned()),
            retry: Some(Preset::Eureka.policy()),
            timeout: Some(Duration::from_millis(1_500)),
            concurrency: Some(3),
            rate: Some(Rate {
                per_second: 2.5,
                burst: 5,
            }),
            payload_limit: Some(0),
            missed: Some(Missed::SkipIfOlderThan(Duration::from_secs(60))),
            serial: true,
            priority: Some(7),
            overlap: Some(Overlap::Queue),
            retention: Some(Retention {
                done: Some(Duration::ZERO),
                dead: Some(Duration::from_secs(2_592_000)),
            }),
            statuses: [(Named::Class(4), Meaning::Stop)].into_iter().collect(),
            cloudevents: Some(CloudEvents {
                source: "/orders".to_owned(),
                kind: "com.example.order.due".to_owned(),
            }),
            mode: Mode::Pull,
            placement: Placement::One,
            lease: Some(Duration::from_secs(9)),
        };
        let fire = Queue {
            missed: Some(Missed::Fire),
            ..Queue::default()
        };
        let for_good = Queue {
            retention: Some(Retention::default()),
            ..Queue::default()
        };
        for queue in [full, fire, for_good, Queue::default()] {
            let value = queue.to_value();
            assert_eq!(Queue::of_value(&value).as_ref(), Some(&queue));
            let text = String::from_utf8(value).unwrap();
            let later = text.replace(r#""format":1"#, r#""format":2"#);
            for other in ["", "{}", &later, &text[1..]] {
                assert_eq!(Queue::of_value(other.as_bytes()), None, "{other}");
            }
        }
    }
}
