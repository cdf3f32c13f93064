//! The list of tables, their contents, and their form on a terminal.

use std::fmt::Write as _;

use crate::cell::Entrant as _;
use crate::choice::Word as _;
use crate::competitor::Name;
use crate::results::{Entry, Pages, Results};
use crate::workload::Workload;

/// A figure that has tables of its own.
pub(crate) struct Figure {
    pub(crate) workload: Workload,
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
}

/// All of them, in the order of the report. Single calls have a table of another shape.
pub(crate) const FIGURES: [Figure; 10] = [
    figure(Workload::W1, "w1-schedule", "W1 schedule", "ns/timer"),
    figure(
        Workload::W1,
        "w1-cancel",
        "W1 cancel, random order",
        "ns/timer",
    ),
    figure(
        Workload::W1,
        "w1w-schedule",
        "W1w schedule, warm",
        "ns/timer",
    ),
    figure(
        Workload::W1,
        "w1w-cancel",
        "W1w cancel, warm, random order",
        "ns/timer",
    ),
    figure(
        Workload::W2,
        "w2",
        "W2 schedule one, cancel an old one",
        "ns/pair",
    ),
    figure(
        Workload::W3u,
        "w3u",
        "W3u expiry tick by tick, uniform delays",
        "ns/timer",
    ),
    figure(
        Workload::W3h,
        "w3h",
        "W3h expiry in jumps, log-uniform delays",
        "ns/timer",
    ),
    figure(
        Workload::W3s,
        "w3s",
        "W3s 1000 timers over 2^32 ticks, 4096 jumps",
        "ms in all",
    ),
    figure(Workload::W3e, "w3e", "W3e empty ticks", "ns/tick"),
    figure(Workload::W6, "w6", "W6 memory", "bytes/timer"),
];

const fn figure(
    workload: Workload,
    key: &'static str,
    title: &'static str,
    unit: &'static str,
) -> Figure {
    Figure {
        workload,
        key,
        title,
        unit,
    }
}

/// One table: one figure at one size under one setting of pages.
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// What the table says of one competitor.
pub(crate) struct Row {
    pub(crate) name: Name,
    pub(crate) entry: Entry,
    /// How many times less than the best peer's this is, if it is ours; otherwise how
    /// many times more than our best. Above one, we are ahead.
    pub(crate) ratio: Option<f64>,
    /// Whom the ratio is against.
    pub(crate) against: Option<Name>,
    pub(crate) order: &'static str,
}

impl Table {
    /// `None` if nothing was measured.
    pub(crate) fn of(
        results: &Results,
        pages: Pages,
        figure: &Figure,
        timers: u64,
    ) -> Option<Self> {
        let entries = results.rows(pages, figure.workload, timers, figure.key);
        if entries.is_empty() {
            return None;
        }
        let best = |in_camp: fn(Name) -> bool| {
            let camp = entries.iter().filter(|&(&name, _)| in_camp(name));
            camp.filter_map(|(&name, entry)| Some((name, entry.median()?)))
                .min_by(|a, b| a.1.total_cmp(&b.1))
        };
        let (our_best, best_peer) = (best(Name::is_ours), best(Name::is_rival));
        let other = |name: Name| if name.is_ours() { best_peer } else { our_best };
        let ratio = |name: Name, entry: &Entry| {
            let (this, other) = (entry.median()?, other(name)?.1);
            Some(if name.is_ours() {
                other / this
            } else {
                this / other
            })
        };
        let rows = entries.iter().map(|(&name, entry)| Row {
            name,
            entry: entry.clone(),
            ratio: ratio(name, entry),
            against: other(name).map(|other| other.0),
            order: results.order_of(name).map_or("unchecked", |o| o.label()),
        });
        Some(Self {
            title: format!(
                "{}, {} timers, {}",
                figure.title,
                thousands(timers),
                pages.label()
            ),
            unit: figure.unit,
            rows: rows.collect(),
        })
    }

    /// Every table there is something to put in.
    pub(crate) fn all(results: &Results) -> Vec<Self> {
        let mut tables = Vec::new();
        for pages in results.pages() {
            for figure in &FIGURES {
                for timers in results.sizes(pages, figure.workload) {
                    tables.extend(Self::of(results, pages, figure, timers));
                }
            }
        }
        tables
    }

    /// As text in columns.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} ({})\n{:<40}{:>10}{:>10}{:>10}{:>30}  {}\n",
            self.title, self.unit, "", "median", "min", "max", "ratio", "order in an advance"
        );
        for row in &self.rows {
            let [median, min, max] = cells(&row.entry);
            let _ = writeln!(
                text,
                "{:<40}{median:>10}{min:>10}{max:>10}{:>30}  {}",
                row.name.label(),
                row.ratio_text(),
                row.order
            );
        }
        text
    }
}

impl Row {
    pub(crate) fn ratio_text(&self) -> String {
        let (Some(ratio), Some(against)) = (self.ratio, self.against) else {
            return String::new();
        };
        format!("{}x to {}", number(ratio), against.word())
    }
}

/// Median, minimum and maximum, or why there are none.
pub(crate) fn cells(entry: &Entry) -> [String; 3] {
    match entry {
        Entry::Measured(summary) => [summary.median, summary.min, summary.max].map(number),
        Entry::OverSeconds(seconds) => [format!("over {seconds} s"), String::new(), String::new()],
        Entry::Failed => ["failed".to_owned(), String::new(), String::new()],
    }
}

/// The same in one cell, as in "10.0 [9.00..11.0]", or "10.0" where that says it all.
pub(crate) fn cell(entry: &Entry) -> String {
    let [median, min, max] = cells(entry);
    if min == max {
        median
    } else {
        format!("{median} [{min}..{max}]")
    }
}

/// About three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        ..0_f64 => format!("-{}", number(-value)),
        0_f64 => "0".to_owned(),
        100_f64.. => thousands_of(&format!("{value:.0}")),
        10_f64.. => format!("{value:.1}"),
        1_f64.. => format!("{value:.2}"),
        0.01_f64.. => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// As in 1,000,000.
pub(crate) fn thousands(value: u64) -> String {
    thousands_of(&value.to_string())
}

fn thousands_of(digits: &str) -> String {
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits_and_commas() {
        assert_eq!(number(0.1234), "0.123");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(1234.5), "1,234");
        assert_eq!(number(-12.34), "-12.3");
        assert_eq!(number(0.0), "0");
        assert_eq!(thousands(10_000_000), "10,000,000");
        assert_eq!(thousands(100), "100");
    }
}
