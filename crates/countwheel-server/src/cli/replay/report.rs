//! The results of a replay.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use countwheel_time::Timestamp;
use serde::Serialize;

use super::perform::{Acknowledgement, OperationResult};
use super::plan::OperationKind;
use crate::cli::text;

/// What a replay came to: how many operations ended how, and how late they were asked.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The replay's name, which its timers carry in the header `replay-run`. The header
    /// `replay-line` has the number of the line that set the timer.
    pub run: String,
    /// When it began, in microseconds since 1970.
    pub started_us: u64,
    /// How long it took.
    pub seconds: f64,
    /// How many operations were acknowledged.
    pub acknowledged: u64,
    /// How many of which kind ended how.
    pub operations: BTreeMap<OperationKind, BTreeMap<OperationResult, u64>>,
    /// How often an operation was asked again.
    pub retries: u64,
    /// How late operations were first asked.
    pub lag: Lag,
    /// Whether it was stopped before its end. Operations under way are not counted.
    pub stopped: bool,
    /// The first few refusals.
    pub refusals: Vec<String>,
}

/// How late operations were first asked, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Lag {
    /// The median.
    pub p50_us: u64,
    /// Ninety-nine of a hundred were no later.
    pub p99_us: u64,
    /// The latest.
    pub max_us: u64,
}

impl Report {
    /// How many operations ended so.
    #[must_use]
    pub fn count(&self, result: OperationResult) -> u64 {
        let of_kind = |counts: &BTreeMap<OperationResult, u64>| counts.get(&result).copied();
        self.operations.values().filter_map(of_kind).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = Duration::from_secs_f64(self.seconds);
        let stopped = if self.stopped {
            ", stopped before its end"
        } else {
            ""
        };
        let all = text::count(self.acknowledged, "operation", "operations");
        #[expect(clippy::cast_precision_loss, reason = "a rate, shown in whole numbers")]
        let rate = self.acknowledged as f64 / self.seconds.max(1e-6);
        writeln!(f, "run      {}", self.run)?;
        writeln!(
            f,
            "done     {all} in {}, {rate:.0}/s{stopped}",
            text::span(took)
        )?;
        for (kind, results) in &self.operations {
            let name = match kind {
                OperationKind::Set => "set",
                OperationKind::Move => "move",
                OperationKind::Remove => "remove",
            };
            let words: Vec<_> = results
                .iter()
                .map(|(result, count)| format!("{count} {}", word(*result)))
                .collect();
            writeln!(f, "{name:<7}  {}", words.join(", "))?;
        }
        writeln!(f, "retries  {}", self.retries)?;
        let micros = |us| text::span(Duration::from_micros(us));
        let Lag {
            p50_us,
            p99_us,
            max_us,
        } = self.lag;
        let (p50, p99, max) = (micros(p50_us), micros(p99_us), micros(max_us));
        write!(f, "lag      p50 {p50}, p99 {p99}, max {max}")?;
        for refusal in &self.refusals {
            write!(f, "\nrefused  {refusal}")?;
        }
        Ok(())
    }
}

fn word(result: OperationResult) -> &'static str {
    match result {
        OperationResult::Ok => "ok",
        OperationResult::Found => "found done",
        OperationResult::Replaced => "ok in place of another",
        OperationResult::TooLate => "too late",
        OperationResult::Unclear => "unclear",
        OperationResult::Refused => "refused",
    }
}

/// Counts acknowledgements. Four bytes for each, so that percentiles are exact: three
/// megabytes for 800,000 operations.
#[derive(Debug, Default)]
pub(super) struct Tally {
    operations: BTreeMap<OperationKind, BTreeMap<OperationResult, u64>>,
    lags_us: Vec<u32>,
    refusals: Vec<String>,
}

impl Tally {
    /// How many refusals are told in full.
    const REFUSALS: usize = 5;

    pub(super) fn add(&mut self, acknowledged: &Acknowledgement) {
        let results = self.operations.entry(acknowledged.op).or_default();
        *results.entry(acknowledged.result).or_default() += 1;
        let lag = u32::try_from(acknowledged.lag_us).unwrap_or(u32::MAX);
        self.lags_us.push(lag);
        if let Some(detail) = &acknowledged.detail
            && self.refusals.len() < Self::REFUSALS
        {
            let Acknowledgement { line, key, .. } = acknowledged;
            self.refusals.push(format!("line {line}, {key}: {detail}"));
        }
    }

    pub(super) fn acknowledged(&self) -> u64 {
        u64::try_from(self.lags_us.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn report(
        mut self,
        run: &str,
        started: Timestamp,
        took: Duration,
        retries: u64,
        stopped: bool,
    ) -> Report {
        let acknowledged = self.acknowledged();
        self.lags_us.sort_unstable();
        let rank = |percent: usize| {
            let place = (self.lags_us.len() * percent).div_ceil(100);
            let lag = self.lags_us.get(place.saturating_sub(1));
            u64::from(lag.copied().unwrap_or(0))
        };
        Report {
            run: run.to_owned(),
            started_us: started.as_micros(),
            seconds: took.as_secs_f64(),
            acknowledged,
            lag: Lag {
                p50_us: rank(50),
                p99_us: rank(99),
                max_us: rank(100),
            },
            operations: self.operations,
            retries,
            stopped,
            refusals: self.refusals,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(lag_us: u64, result: OperationResult) -> Acknowledgement {
        Acknowledgement {
            line: 7,
            queue: "default".to_owned(),
            key: "a".to_owned(),
            op: OperationKind::Set,
            at_us: None,
            planned_us: 0,
            sent_us: 0,
            acked_us: 0,
            result,
            id: None,
            revision: None,
            due_us: None,
            was: None,
            tries: 1,
            lag_us,
            detail: (result == OperationResult::Refused).then(|| "no".to_owned()),
        }
    }

    #[test]
    fn a_report_counts_and_ranks() {
        let mut tally = Tally::default();
        for lag in (1..=200).rev() {
            tally.add(&acknowledged(lag, OperationResult::Ok));
        }
        for _ in 0..9 {
            tally.add(&acknowledged(u64::MAX, OperationResult::Refused));
        }
        let report = tally.report("r", Timestamp::EPOCH, Duration::from_secs(2), 3, false);
        assert_eq!(report.acknowledged, 209);
        assert_eq!(report.lag.p50_us, 105);
        assert_eq!(report.lag.max_us, u64::from(u32::MAX));
        assert_eq!(report.refusals, ["line 7, a: no"; 5]);
        assert_eq!(report.count(OperationResult::Refused), 9);
        let text = report.to_string();
        assert!(text.contains("209 operations in 2 s, 104/s\n"), "{text}");
        assert!(text.contains("set      200 ok, 9 refused\n"), "{text}");
    }

    #[test]
    fn nothing_done_is_a_report_too() {
        let report = Tally::default().report("r", Timestamp::EPOCH, Duration::ZERO, 0, true);
        assert_eq!(report.lag, Lag::default());
        assert!(report.to_string().contains("stopped"));
    }
}
