//! `countwheel stats`.

use super::connection::Connection;
use super::table::Table;
use super::text::{count, moment};
use super::{Exit, Failure, Terminal};
use crate::client::{Client, DueSpan, Figures};
use crate::time::format_time;

/// `countwheel stats`.
#[derive(Clone, Debug, clap::Args)]
pub struct Stats {
    /// Show how many pending timers are due when, in spans of --step
    #[arg(long)]
    due: bool,
    /// How long the spans are at least, in whole seconds: 1s to 366d
    #[arg(long, value_name = "DURATION", default_value = "1h", requires = "due")]
    step: String,
    #[command(flatten)]
    connection: Connection,
}

impl Stats {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        if self.due {
            return self.due(&client, terminal).await;
        }
        let answer = client.figures().await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        figures(&answer.value, terminal)?;
        Ok(Exit::Done)
    }

    /// A page after the other: a line of JSON each, or one table.
    async fn due(&self, client: &Client, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let mut from: Option<String> = None;
        let mut table = Table::new(["FROM", "UNTIL", "TIMERS>"]);
        let mut exact = true;
        let nodes = loop {
            let answer = client
                .due_figures(from.as_deref(), Some(&self.step))
                .await?;
            let due = &answer.value;
            if self.connection.json {
                writeln!(terminal.out, "{}", answer.json())?;
            } else {
                let overdue = due.overdue.filter(|_| from.is_none());
                if let Some(overdue) = overdue {
                    let until = overdue.until.map_or_else(|| NONE.to_owned(), moment);
                    table.push(["overdue".to_owned(), until, overdue.timers.to_string()]);
                }
                due.buckets.iter().map(row).for_each(|it| table.push(it));
                table.write(terminal.out)?;
            }
            exact &= due.exact;
            if due.next.is_none() {
                break due.nodes;
            }
            from = answer.value.next;
        };
        if !self.connection.json {
            unless_exact(exact, nodes, terminal)?;
        }
        Ok(Exit::Done)
    }
}

/// What is written where there is nothing.
const NONE: &str = "-";

fn row(span: &DueSpan) -> [String; 3] {
    let until = span.until.map_or_else(|| NONE.to_owned(), moment);
    [moment(span.from), until, span.timers.to_string()]
}

fn figures(figures: &Figures, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    let out = &mut *terminal.out;
    let timers = figures.timers;
    writeln!(
        out,
        "timers    {} pending, {} delivering, {} done, {} dead, in {}",
        timers.pending,
        timers.delivering,
        timers.done,
        timers.dead,
        count(timers.queues, "queue", "queues"),
    )?;
    if let Some(overdue) = figures.overdue {
        let oldest = overdue.oldest.map(format_time);
        let oldest = oldest.map_or_else(String::new, |oldest| format!(", the oldest of {oldest}"));
        writeln!(out, "overdue   {}{oldest}", overdue.timers)?;
    }
    writeln!(
        out,
        "running   {} in flight, {} leased, {} waiting for limits",
        figures.in_flight, figures.leased, figures.waiting_for_limits
    )?;
    let mut table = Table::new(["DUE FROM", "UNTIL", "TIMERS>"]);
    figures.due.iter().map(row).for_each(|it| table.push(it));
    table.write(out)?;
    unless_exact(figures.exact && timers.exact, figures.nodes, terminal)
}

/// Says so where the figures are too low, or may be of two moments.
fn unless_exact(exact: bool, nodes: u64, terminal: &mut Terminal<'_>) -> Result<(), Failure> {
    if !exact {
        let nodes = count(nodes, "node", "nodes");
        writeln!(
            terminal.out,
            "not exact: {nodes} answered, and not every shard is counted once and to its end"
        )?;
    }
    Ok(())
}
