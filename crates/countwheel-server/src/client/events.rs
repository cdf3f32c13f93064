//! The stream of events, read as it comes.

use std::collections::VecDeque;
use std::fmt::Write as _;

use http_body_util::{BodyExt, Full};
use hyper::Method;
use hyper::body::Incoming;
use percent_encoding::utf8_percent_encode;
use serde_json::Value;

use super::{Client, ClientError, PLAIN};
use countwheel_durable::Precondition;

/// A longer line is of no event.
const LINE_MAX_BYTES: usize = 1 << 20;

/// Which events are wanted: all, unless it says otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventFilter {
    pub(crate) namespace: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) kinds: Vec<String>,
}

impl EventFilter {
    fn path(&self, after: Option<&str>) -> String {
        let kinds = (!self.kinds.is_empty()).then(|| self.kinds.join(","));
        let parameters = [
            ("namespace", self.namespace.as_deref()),
            ("queue", self.queue.as_deref()),
            ("prefix", self.prefix.as_deref()),
            ("kinds", kinds.as_deref()),
            ("after", after),
        ];
        let mut path = "/v1/events".to_owned();
        let mut between = '?';
        for (name, value) in parameters {
            if let Some(value) = value {
                let value = utf8_percent_encode(value, &PLAIN);
                // A text takes all that is written to it.
                write!(path, "{between}{name}={value}").unwrap_or_default();
                between = '&';
            }
        }
        path
    }
}

/// One event of a stream.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ServerEvent {
    /// What happened; `gap` if events may be missing before those that follow.
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// Reads events out of pieces of a stream.
#[derive(Debug, Default)]
struct Parser {
    /// What has no end of a line yet.
    rest: Vec<u8>,
    kind: String,
    data: String,
    id: Option<String>,
    /// The id of the last event that was whole.
    last: Option<String>,
    ready: VecDeque<ServerEvent>,
}

impl Parser {
    /// Takes in a piece. `None` if it is no part of a stream of events.
    fn take(&mut self, piece: &[u8]) -> Option<()> {
        self.rest.extend_from_slice(piece);
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].iter().position(|&byte| byte == b'\n') {
            let line = std::str::from_utf8(&self.rest[begin..begin + length]).ok()?;
            let line = line.strip_suffix('\r').unwrap_or(line).to_owned();
            self.line(&line)?;
            begin += length + 1;
        }
        self.rest.drain(..begin);
        (self.rest.len() <= LINE_MAX_BYTES).then_some(())
    }

    fn line(&mut self, line: &str) -> Option<()> {
        if line.is_empty() {
            if let Some(id) = self.id.take() {
                self.last = Some(id);
            }
            let (kind, data) = (
                std::mem::take(&mut self.kind),
                std::mem::take(&mut self.data),
            );
            if !data.is_empty() {
                let data = serde_json::from_str(&data).ok()?;
                self.ready.push_back(ServerEvent { kind, data });
            }
            return Some(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.kind),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // A sign of life, or what a later version says.
            _ => {}
        }
        Some(())
    }
}

/// A stream of events.
#[derive(Debug)]
pub(crate) struct EventStream {
    client: Client,
    body: Incoming,
    parser: Parser,
}

impl EventStream {
    /// The next event; `None` once the server has ended the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        loop {
            if let Some(event) = self.parser.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.broken(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && self.parser.take(&data).is_none()
                    {
                        return Err(self.client.broken("the answer is no stream of events"));
                    }
                }
            }
        }
    }

    /// Behind which event the stream is, once it has said so.
    pub(crate) fn place(&self) -> Option<&str> {
        self.parser.last.as_deref()
    }
}

impl Client {
    /// Listens to what happens, behind the event `after` or from now on.
    pub(crate) async fn events(
        &self,
        filter: &EventFilter,
        after: Option<&str>,
    ) -> Result<EventStream, ClientError> {
        let request = self.request(Method::GET, &filter.path(after), Precondition::None);
        let body = Full::default().map_err(|never| match never {}).boxed();
        let address = |_| ClientError::Address {
            text: self.server.clone(),
        };
        let request = request.body(body).map_err(address)?;
        let answer = match tokio::time::timeout(self.timeout, self.begin(request)).await {
            Ok(answer) => answer?,
            Err(_) => {
                return Err(ClientError::Silent {
                    server: self.server.clone(),
                    timeout: self.timeout,
                });
            }
        };
        Ok(EventStream {
            client: self.clone(),
            body: answer.into_body(),
            parser: Parser::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const STREAM: &str = "retry: 1000\n: \nid: a-0.1.4\n\nid: a-0.1.5\nevent: set\ndata: {\"key\":\"k\"}\n\n\
                          : \nid: a-0.1.9\n\nid: a-0.1.10\nevent: gap\r\ndata: {\"shard\":0}\n\nid: a-0.1.11\n";

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        for length in 1..STREAM.len() {
            let mut parser = Parser::default();
            for piece in STREAM.as_bytes().chunks(length) {
                parser.take(piece).unwrap();
            }
            let event = |kind: &str, data| ServerEvent {
                kind: kind.to_owned(),
                data,
            };
            let expected = [
                event("set", json!({"key": "k"})),
                event("gap", json!({"shard": 0})),
            ];
            assert_eq!(parser.ready, expected, "{length}");
            // The last one is not whole.
            assert_eq!(parser.last.as_deref(), Some("a-0.1.10"));
        }
    }

    #[test]
    fn what_is_no_stream_of_events_is_refused() {
        assert_eq!(Parser::default().take(b"data: <html>\n\n"), None);
        assert_eq!(Parser::default().take(b"data: \xff\n\n"), None);
        assert_eq!(
            Parser::default().take(&vec![b'x'; LINE_MAX_BYTES + 1]),
            None
        );
    }

    #[test]
    fn a_filter_is_a_query() {
        let filter = EventFilter {
            queue: Some("a/b".to_owned()),
            kinds: vec!["set".to_owned(), "done".to_owned()],
            ..EventFilter::default()
        };
        let path = filter.path(Some("a-0.1.2"));
        assert_eq!(
            path,
            "/v1/events?queue=a%2Fb&kinds=set%2Cdone&after=a-0.1.2"
        );
        assert_eq!(EventFilter::default().path(None), "/v1/events");
    }
}
