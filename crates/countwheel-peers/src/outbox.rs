//! What waits for one peer, and what was sent to it: no socket, no thread, time from outside.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use countwheel_durable::store::Shard;
use countwheel_durable::{Asked, BatchError, Response, TimerError};
use countwheel_time::Instant;

use crate::frame::{Encoded, HEAD_MAX, Writing};
use crate::planted::planted;
use crate::wire::AskHead;

/// A frame takes what waits until it is so long, or has so many requests.
const GATHER_BYTES: usize = 1 << 20;
const GATHER_REQUESTS: usize = 4_096;

/// A question on its way to an owner.
pub(crate) struct Job {
    pub(crate) shard: Shard,
    pub(crate) what: Encoded,
    pub(crate) deadline: Instant,
    /// How often it was sent on before.
    pub(crate) hops: u8,
    pub(crate) waiter: Waiter,
}

/// Called once with the answer, or with `None` if nothing was done and somebody else may do it.
pub(crate) type Tell = Box<dyn FnOnce(Option<Result<Vec<Response>, BatchError>>) + Send>;

/// Who waits for the answer.
pub(crate) enum Waiter {
    /// Somebody in this process.
    Here(Box<Asked>),
    /// Another node, which goes on if nothing was done.
    Node(Tell),
}

impl Job {
    pub(crate) fn answer(self, answer: Result<Vec<Response>, BatchError>) {
        match self.waiter {
            Waiter::Here(asked) => asked.answer(answer),
            Waiter::Node(tell) => tell(Some(answer)),
        }
    }

    /// Certainly nothing was done.
    pub(crate) fn not_done(self) {
        match self.waiter {
            Waiter::Here(asked) => asked.refuse(TimerError::ShardUnavailable { shard: self.shard }),
            Waiter::Node(tell) => tell(None),
        }
    }

    pub(crate) fn unknown(self, reason: &str) {
        let error = TimerError::Unknown(reason.to_owned());
        self.answer(Err(BatchError { index: None, error }));
    }

    /// What is held is held for somebody here; another node does that itself.
    pub(crate) fn may_be_held(&self) -> bool {
        matches!(self.waiter, Waiter::Here(_))
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("shard", &self.shard)
            .field("deadline", &self.deadline)
            .field("hops", &self.hops)
            .finish_non_exhaustive()
    }
}

/// How much may wait for one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

/// How much of it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Room {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

impl Room {
    /// Takes room for `what`, if there is enough.
    pub(crate) fn take(&mut self, what: &Encoded, limits: Limits) -> bool {
        let requests = self.requests + what.count();
        let bytes = self.bytes + what.bytes().len();
        let is_over = requests > limits.requests || bytes > limits.bytes;
        if is_over && !planted!(PeersWaitingUnbounded) {
            return false;
        }
        (self.requests, self.bytes) = (requests, bytes);
        true
    }

    pub(crate) fn give_back(&mut self, what: &Encoded) {
        if planted!(PeersRoomLeaks) {
            return;
        }
        self.requests -= what.count();
        self.bytes -= what.bytes().len();
    }
}

pub(crate) struct Outbox {
    limits: Limits,
    room: Room,
    waiting: VecDeque<Job>,
    /// By the numbers of the questions.
    sent: BTreeMap<u64, Job>,
    /// A number is given once, also over connections: an answer cannot be taken for another's.
    next_id: u64,
}

/// What has come to its deadline.
#[derive(Debug, Default)]
pub(crate) struct Overdue {
    /// It never left: certainly not done.
    pub(crate) waited: Vec<Job>,
    /// It left: done or not.
    pub(crate) sent: Vec<Job>,
}

