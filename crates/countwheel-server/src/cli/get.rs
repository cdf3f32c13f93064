//! `countwheel get`.

use countwheel_time::{Clock, Timestamp};

use super::connection::Connection;
use super::follow::{lateness, line, outcome};
use super::{Exit, Failure, Terminal, repeat, retry, text};
use crate::client::{Timer, TimerTarget};

/// How many attempts to come are told.
const NEXT_SHOWN: usize = 5;

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
