//! Patterns on timers, built once: retries, heartbeats, deadlines, delay queues.
//!
//! ```
//! use countwheel::Timer;
//! use countwheel_patterns::{Failure, RetryPolicy, TimerExt};
//!
//! let timer = Timer::new();
//! let policy = RetryPolicy::dubbo_failback().scaled(1e-3)?;
//! let answer = timer.retry_blocking(policy, |attempt| match attempt {
//!     1 => Err(Failure::Retryable("not yet")),
//!     _ => Ok(42),
//! });
//! assert_eq!(answer, Ok(42));
//! # Ok::<(), countwheel_patterns::RetryPolicyError>(())
//! ```
//!
//! Each pattern is a layer on a given [`Timer`](countwheel::Timer), with the timer's clock, host
//! and executor. Foreign code runs on that executor. No pattern has a thread of its own.
//!
//! | you want | take |
//! |---|---|
//! | to try again until an operation succeeds | [`TimerExt::retry`], or a store of failed operations: [`Retry`], by key [`KeyedRetry`]; a [`RetryPolicy`] says how often and when |
//! | one function again and again | [`Periodic`] |
//! | the same, with a timeout and a back-off | [`Supervised`] |
//! | a loop that can be woken, suspended, closed | [`Worker`] |
//! | to know which connections are idle | [`IdleWatch`]; to keep them alive [`Heartbeats`] |
//! | to evict members that do not renew | [`broker::Leases`] |
//! | requests that wait for an answer, each with a deadline | [`Requests`] |
//! | a limit that passes down a chain of calls | [`Deadline`] |
//! | items to be taken when they are due | [`DelayQueue`], by key [`KeyedDelayQueue`] |
//! | items to be handled together | [`Batcher`] |
//! | operations that wait for a change, or for their time | [`broker::DelayedOperations`] |
//! | values with a lifetime | [`ExpiringMap`] |
//! | the value of something that runs later | [`TimerExt::schedule_with`], [`TimerExt::schedule_async`] |
//! | to tell running work to stop | [`StopSignal`] |
//!
//! A pattern with many deadlines has wheels of its own, and one entry in the timer's. So its
//! deadlines do not count one by one against
//! [`max_pending`](countwheel::TimerBuilder::max_pending). The continuation of accepted work, such
//! as the next run of a periodic task, does not count either. What a pattern keeps for its callers has a
//! limit of its own: [`DEFAULT_MAX_PENDING`] unless the caller names another, or writes `unbounded`.
//!
//! End a pattern before its timer. A timer closed with
//! [`Stop::WaitUpTo`](countwheel::Stop::WaitUpTo) waits for the entries of resting patterns, too,
//! for the whole span.
//!
//! The parts of the patterns are public too, for patterns of your own:
//! [`countwheel::building`].
//!
//! # The guide
//!
//! The guide leads from the first ten lines to tuning, with a tested example for everything: [first
//! steps](guide::first_steps), [what is promised](guide::promises), [where tasks
//! run](guide::executors), [capacity](guide::capacity), [channels and
//! async](guide::channels_and_async), [keyed timers](guide::keyed), [retries](guide::retry),
//! [periodic](guide::periodic) and [supervised tasks](guide::supervised),
//! [heartbeats](guide::idle), [leases](guide::leases), [deadlines](guide::deadlines), [delay
//! queues](guide::delay_queues), [delayed operations](guide::delayed_operations), [expiring
//! maps](guide::expiring_maps), [stopping](guide::stopping), [seeing inside](guide::observing),
//! [testing your code](guide::testing), [hosting](guide::hosting), [in a tokio
//! program](guide::in_tokio), [do I need a wheel?](guide::do_i_need), [tuning](guide::tuning),
//! [pitfalls](guide::pitfalls); and for users of Netty, Dubbo, go-zero, Kafka, SOFARegistry, Eureka
//! or tokio, [their calls and ours](guide::migrating), and [their words](guide::words).
//!
//! # Features
//!
//! None is on by default.
//!
//! - `serde`: what a stop gives back as data: [`SavedRetry`], [`SavedItem`], [`RetryId`]; and a
//!   [`RetryPolicy`] as its text.
//! - `stream`: intervals, [`DueItems`] and [`IdleEvents`] are `Stream`s of the crate `futures-core`.
//! - `tokio`, `tsc`: those of `countwheel`.

