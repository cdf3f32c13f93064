//! What people build on timers, built once: retries, heartbeats, deadlines, delay queues.
//!
//! Each is a layer on a [`Timer`](crate::Timer), which it is given: with its clock, its host and
//! its executor, where everything foreign runs. None has a thread of its own.
//!
//! | you want | take |
//! |---|---|
//! | to try again until it succeeds | [`Timer::retry`](crate::Timer::retry), or a store of what has failed: [`Retry`], by key [`KeyedRetry`]; how often and when says a [`Backoff`] |
//! | the same again and again | [`Periodic`] |
//! | the same, with a timeout and a back-off | [`Supervised`] |
//! | a loop that can be woken, suspended, closed | [`Worker`] |
//! | to know which connections are idle | [`IdleWatch`]; to keep them alive [`Heartbeats`] |
//! | to evict what was not renewed | [`Leases`] |
//! | requests that wait for an answer, each with a deadline | [`Requests`] |
//! | a limit that is handed down a chain of calls | [`Deadline`] |
//! | items to be taken when they are due | [`DelayQueue`], by key [`KeyedDelayQueue`] |
//! | items that are handled together | [`Batcher`] |
//! | operations that wait for a change, or for their time | [`DelayedOperations`] |
//! | values that are forgotten | [`ExpiringMap`] |
//! | to tell work that goes on to stop | [`StopSignal`] |
//!
//! Those that keep many deadlines have wheels of their own, and one entry in the timer's, so
//! they do not count one by one against [`max_pending`](crate::TimerBuilder::max_pending); nor
//! does what follows from something that was accepted before, such as the next run of a periodic
//! task. Each has a bound of its own where it needs one.
//!
//! End a pattern before its timer. A timer that is closed with
//! [`Stop::WaitUpTo`](crate::Stop::WaitUpTo) waits for the entries of those that rest, too, as
//! long as it was told.

mod activity;
mod backoff;
mod batcher;
mod chain;
mod deadline;
mod delay_queue;
mod delayed_operations;
mod expiring;
mod heartbeat;
mod idle;
mod lease;
mod periodic;
mod requests;
mod retry;
mod spawned;
mod start;
mod stop_signal;
mod supervised;
mod worker;

use crate::Instant;

/// When to ring for who waits for the end of the timer only: just before the end of time, which a
/// clock may show.
const FAR: Instant = Instant::from_nanos(u64::MAX - 1);

pub use activity::WatchError;
pub use backoff::{Attempts, Backoff, BackoffError, GiveUp, Jitter, Planned, RetryBudget, Share};
pub use batcher::{Batcher, BatcherStats};
pub use chain::CancelGuard;
pub use deadline::{Deadline, DeadlineExceeded, Limit};
pub use delay_queue::{
    DelayKey, DelayQueue, DelayQueueStats, Due, KeyedDelayQueue, NextDue, PushError, TakeError,
    Undue,
};
pub use delayed_operations::{
    DelayedOperation, DelayedOperationError, DelayedOperations, DelayedOperationsStats, Watch,
};
pub use expiring::{
    Cause, ExpiringEntry, ExpiringMap, ExpiringMapBuilder, ExpiringStats, InsertError, Ttl,
    WeakExpiringMap,
};
pub use heartbeat::{
    Dead, Heartbeat, HeartbeatConfig, HeartbeatConfigError, HeartbeatStats, Heartbeats, Peer,
    Recovery,
};
pub use idle::{
    IdleEvent, IdleKind, IdleLimits, IdleStats, IdleWatch, IdleWatchBuilder, Reading, Watched,
};
pub use lease::{Lease, LeaseConfig, LeaseStats, Leases};
pub use periodic::{Periodic, PeriodicBuilder, PeriodicStats};
pub use requests::{
    Closing, DUBBO_TIMEOUT, Late, OwnId, Promise, RegisterError, RequestChannel, RequestError,
    RequestId, RequestKey, RequestStats, Requests, RequestsBuilder, Response,
};
pub use retry::{
    Attempt, Cancelled, DeadLetter, Failure, GivenUp, KeyedRetry, OnPanic, PendingRetry, Retry,
    RetryBuildError, RetryBuilder, RetryId, RetryLoop, RetryStats, RetryStopped, SubmitError,
    WeakKeyedRetry, WeakRetry, WhenFull,
};
pub use start::{RunEnd, StartError};
pub use stop_signal::{StopSignal, ToldToStop};
pub use supervised::{
    AfterTrouble, Supervised, SupervisedBuilder, SupervisedEvent, SupervisedOutcome,
    SupervisedStats,
};
pub use worker::{Step, Worker, WorkerBuilder, WorkerStats};
