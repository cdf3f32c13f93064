//! `countwheel get`.

use std::time::Duration;

use countwheel_time::{Clock, Timestamp};

use super::connection::Connection;
use super::follow::{lateness, line, outcome};
use super::{Exit, Failure, Terminal, repeat, retry, text};
use crate::client::{Timer, TimerAnswer, TimerTarget};

/// How many attempts to come are told.
const NEXT_SHOWN: usize = 5;
/// How many characters of the first line of an answer the sheet has.
const ANSWER_SHOWN: usize = 120;

/// `countwheel get`.
#[derive(Clone, Debug, clap::Args)]
pub struct Get {
    /// The timer's key
    key: String,
    #[command(flatten)]
    connection: Connection,
}

impl Get {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let answer = client.get(&self.connection.queue, &self.key).await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            for line in lines(&answer.value, terminal.clock.timestamp()) {
                writeln!(terminal.out, "{line}")?;
            }
        }
        Ok(Exit::Done)
    }
}

/// Where a timer is delivered.
fn place(target: &TimerTarget) -> String {
    if !target.url.is_empty() {
        return target.url.clone();
    }
    let endpoint = target.endpoint.as_deref().unwrap_or("of the queue");
    let path = target.path.as_deref().unwrap_or_default();
    format!("endpoint {endpoint} {path}").trim_end().to_owned()
}

/// A timer as a sheet, one property a line.
fn lines(timer: &Timer, now: Timestamp) -> Vec<String> {
    let when = |at| format!("{}  {}", text::clock(at, now), text::from_now(at, now));
    let mut state = timer.state.to_string();
    if let Some(reason) = &timer.dead_reason {
        state.push_str(&format!(" ({reason})"));
    }
    if let Some(at) = timer.done_at.or(timer.dead_at) {
        state.push_str(&format!("  since {}", text::clock(at, now)));
    }
    let body = match (&timer.content_type, timer.body_bytes) {
        (_, 0) => "empty".to_owned(),
        (Some(content_type), bytes) => format!("{bytes} bytes of {content_type}"),
        (None, bytes) => format!("{bytes} bytes"),
    };
    let mut lines = vec![
        line("key", &timer.key),
        line("queue", &timer.queue),
        line("id", &timer.id),
        line("state", &state),
        line("due", &when(timer.due)),
        line("created", &when(timer.created)),
        line("revision", &timer.revision.to_string()),
        line("post", &place(&timer.target)),
        line("body", &body),
        line("retry", &retry::describe(&timer.retry)),
    ];
    lines.extend(repeat::describe(&timer.recurring).map(|words| line("again", &words)));
    let headers = timer.target.headers.iter();
    lines.extend(headers.map(|(name, value)| line("header", &format!("{name}: {value}"))));
    for attempt in &timer.attempts {
        let words = format!(
            "{:<14}  {:<13}  at {}",
            outcome(attempt),
            lateness(attempt),
            text::clock(attempt.started, now)
        );
        lines.push(line(&format!("attempt {}", attempt.number), &words));
        if let Some(answer) = &attempt.answer {
            lines.push(line("answer", &said(answer)));
            lines.push(line("took", &phases(answer)));
        }
    }
    for next in timer.next_attempts.iter().take(NEXT_SHOWN) {
        lines.push(line(&format!("next {}", next.attempt), &when(next.at)));
    }
    let more = timer.next_attempts.len().saturating_sub(NEXT_SHOWN);
    if more > 0 {
        lines.push(format!("… and {more} more"));
    }
    lines
}

/// An answer in one line: its status, its length, and its first line. The terminal shows what cannot be
/// seen, and what would act on it, in an escaped form.
fn said(answer: &TimerAnswer) -> String {
    let mut words = match answer.body_bytes {
        0 => format!("{}, empty", answer.status),
        bytes => format!("{}, {}", answer.status, text::count(bytes, "byte", "bytes")),
    };
    if answer.body_base64.is_some() {
        words.push_str(", no text");
    }
    let body = answer.body.as_deref().unwrap_or_default();
    let first = body.lines().find(|line| !line.trim().is_empty());
    if let Some(first) = first {
        let shown: String = first.trim().chars().take(ANSWER_SHOWN).collect();
        let is_all = shown.len() == body.trim().len() && !answer.truncated;
        words.push_str(&format!(": {shown}{}", if is_all { "" } else { " …" }));
    }
    words
}

/// How long the phases of an attempt took, those that there were.
fn phases(answer: &TimerAnswer) -> String {
    let times = answer.times_us;
    let phases = [
        ("resolve", times.resolve),
        ("connect", times.connect),
        ("tls", times.tls),
        ("first byte", Some(times.first_byte)),
    ];
    let phases = phases.into_iter().filter_map(|(name, took)| {
        Some(format!(
            "{name} {}",
            text::span(Duration::from_micros(took?))
        ))
    });
    phases.collect::<Vec<_>>().join(", ")
}
