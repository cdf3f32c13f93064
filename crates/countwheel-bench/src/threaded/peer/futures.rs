//! Timers that are futures, with a thread that polls them.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use countwheel_time::locks::lock;

use super::Peer;
use super::tokio_task::runtime;

/// A future that is ready once its delay has passed. To drop it is to cancel it.
pub(crate) trait Delay: 'static {
    /// The future, boxed where it may not move.
    type Held: Future + Unpin + Send + 'static;
    /// What a thread that polls one holds.
    type Entered;

    fn enter() -> Self::Entered;
    fn after(delay: Duration) -> Self::Held;
}

/// Ours, on the timer of the whole process.
pub(crate) struct Ours;

impl Delay for Ours {
    type Held = countwheel::Sleep;
    type Entered = ();

    fn enter() {}

    fn after(delay: Duration) -> Self::Held {
        countwheel::Timer::global().sleep(delay)
    }
}

/// That of tokio.
pub(crate) struct Sleep;

impl Delay for Sleep {
    type Held = Pin<Box<tokio::time::Sleep>>;
    type Entered = tokio::runtime::EnterGuard<'static>;

    fn enter() -> Self::Entered {
        runtime().enter()
    }

    fn after(delay: Duration) -> Self::Held {
        Box::pin(tokio::time::sleep(delay))
    }
}

/// That of `async-io`, on the thread of its reactor.
pub(crate) struct AsyncIo;

impl Delay for AsyncIo {
    type Held = async_io::Timer;
    type Entered = ();

    fn enter() {}

    fn after(delay: Duration) -> Self::Held {
        async_io::Timer::after(delay)
    }
}

/// That of `futures-timer`, on its helper thread.
pub(crate) struct Helper;

impl Delay for Helper {
    type Held = futures_timer::Delay;
    type Entered = ();

    fn enter() {}

    fn after(delay: Duration) -> Self::Held {
        futures_timer::Delay::new(delay)
    }
}

/// The cheapest use: polled once, with a waker that does nothing.
pub(crate) struct Polled<D>(PhantomData<fn() -> D>);

impl<D> Clone for Polled<D> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<D: Delay> Peer for Polled<D> {
    type Handle = D::Held;
    type Entered = D::Entered;

    const CANCEL_TELLS: bool = false;

    fn start() -> anyhow::Result<Self> {
        Ok(Self(PhantomData))
    }

    fn enter(&self) -> D::Entered {
        D::enter()
    }

    fn schedule(&mut self, delay: Duration, _work: impl FnOnce() + Send + 'static) -> D::Held {
        let mut held = D::after(delay);
        let mut context = Context::from_waker(Waker::noop());
        let pending = Pin::new(&mut held).poll(&mut context).is_pending();
        debug_assert!(pending, "the delay has not passed");
        held
    }

    fn cancel(&mut self, handle: D::Held) -> bool {
        drop(handle);
        true
    }

    fn call(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) {
        Job::start(D::after(delay), work);
    }
}

/// Whoever wakes the future also polls it and does the work: the shortest way there
/// is, without an executor in between.
pub(crate) struct Woken<D>(PhantomData<fn() -> D>);

impl<D> Clone for Woken<D> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<D: Delay> Peer for Woken<D> {
    type Handle = Arc<Job<D::Held>>;
    type Entered = D::Entered;

    fn start() -> anyhow::Result<Self> {
        Ok(Self(PhantomData))
    }

    fn enter(&self) -> D::Entered {
        D::enter()
    }

    fn schedule(&mut self, delay: Duration, work: impl FnOnce() + Send + 'static) -> Self::Handle {
        Job::start(D::after(delay), work)
    }

    fn cancel(&mut self, handle: Self::Handle) -> bool {
        handle.take().is_some()
    }
}

/// A future and what is to be done once it is ready.
pub(crate) struct Job<F> {
    waiting: Mutex<Option<Waiting<F>>>,
}

struct Waiting<F> {
    future: F,
    work: Box<dyn FnOnce() + Send>,
}

impl<F: Future + Unpin + Send + 'static> Job<F> {
    fn start(future: F, work: impl FnOnce() + Send + 'static) -> Arc<Self> {
        let work: Box<dyn FnOnce() + Send> = Box::new(work);
        let waiting = Mutex::new(Some(Waiting { future, work }));
        let job = Arc::new(Self { waiting });
        job.poll();
        job
    }

    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        let mut waiting = lock(&self.waiting);
        let is_ready = waiting
            .as_mut()
            .is_some_and(|waiting| Pin::new(&mut waiting.future).poll(&mut context).is_ready());
        let ready = if is_ready { waiting.take() } else { None };
        drop(waiting);
        if let Some(ready) = ready {
            (ready.work)();
        }
    }

    fn take(&self) -> Option<Waiting<F>> {
        lock(&self.waiting).take()
    }
}

impl<F: Future + Unpin + Send + 'static> Wake for Job<F> {
    fn wake(self: Arc<Self>) {
        self.poll();
    }
}
