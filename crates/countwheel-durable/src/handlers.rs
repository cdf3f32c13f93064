//! A handler for each queue.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Attempt, Completion, Handler, NameError, Outcome, QueueName};

/// Hands each attempt to the handler of its queue. An attempt of a queue without a handler fails,
/// with the queue's name as the reason.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use std::time::Duration;
/// use countwheel_durable::store::MemoryStore;
/// use countwheel_durable::{Handlers, Config, SystemClock, Timers};
///
/// let (closed, receive) = mpsc::channel();
/// let handlers = Handlers::new()
///     .on("unpaid", move |attempt| closed.send(attempt.name.key.to_string()))?
///     .on("mail", |attempt| println!("mail {}", attempt.name.key))?;
/// let clock = Arc::new(SystemClock::new());
/// let timers = Timers::open(MemoryStore::new(7), handlers, clock, Config::default())?;
/// timers.set("unpaid/o-1", Duration::ZERO, "")?;
/// assert_eq!(receive.recv()?, "o-1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// If one of the handlers [blocks](Handler::blocks), all are called on the pool's threads.
#[derive(Default)]
pub struct Handlers {
    handlers: HashMap<QueueName, Arc<dyn Handler>>,
    otherwise: Option<Arc<dyn Handler>>,
}

impl Handlers {
    /// No handler yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `handler` on the pool for the attempts of `queue`, given as
    /// [its text](QueueName::from_text). The last handler of a queue counts.
    ///
    /// # Errors
    /// [`NameError`] if `queue` is no name.
    pub fn on<F, R>(self, queue: impl AsRef<str>, handler: F) -> Result<Self, NameError>
    where
        F: Fn(&Attempt) -> R + Send + Sync + 'static,
        R: Into<Outcome> + 'static,
    {
        self.handle(queue, crate::pooled(handler))
    }

    /// The same with a [`Handler`] of any kind.
    ///
    /// # Errors
    /// [`NameError`] if `queue` is no name.
    pub fn handle(
        mut self,
        queue: impl AsRef<str>,
        handler: impl Handler,
    ) -> Result<Self, NameError> {
        let queue = QueueName::from_text(queue)?;
        self.handlers.insert(queue, Arc::new(handler));
        Ok(self)
    }

    /// The handler for the attempts of every queue that has none of its own.
    #[must_use]
    pub fn otherwise(mut self, handler: impl Handler) -> Self {
        self.otherwise = Some(Arc::new(handler));
        self
    }
}

impl Handler for Handlers {
    fn start(&self, attempt: Attempt, done: Completion) {
        let own = self.handlers.get(&attempt.name.queue);
        match own.or(self.otherwise.as_ref()) {
            Some(handler) => handler.start(attempt, done),
            None => done.complete(Outcome::failed(format!(
                "the queue {} has no handler",
                attempt.name.queue
            ))),
        }
    }

    fn blocks(&self) -> bool {
        let all = self.handlers.values().chain(&self.otherwise);
        all.map(Arc::as_ref).any(Handler::blocks)
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.handlers.keys()).finish()
    }
}
