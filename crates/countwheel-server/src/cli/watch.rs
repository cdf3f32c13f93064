//! `countwheel watch`: follows one timer. It asks for the timer when an event is about it.

use std::time::Duration;

use countwheel_time::{Clock, Instant};

use super::arguments::duration;
use super::connection::Connection;
use super::follow::{Follower, line};
use super::{Exit, Failure, Terminal, text};
use crate::client::Client;
use crate::client::events::{Event, EventFilter, EventStream};

/// How often a server is asked that is away, or tells no events.
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
    let mut listening = Listening::new(&connection.queue, key);
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
        let left = end.map(|end| end.saturating_since(now));
        listening.wait(&client, left).await;
    }
}

/// Hears when something has happened to a timer.
struct Listening<'a> {
    key: &'a str,
    filter: EventFilter,
    stream: Option<EventStream>,
    /// The server has no streams, or none for this caller.
    is_refused: bool,
}

impl<'a> Listening<'a> {
    fn new(queue: &str, key: &'a str) -> Self {
        Self {
            key,
            filter: EventFilter {
                queue: Some(queue.to_owned()),
                prefix: Some(key.to_owned()),
                ..EventFilter::default()
            },
            stream: None,
            is_refused: false,
        }
    }

    /// Returns when it is worth while to look at the timer again.
    async fn wait(&mut self, client: &Client, left: Option<Duration>) {
        let waited = async {
            if self.stream.is_none() && !self.is_refused {
                match client.listen(&self.filter, None).await {
                    Ok(stream) => {
                        self.stream = Some(stream);
                        // What happened until now was not heard.
                        return;
                    }
                    Err(error) => self.is_refused = !error.is_outage(),
                }
            }
            let Some(stream) = &mut self.stream else {
                tokio::time::sleep(POLL).await;
                return;
            };
            loop {
                match stream.next().await {
                    Ok(Some(event)) if event.is_gap() || is_about(&event, self.key) => {
                        return;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => {
                        self.stream = None;
                        tokio::time::sleep(POLL).await;
                        return;
                    }
                }
            }
        };
        match left {
            // If that is up, the timer is looked at once more.
            Some(left) => drop(tokio::time::timeout(left, waited).await),
            None => waited.await,
        }
    }
}

/// Whether the event is about the timer of this key.
fn is_about(event: &Event, key: &str) -> bool {
    let data = event.read::<serde_json::Value>();
    data.is_ok_and(|data| data["key"] == key)
}
