//! `countwheel runs`.

use countwheel_time::Timestamp;

use super::arguments::time;
use super::connection::Connection;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::TimerRuns;

/// `countwheel runs`.
#[derive(Clone, Debug, clap::Args)]
pub struct Runs {
    /// The timer's key
    key: String,
    /// How many at most, up to 1000
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
    /// Those after this nominal time, with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    after: Option<Timestamp>,
    #[command(flatten)]
    connection: Connection,
}

impl Runs {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let queue = &self.connection.queue;
        let answer = client
            .runs(queue, &self.key, self.limit, self.after)
            .await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
        } else {
            table(&answer.value).write(terminal.out)?;
        }
        Ok(Exit::Done)
    }
}

fn table(found: &TimerRuns) -> Table<3> {
    let has_jitter = found.runs.iter().any(|run| run.due != run.nominal);
    let has_local = found.runs.iter().any(|run| run.local.is_some());
    let title = |has, title| if has { title } else { "" };
    let mut table = Table::new([
        "NOMINAL (UTC)",
        title(has_local, "LOCAL"),
        title(has_jitter, "DUE (UTC)"),
    ]);
    for run in &found.runs {
        let due = has_jitter.then(|| text::moment(run.due));
        table.push([
            text::moment(run.nominal),
            run.local.clone().unwrap_or_default(),
            due.unwrap_or_default(),
        ]);
    }
    table
}
