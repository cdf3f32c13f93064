//! What happens, as it happens: the events of `GET /v1/events`, which go on where they were left.

use std::collections::VecDeque;
use std::time::Duration;

use countwheel_time::{Random, RetryPolicy};
use futures_core::Stream;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE};
use serde::de::DeserializeOwned;

use crate::stream::Steps;
use crate::{Client, ClientError};

/// A service sends a comment each 15 s. Where nothing comes for so long, the connection is not alive.
const SILENCE: Duration = Duration::from_secs(45);
/// An event that is longer is none.
const EVENT_MAX_BYTES: usize = 4 << 20;

/// Which events are wanted: all that each field allows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventFilter {
    /// Only those of queues of this namespace.
    pub namespace: Option<String>,
    /// Only those of this queue.
    pub queue: Option<String>,
    /// Only those of timers whose key begins so.
    pub prefix: Option<String>,
    /// Only those of these kinds; all if there are none.
    pub kinds: Vec<String>,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Where the stream is after it: what [`Events::after`] takes.
    pub id: Option<String>,
    /// What happened, such as `set` or `done`; `gap` where events may be missing.
    pub kind: String,
    /// The rest, as JSON.
    pub data: String,
}

impl Event {
    /// Whether events may be missing before this one: what must be known is asked for anew.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        self.kind == "gap"
    }

    /// The data, read.
    ///
    /// # Errors
    /// [`ClientError::Unintelligible`].
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let unreadable = |source| ClientError::Unintelligible {
            status: 200,
            source,
        };
        serde_json::from_str(&self.data).map_err(unreadable)
    }
}

/// The events of a service, over as many connections as it takes. See [`Client::events`].
#[derive(Debug)]
pub struct Events {
    client: Client,
    filter: EventFilter,
    retry: RetryPolicy,
    /// Where the next connection goes on.
    last: Option<String>,
    stream: Option<EventStream>,
    seed: u64,
    failures: u32,
}

/// The events of one connection. See [`Client::listen`].
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    body: Incoming,
    parser: Parser,
}

impl EventFilter {
    fn path(&self) -> String {
        let kinds = Some(self.kinds.join(",")).filter(|kinds| !kinds.is_empty());
        let named = [
            ("namespace", &self.namespace),
            ("queue", &self.queue),
            ("prefix", &self.prefix),
            ("kinds", &kinds),
        ];
        let named = named.into_iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(format!("{name}={}", crate::words::escape(value)))
        });
        let query: Vec<String> = named.collect();
        match query.join("&") {
            query if query.is_empty() => "/v1/events".to_owned(),
            query => format!("/v1/events?{query}"),
        }
    }
}

impl Client {
    /// What happens from now on. A connection that breaks is made anew, after the last event that was read, as the
    /// policy of the client says, else as [`Client::usual_retry`] does.
    ///
    /// ```no_run
    /// use countwheel_client::events::EventFilter;
    /// use countwheel_client::{Client, ClientError};
    ///
    /// # async fn print(client: &Client) -> Result<(), ClientError> {
    /// let dead = EventFilter { kinds: vec!["dead".to_owned()], ..EventFilter::default() };
    /// let mut events = client.events(&dead);
    /// loop {
    ///     let event = events.next().await?;
    ///     println!("{} {}", event.kind, event.data);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn events(&self, filter: &EventFilter) -> Events {
        Events {
            client: self.clone(),
            filter: filter.clone(),
            retry: self.retry().cloned().unwrap_or_else(Self::usual_retry),
            last: None,
            stream: None,
            seed: Random::unseeded().draw(),
            failures: 0,
        }
    }

    /// The events of one connection, behind the event with the id `after` or from now on. Once this has returned, the
    /// service listens: what happens from then on is told, or said to be missing.
    ///
    /// ```no_run
    /// use countwheel_client::events::EventFilter;
    /// use countwheel_client::{Client, ClientError};
    ///
    /// # async fn print(client: &Client) -> Result<(), ClientError> {
    /// let mut stream = client.listen(&EventFilter::default(), None).await?;
    /// while let Some(event) = stream.next().await? {
    ///     println!("{} {}, behind {:?}", event.kind, event.data, stream.place());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError`]. There is one try.
    pub async fn listen(
        &self,
        filter: &EventFilter,
        after: Option<&str>,
    ) -> Result<EventStream, ClientError> {
        let mut request = self.get_request(&filter.path());
        request = request.header(ACCEPT, "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let answer = self.begin_get(request).await?;
        let kind = answer.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let status = answer.status().as_u16();
            return Err(self.foreign(status, kind.as_bytes()));
        }
        Ok(EventStream {
            client: self.clone(),
            body: answer.into_body(),
            parser: Parser::default(),
        })
    }
}

impl EventStream {
    /// The next event; `None` once the service has ended the stream. The future may be dropped: no event is lost
    /// by that.
    ///
    /// # Errors
    /// [`ClientError`], also if nothing came for 45 s: a service sends a comment each 15 s.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            let silent = |_| self.client.broken("no event and no comment came");
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame.map_err(silent)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.broken(error)),
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_else(|_| Bytes::new());
                    if !self.parser.feed(&data) {
                        return Err(self.client.foreign(200, b"an event without an end"));
                    }
                }
            }
        }
    }

    /// Where the stream is, once the service has said it: behind the last event, and behind those that the filter
    /// has left out. What [`Client::listen`] takes as `after`.
    #[must_use]
    pub fn place(&self) -> Option<&str> {
        self.parser
            .last
            .as_deref()
            .filter(|_| self.parser.is_empty())
    }
}

