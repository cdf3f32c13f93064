//! `countwheel backfill`.

use countwheel_time::Timestamp;

use super::arguments::time;
use super::connection::Connection;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::Backfilled;

/// `countwheel backfill`.
#[derive(Clone, Debug, clap::Args)]
pub struct Backfill {
    /// The timer's key
    key: String,
    /// The first nominal time, with an offset: 2026-03-01T12:00:05Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Timestamp,
    /// The last one, in the past
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Timestamp,
    /// How many at most, up to 1000; the first ones are made if there are more
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Show what would be made, and make nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Backfill {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        let (queue, range) = (&self.connection.queue, (self.from, self.until));
        let answer = client
            .backfill(queue, &self.key, range, self.limit, self.dry_run)
            .await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        table(&answer.value).write(terminal.out)?;
        writeln!(terminal.out, "{}", total(&answer.value))?;
        Ok(Exit::Done)
    }
}

fn table(found: &Backfilled) -> Table<3> {
    let mut table = Table::new(["KEY", "NOMINAL (UTC)", "RESULT"]);
    for run in &found.runs {
        let nominal = text::moment(run.nominal);
        table.push([run.key.clone(), nominal, run.result.clone()]);
    }
    table
}

fn total(found: &Backfilled) -> String {
    let new = u64::try_from(found.runs.len()).unwrap_or(u64::MAX);
    let new = new.saturating_sub(found.existing);
    let verb = if found.dry_run { "to make" } else { "made" };
    let runs = text::count(new, "run", "runs");
    let existing = found.existing;
    match found.next {
        None => format!("{runs} {verb}, {existing} existed"),
        Some(next) => {
            let next = text::moment(next);
            format!("{runs} {verb}, {existing} existed; more from {next} on")
        }
    }
}
