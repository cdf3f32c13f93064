//! What people build on timers, built once: retries, heartbeats, deadlines, delay queues.
//!
//! Each is a layer on a [`Timer`](crate::Timer), which it is given: with its clock, its host and
//! its executor, where everything foreign runs. None has a thread of its own.
//!
//! | you want | take |
//! |---|---|
//! | to try again until it succeeds | [`Timer::retry`](crate::Timer::retry), or a store of what has failed: [`Retry`], by key [`KeyedRetry`]; how often and when says a [`Backoff`] |
//! | to tell work that goes on to stop | [`StopSignal`] |
//!
//! Those that keep many deadlines have wheels of their own, and one entry in the timer's, so
//! they do not count one by one against [`max_pending`](crate::TimerBuilder::max_pending); nor
//! does what follows from something that was accepted before, such as the next run of a periodic
//! task. Each has a bound of its own where it needs one.

mod backoff;
mod bell;
mod random;
mod retry;
mod spawned;
mod stop_signal;

pub use backoff::{Attempts, Backoff, BackoffError, GiveUp, Jitter, Planned, RetryBudget, Share};
pub use retry::{
    Attempt, Cancelled, DeadLetter, Failure, GivenUp, KeyedRetry, OnPanic, PendingRetry, Retry,
    RetryBuildError, RetryBuilder, RetryId, RetryLoop, RetryStats, RetryStopped, SubmitError,
    WeakKeyedRetry, WeakRetry, WhenFull,
};
pub use stop_signal::{StopSignal, ToldToStop};