impl Outbox {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            room: Room::default(),
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            next_id: 1,
        }
    }

    /// Takes a question, or gives it back if there is no room.
    pub(crate) fn push(&mut self, job: Job) -> Result<(), Job> {
        if !self.room.take(&job.what, self.limits) {
            return Err(job);
        }
        self.waiting.push_back(job);
        Ok(())
    }

    pub(crate) fn room(&self) -> Room {
        self.room
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// What waits, in one frame of bounded length, and how many questions those are. From here on it
    /// counts as sent. What has come to its deadline stays for [`overdue`](Self::overdue).
    pub(crate) fn gather(&mut self, now: Instant, map: u64) -> Option<(Vec<u8>, usize)> {
        let mut frame = Writing::asks();
        let (mut asks, mut requests) = (0, 0);
        let mut late = VecDeque::new();
        while let Some(job) = self.waiting.pop_front() {
            let left = job.deadline.saturating_since(now);
            let left_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            if left_ms == 0 && !planted!(PeersDeadlineIgnored) {
                late.push_back(job);
                continue;
            }
            let bytes = frame.len() + HEAD_MAX + job.what.bytes().len();
            let count = requests + job.what.count();
            if asks > 0 && (bytes > GATHER_BYTES || count > GATHER_REQUESTS) {
                self.waiting.push_front(job);
                break;
            }
            let head = AskHead {
                id: self.next_id,
                shard: job.shard.0,
                map,
                left_ms,
                hops: job.hops + 1,
                is_batch: job.what.is_batch,
                requests: job.what.requests,
            };
            frame.ask(&head, job.what.bytes());
            self.sent.insert(self.next_id, job);
            self.next_id += 1;
            (asks, requests) = (asks + 1, count);
        }
        // In front again: they are the oldest.
        while let Some(job) = late.pop_back() {
            self.waiting.push_front(job);
        }
        (asks > 0).then(|| (frame.finish(), asks))
    }

    /// Who waits for the answer of that number, if somebody does.
    pub(crate) fn answered(&mut self, id: u64) -> Option<Job> {
        let job = match planted!(PeersAnswerOldest) {
            true => self.sent.pop_first().map(|(_, job)| job),
            false => self.sent.remove(&id),
        };
        self.gave(job)
    }

    /// The connection is gone: what was sent has no answer any more.
    pub(crate) fn broken(&mut self) -> Vec<Job> {
        let sent = std::mem::take(&mut self.sent).into_values();
        if planted!(PeersSentTwice) {
            let mut again: VecDeque<_> = sent.collect();
            again.append(&mut self.waiting);
            self.waiting = again;
            return Vec::new();
        }
        let sent: Vec<_> = sent.collect();
        self.gave_all(sent)
    }

    /// What has come to its deadline.
    pub(crate) fn overdue(&mut self, now: Instant) -> Overdue {
        if planted!(PeersDeadlineIgnored) {
            return Overdue::default();
        }
        let is_over = |job: &Job| job.deadline <= now;
        let mut overdue = Overdue::default();
        if self.waiting.iter().any(is_over) {
            let (over, waiting): (VecDeque<_>, _) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(is_over);
            self.waiting = waiting;
            overdue.waited = self.gave_all(over.into());
        }
        let ids = self.sent.iter().filter(|(_, job)| is_over(job));
        let ids: Vec<_> = ids.map(|(&id, _)| id).collect();
        let sent: Vec<_> = ids.iter().filter_map(|id| self.sent.remove(id)).collect();
        overdue.sent = self.gave_all(sent);
        if planted!(PeersUnknownIsNotDone) {
            overdue.waited.append(&mut overdue.sent);
        }
        overdue
    }

    /// What waits and is about shards that another owns by now.
    pub(crate) fn take_back(&mut self, is_theirs: impl Fn(Shard) -> bool) -> Vec<Job> {
        let (keep, back): (_, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|job| is_theirs(job.shard));
        self.waiting = keep;
        self.gave_all(back.into())
    }

    fn gave(&mut self, job: Option<Job>) -> Option<Job> {
        if let Some(job) = &job {
            self.room.give_back(&job.what);
        }
        job
    }

    fn gave_all(&mut self, jobs: Vec<Job>) -> Vec<Job> {
        for job in &jobs {
            self.room.give_back(&job.what);
        }
        jobs
    }
}
