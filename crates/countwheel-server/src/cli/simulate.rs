//! `countwheel simulate`.

use std::time::Duration;

use countwheel::Timestamp;

use super::arguments::time;
use super::connection::Connection;
use super::retry::Retry;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::Simulation;

/// `countwheel simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Simulate {
    #[command(flatten)]
    retry: Retry,
    /// When the first attempt is; now if not given
    #[arg(long, value_name = "TIME", value_parser = time)]
    start: Option<Timestamp>,
    /// How many attempts at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    #[command(flatten)]
    connection: Connection,
}

impl Simulate {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        // Left out, the policy is the one that a set without one gets.
        let policy = self.retry.policy()?.unwrap_or_default();
        let answer = client.simulate(&policy, self.start, self.limit).await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        table(&answer.value).write(terminal.out)?;
        writeln!(terminal.out, "{}", total(&answer.value))?;
        Ok(Exit::Done)
    }
}

fn table(simulation: &Simulation) -> Table<5> {
    let jitter = simulation.attempts.iter().any(|one| one.earliest != one.at);
    let earliest = if jitter { "EARLIEST (UTC)" } else { "" };
    let mut table = Table::new(["ATTEMPT>", "TIME (UTC)", "DELAY>", "SINCE FIRST>", earliest]);
    for one in &simulation.attempts {
        let millis = |ms| text::span(Duration::from_millis(ms));
        table.push([
            one.attempt.to_string(),
            text::moment(one.at),
            if one.attempt == 1 {
                "-".to_owned()
            } else {
                millis(one.delay_ms)
            },
            if one.attempt == 1 {
                "-".to_owned()
            } else {
                millis(one.after_ms)
            },
            if jitter {
                text::moment(one.earliest)
            } else {
                String::new()
            },
        ]);
    }
    table
}

fn total(simulation: &Simulation) -> String {
    let attempts = u64::try_from(simulation.attempts.len()).unwrap_or(u64::MAX);
    let attempts = text::count(attempts, "attempt", "attempts");
    let total = text::span(Duration::from_millis(simulation.total_ms));
    let then = match &simulation.then {
        Some(state) => format!("then {state}"),
        None => "and more would follow".to_owned(),
    };
    format!("total {total}: {attempts}, {then}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_simulation_is_a_table_with_its_total() {
        let simulation: Simulation = serde_json::from_value(json!({
            "attempts": [
                {"attempt": 1, "at": "2026-03-01T12:00:00.000000Z",
                 "earliest": "2026-03-01T12:00:00.000000Z", "delay_ms": 0, "after_ms": 0},
                {"attempt": 2, "at": "2026-03-02T12:04:00.000000Z",
                 "earliest": "2026-03-02T12:04:00.000000Z",
                 "delay_ms": 86_640_000, "after_ms": 86_640_000}],
            "total_ms": 86_640_000, "truncated": false, "then": "dead"
        }))
        .unwrap();
        let mut out = Vec::new();
        table(&simulation).write(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ATTEMPT  TIME (UTC)                    DELAY  SINCE FIRST\n\
             \x20     1  2026-03-01 12:00:00.000           -            -\n\
             \x20     2  2026-03-02 12:04:00.000  24 h 4 min   24 h 4 min\n"
        );
        assert_eq!(
            total(&simulation),
            "total 24 h 4 min: 2 attempts, then dead"
        );
    }
}
