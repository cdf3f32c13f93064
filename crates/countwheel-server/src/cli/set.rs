//! `countwheel set`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use countwheel_durable::{Missed, Precondition, Revision, SetOptions};
use countwheel_time::Clock;
use hyper::Method;
use serde_json::Value;
use serde_json::value::RawValue;

use super::arguments::{When, duration, header};
use super::connection::Connection;
use super::follow::{Follower, line};
use super::repeat::{Repeat, missed};
use super::retry::Retry;
use super::{Exit, Failure, Terminal, text, watch};
use crate::api::idempotency::KEY_MAX_BYTES;
use crate::api::timers::method_of;
use crate::client::{NewTimer, TimerBody, TimerSet};

/// `countwheel set`.
#[derive(Clone, Debug, clap::Args)]
pub struct Set {
    /// The timer's key; the server draws one if there is none
    key: Option<String>,
    #[command(flatten)]
    when: When,
    #[command(flatten)]
    repeat: Repeat,
    /// If overdue before its first attempt: fire, collapse (all missed runs into one), skip:5m
    /// (only if not older)
    #[arg(long, value_name = "POLICY", value_parser = missed, default_value = "fire", hide_default_value = true)]
    missed: Missed,
    /// Where it is delivered; where its queue says unless given. Workers fetch the timers of a queue of mode pull
    #[arg(long, value_name = "URL", conflicts_with = "endpoint")]
    post: Option<String>,
    /// The endpoint that it is delivered to
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// What follows the URL of the endpoint: /orders/7?x=1
    #[arg(
        long,
        value_name = "PATH",
        requires = "endpoint",
        conflicts_with = "post"
    )]
    path: Option<String>,
    /// By another method than POST: GET, HEAD, PUT, PATCH, DELETE, OPTIONS
    #[arg(long, value_name = "METHOD", value_parser = method_of, default_value = "POST", hide_default_value = true)]
    method: Method,
    /// Sent with each delivery: 'name: value'
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    headers: Vec<(String, String)>,
    #[command(flatten)]
    body: Body,
    /// Of the body; text/plain unless it is JSON, application/octet-stream if it is no UTF-8
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// How long one attempt may take
    #[arg(long, value_name = "D", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    retry: Retry,
    /// Give it this tag, by which lists and bulk jobs find it; may be said more than once
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Only if there is no timer of that key in any state
    #[arg(long, requires = "key", conflicts_with = "if_revision")]
    if_absent: bool,
    /// Only if the timer has this revision
    #[arg(long, value_name = "N", requires = "key")]
    if_revision: Option<u64>,
    /// In place of the key: the same again within a day sets nothing more
    #[arg(long, value_name = "KEY", conflicts_with = "key", value_parser = idempotency_key)]
    idempotency_key: Option<String>,
    /// Follow the timer until it is done, dead or removed
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct Body {
    /// Deliver this text
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// Deliver this file
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// Deliver this JSON
    #[arg(long, value_name = "JSON")]
    json_body: Option<String>,
}

impl Set {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let timer = self.timer()?;
        let precondition = match self.if_revision {
            Some(revision) => Precondition::Revision(Revision(revision)),
            None if self.if_absent => Precondition::Absent,
            None => Precondition::None,
        };
        let client = self.connection.client()?;
        let queue = &self.connection.queue;
        let answer = match &self.key {
            Some(key) => client.set(queue, key, &timer, precondition).await?,
            None => {
                let asked_as = self.idempotency_key.as_deref();
                client.post(queue, &timer, asked_as).await?
            }
        };
        let set = &answer.value;
        let key = self.key.as_deref().unwrap_or(&set.key);
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            report("set", key, set, terminal)?;
        }
        if !self.watch {
            return Ok(Exit::Done);
        }
        let mut follower = Follower::after_set(set);
        watch::follow(&self.connection, key, &mut follower, None, terminal).await
    }

    fn timer(&self) -> Result<NewTimer, Failure> {
        let (body, content_type) = self.body()?;
        let (due, recurrence) = self.repeat.schedule(self.when.due())?;
        let missed = self.missed;
        Ok(NewTimer {
            due,
            options: SetOptions {
                missed,
                recurrence,
                ..SetOptions::default()
            },
            url: self.post.clone().unwrap_or_default(),
            endpoint: self.endpoint.clone().map(|endpoint| {
                let path = self.path.clone().unwrap_or_default();
                (endpoint, path)
            }),
            method: self.method.clone(),
            headers: once_each(&self.headers)?,
            timeout: self.timeout,
            body,
            content_type,
            retry: self.retry.policy()?,
            tags: self.tags.clone(),
        })
    }

    fn body(&self) -> Result<(Option<TimerBody>, Option<String>), Failure> {
        let plain = || Some("text/plain; charset=utf-8".to_owned());
        if let Some(json) = &self.body.json_body {
            let verbatim: Box<RawValue> = serde_json::from_str(json)
                .map_err(|error| Failure::Usage(format!("--json-body is no JSON: {error}")))?;
            // With a content type the API takes a text, delivered as it stands.
            return Ok(match &self.content_type {
                None => (Some(TimerBody::Verbatim(verbatim)), None),
                named => (Some(plain_text(json.clone())), named.clone()),
            });
        }
        let text = match (&self.body.body, &self.body.body_file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => {
                let read = std::fs::read(path).map_err(|source| Failure::File {
                    path: path.display().to_string(),
                    source,
                })?;
                match String::from_utf8(read) {
                    Ok(text) => text,
                    Err(error) => {
                        let bytes = TimerBody::Bytes(error.into_bytes());
                        return Ok((Some(bytes), self.content_type.clone()));
                    }
                }
            }
            (None, None) if self.content_type.is_some() => {
                return Err(Failure::Usage("--content-type needs a body".to_owned()));
            }
            (None, None) => return Ok((None, None)),
        };
        let content_type = self.content_type.clone().or_else(plain);
        Ok((Some(plain_text(text)), content_type))
    }
}

/// Says what was set.
pub(super) fn report(
    word: &str,
    key: &str,
    set: &TimerSet,
    terminal: &mut Terminal<'_>,
) -> Result<(), Failure> {
    let due = text::clock(set.due, terminal.clock.timestamp());
    let mut words = format!("{key}  due {due}  rev {}", set.revision);
    if let Some(state) = set.replaced {
        words.push_str(&format!("  replaced one that was {state}"));
    }
    writeln!(terminal.out, "{}", line(word, &words))?;
    Ok(())
}

/// The headers; the API takes each name once.
pub(super) fn once_each(headers: &[(String, String)]) -> Result<BTreeMap<String, String>, Failure> {
    for (i, (name, _)) in headers.iter().enumerate() {
        let mut before = headers[..i].iter();
        if before.any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return Err(Failure::Usage(format!(
                "--header {name:?} is given twice: a timer has each header once"
            )));
        }
    }
    Ok(headers.iter().cloned().collect())
}

fn idempotency_key(text: &str) -> Result<String, String> {
    let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_printable && (1..=KEY_MAX_BYTES).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "it is 1 to {KEY_MAX_BYTES} printable ASCII characters"
    ))
}

fn plain_text(text: String) -> TimerBody {
    TimerBody::Value(Value::String(text))
}
