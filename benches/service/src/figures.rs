//! Figures of all rounds, their medians, and the tables of them.

use std::fmt::Write as _;

/// The shares of a sample that are shown.
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Quantiles {
    /// Of values in microseconds, in milliseconds. All are infinite for no values.
    pub(crate) fn of(mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        let at = |per_mille: usize| {
            let rank = (micros.len() * per_mille).div_ceil(1_000).max(1);
            micros
                .get(rank - 1)
                .map_or(f64::INFINITY, |&value| milliseconds(value))
        };
        Self {
            p50: at(500),
            p99: at(990),
            p999: at(999),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "no sample is longer than a day")]
fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

/// The middle of the values; `None` for no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(values[values.len() / 2 - 1], upper))
}

/// One line of a sheet: a value of each round and candidate, `None` where nothing was measured.
struct Line {
    what: String,
    columns: Vec<Vec<Option<f64>>>,
}

/// A table whose columns are candidates. The first candidate is ours.
pub(crate) struct Sheet {
    candidates: Vec<&'static str>,
    lines: Vec<Line>,
}

impl Sheet {
    pub(crate) fn new(candidates: Vec<&'static str>) -> Self {
        let lines = Vec::new();
        Self { candidates, lines }
    }

    /// Adds the value of a round, and shows it.
    pub(crate) fn add(&mut self, what: &str, candidate: &str, round: usize, value: f64) {
        println!("  {candidate}: {what}: {}", figure(value));
        let Some(column) = self.candidates.iter().position(|name| *name == candidate) else {
            return;
        };
        if !self.lines.iter().any(|line| line.what == what) {
            self.lines.push(Line {
                what: what.to_owned(),
                columns: vec![Vec::new(); self.candidates.len()],
            });
        }
        for line in self.lines.iter_mut().filter(|line| line.what == what) {
            let values = &mut line.columns[column];
            values.resize(values.len().max(round + 1), None);
            values[round] = Some(value);
        }
    }

    /// The median of one candidate.
    pub(crate) fn median(&self, what: &str, candidate: &str) -> Option<f64> {
        let column = self.candidates.iter().position(|name| *name == candidate)?;
        let line = self.lines.iter().find(|line| line.what == what)?;
        line.median(column)
    }

    /// In Markdown: the medians with the lowest and highest value, and the medians of the ratios to ours.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("| |");
        for (column, name) in self.candidates.iter().enumerate() {
            let ratio = if column == 0 { "" } else { " to ours |" };
            write!(text, " {name} |{ratio}").unwrap_or_default();
        }
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(self.candidates.len() * 2 - 1));
        for line in &self.lines {
            write!(text, "\n| {} |", line.what).unwrap_or_default();
            for column in 0..self.candidates.len() {
                write!(text, " {} |", line.cell(column)).unwrap_or_default();
                if column > 0 {
                    let ratio = line.ratio(column).map(|ratio| format!("{ratio:.2}"));
                    write!(text, " {} |", ratio.unwrap_or_default()).unwrap_or_default();
                }
            }
        }
        text
    }
}

impl Line {
    fn values(&self, column: usize) -> Vec<f64> {
        self.columns[column].iter().flatten().copied().collect()
    }

    fn median(&self, column: usize) -> Option<f64> {
        median(&self.values(column))
    }

    fn cell(&self, column: usize) -> String {
        let values = self.values(column);
        let Some(middle) = median(&values) else {
            return "not run".to_owned();
        };
        if values.len() == 1 {
            return figure(middle);
        }
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        format!(
            "{} [{}..{}]",
            figure(middle),
            figure(lowest),
            figure(highest)
        )
    }

    /// The median over the rounds of a candidate's value by ours.
    fn ratio(&self, column: usize) -> Option<f64> {
        let pairs = self.columns[column].iter().zip(&self.columns[0]);
        let ratios: Vec<f64> = pairs
            .filter_map(|(theirs, ours)| Some((*theirs)? / (*ours)?))
            .collect();
        median(&ratios)
    }
}

/// A figure with three digits that count, and all that are whole.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "none".to_owned(),
        size if size >= 100.0 || value == 0.0 => grouped(value),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A goal beside the figure that was seen.
pub(crate) fn verdict(what: &str, at_most: f64, seen: Option<f64>) -> String {
    let Some(seen) = seen else {
        return format!("{what}: not run");
    };
    let end = if seen <= at_most { "met" } else { "**MISSED**" };
    format!(
        "{what}: wanted at most {} ms, seen {} ms: {end}",
        figure(at_most),
        figure(seen)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let quantiles = Quantiles::of((1..=1_000).map(|value| value * 1_000).collect());
        let seen = [quantiles.p50, quantiles.p99, quantiles.p999];
        assert_eq!(seen, [500.0, 990.0, 999.0]);
        assert!(Quantiles::of(Vec::new()).p99.is_infinite());
    }

    #[test]
    fn a_ratio_is_of_values_of_the_same_round() {
        let mut sheet = Sheet::new(vec!["ours", "theirs"]);
        for (round, (ours, theirs)) in [(10.0, 20.0), (100.0, 50.0), (8.0, 8.0)]
            .into_iter()
            .enumerate()
        {
            sheet.add("rate", "ours", round, ours);
            sheet.add("rate", "theirs", round, theirs);
        }
        let table = sheet.table();
        assert!(
            table.contains("| rate | 10.0 [8.00..100] | 20.0 [8.00..50.0] | 1.00 |"),
            "{table}"
        );
        assert_eq!(sheet.median("rate", "theirs"), Some(20.0));
    }

    #[test]
    fn a_round_that_failed_leaves_the_others() {
        let mut sheet = Sheet::new(vec!["ours", "theirs"]);
        sheet.add("rate", "ours", 1, 4.0);
        sheet.add("rate", "theirs", 0, 4.0);
        assert!(sheet.table().contains("| rate | 4.00 | 4.00 |  |"));
    }

    #[test]
    fn the_middle_of_two_lies_between_them() {
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }
}
