//! `countwheel move`.

use countwheel_durable::Due;
use countwheel_time::{By, Clock, Timestamp};

use super::arguments::{IfRevision, duration, signed, time};
use super::connection::Connection;
use super::follow::line;
use super::{Exit, Failure, Terminal, text};
use crate::client::{Answer, TimerMoved};

/// `countwheel move`.
#[derive(Clone, Debug, clap::Args)]
pub struct Move {
    /// The timer's key
    key: String,
    #[command(flatten)]
    to: To,
    #[command(flatten)]
    if_revision: IfRevision,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct To {
    /// How long from now
    #[arg(long = "in", value_name = "D", value_parser = duration, allow_hyphen_values = true)]
    delay: Option<std::time::Duration>,
    /// When, with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// Later than its deadline now, or sooner: 5m, -5m
    #[arg(long, value_name = "D", value_parser = signed, allow_hyphen_values = true)]
    by: Option<By>,
}

impl To {
    /// The deadline, unless the move is by so much.
    fn due(&self) -> Due {
        self.at
            .map_or(Due::In(self.delay.unwrap_or_default()), Due::At)
    }
}

impl Move {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let (queue, precondition) = (&self.connection.queue, self.if_revision.precondition());
        let key = &self.key;
        let answer = match self.to.by {
            Some(by) => client.move_by(queue, key, by, precondition).await?,
            None => {
                client
                    .move_to(queue, key, self.to.due(), precondition)
                    .await?
            }
        };
        report("moved", key, &answer, self.connection.json, terminal)
    }
}

/// Says where a timer went.
pub(super) fn report(
    word: &str,
    key: &str,
    answer: &Answer<TimerMoved>,
    json: bool,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, Failure> {
    if json {
        writeln!(terminal.out, "{}", answer.json())?;
        return Ok(Exit::Done);
    }
    let moved = &answer.value;
    let clock = |at| text::clock(at, terminal.clock.timestamp());
    let (due, old) = (clock(moved.due), clock(moved.old_due));
    let words = format!("{key}  due {due}  rev {}  was {old}", moved.revision);
    writeln!(terminal.out, "{}", line(word, &words))?;
    Ok(Exit::Done)
}
