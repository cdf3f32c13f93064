//! Where requests wait while the timers change hands, and where they go afterwards.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::forward::Forward;

/// Lets requests in, holds them, or sends them elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// It is not closed any more, or nobody is within.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    way: Way,
    within: usize,
}

#[derive(Clone, Debug, Default)]
enum Way {
    #[default]
    Open,
    Closed,
    Elsewhere(Arc<Forward>),
}

/// Which way a request goes.
#[derive(Debug)]
pub(crate) enum Passed {
    /// It is answered here, while this is kept.
    Here(Within),
    /// It is answered there.
    Elsewhere(Arc<Forward>),
    /// The gate stayed closed for too long.
    TooLate,
}

/// A request that is answered here.
#[derive(Debug)]
pub(crate) struct Within(Arc<Gate>);

impl Drop for Within {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.within -= 1;
        let is_last = state.within == 0;
        drop(state);
        if is_last {
            self.0.changed.notify_waiters();
        }
    }
}

impl Gate {
    /// Waits for so long at the most.
    pub(crate) async fn pass(self: &Arc<Self>, at_most: Duration) -> Passed {
        let passing = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // From here on no change is missed.
                changed.as_mut().enable();
                if let Some(passed) = self.look() {
                    return passed;
                }
                changed.await;
            }
        };
        let passed = tokio::time::timeout(at_most, passing).await;
        passed.unwrap_or(Passed::TooLate)
    }

    fn look(self: &Arc<Self>) -> Option<Passed> {
        let mut state = self.state.lock();
        match &state.way {
            Way::Open => {
                state.within += 1;
                Some(Passed::Here(Within(Arc::clone(self))))
            }
            Way::Closed => None,
            Way::Elsewhere(forward) => Some(Passed::Elsewhere(Arc::clone(forward))),
        }
    }

    /// Whether requests are answered here.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.lock().way, Way::Open)
    }

    /// From now on requests wait.
    pub(crate) fn close(&self) {
        self.state.lock().way = Way::Closed;
    }

    /// Waits until nobody is within, or for so long.
    pub(crate) async fn emptied(&self, at_most: Duration) {
        let emptied = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.state.lock().within == 0 {
                    return;
                }
                changed.await;
            }
        };
        // Those who are still within are told that nothing was done, or do not ask for a change.
        let _ = tokio::time::timeout(at_most, emptied).await;
    }

    /// Requests are answered here.
    pub(crate) fn open(&self) {
        self.go(Way::Open);
    }

    /// Requests are answered there.
    pub(crate) fn lead(&self, forward: Arc<Forward>) {
        self.go(Way::Elsewhere(forward));
    }

    fn go(&self, way: Way) {
        self.state.lock().way = way;
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn who_comes_while_it_is_closed_waits_and_is_not_lost() {
        let gate = Arc::<Gate>::default();
        let Passed::Here(within) = gate.pass(SOON).await else {
            panic!("it is open");
        };
        gate.close();
        let held = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.pass(SOON).await }
        });
        tokio::task::yield_now().await;
        let emptied = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.emptied(SOON).await }
        });
        tokio::task::yield_now().await;
        assert!(!emptied.is_finished());
        drop(within);
        emptied.await.unwrap();
        assert!(!held.is_finished());
        gate.open();
        assert!(matches!(held.await.unwrap(), Passed::Here(_)));
        gate.close();
        assert!(matches!(gate.pass(SOON).await, Passed::TooLate));
        gate.lead(Arc::default());
        assert!(matches!(gate.pass(SOON).await, Passed::Elsewhere(_)));
    }
}
