//! A caller on one connection who never asks twice: an answer that is cut off stays unknown.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};

use super::PATIENCE;
use super::checker::{Sight, StateKind};

/// A connection to the server.
pub(crate) struct Caller {
    stream: BufReader<TcpStream>,
}

/// A status and a body of JSON, or what it is as a text.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Caller {
    /// `None` if nobody listens.
    pub(crate) fn connect(server: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Asks, and reads the answer. `None` if the connection broke before its end.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Option<Reply> {
        let body = body.map_or(String::new(), Value::to_string);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).ok()?;
        let status = self.line()?.split(' ').nth(1)?.parse().ok()?;
        let mut length = 0;
        let mut is_chunked = false;
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
            is_chunked |= name.eq_ignore_ascii_case("transfer-encoding");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        while is_chunked {
            let length = usize::from_str_radix(&self.line()?, 16).ok()?;
            let mut chunk = vec![0; length + 2];
            self.stream.read_exact(&mut chunk).ok()?;
            body.extend_from_slice(&chunk[..length]);
            is_chunked = length > 0;
        }
        let text = || match body.is_empty() {
            true => Value::Null,
            false => String::from_utf8_lossy(&body).into(),
        };
        let body = serde_json::from_slice(&body).unwrap_or_else(|_| text());
        Some(Reply { status, body })
    }

    /// A line without its end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        line.strip_suffix("\r\n").map(str::to_owned)
    }

    /// Every timer there is.
    pub(crate) fn all(&mut self) -> Vec<(String, Sight)> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/queues/default/timers?limit=1000{cursor}");
            let page = self.ask("GET", &path, None).expect("a page");
            if page.status == 410 {
                // Nothing is left since the page before.
                return all;
            }
            assert_eq!(page.status, 200, "{}", page.body);
            let items = page.body["items"].as_array().expect("items");
            all.extend(items.iter().map(|one| (text(one, "key"), sight(one))));
            match page.body["next"].as_str() {
                Some(next) => cursor = format!("&after={next}"),
                None => return all,
            }
        }
    }

    /// Whether no timer due before `before_us` waits, and nothing is being delivered.
    pub(crate) fn is_quiet(&mut self, before_us: u64) -> bool {
        let before = moment(before_us);
        !self.has_any(&format!("state=pending&due_before={before}"))
            && !self.has_any("state=delivering")
    }

    fn has_any(&mut self, query: &str) -> bool {
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/queues/default/timers?limit=1&{query}{cursor}");
            let page = self.ask("GET", &path, None).expect("a page");
            if page.status == 410 {
                return false;
            }
            let page = page.body;
            if page["items"] != json!([]) {
                return true;
            }
            match page["next"].as_str() {
                Some(next) => cursor = format!("&after={next}"),
                None => return false,
            }
        }
    }
}

/// Reads a member that the contract promises.
#[track_caller]
pub(crate) fn text(value: &Value, name: &str) -> String {
    let member = value[name].as_str();
    member
        .unwrap_or_else(|| panic!("no {name}: {value}"))
        .to_owned()
}

#[track_caller]
pub(crate) fn number(value: &Value, name: &str) -> u64 {
    let member = value[name].as_u64();
    member.unwrap_or_else(|| panic!("no {name}: {value}"))
}

#[track_caller]
pub(crate) fn time(value: &Value, name: &str) -> u64 {
    time_us(&text(value, name)).unwrap_or_else(|| panic!("no time {name}: {value}"))
}

/// RFC 3339 in microseconds since 1970.
pub(crate) fn time_us(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_microsecond()).ok()
}

/// Microseconds since 1970 in RFC 3339.
pub(crate) fn moment(us: u64) -> String {
    let us = i64::try_from(us).expect("a time of this era");
    let time = jiff::Timestamp::from_microsecond(us).expect("a time of this era");
    format!("{time:.6}")
}

pub(crate) fn sight(timer: &Value) -> Sight {
    Sight {
        id: text(timer, "id"),
        revision: number(timer, "revision"),
        due_us: time(timer, "due"),
        state: state(&timer["state"]).unwrap_or_else(|| panic!("no state: {timer}")),
        attempt: number(timer, "attempt"),
        body_bytes: number(timer, "body_bytes"),
    }
}

/// The state that an answer names, if it does.
pub(crate) fn state(value: &Value) -> Option<StateKind> {
    value.as_str()?.parse().ok()
}
