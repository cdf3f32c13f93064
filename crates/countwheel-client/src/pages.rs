//! All timers of a queue, page after page.

use std::collections::VecDeque;

use futures_core::Stream;

use crate::stream::Steps;
use crate::{Client, ClientError, Filter, Timer};

/// How many timers one page has at the most.
const PAGE: u32 = 1_000;

/// The timers of a queue that a filter wants, in the order of their deadlines. See [`Client::timers`].
#[derive(Debug)]
pub struct TimerPages {
    client: Client,
    queue: String,
    filter: Filter,
    limit: u32,
    after: Option<String>,
    is_last: bool,
    timers: VecDeque<Timer>,
}

impl Client {
    /// All timers of a queue that the filter wants: it asks for one page after the other, as they are needed. What
    /// changes meanwhile may be there or not; what does not is there once.
    ///
    /// ```no_run
    /// use countwheel_client::{Client, ClientError, Filter};
    ///
    /// # async fn print(client: &Client) -> Result<(), ClientError> {
    /// let mut timers = client.timers("orders", Filter::default());
    /// while let Some(timer) = timers.next().await? {
    ///     println!("{} {}", timer.key, timer.state);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn timers(&self, queue: &str, filter: Filter) -> TimerPages {
        TimerPages {
            client: self.clone(),
            queue: queue.to_owned(),
            filter,
            limit: PAGE,
            after: None,
            is_last: false,
            timers: VecDeque::new(),
        }
    }
}

impl TimerPages {
    /// The same with pages of so many timers, 1 to 1,000.
    #[must_use]
    pub fn of(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// The next timer; `None` after the last. After an error it asks for the same page again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Timer>, ClientError> {
        loop {
            if let Some(timer) = self.timers.pop_front() {
                return Ok(Some(timer));
            }
            if self.is_last {
                return Ok(None);
            }
            let after = self.after.as_deref();
            let asked = self
                .client
                .list(&self.queue, &self.filter, self.limit, after);
            let page = asked.await?.value;
            self.timers = page.timers()?.into();
            self.is_last = page.next.is_none();
            self.after = page.next;
        }
    }

    /// The same as a stream, which ends with the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Timer, ClientError>> + Send + Unpin {
        Steps::new(Some(self), |pages| {
            Box::pin(async move {
                let Some(mut pages) = pages else {
                    return (None, None);
                };
                match pages.next().await {
                    Ok(timer) => (Some(pages), timer.map(Ok)),
                    Err(error) => (None, Some(Err(error))),
                }
            })
        })
    }
}
