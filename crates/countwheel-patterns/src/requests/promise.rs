//! The other end of a response, for callers that need no id.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Weak};

use super::shard::RequestShard;
use super::{Late, RequestId};

/// The end at which a [`Response`](super::Response) is given its value, for use within one
/// process: Kafka's `ExpirationService.failAfter`. Made by
/// [`Requests::promise`](super::Requests::promise).
///
/// Dropping it without a word cancels the request, so that nobody waits for what nobody brings.
///
/// ```
/// use countwheel::ManualHost;
/// use countwheel_patterns::{RequestError, Requests};
/// use std::time::Duration;
///
/// let mut host = ManualHost::new();
/// let requests = Requests::new(host.timer().clone());
/// let (promise, response) = requests.promise(Duration::from_secs(1))?;
/// promise.complete("elected").unwrap();
/// assert_eq!(response.wait().unwrap(), "elected");
///
/// let (promise, response) = requests.promise(Duration::from_secs(1))?;
/// host.advance(Duration::from_secs(1));
/// assert!(matches!(response.wait(), Err(RequestError::TimedOut { .. })));
/// assert_eq!(promise.complete("elected").unwrap_err().value, "elected");
///
/// let (promise, response) = requests.promise(Duration::from_secs(1))?;
/// drop(promise);
/// assert!(matches!(response.wait(), Err(RequestError::Cancelled)));
/// # Ok::<(), countwheel_patterns::RegisterError>(())
/// ```
#[must_use = "dropping it cancels the request"]
pub struct Promise<T: Send + 'static> {
    id: RequestId,
    shard: Weak<RequestShard<T>>,
    is_kept: bool,
}

impl<T: Send + 'static> Promise<T> {
    pub(super) fn new(id: RequestId, shard: &Arc<RequestShard<T>>) -> Self {
        Self {
            id,
            shard: Arc::downgrade(shard),
            is_kept: false,
        }
    }

    /// Gives the value.
    ///
    /// # Errors
    /// [`Late`], with the value, if the request has ended.
    pub fn complete(mut self, value: T) -> Result<(), Late<T>> {
        self.is_kept = true;
        match self.shard.upgrade() {
            Some(shard) => shard.complete(self.id, value),
            None => Err(Late { value, by: None }),
        }
    }

    /// Says why there will be no value.
    ///
    /// # Errors
    /// [`Late`], with the error, if the request has ended.
    pub fn fail<E>(mut self, error: E) -> Result<(), Late<E>>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.is_kept = true;
        match self.shard.upgrade() {
            Some(shard) => shard.fail(self.id, error),
            None => Err(Late {
                value: error,
                by: None,
            }),
        }
    }
}

impl<T: Send + 'static> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.is_kept
            && let Some(shard) = self.shard.upgrade()
        {
            shard.cancel(self.id);
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Promise")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
