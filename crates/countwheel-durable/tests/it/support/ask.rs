//! Requests about timers of one queue.

use std::time::Duration;

use countwheel_durable::{Due, Precondition, Request, RetryPolicy, SetOptions, TimerName};

pub(crate) fn name(key: &str) -> TimerName {
    TimerName::new("orders", key).unwrap()
}

pub(crate) fn set(key: &str, seconds: u64) -> Request {
    Request::Set {
        name: name(key),
        due: Due::In(Duration::from_secs(seconds)),
        policy: RetryPolicy::default(),
        payload: Vec::new(),
        options: SetOptions::default(),
        precondition: Precondition::None,
    }
}

pub(crate) fn remove(key: &str) -> Request {
    Request::Remove {
        name: name(key),
        precondition: Precondition::None,
        only_pending: false,
    }
}