#![forbid(unsafe_code)]

mod activity;
mod batcher;
pub mod broker;
mod chain;
mod concurrent;
mod deadline;
mod delay_queue;
mod delayed_operations;
mod expiring;
mod extension;
#[cfg(any(doc, doctest))]
pub mod guide;
mod heartbeat;
mod idle;
mod lease;
mod periodic;
mod requests;
mod retry;
mod saved;
mod scheduled;
mod spawned;
mod start;
mod stop_signal;
mod supervised;
mod sync;
mod worker;

use countwheel::Instant;

/// When to ring for who waits for the end of the timer only: just before the end of time, which a
/// clock may show.
const FAR: Instant = Instant::from_nanos(u64::MAX - 1);

/// How many operations or items a [`Retry`], a [`KeyedRetry`], a [`DelayQueue`], a [`KeyedDelayQueue`]
/// or a [`broker::DelayedOperations`] holds if its caller names no other limit. One more is refused,
/// and comes back.
///
/// The limit is for mistakes, such as consumers that have stopped: a service that means to hold
/// more says how many, or `unbounded`. [`Requests`], watches and leases have no such limit: each of
/// their entries belongs to a handle that a caller holds, and ends with it.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{DEFAULT_MAX_PENDING, DelayQueue, PushError};
/// use std::time::Duration;
///
/// let host = ManualHost::new();
/// let hour = Duration::from_secs(3600);
/// let queue = DelayQueue::new(host.timer().clone());
/// for item in 0..DEFAULT_MAX_PENDING {
///     queue.push(item, hour)?;
/// }
/// let refused = queue.push(DEFAULT_MAX_PENDING, hour);
/// assert!(matches!(refused, Err(PushError::Full(DEFAULT_MAX_PENDING))));
/// # Ok::<(), PushError<usize>>(())
/// ```
pub const DEFAULT_MAX_PENDING: usize = 100_000;

pub use activity::WatchError;
pub use batcher::{Batcher, BatcherStats};
pub use chain::CancelGuard;
pub use countwheel_time::{
    Delays, Jitter, PlannedAttempt, Preset, RetryPolicy, RetryPolicyError, RetrySettings,
    RetryTextError, Share,
};
pub use deadline::{Deadline, DeadlineExceeded, Limit};
pub use delay_queue::{
    DelayKey, DelayQueue, DelayQueueStats, Due, DueItems, KeyedDelayQueue, NextDue, PushError,
    TakeError, Undue,
};
pub use expiring::{
    Cause, ExpiringEntry, ExpiringMap, ExpiringMapBuilder, ExpiringStats, InsertError, Ttl,
    WeakExpiringMap,
};
pub use extension::TimerExt;
pub use heartbeat::{
    Dead, Heartbeat, HeartbeatConfig, HeartbeatConfigError, HeartbeatStats, Heartbeats, Peer,
    Recovery,
};
pub use idle::{
    IdleEvent, IdleEvents, IdleKind, IdleLimits, IdleStats, IdleWatch, IdleWatchBuilder, Reading,
    UntilIdle, Watched,
};
pub use periodic::{Periodic, PeriodicBuilder, PeriodicStats};
pub use requests::{
    Closing, DUBBO_TIMEOUT, Late, OwnId, Promise, RegisterError, RequestChannel, RequestError,
    RequestId, RequestKey, RequestStats, Requests, RequestsBuilder, Response,
};
pub use retry::{
    Attempt, Attempts, Cancelled, DeadLetter, Failure, GiveUp, GivenUp, KeyedRetry, OnPanic,
    PendingRetry, Retry, RetryBudget, RetryBudgetError, RetryBuildError, RetryBuilder, RetryId,
    RetryLoop, RetryStats, RetryStopped, SubmitError, WeakKeyedRetry, WeakRetry, WhenFull,
};
pub use saved::{SavedAttempts, SavedItem, SavedRetry};
pub use scheduled::{NoValue, Scheduled};
pub use start::{RunEnd, StartError};
pub use stop_signal::{StopSignal, ToldToStop};
pub use supervised::{
    AfterTrouble, Supervised, SupervisedBuilder, SupervisedEvent, SupervisedOutcome,
    SupervisedStats,
};
pub use worker::{Step, Worker, WorkerBuilder, WorkerStats};

/// The example of the crate's README is compiled as well.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
