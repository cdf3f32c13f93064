//! `countwheel simulate`.

use std::time::Duration;

use countwheel_time::Timestamp;

use super::arguments::{When, time};
use super::connection::Connection;
use super::repeat::Repeat;
use super::retry::Retry;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::client::{Client, SimulatedRuns, Simulation};

/// `countwheel simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Simulate {
    #[command(flatten)]
    retry: Retry,
    #[command(flatten)]
    repeat: Repeat,
    #[command(flatten)]
    when: When,
    /// When the first attempt is, or when the schedule is set; now if not given
    #[arg(long, value_name = "TIME", value_parser = time)]
    start: Option<Timestamp>,
    /// How many attempts or runs at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    #[command(flatten)]
    connection: Connection,
}

impl Simulate {
    pub(super) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.connection.client()?;
        if self.repeat.is_given() {
            return self.simulate_runs(&client, terminal).await;
        }
        if self.when.due().is_some() {
            let start = "--in and --at are for schedules; the first attempt is at --start";
            return Err(Failure::Usage(start.to_owned()));
        }
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

    async fn simulate_runs(
        &self,
        client: &Client,
        terminal: &mut Terminal<'_>,
    ) -> Result<Exit, Failure> {
        let (due, Some(recurrence)) = self.repeat.schedule(self.when.due())? else {
            return Err(Failure::Usage("a schedule is needed".to_owned()));
        };
        if self.retry.policy()?.is_some() {
            let both = "either a retry policy or a schedule can be simulated";
            return Err(Failure::Usage(both.to_owned()));
        }
        let answer = client
            .simulate_runs(due, &recurrence, self.start, self.limit)
            .await?;
        if self.connection.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        runs_table(&answer.value).write(terminal.out)?;
        writeln!(terminal.out, "{}", runs_total(&answer.value))?;
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

fn runs_table(simulation: &SimulatedRuns) -> Table<4> {
    let runs = &simulation.runs;
    let jitter = runs.iter().any(|run| run.latest != run.at);
    let local = runs.iter().any(|run| run.local.is_some());
    let mut table = Table::new([
        "RUN>",
        "TIME (UTC)",
        if local { "LOCAL" } else { "" },
        if jitter { "LATEST (UTC)" } else { "" },
    ]);
    for run in runs {
        let latest = if jitter {
            text::moment(run.latest)
        } else {
            String::new()
        };
        let local = run.local.clone().unwrap_or_default();
        table.push([run.run.to_string(), text::moment(run.at), local, latest]);
    }
    table
}

fn runs_total(simulation: &SimulatedRuns) -> String {
    let runs = u64::try_from(simulation.runs.len()).unwrap_or(u64::MAX);
    let runs = text::count(runs, "run", "runs");
    match &simulation.then {
        Some(state) => format!("{runs}, then {state}"),
        None => format!("{runs}, and more would follow"),
    }
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
    fn the_runs_of_a_schedule_are_a_table_in_both_times() {
        let mut simulation: SimulatedRuns = serde_json::from_value(json!({
            "runs": [
                {"run": 1, "at": "2026-03-28T01:30:00.000000Z",
                 "latest": "2026-03-28T01:30:00.000000Z",
                 "local": "2026-03-28T02:30:00+01:00[Europe/Berlin]"},
                {"run": 2, "at": "2026-03-29T01:00:00.000000Z",
                 "latest": "2026-03-29T01:00:00.000000Z",
                 "local": "2026-03-29T03:00:00+02:00[Europe/Berlin]"}],
            "truncated": true, "then": null
        }))
        .unwrap();
        let mut out = Vec::new();
        runs_table(&simulation).write(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "RUN  TIME (UTC)               LOCAL\n\
             \x20 1  2026-03-28 01:30:00.000  2026-03-28T02:30:00+01:00[Europe/Berlin]\n\
             \x20 2  2026-03-29 01:00:00.000  2026-03-29T03:00:00+02:00[Europe/Berlin]\n"
        );
        assert_eq!(runs_total(&simulation), "2 runs, and more would follow");
        simulation.then = Some("done".to_owned());
        assert_eq!(runs_total(&simulation), "2 runs, then done");
    }

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
