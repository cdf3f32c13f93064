//! The rules of timers that leave them to their queues: asked when a rule counts, and not when the timer is set.

use std::fmt;

use crate::{Missed, Overlap, QueueName, RetryPolicy};

/// Says which rules hold now for a timer that leaves them to its queue: set as [`Config::rules`](crate::Config::rules).
///
/// A record has the rules that held when the timer was set. They hold for as long as a function answers `None`, which
/// is what it does for a rule that the timer has named itself. Each function is called at the moments at which its
/// rule counts, on the schedulers' threads: it must not wait. What it says holds for that moment.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::{Config, QueueName, RetryPolicy, Rules};
///
/// /// The payloads of timers that name no rule begin with a `-`.
/// #[derive(Debug)]
/// struct OncePerMinute;
///
/// impl Rules for OncePerMinute {
///     fn retry(&self, _: &QueueName, payload: &[u8]) -> Option<RetryPolicy> {
///         let is_left = payload.starts_with(b"-");
///         is_left.then(|| RetryPolicy::fixed(Duration::from_secs(60)))
///     }
/// }
///
/// let config = Config { rules: Some(Arc::new(OncePerMinute)), ..Config::default() };
/// # drop(config);
/// ```
pub trait Rules: fmt::Debug + Send + Sync {
    /// When to try again and when to give up: asked after a failed attempt, after a lease without an outcome, and when
    /// a retry is due. A failure beyond the end of the policy gives the timer up, however long the policies before it
    /// were. A policy that [`check_policy`](crate::check_policy) refuses is followed as it stands.
    fn retry(&self, queue: &QueueName, payload: &[u8]) -> Option<RetryPolicy> {
        let _ = (queue, payload);
        None
    }

    /// What becomes of the timer if it is overdue before its first attempt: asked when that attempt could be made, and
    /// at the end of a run of a recurring timer.
    fn missed(&self, queue: &QueueName, payload: &[u8]) -> Option<Missed> {
        let _ = (queue, payload);
        None
    }

    /// What becomes of runs that came due while a run was under way: asked at the end of that run.
    fn overlap(&self, queue: &QueueName, payload: &[u8]) -> Option<Overlap> {
        let _ = (queue, payload);
        None
    }
}
