//! The host of a timer on somebody's async runtime: a future that sleeps as that runtime does.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::Instant;
use crate::concurrent::{Host, Hub};
use crate::engine::{Engine, HostTurn};
use crate::task::returns;

/// Drives a [`Timer`](crate::Timer) as a future, on any runtime: there is no thread. Made by
/// [`TimerBuilder::build_hosted`](crate::TimerBuilder::build_hosted).
///
/// Spawn it, or poll it together with something else. It ends when the timer has stopped and
/// nothing is left to do. Each poll runs up to 64 tasks and then lets the runtime's other tasks
/// have their turn. How late it is depends on how the runtime sleeps: one that sleeps in whole
/// milliseconds makes it that much later.
///
/// **Dropping** it closes its timer: nothing fires any more, sleeps end with
/// [`SleepError::Closed`](crate::SleepError::Closed), and [`Timer::stop`](crate::Timer::stop)
/// gives back what was pending.
///
/// **Stopping** waits for the future to end. In async code, await
/// [`Timer::close`](crate::Timer::close) rather than calling [`Timer::stop`](crate::Timer::stop)
/// on the thread that is to drive the host: that would wait for itself. A task of the timer may
/// call either.
///
/// **Panics** of tasks are counted in [`Stats::panicked`](crate::Stats), and those of the executor
/// in [`Stats::host_failures`](crate::Stats). A panic of the clock or of the runtime's sleep costs
/// one turn, is logged and counted there as well; after 16 in a row the host gives up, closes its
/// timer and ends.
///
/// ```
/// use countwheel::{Stop, Timer};
/// use std::time::Duration;
///
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// runtime.block_on(async {
///     let (timer, host) = Timer::builder().build_hosted(tokio::time::sleep);
///     let host = tokio::spawn(host);
///     timer.sleep(Duration::from_millis(2)).await?;
///
///     let stopped = timer.close(Stop::HandBack).await;
///     assert!(stopped.is_complete());
///     host.await.unwrap();
///     # Ok::<(), countwheel::SleepError>(())
/// })?;
/// # Ok::<(), countwheel::SleepError>(())
/// ```
#[must_use = "a timer whose host is not spawned never fires"]
pub struct HostFuture<S, F> {
    /// Until it has ended.
    hosting: Option<Arc<Engine>>,
    sleep: S,
    /// How the runtime sleeps now, if it does. The box is used again and again.
    sleeping: Pin<Box<Option<F>>>,
    /// Whether the last poll ended in a sleep.
    resting: bool,
    /// How many turns have failed since the last that did not.
    failures: u32,
}

/// How many turns one poll takes at most, so that the other tasks of the runtime get theirs.
const TURNS_PER_POLL: usize = 64;

/// After so many failures without a turn that went well between them, the host gives up.
const FAILURES_MAX: u32 = 16;

/// What a turn leaves to do.
#[derive(Clone, Copy)]
enum Next {
    Again,
    /// To be polled when the waker is woken.
    Rest,
    End,
}

impl<S, F> HostFuture<S, F>
where
    S: FnMut(Duration) -> F,
    F: Future<Output = ()>,
{
    pub(crate) fn new(engine: Arc<Engine>, sleep: S) -> Self {
        engine.host(Host::Task);
        Self {
            hosting: Some(engine),
            sleep,
            sleeping: Box::pin(None),
            resting: false,
            failures: 0,
        }
    }

    fn turns(&mut self, engine: &Arc<Engine>, cx: &mut Context<'_>) -> Next {
        for _ in 0..TURNS_PER_POLL {
            let mut next = Next::Again;
            if !returns(|| next = self.turn(engine, cx)) {
                return self.failed(engine);
            }
            self.failures = 0;
            if !matches!(next, Next::Again) {
                return next;
            }
        }
        Next::Again
    }

    /// One turn, and the beginning of the sleep after it.
    fn turn(&mut self, engine: &Arc<Engine>, cx: &mut Context<'_>) -> Next {
        match engine.turn() {
            HostTurn::Again => Next::Again,
            HostTurn::Ended => Next::End,
            // From here on it is announced that the host sleeps: whoever comes with something
            // earlier wakes the waker, which is known already, and a runtime polls a future
            // again that is woken while it is polled.
            HostTurn::Rest(Instant::MAX) => Next::Rest,
            HostTurn::Rest(until) => {
                let rest = until.saturating_since(engine.clock().now());
                if rest.is_zero() {
                    engine.shards.hub().host_is_awake();
                    return Next::Again;
                }
                self.sleeping.set(Some((self.sleep)(rest)));
                let sleeping = self.sleeping.as_mut().as_pin_mut();
                if sleeping.is_some_and(|sleeping| sleeping.poll(cx).is_pending()) {
                    return Next::Rest;
                }
                self.sleeping.set(None);
                engine.woke_up();
                Next::Again
            }
        }
    }

    fn failed(&mut self, engine: &Engine) -> Next {
        self.failures += 1;
        engine.shards.hub().host_is_awake();
        returns(|| self.sleeping.set(None));
        let so_far = engine.host_failed();
        tracing::error!(timer = engine.name, so_far, "timer host failed");
        if self.failures < FAILURES_MAX {
            return Next::Again;
        }
        tracing::error!(timer = engine.name, "timer host gives up");
        Next::End
    }
}

/// Nobody drives the timer any more: closes it and takes out what is left.
fn leave(engine: &Engine) {
    engine.shards.hub().set_host(Waker::noop());
    engine.abandon();
    drop(engine.hosting());
}

// What is pinned is in a box of its own.
impl<S, F> Unpin for HostFuture<S, F> {}

impl<S, F> Future for HostFuture<S, F>
where
    S: FnMut(Duration) -> F,
    F: Future<Output = ()>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(engine) = this.hosting.clone() else {
            return Poll::Ready(());
        };
        // Before the first look at what is due: what comes after the look finds this waker.
        engine.shards.hub().set_host(cx.waker());
        if mem::take(&mut this.resting) {
            engine.woke_up();
            // Its length was measured before the clock jumped, if that is why we were woken.
            returns(|| this.sleeping.set(None));
        }
        // A task that stops its own timer must not wait for this thread.
        engine.host(Host::Thread(thread::current().id()));
        let next = engine.context.within(|| this.turns(&engine, cx));
        engine.host(Host::Task);
        match next {
            Next::Again => cx.waker().wake_by_ref(),
            Next::Rest => this.resting = true,
            Next::End => {
                returns(|| this.sleeping.set(None));
                this.hosting = None;
                leave(&engine);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl<S, F> Drop for HostFuture<S, F> {
    fn drop(&mut self) {
        if let Some(engine) = self.hosting.take() {
            // One that would have ended at its next poll is missed by nobody.
            if !(engine.shards.hub().is_closed() && engine.is_empty()) {
                tracing::warn!(timer = engine.name, "the host of a timer was dropped");
            }
            leave(&engine);
        }
    }
}

impl<S, F> fmt::Debug for HostFuture<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hub = self.hosting.as_ref().map(|engine| engine.shards.hub());
        f.debug_struct("HostFuture")
            .field("has_ended", &hub.is_none())
            .field("asleep_until", &hub.and_then(Hub::asleep_until))
            .finish_non_exhaustive()
    }
}
