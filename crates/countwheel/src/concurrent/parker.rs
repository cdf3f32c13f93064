//! How a thread sleeps.

use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

use super::{lock, relock};
use crate::sync::{Condvar, Mutex};

/// Lets one thread wait until another wakes it, or until a time. A wake-up that comes before
/// the wait ends the wait at once.
#[derive(Default)]
pub(crate) struct Parker {
    token: Mutex<bool>,
    woken: Condvar,
}

impl Parker {
    /// Waits for a wake-up, or for `patience` if given.
    pub(crate) fn park(&self, patience: Option<Duration>) {
        let mut token = lock(&self.token);
        if !*token {
            token = match patience {
                None => relock(self.woken.wait(token)),
                Some(patience) => relock(self.woken.wait_timeout(token, patience)).0,
            };
        }
        *token = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *lock(&self.token) = true;
        self.woken.notify_one();
    }
}
