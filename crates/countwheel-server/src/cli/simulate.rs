//! `countwheel simulate`: counted out here, without a server.

use std::time::Duration;

use countwheel_time::{Clock, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::arguments::{When, time};
use super::repeat::Repeat;
use super::retry::Retry;
use super::table::Table;
use super::{Exit, Failure, Terminal, text};
use crate::api::simulate;
use crate::client::{self, Answer, ClientError, FieldError, Problem, SimulatedRuns, Simulation};

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
    /// Print what a server would answer, as JSON on one line
    #[arg(long)]
    json: bool,
}

impl Simulate {
    pub(super) fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        if self.repeat.is_given() {
            return self.simulate_runs(terminal);
        }
        if self.when.due().is_some() {
            let start = "--in and --at are for schedules; the first attempt is at --start";
            return Err(Failure::Usage(start.to_owned()));
        }
        // Left out, the policy is the one that a set without one gets.
        let policy = self.retry.policy()?.unwrap_or_default();
        let asked = client::simulation(&policy, self.start, self.limit)?;
        let answer: Answer<Simulation> = simulate_here(&asked, terminal.clock.timestamp())?;
        if self.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        table(&answer.value).write(terminal.out)?;
        writeln!(terminal.out, "{}", total(&answer.value))?;
        Ok(Exit::Done)
    }

    fn simulate_runs(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let (due, Some(recurrence)) = self.repeat.schedule(self.when.due())? else {
            return Err(Failure::Usage("a schedule is needed".to_owned()));
        };
        if self.retry.policy()?.is_some() {
            let both = "either a retry policy or a schedule can be simulated";
            return Err(Failure::Usage(both.to_owned()));
        }
        let asked = client::runs_simulation(due, &recurrence, self.start, self.limit);
        let answer: Answer<SimulatedRuns> = simulate_here(&asked, terminal.clock.timestamp())?;
        if self.json {
            writeln!(terminal.out, "{}", answer.json())?;
            return Ok(Exit::Done);
        }
        runs_table(&answer.value).write(terminal.out)?;
        writeln!(terminal.out, "{}", runs_total(&answer.value))?;
        Ok(Exit::Done)
    }
}

/// What a server would answer `now` to a simulation with this body, without one.
fn simulate_here<T: DeserializeOwned>(
    body: &Value,
    now: Timestamp,
) -> Result<Answer<T>, ClientError> {
    let unreadable = |source| ClientError::Unintelligible {
        status: 200,
        source,
    };
    let answer = simulate::answer_to(body.to_string().as_bytes(), now).map_err(|problem| {
        let (status, _, detail) = problem.parts();
        let fault = problem.pointer().map(|pointer| FieldError {
            pointer: pointer.to_owned(),
            detail: detail.to_owned(),
        });
        ClientError::Refused(Box::new(Problem {
            status: status.as_u16(),
            code: problem.code().to_owned(),
            detail: detail.to_owned(),
            errors: fault.into_iter().collect(),
            ..Problem::default()
        }))
    })?;
    let bytes = serde_json::to_vec(&answer).map_err(unreadable)?;
    Answer::read(&bytes).map_err(unreadable)
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

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        simulate: Simulate,
    }

    /// What the command prints, or why it fails.
    fn run(arguments: &str) -> Result<String, String> {
        let words = std::iter::once("simulate").chain(arguments.split(' '));
        let line =
            <Line as clap::Parser>::try_parse_from(words).map_err(|error| error.to_string())?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut terminal = Terminal {
            out: &mut out,
            err: &mut err,
            clock: countwheel_time::SystemClock::new(),
        };
        let run = line.simulate.run(&mut terminal);
        run.map_err(|failure| failure.to_string())?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_policy_is_simulated_without_a_server() {
        let start = "--start 2026-03-01T12:00:00Z";
        for (policy, total) in [
            ("wechat", "total 24 h 4 min: 16 attempts, then dead"),
            ("dubbo", "total 15 s: 4 attempts, then dead"),
            (
                "dubbo-registry --limit 3",
                "total 10 s: 3 attempts, and more would follow",
            ),
            (
                "eureka --limit 4",
                "total 3 min 30 s: 4 attempts, and more would follow",
            ),
            ("go-zero", "total 1 h 6 min: 6 attempts, then dead"),
            (
                "linear:3s+5s --max-attempts 3",
                "total 11 s: 3 attempts, then dead",
            ),
            ("15s,15s,30s,3m", "total 4 min: 5 attempts, then dead"),
        ] {
            let out = run(&format!("--retry {policy} {start}")).unwrap();
            assert_eq!(out.lines().last(), Some(total), "{policy}");
        }
        let json = run(&format!("--retry fixed:1s --limit 2 --json {start}")).unwrap();
        let at = |seconds| format!("2026-03-01T12:00:0{seconds}.000000Z");
        let attempt = |attempt: u64, millis: u64| {
            json!({"attempt": attempt, "at": at(millis / 1_000), "earliest": at(millis / 1_000),
                   "delay_ms": millis, "after_ms": millis})
        };
        let expected = json!({"attempts": [attempt(1, 0), attempt(2, 1_000)], "total_ms": 1_000,
                              "truncated": true, "then": null});
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), expected);
        let runs = run("--every 1h --repeats 3 --start 2026-03-01T12:00:00Z").unwrap();
        assert_eq!(runs.lines().last(), Some("3 runs, then done"));
        let start = run("--retry wechat").unwrap();
        assert_eq!(start.lines().count(), 18, "from now, if no start is given");
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_as_a_server_would() {
        for (arguments, reason) in [
            (
                "--retry fixed:0s",
                "a retry delay is from 1 ms to 365 days, not 0ns (invalid_retry)",
            ),
            (
                "--retry wechat --limit 0",
                "must be a whole number from 1 to 10000 (malformed)",
            ),
            ("--retry wechat --in 5s", "--in and --at are for schedules"),
            (
                "--retry wechta",
                "\"wechta\" is none of dubbo, dubbo-registry, eureka,",
            ),
        ] {
            let refused = run(arguments).unwrap_err();
            assert!(refused.contains(reason), "{arguments}: {refused}");
        }
    }

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
