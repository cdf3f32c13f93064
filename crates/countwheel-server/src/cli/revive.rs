//! `countwheel revive`.

use std::time::Duration;

use countwheel_durable::Due;
use countwheel_time::Timestamp;

use super::arguments::{duration, time};
use super::connection::Connection;
use super::{Exit, Failure, Terminal, move_timer};

/// `countwheel revive`.
#[derive(Clone, Debug, clap::Args)]
pub struct Revive {
    /// The timer's key
    key: String,
    /// How long from now; now if neither is given
    #[arg(long = "in", value_name = "D", value_parser = duration,
          allow_hyphen_values = true, conflicts_with = "at")]
    delay: Option<Duration>,
    /// When, with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    #[command(flatten)]
    connection: Connection,
}

impl Revive {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let due = self.at.map(Due::At).or(self.delay.map(Due::In));
        let client = self.connection.client()?;
        let answer = client
            .revive(&self.connection.queue, &self.key, due)
            .await?;
        move_timer::report(
            "revived",
            &self.key,
            &answer,
            self.connection.json,
            terminal,
        )
    }
}
