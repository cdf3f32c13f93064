//! The way from the books to the handler and back.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use super::books::{Operation, Passage};
use super::store::Store;
use super::{Attempt, Failure, Key};
use crate::StopSignal;
use crate::spawned::spawn;
use countwheel::building::run_soon;
use countwheel::building::{Panicked, caught, returns};

/// Starts attempts.
pub(super) trait Launch<K, T, E>: Send + Sync
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    /// Sends one to the timer's executor. If that is not to be had, the ticket says so.
    fn launch(&self, store: &Arc<Store<K, T, E>>, ticket: Ticket<K, T, E>);
}

/// A handler that is a function.
pub(super) struct Blocking<H>(pub(super) Arc<H>);

impl<H, K, T, E> Launch<K, T, E> for Blocking<H>
where
    H: Fn(&K, &T, &Attempt) -> Result<(), Failure<E>> + Send + Sync + 'static,
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    fn launch(&self, store: &Arc<Store<K, T, E>>, ticket: Ticket<K, T, E>) {
        // What waits in an executor keeps no handler alive either; a flight does.
        let handler = Arc::downgrade(&self.0);
        let task = move || {
            if let Some(flight) = ticket.take_off()
                && let Some(handler) = handler.upgrade()
            {
                flight.run(|key, value, attempt| handler(key, value, attempt));
            }
        };
        // A task that is refused is dropped here, and the ticket in it tells the store.
        drop(run_soon(store.timer(), task));
    }
}

/// A handler that returns a future.
pub(super) struct Async<H>(pub(super) Arc<H>);

impl<H, F, K, T, E> Launch<K, T, E> for Async<H>
where
    H: Fn(K, T, Attempt) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Failure<E>>> + Send + 'static,
    K: Key,
    T: Clone + Send + 'static,
    E: Send + 'static,
{
    fn launch(&self, store: &Arc<Store<K, T, E>>, ticket: Ticket<K, T, E>) {
        let handler = Arc::downgrade(&self.0);
        let future = async move {
            if let Some(flight) = ticket.take_off()
                && let Some(handler) = handler.upgrade()
            {
                flight.fly(&*handler).await;
            }
        };
        // Nobody ends it from outside: it runs to its end, or to that of the timer.
        drop(spawn(&store.timer().downgrade(), future));
    }
}

/// The right to one attempt. Dropped unused, it tells the store that nobody made it.
pub(super) struct Ticket<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    /// What waits in an executor keeps no store alive.
    store: Weak<Store<K, T, E>>,
    passage: Passage,
}

impl<K, T, E> Ticket<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    pub(super) fn new(store: &Arc<Store<K, T, E>>, passage: Passage) -> Self {
        Self {
            store: Arc::downgrade(store),
            passage,
        }
    }

    /// None if the operation was cancelled, overtaken or handed back meanwhile.
    fn take_off(mut self) -> Option<Flight<K, T, E>> {
        let store = std::mem::take(&mut self.store).upgrade()?;
        let (key, operation, signal) = store.take_off(self.passage)?;
        Some(Flight {
            store,
            passage: self.passage,
            key,
            operation: Some(operation),
            signal,
        })
    }
}

impl<K, T, E> Drop for Ticket<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.turned_away(self.passage);
        }
    }
}

/// An attempt in flight. Dropped before its end, it brings the operation back.
struct Flight<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    store: Arc<Store<K, T, E>>,
    passage: Passage,
    key: Arc<K>,
    operation: Option<Operation<T, E>>,
    signal: StopSignal,
}

impl<K, T, E> Flight<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    /// Calls what needs key, value and attempt, or says why it panicked.
    fn call<R>(&self, handler: impl FnOnce(&K, &T, &Attempt) -> R) -> Result<R, Panicked> {
        let operation = self.operation.as_ref().ok_or(Panicked::Otherwise)?;
        let attempt = Attempt {
            attempts: operation.attempts,
            signal: self.signal.clone(),
        };
        caught(|| handler(&self.key, &operation.value, &attempt))
    }

    fn run(self, handler: impl FnOnce(&K, &T, &Attempt) -> Result<(), Failure<E>>) {
        let result = self.call(handler);
        self.land(result);
    }

    async fn fly<F>(self, handler: &(impl Fn(K, T, Attempt) -> F + Sync))
    where
        F: Future<Output = Result<(), Failure<E>>> + Send,
        T: Clone,
    {
        let future =
            self.call(|key, value, attempt| handler(key.clone(), value.clone(), attempt.clone()));
        let (future, thrown) = match future {
            Ok(future) => (Some(future), Panicked::Otherwise),
            Err(thrown) => (None, thrown),
        };
        let mut future = pin!(future);
        let result = poll_fn(|cx| {
            let Some(inner) = future.as_mut().as_pin_mut() else {
                return Poll::Ready(Err(thrown));
            };
            match caught(|| inner.poll(cx)) {
                Ok(polled) => polled.map(Ok),
                Err(thrown) => Poll::Ready(Err(thrown)),
            }
        })
        .await;
        // The attempt has not ended before its future is gone, with all that it holds.
        returns(|| future.set(None));
        self.land(result);
    }

    fn land(mut self, result: Result<Result<(), Failure<E>>, Panicked>) {
        if let Some(operation) = self.operation.take() {
            self.store.land(self.passage, operation, result);
        }
    }
}

impl<K, T, E> Drop for Flight<K, T, E>
where
    K: Key,
    T: Send + 'static,
    E: Send + 'static,
{
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.store.interrupted(self.passage, operation);
        }
    }
}
