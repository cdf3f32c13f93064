//! What is written in frames: types of their own, so that a change of the engine's changes no byte here.
//!
//! The order of fields and of variants is written, too: a new one comes last, under a new version of the
//! protocol.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// How many requests, or responses, one frame may have, and so may one batch.
pub(crate) const REQUESTS_MAX: usize = 65_536;
/// How many shards one can ask to be counted: more than a store has.
const SHARDS_MAX: usize = 1_024;
/// How many queues one shard of an answer may have.
pub(crate) const QUEUES_MAX: usize = 65_536;
/// How many delays a retry policy may have.
const DELAYS_MAX: usize = 1_000;

/// What comes before the requests of one who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct AskHead {
    /// The number of the question, which its answer has as well.
    pub(crate) id: u64,
    pub(crate) shard: u16,
    /// The version of the map by which the receiver is the owner.
    pub(crate) map: u64,
    /// For how long somebody waits for the answer.
    pub(crate) left_ms: u32,
    /// How often it was sent on, this time included.
    pub(crate) hops: u8,
    /// Whether they are done all together or not at all.
    pub(crate) is_batch: bool,
    pub(crate) requests: u32,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum WireRequest<'a> {
    Set {
        queue: &'a str,
        key: &'a str,
        due: WireDue,
        #[serde(borrow)]
        policy: WirePolicy<'a>,
        #[serde(with = "serde_bytes")]
        payload: &'a [u8],
        precondition: WirePrecondition,
        missed: WireMissed,
        recurrence: Option<WireRecurrence<'a>>,
    },
    Move {
        queue: &'a str,
        key: &'a str,
        shift: WireShift,
        precondition: WirePrecondition,
    },
    Remove {
        queue: &'a str,
        key: &'a str,
        precondition: WirePrecondition,
        only_pending: bool,
    },
    Fire {
        queue: &'a str,
        key: &'a str,
    },
    Revive {
        queue: &'a str,
        key: &'a str,
        due: WireDue,
    },
    Configure {
        name: &'a str,
        #[serde(with = "serde_bytes")]
        value: Option<&'a [u8]>,
        precondition: WirePrecondition,
    },
    Settle {
        queue: &'a str,
        key: &'a str,
        revision: u64,
        attempt: u32,
        verdict: WireVerdict,
        detail: Cow<'a, str>,
    },
    Extend {
        queue: &'a str,
        key: &'a str,
        revision: u64,
        attempt: u32,
        lease: Duration,
    },
    Release {
        queue: &'a str,
        key: &'a str,
        revision: u64,
        attempt: u32,
    },
    /// A set that may be repeated.
    SetOnce {
        queue: &'a str,
        key: &'a str,
        due: WireDue,
        #[serde(borrow)]
        policy: WirePolicy<'a>,
        #[serde(with = "serde_bytes")]
        payload: &'a [u8],
        precondition: WirePrecondition,
        missed: WireMissed,
        recurrence: Option<WireRecurrence<'a>>,
        receipt: WireReceipt,
    },
    /// A request with a note for the audit log.
    Noted {
        /// One of the others, as it is written: a form within itself could be of any depth.
        #[serde(with = "serde_bytes", borrow)]
        request: Cow<'a, [u8]>,
        #[serde(with = "serde_bytes")]
        note: &'a [u8],
        keep: Duration,
    },
    /// `Configure`, unless any setting has changed since.
    ConfigureUnchanged {
        name: &'a str,
        #[serde(with = "serde_bytes")]
        value: Option<&'a [u8]>,
        settings: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WireReceipt {
    pub(crate) key: [u8; 16],
    pub(crate) fingerprint: [u8; 32],
    pub(crate) keep: Duration,
}

/// How a leased attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireVerdict {
    Done,
    Failed {
        retry_after: Option<Duration>,
    },
    Stopped,
    /// Failed, and the next attempt is due so long from now.
    Again {
        after: Duration,
    },
}

/// Times are microseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireDue {
    At(u64),
    In(Duration),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireShift {
    To(WireDue),
    Later(Duration),
    Sooner(Duration),
}

