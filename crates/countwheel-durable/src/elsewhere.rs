//! Requests about shards that others own: what somebody asks for, and the seam to where it goes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::runner::shielded;
use crate::store::{QueueCounts, Shard};
use crate::{BatchError, Request, Response, TimerError};

/// Where requests go that are about a shard that this process does not own. See
/// [`Timers::on_elsewhere`](crate::Timers::on_elsewhere).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::store::{MemoryStore, Shard};
/// use countwheel_durable::{Asked, Config, Elsewhere, Shards, SystemClock, TimerError, Timers, inline};
///
/// /// The other node, where one process plays both.
/// struct Peer(Timers);
///
/// impl Elsewhere for Peer {
///     fn ask(&self, shard: Shard, asked: Asked) {
///         self.0.ask_here(shard, asked);
///     }
/// }
///
/// let (store, shards) = (MemoryStore::new(7), Shards::new(8).expect("from 1 to 1024"));
/// let open = |owned: Vec<Shard>| {
///     let clock = Arc::new(SystemClock::new());
///     let config = Config::default();
///     Timers::open_divided(store.clone(), shards, owned, inline(|_| ()), clock, config)
/// };
/// let (one, other) = (open((0..4).map(Shard).collect())?, open((4..8).map(Shard).collect())?);
/// one.on_elsewhere(Arc::new(Peer(other.clone())));
/// for order in 0..100_u64 {
///     one.set(("unpaid", order), Duration::from_secs(60), "close it")?;
/// }
/// assert_eq!(other.list("unpaid").count(), 100);
/// assert!((0..100_u64).any(|order| {
///     let refused = other.remove(("unpaid", order)); // it knows nobody to ask
///     matches!(refused, Err(TimerError::NotOwned { .. }))
/// }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Elsewhere: Send + Sync {
    /// Takes what is asked for about one shard. It is answered later, from any thread, or at once:
    /// [`Asked::answer`], or [`Asked::refuse`] with [`TimerError::ShardUnavailable`] if it was certainly
    /// not done. What is dropped unanswered is answered with [`TimerError::Unknown`].
    ///
    /// Called on the thread of whoever asks, which may be a scheduler's: it must not block.
    fn ask(&self, shard: Shard, asked: Asked);

    /// How many timers there are in these shards, as their owners [know](crate::Timers::counts_here), as far
    /// as they say so in time: the others are left out. Blocks for no longer than a read of the store. By
    /// default nobody is asked.
    fn counts(&self, shards: &[Shard]) -> BTreeMap<Shard, Counted> {
        let _nobody_is_asked = shards;
        BTreeMap::new()
    }
}

/// How many timers each queue has in each state. See [`Timers::counted`](crate::Timers::counted).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Queues in order of name, none that is empty.
    pub queues: Vec<QueueCounts>,
    /// Whether that is every timer, as of now: not while large shards of a database are being counted, and
    /// not where the owner of a shard does not answer.
    pub exact: bool,
}

/// What somebody asked for, and who waits for the answer: one request, or several that are done all
/// together or not at all. It is answered exactly once, at the latest when it is dropped.
///
/// ```
/// use std::sync::mpsc;
/// use countwheel_durable::{Asked, Request, TimerError, TimerName};
///
/// let (send, answers) = mpsc::channel();
/// let asked = |key| {
///     let send = send.clone();
///     let request = Request::Fire { name: TimerName::new("orders", key).expect("a good name") };
///     Asked::one(request, move |answer| send.send(answer).expect("somebody listens"))
/// };
/// assert!(!asked("a").is_batch());
/// // It was dropped.
/// assert!(matches!(answers.recv()?, Err(TimerError::Unknown(_))));
///
/// asked("b").refuse(TimerError::NotFound);
/// assert!(matches!(answers.recv()?, Err(TimerError::NotFound)));
/// # Ok::<(), std::sync::mpsc::RecvError>(())
/// ```
#[must_use = "what is dropped is answered with an error"]
pub struct Asked {
    pub(crate) what: What,
    pub(crate) waiter: Waiter,
}

/// What is asked for.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are one request, and a box would be an allocation for each"
)]
pub(crate) enum What {
    One(Request),
    Batch(Vec<Request>),
}

impl Asked {
    /// One request.
    pub fn one(
        request: Request,
        answer: impl FnOnce(Result<Response, TimerError>) + Send + 'static,
    ) -> Self {
        Self {
            what: What::One(request),
            waiter: Waiter::new(To::One(Box::new(answer))),
        }
    }

