//! `countwheel move`.

use countwheel_durable::{Due, Shift};
use countwheel_time::{Clock, Timestamp};

use super::arguments::{By, IfRevision, duration, signed, time};
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
    fn shift(&self) -> Shift {
        match (self.by, self.at, self.delay) {
            (Some(By(true, span)), ..) => Shift::Sooner(span),
            (Some(By(false, span)), ..) => Shift::Later(span),
            (None, Some(at), _) => Shift::To(Due::At(at)),
            (None, None, delay) => Shift::To(Due::In(delay.unwrap_or_default())),
        }
    }
}

impl Move {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let (queue, precondition) = (&self.connection.queue, self.if_revision.precondition());
        let answer = client
            .shift(queue, &self.key, self.to.shift(), precondition)
            .await?;
        report("moved", &self.key, &answer, self.connection.json, terminal)
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
