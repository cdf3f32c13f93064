//! `countwheel purge`.

use std::time::Duration;

use countwheel_durable::StateKind;
use countwheel_time::Timestamp;

use super::arguments::time;
use super::connection::Connection;
use super::follow::line;
use super::{Exit, Failure, Terminal, text};
use crate::client::{self, Filter};

/// How often the server is asked how far a purge is.
const POLL: Duration = Duration::from_millis(500);

/// `countwheel purge`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Timers that are being delivered, and those that are set after the answer, stay."
)]
pub struct Purge {
    /// Only those in this state: pending, done, dead; may be said more than once
    #[arg(long)]
    state: Vec<StateKind>,
    /// Only those whose key begins so
    #[arg(long)]
    prefix: Option<String>,
    /// Only those due then or later
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_after: Option<Timestamp>,
    /// Only those due earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_before: Option<Timestamp>,
    /// Show how far it is until it is through
    #[arg(long)]
    watch: bool,
    /// End the purge that runs; what was removed stays removed
    #[arg(long, conflicts_with_all = ["state", "prefix", "due_after", "due_before", "watch"])]
    cancel: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Purge {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let queue = &self.connection.queue;
        let (word, answer) = if self.cancel {
            ("cancelled", client.cancel_purge(queue).await?)
        } else {
            let filter = Filter {
                state: None,
                prefix: self.prefix.clone(),
                due_after: self.due_after,
                due_before: self.due_before,
                tags: Vec::new(),
            };
            ("asked", client.purge(queue, &self.state, &filter).await?)
        };
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            let words = format!("{queue}  {}", words(&answer.value.purge));
            writeln!(terminal.out, "{}", line(word, &words))?;
        }
        if !self.watch {
            return Ok(Exit::Done);
        }
        let id = answer.value.purge.id;
        loop {
            tokio::time::sleep(POLL).await;
            let shown = match client.queue(queue).await {
                Ok(shown) => shown.value.purge,
                // A queue without timers is not there once its purge was cancelled.
                Err(error) if error.problem().is_some_and(|it| it.status == 404) => None,
                Err(error) => return Err(error.into()),
            };
            let Some(purge) = shown.filter(|purge| purge.id == id) else {
                writeln!(terminal.err, "{}", line("ended", "the purge was cancelled"))?;
                return Ok(Exit::Refused);
            };
            let word = match purge.ended {
                None => "purging",
                Some(_) => "purged",
            };
            // What is on standard output is the answer of the server, for the next program.
            writeln!(
                terminal.err,
                "{}",
                line(word, &format!("{queue}  {}", words(&purge)))
            )?;
            if purge.ended.is_some() {
                return Ok(Exit::Done);
            }
        }
    }
}

/// How far a purge is, in words.
pub(super) fn words(purge: &client::Purge) -> String {
    let removed = text::count(purge.removed, "timer", "timers");
    match purge.ended {
        Some(_) => format!("was purged of {removed}"),
        None => {
            let shards = text::count(u64::from(purge.shards_left), "shard", "shards");
            format!("is being purged: {removed} removed, {shards} left")
        }
    }
}