    /// Requests that are done all together or not at all.
    pub fn batch(
        requests: Vec<Request>,
        answer: impl FnOnce(Result<Vec<Response>, BatchError>) + Send + 'static,
    ) -> Self {
        Self {
            what: What::Batch(requests),
            waiter: Waiter::new(To::Batch(Box::new(answer))),
        }
    }

    /// What is asked for, in order.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        match &self.what {
            What::One(request) => std::slice::from_ref(request),
            What::Batch(requests) => requests,
        }
    }

    /// Whether they are done all together or not at all; if not, it is one request.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        matches!(self.what, What::Batch(_))
    }

    /// Answers: with as many responses as there are requests, or why nothing was done. Any other number
    /// of responses counts as [`TimerError::Unknown`].
    pub fn answer(self, answer: Result<Vec<Response>, BatchError>) {
        let requests = self.requests().len();
        let answer = answer.and_then(|responses| {
            let answered = responses.len();
            if answered == requests {
                return Ok(responses);
            }
            Err(BatchError::of_all(TimerError::Unknown(format!(
                "there were {answered} responses to {requests} requests"
            ))))
        });
        self.waiter.answer_batch(answer);
    }

    /// Answers that nothing came of it.
    pub fn refuse(self, error: TimerError) {
        self.waiter.refuse(error);
    }

    /// The same, to be done here or not at all.
    pub(crate) fn here(mut self) -> Self {
        self.waiter.goes_on = false;
        self
    }

    /// Whether it goes elsewhere if the shard is not owned here.
    pub(crate) fn goes_on(&self) -> bool {
        self.waiter.goes_on
    }

    /// How many requests it counts as: an empty batch takes its turn as well.
    pub(crate) fn count(&self) -> usize {
        self.requests().len().max(1)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.requests().iter().map(payload_bytes).sum()
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("requests", &self.requests())
            .field("is_batch", &self.is_batch())
            .finish_non_exhaustive()
    }
}

fn payload_bytes(request: &Request) -> usize {
    let payload = match request.plain() {
        Request::Set { payload, .. } => payload.len(),
        Request::Configure { value, .. } => value.as_ref().map_or(0, Vec::len),
        _ => 0,
    };
    payload + request.note_bytes()
}

/// Who waits for an answer. Dropped without one, it is told that the outcome is not known.
pub(crate) struct Waiter {
    to: Option<To>,
    goes_on: bool,
}

type Answer = Box<dyn FnOnce(Result<Response, TimerError>) + Send>;
type BatchAnswer = Box<dyn FnOnce(Result<Vec<Response>, BatchError>) + Send>;

enum To {
    One(Answer),
    Batch(BatchAnswer),
}

impl Waiter {
    fn new(to: To) -> Self {
        Self {
            to: Some(to),
            goes_on: true,
        }
    }

    /// Tells who waits. Nothing of it happens under a lock of the timers.
    pub(crate) fn answer(mut self, answer: Result<Response, TimerError>) {
        self.tell(|to| match to {
            To::One(tell) => tell(answer),
            To::Batch(tell) => tell(
                answer
                    .map(|response| vec![response])
                    .map_err(BatchError::of_all),
            ),
        });
    }

    /// The same of a batch.
    pub(crate) fn answer_batch(mut self, answer: Result<Vec<Response>, BatchError>) {
        self.tell(|to| match to {
            To::One(tell) => tell(answer.map_err(|refused| refused.error).and_then(|all| {
                let first = all.into_iter().next();
                first.ok_or_else(|| TimerError::Unknown("there was no response".to_owned()))
            })),
            To::Batch(tell) => tell(answer),
        });
    }

    /// Answers that nothing came of it.
    pub(crate) fn refuse(self, error: TimerError) {
        self.answer(Err(error));
    }

    fn tell(&mut self, tell: impl FnOnce(To)) {
        if let Some(to) = self.to.take() {
            shielded("an answer's receiver", || tell(to));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.tell(|to| {
            let error = TimerError::Unknown("nobody answered".to_owned());
            match to {
                To::One(tell) => tell(Err(error)),
                To::Batch(tell) => tell(Err(BatchError::of_all(error))),
            }
        });
    }
}

/// What was asked for about a shard that is given away. It goes on when that has ended.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) asked: VecDeque<Asked>,
    /// Whether the scheduler's thread sends it on at its end, since nobody waits for that.
    pub(crate) until_end: bool,
}
