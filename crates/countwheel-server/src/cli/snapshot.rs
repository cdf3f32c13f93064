//! `countwheel snapshot`.

use std::time::Duration;

use super::connection::Connection;
use super::{Exit, Failure, Terminal};

/// A snapshot may have to copy much.
const TIMEOUT: Duration = Duration::from_secs(3_600);

/// `countwheel snapshot`.
#[derive(Clone, Debug, clap::Args)]
pub struct Snapshot {
    /// What to call it: a new directory below the server's --snapshot-dir
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    connection: Connection,
}

impl Snapshot {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?.with_timeout(TIMEOUT);
        let answer = client.snapshot(&self.name).await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        let made = &answer.value;
        writeln!(
            terminal.out,
            "snapshot {}: commit {}, {} files, {} bytes, {} of them copied",
            made.name, made.commit, made.files, made.bytes, made.copied_bytes
        )?;
        Ok(Exit::Done)
    }
}