impl Events {
    /// The same from the event on that follows the one with this id.
    #[must_use]
    pub fn after(mut self, id: &str) -> Self {
        self.last = Some(id.to_owned());
        self
    }

    /// The id of the last event: whoever keeps it goes on there later.
    #[must_use]
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// The next event. Waits for it as long as it takes. The future may be dropped: no event is lost by that.
    ///
    /// # Errors
    /// [`ClientError`], where the policy allows no more tries or another try would fail as well.
    pub async fn next(&mut self) -> Result<Event, ClientError> {
        loop {
            let error = match self.advance().await {
                Ok(event) => {
                    self.failures = 0;
                    return Ok(event);
                }
                Err(error) => error,
            };
            self.stream = None;
            if !error.is_passing() {
                return Err(error);
            }
            self.failures += 1;
            let Some(delay) = self.retry.seeded_delay(self.failures, self.seed) else {
                return Err(error);
            };
            let asked = error.problem().and_then(|problem| problem.retry_after);
            tokio::time::sleep(delay.max(asked.unwrap_or_default())).await;
        }
    }

    /// The next event of the connection, which is made if there is none.
    async fn advance(&mut self) -> Result<Event, ClientError> {
        if self.stream.is_none() {
            let after = self.last.as_deref();
            self.stream = Some(self.client.listen(&self.filter, after).await?);
        }
        let Some(stream) = &mut self.stream else {
            return Err(self.client.broken("the stream has ended"));
        };
        let event = stream.next().await;
        // Also behind what the filter has left out.
        if let Some(place) = stream.place() {
            self.last = Some(place.to_owned());
        }
        match event? {
            Some(event) => {
                if let Some(id) = &event.id {
                    self.last = Some(id.clone());
                }
                Ok(event)
            }
            None => Err(self.client.broken("the stream has ended")),
        }
    }

    /// The same as a stream, which ends with the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, ClientError>> + Send + Unpin {
        Steps::new(Some(self), |events| {
            Box::pin(async move {
                let Some(mut events) = events else {
                    return (None, None);
                };
                match events.next().await {
                    Ok(event) => (Some(events), Some(Ok(event))),
                    Err(error) => (None, Some(Err(error))),
                }
            })
        })
    }
}

/// Reads events of bytes, as the standard of HTML has it.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed after it ends no other line.
    after_return: bool,
    has_begun: bool,
    kind: String,
    data: Option<String>,
    /// The id that the next event has.
    id: Option<String>,
    /// The id behind which all events are whole.
    last: Option<String>,
    events: VecDeque<Event>,
}

impl Parser {
    fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    fn next(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes bytes. Whether what has no end yet is not too long.
    fn feed(&mut self, bytes: &[u8]) -> bool {
        for &byte in bytes {
            let was_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if was_return => {}
                b'\n' | b'\r' => self.end_line(),
                byte => self.line.push(byte),
            }
            let data = self.data.as_ref().map_or(0, String::len);
            if self.line.len() + data > EVENT_MAX_BYTES {
                return false;
            }
        }
        true
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let mut line = &*line;
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            self.end_event();
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.kind),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "data" => match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            },
            // Comments, and what later servers may say.
            _ => {}
        }
    }

    fn end_event(&mut self) {
        let kind = std::mem::take(&mut self.kind);
        // Also where nothing but an id came: the filter has left out what happened.
        self.last.clone_from(&self.id);
        let Some(data) = self.data.take() else {
            return;
        };
        let kind = if kind.is_empty() {
            "message".to_owned()
        } else {
            kind
        };
        self.events.push_back(Event {
            id: self.id.clone(),
            kind,
            data,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>, kind: &str, data: &str) -> Event {
        Event {
            id: id.map(str::to_owned),
            kind: kind.to_owned(),
            data: data.to_owned(),
        }
    }

    fn read(chunks: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::default();
        for chunk in chunks {
            assert!(parser.feed(chunk));
        }
        std::iter::from_fn(|| parser.next()).collect()
    }

    #[test]
    fn events_are_read_however_their_bytes_come() {
        let text = "\u{feff}: hello\n\nid: 7-1\nevent: set\ndata: {\"key\":\"\u{fc}\"}\n\n\
                    event:done\r\ndata:{}\r\ndata: 2\r\nretry: 5\r\n\r\nid: 8\revent: gap\rdata\r\r\
                    id: 9\nevent: lost\n\nid: 10\ndata: cut off";
        let expected = [
            event(Some("7-1"), "set", "{\"key\":\"\u{fc}\"}"),
            event(Some("7-1"), "done", "{}\n2"),
            event(Some("8"), "gap", ""),
        ];
        assert_eq!(read(&[text.as_bytes()]), expected);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(read(&bytes), expected);
        let three: Vec<&[u8]> = text.as_bytes().chunks(3).collect();
        assert_eq!(read(&three), expected);
    }

    #[test]
    fn an_event_without_an_end_is_refused() {
        let mut parser = Parser::default();
        let line = vec![b'x'; EVENT_MAX_BYTES];
        assert!(parser.feed(&line));
        assert!(!parser.feed(b"x"));
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(1 << 20));
        assert!((0..5).any(|_| !parser.feed(line.as_bytes())));
    }

    #[test]
    fn a_filter_is_a_query() {
        assert_eq!(EventFilter::default().path(), "/v1/events");
        let filter = EventFilter {
            namespace: Some("n".to_owned()),
            queue: Some("a:b".to_owned()),
            prefix: Some("k/".to_owned()),
            kinds: vec!["set".to_owned(), "done".to_owned()],
        };
        let path = "/v1/events?namespace=n&queue=a%3Ab&prefix=k%2F&kinds=set%2Cdone";
        assert_eq!(filter.path(), path);
    }
}
