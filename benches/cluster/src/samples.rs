//! What was measured, and what was to be reached.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::rows::Row;

/// What a figure has to reach.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Goal {
    /// Nothing: the figure is there to be compared.
    None,
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn is_reached(self, figure: f64) -> Option<bool> {
        match self {
            Self::None => None,
            Self::AtLeast(goal) => Some(figure >= goal),
            Self::AtMost(goal) => Some(figure <= goal),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::AtLeast(goal) => write!(f, "at least {}", figure(*goal)),
            Self::AtMost(goal) => write!(f, "at most {}", figure(*goal)),
        }
    }
}

impl Serialize for Goal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One line of the table: a value of each round.
#[derive(Serialize)]
struct Line {
    row: Row,
    what: String,
    goal: Goal,
    values: Vec<f64>,
}

/// All lines, in the order in which they were first measured.
#[derive(Default, Serialize)]
pub(crate) struct Samples {
    lines: Vec<Line>,
    not_run: Vec<String>,
}

impl Samples {
    /// Adds a value, and shows it.
    pub(crate) fn add(&mut self, row: Row, what: impl Into<String>, goal: Goal, value: f64) {
        let what = what.into();
        println!("  {what}: {}", figure(value));
        let known = |line: &&mut Line| line.row == row && line.what == what;
        match self.lines.iter_mut().find(known) {
            Some(line) => line.values.push(value),
            None => self.lines.push(Line {
                row,
                what,
                goal,
                values: vec![value],
            }),
        }
    }

    /// Says that something was not measured, and why.
    pub(crate) fn not_run(&mut self, what: impl fmt::Display) {
        println!("NOT RUN: {what}");
        self.not_run.push(what.to_string());
    }

    pub(crate) fn are_whole(&self) -> bool {
        self.not_run.is_empty()
    }

    /// The median of a line that was measured.
    pub(crate) fn median(&self, row: Row, what: &str) -> Option<f64> {
        let is_it = |line: &&Line| line.row == row && line.what == what;
        self.lines.iter().find(is_it).map(|line| line.sorted().1)
    }

    /// How many figures miss what they were to reach.
    pub(crate) fn misses(&self) -> usize {
        let reached = |line: &&Line| line.goal.is_reached(line.sorted().1);
        self.lines
            .iter()
            .filter(|line| reached(line) == Some(false))
            .count()
    }
}

impl Line {
    /// The lowest, the median, the highest.
    fn sorted(&self) -> (f64, f64, f64) {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        // A line begins with a value.
        (
            values[0],
            values[values.len() / 2],
            values[values.len() - 1],
        )
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| row | figure | median | lowest..highest | to reach | |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for line in &self.lines {
            let (lowest, median, highest) = line.sorted();
            let end = match line.goal.is_reached(median) {
                Some(true) => "reached",
                Some(false) => "MISS",
                None => "",
            };
            writeln!(
                f,
                "| {} | {} | {} | {}..{} | {} | {end} |",
                line.row,
                line.what,
                figure(median),
                figure(lowest),
                figure(highest),
                line.goal
            )?;
        }
        for what in &self.not_run {
            writeln!(f, "\nNOT RUN: {what}")?;
        }
        Ok(())
    }
}

/// A figure with three digits that count, and all that are whole.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == 0.0 => grouped(value),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", digits.as_str()),
    };
    let mut text = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_decides_whether_a_goal_is_reached() {
        let mut samples = Samples::default();
        for value in [36_000.0, 20_000.0, 35_001.0] {
            samples.add(Row::Sets, "sets", Goal::AtLeast(35_000.0), value);
        }
        samples.add(Row::Sets, "ratio", Goal::AtMost(1.4), 1.41);
        assert_eq!(samples.median(Row::Sets, "sets"), Some(35_001.0));
        assert_eq!(samples.misses(), 1);
        let table = samples.to_string();
        assert!(table.contains("| 35,001 | 20,000..36,000 | at least 35,000 | reached |"));
        assert!(table.contains("| 1.41 | 1.41..1.41 | at most 1.40 | MISS |"));
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        let figures = [0.0, 0.0123, 1.234, 12.34, 123.4, 1_234_567.0, -1_450.0].map(figure);
        let texts = ["0", "0.012", "1.23", "12.3", "123", "1,234,567", "-1,450"];
        assert_eq!(figures, texts);
    }
}
