//! The tables about single calls.

use std::fmt::Write as _;

use crate::cell::Entrant as _;
use crate::competitor::Name;
use crate::results::{Pages, Results};
use crate::table::{number, thousands};
use crate::workload::Workload;

const PERCENTILES: [&str; 4] = ["p50", "p99", "p99.9", "max"];

/// How long single calls of one kind took in one workload.
pub(crate) struct Latencies {
    pub(crate) title: String,
    /// Of each competitor, each percentile: the median over the rounds.
    pub(crate) rows: Vec<(Name, Vec<String>)>,
}

impl Latencies {
    /// Every table there is something to put in.
    pub(crate) fn all(results: &Results) -> Vec<Self> {
        let mut tables = Vec::new();
        for pages in results.pages() {
            for timers in results.sizes(pages, Workload::Calls) {
                for (workload, call, title) in [
                    ("w2", "schedule", "schedule in W2"),
                    ("w2", "cancel", "cancel in W2"),
                    ("w2", "advance", "advance by one tick in W2"),
                    ("w3u", "schedule", "schedule in W3u"),
                    ("w3u", "advance", "advance by one tick in W3u"),
                ] {
                    let key = format!("calls-{workload}-{call}");
                    let title = format!(
                        "Single calls: {title}, {} timers, {}",
                        thousands(timers),
                        pages.label()
                    );
                    let rows = rows(results, pages, timers, &key);
                    if !rows.is_empty() {
                        tables.push(Self { title, rows });
                    }
                }
            }
        }
        tables
    }

    /// As text in columns.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{} (ns)\n{:<40}", self.title, "");
        for percentile in PERCENTILES {
            let _ = write!(text, "{percentile:>12}");
        }
        for (name, cells) in &self.rows {
            let _ = write!(text, "\n{:<40}", name.label());
            for cell in cells {
                let _ = write!(text, "{cell:>12}");
            }
        }
        text + "\n"
    }

    /// As a table in Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "\n### {}\n\n| ns | {} |\n|---|---|---|---|---|\n",
            self.title,
            PERCENTILES.join(" | ")
        );
        for (name, cells) in &self.rows {
            let _ = writeln!(text, "| {} | {} |", name.emphasised(), cells.join(" | "));
        }
        text
    }
}

fn rows(results: &Results, pages: Pages, timers: u64, key: &str) -> Vec<(Name, Vec<String>)> {
    let percentiles = PERCENTILES.map(|percentile| {
        let figure = format!("{key}-{percentile}");
        results.rows(pages, Workload::Calls, timers, &figure)
    });
    let row = |name: &Name| {
        let cells = percentiles.iter().map(|rows| rows.get(name)?.median());
        let medians: Vec<f64> = cells.collect::<Option<_>>()?;
        Some((*name, medians.into_iter().map(number).collect()))
    };
    Name::all().iter().filter_map(row).collect()
}
