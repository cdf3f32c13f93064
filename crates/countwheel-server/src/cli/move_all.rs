//! `countwheel move-to`.

use std::path::PathBuf;
use std::time::Duration;

use super::connection::Connection;
use super::text::span;
use super::{Exit, Failure, Terminal};
use crate::client::{MoveProgress, MoveTarget};
use crate::config::StoreUrl;

/// The beginning may have to remove what an earlier move has left.
const TIMEOUT: Duration = Duration::from_secs(70);
/// Between two looks at how far it has come.
const PAUSE: Duration = Duration::from_millis(200);

/// `countwheel move-to`.
#[derive(Clone, Debug, clap::Args)]
pub struct MoveTo {
    /// The PostgreSQL of the cluster, postgres://user:password@host:5432/database: as the service
    /// reaches it
    #[arg(value_name = "URL", env = "COUNTWHEEL_STORE", hide_env_values = true)]
    store: StoreUrl,
    /// The schema with the tables in the database
    #[arg(long, value_name = "NAME", default_value = "countwheel")]
    schema: String,
    /// Certificates (PEM) that the database's has to come from, a file on the service's machine: the
    /// connection has TLS then
    #[arg(long, value_name = "FILE")]
    store_ca: Option<PathBuf>,
    /// Also move to a database with which acknowledged timers may be lost, such as one with fsync off
    #[arg(long)]
    accept_loss: bool,
    #[command(flatten)]
    connection: Connection,
}

impl MoveTo {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let target = MoveTarget {
            store: self.store.as_str().to_owned(),
            schema: self.schema.clone(),
            store_ca: self.store_ca.as_ref().map(|it| it.display().to_string()),
            accept_loss: self.accept_loss,
        };
        let client = self.connection.client()?.with_timeout(TIMEOUT);
        let mut answer = client.begin_move(&target).await?;
        let mut shown = String::new();
        loop {
            let progress = &answer.value;
            let is_over = progress.is_moved() || progress.is_given_up();
            // One line for each state: who wants more asks for it as JSON.
            if std::mem::replace(&mut shown, progress.state.clone()) != progress.state {
                match self.connection.json {
                    true => writeln!(terminal.out, "{}", answer.json())?,
                    false => writeln!(terminal.out, "{}", line(progress))?,
                }
            }
            if is_over {
                return Ok(match progress.is_moved() {
                    true => Exit::Done,
                    false => Exit::Refused,
                });
            }
            tokio::time::sleep(PAUSE).await;
            answer = client.move_progress().await?;
        }
    }
}

fn line(progress: &MoveProgress) -> String {
    let took = span(Duration::from_millis(progress.took_ms));
    let (copied, left) = (progress.copied, progress.left);
    let target = progress.target.as_deref().unwrap_or("the cluster");
    let held = progress.held_ms.map_or_else(String::new, |held| {
        format!(", requests waited for {held} ms")
    });
    let reason = progress.reason.as_deref().unwrap_or("no reason is known");
    match progress.state.as_str() {
        "copying" => format!("copying to {target}"),
        "following" => {
            format!("following: {copied} timers written in {took}, {left} changed since")
        }
        "holding" => "holding requests".to_owned(),
        "taking" => "the timers are in the cluster, whose nodes take the shards".to_owned(),
        "moved" => {
            let waits = progress.reason.as_deref();
            let waits = waits.map_or_else(String::new, |why| format!("; {why}"));
            format!("moved: {copied} timers written in {took}{held}{waits}")
        }
        "given_up" => format!("given up after {took}: {reason}"),
        other => other.to_owned(),
    }
}
