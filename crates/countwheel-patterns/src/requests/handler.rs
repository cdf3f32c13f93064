//! Runs a handler: on the executor, or else where the request ends.

use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::RequestError;
use super::response::Call;
use super::shard::RequestShard;
use countwheel::TimerKey;
use countwheel::building::returns;
use countwheel_time::locks::lock;

pub(super) type Handler<T> = Box<dyn FnOnce(Result<T, RequestError>) + Send>;

/// Waits for the end of a request in place of a task or a thread, and then has the handler
/// run.
pub(super) struct Handoff<T> {
    shard: Weak<RequestShard<T>>,
    call: Arc<Call<T>>,
    handler: Mutex<Option<Handler<T>>>,
}

impl<T: Send + 'static> Handoff<T> {
    /// Runs `handler` once the call has ended.
    pub(super) fn set(shard: Weak<RequestShard<T>>, call: &Arc<Call<T>>, handler: Handler<T>) {
        let handoff = Arc::new(Self {
            shard,
            call: Arc::clone(call),
            handler: Mutex::new(Some(handler)),
        });
        let waker = Waker::from(Arc::clone(&handoff));
        if let Poll::Ready(result) = call.answer.poll(&mut Context::from_waker(&waker)) {
            handoff.hand_off(result);
        }
    }

    fn hand_off(&self, result: Result<T, RequestError>) {
        let handler = lock(&self.handler).take();
        if let Some(handler) = handler {
            let start = Start::new(move || handler(result));
            match self.shard.upgrade() {
                Some(shard) => shard.execute(start),
                None => drop(start.run_here()),
            }
        }
    }
}

impl<T: Send + 'static> Wake for Handoff<T> {
    fn wake(self: Arc<Self>) {
        // Nobody but an end wakes this, and nobody else asks for the answer.
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(result) = self.call.answer.poll(&mut cx) {
            self.hand_off(result);
        }
    }
}

/// A handler with its result, which runs once: whoever comes first begins it.
pub(super) struct Start(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Start {
    fn new(handler: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Box::new(handler)))))
    }

    fn take(&self) -> Option<Box<dyn FnOnce() + Send>> {
        lock(&self.0).take()
    }

    /// Runs it on this thread, unless somebody was faster. True if it ran. A panic ends here.
    pub(super) fn run_here(&self) -> bool {
        let Some(handler) = self.take() else {
            return false;
        };
        if !returns(handler) {
            tracing::error!("the handler of a request panicked");
        }
        true
    }
}

/// A handler on its way through the executor. If it is dropped there, it runs all the same.
pub(super) struct Errand<T: Send + 'static> {
    shard: Weak<RequestShard<T>>,
    /// What runs the handler if the executor does not.
    fallback: TimerKey,
    start: Arc<Start>,
}

impl<T: Send + 'static> Errand<T> {
    pub(super) fn new(shard: &Arc<RequestShard<T>>, fallback: TimerKey, start: Arc<Start>) -> Self {
        Self {
            shard: Arc::downgrade(shard),
            fallback,
            start,
        }
    }

    pub(super) fn run(self) {
        if let Some(handler) = self.start.take() {
            self.forget_fallback();
            handler();
        }
    }

    fn forget_fallback(&self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.forget_handler(self.fallback);
        }
    }
}

impl<T: Send + 'static> Drop for Errand<T> {
    fn drop(&mut self) {
        if let Some(handler) = self.start.take() {
            self.forget_fallback();
            if let Some(shard) = self.shard.upgrade() {
                shard.count_inline();
            }
            if !returns(handler) {
                tracing::error!("the handler of a request panicked");
            }
        }
    }
}
