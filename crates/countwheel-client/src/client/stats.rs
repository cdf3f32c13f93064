//! What the client asks of the figures of a service, and what it is answered.

use countwheel_durable::Precondition;
use countwheel_time::Timestamp;
use hyper::Method;
use serde::Deserialize;

use super::{Answer, Client, ClientError, escape, maybe_time, time};

impl Client {
    /// Asks for the figures of the whole service: how many timers there are, how many are overdue, and how many
    /// are due within a minute, an hour, a day and a year.
    ///
    /// ```no_run
    /// # async fn doc() -> Result<(), countwheel_client::ClientError> {
    /// let client = countwheel_client::Client::new("http://127.0.0.1:7070", None)?;
    /// let figures = client.figures().await?.value;
    /// println!("{} timers pend", figures.timers.pending);
    /// for span in client.due_figures(None, Some("1h")).await?.value.buckets {
    ///     println!("{} from {:?}", span.timers, span.from);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn figures(&self) -> Result<Answer<Figures>, ClientError> {
        self.send(Method::GET, "/v1/stats", None, Precondition::None)
            .await
    }

    /// Asks how many pending timers are due when: from a time in RFC 3339 on, by default from now on, in spans of
    /// `step` at least, which is a duration of whole seconds as the API reads it (`1s` to `366d`), by default `1s`.
    /// An answer has up to 4,096 spans; its `next` is the `from` of those that follow.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn due_figures(
        &self,
        from: Option<&str>,
        step: Option<&str>,
    ) -> Result<Answer<DueFigures>, ClientError> {
        let named = [("from", from), ("step", step)].into_iter();
        let given = named.filter_map(|(name, value)| Some(format!("{name}={}", escape(value?))));
        let query = given.collect::<Vec<_>>().join("&");
        let path = match &*query {
            "" => "/v1/stats/due".to_owned(),
            query => format!("/v1/stats/due?{query}"),
        };
        self.send(Method::GET, &path, None, Precondition::None)
            .await
    }
}

/// The figures of the whole service.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct Figures {
    /// When they were taken.
    #[serde(deserialize_with = "time")]
    pub as_of: Timestamp,
    /// How many timers there are in each state.
    pub timers: TimerFigures,
    /// How many pend of which the time has come; `None` if no node says so.
    #[serde(default)]
    pub overdue: Option<OverdueFigure>,
    /// How many pend that are due within a minute, an hour, a day, a year and in all, each from the end of what is
    /// overdue on.
    pub due: Vec<DueSpan>,
    /// How many attempts run.
    pub in_flight: u64,
    /// How many timers are leased to workers.
    pub leased: u64,
    /// How many timers are due and wait for a limit of their queue, key or endpoint.
    pub waiting_for_limits: u64,
    /// How many nodes have said their figures.
    pub nodes: u64,
    /// Whether every shard is in the figures once and counted to its end.
    #[serde(default = "yes")]
    pub exact: bool,
}

/// How many timers there are in each state, in how many queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct TimerFigures {
    /// Those that wait.
    pub pending: u64,
    /// Those with a running attempt.
    pub delivering: u64,
    /// Those that succeeded and are still known.
    pub done: u64,
    /// Those given up.
    pub dead: u64,
    /// How many queues have any.
    pub queues: u64,
    /// Whether all are counted.
    #[serde(default = "yes")]
    pub exact: bool,
}

/// How many timers pend of which the time has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct OverdueFigure {
    /// What was due before this time is counted.
    #[serde(default, deserialize_with = "maybe_time")]
    pub until: Option<Timestamp>,
    /// How many these are.
    pub timers: u64,
    /// When the first of them was due, if that is known.
    #[serde(default, deserialize_with = "maybe_time")]
    pub oldest: Option<Timestamp>,
}

/// How many timers pend that are due within a span of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct DueSpan {
    /// Its beginning, which is in it.
    #[serde(deserialize_with = "time")]
    pub from: Timestamp,
    /// Its end, which is not in it; `None` if it has none.
    #[serde(default, deserialize_with = "maybe_time")]
    pub until: Option<Timestamp>,
    /// How many these are.
    pub timers: u64,
}

/// How many pending timers are due when.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct DueFigures {
    /// When they were taken.
    #[serde(deserialize_with = "time")]
    pub as_of: Timestamp,
    /// How many are due already; `None` if no node says so.
    #[serde(default)]
    pub overdue: Option<OverdueFigure>,
    /// Those to come, in order of time and without overlap. Spans in which none is due are left out.
    pub buckets: Vec<DueSpan>,
    /// Where to go on, if there are more.
    #[serde(default)]
    pub next: Option<String>,
    /// How many nodes have said their figures.
    pub nodes: u64,
    /// Whether every shard is in the figures once and counted to its end.
    #[serde(default = "yes")]
    pub exact: bool,
}

fn yes() -> bool {
    true
}