/// The version is a timer's revision, or that of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WirePrecondition {
    None,
    Absent,
    Version(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireMissed {
    Fire,
    SkipIfOlderThan(Duration),
    Collapse,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WireRecurrence<'a> {
    #[serde(borrow)]
    pub(crate) schedule: WireSchedule<'a>,
    /// 0 for no such end.
    pub(crate) repeats: u32,
    pub(crate) until: Option<u64>,
    pub(crate) jitter: Duration,
    /// Whether a run that overlaps is queued, and not skipped.
    pub(crate) queues_overlap: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireSchedule<'a> {
    FixedRate {
        every: Duration,
        anchor: Option<u64>,
    },
    FixedDelay {
        every: Duration,
    },
    Cron {
        expression: &'a str,
        zone: &'a str,
    },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct WirePolicy<'a> {
    #[serde(borrow)]
    pub(crate) delays: WireDelays<'a>,
    pub(crate) cap: Option<Duration>,
    pub(crate) jitter: WireJitter,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) max_age: Option<Duration>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum WireDelays<'a> {
    #[serde(deserialize_with = "at_most::<_, _, DELAYS_MAX>")]
    List(Vec<Duration>),
    /// By its name.
    Preset(&'a str),
    Fixed(Duration),
    Exponential {
        first: Duration,
        factor: f64,
    },
    Linear {
        first: Duration,
        increment: Duration,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireJitter {
    None,
    Full,
    Equal,
}

/// The answer to the question of that number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct WireAnswer<'a> {
    pub(crate) id: u64,
    /// The version of the map of who answers.
    pub(crate) map: u64,
    #[serde(borrow)]
    pub(crate) body: WireBody<'a>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum WireBody<'a> {
    Done(
        #[serde(borrow, deserialize_with = "at_most::<_, _, REQUESTS_MAX>")] Vec<WireResponse<'a>>,
    ),
    Refused {
        /// Which request of a batch.
        index: Option<u32>,
        #[serde(borrow)]
        error: WireError<'a>,
    },
    /// The shard is not owned there. Nothing was done.
    NotOwner,
    /// Nobody waited any more when it came. Nothing was done.
    Expired,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireResponse<'a> {
    Set {
        store: u64,
        set: u64,
        revision: u64,
        due: u64,
        replaced: Option<WireState>,
    },
    Moved {
        revision: u64,
        old_due: u64,
        due: u64,
    },
    RemovedPending {
        due: u64,
    },
    RemovedDelivering {
        attempt: u32,
    },
    RemovedDead,
    RemovedUnreadable,
    Configured {
        #[serde(borrow)]
        name: Cow<'a, str>,
        version: u64,
    },
    Settled {
        state: WireState,
        due: Option<u64>,
    },
    Extended {
        until: u64,
    },
    /// The answer to an earlier set.
    Replayed {
        store: u64,
        set: u64,
        due: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireState {
    Pending,
    Delivering,
    Done,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireMode {
    Fire { until: Option<u64> },
    Hold,
    Remove,
}

/// Why nothing was done; only with [`Unknown`](Self::Unknown) that is not sure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum WireError<'a> {
    NotFound,
    Gone {
        at: u64,
    },
    Conflict(WireState),
    Changed {
        current: u64,
    },
    Exists(WireState),
    Draining {
        queue: Cow<'a, str>,
        mode: WireMode,
    },
    TooFar,
    PayloadTooLarge {
        bytes: u64,
        limit: u64,
    },
    BatchTooLarge {
        requests: u64,
        limit: u64,
    },
    BatchTooLong {
        limit: u64,
    },
    Full,
    StorageFull,
    Unavailable {
        reason: Cow<'a, str>,
    },
    Unknown {
        reason: Cow<'a, str>,
    },
    Unreadable {
        queue: Cow<'a, str>,
        key: Cow<'a, str>,
        problem: Cow<'a, str>,
    },
    /// The store could not be read.
    Store {
        reason: Cow<'a, str>,
    },
    SettingTooLong {
        bytes: u64,
    },
    SettingExists {
        version: u64,
    },
    SettingChanged {
        current: u64,
    },
    SettingNotFound,
    SettingsTooMany {
        bytes: u64,
    },
    PolicyListLength {
        found: u64,
    },
    PolicyDelay {
        found: Duration,
    },
    PolicyFactor,
    PolicyCap,
    PolicyAttempts {
        found: u32,
    },
    PolicyAge {
        found: Duration,
    },
    RecurrenceEvery {
        found: Duration,
    },
    RecurrenceJitter {
        found: Duration,
    },
    RecurrenceNoRun,
    RecurrenceNoRunInTime,
    RecurrenceMissed {
        found: Duration,
    },
    Zone {
        name: Cow<'a, str>,
    },
    /// What has no form of its own.
    Other {
        reason: Cow<'a, str>,
    },
    LeaseLost {
        state: WireState,
        until: Option<u64>,
    },
    ReceiptMismatch,
    ReceiptPending,
    SettingsChanged {
        current: u64,
    },
}

/// How many timers are there in these shards?
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct AskCounts {
    /// The number of the question, which its answer has as well.
    pub(crate) id: u64,
    #[serde(deserialize_with = "at_most::<_, _, SHARDS_MAX>")]
    pub(crate) shards: Vec<u16>,
}

/// So many: of shards that are owned there, and of no others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WireCounts<'a> {
    pub(crate) id: u64,
    #[serde(borrow, deserialize_with = "at_most::<_, _, SHARDS_MAX>")]
    pub(crate) shards: Vec<WireCounted<'a>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WireCounted<'a> {
    pub(crate) shard: u16,
    pub(crate) is_exact: bool,
    #[serde(borrow, deserialize_with = "at_most::<_, _, QUEUES_MAX>")]
    pub(crate) queues: Vec<WireQueue<'a>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct WireQueue<'a> {
    pub(crate) queue: &'a str,
    /// Pending, delivering, done, dead.
    pub(crate) by_state: [u64; 4],
}

/// A list that takes no more memory than `MAX` of its items.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct AtMost<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for AtMost<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MAX {
                    return Err(A::Error::custom("too many items"));
                }
                items.push(item);
            }
            Ok(items)
        }
    }

    deserializer.deserialize_seq(AtMost::<T, MAX>(PhantomData))
}
