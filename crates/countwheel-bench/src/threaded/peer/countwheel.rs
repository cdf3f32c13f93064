//! Our timer. One more row needs a shape here, and a name, a label, a remark and a line of
//! `dispatch` in `peer.rs`.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use countwheel::{Resolution, Timeout, Timer, TimerBuilder, TscClock};

use super::Peer;

/// How the timer is built.
pub(crate) trait Shape: 'static {
    fn options(timer: TimerBuilder) -> TimerBuilder;
}

/// As it comes: ticks of a millisecond, work on a pool.
pub(crate) struct Usual;

impl Shape for Usual {
    fn options(timer: TimerBuilder) -> TimerBuilder {
        timer
    }
}

/// The work is done on the timer's thread.
pub(crate) struct Inline;

impl Shape for Inline {
    fn options(timer: TimerBuilder) -> TimerBuilder {
        timer.inline()
    }
}

/// The same, with ticks of 64 µs.
pub(crate) struct Fine;

impl Shape for Fine {
    fn options(timer: TimerBuilder) -> TimerBuilder {
        let resolution = Resolution::new(Duration::from_micros(64));
        timer
            .inline()
            .resolution(resolution.expect("there are ticks of 64 microseconds"))
    }
}

/// The same as inline, on the processor's counter.
pub(crate) struct Counter;

impl Shape for Counter {
    fn options(timer: TimerBuilder) -> TimerBuilder {
        timer.inline().clock(TscClock::new())
    }
}

/// Our timer in one of its shapes.
pub(crate) struct Ours<S> {
    timer: Arc<Timer>,
    shape: PhantomData<fn() -> S>,
}

impl<S> Clone for Ours<S> {
    fn clone(&self) -> Self {
        Self {
            timer: Arc::clone(&self.timer),
            shape: PhantomData,
        }
    }
}

impl<S: Shape> Peer for Ours<S> {
    type Handle = Timeout;
    type Entered = ();

    fn start() -> anyhow::Result<Self> {
        Ok(Self {
            timer: Arc::new(S::options(Timer::builder()).build()),
            shape: PhantomData,
        })
    }

    fn enter(&self) {}

    fn schedule(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) -> Timeout {
        let timeout = self.timer.schedule(delay, work);
        timeout.expect("nobody stops the timer, and one thread can be started")
    }

    fn cancel(&mut self, handle: Timeout) -> bool {
        handle.cancel()
    }
}
