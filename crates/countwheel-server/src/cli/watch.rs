//! `countwheel watch`: follows one timer by asking again and again.

use std::time::Duration;

use countwheel_time::{Clock, Instant};

use super::arguments::duration;
use super::connection::Connection;
use super::follow::{Follower, line};
use super::{Exit, Failure, Terminal, text};

/// How often the server is asked.
const POLL: Duration = Duration::from_millis(100);

/// `countwheel watch`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 if the timer is done, 1 if it is dead, 2 if there is \
                        none or it was removed, 124 if --timeout ran out."
)]
pub struct Watch {
    /// The timer's key
    key: String,
    /// Give up after this long
    #[arg(long, value_name = "D", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

impl Watch {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let mut follower = Follower::default();
        follow(
            &self.connection,
            &self.key,
            &mut follower,
            self.timeout,
            terminal,
        )
        .await
    }
}

/// Prints what happens to a timer until nothing more can. A server that is away is waited
/// for, unless it never was there.
pub(super) async fn follow(
    connection: &Connection,
    key: &str,
    follower: &mut Follower,
    timeout: Option<Duration>,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, Failure> {
    let client = connection.client()?;
    let end = timeout.map(|timeout| terminal.clock.now() + timeout);
    let mut away_since: Option<Instant> = None;
    let mut seen = follower.has_seen();
    loop {
        match client.get(&connection.queue, key).await {
            Ok(answer) => {
                seen = true;
                if let Some(since) = away_since.take() {
                    let away = text::span(terminal.clock.now().saturating_since(since));
                    writeln!(terminal.err, "countwheel: the server is back after {away}")?;
                }
                let now = terminal.clock.timestamp();
                let lines = follower.see(&answer.value, now);
                if connection.json && !lines.is_empty() {
                    writeln!(terminal.out, "{}", answer.json())?;
                } else {
                    for line in lines {
                        writeln!(terminal.out, "{line}")?;
                    }
                }
                if let Some(exit) = Follower::end(&answer.value) {
                    return Ok(exit);
                }
            }
            Err(error) if seen && error.is_outage() => {
                if away_since.is_none() {
                    away_since = Some(terminal.clock.now());
                    writeln!(terminal.err, "countwheel: {error}; waiting for it")?;
                }
            }
            Err(error) if seen && error.problem().is_some_and(|p| p.status == 404) => {
                if !connection.json {
                    writeln!(terminal.out, "{}", line("removed", key))?;
                }
                return Ok(Exit::NotFound);
            }
            Err(error) => return Err(error.into()),
        }
        let now = terminal.clock.now();
        if end.is_some_and(|end| now >= end) {
            writeln!(terminal.err, "countwheel: {key} is not done yet")?;
            return Ok(Exit::OutOfTime);
        }
        let pause = end.map_or(POLL, |end| end.saturating_since(now).min(POLL));
        tokio::time::sleep(pause).await;
    }
}
