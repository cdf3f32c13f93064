//! `countwheel fire`.

use super::connection::Connection;
use super::{Exit, Failure, Terminal, move_timer};

/// `countwheel fire`.
#[derive(Clone, Debug, clap::Args)]
pub struct Fire {
    /// The timer's key
    key: String,
    #[command(flatten)]
    connection: Connection,
}

impl Fire {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let answer = client.fire(&self.connection.queue, &self.key).await?;
        move_timer::report(
            "due now",
            &self.key,
            &answer,
            self.connection.json,
            terminal,
        )
    }
}
