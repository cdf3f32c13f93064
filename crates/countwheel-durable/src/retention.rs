//! How long timers are kept once they have ended, by queue.

use std::fmt;
use std::time::Duration;

use crate::QueueName;

/// How long the timers of a queue are kept once they have ended.
///
/// ```
/// use std::time::Duration;
/// use countwheel_durable::Keep;
///
/// let keep = Keep { dead: Some(Duration::from_secs(86_400)), ..Keep::default() };
/// assert_eq!(keep.done, None); // as the configuration says
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// How long a done timer is kept. At most [`Config::keep_done`](crate::Config::keep_done), which also holds if
    /// this is `None`.
    pub done: Option<Duration>,
    /// How long a dead timer is kept. `None`: until it is removed, set anew or revived.
    pub dead: Option<Duration>,
}

/// Says how long timers are kept once they have ended: set as [`Config::retention`](crate::Config::retention).
///
/// The function is called on the schedulers' threads when a timer becomes done or dead: it must not wait. What it says
/// then holds for that timer, also after a restart and whatever it says later.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::{Config, Keep, QueueName, Retention};
///
/// /// Nobody asks for reminders that were sent.
/// #[derive(Debug)]
/// struct Forgetful;
///
/// impl Retention for Forgetful {
///     fn keep(&self, queue: &QueueName) -> Keep {
///         let done = (queue.as_str() == "reminders").then_some(Duration::ZERO);
///         Keep { done, ..Keep::default() }
///     }
/// }
///
/// let config = Config { retention: Some(Arc::new(Forgetful)), ..Config::default() };
/// # drop(config);
/// ```
pub trait Retention: fmt::Debug + Send + Sync {
    /// How long a timer of this queue is kept that ends now.
    fn keep(&self, queue: &QueueName) -> Keep;
}
