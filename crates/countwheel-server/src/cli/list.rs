//! `countwheel list`.

use countwheel_durable::StateKind;
use countwheel_time::{Clock, Timestamp};

use super::arguments::time;
use super::connection::Connection;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::{Filter, Timer, one_line};

/// The longest page that the server gives.
const PAGE: u32 = 1_000;

/// `countwheel list`.
#[derive(Clone, Debug, clap::Args)]
pub struct List {
    /// Only those in this state: pending, delivering, done, dead
    #[arg(long)]
    state: Option<StateKind>,
    /// Only those whose key begins so
    #[arg(long)]
    prefix: Option<String>,
    /// Only those due then or later
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_after: Option<Timestamp>,
    /// Only those due earlier
    #[arg(long, value_name = "TIME", value_parser = time)]
    due_before: Option<Timestamp>,
    /// Only those with this tag; said more than once, with all of them
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// All there are
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Those of all queues
    #[arg(long)]
    all_queues: bool,
    /// Those of all queues whose name begins so
    #[arg(long, value_name = "PREFIX")]
    queue_prefix: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl List {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let filter = Filter {
            state: self.state,
            prefix: self.prefix.clone(),
            due_after: self.due_after,
            due_before: self.due_before,
            tags: self.tags.clone(),
        };
        let mut left = if self.all { u32::MAX } else { self.limit };
        let (mut cursor, mut unreadable) = (None, 0);
        let is_of_all = self.all_queues || self.queue_prefix.is_some();
        let mut table = Table::new(["KEY", "STATE", "DUE (UTC)", "FROM NOW", "ATTEMPT>", "REV>"]);
        while left > 0 {
            let queue = &self.connection.queue;
            let (limit, after) = (left.min(PAGE), cursor.as_deref());
            let page = if is_of_all {
                let prefix = self.queue_prefix.as_deref();
                client.list_all(prefix, &filter, limit, after).await?.value
            } else {
                client.list(queue, &filter, limit, after).await?.value
            };
            if self.connection.json {
                for item in &page.items {
                    writeln!(terminal.out, "{}", one_line(item))?;
                }
            } else {
                let now = terminal.clock.timestamp();
                for timer in page.timers()? {
                    table.push(row(timer, now, is_of_all));
                }
                table.write(terminal.out)?;
            }
            unreadable += page.unreadable;
            let shown = u32::try_from(page.items.len()).unwrap_or(u32::MAX);
            left = if self.all {
                left
            } else {
                left.saturating_sub(shown)
            };
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if unreadable > 0 {
            writeln!(terminal.err, "{unreadable} timers cannot be read")?;
        }
        if cursor.is_none() {
            return Ok(Exit::Done);
        }
        if !self.connection.json {
            writeln!(terminal.err, "there may be more: --all shows them")?;
        }
        Ok(Exit::Done)
    }
}

/// Of several queues, the name of the timer is its queue and its key.
fn row(timer: Timer, now: Timestamp, has_queue: bool) -> [String; 6] {
    let name = match has_queue {
        true => format!("{}/{}", timer.queue, timer.key),
        false => timer.key,
    };
    [
        name,
        timer.state.to_string(),
        text::moment(timer.due),
        text::from_now(timer.due, now),
        timer.attempt.to_string(),
        timer.revision.to_string(),
    ]
}
