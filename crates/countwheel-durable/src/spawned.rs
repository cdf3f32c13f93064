//! Attempts as futures on a runtime.

use std::pin::Pin;

use crate::{Attempt, Completion, Handler, Outcome};

/// An attempt under way, as a runtime takes it.
pub type AttemptFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A handler that makes a future of each attempt and hands the future to `spawn`, which starts it on
/// any runtime. [`on_tokio`] is the same for tokio.
///
/// ```
/// use countwheel_durable::{AttemptFuture, Outcome, spawned};
///
/// let spawn = |future: AttemptFuture| {
///     std::thread::spawn(move || { /* the runtime's block_on */ drop(future) });
/// };
/// let handler = spawned(spawn, |attempt| async move {
///     println!("close {}", attempt.name);
///     Outcome::done()
/// });
/// # drop(handler);
/// ```
///
/// At most [`Config::max_in_flight`](crate::Config::max_in_flight) futures run at a time. A future
/// that is dropped before its end, as by a runtime that shuts down, and one that panics, has failed.
/// The future may await the timers' own answers: see
/// [`Timers::to_async`](crate::Timers::to_async).
pub fn spawned<S, F, Fut>(spawn: S, handler: F) -> Spawned<S, F>
where
    S: Fn(AttemptFuture) + Send + Sync + 'static,
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Into<Outcome>> + Send + 'static,
{
    Spawned { spawn, handler }
}

/// A handler that runs each attempt as a task of the tokio runtime of `handle`.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Config, Outcome, SystemClock, Timers, on_tokio};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (closed, mut receive) = tokio::sync::mpsc::channel(1);
/// let handler = on_tokio(tokio::runtime::Handle::current(), move |attempt| {
///     let closed = closed.clone();
///     async move { closed.send(attempt.name.to_string()).await }
/// });
/// let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), handler, clock, Config::default())?;
/// timers.to_async().set("orders/o-1", Duration::ZERO, "").await?;
/// assert_eq!(receive.recv().await.as_deref(), Some("orders/o-1"));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "tokio")]
pub fn on_tokio<F, Fut>(handle: tokio::runtime::Handle, handler: F) -> impl Handler
where
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Into<Outcome>> + Send + 'static,
{
    let spawn = move |future: AttemptFuture| {
        handle.spawn(future);
    };
    spawned(spawn, handler)
}

/// A handler whose attempts are futures. Made by [`spawned`].
#[derive(Clone, Copy)]
pub struct Spawned<S, F> {
    spawn: S,
    handler: F,
}

impl<S, F, Fut> Handler for Spawned<S, F>
where
    S: Fn(AttemptFuture) + Send + Sync + 'static,
    F: Fn(Attempt) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Into<Outcome>> + Send + 'static,
{
    fn start(&self, attempt: Attempt, done: Completion) {
        let future = (self.handler)(attempt);
        (self.spawn)(Box::pin(async move {
            let outcome = future.await;
            done.complete(outcome.into());
        }));
    }
}

impl<S, F> std::fmt::Debug for Spawned<S, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawned").finish_non_exhaustive()
    }
}
