//! The timers of the tokio runtime itself.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::time::{Instant, Sleep, advance, sleep_until};

use super::{Competitor, Fired};

/// One boxed `Sleep` a timer, on a runtime whose clock stands still until it is told.
///
/// Each is polled once, to register it, with a waker that does nothing: the cheapest
/// use there is. Which timers have fired is therefore only known by asking each.
/// Dropping the `Sleep` cancels it, so a timer that nobody will cancel is kept here.
pub(crate) struct Sleeps {
    clock: PausedClock,
    released: Vec<Pin<Box<Sleep>>>,
}

impl Competitor for Sleeps {
    type Handle = Pin<Box<Sleep>>;

    const SILENT: bool = true;

    fn new(_longest_delay: u64) -> Self {
        Self {
            clock: PausedClock::new(),
            released: Vec::new(),
        }
    }

    fn schedule(&mut self, delay: u64, _id: u64) -> Self::Handle {
        let mut sleep = Box::pin(sleep_until(self.clock.deadline(delay)));
        let pending = sleep
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending();
        debug_assert!(pending, "a delay of at least one tick has not passed");
        sleep
    }

    fn cancel(&mut self, handle: Self::Handle) -> bool {
        !handle.is_elapsed()
    }

    fn advance_to(&mut self, now: u64, _fired: &mut impl Fired) {
        self.clock.advance_to(now);
    }

    fn release(&mut self, handle: Self::Handle) {
        self.released.push(handle);
    }

    fn has_fired(handle: &Self::Handle) -> bool {
        handle.is_elapsed()
    }

    fn released(&self) -> &[Self::Handle] {
        &self.released
    }
}

/// A runtime on this thread whose time only moves when it is told to.
pub(super) struct PausedClock {
    runtime: &'static Runtime,
    _entered: EnterGuard<'static>,
    start: Instant,
    now: u64,
}

impl PausedClock {
    pub(super) fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing that could be missing");
        // Leaked, because to stay entered a runtime must outlive the guard.
        let runtime: &'static Runtime = Box::leak(Box::new(runtime));
        let entered = runtime.enter();
        Self {
            runtime,
            _entered: entered,
            start: Instant::now(),
            now: 0,
        }
    }

    pub(super) fn deadline(&self, delay: u64) -> Instant {
        self.start + Duration::from_millis(self.now + delay)
    }

    /// Moves the clock and lets the runtime fire what is due.
    pub(super) fn advance_to(&mut self, now: u64) {
        let step = Duration::from_millis(now - self.now);
        self.now = now;
        self.runtime.block_on(advance(step));
    }
}
