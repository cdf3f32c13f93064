//! The host of a timer on a tokio runtime, by that runtime's own clock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant as TokioInstant;

use crate::engine::Engine;
use crate::host::task::HostFuture;
use crate::task::returns;
use crate::{Clock, Instant, NoRuntime, SystemClock, Timer, Timestamp};

/// The clock of a tokio runtime: [`tokio::time::Instant`]. With the cargo feature `tokio`.
///
/// It stands still while the runtime's clock is
/// [paused](https://docs.rs/tokio/latest/tokio/time/fn.pause.html), and `tokio::time::advance` moves
/// it by exactly as much. From any thread it shows the time of the runtime in which it was made. [`Timer::on_tokio`] makes one by itself.
///
/// [`timestamp`](Clock::timestamp) is the wall clock's reading, ahead of it or behind it by as much as
/// the runtime's clock is of the machine's.
///
/// **Cost:** on a runtime of several threads, whose clock cannot be paused, a reading of the system's
/// clock. On a runtime of one thread, one entry into the runtime's context besides.
///
/// ```
/// use countwheel::{Clock, TokioClock};
/// use std::time::Duration;
///
/// let runtime = tokio::runtime::Builder::new_current_thread()
///     .enable_time()
///     .start_paused(true) // needs tokio's feature `test-util`
///     .build()
///     .unwrap();
/// runtime.block_on(async {
///     let clock = TokioClock::new()?;
///     let before = clock.now();
///     tokio::time::advance(Duration::from_secs(60)).await;
///     assert_eq!(clock.now().saturating_since(before), Duration::from_secs(60));
///     # Ok::<(), countwheel::NoRuntime>(())
/// })?;
/// # Ok::<(), countwheel::NoRuntime>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokioClock {
    runtime: Handle,
    /// Whether it can be paused, so that only the runtime knows what it shows.
    can_pause: bool,
    origin: TokioInstant,
    system: SystemClock,
}

impl TokioClock {
    /// The clock of the current runtime, whose [`Instant::ZERO`] is now.
    ///
    /// # Errors
    /// [`NoRuntime::Absent`] if there is no current runtime.
    pub fn new() -> Result<Self, NoRuntime> {
        let runtime = Handle::try_current().map_err(|_| NoRuntime::Absent)?;
        Ok(Self {
            // Tokio pauses the clock of no other.
            can_pause: runtime.runtime_flavor() == RuntimeFlavor::CurrentThread,
            runtime,
            origin: TokioInstant::now(),
            system: SystemClock::new(),
        })
    }

    fn elapsed(&self) -> std::time::Duration {
        if !self.can_pause {
            return self.origin.elapsed();
        }
        // Outside of the runtime, tokio shows the machine's time.
        let _entered = self.runtime.enter();
        self.origin.elapsed()
    }

    /// Whether it is paused, as far as two readings tell.
    fn stands_still(&self) -> bool {
        self.can_pause && self.elapsed() == self.elapsed()
    }
}

impl Clock for TokioClock {
    #[inline]
    fn now(&self) -> Instant {
        Instant::ZERO + self.elapsed()
    }

    fn timestamp(&self) -> Timestamp {
        let (ours, wall) = (self.now(), self.system.timestamp());
        let real = self.system.now();
        if ours > real {
            let ahead = ours.saturating_since(real);
            // Down to whole microseconds: a clock that is not paused is ahead by none.
            let micros = u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX);
            wall + std::time::Duration::from_micros(micros)
        } else {
            wall.saturating_sub(real.saturating_since(ours))
        }
    }
}

/// The current runtime, if timers can be hosted there.
pub(crate) fn current() -> Result<Handle, NoRuntime> {
    let runtime = Handle::try_current().map_err(|_| NoRuntime::Absent)?;
    // Tokio has no other way to ask.
    let has_time = returns(|| drop(tokio::time::sleep(std::time::Duration::ZERO)));
    has_time.then_some(runtime).ok_or(NoRuntime::WithoutTime)
}

/// Drives `timer` as a task of `runtime`, by `clock`, which is the timer's.
pub(crate) fn host(timer: &Timer, runtime: &Handle, clock: TokioClock) {
    let engine: Arc<Engine> = Arc::clone(timer.engine());
    let mut host = HostFuture::new(Arc::clone(&engine), tokio::time::sleep);
    if !clock.can_pause {
        drop(runtime.spawn(host));
        return;
    }
    let host = poll_fn(move |cx| {
        // A clock that is paused jumps to the end of the host's sleep as soon as the runtime has
        // nothing to do. So the host sleeps only for what is pending, and is told of cancels.
        engine.shards.hub().set_alert(clock.stands_still());
        Pin::new(&mut host).poll(cx)
    });
    drop(runtime.spawn(host));
}
